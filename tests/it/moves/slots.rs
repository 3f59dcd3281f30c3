//! Slots that something else drops, and what keeps a slot from being made.

use crate::support::{Ran, World, lines, other, until};

/// Rows for some seconds of a slow copy.
const FILL: &str = "INSERT INTO shard_0000.users (name) VALUES ('u');
    INSERT INTO shard_0000.photos (user_id, title)
    SELECT id, repeat('x', 1000) FROM shard_0000.users, generate_series(1, 3000)";

on_each_version! {
    /// While rows are copied nothing reads the slot: the mover notices all the same, long before
    /// everything is copied, and a resume copies again.
    async fn a_slot_that_is_dropped_while_copying_stops_the_move(version) {
        let world = World::new(&[version, other(version)], 2).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(FILL)
            .await
            .unwrap();
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--yes",
            "--mode",
            "online",
            "--max-rate",
            "100kB",
        ];
        let mover = world.command(&args, &[]).spawn().unwrap();
        let (db1, db2) = (world.servers.superuser(0).await, world.servers.app(1).await);
        let begun = "SELECT count(*) > 3 FROM pgshard.chunk";
        until(&db2, begun).await;
        db1.batch_execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            .await
            .unwrap();
        let ran = Ran::of(mover).await;
        let said = &ran.ended(7).stderr;
        assert!(
            said.contains("is gone") && said.contains("failover manager"),
            "{said}"
        );
        let missing = "SELECT count(*) > 0 FROM pgshard.chunk WHERE snapshot IS NULL";
        assert!(
            db2.query_one(missing, &[]).await.unwrap().get::<_, bool>(0),
            "it was copying"
        );
        assert_eq!(world.state(0, 0).await, "serving");
        world.run(&["moves", "resume", &ran.id()]).await.ended(0);
        world.audit_places().await;
    }

    /// The same while the fence is held back, and the slot is read; and while a rollback is
    /// possible, when no process has to run for it.
    async fn a_slot_that_is_dropped_later_is_reported(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (db1, db2) = (
            world.servers.superuser(0).await,
            world.servers.superuser(1).await,
        );
        let args = [
            "move", "0", "--to", "db2", "--yes", "--mode", "online", "--hold",
        ];
        let mover = world.command(&args, &[]).spawn().unwrap();
        let ready = "SELECT count(*) = 1 FROM pgshard.move WHERE phase = 'ready'";
        until(&db1, ready).await;
        // Its reader comes back immediately, so dropping it takes several tries.
        let drop = "DO $$ DECLARE slot record; BEGIN
            FOR slot IN SELECT * FROM pg_replication_slots LOOP
                WHILE true LOOP BEGIN
                    PERFORM pg_terminate_backend(active_pid) FROM pg_replication_slots
                        WHERE slot_name = slot.slot_name;
                    PERFORM pg_sleep(0.005);
                    PERFORM pg_drop_replication_slot(slot.slot_name);
                    EXIT;
                EXCEPTION WHEN object_in_use THEN NULL; END; END LOOP;
            END LOOP; END $$";
        db1.batch_execute(drop).await.unwrap();
        let ran = Ran::of(mover).await;
        assert!(ran.ended(7).stderr.contains("is gone"), "{}", ran.stderr);
        let id = ran.id();
        let check = world.run(&["check"]).await;
        let finding = |checked: &Ran, code: &str| {
            let findings = checked.json();
            findings
                .iter()
                .any(|line| line.to_string().contains(&format!("\"{code}\"")))
        };
        assert!(finding(&check, "slot_gone"), "{}", check.stdout);
        world.run(&["moves", "continue", &id]).await;
        world.run(&["moves", "resume", &id]).await.ended(0);
        let check = world.run(&["check"]).await;
        assert!(!finding(&check, "slot_gone"), "{}", check.stdout);

        db2.batch_execute(drop).await.unwrap();
        let listed = world.run(&["moves"]).await.last().to_string();
        assert!(listed.contains("lost: its slot pgshard_"), "{listed}");
        let check = world.run(&["check"]).await;
        assert!(finding(&check, "slot_gone"), "{}", check.stdout);
        // Its remedy.
        world.run(&["moves", "gc"]).await.ended(0);
        let check = world.run(&["check"]).await;
        assert!(!finding(&check, "slot_gone"), "{}", check.stdout);
        assert!(finding(&check, "no_reverse"), "{}", check.stdout);
        assert_eq!(
            lines(&db2, "SELECT pubname::text FROM pg_publication").await,
            ""
        );
        world.audit_places().await;
    }

    /// A prepared transaction of another database that is about to end refuses nothing: the slot
    /// waits for it.
    async fn a_young_prepared_transaction_is_waited_for(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let url = world.servers.server(0).superuser_url();
        let url = format!("{}/postgres", url.rsplit_once('/').unwrap().0);
        let (elsewhere, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        elsewhere
            .batch_execute("BEGIN; SELECT txid_current(); PREPARE TRANSACTION 'two phases'")
            .await
            .unwrap();
        let args = ["move", "0", "--to", "db2", "--yes", "--mode", "online"];
        let mover = world.command(&args, &[]).spawn().unwrap();
        let db1 = world.servers.superuser(0).await;
        let waits = "SELECT EXISTS (SELECT FROM pg_stat_activity
            WHERE wait_event = 'transactionid' AND query LIKE '%create_logical_replication_slot%')";
        until(&db1, waits).await;
        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        let progress = world
            .mover()
            .progress(id.trim().parse().unwrap())
            .await
            .unwrap();
        let blockers = progress.streams[0].blockers.join("; ");
        let told = "the prepared transaction 'two phases' in database postgres";
        assert!(blockers.contains(told), "{blockers}");
        elsewhere
            .batch_execute("COMMIT PREPARED 'two phases'")
            .await
            .unwrap();
        Ran::of(mover).await.ended(0);
        world.audit_places().await;
    }
}
