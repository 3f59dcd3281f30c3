//! pgshard's own migrations of a shard: the ID functions.
//!
//! Invariant: the text of a migration never changes once it was released. A change is the next
//! file, which replaces what the earlier one made.

use super::cluster::Cluster;
use super::recorded::RecordedMigration;
use super::steps::checksum;
use crate::pg::quote_ident;
use crate::shard::ShardId;

/// One of pgshard's own migrations of a shard.
pub(in crate::schema) struct IdFunctions {
    /// The name under which it is recorded.
    pub(in crate::schema) name: &'static str,
    sql: &'static str,
}

/// In the order they run.
pub(in crate::schema) const ID_FUNCTIONS: [IdFunctions; 1] = [IdFunctions {
    name: "pgshard:0001_next_id",
    sql: include_str!("../../../migrations/shard/0001_next_id.sql"),
}];

/// Their texts, with placeholders.
#[cfg(feature = "dev")]
pub(in crate::schema) fn texts() -> impl Iterator<Item = &'static str> {
    ID_FUNCTIONS.iter().map(|own| own.sql)
}

/// The prefix of the names of pgshard's own migrations, which no file's name can have.
pub(in crate::schema) const MARK: &str = "pgshard:";

/// Is among the migrations of a shard that bootstrap makes file by file, until it is whole.
pub(in crate::schema) const UNFINISHED: &str = "pgshard:unfinished";

/// What pgshard's own migrations have made in a shard that has run these, as far as others need it.
pub(in crate::schema) fn functions(
    applied: &[RecordedMigration],
) -> impl Iterator<Item = &'static str> {
    let made = applied
        .iter()
        .any(|migration| migration.name == ID_FUNCTIONS[0].name);
    made.then_some("function next_id").into_iter()
}

impl IdFunctions {
    /// The SQL for a shard.
    pub(in crate::schema) fn render(&self, cluster: &Cluster, shard: ShardId) -> String {
        // The text is ours: it has no other braces, and no placeholder's value contains one.
        self.sql
            .replace(
                "{shard}",
                &quote_ident(&cluster.schema_prefix.schema(shard)),
            )
            .replace("{shard_id}", &shard.to_string())
            .replace("{epoch_ms}", &cluster.epoch.unix_ms().to_string())
    }

    /// The record of it. The checksum is of the text with its placeholders, so that all shards have
    /// the same.
    pub(in crate::schema) fn recorded(&self) -> RecordedMigration {
        RecordedMigration {
            name: self.name.to_owned(),
            checksum: checksum(self.sql),
        }
    }
}
