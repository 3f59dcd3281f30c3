//! What a backfill reports, while it works and at its end.

use std::collections::{BTreeMap, BTreeSet};

use uuid::Uuid;

use crate::map::{HostName, print_shards};
use crate::schema::fleet::fault::HostFault;
use crate::shard::ShardId;

/// Why a shard is not done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackfillFault {
    /// No host that answers serves the shard.
    #[error("no host says that it serves it{}", silent_hosts(silent))]
    Unserved {
        /// The hosts that could not be read.
        silent: Vec<String>,
    },
    /// It moved to a host that is not in the config.
    #[error("it has moved to {host}, which is not in the config")]
    Absent {
        /// The host.
        host: HostName,
    },
    /// A move has closed it for longer than the patience lasts.
    #[error("a move has closed it, and it has not opened again")]
    Moving,
    /// Another session was in the way each time, until the patience was over.
    #[error("busy: {words}")]
    Busy {
        /// What the last try failed with.
        words: String,
    },
    /// The ranges cannot be formed over this table and column.
    #[error("{words}")]
    Unfit {
        /// Why not.
        words: String,
    },
    /// The statement failed over a range; nothing of that range is left.
    #[error("the range from {low} to {high} failed: {words}")]
    Range {
        /// Its first key.
        low: String,
        /// Its last key.
        high: String,
        /// The server's error.
        words: String,
    },
    /// It was begun with another statement in the meantime.
    #[error("it was begun with another statement, table or key")]
    Edited,
    /// Its host does not answer.
    #[error("{reason}")]
    Host {
        /// The host's fault.
        reason: String,
    },
    /// So many shards had failed before any was done that the rest was not tried.
    #[error("not tried: the {failed} shards before it failed")]
    NotTried {
        /// How many.
        failed: usize,
    },
}

/// The hosts that could not be read, if there are any.
fn silent_hosts(silent: &[String]) -> String {
    if silent.is_empty() {
        String::new()
    } else {
        format!(": {} could not be asked", silent.join(", "))
    }
}

impl BackfillFault {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            BackfillFault::Unserved { .. } => {
                "run `pgshard check`; then run the same command again"
            }
            BackfillFault::Absent { .. } => {
                "add the host to the config; then run the same command again"
            }
            BackfillFault::Moving => "see `pgshard moves list`; then run the same command again",
            BackfillFault::Busy { .. } | BackfillFault::Host { .. } => "run the same command again",
            BackfillFault::Unfit { .. } => {
                "name a table and a column that every shard has, with an index"
            }
            BackfillFault::Range { .. } => {
                "correct those rows and run the same command again, or begin a backfill with \
                                            another statement under another name"
            }
            BackfillFault::Edited => REMEDY_EDITED,
            BackfillFault::NotTried { .. } => {
                "look at the faults of those shards; then run the same command again"
            }
        }
    }
}

/// What to do when the statement differs from the one that was begun.
const REMEDY_EDITED: &str = "restore the statement; or give the new one a name of its \
    own: it then begins at the first key again";

/// Why nothing is run on any host.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackfillError {
    /// Shards have begun it with another statement, table or key.
    #[error(
        "{name} was begun with another statement, table or key in the shards {}",
        print_shards(shards.iter().copied())
    )]
    Edited {
        /// The backfill.
        name: String,
        /// The shards.
        shards: Vec<ShardId>,
    },
}

impl BackfillError {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            BackfillError::Edited { .. } => REMEDY_EDITED,
        }
    }
}

/// Something that happened.
#[derive(Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A host was read.
    Planned {
        /// The host.
        host: &'a HostName,
        /// How many of its shards are to be done.
        to_do: usize,
        /// How many are done already.
        unchanged: usize,
    },
    /// A move can no longer be rolled back, because the table of the progress is created in its
    /// shards.
    EndsWayBack {
        /// The move.
        move_id: Uuid,
        /// The shards.
        shards: Vec<ShardId>,
    },
    /// A range was run.
    RangeDone {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// How many rows the statement has touched.
        rows: u64,
    },
    /// Work on a host waits until its standbys have caught up.
    Throttled {
        /// The host.
        host: &'a HostName,
        /// How far the slowest is behind.
        bytes: u64,
    },
    /// A host has standbys with a lag that the role is not allowed to see.
    LagHidden {
        /// The host.
        host: &'a HostName,
    },
    /// A shard is done.
    ShardDone {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// The rows of this run.
        rows: u64,
    },
    /// Work on a shard has ended without success.
    ShardFailed {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// Why.
        fault: &'a BackfillFault,
    },
}

/// Is called with each event, while it happens.
pub type Observer<'a> = &'a (dyn Fn(Event<'_>) + Sync);

/// The result of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The shards that this run has finished.
    pub done: BTreeSet<ShardId>,
    /// How many were finished before.
    pub unchanged: usize,
    /// The shards in which there is a record of it, finished or not: this run has made it, or an
    /// earlier one.
    pub begun: BTreeSet<ShardId>,
    /// How many rows the statement has touched in this run.
    pub rows: u64,
    /// The shards that are not finished, each with the reason.
    pub left: BTreeMap<ShardId, BackfillFault>,
    /// The hosts that could not be read.
    pub silent: BTreeMap<HostName, HostFault>,
}

impl Report {
    /// Whether every requested shard is finished.
    pub fn is_complete(&self) -> bool {
        self.left.is_empty()
    }
}
