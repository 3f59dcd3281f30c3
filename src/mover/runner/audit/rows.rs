//! Compares the rows of all tables, chunk by chunk, with a few workers.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio_postgres::error::SqlState;

use crate::mover::control::session::Session;
use crate::mover::copy::chunks::KeyRange;
use crate::mover::copy::cut::{bounds, sizes};
use crate::mover::copy::digest::{Digest, Hashing, digest_of};
use crate::mover::copy::verify::{Question, TOLD_MAX, narrow};
use crate::mover::preflight::table;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::CHUNK_BYTES;
use crate::mover::protocol::throttle::Throttle;
use crate::mover::protocol::verdict::RowDifference;
use crate::mover::protocol::verdict::{AuditDifference, LeftOut};
use crate::mover::runner::permit::CutOverPermits;

use crate::mover::runner::audit::known::TABLE;
use crate::mover::runner::audit::side::{Side, StoredTable};

/// How often a chunk is read again after a temporary error: a table was renamed, or a lock was
/// unavailable.
const TRIES: u32 = 5;

/// What all workers share.
pub(super) struct Comparison<'a> {
    pub(super) hashing: Hashing,
    pub(super) throttle: &'a Throttle,
    /// No chunk is begun during a fence of this group.
    pub(super) permits: Option<&'a CutOverPermits>,
    pub(super) until: Instant,
    tables: Vec<Pair>,
    state: Mutex<Progress>,
}

/// A table on both sides.
struct Pair {
    shape: TableShape,
    source: StoredTable,
    target: StoredTable,
}

/// How far the comparison is.
struct Progress {
    chunks: VecDeque<Chunk>,
    found: Vec<TableResult>,
}

/// What was found about a table.
struct TableResult {
    /// How many chunks were not compared.
    missing: usize,
    /// The difference of the digests, and the rows.
    differs: Option<(String, Vec<RowDifference>)>,
    /// Why it cannot be compared.
    unknown: Option<String>,
}

/// A part of a table.
struct Chunk {
    table: usize,
    range: KeyRange,
    bytes: u64,
}

/// The result for a chunk.
enum ChunkOutcome {
    Same,
    Differs(String, Vec<RowDifference>),
    /// It cannot be compared, for this reason.
    Unknown(String),
}

impl ChunkOutcome {
    fn altered() -> ChunkOutcome {
        ChunkOutcome::Unknown("its columns were altered since".to_owned())
    }
}

impl<'a> Comparison<'a> {
    /// Reads which tables there are and cuts them into chunks. A table that one side does not have
    /// is already a difference.
    ///
    /// Locks: ACCESS SHARE on the tables of the old copy and on catalogs, for a statement each.
    pub(super) async fn plan(
        source: &Side,
        target: &Side,
        hashing: Hashing,
        throttle: &'a Throttle,
        permits: Option<&'a CutOverPermits>,
        until: Instant,
    ) -> Result<(Comparison<'a>, Vec<AuditDifference>), Error> {
        source.begin(until).await?;
        let shapes = table::shapes(&source.session, source.schema).await?;
        let sizes = sizes(&source.session, &shapes).await?;
        source.end().await?;
        let (ours, mut theirs) = tokio::try_join!(source.tables(until), target.tables(until))?;
        let (mut tables, mut chunks, mut differences) = (Vec::new(), VecDeque::new(), Vec::new());
        for shape in shapes {
            let Some(here) = ours.get(&shape.name).copied() else {
                continue;
            };
            let Some(there) = theirs.remove(&shape.name) else {
                differences.push(only(&shape.name, "source"));
                continue;
            };
            let size = sizes.get(&shape.oid).copied().unwrap_or(0);
            let cut = cut(source, &shape, here, size, until).await?;
            let bytes = size / (cut.len() as u64).max(1);
            chunks.extend(cut.into_iter().map(|range| Chunk {
                table: tables.len(),
                range,
                bytes,
            }));
            tables.push(Pair {
                shape,
                source: here,
                target: there,
            });
        }
        differences.extend(theirs.keys().map(|name| only(name, "target")));
        let mut found: Vec<TableResult> = Vec::new();
        found.resize_with(tables.len(), || TableResult {
            missing: 0,
            differs: None,
            unknown: None,
        });
        for chunk in &chunks {
            found[chunk.table].missing += 1;
        }
        let state = Mutex::new(Progress { chunks, found });
        Ok((
            Comparison {
                hashing,
                throttle,
                permits,
                until,
                tables,
                state,
            },
            differences,
        ))
    }

    /// How much there is to compare, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.state().chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Compares chunks until there are none left.
    ///
    /// # Errors
    /// When a session is lost. The chunk that it was comparing is not compared.
    ///
    /// # Cancel safety
    /// If dropped, what was compared stays known.
    pub(super) fn work<'c>(
        &'c self,
        source: &'c Side,
        target: &'c Side,
    ) -> BoxFuture<'c, Result<(), Error>> {
        Box::pin(async move {
            loop {
                let next = self.state().chunks.pop_front();
                let Some(chunk) = next else { return Ok(()) };
                if self.state().found[chunk.table].is_settled() {
                    continue;
                }
                self.throttle.pass(chunk.bytes).await;
                let _piece = match self.permits {
                    Some(permits) => Some(permits.background_permit().await),
                    None => None,
                };
                let told = self.persist(source, target, &chunk).await?;
                self.state().found[chunk.table].take(told);
            }
        })
    }

    /// Compares one chunk, again after temporary errors.
    async fn persist(
        &self,
        source: &Side,
        target: &Side,
        chunk: &Chunk,
    ) -> Result<ChunkOutcome, Error> {
        let mut tries = 1;
        loop {
            let error = match self.compare(source, target, chunk).await {
                Ok(told) => return Ok(told),
                Err(error) => error,
            };
            if source.session.client.is_closed() || target.session.client.is_closed() {
                return Err(error);
            }
            tokio::try_join!(source.end(), target.end())?;
            match code(&error) {
                Some(code) if is_about_columns(code) => return Ok(ChunkOutcome::altered()),
                // A value that is none of its column's type, such as an empty text among integers.
                Some(code)
                    if code.code().starts_with("22") && self.is_retyped(target, chunk).await? =>
                {
                    return Ok(ChunkOutcome::altered());
                }
                // It took longer than the time that is left.
                Some(code) if code == &SqlState::QUERY_CANCELED => return Err(error),
                _ if tries >= TRIES => return Ok(ChunkOutcome::Unknown(error.to_string())),
                _ => tracing::debug!(error = %error, "reading a chunk again"),
            }
            tokio::time::sleep(std::time::Duration::from_millis(100) * tries).await;
            tries += 1;
        }
    }

    /// Whether a column of the chunk's table has another type at the target now.
    async fn is_retyped(&self, target: &Side, chunk: &Chunk) -> Result<bool, Error> {
        let Pair {
            shape,
            target: stored,
            ..
        } = &self.tables[chunk.table];
        let found = match target.begin_table(*stored, 0, self.until).await? {
            Some(name) => retyped((&target.session, &name), shape).await,
            None => Ok(false),
        };
        target.end().await?;
        found.or_else(|error| {
            if code(&error).is_some_and(is_about_columns) {
                Ok(true)
            } else {
                Err(error)
            }
        })
    }

    async fn compare(
        &self,
        source: &Side,
        target: &Side,
        chunk: &Chunk,
    ) -> Result<ChunkOutcome, Error> {
        let Pair {
            shape,
            source: ours,
            target: theirs,
        } = &self.tables[chunk.table];
        let (here, there) = tokio::try_join!(
            source.begin_table(*ours, chunk.bytes, self.until),
            target.begin_table(*theirs, chunk.bytes, self.until)
        )?;
        let (Some(here), Some(there)) = (here, there) else {
            tokio::try_join!(source.end(), target.end())?;
            return Ok(ChunkOutcome::Unknown("it was dropped since".to_owned()));
        };
        let (here, there) = (
            (&source.session, here.as_str()),
            (&target.session, there.as_str()),
        );
        let condition = chunk.range.condition(shape.first_key_column());
        let (one, other) = tokio::try_join!(
            digest_of(here, shape, &condition, self.hashing),
            digest_of(there, shape, &condition, self.hashing)
        )?;
        let rows = match one == other {
            true => Vec::new(),
            false if retyped(there, shape).await? => {
                tokio::try_join!(source.end(), target.end())?;
                return Ok(ChunkOutcome::altered());
            }
            false => {
                let question =
                    Question::new(shape, &condition, self.hashing, one.rows.max(other.rows));
                narrow(here, there, &question).await?
            }
        };
        let (kept, there) = tokio::try_join!(source.end_table(*ours), target.end_table(*theirs))?;
        let moved = kept != Some(ours.file) || there != Some(theirs.file);
        Ok(judge(&one, &other, rows, moved))
    }

    /// The differences, and what was not compared; `why` is the reason for tables that have none of
    /// their own.
    pub(super) fn end(self, why: Option<String>) -> (Vec<AuditDifference>, Vec<LeftOut>) {
        let state = self
            .state
            .into_inner()
            .unwrap_or_else(PoisonError::into_inner);
        let (mut differences, mut left_out) = (Vec::new(), Vec::new());
        for (pair, found) in self.tables.iter().zip(state.found) {
            let what = format!("{TABLE}{}", pair.shape.name);
            let unknown = found.unknown.or_else(|| {
                let why = || {
                    why.clone()
                        .unwrap_or_else(|| "its comparison was not finished".to_owned())
                };
                (found.missing > 0).then(why)
            });
            match (found.differs, unknown) {
                (Some((how, rows)), _) => differences.push(AuditDifference { what, how, rows }),
                (None, Some(why)) => left_out.push(LeftOut { what, why }),
                (None, None) => {}
            }
        }
        (differences, left_out)
    }
}

impl TableResult {
    /// Whether comparing more of its chunks would add nothing.
    fn is_settled(&self) -> bool {
        self.unknown.is_some()
            || self
                .differs
                .as_ref()
                .is_some_and(|(_, rows)| rows.len() >= TOLD_MAX)
    }

    fn take(&mut self, told: ChunkOutcome) {
        self.missing = self.missing.saturating_sub(1);
        match told {
            ChunkOutcome::Same => {}
            ChunkOutcome::Unknown(why) => self.unknown = Some(why),
            ChunkOutcome::Differs(how, more) => {
                let (_, rows) = self.differs.get_or_insert_with(|| (how, Vec::new()));
                rows.extend(more);
                rows.truncate(TOLD_MAX);
            }
        }
    }
}

/// The result for two digests. `moved`: the rows may have been stored elsewhere in between: an old
/// snapshot sees none of the rows of a table that was truncated, or rewritten by ALTER TABLE.
/// VACUUM FULL and CLUSTER do not affect it.
fn judge(source: &Digest, target: &Digest, rows: Vec<RowDifference>, moved: bool) -> ChunkOutcome {
    match (source == target, moved) {
        (true, false) => ChunkOutcome::Same,
        (true, true) if source.rows > 0 => ChunkOutcome::Same,
        (_, true) => ChunkOutcome::Unknown("it was truncated or rewritten since".to_owned()),
        (false, false) => ChunkOutcome::Differs(
            format!("{source} at the source, {target} at the target"),
            rows,
        ),
    }
}

/// The ranges into which a table of the old copy is cut.
async fn cut(
    source: &Side,
    shape: &TableShape,
    stored: StoredTable,
    size: u64,
    until: Instant,
) -> Result<Vec<KeyRange>, Error> {
    let Some(name) = source.begin_table(stored, 0, until).await? else {
        source.end().await?;
        return Ok(vec![KeyRange::default()]);
    };
    let bounds = bounds((&source.session, &name), shape, size, CHUNK_BYTES).await?;
    source.end().await?;
    let range = |number: usize| KeyRange {
        low: number.checked_sub(1).map(|before| bounds[before].clone()),
        high: bounds.get(number).cloned(),
    };
    Ok((0..=bounds.len()).map(range).collect())
}

fn only(name: &str, side: &str) -> AuditDifference {
    AuditDifference {
        what: format!("{TABLE}{name}"),
        how: format!("only the {side} has it"),
        rows: Vec::new(),
    }
}

/// Whether a column has another type now. What hashes it then hashes other things, although
/// PostgreSQL may not have rewritten a row: it alters cidr to inet in its catalogs alone.
///
/// Locks: none but what the read has.
async fn retyped((session, from): (&Session, &str), shape: &TableShape) -> Result<bool, Error> {
    // Not from pg_attribute, which the snapshot would show as it was.
    let types: Vec<String> = shape
        .columns
        .iter()
        .map(|column| format!("pg_typeof((NULL::{from}).{})::oid", column.quoted()))
        .collect();
    let sql = format!("SELECT ARRAY[{}]::oid[]", types.join(", "));
    let now: Vec<u32> = session
        .row("looking at the columns", &sql, &[])
        .await?
        .get(0)?;
    Ok(shape
        .columns
        .iter()
        .zip(now)
        .any(|(column, now)| !column.may_be_of(now)))
}

/// Whether a statement failed because a column has another type now, or is gone: what hashes a row
/// is made for the types that its columns had.
fn is_about_columns(code: &SqlState) -> bool {
    let unfit = [
        SqlState::UNDEFINED_COLUMN,
        SqlState::UNDEFINED_FUNCTION,
        SqlState::AMBIGUOUS_FUNCTION,
        SqlState::DATATYPE_MISMATCH,
        SqlState::CANNOT_COERCE,
    ];
    unfit.contains(code)
}

fn code(error: &Error) -> Option<&SqlState> {
    match error {
        Error::Database { source, .. } => source.code(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_digests_say() {
        let digest = |rows: i64, sum: &str| Digest::of(rows, sum);
        for (source, target, moved, expected) in [
            (digest(2, "5"), digest(2, "5"), false, "same"),
            (digest(0, "0"), digest(0, "0"), false, "same"),
            (digest(2, "5"), digest(1, "4"), false, "differs"),
            // Truncated; rewritten by VACUUM FULL; truncated when it may have had rows.
            (digest(2, "5"), digest(0, "0"), true, "unknown"),
            (digest(2, "5"), digest(2, "5"), true, "same"),
            (digest(0, "0"), digest(0, "0"), true, "unknown"),
        ] {
            let told = match judge(&source, &target, Vec::new(), moved) {
                ChunkOutcome::Same => "same",
                ChunkOutcome::Differs(..) => "differs",
                ChunkOutcome::Unknown(_) => "unknown",
            };
            assert_eq!(told, expected, "{source} {target} {moved}");
        }
    }
}
