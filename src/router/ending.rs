//! The end of a connection on which an answer may still be awaited.
//!
//! What nobody waits for any more is ended on the server, and only then the slot is another's: there are never more
//! backends than slots, and what was given up does not take effect later.
//!
//! A pooler is left with nothing on its way. PgBouncer before 1.21 takes a server for ready that was so once, although
//! the client had more on its way: when that client leaves, the next one gets the session with what is still to be
//! answered in it, and so each answer goes to the one after. So a connection is closed once everything is answered; in
//! a transaction too, whose session PgBouncer closes then, with all that was prepared there. And nothing more is sent
//! for that: it could be what is answered too late.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Semaphore;

use super::pool::Slot;
use super::session::{Session, close};

/// What the ends of a host's connections share.
pub(super) struct Ends {
    /// Requests to cancel that are on their way.
    cancels: Arc<Semaphore>,
    /// Connections without a slot, whose last answers are waited for.
    lingering: Arc<Semaphore>,
}

impl Default for Ends {
    fn default() -> Ends {
        Ends { cancels: Arc::new(Semaphore::new(4)), lingering: Arc::new(Semaphore::new(16)) }
    }
}

/// How long a statement that was to be cancelled may go on before it is asked again.
const CANCEL_EVERY: Duration = Duration::from_millis(50);

/// How long a slot waits for what was given up to end on the server.
const END_MAX: Duration = Duration::from_secs(5);

/// How long a connection to a pooler waits for that without a slot. A pooler that was silent for longer is mostly gone;
/// and what waits for the client itself, as COPY FROM STDIN does, ends only with its connection.
const LINGER_MAX: Duration = Duration::from_secs(60);

/// How long a statement may end by itself of which it is not known whether there is one.
pub(super) const GRACE: Duration = Duration::from_millis(20);

/// Ends on the server what nobody waits for any more, and only then gives its slot to others. It is asked to end again
/// and again, for several statements may be on their way one behind the other. The session is closed: a request to
/// cancel that comes late is nobody else's.
pub(super) fn end_on_server(session: Box<Session>, slot: Slot, grace: Duration) {
    let Ok(runtime) = Handle::try_current() else { return close(session, slot) };
    if session.connection.is_closed() {
        return close(session, slot);
    }
    runtime.spawn(end(session, slot, grace));
}

async fn end(session: Box<Session>, slot: Slot, grace: Duration) {
    let (generation, is_pooled) = (session.generation, session.is_pooled());
    let Session { connection, circuit, ends, .. } = *session;
    let canceller = connection.canceller();
    let mut finishing = std::pin::pin!(connection.finish());
    let asking = async {
        tokio::time::sleep(grace).await;
        // The host fell silent, or another server is the primary: no answer will come.
        while generation == circuit.generation() {
            // Nobody closes it; and whoever waits has a slot, so that they are not many.
            let turn = ends.cancels.acquire().await;
            let _ = canceller.clone().cancel().await;
            drop(turn);
            tokio::time::sleep(CANCEL_EVERY).await;
        }
    };
    let finished = tokio::select! {
        biased;
        () = &mut finishing => true,
        () = asking => false,
        () = tokio::time::sleep(END_MAX) => false,
    };
    drop(slot);
    if !finished
        && is_pooled
        && let Ok(_place) = ends.lingering.try_acquire()
    {
        let _ = tokio::time::timeout(LINGER_MAX, finishing).await;
    }
}
