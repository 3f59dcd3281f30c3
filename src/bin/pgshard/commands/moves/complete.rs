//! `pgshard moves complete --all`: the old copies of every move that is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::{FutureExt, StreamExt, stream};
use pgshard::ShardId;
use pgshard::map::print_shards;
use pgshard::mover::{Error, MoveId, Mover, Options, PartialAnswer, Phase, Report};

use super::{
    COMPLETES_THE_REST, READING, Verb, Watcher, failure, print_end, unread, until_done_or_cut_off,
};
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, counted};

/// How many moves are completed at a time. The mover limits the load on each host.
const MOVES_MAX: usize = 8;

/// Drops the old copies of all moves that have any. A move that cannot be completed now is named,
/// and the others continue.
pub(crate) async fn complete_all(
    consent: Consent,
    options: Options,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let watcher = Watcher::of(Verb::Complete, output.clone());
    let mover = mover(&config, options, watcher.observer());
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = output.waiting(READING, mover.list(None)).await;
    let mut kept: BTreeMap<MoveId, Vec<ShardId>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.phase == Phase::Kept) {
        kept.entry(entry.id).or_default().push(entry.shard);
    }
    let heard = unread(&silent, output);
    if kept.is_empty() {
        if silent.is_empty() {
            output.note("no move has old copies that are kept");
        }
        return Ok(heard);
    }
    for (id, shards) in &kept {
        output.note(format_args!(
            "move {id}: shards {}",
            print_shards(shards.iter().copied())
        ));
    }
    let question = format!(
        "drop the old copies of {} for good?",
        counted(kept.len(), "move")
    );
    if !confirm(&question, consent, output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was dropped"));
    }
    watcher.begin("dropping", kept.values().map(Vec::len).sum());
    let mut exits = Vec::new();
    let work = async {
        let each: Vec<_> = kept
            .keys()
            .map(|id| complete(&mover, *id).boxed())
            .collect();
        let mut ended = stream::iter(each).buffered(MOVES_MAX);
        while let Some(ended) = ended.next().await {
            exits.push(match ended {
                None => Exit::Interrupted,
                Some((Ok(report), took)) => print_end(Verb::Complete, &report, took, output),
                Some((Err(error), _)) => output.failure(&failure(error)),
            });
        }
    };
    let is_cut_off = until_done_or_cut_off(&mover, output, work).await?.is_none();
    watcher.finish();
    if is_cut_off {
        return Ok(output.interrupted(Some(COMPLETES_THE_REST)));
    }
    let failed: Vec<Exit> = exits
        .iter()
        .copied()
        .filter(|exit| *exit != Exit::Done)
        .collect();
    let done = exits.len() - failed.len();
    output.note(format_args!(
        "completed {done} of {}",
        counted(kept.len(), "move")
    ));
    if failed.contains(&Exit::Interrupted) {
        return Ok(output.interrupted(Some(COMPLETES_THE_REST)));
    }
    Ok(match failed.as_slice() {
        [] if heard == Exit::Done => Exit::Done,
        [] => Exit::Partly,
        _ if failed.contains(&Exit::Differs) => Exit::Differs,
        _ if done > 0 => Exit::Partly,
        [first, ..] => *first,
    })
}

/// The outcome of one move, and how long it took; `None` if the mover was stopped before.
async fn complete(mover: &Mover, id: MoveId) -> Option<(Result<Report, Error>, Duration)> {
    // Not left to the mover: it queries the hosts first, and one of them may not answer.
    if mover.is_stopped() {
        return None;
    }
    let started = Instant::now();
    Some((mover.complete(id).await, started.elapsed()))
}
