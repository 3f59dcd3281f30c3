//! Online moves, used through routers with very old maps.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgshard::Router;
use pgshard::router::Error;

use crate::support::{World, other};

on_each_version! {
    /// Shards move back and forth. Every call through routers that only ever saw the first map,
    /// some of them newly made in the middle, gives the right answer, and nothing is lost.
    async fn the_first_map_does(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let first = Arc::new(world.published());
        let old = Router::new(world.config.router_options(first.clone()));
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..4_i64 {
            let (mut router, stop) = (old.clone(), stop.clone());
            let options = world.config.router_options(first.clone());
            callers.spawn(async move {
                let mut acknowledged = Vec::new();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    // Half of them forget what they have learned.
                    if caller % 2 == 0 && round % 10 == 9 {
                        router = Router::new(options.clone());
                    }
                    let (name, shard) = (format!("{caller}-{round}"), router.by_key(caller));
                    let insert = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
                    let id: i64 = if round % 3 == 0 {
                        let row =
                            shard.transaction(async |tx| tx.query_one(insert, &[&name]).await);
                        row.await.unwrap().get(0)
                    } else {
                        shard.query_one(insert, &[&name]).await.unwrap().get(0)
                    };
                    let found = router.by_id(id).unwrap();
                    let found = found
                        .query_one(
                            "SELECT name FROM {shard}.users WHERE id = \
                        $1",
                            &[&id],
                        )
                        .await
                        .unwrap();
                    assert_eq!(found.get::<_, &str>(0), name);
                    acknowledged.push(id);
                    // The test is about moves, not about many rows.
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                acknowledged
            });
        }
        for (shards, target) in [("0-1", "db2"), ("0-3", "db1"), ("1", "db2")] {
            let mover = world.mover();
            let plan = mover.plan(&world.online(shards, target)).await.unwrap();
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty(), "{report:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let acknowledged: BTreeSet<i64> = callers.join_all().await.into_iter().flatten().collect();
        assert!(old.map().version() < world.published().version());
        for router in [
            old,
            Router::new(world.config.router_options(first)),
            world.router().await,
        ] {
            let mut there = BTreeSet::new();
            let mut rows = router
                .all_shards()
                .query("SELECT id FROM {shard}.users", &[]);
            while let Some((_, rows)) = rows.next().await {
                there.extend(rows.unwrap().iter().map(|row| row.get::<_, i64>(0)));
            }
            assert_eq!(there, acknowledged);
        }
        let wrong = world
            .router()
            .await
            .by_key(0)
            .query("SELECT 1 FROM {shard}.nothing", &[])
            .await
            .unwrap_err();
        assert!(matches!(wrong, Error::Statement { .. }));
    }
}
