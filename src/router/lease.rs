//! A session borrowed from a pool, and what becomes of it afterwards.

use std::time::Duration;

use tokio::runtime::Handle;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::abandoned::{self, close};
use super::answer::Answer;
use super::origin::is_lost;
use super::pool::{BorrowedConnection, Slot};
use super::session::{CommitOrRollback, Session};
use super::sql::ShardStatement;
use super::statement_error::StatementError;
use super::statements::Prepare;

/// Whether every answer of a borrowed session has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answers {
    Settled,
    /// A statement was sent, and its answer has not come (yet).
    Awaited,
    /// The application has the client itself, so it is not known.
    Unknown,
    /// No answer is waited for any more. The connection is closed when the lease is dropped.
    Ending,
}

/// A session borrowed from a pool. When the lease is dropped, the session goes back. If it is in
/// the middle of something, it is closed instead.
pub(super) struct Lease {
    /// `None` only while it is being dropped, like `slot`.
    session: Option<Box<Session>>,
    answers: Answers,
    /// BEGIN was sent, and neither COMMIT nor ROLLBACK was answered. It is separate from `answers`,
    /// because both are so after a statement was given up in a transaction.
    in_transaction: bool,
    slot: Option<Slot>,
}

impl Lease {
    pub(super) fn new(borrowed: BorrowedConnection) -> Lease {
        let BorrowedConnection { session, slot } = borrowed;
        Lease {
            session: Some(session),
            answers: Answers::Settled,
            in_transaction: false,
            slot: Some(slot),
        }
    }

    pub(super) fn session(&self) -> &Session {
        self.session
            .as_ref()
            .expect("a lease holds its session until it is dropped")
    }

    pub(super) fn session_mut(&mut self) -> &mut Session {
        self.session
            .as_mut()
            .expect("a lease holds its session until it is dropped")
    }

    /// Runs one statement. When the future is dropped, the connection is closed with the lease.
    pub(super) async fn run<A: Answer>(
        &mut self,
        statement: ShardStatement<'_>,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
    ) -> Result<A, StatementError> {
        self.answers = Answers::Awaited;
        let answer = self
            .session()
            .run(statement, params, prepare, self.in_transaction)
            .await;
        // No other caller may meet the rest of such an answer.
        let unexpected = answer.as_ref().is_err_and(StatementError::is_unexpected);
        self.answers = if unexpected {
            Answers::Ending
        } else {
            Answers::Settled
        };
        answer
    }

    /// Runs a statement without parameters and does not keep it. When the future is dropped, the
    /// connection is closed with the lease.
    pub(super) async fn run_alone(&mut self, sql: &str) -> Result<Vec<Row>, StatementError> {
        self.answers = Answers::Awaited;
        let rows = self.session().connection.query_typed(sql, &[]).await;
        let rows = rows.map_err(|error| StatementError {
            error,
            prepared_before: false,
            sent: true,
        });
        self.answers = match &rows {
            Err(failed) if failed.is_unexpected() => Answers::Ending,
            _ => Answers::Settled,
        };
        rows
    }

    /// Sends BEGIN in the form given. After an error the connection is closed with the lease.
    pub(super) async fn begin(&mut self, begin: &str) -> Result<(), tokio_postgres::Error> {
        (self.answers, self.in_transaction) = (Answers::Awaited, true);
        self.session().connection.batch_execute(begin).await?;
        self.answers = Answers::Settled;
        Ok(())
    }

    /// Commits. `Ok` means that the server has committed. After an error that has not ended the
    /// connection, nothing is committed and the transaction is over.
    pub(super) async fn commit(&mut self) -> Result<(), tokio_postgres::Error> {
        self.answers = Answers::Awaited;
        let session = self.session();
        let Err(error) = session
            .connection
            .batch_execute(session.ending(CommitOrRollback::Commit))
            .await
        else {
            session.ended();
            (self.answers, self.in_transaction) = (Answers::Settled, false);
            return Ok(());
        };
        // Where the savepoint was refused the transaction is still open.
        if !is_lost(&error) && self.roll_back().await.is_err() {
            self.answers = Answers::Ending;
        }
        Err(error)
    }

    /// Rolls back; works without a transaction too.
    pub(super) async fn roll_back(&mut self) -> Result<(), tokio_postgres::Error> {
        self.answers = Answers::Awaited;
        let session = self.session();
        session
            .connection
            .batch_execute(session.ending(CommitOrRollback::RollBack))
            .await?;
        session.ended();
        (self.answers, self.in_transaction) = (Answers::Settled, false);
        Ok(())
    }

    /// Whether the server is a standby. Then the statement is not to blame if the server refused to
    /// write.
    pub(super) async fn is_on_standby(&mut self) -> bool {
        self.answers = Answers::Awaited;
        let said = self
            .session()
            .connection
            .query_typed("SELECT pg_catalog.pg_is_in_recovery()", &[])
            .await;
        self.answers = Answers::Settled;
        matches!(said.as_deref(), Ok([row]) if row.try_get(0).unwrap_or(false))
    }

    /// Whether the answer to a statement was not waited for.
    pub(super) fn is_unsettled(&self) -> bool {
        self.answers != Answers::Settled
    }

    /// From now on, answers may be awaited that the lease does not know of. The connection is
    /// closed when the lease is dropped.
    pub(super) fn set_unsettled(&mut self) {
        self.answers = Answers::Awaited;
    }

    /// From now on the application uses the client itself, and it is not known whether an answer is
    /// awaited.
    pub(super) fn set_unknown(&mut self) {
        self.answers = Answers::Unknown;
    }

    /// Every answer has come after all, so the connection may go back.
    pub(super) fn set_settled(&mut self) {
        self.answers = Answers::Settled;
    }

    /// Closes the connection instead of giving it back.
    pub(super) fn discard(mut self) {
        self.answers = Answers::Ending;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let (Some(session), Some(slot)) = (self.session.take(), self.slot.take()) else {
            return;
        };
        match self.answers {
            // It is not known how the transaction should end.
            Answers::Settled if self.in_transaction => close(session, slot),
            Answers::Settled if session.is_dirty() => clean(session, slot),
            Answers::Settled => slot.give_back(session),
            Answers::Ending => close(session, slot),
            Answers::Awaited => abandoned::end_on_server(session, slot, Duration::ZERO),
            Answers::Unknown if session.is_pooled() => {
                abandoned::end_on_server(session, slot, abandoned::GRACE)
            }
            Answers::Unknown => clean(session, slot),
        }
    }
}

/// Cleans a session that has come back, in a task, and only then gives its slot to others. So locks
/// that its user left are gone soon, and a call waits for the cleaning only if it has to wait for a
/// slot anyway. Without a runtime, the session is cleaned when it is borrowed again.
fn clean(session: Box<Session>, slot: Slot) {
    // Behind a pooler, the cleaning would go to another session.
    if session.is_pooled() {
        return close(session, slot);
    }
    let Ok(runtime) = Handle::try_current() else {
        return slot.give_back(session);
    };
    runtime.spawn(async move {
        if session.clean().await {
            slot.give_back(session)
        } else {
            abandoned::end_on_server(session, slot, Duration::ZERO)
        }
    });
}
