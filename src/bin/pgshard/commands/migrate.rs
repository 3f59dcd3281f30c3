//! `pgshard migrate`: the application's migrations over all shards.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, RangesError, ShardMap, parse_shards, print_shards};
use pgshard::schema::migrate::{Canary, HostPlan, Pace, Plan, Request, Which};
use pgshard::schema::{self, Attempt, ControlFacts, Migration, Migrations, RecordedMigration, Survey};
use serde::Serialize;

use super::bootstrap::{Watcher, exit, tell};
use crate::args::MigrateTarget;
use crate::context;
use crate::exit::Exit;
use crate::failure::{Failure, chain};
use crate::output::{Align, Format, Output};

/// How to migrate.
pub(crate) struct How {
    pub(crate) which: Which,
    pub(crate) canary: Option<Canary>,
    pub(crate) pace: Pace,
}

/// Runs the migrations that shards lack.
pub(crate) async fn up(
    target: &MigrateTarget,
    how: How,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let request = request(&config, target, how)?;
    let watcher = Watcher::new(output);
    let report = schema::migrate(&request, &|event| watcher.saw(&event)).await;
    tell(&report, output)?;
    Ok(exit(&report))
}

fn request(config: &Config, target: &MigrateTarget, how: How) -> Result<Request, Failure> {
    let shards = target.only.as_deref().map(|text| parse_shards(text, config.cluster.shards));
    let mistakes = |mistakes: Vec<RangesError>| {
        Failure::several(Exit::Usage, mistakes.iter().map(|mistake| format!("--only: {mistake}")))
    };
    let shards = shards.transpose().map_err(mistakes)?;
    Ok(Request {
        cluster: context::cluster(config),
        hosts: config.hosts.values().map(|host| (host.name.clone(), host.connect.clone())).collect(),
        only_hosts: context::hosts(config, &target.hosts)?,
        only_shards: shards.map(|shards| shards.into_iter().collect()),
        which: how.which,
        migrations: context::migrations(config)?,
        canary: how.canary,
        pace: how.pace,
    })
}

/// What a new file says.
const TEMPLATE: &str = "\
-- Run once in every shard, in a transaction that pgshard begins and commits. {shard} is the shard's schema, quoted, and
-- {shard_id} its number. The search path is empty: a name without a schema before it is an error.
--
-- A line here before the first statement makes it another kind of file:
--   `-- pgshard: no-transaction`   a single CREATE INDEX CONCURRENTLY, DROP INDEX CONCURRENTLY IF EXISTS, REFRESH
--                                  MATERIALIZED VIEW CONCURRENTLY or VACUUM, outside of transactions
--   `-- pgshard: once-per-host`    once in each host's database, before its shards: extensions, roles, shared types
--
-- Once it has been run somewhere the file must not change: a change is the next file.
--
-- ALTER TABLE {shard}.photos ADD COLUMN caption text;
";

/// Writes the file of the next migration, and says its name.
pub(crate) fn new(name: &str, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let Some(folder) = &config.cluster.migrations else {
        let hint = "write migrations = \"migrations\" below [cluster]";
        return Err(Failure::usage("the config names no folder of migrations").hint(hint));
    };
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || !name.chars().all(good) {
        return Err(Failure::usage(format!("{name:?} cannot be in the name of a file: take a-z A-Z 0-9 _ -")));
    }
    let failed = |error: std::io::Error| Failure::usage(format!("{}: {error}", folder.display()));
    std::fs::create_dir_all(folder).map_err(failed)?;
    // By the names: a file that was just begun holds no statement, and is a mistake until it does.
    let mut last = 0_u64;
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let file = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        let number = file.strip_suffix(".sql").and_then(|stem| stem.split('_').next()?.parse().ok());
        last = last.max(number.unwrap_or(0));
    }
    let path = folder.join(format!("{:04}_{name}.sql", last + 1));
    let written = OpenOptions::new().write(true).create_new(true).open(&path);
    written.and_then(|mut file| file.write_all(TEMPLATE.as_bytes())).map_err(failed)?;
    match output.format() {
        Format::Json => output.object(serde_json::json!({ "file": path }))?,
        Format::Text => output.data(path.display())?,
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Planned<'a> {
    refused: bool,
    hosts: BTreeMap<&'a str, PlannedHost<'a>>,
    /// What the migrations are that run somewhere.
    migrations: Vec<PlannedFile<'a>>,
    silent_hosts: Vec<&'a str>,
}

#[derive(Serialize)]
struct PlannedHost<'a> {
    once: Vec<&'a str>,
    groups: Vec<Group<'a>>,
    unchanged: usize,
    /// The shards that are left alone, as ranges, by the reason.
    left: BTreeMap<String, String>,
    fault: Option<String>,
}

#[derive(Serialize)]
struct Group<'a> {
    shards: String,
    count: usize,
    migrations: Vec<&'a str>,
}

#[derive(Serialize)]
struct PlannedFile<'a> {
    name: &'a str,
    directive: Option<&'static str>,
    first_line: &'a str,
}

/// Says what `up` would do.
pub(crate) async fn plan(target: &MigrateTarget, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let how = How { which: Which::Pending, canary: None, pace: Pace::default() };
    let request = request(&config, target, how)?;
    let survey = context::survey(&config).await;
    let plan = schema::migrate::plan(&request, &survey);
    for (host, facts) in &survey {
        if let Err(error) = facts {
            output.warning(format_args!("{host}: {}: what would run there is not known", chain(error).join(": ")));
        }
    }
    let planned = planned(&plan, &request.migrations, &survey);
    match output.format() {
        Format::Json => output.object(&planned)?,
        Format::Text => show(&planned, &plan, output)?,
    }
    Ok(match (planned.refused, planned.silent_hosts.is_empty()) {
        (true, _) => Exit::Refused,
        (false, true) => Exit::Done,
        (false, false) => Exit::Partly,
    })
}

fn planned<'a>(plan: &'a Plan, migrations: &'a Migrations, survey: &'a Survey) -> Planned<'a> {
    let host = |(name, host): (&'a HostName, &'a HostPlan)| {
        let groups = host.groups(migrations).into_iter();
        let groups =
            groups.map(|(migrations, shards)| Group { count: shards.len(), shards: print_shards(shards), migrations });
        let mut left: BTreeMap<String, Vec<ShardId>> = BTreeMap::new();
        for (shard, fault) in &host.left {
            left.entry(fault.to_string()).or_default().push(*shard);
        }
        let planned = PlannedHost {
            once: if host.fault.is_none() { host.once(migrations) } else { Vec::new() },
            groups: groups.collect(),
            unchanged: host.unchanged,
            left: left.into_iter().map(|(why, shards)| (why, print_shards(shards))).collect(),
            fault: host.fault.as_ref().map(ToString::to_string),
        };
        (name.as_str(), planned)
    };
    let hosts: BTreeMap<&str, PlannedHost<'_>> = plan.hosts.iter().map(host).collect();
    let used: BTreeSet<&str> = hosts
        .values()
        .flat_map(|host| host.once.iter().chain(host.groups.iter().flat_map(|group| &group.migrations)))
        .copied()
        .collect();
    let file =
        |one: &'a Migration| PlannedFile { name: one.name(), directive: one.directive(), first_line: one.first_line() };
    let files = migrations.of_hosts().chain(migrations.iter()).filter(|one| used.contains(one.name())).map(file);
    Planned {
        refused: plan.is_refused(),
        migrations: files.collect(),
        silent_hosts: survey.iter().filter(|(_, facts)| facts.is_err()).map(|(name, _)| name.as_str()).collect(),
        hosts,
    }
}

fn show(planned: &Planned<'_>, plan: &Plan, output: &Output) -> Result<(), Failure> {
    for (name, host) in &planned.hosts {
        if let Some(fault) = plan.hosts.get(*name).and_then(|host| host.fault.as_ref()) {
            output.error_with_remedy(format_args!("{name}: {fault}"), &fault.remedy());
            continue;
        }
        for once in &host.once {
            output.data(format_args!("{name}: once: {once}"))?;
        }
        for group in &host.groups {
            let plural = if group.count == 1 { "shard" } else { "shards" };
            let names = group.migrations.join(", ");
            output.data(format_args!("{name}: {} {plural} ({}): {names}", group.count, group.shards))?;
        }
        for (why, shards) in &host.left {
            output.data(format_args!("{name}: left alone ({shards}): {why}"))?;
        }
        if host.unchanged > 0 {
            output.note(format_args!("{name}: {} have all", host.unchanged));
        }
    }
    for file in &planned.migrations {
        let directive = file.directive.map(|directive| format!(" ({directive})")).unwrap_or_default();
        output.data(format_args!("{}{directive}: {}", file.name, file.first_line))?;
    }
    if planned.migrations.is_empty() && !planned.refused {
        output.note("nothing to do");
    }
    Ok(())
}

#[derive(Serialize)]
struct Status {
    migrations: Vec<MigrationStatus>,
    /// Those that run once per host.
    once_per_host: Vec<OnceStatus>,
    /// The hosts whose shards are in no list, since they do not say.
    silent_hosts: Vec<String>,
}

/// A once-per-host migration, and the hosts that have it.
#[derive(Serialize)]
struct OnceStatus {
    name: String,
    applied: Vec<String>,
    pending: Vec<String>,
}

/// One migration, and the shards by what they have of it.
#[derive(Serialize)]
struct MigrationStatus {
    name: String,
    applied: usize,
    /// The shards that lack it, as ranges.
    pending: String,
    /// The shards that ran it when its text was another, as ranges.
    changed: String,
    /// The shards where it was tried and did not succeed, as ranges.
    failed: String,
    /// What the first of them failed with.
    message: Option<String>,
    /// Whether its file is in the folder; where not, it was run and taken away.
    in_folder: bool,
}

/// Says which migrations which shards have, by the word of the hosts.
pub(crate) async fn status(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let migrations = context::migrations(&config)?;
    let survey = context::survey(&config).await;
    for (host, facts) in &survey {
        if let Err(error) = facts {
            output.warning(format_args!("{host}: {}: its shards are not counted", chain(error).join(": ")));
        }
    }
    let status = Status {
        migrations: statuses(&migrations, &map, &survey),
        once_per_host: once_per_host(&migrations, &survey),
        silent_hosts: survey.iter().filter(|(_, facts)| facts.is_err()).map(|(host, _)| host.to_string()).collect(),
    };
    match output.format() {
        Format::Json => output.object(&status)?,
        Format::Text => {
            let columns = [
                ("migration", Align::Left),
                ("applied", Align::Right),
                ("pending", Align::Left),
                ("changed", Align::Left),
                ("failed", Align::Left),
                ("", Align::Left),
            ];
            let dash = |ranges: &str| if ranges.is_empty() { "-".to_owned() } else { ranges.to_owned() };
            let rows = status.migrations.iter().map(|migration| {
                let note = if migration.in_folder { "" } else { "no file" };
                [
                    migration.name.clone(),
                    migration.applied.to_string(),
                    dash(&migration.pending),
                    dash(&migration.changed),
                    dash(&migration.failed),
                    note.to_owned(),
                ]
            });
            output.table(&columns, rows)?;
            for once in &status.once_per_host {
                let hosts = |hosts: &[String]| if hosts.is_empty() { "-".to_owned() } else { hosts.join(", ") };
                let (applied, pending) = (hosts(&once.applied), hosts(&once.pending));
                output.data(format_args!("{} (once per host): applied {applied}; pending {pending}", once.name))?;
            }
            for migration in &status.migrations {
                if let Some(message) = &migration.message {
                    output.note(format_args!("{} failed in {}: {message}", migration.name, migration.failed));
                }
            }
            if status.migrations.is_empty() {
                output.note("there are no migrations");
            }
        }
    }
    Ok(if status.silent_hosts.is_empty() { Exit::Done } else { Exit::Partly })
}

fn once_per_host(migrations: &Migrations, survey: &Survey) -> Vec<OnceStatus> {
    let controls = || survey.iter().filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?.control.as_ref()?)));
    let status = |one: &Migration| {
        let has = |control: &ControlFacts| control.host_migrations.iter().any(|had| had.name == one.name());
        let (with, without): (Vec<_>, Vec<_>) = controls().partition(|(_, control)| has(control));
        let names = |hosts: Vec<(&HostName, &ControlFacts)>| hosts.iter().map(|(name, _)| name.to_string()).collect();
        OnceStatus { name: one.name().to_owned(), applied: names(with), pending: names(without) }
    };
    migrations.of_hosts().map(status).collect()
}

/// The shards that failed, by the word of the host that owns them.
fn attempts(survey: &Survey) -> BTreeMap<ShardId, &Attempt> {
    let controls = survey.values().filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
    let owned = |control: &ControlFacts, shard| control.shards.get(shard).is_some_and(|row| row.state.is_owner());
    controls
        .flat_map(|control| control.attempts.iter().filter(|(shard, _)| owned(control, shard)))
        .map(|(shard, attempt)| (*shard, attempt))
        .collect()
}

/// Every migration that is in the folder or was run, in the order of the names. pgshard's own are left out.
fn statuses(migrations: &Migrations, map: &ShardMap, survey: &Survey) -> Vec<MigrationStatus> {
    let recorded = recorded(survey);
    let expected: BTreeMap<&str, &str> = migrations.iter().map(|file| (file.name(), file.checksum())).collect();
    let ran = recorded.values().copied().flatten().map(|migration| migration.name.as_str());
    let names: BTreeSet<&str> =
        ran.filter(|name| !name.starts_with("pgshard:")).chain(expected.keys().copied()).collect();
    let answering: Vec<ShardId> =
        map.iter().filter(|(_, host, _)| matches!(survey.get(*host), Some(Ok(_)))).map(|(shard, ..)| shard).collect();
    let attempts = attempts(survey);
    let status = |name: &str| {
        let failed: Vec<_> = attempts.iter().filter(|(_, attempt)| attempt.name == name).collect();
        let checksum = expected.get(name);
        let has = |shard: &ShardId| {
            let of_shard = recorded.get(shard)?;
            of_shard.iter().find(|migration| migration.name == name)
        };
        let lack = answering.iter().filter(|shard| checksum.is_some() && has(shard).is_none());
        let other = |shard: &&ShardId| checksum.zip(has(shard)).is_some_and(|(new, ran)| ran.checksum != **new);
        MigrationStatus {
            name: name.to_owned(),
            applied: answering.iter().filter(|shard| has(shard).is_some()).count(),
            pending: print_shards(lack.copied()),
            changed: print_shards(answering.iter().filter(other).copied()),
            failed: print_shards(failed.iter().map(|(shard, _)| **shard)),
            message: failed.first().map(|(_, attempt)| {
                attempt.message.clone().unwrap_or_else(|| "it was begun and not heard of again".to_owned())
            }),
            in_folder: checksum.is_some(),
        }
    };
    names.into_iter().map(status).collect()
}

/// By shard what it ran, by the word of the host that owns it.
fn recorded(survey: &Survey) -> BTreeMap<ShardId, &[RecordedMigration]> {
    let controls = survey.values().filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
    let owned = |control: &ControlFacts, shard| control.shards.get(shard).is_some_and(|row| row.state.is_owner());
    let mut recorded = BTreeMap::new();
    for control in controls {
        for set in &control.applied {
            let shards = set.shards.iter().filter(|shard| owned(control, shard));
            recorded.extend(shards.map(|shard| (*shard, set.migrations.as_slice())));
        }
    }
    recorded
}
