//! The SQLSTATEs that a move can make an application see, and those that show what became of a
//! statement or its connection. The rest is `tokio_postgres::error::SqlState`.

use tokio_postgres::error::{DbError, Severity, SqlState};

/// What a signpost raises: the shard is not served here, retry. DETAIL names the host.
pub const SHARD_MOVED: &str = "SH001";

/// The SQLSTATE with which every function of the control schema refuses: the row is not as the
/// caller thought.
pub const REFUSED: &str = "SH002";

/// The SQLSTATE with which the trigger of a look-up refuses a row that was not claimed.
pub const NOT_CLAIMED: &str = "SH003";

/// Whether the error is a signpost's: the statement met a shard that is fenced, or has moved.
pub fn is_signpost(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == SHARD_MOVED)
}

/// Whether a shard that is fenced, has moved or is not open yet can make a statement fail like
/// this, in addition to [`is_signpost`]: classes 42 (a name is missing, or means something else),
/// 0A (not on a view), 3F (no such schema) and 55 (object not in the right state).
///
/// Such an error may just as well be the application's own mistake: look at the host's
/// `pgshard.shard` row before believing either.
pub fn may_be_moved(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| {
        ["42", "0A", "3F", "55"]
            .iter()
            .any(|class| code.code().starts_with(class))
    })
}

/// What an SQLSTATE blames. Every other table of SQLSTATEs is a set of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Class {
    /// The statement or its values.
    Application,
    /// The statement, by the protocol: the number of its parameters, for example.
    Protocol,
    /// A signpost: the shard is served elsewhere.
    Moved,
    /// Another transaction: serialization failure, deadlock.
    Conflict,
    /// The transaction was rolled back for another reason.
    RolledBack,
    /// A lock that was not waited for.
    Lock,
    /// The server may only read: it is a standby, or the transaction is read-only.
    ReadOnly,
    /// The connection.
    Connection,
    /// The server has no connection left.
    Connections,
    /// The server has no room: disk, memory.
    Resources,
    /// The server is starting, or shutting down.
    Shutdown,
    /// An operator: the statement was cancelled, the database dropped.
    Intervention,
    /// The server's machine or its own mistake.
    Server,
}

impl Class {
    /// The class of an SQLSTATE.
    pub(crate) fn of(code: &SqlState) -> Class {
        let code = code.code();
        match code {
            SHARD_MOVED => return Class::Moved,
            "08P01" => return Class::Protocol,
            "40001" | "40P01" => return Class::Conflict,
            "55P03" => return Class::Lock,
            "25006" => return Class::ReadOnly,
            "53300" => return Class::Connections,
            "57P01" | "57P02" | "57P03" => return Class::Shutdown,
            _ => {}
        }
        match code.get(..2) {
            Some("08") => Class::Connection,
            Some("40") => Class::RolledBack,
            Some("53") => Class::Resources,
            Some("57") => Class::Intervention,
            Some("58" | "F0" | "XX") => Class::Server,
            _ => Class::Application,
        }
    }
}

/// Whether the server refused for a reason that passes: serialization failure, deadlock, shutting
/// down, too many connections, read-only after a fail-over.
pub fn is_transient(code: &SqlState) -> bool {
    matches!(
        Class::of(code),
        Class::Conflict
            | Class::Lock
            | Class::ReadOnly
            | Class::Protocol
            | Class::Connection
            | Class::Connections
            | Class::Shutdown
    )
}

/// Whether the server refused a question because it does not provide a function in it, or not to
/// this role: some services have taken functions away, and others have made them fail.
#[cfg(feature = "ops")]
pub(crate) fn is_not_provided(error: &tokio_postgres::Error) -> bool {
    error.as_db_error().is_some_and(|refused| {
        let code = refused.code().code();
        !ends_the_connection(refused)
            && ["42", "0A", "55000", "XX"]
                .iter()
                .any(|class| code.starts_with(class))
    })
}

/// Whether the server refused the login, by this SQLSTATE: the password may have changed in the
/// moment before.
pub(crate) fn is_refused_login(code: &str) -> bool {
    matches!(code, "28P01" | "28000")
}

/// How long is waited before a login that was refused is tried once more, with the password read
/// again: while one is changed, the server and its source differ for a moment.
pub(crate) const LOGIN_AGAIN: std::time::Duration = std::time::Duration::from_millis(250);

/// Whether another transaction was in the way: serialization failure, deadlock. The same
/// transaction may succeed at the next try.
pub fn is_conflict(code: &SqlState) -> bool {
    Class::of(code) == Class::Conflict
}

/// Whether the server refused to write: the transaction may only read, or the server is a standby
/// (since a fail-over, for example).
pub fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Whether the sender of the error has ended the connection with it: what was on its way then may
/// have taken effect.
///
/// A server sends the severity twice, once in its own language. A pooler, PgBouncer for one, sends
/// it once, in English.
pub(crate) fn ends_the_connection(error: &DbError) -> bool {
    match error.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => matches!(error.severity(), "FATAL" | "PANIC"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_sqlstate_has_the_class_that_decides_about_it() {
        let classes = [
            ("23505", Class::Application),
            ("42P01", Class::Application),
            ("25001", Class::Application),
            ("55000", Class::Application),
            ("SH002", Class::Application),
            ("SH001", Class::Moved),
            ("08P01", Class::Protocol),
            ("08006", Class::Connection),
            ("40001", Class::Conflict),
            ("40P01", Class::Conflict),
            ("40003", Class::RolledBack),
            ("55P03", Class::Lock),
            ("25006", Class::ReadOnly),
            ("53300", Class::Connections),
            ("53100", Class::Resources),
            ("57P03", Class::Shutdown),
            ("57014", Class::Intervention),
            ("58030", Class::Server),
            ("F0000", Class::Server),
            ("XX000", Class::Server),
        ];
        for (code, class) in classes {
            assert_eq!(Class::of(&SqlState::from_code(code)), class, "{code}");
        }
        let passing = classes
            .iter()
            .filter(|(code, _)| is_transient(&SqlState::from_code(code)));
        let passing: Vec<&str> = passing.map(|(code, _)| *code).collect();
        let expected = [
            "08P01", "08006", "40001", "40P01", "55P03", "25006", "53300", "57P03",
        ];
        assert_eq!(passing, expected);
    }
}
