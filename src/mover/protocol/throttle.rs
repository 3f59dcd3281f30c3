//! How fast rows may be sent: a rate for all workers of a move together, and a pause. Both can be
//! changed while they work.

use std::num::NonZeroU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// What is allowed at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Pace {
    /// Bytes a second for all workers together. `None`: as fast as possible.
    pub(crate) rate: Option<NonZeroU64>,
    /// Nothing more is begun while this is true.
    pub(crate) paused: bool,
}

/// For how much lost time a copy that was slower than the rate may catch up.
const BURST: Duration = Duration::from_millis(100);

/// The gate through which every block of rows goes. Clones share the gate.
#[derive(Clone, Debug)]
pub(crate) struct Throttle {
    pace: watch::Receiver<Pace>,
    /// When the next block may go without exceeding the rate.
    next: Arc<Mutex<Instant>>,
}

impl Throttle {
    /// A gate that obeys this channel. Once its other end is gone, the last rate stays in force,
    /// and no pause does.
    pub(crate) fn new(pace: watch::Receiver<Pace>) -> Throttle {
        Throttle {
            pace,
            next: Arc::new(Mutex::new(Instant::now())),
        }
    }

    /// A gate that is always open.
    pub(crate) fn open() -> Throttle {
        Throttle::of(None)
    }

    /// A gate that lets this many bytes a second through.
    pub(crate) fn of(rate: Option<NonZeroU64>) -> Throttle {
        Throttle::new(
            watch::channel(Pace {
                rate,
                paused: false,
            })
            .1,
        )
    }

    /// A gate that obeys this channel's pauses too, and shares this one's rate with it.
    pub(crate) fn and(&self, pace: watch::Receiver<Pace>) -> Throttle {
        Throttle {
            pace,
            next: Arc::clone(&self.next),
        }
    }

    /// The rate at present.
    pub(crate) fn rate(&self) -> Option<NonZeroU64> {
        self.pace.borrow().rate
    }

    /// Waits while there is a pause. Call it before beginning what must not be held open during a
    /// pause.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn go(&self) {
        let mut pace = self.pace.clone();
        // An error means that the pause cannot be ended any more.
        let _ = pace.wait_for(|pace| !pace.paused).await;
    }

    /// Waits until this many bytes may go. It does not wait for the end of a pause: what is under
    /// way holds a snapshot.
    ///
    /// # Cancel safety
    /// If dropped, the bytes may have been counted; the others then wait a little longer.
    pub(crate) async fn pass(&self, bytes: u64) {
        let Some(rate) = self.rate() else { return };
        let takes = Duration::from_secs_f64(bytes as f64 / rate.get() as f64);
        let at = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            let now = Instant::now();
            let at = (*next).max(now.checked_sub(BURST).unwrap_or(now));
            *next = at + takes;
            at
        };
        tokio::time::sleep_until(at).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workers_share_the_rate() {
        let pace = Pace {
            rate: NonZeroU64::new(1000),
            paused: false,
        };
        let throttle = Throttle::new(watch::channel(pace).1);
        let began = Instant::now();
        let worker = async || {
            for _ in 0..10 {
                throttle.pass(100).await;
            }
        };
        tokio::join!(worker(), worker());
        // 2000 bytes at 1000 a second: the last block goes once the time for those before it has
        // passed.
        let took = began.elapsed();
        assert!(
            (Duration::from_millis(1750)..Duration::from_millis(1950)).contains(&took),
            "{took:?}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_when_told_or_when_nobody_can() {
        let (tell, pace) = watch::channel(Pace {
            rate: None,
            paused: true,
        });
        let throttle = Throttle::new(pace);
        let gone = tokio::time::timeout(Duration::from_secs(3600), throttle.go()).await;
        assert!(gone.is_err());
        throttle.pass(1).await;
        tell.send_replace(Pace::default());
        throttle.go().await;
        tell.send_replace(Pace {
            rate: None,
            paused: true,
        });
        drop(tell);
        throttle.go().await;
    }
}
