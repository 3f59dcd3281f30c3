//! Rows of one shard as they come, in bounded memory.
//!
//! Invariant: a stream owns its connection, and gives it back only when the last row was read. A
//! move is followed until the first row is there; from then on it ends the stream with an error.

use std::collections::VecDeque;
use std::fmt;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, CopyOutStream, Error as PgError, Row, Statement};

use super::answer::Answer;
use super::call::{Call, CallFailure, call_span};
use super::error::Error;
use super::handle::Shard;
use super::lease::Lease;
use super::options::{PrepareMode, Recycle};
use super::reads::{Answered, Reads};
use super::sql::{Sql, SqlText};
use super::statement_class::StatementClass;
use crate::map::HostName;
use crate::shard::ShardId;

/// The rows of [`Shard::query_raw`] or [`Reads::query_raw`] in the order in which the server gives
/// them: a [`Stream`]. It owns what it needs, so that it can be returned, kept and spawned. The
/// server waits while rows are not read, and the connection is in use until the last one was read,
/// or the stream is dropped.
#[must_use = "rows are read when the stream is polled"]
pub struct RowStream(Rows<tokio_postgres::RowStream, Row>);

/// The data of [`Shard::copy_out`]: a [`Stream`] with an item for each row in the formats `text`
/// (the default) and `csv`. It owns what it needs, as a [`RowStream`] does.
#[must_use = "data is read when the stream is polled"]
pub struct CopyOut(Rows<CopyOutStream, Bytes>);

/// What both streams are.
struct Rows<S, T> {
    /// Rows that are there already.
    ready: VecDeque<T>,
    open: Option<Open<S>>,
    shard: ShardId,
    host: HostName,
    delivered: u64,
}

/// A stream with rows that have not all arrived. The fields are dropped in this order.
struct Open<S> {
    rows: Pin<Box<S>>,
    lease: Lease,
}

/// A statement's first row, and those that follow it.
struct FirstOfMany<S, T> {
    first: Option<T>,
    rows: Pin<Box<S>>,
}

impl<S: Stream<Item = Result<T, PgError>>, T> FirstOfMany<S, T> {
    async fn of(rows: S) -> Result<FirstOfMany<S, T>, PgError> {
        let mut rows = Box::pin(rows);
        let first = rows.try_next().await?;
        Ok(FirstOfMany { first, rows })
    }
}

impl Answer for FirstOfMany<tokio_postgres::RowStream, Row> {
    const STREAMS: bool = true;

    async fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Self, PgError> {
        FirstOfMany::of(client.query_raw(statement, params.iter().copied()).await?).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<Self, PgError> {
        FirstOfMany::of(client.query_typed_raw(sql, params).await?).await
    }
}

impl Answer for FirstOfMany<CopyOutStream, Bytes> {
    const STREAMS: bool = true;

    fn is_of(class: StatementClass) -> bool {
        class == StatementClass::CopyOut
    }

    async fn ask(
        client: &Client,
        statement: &Statement,
        _: &[&(dyn ToSql + Sync)],
    ) -> Result<Self, PgError> {
        FirstOfMany::of(client.copy_out(statement).await?).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        _: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<Self, PgError> {
        FirstOfMany::of(client.copy_out(sql).await?).await
    }
}

impl Shard<'_> {
    /// Runs a statement that begins with SELECT, WITH, VALUES, TABLE or SHOW, and returns its rows
    /// as a stream. Calling it declares the statement as read-only
    /// ([`Sql::reading`](super::Sql::reading)). Memory is needed for a few rows, however many there
    /// are.
    ///
    /// A move is followed until the first row is there, as by [`Shard::query`]. After that it can
    /// only end the stream: the item is [`Error::StreamStopped`], with the number of rows before
    /// it. Query the rest, from the last row on. A time limit is for the time until the first row.
    ///
    /// ```no_run
    /// # use pgshard::{Router, router::Error};
    /// # async fn example(router: Router, user: i64) -> Result<(), Error> {
    /// use futures_util::TryStreamExt;
    ///
    /// let sql = "SELECT id, title FROM {shard}.photos WHERE user_id = $1 ORDER BY id";
    /// let mut photos = router.by_key(user).query_raw(sql, &[&user]).await?;
    /// while let Some(row) = photos.try_next().await? {
    ///     println!("{}", row.get::<_, String>(1));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// Rows are collected first if the statement looks up a name in the catalogs, and through a
    /// pooler if it may leave something in the session.
    ///
    /// # Errors
    /// As [`Shard::query`], and [`Error::NotARead`] for other statements.
    ///
    /// # Cancel safety
    /// As [`Shard::query`].
    pub async fn query_raw<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<RowStream, Error> {
        self.checked()?;
        let sql = self.router().inner().sql.read(&sql.into()).with_word();
        if !sql.may_only_read() {
            return Err(Error::NotARead { shard: self.id() });
        }
        let text = SqlText::from(&sql);
        if self.is_read_first(&sql)? {
            let rows = self.query(text, params).await?;
            return Ok(RowStream(Rows::read(self, rows)));
        }
        let call = Call::new(self.target(), call_span!("pgshard.stream", self.id()));
        let opened = call.limited(pin!(self.opened(&text, params, &call))).await;
        call.ended(&opened, CallFailure::of);
        opened.map(RowStream)
    }

    /// Runs `COPY … TO STDOUT` and returns the data as a stream. Calling it declares the statement
    /// as read-only. Memory is needed for a few rows. A move and an error are as with
    /// [`Shard::query_raw`].
    ///
    /// ```no_run
    /// # type Answer = Result<(), Box<dyn std::error::Error>>;
    /// # async fn example(router: pgshard::Router, user: i64) -> Answer {
    /// use futures_util::TryStreamExt;
    /// use tokio::io::AsyncWriteExt;
    ///
    /// let mut file = tokio::fs::File::create("photos.csv").await?;
    /// let sql = "COPY (SELECT id, title FROM {shard}.photos) TO STDOUT (FORMAT csv)";
    /// let mut photos = router.by_key(user).copy_out(sql).await?;
    /// while let Some(data) = photos.try_next().await? {
    ///     file.write_all(&data).await?;
    /// }
    /// file.flush().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// `COPY … FROM STDIN` is for [`Transaction::client`](super::Transaction::client). Its closure
    /// is run again, whole, when the shard moves.
    ///
    /// # Errors
    /// As [`Shard::query`]; [`Error::NotARead`] for other statements; [`Error::Unsupported`] if the
    /// host is reached through a pooler, as COPY needs a statement with a name, and if the
    /// statement looks up a name in the catalogs.
    ///
    /// # Cancel safety
    /// As [`Shard::query`].
    pub async fn copy_out<'s>(self, sql: impl Into<SqlText<'s>>) -> Result<CopyOut, Error> {
        self.checked()?;
        let shard = self.id();
        let sql = self.router().inner().sql.read(&sql.into()).with_word();
        if sql.class() != StatementClass::CopyOut {
            return Err(Error::NotARead { shard });
        }
        let refused = |statement, instead| {
            Err(Error::Unsupported {
                shard,
                statement,
                instead,
            })
        };
        if self.is_pooled()? {
            return refused(
                "COPY through a pooler",
                "use `copy_out` of the client that `Transaction::client` lends",
            );
        }
        // A signpost would have given other data instead of an error.
        if sql.asks_about_names() {
            return refused("COPY of what the catalogs say", "use `query`");
        }
        let call = Call::new(self.target(), call_span!("pgshard.stream", shard));
        let text = SqlText::from(&sql);
        let opened = call.limited(pin!(self.opened(&text, &[], &call))).await;
        call.ended(&opened, CallFailure::of);
        opened.map(CopyOut)
    }

    /// Whether all rows of a statement are read before the first is given.
    fn is_read_first(self, sql: &Sql) -> Result<bool, Error> {
        let leaves =
            sql.may_change_session() || self.router().inner().options.recycle == Recycle::Clean;
        Ok(sql.asks_about_names() || leaves && self.is_pooled()?)
    }

    /// Whether the shard's host may be reached through a pooler.
    fn is_pooled(self) -> Result<bool, Error> {
        let place = self.router().inner().place(self.id())?;
        Ok(place.host.options.prepare == PrepareMode::Unnamed)
    }

    async fn opened<S: Send, T: Send>(
        self,
        text: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
        call: &Call<'_>,
    ) -> Result<Rows<S, T>, Error>
    where
        FirstOfMany<S, T>: Answer,
    {
        let (answer, lease) = self.run_on_lease(text, params, call).await?;
        let host = call.host_name().unwrap_or_else(|| self.host());
        Ok(Rows::begun(self.id(), host, answer, lease))
    }
}

impl Reads<'_> {
    /// As [`Shard::query_raw`], from a standby where [`Reads::query`] would use one. What goes
    /// wrong there before the first row is not seen: the primary is used. After that it ends the
    /// stream with [`Error::StreamStopped`], also where the standby cancels a query that is in the
    /// way of its replay (`40001`).
    ///
    /// # Errors
    /// As [`Shard::query_raw`].
    ///
    /// # Cancel safety
    /// As [`Shard::query_raw`].
    pub async fn query_raw<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<RowStream, Error> {
        let shard = self.handle();
        shard.checked()?;
        let sql = shard.router().inner().sql.read(&sql.into()).with_word();
        let text = SqlText::from(&sql);
        if shard.is_read_first(&sql)? {
            let rows = self.query(text, params).await?;
            return Ok(RowStream(Rows::read(shard, rows)));
        }
        let call = Call::new(shard.target(), call_span!("pgshard.stream", shard.id()));
        let opening = async {
            let answered = self.run_on_lease(&text, params, &call).await?;
            let Answered {
                answer,
                lease,
                host,
            } = answered;
            Ok(Rows::begun(shard.id(), host, answer, lease))
        };
        let opened = call.limited(pin!(opening)).await;
        call.ended(&opened, CallFailure::of);
        opened.map(RowStream)
    }
}

impl<T> Rows<tokio_postgres::RowStream, T> {
    /// Rows that were all read.
    fn read(shard: Shard<'_>, rows: Vec<T>) -> Self {
        Rows {
            ready: rows.into(),
            open: None,
            shard: shard.id(),
            host: shard.host(),
            delivered: 0,
        }
    }
}

impl<S, T> Rows<S, T> {
    /// Rows of which the first was read.
    fn begun(
        shard: ShardId,
        host: HostName,
        answer: FirstOfMany<S, T>,
        lease: Option<Lease>,
    ) -> Self {
        let FirstOfMany { first, rows } = answer;
        let open = lease.filter(|_| first.is_some()).map(|mut lease| {
            lease.set_unsettled();
            Open { rows, lease }
        });
        Rows {
            ready: first.into_iter().collect(),
            open,
            shard,
            host,
            delivered: 0,
        }
    }
}

impl<S: Stream<Item = Result<T, PgError>>, T> Rows<S, T> {
    fn poll_row(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<T, Error>>> {
        let next = match (self.ready.pop_front(), &mut self.open) {
            (Some(row), _) => Some(Ok(row)),
            (None, Some(open)) => ready!(open.rows.as_mut().poll_next(context)),
            (None, None) => None,
        };
        Poll::Ready(match next {
            Some(Ok(row)) => {
                self.delivered += 1;
                Some(Ok(row))
            }
            Some(Err(source)) => {
                if let Some(Open { rows, lease }) = self.open.take() {
                    drop(rows);
                    lease.discard();
                }
                Some(Err(Error::StreamStopped {
                    shard: self.shard,
                    host: self.host.clone(),
                    rows: self.delivered,
                    source: source.into(),
                }))
            }
            None => {
                if let Some(Open { rows, mut lease }) = self.open.take() {
                    drop(rows);
                    lease.set_settled();
                }
                None
            }
        })
    }
}

macro_rules! stream {
    ($stream:ident, $item:ty) => {
        impl $stream {
            /// The shard.
            pub fn shard(&self) -> ShardId {
                self.0.shard
            }

            /// The host that gives the rows.
            pub fn host(&self) -> &HostName {
                &self.0.host
            }

            /// How many items were read.
            pub fn delivered(&self) -> u64 {
                self.0.delivered
            }
        }

        impl Stream for $stream {
            type Item = Result<$item, Error>;

            fn poll_next(
                mut self: Pin<&mut Self>,
                context: &mut Context<'_>,
            ) -> Poll<Option<Self::Item>> {
                self.0.poll_row(context)
            }
        }

        impl fmt::Debug for $stream {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($stream))
                    .field("shard", &self.0.shard)
                    .field("host", &self.0.host)
                    .field("delivered", &self.0.delivered)
                    .finish_non_exhaustive()
            }
        }
    };
}

stream!(RowStream, Row);
stream!(CopyOut, Bytes);
