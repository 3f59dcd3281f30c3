//! The standbys of a host: which of them a read may be sent to, and whether one has what the reader wants to see.
//!
//! How old it is what a standby shows, the router finds out with its own clock. It asks the primary where its log is; a
//! standby that has replayed as much has all that had been committed when the primary was asked. A standby that nothing
//! reaches any more is found out like that too, which its own word would not tell.
//!
//! An address may lead to several standbys, and to another one tomorrow. So what the checks find out only says where a
//! read is worth a try: the connection that it runs on is asked itself, unless it was not long ago; it leads to one
//! server for as long as it is there (but through a pooler, which is to have one server behind it).
//!
//! Invariant: no read goes to a standby that is not known, by now, to show everything that is older than
//! [`Options::max_replica_lag`]; nobody's call waits for that to be found out; and servers are asked at a bounded rate,
//! however many read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::watch;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::PgLsn;

use super::error::LookUpError;
use super::host::Host;
use super::options::{HostOptions, Options};
use super::peers::Peers;
use super::pool::ConnectionLimit;
use super::session::{Lease, Prepare};
use super::sql::{Rendered, Sql};
use crate::map::HostName;
use crate::pg::ConnectOptions;

/// Who it is and where its log. What is flushed counts: more than that no standby gets. No row from a standby.
///
/// A server is known by its system's number, which standbys share, and by the host's name that bootstrap recorded:
/// servers that were made of one backup share the number.
const PRIMARY: &str = "SELECT pg_catalog.concat_ws(' ', system_identifier, (SELECT host_name FROM pgshard.cluster)), \
    pg_catalog.pg_current_wal_flush_lsn() FROM pg_catalog.pg_control_system() WHERE NOT pg_catalog.pg_is_in_recovery()";

/// No row from a primary: one that was promoted is no standby of this host any more, as far as we know.
const STANDBY: &str = "SELECT pg_catalog.concat_ws(' ', system_identifier, (SELECT host_name FROM pgshard.cluster)), \
    pg_catalog.pg_last_wal_replay_lsn() FROM pg_catalog.pg_control_system() WHERE pg_catalog.pg_is_in_recovery()";

/// How long an answer may take, the connection included.
const ANSWER_MAX: Duration = Duration::from_secs(2);

/// A standby that readers wait for is asked so often how far it is, and one that does not answer so much less often.
const POLL_EVERY: Duration = Duration::from_millis(2);
const POLL_FAILED: Duration = Duration::from_millis(50);

/// The standbys of one host.
pub(super) struct Replicas {
    standbys: Vec<Arc<Standby>>,
    lag_max: Duration,
    wait_max: Duration,
    /// Whose turn it is.
    next: AtomicUsize,
    /// When all were last asked.
    checked: Mutex<Option<Instant>>,
    /// Whether that goes on.
    checking: AtomicBool,
    primary: Mutex<Primary>,
}

/// One standby.
pub(super) struct Standby {
    /// Its pools and its circuit, under the name of the host whose standby it is.
    pub(super) host: Host,
    address: String,
    /// It is known to show all that was committed by then.
    fresh_at: Mutex<Option<Instant>>,
    /// How far it is.
    replayed: watch::Sender<u64>,
    /// Whether it is being asked on behalf of those who wait.
    polling: AtomicBool,
    /// Whether it was told that the server is none.
    warned: AtomicBool,
}

/// What a connection's server showed when it was asked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shown {
    /// All that was committed by then; `None`: not known how old it is.
    fresh_at: Option<Instant>,
    /// How far it is. No server goes back while a connection to it lives.
    replayed: u64,
}

impl Shown {
    fn is_enough(self, position: Option<u64>, lag_max: Duration) -> bool {
        let is_fresh = self.fresh_at.is_some_and(|at| at.elapsed() <= lag_max);
        is_fresh && position.is_none_or(|position| position <= self.replayed)
    }
}

/// Where the primary's log was, and when it was asked.
#[derive(Default)]
struct Primary {
    identity: Option<String>,
    /// The newest last; those before it so far apart that they reach back beyond the limit.
    positions: VecDeque<(Instant, u64)>,
}

/// Why a read goes to the primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// No standby is known to be within the limit.
    Lagging,
    /// None has reached the reader's position in time.
    Behind,
    /// The standby did not answer, or with an error.
    Failed,
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

    /// By when everything was committed that one shows who has replayed so much.
    fn fresh_at(&self, replayed: u64) -> Option<Instant> {
        let reached = self.positions.iter().rev().find(|(_, position)| *position <= replayed);
        reached.map(|(asked, _)| *asked)
    }
}

impl Replicas {
    /// No connection is opened.
    pub(super) fn new(
        host: &HostOptions,
        options: &Options,
        limit: Option<&ConnectionLimit>,
        peers: &Arc<Peers>,
    ) -> Replicas {
        let standby = |connect: &ConnectOptions| {
            let own = HostOptions { connect: connect.clone(), replicas: Vec::new(), ..host.clone() };
            Arc::new(Standby {
                host: Host::new(&own, options, limit, peers),
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

    /// The standbys, as hosts of their own.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.standbys.iter().map(|standby| &standby.host)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.standbys.is_empty()
    }

    /// From one check to the next. What it finds out holds for the rest of the limit.
    fn checks_every(&self) -> Duration {
        (self.lag_max / 4).clamp(Duration::from_millis(25), Duration::from_secs(1))
    }

    /// A standby for one read; in turn, of those that are within the limit. With `position` it has replayed that, which
    /// may be waited for.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub(super) async fn choose(&self, host: &Arc<Host>, position: Option<u64>) -> Result<Arc<Standby>, Why> {
        let now = Instant::now();
        self.check_if_due(host, now);
        let first = self.next.fetch_add(1, Ordering::Relaxed);
        let count = self.standbys.len();
        let in_turn = (0..count).map(|at| &self.standbys[first.wrapping_add(at) % count]);
        let mut usable =
            in_turn.filter(|standby| standby.is_fresh(now, self.lag_max) && !standby.host.circuit.is_open());
        let Some(position) = position else {
            return usable.next().cloned().ok_or(Why::Lagging);
        };
        let usable: Vec<&Arc<Standby>> = usable.collect();
        if let Some(there) = usable.iter().find(|standby| *standby.replayed.borrow() >= position) {
            return Ok(Arc::clone(there));
        }
        let standby = usable.first().ok_or(Why::Lagging)?;
        if standby.reaches(position, self.wait_max).await { Ok(Arc::clone(standby)) } else { Err(Why::Behind) }
    }

    /// Whether the server of this very connection is near enough, and has replayed `position`.
    ///
    /// # Errors
    /// Why not, or that it does not say; then the connection may be closed.
    pub(super) async fn shows(&self, lease: &mut Lease, position: Option<u64>) -> Result<(), Why> {
        let why = |shown: Shown| match position {
            Some(position) if shown.replayed < position => Why::Behind,
            _ => Why::Lagging,
        };
        let known = *lease.session().shown.lock().unwrap_or_else(PoisonError::into_inner);
        if known.is_some_and(|shown| shown.is_enough(position, self.lag_max)) {
            return Ok(());
        }
        let said = match tokio::time::timeout(ANSWER_MAX, ask(lease, STANDBY)).await {
            Ok(Ok(said)) => said,
            Ok(Err(_)) | Err(_) => return Err(Why::Failed),
        };
        let Some((identity, replayed)) = said else { return Err(Why::Lagging) };
        let fresh_at = {
            let primary = self.primary();
            let own = primary.identity.as_ref().is_none_or(|primary| *primary == identity);
            own.then(|| primary.fresh_at(replayed)).flatten()
        };
        let shown = Shown { fresh_at, replayed };
        *lease.session().shown.lock().unwrap_or_else(PoisonError::into_inner) = Some(shown);
        if shown.is_enough(position, self.lag_max) { Ok(()) } else { Err(why(shown)) }
    }

    /// Asks primary and standbys, if that was not done lately; in a task of its own.
    fn check_if_due(&self, host: &Arc<Host>, now: Instant) {
        let mut checked = self.checked.lock().unwrap_or_else(PoisonError::into_inner);
        let early = checked.is_some_and(|at| now.saturating_duration_since(at) < self.checks_every());
        if early || self.checking.swap(true, Ordering::Relaxed) {
            return;
        }
        *checked = Some(now);
        let host = host.clone();
        tokio::spawn(async move {
            let _checking = Checking(&host.replicas.checking);
            host.replicas.check(&host).await;
        });
    }

    async fn check(&self, host: &Host) {
        let asked = Instant::now();
        match answer(host, PRIMARY).await {
            Ok(Some((identity, position))) => self.primary().add(asked, identity, position, self.lag_max),
            Ok(None) => tracing::debug!(host = %host.name, "what should be a primary is a standby"),
            Err(error) => tracing::debug!(host = %host.name, %error, "a primary does not say where its log is"),
        }
        join_all(self.standbys.iter().map(|standby| standby.check(&host.name, self))).await;
    }

    fn primary(&self) -> MutexGuard<'_, Primary> {
        self.primary.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Ends with its task, however that ends.
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
                tracing::warn!(host = %host, standby = %self.address, "{what}: nothing is read there");
            }
        };
        match answer(&self.host, STANDBY).await {
            Ok(Some((identity, replayed))) => {
                let (fresh_at, own) = {
                    let primary = replicas.primary();
                    (primary.fresh_at(replayed), primary.identity.as_ref().is_none_or(|primary| *primary == identity))
                };
                if !own {
                    return strange("the server is a standby of another one");
                }
                self.warned.store(false, Ordering::Relaxed);
                let before = self.replayed.send_replace(replayed);
                // One that has reached none of them is what it was, and ages; but for one that is behind what it was:
                // it is another.
                if fresh_at.is_some() || replayed < before {
                    self.set_fresh_at(fresh_at);
                }
            }
            // Of several addresses of a host, one is the primary.
            Ok(None) => self.set_fresh_at(None),
            Err(LookUpError::Differs(error)) => strange(&error.to_string()),
            Err(error) => {
                tracing::debug!(host = %host, standby = %self.address, %error, "a standby does not say how far it is")
            }
        }
        if let Some(at) = *self.fresh_at.lock().unwrap_or_else(PoisonError::into_inner) {
            super::metrics::replica_lag(host, &self.address, at.elapsed());
        }
    }

    /// Comes back when the standby has replayed so much, or the time is over: then false. However many wait, it is
    /// asked once for all.
    async fn reaches(self: &Arc<Self>, position: u64, wait_max: Duration) -> bool {
        let mut replayed = self.replayed.subscribe();
        self.poll();
        let reached = replayed.wait_for(|replayed| *replayed >= position);
        tokio::time::timeout(wait_max, reached).await.is_ok_and(|reached| reached.is_ok())
    }

    /// Asks the standby how far it is, again and again, while somebody waits.
    fn poll(self: &Arc<Self>) {
        if self.polling.swap(true, Ordering::AcqRel) {
            return;
        }
        let standby = self.clone();
        tokio::spawn(async move {
            loop {
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
                    // Who came meanwhile relied on this task.
                    if standby.replayed.receiver_count() == 0 || standby.polling.swap(true, Ordering::AcqRel) {
                        return;
                    }
                }
            }
        });
    }
}

/// Asks a server who it is and where in its log. `None` when it is not what the question is for.
async fn answer(host: &Host, text: &'static str) -> Result<Option<(String, u64)>, LookUpError> {
    let sql = Sql::new(text);
    let asking = async {
        let mut tries = 0;
        loop {
            tries += 1;
            let mut lease = host.control().await?;
            match lease.run::<Vec<SqlRow>>(Rendered::alone(&sql), &[], Prepare::Once).await {
                Ok(rows) => return read(&rows),
                // A connection that died while it was idle is found out by its first use; a later one is new.
                Err(failed) if failed.lost(&lease.session().connection) && tries <= Host::LOOK_UPS => lease.discard(),
                Err(failed) => return Err(LookUpError::Statement(failed.error)),
            }
        }
    };
    match tokio::time::timeout(ANSWER_MAX, asking).await {
        Ok(said) => said,
        Err(_) => {
            host.circuit.doubt();
            Err(LookUpError::TimedOut(ANSWER_MAX))
        }
    }
}

/// The same on a connection that a read is to run on.
async fn ask(lease: &mut Lease, text: &'static str) -> Result<Option<(String, u64)>, LookUpError> {
    let sql = Sql::new(text);
    let rows: Result<Vec<SqlRow>, _> = lease.run(Rendered::alone(&sql), &[], Prepare::Once).await;
    read(&rows.map_err(|failed| LookUpError::Statement(failed.error))?)
}

fn read(rows: &[SqlRow]) -> Result<Option<(String, u64)>, LookUpError> {
    let Some(row) = rows.first() else { return Ok(None) };
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
        assert_eq!(primary.fresh_at(u64::MAX), None, "nothing is known of the primary");
        let add = |primary: &mut Primary, seconds, position, lag_max| {
            primary.add(at(seconds), "7 db1".to_owned(), position, Duration::from_secs(lag_max));
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

        // With a large limit as well, what it needs to know is known: the newest, and some as far back as the limit.
        let mut primary = Primary::default();
        for seconds in 0..1000 {
            add(&mut primary, seconds, seconds, 60);
        }
        for ago in [0, 14, 29, 44, 60] {
            let fresh_at = primary.fresh_at(999 - ago).expect("something is known of the last minute");
            let too_old = at(999 - ago) - fresh_at;
            assert!(too_old <= Duration::from_secs(16), "{ago}: {too_old:?}");
        }
    }
}
