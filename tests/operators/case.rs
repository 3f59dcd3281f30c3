//! What a round is made of, from its seed.

use std::fmt;

use fastrand::Rng;

/// Where the map is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    /// In the one config file of all operators and the application.
    File,
    /// In a database of db1; the operators share one config.
    Postgres,
    /// In a database of db1; each operator has their own config file, which may be older than the
    /// others'.
    Copies,
}

/// One round.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    /// The version of each server.
    pub(crate) versions: Vec<u32>,
    /// How many of the servers the config names at first.
    pub(crate) named: usize,
    pub(crate) shards: u16,
    pub(crate) store: Store,
    pub(crate) operators: usize,
    /// How many things each operator does.
    pub(crate) deeds: usize,
}

fn one<T: Copy>(rng: &mut Rng, all: &[T]) -> T {
    all[rng.usize(0..all.len())]
}

impl Case {
    pub(crate) fn of(seed: u64, version: u32) -> Case {
        let rng = &mut Rng::with_seed(seed.wrapping_mul(37));
        let servers = one(rng, &[2, 3, 3]);
        let mixed = rng.u8(0..3) == 0;
        let other = super::support::other(version);
        let versions = (0..servers)
            .map(|at| if mixed && at % 2 == 1 { other } else { version })
            .collect();
        let named = if servers == 3 && rng.bool() {
            2
        } else {
            servers
        };
        let shards = rng.u16(8..=16);
        let store = one(
            rng,
            &[Store::File, Store::File, Store::Postgres, Store::Copies],
        );
        let operators = one(rng, &[2, 3, 3, 4]);
        let deeds = rng.usize(8..=16);
        Case {
            seed,
            versions,
            named,
            shards,
            store,
            operators,
            deeds,
        }
    }

    /// The numbers that an operator's deeds are made from.
    pub(crate) fn rng(&self, operator: usize) -> Rng {
        Rng::with_seed(self.seed.wrapping_mul(41).wrapping_add(operator as u64 + 1))
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Case {
            seed,
            versions,
            named,
            shards,
            store,
            operators,
            deeds,
        } = self;
        let version = versions[0];
        write!(
            f,
            "--seed {seed} --version {version}: servers {versions:?}, {named} in the config, \
                {shards} shards, map \
             {store:?}, {operators} operators, {deeds} deeds each"
        )
    }
}
