//! Why a shard cannot be moved, said completely.

use std::fmt;

/// One reason not to move a shard: which object, what is wrong with it, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The object: `table photos`.
    pub object: String,
    /// What is wrong: a clause that goes on after the object's name.
    pub reason: String,
    /// What to do about it: an imperative.
    pub remedy: String,
}

impl Refusal {
    pub(super) fn new(object: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Refusal {
        Refusal { object: object.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.object, self.reason, self.remedy)
    }
}
