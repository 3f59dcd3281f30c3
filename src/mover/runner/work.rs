//! A move, route by route: one mover works on all shards that go from one host to one other. It
//! renews its leases, takes over what is in the journal, works, and follows the operator's
//! requests.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::BoxFuture;
use tokio::sync::{Semaphore, watch};
use uuid::Uuid;

use crate::mover::control::context::Context;
use crate::mover::control::context::stopped;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Hold, SessionPurpose};
use crate::mover::control::report::ShardReport;
use crate::mover::protocol::desired::StopKind;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::{Goal, Mode};
use crate::mover::protocol::worker::Claimant;
use crate::mover::protocol::worker::Work;
use crate::mover::runner::assignment::{Assignment, GroupKey, Scope, ShardResult, Start};
use crate::mover::runner::group;
use crate::mover::runner::leftovers::drop_shared_or_warn;
use crate::mover::runner::single;
use crate::pg::cause::chain;
use crate::shard::ShardId;

/// Works on the parts, which belong to one move, and gives each one's end in the order of the
/// shards. One mover works on all that go from one host to one other; those that are copied while
/// they are open also share what reads their source.
pub(in crate::mover) async fn work(
    context: &Context,
    parts: Vec<Assignment>,
    goal: Goal,
    scope: Scope,
) -> Vec<(ShardId, Result<ShardReport, Error>)> {
    let _kept = context.hosts.keep_sessions();
    let jobs = Semaphore::new(context.options.jobs.max(1));
    let mut routes: BTreeMap<GroupKey, Vec<Assignment>> = BTreeMap::new();
    for part in parts {
        routes.entry(GroupKey::of(&part)).or_default().push(part);
    }
    let routes = routes
        .into_iter()
        .map(|(shared, parts)| route(context, shared, parts, (goal, scope), &jobs));
    let mut ends: Vec<ShardResult> = futures_util::future::join_all(routes)
        .await
        .into_iter()
        .flatten()
        .collect();
    ends.sort_by_key(|(shard, _)| *shard);
    ends
}

/// Works on the shards of a move that go from one host to one other, from the first sign of life to
/// their ends.
fn route<'a>(
    context: &'a Context,
    shared: GroupKey,
    parts: Vec<Assignment>,
    (goal, scope): (Goal, Scope),
    jobs: &'a Semaphore,
) -> BoxFuture<'a, Vec<ShardResult>> {
    Box::pin(async move {
        let all = parts.clone();
        let entered = async {
            let heartbeat = enter(context, &shared, &parts).await?;
            let parts = take_route(context, &shared, &heartbeat, parts, scope).await;
            Ok::<_, Error>((heartbeat, parts))
        };
        let (heartbeat, parts) = match entered.await {
            Ok((heartbeat, Ok(parts))) => (heartbeat, parts),
            Ok((heartbeat, Err(error))) => {
                heartbeat.end().await;
                return not_begun(context, &all, error);
            }
            Err(error) => return not_begun(context, &all, error),
        };
        // A request to the mover of one route does not concern the others.
        let own = Context {
            stop: watch::Sender::new(context.is_stopped()),
            ..context.clone()
        };
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
            () = pass_on_stops(context, &own, &heartbeat) => unreachable!("stops are passed on \
                until the work ends"),
        };
        drop(work);
        let ends = apply_stop_request(context, ends, &parts, &heartbeat, jobs).await;
        if goal == Goal::Abort && shared_a_stream(&parts) {
            // An abort takes back each shard by itself; what they shared is dropped after the last
            // of them.
            drop_shared_or_warn(context, &shared).await;
        }
        heartbeat.end().await;
        ends
    })
}

fn shared_a_stream(parts: &[Assignment]) -> bool {
    parts.iter().any(|part| part.mode == Mode::Online)
}

/// The ends of shards of which none has begun.
fn not_begun(context: &Context, parts: &[Assignment], error: Error) -> Vec<ShardResult> {
    let error = Arc::new(error);
    let end = |part: &Assignment| {
        let (shard, source) = (part.shard, error.clone());
        let error = match (&*error, part.start) {
            (Error::AtWork { id, worker, .. }, _) => Error::AtWork {
                shard,
                id: *id,
                worker: worker.clone(),
            },
            (_, Start::Claim) => Error::NotBegun { shard, source },
            (_, Start::TakeOver) => Error::Group { shard, source },
        };
        context.observer.notify(Event::Failed {
            shard,
            error: chain(&error),
        });
        (shard, Err(error))
    };
    parts.iter().map(end).collect()
}

/// Records that this mover is at work, before it holds anything.
async fn enter(
    context: &Context,
    shared: &GroupKey,
    parts: &[Assignment],
) -> Result<Heartbeat, Error> {
    let claimant = claimant(context, shared, Uuid::new_v4());
    let session = context.hosts.open(&shared.source).await?;
    for part in parts.iter().take(1) {
        session
            .sign(
                Hold {
                    id: part.id,
                    shard: part.shard,
                    lease: claimant.lease,
                },
                SessionPurpose::Group,
            )
            .await?;
    }
    Heartbeat::start(&context.hosts, session, &claimant, context.options.leases).await
}

fn claimant(context: &Context, shared: &GroupKey, lease: Uuid) -> Claimant {
    Claimant {
        id: shared.id,
        lease,
        target: shared.target.clone(),
        holder: context.options.holder.clone(),
        work: Work::Move,
    }
}

/// Takes over what is in the journal already, all of it or nothing. Returns the parts to work on.
async fn take_route(
    context: &Context,
    shared: &GroupKey,
    heartbeat: &Heartbeat,
    parts: Vec<Assignment>,
    scope: Scope,
) -> Result<Vec<Assignment>, Error> {
    let Some(first) = parts
        .iter()
        .find(|part| matches!(part.start, Start::TakeOver))
    else {
        return Ok(parts);
    };
    let source = context.hosts.open(&shared.source).await?;
    let claimant = claimant(context, shared, heartbeat.lease());
    let (entries, former) = heartbeat.take_over(&source, &claimant, first.shard).await?;
    let shards: Vec<ShardId> = entries.iter().map(|entry| entry.shard).collect();
    let own = Hold {
        id: shared.id,
        shard: first.shard,
        lease: heartbeat.lease(),
    };
    source.end_former(own, &shards, &former).await?;
    // If the target is unreachable, a shard that needs it reports that.
    if let Ok(target) = context.hosts.open(&shared.target).await {
        target.end_former(own, &shards, &former).await?;
    }
    let taken = entries.iter().map(Assignment::of);
    Ok(match scope {
        Scope::Routes => taken.collect(),
        Scope::Named => taken
            .filter(|one| parts.iter().any(|part| part.shard == one.shard))
            .collect(),
    })
}

/// Passes on the requests to the whole mover, and an operator's requests to this one in the
/// journal. Never returns.
async fn pass_on_stops(context: &Context, own: &Context, heartbeat: &Heartbeat) {
    let mut stop = context.stop.subscribe();
    tokio::select! {
        () = stopped(&mut stop) => {}
        stop_request = heartbeat.requested_stop() => {
            tracing::warn!(by = stop_request.by, asked = stop_request.asked.as_str(), "asked to \
                stop");
            context.observer.notify(Event::Asked(stop_request));
        }
    }
    own.stop();
    std::future::pending().await
}

/// Executes the operator's request that came while the shards were worked on, for those that it
/// interrupted.
async fn apply_stop_request(
    context: &Context,
    ends: Vec<ShardResult>,
    parts: &[Assignment],
    heartbeat: &Heartbeat,
    jobs: &Semaphore,
) -> Vec<ShardResult> {
    let Some(stop_request) = heartbeat.stop_request() else {
        return ends;
    };
    let obey_one = |(shard, end): ShardResult| {
        let (part, by) = (
            parts.iter().find(|part| part.shard == shard),
            stop_request.by.clone(),
        );
        async move {
            match (end, part) {
                (Err(Error::Interrupted { .. }), _) if stop_request.asked == StopKind::Stop => {
                    (shard, Err(Error::Stopped { shard, by }))
                }
                (Err(_), Some(part)) if stop_request.asked == StopKind::Abort => {
                    (shard, abort_one(context, part, by, heartbeat, jobs).await)
                }
                (end, _) => (shard, end),
            }
        }
    };
    let aborted = stop_request.asked == StopKind::Abort && shared_a_stream(parts);
    let ends = futures_util::future::join_all(ends.into_iter().map(obey_one)).await;
    if let (true, Some(part)) = (aborted, parts.first()) {
        drop_shared_or_warn(context, &GroupKey::of(part)).await;
    }
    ends
}

async fn abort_one(
    context: &Context,
    part: &Assignment,
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
    let part = Assignment {
        start: Start::TakeOver,
        ..part.clone()
    };
    match single::to_end(context, &part, Goal::Abort, heartbeat, jobs).await {
        Ok(_) => Err(Error::Aborted { shard, by }),
        Err(Error::TooLate { .. }) => {
            single::to_end(context, &part, Goal::Finish, heartbeat, jobs).await
        }
        Err(error) => Err(error),
    }
}

/// Works on each shard by itself, a few at a time.
async fn singles(
    context: &Context,
    parts: &[Assignment],
    goal: Goal,
    heartbeat: &Heartbeat,
    jobs: &Semaphore,
) -> Vec<ShardResult> {
    let each = parts.iter().map(|part| async move {
        let shard = part.shard;
        let outcome = single::to_end(context, part, goal, heartbeat, jobs).await;
        if let Err(error) = &outcome {
            context.observer.notify(Event::Failed {
                shard,
                error: chain(error),
            });
        }
        (shard, outcome)
    });
    futures_util::future::join_all(each).await
}
