//! Tables that inherit others: parent and child have rows with the same IDs, so that a statement
//! without ONLY would hit both.
//!
//! Each transaction writes to a plain table what it writes to them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{World, lines, other, rounds};

/// A child made by INHERITS, one with two parents, one with its columns in another order, a child
/// of a child.
const SCHEMA: &str = r#"
    CREATE TABLE {shard}.parents (id bigint PRIMARY KEY, v text NOT NULL DEFAULT 'x',
        n int CHECK (n >= 0));
    CREATE TABLE {shard}.others (note text);
    CREATE TABLE {shard}.children (own int, PRIMARY KEY (id))
        INHERITS ({shard}.parents, {shard}.others);
    CREATE TABLE {shard}.keyless () INHERITS ({shard}.parents);
    CREATE TABLE {shard}.grandchildren (PRIMARY KEY (id)) INHERITS ({shard}.children);
    ALTER TABLE {shard}.parents ADD COLUMN late int DEFAULT 5;
    CREATE TABLE {shard}.plain (which text, id bigint, v text, PRIMARY KEY (which, id));
"#;

const TABLES: [&str; 4] = ["parents", "children", "keyless", "grandchildren"];

/// Only the newest rows, so that a round does not become longer.
fn round(n: u32) -> String {
    let newest = format!("id > {}", (n * 10).saturating_sub(200));
    let mut sql = "BEGIN; SET LOCAL search_path = shard_0000;".to_owned();
    for (at, table) in TABLES.iter().enumerate() {
        // The same IDs in each.
        sql += &format!(
            "INSERT INTO {table} (id, v, n) SELECT {n} * 10 + g, 'v' || g, {at} FROM \
                generate_series(1, 6) g;
             INSERT INTO plain SELECT '{table}', {n} * 10 + g, 'v' || g FROM generate_series(1, 6) \
             g;
             UPDATE ONLY {table} SET v = v || '{at}' WHERE {newest} AND id % 7 = ({n} + {at}) % 7;
             UPDATE plain SET v = v || '{at}' WHERE which = '{table}' AND {newest} AND id % 7 = \
             ({n} + {at}) % 7;
             DELETE FROM ONLY {table} WHERE {newest} AND id % 11 = ({n} + {at}) % 11;
             DELETE FROM plain WHERE which = '{table}' AND {newest} AND id % 11 = ({n} + {at}) % \
             11;"
        );
    }
    // And all of them in one statement.
    sql += &format!(
        "UPDATE parents SET v = v || 'a' WHERE {newest} AND id % 13 = {n} % 13;
         UPDATE plain SET v = v || 'a' WHERE {newest} AND id % 13 = {n} % 13;
         UPDATE children SET own = {n} WHERE id = {n} * 10 + 1; COMMIT"
    );
    sql
}

/// Between two rounds.
const REST: Duration = Duration::from_millis(60);

async fn compare(world: &World, host: usize) {
    let db = world.servers.app(host).await;
    db.batch_execute("SET search_path = shard_0000")
        .await
        .unwrap();
    for table in TABLES {
        let differ = format!(
            "SELECT id, a.v, b.v FROM (SELECT id, v FROM ONLY {table}) a
             FULL JOIN (SELECT id, v FROM plain WHERE which = '{table}') b USING (id)
             WHERE a.v IS DISTINCT FROM b.v LIMIT 5"
        );
        assert_eq!(lines(&db, &differ).await, "", "{table}");
    }
    let sql = "SELECT count(*), count(DISTINCT id) FROM parents";
    let row = db.query_one(sql, &[]).await.unwrap();
    let (all, ids): (i64, i64) = (row.get(0), row.get(1));
    assert!(all > ids && ids > 0, "{all} rows of {ids} IDs");
}

on_each_version! {
    async fn there_and_back(version) {
        let world = World::with_tables(
            &[version, other(version)],
            2,
            &[("0001_tables.sql", SCHEMA)],
        )
        .await;
        let stop = Arc::new(AtomicBool::new(false));
        let worker = tokio::spawn(rounds(world.all().await, REST, stop.clone(), round));
        tokio::time::sleep(Duration::from_millis(300)).await;
        let plan = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--plan"])
            .await;
        let said = format!("{}{}", plan.stdout, plan.stderr);
        assert!(
            said.contains(
                "table children has columns of its own before inherited \
            ones"
            ),
            "{said}"
        );
        let moved = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let id = world.run(&moved).await.ended(0).id();
        compare(&world, 1).await;
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        compare(&world, 0).await;
        let id = world.run(&moved).await.ended(0).id();
        stop.store(true, Ordering::Relaxed);
        let (rounds, refused) = worker.await.unwrap();
        assert!(
            rounds > 5 && refused.is_empty(),
            "{rounds} rounds, and {refused:#?}"
        );
        compare(&world, 1).await;
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        world
            .run(&["move", "0", "--to", "db1", "--mode", "blocking", "--yes"])
            .await
            .ended(0);
        compare(&world, 0).await;
        // The parent's definition applies to the children.
        let db = world.servers.app(0).await;
        for (sql, code) in [
            (
                "INSERT INTO shard_0000.keyless (id, n) VALUES (1, -1)",
                "23514",
            ),
            (
                "INSERT INTO shard_0000.grandchildren (id, v) VALUES (1, NULL)",
                "23502",
            ),
        ] {
            assert_eq!(
                db.batch_execute(sql)
                    .await
                    .unwrap_err()
                    .code()
                    .unwrap()
                    .code(),
                code,
                "{sql}"
            );
        }
        db.batch_execute("ALTER TABLE shard_0000.parents ADD COLUMN later int")
            .await
            .unwrap();
        db.batch_execute("SELECT later FROM ONLY shard_0000.grandchildren")
            .await
            .unwrap();
        world.audit_places().await;
    }
}
