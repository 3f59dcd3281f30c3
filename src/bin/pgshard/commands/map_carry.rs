//! `pgshard map import` and `map export`: the map from a config file into a database, and back.

use std::path::Path;

use pgshard::config::ConfigStore;
use pgshard::map::Changes;
use pgshard::store::postgres::Installed;
use pgshard::store::{StoreError, publish_merged};

use super::map::print_changes;
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Brings the map of the config `from` into the database that the config in use names.
pub(crate) async fn import(
    from: &Path,
    consent: Consent,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let ConfigStore::Postgres(store) = context::store(&config) else {
        let error =
            format!("{} keeps its map in the file: there is no database to bring one into", config.path.display());
        return Err(Failure::usage(error)
            .hint("write [map] store = \"postgres\" and its url into a new config, and name that by --config"));
    };
    let source = context::config(Some(from))?;
    let Some(map) = source.map else {
        let error = format!("{} does not keep its map in the file", from.display());
        return Err(Failure::usage(error).hint("name the config that the application uses now"));
    };
    if map.shards() != config.cluster.shards {
        let error = format!("{} has {} shards, this cluster {}", from.display(), map.shards(), config.cluster.shards);
        return Err(Failure::usage(error).hint("they are not configs of one cluster"));
    }
    if let Some(host) = map.hosts().iter().find(|host| !config.hosts.contains_key(*host)) {
        let error =
            format!("{} places shards on {host}, which {} does not name", from.display(), config.path.display());
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
            output.note(format_args!("map version {} is kept in {} now", map.version(), store.database()));
            return Ok(Exit::Done);
        }
        Installed::Kept(kept) => kept,
    };
    let changes: Changes = map.iter().filter_map(|(shard, ..)| Some((shard, map.placement(shard)?))).collect();
    let merged = kept.merged(&changes);
    print_changes(&kept, &merged, output)?;
    let contradicted =
        merged.iter().zip(map.iter()).filter(|(ours, theirs)| ours.2 == theirs.2 && ours.1 != theirs.1).count();
    if contradicted > 0 {
        output.warning(format_args!(
            "{contradicted} shards are on another host in {}, in the same epoch: `pgshard map diff` asks the hosts",
            from.display()
        ));
    }
    if merged.version() == kept.version() {
        return Ok(Exit::Done);
    }
    if !confirm(&format!("take this into map version {}?", merged.version()), consent, output).await? {
        return Err(Failure::new(Exit::Failed, "the map stays as it is"));
    }
    let published = publish_merged(&store, &changes).await?;
    output.note(format_args!("published map version {}", published.version()));
    Ok(Exit::Done)
}

/// Prints the map as the `[map]` section of a config.
pub(crate) async fn export(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let map = context::map(&context::config(config)?).await?;
    output.raw(pgshard::config::render_map(&map).as_bytes())?;
    Ok(Exit::Done)
}
