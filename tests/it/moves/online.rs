//! Online moves: shards that are copied while they are written to, and closed for the last changes only.

use pgshard::mover::Phase;

use crate::support::{World, Writers};

on_each_version!(
    /// Several shards at once, through one slot, under every kind of writer; there and back.
    async fn shards_go_and_come_back_under_writers(version) {
        let world = World::new(&[version, 33 - version], 4).await;
        let writers = Writers::start(&world, 6).await;
        for (shards, target) in [("0-1", "db2"), ("0-3", "db1")] {
            let mover = world.mover();
            let plan = mover.plan(&world.online(shards, target)).await.unwrap();
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty(), "{report:?}");
            assert!(report.done.iter().all(|done| done.phase == Phase::Kept && done.pause.is_some()), "{report:?}");
            for done in &report.done {
                eprintln!("shard {} {} rows, closed for {:?}", done.shard, done.rows, done.pause.unwrap());
            }
        }
        let notes = writers.stop().await;
        notes.flawless();
        world.audit(&notes).await;
        for entry in world.mover().list(None).await.0 {
            world.mover().complete(entry.id).await.unwrap();
        }
        for client in world.all().await {
            for what in ["pg_replication_slots", "pg_publication"] {
                let sql = format!("SELECT count(*) FROM {what}");
                assert_eq!(client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 0, "{what}");
            }
        }
    }
);
