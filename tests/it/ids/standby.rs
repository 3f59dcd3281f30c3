//! A standby takes over. It has as much of a shard's sequences as of its rows, because one WAL
//! carries both in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pgshard::dev::StopMode;

use super::*;

/// Four writers on the first host, each until its connection ends. Returns the IDs of acknowledged
/// inserts, a list for each writer.
async fn writers(
    servers: &TestCluster,
    acknowledged: &Arc<AtomicU64>,
) -> tokio::task::JoinSet<Vec<i64>> {
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let (client, acknowledged) = (servers.app(0).await, acknowledged.clone());
        writers.spawn(async move {
            let mut ids = Vec::new();
            let sql = match writer {
                0 => "INSERT INTO shard_0005.t SELECT * FROM shard_0005.next_ids(40) RETURNING id",
                _ => {
                    "INSERT INTO shard_0005.t SELECT shard_0005.next_id() FROM generate_series(1, \
                    3) RETURNING id"
                }
            };
            while let Ok(rows) = client.query(sql, &[]).await {
                ids.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                acknowledged.fetch_add(rows.len() as u64, Ordering::Relaxed);
            }
            ids
        });
    }
    writers
}

/// Waits until the writers have this many more.
async fn wait_for(acknowledged: &AtomicU64, more: u64) {
    let goal = acknowledged.load(Ordering::Relaxed) + more;
    let enough = async {
        while acknowledged.load(Ordering::Relaxed) < goal {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), enough)
        .await
        .expect("the writers write");
}

/// Two hosts, the second a standby of the first, and a table with a shard's IDs.
async fn primary_and_standby(version: u32) -> TestCluster {
    let servers = TestCluster::start(version, 2);
    let client = servers.app(0).await;
    client
        .batch_execute(&format!(
            "CREATE SCHEMA shard_0005; {}",
            rendered(5, EPOCH_MS)
        ))
        .await
        .unwrap();
    client
        .batch_execute(
            "CREATE TABLE shard_0005.t (id bigint PRIMARY KEY DEFAULT shard_0005.next_id())",
        )
        .await
        .unwrap();
    with_test_clock(&client, "shard_0005").await;
    servers.make_standby(version, 1, 0);
    servers
}

/// Promotes the second host, with its clock off by this much, and makes it create IDs in all ways.
/// Returns the rows that it had before, and the new IDs.
async fn promote(servers: &TestCluster, clock_ms: i64) -> (Vec<i64>, Vec<i64>) {
    let promoted: bool = servers
        .superuser(1)
        .await
        .query_one("SELECT pg_promote(true, 60)", &[])
        .await
        .unwrap()
        .get(0);
    assert!(promoted);
    let client = servers.app(1).await;
    shift(&client, clock_ms).await;
    let rows = client
        .query("SELECT id FROM shard_0005.t ORDER BY id", &[])
        .await
        .unwrap();
    let had = rows.iter().map(|row| row.get(0)).collect();
    // The key refuses an ID that exists already.
    let sql = "INSERT INTO shard_0005.t SELECT shard_0005.next_id() FROM generate_series(1, 300) \
        RETURNING id";
    let mut new: Vec<i64> = client
        .query(sql, &[])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    let sql = "INSERT INTO shard_0005.t SELECT * FROM shard_0005.next_ids(3000) RETURNING id";
    new.extend(
        client
            .query(sql, &[])
            .await
            .unwrap()
            .iter()
            .map(|row| row.get::<_, i64>(0)),
    );
    new.extend(next_id(&client, "shard_0005", 300).await);
    assert_grows(&new);
    (had, new)
}

on_each_version! {
    /// Synchronous replication: everything that was acknowledged exists, and every new ID is
    /// greater, although the clock is five seconds behind.
    async fn a_synchronous_standby_repeats_no_id(version) {
        let servers = primary_and_standby(version).await;
        let primary = servers.superuser(0).await;
        primary
            .batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .await
            .unwrap();
        primary
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .unwrap();
        // Waits until the standby counts as synchronous.
        let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
        while primary.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let acknowledged = Arc::new(AtomicU64::new(0));
        let mut of_writers = writers(&servers, &acknowledged).await;
        wait_for(&acknowledged, 1000).await;
        servers.server(0).stop(StopMode::Immediate).unwrap();
        let mut acknowledged = Vec::new();
        while let Some(ids) = of_writers.join_next().await {
            acknowledged.push(ids.unwrap());
        }
        assert_sound(&acknowledged);

        let (had, new) = promote(&servers, -5000).await;
        let had: BTreeSet<i64> = had.into_iter().collect();
        assert!(
            acknowledged.iter().flatten().all(|id| had.contains(id)),
            "an acknowledged row is \
            not there"
        );
        assert!(*had.last().unwrap() < new[0]);
    }

    /// Asynchronous replication, cut off before the primary ends: rows are lost, as with every
    /// asynchronous standby. What the standby has is smaller than all new IDs, whatever its clock
    /// shows. If its clock is right, so is what was lost.
    async fn an_asynchronous_standby_goes_up(version) {
        for clock_ms in [0, -5000] {
            let servers = primary_and_standby(version).await;
            let acknowledged = Arc::new(AtomicU64::new(0));
            let mut of_writers = writers(&servers, &acknowledged).await;
            wait_for(&acknowledged, 1000).await;
            // The standby may have begun to stream only a moment ago.
            let standby = servers.app(1).await;
            while standby
                .query_one(
                    "SELECT count(*) FROM \
                shard_0005.t",
                    &[],
                )
                .await
                .unwrap()
                .get::<_, i64>(0)
                < 500
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            servers.server(1).stop(StopMode::Immediate).unwrap();
            wait_for(&acknowledged, 1000).await;
            servers.server(0).stop(StopMode::Immediate).unwrap();
            servers.server(1).start().unwrap();
            let mut acknowledged = Vec::new();
            while let Some(ids) = of_writers.join_next().await {
                acknowledged.push(ids.unwrap());
            }
            assert_sound(&acknowledged);

            let (had, new) = promote(&servers, clock_ms).await;
            assert!(had.len() >= 500, "{} rows", had.len());
            assert!(*had.last().unwrap() < new[0]);
            let had: BTreeSet<i64> = had.into_iter().collect();
            let lost: Vec<i64> = acknowledged
                .into_iter()
                .flatten()
                .filter(|id| !had.contains(id))
                .collect();
            assert!(
                lost.len() >= 500,
                "the standby was cut off, and has all but {} \
                rows",
                lost.len()
            );
            if clock_ms == 0 {
                assert!(
                    lost.iter().all(|id| *id < new[0]),
                    "an ID that was lost may come again"
                );
            }
        }
    }
}
