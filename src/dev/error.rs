//! [`Error`].

use std::io;
use std::path::{Path, PathBuf};

use crate::map::HostName;

/// Why a local server cannot be started, stopped or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no PostgreSQL server on this machine.
    #[error(
        "no PostgreSQL server programs (postgres, initdb, pg_ctl) were found; looked in {}; \
         install PostgreSQL 13 or newer, or set PGSHARD_PG_BIN to the folder that holds them (in \
         pgshard's repository: script/setup)",
        looked.join(", ")
    )]
    NoBinaries {
        /// Every place that was looked in.
        looked: Vec<String>,
    },
    /// `PGSHARD_PG_BIN` names a folder without PostgreSQL's programs.
    #[error(
        "PGSHARD_PG_BIN names {}, where PostgreSQL's programs (postgres, initdb, pg_ctl) are not: \
            correct it, or unset it, and they are looked for",
        directory.display()
    )]
    NotBinaries {
        /// The folder.
        directory: PathBuf,
    },
    /// There is PostgreSQL, but not the requested major version.
    #[error(
        "PostgreSQL {major} was not found, only {}; looked in {}; run script/setup, or set \
            PGSHARD_PG_BIN to its folder of programs",
        found.join(", "),
        looked.join(", ")
    )]
    NoSuchMajor {
        /// The requested major version.
        major: u32,
        /// What there is, `15 in /usr/lib/postgresql/15/bin`.
        found: Vec<String>,
        /// Every place that was looked in.
        looked: Vec<String>,
    },
    /// PostgreSQL refuses to run as root, and there is no user to become.
    #[error(
        "PostgreSQL does not run as root, and neither the user postgres nor nobody is in \
            /etc/passwd"
    )]
    NoUser,
    /// A directory is out of reach for the user that the servers run as.
    #[error(
        "the user {user}, which PostgreSQL runs as, cannot enter {}, and so cannot reach {}; \
            choose a place that every user can reach, such as one below /var/tmp",
        blocked.display(),
        path.display()
    )]
    OutOfReach {
        /// The user.
        user: String,
        /// What it must reach.
        path: PathBuf,
        /// The first directory on the way that it cannot enter.
        blocked: PathBuf,
    },
    /// The folder for templates belongs to another user.
    #[error("{} is not a directory of ours; remove it, or set TMPDIR to a directory of \
        yours", path.display())]
    NotOurs {
        /// The folder.
        path: PathBuf,
    },
    /// The folder of the servers belongs to another user, who could redirect it.
    #[error(
        "{} belongs to another user; run pgshard as that user, or choose another directory",
        path.display()
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// A server requires passwords, and the file that had them is gone.
    #[error(
        "the server {name} asks for passwords, and {}, which had them, is gone; `pgshard dev down` \
            and `dev up` make new servers, without the data of these",
        path.display()
    )]
    PasswordsGone {
        /// The server.
        name: HostName,
        /// The file.
        path: PathBuf,
    },
    /// A file or directory cannot be used.
    #[error("cannot {action} {}", path.display())]
    Io {
        /// `create`, `read`, …
        action: &'static str,
        /// Which.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// One of PostgreSQL's programs cannot be run.
    #[error("cannot run {}", program.display())]
    Spawn {
        /// The program.
        program: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// One of PostgreSQL's programs failed.
    #[error("{} failed: {output}", program.display())]
    Command {
        /// The program.
        program: PathBuf,
        /// The end of what it printed.
        output: String,
    },
    /// Another process held a lock for too long.
    #[error("{} has been locked by another process for {waited_s} s", path.display())]
    Locked {
        /// The lock's file.
        path: PathBuf,
        /// How long we waited.
        waited_s: u64,
    },
    /// A server ended instead of starting, or did not start in time.
    #[error("the server {name} in {} did not start: {log}", directory.display())]
    Start {
        /// Its name.
        name: HostName,
        /// Its directory; `log` in it has more.
        directory: PathBuf,
        /// The end of its log.
        log: String,
    },
    /// A server did not stop in time.
    #[error(
        "the server {name} in {} did not stop within {waited_s} s; StopMode::Immediate does not \
            wait",
        directory.display()
    )]
    Stop {
        /// Its name.
        name: HostName,
        /// Its directory.
        directory: PathBuf,
        /// How long we waited.
        waited_s: u64,
    },
    /// Every port that was tried is taken.
    #[error("no free port was found for the server {name} after {attempts} attempts")]
    NoPort {
        /// The server.
        name: HostName,
        /// How many ports were tried.
        attempts: u32,
    },
    /// The port that the config gives the server is taken.
    #[error(
        "port {port}, which {} gives the server {name}, is taken by another process; stop that, or \
            change the port there",
        config.display()
    )]
    PortTaken {
        /// The server.
        name: HostName,
        /// The port.
        port: u16,
        /// The config.
        config: PathBuf,
    },
    /// There are more hosts than shards, or more than are allowed.
    #[error(
        "{hosts} hosts for {shards} shards: there must be 1 to {max} hosts, and no more of them \
            than shards"
    )]
    HostCount {
        /// Requested hosts.
        hosts: usize,
        /// Requested shards.
        shards: u16,
        /// The most hosts.
        max: usize,
    },
}

impl Error {
    pub(super) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io {
            action,
            path: path.to_owned(),
            source,
        }
    }
}
