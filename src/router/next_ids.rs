//! The statement that reserves IDs of a shard.

use super::error::Error;
use crate::map::HostName;
use crate::shard::{Layout, ShardId};

pub(super) const NEXT_IDS: &str = "SELECT id FROM {shard}.next_ids($1) AS id";

/// The argument of `next_ids`. A count that does not fit is too large anyway, and the server
/// refuses it.
pub(super) fn reserved(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// Refuses to reserve IDs where shards have no functions for it.
pub(super) fn has_ids(shard: ShardId, host: &HostName, layout: &Layout) -> Result<(), Error> {
    match layout.whole() {
        None => Ok(()),
        Some(_) => Err(Error::Unsharded {
            shard,
            host: host.clone(),
            what: "its shards make no IDs yet",
            instead: "take them from the application's own sequences",
        }),
    }
}
