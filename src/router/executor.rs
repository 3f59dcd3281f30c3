//! One trait over all that runs statements on a shard, so that a helper is written once.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::error::Error;
use super::from_row::FromRow;
use super::handle::Shard;
use super::reads::Reads;
use super::running::Transaction;
use super::sql::SqlText;
use crate::shard::ShardId;

/// What runs statements on a shard: [`Shard`], [`Reads`], [`Transaction`]. Its methods are theirs;
/// `{shard}` in a statement is the shard's schema. As with `tokio_postgres::GenericClient`, a
/// helper takes `&impl Executor`.
///
/// ```no_run
/// use pgshard::router::{Error, Executor};
///
/// async fn likes(on: &impl Executor, photo: i64) -> Result<i32, Error> {
///     let sql = "SELECT likes FROM {shard}.photos WHERE id = $1";
///     Ok(on.query_one_as::<(i32,)>(sql, &[&photo]).await?.0)
/// }
///
/// # async fn example(router: pgshard::Router, photo: i64) -> Result<(), Error> {
/// let shard = router.by_id(photo)?;
/// likes(&shard, photo).await?;
/// likes(&shard.reads(), photo).await?;
/// shard.transaction(async |tx| likes(&tx, photo).await).await?;
/// # Ok(()) }
/// ```
pub trait Executor: Send + Sync + sealed::Sealed {
    /// The shard that its statements run on.
    fn shard_id(&self) -> ShardId;

    /// As [`Shard::query`].
    ///
    /// # Errors
    /// As there; on [`Reads`], [`Error::NotARead`] for what does not only read.
    ///
    /// # Cancel safety
    /// As there.
    fn query<'a>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Vec<Row>, Error>> + Send;

    /// As [`Shard::query_one`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    fn query_one<'a>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Row, Error>> + Send;

    /// As [`Shard::query_opt`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    fn query_opt<'a>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Option<Row>, Error>> + Send;

    /// As [`Shard::query_as`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    fn query_as<'a, T: FromRow + Send>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Vec<T>, Error>> + Send;

    /// As [`Shard::query_one_as`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    fn query_one_as<'a, T: FromRow + Send>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<T, Error>> + Send;

    /// As [`Shard::query_opt_as`].
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    fn query_opt_as<'a, T: FromRow + Send>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Option<T>, Error>> + Send;

    /// As [`Shard::execute`].
    ///
    /// # Errors
    /// As there; on [`Reads`], [`Error::NotARead`] for what does not only read.
    ///
    /// # Cancel safety
    /// As there.
    fn execute<'a>(
        &'a self,
        sql: impl Into<SqlText<'a>> + Send,
        params: &'a [&'a (dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<u64, Error>> + Send;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! executor {
    ($executor:ty, $this:ident => $receiver:expr, $shard:expr, $run:ident) => {
        impl sealed::Sealed for $executor {}

        impl Executor for $executor {
            fn shard_id(&self) -> ShardId {
                let $this = self;
                $shard
            }

            async fn query<'a>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<Vec<Row>, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::query($receiver, sql, params).await
            }

            async fn query_one<'a>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<Row, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::query_one($receiver, sql, params).await
            }

            async fn query_opt<'a>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<Option<Row>, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::query_opt($receiver, sql, params).await
            }

            async fn query_as<'a, T: FromRow + Send>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<Vec<T>, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::query_as($receiver, sql, params).await
            }

            async fn query_one_as<'a, T: FromRow + Send>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<T, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::query_one_as($receiver, sql, params).await
            }

            async fn query_opt_as<'a, T: FromRow + Send>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<Option<T>, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::query_opt_as($receiver, sql, params).await
            }

            async fn execute<'a>(
                &'a self,
                sql: impl Into<SqlText<'a>> + Send,
                params: &'a [&'a (dyn ToSql + Sync)],
            ) -> Result<u64, Error> {
                let ($this, sql) = (self, sql.into());
                <$executor>::$run($receiver, sql, params).await
            }
        }
    };
}

executor!(Shard<'_>, this => *this, this.id(), execute);
executor!(Reads<'_>, this => *this, this.shard(), count);
executor!(Transaction, this => this, this.shard(), execute);
