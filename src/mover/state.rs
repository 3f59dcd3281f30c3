//! What to do next with a shard that is being moved: a pure function of what the two hosts say.
//!
//! The databases hold the state; the mover holds none. So `resume` on another machine is the same loop as the first run,
//! and a step that was done, but whose journal entry was lost, is seen in its effect. What may not break: [`next`] never
//! says [`Step::Unfence`] or [`Step::Discard`] once the source has decided, and never [`Step::DecideAndOpen`] unless the
//! target is ready for the very attempt that the source is fenced for.

use std::fmt;

/// How a move gets the rows across.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Fence first, copy behind the fence: the shard is closed while it is copied.
    Blocking,
    /// Copy while the source serves, apply what changes meanwhile, fence last: the shard is closed for milliseconds.
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
        [Mode::Blocking, Mode::Online].into_iter().find(|mode| mode.as_str() == name)
    }
}

/// How far the journal says a move of a shard has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Phase {
    /// The shard is ours to move; nothing is built.
    Claimed,
    /// Empty tables at the target, a signpost at the source.
    Prepared,
    /// Online: every piece of its rows is at the target, each as it was at some moment.
    Loaded,
    /// Online: the target follows the source, and was compared with it. Only the fence is missing.
    Ready,
    /// The source refuses the shard.
    Fenced,
    /// The target holds everything, compared.
    Copied,
    /// The source has given the shard away: the commit point.
    Decided,
    /// The target serves.
    Opened,
    /// The map says so; the old copy is kept.
    Kept,
    /// The old copy is dropped.
    Completed,
    /// The move was undone.
    Aborted,
}

impl Phase {
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
        Self::ALL.into_iter().find(|(phase, _)| *phase == self).map_or("", |(_, name)| name)
    }

    pub(crate) fn parse(name: &str) -> Option<Phase> {
        Self::ALL.into_iter().find(|(_, of)| *of == name).map(|(phase, _)| phase)
    }

    /// Whether there is nothing left to run: kept, completed or aborted.
    pub fn is_ended(self) -> bool {
        matches!(self, Phase::Kept | Phase::Completed | Phase::Aborted)
    }

    /// What an operator can do with a move in this phase.
    pub fn next(self) -> &'static str {
        match self {
            Phase::Claimed | Phase::Prepared | Phase::Loaded | Phase::Ready | Phase::Fenced | Phase::Copied => {
                "resume or abort"
            }
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

/// What the source's `pgshard.shard` row says, seen from one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    /// It serves the shard at the epoch that the move started from.
    Serving,
    /// It is fenced by this move.
    Fenced {
        /// The attempt that fenced it.
        attempt: i32,
    },
    /// It has given the shard away to this move's target, or the shard has been somewhere since.
    Moved,
    /// Anything else: no row, another epoch, another move's fence.
    Other,
}

/// What the target says, seen from one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// Nothing of this move is there.
    Nothing,
    /// The shard is being brought by this move.
    Incoming {
        /// The attempt for which all is in place.
        ready: Option<i32>,
    },
    /// The shard was opened here by this move (and may have moved on since).
    Opened,
    /// The shard is being brought by another move.
    Taken,
}

/// Whether this mover reads the source's changes and applies them to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Stream {
    /// It does not, or not yet.
    Off,
    /// It does.
    On,
}

/// All that [`next`] looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Observed {
    pub(crate) mode: Mode,
    pub(crate) phase: Phase,
    pub(crate) source: Source,
    pub(crate) target: Target,
    pub(crate) stream: Stream,
}

impl fmt::Display for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the journal says {}, ", self.phase)?;
        match self.source {
            Source::Serving => f.write_str("the source serves the shard, ")?,
            Source::Fenced { attempt } => write!(f, "the source is fenced for attempt {attempt}, ")?,
            Source::Moved => f.write_str("the source has given the shard away, ")?,
            Source::Other => f.write_str("the source has the shard in a state that is not of this move, ")?,
        }
        match self.target {
            Target::Nothing => f.write_str("the target has nothing of it"),
            Target::Incoming { ready: None } => f.write_str("the target is not ready"),
            Target::Incoming { ready: Some(attempt) } => write!(f, "the target is ready for attempt {attempt}"),
            Target::Opened => f.write_str("the target has opened it"),
            Target::Taken => f.write_str("another move is bringing it to the target"),
        }
    }
}

/// Where the caller wants to get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The shard on the target.
    Finish,
    /// The shard where it was.
    Abort,
}

/// One thing to do. Each may be done twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Write the target's `incoming` row, build the target's empty schema and the source's signpost.
    Prepare,
    /// Swap: the source refuses the shard from now on.
    Fence,
    /// Blocking: barrier, marker, copy, compare, indexes, sequences.
    Copy {
        /// The attempt it is done for.
        attempt: i32,
    },
    /// Online: every row over, piece by piece, then keys and indexes.
    Load,
    /// Online: apply what changed meanwhile until the target is as the source was a moment ago; compare.
    CatchUp,
    /// Online: fenced, and the target not ready. The driver drains right after its own swap; here it comes to a fence of which
    /// it does not know what was set before, takes it back, and fences anew.
    Drain {
        /// The attempt it is done for.
        attempt: i32,
    },
    /// Open prepared, decide, open committed.
    DecideAndOpen {
        /// The attempt it is done for.
        attempt: i32,
    },
    /// The source has decided: only the open is missing.
    Open,
    /// Tell the map.
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
    /// The goal is to abort, but the source has decided: the move can only be finished.
    TooLate,
    /// The hosts contradict each other. A human must look; nothing is touched.
    Stuck,
}

/// The next step towards the goal.
pub(crate) fn next(goal: Goal, observed: Observed) -> Step {
    let Observed { mode, phase, source, target, stream } = observed;
    match (goal, phase, source, target) {
        (_, Phase::Kept | Phase::Completed, _, _) if goal == Goal::Finish => Step::Done,
        (_, Phase::Kept | Phase::Completed, _, _) => Step::TooLate,
        (Goal::Abort, Phase::Aborted, _, _) => Step::Done,
        (Goal::Finish, Phase::Aborted, _, _) => Step::Stuck,

        // The source decides what can be done at all, the journal's phase only how much of it is left.
        (Goal::Abort, _, Source::Moved, _) => Step::TooLate,
        (Goal::Finish, _, Source::Moved, Target::Incoming { ready: Some(_) }) => Step::Open,
        (Goal::Finish, _, Source::Moved, Target::Opened) => Step::Publish,
        (Goal::Finish, _, Source::Moved, _) => Step::Stuck,

        (Goal::Abort, _, Source::Fenced { attempt }, Target::Nothing | Target::Incoming { .. } | Target::Taken) => {
            Step::Unfence { attempt }
        }
        (Goal::Abort, _, Source::Serving, Target::Nothing | Target::Incoming { .. } | Target::Taken) => Step::Discard,

        // Online, "ready" is the follower's word that every change is there. That definitions and sequences were looked at
        // behind this fence is known to the mover that has made it only, and that one has the stream.
        (Goal::Finish, _, Source::Fenced { attempt }, Target::Incoming { ready })
            if ready == Some(attempt) && (mode == Mode::Blocking || stream == Stream::On) =>
        {
            Step::DecideAndOpen { attempt }
        }
        // What is missing at the target comes by the stream. Without one, the source serves until there is.
        (Goal::Finish, _, Source::Fenced { attempt }, Target::Incoming { .. })
            if mode == Mode::Online && stream == Stream::On =>
        {
            Step::Drain { attempt }
        }
        (Goal::Finish, _, Source::Fenced { attempt }, Target::Incoming { .. }) if mode == Mode::Online => {
            Step::Unfence { attempt }
        }
        // Built for an attempt whose fence was lost: indexes and rows are in the way of another copy.
        (Goal::Finish, _, Source::Fenced { attempt }, Target::Incoming { ready: Some(_) } | Target::Nothing) => {
            Step::Unfence { attempt }
        }
        (Goal::Finish, _, Source::Fenced { attempt }, Target::Incoming { ready: None }) => Step::Copy { attempt },

        (Goal::Finish, Phase::Prepared | Phase::Loaded | Phase::Ready, Source::Serving, Target::Nothing) => {
            Step::Prepare
        }
        (Goal::Finish, Phase::Prepared, Source::Serving, Target::Incoming { .. }) if mode == Mode::Online => Step::Load,
        (Goal::Finish, Phase::Ready, Source::Serving, Target::Incoming { .. }) => Step::Fence,
        // Fenced and copied as well: the fence ran out while the mover slept, which then wrote how far it had got.
        (Goal::Finish, Phase::Loaded | Phase::Fenced | Phase::Copied, Source::Serving, Target::Incoming { .. })
            if mode == Mode::Online =>
        {
            Step::CatchUp
        }
        (Goal::Finish, Phase::Prepared, Source::Serving, Target::Incoming { ready: None }) => Step::Fence,
        // Fenced and copied as well: the fence ran out while the mover slept, which then wrote how far it had got.
        (
            Goal::Finish,
            Phase::Claimed | Phase::Prepared | Phase::Fenced | Phase::Copied,
            Source::Serving,
            Target::Nothing | Target::Incoming { .. },
        ) => Step::Prepare,

        // Two hosts that both have the shard, a fence that is not ours, a target that another move uses.
        _ => Step::Stuck,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHASES: [Phase; 9] = [
        Phase::Claimed,
        Phase::Prepared,
        Phase::Loaded,
        Phase::Ready,
        Phase::Fenced,
        Phase::Copied,
        Phase::Decided,
        Phase::Opened,
        Phase::Kept,
    ];
    const STREAMS: [Stream; 2] = [Stream::Off, Stream::On];
    const SOURCES: [Source; 5] =
        [Source::Serving, Source::Fenced { attempt: 1 }, Source::Fenced { attempt: 2 }, Source::Moved, Source::Other];
    const TARGETS: [Target; 6] = [
        Target::Nothing,
        Target::Incoming { ready: None },
        Target::Incoming { ready: Some(1) },
        Target::Incoming { ready: Some(2) },
        Target::Opened,
        Target::Taken,
    ];

    /// Every observation, with phases that the mode does not have too.
    fn all() -> impl Iterator<Item = Observed> {
        let modes = [Mode::Blocking, Mode::Online].into_iter();
        let of = modes.flat_map(|mode| STREAMS.into_iter().map(move |stream| (mode, stream)));
        of.flat_map(|(mode, stream)| {
            PHASES.into_iter().flat_map(move |phase| {
                let of = move |source, target| Observed { mode, phase, source, target, stream };
                SOURCES.into_iter().flat_map(move |source| TARGETS.into_iter().map(move |target| of(source, target)))
            })
        })
    }

    fn blocking(phase: Phase, source: Source, target: Target) -> Observed {
        Observed { mode: Mode::Blocking, phase, source, target, stream: Stream::Off }
    }

    #[test]
    fn after_decide_a_move_is_only_finished() {
        for observed in all().filter(|o| o.source == Source::Moved) {
            for goal in [Goal::Finish, Goal::Abort] {
                let step = next(goal, observed);
                let forward = matches!(step, Step::Open | Step::Publish | Step::Done | Step::TooLate | Step::Stuck);
                assert!(forward, "{observed:?} {goal:?}: {step:?}");
            }
        }
    }

    #[test]
    fn a_fence_that_ran_out_is_begun_again() {
        for phase in [Phase::Prepared, Phase::Fenced, Phase::Copied] {
            for ready in [None, Some(1)] {
                let observed = blocking(phase, Source::Serving, Target::Incoming { ready });
                let step = next(Goal::Finish, observed);
                assert!(matches!(step, Step::Prepare | Step::Fence), "{observed:?}: {step:?}");
            }
        }
    }

    #[test]
    fn decide_needs_a_target_that_is_ready_for_this_attempt() {
        let mut decided = 0;
        for observed in all() {
            if let Step::DecideAndOpen { attempt } = next(Goal::Finish, observed) {
                assert_eq!(observed.source, Source::Fenced { attempt });
                assert_eq!(observed.target, Target::Incoming { ready: Some(attempt) });
                decided += 1;
            }
            assert!(!matches!(next(Goal::Abort, observed), Step::DecideAndOpen { .. }));
        }
        assert!(decided > 0);
    }

    #[test]
    fn nothing_is_touched_when_both_hosts_have_the_shard() {
        for observed in all().filter(|o| o.target == Target::Opened && o.source != Source::Moved) {
            for goal in [Goal::Finish, Goal::Abort] {
                let step = next(goal, observed);
                assert!(matches!(step, Step::Stuck | Step::Done | Step::TooLate), "{observed:?} {goal:?}: {step:?}");
            }
        }
    }

    /// What a step does to a world in which nothing goes wrong.
    fn run(step: Step, o: Observed) -> Observed {
        let (phase, source, target) = match step {
            Step::Prepare => (Phase::Prepared, o.source, Target::Incoming { ready: None }),
            Step::Fence => (Phase::Fenced, Source::Fenced { attempt: 2 }, o.target),
            Step::Copy { attempt } => (Phase::Copied, o.source, Target::Incoming { ready: Some(attempt) }),
            Step::Load => (Phase::Loaded, o.source, o.target),
            Step::CatchUp => (Phase::Ready, o.source, Target::Incoming { ready: None }),
            Step::Drain { attempt } => (Phase::Copied, o.source, Target::Incoming { ready: Some(attempt) }),
            Step::DecideAndOpen { .. } => (Phase::Opened, Source::Moved, Target::Opened),
            Step::Open => (Phase::Opened, o.source, Target::Opened),
            Step::Publish => (Phase::Kept, o.source, o.target),
            Step::Unfence { .. } => {
                (if o.mode == Mode::Online { Phase::Ready } else { Phase::Prepared }, Source::Serving, o.target)
            }
            Step::Discard => (Phase::Aborted, o.source, Target::Nothing),
            Step::Done | Step::TooLate | Step::Stuck => (o.phase, o.source, o.target),
        };
        Observed { phase, source, target, stream: Stream::On, ..o }
    }

    #[test]
    fn from_everywhere_both_goals_end() {
        for start in all() {
            for goal in [Goal::Finish, Goal::Abort] {
                let mut observed = start;
                let ended = (0..10).any(|_| {
                    let step = next(goal, observed);
                    observed = run(step, observed);
                    matches!(step, Step::Done | Step::TooLate | Step::Stuck)
                });
                assert!(ended, "{start:?} {goal:?}: still at {observed:?} after ten steps");
            }
        }
    }

    #[test]
    fn a_move_in_one_go() {
        let steps = |mode| {
            let start = blocking(Phase::Claimed, Source::Serving, Target::Nothing);
            let mut observed = Observed { mode, ..start };
            let mut steps = Vec::new();
            while steps.last() != Some(&Step::Done) && steps.len() < 10 {
                let step = next(Goal::Finish, observed);
                observed = run(step, observed);
                steps.push(step);
            }
            steps
        };
        assert_eq!(
            steps(Mode::Online),
            [
                Step::Prepare,
                Step::Load,
                Step::CatchUp,
                Step::Fence,
                Step::Drain { attempt: 2 },
                Step::DecideAndOpen { attempt: 2 },
                Step::Publish,
                Step::Done
            ]
        );
        assert_eq!(
            steps(Mode::Blocking),
            [
                Step::Prepare,
                Step::Fence,
                Step::Copy { attempt: 2 },
                Step::DecideAndOpen { attempt: 2 },
                Step::Publish,
                Step::Done
            ]
        );
    }

    #[test]
    fn a_fence_that_was_lost_after_the_copy_builds_the_target_anew() {
        let lost = |ready| blocking(Phase::Prepared, Source::Serving, Target::Incoming { ready });
        assert_eq!(next(Goal::Finish, lost(Some(1))), Step::Prepare);
        assert_eq!(next(Goal::Finish, lost(None)), Step::Fence);
    }

    #[test]
    fn phases_are_written_and_read() {
        for (phase, name) in Phase::ALL {
            assert_eq!((Phase::parse(name), phase.as_str()), (Some(phase), name));
        }
        assert_eq!(Phase::parse("half"), None);
    }
}
