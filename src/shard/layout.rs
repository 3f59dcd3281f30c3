//! How a host keeps its shards: each in a schema of its own, or all of them in one schema of
//! ordinary tables.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use super::{KeyKind, SchemaPrefix};

/// How a host keeps its shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// Each shard has a schema of its own.
    #[default]
    Sharded,
    /// The host serves all shards of the cluster from this one schema of ordinary tables
    /// (`docs/from-one-database.md`).
    Unsharded(WholeSchema),
}

impl Layout {
    /// What a host of this layout records as the kind of its keys: of an unsharded host another
    /// word than any client knows that takes every host for a sharded one, so that it sends
    /// nothing there.
    pub fn recorded_key(&self, key: KeyKind) -> Cow<'static, str> {
        match self {
            Layout::Sharded => Cow::Borrowed(key.as_str()),
            Layout::Unsharded(_) => Cow::Owned(format!("{UNSHARDED}{key}")),
        }
    }

    /// The schema of all shards, if there is one.
    pub fn whole(&self) -> Option<&WholeSchema> {
        match self {
            Layout::Sharded => None,
            Layout::Unsharded(schema) => Some(schema),
        }
    }
}

/// What the recorded kind of keys of an unsharded host begins with.
const UNSHARDED: &str = "unsharded-";

/// The kind of keys in what a host has recorded, if it recorded that it is unsharded.
pub(crate) fn unsharded_key(recorded: &str) -> Option<&str> {
    recorded.strip_prefix(UNSHARDED)
}

/// The name of the schema that has the rows of all shards. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WholeSchema(Arc<str>);

/// Why a name is not that of a schema of all shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WholeSchemaError {
    /// PostgreSQL cannot have it, or cuts it off.
    #[error("a schema's name has 1 to 63 bytes, none of them zero")]
    NoName,
    /// It belongs to PostgreSQL or to pgshard.
    #[error("the schema {name} is PostgreSQL's or pgshard's own")]
    Reserved {
        /// The name.
        name: String,
    },
    /// A shard's schema may have it.
    #[error("the schema {name} is named as a shard's, which begin with {prefix}")]
    OfShard {
        /// The name.
        name: String,
        /// What the names of the shards' schemas begin with.
        prefix: SchemaPrefix,
    },
}

impl WholeSchema {
    /// The name, as the catalogs have it, in a cluster whose shards have this prefix.
    ///
    /// # Errors
    /// When it cannot be the name of a schema, is a reserved one, or looks like a shard's.
    pub fn new(name: &str, prefix: &SchemaPrefix) -> Result<WholeSchema, WholeSchemaError> {
        if name.is_empty() || name.len() > 63 || name.contains('\0') {
            return Err(WholeSchemaError::NoName);
        }
        let is_own = name == "pgshard" || name.starts_with("pgshard_");
        if is_own || name.starts_with("pg_") || name == "information_schema" {
            let name = name.to_owned();
            return Err(WholeSchemaError::Reserved { name });
        }
        let number = name.strip_prefix(prefix.as_str());
        if number.is_some_and(|number| number.starts_with(|c: char| c.is_ascii_digit())) {
            let (name, prefix) = (name.to_owned(), prefix.clone());
            return Err(WholeSchemaError::OfShard { name, prefix });
        }
        Ok(WholeSchema(name.into()))
    }

    /// The name, not quoted.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for WholeSchema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_no_schema_of_all_shards_has() {
        let prefix = SchemaPrefix::default();
        let longest = "x".repeat(63);
        for name in [
            "app",
            "public",
            "shard_app",
            "shards",
            "pgsharding",
            "Ü\"",
            &longest,
        ] {
            assert_eq!(WholeSchema::new(name, &prefix).unwrap().as_str(), name);
        }
        let longer = "x".repeat(64);
        for name in [
            "",
            "a\0b",
            &longer,
            "pg_toast",
            "pg_app",
            "pgshard",
            "pgshard_map",
            "information_schema",
            "shard_0007",
            "shard_7",
            "shard_0007__left_e1",
        ] {
            assert!(WholeSchema::new(name, &prefix).is_err(), "{name}");
        }
    }

    #[test]
    fn no_older_client_knows_the_recorded_kind() {
        let schema = WholeSchema::new("app", &SchemaPrefix::default()).unwrap();
        for key in KeyKind::ALL {
            assert_eq!(Layout::Sharded.recorded_key(key), key.as_str());
            let recorded = Layout::Unsharded(schema.clone()).recorded_key(key);
            assert!(recorded.parse::<KeyKind>().is_err());
            assert_eq!(unsharded_key(&recorded), Some(key.as_str()));
            assert_eq!(unsharded_key(key.as_str()), None);
        }
    }
}
