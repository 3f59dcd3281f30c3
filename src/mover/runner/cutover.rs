//! The cut-over of a shard that comes online: catch up, fence, drain, and what to do when one of them does not go through.
//!
//! Invariant: behind the fence nothing is waited for without a limit, and whatever goes wrong there ends with the
//! source serving again. All that can be done before the swap is done before it.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::mover::control::context::stopped;
use crate::mover::control::journal::Entry;
use crate::mover::control::observe::Observation;
use crate::mover::definition::sequences::Presets;
use crate::mover::definition::trace::Trace;
use crate::mover::preflight::facts;
use crate::mover::preflight::facts::Lock;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::runner::audit;
use crate::mover::runner::driver::Driver;
use crate::mover::runner::turn::Turn;
use crate::mover::step::{Swapped, token_hash};
use crate::mover::stream::follower::{Follower, write_beacon};

/// How long a mover waits for the stream to be close, before each attempt to fence. Then it gives up.
const CLOSE_WITHIN: Duration = Duration::from_secs(600);

impl<'a> Driver<'a> {
    /// The target as the source was a moment ago, compared with it.
    pub(in crate::mover) async fn catch_up(&mut self, entry: &Entry) -> Result<(), Error> {
        let began = Instant::now();
        let follower = self.following()?;
        let servers = facts::servers(&self.work.source, &self.work.target).await?;
        if self.verified_on.take().is_some_and(|before| before != servers) {
            self.work.verify_anew().await?;
        }
        self.abide(self.pass_a_beacon(follower)).await?;
        let began = self.work.timings.since("catch_up", began);
        if self.built.is_none() {
            self.built = Some(self.work.blueprint(entry).await?);
        }
        let built = self.built.as_ref().expect("it was set just now");
        self.work.caught_up(&built.creation, follower).await?;
        // Not before: a table that gets its replica identity last would refuse what the stream brings once it is published.
        if let Some(stream) = &self.way_back {
            self.work.prepare_back(stream).await?;
        }
        self.abide(crate::mover::runner::common_point::shard(&self.work, &self.context.hosts, follower)).await?;
        self.work.timings.since("verify", began);
        self.work.at("after verify")?;
        self.work.ready().await?;
        self.verified_on = Some(servers);
        Ok(())
    }

    /// One attempt to close the shard, bring the last changes over, and open it at the target.
    pub(in crate::mover) async fn cut_over(&mut self, now: &Observation) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        // A server that was started again, or promoted, may lack what it had: constraints, the statements for the open, rows.
        let servers = facts::servers(&self.work.source, &self.work.target).await?;
        if self.verified_on.as_ref() != Some(&servers) {
            return self.catch_up(&now.entry).await;
        }
        self.fences += 1;
        self.failing_since = None;
        if self.built.is_none() {
            self.built = Some(self.work.blueprint(&now.entry).await?);
        }
        self.close().await?;
        let Some(trace) = self.before_fence().await? else {
            return self.look_again("its schema is not there".to_owned());
        };
        self.unopened = Some(audit::Target::open(self.context, &self.work).await);
        let turns = self.turns.ok_or(Error::Interrupted { shard })?;
        let turn = self.abide(turns.take(&self.context.hosts, &self.work)).await?;
        if let Some(blockers) = self.abide(self.work.hold_tables(turn.opening())).await? {
            drop(turn);
            return self.again(blockers).await;
        }
        let token = Uuid::new_v4();
        let presets = self.work.preset().await?;
        let before = Instant::now();
        let swapped = match self.work.swap(turn.gate(), token).await {
            Ok(swapped) => swapped,
            // A table that came after the signpost was built, or the shard is not ours any more: the next look tells.
            Err(Error::Superseded { reason, .. }) => return self.look_again(reason),
            // Nothing was fenced, so nobody waits for us meanwhile.
            Err(Error::Database { source, .. }) if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                drop(turn);
                let reason = "a migration, or another transaction, holds the shard's row in pgshard.shard".to_owned();
                return self.again(reason).await;
            }
            Err(error) => return Err(error),
        };
        self.fenced_at = Some(before);
        let attempt = swapped.attempt;
        let limit = self.work.options.drain_deadline + self.work.options.barrier_budget;
        let behind = self.behind_fence(&turn, &swapped, token, &trace, &presets);
        let behind = tokio::time::timeout(limit, behind);
        let lost = self.heartbeat.lost(shard);
        let outcome = tokio::select! {
            behind = behind => behind,
            () = lost => return Err(Error::LeaseLost { shard }),
        };
        self.looked = matches!(outcome, Ok(Ok(None | Some(Held::Unopened(_))))).then_some(attempt);
        match outcome {
            Ok(Ok(None)) if !self.following()?.is_on(&servers) => {
                self.give_up(turn, attempt).await?;
                self.again("a server was started again, or failed over, behind the fence".to_owned()).await
            }
            Ok(Ok(None)) => match self.following()?.breach(shard) {
                None => self.decide(turn, attempt).await,
                Some(breach) => {
                    self.give_up(turn, attempt).await?;
                    Err(Error::Stuck { shard, observed: breach })
                }
            },
            Ok(Ok(Some(Held::Altered(what)))) => {
                self.give_up(turn, attempt).await?;
                Err(Error::Altered { shard, what })
            }
            Ok(Ok(Some(Held::Again(reason)))) => {
                self.give_up(turn, attempt).await?;
                self.again(reason).await
            }
            Ok(Ok(Some(Held::Unopened(error)))) => {
                drop(turn);
                self.ended(Err(error)).await
            }
            Ok(Err(Error::Superseded { reason, .. })) => self.look_again(reason),
            Ok(Err(error)) => Err(error),
            Err(_) => {
                self.give_up(turn, attempt).await?;
                self.again(format!("the last changes did not arrive within {} ms", limit.as_millis())).await
            }
        }
    }

    /// The shard is fenced, and this mover does not know how far it had come: it is served again, and fenced anew.
    pub(in crate::mover) async fn fence_anew(&mut self, attempt: i32) -> Result<(), Error> {
        self.unfence(attempt).await?;
        self.again("what was set before the fence is not known any more".to_owned()).await
    }

    /// Takes the fence of this attempt back, with whatever was prepared behind it.
    async fn give_up(&mut self, turn: Turn<'_>, attempt: i32) -> Result<(), Error> {
        // Closes the session in which the target may have been opened: nobody can commit that any more.
        drop(turn);
        self.unfence(attempt).await
    }

    /// Decides, with the open prepared.
    async fn decide(&mut self, turn: Turn<'_>, attempt: i32) -> Result<(), Error> {
        let decided = self.work.decide(turn.gate(), turn.opening(), attempt).await;
        match &decided {
            Ok(()) => turn.give_back(),
            Err(_) => drop(turn),
        }
        self.ended(decided).await
    }

    /// Barrier, marker, the changes up to the marker, and the open, not committed; beside all that, what may not have changed
    /// is looked at. `Some`: it did not go through.
    async fn behind_fence(
        &self,
        turn: &Turn<'_>,
        swapped: &Swapped,
        token: Uuid,
        trace: &Trace,
        presets: &Presets,
    ) -> Result<Option<Held>, Error> {
        let Swapped { attempt, left } = *swapped;
        let shard = self.work.hold.shard;
        let follower = self.following()?;
        let built = self.built.as_ref().expect("no fence without a blueprint");
        let marked = async {
            let began = Instant::now();
            let locks = self.work.barrier(turn.gate(), left).await?;
            if !locks.is_empty() {
                return Err(Halt::Blocked(locks));
            }
            self.work.at("after barrier")?;
            let began = self.work.timings.since("barrier", began);
            let mark = async {
                self.work.mark(turn.gate(), attempt).await?;
                Ok::<_, Error>(self.work.timings.since("marker", began))
            };
            Ok(tokio::try_join!(mark, self.work.unchanged(left, trace, built, presets))?)
        };
        // The follower is told before the marker is on its way. The open's transaction was begun with the hold on its tables.
        let hash = token_hash(token);
        let opened = async {
            follower.marker(shard, attempt, &hash).await?;
            let drained = Instant::now();
            self.work.at("after drain")?;
            let snapshot = async {
                if let Some(unopened) = &self.unopened {
                    unopened.take(attempt).await;
                }
            };
            // Whether it went through is judged after the look, which it must not cut short: a target that is ready can be decided for.
            let (prepared, ()) = tokio::join!(self.work.prepare_open(turn.opening(), attempt), snapshot);
            Ok::<_, Halt>((drained, prepared))
        };
        let ((drained, prepared), (marked, unchanged)) = match tokio::try_join!(biased; opened, marked) {
            Ok(both) => both,
            Err(Halt::Blocked(locks)) => {
                let blockers = locks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                return Ok(Some(Held::Again(blockers)));
            }
            Err(Halt::Failed(error)) => return Err(error),
        };
        self.work.timings.took("drain", drained.saturating_duration_since(marked));
        let anew = match (unchanged, prepared) {
            (Err(what), _) => return Ok(Some(Held::Altered(what))),
            (Ok(_), Err(error)) => return Ok(Some(Held::Unopened(error))),
            (Ok(anew), Ok(())) => anew,
        };
        if !anew.is_empty() {
            self.work.set_anew(turn.opening(), &anew).await?;
        }
        Ok(None)
    }

    /// Waits, with the shard open, until the stream is close behind: what is left is applied while the shard is closed.
    async fn close(&self) -> Result<(), Error> {
        let (follower, lag_max) = (self.following()?, self.work.options.lag_max);
        let until = Instant::now() + CLOSE_WITHIN;
        loop {
            let began = Instant::now();
            self.abide(self.pass_a_beacon(follower)).await?;
            if began.elapsed() <= lag_max {
                return Ok(());
            }
            if Instant::now() >= until {
                let blockers = format!("the target stays further behind than {} ms", lag_max.as_millis());
                return Err(Error::GaveUp { shard: self.work.hold.shard, attempts: self.fences, blockers });
            }
        }
    }

    /// Looks, with the shard open, for what would make the fence fail: altered tables, and transactions that hold locks. Gives
    /// the trace of what was found right; `None`: the shard's schema is not there.
    async fn before_fence(&self) -> Result<Option<Trace>, Error> {
        let Some(schema) = facts::schema_oid(&self.work.source, &self.work.names.schema).await? else {
            return Ok(None);
        };
        let trace = self.work.trace(schema).await?;
        let built = self.built.as_ref().expect("no fence without a blueprint");
        if let Some(what) = self.work.altered(schema, built).await? {
            return Err(Error::Altered { shard: self.work.hold.shard, what });
        }
        // A transaction that is that old already will not end within the budget; one that is younger may.
        let until = Instant::now() + Duration::from_secs(5);
        let budget = self.work.options.barrier_budget.as_secs_f64();
        while Instant::now() < until {
            let locks = facts::locks(&self.work.source, schema).await?;
            if !locks.iter().any(|lock| lock.seconds > budget) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(Some(trace))
    }

    /// The fence was taken back: after a while, again, unless that was the last attempt.
    pub(in crate::mover) async fn again(&self, reason: String) -> Result<(), Error> {
        let (shard, attempt) = (self.work.hold.shard, self.fences);
        if attempt >= self.work.options.fence_attempts {
            return Err(Error::GaveUp { shard, attempts: attempt, blockers: reason });
        }
        self.work.observer.tell(Event::FenceRetried { shard, attempt, reason });
        tokio::time::sleep(crate::mover::runner::driver::back_off(attempt)).await;
        Ok(())
    }

    /// Waits until all that is committed at the source by now is durable at the target.
    async fn pass_a_beacon(&self, follower: &Follower) -> Result<(), Error> {
        let beacon = write_beacon(&self.work.source, self.work.hold.id).await?;
        follower.caught_up(beacon, self.work.hold.shard).await
    }

    fn following(&self) -> Result<&'a Follower, Error> {
        self.follower.ok_or(Error::Interrupted { shard: self.work.hold.shard })
    }

    /// The work, or until the lease is lost, a stop is asked for, the shard is found altered or its stream ends. Only with the
    /// shard open.
    pub(in crate::mover) async fn abide<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let shard = self.work.hold.shard;
        let mut stop = self.context.stop.subscribe();
        tokio::select! {
            outcome = work => outcome,
            () = self.heartbeat.lost(shard) => Err(Error::LeaseLost { shard }),
            () = stopped(&mut stop) => Err(Error::Interrupted { shard }),
            error = self.unfollowed() => Err(error),
        }
    }

    /// Waits until what the shard is waited for with is worth nothing any more: it was altered, or is not followed.
    async fn unfollowed(&self) -> Error {
        let shard = self.work.hold.shard;
        match (self.guard, self.follower) {
            (Some(guard), Some(follower)) => tokio::select! {
                error = guard.altered(shard) => error,
                error = follower.lost(shard) => error,
            },
            _ => std::future::pending().await,
        }
    }
}

/// What ends the wait behind the fence early.
enum Halt {
    Blocked(Vec<Lock>),
    Failed(Error),
}

impl From<Error> for Halt {
    fn from(error: Error) -> Halt {
        Halt::Failed(error)
    }
}

/// Why a fence did not go through.
enum Held {
    /// It may at the next attempt.
    Again(String),
    /// It cannot: the target was built from something else.
    Altered(String),
    /// The target did not open, though it is ready, and nothing has changed behind the fence.
    Unopened(Error),
}
