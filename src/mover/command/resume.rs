//! Resumes a move, to either end.

use std::collections::BTreeSet;

use crate::mover::command::audit::audited;
use crate::mover::control::context::Context;
use crate::mover::control::journal::Entry;
use crate::mover::control::report::{Report, ShardReport, report};
use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::{Goal, Mode, Phase};
use crate::mover::runner::assignment::{Assignment, GroupKey, Scope};
use crate::mover::runner::leftovers::drop_shared_or_warn;
use crate::mover::runner::work::work;
use crate::shard::ShardId;

/// Brings every shard of a move that has not ended to this end.
pub(crate) async fn go_on(context: &Context, id: MoveId, goal: Goal) -> Result<Report, Error> {
    let (entries, unknown) = context.list(Some(id)).await;
    if entries.is_empty() {
        return Err(unknown
            .into_iter()
            .next()
            .map_or(Error::NoSuchMove { id }, |(_, error)| error));
    }
    let open = entries
        .iter()
        .filter(|entry| !entry.phase.is_ended())
        .map(Assignment::of)
        .collect();
    let mut report = report(id, work(context, open, goal, Scope::Routes).await);
    report.unknown = unknown;
    // The journal is read again: another process may have ended a shard that was open.
    let (mut rest, _) = context.list(Some(id)).await;
    let told: BTreeSet<ShardId> = report
        .done
        .iter()
        .map(|done| done.shard)
        .chain(report.failed.iter().map(|(shard, _)| *shard))
        .collect();
    rest.retain(|entry| !told.contains(&entry.shard));
    // The mover that ended these may have died before it dropped what they shared.
    let shared = rest
        .iter()
        .filter(|entry| entry.mode == Mode::Online)
        .map(|entry| GroupKey::of(&Assignment::of(entry)));
    for shared in shared.collect::<BTreeSet<_>>() {
        drop_shared_or_warn(context, &shared).await;
    }
    for entry in &rest {
        match outcome(entry, goal) {
            Ok(done) if done.phase == Phase::Kept => match lost(context, entry).await {
                Some(error) => report.failed.push((entry.shard, error)),
                None => report.done.push(audited(context, entry).await),
            },
            Ok(done) => report.done.push(done),
            Err(error) => report.failed.push((entry.shard, error)),
        }
    }
    report.done.sort_by_key(|done| done.shard);
    report.failed.sort_by_key(|(shard, _)| *shard);
    Ok(report)
}

/// The error that the target of a kept shard no longer knows of it, as after a fail-over that lost
/// the open: nothing may be done about its move before that is repaired. `None` also if the target
/// cannot be reached.
pub(super) async fn lost(context: &Context, entry: &Entry) -> Option<Error> {
    let target = context.hosts.open(&entry.target).await.ok()?;
    lost_at(&target.for_shard(entry.shard), entry).await
}

/// The same, on this session of the target.
pub(super) async fn lost_at(target: &Session, entry: &Entry) -> Option<Error> {
    if entry.phase != Phase::Kept {
        return None;
    }
    let row = match target.is_bootstrapped().await.ok()? {
        true => facts::row_of(target, entry.shard).await.ok()?,
        false => None,
    };
    let lost = row.is_none_or(|row| row.epoch <= entry.epoch);
    lost.then(|| Error::Lost {
        shard: entry.shard,
        host: entry.target.clone(),
        id: entry.id,
    })
}

/// The result for a shard for which nothing had to be done.
fn outcome(entry: &Entry, goal: Goal) -> Result<ShardReport, Error> {
    let (shard, phase) = (entry.shard, entry.phase);
    match (goal, phase) {
        (Goal::Finish, Phase::Kept | Phase::Completed) | (Goal::Abort, Phase::Aborted) => {
            Ok(ShardReport::of(entry))
        }
        (Goal::Abort, phase) if phase.is_ended() => Err(Error::TooLate { shard }),
        (Goal::Finish, Phase::Aborted) => {
            let reason = "an aborted move cannot be resumed: start a new one".to_owned();
            Err(Error::NotNow {
                shard,
                phase,
                reason,
            })
        }
        _ => match entry.worker.clone() {
            Some(worker) => Err(Error::AtWork {
                shard,
                id: entry.id,
                worker,
            }),
            None => {
                let reason =
                    "it was claimed while its move was being read: run the same command again"
                        .to_owned();
                Err(Error::NotNow {
                    shard,
                    phase,
                    reason,
                })
            }
        },
    }
}
