//! A cheap sign that a schema's definition was not changed. Reading and deparsing everything takes
//! tens of milliseconds, which is too long for a fence; this takes a few.

use tokio_postgres::GenericClient;
use tokio_postgres::types::Type;

use super::read::{Error, Namespace};

/// Shows which transactions last wrote the catalog rows of a schema, condensed. It is valid on the
/// same server only.
///
/// As long as two stamps of a schema are equal, so are its facts: keep one with the facts, and read
/// the facts again only when the stamps differ. They may differ without a change of the definition
/// (TRUNCATE and REINDEX write catalog rows, too); the fingerprint then shows which it was. A
/// rename of the schema, VACUUM, ANALYZE and publications do not change it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct Stamp(String);

const SQL: &str = concat!(super::objects_sql!(), include_str!("sql/stamp.sql"));

/// The stamp of a schema, as the connection's transaction sees it. Needs no transaction of its own.
///
/// To be safe against DDL in between, take it before the facts are [`read`](super::read).
///
/// # Errors
/// When the server refuses. A schema that does not exist has a stamp too: that of no rows.
///
/// # Cancel safety
/// Only reads.
pub(crate) async fn stamp<C: GenericClient + Sync>(client: &C, oid: u32) -> Result<Stamp, Error> {
    let failed = |source| Error::Postgres {
        what: "stamp",
        namespace: Namespace::Oid(oid),
        source,
    };
    let row = client
        .query_typed(SQL, &[(&oid, Type::OID)])
        .await
        .map_err(failed)?;
    let stamp = row
        .first()
        .map(|row| row.try_get(0))
        .transpose()
        .map_err(failed)?;
    Ok(Stamp(stamp.unwrap_or_default()))
}
