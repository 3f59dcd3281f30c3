//! The story of one shard's move: connect, acquire the shard, run step after step as
//! [`state::next`](crate::mover::protocol::state::next) decides from the state of the hosts, leave.
//! Move, resume and abort are this story from different starts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use crate::mover::control::context::Context;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Claim, Hold, SessionPurpose};
use crate::mover::control::report::ShardReport;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state;
use crate::mover::protocol::state::{Goal, Phase, Step, Until};
use crate::mover::runner::assignment::{Assignment, Start};
use crate::mover::runner::driver::Driver;
use crate::mover::step::{ShardMove, Timings, undo};
use crate::pg::cause::chain;

/// Works on a shard that needs no shared stream: a blocking move, or the abort of any.
pub(in crate::mover) fn to_end<'a>(
    context: &'a Context,
    part: &'a Assignment,
    goal: Goal,
    heartbeat: &'a Heartbeat,
    jobs: &'a Semaphore,
) -> BoxFuture<'a, Result<ShardReport, Error>> {
    Box::pin(async move {
        let _job = jobs.acquire().await.expect("nobody closes it");
        if context.is_stopped() {
            return Err(Error::Interrupted { shard: part.shard });
        }
        let hold = Hold {
            id: part.id,
            shard: part.shard,
            lease: heartbeat.lease(),
        };
        let work = match (goal, connect(context, part, hold).await) {
            (Goal::Abort, Err(gone @ (Error::Connect { .. } | Error::UnknownHost { .. })))
                if context.hosts.open(&part.target).await.is_err() =>
            {
                return abort_without_target(context, part, hold, gone, heartbeat).await;
            }
            (_, work) => work.map_err(|error| before_claim(part, error))?,
        };
        acquire(&work, heartbeat, part).await?;
        let mut driver = Driver::new(context, work, heartbeat, goal);
        match drive(&mut driver, Until::End).await {
            Ok(report) => {
                driver.end_shard().await;
                driver.finish().await;
                report.ok_or(Error::Interrupted { shard: part.shard })
            }
            Err(error) => Err(driver.give_up(error).await),
        }
    })
}

/// All of a mover's work on one shard. `None` if the caller decides what comes next.
pub(in crate::mover) fn drive<'d>(
    driver: &'d mut Driver<'_>,
    until: Until,
) -> BoxFuture<'d, Result<Option<ShardReport>, Error>> {
    Box::pin(async move {
        let shard = driver.work.hold.shard;
        loop {
            let began = Instant::now();
            let done = match driver.observe().await {
                Err(error) => Err(error),
                Ok(now) => match state::next(driver.own_state(until), now.observed) {
                    Step::Prepare => driver.prepare().await,
                    Step::CatchUp => driver.catch_up(&now.entry).await,
                    Step::Wait { desired } => driver.wait_to_fence(desired).await,
                    Step::Fence => driver.fence().await,
                    Step::CutOver => driver.cut_over(&now.entry).await,
                    Step::Copy { attempt } => driver.copy(&now.entry, attempt).await,
                    Step::FenceAnew { attempt } => driver.fence_anew(attempt).await,
                    Step::DecideAndOpen { attempt } => driver.decide_and_open(attempt).await,
                    Step::Open => driver.open(now.token).await,
                    Step::Publish => driver.publish(&now.entry).await,
                    Step::Unfence { attempt } => driver.unfence(attempt).await,
                    Step::Discard => driver.work.discard().await,
                    Step::Done => return Ok(Some(ShardReport::of(&now.entry))),
                    Step::HandBack => return Ok(None),
                    Step::Interrupted => return Err(Error::Interrupted { shard }),
                    Step::LeaseLost => return Err(Error::LeaseLost { shard }),
                    Step::Gone => return Err(driver.target_lost()),
                    Step::TooLate => return Err(Error::TooLate { shard }),
                    Step::Stuck => {
                        return Err(Error::Stuck {
                            shard,
                            observed: now.observed.to_string(),
                        });
                    }
                },
            };
            match done {
                Ok(()) => driver.connected(),
                Err(error) => driver.open_again(error, began).await?,
            }
        }
    })
}

/// Opens the connections for the work on one shard, and marks them as this mover's.
pub(in crate::mover) async fn connect<'a>(
    context: &'a Context,
    part: &Assignment,
    hold: Hold,
) -> Result<ShardMove<'a>, Error> {
    let open = async |host| Ok::<_, Error>(context.hosts.open(host).await?.for_shard(part.shard));
    let (source, target) = tokio::try_join!(open(&part.source), open(&part.target))?;
    source.sign(hold, SessionPurpose::Shard).await?;
    target.sign(hold, SessionPurpose::Shard).await?;
    Ok(ShardMove {
        hold,
        names: Names {
            schema: context.prefix.schema(part.shard),
        },
        prefix: &context.prefix,
        mode: part.mode,
        epoch: part.epoch,
        rollback_of: part.rollback_of,
        source,
        target,
        options: &context.options,
        observer: &context.observer,
        timings: Timings::default(),
    })
}

/// How long [`reconnect`] tries.
const RECONNECT_FOR: Duration = Duration::from_secs(60);

/// The pause between two tries.
const RECONNECT_PAUSE: Duration = Duration::from_millis(500);

/// As [`connect`], for a shard that this mover holds: a host that restarts, or has no connection
/// left, is tried again for a minute.
pub(in crate::mover) async fn reconnect<'a>(
    context: &'a Context,
    part: &Assignment,
    hold: Hold,
) -> Result<ShardMove<'a>, Error> {
    patiently(context, || connect(context, part, hold)).await
}

/// Does the work again, for a minute, while it fails because of connections.
pub(in crate::mover) async fn patiently<T, F>(
    context: &Context,
    work: impl Fn() -> F,
) -> Result<T, Error>
where
    F: Future<Output = Result<T, Error>>,
{
    let until = Instant::now() + RECONNECT_FOR;
    loop {
        match work().await {
            Err(error)
                if error.is_disconnect() && !context.is_stopped() && Instant::now() < until =>
            {
                tracing::debug!(error = chain(&error), "connecting again");
                tokio::time::sleep(RECONNECT_PAUSE).await;
            }
            ended => return ended,
        }
    }
}

/// What a failure to connect means before the shard is acquired: a new move is in no journal then.
pub(in crate::mover) fn before_claim(part: &Assignment, error: Error) -> Error {
    match part.start {
        Start::Claim => Error::NotBegun {
            shard: part.shard,
            source: Arc::new(error),
        },
        Start::TakeOver => error,
    }
}

/// Acquires the shard: claims it, or continues with what this mover has taken over.
pub(in crate::mover) async fn acquire(
    work: &ShardMove<'_>,
    heartbeat: &Heartbeat,
    part: &Assignment,
) -> Result<(), Error> {
    match part.start {
        Start::Claim => claim(work, heartbeat, part).await,
        Start::TakeOver => {
            heartbeat.hold(work.hold).await?;
            let (shard, id) = (work.hold.shard.as_i32(), work.hold.id.uuid());
            let what = "taking the lease over";
            // Locks: the rows of pgshard.incoming and pgshard.progress, for one statement each;
            // waits for a transaction of the former mover to end.
            let sql = "UPDATE pgshard.incoming SET lease = $3 WHERE shard_id = $1 AND move_id = $2";
            work.target
                .execute(what, sql, &[&shard, id, &work.hold.lease])
                .await?;
            let sql = "UPDATE pgshard.progress SET lease = $3 WHERE shard_id = $1 AND move_id = $2";
            work.target
                .execute(what, sql, &[&shard, id, &work.hold.lease])
                .await
                .map(drop)
        }
    }
}

async fn claim(
    work: &ShardMove<'_>,
    heartbeat: &Heartbeat,
    part: &Assignment,
) -> Result<(), Error> {
    work.at("before claim")?;
    let options = work.options;
    let holder = options.holder.as_str();
    let (mode, lease_for) = (part.mode, options.leases.lease);
    let (fence_at, rollback_of, rollback) = (options.fence_at, part.rollback_of, part.rollback);
    let claim = Claim {
        target: &part.target,
        mode,
        epoch: part.epoch,
        lease_for,
        holder,
        fence_at,
        rollback_of,
        rollback,
    };
    match work.source.claim(work.hold, &claim).await {
        // This mover was suspended, and another one has taken its move over.
        Err(Error::Claimed { shard, .. }) if !work.source.is_entered(work.hold.lease).await? => {
            return Err(Error::LeaseLost { shard });
        }
        claimed => claimed?,
    }
    heartbeat.hold(work.hold).await?;
    work.reached(Phase::Claimed);
    work.at("after claim")
}

/// Aborts the move of a shard when its target is unreachable. The target may be lost permanently,
/// and the shard must be free to be moved elsewhere, and migrated. No mover can open the target
/// without the token of a decision, which will now never be made. If the target comes back, gc
/// drops what the move has built there.
async fn abort_without_target(
    context: &Context,
    part: &Assignment,
    hold: Hold,
    gone: Error,
    heartbeat: &Heartbeat,
) -> Result<ShardReport, Error> {
    let source = context
        .hosts
        .open(&part.source)
        .await?
        .for_shard(part.shard);
    source.sign(hold, SessionPurpose::Shard).await?;
    heartbeat.hold(hold).await?;
    undo::undo_at_source(
        &source,
        hold,
        part.epoch,
        &context.prefix.schema(part.shard),
    )
    .await?;
    tracing::warn!(shard = %part.shard, error = chain(&gone), "aborted; `pgshard moves gc` cleans \
        up at the target");
    context.observer.notify(Event::Reached {
        shard: part.shard,
        phase: Phase::Aborted,
    });
    Ok(ShardReport::of(&source.entry(hold.id, part.shard).await?))
}
