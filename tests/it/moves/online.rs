//! Online moves: shards are copied while they are written to, and closed only for the last changes.

use std::time::{Duration, Instant};

use pgshard::mover::Phase;

use crate::support::{Ran, World, Writers, lines, other};

on_each_version! {
    /// A move deletes its watermarks as it goes, and gc deletes those of moves that have ended, in
    /// whatever way.
    async fn watermarks_do_not_pile_up(version) {
        let world = World::new(&[version, version], 2).await;
        let db1 = world.servers.app(0).await;
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world.command(&args, &[]).spawn().unwrap();
        let began = Instant::now();
        while lines(&db1, "SELECT phase FROM pgshard.move").await != "ready\n" {
            assert!(
                began.elapsed() < Duration::from_secs(60),
                "the move gets ready"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let old = "INSERT INTO pgshard.beacon SELECT move_id, n FROM pgshard.move, \
            generate_series(1, 50) n";
        db1.batch_execute(old).await.unwrap();
        world.run(&["moves", "continue"]).await.ended(0);
        Ran::of(child).await.ended(0);
        assert_eq!(
            lines(
                &db1,
                "SELECT count(*)::text FROM pgshard.beacon WHERE number <= \
            50"
            )
            .await,
            "0\n"
        );
        assert_ne!(
            lines(&db1, "SELECT count(*)::text FROM pgshard.beacon").await,
            "0\n"
        );
        db1.batch_execute(
            "INSERT INTO pgshard.beacon VALUES (gen_random_uuid(), \
            1)",
        )
        .await
        .unwrap();
        world.run(&["moves", "gc"]).await.ended(0);
        assert_eq!(
            lines(&db1, "SELECT count(*)::text FROM pgshard.beacon").await,
            "0\n"
        );
        world.audit_places().await;
    }
}

on_mixed_versions! {
    /// Several shards in one move, through one slot, during every kind of write; there and back.
    15: async fn shards_go_and_come_back_under_writers(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let writers = Writers::start(&world, 6).await;
        for (shards, target) in [("0-1", "db2"), ("0-3", "db1")] {
            let mover = world.mover();
            let plan = mover.plan(&world.online(shards, target)).await.unwrap();
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty(), "{report:?}");
            assert!(
                report
                    .done
                    .iter()
                    .all(|done| done.phase == Phase::Kept && done.pause.is_some()),
                "{report:?}"
            );
            for done in &report.done {
                eprintln!(
                    "shard {} {} rows, closed for \
                    {:?}",
                    done.shard,
                    done.rows,
                    done.pause.unwrap()
                );
            }
        }
        let notes = writers.stop().await;
        notes.flawless();
        world.audit(&notes).await;
        for entry in world.mover().list(None).await.found {
            world.mover().complete(entry.id).await.unwrap();
        }
        for client in world.all().await {
            for what in ["pg_replication_slots", "pg_publication", "pgshard.beacon"] {
                let sql = format!("SELECT count(*) FROM {what}");
                assert_eq!(
                    client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0),
                    0,
                    "{what}"
                );
            }
        }
    }
}
