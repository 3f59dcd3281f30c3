//! Spans of time as ranges of IDs, so that "photos of last week" is an index range.

use jiff::Timestamp;

use super::epoch::{Epoch, EpochError};
use super::layout::{Id, MS_BITS, MS_MAX, SEQ_MAX};
use crate::shard::ShardId;

/// All IDs made in a span of time, on whatever shard: `WHERE id BETWEEN min AND max`.
///
/// ```
/// use pgshard::id::{Epoch, IdRange};
/// let epoch = Epoch::from_unix_ms(1293840000000).unwrap(); // 2011-01-01
/// let monday = "2026-11-02T00:00:00Z".parse().unwrap();
/// let next = "2026-11-09T00:00:00Z".parse().unwrap();
/// let week = IdRange::between(epoch, monday, next).unwrap();
/// assert!(week.min < week.max);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    /// The smallest ID of the span: its first millisecond, shard 0, sequence 0.
    pub min: i64,
    /// The largest ID of the span: its last millisecond, shard 8191, sequence 1023.
    pub max: i64,
}

/// Why a span of time is no range of IDs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RangeError {
    /// One of its ends is outside what IDs can represent.
    #[error(transparent)]
    Epoch(#[from] EpochError),
    /// The span holds no millisecond.
    #[error("the span from {from} up to {to} is empty")]
    Empty {
        /// The start of the span.
        from: Timestamp,
        /// Its end, not included.
        to: Timestamp,
    },
    /// The IDs of the span are not one range of `bigint`: their sign flips within it.
    #[error(
        "IDs turn negative at {flip}, inside the span: ask for two spans, up to and from there"
    )]
    SignFlip {
        /// The first time with negative IDs.
        flip: Timestamp,
    },
}

impl IdRange {
    /// The IDs made from `from` on and before `to`.
    ///
    /// # Errors
    /// When an end lies outside the epoch's span, when the span is empty, and when it holds the
    /// instant at which IDs turn negative (then it is two ranges: one up to [`Epoch::sign_flip`],
    /// one from there on).
    pub fn between(epoch: Epoch, from: Timestamp, to: Timestamp) -> Result<IdRange, RangeError> {
        if from >= to {
            return Err(RangeError::Empty { from, to });
        }
        // The end is exclusive: the last millisecond is the one before `to`, whole when `to` is a
        // whole millisecond.
        let last = to
            .checked_sub(jiff::SignedDuration::from_nanos(1))
            .unwrap_or(to);
        let (first, last) = (epoch.ms(from)?, epoch.ms(last)?);
        let flip = 1 << (MS_BITS - 1);
        if first < flip && last >= flip {
            return Err(RangeError::SignFlip {
                flip: epoch.sign_flip(),
            });
        }
        Ok(IdRange {
            min: Self::min_at(first),
            max: Self::max_at(last),
        })
    }

    /// The smallest ID that can be made in this millisecond of the epoch. Values above [`MS_MAX`]
    /// are taken as it.
    pub fn min_at(ms: u64) -> i64 {
        Self::at(ms, 0, 0)
    }

    /// The largest ID that can be made in this millisecond of the epoch. Values above [`MS_MAX`]
    /// are taken as it.
    pub fn max_at(ms: u64) -> i64 {
        Self::at(ms, ShardId::MAX.get(), SEQ_MAX)
    }

    /// Whether the ID was made in the span.
    pub fn contains(self, id: i64) -> bool {
        (self.min..=self.max).contains(&id)
    }

    fn at(ms: u64, shard: u16, seq: u16) -> i64 {
        let shard = ShardId::new(shard).expect("both ends of the shard bits are shards");
        Id::new(ms.min(MS_MAX), shard, seq.into())
            .expect("the milliseconds are at most MS_MAX")
            .encode()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn epoch() -> Epoch {
        Epoch::from_unix_ms(1293840000000).unwrap()
    }

    proptest! {
        #[test]
        fn an_id_is_in_the_range_iff_its_time_is_in_the_span(
            ms in 0..1u64 << 40,
            from in 0..1u64 << 40,
            length in 1..1u64 << 39,
            shard in 0u16..8192,
            seq in 0u64..1024,
        ) {
            let to = (from + length).min(1 << 40);
            prop_assume!(from < to);
            let range = IdRange::between(epoch(), epoch().time(from), epoch().time(to)).unwrap();
            let id = Id::new(ms, ShardId::new(shard).unwrap(), seq).unwrap().encode();
            prop_assert_eq!(range.contains(id), (from..to).contains(&ms));
        }
    }

    #[test]
    fn spans_that_are_no_range() {
        let flip = epoch().sign_flip();
        let (before, after) = (epoch().time((1 << 40) - 1), epoch().time((1 << 40) + 1));
        assert_eq!(
            IdRange::between(epoch(), before, after),
            Err(RangeError::SignFlip { flip })
        );
        assert!(IdRange::between(epoch(), before, flip).unwrap().min > 0);
        assert!(IdRange::between(epoch(), flip, after).unwrap().max < 0);
        assert_eq!(
            IdRange::between(epoch(), flip, flip),
            Err(RangeError::Empty {
                from: flip,
                to: flip
            })
        );
        let early = Timestamp::UNIX_EPOCH;
        assert!(matches!(
            IdRange::between(epoch(), early, flip),
            Err(RangeError::Epoch(_))
        ));
    }
}
