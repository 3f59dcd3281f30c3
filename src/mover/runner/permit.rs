//! The permit to cut over, of which a group has one. A swap resets the plans of all sessions of its host, and two
//! shards that are closed at once keep each other closed for longer: so one is closed at a time. The permit comes with
//! two sessions that have done the same for the shard before, so that hardly anything behind a fence is done for the
//! first time.
//!
//! Invariant: a session in which a target may have been opened, and not committed, is used for nothing else. If it is
//! not given back explicitly, it is closed, which rolls it back.

use tokio::sync::{Mutex, MutexGuard};

use crate::mover::control::journal::Signed;
use crate::mover::control::session::{Hosts, Session};
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;

/// The permit of a group, and its sessions while nobody has it.
#[derive(Default)]
pub(in crate::mover) struct CutOverPermits(Mutex<Option<Sessions>>);

/// Sessions for what is done while a shard is closed.
struct Sessions {
    gate: Session,
    opening: Session,
}

/// The permit while one shard has it. When it is dropped, the next shard gets it, with new sessions.
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
    pub(in crate::mover) async fn acquire(&self, hosts: &Hosts, work: &ShardMove<'_>) -> Result<Permit<'_>, Error> {
        let mut slot = self.0.lock().await;
        let kept =
            slot.take().filter(|sessions| !sessions.gate.client.is_closed() && !sessions.opening.client.is_closed());
        let mut sessions = match kept {
            Some(sessions) => sessions,
            None => Sessions::open(hosts, work).await?,
        };
        for session in [&mut sessions.gate, &mut sessions.opening] {
            session.shard = Some(work.hold.shard);
        }
        Ok(Permit { slot, sessions })
    }

    /// Waits until nobody has the permit, or it was just given back: so what is begun next does not begin during a
    /// fence.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn quiet(&self) {
        drop(self.0.lock().await);
    }
}

impl Sessions {
    async fn open(hosts: &Hosts, work: &ShardMove<'_>) -> Result<Sessions, Error> {
        let (gate, opening) = tokio::try_join!(hosts.open(&work.source.host), hosts.open(&work.target.host))?;
        // They belong to no single shard: a mover that takes one over takes the group's stream over, and ends these
        // too.
        tokio::try_join!(gate.sign(work.hold, Signed::Group), opening.sign(work.hold, Signed::Group))?;
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

    /// Gives the permit to the next shard with these sessions, neither of which may be in a transaction.
    pub(in crate::mover) fn give_back(self) {
        let Permit { mut slot, sessions } = self;
        *slot = Some(sessions);
    }
}
