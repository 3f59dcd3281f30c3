//! Fingerprints that another version of pgshard has recorded: nothing that cannot be compared is
//! called altered.

use crate::support::World;

/// What a later version would have recorded in place of this one.
const LATER: &str = "UPDATE pgshard.move SET fingerprint = '99:' || md5(fingerprint);
    UPDATE pgshard.back SET fingerprint = '99:' || md5(fingerprint)";

on_each_version! {
    /// A move under way copies its shard again. An old copy is dropped if the shard has the same
    /// definition today; otherwise, and for a rollback, the error names what is unknown, and
    /// everything stays.
    async fn of_another_version(version) {
        let world = World::new(&[version, version], 8).await;
        let online = |shards| ["move", shards, "--to", "db2", "--yes", "--mode", "online"];
        let id = world.run(&online("0-1")).await.ended(0).id();
        world
            .run_until(&online("2"), "after chunks=kill")
            .await
            .ended(-9);
        let db1 = world.servers.app(0).await;
        db1.batch_execute(LATER).await.unwrap();
        world.run(&["moves", "resume"]).await.ended(0);
        assert_eq!(world.host_of(2), 1);

        let back = world.run(&["moves", "rollback", &id, "--yes"]).await;
        assert!(
            back.ended(4).stderr.contains("another version of pgshard"),
            "{}",
            back.stderr
        );
        let db2 = world.servers.app(1).await;
        db2.batch_execute("ALTER TABLE shard_0001.photos ADD COLUMN later int")
            .await
            .unwrap();
        let complete = ["moves", "complete", id.as_str(), "--yes"];
        let ran = world.run(&complete).await;
        assert!(
            ran.ended(8).stderr.contains("another version of pgshard"),
            "{}",
            ran.stderr
        );
        assert_eq!(ran.last()["shards"], "0", "{}", ran.stdout);
        db2.batch_execute("ALTER TABLE shard_0001.photos DROP COLUMN later")
            .await
            .unwrap();
        world.run(&complete).await.ended(0);
        world
            .run(&["moves", "complete", "--all", "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }
}
