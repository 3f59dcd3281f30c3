//! The router's counters show what has happened.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use metrics_util::MetricKind;
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};
use pgshard::Router;
use pgshard::router::Error;

use super::by_hand::Shards;
use super::{COUNT, INSERT};

/// Records what this thread counts; what tasks of the runtime count is ignored.
pub(super) struct Recorded(Snapshotter);

impl Recorded {
    pub(super) fn new(recorder: &DebuggingRecorder) -> Recorded {
        Recorded(recorder.snapshotter())
    }

    /// What was counted since the last time, by name and labels, as in `requests_total db1 ok`; for
    /// a histogram, how many times. Zeros are left out.
    pub(super) fn since(&self) -> BTreeMap<String, u64> {
        let read = |kind, value| match (kind, value) {
            (MetricKind::Counter, DebugValue::Counter(count)) => count,
            (MetricKind::Histogram, DebugValue::Histogram(values)) => values.len() as u64,
            (_, DebugValue::Gauge(value)) => value.into_inner() as u64,
            (kind, value) => panic!("{kind:?} {value:?}"),
        };
        let all = self
            .0
            .snapshot()
            .into_vec()
            .into_iter()
            .map(|(key, _, _, value)| {
                let mut name = key.key().name().trim_start_matches("pgshard_").to_owned();
                for label in key.key().labels() {
                    name += " ";
                    name += label.value();
                }
                (name, read(key.kind(), value))
            });
        all.filter(|(_, value)| *value > 0).collect()
    }
}

#[track_caller]
fn assert_counted(recorded: &Recorded, expected: &[(&str, u64)]) {
    let expected: BTreeMap<String, u64> = expected
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect();
    assert_eq!(recorded.since(), expected);
}

on_each_version! {
    /// Requests, waits for connections, look-ups, signposts, fences and retries: each is counted as
    /// often as it happened, and nothing else is.
    async fn each_as_often_as_it_happened(version) {
        let shards = Shards::start(version, 4).await;
        let recorder = DebuggingRecorder::new();
        let recorded = Recorded::new(&recorder);
        let _here = metrics::set_default_local_recorder(&recorder);
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.wait_max = Duration::from_millis(20);
        let router = Router::new(options);
        assert_counted(&recorded, &[("map_version", 1)]);

        for id in 0..3_i64 {
            router
                .by_key(0)
                .execute(INSERT, &[&id, &"x"])
                .await
                .unwrap();
        }
        router
            .by_key(0)
            .execute(INSERT, &[&0_i64, &"twice"])
            .await
            .unwrap_err();
        router
            .by_key(0)
            .transaction(async |tx| tx.execute(INSERT, &[&3_i64, &"x"]).await)
            .await
            .unwrap();
        router.by_key(2).query(COUNT, &[]).await.unwrap();
        assert_counted(
            &recorded,
            &[
                (
                    "db.client.connection.wait_time db1 \
                db1",
                    5,
                ),
                (
                    "db.client.connection.wait_time db2 \
                db2",
                    1,
                ),
                ("db.client.operation.duration db1 postgresql", 4),
                ("db.client.operation.duration db1 postgresql constraint", 1),
                ("db.client.operation.duration db2 postgresql", 1),
                ("requests_total db1 constraint", 1),
                ("requests_total db1 ok", 4),
                (
                    "requests_total \
                db2 ok",
                    1,
                ),
            ],
        );

        // On each shard once, however they get there.
        let by_shard = router.all_shards().query(COUNT, &[]);
        assert_eq!(futures_util::StreamExt::count(by_shard).await, 4);
        let counted = recorded.since();
        assert_eq!(
            (
                counted["requests_total db1 ok"],
                counted["requests_total db2 ok"]
            ),
            (2, 2),
            "{counted:?}"
        );

        // No connection is free. The client that has it was a request, too.
        let held = router.by_key(0).client().await.unwrap();
        let error = router.by_key(1).query(COUNT, &[]).await.unwrap_err();
        assert!(matches!(error, Error::PoolTimeout { .. }), "{error:?}");
        drop(held);
        assert_counted(
            &recorded,
            &[
                ("pool_failures_total db1", 1),
                ("db.client.connection.wait_time db1 db1", 2),
                ("db.client.operation.duration db1 postgresql", 1),
                ("requests_total db1 ok", 1),
                (
                    "db.client.operation.duration db1 postgresql \
                cluster",
                    1,
                ),
                (
                    "requests_total db1 \
                cluster",
                    1,
                ),
            ],
        );

        // The application's own mistake.
        router
            .by_key(1)
            .query("SELECT * FROM {shard}.nothing", &[])
            .await
            .unwrap_err();
        assert_counted(
            &recorded,
            &[
                ("look_ups_total db1", 1),
                ("db.client.connection.wait_time db1 db1", 1),
                (
                    "db.client.operation.duration db1 postgresql \
                application",
                    1,
                ),
                (
                    "requests_total db1 \
                application",
                    1,
                ),
            ],
        );

        // A fence that is taken back.
        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        let open = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            moving.unfence().await;
        };
        let (write, ()) = tokio::join!(router.by_key(1).execute(INSERT, &[&4_i64, &"x"]), open);
        write.unwrap();
        let counted = recorded.since();
        for (name, count) in [
            ("fences_total db1", 1),
            (
                "db.client.connection.wait_time db1 \
                db1",
                2,
            ),
            ("requests_total db1 ok", 1),
            ("retries_total db1 fenced", 1),
            ("signposts_total db1", 1),
        ] {
            assert_eq!(counted.get(name), Some(&count), "{name}: {counted:?}");
        }
        assert!(
            counted["look_ups_total db1"] >= 2,
            "one that said fenced, and one that said \
            serving: {counted:?}"
        );

        // A move that the router is not notified of.
        let moving = shards.prepare(0, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        moving.decide().await;
        moving.open().await;
        router.by_key(0).query(COUNT, &[]).await.unwrap();
        assert_counted(
            &recorded,
            &[
                ("look_ups_total db1", 1),
                ("look_ups_total db2", 1),
                (
                    "db.client.connection.wait_time db1 \
                db1",
                    1,
                ),
                (
                    "db.client.connection.wait_time db2 \
                db2",
                    1,
                ),
                // The shard has arrived by now.
                ("db.client.operation.duration db2 postgresql", 1),
                ("requests_total db2 ok", 1),
                ("retries_total db1 moved", 1),
                ("signposts_total db1", 1),
            ],
        );
        router
            .set_map(Arc::new(
                shards.map.with_version(router.map().version().next()),
            ))
            .unwrap();
        assert_counted(&recorded, &[("map_version", 2)]);
    }
}
