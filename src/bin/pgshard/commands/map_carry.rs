//! `pgshard map import` and `map export`: the map from a config file into a database, and back.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::config::{Config, ConfigStore, HostConfig};
use pgshard::map::{Changes, HostName, ShardEpoch, ShardMap, print_shards};
use pgshard::store::postgres::Installed;
use pgshard::store::{StoreError, publish_merged};
use schemars::JsonSchema;
use serde::Serialize;

use super::map::print_changes;
use crate::args::MapFormat;
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// Brings the map of the config `from` into the database that the config in use names.
pub(crate) async fn import(
    from: &Path,
    consent: Consent,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let ConfigStore::Postgres(store) = context::store(&config) else {
        let error = format!(
            "{} keeps its map in the file: there is no database to bring one into",
            config.path.display()
        );
        return Err(Failure::usage(error).hint(
            "write [map] store = \"postgres\" and its url into a new config, and name that \
                by --config",
        ));
    };
    let source = context::config(Some(from))?;
    let Some(map) = source.map else {
        let error = format!("{} does not keep its map in the file", from.display());
        return Err(Failure::usage(error).hint("name the config that the application uses now"));
    };
    if map.shards() != config.cluster.shards {
        let error = format!(
            "{} has {} shards, this cluster {}",
            from.display(),
            map.shards(),
            config.cluster.shards
        );
        return Err(Failure::usage(error).hint("they are not configs of one cluster"));
    }
    if let Some(host) = map
        .hosts()
        .iter()
        .find(|host| !config.hosts.contains_key(*host))
    {
        let error = format!(
            "{} places shards on {host}, which {} does not name",
            from.display(),
            config.path.display()
        );
        return Err(Failure::usage(error).hint(format_args!("add [hosts.{host}]")));
    }
    let kept = match store.install(&map).await {
        Err(damaged @ StoreError::Damaged { .. }) => {
            output.warning(&damaged);
            if !confirm("put this map in its place?", consent, output).await? {
                return Err(Failure::new(Exit::Failed, "what is kept stays as it is"));
            }
            let mended = store.mend(&map).await?;
            output.note(format_args!("published map version {}", mended.version()));
            return Ok(Exit::Done);
        }
        installed => installed?,
    };
    let kept = match kept {
        Installed::Created => {
            output.note(format_args!(
                "map version {} is kept in {} now",
                map.version(),
                store.database()
            ));
            return Ok(Exit::Done);
        }
        Installed::Kept(kept) => kept,
    };
    let changes: Changes = map
        .iter()
        .filter_map(|(shard, ..)| Some((shard, map.placement(shard)?)))
        .collect();
    let merged = kept.merged(&changes);
    print_changes(&kept, &merged, output);
    let contradicted = merged
        .iter()
        .zip(map.iter())
        .filter(|(ours, theirs)| ours.2 == theirs.2 && ours.1 != theirs.1)
        .count();
    if contradicted > 0 {
        output.warning(format_args!(
            "{contradicted} shards are on another host in {}, in the same epoch: `pgshard map \
                diff` asks the hosts",
            from.display()
        ));
    }
    if merged.version() == kept.version() {
        return Ok(Exit::Done);
    }
    if !confirm(
        &format!("take this into map version {}?", merged.version()),
        consent,
        output,
    )
    .await?
    {
        return Err(Failure::new(Exit::Failed, "the map stays as it is"));
    }
    let published = publish_merged(&store, &changes).await?;
    output.note(format_args!(
        "published map version {}",
        published.version()
    ));
    Ok(Exit::Done)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ExportReport {
    version: u64,
    shards: u16,
    schema_prefix: String,
    hosts: BTreeMap<String, ExportedHost>,
    /// Of the shards that have moved: their epochs. The others are in the first.
    epochs: BTreeMap<String, u32>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ExportedHost {
    /// As ranges.
    shards: String,
    /// In the order in which they are tried.
    addresses: Vec<String>,
    database: String,
    user: String,
}

/// Prints the map: as the `[map]` section of a config, for PgDog, as JSON, or for a shell.
pub(crate) async fn export(
    format: MapFormat,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    match format {
        MapFormat::Toml if output.format() == Format::Text => {
            output.raw(pgshard::config::render_map(&map).as_bytes());
        }
        MapFormat::Toml | MapFormat::Json => output.object(exported(&config, &map)),
        MapFormat::Pgdog => output.raw(pgdog(&config, &map)?.as_bytes()),
        MapFormat::Env => output.raw(env(&config, &map).as_bytes()),
    }
    Ok(Exit::Done)
}

fn exported(config: &Config, map: &ShardMap) -> ExportReport {
    let host = |host: &HostConfig| {
        let shards = print_shards(map.shards_on(&host.name));
        let (addresses, connect) = (host.connect.addresses(), &host.connect);
        let (database, user) = (connect.database().to_owned(), connect.user().to_owned());
        (
            host.name.to_string(),
            ExportedHost {
                shards,
                addresses,
                database,
                user,
            },
        )
    };
    let moved = map.iter().filter(|(.., epoch)| *epoch > ShardEpoch::FIRST);
    ExportReport {
        version: map.version().get(),
        shards: map.shards().get(),
        schema_prefix: config.cluster.prefix.as_str().to_owned(),
        hosts: config.hosts.values().map(host).collect(),
        epochs: moved
            .map(|(shard, _, epoch)| (shard.to_string(), epoch.get()))
            .collect(),
    }
}

/// PgDog's `[[databases]]`, one for each host that has shards, numbered from 0, and where each
/// shard's schema is.
fn pgdog(config: &Config, map: &ShardMap) -> Result<String, Failure> {
    if let Some((host, _)) = config.unsharded() {
        let error = format!("{} is unsharded, and PgDog routes to shards", host.name);
        return Err(Failure::new(Exit::Refused, error).hint("export when there are shards"));
    }
    let text = |value: &str| toml_text(value);
    let mut written = format!(
        "# Map version {} of pgshard. After a move: `pgshard map export --format pgdog` again, \
            then RELOAD in PgDog.\n",
        map.version()
    );
    let mut names = Vec::new();
    for (number, name) in map.hosts().iter().enumerate() {
        let Some(host) = config.hosts.get(name) else {
            continue;
        };
        names.push((name, number));
        for (at, address) in host.connect.addresses().iter().enumerate() {
            let Some((place, port)) = address
                .rsplit_once(':')
                .filter(|(place, _)| !place.starts_with('/'))
            else {
                let error =
                    format!("{name} is reached by a socket, {address}: PgDog takes addresses");
                return Err(
                    Failure::usage(error).hint("export from a config that names it by an address")
                );
            };
            // Of several addresses one is the primary, and PgDog finds out which.
            let role = if host.connect.addresses().len() > 1 {
                "auto"
            } else {
                "primary"
            };
            let title = if at == 0 {
                format!("\n# {name}")
            } else {
                String::new()
            };
            written.push_str(&format!(
                "{title}\n[[databases]]\nname = \"pgshard\"\nhost = {}\nport = \
                    {port}\ndatabase_name = {}\nrole = \"{role}\"\nshard = {number}\n",
                text(place),
                text(host.connect.database()),
            ));
        }
    }
    for (shard, host, _) in map.iter() {
        let Some((_, number)) = names.iter().find(|(name, _)| *name == host) else {
            continue;
        };
        let schema = config.cluster.prefix.schema(shard);
        written.push_str(&format!(
            "\n[[sharded_schemas]]\ndatabase = \"pgshard\"\nname = {}\nshard = {number}\n",
            text(&schema)
        ));
    }
    Ok(written)
}

/// `NAME=value` lines for scripts. Names have A-Z, 0-9 and _ only.
fn env(config: &Config, map: &ShardMap) -> String {
    let quoted = |value: &str| format!("'{}'", value.replace('\'', "'\\''"));
    let names: Vec<&str> = config.hosts.keys().map(HostName::as_str).collect();
    let mut lines = vec![
        format!("PGSHARD_MAP_VERSION={}", map.version()),
        format!("PGSHARD_SHARDS={}", map.shards()),
        format!(
            "PGSHARD_SCHEMA_PREFIX={}",
            quoted(config.cluster.prefix.as_str())
        ),
        format!("PGSHARD_HOSTS={}", quoted(&names.join(" "))),
    ];
    for (name, host) in &config.hosts {
        let letter = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        };
        let variable: String = name.as_str().chars().map(letter).collect();
        lines.push(format!(
            "PGSHARD_SHARDS_{variable}={}",
            quoted(&print_shards(map.shards_on(name)))
        ));
        lines.push(format!(
            "PGSHARD_ADDRESSES_{variable}={}",
            quoted(&host.connect.addresses().join(" "))
        ));
    }
    lines.join("\n") + "\n"
}

/// A text of TOML: what JSON escapes, TOML's basic strings escape in the same way.
fn toml_text(value: &str) -> String {
    serde_json::Value::from(value).to_string()
}
