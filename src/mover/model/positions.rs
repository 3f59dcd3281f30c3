//! A small model of positions: two shards of a move share one slot, begin and end at different
//! times, and their target fails over to a standby that lags behind.
//!
//! The slot forgets what was confirmed to it; the target's rows record how far each shard is. The
//! two can disagree: a standby that is promoted has less than its primary confirmed, and a shard
//! with a row that comes later needs what the others no longer need. If the requested start is
//! before the confirmed position, a server silently skips what was confirmed.
//!
//! In reverse replication two readers use the same slot in turn: a feed of both old copies, and a
//! rollback that takes one of them. Each must leave the other what it lacks, because either may end
//! at any moment and come back.
//!
//! The rules: a shard has everything up to its position, or is known to have lost its stream;
//! without a fail-over no shard loses it.

use stateright::{Model, Property};

use crate::exploration::{breaks, keeps_its_rules};
use crate::mover::model::world::Stored;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// A shard that is behind what the slot has confirmed continues from there.
    GoOnAtConfirmed,
    /// The position of the followed shards is confirmed to the slot, whatever other readers need.
    LeaveOutTheOthers,
    /// The confirmed position is read while the former connection may still confirm something.
    AskBeforeItIsFree,
    /// A shard that has failed is forgotten: the slot advances without it, and so does the shard
    /// when it is followed again.
    ForgetTheFailed,
    /// A feed continues with one old copy while a rollback has the other.
    FeedBesideARollback,
    /// A rollback confirms the position of its own shard, whatever the old copy that is fed lacks.
    ForgetTheFed,
}

/// A shard at the target, as one transaction writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TargetState {
    /// It has no row yet: not copied, or, for reverse replication, not opened.
    None,
    Open {
        /// How many records of the source's log are applied.
        applied: u8,
        /// Which of them it has, as bits.
        rows: u8,
    },
    Ended {
        rows: u8,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Worker {
    Down,
    /// It has read the positions of the shards, and the slot's confirmed position.
    Asked {
        confirmed: u8,
    },
    Up {
        position: u8,
        /// The positions that it keeps for shards that it does not follow.
        others: [Option<u8>; 2],
        follows: [bool; 2],
    },
}

const RECORDS: u8 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The shard of each commit.
    log: [u8; RECORDS as usize],
    length: u8,
    confirmed: u8,
    /// What the worker has confirmed and the server has not read yet.
    on_its_way: Option<u8>,
    /// `durable`: what the standby has.
    target: Stored<[TargetState; 2]>,
    worker: Worker,
    /// A rollback has the first shard: the worker is that rollback.
    taken: bool,
    lost: [bool; 2],
    failed_over: bool,
    left: Troubles,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Write(u8),
    /// The shard's row is written.
    Begin(usize),
    End(usize),
    Worker,
    /// All followed shards are raised to the worker's position.
    Raise,
    Tell,
    /// The server reads what was confirmed to it.
    Hear,
    Replicate,
    /// A worker that does not follow all open shards starts again.
    Round,
    FailOver,
    RestartWorker,
    /// A shard fails for a reason of its own, and the next worker follows it again.
    Fault(usize),
    /// A rollback takes the first shard, and the slot from its reader.
    Take,
    /// The feed begins, whatever a rollback has.
    FeedBeside,
}

/// What goes wrong, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Troubles {
    fail_overs: u8,
    restarts: u8,
    /// Shards that fail for reasons of their own.
    faults: u8,
    /// Rollbacks that take the first shard.
    rollbacks: u8,
}

const NONE: Troubles = Troubles {
    fail_overs: 0,
    restarts: 0,
    faults: 0,
    rollbacks: 0,
};
const FAIL_OVER: Troubles = Troubles {
    fail_overs: 1,
    ..NONE
};
const RESTARTS: Troubles = Troubles {
    restarts: 1,
    faults: 1,
    ..NONE
};
const ROLLBACK: Troubles = Troubles {
    restarts: 2,
    rollbacks: 1,
    ..NONE
};

struct Rule {
    troubles: Troubles,
    mutant: Option<Mutant>,
}

impl World {
    /// The records of a shard among the first ones, as bits.
    fn of(&self, shard: usize, first: u8) -> u8 {
        let is_its = |at: &u8| usize::from(self.log[usize::from(*at)]) == shard;
        (0..first).filter(is_its).map(|at| 1 << at).sum()
    }
}

impl Rule {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// The worker's next step.
    fn worker(&self, world: &mut World) -> Option<()> {
        match world.worker {
            // The walsender of the former connection is gone first, with everything that it had not
            // read.
            Worker::Down => {
                if !self.is(Mutant::AskBeforeItIsFree) {
                    world.on_its_way = None;
                }
                world.worker = Worker::Asked {
                    confirmed: world.confirmed,
                };
            }
            Worker::Asked { confirmed } => self.begin(world, confirmed),
            Worker::Up {
                position,
                others,
                follows,
            } => {
                if position >= world.length {
                    return None;
                }
                let shard = usize::from(world.log[usize::from(position)]);
                if let TargetState::Open { applied, rows } = &mut world.target.live[shard]
                    && follows[shard]
                    && *applied <= position
                {
                    (*applied, *rows) = (position + 1, *rows | 1 << position);
                }
                world.worker = Worker::Up {
                    position: position + 1,
                    others,
                    follows,
                };
            }
        }
        Some(())
    }

    fn begin(&self, world: &mut World, confirmed: u8) {
        let (mut others, mut follows, mut from) = ([None; 2], [false; 2], world.length);
        for shard in 0..2 {
            match world.target.live[shard] {
                TargetState::Open { .. } | TargetState::None if world.lost[shard] => {}
                // A rollback has only the first; its feed finds out whether the other lacks
                // something.
                TargetState::Open { applied, .. } if world.taken && shard == 1 => {
                    others[shard] = (!self.is(Mutant::ForgetTheFed)).then_some(applied);
                }
                TargetState::Open { applied, .. }
                    if applied < confirmed && !self.is(Mutant::GoOnAtConfirmed) =>
                {
                    world.lost[shard] = true;
                }
                TargetState::Open { applied, .. } => {
                    follows[shard] = true;
                    from = from.min(applied);
                }
                TargetState::None if self.is(Mutant::LeaveOutTheOthers) => {}
                TargetState::None => others[shard] = Some(confirmed),
                TargetState::Ended { .. } => {}
            }
        }
        // The server sends from its confirmed position, whatever start is requested.
        world.worker = Worker::Up {
            position: from.max(world.confirmed),
            others,
            follows,
        };
    }

    /// The position up to which the slot may forget: what all that still need it have.
    fn told(&self, world: &World) -> Option<u8> {
        let Worker::Up {
            position,
            others,
            follows,
        } = world.worker
        else {
            return None;
        };
        let followed = (0..2).filter(|shard| follows[*shard]).filter_map(|shard| {
            match world.target.live[shard] {
                TargetState::Open { applied, .. } => Some(applied),
                TargetState::None | TargetState::Ended { .. } => None,
            }
        });
        Some(
            followed
                .chain(others.into_iter().flatten())
                .min()
                .unwrap_or(position),
        )
    }

    /// A shard that has everything opens, and no longer needs the stream.
    fn end(&self, world: &mut World, shard: usize) -> Option<()> {
        let Worker::Up {
            position,
            others,
            follows,
        } = world.worker
        else {
            return None;
        };
        let TargetState::Open { applied, rows } = world.target.live[shard] else {
            return None;
        };
        let all = applied == world.length || position == world.length;
        if !all || !follows[shard] {
            return None;
        }
        world.target.live[shard] = TargetState::Ended { rows };
        // The open is a commit that waits for every standby that may be promoted.
        world.target.flush();
        let mut follows = follows;
        follows[shard] = false;
        world.worker = Worker::Up {
            position,
            others,
            follows,
        };
        if world.taken {
            (world.taken, world.worker) = (false, Worker::Down);
        }
        Some(())
    }

    fn happen(&self, world: &mut World, action: Action) -> Option<()> {
        match action {
            Action::Write(shard) => {
                let ended = matches!(
                    world.target.live[usize::from(shard)],
                    TargetState::Ended { .. }
                );
                if world.length == RECORDS || ended {
                    return None;
                }
                world.log[usize::from(world.length)] = shard;
                world.length += 1;
            }
            Action::Begin(shard) if world.target.live[shard] == TargetState::None => {
                let rows = world.of(shard, world.length);
                world.target.live[shard] = TargetState::Open {
                    applied: world.length,
                    rows,
                };
            }
            // The feed looks from time to time and sees that there is another shard.
            Action::Round => {
                let Worker::Up { follows, .. } = world.worker else {
                    return None;
                };
                if world.taken {
                    return None;
                }
                let unknown = |n: &usize| !follows[*n] && !world.lost[*n] && is_open(world, *n);
                (0..2).find(unknown)?;
                world.worker = Worker::Down;
            }
            Action::End(shard) => self.end(world, shard)?,
            Action::Take => {
                let open = is_open(world, 0) && !world.lost[0];
                world.left.rollbacks = world.left.rollbacks.checked_sub(1).filter(|_| open)?;
                (world.taken, world.worker) = (true, Worker::Down);
            }
            Action::FeedBeside => {
                let TargetState::Open { applied, .. } = world.target.live[1] else {
                    return None;
                };
                if !world.taken || !self.is(Mutant::FeedBesideARollback) {
                    return None;
                }
                let position = applied.max(world.confirmed);
                world.worker = Worker::Up {
                    position,
                    others: [None; 2],
                    follows: [false, true],
                };
            }
            Action::Worker => self.worker(world)?,
            Action::Raise => {
                let Worker::Up {
                    position, follows, ..
                } = world.worker
                else {
                    return None;
                };
                for shard in (0..2).filter(|shard| follows[*shard]) {
                    if let TargetState::Open { applied, .. } = &mut world.target.live[shard] {
                        *applied = position.max(*applied);
                    }
                }
            }
            Action::Tell => {
                world.on_its_way = self
                    .told(world)
                    .filter(|told| *told > world.confirmed)
                    .or(world.on_its_way)
            }
            Action::Hear => world.confirmed = world.confirmed.max(world.on_its_way.take()?),
            Action::Replicate => world.target.flush(),
            Action::FailOver => {
                world.left.fail_overs = world.left.fail_overs.checked_sub(1)?;
                world.failed_over |= world.target.live != world.target.durable;
                world.target.crash();
                world.worker = Worker::Down;
            }
            Action::RestartWorker => {
                world.left.restarts = world.left.restarts.checked_sub(1)?;
                world.worker = Worker::Down;
            }
            Action::Fault(shard) => {
                let Worker::Up {
                    position,
                    mut others,
                    mut follows,
                } = world.worker
                else {
                    return None;
                };
                let TargetState::Open { applied, .. } = world.target.live[shard] else {
                    return None;
                };
                world.left.faults = world
                    .left
                    .faults
                    .checked_sub(u8::from(follows[shard]))
                    .filter(|_| follows[shard])?;
                follows[shard] = false;
                others[shard] = (!self.is(Mutant::ForgetTheFailed)).then_some(applied);
                world.worker = Worker::Up {
                    position,
                    others,
                    follows,
                };
            }
            Action::Begin(_) => return None,
        }
        Some(())
    }
}

const WHOLE: &str = "a shard has everything up to its position";
const NEVER_LOST: &str = "without a fail-over no shard loses its stream";

fn is_open(world: &World, shard: usize) -> bool {
    matches!(world.target.live[shard], TargetState::Open { .. })
}

fn ended(world: &World, shard: usize) -> bool {
    matches!(world.target.live[shard], TargetState::Ended { .. })
}

fn is_whole(world: &World, shard: usize) -> bool {
    match world.target.live[shard] {
        TargetState::None => true,
        TargetState::Open { applied, rows } => {
            world.lost[shard] || rows == world.of(shard, applied)
        }
        TargetState::Ended { rows } => rows == world.of(shard, world.length),
    }
}

impl Model for Rule {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let places = [
            TargetState::Open {
                applied: 0,
                rows: 0,
            },
            TargetState::None,
        ];
        vec![World {
            log: [0; RECORDS as usize],
            length: 0,
            confirmed: 0,
            on_its_way: None,
            target: Stored::new(places),
            worker: Worker::Down,
            taken: false,
            lost: [false; 2],
            failed_over: false,
            left: self.troubles,
        }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        actions.extend([
            Action::Write(0),
            Action::Write(1),
            Action::Begin(1),
            Action::End(0),
            Action::End(1),
        ]);
        actions.extend([
            Action::Worker,
            Action::Raise,
            Action::Tell,
            Action::Hear,
            Action::Replicate,
        ]);
        actions.extend([
            Action::Round,
            Action::FailOver,
            Action::RestartWorker,
            Action::Fault(0),
            Action::Fault(1),
        ]);
        actions.extend([Action::Take, Action::FeedBeside]);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        self.happen(&mut after, action)?;
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::always(WHOLE, |_, w: &World| is_whole(w, 0) && is_whole(w, 1)),
            Property::always(NEVER_LOST, |_, w: &World| {
                w.failed_over || w.lost == [false; 2]
            }),
            Property::sometimes(
                "both end, the second with changes of its own after that",
                |_, w: &World| {
                    ended(w, 0)
                        && ended(w, 1)
                        && w.log[usize::from(RECORDS - 1)] == 1
                        && w.length == RECORDS
                },
            ),
        ];
        if self.troubles.fail_overs > 0 {
            all.push(Property::sometimes(
                "a lost stream is noticed",
                |_, w: &World| w.lost != [false; 2],
            ));
            all.push(Property::sometimes(
                "a shard goes on after a fail-over",
                |_, w: &World| w.failed_over && ended(w, 0),
            ));
        }
        if self.troubles.rollbacks > 0 {
            all.push(Property::sometimes(
                "the feed goes on once the rollback has ended",
                |_, w: &World| {
                    w.left.rollbacks == 0
                        && ended(w, 0)
                        && matches!(
                            w.worker,
                            Worker::Up {
                                follows: [false, true],
                                ..
                            }
                        )
                },
            ));
        }
        all
    }
}

#[test]
fn shards_that_share_a_slot() {
    for troubles in [FAIL_OVER, RESTARTS, ROLLBACK] {
        keeps_its_rules(
            &format!("positions, {troubles:?}"),
            Rule {
                troubles,
                mutant: None,
            },
        );
    }
}

#[test]
fn every_other_rule_about_positions_is_caught() {
    for (mutant, rule, troubles) in [
        (Mutant::GoOnAtConfirmed, WHOLE, FAIL_OVER),
        (Mutant::LeaveOutTheOthers, NEVER_LOST, RESTARTS),
        (Mutant::AskBeforeItIsFree, WHOLE, FAIL_OVER),
        (Mutant::ForgetTheFailed, NEVER_LOST, RESTARTS),
        (Mutant::FeedBesideARollback, NEVER_LOST, ROLLBACK),
        (Mutant::ForgetTheFed, NEVER_LOST, ROLLBACK),
    ] {
        let caught = breaks(
            Rule {
                troubles,
                mutant: Some(mutant),
            },
            rule,
        );
        assert!(caught, "{mutant:?} keeps the rule: {rule}");
    }
}
