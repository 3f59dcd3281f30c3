//! The commands that talk to servers, on real ones.

use std::path::Path;

use pgshard::dev::StopMode;

use super::{Run, alone, folder, pgshard};
use crate::support::TestCluster;

/// What the command prints does not depend on the server's version; the library is tested with each
/// version.
const VERSION: u32 = 15;

const USERS: &str = "CREATE TABLE {shard}.users (
    id   bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    name text NOT NULL
);";

/// Servers, and a config for them with 8 shards and one migration.
fn cluster(hosts: usize) -> TestCluster {
    let cluster = TestCluster::start(VERSION, hosts);
    cluster.write_config_with_migrations(8, &[("0001_users.sql", USERS)]);
    cluster
}

/// A run in the cluster's folder.
fn run(cluster: &TestCluster, args: &[&str]) -> Run {
    pgshard(cluster.directory(), args)
}

/// Compares a run with its snapshot, except for what differs each time: ports, folders and times.
fn assert_shown(name: &str, run: &Run, folder: &Path) {
    let folder = format!("{}(/|\\b)", folder.display());
    let filters = [
        (folder.as_str(), "[FOLDER]/"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:[PORT]"),
        (r" +\d+(\.\d+)? s\n", " [TIME]\n"),
        (r" +time\n", " time\n"),
        (r"PostgreSQL \d+\.\d+", "PostgreSQL [VERSION]"),
        (r#""elapsed_ms":\d+"#, r#""elapsed_ms":[TIME]"#),
        (r"held +\d{7}", "held  [LEFT]"),
    ];
    insta::with_settings!({ filters => filters }, { insta::assert_snapshot!(name, run.shown()) });
}

/// Text from servers, which anyone with write access can choose, moves no cursor, sets no window
/// title and reverses no line.
#[test]
fn a_server_that_writes_to_the_terminal() {
    let cluster = cluster(1);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    let sql = r"CREATE TABLE {shard}.hostile ();
        DO $$ BEGIN RAISE EXCEPTION '%', E'a\x1b[2Jb\x1b]0;c\x07d\r' || chr(155)
            || chr(8238); END $$";
    cluster.write("migrations/0002_hostile.sql", sql);
    for command in [
        &["migrate", "up"][..],
        &["migrate", "status"],
        &["migrate", "plan"],
        &["check"],
    ] {
        let run = run(&cluster, command);
        let obeyed = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        let said = run.stdout + &run.stderr;
        assert!(!said.contains(obeyed), "{command:?}: {said:?}");
        if command.last() == Some(&"up") {
            assert!(
                said.contains("\\u{1b}[2Jb\\u{1b}]0;c\\u{7}d\\r\\u{9b}\\u{202e}"),
                "{said}"
            );
        }
    }
}

/// `dev up`, again, `status`, `down`: one command makes a cluster for development.
#[test]
fn dev_up_status_down() {
    let folder = folder();
    let path = folder.path().display().to_string();
    // Servers may run as another user, who must be able to get there.
    std::fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let up = pgshard(
        folder.path(),
        &[
            "dev", "up", "--hosts", "2", "--shards", "8", "--dir", &path, "--json",
        ],
    );
    assert_eq!(up.exit, 0, "{}", up.stderr);
    let up = up.json().remove(0);
    let config = up["config"].as_str().unwrap().to_owned();
    let url = up["hosts"]["db2"]["url"].as_str().unwrap().to_owned();

    let again = pgshard(
        folder.path(),
        &["dev", "up", "--hosts", "2", "--dir", &path, "--json"],
    );
    assert_eq!(again.json()[0], up, "{}", again.stderr);
    let status = pgshard(folder.path(), &["dev", "status", "--dir", &path, "--json"])
        .json()
        .remove(0);
    assert_eq!(
        (
            &status["hosts"]["db2"]["running"],
            &status["hosts"]["db2"]["url"]
        ),
        (&true.into(), &url.into())
    );
    let shown = pgshard(
        folder.path(),
        &["--config", &config, "map", "show", "--json"],
    )
    .json()
    .remove(0);
    assert_eq!(shown["hosts"]["db2"]["ranges"], "4-7");

    let asked = pgshard(folder.path(), &["dev", "down", "--dir", &path]);
    assert_eq!(
        asked.exit, 2,
        "nobody is here to be asked: {}",
        asked.stderr
    );
    assert!(asked.stderr.contains("--yes"));
    let down = pgshard(
        folder.path(),
        &["dev", "down", "--dir", &path, "--yes", "--json"],
    );
    assert_eq!(
        down.json()[0]["removed"],
        serde_json::json!(["db1", "db2"]),
        "{}",
        down.stderr
    );
    let nothing = pgshard(folder.path(), &["dev", "down", "--dir", &path]);
    assert_eq!(nothing.exit, 0, "{}", nothing.stderr);
}

#[test]
fn bootstrap_and_again() {
    let cluster = cluster(2);
    assert_shown(
        "bootstrap",
        &run(&cluster, &["bootstrap"]),
        cluster.directory(),
    );
    assert_shown(
        "bootstrap_again",
        &run(&cluster, &["bootstrap"]),
        cluster.directory(),
    );
    let json = run(&cluster, &["bootstrap", "--json"]);
    let last = json.json().pop().unwrap();
    assert_eq!(
        (&last["event"], &last["hosts"]["db2"]["unchanged"]),
        (&"done".into(), &4.into()),
        "{}",
        json.stdout
    );
}

#[test]
fn bootstrap_of_one_host() {
    let cluster = cluster(2);
    let last = run(
        &cluster,
        &["bootstrap", "--host", "db2", "--jobs", "1", "--json"],
    )
    .json()
    .pop()
    .unwrap();
    assert_eq!(last["hosts"]["db2"]["created"], 4);
    assert!(last["hosts"].get("db1").is_none());
    assert_shown(
        "bootstrap_unknown_host",
        &run(&cluster, &["bootstrap", "--host", "dbl"]),
        cluster.directory(),
    );
}

/// One shard cannot be created: it is named with the remedy, the others exist, and the exit code
/// shows it.
#[tokio::test(flavor = "multi_thread")]
async fn bootstrap_done_in_part() {
    let cluster = cluster(2);
    cluster
        .app(1)
        .await
        .batch_execute("CREATE SCHEMA shard_0005")
        .await
        .unwrap();
    assert_shown(
        "bootstrap_in_part_text",
        &run(&cluster, &["bootstrap"]),
        cluster.directory(),
    );
    let json = run(&cluster, &["bootstrap", "--json"]);
    assert_eq!(json.exit, 1, "now nothing was changed any more");
    let failed = &json.json().pop().unwrap()["hosts"]["db2"]["failed"];
    assert_eq!(failed[0]["shard"], 5, "{failed}");
}

#[test]
fn bootstrap_is_refused_when_the_cluster_is_another() {
    let cluster = cluster(1);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    cluster.write("pgshard.toml", &cluster.config_text(9));
    assert_shown(
        "bootstrap_refused",
        &run(&cluster, &["bootstrap"]),
        cluster.directory(),
    );
}

#[test]
fn bootstrap_with_wrong_migrations() {
    let cluster = cluster(1);
    cluster.write("migrations/0001_again.sql", "SELECT 1");
    cluster.write("migrations/photos.sql", "SELECT 1");
    assert_shown(
        "bootstrap_migration_mistakes",
        &run(&cluster, &["bootstrap"]),
        cluster.directory(),
    );
    cluster.write(
        "migrations/0002_photos.sql",
        "CREATE TABLE {shard}.photos (\n  id bigint,\n  title tetx\n)",
    );
    std::fs::remove_file(cluster.directory().join("migrations/photos.sql")).unwrap();
    std::fs::remove_file(cluster.directory().join("migrations/0001_again.sql")).unwrap();
    assert_shown(
        "bootstrap_migration_fails",
        &run(&cluster, &["bootstrap"]),
        cluster.directory(),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn sql_over_shards() {
    let cluster = cluster(2);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    for shard in [1, 6] {
        let insert = format!(
            "INSERT INTO shard_000{shard}.users VALUES (9007199254740993, 'Zoë\nof {shard}')"
        );
        cluster
            .app(shard / 4)
            .await
            .batch_execute(&insert)
            .await
            .unwrap();
    }
    let users = "SELECT id, name, ARRAY[id], 3 AS n, 0.1 AS n, NULL AS nothing, \
        '{\"a\": [1,\n2]}'::json, '{shard}' AS shard FROM {shard}.users; ";
    assert_shown(
        "sql_text",
        &run(&cluster, &["sql", users]),
        cluster.directory(),
    );
    let one = run(&cluster, &["sql", users, "--json", "--shards", "6"]);
    assert_shown("sql_json", &one, cluster.directory());
    // Whatever a column is called, and where rows are values, each bigint is a text.
    let named = run(
        &cluster,
        &[
            "sql",
            "SELECT name AS t FROM {shard}.users",
            "--shards",
            "6",
            "--json",
        ],
    )
    .json();
    assert_eq!(named[0]["rows"], serde_json::json!([{"t": "Zoë\nof 6"}]));
    let within = "SELECT u, ARRAY[u] AS us, ROW(u.id, 'x', 1.5) AS r, ARRAY[ARRAY[id]] AS a FROM \
        {shard}.users u";
    let within = run(&cluster, &["sql", within, "--shards", "6", "--json"]).json();
    let (id, user) = (
        "9007199254740993",
        serde_json::json!({"id": "9007199254740993", "name": "Zoë\nof 6"}),
    );
    let expected = serde_json::json!([{
        "u": user,
        "us": [user],
        "r": {"f1": id, "f2": "x", "f3": 1.5},
        "a": [[id]],
    }]);
    assert_eq!(within[0]["rows"], expected);
    for format in ["JSON", "XML", "YAML", "TEXT"] {
        let explain = format!("EXPLAIN (FORMAT {format}) SELECT FROM {{shard}}.users");
        let text = run(&cluster, &["sql", &explain, "--shards", "6"]);
        assert!(
            text.exit == 0 && text.stdout.contains("Seq Scan"),
            "{}",
            text.shown()
        );
        let plan = run(&cluster, &["sql", &explain, "--shards", "6", "--json"]).json()[0]["rows"]
            [0]["QUERY PLAN"]
            .clone();
        assert_eq!(plan.is_array(), format == "JSON", "{plan}");
    }
    let all = run(&cluster, &["sql", "VALUES (1), (2)", "--json"]).json();
    let mut shards: Vec<u64> = all
        .iter()
        .map(|line| line["shard"].as_u64().unwrap())
        .collect();
    shards.sort_unstable();
    assert_eq!(shards, (0..8).collect::<Vec<u64>>(), "each once");
    assert!(
        all.iter()
            .all(|line| line["rows"].as_array().unwrap().len() == 2)
    );
}

#[test]
fn sql_writes_nothing() {
    let cluster = cluster(1);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    let refused = [
        "DELETE FROM {shard}.users",
        "SELECT {shard}.next_id()",
        "WITH gone AS (DELETE FROM {shard}.users RETURNING *) SELECT * FROM gone",
        "SELECT 1) AS q; COMMIT; DELETE FROM {shard}.users; SELECT * FROM (SELECT 1",
        "SELECT * FROM {shard}.user",
    ];
    let shown = refused.map(|query| {
        let run = run(&cluster, &["sql", query, "--shards", "1-2"]);
        format!("{query}\n{}", run.shown())
    });
    insta::assert_snapshot!("sql_refused", shown.join("\n"));
    insta::assert_snapshot!(
        "sql_wrong_shards",
        run(&cluster, &["sql", "SELECT 1", "--shards", "8,x"]).shown()
    );
}

/// A host that is down affects only its own shards, and is not queried again for each of them.
#[test]
fn sql_beside_a_dead_host() {
    let cluster = cluster(2);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    cluster.server(0).stop(StopMode::Immediate).unwrap();
    let run = run(
        &cluster,
        &["sql", "SELECT count(*) FROM {shard}.users", "--json"],
    );
    assert_eq!(run.exit, 8, "{}", run.stderr);
    let (failed, answered): (Vec<_>, Vec<_>) = run
        .json()
        .into_iter()
        .partition(|line| line.get("error").is_some());
    assert!(
        failed.iter().all(|line| line["host"] == "db1")
            && answered.iter().all(|line| line["host"] == "db2")
    );
    assert_eq!((failed.len(), answered.len()), (4, 4));
}

#[test]
fn migrate_up_and_status() {
    let cluster = cluster(2);
    assert_shown(
        "migrate_status_before",
        &run(&cluster, &["migrate", "status"]),
        cluster.directory(),
    );
    let early = run(&cluster, &["migrate", "up"]);
    assert!(
        early.exit == 1 && early.stderr.contains("run `pgshard bootstrap`"),
        "{}",
        early.stderr
    );
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    cluster.write(
        "migrations/0002_photos.sql",
        "CREATE TABLE {shard}.photos (id bigint)",
    );
    cluster.write("migrations/0001_users.sql", &format!("{USERS} -- changed"));
    assert_shown(
        "migrate_status_text",
        &run(&cluster, &["migrate", "status"]),
        cluster.directory(),
    );
    cluster.write("migrations/0001_users.sql", USERS);
    assert_shown(
        "migrate_status_json",
        &run(&cluster, &["migrate", "status", "--json"]),
        cluster.directory(),
    );
    let up = run(&cluster, &["migrate", "up", "--json"])
        .json()
        .pop()
        .unwrap();
    assert_eq!(
        (
            &up["hosts"]["db1"]["migrated"],
            &up["hosts"]["db1"]["created"]
        ),
        (&4.into(), &0.into())
    );
    let status = run(&cluster, &["migrate", "status", "--json"])
        .json()
        .remove(0);
    assert_eq!(status["migrations"][1]["applied"], 8);
    assert_eq!(status["migrations"][1]["pending"], "");
}

#[tokio::test(flavor = "multi_thread")]
async fn check_from_the_first_day_on() {
    let cluster = cluster(2);
    assert_shown(
        "check_before_bootstrap",
        &run(&cluster, &["check"]),
        cluster.directory(),
    );
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    assert_shown(
        "check_ok_text",
        &run(&cluster, &["check"]),
        cluster.directory(),
    );
    assert_shown(
        "check_ok_json",
        &run(&cluster, &["check", "--json"]),
        cluster.directory(),
    );

    let gone = "DROP SCHEMA shard_0005 CASCADE; DROP SCHEMA shard_0006 CASCADE";
    cluster.app(1).await.batch_execute(gone).await.unwrap();
    assert_shown(
        "check_findings_text",
        &run(&cluster, &["check"]),
        cluster.directory(),
    );
    let json = run(&cluster, &["check", "--json"]);
    assert_eq!(json.exit, 1);
    assert_shown("check_findings_json", &json, cluster.directory());
}

#[test]
fn check_with_a_dead_host() {
    let cluster = cluster(2);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    cluster.server(0).stop(StopMode::Immediate).unwrap();
    assert_shown(
        "check_dead_host",
        &run(&cluster, &["check"]),
        cluster.directory(),
    );
    let report = run(&cluster, &["check", "--json"]).json().remove(0);
    assert_eq!(
        (&report["ok"], &report["findings"][0]["host"]),
        (&false.into(), &"db1".into())
    );
}

/// The map was changed by hand: the hosts know better, and the map is rebuilt from them.
#[test]
fn a_map_is_rebuilt_from_the_hosts() {
    let cluster = cluster(2);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    let right = std::fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    let wrong = right
        .replace("db1 = \"0-3\"", "db1 = \"0-5\"")
        .replace("db2 = \"4-7\"", "db2 = \"6-7\"");
    assert_ne!(right, wrong);
    cluster.write("pgshard.toml", &wrong);
    assert_shown(
        "check_wrong_map",
        &run(&cluster, &["check"]),
        cluster.directory(),
    );
    assert_shown(
        "map_diff_hosts",
        &run(&cluster, &["map", "diff"]),
        cluster.directory(),
    );
    assert_shown(
        "map_rebuild_unasked",
        &run(&cluster, &["map", "rebuild"]),
        cluster.directory(),
    );
    assert_eq!(
        std::fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap(),
        wrong
    );
    assert_shown(
        "map_rebuild",
        &run(&cluster, &["map", "rebuild", "--yes"]),
        cluster.directory(),
    );
    let published = std::fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    assert_eq!(
        published,
        right.replace("version = 1", "version = 2"),
        "comments and all"
    );
    assert_eq!(run(&cluster, &["check"]).exit, 0);
    assert_shown(
        "map_rebuild_again",
        &run(&cluster, &["map", "rebuild"]),
        cluster.directory(),
    );

    for server in [0, 1] {
        cluster.server(server).stop(StopMode::Fast).unwrap();
    }
    for args in [&["map", "diff"][..], &["map", "rebuild", "--yes"]] {
        let unheard = run(&cluster, args);
        assert!(
            unheard.exit == 1 && unheard.stderr.contains("no host can be asked"),
            "{args:?}: {}",
            unheard.shown()
        );
    }
}

/// Tickets from the first one to a host that is down.
#[test]
fn tickets_are_shown_created_and_refused() {
    let cluster = cluster(3);
    let mut shown = String::new();
    let mut show = |args: &[&str]| {
        let run = run(&cluster, args);
        shown += &format!("$ pgshard {}\n{}\n", args.join(" "), run.shown());
        run
    };
    show(&["tickets", "next", "users"]);
    show(&["tickets", "create", "users", "--hosts", "db1,db2"]);
    show(&["tickets", "create", "users", "--hosts", "db1,db2", "--json"]);
    show(&[
        "tickets", "create", "users", "--hosts", "db1", "--stride", "2",
    ]);
    show(&["tickets", "create", "Users"]);
    show(&[
        "tickets",
        "create",
        "users",
        "--hosts",
        "db3",
        "--replace",
        "db2",
    ]);
    show(&[
        "tickets",
        "create",
        "users",
        "--hosts",
        "db3",
        "--replace",
        "db2",
        "--start",
        "50000",
    ]);
    show(&[
        "tickets", "create", "users", "--hosts", "db1,db2", "--start", "1000000",
    ]);
    show(&["tickets", "status"]);
    show(&["tickets", "create", "users", "--max", "1000000"]);
    show(&["tickets", "create", "users", "--max", "2147483647"]);
    show(&["tickets", "create", "orders", "--max", "0"]);
    show(&[
        "tickets", "create", "orders", "--hosts", "db1", "--max", "8193",
    ]);
    show(&["tickets", "next", "orders", "-n", "2"]);
    show(&["tickets", "next", "orders"]);
    show(&["tickets", "status"]);
    let both: Vec<i64> = ["1", "1", "5"]
        .iter()
        .flat_map(|count| {
            run(&cluster, &["tickets", "next", "users", "-n", count])
                .stdout
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .map(|line| line.parse().unwrap())
        .collect();
    assert_eq!(
        both.iter().collect::<std::collections::HashSet<_>>().len(),
        7
    );
    assert!(both.iter().all(|ticket| *ticket >= 1_000_000));

    cluster.server(1).stop(StopMode::Fast).unwrap();
    let left = run(&cluster, &["tickets", "next", "users", "-n", "3", "--json"])
        .json()
        .remove(0);
    assert_eq!(
        (&left["name"], left["tickets"].as_array().unwrap().len()),
        (&"users".into(), 3)
    );
    assert!(left["tickets"][0].is_string());
    let status = run(&cluster, &["tickets", "status", "--json"]);
    let json = status.json().remove(0);
    assert_eq!(status.exit, 1);
    assert_eq!(
        json["hosts"]["db1"]["names"]["users"]["claims"],
        serde_json::json!({ "1": "db1", "2": "db2" })
    );
    assert!(
        json["hosts"]["db2"]["error"]
            .as_str()
            .unwrap()
            .contains("out of reach")
    );
    assert_shown(
        "tickets",
        &Run {
            exit: 0,
            stdout: shown,
            stderr: String::new(),
        },
        cluster.directory(),
    );
}

/// Worker numbers: before the table exists, creating it twice, and who holds which numbers.
#[test]
fn workers_show_who_holds_which_number() {
    let cluster = cluster(1);
    let mut shown = String::new();
    let mut show = |args: &[&str]| {
        let run = run(&cluster, args);
        shown += &format!("$ pgshard {}\n{}\n", args.join(" "), run.shown());
        run
    };
    show(&["workers", "status", "--host", "db1"]);
    show(&["workers", "install", "--host", "db1", "--first"]);
    show(&["workers", "install", "--host", "db1", "--json"]);
    show(&["workers", "install"]);
    show(&["workers", "status", "--host", "db9"]);
    show(&["workers", "status", "--host", "db1", "--json"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = cluster.app(0).await;
        for (space, keep_ms) in [
            ("events", 0_i64),
            ("events", 3_600_000),
            ("photos", 3_600_000),
        ] {
            let sql = "SELECT worker FROM pgshard_workers.acquire($1, \
                    md5(clock_timestamp()::text)::uuid, $2, 30000, $3, NULL)";
            client
                .query_one(sql, &[&space, &1_700_000_000_000_i64, &keep_ms])
                .await
                .unwrap();
        }
    });
    // The first number was free again, but there were others that had never been used.
    let json = run(&cluster, &["workers", "status", "--host", "db1", "--json"])
        .json()
        .remove(0);
    let held = |space: &str, worker: &str| json["spaces"][space][worker]["held"].as_bool();
    assert_eq!(
        (
            held("events", "0"),
            held("events", "1"),
            held("photos", "0")
        ),
        (Some(false), Some(true), Some(true))
    );
    assert!(json["spaces"]["photos"]["0"]["left_ms"].as_u64().unwrap() > 3_000_000);
    assert_eq!(
        json["spaces"]["events"]["1"]["ceiling"],
        "2023-11-14T22:13:50Z"
    );
    let photos = run(
        &cluster,
        &[
            "workers", "status", "--host", "db1", "--space", "photos", "--json",
        ],
    )
    .json()
    .remove(0);
    assert_eq!(
        photos["spaces"]
            .as_object()
            .unwrap()
            .keys()
            .collect::<Vec<_>>(),
        ["photos"]
    );
    for _ in 0..2 {
        let args = [
            "workers", "release", "--host", "db1", "--space", "photos", "--worker", "0,7",
        ];
        shown += &format!(
            "$ pgshard {}\n{}\n",
            args.join(" "),
            run(&cluster, &args).shown()
        );
    }
    let status = run(&cluster, &["workers", "status", "--host", "db1"]);
    shown += &format!("$ pgshard workers status --host db1\n{}\n", status.shown());
    assert_shown(
        "workers",
        &Run {
            exit: 0,
            stdout: shown,
            stderr: String::new(),
        },
        cluster.directory(),
    );
}

/// Compares with the same work done by hand, also with a host that is out of reach. Nothing is
/// written.
#[test]
fn bench_beside_the_same_by_hand() {
    let cluster = cluster(2);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    let bench = run(
        &cluster,
        &["bench", "--seconds", "1", "--connections", "2", "--json"],
    );
    assert_eq!(bench.exit, 0, "{}", bench.stderr);
    let report = bench.json().remove(0);
    for host in ["db1", "db2"] {
        let run = &report["hosts"][host];
        for way in ["by_hand", "router"] {
            assert!(
                run[way]["p50_ms"].as_f64().unwrap() > 0.0
                    && run[way]["per_second"].as_f64().unwrap() > 0.0,
                "{run}"
            );
        }
        assert!(
            run["connect_ms"].as_f64().unwrap() > 0.0
                && run["latency_ratio"].as_f64().unwrap() > 0.0,
            "{run}"
        );
    }
    assert_eq!(
        (&report["fan_out"]["shards"], &report["failed"]),
        (&8.into(), &serde_json::json!({}))
    );

    cluster.server(1).stop(StopMode::Fast).unwrap();
    let bench = run(&cluster, &["bench", "--seconds", "1", "--connections", "2"]);
    assert_eq!(bench.exit, 8, "{}", bench.stderr);
    assert!(
        bench.stderr.contains("db2 could not be measured"),
        "{}",
        bench.stderr
    );
    assert!(
        bench.stdout.contains("by hand") && bench.stdout.contains("4 shards:"),
        "{}",
        bench.stdout
    );
}

/// What a client must do is tested by the Python package, and its clients pass; this tests the
/// command.
#[test]
fn a_client_that_answers_nothing_fails_in_its_scene() {
    let run = alone(&[
        "conformance",
        "serve",
        "--json",
        "--only",
        "keys",
        "--",
        "true",
    ]);
    assert_eq!(run.exit, 1, "{}", run.shown());
    let report = &run.json()[0];
    assert_eq!(
        (&report["passed"], &report["failed"]),
        (&0.into(), &1.into()),
        "{report}"
    );
    assert_eq!(report["scenes"][0]["scene"], "keys");
    let run = alone(&["conformance", "serve", "--only", "nothing", "--", "true"]);
    assert_eq!((run.exit, run.stdout.as_str()), (2, ""), "{}", run.shown());
    assert!(
        run.stderr
            .contains("there is no scene nothing; there are keys, "),
        "{}",
        run.stderr
    );
}
