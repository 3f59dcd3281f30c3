//! One statement on many shards.

use std::collections::VecDeque;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::BoxFuture;
use futures_util::stream::{Stream, StreamExt};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::batch::{Answers, Batch};
use super::job::{Pace, Servers};
use super::merged::{MergeRequest, MergedRows};
use super::params::Source;
use super::partial::{Failures, Partial};
use super::rows::RowStreams;
use super::values::Values;
use crate::router::{Error, Reach, Router, SqlText};
use crate::shard::ShardId;

impl Router {
    /// Every shard.
    pub fn all_shards(&self) -> Shards {
        self.shards(self.shards_total().iter())
    }

    /// These shards, each once.
    pub fn shards(&self, shards: impl IntoIterator<Item = ShardId>) -> Shards {
        let mut shards: Vec<ShardId> = shards.into_iter().collect();
        shards.sort_unstable();
        shards.dedup();
        let pace = Pace {
            width: Shards::WIDTH,
            depth: 1,
            deadline: None,
        };
        Shards {
            router: self.clone(),
            shards,
            pace,
            servers: Servers::Primaries,
        }
    }
}

/// Shards to run the same statement on.
///
/// An unsharded host has the rows of all shards in one schema. There a statement for all shards is
/// run once, and its one result stands for all of them, in the name of the first. One for a part of
/// them is refused ([`Error::Unsharded`]): name the keys ([`Router::by_keys`]).
#[derive(Clone, Debug)]
#[must_use]
pub struct Shards {
    router: Router,
    shards: Vec<ShardId>,
    pace: Pace,
    servers: Servers,
}

impl Shards {
    /// How many connections to one host are used at a time by default: 8.
    pub const WIDTH: usize = 8;

    /// How many connections to one host are used at a time, at least 1. The call waits for one,
    /// takes the others if they are free, and never takes more than half of the host's `pool_size`.
    pub fn width(mut self, connections_per_host: usize) -> Shards {
        self.pace.width = connections_per_host.max(1);
        self
    }

    /// How many statements are on their way on one connection, each behind the other, at least 1.
    /// Default 1. More is faster for statements that take less time than the way to the host, but a
    /// statement that takes long holds up those behind it. After half a second, those behind it are
    /// sent again on another connection if they are known to be reads
    /// ([`Sql::reading`](crate::router::Sql::reading), [`Selects`](crate::router::Selects)). When
    /// statements have no names ([`PrepareMode::Unnamed`](crate::router::PrepareMode::Unnamed)),
    /// the depth is always 1.
    pub fn depth(mut self, statements_per_connection: usize) -> Shards {
        self.pace.depth = statements_per_connection.max(1);
        self
    }

    /// Reads on standbys, as [`Shard::reads`](crate::router::Shard::reads) does for each shard:
    /// where one is near enough, and else, or when it fails there, on the primary. What does not
    /// only read fails with [`Error::NotARead`]. A statement goes by itself, not pipelined behind
    /// others.
    pub fn reads(mut self) -> Shards {
        self.servers = Servers::Standbys;
        self
    }

    /// How long the whole call may take, from the request for its first result. By default as long
    /// as any call may ([`Options::statement_timeout`](crate::router::Options::statement_timeout)).
    /// Every shard that has not answered by then fails with [`Error::TimedOut`].
    pub fn deadline(mut self, deadline: Duration) -> Shards {
        self.pace.deadline = Some(deadline);
        self
    }

    /// Runs the statement on each shard. Nothing is sent before the first result is requested;
    /// dropping the [`Gather`] ends it. Awaited as a whole, it returns all rows with their shards,
    /// or what failed ([`Partial`]).
    ///
    /// The parameters are borrowed for as long as results are requested. [`Shards::query_with`]
    /// takes them.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::router::Router) {
    /// let mut counts = router.all_shards().query("SELECT count(*) FROM {shard}.photos", &[]);
    /// while let Some((shard, rows)) = counts.next().await {
    ///     match rows {
    ///         Ok(rows) => println!("{shard}: {}", rows[0].get::<_, i64>(0)),
    ///         Err(error) => println!("{shard}: {error}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn query<'a, 's>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> Gather<'a> {
        self.gather(sql.into(), Source::borrowed(params))
    }

    /// As [`Shards::query`], with parameters that the call owns ([`params!`](crate::params)): the
    /// results may outlive the function, and be taken by another task.
    ///
    /// ```no_run
    /// # fn example(router: pgshard::Router, title: String) -> pgshard::fanout::Gather<'static> {
    /// let sql = "SELECT id FROM {shard}.photos WHERE title = $1";
    /// router.all_shards().query_with(sql, pgshard::params![title])
    /// # }
    /// ```
    pub fn query_with<'s>(&self, sql: impl Into<SqlText<'s>>, params: Values) -> Gather<'static> {
        let params = Arc::new(params);
        let make = Source::Owned(Arc::new(move |_| Box::new(params.clone())));
        self.gather(sql.into(), make)
    }

    /// Runs a statement on each shard and returns the rows as they arrive, in no order among the
    /// shards: [`Shard::query_raw`](crate::router::Shard::query_raw) on one shard of each host at a
    /// time. Calling it declares the statement as read-only. Memory is needed for a few rows of
    /// each host, and one connection. [`Shards::width`], [`Shards::depth`] and [`Shards::deadline`]
    /// have no effect here.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router) -> Result<(), pgshard::router::Error> {
    /// use futures_util::StreamExt;
    ///
    /// let sql = "SELECT id, title FROM {shard}.photos";
    /// let mut photos = router.all_shards().query_raw(sql, pgshard::params![]);
    /// while let Some((shard, row)) = photos.next().await {
    ///     println!("{shard}: {}", row?.get::<_, String>(1));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// [`Shards::merge_raw`] merges the rows by an order.
    pub fn query_raw<'s>(&self, sql: impl Into<SqlText<'s>>, params: Values) -> RowStreams {
        let sql = sql.into().to_sql();
        let (shards, reach) = self.jobs();
        RowStreams::new(&self.router, (&shards, reach), sql, params, self.servers)
    }

    /// Runs a statement on each shard and returns the rows as a stream, merged in the order that
    /// `order` gives each row. Rows that are equal by it come in the order of their shards: let the
    /// last part of `order` distinguish any two rows, as the ID does. Calling it declares the
    /// statement as read-only; it begins with SELECT, WITH, VALUES or TABLE, and has the same
    /// ORDER BY (texts with `COLLATE "C"`).
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router) -> Result<(), pgshard::router::Error> {
    /// use std::cmp::Reverse;
    /// use futures_util::TryStreamExt;
    ///
    /// let sql = "SELECT likes, id, title FROM {shard}.photos ORDER BY likes DESC, id";
    /// let order = |row: &pgshard::tokio_postgres::Row| {
    ///     Ok((Reverse(row.try_get::<_, i32>(0)?), row.try_get::<_, i64>(1)?))
    /// };
    /// let mut photos = router.all_shards().merge_raw(sql, pgshard::params![], order).await?;
    /// while let Some((shard, row)) = photos.try_next().await? {
    ///     println!("{shard}: {}", row.get::<_, String>(2));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Each shard has a cursor, in one read-only transaction on one connection of each host. That
    /// lasts until the host's last row was read, or the stream is dropped. Memory is needed for
    /// 16,384 rows at most, 256 of a shard. A cursor shows what was committed when it was opened.
    ///
    /// A move is followed until every shard has its first rows. After that a move changes nothing
    /// in what a cursor shows; what the shard leaves behind is dropped only after the transaction.
    /// A connection that is lost ends the stream with [`Error::StreamStopped`]. A time limit is for
    /// the time until the first row.
    ///
    /// # Errors
    /// The first that a shard gives: as [`Shard::query_raw`](crate::router::Shard::query_raw);
    /// [`Error::OutOfOrder`] if its rows come in another order; [`Error::Decode`] if `order` cannot
    /// read one; [`Error::Unsupported`] if the statement looks up a name in the catalogs, and with
    /// [`Shards::reads`]. The stream gives such an error as its last item.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn merge_raw<'s, O: Ord + Send + 'static>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: Values,
        order: impl Fn(&Row) -> Result<O, tokio_postgres::Error> + Send + 'static,
    ) -> Result<MergedRows, Error> {
        let params = Arc::new(params);
        let (shards, reach) = self.jobs();
        let wanted = MergeRequest {
            params: shards
                .iter()
                .map(|_| Box::new(params.clone()) as _)
                .collect(),
            shards,
            reach,
            servers: self.servers,
        };
        let limit = self.pace.deadline;
        MergedRows::open(&self.router, sql.into(), wanted, limit, order).await
    }

    fn gather<'a>(&self, sql: SqlText<'_>, params: Source<'a>) -> Gather<'a> {
        let (shards, reach) = self.jobs();
        let batch = Batch {
            router: self.router.clone(),
            sql: sql.to_sql(),
            shards: shards.as_slice().into(),
            reach,
            params,
            pace: self.pace,
            servers: self.servers,
        };
        Gather::new(batch.run(), shards)
    }

    /// The shards that a statement is run for, and for which rows: on an unsharded host once, in
    /// the name of the first, if it is for all shards. Each shard of a part of them is refused
    /// there.
    fn jobs(&self) -> (Vec<ShardId>, Reach) {
        let all = usize::from(self.router.shards_total().get());
        if self.shards.len() == all && self.router.is_unsharded() {
            (self.shards.iter().take(1).copied().collect(), Reach::Host)
        } else {
            (self.shards.clone(), Reach::Shard)
        }
    }
}

/// The results of a statement on many shards, in the order in which they come: a [`Stream`] of each
/// shard's rows or error.
///
/// The statements continue while the caller uses a result, and their connections are returned, so
/// that the caller may use the router for every result. Results that the caller has not taken are
/// kept, up to 4 MiB or 16,384 rows. Past that, no further statement is sent; where statements are
/// pipelined ([`Shards::depth`]), their connection is held and the server waits.
#[must_use = "nothing is sent before the first result is asked for"]
pub struct Gather<'a> {
    answers: Answers<'a>,
    /// The shard of each job.
    shards: Vec<ShardId>,
    /// What is refused without a job. These results come first.
    refused: VecDeque<(ShardId, Error)>,
}

impl<'a> Gather<'a> {
    pub(super) fn new(answers: Answers<'a>, shards: Vec<ShardId>) -> Gather<'a> {
        Gather {
            answers,
            shards,
            refused: VecDeque::new(),
        }
    }

    /// The same, with results for what is refused.
    pub(super) fn with_refused(mut self, refused: VecDeque<(ShardId, Error)>) -> Gather<'a> {
        self.refused = refused;
        self
    }

    /// The next result; `None` after the last.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<(ShardId, Result<Vec<Row>, Error>)> {
        StreamExt::next(self).await
    }
}

impl Stream for Gather<'_> {
    type Item = (ShardId, Result<Vec<Row>, Error>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if let Some((shard, error)) = self.refused.pop_front() {
            return Poll::Ready(Some((shard, Err(error))));
        }
        let answer = Pin::new(&mut self.answers).poll_next(context);
        answer.map(|answer| answer.map(|(at, result)| (self.shards[at], result)))
    }
}

/// Collects all rows. The error has those of the shards that did not fail, and names the others.
impl<'a> IntoFuture for Gather<'a> {
    type Output = Result<Vec<(ShardId, Row)>, Partial<Vec<(ShardId, Row)>, ShardId>>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(mut self) -> Self::IntoFuture {
        Box::pin(async move {
            let (mut all, mut failed) = (Vec::new(), Failures::new(&self.answers));
            let shards = self.shards.len() + self.refused.len();
            while let Some((shard, result)) = self.next().await {
                match result {
                    Ok(rows) => all.extend(rows.into_iter().map(|row| (shard, row))),
                    Err(error) => failed.add(shard, vec![shard], error),
                }
            }
            failed.or(all, shards)
        })
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").finish_non_exhaustive()
    }
}
