//! [`Stage`]: the lines that the demo prints while it runs.

use std::time::Instant;

use crate::output::Output;

/// Reports what has been reached, with the time since the start.
pub(super) struct Stage<'a> {
    output: &'a Output,
    started: Instant,
}

impl<'a> Stage<'a> {
    pub(super) fn new(output: &'a Output, started: Instant) -> Stage<'a> {
        Stage { output, started }
    }

    pub(super) fn say(&self, what: impl std::fmt::Display) {
        self.output.note(format_args!(
            "{:>5.1} s  {what}",
            self.started.elapsed().as_secs_f64()
        ));
    }
}
