//! A small model of which changes of the stream are applied to which chunks of the copy.
//!
//! Two chunks with one key each are read at any time, in any order, each under a snapshot of its
//! own, while three transactions write. A commit is in the log before it is visible to others; it
//! may be visible before it is on disk. The rule: a change of transaction X to key k is applied iff
//! the snapshot of k's chunk does not see X. The model uses the very `Snapshot` that the follower
//! uses, and applies strictly: an insert needs that there is no row, an update and a delete need
//! that there is one.
//!
//! A crash of the source undoes what is not on disk, including transaction numbers: PostgreSQL
//! assigns them again. A chunk may be kept only when everything that its snapshot saw is on disk.

use stateright::{Checker, HasDiscoveries, Model, Property};

use crate::mover::copy::snapshot::Snapshot;
use crate::mover::model::world::Stored;

/// What a transaction does, in one statement. The value that it writes is its own number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Change {
    Insert(usize),
    Update(usize),
    Delete(usize),
    /// An UPDATE of the key.
    Rekey(usize, usize),
}

/// What can be done wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// Every change is applied.
    ApplyEverything,
    /// A change is applied iff its commit lies behind the WAL position at which the chunk was read.
    JudgeByPosition,
    /// A change of the key is judged as a whole by the chunk that it leaves.
    JudgeByOldKey,
    /// The number of the subtransaction is looked up, which no snapshot lists.
    JudgeBySubTransaction,
    /// The progress of the stream is written after the changes that it covers.
    ProgressAfterData,
    /// A chunk is kept without waiting for the source's disk.
    KeepBeforeFlush,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Transaction {
    NotBegun,
    /// It has written, and holds its rows' locks.
    Running {
        xid: u64,
    },
    /// Its commit is in the log, but others do not see it yet.
    Logged {
        xid: u64,
    },
    Ended,
}

type Table = [Option<u8>; 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Source {
    next_xid: u64,
    transactions: [Transaction; 3],
    /// What is committed and visible.
    table: Table,
    /// The commits in order: transaction and number.
    log: [Option<(usize, u64)>; 3],
}

impl Source {
    fn commits(&self) -> usize {
        self.log.iter().flatten().count()
    }
}

/// `pg_current_snapshot()`, as numbers, and the end of the log when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Taken {
    xmax: u64,
    running: [Option<u64>; 3],
    position: usize,
}

impl Taken {
    fn sees(&self, xid: u64) -> bool {
        let mut running: Vec<u64> = self.running.into_iter().flatten().collect();
        running.sort_unstable();
        let xmin = running.first().unwrap_or(&self.xmax);
        let running: Vec<String> = running.iter().map(u64::to_string).collect();
        let text = format!("{xmin}:{}:{}", self.xmax, running.join(","));
        Snapshot::parse(&text)
            .expect("a snapshot as PostgreSQL writes it")
            .sees(xid)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Chunk {
    Missing,
    /// Read, and not yet committed at the target.
    Read {
        taken: Taken,
        row: Option<u8>,
    },
    Kept {
        taken: Taken,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct World {
    source: Stored<Source>,
    chunks: [Chunk; 2],
    target: Table,
    /// How many commits are applied by the target's word, and how many by the follower's.
    progress: usize,
    follower: usize,
    diverged: bool,
    crashes: u8,
    restarts: u8,
    /// Whether a change was found in a chunk, and whether one was applied.
    seen: bool,
    applied: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Write(usize),
    Abort(usize),
    Log(usize),
    Show(usize),
    Flush,
    Read(usize),
    Keep(usize),
    Apply,
    /// Only mutants do this.
    Progress,
    RestartFollower,
    CrashSource,
}

struct Rule {
    script: [Change; 3],
    mutant: Option<Mutant>,
}

fn keys(change: Change) -> [usize; 2] {
    match change {
        Change::Insert(key) | Change::Update(key) | Change::Delete(key) => [key, key],
        Change::Rekey(from, to) => [from, to],
    }
}

/// The change as the row that it removes and the row that it adds.
fn parts(change: Change) -> (Option<usize>, Option<usize>) {
    match change {
        Change::Insert(key) => (None, Some(key)),
        Change::Update(key) => (Some(key), Some(key)),
        Change::Delete(key) => (Some(key), None),
        Change::Rekey(from, to) => (Some(from), Some(to)),
    }
}

/// Applies it if the rows are as it needs them.
fn run(table: &mut Table, (takes, puts): (Option<usize>, Option<usize>), value: u8) -> bool {
    let mut after = *table;
    let took = takes.is_none_or(|key| after[key].take().is_some());
    let put = puts.is_none_or(|key| after[key].replace(value).is_none());
    if took && put {
        *table = after;
    }
    took && put
}

impl Rule {
    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    /// Each transaction has a subtransaction, which does the work.
    const NUMBERS: u64 = 2;

    fn write(&self, world: &mut World, n: usize) -> Option<()> {
        let source = &mut world.source.live;
        let held = |other: usize| {
            let at_work = matches!(
                source.transactions[other],
                Transaction::Running { .. } | Transaction::Logged { .. }
            );
            at_work
                && keys(self.script[other])
                    .iter()
                    .any(|key| keys(self.script[n]).contains(key))
        };
        let begins = source.transactions[n] == Transaction::NotBegun && !(0..3).any(held);
        let mut would = source.table;
        if !begins || !run(&mut would, parts(self.script[n]), n as u8) {
            return None;
        }
        source.transactions[n] = Transaction::Running {
            xid: source.next_xid,
        };
        source.next_xid += Self::NUMBERS;
        Some(())
    }

    /// A snapshot has the last number that has ended, and lists those below it that are running. It
    /// does not contain subtransactions.
    fn snapshot(source: &Source) -> Taken {
        let running = source.transactions.map(|transaction| match transaction {
            Transaction::Running { xid } | Transaction::Logged { xid } => Some(xid),
            Transaction::NotBegun | Transaction::Ended => None,
        });
        Taken {
            xmax: source.next_xid,
            running,
            position: source.commits(),
        }
    }

    fn apply(&self, world: &mut World) -> Option<()> {
        let [Chunk::Kept { taken: first }, Chunk::Kept { taken: second }] = world.chunks else {
            return None;
        };
        let (n, xid) = *world.source.durable.log.get(world.follower)?.as_ref()?;
        let position = world.follower;
        let unseen = |key: usize| {
            let taken = [first, second][key];
            match self.mutant {
                Some(Mutant::ApplyEverything) => true,
                Some(Mutant::JudgeByPosition) => position >= taken.position,
                Some(Mutant::JudgeBySubTransaction) => !taken.sees(xid + 1),
                _ => !taken.sees(xid),
            }
        };
        let (takes, puts) = parts(self.script[n]);
        let by_old_key = self.is(Mutant::JudgeByOldKey);
        let put_by = if by_old_key { takes.or(puts) } else { puts };
        let wanted = (
            takes.filter(|key| unseen(*key)),
            puts.filter(|_| put_by.is_some_and(unseen)),
        );
        world.seen |= wanted == (None, None);
        world.applied |= wanted != (None, None);
        world.diverged |= !run(&mut world.target, wanted, n as u8);
        world.follower += 1;
        if !self.is(Mutant::ProgressAfterData) {
            world.progress = world.follower;
        }
        Some(())
    }

    fn happen(&self, world: &mut World, action: Action) -> Option<()> {
        let source = &mut world.source;
        match action {
            Action::Write(n) => self.write(world, n)?,
            Action::Abort(n) => {
                let Transaction::Running { .. } = source.live.transactions[n] else {
                    return None;
                };
                source.live.transactions[n] = Transaction::Ended;
            }
            Action::Log(n) => {
                let Transaction::Running { xid } = source.live.transactions[n] else {
                    return None;
                };
                source.live.transactions[n] = Transaction::Logged { xid };
                let end = source.live.commits();
                source.live.log[end] = Some((n, xid));
            }
            Action::Show(n) => {
                let Transaction::Logged { .. } = source.live.transactions[n] else {
                    return None;
                };
                source.live.transactions[n] = Transaction::Ended;
                run(&mut source.live.table, parts(self.script[n]), n as u8);
            }
            Action::Flush => source.flush(),
            Action::Read(key) => {
                let Chunk::Missing = world.chunks[key] else {
                    return None;
                };
                let taken = Self::snapshot(&source.live);
                world.chunks[key] = Chunk::Read {
                    taken,
                    row: source.live.table[key],
                };
            }
            Action::Keep(key) => {
                let Chunk::Read { taken, row } = world.chunks[key] else {
                    return None;
                };
                if !self.is(Mutant::KeepBeforeFlush) {
                    source.flush();
                }
                world.chunks[key] = Chunk::Kept { taken };
                world.target[key] = row;
            }
            Action::Apply => self.apply(world)?,
            Action::Progress => world.progress = world.follower,
            Action::RestartFollower => {
                world.restarts = world.restarts.checked_sub(1)?;
                world.follower = world.progress;
            }
            Action::CrashSource => {
                world.crashes = world.crashes.checked_sub(1)?;
                source.crash();
                for n in 0..3 {
                    match source.live.transactions[n] {
                        Transaction::Running { .. } => {
                            source.live.transactions[n] = Transaction::Ended
                        }
                        // Its commit is on disk: recovery makes it visible.
                        Transaction::Logged { .. } => {
                            source.live.transactions[n] = Transaction::Ended;
                            run(&mut source.live.table, parts(self.script[n]), n as u8);
                        }
                        Transaction::NotBegun | Transaction::Ended => {}
                    }
                }
                source.flush();
                // The session that was reading is gone.
                for chunk in &mut world.chunks {
                    if matches!(chunk, Chunk::Read { .. }) {
                        *chunk = Chunk::Missing;
                    }
                }
            }
        }
        Some(())
    }

    /// Whether the copy has everything that the source has committed, and nothing is under way.
    fn is_level(&self, world: &World) -> bool {
        let live = &world.source.live;
        let logged = live
            .transactions
            .iter()
            .any(|t| matches!(t, Transaction::Logged { .. }));
        let kept = world
            .chunks
            .iter()
            .all(|chunk| matches!(chunk, Chunk::Kept { .. }));
        kept && !logged && world.follower == live.commits()
    }
}

const EXACT: &str = "once everything is applied, the copy is the source";
const STRICT: &str = "no change finds other rows than it was made on";

impl Model for Rule {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let source = Source {
            next_xid: 10,
            transactions: [Transaction::NotBegun; 3],
            table: [Some(9), None],
            log: [None; 3],
        };
        vec![World {
            source: Stored::new(source),
            chunks: [Chunk::Missing; 2],
            target: [None; 2],
            progress: 0,
            follower: 0,
            diverged: false,
            crashes: 1,
            restarts: 1,
            seen: false,
            applied: false,
        }]
    }

    fn actions(&self, _: &World, actions: &mut Vec<Action>) {
        for n in 0..3 {
            actions.extend([
                Action::Write(n),
                Action::Abort(n),
                Action::Log(n),
                Action::Show(n),
            ]);
        }
        actions.extend([0, 1].map(Action::Read));
        actions.extend([0, 1].map(Action::Keep));
        actions.extend([
            Action::Flush,
            Action::Apply,
            Action::RestartFollower,
            Action::CrashSource,
        ]);
        if self.is(Mutant::ProgressAfterData) {
            actions.push(Action::Progress);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut after = *world;
        self.happen(&mut after, action)?;
        (after != *world).then_some(after)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXACT, |rule: &Rule, w: &World| {
                !rule.is_level(w) || w.target == w.source.live.table
            }),
            Property::always(STRICT, |_, w: &World| !w.diverged),
            Property::sometimes(
                "one change is in the copy, another is applied",
                |_, w: &World| w.seen && w.applied,
            ),
        ]
    }
}

/// Changes of one row, from chunk to chunk and back, out of the table and in again.
const SCRIPTS: [[Change; 3]; 4] = [
    [Change::Update(0), Change::Rekey(0, 1), Change::Update(1)],
    [Change::Rekey(0, 1), Change::Rekey(1, 0), Change::Update(0)],
    [Change::Delete(0), Change::Insert(0), Change::Rekey(0, 1)],
    [Change::Insert(1), Change::Update(0), Change::Delete(1)],
];

#[test]
fn every_change_counts_exactly_once() {
    for script in SCRIPTS {
        let checker = Rule {
            script,
            mutant: None,
        }
        .checker()
        .spawn_bfs()
        .join();
        checker.assert_properties();
    }
}

#[test]
fn every_other_rule_is_caught() {
    for (mutant, rule) in [
        (Mutant::ApplyEverything, STRICT),
        (Mutant::JudgeByPosition, EXACT),
        (Mutant::JudgeByOldKey, EXACT),
        (Mutant::JudgeBySubTransaction, EXACT),
        (Mutant::ProgressAfterData, STRICT),
        (Mutant::KeepBeforeFlush, EXACT),
    ] {
        let caught = SCRIPTS.into_iter().any(|script| {
            let first = HasDiscoveries::AnyOf([rule].into());
            let checker = Rule {
                script,
                mutant: Some(mutant),
            }
            .checker()
            .finish_when(first)
            .spawn_bfs()
            .join();
            checker.discovery(rule).is_some()
        });
        assert!(caught, "{mutant:?} keeps the rule: {rule}");
    }
}
