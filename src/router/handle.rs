//! A shard, as an application sees it: the methods that run SQL there.

use std::pin::pin;
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Router;
use super::answer::{Answer, FirstRow, unsupported};
use super::call::{Call, CallFailure, call_span};
use super::error::{Error, Expected};
use super::from_row::FromRow;
use super::lease::Lease;
use super::next::{ConnectionKind, Effect, Link, StatementEnd, TryHistory, after_statement};
use super::next_ids::{NEXT_IDS, has_ids, reserved};
use super::pool_slots::{Lane, Use};
use super::queries::{Misfit, query_methods};
use super::raw::RawClient;
use super::reach::Reach;
use super::recover::{FinishedTry, Recovery};
use super::running::Transaction;
use super::sql::{ShardStatement, SqlText};
use super::statement_class::StatementClass;
use super::target::Target;
use super::transaction::{TransactionBuilder, TransactionError};
use crate::map::HostName;
use crate::shard::{KeyKind, ShardId};

/// A shard to run SQL on. Made by [`Router::by_key`], [`Router::by_id`] and [`Router::shard`]
/// without I/O; holds no connection.
///
/// Each method borrows a connection to the host that serves the shard now, and gives it back. A
/// statement that meets a move waits for it (see [the module](super)). So a call can be long, but
/// not longer than [`Options::retry_for`](super::Options::retry_for) and the time that the
/// statement itself takes.
#[derive(Clone, Copy, Debug)]
pub struct Shard<'r>(Target<'r>);

impl<'r> Shard<'r> {
    pub(super) fn new(router: &'r Router, id: ShardId, reach: Reach) -> Shard<'r> {
        Shard::of_key(router, id, router.key_kind()).reaching(reach)
    }

    pub(super) fn of_key(router: &'r Router, id: ShardId, key: KeyKind) -> Shard<'r> {
        Shard(Target {
            router,
            shard: id,
            key,
            limit: router.inner().options.statement_timeout,
            lane: Lane::Work,
            reach: Reach::Keys,
        })
    }

    /// The same shard, for calls that may take this long instead of
    /// [`Options::statement_timeout`](super::Options::statement_timeout). The limit includes all
    /// waiting and every try, and is for a transaction as a whole. A call that reaches it gives
    /// [`Error::TimedOut`], and what it had sent is cancelled.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Shard<'r> {
        self.0.limit = Some(limit);
        self
    }

    /// The same shard, for calls about these rows.
    pub(crate) fn reaching(mut self, reach: Reach) -> Shard<'r> {
        self.0.reach = reach;
        self
    }

    /// The same shard, for calls on the connections that are kept for claims.
    pub(crate) fn for_claims(mut self) -> Shard<'r> {
        self.0.lane = Lane::Claims;
        self
    }

    pub(super) fn target(self) -> Target<'r> {
        self.0
    }

    /// The error of a call that was given up at its limit.
    pub(crate) fn timed_out(self, limit: Duration, may_have_run: bool) -> Error {
        self.0.timed_out(limit, may_have_run)
    }

    /// Checks that the handle was made from a key of the cluster's kind.
    pub(super) fn checked(self) -> Result<(), Error> {
        self.0.checked()
    }

    pub(super) fn router(self) -> &'r Router {
        self.0.router
    }

    /// The shard's number.
    pub fn id(self) -> ShardId {
        self.0.shard
    }

    /// The name of the shard's schema, not quoted.
    pub fn schema(self) -> String {
        self.0.schema()
    }

    /// The host that serves the shard now, as far as the router knows.
    pub fn host(self) -> HostName {
        self.0
            .router
            .inner()
            .host_name(self.0.shard)
            .expect("a handle is only made for a shard that the cluster has")
    }

    query_methods! {
        /// Runs a statement and gives its rows. `{shard}` in it is the shard's schema.
        ///
        /// # Errors
        /// See [`Error`]. An error of the server, or of the driver about a parameter, is
        /// [`Error::Statement`].
        ///
        /// # Cancel safety
        /// The statement may have taken effect when its future is dropped; the connection is
        /// closed.
        (self) self
    }

    fn misfit(self, sql: &SqlText<'_>) -> Misfit {
        let sql = self.0.router.inner().sql.read(sql);
        Misfit {
            shard: self.0.shard,
            host: self.host(),
            may_have_run: !self.0.router.only_reads(&sql),
        }
    }

    /// Runs a statement and gives the number of rows that it changed (of a SELECT: found).
    ///
    /// # Errors
    /// As [`Shard::query`].
    ///
    /// # Cancel safety
    /// As [`Shard::query`].
    pub async fn execute<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.run(&sql.into(), params).await
    }

    /// Reserves `count` IDs of the shard at once, 1,000,000 at most, in growing order. Use it to
    /// know the IDs before the rows are written, or for a bulk load, where it costs a tenth of
    /// making them row by row.
    ///
    /// They are the caller's for good, wherever the shard is when they are used; IDs that are not
    /// used are gaps. They are greater than every ID that the same connection was given before.
    ///
    /// # Errors
    /// As [`Shard::query`]; [`Error::Statement`] for more than 1,000,000; [`Error::Unsharded`] on
    /// an unsharded host, where the application's own sequences make IDs.
    ///
    /// # Cancel safety
    /// The IDs may be reserved when its future is dropped, and are gaps then.
    pub async fn next_ids(self, count: u32) -> Result<Vec<i64>, Error> {
        let place = self.0.place()?;
        has_ids(self.0.shard, &place.host.name, &place.host.options.layout)?;
        let ids: Vec<(i64,)> = self.query_as(NEXT_IDS, &[&reserved(count)]).await?;
        Ok(ids.into_iter().map(|(id,)| id).collect())
    }

    /// Runs a closure within a transaction: COMMIT when it gives `Ok`, ROLLBACK when it gives `Err`
    /// (or its future is dropped, or panics).
    ///
    /// The whole closure is run again when one of its statements met a move, whatever it returned,
    /// and once when a statement had been prepared before a migration of the application. So it
    /// must do nothing that cannot be done twice. What it collects it returns, so that nothing of
    /// an earlier run is in it. Where the error's type is not known from elsewhere, the closure
    /// names it: `async |tx| -> Result<(), Error> { … }`. A statement that fails ends the
    /// transaction, as always in PostgreSQL; to continue after a failure, run the statement within
    /// a [`Transaction::savepoint`].
    ///
    /// ```no_run
    /// # use pgshard::router::{Error, Router};
    /// # async fn example(router: Router, user: i64) -> Result<(), Error> {
    /// let title = String::from("Prague");
    /// router.by_key(user).transaction(async |tx| {
    ///     let insert = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2)";
    ///     tx.execute(insert, &[&user, &title]).await?;
    ///     tx.execute("UPDATE {shard}.users SET photos = photos + 1 WHERE id = $1", &[&user]).await
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// The closure's own, and, as `E`, those of the router: [`Error::InDoubt`] when the connection
    /// was lost during COMMIT, which is never tried again, and [`Error::TransactionFailed`] when
    /// the closure gave `Ok` although a statement had failed.
    ///
    /// # Cancel safety
    /// Rolled back when the future is dropped before COMMIT was sent.
    pub async fn transaction<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.build_transaction().run(work).await
    }

    /// As [`Shard::transaction`], for SQL that cannot name the shard's schema, as an ORM's: within
    /// it `search_path` is the shard's schema, and `{shard}` means it as always.
    ///
    /// ```no_run
    /// # use pgshard::router::{Error, Router};
    /// # async fn example(router: Router, user: i64) -> Result<(), Error> {
    /// let photos = router.by_key(user).orm_transaction(async |tx| {
    ///     tx.query("SELECT id, title FROM photos WHERE user_id = $1", &[&user]).await
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// `SET LOCAL` sets it, so it ends with the transaction, no other user of the connection meets
    /// it, and it works through a pooler in transaction mode. There is no such mode for single
    /// statements: they would need the transaction too.
    ///
    /// Behind the shard's schema there are only `pg_catalog` and temporary tables: a table that the
    /// shard does not have is an error, even if `public` has one of that name. A caller that needs
    /// what is in `public` (an extension's functions) adds it with
    /// [`TransactionBuilder::search_path`]. Then a name that is missing in the shard does fall
    /// through to `public`, where every shard reads and writes the same rows.
    ///
    /// # Errors
    /// As [`Shard::transaction`].
    ///
    /// # Cancel safety
    /// As [`Shard::transaction`].
    pub async fn orm_transaction<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.build_transaction().search_path(&[]).run(work).await
    }

    /// A transaction with an isolation level, or read-only.
    pub fn build_transaction(self) -> TransactionBuilder<'r> {
        TransactionBuilder::new(self.0)
    }

    /// A connection to the host that serves the shard now, for what this library does not cover:
    /// COPY, pipelines. Its holder handles moves itself: after an `SH001` (or one of its
    /// ambiguous, see [`crate::pg::state`]) it returns the client and requests another.
    ///
    /// It is of no use for LISTEN: notifications do not come out of it. Open a connection of your
    /// own to the shard's host for that.
    ///
    /// It comes from the same pool as every other connection; when it goes back, everything that a
    /// session can be left with is undone (one round trip). The metrics count it as one request,
    /// which ends when the client is there.
    ///
    /// # Errors
    /// When there is no connection to the host, or none is free in time.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn client(self) -> Result<RawClient, Error> {
        self.checked()?;
        let call = Call::new(self.0, call_span!("pgshard.client", self.0.shard));
        let result = self.lend(&call).await;
        call.ended(&result, CallFailure::of);
        result
    }

    async fn lend(self, call: &Call<'_>) -> Result<RawClient, Error> {
        call.tries();
        let place = self.0.place()?;
        let lease = place.lease(self.0.shard, Use::Longer).await?;
        call.answered_by(place.host.clone());
        let naming = place.host.naming(&self.0.router.inner().prefix);
        Ok(RawClient::new(
            lease,
            self.0.shard,
            place.host.name.clone(),
            naming.schema(self.0.shard).into_owned(),
        ))
    }

    async fn run<A: Answer>(
        self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<A, Error> {
        self.checked()?;
        let call = Call::new(self.0, call_span!("pgshard.statement", self.0.shard));
        let result = call
            .limited(pin!(self.run_to_end(sql, params, &call)))
            .await;
        call.ended(&result, CallFailure::of);
        result
    }

    pub(super) async fn run_to_end<A: Answer>(
        self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
        call: &Call<'_>,
    ) -> Result<A, Error> {
        let (answer, _) = self.run_on_lease(sql, params, call).await?;
        Ok(answer)
    }

    /// The same, with the connection that gave the answer, unless it was given back.
    pub(super) async fn run_on_lease<A: Answer>(
        self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
        call: &Call<'_>,
    ) -> Result<(A, Option<Lease>), Error> {
        let inner = self.0.router.inner();
        let shard = self.0.shard;
        let sql = inner.sql.read(sql);
        let kind = sql.class();
        if matches!(
            kind,
            StatementClass::Control | StatementClass::Savepoint | StatementClass::RollbackTo
        ) {
            return Err(Error::TransactionControl { shard });
        }
        if let Some(error) = unsupported::<A>(kind, shard) {
            return Err(error);
        }
        self.0.takes(&sql)?;
        if sql.asks_about_names() && matches!(kind, StatementClass::Read | StatementClass::Write) {
            // A signpost would have given another answer instead of an error. So this is a
            // transaction: it commits only once the host has confirmed that it serves the shard.
            let sql = &sql;
            let asking = |tx: Transaction| async move { tx.run(&SqlText::from(sql), params).await };
            let answer = Box::pin(self.build_transaction().run_to_end(asking, call)).await;
            return Ok((answer.map_err(TransactionError::into_inner)?, None));
        }
        let effect = Effect {
            may_write: !sql.only_reads(inner.options.selects),
            repeatable: kind.repeatable(),
        };
        let mut recovery = Recovery::new(inner, shard);
        let mut tried = TryHistory::nothing(0);
        loop {
            call.tries();
            let place = self.0.place()?;
            let rendered = ShardStatement::new(&sql, place.host.naming(&inner.prefix), shard);
            let mut lease = place.lease_of(self.0.lane, shard, Use::Statement).await?;
            let began = Instant::now();
            call.may_take_effect(effect.may_write);
            let failed = match lease.run(rendered, params, tried.prepare).await {
                Ok(answer) => {
                    call.answered_by(place.host);
                    return Ok((answer, Some(lease)));
                }
                Err(failed) => failed,
            };
            // What failed is undone, unless it can commit before its end.
            call.may_take_effect(!effect.repeatable);
            let link = failed.link(&lease.session().connection);
            let observed = failed.observed(ConnectionKind::Own, link, effect);
            let mut finished = FinishedTry {
                place: &place,
                began,
                lease: Some(lease),
                remembers: failed.may_be_remembered(),
            };
            if link == Link::Lost {
                finished.close();
                place.host.circuit.doubt();
            }
            let next = |tried, answers| after_statement(tried, observed, answers);
            let Some(end) = Box::pin(recovery.run(&mut tried, &mut finished, next)).await? else {
                continue;
            };
            if end == StatementEnd::NotRepeated {
                finished.let_go();
            }
            return Err(failed.ended(end, shard, place.host.name.clone()));
        }
    }
}
