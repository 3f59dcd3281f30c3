//! What the hosts have at the end of a round, and whether one table could have had it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use pgshard::lookups::Fold;
use pgshard::router::Error;
use tokio_postgres::Client;

use super::case::{Case, Story};
use super::notes::{All, End};
use super::support::World;

type Row = (i64, Option<String>, Option<String>);

/// A committed write: the row after it, or that it is gone.
struct Write {
    op: String,
    row: Row,
    gone: bool,
    at: SystemTime,
}

/// Everything that is wrong.
pub(crate) async fn all(case: &Case, world: &World, notes: &All) -> Vec<String> {
    let mut wrong = notes.wrong.clone();
    for host in 0..2 {
        let client = world.servers.superuser(host).await;
        let sql = "ALTER ROLE app RESET default_transaction_isolation";
        client
            .batch_execute(sql)
            .await
            .expect("a role can be altered");
    }
    let rows = rows(world, case).await;
    wrong.extend(doubles(case, &rows));
    let history = history(world, case).await;
    wrong.extend(untrue(&history, notes));
    if case.story == Story::Claimed {
        wrong.extend(programme(case, world, &history, &rows).await);
    }
    let router = world.router().await;
    for (at, lookup) in ["emails", "names"].into_iter().enumerate() {
        let status = world.run(&["lookups", "status"]).await;
        if status.code() != 0 {
            wrong.push(format!("entry: lookups status: {}", status.stdout));
        }
        let built = world.run(&["lookups", "build", lookup]).await;
        if built.code() != 0 {
            wrong.push(format!("entry: lookups build {lookup}: {}", built.stdout));
        }
        for row in &rows {
            let Some(value) = value_of(row, at) else {
                continue;
            };
            let found = router.lookup(lookup).expect("it is in the config");
            let found = found.find::<i64>(value.as_str()).await;
            if !matches!(found, Ok(Some(key)) if key == row.0) {
                wrong.push(format!("entry: {lookup} {value:?} of {row:?}: {found:?}"));
            }
        }
        wrong.extend(newcomers(case, world, lookup, at, &rows).await);
    }
    wrong
}

fn value_of(row: &Row, at: usize) -> Option<&String> {
    [&row.1, &row.2][at].as_ref()
}

/// A value as its look-up compares it.
fn folded(case: &Case, at: usize, value: &str) -> String {
    match case.fold {
        Fold::Ascii if at == 0 => value.to_ascii_lowercase(),
        _ => value.to_owned(),
    }
}

async fn of_shards(world: &World, case: &Case) -> Vec<(String, Client)> {
    let mut all = Vec::new();
    for shard in 0..case.shards {
        let client = world.servers.app(world.host_of(shard)).await;
        all.push((format!("shard_{shard:04}"), client));
    }
    all
}

async fn rows(world: &World, case: &Case) -> Vec<Row> {
    let mut rows = Vec::new();
    for (schema, client) in of_shards(world, case).await {
        let sql = format!("SELECT id, email, name FROM {schema}.users");
        for row in client.query(&sql, &[]).await.expect("a shard answers") {
            rows.push((row.get(0), row.get(1), row.get(2)));
        }
    }
    rows.sort();
    rows
}

/// The committed writes in the order in which they were made. All hosts have the same clock here.
/// A write that needs what another has given up comes after that one's commit, and writes of one
/// key wait for each other's row, so this is an order in which one server could have run them.
async fn history(world: &World, case: &Case) -> Vec<Write> {
    let mut writes = Vec::new();
    for (schema, client) in of_shards(world, case).await {
        let sql = format!("SELECT op, id, email, name, gone, at FROM {schema}.history");
        for row in client.query(&sql, &[]).await.expect("a shard answers") {
            writes.push(Write {
                op: row.get(0),
                row: (row.get(1), row.get(2), row.get(3)),
                gone: row.get(4),
                at: row.get(5),
            });
        }
    }
    writes.sort_by_key(|write| write.at);
    writes
}

fn doubles(case: &Case, rows: &[Row]) -> Vec<String> {
    let mut wrong = Vec::new();
    for (at, lookup) in ["emails", "names"].into_iter().enumerate() {
        let mut owners: BTreeMap<String, Vec<i64>> = BTreeMap::new();
        for row in rows {
            if let Some(value) = value_of(row, at) {
                owners
                    .entry(folded(case, at, value))
                    .or_default()
                    .push(row.0);
            }
        }
        owners.retain(|_, keys| keys.len() > 1);
        if !owners.is_empty() {
            wrong.push(format!("double: {lookup}: {owners:?}"));
        }
    }
    wrong
}

/// What calls reported, compared with what is committed.
fn untrue(history: &[Write], notes: &All) -> Vec<String> {
    let mut wrong = Vec::new();
    let committed: BTreeSet<&str> = history.iter().map(|write| write.op.as_str()).collect();
    for (op, end) in &notes.calls {
        match (end, committed.contains(op.as_str())) {
            (End::Done, false) => wrong.push(format!("untrue: {op} is done, and not there")),
            (End::Undone, true) => wrong.push(format!("untrue: {op} has not run, and is there")),
            _ => {}
        }
    }
    let unknown = committed
        .iter()
        .filter(|op| !op.starts_with("planted") && !notes.calls.contains_key(**op));
    wrong.extend(unknown.map(|op| format!("untrue: {op} is there, and no call made it")));
    wrong
}

/// Runs the committed writes on one table with UNIQUE indexes.
async fn programme(case: &Case, world: &World, history: &[Write], rows: &[Row]) -> Vec<String> {
    let client = world.servers.superuser(0).await;
    let email = match case.fold {
        Fold::Ascii => "lower(email COLLATE \"C\")",
        _ => "email",
    };
    let tables = format!(
        "CREATE TEMP TABLE users (id bigint PRIMARY KEY, email text, name text UNIQUE);
        CREATE UNIQUE INDEX ON users (({email}));"
    );
    client
        .batch_execute(&tables)
        .await
        .expect("tables can be made");
    let mut wrong = Vec::new();
    for write in history {
        let (id, email, name) = &write.row;
        let ran = match write.gone {
            true => {
                client
                    .execute("DELETE FROM users WHERE id = $1", &[id])
                    .await
            }
            false => {
                let sql = "INSERT INTO users VALUES ($1, $2, $3) ON CONFLICT (id) DO UPDATE SET \
                    email = EXCLUDED.email, name = EXCLUDED.name";
                client.execute(sql, &[id, email, name]).await
            }
        };
        if let Err(error) = ran {
            let why = error
                .as_db_error()
                .map(|error| (error.message(), error.detail()));
            wrong.push(format!("programme: {} {:?}: {why:?}", write.op, write.row));
        }
    }
    let after = client.query("SELECT id, email, name FROM users ORDER BY id", &[]);
    let after: Vec<Row> = after
        .await
        .expect("a table can be read")
        .iter()
        .map(|row| (row.get(0), row.get(1), row.get(2)))
        .collect();
    if after != rows {
        wrong.push(format!(
            "programme: one table has {after:?}, the shards {rows:?}"
        ));
    }
    wrong
}

/// Each value is claimed for a new key.
async fn newcomers(
    case: &Case,
    world: &World,
    lookup: &str,
    at: usize,
    rows: &[Row],
) -> Vec<String> {
    let router = world.router().await;
    let column = ["email", "name"][at];
    let sql = format!("INSERT INTO {{shard}}.users (id, {column}, op) VALUES ($1, $2, 'new')");
    let mut wrong = Vec::new();
    for number in 0..case.values {
        let value = format!("{lookup}{number}");
        let owner = rows
            .iter()
            .find(|row| value_of(row, at).is_some_and(|has| folded(case, at, has) == value));
        let key = 1_000_000 + (at * 1000 + number) as i64;
        let claim = async || -> Result<u64, Error> {
            router
                .claiming(key, [(lookup, value.as_str())])?
                .within(Duration::from_secs(20))
                .execute(&sql, &[&key, &value])
                .await
        };
        let claimed = claim().await;
        let right = match (&claimed, owner) {
            (Ok(_), None) => true,
            (Err(Error::Taken { key, .. }), Some(row)) => *key == row.0.to_string(),
            _ => false,
        };
        if !right {
            wrong.push(format!(
                "newcomer: {lookup} {value:?} of {owner:?}: {claimed:?}"
            ));
        }
    }
    wrong
}
