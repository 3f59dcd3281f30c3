//! A transaction that is running: what its closure gets, and what is noted of it.

use std::fmt;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, watch};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row};

use super::Router;
use super::answer::{Answer, FirstRow, unsupported};
use super::call::CallFailure;
use super::error::{Error, Expected};
use super::from_row::FromRow;
use super::lease::Lease;
use super::next_ids::{NEXT_IDS, has_ids, reserved};
use super::origin::is_lost;
use super::outcome::Outcome;
use super::queries::{Misfit, query_methods};
use super::reach::Reach;
use super::routing::Place;
use super::savepoint::{self, Savepoint};
use super::session::CommitOrRollback;
use super::sql::{Naming, ShardStatement, Sql, SqlText};
use super::stale::MoveSignal;
use super::statement_class::StatementClass;
use super::statement_error::StatementError;
use super::statements::Prepare;
use super::target::Target;
use crate::map::{HostName, ShardEpoch};
use crate::pg::quote_ident;
use crate::pg::state::is_read_only;
use crate::shard::{Layout, ShardId};

/// A transaction that a closure is run with. Cheap to clone; of no use once the closure has
/// returned, or the call is given up ([`Error::TransactionEnded`]). Statements run one after the
/// other, in the order of the calls.
#[derive(Clone)]
pub struct Transaction(Arc<Running>);

struct Running {
    router: Router,
    shard: ShardId,
    host: HostName,
    /// The epoch at which the host served the shard when the transaction began.
    epoch: ShardEpoch,
    /// How the host keeps its shards.
    layout: Layout,
    /// Which rows its statements are for.
    reach: Reach,
    prepare: Prepare,
    named: TableNaming,
    state: Mutex<TransactionState>,
    /// Whether a savepoint was given up before its end.
    broken: AtomicBool,
    /// Whether the caller has given the transaction up.
    given_up: watch::Sender<bool>,
    /// Whether a unique index refused a statement, even if a savepoint has caught it.
    duplicate: AtomicBool,
    /// What the last statement that failed on [`Transaction::client`] had met.
    lent: StdMutex<Option<CallFailure>>,
}

/// How statements name the shard's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableNaming {
    InFull,
    BySearchPath,
}

struct TransactionState {
    /// `None` once the closure has returned.
    lease: Option<Lease>,
    noted: StatementNotes,
    /// How many savepoints were set so far.
    savepoints: u32,
    /// The savepoints that are open, the outermost first.
    open: Vec<u32>,
    /// The client of [`Transaction::client`] went back while an answer was awaited.
    awaited: bool,
}

/// How long the rest of an answer may take that [`Transaction::client`] has not waited for. The
/// driver itself reads some answers to their last row and not to their end. What takes longer is a
/// statement that was given up.
const REST_MAX: Duration = Duration::from_secs(1);

/// What was noted of a transaction's statements.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StatementNotes {
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
    pub(super) fault: Option<CallFailure>,
}

/// What is left of a transaction when its closure has returned.
pub(super) struct ClosedTransaction {
    pub(super) lease: Option<Lease>,
    pub(super) noted: StatementNotes,
}

/// Ends a transaction that its caller has given up: no clone keeps its connection, nor its locks.
pub(super) struct TransactionGuard(Transaction);

impl Drop for TransactionGuard {
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
        target: Target<'_>,
        place: &Place,
        lease: Lease,
        (prepare, named): (Prepare, TableNaming),
    ) -> Transaction {
        let state = TransactionState {
            lease: Some(lease),
            noted: StatementNotes::default(),
            savepoints: 0,
            open: Vec::new(),
            awaited: false,
        };
        Transaction(Arc::new(Running {
            router: target.router.clone(),
            shard: target.shard,
            host: place.host.name.clone(),
            epoch: place.epoch,
            layout: place.host.options.layout.clone(),
            reach: target.reach,
            prepare,
            named,
            state: Mutex::new(state),
            broken: AtomicBool::new(false),
            given_up: watch::Sender::new(false),
            duplicate: AtomicBool::new(false),
            lent: StdMutex::new(None),
        }))
    }

    pub(super) fn guard(&self) -> TransactionGuard {
        TransactionGuard(self.clone())
    }

    /// Takes the connection away from the closure and from all clones.
    pub(super) async fn end(&self) -> ClosedTransaction {
        let mut state = self.0.state.lock().await;
        self.settle(&mut state).await;
        let mut lease = state.lease.take();
        let mut noted = state.noted;
        if noted.remembered
            && let Some(lease) = lease.take()
        {
            lease.discard();
        }
        let lent = *self.0.lent.lock().unwrap_or_else(PoisonError::into_inner);
        noted.fault = noted.fault.or(lent);
        noted.failed |=
            self.0.broken.load(Ordering::Relaxed) || lease.as_ref().is_none_or(Lease::is_unsettled);
        ClosedTransaction { lease, noted }
    }

    /// The shard.
    pub fn shard(&self) -> ShardId {
        self.0.shard
    }

    /// The shard's schema as a quoted name, to be put into SQL: `"shard_0007"`. `{shard}` in a
    /// statement is the same without quotes.
    pub fn schema(&self) -> String {
        quote_ident(&self.naming().schema(self.0.shard))
    }

    fn naming(&self) -> Naming<'_> {
        Naming::new(&self.0.layout, self.0.router.prefix())
    }

    /// The transaction's connection, for crates that run their statements on a
    /// [`tokio_postgres::GenericClient`]: it dereferences to a [`tokio_postgres::Client`]. While it
    /// is held, other statements of the transaction wait, so drop it before the next one.
    ///
    /// `{shard}` means nothing in what is run on it. Within
    /// [`Shard::orm_transaction`](super::Shard::orm_transaction) `search_path` is the shard's
    /// schema; elsewhere [`Transaction::schema`] has the name.
    ///
    /// The router does not see these statements. So it queries the host, once the closure has
    /// returned, whether it has served the shard all the time, and runs the closure again if not.
    /// BEGIN, COMMIT and ROLLBACK are the router's own here too. A statement whose future is
    /// dropped ends the transaction, unless it has ended by itself within a second; then it takes
    /// effect with the transaction.
    ///
    /// ```no_run
    /// # use pgshard::{Router, router::Error};
    /// # async fn example(router: Router, user: i64) -> Result<(), Error> {
    /// use tokio_postgres::GenericClient;
    ///
    /// /// As another crate's.
    /// async fn count(client: &impl GenericClient) -> Result<i64, tokio_postgres::Error> {
    ///     Ok(client.query_one("SELECT count(*) FROM photos", &[]).await?.get(0))
    /// }
    ///
    /// let photos = router.by_key(user).orm_transaction(async |tx| {
    ///     let client = tx.client().await?;
    ///     count(&*client).await.map_err(|error| tx.failed(error))
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// When no statement may run: [`Error::TransactionEnded`], [`Error::TransactionFailed`],
    /// [`Error::SavepointOpen`].
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn client(&self) -> Result<TransactionClient<'_>, Error> {
        let mut state = self.0.state.lock().await;
        self.settle(&mut state).await;
        self.usable(&state)?;
        self.still_here(&mut state)?;
        state.noted.signal = state.noted.signal.or(Some(MoveSignal::Ambiguous));
        if let Some(lease) = &state.lease {
            lease.session().set_dirty();
        }
        Ok(TransactionClient {
            state,
            running: &self.0,
        })
    }

    /// The router's error for one of the driver's, of a statement on [`Transaction::client`]. It is
    /// noted, so that
    /// [`TransactionBuilder::retry_conflicts`](super::TransactionBuilder::retry_conflicts) applies
    /// to it.
    pub fn failed(&self, error: tokio_postgres::Error) -> Error {
        let (shard, host) = (self.0.shard, self.0.host.clone());
        let (may_have_run, is_lost) = (false, is_lost(&error));
        let source = error.into();
        let error = match is_lost {
            true => Error::ConnectionLost {
                shard,
                host,
                may_have_run,
                source,
            },
            false => Error::Statement {
                shard,
                host,
                may_have_run,
                source,
            },
        };
        self.note_duplicate(&error);
        let mut lent = self.0.lent.lock().unwrap_or_else(PoisonError::into_inner);
        *lent = Some(CallFailure::of(&error));
        error
    }

    fn note_duplicate(&self, error: &Error) {
        let met = error.is_unique_violation();
        self.0.duplicate.fetch_or(met, Ordering::Relaxed);
    }

    /// Whether a unique index refused one of its statements so far.
    pub(crate) fn met_duplicate(&self) -> bool {
        self.0.duplicate.load(Ordering::Relaxed)
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
    /// As [`Transaction::query`]; [`Error::Statement`] for more than 1,000,000;
    /// [`Error::Unsharded`] on an unsharded host.
    ///
    /// # Cancel safety
    /// As [`Transaction::query`].
    pub async fn next_ids(&self, count: u32) -> Result<Vec<i64>, Error> {
        has_ids(self.0.shard, &self.0.host, &self.0.layout)?;
        let ids: Vec<(i64,)> = self.query_as(NEXT_IDS, &[&reserved(count)]).await?;
        Ok(ids.into_iter().map(|(id,)| id).collect())
    }

    /// Runs `work` within a savepoint: when it gives `Err`, what it did is undone and the
    /// transaction can continue. Savepoints nest, and follow each other. Nothing else may run on
    /// the transaction while one is open, because it would be undone with it: a statement from
    /// outside of `work` (next to it in a `join!`, or in a task that `work` spawns) is refused.
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
    /// statement in it had failed, what it did is undone too, and the server's refusal to continue
    /// is the error.
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
            CommitOrRollback::Commit
        } else {
            CommitOrRollback::RollBack
        };
        let closed = self.close(open, end).await;
        if result.is_ok() {
            closed?;
        }
        result
    }

    async fn open(&self) -> Result<Savepoint<'_>, Error> {
        let mut state = self.0.state.lock().await;
        self.settle(&mut state).await;
        self.usable(&state)?;
        let number = state.savepoints + 1;
        self.control(&mut state, &format!("SAVEPOINT pgshard_{number}"))
            .await?;
        state.savepoints = number;
        state.open.push(number);
        Ok(Savepoint::new(&self.0.broken, self.key(), number))
    }

    /// Keeps what was done since the savepoint, or undoes it.
    async fn close(&self, open: Savepoint<'_>, end: CommitOrRollback) -> Result<(), Error> {
        let mut state = self.0.state.lock().await;
        self.settle(&mut state).await;
        let number = open.number();
        let given_up = state.lease.as_ref().is_some_and(Lease::is_unsettled);
        // A savepoint within this one was given up, or is still open elsewhere.
        if given_up || state.open.last() != Some(&number) {
            return Err(Error::TransactionFailed {
                shard: self.0.shard,
            });
        }
        let release = format!("RELEASE pgshard_{number}");
        let kept = match end {
            CommitOrRollback::Commit => Some(self.control(&mut state, &release).await),
            CommitOrRollback::RollBack => None,
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
            state,
            ..
        } = &*self.0;
        let sql = router.inner().sql.read(sql);
        if sql.class() == StatementClass::Control {
            return Err(Error::TransactionControl { shard: *shard });
        }
        if let Some(error) = unsupported::<A>(sql.class(), *shard) {
            return Err(error);
        }
        self.0.reach.takes(&sql, (*shard, &self.0.host))?;
        let mut state: MutexGuard<'_, TransactionState> = state.lock().await;
        self.settle(&mut state).await;
        self.usable(&state)?;
        self.still_here(&mut state)?;
        self.send(&mut state, &sql, params).await
    }

    /// The transaction can only have read so far, because a write would have kept the shard where
    /// it is. What it reads next could be the old copy, through a plan made before the fence. So it
    /// is run again where the shard is now.
    fn still_here(&self, state: &mut TransactionState) -> Result<(), Error> {
        let Running {
            router,
            shard,
            host,
            epoch,
            ..
        } = &*self.0;
        if router.inner().epoch(*shard) <= Some(*epoch) {
            return Ok(());
        }
        state.noted.signal = Some(MoveSignal::Signpost);
        let reason = "it has moved since the transaction began".to_owned();
        Err(Error::ShardUnavailable {
            shard: *shard,
            host: host.clone(),
            waited_ms: 0,
            reason,
        })
    }

    /// Waits for the rest of what the lent client has not waited for: the answer to an empty
    /// statement comes behind it. What takes longer ends the transaction.
    async fn settle(&self, state: &mut TransactionState) {
        if !state.awaited {
            return;
        }
        let Some(lease) = &mut state.lease else {
            return;
        };
        lease.set_unsettled();
        let rest = lease.session().connection.batch_execute("");
        if let Ok(Ok(())) = tokio::time::timeout(REST_MAX, rest).await {
            lease.set_settled();
        }
        state.awaited = false;
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
            shard,
            host,
            prepare,
            named,
            ..
        } = &*self.0;
        let (shard, naming) = (*shard, self.naming());
        let rendered = match named {
            TableNaming::InFull => ShardStatement::new(sql, naming, shard),
            TableNaming::BySearchPath => ShardStatement::by_search_path(sql, naming, shard),
        };
        let Some(lease) = &mut state.lease else {
            return Err(Error::TransactionEnded { shard });
        };
        let ran = lease.run(rendered, params, *prepare).await;
        let lost =
            |failed: &StatementError, lease: &Lease| failed.lost(&lease.session().connection);
        let noted = &mut state.noted;
        match ran {
            Ok(answer) => {
                // Whatever has failed, failed since the savepoint, because a savepoint can only be
                // set where nothing has failed.
                noted.failed &= sql.class() != StatementClass::RollbackTo;
                noted.fault = None;
                // This counts only if the host confirms that it served the shard.
                if sql.asks_about_names() {
                    noted.signal = noted.signal.or(Some(MoveSignal::Ambiguous));
                }
                Ok(answer)
            }
            Err(failed) if lost(&failed, lease) => {
                noted.failed = true;
                noted.fault = Some(CallFailure::new(Outcome::Cluster));
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
                noted.fault = Some(CallFailure::of(&error));
                self.note_duplicate(&error);
                Err(error)
            }
        }
    }
}

/// The connection of a [`Transaction`], lent by [`Transaction::client`].
pub struct TransactionClient<'t> {
    state: MutexGuard<'t, TransactionState>,
    running: &'t Running,
}

impl Deref for TransactionClient<'_> {
    type Target = Client;

    fn deref(&self) -> &Client {
        let lease = self.state.lease.as_ref();
        &lease
            .expect("a connection that is lent is not taken away")
            .session()
            .connection
    }
}

impl fmt::Debug for TransactionClient<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransactionClient")
            .field("shard", &self.running.shard)
            .finish_non_exhaustive()
    }
}

impl Drop for TransactionClient<'_> {
    fn drop(&mut self) {
        let lease = self.state.lease.as_ref();
        self.state.awaited |= lease.is_some_and(|lease| lease.session().connection.is_awaiting());
        // The call was given up meanwhile.
        if *self.running.given_up.borrow() {
            self.state.lease = None;
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
