//! The handle of a follower: it starts the task, waits for what it reports, and requests pauses.
//!
//! Invariant: a future here resolves when a change is durable at the target, never when it was
//! merely read.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;

use crate::mover::copy::snapshot::Snapshot;
use crate::mover::preflight::facts::Servers;
use crate::mover::protocol::error::Error;
use crate::shard::ShardId;

use crate::mover::stream::command::{Align, Command};
use crate::mover::stream::fault::Fault;
use crate::mover::stream::options::FollowerOptions;
use crate::mover::stream::state::FollowerState;
use crate::mover::stream::view::{ShardView, View};
use crate::mover::stream::worker::Worker;

/// A task that follows a group's stream. It ends when this is dropped; what is not durable by then
/// is rolled back.
pub(crate) struct Follower {
    commands: mpsc::Sender<Command>,
    view: watch::Receiver<View>,
    task: JoinHandle<()>,
}

impl Follower {
    /// Starts to follow. The task opens the connections; if it cannot, the futures below report
    /// that.
    pub(crate) fn start(options: FollowerOptions) -> Follower {
        let (sender, commands) = mpsc::channel(64);
        let shards = options
            .shards
            .iter()
            .map(|shard| (shard.hold.shard, ShardView::default()))
            .collect();
        let (view, watched) = watch::channel(View {
            shards,
            ..View::default()
        });
        let task = tokio::spawn(Worker::new(FollowerState::new(options, view, commands)).run());
        Follower {
            commands: sender,
            view: watched,
            task,
        }
    }

    /// Waits until everything that was committed before this watermark, for all shards, is durable
    /// at the target.
    ///
    /// # Errors
    /// When the follower has ended. A shard that is lost on the way does not stop the others: see
    /// [`failed`](Follower::failed).
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn caught_up(&self, watermark: i64, shard: ShardId) -> Result<(), Error> {
        self.wait(shard, |view, _| {
            view.watermarks.contains(&watermark).then_some(Ok(()))
        })
        .await
    }

    /// Waits until the marker of this attempt, and everything that was committed before it, is
    /// durable at the target. The shard is then ready there, with this hash of the open token. Best
    /// called before the marker is written.
    ///
    /// # Errors
    /// When the shard is lost, or changed after its marker.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn marker(
        &self,
        shard: ShardId,
        attempt: i32,
        open_hash: &str,
    ) -> Result<(), Error> {
        let expect = Command::Expect {
            shard,
            attempt,
            open_hash: open_hash.to_owned(),
        };
        // If there is no listener any longer, the view has the reason.
        let _ = self.commands.send(expect).await;
        self.wait(shard, |_, seen| {
            match (&seen.breach, seen.ready == Some(attempt)) {
                (_, false) => None,
                (None, true) => Some(Ok(())),
                (Some(breach), true) => Some(Err(Error::Stuck {
                    shard,
                    observed: breach.clone(),
                })),
            }
        })
        .await
        .inspect(|()| tracing::debug!(%shard, attempt, "the marker has come through"))
    }

    /// Waits until `found` gives something for a shard, or the shard is lost.
    async fn wait(
        &self,
        shard: ShardId,
        mut found: impl FnMut(&View, &ShardView) -> Option<Result<(), Error>>,
    ) -> Result<(), Error> {
        let mut view = self.view.clone();
        loop {
            let outcome = {
                let view = view.borrow_and_update();
                let seen = view.shards.get(&shard);
                let fault = seen
                    .and_then(|seen| seen.fault.clone())
                    .or_else(|| view.ended.clone().map(Fault::Ended));
                match (seen.and_then(|seen| found(&view, seen)), fault) {
                    (_, Some(fault)) => Some(Err(fault.into_error(shard))),
                    (outcome, None) => outcome,
                }
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
            if view.changed().await.is_err() {
                return Err(Fault::Ended("its task is gone".to_owned()).into_error(shard));
            }
        }
    }

    /// Waits until the shard is no longer followed, and gives the reason.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn lost(&self, shard: ShardId) -> Error {
        match self.wait(shard, |_, _| None).await {
            Err(error) => error,
            Ok(()) => std::future::pending().await,
        }
    }

    /// Why a shard is no longer followed; `None` while it is followed.
    pub(crate) fn failed(&self, shard: ShardId) -> Option<Error> {
        let view = self.view.borrow();
        let fault = view.shards.get(&shard).and_then(|seen| seen.fault.clone());
        fault
            .or_else(|| view.ended.clone().map(Fault::Ended))
            .map(|fault| fault.into_error(shard))
    }

    /// The change that came after the shard's marker, if one did: it forbids to decide for that
    /// attempt.
    pub(crate) fn breach(&self, shard: ShardId) -> Option<String> {
        self.view
            .borrow()
            .shards
            .get(&shard)
            .and_then(|seen| seen.breach.clone())
    }

    /// Whether it has been connected to these servers only, since their identities were read.
    pub(crate) fn is_on(&self, servers: &Servers) -> bool {
        self.view.borrow().servers.as_ref() == Some(servers)
    }

    /// What it reports, as it changes.
    pub(crate) fn view(&self) -> watch::Receiver<View> {
        self.view.clone()
    }

    /// No longer follows this shard, because it is open, or given up. What was committed stays. For
    /// a shard that failed, the slot keeps the shard's missing changes until this is called.
    pub(crate) async fn detach(&self, shard: ShardId) {
        let _ = self.commands.send(Command::Detach { shard }).await;
        let _ = self.wait(shard, |_, _| None).await;
    }

    /// Stops between two source transactions, with everything before durable, until the pause is
    /// dropped; at most half a minute.
    ///
    /// # Errors
    /// When the follower has ended.
    ///
    /// # Cancel safety
    /// Dropping the future ends the pause.
    pub(crate) async fn pause(&self) -> Result<PausedFollower, Error> {
        let (steps, receiver) = mpsc::channel(1);
        let (granted, answer) = oneshot::channel();
        let _ = self
            .commands
            .send(Command::Pause {
                granted,
                steps: receiver,
            })
            .await;
        answer.await.map_err(|_| self.gone())?;
        Ok(PausedFollower {
            steps,
            view: self.view.clone(),
        })
    }

    fn gone(&self) -> Error {
        gone(&self.view.borrow())
    }

    /// Ends the follower; what was read so far is committed or rolled back. When this returns, no
    /// work of it continues.
    pub(crate) async fn stop(mut self) {
        let _ = self.commands.send(Command::Stop).await;
        if tokio::time::timeout(Duration::from_secs(2), &mut self.task)
            .await
            .is_err()
        {
            self.task.abort();
            let _ = (&mut self.task).await;
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn gone(view: &View) -> Error {
    Error::Unfollowed {
        shard: None,
        why: view
            .ended
            .clone()
            .unwrap_or_else(|| "the pause was over".to_owned()),
    }
}

/// A follower that is paused.
pub(crate) struct PausedFollower {
    steps: mpsc::Sender<Align>,
    view: watch::Receiver<View>,
}

impl PausedFollower {
    /// Makes the target exactly what this snapshot of the source sees. It reads on to the
    /// watermark, which was written after the snapshot was taken, and applies the transactions that
    /// the snapshot sees. After that it is paused again.
    ///
    /// False: the transactions that it sees are not the first ones that were committed since (or
    /// were too many to hold in memory). Drop the pause and the snapshot, and begin again.
    ///
    /// # Errors
    /// When the follower has lost its connections, or was paused for too long.
    pub(crate) async fn align(&self, snapshot: Snapshot, watermark: i64) -> Result<bool, Error> {
        let (answer, outcome) = oneshot::channel();
        let over = || gone(&self.view.borrow());
        self.steps
            .send(Align {
                snapshot,
                watermark,
                answer,
            })
            .await
            .map_err(|_| over())?;
        match outcome.await {
            Ok(Ok(aligned)) => Ok(aligned),
            Ok(Err(_)) | Err(_) => Err(over()),
        }
    }
}
