//! The way back: what a move prepares so that it can be taken back after its shards were written to at their new host.
//!
//! Before the fence, publication and slot are made at the target ([`stream`]); when the target has opened, the old copy is
//! made ready to take changes ([`copy`]); [`feed`] applies them while somebody runs it. A rollback is a move of its own in
//! the other direction, which finds its copy there and its slot made: it catches up, compares, fences and opens as every
//! online move does.
//!
//! # What may not break
//! 1. What the mover itself applied at the target never comes back: the stream begins at the position that the open wrote in
//!    its own transaction (`pgshard.shard.opened_lsn`).
//! 2. A way back that is broken is given up, with the reason in `pgshard.back`; it never stops a move and never fills a disk.
//! 3. An old copy has one owner: the move that kept it, or the one rollback in `taken_by`.

pub(crate) mod copy;
pub(crate) mod feed;
pub(crate) mod stream;

use super::driver::{self, Part, Scope, Start};
use super::error::Error;
use super::journal::Entry;
use super::names::MoveId;
use super::options::Event;
use super::state::{Goal, Mode, Phase};
use super::wish::Back;
use super::{Mover, Report, report};

/// Whether a shard of a move needs what the slot of its reverse replication keeps: now, or once it is kept.
pub(crate) fn needs_slot(entry: &Entry) -> bool {
    match (&entry.way_back, entry.phase) {
        (_, Phase::Completed | Phase::Aborted) => false,
        (Some(way_back), _) => way_back.lost.is_none(),
        // It is prepared when the target has caught up.
        (None, phase) => entry.back == Back::Prepared && phase < Phase::Decided,
    }
}

/// Takes the kept shards of a move back to where they were.
pub(super) async fn rollback(mover: &Mover, of: MoveId) -> Result<Report, Error> {
    let (entries, unknown) = mover.list(Some(of)).await;
    if entries.is_empty() {
        return Err(unknown.into_iter().next().map_or(Error::NoSuchMove { id: of }, |(_, error)| error));
    }
    let entries = stream::judged(mover, of, entries).await?;
    let id = MoveId::new();
    let (mut parts, mut refused) = (Vec::new(), Vec::new());
    for entry in entries.iter().filter(|entry| !matches!(entry.phase, Phase::Completed | Phase::Aborted)) {
        match copy::refusal(entry) {
            Some(reason) => refused.push((entry.shard, Error::NoWayBack { shard: entry.shard, id: of, reason })),
            None => parts.push(Part {
                id,
                shard: entry.shard,
                source: entry.target.clone(),
                target: entry.source.clone(),
                mode: Mode::Online,
                epoch: entry.epoch.next(),
                start: Start::Claim,
                back_of: Some(of),
                back: mover.options.back,
            }),
        }
    }
    if !parts.is_empty() {
        mover.observer.tell(Event::Started { id, shards: parts.len() });
    }
    let mut ends = driver::work(mover, parts.clone(), Goal::Finish, Scope::Named).await;
    // What could not even begin leaves no claim behind.
    let refused_there = |part: &Part| {
        ends.iter().any(|(shard, end)| *shard == part.shard && matches!(end, Err(Error::NoWayBack { .. })))
    };
    let undo: Vec<Part> =
        parts.into_iter().filter(refused_there).map(|part| Part { start: Start::TakeOver, ..part }).collect();
    for (shard, end) in driver::work(mover, undo, Goal::Abort, Scope::Named).await {
        if let (Err(error), Some(at)) = (end, ends.iter().position(|(of, _)| *of == shard)) {
            ends[at].1 = Err(error);
        }
    }
    let mut report = report(id, ends);
    report.failed.extend(refused);
    report.failed.sort_by_key(|(shard, _)| *shard);
    report.unknown = unknown;
    Ok(report)
}
