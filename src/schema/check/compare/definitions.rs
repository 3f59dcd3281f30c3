//! The definitions of shards as they were read.

use std::collections::{BTreeMap, BTreeSet};

use crate::map::HostName;
use crate::shard::ShardId;

/// The definitions of a host's shards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Definitions {
    pub(super) properties: Vec<Property>,
    /// The values that were read: some, of properties in which shards differ.
    pub(super) texts: BTreeMap<Subject, BTreeMap<ShardId, String>>,
}

/// A property of an object, and the shards that have it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Property {
    pub(super) subject: Subject,
    /// A digest that is equal where the value is equal, apart from the shard's number.
    pub(super) digest: String,
    pub(super) shards: Vec<ShardId>,
    /// The digests of the values as they are, in the order of the shards. Empty if their numbers
    /// are not in them: then [`digest`](Property::digest) is that of all.
    pub(super) plain: Vec<String>,
}

/// Properties of shards.
pub(super) type SubjectsByShard = BTreeMap<ShardId, BTreeSet<Subject>>;

/// `table photos`, and which property: `column title`; empty for the object itself.
pub(super) type Subject = (String, String);

/// The definitions of the shards of all hosts.
pub type DefinitionSurvey = BTreeMap<HostName, Result<Definitions, String>>;
