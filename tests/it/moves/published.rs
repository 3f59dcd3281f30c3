//! Another session alters the publication of a move: PostgreSQL then leaves changes out of the
//! stream without any sign.

use pgshard::mover::Phase;

use crate::support::{Ran, World, lines, until};

const PUBLICATION: &str = "SELECT pubname FROM pg_publication WHERE pubname LIKE 'pgshard%'";

/// Whichever is noticed first: before version 18 the server's refusal to continue, or that the
/// publication is not there.
const GONE: &str = "publication";

/// What is done to the publication `{p}`, and the move's error; from which version on it can be
/// done.
const ALTERATIONS: [(&str, &str, u32); 6] = [
    (
        "ALTER PUBLICATION {p} DROP TABLE \
        shard_0000.users",
        "no longer publishes all of the table \
        users",
        13,
    ),
    (
        "ALTER PUBLICATION {p} SET (publish = 'insert, delete, \
        truncate')",
        "no longer publishes \
        every INSERT",
        13,
    ),
    ("ALTER PUBLICATION {p} RENAME TO another", GONE, 13),
    ("DROP PUBLICATION {p}", GONE, 13),
    (
        "ALTER PUBLICATION {p} DROP TABLE shard_0000.users; ALTER PUBLICATION {p} ADD TABLE \
            shard_0000.users
            WHERE (id < 0)",
        "no longer publishes all of the table users",
        15,
    ),
    (
        "ALTER PUBLICATION {p} DROP TABLE shard_0000.users; ALTER PUBLICATION {p} ADD TABLE \
            shard_0000.users (id)",
        // The stream shows this by itself.
        "the source no longer has a column name",
        15,
    ),
];

on_each_version! {
    /// While a move is held, when everything was compared: it ends without a pause that counts, the
    /// source serves, and once the move is aborted the next one succeeds.
    async fn while_a_move_is_held(version) {
        let world = World::new(&[version, version], 2).await;
        let db1 = world.servers.app(0).await;
        let some = "INSERT INTO shard_0000.users (name) SELECT 'old' FROM generate_series(1, 100)";
        db1.batch_execute(some).await.unwrap();
        let held = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        for (alteration, words, since) in ALTERATIONS {
            if version < since {
                continue;
            }
            let child = world.command(&held, &[]).spawn().unwrap();
            until(
                &db1,
                "SELECT bool_or(phase = 'ready') FROM pgshard.move WHERE phase <> \
                'aborted'",
            )
            .await;
            let name = lines(&db1, PUBLICATION).await;
            db1.batch_execute(&alteration.replace("{p}", name.trim()))
                .await
                .unwrap();
            db1.batch_execute("UPDATE shard_0000.users SET name = name || '!'")
                .await
                .unwrap();
            let id = lines(
                &db1,
                "SELECT move_id::text FROM pgshard.move WHERE phase = \
                'ready'",
            )
            .await;
            world.run(&["moves", "continue", id.trim()]).await;
            let ended = Ran::of(child).await;
            assert_ne!(ended.code(), 0, "{alteration}: {}", ended.stderr);
            assert!(
                ended.stderr.contains(words),
                "{alteration}: {}",
                ended.stderr
            );
            assert_eq!(world.state(0, 0).await, "serving", "{alteration}");
            world.run(&["moves", "abort", id.trim()]).await.ended(0);
        }
        world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0);
        let db2 = world.servers.app(1).await;
        let marks = ALTERATIONS
            .iter()
            .filter(|(.., since)| version >= *since)
            .count();
        let sql = format!(
            "SELECT count(*)::text FROM shard_0000.users WHERE name = 'old' || \
            repeat('!', {marks})"
        );
        assert_eq!(lines(&db2, &sql).await, "100\n");
    }

    /// While no mover is there to notice: the next one finds it, although the shard was compared,
    /// and copies again.
    async fn while_the_mover_is_dead(version) {
        let world = World::new(&[version, version], 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let some = "INSERT INTO shard_0000.users (name) SELECT 'old' FROM generate_series(1, 100)";
        db1.batch_execute(some).await.unwrap();
        let held = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let mut child = world.command(&held, &[]).spawn().unwrap();
        until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        let known = || ALTERATIONS.iter().filter(|(.., since)| version >= *since);
        let alterations = || known().map(|(alteration, ..)| alteration);
        for alteration in alterations() {
            child.kill().await.unwrap();
            let name = lines(&db1, PUBLICATION).await;
            db1.batch_execute(&alteration.replace("{p}", name.trim()))
                .await
                .unwrap();
            db1.batch_execute("UPDATE shard_0000.users SET name = name || '!'")
                .await
                .unwrap();
            let from = lines(&db2, "SELECT stream_from::text FROM pgshard.incoming").await;
            child = world
                .command(&["moves", "resume", id.trim()], &[])
                .spawn()
                .unwrap();
            until(
                &db2,
                &format!(
                    "SELECT bool_or(stream_from > '{}') FROM \
                pgshard.incoming",
                    from.trim()
                ),
            )
            .await;
            until(&db1, "SELECT bool_or(phase = 'ready') FROM pgshard.move").await;
        }
        world.run(&["moves", "continue", id.trim()]).await;
        Ran::of(child).await.ended(0);
        let marks = alterations().count();
        let sql = format!(
            "SELECT count(*)::text FROM shard_0000.users WHERE name = 'old' || \
            repeat('!', {marks})"
        );
        assert_eq!(lines(&db2, &sql).await, "100\n");
        db1.batch_execute("DROP PUBLICATION IF EXISTS another")
            .await
            .unwrap();
        world.audit_places().await;
    }

    /// While an old copy is fed: it lacks rows then, and the shard is not taken back to it.
    async fn while_an_old_copy_is_fed(version) {
        let world = World::new(&[version, version], 2).await;
        let moved = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let db2 = world.servers.app(1).await;
        let name = lines(&db2, PUBLICATION).await;
        db2.batch_execute(&format!(
            "ALTER PUBLICATION {} DROP TABLE \
            shard_0000.users",
            name.trim()
        ))
        .await
        .unwrap();
        db2.batch_execute("INSERT INTO shard_0000.users (name) VALUES ('new')")
            .await
            .unwrap();
        let back = world.run(&["moves", "rollback", &moved, "--yes"]).await;
        assert_ne!(back.code(), 0, "{}", back.stderr);
        assert_eq!(world.state(1, 0).await, "serving");
        assert_eq!(
            lines(&db2, "SELECT name FROM shard_0000.users").await,
            "new\n"
        );
        let phases = "SELECT DISTINCT phase FROM pgshard.move WHERE phase NOT IN ('kept', \
            'aborted')";
        assert!(
            !lines(&db2, phases)
                .await
                .contains(Phase::Completed.as_str())
        );
    }
}
