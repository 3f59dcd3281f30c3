//! Runs a plan wave by wave, with one request to the mover for each group.
//!
//! A shard that preflight refuses, or that cannot be fenced, is left where it is, and the rest is
//! planned again around it. Anything worse ends the run after its wave; the next run queries the
//! hosts again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pgshard::ShardId;
use pgshard::map::print_shards;
use pgshard::mover::{AuditState, Error, Mode, MoveId, Mover, Report, Request};
use pgshard::pg::cause::chain;
use pgshard::rebalance::{Constraint, Group, Pace, Problem, Wave, plan, waves};

use super::super::measure::describe_error;
use super::super::moves::{self, Verb, millis};
use super::events::{FailedShard, RebalanceEvent, RebalanceSummary, WaveGroup};
use super::watch::Watcher;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output, counted, seconds, size};

/// A shard that did not get where it should.
struct UnmovedShard {
    shard: ShardId,
    exit: Exit,
    message: String,
    remedy: String,
}

/// A run and what it has done so far.
pub(super) struct Run<'a> {
    mover: &'a Mover,
    watcher: &'a Watcher,
    output: &'a Output,
    mode: Option<Mode>,
    completes: bool,
    started: Instant,
    moved: BTreeSet<ShardId>,
    /// Shards of moves that were open before.
    finished: BTreeSet<ShardId>,
    /// Shards that another mover has already moved to their target.
    there: BTreeSet<ShardId>,
    /// Shards that another mover works on, and which one: a clause that follows them.
    left_alone: BTreeMap<ShardId, String>,
    bytes: u64,
    waves: usize,
    longest_pause: Duration,
    /// The moves with kept old copies.
    kept: Vec<MoveId>,
    moves: Vec<MoveId>,
    failed: Vec<UnmovedShard>,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        mover: &'a Mover,
        watcher: &'a Watcher,
        output: &'a Output,
        mode: Option<Mode>,
        completes: bool,
    ) -> Run<'a> {
        Run {
            mover,
            watcher,
            output,
            mode,
            completes,
            started: Instant::now(),
            moved: BTreeSet::new(),
            finished: BTreeSet::new(),
            there: BTreeSet::new(),
            left_alone: BTreeMap::new(),
            bytes: 0,
            waves: 0,
            longest_pause: Duration::ZERO,
            kept: Vec::new(),
            moves: Vec::new(),
            failed: Vec::new(),
        }
    }

    /// Who moves the shards.
    pub(super) fn mover(&self) -> &'a Mover {
        self.mover
    }

    /// The shards that did not get where they should.
    pub(super) fn failed_shards(&self) -> BTreeSet<ShardId> {
        self.failed.iter().map(|failed| failed.shard).collect()
    }

    /// Takes the shards that another mover works on, with which one it is.
    pub(super) fn left_alone(&mut self) -> BTreeMap<ShardId, String> {
        std::mem::take(&mut self.left_alone)
    }

    /// Finishes moves that an earlier run left open. `open` are their shards that had not ended.
    pub(super) async fn resume(&mut self, ids: BTreeSet<MoveId>, open: &BTreeSet<ShardId>) {
        for id in ids {
            if self.mover.is_stopped() {
                return;
            }
            match self.mover.resume(id).await {
                Ok(mut report) => {
                    let busy = report
                        .failed
                        .extract_if(.., |(_, error)| matches!(error, Error::AtWork { .. }));
                    let busy: Vec<_> = busy.collect();
                    for (shard, error) in &busy {
                        let remedy = moves::remedy(Verb::Resume, *shard, error, id);
                        let why = format!("are being moved: {}\n  remedy: {remedy}", chain(error));
                        self.left_alone.insert(*shard, why);
                    }
                    let done = report
                        .done
                        .iter()
                        .map(|done| done.shard)
                        .filter(|shard| open.contains(shard));
                    self.finished.extend(done);
                    self.take(&report, busy.is_empty()).await;
                }
                // Another command has finished or aborted it during that time.
                Err(Error::NoSuchMove { .. }) => {}
                Err(error) => self
                    .output
                    .warning(format_args!("move {id}: {}", chain(&error))),
            }
        }
    }

    /// Makes all moves of the problem's plan, wave by wave.
    ///
    /// # Errors
    /// When the problem contradicts itself, which it did not when it was planned before.
    pub(super) async fn waves(&mut self, mut problem: Problem, pace: Pace) -> Result<(), Failure> {
        let weight: HashMap<ShardId, u64> = problem
            .shards
            .iter()
            .map(|shard| (shard.shard, shard.bytes))
            .collect();
        let mut announced = false;
        'plan: loop {
            let planned = plan(&problem)?;
            if !announced {
                self.watcher.begin(planned.moves.len());
                announced = true;
            }
            let all = waves(&problem, &planned.moves, pace)?;
            for (at, wave) in all.iter().enumerate() {
                if self.mover.is_stopped() {
                    break 'plan;
                }
                self.tell_wave(wave, self.waves + 1, self.waves + all.len() - at);
                let before = (self.moved.clone(), self.failed.len());
                for ended in join_all(wave.groups.iter().map(|group| self.group(group))).await {
                    self.settle(ended).await;
                }
                self.waves += 1;
                for group in &wave.groups {
                    for shard in problem
                        .shards
                        .iter_mut()
                        .filter(|shard| group.shards.contains(&shard.shard))
                    {
                        if self.there.contains(&shard.shard) {
                            shard.host = group.target.clone();
                        } else if self.moved.contains(&shard.shard)
                            && !before.0.contains(&shard.shard)
                        {
                            shard.host = group.target.clone();
                            self.bytes += weight.get(&shard.shard).copied().unwrap_or(0);
                            problem.options.moves_max =
                                problem.options.moves_max.map(|most| most.saturating_sub(1));
                        }
                    }
                }
                let failed = &self.failed[before.1..];
                if failed
                    .iter()
                    .any(|failed| !matches!(failed.exit, Exit::Refused | Exit::GaveUp))
                {
                    break 'plan;
                }
                if !failed.is_empty() {
                    let failed: BTreeSet<ShardId> =
                        failed.iter().map(|failed| failed.shard).collect();
                    for shard in problem
                        .shards
                        .iter_mut()
                        .filter(|shard| failed.contains(&shard.shard))
                    {
                        shard.constraint = Constraint::Stays;
                    }
                    continue 'plan;
                }
            }
            break;
        }
        self.watcher.finish();
        Ok(())
    }

    fn tell_wave(&self, wave: &Wave, number: usize, waves: usize) {
        let told = |group: &Group| WaveGroup {
            source: group.source.to_string(),
            target: group.target.to_string(),
            shards: print_shards(group.shards.iter().copied().collect::<BTreeSet<_>>()),
        };
        let groups: Vec<WaveGroup> = wave.groups.iter().map(told).collect();
        let words: Vec<String> = groups
            .iter()
            .map(|group| format!("{} -> {}: {}", group.source, group.target, group.shards))
            .collect();
        self.output.note(format_args!(
            "wave {number} of {waves}: {}",
            words.join("; ")
        ));
        self.watcher.print(RebalanceEvent::Wave {
            wave: number,
            waves,
            groups,
        });
    }

    /// Plans and runs one group; without the shards that preflight refuses.
    async fn group(&self, group: &Group) -> GroupEnd {
        let mut ended = GroupEnd::default();
        let mut request = Request::new(group.shards.clone(), group.target.clone()).mode(self.mode);
        // Each round leaves at least one shard out.
        while !request.shards.is_empty() && !self.mover.is_stopped() {
            let error = match self.mover.plan(&request).await {
                Ok(plan) => {
                    ended.there = plan.already_there.clone();
                    ended.report = Some(self.mover.run(&plan).await);
                    return ended;
                }
                Err(error) => error,
            };
            let named: BTreeSet<ShardId> = match &error {
                Error::Refused { refusals } => refusals
                    .iter()
                    .filter_map(|refusal| refusal.shard)
                    .collect(),
                _ => BTreeSet::new(),
            };
            let refused: Vec<ShardId> = request
                .shards
                .iter()
                .copied()
                .filter(|shard| named.is_empty() || named.contains(shard))
                .collect();
            for shard in &refused {
                ended.refused.push(UnmovedShard {
                    shard: *shard,
                    ..refusal_of(*shard, &error)
                });
            }
            if refused.is_empty() {
                return ended;
            }
            request.shards.retain(|shard| !refused.contains(shard));
        }
        ended
    }

    async fn settle(&mut self, ended: GroupEnd) {
        self.there.extend(ended.there);
        self.failed.extend(ended.refused);
        if let Some(report) = ended.report {
            self.moved.extend(report.done.iter().map(|done| done.shard));
            self.take(&report, true).await;
        }
    }

    /// Takes in how a move ended; drops its old copies if that was requested and no other mover is
    /// at work on it.
    async fn take(&mut self, report: &Report, alone: bool) {
        self.moves.push(report.id);
        for done in &report.done {
            self.longest_pause = self.longest_pause.max(done.pause.unwrap_or_default());
            if done.audit.state == AuditState::Differs {
                let message = format!(
                    "{} did not have all that {} had: {}",
                    done.target, done.source, done.audit
                );
                let remedy = moves::DIFFERS.to_owned();
                self.failed.push(UnmovedShard {
                    shard: done.shard,
                    exit: Exit::Differs,
                    message,
                    remedy,
                });
            }
        }
        for (shard, error) in &report.failed {
            let remedy = moves::remedy(Verb::Resume, *shard, error, report.id);
            self.failed.push(UnmovedShard {
                shard: *shard,
                exit: moves::code(error),
                message: describe_error(error),
                remedy,
            });
        }
        if report.done.is_empty() {
            return;
        }
        if !self.completes || !report.failed.is_empty() || !alone {
            self.kept.push(report.id);
            return;
        }
        let wrong: Vec<String> = match self.mover.complete(report.id).await {
            Ok(completed) => completed
                .failed
                .iter()
                .map(|(_, error)| chain(error))
                .collect(),
            Err(error) => vec![chain(&error)],
        };
        if !wrong.is_empty() {
            self.kept.push(report.id);
            self.output.warning(format_args!(
                "old copies of move {} are kept: {}",
                report.id,
                wrong.join("; ")
            ));
        }
    }

    /// What a run ends with that fails before its plan is done. What it has done counts, and so do
    /// the shards that have failed before.
    pub(super) fn fail(&self, failure: Failure) -> Failure {
        if self.finished.is_empty() && self.moved.is_empty() && self.failed.is_empty() {
            return failure;
        }
        self.tell_done();
        match self.code() {
            Exit::Done => failure.ends(Exit::Partly),
            code => failure.ends(code),
        }
    }

    /// The last word, and the exit code.
    pub(super) fn end(&self, told: ReportState) -> Exit {
        self.tell_done();
        if self.mover.is_stopped() || told == ReportState::InPart {
            let how = format!(
                "it finishes what is open and plans the rest again: {}",
                this_command(&mut std::env::args())
            );
            return self.output.interrupted(Some(&how));
        }
        self.hint_at_old_copies();
        self.code()
    }

    /// What the shards that have failed mean for the exit code.
    fn code(&self) -> Exit {
        let codes: Vec<Exit> = self.failed.iter().map(|failed| failed.exit).collect();
        match codes.as_slice() {
            [] => Exit::Done,
            // Rows may be lost.
            codes if codes.contains(&Exit::Differs) => Exit::Differs,
            _ if !self.moved.is_empty() || !self.finished.is_empty() => Exit::Partly,
            codes if codes.contains(&Exit::Waits) => Exit::Waits,
            [first, ..] => *first,
        }
    }

    fn tell_done(&self) {
        let elapsed = self.started.elapsed();
        if self.output.format() == Format::Json {
            let failed = |failed: &UnmovedShard| FailedShard {
                shard: failed.shard,
                message: failed.message.clone(),
            };
            self.watcher.print(RebalanceEvent::Done(RebalanceSummary {
                moved: self.moved.len(),
                finished: self.finished.len(),
                there: self.there.len(),
                bytes: self.bytes,
                waves: self.waves,
                pause_ms_max: millis(self.longest_pause),
                total_ms: elapsed.as_millis(),
                moves: self.moves.iter().map(ToString::to_string).collect(),
                failed: self.failed.iter().map(failed).collect(),
            }));
        }
        if !self.finished.is_empty() {
            self.output.note(format_args!(
                "finished {} of moves that were open before",
                counted(self.finished.len(), "shard")
            ));
        }
        if !self.there.is_empty() {
            self.output.note(format_args!(
                "another command has moved {}",
                counted(self.there.len(), "shard")
            ));
        }
        if !self.moved.is_empty() {
            let (moved, pause) = (
                counted(self.moved.len(), "shard"),
                millis(self.longest_pause),
            );
            let (bytes, took) = (size(self.bytes), seconds(elapsed));
            self.output.note(format_args!(
                "moved {moved}, {bytes}, in {took}; the longest pause was {pause} ms"
            ));
        }
        let failed = self
            .failed
            .iter()
            .filter(|failed| failed.exit != Exit::Interrupted);
        let told =
            failed.map(|failed| (failed.shard, failed.message.clone(), failed.remedy.clone()));
        moves::tell_by_cause(told, self.output);
        if !self.failed.is_empty() {
            let all = self.failed.len() + self.moved.len();
            self.output.note(format_args!(
                "{} of {} moved",
                self.moved.len(),
                counted(all, "shard")
            ));
        }
    }

    fn hint_at_old_copies(&self) {
        match self.kept.as_slice() {
            [] => {}
            [only] => {
                self.output.hint(format_args!(
                    "the old copies are kept; drop them with `pgshard moves \
                        complete {only}`"
                ));
            }
            several => self.output.hint(format_args!(
                "the old copies of {} moves are kept: `pgshard moves` lists them, `pgshard moves \
                    complete ID` drops those of one",
                several.len()
            )),
        }
    }
}

/// Whether a run has reported everything that it had to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportState {
    Whole,
    /// It was interrupted.
    InPart,
}

/// How a group ended.
#[derive(Default)]
struct GroupEnd {
    report: Option<Report>,
    there: Vec<ShardId>,
    refused: Vec<UnmovedShard>,
}

fn refusal_of(shard: ShardId, error: &Error) -> UnmovedShard {
    let (message, remedy) = match error {
        Error::Refused { refusals } => {
            let own = refusals
                .iter()
                .filter(|refusal| refusal.shard.is_none_or(|named| named == shard));
            let (messages, remedies): (Vec<String>, Vec<String>) = own
                .map(|refusal| (refusal.to_string(), refusal.remedy.clone()))
                .unzip();
            (messages.join("; "), remedies.join("; "))
        }
        error => (
            describe_error(error),
            "`pgshard check`, then the same command again".to_owned(),
        ),
    };
    UnmovedShard {
        shard,
        exit: moves::code(error),
        message,
        remedy,
    }
}

/// The command line that continues this run.
fn this_command(by: &mut dyn Iterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=%@,+".contains(c);
    let quoted = |arg: String| {
        if !arg.is_empty() && arg.chars().all(plain) {
            arg
        } else {
            format!("'{}'", arg.replace('\'', r"'\''"))
        }
    };
    let args: Vec<String> = by.skip(1).map(quoted).collect();
    format!("pgshard {}", args.join(" "))
}
