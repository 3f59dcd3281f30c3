//! The arguments of a command line: `--name value`, and a few without a value.

use std::str::FromStr;

pub(crate) struct Words(Vec<String>);

impl Words {
    /// The arguments of this process, without its name.
    pub(crate) fn of_process() -> Words {
        Words(std::env::args().skip(1).rev().collect())
    }

    pub(crate) fn next(&mut self) -> Option<String> {
        self.0.pop()
    }

    /// What follows the argument that was just taken.
    pub(crate) fn value<T: FromStr>(&mut self, word: &str) -> Result<T, String> {
        let value = self.next().ok_or_else(|| format!("{word} takes a value"))?;
        value
            .parse()
            .map_err(|_| format!("{word} {value}: not what it takes"))
    }

    /// The same for several values, or none, between commas.
    pub(crate) fn values<T: FromStr>(&mut self, word: &str) -> Result<Vec<T>, String> {
        let text: String = self.value(word)?;
        let each = text.split(',').filter(|value| !value.is_empty());
        each.map(|value| {
            value
                .parse()
                .map_err(|_| format!("{word} {text}: not what it takes"))
        })
        .collect()
    }
}

/// A random seed.
pub(crate) fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.map_or(1, |now| now.as_millis() as u64 % 100_000_000)
}
