//! Whose turn it is to be fenced, among the shards of a group. A swap resets the plans of all sessions of its host, and two
//! shards that are closed at once keep each other closed for longer: so it is one at a time. With the turn go two sessions
//! that did the same for the shard before, so that hardly anything behind a fence is done for the first time.
//!
//! Invariant: a session in which a target may have been opened, and not committed, is used for nothing else. One
//! that is not given back in so many words is closed, which rolls it back.

use tokio::sync::{Mutex, MutexGuard};

use crate::mover::control::journal::Signed;
use crate::mover::control::session::{Hosts, Session};
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;

/// The turn of a group, and its sessions while nobody has it.
#[derive(Default)]
pub(in crate::mover) struct Turns(Mutex<Option<Aides>>);

/// Sessions for what is done while a shard is closed.
struct Aides {
    gate: Session,
    opening: Session,
}

/// One shard's turn. Dropped, the next begins, with new sessions.
pub(in crate::mover) struct Turn<'a> {
    place: MutexGuard<'a, Option<Aides>>,
    aides: Aides,
}

impl Turns {
    /// Waits for the turn.
    ///
    /// # Errors
    /// When there are no sessions left and none can be opened.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn take(&self, hosts: &Hosts, work: &ShardMove<'_>) -> Result<Turn<'_>, Error> {
        let mut place = self.0.lock().await;
        let kept = place.take().filter(|aides| !aides.gate.client.is_closed() && !aides.opening.client.is_closed());
        let mut aides = match kept {
            Some(aides) => aides,
            None => Aides::open(hosts, work).await?,
        };
        for session in [&mut aides.gate, &mut aides.opening] {
            session.shard = Some(work.hold.shard);
        }
        Ok(Turn { place, aides })
    }

    /// Waits until nobody has the turn, or has just given it back: what is begun now is not begun beside a fence.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn quiet(&self) {
        drop(self.0.lock().await);
    }
}

impl Aides {
    async fn open(hosts: &Hosts, work: &ShardMove<'_>) -> Result<Aides, Error> {
        let (gate, opening) = tokio::try_join!(hosts.open(&work.source.host), hosts.open(&work.target.host))?;
        // They are of no single shard: whoever takes one over takes the group's stream over, and ends these too.
        tokio::try_join!(gate.sign(work.hold, Signed::Group), opening.sign(work.hold, Signed::Group))?;
        Ok(Aides { gate, opening })
    }
}

impl Turn<'_> {
    /// At the source: swap, barrier, marker, decide.
    pub(in crate::mover) fn gate(&self) -> &Session {
        &self.aides.gate
    }

    /// At the target: the open.
    pub(in crate::mover) fn opening(&self) -> &Session {
        &self.aides.opening
    }

    /// The next shard's turn, with these sessions, neither of which is in a transaction.
    pub(in crate::mover) fn give_back(self) {
        let Turn { mut place, aides } = self;
        *place = Some(aides);
    }
}
