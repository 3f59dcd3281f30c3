//! What `import keys` does not do, found before anything is changed; and what to know. Pure.

use std::collections::{BTreeMap, BTreeSet};

use super::table::{Details, KeyTable};
use crate::import::change::Refusal;
use crate::import::decide::{Decision, Decisions};
use crate::import::facts::{Database, VERSION_MIN};

/// Whether the session may keep the application's triggers from firing while rows are filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Silence {
    Allowed,
    Refused,
}

/// What is in the way.
pub(super) fn refusals(
    database: &Database,
    decisions: &Decisions,
    details: &BTreeMap<u32, Details>,
    tables: &[KeyTable],
    silence: Silence,
) -> Vec<Refusal> {
    let mut found = Vec::new();
    if database.server.version < VERSION_MIN {
        let remedy = "upgrade it first";
        found.push(Refusal::new(
            "the server",
            "is older than PostgreSQL 14",
            remedy,
        ));
    }
    if database.server.standby {
        let remedy = "name the primary";
        found.push(Refusal::new("the server", "is a standby", remedy));
    }
    for table in tables {
        of_table(database, details, table, silence, &mut found);
        if let Some(refusal) = tie(database, decisions, table) {
            found.push(refusal);
        }
    }
    found
}

/// Whether the table is as it should be, so that nothing is done to it.
fn is_done(table: &KeyTable) -> bool {
    table.parent.is_none() && table.is_identified()
}

fn of_table(
    database: &Database,
    details: &BTreeMap<u32, Details>,
    table: &KeyTable,
    silence: Silence,
    found: &mut Vec<Refusal>,
) {
    if is_done(table) {
        return;
    }
    let mut add = |object: &str, reason: &str, remedy: &str| {
        found.push(Refusal::new(object, reason, remedy));
    };
    let parent = table.parent.as_ref();
    let both = [
        Some((table.oid, &table.label)),
        parent.map(|one| (one.oid, &one.label)),
    ];
    for (oid, label) in both.into_iter().flatten() {
        let facts = database.tables.get(&oid);
        let own = details.get(&oid);
        if facts.is_some_and(|table| table.kind == "p") {
            add(
                label,
                "is partitioned, and a row that changes its partition changes no key of others",
                "add the column, its triggers and each partition's replica identity yourself, or \
                 let the table stay (--stays)",
            );
        }
        if own.is_some_and(|details| details.inherits) {
            add(
                label,
                "inherits, or is inherited",
                "ALTER TABLE … NO INHERIT",
            );
        }
        if own.is_some_and(|details| details.primary.is_empty()) {
            add(
                label,
                "has no primary key",
                "add one: rows are filled and found by it",
            );
        }
        if facts.is_some_and(|table| table.forced_rls) && !database.server.bypasses_rls {
            add(
                label,
                "has forced row level security, which could hide rows",
                "run it as a role with BYPASSRLS",
            );
        }
    }
    columns(details, table, &mut add);
    recorded(table, &mut add);
    let filled = table.record.as_ref().is_some_and(|record| record.filled);
    let others = &table.details.other_triggers;
    if parent.is_some() && !filled && !others.is_empty() && silence == Silence::Refused {
        add(
            &table.label,
            &format!(
                "its triggers would fire for each row that is filled: {}",
                others.join(", ")
            ),
            "GRANT SET ON PARAMETER session_replication_role to this role (PostgreSQL 15), or run \
             it as a superuser",
        );
    }
}

/// The columns that are used, and the one that is added.
fn columns(
    details: &BTreeMap<u32, Details>,
    table: &KeyTable,
    add: &mut impl FnMut(&str, &str, &str),
) {
    let label = |column: &str| format!("{}.{column}", table.label);
    let adds = table
        .record
        .as_ref()
        .is_some_and(|record| record.adds_column);
    let parent = table.parent.as_ref();
    if parent.is_some() && !adds && table.details.column(&table.column).is_some() {
        add(
            &label(&table.column),
            "is a column already, and not one of pgshard's",
            &format!(
                "if it has the key, choose it with --by {0}; else name the new one with --column \
                 {1}=NAME",
                label(&table.column),
                table.label
            ),
        );
    }
    let used = table.details.primary.iter();
    let used: BTreeSet<&String> = used
        .chain(
            parent
                .iter()
                .flat_map(|parent| parent.pairs.iter().map(|(own, _)| own)),
        )
        .collect();
    for name in used {
        let Some(column) = table.details.column(name) else {
            continue;
        };
        if !column.builtin {
            let reason = "has a type that an extension or the application has made";
            add(
                &label(name),
                reason,
                "add the column and its triggers yourself",
            );
        }
        if column.generated {
            let reason = "is generated, after triggers have run";
            add(
                &label(name),
                reason,
                "add the column and its triggers yourself",
            );
        }
    }
    let others = parent.and_then(|parent| Some((parent, details.get(&parent.oid)?)));
    if let Some((parent, details)) = others {
        let used = parent.pairs.iter().map(|(_, to)| to).chain([&parent.key]);
        for column in used.filter_map(|name| details.column(name)) {
            if !column.builtin {
                add(
                    &format!("{}.{}", parent.label, column.name),
                    "has a type that an extension or the application has made",
                    "add the column and its triggers yourself",
                );
            }
        }
    }
}

/// What an earlier run has recorded must be the same.
fn recorded(table: &KeyTable, add: &mut impl FnMut(&str, &str, &str)) {
    let Some(record) = &table.record else { return };
    if record.key_column != table.column {
        let reason = format!("has the key in {}, by an earlier run", record.key_column);
        add(
            &table.label,
            &reason,
            "name the same column, or take that run back (--undo)",
        );
    } else if record.way != table.way() {
        add(
            &table.label,
            "has another key, or has it by another path, by an earlier run",
            "choose the same (--by), or take that run back (--undo)",
        );
    }
}

/// Several ways that are equally good are for people to choose from.
fn tie(database: &Database, decisions: &Decisions, table: &KeyTable) -> Option<Refusal> {
    let (first, ties) = match decisions.get(&table.oid)? {
        Decision::Path(path) => (path.steps.first()?, &path.ties),
        Decision::Column(column) => (&column.by, &column.ties),
        _ => return None,
    };
    let keys = [first].into_iter().chain(ties);
    let keys = keys.filter_map(|at| database.foreign_keys.get(*at));
    let names: Vec<String> = keys
        .map(|key| database.column_names(key.table, &key.columns))
        .collect();
    (!ties.is_empty()).then(|| {
        Refusal::new(
            &table.label,
            format!("several ways lead to the key: {}", names.join(", ")),
            format!(
                "choose one, such as --by {}",
                names.first().map_or("", |name| name)
            ),
        )
    })
}

/// What to know before it is done.
pub(super) fn warnings(table: &KeyTable) -> Vec<String> {
    let mut warnings = Vec::new();
    let Some(parent) = &table.parent else {
        return warnings;
    };
    let own: Vec<&str> = parent.pairs.iter().map(|(own, _)| own.as_str()).collect();
    let is_nullable = own.iter().any(|name| {
        let column = table.details.column(name);
        column.is_some_and(|column| !column.not_null)
    });
    if is_nullable {
        warnings.push(format!(
            "{}: {} may be NULL now; once each row has a key, a row without one is refused",
            table.label,
            own.join(", ")
        ));
    }
    if parent.by_name {
        warnings.push(format!(
            "{}: no foreign key says that {} refers to {}; a row that refers to none is refused \
             once each row has a key",
            table.label,
            own.join(", "),
            parent.label
        ));
    } else if parent.comes_later {
        warnings.push(format!(
            "{}: the foreign key is deferrable; a row that comes before the one that it refers to \
             is refused once each row has a key",
            table.label
        ));
    }
    let leads = own
        .iter()
        .any(|name| table.details.leading.iter().any(|one| one == name));
    if !leads {
        warnings.push(format!(
            "{}: no index begins with {}; each change of key in {} reads the whole table",
            table.label,
            own.join(", "),
            parent.label
        ));
    }
    warnings
}
