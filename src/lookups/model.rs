//! The claims of look-ups as a model that is explored exhaustively: processes of one owner and of
//! its rivals, deaths between any two statements, rollbacks, commits in doubt, moves of either
//! shard, sweeps, claims that grow too old. The very [`next`] that the driver runs decides what a
//! claimer does.
//!
//! Each transition is one statement or one commit at one shard. A statement that waits for a lock
//! is one that cannot happen yet.

use std::collections::{BTreeMap, BTreeSet};

use stateright::{Model, Property};

use crate::exploration::{breaks, keeps_its_rules};
use crate::lookups::claims::{self, Next, Seen, next};

/// Wrong variants of the protocol, each of which the model must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mutant {
    /// A claimer that meets an entry of its own key takes it without killing its claim.
    OwnClaimNotKilled,
    /// The row is not looked for once the claim is killed, nor before.
    RowNotChecked,
    /// The row is looked for before the claim is killed, and not after it.
    CheckBeforeKill,
    /// The row is looked for in the snapshot in which the kill began to wait.
    CheckInKillsSnapshot,
    /// What was used or void is forgotten while the claim may still be used.
    EarlySweep,
    /// A claim that was used can be used again.
    ClaimReused,
    /// A stale entry is deleted without killing its claim.
    EntrySweptWithoutKill,
}

type Key = u8;
type Value = u8;
/// The process that made it, and its number there.
type Claim = (u8, u8);
type Entry = claims::Entry<Key, Claim>;

const KEYS: usize = 3;
const VALUES: usize = 2;

/// What a process does, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Task {
    /// The key's row gets the value.
    Set(Key, Value),
    /// The key's row loses its value.
    Clear(Key),
    /// The value's entry is removed if it is stale.
    Sweep(Value),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    /// Its next statement.
    Next(Next<Key, Claim>),
    /// Its kill waits, and has a snapshot; only of a mutant.
    Waits(Entry, bool),
    /// The kill's first statement has run, in a transaction that is open.
    Voided(Entry),
    /// The row is written in a transaction that is open.
    Written(Option<Claim>),
    /// A sweep has found the entry stale.
    Delete(Entry),
    Begin,
    Ended(Outcome),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    Done,
    Taken,
    /// It may be tried again: a lock was held too long, or the entry changed too often.
    Busy,
    RolledBack,
    Died,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Process {
    task: Task,
    at: At,
    /// How many claims it has made.
    claims: u8,
    /// How often it may still begin again after its claim was spent or its take failed.
    retries: u8,
}

/// How often each thing may still happen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Faults {
    deaths: u8,
    rollbacks: u8,
    /// A commit that took effect, but its answer is lost; the transaction runs again.
    doubts: u8,
    /// A claim or a take that took effect, but its answer is lost.
    lost_answers: u8,
    /// A move of a key's shard ends the transactions that are open there; they run again.
    moves: u8,
    expiries: u8,
    sweeps: u8,
    /// The value's host loses its last commit.
    lost_entries: u8,
    /// A key's host loses the last claim that was killed there.
    lost_kills: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct World {
    /// The committed values of the keys' rows.
    rows: [Option<Value>; KEYS],
    entries: [Option<Entry>; VALUES],
    /// The claims that are spent: `true` if used, `false` if void.
    spent: BTreeMap<Claim, bool>,
    processes: Vec<Process>,
    /// Claims that are too old to be used.
    expired: BTreeSet<Claim>,
    faults: Faults,
    /// The entries before their last change, and the claim that was killed last: what a host that
    /// fails over may bring back. Kept only where a host may.
    former: [Option<Entry>; VALUES],
    killed: Option<Claim>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Step(usize),
    /// A kill has waited for too long.
    GiveUp(usize),
    Die(usize),
    RollBack(usize),
    CommitInDoubt(usize),
    AnswerLost(usize),
    Move(Key),
    Expire(Claim),
    Forget(Claim),
    LoseEntry(Value),
    LoseKill,
}

#[derive(Clone, Debug)]
struct Claims {
    tasks: Vec<Task>,
    faults: Faults,
    /// The rows and entries in the beginning.
    rows: [Option<Value>; KEYS],
    entries: [Option<Entry>; VALUES],
    mutant: Option<Mutant>,
}

impl Claims {
    fn of(tasks: &[Task]) -> Self {
        Claims {
            tasks: tasks.to_vec(),
            faults: Faults::default(),
            rows: [None; KEYS],
            entries: [None; VALUES],
            mutant: None,
        }
    }

    fn with(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    /// Key 0 has value 0.
    fn held(mut self) -> Self {
        self.rows[0] = Some(0);
        self.stale()
    }

    /// Key 0 had value 0.
    fn stale(mut self) -> Self {
        self.entries[0] = Some(Entry {
            key: 0,
            claim: (9, 0),
        });
        self
    }

    fn is(&self, mutant: Mutant) -> bool {
        self.mutant == Some(mutant)
    }

    fn step(&self, world: &mut World, number: usize) -> Option<()> {
        let process = world.processes[number];
        match process.task {
            Task::Set(key, value) => self.set(world, number, key, value),
            Task::Clear(key) => clear(world, number, key),
            Task::Sweep(value) => self.sweep(world, number, value),
        }
    }

    fn set(&self, world: &mut World, number: usize, key: Key, value: Value) -> Option<()> {
        let saw = |seen| At::Next(next(key, seen));
        let at = match world.processes[number].at {
            At::Begin => saw(Seen::Nothing),
            At::Next(Next::Claim) => match world.entries[usize::from(value)] {
                Some(entry) => saw(Seen::Met(entry)),
                None => saw(Seen::Won(world.enter(number, key, value))),
            },
            At::Next(Next::Look(entry)) => {
                let has_row = world.has(entry.key, value) && !self.is(Mutant::RowNotChecked);
                let own = self.is(Mutant::OwnClaimNotKilled) && entry.key == key;
                match own {
                    true => At::Next(Next::Take(entry)),
                    // Waiting changes nothing here: each moment may be the one after the grace.
                    false => saw(Seen::Looked {
                        entry,
                        has_row,
                        is_over: true,
                    }),
                }
            }
            At::Next(Next::Kill(_)) | At::Waits(..) | At::Voided(_) => {
                let (entry, has_row) = match self.kill(world, number, value)? {
                    Some(killed) => killed,
                    None => return Some(()),
                };
                let unchecked = [Mutant::RowNotChecked, Mutant::CheckBeforeKill];
                let has_row = has_row && !unchecked.iter().any(|&mutant| self.is(mutant));
                saw(Seen::Killed { entry, has_row })
            }
            At::Next(Next::Take(entry)) => match world.entries[usize::from(value)] {
                Some(found) if found.claim == entry.claim => {
                    saw(Seen::Won(world.enter(number, key, value)))
                }
                _ => world.again(number),
            },
            At::Next(Next::Use(claim)) => {
                if world.is_locked(key) || world.is_voiding(claim) {
                    return None;
                }
                let spent = match world.spent.get(&claim) {
                    Some(used) => !(*used && self.is(Mutant::ClaimReused)),
                    None => world.expired.contains(&claim),
                };
                match spent {
                    true => world.again(number),
                    false => At::Written(Some(claim)),
                }
            }
            At::Written(_) => {
                world.commit(number);
                At::Ended(Outcome::Done)
            }
            At::Next(Next::Taken(_)) => At::Ended(Outcome::Taken),
            At::Delete(_) | At::Ended(_) => return None,
        };
        world.processes[number].at = at;
        Some(())
    }

    /// The two statements of a kill and its commit. `Some(None)`: it has only begun.
    fn kill(
        &self,
        world: &mut World,
        number: usize,
        value: Value,
    ) -> Option<Option<(Entry, bool)>> {
        match world.processes[number].at {
            At::Next(Next::Kill(entry)) if self.is(Mutant::CheckInKillsSnapshot) => {
                world.processes[number].at = At::Waits(entry, world.has(entry.key, value));
                Some(None)
            }
            At::Waits(entry, has_row) => {
                if world.is_in_use(entry.claim) {
                    return None;
                }
                world.void(entry.claim);
                Some(Some((entry, has_row)))
            }
            At::Next(Next::Kill(entry)) => {
                if world.is_in_use(entry.claim) || world.is_voiding(entry.claim) {
                    return None;
                }
                world.processes[number].at = At::Voided(entry);
                Some(None)
            }
            At::Voided(entry) => {
                world.void(entry.claim);
                Some(Some((entry, world.has(entry.key, value))))
            }
            _ => None,
        }
    }

    fn sweep(&self, world: &mut World, number: usize, value: Value) -> Option<()> {
        let at = match world.processes[number].at {
            At::Begin => match world.entries[usize::from(value)] {
                None => At::Ended(Outcome::Done),
                Some(entry) if self.is(Mutant::EntrySweptWithoutKill) => {
                    match world.has(entry.key, value) {
                        true => At::Ended(Outcome::Done),
                        false => At::Delete(entry),
                    }
                }
                Some(entry) => At::Next(Next::Kill(entry)),
            },
            At::Next(Next::Kill(_)) | At::Waits(..) | At::Voided(_) => {
                match self.kill(world, number, value)? {
                    None => return Some(()),
                    Some((_, true)) => At::Ended(Outcome::Done),
                    Some((entry, false)) => At::Delete(entry),
                }
            }
            At::Delete(entry) => {
                let slot = &mut world.entries[usize::from(value)];
                if slot.is_some_and(|found| found.claim == entry.claim) {
                    *slot = None;
                }
                At::Ended(Outcome::Done)
            }
            _ => return None,
        };
        world.processes[number].at = at;
        Some(())
    }

    /// Whether a newcomer that has all the time it wants gets the value.
    fn is_free(world: &World, value: Value) -> bool {
        let newcomer = Key::MAX;
        let mut seen = Seen::Nothing;
        loop {
            seen = match next(newcomer, seen) {
                Next::Claim => match world.entries[usize::from(value)] {
                    Some(entry) => Seen::Met(entry),
                    None => return true,
                },
                Next::Look(entry) => {
                    let has_row = world.has(entry.key, value);
                    Seen::Looked {
                        entry,
                        has_row,
                        is_over: true,
                    }
                }
                Next::Kill(entry) => {
                    let has_row = world.has(entry.key, value);
                    Seen::Killed { entry, has_row }
                }
                Next::Take(_) | Next::Use(_) => return true,
                Next::Taken(_) => return false,
            }
        }
    }
}

fn clear(world: &mut World, number: usize, key: Key) -> Option<()> {
    let at = match world.processes[number].at {
        At::Begin if world.is_locked(key) => return None,
        At::Begin if world.rows[usize::from(key)].is_none() => At::Ended(Outcome::Done),
        At::Begin => At::Written(None),
        At::Written(_) => {
            world.commit(number);
            At::Ended(Outcome::Done)
        }
        _ => return None,
    };
    world.processes[number].at = at;
    Some(())
}

impl World {
    fn has(&self, key: Key, value: Value) -> bool {
        self.rows.get(usize::from(key)) == Some(&Some(value))
    }

    /// Whether a transaction that is open has the key's row.
    fn is_locked(&self, key: Key) -> bool {
        self.processes.iter().any(|process| {
            matches!(process.at, At::Written(_))
                && matches!(process.task, Task::Set(at, _) | Task::Clear(at) if at == key)
        })
    }

    fn is_in_use(&self, claim: Claim) -> bool {
        let uses = |process: &Process| process.at == At::Written(Some(claim));
        self.processes.iter().any(uses)
    }

    fn is_voiding(&self, claim: Claim) -> bool {
        let voids = |process: &Process| matches!(process.at, At::Voided(it) if it.claim == claim);
        self.processes.iter().any(voids)
    }

    /// Writes an entry with a new claim of the process.
    fn enter(&mut self, number: usize, key: Key, value: Value) -> Claim {
        let process = &mut self.processes[number];
        let claim = (u8::try_from(number).unwrap(), process.claims);
        process.claims += 1;
        let slot = &mut self.entries[usize::from(value)];
        let former = slot.replace(Entry { key, claim });
        if self.faults.lost_entries > 0 {
            self.former[usize::from(value)] = former;
        }
        claim
    }

    fn void(&mut self, claim: Claim) {
        if let std::collections::btree_map::Entry::Vacant(free) = self.spent.entry(claim) {
            free.insert(false);
            if self.faults.lost_kills > 0 {
                self.killed = Some(claim);
            }
        }
    }

    fn commit(&mut self, number: usize) {
        let Process { task, at, .. } = self.processes[number];
        match (task, at) {
            (Task::Set(key, value), At::Written(Some(claim))) => {
                self.rows[usize::from(key)] = Some(value);
                self.spent.insert(claim, true);
            }
            (Task::Clear(key), _) => self.rows[usize::from(key)] = None,
            _ => {}
        }
    }

    fn again(&mut self, number: usize) -> At {
        match self.processes[number].retries {
            0 => At::Ended(Outcome::Busy),
            _ => {
                self.processes[number].retries -= 1;
                At::Begin
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let ended = |process: &Process| matches!(process.at, At::Ended(_));
        self.processes.iter().all(ended)
    }

    /// The place to which a transaction that is open returns when it is rolled back by its host.
    fn back(process: &Process) -> Option<At> {
        match (process.task, process.at) {
            (_, At::Written(Some(claim))) => Some(At::Next(Next::Use(claim))),
            (_, At::Written(None)) => Some(At::Begin),
            (_, At::Voided(entry)) => Some(At::Next(Next::Kill(entry))),
            _ => None,
        }
    }

    /// The key of the shard where the process has a transaction open.
    fn works_at(process: &Process) -> Option<Key> {
        match (process.task, process.at) {
            (_, At::Voided(entry)) => Some(entry.key),
            (Task::Set(key, _) | Task::Clear(key), At::Written(_)) => Some(key),
            _ => None,
        }
    }
}

impl Model for Claims {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let processes = self.tasks.iter().map(|&task| Process {
            task,
            at: At::Begin,
            claims: 0,
            retries: 1,
        });
        vec![World {
            rows: self.rows,
            entries: self.entries,
            spent: BTreeMap::new(),
            processes: processes.collect(),
            expired: BTreeSet::new(),
            faults: self.faults,
            former: self.entries,
            killed: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        let faults = world.faults;
        for (at, process) in world.processes.iter().enumerate() {
            if matches!(process.at, At::Ended(_)) {
                continue;
            }
            actions.push(Action::Step(at));
            if let At::Next(Next::Kill(entry)) | At::Waits(entry, _) = process.at
                && (world.is_in_use(entry.claim) || world.is_voiding(entry.claim))
            {
                actions.push(Action::GiveUp(at));
            }
            if faults.deaths > 0 {
                actions.push(Action::Die(at));
            }
            if matches!(process.at, At::Written(_)) {
                if faults.rollbacks > 0 {
                    actions.push(Action::RollBack(at));
                }
                if faults.doubts > 0 {
                    actions.push(Action::CommitInDoubt(at));
                }
            }
            let enters = matches!(process.at, At::Next(Next::Claim | Next::Take(_)));
            if enters && faults.lost_answers > 0 {
                actions.push(Action::AnswerLost(at));
            }
        }
        if faults.moves > 0 {
            let keys: BTreeSet<Key> = world.processes.iter().filter_map(World::works_at).collect();
            actions.extend(keys.into_iter().map(Action::Move));
        }
        if faults.expiries > 0 {
            let entered = world.entries.iter().flatten().map(|entry| entry.claim);
            let spent = world.spent.keys().copied();
            let planned = world
                .processes
                .iter()
                .filter_map(|process| match process.at {
                    At::Next(Next::Use(claim)) => Some(claim),
                    _ => None,
                });
            let claims: BTreeSet<Claim> = entered.chain(spent).chain(planned).collect();
            let young = claims
                .into_iter()
                .filter(|claim| !world.expired.contains(claim));
            actions.extend(
                young
                    .filter(|&claim| !world.is_in_use(claim))
                    .map(Action::Expire),
            );
        }
        if faults.sweeps > 0 {
            let may = |claim: &Claim| world.expired.contains(claim) || self.is(Mutant::EarlySweep);
            actions.extend(
                world
                    .spent
                    .keys()
                    .filter(|claim| may(claim))
                    .map(|&it| Action::Forget(it)),
            );
        }
        if faults.lost_entries > 0 {
            actions.extend((0..VALUES).map(|value| Action::LoseEntry(value as Value)));
        }
        if faults.lost_kills > 0 && world.killed.is_some() {
            actions.push(Action::LoseKill);
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut world = world.clone();
        match action {
            Action::Step(number) => self.step(&mut world, number)?,
            Action::GiveUp(number) => world.processes[number].at = At::Ended(Outcome::Busy),
            Action::Die(number) => {
                world.faults.deaths -= 1;
                world.processes[number].at = At::Ended(Outcome::Died);
            }
            Action::RollBack(number) => {
                world.faults.rollbacks -= 1;
                world.processes[number].at = At::Ended(Outcome::RolledBack);
            }
            Action::CommitInDoubt(number) => {
                world.faults.doubts -= 1;
                let back = World::back(&world.processes[number])?;
                world.commit(number);
                world.processes[number].at = back;
            }
            Action::AnswerLost(number) => {
                world.faults.lost_answers -= 1;
                let retries = world.processes[number].retries;
                self.step(&mut world, number)?;
                let won = matches!(world.processes[number].at, At::Next(Next::Use(_)));
                if !won {
                    return None;
                }
                world.processes[number].at = At::Begin;
                world.processes[number].retries = retries;
            }
            Action::Move(key) => {
                world.faults.moves -= 1;
                for process in &mut world.processes {
                    if World::works_at(process) == Some(key) {
                        process.at = World::back(process)?;
                    }
                }
            }
            Action::Expire(claim) => {
                world.faults.expiries -= 1;
                world.expired.insert(claim);
            }
            Action::Forget(claim) => {
                world.faults.sweeps -= 1;
                world.spent.remove(&claim);
            }
            Action::LoseEntry(value) => {
                world.faults.lost_entries -= 1;
                let value = usize::from(value);
                if world.entries[value] == world.former[value] {
                    return None;
                }
                world.entries[value] = world.former[value];
            }
            Action::LoseKill => {
                world.faults.lost_kills -= 1;
                let claim = world.killed.take()?;
                world.spent.remove(&claim);
            }
        }
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no two rows have one value", |_: &Claims, world: &World| {
                (0..VALUES).all(|value| {
                    let holders = world
                        .rows
                        .iter()
                        .filter(|row| **row == Some(value as Value));
                    holders.count() <= 1
                })
            }),
            Property::always(
                "an entry leads to every row",
                |_: &Claims, world: &World| {
                    world.rows.iter().enumerate().all(|(key, row)| {
                        row.is_none_or(|value| {
                            let entry = world.entries[usize::from(value)];
                            entry.is_some_and(|entry| usize::from(entry.key) == key)
                        })
                    })
                },
            ),
            Property::always(
                "a newcomer gets what nobody has",
                |_: &Claims, world: &World| {
                    !world.is_at_rest()
                        || (0..VALUES as Value).all(|value| {
                            Claims::is_free(world, value) != world.rows.contains(&Some(value))
                        })
                },
            ),
        ]
    }
}

const UNIQUE: &str = "no two rows have one value";

/// Everything that may happen while no host loses what it has committed.
fn scenes() -> Vec<(&'static str, Claims)> {
    use Task::{Clear, Set, Sweep};
    let none = Faults::default();
    let death = Faults { deaths: 1, ..none };
    let both = Faults {
        deaths: 1,
        rollbacks: 1,
        ..none
    };
    let aged = Faults {
        expiries: 1,
        sweeps: 1,
        ..none
    };
    vec![
        (
            "two rivals, a death",
            Claims::of(&[Set(0, 0), Set(1, 0)]).with(both),
        ),
        (
            "three rivals, two deaths, a rollback",
            Claims::of(&[Set(0, 0), Set(1, 0), Set(2, 0)]).with(Faults {
                deaths: 2,
                rollbacks: 1,
                ..none
            }),
        ),
        (
            "an owner claims again, a rival",
            Claims::of(&[Set(0, 0), Set(1, 0)]).held().with(both),
        ),
        (
            "two processes of one owner, a rival",
            Claims::of(&[Set(0, 0), Set(0, 0), Set(1, 0)]).with(both),
        ),
        (
            "an owner gives a value up and takes it back, a rival",
            Claims::of(&[Clear(0), Set(0, 0), Set(1, 0)])
                .held()
                .with(both),
        ),
        (
            "a stale entry, two of its owner and a rival",
            Claims::of(&[Set(0, 0), Set(0, 0), Set(1, 0)])
                .stale()
                .with(death),
        ),
        (
            "two values change hands crosswise",
            Claims::of(&[Set(0, 1), Set(1, 0), Set(2, 1)])
                .held()
                .with(death),
        ),
        (
            "a sleeper wakes after a sweep",
            Claims::of(&[Set(0, 0), Set(1, 0)]).with(aged),
        ),
        (
            "a commit in doubt runs again",
            Claims::of(&[Set(0, 0), Clear(0), Set(1, 0)]).with(Faults { doubts: 1, ..aged }),
        ),
        (
            "an answer to a claim is lost",
            Claims::of(&[Set(0, 0), Set(0, 0), Set(1, 0)]).with(Faults {
                lost_answers: 1,
                ..none
            }),
        ),
        (
            "shards move under their transactions",
            Claims::of(&[Set(0, 0), Clear(0), Set(1, 0)]).with(Faults {
                moves: 2,
                rollbacks: 1,
                ..none
            }),
        ),
        (
            "entries are swept",
            Claims::of(&[Set(0, 0), Sweep(0), Set(1, 0)])
                .stale()
                .with(death),
        ),
    ]
}

#[test]
fn the_claims_of_look_ups_keep_values_unique() {
    for (name, scene) in scenes() {
        keeps_its_rules(name, scene);
    }
}

#[test]
fn each_wrong_variant_of_the_claims_is_found() {
    let found_in = [
        (
            Mutant::OwnClaimNotKilled,
            "two processes of one owner, a rival",
        ),
        (Mutant::RowNotChecked, "two rivals, a death"),
        (Mutant::CheckBeforeKill, "two rivals, a death"),
        (Mutant::CheckInKillsSnapshot, "two rivals, a death"),
        (Mutant::EarlySweep, "a sleeper wakes after a sweep"),
        (Mutant::ClaimReused, "a commit in doubt runs again"),
        (Mutant::EntrySweptWithoutKill, "entries are swept"),
    ];
    for (mutant, name) in found_in {
        let scene = scenes().into_iter().find(|(scene, _)| *scene == name);
        let (_, scene) = scene.expect("a scene of this name");
        let wrong = Claims {
            mutant: Some(mutant),
            ..scene
        };
        assert!(breaks(wrong, UNIQUE), "{mutant:?} is found in: {name}");
    }
}

/// What no look-up can promise: a host that fails over may lose what it has committed.
#[test]
fn commits_that_a_host_loses_can_leave_a_value_twice() {
    use Task::Set;
    let none = Faults::default();
    let lost_entry = Faults {
        lost_entries: 1,
        ..none
    };
    assert!(breaks(
        Claims::of(&[Set(0, 0), Set(1, 0)]).with(lost_entry),
        UNIQUE
    ));
    let lost_kill = Faults {
        lost_kills: 1,
        ..none
    };
    assert!(breaks(
        Claims::of(&[Set(0, 0), Set(1, 0)]).with(lost_kill),
        UNIQUE
    ));
}
