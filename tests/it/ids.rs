//! The ID function on real servers: no ID is given out twice and each connection's IDs grow,
//! whatever happens.
//!
//! Where the clock matters the functions read `test_clock.now()` instead of the server's, see
//! [`with_test_clock`].

mod clock;
mod life;
mod moves;
mod standby;

use std::collections::BTreeSet;

use pgshard::id::Id;
use tokio_postgres::Client;

use crate::support::TestCluster;

const TEMPLATE: &str = include_str!("../../migrations/shard/0001_next_id.sql");
const EPOCH_MS: i64 = 1_293_840_000_000;

/// The SQL of a shard with IDs that count from this epoch.
fn rendered(shard: u16, epoch_ms: i64) -> String {
    let sql = TEMPLATE
        .replace("{shard}", &format!("shard_{shard:04}"))
        .replace("{shard_id}", &shard.to_string());
    sql.replace("{epoch_ms}", &epoch_ms.to_string())
}

/// A server with this shard and nothing else of pgshard.
async fn server(version: u32, shard: u16) -> TestCluster {
    let servers = TestCluster::start(version, 1);
    let client = servers.app(0).await;
    client
        .batch_execute(&format!(
            "CREATE SCHEMA shard_{shard:04}; {}",
            rendered(shard, EPOCH_MS)
        ))
        .await
        .unwrap();
    servers
}

/// Replaces the server's clock in the functions of one schema by one that tests can set. `shift` is
/// added to the server's time; `fixed`, if set, is the time.
async fn with_test_clock(client: &Client, schema: &str) {
    client
        .batch_execute(&format!(
            "CREATE SCHEMA IF NOT EXISTS test_clock;
            CREATE TABLE IF NOT EXISTS test_clock.clock (shift interval NOT NULL, fixed \
            timestamptz);
            INSERT INTO test_clock.clock SELECT '0', NULL WHERE NOT EXISTS (SELECT FROM \
            test_clock.clock);
            CREATE OR REPLACE FUNCTION test_clock.now() RETURNS timestamptz LANGUAGE plpgsql \
            VOLATILE AS $$
                BEGIN RETURN (SELECT coalesce(fixed, clock_timestamp() + shift) FROM \
                test_clock.clock); END $$;
            GRANT USAGE ON SCHEMA test_clock TO PUBLIC;
            DO $do$
            DECLARE definition text; swapped int := 0;
            BEGIN
                FOR definition IN SELECT pg_get_functiondef(oid) FROM pg_proc
                WHERE pronamespace = '{schema}'::regnamespace
                    AND prosrc LIKE '%pg_catalog.clock_timestamp()%'
                LOOP
                    EXECUTE replace(definition, 'pg_catalog.clock_timestamp()', 'test_clock.now()');
                    swapped := swapped + 1;
                END LOOP;
                ASSERT swapped = 5, 'next_id, id_raise, id_lease, resume_after and id_repair read \
                the clock';
            END $do$"
        ))
        .await
        .unwrap();
}

async fn shift(client: &Client, ms: i64) {
    let sql = format!("UPDATE test_clock.clock SET shift = {ms} * interval '1 ms', fixed = NULL");
    client.batch_execute(&sql).await.unwrap();
}

async fn fix(client: &Client, unix_ms: i64) {
    let sql = format!(
        "UPDATE test_clock.clock SET fixed = timestamptz 'epoch' + {unix_ms} * interval '1 ms'"
    );
    client.batch_execute(&sql).await.unwrap();
}

/// This many IDs by `next_id()`, in the order in which they were made.
async fn next_id(client: &Client, schema: &str, count: i32) -> Vec<i64> {
    let sql = format!("SELECT {schema}.next_id() FROM generate_series(1, $1)");
    client
        .query(&sql, &[&count])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect()
}

/// This many IDs by `next_ids()`.
async fn next_ids(client: &Client, schema: &str, count: i32) -> Vec<i64> {
    let rows = client
        .query(&format!("SELECT * FROM {schema}.next_ids($1)"), &[&count])
        .await
        .unwrap();
    let ids: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    assert_eq!(ids.len(), count as usize);
    ids
}

async fn high_water(client: &Client, schema: &str) -> i64 {
    client
        .query_one(&format!("SELECT {schema}.id_high_water()"), &[])
        .await
        .unwrap()
        .get(0)
}

/// Checks that one connection's IDs grow, as unsigned numbers.
#[track_caller]
fn assert_grows(ids: &[i64]) {
    for pair in ids.windows(2) {
        assert!(
            (pair[0] as u64) < pair[1] as u64,
            "{:?} before {:?}",
            Id::decode(pair[0]),
            Id::decode(pair[1])
        );
    }
}

/// Checks that each connection's IDs grow and that no two are the same.
#[track_caller]
fn assert_sound(of_connections: &[Vec<i64>]) {
    of_connections.iter().for_each(|ids| assert_grows(ids));
    let total: usize = of_connections.iter().map(Vec::len).sum();
    let distinct: BTreeSet<i64> = of_connections.iter().flatten().copied().collect();
    assert_eq!(total - distinct.len(), 0, "repeats of {total} IDs");
}

on_each_version! {
    /// Eight writers, 50,000 IDs each, counted exactly.
    async fn eight_writers_get_distinct_ids(version) {
        let servers = server(version, 5).await;
        let mut writers = tokio::task::JoinSet::new();
        for _ in 0..8 {
            let client = servers.app(0).await;
            writers.spawn(async move {
                let mut ids = Vec::new();
                for _ in 0..10 {
                    ids.extend(next_id(&client, "shard_0005", 5_000).await);
                }
                ids
            });
        }
        let of_writers = writers.join_all().await;
        assert_sound(&of_writers);
        assert!(
            of_writers
                .iter()
                .flatten()
                .all(|id| Id::decode(*id).shard().get() == 5)
        );
        let largest = of_writers.iter().flatten().max().unwrap();
        assert!(*largest <= high_water(&servers.app(0).await, "shard_0005").await);
    }

    /// IDs are reserved in bulk, one by one and by a column's default at the same time, some of
    /// them in transactions that are rolled back.
    async fn in_bulk_and_one_by_one(version) {
        let servers = server(version, 8191).await;
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..6 {
            let client = servers.app(0).await;
            writers.spawn(async move {
                let mut ids = Vec::new();
                for round in 0..30 {
                    let rolled_back = (round + writer) % 5 == 0;
                    client.batch_execute("BEGIN").await.unwrap();
                    match writer % 2 {
                        0 => ids.extend(next_id(&client, "shard_8191", 500).await),
                        _ => ids.extend(
                            next_ids(&client, "shard_8191", [1, 20, 999, 3000][round % 4]).await,
                        ),
                    }
                    client
                        .batch_execute(if rolled_back { "ROLLBACK" } else { "COMMIT" })
                        .await
                        .unwrap();
                }
                ids
            });
        }
        assert_sound(&writers.join_all().await);
    }

    /// The limits of `next_ids`; one connection's IDs grow across both ways.
    async fn next_ids_limits(version) {
        let servers = server(version, 7).await;
        let client = servers.app(0).await;
        assert!(next_ids(&client, "shard_0007", 0).await.is_empty());
        let mut ids = next_id(&client, "shard_0007", 10).await;
        for count in [1, 15, 16, 65_536, 65_537, 200_000] {
            ids.extend(next_ids(&client, "shard_0007", count).await);
            ids.extend(next_id(&client, "shard_0007", 3).await);
            assert!(*ids.last().unwrap() <= high_water(&client, "shard_0007").await);
        }
        assert_grows(&ids);
        for wrong in [-1, 1_000_001] {
            let error = client
                .query("SELECT shard_0007.next_ids($1)", &[&wrong])
                .await
                .unwrap_err();
            let error = error.as_db_error().unwrap();
            assert_eq!(
                error.message(),
                format!(
                    "next_ids({wrong}): 0 to 1000000 IDs are reserved \
                at once"
                )
            );
        }
    }

    /// Statements that are cancelled at any moment leave no lock behind, and IDs continue.
    async fn cancelled_statements_leave_no_lock(version) {
        let servers = server(version, 5).await;
        let watcher = servers.app(0).await;
        watcher
            .batch_execute("CREATE TABLE public.ids (id bigint)")
            .await
            .unwrap();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..4_u64 {
            let client = servers.app(0).await;
            writers.spawn(async move {
                let token = client.cancel_token();
                let mut cancelled = 0;
                for round in 0..60_u64 {
                    let sql = match round % 3 {
                        0 => "INSERT INTO public.ids SELECT * FROM shard_0005.next_ids(2000)",
                        _ => {
                            "INSERT INTO public.ids SELECT shard_0005.next_id() FROM \
                            generate_series(1, 2000)"
                        }
                    };
                    // The moment is anywhere from the statement's start to after its end.
                    let moment = std::time::Duration::from_micros(
                        (round * 7919 + writer * 104_729) % 12_000,
                    );
                    let (done, _) = tokio::join!(client.batch_execute(sql), async {
                        tokio::time::sleep(moment).await;
                        token.cancel_query(tokio_postgres::NoTls).await
                    });
                    cancelled += u32::from(done.is_err());
                }
                // A cancel that came too late may hit the next statement.
                let _ = client.batch_execute("SELECT 1").await;
                cancelled
            });
        }
        let cancelled: u32 = writers.join_all().await.iter().sum();
        assert!(cancelled > 10, "{cancelled} statements were cancelled");
        let sql = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        assert_eq!(
            watcher.query_one(sql, &[]).await.unwrap().get::<_, i64>(0),
            0
        );
        let row = watcher
            .query_one(
                "SELECT count(*), count(DISTINCT id) FROM \
            public.ids",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1));
        next_id(&watcher, "shard_0005", 10).await;
    }
}
