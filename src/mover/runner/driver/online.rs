//! The steps of a shard that is open while it is copied: catch up, wait for the operator, cut over.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

use crate::mover::control::journal::Entry;
use crate::mover::preflight::facts;
use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::runner::common_point;
use crate::mover::runner::cutover::{CutOver, Outcome, pass_a_watermark};
use crate::mover::runner::driver::Driver;

/// How long a mover waits before each attempt to fence until the stream is close behind. After that
/// it gives up.
const CLOSE_WITHIN: Duration = Duration::from_secs(600);

impl Driver<'_> {
    /// Brings the target to the state that the source had a moment ago, and compares the two.
    pub(in crate::mover::runner) fn catch_up<'a>(
        &'a mut self,
        entry: &'a Entry,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            let began = Instant::now();
            let servers = facts::servers(&self.work.source, &self.work.target).await?;
            // What another mover has compared may have been altered since, unobserved.
            let compared_on = self.remembered.compared_on.take();
            let before = compared_on.or(self.remembered.comparing_on.take());
            if before.is_none_or(|before| before != servers) {
                self.work.verify_anew().await?;
            }
            // A step that fails because a session was cut continues with what is not compared yet.
            self.remembered.comparing_on = Some(servers.clone());
            self.patience()
                .wait_for(pass_a_watermark(&self.work, self.online()?.follower))
                .await?;
            let began = self.work.timings.since("catch_up", began);
            self.know_blueprint(entry).await?;
            let (online, built) = (
                self.online()?,
                self.built.as_ref().ok_or_else(|| self.unfollowed())?,
            );
            let permit = online.permits.background_permit().await;
            self.work
                .caught_up(&built.creation, online.follower)
                .await?;
            // Not earlier: if a table gets its replica identity later than it is published, it
            // would refuse what the stream brings.
            if let Some(stream) = online.reverse {
                self.work.prepare_back(stream).await?;
            }
            drop(permit);
            let compared = common_point::shard(
                &self.work,
                &self.context.hosts,
                online.follower,
                online.permits,
            );
            self.patience().wait_for(compared).await?;
            self.work.timings.since("verify", began);
            self.work.at("after verify")?;
            // As late as possible while the shard is open: the views show the data of this time.
            let permit = online.permits.background_permit().await;
            self.patience()
                .wait_for(self.work.fill_open(&built.creation))
                .await?;
            drop(permit);
            self.work.ready().await?;
            self.remembered.compared_on = Some(servers);
            Ok(())
        })
    }

    /// Waits while the fence is held back, which can take hours.
    pub(in crate::mover::runner) async fn wait_to_fence(
        &self,
        desired: DesiredState,
    ) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        tracing::info!(%shard, desired = desired.as_str(), "waiting before the fence");
        self.context
            .observer
            .notify(Event::Waits { shard, desired });
        let mut desired = self.heartbeat.desired_states();
        let told = async {
            // An error means that the heartbeat is gone, and with it the lease.
            let _ = desired
                .wait_for(|all| all.get(&shard).copied().unwrap_or_default() == DesiredState::Run)
                .await;
            Ok(())
        };
        self.patience().wait_for(told).await
    }

    /// One attempt to close the shard, apply the last changes, and open it at the target.
    pub(in crate::mover::runner) async fn cut_over(&mut self, entry: &Entry) -> Result<(), Error> {
        self.fences += 1;
        self.failing_since = None;
        self.know_blueprint(entry).await?;
        self.close().await?;
        let patience = self.patience();
        let (online, built) = (
            self.online()?,
            self.built.as_ref().ok_or_else(|| self.unfollowed())?,
        );
        let compared_on = self.remembered.compared_on.as_ref();
        let mut cut_over = CutOver::new(&self.work, online, compared_on, built, patience);
        let outcome = cut_over.run().await;
        let done = cut_over.done();
        self.fenced_at = done.fenced_at.or(self.fenced_at);
        (self.remembered.looked, self.remembered.unopened) = (done.looked, done.unopened);
        match outcome? {
            Outcome::Decided(decided) => self.ended(decided).await,
            Outcome::Refused(reason) => self.look_again(reason),
            Outcome::NotFenced(reason) => self.retry_fence(reason).await,
            Outcome::Held { attempt, reason } => {
                self.unfence(attempt).await?;
                self.retry_fence(reason).await
            }
            Outcome::Broken { attempt, error } => {
                self.unfence(attempt).await?;
                Err(error)
            }
        }
    }

    /// The shard is fenced, and this mover does not know how far it was: it is served again, and
    /// fenced later.
    pub(in crate::mover::runner) async fn fence_anew(&mut self, attempt: i32) -> Result<(), Error> {
        self.unfence(attempt).await?;
        self.retry_fence("it is unknown what was prepared before the fence".to_owned())
            .await
    }

    /// Waits, while the shard is open, until the stream is close behind: the rest is applied while
    /// the shard is closed.
    async fn close(&self) -> Result<(), Error> {
        let (follower, lag_max) = (self.online()?.follower, self.work.options.lag_max);
        let until = Instant::now() + CLOSE_WITHIN;
        loop {
            let began = Instant::now();
            self.patience()
                .wait_for(pass_a_watermark(&self.work, follower))
                .await?;
            if began.elapsed() <= lag_max {
                return Ok(());
            }
            if Instant::now() >= until {
                let blockers = format!(
                    "the target stays further behind than {} ms",
                    lag_max.as_millis()
                );
                return Err(Error::GaveUp {
                    shard: self.work.hold.shard,
                    attempts: self.fences,
                    blockers,
                });
            }
        }
    }

    /// Finds out what the target was built from, if another mover has built it.
    async fn know_blueprint(&mut self, entry: &Entry) -> Result<(), Error> {
        if self.built.is_none() {
            self.built = Some(self.work.blueprint(entry).await?);
        }
        Ok(())
    }
}
