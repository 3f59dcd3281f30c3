//! What a follower keeps from one run to the next: its requests, its report, and what it must not
//! forget when a connection is lost.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, watch};

use crate::backoff::Backoff;
use crate::mover::stream::apply::Care;
use crate::mover::stream::command::Command;
use crate::mover::stream::fault::Fault;
use crate::mover::stream::options::FollowerOptions;
use crate::mover::stream::view::{View, note_fault};
use crate::shard::ShardId;

/// How long rows are applied one by one after a failure of a combined statement.
const CAUTION: Backoff = Backoff {
    first: Duration::from_secs(1),
    max: Duration::from_secs(60),
    jitter: Backoff::NO_JITTER,
};

/// What outlives a run, and with it its connections.
pub(super) struct FollowerState {
    pub(super) options: FollowerOptions,
    pub(super) view: watch::Sender<View>,
    pub(super) commands: mpsc::Receiver<Command>,
    /// By shard, the attempt that makes it ready when its marker comes, with the hash of its open
    /// token.
    pub(super) expected: HashMap<ShardId, (i32, String)>,
    /// Numbers of the transactions applied last: a source may show a commit in its WAL before its
    /// snapshots do.
    pub(super) recent: VecDeque<u64>,
    /// The positions of shards that were lost: the slot must keep the rest for a resume.
    pub(super) held: HashMap<ShardId, u64>,
    pub(super) caution: Caution,
}

impl FollowerState {
    pub(super) fn new(
        options: FollowerOptions,
        view: watch::Sender<View>,
        commands: mpsc::Receiver<Command>,
    ) -> FollowerState {
        let (expected, recent) = (HashMap::new(), VecDeque::new());
        let held = options
            .others
            .iter()
            .map(|(shard, position)| (*shard, *position))
            .collect();
        FollowerState {
            options,
            view,
            commands,
            expected,
            recent,
            held,
            caution: Caution::new(),
        }
    }

    pub(super) fn mark_lost(&self, shard: ShardId, fault: Fault) {
        if fault != Fault::Detached {
            tracing::warn!(%shard, ?fault, "a shard is no longer followed");
        }
        note_fault(&self.view, shard, fault);
    }
}

/// How long rows are applied one by one after a combined statement has failed.
///
/// An application that causes such a failure once does so again, and each failure breaks a pause in
/// which a move looks for a common point. So the time is doubled.
pub(super) struct Caution {
    /// It lasts at least up to this position and this time.
    until: Option<(u64, Instant)>,
    next: Duration,
}

impl Caution {
    fn new() -> Caution {
        Caution {
            until: None,
            next: CAUTION.first,
        }
    }

    pub(super) fn care(&self) -> Care {
        if self.until.is_some() {
            Care::Singly
        } else {
            Care::Together
        }
    }

    /// A combined statement has failed, before this position.
    pub(super) fn begin(&mut self, position: u64) {
        self.until = Some((position, Instant::now() + self.next));
        self.next = CAUTION.after(self.next);
    }

    /// Whether rows are combined from this position on.
    pub(super) fn at(&mut self, position: u64) -> Care {
        if self
            .until
            .is_some_and(|(end, time)| position >= end && Instant::now() >= time)
        {
            self.until = None;
        }
        self.care()
    }
}

/// How a run ends without a failure.
pub(super) enum End {
    Stopped,
    /// No shard is left to follow.
    Alone,
    /// A rollback has taken the stream.
    TakenOver,
    /// It has not ended: the next run applies rows one by one, or its slot is confirmed first.
    Again,
}
