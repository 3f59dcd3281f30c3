//! Shards with hundreds of tables: their number limits nothing about a move.

use crate::support::{World, lines, other};

/// Creates this many tables in a shard; every tenth has rows.
async fn fill(world: &World, shard: u16, tables: u32) {
    let db = world.servers.app(world.host_of(shard)).await;
    // Some at a time, because the locks of one transaction are limited.
    for first in (1..=tables).step_by(250) {
        let last = (first + 249).min(tables);
        let sql = format!(
            "DO $$ BEGIN FOR n IN {first}..{last} LOOP
                EXECUTE format('CREATE TABLE shard_{shard:04}.%I (id int PRIMARY KEY, v text)', \
                'Table ' || n);
                IF n % 10 = 0 THEN
                    EXECUTE format('INSERT INTO shard_{shard:04}.%I SELECT g, ''v'' || g FROM \
                    generate_series(1, 3) g',
                        'Table ' || n);
                END IF;
            END LOOP; END $$"
        );
        db.batch_execute(&sql).await.unwrap();
    }
}

/// Tables and rows of a schema, as one text.
async fn contents(world: &World, host: usize, schema: &str) -> String {
    let db = world.servers.app(host).await;
    db.batch_execute(
        "CREATE FUNCTION pg_temp.rows_of(t regclass, OUT rows text) LANGUAGE plpgsql AS
            $$ BEGIN EXECUTE format('SELECT string_agg(x::text, '';'' ORDER BY x) FROM %s x', t) \
            INTO rows; END $$",
    )
    .await
    .unwrap();
    let sql = format!(
        "SELECT format('%s: %s', relname, pg_temp.rows_of(oid)) FROM pg_class
         WHERE relnamespace = '{schema}'::regnamespace AND relkind = 'r' ORDER BY relname \
         COLLATE \"C\""
    );
    lines(&db, &sql).await
}

on_each_version! {
    /// A hundred tables more than a function may have arguments, and five hundred, in a group with
    /// a small shard: all move together, and back.
    async fn hundreds_in_a_group(version) {
        let world = World::new(&[version, other(version)], 6).await;
        fill(&world, 0, 500).await;
        fill(&world, 1, 105).await;
        let before = [
            contents(&world, 0, "shard_0000").await,
            contents(&world, 0, "shard_0001").await,
        ];
        assert!(before[0].contains("Table 500: (1,v1);(2,v2)"));
        let args = ["move", "0-2", "--to", "db2", "--mode", "online", "--yes"];
        let id = world.run(&args).await.ended(0).id();
        for (shard, before) in before.iter().enumerate() {
            assert_eq!(
                contents(&world, 1, &format!("shard_000{shard}")).await,
                *before
            );
        }
        let sql = "INSERT INTO shard_0000.\"Table 7\" VALUES (1, 'there')";
        world.servers.app(1).await.batch_execute(sql).await.unwrap();
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        assert!(
            contents(&world, 0, "shard_0000")
                .await
                .contains("Table 7: (1,there)")
        );
        assert_eq!(contents(&world, 0, "shard_0001").await, before[1]);
        world.audit_places().await;
    }
}
