//! Which savepoint of a transaction a statement belongs to.
//!
//! Invariant: what runs while a savepoint is open runs within it, so that nothing is undone which somebody was told is
//! done; and a savepoint that is given up in its middle leaves nothing to commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

tokio::task_local! {
    /// The savepoints within which a future is polled just now. It belongs to that future, whatever thread it is on; a
    /// task that it spawns has none.
    static WITHIN: Arc<Scope>;
}

#[derive(Debug)]
struct Scope {
    /// The transaction.
    key: usize,
    number: u32,
    /// What is around it: of the same transaction, or of another shard's.
    outer: Option<Arc<Scope>>,
}

/// A savepoint that was set. Dropped before it is [`closed`](Savepoint::closed), its transaction can only be rolled
/// back.
pub(super) struct Savepoint<'a> {
    broken: Option<&'a AtomicBool>,
    key: usize,
    number: u32,
}

impl<'a> Savepoint<'a> {
    /// `key`: what the transaction is known by while it runs.
    pub(super) fn new(broken: &'a AtomicBool, key: usize, number: u32) -> Savepoint<'a> {
        Savepoint { broken: Some(broken), key, number }
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

/// Runs `work` as what the savepoint is around.
pub(super) async fn within<F: Future>(savepoint: &Savepoint<'_>, work: F) -> F::Output {
    let outer = WITHIN.try_with(Arc::clone).ok();
    let scope = Scope { key: savepoint.key, number: savepoint.number, outer };
    WITHIN.scope(Arc::new(scope), work).await
}

/// The innermost savepoint of this transaction that is around the future which is polled now.
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
