//! What movers and routers do on the target, as pure transitions, each one transaction. `None` is
//! `SH002`, a lost lease, or an UPDATE that found no row: nothing was changed.

use crate::mover::model::mutant::Mutant;
use crate::mover::model::world::{Incoming, Lease, Target};

impl Target {
    /// `ShardMove::announce` (step/prepare.rs): the row of `pgshard.incoming` and the ledger's.
    pub(super) fn announce(&self, lease: Lease, mutant: Option<Mutant>) -> Option<Target> {
        let ours = self.incoming.is_none_or(|incoming| incoming.lease == lease);
        if self.serving || !ours {
            return None;
        }
        let incoming = self.incoming.or(Some(Incoming {
            lease,
            ready: None,
            hash: None,
        }));
        let in_ledger = self.schema_in_ledger || mutant != Some(Mutant::LedgerAfterCreation);
        Some(Target {
            incoming,
            schema_in_ledger: in_ledger,
            ..*self
        })
    }

    /// `begin_on_target` (step/mod.rs): the row, if it is still under this lease.
    pub(super) fn under(&self, lease: Lease) -> Option<Incoming> {
        self.incoming.filter(|incoming| incoming.lease == lease)
    }

    /// `ShardMove::build_target` (step/prepare.rs): creates the schema again, empty.
    pub(super) fn build(&self, lease: Lease) -> Option<Target> {
        self.under(lease)?;
        let incoming = Some(Incoming {
            lease,
            ready: None,
            hash: None,
        });
        Some(Target {
            incoming,
            schema: true,
            loaded: false,
            rows: 0,
            applied: 0,
            ..*self
        })
    }

    /// Marks everything as ready for an attempt.
    pub(super) fn ready(&self, lease: Lease, attempt: u8, token: Option<u8>) -> Option<Target> {
        self.under(lease)?;
        Some(Target {
            incoming: Some(Incoming {
                lease,
                ready: Some(attempt),
                hash: token,
            }),
            ..*self
        })
    }

    /// `pgshard.open`, up to its COMMIT: whether the mover may open for this attempt.
    pub(super) fn may_open(&self, lease: Lease, attempt: u8) -> bool {
        self.under(lease)
            .is_some_and(|incoming| incoming.ready == Some(attempt))
            && !self.serving
    }

    /// `pgshard.open_incoming`.
    pub(super) fn opened(&self) -> Target {
        Target {
            incoming: None,
            schema: false,
            schema_in_ledger: false,
            serving: true,
            ..*self
        }
    }

    /// `pgshard.finish_open`. `Some(None)`: there is nothing to open.
    pub(super) fn finish_open(
        &self,
        token: Option<u8>,
        mutant: Option<Mutant>,
    ) -> Option<Option<Target>> {
        let Some(incoming) = self.incoming else {
            return Some(None);
        };
        let shown = token.is_some() && incoming.hash == token
            || mutant == Some(Mutant::DecisionOnBothSides);
        (incoming.ready.is_some() && shown).then(|| Some(self.opened()))
    }

    /// The target's part of `ShardMove::discard` (step/undo.rs), and of gc.
    pub(super) fn discarded(&self) -> Target {
        let serving = self.serving;
        let empty = Target {
            incoming: None,
            schema: false,
            schema_in_ledger: false,
            loaded: false,
            ..*self
        };
        if serving {
            empty
        } else {
            Target {
                rows: 0,
                applied: 0,
                ..empty
            }
        }
    }
}
