//! What is judged, for all files of this folder.

use crate::import::decide::{Decision, Decisions};
use crate::import::facts::{Database, Table};

/// What is judged.
pub(super) struct Case<'a> {
    pub(super) database: &'a Database,
    pub(super) decisions: &'a Decisions,
    /// The first ID that a shard would make now.
    pub(super) first_id: i64,
}

impl Case<'_> {
    pub(super) fn is_imported(&self, table: u32) -> bool {
        self.decisions
            .get(&table)
            .is_some_and(|decision| decision.is_imported())
    }

    /// Whether a shard has the table: it is imported, or a reference.
    pub(super) fn is_on_hosts(&self, table: u32) -> bool {
        self.decisions
            .get(&table)
            .is_some_and(|decision| decision.is_imported() || *decision == Decision::Reference)
    }

    pub(super) fn name(&self, table: u32) -> String {
        self.database.name(table)
    }

    /// The tables that are imported.
    pub(super) fn imported(&self) -> impl Iterator<Item = &Table> {
        let tables = self.database.tables.values();
        tables.filter(|table| self.is_imported(table.oid))
    }
}
