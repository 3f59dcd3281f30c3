//! From facts and decisions to the report on each table and on IDs. Pure.

use super::assessment::{IdReport, LargeKey, PathStep, TableDecision, TableReport};
use super::decide::{Decision, Decisions, REFERENCE_BYTES_MAX, Why};
use super::facts::{Database, ForeignKey};
use super::judge;
use crate::id::Epoch;

/// The report on each table: those that are imported first, the largest first.
pub(super) fn tables(database: &Database, decisions: &Decisions) -> Vec<TableReport> {
    let report = |(table, decision): (&u32, &Decision)| one(database, decisions, *table, decision);
    let mut reports: Vec<TableReport> = decisions.iter().filter_map(report).collect();
    reports.sort_by(|a, b| {
        let key = |one: &TableReport| (one.decision, std::cmp::Reverse(one.bytes));
        key(a).cmp(&key(b)).then_with(|| a.table.cmp(&b.table))
    });
    reports
}

/// What a standby does not know.
pub(super) fn standby(database: &Database) -> Option<String> {
    database.server.standby.then(|| {
        "whether the primary accepts replication connections, how often tables are written, and \
         how much WAL: this is a standby"
            .to_owned()
    })
}

/// That sizes are not known, if so.
pub(super) fn not_analyzed(database: &Database) -> Option<String> {
    let tables = database.tables.values();
    let count = tables.filter(|table| table.rows.is_none()).count();
    (count > 0).then(|| {
        format!(
            "rows and sizes of {count} tables, and what follows from them: ANALYZE was never run \
             on these"
        )
    })
}

fn one(
    database: &Database,
    decisions: &Decisions,
    table: u32,
    decision: &Decision,
) -> Option<TableReport> {
    let found = database.tables.get(&table)?;
    let keys = &database.foreign_keys;
    let mut key_column = None;
    let mut path = Vec::new();
    let (kind, reason) = match decision {
        Decision::Key => {
            let column = database.column_name(table, database.key.column);
            key_column = Some(column.to_owned());
            (TableDecision::Key, format!("{column} is the key"))
        }
        Decision::Column(key) => {
            let column = database.column_name(table, key.column);
            key_column = Some(column.to_owned());
            let reason = match keys.get(key.by) {
                Some(by) if by.table == table => {
                    path.push(step(database, by));
                    let to = database.column_names(by.target, &by.target_columns);
                    if database.chosen.by.contains_key(&table) {
                        format!("{column}, as chosen")
                    } else if by.by_name {
                        format!("{column}, by its name")
                    } else {
                        format!("{column} refers to {to}")
                    }
                }
                _ => format!("{column}, inherited"),
            };
            (TableDecision::KeyColumn, reason)
        }
        Decision::Path(way) => {
            let steps: Vec<&ForeignKey> = way.steps.iter().filter_map(|at| keys.get(*at)).collect();
            path.extend(steps.iter().map(|key| step(database, key)));
            // The last table has the key in a column, or is the key's own.
            let last = steps.last().map(|key| key.target);
            let end = match last.and_then(|table| Some((table, decisions.get(&table)?))) {
                Some((table, Decision::Column(key))) => database.column_names(table, &[key.column]),
                Some((table, _)) => database.column_names(table, &[database.key.column]),
                None => String::new(),
            };
            let mut words: Vec<String> = steps
                .iter()
                .enumerate()
                .map(|(at, key)| match at {
                    0 => columns(database, key),
                    _ => database.column_names(key.table, &key.columns),
                })
                .collect();
            words.push(end);
            (TableDecision::PathToKey, words.join(" → "))
        }
        Decision::Reference if database.chosen.references.contains(&table) => {
            (TableDecision::Reference, "as chosen".to_owned())
        }
        Decision::Reference => {
            let from = keys
                .iter()
                .filter(|key| key.target == table && key.table != table);
            let mut names: Vec<String> = from.map(|key| database.name(key.table)).collect();
            names.sort();
            names.dedup();
            let reason = match names.as_slice() {
                [one] => format!("{one} refers to it, and nothing leads from it to the key"),
                several => format!(
                    "{} tables refer to it, and nothing leads from it to the key",
                    several.len()
                ),
            };
            (TableDecision::Reference, reason)
        }
        Decision::Stays => {
            let referred = keys.iter().any(|key| key.target == table);
            let reason = if database.chosen.stays.contains(&table) {
                "as chosen"
            } else if referred && found.bytes() > REFERENCE_BYTES_MAX {
                "nothing leads from it to the key, and it is too large for each host"
            } else if found.is_foreign() {
                "a foreign table"
            } else {
                "nothing leads from it to the key"
            };
            (TableDecision::Stays, reason.to_owned())
        }
        Decision::Impossible(Why::Behind(at)) => {
            let key = keys.get(*at)?;
            let (from, to) = (columns(database, key), database.name(key.target));
            let reason = format!("{from} refers to {to}, and that table's rows have no key");
            (TableDecision::Impossible, reason)
        }
        Decision::Impossible(Why::Foreign) => (
            TableDecision::Impossible,
            "a foreign table: its rows are on another server".to_owned(),
        ),
        Decision::Impossible(Why::Polymorphic { kind, id }) => (
            TableDecision::Impossible,
            format!(
                "{} refers to the table that {} names",
                database.column_name(table, *id),
                database.column_name(table, *kind)
            ),
        ),
    };
    Some(TableReport {
        table: database.name(table),
        decision: kind,
        reason,
        key_column,
        path,
        rows: found.rows,
        bytes: found.bytes(),
    })
}

/// The columns of a foreign key, without its table.
fn columns(database: &Database, key: &ForeignKey) -> String {
    let names: Vec<&str> = key
        .columns
        .iter()
        .map(|number| database.column_name(key.table, *number))
        .collect();
    names.join(", ")
}

fn step(database: &Database, key: &ForeignKey) -> PathStep {
    PathStep {
        foreign_key: (!key.by_name).then(|| key.name.clone()),
        from: database.column_names(key.table, &key.columns),
        to: database.column_names(key.target, &key.target_columns),
    }
}

/// The keys with most rows.
pub(super) fn largest_keys(database: &Database, decisions: &Decisions) -> Vec<LargeKey> {
    judge::shares(database, decisions)
        .into_iter()
        .map(|share| LargeKey {
            key: share.key,
            rows: share.rows.round(),
            bytes: share.bytes.round(),
            share: share.share,
        })
        .collect()
}

/// IDs, and how far they are from those of shards.
pub(super) fn ids(database: &Database, epoch: Epoch, first: i64) -> IdReport {
    // Shards do not make the key, so its values are no IDs in this sense.
    let key = (database.key.table, database.key.column);
    let largest = database
        .statistics
        .iter()
        .filter(|(column, _)| **column != key)
        .filter_map(|(column, statistics)| Some((statistics.range?.1, *column)))
        .max();
    let below = largest
        .filter(|(id, _)| *id < first)
        .map(|(id, _)| legacy_below(id).min(first));
    IdReport {
        largest: largest.map(|(id, _)| id.to_string()),
        largest_of: largest.map(|(_, (table, column))| database.column_names(table, &[column])),
        first_of_shards: first.to_string(),
        epoch: epoch.timestamp().to_string(),
        legacy_below: below.map(|below| below.to_string()),
    }
}

/// A bound above all IDs that will be made before the switch: the next power of ten but one.
fn legacy_below(largest: i64) -> i64 {
    let mut bound: i64 = 1_000_000;
    while bound / 10 <= largest {
        match bound.checked_mul(10) {
            Some(next) => bound = next,
            None => return i64::MAX,
        }
    }
    bound
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_legacy_ids_leaves_room() {
        for (largest, bound) in [
            (0, 1_000_000),
            (99_999, 1_000_000),
            (100_000, 10_000_000),
            (12_345_678, 1_000_000_000),
            (i64::MAX, i64::MAX),
        ] {
            assert_eq!(legacy_below(largest), bound, "{largest}");
        }
    }
}
