//! What a statement gives back: rows, the first of them, or their number.

use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, RowStream, Statement};

use super::error::Error as RouterError;
use super::statement_class::StatementClass;
use crate::shard::ShardId;

/// How a statement is sent to get this kind of answer.
pub(super) trait Answer: Sized + Send {
    /// Whether it is there before its last row was read.
    const STREAMS: bool = false;

    /// Whether it is what statements of this class give back.
    fn is_of(class: StatementClass) -> bool {
        !matches!(class, StatementClass::CopyIn | StatementClass::CopyOut)
    }

    fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Self, Error>> + Send;

    /// The same in one round trip, without a name on the server.
    fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> impl Future<Output = Result<Self, Error>> + Send;
}

/// The error where a statement of this class does not give this answer, or where the router has no
/// use for it.
pub(super) fn unsupported<A: Answer>(class: StatementClass, shard: ShardId) -> Option<RouterError> {
    let (statement, instead) = match class {
        StatementClass::Listen => (
            "LISTEN",
            "its connection is shared, and does not follow the shard. Open a connection of your \
                own to the shard's host",
        ),
        StatementClass::CopyIn if !A::is_of(class) => (
            "COPY FROM STDIN",
            "use `copy_in` of the client that `Transaction::client` lends",
        ),
        StatementClass::CopyOut if !A::is_of(class) => (
            "COPY TO STDOUT",
            "use `Shard::copy_out`, or `copy_out` of the client that `Transaction::client` lends",
        ),
        _ => return None,
    };
    Some(RouterError::Unsupported {
        shard,
        statement,
        instead,
    })
}

impl Answer for Vec<Row> {
    async fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        client.query(statement, params).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<Vec<Row>, Error> {
        client.query_typed(sql, &params).await
    }
}

/// The first row, and how many there are. The others are read, and not kept.
#[derive(Default)]
pub(super) struct FirstRow {
    pub(super) row: Option<Row>,
    pub(super) count: usize,
}

impl FirstRow {
    async fn of(rows: RowStream) -> Result<FirstRow, Error> {
        let (mut rows, mut first) = (pin!(rows), FirstRow::default());
        while let Some(row) = rows.try_next().await? {
            first.row.get_or_insert(row);
            first.count += 1;
        }
        Ok(first)
    }
}

impl Answer for FirstRow {
    async fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<FirstRow, Error> {
        FirstRow::of(client.query_raw(statement, params.iter().copied()).await?).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<FirstRow, Error> {
        FirstRow::of(client.query_typed_raw(sql, params).await?).await
    }
}

impl Answer for u64 {
    async fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        client.execute(statement, params).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<u64, Error> {
        client.execute_typed(sql, &params).await
    }
}
