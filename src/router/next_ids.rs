//! The statement that reserves IDs of a shard.

pub(super) const NEXT_IDS: &str = "SELECT id FROM {shard}.next_ids($1) AS id";

/// The argument of `next_ids`. A count that does not fit is too large anyway, and the server
/// refuses it.
pub(super) fn reserved(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}
