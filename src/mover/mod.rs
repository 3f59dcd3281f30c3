//! Moves: taking shards from host to host while the application writes (`ARCHITECTURE.md` has the
//! steps as a table, `docs/moves.md` is for operators).
//!
//! [`Mover::plan`] reads and judges, [`Mover::run`] runs the move, [`Mover::resume`] and
//! [`Mover::abort`] take up a stopped one from any machine: the state is in the databases.
//! [`Mover::complete`] drops the old copy, [`Mover::gc`] what dead moves left.
//!
//! # Invariants
//! 1. At most one host serves a shard; between fence and open, none.
//! 2. Before decide a move can only be undone, after it only finished.
//! 3. Every change of who serves is one compare-and-swap, in a function of the control schema.
//! 4. A step may run twice. An object is in a ledger before, or together with, its creation.
//! 5. The map is never the fence.

mod command;
mod control;
pub(crate) mod copy;
pub(crate) mod definition;
#[cfg(test)]
mod model;
pub(crate) mod preflight;
pub(crate) mod protocol;
mod runner;
mod step;
pub(crate) mod stream;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::sync::watch;

use crate::map::HostName;
use crate::schema::{Cluster, DefinitionSurvey, Finding};
use crate::shard::ShardId;
use crate::store::MapStore;

pub use command::cleanup::CleanupReport;
pub use command::progress::{Chunks, Progress, ShardProgress, StreamProgress};
pub use command::recover::{
    ClockRaise, Decision, LostMove, RecoveredServer, RecoveryPlan, RowsElsewhere,
};
pub use command::repair::{AnsweringHost, GiveUp, HostClaim, Repair, RepairPlan, RepairWay};
pub use control::hosts::Hosts;
pub use control::journal::{Entry, ReverseReplication};
pub use control::report::{Cleaned, PartialAnswer, Report, ShardReport};
pub use definition::border::Error as BorderError;
pub use definition::ddl::{Stage, Statement};
pub use definition::refusal::Refusal;
pub use preflight::identity::LentIdentity;
pub use preflight::plan::{Plan, ShardPlan};
pub use preflight::survey::Request;
pub use protocol::desired::{DesiredState, FenceAt, IdentityPolicy, Rollback, UnloggedRows};
pub use protocol::desired::{StopKind, StopRequest};
pub use protocol::error::{Error, Rival};
#[doc(hidden)]
pub use protocol::failpoint::Failpoint;
#[cfg(any(debug_assertions, feature = "failpoints"))]
#[doc(hidden)]
pub use protocol::failpoint::{
    AUDIT_FAILPOINTS, Action, Corruption, FAILPOINTS, ROLLBACK_FAILPOINTS,
};
pub use protocol::lease::Leases;
pub use protocol::names::MoveId;
pub use protocol::options::{Event, Observer, Options};
pub use protocol::state::{Mode, Phase};
pub use protocol::verdict::RowDifference;
pub use protocol::verdict::{Audit, AuditDifference, AuditState, LeftOut, Unaudited};
pub use protocol::worker::{Work, Worker};

#[cfg(test)]
pub(crate) use control::journal::Hold;
#[cfg(test)]
pub(crate) use control::session::Session;

use command::{cleanup, movable, progress, recover, repair, requests, resume, rollback};
use control::context::Context;
use control::report::report;
use preflight::survey;
use protocol::state::Goal;
use protocol::throttle::Throttle;
use runner::assignment::{Assignment, Scope, Start};
use runner::reverse::old_copies;
use runner::work::work;

/// Moves shards between the hosts of a cluster.
///
/// Cheap to clone; clones share [`Mover::stop`]. Its futures are boxed, so that what they do is
/// compiled here, and not in each program that awaits them.
#[derive(Clone)]
pub struct Mover {
    context: Context,
}

impl Mover {
    /// A mover for these hosts that publishes to this store. It uses no host that has recorded
    /// another cluster.
    pub fn new(
        hosts: Hosts,
        cluster: Cluster,
        store: Arc<dyn MapStore>,
        options: Options,
        observer: Observer,
    ) -> Mover {
        let (stop, throttle) = (watch::Sender::new(false), Throttle::of(options.rate_max));
        let (prefix, hosts) = (cluster.schema_prefix.clone(), hosts.of_cluster(cluster));
        Mover {
            context: Context {
                hosts,
                prefix,
                store,
                options: Arc::new(options),
                observer,
                stop,
                throttle,
            },
        }
    }

    /// Reads everything that matters and judges it. No writes.
    ///
    /// # Errors
    /// [`Error::Refused`] with every reason; the others when a host cannot be read.
    ///
    /// # Cancel safety
    /// Only reads.
    pub fn plan<'a>(&'a self, request: &'a Request) -> BoxFuture<'a, Result<Plan, Error>> {
        Box::pin(survey::plan(&self.context, request))
    }

    /// Lists what would refuse a move of any shard, as a plan reports it. Each definition that a
    /// host has is examined once, in one of its shards. Requirements of the target, and those that
    /// depend on the rows, are not checked.
    ///
    /// # Cancel safety
    /// Only reads.
    pub fn movable<'a>(&'a self, definitions: &'a DefinitionSurvey) -> BoxFuture<'a, Vec<Finding>> {
        Box::pin(movable::movable(&self.context, definitions))
    }

    /// Executes a plan. Returns when every shard has ended, well or badly; one shard's failure does
    /// not stop the others.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the move as a crash would: resume or abort it. Use
    /// [`Mover::stop`] for a tidy end.
    pub fn run<'a>(&'a self, plan: &'a Plan) -> BoxFuture<'a, Report> {
        Box::pin(async move {
            let id = MoveId::new();
            self.context.observer.notify(Event::Started {
                id,
                shards: plan.shards.len(),
            });
            let part = |shard: &ShardPlan| Assignment {
                id,
                shard: shard.shard,
                source: shard.source.clone(),
                target: plan.target.clone(),
                mode: plan.mode,
                epoch: shard.epoch,
                start: Start::Claim,
                rollback_of: None,
                rollback: self.context.options.rollback,
            };
            report(
                id,
                work(
                    &self.context,
                    plan.shards.iter().map(part).collect(),
                    Goal::Finish,
                    Scope::Named,
                )
                .await,
            )
        })
    }

    /// Continues a move that was interrupted: every shard of it that has not ended.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no reachable host knows the move.
    ///
    /// # Cancel safety
    /// As [`Mover::run`].
    pub fn resume(&self, id: MoveId) -> BoxFuture<'_, Result<Report, Error>> {
        Box::pin(resume::go_on(&self.context, id, Goal::Finish))
    }

    /// Undoes a move: every shard of it that is not decided stays where it was, and nothing of the
    /// move is left. Shards that are decided are [`Error::TooLate`].
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no reachable host knows the move.
    ///
    /// # Cancel safety
    /// As [`Mover::run`].
    pub fn abort(&self, id: MoveId) -> BoxFuture<'_, Result<Report, Error>> {
        Box::pin(resume::go_on(&self.context, id, Goal::Abort))
    }

    /// Stops every run of this mover, and of its clones. Shards that are fenced but not decided are
    /// swapped back, decided ones are opened, and no other shard is begun. [`Mover::complete`]
    /// begins no other shard.
    pub fn stop(&self) {
        self.context.stop();
    }

    /// Whether [`Mover::stop`] was called, of this mover or a clone.
    pub fn is_stopped(&self) -> bool {
        self.context.is_stopped()
    }

    /// Lists the moves that the hosts know: all that are neither completed nor aborted, or one move
    /// in whatever phase. Sorted by move, then shard. Hosts that cannot be read are named.
    pub fn list(&self, id: Option<MoveId>) -> BoxFuture<'_, PartialAnswer<Entry>> {
        Box::pin(async move {
            let (mut entries, unknown) = self.context.list(id).await;
            progress::mark_lost(&self.context, &mut entries).await;
            PartialAnswer::of((entries, unknown))
        })
    }

    /// Every move in the journals of the hosts, including those that were completed or aborted: all
    /// moves that ever left a host. By move, then shard. Hosts that cannot be read are named.
    pub fn list_all(&self) -> BoxFuture<'_, PartialAnswer<Entry>> {
        Box::pin(async move {
            let (mut entries, unknown) = self.context.list_all(None).await;
            progress::mark_lost(&self.context, &mut entries).await;
            PartialAnswer::of((entries, unknown))
        })
    }

    /// Takes the kept shards of a move back to where they were, with all that was written since.
    /// That is a move of its own, online, and the report has its ID. Its own old copies are kept in
    /// turn.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`]; per shard, in the report, [`Error::NoRollback`] and what any move can
    /// meet.
    ///
    /// # Cancel safety
    /// As [`Mover::run`].
    pub fn rollback(&self, id: MoveId) -> BoxFuture<'_, Result<Report, Error>> {
        Box::pin(rollback::rollback(&self.context, id))
    }

    /// Applies the changes at the new hosts to the old copies of all kept moves, or of one, until
    /// [`Mover::stop`]. Progress and errors are reported to the observer. A reverse replication
    /// that is broken is given up; the others continue.
    ///
    /// # Cancel safety
    /// May be dropped: the next call continues from the last durable position, immediately or when
    /// the lease has ended.
    pub fn follow_old_copies(&self, id: Option<MoveId>) -> BoxFuture<'_, ()> {
        Box::pin(old_copies::follow(&self.context, id))
    }

    /// Audits the kept shards of a move that were not audited, as far as that is still possible. It
    /// finds tables that are the same on both sides now, and tables that differ although they have
    /// not been written to since the move. The report has all shards that are kept.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no reachable host knows the move.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub fn audit(&self, id: MoveId) -> BoxFuture<'_, Result<Report, Error>> {
        Box::pin(command::audit::audit(&self.context, id))
    }

    /// Drops the old copies of a move with all of its shards kept and audited, up to four on a host
    /// at a time, in all calls of this mover together. Cannot be undone.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`]; [`Error::NotNow`] when a shard of the move is not kept and audited
    /// yet. Per shard, in the report, when its target does not serve it, or something outside still
    /// depends on the old copy; and [`Error::Interrupted`] for those that are left after
    /// [`Mover::stop`].
    ///
    /// # Cancel safety
    /// Each shard's copy is dropped in one transaction; call it again for the rest.
    pub fn complete(&self, id: MoveId) -> BoxFuture<'_, Result<Report, Error>> {
        Box::pin(cleanup::complete(&self.context, id))
    }

    /// Reads from every host what it has recorded about a shard that two hosts serve, or none, and
    /// determines what can be repaired without losing acknowledged rows. Writes nothing.
    ///
    /// # Errors
    /// [`Error::AtWork`] where a mover works on the shard, [`Error::ControlOld`] where a host's
    /// control schema lacks what a repair needs. A host that does not answer is no error: the plan
    /// names it.
    ///
    /// # Cancel safety
    /// Only reads.
    pub fn plan_repair<'a>(
        &'a self,
        shard: ShardId,
        give_up: &'a GiveUp,
    ) -> BoxFuture<'a, Result<RepairPlan, Error>> {
        Box::pin(repair::plan(&self.context, shard, give_up))
    }

    /// Executes the certain part of the plan, and publishes the result to the map. Does nothing
    /// where nothing is wrong or an operator has to choose.
    ///
    /// # Errors
    /// [`Error::Superseded`] if the state of a host differs from that in the plan: plan again.
    /// [`Error::NotGone`] if a host that was given up answers, and was not fenced off: then nothing
    /// was done.
    ///
    /// # Cancel safety
    /// Each step is a transaction; plan again for the rest.
    pub fn repair<'a>(&'a self, plan: &'a RepairPlan) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(repair::repair(&self.context, plan))
    }

    /// Reads from every host what it has recorded about one that was set back to an earlier time
    /// (restored, failed over to a standby that lacked the last seconds, emptied), and determines
    /// what brings it back into service. `margin`: how far ahead of the present its IDs may have
    /// been made before it was lost, if its clock was ahead. Writes nothing.
    ///
    /// # Errors
    /// [`Error::UnknownHost`]; [`Error::Facts`] and [`Error::Connect`] where the host does not
    /// answer; [`Error::ControlOld`] where a host's control schema lacks what a repair needs.
    /// Another host that does not answer is in the plan.
    ///
    /// # Cancel safety
    /// Only reads.
    pub fn plan_recovery<'a>(
        &'a self,
        host: &'a HostName,
        margin: Option<Duration>,
    ) -> BoxFuture<'a, Result<RecoveryPlan, Error>> {
        Box::pin(recover::plan(&self.context, host, margin))
    }

    /// Executes the part of the plan that needs no decision: advances ID clocks, repairs shards one
    /// by one, updates the map. Returns the remaining plan.
    ///
    /// # Errors
    /// [`Error::Superseded`] if the state of a host differs from that in the plan: plan again.
    ///
    /// # Cancel safety
    /// Each step is a transaction; plan again for the rest.
    pub fn recover<'a>(
        &'a self,
        plan: &'a RecoveryPlan,
    ) -> BoxFuture<'a, Result<RecoveryPlan, Error>> {
        Box::pin(recover::recover(&self.context, plan))
    }

    /// Searches all hosts for the remains of dead moves, and cleans up: fences past their deadline
    /// are removed, decided shards are opened, and the schemas of ended moves are dropped. It never
    /// touches a move that can be resumed, nor an old copy that is kept.
    ///
    /// # Cancel safety
    /// Each object is handled by itself; call it again for the rest.
    pub fn gc(&self) -> BoxFuture<'_, CleanupReport> {
        Box::pin(cleanup::gc(&self.context))
    }

    /// Sets the desired state of a move's shards; the mover reads it within a heartbeat (two
    /// seconds). Returns the shards that have not ended, and the hosts that could not be reached. A
    /// hold with a time ends by itself at that time.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no reachable host knows the move.
    ///
    /// # Cancel safety
    /// The state may be set on some hosts only; call it again.
    pub fn set_desired_state(
        &self,
        id: MoveId,
        desired: DesiredState,
    ) -> BoxFuture<'_, Result<PartialAnswer<ShardId>, Error>> {
        Box::pin(async move {
            requests::set_desired_state(&self.context, id, desired)
                .await
                .map(PartialAnswer::of)
        })
    }

    /// Requests a move's mover to stop, or to abort, from any machine. The mover reads it within a
    /// heartbeat (two seconds). Returns the movers that are alive, and the hosts that could not be
    /// reached.
    ///
    /// # Cancel safety
    /// The request may be recorded on some hosts only; call it again.
    pub fn request(&self, id: MoveId, asked: StopKind) -> BoxFuture<'_, PartialAnswer<Worker>> {
        Box::pin(
            async move { PartialAnswer::of(requests::request(&self.context, id, asked).await) },
        )
    }

    /// The movers that are working on a move at present, and the hosts that could not be read.
    ///
    /// # Cancel safety
    /// Only reads.
    pub fn workers(&self, id: MoveId) -> BoxFuture<'_, PartialAnswer<Worker>> {
        Box::pin(async move { PartialAnswer::of(requests::workers(&self.context, id).await) })
    }

    /// Reads how far a move is.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] when no reachable host knows the move.
    ///
    /// # Cancel safety
    /// Only reads.
    pub fn progress(&self, id: MoveId) -> BoxFuture<'_, Result<Progress, Error>> {
        Box::pin(progress::progress(&self.context, id))
    }

    /// What hosts keep for the reverse replications of kept entries. A host that does not answer is
    /// left out: it was reported when the entries were read.
    ///
    /// # Cancel safety
    /// Only reads.
    pub async fn reverse_streams(
        &self,
        entries: impl Iterator<Item = &Entry>,
    ) -> Vec<StreamProgress> {
        progress::reverse_streams(&self.context, entries).await
    }
}
