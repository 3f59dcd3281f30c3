//! The error of a command: a message, a hint, and the exit code.

use std::error::Error;
use std::fmt;

use pgshard::pg::cause::causes;

use crate::exit::Exit;

/// A command that failed. Any error becomes one with [`Exit::Failed`]; the constructors set other
/// codes.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    errors: Vec<Box<dyn Error + Send + Sync>>,
    hint: Option<String>,
}

impl Failure {
    /// A failure with this exit code.
    pub(crate) fn new(exit: Exit, error: impl Into<Box<dyn Error + Send + Sync>>) -> Failure {
        Failure {
            exit,
            errors: vec![error.into()],
            hint: None,
        }
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
        Failure {
            exit,
            errors: errors.into_iter().map(Into::into).collect(),
            hint: None,
        }
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
        self.errors.iter().map(|error| causes(&**error))
    }

    /// The same on one line.
    pub(crate) fn one_line(&self) -> String {
        self.chains()
            .map(|chain| chain.join(": "))
            .collect::<Vec<_>>()
            .join("; ")
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
