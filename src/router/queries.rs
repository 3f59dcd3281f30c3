//! The methods that run a query and read its rows: a shard, its reads and a transaction all have
//! them.

use tokio_postgres::Row;

use super::answer::FirstRow;
use super::error::{Error, Expected};
use crate::map::HostName;
use crate::shard::ShardId;

/// Makes the query methods, with this receiver, in an `impl` of a type that has `run` and `misfit`.
/// The attributes are those of `query`; the texts of the others refer to it.
macro_rules! query_methods {
    ($(#[$about:meta])* ($($receiver:tt)+) $this:ident) => {
        $(#[$about])*
        pub async fn query<'s>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Vec<Row>, Error> {
            $this.run(&sql.into(), params).await
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
            let sql = sql.into();
            let first: FirstRow = $this.run(&sql, params).await?;
            first.one().map_err(|got| $this.misfit(&sql).count(Expected::One, got))
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
            let sql = sql.into();
            let first: FirstRow = $this.run(&sql, params).await?;
            first.at_most_one().map_err(|got| $this.misfit(&sql).count(Expected::AtMostOne, got))
        }

        /// As [`Self::query`], each row read as `T`.
        ///
        /// # Errors
        /// As there, and [`Error::Decode`] for a row that is no `T`: the statement has run.
        ///
        /// # Cancel safety
        /// As there.
        pub async fn query_as<'s, T: FromRow>(
            $($receiver)+,
            sql: impl Into<SqlText<'s>>,
            params: &[&(dyn ToSql + Sync)],
        ) -> Result<Vec<T>, Error> {
            let sql = sql.into();
            let rows: Vec<Row> = $this.run(&sql, params).await?;
            rows.iter()
                .map(|row| T::from_row(row).map_err(|source| $this.misfit(&sql).row(source)))
                .collect()
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
            let sql = sql.into();
            let first: FirstRow = $this.run(&sql, params).await?;
            let row = first.one().map_err(|got| $this.misfit(&sql).count(Expected::One, got))?;
            T::from_row(&row).map_err(|source| $this.misfit(&sql).row(source))
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
            let sql = sql.into();
            let first: FirstRow = $this.run(&sql, params).await?;
            let row = first
                .at_most_one()
                .map_err(|got| $this.misfit(&sql).count(Expected::AtMostOne, got))?;
            row.map(|row| T::from_row(&row).map_err(|source| $this.misfit(&sql).row(source)))
                .transpose()
        }
    };
}
pub(super) use query_methods;

/// A statement that has run, but its answer is not what the call wants.
pub(super) struct Misfit {
    pub(super) shard: ShardId,
    pub(super) host: HostName,
    pub(super) may_have_run: bool,
}

impl Misfit {
    pub(super) fn count(self, expected: Expected, got: usize) -> Error {
        Error::RowCount {
            shard: self.shard,
            host: self.host,
            expected,
            got,
            may_have_run: self.may_have_run,
        }
    }

    pub(super) fn row(self, source: tokio_postgres::Error) -> Error {
        Error::Decode {
            shard: self.shard,
            host: self.host,
            may_have_run: self.may_have_run,
            source: source.into(),
        }
    }
}

impl FirstRow {
    /// The only row, or else how many there are.
    pub(super) fn one(self) -> Result<Row, usize> {
        match self {
            FirstRow {
                row: Some(row),
                count: 1,
            } => Ok(row),
            FirstRow { count, .. } => Err(count),
        }
    }

    pub(super) fn at_most_one(self) -> Result<Option<Row>, usize> {
        match self {
            FirstRow { row, count: 0 | 1 } => Ok(row),
            FirstRow { count, .. } => Err(count),
        }
    }
}
