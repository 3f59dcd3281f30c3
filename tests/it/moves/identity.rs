//! Tables with rows that the stream cannot identify: an online move lends them a replica identity,
//! while others write, and takes it back however the move ends.

use std::time::Duration;

use tokio_postgres::Client;

use crate::support::{TABLES, World, go_on, lines, never_stopped, other, stopped};

/// No key at all, with equal rows; a unique index instead of a key; a key that may be violated
/// within a transaction; REPLICA IDENTITY NOTHING; a quoted name and an index that is no key,
/// because a column may be null.
const KEYLESS: &str = r#"
    CREATE TABLE {shard}.visits (user_id bigint NOT NULL, page text, seen int NOT NULL DEFAULT 0);
    CREATE TABLE {shard}.members (team bigint NOT NULL, user_id bigint NOT NULL, role text,
        UNIQUE (user_id, team));
    CREATE TABLE {shard}.places (id bigint PRIMARY KEY DEFERRABLE INITIALLY DEFERRED,
        at int NOT NULL);
    CREATE TABLE {shard}.quiet (id bigint PRIMARY KEY, v text);
    ALTER TABLE {shard}.quiet REPLICA IDENTITY NOTHING;
    CREATE TABLE {shard}.hollow ();
    CREATE TABLE {shard}."Odd ""log""" ("When" timestamptz, v int NOT NULL, UNIQUE ("When", v));
"#;

const TABLES_OF_KEYLESS: [&str; 6] = [
    "hollow",
    "visits",
    "members",
    "places",
    "quiet",
    r#""Odd ""log""""#,
];

async fn world(versions: &[u32]) -> World {
    World::with_tables(
        versions,
        4,
        &[("0001_tables.sql", TABLES), ("0002_keyless.sql", KEYLESS)],
    )
    .await
}

/// What a round does to the tables; some of the changed rows are equal to others.
fn round(schema: &str, n: u32) -> String {
    let odd = TABLES_OF_KEYLESS[5];
    format!(
        "INSERT INTO {schema}.visits SELECT {n} % 7, 'p' || {n} % 3, 0 FROM generate_series(1, 3);
         UPDATE {schema}.visits SET seen = seen + 1 WHERE ctid = (SELECT ctid FROM {schema}.visits
            WHERE user_id = {n} % 5 ORDER BY page LIMIT 1);
         DELETE FROM {schema}.visits
            WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.visits ORDER BY user_id, page OFFSET \
            30));
         INSERT INTO {schema}.members VALUES ({n}, {n} % 11, 'new');
         UPDATE {schema}.members SET role = NULL, user_id = user_id + 100 WHERE team = {n} - 2;
         DELETE FROM {schema}.members WHERE team = {n} - 9;
         INSERT INTO {schema}.places VALUES ({n}, 1);
         UPDATE {schema}.places SET id = -id, at = at + 1 WHERE id % 4 = {n} % 4;
         DELETE FROM {schema}.places WHERE abs(id) < {n} - 12;
         INSERT INTO {schema}.quiet VALUES ({n}, NULL);
         UPDATE {schema}.quiet SET v = repeat('x', {n} % 50), id = id + 1000000 WHERE id = {n} - 1;
         DELETE FROM {schema}.quiet WHERE id % 13 = {n} % 13 AND id > 1000000;
         INSERT INTO {schema}.hollow DEFAULT VALUES;
         DELETE FROM {schema}.hollow WHERE ctid = (SELECT min(ctid) FROM {schema}.hollow) AND {n} \
         % 3 = 0;
         INSERT INTO {schema}.{odd} VALUES (NULL, {n} % 4);
         UPDATE {schema}.{odd} SET \"When\" = now() WHERE {n} % 3 = 0
            AND ctid = (SELECT min(ctid) FROM {schema}.{odd} WHERE \"When\" IS NULL);
         DELETE FROM {schema}.{odd} WHERE \"When\" < now() - interval '1 second'"
    )
}

/// Works on shard 0 until its host no longer serves it; gives the number of its last round.
async fn work(client: Client, first: u32) -> u32 {
    let mut n = first;
    loop {
        n += 1;
        if let Err(error) = client.batch_execute(&round("shard_0000", n)).await {
            let code = error.code().map(|code| code.code().to_owned());
            // A round that was planned before the fence finds a signpost in place of its table.
            let of_a_signpost = ["SH001", "55000", "42809", "0A000"];
            assert!(
                code.as_deref()
                    .is_some_and(|code| of_a_signpost.contains(&code)),
                "{error:?}"
            );
            return n;
        }
        // A mover that is not optimized, and does other work, must be able to keep up.
        tokio::time::sleep(Duration::from_millis(30)).await;
    }
}

/// The replica identities of shard 0 where it is served, and what the control schema has recorded
/// about lent ones.
async fn identities(world: &World, host: usize) -> String {
    let sql = "SELECT c.relname::text || ' ' || c.relreplident::text || coalesce(' ' || \
        x.relname::text, '')
            || coalesce(', was ' || l.former, '')
        FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = 'shard_0000'
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisreplident AND c.relreplident = 'i'
        LEFT JOIN pg_class x ON x.oid = i.indexrelid
        LEFT JOIN pgshard.lent_identity l ON l.table_name = c.relname AND l.shard_id = 0
        WHERE c.relkind = 'r' ORDER BY c.relname COLLATE \"C\"";
    lines(&world.servers.app(host).await, sql).await
}

const OWN: &str =
    "Odd \"log\" d\nhollow d\nmembers d\nphotos d\nplaces d\nquiet n\nusers d\nvisits d\n";
const LENT: &str = "Odd \"log\" f, was d\nhollow f, was d\nmembers i members_user_id_team_key, was \
    d\nphotos d\n\
                    places f, was d\n\
                    quiet i quiet_pkey, was n\nusers d\nvisits f, was d\n";

/// Checks that nothing is lent on any host, and all shards have the same definition.
async fn all_is_as_it_was(world: &World, serving: usize) {
    assert_eq!(identities(world, serving).await, OWN);
    for client in world.all().await {
        assert_eq!(
            lines(&client, "SELECT l::text FROM pgshard.lent_identity l").await,
            ""
        );
    }
    world.audit_places().await;
    alike(world).await;
}

/// Checks that `check --ddl` finds no difference.
async fn alike(world: &World) {
    let ran = world.run(&["check", "--ddl"]).await;
    assert!(!ran.stdout.contains("ddl_differs"), "{}", ran.stdout);
}

/// Checks that a host's old copy of shard 0 has the same rows as what another serves, without
/// writes since.
async fn compare(world: &World, (from, left): (usize, &str), to: usize) {
    for table in TABLES_OF_KEYLESS {
        let sql = |schema: &str| {
            format!("SELECT t::text FROM {schema}.{table} t ORDER BY t::text COLLATE \"C\"")
        };
        let was = lines(&world.servers.app(from).await, &sql(left)).await;
        assert!(!was.is_empty(), "{table} has rows");
        assert_eq!(
            was,
            lines(&world.servers.app(to).await, &sql("shard_0000")).await,
            "{table}"
        );
    }
}

on_each_version! {
    async fn are_moved_and_taken_back(version) {
        let world = world(&[version, other(version)]).await;
        let plan = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--plan"])
            .await
            .ended(0)
            .last();
        let lent = &plan["shards"][0]["lent_identities"];
        assert_eq!(lent.as_array().map(Vec::len), Some(6), "{plan}");
        assert!(
            lent.to_string()
                .contains(r#"{"index":"members_user_id_team_key","table":"members"}"#),
            "{lent}"
        );
        assert!(plan["shards"][0]["steps"][1].as_str().unwrap().contains(
            "table places gets \
            REPLICA IDENTITY FULL"
        ));
        assert!(
            plan["shards"][0]["warnings"].to_string().contains(
                "identifies the rows of \
            Odd"
            ),
            "{plan}"
        );
        assert_eq!(identities(&world, 0).await, OWN);

        let working = tokio::spawn(work(world.servers.app(0).await, 0));
        let ran = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await;
        let id = ran.ended(0).id();
        let rounds = working.await.unwrap();
        compare(&world, (0, "shard_0000__left_e1"), 1).await;
        // The reverse replication still needs them.
        assert_eq!(identities(&world, 1).await, LENT);
        world.run(&["moves", "gc"]).await.ended(0);
        assert_eq!(identities(&world, 1).await, LENT);
        alike(&world).await;

        let working = tokio::spawn(work(world.servers.app(1).await, rounds));
        let ran = world.run(&["moves", "rollback", &id, "--yes"]).await;
        let back = ran.ended(0).id();
        let rounds = working.await.unwrap();
        compare(&world, (1, "shard_0000__left_e2"), 0).await;
        assert_eq!(identities(&world, 0).await, LENT);
        world
            .run(&["moves", "complete", &back, "--yes"])
            .await
            .ended(0);
        all_is_as_it_was(&world, 0).await;

        // Nothing needs them once the shard has arrived.
        let working = tokio::spawn(work(world.servers.app(0).await, rounds));
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--mode",
            "online",
            "--no-reverse-replication",
            "--yes",
        ];
        let id = world.run(&args).await.ended(0).id();
        working.await.unwrap();
        compare(&world, (0, "shard_0000__left_e3"), 1).await;
        assert_eq!(identities(&world, 1).await, OWN);
        world
            .run(&["moves", "complete", &id, "--yes"])
            .await
            .ended(0);
        all_is_as_it_was(&world, 1).await;
    }

    /// A shard moves on while its old copy is kept; and by a blocking move, which lends nothing,
    /// and carries what was lent.
    async fn go_on_with_the_shard(version) {
        let world = world(&[version, version, version]).await;
        let first = world
            .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let second = world
            .run(&["move", "0", "--to", "db3", "--mode", "blocking", "--yes"])
            .await
            .ended(0)
            .id();
        for id in [first, second] {
            world
                .run(&["moves", "complete", &id, "--yes"])
                .await
                .ended(0);
        }
        world.run(&["moves", "gc"]).await.ended(0);
        all_is_as_it_was(&world, 2).await;
    }
}

/// Nothing is altered with `--no-replica-identity`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_are_lent_where_none_are_wanted() {
    let world = world(&[15, 18]).await;
    let before = world.everything().await;
    let args = [
        "move",
        "0",
        "--to",
        "db2",
        "--mode",
        "online",
        "--no-replica-identity",
        "--yes",
    ];
    let refused = world.run(&args).await;
    let words = "table visits has no primary key, so that its UPDATE and DELETE would fail while \
        it is copied online";
    assert!(
        refused.ended(4).stderr.contains(words),
        "{}",
        refused.stderr
    );
    assert!(
        refused
            .stderr
            .contains("move without --no-replica-identity"),
        "{}",
        refused.stderr
    );
    assert_eq!(world.everything().await, before);
    all_is_as_it_was(&world, 0).await;
}

/// A table that is in use all the time gets its identity in between, and no session waits for
/// longer than one try.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_in_use_is_waited_for() {
    let world = world(&[18, 15]).await;
    let (reader, writer) = (world.servers.app(0).await, world.servers.app(0).await);
    reader
        .batch_execute("BEGIN; SELECT count(*) FROM shard_0000.visits")
        .await
        .unwrap();
    let moving = world
        .command(
            &["move", "0", "--to", "db2", "--mode", "online", "--yes"],
            &[],
        )
        .spawn()
        .unwrap();
    let waits = "SELECT 'waits' FROM pg_locks WHERE NOT granted AND relation = \
        'shard_0000.visits'::regclass";
    while lines(&writer, waits).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer
        .batch_execute("INSERT INTO shard_0000.visits VALUES (1, 'while the mover waits')")
        .await
        .unwrap();
    assert!(identities(&world, 0).await.contains("visits d\n"));
    reader.batch_execute("COMMIT").await.unwrap();
    let ran = crate::support::Ran::of(moving).await;
    let id = ran.ended(0).id();
    world
        .run(&["moves", "complete", &id, "--yes"])
        .await
        .ended(0);
    all_is_as_it_was(&world, 1).await;
}

/// A table that another session has locked is named, and does not stop the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_taken_back_is_named() {
    let world = world(&[18, 15]).await;
    let id = world
        .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0)
        .id();
    let reader = world.servers.app(1).await;
    reader
        .batch_execute("BEGIN; SELECT count(*) FROM shard_0000.members")
        .await
        .unwrap();
    world
        .run(&["moves", "complete", &id, "--yes"])
        .await
        .ended(0);
    let gc = world.run(&["moves", "gc"]).await;
    let words = "shard 0: the replica identity of table members cannot be altered, because \
        a session on host db2";
    assert!(
        gc.code() != 0 && gc.stderr.contains(words),
        "{} {}",
        gc.code(),
        gc.stderr
    );
    let lent = LENT
        .lines()
        .find(|line| line.starts_with("members"))
        .unwrap();
    let own = OWN.replace("members d", lent);
    assert_eq!(identities(&world, 1).await, own);
    let check = world.run(&["check"]).await.last();
    let found = check["findings"]
        .as_array()
        .unwrap()
        .iter()
        .find(|finding| finding["code"] == "identity_lent");
    let words = "shard 0: table members still has the replica identity that a move lent it";
    assert!(
        found.is_some_and(|finding| finding["message"] == words && finding["host"] == "db2"),
        "{check}"
    );
    reader.batch_execute("COMMIT").await.unwrap();
    let gc = world.run(&["moves", "gc"]).await.ended(0).last();
    assert!(
        gc["cleaned"].to_string().contains("lent to table members"),
        "{gc}"
    );
    all_is_as_it_was(&world, 1).await;
}

/// A key or an identity that a table is given during the move stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_somebody_altered_since_stays() {
    let world = world(&[15, 18]).await;
    let id = world
        .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0)
        .id();
    // Without the index that it names, an identity would be in the way of every later move.
    let alter = "ALTER TABLE shard_0000.members DROP CONSTRAINT members_user_id_team_key;
        ALTER TABLE shard_0000.visits ADD id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY;
        ALTER TABLE shard_0000.visits REPLICA IDENTITY DEFAULT; DROP TABLE shard_0000.places;
        ALTER TABLE shard_0000.quiet REPLICA IDENTITY FULL";
    world
        .servers
        .app(1)
        .await
        .batch_execute(alter)
        .await
        .unwrap();
    world
        .run(&["moves", "complete", &id, "--yes"])
        .await
        .ended(0);
    let now = "Odd \"log\" d\nhollow d\nmembers d\nphotos d\nquiet f\nusers d\nvisits d\n";
    assert_eq!(identities(&world, 1).await, now);
    let db2 = world.servers.app(1).await;
    assert_eq!(
        lines(&db2, "SELECT l::text FROM pgshard.lent_identity l").await,
        ""
    );
}

on_mixed_versions! {
    /// The mover is killed on the way, and another ends the move, in both ways.
    18: async fn are_taken_back_by_another_mover(version) {
        let world = world(&[version, other(version)]).await;
        let mut at = 0;
        for place in [
            "in lend",
            "after lend",
            "after publication",
            "after open",
            "after kept",
        ] {
            let to = if at == 0 { "db2" } else { "db1" };
            let args = ["move", "0", "--to", to, "--mode", "online", "--yes"];
            if !place.starts_with("after open") && place != "after kept" {
                let id = world
                    .run_until(&args, &format!("{place}=kill"))
                    .await
                    .ended(-9)
                    .id();
                assert!(identities(&world, at).await.contains(", was d"), "{place}");
                // A move is under way.
                world.run(&["moves", "gc"]).await;
                assert!(identities(&world, at).await.contains(", was d"), "{place}");
                world.run(&["moves", "abort", &id]).await.ended(0);
                all_is_as_it_was(&world, at).await;
            }
            let id = world
                .run_until(&args, &format!("{place}=kill"))
                .await
                .ended(-9)
                .id();
            world.run(&["moves", "resume", &id]).await.ended(0);
            at = 1 - at;
            assert_eq!(identities(&world, at).await, LENT, "{place}");
            world
                .run(&["moves", "complete", &id, "--yes"])
                .await
                .ended(0);
            all_is_as_it_was(&world, at).await;
        }
    }
}

on_each_version! {
    /// A table has a primary key, and its rows are named by another index. Those that change their
    /// place in that while the table is copied are copied twice, and the primary key is theirs both
    /// times.
    async fn another_index_than_the_primary_key(version) {
        let coded = "CREATE TABLE {shard}.coded (id bigint PRIMARY KEY, code integer NOT NULL, v \
            text);
            CREATE UNIQUE INDEX coded_code ON {shard}.coded (code);
            ALTER TABLE {shard}.coded REPLICA IDENTITY USING INDEX coded_code;
            CREATE TABLE {shard}.deferred (id bigint PRIMARY KEY DEFERRABLE, code integer NOT NULL \
            UNIQUE, v text);
            CREATE TABLE {shard}.whole (id bigint, code integer, v text);
            ALTER TABLE {shard}.whole REPLICA IDENTITY FULL;";
        let world = World::with_tables(&[version, version], 2, &[("0001_coded.sql", coded)]).await;
        let db1 = world.servers.app(0).await;
        // A publication has all of the target's tables, so that each needs its replica identity for
        // what is applied.
        let everything = "CREATE PUBLICATION everything FOR ALL TABLES";
        world
            .servers
            .superuser(1)
            .await
            .batch_execute(everything)
            .await
            .unwrap();
        for table in ["coded", "deferred", "whole"] {
            let fill = "SELECT g, g, repeat('x', 500) FROM generate_series(1, 2000) g";
            db1.batch_execute(&format!("INSERT INTO shard_0000.{table} {fill}"))
                .await
                .unwrap();
        }
        let environment = [
            ("PGSHARD_FAILPOINT", "after a chunk=stop"),
            ("PGSHARD_CHUNK_BYTES", "100000"),
        ];
        let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
        let child = world.command(&args, &environment).spawn().unwrap();
        for _ in 0..3 {
            let pid = stopped(&child).await;
            db1.batch_execute(
                "UPDATE shard_0000.whole SET code = -code WHERE id < \
                20",
            )
            .await
            .unwrap();
            for table in ["coded", "deferred"] {
                // The first becomes the last, and so on.
                let turn = "SET code = code + 10000; UPDATE shard_0000.{table} SET code = 12001 - \
                    code";
                let turn = turn.replace("{table}", table);
                db1.batch_execute(&format!("UPDATE shard_0000.{table} {turn}"))
                    .await
                    .unwrap();
            }
            go_on(pid);
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        never_stopped(child).await.ended(0);
        for table in ["coded", "deferred", "whole"] {
            let sql = |schema: &str| format!("SELECT t::text FROM {schema}.{table} t ORDER BY id");
            let was = lines(&world.servers.app(0).await, &sql("shard_0000__left_e1")).await;
            assert_eq!(
                was,
                lines(&world.servers.app(1).await, &sql("shard_0000")).await,
                "{table}"
            );
        }
        alike(&world).await;
    }
}
