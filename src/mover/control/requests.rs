//! The desired state of a move while it runs. It is written to the journal: from any machine, for a
//! mover on any other.
//!
//! Invariant: a desired state only affects when a mover continues, never what it does. So it needs
//! no lease, and one that comes too late changes nothing.

use crate::mover::control::row::AnsweredRow;
use crate::mover::protocol::desired::{DesiredState, StopKind};

use crate::shard::ShardId;

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::worker::{Work, Worker};

/// The desired state at present, by the host's own clock: an expression over a row of
/// `pgshard.move`.
pub(crate) const DESIRED: &str =
    "CASE WHEN wanted = 'hold' AND hold_until <= clock_timestamp() THEN 'go' ELSE wanted END";

impl Session {
    /// Writes the request for the movers of a move from this host. A request to abort is not
    /// replaced by another one.
    ///
    /// Locks: their rows, for this one statement.
    pub(crate) async fn request(&self, id: MoveId, asked: StopKind, by: &str) -> Result<(), Error> {
        let sql = "UPDATE pgshard.mover SET asked = $2, asked_by = $3, asked_at = clock_timestamp()
            WHERE move_id = $1 AND work = 'move' AND (asked IS NULL OR asked = 'stop' AND $2 = \
            'abort')";
        self.execute("asking the mover", sql, &[id.uuid(), &asked.as_str(), &by])
            .await
            .map(drop)
    }

    /// Who works on a move from this host.
    pub(crate) async fn workers(&self, id: MoveId) -> Result<Vec<Worker>, Error> {
        let presences = self.presences(Some(id)).await?;
        let at_work = presences
            .into_iter()
            .filter(|presence| presence.lives() && presence.worker.work == Work::Move);
        Ok(at_work.map(|presence| presence.worker).collect())
    }

    /// Writes the desired state to this host's journal. Returns the shards that it concerns, and
    /// whether their move has ended.
    ///
    /// Locks: the move's rows, for this one statement. Also those that have ended: a later claim of
    /// the same move takes the state from them.
    pub(crate) async fn set_desired_state(
        &self,
        id: MoveId,
        desired: DesiredState,
    ) -> Result<Vec<(ShardId, bool)>, Error> {
        if !self.is_bootstrapped().await? {
            return Ok(Vec::new());
        }
        let sql = "UPDATE pgshard.move SET wanted = $2, hold_until = NULL WHERE move_id = $1
            RETURNING shard_id, phase IN ('kept', 'completed', 'aborted') AS ended";
        let rows = self
            .rows(
                "writing the desired state",
                sql,
                &[id.uuid(), &desired.as_str()],
            )
            .await?;
        let shard = |row: &AnsweredRow| {
            Ok((
                row.parsed("shard_id", |number: i32| ShardId::try_from(number).ok())?,
                row.get("ended")?,
            ))
        };
        rows.iter().map(shard).collect()
    }
}
