//! What a statement gives back: rows, the first of them, or their number.

use std::pin::pin;

use futures_util::TryStreamExt;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Error, Row, RowStream, Statement};

/// How a statement is asked for what it gives back.
pub(super) trait Answer: Sized + Send {
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
