//! Keeps calls from waiting for a host that cannot be reached.
//!
//! While the circuit is closed, each call connects by itself. The first connection that fails opens
//! the circuit. From then on calls fail immediately, also those that wait already, and a task tries
//! to connect again, with growing pauses. What a try finds out counts for all calls.
//!
//! Invariant: a host that answers again is used again within the longest of [`Circuit::PAUSES`] and
//! the time of one try. No try is made while there are no calls. An error that the server itself
//! sent does not open the circuit, because the server was reached.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::backoff::Backoff;
use crate::pg::{ConnectError, ConnectOptions};

/// The state of one host, shared by its pools.
pub(super) struct Circuit {
    state: watch::Sender<CircuitState>,
    /// Connections of an earlier generation are closed instead of used: the host went silent, or is
    /// no longer the primary.
    generation: AtomicU32,
    connect: ConnectOptions,
    application_name: String,
    try_max: Duration,
}

#[derive(Clone, Debug)]
enum CircuitState {
    Closed {
        /// When a call last doubted that the host is there.
        doubted: Option<Instant>,
    },
    Open {
        /// Until when nothing is tried.
        until: Instant,
        /// How long this pause is; the next one is twice as long.
        pause: Duration,
        cause: Arc<ConnectError>,
        /// Since when a try is on its way.
        trying: Option<Instant>,
    },
}

/// The host is out of reach: an earlier try found that out.
pub(super) struct Down {
    pub(super) cause: Arc<ConnectError>,
    /// How long until the host may be tried again; zero when that is now.
    pub(super) again_in: Duration,
}

impl CircuitState {
    fn down(&self, now: Instant) -> Option<Down> {
        match self {
            CircuitState::Closed { .. } => None,
            CircuitState::Open { until, cause, .. } => Some(Down {
                cause: cause.clone(),
                again_in: until.saturating_duration_since(now),
            }),
        }
    }

    /// The state after a connection failed: open, for twice as long as before. `chance`, 0 to 1,
    /// spreads the tries of a fleet.
    fn failed(&self, cause: Arc<ConnectError>, now: Instant, chance: f64) -> CircuitState {
        let pause = match self {
            CircuitState::Closed { .. } => Circuit::PAUSES.first,
            // This call began before the circuit opened. Only a try may lengthen the pause.
            CircuitState::Open { trying: None, .. } => return self.clone(),
            CircuitState::Open { pause, .. } => Circuit::PAUSES.after(*pause),
        };
        let until = now + Circuit::PAUSES.spread(pause, chance);
        CircuitState::Open {
            until,
            pause,
            cause,
            trying: None,
        }
    }
}

impl Circuit {
    /// How long nothing is tried after a failure. The jitter spreads the tries of a fleet.
    pub(super) const PAUSES: Backoff = Backoff {
        first: Duration::from_millis(100),
        max: Duration::from_secs(2),
        jitter: (0.75, 1.0),
    };
    /// How long after a try's start calls wait for its result, unless the host was silent the last
    /// time. A host that is up answers within a few milliseconds.
    const TRY_WAIT: Duration = Duration::from_millis(200);
    /// The least time between two doubts of a closed circuit.
    const DOUBT_EVERY: Duration = Duration::from_secs(1);

    pub(super) fn new(
        connect: ConnectOptions,
        application_name: String,
        try_max: Duration,
    ) -> Circuit {
        let state = watch::Sender::new(CircuitState::Closed { doubted: None });
        Circuit {
            state,
            generation: AtomicU32::new(0),
            connect,
            application_name,
            try_max,
        }
    }

    /// The generation of connections that are opened now.
    pub(super) fn generation(&self) -> u32 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Whether calls would fail immediately.
    pub(super) fn is_open(&self) -> bool {
        matches!(*self.state.borrow(), CircuitState::Open { .. })
    }

    /// From now on every connection that was opened with this generation is closed instead of used.
    pub(super) fn retire(&self, generation: u32) {
        // Another call may have retired it already.
        let next = generation.wrapping_add(1);
        let _ = self.generation.compare_exchange(
            generation,
            next,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
    }

    /// Whether a call may continue to the host.
    ///
    /// # Cancel safety
    /// A try that this call started continues. Nothing else changes.
    pub(super) async fn pass(self: &Arc<Self>) -> Result<(), Down> {
        if matches!(*self.state.borrow(), CircuitState::Closed { .. }) {
            return Ok(());
        }
        let now = Instant::now();
        let mut seen = self.state.subscribe();
        let mut began = false;
        self.state.send_if_modified(|state| {
            if let CircuitState::Open { until, trying, .. } = state
                && trying.is_none()
                && *until <= now
            {
                (*trying, began) = (Some(now), true);
            }
            began
        });
        if began {
            self.clone().start_try();
        }
        let waits = match &*seen.borrow_and_update() {
            // A host that was silent may be silent again.
            CircuitState::Open { cause, .. }
                if matches!(
                    **cause,
                    ConnectError::TimedOut { .. } | ConnectError::Stalled { .. }
                ) =>
            {
                Duration::ZERO
            }
            CircuitState::Open {
                trying: Some(since),
                ..
            } => Self::TRY_WAIT.saturating_sub(since.elapsed()),
            _ => Duration::ZERO,
        };
        if !waits.is_zero() {
            let settled = |state: &CircuitState| {
                !matches!(
                    state,
                    CircuitState::Open {
                        trying: Some(_),
                        ..
                    }
                )
            };
            let _ = tokio::time::timeout(waits, seen.wait_for(settled)).await;
        }
        self.state.borrow().down(Instant::now()).map_or(Ok(()), Err)
    }

    /// Returns once the circuit is open.
    pub(super) async fn opened(&self) -> Down {
        let mut seen = self.state.subscribe();
        loop {
            if let Some(down) = seen.borrow_and_update().down(Instant::now()) {
                return down;
            }
            if seen.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Takes note that a connection could not be opened. Returns the cause, for the caller's own
    /// error.
    pub(super) fn failed(&self, cause: Arc<ConnectError>) -> Arc<ConnectError> {
        if !cause.is_unreachable() {
            return cause;
        }
        let (now, chance) = (Instant::now(), fastrand::f64());
        let mut opened = false;
        self.state.send_if_modified(|state| {
            opened = matches!(state, CircuitState::Closed { .. });
            *state = state.failed(cause.clone(), now, chance);
            opened
        });
        if opened {
            tracing::warn!(host = %self.connect, error = %cause, "out of reach");
        }
        if matches!(
            *cause,
            ConnectError::TimedOut { .. } | ConnectError::Stalled { .. }
        ) {
            // What was opened before the host went silent only looks alive.
            self.retire(self.generation());
        }
        cause
    }

    /// A connection was lost, or an answer took too long: starts a task that finds out whether the
    /// host is still there.
    pub(super) fn doubt(self: &Arc<Self>) {
        let now = Instant::now();
        let begins = self.state.send_if_modified(|state| match state {
            CircuitState::Closed { doubted }
                if doubted.is_none_or(|at| now - at >= Self::DOUBT_EVERY) =>
            {
                *doubted = Some(now);
                true
            }
            _ => false,
        });
        if begins {
            self.clone().start_try();
        }
    }

    /// The error of a connection that was not opened within the limit of one try.
    pub(super) fn timed_out(&self) -> ConnectError {
        ConnectError::TimedOut {
            to: self.connect.to_string(),
            timeout_ms: self.try_max.as_millis(),
        }
    }

    fn start_try(self: Arc<Self>) {
        // Made here and moved into the task: it is dropped even if the runtime ends before the task
        // runs.
        let trying = Trying(self.clone());
        tokio::spawn(async move {
            let _trying = trying;
            let opening = self.connect.connect_for_application(&self.application_name);
            let outcome = match tokio::time::timeout(self.try_max, opening).await {
                Ok(outcome) => outcome,
                Err(_) => Err(self.timed_out()),
            };
            match outcome {
                Err(error) if error.is_unreachable() => {
                    self.failed(Arc::new(error));
                    // `failed` only announces a circuit that opens, but the calls that wait for
                    // this try must learn that it ended.
                    self.state.send_modify(|_| ());
                }
                // A server that refuses the connection is up.
                _ => {
                    self.state.send_if_modified(|state| {
                        let was_open = matches!(state, CircuitState::Open { .. });
                        if was_open {
                            tracing::info!(host = %self.connect, "within reach again");
                            *state = CircuitState::Closed { doubted: None };
                        }
                        was_open
                    });
                }
            }
        });
    }
}

/// Records that no try is on its way once this one ends, however it ends: a router can outlive the
/// runtime that the try ran in.
struct Trying(Arc<Circuit>);

impl Drop for Trying {
    fn drop(&mut self) {
        self.0.state.send_if_modified(|state| match state {
            CircuitState::Open { trying, .. } => trying.take().is_some(),
            CircuitState::Closed { .. } => false,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause() -> Arc<ConnectError> {
        Arc::new(ConnectError::TimedOut {
            to: "x".to_owned(),
            timeout_ms: 1,
        })
    }

    #[test]
    fn pauses_grow_to_a_limit_and_only_tries_count() {
        let now = Instant::now();
        let mut state = CircuitState::Closed { doubted: None };
        let mut pauses = Vec::new();
        for _ in 0..8 {
            state = state.failed(cause(), now, 1.0);
            let CircuitState::Open { until, pause, .. } = state else {
                panic!("{state:?}")
            };
            assert_eq!(until, now + pause);
            pauses.push(pause.as_millis());
            // A straggler changes nothing.
            let CircuitState::Open { pause: same, .. } = state.failed(cause(), now, 1.0) else {
                panic!()
            };
            assert_eq!(same, pause);
            let CircuitState::Open { ref mut trying, .. } = state else {
                panic!()
            };
            *trying = Some(now);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 1600, 2000, 2000, 2000]);
    }

    #[test]
    fn tries_of_a_fleet_are_spread() {
        let now = Instant::now();
        for chance in [0.0, 0.5, 1.0] {
            let state = CircuitState::Closed { doubted: None }.failed(cause(), now, chance);
            let again_in = state.down(now).unwrap().again_in;
            assert!(
                again_in >= Circuit::PAUSES.first.mul_f64(0.75)
                    && again_in <= Circuit::PAUSES.first,
                "{again_in:?}"
            );
        }
    }
}
