//! How a move ended: the table, the last event, what to do about what failed, the exit code.

use std::collections::BTreeMap;
use std::time::Duration;

use pgshard::ShardId;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{AuditState, Error, MoveId, Phase, Plan, Report, Rival};
use pgshard::pg::cause::chain;
use tokio_postgres::error::SqlState;

use super::audit::{self, ShownAudit};
use super::events::{FailedShard, MoveEvent, MoveSummary, millis};
use super::find::CORRECT_THE_CONFIG;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted, seconds};

/// What to do with a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    /// Continue.
    Resume,
    /// Undo. A live mover is requested to do it.
    Abort {
        /// How long to wait for that mover.
        patience: Duration,
    },
    /// Take shards back.
    Rollback,
    /// Compare the old copies with the new ones.
    Audit,
    /// Drop the old copies.
    Complete,
}

/// What to do about a shard if its audit has found a difference.
pub(crate) const DIFFERS: &str = "its old copy is right, and so is what was written since: see \
    docs/differs.md, \"A move that differs\"";

/// Prints how a move ended, or what `verb` has done with it, and returns the exit code.
pub(crate) fn print_end(verb: Verb, report: &Report, elapsed: Duration, output: &Output) -> Exit {
    show(report, elapsed, output);
    tell_audits(report, output);
    let failed = report
        .failed
        .iter()
        .filter(|(_, error)| !matches!(error, Error::AtWork { .. }));
    let told =
        failed.map(|(shard, error)| (*shard, chain(error), remedy(verb, *shard, error, report.id)));
    tell_by_cause(told, output);
    for (who, (shard, error)) in at_work(report) {
        let shards = if who.1.contains(['-', ',']) {
            "shards"
        } else {
            "shard"
        };
        let words = format!(
            "{shards} {} of the move {} were left alone: {} works on them",
            who.1, report.id, who.0
        );
        output.error_with_remedy(words, &remedy(verb, *shard, error, report.id));
    }
    for (host, error) in &report.unknown {
        output.error_with_remedy(
            format_args!(
                "host {host} may have more shards of this move: {}",
                chain(error)
            ),
            "look with `pgshard moves show` when it answers",
        );
    }
    if report.failed.is_empty() && report.done.iter().any(|done| done.phase == Phase::Kept) {
        hint_at_old_copies(verb, report, output);
    }
    exit(verb, report)
}

/// Prints what shards failed with and what to do, those with the same cause and remedy together: a
/// host that dies fails many of them in the same way.
pub(crate) fn tell_by_cause(
    failed: impl IntoIterator<Item = (ShardId, String, String)>,
    output: &Output,
) {
    let mut causes: Vec<((String, String), Vec<ShardId>)> = Vec::new();
    for (shard, words, remedy) in failed {
        let remedy = remedy.replace(&format!("moves repair {shard} "), "moves repair SHARD ");
        let cause = (without_shard(&words, shard), remedy);
        match causes.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, shards)) => shards.push(shard),
            None => causes.push((cause, vec![shard])),
        }
    }
    for ((words, remedy), shards) in causes {
        match shards.as_slice() {
            [only] => {
                let remedy =
                    remedy.replace("moves repair SHARD ", &format!("moves repair {only} "));
                output.error_with_remedy(format_args!("shard {only}: {words}"), &remedy);
            }
            several => {
                let (count, list) = (several.len(), print_shards(several.iter().copied()));
                output.error_with_remedy(format_args!("{count} shards ({list}): {words}"), &remedy);
            }
        }
    }
}

/// An error's text without the shard at its beginning, which is printed before it. That a shard of
/// a group stays where it is adds nothing: the error of the group comes after it.
fn without_shard(words: &str, shard: ShardId) -> String {
    let mut rest = words;
    let group = format!("shard {shard} is left where it is: ");
    for start in [
        group,
        format!("shard {shard} was not claimed: "),
        format!("shard {shard}: "),
    ] {
        rest = rest.strip_prefix(&start).unwrap_or(rest);
    }
    rest.to_owned()
}

/// The shards that got where they should: an object, or a table.
fn show(report: &Report, elapsed: Duration, output: &Output) {
    let hosts = |host: fn(&pgshard::mover::ShardReport) -> &HostName| {
        let mut names: Vec<&str> = report.done.iter().map(|done| host(done).as_str()).collect();
        names.sort_unstable();
        names.dedup();
        names.join(",")
    };
    let pauses = report
        .done
        .iter()
        .filter_map(|done| Some((done.shard, done.pause?)));
    if output.format() == Format::Json {
        output.object(MoveEvent::Done(MoveSummary {
            r#move: report.id.to_string(),
            shards: print_shards(report.done.iter().map(|done| done.shard)),
            source: hosts(|done| &done.source),
            target: hosts(|done| &done.target),
            rows: report.done.iter().map(|done| done.rows).sum(),
            bytes: report.done.iter().map(|done| done.bytes).sum(),
            copy_ms: millis(
                report
                    .done
                    .iter()
                    .map(|done| done.copy)
                    .max()
                    .unwrap_or_default(),
            ),
            pause_ms: pauses
                .map(|(shard, pause)| (shard.to_string(), millis(pause)))
                .collect(),
            total_ms: elapsed.as_millis(),
            audits: report
                .done
                .iter()
                .map(|done| (done.shard.to_string(), ShownAudit::of(&done.audit)))
                .collect(),
            failed: report
                .failed
                .iter()
                .map(|(shard, error)| FailedShard {
                    shard: *shard,
                    message: chain(error),
                })
                .collect(),
        }));
    } else {
        let columns = [
            ("shard", Align::Right),
            ("from", Align::Left),
            ("to", Align::Left),
            ("now", Align::Left),
            ("copied", Align::Right),
            ("copy", Align::Right),
            ("pause", Align::Right),
            ("audit", Align::Left),
        ];
        let rows = report.done.iter().map(|done| {
            let pause = done.pause.map_or_else(
                || "-".to_owned(),
                |pause| format!("{:.1} ms", millis(pause)),
            );
            let copy = format!("{:.1} ms", millis(done.copy));
            let (shard, phase) = (done.shard.to_string(), done.phase.to_string());
            let (source, target) = (done.source.to_string(), done.target.to_string());
            let audit = audit::word(&done.audit).to_owned();
            [
                shard,
                source,
                target,
                phase,
                done.rows.to_string(),
                copy,
                pause,
                audit,
            ]
        });
        output.table(&columns, rows);
        output.note(format_args!(
            "{} in {}",
            print_count(report),
            seconds(elapsed)
        ));
    }
}

/// Reports the audits that found a difference, and the moves that were not audited.
fn tell_audits(report: &Report, output: &Output) {
    for done in report.done.iter().filter(|done| done.phase == Phase::Kept) {
        let (shard, audit, id) = (done.shard, &done.audit, report.id);
        match audit.state {
            AuditState::Differs => output.error_with_remedy(
                format_args!(
                    "shard {shard}: {} did not have all that {} had: \
                    {audit}",
                    done.target, done.source
                ),
                DIFFERS,
            ),
            AuditState::NotAudited => output.error_with_remedy(
                format_args!("shard {shard}: not audited: {audit}"),
                &format!(
                    "`pgshard moves audit {id}`; without an audit, `moves complete` takes \
                    --unaudited"
                ),
            ),
            _ => {}
        }
    }
}

fn hint_at_old_copies(verb: Verb, report: &Report, output: &Output) {
    if report
        .done
        .iter()
        .all(|done| done.audit.objection().is_none())
    {
        output.hint(format_args!(
            "the old copies are kept; drop them with `pgshard moves complete {}`",
            report.id
        ));
    }
    // No rollback for a move that was blocking, or if another move has taken its shards.
    if verb != Verb::Complete && report.done.iter().any(|done| done.can_be_taken_back) {
        output.hint(format_args!(
            "or go back with `pgshard moves rollback {}`; `pgshard moves feed` keeps that quick",
            report.id
        ));
    }
}

/// A move of shards that are all there already.
pub(crate) fn nothing_moved(plan: &Plan, output: &Output) {
    output.event(MoveEvent::Done(MoveSummary {
        r#move: String::new(),
        shards: String::new(),
        source: String::new(),
        target: plan.target.to_string(),
        rows: 0,
        bytes: 0,
        copy_ms: 0.0,
        pause_ms: BTreeMap::new(),
        total_ms: 0,
        audits: BTreeMap::new(),
        failed: Vec::new(),
    }));
}

/// The shards that others are at work on, by who it is.
fn at_work(report: &Report) -> BTreeMap<(String, String), &(ShardId, Error)> {
    let mut by_worker: BTreeMap<String, Vec<&(ShardId, Error)>> = BTreeMap::new();
    for failed in &report.failed {
        if let Error::AtWork { worker, .. } = &failed.1 {
            by_worker
                .entry(worker.to_string())
                .or_default()
                .push(failed);
        }
    }
    let mut told = BTreeMap::new();
    for (who, failed) in by_worker {
        let shards = print_shards(failed.iter().map(|(shard, _)| *shard));
        told.extend(failed.first().map(|first| ((who, shards), *first)));
    }
    told
}

fn print_count(report: &Report) -> String {
    match (report.done.len(), report.failed.len()) {
        (1, 0) => "1 shard".to_owned(),
        (done, 0) => format!("{done} shards"),
        (done, failed) => format!("{done} of {} done", counted(done + failed, "shard")),
    }
}

/// What to do about a shard that did not get to its end.
pub(crate) fn remedy(verb: Verb, shard: ShardId, error: &Error, id: MoveId) -> String {
    match error {
        Error::Lost { .. } | Error::Stuck { .. } => {
            format!(
                "`pgshard moves repair {shard} --plan` says what each host knows of it, and what \
                    can be done"
            )
        }
        error if verb == Verb::Complete => to_complete(shard, error, id),
        Error::Publish(_) => format!(
            "the shard is served by its target and routers find it there; when the config can be \
                written, `pgshard moves resume {id}`"
        ),
        Error::NotNow { .. } => format!("`pgshard moves show {id}` says how far it is"),
        // The report is of the rollback, which has an ID of its own.
        Error::NoRollback { id, host, .. } => format!(
            "`pgshard move {shard} --to {host}` copies it again; `pgshard moves complete {id}` \
                drops the old copy"
        ),
        Error::Refused { refusals } => {
            let each: Vec<String> = refusals
                .iter()
                .map(|refusal| format!("{refusal}: {}", refusal.remedy))
                .collect();
            format!("{}; then `pgshard moves resume {id}`", each.join("; "))
        }
        Error::Group { source, .. } => remedy(verb, shard, source, id),
        Error::NotBegun { source, .. } => begin_again(source),
        Error::Claimed { by, .. } => claimed(by.as_deref(), id),
        Error::AtWork { id, worker, .. } if worker.stop_request.is_some() => {
            format!(
                "it hears what it is asked within seconds: `pgshard moves watch {id}`; then the \
                    same command again"
            )
        }
        Error::AtWork { id, .. } => format!(
            "wait for it, `pgshard moves watch {id}`; or ask it: `pgshard moves stop {id}`, which \
                can be resumed, or `pgshard moves abort {id}`"
        ),
        Error::GaveUp { .. } => {
            format!(
                "the source serves; end what blocks it, then `pgshard moves resume {id}`, or \
                    `pgshard moves abort {id}`"
            )
        }
        Error::Differs { .. } | Error::RowsDiffer { .. } | Error::Diverged { .. } => gather(id),
        Error::Computed { .. } => compute_alike(id),
        Error::Altered { .. } => format!(
            "the source serves; `pgshard moves resume {id}` copies it again, as it is now, or \
                `pgshard moves abort {id}`. A rollback has no copy to make: undo what was altered \
                and resume it, or abort it and move the shard"
        ),
        Error::WalLimit { host, .. } => format!(
            "the source serves, and nothing of the move is left there; move fewer shards at a time \
                or when less is written, or allow more with --max-wal if the disk of {host} has \
                room"
        ),
        Error::SlotLost { host, state, .. } if *state == "gone" => format!(
            "something else has dropped it on {host}: a failover manager must leave slots named \
                pgshard_… alone (docs/high-availability.md). The source serves; `pgshard moves \
                resume {id}` copies again, or `pgshard moves abort {id}`. A rollback has no copy \
                to make: abort it, and move the shard"
        ),
        Error::TargetFull { host, .. } => format!(
            "the source serves; `pgshard moves abort {id}`, or make room on {host}, then `pgshard \
                moves resume {id}`, which copies again"
        ),
        Error::Unrenewed { .. } => format!(
            "when the host answers, `pgshard moves resume {id}`; `pgshard moves show {id}` says \
                how far it is"
        ),
        Error::SlotLost { host, .. } => format!(
            "the source serves; raise max_slot_wal_keep_size on {host}, or \
                idle_replication_slot_timeout if that is set, then `pgshard moves resume {id}`, \
                which copies again, or `pgshard moves abort {id}`. A rollback has no copy to make: \
                abort it, and move the shard"
        ),
        Error::StreamLost { .. } => {
            format!(
                "the source serves; `pgshard moves resume {id}`, which copies again, or `pgshard \
                    moves abort {id}`. A rollback has no copy to make: abort it, and move the \
                    shard"
            )
        }
        Error::SlotBlocked { .. } | Error::PublicationBlocked { .. } | Error::Locked { .. } => {
            format!("end those transactions, then `pgshard moves resume {id}`")
        }
        Error::TooLate { .. } => format!("`pgshard moves resume {id}`"),
        Error::Connect { host, source } if source.host_state().may_be_gone() => format!(
            "when the host answers, `pgshard moves resume {id}`; `pgshard moves show {id}` says \
                how far it is. If the host is gone for good: `pgshard moves repair {shard} \
                --give-up {host} --plan`"
        ),
        Error::Connect { source, .. } => format!(
            "{}; then `pgshard moves resume {id}`; `pgshard moves show {id}` says how far it is",
            source.remedy()
        ),
        Error::LeaseLost { .. } => {
            format!("`pgshard moves show {id}` says what became of it, and who works on it")
        }
        Error::PauseTooLong { .. } => {
            format!(
                "allow more with --max-pause-s: `pgshard moves resume {id}`, or `pgshard moves \
                    abort {id}`"
            )
        }
        Error::Database { .. } if !error.can_be_resumed() => {
            format!(
                "the source serves; a limit of the server is not passed by trying again: `pgshard \
                    moves abort {id}`"
            )
        }
        Error::Database { source, what, .. } if what.starts_with("building") => {
            let mend = match source.code() {
                Some(&SqlState::UNIQUE_VIOLATION) => {
                    "the source serves, and has rows that its own unique index forbids, so that \
                     index is damaged: find them there with bt_index_check of amcheck, mend them \
                     and REINDEX it, then "
                }
                Some(&SqlState::CHECK_VIOLATION) => {
                    "the source serves, and has rows that break this check: mend them there, then "
                }
                _ => "",
            };
            format!("{mend}`pgshard moves resume {id}`, or `pgshard moves abort {id}`")
        }
        Error::Database { source, .. } if is_refused_for_good(source) => format!(
            "the server refuses this each time: mend what it names, then `pgshard moves resume \
             {id}`; or `pgshard moves abort {id}`"
        ),
        error if error.can_be_resumed() => {
            format!("`pgshard moves resume {id}`, or `pgshard moves abort {id}`")
        }
        _ => String::new(),
    }
}

/// Whether the server refuses a statement by its syntax, its names or the role's rights, or as
/// something that it cannot do.
fn is_refused_for_good(error: &tokio_postgres::Error) -> bool {
    let code = error.code().map_or("", SqlState::code);
    ["42", "0A", "28", "2F"]
        .iter()
        .any(|class| code.starts_with(class))
}

/// What to do about an old copy that was not dropped.
fn to_complete(shard: ShardId, error: &Error, id: MoveId) -> String {
    match error {
        Error::Connect { host, source } if source.host_state().may_be_gone() => format!(
            "the old copy is kept; `pgshard moves complete {id}` again when the host answers. If \
                it is gone for good: `pgshard moves repair {shard} --give-up {host} --plan`"
        ),
        Error::Connect { source, .. } => format!(
            "the old copy is kept; {}; then `pgshard moves complete {id}` again",
            source.remedy()
        ),
        Error::Interrupted { .. } => format!(
            "the old copy is kept, the way back perhaps not; `pgshard moves complete {id}` drops \
                those that are left"
        ),
        // What to do comes first, in the error.
        Error::NotNow {
            phase: Phase::Kept, ..
        } => {
            format!("the old copy is kept; see to that, then `pgshard moves complete {id}` again")
        }
        _ => format!("the old copy is kept; `pgshard moves complete {id}` again later"),
    }
}

/// What to do about a move that no journal has.
fn begin_again(error: &Error) -> String {
    match error {
        Error::Connect { source, .. } => {
            format!("{}; then the same command again", source.remedy())
        }
        _ => "the same command again".to_owned(),
    }
}

/// What to do before anything else about a copy that differs.
fn gather(id: MoveId) -> String {
    format!(
        "the source serves, and nothing is lost. This does not tell why they differ: a fault of \
            pgshard is as likely as one of a host. Before you `pgshard moves abort {id}`, gather \
            what docs/differs.md names under \"A copy that differs\", and report it"
    )
}

/// What to do about generated columns that differ.
fn compute_alike(id: MoveId) -> String {
    format!(
        "the source serves, and nothing is lost; let the same function compute them on both hosts, \
            from nothing but \
         its arguments, and UPDATE the source's rows if it was replaced since they were written; \
         then `pgshard moves \
         resume {id}`, or `pgshard moves abort {id}`"
    )
}

/// What to do about another move of the shard, if there still is one.
fn claimed(rival: Option<&Rival>, ours: MoveId) -> String {
    let Some(Rival { id, worker }) = rival else {
        return format!("run the same command again, or `pgshard moves show {ours}` first");
    };
    match worker {
        Some(_) => format!(
            "wait for it, `pgshard moves watch {id}`; or ask it: `pgshard moves stop {id}`, which \
                can be resumed, or `pgshard moves abort {id}`"
        ),
        None => format!("`pgshard moves resume {id}`, or `pgshard moves abort {id}`"),
    }
}

/// An error before anything was done, as the command's end.
pub(crate) fn failure(error: Error) -> Failure {
    match error {
        Error::Refused { refusals } => {
            let each = refusals
                .iter()
                .map(|refusal| format!("{refusal}\n  remedy: {}", refusal.remedy));
            Failure::several(Exit::Refused, each)
        }
        Error::OtherHost { .. } | Error::OtherCluster { .. } => {
            Failure::new(code(&error), error).hint(CORRECT_THE_CONFIG)
        }
        Error::NoSuchMove { .. } => Failure::usage(error).hint("see `pgshard moves list`"),
        Error::AtWork { shard, id, .. } => {
            let hint = remedy(Verb::Resume, shard, &error, id);
            Failure::new(Exit::Refused, error).hint(hint)
        }
        Error::Unaudited { id, .. } => Failure::new(Exit::Refused, error).hint(format!(
            "`pgshard moves show {id}` says more; `pgshard moves complete {id} --unaudited` drops \
                it all the same"
        )),
        Error::CommitWaits { .. } => Failure::new(Exit::Failed, error).hint(
            "have its commits end: start a standby that synchronous_standby_names waits for, or \
                correct that setting; then the same command again",
        ),
        Error::Connect { ref source, .. } => {
            let hint = format!("{}; then the same command again", source.remedy());
            Failure::new(Exit::Failed, error).hint(hint)
        }
        // Nothing was claimed, so nothing waits for a resume.
        error => match code(&error) {
            Exit::Waits => Failure::new(Exit::Failed, error).hint("nothing was changed; try again"),
            exit => Failure::new(exit, error),
        },
    }
}

/// How a command ends for this error of a mover, were it the only one.
pub(crate) fn code(error: &Error) -> Exit {
    match error {
        Error::Refused { .. }
        | Error::Claimed { .. }
        | Error::AtWork { .. }
        | Error::TooLate { .. }
        | Error::NotNow { .. }
        | Error::NotGone { .. }
        | Error::Unaudited { .. }
        | Error::Lost { .. }
        | Error::NoRollback { .. } => Exit::Refused,
        Error::Group { source, .. } => match code(source) {
            // A host that goes away in the middle of a move leaves something to resume; one that
            // could not be reached before it does not.
            Exit::Failed if !matches!(**source, Error::Stuck { .. }) => Exit::Waits,
            code => code,
        },
        // No journal knows of it.
        Error::NotBegun { source, .. } => match code(source) {
            Exit::Waits => Exit::Failed,
            code => code,
        },
        Error::GaveUp { .. } | Error::PauseTooLong { .. } | Error::WalLimit { .. } => Exit::GaveUp,
        Error::Database { .. } if !error.can_be_resumed() => Exit::GaveUp,
        Error::Differs { .. }
        | Error::Computed { .. }
        | Error::RowsDiffer { .. }
        | Error::Diverged { .. } => Exit::Differs,
        Error::Interrupted { .. } | Error::Stopped { .. } => Exit::Interrupted,
        Error::Aborted { .. } => Exit::Failed,
        Error::OtherHost { .. } | Error::OtherCluster { .. } => Exit::Usage,
        Error::ControlOld { .. } | Error::ControlNewer { .. } => Exit::Failed,
        Error::Stuck { .. }
        | Error::UnknownHost { .. }
        | Error::NoSuchMove { .. }
        | Error::Connect { .. } => Exit::Failed,
        _ => Exit::Waits,
    }
}

fn exit(verb: Verb, report: &Report) -> Exit {
    let audits = report
        .done
        .iter()
        .filter(|done| done.phase == Phase::Kept)
        .map(|done| done.audit.state);
    // Whatever else happened: rows may be lost.
    if audits.clone().any(|state| state == AuditState::Differs) {
        return Exit::Differs;
    }
    let untold = audits.clone().any(|state| state != AuditState::Audited);
    let codes = report.failed.iter().map(|(_, error)| match code(error) {
        // What waits is not a move: only its old copy is there.
        Exit::Waits if verb == Verb::Complete => Exit::Failed,
        // A move that is in the journal waits for the host that does not answer; a new one has not
        // begun.
        Exit::Failed if verb == Verb::Resume && matches!(error, Error::Connect { .. }) => {
            Exit::Waits
        }
        code => code,
    });
    let codes: Vec<Exit> = codes.collect();
    match codes.as_slice() {
        [] if verb == Verb::Audit && untold => Exit::Partly,
        [] if report.unknown.is_empty() => Exit::Done,
        [] => Exit::Partly,
        // Shards that had ended before do not count: this command did nothing to them.
        _ if report
            .failed
            .iter()
            .all(|(_, error)| matches!(error, Error::AtWork { .. })) =>
        {
            Exit::Refused
        }
        codes if codes.contains(&Exit::Interrupted) => Exit::Interrupted,
        _ if !report.done.is_empty() => Exit::Partly,
        // A shard that waits for a resume is closed or half-built: that matters more than why
        // another was refused.
        codes if codes.contains(&Exit::Waits) => Exit::Waits,
        [first, ..] => *first,
    }
}
