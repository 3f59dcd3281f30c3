//! The end of a move's objects: old copies are dropped on request, and what dead moves left is
//! dropped by `gc`.
//!
//! Invariant: only schemas that a ledger names are dropped, and an old copy only once its shard is
//! known to be served elsewhere at a later epoch.

use crate::mover::runner::reverse;
use crate::mover::step::{identity, old_copy};
use std::collections::BTreeSet;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::map::HostName;
use crate::pg::quote_ident;
use crate::schema::catalog::Namespace;
use crate::schema::catalog::fingerprint::{
    Fingerprint, OTHER_VERSION, RecordComparison, fingerprint,
};
use crate::shard::ShardId;

use crate::mover::command::resume::lost_at;
use crate::mover::control::context::Context;
use crate::mover::control::hosts::Turns;
use crate::mover::control::journal::Entry;
use crate::mover::control::report::{Cleaned, Report, ShardReport};
use crate::mover::control::session::Session;
use crate::mover::definition::border;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::verdict::Unaudited;
use crate::mover::stream::{row_index, slot};
use crate::pg::cause::chain;

/// What [`Mover::gc`](crate::mover::Mover::gc) did and could not do.
#[derive(Debug, Default)]
pub struct CleanupReport {
    /// What was put right.
    pub cleaned: Vec<Cleaned>,
    /// What could not be put right, and why. Call it again later.
    pub failed: Vec<(HostName, Error)>,
}

/// Drops the old copies of a move, a few on each host at a time. Once the mover is stopped, no
/// other is begun, and those that are left are [`Error::Interrupted`].
pub(in crate::mover) async fn complete(context: &Context, id: MoveId) -> Result<Report, Error> {
    let (entries, unknown) = context.list(Some(id)).await;
    if entries.is_empty() {
        return Err(unknown
            .into_iter()
            .next()
            .map_or(Error::NoSuchMove { id }, |(_, error)| error));
    }
    if let Some(early) = entries
        .iter()
        .find(|entry| !matches!(entry.phase, Phase::Kept | Phase::Completed | Phase::Aborted))
    {
        if let Some(worker) = early.worker.clone() {
            return Err(Error::AtWork {
                shard: early.shard,
                id,
                worker,
            });
        }
        let reason = if early.phase < Phase::Decided {
            "`pgshard moves resume` or `pgshard moves abort` first"
        } else {
            "`pgshard moves resume` first"
        }
        .to_owned();
        return Err(Error::NotNow {
            shard: early.shard,
            phase: early.phase,
            reason,
        });
    }
    let taken = entries
        .iter()
        .find_map(|entry| Some((entry, entry.reverse.as_ref()?.taken_by?)));
    if let Some((entry, by)) = taken.filter(|(entry, _)| entry.phase == Phase::Kept) {
        return Err(taken_back(entry, by));
    }
    for entry in entries.iter().filter(|entry| entry.phase == Phase::Kept) {
        objection_of_audit(context, entry)?;
    }
    let mut report = Report {
        id,
        done: Vec::new(),
        failed: Vec::new(),
        unknown,
    };
    let entries: Vec<Entry> = entries
        .into_iter()
        .filter(|entry| entry.phase != Phase::Aborted)
        .collect();
    // Each shard opens a session on both of its hosts; the next one uses it again.
    let _kept = context.hosts.keep_sessions();
    let tidying = Mutex::new(());
    let each = entries
        .iter()
        .map(|entry| complete_shard(context, entry, &tidying, Turns::One));
    let ended = join_all(each).await;
    for (entry, mut ended) in entries.iter().zip(ended) {
        if ended.as_ref().is_err_and(is_of_a_crowd) {
            ended = complete_shard(context, entry, &tidying, Turns::All).await;
        }
        match ended {
            Ok(()) => report.done.push(completed(entry)),
            Err(error) => report.failed.push((entry.shard, error)),
        }
    }
    report.done.sort_by_key(|done| done.shard);
    report.failed.sort_by_key(|(shard, _)| *shard);
    forget_watermarks(context, id, &entries).await;
    take_identities_back(context, &entries).await;
    Ok(report)
}

/// Whether an old copy may be dropped once the others are: together they had more locks than the
/// server has room for, or waited for each other.
fn is_of_a_crowd(error: &Error) -> bool {
    let Error::Database { source, .. } = error else {
        return false;
    };
    [&SqlState::OUT_OF_MEMORY, &SqlState::T_R_DEADLOCK_DETECTED]
        .iter()
        .any(|code| source.code() == Some(code))
}

/// Drops the old copy of one shard, when it has its turn on both hosts. Errors of one shard stop no
/// other.
async fn complete_shard(
    context: &Context,
    entry: &Entry,
    tidying: &Mutex<()>,
    turns: Turns,
) -> Result<(), Error> {
    let ended = match entry.phase {
        Phase::Completed => Ok(()),
        _ => end_old_copy(context, entry, tidying, turns).await,
    };
    match ended {
        Ok(()) => {}
        Err(error @ Error::Interrupted { .. }) => return Err(error),
        Err(_) if is_completed(context, entry).await => {}
        Err(error) => return Err(error),
    }
    let (shard, phase) = (entry.shard, Phase::Completed);
    context.observer.notify(Event::Reached { shard, phase });
    Ok(())
}

fn taken_back(entry: &Entry, by: MoveId) -> Error {
    let reason =
        format!("the move {by} is taking it back: `pgshard moves resume {by}` or abort it");
    Error::NotNow {
        shard: entry.shard,
        phase: entry.phase,
        reason,
    }
}

fn completed(entry: &Entry) -> ShardReport {
    ShardReport {
        phase: Phase::Completed,
        ..ShardReport::of(entry)
    }
}

/// Whether another process has dropped the old copy during that time: then that is why the other
/// steps failed.
async fn is_completed(context: &Context, entry: &Entry) -> bool {
    let asked = async {
        let source = context.hosts.open(&entry.source).await?;
        source.find_entry(entry.id, entry.shard).await
    };
    matches!(asked.await, Ok(Some(now)) if now.phase == Phase::Completed)
}

/// Deletes the move's watermarks at its sources, where no shard of it is under way any longer.
///
/// Locks: their rows, for a statement.
async fn forget_watermarks(context: &Context, id: MoveId, entries: &[Entry]) {
    let sources: BTreeSet<&HostName> = entries.iter().map(|entry| &entry.source).collect();
    for source in sources {
        let deleted = async {
            let source = context.hosts.open(source).await?;
            let sql = "DELETE FROM pgshard.beacon WHERE move_id = $1";
            let what = "deleting watermarks";
            source.execute(what, sql, &[id.uuid()]).await?;
            context.hosts.give_back(source).await;
            Ok::<(), Error>(())
        };
        if let Err(error) = deleted.await {
            tracing::warn!(host = %source, error = chain(&error), "watermarks of the move were not \
                deleted: `pgshard moves gc` does it");
        }
    }
}

/// Takes back the replica identities at the targets, which are no longer needed.
async fn take_identities_back(context: &Context, entries: &[Entry]) {
    let targets: BTreeSet<&HostName> = entries.iter().map(|entry| &entry.target).collect();
    for target in targets {
        match context.hosts.open(target).await {
            Ok(session) => identity::take_back_or_warn(&session).await,
            Err(error) => {
                tracing::warn!(host = %target, error = chain(&error), "a lent replica identity was \
                    not taken back: `pgshard moves gc` does it")
            }
        }
    }
}

/// Gives up the rollback of a shard, and drops its old copy. The shards that come later, and may be
/// left, keep theirs; with the last one the slot goes, which keeps WAL.
///
/// All is checked now, and not when the command began: the shards before it may have taken long,
/// and any object that was made to depend on the old copy in that time would be dropped with it. A
/// refusal leaves everything as it was, the rollback too.
async fn end_old_copy(
    context: &Context,
    entry: &Entry,
    tidying: &Mutex<()>,
    turns: Turns,
) -> Result<(), Error> {
    let (id, shard) = (entry.id, entry.shard);
    let _turns = context
        .hosts
        .turns([&entry.source, &entry.target], turns)
        .await?;
    if context.is_stopped() {
        return Err(Error::Interrupted { shard });
    }
    let target = context.hosts.open(&entry.target).await?.for_shard(shard);
    if let Some(error) = lost_at(&target, entry).await {
        return Err(error);
    }
    let source = context.hosts.open(&entry.source).await?.for_shard(shard);
    let now = source.find_entry(id, shard).await?;
    let entry = &now.ok_or(Error::NoSuchMove { id })?;
    if entry.phase != Phase::Completed {
        objection_of_audit(context, entry)?;
        may_be_dropped(context, entry, &source, &target).await?;
        if entry.reverse.is_some() {
            let why = "the move was completed";
            if let Some(by) = old_copy::lose_unless_taken(&source, id, shard, why).await? {
                return Err(taken_back(entry, by));
            }
            // The last of several shards would drop the slot twice.
            let tidying = tidying.lock().await;
            reverse::stream::tidy_up(context, &source, &target, id).await?;
            drop(tidying);
            context.options.at("after back drop")?;
        }
        drop_old_copy(context, entry, &source, &target).await?;
    }
    tokio::join!(
        context.hosts.give_back(source),
        context.hosts.give_back(target)
    );
    Ok(())
}

/// Refuses a move that was not audited, unless the options allow it.
fn objection_of_audit(context: &Context, entry: &Entry) -> Result<(), Error> {
    let (shard, id) = (entry.shard, entry.id);
    match entry.audit.objection() {
        Some(objection) if context.options.unaudited == Unaudited::Kept => Err(Error::Unaudited {
            shard,
            id,
            objection,
        }),
        _ => Ok(()),
    }
}

/// Whether the target has the shard, and the old copy is what was copied, with nothing that depends
/// on it.
async fn may_be_dropped(
    context: &Context,
    entry: &Entry,
    source: &Session,
    target: &Session,
) -> Result<(), Error> {
    let (shard, names) = (
        entry.shard,
        Names {
            schema: context.prefix.schema(entry.shard),
        },
    );
    let not_now = |reason: String| Error::NotNow {
        shard,
        phase: entry.phase,
        reason,
    };
    let there = facts::row_of(target, shard).await?;
    if there.is_none_or(|row| row.epoch <= entry.epoch) {
        let reason = format!(
            "host {} does not have it at epoch {} or later: `pgshard moves repair {shard} --plan` \
                says what can be done",
            entry.target,
            entry.epoch.next()
        );
        return Err(not_now(reason));
    }
    let here = facts::row_of(source, shard).await?;
    if here.is_none_or(|row| row.epoch <= entry.epoch) {
        return Err(not_now(format!(
            "host {} still has it at epoch {}",
            entry.source, entry.epoch
        )));
    }
    let left = names.left(entry.epoch);
    alone(context, source, &left).await?;
    if let Some(oid) = facts::schema_oid(source, &left).await? {
        // DDL that takes no lock that we can see (a GRANT; before 18 also a new function or type)
        // may have been under way at the fence and committed after it. Only the old copy has it,
        // and for its client it succeeded.
        let mut kept = facts::of_schema(source, &Namespace::Oid(oid)).await?;
        row_index::leave_out(&mut kept);
        let kept = fingerprint(&kept);
        let (recorded, is_fed) = old_copy::recorded_of(source, entry).await?;
        let compared = kept.compare(recorded.as_deref());
        let why = match compared {
            RecordComparison::Same => return Ok(()),
            _ if fingerprint_at(target, &names.schema, is_fed).await? == Some(kept) => {
                return Ok(());
            }
            RecordComparison::Other => {
                "is not what was copied: it was altered since, or while it was fenced".to_owned()
            }
            RecordComparison::Unknown => format!("may not be what was copied: {OTHER_VERSION}"),
        };
        return Err(not_now(format!(
            "{left} on host {} {why}. Compare its functions, types and grants with those of {} on \
                host {}, drop {left} by hand, then complete the move",
            entry.source, names.schema, entry.target
        )));
    }
    Ok(())
}

/// What the shard has today: where the old copy has the same, nothing is in that only, whatever was
/// recorded. For an old copy that takes changes, this leaves out what was removed for that.
async fn fingerprint_at(
    target: &Session,
    schema: &str,
    is_fed: bool,
) -> Result<Option<Fingerprint>, Error> {
    let Some(oid) = facts::schema_oid(target, schema).await? else {
        return Ok(None);
    };
    let mut there = facts::of_schema(target, &Namespace::Oid(oid)).await?;
    if is_fed {
        old_copy::take_off(&mut there, schema);
    }
    Ok(Some(fingerprint(&there)))
}

/// Drops what is kept of the shard.
async fn drop_old_copy(
    context: &Context,
    entry: &Entry,
    source: &Session,
    target: &Session,
) -> Result<(), Error> {
    let shard = entry.shard;
    let names = Names {
        schema: context.prefix.schema(shard),
    };
    let left = names.left(entry.epoch);
    // Giving up the rollback may have taken seconds.
    alone(context, source, &left).await?;
    let what = "dropping the old copy";
    // Locks: ACCESS EXCLUSIVE on the old copy's tables, which no other session uses, for one
    // transaction. If a reader is still at work there, it gives up after two seconds.
    source
        .batch(
            what,
            &format!(
                "BEGIN; DROP SCHEMA IF EXISTS {} CASCADE",
                quote_ident(&left)
            ),
        )
        .await?;
    source
        .execute(
            what,
            "DELETE FROM pgshard.ledger WHERE kind = 'left' AND name = $1",
            &[&left],
        )
        .await?;
    let sql = "UPDATE pgshard.move SET phase = 'completed', updated_at = clock_timestamp()
         WHERE move_id = $1 AND shard_id = $2 AND phase = 'kept'";
    source
        .execute(what, sql, &[entry.id.uuid(), &shard.as_i32()])
        .await?;
    source
        .execute(
            what,
            "DELETE FROM pgshard.marker WHERE move_id = $1 AND shard_id = $2",
            &[entry.id.uuid(), &shard.as_i32()],
        )
        .await?;
    for table in ["back", "progress"] {
        let sql = format!("DELETE FROM pgshard.{table} WHERE move_id = $1 AND shard_id = $2");
        source
            .execute(what, &sql, &[entry.id.uuid(), &shard.as_i32()])
            .await?;
    }
    identity::forget(source, shard).await?;
    source.batch(what, "COMMIT").await?;
    for (name, owner) in ledger(target, "old signpost").await? {
        if owner.shard == shard && owner.id == entry.id {
            drop_schema(target, "old signpost", &name, &owner).await?;
        }
    }
    context.options.at("after old copy")
}

/// Checks that nothing outside a schema depends on what is in it, because DROP … CASCADE would drop
/// that too.
async fn alone(context: &Context, session: &Session, schema: &str) -> Result<(), Error> {
    if facts::schema_oid(session, schema).await?.is_none() {
        return Ok(());
    }
    let crossings = border::crossings(
        session.client.client(),
        &Namespace::from(schema),
        &context.prefix,
    )
    .await;
    let crossings = crossings.map_err(|source| Error::Border {
        host: session.host.clone(),
        source,
    })?;
    match (
        crossings.iter().find(|crossing| crossing.incoming),
        session.shard,
    ) {
        (Some(crossing), Some(shard)) => Err(Error::NotNow {
            shard,
            phase: Phase::Kept,
            reason: format!("{schema} is still in use: {crossing}"),
        }),
        _ => Ok(()),
    }
}

struct Owner {
    id: MoveId,
    shard: ShardId,
}

async fn ledger(session: &Session, kind: &str) -> Result<Vec<(String, Owner)>, Error> {
    let sql = "SELECT name, move_id, shard_id FROM pgshard.ledger WHERE kind = $1 ORDER BY name";
    let rows = session.rows("reading the ledger", sql, &[&kind]).await?;
    let mut ledger = Vec::new();
    for row in &rows {
        let Ok(shard) = ShardId::try_from(row.get::<_, i32>("shard_id")?) else {
            continue;
        };
        ledger.push((
            row.get("name")?,
            Owner {
                id: MoveId::from(row.get::<_, Uuid>("move_id")?),
                shard,
            },
        ));
    }
    Ok(ledger)
}

/// Drops a schema together with its row in the ledger. Returns false if the row is gone, or is
/// another move's by now: then the schema is another's too, or belongs to no move.
///
/// Locks: the ledger's row, which a move writes before it creates a schema of this name; ACCESS
/// EXCLUSIVE on the schema's relations; for one transaction. Gives up after two seconds.
async fn drop_schema(
    session: &Session,
    kind: &str,
    name: &str,
    owner: &Owner,
) -> Result<bool, Error> {
    let what = "dropping what a move left";
    session.batch(what, "BEGIN").await?;
    let dropped = drop_in_transaction(session, what, (kind, name), owner).await;
    session
        .batch(
            what,
            if matches!(dropped, Ok(true)) {
                "COMMIT"
            } else {
                "ROLLBACK"
            },
        )
        .await?;
    dropped
}

async fn drop_in_transaction(
    session: &Session,
    what: &'static str,
    (kind, name): (&str, &str),
    owner: &Owner,
) -> Result<bool, Error> {
    let (id, shard) = (owner.id.uuid(), owner.shard.as_i32());
    let sql = "DELETE FROM pgshard.ledger WHERE kind = $1 AND name = $2 AND move_id = $3";
    if session.execute(what, sql, &[&kind, &name, id]).await? == 0 {
        return Ok(false);
    }
    if kind == "incoming" {
        let sql = "SELECT move_id FROM pgshard.incoming WHERE shard_id = $1 FOR UPDATE";
        let coming = session.rows(what, sql, &[&shard]).await?;
        let taker = coming
            .first()
            .map(|row| row.get::<_, Uuid>(0))
            .transpose()?;
        if taker.is_some_and(|taker| taker != *id) {
            return Ok(false);
        }
        session
            .execute(
                what,
                "DELETE FROM pgshard.incoming WHERE shard_id = $1",
                &[&shard],
            )
            .await?;
        // It must not drop an old copy that a rollback had taken.
        let schema = name.strip_suffix("__incoming").unwrap_or(name);
        if old_copy::give_back(session, schema, owner.id, owner.shard).await? {
            return Ok(true);
        }
    }
    session
        .batch(
            what,
            &format!("DROP SCHEMA IF EXISTS {} CASCADE", quote_ident(name)),
        )
        .await?;
    identity::forget(session, owner.shard).await?;
    Ok(true)
}

/// Searches every host for what dead moves left.
pub(in crate::mover) async fn gc(context: &Context) -> CleanupReport {
    let mut report = CleanupReport::default();
    let mut sessions = Vec::new();
    for host in context.hosts.names() {
        // Fences and opens of all hosts come first: they decide which schemas are still in use.
        match settle(context, host, &mut report).await {
            Ok(Some(session)) => sessions.push(session),
            Ok(None) => {}
            Err(error) => report.failed.push((host.clone(), error)),
        }
    }
    for session in sessions {
        match reverse::stream::look_after(context, &session).await {
            Ok(cleaned) => report.cleaned.extend(cleaned),
            Err(error) => report.failed.push((session.host.clone(), error)),
        }
        if let Err(error) = sweep(context, &session, &mut report).await {
            report.failed.push((session.host.clone(), error));
        }
    }
    report
}

/// Swaps back fences past their deadline, and opens shards that are decided. What fails for one
/// shard is in the report, and the others continue. Returns the session; `None` where there is no
/// control schema.
async fn settle(
    context: &Context,
    host: &HostName,
    report: &mut CleanupReport,
) -> Result<Option<Session>, Error> {
    let session = context.hosts.open(host).await?;
    if !session.is_bootstrapped().await? {
        return Ok(None);
    }
    let sql = "SELECT shard_id FROM pgshard.shard WHERE state = 'fenced' AND fence_deadline < \
        clock_timestamp()";
    for row in session.rows("looking for fences", sql, &[]).await? {
        let Ok(shard) = ShardId::try_from(row.get::<_, i32>(0)?) else {
            continue;
        };
        // Locks: those of pgshard.expire_fence.
        let expired = session
            .row(
                "swapping back",
                "SELECT pgshard.expire_fence($1)",
                &[&shard.as_i32()],
            )
            .await;
        let what = "its fence was past its deadline: swapped back, it is served here";
        report.add(host, shard, what, expired.and_then(|row| row.get(0)));
    }
    let sql = "SELECT s.shard_id, s.peer, s.open_token FROM pgshard.shard s JOIN pgshard.move m
        USING (move_id, shard_id)
        WHERE s.state = 'moved' AND m.phase = 'decided' AND s.open_token IS NOT NULL
        AND m.lease_until < clock_timestamp()";
    for row in session.rows("looking for decided shards", sql, &[]).await? {
        let (shard, peer) = (
            ShardId::try_from(row.get::<_, i32>(0)?),
            HostName::new(row.get(1)?),
        );
        let (Ok(shard), Ok(peer)) = (shard, peer) else {
            continue;
        };
        let opened = finish_open(context, &peer, shard, row.get(2)?).await;
        report.add(
            &peer,
            shard,
            "it was decided but not opened: opened",
            opened,
        );
    }
    session.forget_the_dead().await?;
    Ok(Some(session))
}

/// Locks: those of pgshard.finish_open.
async fn finish_open(
    context: &Context,
    peer: &HostName,
    shard: ShardId,
    token: Uuid,
) -> Result<bool, Error> {
    let target = context.hosts.open(peer).await?.for_shard(shard);
    let sql = "SELECT pgshard.finish_open($1, $2)";
    target
        .row("opening the target", sql, &[&shard.as_i32(), &token])
        .await?
        .get(0)
}

impl CleanupReport {
    /// Adds the result for one object; `false` means that there was nothing left to do.
    fn add(&mut self, host: &HostName, shard: ShardId, what: &str, outcome: Result<bool, Error>) {
        match outcome {
            Ok(true) => self.cleaned.push(Cleaned {
                host: host.clone(),
                shard,
                what: what.to_owned(),
            }),
            Ok(false) => {}
            Err(error) => self.failed.push((host.clone(), error)),
        }
    }
}

/// Drops slots and publications, and then schemas, of moves that have ended. What cannot be dropped
/// now is in the report, and the others continue.
async fn sweep(
    context: &Context,
    session: &Session,
    report: &mut CleanupReport,
) -> Result<(), Error> {
    // Slots first: they keep WAL.
    for kind in ["slot", "publication"] {
        for (name, owner) in ledger(session, kind)
            .await?
            .into_iter()
            .filter(|(name, _)| !slot::is_back(name))
        {
            let dropped = match group_ended(session, &owner).await {
                Ok(true) if kind == "slot" => slot::drop_slot(session, &name).await.map(|()| true),
                Ok(true) => slot::drop_publication(session, &name).await.map(|()| true),
                other => other,
            };
            let what = format!("dropped the {kind} {name}, left by the move {}", owner.id);
            report.add(&session.host, owner.shard, &what, dropped);
        }
    }
    sweep_watermarks(session).await?;
    for one in identity::take_back(session).await? {
        let what = format!(
            "took back the replica identity that was lent to table {}",
            one.table
        );
        report.add(&session.host, one.shard, &what, one.outcome);
    }
    for kind in ["incoming", "signpost", "left", "old signpost"] {
        for (name, owner) in ledger(session, kind).await? {
            let dropped = match has_ended(context, session, kind, &owner).await {
                Ok(true) => drop_schema(session, kind, &name, &owner).await,
                other => other,
            };
            let what = format!("dropped {name}, left by the move {}", owner.id);
            report.add(&session.host, owner.shard, &what, dropped);
        }
    }
    Ok(())
}

/// Deletes the watermarks of moves from this host that have ended, and the markers of those that
/// are not kept.
///
/// Locks: their rows, ten thousand at a time, for a statement each.
async fn sweep_watermarks(session: &Session) -> Result<(), Error> {
    let sql = "DELETE FROM pgshard.beacon WHERE ctid = ANY (ARRAY(
        SELECT b.ctid FROM pgshard.beacon b WHERE NOT EXISTS (SELECT FROM pgshard.move m
            WHERE m.move_id = b.move_id AND m.phase NOT IN ('kept', 'completed', 'aborted'))
        LIMIT 10000 FOR UPDATE OF b SKIP LOCKED))";
    while session.execute("deleting watermarks", sql, &[]).await? == 10_000 {}
    let sql = "DELETE FROM pgshard.marker WHERE ctid = ANY (ARRAY(
        SELECT k.ctid FROM pgshard.marker k JOIN pgshard.move m USING (move_id, shard_id)
        WHERE m.phase IN ('completed', 'aborted') LIMIT 10000 FOR UPDATE OF k SKIP LOCKED))";
    while session.execute("deleting markers", sql, &[]).await? == 10_000 {}
    Ok(())
}

/// Whether no shard of the move from this host is under way.
async fn group_ended(session: &Session, owner: &Owner) -> Result<bool, Error> {
    Ok(session
        .entries(Some(owner.id))
        .await?
        .iter()
        .all(|entry| entry.phase.is_ended()))
}

async fn has_ended(
    context: &Context,
    session: &Session,
    kind: &str,
    owner: &Owner,
) -> Result<bool, Error> {
    Ok(match kind {
        "incoming" => incoming_ended(context, session, owner).await?,
        "signpost" => phase_of(session, owner).await?.is_none_or(Phase::is_ended),
        "left" => phase_of(session, owner).await? == Some(Phase::Completed),
        _ => true,
    })
}

/// Whether the move that announced a shard here is over, by the journal of the host that the shard
/// comes from.
async fn incoming_ended(
    context: &Context,
    session: &Session,
    owner: &Owner,
) -> Result<bool, Error> {
    let sql = "SELECT source FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2";
    let rows = session
        .rows(
            "reading who comes",
            sql,
            &[&owner.shard.as_i32(), owner.id.uuid()],
        )
        .await?;
    let source = rows.first().map(|row| row.get(0)).transpose()?;
    match source.map(HostName::new) {
        Some(Ok(source)) => {
            let source = context.hosts.open(&source).await?;
            // Kept and completed count too: such a move has opened the shard, and what is there was
            // announced again by a mover that had slept. The exception is a host that has lost its
            // open: then what is there is the shard.
            let ended = phase_of(&source, owner).await?.is_none_or(Phase::is_ended);
            Ok(ended && !is_the_shard(&source, session, owner).await?)
        }
        // The ledger's row was written together with this one: without it the schema belongs to no
        // move.
        _ => Ok(true),
    }
}

/// Whether the source has given the shard to this host by this move, although this host does not
/// know of it.
async fn is_the_shard(source: &Session, target: &Session, owner: &Owner) -> Result<bool, Error> {
    let (what, shard) = ("asking who has the shard", owner.shard.as_i32());
    let sql = "SELECT epoch FROM pgshard.shard WHERE shard_id = $1 AND state = 'moved' AND peer = \
        $2 AND move_id = $3";
    let given = source
        .rows(what, sql, &[&shard, &target.host.as_str(), owner.id.uuid()])
        .await?;
    let Some(given) = given.first() else {
        return Ok(false);
    };
    let given: i32 = given.get(0)?;
    let row = facts::row_of(target, owner.shard).await?;
    Ok(row.is_none_or(|row| row.epoch.as_i32() < given))
}

async fn phase_of(session: &Session, owner: &Owner) -> Result<Option<Phase>, Error> {
    let sql = "SELECT phase FROM pgshard.move WHERE move_id = $1 AND shard_id = $2";
    let rows = session
        .rows(
            "reading the journal",
            sql,
            &[owner.id.uuid(), &owner.shard.as_i32()],
        )
        .await?;
    let phase = rows.first().map(|row| row.get(0)).transpose()?;
    Ok(phase.and_then(Phase::parse))
}
