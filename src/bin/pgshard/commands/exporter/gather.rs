//! One scrape: all hosts are asked at the same time, each within the limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pgshard::config::{Config, HostConfig};
use pgshard::map::HostName;
use pgshard::mover::{Entry, Hosts, Mover, Observer, Options};
use pgshard::pg::ConnectError;
use pgshard::schema::{self, FactsError, Finding, HostFacts, HostLoad, Survey};
use pgshard::store::MapStore;

use crate::context;

/// What a scrape has found.
pub(super) struct Gathered {
    /// Whether the config and the map could be read; without them all else is empty.
    pub(super) is_configured: bool,
    pub(super) map_version: Option<u64>,
    pub(super) hosts: BTreeMap<String, Host>,
    pub(super) findings: Vec<Finding>,
    /// Every shard of every move that the hosts remember.
    pub(super) entries: Vec<Entry>,
    pub(super) took: Duration,
}

/// One host of the config.
pub(super) struct Host {
    /// Whether it answered within the limit.
    pub(super) is_up: bool,
    /// How many shards it says that it serves.
    pub(super) shards: Option<usize>,
    pub(super) load: Option<HostLoad>,
}

/// Asks config, map and hosts.
pub(super) async fn gather(path: &Path, bound: Duration) -> Gathered {
    let began = Instant::now();
    let mut gathered = Gathered {
        is_configured: false,
        map_version: None,
        hosts: BTreeMap::new(),
        findings: Vec::new(),
        entries: Vec::new(),
        took: Duration::ZERO,
    };
    match context::config(Some(path)) {
        Ok(config) => of_config(&config, bound, &mut gathered).await,
        Err(failure) => tracing::warn!(error = failure.words(), "the config cannot be used"),
    }
    gathered.took = began.elapsed();
    gathered
}

async fn of_config(config: &Config, bound: Duration, gathered: &mut Gathered) {
    let hosts = join_all(config.hosts.values().map(|host| ask(config, host, bound)));
    let map_store = config.map_store();
    let map = tokio::time::timeout(bound, map_store.load());
    let (answers, map) = tokio::join!(hosts, map);
    let mut survey = Survey::new();
    for Answer { name, facts, load, entries } in answers {
        gathered.entries.extend(entries);
        let control = facts.as_ref().ok().and_then(|facts| facts.control.as_ref());
        let shards = control.map(|control| control.shards.values().filter(|row| row.state.is_owner()).count());
        gathered.hosts.insert(name.to_string(), Host { is_up: facts.is_ok(), shards, load });
        survey.insert(name, facts);
    }
    match map {
        Ok(Ok(map)) => {
            let (migrations, unusable) = context::usable_migrations(config);
            let folder = config.cluster.migrations.as_ref().filter(|_| unusable.is_none()).map(|_| &migrations);
            gathered.is_configured = true;
            gathered.map_version = Some(map.version().get());
            gathered.findings = schema::check(&map, &survey, &context::cluster(config), folder);
            gathered.findings.extend(unusable.iter().flat_map(context::mistakes).map(Finding::unusable_migrations));
        }
        Ok(Err(error)) => gathered.findings.push(Finding::damaged_map(error.to_string())),
        Err(_) => gathered.findings.push(Finding::damaged_map("its database did not answer in time".to_owned())),
    }
}

/// What a host says of itself.
struct Answer {
    name: HostName,
    facts: Result<HostFacts, FactsError>,
    load: Option<HostLoad>,
    entries: Vec<Entry>,
}

/// Asks one host. If it takes longer than the limit, it counts as out of reach, and no other host waits for it.
async fn ask(config: &Config, host: &HostConfig, bound: Duration) -> Answer {
    let (name, connect) = (host.name.clone(), &host.connect);
    let facts = async {
        let mut survey = schema::survey_with_clocks([(name.clone(), connect.clone())]).await;
        survey.remove(&name)
    };
    let load = async {
        let connection = connect.connect("pgshard exporter").await.ok()?;
        schema::host_load(connection.client()).await.ok()
    };
    // A mover with all hosts would wait for those that do not answer.
    let only = Hosts::new([(name.clone(), connect.clone())]);
    let (prefix, store) = (config.cluster.prefix.clone(), Arc::new(config.map_store()));
    let mover = Mover::new(only, prefix, store, Options::default(), Observer::silent());
    let all = tokio::time::timeout(bound, async { tokio::join!(facts, load, mover.list_all()) }).await;
    let late = || {
        let source = ConnectError::TimedOut { to: connect.to_string(), timeout_ms: bound.as_millis() };
        Err(FactsError::Unreachable { source })
    };
    match all {
        Ok((facts, load, heard)) => Answer { name, facts: facts.unwrap_or_else(late), load, entries: heard.found },
        Err(_) => Answer { name, facts: late(), load: None, entries: Vec::new() },
    }
}
