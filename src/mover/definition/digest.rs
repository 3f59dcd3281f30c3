//! Whether anything was done to a schema's definition or border since it was looked at, for where there is no time to
//! look again: behind the fence. Border and stamp find out what belongs to the schema before they look at that, which
//! is most of what they cost, and after a swap all of it is planned anew. Here it is known.
//!
//! Invariant: equal digests mean that nothing was done. An object that comes anew depends on one that is known, so
//! `pg_depend` says so, as it does of whatever crosses the border; a row that is written has another `xmin`. Unequal
//! ones mean nothing: the full look decides.

use std::collections::BTreeSet;

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use crate::schema::catalog::objects_sql;

const LIST: &str = concat!(
    objects_sql!(),
    "SELECT DISTINCT part.class::pg_catalog.oid, part.oid, c.relname::pg_catalog.text
     FROM part JOIN pg_catalog.pg_class c ON c.oid = part.class
     WHERE part.class <> 'pg_catalog.pg_publication_rel'::pg_catalog.regclass AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_class t WHERE part.class = 'pg_catalog.pg_class'::pg_catalog.regclass
            AND t.oid = part.oid AND t.relnamespace = 'pg_toast'::pg_catalog.regnamespace)"
);

const DIGEST: &str = include_str!("sql/digest.sql");

/// The rows that say what an object is: its class, the catalog in which they are, the column that has its OID, and the
/// numbers that tell several of its rows apart.
const ROWS: [(&str, &str, &str, &[&str]); 23] = [
    ("pg_attrdef", "pg_attrdef", "oid", &[]),
    ("pg_cast", "pg_cast", "oid", &[]),
    // But those that every table has.
    ("pg_class", "pg_attribute", "attnum > 0 AND attrelid", &["attnum"]),
    ("pg_class", "pg_class", "oid", &[]),
    ("pg_class", "pg_index", "indexrelid", &[]),
    ("pg_class", "pg_inherits", "inhrelid", &["inhparent"]),
    ("pg_class", "pg_sequence", "seqrelid", &[]),
    ("pg_class", "pg_subscription_rel", "srrelid", &["srsubid"]),
    ("pg_collation", "pg_collation", "oid", &[]),
    ("pg_constraint", "pg_constraint", "oid", &[]),
    ("pg_conversion", "pg_conversion", "oid", &[]),
    ("pg_default_acl", "pg_default_acl", "oid", &[]),
    ("pg_operator", "pg_operator", "oid", &[]),
    ("pg_policy", "pg_policy", "oid", &[]),
    ("pg_proc", "pg_proc", "oid", &[]),
    ("pg_rewrite", "pg_rewrite", "oid", &[]),
    ("pg_statistic_ext", "pg_statistic_ext", "oid", &[]),
    ("pg_trigger", "pg_trigger", "oid", &[]),
    ("pg_ts_config", "pg_ts_config", "oid", &[]),
    ("pg_ts_config", "pg_ts_config_map", "mapcfg", &["maptokentype", "mapseqno"]),
    ("pg_ts_dict", "pg_ts_dict", "oid", &[]),
    ("pg_type", "pg_enum", "enumtypid", &["oid"]),
    ("pg_type", "pg_type", "oid", &[]),
];

/// A digest of a schema's rows in the catalogs, with what belonged to it then. It means something on the same server
/// only.
#[derive(Clone, Debug)]
pub(crate) struct CatalogDigest {
    schema: u32,
    classes: Vec<u32>,
    oids: Vec<u32>,
    sql: String,
    digest: String,
}

impl CatalogDigest {
    /// The digest of a schema by its OID. The client is in a `REPEATABLE READ` transaction, in which both statements
    /// see the same.
    ///
    /// What is looked at after that and found right is right for as long as the digest [is the
    /// same](CatalogDigest::is_same).
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    ///
    /// # Errors
    /// When the server refuses. A schema that does not exist has a digest too, that of nothing.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn take<C: GenericClient + Sync>(
        client: &C,
        schema: u32,
    ) -> Result<CatalogDigest, tokio_postgres::Error> {
        let rows = client.query_typed(LIST, &[(&schema, Type::OID)]).await?;
        let (mut classes, mut oids) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
        let mut kinds = BTreeSet::new();
        for row in &rows {
            classes.push(row.try_get(0)?);
            oids.push(row.try_get(1)?);
            kinds.insert(row.try_get(2)?);
        }
        let mut taken = CatalogDigest { schema, classes, oids, sql: sql_for(&kinds), digest: String::new() };
        taken.digest = taken.read(client).await?;
        Ok(taken)
    }

    /// Whether nothing was done to the schema since, whatever it is called now.
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    ///
    /// # Errors
    /// When the server refuses.
    ///
    /// # Cancel safety
    /// Only reads.
    pub(crate) async fn is_same<C: GenericClient + Sync>(&self, client: &C) -> Result<bool, tokio_postgres::Error> {
        Ok(self.read(client).await? == self.digest)
    }

    async fn read<C: GenericClient + Sync>(&self, client: &C) -> Result<String, tokio_postgres::Error> {
        let CatalogDigest { schema, classes, oids, sql, .. } = self;
        let params: &[(&(dyn tokio_postgres::types::ToSql + Sync), Type)] =
            &[(schema, Type::OID), (classes, Type::OID_ARRAY), (oids, Type::OID_ARRAY)];
        let rows = client.query_typed(sql, params).await?;
        rows.first().map_or(Ok(String::new()), |row| row.try_get(0))
    }
}

/// The statement for objects of these classes. It is planned behind the fence, where it costs more to plan than to run:
/// catalogs in which nothing can be are left out.
fn sql_for(classes: &BTreeSet<&str>) -> String {
    let rows = ROWS.iter().enumerate().filter(|(_, (class, ..))| classes.contains(class));
    let rows = rows.map(|(at, (class, catalog, key, apart))| {
        let read: String = apart.iter().map(|column| format!("{column}, ")).collect();
        let seed = format!("pg_catalog.hashint8extended(i.oid::pg_catalog.int8, {at})");
        let hash = apart
            .iter()
            .fold(seed, |seed, column| format!("pg_catalog.hashint8extended(x.{column}::pg_catalog.int8, {seed})"));
        format!(
            "UNION ALL
            SELECT pg_catalog.hashtextextended(x.xmin::pg_catalog.text, {hash})
            FROM inside i, LATERAL (SELECT {read}xmin FROM pg_catalog.{catalog} WHERE {key} = i.oid OFFSET 0) x
            WHERE i.class = 'pg_catalog.{class}'::pg_catalog.regclass
            "
        )
    });
    DIGEST.replace("/* rows */", &rows.collect::<String>())
}
