//! The permit to cut over, of which a group has one. A swap resets the plans of all sessions of its
//! host, and two shards that are closed at once keep each other closed for longer: so one is closed
//! at a time. The permit comes with two sessions that have done the same for the shard before this
//! one, or have rehearsed it where that was possible, so that hardly anything behind a fence is
//! done for the first time.
//!
//! A fence is short only if the servers have time for it. So during a fence, no other work of the
//! group on rows, indexes or catalogs begins: such work is divided into pieces, and each waits at
//! its beginning.
//!
//! Invariant: a session in which a target may have been opened, and not committed, is used for
//! nothing else. If it is not given back explicitly, it is closed, which rolls it back.

use std::time::Duration;

use tokio::sync::{Mutex, MutexGuard, watch};

use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::SessionPurpose;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;
use crate::pg::cause::chain;

/// How long a fence is put off for pieces that have begun. A piece may be the index of a large
/// table.
const PIECES_WITHIN: Duration = Duration::from_millis(100);

/// How long a rehearsal may take.
const REHEARSED_WITHIN: Duration = Duration::from_secs(1);

/// The permit of a group, and its sessions while the permit is free.
#[derive(Default)]
pub(in crate::mover) struct CutOverPermits {
    slot: Mutex<Option<Sessions>>,
    pieces: watch::Sender<BackgroundWork>,
}

/// The work that runs at the same time as the fences.
#[derive(Default)]
struct BackgroundWork {
    /// How many there are.
    begun: usize,
    /// How many shards are fenced, or about to be: one, and for a moment the one before it, which
    /// is decided.
    fences: usize,
}

/// A piece of work that runs at the same time as the fences of others, until it is dropped.
pub(in crate::mover) struct BackgroundPermit<'a>(&'a CutOverPermits);

/// Keeps pieces from beginning, until it is dropped.
pub(in crate::mover) struct QuiesceGuard<'a>(&'a CutOverPermits);

/// Sessions for the work while a shard is closed.
struct Sessions {
    gate: Session,
    opening: Session,
}

/// The permit while one shard has it. When it is dropped, the next shard gets it, with new
/// sessions.
pub(in crate::mover) struct Permit<'a> {
    slot: MutexGuard<'a, Option<Sessions>>,
    sessions: Sessions,
}

impl CutOverPermits {
    /// Waits for the permit.
    ///
    /// # Errors
    /// When there are no sessions left and none can be opened.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn acquire(
        &self,
        hosts: &Hosts,
        work: &ShardMove<'_>,
    ) -> Result<Permit<'_>, Error> {
        let mut slot = self.slot.lock().await;
        let kept = slot.take().filter(|sessions| {
            !sessions.gate.client.is_closed() && !sessions.opening.client.is_closed()
        });
        let mut sessions = match kept {
            Some(sessions) => sessions,
            None => Sessions::open(hosts, work).await?,
        };
        for session in [&mut sessions.gate, &mut sessions.opening] {
            session.shard = Some(work.hold.shard);
        }
        Ok(Permit { slot, sessions })
    }

    /// Begins a piece of work: immediately, or when there is no fence. The holder of the permit
    /// must not wait here, nor work that is needed behind a fence.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn background_permit(&self) -> BackgroundPermit<'_> {
        let mut seen = self.pieces.subscribe();
        loop {
            let begins = self.pieces.send_if_modified(|pieces| {
                pieces.begun += usize::from(pieces.fences == 0);
                pieces.fences == 0
            });
            if begins {
                return BackgroundPermit(self);
            }
            seen.wait_for(|pieces| pieces.fences == 0)
                .await
                .expect("the sender is ours");
        }
    }

    /// Keeps pieces from beginning, and waits for those that have begun, though not for long. Who
    /// calls it has the permit.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn quiesce(&self) -> QuiesceGuard<'_> {
        self.pieces.send_modify(|pieces| pieces.fences += 1);
        let still = QuiesceGuard(self);
        let mut seen = self.pieces.subscribe();
        let ended = seen.wait_for(|pieces| pieces.begun == 0);
        if tokio::time::timeout(PIECES_WITHIN, ended).await.is_err() {
            tracing::debug!("a shard is fenced beside work that goes on for longer");
        }
        still
    }
}

impl Drop for BackgroundPermit<'_> {
    fn drop(&mut self) {
        self.0.pieces.send_modify(|pieces| pieces.begun -= 1);
    }
}

impl Drop for QuiesceGuard<'_> {
    fn drop(&mut self) {
        self.0.pieces.send_modify(|pieces| pieces.fences -= 1);
    }
}

impl Sessions {
    /// Sessions that have done their work once already, if that was possible.
    async fn open(hosts: &Hosts, work: &ShardMove<'_>) -> Result<Sessions, Error> {
        let Sessions { gate, opening } = Sessions::unrehearsed(hosts, work).await?;
        let rehearsed =
            async { tokio::try_join!(work.rehearse_fence(&gate), work.rehearse_open(&opening)) };
        let why = match tokio::time::timeout(REHEARSED_WITHIN, rehearsed).await {
            Ok(Ok(_)) => return Ok(Sessions { gate, opening }),
            Ok(Err(error)) => chain(&error),
            Err(_) => "it took too long".to_owned(),
        };
        // The fence itself finds out what is wrong, if anything is. These may be in a transaction.
        drop((gate, opening));
        tracing::debug!(shard = %work.hold.shard, why, "a fence was not rehearsed");
        Sessions::unrehearsed(hosts, work).await
    }

    async fn unrehearsed(hosts: &Hosts, work: &ShardMove<'_>) -> Result<Sessions, Error> {
        let (gate, opening) =
            tokio::try_join!(hosts.open(&work.source.host), hosts.open(&work.target.host))?;
        // They belong to no single shard: a mover that takes one over takes the group's stream
        // over, and ends these too.
        tokio::try_join!(
            gate.sign(work.hold, SessionPurpose::Group),
            opening.sign(work.hold, SessionPurpose::Group)
        )?;
        Ok(Sessions { gate, opening })
    }
}

impl Permit<'_> {
    /// The session at the source: swap, barrier, marker, decide.
    pub(in crate::mover) fn gate(&self) -> &Session {
        &self.sessions.gate
    }

    /// The session at the target: the open.
    pub(in crate::mover) fn opening(&self) -> &Session {
        &self.sessions.opening
    }

    /// Gives the permit to the next shard with these sessions, neither of which may be in a
    /// transaction.
    pub(in crate::mover) fn give_back(self) {
        let Permit { mut slot, sessions } = self;
        *slot = Some(sessions);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn is_ready(future: std::pin::Pin<&mut impl Future>) -> bool {
        matches!(
            future.poll(&mut Context::from_waker(Waker::noop())),
            Poll::Ready(_)
        )
    }

    #[tokio::test]
    async fn no_piece_begins_while_a_fence_stands() {
        let permits = CutOverPermits::default();
        let still = permits.quiesce().await;
        let mut piece = std::pin::pin!(permits.background_permit());
        assert!(!is_ready(piece.as_mut()));
        drop(still);
        assert!(is_ready(piece.as_mut()));
    }

    #[tokio::test]
    async fn a_fence_waits_for_pieces_and_whoever_gives_up_leaves_nothing() {
        let permits = CutOverPermits::default();
        let (one, other) = (
            permits.background_permit().await,
            permits.background_permit().await,
        );
        {
            let mut given_up = std::pin::pin!(permits.quiesce());
            assert!(!is_ready(given_up.as_mut()));
            assert!(!is_ready(
                std::pin::pin!(permits.background_permit()).as_mut()
            ));
        }
        drop(permits.background_permit().await);
        let mut still = std::pin::pin!(permits.quiesce());
        assert!(!is_ready(still.as_mut()));
        drop(one);
        assert!(!is_ready(still.as_mut()));
        drop(other);
        assert!(is_ready(still.as_mut()));
    }

    #[tokio::test]
    async fn a_fence_that_ends_does_not_end_the_next_one() {
        let permits = CutOverPermits::default();
        let (before, still) = (permits.quiesce().await, permits.quiesce().await);
        drop(before);
        assert!(!is_ready(
            std::pin::pin!(permits.background_permit()).as_mut()
        ));
        drop(still);
        assert!(is_ready(
            std::pin::pin!(permits.background_permit()).as_mut()
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn a_fence_does_not_wait_for_a_long_piece() {
        let permits = CutOverPermits::default();
        let _long = permits.background_permit().await;
        drop(permits.quiesce().await);
    }
}
