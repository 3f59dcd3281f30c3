//! What is read of a host, and what the rows of a column show.

use std::collections::BTreeMap;

use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::schema::control::Cluster;
use crate::shard::ShardId;

/// A host, and the schemas of the shards that it serves.
#[derive(Clone, Debug)]
pub struct HostShards {
    /// The host.
    pub host: HostName,
    /// How to connect.
    pub connect: ConnectOptions,
    /// The shards.
    pub schemas: BTreeMap<ShardId, String>,
}

/// What rows have to be like.
#[derive(Clone, Copy, Debug)]
pub struct RowRules<'a> {
    /// What IDs and keys are made of.
    pub cluster: &'a Cluster,
    /// The columns with the sharding keys, by the names of their tables.
    pub keys: &'a BTreeMap<String, String>,
}

/// What the rows of one column show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Column {
    pub(super) shard: ShardId,
    pub(super) table: String,
    pub(super) name: String,
    pub(super) filled_by: FilledBy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FilledBy {
    /// `next_id()`.
    Shard {
        /// How many rows have an ID of another shard, and one of those.
        foreign: Option<(i64, i64)>,
        /// The last of the shard's own IDs.
        largest: Option<i64>,
        /// Whether the shard has not given out that ID yet.
        is_ahead: bool,
    },
    /// The application: it holds the sharding key. How many rows have a key of another shard, and
    /// one of those.
    Key(Option<(i64, String)>),
    /// It was to hold the sharding key, and cannot: what is wrong with it.
    NoKey(String),
    /// A sequence by its quoted name, and the value that it will reach although a row has it
    /// already.
    Sequence { name: String, behind: Option<i64> },
    /// Its table was not read.
    Unread(Unread),
}

/// Why a table is not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unread {
    /// It belongs to this role, which could run any code as the role that reads it.
    OfAnother(String),
    /// Policies hide rows of it from the config's role.
    Hidden,
    /// The server refuses a statement: another session has locked it, or its shard has left.
    Refused(String),
}
