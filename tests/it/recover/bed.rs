//! Rows that were acknowledged, where and when; and whether each still exists.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use serde_json::Value;
use tokio_postgres::error::SqlState;

use crate::support::{World, lines};

/// A row that was acknowledged.
#[derive(Clone, Debug)]
struct Noted {
    shard: u16,
    /// The server that took it.
    server: usize,
    /// The time of the test in which it was written.
    time: &'static str,
}

/// A world, and the rows that it has acknowledged.
pub(super) struct Bed {
    pub(super) world: World,
    noted: Mutex<BTreeMap<i64, Noted>>,
}

/// The findings of `check` that are alarms.
pub(super) async fn alarms(world: &World) -> Vec<Value> {
    let checked = world.run(&["check"]).await.last();
    let all = checked["findings"].as_array().unwrap().clone();
    all.into_iter()
        .filter(|found| found["severity"] == "alarm")
        .collect()
}

/// The codes of findings, each once.
pub(super) fn codes(findings: &[Value]) -> Vec<String> {
    let codes: BTreeSet<String> = findings
        .iter()
        .map(|one| one["code"].as_str().unwrap().to_owned())
        .collect();
    codes.into_iter().collect()
}

impl Bed {
    pub(super) async fn new(world: World) -> Bed {
        Bed {
            world,
            noted: Mutex::default(),
        }
    }

    fn shards(&self) -> std::ops::Range<u16> {
        0..self.world.config.cluster.shards.get()
    }

    /// Writes `rows` rows to each shard through a router; all are acknowledged.
    pub(super) async fn write(&self, time: &'static str, rows: usize) {
        let router = self.world.router().await;
        for shard in self.shards() {
            for _ in 0..rows {
                let mut tries = 0;
                loop {
                    let sql = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id, \
                        inet_server_port()";
                    match router.by_key(shard).query_one(sql, &[&time]).await {
                        Ok(row) => break self.note(row.get(0), row.get(1), shard, time),
                        Err(error) => assert!(tries < 50, "shard {shard}, {time}: {error:?}"),
                    }
                    tries += 1;
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Writes to every server that accepts a row of a shard, like applications that do not know of
    /// the restore.
    pub(super) async fn write_where_possible(&self, time: &'static str, rows: usize) {
        for server in 0..self.world.servers.servers().len() {
            let url = self.world.servers.server(server).url();
            let Ok((client, connection)) =
                tokio_postgres::connect(&url, tokio_postgres::NoTls).await
            else {
                continue;
            };
            tokio::spawn(connection);
            for shard in self.shards() {
                let sql = format!(
                    "INSERT INTO shard_{shard:04}.users (name) VALUES ('{time}') RETURNING id, \
                        inet_server_port()"
                );
                for _ in 0..rows {
                    match client.query_one(&sql, &[]).await {
                        Ok(row) => self.note(row.get(0), row.get(1), shard, time),
                        Err(error) => {
                            assert_ne!(
                                error.code(),
                                Some(&SqlState::UNIQUE_VIOLATION),
                                "{error:?}"
                            );
                            break;
                        }
                    }
                }
            }
        }
    }

    fn note(&self, id: i64, port: i32, shard: u16, time: &'static str) {
        let servers = self.world.servers.servers();
        let server = servers
            .iter()
            .position(|server| i32::from(server.port()) == port)
            .unwrap();
        let noted = Noted {
            shard,
            server,
            time,
        };
        let former = self.noted.lock().unwrap().insert(id, noted);
        assert!(
            former.is_none(),
            "the ID {id} of shard {shard} came twice: {former:?}, {time}"
        );
    }

    /// The kept move of a shard.
    pub(super) async fn move_of(&self, shard: u16) -> String {
        let sql = format!(
            "SELECT move_id::text FROM pgshard.move WHERE shard_id = {shard} AND phase = 'kept'"
        );
        for server in 0..2 {
            let id = lines(&self.world.servers.app(server).await, &sql).await;
            if let Some(id) = id.lines().next() {
                return id.to_owned();
            }
        }
        panic!("shard {shard} was moved");
    }

    /// Feeds the old copy of a shard on one host until it has all rows of the other host.
    pub(super) async fn feed(&self, id: &str, on: usize, shard: u16, from: usize) {
        let mut feed = self
            .world
            .command(&["moves", "feed", id], &[])
            .spawn()
            .unwrap();
        let count = async |server: usize, schema: &str| {
            lines(
                &self.world.servers.app(server).await,
                &format!("SELECT count(*)::text FROM {schema}.users"),
            )
            .await
        };
        let all = count(from, &format!("shard_{shard:04}")).await;
        while count(on, &format!("shard_{shard:04}__left_e1")).await != all {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        feed.kill().await.unwrap();
        // Only what the server has flushed counts.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }

    /// Decides what a plan leaves to a human: gives up the host that came back, or takes the first
    /// command.
    pub(super) async fn decide(&self, decision: &Value) {
        let commands: Vec<&str> = decision["commands"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one.as_str().unwrap())
            .collect();
        let gives_up = commands
            .iter()
            .find(|command| command.contains("--give-up db1"));
        let command = gives_up
            .unwrap_or(&commands[0])
            .strip_prefix("pgshard ")
            .unwrap();
        let mut args: Vec<&str> = command.split(' ').collect();
        if args[0] == "moves" {
            args.push("--yes");
        }
        self.world.run(&args).await.ended(0);
    }

    /// Checks that every row exists, except those that were lost with `lost`, the server that came
    /// back: rows that it took between its backup and its end and that no other host has. Rows from
    /// before or after are there, where the shard is served; only rows written before any operator
    /// looked may be in an old copy.
    pub(super) async fn judge(&self, lost: usize) {
        let mut served: BTreeSet<i64> = BTreeSet::new();
        let mut kept: BTreeSet<i64> = BTreeSet::new();
        for server in 0..self.world.servers.servers().len() {
            let url = self.world.servers.server(server).url();
            let Ok((client, connection)) =
                tokio_postgres::connect(&url, tokio_postgres::NoTls).await
            else {
                continue;
            };
            tokio::spawn(connection);
            let sql = "SELECT nspname::text FROM pg_namespace n JOIN pg_class c ON c.relnamespace \
                = n.oid
                WHERE nspname ~ '^shard_[0-9]{4}(__left_e[0-9]+)?$' AND relname = 'users' AND \
                relkind = 'r'";
            for schema in lines(&client, sql).await.lines() {
                let ids = lines(&client, &format!("SELECT id::text FROM {schema}.users")).await;
                let ids = ids.lines().map(|id| id.parse::<i64>().unwrap());
                if schema.contains("__") {
                    kept.extend(ids)
                } else {
                    served.extend(ids)
                }
            }
        }
        let noted = self.noted.lock().unwrap().clone();
        let of_old_primary =
            |noted: &Noted| noted.server == lost || (lost == 2 && noted.server == 0);
        let missing: Vec<_> = noted
            .iter()
            .filter(|(id, noted)| match noted.time {
                // The restore has lost them, unless they were fed to a copy on another host.
                "between" | "since" if of_old_primary(noted) && noted.shard != 5 => false,
                "blind" => !served.contains(id) && !kept.contains(id),
                _ => !served.contains(id),
            })
            .collect();
        assert!(missing.is_empty(), "{missing:#?}");
    }
}
