//! An operator: one command after the other, some of which still run during the next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use fastrand::Rng;
use pgshard::config::Config;
use tokio::process::Command;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::case::Case;
use super::deeds::{Deed, Scene, is_endless};
use super::fates::{Ended, Fate, LEASE_MS, perform};
use super::state;
use super::support::World;

/// What all operators of a round share.
pub(crate) struct Shared {
    pub(crate) begun: Instant,
    story: Mutex<Vec<String>>,
    /// The files of migrations, in order.
    pub(crate) files: Mutex<Vec<MigrationFile>>,
    /// When each backfill was begun, the first one first.
    pub(crate) backfills: Mutex<Vec<f64>>,
    /// The last command that an operator has begun.
    last: Mutex<Vec<String>>,
    /// What no promise of pgshard's allows.
    pub(crate) faults: Mutex<Vec<String>>,
}

/// What a file of migrations does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Does {
    /// It writes its name into a table of the shard.
    Notes,
    /// The same, and it takes a while.
    NotesSlowly,
    /// The same, and it alters a table in which the application writes.
    Alters,
    /// It makes an index, outside of transactions.
    Indexes,
    /// It writes its name into a table of the host.
    Once,
}

#[derive(Clone, Debug)]
pub(crate) struct MigrationFile {
    pub(crate) name: String,
    pub(crate) does: Does,
}

pub(crate) fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(crate) fn new() -> Shared {
        Shared {
            begun: Instant::now(),
            story: Mutex::default(),
            files: Mutex::default(),
            backfills: Mutex::default(),
            last: Mutex::default(),
            faults: Mutex::default(),
        }
    }

    pub(crate) fn now(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    pub(crate) fn tell(&self, what: impl Into<String>) {
        let line = format!("{:>6.1} {}", self.now(), what.into());
        if std::env::var_os("PGSHARD_OPERATORS_TELL").is_some() {
            eprintln!("{line}");
        }
        locked(&self.story).push(line);
    }

    pub(crate) fn fault(&self, what: String) {
        self.tell(format!("FAULT {what}"));
        locked(&self.faults).push(what);
    }

    pub(crate) fn story(&self) -> String {
        locked(&self.story).join("\n")
    }

    /// Writes the next file of migrations into the folder, whole.
    fn new_migration(&self, rng: &mut Rng, world: &World) -> String {
        let mut files = locked(&self.files);
        let all = [
            Does::Notes,
            Does::NotesSlowly,
            Does::Alters,
            Does::Indexes,
            Does::Once,
        ];
        let does = all[rng.usize(0..all.len())];
        let number = files.len() + 2;
        let name = format!("{number:04}_{}", format!("{does:?}").to_lowercase());
        let note = format!("INSERT INTO {{shard}}.ran (migration) VALUES ('{name}');\n");
        let text = match does {
            Does::Notes => note,
            Does::NotesSlowly => format!("SELECT pg_sleep(0.2);\n{note}"),
            Does::Alters => {
                format!("ALTER TABLE {{shard}}.users ADD COLUMN c{number} text;\n{note}")
            }
            Does::Indexes => {
                let sql = format!("CREATE INDEX CONCURRENTLY i{number} ON {{shard}}.users (name)");
                format!("-- pgshard: no-transaction\n{sql}\n")
            }
            Does::Once => {
                let note = format!("INSERT INTO extra.ran (migration) VALUES ('{name}');\n");
                let table = "CREATE TABLE IF NOT EXISTS extra.ran (migration text);";
                format!(
                    "-- pgshard: once-per-host\nCREATE SCHEMA IF NOT EXISTS extra;\n{table}\n{note}"
                )
            }
        };
        let written = world.servers.write(&format!("{name}.new"), &text);
        let folder = world.servers.directory().join("migrations");
        std::fs::rename(written, folder.join(format!("{name}.sql"))).expect("the folder is ours");
        files.push(MigrationFile {
            name: name.clone(),
            does,
        });
        name
    }
}

/// A command that was begun.
pub(crate) struct Begun {
    pub(crate) operator: usize,
    pub(crate) number: usize,
    pub(crate) args: Vec<String>,
    pub(crate) fate: Fate,
    /// The latest epoch of each shard before it.
    pub(crate) epochs: BTreeMap<u16, i32>,
    /// The shards' files of migrations that there were before it.
    pub(crate) files: Vec<String>,
    /// The hosts of its config.
    pub(crate) hosts: Vec<String>,
}

impl Begun {
    pub(crate) fn line(&self) -> String {
        let words: Vec<String> = self
            .args
            .iter()
            .map(|arg| {
                if arg.contains(' ') {
                    format!("'{arg}'")
                } else {
                    arg.clone()
                }
            })
            .collect();
        format!(
            "op{}.{} pgshard {}{}",
            self.operator,
            self.number,
            words.join(" "),
            self.fate
        )
    }

    pub(crate) fn has(&self, word: &str) -> bool {
        self.args.iter().any(|arg| arg == word)
    }

    /// The first words.
    pub(crate) fn verb(&self) -> (&str, &str) {
        let word = |at: usize| self.args.get(at).map_or("", String::as_str);
        (word(0), word(1))
    }
}

/// A command that still runs during the next ones.
pub(crate) struct Running {
    pub(crate) begun: Begun,
    pub(crate) enough: Arc<Notify>,
    pub(crate) ended: JoinHandle<Ended>,
}

pub(crate) struct Operator<'a> {
    pub(crate) number: usize,
    pub(crate) case: &'a Case,
    pub(crate) world: &'a World,
    pub(crate) shared: &'a Shared,
    pub(crate) config: PathBuf,
    /// The configs of all operators.
    pub(crate) configs: &'a [PathBuf],
}

/// The length of a move's ID.
pub(crate) const ID: usize = 36;

/// How long an operator waits for a command before starting another.
const PATIENCE: Duration = Duration::from_secs(8);

impl Operator<'_> {
    /// Does all deeds of the seed. Returns what is still running.
    pub(crate) async fn work(&self) -> Vec<Running> {
        let mut rng = self.case.rng(self.number);
        let mut running = Vec::new();
        for number in 0..self.case.deeds {
            tokio::time::sleep(Duration::from_millis(rng.u64(0..300))).await;
            self.deed(&mut rng, number, &mut running).await;
        }
        running
    }

    async fn deed(&self, rng: &mut Rng, number: usize, running: &mut Vec<Running>) {
        let moves = state::moves(self.world).await;
        let hosts = hosts(&self.config);
        let urls: Vec<String> = self
            .world
            .servers
            .servers()
            .iter()
            .map(|server| server.url())
            .collect();
        let others: Vec<usize> = (0..self.configs.len())
            .filter(|at| self.configs[*at] != self.config)
            .collect();
        let last_migration = locked(&self.shared.files)
            .last()
            .map_or_else(|| "0001_tables".to_owned(), |file| file.name.clone());
        let mut owned: BTreeMap<String, BTreeSet<u16>> = BTreeMap::new();
        for row in state::rows(self.world)
            .await
            .into_iter()
            .filter(state::Row::is_owner)
        {
            owned
                .entry(format!("db{}", row.host + 1))
                .or_default()
                .insert(row.shard);
        }
        let last = locked(&self.shared.last).clone();
        let scene = Scene {
            owned: &owned,
            in_hand: last.iter().find(|arg| arg.len() == ID).map(String::as_str),
            shards: self.case.shards,
            hosts: &hosts,
            urls: &urls,
            moves: &moves,
            others: &others,
            backfills: locked(&self.shared.backfills).len(),
            last_migration: &last_migration,
        };
        let deed = match rng.u8(0..8) {
            // Two have the same idea.
            0 if !last.is_empty() => Deed::Command {
                args: last.clone(),
                fate: Fate::of(rng),
            },
            _ => scene.choose(rng),
        };
        match deed {
            Deed::Command { args, fate } => {
                let patience = Duration::from_millis(rng.u64(500..4000));
                let command = self.begin(number, args, fate, hosts).await;
                self.wait(command, patience, running).await;
            }
            Deed::NewMigration => {
                let name = self.shared.new_migration(rng, self.world);
                self.shared.tell(format!(
                    "op{}.{number} writes the migration {name}",
                    self.number
                ));
            }
            Deed::WrittenByHand { host, open_ms } => {
                self.shared.tell(format!(
                    "op{}.{number} writes db{} by hand",
                    self.number,
                    host + 1
                ));
                write_by_hand(
                    &self.config,
                    host,
                    &urls[host],
                    Duration::from_millis(open_ms),
                )
                .await;
            }
            Deed::TakeConfigOf { operator } => {
                self.shared.tell(format!(
                    "op{}.{number} takes the config of op{operator}",
                    self.number
                ));
                let text = std::fs::read_to_string(&self.configs[operator]).expect("it has one");
                replace(&self.config, &text);
            }
        }
    }

    /// Starts a command.
    async fn begin(
        &self,
        number: usize,
        args: Vec<String>,
        fate: Fate,
        hosts: Vec<String>,
    ) -> Running {
        let epochs = state::epochs(&state::rows(self.world).await);
        let files = locked(&self.shared.files).clone();
        let files = files
            .into_iter()
            .filter(|file| file.does != Does::Once)
            .map(|file| file.name + ".sql")
            .collect();
        note_backfill(&args, self.shared);
        locked(&self.shared.last).clone_from(&args);
        let command = command(self.world, &self.config, &args, &fate);
        let begun = Begun {
            operator: self.number,
            number,
            args,
            fate,
            epochs,
            files,
            hosts,
        };
        self.shared.tell(begun.line());
        let enough = Arc::<Notify>::default();
        let ended = tokio::spawn(perform(command, begun.fate.clone(), enough.clone()));
        Running {
            begun,
            enough,
            ended,
        }
    }

    /// Waits for a command, if it may be expected to end by itself.
    async fn wait(&self, mut command: Running, patience: Duration, running: &mut Vec<Running>) {
        let patience = if is_endless(&command.begun.args) {
            patience
        } else {
            PATIENCE
        };
        match tokio::time::timeout(patience, &mut command.ended).await {
            Ok(ended) => {
                let ended = ended.expect("waiting for a command does not panic");
                super::judge::command(self.world, self.shared, &command.begun, &ended).await;
            }
            Err(_) => {
                self.shared.tell(format!(
                    "op{}.{} goes on",
                    self.number, command.begun.number
                ));
                running.push(command);
            }
        }
    }
}

/// The process of a command with this config.
pub(crate) fn command(world: &World, config: &Path, args: &[String], fate: &Fate) -> Command {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let failpoint = fate.failpoint();
    let mut environment = vec![("PGSHARD_LEASE_MS", LEASE_MS)];
    environment.extend(
        failpoint
            .as_deref()
            .map(|failpoint| ("PGSHARD_FAILPOINT", failpoint)),
    );
    let mut command = world.command(&args, &environment);
    command.env("PGSHARD_CONFIG", config);
    command
}

/// The hosts that a config names.
pub(crate) fn hosts(config: &Path) -> Vec<String> {
    let config = Config::load(config).expect("nobody writes a config that is wrong");
    config.hosts.keys().map(ToString::to_string).collect()
}

/// The judge needs to know which rows were there when a backfill began.
fn note_backfill(args: &[String], shared: &Shared) {
    let name = args
        .iter()
        .position(|arg| arg == "--name")
        .and_then(|at| args.get(at + 1));
    let number = name
        .and_then(|name| name.strip_prefix("marks"))
        .and_then(|number| number.parse::<usize>().ok());
    let mut begun = locked(&shared.backfills);
    if number.is_some_and(|number| number > begun.len()) {
        begun.push(shared.now());
    }
}

/// An editor that reads the file, and saves it when its user has written a host into it.
async fn write_by_hand(config: &Path, host: usize, url: &str, open: Duration) {
    let text = std::fs::read_to_string(config).expect("the config is there");
    tokio::time::sleep(open).await;
    let section = format!("\n[hosts.db{}]\nurl = \"{url}\"\n", host + 1);
    if !text.contains(&section) {
        replace(
            config,
            &text.replacen("\n[map]", &format!("{section}\n[map]"), 1),
        );
    }
}

/// Saves a file as an editor does.
pub(crate) fn replace(path: &Path, text: &str) {
    let beside = path.with_extension("saved");
    std::fs::write(&beside, text).expect("the folder is ours");
    std::fs::rename(&beside, path).expect("the folder is ours");
}
