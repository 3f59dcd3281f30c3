//! One connection of a pool, with the statements prepared on it.
//!
//! Invariant: a session comes out of the pool as if it were new. One that may hold something of its
//! last user is cleaned first; one that may be in the middle of something, or may remember a
//! signpost, never goes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type, WrongType};
use tokio_postgres::{Client, Statement};

use super::abandoned::{self, CancelLimits};
use super::answer::Answer;
use super::circuit::Circuit;
use super::options::Recycle;
use super::origin::{Origin, is_lost};
use super::pool::Slot;
use super::replica::StandbyState;
use super::sql::Rendered;
use super::stale::MoveSignal;
use super::statement_class::StatementClass;
use super::statements::{Look, Room, StatementCache};
use super::unnamed::{self, LearnedTypes};
use crate::pg::Connection;

/// Undoes everything that a session can have been left with, but keeps the driver's own prepared
/// statements (so this is not DISCARD ALL): only those that PREPARE has made are dropped.
macro_rules! clean {
    () => {
        "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
         SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES; \
         DO $$ DECLARE prepared text; BEGIN \
         FOR prepared IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql \
         LOOP EXECUTE pg_catalog.format('DEALLOCATE %I', prepared); END LOOP; END $$"
    };
}

/// Cleans a session in which no transaction is open.
const CLEAN: &str = clean!();

/// Cleans a session of our own, and one that a pooler takes back with the answer.
pub(super) const ROLLBACK_AND_CLEAN: &str = concat!("ROLLBACK; ", clean!());

/// How a pool's sessions prepare statements.
#[derive(Clone)]
pub(super) enum Statements {
    /// By name, at most `max` in each session; 0 keeps none. The others are run without names.
    Named {
        max: usize,
        learned: Arc<LearnedTypes>,
        room: Arc<Room>,
    },
    /// Without names.
    Unnamed(Arc<LearnedTypes>),
}

/// A connection and its prepared statements.
pub(super) struct Session {
    pub(super) connection: Connection,
    statements: SessionStatements,
    /// Whether something of its user may be left in the session.
    dirty: AtomicBool,
    /// Whether it was borrowed as the favourite of its user's shard.
    pub(super) is_favourite: bool,
    /// The server's state at its last check, if it is a standby.
    pub(super) shown: Mutex<Option<StandbyState>>,
    /// The circuit's generation when the session was opened.
    pub(super) generation: u32,
    pub(super) circuit: Arc<Circuit>,
    recycle: Recycle,
    recycle_max: Duration,
    pub(super) ends: Arc<CancelLimits>,
    /// From this time on it is not used again, however well it works. `None`: there is no such
    /// time.
    ends_at: Option<Instant>,
    /// When it was last given back.
    idle_since: Instant,
}

/// What a session is made from.
pub(super) struct OpenedConnection {
    pub(super) connection: Connection,
    pub(super) statements: Statements,
    /// The circuit's generation when the connection was requested.
    pub(super) generation: u32,
    pub(super) circuit: Arc<Circuit>,
    pub(super) recycle: Recycle,
    pub(super) recycle_max: Duration,
    pub(super) ends: Arc<CancelLimits>,
    pub(super) ends_at: Option<Instant>,
}

enum SessionStatements {
    Named(NamedStatements),
    Unnamed(Arc<LearnedTypes>),
}

/// The statements that a session keeps, and what is known of those that it does not.
struct NamedStatements {
    /// By template and shard. Never locked across a wait.
    kept: Mutex<StatementCache<Statement>>,
    learned: Arc<LearnedTypes>,
    room: Arc<Room>,
}

/// Whether a statement that was prepared earlier will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepare {
    Once,
    Again,
}

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
    /// it belongs to another statement, or continues, or waits for what is never sent.
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

impl Session {
    pub(super) fn new(opened: OpenedConnection) -> Session {
        let statements = match opened.statements {
            Statements::Named { max, learned, room } => SessionStatements::Named(NamedStatements {
                kept: Mutex::new(StatementCache::new(max)),
                learned,
                room,
            }),
            Statements::Unnamed(learned) => SessionStatements::Unnamed(learned),
        };
        Session {
            connection: opened.connection,
            statements,
            dirty: AtomicBool::new(false),
            is_favourite: false,
            shown: Mutex::new(None),
            generation: opened.generation,
            circuit: opened.circuit,
            recycle: opened.recycle,
            recycle_max: opened.recycle_max,
            ends: opened.ends,
            ends_at: opened.ends_at,
            idle_since: Instant::now(),
        }
    }

    /// Whether it cannot be used any more: it is closed, the host has been silent since, or another
    /// server is the primary.
    pub(super) fn is_worn(&self) -> bool {
        self.connection.is_closed() || self.generation != self.circuit.generation()
    }

    /// Marks it as idle from now on. True when it may not be used again, by `ends_at`.
    pub(super) fn begin_idle(&mut self, now: Instant) -> bool {
        self.idle_since = now;
        self.ends_at.is_some_and(|ends_at| ends_at <= now)
    }

    /// Whether an idle session must be closed.
    pub(super) fn is_over(&self, now: Instant, idle_timeout: Option<Duration>) -> bool {
        let idle = now.saturating_duration_since(self.idle_since);
        self.is_worn()
            || self.ends_at.is_some_and(|ends_at| ends_at <= now)
            || idle_timeout.is_some_and(|limit| idle >= limit)
    }

    /// Runs one statement. Several at a time follow each other on a connection that can pipeline
    /// ([`Session::can_pipeline`]). A caller that does not use [`Lease::run`] must report to the
    /// lease itself whether answers are awaited.
    pub(super) async fn run<A: Answer>(
        &self,
        statement: Rendered<'_>,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
        in_transaction: bool,
    ) -> Result<A, StatementError> {
        let leaves = statement.may_change_session() || self.recycle == Recycle::Clean;
        // What is rare is in boxes: the future of every call would contain it.
        match &self.statements {
            SessionStatements::Named(statements) => {
                if leaves {
                    self.set_dirty();
                }
                self.run_named(statements, statement, params, prepare).await
            }
            SessionStatements::Unnamed(learned)
                if leaves
                    && !in_transaction
                    && !A::STREAMS
                    && statement.class() != StatementClass::Once =>
            {
                let alone =
                    unnamed::run_and_clean(&self.connection, learned, statement, params, prepare);
                let alone = Box::pin(alone).await;
                match alone {
                    Err(failed)
                        if failed.error.code() == Some(&SqlState::ACTIVE_SQL_TRANSACTION) =>
                    {
                        self.set_dirty();
                        Box::pin(unnamed::run(
                            &self.connection,
                            learned,
                            statement,
                            params,
                            prepare,
                            false,
                        ))
                        .await
                    }
                    answer => answer,
                }
            }
            SessionStatements::Unnamed(learned) => {
                if leaves {
                    self.set_dirty();
                }
                Box::pin(unnamed::run(
                    &self.connection,
                    learned,
                    statement,
                    params,
                    prepare,
                    in_transaction,
                ))
                .await
            }
        }
    }

    /// Whether it may lead to a pooler, which gives each transaction another session of the server.
    pub(super) fn is_pooled(&self) -> bool {
        matches!(self.statements, SessionStatements::Unnamed(_))
    }

    /// Notes that something of its user may be left in it.
    pub(super) fn set_dirty(&self) {
        self.dirty.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_dirty(&self) -> bool {
        self.dirty.load(Ordering::Relaxed)
    }

    /// Undoes what may be left in it, and rolls back a transaction that is open. False when that
    /// cannot be done.
    pub(super) async fn clean(&self) -> bool {
        // Behind a pooler, the cleaning would go to another session.
        if self.is_pooled() {
            return false;
        }
        let cleaned = tokio::time::timeout(self.recycle_max, async {
            // ROLLBACK without a transaction would be a warning in the server's log. Statements
            // that are still on their way may begin one.
            let in_transaction = self.connection.is_in_transaction();
            let cleaned = !in_transaction && self.connection.batch_execute(CLEAN).await.is_ok();
            if cleaned && !self.connection.is_in_transaction() {
                return true;
            }
            let cleaning = self.connection.batch_execute(ROLLBACK_AND_CLEAN).await;
            cleaning.is_ok() && !self.connection.is_in_transaction()
        });
        let cleaned = cleaned.await.unwrap_or(false);
        self.dirty.store(!cleaned, Ordering::Relaxed);
        cleaned
    }

    /// The SQL that ends a transaction. A dirty session of a pooler is cleaned with it, because
    /// another client gets it next.
    fn ending(&self, end: CommitOrRollback) -> &'static str {
        let with_session =
            self.is_dirty() && matches!(self.statements, SessionStatements::Unnamed(_));
        match (end, with_session) {
            (CommitOrRollback::Commit, false) => COMMIT,
            (CommitOrRollback::Commit, true) => CLEAN_AND_COMMIT,
            (CommitOrRollback::RollBack, false) => "ROLLBACK",
            (CommitOrRollback::RollBack, true) => ROLLBACK_AND_CLEAN,
        }
    }

    /// Records that a transaction was ended as [`Session::ending`] requires.
    fn ended(&self) {
        if matches!(self.statements, SessionStatements::Unnamed(_)) {
            self.dirty.store(false, Ordering::Relaxed);
        }
    }

    async fn run_named<A: Answer>(
        &self,
        statements: &NamedStatements,
        sql: Rendered<'_>,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
    ) -> Result<A, StatementError> {
        let look = match prepare {
            Prepare::Once => {
                let mut kept = lock(&statements.kept);
                let look = kept.look(sql);
                kept.record(&look, self.is_favourite, &statements.room);
                look
            }
            Prepare::Again => Look::ToKeep,
        };
        let (statement, prepared_before) = match look {
            Look::Kept(statement) => (statement, true),
            Look::ToKeep => (Box::pin(self.keep(statements, sql)).await?, false),
            Look::Passing => {
                let learned = &statements.learned;
                if let Some(types) = learned.everywhere(sql) {
                    let types = (&*types, !types.is_empty());
                    return Box::pin(unnamed::run_typed(
                        &self.connection,
                        learned,
                        sql,
                        params,
                        types,
                    ))
                    .await;
                }
                (Box::pin(self.keep(statements, sql)).await?, false)
            }
        };
        A::ask(&self.connection, &statement, params)
            .await
            .map_err(|error| {
                let failed = StatementError {
                    error,
                    prepared_before,
                    sent: true,
                };
                if MoveSignal::of(&failed.error).is_some() || failed.may_be_outdated() {
                    lock(&statements.kept).forget(sql);
                }
                failed
            })
    }

    /// Prepares a statement and keeps it.
    async fn keep(
        &self,
        statements: &NamedStatements,
        sql: Rendered<'_>,
    ) -> Result<Statement, StatementError> {
        let prepared = self.connection.prepare(&sql.text()).await;
        let prepared = prepared.map_err(|error| StatementError {
            error,
            prepared_before: false,
            sent: false,
        })?;
        statements.learned.prepared(sql, prepared.params());
        // What falls out of the cache is closed on the server when it is dropped.
        lock(&statements.kept).put(sql, prepared.clone());
        Ok(prepared)
    }

    /// Prepares a statement for later runs, and returns the types of its parameters. `None` when
    /// statements have no names.
    pub(super) async fn prepare(
        &self,
        sql: Rendered<'_>,
    ) -> Result<Option<Vec<Type>>, StatementError> {
        match &self.statements {
            SessionStatements::Named(statements) => {
                let known = lock(&statements.kept).get(sql);
                let statement = match known {
                    Some(statement) => statement,
                    None => self.keep(statements, sql).await?,
                };
                Ok(Some(statement.params().to_vec()))
            }
            SessionStatements::Unnamed(_) => Ok(None),
        }
    }

    /// Whether several statements may be on their way at a time. Without names, a statement may be
    /// a transaction of its own, and no other statement may end up in that.
    pub(super) fn can_pipeline(&self) -> bool {
        matches!(self.statements, SessionStatements::Named(_))
    }

    /// Whether this statement is prepared on the connection.
    pub(super) fn has(&self, sql: Rendered<'_>) -> bool {
        match &self.statements {
            SessionStatements::Named(statements) => lock(&statements.kept).contains(sql),
            SessionStatements::Unnamed(_) => false,
        }
    }
}

/// A panic under this lock leaves nothing half done, so a poisoned lock is as good as any.
fn lock<T>(statements: &Mutex<T>) -> MutexGuard<'_, T> {
    statements.lock().unwrap_or_else(PoisonError::into_inner)
}

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

/// COMMIT gives no error in a transaction that has failed: the server rolls back, and only the
/// command tag shows it, which the driver does not expose. SAVEPOINT is refused there, and outside
/// a transaction too, so that COMMIT is not reached.
const COMMIT: &str = "SAVEPOINT pgshard_end; COMMIT";

/// Commits, and cleans the session. Nothing may fail after COMMIT, so the cleaning comes before it.
/// Deferred triggers run before the cleaning, because they may need a setting.
pub(super) const CLEAN_AND_COMMIT: &str = concat!(
    "SET CONSTRAINTS ALL IMMEDIATE; ",
    clean!(),
    "; SAVEPOINT pgshard_end; COMMIT"
);

/// How a transaction is to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum CommitOrRollback {
    Commit,
    RollBack,
}

impl Lease {
    pub(super) fn new(session: Box<Session>, slot: Slot) -> Lease {
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
        statement: Rendered<'_>,
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

/// Closes the connection, and then gives its slot to others.
pub(super) fn close(session: Box<Session>, slot: Slot) {
    drop(session);
    drop(slot);
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
