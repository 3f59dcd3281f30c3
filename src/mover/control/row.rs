//! [`AnsweredRow`]: a row of a server's answer that remembers the question.

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Row;
use tokio_postgres::row::RowIndex;
use tokio_postgres::types::FromSql;

use crate::map::HostName;
use crate::mover::protocol::error::Error;
use crate::shard::ShardId;

/// The host and the query: an error about the result names both.
#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) host: HostName,
    pub(crate) shard: Option<ShardId>,
    pub(crate) what: &'static str,
}

/// A row with columns that are read by [`AnsweredRow::get`], which returns an error where the row
/// of `tokio_postgres` panics. Others can write to a server's tables too, and a mover must not die
/// of their values.
#[derive(Debug)]
pub(crate) struct AnsweredRow {
    row: Row,
    question: Arc<Question>,
}

impl AnsweredRow {
    pub(crate) fn new(row: Row, question: Question) -> AnsweredRow {
        AnsweredRow {
            row,
            question: Arc::new(question),
        }
    }

    /// All rows of an answer.
    pub(crate) fn all(rows: Vec<Row>, question: Question) -> Vec<AnsweredRow> {
        let question = Arc::new(question);
        rows.into_iter()
            .map(|row| AnsweredRow {
                row,
                question: question.clone(),
            })
            .collect()
    }

    /// A column's value.
    ///
    /// # Errors
    /// [`Error::Database`] when there is no such column, or it has another type, or a NULL where
    /// none is allowed.
    pub(crate) fn get<'r, I, T>(&'r self, column: I) -> Result<T, Error>
    where
        I: RowIndex + fmt::Display,
        T: FromSql<'r>,
    {
        self.row.try_get(column).map_err(|source| {
            let Question { host, shard, what } = &*self.question;
            Error::Database {
                host: host.clone(),
                shard: *shard,
                what: (*what).into(),
                source,
            }
        })
    }

    /// A column's value, converted by `read`.
    ///
    /// # Errors
    /// Those of [`AnsweredRow::get`], and [`Error::Unreadable`] where `read` gives nothing.
    pub(crate) fn parsed<'r, T, V>(
        &'r self,
        column: &'static str,
        read: impl FnOnce(T) -> Option<V>,
    ) -> Result<V, Error>
    where
        T: FromSql<'r> + fmt::Debug + Clone,
    {
        let value: T = self.get(column)?;
        read(value.clone()).ok_or_else(|| {
            let Question { host, shard, what } = &*self.question;
            let value = format!("{value:?}");
            Error::Unreadable {
                host: host.clone(),
                shard: *shard,
                what,
                column,
                value,
            }
        })
    }
}
