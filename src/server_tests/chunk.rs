//! The copy in chunks is exact, whatever is written during that time, and also after a crash.

use std::sync::Arc;

use crate::ShardId;
use crate::mover::copy::ShardCopy;
use crate::mover::copy::build::{Builds, built};
use crate::mover::copy::chunk::{CopiedChunk, read_from};
use crate::mover::copy::chunks::load;
use crate::mover::copy::cut::chunks;
use crate::mover::copy::digest::{Digest, Hashing, digest};
use crate::mover::copy::verify::{bunches, compare, keep, read_from_target, set_workers};
use crate::mover::copy::workers::{CopyOptions, copy_all};
use crate::mover::definition::ddl::{Stage, Statement};
use crate::mover::protocol::throttle::{Pace, Throttle};
use crate::mover::{Error, Observer, Options, Session};

use super::decoded::{apply_all, make_slot};
use super::pair::{MOVE, Pair, one};
use super::writers::{Target, Writers};

/// Tables with keys of every kind; each has `n` and `long`, which is stored outside the row and not
/// compressed.
const TABLES: &str = r#"
    CREATE TABLE {shard}.big (id bigint NOT NULL, n integer, long text);
    CREATE TABLE {shard}.small (id smallint NOT NULL, n integer, long text);
    CREATE TABLE {shard}.uuids (id uuid NOT NULL, n integer, long text);
    CREATE TABLE {shard}.texts (k text COLLATE "C" NOT NULL, n integer, long text);
    CREATE TABLE {shard}.padded (k char(12) COLLATE "C" NOT NULL, n integer, long text);
    CREATE TABLE {shard}.numbers (k numeric NOT NULL, n integer, long text);
    CREATE TABLE {shard}."we""ird Ünï" (n integer, "b c" integer NOT NULL, long text,
        "A" text NOT NULL COLLATE "C", twice integer GENERATED ALWAYS AS (n * 2) STORED);
    CREATE TABLE {shard}.truncated (id integer NOT NULL, n integer, long text)"#;

const KEYS: &str = r#"
    ALTER TABLE {shard}.big ADD PRIMARY KEY (id), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}.small ADD PRIMARY KEY (id), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}.uuids ADD PRIMARY KEY (id), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}.texts ADD PRIMARY KEY (k), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}.padded ADD PRIMARY KEY (k), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}.numbers ADD PRIMARY KEY (k), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}."we""ird Ünï" ADD UNIQUE ("A", "b c"), ALTER long SET STORAGE EXTERNAL;
    ALTER TABLE {shard}."we""ird Ünï" REPLICA IDENTITY USING INDEX "we""ird Ünï_A_b c_key";
    ALTER TABLE {shard}.truncated ADD PRIMARY KEY (id), ALTER long SET STORAGE EXTERNAL"#;

/// The range of keys, on either side of 0.
const WIDE: i64 = 1500;

const TARGETS: [Target; 8] = [
    Target {
        table: "shard_0007.big",
        key: &[("id", "$n * 1000000000000")],
    },
    Target {
        table: "shard_0007.small",
        key: &[("id", "$n")],
    },
    Target {
        table: "shard_0007.uuids",
        key: &[("id", "md5(($n)::text)::uuid")],
    },
    Target {
        table: "shard_0007.texts",
        key: &[("k", "chr(97 + abs($n) % 20000) || $n")],
    },
    Target {
        table: "shard_0007.padded",
        key: &[("k", "'k' || $n")],
    },
    Target {
        table: "shard_0007.numbers",
        key: &[("k", "$n + 0.5")],
    },
    Target {
        table: r#"shard_0007."we""ird Ünï""#,
        key: &[("\"A\"", "($n % 7)::text"), ("\"b c\"", "$n")],
    },
    Target {
        table: "shard_0007.truncated",
        key: &[("id", "$n")],
    },
];

async fn fill(pair: &Pair) {
    let client = pair.app(0).await;
    for Target { table, key } in TARGETS {
        let names: Vec<&str> = key.iter().map(|(name, _)| *name).collect();
        let values: Vec<String> = key
            .iter()
            .map(|(_, expression)| expression.replace("$n", "g"))
            .collect();
        let sql = format!(
            "INSERT INTO {table} ({}, n, long) SELECT {}, 0, repeat('z', CASE WHEN g % 5 = 0 THEN \
                2500 ELSE 60 END)
             FROM generate_series({}, {}, 2) AS g",
            names.join(", "),
            values.join(", "),
            -WIDE,
            WIDE - 1
        );
        client
            .batch_execute(&sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error:?}"));
    }
}

/// Chunks of a few dozen rows, so that there are many.
fn options(pair: &Pair, pace: Pace) -> CopyOptions {
    CopyOptions {
        route: pair.route.clone(),
        builds: Default::default(),
        throttle: Throttle::new(tokio::sync::watch::channel(pace).1),
        stop: tokio::sync::watch::channel(false).1,
        altered: tokio::sync::watch::channel(Default::default()).1,
        observer: Observer::silent(),
        options: Arc::new(Options::default().copy_jobs(3).chunk_bytes(32 * 1024)),
    }
}

fn slow(bytes: u64) -> Pace {
    Pace {
        rate: std::num::NonZeroU64::new(bytes),
        paused: false,
    }
}

async fn copy(pair: &Pair, work: &ShardCopy, pace: Pace) -> Result<CopiedChunk, Error> {
    let (mut ends, _) = copy_all(&pair.hosts, vec![work.clone()], &options(pair, pace)).await;
    ends.pop().unwrap().1
}

async fn digests(
    session: &Session,
    schema: &str,
    work: &ShardCopy,
    hashing: Hashing,
) -> Vec<(String, Digest)> {
    let mut digests = Vec::new();
    for table in &work.tables {
        digests.push((
            table.name.clone(),
            digest(session, schema, table, "true", hashing)
                .await
                .unwrap(),
        ));
    }
    digests
}

async fn assert_same(source: &Session, target: &Session, work: &ShardCopy) {
    for hashing in [Hashing::Binary, Hashing::Text] {
        let ours = digests(source, &work.source_schema, work, hashing).await;
        let theirs = digests(target, &work.target_schema, work, hashing).await;
        assert_eq!(ours, theirs);
    }
}

/// Copies under load, applies what was written during that time, and compares.
async fn exact(versions: [u32; 2]) {
    let seed = fastrand::u64(..);
    let pair = Pair::start(versions).await;
    let work = pair.shard(7, TABLES, KEYS).await;
    fill(&pair).await;
    make_slot(pair.app(0).await.client()).await;
    let writers = Writers::start(
        &pair,
        4,
        seed,
        WIDE,
        TARGETS.to_vec(),
        vec!["shard_0007.truncated", "shard_0007.big"],
    )
    .await;
    copy(&pair, &work, slow(1 << 20)).await.unwrap();
    let committed = writers.stop().await;
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let snapshots =
        "SELECT count(DISTINCT snapshot), count(*) FROM pgshard.chunk WHERE move_id = $1";
    let row = target.client.query_one(snapshots, &[&MOVE]).await.unwrap();
    let (snapshots, chunks): (i64, i64) = (row.get(0), row.get(1));
    target
        .client
        .batch_execute(&KEYS.replace("{shard}", &work.target_schema))
        .await
        .unwrap();
    let mut loaded = load(&target, work.hold, &work.tables).await.unwrap();
    let counts = apply_all(&source, &target, &work, &mut loaded).await;
    assert_same(&source, &target, &work).await;
    let story = format!(
        "{committed} transactions by seed {seed}, {chunks} chunks, {snapshots} snapshots, \
            {counts:?}"
    );
    assert!(
        snapshots > 20 && counts.skipped > 100 && counts.applied > 100,
        "little to get wrong: {story}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_exact_on_15() {
    exact([15, 15]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_18_to_15() {
    exact([18, 15]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exact_15_to_18() {
    exact([15, 18]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_are_exact_on_18() {
    exact([18, 18]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shapes_and_cuts() {
    let pair = Pair::start([18, 15]).await;
    let work = pair.shard(7, TABLES, KEYS).await;
    fill(&pair).await;
    let copied = copy(&pair, &work, Pace::default()).await.unwrap();
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    assert_eq!(copied.rows, 8 * WIDE as u64);
    assert_same(&source, &target, &work).await;
    let all = chunks(&source, &target, &work).await.unwrap();
    let count = |table: &str| all.iter().filter(|chunk| chunk.table == table).count();
    for table in ["big", "small", "uuids", "texts", "padded", "truncated"] {
        assert!(
            (10..200).contains(&count(table)),
            "{table} has {} chunks",
            count(table)
        );
    }
    assert_eq!(
        count("numbers"),
        1,
        "the order of numeric is not known here"
    );
    assert!(
        (7..=14).contains(&count("we\"ird Ünï")),
        "the first key has few values, and none is cut"
    );
    let rows: i64 = one(
        &target.client,
        "SELECT max(rows) FROM pgshard.chunk WHERE table_name = 'big'",
    )
    .await;
    assert!(rows < 200, "{rows} rows in one chunk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_copy_that_died_goes_on() {
    let pair = Pair::start([15, 18]).await;
    let work = pair.shard(7, TABLES, KEYS).await;
    fill(&pair).await;
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let count = "SELECT count(snapshot) FROM pgshard.chunk";
    let (mut runs, mut before) = (0, 0_i64);
    loop {
        // The time grows with each run, so that a slow machine gets to the end too.
        let patience = std::time::Duration::from_millis(200 * (runs + 1));
        let rest = tokio::time::timeout(patience, copy(&pair, &work, slow(2 << 20))).await;
        let now: i64 = one(&target.client, count).await;
        assert!(now >= before, "what is copied stays");
        (before, runs) = (now, runs + 1);
        if let Ok(ended) = rest {
            assert_eq!(ended.unwrap().rows, 8 * WIDE as u64);
            break;
        }
    }
    assert!(runs > 2, "it was killed");
    assert_same(&source, &target, &work).await;
}

/// The keys of each table are built in one transaction as soon as its rows are there; a copy that
/// is resumed builds what is missing, and nothing twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_are_built_with_the_copy() {
    let pair = Pair::start([15, 18]).await;
    let work = pair.shard(7, TABLES, KEYS).await;
    fill(&pair).await;
    let target = pair.session(1, work.shard()).await;
    let statement = |sql: String| Statement {
        stage: Stage::PrimaryKey,
        what: "key".to_owned(),
        sql,
        table: None,
        path: None,
    };
    let add_key = |table: &str| {
        statement(format!(
            "ALTER TABLE shard_0007__incoming.{table} ADD PRIMARY KEY (id)"
        ))
    };
    let mut builds: Builds = ["big", "small"]
        .map(|table| (table.to_owned(), vec![add_key(table)]))
        .into();
    let index = |column: &str| {
        statement(format!(
            "CREATE INDEX ON shard_0007__incoming.big ({column})"
        ))
    };
    builds.entry("big".to_owned()).or_default().push(index("n"));
    let copy = async |builds: &Builds| {
        let builds = [(work.shard(), builds.clone())].into();
        let options = CopyOptions {
            builds,
            ..options(&pair, Pace::default())
        };
        copy_all(&pair.hosts, vec![work.clone()], &options)
            .await
            .0
            .pop()
            .unwrap()
            .1
    };
    let there = async || {
        built(&target, "shard_0007__incoming", &["big", "small", "texts"])
            .await
            .unwrap()
    };
    let both = ["big", "small"].map(str::to_owned).into();
    assert_eq!(copy(&builds).await.unwrap().rows, 8 * WIDE as u64);
    assert_eq!(there().await, both);
    target
        .client
        .batch_execute("ALTER TABLE shard_0007__incoming.small DROP CONSTRAINT small_pkey")
        .await
        .unwrap();
    assert_eq!(copy(&builds).await.unwrap().rows, 8 * WIDE as u64);
    assert_eq!(there().await, both);
    let sql = "SELECT count(*) FROM pg_index WHERE indrelid = 'shard_0007__incoming.big'::regclass";
    assert_eq!(one::<i64>(&target.client, sql).await, 2);
    builds.insert("texts".to_owned(), vec![index("id"), index("nonsense")]);
    assert!(
        copy(&builds)
            .await
            .unwrap_err()
            .to_string()
            .contains("nonsense"),
        "what cannot be built is told"
    );
    assert_eq!(
        one::<i64>(&target.client, sql).await,
        2,
        "all of a table's or none"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_movers_copy_nothing_twice() {
    let pair = Pair::start([15, 15]).await;
    let work = pair.shard(7, TABLES, KEYS).await;
    fill(&pair).await;
    let (one, other) = tokio::join!(
        copy(&pair, &work, Pace::default()),
        copy(&pair, &work, Pace::default())
    );
    // The two may have collided while cutting: the table's key refuses one of them, before it has
    // done anything.
    assert!(one.is_ok() || other.is_ok(), "{one:?} {other:?}");
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    assert_same(&source, &target, &work).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_lease_nothing_is_written() {
    let pair = Pair::start([15, 15]).await;
    let work = pair.shard(7, TABLES, KEYS).await;
    fill(&pair).await;
    let target = pair.session(1, work.shard()).await;
    let copying = copy(&pair, &work, slow(1 << 20));
    let taking_over = async {
        let count = "SELECT count(snapshot) FROM pgshard.chunk";
        while one::<i64>(&target.client, count).await < 5 {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        target
            .client
            .batch_execute("UPDATE pgshard.incoming SET lease = gen_random_uuid()")
            .await
            .unwrap();
        one::<i64>(&target.client, count).await
    };
    let (ended, then) = tokio::join!(copying, taking_over);
    assert!(matches!(ended, Err(Error::LeaseLost { .. })), "{ended:?}");
    assert_eq!(
        one::<i64>(&target.client, "SELECT count(snapshot) FROM pgshard.chunk").await,
        then
    );
}

/// Hole 6: the owner's COPY silently gave only some of the rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_level_security_hides_nothing() {
    let pair = Pair::start([15, 15]).await;
    let secured = "ALTER TABLE {shard}.t ADD PRIMARY KEY (id); ALTER TABLE {shard}.t ENABLE ROW \
        LEVEL SECURITY,
        FORCE ROW LEVEL SECURITY;
        CREATE POLICY few ON {shard}.t USING (id > 7)";
    let work = pair
        .shard(7, "CREATE TABLE {shard}.t (id integer NOT NULL)", secured)
        .await;
    let sql =
        "ALTER TABLE shard_0007.t NO FORCE ROW LEVEL SECURITY; INSERT INTO shard_0007.t SELECT \
            generate_series(1, 10);
        ALTER TABLE shard_0007.t FORCE ROW LEVEL SECURITY";
    pair.app(0).await.batch_execute(sql).await.unwrap();
    let error = copy(&pair, &work, Pace::default()).await.unwrap_err();
    assert!(error.to_string().contains("row-level security"), "{error}");
    assert_eq!(
        one::<i64>(
            pair.app(1).await.client(),
            "SELECT count(*) FROM shard_0007__incoming.t"
        )
        .await,
        0
    );
}

/// Hole 15: a TRUNCATE that is under way when the lock is requested is in the snapshot.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_truncate_between_lock_and_snapshot() {
    let pair = Pair::start([15, 18]).await;
    let keys = "ALTER TABLE {shard}.t ADD PRIMARY KEY (id)";
    let work = pair
        .shard(7, "CREATE TABLE {shard}.t (id integer NOT NULL)", keys)
        .await;
    let client = pair.app(0).await;
    client
        .batch_execute("INSERT INTO shard_0007.t SELECT generate_series(1, 10)")
        .await
        .unwrap();
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    // The cut comes first, because it reads the table too.
    crate::mover::copy::cut::cut(
        &source,
        &target,
        &work,
        &Options::default().chunk_bytes(1 << 20),
    )
    .await
    .unwrap();
    let all = chunks(&source, &target, &work).await.unwrap();
    client
        .batch_execute("BEGIN; TRUNCATE shard_0007.t; INSERT INTO shard_0007.t VALUES (11)")
        .await
        .unwrap();
    let xid: i64 = one(&client, "SELECT pg_current_xact_id()::text::bigint").await;
    let throttle = Throttle::open();
    let plain = crate::mover::Options::default();
    let copying = crate::mover::copy::chunk::copy(
        (&source, &target),
        &work,
        &all,
        "trial",
        &plain,
        &throttle,
        |_| (),
    );
    let committing = async {
        let waits = "SELECT count(*) FROM pg_locks WHERE NOT granted";
        let other = pair.app(0).await;
        while one::<i64>(&other, waits).await == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
        client.batch_execute("COMMIT").await.unwrap();
    };
    let (copied, ()) = tokio::join!(copying, committing);
    assert_eq!(copied.unwrap().unwrap()[0].rows, 1);
    let chunks = load(&target, work.hold, &work.tables).await.unwrap();
    assert!(chunks["t"].sees(Some("11"), &[Some("11")], xid as u64));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_shards_failure_is_its_own() {
    let pair = Pair::start([15, 15]).await;
    let mut all = Vec::new();
    for number in 1..=12 {
        let keys = "ALTER TABLE {shard}.t ADD PRIMARY KEY (id); INSERT INTO {shard}.t SELECT \
            generate_series(1, 100)";
        all.push(
            pair.shard(
                number,
                "CREATE TABLE {shard}.t (id integer NOT NULL); CREATE TABLE {shard}.u (a text)",
                keys,
            )
            .await,
        );
    }
    pair.app(1)
        .await
        .batch_execute("DROP TABLE shard_0005__incoming.t")
        .await
        .unwrap();
    let (ends, _) = copy_all(&pair.hosts, all, &options(&pair, Pace::default())).await;
    for (shard, end) in ends {
        if shard == ShardId::new(5).unwrap() {
            assert!(
                end.unwrap_err()
                    .to_string()
                    .contains("shard_0005__incoming.t")
            );
        } else {
            assert_eq!(end.unwrap().rows, 100);
        }
    }
}

/// Rows that differ are named, with each kind of difference; chunks that do not differ are
/// recorded.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_differs_is_named() {
    let pair = Pair::start([18, 15]).await;
    let tables = "CREATE TABLE {shard}.t (id integer NOT NULL, price numeric);
        CREATE TYPE {shard}.mood AS ENUM ('good', 'bad'); CREATE TABLE {shard}.bag (a integer, m \
        {shard}.mood)";
    let fill = "ALTER TABLE {shard}.t ADD PRIMARY KEY (id); INSERT INTO {shard}.t SELECT g, 1.0 \
        FROM generate_series(1,
        20000) g;
        ALTER TABLE {shard}.bag REPLICA IDENTITY FULL; INSERT INTO {shard}.bag VALUES (1, 'good'), \
        (1, 'good'),
        (2, 'bad'), (3, NULL)";
    let work = pair.shard(7, tables, fill).await;
    copy(&pair, &work, Pace::default()).await.unwrap();
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let all = chunks(&source, &target, &work).await.unwrap();
    let tables: Vec<_> = work.tables.iter().collect();
    let compared = async |hashing| {
        read_from(&source, &work, &tables, "SET LOCAL lock_timeout = '2s'")
            .await
            .unwrap();
        read_from_target(&target, &work, &tables, set_workers(0))
            .await
            .unwrap();
        let found = compare((&source, &target), &work, &all, hashing).await;
        source.client.batch_execute("ROLLBACK").await.unwrap();
        target.client.batch_execute("ROLLBACK").await.unwrap();
        found
    };
    for hashing in [Hashing::Binary, Hashing::Text] {
        compared(hashing).await.unwrap();
    }
    keep(&target, &work, &all).await.unwrap();
    assert!(
        bunches(chunks(&source, &target, &work).await.unwrap(), 1 << 20).is_empty(),
        "all are verified"
    );
    let change = async |sql: &str| target.client.batch_execute(sql).await.unwrap();
    change("SET search_path = shard_0007__incoming").await;
    for hashing in [Hashing::Binary, Hashing::Text] {
        change(
            "UPDATE t SET price = 1.00 WHERE id = 77; DELETE FROM t WHERE id = 9000; INSERT INTO t \
                VALUES (20001, 1)",
        )
        .await;
        let Err(Error::RowsDiffer { table, rows, .. }) = compared(hashing).await else {
            panic!("they differ")
        };
        let sides: Vec<_> = rows
            .iter()
            .map(|row| (row.key.as_str(), row.source.is_some(), row.target.is_some()))
            .collect();
        assert_eq!(
            (table.as_str(), sides),
            (
                "t",
                vec![
                    ("(77)", true, true),
                    ("(9000)", true, false),
                    ("(20001)", false, true)
                ]
            )
        );
        change(
            "UPDATE t SET price = 1.0 WHERE id = 77; INSERT INTO t VALUES (9000, 1.0); DELETE FROM \
                t WHERE id = 20001",
        )
        .await;
        compared(hashing).await.unwrap();
        // Two rows exchange a value, so that each column's sum stays the same.
        change("UPDATE t SET price = 2 WHERE id IN (5, 6)").await;
        source
            .client
            .batch_execute("UPDATE shard_0007.t SET price = 2 WHERE id IN (5, 7)")
            .await
            .unwrap();
        let Err(Error::RowsDiffer { rows, .. }) = compared(hashing).await else {
            panic!("they differ")
        };
        assert_eq!(
            rows.iter().map(|row| row.key.as_str()).collect::<Vec<_>>(),
            ["(6)", "(7)"]
        );
        change("UPDATE t SET price = 1.0").await;
        source
            .client
            .batch_execute("UPDATE shard_0007.t SET price = 1.0")
            .await
            .unwrap();
        change("DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag WHERE a = 1)").await;
        let error = compared(hashing).await.unwrap_err().to_string();
        assert!(
            error.contains("rows of bag differ") && error.contains("(1,good)"),
            "{error}"
        );
        change("INSERT INTO bag VALUES (1, 'good')").await;
    }
    change("UPDATE t SET price = 3").await;
    let Err(Error::RowsDiffer { rows, .. }) = compared(Hashing::Binary).await else {
        panic!("they differ")
    };
    assert_eq!(rows.len(), 10, "no more are told");
}

/// Generated columns that alone have other values are named, and no fault is suspected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_computed_otherwise_is_named() {
    let pair = Pair::start([18, 15]).await;
    let tables =
        "CREATE FUNCTION {shard}.twice(int) RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT \
        $1 * 2';
        CREATE TABLE {shard}.t (id integer NOT NULL, a int, same int GENERATED ALWAYS AS (a + 1) \
        STORED,
            double int GENERATED ALWAYS AS ({shard}.twice(a)) STORED)";
    let work = pair
        .shard(7, tables, "ALTER TABLE {shard}.t ADD PRIMARY KEY (id)")
        .await;
    let fill = "INSERT INTO shard_0007.t SELECT g, g FROM generate_series(1, 9) g";
    pair.app(0).await.batch_execute(fill).await.unwrap();
    let replaced = "CREATE OR REPLACE FUNCTION shard_0007__incoming.twice(int) RETURNS int \
        LANGUAGE sql IMMUTABLE
        AS 'SELECT $1 * 2 + 1'";
    pair.app(1).await.batch_execute(replaced).await.unwrap();
    copy(&pair, &work, Pace::default()).await.unwrap();
    let (source, target) = (
        pair.session(0, work.shard()).await,
        pair.session(1, work.shard()).await,
    );
    let all = chunks(&source, &target, &work).await.unwrap();
    let tables: Vec<_> = work.tables.iter().collect();
    let compared = async || {
        read_from(&source, &work, &tables, "SET LOCAL lock_timeout = '2s'")
            .await
            .unwrap();
        read_from_target(&target, &work, &tables, set_workers(0))
            .await
            .unwrap();
        let found = compare((&source, &target), &work, &all, Hashing::Binary).await;
        source.client.batch_execute("ROLLBACK").await.unwrap();
        target.client.batch_execute("ROLLBACK").await.unwrap();
        found
    };
    let Err(Error::Computed { table, columns, .. }) = compared().await else {
        panic!("they differ")
    };
    assert_eq!((table.as_str(), columns), ("t", vec!["double".to_owned()]));
    // Where other values differ, too, those are reported.
    target
        .client
        .batch_execute("UPDATE shard_0007__incoming.t SET a = 0 WHERE id = 3")
        .await
        .unwrap();
    let Err(Error::RowsDiffer { .. }) = compared().await else {
        panic!("they differ")
    };
}
