//! The prompt for confirmation before what cannot be undone.

use std::io::{self, BufRead, IsTerminal};

use crate::failure::Failure;
use crate::output::Output;

/// Whether to prompt, by `--yes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Consent {
    /// Prompt on the terminal.
    Ask,
    /// `--yes`: the answer is given.
    Given,
}

impl Consent {
    /// From the flag `--yes`.
    pub(crate) fn from_flag(yes: bool) -> Consent {
        if yes { Consent::Given } else { Consent::Ask }
    }
}

/// Prints the question (which ends with a question mark) and reads the answer; anything but `y` or
/// `yes` is no.
///
/// # Errors
/// With [`Exit::Usage`](crate::exit::Exit::Usage) when there is no terminal and `--yes` was not
/// given.
pub(crate) async fn confirm(
    question: &str,
    consent: Consent,
    output: &Output,
) -> Result<bool, Failure> {
    if consent == Consent::Given {
        return Ok(true);
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return Err(
            Failure::usage(format!("cannot ask without a terminal: {question}"))
                .hint("say so with --yes"),
        );
    }
    output.ask(question);
    // A thread of its own, so that Ctrl-C is still heard.
    let answer = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        io::stdin().lock().read_line(&mut line).map(|_| line)
    });
    let answer = answer.await??;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
