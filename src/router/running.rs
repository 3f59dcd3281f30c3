//! A transaction that is running: what its closure gets, and what is noted of it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::{Mutex, MutexGuard, watch};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Router;
use super::answer::{Answer, FirstRow};
use super::call::Fault;
use super::error::{Error, Expected};
use super::from_row::FromRow;
use super::handle::{NEXT_IDS, reserved};
use super::outcome::Outcome;
use super::queries::{Misfit, query_methods};
use super::routing::Place;
use super::savepoint::{self, Savepoint};
use super::session::{End, Failed, Lease, Prepare};
use super::sql::{Rendered, Sql, SqlText};
use super::stale::MoveSignal;
use super::statement_class::StatementClass;
use crate::map::{HostName, ShardEpoch};
use crate::pg::state::is_read_only;
use crate::shard::ShardId;

/// A transaction that a closure is run with. Cheap to clone; of no use once the closure has
/// returned, or the call is given up ([`Error::TransactionEnded`]). Statements run one after the
/// other, in the order in which they are asked for.
#[derive(Clone)]
pub struct Transaction(Arc<Running>);

struct Running {
    router: Router,
    shard: ShardId,
    host: HostName,
    /// The epoch at which the host served the shard when the transaction began.
    epoch: ShardEpoch,
    prepare: Prepare,
    named: Named,
    state: Mutex<TransactionState>,
    /// Whether a savepoint was given up before its end.
    broken: AtomicBool,
    /// Whether nobody waits for the transaction any more.
    given_up: watch::Sender<bool>,
}

/// How statements name the shard's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    InFull,
    BySearchPath,
}

struct TransactionState {
    /// `None` once the closure has returned.
    lease: Option<Lease>,
    noted: Noted,
    /// How many savepoints were set so far.
    savepoints: u32,
    /// The savepoints that are open, the outermost first.
    open: Vec<u32>,
}

/// What was noted of a transaction's statements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Noted {
    /// The worst sign of a move that they have met. No ROLLBACK TO takes that back.
    pub(super) signal: Option<MoveSignal>,
    /// The session may remember a signpost.
    remembered: bool,
    /// One failed that had been prepared before the transaction, and may be outdated.
    pub(super) outdated: bool,
    /// One failed, and no ROLLBACK TO has undone it.
    pub(super) failed: bool,
    /// The server refused to write.
    pub(super) read_only: bool,
    /// What the last one that failed had met, unless one has succeeded since.
    pub(super) fault: Option<Fault>,
}

/// What is left of a transaction when its closure has returned.
pub(super) struct Ended {
    pub(super) lease: Option<Lease>,
    pub(super) noted: Noted,
}

/// Ends a transaction that its caller has given up: no clone keeps its connection, nor its locks.
pub(super) struct EndsWith(Transaction);

impl Drop for EndsWith {
    fn drop(&mut self) {
        let running = &self.0.0;
        // A statement that waits for its answer hears of this, and drops the connection itself.
        running.given_up.send_replace(true);
        if let Ok(mut state) = running.state.try_lock() {
            state.lease = None;
        }
    }
}

impl Transaction {
    pub(super) fn new(
        router: &Router,
        shard: ShardId,
        place: &Place,
        lease: Lease,
        (prepare, named): (Prepare, Named),
    ) -> Transaction {
        let state = TransactionState {
            lease: Some(lease),
            noted: Noted::default(),
            savepoints: 0,
            open: Vec::new(),
        };
        Transaction(Arc::new(Running {
            router: router.clone(),
            shard,
            host: place.host.name.clone(),
            epoch: place.epoch,
            prepare,
            named,
            state: Mutex::new(state),
            broken: AtomicBool::new(false),
            given_up: watch::Sender::new(false),
        }))
    }

    pub(super) fn ends_with(&self) -> EndsWith {
        EndsWith(self.clone())
    }

    /// Takes the connection away from the closure and from all clones.
    pub(super) async fn end(&self) -> Ended {
        let mut state = self.0.state.lock().await;
        let mut lease = state.lease.take();
        let mut noted = state.noted;
        if noted.remembered
            && let Some(lease) = lease.take()
        {
            lease.discard();
        }
        noted.failed |=
            self.0.broken.load(Ordering::Relaxed) || lease.as_ref().is_none_or(Lease::is_unsettled);
        Ended { lease, noted }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.0.shard
    }

    /// The host that the transaction runs on.
    pub fn host(&self) -> &HostName {
        &self.0.host
    }

    query_methods! {
        /// Runs a statement and gives its rows. `{shard}` in it is the shard's schema.
        ///
        /// # Errors
        /// See [`Error`]. After an error the transaction can only be rolled back, unless a
        /// savepoint catches it.
        ///
        /// # Cancel safety
        /// When the future is dropped, the transaction can only be rolled back.
        (&self) self
    }

    fn misfit(&self, _: &SqlText<'_>) -> Misfit {
        Misfit {
            shard: self.0.shard,
            host: self.0.host.clone(),
            may_have_run: false,
        }
    }

    /// Runs a statement and gives the number of rows that it changed. SAVEPOINT, RELEASE and
    /// ROLLBACK TO may be run too.
    ///
    /// # Errors
    /// As [`Transaction::query`].
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn execute<'s>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.run(&sql.into(), params).await
    }

    /// Reserves `count` IDs of the shard at once; see [`Shard::next_ids`](super::Shard::next_ids).
    /// They stay reserved when the transaction is rolled back.
    ///
    /// # Errors
    /// As [`Transaction::query`]; [`Error::Statement`] for more than 1,000,000.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn next_ids(&self, count: u32) -> Result<Vec<i64>, Error> {
        let ids: Vec<(i64,)> = self.query_as(NEXT_IDS, &[&reserved(count)]).await?;
        Ok(ids.into_iter().map(|(id,)| id).collect())
    }

    /// Runs `work` within a savepoint: when it gives `Err`, what it did is undone and the
    /// transaction can go on. Savepoints nest, and follow each other. Nothing else may run on the
    /// transaction while one is open, because it would be undone with it: a statement from outside
    /// of `work` (beside it in a `join!`, or in a task that `work` spawns) is refused.
    ///
    /// ```no_run
    /// # async fn example(tx: pgshard::router::Transaction) -> Result<(), pgshard::router::Error> {
    /// let insert = "INSERT INTO {shard}.names VALUES ('x')";
    /// let taken = tx.savepoint(async { tx.execute(insert, &[]).await }).await.is_err();
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The work's own, and, as `E`, those of the router. When the work gives `Ok` although a
    /// statement in it had failed, what it did is undone too, and the server's refusal to go on is
    /// the error.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn savepoint<T, E, Fut>(&self, work: Fut) -> Result<T, E>
    where
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        let open = self.open().await?;
        let result = savepoint::within(&open, work).await;
        let end = if result.is_ok() {
            End::Commit
        } else {
            End::RollBack
        };
        let closed = self.close(open, end).await;
        if result.is_ok() {
            closed?;
        }
        result
    }

    async fn open(&self) -> Result<Savepoint<'_>, Error> {
        let mut state = self.0.state.lock().await;
        self.usable(&state)?;
        let number = state.savepoints + 1;
        self.control(&mut state, &format!("SAVEPOINT pgshard_{number}"))
            .await?;
        state.savepoints = number;
        state.open.push(number);
        Ok(Savepoint::new(&self.0.broken, self.key(), number))
    }

    /// Keeps what was done since the savepoint, or undoes it.
    async fn close(&self, open: Savepoint<'_>, end: End) -> Result<(), Error> {
        let mut state = self.0.state.lock().await;
        let number = open.number();
        // A savepoint within this one was given up, or is still open elsewhere.
        if state.open.last() != Some(&number) {
            return Err(Error::TransactionFailed {
                shard: self.0.shard,
            });
        }
        let release = format!("RELEASE pgshard_{number}");
        let kept = match end {
            End::Commit => Some(self.control(&mut state, &release).await),
            End::RollBack => None,
        };
        if !matches!(kept, Some(Ok(()))) {
            self.control(&mut state, &format!("ROLLBACK TO pgshard_{number}"))
                .await?;
            self.control(&mut state, &release).await?;
        }
        state.open.pop();
        open.closed();
        kept.unwrap_or(Ok(()))
    }

    async fn control(&self, state: &mut TransactionState, sql: &str) -> Result<(), Error> {
        self.send::<u64>(state, &Sql::new(sql), &[]).await.map(drop)
    }

    /// Identifies this transaction while it runs.
    fn key(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    pub(super) async fn run<A: Answer>(
        &self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<A, Error> {
        let Running {
            router,
            shard,
            host,
            epoch,
            state,
            ..
        } = &*self.0;
        let sql = router.inner().sql.read(sql);
        if sql.class() == StatementClass::Control {
            return Err(Error::TransactionControl { shard: *shard });
        }
        let mut state: MutexGuard<'_, TransactionState> = state.lock().await;
        self.usable(&state)?;
        // The transaction can only have read so far, because a write would have kept the shard
        // where it is. What it reads next could be the old copy, through a plan made before the
        // fence. So it is run again where the shard is now.
        if router.inner().epoch(*shard) > Some(*epoch) {
            state.noted.signal = Some(MoveSignal::Signpost);
            let reason = "it has moved since the transaction began".to_owned();
            return Err(Error::ShardUnavailable {
                shard: *shard,
                host: host.clone(),
                waited_ms: 0,
                reason,
            });
        }
        self.send(&mut state, &sql, params).await
    }

    /// Whether another statement may go out now.
    fn usable(&self, state: &TransactionState) -> Result<(), Error> {
        let shard = self.0.shard;
        let Some(lease) = &state.lease else {
            return Err(Error::TransactionEnded { shard });
        };
        // A statement was given up and its answer is still to come, or a savepoint was given up
        // before its end.
        if lease.is_unsettled() || self.0.broken.load(Ordering::Relaxed) {
            return Err(Error::TransactionFailed { shard });
        }
        if state.open.last().copied() != savepoint::current(self.key()) {
            return Err(Error::SavepointOpen { shard });
        }
        Ok(())
    }

    /// Sends one statement, unless the transaction is given up meanwhile.
    async fn send<A: Answer>(
        &self,
        state: &mut TransactionState,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<A, Error> {
        let mut given_up = self.0.given_up.subscribe();
        tokio::select! {
            biased;
            _ = given_up.wait_for(|given_up| *given_up) => {
                state.lease = None;
                Err(Error::TransactionEnded { shard: self.0.shard })
            }
            answer = self.sent(state, sql, params) => answer,
        }
    }

    async fn sent<A: Answer>(
        &self,
        state: &mut TransactionState,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<A, Error> {
        let Running {
            router,
            shard,
            host,
            prepare,
            named,
            ..
        } = &*self.0;
        let shard = *shard;
        let rendered = match named {
            Named::InFull => Rendered::new(sql, router.prefix(), shard),
            Named::BySearchPath => Rendered::by_search_path(sql, router.prefix(), shard),
        };
        let Some(lease) = &mut state.lease else {
            return Err(Error::TransactionEnded { shard });
        };
        let ran = lease.run(rendered, params, *prepare).await;
        let lost = |failed: &Failed, lease: &Lease| failed.lost(&lease.session().connection);
        let noted = &mut state.noted;
        match ran {
            Ok(answer) => {
                // Whatever has failed, failed since the savepoint, because a savepoint can only be
                // set where nothing has failed.
                noted.failed &= sql.class() != StatementClass::RollbackTo;
                noted.fault = None;
                // This is only believed when the host says that it served the shard.
                if sql.asks_about_names() {
                    noted.signal = noted.signal.or(Some(MoveSignal::Relative));
                }
                Ok(answer)
            }
            Err(failed) if lost(&failed, lease) => {
                noted.failed = true;
                noted.fault = Some(Fault::new(Outcome::Cluster));
                Err(Error::ConnectionLost {
                    shard,
                    host: host.clone(),
                    may_have_run: false,
                    source: failed.error.into(),
                })
            }
            Err(failed) => {
                // The driver's own refusals never reach the server.
                noted.failed |= failed.error.as_db_error().is_some();
                noted.outdated |= failed.may_be_outdated();
                noted.read_only |= is_read_only(&failed.error);
                if let Some(signal) = MoveSignal::of(&failed.error) {
                    noted.remembered |=
                        signal == MoveSignal::Signpost && failed.may_be_remembered();
                    noted.signal = if noted.signal == Some(MoveSignal::Signpost) {
                        noted.signal
                    } else {
                        Some(signal)
                    };
                }
                let error = Error::Statement {
                    shard,
                    host: host.clone(),
                    may_have_run: false,
                    source: failed.error.into(),
                };
                noted.fault = Some(Fault::of(&error));
                Err(error)
            }
        }
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("shard", &self.0.shard)
            .field("host", &self.0.host)
            .finish_non_exhaustive()
    }
}
