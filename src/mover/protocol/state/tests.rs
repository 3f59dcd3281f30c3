//! Tests of the decision, over everything that can be observed.

use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::state::*;

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
const STREAMS: [Stream; 5] = [
    Stream::Off,
    on(ComparisonState::No, None),
    on(ComparisonState::No, Some(1)),
    on(ComparisonState::Yes, None),
    on(ComparisonState::Yes, Some(1)),
];

const fn on(compared: ComparisonState, looked: Option<i32>) -> Stream {
    Stream::On { compared, looked }
}
const SOURCES: [Source; 5] = [
    Source::Serving,
    Source::Fenced { attempt: 1 },
    Source::Fenced { attempt: 2 },
    Source::Moved,
    Source::Other,
];
const TARGETS: [Target; 6] = [
    Target::Nothing,
    Target::Incoming { ready: None },
    Target::Incoming { ready: Some(1) },
    Target::Incoming { ready: Some(2) },
    Target::Opened,
    Target::Taken,
];

/// A mover that wants to finish, and is neither stopped nor held back.
fn finishing(stream: Stream) -> Own {
    Own {
        goal: Goal::Finish,
        until: Until::End,
        stop: Stop::No,
        desired: DesiredState::Run,
        stream,
    }
}

/// Every possible state of a mover.
fn movers() -> Vec<Own> {
    let mut all = Vec::new();
    for stream in STREAMS {
        for goal in [Goal::Finish, Goal::Abort] {
            for (until, stop) in [
                (Until::End, Stop::No),
                (Until::Ready, Stop::No),
                (Until::End, Stop::Asked),
            ] {
                for desired in [DesiredState::Run, DesiredState::Hold, DesiredState::Pause] {
                    all.push(Own {
                        goal,
                        until,
                        stop,
                        desired,
                        stream,
                    });
                }
            }
        }
    }
    all
}

/// Every observation under the mover's own lease, including phases that do not occur in the mode.
fn observations() -> Vec<ObservedState> {
    let mut all = Vec::new();
    for mode in [Mode::Blocking, Mode::Online] {
        for phase in PHASES {
            for source in SOURCES {
                for target in TARGETS {
                    all.push(ObservedState {
                        mode,
                        lease: Lease::Ours,
                        phase,
                        source,
                        target,
                    });
                }
            }
        }
    }
    all
}

/// Every mover with every observation.
fn all() -> impl Iterator<Item = (Own, ObservedState)> {
    let observations = observations();
    movers().into_iter().flat_map(move |own| {
        observations
            .clone()
            .into_iter()
            .map(move |observed| (own, observed))
    })
}

fn observed(mode: Mode, phase: Phase, source: Source, target: Target) -> ObservedState {
    ObservedState {
        mode,
        lease: Lease::Ours,
        phase,
        source,
        target,
    }
}

#[test]
fn after_decide_a_move_is_only_finished() {
    for (own, observed) in all().filter(|(_, o)| o.source == Source::Moved) {
        let step = next(own, observed);
        let forward = matches!(
            step,
            Step::Open | Step::Publish | Step::Done | Step::TooLate | Step::Stuck
        );
        assert!(
            forward || step == Step::Interrupted,
            "{own:?} {observed:?}: {step:?}"
        );
    }
}

#[test]
fn a_mover_without_the_lease_does_nothing() {
    for (own, observed) in all() {
        assert_eq!(
            next(
                own,
                ObservedState {
                    lease: Lease::Lost,
                    ..observed
                }
            ),
            Step::LeaseLost
        );
    }
}

#[test]
fn a_fence_that_ran_out_is_begun_again() {
    for phase in [Phase::Prepared, Phase::Fenced, Phase::Copied] {
        for ready in [None, Some(1)] {
            let observed = observed(
                Mode::Blocking,
                phase,
                Source::Serving,
                Target::Incoming { ready },
            );
            let step = next(finishing(Stream::Off), observed);
            assert!(
                matches!(step, Step::Prepare | Step::Fence),
                "{observed:?}: {step:?}"
            );
        }
    }
}

#[test]
fn decide_needs_a_target_that_is_ready_for_this_attempt() {
    let mut decided = 0;
    for (own, observed) in all() {
        let Step::DecideAndOpen { attempt } = next(own, observed) else {
            continue;
        };
        assert_eq!((own.goal, own.stop), (Goal::Finish, Stop::No));
        assert_eq!(observed.source, Source::Fenced { attempt });
        assert_eq!(
            observed.target,
            Target::Incoming {
                ready: Some(attempt)
            }
        );
        decided += 1;
    }
    assert!(decided > 0);
}

#[test]
fn online_nothing_is_decided_for_a_fence_behind_which_this_mover_has_not_looked() {
    let ready = observed(
        Mode::Online,
        Phase::Copied,
        Source::Fenced { attempt: 2 },
        Target::Incoming { ready: Some(2) },
    );
    let looked = |attempt| finishing(on(ComparisonState::Yes, attempt));
    assert_eq!(
        next(looked(Some(2)), ready),
        Step::DecideAndOpen { attempt: 2 }
    );
    assert_eq!(next(looked(Some(1)), ready), Step::FenceAnew { attempt: 2 });
    assert_eq!(next(looked(None), ready), Step::FenceAnew { attempt: 2 });
    assert_eq!(
        next(finishing(Stream::Off), ready),
        Step::Unfence { attempt: 2 }
    );
    for (own, observed) in all().filter(|(_, observed)| observed.mode == Mode::Online) {
        if let Step::DecideAndOpen { attempt } = next(own, observed) {
            let looked_behind =
                matches!(own.stream, Stream::On { looked: Some(looked), .. } if looked == attempt);
            assert!(looked_behind, "{own:?} {observed:?}");
        }
    }
}

#[test]
fn nothing_is_touched_when_both_hosts_have_the_shard() {
    for (own, observed) in
        all().filter(|(_, o)| o.target == Target::Opened && o.source != Source::Moved)
    {
        let step = next(own, observed);
        let rests = matches!(
            step,
            Step::Stuck | Step::Done | Step::TooLate | Step::Interrupted
        );
        assert!(rests, "{own:?} {observed:?}: {step:?}");
    }
}

#[test]
fn a_shard_is_fenced_only_when_the_operator_and_the_group_let_it_be() {
    let mut fenced = 0;
    for (own, observed) in all() {
        if let step @ (Step::Fence | Step::CutOver) = next(own, observed) {
            let compared = matches!(
                own.stream,
                Stream::On {
                    compared: ComparisonState::Yes,
                    ..
                }
            );
            assert!(step == Step::Fence || compared, "{own:?} {observed:?}");
            assert_eq!(
                (own.until, own.stop, own.desired),
                (Until::End, Stop::No, DesiredState::Run),
                "{observed:?}"
            );
            fenced += 1;
        }
    }
    assert!(fenced > 0);
    let ready = observed(
        Mode::Online,
        Phase::Ready,
        Source::Serving,
        Target::Incoming { ready: None },
    );
    let following = finishing(on(ComparisonState::Yes, None));
    assert_eq!(next(following, ready), Step::CutOver);
    assert_eq!(
        next(finishing(on(ComparisonState::No, None)), ready),
        Step::CatchUp,
        "a server was started again since"
    );
    assert_eq!(
        next(
            Own {
                desired: DesiredState::Hold,
                ..following
            },
            ready
        ),
        Step::Wait {
            desired: DesiredState::Hold
        }
    );
    assert_eq!(
        next(
            Own {
                desired: DesiredState::Hold,
                until: Until::Ready,
                ..following
            },
            ready
        ),
        Step::HandBack
    );
    assert_eq!(
        next(
            Own {
                stream: Stream::Off,
                ..following
            },
            ready
        ),
        Step::HandBack
    );
}

#[test]
fn what_needs_the_stream_is_done_with_it_only_and_what_it_follows_is_not_built_anew() {
    for (own, observed) in all().filter(|(_, observed)| observed.mode == Mode::Online) {
        let step = next(own, observed);
        match own.stream {
            Stream::Off => assert!(
                !matches!(step, Step::CatchUp | Step::CutOver | Step::FenceAnew { .. }),
                "{step:?}"
            ),
            Stream::On { .. } => assert!(!matches!(step, Step::Prepare), "{observed:?}"),
        }
    }
    let gone = observed(Mode::Online, Phase::Ready, Source::Serving, Target::Nothing);
    assert_eq!(
        next(finishing(on(ComparisonState::Yes, None)), gone),
        Step::Gone
    );
    assert_eq!(next(finishing(Stream::Off), gone), Step::Prepare);
}

#[test]
fn a_stop_leaves_the_shard_served_and_finishes_what_is_decided() {
    for (own, observed) in all().filter(|(own, _)| own.stop == Stop::Asked) {
        let step = next(own, observed);
        match observed.source {
            Source::Fenced { attempt } if observed.target != Target::Opened => {
                assert!(
                    step == Step::Unfence { attempt } || observed.phase == Phase::Kept,
                    "{observed:?}: {step:?}"
                );
            }
            Source::Moved if own.goal == Goal::Finish => {
                assert_eq!(
                    step == Step::Interrupted,
                    next(
                        Own {
                            stop: Stop::No,
                            ..own
                        },
                        observed
                    ) == Step::Stuck
                );
            }
            _ => assert!(
                matches!(step, Step::Interrupted | Step::Done | Step::Stuck),
                "{observed:?}: {step:?}"
            ),
        }
    }
}

/// What a step does to a mover and a world in which nothing goes wrong. At `HandBack` the caller
/// loads the rows and starts the stream.
fn run(step: Step, (own, o): (Own, ObservedState)) -> (Own, ObservedState) {
    let opened = (Phase::Opened, Source::Moved, Target::Opened);
    let attempt = match o.source {
        Source::Fenced { attempt } => attempt,
        _ => 2,
    };
    let (phase, source, target) = match step {
        Step::Prepare => (Phase::Prepared, o.source, Target::Incoming { ready: None }),
        Step::Fence => (Phase::Fenced, Source::Fenced { attempt: 2 }, o.target),
        Step::Copy { attempt } => (
            Phase::Copied,
            o.source,
            Target::Incoming {
                ready: Some(attempt),
            },
        ),
        Step::HandBack if o.phase == Phase::Prepared => (Phase::Loaded, o.source, o.target),
        Step::CatchUp => (Phase::Ready, o.source, Target::Incoming { ready: None }),
        Step::CutOver | Step::DecideAndOpen { .. } => opened,
        Step::Open => (Phase::Opened, o.source, Target::Opened),
        Step::Publish => (Phase::Kept, o.source, o.target),
        Step::Unfence { .. } | Step::FenceAnew { .. } => (
            if o.mode == Mode::Online {
                Phase::Ready
            } else {
                Phase::Prepared
            },
            Source::Serving,
            o.target,
        ),
        Step::Discard => (Phase::Aborted, o.source, Target::Nothing),
        _ => (o.phase, o.source, o.target),
    };
    let own = match step {
        Step::HandBack => Own {
            until: Until::End,
            stream: on(ComparisonState::No, None),
            ..own
        },
        Step::CatchUp => Own {
            stream: on(ComparisonState::Yes, None),
            ..own
        },
        Step::CutOver => Own {
            stream: on(ComparisonState::Yes, Some(attempt)),
            ..own
        },
        Step::Wait { .. } => Own {
            desired: DesiredState::Run,
            ..own
        },
        _ => own,
    };
    (
        own,
        ObservedState {
            phase,
            source,
            target,
            ..o
        },
    )
}

/// Whether a mover ends with this step.
fn is_last(step: Step) -> bool {
    matches!(
        step,
        Step::Done | Step::TooLate | Step::Stuck | Step::Interrupted | Step::Gone
    )
}

#[test]
fn from_everywhere_both_goals_end() {
    for start in all() {
        let mut at = start;
        let ended = (0..10).any(|_| {
            let step = next(at.0, at.1);
            at = run(step, at);
            is_last(step)
        });
        assert!(ended, "{start:?}: still at {at:?} after ten steps");
    }
}

#[test]
fn a_move_in_one_go() {
    let steps = |mode| {
        let start = observed(mode, Phase::Claimed, Source::Serving, Target::Nothing);
        let mut at = (finishing(Stream::Off), start);
        let mut steps = Vec::new();
        while steps.last() != Some(&Step::Done) && steps.len() < 10 {
            let step = next(at.0, at.1);
            at = run(step, at);
            steps.push(step);
        }
        steps
    };
    assert_eq!(
        steps(Mode::Online),
        [
            Step::Prepare,
            Step::HandBack,
            Step::CatchUp,
            Step::CutOver,
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
    let lost = |ready| {
        observed(
            Mode::Blocking,
            Phase::Prepared,
            Source::Serving,
            Target::Incoming { ready },
        )
    };
    assert_eq!(next(finishing(Stream::Off), lost(Some(1))), Step::Prepare);
    assert_eq!(next(finishing(Stream::Off), lost(None)), Step::Fence);
}

#[test]
fn phases_are_written_and_read() {
    for (phase, name) in Phase::ALL {
        assert_eq!((Phase::parse(name), phase.as_str()), (Some(phase), name));
    }
    assert_eq!(Phase::parse("half"), None);
}
