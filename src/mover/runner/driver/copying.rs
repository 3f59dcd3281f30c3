//! How the rows of a shard get to the target, with what each way needs.

use crate::mover::control::context::{Context, stopped};
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::preflight::facts::Servers;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::{ComparisonState, Stream};
use crate::mover::runner::audit;
use crate::mover::runner::permit::CutOverPermits;
use crate::mover::runner::watchdog::Watchdog;
use crate::mover::stream::follower::Follower;
use crate::shard::ShardId;

/// The way in which the rows are moved.
pub(in crate::mover) enum Copying<'a> {
    /// Behind the fence.
    Blocking,
    /// While the source serves. Its changes are not applied, because that has not begun, or the
    /// move is aborted.
    Unfollowed,
    /// While the source serves, and its changes are applied.
    Online(Online<'a>),
}

/// The tasks that work on a shard while its changes are applied to its target.
#[derive(Clone, Copy)]
pub(in crate::mover) struct Online<'a> {
    /// Applies the changes.
    pub(in crate::mover) follower: &'a Follower,
    /// The name of the publication and the slot of the reverse replication, if there is one.
    pub(in crate::mover) reverse: Option<&'a str>,
    /// Notices that the shard is altered.
    pub(in crate::mover) watchdog: &'a Watchdog,
    /// Allows one shard of the group at a time to be fenced.
    pub(in crate::mover) permits: &'a CutOverPermits,
}

/// What a mover remembers about such a shard between two steps.
#[derive(Default)]
pub(in crate::mover) struct CopyMemory {
    /// The servers on which source and target were compared, if this mover has done that.
    pub(in crate::mover) compared_on: Option<Servers>,
    /// The servers on which this mover has begun to compare them.
    pub(in crate::mover) comparing_on: Option<Servers>,
    /// The servers at the last observation.
    pub(in crate::mover) seen: Option<Servers>,
    /// The attempt with the fence behind which this mover has checked the shard, and found nothing
    /// changed. Only this one is decided.
    pub(in crate::mover) looked: Option<i32>,
    /// The target as it is before it opens, for the audit.
    pub(in crate::mover) unopened: Option<audit::Target>,
}

impl CopyMemory {
    /// What [`state::next`](crate::mover::protocol::state::next) needs to know of it.
    pub(super) fn stream(&self) -> Stream {
        let same = self.compared_on.is_some() && self.compared_on == self.seen;
        Stream::On {
            compared: if same {
                ComparisonState::Yes
            } else {
                ComparisonState::No
            },
            looked: self.looked,
        }
    }
}

/// Everything that can end a wait for a shard that is open: its lease is lost, a stop is requested,
/// it was altered, or its stream ends.
#[derive(Clone, Copy)]
pub(in crate::mover) struct Patience<'a> {
    pub(in crate::mover) context: &'a Context,
    pub(in crate::mover) heartbeat: &'a Heartbeat,
    pub(in crate::mover) shard: ShardId,
    pub(in crate::mover) follower: Option<(&'a Follower, &'a Watchdog)>,
}

impl Patience<'_> {
    /// Does the work, or ends with the error because of which it need not be waited for any longer.
    pub(in crate::mover) async fn wait_for<T>(
        &self,
        work: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let shard = self.shard;
        let mut stop = self.context.stop.subscribe();
        tokio::select! {
            outcome = work => outcome,
            error = self.heartbeat.lost(shard) => Err(error),
            () = stopped(&mut stop) => Err(Error::Interrupted { shard }),
            error = self.unfollowed() => Err(error),
        }
    }

    async fn unfollowed(&self) -> Error {
        match self.follower {
            Some((follower, watchdog)) => tokio::select! {
                error = watchdog.altered(self.shard) => error,
                error = follower.lost(self.shard) => error,
            },
            None => std::future::pending().await,
        }
    }
}
