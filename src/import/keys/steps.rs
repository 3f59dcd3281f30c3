//! The steps that a table still needs, with their SQL and locks. Pure.
//!
//! Invariant: a step that was interrupted is done again as a whole, and one that is done is left
//! out, by what the catalogs and the record have.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;

use super::fill;
use super::record;
use super::table::{Details, KeyTable};
use super::triggers;
use crate::import::change::{Mode, StepKind};
use crate::pg::{quote_ident, quote_literal};

/// A step that is to be done.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) kind: StepKind,
    pub(super) actions: Vec<Action>,
}

/// Something that is done as a whole.
#[derive(Clone, Debug)]
pub(super) enum Action {
    /// A transaction that only changes catalogs, in short tries.
    Short {
        tables: Vec<(u32, String)>,
        mode: Mode,
        statements: Vec<String>,
    },
    /// A statement that takes long, and conflicts with no reads and writes.
    Long(String),
    /// Rows are filled in small transactions.
    Fill,
    /// Goes on only if no row is without a key.
    NoneWithoutKey,
}

/// A step, as it is shown.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct PlannedStep {
    /// The table.
    pub table: String,
    /// The step.
    pub step: StepKind,
    /// The locks that it takes, and for how long.
    pub locks: String,
    /// Its statements.
    pub sql: Vec<String>,
}

/// What a table still needs.
pub(super) fn needed(table: &KeyTable, details: &BTreeMap<u32, Details>) -> Vec<Step> {
    let mut steps = Vec::new();
    let adds = table.details.column(&table.column).is_none();
    if adds {
        steps.push(add_column(table));
    }
    if let Some(parent) = &table.parent {
        let of_parent = details.get(&parent.oid).map(|details| &details.triggers);
        let there = of_parent.is_some_and(|all| triggers::are_there(table, parent, all));
        if !there {
            steps.push(Step {
                kind: StepKind::Triggers,
                // SHARE ROW EXCLUSIVE on both: writes wait, reads do not.
                actions: vec![Action::Short {
                    tables: vec![
                        (parent.oid, parent.sql.clone()),
                        (table.oid, table.sql.clone()),
                    ],
                    mode: Mode::ShareRowExclusive,
                    statements: triggers::create(table, parent),
                }],
            });
        }
        let filled = table.record.as_ref().is_some_and(|record| record.filled);
        if !filled || !there || !table.is_not_null() {
            steps.push(Step {
                kind: StepKind::Fill,
                actions: vec![Action::Fill],
            });
        }
    }
    let is_done = table.is_identified() && (table.parent.is_none() || table.is_not_null());
    if is_done {
        return steps;
    }
    if !table.is_not_null() {
        steps.push(forbid_null(table));
    }
    if !table.is_in_primary() && !table.is_identified() && table.details.index_valid != Some(true) {
        steps.push(build_index(table));
    }
    if !table.is_identified() {
        steps.push(identify(table));
    }
    steps
}

fn alone(table: &KeyTable) -> Vec<(u32, String)> {
    vec![(table.oid, table.sql.clone())]
}

fn sets(table: &KeyTable, set: (&str, &str)) -> String {
    let parent = table.parent.as_ref().map(|parent| parent.oid);
    record::sets(table.oid, &table.column, &table.way(), parent, set)
}

/// ACCESS EXCLUSIVE for as long as a catalog changes: a column without a default writes no row.
fn add_column(table: &KeyTable) -> Step {
    let column = format!(
        "ALTER TABLE {} ADD COLUMN {} {}",
        table.sql,
        quote_ident(&table.column),
        table.definition
    );
    Step {
        kind: StepKind::Column,
        actions: vec![Action::Short {
            tables: alone(table),
            mode: Mode::AccessExclusive,
            statements: vec![sets(table, ("adds_column", "true")), column],
        }],
    }
}

/// ACCESS EXCLUSIVE twice, each for as long as a catalog changes; between them SHARE UPDATE
/// EXCLUSIVE, which neither reads nor writes wait for, while the rows are read.
fn forbid_null(table: &KeyTable) -> Step {
    let column = quote_ident(&table.column);
    let short = |statements| Action::Short {
        tables: alone(table),
        mode: Mode::AccessExclusive,
        statements,
    };
    let alter = |change: &str| format!("ALTER TABLE {} {change}", table.sql);
    let mut actions = vec![Action::NoneWithoutKey];
    if table.details.checked.is_none() {
        actions.push(short(vec![
            sets(table, ("sets_not_null", "true")),
            alter(&format!(
                "ADD CONSTRAINT pgshard_key_not_null CHECK ({column} IS NOT NULL) NOT VALID"
            )),
        ]));
    }
    if table.details.checked != Some(true) {
        actions.push(Action::Long(alter(
            "VALIDATE CONSTRAINT pgshard_key_not_null",
        )));
    }
    // The validated constraint spares SET NOT NULL from reading the rows.
    actions.push(short(vec![
        alter(&format!("ALTER COLUMN {column} SET NOT NULL")),
        alter("DROP CONSTRAINT pgshard_key_not_null"),
    ]));
    Step {
        kind: StepKind::NotNull,
        actions,
    }
}

/// SHARE UPDATE EXCLUSIVE while it is built: neither reads nor writes wait for it.
fn build_index(table: &KeyTable) -> Step {
    let columns: Vec<String> = table
        .details
        .primary
        .iter()
        .chain([&table.column])
        .map(|column| quote_ident(column))
        .collect();
    let index = table.index();
    let mut actions = vec![Action::Long(sets(table, ("builds_index", "true")))];
    if table.details.index_valid.is_some() {
        actions.push(Action::Long(drop_index(&table.schema, &index)));
    }
    actions.push(Action::Long(format!(
        "CREATE UNIQUE INDEX CONCURRENTLY {index} ON {} ({})",
        table.sql,
        columns.join(", ")
    )));
    Step {
        kind: StepKind::Index,
        actions,
    }
}

/// SHARE UPDATE EXCLUSIVE, and waits for the transactions that use the index.
pub(super) fn drop_index(schema: &str, index: &str) -> String {
    format!("DROP INDEX CONCURRENTLY IF EXISTS {schema}.{index}")
}

/// ACCESS EXCLUSIVE for as long as a catalog changes.
fn identify(table: &KeyTable) -> Step {
    let details = &table.details;
    let identity = if table.is_in_primary() {
        "DEFAULT".to_owned()
    } else {
        format!("USING INDEX {}", table.index())
    };
    let mut statements = Vec::new();
    // What was there before the first time is what comes back.
    let known = table
        .record
        .as_ref()
        .and_then(|record| record.identity_was.as_ref());
    if known.is_none() {
        let index = details.identity_index.as_deref().map(quote_literal);
        let index = index.unwrap_or_else(|| "NULL".to_owned());
        statements.push(sets(
            table,
            ("identity_was", &quote_literal(&details.identity)),
        ));
        statements.push(format!(
            "UPDATE pgshard_import.keys SET identity_index_was = {index} WHERE relation = {}",
            table.oid
        ));
    }
    statements.push(format!(
        "ALTER TABLE {} REPLICA IDENTITY {identity}",
        table.sql
    ));
    Step {
        kind: StepKind::Identity,
        actions: vec![Action::Short {
            tables: alone(table),
            mode: Mode::AccessExclusive,
            statements,
        }],
    }
}

/// A step for people.
pub(super) fn planned(table: &KeyTable, step: &Step) -> PlannedStep {
    let mut sql = Vec::new();
    for action in &step.actions {
        match action {
            Action::Short {
                tables,
                mode,
                statements,
            } => {
                let names: Vec<&str> = tables.iter().map(|(_, name)| name.as_str()).collect();
                sql.push("BEGIN".to_owned());
                sql.push(format!(
                    "LOCK TABLE {} IN {} MODE",
                    names.join(", "),
                    mode.sql()
                ));
                sql.extend(statements.iter().cloned());
                sql.push("COMMIT".to_owned());
            }
            Action::Long(statement) => sql.push(statement.clone()),
            Action::Fill => sql.extend(fill::example(table)),
            Action::NoneWithoutKey => sql.extend(fill::without_key_sql(table)),
        }
    }
    PlannedStep {
        table: table.label.clone(),
        step: step.kind,
        locks: locks(step.kind).to_owned(),
        sql,
    }
}

/// The locks of a step.
fn locks(kind: StepKind) -> &'static str {
    match kind {
        StepKind::Column | StepKind::Identity => {
            "ACCESS EXCLUSIVE for milliseconds, in tries that wait for 100 ms at most"
        }
        StepKind::Triggers => {
            "SHARE ROW EXCLUSIVE on both tables for milliseconds, in tries that wait for 100 ms at \
            most"
        }
        StepKind::Fill => "rows of the table, and KEY SHARE on the rows they refer to, briefly",
        StepKind::NotNull => {
            "ACCESS EXCLUSIVE for milliseconds, in tries that wait for 100 ms at most; SHARE \
            UPDATE EXCLUSIVE while rows are read"
        }
        StepKind::Index => "SHARE UPDATE EXCLUSIVE: reads and writes do not wait",
        StepKind::Undo => "as for the steps that are taken back",
        // These are not of a table.
        StepKind::Schema | StepKind::SearchPath | StepKind::Sessions | StepKind::Tables => "none",
    }
}
