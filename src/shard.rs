//! The vocabulary of sharding: [`ShardId`], [`ShardCount`] (the N of `key mod N`) and the schema a
//! shard lives in.
//!
//! Pure values, no I/O. Invariant: [`ShardCount::shard_of_key`] never changes. Another result for
//! one key would send a user's rows to a shard where no query looks for them.

mod key;
mod layout;

use std::fmt;

use serde::{Deserialize, Serialize};

pub(crate) use key::KeyValue;
pub use key::{Key, KeyKind, KeyKindError, KeyTextError};
pub(crate) use layout::unsharded_key;
pub use layout::{Layout, WholeSchema, WholeSchemaError};

/// The number of one logical shard: `0 ≤ id < N ≤ 8192`.
///
/// A `ShardId` alone does not know N; use [`ShardCount::shard`] to make one that is certain to
/// exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ShardId(u16);

impl ShardId {
    /// The largest shard number that the 13 shard bits of an ID can hold: 8191.
    pub const MAX: ShardId = ShardId(ShardCount::MAX.0 - 1);

    /// The shard with this number, or `None` above [`ShardId::MAX`].
    ///
    /// ```
    /// use pgshard::ShardId;
    /// assert_eq!(ShardId::new(7).unwrap().get(), 7);
    /// assert!(ShardId::new(8191).is_some());
    /// assert!(ShardId::new(8192).is_none());
    /// ```
    pub const fn new(number: u16) -> Option<ShardId> {
        if number <= Self::MAX.0 {
            Some(ShardId(number))
        } else {
            None
        }
    }

    /// The number itself.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The number as an index into a table with one entry a shard.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// The number as PostgreSQL's `integer`, the type of every `shard_id` column.
    pub const fn as_i32(self) -> i32 {
        self.0 as i32
    }
}

/// From PostgreSQL's `integer`, the type of every `shard_id` column.
impl TryFrom<i32> for ShardId {
    type Error = NoSuchShard;

    fn try_from(number: i32) -> Result<ShardId, NoSuchShard> {
        u16::try_from(number)
            .ok()
            .and_then(ShardId::new)
            .ok_or(NoSuchShard { number })
    }
}

/// A number that is no shard's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{number} is no shard: shards are numbered from 0 to {}", ShardId::MAX)]
pub struct NoSuchShard {
    /// What was given.
    pub number: i32,
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// N, the number of logical shards of a cluster: `1..=8192`, fixed for the cluster's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ShardCount(u16);

impl ShardCount {
    /// 8192: as many as the 13 shard bits of an ID can distinguish.
    pub const MAX: ShardCount = ShardCount(1 << 13);

    /// N as a checked value, or `None` outside `1..=8192`.
    ///
    /// ```
    /// use pgshard::ShardCount;
    /// assert!(ShardCount::new(0).is_none());
    /// assert_eq!(ShardCount::new(8192), Some(ShardCount::MAX));
    /// assert!(ShardCount::new(8193).is_none());
    /// ```
    pub const fn new(count: u32) -> Option<ShardCount> {
        if count >= 1 && count <= Self::MAX.0 as u32 {
            Some(ShardCount(count as u16))
        } else {
            None
        }
    }

    /// N itself.
    pub const fn get(self) -> u16 {
        self.0
    }

    /// The shard of a sharding key. For an integer it is `key mod N`, Euclidean, so that it is
    /// never negative; for texts and UUIDs see [`KeyKind`].
    ///
    /// ```
    /// use pgshard::ShardCount;
    /// let shards = ShardCount::new(2000).unwrap();
    /// assert_eq!(shards.shard_of_key(31341).get(), 1341);
    /// assert_eq!(ShardCount::new(4096).unwrap().shard_of_key(-1).get(), 4095);
    /// ```
    pub fn shard_of_key(self, key: impl Key) -> ShardId {
        key.shard(self)
    }

    /// Shard `number` of this cluster, or `None` when `number ≥ N`.
    pub const fn shard(self, number: u16) -> Option<ShardId> {
        if number < self.0 {
            Some(ShardId(number))
        } else {
            None
        }
    }

    /// Whether the shard exists in a cluster of N shards.
    pub const fn contains(self, shard: ShardId) -> bool {
        shard.0 < self.0
    }

    /// Every shard, in order.
    pub fn iter(self) -> impl ExactSizeIterator<Item = ShardId> + DoubleEndedIterator + Clone {
        (0..self.0).map(ShardId)
    }
}

impl fmt::Display for ShardCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What precedes the shard's number in the name of its schema: `shard_` makes shard 7 the
/// schema `shard_0007`.
///
/// A prefix is a plain lower-case name, so that the names of schemas are readable in `psql` without
/// quotes, and short enough that the longest name a move makes of it fits into PostgreSQL's 63
/// bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SchemaPrefix(String);

/// Why a text is no [`SchemaPrefix`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "schema prefix {prefix:?} must be 1 to {max} of a-z, 0-9 and _, starting with a letter, and \
        not pg_",
    max = SchemaPrefix::LENGTH_MAX
)]
pub struct PrefixError {
    /// The text that was refused.
    pub prefix: String,
}

impl SchemaPrefix {
    /// The longest prefix, in bytes. 63 (PostgreSQL's limit) less four digits and the longest
    /// suffix of a move, `__signpost_e` with the ten digits of a shard's epoch.
    pub const LENGTH_MAX: usize = 63 - 4 - "__signpost_e".len() - 10;

    /// Checks the text.
    ///
    /// # Errors
    /// When it is empty, longer than [`SchemaPrefix::LENGTH_MAX`], starts with anything but a
    /// letter or with `pg_` (PostgreSQL's own), or has a character outside `a-z`, `0-9` and `_`.
    pub fn new(prefix: &str) -> Result<SchemaPrefix, PrefixError> {
        let plain = prefix
            .bytes()
            .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let starts = prefix
            .bytes()
            .next()
            .is_some_and(|b| b.is_ascii_lowercase());
        if plain
            && starts
            && prefix.len() <= Self::LENGTH_MAX
            && !prefix.starts_with("pg_")
            && prefix != "pgshard"
        {
            Ok(SchemaPrefix(prefix.to_owned()))
        } else {
            Err(PrefixError {
                prefix: prefix.to_owned(),
            })
        }
    }

    /// The prefix as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The schema of a shard, as a name that is not quoted: `shard_0007`. Four digits, so that
    /// names sort as numbers.
    pub fn schema(&self, shard: ShardId) -> String {
        format!("{}{:04}", self.0, shard.0)
    }

    /// The shard with a schema of this name, the inverse of [`SchemaPrefix::schema`]; `None` for
    /// any other name.
    pub fn shard(&self, schema: &str) -> Option<ShardId> {
        let digits = schema.strip_prefix(&self.0)?;
        let plain = digits.len() == 4 && digits.bytes().all(|b| b.is_ascii_digit());
        plain
            .then(|| digits.parse().ok().and_then(ShardId::new))
            .flatten()
    }
}

impl Default for SchemaPrefix {
    fn default() -> Self {
        SchemaPrefix("shard_".to_owned())
    }
}

impl fmt::Display for SchemaPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn prefixes_are_checked() {
        for good in [
            "shard_",
            "s",
            "app1_",
            &"a".repeat(SchemaPrefix::LENGTH_MAX),
        ] {
            assert!(SchemaPrefix::new(good).is_ok(), "{good}");
        }
        let long = "a".repeat(SchemaPrefix::LENGTH_MAX + 1);
        for bad in [
            "", "1s", "_s", "Shard_", "sh-ard", "pg_shard", "pgshard", "shärd", &long,
        ] {
            assert!(SchemaPrefix::new(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn every_key_has_a_shard(key: i64, count in 1u32..=8192) {
            let shards = ShardCount::new(count).unwrap();
            let shard = shards.shard_of_key(key);
            prop_assert!(shards.contains(shard));
            // The definition, in a wider type: key - shard is a multiple of N.
            prop_assert_eq!((i128::from(key) - i128::from(shard.get())) % i128::from(count), 0);
        }

        #[test]
        fn schema_names_come_back(number in 0u16..8192) {
            let prefix = SchemaPrefix::default();
            let shard = ShardId::new(number).unwrap();
            prop_assert_eq!(prefix.shard(&prefix.schema(shard)), Some(shard));
        }

        #[test]
        fn other_names_are_nobodys(name in "[a-z_0-9]{0,14}") {
            let prefix = SchemaPrefix::default();
            if let Some(shard) = prefix.shard(&name) {
                prop_assert_eq!(prefix.schema(shard), name);
            }
        }
    }
}
