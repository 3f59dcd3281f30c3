//! Decides where tables are cut, and records it at the target before the first row is copied.
//!
//! Invariant: a table that has chunks keeps them. A resume finds them and copies those that are
//! missing.

use std::collections::{BTreeMap, BTreeSet};

use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::copy::transfer::qualified;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Options;

use crate::mover::copy::chunks::KeyRange;
use crate::mover::copy::{ShardCopy, prove_lease};
use crate::mover::preflight::table::TableShape;

/// The most chunks of one table. Where that is too few, chunks are larger.
const CHUNKS_MAX: u64 = 4096;

/// How many pages of a table are sampled to find where to cut it: at least this many, and for each
/// chunk.
const SAMPLE_PAGES: f64 = 256.0;
const CHUNK_PAGES: f64 = 16.0;

/// A chunk of a table, as `pgshard.chunk` has it.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) table: String,
    pub(crate) number: i32,
    pub(crate) range: KeyRange,
    /// Its size, roughly, so that the work can be shared out.
    pub(crate) estimate: u64,
    /// Rows and bytes, once it is copied.
    pub(crate) copied: Option<(u64, u64)>,
    pub(crate) verified: bool,
}

/// Cuts those tables of a shard that are not cut yet.
///
/// Locks: ACCESS SHARE on each table of the source while a part of it is read; at the target, rows
/// of pgshard.chunk that no other session uses, and those of [`prove_lease`].
///
/// # Cancel safety
/// All the shard's bounds are written in one transaction. If dropped, the target session must be
/// closed.
pub(crate) async fn cut(
    source: &Session,
    target: &Session,
    work: &ShardCopy,
    options: &Options,
) -> Result<(), Error> {
    let what = "cutting tables into chunks";
    let (id, shard) = (work.hold.id.uuid(), work.shard().as_i32());
    let sql = "SELECT DISTINCT table_name FROM pgshard.chunk WHERE move_id = $1 AND shard_id = $2";
    let cut = target.rows(what, sql, &[id, &shard]).await?;
    let cut: BTreeSet<String> = cut.iter().map(|row| row.get(0)).collect::<Result<_, _>>()?;
    let uncut: Vec<&TableShape> = work
        .tables
        .iter()
        .filter(|table| !cut.contains(&table.name))
        .collect();
    if uncut.is_empty() {
        return Ok(());
    }
    let sizes = sizes(source, &work.tables).await?;
    let chunk_bytes = options.chunk_bytes_of(sizes.values().sum());
    let (mut names, mut numbers, mut lows, mut highs) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for table in uncut {
        let size = sizes.get(&table.oid).copied().unwrap_or(0);
        let bounds = bounds(
            (source, &qualified(&work.source_schema, table)),
            table,
            size,
            chunk_bytes,
        )
        .await?;
        for number in 0..=bounds.len() {
            names.push(table.name.as_str());
            numbers.push(number as i32);
            lows.push(number.checked_sub(1).map(|before| bounds[before].clone()));
            highs.push(bounds.get(number).cloned());
        }
    }
    target.batch(what, "BEGIN").await?;
    prove_lease(target, work.hold).await?;
    let sql = "INSERT INTO pgshard.chunk (move_id, shard_id, table_name, number, low, high)
        SELECT $1, $2, n, k, l, h FROM unnest($3::text[], $4::integer[], $5::text[], $6::text[]) \
        AS p(n, k, l, h)";
    target
        .execute(what, sql, &[id, &shard, &names, &numbers, &lows, &highs])
        .await?;
    target.batch(what, "COMMIT").await
}

/// The chunks of a shard, by table and number.
///
/// Locks: ACCESS SHARE on pgshard.chunk; at the source on the tables, for one statement.
pub(crate) async fn chunks(
    source: &Session,
    target: &Session,
    work: &ShardCopy,
) -> Result<Vec<Chunk>, Error> {
    let sql = "SELECT table_name, number, low, high, snapshot IS NOT NULL, rows, bytes, \
        verified_at IS NOT NULL
        FROM pgshard.chunk WHERE move_id = $1 AND shard_id = $2 ORDER BY table_name COLLATE \"C\", \
        number";
    let rows = target
        .rows(
            "reading the chunks",
            sql,
            &[work.hold.id.uuid(), &work.shard().as_i32()],
        )
        .await?;
    let sizes = sizes(source, &work.tables).await?;
    let mut of_table: BTreeMap<&str, u64> = BTreeMap::new();
    for row in &rows {
        *of_table.entry(row.get(0)?).or_default() += 1;
    }
    let count = |number: Option<i64>| {
        number
            .and_then(|number| u64::try_from(number).ok())
            .unwrap_or(0)
    };
    let chunk = |row: &AnsweredRow| {
        let table: &str = row.get(0)?;
        let size = work
            .table(table)
            .and_then(|table| sizes.get(&table.oid))
            .copied()
            .unwrap_or(0);
        let counts = (count(row.get(5)?), count(row.get(6)?));
        Ok(Chunk {
            table: table.to_owned(),
            number: row.get(1)?,
            range: KeyRange {
                low: row.get(2)?,
                high: row.get(3)?,
            },
            estimate: size / of_table.get(table).copied().unwrap_or(1).max(1),
            copied: row.get::<_, bool>(4)?.then_some(counts),
            verified: row.get(7)?,
        })
    };
    rows.iter().map(chunk).collect()
}

/// The size of tables on disk, with everything that belongs to them, by OID.
///
/// Locks: ACCESS SHARE on the tables, for one statement.
pub(crate) async fn sizes(
    source: &Session,
    tables: &[TableShape],
) -> Result<BTreeMap<u32, u64>, Error> {
    let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
    let sql = "SELECT o, coalesce(pg_table_size(o), 0) FROM unnest($1::oid[]) AS o";
    let rows = source.rows("measuring the tables", sql, &[&oids]).await?;
    rows.iter()
        .map(|row| {
            Ok((
                row.get(0)?,
                u64::try_from(row.get::<_, i64>(1)?).unwrap_or(0),
            ))
        })
        .collect()
}

/// The keys at which a table is cut, in order. Empty if it is small, or the order of its key is not
/// known here.
///
/// The keys come from a sample of its pages, which costs the same for any table; to walk along the
/// key would read the whole index. A bad sample makes one chunk larger and another smaller, nothing
/// worse: whatever the bounds are, every key is in one chunk, and so are all rows with the same
/// first key.
///
/// Locks: ACCESS SHARE on the table, for one statement.
pub(crate) async fn bounds(
    (source, from): (&Session, &str),
    table: &TableShape,
    size: u64,
    chunk_bytes: u64,
) -> Result<Vec<String>, Error> {
    let chunk_bytes = chunk_bytes.max(size / CHUNKS_MAX).max(1);
    let (Some(column), Some(_)) = (table.first_key_column(), table.first_key) else {
        return Ok(Vec::new());
    };
    // Half a chunk more does not justify a second one.
    if size <= chunk_bytes + chunk_bytes / 2 {
        return Ok(Vec::new());
    }
    let what = "looking for bounds of chunks";
    let chunks = size.div_ceil(chunk_bytes);
    let sql = "SELECT ceil(pg_relation_size($1::oid)::double precision / \
        current_setting('block_size')::integer)";
    let pages: f64 = source.row(what, sql, &[&table.oid]).await?.get(0)?;
    let percent =
        (100.0 * SAMPLE_PAGES.max(CHUNK_PAGES * chunks as f64) / pages.max(1.0)).min(100.0);
    let key = column.quoted();
    let sql = format!(
        "SELECT (percentile_disc($1::double precision[]) WITHIN GROUP (ORDER BY t.{key}))::text[]
         FROM ONLY {from} AS t TABLESAMPLE SYSTEM ({percent})"
    );
    let parts: Vec<f64> = (1..chunks)
        .map(|number| number as f64 / chunks as f64)
        .collect();
    // The first chunk begins before all keys: a bound that is the smallest key of the sample makes
    // it small, but not wrong.
    let found: Option<Vec<Option<String>>> = source.row(what, &sql, &[&parts]).await?.get(0)?;
    let mut bounds: Vec<String> = found.into_iter().flatten().flatten().collect();
    // The bounds are in the key's order, so that equal ones are neighbours.
    bounds.dedup();
    Ok(bounds)
}
