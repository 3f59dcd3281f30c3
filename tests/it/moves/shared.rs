//! What the shards of one move share (publication, slot and stream) while the application is at
//! work.

use std::time::Duration;

use tokio::process::Child;

use crate::support::{Ran, World, go_on, lines, other, stopped, until};

const TABLES: &str = "
    CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text NOT \
    NULL);
    CREATE TABLE {shard}.notes (id int CONSTRAINT notes_pkey PRIMARY KEY, note text);
    CREATE INDEX notes_note ON {shard}.notes (note);
    ALTER TABLE {shard}.users CLUSTER ON users_pkey;
    INSERT INTO {shard}.notes SELECT n, 'old' FROM generate_series(1, 20) n";

async fn world(version: u32) -> World {
    World::with_tables(
        &[version, other(version)],
        6,
        &[("0001_tables.sql", TABLES)],
    )
    .await
}

/// Begins a move that waits before its fence, and waits until it does. Returns its ID.
async fn held(world: &World, shards: &str) -> (Child, String) {
    let args = [
        "move",
        shards,
        "--to",
        "db2",
        "--mode",
        "online",
        "--yes",
        "--hold",
        "--fence-attempts",
        "2",
    ];
    let child = world.command(&args, &[]).spawn().unwrap();
    let db1 = world.servers.app(0).await;
    let open = "phase NOT IN ('kept', 'completed', 'aborted')";
    until(
        &db1,
        &format!("SELECT bool_and(phase = 'ready') FROM pgshard.move WHERE {open}"),
    )
    .await;
    let id = lines(
        &db1,
        &format!("SELECT DISTINCT move_id::text FROM pgshard.move WHERE {open}"),
    )
    .await;
    (child, id.trim().to_owned())
}

async fn rows(world: &World, host: usize, table: &str) -> String {
    lines(
        &world.servers.app(host).await,
        &format!("SELECT t::text FROM {table} t ORDER BY 1"),
    )
    .await
}

on_each_version! {
    /// A resume publishes a shard while a transaction is under way that has changed it before: what
    /// the transaction has written is at the target.
    async fn a_late_publication_misses_nothing(version) {
        let world = world(version).await;
        let (locker, writer) = (world.servers.app(0).await, world.servers.app(0).await);
        let args = [
            "move", "0,1", "--to", "db2", "--mode", "online", "--yes", "--jobs", "1",
        ];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after claim=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        locker
            .batch_execute("BEGIN; LOCK TABLE shard_0001.notes")
            .await
            .unwrap();
        go_on(pid);
        let moving = tokio::spawn(crate::support::never_stopped(child));
        // It is given up before there is a slot, because the slot would wait for the session that
        // has locked a table like this.
        let given_up = "SELECT EXISTS (SELECT FROM pgshard.move WHERE shard_id = 1 AND last_error \
            IS NOT NULL)";
        until(&world.servers.app(0).await, given_up).await;
        locker.batch_execute("ROLLBACK").await.unwrap();
        let ran = moving.await.unwrap();
        ran.ended(8);
        assert_eq!(world.state(0, 0).await, "moved");

        writer
            .batch_execute(
                "BEGIN; UPDATE shard_0001.notes SET note = 'new' WHERE id = \
            1",
            )
            .await
            .unwrap();
        let child = world
            .command(&["moves", "resume", &ran.id()], &[])
            .spawn()
            .unwrap();
        until(
            &locker,
            "SELECT EXISTS (SELECT FROM pg_publication_tables WHERE schemaname = \
            'shard_0001')",
        )
        .await;
        // Without the wait the rows would be copied by then.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        writer
            .batch_execute(
                "UPDATE shard_0001.notes SET note = 'new' WHERE id = 2; \
            COMMIT",
            )
            .await
            .unwrap();
        Ran::of(child).await.ended(0);
        assert_eq!(
            rows(&world, 1, "shard_0001.notes").await,
            rows(&world, 0, "shard_0001__left_e1.notes").await
        );
        assert!(
            rows(&world, 1, "shard_0001.notes")
                .await
                .starts_with("(1,new)")
        );
        world.audit_places().await;
    }

    /// One shard of a move is kept and its old copy fed, while another comes later: nothing that
    /// the other's new host writes is skipped.
    async fn fed_before_all_are_kept(version) {
        let world = world(version).await;
        let (child, id) = held(&world, "0,1").await;
        let blocker = world.servers.app(0).await;
        blocker
            .batch_execute(
                "BEGIN; UPDATE shard_0001.notes SET note = 'slow' WHERE id = \
            1",
            )
            .await
            .unwrap();
        world.run(&["moves", "continue", &id]).await.ended(0);
        Ran::of(child).await.ended(8);
        blocker.batch_execute("COMMIT").await.unwrap();
        let mut feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let slot = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name LIKE \
            '%\\_back\\_%'";
        db2.batch_execute("INSERT INTO shard_0000.users (name) VALUES ('fed')")
            .await
            .unwrap();
        until(
            &db1,
            "SELECT EXISTS (SELECT FROM shard_0000__left_e1.users WHERE name = \
            'fed')",
        )
        .await;
        assert_ne!(lines(&db2, &format!("SELECT ({slot})::text")).await, "");
        // The other is written to from its very open on.
        let writer = tokio::spawn({
            let db2 = world.servers.app(1).await;
            async move {
                let mut written = 0;
                while written < 300 {
                    let insert = "INSERT INTO shard_0001.users (name) VALUES ('early')";
                    written += db2.execute(insert, &[]).await.unwrap_or(0);
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        });
        world.run(&["moves", "resume", &id]).await.ended(0);
        writer.await.unwrap();
        until(&db1, "SELECT count(*) = 300 FROM shard_0001__left_e1.users").await;
        assert_eq!(
            lines(&db1, "SELECT lost FROM pgshard.back WHERE lost IS NOT NULL").await,
            ""
        );
        feed.kill().await.unwrap();
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        assert_eq!(
            rows(&world, 0, "shard_0001.users").await.lines().count(),
            300
        );
        world.audit_places().await;
    }

    /// What writes to the catalogs and alters nothing does not end a move: TRUNCATE all the time,
    /// and REINDEX, CLUSTER, VACUUM.
    async fn maintenance_does_not_end_a_move(version) {
        let world = world(version).await;
        let truncating = tokio::spawn({
            let db = world.servers.app(0).await;
            async move {
                let mut rounds = 0;
                let sql = |n: i32| {
                    format!(
                        "TRUNCATE shard_0000.notes; INSERT INTO shard_0000.notes \
                        VALUES ({n}, 'kept')"
                    )
                };
                while db.batch_execute(&sql(rounds)).await.is_ok() {
                    rounds += 1;
                    tokio::time::sleep(Duration::from_millis(500)).await;
                }
                rounds
            }
        });
        let (child, id) = held(&world, "0").await;
        let db = world.servers.app(0).await;
        for sql in [
            "REINDEX TABLE shard_0000.users",
            "VACUUM FULL shard_0000.users",
            "ANALYZE shard_0000.users",
            "CLUSTER shard_0000.users",
        ] {
            db.batch_execute(sql).await.unwrap();
        }
        // The shard is checked every two seconds.
        tokio::time::sleep(Duration::from_secs(5)).await;
        world.run(&["moves", "continue", &id]).await.ended(0);
        Ran::of(child).await.ended(0);
        assert!(truncating.await.unwrap() > 5);
        assert_eq!(
            rows(&world, 1, "shard_0000.notes").await,
            rows(&world, 0, "shard_0000__left_e1.notes").await
        );
        world.audit_places().await;
    }

    /// A table that is created while the plan is made is never published, and one that loses its
    /// key is no longer published: what the application does to them succeeds.
    async fn tables_that_cannot_be_published(version) {
        let world = world(version).await;
        let db = world.servers.app(0).await;
        // A lock that is met before anything is claimed is no reason to wait.
        let locker = world.servers.app(0).await;
        locker
            .batch_execute("BEGIN; LOCK TABLE shard_0000.notes")
            .await
            .unwrap();
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let ran = world.run(&args).await;
        assert!(
            ran.ended(1).stderr.contains("AccessExclusiveLock on notes"),
            "{}",
            ran.stderr
        );
        assert_eq!(
            lines(&db, "SELECT move_id::text FROM pgshard.move").await,
            ""
        );
        locker.batch_execute("ROLLBACK").await.unwrap();

        // It would be lent a replica identity.
        let args = [&args[..], &["--no-replica-identity"]].concat();
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after incoming=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        db.batch_execute("CREATE TABLE shard_0000.keyless AS SELECT 1 AS n")
            .await
            .unwrap();
        go_on(pid);
        let ran = crate::support::never_stopped(child).await;
        ran.ended(4);
        db.batch_execute(
            "UPDATE shard_0000.keyless SET n = 2; DROP TABLE \
            shard_0000.keyless",
        )
        .await
        .unwrap();

        let child = world.command(
            &["moves", "resume", &ran.id()],
            &[("PGSHARD_FAILPOINT", "before publication=stop")],
        );
        let child = { child }.spawn().unwrap();
        let pid = stopped(&child).await;
        db.batch_execute("CREATE TABLE shard_0000.keyless AS SELECT 1 AS n")
            .await
            .unwrap();
        go_on(pid);
        let altered = crate::support::never_stopped(child).await;
        altered.ended(7);
        db.batch_execute(
            "UPDATE shard_0000.keyless SET n = 2; DROP TABLE \
            shard_0000.keyless",
        )
        .await
        .unwrap();
        world.run(&["moves", "abort", &ran.id()]).await.ended(0);

        // A table that has lost its key is no longer published, and a column that becomes generated
        // is an alteration as well.
        let (no_key, a_key) = (
            "DROP CONSTRAINT notes_pkey",
            "ADD CONSTRAINT notes_pkey PRIMARY \
            KEY (id)",
        );
        let mut altered = vec![
            (1, "REPLICA IDENTITY NOTHING", "REPLICA IDENTITY DEFAULT"),
            (0, no_key, a_key),
        ];
        if version >= 17 {
            db.batch_execute(
                "ALTER TABLE shard_0002.notes ADD length int GENERATED ALWAYS AS \
                (length(note)) STORED",
            )
            .await
            .unwrap();
            altered.push((
                2,
                "ALTER length SET EXPRESSION AS \
                (1)",
                "ALTER length SET EXPRESSION AS \
                (length(note))",
            ));
        }
        let mut id = String::new();
        for (shard, change, undo) in altered {
            let notes = format!("shard_000{shard}.notes");
            let (child, altered) = held(&world, &shard.to_string()).await;
            db.batch_execute(&format!("ALTER TABLE {notes} {change}"))
                .await
                .unwrap();
            Ran::of(child).await.ended(7);
            db.batch_execute(&format!(
                "UPDATE {notes} SET note = 'unseen' WHERE id = \
                3"
            ))
            .await
            .unwrap();
            db.batch_execute(&format!("ALTER TABLE {notes} {undo}"))
                .await
                .unwrap();
            world.run(&["moves", "continue", &altered]).await;
            world.run(&["moves", "resume", &altered]).await.ended(0);
            let (there, left) = (
                rows(&world, 1, &notes).await,
                format!("shard_000{shard}__left_e1.notes"),
            );
            assert_eq!(there, rows(&world, 0, &left).await);
            assert!(there.contains("(3,unseen"), "{there}");
            id = if shard == 0 { altered } else { id };
        }

        // The same at the new host, with the reverse replication open.
        let db2 = world.servers.app(1).await;
        db2.batch_execute("ALTER TABLE shard_0000.notes DROP CONSTRAINT notes_pkey")
            .await
            .unwrap();
        world.run(&["moves", "gc"]).await.ended(0);
        db2.batch_execute("UPDATE shard_0000.notes SET note = 'free' WHERE id = 3")
            .await
            .unwrap();
        let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains(
                "has lost the key that identifies its \
            rows"
            ),
            "{}",
            refused.stderr
        );
        world.audit_places().await;
    }
}
