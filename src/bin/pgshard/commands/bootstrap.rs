//! `pgshard bootstrap`: creates what the hosts lack.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use indicatif::ProgressBar;
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, ShardMap, print_shards};
use pgshard::schema::bootstrap::{Event, Host, HostReport, Report, Request};
use pgshard::schema::{self, HostFault, ShardFault};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::Bootstrap;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, seconds};

/// Creates the control schema, the shards, and runs the migrations, on all hosts or on these.
pub(crate) async fn run(
    args: &Bootstrap,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let all = hosts(&config, &context::map(&config).await?);
    let request = Request::new(
        context::cluster(&config),
        all,
        context::migrations(&config)?,
    )
    .only(context::hosts(&config, &args.hosts)?)
    .assume_empty(context::hosts(&config, &args.assume_empty)?)
    .lost(args.lost.iter().cloned().collect())
    .fenced(args.fenced.iter().cloned().collect())
    .width(args.jobs);
    let identities = context::identities(&config, output).await?;
    warn_without_migrations(&config, output);
    let watcher = Watcher::new(output);
    let report = schema::bootstrap(&request, &|event| watcher.saw(&event)).await;
    context::record(&identities, &config).await;
    print_summary(&report, output);
    Ok(exit(&report))
}

/// Warns of a config without `migrations`, with which shards get no tables. Most such configs have
/// forgotten it. An unsharded host has its tables.
fn warn_without_migrations(config: &Config, output: &Output) {
    if config.cluster.migrations.is_some() || config.unsharded().is_some() {
        return;
    }
    let folder = config
        .path
        .parent()
        .unwrap_or(Path::new(""))
        .join("migrations");
    let unread = if folder.is_dir() {
        format!(", and {} is not read", folder.display())
    } else {
        String::new()
    };
    output.warning(format_args!(
        "the config has no `migrations`, so bootstrap creates no tables in the shards{unread}: \
         write migrations = \"migrations\" below [cluster], then `pgshard migrate new NAME` makes \
         the first file and `pgshard migrate up` runs it"
    ));
}

/// Every host of the config with what the map places there.
pub(crate) fn hosts(config: &Config, map: &ShardMap) -> Vec<Host> {
    let host = |host: &pgshard::config::HostConfig| {
        let shards = map
            .iter()
            .filter(|(_, on, _)| **on == host.name)
            .map(|(shard, _, epoch)| (shard, epoch));
        Host {
            name: host.name.clone(),
            connect: host.connect.clone(),
            shards: shards.collect(),
        }
    };
    config.hosts.values().map(host).collect()
}

pub(super) fn exit(report: &Report) -> Exit {
    let drift = |fault: &ShardFault| matches!(fault, ShardFault::Drift(_) | ShardFault::Withheld);
    let refused = |host: &HostReport| {
        matches!(
            host.fault,
            Some(HostFault::Refused(_) | HostFault::Drift(_) | HostFault::NotGone { .. })
        ) || host.failed.values().any(drift)
    };
    // Shards that are only on their way are no failure: a later run does them, whether this one did
    // anything or not.
    let on_its_way =
        |fault: &ShardFault| matches!(fault, ShardFault::Moving(_) | ShardFault::Arriving { .. });
    let waits = report
        .hosts
        .values()
        .all(|host| host.fault.is_none() && host.failed.values().all(on_its_way));
    match (report.is_complete(), report.changed() || waits) {
        (true, _) => Exit::Done,
        (false, true) => Exit::Partly,
        (false, false) if report.hosts.values().any(refused) => Exit::Refused,
        (false, false) => Exit::Failed,
    }
}

/// Draws a bar for each host, or writes the events that programs want to know.
pub(super) struct Watcher<'a> {
    output: &'a Output,
    bars: Mutex<BTreeMap<HostName, ProgressBar>>,
}

#[derive(JsonSchema, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum BootstrapEvent<'a> {
    Planned {
        host: &'a str,
        to_do: usize,
        unchanged: usize,
    },
    ControlInstalled {
        host: &'a str,
        version: i32,
    },
    ShardFailed {
        host: &'a str,
        #[schemars(with = "u16")]
        shard: ShardId,
        message: String,
        remedy: String,
    },
    HostFailed {
        host: &'a str,
        message: String,
        remedy: String,
    },
    Done {
        hosts: BTreeMap<String, HostDone>,
        /// For a migration: the shards that no host serves, as ranges; left out if there are none.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        unserved: String,
    },
}

/// One host in the last event.
#[derive(JsonSchema, Serialize)]
pub(crate) struct HostDone {
    created: usize,
    migrated: usize,
    unchanged: usize,
    /// The once-per-host migrations that were run.
    once: Vec<String>,
    failed: Vec<ShardFailed>,
    /// The shards in which nothing was tried, because others had failed, as ranges.
    not_tried: String,
    /// Why the host was left as it was, or half done; `null` if all went well.
    fault: Option<String>,
    elapsed_ms: u128,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShardFailed {
    #[schemars(with = "u16")]
    shard: ShardId,
    message: String,
}

impl Watcher<'_> {
    pub(super) fn new(output: &Output) -> Watcher<'_> {
        Watcher {
            output,
            bars: Mutex::default(),
        }
    }

    pub(super) fn saw(&self, event: &Event<'_>) {
        match event {
            Event::HostPlanned {
                host,
                to_do,
                unchanged,
            } => {
                let (to_do, unchanged) = (*to_do, *unchanged);
                self.output.event(BootstrapEvent::Planned {
                    host: host.as_str(),
                    to_do,
                    unchanged,
                });
                if to_do > 0 {
                    let bar = self
                        .output
                        .progress(host.to_string(), "shards", to_do as u64);
                    self.bars().insert((*host).clone(), bar);
                }
            }
            Event::ControlInstalled { host, version } => {
                self.output.event(BootstrapEvent::ControlInstalled {
                    host: host.as_str(),
                    version: *version,
                });
            }
            Event::ShardDone { host, .. } => self.step(host),
            Event::ShardFailed { host, shard, fault } => {
                let (message, remedy) = (fault.to_string(), fault.remedy());
                self.output.event(BootstrapEvent::ShardFailed {
                    host: host.as_str(),
                    shard: *shard,
                    message,
                    remedy,
                });
                self.step(host);
            }
            Event::HostFailed { host, fault } => {
                let (message, remedy) = (fault.to_string(), fault.remedy());
                self.output.event(BootstrapEvent::HostFailed {
                    host: host.as_str(),
                    message,
                    remedy,
                });
            }
            Event::HostDone { host, .. } => {
                if let Some(bar) = self.bars().remove(host.as_str()) {
                    bar.finish_and_clear();
                }
            }
            _ => {}
        }
    }

    fn step(&self, host: &HostName) {
        if let Some(bar) = self.bars().get(host) {
            bar.inc(1);
        }
    }

    fn bars(&self) -> std::sync::MutexGuard<'_, BTreeMap<HostName, ProgressBar>> {
        // A bar is decoration: a panic while it is drawn does not stop the work.
        self.bars.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The summary: what was done on each host, and what was not, with the reasons and remedies.
pub(super) fn print_summary(report: &Report, output: &Output) {
    for host in &report.unheard {
        output.warning(format_args!(
            "--lost {host}: neither the config nor a host that answers knows a host of that name"
        ));
    }
    for (name, host) in &report.hosts {
        if let Some(fault) = &host.fault {
            output.error_with_remedy(format_args!("{name}: {fault}"), &fault.remedy());
        }
        for (fault, shards) in by_fault(
            host.failed
                .iter()
                .filter(|(_, fault)| !fault.is_not_tried()),
        ) {
            output.error_with_remedy(
                format_args!("{name}: {}: {fault}", named(shards)),
                &fault.remedy(),
            );
        }
    }
    // The same is true for the canary on all hosts.
    let failed = || report.hosts.values().flat_map(|host| &host.failed);
    for (fault, shards) in by_fault(failed().filter(|(_, fault)| fault.is_not_tried())) {
        output.error_with_remedy(format_args!("{}: {fault}", named(shards)), &fault.remedy());
    }
    for (fault, shards) in by_fault(&report.unserved) {
        output.error_with_remedy(format_args!("{}: {fault}", named(shards)), &fault.remedy());
    }
    match output.format() {
        Format::Json => {
            let hosts = report
                .hosts
                .iter()
                .map(|(name, host)| (name.to_string(), done(host)))
                .collect();
            let unserved = print_shards(report.unserved.keys().copied());
            output.event(BootstrapEvent::Done { hosts, unserved });
        }
        Format::Text => {
            let columns = [
                ("host", Align::Left),
                ("created", Align::Right),
                ("migrated", Align::Right),
                ("unchanged", Align::Right),
                ("failed", Align::Right),
                ("not tried", Align::Right),
                ("time", Align::Right),
            ];
            output.table(
                &columns,
                report.hosts.iter().map(|(name, host)| row(name, host)),
            );
        }
    }
    for (name, host) in &report.hosts {
        if let Some(schema) = &host.serves_all {
            output.note(format_args!(
                "{name} serves all shards from its schema {schema}"
            ));
        }
    }
    if report.nothing_to_do() {
        output.note("nothing to do");
    }
}

fn named(mut shards: Vec<ShardId>) -> String {
    // They may be of several hosts.
    shards.sort_unstable();
    let plural = if shards.len() == 1 { "shard" } else { "shards" };
    format!("{plural} {}", print_shards(shards))
}

/// The shards that failed, those with the same reason together, in the order of the first of them.
fn by_fault<'a>(
    failed: impl IntoIterator<Item = (&'a ShardId, &'a ShardFault)>,
) -> Vec<(&'a ShardFault, Vec<ShardId>)> {
    let mut groups: Vec<(&'a ShardFault, Vec<ShardId>)> = Vec::new();
    for (shard, fault) in failed {
        match groups.iter_mut().find(|(known, _)| *known == fault) {
            Some((_, shards)) => shards.push(*shard),
            None => groups.push((fault, vec![*shard])),
        }
    }
    groups
}

fn done(host: &HostReport) -> HostDone {
    let failed = host
        .failed
        .iter()
        .filter(|(_, fault)| !fault.is_not_tried())
        .map(|(shard, fault)| ShardFailed {
            shard: *shard,
            message: fault.to_string(),
        });
    HostDone {
        created: host.created.len(),
        migrated: host.migrated.len(),
        unchanged: host.unchanged,
        once: host.once.clone(),
        failed: failed.collect(),
        not_tried: print_shards(not_tried(host)),
        fault: host.fault.as_ref().map(ToString::to_string),
        elapsed_ms: host.elapsed.as_millis(),
    }
}

fn not_tried(host: &HostReport) -> impl Iterator<Item = ShardId> {
    host.failed
        .iter()
        .filter(|(_, fault)| fault.is_not_tried())
        .map(|(shard, _)| *shard)
}

fn row(name: &HostName, host: &HostReport) -> [String; 7] {
    let not_tried = not_tried(host).count();
    let failed = match (&host.fault, host.failed.len() - not_tried) {
        (Some(_), 0) => "all".to_owned(),
        (_, failed) => failed.to_string(),
    };
    [
        name.to_string(),
        host.created.len().to_string(),
        host.migrated.len().to_string(),
        host.unchanged.to_string(),
        failed,
        not_tried.to_string(),
        seconds(host.elapsed),
    ]
}
