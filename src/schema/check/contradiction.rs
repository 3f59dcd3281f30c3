//! What is said where hosts contradict each other about a shard, by this comparison and when the
//! map is rebuilt.

use super::view::Given;
use crate::map::{HostName, ShardEpoch};
use crate::schema::remedy::REPAIR;

/// An owner that does not know of the move that brought it the shard, or took it away: its database
/// is from before that move, or the other host is wrong.
pub(in crate::schema) fn went_back(
    owner: &HostName,
    served: ShardEpoch,
    given: Given<'_>,
) -> (String, String) {
    let Given { epoch, from, to } = given;
    let what = format!(
        "{from} gave it to {to} at epoch {epoch}, but {owner} serves it at epoch {served}, from \
            before that"
    );
    let remedy = format!(
        "stop its writers: {owner} was restored from before the move, or failed over to a standby \
            that lacks it, and \
         answers with old rows; {REPAIR}, and `pgshard recover {owner} --plan` with all of its \
         shards; \
         docs/trouble.md has the steps under \"A host has gone back in time\""
    );
    (what, remedy)
}

/// A host that claims an epoch to which no move can have led.
pub(in crate::schema) fn jumped(
    from: &HostName,
    claimed: ShardEpoch,
    known: ShardEpoch,
) -> (String, String) {
    let what = format!(
        "{from} says that it is in epoch {claimed}; the map has epoch {known}, and no host comes \
            near"
    );
    let remedy = format!(
        "somebody has written to pgshard.shard of {from}, or it is not what it says it is: keep \
            writers from it, see \
         who can write to it, and restore it from a backup"
    );
    (what, remedy)
}
