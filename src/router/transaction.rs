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
use super::origin::is_lost;
use super::outcome::Outcome;
use super::pool_slots::Use;
use super::recover::{Next, Recovery};
use super::running::{ClosedTransaction, TableNaming, Transaction};
use super::stale::MoveSignal;
use super::statements::Prepare;
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
        let mut recovery = Recovery::new(inner, shard);
        let mut prepare = Prepare::Once;
        let mut reconnected = false;
        let mut conflicts = 0;
        loop {
            call.tries();
            let place = inner.place(shard)?;
            let host = || place.host.name.clone();
            let mut lease = place.lease_of(self.target.lane, shard, Use::Longer).await?;
            let began = Instant::now();
            if let Err(source) = lease.begin(&self.begin()).await {
                // The connection was dead before anything was done.
                if is_lost(&source) && !reconnected {
                    reconnected = true;
                    continue;
                }
                return Err(TransactionError::Router(lost_or_refused(
                    shard,
                    host(),
                    source,
                )));
            }
            let named = if self.behind.is_some() {
                TableNaming::BySearchPath
            } else {
                TableNaming::InFull
            };
            let transaction =
                Transaction::new(self.target.router, shard, &place, lease, (prepare, named));
            // However this ends, a clone of the transaction is of no use afterwards.
            let last = transaction.guard();
            let result = nesting::within(&place.host.name, work(transaction.clone())).await;
            let ClosedTransaction { mut lease, noted } = transaction.end().await;
            drop(last);
            if noted.failed || result.is_err() || noted.signal == Some(MoveSignal::Signpost) {
                lease = rolled_back(lease).await;
            }
            // A server that refused to write may be a standby by now. Then nothing that was read
            // there counts, even if a savepoint caught the refusal.
            if noted.read_only
                && !self.read_only
                && let Some(mut asked) = lease.take()
            {
                if asked.is_on_standby().await {
                    recovery.failed_over(&place, asked).await?;
                    continue;
                }
                lease = Some(asked);
            }
            // What the closure met counts, not what it returned.
            if let Some(signal) = noted.signal {
                if signal == MoveSignal::Signpost {
                    // The call will wait, and must not hold a connection meanwhile.
                    lease = None;
                }
                match recovery.after(signal, &place, began, &mut lease).await? {
                    Next::Retry => continue,
                    Next::ApplicationError if noted.outdated && prepare == Prepare::Once => {
                        prepare = Prepare::Again;
                        continue;
                    }
                    Next::ApplicationError => {}
                }
            }
            let conflict = result.is_err() && noted.fault.is_some_and(CallFailure::is_conflict);
            if conflict && conflicts < self.conflicts {
                drop(lease);
                conflicts += 1;
                inner.after_conflict(&place, conflicts).await;
                continue;
            }
            let value = result.map_err(|error| TransactionError::Closure(error, noted.fault))?;
            let Some(mut lease) = lease.filter(|_| !noted.failed) else {
                return Err(TransactionError::Router(Error::TransactionFailed { shard }));
            };
            call.may_take_effect(true);
            let Err(source) = lease.commit().await else {
                return Ok(value);
            };
            call.may_take_effect(false);
            // The server has not said how the transaction ended, or a statement has ended it
            // before, perhaps with COMMIT.
            let told = source.as_db_error().is_some() && !is_lost(&source);
            if !told || source.code() == Some(&SqlState::NO_ACTIVE_SQL_TRANSACTION) {
                return Err(TransactionError::Router(Error::InDoubt {
                    shard,
                    host: host(),
                    source: source.into(),
                }));
            }
            if source.code() == Some(&SqlState::IN_FAILED_SQL_TRANSACTION) {
                return Err(TransactionError::Router(Error::TransactionFailed { shard }));
            }
            if source.code().is_some_and(state::is_conflict) && conflicts < self.conflicts {
                drop(lease);
                conflicts += 1;
                inner.after_conflict(&place, conflicts).await;
                continue;
            }
            // COMMIT was refused, so nothing is committed. A deferred trigger may have run into the
            // signpost, say.
            let Some(signal) = MoveSignal::of(&source) else {
                return Err(TransactionError::Router(Error::Statement {
                    shard,
                    host: host(),
                    may_have_run: false,
                    source: source.into(),
                }));
            };
            if recovery
                .after(signal, &place, began, &mut Some(lease))
                .await?
                == Next::ApplicationError
            {
                return Err(TransactionError::Router(Error::Statement {
                    shard,
                    host: host(),
                    may_have_run: false,
                    source: source.into(),
                }));
            }
        }
    }

    fn begin(&self) -> String {
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
            begin.push_str(&quote_ident(&self.target.schema()));
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

fn lost_or_refused(shard: ShardId, host: HostName, source: tokio_postgres::Error) -> Error {
    if is_lost(&source) {
        Error::ConnectionLost {
            shard,
            host,
            may_have_run: false,
            source: source.into(),
        }
    } else {
        Error::Statement {
            shard,
            host,
            may_have_run: false,
            source: source.into(),
        }
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
