//! The steps that are not done, with their SQL and locks. Pure.
//!
//! Invariant: a step is left out once the catalogs and the record have what it makes, so that the
//! next run continues one that was killed.

use super::moving;
use super::outside::Relation;
use super::path::{self, Need};
use super::prepared::Prepared;
use super::record::{self, Grant, SetPath};
use super::report::{SeparatePath, SeparateStep, SeparateTable};
use super::settings;
use crate::import::change::StepKind;
use crate::pg::{quote_ident, quote_literal};

/// What is missing, in the order in which it is done.
pub(super) fn needed(prepared: &Prepared) -> Vec<StepKind> {
    let moves = !prepared.moving().is_empty();
    let mut steps = Vec::new();
    if moves && (prepared.record.is_none() || !prepared.exists || !prepared.grants.is_empty()) {
        steps.push(StepKind::Schema);
    }
    let is_separated = moves || prepared.record.is_some();
    let is_set = prepared
        .record
        .as_ref()
        .is_some_and(|record| record.paths_at.is_some());
    let to_set = prepared.paths_to_set().next().is_some();
    if prepared.sets_path() && is_separated && (to_set || (moves && !is_set)) {
        steps.push(StepKind::SearchPath);
    }
    if moves {
        if prepared.sets_path() && (to_set || !is_set || !prepared.sessions.is_empty()) {
            steps.push(StepKind::Sessions);
        }
        steps.push(StepKind::Tables);
    }
    steps
}

/// `"role"`, or PUBLIC.
fn grantee(grant: &Grant) -> String {
    let role = grant.role.as_deref();
    role.map_or_else(|| "PUBLIC".to_owned(), quote_ident)
}

/// Makes the schema, with the rights of the former one. It locks nothing of the application's.
pub(super) fn schema(prepared: &Prepared) -> Vec<String> {
    let new = quote_ident(&prepared.new);
    let mut sql = Vec::new();
    if !prepared.exists {
        sql.push(format!("CREATE SCHEMA {new}"));
    }
    for grant in &prepared.grants {
        let option = if grant.grantable {
            " WITH GRANT OPTION"
        } else {
            ""
        };
        let (privilege, role) = (&grant.privilege, grantee(grant));
        sql.push(format!(
            "GRANT {privilege} ON SCHEMA {new} TO {role}{option}"
        ));
    }
    sql
}

/// Records what [`schema`] does.
pub(super) fn schema_record(prepared: &Prepared) -> String {
    let known = prepared.record.as_ref();
    let mut grants = known.map_or_else(Vec::new, |record| record.grants.clone());
    grants.extend(prepared.grants.iter().cloned());
    match known {
        Some(_) => record::sets("grants", &grants),
        None => format!(
            "INSERT INTO pgshard_import.separate (old_schema, new_schema, makes_schema, grants)
            VALUES ({}, {}, {}, {})",
            quote_literal(&prepared.old),
            quote_literal(&prepared.new),
            !prepared.exists,
            quote_literal(&serde_json::json!(grants).to_string())
        ),
    }
}

/// Takes rights back.
pub(super) fn revoke(schema: &str, grants: &[Grant]) -> Vec<String> {
    let revoke = |grant: &Grant| {
        let (privilege, role) = (&grant.privilege, grantee(grant));
        let schema = quote_ident(schema);
        format!("REVOKE {privilege} ON SCHEMA {schema} FROM {role}")
    };
    grants.iter().map(revoke).collect()
}

/// Sets the paths. It locks nothing of the application's.
pub(super) fn paths(prepared: &Prepared) -> Vec<String> {
    let database = &prepared.database.server.database;
    let paths = prepared.paths_to_set();
    paths.filter_map(|path| path.statement(database)).collect()
}

/// Records what [`paths`] does: what was set before the first time is what comes back.
pub(super) fn paths_record(prepared: &Prepared) -> Vec<String> {
    let known = prepared.record.as_ref();
    let mut all: Vec<SetPath> = known.map_or_else(Vec::new, |record| record.paths.clone());
    let mut sql = Vec::new();
    for path in prepared.paths_to_set().filter_map(|path| path.to_be_set()) {
        match all.iter_mut().find(|known| known.role == path.role) {
            Some(known) => known.path = path.path,
            None => all.push(path),
        }
        sql = vec![
            record::sets("paths", &all),
            "UPDATE pgshard_import.separate SET paths_at = NULL".to_owned(),
        ];
    }
    sql
}

/// A step for people.
pub(super) fn planned(prepared: &Prepared, step: StepKind, functions: &[String]) -> SeparateStep {
    let in_one = |mut sql: Vec<String>| {
        sql.insert(0, "BEGIN".to_owned());
        sql.push("COMMIT".to_owned());
        sql
    };
    let (locks, sql) = match step {
        StepKind::Schema => ("none of the application's", in_one(schema(prepared))),
        StepKind::SearchPath => ("none of the application's", in_one(paths(prepared))),
        StepKind::Tables => {
            let relations = prepared.moving();
            let roots = moving::roots(&relations).into_iter();
            let names: Vec<String> = roots.map(|(_, name)| name).collect();
            let lock = format!("LOCK TABLE {} IN ACCESS EXCLUSIVE MODE", names.join(", "));
            let mut sql = vec![lock];
            let (from, to) = (&prepared.old, &prepared.new);
            sql.extend(moving::sql(&relations, from, to, functions));
            let locks = "ACCESS EXCLUSIVE on all tables for milliseconds, in tries that wait for \
                100 ms at most";
            (locks, in_one(sql))
        }
        _ => ("none", Vec::new()),
    };
    SeparateStep {
        step,
        locks: locks.to_owned(),
        sql,
    }
}

/// The tables, for a report.
pub(super) fn tables(prepared: &Prepared) -> Vec<SeparateTable> {
    let table = |one: &Relation| SeparateTable {
        table: one.name.clone(),
        schema: one.schema.clone(),
    };
    prepared.relations.iter().map(table).collect()
}

/// The paths that lead to one of the schemas, for a report.
pub(super) fn reported_paths(prepared: &Prepared) -> Vec<SeparatePath> {
    let database = &prepared.database.server.database;
    let paths = prepared.paths.iter();
    let paths = paths.filter(|path| path.need != Need::Nothing);
    let path = |path: &settings::Path| SeparatePath {
        role: path.role.clone(),
        path: path::sql(&path.elements),
        statement: path.statement(database),
    };
    paths.map(path).collect()
}
