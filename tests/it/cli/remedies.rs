//! The command's errors when something is wrong: the cause is named once, with the remedy; and
//! everything that does not depend on it still works.

use std::fs;

use pgshard::dev::StopMode;
use serde_json::{Value, json};

use super::{Run, folder, pgshard};
use crate::support::TestCluster;

const USERS: &str = "CREATE TABLE {shard}.users (id bigint PRIMARY KEY, name text)";

/// Two hosts with 8 shards and their table.
fn cluster() -> TestCluster {
    let cluster = TestCluster::start(15, 2);
    cluster.write_config_with_migrations(8, &[("0001_users.sql", USERS)]);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    cluster
}

fn run(cluster: &TestCluster, args: &[&str]) -> Run {
    pgshard(cluster.directory(), args)
}

/// The codes of `check`'s findings, each with its host.
fn found(run: &Run) -> Vec<(String, Option<String>)> {
    let findings = run.json().remove(0)["findings"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    findings
        .iter()
        .map(|one| (text(&one["code"]).unwrap(), text(&one["host"])))
        .collect()
}

fn one(code: &str, host: &str) -> (String, Option<String>) {
    (code.to_owned(), Some(host.to_owned()))
}

/// A config with another number of shards is named as what is wrong, not a host that answers.
#[test]
fn a_config_of_another_cluster_is_to_be_corrected() {
    let cluster = cluster();
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    let more = text
        .replace("shards = 8", "shards = 16")
        .replace("-7\"", "-15\"");
    let more = cluster.write("more.toml", &more);
    for args in [
        &["move", "0", "--to", "db2", "--yes"][..],
        &["moves"],
        &["moves", "gc"],
        &["moves", "repair", "0", "--plan"],
        &["drain", "db1", "--yes"],
        &["rebalance", "--plan"],
        &["host", "remove", "db2", "--yes"],
    ] {
        let told = run(
            &cluster,
            &[&["--config", more.to_str().unwrap()], args].concat(),
        );
        let said = format!("{}{}", told.stdout, told.stderr);
        assert_ne!(told.exit, 0, "{args:?}: {said}");
        assert!(
            said.contains("remedy: correct the config: `pgshard check` names what differs"),
            "{args:?}: {said}"
        );
        assert!(!said.contains("host db1: host db1"), "{args:?}: {said}");
        assert!(!said.contains("must answer"), "{args:?}: {said}");
    }
}

/// The remedy for a refused login is not to start the server.
#[test]
fn a_refused_login_is_no_dead_host() {
    let cluster = cluster();
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    let wrong = cluster.write("wrong.toml", &text.replacen("app@", "nobody@", 1));
    let wrong = |args: &[&str]| {
        run(
            &cluster,
            &[&["--config", wrong.to_str().unwrap()], args].concat(),
        )
    };
    assert_eq!(
        found(&wrong(&["check", "--json"])),
        [one("login_refused", "db1")]
    );
    for (args, exit) in [
        (&["check"][..], 1),
        (&["host", "list"], 1),
        (&["bootstrap"], 1),
        (&["moves"], 1),
    ] {
        let told = wrong(args);
        let said = format!("{}{}", told.stdout, told.stderr);
        assert_eq!(told.exit, exit, "{said}");
        assert!(
            said.contains("remedy: correct its user, password or database"),
            "{args:?}: {said}"
        );
        assert!(
            !said.contains("start it") && !said.contains("host db1: host db1"),
            "{args:?}: {said}"
        );
    }
    cluster.server(0).stop(StopMode::Immediate).unwrap();
    assert_eq!(
        found(&run(&cluster, &["check", "--json"])),
        [one("host_unreachable", "db1")]
    );
    let told = run(&cluster, &["sql", "SELECT count(*) FROM {shard}.users"]);
    assert_eq!(
        (
            told.exit,
            told.stderr
                .matches("error: host db1 is out of reach")
                .count()
        ),
        (8, 1),
        "{}",
        told.stderr
    );
    assert!(
        told.stderr.contains("4 shards not asked (0-3)"),
        "{}",
        told.stderr
    );
    assert!(
        told.stderr.contains("remedy: start it, or correct its url"),
        "{}",
        told.stderr
    );
}

/// A command that needs no migrations reads no folder; one that does reports what is wrong there,
/// and continues if it can.
#[test]
fn a_folder_of_migrations_that_cannot_be_used() {
    let cluster = cluster();
    let path = cluster.directory().join("migrations");
    cluster.write("migrations/0002_later.sql", "-- nothing yet\n");
    assert_eq!(
        found(&run(&cluster, &["check", "--json"])),
        [("migrations_unusable".to_owned(), None)]
    );
    let status = run(&cluster, &["migrate", "status", "--json"]);
    assert_eq!(status.exit, 8, "{}", status.stderr);
    let users = &status.json()[0]["migrations"][0];
    assert_eq!(
        (&users["applied"], &users["in_folder"]),
        (&json!(8), &json!(true))
    );
    assert!(
        status.stderr.contains("0002_later.sql holds no statement"),
        "{}",
        status.stderr
    );
    assert_eq!(run(&cluster, &["migrate", "up"]).exit, 2);

    fs::rename(&path, cluster.directory().join("elsewhere")).unwrap();
    for args in [
        &["locate", "--key", "5"][..],
        &["map", "show"],
        &["moves"],
        &["move", "0", "--to", "db2", "--plan"],
    ] {
        let told = run(&cluster, args);
        assert_eq!(told.exit, 0, "{}", told.stderr);
    }
    let up = run(&cluster, &["migrate", "up"]);
    assert_eq!(up.exit, 2);
    assert!(
        up.stderr
            .contains("remedy: correct `migrations` in [cluster]"),
        "{}",
        up.stderr
    );
    assert_eq!(
        found(&run(&cluster, &["check", "--json"])),
        [("migrations_unusable".to_owned(), None)]
    );
}

/// After one wrong setting, `check` does not advise to restore shards from a backup.
#[tokio::test(flavor = "multi_thread")]
async fn what_follows_from_one_cause_is_not_told() {
    let cluster = cluster();
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    let other = cluster.write(
        "other.toml",
        &text.replacen("shards = 8", "shards = 8\nschema_prefix = \"other_\"", 1),
    );
    let told = run(
        &cluster,
        &["--config", other.to_str().unwrap(), "check", "--json"],
    );
    assert_eq!(
        found(&told),
        [one("prefix_differs", "db1"), one("prefix_differs", "db2")]
    );

    // The shards that were not tried have not failed.
    cluster.write(
        "migrations/0002_bad.sql",
        "SELECT 1 / 0 FROM {shard}.users; SELECT 1 / (0 * {shard_id})",
    );
    let up = run(&cluster, &["migrate", "up", "--canary", "1", "--json"]);
    assert_eq!(up.exit, 1, "{}", up.stderr);
    let hosts = &up.json().pop().unwrap()["hosts"];
    assert_eq!(
        (
            &hosts["db1"]["failed"].as_array().unwrap().len(),
            &hosts["db1"]["not_tried"]
        ),
        (&1, &json!("1-3"))
    );
    assert_eq!(
        (&hosts["db2"]["failed"], &hosts["db2"]["not_tried"]),
        (&json!([]), &json!("4-7"))
    );
    assert_eq!(up.stderr.matches("not tried").count(), 1, "{}", up.stderr);
    assert!(
        up.stderr
            .contains("shards 1-7: not tried: 1 of the canary failed"),
        "{}",
        up.stderr
    );
    fs::remove_file(cluster.directory().join("migrations/0002_bad.sql")).unwrap();

    // A pager and a dashboard need different findings.
    cluster
        .app(1)
        .await
        .batch_execute("DROP SCHEMA shard_0005 CASCADE")
        .await
        .unwrap();
    for (fail_on, exit) in [("notice", 1), ("warning", 1), ("error", 1), ("alarm", 0)] {
        let check = run(&cluster, &["check", "--fail-on", fail_on, "--json"]);
        assert_eq!(
            (check.exit, &check.json()[0]["ok"]),
            (exit, &json!(false)),
            "{fail_on}: {}",
            check.stdout
        );
    }
}

/// A mistake in a query is reported with its remedy, counts are added up, and a plan can be
/// requested.
#[test]
fn queries_over_shards() {
    let cluster = cluster();
    let told = run(&cluster, &["sql", "SELECT count(*) FROM users"]);
    assert_eq!(told.exit, 1);
    assert!(
        told.stderr
            .contains("remedy: write {shard}. before the names"),
        "{}",
        told.stderr
    );
    let told = run(
        &cluster,
        &["sql", "SELECT count(*), max(id) FROM {shard}.users"],
    );
    assert!(
        told.stderr.contains("8 rows of 8 shards in ") && told.stderr.contains("; count of all: 0"),
        "{told:?}"
    );
    assert!(!told.stderr.contains("max of all"), "{}", told.stderr);
    let plan = [
        "sql",
        "EXPLAIN SELECT FROM {shard}.users WHERE id = 7",
        "--shards",
        "3",
    ];
    let told = run(&cluster, &plan);
    assert!(
        told.exit == 0 && told.stdout.contains("users_pkey"),
        "{told:?}"
    );
    let told = run(&cluster, &[&plan[..], &["--json"]].concat())
        .json()
        .remove(0);
    assert!(
        told["rows"][0]["QUERY PLAN"]
            .as_str()
            .unwrap()
            .contains("users_pkey"),
        "{told}"
    );
    assert_eq!(
        run(
            &cluster,
            &[
                "sql",
                "EXPLAIN ANALYZE DELETE FROM {shard}.users",
                "--shards",
                "3"
            ]
        )
        .exit,
        1
    );

    // A plan fits a screen, however many shards there are, and every statement can be shown on
    // demand.
    let steps = run(&cluster, &["move", "0-3", "--to", "db2", "--plan"]);
    assert!(
        steps.exit == 0 && steps.stdout.lines().count() < 24,
        "{steps:?}"
    );
    assert!(
        steps.stdout.contains("0-3     db1   db2") && !steps.stdout.contains("CREATE TABLE"),
        "{steps:?}"
    );
    let sql = run(&cluster, &["move", "0-3", "--to", "db2", "--plan", "--sql"]);
    assert_eq!(
        sql.stdout.matches("CREATE TABLE").count(),
        4,
        "{}",
        sql.stdout
    );

    // `host add` does not report that a host with shards has none; and db9 is not taken for a typo
    // of db2.
    let url = cluster.server(1).url();
    let again = run(&cluster, &["host", "add", "db2", &url]);
    assert!(
        again.exit == 0 && !again.stderr.contains("no shards yet"),
        "{again:?}"
    );
    let told = run(&cluster, &["move", "0", "--to", "db9"]);
    assert!(
        told.stderr.contains("remedy: the hosts are db1, db2"),
        "{}",
        told.stderr
    );
}

/// The servers are thrown away, the config stays, and the same commands work again: `dev up` knows
/// that its servers are new, and that nothing has moved on them.
#[test]
fn the_first_five_minutes_work_a_second_time() {
    let folder = folder();
    fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let dir = folder.path().to_str().unwrap();
    let config = folder.path().join("pgshard.toml");
    let run = |args: &[&str]| {
        let told = pgshard(folder.path(), args);
        assert_eq!(told.exit, 0, "{args:?}: {told:?}");
        told
    };
    for time in 1..=2 {
        let up = run(&["dev", "up", "--dir", dir, "--hosts", "2", "--shards", "4"]);
        assert_eq!(
            up.stderr.contains("counts moves from the start"),
            time == 2,
            "{}",
            up.stderr
        );
        // Servers that run are not new: nothing is taken out of the map.
        run(&["bootstrap"]);
        run(&["check"]);
        let (shard, from) = (["0", "1"][time - 1], fs::read_to_string(&config).unwrap());
        run(&["move", shard, "--to", "db2", "--yes", "--mode", "blocking"]);
        let map = fs::read_to_string(&config).unwrap();
        assert!(map.contains("@2") && map != from, "{map}");
        let up = run(&["dev", "up", "--dir", dir, "--hosts", "2", "--shards", "4"]);
        assert!(!up.stderr.contains("counts moves"), "{}", up.stderr);
        assert_eq!(fs::read_to_string(&config).unwrap(), map);
        run(&["check"]);
        run(&["dev", "down", "--dir", dir, "--yes"]);
    }
}

/// Running servers can be stopped wherever PostgreSQL's programs are; if the given place is wrong,
/// the error names it.
#[test]
fn servers_without_programs() {
    let folder = folder();
    fs::set_permissions(
        folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let dir = folder.path().to_str().unwrap();
    let with = |bin: Option<&str>, args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_pgshard"));
        command
            .args(args)
            .args(["--dir", dir])
            .current_dir(folder.path())
            .env_remove("PGSHARD_CONFIG");
        if let Some(bin) = bin {
            command.env("PGSHARD_PG_BIN", bin);
        }
        let output = command.output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let nowhere = folder.path().join("nowhere");
    let nowhere = Some(nowhere.to_str().unwrap());
    let (exit, said) = with(nowhere, &["dev", "up", "--hosts", "1", "--shards", "8"]);
    assert!(
        exit == Some(1) && said.contains("PGSHARD_PG_BIN names "),
        "{said}"
    );
    assert_eq!(
        with(None, &["dev", "up", "--hosts", "1", "--shards", "8"]).0,
        Some(0)
    );
    let (exit, said) = with(None, &["dev", "up", "--hosts", "2", "--shards", "8"]);
    assert!(
        exit == Some(0)
            && said.contains("host add db2 'postgres://")
            && !said.contains("bootstrap"),
        "{said}"
    );
    let (exit, said) = with(nowhere, &["dev", "down", "--yes"]);
    assert!(
        exit == Some(0) && said.contains("removed db1, db2"),
        "{said}"
    );
}
