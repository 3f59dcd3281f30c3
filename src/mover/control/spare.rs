//! Sessions between two uses. A new session has to plan each statement with empty caches, and the
//! mover's questions to the catalogs need many: of the move of a small shard that was two fifths.
//! So a session that has done its work well is kept for the next shard.
//!
//! Invariant: a spare session is in no transaction, holds no lock, and has the mover's settings and
//! nothing else. Code that cannot be sure of that drops the session, which ends it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::map::HostName;
use crate::mover::control::session::Session;

/// The most sessions of a host that wait.
const SPARE_MAX: usize = 16;

/// How often a session is used at most. Its process remembers what it has seen of each shard's
/// tables, and would grow with every shard.
const USES_MAX: u32 = 64;

/// How long a session is used at most. Behind one address it is a new session that finds another
/// server, of a later timeline.
const AGE_MAX: Duration = Duration::from_secs(20);

/// The spare sessions. They are kept while there is a [`Keeper`].
#[derive(Default)]
pub(super) struct Spares(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    keepers: usize,
    sessions: BTreeMap<HostName, Vec<Session>>,
}

/// Sessions that are given back are kept until the last of these is dropped.
pub(crate) struct Keeper<'a>(&'a Spares);

impl Spares {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, sessions are kept.
    pub(super) fn keep(&self) -> Keeper<'_> {
        self.waiting().keepers += 1;
        Keeper(self)
    }

    /// Whether this session would be kept.
    pub(super) fn wants(&self, session: &Session) -> bool {
        self.waiting().wants(session)
    }

    /// Keeps a session, if it is still wanted.
    pub(super) fn put(&self, session: Session) {
        let mut waiting = self.waiting();
        if waiting.wants(&session) {
            waiting
                .sessions
                .entry(session.host.clone())
                .or_default()
                .push(session);
        }
    }

    /// The session that was kept last: its caches are the warmest.
    pub(super) fn take(&self, host: &HostName) -> Option<Session> {
        let mut waiting = self.waiting();
        let sessions = waiting.sessions.get_mut(host)?;
        sessions.retain(is_good);
        sessions.pop()
    }

    /// Closes those of a host.
    pub(super) fn forget(&self, host: &HostName) {
        self.waiting().sessions.remove(host);
    }
}

impl Waiting {
    fn wants(&self, session: &Session) -> bool {
        let there = self.sessions.get(&session.host).map_or(0, Vec::len);
        self.keepers > 0 && there < SPARE_MAX && session.uses < USES_MAX && is_good(session)
    }
}

fn is_good(session: &Session) -> bool {
    !session.client.is_closed() && session.opened.elapsed() < AGE_MAX
}

impl fmt::Debug for Spares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spares").finish_non_exhaustive()
    }
}

impl Drop for Keeper<'_> {
    fn drop(&mut self) {
        let mut waiting = self.0.waiting();
        waiting.keepers -= 1;
        if waiting.keepers == 0 {
            waiting.sessions.clear();
        }
    }
}
