//! Entries that a host has lost are found, and put back.

use std::collections::BTreeSet;

use serde_json::Value;

use super::support::World;
use super::{register, rows, world};

/// Runs a command on the look-up, which ends like this, and returns what it prints.
async fn run(world: &World, verb: &str, code: i32) -> Value {
    let ran = world.run(&["lookups", verb, "emails"]).await;
    ran.ended(code);
    serde_json::from_str(ran.stdout.trim()).unwrap()
}

/// Runs a statement in every shard, with `{shard}` for its schema, and returns the rows changed.
async fn everywhere(world: &World, sql: &str) -> u64 {
    let clients = world.all().await;
    let mut changed = 0;
    for shard in 0..world.config.cluster.shards.get() {
        let sql = sql.replace("{shard}", &format!("shard_{shard:04}"));
        changed += clients[world.host_of(shard)]
            .execute(&sql, &[])
            .await
            .unwrap();
    }
    changed
}

on_each_version! {
    async fn entries_that_are_lost_are_put_back(version) {
        let world = world(&[version, version], 8).await;
        let router = world.router().await;
        for id in 0..60_i64 {
            register(&router, id, &format!("user{id}")).await.unwrap();
        }
        run(&world, "build", 0).await;
        let right = run(&world, "check", 0).await;
        assert_eq!(right["rows"], 60);

        // A host has lost some; one leads to a key that has no such row.
        let lost = "DELETE FROM {shard}.pgshard_entry WHERE key::bigint % 5 = 0";
        assert_eq!(everywhere(&world, lost).await, 12);
        let astray = "UPDATE {shard}.pgshard_entry SET key = '1' WHERE key = '33'";
        assert_eq!(everywhere(&world, astray).await, 1);
        let before = world.everything().await;
        let found = run(&world, "check", 1).await;
        assert_eq!(world.everything().await, before);
        assert_eq!(found["missing"], 13);
        assert_eq!(found["duplicates"], Value::Array(Vec::new()));
        let missing = found["missing_listed"].as_array().unwrap();
        let keys: BTreeSet<i64> =
            missing.iter().map(|one| one["key"].as_str().unwrap().parse().unwrap()).collect();
        let mut wanted: BTreeSet<i64> = (0..60).step_by(5).collect();
        wanted.insert(33);
        assert_eq!(keys, wanted);

        // In between, another key has claimed a value with a lost entry.
        register(&router, 100, "user10").await.unwrap();
        let found = run(&world, "repair", 1).await;
        assert_eq!(found["missing"], 12, "{found}");
        assert_eq!(found["duplicates"].as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found["duplicates"][0]["key"], "10");
        assert_eq!(found["duplicates"][0]["other"], "100");
        let sql = "DELETE FROM {shard}.users WHERE id = 100";
        router.by_key(100_i64).execute(sql, &[]).await.unwrap();
        assert_eq!(run(&world, "check", 1).await["missing"], 1);
        assert_eq!(run(&world, "repair", 0).await["missing"], 1);
        assert_eq!(run(&world, "check", 0).await["rows"], 60);
        let lookup = router.lookup("emails").unwrap();
        for (id, email) in rows(&world).await {
            assert_eq!(lookup.find::<i64>(email).await.unwrap(), Some(id));
        }
    }

    /// What writers change during the check is no difference.
    async fn a_check_beside_writers_finds_nothing(version) {
        let world = world(&[version, version], 8).await;
        let router = world.router().await;
        run(&world, "build", 0).await;
        let writers: Vec<_> = (0..4_i64)
            .map(|writer| {
                let router = router.clone();
                tokio::spawn(async move {
                    for round in 0..60_i64 {
                        let id = writer * 1000 + round % 7;
                        let email = format!("user{}", fastrand::u32(..20));
                        let _ = register(&router, id, &email).await;
                        if fastrand::bool() {
                            let sql = "DELETE FROM {shard}.users WHERE id = $1";
                            router.by_key(id).execute(sql, &[&id]).await.unwrap();
                        }
                    }
                })
            })
            .collect();
        let mut checked = 0;
        while !writers.iter().all(tokio::task::JoinHandle::is_finished) {
            let found = run(&world, "check", 0).await;
            assert_eq!(found["missing"], 0, "{found}");
            checked += 1;
        }
        for writer in writers {
            writer.await.unwrap();
        }
        assert!(checked > 0);
    }
}
