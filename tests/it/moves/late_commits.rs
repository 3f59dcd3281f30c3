//! Transactions with a commit in the WAL that no session sees yet, because they wait for a
//! synchronous standby.

use std::time::Duration;

use tokio_postgres::Client;

use crate::support::{Ran, World, go_on, lines, stopped, until};

/// Begins a transaction that has a number, and waits until the creation of a slot waits for it.
struct Older(Client);

impl Older {
    async fn begin(world: &World) -> Older {
        let client = world.servers.superuser(0).await;
        client
            .batch_execute("BEGIN; SELECT pg_current_xact_id()")
            .await
            .unwrap();
        Older(client)
    }

    async fn is_waited_for(&self, watcher: &Client) {
        let number = lines(&self.0, "SELECT pg_current_xact_id()::text").await;
        let sql = format!(
            "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND transactionid::text = '{}')",
            number.trim()
        );
        until(watcher, &sql).await;
    }

    async fn end(self) {
        self.0.batch_execute("ROLLBACK").await.unwrap();
    }
}

on_each_version! {
    /// The creation of a slot waits for transactions in two turns. One that begins in the second,
    /// and has written its commit before that ends, is not in the slot's stream. It is in no
    /// snapshot either for as long as it waits for a standby that is slow to replay; the mover's
    /// own commits do not wait for that.
    async fn of_the_time_before_the_slot(version) {
        let world = World::with_standby(version, 2, 0).await;
        let (db1, standby) = (
            world.servers.superuser(0).await,
            world.servers.superuser(2).await,
        );
        db1.batch_execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            .await
            .unwrap();
        db1.batch_execute("SELECT pg_reload_conf()").await.unwrap();
        until(
            &db1,
            "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = \
            'sync')",
        )
        .await;
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--mode",
            "online",
            "--yes",
            "--hold",
            "--no-reverse-replication",
        ];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "before slot=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        let first = Older::begin(&world).await;
        go_on(pid);
        first.is_waited_for(&db1).await;
        let second = Older::begin(&world).await;
        first.end().await;
        second.is_waited_for(&db1).await;

        standby
            .batch_execute("SELECT pg_wal_replay_pause()")
            .await
            .unwrap();
        let writer = world.servers.app(0).await;
        writer
            .batch_execute("SET synchronous_commit = remote_apply")
            .await
            .unwrap();
        let backend: i32 = writer
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let insert = "INSERT INTO shard_0000.users (id, name) VALUES (1, 'waits')";
        let insert = tokio::spawn(async move { writer.execute(insert, &[]).await });
        until(
            &db1,
            &format!(
                "SELECT wait_event = 'SyncRep' FROM pg_stat_activity WHERE pid = \
            {backend}"
            ),
        )
        .await;
        second.end().await;
        // How long a mover that does not wait takes to be ready.
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!insert.is_finished());
        standby
            .batch_execute("SELECT pg_wal_replay_resume()")
            .await
            .unwrap();
        assert_eq!(insert.await.unwrap().unwrap(), 1);

        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        world.run(&["moves", "continue", id.trim()]).await.ended(0);
        Ran::of(child).await.ended(0);
        let rows = lines(
            &world.servers.superuser(1).await,
            "SELECT u::text FROM shard_0000.users \
            u",
        )
        .await;
        assert_eq!(rows, "(1,waits)\n");
    }
}
