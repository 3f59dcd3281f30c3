//! Publication and slot of a reverse replication, on the target of the move: created before the
//! first shard is fenced, and dropped when no shard can be taken back any longer.
//!
//! Invariant: a reverse replication never harms the host that serves. Its slot is not created where
//! slots are scarce, keeps no more WAL than it may, and is dropped as soon as no shard needs it.

use crate::mover::step::old_copy;
use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_postgres::types::PgLsn;

use crate::map::HostName;
use crate::mover::control::context::Context;
use crate::mover::control::journal::{Entry, ReverseReplication};
use crate::mover::control::report::Cleaned;
use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::mover::stream::adopt;
use crate::mover::stream::slot;
use crate::mover::stream::slot::{Owner, SlotState};
use crate::shard::ShardId;

/// How long the creation of the slot waits for the transactions that are under way at the target.
const SLOT_PATIENCE: Duration = Duration::from_secs(20);

/// Creates publication and slot at the target, or finds them; the publication has no table of a
/// shard yet. Returns their name. `None` if there can be none; the reason is logged.
///
/// Locks: as [`slot::create_publication`] and [`slot::create_slot`].
pub(crate) async fn prepare(
    context: &Context,
    source: &Session,
    target: &Session,
    id: MoveId,
    first: ShardId,
) -> Result<Option<String>, Error> {
    let name = slot::back_name(id, &source.host);
    let there = slot_state(context, source, target, id).await?;
    match there.as_ref().map(|state| state.lost.is_some()) {
        Some(false) => return Ok(Some(name)),
        // A shard that was opened in the meantime has been written to since.
        lost => {
            old_copy::lose_all(
                source,
                &target.host,
                id,
                "the target no longer has a slot for it",
            )
            .await?;
            if lost.is_some() {
                slot::drop_slot(target, &name).await?;
            }
        }
    }
    let why = match facts::of_host(target).await? {
        Ok(mut facts) => {
            facts.try_replication(target).await?;
            facts::no_reverse(&facts)
        }
        Err(_) => Some("it is not bootstrapped"),
    };
    if let Some(why) = why {
        tracing::warn!(host = %target.host, %id, why, "no rollback of this move will be possible");
        return Ok(None);
    }
    let owner = Owner {
        name: &name,
        id,
        shard: first,
        options: &context.options,
    };
    // The publication comes first: a slot stops at a change that is older than its publication.
    slot::create_publication(target, owner, &[]).await?;
    context.options.at("after back publication")?;
    match slot::create_slot(target, owner, SLOT_PATIENCE).await {
        Ok(_) => {}
        Err(error @ Error::SlotBlocked { .. }) => {
            tracing::warn!(%id, %error, "no rollback of this move will be possible");
            remove(target, &name).await?;
            return Ok(None);
        }
        Err(error) => return Err(error),
    }
    context.options.at("after back slot")?;
    Ok(Some(name))
}

/// Drops both, the slot first because it keeps WAL.
///
/// Locks: none on any table.
async fn remove(target: &Session, name: &str) -> Result<(), Error> {
    slot::drop_slot(target, name).await?;
    slot::drop_publication(target, name).await
}

/// Drops both if no shard of the move that came from this source to this target can be rolled back
/// any longer. Returns true if they existed.
///
/// While shards are under way, those of their mover are left alone, which may be between
/// publication, slot and first fence: a mover that ends a move in the other direction comes here,
/// too. Only a slot that is spoiled is dropped all the same, since a mover that is dead would let
/// it fill the disk.
///
/// Locks: none on any table.
pub(crate) async fn tidy_up(
    context: &Context,
    source: &Session,
    target: &Session,
    id: MoveId,
) -> Result<bool, Error> {
    // First, since a shard that opens between this and the next question has its reverse
    // replication from then on.
    let is_under_way = is_under_way(source, target, id).await?;
    let sql = "SELECT EXISTS (SELECT FROM pgshard.back b JOIN pgshard.move m USING (move_id, \
        shard_id)
        WHERE b.move_id = $1 AND m.target = $2 AND b.lost IS NULL AND m.phase NOT IN ('completed', \
        'aborted'))";
    if source
        .row(
            "looking for reverse replications",
            sql,
            &[id.uuid(), &target.host.as_str()],
        )
        .await?
        .get(0)?
    {
        return Ok(false);
    }
    let name = slot::back_name(id, &source.host);
    if is_under_way {
        let state = slot_state(context, source, target, id).await?;
        if state.is_none_or(|state| spoiled(context, &state).is_none()) {
            return Ok(false);
        }
    }
    let sql = "SELECT EXISTS (SELECT FROM pgshard.ledger WHERE name = $1)";
    let there = target
        .row("reading the ledger", sql, &[&name])
        .await?
        .get(0)?;
    if there {
        remove(target, &name).await?;
    }
    Ok(there)
}

/// Whether a shard of the move is on its way from this source to this target.
///
/// Locks: none.
async fn is_under_way(source: &Session, target: &Session, id: MoveId) -> Result<bool, Error> {
    let sql = "SELECT EXISTS (SELECT FROM pgshard.move
        WHERE move_id = $1 AND target = $2 AND phase NOT IN ('kept', 'completed', 'aborted'))";
    source
        .row(
            "looking for shards under way",
            sql,
            &[id.uuid(), &target.host.as_str()],
        )
        .await?
        .get(0)
}

/// The state of the slot of the reverse replication from this target to this source.
///
/// Locks: as [`adopt::state`].
async fn slot_state(
    context: &Context,
    source: &Session,
    target: &Session,
    id: MoveId,
) -> Result<Option<SlotState>, Error> {
    let name = slot::back_name(id, &source.host);
    let connect = context.hosts.options(&target.host)?;
    adopt::state(target, source, connect, (&name, id)).await
}

/// Why a slot of a reverse replication is of no use any longer, if it is not.
fn spoiled(context: &Context, state: &SlotState) -> Option<String> {
    if state.lost == Some(slot::OF_A_FORMER_PRIMARY) {
        return Some(format!(
            "its slot is {}, which may have sent changes that this server lacks",
            slot::OF_A_FORMER_PRIMARY
        ));
    }
    if state.lost.is_some() {
        return Some("its slot kept more WAL than max_slot_wal_keep_size allows".to_owned());
    }
    let too_much =
        u64::try_from(state.kept_bytes).is_ok_and(|kept| kept > context.options.reverse_wal_max);
    too_much.then(|| {
        format!(
            "its slot kept {} MiB of WAL, more than it may",
            state.kept_bytes >> 20
        )
    })
}

/// Examines every reverse replication that leads away from this host. One that leads nowhere any
/// longer, or keeps more WAL than it may, is given up, and dropped once no shard needs it.
pub(crate) fn look_after<'a>(
    context: &'a Context,
    target: &'a Session,
) -> BoxFuture<'a, Result<Vec<Cleaned>, Error>> {
    Box::pin(async move {
        let sql = "SELECT DISTINCT name, move_id, shard_id FROM pgshard.ledger WHERE kind IN \
            ('slot', 'publication') \
               ORDER BY name";
        let mut cleaned = Vec::new();
        for row in target.rows("reading the ledger", sql, &[]).await? {
            let (name, id): (String, uuid::Uuid) = (row.get(0)?, row.get(1)?);
            let shard = ShardId::try_from(row.get::<_, i32>(2)?).ok();
            let (true, Some(shard)) = (slot::is_back(&name), shard) else {
                continue;
            };
            let id = MoveId::from(id);
            let (entries, unknown) = context.list(Some(id)).await;
            let source = entries
                .iter()
                .map(|entry| &entry.source)
                .find(|source| slot::back_name(id, source) == name);
            let mut say = |what: String| {
                cleaned.push(Cleaned {
                    host: target.host.clone(),
                    shard,
                    what,
                })
            };
            match source {
                Some(source) => {
                    let source = context.hosts.open(source).await?;
                    // A slot that is missing is about to be created then, by a mover that gives up
                    // itself what was opened before.
                    let is_begun = is_under_way(&source, target, id).await?;
                    if is_begun && slot::slot_state(target, &name).await?.is_none() {
                        continue;
                    }
                    if let Some(why) = judge(context, &source, target, id, &name).await? {
                        say(format!("the rollback of {id} is no longer possible: {why}"));
                    }
                    if tidy_up(context, &source, target, id).await? {
                        say(format!(
                            "dropped {name}, which no shard needs for a rollback"
                        ));
                    }
                }
                None if unknown.is_empty() => {
                    remove(target, &name).await?;
                    say(format!("dropped {name}; no host knows its move"));
                }
                // Its source could not be reached.
                None => {}
            }
        }
        Ok(cleaned)
    })
}

/// Gives up reverse replications that cannot be used. Returns the reason, if all of a move were
/// given up.
pub(crate) async fn judge(
    context: &Context,
    source: &Session,
    target: &Session,
    id: MoveId,
    name: &str,
) -> Result<Option<String>, Error> {
    // A rollback may lead to several hosts: each has a slot for its own shards.
    for entry in source
        .entries(Some(id))
        .await?
        .iter()
        .filter(|entry| entry.target == target.host)
    {
        if entry.phase == Phase::Kept
            && entry
                .reverse
                .as_ref()
                .is_some_and(ReverseReplication::is_open)
        {
            // If the host does not know of the shard, it has lost it, and the old copy may be all
            // that is left.
            let Some(row) = facts::row_of(target, entry.shard)
                .await?
                .filter(|row| row.epoch > entry.epoch)
            else {
                continue;
            };
            if row.state == "moved" || row.epoch != entry.epoch.next() {
                old_copy::mark_rollback_lost(source, id, entry.shard, &elsewhere(&target.host))
                    .await?;
            }
        }
    }
    for (schema, table) in slot::unnamed(target, name).await? {
        let sql = "SELECT s.shard_id, s.schema_name FROM pgshard.shard s \
                   JOIN pg_namespace n ON n.nspname = s.schema_name WHERE n.oid = $1";
        let what = "looking for whose table it is";
        for row in target.rows(what, sql, &[&schema]).await? {
            let (shard, schema): (i32, String) = (row.get(0)?, row.get(1)?);
            let Ok(shard) = ShardId::try_from(shard) else {
                continue;
            };
            old_copy::mark_rollback_lost(
                source,
                id,
                shard,
                &format!("{table} has lost the key that identifies its rows"),
            )
            .await?;
            // As long as it is published, it would refuse UPDATE and DELETE.
            slot::withdraw(target, name, &schema).await?;
        }
    }
    let state = slot_state(context, source, target, id).await?;
    if let Some(state) = &state {
        lose_what_lacks(source, target, id, state.confirmed).await?;
    }
    let why = match state {
        None => "its slot is gone".to_owned(),
        Some(state) => match spoiled(context, &state) {
            Some(why) => why,
            None => return Ok(None),
        },
    };
    let given_up = old_copy::lose_all(source, &target.host, id, &why).await?;
    Ok((given_up > 0).then_some(why))
}

/// Gives up the reverse replications of shards if their old copies lack changes that the slot no
/// longer sends. It is read after the slot's state, since changes are confirmed to the slot once
/// they are durable.
async fn lose_what_lacks(
    source: &Session,
    target: &Session,
    id: MoveId,
    confirmed: u64,
) -> Result<(), Error> {
    let what = "looking for old copies that lack changes";
    let sql = "SELECT b.shard_id FROM pgshard.back b JOIN pgshard.move m USING (move_id, shard_id)
        JOIN pgshard.progress p USING (move_id, shard_id)
        WHERE b.move_id = $1 AND m.target = $2 AND b.lost IS NULL AND p.applied_lsn < $3";
    let rows = source
        .rows(
            what,
            sql,
            &[id.uuid(), &target.host.as_str(), &PgLsn::from(confirmed)],
        )
        .await?;
    for row in rows {
        let shard: i32 = row.get(0)?;
        if let Ok(shard) = ShardId::try_from(shard) {
            old_copy::mark_rollback_lost(source, id, shard, &lacking(&source.host)).await?;
        }
    }
    Ok(())
}

/// Why there is no reverse replication to a host that has lost changes.
pub(crate) fn lacking(host: &HostName) -> String {
    format!(
        "{host} has lost changes of the old copy, as after a fail-over to a standby that lacked \
            them"
    )
}

/// The entries of a move, after checking whether their reverse replications can still be used.
pub(crate) async fn judged(
    context: &Context,
    id: MoveId,
    entries: Vec<Entry>,
) -> Result<Vec<Entry>, Error> {
    let routes: BTreeSet<(HostName, HostName)> = entries
        .iter()
        .map(|entry| (entry.source.clone(), entry.target.clone()))
        .collect();
    for (source, target) in &routes {
        let (source, target) = (
            context.hosts.open(source).await?,
            context.hosts.open(target).await?,
        );
        judge(
            context,
            &source,
            &target,
            id,
            &slot::back_name(id, &source.host),
        )
        .await?;
    }
    Ok(context.list(Some(id)).await.0)
}

fn elsewhere(host: &HostName) -> String {
    format!("the shard has left {host} since")
}
