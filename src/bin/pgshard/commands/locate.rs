//! `pgshard locate`: where a key or an ID is, by the map, or by the hosts.

mod many;
mod owner;

use std::path::Path;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::id::Id;
use pgshard::map::ShardMap;
use schemars::JsonSchema;
use serde::Serialize;

use super::id::{DecodedId, TICKETS_END, warn_of_ticket};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

pub(crate) use many::{Lines, Wrong, run as run_many};
pub(crate) use owner::owner;

/// Which source decides where a shard is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// The config's map; no host is queried.
    Map,
    /// The host that serves it.
    Hosts,
}

/// What is looked for.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// A sharding key.
    Key(String),
    /// An ID.
    Id(i64),
    /// A shard.
    Shard(ShardId),
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShardLocation {
    #[serde(flatten)]
    what: What,
    schema: String,
    host: String,
    epoch: u32,
    map_version: u64,
    /// Whether the host was asked, and serves the shard.
    checked: bool,
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum What {
    Key { key: String, shard: u16 },
    Id(DecodedId),
    Shard { shard: u16 },
}

/// Prints where it is.
pub(crate) async fn run(
    target: Target,
    by: By,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    if let Target::Id(id) = target {
        warn_of_ticket(id, output);
    }
    let mut located = located(target, &config, &map)?;
    if by == By::Hosts
        && let Some(shard) = ShardId::new(located.shard())
    {
        let place = owner(&config, &map, shard, output).await?;
        (located.host, located.epoch) = (place.host.to_string(), place.epoch.get());
        located.checked = true;
    }
    match output.format() {
        Format::Json => output.object(located),
        Format::Text => output.pairs(&located.pairs()),
    }
    Ok(Exit::Done)
}

/// The error where neither `--key` nor `--id` was given.
pub(crate) fn unclear(word: Option<&str>) -> Failure {
    let Some(word) = word else {
        return Failure::usage("locate what? --key or --id");
    };
    let failure = Failure::usage(format!("is {word:?} a key or an ID?"));
    // A word that a shell would take apart is not put into a command.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@:".contains(c);
    if !word.chars().all(is_plain) {
        return failure.hint("say --key KEY or --id ID");
    }
    let by_key = format!("`pgshard locate --key {word}` takes it as a key");
    failure.hint(match crate::values::id(word) {
        Ok(id) if !(0..TICKETS_END).contains(&id) => {
            format!("{by_key}, `pgshard locate --id {word}` as an ID")
        }
        _ => by_key,
    })
}

/// The shard of a key or an ID.
///
/// # Errors
/// With [`Exit::Usage`] where it is none of this cluster.
pub(crate) fn shard_of(target: &Target, config: &Config) -> Result<ShardId, Failure> {
    let shards = config.cluster.shards;
    let shard = match target {
        Target::Key(key) => config
            .cluster
            .key
            .shard_of_text(key, shards)
            .map_err(Failure::usage)?,
        Target::Id(id) if is_legacy(*id, config) => {
            let error = format!(
                "the ID {id} was made before there were shards (they are all below {}) and names \
                    none",
                config.cluster.legacy_below
            );
            return Err(Failure::usage(error).hint("name the key of its row: --key"));
        }
        Target::Id(id) => Id::decode(*id).shard(),
        Target::Shard(shard) => *shard,
    };
    if shards.contains(shard) {
        return Ok(shard);
    }
    let last = shards.get() - 1;
    if let Target::Shard(_) = target {
        return Err(Failure::usage(format!(
            "there is no shard {shard}: the cluster has {shards}, 0 to {last}"
        )));
    }
    let error =
        format!("the ID is of shard {shard}, but the cluster has {shards} shards, 0 to {last}");
    Err(Failure::usage(error).hint(
        "it is not an ID of this cluster, or it lost digits on the way (a double keeps 53 bits)",
    ))
}

/// Whether an ID is of the time before the shards; negative ones are later than all others.
fn is_legacy(id: i64, config: &Config) -> bool {
    id.cast_unsigned() < config.cluster.legacy_below.cast_unsigned()
}

pub(super) fn located(
    target: Target,
    config: &Config,
    map: &ShardMap,
) -> Result<ShardLocation, Failure> {
    let shard = shard_of(&target, config)?;
    let place = map
        .placement(shard)
        .ok_or_else(|| Failure::usage(format!("the map has no shard {shard}")))?;
    let what = match target {
        Target::Key(key) => What::Key {
            key,
            shard: shard.get(),
        },
        Target::Id(id) => What::Id(DecodedId::new(id, Some(config.cluster.epoch))),
        Target::Shard(shard) => What::Shard { shard: shard.get() },
    };
    Ok(ShardLocation {
        what,
        schema: context::schema_of(config, &place.host, shard),
        host: place.host.to_string(),
        epoch: place.epoch.get(),
        map_version: map.version().get(),
        checked: false,
    })
}

impl ShardLocation {
    pub(super) fn shard(&self) -> u16 {
        match &self.what {
            What::Key { shard, .. } | What::Shard { shard } => *shard,
            What::Id(decoded) => decoded.shard(),
        }
    }

    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let mut pairs = match &self.what {
            What::Key { key, shard } => vec![("key", key.clone()), ("shard", shard.to_string())],
            What::Id(decoded) => decoded.pairs(),
            What::Shard { shard } => vec![("shard", shard.to_string())],
        };
        let checked = if self.checked {
            "yes: the host serves it"
        } else {
            "no host was asked; --check asks"
        };
        pairs.extend([
            ("schema", self.schema.clone()),
            ("host", self.host.clone()),
            ("epoch", self.epoch.to_string()),
            ("map version", self.map_version.to_string()),
            ("checked", checked.to_owned()),
        ]);
        pairs
    }
}
