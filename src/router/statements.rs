//! The statements that a session keeps prepared: by template and shard, without their texts.
//!
//! The CLOCK algorithm finds which of them gives way to a new one: a hand moves round and takes the
//! first that was not used since it last passed. That is about the one used longest ago, and a use
//! costs no more than setting a bit.
//!
//! If far more statements are in use than are kept, most of those that are prepared fall out before
//! they are used again, and each has cost a round trip, a plan and the place of another. So while a
//! full cache finds fewer than half of the statements that it looks for, the hand moves by one at
//! every eighth miss only ([`StatementCache::find_statement`]); at the other misses the statement
//! is run without being kept. Statements that are used more often come in all the same: if none of
//! a cache's statements is used, all are replaced after eight misses for each of its places.
//!
//! Invariant: a cache never keeps more than its bound. A statement that is found was prepared for
//! this text in this shard.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};

use super::sql::{ShardStatement, Sql};

/// Whether a statement that was prepared earlier will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepare {
    Once,
    Again,
}

/// `S` is what is kept; dropping one closes it on the server.
pub(super) struct StatementCache<S> {
    max: usize,
    entries: Vec<Entry<S>>,
    /// The index of each key's entry. Of two statements with the same key, only the later is kept.
    at: HashMap<u64, usize, BuildHasherDefault<AsItIs>>,
    hand: usize,
    /// Misses since the hand moved.
    misses: u32,
    /// How many of the last `asked` looks found a statement.
    found: u32,
    asked: u32,
    /// Whether fewer than half of the looks before those found one.
    overrun: bool,
    /// The last looks for statements of shards of which this session is not the favourite: how many
    /// there were, and how many found a statement.
    elsewhere: (u32, u32),
}

/// Whether the sessions of a pool can keep all statements that its calls run.
#[derive(Debug, Default)]
pub(super) struct Room {
    exceeded: AtomicBool,
    fall_out: AtomicBool,
}

impl Room {
    /// Not all fit into one session: one was dropped for another.
    pub(super) fn is_exceeded(&self) -> bool {
        self.exceeded.load(Ordering::Relaxed)
    }

    /// More are in use than the sessions keep, so that each keeps others.
    pub(super) fn fall_out(&self) -> bool {
        self.fall_out.load(Ordering::Relaxed)
    }
}

/// What is known of a statement that is to be run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look<S> {
    Kept(S),
    /// It is not here, and is to be prepared and kept.
    ToKeep,
    /// It is not here, and is to be run without being kept.
    Passing,
}

/// The hand of an overrun cache moves at one miss in so many.
const MISSES: u32 = 8;

/// After so many looks it is decided whether the cache is overrun.
const LOOKS: u32 = 256;

/// After so many looks for other shards' statements it is decided whether too few are found.
const LOOKS_ELSEWHERE: u32 = 64;

struct Entry<S> {
    key: u64,
    sql: Sql,
    shard: Option<u32>,
    /// `None` once it was forgotten.
    statement: Option<S>,
    used: bool,
}

/// For keys that are hashes already.
#[derive(Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

impl<S: Clone> StatementCache<S> {
    /// `max`: how many are kept; 0 keeps none.
    pub(super) fn new(max: usize) -> StatementCache<S> {
        StatementCache {
            max,
            entries: Vec::new(),
            at: HashMap::default(),
            hand: 0,
            misses: 0,
            found: 0,
            asked: 0,
            overrun: false,
            elsewhere: (0, 0),
        }
    }

    /// Looks for a statement that is to be run.
    pub(super) fn find_statement(&mut self, wanted: ShardStatement<'_>) -> Look<S> {
        if self.asked == LOOKS {
            self.overrun = self.found < LOOKS / 2;
            (self.asked, self.found) = (0, 0);
        }
        self.asked += 1;
        if let Some(at) = self.find(wanted) {
            let entry = &mut self.entries[at];
            entry.used = true;
            let Some(statement) = entry.statement.clone() else {
                return Look::ToKeep;
            };
            self.found += 1;
            return Look::Kept(statement);
        }
        if self.max == 0 {
            return Look::Passing;
        }
        if self.entries.len() < self.max || !self.overrun {
            return Look::ToKeep;
        }
        self.misses += 1;
        if self.misses < MISSES {
            return Look::Passing;
        }
        self.misses = 0;
        // `put` takes the entry at the hand, if that was not used.
        if std::mem::take(&mut self.entries[self.hand].used) {
            self.hand = (self.hand + 1) % self.entries.len();
            return Look::Passing;
        }
        Look::ToKeep
    }

    /// Records in `room` that a full cache lacks a statement. Also counts a look for the statement
    /// of a shard of which this session is not the favourite, and records after many of them
    /// whether too few found one: only then it is of use to wait for the favourite. A cache with
    /// room records nothing, as the statements that are missing will come in, and neither does one
    /// that keeps none, as no favourite has any.
    pub(super) fn record(&mut self, look: &Look<S>, is_favourite: bool, room: &Room) {
        if self.max == 0 || self.entries.len() < self.max {
            return;
        }
        if !matches!(look, Look::Kept(_)) && !room.is_exceeded() {
            room.exceeded.store(true, Ordering::Relaxed);
        }
        if is_favourite {
            return;
        }
        let (asked, found) = &mut self.elsewhere;
        *asked += 1;
        *found += u32::from(matches!(look, Look::Kept(_)));
        if *asked >= LOOKS_ELSEWHERE {
            let fall_out = *found < *asked / 4 * 3;
            self.elsewhere = (0, 0);
            room.fall_out.store(fall_out, Ordering::Relaxed);
        }
    }

    pub(super) fn get(&mut self, wanted: ShardStatement<'_>) -> Option<S> {
        let at = self.find(wanted)?;
        let entry = &mut self.entries[at];
        entry.used = true;
        entry.statement.clone()
    }

    pub(super) fn contains(&self, wanted: ShardStatement<'_>) -> bool {
        self.find(wanted)
            .is_some_and(|at| self.entries[at].statement.is_some())
    }

    /// Keeps a statement. If the cache is full, it takes the place of one that was not used lately.
    /// It counts as used only from its next use on.
    pub(super) fn put(&mut self, prepared: ShardStatement<'_>, statement: S) {
        if self.max == 0 {
            return;
        }
        let (key, shard) = (prepared.key(), prepared.shard());
        let entry = Entry {
            key,
            sql: prepared.sql().clone(),
            shard,
            statement: Some(statement),
            used: false,
        };
        if let Some(at) = self.at.get(&key) {
            self.entries[*at] = entry;
        } else if self.entries.len() < self.max {
            self.at.insert(key, self.entries.len());
            self.entries.push(entry);
        } else {
            let at = self.victim();
            self.at.remove(&self.entries[at].key);
            self.at.insert(key, at);
            self.entries[at] = entry;
        }
    }

    /// Forgets a statement, so that it is prepared again when it is next run.
    pub(super) fn forget(&mut self, outdated: ShardStatement<'_>) {
        if let Some(at) = self.find(outdated) {
            let entry = &mut self.entries[at];
            (entry.statement, entry.used) = (None, false);
        }
    }

    fn find(&self, wanted: ShardStatement<'_>) -> Option<usize> {
        let at = *self.at.get(&wanted.key())?;
        let entry = &self.entries[at];
        (entry.shard == wanted.shard() && entry.sql.is_same_text(wanted.sql())).then_some(at)
    }

    /// Goes round at most twice: the first time all may have been used.
    fn victim(&mut self) -> usize {
        loop {
            let at = self.hand;
            self.hand = (at + 1) % self.entries.len();
            if !std::mem::take(&mut self.entries[at].used) {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::shard::{SchemaPrefix, ShardId};

    fn texts() -> Vec<Sql> {
        ["SELECT 1", "SELECT 2", "TABLE {shard}.a", "TABLE {shard}.b"]
            .map(Sql::new)
            .into()
    }

    proptest! {
        /// What it gives is what was last put for that text in that shard, and it has no more than
        /// the bound.
        #[test]
        fn it_gives_what_was_put(
            max in 0..6_usize,
            steps in prop::collection::vec((0..4_usize, 0..4_u16, 0..4_u8), 0..200),
        ) {
            let (prefix, texts) = (SchemaPrefix::default(), texts());
            let mut cache = StatementCache::<u32>::new(max);
            let mut put = HashMap::new();
            for (number, (text, shard, step)) in (1_u32..).zip(steps) {
                let shard = ShardId::new(shard).unwrap();
                let rendered = ShardStatement::new(&texts[text], &prefix, shard);
                let key = rendered.text().into_owned();
                match step {
                    0 | 1 => {
                        cache.put(rendered, number);
                        put.insert(key, number);
                    }
                    2 => {
                        cache.forget(rendered);
                        put.remove(&key);
                        prop_assert!(!cache.contains(rendered));
                    }
                    _ => {
                        let found = cache.get(rendered);
                        prop_assert!(found.is_none() || found == put.get(&key).copied());
                    }
                }
                prop_assert!(cache.entries.len() <= max && cache.at.len() == cache.entries.len());
            }
        }
    }

    /// Three times as many statements as have room, each as often: most of those that are kept
    /// stay, and serve. Then others are in use, for which there is room: they come in. While most
    /// are found, a new statement comes in immediately.
    #[test]
    fn an_overrun_cache_changes_slowly() {
        let (prefix, sql) = (SchemaPrefix::default(), Sql::new("TABLE {shard}.a"));
        let rendered = |number| ShardStatement::new(&sql, &prefix, ShardId::new(number).unwrap());
        let mut cache = StatementCache::new(32);
        let mut random = fastrand::Rng::with_seed(7);
        let mut run = |numbers: std::ops::Range<u16>, calls: usize| {
            let (mut kept, mut prepared) = (0, 0);
            for _ in 0..calls {
                let number = random.u16(numbers.clone());
                match cache.find_statement(rendered(number)) {
                    Look::Kept(found) => {
                        assert_eq!(found, number);
                        kept += 1;
                    }
                    Look::ToKeep => {
                        cache.put(rendered(number), number);
                        prepared += 1;
                    }
                    Look::Passing => {}
                }
            }
            (kept, prepared)
        };
        run(0..96, 1000);
        let (kept, prepared) = run(0..96, 10_000);
        assert!(kept > 2500 && prepared < 700, "{kept} {prepared}");
        run(100..130, 2000);
        let (kept, _) = run(100..130, 1000);
        assert_eq!(kept, 1000);
        let (kept, prepared) = run(101..131, 1000);
        assert!(kept == 999 && prepared == 1, "{kept} {prepared}");
        let mut none = StatementCache::<u16>::new(0);
        assert_eq!(none.find_statement(rendered(1)), Look::Passing);
    }

    /// Whether a favourite is needed, and worth a wait: not while there is room, not where most are
    /// found, and not where none is kept anywhere.
    #[test]
    fn a_favourite_is_worth_a_wait_where_statements_do_not_fit() {
        let (prefix, sql) = (SchemaPrefix::default(), Sql::new("TABLE {shard}.a"));
        let rendered = |number| ShardStatement::new(&sql, &prefix, ShardId::new(number).unwrap());
        let said = |max, numbers: u16| {
            let (mut cache, room) = (StatementCache::new(max), Room::default());
            for call in 0..4 * u16::try_from(LOOKS_ELSEWHERE).unwrap() {
                let look = cache.find_statement(rendered(call % numbers));
                cache.record(&look, false, &room);
                if look == Look::ToKeep {
                    cache.put(rendered(call % numbers), call);
                }
            }
            (room.is_exceeded(), room.fall_out())
        };
        let fits = (false, false);
        assert_eq!((said(8, 7), said(8, 8), said(0, 100)), (fits, fits, fits));
        assert_eq!((said(8, 9), said(8, 100)), ((true, true), (true, true)));
    }

    #[test]
    fn what_is_used_stays() {
        let (prefix, sql) = (SchemaPrefix::default(), Sql::new("TABLE {shard}.a"));
        let rendered = |number| ShardStatement::new(&sql, &prefix, ShardId::new(number).unwrap());
        let mut cache = StatementCache::new(3);
        cache.put(rendered(0), 0);
        for number in 1..100 {
            assert_eq!(cache.get(rendered(0)), Some(0));
            cache.put(rendered(number), number);
        }
        assert_eq!(
            (cache.entries.len(), cache.get(rendered(99))),
            (3, Some(99))
        );
    }

    #[test]
    fn a_text_without_a_shard_is_kept_once() {
        let (prefix, sql) = (SchemaPrefix::default(), Sql::new("SELECT 1"));
        let shard = |number| ShardId::new(number).unwrap();
        let mut cache = StatementCache::new(4);
        cache.put(ShardStatement::new(&sql, &prefix, shard(1)), 7);
        assert_eq!(
            cache.get(ShardStatement::new(&sql, &prefix, shard(2))),
            Some(7)
        );
        assert_eq!(cache.get(ShardStatement::alone(&sql)), Some(7));
        // By search_path it means other tables in each shard.
        assert_eq!(
            cache.get(ShardStatement::by_search_path(&sql, &prefix, shard(2))),
            None
        );
        // The same text, read a second time, is the same statement.
        assert_eq!(
            cache.get(ShardStatement::alone(&Sql::new("SELECT 1"))),
            Some(7)
        );
    }
}
