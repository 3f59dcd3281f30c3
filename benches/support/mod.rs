//! What the benches that start servers have in common: how their arguments are read.

use std::collections::BTreeMap;

use pgshard::dev::{Binaries, Durability};

/// Arguments: numbers such as `--shards 4096`, `--major 18` for PostgreSQL's version, and
/// `--throwaway` for servers that do not force commits to disk.
pub(crate) struct Arguments {
    numbers: BTreeMap<&'static str, u32>,
    major: Option<u32>,
    /// Whether the servers force commits to disk.
    pub(crate) durability: Durability,
}

impl Arguments {
    /// Reads these numbers from the command line; those that it does not have keep their defaults.
    ///
    /// # Panics
    /// On an argument that is not one of them, or has no number.
    pub(crate) fn read(defaults: &[(&'static str, u32)]) -> Arguments {
        let numbers = defaults.iter().copied().collect();
        let mut read = Arguments {
            numbers,
            major: None,
            durability: Durability::Durable,
        };
        let mut list = std::env::args().skip(1);
        while let Some(argument) = list.next() {
            let mut number = || -> u32 {
                let value = list.next().unwrap_or_default();
                value
                    .parse()
                    .unwrap_or_else(|_| panic!("{argument} takes a number, not {value:?}"))
            };
            match argument.strip_prefix("--").unwrap_or(&argument) {
                "throwaway" => read.durability = Durability::Throwaway,
                "major" => read.major = Some(number()),
                // `cargo bench` passes this to every bench.
                "bench" => {}
                name => match read.numbers.get_mut(name) {
                    Some(value) => *value = number(),
                    None => panic!("unknown argument {argument}"),
                },
            }
        }
        read
    }

    /// One of the numbers.
    pub(crate) fn number(&self, name: &str) -> usize {
        self.numbers[name] as usize
    }

    /// The programs of the requested version, else the first that this machine has.
    pub(crate) fn binaries(&self) -> Binaries {
        self.major
            .map_or_else(Binaries::first, Binaries::of_major)
            .expect("there is such a PostgreSQL on this machine")
    }
}
