//! Unique and exclusion constraints that a shard alone cannot keep.

use super::case::Case;
use crate::import::decide::Decision;
use crate::import::facts::{Column, Table, Unique};
use crate::import::obstacle::{BlockingObject, Kind};

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    for unique in &case.database.uniques {
        let Some(table) = case.database.tables.get(&unique.table) else {
            continue;
        };
        let Some(decision) = case
            .decisions
            .get(&table.oid)
            .filter(|decision| decision.is_imported())
        else {
            continue;
        };
        if is_kept(case, table, decision, unique) {
            continue;
        }
        let columns = unique.parts(case.database).join(", ");
        let kind = if unique.exclusion {
            Kind::ExclusionWithoutKey
        } else if unique.primary && unique.columns.len() == 1 {
            Kind::IdByApplication
        } else {
            Kind::UniqueWithoutKey
        };
        let object = format!("{} ({columns})", case.name(table.oid));
        let default = match unique.columns.as_slice() {
            [one] => table
                .column(*one)
                .and_then(|column| column.default.as_ref()),
            _ => None,
        };
        let detail = if let Some(default) = default.filter(|_| unique.primary) {
            format!("the primary key, by default {default}")
        } else if unique.primary {
            "the primary key".to_owned()
        } else if unique.partial {
            format!("{}, for some rows only", unique.name)
        } else {
            unique.name.clone()
        };
        found.push(BlockingObject::new(kind, object, detail));
    }
}

/// Whether values that differ in a shard differ in all shards.
fn is_kept(case: &Case<'_>, table: &Table, decision: &Decision, unique: &Unique) -> bool {
    let has = |column: &i16| unique.columns.contains(column);
    let by_key = match decision {
        Decision::Key => has(&case.database.key.column),
        Decision::Column(key) => has(&key.column),
        // What belongs to one parent is in the parent's shard.
        Decision::Path(path) => path
            .steps
            .first()
            .and_then(|at| case.database.foreign_keys.get(*at))
            .is_some_and(|key| key.columns.iter().all(has)),
        _ => true,
    };
    // So is what refers to a row by an ID that no other shard makes.
    let by_row = case.database.foreign_keys_of(table.oid).any(|key| {
        let imported = case
            .decisions
            .get(&key.target)
            .is_some_and(|decision| decision.is_imported());
        imported && !key.by_name && key.sample.differ == 0 && key.columns.iter().all(has)
    });
    // IDs are made so that they differ everywhere.
    let by_id = unique
        .columns
        .iter()
        .filter_map(|number| table.column(*number))
        .any(is_made);
    by_key || by_row || (by_id && !unique.exclusion)
}

/// Whether the database or the application makes values for the column that no row had before.
fn is_made(column: &Column) -> bool {
    column.is_from_sequence() || column.type_ == "uuid"
}
