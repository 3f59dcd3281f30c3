//! One look at the cluster, for `pgshard exporter` and `pgshard console`: all hosts are queried at
//! the same time, each within the limit.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, ShardMap};
use pgshard::mover::{Entry, Hosts, Mover, Observer, Options};
use pgshard::pg::HostState;
use pgshard::pg::Sessions;
use pgshard::pg::cause::chain;
use pgshard::schema::{
    self, ClockFacts, FactsError, Finding, HostFacts, HostLoad, HostStatus, Measure, Migrations,
    Sizes, Streams, Survey,
};
use pgshard::store::{MapStore, StoreError};

use super::findings::{self, ConfirmedDoubts, Folder, Look, late};
use crate::context;

/// How much is read from the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Depth {
    /// What the metrics have.
    Metrics,
    /// What the pages of the console show, too: settings, sizes and writes of shards.
    Pages,
}

/// The result of a look.
#[derive(Default)]
pub(super) struct SurveyResult {
    /// The config as it is in its file, or, where that cannot be used, the one of [`Kept`]; without
    /// it all else is empty.
    pub(super) config: Option<Arc<Config>>,
    /// Why it cannot be used.
    pub(super) failure: Option<String>,
    /// The map that is kept, if it can be read.
    pub(super) map: Option<ShardMap>,
    pub(super) hosts: BTreeMap<HostName, Host>,
    /// The hosts' facts about their shards.
    pub(super) survey: Survey,
    /// The files of the config's folder that can be used.
    pub(super) migrations: Migrations,
    /// What is wrong in that folder: file and mistake.
    pub(super) mistakes: Vec<(String, String)>,
    /// Everything that `pgshard check` finds, the worst first.
    pub(super) findings: Vec<Finding>,
    /// What the next look need not doubt.
    pub(super) believed: ConfirmedDoubts,
    /// Every shard of every move that the hosts remember.
    pub(super) entries: Vec<Entry>,
    pub(super) took: Duration,
}

impl SurveyResult {
    /// Whether config and map can be read.
    pub(super) fn is_configured(&self) -> bool {
        self.failure.is_none() && self.map.is_some()
    }
}

/// One host of the config.
#[derive(Default)]
pub(super) struct Host {
    /// In which state it is; `None` before the first look.
    pub(super) state: Option<HostState>,
    /// When it was read last, if that succeeded.
    pub(super) seen_at: Option<Timestamp>,
    /// How many shards it serves, by its own rows.
    pub(super) shards: Option<usize>,
    pub(super) load: Option<HostLoad>,
    pub(super) status: Option<HostStatus>,
    /// Its slots, and who streams from it.
    pub(super) streams: Option<Streams>,
    /// When, and what the shards weigh that it owns. The sizes are estimates.
    pub(super) measured: Option<(Instant, BTreeMap<ShardId, Measure>)>,
}

impl Host {
    /// Whether it was read within the limit.
    pub(super) fn is_read(&self) -> bool {
        self.state == Some(HostState::Serving)
    }

    /// Whether its server answers, even if it refuses us.
    pub(super) fn is_up(&self) -> bool {
        self.state.is_some_and(HostState::is_up)
    }
}

/// The clocks that hosts reported before, for those that need not be queried again.
pub(super) type Clocks = BTreeMap<HostName, ClockFacts>;

/// What is kept from one look to the next.
#[derive(Default)]
pub(super) struct Kept {
    /// The hosts of this config are read while the file cannot be.
    pub(super) config: Option<Arc<Config>>,
    /// Clocks are not read again of a host in it: they cost it more than all else.
    pub(super) clocks: Clocks,
    pub(super) believed: ConfirmedDoubts,
}

/// Reads config, map and hosts.
pub(super) async fn gather(
    path: &Path,
    bound: Duration,
    depth: Depth,
    kept: &Kept,
    sessions: &Sessions,
) -> SurveyResult {
    let began = Instant::now();
    let mut gathered = SurveyResult::default();
    let config = match context::config(Some(path)) {
        Ok(config) => Some(Arc::new(config)),
        Err(failure) => {
            tracing::warn!(error = failure.one_line(), "the config cannot be used");
            gathered.failure = Some(failure.one_line());
            kept.config.clone()
        }
    };
    if let Some(config) = config {
        let request = Request {
            config: &config,
            bound,
            depth,
            kept,
            sessions,
        };
        hosts(&request, &mut gathered).await;
        gathered.config = Some(config);
    }
    gathered.took = began.elapsed();
    gathered
}

/// One look: at what, how deep, and over which sessions.
struct Request<'a> {
    config: &'a Config,
    bound: Duration,
    depth: Depth,
    kept: &'a Kept,
    sessions: &'a Sessions,
}

async fn hosts(request: &Request<'_>, gathered: &mut SurveyResult) {
    let Request {
        config,
        bound,
        kept,
        ..
    } = *request;
    let asked = join_all(config.hosts.values().map(|host| read_host(request, host)));
    let map_store = config.map_store();
    let map = tokio::time::timeout(bound, map_store.load());
    let identities = tokio::time::timeout(bound, schema::identities(context::all_hosts(config)));
    let (answers, map, identities) = tokio::join!(asked, map, identities);
    let (map, about_map) = match map {
        Ok(Ok(map)) => (Some(map), None),
        Ok(Err(error)) => (None, Some(no_map(&error))),
        Err(_) => {
            let why = "its database did not answer in time";
            (None, Some(Finding::unreachable_map(why)))
        }
    };
    let mut look = Look {
        map,
        about_map: about_map.into_iter().collect(),
        survey: Survey::new(),
        seen_at: BTreeMap::new(),
        identities: identities.unwrap_or_default(),
    };
    for Answer {
        name,
        at,
        facts,
        host,
        entries,
    } in answers
    {
        gathered.entries.extend(entries);
        if facts.is_ok() {
            look.seen_at.insert(name.clone(), at);
        }
        gathered.hosts.insert(name.clone(), host);
        look.survey.insert(name, facts);
    }
    let folder = Folder::of(config);
    let found = findings::find(config, &folder, &mut look, Some(bound), &kept.believed);
    (gathered.findings, gathered.believed) = found.await;
    for (name, host) in &mut gathered.hosts {
        host.seen_at = look.seen_at.get(name).copied();
        let facts = look.survey.get(name);
        host.state = facts.map(|facts| match facts {
            Ok(_) => HostState::Serving,
            Err(error) => error.host_state(),
        });
        let control = facts.and_then(|facts| facts.as_ref().ok()?.control.as_ref());
        host.shards = control.map(|control| {
            let rows = control.shards.values();
            rows.filter(|row| row.state.is_owner()).count()
        });
    }
    let mistakes = folder
        .unusable
        .iter()
        .flat_map(|error| error.mistakes.iter().zip(context::mistakes(error)));
    gathered.mistakes = mistakes
        .map(|(mistake, words)| (mistake.file().to_owned(), words))
        .collect();
    gathered.migrations = folder.migrations;
    gathered.survey = look.survey;
    gathered.map = look.map;
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

/// A host's answer about itself.
struct Answer {
    name: HostName,
    at: Timestamp,
    facts: Result<HostFacts, FactsError>,
    host: Host,
    entries: Vec<Entry>,
}

/// Queries one host. If it takes longer than the limit, it counts as out of reach, and no other
/// host waits for it.
async fn read_host(request: &Request<'_>, host: &HostConfig) -> Answer {
    let Request {
        config,
        bound,
        depth,
        kept,
        sessions,
    } = *request;
    let clocks = &kept.clocks;
    let (name, connect, at) = (host.name.clone(), &host.connect, Timestamp::now());
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
            // It may wait for another session's lock, which means nothing about the host.
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
    let (facts, load, heard) = all;
    Answer {
        name,
        at,
        facts: facts.unwrap_or_else(|_| Err(late(connect, bound))),
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
