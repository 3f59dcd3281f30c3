//! Holes that were found when the design was attacked, tried with whole online moves: what the
//! tests of the parts show (`stream`, `fence::holes`) holds for all of them together.

use std::time::Duration;

use pgshard::dev::StopMode;
use tokio::process::Child;

use crate::support::{Ran, World, go_on, lines, never_stopped, other, stopped};

/// A move of shard 0 to db2 that stops itself at a place.
async fn begin(world: &World, place: &str) -> (Child, rustix::process::Pid) {
    let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
    let child = world
        .command(&args, &[("PGSHARD_FAILPOINT", &format!("{place}=stop"))])
        .spawn()
        .unwrap();
    let pid = stopped(&child).await;
    (child, pid)
}

/// Runs statements while a move is stopped at each of these places, one after the other, and lets
/// it end.
async fn meanwhile(world: &World, places: &[&str], sql: impl Fn(usize) -> String) {
    let before = lines(
        &world.servers.app(0).await,
        "SELECT state FROM pgshard.shard WHERE shard_id = 0",
    )
    .await;
    assert_eq!(before, "serving\n");
    for (number, place) in places.iter().enumerate() {
        let (child, pid) = begin(world, place).await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(&sql(number))
            .await
            .unwrap_or_else(|error| panic!("{place}: {error:?}"));
        let id = lines(
            &world.servers.app(0).await,
            "SELECT move_id::text FROM pgshard.move WHERE phase NOT IN ('kept', 'completed', \
                'aborted')",
        )
        .await;
        if number + 1 == places.len() {
            go_on(pid);
            Ran::of(child).await.ended(0);
        } else {
            drop(child);
            world.run(&["moves", "abort", id.trim()]).await.ended(0);
        }
    }
}

/// What a host commits is on its disk only after some time, unless the commit waits for that.
async fn flush_late(world: &World, host: usize) {
    let db = world.servers.superuser(host).await;
    db.batch_execute("ALTER SYSTEM SET wal_writer_delay = '10s'")
        .await
        .unwrap();
    db.batch_execute("SELECT pg_reload_conf()").await.unwrap();
}

/// Lets a mover that has stopped itself continue; if its move has not ended then, it is resumed.
async fn to_the_end(world: &World, child: Child, pid: rustix::process::Pid) {
    go_on(pid);
    let ran = never_stopped(child).await;
    if ran.code() != 0 {
        world.run(&["moves", "resume", &ran.id()]).await.ended(0);
    }
}

/// All rows of a table, on one host.
async fn rows(world: &World, host: usize, table: &str) -> String {
    let sql = format!("SELECT t::text FROM shard_0000.{table} t ORDER BY 1");
    lines(&world.servers.app(host).await, &sql).await
}

/// A world with this table in its shards in addition.
async fn world(version: u32, tables: &str) -> World {
    let tables = format!(
        "CREATE TABLE {{shard}}.users (id bigint PRIMARY KEY DEFAULT {{shard}}.next_id(), name \
            text NOT NULL); {tables}"
    );
    World::with_tables(
        &[version, other(version)],
        2,
        &[("0001_tables.sql", &tables)],
    )
    .await
}

/// Objects outside that reach a shard's table by its OID: how each is created, and how it is
/// dropped.
const BOUND: [(&str, &str); 6] = [
    (
        "CREATE FUNCTION outside.atomic() RETURNS void BEGIN ATOMIC INSERT INTO shard_0000.users \
            (name) VALUES ('x'); \
         END",
        "DROP FUNCTION outside.atomic",
    ),
    (
        "CREATE VIEW outside.view AS SELECT * FROM shard_0000.users",
        "DROP VIEW outside.view",
    ),
    (
        "CREATE RULE r AS ON INSERT TO outside.plain DO INSTEAD INSERT INTO shard_0000.users \
            (name) VALUES ('x')",
        "DROP RULE r ON outside.plain",
    ),
    (
        "CREATE TABLE outside.follower (id bigint REFERENCES shard_0000.users ON DELETE CASCADE)",
        "DROP TABLE outside.follower",
    ),
    (
        "CREATE TABLE outside.counted (n bigint DEFAULT nextval('shard_0000.tickets'))",
        "DROP TABLE outside.counted",
    ),
    (
        "ALTER TABLE outside.parent ATTACH PARTITION shard_0000.part FOR VALUES IN (1)",
        "ALTER TABLE outside.parent DETACH PARTITION shard_0000.part",
    ),
];

on_each_version! {
    /// What is bound by OID is not stopped by the signpost. If it is created long after the plan
    /// was judged, it stops the move behind the fence, and the source continues to serve; without
    /// it the move continues.
    async fn what_is_bound_by_oid_later_stops_the_move(version) {
        let world = world(
            version,
            "CREATE SEQUENCE {shard}.tickets; CREATE TABLE {shard}.part (k int \
                PRIMARY KEY)",
        )
        .await;
        let db1 = world.servers.app(0).await;
        db1.batch_execute(
            "CREATE SCHEMA outside; CREATE TABLE outside.plain (n int);
            CREATE TABLE outside.parent (k int NOT NULL) PARTITION BY LIST (k)",
        )
        .await
        .unwrap();
        let mut args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"]
            .map(str::to_owned)
            .to_vec();
        for (made, gone) in BOUND {
            let args_now: Vec<&str> = args.iter().map(String::as_str).collect();
            let child = world
                .command(&args_now, &[("PGSHARD_FAILPOINT", "before swap=stop")])
                .spawn()
                .unwrap();
            let pid = stopped(&child).await;
            db1.batch_execute(made).await.unwrap();
            go_on(pid);
            let ran = never_stopped(child).await;
            ran.ended(7);
            assert!(ran.stderr.contains("outside."), "{made}: {}", ran.stderr);
            assert_eq!(world.state(0, 0).await, "serving", "{made}");
            db1.batch_execute(gone).await.unwrap();
            let id = lines(&db1, "SELECT DISTINCT move_id::text FROM pgshard.move").await;
            args = ["moves", "resume", id.trim()].map(str::to_owned).to_vec();
        }
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        world.run(&args).await.ended(0);
        world.audit_places().await;
    }

    /// A table is created and filled in a transaction over the swap: the fence waits for it, the
    /// move sees that the shard is not what it has built, and the source serves on, with the table.
    async fn a_table_created_over_the_swap_stops_the_move(version) {
        let world = world(version, "").await;
        let writer = world.servers.app(0).await;
        let (child, pid) = begin(&world, "before swap").await;
        writer
            .batch_execute(
                "BEGIN; CREATE TABLE shard_0000.fresh AS SELECT 'late'::text AS \
            name",
            )
            .await
            .unwrap();
        go_on(pid);
        tokio::time::sleep(Duration::from_millis(300)).await;
        writer.batch_execute("COMMIT").await.unwrap();
        let ran = never_stopped(child).await;
        assert!(
            [0, 5, 7].contains(&ran.code()),
            "{}\n{}",
            ran.stdout,
            ran.stderr
        );
        if ran.code() != 0 {
            assert_eq!(world.state(0, 0).await, "serving");
            world.run(&["moves", "abort", &ran.id()]).await.ended(0);
            world
                .run(&["move", "0", "--to", "db2", "--yes"])
                .await
                .ended(0);
        }
        assert_eq!(rows(&world, 1, "fresh").await, "(late)\n");
        world.audit_places().await;
    }

    /// The marker is applied and visible at the target, and the target crashes before, or after, it
    /// is durable: what is lost is not decided.
    async fn a_marker_that_is_not_durable_decides_nothing(version) {
        let world = world(version, "").await;
        world
            .servers
            .superuser(1)
            .await
            .batch_execute("ALTER ROLE app SET synchronous_commit = off")
            .await
            .unwrap();
        flush_late(&world, 1).await;
        for (place, to, from) in [("before ready", "db2", 0), ("after ready", "db2", 0)] {
            if world.host_of(0) != from {
                world
                    .run(&["move", "0", "--to", "db1", "--yes"])
                    .await
                    .ended(0);
            }
            let insert = "INSERT INTO shard_0000.users (name) SELECT 'late' FROM \
                generate_series(1, 100)";
            world
                .servers
                .app(from)
                .await
                .batch_execute(insert)
                .await
                .unwrap();
            let before = rows(&world, from, "users").await;
            let args = ["move", "0", "--to", to, "--mode", "online", "--yes"];
            let stop = format!("{place}=stop");
            let child = world
                .command(&args, &[("PGSHARD_FAILPOINT", &stop)])
                .spawn()
                .unwrap();
            let pid = stopped(&child).await;
            tokio::task::block_in_place(|| {
                world.servers.server(1 - from).restart(StopMode::Immediate)
            })
            .unwrap();
            to_the_end(&world, child, pid).await;
            assert_eq!(rows(&world, 1 - from, "users").await, before, "{place}");
            world.audit_places().await;
        }
    }

    /// The source crashes right after a swap, and the commit of the swap does not wait for the
    /// disk. If it is lost, the source serves again, and what is written then is moved too when the
    /// move is resumed.
    async fn a_swap_that_is_lost(version) {
        let world = world(version, "").await;
        for host in 0..2 {
            flush_late(&world, host).await;
        }
        let mut lost = 0;
        for mode in ["online", "blocking", "online", "blocking"] {
            let from = world.host_of(0);
            let insert = "INSERT INTO shard_0000.users (name) SELECT 'late' FROM \
                generate_series(1, 100)";
            world
                .servers
                .app(from)
                .await
                .batch_execute(insert)
                .await
                .unwrap();
            let mut before = rows(&world, from, "users").await;
            let args = [
                "move",
                "0",
                "--to",
                &format!("db{}", 2 - from),
                "--mode",
                mode,
                "--yes",
            ];
            let child = world
                .command(&args, &[("PGSHARD_FAILPOINT", "after swap=stop")])
                .spawn()
                .unwrap();
            let pid = stopped(&child).await;
            tokio::task::block_in_place(|| world.servers.server(from).restart(StopMode::Immediate))
                .unwrap();
            if world.state(from, 0).await == "serving" {
                lost += 1;
                world
                    .servers
                    .app(from)
                    .await
                    .batch_execute(insert)
                    .await
                    .unwrap();
                before = rows(&world, from, "users").await;
            }
            to_the_end(&world, child, pid).await;
            assert_eq!(rows(&world, 1 - from, "users").await, before, "{mode}");
            world.audit_places().await;
        }
        // Whatever else is committed may take a swap along to the disk.
        assert!(lost > 0, "a swap is lost");
    }

    /// The target crashes right after its open, and the commit of the open does not wait for the
    /// disk. If it is lost, the target is opened again: by the mover itself, or by a resume if the
    /// mover died as well. What was written there before the crash is durable, and then so is the
    /// open.
    async fn an_open_that_is_lost(version) {
        let world = world(version, "").await;
        for host in 0..2 {
            flush_late(&world, host).await;
        }
        let (mut lost, mut kept) = (0, 0);
        for (turn, mode) in [
            "online", "blocking", "online", "blocking", "online", "online",
        ]
        .into_iter()
        .enumerate()
        {
            let from = world.host_of(0);
            let to = 1 - from;
            let mut written = rows(&world, from, "users").await;
            let args = [
                "move",
                "0",
                "--to",
                &format!("db{}", to + 1),
                "--mode",
                mode,
                "--yes",
            ];
            let child = world
                .command(&args, &[("PGSHARD_FAILPOINT", "after open=stop")])
                .spawn()
                .unwrap();
            let pid = stopped(&child).await;
            assert_eq!(world.state(to, 0).await, "serving");
            let with_a_write = turn >= 4;
            if with_a_write {
                let insert = "INSERT INTO shard_0000.users (name) VALUES ('early')";
                world
                    .servers
                    .app(to)
                    .await
                    .batch_execute(insert)
                    .await
                    .unwrap();
                written = rows(&world, to, "users").await;
            }
            tokio::task::block_in_place(|| world.servers.server(to).restart(StopMode::Immediate))
                .unwrap();
            match world.state(to, 0).await.as_str() {
                "serving" => kept += 1,
                _ => lost += 1,
            }
            assert!(!with_a_write || world.state(to, 0).await == "serving");
            if turn % 2 == 0 {
                go_on(pid);
                never_stopped(child).await.ended(0);
            } else {
                rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
                never_stopped(child).await.ended(-9);
                world.run(&["moves", "resume"]).await.ended(0);
            }
            assert_eq!(rows(&world, to, "users").await, written, "{mode}");
            world.audit_places().await;
        }
        assert!(
            lost > 0 && kept > 0,
            "{lost} opens are lost, {kept} are not"
        );
        // The map names no host that could lose its open.
        let to = 1 - world.host_of(0);
        let args = [
            "move",
            "0",
            "--to",
            &format!("db{}", to + 1),
            "--mode",
            "online",
            "--yes",
        ];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "after publish=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        tokio::task::block_in_place(|| world.servers.server(to).restart(StopMode::Immediate))
            .unwrap();
        assert_eq!(world.state(to, 0).await, "serving");
        to_the_end(&world, child, pid).await;
    }

    /// Rows that break a foreign key, written while its triggers were off: they move, the key is
    /// not validated, and the move ends.
    async fn rows_that_break_a_foreign_key(version) {
        let tables = "CREATE TABLE {shard}.p (id int PRIMARY KEY);
            CREATE TABLE {shard}.plain (id int PRIMARY KEY, p int REFERENCES {shard}.p);
            CREATE TABLE {shard}.whole (id int PRIMARY KEY, p int REFERENCES {shard}.p) PARTITION \
            BY RANGE (id);
            CREATE TABLE {shard}.part PARTITION OF {shard}.whole FOR VALUES FROM (0) TO (10)";
        let world = world(version, tables).await;
        let orphans = "SET session_replication_role = replica; SET search_path = shard_0000;
            INSERT INTO plain VALUES (1, 77); INSERT INTO whole VALUES (1, 78)";
        world
            .servers
            .superuser(0)
            .await
            .batch_execute(orphans)
            .await
            .unwrap();
        let ran = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await;
        let said = &ran.ended(0).stderr;
        assert!(
            said.contains("mend the") && said.contains("plain_p_fkey"),
            "{said}"
        );
        assert_eq!(
            rows(&world, 1, "plain").await + &rows(&world, 1, "whole").await,
            "(1,77)\n(1,78)\n"
        );
        let insert = "INSERT INTO shard_0000.whole VALUES (2, 79)";
        world
            .servers
            .app(1)
            .await
            .batch_execute(insert)
            .await
            .expect_err(
                "a new row that breaks \
            it is refused",
            );
        if version >= 18 {
            let refused = world.run(&["moves", "rollback", &ran.id(), "--yes"]).await;
            assert!(
                refused.ended(4).stderr.contains(
                    "foreign keys was not \
                validated"
                ),
                "{}",
                refused.stderr
            );
        }
        world
            .run(&["moves", "complete", &ran.id(), "--yes"])
            .await
            .ended(0);
        world.audit_places().await;
    }

    /// Row level security moves with its table, and on neither host does it show a tenant more than
    /// it should. If it is forced, it would hide rows from the mover's role, unless that may bypass
    /// it.
    async fn row_level_security_moves_with_its_table(version) {
        let tables = "CREATE TABLE {shard}.hidden (id int PRIMARY KEY, tenant text NOT NULL);
            ALTER TABLE {shard}.hidden ENABLE ROW LEVEL SECURITY;
            CREATE TABLE {shard}.tenants (name text PRIMARY KEY);
            CREATE POLICY own ON {shard}.hidden USING (tenant IN (SELECT name FROM {shard}.tenants)
                AND tenant = current_setting('app.tenant', true))";
        let world = world(version, tables).await;
        for host in [0, 1] {
            let role = "DO $$ BEGIN CREATE ROLE tenant LOGIN; EXCEPTION WHEN duplicate_object THEN \
                END $$";
            world
                .servers
                .superuser(host)
                .await
                .batch_execute(role)
                .await
                .unwrap();
        }
        let grants = "GRANT USAGE ON SCHEMA shard_0000 TO tenant;
            GRANT SELECT ON ALL TABLES IN SCHEMA shard_0000 TO tenant;
            INSERT INTO shard_0000.tenants VALUES ('a'), ('b');
            INSERT INTO shard_0000.hidden
                SELECT n, CASE WHEN n % 3 = 0 THEN 'a' ELSE 'b' END FROM generate_series(1, 10) n";
        world
            .servers
            .app(0)
            .await
            .batch_execute(grants)
            .await
            .unwrap();
        let seen = async |host: usize, schema: &str| -> i64 {
            let client = world.servers.superuser(host).await;
            client
                .batch_execute("SET ROLE tenant; SET app.tenant = 'a'")
                .await
                .unwrap();
            client
                .query_one(
                    &format!(
                        "SELECT count(*) FROM \
                {schema}.hidden"
                    ),
                    &[],
                )
                .await
                .unwrap()
                .get(0)
        };
        assert_eq!(seen(0, "shard_0000").await, 3);
        let force = "ALTER TABLE shard_0000.hidden FORCE ROW LEVEL SECURITY";
        world
            .servers
            .app(0)
            .await
            .batch_execute(force)
            .await
            .unwrap();
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let refused = world.run(&args).await;
        assert!(
            refused.ended(4).stderr.contains("ALTER ROLE app BYPASSRLS"),
            "{}",
            refused.stderr
        );
        for host in [0, 1] {
            world
                .servers
                .superuser(host)
                .await
                .batch_execute("ALTER ROLE app BYPASSRLS")
                .await
                .unwrap();
        }
        let id = world.run(&args).await.ended(0).id();
        assert_eq!(
            (
                seen(0, "shard_0000__left_e1").await,
                seen(1, "shard_0000").await
            ),
            (3, 3)
        );
        let insert = "INSERT INTO shard_0000.hidden VALUES (11, 'a'), (12, 'b')";
        world
            .servers
            .app(1)
            .await
            .batch_execute(insert)
            .await
            .unwrap();
        let back = world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0)
            .id();
        assert_eq!(
            (
                seen(0, "shard_0000").await,
                seen(1, "shard_0000__left_e2").await
            ),
            (4, 4)
        );
        world
            .run(&["moves", "complete", &back, "--yes"])
            .await
            .ended(0);
        let sql = "SELECT count(*) FROM shard_0000.hidden";
        assert_eq!(
            world
                .servers
                .app(0)
                .await
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            12
        );
        let sql = "SELECT relrowsecurity AND relforcerowsecurity FROM pg_class
            WHERE oid = 'shard_0000.hidden'::regclass";
        assert!(
            world
                .servers
                .app(0)
                .await
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, bool>(0)
        );
        world.audit_places().await;
    }

    /// Keys that change, with values out of line that the stream does not carry, before, during and
    /// after the copy.
    async fn keys_that_change_keep_their_toasted_values(version) {
        let world = world(
            version,
            "CREATE TABLE {shard}.docs (id int PRIMARY KEY, n int NOT NULL DEFAULT 0, body text);
            ALTER TABLE {shard}.docs ALTER body SET STORAGE EXTERNAL",
        )
        .await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(
                "INSERT INTO shard_0000.docs SELECT n, 0, repeat(n::text, 3000) FROM \
                    generate_series(1, 60) n",
            )
            .await
            .unwrap();
        let places = [
            "after slot",
            "after bounds",
            "in a chunk",
            "after chunks",
            "after loaded",
            "after caught up",
            "after preset",
        ];
        meanwhile(&world, &places, |number| {
            let base = (number + 1) * 1000;
            format!(
                "UPDATE shard_0000.docs SET id = id + {base} WHERE id % 7 = {number};
                UPDATE shard_0000.docs SET n = n + 1 WHERE id > {base};
                UPDATE shard_0000.docs SET id = id - {base} WHERE id > {base} AND id % 2 = 0"
            )
        })
        .await;
        pretty_equal(&world, "docs").await;
    }

    /// Rows that refer to each other and unique values that are exchanged in one statement, during
    /// the move.
    async fn self_references_and_swapped_pairs_are_applied(version) {
        let world = world(
            version,
            "CREATE TABLE {shard}.nodes (id int PRIMARY KEY, next int REFERENCES {shard}.nodes
                DEFERRABLE INITIALLY DEFERRED, place int UNIQUE DEFERRABLE INITIALLY DEFERRED)",
        )
        .await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(
                "BEGIN; INSERT INTO shard_0000.nodes VALUES (1, 2, 1), (2, 1, 2), (3, \
                NULL, 3); COMMIT",
            )
            .await
            .unwrap();
        let places = [
            "after slot",
            "after chunks",
            "after loaded",
            "after caught up",
            "after preset",
        ];
        meanwhile(&world, &places, |number| {
            let id = 10 * (number + 1);
            format!(
                "BEGIN; UPDATE shard_0000.nodes SET place = 3 - place WHERE place < 3;
                INSERT INTO shard_0000.nodes VALUES ({id}, {id} + 1, {id}), ({id} + 1, {id}, {id} \
                + 1);
                UPDATE shard_0000.nodes SET place = 2 * {id} + 1 - place WHERE place >= {id}; \
                COMMIT"
            )
        })
        .await;
        pretty_equal(&world, "nodes").await;
        let broken = "INSERT INTO shard_0000.nodes VALUES (5000, 4999, 5000)";
        let error = world
            .servers
            .app(1)
            .await
            .batch_execute(broken)
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "23503");
    }

    /// TRUNCATE at every stage, and changes that are sent when the schema already has another name.
    async fn truncate_is_applied_under_either_name(version) {
        let world = world(
            version,
            "CREATE TABLE {shard}.log (id int PRIMARY KEY, line \
            text)",
        )
        .await;
        world
            .servers
            .app(0)
            .await
            .batch_execute(
                "INSERT INTO shard_0000.log SELECT n, 'old' FROM generate_series(1, \
                100) n",
            )
            .await
            .unwrap();
        let places = [
            "after slot",
            "after bounds",
            "in a chunk",
            "after chunks",
            "after loaded",
            "after caught up",
            "after preset",
        ];
        meanwhile(&world, &places, |number| {
            format!(
                "TRUNCATE shard_0000.log; INSERT INTO shard_0000.log VALUES ({number}, 'new'), \
                    (500, 'x');
                UPDATE shard_0000.log SET line = 'newer', id = id + 1"
            )
        })
        .await;
        pretty_equal(&world, "log").await;
        // A writer commits between swap and marker: what it wrote is decoded under the old copy's
        // name.
        world
            .run(&["move", "0", "--to", "db1", "--yes"])
            .await
            .ended(0);
        let writer = world.servers.app(0).await;
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--mode",
            "online",
            "--yes",
            "--fence-budget-ms",
            "10000",
        ];
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", "before swap=stop")])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        // Not earlier: the slot would wait for it.
        writer
            .batch_execute(
                "BEGIN; UPDATE shard_0000.log SET line = 'late' WHERE id = \
            501",
            )
            .await
            .unwrap();
        go_on(pid);
        while world.state(0, 0).await != "fenced" {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        writer.batch_execute("COMMIT").await.unwrap();
        never_stopped(child).await.ended(0);
        assert!(rows(&world, 1, "log").await.contains("(501,late)"));
        pretty_equal(&world, "log").await;
    }
}

/// A mover sleeps after the drain, a router swaps back, rows are written, another mover fences
/// again: the decision of the first fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mover_that_slept_after_the_drain_decides_nothing() {
    let world = world(18, "").await;
    let lease = ("PGSHARD_LEASE_MS", "1500");
    let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
    let child = world
        .command(&args, &[lease, ("PGSHARD_FAILPOINT", "after drain=stop")])
        .spawn()
        .unwrap();
    let pid = stopped(&child).await;
    assert_eq!(world.state(0, 0).await, "fenced");
    let db1 = world.servers.app(0).await;
    // The router waits for the deadline and swaps back.
    let router = world.router().await;
    router
        .by_key(0)
        .execute("INSERT INTO {shard}.users (name) VALUES ('between')", &[])
        .await
        .unwrap();
    assert_eq!(world.state(0, 0).await, "serving");
    let id = lines(&db1, "SELECT move_id::text FROM pgshard.move").await;
    world
        .run_with(&["moves", "resume", id.trim()], &[lease])
        .await
        .ended(0);
    let before = world.all_about(0).await;
    go_on(pid);
    let woken = never_stopped(child).await;
    assert!(
        [0, 7].contains(&woken.code()),
        "{}\n{}",
        woken.stdout,
        woken.stderr
    );
    assert_eq!(
        world.all_about(0).await,
        before,
        "the one that slept changed something"
    );
    assert!(rows(&world, 1, "users").await.contains("between"));
    world.audit_places().await;
}

/// The source fails over. If every commit waits for the standby, the decision is there. If the
/// standby lacks the fence, both hosts serve, which is an alarm; routers follow the larger epoch,
/// and no command undoes anything by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standby_without_the_fence_is_an_alarm() {
    let world = World::with_spare(&[18, 15, 18], 4).await;
    world.servers.make_standby(18, 2, 0);
    let db1 = world.servers.superuser(0).await;
    let wait_for = async |names: &str| {
        db1.batch_execute(&format!(
            "ALTER SYSTEM SET synchronous_standby_names = '{names}'"
        ))
        .await
        .unwrap();
        db1.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    };
    wait_for("*").await;
    let sync = "SELECT EXISTS (SELECT FROM pg_stat_replication WHERE sync_state = 'sync')";
    while !db1.query_one(sync, &[]).await.unwrap().get::<_, bool>(0) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
    let decided = world
        .run_until(&args, "after decide=kill")
        .await
        .ended(-9)
        .id();
    wait_for("").await;
    tokio::task::block_in_place(|| world.servers.server(2).stop(StopMode::Fast)).unwrap();
    world
        .run(&["move", "1", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0);
    let router = world.router().await;
    router
        .by_key(1)
        .execute("INSERT INTO {shard}.users (name) VALUES ('there')", &[])
        .await
        .unwrap();
    tokio::task::block_in_place(|| {
        world.servers.server(0).stop(StopMode::Immediate).unwrap();
        world.servers.server(2).start().unwrap();
    });
    let promote = "SELECT pg_promote(true, 60)";
    assert!(
        world
            .servers
            .superuser(2)
            .await
            .query_one(promote, &[])
            .await
            .unwrap()
            .get::<_, bool>(0)
    );
    let config = std::fs::read_to_string(&world.config.path).unwrap();
    let [old, new] = [0, 2].map(|host| format!(":{}/", world.servers.server(host).port()));
    assert!(config.contains(&old), "{config}");
    world.write("pgshard.toml", &config.replace(&old, &new));
    assert_eq!(
        (
            world.state(2, 0).await.as_str(),
            world.state(2, 1).await.as_str()
        ),
        ("moved", "serving")
    );
    world.run(&["moves", "resume", &decided]).await.ended(0);
    assert_eq!(world.state(1, 0).await, "serving");
    world.run(&["moves", "gc"]).await.ended(0);
    let checked = world.run(&["check"]).await.ended(1).last();
    let twice = checked["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["code"] == "served_twice");
    assert!(
        twice.is_some_and(|finding| finding["severity"] == "alarm"),
        "{checked}"
    );
    let router = world.router().await;
    let rows = router
        .by_key(1)
        .query("SELECT name FROM {shard}.users", &[])
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);
}

/// Checks that the table on db2, which serves it, is the same as in the copy that db1 has kept.
async fn pretty_equal(world: &World, table: &str) {
    world.audit_places().await;
    let db1 = world.servers.app(0).await;
    let left = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'shard\\_0000\\_\\_left%'
        ORDER BY substring(nspname FROM '[0-9]+$')::int DESC LIMIT 1";
    let left = lines(&db1, left).await;
    let kept = lines(
        &db1,
        &format!("SELECT t::text FROM {}.{table} t ORDER BY 1", left.trim()),
    )
    .await;
    assert_eq!(rows(world, 1, table).await, kept);
    assert!(!kept.is_empty());
}
