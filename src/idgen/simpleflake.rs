//! Simpleflake: 41 bits of milliseconds since 2000-01-01 UTC, 22 random bits: 63 in all, so a
//! `bigint` that is never negative.
//!
//! No worker number, no database, no state; sortable by millisecond only. What fails: nothing is
//! checked. Of n IDs made in one millisecond, anywhere, two are the same with a probability of
//! `1 - exp(-n (n - 1) / 2^23)` ([`collision_odds`]):
//!
//! | IDs in each millisecond | odds in one millisecond | in an hour of it |
//! | --- | --- | --- |
//! | 2 | 1 in 4,194,304 | 0.58 |
//! | 10 | 1 in 93,000 | all but certain |
//! | 100 | 1 in 850 | certain |
//! | 2,412 | 0.5 | certain |
//!
//! So the column needs UNIQUE, and an insert that fails is repeated with another ID. The published
//! code has 23 random bits, which makes the number negative from 2034 on; the article has 22, as
//! this module does. The random bits are not a secret.

use std::sync::Arc;

use super::{Clock, Error, IdSource, SystemClock, check_batch, random};

/// 2000-01-01 UTC, the zero of the clock, as Unix milliseconds.
pub const EPOCH_MS: u64 = 946_684_800_000;
/// Bits of milliseconds.
pub const MS_BITS: u32 = 41;
/// Random bits.
pub const RANDOM_BITS: u32 = 22;

/// A source of simpleflakes.
#[derive(Clone, Debug)]
pub struct Simpleflake {
    clock: Arc<dyn Clock>,
}

impl Simpleflake {
    /// A source with the machine's clock.
    pub fn new() -> Simpleflake {
        Simpleflake::with_clock(SystemClock::shared())
    }

    /// A source with another clock.
    pub fn with_clock(clock: Arc<dyn Clock>) -> Simpleflake {
        Simpleflake { clock }
    }

    /// The next one.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] before 2000 and after 2069-09-06.
    pub fn make(&self) -> Result<i64, Error> {
        let unix_ms = self.clock.unix_ms();
        let ms = unix_ms.checked_sub(EPOCH_MS);
        ms.and_then(|ms| encode(ms, random::bits(RANDOM_BITS)))
            .ok_or(Error::OutOfRange {
                unix_ms,
                first_ms: EPOCH_MS as i64,
                last_ms: (EPOCH_MS + (1 << MS_BITS) - 1) as i64,
            })
    }
}

impl Default for Simpleflake {
    fn default() -> Simpleflake {
        Simpleflake::new()
    }
}

impl IdSource for Simpleflake {
    type Id = i64;
    type Error = Error;

    async fn next(&self) -> Result<i64, Error> {
        self.make()
    }

    async fn next_many(&self, count: usize) -> Result<Vec<i64>, Error> {
        check_batch(count)?;
        std::iter::repeat_with(|| self.make()).take(count).collect()
    }
}

/// The ID of a millisecond since [`EPOCH_MS`] and 22 bits; `None` where one does not fit.
pub const fn encode(ms: u64, random: u32) -> Option<i64> {
    if ms >> MS_BITS != 0 || random >> RANDOM_BITS != 0 {
        return None;
    }
    Some(((ms << RANDOM_BITS) | random as u64) as i64)
}

/// What a simpleflake is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Fields {
    /// Milliseconds since [`EPOCH_MS`].
    pub ms: u64,
    /// The 22 random bits.
    pub random: u32,
}

/// What an ID is made of; `None` for a negative number, which is no simpleflake.
pub const fn decode(id: i64) -> Option<Fields> {
    if id < 0 {
        return None;
    }
    Some(Fields {
        ms: id as u64 >> RANDOM_BITS,
        random: (id & ((1 << RANDOM_BITS) - 1)) as u32,
    })
}

/// How likely it is that two of the IDs are the same, with `per_ms` IDs in each of `milliseconds`:
/// `1 - exp(-milliseconds * per_ms (per_ms - 1) / 2^23)`.
///
/// ```
/// use pgshard::idgen::simpleflake::collision_odds;
/// assert!((collision_odds(2, 3_600_000.0) - 0.576).abs() < 0.001);
/// ```
pub fn collision_odds(per_ms: u32, milliseconds: f64) -> f64 {
    let pairs = f64::from(per_ms) * (f64::from(per_ms) - 1.0).max(0.0) / 2.0;
    // exp_m1 keeps the digits of odds that are very small.
    -(-milliseconds * pairs / f64::from(1_u32 << RANDOM_BITS)).exp_m1()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::super::clock::testing::FakeClock;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn there_and_back(ms in 0..1_u64 << MS_BITS, random in 0..1_u32 << RANDOM_BITS) {
            let id = encode(ms, random).unwrap();
            prop_assert!(id >= 0);
            prop_assert_eq!(decode(id), Some(Fields { ms, random }));
        }

        #[test]
        fn every_number_that_is_not_negative(id in 0..=i64::MAX) {
            let Fields { ms, random } = decode(id).unwrap();
            prop_assert_eq!(encode(ms, random), Some(id));
        }
    }

    #[test]
    fn bits_and_years_have_limits() {
        assert_eq!(
            encode((1 << MS_BITS) - 1, (1 << RANDOM_BITS) - 1),
            Some(i64::MAX)
        );
        assert_eq!(
            (
                encode(1 << MS_BITS, 0),
                encode(0, 1 << RANDOM_BITS),
                decode(-1)
            ),
            (None, None, None)
        );
        for (unix_ms, fits) in [
            (EPOCH_MS - 1, false),
            (EPOCH_MS, true),
            (EPOCH_MS + (1 << 41) - 1, true),
        ] {
            let clock = FakeClock::new(unix_ms, Duration::ZERO);
            assert_eq!(
                Simpleflake::with_clock(Arc::new(clock)).make().is_ok(),
                fits
            );
        }
        let end =
            jiff::Timestamp::from_millisecond((EPOCH_MS + (1 << MS_BITS) - 1) as i64).unwrap();
        assert!(end.to_string().starts_with("2069-09-06"));
    }

    /// The table above.
    #[test]
    fn the_odds_are_those_of_the_table() {
        let one_in = |per_ms| 1.0 / collision_odds(per_ms, 1.0);
        assert!((one_in(2) - 4_194_304.5).abs() < 1.0, "{}", one_in(2));
        assert!((one_in(10) - 93_207.0).abs() < 10.0, "{}", one_in(10));
        assert!((one_in(100) - 847.8).abs() < 1.0, "{}", one_in(100));
        assert!((collision_odds(2412, 1.0) - 0.5).abs() < 0.001);
        assert!((collision_odds(2, 3_600_000.0) - 0.576).abs() < 0.001);
        assert!(collision_odds(10, 3_600_000.0) > 0.999_999);
        assert_eq!(
            (collision_odds(0, 1.0), collision_odds(1, 1e12)),
            (0.0, 0.0)
        );
        // The formula is an approximation: this is the exact product.
        let exact = 1.0
            - (0..2412)
                .map(|k| 1.0 - f64::from(k) / f64::from(1 << RANDOM_BITS))
                .product::<f64>();
        assert!((collision_odds(2412, 1.0) - exact).abs() < 0.001);
    }

    /// As often as the odds predict: 2,412 in a millisecond collide in about half of 400 trials.
    #[test]
    fn they_collide_as_documented() {
        let clock = FakeClock::new(EPOCH_MS + 5, Duration::ZERO);
        let source = Simpleflake::with_clock(Arc::new(clock));
        let trial = |_: &i32| {
            let mut seen = HashSet::new();
            (0..2412).any(|_| !seen.insert(source.make().unwrap()))
        };
        let collided = (0..400).filter(trial).count();
        // Ten standard deviations.
        assert!((100..300).contains(&collided), "{collided}");
    }
}
