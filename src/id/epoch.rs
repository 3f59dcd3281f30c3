//! The zero of the 41-bit clock.

use jiff::Timestamp;

use super::layout::{MS_BITS, MS_MAX};

/// The zero of a cluster's 41-bit clock, as Unix milliseconds. Fixed once the cluster is
/// bootstrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Epoch(i64);

/// Why a time does not fit an epoch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EpochError {
    /// IDs cannot represent a time before their zero.
    #[error("{time} is before the epoch {epoch}")]
    BeforeEpoch {
        /// The given time.
        time: Timestamp,
        /// The zero of the clock.
        epoch: Timestamp,
    },
    /// The 41 bits are used up.
    #[error("{time} is past {last}, the last millisecond of 41 bits")]
    PastEnd {
        /// The given time.
        time: Timestamp,
        /// The last time that IDs of this epoch can represent.
        last: Timestamp,
    },
    /// An epoch so far from 1970 that the times of its IDs cannot be written.
    #[error(
        "epoch {unix_ms} ms is outside the years -9999 to 9999 that its IDs' times must stay in"
    )]
    OutOfRange {
        /// The epoch that was refused, as Unix milliseconds.
        unix_ms: i64,
    },
}

impl Epoch {
    /// An epoch at so many milliseconds after 1970-01-01 UTC.
    ///
    /// # Errors
    /// [`EpochError::OutOfRange`] when it, or the last time that its IDs can represent, cannot be
    /// written as a date.
    pub fn from_unix_ms(unix_ms: i64) -> Result<Epoch, EpochError> {
        let last = unix_ms
            .checked_add(MS_MAX as i64)
            .map(Timestamp::from_millisecond);
        match (Timestamp::from_millisecond(unix_ms), last) {
            (Ok(_), Some(Ok(_))) => Ok(Epoch(unix_ms)),
            _ => Err(EpochError::OutOfRange { unix_ms }),
        }
    }

    /// The epoch as Unix milliseconds, the number that `next_id()` takes off the clock.
    pub const fn unix_ms(self) -> i64 {
        self.0
    }

    /// The epoch as a time.
    pub fn timestamp(self) -> Timestamp {
        self.time(0)
    }

    /// The time `ms` milliseconds after the epoch. Values above [`MS_MAX`] are taken as [`MS_MAX`].
    pub fn time(self, ms: u64) -> Timestamp {
        // `from_unix_ms` has checked both ends of the span.
        Timestamp::from_millisecond(self.0 + ms.min(MS_MAX) as i64)
            .expect("an epoch's whole span can be written")
    }

    /// Milliseconds from the epoch to this time, fractions cut off downwards.
    ///
    /// # Errors
    /// When the time is before the epoch or past its last millisecond.
    pub fn ms(self, time: Timestamp) -> Result<u64, EpochError> {
        // Floored, not truncated towards 1970: an ID's millisecond holds every instant that begins
        // in it.
        let unix_ms = time.as_nanosecond().div_euclid(1_000_000) as i64;
        match u64::try_from(unix_ms - self.0) {
            Err(_) => Err(EpochError::BeforeEpoch {
                time,
                epoch: self.timestamp(),
            }),
            Ok(ms) if ms > MS_MAX => Err(EpochError::PastEnd {
                time,
                last: self.time(MS_MAX),
            }),
            Ok(ms) => Ok(ms),
        }
    }

    /// When IDs turn negative as `bigint`: 2^40 ms, 34.8 years, after the epoch. From then on
    /// `ORDER BY id` puts new rows before old ones.
    pub fn sign_flip(self) -> Timestamp {
        self.time(1 << (MS_BITS - 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sign_flips_when_the_documents_say() {
        // The article's epoch.
        let epoch = Epoch::from_unix_ms(1314220021721).unwrap();
        assert_eq!(epoch.sign_flip().to_string(), "2046-06-27T17:00:49.497Z");
        assert!(
            crate::id::Id::new(1 << 40, crate::ShardId::MAX, 0)
                .unwrap()
                .encode()
                < 0
        );
        assert!(
            crate::id::Id::new((1 << 40) - 1, crate::ShardId::MAX, 1023)
                .unwrap()
                .encode()
                > 0
        );
    }

    #[test]
    fn times_outside_are_refused() {
        let epoch = Epoch::from_unix_ms(1_000).unwrap();
        assert_eq!(epoch.ms(Timestamp::from_millisecond(1_000).unwrap()), Ok(0));
        assert!(matches!(
            epoch.ms(Timestamp::from_millisecond(999).unwrap()),
            Err(EpochError::BeforeEpoch { .. })
        ));
        assert_eq!(epoch.ms(epoch.time(MS_MAX)), Ok(MS_MAX));
        let past = Timestamp::from_millisecond(1_000 + MS_MAX as i64 + 1).unwrap();
        assert!(matches!(epoch.ms(past), Err(EpochError::PastEnd { .. })));
        assert!(matches!(
            Epoch::from_unix_ms(i64::MAX),
            Err(EpochError::OutOfRange { .. })
        ));
        assert!(matches!(
            Epoch::from_unix_ms(253_402_207_200_000),
            Err(EpochError::OutOfRange { .. })
        ));
    }
}
