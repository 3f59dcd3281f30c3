//! Whether an error is for the application's developer to look into, or for the cluster's operator.

use tokio_postgres::error::SqlState;

use super::error::{Error, Expected, LookUpError};
use crate::pg::state::Class;

/// How a call ended, as the metrics count it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Ok,
    /// A constraint refused it.
    Constraint,
    /// The application made another mistake.
    Application,
    /// The closure of a transaction gave an error, and none of its statements had failed.
    RolledBack,
    /// It reached its time limit.
    Timeout,
    /// The cluster could not do it.
    Cluster,
    /// Its future was dropped before it ended.
    Dropped,
}

impl Outcome {
    pub(super) const ALL: [Outcome; 7] = [
        Outcome::Ok,
        Outcome::Constraint,
        Outcome::Application,
        Outcome::RolledBack,
        Outcome::Timeout,
        Outcome::Cluster,
        Outcome::Dropped,
    ];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Outcome::Ok => "ok",
            Outcome::Constraint => "constraint",
            Outcome::Application => "application",
            Outcome::RolledBack => "rolled_back",
            Outcome::Timeout => "timeout",
            Outcome::Cluster => "cluster",
            Outcome::Dropped => "dropped",
        }
    }

    pub(crate) fn of(error: &Error) -> Outcome {
        match error {
            error if error.is_constraint_violation() => Outcome::Constraint,
            Error::TimedOut { .. } => Outcome::Timeout,
            error if error.is_application() => Outcome::Application,
            _ => Outcome::Cluster,
        }
    }
}

/// Whether the statement or its values are to blame for this SQLSTATE. That is every code but those
/// for trouble of the server, for its load, and for conflicts with other transactions. A connection
/// survives 08P01 only where the statement is to blame, by the number of its parameters, for
/// example.
fn is_applications(code: &SqlState) -> bool {
    matches!(Class::of(code), Class::Application | Class::Protocol)
}

/// What an application wants to know of an error. Every error is the application's or the
/// cluster's. Whether it is worth another try, and whether the call may have taken effect, are
/// separate questions ([`Error::is_retryable`], [`Error::may_have_run`]). `examples/photo_app.rs`
/// answers HTTP requests by these.
impl Error {
    /// Whether the application requested something impossible: a constraint, a type, a name, a key
    /// of another kind, another number of rows. The same call gives the same error, however healthy
    /// the cluster is.
    pub fn is_application(&self) -> bool {
        match self {
            Error::NoSuchId { .. }
            | Error::LegacyId { .. }
            | Error::Unsharded { .. }
            | Error::Unrouted { .. }
            | Error::NoSuchShard { .. }
            | Error::WrongKey { .. }
            | Error::TransactionControl { .. }
            | Error::Unsupported { .. }
            | Error::NotARead { .. }
            | Error::RowCount { .. }
            | Error::Decode { .. }
            | Error::OutOfOrder { .. }
            | Error::TransactionEnded { .. }
            | Error::SavepointOpen { .. }
            | Error::Taken { .. }
            | Error::Lookup { .. }
            | Error::TransactionFailed { .. } => true,
            // Without a code, the driver has refused a parameter.
            Error::Statement { source, .. } => source.code().is_none_or(is_applications),
            Error::StreamStopped { source, .. } => source.code().is_some_and(is_applications),
            Error::Partial { application, .. } => *application,
            _ => false,
        }
    }

    /// Whether the cluster could not do it: a host out of reach, a pool or a server too busy, a
    /// move that takes long, a lost connection, a time limit, a conflict with another transaction.
    pub fn is_cluster(&self) -> bool {
        !self.is_application()
    }

    /// Whether there is no such row: `query_one` found none, or the ID names no shard of the
    /// cluster.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self,
            Error::RowCount {
                expected: Expected::One,
                got: 0,
                ..
            } | Error::NoSuchId { .. }
        )
    }

    /// Whether a time limit was reached: the call's, a pool's, or the server's `statement_timeout`
    /// (or another session cancelled the statement there).
    pub fn is_timeout(&self) -> bool {
        match self {
            Error::TimedOut { .. } | Error::PoolTimeout { .. } => true,
            Error::LookUp { source, .. } => matches!(**source, LookUpError::TimedOut(_)),
            _ => self.code() == Some(&SqlState::QUERY_CANCELED),
        }
    }

    /// Whether a primary key, a unique constraint, a unique index or a look-up has the value
    /// already.
    pub fn is_unique_violation(&self) -> bool {
        matches!(self, Error::Taken { .. }) || self.code() == Some(&SqlState::UNIQUE_VIOLATION)
    }

    /// Whether a constraint or a look-up refused it: unique, foreign key, check, not null,
    /// exclusion.
    pub fn is_constraint_violation(&self) -> bool {
        matches!(self, Error::Taken { .. })
            || self
                .code()
                .is_some_and(|code| code.code().starts_with("23"))
    }

    /// The name of the constraint that refused it, as the shard's tables have it. A not-null
    /// constraint has none in most versions.
    pub fn constraint(&self) -> Option<&str> {
        self.as_db_error().and_then(|error| error.constraint())
    }
}
