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
    /// All shards are on an unsharded host, which has no tables of look-ups to build or compare.
    #[error(
        "host {host} is unsharded and has no tables of look-ups: its own unique index keeps the \
            values unique, and `find` and `claiming` use the table itself"
    )]
    Unsharded {
        /// The host.
        host: HostName,
    },
    /// The table of the unsharded host cannot be looked up.
    #[error("it cannot be over the table {table} of host {host}: {reason}")]
    UnfitTable {
        /// The host.
        host: HostName,
        /// The table with its schema, quoted.
        table: String,
        /// What it must be.
        reason: &'static str,
    },
    /// No index of the unsharded host's table makes the values unique.
    #[error(
        "no unique index of its table on host {host} makes the values unique (a partial or invalid \
            one does not): run `{statement}` there"
    )]
    NoUniqueIndex {
        /// The host.
        host: HostName,
        /// The statement that creates one.
        statement: String,
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
