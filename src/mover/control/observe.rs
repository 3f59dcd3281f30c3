//! Reads the state of a shard on the two hosts of its move, as the values that
//! [`state::next`](crate::mover::protocol::state::next) decides on.

use std::time::Duration;

use uuid::Uuid;

use crate::mover::control::journal::{Entry, Hold};
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::{Lease, ObservedState, Source, Target};

/// An observation, and what the steps need in addition.
pub(crate) struct Observation {
    pub(crate) observed: ObservedState,
    pub(crate) entry: Entry,
    /// How long ago the source was fenced, by its own clock.
    pub(crate) fenced_for: Option<Duration>,
    /// The open token that the source gave away when it decided.
    pub(crate) token: Option<Uuid>,
}

/// Reads both hosts. Neither result is older than the call.
///
/// Locks: none but ACCESS SHARE on the control tables.
pub(crate) async fn observe(
    source: &Session,
    target: &Session,
    hold: Hold,
) -> Result<Observation, Error> {
    let (id, shard) = (*hold.id.uuid(), hold.shard.as_i32());
    let entry = source.entry(hold.id, hold.shard).await?;
    let what = "reading the shard's row";
    let row = source
        .rows(
            what,
            "SELECT state, epoch, move_id, attempt, open_token,
                    extract(epoch FROM clock_timestamp() - last_fence_at)::double precision AS \
                    fenced_for
             FROM pgshard.shard WHERE shard_id = $1",
            &[&shard],
        )
        .await?;
    let epoch = entry.epoch.as_i32();
    let (mut fenced_for, mut token) = (None, None);
    let source_state = match row.first() {
        None => Source::Other,
        Some(row) => {
            let (state, at, move_id): (String, i32, Option<Uuid>) =
                (row.get("state")?, row.get("epoch")?, row.get("move_id")?);
            let ours = move_id == Some(id);
            let since: Option<f64> = row.get("fenced_for")?;
            let since = since.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
            match state.as_str() {
                "serving" if at == epoch => Source::Serving,
                "fenced" if ours && at == epoch => {
                    fenced_for = since;
                    Source::Fenced {
                        attempt: row.get("attempt")?,
                    }
                }
                "moved" if ours && at == epoch + 1 => {
                    (fenced_for, token) = (since, row.get("open_token")?);
                    Source::Moved
                }
                // The shard has come back and perhaps left again since: the move was decided long
                // ago.
                _ if at > epoch + 1 => Source::Moved,
                _ => Source::Other,
            }
        }
    };
    let row = target
        .row(
            what,
            "SELECT i.move_id, i.ready_attempt, s.state, s.epoch
             FROM (VALUES ($1::integer)) AS asked(shard_id)
             LEFT JOIN pgshard.incoming i USING (shard_id) LEFT JOIN pgshard.shard s USING \
             (shard_id)",
            &[&shard],
        )
        .await?;
    let opened = row
        .get::<_, Option<i32>>("epoch")?
        .is_some_and(|at| at > epoch);
    let target_state = match row.get::<_, Option<Uuid>>("move_id")? {
        _ if opened => Target::Opened,
        Some(move_id) if move_id == id => Target::Incoming {
            ready: row.get("ready_attempt")?,
        },
        Some(_) => Target::Taken,
        None => Target::Nothing,
    };
    let lease = if entry.lease == hold.lease {
        Lease::Ours
    } else {
        Lease::Lost
    };
    let observed = ObservedState {
        mode: entry.mode,
        lease,
        phase: entry.phase,
        source: source_state,
        target: target_state,
    };
    Ok(Observation {
        observed,
        entry,
        fenced_for,
        token,
    })
}
