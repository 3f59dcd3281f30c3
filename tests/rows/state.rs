//! What the parts of one round share: which host each shard's workload talks to, its results, what
//! went wrong.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::RwLock;
use tokio_postgres::{Client, NoTls};

use super::schema::Schema;
use super::support::World;

/// The parameters of a round. The same command line makes the same round.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) seed: u64,
    pub(crate) versions: [u32; 2],
    pub(crate) moves: usize,
    pub(crate) sessions: Option<usize>,
    pub(crate) tables: Option<Vec<usize>>,
    /// Kinds of statements and fates that are left out.
    pub(crate) without: BTreeSet<String>,
}

impl Case {
    /// The arguments of `script/test-rows` that repeat it.
    pub(crate) fn words(&self) -> String {
        let mut words = format!(
            "--seed {} --versions {}-{} --moves {}",
            self.seed, self.versions[0], self.versions[1], self.moves
        );
        if let Some(sessions) = self.sessions {
            words += &format!(" --sessions {sessions}");
        }
        if let Some(tables) = &self.tables {
            words += &format!(
                " --tables {}",
                tables
                    .iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(",")
            );
        }
        if !self.without.is_empty() {
            words += &format!(
                " --without {}",
                self.without.iter().cloned().collect::<Vec<_>>().join(",")
            );
        }
        words
    }

    pub(crate) fn has(&self, kind: &str) -> bool {
        !self.without.contains(kind)
    }
}

/// Why a round ended: the kind, by which a shrunk round is recognized as failing in the same way,
/// and the description.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// The results of one shard's clients.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) acknowledged: BTreeSet<i64>,
    pub(crate) rolled_back: BTreeSet<i64>,
    pub(crate) unknown: BTreeSet<i64>,
}

pub(crate) struct Gate {
    /// The host that the workload talks to. A session with an open transaction holds it for
    /// reading.
    pub(crate) host: RwLock<usize>,
    pub(crate) told: Mutex<Told>,
    /// Whether the shard was altered in this round.
    pub(crate) altered: AtomicBool,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) transactions: AtomicU64,
    pub(crate) statements: AtomicU64,
    pub(crate) errors: AtomicU64,
    pub(crate) refused: AtomicU64,
    pub(crate) compared: AtomicU64,
    pub(crate) moves: AtomicU64,
    pub(crate) kills: AtomicU64,
    pub(crate) restarts: AtomicU64,
}

impl Counts {
    pub(crate) fn all(&self) -> [&AtomicU64; 8] {
        let Counts {
            transactions,
            statements,
            errors,
            refused,
            compared,
            moves,
            kills,
            restarts,
        } = self;
        [
            transactions,
            statements,
            errors,
            refused,
            compared,
            moves,
            kills,
            restarts,
        ]
    }
}

pub(crate) struct Shared {
    pub(crate) world: World,
    pub(crate) case: Case,
    pub(crate) schema: Schema,
    pub(crate) gates: Vec<Gate>,
    pub(crate) counts: Counts,
    pub(crate) begun: Instant,
    pub(crate) stop: AtomicBool,
    /// Whether no new transaction may begin.
    pub(crate) quiet: AtomicBool,
    /// Whether no transaction may be long or lock a table.
    pub(crate) calm: AtomicBool,
    pub(crate) under_way: AtomicUsize,
    /// Whether connections break in this round because it restarts servers.
    pub(crate) crashes: bool,
    failure: Mutex<Option<Failure>>,
    story: Mutex<Vec<String>>,
    /// How many errors there were, by kind of statement and SQLSTATE.
    errors: Mutex<BTreeMap<(String, String), usize>>,
}

impl Shared {
    pub(crate) fn new(
        world: World,
        case: Case,
        schema: Schema,
        shards: usize,
        crashes: bool,
    ) -> Shared {
        let hosts = (0..shards)
            .map(|shard| world.host_of(shard as u16))
            .collect::<Vec<_>>();
        let gate = |host| Gate {
            host: RwLock::new(host),
            told: Mutex::default(),
            altered: AtomicBool::new(false),
        };
        Shared {
            world,
            case,
            schema,
            gates: hosts.into_iter().map(gate).collect(),
            counts: Counts::default(),
            begun: Instant::now(),
            stop: AtomicBool::new(false),
            quiet: AtomicBool::new(false),
            calm: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            crashes,
            failure: Mutex::default(),
            story: Mutex::default(),
            errors: Mutex::default(),
        }
    }

    /// The first failure ends the round.
    pub(crate) fn fail(&self, kind: &'static str, text: impl Into<String>) {
        let text = text.into();
        self.tell(format!("FAILURE ({kind}) {text}"));
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert(Failure { kind, text });
    }

    pub(crate) fn failed(&self) -> Option<Failure> {
        self.failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed) || self.failed().is_some()
    }

    /// A line of the round's story, printed if it fails.
    pub(crate) fn tell(&self, line: impl Into<String>) {
        let line = format!("{:7.2} {}", self.begun.elapsed().as_secs_f64(), line.into());
        if std::env::var_os("PGSHARD_ROWS_TELL").is_some() {
            println!("{line}");
        }
        self.story
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(line);
    }

    pub(crate) fn erred(&self, kind: &str, code: &str) {
        add(&self.counts.errors);
        let mut errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        *errors
            .entry((kind.to_owned(), code.to_owned()))
            .or_default() += 1;
    }

    pub(crate) fn errors_told(&self) -> String {
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        errors
            .iter()
            .map(|((kind, code), count)| format!("{kind} {code} {count}"))
            .collect::<Vec<_>>()
            .join(", ")
    }

    pub(crate) fn story(&self) -> Vec<String> {
        self.story
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(crate) fn schema_name(shard: u16) -> String {
        format!("shard_{shard:04}")
    }

    /// A connection as the application; `None` while the server is away.
    pub(crate) async fn connect(&self, host: usize) -> Option<Client> {
        let url = self.world.servers.server(host).url();
        let connected = tokio::time::timeout(
            Duration::from_secs(20),
            tokio_postgres::connect(&url, NoTls),
        )
        .await;
        let (client, connection) = connected.ok()?.ok()?;
        tokio::spawn(connection);
        Some(client)
    }

    /// The same, but waits for the server.
    pub(crate) async fn reach(&self, host: usize) -> Client {
        loop {
            if let Some(client) = self.connect(host).await {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until no transaction is under way, and lets none begin.
    pub(crate) async fn hush(&self) {
        self.quiet.store(true, Ordering::SeqCst);
        while self.under_way.load(Ordering::SeqCst) > 0 && self.failed().is_none() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) fn wake(&self) {
        self.quiet.store(false, Ordering::SeqCst);
    }
}

pub(crate) fn add(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}
