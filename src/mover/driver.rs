//! The loop of a move: observe, ask [`state::next`](super::state::next), run the step, again. Claim, resume and abort are
//! this loop from different starts.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::watch;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::map::{HostName, ShardEpoch};
use crate::shard::ShardId;
use crate::store::MapStore;

use super::error::Error;
use super::heartbeat::{self, Heartbeat};
use super::journal::{Claim, Entry, Hold, Mode};
use super::names::{MoveId, Names};
use super::observe::{Observation, observe};
use super::options::{Event, Options};
use super::session::Session;
use super::state::{self, Goal, Step};
use super::step::{Blueprint, Outcome, ShardMove, Timings, undo};
use super::{Mover, ShardReport};

/// One shard's part of a move, before anybody works on it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) id: MoveId,
    pub(super) shard: ShardId,
    pub(super) source: HostName,
    pub(super) target: HostName,
    pub(super) epoch: ShardEpoch,
    pub(super) start: Start,
}

/// How a mover comes by a shard.
#[derive(Clone, Copy, Debug)]
pub(super) enum Start {
    /// The move is new.
    Claim(Mode),
    /// The move is in the journal.
    TakeOver,
}

impl Part {
    pub(super) fn of(entry: &Entry) -> Part {
        Part {
            id: entry.id,
            shard: entry.shard,
            source: entry.source.clone(),
            target: entry.target.clone(),
            epoch: entry.epoch,
            start: Start::TakeOver,
        }
    }
}

/// Works on the parts, `options.jobs` at a time, and gives each one's end in the order of the shards.
pub(super) async fn work(mover: &Mover, parts: Vec<Part>, goal: Goal) -> Vec<(ShardId, Result<ShardReport, Error>)> {
    let jobs = mover.options.jobs.max(1);
    let each = stream::iter(parts).map(|part| async move {
        let shard = part.shard;
        let outcome = part_to_end(mover, &part, goal).await;
        if let Err(error) = &outcome {
            mover.observer.tell(Event::Failed { shard, error: chain(error) });
        }
        (shard, outcome)
    });
    let mut ends: Vec<_> = each.buffer_unordered(jobs).collect().await;
    ends.sort_by_key(|(shard, _)| *shard);
    ends
}

/// An error with its causes, on one line.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}

async fn part_to_end(mover: &Mover, part: &Part, goal: Goal) -> Result<ShardReport, Error> {
    if mover.is_stopped() {
        return Err(Error::Interrupted { shard: part.shard });
    }
    let hold = Hold { id: part.id, shard: part.shard, lease: Uuid::new_v4() };
    let open = async |host| Ok::<_, Error>(mover.hosts.open(host).await?.for_shard(part.shard));
    let target = match (goal, open(&part.target).await) {
        (Goal::Abort, Err(gone @ (Error::Connect { .. } | Error::UnknownHost { .. }))) => {
            return abort_without_target(mover, part, hold, gone).await;
        }
        (_, target) => target?,
    };
    let (source, beating) = tokio::try_join!(open(&part.source), open(&part.source))?;
    for session in [&source, &target, &beating] {
        sign(session, hold).await?;
    }
    let work = ShardMove {
        hold,
        names: Names { schema: mover.prefix.schema(part.shard) },
        prefix: &mover.prefix,
        epoch: part.epoch,
        source,
        target,
        options: &mover.options,
        observer: &mover.observer,
        timings: Timings::default(),
    };
    match part.start {
        Start::Claim(mode) => claim(&work, &beating, part, mode, &mover.options).await?,
        Start::TakeOver => {
            take_over(&[&work.source, &work.target], &beating, hold, &mover.options).await?;
            // Locks: the row of pgshard.incoming, for this one statement; waits for a transaction of the former mover to
            // end.
            let sql = "UPDATE pgshard.incoming SET lease = $3 WHERE shard_id = $1 AND move_id = $2";
            let (shard, id) = (hold.shard.as_i32(), hold.id.uuid());
            work.target.execute("taking the lease over", sql, &[&shard, id, &hold.lease]).await?;
        }
    }
    let heartbeat = Heartbeat::start(beating, hold, mover.options.leases);
    let mut driver = Driver {
        mover,
        work,
        heartbeat,
        goal,
        fences: 0,
        rebuilds: 0,
        built: None,
        fenced_at: None,
        pause: None,
        failing_since: None,
    };
    let outcome = driver.run().await;
    let error = outcome.as_ref().err().map(|error| chain(error));
    if outcome.is_err() {
        // After a lost lease too: if only our connections are gone, nobody else serves the shard again before the
        // deadline. If somebody has taken over, both this and the release name a lease that is no longer there.
        driver.leave_serving().await;
    }
    // The lease is a courtesy by now: the shard is out of this mover's hands either way.
    if let Err(unreleased) = driver.work.source.release(hold, error.as_deref()).await {
        tracing::debug!(error = %unreleased, "the lease could not be given back; it ends by itself");
    }
    outcome
}

/// Marks the session as this mover's, for whoever takes the move over.
async fn sign(session: &Session, hold: Hold) -> Result<(), Error> {
    let name = format!("{}{}", signature(hold), hold.lease.simple().to_string().split_at(8).0);
    session.execute("naming the session", "SELECT set_config('application_name', $1, false)", &[&name]).await.map(drop)
}

fn signature(hold: Hold) -> String {
    format!("pgshard {}/{}/", hold.id, hold.shard)
}

async fn claim(
    work: &ShardMove<'_>,
    beating: &Session,
    part: &Part,
    mode: Mode,
    options: &Options,
) -> Result<(), Error> {
    work.at("before claim")?;
    let holder = options.holder.as_str();
    let claim = Claim { target: &part.target, mode, epoch: part.epoch, lease_for: options.leases.lease, holder };
    work.source.claim(work.hold, &claim).await?;
    // After the claim: before it, one that comes too late would keep the lock from the one that was first.
    heartbeat::lock_soon(beating, work.hold).await?;
    work.reached(state::Phase::Claimed);
    work.at("after claim")
}

/// Aborts the move of a shard whose target cannot be asked: it may be gone for good, and the shard must be free to be moved
/// elsewhere, and migrated. Nobody can open the target without the token of a decision that is now never taken; what the
/// move has built there is dropped by gc if the target comes back.
async fn abort_without_target(mover: &Mover, part: &Part, hold: Hold, gone: Error) -> Result<ShardReport, Error> {
    let (source, beating) = (mover.hosts.open(&part.source).await?, mover.hosts.open(&part.source).await?);
    let (source, beating) = (source.for_shard(part.shard), beating.for_shard(part.shard));
    for session in [&source, &beating] {
        sign(session, hold).await?;
    }
    take_over(&[&source], &beating, hold, &mover.options).await?;
    undo::undo_at_source(&source, hold, part.epoch, &mover.prefix.schema(part.shard)).await?;
    tracing::warn!(shard = %part.shard, error = chain(&gone), "aborted; `pgshard moves gc` clears up at the target");
    mover.observer.tell(Event::Reached { shard: part.shard, phase: state::Phase::Aborted });
    let entries = source.entries(Some(hold.id)).await?;
    let entry = entries.iter().find(|entry| entry.shard == part.shard).ok_or(Error::NoSuchMove { id: hold.id })?;
    Ok(ShardReport::of(entry))
}

/// Makes the move ours, and ends what its former mover still has open on these hosts: a transaction of a paused mover would
/// keep rows locked for as long as it sleeps.
async fn take_over(sessions: &[&Session], beating: &Session, hold: Hold, options: &Options) -> Result<(), Error> {
    heartbeat::take_over(beating, hold, options.leases, &options.holder).await?;
    for session in sessions {
        // Locks: none. Ends only sessions of this very shard's move under another lease, of the same role.
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE starts_with(application_name, $1) AND right(application_name, 8) <> $2
               AND usename = current_user AND datname = current_database()";
        let lease = hold.lease.simple().to_string();
        session.rows("ending the former mover's sessions", sql, &[&signature(hold), &&lease[..8]]).await?;
    }
    // A mover that was paused had it until just now. Without it, the next one to come would think that nobody lives.
    heartbeat::lock_soon(beating, hold).await
}

struct Driver<'a> {
    mover: &'a Mover,
    work: ShardMove<'a>,
    heartbeat: Heartbeat,
    goal: Goal,
    /// How often this mover has fenced.
    fences: u32,
    /// How often this mover has built the target anew because somebody altered the shard.
    rebuilds: u32,
    /// What this mover has built the target from, if it has.
    built: Option<Blueprint>,
    /// When the pause began.
    fenced_at: Option<Instant>,
    /// How long it lasted, once it is over.
    pause: Option<Duration>,
    /// Since when deciding or opening has failed for a reason that may pass.
    failing_since: Option<Instant>,
}

/// A shard whose tables are altered more often than this while it is moved is left alone.
const REBUILDS_MAX: u32 = 3;

/// How long deciding and opening are tried. A shard that is not decided by then is served by its source again; one that
/// is, is left to `resume`, and routers try as well.
const OPEN_FOR: Duration = Duration::from_secs(10);

impl Driver<'_> {
    /// A mover's whole life with one shard, on one page.
    async fn run(&mut self) -> Result<ShardReport, Error> {
        loop {
            if self.heartbeat.is_lost() {
                return Err(Error::LeaseLost { shard: self.work.hold.shard });
            }
            let now = observe(&self.work.source, &self.work.target, self.work.hold).await?;
            // Not even "done" is this mover's to say when another has done it.
            if now.entry.lease != self.work.hold.lease {
                return Err(Error::LeaseLost { shard: self.work.hold.shard });
            }
            if let (None, Some(ago)) = (self.fenced_at, now.fenced_for) {
                self.fenced_at = Instant::now().checked_sub(ago);
            }
            let step = state::next(self.goal, now.observed);
            if self.mover.is_stopped() && !matches!(step, Step::Open | Step::Publish | Step::Done) {
                return self.interrupted(now.observed).await;
            }
            match step {
                Step::Prepare => self.built = Some(self.work.prepare().await?),
                Step::Fence => self.fence().await?,
                Step::Copy { attempt } => self.copy(&now, attempt).await?,
                Step::DecideAndOpen { attempt } => self.decide_and_open(attempt).await?,
                Step::Open => self.open(&now).await?,
                Step::Publish => self.publish().await?,
                Step::Unfence { attempt } => self.unfence(attempt).await?,
                Step::Discard => self.work.discard().await?,
                Step::Done => return Ok(self.report(&now.entry)),
                Step::TooLate => return Err(Error::TooLate { shard: self.work.hold.shard }),
                Step::Stuck => {
                    let observed = now.observed.to_string();
                    return Err(Error::Stuck { shard: self.work.hold.shard, observed });
                }
            }
        }
    }

    async fn fence(&mut self) -> Result<(), Error> {
        let before = Instant::now();
        self.fences += 1;
        self.failing_since = None;
        match self.work.swap().await {
            Ok(_) => {
                self.fenced_at = Some(before);
                Ok(())
            }
            // A table that came after the signpost was built; if it is anything else, the next look tells.
            Err(Error::Superseded { reason, .. }) => self.rebuild(reason).await,
            // A migration holds the shard's row to its end. Nothing was fenced, so nobody waits for us meanwhile.
            Err(Error::Database { source, .. }) if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                let shard = self.work.hold.shard;
                let reason = "a migration, or another transaction, holds the shard's row in pgshard.shard".to_owned();
                if self.fences >= self.mover.options.fence_attempts {
                    return Err(Error::GaveUp { shard, attempts: self.fences, blockers: reason });
                }
                self.mover.observer.tell(Event::FenceRetried { shard, attempt: self.fences, reason });
                tokio::time::sleep(back_off(self.fences)).await;
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Builds the target and the signpost anew: somebody altered the shard since.
    async fn rebuild(&mut self, what: String) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        self.rebuilds += 1;
        if self.rebuilds >= REBUILDS_MAX {
            return Err(Error::Altered { shard, what });
        }
        self.mover.observer.tell(Event::FenceRetried { shard, attempt: self.fences, reason: what });
        self.built = Some(self.work.prepare().await?);
        Ok(())
    }

    /// The copy, or until the lease is lost or a stop is asked for.
    async fn copy(&mut self, now: &Observation, attempt: i32) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        let mut stop = self.mover.stop.subscribe();
        let limit = self.mover.options.pause_max;
        let until = self.fenced_at.unwrap_or_else(Instant::now) + limit;
        let until = tokio::time::Instant::from_std(until);
        let outcome = tokio::select! {
            outcome = self.work.copy(&now.entry, attempt, self.built.as_ref()) => outcome,
            () = self.heartbeat.lost() => return Err(Error::LeaseLost { shard }),
            () = stopped(&mut stop) => Err(Error::Interrupted { shard }),
            // A server that hangs answers no question and breaks no connection; the heartbeat would keep its shard closed.
            () = tokio::time::sleep_until(until) => Err(Error::PauseTooLong { shard, limit }),
        };
        match outcome {
            Ok(Outcome::Copied) => Ok(()),
            Ok(Outcome::Blocked(locks)) => {
                self.unfence(attempt).await?;
                let blockers = locks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
                if self.fences >= self.mover.options.fence_attempts {
                    return Err(Error::GaveUp { shard, attempts: self.fences, blockers });
                }
                self.mover.observer.tell(Event::FenceRetried { shard, attempt: self.fences, reason: blockers });
                tokio::time::sleep(back_off(self.fences)).await;
                Ok(())
            }
            Ok(Outcome::Altered(what)) => {
                self.unfence(attempt).await?;
                self.rebuild(what).await
            }
            Err(Error::Superseded { reason, .. }) => self.look_again(reason),
            Err(error) => Err(error),
        }
    }

    /// A host has refused: the fence ran out, or somebody with the token opened the target. The next look tells.
    fn look_again(&mut self, reason: String) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        tracing::info!(%shard, reason, "looking again");
        self.fences += 1;
        if self.fences < self.mover.options.fence_attempts * 2 {
            return Ok(());
        }
        Err(Error::GaveUp { shard, attempts: self.fences, blockers: reason })
    }

    /// Takes back a fence that this mover leaves behind when it gives up before decide, whatever it gave up for. On a new
    /// connection: the old one may be in the midst of something. The target is not asked, it may be what failed.
    async fn leave_serving(&mut self) {
        let (shard, hold) = (self.work.hold.shard, self.work.hold);
        let again = async {
            self.work.source = self.mover.hosts.open(&self.work.source.host).await?.for_shard(shard);
            let sql = "SELECT attempt FROM pgshard.shard
                WHERE shard_id = $1 AND state = 'fenced' AND move_id = $2 AND lease = $3";
            let what = "reading the shard's row";
            let fenced = self.work.source.rows(what, sql, &[&shard.as_i32(), hold.id.uuid(), &hold.lease]).await?;
            match fenced.first() {
                Some(row) => self.unfence(row.get(0)).await,
                None => Ok(()),
            }
        };
        if let Err(error) = again.await {
            tracing::warn!(%shard, error = chain(&error), "the fence could not be taken back; it ends with its deadline");
        }
    }

    async fn unfence(&mut self, attempt: i32) -> Result<(), Error> {
        self.fenced_at = None;
        match self.work.unfence(attempt).await {
            // Its deadline passed and a router was first. The next look tells.
            Err(Error::Superseded { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    async fn decide_and_open(&mut self, attempt: i32) -> Result<(), Error> {
        match self.work.decide_and_open(attempt).await {
            Ok(()) => {
                self.opened();
                Ok(())
            }
            Err(Error::Superseded { reason, .. }) => self.look_again(reason),
            Err(error @ (Error::Failpoint { .. } | Error::LeaseLost { .. })) => Err(error),
            // The outcome is unknown: look again, on new connections.
            Err(error) => self.reconnect(error).await,
        }
    }

    async fn open(&mut self, now: &Observation) -> Result<(), Error> {
        match self.work.finish_open(now.token).await {
            Ok(()) => {
                self.opened();
                Ok(())
            }
            Err(error @ Error::Failpoint { .. }) => Err(error),
            Err(error) => self.reconnect(error).await,
        }
    }

    /// New connections after an error that leaves the outcome unknown, for as long as the shard may be closed. The error
    /// itself once that is over: a target that can be reached but never opened would keep the shard closed for ever.
    async fn reconnect(&mut self, error: Error) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        let until = *self.failing_since.get_or_insert_with(Instant::now) + OPEN_FOR;
        if Instant::now() >= until {
            return Err(error);
        }
        tracing::warn!(%shard, error = chain(&error), "looking again on new connections");
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let opened = async {
                let source = self.mover.hosts.open(&self.work.source.host).await?.for_shard(shard);
                let target = self.mover.hosts.open(&self.work.target.host).await?.for_shard(shard);
                sign(&source, self.work.hold).await?;
                sign(&target, self.work.hold).await?;
                Ok::<_, Error>((source, target))
            };
            match opened.await {
                Ok(sessions) => {
                    (self.work.source, self.work.target) = sessions;
                    return Ok(());
                }
                Err(_) if Instant::now() < until && !self.heartbeat.is_lost() => {}
                Err(_) => return Err(error),
            }
        }
    }

    fn opened(&mut self) {
        let pause = self.fenced_at.map(|at| at.elapsed()).unwrap_or_default();
        self.pause = Some(pause);
        self.work.reached(state::Phase::Opened);
        let (shard, host) = (self.work.hold.shard, self.work.target.host.clone());
        self.mover.observer.tell(Event::Opened { shard, host, pause });
    }

    async fn publish(&mut self) -> Result<(), Error> {
        let store: &dyn MapStore = &*self.mover.store;
        // Where somebody else has opened it, the pause was over before we looked.
        let pause = self.pause.or_else(|| self.fenced_at.map(|at| at.elapsed()));
        self.work.publish(store, pause).await
    }

    /// A stop was asked for: the shard is left as it can be used, and the move as it can be resumed.
    async fn interrupted(&mut self, observed: state::Observed) -> Result<ShardReport, Error> {
        if let state::Source::Fenced { attempt } = observed.source {
            self.unfence(attempt).await?;
        }
        Err(Error::Interrupted { shard: self.work.hold.shard })
    }

    fn report(&self, entry: &Entry) -> ShardReport {
        ShardReport::of(entry)
    }
}

async fn stopped(stop: &mut watch::Receiver<bool>) {
    if stop.wait_for(|stop| *stop).await.is_err() {
        // The mover is gone without having asked: then nothing stops this future but its drop.
        std::future::pending::<()>().await;
    }
}

/// 50 ms, doubling up to two seconds, each between half and whole: two movers that met do not meet again.
fn back_off(tries: u32) -> Duration {
    let whole = 50u64.saturating_mul(1 << tries.min(6)).min(2_000);
    Duration::from_millis(fastrand::u64(whole / 2..=whole))
}
