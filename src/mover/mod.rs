//! Moves: taking shards from host to host while the application writes (`ARCHITECTURE.md` has the
//! steps as a table, `docs/operating.md` is for operators).
//!
//! [`Mover::plan`] reads and judges, [`Mover::run`] does it, [`Mover::resume`] and [`Mover::abort`] go on after a stop,
//! from any machine: the state is in the databases. [`Mover::complete`] drops the old copy, [`Mover::gc`] what dead moves
//! left.
//!
//! # What may not break
//! 1. At most one host serves a shard; between fence and open, none.
//! 2. Before decide a move can only be undone, after it only finished.
//! 3. Every change of who serves is one compare-and-swap, in a function of the control schema.
//! 4. A step may run twice. An object is in a ledger before, or together with, its creation.
//! 5. The map is never the fence.

mod audit;
mod back;
pub mod border;
pub(crate) mod chunk;
mod cleanup;
pub(crate) mod copy;
mod cutover;
pub mod ddl;
mod driver;
mod error;
mod facts;
mod failpoint;
mod group;
pub(crate) mod guard;
mod heartbeat;
mod journal;
#[cfg(test)]
mod model;
mod names;
mod observe;
mod options;
mod plan;
mod preflight;
mod progress;
mod refusal;
pub mod sequences;
mod session;
mod state;
mod step;
mod stream;
pub mod target;
pub(crate) mod throttle;
pub mod trace;
mod turn;
mod verdict;
mod verify;
mod wish;
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;

use crate::map::HostName;
use crate::shard::{SchemaPrefix, ShardId};
use crate::store::MapStore;

pub use chunk::verify::RowDifference;
pub use cleanup::{Cleaned, CleanupReport};
pub use error::{Error, Rival};
pub use failpoint::{AUDIT_FAILPOINTS, Action, BACK_FAILPOINTS, FAILPOINTS, Failpoint};
pub use heartbeat::Leases;
pub use journal::{Entry, WayBack};
pub use names::MoveId;
pub use options::{Event, Observer, Options};
pub use plan::{Plan, ShardPlan};
pub use progress::{Chunks, Progress, ShardProgress, StreamProgress};
pub use refusal::Refusal;
pub use session::Hosts;
pub use state::{Mode, Phase};
#[doc(hidden)]
pub use stream::testing as stream_testing;
pub use verdict::{Audit, AuditDifference, AuditState, LeftOut, Unaudited};
pub use wish::{Back, FenceAt, Wanted};
pub use worker::{Asked, Wish, Work, Worker};

#[cfg(test)]
pub(crate) use journal::Hold;
#[cfg(test)]
pub(crate) use session::Session;

use driver::{Part, Scope, Shared, Start};
use state::Goal;
use throttle::Throttle;

/// What is asked for.
#[derive(Clone, Debug)]
pub struct Request {
    /// The shards, from whatever hosts.
    pub shards: Vec<ShardId>,
    /// Where they shall go.
    pub target: HostName,
    /// How; where it is `None`, online if all of the sources have `wal_level = logical`.
    pub mode: Option<Mode>,
}

/// One shard that was moved (or whose move was aborted).
#[derive(Clone, Debug, PartialEq)]
pub struct ShardReport {
    /// The shard.
    pub shard: ShardId,
    /// Where it was.
    pub source: HostName,
    /// Where it was to go.
    pub target: HostName,
    /// How far its move is.
    pub phase: Phase,
    /// Rows copied.
    pub rows: u64,
    /// Bytes that went over the wire.
    pub bytes: u64,
    /// How long the copy took.
    pub copy: Duration,
    /// How long nobody could use the shard; `None` if that is not known.
    pub pause: Option<Duration>,
    /// What became of its audit.
    pub audit: Audit,
}

impl ShardReport {
    fn of(entry: &Entry) -> ShardReport {
        let timing = |name: &str| entry.timings.get(name).and_then(|ms| ms.as_f64());
        let duration = |ms: f64| Duration::try_from_secs_f64(ms / 1e3).unwrap_or_default();
        ShardReport {
            shard: entry.shard,
            source: entry.source.clone(),
            target: entry.target.clone(),
            phase: entry.phase,
            rows: entry.rows.and_then(|rows| u64::try_from(rows).ok()).unwrap_or(0),
            bytes: entry.bytes.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(0),
            copy: timing("copy_ms").map(duration).unwrap_or_default(),
            pause: timing("pause_ms").map(duration),
            audit: entry.audit.clone(),
        }
    }
}

/// How a move, a resume or an abort ended, shard by shard.
#[derive(Debug)]
pub struct Report {
    /// The move.
    pub id: MoveId,
    /// The shards that got where they should.
    pub done: Vec<ShardReport>,
    /// The others, each with why. What one of them left behind, [`Error`] says.
    pub failed: Vec<(ShardId, Error)>,
    /// The hosts that could not be asked: more shards of the move may come from there.
    pub unknown: Vec<(HostName, Error)>,
}

/// Moves shards between the hosts of a cluster.
///
/// Cheap to clone; clones share [`Mover::stop`].
#[derive(Clone)]
pub struct Mover {
    hosts: Hosts,
    prefix: SchemaPrefix,
    store: Arc<dyn MapStore>,
    options: Arc<Options>,
    observer: Observer,
    stop: watch::Sender<bool>,
    throttle: Throttle,
}

impl Mover {
    /// A mover for these hosts that publishes to this store.
    pub fn new(
        hosts: Hosts,
        prefix: SchemaPrefix,
        store: Arc<dyn MapStore>,
        options: Options,
        observer: Observer,
    ) -> Mover {
        let (stop, throttle) = (watch::Sender::new(false), Throttle::of(options.rate_max));
        Mover { hosts, prefix, store, options: Arc::new(options), observer, stop, throttle }
    }

    /// Reads everything that matters and judges it. No writes.
    ///
    /// # Errors
    /// [`Error::Refused`] with every reason; the others when a host cannot be asked.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn plan(&self, request: &Request) -> Result<Plan, Error> {
        preflight::plan(self, request).await
    }

    /// Moves what the plan says. Returns when every shard has got to its end, good or bad; one shard's failure does not
    /// stop the others.
    ///
    /// # Cancel safety
    /// Dropped, it leaves the move as a crash would: resume or abort it. Use [`Mover::stop`] for a tidy end.
    pub async fn run(&self, plan: &Plan) -> Report {
        let id = MoveId::new();
        self.observer.tell(Event::Started { id, shards: plan.shards.len() });
        let part = |shard: &ShardPlan| Part {
            id,
            shard: shard.shard,
            source: shard.source.clone(),
            target: plan.target.clone(),
            mode: plan.mode,
            epoch: shard.epoch,
            start: Start::Claim,
            back_of: None,
            back: self.options.back,
        };
        report(id, driver::work(self, plan.shards.iter().map(part).collect(), Goal::Finish, Scope::Named).await)
    }

    /// Goes on with a move that was interrupted: every shard of it that is not at its end.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no host that can be asked knows the move.
    ///
    /// # Cancel safety
    /// As [`Mover::run`].
    pub async fn resume(&self, id: MoveId) -> Result<Report, Error> {
        self.go_on(id, Goal::Finish).await
    }

    /// Undoes a move: every shard of it that is not decided stays where it was, and nothing of the move is left. Shards
    /// that are decided are [`Error::TooLate`].
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no host that can be asked knows the move.
    ///
    /// # Cancel safety
    /// As [`Mover::run`].
    pub async fn abort(&self, id: MoveId) -> Result<Report, Error> {
        self.go_on(id, Goal::Abort).await
    }

    /// Asks every run of this mover, and of its clones, to stop: shards that are fenced but not decided are swapped back,
    /// decided ones are opened, no new one is begun.
    pub fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// The moves that the hosts know: all that are neither completed nor aborted, or one of them in whatever phase. By
    /// move, then shard. Hosts that cannot be asked are named.
    pub async fn list(&self, id: Option<MoveId>) -> (Vec<Entry>, Vec<(HostName, Error)>) {
        let asked = self.hosts.names().map(async |host| {
            let entries = async { self.hosts.open(host).await?.entries_if_any(id).await };
            (host.clone(), entries.await)
        });
        let mut entries = Vec::new();
        let mut unknown = Vec::new();
        for (host, answer) in futures_util::future::join_all(asked).await {
            match answer {
                Ok(found) => entries.extend(found),
                Err(error) => unknown.push((host, error)),
            }
        }
        if id.is_none() {
            entries.retain(|entry: &Entry| !matches!(entry.phase, Phase::Completed | Phase::Aborted));
        }
        entries.sort_by_key(|entry| (entry.id, entry.shard));
        (entries, unknown)
    }

    /// Takes the shards of a move that are kept back to where they were, with all that was written since: a move of its own,
    /// online, whose ID the report has. Its own old copies are kept in turn.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`]; per shard, in the report, [`Error::NoWayBack`] and what any move can meet.
    ///
    /// # Cancel safety
    /// As [`Mover::run`].
    pub async fn rollback(&self, id: MoveId) -> Result<Report, Error> {
        back::rollback(self, id).await
    }

    /// Applies what changes at the new hosts to the old copies of all kept moves, or of one, until [`Mover::stop`]. What
    /// goes wrong, and how far it is, the observer is told. A way back that is broken is given up; the others go on.
    ///
    /// # Cancel safety
    /// May be dropped: whoever feeds next goes on where all is durable, at once or after the lease.
    pub async fn feed(&self, id: Option<MoveId>) {
        back::feed::feed(self, id).await;
    }

    /// Audits what can still be told of those shards of a move that are kept and were not audited: tables that are the same on both
    /// sides now, and tables that differ although nobody has written to them since. Gives all that are kept.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no host that can be asked knows the move.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub async fn audit(&self, id: MoveId) -> Result<Report, Error> {
        let (entries, unknown) = self.list(Some(id)).await;
        if entries.is_empty() {
            return Err(unknown.into_iter().next().map_or(Error::NoSuchMove { id }, |(_, error)| error));
        }
        let mut report = Report { id, done: Vec::new(), failed: Vec::new(), unknown };
        for entry in &entries {
            if entry.phase == Phase::Kept {
                report.done.push(self.audited(entry).await);
            } else if !entry.phase.is_ended() {
                let (shard, phase) = (entry.shard, entry.phase);
                let reason = format!("it is audited at its end: `pgshard moves resume {id}`");
                report.failed.push((shard, Error::NotNow { shard, phase, reason }));
            }
        }
        Ok(report)
    }

    /// A kept shard, audited now if it was not.
    async fn audited(&self, entry: &Entry) -> ShardReport {
        let mut done = ShardReport::of(entry);
        if matches!(entry.audit.state, AuditState::None | AuditState::NotAudited) {
            done.audit = audit::late(self, entry).await;
        }
        done
    }

    /// Drops the old copies of a move whose shards are all kept and audited. Cannot be undone.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`]; [`Error::NotNow`] when a shard of it is not there yet. Per shard, in the report, when its
    /// target does not serve it, or something outside still depends on the old copy.
    ///
    /// # Cancel safety
    /// Each shard's copy is dropped in one transaction; call it again for the rest.
    pub async fn complete(&self, id: MoveId) -> Result<Report, Error> {
        cleanup::complete(self, id).await
    }

    /// Looks on all hosts for what dead moves left, and puts it right: fences past their deadline are swapped back, decided
    /// shards opened, schemas dropped whose move has ended. Never touches a move that can be resumed, nor an old copy that
    /// is kept.
    ///
    /// # Cancel safety
    /// Each object is handled by itself; call it again for the rest.
    pub async fn gc(&self) -> CleanupReport {
        cleanup::gc(self).await
    }

    fn is_stopped(&self) -> bool {
        *self.stop.borrow()
    }

    async fn go_on(&self, id: MoveId, goal: Goal) -> Result<Report, Error> {
        let (entries, unknown) = self.list(Some(id)).await;
        if entries.is_empty() {
            return Err(unknown.into_iter().next().map_or(Error::NoSuchMove { id }, |(_, error)| error));
        }
        let open = entries.iter().filter(|entry| !entry.phase.is_ended()).map(Part::of).collect();
        let mut report = report(id, driver::work(self, open, goal, Scope::Routes).await);
        report.unknown = unknown;
        // Read again: what was open may have been brought to its end by somebody else meanwhile.
        let (mut rest, _) = self.list(Some(id)).await;
        let told: BTreeSet<ShardId> =
            report.done.iter().map(|done| done.shard).chain(report.failed.iter().map(|(shard, _)| *shard)).collect();
        rest.retain(|entry| !told.contains(&entry.shard));
        // Whoever brought these to their ends may have died before it dropped what they shared.
        let shared = rest.iter().filter(|entry| entry.mode == Mode::Online).map(|entry| Shared::of(&Part::of(entry)));
        for shared in shared.collect::<BTreeSet<_>>() {
            driver::tidy_up(self, &shared).await;
        }
        for entry in &rest {
            match outcome(entry, goal) {
                Ok(done) if done.phase == Phase::Kept => report.done.push(self.audited(entry).await),
                Ok(done) => report.done.push(done),
                Err(error) => report.failed.push((entry.shard, error)),
            }
        }
        report.done.sort_by_key(|done| done.shard);
        report.failed.sort_by_key(|(shard, _)| *shard);
        Ok(report)
    }
}

/// How a shard stands to what was wanted of its move, when nobody had to do anything for it.
fn outcome(entry: &Entry, goal: Goal) -> Result<ShardReport, Error> {
    let (shard, phase) = (entry.shard, entry.phase);
    match (goal, phase) {
        (Goal::Finish, Phase::Kept | Phase::Completed) | (Goal::Abort, Phase::Aborted) => Ok(ShardReport::of(entry)),
        (Goal::Abort, phase) if phase.is_ended() => Err(Error::TooLate { shard }),
        (Goal::Finish, Phase::Aborted) => {
            let reason = "an aborted move cannot be resumed: start a new one".to_owned();
            Err(Error::NotNow { shard, phase, reason })
        }
        _ => match entry.worker.clone() {
            Some(worker) => Err(Error::AtWork { shard, id: entry.id, worker }),
            None => {
                let reason = "it was claimed while its move was looked at: the same command again".to_owned();
                Err(Error::NotNow { shard, phase, reason })
            }
        },
    }
}

fn report(id: MoveId, ends: Vec<(ShardId, Result<ShardReport, Error>)>) -> Report {
    let mut report = Report { id, done: Vec::new(), failed: Vec::new(), unknown: Vec::new() };
    for (shard, end) in ends {
        match end {
            Ok(done) => report.done.push(done),
            Err(error) => report.failed.push((shard, error)),
        }
    }
    report
}

/// Where each shard is, for whoever judges many at once.
type ByHost<T> = BTreeMap<HostName, T>;
