//! The cause of an error, shared by the error's clones.

use std::error::Error;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The cause of an [`Error`](super::Error): the error that it dereferences to, shared by all
/// clones.
///
/// It is no `std::error::Error` itself, so that `source()` gives the cause and not this.
pub struct Cause<E: ?Sized = tokio_postgres::Error>(Arc<E>);

impl<E: Error> Cause<E> {
    pub(super) fn new(error: E) -> Cause<E> {
        Cause(Arc::new(error))
    }
}

impl Cause<dyn Error + Send + Sync> {
    pub(crate) fn of_any(error: impl Error + Send + Sync + 'static) -> Self {
        Cause(Arc::new(error))
    }
}

impl<E: ?Sized> Clone for Cause<E> {
    fn clone(&self) -> Self {
        Cause(self.0.clone())
    }
}

impl<E: ?Sized> Deref for Cause<E> {
    type Target = E;

    fn deref(&self) -> &E {
        &self.0
    }
}

impl<E: fmt::Debug + ?Sized> fmt::Debug for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl<E: fmt::Display + ?Sized> fmt::Display for Cause<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<tokio_postgres::Error> for Cause {
    fn from(error: tokio_postgres::Error) -> Cause {
        Cause::new(error)
    }
}
