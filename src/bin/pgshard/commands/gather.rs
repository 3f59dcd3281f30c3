//! One look at the cluster, for `pgshard exporter` and `pgshard console`: all hosts are asked at
//! the same time, each within the limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, ShardMap};
use pgshard::mover::{Entry, Hosts, Mover, Observer, Options};
use pgshard::pg::cause::chain;
use pgshard::pg::{ConnectError, Sessions};
use pgshard::schema::{
    self, ClockFacts, FactsError, Finding, HostFacts, HostLoad, HostStatus, Measure, Migrations,
    Sizes, Streams, Survey,
};
use pgshard::store::{MapStore, StoreError};

use super::check::{BETWEEN_LOOKS, Doubts};
use crate::context;

/// How much the hosts are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// What the metrics have.
    Metrics,
    /// What the pages of the console show, too: settings, sizes and writes of shards, everything
    /// that `check` finds.
    Pages,
}

/// What a look has found.
#[derive(Default)]
pub(super) struct Gathered {
    /// The config as it is in its file; without it all else is empty.
    pub(super) config: Option<Config>,
    /// Why it cannot be used.
    pub(super) failure: Option<String>,
    /// The map that is kept, if it can be read.
    pub(super) map: Option<ShardMap>,
    pub(super) hosts: BTreeMap<HostName, Host>,
    /// What the hosts say of their shards.
    pub(super) survey: Survey,
    /// The files of the config's folder that can be used.
    pub(super) migrations: Migrations,
    /// What is wrong in that folder: file and mistake.
    pub(super) mistakes: Vec<(String, String)>,
    /// What `schema::check` finds.
    pub(super) findings: Vec<Finding>,
    /// What else `pgshard check` finds, if pages were asked for: about identities, sources of IDs,
    /// the config's file.
    pub(super) further: Vec<Finding>,
    /// Every shard of every move that the hosts remember.
    pub(super) entries: Vec<Entry>,
    pub(super) took: Duration,
}

impl Gathered {
    /// Whether config and map can be read.
    pub(super) fn is_configured(&self) -> bool {
        self.map.is_some()
    }
}

/// One host of the config.
#[derive(Default)]
pub(super) struct Host {
    /// Whether it answered within the limit.
    pub(super) is_up: bool,
    /// How many shards it says that it serves.
    pub(super) shards: Option<usize>,
    pub(super) load: Option<HostLoad>,
    pub(super) status: Option<HostStatus>,
    /// Its slots, and who streams from it.
    pub(super) streams: Option<Streams>,
    /// When, and what the shards weigh that it owns. The sizes are estimates.
    pub(super) measured: Option<(Instant, BTreeMap<ShardId, Measure>)>,
}

/// What hosts said of their clocks before, for those that need not say it again.
pub(super) type Clocks = BTreeMap<HostName, ClockFacts>;

/// Asks config, map and hosts. A host in `clocks` is not asked for its clocks, which cost it more
/// than all else.
pub(super) async fn gather(
    path: &Path,
    bound: Duration,
    depth: Depth,
    clocks: &Clocks,
    sessions: &Sessions,
) -> Gathered {
    let began = Instant::now();
    let mut gathered = Gathered::default();
    match context::config(Some(path)) {
        Ok(config) => {
            let look = Look {
                config: &config,
                bound,
                depth,
                clocks,
                sessions,
            };
            hosts(&look, &mut gathered).await;
            gathered.config = Some(config);
        }
        Err(failure) => {
            tracing::warn!(error = failure.words(), "the config cannot be used");
            gathered.failure = Some(failure.words());
        }
    }
    gathered.took = began.elapsed();
    gathered
}

/// One look: at what, how deep, and over which sessions.
struct Look<'a> {
    config: &'a Config,
    bound: Duration,
    depth: Depth,
    clocks: &'a Clocks,
    sessions: &'a Sessions,
}

async fn hosts(look: &Look<'_>, gathered: &mut Gathered) {
    let Look {
        config,
        bound,
        depth,
        ..
    } = *look;
    let asked = join_all(config.hosts.values().map(|host| ask(look, host)));
    let map_store = config.map_store();
    let map = tokio::time::timeout(bound, map_store.load());
    let (answers, map) = tokio::join!(asked, map);
    for Answer {
        name,
        facts,
        mut host,
        entries,
    } in answers
    {
        gathered.entries.extend(entries);
        let control = facts.as_ref().ok().and_then(|facts| facts.control.as_ref());
        host.shards = control.map(|control| {
            control
                .shards
                .values()
                .filter(|row| row.state.is_owner())
                .count()
        });
        host.is_up = facts.is_ok();
        gathered.hosts.insert(name.clone(), host);
        gathered.survey.insert(name, facts);
    }
    match map {
        Ok(Ok(map)) => judge(config, map, bound, depth, gathered).await,
        Ok(Err(error)) => gathered.findings.push(no_map(&error)),
        Err(_) => gathered.findings.push(Finding::unreachable_map(
            "its database did not answer in time",
        )),
    }
}

/// What to do differs: a map that is damaged is made again, one that is out of reach is not.
fn no_map(error: &StoreError) -> Finding {
    match error {
        StoreError::Damaged { .. }
        | StoreError::NoMap { .. }
        | StoreError::NotInstalled { .. }
        | StoreError::Text { .. } => Finding::damaged_map(error.to_string()),
        error => Finding::unreachable_map(&chain(error)),
    }
}

/// Compares what the hosts say with the map, and with each other.
async fn judge(
    config: &Config,
    mut map: ShardMap,
    bound: Duration,
    depth: Depth,
    gathered: &mut Gathered,
) {
    let (migrations, unusable) = context::usable_migrations(config);
    let folder = config
        .cluster
        .migrations
        .as_ref()
        .filter(|_| unusable.is_none())
        .map(|_| &migrations);
    let cluster = context::cluster(config);
    gathered.findings = schema::check(&map, &gathered.survey, &cluster, folder);
    let mut doubts = Doubts::default();
    // A shard that is opened while the hosts answer is seen on two of them. `check` looks again,
    // too.
    while depth == Depth::Pages && doubts.remain(&mut gathered.findings) {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        let heard = heard(config, &gathered.survey);
        if let Ok(Ok(newer)) = tokio::time::timeout(bound, config.map_store().load()).await {
            map = newer;
        }
        if let Ok(again) = tokio::time::timeout(bound, schema::survey(heard)).await {
            for (name, facts) in again {
                let clock = gathered
                    .survey
                    .get(&name)
                    .and_then(|facts| facts.as_ref().ok()?.clock.clone());
                gathered
                    .survey
                    .insert(name, facts.map(|facts| HostFacts { clock, ..facts }));
            }
        }
        gathered.findings = schema::check(&map, &gathered.survey, &cluster, folder);
    }
    gathered.findings.extend(
        unusable
            .iter()
            .flat_map(context::mistakes)
            .map(Finding::unusable_migrations),
    );
    let mistakes = unusable
        .iter()
        .flat_map(|error| error.mistakes.iter().zip(context::mistakes(error)));
    gathered.mistakes = mistakes
        .map(|(mistake, words)| (mistake.file().to_owned(), words))
        .collect();
    if depth == Depth::Pages {
        gathered.further = further(config, &gathered.survey, bound).await;
    }
    gathered.migrations = migrations;
    gathered.map = Some(map);
}

/// The hosts that answered.
fn heard(config: &Config, survey: &Survey) -> Vec<(HostName, pgshard::pg::ConnectOptions)> {
    let mut hosts = context::all_hosts(config);
    hosts.retain(|(name, _)| survey.get(name).is_some_and(Result::is_ok));
    hosts
}

/// What `pgshard check` finds beside the comparison with the map.
async fn further(config: &Config, survey: &Survey, bound: Duration) -> Vec<Finding> {
    let answered = heard(config, survey);
    let with_control = answered.iter().filter(|(name, _)| {
        survey
            .get(name)
            .and_then(|facts| facts.as_ref().ok())
            .is_some_and(|facts| facts.control.is_some())
    });
    let with_control: Vec<_> = with_control.cloned().collect();
    let identities = async {
        let findings = tokio::time::timeout(bound, schema::identities(answered)).await;
        findings
            .map(|identities| identities.findings())
            .unwrap_or_default()
    };
    let sources = async {
        tokio::time::timeout(bound, schema::sources(with_control))
            .await
            .unwrap_or_default()
    };
    let (mut found, sources) = tokio::join!(identities, sources);
    found.extend(sources);
    let hosts = config
        .hosts
        .values()
        .map(|host| (&host.name, &host.connect));
    found.extend(schema::exposed(
        hosts,
        &config.path,
        config.cluster.migrations.as_deref(),
    ));
    found
}

/// What a host says of itself.
struct Answer {
    name: HostName,
    facts: Result<HostFacts, FactsError>,
    host: Host,
    entries: Vec<Entry>,
}

/// Asks one host. If it takes longer than the limit, it counts as out of reach, and no other host
/// waits for it.
async fn ask(look: &Look<'_>, host: &HostConfig) -> Answer {
    let Look {
        config,
        bound,
        depth,
        clocks,
        sessions,
    } = *look;
    let (name, connect) = (host.name.clone(), &host.connect);
    let facts = async {
        let unreachable = |source| FactsError::Unreachable { source };
        let session = sessions.get(connect).await.map_err(unreachable)?;
        let facts = match clocks.get(&name) {
            None => schema::watched_facts_with_clocks(&session).await?,
            Some(clock) => HostFacts {
                clock: Some(clock.clone()),
                ..schema::watched_facts(&session).await?
            },
        };
        session.give_back();
        Ok(facts)
    };
    let load = async {
        let mut found = Host::default();
        let Ok(session) = sessions.get(connect).await else {
            return found;
        };
        found.load = schema::host_load(&session).await.ok();
        let mut is_whole = found.load.is_some();
        if depth == Depth::Pages {
            found.status = schema::host_status(&session).await.ok();
            found.streams = schema::streams(&session).await.ok();
            // It may wait for a lock of somebody else's, which says nothing about the host.
            let measured =
                tokio::time::timeout(bound / 2, schema::measure(&session, Sizes::Estimated));
            found.measured = measured
                .await
                .ok()
                .and_then(Result::ok)
                .map(|measures| (Instant::now(), measures));
            is_whole = is_whole && found.measured.is_some();
        }
        if is_whole {
            session.give_back();
        }
        found
    };
    // A mover with all hosts would wait for those that do not answer.
    let mover = mover(config, [(name.clone(), connect.clone())]);
    let all = tokio::join!(
        tokio::time::timeout(bound, facts),
        tokio::time::timeout(bound, load),
        tokio::time::timeout(bound, mover.list_all())
    );
    let late = || {
        let source = ConnectError::TimedOut {
            to: connect.to_string(),
            timeout_ms: bound.as_millis(),
        };
        Err(FactsError::Unreachable { source })
    };
    let (facts, load, heard) = all;
    Answer {
        name,
        facts: facts.unwrap_or_else(|_| late()),
        host: load.unwrap_or_default(),
        entries: heard.map(|heard| heard.found).unwrap_or_default(),
    }
}

/// A mover that only looks, at these hosts.
pub(super) fn mover(
    config: &Config,
    hosts: impl IntoIterator<Item = (HostName, pgshard::pg::ConnectOptions)>,
) -> Mover {
    let (cluster, store) = (context::cluster(config), Arc::new(config.map_store()));
    Mover::new(
        Hosts::new(hosts),
        cluster,
        store,
        Options::default(),
        Observer::silent(),
    )
}
