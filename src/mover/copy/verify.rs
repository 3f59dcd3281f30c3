//! Compares chunks, in effect row by row, at a common point that the caller arranges: two sessions
//! with snapshots that show the same state of the shard.
//!
//! For each chunk, each side computes a number of rows and one digest. Where they differ, the chunk
//! is cut into blocks by a hash of the key, and the blocks that differ into rows, so that the keys
//! can be reported.
//!
//! Invariant: the tables are locked before the snapshot, on both sides; a TRUNCATE after it would
//! empty them for old snapshots too.

use crate::mover::protocol::verdict::RowDifference;
use std::collections::BTreeMap;

use crate::mover::control::session::Session;
use crate::mover::copy::digest::{Hashing, computed_otherwise, digest};
use crate::mover::copy::transfer::qualified;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::CHUNK_BYTES;

use crate::mover::copy::cut::Chunk;
use crate::mover::copy::{ShardCopy, prove_lease};
use crate::mover::preflight::table::TableShape;

/// About how many rows of a differing chunk are in one block.
const BLOCK_ROWS: i64 = 512;

/// The most blocks of a chunk, a power of two: this many digests are held in memory for each side.
const BLOCKS_MAX: i64 = 1 << 16;

/// How many blocks are examined, and how many rows are reported.
pub(crate) const TOLD_MAX: usize = 10;

/// The most rows of those blocks that are read from each side.
const READ_MAX: i64 = 100_000;

/// A chunk of more bytes than this is worth several processes: its table could not be cut, or only
/// into large parts.
const WORTH_WORKERS: u64 = 16 * CHUNK_BYTES;

/// SQL that sets, to the end of a transaction, whether a chunk of this size may be read by several
/// processes of its server at the same time. Several chunks are compared at the same time anyway,
/// so that starting processes for each only costs time. For a large one the server's own setting
/// counts.
pub(crate) fn set_workers(bytes: u64) -> &'static str {
    match bytes > WORTH_WORKERS {
        true => "SET LOCAL max_parallel_workers_per_gather TO DEFAULT",
        false => "SET LOCAL max_parallel_workers_per_gather = 0",
    }
}

/// Begins to read at the target with this statement: first the locks, then the snapshot. For the
/// source there is [`read_from`](crate::mover::copy::chunk::read_from).
///
/// Locks: ACCESS SHARE on the tables until the end of the transaction; the applier's TRUNCATE waits
/// for it.
pub(crate) async fn read_from_target(
    target: &Session,
    work: &ShardCopy,
    tables: &[&TableShape],
    first: &str,
) -> Result<(), Error> {
    let names: Vec<String> = tables
        .iter()
        .map(|table| qualified(&work.target_schema, table))
        .collect();
    let sql = format!(
        "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; {first}; LOCK TABLE ONLY {} IN ACCESS \
            SHARE MODE;
         SELECT pg_current_snapshot()",
        names.join(", ONLY ")
    );
    target
        .batch("locking the tables and taking a snapshot", &sql)
        .await
}

/// Compares chunks of a shard as the sessions' transactions see them.
///
/// Locks: none but what the transactions hold already.
///
/// # Errors
/// [`Error::RowsDiffer`] for the first table that differs, with the digests of its first differing
/// chunk.
pub(crate) async fn compare(
    (source, target): (&Session, &Session),
    work: &ShardCopy,
    chunks: &[Chunk],
    hashing: Hashing,
) -> Result<(), Error> {
    let mut found: Option<(&TableShape, String, Vec<RowDifference>)> = None;
    for chunk in chunks {
        let table = work.table(&chunk.table).ok_or_else(|| Error::Altered {
            shard: work.shard(),
            what: format!("table {} no longer exists", chunk.table),
        })?;
        if found
            .as_ref()
            .is_some_and(|(other, _, rows)| other.oid != table.oid || rows.len() >= TOLD_MAX)
        {
            break;
        }
        let condition = chunk.range.condition(table.first_key_column());
        let (ours, theirs) = tokio::try_join!(
            digest(source, &work.source_schema, table, &condition, hashing),
            digest(target, &work.target_schema, table, &condition, hashing)
        )?;
        if ours != theirs {
            let (here, there) = (
                (source, work.source_schema.as_str()),
                (target, work.target_schema.as_str()),
            );
            if let Some(columns) =
                computed_otherwise(here, there, table, &condition, hashing).await?
            {
                return Err(Error::Computed {
                    shard: work.shard(),
                    table: table.name.clone(),
                    columns,
                });
            }
            let question = Question::new(table, &condition, hashing, ours.rows.max(theirs.rows));
            let (here, there) = (
                qualified(&work.source_schema, table),
                qualified(&work.target_schema, table),
            );
            let rows = narrow((source, &here), (target, &there), &question).await?;
            let digests = || format!("{ours} at the source, {theirs} at the target");
            found
                .get_or_insert_with(|| (table, digests(), Vec::new()))
                .2
                .extend(rows);
        }
    }
    let Some((table, digests, mut rows)) = found else {
        return Ok(());
    };
    rows.truncate(TOLD_MAX);
    Err(Error::RowsDiffer {
        shard: work.shard(),
        table: table.name.clone(),
        digests,
        rows,
    })
}

/// Records that chunks were found to be the same.
///
/// Locks: their rows of pgshard.chunk and [`prove_lease`]'s, for one transaction.
pub(crate) async fn keep(
    target: &Session,
    work: &ShardCopy,
    chunks: &[Chunk],
) -> Result<(), Error> {
    let what = "noting what was verified";
    let names: Vec<&str> = chunks.iter().map(|chunk| chunk.table.as_str()).collect();
    let numbers: Vec<i32> = chunks.iter().map(|chunk| chunk.number).collect();
    // If that is lost in a crash, they are compared again.
    target
        .batch(what, "BEGIN; SET LOCAL synchronous_commit = off")
        .await?;
    prove_lease(target, work.hold).await?;
    let sql = "UPDATE pgshard.chunk c SET verified_at = clock_timestamp() FROM unnest($3::text[], \
            $4::integer[]) AS p(n, k)
        WHERE c.move_id = $1 AND c.shard_id = $2 AND c.table_name = p.n AND c.number = p.k";
    target
        .execute(
            what,
            sql,
            &[
                work.hold.id.uuid(),
                &work.shard().as_i32(),
                &names,
                &numbers,
            ],
        )
        .await?;
    target.batch(what, "COMMIT").await
}

/// The most chunks of a bunch: this many tables are locked, on both sides, in one transaction.
const BUNCH_MAX: usize = 64;

/// Sorts chunks into bunches, each of which is verified under one pair of snapshots. A bunch has
/// about `bytes_max` bytes, so that no snapshot is held for long, and no more than [`BUNCH_MAX`]
/// chunks.
pub(crate) fn bunches(chunks: Vec<Chunk>, bytes_max: u64) -> Vec<Vec<Chunk>> {
    let mut bunches: Vec<Vec<Chunk>> = Vec::new();
    let mut sum = u64::MAX;
    for chunk in chunks.into_iter().filter(|chunk| !chunk.verified) {
        sum = sum.saturating_add(chunk.estimate);
        match bunches.last_mut() {
            Some(last) if sum <= bytes_max && last.len() < BUNCH_MAX => last.push(chunk),
            _ => {
                sum = chunk.estimate;
                bunches.push(vec![chunk]);
            }
        }
    }
    bunches
}

/// Which rows are compared, and how.
pub(crate) struct Question<'a> {
    table: &'a TableShape,
    condition: &'a str,
    hashing: Hashing,
    blocks: i64,
}

/// The number of blocks, a power of two, so that each has a few hundred rows.
fn blocks(rows: i64) -> i64 {
    let wanted = u64::try_from(rows / BLOCK_ROWS).unwrap_or(0).max(1);
    wanted
        .checked_next_power_of_two()
        .and_then(|blocks| i64::try_from(blocks).ok())
        .unwrap_or(BLOCKS_MAX)
        .min(BLOCKS_MAX)
}

impl<'a> Question<'a> {
    /// A question about the rows of a table that fulfil the condition; `rows` is about how many
    /// they are.
    pub(crate) fn new(
        table: &'a TableShape,
        condition: &'a str,
        hashing: Hashing,
        rows: i64,
    ) -> Question<'a> {
        Question {
            table,
            condition,
            hashing,
            blocks: blocks(rows),
        }
    }

    /// What identifies a row: its key, or the whole row.
    fn key(&self) -> String {
        let mut key: Vec<String> = self
            .table
            .key_columns()
            .map(|column| column.quoted())
            .collect();
        if key.is_empty() {
            key = self
                .table
                .columns
                .iter()
                .map(|column| column.quoted())
                .collect();
        }
        format!("ROW({})::text", key.join(", "))
    }

    fn block(&self) -> String {
        format!("hashtextextended({}, 0) & {}", self.key(), self.blocks - 1)
    }

    /// The digests of the blocks, as texts.
    async fn blocks(
        &self,
        (session, from): (&Session, &str),
    ) -> Result<BTreeMap<i64, String>, Error> {
        let hash = self.hashing.of_row(self.table);
        let sql = format!(
            "SELECT {}, count(*) || ' ' || sum({hash}) FROM ONLY {from} WHERE {} GROUP BY 1",
            self.block(),
            self.condition
        );
        let rows = session.rows("digesting blocks of rows", &sql, &[]).await?;
        rows.iter()
            .map(|row| Ok((row.get(0)?, row.get(1)?)))
            .collect()
    }

    /// The hashes of the rows in these blocks, by key.
    async fn rows(
        &self,
        (session, from): (&Session, &str),
        blocks: &[i64],
    ) -> Result<BTreeMap<String, String>, Error> {
        let hash = self.hashing.of_row(self.table);
        // Equal rows of a table without a key share one line, which has a hash for each of them.
        let sql = format!(
            "SELECT left(key, 200), string_agg(to_hex(hash), ' ' ORDER BY hash)
             FROM (SELECT {} AS key, {hash} AS hash FROM ONLY {from} WHERE {} AND {} = ANY ($1) \
             LIMIT {READ_MAX}) AS r
             GROUP BY key ORDER BY key",
            self.key(),
            self.condition,
            self.block()
        );
        let rows = session.rows("hashing rows", &sql, &[&blocks]).await?;
        rows.iter()
            .map(|row| Ok((row.get(0)?, row.get(1)?)))
            .collect()
    }
}

/// The rows that differ, ten at most, of tables with these names in SQL, as the sessions'
/// transactions see them.
///
/// Locks: ACCESS SHARE on the tables until the ends of the transactions.
pub(crate) async fn narrow(
    source: (&Session, &str),
    target: (&Session, &str),
    question: &Question<'_>,
) -> Result<Vec<RowDifference>, Error> {
    let (ours, theirs) = tokio::try_join!(question.blocks(source), question.blocks(target))?;
    let different: Vec<i64> = differing(&ours, &theirs).take(TOLD_MAX).copied().collect();
    let (ours, theirs) = tokio::try_join!(
        question.rows(source, &different),
        question.rows(target, &different)
    )?;
    let told = differing(&ours, &theirs).take(TOLD_MAX);
    Ok(told
        .map(|key| RowDifference {
            key: key.clone(),
            source: ours.get(key).cloned(),
            target: theirs.get(key).cloned(),
        })
        .collect())
}

/// The keys with values that differ between the two, in order.
fn differing<'m, K: Ord, V: PartialEq>(
    ours: &'m BTreeMap<K, V>,
    theirs: &'m BTreeMap<K, V>,
) -> impl Iterator<Item = &'m K> {
    let mut keys: Vec<&K> = ours.keys().chain(theirs.keys()).collect();
    keys.sort();
    keys.dedup();
    keys.into_iter()
        .filter(|key| ours.get(key) != theirs.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mover::copy::chunks::KeyRange;

    fn chunk(number: i32, estimate: u64, verified: bool) -> Chunk {
        Chunk {
            table: "t".to_owned(),
            number,
            range: KeyRange::default(),
            estimate,
            copied: None,
            verified,
        }
    }

    #[test]
    fn bunches_are_of_bounded_size() {
        let chunks = [(0, 40), (1, 30), (2, 30), (3, 500), (4, 10), (5, 90)];
        let chunks: Vec<Chunk> = chunks
            .into_iter()
            .map(|(number, size)| chunk(number, size, number == 1))
            .collect();
        let numbers: Vec<Vec<i32>> = bunches(chunks, 100)
            .iter()
            .map(|bunch| bunch.iter().map(|chunk| chunk.number).collect())
            .collect();
        assert_eq!(numbers, [vec![0, 2], vec![3], vec![4, 5]]);
        assert!(bunches(Vec::new(), 100).is_empty());
        let empty: Vec<Chunk> = (0..500).map(|number| chunk(number, 0, false)).collect();
        let sizes: Vec<usize> = bunches(empty, 100).iter().map(Vec::len).collect();
        assert_eq!(sizes, [64, 64, 64, 64, 64, 64, 64, 52]);
    }

    #[test]
    fn numbers_of_blocks() {
        for (rows, expected) in [
            (0, 1),
            (511, 1),
            (1024, 2),
            (100_000, 256),
            (i64::MAX, BLOCKS_MAX),
        ] {
            assert_eq!(blocks(rows), expected, "{rows}");
        }
    }

    #[test]
    fn keys_of_either_side_that_differ_are_listed() {
        let ours = BTreeMap::from([(1, 'a'), (2, 'b'), (3, 'c')]);
        let theirs = BTreeMap::from([(2, 'b'), (3, 'x'), (4, 'd')]);
        assert_eq!(
            differing(&ours, &theirs).copied().collect::<Vec<_>>(),
            [1, 3, 4]
        );
    }
}
