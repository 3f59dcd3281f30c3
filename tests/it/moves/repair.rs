//! `pgshard moves repair`: one host has lost what it had recorded about a shard, at any moment of
//! its move. In the end one host serves the shard, with every acknowledged row that is not lost
//! with a host.

use pgshard::dev::StopMode;
use serde_json::Value;

use crate::support::{Ran, World, lines};

/// What `check` finds for a shard, without notices.
async fn found(world: &World, shard: u16) -> Vec<Value> {
    let report = world.run(&["check"]).await.last();
    let all = report["findings"].as_array().unwrap().iter();
    let shard = ShardList(shard);
    let worth =
        |found: &&Value| found["severity"] != "notice" && shard.is_in(found["shards"].as_str());
    all.filter(worth).cloned().collect()
}

struct ShardList(u16);

impl ShardList {
    /// Whether a list such as `0-3, 7` contains the shard.
    fn is_in(&self, list: Option<&str>) -> bool {
        let within = |part: &str| {
            let (first, last) = part
                .trim()
                .split_once('-')
                .unwrap_or((part.trim(), part.trim()));
            (first.parse().unwrap()..=last.parse::<u16>().unwrap()).contains(&self.0)
        };
        list.is_some_and(|list| list.split(',').any(within))
    }
}

async fn insert(world: &World, host: usize, shard: u16, name: &str) {
    let sql = format!("INSERT INTO shard_{shard:04}.users (name) VALUES ($1)");
    world
        .servers
        .app(host)
        .await
        .execute(&sql, &[&name])
        .await
        .unwrap();
}

async fn names(world: &World, host: usize, schema: &str) -> String {
    let sql = format!("SELECT name FROM {schema}.users ORDER BY name");
    lines(&world.servers.app(host).await, &sql)
        .await
        .trim()
        .replace('\n', " ")
}

/// Moves a shard, kills the mover there (unless there is no failpoint), and returns the move's ID.
async fn killed(world: &World, shard: u16, mode: &str, failpoint: &str) -> String {
    let shard = shard.to_string();
    let args = ["move", &shard, "--to", "db2", "--mode", mode, "--yes"];
    if failpoint.is_empty() {
        return world.run(&args).await.ended(0).id();
    }
    world
        .run_until(&args, &format!("{failpoint}=kill"))
        .await
        .ended(-9)
        .id()
}

async fn repair(world: &World, shard: u16, more: &[&str]) -> Ran {
    let shard = shard.to_string();
    let args = [&["moves", "repair", &shard][..], more].concat();
    world.run(&args).await
}

/// Checks that the application can use the shard on this host, also by its map, and that no finding
/// is left.
async fn is_well(world: &World, host: usize, shard: u16) {
    assert_eq!(world.state(host, shard).await, "serving", "shard {shard}");
    assert_eq!(world.host_of(shard), host, "shard {shard}");
    let router = world.router().await;
    router
        .by_key(shard)
        .execute("INSERT INTO {shard}.users (name) VALUES ('z')", &[])
        .await
        .unwrap();
    let stranger = "INSERT INTO {shard}.photos (user_id, title) VALUES (-1, 'x')";
    let refused = router
        .by_key(shard)
        .execute(stranger, &[])
        .await
        .unwrap_err();
    assert!(format!("{refused:?}").contains("23503"), "{refused:?}");
    let left: Vec<Value> = found(world, shard).await;
    let left: Vec<_> = left
        .iter()
        .filter(|found| found["code"] != "not_audited" && found["code"] != "leftover")
        .collect();
    assert!(left.is_empty(), "shard {shard}: {left:?}");
}

/// Where a blocking move and an online one are killed before their source has decided.
const BEFORE: [(&str, &str); 10] = [
    ("blocking", "after claim"),
    ("blocking", "after prepare"),
    ("blocking", "after swap"),
    ("blocking", "after copied"),
    ("online", "after claim"),
    ("online", "after prepare"),
    ("online", "after loaded"),
    ("online", "after catch-up"),
    ("online", "after swap"),
    ("online", "after drain"),
];

/// Triggers in every state on a table of an old copy, which end whatever runs them.
const TRAPS: &str = "
    CREATE SCHEMA traps;
    CREATE FUNCTION traps.trap() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'a \
    trap'; END $$;
    CREATE TRIGGER a BEFORE TRUNCATE ON shard_0001__left_e1.cache FOR EACH STATEMENT EXECUTE \
    FUNCTION traps.trap();
    CREATE TRIGGER b BEFORE TRUNCATE ON shard_0001__left_e1.cache FOR EACH STATEMENT EXECUTE \
    FUNCTION traps.trap();
    CREATE TRIGGER c BEFORE TRUNCATE ON shard_0001__left_e1.cache FOR EACH STATEMENT EXECUTE \
    FUNCTION traps.trap();
    CREATE TRIGGER d BEFORE TRUNCATE ON shard_0001__left_e1.cache FOR EACH STATEMENT EXECUTE \
    FUNCTION traps.trap();
    ALTER TABLE shard_0001__left_e1.cache ENABLE ALWAYS TRIGGER b, ENABLE REPLICA TRIGGER c, \
    DISABLE TRIGGER d";

on_each_version! {
    /// The source is restored to before it decided, in each phase of a move: it and the target
    /// serve the shard. The source stops serving it, and the rows that it took in that time are
    /// kept.
    async fn a_source_that_has_lost_its_decision(version) {
        let world = World::new(&[version, version], 22).await;
        let mut moves = Vec::new();
        for (shard, (mode, failpoint)) in (0..).zip(BEFORE) {
            insert(&world, 0, shard, "a").await;
            moves.push(killed(&world, shard, mode, failpoint).await);
        }
        insert(&world, 0, 10, "a").await;
        tokio::task::block_in_place(|| world.servers.back_up(0));
        for id in &moves {
            world.run(&["moves", "resume", id]).await.ended(0);
        }
        killed(&world, 10, "online", "").await;
        for shard in 0..=10 {
            insert(&world, 1, shard, "there").await;
        }
        tokio::task::block_in_place(|| world.servers.restore(0));

        let db1 = world.servers.app(0).await;
        for shard in 0..=10 {
            let closed = world.state(0, shard).await == "fenced";
            if !closed {
                insert(&world, 0, shard, "wrong").await;
            }
            let alarms = found(&world, shard).await;
            assert_eq!(
                (alarms.len(), &alarms[0]["code"]),
                (1, &"served_twice".into()),
                "{shard}: \
                {alarms:?}"
            );
            let remedy = alarms[0]["remedy"].as_str().unwrap();
            assert!(
                remedy.contains("`pgshard moves repair SHARD --plan`"),
                "{alarms:?}"
            );
            let before = world.all_about(shard).await;
            let plan = repair(&world, shard, &["--plan"]).await.ended(0).last();
            assert_eq!(
                (&plan["repair"], &plan["done"]),
                (&"do".into(), &false.into()),
                "{plan}"
            );
            let risk = plan["ways"][0]["at_risk"][0].as_str().unwrap();
            assert!(
                risk.contains(&format!("shard_{shard:04}__left_e1 on db1 only")),
                "{plan}"
            );
            // A repair that dies has done nothing, or everything.
            let args = ["moves", "repair", &shard.to_string(), "--yes"];
            world
                .run_until(&args, "after stand down=kill")
                .await
                .ended(-9);
            assert_eq!(world.all_about(shard).await, before);
            repair(&world, shard, &["--yes"]).await.ended(0);
            is_well(&world, 1, shard).await;
            assert_eq!(
                names(&world, 1, &format!("shard_{shard:04}")).await,
                "a there z"
            );
            let kept = if closed { "a" } else { "a wrong" };
            assert_eq!(
                names(&world, 0, &format!("shard_{shard:04}__left_e1")).await,
                kept
            );
            let met = db1
                .query(&format!("SELECT * FROM shard_{shard:04}.users"), &[])
                .await
                .unwrap_err();
            assert_eq!(met.code().unwrap().code(), "SH001");
            let again = repair(&world, shard, &["--yes"]).await.ended(0).last();
            assert_eq!(again["repair"], "fine", "{again}");
        }
        world.run(&["moves", "gc"]).await.ended(0);
        // The rows that the wrong host took are dropped only on an explicit command.
        let kept = "SELECT DISTINCT move_id::text FROM pgshard.move WHERE phase = 'kept' ORDER BY \
            1";
        for id in lines(&db1, kept).await.lines() {
            world
                .run(&["moves", "complete", id, "--yes"])
                .await
                .ended(4);
            world
                .run(&["moves", "complete", id, "--unaudited", "--yes"])
                .await
                .ended(0);
        }
        world.run(&["check"]).await.ended(0);
        let slots = "SELECT slot_name::text FROM pg_replication_slots";
        assert_eq!(
            lines(&db1, slots).await + &lines(&world.servers.app(1).await, slots).await,
            ""
        );
        world
            .run(&["move", "0-10", "--to", "db1", "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }
}

/// What the target has when it is backed up, and how far the move is when the backup is restored;
/// and last, whether the old copy was fed.
const AFTER: [(&str, &str, &str, bool); 13] = [
    ("blocking", "none", "after decide", false),
    ("blocking", "none", "", false),
    ("blocking", "after prepare", "before publish", false),
    ("blocking", "after prepare", "", false),
    ("blocking", "after decide", "after decide", false),
    ("blocking", "after decide", "", false),
    ("online", "none", "after decide", false),
    ("online", "none", "", false),
    ("online", "after loaded", "before publish", false),
    ("online", "after drain", "", false),
    ("online", "after decide", "after decide", false),
    ("online", "after decide", "", false),
    ("online", "after decide", "", true),
];

/// Continues a move during which the target was backed up to the phase in which the backup is
/// restored.
async fn goes_on(
    world: &World,
    shard: u16,
    case: (&str, &str, &str, bool),
    id: Option<&str>,
) -> String {
    let (mode, at_backup, end, fed) = case;
    let id = match id {
        None => killed(world, shard, mode, end).await,
        Some(id) if at_backup == end => return id.to_owned(),
        Some(id) if end.is_empty() => {
            world.run(&["moves", "resume", id]).await.ended(0);
            id.to_owned()
        }
        Some(id) => {
            world
                .run_until(&["moves", "resume", id], &format!("{end}=kill"))
                .await
                .ended(-9);
            id.to_owned()
        }
    };
    if end != "after decide" {
        insert(world, 1, shard, "there").await;
    }
    if fed {
        let mut feed = world.command(&["moves", "feed", &id], &[]).spawn().unwrap();
        let copy = format!("shard_{shard:04}__left_e1");
        while names(world, 0, &copy).await != "a there" {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        feed.kill().await.unwrap();
    }
    id
}

on_each_version! {
    /// The target is restored to before it had opened the shard, or before it had any of it. What
    /// it still has is opened, what was fed to the old copy is served from there, and otherwise the
    /// old copy is taken back once the operator gives the target up. Until then no command gives
    /// advice that cannot work.
    async fn a_target_that_has_lost_its_open(version) {
        let world = World::new(&[version, version], 26).await;
        let mut moves = Vec::new();
        for (shard, (mode, at_backup, ..)) in (0..).zip(AFTER) {
            insert(&world, 0, shard, "a").await;
            moves.push(match at_backup {
                "none" => None,
                _ => Some(killed(&world, shard, mode, at_backup).await),
            });
        }
        tokio::task::block_in_place(|| world.servers.back_up(1));
        let mut ids = Vec::new();
        for (shard, case) in (0..).zip(AFTER) {
            ids.push(goes_on(&world, shard, case, moves[usize::from(shard)].as_deref()).await);
        }
        tokio::task::block_in_place(|| world.servers.restore(1));

        for (shard, (_, at_backup, end, fed)) in (0..).zip(AFTER) {
            let (whole, id) = (at_backup == "after decide", &ids[usize::from(shard)]);
            let before = world.all_about(shard).await;
            let remedy = format!("moves repair {shard} --plan");
            let told = found(&world, shard).await;
            let code = if at_backup == "none" {
                "served_nowhere"
            } else {
                "not_opened"
            };
            assert_eq!(
                (told.len(), &told[0]["code"]),
                (1, &code.into()),
                "{shard}: {told:?}"
            );
            if end.is_empty() {
                assert!(
                    told[0]["remedy"].as_str().unwrap().contains("moves repair"),
                    "{told:?}"
                );
                for args in [
                    &["moves", "resume", id][..],
                    &["moves", "rollback", id, "--yes"],
                ] {
                    let refused = world.run(args).await;
                    assert!(
                        refused.ended(4).stderr.contains(&remedy),
                        "{}",
                        refused.stderr
                    );
                }
                let refused = world
                    .run(&["moves", "complete", id, "--unaudited", "--yes"])
                    .await;
                assert!(
                    refused.ended(4).stderr.contains(&remedy),
                    "{}",
                    refused.stderr
                );
            } else if !whole {
                let stuck = world.run(&["moves", "resume", id]).await;
                assert!(stuck.ended(1).stderr.contains(&remedy), "{}", stuck.stderr);
            }
            if end.is_empty() {
                assert_eq!(world.all_about(shard).await, before, "{shard}");
            }
            let to = if whole && !fed {
                repair(&world, shard, &["--yes"]).await.ended(0);
                1
            } else if fed {
                repair(&world, shard, &["--yes"]).await.ended(0);
                0
            } else {
                let asked = repair(&world, shard, &["--yes"]).await;
                let ways = asked.ended(4).last()["ways"].take();
                assert_eq!(ways[0]["give_up"], serde_json::json!(["db2"]), "{ways}");
                repair(&world, shard, &["--give-up", "db2", "--yes"])
                    .await
                    .ended(0);
                0
            };
            // It drops nothing that is all that is left of a shard.
            if shard == 10 {
                world.run(&["moves", "gc"]).await.ended(0);
            }
            if to == 1 && !end.is_empty() {
                world.run(&["moves", "resume", id]).await.ended(0);
            }
            is_well(&world, to, shard).await;
            let rows = if fed { "a there z" } else { "a z" };
            assert_eq!(
                names(&world, to, &format!("shard_{shard:04}")).await,
                rows,
                "{shard}"
            );
        }
        world.run(&["moves", "gc"]).await.ended(0);
        world.run(&["check", "--ddl"]).await.ended(0);
        // Each can be moved, and rolled back, like any other.
        let back = world
            .run(&["move", "0,8,12", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        world
            .run(&["moves", "rollback", &back, "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }

    /// A target that is declared gone, and comes back nevertheless; an empty one; then a source
    /// that is gone before it had reported whether it had decided.
    async fn a_host_that_is_gone(version) {
        let world = World::new(&[version, version], 12).await;
        for shard in 0..6 {
            insert(&world, 0, shard, "a").await;
        }
        // In an old copy, unlogged tables have rows from before the move.
        for shard in 0..2 {
            let cached = format!(
                "CREATE UNLOGGED TABLE shard_{shard:04}.cache (id int PRIMARY KEY);
                INSERT INTO shard_{shard:04}.cache VALUES (1)"
            );
            world
                .servers
                .app(0)
                .await
                .batch_execute(&cached)
                .await
                .unwrap();
        }
        killed(&world, 0, "online", "").await;
        killed(&world, 1, "blocking", "after decide").await;
        insert(&world, 1, 0, "there").await;
        // A role with TRIGGER there may have set a trap in that time. Nothing else runs it either.
        world
            .servers
            .app(0)
            .await
            .batch_execute(TRAPS)
            .await
            .unwrap();
        tokio::task::block_in_place(|| world.servers.server(1).stop(StopMode::Immediate)).unwrap();
        for shard in [0, 1] {
            repair(&world, shard, &["--yes"]).await.ended(4);
            repair(&world, shard, &["--give-up", "db2", "--yes"])
                .await
                .ended(0);
            assert_eq!(
                (world.state(0, shard).await.as_str(), world.host_of(shard)),
                ("serving", 0)
            );
            insert(&world, 0, shard, "b").await;
        }
        let db1 = world.servers.app(0).await;
        let cached = "SELECT id::text FROM shard_0000.cache UNION ALL SELECT id::text FROM \
            shard_0001.cache";
        assert_eq!(lines(&db1, cached).await, "");
        let traps = "SELECT concat_ws(' ', tgname, tgenabled) FROM pg_trigger
            WHERE tgrelid = 'shard_0001.cache'::regclass ORDER BY 1";
        assert_eq!(lines(&db1, traps).await, "a O\nb A\nc R\nd D\n");
        db1.batch_execute("DROP SCHEMA traps CASCADE")
            .await
            .unwrap();
        tokio::task::block_in_place(|| world.servers.server(1).start()).unwrap();
        assert_eq!(found(&world, 0).await[0]["code"], "served_twice");
        repair(&world, 0, &["--yes"]).await.ended(0);
        assert_eq!(names(&world, 1, "shard_0000__left_e2").await, "a there");
        world.run(&["moves", "gc"]).await.ended(0);
        for shard in [0, 1] {
            is_well(&world, 0, shard).await;
            assert_eq!(
                names(&world, 0, &format!("shard_{shard:04}")).await,
                "a b z"
            );
        }

        let mut left = Vec::new();
        for (shard, (mode, failpoint)) in (2..).zip([
            ("blocking", "after copied"),
            ("online", "after drain"),
            ("online", "after loaded"),
        ]) {
            left.push(killed(&world, shard, mode, failpoint).await);
        }
        tokio::task::block_in_place(|| world.servers.server(0).stop(StopMode::Immediate)).unwrap();
        repair(&world, 4, &["--yes"]).await.ended(1);
        repair(&world, 4, &["--give-up", "db1", "--yes"])
            .await
            .ended(1);
        for shard in [2, 3] {
            let ways = repair(&world, shard, &["--yes"]).await.ended(4).last()["ways"].take();
            assert_eq!(
                (&ways[0]["give_up"], &ways[0]["host"]),
                (&serde_json::json!(["db1"]), &"db2".into()),
                "{ways}"
            );
            repair(&world, shard, &["--give-up", "db1", "--yes"])
                .await
                .ended(0);
            insert(&world, 1, shard, "b").await;
        }
        tokio::task::block_in_place(|| world.servers.server(0).start()).unwrap();
        for shard in [2, 3] {
            repair(&world, shard, &["--yes"]).await.ended(0);
            is_well(&world, 1, shard).await;
            assert_eq!(
                names(&world, 1, &format!("shard_{shard:04}")).await,
                "a b z"
            );
        }
        world.run(&["moves", "resume", &left[2]]).await.ended(0);
        is_well(&world, 1, 4).await;
        world.run(&["moves", "gc"]).await.ended(0);
        world.audit_places().await;
    }

    /// A rollback's source that has lost its decision; and one that is gone while the old copy
    /// catches up.
    async fn a_rollback_without_its_source_is_repaired(version) {
        let world = World::new(&[version, version], 8).await;
        let mut moves = Vec::new();
        for shard in 0..3 {
            insert(&world, 0, shard, "a").await;
            moves.push(killed(&world, shard, "online", "").await);
            insert(&world, 1, shard, "there").await;
        }
        let rollback = async |id: &str, failpoint: &str| {
            let ran = world
                .run_until(
                    &["moves", "rollback", id, "--yes"],
                    &format!("{failpoint}=kill"),
                )
                .await;
            ran.ended(-9).id()
        };
        let back = rollback(&moves[0], "after catch-up").await;
        let swapped = rollback(&moves[1], "after swap").await;
        tokio::task::block_in_place(|| world.servers.back_up(1));
        for id in [&back, &swapped] {
            world.run(&["moves", "resume", id]).await.ended(0);
        }
        tokio::task::block_in_place(|| world.servers.restore(1));
        for shard in [0, 1] {
            insert(&world, 0, shard, "b").await;
            assert_eq!(found(&world, shard).await[0]["code"], "served_twice");
            repair(&world, shard, &["--yes"]).await.ended(0);
            is_well(&world, 0, shard).await;
            assert_eq!(
                names(&world, 0, &format!("shard_{shard:04}")).await,
                "a b there z"
            );
        }
        world.run(&["moves", "gc"]).await.ended(0);

        rollback(&moves[2], "after catch-up").await;
        tokio::task::block_in_place(|| world.servers.server(1).stop(StopMode::Immediate)).unwrap();
        repair(&world, 2, &["--yes"]).await.ended(4);
        repair(&world, 2, &["--give-up", "db2", "--yes"])
            .await
            .ended(0);
        assert_eq!(names(&world, 0, "shard_0002").await, "a there");
        tokio::task::block_in_place(|| world.servers.server(1).start()).unwrap();
        repair(&world, 2, &["--yes"]).await.ended(0);
        is_well(&world, 0, 2).await;
        world.run(&["moves", "gc"]).await.ended(0);
        world.audit_places().await;
    }
}
