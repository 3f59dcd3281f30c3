//! Moves taken back after the application has written to their shards at the new host, by the way that each online move
//! prepares; and what keeps that way open.

use std::time::Duration;

use pgshard::mover::{BACK_FAILPOINTS, MoveId, Options, Phase, Report};
use tokio_postgres::Client;

use crate::support::{World, Writers, lines, other};

/// More than users and photos: what must not act on an old copy, and is there again after the way back.
const RULES: &str = "
    CREATE TABLE {shard}.notes (at timestamptz NOT NULL DEFAULT now(), line text);
    ALTER TABLE {shard}.notes REPLICA IDENTITY FULL;
    CREATE TABLE {shard}.items (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        parent integer CONSTRAINT \"the parent\" REFERENCES {shard}.items ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
        name text UNIQUE, long text);
    ALTER TABLE {shard}.items ALTER COLUMN long SET STORAGE EXTERNAL;
    COMMENT ON CONSTRAINT \"the parent\" ON {shard}.items IS 'a tree';
    CREATE FUNCTION {shard}.note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO {shard}.notes (line) VALUES (TG_OP || ' ' || coalesce(NEW.name, OLD.name)); RETURN NULL; END $$;
    CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {shard}.items FOR EACH ROW EXECUTE FUNCTION {shard}.note();
    CREATE TRIGGER \"not used\" AFTER INSERT ON {shard}.items FOR EACH ROW EXECUTE FUNCTION {shard}.note();
    ALTER TABLE {shard}.items DISABLE TRIGGER \"not used\";
    COMMENT ON TRIGGER noted ON {shard}.items IS 'it notes';
";

async fn world(version: u32, shards: u16) -> World {
    let tables = [("0001_tables.sql", crate::support::TABLES), ("0002_rules.sql", RULES)];
    World::with_tables(&[version, other(version)], shards, &tables).await
}

/// Moves shards online, and gives the move's ID.
async fn moved(world: &World, shards: &str, target: &str) -> MoveId {
    let mover = world.mover();
    let plan = mover.plan(&world.online(shards, target)).await.unwrap();
    let report = mover.run(&plan).await;
    kept(&report);
    report.id
}

#[track_caller]
fn kept(report: &Report) {
    assert!(report.failed.is_empty(), "{report:?}");
    assert!(!report.done.is_empty() && report.done.iter().all(|done| done.phase == Phase::Kept), "{report:?}");
}

/// Constraints and triggers of a shard, with all that is said of them.
async fn rules(db: &Client, shard: u16) -> String {
    let sql = format!(
        "SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid), convalidated, condeferred,
                obj_description(oid, 'pg_constraint'))
         FROM pg_constraint WHERE connamespace = 'shard_{shard:04}'::regnamespace AND contype <> 'n'
         UNION ALL SELECT concat_ws(' ', pg_get_triggerdef(oid), tgenabled, obj_description(oid, 'pg_trigger'))
         FROM pg_trigger WHERE tgrelid = 'shard_{shard:04}.items'::regclass AND NOT tgisinternal ORDER BY 1"
    );
    lines(db, &sql).await
}

/// What the tables have that the writers do not know.
async fn rows(db: &Client, shard: u16) -> String {
    let sql = format!(
        "SELECT concat_ws('|', id, parent, name, md5(long)) FROM shard_{shard:04}.items
         UNION ALL SELECT line FROM shard_{shard:04}.notes ORDER BY 1"
    );
    lines(db, &sql).await
}

/// Changes of every kind, each time others.
fn changes(shard: u16, round: u32) -> String {
    format!(
        "SET search_path = shard_{shard:04};
         INSERT INTO items (name, long) SELECT 'r{round} ' || n, repeat(md5(n::text), 200) FROM generate_series(1, 20) n;
         INSERT INTO items (parent, name) SELECT id, name || ' child' FROM items WHERE name LIKE 'r{round} %';
         UPDATE items SET name = name || ' changed' WHERE name LIKE 'r{round} 1%' AND parent IS NULL;
         DELETE FROM items WHERE name = 'r{round} 2';
         UPDATE notes SET line = line || '!' WHERE line LIKE '%r{round} 3%';
         RESET search_path"
    )
}

on_each_version! {
    /// Under every kind of writer, without a feed, then forward by the way back's own way back.
    async fn shards_are_taken_back_under_writers(version) {
        let world = world(version, 4).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        db1.batch_execute(&changes(0, 0)).await.unwrap();
        let before = rules(&db1, 0).await;
        assert!(before.contains("the parent") && before.contains("it notes") && before.contains("a tree"), "{before}");
        let writers = Writers::start(&world, 3).await;
        let id = moved(&world, "0-1", "db2").await;
        world.audit_places().await;
        db2.batch_execute(&changes(0, 1)).await.unwrap();
        let there = rows(&db2, 0).await;
        let back = world.mover().rollback(id).await.unwrap();
        kept(&back);
        world.audit_places().await;
        assert_eq!(rows(&db1, 0).await, there);
        assert_eq!(rules(&db1, 0).await, before);
        db1.batch_execute(&changes(0, 2)).await.unwrap();
        let there = rows(&db1, 0).await;
        let again = world.mover().rollback(back.id).await.unwrap();
        kept(&again);
        assert_eq!(rows(&db2, 0).await, there);
        for done in back.done.iter().chain(&again.done) {
            eprintln!("shard {} was closed for {:?}", done.shard, done.pause.unwrap());
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
        let done = world.mover().complete(again.id).await.unwrap();
        assert!(done.failed.is_empty(), "{done:?}");
        world.audit_places().await;
        assert!(world.mover().list(None).await.0.is_empty());
    }
}
