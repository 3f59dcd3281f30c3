//! Copies one bundle of chunks from host to host: all are read under one snapshot, and written with
//! it in one transaction.
//!
//! Before: the chunks have no snapshot, and the target has none of their rows. After: they have
//! both. If the mover dies in between, the state is as before, since the target's transaction is
//! rolled back.

use tokio_postgres::SimpleQueryMessage;

use crate::mover::control::session::Session;
use crate::mover::copy::transfer::{pipe, qualified, statements};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Options;
use crate::mover::protocol::throttle::Throttle;
use crate::pg::quote_literal;

use crate::mover::copy::cut::Chunk;
use crate::mover::copy::snapshot::Snapshot;
use crate::mover::copy::{ShardCopy, prove_lease};
use crate::mover::preflight::table::TableShape;

/// The size of a chunk once it is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CopiedChunk {
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
}

/// Copies chunks of one shard. `None` if another worker or mover has copied them in the meantime.
///
/// `application_name` is the name of both sessions while they copy, so that a takeover can end
/// them.
///
/// Locks: ACCESS SHARE on the source's tables while they are read; ROW EXCLUSIVE on the target's,
/// which no other session uses, until the end. The chunks' rows and those of [`prove_lease`] are
/// locked only at the very end, so that a takeover never waits for a copy.
///
/// # Cancel safety
/// If dropped or failed, both sessions are in transactions and must be closed.
pub(crate) async fn copy(
    (source, target): (&Session, &Session),
    work: &ShardCopy,
    chunks: &[Chunk],
    application_name: &str,
    options: &Options,
    throttle: &Throttle,
    mut copied: impl FnMut(u64),
) -> Result<Option<Vec<CopiedChunk>>, Error> {
    let what = "copying rows";
    let tables = chunks
        .iter()
        .map(|chunk| table_of(work, chunk))
        .collect::<Result<Vec<_>, _>>()?;
    let named = format!(
        "SET LOCAL application_name = {}",
        quote_literal(application_name)
    );
    let snapshot = read_from(source, work, &tables, &named).await?;
    // This may commit asynchronously: if the target's machine goes down, rows and snapshot are lost
    // together.
    target
        .batch(
            what,
            &format!("BEGIN; {named}; SET LOCAL synchronous_commit = off"),
        )
        .await?;
    let mut sizes = Vec::with_capacity(chunks.len());
    for (chunk, table) in chunks.iter().zip(&tables) {
        let condition = chunk.range.condition(table.first_key_column());
        let (out, into) = statements(table, &work.source_schema, &work.target_schema, &condition);
        let (rows, bytes) = pipe((source, &out), (target, &into), throttle, &mut copied).await?;
        sizes.push(CopiedChunk { rows, bytes });
    }
    source.batch(what, "ROLLBACK").await?;
    // What the snapshot has seen: a transaction that committed asynchronously, or was rolled back,
    // may be lost in a crash, and its number used again. The changes of the second transaction with
    // the number would then be skipped as seen.
    source.flush("making the snapshot durable").await?;
    prove_lease(target, work.hold).await?;
    let done = keep(target, work, chunks, &sizes, &snapshot).await?;
    options.at("in a chunk")?;
    target
        .batch(what, if done { "COMMIT" } else { "ROLLBACK" })
        .await?;
    Ok(done.then_some(sizes))
}

fn table_of<'w>(work: &'w ShardCopy, chunk: &Chunk) -> Result<&'w TableShape, Error> {
    work.table(&chunk.table).ok_or_else(|| Error::Altered {
        shard: work.shard(),
        what: format!(
            "table {} was cut into chunks and no longer exists",
            chunk.table
        ),
    })
}

/// Begins to read: first the locks, then the snapshot.
///
/// LOCK TABLE itself takes no snapshot, not even under REPEATABLE READ. If the snapshot came first,
/// a TRUNCATE in between would leave no rows to a snapshot that does not see the TRUNCATE.
///
/// Locks: ACCESS SHARE on the tables until the end of the transaction. It waits as long as the
/// session's lock_timeout allows.
pub(crate) async fn read_from(
    source: &Session,
    work: &ShardCopy,
    tables: &[&TableShape],
    first: &str,
) -> Result<Snapshot, Error> {
    let what = "locking the tables and taking a snapshot";
    let names: Vec<String> = tables
        .iter()
        .map(|table| qualified(&work.source_schema, table))
        .collect();
    let literals: Vec<String> = names.iter().map(|name| quote_literal(name)).collect();
    // An array, because a function takes at most a hundred arguments.
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {first};
         LOCK TABLE ONLY {} IN ACCESS SHARE MODE;
         SELECT pg_current_snapshot()::text, array_to_string(ARRAY[{}]::regclass[]::oid[], ' ')",
        names.join(", ONLY "),
        literals.join(", ")
    );
    let answer = source
        .client
        .simple_query(&sql)
        .await
        .map_err(|error| source.failed(what, error))?;
    let row = answer.iter().rev().find_map(|message| match message {
        SimpleQueryMessage::Row(row) => Some((row.get(0)?, row.get(1)?)),
        _ => None,
    });
    let wrong = |observed: String| Error::Stuck {
        shard: work.shard(),
        observed,
    };
    let (snapshot, found) =
        row.ok_or_else(|| wrong(format!("host {} gave no row for a snapshot", source.host)))?;
    let expected = tables
        .iter()
        .map(|table| table.oid.to_string())
        .collect::<Vec<_>>()
        .join(" ");
    if found != expected {
        let what = format!(
            "a table of {} was dropped and created again",
            work.source_schema
        );
        return Err(Error::Altered {
            shard: work.shard(),
            what,
        });
    }
    Snapshot::parse(snapshot).ok_or_else(|| {
        wrong(format!(
            "host {} calls {snapshot:?} its snapshot",
            source.host
        ))
    })
}

/// Records the snapshot for the chunks. Returns false if one of them has one already.
///
/// Locks: the chunks' rows until the end of the transaction.
async fn keep(
    target: &Session,
    work: &ShardCopy,
    chunks: &[Chunk],
    sizes: &[CopiedChunk],
    snapshot: &Snapshot,
) -> Result<bool, Error> {
    let names: Vec<&str> = chunks.iter().map(|chunk| chunk.table.as_str()).collect();
    let numbers: Vec<i32> = chunks.iter().map(|chunk| chunk.number).collect();
    let rows: Vec<i64> = sizes.iter().map(|size| size.rows as i64).collect();
    let bytes: Vec<i64> = sizes.iter().map(|size| size.bytes as i64).collect();
    let (snapshot, id, shard) = (
        snapshot.to_string(),
        work.hold.id.uuid(),
        work.shard().as_i32(),
    );
    let sql = "UPDATE pgshard.chunk c SET snapshot = $3, rows = p.r, bytes = p.b
        FROM unnest($4::text[], $5::integer[], $6::bigint[], $7::bigint[]) AS p(n, k, r, b)
        WHERE c.move_id = $1 AND c.shard_id = $2 AND c.table_name = p.n AND c.number = p.k AND \
        c.snapshot IS NULL";
    let what = "writing the chunks' snapshot";
    let kept = target
        .execute(
            what,
            sql,
            &[id, &shard, &snapshot, &names, &numbers, &rows, &bytes],
        )
        .await?;
    Ok(kept == chunks.len() as u64)
}
