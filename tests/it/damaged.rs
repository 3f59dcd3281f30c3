//! Damage to the control schema: `check` names it, and its remedy repairs it.

mod commands;
mod each;

use serde_json::Value;

use crate::support::{World, lines};

/// What is done to a host, and what `check` reports about it.
const DAMAGES: [(&str, &str); 11] = [
    ("DROP FUNCTION pgshard.look", "its function look is gone"),
    ("DROP FUNCTION pgshard.fence, pgshard.migrated", "its function fence is gone"),
    (
        "CREATE OR REPLACE FUNCTION pgshard.expire_fence(p_shard integer) RETURNS boolean LANGUAGE \
            sql
            SET search_path = pg_catalog, pg_temp AS 'SELECT true'",
        "its function expire_fence was altered",
    ),
    ("ALTER FUNCTION pgshard.look(integer) RESET search_path", "its function look was altered"),
    ("ALTER FUNCTION pgshard.open_incoming SECURITY \
        DEFINER", "its function open_incoming was \
        altered"),
    (
        "REVOKE ALL ON FUNCTION pgshard.signpost_rows FROM PUBLIC",
        "not everybody may call its function signpost_rows, as a signpost's readers must",
    ),
    (
        "GRANT EXECUTE ON FUNCTION pgshard.finish_open TO PUBLIC",
        "every role may call its function finish_open, which is for the roles of routers only",
    ),
    (
        "GRANT EXECUTE ON FUNCTION pgshard.decide TO PUBLIC",
        "every role may call its function decide, which is for its owner only",
    ),
    ("GRANT SELECT ON pgshard.shard TO PUBLIC", "its table shard is open to everybody"),
    ("GRANT USAGE ON SCHEMA pgshard TO PUBLIC", "everybody may use the schema"),
    ("DROP INDEX pgshard.move_one_per_shard", "its index move_one_per_shard is gone"),
];

async fn found(world: &World) -> Vec<Value> {
    world.run(&["check"]).await.last()["findings"]
        .as_array()
        .unwrap()
        .clone()
}

on_each_version! {
    /// One thing after the other is broken, named, and repaired by the remedy; nothing is reported
    /// for a host that is right.
    async fn a_control_schema_that_somebody_has_altered(version) {
        let world = World::new(&[version], 4).await;
        let db1 = world.servers.app(0).await;
        // Functions with everything that defines them, and rights.
        let all = "SELECT p.oid::regprocedure || coalesce(array_to_string(proacl, ' '), '') || \
            pg_get_functiondef(p.oid)
            FROM pg_proc p WHERE pronamespace = 'pgshard'::regnamespace
            UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'pgshard'
            UNION ALL SELECT relname || coalesce(array_to_string(relacl, ' '), '') FROM pg_class
                WHERE relnamespace = 'pgshard'::regnamespace
            ORDER BY 1";
        let whole = lines(&db1, all).await;
        assert_eq!(found(&world).await, [Value::Null; 0]);
        for (damage, words) in DAMAGES {
            db1.batch_execute(damage).await.unwrap();
            let all_found = found(&world).await;
            let one = all_found
                .iter()
                .find(|one| one["message"].as_str().unwrap().ends_with(words));
            let one = one.unwrap_or_else(|| panic!("{damage}: {all_found:#?}"));
            assert_eq!(
                (&one["code"], &one["severity"], &one["host"]),
                (&"control_damaged".into(), &"error".into(), &"db1".into())
            );
            assert!(
                one["remedy"]
                    .as_str()
                    .unwrap()
                    .starts_with("run `pgshard bootstrap`"),
                "{one}"
            );
            world.run(&["bootstrap"]).await.ended(0);
            assert_eq!(found(&world).await, [Value::Null; 0], "{damage}");
        }
        let mended = lines(&db1, all).await;
        assert_eq!(mended.lines().count(), whole.lines().count());
        assert!(
            world
                .run(&["bootstrap"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );

        db1.batch_execute("CREATE SCHEMA shard_0004; CREATE SCHEMA shard_beyond")
            .await
            .unwrap();
        let beyond = found(&world).await;
        assert_eq!(
            (beyond.len(), &beyond[0]["code"]),
            (1, &"schema_beyond".into()),
            "{beyond:#?}"
        );
        db1.batch_execute("DROP SCHEMA \"shard_0004\" CASCADE")
            .await
            .unwrap();
        world.run(&["check"]).await.ended(0);
    }

    /// What a role's settings change of the texts of answers and statements is the same in our
    /// sessions.
    async fn settings_of_a_role(version) {
        let world = World::new(&[version], 2).await;
        let superuser = world.servers.superuser(0).await;
        for setting in ["quote_all_identifiers = on", "backslash_quote = off"] {
            superuser
                .batch_execute(&format!("ALTER ROLE app SET {setting}"))
                .await
                .unwrap();
        }
        assert_eq!(found(&world).await, [Value::Null; 0]);
        world.run(&["check", "--ddl"]).await.ended(0);
        assert!(
            world
                .run(&["bootstrap"])
                .await
                .ended(0)
                .stderr
                .contains("nothing to do")
        );
    }

    /// A host claims to serve all shards, at a later epoch than any other host. No map is made from
    /// that, and no remedy is to believe it.
    async fn a_host_that_claims_the_cluster(version) {
        let world = World::new(&[version, version, version], 12).await;
        let db2 = world.servers.app(1).await;
        let map = world.run(&["map", "show"]).await.ended(0).stdout.clone();
        for (epoch, code) in [(2_147_483_647, "epoch_jump"), (9, "served_twice")] {
            db2.batch_execute(&format!(
                "INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch)
                    SELECT i, 'shard_' || lpad(i::text, 4, '0'), 'serving', {epoch} FROM \
                    generate_series(0, 11) i
                    WHERE i NOT BETWEEN 4 AND 7
                 ON CONFLICT (shard_id) DO UPDATE SET epoch = excluded.epoch"
            ))
            .await
            .unwrap();
            let all_found = found(&world).await;
            let one = all_found
                .iter()
                .find(|one| one["code"] == code)
                .unwrap_or_else(|| panic!("{all_found:#?}"));
            assert_eq!(one["severity"], "alarm");
            let believed = |one: &Value| one["remedy"].as_str().unwrap().contains("db2 is right");
            assert!(!all_found.iter().any(believed), "{all_found:#?}");
            world.run(&["map", "rebuild", "--yes"]).await;
            assert_eq!(
                world.run(&["map", "show"]).await.ended(0).stdout.clone(),
                map,
                "{epoch}"
            );
        }
        // If two hosts serve a shard, it is not moved, and nothing is moved there.
        let refused = world.run(&["move", "0", "--to", "db3", "--yes"]).await;
        assert_ne!(refused.code(), 0, "{}", refused.stdout);
    }
}
