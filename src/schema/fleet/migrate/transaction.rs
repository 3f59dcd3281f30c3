//! Migrations of one shard in one transaction.
//!
//! Invariant: the work and its record are one commit, and no statement waits behind us for longer
//! than the lock timeout.

use std::time::Duration;

use futures_util::future::join_all;
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use super::steps::Step;
use crate::pg::state;
use crate::schema::control::lock;
use crate::schema::fleet::fault::ShardFault;
use crate::schema::fleet::recipe::{error_message, line, passes, wants_commit};
use crate::schema::fleet::session::{CLEAN, RESET, settle};
use crate::shard::ShardId;

/// The result of some steps of a shard.
pub(in crate::schema) enum Outcome {
    /// They are done and recorded.
    Done,
    /// They were rolled back for a temporary reason: mostly, another session holds a lock.
    Again(ShardFault),
    /// They were rolled back, but may succeed one by one.
    Apart(ShardFault),
    /// They were rolled back.
    Failed(ShardFault),
}

/// No more messages than this are sent before their answers: `join_all` keeps the order only for a
/// few.
const AHEAD_MAX: usize = 30;

/// Runs the steps and writes their record, by this statement, in one transaction. Once that is
/// open, in a session that is clean, and holds the shard, the rest is sent before the first answer:
/// a failure aborts the transaction, what follows is refused, and the COMMIT at the end rolls back.
///
/// Locks: the shard's row FOR SHARE, and those of the steps, each waited for as long as the timeout
/// at most.
///
/// After a failure the session is clean again; after a success it may hold what a deferred trigger
/// has left in it.
///
/// # Errors
/// When the connection is lost. The transaction was then either committed as a whole or not at all.
pub(in crate::schema) async fn run(
    client: &Client,
    shard: ShardId,
    steps: &[Step],
    record: &str,
    lock_timeout: Duration,
) -> Result<Outcome, tokio_postgres::Error> {
    let local = local(lock_timeout);
    let hold = format!(
        "{BEGIN}; {CLEAN}{local}{}; SELECT pgshard.hold_for_migration({shard})",
        lock::AT_WORK
    );
    // Its answer is waited for: had the BEGIN itself failed (it was cancelled, or a file has left a
    // timeout), each file would commit alone.
    if let Err(error) = client.batch_execute(&hold).await {
        if client.is_closed() || error.as_db_error().is_none() {
            return Err(error);
        }
        client.batch_execute("ROLLBACK").await?;
        settle(client).await?;
        return Ok(judge(&error, None, HOLD));
    }
    // A text may end in a comment, or without its semicolon; and the session state that it leaves
    // must not affect the next, nor what deferred triggers do at the COMMIT.
    let mut messages: Vec<String> = steps
        .iter()
        .map(|step| format!("{}\n;\n{RESET}{local}", step.sql))
        .collect();
    messages.push(record.to_owned());
    messages.push("COMMIT".to_owned());
    let answers: Vec<Result<(), tokio_postgres::Error>> = if messages.len() < AHEAD_MAX {
        join_all(messages.iter().map(|sql| client.batch_execute(sql))).await
    } else {
        let mut answers = Vec::with_capacity(messages.len());
        for sql in &messages {
            answers.push(client.batch_execute(sql).await);
        }
        answers
    };
    let committed = answers.last().is_some_and(Result::is_ok);
    let errors = answers
        .into_iter()
        .enumerate()
        .filter_map(|(at, answer)| answer.err().map(|error| (at, error)));
    let mut errors: Vec<_> = errors.collect();
    if errors.is_empty() {
        return Ok(Outcome::Done);
    }
    // The driver's own error is the connection's end, or an answer that it did not expect, as to a
    // COPY. After the latter the server's answer counts, which may be that all is committed.
    let refused = errors
        .iter()
        .position(|(_, error)| error.as_db_error().is_some());
    let (at, error) = match refused {
        None if committed && !client.is_closed() => return Ok(Outcome::Done),
        Some(refused) if !client.is_closed() => errors.swap_remove(refused),
        _ => return Err(errors.swap_remove(0).1),
    };
    settle(client).await?;
    let wants_commit = steps.len() > 1 && error.code().is_some_and(wants_commit);
    match judge(&error, steps.get(at), "record the migrations") {
        Outcome::Failed(fault) if wants_commit => Ok(Outcome::Apart(fault)),
        outcome => Ok(outcome),
    }
}

/// The beginning of every transaction of a migration. Its properties do not depend on what the
/// session's defaults are.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE NOT DEFERRABLE";

/// The beginning of a transaction of a migration in a session that no file has used.
pub(super) fn begin(lock_timeout: Duration) -> String {
    format!("{BEGIN}; {}{}", local(lock_timeout), lock::AT_WORK)
}

/// The settings of every transaction of a migration. Commits do not wait for the disk; the last one
/// of the host does, and makes the others durable with it.
fn local(lock_timeout: Duration) -> String {
    format!(
        "SET LOCAL synchronous_commit = off; {}",
        guard(lock_timeout)
    )
}

/// Keeps a statement from waiting in a queue, in front of others, for longer than this.
pub(super) fn guard(lock_timeout: Duration) -> String {
    format!(
        "SET LOCAL lock_timeout = '{}ms'; ",
        lock_timeout.as_millis().max(1)
    )
}

/// What was being done if the shard cannot be held.
pub(super) const HOLD: &str = "hold the shard";

/// What an error of a step, or of a statement around it, means for the shard.
pub(super) fn judge(
    error: &tokio_postgres::Error,
    step: Option<&Step>,
    doing: &'static str,
) -> Outcome {
    if doing == HOLD
        && error
            .code()
            .is_some_and(|code| code.code() == state::REFUSED)
    {
        return Outcome::Failed(ShardFault::Moving(None));
    }
    let words = error_message(error);
    let fault = match step {
        Some(step) => ShardFault::Migration {
            migration: step.recorded.name.clone(),
            line: line(error, &step.sql),
            words,
        },
        None => ShardFault::Statement { doing, words },
    };
    match error.code() {
        // The shard was held, so the server takes writes: the file itself has made its transaction
        // READ ONLY.
        Some(code) if doing != HOLD && *code == SqlState::READ_ONLY_SQL_TRANSACTION => {
            Outcome::Failed(fault)
        }
        Some(code) if passes(code) || (doing == HOLD && *code == SqlState::QUERY_CANCELED) => {
            Outcome::Again(fault)
        }
        _ => Outcome::Failed(fault),
    }
}
