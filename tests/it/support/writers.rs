//! [`Writers`]: an application at work. The audit must find what was acknowledged to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures_util::SinkExt;
use pgshard::Router;
use pgshard::router::Error;
use tokio::task::JoinSet;
use tokio_postgres::{Client, NoTls};

use super::world::World;

/// One row that was acknowledged.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Noted {
    pub(crate) table: &'static str,
    pub(crate) id: i64,
    pub(crate) payload: String,
}

/// What writers saw.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    /// Rows that certainly exist.
    pub(crate) acknowledged: Vec<Noted>,
    /// Payloads of rows that may exist: the connection broke at the wrong moment.
    pub(crate) in_doubt: Vec<String>,
    /// Every error that reached the application.
    pub(crate) errors: Vec<String>,
    /// Errors after which the application may simply try again, and those that leave a row in
    /// doubt.
    pub(crate) tolerable: usize,
    /// How long the slowest call through the router took.
    pub(crate) longest: Duration,
}

impl Notes {
    fn add(&mut self, other: Notes) {
        self.acknowledged.extend(other.acknowledged);
        self.in_doubt.extend(other.in_doubt);
        self.errors.extend(other.errors);
        self.tolerable += other.tolerable;
        self.longest = self.longest.max(other.longest);
    }

    /// Checks that it saw only errors after which it knows what to do: servers were restarted.
    #[track_caller]
    pub(crate) fn tolerably(&self) -> &Notes {
        assert!(self.errors.len() <= self.tolerable, "{:#?}", self.errors);
        assert!(!self.acknowledged.is_empty(), "somebody wrote something");
        self
    }

    /// Checks that the application saw no error at all.
    #[track_caller]
    pub(crate) fn flawless(&self) -> &Notes {
        assert!(
            self.errors.is_empty(),
            "{} errors: {:#?}",
            self.errors.len(),
            self.errors
        );
        assert!(!self.acknowledged.is_empty(), "somebody wrote something");
        self
    }

    fn failed(&mut self, error: &Error, payload: &str) {
        if error.may_have_run() {
            self.in_doubt.push(payload.to_owned());
            self.in_doubt.push(format!("{payload} photo"));
        }
        self.tolerable += usize::from(error.may_have_run() || error.is_retryable());
        let mut text = format!("{payload}: {error}");
        let mut cause = std::error::Error::source(error);
        while let Some(inner) = cause {
            text += &format!(": {inner}");
            cause = inner.source();
        }
        self.errors.push(text);
    }
}

/// Tasks that write and read back without pause.
pub(crate) struct Writers {
    stop: Arc<AtomicBool>,
    running: JoinSet<Notes>,
}

/// The pause between two calls of a writer: four tests run at the same time on two cores, which
/// must have time left for the moves.
const REST: Duration = Duration::from_millis(40);

impl Writers {
    /// Starts this many writers through the router, and one that uses only SQL.
    pub(crate) async fn start(world: &World, writers: usize) -> Writers {
        let router = world.router().await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut running = JoinSet::new();
        for writer in 0..writers {
            running.spawn(through_router(router.clone(), writer, stop.clone()));
        }
        let urls = world
            .servers
            .servers()
            .iter()
            .map(|server| server.url())
            .collect();
        running.spawn(by_hand(
            urls,
            i64::from(router.shards_total().get()),
            stop.clone(),
        ));
        Writers { stop, running }
    }

    /// The same, and others that use only SQL: transactions of all kinds, COPY, commits that do not
    /// wait for the disk (so no server may crash), updates and deletions.
    pub(crate) async fn start_all(world: &World, writers: usize) -> Writers {
        let mut all = Writers::start(world, writers).await;
        let urls: Vec<String> = world
            .servers
            .servers()
            .iter()
            .map(|server| server.url())
            .collect();
        let shards = world.config.cluster.shards.get();
        for writer in 0..2 {
            all.running
                .spawn(plainly(urls.clone(), shards, writer, all.stop.clone()));
        }
        all
    }

    /// Ends them all.
    pub(crate) async fn stop(mut self) -> Notes {
        self.stop.store(true, Ordering::Relaxed);
        let mut notes = Notes::default();
        while let Some(done) = self.running.join_next().await {
            notes.add(done.expect("a writer does not panic"));
        }
        notes
    }
}

async fn through_router(router: Router, writer: usize, stop: Arc<AtomicBool>) -> Notes {
    let mut notes = Notes::default();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let payload = format!("w{writer}-{number}");
        let key = fastrand::i64(-100_000..100_000);
        let begun = Instant::now();
        let wrote = if number.is_multiple_of(3) {
            both(&router, key, &payload).await
        } else {
            one(&router, key, &payload).await
        };
        notes.longest = notes.longest.max(begun.elapsed());
        match wrote {
            Ok(rows) => notes.acknowledged.extend(rows),
            Err(error) => notes.failed(&error, &payload),
        }
        // A row from some time ago, wherever its shard is by now.
        if let Some(row) = fastrand::choice(&notes.acknowledged).cloned() {
            match read(&router, &row).await {
                Ok(found) if found == [row.payload.clone()] => {}
                Ok(found) => notes
                    .errors
                    .push(format!("{row:?} was read back as {found:?}")),
                Err(error) => notes.failed(&error, "a read"),
            }
        }
        tokio::time::sleep(REST).await;
    }
    notes
}

async fn one(router: &Router, key: i64, payload: &str) -> Result<Vec<Noted>, Error> {
    let sql = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
    let row = router.by_key(key).query_one(sql, &[&payload]).await?;
    Ok(vec![Noted {
        table: "users",
        id: row.get(0),
        payload: payload.to_owned(),
    }])
}

async fn both(router: &Router, key: i64, payload: &str) -> Result<Vec<Noted>, Error> {
    let title = format!("{payload} photo");
    let (user, photo) = router
        .by_key(key)
        .transaction(async |tx| {
            let sql = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
            let user: i64 = tx.query_one(sql, &[&payload]).await?.get(0);
            let sql = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id";
            let photo: i64 = tx.query_one(sql, &[&user, &title]).await?.get(0);
            Ok::<_, Error>((user, photo))
        })
        .await?;
    let noted = |table, id, payload: &str| Noted {
        table,
        id,
        payload: payload.to_owned(),
    };
    Ok(vec![
        noted("users", user, payload),
        noted("photos", photo, &title),
    ])
}

async fn read(router: &Router, row: &Noted) -> Result<Vec<String>, Error> {
    let column = if row.table == "users" {
        "name"
    } else {
        "title"
    };
    let sql = format!("SELECT {column} FROM {{shard}}.{} WHERE id = $1", row.table);
    let rows = router.by_id(row.id)?.query(&sql, &[&row.id]).await?;
    Ok(rows.iter().map(|row| row.get(0)).collect())
}

/// An application without our library: plain SQL at the host that has the shard, and after an error
/// it finds out which host has it now. Half of its rows come by a prepared statement that it keeps
/// across moves.
async fn by_hand(urls: Vec<String>, shards: i64, stop: Arc<AtomicBool>) -> Notes {
    let mut notes = Notes::default();
    let mut clients: Vec<Option<Client>> = urls.iter().map(|_| None).collect();
    let mut places: Vec<usize> = vec![0; shards as usize];
    let mut prepared = std::collections::HashMap::new();
    let mut number = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let payload = format!("wplain-{number}");
        let shard = fastrand::i64(0..shards) as usize;
        let begun = Instant::now();
        loop {
            let host = places[shard];
            let client = match clients[host].take() {
                Some(client) if !client.is_closed() => client,
                _ => {
                    prepared.retain(|(on, _), _| *on != host);
                    let Ok((client, connection)) =
                        tokio_postgres::connect(&urls[host], NoTls).await
                    else {
                        // The server is being restarted.
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    };
                    tokio::spawn(connection);
                    client
                }
            };
            let text =
                format!("INSERT INTO shard_{shard:04}.users (name) VALUES ($1) RETURNING id");
            let statement = match prepared
                .get(&(host, shard))
                .filter(|_| number.is_multiple_of(2))
            {
                Some(statement) => Ok(Clone::clone(statement)),
                None => client.prepare(&text).await,
            };
            let wrote = match statement {
                Ok(statement) => {
                    prepared.insert((host, shard), statement.clone());
                    client.query_one(&statement, &[&payload]).await
                }
                Err(error) => Err(error),
            };
            let answer = match wrote {
                Ok(row) => {
                    notes.acknowledged.push(Noted {
                        table: "users",
                        id: row.get(0),
                        payload,
                    });
                    clients[host] = Some(client);
                    break;
                }
                Err(error) => error,
            };
            // What the server refused has not run; without its answer this is unknown.
            if answer.as_db_error().is_none() {
                notes.in_doubt.push(payload);
                break;
            }
            prepared.remove(&(host, shard));
            let look = client
                .query_one("SELECT state FROM pgshard.look($1)", &[&(shard as i32)])
                .await;
            let serves = look.is_ok_and(|row| row.get::<_, Option<&str>>(0) == Some("serving"));
            clients[host] = Some(client);
            if !serves {
                places[shard] = (host + 1) % urls.len();
            }
            if begun.elapsed() > Duration::from_secs(60) {
                notes.errors.push(format!(
                    "{payload}: nobody serves shard {shard} for a minute: {answer}"
                ));
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        tokio::time::sleep(REST).await;
    }
    notes
}

/// What a writer in plain SQL does in one go.
#[derive(Clone, Copy, Debug)]
enum Deed {
    /// A REPEATABLE READ transaction that has read something before it writes.
    Repeatable,
    Copy,
    /// A commit that does not wait for the disk.
    Asynchronous,
    /// Sets a row that was written before to the same value.
    Touch,
    Delete,
}

const DEEDS: [Deed; 7] = [
    Deed::Repeatable,
    Deed::Copy,
    Deed::Asynchronous,
    Deed::Touch,
    Deed::Repeatable,
    Deed::Asynchronous,
    Deed::Delete,
];

/// An application that uses a map of its own, and queries the next host if one refuses.
async fn plainly(urls: Vec<String>, shards: u16, writer: usize, stop: Arc<AtomicBool>) -> Notes {
    let mut notes = Notes::default();
    let mut places = vec![0; usize::from(shards)];
    let mut clients: Vec<Option<Client>> = urls.iter().map(|_| None).collect();
    let mut number = 0_usize;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let deed = DEEDS[number % DEEDS.len()];
        let payload = format!("wsql{writer}-{number}");
        let row = match (deed, notes.acknowledged.len()) {
            (Deed::Touch | Deed::Delete, 0) => continue,
            (Deed::Touch | Deed::Delete, rows) => Some(fastrand::usize(0..rows)),
            _ => None,
        };
        let shard = match row {
            Some(row) => pgshard::id::Id::decode(notes.acknowledged[row].id)
                .shard()
                .get(),
            None => fastrand::u16(0..shards),
        };
        let begun = Instant::now();
        loop {
            let host = places[usize::from(shard)];
            let client = match clients[host].take().filter(|client| !client.is_closed()) {
                Some(client) => client,
                None => {
                    let Ok((client, connection)) =
                        tokio_postgres::connect(&urls[host], NoTls).await
                    else {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    };
                    tokio::spawn(connection);
                    client
                }
            };
            let noted = row.map(|row| notes.acknowledged[row].clone());
            let answer = match perform(&client, shard, deed, noted.as_ref(), &payload).await {
                Ok(id) => {
                    match (deed, row) {
                        (Deed::Delete, Some(row)) => drop(notes.acknowledged.swap_remove(row)),
                        (Deed::Touch, _) => {}
                        _ => notes.acknowledged.push(Noted {
                            table: "users",
                            id,
                            payload,
                        }),
                    }
                    clients[host] = Some(client);
                    break;
                }
                Err(answer) => answer,
            };
            if answer.as_db_error().is_none() {
                match (deed, row) {
                    (Deed::Delete, Some(row)) => notes
                        .in_doubt
                        .push(notes.acknowledged.swap_remove(row).payload),
                    (Deed::Touch, _) => {}
                    _ => notes.in_doubt.push(payload),
                }
                break;
            }
            let _ = client.batch_execute("ROLLBACK").await;
            let look = client
                .query_one("SELECT state FROM pgshard.look($1)", &[&i32::from(shard)])
                .await;
            if !look.is_ok_and(|row| row.get::<_, Option<&str>>(0) == Some("serving")) {
                places[usize::from(shard)] = (host + 1) % urls.len();
            }
            clients[host] = Some(client);
            if begun.elapsed() > Duration::from_secs(60) {
                notes.errors.push(format!(
                    "{payload}, {deed:?} in shard {shard}: refused for a minute: {answer:?}"
                ));
                break;
            }
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        tokio::time::sleep(REST).await;
    }
    notes
}

/// Does it, and returns the ID of the row.
async fn perform(
    client: &Client,
    shard: u16,
    deed: Deed,
    noted: Option<&Noted>,
    payload: &str,
) -> Result<i64, tokio_postgres::Error> {
    let schema = format!("shard_{shard:04}");
    let insert = format!("INSERT INTO {schema}.users (name) VALUES ($1) RETURNING id");
    match (deed, noted) {
        (Deed::Touch, Some(row)) => {
            let sql = format!("UPDATE {schema}.users SET name = $2 WHERE id = $1");
            let hit = client.execute(&sql, &[&row.id, &row.payload]).await?;
            assert_eq!(hit, 1, "{row:?} is there to be updated");
            Ok(row.id)
        }
        (Deed::Delete, Some(row)) => {
            let sql = format!("DELETE FROM {schema}.users WHERE id = $1");
            let hit = client.execute(&sql, &[&row.id]).await?;
            assert_eq!(hit, 1, "{row:?} is there to be deleted");
            Ok(row.id)
        }
        (Deed::Copy, _) => {
            let id: i64 = client
                .query_one(&format!("SELECT {schema}.next_id()"), &[])
                .await?
                .get(0);
            let sink = client
                .copy_in(&format!("COPY {schema}.users (id, name) FROM STDIN"))
                .await?;
            let mut sink = std::pin::pin!(sink);
            sink.send(bytes::Bytes::from(format!("{id}\t{payload}\n")))
                .await?;
            sink.finish().await?;
            Ok(id)
        }
        (Deed::Repeatable, _) => {
            client
                .batch_execute(
                    "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT FROM pg_class LIMIT 1",
                )
                .await?;
            let id = client.query_one(&insert, &[&payload]).await?.get(0);
            client.batch_execute("COMMIT").await?;
            Ok(id)
        }
        _ => {
            client
                .batch_execute("BEGIN; SET LOCAL synchronous_commit = off")
                .await?;
            let id = client.query_one(&insert, &[&payload]).await?.get(0);
            client.batch_execute("COMMIT").await?;
            Ok(id)
        }
    }
}
