//! One shard that this mover works on: what it remembers between two steps, and each step, as the
//! loop of [`single`](crate::mover::runner::single) runs it.
//!
//! Invariant: a driver decides nothing. [`state::next`](crate::mover::protocol::state::next)
//! returns the next step, from the state of the hosts and from [`Driver::own_state`].

mod blocking;
mod copying;
mod finish;
mod online;

use std::time::{Duration, Instant};

use crate::backoff::Backoff;
use crate::mover::control::context::Context;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::SessionPurpose;
use crate::mover::control::observe::{Observation, observe};
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::{Goal, Mode, Own, Phase, Stop, Stream, Until};
use crate::mover::runner::audit;
use crate::mover::step::{Blueprint, ShardMove};
use crate::pg::cause::chain;

use copying::CopyMemory;
pub(in crate::mover) use copying::{Copying, Online, Patience};

/// How long deciding and opening are tried. After that, a shard that is not decided is served by
/// its source again; one that is decided is left to `resume`, and routers try to open it too.
const OPEN_FOR: Duration = Duration::from_secs(10);

/// For how long new sessions are tried for, after a step has failed because a connection was lost.
const DISCONNECTED_MAX: Duration = Duration::from_secs(60);

/// The pause before each try: a server that restarts refuses for some seconds.
const BEFORE_OPENING: Duration = Duration::from_millis(200);

/// The work of this mover on one shard.
pub(in crate::mover) struct Driver<'a> {
    pub(in crate::mover) work: ShardMove<'a>,
    context: &'a Context,
    heartbeat: &'a Heartbeat,
    goal: Goal,
    copying: Copying<'a>,
    /// For a shard with changes that are applied.
    remembered: CopyMemory,
    /// What this mover has built the target from, if it has built it.
    built: Option<Blueprint>,
    /// How often this mover has fenced.
    fences: u32,
    /// How often this mover has built the target again because the shard was altered.
    rebuilds: u32,
    /// When the pause began.
    fenced_at: Option<Instant>,
    /// How long it lasted, once it is over.
    pause: Option<Duration>,
    /// Since when deciding or opening has failed for temporary reasons.
    failing_since: Option<Instant>,
    /// Since when steps before that have failed because connections were lost.
    disconnected_since: Option<Instant>,
    /// The audit to run once this mover has left the shard.
    audit: Option<audit::Begun>,
}

impl<'a> Driver<'a> {
    /// A driver of a shard without a stream of changes.
    pub(in crate::mover) fn new(
        context: &'a Context,
        work: ShardMove<'a>,
        heartbeat: &'a Heartbeat,
        goal: Goal,
    ) -> Driver<'a> {
        let copying = match work.mode {
            Mode::Blocking => Copying::Blocking,
            Mode::Online => Copying::Unfollowed,
        };
        Driver {
            work,
            context,
            heartbeat,
            goal,
            copying,
            remembered: CopyMemory::default(),
            built: None,
            fences: 0,
            rebuilds: 0,
            fenced_at: None,
            pause: None,
            failing_since: None,
            disconnected_since: None,
            audit: None,
        }
    }

    /// The same for a shard with changes that are applied to what was built from this blueprint.
    /// `compared_on`: the servers on which source and target were compared, if this mover has done
    /// that.
    pub(in crate::mover) fn following(
        self,
        online: Online<'a>,
        built: Option<Blueprint>,
        compared_on: Option<facts::Servers>,
    ) -> Driver<'a> {
        let remembered = CopyMemory {
            compared_on,
            ..CopyMemory::default()
        };
        Driver {
            copying: Copying::Online(online),
            remembered,
            built,
            ..self
        }
    }

    /// What the target was built from, as far as this mover knows.
    pub(in crate::mover) fn built(&self) -> Option<&Blueprint> {
        self.built.as_ref()
    }

    /// Returns what the target was built from, the servers on which it was compared, and the audit
    /// to run. The connections are closed: a transaction that failed halfway holds locks that the
    /// follower waits for.
    pub(in crate::mover) fn end(self) -> DriverRemainder {
        self.into_remainder().0
    }

    /// The same when nothing has failed: its sessions may be used by others.
    pub(in crate::mover) async fn finish(self) -> DriverRemainder {
        let context = self.context;
        let (rest, work) = self.into_remainder();
        work.give_back(&context.hosts).await;
        rest
    }

    fn into_remainder(self) -> (DriverRemainder, ShardMove<'a>) {
        (
            DriverRemainder {
                built: self.built,
                compared_on: self.remembered.compared_on,
                audit: self.audit,
            },
            self.work,
        )
    }

    /// Reads the present state from both hosts. Once it has opened the target, it does so on new
    /// connections if it has to: a target that has crashed since may have to be opened again.
    pub(super) async fn observe(&mut self) -> Result<Observation, Error> {
        let shard = self.work.hold.shard;
        if let Some(error) = self.heartbeat.loss(shard) {
            return Err(error);
        }
        let now = match observe(&self.work.source, &self.work.target, self.work.hold).await {
            Err(error @ Error::Database { .. }) if self.pause.is_some() => {
                self.reconnect(error).await?;
                observe(&self.work.source, &self.work.target, self.work.hold).await?
            }
            observed => observed?,
        };
        if let (None, Some(ago)) = (self.fenced_at, now.fenced_for) {
            self.fenced_at = Instant::now().checked_sub(ago);
        }
        if let (Copying::Online(_), Phase::Ready) = (&self.copying, now.observed.phase) {
            self.remembered.seen =
                Some(facts::servers(&self.work.source, &self.work.target).await?);
        }
        Ok(now)
    }

    /// A step has succeeded: the connections are there.
    pub(super) fn connected(&mut self) {
        self.disconnected_since = None;
    }

    /// Opens new sessions after a step that began then has failed because a connection was lost, by
    /// a restart or by something between the hosts that ends idle ones. A session carries no state
    /// from step to step, so the next observation shows how far the shard is, as after a resume.
    /// Returns any other error, and this one if the host does not answer in time.
    pub(super) async fn open_again(&mut self, error: Error, began: Instant) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        // What is copied behind a fence would be copied from its beginning, with the shard closed.
        let is_closed = self.work.mode == Mode::Blocking && self.fenced_at.is_some();
        if self.goal != Goal::Finish || is_closed || !error.is_disconnect() {
            return Err(error);
        }
        if began.elapsed() > DISCONNECTED_MAX {
            self.disconnected_since = None;
        }
        let since = *self.disconnected_since.get_or_insert_with(Instant::now);
        // While it is fenced, the shard is unavailable.
        let most = match self.fenced_at {
            Some(_) => OPEN_FOR,
            None => DISCONNECTED_MAX,
        };
        let until = since + most;
        tracing::warn!(%shard, error = chain(&error), "opening new sessions");
        loop {
            tokio::time::sleep(BEFORE_OPENING).await;
            if self.context.is_stopped() {
                return Err(Error::Interrupted { shard });
            }
            if let Some(lost) = self.heartbeat.loss(shard) {
                return Err(lost);
            }
            match self.new_sessions().await {
                Ok(()) if Instant::now() < until => return Ok(()),
                Err(again) if again.is_disconnect() && Instant::now() < until => {}
                _ => return Err(error),
            }
        }
    }

    /// Replaces the sessions of the shard by new ones.
    async fn new_sessions(&mut self) -> Result<(), Error> {
        let (shard, hosts) = (self.work.hold.shard, &self.context.hosts);
        let source = hosts.open_new(&self.work.source.host).await?;
        let target = hosts.open_new(&self.work.target.host).await?;
        let (source, target) = (source.for_shard(shard), target.for_shard(shard));
        source.sign(self.work.hold, SessionPurpose::Shard).await?;
        target.sign(self.work.hold, SessionPurpose::Shard).await?;
        (self.work.source, self.work.target) = (source, target);
        Ok(())
    }

    /// What this mover knows about itself.
    pub(super) fn own_state(&self, until: Until) -> Own {
        Own {
            goal: self.goal,
            until,
            stop: if self.context.is_stopped() {
                Stop::Asked
            } else {
                Stop::No
            },
            desired: self.heartbeat.desired(self.work.hold.shard),
            stream: match self.copying {
                Copying::Online(_) => self.remembered.stream(),
                Copying::Blocking | Copying::Unfollowed => Stream::Off,
            },
        }
    }

    /// The error that the target has lost what this mover has put there.
    pub(super) fn target_lost(&self) -> Error {
        let reason = "its copy has disappeared from the target: resume the move".to_owned();
        Error::Superseded {
            host: self.work.target.host.clone(),
            shard: self.work.hold.shard,
            reason,
        }
    }

    /// The tasks that work on a shard with changes that are applied.
    fn online(&self) -> Result<Online<'a>, Error> {
        match self.copying {
            Copying::Online(online) => Ok(online),
            Copying::Blocking | Copying::Unfollowed => Err(self.unfollowed()),
        }
    }

    /// The loop and this driver contradict each other: nothing is touched, and the shard stays as
    /// it is.
    fn unfollowed(&self) -> Error {
        let observed =
            "a step of an online move without a stream (a bug of pgshard: please report it)"
                .to_owned();
        Error::Stuck {
            shard: self.work.hold.shard,
            observed,
        }
    }

    /// What can end a wait while the shard is open.
    fn patience(&self) -> Patience<'_> {
        let follower = match &self.copying {
            Copying::Online(online) => Some((online.follower, online.watchdog)),
            Copying::Blocking | Copying::Unfollowed => None,
        };
        Patience {
            context: self.context,
            heartbeat: self.heartbeat,
            shard: self.work.hold.shard,
            follower,
        }
    }

    /// Handles a refusal of a host: the fence expired, or the target was opened by another holder
    /// of the token. The next observation shows it.
    fn look_again(&mut self, reason: String) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        tracing::info!(%shard, reason, "looking again");
        self.fences += 1;
        if self.fences < self.context.options.fence_attempts * 2 {
            return Ok(());
        }
        Err(Error::GaveUp {
            shard,
            attempts: self.fences,
            blockers: reason,
        })
    }

    /// Handles a fence that was not set, or was taken back: there is another attempt after a while,
    /// unless this was the last.
    async fn retry_fence(&self, reason: String) -> Result<(), Error> {
        let (shard, attempt) = (self.work.hold.shard, self.fences);
        if attempt >= self.context.options.fence_attempts {
            return Err(Error::GaveUp {
                shard,
                attempts: attempt,
                blockers: reason,
            });
        }
        self.context.observer.notify(Event::FenceRetried {
            shard,
            attempt,
            reason,
        });
        tokio::time::sleep(FENCE_PAUSES.pause(attempt)).await;
        Ok(())
    }
}

/// What a driver leaves to the next driver of its shard.
pub(in crate::mover) struct DriverRemainder {
    pub(in crate::mover) built: Option<Blueprint>,
    pub(in crate::mover) compared_on: Option<facts::Servers>,
    pub(in crate::mover) audit: Option<audit::Begun>,
}

/// The pauses between two fences, spread so that two movers that collided do not collide again.
const FENCE_PAUSES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(2),
    jitter: (0.5, 1.0),
};
