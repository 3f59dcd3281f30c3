//! The tables that get the key, the parents first: from facts, decisions and the record. Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use super::record::Record;
use crate::import::decide::{Decision, Decisions};
use crate::import::facts::{Database, ForeignKey, Table};
use crate::pg::quote_ident;

/// A table's columns, constraints and triggers, as far as the key depends on them.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Details {
    pub(super) oid: u32,
    /// `d`, `n`, `f` or `i`.
    pub(super) identity: String,
    pub(super) identity_index: Option<String>,
    pub(super) identity_columns: Vec<String>,
    /// The columns of the primary key.
    pub(super) primary: Vec<String>,
    /// The first columns of its indexes.
    pub(super) leading: Vec<String>,
    pub(super) columns: Vec<Column>,
    /// Whether it inherits, or another inherits it.
    pub(super) inherits: bool,
    /// Our triggers that always fire.
    pub(super) triggers: Vec<String>,
    /// Triggers of the application that fire on UPDATE.
    pub(super) other_triggers: Vec<String>,
    /// Whether our constraint is validated; none if it is not there.
    pub(super) checked: Option<bool>,
    /// Whether our index is valid; none if it is not there.
    pub(super) index_valid: Option<bool>,
}

/// A column.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Column {
    pub(super) name: String,
    #[serde(rename = "type")]
    type_: String,
    collation: Option<String>,
    /// Whether the type is PostgreSQL's own.
    pub(super) builtin: bool,
    pub(super) not_null: bool,
    pub(super) generated: bool,
}

impl Column {
    /// The type as a definition has it.
    pub(super) fn definition(&self) -> String {
        let type_ = match self.type_.as_str() {
            // Without a length it is a single character.
            "character" => "bpchar",
            other => other,
        };
        match &self.collation {
            Some(collation) => format!("{type_} COLLATE {collation}"),
            None => type_.to_owned(),
        }
    }

    /// The type as a cast has it.
    pub(super) fn type_name(&self) -> &str {
        match self.type_.as_str() {
            "character" => "bpchar",
            other => other,
        }
    }
}

impl Details {
    pub(super) fn column(&self, name: &str) -> Option<&Column> {
        self.columns.iter().find(|column| column.name == name)
    }
}

/// The row from which a table's rows have their key.
#[derive(Clone, Debug)]
pub(super) struct Parent {
    pub(super) oid: u32,
    /// Its quoted name.
    pub(super) sql: String,
    /// For people.
    pub(super) label: String,
    /// Its column with the key.
    pub(super) key: String,
    /// The columns of the table, and those of the parent that they refer to.
    pub(super) pairs: Vec<(String, String)>,
    /// The parent's primary key.
    pub(super) primary: Vec<String>,
    /// Whether a row may come before the one that it refers to.
    pub(super) comes_later: bool,
    /// Whether the reference is known by names only.
    pub(super) by_name: bool,
}

/// A table that is to have the key.
#[derive(Clone, Debug)]
pub(super) struct KeyTable {
    pub(super) oid: u32,
    /// The table of the key.
    pub(super) key_table: u32,
    /// Its quoted name.
    pub(super) sql: String,
    /// The schema, quoted.
    pub(super) schema: String,
    /// For people.
    pub(super) label: String,
    /// The key's column.
    pub(super) column: String,
    /// How the column is defined, if it is to be added.
    pub(super) definition: String,
    /// The path's first step; none if the column is the application's own.
    pub(super) parent: Option<Parent>,
    pub(super) details: Details,
    pub(super) record: Option<Record>,
}

impl KeyTable {
    /// The key's table and the path's first step as they are recorded.
    pub(super) fn way(&self) -> String {
        match &self.parent {
            None => format!("{}/", self.key_table),
            Some(parent) => {
                let pairs = parent.pairs.iter();
                let pairs: Vec<String> = pairs.map(|(own, to)| format!("{own}={to}")).collect();
                format!("{}/{}:{}", self.key_table, parent.oid, pairs.join(","))
            }
        }
    }

    /// Whether the replica identity has the key.
    pub(super) fn is_identified(&self) -> bool {
        self.details.identity_columns.contains(&self.column)
    }

    /// Whether the primary key has the key, so that no other index is needed.
    pub(super) fn is_in_primary(&self) -> bool {
        self.details.primary.contains(&self.column)
    }

    pub(super) fn is_not_null(&self) -> bool {
        self.details
            .column(&self.column)
            .is_some_and(|column| column.not_null)
    }

    /// Our index.
    pub(super) fn index(&self) -> String {
        format!("pgshard_key_{}", self.oid)
    }
}

/// The key's column, where its table and name imply nothing else: `user_id` for `users.id`.
pub(super) fn column_name(table: &str, column: &str) -> String {
    let last = table.rsplit('_').next().unwrap_or(table);
    let lower = last.to_lowercase();
    let stem = if let Some(stem) = lower.strip_suffix("ies") {
        format!("{stem}y")
    } else if lower.ends_with("ss") {
        lower
    } else {
        lower.strip_suffix('s').unwrap_or(&lower).to_owned()
    };
    if column.to_lowercase().starts_with(&stem) {
        column.to_owned()
    } else {
        format!("{stem}_{column}")
    }
}

pub(super) fn table_sql(table: &Table) -> String {
    format!(
        "{}.{}",
        quote_ident(&table.schema),
        quote_ident(&table.name)
    )
}

/// The tables that are imported, each after the table from which it has its key. Without `only`
/// that is all of them.
pub(super) fn tables(
    database: &Database,
    decisions: &Decisions,
    details: &BTreeMap<u32, Details>,
    records: &BTreeMap<u32, Record>,
    names: &BTreeMap<u32, String>,
    only: &BTreeSet<u32>,
) -> Vec<KeyTable> {
    let wanted = wanted(database, decisions, only);
    let mut found: Vec<(usize, KeyTable)> = Vec::new();
    let columns = key_columns(database, decisions, names);
    for (oid, decision) in decisions {
        let (true, Some(table), Some(details)) = (
            wanted.contains(oid) && decision.is_imported(),
            database.tables.get(oid),
            details.get(oid),
        ) else {
            continue;
        };
        let step = first_step(database, decision);
        let parent = step.and_then(|step| parent(database, step, &columns));
        let depth = match decision {
            Decision::Key => 0,
            Decision::Path(path) => path.steps.len() + 1,
            _ => 1,
        };
        let Some(column) = columns.get(oid).cloned() else {
            continue;
        };
        found.push((
            depth,
            KeyTable {
                oid: *oid,
                key_table: database.key.table,
                sql: table_sql(table),
                schema: quote_ident(&table.schema),
                label: database.name(*oid),
                column,
                definition: String::new(),
                parent,
                details: details.clone(),
                record: records.get(oid).cloned(),
            },
        ));
    }
    found.sort_by(|a, b| (a.0, &a.1.label).cmp(&(b.0, &b.1.label)));
    let mut found: Vec<KeyTable> = found.into_iter().map(|(_, table)| table).collect();
    let of_key = details.get(&database.key.table).and_then(|details| {
        let name = database.column_name(database.key.table, database.key.column);
        details.column(name)
    });
    for table in &mut found {
        table.definition = of_key.map_or_else(String::new, Column::definition);
        if let Some(parent) = &mut table.parent
            && let Some(details) = details.get(&parent.oid)
        {
            parent.primary.clone_from(&details.primary);
        }
    }
    found
}

/// The tables that are named, and those on their paths to the key.
fn wanted(database: &Database, decisions: &Decisions, only: &BTreeSet<u32>) -> BTreeSet<u32> {
    if only.is_empty() {
        return decisions.keys().copied().collect();
    }
    let mut wanted = only.clone();
    for table in only {
        let steps = match decisions.get(table) {
            Some(Decision::Path(path)) => path.steps.as_slice(),
            _ => &[],
        };
        let steps = steps.iter().filter_map(|at| database.foreign_keys.get(*at));
        let on_the_way = steps
            .map(|step| step.target)
            .filter(|target| matches!(decisions.get(target), Some(Decision::Path(_))));
        wanted.extend(on_the_way);
    }
    wanted
}

fn first_step<'a>(database: &'a Database, decision: &Decision) -> Option<&'a ForeignKey> {
    match decision {
        Decision::Path(path) => database.foreign_keys.get(*path.steps.first()?),
        _ => None,
    }
}

/// The key's column in each imported table.
fn key_columns(
    database: &Database,
    decisions: &Decisions,
    names: &BTreeMap<u32, String>,
) -> BTreeMap<u32, String> {
    let key = database.key;
    let of_key = database.column_name(key.table, key.column);
    let of_table = database.tables.get(&key.table);
    let implied = column_name(of_table.map_or("", |table| &table.name), of_key);
    let column = |(oid, decision): (&u32, &Decision)| {
        let column = match decision {
            Decision::Key => of_key.to_owned(),
            Decision::Column(column) => database.column_name(*oid, column.column).to_owned(),
            Decision::Path(_) => names.get(oid).unwrap_or(&implied).clone(),
            _ => return None,
        };
        Some((*oid, column))
    };
    decisions.iter().filter_map(column).collect()
}

fn parent(
    database: &Database,
    step: &ForeignKey,
    columns: &BTreeMap<u32, String>,
) -> Option<Parent> {
    let table = database.tables.get(&step.target)?;
    let pairs = step.columns.iter().zip(&step.target_columns);
    let name = |table, number: &i16| database.column_name(table, *number).to_owned();
    let pairs = pairs.map(|(own, to)| (name(step.table, own), name(step.target, to)));
    Some(Parent {
        oid: step.target,
        sql: table_sql(table),
        label: database.name(step.target),
        key: columns.get(&step.target)?.clone(),
        pairs: pairs.collect(),
        primary: Vec::new(),
        comes_later: step.deferrable || step.by_name,
        by_name: step.by_name,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_names_its_column() {
        for (table, column, expected) in [
            ("users", "id", "user_id"),
            ("auth_user", "id", "user_id"),
            ("companies", "id", "company_id"),
            ("User", "id", "user_id"),
            ("address", "id", "address_id"),
            ("users", "username", "username"),
            ("users", "user_id", "user_id"),
            ("tenants", "slug", "tenant_slug"),
        ] {
            assert_eq!(column_name(table, column), expected, "{table}.{column}");
        }
    }
}
