//! A source with catalogs that return more than they should: a statement at the target stays one
//! statement, and no text from the source ends it and begins another.

use crate::support::{World, lines};

/// A function of the source's server, what it now returns in addition, and what it is meant to end:
/// a table's columns, a trigger and a foreign key, an index, a view.
const LIES: [(&str, &str, &str); 5] = [
    (
        "pg_get_expr(pg_node_tree, oid)",
        "0; CREATE TABLE public.stolen (x int); SELECT 0",
        "a definition",
    ),
    (
        "pg_get_triggerdef(oid)",
        "; CREATE TABLE public.stolen (x int) --",
        "what runs at the open",
    ),
    (
        "pg_get_constraintdef(oid)",
        "; CREATE TABLE public.stolen (x int) --",
        "a key",
    ),
    (
        "pg_get_indexdef(oid)",
        "; CREATE TABLE public.stolen (x int) --",
        "an index",
    ),
    (
        "pg_get_viewdef(oid)",
        "; CREATE TABLE public.stolen (x int) --",
        "a view",
    ),
];

const SCHEMA: &str = "
    CREATE FUNCTION shard_0000.f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NEW; END';
    CREATE TRIGGER t AFTER UPDATE ON shard_0000.photos FOR EACH ROW EXECUTE FUNCTION shard_0000.f();
    CREATE INDEX by_title ON shard_0000.photos (title);
    CREATE VIEW shard_0000.v AS SELECT id FROM shard_0000.photos;
    CREATE TABLE shard_0000.counted (n int DEFAULT 0)";

on_each_version! {
    /// The server's functions from which the mover reads definitions are replaced, one at a time.
    async fn a_source_that_says_two_statements(version) {
        let world = World::new(&[version, version], 4).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(SCHEMA)
            .await
            .unwrap();
        let (liar, target) = (world.servers.superuser(0).await, world.servers.app(1).await);
        liar.batch_execute("SET allow_system_table_mods = on")
            .await
            .unwrap();
        for (function, lie, what) in LIES {
            let (name, argument) = function.trim_end_matches(')').split_once('(').unwrap();
            // What it has returned until now, and more; for expressions only for a default.
            let arguments: Vec<String> = (1..=argument.split(',').count())
                .map(|at| format!("${at}"))
                .collect();
            let said = format!("pg_catalog.true_{name}({})", arguments.join(", "));
            let told = if name == "pg_get_expr" {
                format!("CASE {said} WHEN '0' THEN '{lie}' ELSE {said} END")
            } else {
                format!("{said} || '{lie}'")
            };
            liar.batch_execute(&format!(
                "ALTER FUNCTION pg_catalog.{function} RENAME TO true_{name};
                 CREATE FUNCTION pg_catalog.{name}({argument}) RETURNS text LANGUAGE sql STABLE
                 AS $lie$ SELECT {told} $lie$"
            ))
            .await
            .unwrap();
            for mode in ["online", "blocking"] {
                let ran = world
                    .run(&["move", "0", "--to", "db2", "--mode", mode, "--yes"])
                    .await;
                let refused = ran.code() != 0
                    && ran.stderr.contains(
                        "cannot insert multiple \
                    commands",
                    );
                assert!(refused, "{what}, {mode}: {}{}", ran.stdout, ran.stderr);
                let stolen = lines(
                    &target,
                    "SELECT nspname || '.' || relname FROM pg_class c
                    JOIN pg_namespace n ON n.oid = c.relnamespace WHERE relname = 'stolen'",
                )
                .await;
                assert_eq!(stolen, "", "{what}, {mode}");
                world.run(&["moves", "abort"]).await;
            }
            liar.batch_execute(&format!(
                "DROP FUNCTION pg_catalog.{function};
                 ALTER FUNCTION pg_catalog.true_{name}({argument}) RENAME TO {name}"
            ))
            .await
            .unwrap();
        }
        world
            .run(&["move", "0", "--to", "db2", "--yes"])
            .await
            .ended(0);
    }
}
