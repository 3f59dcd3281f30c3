//! The parameters of statements that a task sends: owned, or encoded for the types that the server
//! named.

use std::sync::Arc;

use tokio_postgres::types::ToSql;

use crate::router::Bound;

/// The parameters of one shard's statement.
pub(super) trait Params: Send + Sync {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)>;
}

/// Makes the parameters of a job, by its place in the batch, when its turn comes.
pub(super) type Make = Arc<dyn Fn(usize) -> Box<dyn Params> + Send + Sync>;

/// Where the parameters of a batch come from.
#[derive(Clone)]
pub(super) enum Source<'a> {
    Owned(Make),
    /// They cannot leave the caller's future, and are encoded there once the types are known.
    Borrowed(&'a [&'a (dyn ToSql + Sync)]),
}

impl<'a> Source<'a> {
    pub(super) fn borrowed(params: &'a [&'a (dyn ToSql + Sync)]) -> Source<'a> {
        match Bound::new(params, &[]) {
            Some(none) => Source::Owned(make(none)),
            None => Source::Borrowed(params),
        }
    }
}

/// Makes the same parameters for every job.
pub(super) fn make(bound: Bound) -> Make {
    Arc::new(move |_| Box::new(bound.clone()))
}

impl Params for Bound {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.values()
    }
}
