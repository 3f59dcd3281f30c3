//! `pgshard host`: servers added, removed, and how they are.

mod accept;
mod add;
mod list;
mod remove;

pub(crate) use accept::{AcceptanceReport, accept};
pub(crate) use add::{AdditionReport, add};
pub(super) use list::ListedHost;
pub(crate) use list::{HostListing, list};
pub(crate) use remove::{RemovalReport, remove};

use pgshard::config::{ConfigError, EditError};

use crate::exit::Exit;
use crate::failure::Failure;

/// An edit of the config that was not made.
fn edit_failure(error: EditError) -> Failure {
    match error {
        EditError::Config(ConfigError::Invalid { diagnostics, .. }) => {
            Failure::several(Exit::Usage, diagnostics.iter().map(ToString::to_string))
        }
        EditError::Config(_)
        | EditError::There { .. }
        | EditError::NotThere { .. }
        | EditError::Form => Failure::usage(error),
        error => error.into(),
    }
}

/// `150004` is 15.4.
fn version(number: i32) -> String {
    format!("{}.{}", number / 10_000, number % 10_000)
}
