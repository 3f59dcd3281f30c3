//! What the shards answer about a look-up: whether they know it as the config does.

use tokio_postgres::error::SqlState;

use crate::map::HostName;
use crate::router::{Error, LookupProblem, Router};
use crate::shard::ShardId;
use crate::values::{Definition, Values};

/// The names of the values' types, as the shards record them.
pub(super) fn kinds(values: &Values) -> Vec<&'static str> {
    values.0.iter().map(|value| value.kind()).collect()
}

/// The error for what is wrong with a look-up.
pub(super) fn problem(definition: &Definition, problem: LookupProblem) -> Error {
    Error::Lookup {
        lookup: definition.name.clone(),
        problem,
    }
}

/// Checks that the values are of the types of the columns, as the shard knows them.
pub(super) fn fitting(
    definition: &Definition,
    recorded: &[String],
    values: &Values,
) -> Result<(), Error> {
    let given = kinds(values);
    if recorded == given {
        return Ok(());
    }
    let other = LookupProblem::OtherTypes {
        recorded: recorded.join(", "),
        given: given.join(", "),
    };
    Err(problem(definition, other))
}

/// A look-up in one shard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    pub(super) definition: &'a Definition,
    pub(super) router: &'a Router,
    pub(super) shard: ShardId,
}

impl Place<'_> {
    /// What is wrong with the look-up in this shard.
    pub(super) fn problem(self, at: impl FnOnce(ShardId, HostName) -> LookupProblem) -> Error {
        let (shard, map) = (self.shard, self.router.map());
        match map.host(shard) {
            Some(host) => problem(self.definition, at(shard, host.clone())),
            None => Error::NoSuchShard {
                shard,
                shards: map.shards(),
            },
        }
    }

    /// The shard has no such look-up.
    pub(super) fn not_installed(self) -> Error {
        self.problem(|shard, host| LookupProblem::NotInstalled { shard, host })
    }

    /// Where the shard has no tables of look-ups, the server does not know their names.
    pub(super) fn or_not_installed(self, error: Error) -> Error {
        match error.code() {
            Some(&SqlState::UNDEFINED_TABLE) => self.not_installed(),
            _ => error,
        }
    }

    /// Checks what the shard knows of the look-up: its definition.
    pub(super) fn checked(self, recorded: String) -> Result<(), Error> {
        let config = self.definition.to_text();
        if recorded == config {
            return Ok(());
        }
        Err(self.problem(|shard, host| LookupProblem::OtherDefinition {
            shard,
            host,
            recorded,
            config,
        }))
    }
}
