//! The workload: sessions that send random transactions to the host that has a shard, and keep
//! their results.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime};

use fastrand::Rng;
use futures_util::SinkExt;
use tokio_postgres::{Client, Error};

use super::state::{Shared, Told, add};
use super::statements::{Statement, Statements};

/// What a session's transactions are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Habit {
    Short,
    /// They take some seconds, with pauses.
    Long,
    /// Maintenance: VACUUM, REINDEX, ANALYZE.
    Janitor,
}

impl Told {
    fn note(&mut self, id: i64, ended: &Result<End, Broken>) {
        match ended {
            Ok(End::Committed) => self.acknowledged.insert(id),
            Ok(End::RolledBack) | Err(Broken::Refused) | Err(Broken::Gone { sent: false }) => {
                self.rolled_back.insert(id)
            }
            Err(Broken::Gone { sent: true }) => self.unknown.insert(id),
        };
    }
}

/// Why a transaction did not finish.
enum Broken {
    /// The server refused; the transaction is rolled back, or will be.
    Refused,
    /// The connection is gone: before its COMMIT was sent, or after.
    Gone { sent: bool },
}

enum End {
    Committed,
    RolledBack,
}

pub(crate) async fn session(shared: Arc<Shared>, number: usize, habit: Habit) {
    let rng = Rng::with_seed(
        shared
            .case
            .seed
            .wrapping_mul(31)
            .wrapping_add(number as u64),
    );
    let mut session = Session {
        shared,
        rng,
        number,
        habit,
        clients: [None, None],
        count: 0,
        settings: "",
        at: 0,
    };
    session.settings =
        ["", "", "SET search_path = pg_catalog", "SET jit = off"][session.rng.usize(0..4)];
    while !session.shared.is_over() {
        if session.shared.quiet.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        let shared = session.shared.clone();
        shared.under_way.fetch_add(1, Ordering::SeqCst);
        if !shared.quiet.load(Ordering::SeqCst) {
            session.once(&shared).await;
        }
        shared.under_way.fetch_sub(1, Ordering::SeqCst);
        let rest = if habit == Habit::Short {
            session.rng.u64(2..25)
        } else {
            session.rng.u64(50..700)
        };
        tokio::time::sleep(Duration::from_millis(rest)).await;
    }
}

struct Session {
    shared: Arc<Shared>,
    rng: Rng,
    number: usize,
    habit: Habit,
    clients: [Option<Client>; 2],
    count: i64,
    settings: &'static str,
    /// The host of the current transaction.
    at: usize,
}

impl Session {
    async fn once(&mut self, shared: &Arc<Shared>) {
        let shards = shared.gates.len();
        let shard = if self.rng.u8(0..3) > 0 {
            self.number % shards
        } else {
            self.rng.usize(0..shards)
        };
        let gate = &shared.gates[shard];
        let host = gate.host.read().await;
        let Some(client) = self.client(*host).await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            return;
        };
        self.at = *host;
        let schema = Shared::schema_name(shard as u16);
        if self.habit == Habit::Janitor {
            self.maintain(&client, shard as u16, &schema).await;
            self.clients[*host] = Some(client);
            return;
        }
        self.count += 1;
        let id = (self.number as i64 + 1) * 100_000_000 + self.count;
        let ended = self
            .transaction(&client, shard as u16, &schema, *host, id)
            .await;
        add(&shared.counts.transactions);
        gate.told.lock().unwrap().note(id, &ended);
        if !matches!(ended, Err(Broken::Gone { .. })) {
            self.clients[*host] = Some(client);
        }
        drop(host);
        if matches!(ended, Err(Broken::Refused)) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn client(&mut self, host: usize) -> Option<Client> {
        if let Some(client) = self.clients[host]
            .take()
            .filter(|client| !client.is_closed())
        {
            return Some(client);
        }
        let client = self.shared.connect(host).await?;
        client.batch_execute(self.settings).await.ok()?;
        Some(client)
    }

    async fn transaction(
        &mut self,
        client: &Client,
        shard: u16,
        schema: &str,
        host: usize,
        id: i64,
    ) -> Result<End, Broken> {
        let begun = SystemTime::now();
        let shared = self.shared.clone();
        let make = Statements {
            schema: &shared.schema,
            without: &shared.case.without,
            merges: true,
        };
        let long = self.habit == Habit::Long && !shared.calm.load(Ordering::Relaxed);
        let log = format!("INSERT INTO {schema}.txlog (n) VALUES ({id})");
        // One message is one transaction.
        if !long && self.rng.u8(0..3) == 0 {
            let (kind, statement) = make.random(&mut self.rng);
            if let Statement::Sql(sql) = statement {
                let sql = format!("{log}; {}", sql.replace("{shard}", schema));
                add(&shared.counts.statements);
                return match client.batch_execute(&sql).await {
                    Ok(()) => Ok(End::Committed),
                    Err(error) => Err(self
                        .judge(client, shard, kind, &sql, error, begun, true)
                        .await),
                };
            }
        }
        let begin = match self.rng.u8(0..12) {
            0 => "BEGIN ISOLATION LEVEL REPEATABLE READ",
            1 => "BEGIN ISOLATION LEVEL SERIALIZABLE",
            2 if !shared.crashes => "BEGIN; SET LOCAL synchronous_commit = off",
            3 => "BEGIN; SET CONSTRAINTS ALL DEFERRED",
            _ => "BEGIN",
        };
        let mut statements: Vec<(&str, Statement)> = (0..self.rng.usize(1..8))
            .map(|_| make.random(&mut self.rng))
            .collect();
        let at = self.rng.usize(0..=statements.len());
        statements.insert(at, ("log", Statement::Sql(log)));
        if let Err(error) = client.batch_execute(begin).await {
            return Err(self
                .judge(client, shard, "begin", begin, error, begun, false)
                .await);
        }
        let mut savepoint = false;
        let logged_at = at;
        for (at, (kind, statement)) in statements.into_iter().enumerate() {
            if self.rng.u8(0..5) == 0 {
                let end = if savepoint {
                    "RELEASE SAVEPOINT s; SAVEPOINT s"
                } else {
                    "SAVEPOINT s"
                };
                if let Err(error) = client.batch_execute(end).await {
                    return Err(self
                        .judge(client, shard, "savepoint", end, error, begun, false)
                        .await);
                }
                savepoint = true;
            }
            add(&shared.counts.statements);
            let sent = match &statement {
                Statement::Sql(sql) => (sql.replace("{shard}", schema), None),
                Statement::Copy(sql, lines) => {
                    (sql.replace("{shard}", schema), Some(lines.clone()))
                }
            };
            let ran = match &sent.1 {
                None => client.batch_execute(&sent.0).await,
                Some(lines) => copy_in(client, &sent.0, lines).await,
            };
            let back = savepoint && at != logged_at && self.rng.u8(0..4) == 0;
            match ran {
                Ok(()) if back && at < logged_at => {
                    let undo = "ROLLBACK TO SAVEPOINT s";
                    if let Err(error) = client.batch_execute(undo).await {
                        return Err(self
                            .judge(client, shard, "savepoint", undo, error, begun, false)
                            .await);
                    }
                }
                Ok(()) => {}
                // This counts even after the shard has moved away: what was done before still
                // holds.
                Err(error) if savepoint && at < logged_at && self.rng.bool() => {
                    if let Broken::Gone { sent } = self
                        .judge_within(client, shard, kind, &sent.0, error, begun)
                        .await
                    {
                        return Err(Broken::Gone { sent });
                    }
                }
                Err(error) => {
                    return Err(self
                        .judge(client, shard, kind, &sent.0, error, begun, false)
                        .await);
                }
            }
            if long {
                tokio::time::sleep(Duration::from_millis(self.rng.u64(50..900))).await;
            }
        }
        self.end(client, shard, host, id, begun).await
    }

    /// COMMIT, ROLLBACK, or two-phase commit.
    async fn end(
        &mut self,
        client: &Client,
        shard: u16,
        host: usize,
        id: i64,
        begun: SystemTime,
    ) -> Result<End, Broken> {
        match self.rng.u8(0..16) {
            0..2 => match client.batch_execute("ROLLBACK").await {
                Ok(()) => Ok(End::RolledBack),
                Err(error) => Err(self
                    .judge(client, shard, "rollback", "ROLLBACK", error, begun, false)
                    .await),
            },
            2 if self.shared.case.has("prepared") => {
                self.two_phases(client, shard, host, id, begun).await
            }
            _ => match client.batch_execute("COMMIT").await {
                Ok(()) => Ok(End::Committed),
                Err(error) => Err(self
                    .judge(client, shard, "commit", "COMMIT", error, begun, true)
                    .await),
            },
        }
    }

    async fn two_phases(
        &mut self,
        client: &Client,
        shard: u16,
        host: usize,
        id: i64,
        begun: SystemTime,
    ) -> Result<End, Broken> {
        let prepare = format!("PREPARE TRANSACTION 't{id}'");
        let mut known = true;
        if let Err(error) = client.batch_execute(&prepare).await {
            let broken = self
                .judge(client, shard, "prepare", &prepare, error, begun, true)
                .await;
            if matches!(broken, Broken::Refused) {
                return Err(broken);
            }
            known = false;
        }
        let wait = if self.shared.calm.load(Ordering::Relaxed) {
            5
        } else {
            self.rng.u64(0..1200)
        };
        tokio::time::sleep(Duration::from_millis(wait)).await;
        let commits = known && self.rng.u8(0..4) > 0;
        let sql = format!(
            "{} PREPARED 't{id}'",
            if commits { "COMMIT" } else { "ROLLBACK" }
        );
        let mut asked = 0;
        loop {
            let another = if asked == 0 && known {
                None
            } else {
                Some(self.shared.reach(host).await)
            };
            asked += 1;
            match another.as_ref().unwrap_or(client).batch_execute(&sql).await {
                Ok(()) => {
                    return Ok(if commits {
                        End::Committed
                    } else {
                        End::RolledBack
                    });
                }
                Err(error) => match error.code().map(|code| code.code().to_owned()) {
                    // It was done before the connection broke, or never prepared.
                    Some(code) if code == "42704" => {
                        return if asked > 1 || !known {
                            Err(Broken::Gone { sent: true })
                        } else {
                            self.shared.fail(
                                "log",
                                format!(
                                    "the prepared transaction of {id} on shard {shard} is gone"
                                ),
                            );
                            Err(Broken::Gone { sent: true })
                        };
                    }
                    _ if asked > 2000 => {
                        self.shared
                            .fail("application", format!("{sql}: {}", words(&error)));
                        return Err(Broken::Gone { sent: true });
                    }
                    _ => tokio::time::sleep(Duration::from_millis(20)).await,
                },
            }
        }
    }

    async fn maintain(&mut self, client: &Client, shard: u16, schema: &str) {
        let tables = &self.shared.schema.tables;
        if tables.is_empty() {
            return;
        }
        let table = format!("{schema}.{}", tables[self.rng.usize(0..tables.len())].name);
        let all = [
            "VACUUM",
            "ANALYZE",
            "VACUUM (FREEZE)",
            "VACUUM FULL",
            "REINDEX TABLE",
            "REINDEX TABLE CONCURRENTLY",
        ];
        let what = all[self.rng.usize(0..all.len())];
        let kind = [
            "vacuum",
            "vacuum",
            "vacuum",
            "full",
            "reindex",
            "concurrently",
        ][all.iter().position(|one| *one == what).unwrap()];
        if !self.shared.case.has(kind) || self.shared.calm.load(Ordering::Relaxed) {
            return;
        }
        let (begun, sql) = (SystemTime::now(), format!("{what} {table}"));
        add(&self.shared.counts.statements);
        if let Err(error) = client.batch_execute(&sql).await {
            self.judge(client, shard, "maintain", &sql, error, begun, false)
                .await;
        }
        if kind == "concurrently" {
            // What a REINDEX CONCURRENTLY leaves if the shard leaves while it works.
            let left = "SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON \
                c.oid = i.indexrelid
                JOIN pg_namespace n ON n.oid = c.relnamespace WHERE NOT i.indisvalid AND n.nspname \
                = $1";
            for row in client.query(left, &[&schema]).await.unwrap_or_default() {
                let _ = client
                    .batch_execute(&format!("DROP INDEX {}", row.get::<_, String>(0)))
                    .await;
            }
        }
    }

    /// [`Session::judge`] for a transaction that continues from its savepoint.
    async fn judge_within(
        &mut self,
        client: &Client,
        shard: u16,
        kind: &str,
        sql: &str,
        error: Error,
        begun: SystemTime,
    ) -> Broken {
        if error.as_db_error().is_some()
            && client
                .batch_execute("ROLLBACK TO SAVEPOINT s")
                .await
                .is_err()
        {
            return Broken::Gone { sent: false };
        }
        self.blame(shard, kind, sql, &error, begun).await;
        if error.as_db_error().is_some() {
            Broken::Refused
        } else {
            Broken::Gone { sent: false }
        }
    }

    /// What an error means: its cause, and what happened to the transaction.
    #[allow(
        clippy::too_many_arguments,
        reason = "what there is to know of an error"
    )]
    async fn judge(
        &mut self,
        client: &Client,
        shard: u16,
        kind: &str,
        sql: &str,
        error: Error,
        begun: SystemTime,
        sent: bool,
    ) -> Broken {
        let refused = error
            .as_db_error()
            .is_some_and(|error| !error.code().code().starts_with("57P"));
        if refused {
            let _ = client.batch_execute("ROLLBACK").await;
        }
        self.blame(shard, kind, sql, &error, begun).await;
        if refused {
            Broken::Refused
        } else {
            Broken::Gone { sent }
        }
    }

    async fn blame(&mut self, shard: u16, kind: &str, sql: &str, error: &Error, begun: SystemTime) {
        let code = error.code().map(|code| code.code().to_owned());
        self.shared.erred(kind, code.as_deref().unwrap_or("gone"));
        let broken = code
            .as_deref()
            .is_none_or(|code| code.starts_with("57P") || code.starts_with("08"));
        let told = || {
            format!(
                "shard {shard}, {kind}: {}\n  {}",
                words(error),
                sql.chars().take(600).collect::<String>()
            )
        };
        if broken {
            if !self.shared.crashes {
                self.shared.fail("application", told());
            }
            return;
        }
        let code = code.unwrap_or_default();
        if code == "SH001" {
            add(&self.shared.counts.refused);
            return;
        }
        if earned(&code, kind, error) {
            return;
        }
        let altered = self.shared.gates[usize::from(shard)]
            .altered
            .load(Ordering::SeqCst);
        if altered && missed(&code, error) {
            return;
        }
        // The shard was closed, or left, in that time: any name may have meant something else.
        let sql =
            "SELECT state <> 'serving' OR coalesce(last_fence_at, '-infinity') > $2::timestamptz - \
                interval '1 second'
            FROM pgshard.shard WHERE shard_id = $1";
        loop {
            let client = self.shared.reach(self.at).await;
            match client.query_opt(sql, &[&i32::from(shard), &begun]).await {
                Ok(row) if row.as_ref().is_none_or(|row| row.get::<_, bool>(0)) => {
                    add(&self.shared.counts.refused);
                    return;
                }
                Ok(_) => return self.shared.fail("application", told()),
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    }
}

async fn copy_in(client: &Client, sql: &str, lines: &str) -> Result<(), Error> {
    let sink = client.copy_in::<_, bytes::Bytes>(sql).await?;
    let mut sink = std::pin::pin!(sink);
    sink.send(bytes::Bytes::from(lines.to_owned())).await?;
    sink.finish().await.map(drop)
}

/// An error that the statement can cause by itself, with or without a move.
fn earned(code: &str, kind: &str, error: &Error) -> bool {
    let text = error
        .as_db_error()
        .map(|error| error.message().to_owned())
        .unwrap_or_default();
    match &code[..2] {
        // Constraints, values, serialization; a row updated twice by one statement or its trigger.
        "23" | "22" | "40" | "21" | "27" => true,
        _ => match code {
            "55006" => kind == "truncate",
            // Too large index rows, and the like.
            "54000" => true,
            // A bug of PostgreSQL's (BUG #18351): a dead row that VACUUM FULL still copies,
            // although a vacuum has removed its TOAST data.
            "XX001" if kind == "maintain" => {
                text.contains("missing chunk number 0 for toast value")
            }
            // REINDEX CONCURRENTLY and VACUUM collide with others of their kind.
            "55P03" | "XX000" if kind == "maintain" => {
                text.contains("lock") || text.contains("tuple concurrently")
            }
            "0A000" => text.contains("deferrable"),
            _ => false,
        },
    }
}

/// An error of a statement that does not know how the shard has been altered.
fn missed(code: &str, error: &Error) -> bool {
    let text = error
        .as_db_error()
        .map(|error| error.message().to_owned())
        .unwrap_or_default();
    match &code[..2] {
        "42" | "0A" | "3F" => true,
        _ => {
            code == "55000" && text.contains("replica identity")
                || code == "XX000" && text.contains("could not open")
        }
    }
}

pub(crate) fn words(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => {
            let detail = error
                .detail()
                .map_or(String::new(), |detail| format!(": {detail}"));
            format!("{} ({}){detail}", error.message(), error.code().code())
        }
        None => {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(error);
            while let Some(inner) = cause {
                text += &format!(": {inner}");
                cause = inner.source();
            }
            text
        }
    }
}
