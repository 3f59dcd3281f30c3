//! The key that an import is assessed for: `users.id`, `app.users.id`.

use std::fmt;
use std::str::FromStr;

/// The key as it is named on the command line: a table, with its schema or without, and a column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyName {
    /// The schema, if it is named.
    pub schema: Option<String>,
    /// The table.
    pub table: String,
    /// The column.
    pub column: String,
}

/// A text that names no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write TABLE.COLUMN or SCHEMA.TABLE.COLUMN, such as users.id")]
pub struct KeyNameError;

impl FromStr for KeyName {
    type Err = KeyNameError;

    fn from_str(text: &str) -> Result<KeyName, KeyNameError> {
        let words: Vec<&str> = text.split('.').collect();
        if words.iter().any(|word| word.is_empty()) {
            return Err(KeyNameError);
        }
        let (schema, table, column) = match words.as_slice() {
            [table, column] => (None, *table, *column),
            [schema, table, column] => (Some((*schema).to_owned()), *table, *column),
            _ => return Err(KeyNameError),
        };
        Ok(KeyName {
            schema,
            table: table.to_owned(),
            column: column.to_owned(),
        })
    }
}

impl fmt::Display for KeyName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(schema) = &self.schema {
            write!(f, "{schema}.")?;
        }
        write!(f, "{}.{}", self.table, self.column)
    }
}

/// The key in a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyColumn {
    /// The OID of its table.
    pub(crate) table: u32,
    /// The number of the column.
    pub(crate) column: i16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_two_or_three_names() {
        let key: KeyName = "app.users.id".parse().unwrap();
        assert_eq!(key.schema.as_deref(), Some("app"));
        assert_eq!(key.to_string(), "app.users.id");
        assert_eq!("users.id".parse::<KeyName>().unwrap().schema, None);
        for wrong in ["", "id", "users.", ".id", "a.b.c.d"] {
            assert_eq!(wrong.parse::<KeyName>(), Err(KeyNameError), "{wrong}");
        }
    }
}
