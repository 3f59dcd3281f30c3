//! Detects whether a schema's definition or border, or a publication, was changed since they were
//! last examined. It is for the time behind the fence, when there is no time to examine them again.
//! To examine border and stamp, the server must find out first what belongs to the schema, which is
//! most of the cost, and it must plan all of that again after a swap. The digest knows what belongs
//! to the schema already.
//!
//! Invariant: equal digests mean that nothing was changed. A new object depends on a known one, so
//! a row of `pg_depend` appears; the same is true of whatever crosses the border. A transaction
//! that adds or changes a row of a catalog writes it with an `xmin` that no row had before; one
//! that removes a row leaves fewer. So the number of rows for each `xmin` shows every change.
//! Unequal digests prove nothing: the full examination decides.

use std::collections::BTreeSet;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::schema::catalog::objects_sql;

/// Lists the objects, and whether another object of the same catalog lies between each and the one
/// before it.
const LIST: &str = concat!(
    objects_sql!(),
    ", listed AS MATERIALIZED (
        SELECT class, oid, pg_catalog.lag(oid) OVER (PARTITION BY class ORDER BY oid) AS prior
        FROM (SELECT DISTINCT class::pg_catalog.oid, oid FROM part
              WHERE class <> 'pg_catalog.pg_publication_rel'::pg_catalog.regclass) AS p
    )
    SELECT l.class, l.oid, c.relname::pg_catalog.text, CASE c.relname /* strangers */ ELSE true END
    FROM listed l JOIN pg_catalog.pg_class c ON c.oid = l.class
    ORDER BY l.class, l.oid"
);

const DIGEST: &str = include_str!("sql/digest.sql");

/// The rows that define an object: its class, the catalog that has the rows, and the column that
/// holds its OID.
const ROWS: [(&str, &str, &str); 23] = [
    ("pg_attrdef", "pg_attrdef", "oid"),
    ("pg_cast", "pg_cast", "oid"),
    // Not the system columns, which every table has.
    ("pg_class", "pg_attribute", "attnum > 0 AND attrelid"),
    ("pg_class", "pg_class", "oid"),
    ("pg_class", "pg_index", "indexrelid"),
    ("pg_class", "pg_inherits", "inhrelid"),
    ("pg_class", "pg_sequence", "seqrelid"),
    ("pg_class", "pg_subscription_rel", "srrelid"),
    ("pg_collation", "pg_collation", "oid"),
    ("pg_constraint", "pg_constraint", "oid"),
    ("pg_conversion", "pg_conversion", "oid"),
    ("pg_default_acl", "pg_default_acl", "oid"),
    ("pg_operator", "pg_operator", "oid"),
    ("pg_policy", "pg_policy", "oid"),
    ("pg_proc", "pg_proc", "oid"),
    ("pg_rewrite", "pg_rewrite", "oid"),
    ("pg_statistic_ext", "pg_statistic_ext", "oid"),
    ("pg_trigger", "pg_trigger", "oid"),
    ("pg_ts_config", "pg_ts_config", "oid"),
    ("pg_ts_config", "pg_ts_config_map", "mapcfg"),
    ("pg_ts_dict", "pg_ts_dict", "oid"),
    ("pg_type", "pg_enum", "enumtypid"),
    ("pg_type", "pg_type", "oid"),
];

/// A digest of a schema's rows in the catalogs, with the list of what belonged to it. It is valid
/// on the same server only.
#[derive(Clone, Debug)]
pub(crate) struct CatalogDigest {
    schema: u32,
    runs: Runs,
    sql: String,
    digest: String,
}

/// The objects of a schema as runs of OIDs: each run goes from the lowest to the highest OID of
/// objects of one class, with no foreign object in between. One index scan over a run costs a
/// fraction of a look-up for each object.
#[derive(Clone, Debug, Default)]
struct Runs {
    classes: Vec<u32>,
    lows: Vec<u32>,
    highs: Vec<u32>,
}

impl Runs {
    /// Adds the next object, in the order of classes and OIDs.
    fn push(&mut self, class: u32, oid: u32, apart: Apart) {
        match (self.classes.last(), self.highs.last_mut(), apart) {
            (Some(last), Some(high), Apart::No) if *last == class => *high = oid,
            _ => {
                self.classes.push(class);
                self.lows.push(oid);
                self.highs.push(oid);
            }
        }
    }
}

/// Whether a foreign object lies between an object and the one before it.
#[derive(Clone, Copy, Debug)]
enum Apart {
    Yes,
    No,
}

impl CatalogDigest {
    /// The digest of a schema by its OID. The client must be in a `REPEATABLE READ` transaction, so
    /// that both statements see the same.
    ///
    /// What is examined after that and found right stays right for as long as the digest [is the
    /// same](CatalogDigest::is_same).
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    ///
    /// # Errors
    /// When the server refuses. A schema that does not exist has a digest too: that of no rows.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn take<C: GenericClient + Sync>(
        client: &C,
        schema: u32,
    ) -> Result<CatalogDigest, tokio_postgres::Error> {
        let rows = client
            .query_typed(&list_sql(), &[(&schema, Type::OID)])
            .await?;
        let (mut runs, mut kinds) = (Runs::default(), BTreeSet::new());
        for row in &rows {
            kinds.insert(row.try_get(2)?);
            let apart = if row.try_get(3)? {
                Apart::Yes
            } else {
                Apart::No
            };
            runs.push(row.try_get(0)?, row.try_get(1)?, apart);
        }
        let mut taken = CatalogDigest {
            schema,
            runs,
            sql: digest_sql(&kinds),
            digest: String::new(),
        };
        taken.digest = taken.read(client).await?;
        Ok(taken)
    }

    /// Whether the schema and all publications were left unchanged since, whatever it is called
    /// now.
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    ///
    /// # Errors
    /// When the server refuses.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn is_same<C: GenericClient + Sync>(
        &self,
        client: &C,
    ) -> Result<bool, tokio_postgres::Error> {
        Ok(self.read(client).await? == self.digest)
    }

    async fn read<C: GenericClient + Sync>(
        &self,
        client: &C,
    ) -> Result<String, tokio_postgres::Error> {
        let CatalogDigest {
            schema, runs, sql, ..
        } = self;
        let params: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] = &[
            (schema, Type::OID),
            (&runs.classes, Type::OID_ARRAY),
            (&runs.lows, Type::OID_ARRAY),
            (&runs.highs, Type::OID_ARRAY),
        ];
        let rows = client.query_typed(sql, params).await?;
        rows.first().map_or(Ok(String::new()), |row| row.try_get(0))
    }
}

/// Lists each object of the schema. Where a class has no catalog in [`ROWS`], each object is a run
/// of its own.
fn list_sql() -> String {
    let own = ROWS.iter().filter(|(class, catalog, _)| class == catalog);
    let strangers = own.map(|(class, ..)| {
        format!(
            "WHEN '{class}' THEN EXISTS (SELECT FROM pg_catalog.{class} x WHERE x.oid > l.prior \
                AND x.oid < l.oid)
            "
        )
    });
    LIST.replace("/* strangers */", &strangers.collect::<String>())
}

/// The statement for objects of these classes. It is planned behind the fence, where planning costs
/// more than running it, so catalogs that cannot have a row are left out.
fn digest_sql(classes: &BTreeSet<&str>) -> String {
    let rows = ROWS
        .iter()
        .filter(|(class, ..)| classes.contains(class))
        .map(|(class, catalog, key)| {
            format!(
                "UNION ALL
            SELECT x.xmin
            FROM run r, LATERAL (SELECT xmin FROM pg_catalog.{catalog} WHERE {key} BETWEEN r.low \
            AND r.high OFFSET 0) x
            WHERE r.class = 'pg_catalog.{class}'::pg_catalog.regclass
            "
            )
        });
    DIGEST.replace("/* rows */", &rows.collect::<String>())
}
