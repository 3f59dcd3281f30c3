//! How an answer about the control schema is read: whatever is wrong with it is an error, and no
//! panic.

use std::fmt::Display;

use serde::de::DeserializeOwned;
use tokio_postgres::Client;

use crate::schema::survey::facts::FactsError;

/// The error where a question about the control schema failed.
pub(super) fn failed(source: tokio_postgres::Error) -> FactsError {
    FactsError::Query {
        what: "control schema",
        source,
    }
}

/// The error where an answer is none that a pgshard makes.
pub(super) fn unreadable(what: impl Display) -> FactsError {
    FactsError::Unreadable {
        what: what.to_string(),
    }
}

/// The answer to a question that gives one JSON text.
pub(super) async fn json<T: DeserializeOwned>(client: &Client, sql: &str) -> Result<T, FactsError> {
    let row = client.query_one(sql, &[]).await.map_err(failed)?;
    serde_json::from_str(row.try_get(0).map_err(failed)?).map_err(unreadable)
}
