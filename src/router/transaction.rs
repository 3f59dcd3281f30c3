//! Transactions: a closure that is run again, whole, when it met a move.
//!
//! What may not break: a transaction in which a statement met a signpost is never committed, even if the closure did not
//! notice; and COMMIT is sent once.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tokio::sync::Mutex;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Row};

use super::Router;
use super::error::Error;
use super::handle::{NEXT_IDS, Shard, at_most_one, one, reserved};
use super::kind::Kind;
use super::recover::{Next, Recovery};
use super::session::{Answer, Failed, Lease, Prepare, is_lost};
use super::sql::{Rendered, SqlText};
use super::stale::Met;
use crate::map::HostName;
use crate::pg::state::is_read_only;
use crate::shard::ShardId;

/// A transaction to be run; made by [`Shard::build_transaction`](super::Shard::build_transaction).
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct TransactionBuilder<'r> {
    router: &'r Router,
    shard: Shard<'r>,
    isolation: Option<IsolationLevel>,
    read_only: bool,
}

impl<'r> TransactionBuilder<'r> {
    pub(super) fn new(router: &'r Router, shard: Shard<'r>) -> TransactionBuilder<'r> {
        TransactionBuilder { router, shard, isolation: None, read_only: false }
    }

    /// The isolation level; the session's own, mostly READ COMMITTED, where it is not given.
    pub fn isolation_level(mut self, level: IsolationLevel) -> Self {
        self.isolation = Some(level);
        self
    }

    /// READ ONLY, or not.
    pub fn read_only(mut self, read_only: bool) -> Self {
        self.read_only = read_only;
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
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.shard.checked()?;
        let committing = AtomicBool::new(false);
        self.shard.limited(&committing, Box::pin(self.run_to_end(work, &committing))).await
    }

    async fn run_to_end<T, E, F, Fut>(self, work: F, committing: &AtomicBool) -> Result<T, E>
    where
        F: Fn(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let inner = self.router.inner();
        let shard = self.shard.id();
        let mut recovery = Recovery::new(inner, shard);
        let mut prepare = Prepare::Once;
        let mut reconnected = false;
        loop {
            let place = inner.place(shard)?;
            let host = || place.host.name.clone();
            let mut lease = place.host.lease(shard).await?;
            let began = Instant::now();
            if let Err(source) = lease.begin(&self.begin()).await {
                // Dead before anything was done.
                if is_lost(&source) && !reconnected {
                    reconnected = true;
                    continue;
                }
                return Err(E::from(lost_or_refused(shard, host(), source)));
            }
            let transaction = Transaction::new(self.router, shard, host(), lease, prepare);
            let result = work(transaction.clone()).await;
            let Ended { mut lease, met, outdated, failed, read_only } = transaction.end().await;
            // Only an error that a savepoint has caught leaves something to commit.
            if failed || read_only || result.is_err() || met == Some(Met::Signpost) {
                lease = rolled_back(lease).await;
            }
            if read_only
                && !self.read_only
                && let Some(mut rolled_back) = lease.take()
            {
                if rolled_back.is_on_standby().await {
                    recovery.failed_over(&place, rolled_back).await?;
                    continue;
                }
                lease = Some(rolled_back);
            }
            // What the closure met counts, not what it says of it.
            if let Some(met) = met {
                if met == Met::Signpost {
                    // There will be waiting, for which no connection is held.
                    lease = None;
                }
                match recovery.after(met, &place, began, &mut lease).await? {
                    Next::Again => continue,
                    Next::Own if outdated && prepare == Prepare::Once => {
                        prepare = Prepare::Anew;
                        continue;
                    }
                    Next::Own => {}
                }
            }
            let value = result?;
            let Some(mut lease) = lease.filter(|_| !failed) else {
                return Err(E::from(Error::TransactionFailed { shard }));
            };
            committing.store(true, Ordering::Relaxed);
            let Err(source) = lease.end("COMMIT").await else { return Ok(value) };
            committing.store(false, Ordering::Relaxed);
            if is_lost(&source) {
                return Err(E::from(Error::InDoubt { shard, host: host(), source }));
            }
            // Refused, so nothing is committed: by a deferred trigger, say, that ran into the signpost.
            let Some(met) = Met::of(&source) else {
                return Err(E::from(Error::Statement { shard, host: host(), source }));
            };
            if recovery.after(met, &place, began, &mut Some(lease)).await? == Next::Own {
                return Err(E::from(Error::Statement { shard, host: host(), source }));
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
        begin
    }
}

fn lost_or_refused(shard: ShardId, host: HostName, source: tokio_postgres::Error) -> Error {
    if is_lost(&source) {
        Error::ConnectionLost { shard, host, may_have_run: false, source }
    } else {
        Error::Statement { shard, host, source }
    }
}

/// Rolls back, if there is something to. A connection on which that fails is closed.
async fn rolled_back(lease: Option<Lease>) -> Option<Lease> {
    let mut lease = lease?;
    match lease.end("ROLLBACK").await {
        Ok(()) => Some(lease),
        Err(_) => {
            lease.discard();
            None
        }
    }
}

/// A transaction that a closure is run with. Cheap to clone; of no use once the closure has returned
/// ([`Error::TransactionEnded`]). Statements run one after the other, in the order in which they are asked for.
#[derive(Clone)]
pub struct Transaction(Arc<Running>);

struct Running {
    router: Router,
    shard: ShardId,
    host: HostName,
    prepare: Prepare,
    state: Mutex<State>,
}

struct State {
    /// `None` once the closure has returned.
    lease: Option<Lease>,
    savepoints: u32,
    /// What its statements have met of a move: the worst of it.
    met: Option<Met>,
    /// The session may remember a signpost.
    remembered: bool,
    /// A statement failed that had been prepared before the transaction, and may be outdated.
    outdated: bool,
    /// A statement failed, and no ROLLBACK TO has undone it.
    failed: bool,
    /// The server would not write.
    read_only: bool,
}

/// What is left of a transaction when its closure has returned.
struct Ended {
    lease: Option<Lease>,
    met: Option<Met>,
    outdated: bool,
    failed: bool,
    read_only: bool,
}

impl Transaction {
    fn new(router: &Router, shard: ShardId, host: HostName, lease: Lease, prepare: Prepare) -> Transaction {
        let state = State {
            lease: Some(lease),
            savepoints: 0,
            met: None,
            remembered: false,
            outdated: false,
            failed: false,
            read_only: false,
        };
        Transaction(Arc::new(Running { router: router.clone(), shard, host, prepare, state: Mutex::new(state) }))
    }

    /// Takes the connection away from the closure and whoever it gave a clone to.
    async fn end(&self) -> Ended {
        let mut state = self.0.state.lock().await;
        let mut lease = state.lease.take();
        if state.remembered
            && let Some(lease) = lease.take()
        {
            lease.discard();
        }
        let failed = state.failed || lease.as_ref().is_none_or(Lease::is_unsettled);
        Ended { lease, met: state.met, outdated: state.outdated, failed, read_only: state.read_only }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.0.shard
    }

    /// The host that the transaction runs on.
    pub fn host(&self) -> &HostName {
        &self.0.host
    }

    /// Runs a statement and gives its rows. `{shard}` in it is the shard's schema.
    ///
    /// # Errors
    /// See [`Error`]. After an error the transaction can only be rolled back, unless a savepoint catches it.
    ///
    /// # Cancel safety
    /// When the future is dropped, the transaction can only be rolled back.
    pub async fn query<'s>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        self.run(sql.into(), params).await
    }

    /// Runs a statement that gives exactly one row.
    ///
    /// # Errors
    /// As [`Transaction::query`], and [`Error::RowCount`] for another number of rows.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn query_one<'s>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Row, Error> {
        one(self.0.shard, self.run(sql.into(), params).await?)
    }

    /// Runs a statement that gives one row or none.
    ///
    /// # Errors
    /// As [`Transaction::query`], and [`Error::RowCount`] for more than one row.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn query_opt<'s>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, Error> {
        at_most_one(self.0.shard, self.run(sql.into(), params).await?)
    }

    /// Runs a statement and gives the number of rows that it changed. SAVEPOINT, RELEASE and ROLLBACK TO are welcome.
    ///
    /// # Errors
    /// As [`Transaction::query`].
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn execute<'s>(&self, sql: impl Into<SqlText<'s>>, params: &[&(dyn ToSql + Sync)]) -> Result<u64, Error> {
        self.run(sql.into(), params).await
    }

    /// Reserves `count` IDs of the shard at once; see [`Shard::next_ids`](super::Shard::next_ids). They stay reserved when
    /// the transaction is rolled back.
    ///
    /// # Errors
    /// As [`Transaction::query`]; [`Error::Statement`] for more than 1,000,000.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn next_ids(&self, count: u32) -> Result<Vec<i64>, Error> {
        let rows: Vec<Row> = self.run(NEXT_IDS.into(), &[&reserved(count)]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Runs `work` within a savepoint: when it gives `Err`, what it did is undone and the transaction can go on.
    ///
    /// ```no_run
    /// # async fn example(tx: pgshard::router::Transaction) -> Result<(), pgshard::router::Error> {
    /// let taken = tx.savepoint(async { tx.execute("INSERT INTO {shard}.names VALUES ('x')", &[]).await }).await.is_err();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The work's own, and as `E` whatever the router has to say.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn savepoint<T, E, Fut>(&self, work: Fut) -> Result<T, E>
    where
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let number = {
            let mut state = self.0.state.lock().await;
            state.savepoints += 1;
            state.savepoints
        };
        self.execute(&format!("SAVEPOINT pgshard_{number}"), &[]).await?;
        let result = work.await;
        if result.is_err() {
            self.execute(&format!("ROLLBACK TO pgshard_{number}"), &[]).await?;
        }
        self.execute(&format!("RELEASE pgshard_{number}"), &[]).await?;
        result
    }

    async fn run<A: Answer>(&self, sql: SqlText<'_>, params: &[&(dyn ToSql + Sync)]) -> Result<A, Error> {
        let Running { router, shard, host, prepare, state } = &*self.0;
        let shard = *shard;
        let sql = router.inner().sql.read(sql);
        let kind = sql.kind();
        if kind == Kind::Control {
            return Err(Error::TransactionControl { shard });
        }
        let text = sql.render(&router.prefix().schema(shard));
        let mut state = state.lock().await;
        let Some(lease) = &mut state.lease else { return Err(Error::TransactionEnded { shard }) };
        let ran = lease.run(Rendered::new(&sql, &text), params, *prepare).await;
        let lost = |failed: &Failed, lease: &Lease| failed.lost(&lease.session().connection);
        match ran {
            Ok(answer) => {
                if kind == Kind::RollbackTo {
                    state.failed = false;
                }
                Ok(answer)
            }
            Err(failed) if lost(&failed, lease) => {
                state.failed = true;
                Err(Error::ConnectionLost { shard, host: host.clone(), may_have_run: false, source: failed.error })
            }
            Err(failed) => {
                // The driver's own refusals never reach the server.
                state.failed |= failed.error.as_db_error().is_some();
                state.outdated |= failed.may_be_outdated();
                state.read_only |= is_read_only(&failed.error);
                if let Some(met) = Met::of(&failed.error) {
                    state.remembered |= met == Met::Signpost && failed.may_be_remembered();
                    state.met = if state.met == Some(Met::Signpost) { state.met } else { Some(met) };
                }
                Err(Error::Statement { shard, host: host.clone(), source: failed.error })
            }
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").field("shard", &self.0.shard).field("host", &self.0.host).finish_non_exhaustive()
    }
}
