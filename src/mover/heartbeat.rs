//! What keeps a move's lease and its fence alive, and how another mover finds out that nobody does.
//!
//! Three things tell whether a mover lives. Its session lock: gone the instant its connection ends, so that a resume
//! after a crash need not wait. Its lease: for a mover that is paused, whose connection stays. The fence's deadline: for
//! routers, who want the shard back whatever became of the mover. None of them is needed for safety; that is the
//! compare-and-swap on the lease's token in every statement.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::shard::ShardId;

use super::error::Error;
use super::journal::{Entry, Hold};
use super::session::Session;
use super::wish::{WANTED, Wanted};

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

/// Renews the leases of the shards that a mover holds on one host, on a connection of its own, and holds their session
/// locks there.
pub(crate) struct Heartbeat {
    session: Arc<Session>,
    held: Arc<Mutex<Vec<Held>>>,
    lost: watch::Receiver<BTreeSet<ShardId>>,
    wanted: watch::Sender<BTreeMap<ShardId, Wanted>>,
    leases: Leases,
    task: JoinHandle<()>,
}

struct Held {
    hold: Hold,
    renewed: Instant,
}

impl Heartbeat {
    pub(crate) fn start(session: Session, leases: Leases) -> Heartbeat {
        let session = Arc::new(session);
        let held = Arc::new(Mutex::new(Vec::new()));
        let (report, lost) = watch::channel(BTreeSet::new());
        let wanted = watch::Sender::new(BTreeMap::new());
        let task = tokio::spawn(beat(session.clone(), held.clone(), leases, report, wanted.clone()));
        Heartbeat { session, held, lost, wanted, leases, task }
    }

    /// Takes a shard's session lock from a mover that has lost the shard and whose connection is about to end, and renews
    /// its lease from now on. Whoever does not get the lock in two seconds does without: a resume of somebody else could
    /// then take the move over too early, which is safe.
    ///
    /// Locks: as [`lock`].
    pub(crate) async fn hold(&self, hold: Hold) -> Result<(), Error> {
        // Nothing is half done when a panic lets go of the list.
        self.held.lock().unwrap_or_else(PoisonError::into_inner).push(Held { hold, renewed: Instant::now() });
        let until = Instant::now() + Duration::from_secs(2);
        while !lock(&self.session, hold).await? && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // A wish that was there before us is known from the start.
        if let Some(wanted) = renew(&self.session, hold, self.leases).await? {
            self.wanted.send_modify(|of| {
                of.insert(hold.shard, wanted);
            });
        }
        Ok(())
    }

    /// Renews the lease of a shard no longer: it is at its end.
    pub(crate) fn let_go(&self, shard: ShardId) {
        self.held.lock().unwrap_or_else(PoisonError::into_inner).retain(|held| held.hold.shard != shard);
        self.wanted.send_modify(|of| {
            of.remove(&shard);
        });
    }

    /// What was wanted of a shard at the last beat.
    pub(crate) fn wanted(&self, shard: ShardId) -> Wanted {
        self.wanted.borrow().get(&shard).copied().unwrap_or_default()
    }

    /// What is wanted of each shard that is held, as it changes.
    pub(crate) fn wishes(&self) -> watch::Receiver<BTreeMap<ShardId, Wanted>> {
        self.wanted.subscribe()
    }

    /// Makes the move of a shard ours: at once when its mover is gone, after its lease when it is paused. Whoever did that
    /// calls [`Heartbeat::hold`] next. Gives the lease that it was held under.
    ///
    /// # Errors
    /// [`Error::Held`] when a mover renews its lease all the while.
    pub(crate) async fn take_over(
        &self,
        source: &Session,
        hold: Hold,
        leases: Leases,
        holder: &str,
    ) -> Result<Uuid, Error> {
        // A paused mover's lease ends within one lease; another that it renewed just before is the margin.
        let until = Instant::now() + leases.lease * 2;
        loop {
            let entries = source.entries(Some(hold.id)).await?;
            let entry =
                entries.iter().find(|entry| entry.shard == hold.shard).ok_or(Error::NoSuchMove { id: hold.id })?;
            let free = lock(&self.session, hold).await? || entry.lease_left.is_zero();
            if free && source.take_over(hold, entry.lease, leases, holder).await? {
                return Ok(entry.lease);
            }
            if Instant::now() >= until {
                return Err(held(entry));
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }

    /// Waits until the shard's lease is lost. Never returns while it is held.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn lost(&self, shard: ShardId) {
        let mut lost = self.lost.clone();
        // An error means that the task has ended, with every lease lost.
        let _ = lost.wait_for(|lost| lost.contains(&shard)).await;
    }

    pub(crate) fn is_lost(&self, shard: ShardId) -> bool {
        self.lost.borrow().contains(&shard)
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn beat(
    session: Arc<Session>,
    held: Arc<Mutex<Vec<Held>>>,
    leases: Leases,
    report: watch::Sender<BTreeSet<ShardId>>,
    wishes: watch::Sender<BTreeMap<ShardId, Wanted>>,
) {
    loop {
        tokio::time::sleep(leases.beat).await;
        let holds: Vec<Hold> =
            held.lock().unwrap_or_else(PoisonError::into_inner).iter().map(|held| held.hold).collect();
        // All are sent before the first answer is awaited: hundreds of shards cost one round trip.
        let beats = futures_util::future::join_all(holds.iter().map(|hold| renew(&session, *hold, leases))).await;
        let mut held = held.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = Vec::new();
        for (hold, beat) in holds.iter().zip(beats) {
            // Let go of meanwhile.
            let Some(held) = held.iter_mut().find(|held| held.hold.shard == hold.shard) else { continue };
            match beat {
                Ok(Some(wanted)) => {
                    held.renewed = Instant::now();
                    wishes.send_if_modified(|of| of.insert(hold.shard, wanted) != Some(wanted));
                }
                Ok(None) => gone.push(hold.shard),
                Err(error) => {
                    tracing::warn!(shard = %hold.shard, %error, "a heartbeat failed");
                    if held.renewed.elapsed() > leases.lease || session.client.is_closed() {
                        gone.push(hold.shard);
                    }
                }
            }
        }
        if !gone.is_empty() {
            held.retain(|held| !gone.contains(&held.hold.shard));
            // Nobody listens once the move is over.
            report.send_modify(|lost| lost.extend(gone));
        }
    }
}

/// Gives what is wanted of the shard; `None`: its lease is somebody else's.
///
/// Locks: the move's row, and while it is fenced the shard's, for this one transaction.
async fn renew(session: &Session, hold: Hold, leases: Leases) -> Result<Option<Wanted>, Error> {
    let sql = format!(
        "SELECT pgshard.heartbeat($1, $2, $3, $4, $5),
             (SELECT {WANTED} FROM pgshard.move WHERE move_id = $2 AND shard_id = $1)"
    );
    let (id, shard) = (hold.id.uuid(), hold.shard.as_i32());
    let (lease, fence) = (leases.lease_ms(), leases.fence_ms());
    let row = session.row("renewing the lease", &sql, &[&shard, id, &hold.lease, &lease, &fence]).await?;
    let wanted = row.get::<_, Option<String>>(1).and_then(|name| Wanted::parse(&name)).unwrap_or_default();
    Ok(row.get::<_, bool>(0).then_some(wanted))
}

/// Takes the session lock of a shard's mover. False: a mover that has it lives, or is paused.
///
/// Locks: one advisory lock, for as long as the session lives. Nobody waits for it.
async fn lock(session: &Session, hold: Hold) -> Result<bool, Error> {
    let sql = "SELECT pg_try_advisory_lock($1, $2)";
    Ok(session.row("taking the mover's lock", sql, &[&LOCK_CLASS, &hold.shard.as_i32()]).await?.get(0))
}

fn held(entry: &Entry) -> Error {
    let ends_in_ms = entry.lease_left.as_millis() as u64;
    Error::Held { shard: entry.shard, holder: entry.holder.clone(), ends_in_ms }
}
