//! Decides what a failed statement shows about the location of its shard. There is no I/O here.
//!
//! Invariant: an error counts as the application's own only if the shard's host confirms, in a
//! lookup after the failure, that it serves the shard and that there was no fence since the
//! statement began. A host's claim about another host does not count until that host's own row
//! confirms it.

use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};
use uuid::Uuid;

use crate::map::ShardEpoch;
use crate::pg::state;

/// How a statement's error may come from a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MoveSignal {
    /// A signpost answered: the shard is closed or elsewhere. Worth another try, unless the host
    /// contradicts it twice.
    Signpost,
    /// A name is missing, or resolves to something else than before. Either the application made a
    /// mistake, or there is a signpost that cannot respond as one.
    Ambiguous,
}

impl MoveSignal {
    /// `None` for errors that no move can cause.
    pub(super) fn of(error: &tokio_postgres::Error) -> Option<MoveSignal> {
        // A statement that is prepared on a signpost sees text where the shard has a type of its
        // own. Then the driver refuses the parameter.
        let wrong_type = || {
            let cause = std::error::Error::source(error);
            cause.is_some_and(|cause| cause.is::<tokio_postgres::types::WrongType>())
        };
        if state::is_signpost(error) {
            Some(MoveSignal::Signpost)
        } else if state::may_be_moved(error) || names_what_is_gone(error) || wrong_type() {
            Some(MoveSignal::Ambiguous)
        } else {
            None
        }
    }
}

/// Whether the server looked for something by an OID that no longer exists. A type of the shard's
/// own, for example, gets another OID when the shard leaves and comes back. Internal errors are
/// never translated, so the message can be compared.
fn names_what_is_gone(error: &tokio_postgres::Error) -> bool {
    let gone = |error: &DbError| error.message().starts_with("cache lookup failed for ");
    error.code() == Some(&SqlState::INTERNAL_ERROR) && error.as_db_error().is_some_and(gone)
}

/// A host's row of a shard: the result of `pgshard.look`.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct OwnershipLookup {
    /// Its row in `pgshard.shard`.
    pub(super) row: Option<Row>,
    /// The epoch at which a move is bringing the shard there.
    pub(super) incoming: Option<ShardEpoch>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) state: OwnershipState,
    pub(super) epoch: ShardEpoch,
    /// The time since the shard was last fenced, swapped back, decided or opened. `None`: never.
    pub(super) last_fence_ago: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum OwnershipState {
    Serving,
    Fenced { overdue: bool },
    Moved { peer: String, token: Option<Uuid> },
}

/// What to do after a statement failed, once the host was looked up.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Verdict {
    /// The host serves the shard: run it there again, at this epoch.
    Retry { epoch: ShardEpoch },
    /// The error is the application's.
    ApplicationError,
    /// The shard is closed for a moment.
    Wait,
    /// The shard is closed, and its fence's deadline has passed: open it again.
    Expire,
    /// The shard moved to another host: continue there.
    Ask {
        peer: String,
        epoch: ShardEpoch,
        token: Option<Uuid>,
    },
    /// The host has never heard of the shard.
    NotHere,
}

/// A fence that is older than the statement by less than this counts as younger: answers take time
/// on their way, and statements begin before the server sees them. A wrong guess costs one more
/// try.
const MARGIN: Duration = Duration::from_millis(50);

/// `ran`: the time from before the statement (or its transaction) was sent until the host's answer
/// came. `expected`: the epoch at which the statement was sent.
pub(super) fn judge(
    signal: MoveSignal,
    lookup: &OwnershipLookup,
    ran: Duration,
    expected: ShardEpoch,
) -> Verdict {
    let Some(row) = &lookup.row else {
        return if lookup.incoming.is_some() {
            Verdict::Wait
        } else {
            Verdict::NotHere
        };
    };
    match &row.state {
        OwnershipState::Serving => {
            let disturbed = row.last_fence_ago.is_some_and(|ago| ago <= ran + MARGIN);
            if signal == MoveSignal::Signpost || disturbed || row.epoch > expected {
                Verdict::Retry { epoch: row.epoch }
            } else {
                Verdict::ApplicationError
            }
        }
        OwnershipState::Fenced { overdue: false } => Verdict::Wait,
        OwnershipState::Fenced { overdue: true } => Verdict::Expire,
        OwnershipState::Moved { peer, token } => Verdict::Ask {
            peer: peer.clone(),
            epoch: row.epoch,
            token: *token,
        },
    }
}

/// The location of a shard, by the answer of the host that it is reported to have moved to.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum PeerVerdict {
    /// It is there (or was, and is being moved on from there), at this epoch.
    Here { epoch: ShardEpoch },
    /// It was there and has gone on.
    Onward {
        peer: String,
        epoch: ShardEpoch,
        token: Option<Uuid>,
    },
    /// The move there is decided, but the shard is not open there yet.
    Unopened,
    /// The two hosts do not agree (yet).
    Wait,
}

/// `epoch`: the epoch at which the shard is reported to be there.
pub(super) fn judge_peer(epoch: ShardEpoch, lookup: &OwnershipLookup) -> PeerVerdict {
    match &lookup.row {
        Some(row) if row.epoch >= epoch => match &row.state {
            OwnershipState::Serving | OwnershipState::Fenced { .. } => {
                PeerVerdict::Here { epoch: row.epoch }
            }
            // A row with `moved` has the epoch of the next owner, so it must be later than the one
            // looked up.
            OwnershipState::Moved { peer, token } if row.epoch > epoch => PeerVerdict::Onward {
                peer: peer.clone(),
                epoch: row.epoch,
                token: *token,
            },
            OwnershipState::Moved { .. } => PeerVerdict::Wait,
        },
        _ if lookup.incoming.is_some_and(|incoming| incoming >= epoch) => PeerVerdict::Unopened,
        _ => PeerVerdict::Wait,
    }
}

/// How long to wait before asking again when `waited` has passed already: a quarter of it, 2 to 50
/// ms, after a second a twentieth of it, up to 250 ms; less up to half of that by chance. So a
/// short move is made little longer, and a long one causes few questions, also of a thousand
/// processes that wait for the same mover.
pub(super) fn pause(waited: Duration, chance: f64) -> Duration {
    let pause = (waited / 4).clamp(Duration::from_millis(2), Duration::from_millis(50));
    let pause = pause.max((waited / 20).min(Duration::from_millis(250)));
    pause.mul_f64(1.0 - chance.clamp(0.0, 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch(number: u32) -> ShardEpoch {
        ShardEpoch::new(number).unwrap()
    }

    fn row(state: OwnershipState, at: u32, ago: Option<u64>) -> Option<Row> {
        Some(Row {
            state,
            epoch: epoch(at),
            last_fence_ago: ago.map(Duration::from_millis),
        })
    }

    fn moved(peer: &str) -> OwnershipState {
        OwnershipState::Moved {
            peer: peer.to_owned(),
            token: None,
        }
    }

    #[test]
    fn after_a_failed_statement() {
        use MoveSignal::{Ambiguous, Signpost};
        let again = |at| Verdict::Retry { epoch: epoch(at) };
        let ask = |at| Verdict::Ask {
            peer: "b".to_owned(),
            epoch: epoch(at),
            token: None,
        };
        let fenced = |overdue| OwnershipState::Fenced { overdue };
        // The statement ran for 10 ms and was sent at epoch 3.
        for (signal, row, incoming, verdict) in [
            (
                Ambiguous,
                row(OwnershipState::Serving, 3, None),
                None,
                Verdict::ApplicationError,
            ),
            (
                Ambiguous,
                row(OwnershipState::Serving, 3, Some(60_000)),
                None,
                Verdict::ApplicationError,
            ),
            (
                Ambiguous,
                row(OwnershipState::Serving, 3, Some(5)),
                None,
                again(3),
            ),
            (
                Ambiguous,
                row(OwnershipState::Serving, 3, Some(40)),
                None,
                again(3),
            ),
            (
                Ambiguous,
                row(OwnershipState::Serving, 5, Some(60_000)),
                None,
                again(5),
            ),
            (
                Ambiguous,
                row(OwnershipState::Serving, 2, Some(60_000)),
                None,
                Verdict::ApplicationError,
            ),
            (
                Ambiguous,
                row(fenced(false), 3, Some(5)),
                None,
                Verdict::Wait,
            ),
            (
                Ambiguous,
                row(fenced(true), 3, Some(5)),
                None,
                Verdict::Expire,
            ),
            (Ambiguous, row(moved("b"), 4, Some(60_000)), None, ask(4)),
            (Ambiguous, None, None, Verdict::NotHere),
            (Ambiguous, None, Some(4), Verdict::Wait),
            (
                Signpost,
                row(OwnershipState::Serving, 3, None),
                None,
                again(3),
            ),
            (
                Signpost,
                row(OwnershipState::Serving, 3, Some(60_000)),
                None,
                again(3),
            ),
            (
                Signpost,
                row(fenced(false), 3, Some(5)),
                None,
                Verdict::Wait,
            ),
            (
                Signpost,
                row(fenced(true), 3, Some(5)),
                None,
                Verdict::Expire,
            ),
            (Signpost, row(moved("b"), 4, Some(5)), None, ask(4)),
            (Signpost, row(moved("b"), 4, Some(5)), Some(5), ask(4)),
            (Signpost, None, None, Verdict::NotHere),
        ] {
            let lookup = OwnershipLookup {
                row,
                incoming: incoming.map(epoch),
            };
            assert_eq!(
                judge(signal, &lookup, Duration::from_millis(10), epoch(3)),
                verdict,
                "{signal:?} {lookup:?}"
            );
        }
    }

    #[test]
    fn at_the_peer() {
        let here = |at| PeerVerdict::Here { epoch: epoch(at) };
        let onward = |at| PeerVerdict::Onward {
            peer: "c".to_owned(),
            epoch: epoch(at),
            token: None,
        };
        // Another host reported: it is there at epoch 4.
        for (row, incoming, verdict) in [
            (row(OwnershipState::Serving, 4, None), None, here(4)),
            (row(OwnershipState::Serving, 6, None), None, here(6)),
            (
                row(OwnershipState::Serving, 3, None),
                None,
                PeerVerdict::Wait,
            ),
            (
                row(OwnershipState::Fenced { overdue: false }, 4, None),
                None,
                here(4),
            ),
            (row(moved("c"), 5, None), None, onward(5)),
            (row(moved("c"), 5, None), Some(6), onward(5)),
            (row(moved("c"), 4, None), None, PeerVerdict::Wait),
            (row(moved("a"), 3, None), Some(4), PeerVerdict::Unopened),
            (row(moved("a"), 3, None), None, PeerVerdict::Wait),
            (None, Some(4), PeerVerdict::Unopened),
            (None, Some(3), PeerVerdict::Wait),
            (None, None, PeerVerdict::Wait),
        ] {
            let lookup = OwnershipLookup {
                row,
                incoming: incoming.map(epoch),
            };
            assert_eq!(judge_peer(epoch(4), &lookup), verdict, "{lookup:?}");
        }
    }

    proptest! {
        #[test]
        fn pauses_are_bounded(waited_ms in 0u64..100_000, chance in 0.0..1.0) {
            let pause = pause(Duration::from_millis(waited_ms), chance);
            prop_assert!(pause >= Duration::from_millis(1) && pause <= Duration::from_millis(250));
            let longest = Duration::from_millis(50).max(Duration::from_millis(waited_ms) / 20);
            prop_assert!(pause <= longest);
        }

        #[test]
        fn onward_goes_up_so_it_ends(at in 1u32..9, asked in 1u32..9) {
            let lookup = OwnershipLookup { row: row(moved("c"), at, None), incoming: None };
            if let PeerVerdict::Onward { epoch: next, .. } = judge_peer(epoch(asked), &lookup) {
                prop_assert!(next > epoch(asked));
            }
        }
    }
}
