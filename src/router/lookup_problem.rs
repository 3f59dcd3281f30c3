//! Why a look-up cannot be used as it was.

use crate::map::HostName;
use crate::shard::ShardId;

/// Why a look-up cannot be used. Nothing of the call has run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LookupProblem {
    /// The config has no such look-up.
    #[error("the config does not define it: add [lookups.NAME]")]
    Undefined,
    /// All shards are on an unsharded host, which has no tables of look-ups.
    #[error(
        "host {host} is unsharded, and look-ups are of shards: leave it to the database's own \
            unique constraint until there are some"
    )]
    Unsharded {
        /// The host.
        host: HostName,
    },
    /// The shard does not have its tables.
    #[error(
        "shard {shard} on host {host} does not have it: write its migration by `pgshard lookups \
            migration NAME`, and run `pgshard migrate up`"
    )]
    NotInstalled {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
    },
    /// The shard has it with another definition than the config.
    #[error("shard {shard} on host {host} has it as {recorded:?}, and the config says {config:?}")]
    OtherDefinition {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// The definition there.
        recorded: String,
        /// The config's.
        config: String,
    },
    /// The values are of other types than the columns.
    #[error("its columns are {recorded}, and the values given are {given}")]
    OtherTypes {
        /// The types of the columns.
        recorded: String,
        /// The types of the values.
        given: String,
    },
    /// One call claims the same value twice.
    #[error("the call claims one value twice")]
    Twice,
    /// There may be values without an entry that belong to a key.
    #[error(
        "it is not complete, so a value without an entry may belong to a key: run `pgshard lookups \
            build NAME`"
    )]
    NotComplete,
    /// The shard does not refuse rows that were not claimed.
    #[error(
        "its trigger in shard {shard} on host {host} is missing or disabled: create it by the \
            look-up's migration, or enable it by ALTER TABLE … ENABLE TRIGGER"
    )]
    NoTrigger {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
    },
    /// A key that no column can hold, or that cannot be read as the wanted type.
    #[error("the key {key:?} cannot be used")]
    Key {
        /// The key.
        key: String,
    },
}
