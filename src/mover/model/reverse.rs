//! A small model of reverse replication: a shard was moved from A to B, its old copy at A is fed
//! with what B writes, and a rollback may take it back.
//!
//! The slot at B was created before the fence, so the first record in it is one that the mover
//! itself applied at B. A feeder may be slow, stop and start again; A may fail over to a standby
//! that lags; the slot may be given up because it keeps too much; a rollback may be aborted and
//! started again; `complete` may come at any time.

use stateright::{Model, Property};

use crate::exploration::{breaks, keeps_its_rules};
use crate::mover::model::world::Stored;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// The old copy is fed from the beginning of the slot, not from the position where B has
    /// opened.
    FromTheSlotsStart,
    /// A copy that is behind the slot's confirmed position continues from there.
    GoOnAtConfirmed,
    /// The feeder does not check whether the copy is still its own.
    FeedWithoutLease,
    /// A rollback that finds no slot creates one.
    MakeANewSlot,
    /// `complete` does not check whether a rollback has the copy.
    CompleteUnasked,
    /// A rollback decides without waiting for what was written before its fence.
    DecideUndrained,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    Nobody,
    Feed,
    Rollback,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Copy {
    Kept,
    /// A rollback has taken it.
    Taken,
    /// It serves again.
    Opened,
    Dropped,
}

/// What A holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Old {
    copy: Copy,
    owner: Owner,
    rows: u8,
    /// How many of B's records are applied.
    applied: u8,
    /// Whether it is known that it cannot be taken back.
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Serves {
    Yes,
    Fenced,
    Moved,
}

/// What the rollback does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Away,
    Begin,
    CatchUp { position: u8 },
    Drain { position: u8 },
    Open,
    Done,
}

/// The first record is the mover's own, and A has its row.
const OWN: u8 = 1;
const RECORDS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The number of records in B's log. Record n is the row n.
    length: u8,
    serves: Serves,
    /// The slot's confirmed position; `None` if it is gone.
    slot: Option<u8>,
    old: Stored<Old>,
    feed: Option<u8>,
    rollback: At,
    rollbacks: u8,
    /// Writes that were acknowledged, as bits.
    acknowledged: u8,
    /// Whether a change was applied to a row that had it already.
    doubled: bool,
    fail_overs: u8,
    crashes: u8,
    aborted: bool,
    fed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Write,
    FeedBegins,
    Feed,
    FeedStops,
    Tell,
    Rollback,
    Abort,
    Crash,
    Complete,
    /// The slot keeps too much and is given up.
    GiveUp,
    Replicate,
    FailOver,
}

struct Rule {
    mutant: Option<Mutant>,
}

impl Rule {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Where the stream continues; `None` if it cannot, and the copy is known to be lost.
    fn from(&self, world: &mut World) -> Option<u8> {
        let slot = world.slot?;
        let old = &mut world.old.live;
        if old.applied < slot && !self.is(Mutant::GoOnAtConfirmed) {
            old.lost = true;
            return None;
        }
        Some(old.applied.max(slot))
    }

    /// Applies the next record, with the progress by compare-and-swap under the lease.
    fn apply(&self, world: &mut World, position: u8, owner: Owner) -> bool {
        let old = &mut world.old.live;
        let unasked =
            owner == Owner::Feed && self.is(Mutant::FeedWithoutLease) && old.copy != Copy::Dropped;
        if !unasked && (old.owner != owner || old.applied > position) {
            return false;
        }
        world.doubled |= old.rows & 1 << position != 0;
        (old.rows, old.applied) = (old.rows | 1 << position, position + 1);
        true
    }

    fn rollback(&self, world: &mut World) -> Option<()> {
        world.rollback = match world.rollback {
            At::Away | At::Done => return None,
            At::Begin => {
                let old = world.old.live;
                if world.slot.is_none() && self.is(Mutant::MakeANewSlot) {
                    world.slot = Some(world.length);
                    world.old.live.applied = world.length;
                }
                let free = matches!(old.copy, Copy::Kept | Copy::Taken) && !old.lost;
                match self.from(world).filter(|_| free) {
                    Some(position) => {
                        (world.old.live.copy, world.old.live.owner) =
                            (Copy::Taken, Owner::Rollback);
                        world.old.flush();
                        At::CatchUp { position }
                    }
                    // It is refused, and what it had taken is given back.
                    None => {
                        give_back(world);
                        At::Away
                    }
                }
            }
            At::CatchUp { position } if position < world.length => {
                let applied = self.apply(world, position, Owner::Rollback);
                if applied {
                    At::CatchUp {
                        position: position + 1,
                    }
                } else {
                    At::Begin
                }
            }
            At::CatchUp { position } => {
                world.serves = Serves::Fenced;
                At::Drain { position }
            }
            At::Drain { position }
                if position < world.length && !self.is(Mutant::DecideUndrained) =>
            {
                let applied = self.apply(world, position, Owner::Rollback);
                if applied {
                    At::Drain {
                        position: position + 1,
                    }
                } else {
                    At::Begin
                }
            }
            // The marker's commit at A is synchronous; then decide at B.
            At::Drain { .. } => {
                world.old.flush();
                world.serves = Serves::Moved;
                At::Open
            }
            At::Open => {
                (world.old.live.copy, world.old.live.owner) = (Copy::Opened, Owner::Nobody);
                world.old.flush();
                world.slot = None;
                At::Done
            }
        };
        Some(())
    }

    fn happen(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            // A writer that began before the fence may still commit: the barrier waits for it, so
            // the drain includes it.
            Action::Write if world.serves == Serves::Yes && world.length < RECORDS => {
                world.acknowledged |= 1 << world.length;
                world.length += 1;
            }
            Action::Write if world.serves == Serves::Fenced && world.length + 1 < RECORDS => {
                world.acknowledged |= 1 << world.length;
                world.length += 1;
            }
            Action::FeedBegins
                if world.feed.is_none()
                    && world.old.live.copy == Copy::Kept
                    && !world.old.live.lost =>
            {
                let position = self.from(world);
                if position.is_some() {
                    world.old.live.owner = Owner::Feed;
                }
                world.feed = position;
            }
            Action::Feed => {
                let position = world
                    .feed
                    .filter(|position| *position < world.length && world.slot.is_some())?;
                let applied = self.apply(world, position, Owner::Feed);
                world.feed = applied.then_some(position + 1);
                world.fed |= applied;
            }
            Action::FeedStops => {
                world.feed.take()?;
            }
            // It confirms what is on its own disk, without asking whether a standby has it.
            Action::Tell if world.feed.is_some() && world.old.live.owner == Owner::Feed => {
                world.slot = Some(world.slot?.max(world.old.live.applied));
            }
            Action::Rollback
                if world.rollback == At::Away && world.old.live.copy != Copy::Dropped =>
            {
                world.rollbacks = world.rollbacks.checked_sub(1)?;
                world.rollback = At::Begin;
            }
            Action::Rollback => self.rollback(world)?,
            Action::Abort
                if matches!(
                    world.rollback,
                    At::Begin | At::CatchUp { .. } | At::Drain { .. }
                ) =>
            {
                give_back(world);
                world.rollback = At::Away;
                world.aborted = true;
            }
            // When it is resumed, fenced or not, it observes from the beginning.
            Action::Crash if matches!(world.rollback, At::CatchUp { .. } | At::Drain { .. }) => {
                world.crashes = world.crashes.checked_sub(1)?;
                self.again(world);
            }
            Action::Complete if world.old.live.copy == Copy::Kept || self.may_drop(world) => {
                (world.old.live.copy, world.slot) = (Copy::Dropped, None);
                world.old.flush();
            }
            Action::GiveUp if world.rollback == At::Away && world.slot.is_some() => {
                world.slot = None
            }
            Action::Replicate => world.old.flush(),
            Action::FailOver => {
                world.fail_overs = world.fail_overs.checked_sub(1)?;
                world.old.crash();
                world.feed = None;
                if matches!(world.rollback, At::CatchUp { .. } | At::Drain { .. }) {
                    self.again(world);
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn may_drop(&self, world: &World) -> bool {
        self.is(Mutant::CompleteUnasked) && world.old.live.copy == Copy::Taken
    }

    fn again(&self, world: &mut World) {
        world.rollback = At::Begin;
        if world.serves == Serves::Fenced {
            world.serves = Serves::Yes;
        }
    }
}

fn give_back(world: &mut World) {
    if world.old.live.copy == Copy::Taken {
        (world.old.live.copy, world.old.live.owner) = (Copy::Kept, Owner::Nobody);
    }
    if world.serves == Serves::Fenced {
        world.serves = Serves::Yes;
    }
}

const WHOLE: &str = "a shard that was taken back has every acknowledged write";
const ONCE: &str = "no change is applied twice, and what came from here does not come back";
const USED: &str = "the old copy is not dropped while a rollback has it";

impl Model for Rule {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let applied = if self.is(Mutant::FromTheSlotsStart) {
            0
        } else {
            OWN
        };
        let old = Old {
            copy: Copy::Kept,
            owner: Owner::Nobody,
            rows: OWN,
            applied,
            lost: false,
        };
        vec![World {
            length: OWN,
            serves: Serves::Yes,
            slot: Some(0),
            old: Stored::new(old),
            feed: None,
            rollback: At::Away,
            rollbacks: 2,
            acknowledged: OWN,
            doubled: false,
            fail_overs: 1,
            crashes: 1,
            aborted: false,
            fed: false,
        }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        actions.extend([
            Action::Write,
            Action::FeedBegins,
            Action::Feed,
            Action::FeedStops,
            Action::Tell,
        ]);
        actions.extend([
            Action::Rollback,
            Action::Abort,
            Action::Crash,
            Action::Complete,
            Action::GiveUp,
        ]);
        actions.extend([Action::Replicate, Action::FailOver]);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        self.happen(&mut after, action)?;
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WHOLE, |_, w: &World| {
                w.old.live.copy != Copy::Opened || w.acknowledged & !w.old.live.rows == 0
            }),
            Property::always(ONCE, |_, w: &World| !w.doubled),
            Property::always(USED, |_, w: &World| {
                w.old.live.copy != Copy::Dropped || matches!(w.rollback, At::Away | At::Begin)
            }),
            Property::sometimes(
                "a copy that was fed is taken back after an abort",
                |_, w: &World| {
                    w.fed && w.aborted && w.old.live.copy == Copy::Opened && w.length == RECORDS
                },
            ),
            Property::sometimes("a copy is known to be lost", |_, w: &World| w.old.live.lost),
            Property::sometimes("a copy is dropped", |_, w: &World| {
                w.old.live.copy == Copy::Dropped
            }),
        ]
    }
}

#[test]
fn shards_that_are_taken_back() {
    keeps_its_rules("reverse", Rule { mutant: None });
}

#[test]
fn every_other_way_to_take_back_is_caught() {
    for (mutant, rule) in [
        (Mutant::FromTheSlotsStart, ONCE),
        (Mutant::GoOnAtConfirmed, WHOLE),
        (Mutant::FeedWithoutLease, ONCE),
        (Mutant::MakeANewSlot, WHOLE),
        (Mutant::CompleteUnasked, USED),
        (Mutant::DecideUndrained, WHOLE),
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
