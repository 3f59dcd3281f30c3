//! Milliseconds and sequence numbers that never come twice in a process, whatever the wall clock
//! does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{Clock, Error};

/// What keeps a source from giving an ID right now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Later {
    /// All sequence numbers of this millisecond are used.
    NextMillisecond,
    /// The clock is behind: it stepped back, or the worker number may be used only later.
    Behind {
        /// How long until it is there.
        by_ms: u64,
    },
    /// The lease on the worker number has ended, or its end is too near.
    Lease,
    /// The worker number is that of the process that forked this one.
    Forked,
    /// The clock is outside the layout.
    OutOfRange {
        /// The error of the clock.
        unix_ms: u64,
    },
}

/// The last millisecond (64 - `BITS` bits) and sequence number (`BITS` bits) given, in one integer.
#[derive(Debug)]
pub(super) struct Ticks<const BITS: u32>(AtomicU64);

/// Numbers in a row within one millisecond.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TakenTick {
    pub(super) ms: u64,
    pub(super) seq: u64,
    pub(super) count: u64,
}

impl<const BITS: u32> Ticks<BITS> {
    const SEQ_MAX: u64 = (1 << BITS) - 1;

    /// Begins at `floor_ms`: nothing before it will be given.
    pub(super) fn from(floor_ms: u64) -> Ticks<BITS> {
        Ticks(AtomicU64::new((floor_ms.max(1) << BITS) - 1))
    }

    /// The last millisecond of which something was given.
    pub(super) fn last_ms(&self) -> u64 {
        self.0.load(Ordering::Acquire) >> BITS
    }

    /// Takes up to `want` (at least 1) numbers of the millisecond that the clock shows. `now` is
    /// called after the last number was read, so that another thread's progress does not look like
    /// a clock that stepped back.
    pub(super) fn take(
        &self,
        now: impl Fn() -> Result<u64, Later>,
        want: u64,
    ) -> Result<TakenTick, Later> {
        loop {
            let last = self.0.load(Ordering::Acquire);
            let now = now()?;
            let first = match now.cmp(&(last >> BITS)) {
                std::cmp::Ordering::Greater => now << BITS,
                std::cmp::Ordering::Equal if last & Self::SEQ_MAX == Self::SEQ_MAX => {
                    return Err(Later::NextMillisecond);
                }
                std::cmp::Ordering::Equal => last + 1,
                std::cmp::Ordering::Less => {
                    return Err(Later::Behind {
                        by_ms: (last >> BITS) - now,
                    });
                }
            };
            let seq = first & Self::SEQ_MAX;
            let count = want.clamp(1, Self::SEQ_MAX - seq + 1);
            let new = first + count - 1;
            if self
                .0
                .compare_exchange_weak(last, new, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
            {
                return Ok(TakenTick {
                    ms: now,
                    seq,
                    count,
                });
            }
        }
    }
}

/// One call's patience with the clock.
pub(super) struct Patience<'a> {
    clock: &'a dyn Clock,
    begun: Option<Duration>,
    limit: Duration,
}

impl<'a> Patience<'a> {
    pub(super) fn new(clock: &'a dyn Clock, limit: Duration) -> Patience<'a> {
        Patience {
            clock,
            begun: None,
            limit,
        }
    }

    /// Waits for the clock.
    ///
    /// # Errors
    /// At once when it is further behind than the limit; else when that much time has passed.
    pub(super) async fn wait(&mut self, by_ms: u64) -> Result<(), Error> {
        let now = self.clock.monotonic();
        let waited = now.saturating_sub(*self.begun.get_or_insert(now));
        let wait = Duration::from_millis(by_ms);
        if wait > self.limit || waited > self.limit {
            return Err(Error::ClockBehind {
                by_ms,
                limit_ms: self.limit.as_millis(),
            });
        }
        match by_ms {
            // Less than a millisecond is left of this one; a timer would sleep past the beginning
            // of the next.
            0 => tokio::task::yield_now().await,
            _ => self.clock.sleep(wait).await,
        }
        Ok(())
    }

    /// Notes that the wait was not in vain: the limit starts over.
    pub(super) fn rewarded(&mut self) {
        self.begun = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_millisecond_has_so_many_numbers() {
        let ticks = Ticks::<2>::from(0);
        let at = |ms| {
            ticks
                .take(|| Ok(ms), 3)
                .map(|taken| (taken.ms, taken.seq, taken.count))
        };
        assert_eq!(at(5), Ok((5, 0, 3)));
        assert_eq!(at(5), Ok((5, 3, 1)));
        assert_eq!(at(5), Err(Later::NextMillisecond));
        assert_eq!(at(3), Err(Later::Behind { by_ms: 2 }));
        assert_eq!(at(6), Ok((6, 0, 3)));
        assert_eq!(ticks.last_ms(), 6);
        assert_eq!(
            Ticks::<2>::from(9).take(|| Ok(8), 1).unwrap_err(),
            Later::NextMillisecond
        );
        assert_eq!(Ticks::<2>::from(9).take(|| Ok(9), 1).unwrap().seq, 0);
    }

    proptest! {
        /// Whatever the clock does, what is given grows.
        #[test]
        fn ticks_only_grow(steps in proptest::collection::vec((0_u64..50, 1_u64..9), 1..300)) {
            let ticks = Ticks::<3>::from(10);
            let mut last = None;
            for (now, want) in steps {
                let Ok(taken) = ticks.take(|| Ok(now), want) else { continue };
                prop_assert_eq!(taken.ms, now);
                prop_assert!(taken.count <= want && taken.seq + taken.count <= 8 && taken.ms >= 10);
                prop_assert!(last < Some((taken.ms, taken.seq)));
                last = Some((taken.ms, taken.seq + taken.count - 1));
            }
        }
    }

    #[test]
    fn threads_share_without_repeats() {
        let ticks = Ticks::<12>::from(0);
        let seen = std::sync::Mutex::new(std::collections::HashSet::new());
        let clock = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut mine = Vec::new();
                    while mine.len() < 50_000 {
                        match ticks.take(|| Ok(clock.load(Ordering::SeqCst)), 1) {
                            Ok(taken) => mine.push((taken.ms, taken.seq)),
                            Err(_) => _ = clock.fetch_add(1, Ordering::SeqCst),
                        }
                    }
                    assert!(mine.is_sorted());
                    seen.lock().unwrap().extend(mine);
                });
            }
        });
        assert_eq!(seen.into_inner().unwrap().len(), 200_000);
    }
}
