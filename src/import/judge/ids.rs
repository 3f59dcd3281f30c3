//! IDs: too narrow for those of shards, negative, or already as large.

use std::collections::BTreeSet;

use super::case::Case;
use crate::import::facts::{Column, Table, Unique};
use crate::import::obstacle::{BlockingObject, Kind};
use crate::pg::quote_ident;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    let key = case.database.key;
    let mut ids: BTreeSet<(u32, i16)> = BTreeSet::new();
    for table in case.imported() {
        let primary = primary(case, table);
        if primary.is_none() {
            found.push(without_primary(case, table));
        }
        numbers(case, table, primary, found);
        // The key itself is not made by shards: its row could not be found by it.
        let id = id_column(case, table).filter(|id| (table.oid, *id) != (key.table, key.column));
        if let Some(id) = id {
            ids.insert((table.oid, id));
        }
    }
    let mut narrow = BTreeSet::new();
    for (table, id) in &ids {
        let Some(column) = case.database.column(*table, *id) else {
            continue;
        };
        if column.is_narrow() {
            narrow.insert((*table, *id));
        }
        let range = case.database.statistics.get(&(*table, *id));
        let Some((least, largest)) = range.and_then(|statistics| statistics.range) else {
            continue;
        };
        let name = case.database.column_names(*table, &[*id]);
        if least < 0 {
            let detail = format!("the smallest is {least}");
            found.push(BlockingObject::new(Kind::IdNegative, &name, detail));
        }
        if largest >= case.first_id {
            let detail = format!(
                "the largest is {largest}, the first of a shard would be {}",
                case.first_id
            );
            found.push(BlockingObject::new(Kind::IdTooLarge, name, detail));
        }
    }
    for foreign in &case.database.foreign_keys {
        for (own, other) in foreign.columns.iter().zip(&foreign.target_columns) {
            let is_narrow = case
                .database
                .column(foreign.table, *own)
                .is_some_and(|column| column.is_narrow());
            if is_narrow && ids.contains(&(foreign.target, *other)) {
                narrow.insert((foreign.table, *own));
            }
        }
    }
    for (table, column) in narrow {
        let name = case.database.column_names(table, &[column]);
        let type_ = case
            .database
            .column(table, column)
            .map_or_else(String::new, |column| column.type_.clone());
        found.push(BlockingObject::new(Kind::IdInteger, name, type_));
    }
}

fn primary<'a>(case: &'a Case<'_>, table: &Table) -> Option<&'a Unique> {
    let mut uniques = case.database.uniques.iter();
    uniques.find(|unique| unique.table == table.oid && unique.primary)
}

/// A table without a primary key, with the unique index that can be made one.
fn without_primary(case: &Case<'_>, table: &Table) -> BlockingObject {
    let uniques = case.database.uniques.iter();
    let mut fitting = uniques.filter(|unique| {
        let all_present = || {
            let columns = unique.columns.iter();
            let mut columns = columns.map(|number| table.column(*number));
            columns.all(|column| column.is_some_and(|column| column.not_null))
        };
        unique.table == table.oid && unique.fits_primary && all_present()
    });
    let mut one = BlockingObject::new(Kind::NoPrimaryKey, case.name(table.oid), "");
    one.remedy = fitting.next().map(|unique| {
        let columns = unique.parts(case.database).join(", ");
        let using = if unique.constraint {
            format!("ADD PRIMARY KEY ({columns})")
        } else {
            format!("ADD PRIMARY KEY USING INDEX {}", quote_ident(&unique.name))
        };
        format!("ALTER TABLE {} {using}", quote_ident(&table.name))
    });
    one
}

/// Columns other than the ID that get numbers from a sequence, such as those of invoices.
fn numbers(
    case: &Case<'_>,
    table: &Table,
    primary: Option<&Unique>,
    found: &mut Vec<BlockingObject>,
) {
    let is_id = |column: &Column| match primary {
        Some(primary) => primary.columns.contains(&column.number),
        None => column.name == "id",
    };
    for column in &table.columns {
        if column.is_from_sequence() && !is_id(column) {
            let uniques = case.database.uniques.iter();
            let mut alone = uniques
                .filter(|unique| unique.table == table.oid && unique.columns == [column.number]);
            let detail = match alone.next() {
                Some(unique) => format!("{} keeps it unique, within a shard", unique.name),
                None => String::new(),
            };
            let name = case.database.column_names(table.oid, &[column.number]);
            found.push(BlockingObject::new(Kind::SequenceNumber, name, detail));
        }
    }
}

/// The column with IDs that a shard will make: the primary key, if it is one column of integers
/// with values from a sequence, or one that other tables refer to.
fn id_column(case: &Case<'_>, table: &Table) -> Option<i16> {
    let [id] = primary(case, table)?.columns.as_slice() else {
        return None;
    };
    let column = table.column(*id)?;
    let from_sequence = column.is_from_sequence();
    // A primary key that refers to another row has that row's value.
    let refers = case
        .database
        .foreign_keys_of(table.oid)
        .any(|key| key.columns == [*id] && !key.by_name);
    let is_referred_to = case
        .database
        .foreign_keys
        .iter()
        .any(|key| key.target == table.oid && key.target_columns == [*id]);
    (column.is_integer() && (from_sequence || (is_referred_to && !refers))).then_some(*id)
}
