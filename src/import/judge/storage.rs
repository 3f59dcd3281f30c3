//! How tables are stored: what is not in the stream of changes, or hides from a copy.

use super::case::Case;
use crate::import::obstacle::{Found, Kind};

pub(super) fn look(case: &Case<'_>, found: &mut Vec<Found>) {
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
