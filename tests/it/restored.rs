//! Hosts that return to an earlier state: a backup is restored while the others continued.

use crate::support::{World, Writers, lines};

on_each_version! {
    /// A shard went away and came back, on a host that was restored to before that: this causes an
    /// alarm, no move, and no rebuilt map; and the steps of the runbook end it.
    async fn a_shard_that_had_come_back(version) {
        let world = World::new(&[version, version, version], 6).await;
        tokio::task::block_in_place(|| world.servers.back_up(0));
        for target in ["db2", "db1"] {
            world
                .run(&["move", "1", "--to", target, "--mode", "blocking", "--yes"])
                .await
                .ended(0);
            let host = world.servers.app(usize::from(target == "db2")).await;
            host.batch_execute(
                "INSERT INTO shard_0001.users (name) VALUES \
                ('late')",
            )
            .await
            .unwrap();
        }
        world.run(&["moves", "complete", "--yes"]).await;
        tokio::task::block_in_place(|| world.servers.restore(0));

        let alarms = async || {
            let checked = world.run(&["check"]).await.last();
            let all = checked["findings"].as_array().unwrap().clone();
            all.into_iter()
                .filter(|found| found["severity"] == "alarm")
                .collect::<Vec<_>>()
        };
        let found = alarms().await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(
            (&found[0]["code"], &found[0]["host"]),
            (&"went_back".into(), &"db1".into()),
            "{found:?}"
        );
        let words = "db2 gave it to db1 at epoch 3, but db1 serves it at epoch 1, from before that";
        assert!(
            found[0]["message"].as_str().unwrap().contains(words),
            "{found:?}"
        );

        let before = world.published();
        let rebuilt = world.run(&["map", "rebuild", "--yes"]).await;
        assert!(
            rebuilt.stderr.contains(words) || rebuilt.stdout.contains(words),
            "{}{}",
            rebuilt.stdout,
            rebuilt.stderr
        );
        assert_eq!(world.published(), before);
        for plan in [
            &["move", "1", "--to", "db3", "--plan"][..],
            &["move", "1", "--to", "db3", "--yes"],
        ] {
            let refused = world.run(plan).await;
            assert!(
                refused.ended(4).stderr.contains(
                    "is served there since epoch 1, but \
                "
                ),
                "{}",
                refused.stderr
            );
        }
        // The others are not affected.
        world
            .run(&["move", "0", "--to", "db3", "--plan"])
            .await
            .ended(0);

        let refused = world.run(&["moves", "repair", "1", "--yes"]).await;
        let ways = refused.ended(4).last()["ways"].take();
        let ways = ways.as_array().unwrap();
        let gives_up = |host: &str| {
            ways.iter()
                .any(|way| way["give_up"] == serde_json::json!([host]))
        };
        assert!(gives_up("db1") && gives_up("db2"), "{ways:?}");
        world
            .run(&["moves", "repair", "1", "--give-up", "db2", "--yes"])
            .await
            .ended(0);
        assert_eq!(alarms().await, Vec::<serde_json::Value>::new());
        world
            .run(&["move", "1", "--to", "db3", "--yes"])
            .await
            .ended(0);
    }

    /// docs/backup.md, "A restore point for all hosts": positions that were recorded on every host
    /// are restored to. What was acknowledged before is there, what was written later is not, and
    /// the hosts agree.
    async fn positions_of_all_hosts_are_a_restore_point(version) {
        let world = World::new(&[version, version], 4).await;
        for host in 0..2 {
            tokio::task::block_in_place(|| world.servers.base_backup(version, host));
        }
        let insert = async |name: &str| {
            for (host, shard) in [(0, 0), (1, 3)] {
                let sql = format!("INSERT INTO shard_000{shard}.users (name) VALUES ('{name}')");
                world
                    .servers
                    .app(host)
                    .await
                    .batch_execute(&sql)
                    .await
                    .unwrap();
            }
        };
        let writers = Writers::start(&world, 2).await;
        insert("before").await;
        let mut positions = Vec::new();
        for host in 0..2 {
            let sql = "SELECT pg_current_wal_flush_lsn()::text";
            positions.push(lines(&world.servers.app(host).await, sql).await);
        }
        insert("after").await;
        drop(writers.stop().await);
        for (host, position) in positions.iter().enumerate() {
            let switch = "SELECT pg_switch_wal()";
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(switch)
                .await
                .unwrap();
            tokio::task::block_in_place(|| world.servers.restore_to(host, position.trim()));
        }
        for (host, shard) in [(0, 0), (1, 3)] {
            let sql = format!(
                "SELECT string_agg(name, ' ') FROM shard_000{shard}.users
                WHERE name IN ('before', 'after')"
            );
            assert_eq!(
                lines(&world.servers.app(host).await, &sql).await.trim(),
                "before"
            );
            world
                .run(&["recover", &format!("db{}", host + 1), "--yes"])
                .await
                .ended(0);
        }
        world.run(&["bootstrap"]).await.ended(0);
        world.run(&["check", "--fail-on", "alarm"]).await.ended(0);
    }
}
