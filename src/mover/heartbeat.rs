//! What keeps a move's lease and its fence alive, and how another mover finds out that nobody does.
//!
//! Three things tell whether a mover lives. Its session lock: gone the instant its connection ends, so that a resume
//! after a crash need not wait. Its lease: for a mover that is paused, whose connection stays. The fence's deadline: for
//! routers, who want the shard back whatever became of the mover. None of them is needed for safety; that is the
//! compare-and-swap on the lease's token in every statement.

use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;

use super::error::Error;
use super::journal::{Entry, Hold};
use super::session::Session;

/// How long things of a mover live without it.
#[derive(Clone, Copy, Debug)]
pub struct Leases {
    /// How long a lease lasts after its last renewal.
    pub lease: Duration,
    /// How long a fence stands after its last renewal. Routers and other movers swap it back after that.
    pub fence: Duration,
    /// How often both are renewed.
    pub beat: Duration,
}

impl Default for Leases {
    /// Ten seconds each, renewed every two.
    fn default() -> Leases {
        Leases::of(Duration::from_secs(10))
    }
}

impl Leases {
    /// So long each, renewed five times in it.
    pub fn of(duration: Duration) -> Leases {
        Leases { lease: duration, fence: duration, beat: duration / 5 }
    }

    pub(crate) fn fence_ms(&self) -> i32 {
        i32::try_from(self.fence.as_millis()).unwrap_or(i32::MAX)
    }

    pub(crate) fn lease_ms(&self) -> i32 {
        i32::try_from(self.lease.as_millis()).unwrap_or(i32::MAX)
    }
}

/// The first key of the session locks of movers: `shrd`.
const LOCK_CLASS: i32 = 0x7368_7264;

/// A task that renews a lease on a connection of its own, and holds the session lock there.
pub(crate) struct Heartbeat {
    task: JoinHandle<()>,
    lost: watch::Receiver<bool>,
}

impl Heartbeat {
    pub(crate) fn start(session: Session, hold: Hold, leases: Leases) -> Heartbeat {
        let (report, lost) = watch::channel(false);
        let task = tokio::spawn(async move {
            let mut renewed = Instant::now();
            loop {
                tokio::time::sleep(leases.beat).await;
                match renew(&session, hold, leases).await {
                    Ok(true) => renewed = Instant::now(),
                    Ok(false) => break,
                    Err(error) => {
                        tracing::warn!(shard = %hold.shard, %error, "a heartbeat failed");
                        if renewed.elapsed() > leases.lease || session.client.is_closed() {
                            break;
                        }
                    }
                }
            }
            // Nobody listens once the move is over.
            let _ = report.send(true);
        });
        Heartbeat { task, lost }
    }

    /// Waits until the lease is lost. Never returns while it is held.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn lost(&self) {
        let mut lost = self.lost.clone();
        // An error means that the task is gone, and with it the lease.
        let _ = lost.wait_for(|lost| *lost).await;
    }

    pub(crate) fn is_lost(&self) -> bool {
        *self.lost.borrow()
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Locks: the move's row and the shard's, for this one transaction.
async fn renew(session: &Session, hold: Hold, leases: Leases) -> Result<bool, Error> {
    let sql = "SELECT pgshard.heartbeat($1, $2, $3, $4, $5)";
    let (id, shard) = (hold.id.uuid(), hold.shard.as_i32());
    let (lease, fence) = (leases.lease_ms(), leases.fence_ms());
    let row = session.row("renewing the lease", sql, &[&shard, id, &hold.lease, &lease, &fence]).await?;
    Ok(row.get(0))
}

/// Takes the session lock of a shard's mover. False: a mover that has it lives, or is paused.
///
/// Locks: one advisory lock, for as long as the session lives. Nobody waits for it.
async fn lock(session: &Session, hold: Hold) -> Result<bool, Error> {
    let sql = "SELECT pg_try_advisory_lock($1, $2)";
    Ok(session.row("taking the mover's lock", sql, &[&LOCK_CLASS, &hold.shard.as_i32()]).await?.get(0))
}

/// Takes the session lock from a mover that has lost the shard and whose connection is about to end. Whoever does not get
/// it in two seconds does without: a resume of somebody else could then take the move over too early, which is safe.
///
/// Locks: as [`lock`].
pub(crate) async fn lock_soon(session: &Session, hold: Hold) -> Result<(), Error> {
    let until = Instant::now() + Duration::from_secs(2);
    while !lock(session, hold).await? && Instant::now() < until {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// Makes the move ours: at once when its mover is gone, after its lease when it is paused.
///
/// # Errors
/// [`Error::Held`] when a mover renews its lease all the while.
pub(crate) async fn take_over(session: &Session, hold: Hold, leases: Leases, holder: &str) -> Result<(), Error> {
    // A paused mover's lease ends within one lease; another that it renewed just before is the margin.
    let until = Instant::now() + leases.lease * 2;
    loop {
        let entries = session.entries(Some(hold.id)).await?;
        let entry = entries.iter().find(|entry| entry.shard == hold.shard).ok_or(Error::NoSuchMove { id: hold.id })?;
        let free = lock(session, hold).await? || entry.lease_left.is_zero();
        if free && session.take_over(hold, entry.lease, leases, holder).await? {
            return Ok(());
        }
        if Instant::now() >= until {
            return Err(held(entry));
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

fn held(entry: &Entry) -> Error {
    let ends_in_ms = entry.lease_left.as_millis() as u64;
    Error::Held { shard: entry.shard, holder: entry.holder.clone(), ends_in_ms }
}
