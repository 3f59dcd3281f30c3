//! The config file: its text becomes the values that the other modules take ([`Config`]), or a list
//! of everything that is wrong with it ([`Diagnostic`]).
//!
//! Invariant: a config that loads can be used (every shard placed once, every name known), and no
//! message shows a password.

mod cluster;
mod connect;
mod edit;
mod hosts;
mod lookups;
mod map;
mod rebalance;
mod render;
mod router;
mod tables;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod vectors;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

pub use crate::store::Diagnostic;
pub use cluster::Cluster;
pub use connect::{ConnectError, connect};
pub use edit::{EditError, NewHost};
pub use hosts::HostConfig;
pub use map::ConfigStore;
pub use rebalance::{Rebalance, parse_bytes};
pub use render::{HostSettings, Settings, render, render_map, template};
pub use router::RouterConfig;
pub use tables::TableConfig;

use crate::map::{HostName, ShardMap};
use crate::shard::WholeSchema;
use crate::store::Findings;
use crate::store::map_text::{MAP_REMEDY, parse_toml};
use crate::store::section::Section;
use crate::values::Definition;

/// A config, read and checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The file it was read from.
    pub path: PathBuf,
    /// What is the same for all hosts and for ever.
    pub cluster: Cluster,
    /// The hosts by name, at least one. A host may have no shards.
    pub hosts: BTreeMap<HostName, HostConfig>,
    /// What routers do.
    pub router: RouterConfig,
    /// Where `rebalance` may put shards.
    pub rebalance: Rebalance,
    /// The tables with configured key columns, by name.
    pub tables: BTreeMap<String, TableConfig>,
    /// The look-ups, by name.
    pub lookups: BTreeMap<String, Definition>,
    /// The map in the file; later ones come from [`Config::map_store`]. `None` if it is stored
    /// elsewhere.
    pub map: Option<ShardMap>,
    store: ConfigStore,
}

/// Why there is no config.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// The file cannot be read.
    #[error(
        "cannot read the config {}{}",
        path.display(),
        if source.kind() == std::io::ErrorKind::NotFound { ": `pgshard init` writes one; --config \
            or PGSHARD_CONFIG name another" } else { "" }
    )]
    Read {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// The text has mistakes. `Display` shows them all, with their places.
    #[error("{}", diagnostics.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All mistakes, at least one, in the order of the text.
        diagnostics: Vec<Diagnostic>,
    },
}

/// A map gives an unsharded host some of the shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the map gives {host} {here} of {all} shards: it is unsharded, and serves all of them or none"
)]
pub struct SplitMap {
    /// The host.
    pub host: HostName,
    /// How many it is given.
    pub here: usize,
    /// N.
    pub all: usize,
}

impl Config {
    /// The file's default name.
    pub const FILE_NAME: &str = "pgshard.toml";

    /// The environment variable that names the file.
    pub const ENVIRONMENT: &str = "PGSHARD_CONFIG";

    /// Where the config is: the file given (`--config`), else the one that `PGSHARD_CONFIG` names,
    /// else `./pgshard.toml`. [`Config::load`] finds out whether it is there.
    pub fn find(explicit: Option<&Path>) -> PathBuf {
        Self::find_in(
            explicit,
            std::env::var_os(Self::ENVIRONMENT).map(PathBuf::from),
        )
    }

    fn find_in(explicit: Option<&Path>, environment: Option<PathBuf>) -> PathBuf {
        let environment = environment.filter(|path| !path.as_os_str().is_empty());
        explicit
            .map(Path::to_owned)
            .or(environment)
            .unwrap_or_else(|| PathBuf::from(Self::FILE_NAME))
    }

    /// Reads and checks a file.
    ///
    /// # Errors
    /// When the file cannot be read, or has mistakes.
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path);
        let text = text.map_err(|source| ConfigError::Read {
            path: path.to_owned(),
            source,
        })?;
        Config::parse(&text, path)
    }

    /// Checks the text of a config for the file `path`: relative paths in it are taken from that
    /// file's folder.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`] with every mistake.
    pub fn parse(text: &str, path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        Config::parse_at(text, path, Timestamp::now())
    }

    /// [`Config::parse`] at another time than now, which only an epoch in the future depends on.
    ///
    /// # Errors
    /// As [`Config::parse`].
    pub fn parse_at(
        text: &str,
        path: impl AsRef<Path>,
        now: Timestamp,
    ) -> Result<Config, ConfigError> {
        let path = path.as_ref();
        let mut findings = Findings::new(path, text);
        let config = read(&mut findings, path, now);
        let invalid = |findings: Findings<'_>| {
            Err(ConfigError::Invalid {
                path: path.to_owned(),
                diagnostics: findings.into_sorted(),
            })
        };
        match config {
            Some(config) if findings.count() == 0 => Ok(config),
            None if findings.count() == 0 => {
                findings.add(&(0..0), "the config is not complete", None);
                invalid(findings)
            }
            _ => invalid(findings),
        }
    }

    /// The host that keeps all shards in one schema of ordinary tables, if there is one, and that
    /// schema.
    pub fn unsharded(&self) -> Option<(&HostConfig, &WholeSchema)> {
        self.hosts
            .values()
            .find_map(|host| Some((host, host.layout.whole()?)))
    }

    /// Checks that a map gives the unsharded host all shards or none.
    ///
    /// # Errors
    /// What is wrong, and what to do.
    pub fn check_map(&self, map: &ShardMap) -> Result<(), SplitMap> {
        let Some((host, _)) = self.unsharded() else {
            return Ok(());
        };
        let here = map.iter().filter(|(_, on, _)| **on == host.name).count();
        let all = usize::from(map.shards().get());
        match here == 0 || here == all {
            true => Ok(()),
            false => Err(SplitMap {
                host: host.name.clone(),
                here,
                all,
            }),
        }
    }

    /// The store that keeps this cluster's map.
    pub fn map_store(&self) -> ConfigStore {
        self.store.clone()
    }
}

/// Reads all sections, whatever is wrong with those before.
fn read(findings: &mut Findings<'_>, path: &Path, now: Timestamp) -> Option<Config> {
    let document = parse_toml(findings)?;
    let root = Section::root(document.get_ref());
    root.only(
        &[
            "cluster",
            "hosts",
            "router",
            "rebalance",
            "tables",
            "lookups",
            "map",
        ],
        findings,
    );

    let remedy =
        "add [cluster] with shards and epoch; `pgshard init` writes a whole config to start from";
    let cluster = root
        .need("cluster", remedy, findings)
        .and_then(|cluster| cluster.section(findings));
    let cluster =
        cluster.map(|cluster| cluster::read(&cluster, map::folder_of(path), now, findings));

    let remedy =
        "add a section for each host: [hosts.db1] with url = \"postgres://user@address/database\"";
    let section = root
        .need("hosts", remedy, findings)
        .and_then(|hosts| hosts.section(findings));
    let names: Option<Vec<&str>> = section.as_ref().map(|hosts| hosts.names().collect());
    let prefix = cluster.as_ref().and_then(|cluster| cluster.prefix.as_ref());
    let hosts = section.map(|hosts| hosts::read(&hosts, map::folder_of(path), prefix, findings));

    let map = root
        .need("map", MAP_REMEDY, findings)
        .and_then(|map| map.section(findings));
    let shards = cluster.as_ref().and_then(|cluster| cluster.shards);
    if let (Some(map), Some(hosts)) = (&map, &hosts) {
        map::all_or_none(map, shards, hosts, findings);
    }
    let map = map.and_then(|map| map::read(&map, path, shards, names.as_deref(), findings));

    let rebalance = root
        .get("rebalance")
        .and_then(|rebalance| rebalance.section(findings));
    let rebalance =
        rebalance.map(|section| rebalance::read(&section, shards, names.as_deref(), findings));

    let tables = root
        .get("tables")
        .and_then(|tables| tables.section(findings))
        .map(|section| tables::read(&section, findings))
        .unwrap_or_default();

    let lookups = root
        .get("lookups")
        .and_then(|lookups| lookups.section(findings))
        .map(|section| lookups::read(&section, findings))
        .unwrap_or_default();

    let router = root
        .get("router")
        .and_then(|router| router.section(findings));
    let router = router
        .map(|section| router::read(&section, findings))
        .unwrap_or_default();

    let (cluster, hosts, (map, store)) = (cluster?.complete()?, hosts?, map?);
    let path = path.to_owned();
    Some(Config {
        path,
        cluster,
        hosts,
        router,
        rebalance: rebalance.unwrap_or_default(),
        tables,
        lookups,
        map,
        store,
    })
}
