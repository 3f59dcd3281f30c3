//! A statement that failed on a connection, and what its error means.

use tokio_postgres::Client;
use tokio_postgres::types::WrongType;

use super::origin::Origin;
use super::stale::MoveSignal;
use super::statement_class::StatementClass;

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

    /// Whether the statement, which was not known to only read, may have taken effect.
    pub(super) fn may_have_run(&self, class: StatementClass) -> bool {
        self.sent
            && match Origin::of(&self.error) {
                Origin::BeforeSending => false,
                // What failed is undone, unless it can commit before its end.
                Origin::Server => !class.repeatable(),
                Origin::Lost | Origin::Answer => true,
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
