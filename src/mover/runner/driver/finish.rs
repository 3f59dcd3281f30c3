//! From decide to the end, in both modes, and how a mover leaves a shard.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::mover::control::journal::Entry;
use crate::mover::control::observe::observe;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::{Lease, Mode, Phase, Source, Target};
use crate::mover::protocol::verdict::Audit;
use crate::mover::runner::audit;
use crate::mover::runner::driver::{Copying, Driver, OPEN_FOR};
use crate::mover::runner::permit::BackgroundPermit;
use crate::pg::cause::chain;
use crate::store::MapStore;

/// How long a mover tries to drop its copy from a target without disk space, and the pause between
/// two tries.
const ROOM_WITHIN: Duration = Duration::from_secs(20);
const BEFORE_DROPPING: Duration = Duration::from_millis(200);

impl<'a> Driver<'a> {
    /// The target is ready for this attempt: decides and opens.
    pub(in crate::mover::runner) async fn decide_and_open(
        &mut self,
        attempt: i32,
    ) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        if let Some(breach) = self.breach() {
            self.unfence(attempt).await?;
            return Err(Error::Stuck {
                shard,
                observed: breach,
            });
        }
        let decided = self.work.decide_and_open(attempt).await;
        self.ended(decided).await
    }

    /// Acts on the result of deciding.
    pub(super) async fn ended(&mut self, decided: Result<(), Error>) -> Result<(), Error> {
        match decided {
            Ok(()) => {
                self.opened();
                Ok(())
            }
            Err(Error::Superseded { reason, .. }) => self.look_again(reason),
            Err(
                error @ (Error::Failpoint { .. }
                | Error::LeaseLost { .. }
                | Error::Unrenewed { .. }),
            ) => Err(error),
            // It would be refused again. The mover leaves the shard, which takes the fence back.
            Err(error) if error.is_permanent() && self.is_undecided().await => Err(error),
            // The outcome is unknown: observe again, on new connections.
            Err(error) => self.reconnect(error).await,
        }
    }

    /// Whether the source is known not to have decided.
    async fn is_undecided(&mut self) -> bool {
        matches!(self.fenced().await, Ok(Some(_)))
    }

    /// The attempt of this mover that the source is fenced for. It uses a new connection, because a
    /// statement may still run on the old one.
    async fn fenced(&mut self) -> Result<Option<i32>, Error> {
        let (shard, hold) = (self.work.hold.shard, self.work.hold);
        self.work.source = self
            .context
            .hosts
            .open_new(&self.work.source.host)
            .await?
            .for_shard(shard);
        let sql = "SELECT attempt FROM pgshard.shard
            WHERE shard_id = $1 AND state = 'fenced' AND move_id = $2 AND lease = $3";
        let what = "reading the shard's row";
        let fenced = self
            .work
            .source
            .rows(what, sql, &[&shard.as_i32(), hold.id.uuid(), &hold.lease])
            .await?;
        fenced.first().map(|row| row.get(0)).transpose()
    }

    /// Opens the target after the source has decided and given this token away.
    pub(in crate::mover::runner) async fn open(
        &mut self,
        token: Option<Uuid>,
    ) -> Result<(), Error> {
        match self.work.finish_open(token).await {
            Ok(()) => {
                self.opened();
                Ok(())
            }
            Err(error @ Error::Failpoint { .. }) => Err(error),
            Err(error) => self.reconnect(error).await,
        }
    }

    /// Makes new connections after an error that leaves the outcome unknown, for as long as the
    /// shard may be closed. After that time it gives the error itself: a target that can be reached
    /// but never opened would keep the shard closed for ever.
    pub(super) async fn reconnect(&mut self, error: Error) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        let until = *self.failing_since.get_or_insert_with(Instant::now) + OPEN_FOR;
        if Instant::now() >= until {
            return Err(error);
        }
        tracing::warn!(%shard, error = chain(&error), "observing again, on new connections");
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            match self.new_sessions().await {
                Ok(()) => return Ok(()),
                Err(_) if Instant::now() < until && self.heartbeat.loss(shard).is_none() => {}
                Err(_) => return Err(error),
            }
        }
    }

    fn opened(&mut self) {
        let pause = self.fenced_at.map(|at| at.elapsed()).unwrap_or_default();
        self.pause = Some(pause);
        self.work.reached(Phase::Opened);
        let (shard, host) = (self.work.hold.shard, self.work.target.host.clone());
        self.context
            .observer
            .notify(Event::Opened { shard, host, pause });
    }

    /// Publishes the map, begins the audit, and keeps the old copy. If the target has lost the open
    /// in a crash, it is observed again instead.
    pub(in crate::mover::runner) fn publish<'d>(
        &'d mut self,
        entry: &'d Entry,
    ) -> BoxFuture<'d, Result<(), Error>> {
        Box::pin(async move {
            if let Err(error) = self.work.keep_open().await {
                return self.reconnect(error).await;
            }
            if let Copying::Online(online) = &self.copying {
                // The follower needs the records that are deleted now: otherwise it would take that
                // for the work of another mover, and warn.
                online.follower.detach(self.work.hold.shard).await;
            }
            let store: &dyn MapStore = &*self.context.store;
            self.work.publish(store).await?;
            // This comes before any role may write to the old copy.
            let verdict = match self.work.mode {
                // It was compared behind its fence, or it would not have opened.
                Mode::Blocking => Audit::of(Vec::new(), Vec::new()),
                Mode::Online => {
                    let unopened = self.remembered.unopened.take();
                    let _permit = self.background_permit().await;
                    match audit::begin(self.context, &self.work, unopened, entry.attempt).await {
                        Ok(begun) => {
                            self.audit = Some(begun);
                            Audit::under_way()
                        }
                        Err(why) => Audit::left_out(why),
                    }
                }
            };
            let permit = self.background_permit().await;
            self.work
                .settle(self.built.as_ref().map(|built| &built.creation))
                .await?;
            drop(permit);
            // If another mover or a router has opened it, the pause was over before this one
            // noticed.
            let pause = self.pause.or_else(|| self.fenced_at.map(|at| at.elapsed()));
            self.work.keep(pause, verdict).await
        })
    }

    /// Begins a piece of work that makes way for the fences of the group, if the shard belongs to
    /// one.
    async fn background_permit(&self) -> Option<BackgroundPermit<'a>> {
        match &self.copying {
            Copying::Online(online) => Some(online.permits.background_permit().await),
            Copying::Blocking | Copying::Unfollowed => None,
        }
    }

    /// What the follower found that forbids deciding.
    fn breach(&self) -> Option<String> {
        match &self.copying {
            Copying::Online(online) => online.follower.breach(self.work.hold.shard),
            Copying::Blocking | Copying::Unfollowed => None,
        }
    }

    /// Ends this mover's work with a shard that has come to its end.
    pub(in crate::mover::runner) async fn end_shard(&mut self) {
        self.release(None).await;
    }

    /// Ends this mover's work with a shard that it gives up: the shard is served, the lease is
    /// free, and a target without disk space has none of it. Returns the error to report.
    pub(in crate::mover::runner) async fn give_up(&mut self, error: Error) -> Error {
        // After a lost lease too: if only our connections are gone, no other mover makes the source
        // serve before the deadline. If one has taken over, both this and the release name a lease
        // that no longer exists.
        self.leave_serving().await;
        let error = self.make_room(error).await;
        self.release(Some(&error)).await;
        error
    }

    async fn release(&mut self, error: Option<&Error>) {
        self.heartbeat.let_go(self.work.hold.shard);
        let words = error.map(|error| chain(error));
        // Releasing the lease is a courtesy: this mover is done with the shard in any case.
        if let Err(unreleased) = self
            .work
            .source
            .release(self.work.hold, words.as_deref())
            .await
        {
            tracing::debug!(error = %unreleased, "the lease could not be given back; it ends by \
                itself");
        }
    }

    /// Drops the copy from a target that has no disk space left: the shards that are served there
    /// need it, and the copy is of no use until there is space. Returns the error to report.
    ///
    /// A rollback's target is an old copy, which may be all that is left: it is never dropped here.
    async fn make_room(&mut self, error: Error) -> Error {
        let (shard, host) = (self.work.hold.shard, self.work.target.host.clone());
        let Some(message) = error
            .full_disk(&host)
            .filter(|_| self.work.rollback_of.is_none())
        else {
            return error;
        };
        if let Copying::Online(online) = &self.copying {
            online.follower.detach(shard).await;
        }
        let until = Instant::now() + ROOM_WITHIN;
        let left = loop {
            match self.drop_copy().await {
                Ok(true) => break None,
                // It was decided, or another mover has it: then the copy is not this one's to drop.
                Ok(false) => return error,
                // Workers with sessions that were just closed may still have locks, and a server
                // without disk space may be about to restart.
                Err(again) if Instant::now() >= until => break Some(chain(&again)),
                Err(again) => tracing::debug!(%shard, error = chain(&again), "the copy stays"),
            }
            tokio::time::sleep(BEFORE_DROPPING).await;
        };
        tracing::warn!(%shard, %host, message, "the target has no disk space left");
        Error::TargetFull {
            shard,
            host,
            message,
            left,
        }
    }

    /// Drops the copy if the source serves, and this mover still has the shard. New sessions: the
    /// former may be in transactions that have failed.
    async fn drop_copy(&mut self) -> Result<bool, Error> {
        self.new_sessions().await?;
        let now = observe(&self.work.source, &self.work.target, self.work.hold).await?;
        if now.observed.lease != Lease::Ours || now.observed.source != Source::Serving {
            return Ok(false);
        }
        if let Target::Incoming { .. } = now.observed.target {
            self.work.drop_copy().await?;
        }
        Ok(true)
    }

    /// Removes a fence that this mover leaves behind when it gives up before decide, for whatever
    /// reason. It does not use the target, which may be what failed.
    async fn leave_serving(&mut self) {
        let shard = self.work.hold.shard;
        let again = async {
            match self.fenced().await? {
                Some(attempt) => self.unfence(attempt).await,
                None => Ok(()),
            }
        };
        match again.await {
            Err(error) if self.fences > 0 || self.fenced_at.is_some() => {
                tracing::warn!(%shard, error = chain(&error), "the fence, if it stands, could not \
                    be taken back; it ends with its deadline");
            }
            Err(error) => {
                tracing::debug!(%shard, error = chain(&error), "the source cannot be asked");
            }
            Ok(()) => {}
        }
    }

    /// Takes back the fence of this attempt.
    pub(in crate::mover::runner) async fn unfence(&mut self, attempt: i32) -> Result<(), Error> {
        self.fenced_at = None;
        match self.work.unfence(attempt).await {
            // Its deadline has passed and a router was faster. The next observation shows it.
            Err(Error::Superseded { .. }) => Ok(()),
            outcome => outcome,
        }
    }
}
