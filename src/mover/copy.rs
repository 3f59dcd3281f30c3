//! Rows from host to host, and digests of what arrived.
//!
//! What may not break: both sides read the same columns in the same order with the same settings, so that a digest that
//! differs means a row that differs. Values go over as binary where every type is PostgreSQL's own, whose binary form is
//! the same in all versions; types made by users carry OIDs in places and go as text.

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, TryStreamExt};

use super::error::Error;
use super::session::Session;
use crate::pg::quote_ident;

/// Rows come one a message; a message for each, on the way on, would cost more than the rows.
const CHUNK_BYTES: usize = 64 * 1024;

/// One table of a shard, as COPY and digests need it.
#[derive(Clone, Debug)]
pub(crate) struct Table {
    pub(crate) name: String,
    /// Quoted and joined: the columns that have a value of their own.
    written: String,
    /// Quoted and joined: all columns, generated ones too.
    all: String,
    binary: bool,
}

/// A table's content, in a few bytes: number of rows, and a sum of the rows' hashes that no order changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digest {
    pub(crate) rows: i64,
    sum: String,
}

impl std::fmt::Display for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} rows, digest {}", self.rows, self.sum)
    }
}

/// The tables of a schema, by its OID. Found by pg_depend, whose index answers at once: pg_class has none by schema.
///
/// Locks: ACCESS SHARE on catalogs.
pub(crate) async fn tables(session: &Session, schema: u32) -> Result<Vec<Table>, Error> {
    let sql = "SELECT c.relname::text,
            coalesce(string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FILTER (WHERE a.attgenerated = ''), ''),
            coalesce(string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum), ''),
            coalesce(bool_and(a.atttypid < 16384), true)
        FROM pg_depend d JOIN pg_class c ON c.oid = d.objid
        LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
        WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = $1 AND d.classid = 'pg_class'::regclass
            AND c.relkind = 'r' GROUP BY c.oid, c.relname ORDER BY c.relname";
    let rows = session.rows("listing the tables", sql, &[&schema]).await?;
    let table = |row: &tokio_postgres::Row| Table {
        name: row.get(0),
        written: row.get(1),
        all: row.get(2),
        binary: row.get(3),
    };
    Ok(rows.iter().map(table).collect())
}

/// Copies a table's rows as they stand in the source session's snapshot. Gives rows and bytes.
///
/// Locks: ACCESS SHARE on the source's table and ROW EXCLUSIVE on the target's, until the ends of the transactions that
/// the sessions are in.
///
/// # Cancel safety
/// Dropped half-way, both transactions are to be rolled back; the target takes nothing that was not finished.
pub(crate) async fn pipe(
    (source, from): (&Session, &str),
    (target, to): (&Session, &str),
    table: &Table,
    mut copied: impl FnMut(u64),
) -> Result<(u64, u64), Error> {
    let what = "copying rows";
    let format = if table.binary { "binary" } else { "text" };
    let name = quote_ident(&table.name);
    let columns = if table.written.is_empty() { String::new() } else { format!(" ({})", table.written) };
    let out = format!("COPY {}.{name}{columns} TO STDOUT (FORMAT {format})", quote_ident(from));
    let into = format!("COPY {}.{name}{columns} FROM STDIN (FORMAT {format})", quote_ident(to));
    let rows = source.client.copy_out(&out).await.map_err(|error| source.failed(what, error))?;
    let mut rows = std::pin::pin!(rows.map_err(|error| source.failed(what, error)));
    let sink = target.client.copy_in(&into).await.map_err(|error| target.failed(what, error))?;
    let mut sink = std::pin::pin!(sink);
    let mut bytes = 0;
    let mut chunk = BytesMut::with_capacity(CHUNK_BYTES);
    loop {
        let row: Option<Bytes> = rows.try_next().await?;
        if let Some(row) = &row {
            chunk.extend_from_slice(row);
        }
        if chunk.len() >= CHUNK_BYTES || row.is_none() {
            bytes += chunk.len() as u64;
            copied(chunk.len() as u64);
            // Waits while the socket is full, so that no more than a few chunks are held in memory.
            sink.send(chunk.split().freeze()).await.map_err(|error| target.failed(what, error))?;
        }
        if row.is_none() {
            break;
        }
    }
    let rows = sink.finish().await.map_err(|error| target.failed(what, error))?;
    Ok((rows, bytes))
}

/// The digest of a table in the session's snapshot: every row's text, hashed with 64 bits and summed.
///
/// The text, not the value: two numerics that are equal but not alike (1.0, 1.00) have different digests.
///
/// Locks: ACCESS SHARE on the table until the end of the session's transaction.
pub(crate) async fn digest(session: &Session, schema: &str, table: &Table) -> Result<Digest, Error> {
    let row = if table.all.is_empty() { "''".to_owned() } else { format!("ROW({})::text", table.all) };
    let sql = format!(
        "SELECT count(*), coalesce(sum(hashtextextended({row}, 0)::numeric), 0)::text FROM ONLY {}.{}",
        quote_ident(schema),
        quote_ident(&table.name)
    );
    let row = session.row("digesting rows", &sql, &[]).await?;
    Ok(Digest { rows: row.get(0), sum: row.get(1) })
}
