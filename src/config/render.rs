//! Configs as text: one to start from, and one for hosts that are known.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::HostConfig;
use crate::id::Epoch;
use crate::map::{HostName, ShardMap};
use crate::shard::{KeyKind, SchemaPrefix};
use crate::store::map_text::{print_map, quoted};

/// A whole config with every key explained, for `pgshard init`. It is valid; its hosts are
/// examples.
pub fn template() -> &'static str {
    include_str!("../../config/pgshard.toml")
}

/// What [`render`] writes down. `shards` is the map's.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The zero of the IDs' clock.
    pub epoch: Epoch,
    /// The prefix of the shards' schemas, before the number.
    pub prefix: SchemaPrefix,
    /// How a key becomes a shard.
    pub key: KeyKind,
    /// The folder of the application's migrations, as it will be written.
    pub migrations: Option<PathBuf>,
    /// The hosts, in the order in which they will be written.
    pub hosts: Vec<HostSettings>,
    /// The map.
    pub map: ShardMap,
}

impl Settings {
    /// Integer keys, the default prefix, and no migrations.
    pub fn new(epoch: Epoch, hosts: Vec<HostSettings>, map: ShardMap) -> Settings {
        let (prefix, key) = (SchemaPrefix::default(), KeyKind::default());
        Settings {
            epoch,
            prefix,
            key,
            migrations: None,
            hosts,
            map,
        }
    }
}

setters!(Settings: prefix: SchemaPrefix, key: KeyKind, migrations: Option<PathBuf>);

/// One host of [`Settings`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostSettings {
    /// Its name.
    pub name: HostName,
    /// The libpq URL or key=value string, as it will be written.
    pub url: String,
    /// The environment variable that holds the password.
    pub password_env: Option<String>,
    /// The largest number of connections of a router.
    pub pool_size: usize,
}

impl HostSettings {
    /// A host of which only the URL is known.
    pub fn new(name: HostName, url: impl Into<String>) -> HostSettings {
        HostSettings {
            name,
            url: url.into(),
            password_env: None,
            pool_size: HostConfig::POOL_SIZE_DEFAULT,
        }
    }
}

setters!(HostSettings: password_env: Option<String>, pool_size: usize);

/// A config with these values and short comments. Read back, it gives the same values.
pub fn render(settings: &Settings) -> String {
    let mut out = String::new();
    write_all(&mut out, settings).expect("writing to a String does not fail");
    out
}

/// The `[map]` section that keeps this map in the file.
pub fn render_map(map: &ShardMap) -> String {
    print_map(map)
}

fn write_all(out: &mut String, settings: &Settings) -> std::fmt::Result {
    writeln!(
        out,
        "# Every key is explained in what `pgshard init` writes.\n\n[cluster]"
    )?;
    writeln!(
        out,
        "# These cannot change once the cluster is bootstrapped."
    )?;
    writeln!(out, "shards = {}", settings.map.shards())?;
    writeln!(
        out,
        "epoch = {}",
        quoted(&settings.epoch.timestamp().to_string())
    )?;
    writeln!(out, "schema_prefix = {}", quoted(settings.prefix.as_str()))?;
    if settings.key != KeyKind::default() {
        writeln!(out, "key = {}", quoted(settings.key.as_str()))?;
    }
    if let Some(migrations) = &settings.migrations {
        writeln!(
            out,
            "migrations = {}",
            quoted(&migrations.display().to_string())
        )?;
    }
    for host in &settings.hosts {
        writeln!(out, "\n[hosts.{}]\nurl = {}", host.name, quoted(&host.url))?;
        if let Some(variable) = &host.password_env {
            writeln!(out, "password_env = {}", quoted(variable))?;
        }
        if host.pool_size != HostConfig::POOL_SIZE_DEFAULT {
            writeln!(out, "pool_size = {}", host.pool_size)?;
        }
    }
    write!(out, "\n# Rewritten by moves.\n{}", print_map(&settings.map))
}
