//! Transactions: a closure that is run again, whole, when it met a move.
//!
//! Invariant: a transaction in which a statement met a signpost is never committed, even if the
//! closure did not notice; COMMIT is sent once; and `Ok` means that the server has committed.

use tokio::time::Instant;
use tokio_postgres::IsolationLevel;
use tokio_postgres::error::SqlState;

use super::call::{Call, CallFailure, call_span};
use super::error::Error;
use super::lease::Lease;
use super::nesting;
use super::next::{
    ClosureEnd, CommitEnd, CommitReport, FailedCommit, FailedStatement, Link, ReturnedClosure,
    TryHistory, after_closure, after_commit, after_statement,
};
use super::origin::is_lost;
use super::outcome::Outcome;
use super::pool_slots::Use;
use super::recover::{FinishedTry, Recovery};
use super::routing::Place;
use super::running::{ClosedTransaction, TableNaming, Transaction};
use super::stale::MoveSignal;
use super::statement_error::StatementError;
use super::target::Target;
use crate::map::HostName;
use crate::pg::{quote_ident, state};
use crate::shard::ShardId;

/// A transaction to be run; made by [`Shard::build_transaction`](super::Shard::build_transaction).
#[derive(Clone, Debug)]
#[must_use]
pub struct TransactionBuilder<'r> {
    target: Target<'r>,
    isolation: Option<IsolationLevel>,
    read_only: bool,
    /// What follows the shard's schema in `search_path`; `None` when `search_path` is left as it
    /// is.
    behind: Option<Vec<String>>,
    /// How many times it is run again after a conflict.
    conflicts: u32,
}

impl<'r> TransactionBuilder<'r> {
    pub(super) fn new(target: Target<'r>) -> TransactionBuilder<'r> {
        TransactionBuilder {
            target,
            isolation: None,
            read_only: false,
            behind: None,
            conflicts: 0,
        }
    }

    /// Sets the isolation level. The default is the session's own, usually READ COMMITTED.
    pub fn isolation_level(mut self, level: IsolationLevel) -> Self {
        self.isolation = Some(level);
        self
    }

    /// Whether the transaction is READ ONLY.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
        self
    }

    /// Sets `search_path` for this transaction: the shard's schema, then these; see
    /// [`Shard::orm_transaction`](super::Shard::orm_transaction).
    pub fn search_path(mut self, behind: &[&str]) -> Self {
        self.behind = Some(behind.iter().map(|schema| (*schema).to_owned()).collect());
        self
    }

    /// Runs the closure again, this many times at most, when it fails because of a conflict with
    /// another transaction: `40001` (serialization failure) or `40P01` (deadlock), also at COMMIT.
    /// Between two tries it waits for a moment. Default 0.
    ///
    /// A closure that catches the error and gives `Ok` is not run again.
    pub fn retry_conflicts(mut self, times: u32) -> Self {
        self.conflicts = times;
        self
    }

    /// Runs the closure; see [`Shard::transaction`](super::Shard::transaction).
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn run<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.target.checked()?;
        let call = Call::new(
            self.target,
            call_span!("pgshard.transaction", self.target.shard),
        );
        let result = call
            .limited(Box::pin(self.run_to_end(work, &call)).as_mut())
            .await;
        call.ended(&result, TransactionError::fault);
        result.map_err(TransactionError::into_inner)
    }

    pub(super) async fn run_to_end<T, E, F, Fut>(
        self,
        mut work: F,
        call: &Call<'_>,
    ) -> Result<T, TransactionError<E>>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let inner = self.target.router.inner();
        let shard = self.target.shard;
        let failed = |error: Error| Err(TransactionError::Router(error));
        let mut recovery = Recovery::new(inner, shard);
        let mut tried = TryHistory::nothing(self.conflicts);
        loop {
            call.tries();
            let place = self.target.place()?;
            let host = || place.host.name.clone();
            let mut lease = place.lease_of(self.target.lane, shard, Use::Longer).await?;
            let mut finished = FinishedTry {
                place: &place,
                began: Instant::now(),
                lease: None,
                remembers: false,
            };
            if let Err(error) = lease.begin(&self.begin(&place)).await {
                drop(lease);
                let (error, begin) = failed_begin(error);
                let next = |tried, answers| after_statement(tried, begin, answers);
                match Box::pin(recovery.run(&mut tried, &mut finished, next)).await? {
                    Some(end) => return failed(error.ended(end, shard, host())),
                    None => continue,
                }
            }
            let named = if self.behind.is_some() {
                TableNaming::BySearchPath
            } else {
                TableNaming::InFull
            };
            let prepare = (tried.prepare, named);
            let transaction = Transaction::new(self.target, &place, lease, prepare);
            // However this ends, a clone of the transaction is of no use afterwards.
            let last = transaction.guard();
            let result = nesting::within(&place.host.name, work(transaction.clone())).await;
            let ClosedTransaction { mut lease, noted } = transaction.end().await;
            drop(last);
            if noted.failed || result.is_err() || noted.signal == Some(MoveSignal::Signpost) {
                lease = rolled_back(lease).await;
            }
            let closure = ReturnedClosure {
                succeeded: result.is_ok(),
                failed: noted.failed,
                connected: lease.is_some(),
                signal: noted.signal,
                outdated: noted.outdated,
                refused_to_write: noted.read_only && !self.read_only,
                conflict: noted.fault.is_some_and(CallFailure::is_conflict),
            };
            finished.lease = lease;
            let next = |tried, answers| after_closure(tried, closure, answers);
            let Some(end) = recovery.run(&mut tried, &mut finished, next).await? else {
                continue;
            };
            let (value, lease) = match (end, result, &mut finished.lease) {
                (ClosureEnd::Commit, Ok(value), Some(lease)) => (value, lease),
                (_, Err(error), _) => return Err(TransactionError::Closure(error, noted.fault)),
                (_, Ok(_), _) => return failed(Error::TransactionFailed { shard }),
            };
            call.may_take_effect(true);
            let Err(source) = lease.commit().await else {
                return Ok(value);
            };
            call.may_take_effect(false);
            finished.remembers = true;
            let commit = failed_commit(&source);
            let next = |tried, answers| after_commit(tried, commit, answers);
            let Some(end) = Box::pin(recovery.run(&mut tried, &mut finished, next)).await? else {
                continue;
            };
            return failed(commit_error(end, shard, host(), source));
        }
    }

    fn begin(&self, place: &Place) -> String {
        let mut begin = String::from("BEGIN");
        begin.push_str(match self.isolation {
            None => "",
            Some(IsolationLevel::ReadUncommitted) => " ISOLATION LEVEL READ UNCOMMITTED",
            Some(IsolationLevel::ReadCommitted) => " ISOLATION LEVEL READ COMMITTED",
            Some(IsolationLevel::RepeatableRead) => " ISOLATION LEVEL REPEATABLE READ",
            Some(_) => " ISOLATION LEVEL SERIALIZABLE",
        });
        if self.read_only {
            begin.push_str(" READ ONLY");
        }
        if let Some(behind) = &self.behind {
            begin.push_str("; SET LOCAL search_path = ");
            let naming = place.host.naming(&self.target.router.inner().prefix);
            begin.push_str(&quote_ident(&naming.schema(self.target.shard)));
            for schema in behind {
                begin.push_str(", ");
                begin.push_str(&quote_ident(schema));
            }
            // Where it is not named, it comes first, and a temporary table would hide the shard's.
            begin.push_str(", pg_temp");
        }
        begin
    }
}

/// The error of a transaction.
pub(super) enum TransactionError<E> {
    /// It is the router's error.
    Router(Error),
    /// It is the closure's error, with what the last statement that failed had met.
    Closure(E, Option<CallFailure>),
}

impl<E> From<Error> for TransactionError<E> {
    fn from(error: Error) -> TransactionError<E> {
        TransactionError::Router(error)
    }
}

impl<E: From<Error>> TransactionError<E> {
    pub(super) fn into_inner(self) -> E {
        match self {
            TransactionError::Router(error) => E::from(error),
            TransactionError::Closure(error, _) => error,
        }
    }
}

impl<E> TransactionError<E> {
    fn fault(&self) -> CallFailure {
        match self {
            TransactionError::Router(error) => CallFailure::of(error),
            TransactionError::Closure(_, fault) => {
                fault.unwrap_or(CallFailure::new(Outcome::RolledBack))
            }
        }
    }
}

fn failed_begin(error: tokio_postgres::Error) -> (StatementError, FailedStatement) {
    let link = match is_lost(&error) {
        true => Link::Lost,
        false => Link::Kept,
    };
    let error = StatementError {
        error,
        prepared_before: false,
        sent: false,
    };
    (error, FailedStatement::begin(link))
}

fn failed_commit(error: &tokio_postgres::Error) -> FailedCommit {
    let report = match error.code() {
        _ if error.as_db_error().is_none() || is_lost(error) => CommitReport::Nothing,
        Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) => CommitReport::Nothing,
        Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => CommitReport::FailedBefore,
        Some(code) if state::is_conflict(code) => CommitReport::Conflict,
        _ => CommitReport::Refused,
    };
    FailedCommit {
        report,
        signal: MoveSignal::of(error),
    }
}

fn commit_error(
    end: CommitEnd,
    shard: ShardId,
    host: HostName,
    source: tokio_postgres::Error,
) -> Error {
    let source = source.into();
    match end {
        CommitEnd::InDoubt => Error::InDoubt {
            shard,
            host,
            source,
        },
        CommitEnd::TransactionFailed => Error::TransactionFailed { shard },
        CommitEnd::Refused => Error::Statement {
            shard,
            host,
            may_have_run: false,
            source,
        },
    }
}

/// Rolls back, if there is a connection. Closes the connection when that fails, or when an answer
/// is still awaited.
async fn rolled_back(lease: Option<Lease>) -> Option<Lease> {
    let mut lease = lease?;
    if lease.is_unsettled() || lease.roll_back().await.is_err() {
        return None;
    }
    Some(lease)
}
