//! Slots that a standby has synchronized from its primary, after it took the primary's place.
//!
//! From PostgreSQL 17 on a standby has the slots that were made with `failover`. What they have
//! confirmed may lie behind what their reader has got, so the reader continues at its own position.
//! It may have got changes, though, that the standby lacked when it was promoted: they are on no
//! timeline of the host any longer, and the target's rows are wrong. So a slot is adopted only if
//! the reader had got nothing from beyond the end of the former timeline, as after a clean
//! switchover.
//!
//! Invariant: no synchronized slot is read before it was adopted on the present timeline. So all
//! that the target has then was read on timelines before it.

use tokio_postgres::types::PgLsn;

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::stream::slot::{self, OF_A_FORMER_PRIMARY, SlotState};
use crate::pg::ConnectOptions;
use crate::pg::cause::chain;

/// The state of the slot, as [`slot::slot_state`] gives it. One that was synchronized from a former
/// primary is not lost if it is whole: its next reader will adopt it.
///
/// Locks: as [`adopt`].
pub(crate) async fn state(
    source: &Session,
    target: &Session,
    connect: &ConnectOptions,
    (name, id): (&str, MoveId),
) -> Result<Option<SlotState>, Error> {
    let Some(mut state) = slot::slot_state(source, name).await? else {
        return Ok(None);
    };
    if state.lost != Some(OF_A_FORMER_PRIMARY) {
        return Ok(Some(state));
    }
    let host = &source.host;
    let ends = async {
        let mut connection = connect.replicate("pgshard mover").await?;
        connection.timeline_ends().await
    };
    match (position_got(target, name, id).await?, ends.await) {
        (Some(got), Ok(ends)) if is_whole(&ends, state.confirmed, got) => state.lost = None,
        (_, Ok(_)) => tracing::warn!(slot = name, %host, "the slot of a former primary is not \
            used: the target may have changes that this server lacks"),
        (_, Err(error)) => tracing::warn!(slot = name, %host, error = chain(&error), "the slot of \
            a former primary is not used"),
    }
    Ok(Some(state))
}

/// As [`state`], for the reader of the slot: if it is whole, it is adopted, and no longer lost on
/// this timeline. The reader has the leases of the shards that share the slot, so that no former
/// reader can bring more from the former primary.
///
/// Locks: the rows of pgshard.progress of the shards that share the slot, for a statement: what
/// their former reader is committing is waited for. The publication, as
/// [`slot::note_adopted`].
pub(super) async fn adopt(
    source: &Session,
    target: &Session,
    connect: &ConnectOptions,
    (name, id): (&str, MoveId),
) -> Result<Option<SlotState>, Error> {
    let before = slot::slot_state(source, name).await?;
    let is_former = |state: &SlotState| state.lost == Some(OF_A_FORMER_PRIMARY);
    if !before.as_ref().is_some_and(is_former) {
        return Ok(before);
    }
    let state = state(source, target, connect, (name, id)).await?;
    if state.as_ref().is_some_and(|state| state.lost.is_none()) {
        slot::note_adopted(source, name).await?;
        tracing::info!(slot = name, host = %source.host, "the slot of the former primary is used");
    }
    Ok(state)
}

/// Whether everything that was received from a slot, up to `got`, is on the server that left its
/// timelines at these ends. The slot was synchronized before the first of those that count: it had
/// confirmed no more than the standby had.
fn is_whole(ends: &[(u32, u64)], confirmed: u64, got: u64) -> bool {
    let mut since = ends.iter().filter(|(_, end)| *end >= confirmed).peekable();
    confirmed > 0 && since.peek().is_some() && since.all(|(_, end)| got <= *end)
}

/// Up to where the target has got what the slot sends. `None` if it may have rows from beyond that:
/// those of chunks that have not been compared, or of rows that were read once more.
async fn position_got(target: &Session, name: &str, id: MoveId) -> Result<Option<u64>, Error> {
    let sql = "WITH got AS (
            SELECT p.move_id, p.shard_id, p.applied_lsn FROM pgshard.progress p
            WHERE p.move_id = $1 OR EXISTS (SELECT FROM pgshard.back b WHERE b.stream = $2
                AND b.shard_id = p.shard_id AND p.move_id IN (b.move_id, b.taken_by))
            FOR UPDATE OF p),
        late AS (
            SELECT FROM pgshard.chunk WHERE move_id = $1
                AND (verified_at IS NULL OR shard_id NOT IN (SELECT shard_id FROM got))
            UNION ALL SELECT FROM pgshard.reread WHERE move_id = $1
                OR (move_id, shard_id) IN (SELECT move_id, shard_id FROM got)
            UNION ALL SELECT FROM pgshard.incoming WHERE move_id = $1
                AND shard_id NOT IN (SELECT shard_id FROM got))
        SELECT max(applied_lsn), EXISTS (SELECT FROM late) FROM got";
    let what = "reading the progress";
    let row = target.row(what, sql, &[id.uuid(), &name]).await?;
    let (got, is_late): (Option<PgLsn>, bool) = (row.get(0)?, row.get(1)?);
    Ok(got.filter(|_| !is_late).map(u64::from))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_whole_if_its_reader_got_nothing_from_beyond_a_timelines_end() {
        for (ends, confirmed, got, whole) in [
            (&[100][..], 50, 100, true),
            (&[100], 50, 60, true),
            (&[100], 50, 101, false),
            // The timeline was left before the slot was made, or nothing is known of its end.
            (&[40, 100], 50, 90, true),
            (&[40], 50, 60, false),
            (&[], 50, 60, false),
            (&[100], 0, 0, false),
            // Two promotions since the last look.
            (&[80, 200], 50, 80, true),
            (&[80, 200], 50, 90, false),
        ] {
            let ends: Vec<(u32, u64)> = (1..).zip(ends.iter().copied()).collect();
            assert_eq!(
                is_whole(&ends, confirmed, got),
                whole,
                "{ends:?} {confirmed} {got}"
            );
        }
    }
}
