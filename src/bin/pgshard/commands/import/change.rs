//! What the commands that change a database show alike.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use pgshard::import::{Blocker, ChangeError, ChangeEvent, Refusal};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// After this time sessions that are still waited for are shown again.
const AGAIN: Duration = Duration::from_secs(60);

/// Shows what happens.
pub(super) struct Changes<'o> {
    output: &'o Output,
    /// The processes that were shown last, and when.
    waits: Mutex<Option<(Vec<i32>, Instant)>>,
}

impl Changes<'_> {
    pub(super) fn new(output: &Output) -> Changes<'_> {
        let waits = Mutex::new(None);
        Changes { output, waits }
    }

    pub(super) fn show(&self, event: &ChangeEvent) {
        let output = self.output;
        if output.format() == Format::Json {
            return output.event(event);
        }
        match event {
            ChangeEvent::Step { object, step } => {
                output.note(format_args!("{object}: {}", step.title()));
            }
            ChangeEvent::Filled { object, rows } => {
                output.note(format_args!("{object}: {rows} rows filled"));
            }
            ChangeEvent::Blocked { what, by } => {
                for one in self.to_show(by) {
                    output.note(format_args!("cannot {what} yet: {one}"));
                }
            }
            ChangeEvent::OldSessions { sessions } => {
                for one in self.to_show(sessions) {
                    output.note(format_args!("has the search_path of before: {one}"));
                }
            }
        }
    }

    /// The sessions, unless the same were shown a moment ago.
    fn to_show<'s>(&self, sessions: &'s [Blocker]) -> &'s [Blocker] {
        let pids: Vec<i32> = sessions.iter().map(|session| session.pid).collect();
        let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
        match &*waits {
            Some((shown, at)) if *shown == pids && at.elapsed() < AGAIN => &[],
            _ => {
                *waits = Some((pids, Instant::now()));
                sessions
            }
        }
    }
}

/// The failure of a change, with what to do about it.
pub(super) fn failure(error: ChangeError) -> Failure {
    match error {
        ChangeError::Refused { refusals } => {
            Failure::several(Exit::Refused, refusals.iter().map(Refusal::to_string))
        }
        error @ ChangeError::Blocked { .. } => Failure::from(error)
            .ends(Exit::Partly)
            .hint("end these transactions, then run the same command again: it continues"),
        error @ ChangeError::OldSessions { .. } => Failure::from(error).ends(Exit::Partly).hint(
            "renew them (restart the application; RECONNECT in PgBouncer), then run the same \
                 command again: it continues",
        ),
        error @ ChangeError::Busy { .. } => {
            Failure::from(error).hint("wait for it, or end it with pg_terminate_backend")
        }
        error => {
            let is_usage = error.is_usage();
            let failure = Failure::from(error);
            if is_usage {
                failure.ends(Exit::Usage)
            } else {
                failure
            }
        }
    }
}
