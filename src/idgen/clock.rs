//! The clocks that sources read, as a value: tests use one that steps.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::future::BoxFuture;

/// Wall clock, monotonic clock, and waiting.
pub trait Clock: fmt::Debug + Send + Sync {
    /// Milliseconds since 1970 by the wall clock; 0 before. It may step, forth and back.
    fn unix_ms(&self) -> u64;

    /// Time since some moment, by a clock that never steps.
    fn monotonic(&self) -> Duration;

    /// Waits that long.
    ///
    /// # Cancel safety
    /// May be dropped at any time.
    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()>;
}

/// The machine's clocks.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    started: Instant,
}

impl SystemClock {
    /// The machine's clocks.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(SystemClock {
            started: Instant::now(),
        })
    }
}

impl Clock for SystemClock {
    fn unix_ms(&self) -> u64 {
        SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_millis() as u64)
    }

    fn monotonic(&self) -> Duration {
        self.started.elapsed()
    }

    fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        Box::pin(tokio::time::sleep(duration))
    }
}

#[cfg(test)]
pub(super) mod testing {
    use std::sync::Mutex;

    use super::*;

    /// A clock that only advances when a test sets it, and when a caller sleeps.
    #[derive(Debug)]
    pub(in crate::idgen) struct FakeClock {
        times: Mutex<(u64, Duration)>,
        /// Time that passes with every look at the wall clock.
        per_look: Duration,
        looks: Mutex<Duration>,
    }

    impl FakeClock {
        pub(in crate::idgen) fn new(unix_ms: u64, per_look: Duration) -> Arc<FakeClock> {
            Arc::new(FakeClock {
                times: Mutex::new((unix_ms, Duration::ZERO)),
                per_look,
                looks: Mutex::new(Duration::ZERO),
            })
        }

        /// Time passes.
        pub(in crate::idgen) fn pass(&self, duration: Duration) {
            let mut times = self.times.lock().unwrap();
            times.0 += duration.as_millis() as u64;
            times.1 += duration;
        }

        /// The wall clock is set.
        pub(in crate::idgen) fn step(&self, by_ms: i64) {
            let mut times = self.times.lock().unwrap();
            times.0 = times.0.checked_add_signed(by_ms).unwrap();
        }
    }

    impl Clock for Arc<FakeClock> {
        fn unix_ms(&self) -> u64 {
            let mut looks = self.looks.lock().unwrap();
            *looks += self.per_look;
            if *looks >= Duration::from_millis(1) {
                *looks -= Duration::from_millis(1);
                self.pass(Duration::from_millis(1));
            }
            self.times.lock().unwrap().0
        }

        fn monotonic(&self) -> Duration {
            self.times.lock().unwrap().1
        }

        fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
            self.pass(duration.max(Duration::from_millis(1)));
            Box::pin(std::future::ready(()))
        }
    }
}
