//! Wrong variants of the protocol. Each is a bug that some project in the field has had, or the
//! nearest equivalent that is possible in ours. The model must find every one.

/// One thing done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Mutant {
    /// The marker is written without waiting for transactions that hold locks.
    FenceWithoutBarrier,
    /// The drain stops where the WAL ended at the swap.
    StopBeforeBarrier,
    /// The drain stops at the flushed position after the barrier, although asynchronous commits
    /// come after it.
    StopAtWalPosition,
    /// The right to write is read in the transaction's snapshot, not when the lock is granted.
    GateInSnapshot,
    /// The target's COMMIT is sent before decide.
    OpenBeforeDecide,
    /// The target may be opened because it is ready, whatever the source's row is.
    DecisionOnBothSides,
    /// Un-fence sets the row to serving whatever its state is.
    UnfenceWithoutCompareAndSwap,
    /// The slot forgets what is applied, durable or not.
    SlotBeforeDurability,
    /// A target that was ready for an earlier attempt counts as ready, and the drain accepts any
    /// marker.
    MarkerOfEarlierAttempt,
    /// The shard is renamed away and no signpost takes its place: `search_path` falls through to
    /// `public`.
    RenameWithFallThrough,
    /// The marker and decide are committed without waiting for disk and standbys.
    FailOverLosesFence,
    /// Un-fence sets the row back to serving, but does not restore the name.
    DenyNotReverted,
    /// Abort drops what was built without asking whether the move is still its own.
    CancelWithoutLease,
    /// The ledger is written after the schema was created.
    LedgerAfterCreation,
    /// Decide names the move, but neither attempt nor lease.
    DecideAnyFence,
    /// Takeover and un-fence are committed with `synchronous_commit = off`, the database's default
    /// here.
    AsynchronousControl,
    /// A prepared open that fails ends the wait for the examination behind the fence, and the
    /// target's word alone is enough to decide.
    OpenCutsTheLookShort,
    /// The map is published, and the old copy given up, before the open is durable.
    PublishedBeforeDurable,
}

impl Mutant {
    pub(super) const ALL: [Mutant; 18] = [
        Mutant::FenceWithoutBarrier,
        Mutant::StopBeforeBarrier,
        Mutant::StopAtWalPosition,
        Mutant::GateInSnapshot,
        Mutant::OpenBeforeDecide,
        Mutant::DecisionOnBothSides,
        Mutant::UnfenceWithoutCompareAndSwap,
        Mutant::SlotBeforeDurability,
        Mutant::MarkerOfEarlierAttempt,
        Mutant::RenameWithFallThrough,
        Mutant::FailOverLosesFence,
        Mutant::DenyNotReverted,
        Mutant::CancelWithoutLease,
        Mutant::LedgerAfterCreation,
        Mutant::DecideAnyFence,
        Mutant::AsynchronousControl,
        Mutant::OpenCutsTheLookShort,
        Mutant::PublishedBeforeDurable,
    ];
}
