//! `pgshard moves watch`: how far a move is, until it has ended; and the same table during a
//! mover's own work.

use std::collections::{BTreeMap, VecDeque};
use std::convert::Infallible;
use std::future::Future;
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pgshard::ShardId;
use pgshard::mover::{
    AuditState, Chunks, DesiredState, Mode, MoveId, Mover, Observer, Options, Phase, Progress,
    ShardProgress, StreamProgress,
};
use pgshard::pg::cause::chain;
use schemars::JsonSchema;
use serde::Serialize;

use super::{Fits, failure, find};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, drawn, seconds, size, terminal_columns, whole_seconds};
use crate::signals::Ending;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// How many looks a rate is measured over.
const LOOKS: usize = 30;

/// Shows a move until it has ended, or no mover works on it any more.
pub(crate) async fn watch(
    id: Option<&str>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let mover = mover(&config, Options::default(), Observer::silent());
    let id = find(&mover, id, Fits::Open).await?;
    let board = output.is_board().then(|| output.board());
    let mut meter = Meter::default();
    let mut told = LastReported::default();
    let mut ended_before = None;
    let mut ending = Ending::listen()?;
    loop {
        let progress = tokio::select! {
            progress = mover.progress(id) => progress.map_err(failure)?,
            () = ending.stop_requested() => return Ok(unwatched(id, board.as_ref(), output)),
        };
        let rate = meter.saw(&progress);
        match &board {
            Some(board) => board.set_message(table(&progress, rate, terminal_columns())),
            None => told.tell(&progress, rate, output)?,
        }
        let end = end(&progress);
        // Seen twice, because for a moment between two shards of a blocking move no mover may hold
        // any.
        if let (Some(exit), true) = (end, end == ended_before) {
            if let Some(board) = &board {
                board.finish_and_clear();
                output.data(table(&progress, None, terminal_columns()));
            }
            return Ok(finish(&progress, exit, output));
        }
        ended_before = end;
        if !output.is_taken() {
            return Ok(Exit::Done);
        }
        tokio::select! {
            () = tokio::time::sleep(EVERY) => {}
            () = ending.stop_requested() => return Ok(unwatched(id, board.as_ref(), output)),
        }
    }
}

/// Takes the table away, and notes that the move itself continues.
fn unwatched(id: MoveId, board: Option<&ProgressBar>, output: &Output) -> Exit {
    if let Some(board) = board {
        board.finish_and_clear();
    }
    output.note(format_args!("the move {id} goes on without being watched"));
    Exit::Interrupted
}

/// Does a mover's work, and shows the table on a terminal once the move has its ID.
pub(crate) async fn shown<T>(
    mover: &Mover,
    id: impl Fn() -> Option<MoveId>,
    output: &Output,
    work: impl Future<Output = T>,
) -> T {
    if !output.redraws() {
        return work.await;
    }
    let board = output.board();
    let outcome = tokio::select! {
        outcome = work => outcome,
        never = show(mover, id, &board) => match never {},
    };
    board.finish_and_clear();
    outcome
}

async fn show(mover: &Mover, id: impl Fn() -> Option<MoveId>, board: &ProgressBar) -> Infallible {
    let mut meter = Meter::default();
    loop {
        tokio::time::sleep(EVERY).await;
        let Some(id) = id() else { continue };
        // A host that does not answer is the mover's business.
        if let Ok(progress) = mover.progress(id).await {
            let rate = meter.saw(&progress);
            board.set_message(table(&progress, rate, terminal_columns()));
        }
    }
}

/// How a move that was looked at has ended; `None` while a mover works on it.
fn end(progress: &Progress) -> Option<Exit> {
    let phases = || progress.shards.iter().map(|shard| shard.entry.phase);
    if phases().all(Phase::is_ended) {
        let done = |phase| matches!(phase, Phase::Kept | Phase::Completed);
        return Some(
            match (phases().any(done), phases().any(|phase| !done(phase))) {
                (_, false) => Exit::Done,
                (true, true) => Exit::Partly,
                (false, true) => Exit::Failed,
            },
        );
    }
    let open = || {
        progress
            .shards
            .iter()
            .filter(|shard| !shard.entry.phase.is_ended())
    };
    open()
        .all(|shard| shard.entry.lease_left.is_zero())
        .then_some(Exit::Waits)
}

fn finish(progress: &Progress, exit: Exit, output: &Output) -> Exit {
    let mut phases: BTreeMap<&str, usize> = BTreeMap::new();
    for shard in &progress.shards {
        *phases.entry(shard.entry.phase.as_str()).or_default() += 1;
    }
    let id = progress.id;
    if output.format() == Format::Json {
        output.object(Line::Ended {
            r#move: id.to_string(),
            phases,
            exit_code: exit.code(),
        });
    }
    if exit == Exit::Waits {
        for shard in progress
            .shards
            .iter()
            .filter(|shard| !shard.entry.phase.is_ended())
        {
            if let Some(error) = &shard.entry.last_error {
                output.note(format_args!("shard {}: {error}", shard.entry.shard));
            }
        }
        output.error_with_remedy(
            format_args!("no command works on the move {id}"),
            &format!("`pgshard moves resume {id}`, or `pgshard moves abort {id}`"),
        );
    }
    exit
}

/// How fast rows are copied, and how long the rest takes.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct Rate {
    per_second: f64,
    left: Option<Duration>,
}

/// The looks of the last half minute.
#[derive(Default)]
pub(in super::super) struct Meter(VecDeque<(Instant, u64)>);

impl Meter {
    /// Notes how much is there. The rate, once there are two looks and something is missing.
    pub(in super::super) fn saw(&mut self, progress: &Progress) -> Option<Rate> {
        let bytes = progress.shards.iter().map(|shard| shard.chunks.bytes).sum();
        let copying = progress.shards.iter().filter(|shard| is_copied_now(shard));
        let chunks: Vec<Chunks> = copying.map(|shard| shard.chunks).collect();
        let is_all_known = progress.shards.iter().all(|shard| !is_uncut(shard));
        self.note(Instant::now(), bytes, &chunks, is_all_known)
    }

    /// A chunk counts when it is whole. So the rate is measured from the first one to the last one
    /// that was; since then the remaining time runs down.
    fn note(
        &mut self,
        now: Instant,
        bytes: u64,
        chunks: &[Chunks],
        is_all_known: bool,
    ) -> Option<Rate> {
        // Shards that have ended have no chunks any more.
        if self.0.back().is_some_and(|(_, before)| *before > bytes) {
            self.0.clear();
        }
        self.0.push_back((now, bytes));
        if self.0.len() > LOOKS {
            self.0.pop_front();
        }
        let (since, before) = *self.0.front()?;
        if chunks.is_empty() || now == since {
            return None;
        }
        let mut changes = self.0.iter().zip(self.0.iter().skip(1));
        let changes = changes.by_ref().filter(|((_, one), (_, next))| one != next);
        let changes: Vec<(Instant, u64)> = changes.map(|(_, next)| *next).collect();
        let (since, before) = match changes.as_slice() {
            [first, _, ..] => *first,
            _ => (since, before),
        };
        let moved = changes.last().map_or(since, |(moved, _)| *moved);
        let took = moved.duration_since(since).as_secs_f64();
        if took <= 0.0 {
            return Some(Rate {
                per_second: 0.0,
                left: None,
            });
        }
        let per_second = (bytes - before) as f64 / took;
        let missing = missing(chunks).filter(|_| is_all_known);
        let left = missing.and_then(|missing| {
            let whole = Duration::try_from_secs_f64(missing / per_second).ok()?;
            let left = whole.saturating_sub(now.duration_since(moved));
            (left.as_secs() > 0).then_some(left)
        });
        Some(Rate { per_second, left })
    }
}

/// About how many bytes are not copied yet, by the chunks that are: those of the same shard, or of
/// all if it has none. `None` if no chunk is copied.
fn missing(chunks: &[Chunks]) -> Option<f64> {
    let (copied, bytes) = chunks.iter().fold((0, 0), |(copied, bytes), one| {
        (copied + one.copied, bytes + one.bytes)
    });
    let of_all = (copied > 0).then(|| bytes as f64 / copied as f64)?;
    let of_one = |one: &Chunks| {
        let each = match one.copied {
            0 => of_all,
            copied => one.bytes as f64 / copied as f64,
        };
        each * one.all.saturating_sub(one.copied) as f64
    };
    Some(chunks.iter().map(of_one).sum())
}

/// Whether it is not known yet how much of a shard is to be copied.
fn is_uncut(shard: &ShardProgress) -> bool {
    shard.entry.mode == Mode::Online
        && shard.entry.phase <= Phase::Prepared
        && shard.chunks.all == 0
}

fn is_copied_now(shard: &ShardProgress) -> bool {
    shard.entry.mode == Mode::Online
        && shard.entry.phase <= Phase::Prepared
        && shard.chunks.copied < shard.chunks.all
}

/// All of it, as a table and a line for each stream.
fn table(progress: &Progress, rate: Option<Rate>, columns_max: Option<usize>) -> String {
    let columns = [
        ("shard", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("phase", Align::Left),
        ("chunks", Align::Right),
        ("bytes", Align::Right),
        ("attempt", Align::Right),
        ("", Align::Left),
    ];
    let rows = progress.shards.iter().map(|shard| {
        let entry = &shard.entry;
        [
            entry.shard.to_string(),
            entry.source.to_string(),
            entry.target.to_string(),
            entry.phase.to_string(),
            chunks(shard).unwrap_or_else(|| "-".to_owned()),
            bytes(shard).map_or_else(|| "-".to_owned(), size),
            entry.attempt.to_string(),
            remarks(shard).join("; "),
        ]
    });
    let mut lines = vec![
        format!("move {}", progress.id),
        drawn(&columns, rows, columns_max),
    ];
    lines.extend(rate.map(|rate| words(&rate)));
    lines.extend(progress.streams.iter().map(stream));
    lines.extend(progress.reverse_streams.iter().map(reverse));
    lines.extend(
        progress
            .unknown
            .iter()
            .map(|(host, error)| format!("host {host}: {}", chain(error))),
    );
    lines.join("\n")
}

/// `3/12`; with how many were compared, once one was.
pub(in super::super) fn chunks(shard: &ShardProgress) -> Option<String> {
    let chunks = shard.chunks;
    let compared = if chunks.verified > 0 {
        format!(", {} compared", chunks.verified)
    } else {
        String::new()
    };
    (chunks.all > 0).then(|| format!("{}/{}{compared}", chunks.copied, chunks.all))
}

fn bytes(shard: &ShardProgress) -> Option<u64> {
    let written = shard
        .entry
        .bytes
        .and_then(|bytes| u64::try_from(bytes).ok());
    written.or((shard.chunks.all > 0).then_some(shard.chunks.bytes))
}

/// Further remarks about a shard.
pub(in super::super) fn remarks(shard: &ShardProgress) -> Vec<String> {
    let entry = &shard.entry;
    let mut remarks = Vec::new();
    if !entry.phase.is_ended() {
        match (entry.desired, entry.hold_until) {
            (DesiredState::Pause, _) => remarks.push("paused".to_owned()),
            (DesiredState::Hold, Some(until)) => remarks.push(format!("held until {until}")),
            (DesiredState::Hold, None) => remarks.push("held".to_owned()),
            _ => {}
        }
        if entry.lease_left.is_zero() {
            remarks.push("no command works on it".to_owned());
        }
    }
    if entry.audit.state == AuditState::UnderWay {
        remarks.push("its rows are being compared".to_owned());
    }
    remarks.extend(shard.blockers.iter().cloned());
    if let (Some(error), false) = (&entry.last_error, entry.phase.is_ended()) {
        remarks.push(error.clone());
    }
    remarks
}

pub(in super::super) fn words(rate: &Rate) -> String {
    let left = rate
        .left
        .map(|left| format!(", {} left", whole_seconds(left)))
        .unwrap_or_default();
    format!("copying at {}/s{left}", size(rate.per_second as u64))
}

pub(in super::super) fn stream(progress: &StreamProgress) -> String {
    let mut text = format!("{} keeps {} of WAL", progress.source, size(progress.kept));
    match (&progress.wal_status, progress.pid) {
        (None, _) => text = format!("{}: no slot yet", progress.source),
        (Some(status), Some(_)) => text.push_str(&format!(
            " ({status}); the target is {} behind",
            size(progress.lag_bytes)
        )),
        (Some(status), None) => text.push_str(&format!(
            " ({status}), {} to apply later",
            size(progress.lag_bytes)
        )),
    }
    if let Some(lag) = progress.lag {
        text.push_str(&format!(", {}", seconds(lag)));
    }
    for blocker in &progress.blockers {
        text.push_str(&format!("; waits for {blocker}"));
    }
    text
}

/// What the host that serves keeps for a reverse replication.
pub(in super::super) fn reverse(progress: &StreamProgress) -> String {
    let fed = match progress.pid {
        Some(_) => format!("the old copies are {} behind", size(progress.lag_bytes)),
        None => "until `pgshard moves feed` applies it to the old copies".to_owned(),
    };
    format!(
        "{} keeps {} of WAL for the reverse replication, {fed}",
        progress.source,
        size(progress.kept)
    )
}

/// What was last printed for each shard and stream, so that only changes are printed.
#[derive(Default)]
struct LastReported {
    shards: BTreeMap<ShardId, String>,
    streams: BTreeMap<String, String>,
}

impl LastReported {
    fn tell(
        &mut self,
        progress: &Progress,
        rate: Option<Rate>,
        output: &Output,
    ) -> Result<(), Failure> {
        for shard in &progress.shards {
            // Neither a rate nor a lease that was renewed is news.
            let mut news = vec![shard.entry.phase.to_string()];
            news.extend(chunks(shard).map(|chunks| format!("{chunks} chunks")));
            news.extend(bytes(shard).map(size));
            if shard.entry.attempt > 0 {
                news.push(format!("attempt {}", shard.entry.attempt));
            }
            let said = [news, remarks_without_age(shard)].concat().join(", ");
            if self.shards.get(&shard.entry.shard) == Some(&said) {
                continue;
            }
            match output.format() {
                Format::Json => output.object(Line::shard(shard, rate)),
                Format::Text => {
                    let (shard, rate) = (
                        shard.entry.shard,
                        rate.map(|rate| format!("; {}", words(&rate))),
                    );
                    output.data(format_args!(
                        "shard {shard}: {said}{}",
                        rate.unwrap_or_default()
                    ));
                }
            }
            self.shards.insert(shard.entry.shard, said);
        }
        let streams = progress
            .streams
            .iter()
            .map(|found| (found, stream as fn(&StreamProgress) -> String));
        let reverse_streams = progress
            .reverse_streams
            .iter()
            .map(|found| (found, reverse as fn(&StreamProgress) -> String));
        for (found, words) in streams.chain(reverse_streams) {
            let coarse = |bytes: u64| bytes.checked_ilog2().unwrap_or(0);
            let said = format!(
                "{:?} {} {} {:?}",
                found.wal_status,
                found.pid.is_some(),
                coarse(found.kept),
                found.blockers
            );
            // People want a line when it doubles; programs every look.
            let changed = self
                .streams
                .insert(found.slot.clone(), said.clone())
                .is_none_or(|before| before != said);
            match output.format() {
                Format::Json => output.object(Line::stream(found)),
                Format::Text if changed => output.data(words(found)),
                Format::Text => {}
            }
        }
        for (host, error) in &progress.unknown {
            let said = chain(error);
            if self
                .streams
                .insert(host.to_string(), said.clone())
                .is_none_or(|before| before != said)
            {
                output.warning(format_args!("host {host}: {said}"));
            }
        }
        Ok(())
    }
}

/// The remarks without the age of a blocker's transaction, which changes with every look.
fn remarks_without_age(shard: &ShardProgress) -> Vec<String> {
    let cut = |text: String| match (text.find(", its transaction is "), text.find(" s old")) {
        (Some(from), Some(to)) if from < to => {
            format!("{}{}", &text[..from], &text[to + " s old".len()..])
        }
        _ => text,
    };
    remarks(shard).into_iter().map(cut).collect()
}

#[derive(JsonSchema, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Line<'a> {
    Shard {
        #[schemars(with = "u16")]
        shard: ShardId,
        source: &'a str,
        target: &'a str,
        phase: &'static str,
        desired: &'static str,
        attempt: i32,
        chunks: u64,
        chunks_copied: u64,
        chunks_compared: u64,
        rows: u64,
        bytes: u64,
        bytes_per_second: Option<u64>,
        left_ms: Option<u64>,
        holder: Option<&'a str>,
        blockers: &'a [String],
        last_error: Option<&'a str>,
    },
    Stream {
        source: &'a str,
        slot: &'a str,
        pid: Option<i32>,
        wal_status: Option<&'a str>,
        wal_kept: u64,
        lag_bytes: u64,
        lag_ms: Option<u64>,
        blockers: &'a [String],
    },
    Ended {
        r#move: String,
        phases: BTreeMap<&'a str, usize>,
        exit_code: u8,
    },
}

impl Line<'_> {
    fn shard(shard: &ShardProgress, rate: Option<Rate>) -> Line<'_> {
        let (entry, chunks) = (&shard.entry, shard.chunks);
        Line::Shard {
            shard: entry.shard,
            source: entry.source.as_str(),
            target: entry.target.as_str(),
            phase: entry.phase.as_str(),
            desired: entry.desired.as_str(),
            attempt: entry.attempt,
            chunks: chunks.all,
            chunks_copied: chunks.copied,
            chunks_compared: chunks.verified,
            rows: entry
                .rows
                .and_then(|rows| u64::try_from(rows).ok())
                .unwrap_or(chunks.rows),
            bytes: bytes(shard).unwrap_or(0),
            bytes_per_second: rate.map(|rate| rate.per_second as u64),
            left_ms: rate
                .and_then(|rate| rate.left)
                .map(|left| left.as_millis() as u64),
            holder: (!entry.lease_left.is_zero()).then_some(entry.holder.as_str()),
            blockers: &shard.blockers,
            last_error: entry.last_error.as_deref(),
        }
    }

    fn stream(found: &StreamProgress) -> Line<'_> {
        Line::Stream {
            source: found.source.as_str(),
            slot: &found.slot,
            pid: found.pid,
            wal_status: found.wal_status.as_deref(),
            wal_kept: found.kept,
            lag_bytes: found.lag_bytes,
            lag_ms: found.lag.map(|lag| lag.as_millis() as u64),
            blockers: &found.blockers,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunks(all: u64, copied: u64, bytes: u64) -> Chunks {
        Chunks {
            all,
            copied,
            bytes,
            ..Chunks::default()
        }
    }

    /// Chunks of 9 MB that take three looks each.
    #[test]
    fn the_time_that_a_copy_takes_never_grows() {
        let began = Instant::now();
        let mut meter = Meter::default();
        let mut least: Option<Duration> = None;
        for second in 0..60_u64 {
            let copied = second / 3;
            let now = began + Duration::from_secs(second);
            let one = chunks(20, copied, copied * 9_000_000);
            let rate = meter.note(now, one.bytes, &[one], true);
            let Some(Rate { per_second, left }) = rate else {
                assert_eq!(second, 0);
                continue;
            };
            if copied == 0 {
                assert_eq!((per_second, left), (0.0, None));
                continue;
            }
            assert!((2_999_999.0..3_000_001.0).contains(&per_second), "{second}");
            let left = left.unwrap_or_default();
            assert!(left <= least.unwrap_or(Duration::MAX), "{second}: {left:?}");
            let truth = Duration::from_secs(60 - second);
            assert!(left.abs_diff(truth) <= Duration::from_secs(1), "{second}");
            least = Some(left);
        }
    }

    #[test]
    fn a_copy_that_stands_still_claims_no_time() {
        let began = Instant::now();
        let mut meter = Meter::default();
        let mut note = |second, bytes| {
            let one = chunks(4, 1, bytes);
            meter.note(began + Duration::from_secs(second), bytes, &[one], true)
        };
        note(0, 0);
        assert!(note(1, 1000).is_some_and(|rate| rate.left == Some(Duration::from_secs(3))));
        for second in 4..=30 {
            assert!(note(second, 1000).is_some_and(|rate| rate.left.is_none()));
        }
        // The looks of half a minute know of no byte that came.
        let last = (31..=70).map(|second| note(second, 1000)).last();
        assert!(last.flatten().is_some_and(|rate| rate.per_second == 0.0));
    }

    /// A shard of large chunks is a poor measure for one of small chunks, and none for one with
    /// tables that were not measured yet.
    #[test]
    fn what_is_missing_is_counted_by_shard() {
        let (large, small, none) = (chunks(10, 5, 500), chunks(10, 5, 50), chunks(2, 0, 0));
        assert_eq!(missing(&[large, small]), Some(550.0));
        assert_eq!(missing(&[large, none]), Some(700.0));
        assert_eq!(missing(&[none]), None);
        let began = Instant::now();
        let mut meter = Meter::default();
        meter.note(began, 0, &[chunks(10, 0, 0)], false);
        let rate = meter.note(began + Duration::from_secs(1), 500, &[large], false);
        assert!(rate.is_some_and(|rate| rate.per_second == 500.0 && rate.left.is_none()));
    }
}
