//! Sessions that keep a table of the source locked for long: transactions that empty it and fill it
//! again, or rewrite it, and VACUUM.

use std::time::Duration;

use crate::support::{Ran, World, go_on, lines, stopped, until};

on_each_version! {
    /// While the shard is copied, and while it is compared. It is waited for, and comes before the
    /// fence.
    async fn is_waited_for(version) {
        let world = World::new(&[version, version], 4).await;
        for (shard, place) in [(0, "after slot"), (1, "after caught up")] {
            let setup = format!(
                "INSERT INTO shard_{shard:04}.users SELECT g, 'old' FROM \
                generate_series(1, 9) g"
            );
            world
                .servers
                .app(0)
                .await
                .batch_execute(&setup)
                .await
                .unwrap();
            let (number, place) = (shard.to_string(), format!("{place}=stop"));
            let args = ["move", &number, "--to", "db2", "--mode", "online", "--yes"];
            let child = world
                .command(&args, &[("PGSHARD_FAILPOINT", &place)])
                .spawn()
                .unwrap();
            let pid = stopped(&child).await;
            let writer = world.servers.app(0).await;
            let fill = format!(
                "BEGIN; TRUNCATE shard_{shard:04}.users CASCADE;
                 INSERT INTO shard_{shard:04}.users SELECT g, 'new' FROM generate_series(5, 7) g"
            );
            writer.batch_execute(&fill).await.unwrap();
            let filling = tokio::spawn(async move {
                // Longer than lock_timeout, twice.
                tokio::time::sleep(Duration::from_secs(5)).await;
                writer.batch_execute("COMMIT").await
            });
            go_on(pid);
            Ran::of(child).await.ended(0);
            filling.await.unwrap().unwrap();
            let rows = format!("SELECT u::text FROM shard_{shard:04}.users u ORDER BY 1");
            assert_eq!(
                lines(&world.servers.app(1).await, &rows).await,
                "(5,new)\n(6,new)\n(7,new)\n"
            );
        }
        world.audit_places().await;
    }
    /// A VACUUM of a large table takes hours, and changes no row: the mover does not wait for it
    /// before the rows are copied.
    async fn a_copy_does_not_wait_for_vacuum(version) {
        let world = World::new(&[version, version], 2).await;
        let args = [
            "move", "0", "--to", "db2", "--mode", "online", "--yes", "--hold",
        ];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after publication=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        let vacuum = world.servers.superuser(0).await;
        let locked = "BEGIN; LOCK TABLE ONLY shard_0000.users IN SHARE UPDATE EXCLUSIVE MODE";
        vacuum.batch_execute(locked).await.unwrap();
        go_on(pid);
        let db1 = world.servers.superuser(0).await;
        until(&db1, "SELECT phase = 'ready' FROM pgshard.move").await;
        vacuum.batch_execute("COMMIT").await.unwrap();
        let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
        world.run(&["moves", "continue", id.trim()]).await.ended(0);
        Ran::of(child).await.ended(0);
    }
}
