//! What was done in a database, as it is recorded there: the schema `pgshard_import`.
//!
//! Invariant: a change of the application's tables and its record are one transaction; what cannot
//! be in one, an index that is built concurrently, is recorded before it begins. So at any moment
//! the record has everything that must be taken back.

use serde::Deserialize;

use crate::import::change::{ChangeError, Session, record};
use crate::pg::quote_literal;

/// Its table.
const TABLE: &str = "keys";

/// Makes the record. It locks nothing of the application's.
const MAKE: &str = "CREATE SCHEMA IF NOT EXISTS pgshard_import;
    CREATE TABLE IF NOT EXISTS pgshard_import.keys (
        relation oid PRIMARY KEY, key_column text NOT NULL, way text NOT NULL, parent oid,
        adds_column boolean NOT NULL DEFAULT false, sets_not_null boolean NOT NULL DEFAULT false,
        builds_index boolean NOT NULL DEFAULT false, identity_was text, identity_index_was text,
        filled_to text[], filled boolean NOT NULL DEFAULT false)";

/// What was done to a table.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Record {
    pub(super) relation: u32,
    /// The key's column.
    pub(super) key_column: String,
    /// The key's table, and the path's first step.
    pub(super) way: String,
    /// The table that the path leads to.
    pub(super) parent: Option<u32>,
    pub(super) adds_column: bool,
    pub(super) sets_not_null: bool,
    pub(super) builds_index: bool,
    pub(super) identity_was: Option<String>,
    pub(super) identity_index_was: Option<String>,
    /// The primary key up to which rows are filled.
    pub(super) filled_to: Option<Vec<String>>,
    /// Whether all rows were filled that could be.
    pub(super) filled: bool,
}

/// Makes the record if there is none.
pub(super) async fn make(session: &Session) -> Result<(), ChangeError> {
    let what = "create the schema pgshard_import";
    if record::exists(session, TABLE).await? {
        return Ok(());
    }
    session.execute(what, MAKE).await
}

/// Reads the record; nothing if there is none.
pub(super) async fn read(session: &Session) -> Result<Vec<Record>, ChangeError> {
    let what = "read pgshard_import.keys";
    if !record::exists(session, TABLE).await? {
        return Ok(Vec::new());
    }
    let sql = "SELECT row_to_json(k) FROM (SELECT relation::int8, key_column, way, parent::int8,
            adds_column, sets_not_null, builds_index, identity_was, identity_index_was, filled_to,
            filled FROM pgshard_import.keys ORDER BY relation) k";
    session.values(what, sql).await
}

/// A statement that begins a table's record, and sets one of its columns.
pub(super) fn sets(
    table: u32,
    column: &str,
    way: &str,
    parent: Option<u32>,
    set: (&str, &str),
) -> String {
    let (name, value) = set;
    format!(
        "INSERT INTO pgshard_import.keys AS k (relation, key_column, way, parent, {name})
        VALUES ({table}, {}, {}, {}, {value})
        ON CONFLICT (relation) DO UPDATE SET {name} = excluded.{name}",
        quote_literal(column),
        quote_literal(way),
        parent.map_or_else(|| "NULL".to_owned(), |parent| parent.to_string()),
    )
}

/// Drops the record and its schema, if nothing is left in them.
pub(super) async fn drop_if_empty(session: &Session) -> Result<(), ChangeError> {
    record::drop_if_empty(session, TABLE).await
}
