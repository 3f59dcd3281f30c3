//! What becomes of each table: a pure function of the [`facts`](super::facts).
//!
//! A table has the key in a column, gets it by a path of foreign keys, is small and needed by those
//! that do, or stays. Where several ways lead to the key, the best is the one with the fewest
//! columns that may be NULL, and among these the shortest; others of the same cost are ties, which
//! people have to decide. What an engineer has chosen comes first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use super::facts::{Database, ForeignKey};
use super::names;

/// A table that others refer to, and that has no path to the key, goes to each host if it is not
/// larger than this.
pub(crate) const REFERENCE_BYTES_MAX: i64 = 256 << 20;

/// What becomes of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The key's own table.
    Key,
    /// It has the key in a column.
    Column(KeyColumn),
    /// Foreign keys lead to a table that has it: their places in the list of all.
    Path(Path),
    /// Small, without a path to the key, and imported tables refer to it.
    Reference,
    /// Nothing leads from it to the key.
    Stays,
    /// Its rows belong to keys, but to which is unknown.
    Impossible(Why),
}

/// The column of a table that has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyColumn {
    pub(crate) column: i16,
    /// The foreign key's place in the list.
    pub(crate) by: usize,
    /// Others that refer to the key as well, and are no worse.
    pub(crate) ties: Vec<usize>,
}

/// A path to the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Path {
    /// The foreign keys from the table to one that has the key.
    pub(crate) steps: Vec<usize>,
    /// Other foreign keys of the table that begin a path which is no worse.
    pub(crate) ties: Vec<usize>,
}

/// Why a table cannot be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It is a foreign table.
    Foreign,
    /// The table that a row refers to is named in the row: the numbers of both columns.
    Polymorphic {
        /// The column with the name of the table.
        kind: i16,
        /// The column with the ID.
        id: i16,
    },
    /// It refers to a row of such a table: the foreign key's place in the list.
    Behind(usize),
}

/// The decisions for all tables.
pub(crate) type Decisions = BTreeMap<u32, Decision>;

impl Decision {
    /// Whether its rows go to shards.
    pub(crate) fn is_imported(&self) -> bool {
        matches!(
            self,
            Decision::Key | Decision::Column(_) | Decision::Path(_)
        )
    }
}

/// How good a way to the key is: the columns on it that may be NULL, the steps that only names
/// suggest, and its length.
type Cost = (usize, usize, usize);

/// The ways that were found, by table.
type Ways = BTreeMap<u32, (Cost, Decision)>;

/// Decides for each table.
pub(crate) fn decide(database: &Database) -> Decisions {
    let mut ways = Ways::new();
    ways.insert(database.key.table, ((0, 0, 0), Decision::Key));
    for table in database.tables.values().filter(|table| !table.is_foreign()) {
        if table.oid != database.key.table
            && !database.chosen.excludes(table.oid)
            && let Some((cost, column)) = key_column(database, table.oid)
        {
            ways.insert(table.oid, (cost, Decision::Column(column)));
        }
    }
    inherit(database, &mut ways);
    paths(database, &mut ways);
    let mut decisions: Decisions = ways
        .into_iter()
        .map(|(table, (_, decision))| (table, decision))
        .collect();
    let references = references(database, &decisions);
    let chosen = &database.chosen;
    for table in database.tables.values() {
        let imported = decisions.contains_key(&table.oid);
        let why = if table.is_foreign() {
            has_key_by_name(database, table.oid).then_some(Why::Foreign)
        } else {
            polymorphic(database, table.oid)
        };
        let decision = match why {
            _ if imported => continue,
            _ if chosen.stays.contains(&table.oid) => Decision::Stays,
            _ if references.contains(&table.oid) => Decision::Reference,
            Some(why) => Decision::Impossible(why),
            None => Decision::Stays,
        };
        decisions.insert(table.oid, decision);
    }
    behind(database, &mut decisions);
    decisions
}

/// A table that refers to a row that belongs to an unknown key is no better.
fn behind(database: &Database, decisions: &mut Decisions) {
    loop {
        let is_lost = |table: &u32| {
            let why = Decision::Impossible(Why::Foreign);
            matches!(decisions.get(table), Some(Decision::Impossible(_)))
                && decisions.get(table) != Some(&why)
        };
        let keys = database.foreign_keys.iter().enumerate();
        let lost: Vec<(u32, usize)> = keys
            .filter(|(_, key)| {
                decisions.get(&key.table) == Some(&Decision::Stays)
                    && !database.chosen.excludes(key.table)
                    && !database.is_nullable(key)
                    && is_lost(&key.target)
            })
            .map(|(at, key)| (key.table, at))
            .collect();
        if lost.is_empty() {
            return;
        }
        for (table, at) in lost {
            decisions.insert(table, Decision::Impossible(Why::Behind(at)));
        }
    }
}

/// The column of a table that has the key, if there is one: a foreign key to it. With the cost of
/// this way.
fn key_column(database: &Database, table: u32) -> Option<(Cost, KeyColumn)> {
    let mut found: Vec<((usize, usize, usize), i16, usize)> = Vec::new();
    for (at, key) in keys_of(database, table) {
        if key.target != database.key.table || !database.chosen.allows(key) {
            continue;
        }
        let place = key
            .target_columns
            .iter()
            .position(|column| *column == database.key.column);
        let Some(column) = place.and_then(|place| key.columns.get(place)) else {
            continue;
        };
        if database
            .chosen
            .by
            .get(&table)
            .is_some_and(|chosen| chosen != column)
        {
            continue;
        }
        // Several constraints may be the same.
        if found.iter().any(|(_, known, _)| known == column) {
            continue;
        }
        let nullable = database
            .column(table, *column)
            .is_none_or(|column| !column.not_null);
        let unnamed = !is_named_after_key(database, table, *column);
        let cost = (
            usize::from(nullable),
            usize::from(key.by_name),
            usize::from(unnamed),
        );
        found.push((cost, *column, at));
    }
    found.sort();
    let (best, column, by) = *found.first()?;
    let tied = found.iter().skip(1).filter(|(cost, ..)| *cost == best);
    let column = KeyColumn {
        column,
        by,
        ties: tied.map(|(.., at)| *at).collect(),
    };
    Some(((best.0, best.1, 1), column))
}

/// Whether a column is called like the key's table: of `user_id` and `editor_id` it is the first.
fn is_named_after_key(database: &Database, table: u32, column: i16) -> bool {
    let Some(key) = database.tables.get(&database.key.table) else {
        return false;
    };
    names::is_named_after(database.column_name(table, column), &key.name)
}

fn keys_of(database: &Database, table: u32) -> impl Iterator<Item = (usize, &ForeignKey)> {
    let keys = database.foreign_keys.iter().enumerate();
    keys.filter(move |(_, key)| key.table == table)
}

/// Finds the paths of all tables without a way to the key, the cheapest first.
fn paths(database: &Database, ways: &mut Ways) {
    let mut by_target: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (at, key) in database.foreign_keys.iter().enumerate() {
        by_target.entry(key.target).or_default().push(at);
    }
    let mut ahead: BinaryHeap<Reverse<(Cost, usize)>> = BinaryHeap::new();
    let mut reached: Vec<u32> = ways.keys().copied().collect();
    loop {
        for table in reached.drain(..) {
            let Some((cost, _)) = ways.get(&table) else {
                continue;
            };
            for at in by_target.get(&table).into_iter().flatten() {
                let key = &database.foreign_keys[*at];
                if database.chosen.excludes(key.table) || !database.chosen.allows(key) {
                    continue;
                }
                let longer = (
                    cost.0 + usize::from(database.is_nullable(key)),
                    cost.1 + usize::from(key.by_name),
                    cost.2 + 1,
                );
                ahead.push(Reverse((longer, *at)));
            }
        }
        let Some(Reverse((cost, at))) = ahead.pop() else {
            return;
        };
        let key = &database.foreign_keys[at];
        let is_local = database
            .tables
            .get(&key.table)
            .is_some_and(|table| !table.is_foreign());
        let is_chosen = database.chosen.by.contains_key(&key.table);
        match ways.get_mut(&key.table) {
            Some((_, Decision::Path(_))) if is_chosen => {}
            Some((known, Decision::Path(path))) if *known == cost => {
                // A second constraint over the same columns is no other path.
                let first = &database.foreign_keys[path.steps[0]];
                if first.columns != key.columns {
                    path.ties.push(at);
                }
            }
            known if is_local && known.as_ref().is_none_or(|known| is_better(cost, known)) => {
                let mut steps = vec![at];
                if let Some((_, Decision::Path(path))) = ways.get(&key.target) {
                    steps.extend(&path.steps);
                }
                let path = Path {
                    steps,
                    ties: Vec::new(),
                };
                ways.insert(key.table, (cost, Decision::Path(path)));
                reached.push(key.table);
                reached.extend(inherit(database, ways));
            }
            _ => {}
        }
    }
}

/// Whether a path is better than the way by a column: rows without a key in the column have one by
/// the path, which no guess is part of.
fn is_better(path: Cost, known: &(Cost, Decision)) -> bool {
    matches!(known.1, Decision::Column(_)) && known.0.0 > 0 && (path.0, path.1) == (0, 0)
}

/// A table that inherits another has its columns, but not its foreign keys. Returns those that were
/// found.
fn inherit(database: &Database, ways: &mut Ways) -> Vec<u32> {
    let mut all = Vec::new();
    loop {
        let mut added: Vec<(u32, (Cost, Decision))> = Vec::new();
        for table in database.tables.values() {
            let is_settled = ways.contains_key(&table.oid) || database.chosen.excludes(table.oid);
            if table.inherits.is_empty() || is_settled {
                continue;
            }
            let parents = table.inherits.iter();
            let way = parents.filter_map(|parent| Some((parent, ways.get(parent)?)));
            for (parent, (cost, decision)) in way {
                let number = match decision {
                    Decision::Key => Some((database.key.column, None)),
                    Decision::Column(key) => Some((key.column, Some(key.by))),
                    _ => None,
                };
                let Some((number, by)) = number else { continue };
                let name = database.column_name(*parent, number);
                let own = table.column_named(name).map(|column| column.number);
                if let Some(column) = own {
                    let key = KeyColumn {
                        column,
                        by: by.unwrap_or(usize::MAX),
                        ties: Vec::new(),
                    };
                    added.push((table.oid, (*cost, Decision::Column(key))));
                    break;
                }
            }
        }
        if added.is_empty() {
            return all;
        }
        all.extend(added.iter().map(|(table, _)| *table));
        ways.extend(added);
    }
}

/// The small tables that imported ones refer to, directly or through others of them.
fn references(database: &Database, imported: &Decisions) -> BTreeSet<u32> {
    let chosen = &database.chosen;
    let mut found: BTreeSet<u32> = chosen.references.clone();
    loop {
        let mut added = Vec::new();
        for key in &database.foreign_keys {
            let needs = imported.contains_key(&key.table) || found.contains(&key.table);
            let is_new = !imported.contains_key(&key.target)
                && !found.contains(&key.target)
                && !chosen.stays.contains(&key.target);
            let small = database
                .tables
                .get(&key.target)
                .is_some_and(|table| !table.is_foreign() && table.bytes() <= REFERENCE_BYTES_MAX);
            if needs && is_new && small {
                added.push(key.target);
            }
        }
        if added.is_empty() {
            return found;
        }
        found.extend(added);
    }
}

/// The columns by which a table refers to rows of several tables.
pub(crate) fn polymorphic(database: &Database, table: u32) -> Option<Why> {
    let table = database.tables.get(&table)?;
    table.columns.iter().find_map(|column| {
        let kind = names::type_column(database, table, column)?;
        Some(Why::Polymorphic {
            kind: kind.number,
            id: column.number,
        })
    })
}

fn has_key_by_name(database: &Database, table: u32) -> bool {
    let keys = &database.foreign_keys;
    keys.iter()
        .any(|key| key.table == table && key.target == database.key.table)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::import::facts::{Server, Table};

    /// Small numbers that look random, the same in each run.
    struct Numbers(u64);

    impl Numbers {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            self.0 % bound
        }
    }

    fn server() -> Server {
        serde_json::from_value(json!({
            "database": "app", "role": "app", "version": 180_000, "standby": false,
            "wal_level": "logical", "can_decode": true, "free_slots": 1, "free_senders": 1,
            "bypasses_rls": true, "prepared": 0, "large_objects": false, "wal": null,
        }))
        .unwrap()
    }

    /// A table with a column 1 for its ID, and as many others as the test needs.
    fn table(oid: u32, nullable: &[bool]) -> Table {
        let mut columns = vec![json!({"number": 1, "name": "id", "type": "bigint",
            "not_null": true, "identity": true, "default": null})];
        for (at, nullable) in nullable.iter().enumerate() {
            columns.push(
                json!({"number": at + 2, "name": format!("c{at}"), "type": "bigint",
                "not_null": !nullable, "identity": false, "default": null}),
            );
        }
        serde_json::from_value(json!({
            "oid": oid, "schema": "app", "name": format!("t{oid}"), "kind": "r",
            "unlogged": false, "has_foreign_partition": false, "inherits": [], "rows": 1.0,
            "heap_bytes": 0, "index_bytes": 0, "indexes": 1, "toasted": false, "writes": 0,
            "changed": 0, "forced_rls": false, "owner": "app", "columns": columns,
        }))
        .unwrap()
    }

    /// A database of some tables, of which the first has the key, with foreign keys at random.
    fn database(numbers: &mut Numbers) -> Database {
        let mut database = Database::without_tables(server());
        let count = 2 + numbers.below(7) as u32;
        database.key.table = 1;
        database.key.column = 1;
        for oid in 1..=count {
            let columns = numbers.below(4) as usize;
            let nullable: Vec<bool> = (0..columns).map(|_| numbers.below(2) == 0).collect();
            database.tables.insert(oid, table(oid, &nullable));
            for at in 0..columns {
                database.foreign_keys.push(ForeignKey {
                    name: format!("f{oid}_{at}"),
                    table: oid,
                    columns: vec![at as i16 + 2],
                    target: 1 + numbers.below(u64::from(count)) as u32,
                    target_columns: vec![1],
                    by_name: numbers.below(4) == 0,
                    deferrable: false,
                    sample: Default::default(),
                });
            }
        }
        database
    }

    fn step(database: &Database, key: &ForeignKey, from: Cost) -> Cost {
        (
            from.0 + usize::from(database.is_nullable(key)),
            from.1 + usize::from(key.by_name),
            from.2 + 1,
        )
    }

    /// What each table's way costs, by trying all foreign keys again and again, until nothing
    /// changes.
    fn costs(database: &Database) -> BTreeMap<u32, (Cost, bool)> {
        let mut costs = BTreeMap::from([(1, ((0, 0, 0), true))]);
        loop {
            let mut next = costs.clone();
            for table in database.tables.keys().filter(|table| **table != 1) {
                let column = database
                    .foreign_keys_of(*table)
                    .filter(|key| key.target == 1)
                    .map(|key| step(database, key, (0, 0, 0)))
                    .min();
                let path = database
                    .foreign_keys_of(*table)
                    .filter(|key| key.target != *table)
                    .filter_map(|key| Some(step(database, key, costs.get(&key.target)?.0)))
                    .min();
                let way = match (column, path) {
                    (Some(column), Some((0, 0, length))) if column.0 > 0 => {
                        Some(((0, 0, length), false))
                    }
                    (Some(column), _) => Some((column, true)),
                    (None, path) => path.map(|path| (path, false)),
                };
                if let Some(way) = way {
                    next.insert(*table, way);
                }
            }
            if next == costs {
                return costs;
            }
            costs = next;
        }
    }

    #[test]
    fn each_table_gets_the_cheapest_way() {
        let mut numbers = Numbers(0x9E37_79B9_7F4A_7C15);
        let mut paths = 0;
        for _ in 0..20_000 {
            let database = database(&mut numbers);
            let decisions = decide(&database);
            let expected = costs(&database);
            for table in database.tables.keys() {
                let decision = &decisions[table];
                let all = || format!("table {table}: {decision:?}, {expected:?}, {database:?}");
                match (decision, expected.get(table)) {
                    (Decision::Key, Some(_)) => assert_eq!(*table, 1),
                    (Decision::Column(column), Some((cost, true))) => {
                        let key = &database.foreign_keys[column.by];
                        assert_eq!(step(&database, key, (0, 0, 0)), *cost, "{}", all());
                    }
                    (Decision::Path(path), Some((cost, false))) => {
                        paths += 1;
                        let mut at = *table;
                        for step in &path.steps {
                            assert_eq!(database.foreign_keys[*step].table, at, "{}", all());
                            at = database.foreign_keys[*step].target;
                        }
                        assert!(!matches!(decisions[&at], Decision::Path(_)), "{}", all());
                        let rest = path.steps.iter().rev();
                        let own = rest.fold(expected[&at].0, |cost, step_at| {
                            step(&database, &database.foreign_keys[*step_at], cost)
                        });
                        assert_eq!(own, *cost, "{}", all());
                    }
                    (Decision::Reference | Decision::Stays, None) => {}
                    _ => panic!("{}", all()),
                }
            }
        }
        assert!(paths > 10_000, "{paths} paths");
    }

    #[test]
    fn a_choice_comes_first() {
        let mut numbers = Numbers(7);
        for _ in 0..5_000 {
            let mut database = database(&mut numbers);
            let tables: Vec<u32> = database.tables.keys().copied().collect();
            let chosen = tables[numbers.below(tables.len() as u64) as usize];
            if chosen == 1 {
                continue;
            }
            let columns = database.tables[&chosen].columns.len() as u64;
            match numbers.below(3) {
                0 => drop(database.chosen.stays.insert(chosen)),
                1 => drop(database.chosen.references.insert(chosen)),
                _ if columns > 1 => {
                    let column = 2 + numbers.below(columns - 1) as i16;
                    database.chosen.by.insert(chosen, column);
                }
                _ => continue,
            }
            let decisions = decide(&database);
            let decision = &decisions[&chosen];
            match database.chosen.by.get(&chosen) {
                None if database.chosen.stays.contains(&chosen) => {
                    assert_eq!(*decision, Decision::Stays);
                }
                None => assert_eq!(*decision, Decision::Reference),
                Some(column) => match decision {
                    Decision::Column(by) => assert_eq!((by.column, by.ties.len()), (*column, 0)),
                    Decision::Path(path) => {
                        let first = &database.foreign_keys[path.steps[0]];
                        assert_eq!((&first.columns[..], path.ties.len()), (&[*column][..], 0));
                    }
                    Decision::Key | Decision::Impossible(_) => panic!("{decision:?}"),
                    Decision::Reference | Decision::Stays => {}
                },
            }
            // No way of another table leads through what is not imported.
            for decision in decisions.values() {
                if let Decision::Path(path) = decision {
                    for step in &path.steps {
                        let key = &database.foreign_keys[*step];
                        assert!(decisions[&key.target].is_imported(), "{database:?}");
                    }
                }
            }
        }
    }
}
