//! The parameters of a round, from its seed.

use std::fmt;
use std::time::Duration;

use fastrand::Rng;
use pgshard::lookups::{Definition, Fold};
use serde::{Deserialize, Serialize};

/// What an application does with the look-ups.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) enum Story {
    /// Every process claims, from the start.
    Claimed,
    /// There are rows before the look-ups, and half of the processes never claim. When these have
    /// ended, the look-ups enforce and become complete.
    Introduced,
}

/// One round.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) story: Story,
    /// The version of each host.
    pub(crate) versions: [u32; 2],
    pub(crate) shards: u16,
    pub(crate) keys: i64,
    /// How many values each look-up has.
    pub(crate) values: usize,
    pub(crate) fold: Fold,
    /// The sessions' default isolation level.
    pub(crate) isolation: &'static str,
    /// How many processes there are at a time.
    pub(crate) processes: usize,
    /// How long they work.
    pub(crate) long: Duration,
}

impl Case {
    pub(crate) fn of(seed: u64, version: u32) -> Case {
        let rng = &mut Rng::with_seed(seed.wrapping_mul(43));
        let second = match rng.u8(0..3) {
            0 => super::support::other(version),
            _ => version,
        };
        let levels = [
            "read committed",
            "read committed",
            "repeatable read",
            "serializable",
        ];
        let story = match seed % 3 {
            2 => Story::Introduced,
            _ => Story::Claimed,
        };
        Case {
            seed,
            story,
            versions: [version, second],
            shards: rng.u16(2..=6),
            keys: rng.i64(2..=8),
            values: rng.usize(1..=5),
            fold: [Fold::None, Fold::Ascii][rng.usize(..2)],
            isolation: levels[rng.usize(..levels.len())],
            processes: 8,
            long: Duration::from_secs(20),
        }
    }

    /// Whether a process claims the values that it writes.
    pub(crate) fn claims(&self, number: usize) -> bool {
        self.story == Story::Claimed || number.is_multiple_of(2)
    }

    pub(crate) fn rng(&self, who: u64) -> Rng {
        Rng::with_seed(self.seed.wrapping_mul(47).wrapping_add(who))
    }

    /// The look-ups: over `email`, and over `name`.
    pub(crate) fn definitions(&self) -> [Definition; 2] {
        [
            Definition::new("emails", "users", ["email"], "id").fold(self.fold),
            Definition::new("names", "users", ["name"], "id"),
        ]
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            seed,
            story,
            versions,
            shards,
            keys,
            values,
            fold,
            isolation,
            ..
        } = self;
        let version = versions[0];
        write!(
            f,
            "--seed {seed} --version {version}: {story:?}, hosts {versions:?}, {shards} shards, \
             {keys} keys, {values} values, fold {fold:?}, {isolation}"
        )
    }
}
