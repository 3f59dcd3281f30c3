//! Decides the next step for a shard that is being moved: a pure function of what is read on the
//! two hosts, and of what the mover knows about itself.
//!
//! The databases hold the state; the mover holds none. So `resume` on another machine runs the same
//! loop as the first run, and a step that was done, but has lost its journal entry, is recognized
//! by its effect. Invariant: [`next`] never returns [`Step::Unfence`] or [`Step::Discard`] once the
//! source has decided. It never returns [`Step::DecideAndOpen`] unless the target is ready for
//! exactly the attempt that the source is fenced for.

use std::fmt;

mod next;
#[cfg(test)]
mod tests;

pub(crate) use crate::mover::protocol::state::next::{
    ComparisonState, Goal, Lease, ObservedState, Own, Source, Step, Stop, Stream, Target, Until,
    next,
};

/// How a move gets the rows across.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Fence first and copy behind the fence: the shard is closed while it is copied.
    Blocking,
    /// Copy while the source serves, apply concurrent changes, and fence last: the shard is closed
    /// for milliseconds.
    Online,
}

impl Mode {
    /// The mode as the journal writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Mode::Blocking => "blocking",
            Mode::Online => "online",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Mode> {
        [Mode::Blocking, Mode::Online]
            .into_iter()
            .find(|mode| mode.as_str() == name)
    }
}

/// How far a move of a shard has come, by its journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The mover holds the shard's move; nothing is built.
    Claimed,
    /// There are empty tables at the target and a signpost at the source.
    Prepared,
    /// Online: every chunk of its rows is at the target, each in a state that it had at some
    /// moment.
    Loaded,
    /// Online: the target follows the source, and was compared with it. Only the fence is missing.
    Ready,
    /// The source refuses the shard.
    Fenced,
    /// The target has everything, and was compared.
    Copied,
    /// The source has given the shard away: the commit point.
    Decided,
    /// The target serves.
    Opened,
    /// The map names the target; the old copy is kept.
    Kept,
    /// The old copy is dropped.
    Completed,
    /// The move was undone.
    Aborted,
}

impl Phase {
    /// Every phase, in the order in which a move goes through them; `aborted` is the last.
    pub fn all() -> impl Iterator<Item = Phase> {
        Self::ALL.into_iter().map(|(phase, _)| phase)
    }

    const ALL: [(Phase, &'static str); 11] = [
        (Phase::Claimed, "claimed"),
        (Phase::Prepared, "prepared"),
        (Phase::Loaded, "loaded"),
        (Phase::Ready, "ready"),
        (Phase::Fenced, "fenced"),
        (Phase::Copied, "copied"),
        (Phase::Decided, "decided"),
        (Phase::Opened, "opened"),
        (Phase::Kept, "kept"),
        (Phase::Completed, "completed"),
        (Phase::Aborted, "aborted"),
    ];

    /// The phase as the journal writes it.
    pub fn as_str(self) -> &'static str {
        Self::ALL
            .into_iter()
            .find(|(phase, _)| *phase == self)
            .map_or("", |(_, name)| name)
    }

    pub(crate) fn parse(name: &str) -> Option<Phase> {
        Self::ALL
            .into_iter()
            .find(|(_, written)| *written == name)
            .map(|(phase, _)| phase)
    }

    /// Whether there is nothing left to run: kept, completed or aborted.
    pub fn is_ended(self) -> bool {
        matches!(self, Phase::Kept | Phase::Completed | Phase::Aborted)
    }

    /// What an operator can do with a move in this phase.
    pub fn next(self) -> &'static str {
        match self {
            Phase::Claimed
            | Phase::Prepared
            | Phase::Loaded
            | Phase::Ready
            | Phase::Fenced
            | Phase::Copied => "resume or abort",
            Phase::Decided | Phase::Opened => "resume",
            Phase::Kept => "complete or rollback",
            Phase::Completed | Phase::Aborted => "nothing",
        }
    }
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}
