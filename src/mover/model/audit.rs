//! A small model for the audit at the end of a move. What the source had at the marker is compared
//! with what the target had before its first foreign write, while the application writes at the
//! target and the old copy is fed.
//!
//! The applier may lose a change, for any reason, and this must be noticed before the old copy is
//! dropped. And whatever is reported as a difference must be one: writes on one side only are never
//! mistaken for it.

use stateright::{Model, Property};

use crate::exploration::{breaks, keeps_its_rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// The source's snapshot is taken when the fence is set, while a writer is still in flight.
    SourceBeforeBarrier,
    /// The target's snapshot is taken once it serves.
    TargetAfterOpen,
    /// The target's snapshot is taken before the last changes are there.
    TargetBeforeDrain,
    /// Both are read in their present state.
    NoSnapshots,
    /// `complete` does not wait for the audit.
    CompleteUnasked,
    /// If a mover dies before it has audited, the move counts as audited.
    DeathIsConsent,
}

/// What the mover does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Swap,
    Barrier,
    ReadSource,
    Mark,
    Drain,
    ReadTarget,
    Open,
    Compare,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Audit {
    None,
    Same,
    Differs,
}

/// A writer at the source that began before the swap.
const EARLY: u8 = 1;
/// One that commits before the fence.
const BEFORE: u8 = 2;
/// The application's write at the target.
const FOREIGN: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    at: At,
    /// Whether the writer holds its lock.
    in_flight: bool,
    source: u8,
    target: u8,
    /// What the snapshots see.
    seen: (Option<u8>, Option<u8>),
    /// What the stream has brought, or lost.
    streamed: u8,
    losses: u8,
    deaths: u8,
    opened: bool,
    /// The truth: whether something was missing when the target opened.
    lacking: bool,
    audit: Audit,
    completed: bool,
    wrote: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Mover,
    /// The writer that began before the swap commits.
    Commit,
    Apply(u8),
    /// The applier loses a change.
    Lose(u8),
    /// The application writes at the target.
    Write,
    /// The old copy is fed with that write.
    Feed,
    Die,
    Complete,
}

struct Rule {
    mutant: Option<Mutant>,
}

impl Rule {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn mover(&self, world: &mut World) -> Option<()> {
        world.at = match world.at {
            At::Swap => {
                if self.is(Mutant::SourceBeforeBarrier) {
                    world.seen.0 = Some(world.source);
                }
                if self.is(Mutant::TargetBeforeDrain) {
                    world.seen.1 = Some(world.target);
                }
                At::Barrier
            }
            At::Barrier if world.in_flight => return None,
            At::Barrier => At::ReadSource,
            At::ReadSource => {
                world.seen.0 = world.seen.0.or(Some(world.source));
                At::Mark
            }
            At::Mark => At::Drain,
            At::Drain if world.streamed != world.source => return None,
            At::Drain if self.is(Mutant::TargetAfterOpen) => At::Open,
            At::Drain => At::ReadTarget,
            At::ReadTarget => {
                world.seen.1 = world.seen.1.or(Some(world.target));
                if world.opened { At::Compare } else { At::Open }
            }
            At::Open => {
                world.opened = true;
                world.lacking = world.target != world.source;
                if self.is(Mutant::TargetAfterOpen) {
                    At::ReadTarget
                } else {
                    At::Compare
                }
            }
            At::Compare => {
                let (source, target) = match world.seen {
                    (Some(source), Some(target)) if !self.is(Mutant::NoSnapshots) => {
                        (source, target)
                    }
                    _ => (world.source, world.target),
                };
                world.audit = if source == target {
                    Audit::Same
                } else {
                    Audit::Differs
                };
                At::Done
            }
            At::Done => return None,
        };
        Some(())
    }

    fn happen(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Mover => self.mover(world)?,
            Action::Commit if world.in_flight => {
                world.in_flight = false;
                world.source |= EARLY;
            }
            Action::Apply(change) | Action::Lose(change)
                if world.source & !world.streamed & change != 0 && !world.opened =>
            {
                world.streamed |= change;
                match action {
                    Action::Lose(_) => world.losses = world.losses.checked_sub(1)?,
                    _ => world.target |= change,
                }
            }
            Action::Write if world.opened && !world.wrote => {
                world.wrote = true;
                world.target |= FOREIGN;
            }
            Action::Feed if world.target & FOREIGN != 0 => world.source |= FOREIGN,
            Action::Die if world.opened && world.at != At::Done => {
                world.deaths = world.deaths.checked_sub(1)?;
                world.at = At::Done;
                if self.is(Mutant::DeathIsConsent) {
                    world.audit = Audit::Same;
                }
            }
            Action::Complete if world.at == At::Done => {
                if world.audit != Audit::Same && !self.is(Mutant::CompleteUnasked) {
                    return None;
                }
                world.completed = true;
            }
            _ => return None,
        }
        Some(())
    }
}

const NOTICED: &str = "what is missing at the target is noticed before the old copy is dropped";
const NO_FALSE_ALARM: &str = "what is told as a difference is one";

impl Model for Rule {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World {
            at: At::Swap,
            in_flight: true,
            source: BEFORE,
            target: 0,
            seen: (None, None),
            streamed: 0,
            losses: 1,
            deaths: 1,
            opened: false,
            lacking: false,
            audit: Audit::None,
            completed: false,
            wrote: false,
        }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        actions.extend([
            Action::Mover,
            Action::Commit,
            Action::Write,
            Action::Feed,
            Action::Die,
            Action::Complete,
        ]);
        for change in [EARLY, BEFORE] {
            actions.extend([Action::Apply(change), Action::Lose(change)]);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        self.happen(&mut after, action)?;
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NOTICED, |_, w: &World| {
                !(w.lacking && (w.completed || w.audit == Audit::Same))
            }),
            Property::always(NO_FALSE_ALARM, |_, w: &World| {
                w.lacking || w.audit != Audit::Differs
            }),
            Property::sometimes(
                "a difference is found while the application writes",
                |_, w: &World| w.wrote && w.audit == Audit::Differs,
            ),
            Property::sometimes("a move is audited and completed", |_, w: &World| {
                w.wrote && w.completed
            }),
            Property::sometimes("a mover dies before the audit", |_, w: &World| {
                w.at == At::Done && w.audit == Audit::None
            }),
        ]
    }
}

#[test]
fn the_audit_finds_what_is_missing_and_nothing_else() {
    keeps_its_rules("audit", Rule { mutant: None });
}

#[test]
fn every_other_audit_is_caught() {
    for (mutant, rule) in [
        (Mutant::SourceBeforeBarrier, NO_FALSE_ALARM),
        (Mutant::SourceBeforeBarrier, NOTICED),
        (Mutant::TargetAfterOpen, NO_FALSE_ALARM),
        (Mutant::TargetBeforeDrain, NO_FALSE_ALARM),
        (Mutant::NoSnapshots, NO_FALSE_ALARM),
        (Mutant::CompleteUnasked, NOTICED),
        (Mutant::DeathIsConsent, NOTICED),
    ] {
        assert!(
            breaks(
                Rule {
                    mutant: Some(mutant)
                },
                rule
            ),
            "{mutant:?} keeps the rule: {rule}"
        );
    }
}
