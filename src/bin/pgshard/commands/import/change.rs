//! What the commands that change a database show alike.

use pgshard::import::{ChangeError, ChangeEvent, Refusal};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

/// Shows what happens.
pub(super) fn show(event: &ChangeEvent, output: &Output) {
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
            for one in by {
                output.note(format_args!("cannot {what} yet: {one}"));
            }
        }
        ChangeEvent::OldSessions { sessions } => {
            for one in sessions {
                output.note(format_args!("has the search_path of before: {one}"));
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
