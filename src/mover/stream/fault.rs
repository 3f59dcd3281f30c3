//! What ends the following of one shard, or of all.

use tokio_postgres::error::SqlState;

use crate::map::HostName;
use crate::mover::protocol::error::Error;
use crate::pg::ReplicationError;
use crate::shard::ShardId;

/// Why a shard is no longer followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Another mover has taken it.
    LeaseLost,
    /// The target differs from the source.
    Diverged {
        /// The table.
        table: String,
        /// What was to be done.
        what: String,
    },
    /// The stream describes the table differently from how the target was built: it was altered,
    /// perhaps only for a while.
    Altered {
        /// The table.
        table: String,
        /// What is different.
        what: String,
    },
    /// The target has less than it has confirmed to the source: it has lost changes, and the source
    /// does not send them again.
    StreamLost {
        /// The target.
        host: HostName,
    },
    /// The driver does not need it any longer.
    Detached,
    /// The target has no disk space left.
    Full {
        /// The target.
        host: HostName,
        /// The server's message.
        message: String,
    },
    /// The whole group ended.
    Ended(String),
}

impl Fault {
    pub(crate) fn into_error(self, shard: ShardId) -> Error {
        match self {
            Fault::LeaseLost => Error::LeaseLost { shard },
            Fault::Diverged { table, what } => Error::Diverged { shard, table, what },
            Fault::Altered { table, what } => Error::Altered {
                shard,
                what: format!("table {table}: {what}"),
            },
            Fault::StreamLost { host } => Error::StreamLost { shard, host },
            Fault::Full { host, message } => Error::TargetFull {
                shard,
                host,
                message,
                left: None,
            },
            Fault::Detached => Error::Unfollowed {
                shard: Some(shard),
                why: "it was detached".to_owned(),
            },
            Fault::Ended(why) => Error::Unfollowed {
                shard: Some(shard),
                why,
            },
        }
    }
}

/// What interrupts the work.
#[derive(Debug)]
pub(crate) enum Failure {
    /// One shard cannot continue; the others can, from the last durable position.
    Shard(ShardId, Fault),
    /// A connection is lost, or something else that may be temporary.
    Passing(Box<Error>),
    /// Nothing that a new attempt would help with.
    Final(Box<Error>),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        match error {
            Error::SlotLost { .. }
            | Error::Malformed { .. }
            | Error::UnknownHost { .. }
            | Error::OtherHost { .. }
            | Error::OtherCluster { .. }
            | Error::Failpoint { .. } => Failure::Final(Box::new(error)),
            error if is_unpublished(&error) => Failure::Final(Box::new(error)),
            error => Failure::Passing(Box::new(error)),
        }
    }
}

/// Whether the source's server finds a change in its WAL from a time at which the publication did
/// not exist. It would answer the same for ever: a publication that is made again is younger than
/// that.
fn is_unpublished(error: &Error) -> bool {
    let Error::Replication {
        source: ReplicationError::Refused { code, .. },
        ..
    } = error
    else {
        return false;
    };
    code == SqlState::UNDEFINED_OBJECT.code()
}

/// Whether the source's server finds a change in its WAL for a table that it no longer knows, for
/// example because the table was rewritten at the wrong moment: `ReorderBufferProcessTXN` in
/// PostgreSQL's reorderbuffer.c. Before 16 its term for the file was another.
pub(crate) fn is_undecodable(error: &Error) -> bool {
    let Error::Replication {
        source: ReplicationError::Refused { code, message, .. },
        ..
    } = error
    else {
        return false;
    };
    // XX000 only means that it is PostgreSQL's own fault; its messages for that are never
    // translated.
    code == SqlState::INTERNAL_ERROR.code()
        && ["filenumber \"", "filenode \""]
            .iter()
            .any(|file| message.contains(file))
}
