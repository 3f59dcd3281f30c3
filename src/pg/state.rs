//! The SQLSTATEs that a move can make an application see, and those that say what became of a
//! statement or its connection. The rest is `tokio_postgres::error::SqlState`.

use tokio_postgres::error::{DbError, Severity, SqlState};

/// What a signpost raises: the shard is not served here, retry. DETAIL names the host.
pub const SHARD_MOVED: &str = "SH001";

/// The SQLSTATE with which every function of the control schema refuses: the row is not as the
/// caller thought.
pub const REFUSED: &str = "SH002";

/// Whether the error is a signpost's: the statement met a shard that is fenced, or has moved.
pub fn is_signpost(error: &tokio_postgres::Error) -> bool {
    error.code().is_some_and(|code| code.code() == SHARD_MOVED)
}

/// Whether a shard that is fenced, has moved or is not open yet can make a statement fail like
/// this, besides [`is_signpost`]: classes 42 (a name is missing, or means something else), 0A (not
/// on a view), 3F (no such schema) and 55 (object not in the right state).
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

/// Whether the server refused for a reason that passes: serialization failure, deadlock, shutting
/// down, too many connections, read-only after a fail-over.
pub fn is_transient(code: &SqlState) -> bool {
    matches!(
        code.code(),
        "40001" | "40P01" | "57P01" | "57P02" | "57P03" | "53300" | "25006" | "55P03"
    ) || code.code().starts_with("08")
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

/// Whether the server refused who connects, by this SQLSTATE: the password may have changed in the
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
    matches!(code.code(), "40001" | "40P01")
}

/// Whether the server refused to write: the transaction may only read, or the server is a standby
/// (since a fail-over, say).
pub fn is_read_only(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION)
}

/// Whether the sender of the error has ended the connection with it: what was on its way then may
/// have taken effect.
///
/// A server says so twice, once in words of its own language. A pooler, PgBouncer for one, says it
/// once, in English.
pub(crate) fn ends_the_connection(error: &DbError) -> bool {
    match error.parsed_severity() {
        Some(severity) => matches!(severity, Severity::Fatal | Severity::Panic),
        None => matches!(error.severity(), "FATAL" | "PANIC"),
    }
}
