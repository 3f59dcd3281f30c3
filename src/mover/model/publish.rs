//! A small model of when a table is published, relative to its slot and to the transactions that
//! are running.
//!
//! Two transactions write a row each before and after anything that the mover does, and commit or
//! roll back at any time. A change is in the stream iff its table was published when it was written
//! to the WAL, and its transaction commits once the slot is consistent. Only the creation of a slot
//! waits for transactions; ALTER PUBLICATION waits for none. Releases of PostgreSQL before May 2025
//! use what was published at the transaction's first change for all its changes.
//!
//! The rule: once everything is applied, the copy has what the source has.

use stateright::{Model, Property};

use crate::exploration::{breaks, keeps_its_rules};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// A table is added to the publication of an existing slot, and its rows are read immediately.
    AddAndRead,
    /// The running transactions are waited for first, and then the table is added.
    WaitAndAdd,
    /// A new slot is created before the table is in its publication.
    SlotFirst,
}

/// What the mover finds when it begins with the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    /// The slot of its group exists: the other shards continued while this one could not be
    /// prepared.
    Slot,
}

/// How the release decodes what a transaction does after the publication, if it began before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Release {
    Old,
    New,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum TransactionState {
    NotBegun,
    Running,
    Ended,
}

const WRITES: u8 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Transaction {
    state: TransactionState,
    writes: u8,
    /// Which of its writes were made while the table was published, as bits.
    published: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Slot {
    None,
    /// Waits for these transactions, as bits.
    Making(u8),
    Made,
}

/// What the mover does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Publish,
    MakeSlot,
    AwaitSlot,
    Look,
    /// Waits until these transactions have ended, as bits.
    Wait(u8),
    Read,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    transactions: [Transaction; 2],
    published: bool,
    slot: Slot,
    mover: At,
    /// What is committed at the source, as bits.
    source: u8,
    /// What is at the target.
    target: u8,
    /// The transactions that the copy's snapshot does not see, as bits.
    unseen: u8,
    /// Whether a change was in the copy, and whether one came by the stream.
    copied: bool,
    streamed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Write(usize),
    Commit(usize),
    RollBack(usize),
    Mover,
}

struct Rule {
    found: Found,
    release: Release,
    mutant: Option<Mutant>,
}

fn running(world: &World) -> u8 {
    let bit = |(n, transaction): (usize, &Transaction)| {
        u8::from(transaction.state == TransactionState::Running) << n
    };
    world.transactions.iter().enumerate().map(bit).sum()
}

impl Rule {
    fn first(&self) -> At {
        match (self.found, self.mutant) {
            (Found::Nothing, Some(Mutant::SlotFirst)) => At::MakeSlot,
            (Found::Slot, Some(Mutant::WaitAndAdd)) => At::Look,
            _ => At::Publish,
        }
    }

    fn mover(&self, world: &mut World) -> Option<()> {
        world.mover = match world.mover {
            At::Publish => {
                world.published = true;
                match (self.found, self.mutant) {
                    (_, Some(Mutant::AddAndRead | Mutant::WaitAndAdd | Mutant::SlotFirst)) => {
                        At::Read
                    }
                    (Found::Nothing, None) => At::MakeSlot,
                    (Found::Slot, None) => At::Look,
                }
            }
            At::MakeSlot => {
                world.slot = Slot::Making(running(world));
                At::AwaitSlot
            }
            At::AwaitSlot => {
                let Slot::Making(older) = world.slot else {
                    return None;
                };
                if older & running(world) != 0 {
                    return None;
                }
                world.slot = Slot::Made;
                if self.mutant == Some(Mutant::SlotFirst) {
                    At::Publish
                } else {
                    At::Read
                }
            }
            At::Look => At::Wait(running(world)),
            At::Wait(older) if older & running(world) != 0 => return None,
            At::Wait(_) if self.mutant == Some(Mutant::WaitAndAdd) => At::Publish,
            At::Wait(_) => At::Read,
            At::Read => {
                world.target = world.source;
                world.copied = world.source != 0;
                let unseen = |(n, transaction): (usize, &Transaction)| {
                    u8::from(transaction.state != TransactionState::Ended) << n
                };
                world.unseen = world.transactions.iter().enumerate().map(unseen).sum();
                At::Done
            }
            At::Done => return None,
        };
        Some(())
    }

    fn commit(&self, world: &mut World, n: usize) {
        let Transaction {
            writes, published, ..
        } = world.transactions[n];
        let all = (1 << writes) - 1;
        let sent = match (world.slot, self.release) {
            (Slot::None | Slot::Making(_), _) => 0,
            (Slot::Made, Release::New) => published,
            (Slot::Made, Release::Old) if published & 1 == 0 => 0,
            (Slot::Made, Release::Old) => all,
        };
        world.transactions[n].state = TransactionState::Ended;
        let place = n as u8 * WRITES;
        world.source |= all << place;
        // What is in the stream before the copy exists is skipped or applied later: only the
        // snapshot decides.
        if world.mover == At::Done && world.unseen & 1 << n != 0 {
            world.target |= sent << place;
            world.streamed |= sent != 0;
        }
    }
}

fn is_level(world: &World) -> bool {
    world.mover == At::Done && running(world) == 0
}

const EXACT: &str = "once everything is applied, the copy is the source";

impl Model for Rule {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let slot = match self.found {
            Found::Nothing => Slot::None,
            Found::Slot => Slot::Made,
        };
        vec![World {
            transactions: [Transaction {
                state: TransactionState::NotBegun,
                writes: 0,
                published: 0,
            }; 2],
            published: false,
            slot,
            mover: self.first(),
            source: 0,
            target: 0,
            unseen: 0,
            copied: false,
            streamed: false,
        }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        for n in 0..2 {
            actions.extend([Action::Write(n), Action::Commit(n), Action::RollBack(n)]);
        }
        actions.push(Action::Mover);
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        match action {
            Action::Write(n) => {
                let transaction = &mut after.transactions[n];
                if transaction.state == TransactionState::Ended || transaction.writes == WRITES {
                    return None;
                }
                transaction.state = TransactionState::Running;
                transaction.published |= u8::from(world.published) << transaction.writes;
                transaction.writes += 1;
            }
            Action::Commit(n) if world.transactions[n].state == TransactionState::Running => {
                self.commit(&mut after, n)
            }
            Action::RollBack(n) if world.transactions[n].state == TransactionState::Running => {
                after.transactions[n].state = TransactionState::Ended;
            }
            Action::Commit(_) | Action::RollBack(_) => return None,
            Action::Mover => self.mover(&mut after)?,
        }
        Some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXACT, |_, w: &World| !is_level(w) || w.target == w.source),
            Property::sometimes(
                "one change is in the copy, another comes by the stream",
                |_, w: &World| w.copied && w.streamed,
            ),
        ]
    }
}

#[test]
fn a_table_is_published_before_anything_of_it_is_read() {
    for found in [Found::Nothing, Found::Slot] {
        for release in [Release::Old, Release::New] {
            keeps_its_rules(
                &format!("publish, {found:?}, {release:?}"),
                Rule {
                    found,
                    release,
                    mutant: None,
                },
            );
        }
    }
}

#[test]
fn every_other_order_is_caught() {
    let wrong = [
        (Found::Slot, Mutant::AddAndRead),
        (Found::Slot, Mutant::WaitAndAdd),
        (Found::Nothing, Mutant::SlotFirst),
    ];
    for (found, mutant) in wrong {
        for release in [Release::Old, Release::New] {
            assert!(
                breaks(
                    Rule {
                        found,
                        release,
                        mutant: Some(mutant)
                    },
                    EXACT
                ),
                "{mutant:?}, {release:?}"
            );
        }
    }
}
