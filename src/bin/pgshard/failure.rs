//! Why a command stopped: what to say, what to do about it, and the exit code.

use std::error::Error;
use std::fmt;

use tokio_postgres::error::DbError;

use crate::exit::Exit;

/// A command that did not end well. Any error becomes one with [`Exit::Failed`]; the constructors say more.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    errors: Vec<Box<dyn Error + Send + Sync>>,
    hint: Option<String>,
}

impl Failure {
    /// A failure with this exit code.
    pub(crate) fn new(exit: Exit, error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure { exit, errors: vec![error.into()], hint: None }
    }

    /// The command line or the config is wrong.
    pub(crate) fn usage(error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure::new(Exit::Usage, error)
    }

    /// Several mistakes, all of them to be shown.
    pub(crate) fn several<E: Into<Box<dyn Error + Send + Sync>>>(
        exit: Exit,
        errors: impl IntoIterator<Item = E>,
    ) -> Failure {
        Failure { exit, errors: errors.into_iter().map(Into::into).collect(), hint: None }
    }

    /// The same failure with what the operator can do.
    #[must_use]
    pub(crate) fn hint(mut self, hint: impl fmt::Display) -> Failure {
        self.hint = Some(hint.to_string());
        self
    }

    /// The same failure with another exit code.
    #[must_use]
    pub(crate) fn ends(mut self, exit: Exit) -> Failure {
        self.exit = exit;
        self
    }

    /// How the command ends.
    pub(crate) fn exit(&self) -> Exit {
        self.exit
    }

    /// What went wrong, each with its chain of causes: `cannot read x`, `no such file`.
    pub(crate) fn chains(&self) -> impl Iterator<Item = Vec<String>> {
        self.errors.iter().map(|error| chain(&**error))
    }

    /// The same on one line.
    pub(crate) fn words(&self) -> String {
        self.chains().map(|chain| chain.join(": ")).collect::<Vec<_>>().join("; ")
    }

    /// What the operator can do.
    pub(crate) fn advice(&self) -> Option<&str> {
        self.hint.as_deref()
    }
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::new(Exit::Failed, error)
    }
}

/// What an error says and what its causes say, each once.
pub(crate) fn chain(error: &(dyn Error + 'static)) -> Vec<String> {
    let mut told: Vec<String> = Vec::new();
    for words in std::iter::successors(Some(error), |error| cause(*error)).map(words) {
        // Some errors say their cause themselves.
        if !told.last().is_some_and(|last| last.ends_with(&words)) {
            told.push(words);
        }
    }
    told
}

/// The server's own answer, where `tokio_postgres` says only "db error".
fn answer<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a DbError> {
    error.downcast_ref::<tokio_postgres::Error>().and_then(tokio_postgres::Error::as_db_error)
}

fn words(error: &(dyn Error + 'static)) -> String {
    answer(error).map_or_else(|| error.to_string(), pgshard::pg::state::words)
}

/// The cause that `words` has not told yet.
fn cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a (dyn Error + 'static)> {
    if answer(error).is_some() { None } else { error.source() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{what}")]
    struct Layer {
        what: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn a_cause_is_told_once() {
        let layer = |what, source: Option<Layer>| Layer { what, source: source.map(Box::new) };
        let error = layer("no answer: closed", Some(layer("closed", Some(layer("os error 104", None)))));
        assert_eq!(chain(&error), ["no answer: closed", "os error 104"]);
    }
}
