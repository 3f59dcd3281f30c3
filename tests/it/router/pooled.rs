//! Through PgBouncer in transaction mode, where each transaction may get another session.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgshard::Router;
use pgshard::router::PrepareMode;

use super::pooler::{PREPARED, Pooler};
use crate::support::{World, other};

on_each_version! {
    /// Statements, transactions and IDs of many shards, through moves there and back: no error, no
    /// row lost, and nothing left prepared on the servers.
    async fn unnamed_statements_survive_moves(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let poolers = [
            Pooler::start(&world.servers, 0).await,
            Pooler::start(&world.servers, 1).await,
        ];
        let mut options = world.config.router_options(Arc::new(world.published()));
        for (host, pooler) in options.hosts.iter_mut().zip(&poolers) {
            (host.connect, host.prepare, host.pool_size) =
                (pooler.connect(), PrepareMode::Unnamed, 12);
        }
        // What is read again from the config would bypass the poolers.
        options.host_source = None;
        let router = Router::new(options);
        let stop = Arc::new(AtomicBool::new(false));
        let mut callers = tokio::task::JoinSet::new();
        for caller in 0..8_i64 {
            let (router, stop) = (router.clone(), stop.clone());
            callers.spawn(async move {
                let mut acknowledged = Vec::new();
                for round in 0.. {
                    if stop.load(Ordering::Relaxed) {
                        break;
                    }
                    let (name, shard) = (format!("{caller}-{round}"), router.by_key(caller));
                    let insert = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
                    let id: i64 = shard.query_one(insert, &[&name]).await.unwrap().get(0);
                    let title = &name;
                    let photo = shard.transaction(async |tx| {
                        let sql = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) \
                            RETURNING id";
                        let row = tx.query_one(sql, &[&id, title]).await?;
                        tx.execute(
                            "UPDATE {shard}.users SET name = name || '!' WHERE id = \
                            $1",
                            &[&id],
                        )
                        .await?;
                        Ok::<i64, pgshard::router::Error>(row.get(0))
                    });
                    photo.await.unwrap();
                    acknowledged.push(id);
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    let some = &acknowledged[acknowledged.len().saturating_sub(20)..];
                    let rows = router.by_ids(some).query(
                        "SELECT id FROM {shard}.users WHERE id = ANY($1) \
                            AND name LIKE '%!'",
                    );
                    assert_eq!(rows.await.unwrap().len(), some.len());
                }
                acknowledged
            });
        }
        for (shards, target) in [("0-1", "db2"), ("0-3", "db1")] {
            let mover = world.mover();
            let plan = mover.plan(&world.online(shards, target)).await.unwrap();
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty(), "{report:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let acknowledged: BTreeSet<i64> = callers.join_all().await.into_iter().flatten().collect();
        eprintln!("{} users through the pooler", acknowledged.len());
        let ids: Vec<i64> = acknowledged.iter().copied().collect();
        let direct = world.router().await;
        for router in [&router, &direct] {
            let rows = router
                .by_ids(&ids)
                .query(
                    "SELECT id FROM {shard}.users WHERE id = \
                ANY($1)",
                )
                .await
                .unwrap();
            assert_eq!(
                rows.iter()
                    .map(|(_, row)| row.get(0))
                    .collect::<BTreeSet<i64>>(),
                acknowledged
            );
        }
        for key in 0..20 {
            let row = router.by_key(key).query_one(PREPARED, &[]).await.unwrap();
            assert_eq!(row.get::<_, i64>(0), 0);
        }
        // A mistake is still the application's, and a statement is prepared again after a
        // migration.
        let error = router
            .by_key(1)
            .query(
                "SELECT * FROM {shard}.nothing WHERE id = \
            $1",
                &[&1_i64],
            )
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42P01");
        let find = "SELECT count(*) FROM {shard}.users WHERE name = $1";
        router.by_key(1).query(find, &[&"x"]).await.unwrap();
        let migration = "ALTER TABLE {shard}.users ALTER name TYPE bigint USING 7";
        router.by_key(1).execute(migration, &[]).await.unwrap();
        let row = router.by_key(1).query_one(find, &[&7_i64]).await.unwrap();
        assert!(row.get::<_, i64>(0) > 0);
    }
}
