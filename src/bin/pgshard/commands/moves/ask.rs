//! `pgshard moves stop`, and the first half of `abort`: asking the mover of a move, wherever it
//! runs, and waiting until it has done so.

use std::path::Path;
use std::time::{Duration, Instant};

use pgshard::mover::{MoveId, Mover, Observer, Options, PartialAnswer, StopKind, Worker};
use schemars::JsonSchema;
use serde::Serialize;

use super::end::failure;
use super::find::{Fits, find, unread};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output, seconds};
use crate::signals::Ending;

/// Between two looks whether a mover has ended.
const EVERY: Duration = Duration::from_millis(200);

#[derive(JsonSchema, Serialize)]
pub(crate) struct StopReport {
    r#move: String,
    asked: &'static str,
    /// Who was at work.
    asked_of: Vec<String>,
    /// Who still is.
    at_work: Vec<String>,
}

/// Requests that a move's mover stops.
pub(crate) async fn stop(
    id: Option<&str>,
    patience: Duration,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = find(&mover, id, Fits::Open).await?;
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = mover.list(Some(id)).await;
    if entries.is_empty() && silent.is_empty() {
        return Err(failure(pgshard::mover::Error::NoSuchMove { id }));
    }
    let (before, at_work) = first(&mover, id, StopKind::Stop, patience, output).await?;
    let entries = mover.list(Some(id)).await.found;
    let open = entries
        .iter()
        .filter(|entry| !entry.phase.is_ended())
        .count();
    if output.format() == Format::Json {
        let names =
            |workers: &[Worker]| workers.iter().map(|worker| worker.holder.clone()).collect();
        let (asked_of, at_work) = (names(&before), names(&at_work));
        output.object(StopReport {
            r#move: id.to_string(),
            asked: StopKind::Stop.as_str(),
            asked_of,
            at_work,
        });
    }
    if !at_work.is_empty() {
        for worker in &at_work {
            output.error_with_remedy(
                format_args!(
                    "move {id}: {worker}, is still at work after {}",
                    seconds(patience)
                ),
                &format!(
                    "`pgshard moves watch {id}` says what it waits for; on its own machine, \
                    Ctrl-C does the same"
                ),
            );
        }
        return Ok(Exit::Refused);
    }
    if before.is_empty() {
        output.note(format_args!("no command works on the move {id}"));
    }
    if open > 0 {
        output.hint(format_args!(
            "`pgshard moves resume {id}` goes on, `pgshard moves abort {id}` undoes what is not \
                decided"
        ));
    } else {
        output.note(format_args!("every shard of the move {id} has ended"));
    }
    let exit = unread(&silent, output);
    Ok(if exit != Exit::Done && !before.is_empty() {
        Exit::Partly
    } else {
        exit
    })
}

/// Sends the request to a move's movers, and waits until none is at work any more, or until
/// patience is over. Returns who was at work, and who still is.
pub(super) async fn first(
    mover: &Mover,
    id: MoveId,
    asked: StopKind,
    patience: Duration,
    output: &Output,
) -> Result<(Vec<Worker>, Vec<Worker>), Failure> {
    let began = Instant::now();
    let before = mover.request(id, asked).await.found;
    for worker in &before {
        let what = asked.as_str();
        output.note(format_args!(
            "asked to {what}: {} on the move {id}; it hears it within two seconds",
            worker.holder
        ));
    }
    let mut at_work = before.clone();
    let mut ending = Ending::listen()?;
    while !at_work.is_empty() && began.elapsed() < patience {
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = ending.stop_requested() => {
                output.note("asked, and not waited for any longer");
                return Err(Failure::new(Exit::Interrupted, format!("move {id}: its mover may still \
                    be at work"))
                    .hint(format!("`pgshard moves watch {id}`")));
            }
        }
        at_work = mover.workers(id).await.found;
    }
    for worker in before
        .iter()
        .filter(|one| at_work.iter().all(|other| other.holder != one.holder))
    {
        output.note(format_args!(
            "{} works on the move {id} no more, after {}",
            worker.holder,
            seconds(began.elapsed())
        ));
    }
    Ok((before, at_work))
}
