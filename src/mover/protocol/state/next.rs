//! The decision itself. Its inputs are the state of the hosts ([`ObservedState`]) and what the
//! mover knows about itself ([`Own`]). The driver adds no condition of its own, so that the model,
//! which runs this very function, runs what production runs.

use std::fmt;

use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::state::{Mode, Phase};

/// The source's `pgshard.shard` row, seen from one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It serves the shard at the epoch that the move started from.
    Serving,
    /// It is fenced by this move.
    Fenced {
        /// The attempt that fenced it.
        attempt: i32,
    },
    /// It has given the shard away to this move's target, or the shard has moved on since.
    Moved,
    /// Anything else: no row, another epoch, another move's fence.
    Other,
}

/// The state of the target, seen from one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing of this move is there.
    Nothing,
    /// The shard is being brought by this move.
    Incoming {
        /// The attempt for which everything is in place.
        ready: Option<i32>,
    },
    /// The shard was opened here by this move (and may have moved on since).
    Opened,
    /// The shard is being brought by another move.
    Taken,
}

/// Who holds the lease of the move, by the journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lease {
    /// This mover.
    Ours,
    /// Another mover, which has taken the move over.
    Lost,
}

/// The state of one shard of a move on both hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedState {
    pub(crate) mode: Mode,
    pub(crate) lease: Lease,
    pub(crate) phase: Phase,
    pub(crate) source: Source,
    pub(crate) target: Target,
}

impl fmt::Display for ObservedState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal says {}, ", self.phase)?;
        match self.source {
            Source::Serving => f.write_str("the source serves the shard, ")?,
            Source::Fenced { attempt } => {
                write!(f, "the source is fenced for attempt {attempt}, ")?
            }
            Source::Moved => f.write_str("the source has given the shard away, ")?,
            Source::Other => {
                f.write_str("the source has the shard in a state that is not of this move, ")?
            }
        }
        match self.target {
            Target::Nothing => f.write_str("the target has nothing of it"),
            Target::Incoming { ready: None } => f.write_str("the target is not ready"),
            Target::Incoming {
                ready: Some(attempt),
            } => write!(f, "the target is ready for attempt {attempt}"),
            Target::Opened => f.write_str("the target has opened it"),
            Target::Taken => f.write_str("another move is bringing it to the target"),
        }
    }
}

/// Where the caller wants the shard to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Goal {
    /// On the target.
    Finish,
    /// Where it was.
    Abort,
}

/// How far the caller wants to be taken towards the goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Until {
    /// Until only the fence is missing: if their fences are held back, the shards of a group wait
    /// for each other at this point.
    Ready,
    /// To the end.
    End,
}

/// Whether this mover was requested to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stop {
    /// It was not.
    No,
    /// It was. What is decided is finished nevertheless.
    Asked,
}

/// Whether this mover reads the source's changes and applies them to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stream {
    /// It does not, or not yet.
    Off,
    /// It does.
    On {
        /// Whether source and target were compared.
        compared: ComparisonState,
        /// The attempt for which it has examined the shard behind the fence, and found that only
        /// rows have changed.
        looked: Option<i32>,
    },
}

/// Whether this mover has compared the target with the source on the servers that run now: a server
/// that was restarted or promoted may lack what it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum ComparisonState {
    /// It has not, or only on other servers.
    No,
    /// It has.
    Yes,
}

/// What the mover knows about itself, and no host can show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Own {
    pub(crate) goal: Goal,
    pub(crate) until: Until,
    pub(crate) stop: Stop,
    /// What the operator wants: a shard is fenced at [`DesiredState::Run`] only.
    pub(crate) desired: DesiredState,
    pub(crate) stream: Stream,
}

/// One thing to do. Each may safely be done twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write the target's `incoming` row, build the target's empty schema and the source's
    /// signpost.
    Prepare,
    /// Online: apply what changed until the target is as the source was a moment ago, then compare.
    CatchUp,
    /// Wait until the operator no longer holds the fence back.
    Wait {
        /// What the operator wants instead.
        desired: DesiredState,
    },
    /// Blocking: swap; the source refuses the shard from now on.
    Fence,
    /// Online: swap, barrier, marker, the examination behind the fence, the last changes, decide
    /// and open.
    CutOver,
    /// Blocking: barrier, marker, copy, compare, indexes, sequences.
    Copy {
        /// The attempt it is done for.
        attempt: i32,
    },
    /// Online: the shard has a fence behind which this mover has not examined it, or an attempt
    /// that failed. The fence is taken back, and set again after a pause.
    FenceAnew {
        /// The attempt that fenced.
        attempt: i32,
    },
    /// Prepare the open, decide, commit the open.
    DecideAndOpen {
        /// The attempt it is done for.
        attempt: i32,
    },
    /// The source has decided: only the open is missing.
    Open,
    /// Update the map.
    Publish,
    /// Swap back.
    Unfence {
        /// The attempt that fenced.
        attempt: i32,
    },
    /// Drop what was built, end the journal as aborted.
    Discard,
    /// Nothing is left to do.
    Done,
    /// The caller decides what comes next: rows and stream belong to the whole group, and so does
    /// the moment of the first fence.
    HandBack,
    /// Stop as requested: nothing is fenced.
    Interrupted,
    /// Another mover has the move. This one must not even record that it is done.
    LeaseLost,
    /// The copy that this mover follows is gone from the target.
    Gone,
    /// The goal is to abort, but the source has decided: the move can only be finished.
    TooLate,
    /// The hosts contradict each other. A human must look; nothing is touched.
    Stuck,
}

/// What to do next.
pub(crate) fn next(own: Own, observed: ObservedState) -> Step {
    if observed.lease == Lease::Lost {
        return Step::LeaseLost;
    }
    match (own.stop, towards(own, observed)) {
        (_, step @ (Step::Open | Step::Publish | Step::Done)) => step,
        (Stop::Asked, _) => to_a_stop(observed),
        (Stop::No, step) => step,
    }
}

/// Stops before the source has decided: the shard is left usable, and the move can be resumed.
fn to_a_stop(observed: ObservedState) -> Step {
    match (observed.source, observed.target) {
        (Source::Fenced { .. }, Target::Opened) => Step::Stuck,
        (Source::Fenced { attempt }, _) => Step::Unfence { attempt },
        _ => Step::Interrupted,
    }
}

/// The next step towards the goal.
fn towards(own: Own, observed: ObservedState) -> Step {
    let Own { goal, stream, .. } = own;
    let ObservedState {
        mode,
        phase,
        source,
        target,
        ..
    } = observed;
    match (goal, phase, source, target) {
        (Goal::Finish, Phase::Kept | Phase::Completed, _, _) => Step::Done,
        (Goal::Abort, Phase::Kept | Phase::Completed, _, _) => Step::TooLate,
        (Goal::Abort, Phase::Aborted, _, _) => Step::Done,
        (Goal::Finish, Phase::Aborted, _, _) => Step::Stuck,

        // The source determines what can be done at all, and the journal's phase only how much of
        // it is left.
        (Goal::Abort, _, Source::Moved, _) => Step::TooLate,
        (Goal::Finish, _, Source::Moved, Target::Incoming { ready: Some(_) }) => Step::Open,
        (Goal::Finish, _, Source::Moved, Target::Opened) => Step::Publish,
        (Goal::Finish, _, Source::Moved, _) => Step::Stuck,

        (
            Goal::Abort,
            _,
            Source::Fenced { attempt },
            Target::Nothing | Target::Incoming { .. } | Target::Taken,
        ) => Step::Unfence { attempt },
        (
            Goal::Abort,
            _,
            Source::Serving,
            Target::Nothing | Target::Incoming { .. } | Target::Taken,
        ) => Step::Discard,

        (Goal::Finish, _, Source::Fenced { attempt }, Target::Incoming { ready }) => {
            behind_a_fence(mode, stream, attempt, ready)
        }
        // The target has lost what was built for this attempt.
        (Goal::Finish, _, Source::Fenced { attempt }, Target::Nothing) => Step::Unfence { attempt },

        (Goal::Finish, _, Source::Serving, Target::Nothing | Target::Incoming { .. }) => match mode
        {
            Mode::Blocking => blocking(own, phase, target),
            Mode::Online => online(own, phase, target),
        },

        // Both hosts have the shard, or the fence is another move's, or another move uses the
        // target.
        _ => Step::Stuck,
    }
}

/// The next step when the source is fenced for an attempt, by the attempt for which the target is
/// ready.
fn behind_a_fence(mode: Mode, stream: Stream, attempt: i32, ready: Option<i32>) -> Step {
    match (mode, stream, ready) {
        (Mode::Blocking, _, Some(for_attempt)) if for_attempt == attempt => {
            Step::DecideAndOpen { attempt }
        }
        // It was built for an attempt that lost its fence: its indexes and rows would be in the way
        // of another copy.
        (Mode::Blocking, _, Some(_)) => Step::Unfence { attempt },
        (Mode::Blocking, _, None) => Step::Copy { attempt },
        // Online, "ready" means that the follower has applied every change. Only the mover that has
        // fenced knows that definitions and sequences were checked behind this fence.
        (Mode::Online, Stream::On { looked, .. }, Some(for_attempt))
            if for_attempt == attempt && looked == Some(attempt) =>
        {
            Step::DecideAndOpen { attempt }
        }
        (Mode::Online, Stream::On { .. }, _) => Step::FenceAnew { attempt },
        // The stream brings what is missing at the target. Without a stream, the source serves
        // until there is one.
        (Mode::Online, Stream::Off, _) => Step::Unfence { attempt },
    }
}

/// The next step when the source serves, and the rows are to be copied behind the fence.
fn blocking(own: Own, phase: Phase, target: Target) -> Step {
    match (phase, target) {
        (Phase::Prepared, Target::Incoming { ready: None }) => fence(own, Step::Fence),
        // Fenced and Copied too: the fence expired while the mover slept, and when it woke it wrote
        // how far it had got.
        (Phase::Claimed | Phase::Prepared | Phase::Fenced | Phase::Copied, _) => Step::Prepare,
        _ => Step::Stuck,
    }
}

/// The next step when the source serves while the rows are copied.
fn online(own: Own, phase: Phase, target: Target) -> Step {
    let is_built = matches!(target, Target::Incoming { .. }) && phase != Phase::Claimed;
    match (phase, own.stream) {
        (Phase::Decided | Phase::Opened | Phase::Kept | Phase::Completed | Phase::Aborted, _) => {
            Step::Stuck
        }
        (_, Stream::Off) if !is_built => Step::Prepare,
        (_, Stream::Off) => Step::HandBack,
        // The stream is followed only for a shard after its rows have been copied.
        (Phase::Claimed | Phase::Prepared, Stream::On { .. }) => Step::Gone,
        (_, Stream::On { .. }) if !is_built => Step::Gone,
        (
            Phase::Ready,
            Stream::On {
                compared: ComparisonState::Yes,
                ..
            },
        ) => fence(own, Step::CutOver),
        (
            Phase::Ready,
            Stream::On {
                compared: ComparisonState::No,
                ..
            },
        ) => fence(own, Step::CatchUp),
        // Fenced and Copied too: the fence expired while the mover slept, and when it woke it wrote
        // how far it had got.
        (Phase::Loaded | Phase::Fenced | Phase::Copied, Stream::On { .. }) => Step::CatchUp,
    }
}

/// The fence, if this is the time for it.
fn fence(own: Own, fence: Step) -> Step {
    match (own.until, own.desired) {
        (Until::Ready, _) => Step::HandBack,
        (Until::End, DesiredState::Run) => fence,
        (Until::End, desired @ (DesiredState::Hold | DesiredState::Pause)) => {
            Step::Wait { desired }
        }
    }
}
