//! A small model of who may take a move over, and what happens to the mover that had it.
//!
//! Two shards of a move belong to one mover. Others come at any moment with `resume`: while it
//! works, sleeps, has ended with one shard and not with the other, has died, or is stopping. Safety
//! does not depend on any of this (the large model has the compare-and-swap on the lease in every
//! statement). The rules here are that a mover that is alive is left alone, and that a mover that
//! reports success leaves no shards without a mover.

use stateright::{Model, Property};

use crate::exploration::{breaks, keeps_its_rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// There is a sign of life for each shard, instead of one for the mover: a shard that has ended
    /// has none.
    SignOfLifePerShard,
    /// A mover that sleeps counts as gone.
    SleepersAreGone,
    /// Only one shard is taken over, although the former mover is ended with all of them.
    TakeOneEndAll,
}

const MOVERS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Shard {
    ended: bool,
    lease: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mover {
    /// It has not come yet, or has ended.
    Away,
    /// Its lock is held, and its lease renewed.
    Works,
    /// Its lock is held, and its lease still runs.
    Sleeps,
    /// Its lock is held, and its lease has run out.
    SleepsOn,
    /// Another mover has ended its sessions.
    Cut,
    Dead,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    shards: [Shard; 2],
    movers: [Mover; MOVERS],
    crashes: u8,
    naps: u8,
    asks: u8,
    /// The sessions of a mover that was alive were ended.
    disturbed: bool,
    /// A mover reported success while no mover worked on some of the shards.
    abandoned: bool,
    taken_over: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    /// `resume`.
    Come(usize),
    Work(usize),
    /// `moves stop`, from any machine.
    Ask(usize),
    Sleep(usize),
    LeaseEnds(usize),
    Wake(usize),
    Crash(usize),
}

struct Rule {
    mutant: Option<Mutant>,
}

impl World {
    fn lives(&self, mover: usize) -> bool {
        matches!(self.movers[mover], Mover::Works | Mover::Sleeps)
    }

    fn has_open(&self, mover: usize) -> bool {
        self.shards
            .iter()
            .any(|shard| !shard.ended && shard.lease == mover)
    }
}

impl Rule {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Whether the mover that has this shard gives no sign of life.
    fn is_free(&self, world: &World, shard: Shard) -> bool {
        let slept = self.is(Mutant::SleepersAreGone) && world.movers[shard.lease] == Mover::Sleeps;
        let let_go = self.is(Mutant::SignOfLifePerShard) && shard.ended;
        !world.lives(shard.lease) || slept || let_go
    }

    fn come(&self, world: &mut World, mover: usize) -> Option<()> {
        let any = self.is(Mutant::SignOfLifePerShard);
        let found = world
            .shards
            .iter()
            .position(|shard| (any || !shard.ended) && self.is_free(world, *shard))?;
        let former = world.shards[found].lease;
        if former == mover && any {
            return None;
        }
        for (at, shard) in world.shards.iter_mut().enumerate() {
            let taken = match self.mutant {
                Some(Mutant::SignOfLifePerShard | Mutant::TakeOneEndAll) => at == found,
                _ => !shard.ended,
            };
            if taken {
                shard.lease = mover;
            }
        }
        if former != mover && !matches!(world.movers[former], Mover::Away | Mover::Dead) {
            world.disturbed |= world.lives(former);
            world.movers[former] = Mover::Cut;
        }
        world.movers[mover] = Mover::Works;
        world.taken_over = true;
        Some(())
    }

    fn work(world: &mut World, mover: usize) {
        match world
            .shards
            .iter_mut()
            .find(|shard| !shard.ended && shard.lease == mover)
        {
            Some(shard) => shard.ended = true,
            None => {
                let left = |shard: &Shard| !shard.ended && !world.lives(shard.lease);
                world.abandoned |= world.shards.iter().any(left);
                world.movers[mover] = Mover::Away;
            }
        }
    }

    fn happen(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Come(mover) if world.movers[mover] == Mover::Away => self.come(world, mover)?,
            Action::Work(mover) if world.movers[mover] == Mover::Works => Self::work(world, mover),
            // It finds its sessions ended, and gives up.
            Action::Work(mover) if world.movers[mover] == Mover::Cut => {
                world.movers[mover] = Mover::Away
            }
            Action::Ask(mover) if world.movers[mover] == Mover::Works && world.has_open(mover) => {
                world.asks = world.asks.checked_sub(1)?;
                world.movers[mover] = Mover::Away;
            }
            Action::Sleep(mover) if world.movers[mover] == Mover::Works => {
                world.naps = world.naps.checked_sub(1)?;
                world.movers[mover] = Mover::Sleeps;
            }
            Action::LeaseEnds(mover) if world.movers[mover] == Mover::Sleeps => {
                world.movers[mover] = Mover::SleepsOn
            }
            Action::Wake(mover)
                if matches!(world.movers[mover], Mover::Sleeps | Mover::SleepsOn) =>
            {
                world.movers[mover] = Mover::Works;
            }
            // The last mover belongs to the operator who does not give up.
            Action::Crash(mover) if world.movers[mover] == Mover::Works && mover + 1 < MOVERS => {
                world.crashes = world.crashes.checked_sub(1)?;
                world.movers[mover] = Mover::Dead;
            }
            _ => return None,
        }
        Some(())
    }
}

const LEFT_ALONE: &str = "a mover that lives is left alone";
const NONE_ABANDONED: &str = "nobody is done while a shard is nobody's";
const ALL_END: &str = "in the end every shard has ended";

impl Model for Rule {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut movers = [Mover::Away; MOVERS];
        movers[0] = Mover::Works;
        vec![World {
            shards: [Shard {
                ended: false,
                lease: 0,
            }; 2],
            movers,
            crashes: 1,
            naps: 2,
            asks: 1,
            disturbed: false,
            abandoned: false,
            taken_over: false,
        }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        for mover in 0..MOVERS {
            actions.extend([
                Action::Come(mover),
                Action::Work(mover),
                Action::Ask(mover),
                Action::Sleep(mover),
            ]);
            actions.extend([
                Action::LeaseEnds(mover),
                Action::Wake(mover),
                Action::Crash(mover),
            ]);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        self.happen(&mut after, action)?;
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(LEFT_ALONE, |_, w: &World| !w.disturbed),
            Property::always(NONE_ABANDONED, |_, w: &World| !w.abandoned),
            Property::always(ALL_END, |rule: &Rule, w: &World| {
                let mut actions = Vec::new();
                rule.actions(w, &mut actions);
                let goes_on = actions
                    .into_iter()
                    .any(|action| rule.next_state(w, action).is_some());
                goes_on || w.shards.iter().all(|shard| shard.ended)
            }),
            Property::sometimes(
                "a move is taken over, and comes to its end",
                |_, w: &World| w.taken_over && w.shards.iter().all(|shard| shard.ended),
            ),
            Property::sometimes(
                "one has ended with one shard, and another with the other",
                |_, w: &World| {
                    w.shards[0].lease != w.shards[1].lease
                        && w.shards.iter().all(|shard| shard.ended)
                },
            ),
        ]
    }
}

#[test]
fn a_second_operator_at_any_moment() {
    keeps_its_rules("operators", Rule { mutant: None });
}

#[test]
fn every_other_takeover_is_caught() {
    for (mutant, rule) in [
        (Mutant::SignOfLifePerShard, LEFT_ALONE),
        (Mutant::SignOfLifePerShard, NONE_ABANDONED),
        (Mutant::SleepersAreGone, LEFT_ALONE),
        (Mutant::TakeOneEndAll, NONE_ABANDONED),
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
