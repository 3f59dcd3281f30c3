//! What is known of a standby: how old its data is, and why a read does not go there.

use std::time::Duration;

use tokio::time::Instant;

/// The state of a connection's server at its last check.
#[derive(Clone, Copy, Debug)]
pub(super) struct StandbyState {
    /// The server shows all that was committed by then. `None`: it is not known how old its data
    /// is.
    pub(super) fresh_at: Option<Instant>,
    /// How far it has replayed. A server does not go back while a connection to it lives.
    pub(super) replayed: u64,
}

impl StandbyState {
    pub(super) fn is_enough(self, position: Option<u64>, lag_max: Duration) -> bool {
        let is_fresh = self.fresh_at.is_some_and(|at| at.elapsed() <= lag_max);
        is_fresh && position.is_none_or(|position| position <= self.replayed)
    }
}

/// Why a read goes to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No standby is known to be within the limit.
    Lagging,
    /// None has reached the reader's position in time.
    Behind,
    /// The standby did not answer, or gave an error.
    Failed,
}
