//! One [`Server`].

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::binaries::Binaries;
use super::error::Error;
use super::guardian::{Guardian, LaunchOutcome, POLL, Signal};
use super::passwords::Passwords;
use super::privileges::{Account, tail};
use super::settings::{self, ServerOptions};
use super::{layout, port, template};
use crate::map::HostName;
use crate::pg::put_key;

/// How long a server may take to start, crash recovery included, on a machine that is busy with
/// other tests.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// How a server stops, PostgreSQL's shutdown modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Clients are cut off, open transactions rolled back, everything is written.
    Fast,
    /// As in a crash: every process ends immediately, and the next start recovers from the WAL.
    Immediate,
}

/// One throwaway PostgreSQL server of a [`Cluster`](super::Cluster). It runs until it is stopped or
/// the cluster is dropped.
///
/// Its methods block: a start or a stop takes about a tenth of a second, at most a minute.
pub struct Server {
    name: HostName,
    port: u16,
    directory: PathBuf,
    /// Where the passwords are, if it requires one.
    passfile: Option<PathBuf>,
    /// The lock also makes starts and stops from several threads wait for each other.
    guardian: Mutex<Guardian>,
}

impl Server {
    /// Creates a server in `cluster`, a directory of ours that `account` can pass through, and
    /// starts it. It begins as a copy of a data directory, if there is one. If there is a file of
    /// passwords, it requires them.
    pub(super) fn create(
        name: HostName,
        cluster: &Path,
        binaries: &Binaries,
        account: &Account,
        options: &ServerOptions,
        (copy_of, passwords): (Option<&Path>, Option<(&Passwords, &Path)>),
    ) -> Result<Server, Error> {
        let directory = cluster.join(name.as_str());
        fs::create_dir(&directory).map_err(Error::io("create", &directory))?;
        account.give(&directory)?;
        let data = layout::data(&directory);
        match copy_of {
            Some(prepared) => template::copy(account, prepared, &data)?,
            None => template::lay(binaries, account, &data)?,
        }
        if let Some((passwords, _)) = passwords {
            passwords.set(binaries, account, &directory)?;
        }
        let passfile = passwords.map(|(_, passfile)| passfile.to_owned());
        let mut guardian = Guardian::start(account, &binaries.program("postgres"), &directory)?;
        for _ in 0..port::ATTEMPTS {
            let Some(port) = port::free() else { break };
            let conf = data.join(settings::FILE);
            let text = options.text(port, layout::socket_directory(&directory));
            account.write(&conf, &text)?;
            match guardian.launch(START_TIMEOUT)? {
                LaunchOutcome::Ready => {
                    return Ok(Server {
                        name,
                        port,
                        directory,
                        passfile,
                        guardian: Mutex::new(guardian),
                    });
                }
                LaunchOutcome::Ended(log) if port::was_taken(&log) => {}
                LaunchOutcome::Ended(log) | LaunchOutcome::Silent(log) => {
                    return Err(Error::Start {
                        name,
                        directory,
                        log: tail(&log),
                    });
                }
            }
        }
        Err(Error::NoPort {
            name,
            attempts: port::ATTEMPTS,
        })
    }

    /// Its name: `db1`, `db2`, …
    pub fn name(&self) -> &HostName {
        &self.name
    }

    /// Its port on 127.0.0.1; it stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where an application connects: as `app`, no superuser, to the database `app` that it owns.
    /// With [`Access::Password`](super::Access::Password) it ends with `?passfile=…`, and holds no
    /// password itself.
    pub fn url(&self) -> String {
        self.url_of("app")
    }

    /// The same for another database of the server. Its name is letters, digits and `_`.
    pub fn url_of(&self, database: &str) -> String {
        url("app", self.port, database, self.passfile.as_deref())
    }

    /// The same database as the superuser `postgres`.
    pub fn superuser_url(&self) -> String {
        self.superuser_url_of("app")
    }

    /// Another database of the server as the superuser.
    pub fn superuser_url_of(&self, database: &str) -> String {
        url("postgres", self.port, database, self.passfile.as_deref())
    }

    /// The directory that holds everything of the server, `data`, `log` and the unix socket.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// The server's data directory.
    pub fn data_directory(&self) -> PathBuf {
        layout::data(&self.directory)
    }

    /// The server's log.
    pub fn log(&self) -> PathBuf {
        layout::log(&self.directory)
    }

    /// The process number of the postmaster, or `None` while the server is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.guardian().pid()
    }

    /// Starts the server again, on the same port, and waits until it takes connections. Does
    /// nothing if it runs.
    ///
    /// # Errors
    /// When it ends instead, or does not take connections within a minute.
    pub fn start(&self) -> Result<(), Error> {
        let mut guardian = self.guardian();
        if guardian.pid().is_some() {
            return Ok(());
        }
        let failed = |log: &str| Error::Start {
            name: self.name.clone(),
            directory: self.directory.clone(),
            log: tail(log),
        };
        let started = Instant::now();
        loop {
            match guardian.launch(START_TIMEOUT)? {
                LaunchOutcome::Ready => return Ok(()),
                // A process that tests whether the port is free has it for a moment.
                LaunchOutcome::Ended(log)
                    if port::was_taken(&log) && started.elapsed() < START_TIMEOUT =>
                {
                    std::thread::sleep(Duration::from_millis(50));
                }
                LaunchOutcome::Ended(log) | LaunchOutcome::Silent(log) => return Err(failed(&log)),
            }
        }
    }

    /// Stops the server and waits until it has ended. Does nothing if it is stopped.
    ///
    /// # Errors
    /// When it has not ended after a minute: a [`StopMode::Fast`] stop waits for replication
    /// clients to take everything.
    pub fn stop(&self, mode: StopMode) -> Result<(), Error> {
        let mut guardian = self.guardian();
        if guardian.has_exited() {
            return Ok(());
        }
        guardian.signal(match mode {
            StopMode::Fast => Signal::Int,
            StopMode::Immediate => Signal::Quit,
        })?;
        let started = Instant::now();
        while !guardian.has_exited() {
            if started.elapsed() > STOP_TIMEOUT {
                let waited_s = STOP_TIMEOUT.as_secs();
                return Err(Error::Stop {
                    name: self.name.clone(),
                    directory: self.directory.clone(),
                    waited_s,
                });
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    /// [`Server::stop`], then [`Server::start`].
    ///
    /// # Errors
    /// As theirs.
    pub fn restart(&self, mode: StopMode) -> Result<(), Error> {
        self.stop(mode)?;
        self.start()
    }

    /// Keeps the directory when the server is dropped, for inspection.
    ///
    /// # Errors
    /// When the guardian is gone.
    pub fn keep(&self) -> Result<(), Error> {
        self.guardian().keep()
    }

    /// Stops the server and removes its directory, without waiting for it.
    pub(super) fn release(&mut self) {
        self.guardian().release();
    }

    fn guardian(&self) -> MutexGuard<'_, Guardian> {
        // A guardian is as good after a panic as before: its state is the files.
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The URL of a role of the server on this port, with its password in this file.
pub(super) fn url(role: &str, port: u16, database: &str, passfile: Option<&Path>) -> String {
    let url = format!("postgres://{role}@127.0.0.1:{port}/{database}");
    match passfile.map(Path::as_os_str).map(OsStr::to_string_lossy) {
        Some(passfile) => put_key(&url, "passfile", &passfile),
        None => url,
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Server({} on port {} in {})",
            self.name,
            self.port,
            self.directory.display()
        )
    }
}
