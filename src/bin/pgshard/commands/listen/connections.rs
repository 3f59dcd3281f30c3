//! The open connections of a port, and which of them ends when there are too many.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, Id, JoinSet};

use crate::signals::asked_to_end;

/// How many connections are open at a time, well below the 1024 files that a process may open by
/// default.
const CONNECTIONS_MAX: usize = 512;

/// How long a new connection may not be ended for another one. A client sends its request within
/// that time.
const GRACE: Duration = Duration::from_millis(250);

/// How far a connection has come. One that has come less far ends for a new one, before those that
/// have come farther.
#[derive(Clone, Debug, Default)]
pub(crate) struct Standing(Arc<AtomicU8>);

const ASKED: u8 = 1;
const ADMITTED: u8 = 2;

impl Standing {
    /// It has sent a request.
    pub(crate) fn has_asked(&self) {
        self.0.fetch_max(ASKED, Ordering::Relaxed);
    }

    /// It has sent a request with the token, or where none is needed.
    pub(crate) fn is_admitted(&self) {
        self.0.fetch_max(ADMITTED, Ordering::Relaxed);
    }

    fn rank(&self) -> u8 {
        self.0.load(Ordering::Relaxed)
    }
}

/// An open connection.
struct Connection {
    peer: IpAddr,
    since: Instant,
    standing: Standing,
    task: AbortHandle,
}

/// Answers connections until Ctrl-C or SIGTERM. Those that are open then end.
pub(crate) async fn until_interrupted<Answering: Future<Output = ()> + Send + 'static>(
    listener: &TcpListener,
    answer: impl Fn(TcpStream, Standing) -> Answering,
) {
    let mut tasks = JoinSet::new();
    let mut open: HashMap<Id, Connection> = HashMap::new();
    let end = asked_to_end();
    tokio::pin!(end);
    loop {
        // A connection is accepted only when there is a place for it, or one can be made.
        let victim = (open.len() >= CONNECTIONS_MAX)
            .then(|| to_end(&open))
            .flatten();
        let wait = victim.map_or(Duration::ZERO, |(_, since)| {
            GRACE.saturating_sub(since.elapsed())
        });
        tokio::select! {
            Some(ended) = tasks.join_next_with_id() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => error.id(),
                };
                open.remove(&id);
            }
            () = tokio::time::sleep(wait), if !wait.is_zero() => {}
            Some((stream, peer)) = accept(listener), if wait.is_zero() => {
                if let Some(ended) = victim.and_then(|(id, _)| open.remove(&id)) {
                    ended.task.abort();
                    tracing::debug!(peer = %ended.peer, "a connection was ended for another one");
                }
                let standing = Standing::default();
                let task = tasks.spawn(answer(stream, standing.clone()));
                let since = Instant::now();
                open.insert(task.id(), Connection { peer, since, standing, task });
            }
            () = &mut end => return,
        }
    }
}

/// The next connection, and who it counts for.
async fn accept(listener: &TcpListener) -> Option<(TcpStream, IpAddr)> {
    match listener.accept().await {
        Ok((stream, peer)) => Some((stream, peer_of(peer.ip()))),
        Err(error) => {
            // Mostly there are too many open files, which passes.
            tracing::warn!(%error, "a connection was not accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

/// The address for which a connection counts: the network, with IPv6, where each client has 2^64
/// addresses.
fn peer_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(
            address.to_bits() & !u128::from(u64::MAX),
        )),
        address => address,
    }
}

/// The connection that ends for a new one: of those that have come least far, the oldest of the
/// peer that has most of them.
fn to_end(open: &HashMap<Id, Connection>) -> Option<(Id, Instant)> {
    let least = open.values().map(|one| one.standing.rank()).min()?;
    let of_rank = || {
        let mut open = open.iter();
        std::iter::from_fn(move || open.find(|(_, one)| one.standing.rank() <= least))
    };
    let mut peers: HashMap<IpAddr, usize> = HashMap::new();
    for (_, one) in of_rank() {
        *peers.entry(one.peer).or_default() += 1;
    }
    let (most, _) = peers
        .into_iter()
        .max_by_key(|(peer, count)| (*count, *peer))?;
    let oldest = of_rank()
        .filter(|(_, one)| one.peer == most)
        .min_by_key(|(_, one)| one.since)?;
    Some((*oldest.0, oldest.1.since))
}
