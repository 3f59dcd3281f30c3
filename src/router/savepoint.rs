//! Which savepoint of a transaction a statement belongs to.
//!
//! Invariant: a statement that runs while a savepoint is open runs within it, so that nothing is
//! undone after a caller saw it succeed. A savepoint that is given up before its end leaves nothing
//! to commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

tokio::task_local! {
    /// The savepoints that the current future runs in. They belong to the future, whatever thread
    /// it is on. A task that it spawns is in none.
    static WITHIN: Arc<Scope>;
}

#[derive(Debug)]
struct Scope {
    /// The transaction.
    key: usize,
    number: u32,
    /// The savepoint around it, of the same transaction or of another shard's.
    outer: Option<Arc<Scope>>,
}

/// A savepoint that was set. Dropped before it is [`closed`](Savepoint::closed), its transaction
/// can only be rolled back.
pub(super) struct Savepoint<'a> {
    broken: Option<&'a AtomicBool>,
    key: usize,
    number: u32,
}

impl<'a> Savepoint<'a> {
    /// `key` identifies the transaction while it runs.
    pub(super) fn new(broken: &'a AtomicBool, key: usize, number: u32) -> Savepoint<'a> {
        Savepoint {
            broken: Some(broken),
            key,
            number,
        }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// It was released.
    pub(super) fn closed(mut self) {
        self.broken = None;
    }
}

impl Drop for Savepoint<'_> {
    fn drop(&mut self) {
        if let Some(broken) = self.broken {
            broken.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs `work` within the savepoint.
pub(super) async fn within<F: Future>(savepoint: &Savepoint<'_>, work: F) -> F::Output {
    let outer = WITHIN.try_with(Arc::clone).ok();
    let scope = Scope {
        key: savepoint.key,
        number: savepoint.number,
        outer,
    };
    WITHIN.scope(Arc::new(scope), work).await
}

/// The innermost savepoint of this transaction that the current future runs in.
pub(super) fn current(key: usize) -> Option<u32> {
    let mut scope = WITHIN.try_with(Arc::clone).ok();
    while let Some(now) = scope {
        if now.key == key {
            return Some(now.number);
        }
        scope = now.outer.clone();
    }
    None
}
