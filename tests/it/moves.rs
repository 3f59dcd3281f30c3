//! Moves between real servers: killed, stopped, contested and refused at every step, and the state
//! afterwards.

mod audit;
mod awkward;
mod bindings;
mod captured;
mod crash;
mod crowd;
mod cut_sessions;
mod dead;
mod failover;
mod faults;
mod fingerprints;
mod holes;
mod identity;
mod inheritance;
mod interrupted;
mod late_commits;
mod locked;
mod lying;
mod many_tables;
mod online;
mod online_holes;
mod operators;
mod partitions;
mod published;
mod refusals;
mod rehearsal;
mod repair;
mod restart;
mod reverse;
mod rich;
mod rivals;
mod rollback;
mod room;
mod sequences;
mod shared;
mod slots;
mod sound;
mod takeover;
mod undecodable;
mod unlogged;
mod vacuum;
mod watch;

use pgshard::mover::Phase;

use crate::support::World;

on_each_version!(
    async fn a_shard_goes_and_comes_back(version) {
        let world = World::new(&[version, version], 4).await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute("INSERT INTO shard_0001.users (name) SELECT 'u' || n FROM \
            generate_series(1, 100) n;
            INSERT INTO shard_0001.photos (user_id, title) SELECT id, 'x' FROM \
            shard_0001.users").await.unwrap();
        let mover = world.mover();
        let plan = mover.plan(&world.request("1", "db2")).await.unwrap();
        assert_eq!(plan.shards[0].steps(&plan.target, plan.mode).len(), 9);
        let report = mover.run(&plan).await;
        assert!(report.failed.is_empty(), "{report:?}");
        assert_eq!(report.done[0].phase, Phase::Kept);
        let db2 = world.servers.app(1).await;
        let n: i64 = db2.query_one("SELECT count(*) FROM \
            shard_0001.photos", &[]).await.unwrap().get(0);
        assert_eq!(n, 100);
        let error = db1.query("SELECT * FROM shard_0001.photos", &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "SH001");
        db2.execute("INSERT INTO shard_0001.users (name) VALUES ('new')", &[]).await.unwrap();
        let back = mover.plan(&world.request("1", "db1")).await.unwrap();
        let report = mover.run(&back).await;
        assert!(report.failed.is_empty(), "{report:?}");
        let n: i64 = db1.query_one("SELECT count(*) FROM \
            shard_0001.users", &[]).await.unwrap().get(0);
        assert_eq!(n, 101);
        world.audit_places().await;
        for entry in mover.list(None).await.found {
            let report = mover.complete(entry.id).await.unwrap();
            assert!(report.failed.is_empty(), "{report:?}");
        }
        let gc = mover.gc().await;
        assert!(gc.failed.is_empty(), "{gc:?}");
        world.audit_places().await;
        for db in [&db1, &db2] {
            let sql = "SELECT count(*) FROM pg_namespace WHERE nspname LIKE 'shard%\\_\\_%'";
            assert_eq!(db.query_one(sql, &[]).await.unwrap().get::<_, i64>(0), 0);
        }
    }
);
