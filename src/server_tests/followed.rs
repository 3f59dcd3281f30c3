//! [`Stream`]: publication, slot, copy and follower of some shards, without a move.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use crate::mover::copy::snapshot::Snapshot;
use crate::mover::copy::workers::{CopyOptions, copy_all};
use crate::mover::copy::{Route, ShardCopy};
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::options::{Observer, Options};
use crate::mover::protocol::throttle::Throttle;
use crate::mover::stream::follower::Follower;
use crate::mover::stream::options::{Basis, FollowedShard, FollowerOptions};
use crate::mover::stream::slot;
use crate::mover::stream::slot::Owner;
use crate::mover::stream::watermark::write_watermark;
use crate::mover::{Hold, Hosts};
use crate::pg::quote_ident;
use crate::shard::ShardId;

use super::pair::Pair;

/// A shard of a test: number, lease, schema at the source, schema at the target.
pub(crate) type Part = (ShardId, Uuid, String, String);

/// Publication, slot, chunks and follower of some shards.
pub(crate) struct Stream {
    hosts: Hosts,
    route: Route,
    id: MoveId,
    name: String,
    shards: Vec<ShardCopy>,
    follower: Option<Follower>,
}

impl Stream {
    /// Publishes the tables and creates the slot; writes the rows at the target that a mover
    /// writes.
    pub(crate) async fn publish(pair: &Pair, id: Uuid, parts: &[Part]) -> Result<Stream, Error> {
        let hosts = pair.hosts.clone();
        let Route { source, target } = pair.route.clone();
        let id = MoveId::from(id);
        let name = slot::stream_name(id);
        let (from, to) = (hosts.open(&source).await?, hosts.open(&target).await?);
        let mut shards = Vec::new();
        let mut names = Vec::new();
        for (shard, lease, source_schema, target_schema) in parts {
            let oid = facts::schema_oid(&from, source_schema).await?.unwrap_or(0);
            let tables = table::shapes(&from, oid).await?;
            names.extend(
                tables
                    .iter()
                    .map(|table| (source_schema.clone(), table.name.clone())),
            );
            let hold = Hold {
                id,
                shard: *shard,
                lease: *lease,
            };
            let (source_schema, target_schema) = (source_schema.clone(), target_schema.clone());
            shards.push(ShardCopy {
                hold,
                source_schema,
                target_schema,
                tables,
            });
        }
        let options = Options::default();
        let owner = Owner {
            name: &name,
            id,
            shard: parts[0].0,
            options: &options,
        };
        slot::create_publication(&from, owner, &names).await?;
        let position = slot::create_slot(&from, owner, Duration::from_secs(5)).await?;
        for (shard, lease, schema, _) in parts {
            let sql = "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, \
                source, epoch, stream_from)
                VALUES ($1, $2, $3, $4, $5, 2, $6)";
            let params: [&(dyn tokio_postgres::types::ToSql + Sync); 6] = [
                &shard.as_i32(),
                schema,
                id.uuid(),
                lease,
                &source.as_str(),
                &PgLsn::from(position),
            ];
            to.execute("testing", sql, &params).await?;
            let sql = "INSERT INTO pgshard.progress (move_id, shard_id, lease, applied_lsn) VALUES \
                ($1, $2, $3, $4)";
            to.execute(
                "testing",
                sql,
                &[id.uuid(), &shard.as_i32(), lease, &PgLsn::from(position)],
            )
            .await?;
        }
        Ok(Stream {
            hosts,
            route: Route { source, target },
            id,
            name,
            shards,
            follower: None,
        })
    }

    /// The name of slot and publication.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Copies everything, in chunks of this size.
    pub(crate) async fn copy(&self, chunk_bytes: u64) -> Result<(), Error> {
        let options = CopyOptions {
            route: self.route.clone(),
            builds: Default::default(),
            throttle: Throttle::open(),
            stop: watch::channel(false).1,
            altered: watch::channel(Default::default()).1,
            observer: Observer::silent(),
            options: Arc::new(Options::default().copy_jobs(2).chunk_bytes(chunk_bytes)),
        };
        for (_, copied) in copy_all(&self.hosts, self.shards.clone(), &options).await.0 {
            copied?;
        }
        Ok(())
    }

    /// Starts to follow; the former follower is dropped immediately.
    pub(crate) fn follow(&mut self, patience: Duration) {
        self.follower = None;
        let shard = |shard: &ShardCopy| FollowedShard {
            hold: shard.hold,
            target_schema: shard.target_schema.clone(),
            tables: shard.tables.clone(),
            basis: Basis::Chunks,
        };
        self.follower = Some(Follower::start(FollowerOptions {
            hosts: self.hosts.clone(),
            source: self.route.source.clone(),
            target: self.route.target.clone(),
            id: self.id,
            stream: self.name.clone(),
            shards: self.shards.iter().map(shard).collect(),
            others: Default::default(),
            patience,
            failpoints: Arc::new(Options::default()),
        }));
    }

    /// Drops the follower immediately, as a crash would.
    pub(crate) fn kill(&mut self) {
        self.follower = None;
    }

    fn follower(&self) -> &Follower {
        self.follower.as_ref().expect("the test follows")
    }

    /// Writes a watermark and waits for it.
    pub(crate) async fn caught_up(&self) -> Result<(), Error> {
        let source = self.hosts.open(&self.route.source).await?;
        let watermark = write_watermark(&source, self.id).await?;
        self.follower()
            .caught_up(watermark, self.shards[0].hold.shard)
            .await
    }

    /// Waits for a marker.
    pub(crate) async fn marker(
        &self,
        shard: ShardId,
        attempt: i32,
        hash: &str,
    ) -> Result<(), Error> {
        self.follower().marker(shard, attempt, hash).await
    }

    pub(crate) fn failed(&self, shard: ShardId) -> Option<Error> {
        self.follower().failed(shard)
    }

    pub(crate) fn breach(&self, shard: ShardId) -> Option<String> {
        self.follower().breach(shard)
    }

    pub(crate) async fn detach(&self, shard: ShardId) {
        self.follower().detach(shard).await;
    }

    /// Pauses, and makes the target what a snapshot of the source sees. Returns the result of a
    /// query on both sides in that state.
    pub(crate) async fn aligned(
        &self,
        at_source: &str,
        at_target: &str,
    ) -> Result<Option<(String, String)>, Error> {
        let what = "testing";
        let (source, target) = (
            self.hosts.open(&self.route.source).await?,
            self.hosts.open(&self.route.target).await?,
        );
        let writer = self.hosts.open(&self.route.source).await?;
        let paused = self.follower().pause().await?;
        // The locks come before the snapshot: a TRUNCATE after it would empty what it sees.
        source
            .batch(what, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .await?;
        for shard in &self.shards {
            let schema = quote_ident(&shard.source_schema);
            let names = shard
                .tables
                .iter()
                .map(|table| format!("{schema}.{}", quote_ident(&table.name)));
            let names: Vec<String> = names.collect();
            source
                .batch(
                    what,
                    &format!("LOCK TABLE {} IN ACCESS SHARE MODE", names.join(", ")),
                )
                .await?;
        }
        let snapshot: String = source
            .row(what, "SELECT pg_current_snapshot()::text", &[])
            .await?
            .get(0)?;
        let snapshot = Snapshot::parse(&snapshot).expect("PostgreSQL writes snapshots");
        let watermark = write_watermark(&writer, self.id).await?;
        if !paused.align(snapshot, watermark).await? {
            return Ok(None);
        }
        target
            .batch(
                what,
                "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SELECT 1",
            )
            .await?;
        drop(paused);
        Ok(Some((
            source.row(what, at_source, &[]).await?.get(0)?,
            target.row(what, at_target, &[]).await?.get(0)?,
        )))
    }

    /// Ends the follower, drops slot and publication.
    pub(crate) async fn end(mut self) -> Result<(), Error> {
        if let Some(follower) = self.follower.take() {
            follower.stop().await;
        }
        let source = self.hosts.open(&self.route.source).await?;
        slot::drop_slot(&source, &self.name).await?;
        slot::drop_publication(&source, &self.name).await
    }
}
