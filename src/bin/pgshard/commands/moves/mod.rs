//! `pgshard moves`: what became of moves, and what to do about it.

mod ask;
mod audit;
mod complete;
mod end;
mod events;
mod find;
mod list;
mod progress;
mod repair;
mod requests;
pub(crate) mod start;
mod watch;

use std::future::Future;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use pgshard::ShardId;
use pgshard::map::print_shards;
use pgshard::mover::{Mover, Observer, Options, Phase, StopKind};
use pgshard::pg::cause::chain;
use schemars::JsonSchema;
use serde::Serialize;

use crate::confirm::{Consent, confirm};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};
use crate::signals::Ending;

use find::{Fits, find, named, unread};

pub(crate) use ask::{StopReport as AskedToStop, stop};
pub(super) use audit::word as audit_word;
pub(crate) use complete::complete_all;
pub(crate) use end::{
    DIFFERS, Verb, code, failure, nothing_moved, print_end, remedy, tell_by_cause,
};
pub(crate) use events::{MoveEvent, millis};
pub(super) use find::{CORRECT_THE_CONFIG, among, named_host};
pub(crate) use list::{ListReport, MoveListing, ShowReport, Which, list, show};
pub(super) use list::{back, can_be_taken_back, what_next};
pub(crate) use progress::{Line, shown, watch};
pub(super) use progress::{Meter, Rate, chunks, remarks, reverse, stream, words as rate_words};
pub(crate) use repair::{RepairReport as Repaired, repair};
pub(crate) use requests::{RequestReport, set_desired_state};
pub(crate) use watch::Watcher;

/// Resumes, aborts, takes back or completes a move.
pub(crate) async fn act(
    verb: Verb,
    id: Option<&str>,
    consent: Consent,
    options: Options,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let watcher = Watcher::of(verb, output.clone());
    let mover = mover(&config, options, watcher.observer());
    let fits = match verb {
        Verb::Resume | Verb::Abort { .. } => Fits::Open,
        Verb::Rollback => Fits::Reversible,
        Verb::Audit => Fits::Kept,
        Verb::Complete => Fits::Completed,
    };
    let id = output.waiting(READING, find(&mover, id, fits)).await?;
    let started = Instant::now();
    let report = match verb {
        Verb::Resume => {
            shown(
                &mover,
                || Some(id),
                output,
                until_done(&mover, output, mover.resume(id)),
            )
            .await?
        }
        Verb::Abort { patience } => {
            // A live mover aborts its own shards. What is left now is from a mover that died or
            // does not answer.
            ask::first(&mover, id, StopKind::Abort, patience, output).await?;
            let entries = mover.list(Some(id)).await.found;
            let open = entries.iter().filter(|entry| !entry.phase.is_ended());
            watcher.begin("aborting", open.count());
            until_done(&mover, output, mover.abort(id)).await?
        }
        Verb::Audit => {
            let entries = mover.list(Some(id)).await.found;
            let kept = entries.iter().filter(|entry| entry.phase == Phase::Kept);
            watcher.begin("comparing", kept.count());
            until_done(&mover, output, mover.audit(id)).await?
        }
        Verb::Rollback => {
            let entries = mover.list(Some(id)).await.found;
            let shards = print_shards(
                entries
                    .iter()
                    .filter(|e| e.phase == Phase::Kept)
                    .map(|e| e.shard),
            );
            let question = format!("take shards {shards} back to where they were?");
            if !confirm(&question, consent, output).await? {
                return Err(Failure::new(Exit::Failed, "nothing was moved"));
            }
            until_done(&mover, output, mover.rollback(id)).await?
        }
        Verb::Complete => {
            let mut kept = mover.list(Some(id)).await.found;
            kept.retain(|entry| entry.phase == Phase::Kept);
            let shards = print_shards(kept.iter().map(|entry| entry.shard));
            let question = format!("drop the old copies of shards {shards} for good?");
            if !confirm(&question, consent, output).await? {
                return Err(Failure::new(Exit::Failed, "nothing was dropped"));
            }
            watcher.begin("dropping", kept.len());
            match until_done_or_cut_off(&mover, output, mover.complete(id)).await? {
                Some(report) => report,
                None => return Ok(output.interrupted(Some(COMPLETES_THE_REST))),
            }
        }
    };
    watcher.finish();
    Ok(print_end(
        verb,
        &report.map_err(failure)?,
        started.elapsed(),
        output,
    ))
}

/// What is shown while hosts are read that may not answer.
const READING: &str = "reading the hosts";

/// What the same `moves complete` does next.
const COMPLETES_THE_REST: &str =
    "run the same command again: it drops the old copies that are left";

/// Keeps old copies up to date until Ctrl-C, or SIGTERM.
pub(crate) async fn feed(
    id: Option<&str>,
    options: Options,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let watcher = Watcher::new(output.clone());
    let mover = mover(&config, options, watcher.observer());
    let id = match id {
        Some(id) => Some(output.waiting(READING, named(&mover, id)).await?),
        None => None,
    };
    watcher.begin_feed();
    let fed = until_done_or_cut_off(&mover, output, mover.follow_old_copies(id)).await;
    watcher.finish();
    Ok(match fed? {
        Some(()) => Exit::Done,
        None => output.interrupted(None),
    })
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct GcReport {
    cleaned: Vec<CleanedThing>,
    failed: Vec<FailedHost>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct CleanedThing {
    host: String,
    #[schemars(with = "u16")]
    shard: ShardId,
    what: String,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct FailedHost {
    host: String,
    message: String,
}

/// Puts right what dead moves left.
pub(crate) async fn gc(
    options: Options,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, options, Observer::silent());
    let report = output.waiting("cleaning up", mover.gc()).await;
    if output.format() == Format::Json {
        let cleaned = report.cleaned.iter().map(|thing| CleanedThing {
            host: thing.host.to_string(),
            shard: thing.shard,
            what: thing.what.clone(),
        });
        let failed = report.failed.iter().map(|(host, error)| FailedHost {
            host: host.to_string(),
            message: chain(error),
        });
        output.object(GcReport {
            cleaned: cleaned.collect(),
            failed: failed.collect(),
        });
    } else {
        let rows = report.cleaned.iter().map(|thing| {
            [
                thing.host.to_string(),
                thing.shard.to_string(),
                thing.what.clone(),
            ]
        });
        output.table(
            &[
                ("host", Align::Left),
                ("shard", Align::Right),
                ("what", Align::Left),
            ],
            rows,
        );
        if report.cleaned.is_empty() && report.failed.is_empty() {
            output.note("nothing to clean up");
        }
    }
    let exit = unread(&report.failed, output);
    Ok(if exit != Exit::Done && !report.cleaned.is_empty() {
        Exit::Partly
    } else {
        exit
    })
}

/// Runs a mover's work. Ctrl-C or SIGTERM makes it stop in order. It is not cut off, however often
/// the signal comes: a shard that is fenced just then would be closed until its deadline.
pub(crate) async fn until_done<T>(
    mover: &Mover,
    output: &Output,
    work: impl Future<Output = T>,
) -> io::Result<T> {
    let mut ending = Ending::listen()?;
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            outcome = &mut work => return Ok(outcome),
            () = ending.stop_requested() => {}
        }
        mover.stop();
        output.note("stops in order: fences are taken back, and what is decided is opened");
    }
}

/// Runs a mover's work that may be cut off anywhere. Ctrl-C or SIGTERM makes it stop in order; a
/// second one ends it immediately, for an operator who does not want to wait for a host. Then it
/// returns `None`.
async fn until_done_or_cut_off<T>(
    mover: &Mover,
    output: &Output,
    work: impl Future<Output = T>,
) -> io::Result<Option<T>> {
    let mut ending = Ending::listen()?;
    let mut work = std::pin::pin!(work);
    let mut is_asked = false;
    loop {
        tokio::select! {
            outcome = &mut work => return Ok(Some(outcome)),
            () = ending.stop_requested() => {}
        }
        if is_asked {
            return Ok(None);
        }
        is_asked = true;
        mover.stop();
        output.note("ends once what is at work is done; Ctrl-C again ends it at once");
    }
}
