//! `pgshard moves`: what became of moves, and what to do about it.

use std::collections::BTreeMap;
use std::future::Future;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pgshard::ShardId;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{Entry, Error, Event, MoveId, Mover, Observer, Options, Phase, Plan, Report};
use serde::Serialize;

use super::relocate::mover;
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, seconds};

/// What to do with a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Go on.
    Resume,
    /// Undo.
    Abort,
    /// Drop the old copies.
    Complete,
}

/// Every move that is neither completed nor aborted.
pub(crate) async fn list(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let (entries, silent) = mover(&config, Options::default(), Observer::silent()).list(None).await;
    let moves = grouped(&entries);
    if output.format() == Format::Json {
        output.object(ListReport { moves: moves.iter().map(Listed::of).collect() })?;
    } else {
        let columns = [
            ("move", Align::Left),
            ("shards", Align::Left),
            ("from", Align::Left),
            ("to", Align::Left),
            ("phase", Align::Left),
            ("next", Align::Left),
        ];
        let rows = moves.iter().map(Listed::of).map(|m| [m.r#move, m.shards, m.source, m.target, m.phase, m.next]);
        output.table(&columns, rows)?;
        if moves.is_empty() && silent.is_empty() {
            output.note("no move is open, none waits for `complete`");
        }
    }
    Ok(unheard(&silent, output))
}

/// One move, shard by shard.
pub(crate) async fn show(id: Option<&str>, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = the_move(&mover, id, |_| true).await?;
    let (entries, silent) = mover.list(Some(id)).await;
    if entries.is_empty() && silent.is_empty() {
        return Err(failure(Error::NoSuchMove { id }));
    }
    if output.format() == Format::Json {
        output.object(ShowReport { r#move: id.to_string(), shards: entries.iter().map(ShownShard::of).collect() })?;
        return Ok(unheard(&silent, output));
    }
    let columns = [
        ("shard", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("phase", Align::Left),
        ("attempt", Align::Right),
        ("rows", Align::Right),
        ("pause", Align::Right),
        ("holder", Align::Left),
        ("last error", Align::Left),
    ];
    let rows = entries.iter().map(|entry| {
        let pause = entry.timings.get("pause_ms").and_then(serde_json::Value::as_f64);
        let held = if entry.lease_left.is_zero() { "-".to_owned() } else { entry.holder.clone() };
        [
            entry.shard.to_string(),
            entry.source.to_string(),
            entry.target.to_string(),
            entry.phase.to_string(),
            entry.attempt.to_string(),
            entry.rows.map_or_else(|| "-".to_owned(), |rows| rows.to_string()),
            pause.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1} ms")),
            held,
            entry.last_error.clone().unwrap_or_else(|| "-".to_owned()),
        ]
    });
    output.table(&columns, rows)?;
    Ok(unheard(&silent, output))
}

/// Resumes, aborts or completes a move.
pub(crate) async fn act(
    verb: Verb,
    id: Option<&str>,
    consent: Consent,
    options: Options,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let watcher = Watcher::new(output.clone());
    let mover = mover(&config, options, watcher.observer());
    let fits = |phase: Phase| match verb {
        Verb::Resume | Verb::Abort => !phase.is_ended(),
        Verb::Complete => phase == Phase::Kept,
    };
    let id = the_move(&mover, id, fits).await?;
    let started = Instant::now();
    let report = match verb {
        Verb::Resume => until_done(&mover, mover.resume(id)).await,
        Verb::Abort => until_done(&mover, mover.abort(id)).await,
        Verb::Complete => {
            let (entries, _) = mover.list(Some(id)).await;
            let shards = print_shards(entries.iter().filter(|e| e.phase == Phase::Kept).map(|e| e.shard));
            let question = format!("drop the old copies of shards {shards} for good?");
            if !confirm(&question, consent, output).await? {
                return Err(Failure::new(Exit::Failed, "nothing was dropped"));
            }
            mover.complete(id).await
        }
    };
    watcher.finish();
    tell(verb, &report.map_err(failure)?, started.elapsed(), output)
}

#[derive(Serialize)]
struct GcReport {
    cleaned: Vec<CleanedThing>,
    failed: Vec<FailedHost>,
}

#[derive(Serialize)]
struct CleanedThing {
    host: String,
    shard: ShardId,
    what: String,
}

#[derive(Serialize)]
struct FailedHost {
    host: String,
    message: String,
}

/// Puts right what dead moves left.
pub(crate) async fn gc(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let report = mover(&config, Options::default(), Observer::silent()).gc().await;
    if output.format() == Format::Json {
        let cleaned = report.cleaned.iter().map(|thing| CleanedThing {
            host: thing.host.to_string(),
            shard: thing.shard,
            what: thing.what.clone(),
        });
        let failed =
            report.failed.iter().map(|(host, error)| FailedHost { host: host.to_string(), message: chain(error) });
        output.object(GcReport { cleaned: cleaned.collect(), failed: failed.collect() })?;
    } else {
        let rows =
            report.cleaned.iter().map(|thing| [thing.host.to_string(), thing.shard.to_string(), thing.what.clone()]);
        output.table(&[("host", Align::Left), ("shard", Align::Right), ("what", Align::Left)], rows)?;
        if report.cleaned.is_empty() && report.failed.is_empty() {
            output.note("nothing to clean up");
        }
    }
    let exit = unheard(&report.failed, output);
    Ok(if exit != Exit::Done && !report.cleaned.is_empty() { Exit::Partly } else { exit })
}

/// Runs a mover's work. Ctrl-C asks it to stop, which it does in order; it is not cut off.
pub(crate) async fn until_done<T>(mover: &Mover, work: impl Future<Output = T>) -> T {
    let mut work = std::pin::pin!(work);
    tokio::select! {
        outcome = &mut work => outcome,
        _ = tokio::signal::ctrl_c() => {
            mover.stop();
            work.await
        }
    }
}

/// The move of this ID, or the only one that fits when there is no ID.
async fn the_move(mover: &Mover, id: Option<&str>, fits: impl Fn(Phase) -> bool) -> Result<MoveId, Failure> {
    if let Some(id) = id {
        return id
            .parse()
            .map_err(|_| Failure::usage(format!("{id:?} is not the ID of a move")).hint("see `pgshard moves list`"));
    }
    let (entries, silent) = mover.list(None).await;
    if let Some((host, error)) = silent.into_iter().next() {
        let error = format!("host {host} may have a move too: {}", chain(&error));
        return Err(Failure::new(Exit::Failed, error).hint("name the move, see `pgshard moves list`"));
    }
    let mut ids: Vec<MoveId> = entries.iter().filter(|entry| fits(entry.phase)).map(|entry| entry.id).collect();
    ids.dedup();
    match ids.as_slice() {
        [only] => Ok(*only),
        [] => Err(Failure::usage("no move fits").hint("see `pgshard moves list`")),
        several => {
            let list: Vec<String> = several.iter().map(ToString::to_string).collect();
            Err(Failure::usage(format!("there are {} moves: name one of {}", several.len(), list.join(", "))))
        }
    }
}

fn unheard(silent: &[(HostName, Error)], output: &Output) -> Exit {
    for (host, error) in silent {
        output.error_with_remedy(
            format_args!("host {host}: {}", chain(error)),
            "start it or correct the config, then look again",
        );
    }
    if silent.is_empty() { Exit::Done } else { Exit::Failed }
}

/// The entries of each move.
fn grouped(entries: &[Entry]) -> Vec<Vec<&Entry>> {
    let mut moves: BTreeMap<MoveId, Vec<&Entry>> = BTreeMap::new();
    for entry in entries {
        moves.entry(entry.id).or_default().push(entry);
    }
    moves.into_values().collect()
}

#[derive(Serialize)]
struct ListReport {
    moves: Vec<Listed>,
}

#[derive(Serialize)]
struct Listed {
    r#move: String,
    shards: String,
    source: String,
    target: String,
    phase: String,
    next: String,
}

impl Listed {
    fn of(entries: &Vec<&Entry>) -> Listed {
        // What comes next is decided by the shard that is least far.
        let least = entries.iter().map(|entry| entry.phase).min().unwrap_or(Phase::Aborted);
        let hosts = |host: fn(&Entry) -> &HostName| {
            let mut names: Vec<&str> = entries.iter().map(|entry| host(entry).as_str()).collect();
            names.sort_unstable();
            names.dedup();
            names.join(",")
        };
        Listed {
            r#move: entries.first().map(|entry| entry.id.to_string()).unwrap_or_default(),
            shards: print_shards(entries.iter().map(|entry| entry.shard)),
            source: hosts(|entry| &entry.source),
            target: hosts(|entry| &entry.target),
            phase: least.to_string(),
            next: least.next().to_owned(),
        }
    }
}

#[derive(Serialize)]
struct ShowReport<'a> {
    r#move: String,
    shards: Vec<ShownShard<'a>>,
}

#[derive(Serialize)]
struct ShownShard<'a> {
    shard: ShardId,
    source: &'a str,
    target: &'a str,
    phase: &'static str,
    next: &'static str,
    attempt: i32,
    rows: Option<i64>,
    bytes: Option<i64>,
    timings: &'a serde_json::Value,
    holder: Option<&'a str>,
    last_error: Option<&'a str>,
    created_at: String,
    updated_at: String,
}

impl ShownShard<'_> {
    fn of(entry: &Entry) -> ShownShard<'_> {
        ShownShard {
            shard: entry.shard,
            source: entry.source.as_str(),
            target: entry.target.as_str(),
            phase: entry.phase.as_str(),
            next: entry.phase.next(),
            attempt: entry.attempt,
            rows: entry.rows,
            bytes: entry.bytes,
            timings: &entry.timings,
            holder: (!entry.lease_left.is_zero()).then_some(entry.holder.as_str()),
            last_error: entry.last_error.as_deref(),
            created_at: entry.created_at.to_string(),
            updated_at: entry.updated_at.to_string(),
        }
    }
}

#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Told {
    Started { r#move: String, shards: usize },
    Reached { shard: ShardId, phase: &'static str },
    TableCopied { shard: ShardId, table: String, rows: u64, bytes: u64 },
    FenceRetried { shard: ShardId, attempt: u32, reason: String },
    TakenOver { shard: ShardId, from: String },
    Opened { shard: ShardId, host: String, pause_ms: f64 },
    Failed { shard: ShardId, message: String },
    Done(Done),
}

#[derive(Serialize)]
struct Done {
    r#move: String,
    shards: String,
    source: String,
    target: String,
    rows: u64,
    bytes: u64,
    copy_ms: f64,
    pause_ms: BTreeMap<String, f64>,
    total_ms: u128,
    failed: Vec<FailedShard>,
}

#[derive(Serialize)]
struct FailedShard {
    shard: ShardId,
    message: String,
}

/// Shows how a mover gets on: a bar on a terminal, events in JSON.
pub(crate) struct Watcher {
    output: Arc<Output>,
    bar: Mutex<Option<ProgressBar>>,
}

impl Watcher {
    pub(crate) fn new(output: Arc<Output>) -> Arc<Watcher> {
        Arc::new(Watcher { output, bar: Mutex::default() })
    }

    pub(crate) fn observer(self: &Arc<Watcher>) -> Observer {
        let watcher = self.clone();
        Observer::new(move |event| watcher.saw(event))
    }

    pub(crate) fn finish(&self) {
        if let Some(bar) = self.bar().take() {
            bar.finish_and_clear();
        }
    }

    fn bar(&self) -> std::sync::MutexGuard<'_, Option<ProgressBar>> {
        // Nothing is half done when a panic lets go of it.
        self.bar.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn saw(&self, event: Event) {
        let told = match event {
            Event::Started { id, shards } => {
                self.output.note(format_args!("move {id}"));
                *self.bar() = Some(self.output.progress("moving".to_owned(), "shards", shards as u64));
                Told::Started { r#move: id.to_string(), shards }
            }
            Event::Reached { shard, phase } => {
                if let (Phase::Kept, Some(bar)) = (phase, &*self.bar()) {
                    bar.inc(1);
                }
                Told::Reached { shard, phase: phase.as_str() }
            }
            Event::TableCopied { shard, table, rows, bytes } => Told::TableCopied { shard, table, rows, bytes },
            Event::FenceRetried { shard, attempt, reason } => {
                self.output.note(format_args!("shard {shard}: fence {attempt} was taken back, {reason}"));
                Told::FenceRetried { shard, attempt, reason }
            }
            Event::TakenOver { shard, from } => {
                self.output.note(format_args!("shard {shard}: taken over from {from}"));
                Told::TakenOver { shard, from }
            }
            Event::Opened { shard, host, pause } => {
                Told::Opened { shard, host: host.to_string(), pause_ms: millis(pause) }
            }
            Event::Failed { shard, error } => Told::Failed { shard, message: error },
            // Bytes under way move no bar yet, and would flood a pipe.
            _ => return,
        };
        self.output.event(told);
    }
}

/// Says how a move ended, or what `verb` has made of it, and gives the exit code.
pub(crate) fn tell(verb: Verb, report: &Report, elapsed: Duration, output: &Output) -> Result<Exit, Failure> {
    let hosts = |host: fn(&pgshard::mover::ShardReport) -> &HostName| {
        let mut names: Vec<&str> = report.done.iter().map(|done| host(done).as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(",")
    };
    let pauses = report.done.iter().filter_map(|done| Some((done.shard, done.pause?)));
    if output.format() == Format::Json {
        output.object(Told::Done(Done {
            r#move: report.id.to_string(),
            shards: print_shards(report.done.iter().map(|done| done.shard)),
            source: hosts(|done| &done.source),
            target: hosts(|done| &done.target),
            rows: report.done.iter().map(|done| done.rows).sum(),
            bytes: report.done.iter().map(|done| done.bytes).sum(),
            copy_ms: millis(report.done.iter().map(|done| done.copy).sum()),
            pause_ms: pauses.map(|(shard, pause)| (shard.to_string(), millis(pause))).collect(),
            total_ms: elapsed.as_millis(),
            failed: report
                .failed
                .iter()
                .map(|(shard, error)| FailedShard { shard: *shard, message: chain(error) })
                .collect(),
        }))?;
    } else {
        let columns = [
            ("shard", Align::Right),
            ("from", Align::Left),
            ("to", Align::Left),
            ("now", Align::Left),
            ("rows", Align::Right),
            ("copy", Align::Right),
            ("pause", Align::Right),
        ];
        let rows = report.done.iter().map(|done| {
            let pause = done.pause.map_or_else(|| "-".to_owned(), |pause| format!("{:.1} ms", millis(pause)));
            let copy = format!("{:.1} ms", millis(done.copy));
            let (shard, phase) = (done.shard.to_string(), done.phase.to_string());
            [shard, done.source.to_string(), done.target.to_string(), phase, done.rows.to_string(), copy, pause]
        });
        output.table(&columns, rows)?;
        output.note(format_args!("{} in {}", print_count(report), seconds(elapsed)));
    }
    for (shard, error) in &report.failed {
        output.error_with_remedy(chain(error), &remedy(verb, *shard, error, report.id));
    }
    for (host, error) in &report.unknown {
        output.error_with_remedy(
            format_args!("host {host} may have more shards of this move: {}", chain(error)),
            "look with `pgshard moves show` when it answers",
        );
    }
    if report.failed.is_empty() && report.done.iter().any(|done| done.phase == Phase::Kept) {
        output.hint(format_args!("the old copies are kept; drop them with `pgshard moves complete {}`", report.id));
    }
    Ok(exit(verb, report))
}

/// A move of shards that are all there already.
pub(crate) fn nothing_moved(plan: &Plan, output: &Output) -> Result<Exit, Failure> {
    output.event(Told::Done(Done {
        r#move: String::new(),
        shards: String::new(),
        source: String::new(),
        target: plan.target.to_string(),
        rows: 0,
        bytes: 0,
        copy_ms: 0.0,
        pause_ms: BTreeMap::new(),
        total_ms: 0,
        failed: Vec::new(),
    }));
    Ok(Exit::Done)
}

fn print_count(report: &Report) -> String {
    match (report.done.len(), report.failed.len()) {
        (1, 0) => "1 shard".to_owned(),
        (done, 0) => format!("{done} shards"),
        (done, failed) => format!("{done} shards done, {failed} not"),
    }
}

fn remedy(verb: Verb, shard: ShardId, error: &Error, id: MoveId) -> String {
    match error {
        // Such a shard is served by its target; there is nothing to resume or to abort.
        Error::NotNow { .. } | Error::TooLate { .. } if verb == Verb::Complete => String::new(),
        _ if verb == Verb::Complete => format!("the old copy is kept; `pgshard moves complete {id}` again later"),
        Error::Publish(_) => format!(
            "the shard is served by its target and routers find it there; when the config can be written, \
             `pgshard moves resume {id}`"
        ),
        Error::NotNow { .. } => String::new(),
        Error::Refused { refusals } => {
            let each: Vec<String> = refusals.iter().map(|refusal| format!("{refusal}: {}", refusal.remedy)).collect();
            format!("{}; then `pgshard moves resume {id}`", each.join("; "))
        }
        Error::GaveUp { .. } => {
            format!(
                "the source serves; end what blocks it, then `pgshard moves resume {id}`, or `pgshard moves abort {id}`"
            )
        }
        Error::Differs { .. } => {
            format!("the source serves; `pgshard moves abort {id}`, and find out which host's disk or memory is bad")
        }
        Error::TooLate { .. } => format!("`pgshard moves resume {id}`"),
        Error::Connect { .. } => {
            format!("when the host answers, `pgshard moves resume {id}`; how far it is, `pgshard moves show {id}`")
        }
        Error::PauseTooLong { .. } => {
            format!("allow more with --max-pause-s: `pgshard moves resume {id}`, or `pgshard moves abort {id}`")
        }
        Error::Stuck { .. } => format!(
            "`pgshard check` and `pgshard moves show {id}`; touch nothing before it is clear who has shard {shard}"
        ),
        error if error.can_be_resumed() => format!("`pgshard moves resume {id}`, or `pgshard moves abort {id}`"),
        _ => String::new(),
    }
}

/// An error before anything was done, as the command's end.
pub(crate) fn failure(error: Error) -> Failure {
    match error {
        Error::Refused { refusals } => {
            let each = refusals.iter().map(|refusal| format!("{refusal}\n  remedy: {}", refusal.remedy));
            Failure::several(Exit::Refused, each)
        }
        Error::NoSuchMove { .. } => Failure::usage(error).hint("see `pgshard moves list`"),
        error => {
            let exit = code(&error);
            Failure::new(exit, error)
        }
    }
}

fn code(error: &Error) -> Exit {
    match error {
        Error::Refused { .. } | Error::Claimed { .. } | Error::TooLate { .. } | Error::NotNow { .. } => Exit::Refused,
        Error::GaveUp { .. } | Error::PauseTooLong { .. } => Exit::GaveUp,
        Error::Differs { .. } => Exit::Differs,
        Error::Interrupted { .. } => Exit::Interrupted,
        Error::OtherHost { .. } => Exit::Usage,
        Error::Stuck { .. } | Error::UnknownHost { .. } | Error::NoSuchMove { .. } | Error::Connect { .. } => {
            Exit::Failed
        }
        _ => Exit::Waits,
    }
}

fn exit(verb: Verb, report: &Report) -> Exit {
    let codes = report.failed.iter().map(|(_, error)| match code(error) {
        // What waits is not a move: only its old copy is there.
        Exit::Waits if verb == Verb::Complete => Exit::Failed,
        // A move that is in the journal waits for the host that does not answer; a new one has not begun.
        Exit::Failed if verb == Verb::Resume && matches!(error, Error::Connect { .. }) => Exit::Waits,
        code => code,
    });
    let codes: Vec<Exit> = codes.collect();
    match codes.as_slice() {
        [] if report.unknown.is_empty() => Exit::Done,
        [] => Exit::Partly,
        codes if codes.contains(&Exit::Interrupted) => Exit::Interrupted,
        _ if !report.done.is_empty() => Exit::Partly,
        // A shard that waits for a resume is closed or half-built: that matters more than why another was refused.
        codes if codes.contains(&Exit::Waits) => Exit::Waits,
        [first, ..] => *first,
    }
}

fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    // A database error's own words are in it already.
    let mut cause = match error {
        Error::Database { .. } => None,
        error => std::error::Error::source(error),
    };
    while let Some(inner) = cause {
        text.push_str(&format!(": {inner}"));
        cause = inner.source();
    }
    text
}

fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e5).round() / 100.0
}
