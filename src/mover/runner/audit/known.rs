//! What is known to differ before an audit begins.

use std::collections::BTreeSet;

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::shard::ShardId;

/// The tables of an old copy that are known to differ, rightly, when a rollback takes it back: the
/// audit of its own move has named them. A rollback neither verifies nor audits them.
///
/// Locks: none but ACCESS SHARE on the journal.
pub(in crate::mover) async fn read_earlier_result(
    target: &Session,
    former: Option<MoveId>,
    shard: ShardId,
) -> Result<BTreeSet<String>, Error> {
    let Some(former) = former else {
        return Ok(BTreeSet::new());
    };
    let Some(entry) = target.find_entry(former, shard).await? else {
        return Ok(BTreeSet::new());
    };
    Ok(entry
        .audit
        .differences
        .iter()
        .filter_map(|one| one.what.strip_prefix(TABLE))
        .map(str::to_owned)
        .collect())
}

/// The reason given for those tables.
pub(super) const KNOWN: &str = "it differed already when the move that is taken back was audited";

/// The prefix of a table's name in the differences.
pub(super) const TABLE: &str = "table ";
