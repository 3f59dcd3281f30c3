//! A cluster with a few shards, and moves made step by step with the functions of the control
//! schema, so that a test can stop between any two of them.

use std::sync::Arc;
use std::time::Duration;

use pgshard::dev::Server;
use pgshard::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::router::{HostOptions, Options, Router};
use pgshard::{SchemaPrefix, ShardCount, ShardId};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::{TestCluster, control};

/// What every shard of these tests holds.
const TABLES: &str = "
    CREATE TYPE SCHEMA.kind AS ENUM ('photo', 'film');
    CREATE TABLE SCHEMA.photos (id bigint PRIMARY KEY, title text NOT NULL, kind SCHEMA.kind NOT \
    NULL DEFAULT 'photo');
    CREATE FUNCTION SCHEMA.answer() RETURNS integer LANGUAGE sql AS 'SELECT 42';
";

/// Two hosts, the first half of the shards on `db1`.
pub(crate) struct Shards {
    pub(crate) cluster: TestCluster,
    pub(crate) map: Arc<ShardMap>,
    pub(crate) db: [Client; 2],
}

pub(crate) fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

pub(crate) fn schema(number: u16) -> String {
    SchemaPrefix::default().schema(shard(number))
}

impl Shards {
    pub(crate) async fn start(version: u32, shards: u16) -> Shards {
        Shards::start_beside(version, shards, 0).await
    }

    /// In addition to the two hosts, this many servers without shards, for standbys.
    pub(crate) async fn start_beside(version: u32, shards: u16, spare: usize) -> Shards {
        let cluster = TestCluster::start(version, 2 + spare);
        let db = [cluster.app(0).await, cluster.app(1).await];
        for (host, client) in db.iter().enumerate() {
            client.batch_execute(&control()).await.unwrap();
            let mut sql = String::from("BEGIN;");
            for number in (0..shards).filter(|number| usize::from(*number >= shards / 2) == host) {
                let schema = schema(number);
                sql += &format!(
                    "CREATE SCHEMA {schema};{}",
                    TABLES.replace("SCHEMA", &schema)
                );
                sql += &format!(
                    "INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch)
                     VALUES ({number}, '{schema}', 'serving', 1);"
                );
            }
            client.batch_execute(&(sql + "COMMIT")).await.unwrap();
        }
        let count = ShardCount::new(shards.into()).unwrap();
        let placements = count.iter().map(|shard| {
            let host = cluster.name(usize::from(shard.get() >= shards / 2));
            (
                shard,
                Placement {
                    host,
                    epoch: ShardEpoch::FIRST,
                },
            )
        });
        let map = Arc::new(ShardMap::new(MapVersion::FIRST, count, placements).unwrap());
        Shards { cluster, map, db }
    }

    pub(crate) fn options(&self) -> Options {
        let host = |server: &Server| {
            HostOptions::new(
                server.name().clone(),
                ConnectOptions::parse(&server.url()).unwrap(),
                4,
            )
        };
        let hosts = self.cluster.servers().into_iter().take(2).map(host);
        Options::new(hosts.collect(), self.map.clone())
    }

    pub(crate) fn router(&self) -> Router {
        Router::new(self.options())
    }

    pub(crate) fn name(&self, host: usize) -> HostName {
        self.cluster.name(host)
    }

    /// A shard's titles on a host, read over a connection without a router.
    pub(crate) async fn titles(&self, host: usize, number: u16) -> Vec<String> {
        let sql = format!("SELECT title FROM {}.photos ORDER BY title", schema(number));
        self.db[host]
            .query(&sql, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get(0))
            .collect()
    }

    /// The state of a shard's row on a host.
    pub(crate) async fn state(&self, host: usize, number: u16) -> String {
        let sql = "SELECT state FROM pgshard.shard WHERE shard_id = $1";
        self.db[host]
            .query_one(sql, &[&i32::from(number)])
            .await
            .unwrap()
            .get(0)
    }

    /// Starts a move away from the host that serves the shard: claimed, signpost built, target
    /// prepared and empty.
    pub(crate) async fn prepare(&self, number: u16, source: usize) -> Move<'_> {
        let (shard, schema, target) = (i32::from(number), schema(number), 1 - source);
        let (id, lease, token) = (Uuid::now_v7(), Uuid::new_v4(), Uuid::new_v4());
        let sql = "INSERT INTO pgshard.move
                (move_id, shard_id, source, target, mode, phase, epoch, lease, lease_until, holder)
            SELECT $1, $2, $3, $4, 'blocking', 'prepared', epoch, $5, now() + interval '1 minute', \
            'a test'
            FROM pgshard.shard WHERE shard_id = $2 RETURNING epoch";
        let names = (self.name(source).to_string(), self.name(target).to_string());
        let claimed = self.db[source]
            .query_one(sql, &[&id, &shard, &names.0, &names.1, &lease])
            .await
            .unwrap();
        let epoch: i32 = claimed.get(0);
        self.db[source]
            .execute("SELECT pgshard.build_signpost($1, $2)", &[&shard, &id])
            .await
            .unwrap();

        let incoming = format!("{schema}__incoming");
        let sql = format!(
            "CREATE SCHEMA {incoming};{}",
            TABLES.replace("SCHEMA", &incoming)
        );
        self.db[target].batch_execute(&sql).await.unwrap();
        let sql = "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, \
            epoch, ready_attempt,
            open_hash)
            VALUES ($1, $2, $3, $4, $5, $6, 1, encode(sha256(convert_to($7, 'UTF8')), 'hex'))";
        let hashed = token.to_string();
        let row: [&(dyn tokio_postgres::types::ToSql + Sync); 7] = [
            &shard,
            &schema,
            &id,
            &lease,
            &names.0,
            &(epoch + 1),
            &hashed,
        ];
        self.db[target].execute(sql, &row).await.unwrap();
        Move {
            shards: self,
            number,
            source,
            target,
            id,
            lease,
            token,
            epoch,
        }
    }
}

/// A move of one shard, attempt 1.
pub(crate) struct Move<'c> {
    shards: &'c Shards,
    number: u16,
    source: usize,
    target: usize,
    id: Uuid,
    lease: Uuid,
    token: Uuid,
    epoch: i32,
}

impl Move<'_> {
    /// The swap; the pause starts.
    pub(crate) async fn fence(&self, deadline: Duration) {
        let ms = deadline.as_millis() as i32;
        let sql = "SELECT pgshard.fence($1, $2, $3, $4, $5)";
        let shard = i32::from(self.number);
        self.shards.db[self.source]
            .execute(sql, &[&shard, &self.id, &self.lease, &self.token, &ms])
            .await
            .unwrap();
    }

    /// Undoes the swap.
    pub(crate) async fn unfence(&self) {
        let sql = "SELECT pgshard.unfence($1, $2, 1)";
        self.shards.db[self.source]
            .execute(sql, &[&i32::from(self.number), &self.id])
            .await
            .unwrap();
    }

    /// Copies behind the fence (when no session writes any longer) and decides: from now on the
    /// source reports `moved`.
    pub(crate) async fn decide(&self) {
        let [source, target] = [self.source, self.target].map(|host| &self.shards.db[host]);
        let schema = schema(self.number);
        loop {
            let sql = "SELECT count(*) FROM pgshard.barrier(to_regnamespace($1)::oid)";
            let busy: i64 = source
                .query_one(sql, &[&format!("{schema}__left_e{}", self.epoch)])
                .await
                .unwrap()
                .get(0);
            if busy == 0 {
                break;
            }
        }
        let sql = format!(
            "SELECT id, title, kind::text FROM {schema}__left_e{}.photos",
            self.epoch
        );
        for row in source.query(&sql, &[]).await.unwrap() {
            let (id, title, kind): (i64, &str, &str) = (row.get(0), row.get(1), row.get(2));
            let sql = format!(
                "INSERT INTO {schema}__incoming.photos VALUES ($1, $2, \
                    $3::text::{schema}__incoming.kind)"
            );
            target.execute(&sql, &[&id, &title, &kind]).await.unwrap();
        }
        for step in [
            "SELECT pgshard.mark($1, $2, 1, $3)",
            "SELECT pgshard.decide($1, $2, 1, $3)",
        ] {
            source
                .execute(step, &[&i32::from(self.number), &self.id, &self.lease])
                .await
                .unwrap();
        }
    }

    /// Opens the target, which ends the pause.
    pub(crate) async fn open(&self) {
        let sql = "SELECT pgshard.open($1, $2, 1, $3)";
        self.shards.db[self.target]
            .execute(sql, &[&i32::from(self.number), &self.id, &self.lease])
            .await
            .unwrap();
    }
}
