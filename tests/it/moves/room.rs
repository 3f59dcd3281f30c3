//! A target that has no room for what a move brings.

use crate::support::{Ran, World, go_on, lines, other, stopped};

const FILL: &str = "INSERT INTO shard_0000.users (name) VALUES ('u');
    INSERT INTO shard_0000.photos (user_id, title)
    SELECT id, repeat('x', 1000) FROM shard_0000.users, generate_series(1, 3000)";

/// Makes the disk full for one table of the target: its file is `/dev/full`, where the kernel
/// answers each write with ENOSPC. The table must be empty, and not have been used yet.
async fn fill_disk(world: &World, host: usize, table: &str) {
    let sql = format!("SELECT pg_relation_filepath('{table}')");
    let path = lines(&world.servers.superuser(host).await, &sql).await;
    let file = world
        .servers
        .server(host)
        .data_directory()
        .join(path.trim());
    assert_eq!(std::fs::metadata(&file).unwrap().len(), 0);
    std::fs::remove_file(&file).unwrap();
    std::os::unix::fs::symlink("/dev/full", &file).unwrap();
}

on_each_version! {
    /// What was copied is dropped immediately, the remedy begins with `abort`, and a resume copies
    /// again.
    async fn a_full_disk_is_given_back_at_once(version) {
        let world = World::new(&[version, other(version)], 2).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(FILL)
            .await
            .unwrap();
        for (mode, verb) in [("online", "resume"), ("blocking", "abort")] {
            let args = ["move", "0", "--to", "db2", "--yes", "--mode", mode];
            let failpoint = [("PGSHARD_FAILPOINT", "after prepare=stop")];
            let mover = world.command(&args, &failpoint).spawn().unwrap();
            let pid = stopped(&mover).await;
            fill_disk(&world, 1, "shard_0000__incoming.photos").await;
            go_on(pid);
            let ran = Ran::of(mover).await;
            let said = &ran.ended(7).stderr;
            assert!(said.contains("host db2 has no disk space left"), "{said}");
            assert!(
                said.contains("what the move had copied there was dropped"),
                "{said}"
            );
            let (abort, resume) = (said.find("moves abort"), said.find("moves resume"));
            assert!(abort.is_some() && abort < resume, "{said}");
            let db2 = world.servers.superuser(1).await;
            let left = "SELECT nspname::text FROM pg_namespace WHERE nspname ~ 'incoming'
                UNION ALL SELECT shard_id::text FROM pgshard.incoming";
            assert_eq!(lines(&db2, left).await, "", "{mode}");
            assert_eq!(world.state(0, 0).await, "serving");
            world.run(&["moves", verb, &ran.id()]).await.ended(0);
            if verb == "resume" {
                assert_eq!(world.state(1, 0).await, "serving");
                world
                    .run(&["moves", "rollback", &ran.id(), "--yes"])
                    .await
                    .ended(0);
                world
                    .run(&["moves", "complete", "--all", "--yes"])
                    .await
                    .ended(0);
            }
        }
        world.audit_places().await;
    }

    /// `max_bytes` of the target holds for `move` as for `rebalance`.
    async fn a_move_heeds_max_bytes(version) {
        let world = World::new(&[version, version], 2).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(FILL)
            .await
            .unwrap();
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let limited = |most: &str| {
            let limit = format!("[hosts.db2]\nmax_bytes = \"{most}\"\n");
            let limited = config.replace("[hosts.db2]\n", &limit);
            assert_ne!(limited, config);
            std::fs::write(&world.config.path, limited).unwrap();
        };
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--plan"];
        limited("1 MiB");
        let said = world.run(&args).await;
        assert!(
            said.ended(4).stderr.contains("of its max_bytes"),
            "{}",
            said.stderr
        );
        limited("1 GiB");
        let planned = world.run(&args).await;
        assert!(
            planned
                .ended(0)
                .stdout
                .contains("of its max_bytes 1024 MiB are left"),
            "{}",
            planned.stdout
        );
        std::fs::write(&world.config.path, &config).unwrap();
    }
}
