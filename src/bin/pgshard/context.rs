//! What commands take from the config.

use std::path::Path;

use pgshard::config::{Config, ConfigError};
use pgshard::id::Epoch;
use pgshard::map::ShardMap;
use pgshard::store::{MapStore, StoreError};

use crate::exit::Exit;
use crate::failure::Failure;

/// The config that `--config` names, else the one that is found.
///
/// # Errors
/// With [`Exit::Usage`] and all of its mistakes at once.
pub(crate) fn config(flag: Option<&Path>) -> Result<Config, Failure> {
    Config::load(Config::find(flag)).map_err(|error| match error {
        ConfigError::Invalid { diagnostics, .. } => {
            Failure::several(Exit::Usage, diagnostics.iter().map(ToString::to_string))
        }
        error => Failure::usage(error),
    })
}

/// The map as it is kept now.
///
/// # Errors
/// With [`Exit::Usage`] where it is wrong, as with the config.
pub(crate) async fn map(config: &Config) -> Result<ShardMap, Failure> {
    config.map_store().load().await.map_err(|error| match error {
        StoreError::Text { diagnostics } => Failure::several(Exit::Usage, diagnostics.iter().map(ToString::to_string)),
        error => error.into(),
    })
}

/// The epoch of the flag, else of the config.
///
/// # Errors
/// When there is neither.
pub(crate) fn epoch(flag: Option<Epoch>, config: Option<&Path>) -> Result<Epoch, Failure> {
    epoch_if_known(flag, config)?.ok_or_else(|| {
        Failure::usage("the epoch is not known: there is no config here")
            .hint("name it: --epoch 2011-01-01T00:00:00Z, or --config FILE")
    })
}

/// The epoch of the flag, else of the config if there is one.
///
/// # Errors
/// When there is a config, or one was named, and it cannot be used.
pub(crate) fn epoch_if_known(flag: Option<Epoch>, config_flag: Option<&Path>) -> Result<Option<Epoch>, Failure> {
    if flag.is_some() {
        return Ok(flag);
    }
    let nobody_named_it = config_flag.is_none() && Config::find(None) == Path::new(Config::FILE_NAME);
    if nobody_named_it && !Path::new(Config::FILE_NAME).exists() {
        return Ok(None);
    }
    Ok(Some(config(config_flag)?.cluster.epoch))
}
