//! Keys: integers by remainder, texts and UUIDs by the first 60 bits of their SHA-256, remainder of
//! that.
//!
//! Invariant: the shard of a key never changes, and every language can compute it (`docs/keys.md`
//! has the vectors). So it is never a hash that belongs to one language or to one version of a
//! library.

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::{ShardCount, ShardId};

/// What the keys of a cluster are, and how a shard is made of one. Every host records it, so that
/// two programs cannot differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// `integer`: key mod N, Euclidean, of the number itself, whatever the width of its type.
    #[default]
    Integer,
    /// `string:sha256`: the first 60 bits (15 hexadecimal digits) of the SHA-256 of the text's
    /// UTF-8 bytes, as a number mod N. The bytes are taken as they are: case, accents and blanks
    /// count.
    String,
    /// `uuid:sha256`: the same of the 16 bytes of the UUID in the order in which it is written.
    Uuid,
}

impl KeyKind {
    /// All kinds.
    pub const ALL: [KeyKind; 3] = [KeyKind::Integer, KeyKind::String, KeyKind::Uuid];

    /// The name in config and databases. It contains the hash, so that another hash would be
    /// another kind.
    pub const fn as_str(self) -> &'static str {
        match self {
            KeyKind::Integer => "integer",
            KeyKind::String => "string:sha256",
            KeyKind::Uuid => "uuid:sha256",
        }
    }

    /// The shard of a key written as text.
    ///
    /// # Errors
    /// When the text is no key of this kind: for integers a number of at most 128 bits, for UUIDs
    /// any usual way to write one.
    ///
    /// ```
    /// use pgshard::{KeyKind, ShardCount};
    /// let shards = ShardCount::new(4096).unwrap();
    /// assert_eq!(KeyKind::Integer.shard_of_text("31341", shards).unwrap().get(), 2669);
    /// assert_eq!(KeyKind::String.shard_of_text("31341", shards).unwrap().get(), 917);
    /// assert!(KeyKind::Uuid.shard_of_text("31341", shards).is_err());
    /// ```
    pub fn shard_of_text(self, text: &str, shards: ShardCount) -> Result<ShardId, KeyTextError> {
        let refused = || KeyTextError {
            text: text.to_owned(),
            kind: self,
        };
        match self {
            KeyKind::Integer => match text.parse::<i128>() {
                Ok(number) => Ok(number.shard(shards)),
                Err(_) => text
                    .parse::<u128>()
                    .map(|number| number.shard(shards))
                    .map_err(|_| refused()),
            },
            KeyKind::String => Ok(text.shard(shards)),
            KeyKind::Uuid => Uuid::try_parse(text)
                .map(|uuid| uuid.shard(shards))
                .map_err(|_| refused()),
        }
    }
}

impl fmt::Display for KeyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// A text that names no kind of key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} is no kind of key")]
pub struct KeyKindError {
    /// The text.
    pub name: String,
}

impl FromStr for KeyKind {
    type Err = KeyKindError;

    fn from_str(name: &str) -> Result<KeyKind, KeyKindError> {
        let kind = KeyKind::ALL.into_iter().find(|kind| kind.as_str() == name);
        kind.ok_or_else(|| KeyKindError {
            name: name.to_owned(),
        })
    }
}

/// A text that is no key of its kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no key of this cluster, whose keys are {kind}")]
pub struct KeyTextError {
    /// The text.
    pub text: String,
    /// What it should be.
    pub kind: KeyKind,
}

/// A sharding key: any integer type, `str` and `String`, [`Uuid`], and references to them.
///
/// The trait is sealed: a key of another type must be made one of these first, so that every
/// program does it in the same way.
///
/// ```compile_fail
/// # let shards = pgshard::ShardCount::new(4096).unwrap();
/// shards.shard_of_key(0.5); // a float is no key
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no sharding key",
    note = "keys are integers, `&str`, `String` and `uuid::Uuid`: make one of these of it"
)]
pub trait Key: sealed::Sealed {
    /// What the key is.
    const KIND: KeyKind;

    /// The type of the same key, owned: `String` for `&str`.
    type Owned: Key<Owned = Self::Owned> + Clone + Ord + fmt::Debug + Send + Sync + 'static;

    /// The same key, owned.
    fn to_key(&self) -> Self::Owned;

    #[doc(hidden)]
    fn value(&self) -> KeyValue<'_>;

    /// Its shard.
    fn shard(&self, shards: ShardCount) -> ShardId;
}

/// A key as a value of a statement.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub enum KeyValue<'k> {
    /// `None` where it is larger than any `i128`.
    Integer(Option<i128>),
    Text(&'k str),
    Uuid(Uuid),
}

mod sealed {
    pub trait Sealed {}
}

impl<K: Key + ?Sized> sealed::Sealed for &K {}
impl<K: Key + ?Sized> Key for &K {
    const KIND: KeyKind = K::KIND;
    type Owned = K::Owned;

    fn to_key(&self) -> K::Owned {
        K::to_key(self)
    }

    fn value(&self) -> KeyValue<'_> {
        K::value(self)
    }

    fn shard(&self, shards: ShardCount) -> ShardId {
        K::shard(self, shards)
    }
}

/// Implements [`Key`] for integers, each computed in the type after `as`, which holds all of its
/// values.
macro_rules! integers {
    ($($integer:ty as $wide:ty),+) => {$(
        impl sealed::Sealed for $integer {}
        impl Key for $integer {
            const KIND: KeyKind = KeyKind::Integer;
            type Owned = $integer;

            fn to_key(&self) -> $integer {
                *self
            }

            fn value(&self) -> KeyValue<'_> {
                KeyValue::Integer(i128::try_from(*self).ok())
            }

            fn shard(&self, shards: ShardCount) -> ShardId {
                // The remainder is below N ≤ 8192, so the narrowing keeps it whole.
                ShardId((*self as $wide).rem_euclid(<$wide>::from(shards.0)) as u16)
            }
        }
    )+};
}

integers!(
    i8 as i64,
    i16 as i64,
    i32 as i64,
    i64 as i64,
    isize as i64,
    u8 as u64,
    u16 as u64,
    u32 as u64,
    u64 as u64,
    usize as u64,
    i128 as i128,
    u128 as u128
);

/// The shard by the first 60 bits of the hash, so that the number is positive as `bigint` and as
/// every language's 64-bit integer.
fn shard_of_bytes(bytes: &[u8], shards: ShardCount) -> ShardId {
    let hash = Sha256::digest(bytes);
    let first = hash
        .iter()
        .take(8)
        .fold(0, |number: u64, byte| number << 8 | u64::from(*byte))
        >> 4;
    first.shard(shards)
}

impl sealed::Sealed for str {}
impl Key for str {
    const KIND: KeyKind = KeyKind::String;
    type Owned = String;

    fn to_key(&self) -> String {
        self.to_owned()
    }

    fn value(&self) -> KeyValue<'_> {
        KeyValue::Text(self)
    }

    fn shard(&self, shards: ShardCount) -> ShardId {
        shard_of_bytes(self.as_bytes(), shards)
    }
}

impl sealed::Sealed for String {}
impl Key for String {
    const KIND: KeyKind = KeyKind::String;
    type Owned = String;

    fn to_key(&self) -> String {
        self.clone()
    }

    fn value(&self) -> KeyValue<'_> {
        KeyValue::Text(self)
    }

    fn shard(&self, shards: ShardCount) -> ShardId {
        self.as_str().shard(shards)
    }
}

impl sealed::Sealed for Uuid {}
impl Key for Uuid {
    const KIND: KeyKind = KeyKind::Uuid;
    type Owned = Uuid;

    fn to_key(&self) -> Uuid {
        *self
    }

    fn value(&self) -> KeyValue<'_> {
        KeyValue::Uuid(*self)
    }

    fn shard(&self, shards: ShardCount) -> ShardId {
        shard_of_bytes(self.as_bytes(), shards)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The table of `docs/keys.md`: kind, key, shard of 4096, shard of 2000.
    fn vectors() -> Vec<(KeyKind, String, u16, u16)> {
        let rows = include_str!("../../docs/keys.md")
            .lines()
            .filter_map(|line| line.strip_prefix("| `"));
        let vector = |row: &str| {
            let cells: Vec<&str> = row.split('|').map(str::trim).collect();
            let kind = cells[0].trim_end_matches('`').parse().ok()?;
            let key = cells[1].trim_matches('`').trim_matches('"').to_owned();
            Some((kind, key, cells[3].parse().ok()?, cells[4].parse().ok()?))
        };
        rows.filter_map(vector).collect()
    }

    #[test]
    fn the_vectors_of_the_manual_hold() {
        let vectors = vectors();
        assert_eq!(vectors.len(), 13);
        for (kind, key, of_4096, of_2000) in vectors {
            for (count, shard) in [(4096, of_4096), (2000, of_2000)] {
                let shards = ShardCount::new(count).unwrap();
                assert_eq!(
                    kind.shard_of_text(&key, shards).unwrap().get(),
                    shard,
                    "{kind} {key:?} of {count}"
                );
            }
        }
    }

    #[test]
    fn kinds_come_back_from_their_names() {
        for kind in KeyKind::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        assert!("string".parse::<KeyKind>().is_err());
    }

    #[test]
    fn references_and_owned_texts_are_the_same_key() {
        let shards = ShardCount::MAX;
        let (owned, number) = (String::from("ann@x.org"), 7_u8);
        let borrowed: &String = &owned;
        assert_eq!(
            shards.shard_of_key("ann@x.org"),
            shards.shard_of_key(borrowed)
        );
        assert_eq!(
            shards.shard_of_key("ann@x.org"),
            shards.shard_of_key(owned.clone())
        );
        let borrowed: &u8 = &number;
        assert_eq!(shards.shard_of_key(borrowed), shards.shard_of_key(7_i128));
    }

    proptest! {
        /// The definition, in the widest types: key - shard is a multiple of N, whichever type
        /// holds the key.
        #[test]
        fn integers_are_taken_by_their_value(signed: i128, unsigned: u128, count in 1u32..=8192) {
            let shards = ShardCount::new(count).unwrap();
            let n = i128::from(count);
            prop_assert_eq!(i128::from(shards.shard_of_key(signed).get()), signed.rem_euclid(n));
            let of_unsigned = u128::from(shards.shard_of_key(unsigned).get());
            prop_assert_eq!(of_unsigned, unsigned % u128::from(count));
            let (narrow, wide) = (signed as i64, unsigned as u64);
            prop_assert_eq!(shards.shard_of_key(narrow), shards.shard_of_key(i128::from(narrow)));
            prop_assert_eq!(shards.shard_of_key(wide), shards.shard_of_key(i128::from(wide)));
            let byte = narrow as i8;
            prop_assert_eq!(shards.shard_of_key(byte), shards.shard_of_key(i128::from(byte)));
            let read = KeyKind::Integer.shard_of_text(&unsigned.to_string(), shards);
            prop_assert_eq!(read, Ok(shards.shard_of_key(unsigned)));
        }
    }
}
