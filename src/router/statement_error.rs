//! A statement that failed on a connection, and what its error means.

use tokio_postgres::Client;
use tokio_postgres::types::WrongType;

use super::error::Error;
use super::next::{ConnectionKind, Effect, FailedStatement, Fate, Link, StatementEnd};
use super::origin::Origin;
use super::stale::MoveSignal;
use crate::map::HostName;
use crate::pg::state;
use crate::shard::ShardId;

/// A statement that failed.
pub(super) struct StatementError {
    pub(super) error: tokio_postgres::Error,
    /// It had been prepared earlier, so that what it was prepared for may have changed since.
    pub(super) prepared_before: bool,
    /// It was sent for execution, not only prepared.
    pub(super) sent: bool,
}

impl StatementError {
    /// Whether the connection is gone, with the statement or before it.
    pub(super) fn lost(&self, connection: &Client) -> bool {
        match Origin::of(&self.error) {
            Origin::BeforeSending => false,
            Origin::Lost => true,
            Origin::Server | Origin::Answer => connection.is_closed(),
        }
    }

    /// Whether the connection is of no use any more: the answer does not fit the request, so that
    /// it belongs to another statement, or continues, or waits for a message that is never sent.
    pub(super) fn is_unexpected(&self) -> bool {
        Origin::of(&self.error) == Origin::Answer
    }

    /// The same as [`StatementError::lost`].
    pub(super) fn link(&self, connection: &Client) -> Link {
        match self.lost(connection) {
            true => Link::Lost,
            false => Link::Kept,
        }
    }

    /// What a decision needs to know of it.
    pub(super) fn observed(
        &self,
        connection: ConnectionKind,
        link: Link,
        effect: Effect,
    ) -> FailedStatement {
        let fate = match (Origin::of(&self.error), link) {
            (Origin::BeforeSending, _) => Fate::NotSent,
            _ if !self.sent => Fate::NotSent,
            (Origin::Server, Link::Kept) => Fate::Refused,
            (Origin::Server, Link::Lost) | (Origin::Lost | Origin::Answer, _) => Fate::Unknown,
        };
        FailedStatement {
            connection,
            link,
            fate,
            effect,
            signal: MoveSignal::of(&self.error),
            outdated: self.may_be_outdated(),
            refused_to_write: state::is_read_only(&self.error),
        }
    }

    /// The error of a call that ends with it.
    pub(super) fn ended(self, end: StatementEnd, shard: ShardId, host: HostName) -> Error {
        let source = self.error.into();
        match end {
            StatementEnd::ConnectionLost { may_have_run } => Error::ConnectionLost {
                shard,
                host,
                may_have_run,
                source,
            },
            StatementEnd::Refused { may_have_run } => Error::Statement {
                shard,
                host,
                may_have_run,
                source,
            },
            StatementEnd::NotRepeated => Error::NotRepeated {
                shard,
                host,
                source,
            },
        }
    }

    /// Whether the same statement, prepared again, may succeed: it was prepared before a migration
    /// of the application, or before its shard went away and came back.
    pub(super) fn may_be_outdated(&self) -> bool {
        let code = self.error.code().map(|code| code.code());
        let relative = || MoveSignal::of(&self.error) == Some(MoveSignal::Ambiguous);
        self.prepared_before && (code == Some("26000") || relative() || self.is_of_another_type())
    }

    /// Whether the driver did not send it, since a parameter is of another type than the server
    /// wanted when the statement was prepared.
    fn is_of_another_type(&self) -> bool {
        std::error::Error::source(&self.error).is_some_and(|cause| cause.is::<WrongType>())
    }

    /// Whether the session may remember what it saw of a signpost. A function from outside the
    /// shard that ran into a signpost was compiled for the signpost's columns. The signpost itself
    /// gives three lines of CONTEXT, so a longer one has such a function in it.
    pub(super) fn may_be_remembered(&self) -> bool {
        match MoveSignal::of(&self.error) {
            None => false,
            Some(MoveSignal::Ambiguous) => true,
            Some(MoveSignal::Signpost) => {
                let context = self.error.as_db_error().and_then(|error| error.where_());
                context.is_none_or(|context| context.lines().count() > 3)
            }
        }
    }
}
