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

/// What becomes of the columns that `import keys` has added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// They have the key, as if they had been chosen.
    Shown,
    /// They are left out, so that the decisions are those of before.
    Hidden,
}

/// Reads the catalogs.
pub(super) async fn database(
    client: &Client,
    key: &KeyName,
    choices: &Choices,
    added: Added,
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
    let columns = added_columns(client, database.key.table).await?;
    if added == Added::Hidden {
        hide(&mut database, &columns);
    }
    let suggested = names::suggested(&database);
    database.foreign_keys.extend(suggested);
    let choices = match added {
        Added::Hidden => choices.clone(),
        Added::Shown => with_added(&database, choices, &columns),
    };
    choices::resolve(&mut database, &choices)?;
    Ok(database)
}

/// The columns that `import keys` has added for the key of a table, by table; none if the role may
/// not read of them.
async fn added_columns(client: &Client, key_table: u32) -> Result<Vec<(u32, String)>, Error> {
    let what = "the columns that were added";
    let sql = "SELECT to_json(has_schema_privilege(n.oid, 'USAGE')
            AND has_table_privilege(c.oid, 'SELECT'))
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'pgshard_import' AND c.relname = 'keys'";
    let readable: Vec<bool> = facts(client, what, sql).await?;
    if readable != [true] {
        return Ok(Vec::new());
    }
    let sql = format!(
        "SELECT json_build_array(relation::int8, key_column) FROM pgshard_import.keys
        WHERE adds_column AND split_part(way, '/', 1) = '{key_table}'"
    );
    facts(client, what, &sql).await
}

/// Takes out added columns, and the foreign keys over them.
fn hide(database: &mut Database, added: &[(u32, String)]) {
    for (oid, name) in added {
        let Some(table) = database.tables.get_mut(oid) else {
            continue;
        };
        let Some(number) = table.column_named(name).map(|column| column.number) else {
            continue;
        };
        table.columns.retain(|column| column.number != number);
        let covers = |table, columns: &[i16]| table == *oid && columns.contains(&number);
        let keys = &mut database.foreign_keys;
        keys.retain(|key| !covers(key.table, &key.columns));
        keys.retain(|key| !covers(key.target, &key.target_columns));
    }
}

/// The choices, with added columns as the columns that have the key, where nothing else is chosen.
fn with_added(database: &Database, choices: &Choices, added: &[(u32, String)]) -> Choices {
    let mut choices = choices.clone();
    for (oid, column) in added {
        let Some(table) = database.tables.get(oid) else {
            continue;
        };
        let is_it = |schema: &Option<String>, name: &str| {
            name == table.name && schema.as_ref().is_none_or(|schema| *schema == table.schema)
        };
        let tables = choices.stays.iter().chain(&choices.references);
        let mut chosen = tables.map(|name| is_it(&name.schema, &name.table));
        let mut by = choices
            .by
            .iter()
            .map(|name| is_it(&name.schema, &name.table));
        if !chosen.any(|is_it| is_it) && !by.any(|is_it| is_it) {
            choices.by.push(KeyName {
                schema: Some(table.schema.clone()),
                table: table.name.clone(),
                column: column.clone(),
            });
        }
    }
    choices
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
pub(super) async fn facts<T: DeserializeOwned>(
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
