//! A mover's signs of life, which distinguish a mover that is gone from one that is slow.
//!
//! There are three, each for a different reader. The session lock of its lease is released the
//! instant its connection ends, so that a resume after a crash need not wait. Its lease, in
//! `pgshard.mover` and in the journal, shows that a mover is paused although its connection is
//! still open. The fence's deadline is for routers, which need the shard back whatever happened to
//! the mover. None of them is needed for safety: that comes from the compare-and-swap on the
//! lease's token in every statement.

use crate::mover::protocol::lease::Leases;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinHandle;
use uuid::Uuid;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::Hold;
use crate::mover::control::requests::DESIRED;
use crate::mover::control::session::Session;
use crate::mover::protocol::desired::DesiredState;
use crate::mover::protocol::desired::StopRequest;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::worker::Claimant;
use crate::pg::cause::chain;

/// The first key of the session locks of movers. The second is the first half of the lease.
pub(in crate::mover) use crate::schema::lock::MOVERS as LOCK_CLASS;

/// How long a mover tries to renew its leases at a host that does not answer, before it gives up
/// its shards. It may be longer than a lease: the lease is a row of that host, so no other mover
/// can take it over during that time, and every statement that changes something names it.
const SILENT_FOR: Duration = Duration::from_secs(60);

/// Renews a mover's lease and those of the shards that it holds on one host. It has a connection of
/// its own, which holds the lease's session lock. One that is lost is opened again.
pub(crate) struct Heartbeat {
    session: SharedSession,
    held: Arc<Mutex<Vec<HeldShard>>>,
    lost: watch::Receiver<BTreeMap<ShardId, Loss>>,
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

/// Why a shard's lease is no longer renewed.
#[derive(Clone, Debug)]
enum Loss {
    /// Another command has taken it.
    Taken,
    /// Its host has not answered for so long.
    Silent(HostName, Duration),
}

impl Loss {
    fn into_error(self, shard: ShardId) -> Error {
        match self {
            Loss::Taken => Error::LeaseLost { shard },
            Loss::Silent(host, silent) => Error::Unrenewed {
                shard,
                host,
                silent,
            },
        }
    }
}

/// The session of the heartbeat, which is replaced when it is lost.
#[derive(Clone)]
struct SharedSession(Arc<Mutex<Arc<Session>>>);

impl SharedSession {
    fn get(&self) -> Arc<Session> {
        // A panic elsewhere never leaves it half replaced.
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn replace(&self, session: Session) -> Arc<Session> {
        let session = Arc::new(session);
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = session.clone();
        session
    }
}

impl Heartbeat {
    /// Records that a mover is at work, and keeps doing so. From here on no other mover takes what
    /// it holds.
    ///
    /// Locks: one advisory lock that no session waits for, for as long as the session lives; a row
    /// of its own.
    pub(crate) async fn start(
        hosts: &Hosts,
        session: Session,
        claimant: &Claimant,
        leases: Leases,
    ) -> Result<Heartbeat, Error> {
        // What it writes need not be durable: a crash only makes a lease or a fence end sooner.
        session.batch(SETTING, ASYNCHRONOUS).await?;
        let sql = "SELECT pg_advisory_lock($1, $2), current_setting('application_name')";
        let name = session
            .row(LOCKING, sql, &[&LOCK_CLASS, &lock_key(claimant.lease)])
            .await?
            .get(1)?;
        session.enter(claimant, leases.lease).await?;
        let session = SharedSession(Arc::new(Mutex::new(Arc::new(session))));
        let held = Arc::new(Mutex::new(Vec::new()));
        let (report, lost) = watch::channel(BTreeMap::new());
        let desired = watch::Sender::new(BTreeMap::new());
        let (stop_request, asked) = watch::channel(None);
        let lease = claimant.lease;
        let beats = Beats {
            hosts: hosts.clone(),
            name,
            is_locked: true,
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

    /// Ends the mover's presence: what it leaves open can be taken over immediately.
    pub(crate) async fn end(self) {
        self.task.abort();
        // A courtesy: the lock goes with the connection, and the lease ends by itself.
        if let Err(error) = self.session.get().depart(self.lease).await {
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
        if let Some(desired) = renew(&self.session.get(), hold, self.leases).await? {
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

    /// Waits until the mover is requested to stop or to abort. Never returns without such a
    /// request.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn requested_stop(&self) -> StopRequest {
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

    /// The request at the last beat.
    pub(crate) fn stop_request(&self) -> Option<StopRequest> {
        self.asked.borrow().clone()
    }

    /// Takes over the feeding of a kept shard: immediately if its former feeder is gone, after the
    /// lease if that is paused. The caller calls [`Heartbeat::hold`] next.
    ///
    /// # Errors
    /// [`Error::AtWork`] when another mover keeps renewing its lease.
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

    /// Waits until the shard's lease is lost, and gives the reason. Never returns while it is held.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(crate) async fn lost(&self, shard: ShardId) -> Error {
        let mut lost = self.lost.clone();
        let loss = lost
            .wait_for(|lost| lost.contains_key(&shard))
            .await
            .ok()
            .and_then(|lost| lost.get(&shard).cloned());
        // Without a reason the task has ended, and with it every lease.
        loss.unwrap_or(Loss::Taken).into_error(shard)
    }

    /// Why the shard's lease is lost; `None` while it is held.
    pub(crate) fn loss(&self, shard: ShardId) -> Option<Error> {
        let loss = self.lost.borrow().get(&shard).cloned();
        loss.map(|loss| loss.into_error(shard))
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What the task of a heartbeat works with.
struct Beats {
    hosts: Hosts,
    /// The `application_name` of its session.
    name: String,
    /// Whether the session has the lease's session lock.
    is_locked: bool,
    session: SharedSession,
    lease: Uuid,
    held: Arc<Mutex<Vec<HeldShard>>>,
    leases: Leases,
    report: watch::Sender<BTreeMap<ShardId, Loss>>,
    desired: watch::Sender<BTreeMap<ShardId, DesiredState>>,
    stop_request: watch::Sender<Option<StopRequest>>,
}

impl Beats {
    async fn run(mut self) {
        loop {
            tokio::time::sleep(self.leases.beat).await;
            let session = match self.opened().await {
                Ok(session) => session,
                Err(error) => {
                    tracing::warn!(error = chain(&error), "a heartbeat failed");
                    self.judge_silence(&self.session.get().host);
                    continue;
                }
            };
            let holds: Vec<Hold> = self.held().iter().map(|held| held.hold).collect();
            // All are sent before the first answer is awaited: hundreds of shards cost one round
            // trip.
            let each = holds.iter().map(|hold| renew(&session, *hold, self.leases));
            let presence = session.renew_presence(self.lease, self.leases.lease_ms());
            let (presence, beats) = tokio::join!(presence, futures_util::future::join_all(each));
            match presence {
                Ok(Some(stop_request)) => {
                    self.stop_request.send_if_modified(|before| {
                        std::mem::replace(before, stop_request.clone()) != stop_request
                    });
                }
                // The mover that has taken over has taken all shards.
                Ok(None) => tracing::warn!("another mover has taken over"),
                Err(error) => tracing::warn!(error = chain(&error), "a heartbeat failed"),
            }
            self.judge(&session.host, &holds, beats);
        }
    }

    /// The session, opened again if it was lost: by a restart of the host, or by something that
    /// ends connections.
    async fn opened(&mut self) -> Result<Arc<Session>, Error> {
        let mut session = self.session.get();
        if session.client.is_closed() {
            let new = self.hosts.open_new(&session.host).await?;
            let sql = "SELECT set_config('application_name', $1, false)";
            new.rows("naming the session", sql, &[&self.name]).await?;
            new.batch(SETTING, ASYNCHRONOUS).await?;
            tracing::info!(host = %new.host, "the session of the heartbeat was opened again");
            (session, self.is_locked) = (self.session.replace(new), false);
        }
        if !self.is_locked {
            // The server may not have noticed yet that the former session is gone.
            let sql = "SELECT pg_try_advisory_lock($1, $2)";
            let key = lock_key(self.lease);
            let row = session.row(LOCKING, sql, &[&LOCK_CLASS, &key]).await?;
            self.is_locked = row.get(0)?;
        }
        Ok(session)
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<HeldShard>> {
        // A panic elsewhere never leaves the list half changed.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn judge(
        &self,
        host: &HostName,
        holds: &[Hold],
        beats: Vec<Result<Option<DesiredState>, Error>>,
    ) {
        let mut gone = BTreeMap::new();
        for (hold, beat) in holds.iter().zip(beats) {
            let mut held = self.held();
            // The shard was released in the meantime.
            let Some(held) = held.iter_mut().find(|held| held.hold.shard == hold.shard) else {
                continue;
            };
            match beat {
                Ok(Some(desired)) => {
                    held.renewed = Instant::now();
                    self.desired
                        .send_if_modified(|all| all.insert(hold.shard, desired) != Some(desired));
                }
                Ok(None) => drop(gone.insert(hold.shard, Loss::Taken)),
                Err(error) => {
                    let (shard, error) = (hold.shard, chain(&error));
                    tracing::warn!(%shard, error, "a heartbeat failed");
                }
            }
        }
        self.mark_lost(gone);
        self.judge_silence(host);
    }

    /// Gives up the shards with leases that could not be renewed for too long.
    fn judge_silence(&self, host: &HostName) {
        let most = SILENT_FOR.max(self.leases.lease);
        let silent = |held: &HeldShard| {
            let silent = held.renewed.elapsed();
            (silent > most).then(|| (held.hold.shard, Loss::Silent(host.clone(), silent)))
        };
        let gone = self.held().iter().filter_map(silent).collect();
        self.mark_lost(gone);
    }

    fn mark_lost(&self, gone: BTreeMap<ShardId, Loss>) {
        if gone.is_empty() {
            return;
        }
        self.held()
            .retain(|held| !gone.contains_key(&held.hold.shard));
        // There is no listener once the move is over.
        self.report.send_modify(|lost| lost.extend(gone));
    }
}

const LOCKING: &str = "taking the mover's lock";
const SETTING: &str = "the heartbeat's settings";
const ASYNCHRONOUS: &str = "SET synchronous_commit = off";

/// The second key of a lease's session lock.
fn lock_key(lease: Uuid) -> i32 {
    let (high, _, _, _) = lease.as_fields();
    high.cast_signed()
}

/// Renews the lease and returns the desired state of the shard; `None` if the lease belongs to
/// another mover.
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
