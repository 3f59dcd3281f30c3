//! The audit at the end of each online move: everything that the source had behind the fence is
//! compared with everything that the target had before its first foreign write. The comparison
//! before the fence proves the copy; the audit proves what the stream has applied since.
//!
//! Two snapshots make it possible. The target's is taken when the last change is applied and before
//! the open commits, at the same time as other work, so that it does not lengthen the pause. The
//! source's is taken later: there are no writes to an old copy until the shard is kept. Both are
//! held without a lock ([`side`]). What they see is compared once the shard is kept ([`rows`]),
//! while the application works at the target, and reverse replication at the old copy. Sequences
//! and definitions are compared as soon as the target is open ([`rest`]).
//!
//! # What it cannot compare
//! Snapshots do not see what was truncated since, or rewritten by ALTER TABLE, dropped or altered:
//! such a table is named as not audited. A mover that dies loses its snapshots; [`late`] audits
//! what is possible without them.
//!
//! # Invariants
//! 1. Nothing is called audited that was not compared. What was not compared is named.
//! 2. No audit delays an open, holds a lock between two chunks, or lasts longer than
//!    [`Options::audit_max`](crate::mover::Options).

mod known;
mod late;
mod rest;
mod rows;
mod side;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::map::HostName;

use crate::mover::control::context::Context;
use crate::mover::control::context::stopped;
use crate::mover::control::journal::{Entry, Hold};
use crate::mover::control::session::Session;
use crate::mover::copy::digest::Hashing;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::verdict::{Audit, AuditDifference, AuditState, LeftOut};
use crate::mover::runner::permit::CutOverPermits;
use crate::mover::step::ShardMove;
use crate::pg::cause::chain;

pub(in crate::mover) use crate::mover::runner::audit::known::read_earlier_result;
use crate::mover::runner::audit::known::{KNOWN, TABLE};
use crate::mover::runner::audit::rows::Comparison;
pub(in crate::mover) use crate::mover::runner::audit::side::Side;

/// The number of bytes that justifies another pair of sessions.
const BYTES_A_WORKER: u64 = 128 << 20;

/// The target's part of the audit, for one attempt.
pub(in crate::mover) struct Target {
    /// The session, or why there is none.
    side: Result<Side, String>,
    attempt: std::sync::OnceLock<i32>,
    /// How long the open may wait for the snapshot.
    snapshot_max: Duration,
}

impl Target {
    /// Before the fence: opens a session that takes the snapshot later. Without one the move
    /// continues, but is not audited.
    ///
    /// Locks: none.
    pub(in crate::mover) async fn open(context: &Context, work: &ShardMove<'_>) -> Target {
        let (host, bound) = (&work.target.host, context.options.audit_max);
        let side = match bound.is_zero() {
            true => Err("audits were switched off".to_owned()),
            false => Side::open(
                &context.hosts,
                host,
                work.hold,
                &work.names.incoming(),
                bound,
            )
            .await
            .map_err(|error| format!("there was no session for the snapshot: {}", chain(&error))),
        };
        Target {
            side,
            attempt: Default::default(),
            snapshot_max: context.options.snapshot_max,
        }
    }

    /// Takes the snapshot behind the fence, once everything is applied and before the open of this
    /// attempt commits: one round trip, at the same time as the one that prepares the open.
    ///
    /// Locks: none.
    pub(in crate::mover) async fn take(&self, attempt: i32) {
        let Ok(side) = &self.side else { return };
        if let Ok(Ok(())) = tokio::time::timeout(self.snapshot_max, side.take()).await {
            let _ = self.attempt.set(attempt);
        }
    }

    /// The snapshot that was taken for this attempt, and when.
    fn snapshot_of_attempt(self, attempt: i32) -> Result<(Side, Instant), String> {
        let side = self.side?;
        match side.taken() {
            Some(at) if self.attempt.get() == Some(&attempt) => Ok((side, at)),
            _ => Err("the target's snapshot was not taken in time".to_owned()),
        }
    }
}

/// An audit that has both snapshots.
pub(in crate::mover) struct Begun {
    hold: Hold,
    source: Side,
    target: Side,
    until: Instant,
    /// The result so far.
    found: Vec<AuditDifference>,
    left_out: Vec<LeftOut>,
    /// The tables that differed before.
    known: BTreeSet<String>,
}

/// Takes the source's part, and compares sequences and definitions. The target must be open, and
/// the old copy untouched.
///
/// Locks: as [`rest::compare`].
///
/// # Errors
/// Why the move is not audited, for people.
pub(in crate::mover) async fn begin(
    context: &Context,
    work: &ShardMove<'_>,
    target: Option<Target>,
    attempt: i32,
) -> Result<Begun, String> {
    let ended = || "the mover that opened the target has ended since".to_owned();
    let (target, at) = target.ok_or_else(ended)?.snapshot_of_attempt(attempt)?;
    let begun = async {
        let (left, bound) = (work.names.left(work.epoch), context.options.audit_max);
        let source = Side::open(&context.hosts, &work.source.host, work.hold, &left, bound).await?;
        source.take().await?;
        let (left, schema) = (source.schema, target.schema);
        let (mut found, mut left_out) = (Vec::new(), Vec::new());
        match rest::compare((&work.source, left), (&work.target, schema)).await {
            Ok(differences) => {
                (found, left_out) =
                    unless_altered(differences, &target, &work.target, at + bound).await?;
            }
            Err(error) => {
                left_out.push(LeftOut {
                    what: "sequences and definitions".to_owned(),
                    why: chain(&error),
                });
            }
        }
        let known = read_earlier_result(&work.target, work.rollback_of, work.hold.shard).await?;
        Ok::<_, Error>(Begun {
            hold: work.hold,
            source,
            target,
            until: at + bound,
            found,
            left_out,
            known,
        })
    };
    begun.await.map_err(|error| chain(&error))
}

/// The differences, without definitions that may have been altered at the target since the
/// snapshot: these were not compared. A migration may run as soon as the shard is open, and so may
/// an application's own statements.
///
/// Locks: as [`Side::is_unaltered`].
async fn unless_altered(
    differences: Vec<AuditDifference>,
    snapshot: &Side,
    target: &Session,
    until: Instant,
) -> Result<(Vec<AuditDifference>, Vec<LeftOut>), Error> {
    let (definitions, mut found): (Vec<_>, Vec<_>) = differences
        .into_iter()
        .partition(|difference| difference.what == rest::DEFINITIONS);
    if definitions.is_empty() || snapshot.is_unaltered(target, until).await? {
        found.extend(definitions);
        return Ok((found, Vec::new()));
    }
    let left_out = definitions.into_iter().map(|difference| {
        let why = format!(
            "they may have been altered right after the open; they differ in: {}",
            difference.how
        );
        LeftOut {
            what: difference.what,
            why,
        }
    });
    Ok((found, left_out.collect()))
}

/// Compares, and records the result. Returns the journal's state then.
///
/// Locks: ACCESS SHARE on one table after the other on both sides, for a chunk of it each; the
/// move's row, for one statement.
///
/// # Cancel safety
/// If dropped, the snapshots are lost, and the journal records that the audit was broken off.
pub(in crate::mover) async fn run(
    context: &Context,
    begun: Begun,
    permits: Option<&CutOverPermits>,
) -> Audit {
    let (hold, source) = (begun.hold, begun.source.session.host.clone());
    let began = Instant::now();
    let audit = match context.options.at("before audit") {
        Ok(()) => begun.compare(context, permits).await,
        Err(error) => Audit::left_out(error.to_string()),
    };
    record_and_report(context, (hold, &source), &audit, began.elapsed()).await;
    audit
}

/// Audits what is still possible of a kept shard without its snapshots. Returns the journal's state
/// then.
///
/// Locks, cancel safety: as [`run`].
pub(in crate::mover) async fn late(context: &Context, entry: &Entry) -> Audit {
    if context.options.audit_max.is_zero() {
        return entry.audit.clone();
    }
    let began = Instant::now();
    let audit = late::compare(context, entry).await;
    let hold = Hold {
        id: entry.id,
        shard: entry.shard,
        lease: entry.lease,
    };
    record_and_report(context, (hold, &entry.source), &audit, began.elapsed()).await;
    audit
}

/// Records the result of an audit, and reports it.
async fn record_and_report(
    context: &Context,
    (hold, source): (Hold, &HostName),
    audit: &Audit,
    took: Duration,
) {
    let Hold { id, shard, .. } = hold;
    let kept = async {
        let session = context.hosts.open(source).await?.for_shard(shard);
        session.audited(id, shard, audit).await?;
        context.hosts.give_back(session).await;
        Ok::<_, Error>(())
    };
    if let Err(error) = kept.await {
        tracing::warn!(%id, %shard, error = chain(&error), "what an audit has found could not be \
            written to the journal");
    }
    match audit.state {
        AuditState::Audited => {
            tracing::info!(%id, %shard, ms = took.as_millis(), "a move was audited")
        }
        AuditState::Differs => {
            tracing::warn!(%id, %shard, found = %audit, "the target differs from the source: the \
                old copy is right");
        }
        _ => tracing::warn!(%id, %shard, found = %audit, "a move was not audited"),
    }
    context.observer.notify(Event::Audited {
        shard,
        audit: audit.clone(),
    });
}

impl Begun {
    /// Compares until everything is done, the time is over, or a stop is requested.
    async fn compare(mut self, context: &Context, permits: Option<&CutOverPermits>) -> Audit {
        let compared = async {
            let (ours, theirs) = tokio::try_join!(
                facts::version(&self.source.session),
                facts::version(&self.target.session)
            )?;
            let (hashing, throttle) = (Hashing::of(ours, theirs), &context.throttle);
            Comparison::plan(
                &self.source,
                &self.target,
                hashing,
                throttle,
                permits,
                self.until,
            )
            .await
        };
        let comparison = match compared.await {
            Ok((comparison, found)) => {
                self.found.extend(found);
                comparison
            }
            Err(error) => {
                self.left_out.push(LeftOut {
                    what: "all rows".to_owned(),
                    why: chain(&error),
                });
                return Audit::of(self.found, self.left_out);
            }
        };
        let mut stop = context.stop.subscribe();
        let limit = format!(
            "not compared within {} s",
            context.options.audit_max.as_secs()
        );
        let why = tokio::select! {
            worked = self.work(context, &comparison) => worked.err().map(|error| {
                // The servers cancel their statements at the same moment.
                if Instant::now() >= self.until { limit.clone() } else { chain(&error) }
            }),
            () = stopped(&mut stop) => Some("the mover was stopped".to_owned()),
            () = tokio::time::sleep_until(self.until.into()) => Some(limit),
        };
        let is_whole = why.is_none();
        let (found, left_out) = comparison.end(why);
        self.left_out.extend(left_out);
        for difference in found {
            match difference
                .what
                .strip_prefix(TABLE)
                .is_some_and(|table| self.known.contains(table))
            {
                false => self.found.push(difference),
                true => {
                    self.left_out.push(LeftOut {
                        what: difference.what,
                        why: KNOWN.to_owned(),
                    });
                }
            }
        }
        if is_whole {
            tokio::join!(
                self.source.give_back(&context.hosts),
                self.target.give_back(&context.hosts)
            );
        }
        Audit::of(self.found, self.left_out)
    }

    /// Runs the workers: the sessions that hold the snapshots, and more where that pays.
    async fn work(&self, context: &Context, comparison: &Comparison<'_>) -> Result<(), Error> {
        let others =
            (comparison.bytes() / BYTES_A_WORKER).min(context.options.copy_jobs.max(1) as u64 - 1);
        let mut helpers = Vec::new();
        for _ in 0..others {
            let (hosts, bound) = (&context.hosts, context.options.audit_max);
            helpers.push((
                self.source.another(hosts, self.hold, bound).await?,
                self.target.another(hosts, self.hold, bound).await?,
            ));
        }
        let pairs = helpers.iter().map(|(source, target)| (source, target));
        let pairs = pairs.chain([(&self.source, &self.target)]);
        let worked = pairs.map(|(source, target)| comparison.work(source, target));
        futures_util::future::join_all(worked)
            .await
            .into_iter()
            .collect()
    }
}
