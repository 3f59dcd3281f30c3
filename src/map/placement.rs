//! The values of a placement: host, epoch, and version of the map.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

/// The name that the config gives a host, the database (on a primary) that holds shards.
///
/// Cheap to clone. 1 to 63 of `a-z A-Z 0-9 _ -`, so that it is a bare TOML key and fits a `name`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostName(Arc<str>);

/// Why a text is no [`HostName`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("host name {name:?} must be 1 to 63 of A-Z, a-z, 0-9, _ and -")]
pub struct HostNameError {
    /// The text that was refused.
    pub name: String,
}

impl HostName {
    /// Checks the text.
    ///
    /// # Errors
    /// When it is empty, longer than 63 bytes, or has a character outside `A-Z a-z 0-9 _ -`.
    pub fn new(name: &str) -> Result<HostName, HostNameError> {
        let plain = name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
        if plain && (1..=63).contains(&name.len()) {
            Ok(HostName(name.into()))
        } else {
            Err(HostNameError {
                name: name.to_owned(),
            })
        }
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// How often a map has been published. A map with a larger version is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapVersion(u64);

impl MapVersion {
    /// The version of a cluster's first map: 1.
    pub const FIRST: MapVersion = MapVersion(1);

    /// The version with this number.
    pub const fn new(version: u64) -> MapVersion {
        MapVersion(version)
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The version after this one.
    pub const fn next(self) -> MapVersion {
        MapVersion(self.0 + 1)
    }
}

impl fmt::Display for MapVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// How often a shard has been placed: 1 at bootstrap, one more with every move. Of two statements
/// about a shard the one with the larger epoch is the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardEpoch(u32);

impl ShardEpoch {
    /// The epoch of a shard that never moved: 1.
    pub const FIRST: ShardEpoch = ShardEpoch(1);

    /// The epoch with this number; `None` for 0 and above `i32::MAX` (it is an `integer` in the
    /// control schema).
    pub const fn new(epoch: u32) -> Option<ShardEpoch> {
        if epoch >= 1 && epoch <= i32::MAX as u32 {
            Some(ShardEpoch(epoch))
        } else {
            None
        }
    }

    /// The epoch from PostgreSQL's `integer`; `None` below 1.
    pub fn from_i32(epoch: i32) -> Option<ShardEpoch> {
        u32::try_from(epoch).ok().and_then(ShardEpoch::new)
    }

    /// The number itself.
    pub const fn get(self) -> u32 {
        self.0
    }

    /// The number as PostgreSQL's `integer`.
    pub const fn as_i32(self) -> i32 {
        self.0 as i32
    }

    /// Whether nothing that happened can lead here from there: more than a million moves of one
    /// shard, one every minute for two years.
    #[cfg(feature = "ops")]
    pub(crate) const fn jumps(self, from: ShardEpoch) -> bool {
        self.0.saturating_sub(from.0) > 1 << 20
    }

    /// The epoch that a move from here leads to.
    pub const fn next(self) -> ShardEpoch {
        ShardEpoch(self.0 + 1)
    }
}

impl fmt::Display for ShardEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where a shard lives, and since which epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The host that serves the shard.
    pub host: HostName,
    /// The epoch since which it serves the shard.
    pub epoch: ShardEpoch,
}
