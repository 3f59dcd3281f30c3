//! `pgshard migrate resolve`: a migration counts as run.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::config::Config;
use pgshard::map::{HostName, print_shards};
use pgshard::pg::cause::chain;
use pgshard::schema;
use pgshard::schema::migrate::{HostResolving, Pace, Request, Resolution, ResolveError, Which};
use schemars::JsonSchema;
use serde::Serialize;

use super::request::{How, request};
use crate::args::MigrateTarget;
use crate::commands::bootstrap::{exit, print_summary};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct ResolvePlan<'a> {
    hosts: BTreeMap<&'a str, PlannedHost>,
    silent_hosts: Vec<&'a str>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedHost {
    /// Whether it is the host's own record, of a migration that runs once per host.
    once: bool,
    /// The shards whose record would be written, as ranges.
    shards: String,
    unchanged: usize,
    /// The shards that are left alone, by the reason.
    left: BTreeMap<String, String>,
    fault: Option<String>,
}

/// Writes the records.
pub(crate) async fn resolve(
    name: &str,
    resolution: Resolution,
    target: &MigrateTarget,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate resolve")?;
    let (request, name) = (migrate_request(&config, target)?, bare(name));
    let resolved = schema::migrate::resolve(&request, name, resolution).await;
    let report = resolved.map_err(|error| refused(&error, name, &config))?;
    print_summary(&report, output);
    Ok(exit(&report))
}

/// Prints what would be written.
pub(crate) async fn plan_resolving(
    name: &str,
    resolution: Resolution,
    target: &MigrateTarget,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate resolve")?;
    let (request, name) = (migrate_request(&config, target)?, bare(name));
    let survey = context::survey(&config, output).await;
    for (host, facts) in &survey {
        if let Err(error) = facts {
            output.warning(format_args!(
                "{host}: {}: what it has run is not known",
                chain(error)
            ));
        }
    }
    let resolving = schema::migrate::plan_resolving(&request, name, resolution, &survey);
    let resolving = resolving.map_err(|error| refused(&error, name, &config))?;
    let silent: Vec<&str> = survey
        .iter()
        .filter(|(_, facts)| facts.is_err())
        .map(|(host, _)| host.as_str())
        .collect();
    let is_whole = silent.is_empty() && resolving.hosts.values().all(|host| host.fault.is_none());
    match output.format() {
        Format::Json => {
            let hosts = resolving
                .hosts
                .iter()
                .map(|(host, of_host)| (host.as_str(), planned(of_host)))
                .collect();
            output.object(&ResolvePlan {
                hosts,
                silent_hosts: silent,
            });
        }
        Format::Text => {
            for (host, of_host) in &resolving.hosts {
                show(host, of_host, output);
            }
        }
    }
    Ok(if is_whole { Exit::Done } else { Exit::Partly })
}

fn migrate_request(config: &Config, target: &MigrateTarget) -> Result<Request, Failure> {
    request(
        config,
        target,
        How {
            which: Which::Pending,
            canary: None,
            pace: Pace::default(),
        },
    )
}

fn bare(name: &str) -> &str {
    name.strip_suffix(".sql").unwrap_or(name)
}

fn refused(error: &ResolveError, name: &str, config: &Config) -> Failure {
    match error {
        ResolveError::NoSuchFile { .. } => {
            let folder = config
                .cluster
                .migrations
                .as_deref()
                .unwrap_or(Path::new("migrations"));
            Failure::new(Exit::Usage, format!("{error}: {}", folder.display()))
                .hint("`pgshard migrate status` lists the files")
        }
        _ => Failure::new(
            Exit::Refused,
            format!("{name} cannot be resolved like that: {error}"),
        )
        .hint(
            "nothing was written; --only names the shards of which it is true, --accept-edit is \
                for those that ran another text",
        ),
    }
}

fn planned(of_host: &HostResolving) -> PlannedHost {
    let mut left: BTreeMap<String, Vec<_>> = BTreeMap::new();
    for (shard, fault) in &of_host.left {
        left.entry(fault.to_string()).or_default().push(*shard);
    }
    PlannedHost {
        once: of_host.once,
        shards: print_shards(of_host.shards.iter().copied()),
        unchanged: of_host.unchanged,
        left: left
            .into_iter()
            .map(|(why, shards)| (why, print_shards(shards)))
            .collect(),
        fault: of_host.fault.as_ref().map(ToString::to_string),
    }
}

fn show(host: &HostName, of_host: &HostResolving, output: &Output) {
    if let Some(fault) = &of_host.fault {
        output.error_with_remedy(format_args!("{host}: {fault}"), &fault.remedy());
        return;
    }
    let planned = planned(of_host);
    if planned.once {
        output.data(format_args!("{host}: the host's own record"));
    }
    match of_host.shards.len() {
        0 if planned.once => {}
        0 => output.note(format_args!("{host}: nothing to write")),
        1 => output.data(format_args!("{host}: 1 shard ({})", planned.shards)),
        count => output.data(format_args!("{host}: {count} shards ({})", planned.shards)),
    }
    for (why, shards) in &planned.left {
        output.data(format_args!("{host}: left alone ({shards}): {why}"));
    }
}
