//! One [`Server`].

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::binaries::Binaries;
use super::error::Error;
use super::guardian::{Guardian, Launched, POLL, Signal};
use super::privileges::{Account, tail};
use super::settings::{self, ServerOptions};
use super::{layout, port, template};
use crate::map::HostName;

/// How long a server may take to start, crash recovery included, on a machine that is busy with other tests.
pub(super) const START_TIMEOUT: Duration = Duration::from_secs(60);
/// How long a server may take to stop.
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// How a server stops, PostgreSQL's shutdown modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopMode {
    /// Clients are cut off, open transactions rolled back, everything is written.
    Fast,
    /// As in a crash: every process ends at once, and the next start recovers from the WAL.
    Immediate,
}

/// One throwaway PostgreSQL server of a [`Cluster`](super::Cluster). It runs until it is stopped or the cluster is
/// dropped.
///
/// Its methods block: a start or a stop takes about a tenth of a second, at most a minute.
pub struct Server {
    name: HostName,
    port: u16,
    directory: PathBuf,
    /// The lock also makes starts and stops from several threads wait for each other.
    guardian: Mutex<Guardian>,
}

impl Server {
    /// Makes a server in `cluster`, a directory of `account`, and starts it.
    pub(super) fn create(
        name: HostName,
        cluster: &Path,
        binaries: &Binaries,
        account: &Account,
        options: &ServerOptions,
    ) -> Result<Server, Error> {
        let directory = cluster.join(name.as_str());
        fs::create_dir(&directory).map_err(Error::io("create", &directory))?;
        account.own(&directory)?;
        let data = layout::data(&directory);
        template::lay(binaries, account, &data)?;
        let mut guardian = Guardian::start(account, &binaries.program("postgres"), &directory)?;
        for _ in 0..port::ATTEMPTS {
            let Some(port) = port::free() else { break };
            let conf = data.join(settings::FILE);
            let text = options.text(port, layout::socket_directory(&directory));
            fs::write(&conf, text).map_err(Error::io("write", &conf))?;
            account.own(&conf)?;
            match guardian.launch(START_TIMEOUT)? {
                Launched::Ready => return Ok(Server { name, port, directory, guardian: Mutex::new(guardian) }),
                Launched::Ended(log) if port::was_taken(&log) => {}
                Launched::Ended(log) | Launched::Silent(log) => {
                    return Err(Error::Start { name, directory, log: tail(&log) });
                }
            }
        }
        Err(Error::NoPort { name, attempts: port::ATTEMPTS })
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
    pub fn url(&self) -> String {
        app_url(self.port)
    }

    /// The same database as the superuser `postgres`.
    pub fn superuser_url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/app", self.port)
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

    /// Starts the server again, on the same port, and waits until it takes connections. Does nothing if it runs.
    ///
    /// # Errors
    /// When it ends instead, or does not take connections within a minute.
    pub fn start(&self) -> Result<(), Error> {
        let mut guardian = self.guardian();
        if guardian.pid().is_some() {
            return Ok(());
        }
        let failed =
            |log: &str| Error::Start { name: self.name.clone(), directory: self.directory.clone(), log: tail(log) };
        let started = Instant::now();
        loop {
            match guardian.launch(START_TIMEOUT)? {
                Launched::Ready => return Ok(()),
                // Somebody tries whether the port is free; it will be again in a moment.
                Launched::Ended(log) if port::was_taken(&log) && started.elapsed() < START_TIMEOUT => {
                    std::thread::sleep(Duration::from_millis(50));
                }
                Launched::Ended(log) | Launched::Silent(log) => return Err(failed(&log)),
            }
        }
    }

    /// Stops the server and waits until it has ended. Does nothing if it is stopped.
    ///
    /// # Errors
    /// When it has not ended after a minute: a [`StopMode::Fast`] stop waits for replication clients to take
    /// everything.
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
                return Err(Error::Stop { name: self.name.clone(), directory: self.directory.clone(), waited_s });
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

    /// Leaves the directory behind when the server goes, for somebody to look into.
    ///
    /// # Errors
    /// When the guardian is gone.
    pub fn keep(&self) -> Result<(), Error> {
        self.guardian().keep()
    }

    /// Tells the server to stop and vanish, without waiting for it.
    pub(super) fn release(&mut self) {
        self.guardian().release();
    }

    fn guardian(&self) -> MutexGuard<'_, Guardian> {
        // A guardian is as good after a panic as before: its state is the files.
        self.guardian.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The URL for applications of the server on this port.
pub(super) fn app_url(port: u16) -> String {
    format!("postgres://app@127.0.0.1:{port}/app")
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({} on port {} in {})", self.name, self.port, self.directory.display())
    }
}
