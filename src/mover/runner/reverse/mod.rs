//! The reverse replication: what a move prepares so that it can be taken back after its shards were
//! written to at their new host.
//!
//! Before the fence, publication and slot are created at the target ([`stream`]). When the target
//! has opened, the old copy is prepared to take changes
//! ([`old_copy`](crate::mover::step::old_copy)), and [`old_copies`] applies them while its command
//! runs.
//! A rollback is a move of its own in the other direction. Its copy and slot exist already: it
//! catches up, compares, fences and opens as every online move does.
//!
//! # Invariants
//! 1. What the mover itself applied at the target never comes back: the stream begins at the
//!    position that the open wrote in its own transaction (`pgshard.shard.opened_lsn`).
//! 2. A reverse replication that is broken is given up, with the reason in `pgshard.back`; it never
//!    stops a move and never fills a disk.
//! 3. An old copy has one owner: the move that kept it, or the one rollback in `taken_by`.

pub(crate) mod old_copies;
pub(crate) mod stream;

use crate::mover::control::journal::Entry;
use crate::mover::protocol::desired::Rollback;
use crate::mover::protocol::state::Phase;

/// Whether a shard of a move needs what the slot of its reverse replication keeps, now or once it
/// is kept.
pub(crate) fn needs_slot(entry: &Entry) -> bool {
    match (&entry.reverse, entry.phase) {
        (_, Phase::Completed | Phase::Aborted) => false,
        (Some(reverse), _) => reverse.lost.is_none(),
        // The reverse replication is prepared when the target has caught up.
        (None, phase) => entry.rollback == Rollback::Prepared && phase < Phase::Decided,
    }
}
