//! Reads the facts, in one session that may only read.
//!
//! Each kind of fact is one query for the whole database, so that ten thousand tables take seconds.
//! The catalogs are read in one short transaction. Rows are only sampled, each sample in a
//! transaction of its own, so that no snapshot is kept for long.

use serde::de::DeserializeOwned;
use tokio_postgres::types::Json;
use tokio_postgres::{Client, SimpleQueryMessage};

use super::choices::{self, Choices};
use super::error::Error;
use super::facts::{Database, Server, VERSION_MIN};
use super::key::{KeyColumn, KeyName};
use super::names;
use crate::pg::decoding::CAN_DECODE;
use crate::pg::{ConnectOptions, Connection};

/// What `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "pgshard import assess";

/// The session only reads, waits for no lock for long, and no statement of it runs for long.
const SETTINGS: &str = "SET default_transaction_read_only = on; SET lock_timeout = '1s';
    SET idle_in_transaction_session_timeout = '60s';
    SET jit = off; SET max_parallel_workers_per_gather = 0";

/// How long a statement may read catalogs.
pub(super) const STATEMENT_TIMEOUT: &str = "SET statement_timeout = '60s'";

/// Ends our own statements, so that they can be recognized in `pg_stat_statements`. What comes
/// before a statement is not kept by all versions.
pub(super) const MARK: &str = " /* pgshard import assess */";

/// Opens the session.
pub(super) async fn open(connect: &ConnectOptions) -> Result<Connection, Error> {
    let connection = connect
        .connect(APPLICATION_NAME)
        .await
        .map_err(|source| Error::Connect(Box::new(source)))?;
    connection
        .client()
        .batch_execute(SETTINGS)
        .await
        .map_err(|source| Error::postgres("preparing the session", source))?;
    execute(
        connection.client(),
        "preparing the session",
        STATEMENT_TIMEOUT,
    )
    .await?;
    Ok(connection)
}

/// Reads the catalogs.
pub(super) async fn database(
    client: &Client,
    key: &KeyName,
    choices: &Choices,
) -> Result<Database, Error> {
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY";
    execute(client, "beginning to read", begin).await?;
    let server = server(client).await?;
    let tables: Vec<super::facts::Table> =
        facts(client, "the tables", include_str!("sql/tables.sql")).await?;
    let tables = tables.into_iter().map(|table| (table.oid, table));
    let mut database = Database::without_tables(server);
    database.tables = tables.collect();
    macro_rules! read {
        ($field:ident, $what:literal, $file:literal) => {
            database.$field = facts(client, $what, include_str!($file)).await?;
        };
    }
    read!(foreign_keys, "the foreign keys", "sql/foreign_keys.sql");
    read!(uniques, "the unique indexes", "sql/uniques.sql");
    read!(dependents, "the views", "sql/dependents.sql");
    read!(triggers, "the triggers", "sql/triggers.sql");
    read!(sequences, "the sequences", "sql/sequences.sql");
    read!(publications, "the publications", "sql/publications.sql");
    read!(extensions, "the extensions", "sql/extensions.sql");
    read!(roles, "the roles", "sql/roles.sql");
    read!(searches, "the indexes for search", "sql/searches.sql");
    execute(client, "ending to read", "COMMIT").await?;
    // What extensions and other systems own is no table of the application.
    let known: Vec<_> = database
        .foreign_keys
        .drain(..)
        .filter(|key| {
            database.tables.contains_key(&key.table) && database.tables.contains_key(&key.target)
        })
        .collect();
    database.foreign_keys = known;
    database.key = find(&database, key)?;
    let suggested = names::suggested(&database);
    database.foreign_keys.extend(suggested);
    choices::resolve(&mut database, choices)?;
    Ok(database)
}

async fn server(client: &Client) -> Result<Server, Error> {
    let version = texts(client, "SHOW server_version_num")
        .await
        .map_err(|source| Error::postgres("the version", source))?;
    let version = version.into_iter().flatten().flatten().next();
    let version: u32 = version.and_then(|text| text.parse().ok()).unwrap_or(0);
    // pg_stat_wal counts what all databases have written. It exists from PostgreSQL 14 on.
    let wal = if version < VERSION_MIN {
        "NULL::json"
    } else {
        "(SELECT json_build_object('bytes', wal_bytes::float8,
            'seconds', extract(epoch FROM now() - stats_reset)::float8)
        FROM pg_stat_wal WHERE now() - stats_reset > '1 hour' AND NOT pg_is_in_recovery())"
    };
    let sql = include_str!("sql/server.sql")
        .replace("{can_decode}", CAN_DECODE)
        .replace("{wal}", wal);
    let mut rows: Vec<Server> = facts(client, "the server", &sql).await?;
    rows.pop().ok_or(Error::Unexpected { what: "the server" })
}

/// The facts of a query, each a JSON object.
async fn facts<T: DeserializeOwned>(
    client: &Client,
    what: &'static str,
    sql: &str,
) -> Result<Vec<T>, Error> {
    let rows = client
        .query_typed(&format!("{sql}{MARK}"), &[])
        .await
        .map_err(|source| Error::postgres(what, source))?;
    let fact = |row: tokio_postgres::Row| {
        let Json(fact): Json<T> = row
            .try_get(0)
            .map_err(|source| Error::postgres(what, source))?;
        Ok(fact)
    };
    rows.into_iter().map(fact).collect()
}

pub(super) async fn execute(client: &Client, what: &'static str, sql: &str) -> Result<(), Error> {
    client
        .batch_execute(sql)
        .await
        .map_err(|source| Error::postgres(what, source))
}

/// The rows of a query that is one text, with values as texts.
pub(super) async fn texts(
    client: &Client,
    sql: &str,
) -> Result<Vec<Vec<Option<String>>>, tokio_postgres::Error> {
    let messages = client.simple_query(&format!("{sql}{MARK}")).await?;
    let row = |message: SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => Some(
            (0..row.len())
                .map(|at| row.try_get(at).ok().flatten().map(str::to_owned))
                .collect(),
        ),
        _ => None,
    };
    Ok(messages.into_iter().filter_map(row).collect())
}

/// The key's table and column.
fn find(database: &Database, key: &KeyName) -> Result<KeyColumn, Error> {
    let fits = |schema: &str| key.schema.as_deref().is_none_or(|wanted| wanted == schema);
    let tables: Vec<_> = database
        .tables
        .values()
        .filter(|table| table.name == key.table && fits(&table.schema))
        .collect();
    match tables.as_slice() {
        [] => Err(Error::NoKeyTable { key: key.clone() }),
        [table] => {
            let column = table
                .column_named(&key.column)
                .ok_or_else(|| Error::NoKeyColumn { key: key.clone() })?;
            Ok(KeyColumn {
                table: table.oid,
                column: column.number,
            })
        }
        several => Err(Error::SeveralKeyTables {
            key: key.clone(),
            schemas: several.iter().map(|table| table.schema.clone()).collect(),
        }),
    }
}
