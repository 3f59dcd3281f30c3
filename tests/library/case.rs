//! The parameters of a round, and the failures that end it.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

/// The same command line makes the same programs and fates; their timing is chance.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) version: u32,
    pub(crate) callers: u64,
    pub(crate) steps: u64,
    /// Kinds of steps and of fates that are left out.
    pub(crate) without: BTreeSet<String>,
}

impl Case {
    /// The arguments of `script/test-library` that repeat it.
    pub(crate) fn words(&self) -> String {
        let Case {
            seed,
            version,
            callers,
            steps,
            without,
        } = self;
        let mut words =
            format!("--seed {seed} --version {version} --callers {callers} --steps {steps}");
        if !without.is_empty() {
            words += &format!(
                " --without {}",
                without.iter().cloned().collect::<Vec<_>>().join(",")
            );
        }
        words
    }

    /// The kinds among these that are not left out.
    pub(crate) fn of_these(&self, kinds: &[&'static str]) -> Vec<&'static str> {
        kinds
            .iter()
            .copied()
            .filter(|kind| !self.without.contains(*kind))
            .collect()
    }
}

/// The kind, by which a smaller round is recognized as failing in the same way, and the
/// description.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// Forbidden things that callers and fates have seen.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<Vec<Failure>>);

impl Failures {
    pub(crate) fn add(&self, kind: &'static str, text: impl Into<String>) {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Failure {
                kind,
                text: text.into(),
            });
    }

    pub(crate) fn first(&self) -> Option<Failure> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .first()
            .cloned()
    }
}
