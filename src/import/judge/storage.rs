//! How tables are stored and written: what is not in the stream of changes, hides from a copy, or
//! is written too often for a table that each host gets.

use super::case::Case;
use crate::import::decide::Decision;
use crate::import::obstacle::{Found, Kind};

/// A reference table with fewer writes than this is not mentioned.
const WRITES_MAX: i64 = 10_000;

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Found>) {
    for table in case.database.tables.values() {
        let is_reference = case.decisions.get(&table.oid) == Some(&Decision::Reference);
        if is_reference && table.writes >= WRITES_MAX {
            let detail = format!("{} rows since the statistics were reset", table.writes);
            let name = case.name(table.oid);
            found.push(Found::new(Kind::ReferenceWritten, name, detail));
        }
    }
    let server = &case.database.server;
    for table in case.imported() {
        let name = case.name(table.oid);
        if table.unlogged {
            found.push(Found::new(Kind::Unlogged, &name, ""));
        }
        if table.has_foreign_partition {
            found.push(Found::new(Kind::ForeignPartition, &name, ""));
        }
        if table.forced_rls && !server.bypasses_rls {
            let detail = format!("{} has no BYPASSRLS", server.role);
            found.push(Found::new(Kind::RowSecurityForced, &name, detail));
        }
        for column in &table.columns {
            if server.large_objects && matches!(column.type_.as_str(), "oid" | "lo") {
                let name = case.database.column_names(table.oid, &[column.number]);
                found.push(Found::new(Kind::LargeObjects, name, &column.type_));
            }
        }
    }
}
