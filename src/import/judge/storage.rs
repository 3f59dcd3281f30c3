//! How tables are stored and written: what is not in the stream of changes, hides from a copy, or
//! is written too often for a table that each host gets.

use super::case::Case;
use crate::import::decide::{Decision, REFERENCE_BYTES_MAX};
use crate::import::obstacle::{BlockingObject, Kind};

/// A reference table with fewer writes than this is not mentioned.
const WRITES_MAX: i64 = 10_000;

/// From this share of all bytes on a table that stays is named.
const STAYING_SHARE_MIN: f64 = 0.05;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    for table in case.database.tables.values() {
        let is_reference = case.decisions.get(&table.oid) == Some(&Decision::Reference);
        if is_reference && table.writes >= WRITES_MAX {
            let detail = format!("{} rows since the statistics were reset", table.writes);
            let name = case.name(table.oid);
            found.push(BlockingObject::new(Kind::ReferenceWritten, name, detail));
        }
    }
    large_stays(case, found);
    for index in &case.database.searches {
        if case.is_imported(index.table) {
            let object = format!("{} on {}", index.name, case.name(index.table));
            found.push(BlockingObject::new(Kind::SearchIndex, object, &index.class));
        }
    }
    let server = &case.database.server;
    for table in case.imported() {
        let name = case.name(table.oid);
        if table.unlogged {
            found.push(BlockingObject::new(Kind::Unlogged, &name, ""));
        }
        if table.has_foreign_partition {
            found.push(BlockingObject::new(Kind::ForeignPartition, &name, ""));
        }
        if table.forced_rls && !server.bypasses_rls {
            let detail = format!("{} has no BYPASSRLS", server.role);
            found.push(BlockingObject::new(Kind::RowSecurityForced, &name, detail));
        }
        for column in &table.columns {
            if server.large_objects && matches!(column.type_.as_str(), "oid" | "lo") {
                let name = case.database.column_names(table.oid, &[column.number]);
                found.push(BlockingObject::new(Kind::LargeObjects, name, &column.type_));
            }
        }
    }
}

/// What an import would not take off the server.
fn large_stays(case: &Case<'_>, found: &mut Vec<BlockingObject>) {
    let tables = case.database.tables.values();
    let all: f64 = tables.clone().map(|table| table.bytes() as f64).sum();
    for table in tables {
        let share = table.bytes() as f64 / all.max(1.0);
        let is_large = table.bytes() > REFERENCE_BYTES_MAX && share >= STAYING_SHARE_MIN;
        if case.decisions.get(&table.oid) == Some(&Decision::Stays) && is_large {
            let detail = format!("{:.0} % of all bytes", share * 100.0);
            found.push(BlockingObject::new(
                Kind::LargeStays,
                case.name(table.oid),
                detail,
            ));
        }
    }
}
