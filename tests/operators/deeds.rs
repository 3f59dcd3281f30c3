//! What an operator does next, chosen by the numbers of the seed and by what the hosts report at
//! the moment.

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;

use super::fates::Fate;
use super::state::Moved;

/// Something that an operator does.
#[derive(Clone, Debug)]
pub(crate) enum Deed {
    /// The command with these arguments.
    Command { args: Vec<String>, fate: Fate },
    /// A new file of migrations, which an operator then has to run.
    NewMigration,
    /// A host is written into the config by hand, by an editor that was open for so many
    /// milliseconds.
    WrittenByHand { host: usize, open_ms: u64 },
    /// The config of another operator is taken over.
    TakeConfigOf { operator: usize },
}

/// What the choice depends on.
pub(crate) struct Scene<'a> {
    pub(crate) shards: u16,
    /// The hosts of the operator's config.
    pub(crate) hosts: &'a [String],
    /// The URLs of all servers; the first is that of db1.
    pub(crate) urls: &'a [String],
    pub(crate) moves: &'a [Moved],
    /// Which shards each host of the config has.
    pub(crate) owned: &'a BTreeMap<String, BTreeSet<u16>>,
    /// Other operators who have a config of their own.
    pub(crate) others: &'a [usize],
    /// How many backfills were begun; the last one can be continued.
    pub(crate) backfills: usize,
    pub(crate) last_migration: &'a str,
    /// The move of a command that an operator has just begun.
    pub(crate) in_hand: Option<&'a str>,
}

/// What can be done, and how often relative to the others.
const KINDS: [(Kind, u32); 18] = [
    (Kind::Move, 24),
    (Kind::GoOn, 12),
    (Kind::Abort, 6),
    (Kind::Rollback, 9),
    (Kind::Complete, 8),
    (Kind::Pause, 8),
    (Kind::Gc, 5),
    (Kind::Feed, 3),
    (Kind::Look, 8),
    (Kind::Repair, 3),
    (Kind::Rebalance, 8),
    (Kind::Drain, 3),
    (Kind::Host, 6),
    (Kind::Bootstrap, 5),
    (Kind::NewMigration, 5),
    (Kind::Migrate, 9),
    (Kind::Backfill, 4),
    (Kind::Map, 6),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Move,
    GoOn,
    Abort,
    Rollback,
    Complete,
    /// `pause`, `continue`, `stop`.
    Pause,
    Gc,
    Feed,
    /// What only reads.
    Look,
    /// `moves repair`, `recover`: there is nothing to repair.
    Repair,
    Rebalance,
    Drain,
    Host,
    Bootstrap,
    NewMigration,
    Migrate,
    Backfill,
    Map,
}

fn one<'a, T>(rng: &mut Rng, all: &'a [T]) -> &'a T {
    &all[rng.usize(0..all.len())]
}

fn kind(rng: &mut Rng) -> Kind {
    let mut rest = rng.u32(0..KINDS.iter().map(|(_, weight)| weight).sum());
    for (kind, weight) in KINDS {
        match rest.checked_sub(weight) {
            Some(less) => rest = less,
            None => return kind,
        }
    }
    unreachable!("the number is less than the sum of the weights")
}

impl Scene<'_> {
    /// The next deed.
    pub(crate) fn choose(&self, rng: &mut Rng) -> Deed {
        let mut kind = kind(rng);
        // Now and then an operator requests what is not there.
        while !self.has_something_for(kind) && rng.u8(0..10) > 0 {
            kind = self::kind(rng);
        }
        let args = match kind {
            Kind::NewMigration => return Deed::NewMigration,
            Kind::Host => return self.host(rng),
            Kind::Move => self.relocate(rng),
            Kind::GoOn => words(&["moves", "resume"], self.open(rng)),
            Kind::Abort => words(&["moves", "abort", "--wait-s", "20"], self.open(rng)),
            Kind::Rollback => words(&["moves", "rollback", "--yes"], self.kept(rng)),
            Kind::Complete => self.complete(rng),
            Kind::Pause => {
                let verb = *one(rng, &["pause", "continue", "continue", "stop"]);
                words(&["moves", verb], self.open(rng))
            }
            Kind::Gc => words(&["moves", "gc"], []),
            Kind::Feed => words(&["moves", "feed"], []),
            Kind::Look => self.look(rng),
            Kind::Repair => self.repair(rng),
            Kind::Rebalance => self.rebalance(rng),
            Kind::Drain => {
                let complete = if rng.bool() { &["--complete"][..] } else { &[] };
                [
                    words(
                        &["drain", self.some_host(rng), "--by", "count", "--yes"],
                        [],
                    ),
                    words(complete, []),
                ]
                .concat()
            }
            Kind::Bootstrap => words(&["bootstrap"], []),
            Kind::Migrate => self.migrate(rng),
            Kind::Backfill => self.backfill(rng),
            Kind::Map => {
                let verbs: [&[&str]; 4] = [
                    &["show"],
                    &["diff"],
                    &["rebuild", "--yes"],
                    &["rebuild", "--yes"],
                ];
                words(&[&["map"], *one(rng, &verbs)].concat(), [])
            }
        };
        let fate = if matches!(kind, Kind::Look) {
            Fate::None
        } else {
            Fate::of(rng)
        };
        Deed::Command { args, fate }
    }

    /// Whether there is a move that a deed of this kind can be for.
    fn has_something_for(&self, kind: Kind) -> bool {
        let kept = || self.moves.iter().any(|moved| moved.phase == "kept");
        match kind {
            Kind::GoOn | Kind::Abort | Kind::Pause => self.moves.iter().any(Moved::is_open),
            Kind::Rollback | Kind::Complete | Kind::Feed => kept(),
            _ => true,
        }
    }

    fn some_host(&self, rng: &mut Rng) -> &str {
        &self.hosts[rng.usize(0..self.hosts.len())]
    }

    fn some_shards(&self, rng: &mut Rng) -> String {
        let count = *one(rng, &[1, 2, 3, 5, 6]);
        let shards: BTreeSet<u16> = (0..count).map(|_| rng.u16(0..self.shards)).collect();
        let shards: Vec<String> = shards.iter().map(u16::to_string).collect();
        shards.join(",")
    }

    fn relocate(&self, rng: &mut Rng) -> Vec<String> {
        let target = self.some_host(rng);
        let mut shards = self.some_shards(rng);
        let elsewhere: Vec<u16> = self
            .owned
            .iter()
            .filter(|(host, _)| *host != target)
            .flat_map(|(_, shards)| shards)
            .copied()
            .collect();
        // Now and then they are there already.
        if !elsewhere.is_empty() && rng.u8(0..8) > 0 {
            let count = rng.usize(1..=6);
            let some: BTreeSet<u16> = (0..count).map(|_| *one(rng, &elsewhere)).collect();
            shards = some
                .iter()
                .map(u16::to_string)
                .collect::<Vec<_>>()
                .join(",");
        }
        let mut args = words(&["move", &shards, "--to", target], []);
        match rng.u8(0..10) {
            0 => args.extend(words(&["--plan", "--mode", "online"], [])),
            1 | 2 => args.extend(words(&["--yes", "--mode", "online", "--hold"], [])),
            3 | 4 => args.extend(words(&["--yes", "--mode", "blocking"], [])),
            5 => args.extend(words(
                &["--yes", "--mode", "online", "--no-reverse-replication"],
                [],
            )),
            _ => args.extend(words(&["--yes", "--mode", "online"], [])),
        }
        args
    }

    /// The ID of a move that is open, or of another one, or none.
    fn open(&self, rng: &mut Rng) -> Option<String> {
        self.some_move(rng, Moved::is_open)
    }

    fn kept(&self, rng: &mut Rng) -> Option<String> {
        self.some_move(rng, |moved| moved.phase == "kept")
    }

    fn some_move(&self, rng: &mut Rng, fits: impl Fn(&Moved) -> bool) -> Option<String> {
        let fitting: Vec<&Moved> = self.moves.iter().filter(|moved| fits(moved)).collect();
        if let Some(id) = self.in_hand.filter(|_| rng.u8(0..5) < 2) {
            return Some(id.to_owned());
        }
        match rng.u8(0..20) {
            // An operator may be at work on the last ones at this moment.
            0 if !self.moves.is_empty() => Some(one(rng, self.moves).id.clone()),
            1 => None,
            _ if fitting.is_empty() => None,
            2..8 => fitting.last().map(|moved| moved.id.clone()),
            _ => Some(one(rng, &fitting).id.clone()),
        }
    }

    fn complete(&self, rng: &mut Rng) -> Vec<String> {
        match rng.u8(0..4) {
            0 => words(&["moves", "complete", "--all", "--yes"], []),
            1 => words(
                &["moves", "complete", "--unaudited", "--yes"],
                self.kept(rng),
            ),
            _ => words(&["moves", "complete", "--yes"], self.kept(rng)),
        }
    }

    fn look(&self, rng: &mut Rng) -> Vec<String> {
        let looks: [&[&str]; 15] = [
            &["moves", "list"],
            &["moves", "list", "--all"],
            &["moves", "show"],
            &["moves", "watch"],
            &["check"],
            &["check"],
            &["check", "--ddl"],
            &["check", "--movable"],
            &["check", "--rows"],
            &["host", "list"],
            &["map", "history"],
            &["migrate", "status"],
            &["migrate", "plan"],
            &["sql", "SELECT count(*) FROM {shard}.users"],
            &["rights", "--for", "router", "--role", "web"],
        ];
        let look = *one(rng, &looks);
        let id = if matches!(look, ["moves", "show" | "watch"]) {
            self.open(rng)
        } else {
            None
        };
        words(look, id)
    }

    fn repair(&self, rng: &mut Rng) -> Vec<String> {
        let how = *one(rng, &["--plan", "--yes"]);
        if rng.bool() {
            words(
                &["moves", "repair", &rng.u16(0..self.shards).to_string(), how],
                [],
            )
        } else {
            words(&["recover", self.some_host(rng), how], [])
        }
    }

    fn rebalance(&self, rng: &mut Rng) -> Vec<String> {
        let mut args = words(&["rebalance", "--by", *one(rng, &["count", "bytes"])], []);
        match rng.u8(0..6) {
            0 => args.push("--plan".to_owned()),
            1 | 2 => args.extend(words(&["--yes", "--complete"], [])),
            3 => args.extend(words(&["--yes", "--max-moves", "2"], [])),
            _ => args.push("--yes".to_owned()),
        }
        if rng.bool() {
            args.extend(words(&["--threshold", "0"], []));
        }
        args
    }

    /// Hosts come and go.
    fn host(&self, rng: &mut Rng) -> Deed {
        if !self.others.is_empty() && rng.u8(0..3) == 0 {
            return Deed::TakeConfigOf {
                operator: *one(rng, self.others),
            };
        }
        let name = |host: usize| format!("db{}", host + 1);
        let missing: Vec<usize> = (0..self.urls.len())
            .filter(|host| !self.hosts.contains(&name(*host)))
            .collect();
        if let Some(host) = missing.first().copied().filter(|_| rng.u8(0..8) > 0) {
            if rng.u8(0..3) == 0 {
                return Deed::WrittenByHand {
                    host,
                    open_ms: rng.u64(0..1500),
                };
            }
            let args = words(&["host", "add", &name(host), &self.urls[host]], []);
            return Deed::Command {
                args,
                fate: Fate::of(rng),
            };
        }
        let args = words(&["host", "remove", self.some_host(rng), "--yes"], []);
        Deed::Command {
            args,
            fate: Fate::of(rng),
        }
    }

    fn migrate(&self, rng: &mut Rng) -> Vec<String> {
        let name = self.last_migration;
        match rng.u8(0..10) {
            0 => words(&["migrate", "up", "--canary", "2"], []),
            1 => words(&["migrate", "up", "--only", &self.some_shards(rng)], []),
            2 => words(&["migrate", "retry"], []),
            3 => words(&["migrate", "wait", "--timeout-s", "5"], []),
            4 => words(&["migrate", "resolve", name, "--applied", "--plan"], []),
            _ => words(&["migrate", "up"], []),
        }
    }

    fn backfill(&self, rng: &mut Rng) -> Vec<String> {
        if rng.u8(0..6) == 0 {
            return words(&["migrate", "backfill", "--status"], []);
        }
        let number = if self.backfills > 0 && rng.bool() {
            self.backfills
        } else {
            self.backfills + 1
        };
        let sql = format!(
            "UPDATE {{shard}}.users SET marks = marks || '{number};' WHERE id BETWEEN {{low}} AND \
                {{high}}"
        );
        let name = format!("marks{number}");
        words(
            &[
                "migrate",
                "backfill",
                "--name",
                &name,
                "--table",
                "users",
                "--range-ms",
                "20",
                "--sql",
                &sql,
            ],
            [],
        )
    }
}

fn words(all: &[&str], more: impl IntoIterator<Item = String>) -> Vec<String> {
    all.iter()
        .map(|word| (*word).to_owned())
        .chain(more)
        .collect()
}

/// Whether a command runs until an operator ends it, or may wait for another operator: then its
/// operator does not wait for it.
pub(crate) fn is_endless(args: &[String]) -> bool {
    let has = |word: &str| args.iter().any(|arg| arg == word);
    has("--hold") || (has("moves") && (has("feed") || has("watch")))
}
