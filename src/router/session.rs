//! One connection of a pool, with the statements prepared on it.
//!
//! Invariant: a session comes out of the pool as if it were new. One that may hold something of its
//! last user is cleaned first; one that may be in the middle of something, or may remember a
//! signpost, never goes back.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};

use super::answer::Answer;
use super::cancel_limits::CancelLimits;
use super::circuit::Circuit;
use super::cleaning::{CLEAN, CLEAN_AND_COMMIT, COMMIT, ROLLBACK_AND_CLEAN};
use super::options::Recycle;
use super::sql::ShardStatement;
use super::stale::MoveSignal;
use super::standby_state::StandbyState;
use super::statement_class::StatementClass;
use super::statement_error::StatementError;
use super::statements::{Look, Prepare, Room, StatementCache};
use super::unnamed::{self, LearnedTypes};
use crate::pg::Connection;

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
    /// ([`Session::can_pipeline`]). A caller that does not use `Lease::run` must report to the
    /// lease itself whether answers are awaited.
    pub(super) async fn run<A: Answer>(
        &self,
        statement: ShardStatement<'_>,
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
    pub(super) fn ending(&self, end: CommitOrRollback) -> &'static str {
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
    pub(super) fn ended(&self) {
        if matches!(self.statements, SessionStatements::Unnamed(_)) {
            self.dirty.store(false, Ordering::Relaxed);
        }
    }

    async fn run_named<A: Answer>(
        &self,
        statements: &NamedStatements,
        sql: ShardStatement<'_>,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
    ) -> Result<A, StatementError> {
        let look = match prepare {
            Prepare::Once => {
                let mut kept = lock(&statements.kept);
                let look = kept.find_statement(sql);
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
        sql: ShardStatement<'_>,
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
        sql: ShardStatement<'_>,
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
    pub(super) fn has(&self, sql: ShardStatement<'_>) -> bool {
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

/// How a transaction is to end.
#[derive(Clone, Copy, Debug)]
pub(super) enum CommitOrRollback {
    Commit,
    RollBack,
}
