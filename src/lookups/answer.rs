//! What the shards answer about a look-up: whether they know it as the config does.

use tokio_postgres::error::SqlState;

use crate::router::{Error, LookupProblem};
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

/// Another call has the value for now.
pub(super) fn busy(definition: &Definition) -> Error {
    Error::Busy {
        lookup: definition.name.clone(),
    }
}

/// Where the shard has no tables of look-ups, the server does not know their names.
pub(super) fn or_not_installed(
    definition: &Definition,
    shard: ShardId,
) -> impl Fn(Error) -> Error + '_ {
    move |error| match error.code() {
        Some(&SqlState::UNDEFINED_TABLE) => not_installed(definition, shard),
        _ => error,
    }
}

/// Checks what a shard knows of the look-up: its definition.
pub(super) fn checked(
    definition: &Definition,
    shard: ShardId,
    recorded: String,
) -> Result<(), Error> {
    let config = definition.to_text();
    if recorded == config {
        return Ok(());
    }
    let other = LookupProblem::OtherDefinition {
        shard,
        recorded,
        config,
    };
    Err(problem(definition, other))
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

/// The shard has no such look-up.
pub(super) fn not_installed(definition: &Definition, shard: ShardId) -> Error {
    problem(definition, LookupProblem::NotInstalled { shard })
}
