//! Supervises a group during its work: its mover may be requested to stop or to pause, and the slot
//! may retain too much WAL, or be lost.

use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::mover::control::context::stopped;
use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::Goal;
use crate::mover::runner::assignment::{Assignment, ShardResult, Start};
use crate::mover::runner::group::Group;
use crate::mover::runner::leftovers::drop_shared_or_warn;
use crate::mover::runner::single;
use crate::mover::runner::watchdog::SlotTrouble;
use crate::mover::stream::slot;
use crate::pg::cause::chain;

impl Group<'_> {
    /// While the group is worked on, passes on the requests to its mover, and watches the slot.
    /// Returns when the slot is at fault.
    pub(super) async fn supervise(&self) -> SlotTrouble {
        let mut asked = self.whole.stop.subscribe();
        let stopping = async {
            stopped(&mut asked).await;
            self.context.stop();
            std::future::pending().await
        };
        let mut desired = self.heartbeat.desired_states();
        let pausing = async {
            loop {
                let paused = desired
                    .borrow_and_update()
                    .values()
                    .any(|desired| *desired == DesiredState::Pause);
                self.pace
                    .send_if_modified(|pace| std::mem::replace(&mut pace.paused, paused) != paused);
                if desired.changed().await.is_err() {
                    std::future::pending().await
                }
            }
        };
        let name = self.stream();
        // The move that is taken back has made the slot of this rollback, and that slot has a limit
        // of its own.
        let wal_max = self
            .shared
            .rollback_of
            .is_none()
            .then_some(self.context.options.wal_max);
        tokio::select! {
            trouble = self.watchdog.watch(
                &self.context.hosts,
                &self.shared.source,
                &name,
                wal_max,
            ) => trouble,
            trouble = stopping => trouble,
            trouble = pausing => trouble,
        }
    }

    /// The results of a group with a lost slot: the shards that stopped for it have that as their
    /// error. The slot's row in the ledger is kept, so that a resume finds that it is gone, and
    /// copies again.
    pub(super) async fn without_slot(
        &self,
        ends: Vec<ShardResult>,
        state: &'static str,
    ) -> Vec<ShardResult> {
        let slot = self.stream();
        tracing::warn!(slot, host = %self.shared.source, state, "something else has dropped the \
            slot of a move, or its server has");
        let lost = || Error::SlotLost {
            host: self.shared.source.clone(),
            slot: slot.clone(),
            state,
        };
        let explain = |(shard, end): ShardResult| match end {
            Err(Error::Interrupted { .. } | Error::Unfollowed { .. }) => {
                let source = Arc::new(lost());
                self.failed(shard, Error::Group { shard, source })
            }
            end => (shard, end),
        };
        ends.into_iter().map(explain).collect()
    }

    /// Drops the slot, then aborts what is not decided and finishes what is. By then no task works
    /// on the group.
    pub(super) async fn abort_to_free_wal(
        &self,
        parts: Vec<Assignment>,
        ends: Vec<ShardResult>,
        (kept, limit): (u64, u64),
    ) -> Vec<ShardResult> {
        let jobs = &Semaphore::new(self.context.options.jobs.max(1));
        let name = self.stream();
        tracing::warn!(slot = name, host = %self.shared.source, kept, limit, "the slot keeps more \
            WAL than it may: the move is aborted");
        let dropped = async {
            slot::drop_slot(&self.whole.hosts.open(&self.shared.source).await?, &name).await
        };
        if let Err(error) = dropped.await {
            tracing::error!(
                slot = name,
                host = %self.shared.source,
                error = chain(&error),
                "the slot could not be dropped"
            );
        }
        let abort = |(shard, end): ShardResult| {
            let part = parts.iter().find(|part| part.shard == shard).cloned();
            async move {
                let (Err(_), Some(part)) = (&end, part) else {
                    return (shard, end);
                };
                let part = Assignment {
                    start: Start::TakeOver,
                    ..part
                };
                match single::to_end(self.whole, &part, Goal::Abort, self.heartbeat, jobs).await {
                    Ok(_) => {
                        let host = self.shared.source.clone();
                        self.failed(
                            shard,
                            Error::WalLimit {
                                shard,
                                host,
                                kept,
                                limit,
                            },
                        )
                    }
                    Err(Error::TooLate { .. }) => (
                        shard,
                        single::to_end(self.whole, &part, Goal::Finish, self.heartbeat, jobs).await,
                    ),
                    Err(error) => self.failed(shard, error),
                }
            }
        };
        let ends = futures_util::future::join_all(ends.into_iter().map(abort)).await;
        drop_shared_or_warn(self.whole, &self.shared).await;
        ends
    }
}
