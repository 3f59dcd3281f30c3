//! `[map]`: where the map is kept, and the map itself where that is the file.

use std::collections::BTreeMap;
use std::path::Path;

use futures_util::future::BoxFuture;

use super::HostConfig;
use super::hosts;
use crate::map::{HostName, MapVersion, ShardMap, parse_ranges};
use crate::shard::ShardCount;
use crate::store::map_text::read_map;
use crate::store::section::Section;
use crate::store::{
    FileStore, Findings, MapStore, MapWatch, PostgresStore, PublishError, StoreError,
};

/// The folder that a path in the file starts at.
pub(super) fn folder_of(path: &Path) -> &Path {
    // The parent of a bare name is empty, and joins to what it is joined with.
    path.parent().unwrap_or(Path::new(""))
}

/// The store that a config names.
#[derive(Clone, Debug)]
pub enum ConfigStore {
    /// The config file itself.
    File(FileStore),
    /// A table in a database.
    Postgres(PostgresStore),
}

impl ConfigStore {
    /// The same store that records this reason with what it publishes, if it records reasons.
    #[must_use]
    pub fn with_reason(self, reason: &str) -> ConfigStore {
        match self {
            ConfigStore::File(store) => ConfigStore::File(store),
            ConfigStore::Postgres(store) => ConfigStore::Postgres(store.with_reason(reason)),
        }
    }

    /// The map as it is stored now. If the database that stores it cannot be read, this is the copy
    /// on disk, with a warning in the log. It is for callers that only read: a stale map is a hint
    /// like any other.
    ///
    /// # Errors
    /// As [`MapStore::load`], when there is no copy.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    pub async fn load_or_copy(&self) -> Result<ShardMap, StoreError> {
        match self {
            ConfigStore::File(store) => store.load().await,
            ConfigStore::Postgres(store) => Ok(store.load_or_copy().await?.map),
        }
    }

    fn store(&self) -> &dyn MapStore {
        match self {
            ConfigStore::File(store) => store,
            ConfigStore::Postgres(store) => store,
        }
    }
}

impl MapStore for ConfigStore {
    fn load(&self) -> BoxFuture<'_, Result<ShardMap, StoreError>> {
        self.store().load()
    }

    fn publish<'a>(
        &'a self,
        expected: MapVersion,
        map: &'a ShardMap,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        self.store().publish(expected, map)
    }

    fn watch(&self) -> BoxFuture<'_, Result<MapWatch, StoreError>> {
        self.store().watch()
    }
}

/// Reads the section. `shards` and `hosts` are `None` when they are wrong themselves.
pub(super) fn read(
    section: &Section<'_>,
    path: &Path,
    shards: Option<ShardCount>,
    hosts: Option<&[&str]>,
    findings: &mut Findings<'_>,
) -> Option<(Option<ShardMap>, ConfigStore)> {
    let kept_in = section.get("store").and_then(|store| store.as_str());
    if kept_in == Some("postgres") {
        return Some((
            None,
            ConfigStore::Postgres(read_postgres(section, folder_of(path), shards, findings)?),
        ));
    }
    let map = read_map(section, shards, hosts, findings)?;
    let store = FileStore::new(path, map.shards());
    Some((Some(map), ConfigStore::File(store)))
}

/// A finding where the text gives an unsharded host some of the shards, and not all.
pub(super) fn all_or_none(
    section: &Section<'_>,
    shards: Option<ShardCount>,
    hosts: &BTreeMap<HostName, HostConfig>,
    findings: &mut Findings<'_>,
) {
    let unsharded = hosts.values().find(|host| host.layout.whole().is_some());
    let (Some(host), Some(shards)) = (unsharded, shards) else {
        return;
    };
    let placement = section.get("placement");
    let placement = placement.and_then(|placement| Some(Section::root(placement.as_table()?)));
    let Some(entry) = placement.and_then(|placement| placement.get(host.name.as_str())) else {
        return;
    };
    // What is wrong with the list itself is reported where the map is read.
    let items = entry
        .as_str()
        .and_then(|text| parse_ranges(text, shards).ok());
    let here: usize = items
        .iter()
        .flatten()
        .map(|item| item.shards().count())
        .sum();
    if here > 0 && here < usize::from(shards.get()) {
        let message = format!(
            "{} is unsharded and gets {here} of {shards} shards: it serves all of them or none",
            host.name
        );
        let hint = format!("write {} = \"0-{}\"", host.name, shards.get() - 1);
        findings.add(&entry.at(), message, Some(hint));
    }
}

fn read_postgres(
    section: &Section<'_>,
    folder: &Path,
    shards: Option<ShardCount>,
    findings: &mut Findings<'_>,
) -> Option<PostgresStore> {
    for name in ["version", "placement"] {
        if let Some(entry) = section.get(name) {
            let hint = "take it out; to bring it into the database, first `pgshard map import` the \
                config that has it";
            let message =
                format!("map.{name} beside store = \"postgres\": the map is in the database");
            findings.add(&entry.key_at(), message, Some(hint.to_owned()));
        }
    }
    section.only(
        &[
            "store",
            "url",
            "password_env",
            "password_file",
            "password_command",
            "cache",
            "version",
            "placement",
        ],
        findings,
    );
    let remedy =
        "add url = \"postgres://user@address:5432/database\", the database that keeps the map";
    let url = section.need("url", remedy, findings);
    let connect = url.and_then(|url| hosts::read_url(&url, findings));
    let password = hosts::read_password(section, findings);
    let copy = section.get("cache").and_then(|entry| {
        let path = folder.join(entry.string(findings)?);
        let parent = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
            .unwrap_or(Path::new("."));
        let fault = if path.is_dir() || path.file_name().is_none() {
            Some(format!("{} is a folder", path.display()))
        } else if !parent.is_dir() {
            Some(format!("the folder {} does not exist", parent.display()))
        } else {
            None
        };
        if let Some(fault) = fault {
            let hint = "name the file that keeps a copy of the map; a path that is not absolute \
                starts at the folder of this file";
            findings.add(&entry.at(), fault, Some(hint.to_owned()));
        }
        Some(path)
    });
    let connect = match password {
        Some(password) => connect?.with_password(password),
        None => connect?,
    };
    let store = PostgresStore::new(connect.with_files_below(folder), shards?);
    Some(match copy {
        Some(path) => store.with_copy(path),
        None => store,
    })
}
