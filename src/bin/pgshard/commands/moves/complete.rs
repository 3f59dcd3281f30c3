//! `pgshard moves complete --all`: the old copies of every move that is kept.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;

use pgshard::ShardId;
use pgshard::map::print_shards;
use pgshard::mover::{Heard, MoveId, Observer, Options, Phase};

use super::super::relocate::mover;
use super::{COMPLETES_THE_REST, Verb, failure, tell, unheard, until_done_or_cut_off};
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, counted};

/// Drops the old copies of all moves that have any, one move after the other. A move that cannot be
/// completed now is named, and the others go on.
pub(crate) async fn complete_all(
    consent: Consent,
    options: Options,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, options, Observer::silent());
    let Heard {
        found: entries,
        unknown: silent,
        ..
    } = mover.list(None).await;
    let mut kept: BTreeMap<MoveId, Vec<ShardId>> = BTreeMap::new();
    for entry in entries.iter().filter(|entry| entry.phase == Phase::Kept) {
        kept.entry(entry.id).or_default().push(entry.shard);
    }
    let heard = unheard(&silent, output);
    if kept.is_empty() {
        output.note("no move has old copies that are kept");
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
    let mut exits = Vec::new();
    let work = async {
        for id in kept.keys() {
            // Not left to `complete`: it asks the hosts first, and one of them may not answer.
            if mover.is_stopped() {
                exits.push(Exit::Interrupted);
                break;
            }
            let started = Instant::now();
            exits.push(match mover.complete(*id).await.map_err(failure) {
                Ok(report) => tell(Verb::Complete, &report, started.elapsed(), output),
                Err(failure) => output.failure(&failure),
            });
            if exits.last() == Some(&Exit::Interrupted) {
                break;
            }
        }
    };
    if until_done_or_cut_off(&mover, output, work).await?.is_none() {
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
