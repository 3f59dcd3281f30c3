//! IDs across a move.

use super::*;
use crate::support::{World, other};

on_each_version! {
    /// To a host and back, while the clocks are hours apart: every ID is greater than all before
    /// it, including those that were reserved or rolled back. The router reserves IDs wherever the
    /// shard is.
    async fn to_a_host_whose_clock_is_behind(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let hosts = world.all().await;
        // The functions are carried unchanged, so the target needs the clock that they name.
        with_test_clock(&hosts[0], "shard_0001").await;
        hosts[1]
            .batch_execute("CREATE SCHEMA nothing_yet")
            .await
            .unwrap();
        for name in ["a", "b", "c", "d", "e"] {
            hosts[1]
                .batch_execute(&format!(
                    "CREATE FUNCTION nothing_yet.{name}() RETURNS int \
                LANGUAGE plpgsql AS
                'BEGIN RETURN 1; /* pg_catalog.clock_timestamp() */ END'"
                ))
                .await
                .unwrap();
        }
        with_test_clock(&hosts[1], "nothing_yet").await;
        let (mover, router) = (world.mover(), world.router().await);
        let mut ids = Vec::new();
        for (on, target, behind_ms) in
            [(0, "db2", -5_000), (1, "db1", -7_200_000), (0, "db2", -500)]
        {
            let rows = hosts[on]
                .query(
                    "INSERT INTO shard_0001.users (name) SELECT 'u' FROM \
                generate_series(1, 500)
                RETURNING id",
                    &[],
                )
                .await
                .unwrap();
            ids.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
            hosts[on].batch_execute("BEGIN").await.unwrap();
            ids.extend(next_id(&hosts[on], "shard_0001", 100).await);
            hosts[on].batch_execute("ROLLBACK").await.unwrap();
            ids.extend(router.by_key(1).next_ids(20_000).await.unwrap());
            shift(&hosts[1 - on], behind_ms).await;
            let plan = mover.plan(&world.request("1", target)).await.unwrap();
            let report = mover.run(&plan).await;
            assert!(report.failed.is_empty(), "{report:?}");
            // The router does not know about the move yet.
            let reserved = router.by_key(1).next_ids(300).await.unwrap();
            assert_eq!((reserved.len(), world.host_of(1)), (300, 1 - on));
            ids.extend(reserved);
            ids.extend(next_id(&hosts[1 - on], "shard_0001", 100).await);
            // The names must be free for the next move.
            for entry in mover.list(None).await.found {
                let report = mover.complete(entry.id).await.unwrap();
                assert!(report.failed.is_empty(), "{report:?}");
            }
        }
        assert_grows(&ids);
        let error = router.by_key(1).next_ids(1_000_001).await.unwrap_err();
        assert!(
            std::error::Error::source(&error)
                .unwrap()
                .to_string()
                .contains("next_ids(1000001)")
                || format!("{error:?}").contains("next_ids(1000001)"),
            "{error:?}"
        );
        let in_transaction = router
            .by_key(1)
            .transaction(async |tx| tx.next_ids(10).await)
            .await
            .unwrap();
        ids.extend(in_transaction);
        assert_grows(&ids);
    }

    /// `pgshard check` names the shards with IDs ahead of their host's clock; both hosts have the
    /// same clock here.
    async fn check_sees_ids_ahead(version) {
        let world = World::new(&[version, version], 4).await;
        world.run(&["check"]).await.ended(0);
        let hosts = world.all().await;
        hosts[0]
            .batch_execute(
                "SELECT shard_0001.resume_after(shard_0001.next_id() + ((3600000::int8) \
                << 23))",
            )
            .await
            .unwrap();
        let ran = world.run(&["check"]).await;
        let findings = ran.last()["findings"].clone();
        let found = findings.as_array().unwrap();
        assert_eq!(found.len(), 1, "{findings}");
        assert_eq!(
            (found[0]["code"].as_str(), found[0]["shard"].as_u64()),
            (Some("ids_ahead"), Some(1)),
            "{findings}"
        );
        assert!(
            found[0]["message"]
                .as_str()
                .unwrap()
                .contains("IDs are up to 3"),
            "{findings}"
        );
    }
}
