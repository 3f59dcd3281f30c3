//! A process of the application: calls that claim, change and delete, until its time is over.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use fastrand::Rng;
use pgshard::Router;
use pgshard::router::{Error, LookupProblem, Transaction};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio_postgres::types::ToSql;

use super::case::Story;
use super::longest::{Hiccups, LongestClaim};
use super::notes::{End, Notes};

/// The environment variable with an [`Order`].
pub(crate) const ORDER: &str = "PGSHARD_LOOKUPS_ORDER";

/// How many calls a process makes at a time.
const TASKS: u64 = 2;

/// What a process does.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Order {
    pub(crate) config: PathBuf,
    pub(crate) notes: PathBuf,
    /// Its number, and how many processes had it before.
    pub(crate) name: String,
    pub(crate) seed: u64,
    pub(crate) keys: i64,
    pub(crate) values: usize,
    pub(crate) folded: String,
    pub(crate) story: Story,
    /// Whether it claims the values that it writes.
    pub(crate) claims: bool,
    /// When it ends, in milliseconds since 1970.
    pub(crate) until_ms: u64,
}

pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_millis() as u64)
}

/// What this process was started for, if it is one of these.
pub(crate) fn order() -> Option<Order> {
    let text = std::env::var(ORDER).ok()?;
    Some(serde_json::from_str(&text).expect("an order is JSON"))
}

/// A value of a look-up. With folding, each is written in two ways.
pub(crate) fn value(rng: &mut Rng, order: &Order, lookup: &str) -> String {
    let text = format!("{lookup}{}", rng.usize(..order.values));
    match lookup == order.folded && rng.bool() {
        true => text.to_uppercase(),
        false => text,
    }
}

pub(crate) fn work(order: Order) {
    let hiccups = Hiccups::watch();
    let longest = LongestClaim::install(hiccups.clone());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime can be made");
    runtime.block_on(async {
        let router = pgshard::connect(&order.config)
            .await
            .expect("a router starts");
        let notes = Arc::new(Notes::open(&order.notes));
        let tasks = (0..TASKS).map(|task| {
            let caller = Caller {
                rng: Rng::with_seed(order.seed.wrapping_add(task)),
                task,
                order: order.clone(),
                router: router.clone(),
                notes: notes.clone(),
                hiccups: hiccups.clone(),
                longest: longest.clone(),
            };
            tokio::spawn(caller.play())
        });
        for task in tasks.collect::<Vec<_>>() {
            if task.await.is_err() {
                notes.note(&json!({ "wrong": "a caller panicked" }));
            }
        }
    });
}

struct Caller {
    rng: Rng,
    task: u64,
    order: Order,
    router: Router,
    notes: Arc<Notes>,
    hiccups: Arc<Hiccups>,
    longest: LongestClaim,
}

/// How a closure ends that is rolled back.
enum Ended {
    Router(Error),
    /// It was meant to.
    Meant,
}

impl From<Error> for Ended {
    fn from(error: Error) -> Ended {
        Ended::Router(error)
    }
}

/// Where a transaction is given up, and how long it waits in between.
#[derive(Clone, Copy)]
struct Script {
    fails_at: Option<u8>,
    /// A statement of its own fails, instead of the closure.
    by_statement: bool,
    waits_at: Option<u8>,
    wait: Duration,
}

impl Script {
    fn of(rng: &mut Rng) -> Script {
        let fails = rng.u8(..4) == 0;
        let waits = rng.u8(..4) == 0;
        let wait = match rng.u8(..8) {
            0 => rng.u64(1500..4000),
            _ => rng.u64(1..200),
        };
        Script {
            fails_at: fails.then(|| rng.u8(..3)),
            by_statement: rng.bool(),
            waits_at: waits.then(|| rng.u8(..3)),
            wait: Duration::from_millis(wait),
        }
    }

    /// Whether nothing happens before or after the statement.
    fn is_plain(&self) -> bool {
        self.fails_at.is_none() && self.waits_at.is_none()
    }

    async fn at(&self, tx: &Transaction, place: u8) -> Result<(), Ended> {
        if self.waits_at == Some(place) {
            tokio::time::sleep(self.wait).await;
        }
        if self.fails_at == Some(place) {
            if self.by_statement {
                // A syntax error: the transaction can only be rolled back.
                let _ = tx.execute("SELEC", &[]).await;
            }
            return Err(Ended::Meant);
        }
        Ok(())
    }
}

/// What a transaction writes.
struct Write {
    op: String,
    key: i64,
    sql: String,
    email: Option<String>,
    name: Option<String>,
}

/// By `op`, too: an older snapshot also has the row that another transaction has deleted since.
const HISTORY: &str = "INSERT INTO {shard}.history (op, id, email, name, gone) SELECT $1::text, \
    $2::bigint, u.email, u.name, u.id IS NULL FROM (SELECT) AS one LEFT JOIN {shard}.users u ON \
    u.id = $2 AND u.op = $1";

/// How the `op` of a statement without a transaction ends: a trigger writes its history.
pub(crate) const ALONE: &str = ".alone";

impl Write {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        let mut params: Vec<&(dyn ToSql + Sync)> = vec![&self.key, &self.op];
        for value in [&self.email, &self.name].into_iter().flatten() {
            params.push(value);
        }
        params
    }

    /// The row, and then a row of the history, which so has the order in which rows were written: a
    /// call that needs a value that another gives up claims it after that commit.
    async fn run(&self, tx: Transaction, script: Script) -> Result<u64, Ended> {
        script.at(&tx, 0).await?;
        let rows = tx.execute(&self.sql, &self.params()).await?;
        script.at(&tx, 1).await?;
        if rows > 0 {
            tx.execute(HISTORY, &[&self.op, &self.key]).await?;
        }
        script.at(&tx, 2).await?;
        Ok(rows)
    }
}

/// A row's `op`, and its values.
type Found = (String, Option<String>, Option<String>);

/// The kinds of calls, and how often each comes.
#[derive(Clone, Copy)]
enum Kind {
    Email,
    Name,
    Both,
    Touch,
    Clear,
    Delete,
    Find,
}

const KINDS: [Kind; 14] = [
    Kind::Email,
    Kind::Email,
    Kind::Email,
    Kind::Name,
    Kind::Name,
    Kind::Both,
    Kind::Both,
    Kind::Touch,
    Kind::Clear,
    Kind::Clear,
    Kind::Delete,
    Kind::Delete,
    Kind::Find,
    Kind::Find,
];

impl Caller {
    async fn play(mut self) {
        let mut number = 0;
        while now_ms() < self.order.until_ms {
            number += 1;
            let op = format!("{}.{}.{number}", self.order.name, self.task);
            let kind = KINDS[self.rng.usize(..KINDS.len())];
            match kind {
                Kind::Find => self.find().await,
                _ => self.write(op, kind).await,
            }
        }
    }

    async fn write(&mut self, op: String, kind: Kind) {
        let key = self.rng.i64(0..self.order.keys);
        let email = matches!(kind, Kind::Email | Kind::Both)
            .then(|| value(&mut self.rng, &self.order, "emails"));
        let name = matches!(kind, Kind::Name | Kind::Both)
            .then(|| value(&mut self.rng, &self.order, "names"));
        let insert = |columns: &str, set: &str, values: &str| {
            format!(
                "INSERT INTO {{shard}}.users (id, op, {columns}) VALUES ($1, $2, {values}) ON \
                 CONFLICT (id) DO UPDATE SET op = EXCLUDED.op, {set}"
            )
        };
        let [set_email, set_name] =
            ["email", "name"].map(|column| format!("{column} = EXCLUDED.{column}"));
        let sql = match kind {
            Kind::Email => insert("email", &set_email, "$3"),
            Kind::Name => insert("name", &set_name, "$3"),
            Kind::Both => insert("email, name", &format!("{set_email}, {set_name}"), "$3, $4"),
            Kind::Touch => "UPDATE {shard}.users SET op = $2, email = email, name = name WHERE id \
                = $1"
                .to_owned(),
            Kind::Clear => {
                let column = ["email", "name"][self.rng.usize(..2)];
                format!("UPDATE {{shard}}.users SET op = $2, {column} = NULL WHERE id = $1")
            }
            Kind::Delete | Kind::Find => {
                "DELETE FROM {shard}.users WHERE id = $1 AND $2::text <> ''".to_owned()
            }
        };
        let values: Vec<(&str, String)> = [("emails", &email), ("names", &name)]
            .into_iter()
            .filter_map(|(lookup, value)| Some((lookup, value.clone()?)))
            .collect();
        let what = format!("key {key} {values:?}: {sql}");
        let script = Script::of(&mut self.rng);
        let values = if self.order.claims {
            values
        } else {
            Vec::new()
        };
        let is_alone = !values.is_empty() && script.is_plain() && self.rng.bool();
        let op = if is_alone { op + ALONE } else { op };
        let dropped = (self.rng.u8(..8) == 0).then(|| match self.rng.u8(..4) {
            0 => Duration::from_millis(self.rng.u64(1..2500)),
            _ => Duration::from_micros(self.rng.u64(1..40_000)),
        });
        let write = Write {
            op,
            key,
            sql,
            email,
            name,
        };
        self.notes.begins(&write.op, &what);
        let began = Instant::now();
        let began_ms = AtomicU64::new(0);
        let call = async {
            let work = |tx: Transaction| {
                began_ms.store(
                    self.hiccups.ran_ms(began, Instant::now()),
                    Ordering::Relaxed,
                );
                write.run(tx, script)
            };
            if values.is_empty() {
                return self.router.by_key(key).transaction(work).await;
            }
            let claiming = self.router.claiming(key, values.clone())?;
            if is_alone {
                return Ok(claiming.execute(&write.sql, &write.params()).await?);
            }
            claiming.transaction(work).await
        };
        let ended = match dropped {
            Some(after) => tokio::time::timeout(after, call).await.ok(),
            None => Some(call.await),
        };
        let (end, word) = match &ended {
            None => (End::Doubt, "dropped"),
            Some(Ok(0)) => (End::Undone, "no row"),
            Some(Ok(_)) => (End::Done, "done"),
            Some(Err(Ended::Meant)) => (End::Undone, "rolled back"),
            Some(Err(Ended::Router(error))) => {
                self.judge(error, &what);
                let end = match error.may_have_run() {
                    true => End::Doubt,
                    false => End::Undone,
                };
                (end, word_of(error))
            }
        };
        self.notes.note(&json!({
            "op": write.op,
            "end": end.word(),
            "word": word,
            "claim_ms": self.longest.take_ms(),
            "began_ms": if values.is_empty() { 0 } else { began_ms.load(Ordering::Relaxed) },
        }));
    }

    /// Notes an error that a call may not have.
    fn judge(&self, error: &Error, what: &str) {
        let code = error.code().map_or("", |code| code.code());
        let is_introduced = self.order.story == Story::Introduced;
        let is_allowed = match error {
            // Until they are complete.
            Error::Lookup {
                problem: LookupProblem::NotComplete,
                ..
            } => is_introduced,
            Error::Lookup { .. } => false,
            // A row that was written without a claim has the value in the same shard.
            _ if code == "23505" => is_introduced,
            _ => code != "SH003",
        };
        if !is_allowed {
            let mut text = error.to_string();
            let mut cause = std::error::Error::source(error);
            while let Some(inner) = cause {
                text += &format!(": {inner}");
                cause = inner.source();
            }
            self.notes
                .note(&json!({ "wrong": format!("error: {what}: {text}") }));
        }
    }

    /// A row that is there all the while is found by its values.
    async fn find(&mut self) {
        let key = self.rng.i64(0..self.order.keys);
        let sql = "SELECT op, email, name FROM {shard}.users WHERE id = $1";
        let read = async || -> Result<Option<Found>, Error> {
            self.router.by_key(key).query_opt_as(sql, &[&key]).await
        };
        let Ok(Some(before)) = read().await else {
            return;
        };
        for (lookup, value) in [("emails", &before.1), ("names", &before.2)] {
            let Some(value) = value else { continue };
            let found = match self.router.lookup(lookup) {
                Ok(lookup) => lookup.find::<i64>(value.as_str()).await,
                Err(error) => Err(error),
            };
            match found {
                Ok(found) if found == Some(key) => {}
                // Each write has an `op` of its own.
                Ok(found) => {
                    if let Ok(Some(after)) = read().await
                        && after == before
                    {
                        let wrong = format!(
                            "entry: key {key} has {value:?}, and find of {lookup} gave {found:?}"
                        );
                        self.notes.note(&json!({ "wrong": wrong }));
                    }
                }
                Err(error) => self.judge(&error, &format!("find of {lookup} {value:?}")),
            }
        }
    }
}

fn word_of(error: &Error) -> &'static str {
    match error {
        Error::Taken { .. } => "taken",
        Error::Busy { .. } => "busy",
        Error::InDoubt { .. } => "in doubt",
        Error::ConnectionLost { .. } => "connection lost",
        Error::TimedOut { .. } => "timed out",
        Error::ShardUnavailable { .. } => "unavailable",
        Error::Statement { .. } => "statement failed",
        _ => "another error",
    }
}
