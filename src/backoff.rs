//! Pauses between tries: each twice as long as the one before, up to a limit.

use std::time::Duration;

/// The pauses of one kind of try.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    /// Before the second try.
    pub(crate) first: Duration,
    /// The longest, before jitter.
    pub(crate) max: Duration,
    /// The range of a random factor, so that processes that failed together do not try together.
    pub(crate) jitter: (f64, f64),
}

impl Backoff {
    pub(crate) const NO_JITTER: (f64, f64) = (1.0, 1.0);

    /// The pause after this many pauses, without jitter.
    pub(crate) fn whole(&self, pauses: u32) -> Duration {
        self.first.saturating_mul(1 << pauses.min(16)).min(self.max)
    }

    /// The pause after one of this length, without jitter.
    pub(crate) fn after(&self, pause: Duration) -> Duration {
        pause.saturating_mul(2).min(self.max)
    }

    /// The pause after this many pauses.
    pub(crate) fn pause(&self, pauses: u32) -> Duration {
        self.spread(self.whole(pauses), fastrand::f64())
    }

    /// A pause with jitter. `chance` is from 0 to 1.
    pub(crate) fn spread(&self, pause: Duration, chance: f64) -> Duration {
        let (least, most) = self.jitter;
        pause.mul_f64(least + (most - least) * chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_limit_and_stay_within_the_jitter() {
        let backoff = Backoff {
            first: Duration::from_millis(100),
            max: Duration::from_secs(2),
            jitter: (0.75, 1.25),
        };
        let whole = [0, 1, 4, 5, u32::MAX].map(|tries| backoff.whole(tries).as_millis());
        assert_eq!(whole, [100, 200, 1600, 2000, 2000]);
        assert_eq!(backoff.after(backoff.whole(1)), backoff.whole(2));
        assert_eq!(backoff.after(backoff.max), backoff.max);
        let spread = [-1.0, 0.0, 0.5, 1.0, 2.0]
            .map(|chance| backoff.spread(Duration::from_secs(1), chance).as_millis());
        assert_eq!(spread, [750, 750, 1000, 1250, 1250]);
        for tries in 0..100 {
            let (whole, pause) = (backoff.whole(tries), backoff.pause(tries));
            assert!(pause >= whole.mul_f64(0.75) && pause <= whole.mul_f64(1.25));
        }
    }
}
