//! What a round is made of, from its seed.

use std::fmt;

use super::support::other;

/// One round.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    /// The versions of the two servers.
    pub(crate) versions: [u32; 2],
    /// How many shards there are, half of them on each host at first.
    pub(crate) shards: u16,
}

impl Case {
    pub(crate) fn of(seed: u64, version: u32) -> Case {
        let second = if seed.is_multiple_of(3) {
            version
        } else {
            other(version)
        };
        Case {
            seed,
            versions: [version, second],
            shards: 12,
        }
    }
}

/// The words that play it again.
impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--seed {} --version {}", self.seed, self.versions[0])
    }
}
