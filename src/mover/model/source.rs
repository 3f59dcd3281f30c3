//! The functions of `migrations/control/0004_ownership.sql` that run on the source, as pure
//! transitions. Each is one transaction: all or nothing. `None` is `SH002`, or an UPDATE that found
//! no row: nothing was changed.

use crate::mover::model::mutant::Mutant;
use crate::mover::model::world::{Journal, Lease, Named, Record, Row, Source, Stored};
use crate::mover::protocol::state::Mode;
use crate::mover::protocol::state::Phase;

/// The source with the rules under which it runs.
pub(super) struct Functions {
    pub(super) mode: Mode,
    pub(super) mutant: Option<Mutant>,
}

impl Functions {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The phase from which a fence is made, and to which it falls back.
    pub(super) fn before_fence(&self) -> Phase {
        match self.mode {
            Mode::Blocking => Phase::Prepared,
            Mode::Online => Phase::Ready,
        }
    }

    /// `pgshard.fence`: the swap. The token is made by the caller.
    pub(super) fn fence(&self, source: &Source, lease: Lease, token: u8) -> Option<Source> {
        let journal = source.journal;
        let ours = journal.lease == lease && journal.phase == self.before_fence();
        if !ours || source.row != Row::Serving || !source.signpost {
            return None;
        }
        let attempt = journal.attempt + 1;
        let journal = Journal {
            phase: Phase::Fenced,
            attempt,
            token: Some(token),
            ..journal
        };
        let named = if self.is(Mutant::RenameWithFallThrough) {
            Named::Nothing
        } else {
            Named::Signpost
        };
        Some(Source {
            row: Row::Fenced { attempt, lease },
            named,
            journal,
            ..*source
        })
    }

    /// `pgshard.mark`. Its commit is synchronous: everything before it is on disk, and in the
    /// stream.
    pub(super) fn mark(
        &self,
        source: &mut Stored<Source>,
        attempt: u8,
        lease: Lease,
    ) -> Option<()> {
        if source.live.row != (Row::Fenced { attempt, lease }) {
            return None;
        }
        if source.live.markers & 1 << attempt == 0 {
            source.live.markers |= 1 << attempt;
            source.live.log.push(Record::Marker(attempt));
        }
        if !self.is(Mutant::FailOverLosesFence) && !self.is(Mutant::StopAtWalPosition) {
            source.flush();
        }
        Some(())
    }

    /// `pgshard.unfence`: by a mover, which names its lease, or by `expire_fence`, which has none.
    pub(super) fn unfence(
        &self,
        source: &Source,
        attempt: u8,
        lease: Option<Lease>,
    ) -> Option<Source> {
        let ours = match source.row {
            Row::Fenced {
                attempt: at,
                lease: holder,
            } => at == attempt && lease.is_none_or(|lease| lease == holder),
            Row::Serving | Row::Moved { .. } => false,
        };
        if !ours && !self.is(Mutant::UnfenceWithoutCompareAndSwap) {
            return None;
        }
        let named = if self.is(Mutant::DenyNotReverted) {
            source.named
        } else {
            Named::Shard
        };
        let journal = Journal {
            phase: self.before_fence(),
            token: None,
            ..source.journal
        };
        Some(Source {
            row: Row::Serving,
            named,
            journal,
            ..*source
        })
    }

    /// `pgshard.expire_fence`, past the deadline. By any session, at any time: the model has no
    /// clock.
    pub(super) fn expire_fence(&self, source: &Source) -> Option<Source> {
        match source.row {
            Row::Fenced { attempt, .. } => self.unfence(source, attempt, None),
            Row::Serving | Row::Moved { .. } => None,
        }
    }

    /// `pgshard.decide`: the commit point, synchronous.
    pub(super) fn decide(
        &self,
        source: &mut Stored<Source>,
        attempt: u8,
        lease: Lease,
    ) -> Option<()> {
        let live = &mut source.live;
        let wanted = match live.row {
            Row::Fenced {
                attempt: at,
                lease: holder,
            } => holder == lease && at == attempt || self.is(Mutant::DecideAnyFence),
            Row::Serving | Row::Moved { .. } => false,
        };
        if !wanted || live.markers & 1 << attempt == 0 {
            return None;
        }
        live.row = Row::Moved {
            token: live.journal.token,
        };
        live.journal.phase = Phase::Decided;
        live.signpost_in_ledger = false;
        if !self.is(Mutant::FailOverLosesFence) {
            source.flush();
        }
        Some(())
    }

    /// `Session::take_over` of the journal: takes the lease on the move, and on the fence if it is
    /// this move's.
    pub(super) fn take_over(&self, source: &Source, lease: Lease) -> Source {
        let row = match source.row {
            Row::Fenced { attempt, .. } => Row::Fenced { attempt, lease },
            row => row,
        };
        Source {
            row,
            journal: Journal {
                lease,
                ..source.journal
            },
            ..*source
        }
    }

    /// `Session::advance` of the journal.
    pub(super) fn advance(&self, source: &Source, lease: Lease, phase: Phase) -> Option<Source> {
        let journal = source.journal;
        (journal.lease == lease).then_some(Source {
            journal: Journal { phase, ..journal },
            ..*source
        })
    }

    /// `pgshard.build_signpost` with the statements around it in `step/prepare.rs`: the ledger's
    /// row and the schema.
    pub(super) fn build_signpost(&self, source: &Source) -> Option<Source> {
        (source.row == Row::Serving).then_some(Source {
            signpost: true,
            signpost_in_ledger: true,
            ..*source
        })
    }

    /// `drop_signpost` of `step/undo.rs`: drops the schema `__signpost`, which exists unless it is
    /// swapped in.
    pub(super) fn drop_signpost(&self, source: &Source) -> Source {
        let swapped_in = source.row != Row::Serving;
        Source {
            signpost: source.signpost && swapped_in,
            signpost_in_ledger: false,
            ..*source
        }
    }
}
