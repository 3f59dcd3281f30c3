//! What the router has found of the tables of look-ups on an unsharded host.
//!
//! Invariant: it holds for one epoch of one host, so that a host which was sharded in between is
//! read again. There is at most one for each look-up of the config.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::sql::Sql;
use crate::map::{HostName, ShardEpoch};
use crate::shard::WholeSchema;

/// An unsharded host, as far as the router knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WholeHost {
    pub(crate) name: HostName,
    /// The schema with the rows of all shards.
    pub(crate) schema: WholeSchema,
    pub(super) epoch: ShardEpoch,
}

/// The table of a look-up.
#[derive(Clone, Debug)]
pub(crate) struct LookupTable {
    /// The types of the look-up's columns, as shards call them.
    pub(crate) kinds: Vec<String>,
    /// Reads the key of the row with the values that are its parameters.
    pub(crate) find: Sql,
}

/// The tables found so far, by the name of the look-up.
#[derive(Default)]
pub(super) struct LookupTables(Mutex<HashMap<String, (WholeHost, Arc<LookupTable>)>>);

impl LookupTables {
    /// The look-up's table on this host, if it was found.
    pub(super) fn get(&self, lookup: &str, host: &WholeHost) -> Option<Arc<LookupTable>> {
        let tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (on, table) = tables.get(lookup)?;
        (on == host).then(|| table.clone())
    }

    /// Keeps what was found of the look-up's table on this host.
    pub(super) fn set(&self, lookup: &str, host: WholeHost, table: Arc<LookupTable>) {
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tables.insert(lookup.to_owned(), (host, table));
    }
}
