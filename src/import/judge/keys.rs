//! The ways to the key: those that may be missing in a row, that contradict each other, or that no
//! constraint proves; and foreign keys that lead to rows of another key.

use std::collections::BTreeSet;

use super::case::Case;
use crate::import::decide::{self, Decision, Decisions, Why};
use crate::import::facts::{Database, ForeignKey, Sample};
use crate::import::obstacle::{BlockingObject, Kind};

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    for (table, decision) in case.decisions {
        of_table(case, *table, decision, found);
    }
    let imported = case.imported().count();
    if imported <= 1 && case.decisions.len() > 1 {
        let detail = format!("{} tables stay", case.decisions.len() - 1);
        found.push(BlockingObject::new(
            Kind::OnlyKeyTable,
            case.name(case.database.key.table),
            detail,
        ));
    }
    let ties = ties(case.decisions);
    for at in must_agree(case.database, case.decisions) {
        let Some(key) = case.database.foreign_keys.get(at) else {
            continue;
        };
        if !ties.contains(&at) {
            agreement(case, key, found);
        }
    }
}

/// How many names of tables are shown for a column that has them.
const NAMES_MAX: usize = 6;

fn of_table(case: &Case<'_>, table: u32, decision: &Decision, found: &mut Vec<BlockingObject>) {
    let database = case.database;
    let keys = &database.foreign_keys;
    let is_chosen = database.chosen.by.contains_key(&table);
    let mut add = |kind, object: String, detail: String| {
        found.push(BlockingObject::new(kind, object, detail));
    };
    match decision {
        Decision::Column(column) => {
            let name = database.column_names(table, &[column.column]);
            if !column.ties.is_empty() {
                let others = column.ties.iter().filter_map(|at| keys.get(*at));
                let others: Vec<&str> = others
                    .flat_map(|key| &key.columns)
                    .map(|number| database.column_name(table, *number))
                    .collect();
                let detail = format!(
                    "{} or {}",
                    database.column_name(table, column.column),
                    others.join(" or ")
                );
                add(Kind::TwoOwners, case.name(table), detail);
            }
            if database
                .column(table, column.column)
                .is_some_and(|column| !column.not_null)
            {
                add(
                    Kind::NullableKey,
                    name.clone(),
                    nulls(case, table, column.column),
                );
            }
            let by = keys.get(column.by).filter(|key| key.by_name && !is_chosen);
            if let Some(key) = by {
                let detail = format!("as {}", target(database, key));
                add(Kind::KeyByName, name, detail);
            }
        }
        Decision::Path(path) => {
            let Some(key) = path.steps.first().and_then(|at| keys.get(*at)) else {
                return;
            };
            let name = database.column_names(table, &key.columns);
            let ties = path.ties.iter().filter_map(|at| keys.get(*at));
            // Rows in which both lead to the same key show that either will do.
            let ties: Vec<&ForeignKey> = ties
                .filter(|tie| tie.sample.rows == 0 || tie.sample.differ > 0)
                .collect();
            if !ties.is_empty() {
                let mut detail: Vec<String> =
                    vec![database.column_name(table, key.columns[0]).to_owned()];
                detail.extend(ties.iter().map(|tie| {
                    let name = database.column_name(table, tie.columns[0]);
                    match tie.sample.rows {
                        0 => name.to_owned(),
                        _ => format!("{name} ({})", differing(tie.sample)),
                    }
                }));
                add(Kind::SeveralPaths, case.name(table), detail.join(" or "));
            }
            for number in &key.columns {
                let nullable = database
                    .column(table, *number)
                    .is_some_and(|column| !column.not_null);
                if nullable {
                    let name = database.column_names(table, &[*number]);
                    add(Kind::NullableKey, name, nulls(case, table, *number));
                }
            }
            if key.by_name && !is_chosen {
                add(
                    Kind::KeyByName,
                    name,
                    format!("as {}", target(database, key)),
                );
            }
        }
        Decision::Impossible(Why::Foreign) => {
            add(Kind::ForeignTable, case.name(table), String::new());
        }
        Decision::Impossible(Why::Polymorphic { kind, id }) => {
            let name = database.column_names(table, &[*id]);
            let mut detail = format!("{} names the table", database.column_name(table, *kind));
            let known = database.statistics.get(&(table, *kind));
            let names = known.iter().flat_map(|known| &known.common);
            let names: Vec<&str> = names.take(NAMES_MAX).map(|(name, _)| &**name).collect();
            if !names.is_empty() {
                detail.push_str(&format!(": {}", names.join(", ")));
            }
            add(Kind::Polymorphic, name, detail);
        }
        Decision::Impossible(Why::Behind(at)) => {
            if let Some(key) = keys.get(*at) {
                let name = database.column_names(table, &key.columns);
                add(
                    Kind::Polymorphic,
                    name,
                    format!("leads to {}", database.name(key.target)),
                );
            }
        }
        Decision::Key | Decision::Reference | Decision::Stays => {}
    }
}

fn target(database: &Database, key: &ForeignKey) -> String {
    database.column_names(key.target, &key.target_columns)
}

/// How many rows have NULL, as far as it is known.
fn nulls(case: &Case<'_>, table: u32, column: i16) -> String {
    let share = case
        .database
        .statistics
        .get(&(table, column))
        .map(|statistics| statistics.null_share);
    match share {
        Some(share) if share >= 1.0 => "all rows have none".to_owned(),
        Some(share) if share > 0.0 => format!("{:.1} % of the rows have none", share * 100.0),
        Some(_) => "the column allows NULL; the statistics know of no row that has it".to_owned(),
        None => "the column allows NULL".to_owned(),
    }
}

fn ties(decisions: &Decisions) -> BTreeSet<usize> {
    let mut ties = BTreeSet::new();
    for decision in decisions.values() {
        match decision {
            Decision::Column(column) => ties.extend(&column.ties),
            Decision::Path(path) => ties.extend(&path.ties),
            _ => {}
        }
    }
    ties
}

/// The foreign keys between imported tables that do not give the key themselves: a row and the row
/// that it refers to could have different keys.
pub(crate) fn must_agree(database: &Database, decisions: &Decisions) -> Vec<usize> {
    let decision = |table: &u32| decisions.get(table).filter(|known| known.is_imported());
    let crosses = |key: &ForeignKey, at: usize| {
        let (Some(own), Some(_)) = (decision(&key.table), decision(&key.target)) else {
            return false;
        };
        match own {
            // A foreign key that contains the key leads to the same shard.
            Decision::Column(column) if column.by == at => false,
            Decision::Column(column) => {
                let pairs = key.columns.iter().zip(&key.target_columns);
                let key_of_target = key_column(database, decisions, key.target);
                !pairs
                    .into_iter()
                    .any(|(own, other)| *own == column.column && Some(*other) == key_of_target)
            }
            Decision::Path(path) => path
                .steps
                .first()
                .and_then(|first| database.foreign_keys.get(*first))
                .is_none_or(|first| first.columns != key.columns || first.target != key.target),
            _ => true,
        }
    };
    let keys = database.foreign_keys.iter().enumerate();
    keys.filter(|(at, key)| crosses(key, *at))
        .map(|(at, _)| at)
        .collect()
}

/// The column of a table that has the key.
fn key_column(database: &Database, decisions: &Decisions, table: u32) -> Option<i16> {
    match decisions.get(&table)? {
        decide::Decision::Key => Some(database.key.column),
        decide::Decision::Column(column) => Some(column.column),
        _ => None,
    }
}

fn agreement(case: &Case<'_>, key: &ForeignKey, found: &mut Vec<BlockingObject>) {
    let database = case.database;
    let name = database.column_names(key.table, &key.columns);
    let to = database.name(key.target);
    match key.sample {
        // A name alone proves no reference; rows that it leads to do.
        Sample { rows: 0, .. } if key.by_name => {}
        Sample { rows: 0, .. } => {
            let detail = if key.table == key.target {
                "to rows of the same table".to_owned()
            } else {
                format!("to {to}")
            };
            found.push(BlockingObject::new(
                Kind::ForeignKeyUnverified,
                name,
                detail,
            ));
        }
        Sample { differ: 0, .. } => {}
        sample => {
            let detail = format!("to {to}: {}", differing(sample));
            // Whether the application still follows a name cannot be seen.
            let kind = match key.by_name {
                true => Kind::ReferenceAcrossKeys,
                false => Kind::ForeignKeyAcrossKeys,
            };
            found.push(BlockingObject::new(kind, name, detail));
        }
    }
}

fn differing(sample: Sample) -> String {
    format!(
        "{} of {} rows looked at have another key",
        sample.differ, sample.rows
    )
}
