//! Whether a shard of the source is still what its target was built from.
//!
//! Invariant: a shard that counts as the same has the same definition, and only INSERT, UPDATE,
//! DELETE and TRUNCATE have changed its rows since: the stream carries those, and nothing else.

use tokio_postgres::types::Type;

use crate::mover::control::session::Session;
use crate::mover::copy::snapshot::Snapshot;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::schema::catalog::fingerprint::{Fingerprint, fingerprint};
use crate::schema::catalog::{self, Facts, Namespace, Stamp};

/// A shard of the source as it was when its target was built.
#[derive(Clone, Debug)]
pub(crate) struct Original {
    /// Two that are equal show that no catalog row was written. TRUNCATE, REINDEX, CLUSTER and
    /// VACUUM FULL write some too, but alter nothing.
    stamp: Stamp,
    layout: String,
    fingerprint: Fingerprint,
}

/// A stamp of a schema from before its definition is read: alterations during the reading make a
/// later one differ.
pub(crate) struct Glance {
    stamp: Stamp,
    layout: String,
}

/// How a shard differs from its original.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alteration {
    /// Its definition is another one.
    Definition,
    /// Its definition is the same, or is the same again, but its rows may not be.
    Rows,
}

impl Alteration {
    /// For people.
    pub(crate) fn describe(self) -> &'static str {
        match self {
            Alteration::Definition => {
                "one of its tables, functions or grants was created, altered or dropped since the \
                    target was built"
            }
            Alteration::Rows => {
                "columns were altered, or tables renamed, since the target was built. They look \
                    the same now, but the rows may be others"
            }
        }
    }
}

impl Glance {
    /// Reads a schema of a host.
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    pub(crate) async fn at(session: &Session, schema: u32) -> Result<Glance, Error> {
        // The stamp comes first: what is altered in between makes later stamps differ, and then
        // later layouts count.
        let stamp = stamp(session, schema).await?;
        Ok(Glance {
            stamp,
            layout: layout(session, schema).await?,
        })
    }

    /// With the definition that was read since.
    pub(crate) fn with(self, facts: &Facts) -> Original {
        let Glance { stamp, layout } = self;
        Original {
            stamp,
            layout,
            fingerprint: fingerprint(facts),
        }
    }
}

impl Original {
    pub(crate) fn fingerprint(&self) -> &Fingerprint {
        &self.fingerprint
    }

    /// Whether no catalog row of the schema was written since.
    ///
    /// Locks: none but ACCESS SHARE on catalogs.
    pub(crate) async fn is_untouched(&self, session: &Session, schema: u32) -> Result<bool, Error> {
        Ok(self.stamp == stamp(session, schema).await?)
    }

    /// How a schema differs, if it does. If not, the stamp is that of now: the next question is
    /// answered sooner.
    ///
    /// Locks: as [`facts::of_schema`].
    pub(crate) async fn alteration(
        &mut self,
        session: &Session,
        schema: u32,
    ) -> Result<Option<Alteration>, Error> {
        let now = Glance::at(session, schema).await?;
        if now.stamp == self.stamp {
            return Ok(None);
        }
        let now = now.with(&facts::of_schema(session, &Namespace::Oid(schema)).await?);
        if now.fingerprint != self.fingerprint {
            return Ok(Some(Alteration::Definition));
        }
        if now.layout != self.layout {
            return Ok(Some(Alteration::Rows));
        }
        self.stamp = now.stamp;
        Ok(None)
    }
}

async fn stamp(session: &Session, schema: u32) -> Result<Stamp, Error> {
    let stamp = catalog::stamp(session.client.client(), schema).await;
    stamp.map_err(|source| Error::Catalog {
        host: session.host.clone(),
        source,
    })
}

/// A digest of which table has which name, and of the columns of tables and row types with the
/// transactions that wrote them last. Statements that rewrite rows in a way that the stream does
/// not carry write one of these: ALTER COLUMN … TYPE … USING, a column that is dropped and added
/// again, two tables that exchange their names, an attribute of a row type. TRUNCATE, REINDEX,
/// CLUSTER, VACUUM FULL and ANALYZE write none, with one exception: where ADD COLUMN has left a
/// default to be read for older rows, the first CLUSTER or VACUUM FULL writes it into them, and
/// takes it from the column (`RelationClearMissing` in PostgreSQL's heap.c). That looks like a
/// rewrite, and costs a copy.
///
/// Locks: none but ACCESS SHARE on catalogs.
async fn layout(session: &Session, schema: u32) -> Result<String, Error> {
    let sql = format!(
        "SELECT coalesce(md5(string_agg(concat_ws(' ', c.oid, quote_ident(c.relname), a.attnum, \
            quote_ident(a.attname),
            a.xmin), ',' ORDER BY c.oid, a.attnum)), '')
         FROM {HAVING_ROWS} LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0"
    );
    let rows = session
        .typed_rows(
            "reading how rows are laid out",
            &sql,
            &[(&schema, Type::OID)],
        )
        .await?;
    rows.first().map_or(Ok(String::new()), |row| row.get(0))
}

/// The tables and row types `c` of the schema $1: by its members in pg_depend, since pg_class has
/// no index on the namespace. A row type is a member by its type.
const HAVING_ROWS: &str = "(SELECT objid AS oid FROM pg_depend
        WHERE refclassid = 'pg_namespace'::regclass AND refobjid = $1 AND classid = \
        'pg_class'::regclass
        UNION SELECT t.typrelid FROM pg_depend d JOIN pg_type t ON t.oid = d.objid
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = \
        'pg_type'::regclass) m
    JOIN pg_class c ON c.oid = m.oid AND c.relkind IN ('r', 'p', 'c')";

/// Whether the layout of a table was written since its rows were read, in one of these snapshots:
/// table and snapshot. It is for a process that was not there: a mover knows the layout from before
/// its copy. (A column that a subtransaction wrote may be missed. The comparison of the rows, which
/// comes after this, finds the effect.)
///
/// Locks: none but ACCESS SHARE on catalogs.
pub(crate) async fn is_rewritten(
    session: &Session,
    schema: u32,
    copied: &[(String, Snapshot)],
) -> Result<bool, Error> {
    // Renaming a table writes its row in pg_type. So does a new owner, which costs a copy that was
    // not needed. How many numbers ago a transaction had its own: one that is older than 2³¹ has a
    // number that looks as if it came later.
    let sql = format!(
        "SELECT DISTINCT CASE WHEN c.relkind <> 'c' THEN c.relname::text END, x.now::text,
             ((x.now - w.by::text::bigint) % 4294967296 + 4294967296) % 4294967296
         FROM {HAVING_ROWS},
             LATERAL (SELECT a.xmin AS by FROM pg_attribute a WHERE a.attrelid = c.oid AND \
             a.attnum > 0
                      UNION SELECT t.xmin FROM pg_type t WHERE t.oid = c.reltype) w,
             (SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint AS now) x"
    );
    for row in session
        .typed_rows(
            "reading how rows are laid out",
            &sql,
            &[(&schema, Type::OID)],
        )
        .await?
    {
        let (table, now, ago): (Option<String>, String, i64) =
            (row.get(0)?, row.get(1)?, row.get(2)?);
        let writer = now
            .parse::<u64>()
            .unwrap_or(0)
            .checked_sub(ago.unsigned_abs());
        let concerns = |name: &String| table.as_ref().is_none_or(|table| table == name);
        if let Some(writer) = writer
            && copied
                .iter()
                .any(|(name, snapshot)| concerns(name) && !snapshot.sees(writer))
        {
            return Ok(true);
        }
    }
    Ok(false)
}
