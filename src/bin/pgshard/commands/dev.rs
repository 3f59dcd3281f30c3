//! `pgshard dev`: throwaway local servers.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use pgshard::ShardCount;
use pgshard::config::{Config, HostConfig};
use pgshard::dev::{self, ConfigState, ServerState, UpOptions};
use pgshard::map::{HostName, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::store::MapStore;
use schemars::JsonSchema;
use serde::Serialize;

use crate::confirm::{Consent, confirm};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct UpReport {
    config: PathBuf,
    hosts: BTreeMap<String, UpHost>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct UpHost {
    url: String,
}

/// Starts the servers that do not run yet.
pub(crate) async fn up(
    directory: PathBuf,
    hosts: usize,
    shards: ShardCount,
    output: &Output,
) -> Result<Exit, Failure> {
    let options = UpOptions::new(directory, hosts, shards);
    let start = async |bar: &ProgressBar| {
        let counted = bar.clone();
        let on_running = move |_: &HostName| counted.inc(1);
        tokio::task::spawn_blocking(move || dev::up_with(&options, &on_running)).await
    };
    let up = output
        .counting("starting", "servers", hosts, start)
        .await??;
    match output.format() {
        Format::Json => {
            let hosts = up
                .hosts
                .iter()
                .map(|(name, url)| (name.to_string(), UpHost { url: url.clone() }));
            output.object(UpReport {
                config: up.config.clone(),
                hosts: hosts.collect(),
            });
        }
        Format::Text => {
            let rows = up
                .hosts
                .iter()
                .map(|(name, url)| [name.to_string(), url.clone()]);
            output.table(&[("host", Align::Left), ("url", Align::Left)], rows);
        }
    }
    let config = up.config.display();
    match up.config_state {
        ConfigState::Written => output.note(format_args!("wrote {config}")),
        ConfigState::Kept => output.note(format_args!("kept {config} as it was")),
    }
    if up.config_state == ConfigState::Kept && begin_map_again(&up).await? {
        output.note(format_args!(
            "its servers are new: its map counts moves from the start again"
        ));
    }
    for name in &up.open {
        output.warning(format_args!(
            "{name} lets in every user of this machine, as an older pgshard made it: `pgshard dev \
                down`, which removes its data, and `dev up` make one that asks for a password"
        ));
    }
    for (name, url) in up
        .hosts
        .iter()
        .filter(|(name, _)| up.unnamed.contains(name))
    {
        output.warning(format_args!(
            "{name} asks for a password, which {config} does not name: write url = \"{url}\" below \
                [hosts.{name}]"
        ));
    }
    for (name, url) in up.hosts.iter().filter(|(name, _)| up.absent.contains(name)) {
        output.hint(format_args!(
            "{config} does not name {name}: pgshard --config {config} host add {name} '{url}'"
        ));
    }
    if up.absent.is_empty() {
        output.hint(format_args!("next: pgshard --config {config} bootstrap"));
    }
    Ok(Exit::Done)
}

/// Takes the moves of earlier servers out of the map of a config that was kept, if all of its hosts
/// were made now: else bootstrap would look for shards that have moved, and refuse to make them.
/// Returns whether there were any.
///
/// A config that cannot be used is not touched: the next command reports what is wrong with it.
async fn begin_map_again(up: &dev::Up) -> Result<bool, Failure> {
    let Ok(config) = Config::load(&up.config) else {
        return Ok(false);
    };
    let Some(old) = &config.map else {
        return Ok(false);
    };
    let is_new = |host: &HostConfig| {
        let url = up.hosts.iter().find(|(name, _)| *name == host.name);
        let url = url.and_then(|(_, url)| ConnectOptions::parse(url).ok());
        up.made.contains(&host.name)
            && url.is_some_and(|url| url.to_string() == host.connect.to_string())
    };
    let has_moved = old.iter().any(|(_, _, epoch)| epoch > ShardEpoch::FIRST);
    if !has_moved || !config.hosts.values().all(is_new) {
        return Ok(false);
    }
    let first = |host: &HostName| Placement {
        host: host.clone(),
        epoch: ShardEpoch::FIRST,
    };
    let places = old.iter().map(|(shard, host, _)| (shard, first(host)));
    let Ok(new) = ShardMap::new(old.version().next(), old.shards(), places) else {
        return Ok(false);
    };
    config.map_store().publish(old.version(), &new).await?;
    Ok(true)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct DownReport {
    removed: Vec<String>,
}

/// Stops the servers and removes them with their data, after asking.
pub(crate) async fn down(
    directory: PathBuf,
    consent: Consent,
    output: &Output,
) -> Result<Exit, Failure> {
    // A server that cannot be looked at can be removed all the same.
    let names = status_of(&directory).await.ok().map(|servers| {
        let names = servers.iter().map(|server| server.name.to_string());
        names.collect::<Vec<String>>()
    });
    let removed = if names.as_ref().is_some_and(Vec::is_empty) {
        Vec::new()
    } else {
        let count = names.as_ref().map_or(0, Vec::len);
        let names = names.map_or_else(|| "the servers".to_owned(), |names| names.join(", "));
        let question = format!(
            "remove {names} in {} with all their data?",
            directory.display()
        );
        if !confirm(&question, consent, output).await? {
            return Err(Failure::new(Exit::Failed, "nothing was removed"));
        }
        let remove = async |bar: &ProgressBar| {
            let counted = bar.clone();
            let on_removed = move |_: &HostName| counted.inc(1);
            tokio::task::spawn_blocking(move || dev::down_with(&directory, &on_removed)).await
        };
        output
            .counting("removing", "servers", count, remove)
            .await??
    };
    let removed: Vec<String> = removed.iter().map(ToString::to_string).collect();
    match removed.as_slice() {
        [] => output.note("there are no servers here: nothing to do"),
        names => output.note(format_args!(
            "removed {}; the config and the migrations stay",
            names.join(", ")
        )),
    }
    if output.format() == Format::Json {
        output.object(DownReport { removed });
    }
    Ok(Exit::Done)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct StatusReport {
    hosts: BTreeMap<String, StatusHost>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct StatusHost {
    running: bool,
    pid: Option<u32>,
    major: u32,
    url: String,
    directory: PathBuf,
}

/// Which servers there are, and whether they run.
pub(crate) async fn status(directory: PathBuf, output: &Output) -> Result<Exit, Failure> {
    let servers = status_of(&directory).await?;
    let pid = |state| match state {
        ServerState::Running { pid } | ServerState::Between { pid } => Some(pid),
        ServerState::Stopped => None,
    };
    let text = |state| match state {
        ServerState::Running { pid } => format!("running, pid {pid}"),
        ServerState::Between { pid } => format!("starting or stopping, pid {pid}"),
        ServerState::Stopped => "stopped".to_owned(),
    };
    if servers.is_empty() {
        output.note(format_args!(
            "there are no servers in {}",
            directory.display()
        ));
    }
    match output.format() {
        Format::Json => {
            let hosts = servers.into_iter().map(|server| {
                let running = matches!(server.state, ServerState::Running { .. });
                let pid = pid(server.state);
                let (major, url, directory) = (server.major, server.url, server.directory);
                (
                    server.name.to_string(),
                    StatusHost {
                        running,
                        pid,
                        major,
                        url,
                        directory,
                    },
                )
            });
            output.object(StatusReport {
                hosts: hosts.collect(),
            });
        }
        Format::Text => {
            let columns = [
                ("host", Align::Left),
                ("state", Align::Left),
                ("version", Align::Right),
                ("url", Align::Left),
            ];
            let rows = servers.iter().map(|server| {
                [
                    server.name.to_string(),
                    text(server.state),
                    server.major.to_string(),
                    server.url.clone(),
                ]
            });
            output.table(&columns, rows);
        }
    }
    Ok(Exit::Done)
}

async fn status_of(directory: &Path) -> Result<Vec<dev::ServerStatus>, Failure> {
    let directory = directory.to_owned();
    Ok(tokio::task::spawn_blocking(move || dev::status(&directory)).await??)
}
