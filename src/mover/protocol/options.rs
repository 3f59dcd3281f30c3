//! The options of moves, and how a mover reports what it does.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::Duration;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::protocol::desired::StopRequest;
use crate::mover::protocol::desired::{
    DesiredState, FenceAt, IdentityPolicy, Rollback, UnloggedRows,
};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::failpoint::Failpoint;
use crate::mover::protocol::lease::Leases;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::verdict::{Audit, Unaudited};

/// A table with fewer bytes than this is not worth cutting. To copy or compare as much takes less
/// than a second.
pub(crate) const CHUNK_BYTES: u64 = 32 << 20;

/// The most bytes of a chunk. It takes some seconds to copy: that much is lost in a crash, and that
/// long a snapshot and a lock are held.
const CHUNK_BYTES_MAX: u64 = 8 * CHUNK_BYTES;

/// For how many seconds a snapshot is held by a copy that is held to a rate.
const PACED_S: u64 = 4;

/// The fewest bytes of a chunk: below that, most of the time goes to the chunk's own statements.
const PACED_MIN: u64 = 64 << 10;

/// How to move. [`Options::default`] is what the command uses.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How many shards are moved at the same time. Keep it small: each fence resets the cached
    /// plans of all sessions of its host once. Of the shards that come online from one host to
    /// another, only one at a time is closed.
    pub jobs: usize,
    /// How long the fence may wait for transactions that hold locks on the shard before it is taken
    /// back. Everything that uses the shard waits that long.
    pub barrier_budget: Duration,
    /// How often the fence is tried, with growing pauses, before the move gives up.
    pub fence_attempts: u32,
    /// How long a shard may be closed before the move gives up and the source serves again. A plan
    /// is refused if a shard is so large that it would take longer.
    pub pause_max: Duration,
    /// Online: how long the last changes may take to arrive, once the shard is closed, before the
    /// fence is taken back.
    pub drain_deadline: Duration,
    /// Online: how many chunks are copied at the same time.
    pub copy_jobs: usize,
    /// Online: about how much of a table, in bytes, is copied in one snapshot at the most. TRUNCATE
    /// and ALTER TABLE wait for it at the source.
    pub chunk_bytes: u64,
    /// How much WAL, in bytes, a reverse replication may keep at the serving host before it is
    /// given up.
    pub reverse_wal_max: u64,
    /// Whether a new move prepares for its shards to be taken back.
    pub rollback: Rollback,
    /// Online: how a table is handled if the stream cannot identify its rows.
    pub replica_identity: IdentityPolicy,
    /// What unlogged tables contain at the target.
    pub unlogged: UnloggedRows,
    /// When the shards of a new move are fenced.
    pub fence_at: FenceAt,
    /// The highest rate of copying, in bytes a second for all shards together. `None`: as fast as
    /// possible.
    pub rate_max: Option<NonZeroU64>,
    /// Online: no shard is fenced while the target is further behind than this.
    pub lag_max: Duration,
    /// Online: the most WAL, in bytes, that a source may have to keep for a move. Beyond it, the
    /// shards that are not decided are aborted. Never more than nine tenths of the server's
    /// `max_slot_wal_keep_size`.
    pub wal_max: u64,
    /// Online: how long the snapshots of an audit may be held, which hold back VACUUM on both
    /// hosts. What is not compared by then is named. Zero: nothing is audited.
    pub audit_max: Duration,
    /// Online: how long the snapshot at the target may take, which the open waits for. A move
    /// without a snapshot in that time is not audited.
    pub snapshot_max: Duration,
    /// How many bytes hosts may have in shards, by the config. A plan that brings more to its
    /// target is refused.
    pub bytes_max: BTreeMap<HostName, u64>,
    /// How [`complete`](crate::mover::Mover::complete) handles an old copy that was not audited, or
    /// differs.
    pub unaudited: Unaudited,
    /// How long lease and fence outlive the mover.
    pub leases: Leases,
    /// Who this mover is, for people who read the journal: host and process.
    pub holder: String,
    /// For tests.
    pub failpoint: Option<Failpoint>,
}

impl Default for Options {
    fn default() -> Options {
        let node = rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned();
        Options {
            jobs: 2,
            barrier_budget: Duration::from_millis(100),
            fence_attempts: 20,
            pause_max: Duration::from_secs(300),
            drain_deadline: Duration::from_secs(2),
            copy_jobs: 4,
            chunk_bytes: CHUNK_BYTES_MAX,
            reverse_wal_max: 10 << 30,
            rollback: Rollback::Prepared,
            replica_identity: IdentityPolicy::Lend,
            unlogged: UnloggedRows::Carried,
            fence_at: FenceAt::Ready,
            rate_max: None,
            lag_max: Duration::from_millis(250),
            wal_max: 10 << 30,
            audit_max: Duration::from_secs(600),
            snapshot_max: Duration::from_millis(50),
            bytes_max: BTreeMap::new(),
            unaudited: Unaudited::Kept,
            leases: Leases::default(),
            holder: format!("{node} pid {}", std::process::id()),
            failpoint: None,
        }
    }
}

setters!(
    Options: jobs: usize,
    barrier_budget: Duration,
    fence_attempts: u32,
    pause_max: Duration,
    drain_deadline: Duration,
    copy_jobs: usize,
    chunk_bytes: u64,
    reverse_wal_max: u64,
    rollback: Rollback,
    replica_identity: IdentityPolicy,
    unlogged: UnloggedRows,
    fence_at: FenceAt,
    rate_max: Option<NonZeroU64>,
    lag_max: Duration,
    wal_max: u64,
    audit_max: Duration,
    snapshot_max: Duration,
    bytes_max: BTreeMap<HostName, u64>,
    unaudited: Unaudited,
    leases: Leases,
    holder: String,
    failpoint: Option<Failpoint>,
);

impl Options {
    /// About how large the chunks of a shard with so many bytes are. To read a table by ranges of
    /// its key takes longer than to read it whole, the more so where its rows are not stored in the
    /// key's order: so tables are cut only as far as it takes to have work for all. A copy that is
    /// held to a rate has chunks of some seconds, or it would hold its snapshots and locks for
    /// minutes.
    pub(crate) fn chunk_bytes_of(&self, shard_bytes: u64) -> u64 {
        let share = match self.paced_bytes() {
            Some(paced) => paced,
            None => CHUNK_BYTES.max(shard_bytes / self.copy_jobs.max(1) as u64),
        };
        share.min(self.chunk_bytes)
    }

    /// The most bytes that are copied in one snapshot by a copy that is held to a rate: what all
    /// workers together may send within [`PACED_S`]. A snapshot holds back VACUUM, and CREATE INDEX
    /// CONCURRENTLY, in the whole database.
    pub(crate) fn paced_bytes(&self) -> Option<u64> {
        let rate = self.rate_max?.get();
        let each = rate.saturating_mul(PACED_S) / self.copy_jobs.max(1) as u64;
        Some(each.clamp(PACED_MIN, CHUNK_BYTES))
    }

    /// A place where a test may stop the mover.
    pub(crate) fn at(&self, failpoint: &'static str) -> Result<(), Error> {
        match &self.failpoint {
            Some(set) if set.is_hit(failpoint) => Err(Error::Failpoint { name: failpoint }),
            _ => Ok(()),
        }
    }
}

/// Something that happened in a move.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The move has got its ID.
    Started {
        /// The move.
        id: MoveId,
        /// How many shards it moves.
        shards: usize,
    },
    /// A shard was examined for a plan.
    Examined {
        /// The shard.
        shard: ShardId,
    },
    /// A shard has reached a phase.
    Reached {
        /// The shard.
        shard: ShardId,
        /// The phase.
        phase: Phase,
    },
    /// A table was copied.
    TableCopied {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: String,
        /// Its rows.
        rows: u64,
        /// Bytes that went over the wire for it.
        bytes: u64,
    },
    /// Bytes of a table that is being copied.
    Copying {
        /// The shard.
        shard: ShardId,
        /// How many bytes were added.
        bytes: u64,
    },
    /// The fence was taken back, and the shard is open. The fence will be tried again.
    FenceRetried {
        /// The shard.
        shard: ShardId,
        /// How often it was fenced so far.
        attempt: u32,
        /// Why.
        reason: String,
    },
    /// The mover was requested, through the journal, to stop or to abort.
    Asked(StopRequest),
    /// The mover waits before a fence, because an operator holds it back.
    Waits {
        /// The shard.
        shard: ShardId,
        /// The desired state of its move.
        desired: DesiredState,
    },
    /// The shard is served by its target.
    Opened {
        /// The shard.
        shard: ShardId,
        /// Where it is served.
        host: HostName,
        /// How long it was unavailable.
        pause: Duration,
    },
    /// The audit of a shard that is kept has ended.
    Audited {
        /// The shard.
        shard: ShardId,
        /// The result.
        audit: Audit,
    },
    /// The old copies of a move's shards take changes from now on.
    Feeding {
        /// The move.
        id: MoveId,
        /// How many shards.
        shards: usize,
    },
    /// How far the old copies of a move are behind, every two seconds.
    Fed {
        /// The move.
        id: MoveId,
        /// How much WAL was read and not applied yet.
        bytes: u64,
        /// Between the commit of the last applied transaction and the present; 0 if nothing is
        /// left.
        seconds: f64,
        /// Changes applied since this mover began to feed the move.
        changes: u64,
    },
    /// The old copies of a move are not fed for now.
    NotFed {
        /// The move.
        id: MoveId,
        /// The error with its causes.
        error: String,
    },
    /// A shard's part of the move ended without success.
    Failed {
        /// The shard.
        shard: ShardId,
        /// The error with its causes.
        error: String,
    },
}

/// Where a mover's [`Event`]s go. Called from its tasks: must not block.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(Event) + Send + Sync>);

impl Observer {
    /// An observer that calls this function.
    pub fn new(observe: impl Fn(Event) + Send + Sync + 'static) -> Observer {
        Observer(Arc::new(observe))
    }

    /// An observer that ignores everything.
    pub fn silent() -> Observer {
        Observer::new(|_| ())
    }

    pub(crate) fn notify(&self, event: Event) {
        (self.0)(event);
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_leave_work_for_all() {
        let (mib, options) = (1 << 20, Options::default());
        assert_eq!(options.copy_jobs, 4);
        for (shard, chunk) in [(0, 32), (100, 32), (600, 150), (100_000, 256)] {
            assert_eq!(
                options.chunk_bytes_of(shard * mib),
                chunk * mib,
                "{shard} MiB"
            );
        }
        assert_eq!(
            options.clone().copy_jobs(1).chunk_bytes_of(200 * mib),
            200 * mib
        );
        assert_eq!(
            options
                .clone()
                .chunk_bytes(4 * mib)
                .chunk_bytes_of(600 * mib),
            4 * mib
        );
        let paced = |rate| {
            let options = options.clone().rate_max(NonZeroU64::new(rate));
            options.chunk_bytes_of(600 * mib)
        };
        assert_eq!(paced(400 << 10), 400 << 10, "four workers, four seconds");
        assert_eq!(paced(1), 64 << 10);
        assert_eq!(paced(1000 * mib), 32 * mib);
    }
}
