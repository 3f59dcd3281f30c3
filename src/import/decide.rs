//! What becomes of each table: a pure function of the [`facts`](super::facts).
//!
//! A table has the key in a column, gets it by a path of foreign keys, is small and needed by those
//! that do, or stays. Where several ways lead to the key, the best is the one with the fewest
//! columns that may be NULL, and among these the shortest; others of the same cost are ties, which
//! people have to decide.

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
    /// Its rows belong to keys, and nothing says to which.
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
            && let Some(column) = key_column(database, table.oid)
        {
            // A way by a column is never exchanged for a path.
            ways.insert(table.oid, ((0, 0, 1), Decision::Column(column)));
        }
    }
    inherit(database, &mut ways);
    paths(database, &mut ways);
    let mut decisions: Decisions = ways
        .into_iter()
        .map(|(table, (_, decision))| (table, decision))
        .collect();
    let references = references(database, &decisions);
    for table in database.tables.values() {
        let imported = decisions.contains_key(&table.oid);
        let why = if table.is_foreign() {
            has_key_by_name(database, table.oid).then_some(Why::Foreign)
        } else {
            polymorphic(database, table.oid)
        };
        let decision = match why {
            _ if imported => continue,
            _ if references.contains(&table.oid) => Decision::Reference,
            Some(why) => Decision::Impossible(why),
            None => Decision::Stays,
        };
        decisions.insert(table.oid, decision);
    }
    decisions
}

/// The column of a table that has the key, if there is one: a foreign key to it.
fn key_column(database: &Database, table: u32) -> Option<KeyColumn> {
    let mut found: Vec<((usize, usize, usize), i16, usize)> = Vec::new();
    for (at, key) in keys_of(database, table) {
        if key.target != database.key.table {
            continue;
        }
        let place = key
            .target_columns
            .iter()
            .position(|column| *column == database.key.column);
        let Some(column) = place.and_then(|place| key.columns.get(place)) else {
            continue;
        };
        // Several constraints may say the same.
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
    Some(KeyColumn {
        column,
        by,
        ties: tied.map(|(.., at)| *at).collect(),
    })
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
        match ways.get_mut(&key.table) {
            Some((known, Decision::Path(path))) if *known == cost => {
                // A second constraint over the same columns is no other path.
                let first = &database.foreign_keys[path.steps[0]];
                if first.columns != key.columns {
                    path.ties.push(at);
                }
            }
            None if is_local => {
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

/// A table that inherits another has its columns, but not its foreign keys. Returns those that were
/// found.
fn inherit(database: &Database, ways: &mut Ways) -> Vec<u32> {
    let mut all = Vec::new();
    loop {
        let mut added: Vec<(u32, (Cost, Decision))> = Vec::new();
        for table in database.tables.values() {
            if table.inherits.is_empty() || ways.contains_key(&table.oid) {
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
    let mut found: BTreeSet<u32> = BTreeSet::new();
    loop {
        let mut added = Vec::new();
        for key in &database.foreign_keys {
            let needs = imported.contains_key(&key.table) || found.contains(&key.table);
            let is_new = !imported.contains_key(&key.target) && !found.contains(&key.target);
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
        let kind = names::type_column(table, column)?;
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
