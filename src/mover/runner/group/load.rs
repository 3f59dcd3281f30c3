//! Copies the rows of the shards that lack some, and builds the indexes that find rows.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::mover::control::session::Session;
use crate::mover::copy::chunk::CopiedChunk;
use crate::mover::copy::workers::{CopyOptions, copy_all};
use crate::mover::copy::{Route, ShardCopy};
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::mover::protocol::state::Phase;
use crate::mover::runner::assignment::ShardResult;
use crate::mover::runner::group::{Group, Member};
use crate::mover::runner::single::reconnect;
use crate::shard::ShardId;

impl Group<'_> {
    /// Copies the rows of the shards that lack some, and builds the indexes that find rows.
    pub(super) async fn load(
        &self,
        source: &Session,
        members: &mut Vec<Member>,
        ends: &mut Vec<ShardResult>,
        position: u64,
    ) -> Result<(), Error> {
        let phases = self.phases(source).await?;
        let lacks = |one: &Member| {
            phases
                .get(&one.part.shard)
                .is_some_and(|phase| *phase == Phase::Prepared)
        };
        let mut copies = Vec::new();
        for one in members.iter().filter(|one| lacks(one)) {
            copies.push(self.to_copy(source, one).await?);
        }
        let options = CopyOptions {
            route: Route {
                source: self.shared.source.clone(),
                target: self.shared.target.clone(),
            },
            builds: members
                .iter()
                .filter(|one| lacks(one))
                .filter_map(|one| Some((one.part.shard, one.built.as_ref()?.creation.builds())))
                .collect(),
            throttle: self.context.throttle.clone(),
            stop: self.context.stop.subscribe(),
            altered: self.watchdog.found(),
            observer: self.context.observer.clone(),
            options: self.context.options.clone(),
        };
        let began = Instant::now();
        let (ended, last_chunk) = copy_all(&self.context.hosts, copies, &options).await;
        let mut copied: BTreeMap<ShardId, Result<CopiedChunk, Error>> = ended.into_iter().collect();
        let copied_at = last_chunk.unwrap_or(began);
        let took = copied_at - began;
        self.at("after chunks")?;
        // From here on only single shards can end.
        let (missing, loaded): (Vec<Member>, Vec<Member>) =
            std::mem::take(members).into_iter().partition(lacks);
        *members = loaded;
        let mut rows_there = Vec::new();
        for one in missing {
            let shard = one.part.shard;
            match copied
                .remove(&shard)
                .unwrap_or(Err(Error::Interrupted { shard }))
            {
                Ok(rows) => rows_there.push((one, rows)),
                Err(error) => ends.push(self.failed_member(&one, error).await),
            }
        }
        let keys = async |(one, rows): (Member, CopiedChunk)| {
            self.keys(one, rows, (took, copied_at), position).await
        };
        members.extend(self.each(ends, rows_there, keys).await);
        Ok(())
    }

    /// Builds the keys and indexes of a shard with rows that were copied.
    async fn keys(
        &self,
        mut member: Member,
        copied: CopiedChunk,
        (took, copied_at): (Duration, Instant),
        position: u64,
    ) -> Result<Member, ShardResult> {
        let shard = member.part.shard;
        let built = async {
            if self.context.is_stopped() {
                return Err(Error::Interrupted { shard });
            }
            let work = reconnect(self.context, &member.part, self.hold(shard)).await?;
            work.timings.took("copy", took);
            let built = match member.built.take() {
                Some(built) => built,
                None => {
                    work.blueprint(&work.source.entry(self.shared.id, shard).await?)
                        .await?
                }
            };
            let size = (copied.rows as i64, copied.bytes as i64);
            work.loaded(&built.creation, position.into(), size, copied_at)
                .await?;
            work.give_back(&self.context.hosts).await;
            Ok::<_, Error>(built)
        };
        match built.await {
            Ok(built) => Ok(Member {
                built: Some(built),
                ..member
            }),
            Err(error) => Err(self.failed_member(&member, error).await),
        }
    }

    /// The tables of a shard that its target was built with, as they are at the source, and the
    /// schema that they are copied to. A table that was created since is not published; it ends the
    /// move as an alteration of the shard.
    pub(super) async fn to_copy(
        &self,
        source: &Session,
        member: &Member,
    ) -> Result<ShardCopy, Error> {
        let shard = member.part.shard;
        let is_of_it = |name: &String| {
            member
                .built
                .as_ref()
                .is_none_or(|built| built.tables.contains(name))
        };
        let names = Names {
            schema: self.context.prefix.schema(shard),
        };
        let tables = match facts::schema_oid(source, &names.schema).await? {
            Some(oid) => table::shapes(source, oid)
                .await?
                .into_iter()
                .filter(|table| is_of_it(&table.name))
                .collect(),
            None => Vec::new(),
        };
        Ok(ShardCopy {
            hold: self.hold(shard),
            target_schema: names.incoming(),
            source_schema: names.schema,
            tables,
        })
    }
}
