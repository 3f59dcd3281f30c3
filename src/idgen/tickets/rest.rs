//! How long a host that failed is left alone: longer after each failure, and one task at a time
//! looks for it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::backoff::Backoff;
use crate::idgen::process::Process;

/// Whether a host rests, shared by its callers and the task that looks for it.
#[derive(Clone, Debug)]
pub(super) struct Rest {
    pauses: Backoff,
    state: Arc<Mutex<State>>,
}

#[derive(Debug)]
struct State {
    on: bool,
    /// The process in which a task looks for the host.
    looked_for: Option<Process>,
    /// The pause before the next look.
    pause: Duration,
}

impl Rest {
    pub(super) fn new(first: Duration, longest: Duration) -> Rest {
        Rest {
            pauses: Backoff {
                first,
                max: longest,
                jitter: (0.75, 1.25),
            },
            state: Arc::new(Mutex::new(State {
                on: false,
                looked_for: None,
                pause: first,
            })),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No state is half changed under this lock if a thread panics.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it rests.
    pub(super) fn is_on(&self) -> bool {
        self.state().on
    }

    /// The host gave tickets: it rests no longer.
    pub(super) fn end(&self) {
        let mut state = self.state();
        (state.on, state.pause) = (false, self.pauses.first);
    }

    /// The host failed. Returns what the task that looks for it must hold; `None` if there is such
    /// a task already.
    pub(super) fn begin(&self) -> Option<Resting> {
        let mut state = self.state();
        state.on = true;
        if state.looked_for.is_some_and(Process::is_current) {
            return None;
        }
        state.looked_for = Some(Process::current());
        Some(Resting(self.clone()))
    }
}

/// Held by the task that probes a host. If it is dropped, the host is not skipped any more: when
/// the task's runtime has ended, the next caller tries the host.
pub(super) struct Resting(Rest);

impl Resting {
    /// Waits before the next probe, and returns whether one is needed. Each pause is about twice
    /// the one before, with jitter, so that processes do not all probe at once.
    pub(super) async fn pause(&self) -> bool {
        let pause = {
            let mut state = self.0.state();
            let pause = state.pause;
            state.pause = self.0.pauses.after(pause);
            pause
        };
        tokio::time::sleep(self.0.pauses.spread(pause, fastrand::f64())).await;
        self.0.is_on()
    }
}

impl Drop for Resting {
    fn drop(&mut self) {
        let mut state = self.0.state();
        (state.on, state.looked_for) = (false, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_looks_and_pauses_grow() {
        let rest = Rest::new(Duration::from_secs(1), Duration::from_secs(4));
        let looks = rest.begin().unwrap();
        assert!(rest.is_on() && rest.begin().is_none());
        let mut before = tokio::time::Instant::now();
        for seconds in [1, 2, 4, 4] {
            assert!(looks.pause().await);
            let took = before.elapsed().as_secs_f64() / f64::from(seconds);
            assert!((0.7..1.3).contains(&took), "{seconds}: {took}");
            before = tokio::time::Instant::now();
        }
        // Connected, and it failed again: the pauses continue where they were. Only tickets reset
        // them.
        drop(looks);
        assert!(!rest.is_on());
        let looks = rest.begin().unwrap();
        assert_eq!(rest.state().pause, Duration::from_secs(4));
        rest.end();
        assert!(!rest.is_on() && rest.state().pause == Duration::from_secs(1));
        // The task is still there for a failure that comes before it looks.
        assert!(rest.begin().is_none() && rest.is_on());
        // That of a forked process is not.
        rest.state().looked_for = Some(Process::parent());
        assert!(rest.begin().is_some());
        drop(looks);
    }
}
