//! Servers that outlive the command that started them: `pgshard dev up`, `down` and `status`.
//!
//! Below the directory they are given: `servers/db1` and so on, each with a marker file without which nothing is
//! stopped or removed; `pgshard.toml` and `migrations/`, which belong to the developer once they are written.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::binaries::Binaries;
use super::cache;
use super::cluster::{ClusterOptions, host_name};
use super::config_text::config_text;
use super::error::Error;
use super::privileges::{Account, tail};
use super::server::{START_TIMEOUT, app_url};
use super::settings::{self, Durability, ServerOptions};
use super::{guardian, layout, port, template};
use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::shard::ShardCount;

/// The file that says that a directory is ours to stop and remove.
const MARKER: &str = "made-by-pgshard-dev-up";

/// The first migration of a developer who has none, to see how they look.
const SAMPLE_MIGRATION: &str = "\
-- Runs once in every shard; {shard} stands for the shard's schema.
CREATE TABLE {shard}.users (
    id         bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    name       text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE {shard}.photos (
    id         bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id    bigint NOT NULL REFERENCES {shard}.users,
    title      text NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX photos_user_id ON {shard}.photos (user_id, id);
";

/// What `pgshard dev up` is asked for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct UpOptions {
    /// Where everything is kept; created if it is missing.
    pub directory: PathBuf,
    /// How many servers: 1 to [`ClusterOptions::HOSTS_MAX`], and no more than shards.
    pub hosts: usize,
    /// N, for a config that is not there yet.
    pub shards: ShardCount,
    /// The programs of new servers; `None` for the first choice of this machine.
    pub binaries: Option<Binaries>,
}

impl UpOptions {
    /// `hosts` servers for `shards` shards in this directory. They run the first choice of programs.
    pub fn new(directory: PathBuf, hosts: usize, shards: ShardCount) -> UpOptions {
        UpOptions { directory, hosts, shards, binaries: None }
    }
}

setters!(UpOptions: binaries: Option<Binaries>);

/// Running servers and their config.
#[derive(Clone, Debug)]
pub struct Up {
    /// The `pgshard.toml`.
    pub config: PathBuf,
    /// Whether it was written now.
    pub config_state: ConfigState,
    /// The servers' names and the URLs for applications, `db1` first.
    pub hosts: Vec<(HostName, String)>,
}

/// What [`up`] did about the config.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigState {
    /// There was none: it is new.
    Written,
    /// There was one: it is as it was. It may name other hosts or another number of shards.
    Kept,
}

/// One server that [`up`] made.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// Its name.
    pub name: HostName,
    /// Whether it runs.
    pub state: ServerState,
    /// Its port on 127.0.0.1.
    pub port: u16,
    /// Where applications connect.
    pub url: String,
    /// PostgreSQL's major version.
    pub major: u32,
    /// Its directory, with `data` and `log` in it.
    pub directory: PathBuf,
}

/// Whether a server runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerState {
    /// It takes connections.
    Running {
        /// The postmaster's process number.
        pid: u32,
    },
    /// It is about to run, or to end: it takes no connections.
    Between {
        /// The postmaster's process number.
        pid: u32,
    },
    /// It does not run.
    Stopped,
}

/// Starts the servers that do not run yet, and writes a config and a sample migration where there are none. Doing it
/// again changes nothing. They run until [`down`], or until the machine goes down; their data is durable.
///
/// A server that the config in the directory names gets the port that it has there, so that a config that was kept over
/// [`down`] fits again. Blocks for up to a second a server.
///
/// # Errors
/// When the numbers are out of bounds, a server cannot be made or started (those before it run on), or a file cannot be
/// written.
pub fn up(options: &UpOptions) -> Result<Up, Error> {
    let max = ClusterOptions::HOSTS_MAX.min(usize::from(options.shards.get()));
    if !(1..=max).contains(&options.hosts) {
        return Err(Error::HostCount { hosts: options.hosts, shards: options.shards.get(), max });
    }
    let account = Account::for_servers()?;
    let servers = options.directory.join("servers");
    fs::create_dir_all(&servers).map_err(Error::io("create", &servers))?;
    // Programs that run in / need absolute paths.
    let top = fs::canonicalize(&options.directory).map_err(Error::io("find", &options.directory))?;
    let servers = top.join("servers");
    account.check_reach(&servers)?;
    let _lock = cache::lock(&servers.join("lock"))?;
    let config = top.join("pgshard.toml");
    let mut hosts = Vec::new();
    for number in 1..=options.hosts {
        let server = Detached::at(servers.join(host_name(number).as_str()), host_name(number), &account);
        let port = server.ensure(options.binaries.as_ref(), &config)?;
        hosts.push((server.name, app_url(port)));
    }
    let migrations = top.join("migrations");
    if !migrations.exists() {
        fs::create_dir(&migrations).map_err(Error::io("create", &migrations))?;
        let sample = migrations.join("0001_tables.sql");
        fs::write(&sample, SAMPLE_MIGRATION).map_err(Error::io("write", &sample))?;
    }
    let config_state = if config.exists() {
        ConfigState::Kept
    } else {
        let text = config_text(options.shards, &hosts, Some("migrations"));
        fs::write(&config, text).map_err(Error::io("write", &config))?;
        ConfigState::Written
    };
    Ok(Up { config, config_state, hosts })
}

/// Stops the servers that [`up`] made in this directory and removes them with their data. The config and the migrations
/// stay. Gives the names of the servers removed: none if there were none.
///
/// # Errors
/// When a server cannot be stopped or removed; those before it are gone.
pub fn down(directory: &Path) -> Result<Vec<HostName>, Error> {
    let account = Account::for_servers()?;
    let found = found(directory, &account)?;
    let Some(servers) = found.first().and_then(|server| server.directory.parent()).map(Path::to_owned) else {
        return Ok(Vec::new());
    };
    let _lock = cache::lock(&servers.join("lock"))?;
    let mut removed = Vec::new();
    for server in found {
        server.stop()?;
        // The marker goes last, so that a removal that is cut short can be done again.
        let data = layout::data(&server.directory);
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::io("remove", &data)(error));
            }
            _ => {}
        }
        fs::remove_dir_all(&server.directory).map_err(Error::io("remove", &server.directory))?;
        removed.push(server.name);
    }
    // Stays if there is something else in it.
    let _ = fs::remove_file(servers.join("lock"));
    let _ = fs::remove_dir(&servers);
    Ok(removed)
}

/// The servers that [`up`] made in this directory, in the order of their names; none if there are none.
///
/// # Errors
/// When they cannot be read.
pub fn status(directory: &Path) -> Result<Vec<ServerStatus>, Error> {
    let account = Account::for_servers()?;
    // Without settings it is what an interrupted `up` left, which the next one makes anew.
    let whole = |server: &Detached<'_>| server.data().join(settings::FILE).is_file();
    found(directory, &account)?.into_iter().filter(whole).map(Detached::status).collect()
}

/// One server below the directory.
struct Detached<'a> {
    name: HostName,
    directory: PathBuf,
    account: &'a Account,
}

/// The directories with our marker, `db2` before `db10`.
fn found<'a>(directory: &Path, account: &'a Account) -> Result<Vec<Detached<'a>>, Error> {
    let servers = match fs::canonicalize(directory.join("servers")) {
        Ok(servers) => servers,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("find", &directory.join("servers"))(error)),
    };
    let mut found = Vec::new();
    for entry in fs::read_dir(&servers).map_err(Error::io("read", &servers))? {
        let path = entry.map_err(Error::io("read", &servers))?.path();
        let name = path.file_name().and_then(OsStr::to_str).and_then(|name| HostName::new(name).ok());
        if let Some(name) = name.filter(|_| path.join(MARKER).is_file()) {
            found.push(Detached::at(path, name, account));
        }
    }
    found.sort_by_key(|server| (server.name.as_str().len(), server.name.clone()));
    Ok(found)
}

impl<'a> Detached<'a> {
    fn at(directory: PathBuf, name: HostName, account: &'a Account) -> Detached<'a> {
        Detached { name, directory, account }
    }

    fn data(&self) -> PathBuf {
        layout::data(&self.directory)
    }

    /// Makes the server if it is not there, starts it if it does not run, and gives its port.
    fn ensure(&self, binaries: Option<&Binaries>, config: &Path) -> Result<u16, Error> {
        if self.data().join(settings::FILE).is_file() {
            let port = self.port()?;
            if self.running().is_none() {
                match self.start(&self.binaries()?)? {
                    Start::Runs => {}
                    Start::PortTaken => {
                        return Err(Error::PortTaken { name: self.name.clone(), port, config: config.to_owned() });
                    }
                }
            }
            return Ok(port);
        }
        let chosen = binaries.cloned().map_or_else(Binaries::first, Ok)?.within_reach(self.account)?;
        let io = |action| Error::io(action, &self.directory);
        // What an interrupted run left has no settings yet, and so never was a server.
        if self.directory.join(MARKER).is_file() {
            fs::remove_dir_all(&self.directory).map_err(io("remove"))?;
        }
        fs::create_dir(&self.directory).map_err(io("create"))?;
        self.account.own(&self.directory)?;
        let marker = self.directory.join(MARKER);
        let text = "`pgshard dev down` stops the server in this directory and removes it.\n";
        fs::write(&marker, text).map_err(Error::io("write", &marker))?;
        template::lay(&chosen, self.account, &self.data())?;
        if let Some(port) = configured_port(config, &self.name) {
            self.configure(port)?;
            return match self.start(&chosen)? {
                Start::Runs => Ok(port),
                Start::PortTaken => Err(Error::PortTaken { name: self.name.clone(), port, config: config.to_owned() }),
            };
        }
        for _ in 0..port::ATTEMPTS {
            let Some(port) = port::free() else { break };
            self.configure(port)?;
            if let Start::Runs = self.start(&chosen)? {
                return Ok(port);
            }
        }
        Err(Error::NoPort { name: self.name.clone(), attempts: port::ATTEMPTS })
    }

    fn configure(&self, port: u16) -> Result<(), Error> {
        let options =
            ServerOptions { durability: Durability::Durable, shared_buffers_mib: 128, ..ServerOptions::default() };
        let path = self.data().join(settings::FILE);
        let text = options.text(port, layout::socket_directory(&self.directory));
        fs::write(&path, text).map_err(Error::io("write", &path))?;
        self.account.own(&path)
    }

    fn start(&self, binaries: &Binaries) -> Result<Start, Error> {
        let log = layout::log(&self.directory);
        let before = fs::read(&log).map_or(0, |log| log.len());
        let timeout = START_TIMEOUT.as_secs().to_string();
        let data = self.data();
        let arguments: [&OsStr; 8] = [
            "start".as_ref(),
            "-w".as_ref(),
            "-t".as_ref(),
            timeout.as_ref(),
            "-D".as_ref(),
            data.as_ref(),
            "-l".as_ref(),
            log.as_ref(),
        ];
        let outcome = self.account.run(&binaries.program("pg_ctl"), &arguments, "");
        let logged = fs::read(&log).unwrap_or_default();
        let logged = String::from_utf8_lossy(logged.get(before..).unwrap_or_default()).into_owned();
        match outcome {
            Ok(_) => Ok(Start::Runs),
            Err(Error::Command { .. }) if port::was_taken(&logged) => Ok(Start::PortTaken),
            Err(Error::Command { .. }) => {
                Err(Error::Start { name: self.name.clone(), directory: self.directory.clone(), log: tail(&logged) })
            }
            Err(error) => Err(error),
        }
    }

    fn stop(&self) -> Result<(), Error> {
        if self.alive().is_none() {
            return Ok(());
        }
        // Its data is about to be removed: there is nothing to write.
        let (data, pg_ctl) = (self.data(), self.binaries()?.program("pg_ctl"));
        let arguments: [&OsStr; 6] =
            ["stop".as_ref(), "-w".as_ref(), "-m".as_ref(), "immediate".as_ref(), "-D".as_ref(), data.as_ref()];
        match self.account.run(&pg_ctl, &arguments, "") {
            // It may have ended by itself meanwhile.
            Err(Error::Command { .. }) if self.alive().is_none() => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// The programs of the version that made the data.
    fn binaries(&self) -> Result<Binaries, Error> {
        Binaries::of_major(self.major()?)?.within_reach(self.account)
    }

    fn major(&self) -> Result<u32, Error> {
        let path = self.data().join("PG_VERSION");
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let odd = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        text.trim().parse().map_err(|_| Error::io("read a version from", &path)(odd()))
    }

    fn port(&self) -> Result<u16, Error> {
        let path = self.data().join(settings::FILE);
        let text = fs::read_to_string(&path).map_err(Error::io("read", &path))?;
        let port = text.lines().find_map(|line| line.strip_prefix("port = '")?.strip_suffix('\'')?.parse().ok());
        let odd = || std::io::Error::from(std::io::ErrorKind::InvalidData);
        port.ok_or_else(|| Error::io("read a port from", &path)(odd()))
    }

    /// The process that its pid file names, if there is such a process.
    fn pid(&self) -> Option<u32> {
        let text = fs::read_to_string(self.data().join("postmaster.pid")).ok()?;
        let number: i32 = text.lines().next()?.trim().parse().ok()?;
        let process = rustix::process::Pid::from_raw(number)?;
        match rustix::process::test_kill_process(process) {
            Ok(()) | Err(rustix::io::Errno::PERM) => u32::try_from(number).ok(),
            Err(_) => None,
        }
    }

    /// The server's process. A pid file may be left from before the machine went down, and its number be somebody
    /// else's by now: only with somebody listening on the port it is believed.
    fn alive(&self) -> Option<u32> {
        self.pid().filter(|_| self.port().is_ok_and(|port| !port::is_free(port)))
    }

    /// The same, once it takes connections.
    fn running(&self) -> Option<u32> {
        self.alive().filter(|pid| guardian::is_ready(&self.data(), *pid))
    }

    fn status(self) -> Result<ServerStatus, Error> {
        let port = self.port()?;
        let state = match (self.running(), self.alive()) {
            (Some(pid), _) => ServerState::Running { pid },
            (None, Some(pid)) => ServerState::Between { pid },
            (None, None) => ServerState::Stopped,
        };
        let major = self.major()?;
        Ok(ServerStatus { state, port, url: app_url(port), major, name: self.name, directory: self.directory })
    }
}

/// How a start ended.
enum Start {
    /// The server runs.
    Runs,
    /// Somebody else has its port.
    PortTaken,
}

/// The port that the config gives this host on this machine, if there is a config that can be read and names it.
fn configured_port(config: &Path, name: &HostName) -> Option<u16> {
    let text = fs::read_to_string(config).ok()?;
    let document = toml::de::DeTable::parse(&text).ok()?.into_inner();
    let url = document.get("hosts")?.get_ref().get(name.as_str())?.get_ref().get("url")?.get_ref().as_str()?;
    let address = ConnectOptions::parse(url).ok()?.addresses().into_iter().next()?;
    address.strip_prefix("127.0.0.1:")?.parse().ok()
}
