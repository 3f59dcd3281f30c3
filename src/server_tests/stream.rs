//! The stream of a group: what the source commits reaches the target, exactly once.
//!
//! Schemas are created by hand here, and copied with the real workers, so that every kind of change
//! meets every state of the copy; whole moves are tested in `moves`.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::Client;
use uuid::Uuid;

use crate::ShardId;
use crate::dev::StopMode;
use crate::mover::Error;
use crate::pg::Connection;

use super::followed::{Part, Stream};
use super::pair::{Pair, other};

const PATIENCE: Duration = Duration::from_secs(30);

fn shard(number: u16) -> ShardId {
    ShardId::new(number).unwrap()
}

fn part(number: u16, schema: &str) -> Part {
    (
        shard(number),
        Uuid::new_v4(),
        schema.to_owned(),
        format!("{schema}__incoming"),
    )
}

/// Two hosts, with a schema on both: `{s}` in its DDL is the schema's name. What comes after `---`
/// is created at the target after the copy.
struct Scene {
    pair: Pair,
    source: Connection,
    target: Connection,
    stream: Stream,
    parts: Vec<Part>,
    ddl: String,
}

impl Scene {
    async fn new(versions: [u32; 2], schemas: &[&str], ddl: &str, data: &str) -> Scene {
        let pair = Pair::start(versions).await;
        let (source, target) = (pair.app(0).await, pair.app(1).await);
        let parts: Vec<Part> = (0..)
            .zip(schemas)
            .map(|(number, schema)| part(number, schema))
            .collect();
        let (before, after) = ddl.split_once("---").unwrap_or((ddl, ""));
        for (_, _, schema, incoming) in &parts {
            let in_schema = |sql: &str, schema: &str| sql.replace("{s}", &format!("\"{schema}\""));
            source
                .batch_execute(&format!(
                    "CREATE SCHEMA \"{schema}\"; {}",
                    in_schema(before, schema)
                ))
                .await
                .unwrap();
            source
                .batch_execute(&in_schema(after, schema))
                .await
                .unwrap();
            source
                .batch_execute(&in_schema(data, schema))
                .await
                .unwrap();
            target
                .batch_execute(&format!(
                    "CREATE SCHEMA \"{incoming}\"; {}",
                    in_schema(before, incoming)
                ))
                .await
                .unwrap();
        }
        let stream = Stream::publish(&pair, Uuid::now_v7(), &parts)
            .await
            .unwrap();
        Scene {
            pair,
            source,
            target,
            stream,
            parts,
            ddl: after.to_owned(),
        }
    }

    /// Copies in small chunks, builds the indexes, and follows.
    async fn copy_and_follow(&mut self, chunk_bytes: u64) {
        self.stream.copy(chunk_bytes).await.unwrap();
        self.index_and_follow().await;
    }

    async fn index_and_follow(&mut self) {
        for (.., incoming) in &self.parts {
            self.target
                .batch_execute(&self.ddl.replace("{s}", &format!("\"{incoming}\"")))
                .await
                .unwrap();
        }
        self.stream.follow(PATIENCE);
    }

    async fn write(&self, sql: &str) {
        for (_, _, schema, _) in &self.parts {
            let sql = sql.replace("{s}", &format!("\"{schema}\""));
            self.source
                .batch_execute(&sql)
                .await
                .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        }
    }

    /// Checks that both sides are equal once everything has been applied.
    async fn same(&self) {
        tokio::time::timeout(PATIENCE, self.stream.caught_up())
            .await
            .expect("it catches up")
            .unwrap();
        for (_, _, schema, incoming) in &self.parts {
            let (here, there) = (
                content(&self.source, schema).await,
                content(&self.target, incoming).await,
            );
            assert!(
                here == there,
                "source:\n{}\ntarget:\n{}",
                first(&here, &there),
                first(&there, &here)
            );
        }
    }
}

/// The first lines of one that the other does not have.
fn first(one: &[String], other: &[String]) -> String {
    let missing: Vec<&str> = one
        .iter()
        .filter(|line| !other.contains(line))
        .map(String::as_str)
        .take(10)
        .collect();
    missing.join("\n")
}

/// All rows of all tables of a schema, as texts.
async fn content(client: &Client, schema: &str) -> Vec<String> {
    let sql = "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relkind = 'r' ORDER BY 1";
    let mut lines = Vec::new();
    for row in client.query(sql, &[&schema]).await.unwrap() {
        let name: String = row.get(0);
        let sql = format!(
            "SELECT t::text FROM \"{schema}\".\"{}\" t ORDER BY 1",
            name.replace('"', "\"\"")
        );
        let rows = client.query(&sql, &[]).await.unwrap();
        lines.extend(
            rows.iter()
                .map(|row| format!("{name}: {}", row.get::<_, String>(0))),
        );
    }
    lines
}

const TYPES: &str = r#"
    CREATE TYPE {s}.mood AS ENUM ('sad', 'so "so"', 'glücklich');
    CREATE DOMAIN {s}.positive AS integer CHECK (VALUE > 0);
    CREATE TYPE {s}.pair AS (a integer, b text);
    CREATE TABLE {s}."All Types, größer""" (
        "Id 1" bigint GENERATED ALWAYS AS IDENTITY, a smallint, b numeric, c double precision,
        d real, e boolean, f bytea, g timestamptz, h timestamp, i date, j interval, k inet, l cidr,
        m macaddr, n json, o jsonb, p polygon, q uuid, r text[], s integer[][], t {s}.mood,
        u {s}.positive, v {s}.pair, w {s}.mood[], x int4range, y tstzrange, z char(5),
        aa varchar(9), ab bit(3), ac bit varying, ad point, ae tsvector, af money, ag name,
        ah "char", ai oid, aj time, ak timetz, "täg" text COLLATE "C",
        plus bigint GENERATED ALWAYS AS (a + 1) STORED);
    CREATE TABLE {s}.big (id integer, other integer, body text, more jsonb);
    CREATE TABLE {s}.big_full (id integer, other integer, body text);
    CREATE TABLE {s}.keyless (a integer, b json, c numeric, d char(4), e boolean);
    CREATE TABLE {s}.two (a text COLLATE "C", b integer, c text);
    CREATE TABLE {s}.only_key (id integer);
    CREATE TABLE {s}.nothing ();
    CREATE TABLE {s}.tree (id integer, parent integer);
    CREATE TABLE {s}.swap (id integer, place integer);
    CREATE TABLE {s}.emptied (id integer, v text);
    ALTER TABLE {s}.keyless REPLICA IDENTITY FULL;
    ALTER TABLE {s}.nothing REPLICA IDENTITY FULL;
    ALTER TABLE {s}.big_full REPLICA IDENTITY FULL;
    ALTER TABLE {s}.big ALTER COLUMN body SET STORAGE EXTERNAL;
    ALTER TABLE {s}.big_full ALTER COLUMN body SET STORAGE EXTERNAL;
    ---
    ALTER TABLE {s}."All Types, größer""" ADD PRIMARY KEY ("Id 1");
    ALTER TABLE {s}.big ADD PRIMARY KEY (id);
    ALTER TABLE {s}.big_full ADD PRIMARY KEY (id);
    ALTER TABLE {s}.two ADD PRIMARY KEY (a, b);
    ALTER TABLE {s}.only_key ADD PRIMARY KEY (id);
    ALTER TABLE {s}.tree ADD PRIMARY KEY (id);
    ALTER TABLE {s}.swap ADD PRIMARY KEY (id), ADD UNIQUE (place) DEFERRABLE;
    ALTER TABLE {s}.emptied ADD PRIMARY KEY (id);
"#;

const ALL_TYPES: &str = r#"
    INSERT INTO {s}."All Types, größer""" VALUES
        (DEFAULT, 1, 'NaN', 'NaN', '-Infinity', true, '\x00ff27',
            '2020-02-29 12:34:56.789+05', 'infinity', '4713-01-01 BC',
         '1 year -2 days 03:04:05.6', '10.0.0.1/8', '::1/128', '08:00:2b:01:02:03',
         '{"a": 1,  "a": [null, "\u00e9"]}', '{"b": {"c": 1.50}}', '((0,0),(1,1.5))',
         'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{a,NULL,"N,U\"LL",""}',
         '{{1,2},{3,NULL}}',
         'so "so"', 7, '(1,"x, ""y"" \\")', '{sad,glücklich}', '[1,5)', '["2020-01-01 00:00+00",)',
         'ab ', 'cd  ',
         B'101', B'01',
         '(1.5,-2)', 'the:1 cat:2B', '12.34', 'näme', 'x', 4294967295, '23:59:60', '12:00:00+05:30',
         E'tab\tnew\nline\\'),
        (DEFAULT, NULL, 1.2300, 0.1, 1e30, false, '', NULL, NULL, 'infinity', NULL, NULL, NULL,
            NULL, 'null', 'null', NULL, NULL, '{}',
         NULL, 'sad', NULL, NULL, NULL, 'empty', '(,)', '', '', NULL, NULL, NULL, '', NULL, '', '',
         0, '00:00', NULL, '');
"#;

async fn every_kind_of_change(versions: [u32; 2]) {
    let data = format!(
        "{ALL_TYPES}
        INSERT INTO {{s}}.big SELECT g, g, repeat(md5(g::text), 200), jsonb_build_object('g', g) \
        FROM \
        generate_series(1, 40) g;
        INSERT INTO {{s}}.big_full SELECT g, g, repeat(md5(g::text), 200) FROM generate_series(1, \
        40) g;
        INSERT INTO {{s}}.keyless SELECT g % 3, '{{\"a\":1}}', g % 2 * 1.00, 'x', g % 2 = 0 FROM \
        generate_series(1, \
        12) g;
        INSERT INTO {{s}}.two SELECT 'k' || g, g, 'v' FROM generate_series(1, 20) g;
        INSERT INTO {{s}}.emptied SELECT g, 'v' FROM generate_series(1, 50) g;
        INSERT INTO {{s}}.swap SELECT g, g FROM generate_series(1, 10) g"
    );
    let mut scene = Scene::new(versions, &["Sch\u{e4}ma 1", "plain_2"], TYPES, &data).await;
    // Half of it comes between slot and copy, so that the chunks have seen it; the same comes again
    // after the copy.
    let changes = format!(
        "{ALL_TYPES}
        UPDATE {{s}}.\"All Types, größer\"\"\" SET a = 5, b = b + 1, t = 'glücklich', n = '{{}}' \
        WHERE e;
        DELETE FROM {{s}}.\"All Types, größer\"\"\" WHERE NOT e AND \"Id 1\" % 4 = 0;
        UPDATE {{s}}.big SET other = other + 1; UPDATE {{s}}.big SET id = id + 1000 WHERE id < 20;
        UPDATE {{s}}.big SET body = 'short' WHERE id % 7 = 0; DELETE FROM {{s}}.big WHERE id % 5 = \
        0;
        UPDATE {{s}}.big_full SET other = other + 1; UPDATE {{s}}.big_full SET id = id + 1000 \
        WHERE id < 20;
        DELETE FROM {{s}}.big_full WHERE id % 5 = 0;
        INSERT INTO {{s}}.keyless VALUES (NULL, NULL, NULL, NULL, NULL), (NULL, NULL, NULL, NULL, \
        NULL), (1, '1', 1.0, \
        '', true), (1, '1', 1.00, '', true);
        UPDATE {{s}}.keyless SET c = c + 1 WHERE ctid IN (SELECT ctid FROM {{s}}.keyless WHERE a = \
        1 LIMIT 2);
        DELETE FROM {{s}}.keyless WHERE ctid IN (SELECT ctid FROM {{s}}.keyless WHERE a IS NULL OR \
        a = 2 LIMIT 1);
        UPDATE {{s}}.two SET a = a || 'x', c = NULL WHERE b % 2 = 0; UPDATE {{s}}.two SET b = -b \
        WHERE b % 3 = 0;
        INSERT INTO {{s}}.only_key SELECT max(coalesce(id, 0)) + g FROM {{s}}.only_key, \
        generate_series(1, 3) g GROUP \
        BY g ON CONFLICT DO NOTHING;
        INSERT INTO {{s}}.only_key VALUES ((random() * 1e9)::int) ON CONFLICT DO NOTHING;
        UPDATE {{s}}.only_key SET id = -id - 1;
        INSERT INTO {{s}}.nothing DEFAULT VALUES; INSERT INTO {{s}}.nothing DEFAULT VALUES;
        DELETE FROM {{s}}.nothing WHERE ctid IN (SELECT ctid FROM {{s}}.nothing LIMIT 1);
        BEGIN; INSERT INTO {{s}}.tree SELECT coalesce(max(id), 0) + 1, coalesce(max(id), 0) + 2 \
        FROM {{s}}.tree;
        INSERT INTO {{s}}.tree SELECT max(id) + 1, NULL FROM {{s}}.tree; COMMIT;
        BEGIN; SET CONSTRAINTS ALL DEFERRED; UPDATE {{s}}.swap SET place = 11 - place; COMMIT;
        UPDATE {{s}}.swap SET place = place + 1;  UPDATE {{s}}.swap SET place = place - 1;
        BEGIN; INSERT INTO {{s}}.two VALUES ('rolled back', 1); ROLLBACK;
        BEGIN; INSERT INTO {{s}}.two VALUES ('kept', (random() * 1e9)::int); SAVEPOINT a; INSERT \
        INTO {{s}}.two VALUES \
        ('sub', (random() * 1e9)::int); SAVEPOINT b;
        DELETE FROM {{s}}.two; ROLLBACK TO b; UPDATE {{s}}.two SET c = 'sub' WHERE a = 'kept'; \
        RELEASE a; COMMIT;
        TRUNCATE {{s}}.emptied; INSERT INTO {{s}}.emptied SELECT g, 'again' FROM \
        generate_series(1, 30) g;"
    );
    scene.write(&changes).await;
    scene.copy_and_follow(4096).await;
    scene.same().await;
    scene.write(&changes).await;
    scene.same().await;
    for (number, ..) in &scene.parts {
        assert!(scene.stream.failed(*number).is_none());
    }
    scene.stream.end().await.unwrap();
    let left =
        "SELECT count(*) FROM pg_replication_slots UNION ALL SELECT count(*) FROM pg_publication
        UNION ALL SELECT count(*) FROM pgshard.ledger WHERE kind IN ('slot', 'publication')";
    let left = scene.source.query(left, &[]).await.unwrap();
    assert!(
        left.iter().all(|row| row.get::<_, i64>(0) == 0),
        "nothing is left"
    );
}

on_each_version!(
    /// Both sides have the same version.
    async fn changes_of_every_kind(version) {
        every_kind_of_change([version, version]).await;
    }

    /// From one version to another, in both directions.
    async fn changes_of_every_kind_across_versions(version) {
        every_kind_of_change([version, other(version)]).await;
    }
);

const ACCOUNTS: &str = "
    CREATE TABLE {s}.accounts (id bigint, tag integer, note text, body text);
    ALTER TABLE {s}.accounts ALTER COLUMN body SET STORAGE EXTERNAL;
    ---
    ALTER TABLE {s}.accounts ADD PRIMARY KEY (id)";

/// What a writer does at once, from a number that makes it different each time: single statements,
/// transactions with subtransactions and rollbacks, keys that change together with values out of
/// line, many rows, and sometimes a TRUNCATE.
fn deed(schema: &str, number: u64, lane: u64) -> String {
    let random = number
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .rotate_left(31)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9)
        >> 20;
    let (id, to) = (random % 400, random / 400 % 400);
    let table = format!("\"{schema}\".accounts");
    match random / 160_000 % 12 {
        0..3 => {
            format!(
                "INSERT INTO {table} VALUES ({id}, {number}, 'new', repeat('{lane}', 3000)) ON \
                CONFLICT DO NOTHING"
            )
        }
        3..5 => format!("UPDATE {table} SET tag = {number} WHERE id = {id}"),
        5 => format!("UPDATE {table} SET body = repeat('{number}', 700) WHERE id = {id}"),
        6 => format!("DELETE FROM {table} WHERE id = {id}"),
        7 => {
            format!(
                "UPDATE {table} SET id = {to} WHERE id = {id} AND NOT EXISTS (SELECT FROM \
                {table} WHERE id = {to})"
            )
        }
        8 => format!(
            "BEGIN; UPDATE {table} SET tag = -tag WHERE id = {id}; SAVEPOINT a; DELETE FROM {table}
             WHERE id BETWEEN {to} AND {to} + 5;
             ROLLBACK TO a; SAVEPOINT b; UPDATE {table} SET note = 'sub' WHERE id = {to}; RELEASE \
             b; COMMIT"
        ),
        9 => format!(
            "BEGIN; DELETE FROM {table} WHERE id = {id}; INSERT INTO {table} VALUES ({id}, 0, \
                'back', NULL); COMMIT"
        ),
        10 => format!("BEGIN; UPDATE {table} SET tag = 0; ROLLBACK"),
        _ if random.is_multiple_of(40) => format!("TRUNCATE {table}"),
        _ => format!(
            "INSERT INTO {table} SELECT g, {number}, 'many', NULL FROM generate_series({id}, {id} \
                + 20) g \
             ON CONFLICT DO NOTHING"
        ),
    }
}

/// Writers that run until they are ended, each in a lane of autocommitted deeds.
struct Busy {
    stop: Arc<AtomicBool>,
    lanes: Vec<tokio::task::JoinHandle<()>>,
}

impl Busy {
    async fn start(scene: &Scene) -> Busy {
        let stop = Arc::new(AtomicBool::new(false));
        let mut lanes = Vec::new();
        for lane in 0..4 {
            let (client, stop) = (scene.pair.app(0).await, stop.clone());
            let schemas: Vec<String> = scene.parts.iter().map(|part| part.2.clone()).collect();
            lanes.push(tokio::spawn(async move {
                for number in (0_u64..).take_while(|_| !stop.load(Ordering::Relaxed)) {
                    let schema = &schemas[number as usize % schemas.len()];
                    // A unique violation or a deadlock of writers does not concern the stream.
                    if client
                        .batch_execute(&deed(schema, number * 7 + lane, lane))
                        .await
                        .is_err()
                    {
                        if client.is_closed() {
                            return;
                        }
                        let _ = client.batch_execute("ROLLBACK").await;
                    }
                }
            }));
        }
        Busy { stop, lanes }
    }

    /// Each writer finishes its present deed: one that was given up could take effect after both
    /// sides were compared.
    async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for lane in self.lanes {
            lane.await.expect("a writer does not panic");
        }
    }
}

const SOME_ACCOUNTS: &str = "INSERT INTO {s}.accounts SELECT g, 0, 'first', repeat('x', 3000) FROM \
    generate_series(1, 300) g";

async fn exactly_once(versions: [u32; 2]) {
    let mut scene = Scene::new(versions, &["busy_1", "busy_2"], ACCOUNTS, SOME_ACCOUNTS).await;
    let writers = Busy::start(&scene).await;
    // The chunks have a few kilobytes, so that changes meet every state between the first and the
    // last of them.
    scene.copy_and_follow(8192).await;
    // It is killed and started again wherever it is, and sometimes allowed to finish.
    for round in 0..25_u64 {
        tokio::time::sleep(Duration::from_millis(20 + round * 13 % 90)).await;
        if round % 10 == 9 {
            tokio::time::timeout(PATIENCE, scene.stream.caught_up())
                .await
                .expect("it catches up")
                .unwrap();
        }
        scene.stream.follow(PATIENCE);
    }
    writers.end().await;
    scene.same().await;
    scene.stream.end().await.unwrap();
}

on_each_version!(
    /// Writers continue while it is copied; the follower is killed at any point.
    async fn changes_while_it_is_copied(version) {
        exactly_once([version, other(version)]).await;
    }

    /// Both servers crash; the source is also shut down in order, which waits for the follower.
    async fn servers_that_crash(version) {
        let mut scene = Scene::new([version, version], &["busy_1"], ACCOUNTS, SOME_ACCOUNTS).await;
        scene.copy_and_follow(8192).await;
        let (crash, stop) = (StopMode::Immediate, StopMode::Fast);
        for (host, mode) in [(1, crash), (0, crash), (1, crash), (0, stop)] {
            let writers = Busy::start(&scene).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
            scene.pair.server(host).restart(mode).unwrap();
            scene.source = scene.pair.app(0).await;
            scene.target = scene.pair.app(1).await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            writers.end().await;
            scene.same().await;
        }
        scene.stream.end().await.unwrap();
    }

    /// A transaction that is larger than any buffer.
    async fn a_large_transaction(version) {
        let ddl = "CREATE TABLE {s}.t (id bigint, v integer, note text); --- ALTER TABLE {s}.t ADD \
            PRIMARY KEY (id)";
        let mut scene = Scene::new([version, version], &["large_1"], ddl, "").await;
        scene.copy_and_follow(1 << 20).await;
        for sql in [
            "INSERT INTO {s}.t SELECT g, 0, 'a note of some length ' || g FROM generate_series(1, \
                100000) g",
            "UPDATE {s}.t SET v = id % 7",
            "DELETE FROM {s}.t WHERE id % 3 = 0",
        ] {
            scene.write(sql).await;
            tokio::time::timeout(PATIENCE * 2, scene.stream.caught_up()).await.expect("it catches \
                up").unwrap();
        }
        scene.same().await;
        scene.stream.end().await.unwrap();
    }

    /// The marker of an attempt makes the shard ready, in the transaction that applies it; what
    /// comes after it is a breach.
    async fn a_marker_makes_the_shard_ready(version) {
        let mut scene = Scene::new([version, version], &["busy_1", "busy_2"], ACCOUNTS, "").await;
        scene.copy_and_follow(8192).await;
        scene.stream.caught_up().await.unwrap();
        let mark = |attempt: i32, number: u16| format!(
            "INSERT INTO pgshard.marker (move_id, shard_id, attempt) SELECT substr(slot_name, \
                9)::uuid, {number},
             {attempt}
             FROM pg_replication_slots");
        for attempt in 1..60 {
            let write = format!("INSERT INTO busy_1.accounts VALUES ({attempt}, 1, 'before the \
                marker', NULL)");
            scene.source.batch_execute(&write).await.unwrap();
            tokio::time::sleep(Duration::from_millis(3)).await;
            scene.source.batch_execute(&mark(attempt, 0)).await.unwrap();
            scene.stream.marker(shard(0), attempt, "hash").await.unwrap();
            let sql = "SELECT ready_attempt, open_hash FROM pgshard.incoming WHERE shard_id = 0";
            let row = scene.target.query_one(sql, &[]).await.unwrap();
            assert_eq!((row.get::<_, i32>(0), row.get::<_, &str>(1)), (attempt, "hash"));
        }
        // An update after the marker: the other shard is not affected.
        assert_eq!(scene.stream.breach(shard(0)), None);
        scene.source.batch_execute("INSERT INTO busy_2.accounts VALUES (1, 1, '', \
            NULL)").await.unwrap();
        scene.stream.caught_up().await.unwrap();
        assert_eq!(scene.stream.breach(shard(0)), None);
        scene.source.batch_execute("UPDATE busy_1.accounts SET tag = 2 WHERE id = \
            1").await.unwrap();
        scene.stream.caught_up().await.unwrap();
        assert!(scene.stream.breach(shard(0)).unwrap().contains("after the marker of attempt 59"));
        let sql = "SELECT breach FROM pgshard.progress WHERE shard_id = 0";
        let breach = scene.target.query_one(sql, &[]).await.unwrap();
        assert!(breach.get::<_, Option<String>>(0).is_some());
        assert!(scene.stream.marker(shard(0), 59, "hash").await.is_err());
        // The next attempt is a new one.
        scene.source.batch_execute(&mark(60, 0)).await.unwrap();
        scene.stream.marker(shard(0), 60, "hash").await.unwrap();
        let breach = scene.target.query_one(sql, &[]).await.unwrap();
        assert!(breach.get::<_, Option<String>>(0).is_none());
        scene.same().await;
        scene.stream.end().await.unwrap();
    }

    /// A shard with a lease that is another mover's is not written to, nor is one that differs; the
    /// others continue.
    async fn shards_that_are_lost(version) {
        let schemas = ["busy_1", "busy_2", "busy_3"];
        let mut scene = Scene::new([version, version], &schemas, ACCOUNTS, SOME_ACCOUNTS).await;
        scene.copy_and_follow(8192).await;
        scene.same().await;
        scene.target.batch_execute("UPDATE pgshard.progress SET lease = gen_random_uuid() \
                                    WHERE shard_id = 0").await.unwrap();
        scene.target.batch_execute("DELETE FROM \"busy_2__incoming\".accounts WHERE id = \
            7").await.unwrap();
        let there = content(&scene.target, "busy_1__incoming").await;
        scene.source.batch_execute("UPDATE busy_1.accounts SET tag = 4 WHERE id = \
            7").await.unwrap();
        let sql = "SELECT pg_current_wal_lsn()::text";
        let lost: String = scene.source.query_one(sql, &[]).await.unwrap().get(0);
        scene.write("UPDATE {s}.accounts SET tag = 5 WHERE id = 7").await;
        scene.write("INSERT INTO {s}.accounts VALUES (1000, 1, 'new', NULL)").await;
        // The first part is lost: its future returns that.
        assert!(matches!(scene.stream.caught_up().await, Err(Error::LeaseLost { .. })));
        let until = Instant::now() + PATIENCE;
        let sql = "SELECT count(*) FROM \"busy_3__incoming\".accounts WHERE id = 1000";
        while scene.target.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == 0 {
            assert!(Instant::now() < until, "the third goes on");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match scene.stream.failed(shard(1)) {
            Some(Error::Diverged { table, what, .. }) => {
                assert!(table == "accounts" && what.contains("(7)"), "{what}")
            }
            other => panic!("{other:?}"),
        }
        assert!(scene.stream.failed(shard(2)).is_none());
        assert_eq!(there, content(&scene.target, "busy_1__incoming").await);
        // The slot keeps what these two lack, until they are detached.
        let confirmed = "SELECT pg_wal_lsn_diff(confirmed_flush_lsn, $1::text::pg_lsn) < 0 FROM \
            pg_replication_slots";
        let held = async || {
            let row = scene.source.query_one(confirmed, &[&lost]).await.unwrap();
            row.get::<_, bool>(0)
        };
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(held().await);
        scene.stream.detach(shard(0)).await;
        scene.stream.detach(shard(1)).await;
        while held().await {
            assert!(Instant::now() < until, "the slot is let go on");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        scene.stream.end().await.unwrap();
    }

    /// At a common point both sides are equal, while writers continue.
    async fn a_common_point(version) {
        let mut scene = Scene::new([version, version], &["busy_1"], ACCOUNTS, SOME_ACCOUNTS).await;
        let writers = Busy::start(&scene).await;
        scene.copy_and_follow(8192).await;
        scene.stream.caught_up().await.unwrap();
        let digest = "SELECT md5(coalesce(string_agg(t::text, ',' ORDER BY id), '')) FROM \
            SCHEMA.accounts t";
        let here = digest.replace("SCHEMA", "busy_1");
        let there = digest.replace("SCHEMA", "busy_1__incoming");
        let (mut aligned, mut tries) = (0, 0);
        while aligned < 10 {
            tries += 1;
            assert!(tries < 1000, "{aligned} common points in {tries} tries");
            if let Some((here, there)) = scene.stream.aligned(&here, &there).await.unwrap() {
                assert_eq!(here, there);
                aligned += 1;
            }
        }
        writers.end().await;
        scene.same().await;
        scene.stream.end().await.unwrap();
    }

    /// A change of its key brings a row into a chunk that was copied before the change, out of one
    /// that was copied after it, and the stream does not have all of its values. It is read again,
    /// and judged by that from then on, even by a new follower.
    async fn a_row_that_is_read_again(version) {
        let mut scene = Scene::new([version, version], &["busy_1"], ACCOUNTS, SOME_ACCOUNTS).await;
        scene.stream.copy(8192).await.unwrap();
        // Both come from chunks that are far from each other, and the first of these is copied
        // again after the change.
        scene.write("UPDATE {s}.accounts SET id = 1000 WHERE id = 10").await;
        scene.write("UPDATE {s}.accounts SET id = 1001 WHERE id = 11; DELETE FROM {s}.accounts \
            WHERE id = 1001").await;
        let sql = "SELECT pg_current_snapshot()::text";
        let snapshot: String = scene.source.query_one(sql, &[]).await.unwrap().get(0);
        let again = "UPDATE pgshard.chunk SET snapshot = $1 WHERE coalesce(low::bigint, 0) <= $2 \
                     AND coalesce(high::bigint, 9999) > $2";
        for id in [10_i64, 11] {
            assert_eq!(scene.target.execute(again, &[&snapshot, &id]).await.unwrap(), 1);
            let gone = "DELETE FROM \"busy_1__incoming\".accounts WHERE id = $1";
            scene.target.execute(gone, &[&id]).await.unwrap();
        }
        scene.write("UPDATE {s}.accounts SET tag = 77 WHERE id = 1000").await;
        scene.index_and_follow().await;
        scene.same().await;
        let reread = "SELECT string_agg(key, ' ' ORDER BY key) FROM pgshard.reread";
        let reread = scene.target.query_one(reread, &[]).await.unwrap();
        assert_eq!(reread.get::<_, &str>(0), "[\"1000\"] [\"1001\"]");
        scene.stream.follow(PATIENCE);
        scene.write("UPDATE {s}.accounts SET tag = 78 WHERE id = 1000; INSERT INTO {s}.accounts \
            VALUES (1001)").await;
        scene.same().await;
        scene.stream.end().await.unwrap();
    }

    /// The same with a key of the schema's own types, behind a fence, which renames the schema; and
    /// with values that are not null although their fields are.
    async fn a_row_of_own_types_that_is_read_again(version) {
        let ddl = "CREATE DOMAIN {s}.positive AS bigint CHECK (VALUE > 0); CREATE TYPE {s}.pair AS \
            (a integer, b text);
            CREATE TYPE {s}.mood AS ENUM ('sad', 'ok');
            CREATE TABLE {s}.own (id {s}.positive, p {s}.pair, m {s}.mood, ms {s}.mood[], void \
            {s}.pair, half {s}.pair,
                body text);
            ALTER TABLE {s}.own ALTER COLUMN body SET STORAGE EXTERNAL;
            --- ALTER TABLE {s}.own ADD PRIMARY KEY (id, p, m, ms)";
        let data = "INSERT INTO {s}.own SELECT g, ROW(NULL, NULL)::{s}.pair, 'ok', '{sad}', \
            ROW(NULL, NULL)::{s}.pair,
            ROW(1, NULL)::{s}.pair,
            repeat('x', 3000) FROM generate_series(1, 300) g";
        let mut scene = Scene::new([version, version], &["own_1"], ddl, data).await;
        scene.stream.copy(8192).await.unwrap();
        scene.write("UPDATE {s}.own SET id = 1000 WHERE id = 10").await;
        let sql = "SELECT pg_current_snapshot()::text";
        let snapshot: String = scene.source.query_one(sql, &[]).await.unwrap().get(0);
        let again = "UPDATE pgshard.chunk SET snapshot = $1 WHERE coalesce(low::bigint, 0) <= 10 \
                     AND coalesce(high::bigint, 9999) > 10";
        assert_eq!(scene.target.execute(again, &[&snapshot]).await.unwrap(), 1);
        scene.target.batch_execute("DELETE FROM own_1__incoming.own WHERE id = 10").await.unwrap();
        scene.source.batch_execute("ALTER SCHEMA own_1 RENAME TO own_1__left_e1").await.unwrap();
        scene.index_and_follow().await;
        let caught_up = tokio::time::timeout(PATIENCE, scene.stream.caught_up()).await;
        caught_up.expect("it catches up").unwrap();
        scene.source.batch_execute("ALTER SCHEMA own_1__left_e1 RENAME TO own_1").await.unwrap();
        scene.same().await;
        assert_eq!(scene.target.query("SELECT FROM pgshard.reread", &[]).await.unwrap().len(), 1);
        scene.stream.end().await.unwrap();
    }

    /// A replica identity that is altered for a while sends other former values: they are not used
    /// to apply anything.
    async fn a_replica_identity_that_is_altered(version) {
        let ddl = "CREATE TABLE {s}.t (id integer, code integer NOT NULL UNIQUE); \
                   --- ALTER TABLE {s}.t ADD PRIMARY KEY (id)";
        let data = "INSERT INTO {s}.t SELECT g, g FROM generate_series(1, 9) g";
        let mut scene = Scene::new([version, version], &["by_1"], ddl, data).await;
        scene.copy_and_follow(1 << 20).await;
        // The key is sent as before, with more columns.
        scene.write("ALTER TABLE {s}.t REPLICA IDENTITY FULL; UPDATE {s}.t SET id = -id; DELETE \
            FROM {s}.t \
                     WHERE id = -9").await;
        scene.same().await;
        scene.write("ALTER TABLE {s}.t REPLICA IDENTITY USING INDEX t_code_key; UPDATE {s}.t SET \
            id = 5 WHERE id = -5;
            ALTER TABLE {s}.t REPLICA IDENTITY DEFAULT").await;
        let until = Instant::now() + PATIENCE;
        while scene.stream.failed(shard(0)).is_none() {
            assert!(Instant::now() < until, "it is noticed");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        match scene.stream.failed(shard(0)) {
            Some(Error::Altered { what, .. }) => {
                assert!(what.starts_with("table t: its REPLICA IDENTITY was altered"), "{what}");
            }
            other => panic!("{other:?}"),
        }
    }

    /// Changes that are right in their order, but not in another, if the target has a unique index
    /// already.
    async fn values_that_change_hands(version) {
        let ddl = "CREATE TABLE {s}.t (id integer, email text);
            --- ALTER TABLE {s}.t ADD PRIMARY KEY (id), ADD UNIQUE (email)";
        let data = "INSERT INTO {s}.t SELECT g, 'e' || g FROM generate_series(1, 200) g";
        let mut scene = Scene::new([version, version], &["hands_1"], ddl, data).await;
        scene.copy_and_follow(1 << 20).await;
        scene.same().await;
        // Each row takes the value that the one before has just given up.
        let mut hands = "BEGIN; UPDATE {s}.t SET email = 'new' WHERE id = 1;".to_owned();
        for id in 2..=200 {
            hands += &format!("UPDATE {{s}}.t SET email = 'e{}' WHERE id = {id};", id - 1);
        }
        scene.write(&(hands + "COMMIT")).await;
        scene.same().await;
        let mut hands = "BEGIN; DELETE FROM {s}.t WHERE id = 200;".to_owned();
        for id in (1..200).rev() {
            hands += &format!("UPDATE {{s}}.t SET email = 'e{}' WHERE id = {id};", id + 2000);
            hands += &format!("INSERT INTO {{s}}.t VALUES ({}, 'old {id}');", id + 1000);
        }
        scene.write(&(hands + "COMMIT")).await;
        scene.same().await;
        assert!(scene.stream.failed(shard(0)).is_none());
        scene.stream.end().await.unwrap();
    }

    /// A slot waits for transactions that have written; the error names them.
    async fn who_keeps_a_slot_from_being_made(version) {
        let pair = Pair::start([version, version]).await;
        let writer = pair.app(0).await;
        writer.batch_execute("CREATE SCHEMA held; CREATE TABLE held.t (id int PRIMARY KEY); BEGIN; \
            INSERT INTO held.t \
                              VALUES (1)").await.unwrap();
        match Stream::publish(&pair, Uuid::now_v7(), &[part(0, "held")]).await {
            Err(Error::SlotBlocked { blockers, .. }) => assert!(blockers.contains("INSERT INTO \
                held.t"), "{blockers}"),
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("the slot was made"),
        }
        let slots = "SELECT count(*) FROM pg_replication_slots";
        assert_eq!(writer.query_one(slots, &[]).await.unwrap().get::<_, i64>(0), 0);
    }

    /// If the slot, or its WAL, is gone, that is an error of its own; nothing waits for it.
    async fn a_slot_that_is_gone(version) {
        let mut scene = Scene::new([version, version], &["busy_1"], ACCOUNTS, "").await;
        scene.copy_and_follow(8192).await;
        scene.stream.caught_up().await.unwrap();
        scene.stream.kill();
        // Its walsender notices it a moment later.
        let drop = "SELECT pg_drop_replication_slot($1)";
        while scene.source.execute(drop, &[&scene.stream.name()]).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        scene.stream.follow(PATIENCE);
        let marker = scene.stream.marker(shard(0), 1, "");
        let error = tokio::time::timeout(PATIENCE, marker).await.unwrap().unwrap_err();
        assert!(error.to_string().contains("is gone: what was copied"), "{error}");
    }
);
