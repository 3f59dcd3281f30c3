//! Servers that outlive the command that started them: `pgshard dev up`, `down` and `status`.
//!
//! Below the directory they are given: `servers/db1` and so on, each with a marker file without
//! which nothing is stopped or removed, and `servers/db1.passfile` with its passwords;
//! `pgshard.toml` and `migrations/`, which belong to the developer once they are written.
//!
//! `servers` is ours, and no other user creates anything there. `servers/db1` was given to the user
//! that the servers run as: see [`given`].

use std::ffi::OsStr;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::binaries::Binaries;
use super::cache;
use super::cluster::{ClusterOptions, host_name};
use super::config_text::config_text;
use super::error::Error;
use super::passwords::{self, Passwords};
use super::privileges::{Account, tail};
use super::server::{START_TIMEOUT, url};
use super::settings::{self, Durability, ServerOptions};
use super::{given, guardian, layout, port, template};
use crate::map::HostName;
use crate::pg::{ConnectOptions, Password};
use crate::shard::ShardCount;

/// How long a server may take to end after an immediate stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// The file that marks a directory as ours to stop and remove.
const MARKER: &str = "made-by-pgshard-dev-up";

/// The settings, below a server's directory.
const SETTINGS: &str = "data/pgshard.conf";

/// The first migration of a developer who has none, to see how they look.
const SAMPLE_MIGRATION: &str = "\
-- Runs once in every shard; {shard} stands for the shard's schema.
-- A user's id is the key: id % N is the shard. It is there before the shard is known, so it comes \
from outside (a
-- ticket, say: `pgshard tickets --help`). An id of next_id() would name the shard it was made in, \
and as a key another.
CREATE TABLE {shard}.users (
    id         bigint PRIMARY KEY,
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

/// The request of `pgshard dev up`.
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
    /// `hosts` servers for `shards` shards in this directory. They run the first choice of
    /// programs.
    pub fn new(directory: PathBuf, hosts: usize, shards: ShardCount) -> UpOptions {
        UpOptions {
            directory,
            hosts,
            shards,
            binaries: None,
        }
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
    /// The servers' names and the URLs for applications, `db1` first. A URL holds no password: it
    /// names the file that does, `?passfile=…`.
    pub hosts: Vec<(HostName, String)>,
    /// Those of them that let in every user of this machine, as any role: an older pgshard made
    /// them.
    pub open: Vec<HostName>,
    /// Those of them that the config does not name, since it was kept as it was.
    pub absent: Vec<HostName>,
    /// Those of them that require a password, while the config that was kept names none for them.
    pub unnamed: Vec<HostName>,
    /// Those of them that were made now: they hold nothing yet.
    pub made: Vec<HostName>,
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

/// Starts the servers that do not run yet, and writes a config and a sample migration where there
/// are none. Doing it again changes nothing. They run until [`down`], or until the machine goes
/// down; their data is durable.
///
/// A server that the config in the directory names gets the port that it has there, so that a
/// config that was kept over [`down`] fits again. Blocks for up to a second a server.
///
/// # Errors
/// When the numbers are out of bounds, a server cannot be made or started (those before it run on),
/// or a file cannot be written.
pub fn up(options: &UpOptions) -> Result<Up, Error> {
    up_with(options, &|_| {})
}

/// The same, and `on_running` is called for each server once it runs.
///
/// # Errors
/// As [`up`].
pub fn up_with(options: &UpOptions, on_running: &dyn Fn(&HostName)) -> Result<Up, Error> {
    let max = ClusterOptions::HOSTS_MAX.min(usize::from(options.shards.get()));
    if !(1..=max).contains(&options.hosts) {
        return Err(Error::HostCount {
            hosts: options.hosts,
            shards: options.shards.get(),
            max,
        });
    }
    let account = Account::for_servers()?;
    let servers = options.directory.join("servers");
    let made = fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(&servers);
    made.map_err(Error::io("create", &servers))?;
    // Programs that run in / need absolute paths.
    let top =
        fs::canonicalize(&options.directory).map_err(Error::io("find", &options.directory))?;
    let servers = top.join("servers");
    check_ours(&servers)?;
    account.check_reach(&servers)?;
    let _lock = cache::lock(&servers.join("lock"))?;
    let config = top.join("pgshard.toml");
    let (mut hosts, mut open, mut unnamed, mut absent) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut made = Vec::new();
    for number in 1..=options.hosts {
        let server = DetachedServer::at(
            servers.join(host_name(number).as_str()),
            host_name(number),
            &account,
        );
        if !server.is_whole()? {
            made.push(server.name.clone());
        }
        let port = server.ensure(options.binaries.as_ref(), &config)?;
        on_running(&server.name);
        let passfile = server.passfile()?;
        if config.exists() && configured(&config, &server.name).is_none() {
            absent.push(server.name.clone());
        }
        if passfile.is_none() {
            open.push(server.name.clone());
        } else if configured(&config, &server.name)
            .is_some_and(|host| host.port == Some(port) && !host.has_password)
        {
            unnamed.push(server.name.clone());
        }
        hosts.push((server.name, url("app", port, "app", passfile.as_deref())));
    }
    let migrations = top.join("migrations");
    if !migrations.exists() {
        fs::create_dir(&migrations).map_err(Error::io("create", &migrations))?;
        write_new(&migrations.join("0001_tables.sql"), SAMPLE_MIGRATION)?;
    }
    let config_state = if config.exists() {
        ConfigState::Kept
    } else {
        write_new(
            &config,
            &config_text(options.shards, &hosts, Some("migrations")),
        )?;
        ConfigState::Written
    };
    Ok(Up {
        config,
        config_state,
        hosts,
        open,
        absent,
        unnamed,
        made,
    })
}

/// Writes a new file. If anything has its name, even a link, that is an error.
fn write_new(path: &Path, text: &str) -> Result<(), Error> {
    let written = fs::File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(Error::io("write", path))
}

/// Refuses a folder of servers in which another user could replace our files.
fn check_ours(servers: &Path) -> Result<(), Error> {
    let us = rustix::process::geteuid().as_raw();
    let link = fs::symlink_metadata(servers).map_err(Error::io("look at", servers))?;
    let facts = fs::metadata(servers).map_err(Error::io("look at", servers))?;
    if link.uid() == us && facts.uid() == us {
        Ok(())
    } else {
        Err(Error::Foreign {
            path: servers.to_owned(),
        })
    }
}

/// Stops the servers that [`up`] made in this directory and removes them with their data. The
/// config and the migrations stay. Returns the names of the servers removed: none if there were
/// none.
///
/// # Errors
/// When a server cannot be stopped or removed; those before it are gone.
pub fn down(directory: &Path) -> Result<Vec<HostName>, Error> {
    down_with(directory, &|_| ())
}

/// Like [`down`]; `on_removed` is called for each server once it is removed.
///
/// # Errors
/// As [`down`].
pub fn down_with(directory: &Path, on_removed: &dyn Fn(&HostName)) -> Result<Vec<HostName>, Error> {
    let account = Account::for_servers()?;
    let found = find_servers(directory, &account)?;
    let Some(servers) = found
        .first()
        .and_then(|server| server.directory.parent())
        .map(Path::to_owned)
    else {
        return Ok(Vec::new());
    };
    let _lock = cache::lock(&servers.join("lock"))?;
    let mut removed = Vec::new();
    for server in found {
        server.stop()?;
        // Removing follows no links, not even one that is created in the meantime. The marker is
        // removed last, so that a removal that is interrupted can be repeated.
        let data = layout::data(&server.directory);
        match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", &data)(error));
            }
            _ => {}
        }
        fs::remove_dir_all(&server.directory).map_err(Error::io("remove", &server.directory))?;
        let passfile = server.passfile_place();
        match fs::remove_file(&passfile) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                return Err(Error::io("remove", &passfile)(error));
            }
            _ => {}
        }
        on_removed(&server.name);
        removed.push(server.name);
    }
    // Stays if there is something else in it.
    let _ = fs::remove_file(servers.join("lock"));
    let _ = fs::remove_dir(&servers);
    Ok(removed)
}

/// The servers that [`up`] made in this directory, in the order of their names; none if there are
/// none.
///
/// # Errors
/// When they cannot be read.
pub fn status(directory: &Path) -> Result<Vec<ServerStatus>, Error> {
    let account = Account::for_servers()?;
    let mut states = Vec::new();
    for server in find_servers(directory, &account)? {
        if server.is_whole()? {
            states.push(server.status()?);
        }
    }
    Ok(states)
}

/// One server below the directory.
struct DetachedServer<'a> {
    name: HostName,
    directory: PathBuf,
    account: &'a Account,
}

/// The directories with our marker, `db2` before `db10`.
fn find_servers<'a>(
    directory: &Path,
    account: &'a Account,
) -> Result<Vec<DetachedServer<'a>>, Error> {
    let servers = match fs::canonicalize(directory.join("servers")) {
        Ok(servers) => servers,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(Error::io("find", &directory.join("servers"))(error)),
    };
    check_ours(&servers)?;
    let mut found = Vec::new();
    for entry in fs::read_dir(&servers).map_err(Error::io("read", &servers))? {
        let path = entry.map_err(Error::io("read", &servers))?.path();
        let name = path
            .file_name()
            .and_then(OsStr::to_str)
            .and_then(|name| HostName::new(name).ok());
        if let Some(name) = name.filter(|_| path.join(MARKER).is_file()) {
            found.push(DetachedServer::at(path, name, account));
        }
    }
    found.sort_by_key(|server| (server.name.as_str().len(), server.name.clone()));
    Ok(found)
}

impl<'a> DetachedServer<'a> {
    fn at(directory: PathBuf, name: HostName, account: &'a Account) -> DetachedServer<'a> {
        DetachedServer {
            name,
            directory,
            account,
        }
    }

    fn data(&self) -> PathBuf {
        layout::data(&self.directory)
    }

    /// Where its passwords are, unless it lets in every user. Next to its directory, which is not
    /// ours.
    fn passfile_place(&self) -> PathBuf {
        self.directory
            .with_file_name(format!("{}.passfile", self.name))
    }

    /// That file, or `None` if it lets everyone in, as servers of an older pgshard do.
    fn passfile(&self) -> Result<Option<PathBuf>, Error> {
        let place = self.passfile_place();
        if place.is_file() {
            return Ok(Some(place));
        }
        if passwords::asks(&self.directory)? {
            return Err(Error::PasswordsGone {
                name: self.name.clone(),
                path: place,
            });
        }
        Ok(None)
    }

    /// Whether it has settings. Without them it was left by an interrupted `up`, and the next one
    /// replaces it.
    fn is_whole(&self) -> Result<bool, Error> {
        given::exists(&self.directory, SETTINGS)
            .map_err(Error::io("read", &self.data().join(settings::FILE)))
    }

    /// The text of the file at this path below its directory.
    fn text(&self, way: &str) -> Result<String, Error> {
        given::read(&self.directory, way).map_err(Error::io("read", &self.directory.join(way)))
    }

    /// Makes the server if it is not there, starts it if it does not run, and gives its port.
    fn ensure(&self, binaries: Option<&Binaries>, config: &Path) -> Result<u16, Error> {
        if self.is_whole()? {
            let port = self.port()?;
            if self.running().is_none() {
                match self.start(&self.binaries()?)? {
                    Start::Runs => {}
                    Start::PortTaken => {
                        return Err(Error::PortTaken {
                            name: self.name.clone(),
                            port,
                            config: config.to_owned(),
                        });
                    }
                }
            }
            return Ok(port);
        }
        let chosen = binaries
            .cloned()
            .map_or_else(Binaries::first, Ok)?
            .within_reach(self.account)?;
        let io = |action| Error::io(action, &self.directory);
        // What an interrupted run left has no settings yet, and so never was a server.
        if self.directory.join(MARKER).is_file() {
            fs::remove_dir_all(&self.directory).map_err(io("remove"))?;
        }
        fs::create_dir(&self.directory).map_err(io("create"))?;
        let text = "`pgshard dev down` stops the server in this directory and removes it.\n";
        write_new(&self.directory.join(MARKER), text)?;
        self.account.give(&self.directory)?;
        template::lay(&chosen, self.account, &self.data())?;
        let passwords = Passwords::random()?;
        passwords.write(&self.passfile_place())?;
        passwords.set(&chosen, self.account, &self.directory)?;
        if let Some(port) = configured(config, &self.name).and_then(|host| host.port) {
            self.configure(port)?;
            return match self.start(&chosen)? {
                Start::Runs => Ok(port),
                Start::PortTaken => Err(Error::PortTaken {
                    name: self.name.clone(),
                    port,
                    config: config.to_owned(),
                }),
            };
        }
        for _ in 0..port::ATTEMPTS {
            let Some(port) = port::free() else { break };
            self.configure(port)?;
            if let Start::Runs = self.start(&chosen)? {
                return Ok(port);
            }
        }
        Err(Error::NoPort {
            name: self.name.clone(),
            attempts: port::ATTEMPTS,
        })
    }

    fn configure(&self, port: u16) -> Result<(), Error> {
        let options = ServerOptions {
            durability: Durability::Durable,
            shared_buffers_mib: 128,
            ..ServerOptions::default()
        };
        let path = self.data().join(settings::FILE);
        let text = options.text(port, layout::socket_directory(&self.directory));
        self.account.write(&path, &text)
    }

    fn start(&self, binaries: &Binaries) -> Result<Start, Error> {
        let log = layout::log(&self.directory);
        let before = given::length(&self.directory, layout::LOG);
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
        let outcome = self
            .account
            .run(&binaries.program("pg_ctl"), &arguments, "");
        let logged = given::log_from(&self.directory, layout::LOG, before);
        match outcome {
            Ok(_) => Ok(Start::Runs),
            Err(Error::Command { .. }) if port::was_taken(&logged) => Ok(Start::PortTaken),
            Err(Error::Command { .. }) => Err(Error::Start {
                name: self.name.clone(),
                directory: self.directory.clone(),
                log: tail(&logged),
            }),
            Err(error) => Err(error),
        }
    }

    fn stop(&self) -> Result<(), Error> {
        if self.alive().is_none() {
            return Ok(());
        }
        // Its data is about to be removed: there is nothing to write.
        let pg_ctl = match self.binaries() {
            Ok(binaries) => binaries.program("pg_ctl"),
            // Its programs are elsewhere, or gone, and it runs all the same.
            Err(
                Error::NoBinaries { .. } | Error::NoSuchMajor { .. } | Error::NotBinaries { .. },
            ) => {
                return self.quit();
            }
            Err(error) => return Err(error),
        };
        let data = self.data();
        let arguments: [&OsStr; 6] = [
            "stop".as_ref(),
            "-w".as_ref(),
            "-m".as_ref(),
            "immediate".as_ref(),
            "-D".as_ref(),
            data.as_ref(),
        ];
        match self.account.run(&pg_ctl, &arguments, "") {
            // It may have ended by itself in the meantime.
            Err(Error::Command { .. }) if self.alive().is_none() => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// What `pg_ctl stop -m immediate` does, without it: the signal, as the user that the server
    /// runs as, who may end no other user's processes; then waits.
    fn quit(&self) -> Result<(), Error> {
        let Some(pid) = self.alive() else {
            return Ok(());
        };
        let pid = pid.to_string();
        let arguments: [&OsStr; 4] = [
            "-c".as_ref(),
            "kill -QUIT \"$1\"".as_ref(),
            "sh".as_ref(),
            pid.as_ref(),
        ];
        let sent = self.account.run(Path::new("/bin/sh"), &arguments, "");
        let until = Instant::now() + STOP_TIMEOUT;
        while self.alive().is_some() {
            if Instant::now() > until {
                sent?;
                let (name, directory) = (self.name.clone(), self.directory.clone());
                return Err(Error::Stop {
                    name,
                    directory,
                    waited_s: STOP_TIMEOUT.as_secs(),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// The programs of the version that made the data.
    fn binaries(&self) -> Result<Binaries, Error> {
        Binaries::of_major(self.major()?)?.within_reach(self.account)
    }

    fn major(&self) -> Result<u32, Error> {
        let (path, text) = (
            self.data().join("PG_VERSION"),
            self.text("data/PG_VERSION")?,
        );
        let odd = || std::io::Error::from(ErrorKind::InvalidData);
        text.trim()
            .parse()
            .map_err(|_| Error::io("read a version from", &path)(odd()))
    }

    fn port(&self) -> Result<u16, Error> {
        let (path, text) = (self.data().join(settings::FILE), self.text(SETTINGS)?);
        let port = text.lines().find_map(|line| {
            line.strip_prefix("port = '")?
                .strip_suffix('\'')?
                .parse()
                .ok()
        });
        let odd = || std::io::Error::from(ErrorKind::InvalidData);
        port.ok_or_else(|| Error::io("read a port from", &path)(odd()))
    }

    /// The process that its pid file names, if there is such a process.
    fn pid(&self) -> Option<u32> {
        let text = given::read(&self.directory, layout::POSTMASTER).ok()?;
        let number: i32 = text.lines().next()?.trim().parse().ok()?;
        let process = rustix::process::Pid::from_raw(number)?;
        match rustix::process::test_kill_process(process) {
            Ok(()) | Err(rustix::io::Errno::PERM) => u32::try_from(number).ok(),
            Err(_) => None,
        }
    }

    /// The server's process. A pid file may be left from before the machine went down, and another
    /// process have its number by now: it counts only while there is a listener on the port.
    fn alive(&self) -> Option<u32> {
        self.pid()
            .filter(|_| self.port().is_ok_and(|port| !port::is_free(port)))
    }

    /// The same, once it takes connections.
    fn running(&self) -> Option<u32> {
        self.alive()
            .filter(|pid| guardian::is_ready(&self.directory, *pid))
    }

    fn status(self) -> Result<ServerStatus, Error> {
        let port = self.port()?;
        let state = match (self.running(), self.alive()) {
            (Some(pid), _) => ServerState::Running { pid },
            (None, Some(pid)) => ServerState::Between { pid },
            (None, None) => ServerState::Stopped,
        };
        let passfile = match self.passfile() {
            // The URL names what is missing.
            Err(Error::PasswordsGone { path, .. }) => Some(path),
            found => found?,
        };
        let (major, url) = (self.major()?, url("app", port, "app", passfile.as_deref()));
        Ok(ServerStatus {
            state,
            port,
            url,
            major,
            name: self.name,
            directory: self.directory,
        })
    }
}

/// How a start ended.
enum Start {
    /// The server runs.
    Runs,
    /// Another process has its port.
    PortTaken,
}

/// A host's entry in a config.
struct HostEntry {
    /// Its port, if it is on this machine.
    port: Option<u16>,
    /// Whether it has a place of the password.
    has_password: bool,
}

/// The config's entry of this host, if there is a config that can be read and names it.
fn configured(config: &Path, name: &HostName) -> Option<HostEntry> {
    let text = fs::read_to_string(config).ok()?;
    let document = toml::de::DeTable::parse(&text).ok()?.into_inner();
    let host = document
        .get("hosts")?
        .get_ref()
        .get(name.as_str())?
        .get_ref();
    let options = ConnectOptions::parse(host.get("url")?.get_ref().as_str()?).ok()?;
    let beside = ["password_env", "password_file", "password_command"]
        .iter()
        .any(|key| host.get(*key).is_some());
    let has_password = beside || *options.password() != Password::Standard;
    let address = options.addresses().into_iter().next()?;
    let port = address
        .strip_prefix("127.0.0.1:")
        .and_then(|port| port.parse().ok());
    Some(HostEntry { port, has_password })
}
