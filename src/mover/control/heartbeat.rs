//! A mover's signs of life, and how a mover that is gone is told from one that is slow.
//!
//! There are three, each for somebody else. The session lock of its lease is gone the instant its
//! connection ends, so that a resume after a crash need not wait. Its lease, in `pgshard.mover` and
//! in the journal, shows that a mover is paused although its connection stays. The fence's deadline
//! is for routers, who want the shard back whatever happened to the mover. None of them is needed
//! for safety: that comes from the compare-and-swap on the lease's token in every statement.

use crate::mover::protocol::lease::Leases;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::shard::ShardId;

use crate::mover::control::journal::Hold;
use crate::mover::control::requests::DESIRED;
use crate::mover::control::session::Session;
use crate::mover::control::worker::Claimant;
use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::desired::StopRequest;
use crate::mover::protocol::error::Error;

/// The first key of the session locks of movers. The second is the first half of the lease.
pub(in crate::mover) use crate::schema::lock::MOVERS as LOCK_CLASS;

/// Renews a mover's lease and those of the shards that it holds on one host. It has a connection of
/// its own, which holds the lease's session lock.
pub(crate) struct Heartbeat {
    session: Arc<Session>,
    held: Arc<Mutex<Vec<HeldShard>>>,
    lost: watch::Receiver<BTreeSet<ShardId>>,
    desired: watch::Sender<BTreeMap<ShardId, DesiredState>>,
    asked: watch::Receiver<Option<StopRequest>>,
    lease: Uuid,
    leases: Leases,
    task: JoinHandle<()>,
}

struct HeldShard {
    hold: Hold,
    renewed: Instant,
}

impl Heartbeat {
    /// Records that a mover is at work, and keeps doing so. From here on nobody takes from it what
    /// it holds.
    ///
    /// Locks: one advisory lock that nobody waits for, for as long as the session lives; a row of
    /// its own.
    pub(crate) async fn start(
        session: Session,
        claimant: &Claimant,
        leases: Leases,
    ) -> Result<Heartbeat, Error> {
        let (high, _, _, _) = claimant.lease.as_fields();
        let sql = "SELECT pg_advisory_lock($1, $2)";
        session
            .rows(
                "taking the mover's lock",
                sql,
                &[&LOCK_CLASS, &high.cast_signed()],
            )
            .await?;
        session.enter(claimant, leases.lease).await?;
        let session = Arc::new(session);
        let held = Arc::new(Mutex::new(Vec::new()));
        let (report, lost) = watch::channel(BTreeSet::new());
        let desired = watch::Sender::new(BTreeMap::new());
        let (stop_request, asked) = watch::channel(None);
        let lease = claimant.lease;
        let beats = Beats {
            session: session.clone(),
            lease,
            held: held.clone(),
            leases,
            report,
            desired: desired.clone(),
            stop_request,
        };
        let task = tokio::spawn(beats.run());
        Ok(Heartbeat {
            session,
            held,
            lost,
            desired,
            asked,
            lease,
            leases,
            task,
        })
    }

    /// Ends the mover's presence: what it leaves open can be taken over at once.
    pub(crate) async fn end(self) {
        self.task.abort();
        // A courtesy: the lock goes with the connection, and the lease ends by itself.
        if let Err(error) = self.session.depart(self.lease).await {
            tracing::debug!(%error, "the mover's row stays");
        }
    }

    /// The lease under which this mover holds its shards.
    pub(crate) fn lease(&self) -> Uuid {
        self.lease
    }

    pub(in crate::mover) fn leases(&self) -> Leases {
        self.leases
    }

    /// Renews the lease of a shard, which this mover has taken already, from now on.
    pub(crate) async fn hold(&self, hold: Hold) -> Result<(), Error> {
        // A panic elsewhere never leaves the list half changed.
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(HeldShard {
                hold,
                renewed: Instant::now(),
            });
        // The state that was desired before we came is known from the start.
        if let Some(desired) = renew(&self.session, hold, self.leases).await? {
            self.desired.send_modify(|all| {
                all.insert(hold.shard, desired);
            });
        }
        Ok(())
    }

    /// No longer renews the lease of a shard: its move has ended.
    pub(crate) fn let_go(&self, shard: ShardId) {
        self.held
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|held| held.hold.shard != shard);
        self.desired.send_modify(|all| {
            all.remove(&shard);
        });
    }

    /// The desired state of a shard at the last beat.
    pub(crate) fn desired(&self, shard: ShardId) -> DesiredState {
        self.desired
            .borrow()
            .get(&shard)
            .copied()
            .unwrap_or_default()
    }

    /// The desired state of each shard that is held, as it changes.
    pub(crate) fn desired_states(&self) -> watch::Receiver<BTreeMap<ShardId, DesiredState>> {
        self.desired.subscribe()
    }

    /// Waits until somebody asks the mover to stop or to abort. Never returns while nobody does.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn asked(&self) -> StopRequest {
        let mut asked = self.asked.clone();
        match asked
            .wait_for(Option::is_some)
            .await
            .map(|stop_request| stop_request.clone())
        {
            Ok(Some(stop_request)) => stop_request,
            // The task has ended, because every lease is lost: that is reported elsewhere.
            _ => std::future::pending().await,
        }
    }

    /// What the mover was asked for at the last beat.
    pub(crate) fn stop_request(&self) -> Option<StopRequest> {
        self.asked.borrow().clone()
    }

    /// Takes over the feeding of a kept shard: at once if its former feeder is gone, after the
    /// lease if that is paused. The caller calls [`Heartbeat::hold`] next.
    ///
    /// # Errors
    /// [`Error::AtWork`] when somebody keeps renewing its lease.
    pub(crate) async fn take_kept(
        &self,
        source: &Session,
        hold: Hold,
        holder: &str,
    ) -> Result<(), Error> {
        // A paused feeder's lease ends within one lease. The second lease is a margin, because it
        // may just have been renewed.
        let until = Instant::now() + self.leases.lease * 2;
        loop {
            let mut entries = vec![source.entry(hold.id, hold.shard).await?];
            source.add_workers(&mut entries, Some(hold.id)).await?;
            let entry = entries
                .into_iter()
                .next()
                .ok_or(Error::NoSuchMove { id: hold.id })?;
            // A mover lets go of a shard once it is kept, and lives on for its other shards.
            let worker = entry.worker.filter(|_| !entry.lease_left.is_zero());
            match worker {
                None if source
                    .take_over(hold, entry.lease, self.leases, holder)
                    .await? =>
                {
                    return Ok(());
                }
                Some(worker) if Instant::now() >= until => {
                    return Err(Error::AtWork {
                        shard: hold.shard,
                        id: hold.id,
                        worker,
                    });
                }
                _ => {}
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

/// What the task of a heartbeat works with.
struct Beats {
    session: Arc<Session>,
    lease: Uuid,
    held: Arc<Mutex<Vec<HeldShard>>>,
    leases: Leases,
    report: watch::Sender<BTreeSet<ShardId>>,
    desired: watch::Sender<BTreeMap<ShardId, DesiredState>>,
    stop_request: watch::Sender<Option<StopRequest>>,
}

impl Beats {
    async fn run(self) {
        loop {
            tokio::time::sleep(self.leases.beat).await;
            let holds: Vec<Hold> = self.held().iter().map(|held| held.hold).collect();
            // All are sent before the first answer is awaited: hundreds of shards cost one round
            // trip.
            let each = holds
                .iter()
                .map(|hold| renew(&self.session, *hold, self.leases));
            let presence = self
                .session
                .renew_presence(self.lease, self.leases.lease_ms());
            let (presence, beats) = tokio::join!(presence, futures_util::future::join_all(each));
            match presence {
                Ok(Some(stop_request)) => {
                    self.stop_request.send_if_modified(|before| {
                        std::mem::replace(before, stop_request.clone()) != stop_request
                    });
                }
                // The mover that has taken over has taken all shards.
                Ok(None) => tracing::warn!("another mover has taken over"),
                Err(error) => tracing::warn!(%error, "a heartbeat failed"),
            }
            self.judge(&holds, beats);
        }
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<HeldShard>> {
        // A panic elsewhere never leaves the list half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(&self, holds: &[Hold], beats: Vec<Result<Option<DesiredState>, Error>>) {
        let mut held = self.held();
        let mut gone = Vec::new();
        for (hold, beat) in holds.iter().zip(beats) {
            // The shard was let go of meanwhile.
            let Some(held) = held.iter_mut().find(|held| held.hold.shard == hold.shard) else {
                continue;
            };
            match beat {
                Ok(Some(desired)) => {
                    held.renewed = Instant::now();
                    self.desired
                        .send_if_modified(|all| all.insert(hold.shard, desired) != Some(desired));
                }
                Ok(None) => gone.push(hold.shard),
                Err(error) => {
                    tracing::warn!(shard = %hold.shard, %error, "a heartbeat failed");
                    if held.renewed.elapsed() > self.leases.lease || self.session.client.is_closed()
                    {
                        gone.push(hold.shard);
                    }
                }
            }
        }
        if !gone.is_empty() {
            held.retain(|held| !gone.contains(&held.hold.shard));
            // Nobody listens once the move is over.
            self.report.send_modify(|lost| lost.extend(gone));
        }
    }
}

/// Renews the lease and gives the desired state of the shard; `None` if its lease is somebody
/// else's.
///
/// Locks: the move's row, and the shard's while it is fenced, for this one transaction.
async fn renew(
    session: &Session,
    hold: Hold,
    leases: Leases,
) -> Result<Option<DesiredState>, Error> {
    let sql = format!(
        "SELECT pgshard.heartbeat($1, $2, $3, $4, $5),
             (SELECT {DESIRED} FROM pgshard.move WHERE move_id = $2 AND shard_id = $1)"
    );
    let (id, shard) = (hold.id.uuid(), hold.shard.as_i32());
    let (lease, fence) = (leases.lease_ms(), leases.fence_ms());
    let row = session
        .row(
            "renewing the lease",
            &sql,
            &[&shard, id, &hold.lease, &lease, &fence],
        )
        .await?;
    let desired = row
        .get::<_, Option<String>>(1)?
        .and_then(|name| DesiredState::parse(&name))
        .unwrap_or_default();
    Ok(row.get::<_, bool>(0)?.then_some(desired))
}
