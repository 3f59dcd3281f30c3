//! Explores the model: the protocol keeps its rules, and every mutant breaks one.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io::Write;

use stateright::{Checker, Expectation, HasDiscoveries, Model, Path};

use crate::mover::model::mutant::Mutant;
use crate::mover::model::properties::*;
use crate::mover::model::world::{Faults, World};
use crate::mover::model::{Action, Bounds, Protocol};
use crate::mover::protocol::state::Mode;

const NONE: Faults = Faults {
    mover_crashes: 0,
    stops: 0,
    source_crashes: 0,
    target_crashes: 0,
    lost_messages: 0,
};

/// A run, one step on each line: what happened, and the resulting state.
fn story(path: Path<World, Action>) -> String {
    let mut lines = Vec::new();
    let mut cause = None;
    for (world, action) in path.into_vec() {
        let at: Vec<_> = world
            .movers
            .iter()
            .map(|mover| format!("{:?}", mover.at))
            .collect();
        let (source, target) = (&world.source.live, &world.target.live);
        let records: Vec<_> = (0..source.log.length())
            .filter_map(|n| source.log.get(n))
            .collect();
        lines.push(format!(
            "{:<24} movers {}; source {:?} {:?} {records:?}; target {:?} rows {:b} serving {}",
            cause
                .map(|cause: Action| format!("{cause:?}"))
                .unwrap_or_default(),
            at.join(", "),
            source.row,
            source.journal,
            target.incoming,
            target.rows,
            target.serving,
        ));
        cause = action;
    }
    lines.join("\n")
}

/// Explores everything within the bounds. Returns the number of worlds, and the rules that were
/// broken, each with a run.
fn explore(protocol: Protocol) -> (usize, BTreeMap<&'static str, String>) {
    let checker = protocol.checker().spawn_bfs().join();
    let properties = protocol.properties();
    let found = checker.discoveries();
    let is_missing = |name: &str| !found.contains_key(name);
    let mut broken: BTreeMap<_, _> = properties
        .iter()
        .filter(|p| matches!(p.expectation, Expectation::Sometimes) && is_missing(p.name))
        .map(|p| (p.name, "never happens".to_owned()))
        .collect();
    for (name, path) in found.clone() {
        if properties
            .iter()
            .any(|p| p.name == name && !matches!(p.expectation, Expectation::Sometimes))
        {
            broken.insert(name, story(path));
        }
    }
    (checker.unique_state_count(), broken)
}

const fn bounds(mode: Mode) -> Bounds {
    Bounds {
        mode,
        movers: 2,
        routers: 0,
        direct: false,
        fences: 2,
        held: false,
        faults: NONE,
    }
}

/// Returns the number of worlds.
fn keeps_its_rules(bounds: Bounds) -> usize {
    let (states, broken) = explore(Protocol {
        bounds,
        mutant: None,
    });
    let stories: Vec<_> = broken
        .iter()
        .map(|(rule, story)| format!("broken: {rule}\n{story}\n"))
        .collect();
    assert!(
        broken.is_empty(),
        "{states} worlds: {bounds:?}\n{}",
        stories.join("\n")
    );
    states
}

#[test]
fn movers_alone_keep_every_promise() {
    for mode in [Mode::Blocking, Mode::Online] {
        keeps_its_rules(Bounds {
            faults: Faults {
                mover_crashes: 1,
                ..NONE
            },
            ..bounds(mode)
        });
        keeps_its_rules(Bounds {
            faults: Faults {
                lost_messages: 1,
                ..NONE
            },
            ..bounds(mode)
        });
    }
}

/// In addition, the operator holds the fence back for a while, and stops the mover.
#[test]
fn movers_that_are_held_and_stopped() {
    for mode in [Mode::Blocking, Mode::Online] {
        keeps_its_rules(Bounds {
            held: true,
            faults: Faults { stops: 1, ..NONE },
            ..bounds(mode)
        });
    }
}

#[test]
fn a_client_that_bypasses_the_routers() {
    for mode in [Mode::Blocking, Mode::Online] {
        keeps_its_rules(Bounds {
            direct: true,
            ..bounds(mode)
        });
    }
}

#[test]
fn two_routers_keep_every_promise() {
    for mode in [Mode::Blocking, Mode::Online] {
        keeps_its_rules(Bounds {
            routers: 2,
            fences: 1,
            ..bounds(mode)
        });
    }
}

/// With two fences a swap that the source's crash has lost is made again, under the same number.
#[test]
fn hosts_that_crash() {
    for mode in [Mode::Blocking, Mode::Online] {
        keeps_its_rules(Bounds {
            faults: Faults {
                source_crashes: 1,
                ..NONE
            },
            ..bounds(mode)
        });
        for (source_crashes, target_crashes) in [(1, 0), (0, 1)] {
            let faults = Faults {
                source_crashes,
                target_crashes,
                ..NONE
            };
            keeps_its_rules(Bounds {
                direct: true,
                fences: 1,
                faults,
                ..bounds(mode)
            });
        }
        // A router may have been at the target when its open was lost.
        let faults = Faults {
            target_crashes: 1,
            ..NONE
        };
        keeps_its_rules(Bounds {
            routers: 1,
            fences: 1,
            faults,
            ..bounds(mode)
        });
    }
}

/// The rules about the end are checked in worlds in which nothing more happens. That every run
/// reaches such a world is checked here: no run reaches the same world twice.
#[test]
fn no_run_goes_in_circles() {
    for mode in [Mode::Blocking, Mode::Online] {
        let protocol = Protocol {
            bounds: bounds(mode),
            mutant: None,
        };
        let mut finished: HashMap<World, bool> = HashMap::new();
        let mut path = vec![protocol.init_states()];
        while let Some(choices) = path.last_mut() {
            let Some(world) = choices.last().copied() else {
                path.pop();
                if let Some(left) = path.last_mut().and_then(Vec::pop) {
                    finished.insert(left, true);
                }
                continue;
            };
            match finished.get(&world) {
                Some(true) => drop(choices.pop()),
                Some(false) => panic!("{mode:?}: a run comes back to {world:?}"),
                None => {
                    finished.insert(world, false);
                    path.push(protocol.next_states(&world));
                }
            }
        }
        assert!(finished.len() > 1_000);
    }
}

/// The rule that a mutant breaks, and the smallest world in which it does.
fn killer(mutant: Mutant) -> (&'static str, Bounds) {
    let (blocking, online) = (bounds(Mode::Blocking), bounds(Mode::Online));
    let with_client = Bounds {
        direct: true,
        ..online
    };
    let source_crashes = Faults {
        source_crashes: 1,
        ..NONE
    };
    let target_crashes = Faults {
        target_crashes: 1,
        ..NONE
    };
    match mutant {
        Mutant::FenceWithoutBarrier => (FENCE_BEFORE_STOP, with_client),
        Mutant::StopBeforeBarrier => (NO_LOST_WRITE, with_client),
        Mutant::StopAtWalPosition => (
            NO_LOST_WRITE,
            Bounds {
                faults: source_crashes,
                ..with_client
            },
        ),
        Mutant::GateInSnapshot => (FENCE_BEFORE_STOP, with_client),
        Mutant::OpenBeforeDecide => (OPEN_NEEDS_DECISION, online),
        Mutant::DecisionOnBothSides => (
            OPEN_NEEDS_DECISION,
            Bounds {
                routers: 1,
                ..online
            },
        ),
        Mutant::UnfenceWithoutCompareAndSwap => (DECIDE_ONCE, online),
        Mutant::SlotBeforeDurability => (
            NO_LOST_WRITE,
            Bounds {
                faults: target_crashes,
                ..with_client
            },
        ),
        Mutant::MarkerOfEarlierAttempt => (NO_LOST_WRITE, with_client),
        Mutant::RenameWithFallThrough => (NO_MISPLACED_WRITE, with_client),
        Mutant::FailOverLosesFence => (
            SINGLE_OWNER,
            Bounds {
                faults: source_crashes,
                ..online
            },
        ),
        Mutant::DenyNotReverted => (WRITABLE_AGAIN, online),
        Mutant::CancelWithoutLease => (NO_RESURRECTION, online),
        Mutant::LedgerAfterCreation => (LEDGER_COVERS, blocking),
        Mutant::DecideAnyFence => (NEVER_STRANDED, blocking),
        Mutant::OpenCutsTheLookShort => (
            LOOKED_BEHIND,
            Bounds {
                faults: Faults {
                    lost_messages: 1,
                    ..NONE
                },
                ..online
            },
        ),
        Mutant::PublishedBeforeDurable => (
            DROP_SAFE,
            Bounds {
                fences: 1,
                faults: target_crashes,
                ..online
            },
        ),
        Mutant::AsynchronousControl => (
            NEVER_STRANDED,
            Bounds {
                fences: 1,
                faults: source_crashes,
                ..blocking
            },
        ),
    }
}

#[test]
fn every_mutant_is_caught() {
    for mutant in Mutant::ALL {
        let (rule, bounds) = killer(mutant);
        let first = HasDiscoveries::AnyOf(BTreeSet::from([rule]));
        let checker = Protocol {
            bounds,
            mutant: Some(mutant),
        }
        .checker()
        .finish_when(first)
        .spawn_bfs()
        .join();
        assert!(
            checker.discovery(rule).is_some(),
            "{mutant:?} keeps the rule: {rule}"
        );
    }
}

/// Larger bounds, which take an hour. The command and its figures are in docs/model.md.
#[test]
fn wider_bounds_keep_every_promise() {
    if std::env::var("PGSHARD_MODEL").as_deref() != Ok("wide") {
        return;
    }
    for mode in [Mode::Blocking, Mode::Online] {
        let crashes = Faults {
            mover_crashes: 1,
            ..NONE
        };
        let told = Faults {
            stops: 1,
            lost_messages: 1,
            ..crashes
        };
        let failing_hosts = Faults {
            source_crashes: 1,
            target_crashes: 1,
            ..crashes
        };
        for bounds in [
            Bounds {
                held: true,
                direct: true,
                faults: told,
                ..bounds(mode)
            },
            Bounds {
                movers: 3,
                faults: crashes,
                ..bounds(mode)
            },
            Bounds {
                routers: 2,
                direct: true,
                faults: crashes,
                ..bounds(mode)
            },
            Bounds {
                direct: true,
                faults: failing_hosts,
                ..bounds(mode)
            },
        ] {
            let worlds = keeps_its_rules(bounds);
            writeln!(std::io::stdout(), "{worlds} worlds: {bounds:?}")
                .expect("the figures are printed");
        }
    }
}
