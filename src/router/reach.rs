//! Which rows a call is for: it makes a difference on an unsharded host, which has those of all
//! shards in one schema.

use super::error::Error;
use super::sql::Sql;
use crate::map::HostName;
use crate::shard::ShardId;

/// Which rows a call is for. It makes a difference where the host has all shards in one schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Those of the keys or IDs that its statements name.
    Keys,
    /// The same, and only while the unsharded host has them: what makes a value unique is another
    /// thing on shards.
    KeysOfHost,
    /// All rows of its shard. An unsharded host would give those of all shards.
    Shard,
    /// All rows of the unsharded host, once for all shards. Any other host would give those of one
    /// shard.
    Host,
}

impl Reach {
    /// Whether the statement means what it should: one for all shards of an unsharded host that
    /// names the number of a shard would mean the first.
    pub(super) fn fits(self, sql: &Sql) -> bool {
        self != Reach::Host || !sql.names_number()
    }

    /// Refuses a statement that does not fit, on this shard and host.
    pub(super) fn takes(self, sql: &Sql, (shard, host): (ShardId, &HostName)) -> Result<(), Error> {
        if self.fits(sql) {
            return Ok(());
        }
        Err(Error::Unsharded {
            shard,
            host: host.clone(),
            what: "a statement for all shards at once names no {shard_id}",
            instead: "leave it out, or name the key and run it by `by_key`",
        })
    }
}
