//! Ends connections on which an answer may still be awaited.
//!
//! A statement that no caller waits for any more is ended on the server first, and only then
//! another call gets its slot. So there are never more backends than slots, and an abandoned
//! statement does not take effect later.
//!
//! A pooler must not be left with an answer on its way. PgBouncer before 1.21 takes a server
//! connection for ready once it was ready at one moment, although the client had sent more. When
//! that client leaves, the next client gets the server connection with the outstanding answers on
//! it, and takes each for the answer to a statement of its own. So a connection is closed only once
//! everything is answered. This holds in a transaction too: PgBouncer then closes the server
//! connection, with everything that was prepared there. Nothing is sent to avoid that, because its
//! answer could be the one that comes too late.

use std::time::Duration;

use tokio::runtime::Handle;

use super::pool::Slot;
use super::session::Session;

/// The pause between two cancel requests for the same connection.
const CANCEL_EVERY: Duration = Duration::from_millis(50);

/// How long a slot is kept while its connection's statements end on the server. Shorter than the
/// time that a call waits for a slot by default, so a COPY FROM STDIN, which no cancel request
/// ends, fails no call behind it.
const END_MAX: Duration = Duration::from_secs(3);

/// How long a connection to a pooler continues to wait after its slot was freed. A pooler that is
/// silent for longer is most likely gone. A statement that waits for the client, as COPY FROM STDIN
/// does, ends only with its connection.
const LINGER_MAX: Duration = Duration::from_secs(60);

/// How long to wait before the first cancel request when it is not known whether a statement is
/// running.
pub(super) const GRACE: Duration = Duration::from_millis(20);

/// Closes the connection, and then gives its slot to others.
pub(super) fn close(session: Box<Session>, slot: Slot) {
    drop(session);
    drop(slot);
}

/// Ends on the server what no caller waits for any more, and only then gives its slot to others.
/// The cancel request is repeated, because several statements may be on their way one behind the
/// other. The session is closed, so a cancel request that comes late hits no other client's
/// statement.
pub(super) fn end_on_server(session: Box<Session>, slot: Slot, grace: Duration) {
    let Ok(runtime) = Handle::try_current() else {
        return close(session, slot);
    };
    if session.connection.is_closed() {
        return close(session, slot);
    }
    runtime.spawn(end(session, slot, grace));
}

async fn end(session: Box<Session>, slot: Slot, grace: Duration) {
    let (generation, is_pooled) = (session.generation, session.is_pooled());
    let Session {
        connection,
        circuit,
        ends,
        ..
    } = *session;
    let canceller = connection.canceller();
    let mut finishing = std::pin::pin!(connection.finish());
    let asking = async {
        tokio::time::sleep(grace).await;
        // Once the generation is retired (the host fell silent, or another server is the primary)
        // no answer will come.
        while generation == circuit.generation() {
            // The semaphore is never closed. Each task that waits here holds a slot, so there are
            // few.
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
