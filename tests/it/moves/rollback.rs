//! Moves are taken back after the application has written to their shards at the new host, by the
//! reverse replication that each online move prepares; and what keeps that possible.

use std::time::Duration;

use pgshard::mover::{Error, Failpoint, Leases, MoveId, Mover, Options, Phase, Report};
use tokio_postgres::Client;

use crate::support::{World, Writers, lines, other, share};

/// More than users and photos: what must not act on an old copy, and exists again after the
/// rollback.
const RULES: &str = "
    CREATE TABLE {shard}.notes (at timestamptz NOT NULL DEFAULT now(), line text);
    ALTER TABLE {shard}.notes REPLICA IDENTITY FULL;
    CREATE TABLE {shard}.items (
        id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        parent integer CONSTRAINT \"the parent\" REFERENCES {shard}.items ON
        DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
        name text UNIQUE, long text);
    ALTER TABLE {shard}.items ALTER COLUMN long SET STORAGE EXTERNAL;
    COMMENT ON CONSTRAINT \"the parent\" ON {shard}.items IS 'a tree';
    CREATE FUNCTION {shard}.note() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN INSERT INTO {shard}.notes (line) VALUES (TG_OP || ' ' || coalesce(NEW.name, \
        OLD.name)); RETURN NULL;
        END $$;
    CREATE TRIGGER noted AFTER INSERT OR UPDATE OR DELETE ON {shard}.items FOR EACH ROW EXECUTE \
    FUNCTION {shard}.note();
    CREATE TRIGGER \"not used\" AFTER INSERT ON {shard}.items FOR EACH ROW EXECUTE FUNCTION \
    {shard}.note();
    ALTER TABLE {shard}.items DISABLE TRIGGER \"not used\";
    COMMENT ON TRIGGER noted ON {shard}.items IS 'it notes';
";

async fn world(version: u32, shards: u16) -> World {
    let tables = [
        ("0001_tables.sql", crate::support::TABLES),
        ("0002_rules.sql", RULES),
    ];
    World::with_tables(&[version, other(version)], shards, &tables).await
}

/// Moves shards online, and returns the move's ID.
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
    assert!(
        !report.done.is_empty() && report.done.iter().all(|done| done.phase == Phase::Kept),
        "{report:?}"
    );
}

/// Constraints and triggers of a shard, with their comments and states.
async fn rules(db: &Client, shard: u16) -> String {
    let sql = format!(
        "SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid), \
            convalidated, condeferred,
                obj_description(oid, 'pg_constraint'))
         FROM pg_constraint WHERE connamespace = 'shard_{shard:04}'::regnamespace AND contype <> 'n'
         UNION ALL SELECT concat_ws(' ', pg_get_triggerdef(oid), tgenabled, obj_description(oid, \
         'pg_trigger'))
         FROM pg_trigger WHERE tgrelid = 'shard_{shard:04}.items'::regclass AND NOT tgisinternal \
         ORDER BY 1"
    );
    lines(db, &sql).await
}

/// The rows of the tables that the writers do not know.
async fn rows(db: &Client, shard: u16) -> String {
    let sql = format!(
        "SELECT concat_ws('|', id, parent, name, md5(long)) FROM shard_{shard:04}.items
         UNION ALL SELECT line FROM shard_{shard:04}.notes ORDER BY 1"
    );
    lines(db, &sql).await
}

/// Changes of every kind, different ones each time.
fn changes(shard: u16, round: u32) -> String {
    format!(
        "SET search_path = shard_{shard:04};
         INSERT INTO items (name, long) SELECT 'r{round} ' || n, repeat(md5(n::text), 200) FROM \
         generate_series(1,
             20) n;
         INSERT INTO items (parent, name) SELECT id, name || ' child' FROM items WHERE name LIKE \
         'r{round} %';
         UPDATE items SET name = name || ' changed' WHERE name LIKE 'r{round} 1%' AND parent IS \
         NULL;
         DELETE FROM items WHERE name = 'r{round} 2';
         UPDATE notes SET line = line || '!' WHERE line LIKE '%r{round} 3%';
         RESET search_path"
    )
}

on_each_version! {
    /// During every kind of write, without a feed, then forward by the reverse replication of the
    /// rollback itself.
    async fn shards_are_taken_back_under_writers(version) {
        let world = world(version, 4).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        db1.batch_execute(&changes(0, 0)).await.unwrap();
        let before = rules(&db1, 0).await;
        assert!(
            before.contains("the parent")
                && before.contains("it notes")
                && before.contains("a tree"),
            "{before}"
        );
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
            eprintln!(
                "shard {} was closed for {:?}",
                done.shard,
                done.pause.unwrap()
            );
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
        let done = world.mover().complete(again.id).await.unwrap();
        assert!(done.failed.is_empty(), "{done:?}");
        world.audit_places().await;
        assert!(world.mover().list(None).await.found.is_empty());
    }
    /// What the mover applied at the target does not come back; what a transaction older than the
    /// switch wrote there does.
    async fn what_began_before_the_switch(version) {
        let world = world(version, 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        db1.batch_execute(&changes(0, 0)).await.unwrap();
        // The slot of the reverse replication exists, and the move fails.
        let plan = world.mover().plan(&world.online("0", "db2")).await.unwrap();
        let report = failing(&world, "after verify").run(&plan).await;
        assert!(
            matches!(report.failed[..], [(_, Error::Failpoint { .. })]),
            "{report:?}"
        );
        // These go through the mover, after the slot was created.
        db1.batch_execute(&changes(0, 1)).await.unwrap();
        let old = world.servers.app(1).await;
        old.batch_execute(
            "BEGIN; INSERT INTO shard_0001.users (name) VALUES \
            ('before')",
        )
        .await
        .unwrap();
        kept(&world.mover().resume(report.id).await.unwrap());
        db2.batch_execute(&changes(0, 2)).await.unwrap();
        old.batch_execute(
            "INSERT INTO shard_0000.items (name) VALUES ('of an older transaction'); \
            COMMIT",
        )
        .await
        .unwrap();
        let there = rows(&db2, 0).await;
        assert!(there.contains("INSERT of an older transaction"), "{there}");
        kept(&world.mover().rollback(report.id).await.unwrap());
        assert_eq!(rows(&db1, 0).await, there);
        world.audit_places().await;
    }

    /// Fed, killed, fed by another; taken back while it is fed.
    async fn old_copies_are_fed(version) {
        let world = world(version, 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let id = moved(&world, "0", "db2").await;
        for round in 1..3 {
            db2.batch_execute(&changes(0, round)).await.unwrap();
            let mut feeding = world
                .command(&["moves", "feed"], &[("PGSHARD_LEASE_MS", "1000")])
                .spawn()
                .unwrap();
            copied(&db1, &db2).await;
            feeding.kill().await.unwrap();
        }
        db2.batch_execute(&changes(0, 3)).await.unwrap();
        let (one, another) = (with_leases(&world), with_leases(&world));
        let tasks = [one.clone(), another.clone()]
            .map(|mover| tokio::spawn(async move { mover.follow_old_copies(None).await }));
        copied(&db1, &db2).await;
        db2.batch_execute(&changes(0, 4)).await.unwrap();
        kept(&world.mover().rollback(id).await.unwrap());
        let there = rows(&db1, 0).await;
        for round in 1..5 {
            assert!(there.contains(&format!("INSERT r{round} 1")), "{there}");
        }
        one.stop();
        another.stop();
        for task in tasks {
            task.await.unwrap();
        }
        world.audit_places().await;
        let entry = world.mover().list(None).await.found.remove(0);
        assert!(
            world
                .mover()
                .complete(entry.id)
                .await
                .unwrap()
                .failed
                .is_empty()
        );
        world.audit_places().await;
    }

    /// A reverse replication that is broken is given up, and nothing else is.
    async fn a_broken_reverse_harms_nobody(version) {
        let world = world(version, 8).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let mut ids = Vec::new();
        for shard in ["0", "1", "2", "3"] {
            ids.push(moved(&world, shard, "db2").await);
        }
        // For shard 0 the slot is gone, 1 was altered, the old copy of 2 was written to, 3 has
        // moved on.
        let slot = format!("pgshard_{}_back_%", ids[0].to_string().replace('-', ""));
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE \
            slot_name LIKE $1";
        assert_eq!(db2.query(sql, &[&slot]).await.unwrap().len(), 1);
        db2.batch_execute("ALTER TABLE shard_0001.items ADD COLUMN more integer")
            .await
            .unwrap();
        db2.batch_execute("INSERT INTO shard_0002.users (id, name) VALUES (1, 'x')")
            .await
            .unwrap();
        db1.batch_execute(
            "INSERT INTO shard_0002__left_e1.users (id, name) VALUES (1, \
            'x')",
        )
        .await
        .unwrap();
        moved(&world, "3", "db1").await;
        let mover = with_leases(&world);
        let feeding = tokio::spawn({
            let mover = mover.clone();
            async move { mover.follow_old_copies(None).await }
        });
        let lost = async |shard: i32| -> Option<String> {
            let sql =
                "SELECT lost FROM pgshard.back b JOIN pgshard.move m USING (move_id, shard_id)
                WHERE shard_id = $1 AND m.phase = 'kept'";
            db1.query_one(sql, &[&shard]).await.unwrap().get(0)
        };
        while lost(0).await.is_none() || lost(2).await.is_none() || lost(3).await.is_none() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        mover.stop();
        feeding.await.unwrap();
        assert!(
            lost(2).await.unwrap().contains("users"),
            "{:?}",
            lost(2).await
        );
        for id in &ids {
            let report = world.mover().rollback(*id).await.unwrap();
            assert!(
                matches!(report.failed[..], [(_, Error::NoRollback { .. })]),
                "{report:?}"
            );
            world
                .run(&["moves", "rollback", &id.to_string(), "--yes"])
                .await
                .ended(4);
        }
        for shard in 0..3 {
            assert_eq!(world.state(1, shard).await, "serving");
        }
        assert!(world.mover().gc().await.failed.is_empty());
        world.audit_places().await;
        for entry in world.mover().list(None).await.found {
            let report = world.mover().complete(entry.id).await.unwrap();
            assert!(report.failed.is_empty(), "{report:?}");
        }
        world.audit_places().await;
        assert_eq!(
            db1.query("SELECT FROM pgshard.back", &[])
                .await
                .unwrap()
                .len(),
            0
        );
    }

    /// Killed where the reverse replication is created, taken and left; then resumed, or aborted
    /// and started again.
    async fn killed_on_the_reverse(version) {
        let making = ["after back slot", "after constraint drop"];
        let going = [
            "after adopt",
            "after swap",
            "after decide",
            "after end of former",
        ];
        let world = world(version, 2 * (making.len() + going.len()) as u16).await;
        let writers = Writers::start(&world, 2).await;
        for (shard, name) in share(version, making.into_iter().chain(going))
            .into_iter()
            .enumerate()
        {
            let shard = shard.to_string();
            let id = if making.contains(&name) {
                let args = ["move", &shard, "--to", "db2", "--mode", "online", "--yes"];
                let id = world
                    .run_until(&args, &format!("{name}=kill"))
                    .await
                    .ended(-9)
                    .id();
                world.run(&["moves", "resume", &id]).await.ended(0);
                id
            } else {
                moved(&world, &shard, "db2").await.to_string()
            };
            let args = ["moves", "rollback", &id, "--yes"];
            if going.contains(&name) {
                let back = world
                    .run_until(&args, &format!("{name}=kill"))
                    .await
                    .ended(-9)
                    .id();
                let verb = if version == 15 && ["after adopt", "after swap"].contains(&name) {
                    "abort"
                } else {
                    "resume"
                };
                world.run(&["moves", verb, &back]).await.ended(0);
                if verb == "abort" {
                    world.audit_places().await;
                    world.run(&args).await.ended(0);
                }
            } else {
                world.run(&args).await.ended(0);
            }
            assert_eq!(world.host_of(shard.parse().unwrap()), 0, "{name}");
            world.audit_places().await;
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }
}

fn failing(world: &World, name: &str) -> Mover {
    let failpoint = Some(Failpoint::parse(&format!("{name}=fail")).unwrap());
    world.mover_with(Options::default().failpoint(failpoint))
}

fn with_leases(world: &World) -> Mover {
    let leases = Leases::of(Duration::from_secs(1));
    world.mover_with(Options::default().leases(leases))
}

/// Waits until the old copy of shard 0 has what its new host has.
async fn copied(from: &Client, to: &Client) {
    let left = "SELECT concat_ws('|', id, parent, name, md5(long)) FROM shard_0000__left_e1.items
        UNION ALL SELECT line FROM shard_0000__left_e1.notes ORDER BY 1";
    let there = rows(to, 0).await;
    while lines(from, left).await != there {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
