//! What the shards of a group share: publication, slot and follower.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio_postgres::types::{PgLsn, ToSql};

use crate::mover::control::session::Session;
use crate::mover::copy::ShardCopy;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::mover::runner::assignment::ShardResult;
use crate::mover::runner::group::{Group, Member};
use crate::mover::runner::reverse;
use crate::mover::stream::adopt;
use crate::mover::stream::follower::Follower;
use crate::mover::stream::options::{Basis, FollowedShard, FollowerOptions};
use crate::mover::stream::slot;
use crate::shard::ShardId;

/// How long the creation of the slot waits for the transactions that are under way on its server.
const SLOT_PATIENCE: Duration = Duration::from_secs(60);

impl Group<'_> {
    /// Creates publication and slot before anything is copied, or finds them. What was copied under
    /// a slot that is gone, or has an altered publication, is copied again. Returns the position
    /// from which the slot sends changes.
    pub(super) async fn slot(
        &self,
        source: &Session,
        members: &mut Vec<Member>,
        ends: &mut Vec<ShardResult>,
    ) -> Result<u64, Error> {
        let name = self.stream();
        let owner = slot::Owner {
            name: &name,
            id: self.shared.id,
            shard: self.first,
            options: &self.context.options,
        };
        let target = self.session(&self.shared.target).await?;
        let connect = self.context.hosts.options(&self.shared.source)?;
        let there = adopt::state(source, &target, connect, (&name, self.shared.id)).await?;
        if self.shared.rollback_of.is_some() {
            // The slot was created before the shards came here: a new one would lack what has
            // changed since.
            let lost = |state| Error::SlotLost {
                host: self.shared.source.clone(),
                slot: name.clone(),
                state,
            };
            let there = there.ok_or_else(|| lost("gone"))?;
            return there
                .lost
                .map_or(Ok(there.confirmed), |state| Err(lost(state)));
        }
        let lost = there.as_ref().and_then(|state| state.lost);
        if let Some(state) = lost {
            tracing::warn!(slot = name, host = %self.shared.source, state, "the slot cannot be \
                used any longer: the shards are copied again");
            slot::drop_slot(source, &name).await?;
        }
        let mut kept = there
            .filter(|_| lost.is_none())
            .map(|state| state.confirmed);
        let (phases, there) = (self.phases(source).await?, self.there(&target).await?);
        if kept.is_some()
            && let Some(gap) = self.gap(source, members, &there).await?
        {
            // While no mover looked. Which changes are missing is unknown, and a publication that
            // is made whole again does not bring them back.
            tracing::warn!(host = %self.shared.source, gap, "the shards are copied again");
            slot::drop_slot(source, &name).await?;
            slot::drop_publication(source, &name).await?;
            kept = None;
        }
        let behind = |member: &Member| {
            let phase = phases
                .get(&member.part.shard)
                .copied()
                .unwrap_or(Phase::Claimed);
            there
                .get(&member.part.shard)
                .is_none_or(|there| !there.can_go_on(phase, kept))
        };
        let (again, rest): (Vec<Member>, Vec<Member>) =
            std::mem::take(members).into_iter().partition(behind);
        let anew: BTreeSet<ShardId> = again.iter().map(|member| member.part.shard).collect();
        *members = rest;
        let again = self
            .each(ends, again, async |member| self.prepare_again(member).await)
            .await;
        members.extend(
            self.each(ends, again, async |member| self.known(member, source).await)
                .await,
        );
        let (mut tables, mut schemas) = (Vec::new(), Vec::new());
        for one in members.iter() {
            let schema = self.context.prefix.schema(one.part.shard);
            if let Some(oid) = facts::schema_oid(source, &schema).await? {
                schemas.push((one.part.shard, oid));
                let names = one.built.iter().flat_map(|built| &built.tables);
                tables.extend(names.map(|table| (schema.clone(), table.clone())));
            }
        }
        self.at("before publication")?;
        slot::create_publication(source, owner, &tables).await?;
        self.at("after publication")?;
        let is_new = |shard| {
            there.get(&shard).is_none_or(|there| there.from.is_none()) || anew.contains(&shard)
        };
        let new: Vec<u32> = schemas
            .iter()
            .filter(|(shard, _)| is_new(*shard))
            .map(|(_, oid)| *oid)
            .collect();
        let position = slot::create_slot(source, owner, SLOT_PATIENCE).await?;
        match kept {
            Some(_) if !new.is_empty() => slot::outwait(source, &name, &new, SLOT_PATIENCE).await?,
            Some(_) => {}
            None => slot::wait_for_writers(source, &new, SLOT_PATIENCE).await?,
        }
        self.at("after slot")?;
        let shards: Vec<i32> = members
            .iter()
            .map(|member| member.part.shard.as_i32())
            .collect();
        // This comes before the first row is copied. Locks: rows of pgshard.incoming, for one
        // statement.
        let sql = "UPDATE pgshard.incoming SET stream_from = $4
            WHERE move_id = $1 AND lease = $2 AND shard_id = ANY ($3) AND stream_from IS NULL";
        let params: [&(dyn ToSql + Sync); 4] = [
            self.shared.id.uuid(),
            &self.heartbeat.lease(),
            &shards,
            &PgLsn::from(position),
        ];
        target
            .execute("writing where the stream begins", sql, &params)
            .await?;
        Ok(position)
    }

    /// What keeps changes of these shards out of the slot's stream, if anything: only shards with
    /// changes that were taken from it before count.
    ///
    /// Locks: as [`slot::gap`].
    async fn gap(
        &self,
        source: &Session,
        members: &[Member],
        there: &BTreeMap<ShardId, There>,
    ) -> Result<Option<String>, Error> {
        let name = self.stream();
        for one in members {
            let shard = one.part.shard;
            if there.get(&shard).is_none_or(|there| there.from.is_none()) {
                continue;
            }
            let Some(oid) = facts::schema_oid(source, &self.context.prefix.schema(shard)).await?
            else {
                continue;
            };
            let gap = slot::gap(source.client.client(), &name, oid).await;
            let gap = gap.map_err(|error| source.failed("looking at the publication", error))?;
            if gap.is_some() {
                return Ok(gap);
            }
        }
        Ok(None)
    }

    /// What the target has of each shard that was announced to it.
    ///
    /// Locks: none but ACCESS SHARE on the control tables and pg_namespace.
    async fn there(&self, target: &Session) -> Result<BTreeMap<ShardId, There>, Error> {
        let what = "reading the progress";
        let sql = "SELECT i.shard_id, i.stream_from, p.applied_lsn,
                EXISTS (SELECT FROM pg_namespace WHERE nspname = i.schema_name || '__incoming')
            FROM pgshard.incoming i LEFT JOIN pgshard.progress p USING (move_id, shard_id)
            WHERE i.move_id = $1 AND i.source = $2";
        let rows = target
            .rows(
                what,
                sql,
                &[self.shared.id.uuid(), &self.shared.source.as_str()],
            )
            .await?;
        let mut found = BTreeMap::new();
        for row in &rows {
            let position =
                |at: usize| Ok::<_, Error>(row.get::<_, Option<PgLsn>>(at)?.map(u64::from));
            let there = There {
                from: position(1)?,
                applied: position(2)?,
                built: row.get(3)?,
            };
            if let Ok(shard) = ShardId::try_from(row.get::<_, i32>(0)?) {
                found.insert(shard, there);
            }
        }
        Ok(found)
    }

    /// The positions of shards that will need the slot, but are not ours to work on: shards of this
    /// move, or of the one that is taken back. One that has no progress yet needs everything that
    /// the slot has.
    pub(super) async fn others(
        &self,
        source: &Session,
        target: &Session,
        members: &[Member],
        position: u64,
    ) -> Result<BTreeMap<ShardId, u64>, Error> {
        let mut unended: Vec<(MoveId, ShardId)> = Vec::new();
        let of_move = source.entries(Some(self.shared.id)).await?;
        let of_move = of_move
            .iter()
            .filter(|entry| !entry.phase.is_ended() && entry.target == self.shared.target);
        unended.extend(of_move.map(|entry| (entry.id, entry.shard)));
        if let Some(taken_back) = self.shared.rollback_of {
            let entries = target.entries(Some(taken_back)).await?;
            let sharing = entries
                .iter()
                .filter(|entry| entry.target == self.shared.source && reverse::needs_slot(entry));
            unended.extend(sharing.map(|entry| (entry.id, entry.shard)));
        }
        unended.retain(|(_, shard)| members.iter().all(|one| one.part.shard != *shard));
        applied(target, unended, position).await
    }

    /// Starts to apply what the source's transactions have changed since.
    pub(super) async fn follow(
        &self,
        source: &Session,
        members: &[Member],
        others: BTreeMap<ShardId, u64>,
    ) -> Result<Follower, Error> {
        let mut shards = Vec::with_capacity(members.len());
        for one in members {
            let copy = self.to_copy(source, one).await?;
            let ShardCopy {
                hold,
                target_schema,
                tables,
                ..
            } = copy;
            let basis = if self.shared.rollback_of.is_some() {
                Basis::Position
            } else {
                Basis::Chunks
            };
            shards.push(FollowedShard {
                hold,
                target_schema,
                tables,
                basis,
            });
        }
        Ok(Follower::start(FollowerOptions {
            hosts: self.context.hosts.clone(),
            source: self.shared.source.clone(),
            target: self.shared.target.clone(),
            id: self.shared.id,
            stream: self.stream(),
            shards,
            others,
            patience: FollowerOptions::PATIENCE,
            failpoints: self.context.options.clone(),
        }))
    }
}

/// What a target has of a shard.
struct There {
    /// The position from which changes are needed, since the first row was copied after it.
    from: Option<u64>,
    /// The position up to which they are applied; `None` if its keys are not built.
    applied: Option<u64>,
    /// Whether its schema exists.
    built: bool,
}

impl There {
    /// Whether the target has what it must have in the journal's phase, and everything that a slot
    /// with this confirmed position no longer sends. A target that failed over may have less,
    /// because its standby did.
    fn can_go_on(&self, phase: Phase, confirmed: Option<u64>) -> bool {
        let loaded = phase >= Phase::Loaded;
        let whole = self.built && (!loaded || self.applied.is_some());
        let wanted = self.applied.or(self.from);
        whole && wanted.is_none_or(|wanted| confirmed.is_some_and(|confirmed| wanted >= confirmed))
    }
}

/// The positions of these shards; for those that have not begun, the slot's position.
///
/// Locks: ACCESS SHARE on a table of ours.
pub(in crate::mover) async fn applied(
    target: &Session,
    shards: Vec<(MoveId, ShardId)>,
    position: u64,
) -> Result<BTreeMap<ShardId, u64>, Error> {
    let mut positions = BTreeMap::new();
    for (id, shard) in shards {
        let sql = "SELECT applied_lsn FROM pgshard.progress WHERE move_id = $1 AND shard_id = $2";
        let rows = target
            .rows("reading the progress", sql, &[id.uuid(), &shard.as_i32()])
            .await?;
        let applied = rows.first().map(|row| row.get::<_, PgLsn>(0)).transpose()?;
        positions.insert(shard, applied.map_or(position, u64::from));
    }
    Ok(positions)
}
