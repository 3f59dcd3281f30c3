//! The shell between us and a server: it notices the end of our process, even by SIGKILL, because
//! the pipe that we hold breaks, and then stops the server and removes its directory.
//!
//! It runs in a process group of its own, so that Ctrl-C in the terminal reaches us and not it.

use std::fs;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Stdio};
use std::time::{Duration, Instant};

use super::error::Error;
use super::privileges::Account;
use super::{given, layout};

const SCRIPT: &str = include_str!("guardian.sh");

/// How often a file that the guardian or the server writes is looked at.
pub(super) const POLL: Duration = Duration::from_millis(5);

/// Removes the directory named on its command line once its stdin ends and no server runs there any
/// more, unless it is to be kept. It tries more than once, since a copy of the template may still
/// be on its way. It waits and tries for half a minute each at most.
const JANITOR: &str = r#"
read -r keep && exit 0
tries=0
while [ $tries -lt 600 ] && ls "$1"/*/data/postmaster.pid >/dev/null 2>&1; do
    sleep 0.05
    tries=$((tries + 1))
done
cd /
while rm -rf "$1"; [ $tries -lt 1200 ] && [ -e "$1" ]; do
    sleep 0.05
    tries=$((tries + 1))
done
"#;

/// A guardian and the pipe to it.
pub(super) struct Guardian {
    child: Child,
    /// `None` once it was stopped.
    orders: Option<ChildStdin>,
    server: PathBuf,
}

/// How a server is stopped.
#[derive(Clone, Copy)]
pub(super) enum Signal {
    /// Fast: clients are cut off, transactions rolled back, all is written.
    Int,
    /// Immediate, as in a crash: the next start recovers.
    Quit,
}

/// How a launch ended.
pub(super) enum LaunchOutcome {
    /// The server takes connections.
    Ready,
    /// It ended; this is what it logged.
    Ended(String),
    /// Neither, in the time given; this is what it logged.
    Silent(String),
}

impl Guardian {
    /// Starts a guardian for the server in `server`, a directory of `account` with a data directory
    /// in it.
    pub(super) fn start(
        account: &Account,
        postgres: &Path,
        server: &Path,
    ) -> Result<Guardian, Error> {
        let (child, orders) = shell(account, SCRIPT, "pgshard-guardian", &[postgres, server])?;
        Ok(Guardian {
            child,
            orders,
            server: server.to_owned(),
        })
    }

    /// Starts one for the directory around the servers, which it removes when they are gone. It
    /// runs as ourselves, because we may have put files there that the servers' user cannot remove.
    pub(super) fn of_directory(directory: &Path) -> Result<Guardian, Error> {
        let (child, orders) = shell(
            &Account::ourselves(),
            JANITOR,
            "pgshard-janitor",
            &[directory],
        )?;
        Ok(Guardian {
            child,
            orders,
            server: directory.to_owned(),
        })
    }

    /// Launches the server and waits until it takes connections, ends, or the time is up.
    pub(super) fn launch(&mut self, timeout: Duration) -> Result<LaunchOutcome, Error> {
        let log_before = given::length(&self.server, layout::LOG);
        // The last run's files are removed, so that they are not taken for this one's. The guardian
        // removes them too, but later. Removing a link does not follow it.
        for name in ["exited", "pid"] {
            let _ = fs::remove_file(self.server.join(name));
        }
        self.order("launch")?;
        let logged = || given::log_from(&self.server, layout::LOG, log_before);
        let started = Instant::now();
        while started.elapsed() < timeout {
            if self.has_exited() {
                return Ok(LaunchOutcome::Ended(logged()));
            }
            if self.is_ready() {
                return Ok(LaunchOutcome::Ready);
            }
            std::thread::sleep(POLL);
        }
        Ok(LaunchOutcome::Silent(logged()))
    }

    /// Sends the server a signal.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), Error> {
        self.order(match signal {
            Signal::Int => "signal INT",
            Signal::Quit => "signal QUIT",
        })
    }

    /// Has the directory kept at the end.
    pub(super) fn keep(&mut self) -> Result<(), Error> {
        self.order("keep")
    }

    /// Whether the last launched server has ended.
    pub(super) fn has_exited(&self) -> bool {
        given::exists(&self.server, "exited").unwrap_or(false)
    }

    /// The server's process, while it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        let text = (!self.has_exited()).then(|| given::read(&self.server, "pid"))?;
        text.ok()?.trim().parse().ok()
    }

    /// Makes the guardian stop the server and end, without waiting for it.
    pub(super) fn release(&mut self) {
        self.orders = None;
    }

    /// Waits for a released guardian to end, which means that the server is stopped and its
    /// directory gone.
    fn wait(&mut self) {
        // PostgreSQL itself kills, after five seconds, what does not stop immediately.
        const WAIT: Duration = Duration::from_secs(70);
        let started = Instant::now();
        while started.elapsed() < WAIT {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(POLL),
                Ok(Some(_)) | Err(_) => return,
            }
        }
        tracing::warn!(directory = %self.server.display(), "the guardian of this directory does \
            not end");
    }

    fn order(&mut self, order: &str) -> Result<(), Error> {
        let gone = || std::io::Error::from(std::io::ErrorKind::BrokenPipe);
        let sent = self
            .orders
            .as_mut()
            .ok_or_else(gone)
            .and_then(|pipe| writeln!(pipe, "{order}"));
        sent.map_err(Error::io("reach the guardian of", &self.server))
    }

    /// Whether the process that was launched last accepts connections, by the last line of its pid
    /// file.
    fn is_ready(&self) -> bool {
        let Some(pid) = self.pid() else { return false };
        is_ready(&self.server, pid)
    }
}

fn shell(
    account: &Account,
    script: &str,
    name: &str,
    paths: &[&Path],
) -> Result<(Child, Option<ChildStdin>), Error> {
    let shell = Path::new("/bin/sh");
    let mut command = account.command(shell);
    command.arg("-c").arg(script).arg(name).args(paths);
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = command.spawn().map_err(|source| Error::Spawn {
        program: shell.to_owned(),
        source,
    })?;
    let orders = child.stdin.take();
    Ok((child, orders))
}

impl Drop for Guardian {
    fn drop(&mut self) {
        self.release();
        self.wait();
    }
}

/// Whether the server with this process, in this directory, accepts connections by its
/// `postmaster.pid`.
pub(super) fn is_ready(server: &Path, pid: u32) -> bool {
    let text = given::read(server, layout::POSTMASTER).unwrap_or_default();
    let mut lines = text.lines();
    lines
        .next()
        .is_some_and(|first| first.trim() == pid.to_string())
        && lines
            .nth(6)
            .is_some_and(|status| matches!(status.trim(), "ready" | "standby"))
}
