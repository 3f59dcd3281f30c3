//! The bits of an ID.

use crate::shard::ShardId;

/// 41 bits of milliseconds since the cluster's epoch, on top.
pub const MS_BITS: u32 = 41;
/// 13 bits of shard, in the middle.
pub const SHARD_BITS: u32 = 13;
/// 10 bits of sequence, at the bottom.
pub const SEQ_BITS: u32 = 10;
/// The last millisecond that an ID can hold: 2^41 - 1, 69.7 years after the epoch.
pub const MS_MAX: u64 = (1 << MS_BITS) - 1;
/// The largest sequence number in an ID: 1023.
pub const SEQ_MAX: u16 = (1 << SEQ_BITS) - 1;

const _: () = assert!(MS_BITS + SHARD_BITS + SEQ_BITS == 64);

/// The three fields of a 64-bit ID: milliseconds since the epoch, shard, sequence number.
///
/// `id = (ms << 23) | (shard << 10) | seq` ("Sharding & IDs at Instagram", 2012). IDs order by time
/// first. The whole 64 bits are used: from 2^40 ms (34.8 years) after the epoch on, the `bigint` is
/// negative, and still decodes. Every 64-bit value is an ID; [`ShardCount::contains`] checks
/// whether its shard exists in a cluster.
///
/// [`ShardCount::contains`]: crate::ShardCount::contains
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    // In the order of the bits, so that the derived order is the order of the IDs as unsigned
    // numbers.
    ms: u64,
    shard: ShardId,
    seq: u16,
}

impl Id {
    /// An ID from its fields. `sequence_value` is what the shard's sequence gave; its lowest ten
    /// bits are kept (`nextval % 1024`). `None` when `ms` is above [`MS_MAX`].
    ///
    /// ```
    /// use pgshard::{ShardId, id::Id};
    /// let id = Id::new(264384000000, ShardId::new(1001).unwrap(), 9001).unwrap();
    /// assert_eq!(id.encode(), 2217813737473025833);
    /// ```
    pub const fn new(ms: u64, shard: ShardId, sequence_value: u64) -> Option<Id> {
        if ms > MS_MAX {
            return None;
        }
        Some(Id {
            ms,
            shard,
            seq: (sequence_value & SEQ_MAX as u64) as u16,
        })
    }

    /// Takes an ID apart, as an unsigned number whatever its sign. Total: no value is refused.
    pub const fn decode(id: i64) -> Id {
        let bits = id as u64;
        let shard = ((bits >> SEQ_BITS) & ShardId::MAX.get() as u64) as u16;
        let Some(shard) = ShardId::new(shard) else {
            unreachable!()
        };
        Id {
            ms: bits >> (SHARD_BITS + SEQ_BITS),
            shard,
            seq: (bits & SEQ_MAX as u64) as u16,
        }
    }

    /// The ID as PostgreSQL's `bigint`; negative from 2^40 ms on.
    pub const fn encode(self) -> i64 {
        ((self.ms << (SHARD_BITS + SEQ_BITS))
            | ((self.shard.get() as u64) << SEQ_BITS)
            | self.seq as u64) as i64
    }

    /// Milliseconds since the cluster's epoch, `0..=MS_MAX`.
    pub const fn ms(self) -> u64 {
        self.ms
    }

    /// The shard that holds the row.
    pub const fn shard(self) -> ShardId {
        self.shard
    }

    /// The sequence number, `0..=1023`.
    pub const fn seq(self) -> u16 {
        self.seq
    }
}

impl From<i64> for Id {
    /// As [`Id::decode`].
    fn from(id: i64) -> Id {
        Id::decode(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::ShardCount;
    use proptest::prelude::*;

    #[derive(serde::Deserialize)]
    struct Vectors {
        layout: Layout,
        routing: Vec<Routing>,
        ids: Vec<Vector>,
    }
    #[derive(serde::Deserialize)]
    struct Layout {
        time_bits: u32,
        shard_bits: u32,
        sequence_bits: u32,
    }
    #[derive(serde::Deserialize)]
    struct Routing {
        key: i64,
        shards: u32,
        shard: u16,
    }
    #[derive(serde::Deserialize)]
    struct Vector {
        epoch_ms: Option<i64>,
        time: Option<String>,
        ms: u64,
        shard: u16,
        sequence_value: u64,
        seq: u16,
        id: String,
    }

    #[test]
    fn ids_match_the_published_vectors() {
        let vectors: Vectors =
            serde_json::from_str(include_str!("../../tests/data/ids.json")).unwrap();
        let layout = &vectors.layout;
        assert_eq!(
            (layout.time_bits, layout.shard_bits, layout.sequence_bits),
            (MS_BITS, SHARD_BITS, SEQ_BITS)
        );
        assert_eq!((vectors.routing.len(), vectors.ids.len()), (6, 6));
        for v in &vectors.routing {
            assert_eq!(
                ShardCount::new(v.shards).unwrap().shard_of_key(v.key).get(),
                v.shard,
                "key {}",
                v.key
            );
        }
        for v in &vectors.ids {
            let shard = ShardId::new(v.shard).unwrap();
            let id = Id::new(v.ms, shard, v.sequence_value).unwrap();
            let bigint: i64 = v.id.parse().unwrap();
            assert_eq!(id.encode(), bigint);
            assert_eq!(Id::decode(bigint), id);
            assert_eq!(id.seq(), v.seq);
            if let (Some(epoch_ms), Some(time)) = (v.epoch_ms, &v.time) {
                let epoch = crate::id::Epoch::from_unix_ms(epoch_ms).unwrap();
                assert_eq!(epoch.time(id.ms()).to_string(), *time);
                assert_eq!(epoch.ms(time.parse().unwrap()).unwrap(), id.ms());
            }
        }
    }

    proptest! {
        #[test]
        fn encode_undoes_decode(bigint: i64) {
            prop_assert_eq!(Id::decode(bigint).encode(), bigint);
        }

        #[test]
        fn decode_undoes_encode(ms in 0..=MS_MAX, shard in 0u16..8192, value: u64) {
            let shard = ShardId::new(shard).unwrap();
            let id = Id::decode(Id::new(ms, shard, value).unwrap().encode());
            prop_assert_eq!((id.ms(), id.shard(), u64::from(id.seq())), (ms, shard, value % 1024));
        }

        #[test]
        fn ids_order_as_unsigned_numbers(a: i64, b: i64) {
            prop_assert_eq!(Id::decode(a).cmp(&Id::decode(b)), (a as u64).cmp(&(b as u64)));
        }
    }

    #[test]
    fn a_millisecond_too_many_is_refused() {
        assert!(Id::new(MS_MAX, ShardId::MAX, 0).is_some());
        assert!(Id::new(MS_MAX + 1, ShardId::MAX, 0).is_none());
    }
}
