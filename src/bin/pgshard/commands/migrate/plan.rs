//! `pgshard migrate plan`: what `up` would run where.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pgshard::ShardId;
use pgshard::map::{HostName, print_shards};
use pgshard::pg::cause::chain;
use pgshard::schema::migrate::{HostPlan, Pace, Plan, Which};
use pgshard::schema::{self, Migration, Migrations, Survey};
use schemars::JsonSchema;
use serde::Serialize;

use super::request::{How, request};
use crate::args::MigrateTarget;
use crate::commands::moves::start::Detail;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct MigrationPlanReport<'a> {
    refused: bool,
    hosts: BTreeMap<&'a str, PlannedHost<'a>>,
    /// The migrations that run somewhere.
    migrations: Vec<PlannedFile<'a>>,
    /// The moves that cannot be taken back any more then, with their shards as ranges.
    ends_rollbacks: BTreeMap<String, String>,
    silent_hosts: Vec<&'a str>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedHost<'a> {
    once: Vec<&'a str>,
    groups: Vec<Group<'a>>,
    unchanged: usize,
    /// The shards that are left alone, as ranges, by the reason.
    left: BTreeMap<String, String>,
    fault: Option<String>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Group<'a> {
    shards: String,
    count: usize,
    migrations: Vec<&'a str>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedFile<'a> {
    name: &'a str,
    directive: Option<&'static str>,
    first_line: &'a str,
    /// How many statements it has.
    statements: usize,
    sql: &'a str,
}

/// Prints what `up` would do.
pub(crate) async fn plan(
    target: &MigrateTarget,
    detail: Detail,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate plan")?;
    let how = How {
        which: Which::Pending,
        canary: None,
        pace: Pace::default(),
    };
    let request = request(&config, target, how)?;
    let survey = context::survey(&config, output).await;
    let plan = schema::migrate::plan(&request, &survey);
    for (host, facts) in &survey {
        if let Err(error) = facts {
            output.warning(format_args!(
                "{host}: {}: what would run there is not known",
                chain(error)
            ));
        }
    }
    warn_of_rollbacks(&plan, &survey, output);
    let planned = planned(&plan, &request.migrations, &survey);
    match output.format() {
        Format::Json => output.object(&planned),
        Format::Text => show(&planned, &plan, &request.migrations, detail, output),
    }
    let left_out =
        !planned.silent_hosts.is_empty() || planned.hosts.values().any(|host| host.fault.is_some());
    Ok(match (planned.refused, left_out) {
        (true, _) => Exit::Refused,
        (false, false) => Exit::Done,
        (false, true) => Exit::Partly,
    })
}

fn planned<'a>(
    plan: &'a Plan,
    migrations: &'a Migrations,
    survey: &'a Survey,
) -> MigrationPlanReport<'a> {
    let host = |(name, host): (&'a HostName, &'a HostPlan)| {
        let groups = host.groups(migrations).into_iter();
        let groups = groups.map(|group| Group {
            count: group.shards.len(),
            shards: print_shards(group.shards),
            migrations: group.lacking,
        });
        let mut left: BTreeMap<String, Vec<ShardId>> = BTreeMap::new();
        for (shard, fault) in &host.left {
            left.entry(fault.to_string()).or_default().push(*shard);
        }
        let planned = PlannedHost {
            once: if host.fault.is_none() {
                host.once(migrations)
            } else {
                Vec::new()
            },
            groups: groups.collect(),
            unchanged: host.unchanged,
            left: left
                .into_iter()
                .map(|(why, shards)| (why, print_shards(shards)))
                .collect(),
            fault: host.fault.as_ref().map(ToString::to_string),
        };
        (name.as_str(), planned)
    };
    let hosts: BTreeMap<&str, PlannedHost<'_>> = plan.hosts.iter().map(host).collect();
    let used: BTreeSet<&str> = hosts
        .values()
        .flat_map(|host| {
            host.once
                .iter()
                .chain(host.groups.iter().flat_map(|group| &group.migrations))
        })
        .copied()
        .collect();
    let file = |one: &'a Migration| PlannedFile {
        name: one.name(),
        directive: one.directive(),
        first_line: one.first_line(),
        statements: one.first_lines().len(),
        sql: one.sql(),
    };
    let files = migrations
        .of_hosts()
        .chain(migrations.iter())
        .filter(|one| used.contains(one.name()))
        .map(file);
    MigrationPlanReport {
        refused: plan.is_refused(),
        migrations: files.collect(),
        ends_rollbacks: ends_rollbacks(plan, survey),
        silent_hosts: survey
            .iter()
            .filter(|(_, facts)| facts.is_err())
            .map(|(name, _)| name.as_str())
            .collect(),
        hosts,
    }
}

/// A file: the beginning of each statement, or all of it.
fn show_file(file: &Migration, detail: Detail, output: &Output) {
    const SHOWN_MAX: usize = 8;
    let directive = file
        .directive()
        .map(|directive| format!(" ({directive})"))
        .unwrap_or_default();
    let name = file.name();
    match (detail, file.first_lines()) {
        (Detail::Sql, _) => output.data(format_args!("{name}{directive}:\n{}", file.sql())),
        (Detail::Steps, [only]) => output.data(format_args!("{name}{directive}: {only}")),
        (Detail::Steps, lines) => {
            output.data(format_args!(
                "{name}{directive}: {} statements",
                lines.len()
            ));
            for line in lines.iter().take(SHOWN_MAX) {
                output.data(format_args!("  {line}"));
            }
            if lines.len() > SHOWN_MAX {
                output.data(format_args!(
                    "  … and {} more: --sql shows all",
                    lines.len() - SHOWN_MAX
                ));
            }
        }
    }
}

/// The moves that cannot be taken back once the plan has run, with their shards.
fn ends_rollbacks(plan: &Plan, survey: &Survey) -> BTreeMap<String, String> {
    let ended = plan.ends_rollbacks(survey).into_iter();
    ended
        .map(|(id, shards)| (id.to_string(), print_shards(shards)))
        .collect()
}

/// Prints which moves cannot be rolled back once the plan has run.
pub(super) fn warn_of_rollbacks(plan: &Plan, survey: &Survey, output: &Output) {
    for (id, shards) in ends_rollbacks(plan, survey) {
        output.warning(format_args!(
            "the move {id} can be taken back now and not after this (shards {shards}): to do so, \
                run `pgshard moves rollback {id}` first"
        ));
    }
}

fn show(
    planned: &MigrationPlanReport<'_>,
    plan: &Plan,
    migrations: &Migrations,
    detail: Detail,
    output: &Output,
) {
    for (name, host) in &planned.hosts {
        if let Some(fault) = plan.hosts.get(*name).and_then(|host| host.fault.as_ref()) {
            output.error_with_remedy(format_args!("{name}: {fault}"), &fault.remedy());
            continue;
        }
        for once in &host.once {
            output.data(format_args!("{name}: once: {once}"));
        }
        for group in &host.groups {
            let plural = if group.count == 1 { "shard" } else { "shards" };
            let names = group.migrations.join(", ");
            output.data(format_args!(
                "{name}: {} {plural} ({}): {names}",
                group.count, group.shards
            ));
        }
        for (why, shards) in &host.left {
            output.data(format_args!("{name}: left alone ({shards}): {why}"));
        }
        if host.unchanged > 0 {
            output.note(format_args!("{name}: {} have all", host.unchanged));
        }
    }
    let files: BTreeSet<&str> = planned.migrations.iter().map(|file| file.name).collect();
    for one in migrations
        .of_hosts()
        .chain(migrations.iter())
        .filter(|one| files.contains(one.name()))
    {
        show_file(one, detail, output);
    }
    if planned.migrations.is_empty() && !planned.refused {
        output.note("nothing to do");
    }
}
