//! What befalls a command while it runs, and how it ended.

use std::fmt;
use std::process::{ExitStatus, Output};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fastrand::Rng;
use pgshard::mover::{AUDIT_FAILPOINTS, FAILPOINTS, ROLLBACK_FAILPOINTS};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use tokio::process::Command;
use tokio::sync::Notify;

/// The lease of all movers, in milliseconds: shorter than what operators have, so that a round is.
pub(crate) const LEASE_MS: &str = "3000";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    None,
    /// It gets a signal after so long.
    Signalled(Duration, Deadly),
    /// It is frozen after so long, for so long.
    Frozen(Duration, Duration),
    /// It is killed at a failpoint, or the step fails there.
    At(&'static str, &'static str),
    /// It stops itself at a failpoint, for so long.
    StopsAt(&'static str, Duration),
}

/// A signal that ends a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deadly {
    Kill,
    Term,
    Int,
}

impl Deadly {
    fn signal(self) -> Signal {
        match self {
            Deadly::Kill => Signal::KILL,
            Deadly::Term => Signal::TERM,
            Deadly::Int => Signal::INT,
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::None => Ok(()),
            Fate::Signalled(after, signal) => {
                write!(f, " [{signal:?} after {} ms]", after.as_millis())
            }
            Fate::Frozen(after, long) => {
                write!(f, " [frozen after {} ms for {long:?}]", after.as_millis())
            }
            Fate::At(failpoint, action) => write!(f, " [{failpoint}={action}]"),
            Fate::StopsAt(failpoint, long) => write!(f, " [{failpoint}=stop for {long:?}]"),
        }
    }
}

impl Fate {
    /// The fate of a command that changes something.
    pub(crate) fn of(rng: &mut Rng) -> Fate {
        let long = Duration::from_millis(rng.u64(500..5000));
        let soon = Duration::from_millis(rng.u64(30..3000));
        match rng.u8(0..100) {
            0..50 => Fate::None,
            50..60 => Fate::Signalled(soon, Deadly::Kill),
            60..64 => Fate::Signalled(soon, Deadly::Term),
            64..69 => Fate::Signalled(soon, Deadly::Int),
            69..75 => Fate::Frozen(soon, long),
            75..88 => Fate::At(failpoint(rng), "kill"),
            88..92 => Fate::At(failpoint(rng), "fail"),
            _ => Fate::StopsAt(failpoint(rng), long),
        }
    }

    /// Its value in the environment.
    pub(crate) fn failpoint(&self) -> Option<String> {
        match self {
            Fate::At(failpoint, action) => Some(format!("{failpoint}={action}")),
            Fate::StopsAt(failpoint, _) => Some(format!("{failpoint}=stop")),
            _ => None,
        }
    }

    /// Does it to a process, and never ends.
    async fn befall(&self, pid: Pid) {
        match self {
            Fate::None | Fate::At(..) => {}
            Fate::Signalled(after, signal) => {
                tokio::time::sleep(*after).await;
                let _ = kill_process(pid, signal.signal());
            }
            Fate::Frozen(after, long) => {
                tokio::time::sleep(*after).await;
                let _ = kill_process(pid, Signal::STOP);
                tokio::time::sleep(*long).await;
                let _ = kill_process(pid, Signal::CONT);
            }
            Fate::StopsAt(_, long) => {
                let mut rest = *long;
                loop {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    if is_stopped(pid) {
                        tokio::time::sleep(rest).await;
                        let _ = kill_process(pid, Signal::CONT);
                        // It stops whenever it passes the place.
                        rest = Duration::ZERO;
                    }
                }
            }
        }
        std::future::pending().await
    }
}

fn failpoint(rng: &mut Rng) -> &'static str {
    let all: Vec<&str> = FAILPOINTS
        .into_iter()
        .chain(ROLLBACK_FAILPOINTS)
        .chain(AUDIT_FAILPOINTS)
        .collect();
    all[rng.usize(0..all.len())]
}

fn is_stopped(pid: Pid) -> bool {
    let stat =
        std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).unwrap_or_default();
    // The state comes after the name, which is in parentheses and may contain anything.
    stat.rsplit_once(") ")
        .is_some_and(|(_, rest)| rest.starts_with('T'))
}

/// How a command ended.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    /// The exit code; a signal's is negative. `None`: it did not end.
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
    /// Whether it was interrupted by Ctrl-C or SIGTERM.
    pub(crate) interrupted: bool,
}

impl Ended {
    fn of(status: ExitStatus, output: &Output, begun: Instant, interrupted: bool) -> Ended {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let code = status
            .code()
            .or_else(|| status.signal().map(|signal| -signal));
        let stderr = super::support::readable(&text(&output.stderr));
        Ended {
            code,
            stdout: text(&output.stdout),
            stderr,
            took: begun.elapsed(),
            interrupted,
        }
    }

    /// What `--json` has printed, as far as it is whole: a command that is killed may have begun a
    /// line.
    pub(crate) fn json(&self) -> Vec<serde_json::Value> {
        self.stdout
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .collect()
    }

    /// What went wrong, in short.
    pub(crate) fn words(&self) -> String {
        let lines: Vec<&str> = self
            .stderr
            .lines()
            .filter(|line| line.contains("error") || line.contains("remedy"))
            .take(4)
            .collect();
        let lines = if lines.is_empty() {
            self.stderr.lines().take(2).collect()
        } else {
            lines
        };
        lines.join(" | ").chars().take(700).collect()
    }
}

/// Longer than anything may take that is not held up: past it a command hangs.
const LONG: Duration = Duration::from_secs(300);

/// Runs a command to its end. `enough` interrupts it.
pub(crate) async fn perform(mut command: Command, fate: Fate, enough: Arc<Notify>) -> Ended {
    let begun = Instant::now();
    let child = command.spawn().expect("the command was built");
    let pid = child
        .id()
        .and_then(|pid| Pid::from_raw(pid.cast_signed()))
        .expect("a process has a number");
    let mut output = std::pin::pin!(child.wait_with_output());
    let mut fate_befalls = std::pin::pin!(fate.befall(pid));
    let mut limit = std::pin::pin!(tokio::time::sleep(LONG));
    let mut interrupted = fate_is_interrupt(&fate);
    loop {
        tokio::select! {
            // First, so that no signal goes to a process that was waited for.
            biased;
            output = &mut output => {
                let output = output.expect("a process can be waited for");
                return Ended::of(output.status, &output, begun, interrupted);
            }
            () = &mut fate_befalls => {}
            () = enough.notified() => {
                interrupted = true;
                let _ = kill_process(pid, Signal::INT);
            }
            () = &mut limit => {
                let (stdout, stderr) = (String::new(), "it did not end".to_owned());
                return Ended { code: None, stdout, stderr, took: begun.elapsed(), interrupted };
            }
        }
    }
}

fn fate_is_interrupt(fate: &Fate) -> bool {
    matches!(fate, Fate::Signalled(_, Deadly::Int | Deadly::Term))
}
