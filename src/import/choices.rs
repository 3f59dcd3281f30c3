//! What an engineer has decided about tables, in place of what the assessment would decide.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::error::Error;
use super::facts::{Chosen, Database, ForeignKey, Table};
use super::key::KeyName;

/// A table as it is named on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TableName {
    /// The schema, if it is named.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
}

/// A text that names no table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write TABLE or SCHEMA.TABLE, such as audit_log")]
pub struct TableNameError;

impl FromStr for TableName {
    type Err = TableNameError;

    fn from_str(text: &str) -> Result<TableName, TableNameError> {
        let words: Vec<&str> = text.split('.').collect();
        let (schema, table) = match words.as_slice() {
            [table] => (None, *table),
            [schema, table] if !schema.is_empty() => (Some((*schema).to_owned()), *table),
            _ => return Err(TableNameError),
        };
        if table.is_empty() {
            return Err(TableNameError);
        }
        Ok(TableName {
            schema,
            table: table.to_owned(),
        })
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        write!(f, "{}", self.table)
    }
}

/// What an engineer has decided.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Choices {
    /// Tables that stay where they are.
    pub stays: Vec<TableName>,
    /// Tables that each host gets.
    pub references: Vec<TableName>,
    /// The column that determines to which key the rows of a table belong: it has the key, or
    /// refers to a row that has it.
    pub by: Vec<KeyName>,
}

setters! { Choices: stays: Vec<TableName>, references: Vec<TableName>, by: Vec<KeyName> }

/// Finds the tables and columns. A column that no foreign key covers and no name explains, but with
/// the type of the key, is taken for the key.
pub(super) fn resolve(database: &mut Database, choices: &Choices) -> Result<(), Error> {
    let mut chosen = Chosen::default();
    let mut seen = BTreeSet::new();
    let key = database.key;
    for (names, set) in [
        (&choices.stays, &mut chosen.stays),
        (&choices.references, &mut chosen.references),
    ] {
        for name in names {
            let table = find(database, name)?.oid;
            if table == key.table {
                let choice = name.to_string();
                return Err(Error::KeyTableChosen { choice });
            }
            if !seen.insert(table) {
                let choice = name.to_string();
                return Err(Error::ChosenTwice { choice });
            }
            set.insert(table);
        }
    }
    let mut added = Vec::new();
    for name in &choices.by {
        let choice = name.to_string();
        let table = find(
            database,
            &TableName {
                schema: name.schema.clone(),
                table: name.table.clone(),
            },
        )?;
        if table.oid == key.table {
            return Err(Error::KeyTableChosen { choice });
        }
        let Some(column) = table.column_named(&name.column) else {
            return Err(Error::NoKeyColumn { key: name.clone() });
        };
        if !seen.insert(table.oid) {
            return Err(Error::ChosenTwice { choice });
        }
        chosen.by.insert(table.oid, column.number);
        let is_known = database
            .foreign_keys_of(table.oid)
            .any(|foreign| foreign.columns.contains(&column.number));
        let is_alike = database
            .column(key.table, key.column)
            .is_some_and(|of_key| column.is_alike(of_key));
        if !is_known && is_alike && !table.is_foreign() {
            added.push(ForeignKey {
                name: name.column.clone(),
                table: table.oid,
                columns: vec![column.number],
                target: key.table,
                target_columns: vec![key.column],
                by_name: true,
                deferrable: false,
                sample: Default::default(),
            });
        }
    }
    database.foreign_keys.extend(added);
    database.chosen = chosen;
    Ok(())
}

/// Finds a table by its name.
pub(super) fn find<'a>(database: &'a Database, name: &TableName) -> Result<&'a Table, Error> {
    let fits = |schema: &str| name.schema.as_deref().is_none_or(|wanted| wanted == schema);
    let home = database.tables.get(&database.key.table);
    let named = database.tables.values();
    let mut named: Vec<&Table> = named
        .filter(|table| table.name == name.table && fits(&table.schema))
        .collect();
    // Of several, the one next to the key's table.
    if named.len() > 1 {
        named.retain(|table| home.is_some_and(|home| home.schema == table.schema));
    }
    named.first().copied().ok_or_else(|| Error::NoTable {
        table: name.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_one_or_two_names() {
        let name: TableName = "audit.log".parse().unwrap();
        assert_eq!(name.schema.as_deref(), Some("audit"));
        assert_eq!(name.to_string(), "audit.log");
        assert_eq!("log".parse::<TableName>().unwrap().schema, None);
        for wrong in ["", ".log", "audit.", "a.b.c"] {
            assert_eq!(wrong.parse::<TableName>(), Err(TableNameError), "{wrong}");
        }
    }
}
