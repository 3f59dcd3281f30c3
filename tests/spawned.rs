//! A caller of the library may be on a runtime of several threads, in a task or in a handler: the
//! library's futures are `Send`, whatever is around them. The compiler is the test. It sees a
//! future of an `async fn` through to its innermost closure, and one there that works for a single
//! lifetime only makes all callers fail.

use std::time::Duration;

use pgshard::fanout::ByKeys;
use pgshard::idgen::lease::WorkerLeases;
use pgshard::idgen::tickets::{TicketHost, status};
use pgshard::map::{Changes, HostName, MapVersion, ShardMap};
use pgshard::mover::{Entry, MoveId, Mover, Plan, Request};
use pgshard::pg::ConnectOptions;
use pgshard::router::Router;
use pgshard::schema::{self, Identities, Sizes};
use pgshard::store::{MapStore, PostgresStore, publish_merged};
use tokio_postgres::Client;

/// Needs no more of a future than `tokio::spawn` does, but for its lifetime.
fn spawned(_: impl Future + Send) {}

fn of_the_router(router: &Router, keys: ByKeys<i64>) {
    let sql = "SELECT id FROM {shard}.photos";
    spawned(pgshard::connect("pgshard.toml"));
    spawned(router.by_key(1_i64).query(sql, &[]));
    spawned(router.by_key(1_i64).execute(sql, &[]));
    spawned(router.by_key(1_i64).next_ids(3));
    spawned(
        router
            .by_key(1_i64)
            .transaction(async |tx| tx.execute(sql, &[]).await),
    );
    spawned(keys.query(sql));
    spawned(router.by_ids(&[1, 2]).query(sql));
    spawned(router.by_ids(&[1, 2]).query_in_order(sql));
    spawned(async { router.all_shards().query(sql, &[]).next().await.is_some() });
    spawned(router.wait_for_migration("0001", Duration::from_secs(1)));
    spawned(router.close(Duration::from_secs(1)));
}

fn of_stores(store: &dyn MapStore, kept: &PostgresStore, map: &ShardMap, changes: &Changes) {
    spawned(publish_merged(store, changes));
    spawned(kept.install(map));
    spawned(kept.mend(map));
    spawned(kept.load_or_copy());
    spawned(kept.history(3));
    spawned(kept.version(MapVersion::FIRST));
}

fn of_hosts(client: &Client, hosts: &[(HostName, ConnectOptions)], seen: &Identities) {
    spawned(schema::survey(hosts.iter().cloned()));
    spawned(schema::identities(hosts.iter().cloned()));
    spawned(seen.record(hosts));
    spawned(schema::host_facts(client));
    spawned(schema::host_load(client));
    spawned(schema::host_status(client));
    spawned(schema::database_environment(client));
    spawned(schema::streams(client));
    spawned(schema::measure(client, Sizes::Estimated));
}

fn of_sources(connect: &ConnectOptions, leases: &WorkerLeases, hosts: &[TicketHost]) {
    spawned(connect.connect("an application"));
    spawned(WorkerLeases::status(connect));
    spawned(leases.take_back(3));
    spawned(status(hosts));
}

fn of_moves(mover: &Mover, request: &Request, plan: &Plan, id: MoveId, entries: &[Entry]) {
    spawned(mover.plan(request));
    spawned(mover.run(plan));
    spawned(mover.resume(id));
    spawned(mover.follow_old_copies(None));
    spawned(mover.workers(id));
    spawned(mover.progress(id));
    spawned(mover.gc());
    spawned(mover.reverse_streams(entries.iter()));
}

#[test]
fn all_futures_can_be_spawned() {
    let _ = (of_the_router, of_stores, of_hosts, of_sources, of_moves);
}
