//! The names of the schemas that a move makes, and the identity of a move.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::map::ShardEpoch;

/// The identity of one `pgshard move`, of any number of shards. It is written as a UUID; version 7,
/// so that moves sort by time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId(Uuid);

impl MoveId {
    pub(crate) fn new() -> MoveId {
        MoveId(Uuid::now_v7())
    }

    pub(crate) fn uuid(&self) -> &Uuid {
        &self.0
    }
}

impl From<Uuid> for MoveId {
    fn from(id: Uuid) -> MoveId {
        MoveId(id)
    }
}

impl FromStr for MoveId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<MoveId, uuid::Error> {
        text.trim().parse().map(MoveId)
    }
}

impl fmt::Display for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for MoveId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The schemas of a shard during a move. The control schema's functions form the same names.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    /// The shard's own: `shard_0007`.
    pub(crate) schema: String,
}

impl Names {
    /// The schema in which the target's copy is built.
    pub(crate) fn incoming(&self) -> String {
        format!("{}__incoming", self.schema)
    }

    /// The schema that will take the shard's place on the source.
    pub(crate) fn signpost(&self) -> String {
        format!("{}__signpost", self.schema)
    }

    /// The name that the fence gives to the shard on the source.
    pub(crate) fn left(&self, epoch: ShardEpoch) -> String {
        format!("{}__left_e{epoch}", self.schema)
    }
}
