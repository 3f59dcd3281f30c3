//! Sends rows from host to host.
//!
//! Values are sent as binary where every type is PostgreSQL's own and has a binary form that means
//! the same in all versions. The binary form of users' types may contain OIDs, so those are sent as
//! text.

use bytes::{Bytes, BytesMut};
use futures_util::{SinkExt, TryStreamExt};

use crate::mover::control::session::Session;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::throttle::Throttle;
use crate::pg::quote_ident;

/// Rows arrive one in each message. Sending each on as a message of its own would cost more than
/// the rows do.
const BLOCK_BYTES: usize = 64 * 1024;

/// The name of a table as SQL.
pub(crate) fn qualified(schema: &str, table: &TableShape) -> String {
    format!("{}.{}", quote_ident(schema), quote_ident(&table.name))
}

/// The two statements that copy the rows of a table that fulfil `condition`: out of one schema, and
/// into the other.
pub(crate) fn statements(
    table: &TableShape,
    from: &str,
    to: &str,
    condition: &str,
) -> (String, String) {
    let format = if table.is_binary() { "binary" } else { "text" };
    let (out, into, written) = (
        qualified(from, table),
        qualified(to, table),
        table.written(),
    );
    let columns = if written.is_empty() {
        String::new()
    } else {
        format!(" ({written})")
    };
    let out = match condition {
        "true" => format!("COPY {out}{columns} TO STDOUT (FORMAT {format})"),
        _ => format!(
            "COPY (SELECT {written} FROM ONLY {out} WHERE {condition}) TO STDOUT (FORMAT {format})"
        ),
    };
    (
        out,
        format!("COPY {into}{columns} FROM STDIN (FORMAT {format})"),
    )
}

/// Copies the result of one statement into another, as the source session's snapshot sees it.
/// Returns rows and bytes.
///
/// Locks: ACCESS SHARE on the source's table and ROW EXCLUSIVE on the target's, until the ends of
/// the transactions that the sessions are in.
///
/// # Cancel safety
/// If dropped halfway, both transactions must be rolled back; the target keeps nothing that was not
/// finished.
pub(crate) async fn pipe(
    (source, out): (&Session, &str),
    (target, into): (&Session, &str),
    throttle: &Throttle,
    mut copied: impl FnMut(u64),
) -> Result<(u64, u64), Error> {
    let what = "copying rows";
    let rows = source
        .client
        .copy_out(out)
        .await
        .map_err(|error| source.failed(what, error))?;
    let mut rows = std::pin::pin!(rows.map_err(|error| source.failed(what, error)));
    let sink = target
        .client
        .copy_in(into)
        .await
        .map_err(|error| target.failed(what, error))?;
    let mut sink = std::pin::pin!(sink);
    let mut bytes = 0;
    let mut block = BytesMut::with_capacity(BLOCK_BYTES);
    loop {
        let row: Option<Bytes> = rows.try_next().await?;
        if let Some(row) = &row {
            block.extend_from_slice(row);
        }
        if block.len() >= BLOCK_BYTES || row.is_none() {
            let size = block.len() as u64;
            throttle.pass(size).await;
            bytes += size;
            copied(size);
            // Waits while the socket is full, so that no more than a few blocks are held in memory.
            sink.send(block.split().freeze())
                .await
                .map_err(|error| target.failed(what, error))?;
        }
        if row.is_none() {
            break;
        }
    }
    let rows = sink
        .finish()
        .await
        .map_err(|error| target.failed(what, error))?;
    Ok((rows, bytes))
}
