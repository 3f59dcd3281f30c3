//! A rollback: a move of its own in the other direction. Its copy and slot exist already. It
//! catches up, compares, fences and opens as every online move does.

use crate::mover::command::resume::lost;
use crate::mover::control::context::Context;
use crate::mover::control::journal::Entry;
use crate::mover::control::report::{Report, report};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::{Goal, Mode, Phase};
use crate::mover::runner::assignment::{Assignment, Scope, Start};
use crate::mover::runner::reverse;
use crate::mover::runner::work::work;
use crate::mover::step::old_copy;
use crate::mover::step::old_copy::TAKEN_BACK;

/// Takes the kept shards of a move back to where they were.
pub(in crate::mover) async fn rollback(
    context: &Context,
    taken_back: MoveId,
) -> Result<Report, Error> {
    let (entries, unknown) = context.list(Some(taken_back)).await;
    if entries.is_empty() {
        return Err(unknown
            .into_iter()
            .next()
            .map_or(Error::NoSuchMove { id: taken_back }, |(_, error)| error));
    }
    let entries = reverse::stream::judged(context, taken_back, entries).await?;
    if let Some(error) = dropped(taken_back, &entries) {
        return Err(error);
    }
    let id = MoveId::new();
    let (mut parts, mut refused) = (Vec::new(), Vec::new());
    for entry in entries
        .iter()
        .filter(|entry| !matches!(entry.phase, Phase::Completed | Phase::Aborted))
    {
        if let Some(error) = lost(context, entry).await {
            refused.push((entry.shard, error));
            continue;
        }
        match old_copy::refusal(entry).or_else(|| taken_beside(&entries, entry)) {
            Some(reason) => {
                let (shard, host) = (entry.shard, entry.source.clone());
                refused.push((
                    shard,
                    Error::NoRollback {
                        shard,
                        id: taken_back,
                        host,
                        reason,
                    },
                ))
            }
            None => parts.push(Assignment {
                id,
                shard: entry.shard,
                source: entry.target.clone(),
                target: entry.source.clone(),
                mode: Mode::Online,
                epoch: entry.epoch.next(),
                start: Start::Claim,
                rollback_of: Some(taken_back),
                rollback: context.options.rollback,
            }),
        }
    }
    if !parts.is_empty() {
        context.observer.notify(Event::Started {
            id,
            shards: parts.len(),
        });
    }
    let mut ends = work(context, parts.clone(), Goal::Finish, Scope::Named).await;
    // A shard that could not even begin leaves no claim behind.
    let refused_there = |part: &Assignment| {
        ends.iter().any(|(shard, end)| {
            *shard == part.shard && matches!(end, Err(Error::NoRollback { .. }))
        })
    };
    let undo: Vec<Assignment> = parts
        .into_iter()
        .filter(refused_there)
        .map(|part| Assignment {
            start: Start::TakeOver,
            ..part
        })
        .collect();
    for (shard, end) in work(context, undo, Goal::Abort, Scope::Named).await {
        if let (Err(error), Some(at)) = (end, ends.iter().position(|(other, _)| *other == shard)) {
            ends[at].1 = Err(error);
        }
    }
    let mut report = report(id, ends);
    report.failed.extend(refused);
    report.failed.sort_by_key(|(shard, _)| *shard);
    report.unknown = unknown;
    Ok(report)
}

/// The error that there is nothing left to take back: all shards of the move have ended, and an old
/// copy was dropped. `None` also if all are where they were, since the move was aborted or has been
/// taken back.
fn dropped(id: MoveId, entries: &[Entry]) -> Option<Error> {
    if entries
        .iter()
        .any(|entry| !matches!(entry.phase, Phase::Completed | Phase::Aborted))
    {
        return None;
    }
    let gone = |entry: &&Entry| {
        entry.phase == Phase::Completed && entry.last_error.as_deref() != Some(TAKEN_BACK)
    };
    let entry = entries.iter().find(gone)?;
    let reason = "its old copy was dropped, as the move is completed".to_owned();
    Some(Error::NoRollback {
        shard: entry.shard,
        id,
        host: entry.source.clone(),
        reason,
    })
}

/// Why a shard has to wait for another rollback of its move: both would read one slot, and end each
/// other's connections.
///
/// Two rollbacks that begin at the same moment do not see each other. They lose nothing, and one
/// ends after the other.
fn taken_beside(entries: &[Entry], shard: &Entry) -> Option<String> {
    let shares = |entry: &&Entry| (&entry.source, &entry.target) == (&shard.source, &shard.target);
    let by = entries
        .iter()
        .filter(shares)
        .find_map(|entry| entry.reverse.as_ref()?.taken_by)?;
    Some(format!(
        "the move {by} takes other shards of it back and has not ended: `pgshard moves resume \
            {by}` first"
    ))
}
