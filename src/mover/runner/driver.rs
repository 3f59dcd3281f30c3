//! The loop of a move: observe, ask [`state::next`](crate::mover::protocol::state::next), run the step, again. Claim, resume and abort are
//! this loop from different starts.

use crate::mover::control::context::stopped;
use crate::mover::protocol::error::chain;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Semaphore, watch};
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::map::{HostName, ShardEpoch};
use crate::shard::ShardId;
use crate::store::MapStore;

use crate::mover::control::context::Context;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Claim, Entry, Hold, Signed};
use crate::mover::control::observe::{Observation, observe};
use crate::mover::control::report::ShardReport;
use crate::mover::control::worker::Claimant;
use crate::mover::preflight::facts::Servers;
use crate::mover::protocol::desired::Asked;
use crate::mover::protocol::desired::{Back, Wanted};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state;
use crate::mover::protocol::state::{Goal, Mode, Own, Step, Stop, Stream, Until};
use crate::mover::protocol::verdict::Audit;
use crate::mover::protocol::worker::Work;
use crate::mover::runner::guard::Guard;
use crate::mover::runner::turn::Turns;
use crate::mover::runner::{audit, group};
use crate::mover::step::{Blueprint, Outcome, ShardMove, Timings, undo};
use crate::mover::stream::follower::Follower;

/// One shard's part of a move, before anybody works on it.
#[derive(Clone, Debug)]
pub(in crate::mover) struct Part {
    pub(in crate::mover) id: MoveId,
    pub(in crate::mover) shard: ShardId,
    pub(in crate::mover) source: HostName,
    pub(in crate::mover) target: HostName,
    pub(in crate::mover) mode: Mode,
    pub(in crate::mover) epoch: ShardEpoch,
    pub(in crate::mover) start: Start,
    /// The move that this one takes back.
    pub(in crate::mover) back_of: Option<MoveId>,
    /// Whether it can be taken back in turn.
    pub(in crate::mover) back: Back,
}

/// What shards have in common that come online from one host to another in one move.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::mover) struct Shared {
    pub(in crate::mover) id: MoveId,
    pub(in crate::mover) source: HostName,
    pub(in crate::mover) target: HostName,
    /// The move that this one takes back.
    pub(in crate::mover) back_of: Option<MoveId>,
}

impl Shared {
    pub(in crate::mover) fn of(part: &Part) -> Shared {
        let Part { id, source, target, back_of, .. } = part.clone();
        Shared { id, source, target, back_of }
    }
}

/// How a mover comes by a shard.
#[derive(Clone, Copy, Debug)]
pub(in crate::mover) enum Start {
    /// The move is new.
    Claim,
    /// The move is in the journal.
    TakeOver,
}

impl Part {
    pub(in crate::mover) fn of(entry: &Entry) -> Part {
        Part {
            id: entry.id,
            shard: entry.shard,
            source: entry.source.clone(),
            target: entry.target.clone(),
            mode: entry.mode,
            epoch: entry.epoch,
            start: Start::TakeOver,
            back_of: entry.back_of,
            back: entry.back,
        }
    }
}

/// Which shards of a move that is in the journal are taken over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::mover) enum Scope {
    /// Those that are named.
    Named,
    /// All that are open by now on the routes of those that are named.
    Routes,
}

/// Works on the parts, which are of one move, and gives each one's end in the order of the shards. Those that go from one host to
/// one other have one mover between them; those that are copied while they are open share what reads their source too.
pub(in crate::mover) async fn work(
    context: &Context,
    parts: Vec<Part>,
    goal: Goal,
    scope: Scope,
) -> Vec<(ShardId, Result<ShardReport, Error>)> {
    let jobs = Semaphore::new(context.options.jobs.max(1));
    let mut routes: BTreeMap<Shared, Vec<Part>> = BTreeMap::new();
    for part in parts {
        routes.entry(Shared::of(&part)).or_default().push(part);
    }
    let routes = routes.into_iter().map(|(shared, parts)| route(context, shared, parts, (goal, scope), &jobs));
    let mut ends: Vec<End> = futures_util::future::join_all(routes).await.into_iter().flatten().collect();
    ends.sort_by_key(|(shard, _)| *shard);
    ends
}

pub(in crate::mover) type End = (ShardId, Result<ShardReport, Error>);

/// The shards of a move that go from one host to one other, from the sign of life to its end.
async fn route(
    context: &Context,
    shared: Shared,
    parts: Vec<Part>,
    (goal, scope): (Goal, Scope),
    jobs: &Semaphore,
) -> Vec<End> {
    let shards: Vec<ShardId> = parts.iter().map(|part| part.shard).collect();
    let entered = async {
        let heartbeat = enter(context, &shared, &parts).await?;
        let parts = take_route(context, &shared, &heartbeat, parts, scope).await;
        Ok::<_, Error>((heartbeat, parts))
    };
    let (heartbeat, parts) = match entered.await {
        Ok((heartbeat, Ok(parts))) => (heartbeat, parts),
        Ok((heartbeat, Err(error))) => {
            heartbeat.end().await;
            return not_begun(context, &shards, error);
        }
        Err(error) => return not_begun(context, &shards, error),
    };
    // What is asked of the mover of a route is not told to the others.
    let own = Context { stop: watch::Sender::new(context.is_stopped()), ..context.clone() };
    let work = async {
        if goal == Goal::Finish && parts.first().is_some_and(|part| part.mode == Mode::Online) {
            group::work(&own, parts.clone(), &heartbeat).await
        } else {
            singles(&own, &parts, goal, &heartbeat, jobs).await
        }
    };
    let mut work = Box::pin(work);
    let ends = tokio::select! {
        ends = &mut work => ends,
        () = pass_on_stops(context, &own, &heartbeat) => unreachable!("stops are passed on until the work ends"),
    };
    drop(work);
    let ends = obey(context, ends, &parts, &heartbeat, jobs).await;
    if goal == Goal::Abort && shared_a_stream(&parts) {
        // An abort takes each shard back by itself; what they shared is dropped after the last of them.
        tidy_up(context, &shared).await;
    }
    heartbeat.end().await;
    ends
}

fn shared_a_stream(parts: &[Part]) -> bool {
    parts.iter().any(|part| part.mode == Mode::Online)
}

/// Nothing of any shard has begun.
fn not_begun(context: &Context, shards: &[ShardId], error: Error) -> Vec<End> {
    let error = Arc::new(error);
    let end = |shard: &ShardId| {
        let error = match &*error {
            Error::AtWork { id, worker, .. } => Error::AtWork { shard: *shard, id: *id, worker: worker.clone() },
            _ => Error::Group { shard: *shard, source: error.clone() },
        };
        context.observer.tell(Event::Failed { shard: *shard, error: chain(&error) });
        (*shard, Err(error))
    };
    shards.iter().map(end).collect()
}

/// Says that this mover is at work, before it holds anything.
async fn enter(context: &Context, shared: &Shared, parts: &[Part]) -> Result<Heartbeat, Error> {
    let claimant = claimant(context, shared, Uuid::new_v4());
    let session = context.hosts.open(&shared.source).await?;
    for part in parts.iter().take(1) {
        session.sign(Hold { id: part.id, shard: part.shard, lease: claimant.lease }, Signed::Group).await?;
    }
    // What it writes need not be durable: a crash only makes a lease or a fence end sooner.
    session.batch("the heartbeat's settings", "SET synchronous_commit = off").await?;
    Heartbeat::start(session, &claimant, context.options.leases).await
}

fn claimant(context: &Context, shared: &Shared, lease: Uuid) -> Claimant {
    Claimant {
        id: shared.id,
        lease,
        target: shared.target.clone(),
        holder: context.options.holder.clone(),
        work: Work::Move,
    }
}

/// Takes over what is in the journal already, all of it or nothing. Gives the parts to work on.
async fn take_route(
    context: &Context,
    shared: &Shared,
    heartbeat: &Heartbeat,
    parts: Vec<Part>,
    scope: Scope,
) -> Result<Vec<Part>, Error> {
    let Some(first) = parts.iter().find(|part| matches!(part.start, Start::TakeOver)) else { return Ok(parts) };
    let source = context.hosts.open(&shared.source).await?;
    let claimant = claimant(context, shared, heartbeat.lease());
    let (entries, former) = heartbeat.take_over(&source, &claimant, first.shard).await?;
    let shards: Vec<ShardId> = entries.iter().map(|entry| entry.shard).collect();
    let own = Hold { id: shared.id, shard: first.shard, lease: heartbeat.lease() };
    source.end_former(own, &shards, &former).await?;
    // A target that cannot be asked is told of when a shard needs it.
    if let Ok(target) = context.hosts.open(&shared.target).await {
        target.end_former(own, &shards, &former).await?;
    }
    let taken = entries.iter().map(Part::of);
    Ok(match scope {
        Scope::Routes => taken.collect(),
        Scope::Named => taken.filter(|one| parts.iter().any(|part| part.shard == one.shard)).collect(),
    })
}

/// Passes on what the whole mover is asked for, and what an operator asks this one for through the journal. Never returns.
async fn pass_on_stops(context: &Context, own: &Context, heartbeat: &Heartbeat) {
    let mut stop = context.stop.subscribe();
    tokio::select! {
        () = stopped(&mut stop) => {}
        wish = heartbeat.asked() => {
            tracing::warn!(by = wish.by, asked = wish.asked.as_str(), "asked to stop");
            context.observer.tell(Event::Asked(wish));
        }
    }
    own.stop();
    std::future::pending().await
}

/// What an operator has asked for while the shards were worked on, done with those that it interrupted.
async fn obey(context: &Context, ends: Vec<End>, parts: &[Part], heartbeat: &Heartbeat, jobs: &Semaphore) -> Vec<End> {
    let Some(wish) = heartbeat.wish() else { return ends };
    let obey_one = |(shard, end): End| {
        let (part, by) = (parts.iter().find(|part| part.shard == shard), wish.by.clone());
        async move {
            match (end, part) {
                (Err(Error::Interrupted { .. }), _) if wish.asked == Asked::Stop => {
                    (shard, Err(Error::Stopped { shard, by }))
                }
                (Err(_), Some(part)) if wish.asked == Asked::Abort => {
                    (shard, abort_one(context, part, by, heartbeat, jobs).await)
                }
                (end, _) => (shard, end),
            }
        }
    };
    let aborted = wish.asked == Asked::Abort && shared_a_stream(parts);
    let ends = futures_util::future::join_all(ends.into_iter().map(obey_one)).await;
    if let (true, Some(part)) = (aborted, parts.first()) {
        tidy_up(context, &Shared::of(part)).await;
    }
    ends
}

async fn abort_one(
    context: &Context,
    part: &Part,
    by: String,
    heartbeat: &Heartbeat,
    jobs: &Semaphore,
) -> Result<ShardReport, Error> {
    let shard = part.shard;
    let known = async {
        let source = context.hosts.open(&part.source).await?;
        Ok::<_, Error>(source.find_entry(part.id, shard).await?.is_some())
    };
    // What was never claimed leaves nothing to abort.
    if !known.await? {
        return Err(Error::Aborted { shard, by });
    }
    let part = Part { start: Start::TakeOver, ..part.clone() };
    match part_to_end(context, &part, Goal::Abort, heartbeat, jobs).await {
        Ok(_) => Err(Error::Aborted { shard, by }),
        Err(Error::TooLate { .. }) => part_to_end(context, &part, Goal::Finish, heartbeat, jobs).await,
        Err(error) => Err(error),
    }
}

/// Each shard by itself, a few at a time.
async fn singles(context: &Context, parts: &[Part], goal: Goal, heartbeat: &Heartbeat, jobs: &Semaphore) -> Vec<End> {
    let each = parts.iter().map(|part| async move {
        let shard = part.shard;
        let outcome = part_to_end(context, part, goal, heartbeat, jobs).await;
        if let Err(error) = &outcome {
            context.observer.tell(Event::Failed { shard, error: chain(error) });
        }
        (shard, outcome)
    });
    futures_util::future::join_all(each).await
}

/// Drops what the shards of a move that come from one host shared, if all of them have ended.
pub(in crate::mover) async fn tidy_up(context: &Context, shared: &Shared) {
    if let Err(error) = group::tidy_up(context, shared).await {
        tracing::warn!(host = %shared.source, error = chain(&error), "`pgshard moves gc` drops what is left of the stream");
    }
}

pub(in crate::mover) async fn part_to_end(
    context: &Context,
    part: &Part,
    goal: Goal,
    heartbeat: &Heartbeat,
    jobs: &Semaphore,
) -> Result<ShardReport, Error> {
    let _turn = jobs.acquire().await.expect("nobody closes it");
    if context.is_stopped() {
        return Err(Error::Interrupted { shard: part.shard });
    }
    let hold = Hold { id: part.id, shard: part.shard, lease: heartbeat.lease() };
    let work = match (goal, connect(context, part, hold).await) {
        (Goal::Abort, Err(gone @ (Error::Connect { .. } | Error::UnknownHost { .. })))
            if context.hosts.open(&part.target).await.is_err() =>
        {
            return abort_without_target(context, part, hold, gone, heartbeat).await;
        }
        (_, work) => work?,
    };
    begin(&work, heartbeat, part).await?;
    let mut driver = Driver::new(context, work, heartbeat, goal);
    let outcome = driver.run(Until::End).await;
    driver.leave(outcome.as_ref().err()).await;
    outcome?.ok_or(Error::Interrupted { shard: part.shard })
}

/// The connections for the work on one shard, marked as this mover's.
pub(in crate::mover) async fn connect<'a>(
    context: &'a Context,
    part: &Part,
    hold: Hold,
) -> Result<ShardMove<'a>, Error> {
    let open = async |host| Ok::<_, Error>(context.hosts.open(host).await?.for_shard(part.shard));
    let (source, target) = tokio::try_join!(open(&part.source), open(&part.target))?;
    source.sign(hold, Signed::Shard).await?;
    target.sign(hold, Signed::Shard).await?;
    Ok(ShardMove {
        hold,
        names: Names { schema: context.prefix.schema(part.shard) },
        prefix: &context.prefix,
        mode: part.mode,
        epoch: part.epoch,
        back_of: part.back_of,
        source,
        target,
        options: &context.options,
        observer: &context.observer,
        timings: Timings::default(),
    })
}

/// Comes by the shard: claims it, or goes on with what is this mover's by now.
pub(in crate::mover) async fn begin(work: &ShardMove<'_>, heartbeat: &Heartbeat, part: &Part) -> Result<(), Error> {
    match part.start {
        Start::Claim => claim(work, heartbeat, part).await,
        Start::TakeOver => {
            heartbeat.hold(work.hold).await?;
            let (shard, id) = (work.hold.shard.as_i32(), work.hold.id.uuid());
            let what = "taking the lease over";
            // Locks: the rows of pgshard.incoming and pgshard.progress, for one statement each; waits for a transaction of
            // the former mover to end.
            let sql = "UPDATE pgshard.incoming SET lease = $3 WHERE shard_id = $1 AND move_id = $2";
            work.target.execute(what, sql, &[&shard, id, &work.hold.lease]).await?;
            let sql = "UPDATE pgshard.progress SET lease = $3 WHERE shard_id = $1 AND move_id = $2";
            work.target.execute(what, sql, &[&shard, id, &work.hold.lease]).await.map(drop)
        }
    }
}

async fn claim(work: &ShardMove<'_>, heartbeat: &Heartbeat, part: &Part) -> Result<(), Error> {
    work.at("before claim")?;
    let options = work.options;
    let holder = options.holder.as_str();
    let (mode, lease_for) = (part.mode, options.leases.lease);
    let (fence_at, back_of, back) = (options.fence_at, part.back_of, part.back);
    let claim = Claim { target: &part.target, mode, epoch: part.epoch, lease_for, holder, fence_at, back_of, back };
    match work.source.claim(work.hold, &claim).await {
        // It slept meanwhile, and somebody has taken its move over.
        Err(Error::Claimed { shard, .. }) if !work.source.is_entered(work.hold.lease).await? => {
            return Err(Error::LeaseLost { shard });
        }
        claimed => claimed?,
    }
    heartbeat.hold(work.hold).await?;
    work.reached(state::Phase::Claimed);
    work.at("after claim")
}

/// Aborts the move of a shard whose target cannot be asked: it may be gone for good, and the shard must be free to be moved
/// elsewhere, and migrated. Nobody can open the target without the token of a decision that is now never taken; what the
/// move has built there is dropped by gc if the target comes back.
async fn abort_without_target(
    context: &Context,
    part: &Part,
    hold: Hold,
    gone: Error,
    heartbeat: &Heartbeat,
) -> Result<ShardReport, Error> {
    let source = context.hosts.open(&part.source).await?.for_shard(part.shard);
    source.sign(hold, Signed::Shard).await?;
    heartbeat.hold(hold).await?;
    undo::undo_at_source(&source, hold, part.epoch, &context.prefix.schema(part.shard)).await?;
    tracing::warn!(shard = %part.shard, error = chain(&gone), "aborted; `pgshard moves gc` clears up at the target");
    context.observer.tell(Event::Reached { shard: part.shard, phase: state::Phase::Aborted });
    Ok(ShardReport::of(&source.entry(hold.id, part.shard).await?))
}

/// One shard on its way, in the hands of this mover.
pub(in crate::mover) struct Driver<'a> {
    pub(in crate::mover) context: &'a Context,
    pub(in crate::mover) work: ShardMove<'a>,
    pub(in crate::mover) heartbeat: &'a Heartbeat,
    goal: Goal,
    /// Whoever applies the source's changes, if somebody does.
    pub(in crate::mover) follower: Option<&'a Follower>,
    /// The name of the way back's publication and slot, if there is one.
    pub(in crate::mover) way_back: Option<String>,
    /// Whoever looks that the shard is not altered, if somebody does.
    pub(in crate::mover) guard: Option<&'a Guard>,
    /// Whose turn it is to fence, if that is for several to agree on.
    pub(in crate::mover) turns: Option<&'a Turns>,
    /// How often this mover has fenced.
    pub(in crate::mover) fences: u32,
    /// The attempt behind whose fence it has looked, online, and found nothing changed. No other is decided.
    pub(in crate::mover) looked: Option<i32>,
    /// How often this mover has built the target anew because somebody altered the shard.
    rebuilds: u32,
    /// What this mover has built the target from, if it has.
    pub(in crate::mover) built: Option<Blueprint>,
    /// The servers that were compared, if this mover has done that.
    pub(in crate::mover) verified_on: Option<Servers>,
    /// When the pause began.
    pub(in crate::mover) fenced_at: Option<Instant>,
    /// How long it lasted, once it is over.
    pause: Option<Duration>,
    /// Since when deciding or opening has failed for a reason that may pass.
    pub(in crate::mover) failing_since: Option<Instant>,
    /// The target as it is before it opens, for the audit.
    pub(in crate::mover) unopened: Option<audit::Target>,
    /// The audit that is to be run once this mover has left the shard.
    pub(in crate::mover) audit: Option<audit::Begun>,
}

/// A shard whose tables are altered more often than this while it is moved is left alone.
const REBUILDS_MAX: u32 = 3;

/// How long a mover that has claimed a shard waits for a migration of it that was there before: longer than most indexes take
/// to build.
const MIGRATION_PATIENCE: Duration = Duration::from_secs(3600);

/// How long deciding and opening are tried. A shard that is not decided by then is served by its source again; one that
/// is, is left to `resume`, and routers try as well.
const OPEN_FOR: Duration = Duration::from_secs(10);

impl<'a> Driver<'a> {
    pub(in crate::mover) fn new(
        context: &'a Context,
        work: ShardMove<'a>,
        heartbeat: &'a Heartbeat,
        goal: Goal,
    ) -> Driver<'a> {
        Driver {
            context,
            work,
            heartbeat,
            goal,
            follower: None,
            way_back: None,
            guard: None,
            turns: None,
            fences: 0,
            looked: None,
            rebuilds: 0,
            built: None,
            verified_on: None,
            fenced_at: None,
            pause: None,
            failing_since: None,
            unopened: None,
            audit: None,
        }
    }

    /// A mover's whole life with one shard, on one page. `None`: what comes next is the caller's.
    pub(in crate::mover) async fn run(&mut self, until: Until) -> Result<Option<ShardReport>, Error> {
        let shard = self.work.hold.shard;
        loop {
            let now = self.look().await?;
            match state::next(self.own(until), now.observed) {
                Step::Prepare => self.prepare().await?,
                Step::CatchUp => self.catch_up(&now.entry).await?,
                Step::Wait { wanted } => self.wait_to_fence(wanted).await?,
                Step::Fence => self.fence().await?,
                Step::CutOver => self.cut_over(&now).await?,
                Step::Copy { attempt } => self.copy(&now, attempt).await?,
                Step::FenceAnew { attempt } => self.fence_anew(attempt).await?,
                Step::DecideAndOpen { attempt } => self.decide_and_open(attempt).await?,
                Step::Open => self.open(&now).await?,
                Step::Publish => self.publish(&now.entry).await?,
                Step::Unfence { attempt } => self.unfence(attempt).await?,
                Step::Discard => self.work.discard().await?,
                Step::Done => return Ok(Some(self.report(&now.entry))),
                Step::HandBack => return Ok(None),
                Step::Interrupted => return Err(Error::Interrupted { shard }),
                Step::LeaseLost => return Err(Error::LeaseLost { shard }),
                Step::Gone => return Err(self.gone()),
                Step::TooLate => return Err(Error::TooLate { shard }),
                Step::Stuck => return Err(Error::Stuck { shard, observed: now.observed.to_string() }),
            }
        }
    }

    /// What both hosts say now.
    async fn look(&mut self) -> Result<Observation, Error> {
        let shard = self.work.hold.shard;
        if self.heartbeat.is_lost(shard) {
            return Err(Error::LeaseLost { shard });
        }
        let now = observe(&self.work.source, &self.work.target, self.work.hold).await?;
        if let (None, Some(ago)) = (self.fenced_at, now.fenced_for) {
            self.fenced_at = Instant::now().checked_sub(ago);
        }
        Ok(now)
    }

    /// What this mover knows of itself.
    fn own(&self, until: Until) -> Own {
        Own {
            goal: self.goal,
            until,
            stop: if self.context.is_stopped() { Stop::Asked } else { Stop::No },
            wanted: self.heartbeat.wanted(self.work.hold.shard),
            stream: self.follower.map_or(Stream::Off, |_| Stream::On { looked: self.looked }),
        }
    }

    /// Builds the target and the signpost.
    async fn prepare(&mut self) -> Result<(), Error> {
        if self.work.mode == Mode::Online {
            self.after_migrations().await?;
        }
        self.built = Some(self.work.prepare().await?);
        Ok(())
    }

    /// Waits until no migration holds the shard that had it before the claim: what is built would lack what it does, which an
    /// online move notices at its end only. Those that come now are refused.
    ///
    /// Locks: the row of pgshard.shard, for one statement that does not wait.
    async fn after_migrations(&self) -> Result<(), Error> {
        let (shard, until) = (self.work.hold.shard, Instant::now() + MIGRATION_PATIENCE);
        let what = "waiting for a migration of the shard to end";
        let sql = "SELECT FROM pgshard.shard WHERE shard_id = $1 FOR NO KEY UPDATE NOWAIT";
        let mut told = false;
        loop {
            let error = match self.work.source.rows(what, sql, &[&shard.as_i32()]).await {
                Ok(_) => return Ok(()),
                Err(error) => error,
            };
            let held = matches!(&error, Error::Database { source, .. } if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE));
            if !held || Instant::now() > until {
                return Err(error);
            }
            if self.context.is_stopped() {
                return Err(Error::Interrupted { shard });
            }
            if self.heartbeat.is_lost(shard) {
                return Err(Error::LeaseLost { shard });
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(%shard, "{what}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Waits while the fence is held back. That can be for hours.
    async fn wait_to_fence(&self, wanted: Wanted) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        tracing::info!(%shard, wanted = wanted.as_str(), "waiting before the fence");
        self.work.observer.tell(Event::Waits { shard, wanted });
        let mut wishes = self.heartbeat.wishes();
        let told = async {
            // An error means that the heartbeat is gone, and with it the lease.
            let _ = wishes.wait_for(|of| of.get(&shard).copied().unwrap_or_default() == Wanted::Go).await;
            Ok(())
        };
        self.abide(told).await
    }

    async fn fence(&mut self) -> Result<(), Error> {
        let before = Instant::now();
        self.fences += 1;
        self.failing_since = None;
        match self.work.swap(&self.work.source, Uuid::new_v4()).await {
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
                if self.fences >= self.context.options.fence_attempts {
                    return Err(Error::GaveUp { shard, attempts: self.fences, blockers: reason });
                }
                self.context.observer.tell(Event::FenceRetried { shard, attempt: self.fences, reason });
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
        self.context.observer.tell(Event::FenceRetried { shard, attempt: self.fences, reason: what });
        self.built = Some(self.work.prepare().await?);
        Ok(())
    }

    /// The copy, or until the lease is lost or a stop is asked for.
    async fn copy(&mut self, now: &Observation, attempt: i32) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        let mut stop = self.context.stop.subscribe();
        let limit = self.context.options.pause_max;
        let until = self.fenced_at.unwrap_or_else(Instant::now) + limit;
        let until = tokio::time::Instant::from_std(until);
        let outcome = tokio::select! {
            outcome = self.work.copy(&now.entry, attempt, self.built.as_ref()) => outcome,
            () = self.heartbeat.lost(shard) => return Err(Error::LeaseLost { shard }),
            () = stopped(&mut stop) => Err(Error::Interrupted { shard }),
            // A server that hangs answers no question and breaks no connection; the heartbeat would keep its shard closed.
            () = tokio::time::sleep_until(until) => Err(Error::PauseTooLong { shard, limit }),
        };
        match outcome {
            Ok(Outcome::Copied) => Ok(()),
            Ok(Outcome::Blocked(locks)) => {
                self.unfence(attempt).await?;
                self.again(locks.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")).await
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
    pub(in crate::mover) fn look_again(&mut self, reason: String) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        tracing::info!(%shard, reason, "looking again");
        self.fences += 1;
        if self.fences < self.context.options.fence_attempts * 2 {
            return Ok(());
        }
        Err(Error::GaveUp { shard, attempts: self.fences, blockers: reason })
    }

    /// The end of this mover's work with the shard, good or bad: a shard that it gives up is served, and the lease is free.
    pub(in crate::mover) async fn leave(&mut self, error: Option<&Error>) {
        if error.is_some() {
            // After a lost lease too: if only our connections are gone, nobody else serves the shard again before the
            // deadline. If somebody has taken over, both this and the release name a lease that is no longer there.
            self.leave_serving().await;
        }
        self.heartbeat.let_go(self.work.hold.shard);
        let words = error.map(|error| chain(error));
        // The lease is a courtesy by now: the shard is out of this mover's hands either way.
        if let Err(unreleased) = self.work.source.release(self.work.hold, words.as_deref()).await {
            tracing::debug!(error = %unreleased, "the lease could not be given back; it ends by itself");
        }
    }

    /// Takes back a fence that this mover leaves behind when it gives up before decide, whatever it gave up for. On a new
    /// connection: the old one may be in the midst of something. The target is not asked, it may be what failed.
    async fn leave_serving(&mut self) {
        let (shard, hold) = (self.work.hold.shard, self.work.hold);
        let again = async {
            self.work.source = self.context.hosts.open(&self.work.source.host).await?.for_shard(shard);
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

    pub(in crate::mover) async fn unfence(&mut self, attempt: i32) -> Result<(), Error> {
        self.fenced_at = None;
        match self.work.unfence(attempt).await {
            // Its deadline passed and a router was first. The next look tells.
            Err(Error::Superseded { .. }) => Ok(()),
            outcome => outcome,
        }
    }

    async fn decide_and_open(&mut self, attempt: i32) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        if let Some(breach) = self.follower.and_then(|follower| follower.breach(shard)) {
            self.unfence(attempt).await?;
            return Err(Error::Stuck { shard, observed: breach });
        }
        let decided = self.work.decide_and_open(attempt).await;
        self.ended(decided).await
    }

    /// How deciding has ended.
    pub(in crate::mover) async fn ended(&mut self, decided: Result<(), Error>) -> Result<(), Error> {
        match decided {
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

    /// The target has lost what this mover has put there.
    fn gone(&self) -> Error {
        let reason = "its copy is gone from the target: resume the move".to_owned();
        Error::Superseded { host: self.work.target.host.clone(), shard: self.work.hold.shard, reason }
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
                let source = self.context.hosts.open(&self.work.source.host).await?.for_shard(shard);
                let target = self.context.hosts.open(&self.work.target.host).await?.for_shard(shard);
                source.sign(self.work.hold, Signed::Shard).await?;
                target.sign(self.work.hold, Signed::Shard).await?;
                Ok::<_, Error>((source, target))
            };
            match opened.await {
                Ok(sessions) => {
                    (self.work.source, self.work.target) = sessions;
                    return Ok(());
                }
                Err(_) if Instant::now() < until && !self.heartbeat.is_lost(shard) => {}
                Err(_) => return Err(error),
            }
        }
    }

    fn opened(&mut self) {
        let pause = self.fenced_at.map(|at| at.elapsed()).unwrap_or_default();
        self.pause = Some(pause);
        self.work.reached(state::Phase::Opened);
        let (shard, host) = (self.work.hold.shard, self.work.target.host.clone());
        self.context.observer.tell(Event::Opened { shard, host, pause });
    }

    async fn publish(&mut self, entry: &Entry) -> Result<(), Error> {
        if let Some(follower) = self.follower {
            // The records by which it follows go with what comes now: it would take that for another mover's work, and warn.
            follower.detach(self.work.hold.shard).await;
        }
        let store: &dyn MapStore = &*self.context.store;
        self.work.publish(store).await?;
        // Before anybody may write to the old copy.
        let verdict = match self.work.mode {
            // It was compared behind its fence, or it would not have opened.
            Mode::Blocking => Audit::of(Vec::new(), Vec::new()),
            Mode::Online => match audit::begin(self.context, &self.work, self.unopened.take(), entry.attempt).await {
                Ok(begun) => {
                    self.audit = Some(begun);
                    Audit::under_way()
                }
                Err(why) => Audit::left_out(why),
            },
        };
        self.work.settle(self.built.as_ref().map(|built| &built.creation)).await?;
        // Where somebody else has opened it, the pause was over before we looked.
        let pause = self.pause.or_else(|| self.fenced_at.map(|at| at.elapsed()));
        self.work.keep(pause, verdict).await
    }

    fn report(&self, entry: &Entry) -> ShardReport {
        ShardReport::of(entry)
    }
}

/// 50 ms, doubling up to two seconds, each between half and whole: two movers that met do not meet again.
pub(in crate::mover) fn back_off(tries: u32) -> Duration {
    let whole = 50u64.saturating_mul(1 << tries.min(6)).min(2_000);
    Duration::from_millis(fastrand::u64(whole / 2..=whole))
}
