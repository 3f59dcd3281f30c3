//! `pgshard migrate backfill`: a statement over a table's rows in every shard, a range of keys at a
//! time.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use indicatif::ProgressBar;
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::print_shards;
use pgshard::schema;
use pgshard::schema::HostFault;
use pgshard::schema::backfill::{Backfill, BackfillFault, Event, Progress, Report, Request};
use schemars::JsonSchema;
use serde::Serialize;

use super::request::only;
use crate::args::MigrateBackfill;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted, size};

#[derive(JsonSchema, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum BackfillEvent<'a> {
    Planned {
        host: &'a str,
        to_do: usize,
        unchanged: usize,
    },
    Throttled {
        host: &'a str,
        lag_bytes: u64,
    },
    ShardDone {
        host: &'a str,
        #[schemars(with = "u16")]
        shard: ShardId,
        rows: u64,
    },
    ShardFailed {
        host: &'a str,
        #[schemars(with = "u16")]
        shard: ShardId,
        message: String,
        remedy: &'static str,
    },
    Done {
        finished: usize,
        unchanged: usize,
        rows: u64,
        failed: Vec<ShardFailed>,
        silent_hosts: Vec<String>,
    },
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShardFailed {
    #[schemars(with = "u16")]
    shard: ShardId,
    message: String,
}

/// The progress of backfills.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Backfills {
    backfills: BTreeMap<String, BackfillStatus>,
    silent_hosts: Vec<String>,
}

#[derive(Default, JsonSchema, Serialize)]
pub(crate) struct BackfillStatus {
    /// The shards in which it is finished, as ranges.
    finished: String,
    /// The shards in which it was begun and is not finished.
    under_way: Vec<UnderWay>,
    /// The shards in which it was not begun, as ranges.
    not_begun: String,
    rows: u64,
    batches: u64,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct UnderWay {
    #[schemars(with = "u16")]
    shard: ShardId,
    host: String,
    done_to: Option<String>,
    until: Option<String>,
    rows: u64,
    batches: u64,
}

/// Runs the ranges that are left, or reports the progress.
pub(crate) async fn backfill(
    args: &MigrateBackfill,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate backfill")?;
    if args.status {
        return status(args.name.as_deref(), &config, output).await;
    }
    let request = request(args, &config)?;
    let identities = context::identities(&config, output).await?;
    context::record(&identities, &config).await;
    let bar = output.progress(request.backfill.name().to_owned(), "shards", 0);
    let report = schema::backfill(&request, &|event| saw(&event, &bar, output)).await;
    bar.finish_and_clear();
    let report = report
        .map_err(|error| Failure::new(Exit::Refused, error.to_string()).hint(error.remedy()))?;
    print_report(&report, &request.backfill, output);
    Ok(exit(&report))
}

fn request(args: &MigrateBackfill, config: &Config) -> Result<Request, Failure> {
    let (name, sql) = match (&args.file, &args.sql) {
        (Some(file), _) => {
            let sql = std::fs::read_to_string(file).map_err(|error| {
                Failure::usage(format!("{} cannot be read: {error}", file.display()))
            })?;
            let stem = file
                .file_stem()
                .map(|stem| stem.to_string_lossy().into_owned());
            (args.name.clone().or(stem).unwrap_or_default(), sql)
        }
        (None, Some(sql)) => (args.name.clone().unwrap_or_default(), sql.clone()),
        (None, None) => return Err(Failure::usage("name a file, or give --sql")),
    };
    let table = args.table.as_deref().unwrap_or_default();
    let backfill =
        Backfill::new(&name, &sql, table, args.key.as_deref()).map_err(Failure::usage)?;
    let shards = only(args.only.as_deref(), config)?;
    let request = Request::new(
        context::cluster(config),
        context::all_hosts(config),
        backfill,
    );
    Ok(request.only_shards(shards).pace(args.pace()))
}

fn saw(event: &Event<'_>, bar: &ProgressBar, output: &Output) {
    match event {
        Event::Planned {
            host,
            to_do,
            unchanged,
        } => {
            bar.inc_length(*to_do as u64);
            output.event(BackfillEvent::Planned {
                host: host.as_str(),
                to_do: *to_do,
                unchanged: *unchanged,
            });
        }
        Event::EndsWayBack { move_id, shards } => output.warning(format_args!(
            "the move {move_id} can no longer be rolled back (shards {}): the table of the \
                progress is created there",
            print_shards(shards.iter().copied())
        )),
        Event::Throttled { host, bytes } => {
            output.event(BackfillEvent::Throttled {
                host: host.as_str(),
                lag_bytes: *bytes,
            });
            output.note(format_args!(
                "{host}: waits for its standbys, which are {} behind",
                size(*bytes)
            ));
        }
        Event::LagHidden { host } => output.warning(format_args!(
            "{host}: its standbys are not waited for, because the role may not see their lag: \
                GRANT pg_monitor to it"
        )),
        Event::ShardDone { host, shard, rows } => {
            bar.inc(1);
            output.event(BackfillEvent::ShardDone {
                host: host.as_str(),
                shard: *shard,
                rows: *rows,
            });
            output.note(format_args!(
                "{host}: shard {shard} is done, {}",
                counted(*rows as usize, "row")
            ));
        }
        Event::ShardFailed { host, shard, fault } => {
            bar.inc(1);
            let (message, remedy) = (fault.to_string(), fault.remedy());
            output.event(BackfillEvent::ShardFailed {
                host: host.as_str(),
                shard: *shard,
                message,
                remedy,
            });
        }
        _ => {}
    }
}

fn print_report(report: &Report, backfill: &Backfill, output: &Output) {
    for (host, fault) in &report.silent {
        output.error_with_remedy(format_args!("{host}: {fault}"), &fault.remedy());
    }
    let mut groups: Vec<(&BackfillFault, Vec<ShardId>)> = Vec::new();
    for (shard, fault) in &report.left {
        match groups.iter_mut().find(|(known, _)| *known == fault) {
            Some((_, shards)) => shards.push(*shard),
            None => groups.push((fault, vec![*shard])),
        }
    }
    for (fault, shards) in groups {
        let plural = if shards.len() == 1 { "shard" } else { "shards" };
        output.error_with_remedy(
            format_args!("{plural} {}: {fault}", print_shards(shards)),
            fault.remedy(),
        );
    }
    let failed = report.left.iter().map(|(shard, fault)| ShardFailed {
        shard: *shard,
        message: fault.to_string(),
    });
    match output.format() {
        Format::Json => output.event(BackfillEvent::Done {
            finished: report.done.len(),
            unchanged: report.unchanged,
            rows: report.rows,
            failed: failed.collect(),
            silent_hosts: report.silent.keys().map(ToString::to_string).collect(),
        }),
        Format::Text => output.data(format_args!(
            "{}: {} finished now, {} before, {} left, {}",
            backfill.name(),
            counted(report.done.len(), "shard"),
            report.unchanged,
            report.left.len(),
            counted(report.rows as usize, "row"),
        )),
    }
}

fn exit(report: &Report) -> Exit {
    let waits =
        |fault: &BackfillFault| matches!(fault, BackfillFault::Moving | BackfillFault::Busy { .. });
    match report.is_complete() {
        true => Exit::Done,
        // A record is a change, too: the shard has a table more.
        false
            if !report.begun.is_empty()
                || !report.done.is_empty()
                || report.left.values().all(waits) =>
        {
            Exit::Partly
        }
        false
            if report
                .silent
                .values()
                .any(|fault| matches!(fault, HostFault::Refused(_))) =>
        {
            Exit::Refused
        }
        false => Exit::Failed,
    }
}

async fn status(name: Option<&str>, config: &Config, output: &Output) -> Result<Exit, Failure> {
    let read = schema::backfill::progress(&context::all_hosts(config)).await;
    let mut silent = Vec::new();
    let mut shards: BTreeMap<ShardId, (String, Vec<Progress>)> = BTreeMap::new();
    for (host, read) in read {
        match read {
            Ok(read) => {
                let here = read
                    .shards
                    .into_iter()
                    .map(|(shard, all)| (shard, (host.to_string(), all)));
                shards.extend(here);
            }
            Err(fault) => {
                output.warning(format_args!("{host}: {fault}: its shards are not counted"));
                silent.push(host.to_string());
            }
        }
    }
    let names: BTreeSet<String> = match name {
        Some(name) => BTreeSet::from([name.to_owned()]),
        None => shards
            .values()
            .flat_map(|(_, all)| all.iter().map(|one| one.name.clone()))
            .collect(),
    };
    let backfills: BTreeMap<String, BackfillStatus> = names
        .into_iter()
        .map(|name| (name.clone(), of_one(&name, &shards)))
        .collect();
    let complete = silent.is_empty()
        && shards.len() == usize::from(config.cluster.shards.get())
        && backfills
            .values()
            .all(|one| one.under_way.is_empty() && one.not_begun.is_empty());
    match output.format() {
        Format::Json => output.object(&Backfills {
            backfills,
            silent_hosts: silent,
        }),
        Format::Text => show(&backfills, output),
    }
    Ok(if complete { Exit::Done } else { Exit::Partly })
}

fn of_one(name: &str, shards: &BTreeMap<ShardId, (String, Vec<Progress>)>) -> BackfillStatus {
    let mut status = BackfillStatus::default();
    let (mut finished, mut not_begun) = (Vec::new(), Vec::new());
    for (shard, (host, all)) in shards {
        let Some(one) = all.iter().find(|one| one.name == name) else {
            not_begun.push(*shard);
            continue;
        };
        (status.rows, status.batches) = (status.rows + one.rows, status.batches + one.batches);
        if one.finished {
            finished.push(*shard);
        } else {
            status.under_way.push(UnderWay {
                shard: *shard,
                host: host.clone(),
                done_to: one.done_to.clone(),
                until: one.until.clone(),
                rows: one.rows,
                batches: one.batches,
            });
        }
    }
    (status.finished, status.not_begun) = (print_shards(finished), print_shards(not_begun));
    status
}

fn show(backfills: &BTreeMap<String, BackfillStatus>, output: &Output) {
    let columns = [
        ("backfill", Align::Left),
        ("finished", Align::Left),
        ("under way", Align::Left),
        ("not begun", Align::Left),
        ("rows", Align::Right),
    ];
    let dash = |ranges: String| {
        if ranges.is_empty() {
            "-".to_owned()
        } else {
            ranges
        }
    };
    let rows = backfills.iter().map(|(name, one)| {
        let under_way = print_shards(one.under_way.iter().map(|one| one.shard));
        [
            name.clone(),
            dash(one.finished.clone()),
            dash(under_way),
            dash(one.not_begun.clone()),
            one.rows.to_string(),
        ]
    });
    output.table(&columns, rows);
    for (name, one) in backfills {
        for shard in &one.under_way {
            let key = |key: &Option<String>| key.clone().unwrap_or_else(|| "-".to_owned());
            output.note(format_args!(
                "{name}: shard {} on {}: at {} of {}, {} in {}",
                shard.shard,
                shard.host,
                key(&shard.done_to),
                key(&shard.until),
                counted(shard.rows as usize, "row"),
                counted(shard.batches as usize, "range"),
            ));
        }
    }
    if backfills.is_empty() {
        output.note("no backfill was begun");
    }
}
