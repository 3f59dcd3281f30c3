//! The methods that run a query and read its rows: a shard, its reads and a transaction all have
//! them.

use tokio_postgres::Row;

use super::answer::FirstRow;
use super::error::{Error, Expected};
use crate::shard::ShardId;

/// Makes the query methods, with this receiver, in an `impl` of a type that has `run`, `shard_id`
/// and `strange_row`. The attributes are those of `query`, whose text the others refer to.
macro_rules! query_methods {
    ($(#[$about:meta])* ($($receiver:tt)+) $this:ident) => {
        $(#[$about])*
        pub async fn query<'s>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Vec<Row>, Error> {
            $this.run(sql.into(), params).await
        }

        /// Runs a statement that gives exactly one row.
        ///
        /// # Errors
        /// As [`Self::query`], and [`Error::RowCount`] for another number of rows.
        ///
        /// # Cancel safety
        /// As [`Self::query`].
        pub async fn query_one<'s>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Row, Error> {
            $crate::router::queries::one($this.shard_id(), $this.run(sql.into(), params).await?)
        }

        /// Runs a statement that gives one row or none.
        ///
        /// # Errors
        /// As [`Self::query`], and [`Error::RowCount`] for more than one row.
        ///
        /// # Cancel safety
        /// As [`Self::query`].
        pub async fn query_opt<'s>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Option<Row>, Error> {
            $crate::router::queries::at_most_one($this.shard_id(), $this.run(sql.into(), params).await?)
        }

        /// As [`Self::query`], each row read as `T`.
        ///
        /// # Errors
        /// As there, and [`Error::Statement`] for a row that is no `T`: the statement has run.
        ///
        /// # Cancel safety
        /// As there.
        pub async fn query_as<'s, T: FromRow>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Vec<T>, Error> {
            let rows = $this.query(sql, params).await?;
            rows.iter().map(|row| T::from_row(row).map_err(|source| $this.strange_row(source))).collect()
        }

        /// As [`Self::query_one`], the row read as `T`.
        ///
        /// # Errors
        /// As [`Self::query_one`] and [`Self::query_as`].
        ///
        /// # Cancel safety
        /// As [`Self::query`].
        pub async fn query_one_as<'s, T: FromRow>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<T, Error> {
            let row = $this.query_one(sql, params).await?;
            T::from_row(&row).map_err(|source| $this.strange_row(source))
        }

        /// As [`Self::query_opt`], the row read as `T`.
        ///
        /// # Errors
        /// As [`Self::query_opt`] and [`Self::query_as`].
        ///
        /// # Cancel safety
        /// As [`Self::query`].
        pub async fn query_opt_as<'s, T: FromRow>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Option<T>, Error> {
            let row = $this.query_opt(sql, params).await?;
            row.map(|row| T::from_row(&row).map_err(|source| $this.strange_row(source))).transpose()
        }
    };
}
pub(super) use query_methods;

pub(super) fn one(shard: ShardId, first: FirstRow) -> Result<Row, Error> {
    match first {
        FirstRow {
            row: Some(row),
            count: 1,
        } => Ok(row),
        FirstRow { count, .. } => Err(Error::RowCount {
            shard,
            expected: Expected::One,
            got: count,
        }),
    }
}

pub(super) fn at_most_one(shard: ShardId, first: FirstRow) -> Result<Option<Row>, Error> {
    match first {
        FirstRow { row, count: 0 | 1 } => Ok(row),
        FirstRow { count, .. } => Err(Error::RowCount {
            shard,
            expected: Expected::AtMostOne,
            got: count,
        }),
    }
}
