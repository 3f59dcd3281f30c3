//! [`Pair`]: a source and a target with control schemas, and a shard that is being moved from one
//! to the other.

use tokio_postgres::Client;
use uuid::Uuid;

use crate::dev::{Binaries, Cluster, ClusterOptions, Server, ServerOptions};
use crate::id::Epoch;
use crate::map::HostName;
use crate::mover::copy::{Route, ShardCopy};
use crate::mover::preflight::table::shapes;
use crate::mover::{Hold, Hosts, MoveId, Session};
use crate::pg::{Connection, quote_ident};
use crate::schema::{self, install};
use crate::{SchemaPrefix, ShardCount, ShardId};

/// The move of all these tests.
pub(crate) const MOVE: Uuid = Uuid::from_u128(0x0199_0000_0000_7000_8000_0000_0000_0001);

/// The lease under which these tests work.
pub(crate) const LEASE: Uuid = Uuid::from_u128(0x5ea5e);

/// The other version that is tested.
pub(crate) fn other(version: u32) -> u32 {
    if version == 18 { older!() } else { 18 }
}

/// `db1`, the source, and `db2`, the target.
pub(crate) struct Pair {
    clusters: [Cluster; 2],
    pub(crate) hosts: Hosts,
    pub(crate) route: Route,
}

impl Pair {
    /// Servers of these major versions, the source's first.
    pub(crate) async fn start(versions: [u32; 2]) -> Pair {
        Pair::start_with(versions, ServerOptions::default()).await
    }

    pub(crate) async fn start_with(versions: [u32; 2], server: ServerOptions) -> Pair {
        let clusters = versions.map(|version| {
            let binaries = Binaries::of_major(version).unwrap_or_else(|error| panic!("{error}"));
            let options = ClusterOptions::new(1, binaries).server(server.clone());
            Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"))
        });
        let names = ["db1", "db2"].map(|name| HostName::new(name).unwrap());
        let connect = |at: usize| {
            (
                names[at].clone(),
                clusters[at].servers()[0].url().parse().unwrap(),
            )
        };
        let hosts = Hosts::new([connect(0), connect(1)]);
        let [source, target] = names;
        let pair = Pair {
            clusters,
            hosts,
            route: Route { source, target },
        };
        let cluster = schema::Cluster {
            shards: ShardCount::new(64).unwrap(),
            epoch: Epoch::from_unix_ms(1_700_000_000_000).unwrap(),
            schema_prefix: SchemaPrefix::default(),
            key: crate::KeyKind::Integer,
            legacy_below: 0,
            unsharded: None,
        };
        for (at, name) in [(0, &pair.route.source), (1, &pair.route.target)] {
            let mut client = pair.app(at).await;
            install(&mut client, &cluster, name).await.unwrap();
        }
        pair
    }

    /// A server: 0 is the source, 1 the target.
    pub(crate) fn server(&self, at: usize) -> &Server {
        &self.clusters[at].servers()[0]
    }

    /// A connection of the application's role: 0 is the source, 1 the target.
    pub(crate) async fn app(&self, at: usize) -> Connection {
        let options: crate::pg::ConnectOptions =
            self.clusters[at].servers()[0].url().parse().unwrap();
        options.connect("trial").await.unwrap()
    }

    /// A mover's session for a shard: 0 is the source, 1 the target.
    pub(crate) async fn session(&self, at: usize, shard: ShardId) -> Session {
        let name = if at == 0 {
            &self.route.source
        } else {
            &self.route.target
        };
        self.hosts.open(name).await.unwrap().for_shard(shard)
    }

    /// Creates a shard at the source with these tables (`{shard}` is its schema), and at the target
    /// the same tables, empty and without `keys`; announced there under [`LEASE`].
    pub(crate) async fn shard(&self, number: u16, tables: &str, keys: &str) -> ShardCopy {
        let shard = ShardId::new(number).unwrap();
        let (name, incoming) = (
            format!("shard_{number:04}"),
            format!("shard_{number:04}__incoming"),
        );
        let create = async |at: usize, schema: &str, sql: &str| {
            let sql = format!(
                "CREATE SCHEMA {}; {}",
                quote_ident(schema),
                sql.replace("{shard}", schema)
            );
            self.app(at).await.batch_execute(&sql).await.unwrap();
        };
        create(0, &name, &format!("{tables};{keys}")).await;
        create(1, &incoming, tables).await;
        let hold = Hold {
            id: MoveId::from(MOVE),
            shard,
            lease: LEASE,
        };
        let sql =
            "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, epoch)
            VALUES ($1, $2, $3, $4, 'db1', 2)";
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&i32::from(number), &name, &MOVE, &LEASE];
        self.app(1).await.execute(sql, &values).await.unwrap();
        let source = self.session(0, shard).await;
        let oid = one::<u32>(
            &source.client,
            &format!("SELECT oid FROM pg_namespace WHERE nspname = '{name}'"),
        )
        .await;
        let tables = shapes(&source, oid).await.unwrap();
        ShardCopy {
            hold,
            source_schema: name,
            target_schema: incoming,
            tables,
        }
    }
}

/// The value of a query that gives one row with one column.
pub(crate) async fn one<T>(client: &Client, sql: &str) -> T
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    client
        .query_one(sql, &[])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .get(0)
}
