//! The standbys of a host: which of them a read may be sent to, and whether one has what the reader
//! wants to see.
//!
//! The router determines with its own clock how old the data of a standby is. It reads the position
//! of the primary's log. A standby that has replayed as much shows everything that had been
//! committed at that time. That also detects a standby that receives nothing any more, which it
//! would not report itself.
//!
//! An address may lead to several standbys, and to another one tomorrow. So the checks only decide
//! where a read is worth a try. The connection of the read itself is checked, too, unless that was
//! done a short time ago: a connection leads to one server for as long as it lives. (A pooler must
//! have only one server behind it, because this is not so there.)
//!
//! Invariant: a read is sent only to a standby that is known to show everything that is older than
//! [`Options::max_replica_lag`]. No call waits for the checks, and their rate is bounded, however
//! many calls read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::PgLsn;

use super::endpoint::Endpoint;
use super::error::LookUpError;
use super::lease::Lease;
use super::options::{HostOptions, Options};
use super::peers::Peers;
use super::pool::ConnectionLimit;
use super::sql::{ShardStatement, Sql};
use super::standby_state::{StandbyState, Why};
use super::statements::Prepare;
use crate::map::HostName;
use crate::pg::ConnectOptions;

/// Reads a primary's identity and the position of its log. The flushed position counts, because no
/// standby gets more than that. A standby gives no row.
///
/// The identity is the system identifier, which standbys share, with the host's name that bootstrap
/// recorded: servers that were made from one backup have the same identifier.
const PRIMARY: &str = "SELECT pg_catalog.concat_ws(' ', system_identifier, (SELECT host_name FROM \
    pgshard.cluster)), \
    pg_catalog.pg_current_wal_flush_lsn() FROM pg_catalog.pg_control_system() WHERE NOT \
    pg_catalog.pg_is_in_recovery()";

/// Reads a standby's identity and how far it has replayed. A primary gives no row: for all that is
/// known, a server that was promoted is no standby of this host any more.
const STANDBY: &str = "SELECT pg_catalog.concat_ws(' ', system_identifier, (SELECT host_name FROM \
    pgshard.cluster)), \
    pg_catalog.pg_last_wal_replay_lsn() FROM pg_catalog.pg_control_system() WHERE \
    pg_catalog.pg_is_in_recovery()";

/// How long an answer may take, the connection included.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// How often the position of a standby is read while calls wait for it, and how often that of one
/// that does not answer.
const POLL_EVERY: Duration = Duration::from_millis(2);
const POLL_FAILED: Duration = Duration::from_millis(50);

/// The standbys of one host.
pub(super) struct Replicas {
    standbys: Vec<Arc<Standby>>,
    lag_max: Duration,
    wait_max: Duration,
    /// The next standby.
    next: AtomicUsize,
    /// When all were last checked.
    checked: Mutex<Option<Instant>>,
    /// Whether a check is running.
    checking: AtomicBool,
    primary: Mutex<Primary>,
}

/// One standby.
pub(super) struct Standby {
    /// Its pools and its circuit, under the name of the host that it is a standby of.
    pub(super) host: Endpoint,
    address: String,
    /// The standby is known to show all that was committed by then.
    fresh_at: Mutex<Option<Instant>>,
    /// How far it is.
    replayed: watch::Sender<u64>,
    /// Whether a task polls it for the calls that wait.
    polling: AtomicBool,
    /// Whether the log has already reported that the server is no standby of this host.
    warned: AtomicBool,
}

/// The position of the primary's log, and when it was read.
#[derive(Default)]
struct Primary {
    identity: Option<String>,
    /// The newest is last. The others are so far apart that they reach back beyond the limit.
    positions: VecDeque<(Instant, u64)>,
}

impl Primary {
    const POSITIONS_MAX: usize = 8;

    fn add(&mut self, asked: Instant, identity: String, position: u64, lag_max: Duration) {
        self.identity = Some(identity);
        let mut newest = self.positions.iter().rev();
        if let (Some((last, _)), Some((before, _))) = (newest.next(), newest.next())
            && last.saturating_duration_since(*before) < lag_max / 4
        {
            self.positions.pop_back();
        }
        if self.positions.len() == Self::POSITIONS_MAX {
            self.positions.pop_front();
        }
        self.positions.push_back((asked, position));
    }

    /// A server that has replayed up to `replayed` shows everything that was committed by this
    /// time.
    fn fresh_at(&self, replayed: u64) -> Option<Instant> {
        let reached = self
            .positions
            .iter()
            .rev()
            .find(|(_, position)| *position <= replayed);
        reached.map(|(asked, _)| *asked)
    }
}

impl Replicas {
    /// Makes the standbys. Opens no connection.
    pub(super) fn new(
        host: &HostOptions,
        options: &Options,
        limit: Option<&ConnectionLimit>,
        peers: &Arc<Peers>,
    ) -> Replicas {
        let standby = |connect: &ConnectOptions| {
            let own = HostOptions {
                connect: connect.clone(),
                replicas: Vec::new(),
                ..host.clone()
            };
            Arc::new(Standby {
                host: Endpoint::new(&own, options, limit, peers),
                address: connect.addresses().join(","),
                fresh_at: Mutex::new(None),
                replayed: watch::Sender::new(0),
                polling: AtomicBool::new(false),
                warned: AtomicBool::new(false),
            })
        };
        Replicas {
            standbys: host.replicas.iter().map(standby).collect(),
            lag_max: options.max_replica_lag,
            wait_max: options.replica_wait,
            next: AtomicUsize::new(0),
            checked: Mutex::new(None),
            checking: AtomicBool::new(false),
            primary: Mutex::default(),
        }
    }

    /// The standbys, each with its connections.
    pub(super) fn endpoints(&self) -> impl Iterator<Item = &Endpoint> {
        self.standbys.iter().map(|standby| &standby.host)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.standbys.is_empty()
    }

    /// The time between two checks. What a check finds out holds for the rest of the limit.
    fn checks_every(&self) -> Duration {
        (self.lag_max / 4).clamp(Duration::from_millis(25), Duration::from_secs(1))
    }

    /// Chooses a standby for one read, in turn among those within the limit. With `position`, the
    /// standby has replayed that; the call may wait for it.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn choose(
        self: &Arc<Self>,
        host: &Arc<Endpoint>,
        position: Option<u64>,
    ) -> Result<Arc<Standby>, Why> {
        let now = Instant::now();
        self.check_if_due(host, now);
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.standbys.len();
        let in_turn = (0..count).map(|at| &self.standbys[first.wrapping_add(at) % count]);
        let mut usable = in_turn.filter(|standby| {
            standby.is_fresh(now, self.lag_max) && !standby.host.circuit.is_open()
        });
        let Some(position) = position else {
            return usable.next().cloned().ok_or(Why::Lagging);
        };
        let usable: Vec<&Arc<Standby>> = usable.collect();
        if let Some(there) = usable
            .iter()
            .find(|standby| *standby.replayed.borrow() >= position)
        {
            return Ok(Arc::clone(there));
        }
        let standby = usable.first().ok_or(Why::Lagging)?;
        if standby.reaches(position, self.wait_max).await {
            Ok(Arc::clone(standby))
        } else {
            Err(Why::Behind)
        }
    }

    /// Whether this connection's server is within the limit, and has replayed `position`.
    ///
    /// # Errors
    /// Why not. With [`Why::Failed`] the server has not answered, and the connection may be closed.
    pub(super) async fn shows(&self, lease: &mut Lease, position: Option<u64>) -> Result<(), Why> {
        let why = |shown: StandbyState| match position {
            Some(position) if shown.replayed < position => Why::Behind,
            _ => Why::Lagging,
        };
        let known = *lease
            .session()
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if known.is_some_and(|shown| shown.is_enough(position, self.lag_max)) {
            return Ok(());
        }
        let said = match tokio::time::timeout(ANSWER_MAX, read_position(lease, STANDBY)).await {
            Ok(Ok(said)) => said,
            Ok(Err(_)) | Err(_) => return Err(Why::Failed),
        };
        let Some((identity, replayed)) = said else {
            return Err(Why::Lagging);
        };
        let fresh_at = {
            let primary = self.primary();
            let own = primary
                .identity
                .as_ref()
                .is_none_or(|primary| *primary == identity);
            own.then(|| primary.fresh_at(replayed)).flatten()
        };
        let shown = StandbyState { fresh_at, replayed };
        *lease
            .session()
            .shown
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(shown);
        if shown.is_enough(position, self.lag_max) {
            Ok(())
        } else {
            Err(why(shown))
        }
    }

    /// Starts a task that checks primary and standbys, unless they were checked a short time ago.
    fn check_if_due(self: &Arc<Self>, host: &Arc<Endpoint>, now: Instant) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let early =
            checked.is_some_and(|at| now.saturating_duration_since(at) < self.checks_every());
        if early || self.checking.swap(true, Ordering::Relaxed) {
            return;
        }
        *checked = Some(now);
        let (replicas, host) = (self.clone(), host.clone());
        tokio::spawn(async move {
            let _checking = Checking(&replicas.checking);
            replicas.check(&host).await;
        });
    }

    async fn check(&self, host: &Endpoint) {
        let asked = Instant::now();
        match answer(host, PRIMARY).await {
            Ok(Some((identity, position))) => {
                self.primary().add(asked, identity, position, self.lag_max)
            }
            Ok(None) => tracing::debug!(host = %host.name, "what should be a primary is a standby"),
            Err(error) => {
                tracing::debug!(host = %host.name, %error, "a primary does not say where its log \
                    is")
            }
        }
        join_all(
            self.standbys
                .iter()
                .map(|standby| standby.check(&host.name, self)),
        )
        .await;
    }

    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Notes that no check runs once its task ends, however it ends.
struct Checking<'a>(&'a AtomicBool);

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

impl Standby {
    fn is_fresh(&self, now: Instant, lag_max: Duration) -> bool {
        let fresh_at = *self.fresh_at.lock().unwrap_or_else(PoisonError::into_inner);
        fresh_at.is_some_and(|at| now.saturating_duration_since(at) <= lag_max)
    }

    fn set_fresh_at(&self, at: Option<Instant>) {
        *self.fresh_at.lock().unwrap_or_else(PoisonError::into_inner) = at;
    }

    async fn check(&self, host: &HostName, replicas: &Replicas) {
        let strange = |what: &str| {
            self.set_fresh_at(None);
            if !self.warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(host = %host, standby = %self.address, "{what}: nothing is read \
                    there");
            }
        };
        match answer(&self.host, STANDBY).await {
            Ok(Some((identity, replayed))) => {
                let (fresh_at, own) = {
                    let primary = replicas.primary();
                    (
                        primary.fresh_at(replayed),
                        primary
                            .identity
                            .as_ref()
                            .is_none_or(|primary| *primary == identity),
                    )
                };
                if !own {
                    return strange("the server is a standby of another one");
                }
                self.warned.store(false, Ordering::Relaxed);
                let before = self.replayed.send_replace(replayed);
                // A standby that has reached none of the primary's positions keeps its time, which
                // grows old. But if it is behind what it had replayed before, it is another server.
                if fresh_at.is_some() || replayed < before {
                    self.set_fresh_at(fresh_at);
                }
            }
            // The server is a primary. A host's own address may be in the list.
            Ok(None) => self.set_fresh_at(None),
            Err(LookUpError::Differs(error)) => strange(&error.to_string()),
            Err(error) => {
                tracing::debug!(host = %host, standby = %self.address, %error, "a standby does not \
                    say how far it is")
            }
        }
        if let Some(at) = *self.fresh_at.lock().unwrap_or_else(PoisonError::into_inner) {
            super::metrics::replica_lag(host, &self.address, at.elapsed());
        }
    }

    /// Waits until the standby has replayed `position`; false when the time is over first. However
    /// many calls wait, one task polls for all of them.
    async fn reaches(self: &Arc<Self>, position: u64, wait_max: Duration) -> bool {
        let mut replayed = self.replayed.subscribe();
        self.poll();
        let reached = replayed.wait_for(|replayed| *replayed >= position);
        tokio::time::timeout(wait_max, reached)
            .await
            .is_ok_and(|reached| reached.is_ok())
    }

    /// Polls the standby's position while calls wait.
    fn poll(self: &Arc<Self>) {
        if self.polling.swap(true, Ordering::AcqRel) {
            return;
        }
        // Moved into the task, so that it is dropped with the runtime even if that ends first.
        let polling = Polling {
            standby: self.clone(),
            goes_on: true,
        };
        tokio::spawn(async move {
            let mut polling = polling;
            loop {
                let standby = &polling.standby;
                let pause = match answer(&standby.host, STANDBY).await {
                    Ok(Some((_, replayed))) => {
                        standby.replayed.send_replace(replayed);
                        POLL_EVERY
                    }
                    Ok(None) | Err(_) => POLL_FAILED,
                };
                tokio::time::sleep(pause).await;
                if standby.replayed.receiver_count() == 0 {
                    standby.polling.store(false, Ordering::Release);
                    // A call that arrived in between found `polling` set, and relies on this task.
                    if standby.replayed.receiver_count() == 0
                        || standby.polling.swap(true, Ordering::AcqRel)
                    {
                        polling.goes_on = false;
                        return;
                    }
                }
            }
        });
    }
}

/// Records that the standby is not polled once its task ends, however it ends: a router can outlive
/// the runtime that the task ran in.
struct Polling {
    standby: Arc<Standby>,
    /// Whether the task has not ended by itself. Then `polling` may belong to another one.
    goes_on: bool,
}

impl Drop for Polling {
    fn drop(&mut self) {
        if self.goes_on {
            self.standby.polling.store(false, Ordering::Release);
        }
    }
}

/// Reads a server's identity and its position in the log. `None` if it is a standby and the query
/// is for a primary, or the other way round.
async fn answer(host: &Endpoint, text: &'static str) -> Result<Option<(String, u64)>, LookUpError> {
    let sql = Sql::new(text);
    match tokio::time::timeout(ANSWER_MAX, host.query_control(&sql, &[])).await {
        Ok(rows) => read(&rows?),
        Err(_) => {
            host.circuit.doubt();
            Err(LookUpError::TimedOut(ANSWER_MAX))
        }
    }
}

/// Does the same on the connection that a read will run on.
async fn read_position(
    lease: &mut Lease,
    text: &'static str,
) -> Result<Option<(String, u64)>, LookUpError> {
    let sql = Sql::new(text);
    let rows: Result<Vec<SqlRow>, _> = lease
        .run(ShardStatement::alone(&sql), &[], Prepare::Once)
        .await;
    read(&rows.map_err(|failed| LookUpError::Statement(failed.error))?)
}

fn read(rows: &[SqlRow]) -> Result<Option<(String, u64)>, LookUpError> {
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let column = |error: tokio_postgres::Error| LookUpError::Answer(error.to_string());
    let identity = row.try_get(0).map_err(column)?;
    // Null where nothing was replayed since the start.
    let position: Option<PgLsn> = row.try_get(1).map_err(column)?;
    Ok(Some((identity, position.map_or(0, u64::from))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_fresh_a_standby_is_known_to_be() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut primary = Primary::default();
        assert_eq!(
            primary.fresh_at(u64::MAX),
            None,
            "nothing is known of the primary"
        );
        let add = |primary: &mut Primary, seconds, position, lag_max| {
            primary.add(
                at(seconds),
                "7 db1".to_owned(),
                position,
                Duration::from_secs(lag_max),
            );
        };
        for (seconds, position) in [(0, 100), (1, 200), (2, 200), (3, 300)] {
            add(&mut primary, seconds, position, 4);
        }
        for (replayed, fresh_at) in [
            (99, None),
            (100, Some(at(0))),
            (199, Some(at(0))),
            (200, Some(at(2))),
            (300, Some(at(3))),
            (900, Some(at(3))),
        ] {
            assert_eq!(primary.fresh_at(replayed), fresh_at, "{replayed}");
        }
        for seconds in 4..100 {
            add(&mut primary, seconds, 400, 4);
        }
        assert_eq!(primary.positions.len(), Primary::POSITIONS_MAX);
        assert_eq!(primary.fresh_at(300), None, "too long ago");

        // A large limit works as well: the newest position is kept, and some as far back as the
        // limit.
        let mut primary = Primary::default();
        for seconds in 0..1000 {
            add(&mut primary, seconds, seconds, 60);
        }
        for ago in [0, 14, 29, 44, 60] {
            let fresh_at = primary
                .fresh_at(999 - ago)
                .expect("something is known of the last minute");
            let too_old = at(999 - ago) - fresh_at;
            assert!(too_old <= Duration::from_secs(16), "{ago}: {too_old:?}");
        }
    }
}
