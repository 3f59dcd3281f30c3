//! The commands for operators: psql on the right host, many keys in one call, the meaning of a
//! code, metrics, the map for other programs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pgshard::dev::StopMode;
use serde_json::json;

use super::{Run, alone, folder, pgshard};
use crate::support::TestCluster;

const PHOTOS: &str =
    "CREATE TABLE {shard}.photos (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), title text)";

/// Two hosts with 8 shards and their table.
fn cluster() -> TestCluster {
    let cluster = TestCluster::start(15, 2);
    cluster.write_config_with_migrations(8, &[("0001_photos.sql", PHOTOS)]);
    assert_eq!(run(&cluster, &["bootstrap"]).exit, 0);
    cluster
}

fn run(cluster: &TestCluster, args: &[&str]) -> Run {
    pgshard(cluster.directory(), args)
}

/// Runs the command in a folder, with this on its stdin.
fn fed(folder: &Path, args: &[&str], stdin: &[u8]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    command
        .args(args)
        .current_dir(folder)
        .env_remove("PGSHARD_CONFIG");
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Run {
        exit: output.status.code().unwrap(),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// Each line gets its own answer: a wrong line does not affect the others, and an endless one takes
/// no memory.
#[test]
fn many_keys_and_ids() {
    let folder = folder();
    let config = pgshard::config::template()
        .replace("shards = 4096", "shards = 16")
        .replace("0-2047", "0-7");
    fs::write(
        folder.path().join("pgshard.toml"),
        config.replace("2048-4095", "8-15"),
    )
    .unwrap();
    let keys: String = (0..3000).map(|key| format!("{key}\n")).collect();
    let all = fed(
        folder.path(),
        &["locate", "--keys", "-", "--json"],
        keys.as_bytes(),
    );
    let lines = all.json();
    assert_eq!((all.exit, lines.len()), (0, 3000), "{}", all.stderr);
    let is_key = |said: &serde_json::Value, key: usize| {
        said.as_str().is_some_and(|text| text.parse() == Ok(key))
    };
    assert!(
        lines
            .iter()
            .enumerate()
            .all(|(key, line)| is_key(&line["key"], key) && line["shard"] == key % 16)
    );

    fs::write(folder.path().join("keys"), "\u{feff}7\r\n\nseven\n8").unwrap();
    let some = pgshard(folder.path(), &["locate", "--keys", "keys"]);
    assert_eq!(
        (some.exit, some.stdout.as_str()),
        (8, "7\t7\tshard_0007\tdb1\n8\t8\tshard_0008\tdb2\n")
    );
    assert!(some.stderr.contains("line 3: "), "{}", some.stderr);
    let wrong = pgshard(folder.path(), &["locate", "--keys", "keys", "--json"]).json();
    assert_eq!(wrong[1]["line"], 3);

    let id = pgshard(
        folder.path(),
        &[
            "id",
            "encode",
            "--ms",
            "1387263000",
            "--shard",
            "9",
            "--json",
        ],
    )
    .json()
    .remove(0);
    let id = id["id"].as_str().unwrap();
    let located = fed(
        folder.path(),
        &["locate", "--ids", "-", "--json"],
        format!("{id}\nx7\n").as_bytes(),
    );
    assert_eq!(
        (
            located.exit,
            &located.json()[0]["host"],
            &located.json()[1]["line"]
        ),
        (8, &json!("db2"), &json!(2))
    );
    assert_eq!(
        fed(
            folder.path(),
            &["locate", "--keys", "-"],
            &vec![b'7'; 100_000]
        )
        .exit,
        2
    );
    assert_eq!(
        pgshard(folder.path(), &["locate", "--keys", "nowhere"]).exit,
        2
    );
}

/// The manual's tables, by their codes.
#[test]
fn codes_are_explained() {
    let finding = alone(&["explain", "host_emptied"]);
    assert_eq!(finding.exit, 0, "{}", finding.stderr);
    assert!(
        finding
            .stdout
            .starts_with("host_emptied (finding, alarm)\n\nmeans:  a host's database is empty")
    );
    assert!(
        finding
            .stdout
            .contains("remedy: restore it (docs/trouble.md#a-host-has-lost-its-database)")
    );
    for (code, kind) in [
        ("7", "exit code"),
        ("kept", "phase"),
        ("sh001", "SQLSTATE"),
        ("InDoubt", "error"),
    ] {
        let told = alone(&["explain", code, "--json"]).json().remove(0);
        assert_eq!(told["kind"], kind, "{told}");
        assert!(!told["means"].as_str().unwrap().is_empty(), "{told}");
    }
    assert_eq!(
        alone(&["explain", "host_absent", "--json"]).json().len(),
        2,
        "it is an alarm or a warning"
    );
    let slip = alone(&["explain", "host_emptid"]);
    assert!(
        slip.exit == 2 && slip.stderr.contains("did you mean host_emptied?"),
        "{slip:?}"
    );
    let list = alone(&["explain"]).stdout;
    let listed: BTreeSet<&str> = list.lines().collect();
    assert!(
        listed.len() > 80 && listed.len() == list.lines().count(),
        "each once: {list}"
    );
    let signpost = alone(&["explain", "SH001"]).stdout;
    assert!(
        signpost.contains("names the host (docs/protocol.md)"),
        "{signpost}"
    );
}

/// With another N, kind of keys or epoch in the config, a key leads to another shard: no command
/// that queries a host opens it.
#[test]
fn a_config_that_contradicts_the_cluster_opens_no_shard() {
    let cluster = cluster();
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    assert!(
        text.contains("db1 = \"0-3\"") && text.contains("db2 = \"4-7\""),
        "{text}"
    );
    for (from, to, words) in [
        (
            "shards = 8",
            "shards = 16",
            "it recorded 8 shards, the config says 16",
        ),
        (
            "shards = 8",
            "shards = 8\nkey = \"string:sha256\"",
            "it recorded that keys are integer",
        ),
        ("2026-", "2025-", "it recorded the epoch"),
    ] {
        let other = text.replacen(from, to, 1).replace(
            "\"4-7\"",
            if to.contains("16") {
                "\"4-15\""
            } else {
                "\"4-7\""
            },
        );
        assert_ne!(other, text);
        let other = cluster.write("other.toml", &other);
        let with = |args: &[&str]| {
            let config = ["--config", other.to_str().unwrap()];
            run(&cluster, &[&config[..], args].concat())
        };
        for args in [
            &["psql", "--key", "13", "--", "-c", "SELECT 1"][..],
            &["psql", "--shard", "3", "--", "-c", "SELECT 1"],
            &["locate", "--key", "13", "--check"],
        ] {
            let told = with(args);
            assert_eq!(
                (told.exit, told.stdout.as_str()),
                (4, ""),
                "{args:?}: {told:?}"
            );
            assert!(told.stderr.contains(words), "{}", told.stderr);
        }
        // It queries no host, and its output includes that.
        let told = with(&["locate", "--key", "13"]);
        assert_eq!(told.exit, 0, "{told:?}");
        assert!(
            told.stdout.contains("no host was asked; --check asks"),
            "{told:?}"
        );
        // One finding a host, and nothing about its shards: their schemas are not to be dropped.
        let check = with(&["check", "--rows", "--json"]).json().remove(0);
        let findings = check["findings"].as_array().unwrap();
        assert_eq!(findings.len(), 2, "{check:#}");
    }
    let told = run(&cluster, &["locate", "--key", "13", "--check", "--json"]);
    assert_eq!(told.json()[0]["checked"], json!(true), "{told:?}");
    let told = run(&cluster, &["locate", "31341"]);
    assert_eq!(told.exit, 2, "{told:?}");
    assert!(
        told.stderr
            .contains("remedy: `pgshard locate --key 31341` takes it as a key"),
        "{told:?}"
    );
}

/// Shards without tables are mostly a line that was forgotten in the config.
#[test]
fn bootstrap_warns_of_a_config_without_migrations() {
    let cluster = TestCluster::start(15, 1);
    cluster.write_config(4);
    let told = run(&cluster, &["bootstrap"]);
    assert_eq!(told.exit, 0, "{told:?}");
    let warning = "the config has no `migrations`, so bootstrap creates no tables in the shards:";
    assert!(told.stderr.contains(warning), "{told:?}");
    cluster.write("migrations/0001_photos.sql", PHOTOS);
    let told = run(&cluster, &["bootstrap"]);
    assert!(
        told.stderr
            .contains(", and migrations is not read: write migrations = \"migrations\""),
        "{told:?}"
    );
    cluster.write_config_with_migrations(4, &[("0001_photos.sql", PHOTOS)]);
    let told = run(&cluster, &["bootstrap"]);
    assert!(!told.stderr.contains("warning"), "{told:?}");
    let shown = run(
        &cluster,
        &["map", "show", "--by", "writes", "--sample-s", "1"],
    );
    assert_eq!(shown.exit, 0, "{shown:?}");
    assert!(
        shown.stderr.contains("no shard has any weight by writes"),
        "{shown:?}"
    );
}

/// A variable that is not set is a mistake of this side: no server was queried.
#[test]
fn a_password_variable_that_is_not_set_is_named() {
    let cluster = cluster();
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    let place = "[hosts.db2]\n";
    assert!(text.contains(place), "{text}");
    let (variable, named) = ("NO_SUCH_PASSWORD", "password_env = \"NO_SUCH_PASSWORD\"\n");
    let text = text.replace(place, &format!("{place}{named}"));
    cluster.write("pgshard.toml", &text);
    for args in [&["check"][..], &["bootstrap"], &["host", "list"]] {
        let told = run(&cluster, args);
        let all = format!("{}{}", told.stdout, told.stderr);
        assert_ne!(told.exit, 0, "{args:?}: {told:?}");
        for part in [
            "db2",
            &format!("the environment variable {variable}, which password_env names, is not set"),
            "which was not contacted",
        ] {
            assert!(all.contains(part), "{args:?}: {part}: {told:?}");
        }
    }
}

/// The hosts determine where the shard is, even if the map disagrees; psql gets its own password
/// file, its arguments, and passes on its exit code.
#[tokio::test(flavor = "multi_thread")]
async fn psql_where_the_shard_is() {
    let cluster = cluster();
    let psql = |args: &[&str]| run(&cluster, &[&["psql"], args].concat());
    let schema = [
        "--",
        "-X",
        "-At",
        "-c",
        "SELECT current_schema || ' ' || current_setting('application_name')",
    ];
    let by_key = psql(&[&["--key", "13"][..], &schema].concat());
    assert_eq!(
        (by_key.exit, by_key.stdout.as_str()),
        (0, "shard_0005 pgshard psql\n"),
        "{}",
        by_key.stderr
    );
    let client = cluster.app(1).await;
    let id: i64 = client
        .query_one("SELECT shard_0006.next_id()", &[])
        .await
        .unwrap()
        .get(0);
    assert_eq!(
        psql(&[&["--id", &id.to_string()][..], &schema].concat()).stdout,
        "shard_0006 pgshard psql\n"
    );
    assert_eq!(
        psql(&[
            "--shard",
            "1",
            "--",
            "-X",
            "-At",
            "-c",
            "SELECT count(*) FROM photos"
        ])
        .stdout,
        "0\n"
    );
    let script = psql(&[
        "--shard",
        "1",
        "--",
        "-X",
        "-v",
        "ON_ERROR_STOP=1",
        "-c",
        "SELECT 1/0",
    ]);
    assert_eq!(script.exit, 1, "{}", script.stderr);
    assert_eq!(psql(&["--shard", "8"]).exit, 2);

    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    assert_eq!(
        run(&cluster, &["move", "1", "--to", "db2", "--yes"]).exit,
        0
    );
    let old = cluster.write("old.toml", &text);
    let moved = psql(
        &[
            &["--config", old.to_str().unwrap(), "--shard", "1"][..],
            &schema,
        ]
        .concat(),
    );
    assert_eq!(
        moved.stdout, "shard_0001 pgshard psql\n",
        "{}",
        moved.stderr
    );
    assert!(
        moved.stderr.contains("on db2") && moved.stderr.contains("`pgshard map rebuild`"),
        "{}",
        moved.stderr
    );
}

/// No password is in an argument or in the environment; the file that contains it is private, and
/// gone at the end.
#[test]
fn psql_gets_its_password_by_a_file() {
    use std::os::unix::fs::PermissionsExt;
    let cluster = cluster();
    let script = cluster.write(
        "bin/psql",
        "#!/bin/sh\necho \"args: $*\"\nenv | grep -c hunter2\nls \
            -l \"$PGPASSFILE\"\ncat \"$PGPASSFILE\"\n\
         echo \"$PGPASSFILE\" > passfile\nexit 3\n",
    );
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    cluster.write("secret", "hunter2\n");
    let with = text.replacen(
        "[hosts.db1]\n",
        "[hosts.db1]\npassword_file = \"secret\"\n",
        1,
    );
    let config = cluster.write("secret.toml", &with);
    let output = Command::new(env!("CARGO_BIN_EXE_pgshard"))
        .args([
            "--config",
            config.to_str().unwrap(),
            "psql",
            "--shard",
            "0",
            "--",
            "-c",
            "SELECT 1",
        ])
        .current_dir(cluster.directory())
        .env("PGSHARD_PG_BIN", script.parent().unwrap())
        .env("PGPASSWORD", "another")
        .output()
        .unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(3), "psql's own code: {said}");
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["args: -c SELECT 1", "0"], "{said}");
    assert!(
        lines[2].starts_with("-rw------- ") && lines[3] == "*:*:*:*:hunter2",
        "{said}"
    );
    let place = fs::read_to_string(cluster.directory().join("passfile")).unwrap();
    assert!(!Path::new(place.trim()).exists(), "{place}");
}

/// An exporter, which ends when this is dropped.
struct Exporter {
    child: Child,
    address: String,
}

impl Drop for Exporter {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Exporter {
    fn start(folder: &Path, args: &[&str]) -> Exporter {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
        command
            .args(["exporter", "--listen", "127.0.0.1:0"])
            .args(args)
            .current_dir(folder);
        let mut child = command
            .env_remove("PGSHARD_CONFIG")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .strip_prefix("listening on http://")
            .unwrap()
            .strip_suffix("/metrics")
            .unwrap();
        Exporter {
            address: address.to_owned(),
            child,
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The samples of a scrape. Checks that the family of each was announced.
    fn scrape(&self) -> BTreeMap<String, f64> {
        let answer = self.get("/metrics");
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(
            head.starts_with("HTTP/1.1 200") && head.contains("text/plain; version=0.0.4"),
            "{head}"
        );
        let families: Vec<&str> = body
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
            .collect();
        let samples = body
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| {
                let (name, value) = line.rsplit_once(' ').unwrap();
                let family = name.split('{').next().unwrap();
                let known = families
                    .iter()
                    .any(|known| family.strip_prefix(known).is_some());
                assert!(known, "{line}");
                (name.to_owned(), value.parse().unwrap())
            });
        samples.collect()
    }
}

/// What Prometheus gets: from hosts that answer, from one that is down, and from one that accepts
/// connections and never answers.
#[test]
fn the_exporter_reports_hosts_that_are_down() {
    let cluster = cluster();
    assert_eq!(
        run(&cluster, &["move", "0-1", "--to", "db2", "--yes"]).exit,
        0
    );
    let text = fs::read_to_string(cluster.directory().join("pgshard.toml")).unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let mute = format!("[hosts.mute]\nurl = \"postgres://app@127.0.0.1:{port}/app\"\n\n[map]");
    let config = cluster.write("mute.toml", &text.replacen("[map]", &mute, 1));
    let exporter = Exporter::start(
        cluster.directory(),
        &[
            "--floor-s",
            "0",
            "--timeout-s",
            "2",
            "--config",
            config.to_str().unwrap(),
        ],
    );
    let seen = exporter.scrape();
    let is = |seen: &BTreeMap<String, f64>, name: &str, value: f64| {
        assert_eq!(seen.get(name), Some(&value), "{seen:#?}")
    };
    is(&seen, "pgshard_host_up{host=\"db1\"}", 1.0);
    is(&seen, "pgshard_host_up{host=\"mute\"}", 0.0);
    is(&seen, "pgshard_host_shards{host=\"db2\"}", 6.0);
    is(
        &seen,
        "pgshard_findings{severity=\"error\",code=\"host_unreachable\"}",
        1.0,
    );
    is(&seen, "pgshard_findings{severity=\"alarm\",code=\"\"}", 0.0);
    is(&seen, "pgshard_move_shards{phase=\"kept\"}", 2.0);
    let pauses = "pgshard_move_pause_seconds";
    is(&seen, &format!("{pauses}_count{{host=\"db1\"}}"), 2.0);
    is(&seen, &format!("{pauses}_count{{host=\"db2\"}}"), 0.0);
    is(
        &seen,
        &format!("{pauses}_bucket{{host=\"db1\",le=\"+Inf\"}}"),
        2.0,
    );
    is(&seen, "pgshard_map_version", 3.0);
    assert!(seen["pgshard_host_bytes{host=\"db1\"}"] > 1e6);
    let manual =
        fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/metrics.md")).unwrap();
    let told = manual
        .split("\n## The exporter\n")
        .nth(1)
        .unwrap()
        .split("\n## ")
        .next()
        .unwrap();
    let told: BTreeSet<&str> = told
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .filter(|name| name.starts_with("pgshard_"))
        .collect();
    let families = seen.keys().map(|name| name.split('{').next().unwrap());
    let families: BTreeSet<&str> = families
        .map(|name| {
            ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| name.strip_suffix(part))
                .unwrap_or(name)
        })
        .collect();
    assert_eq!(
        families, told,
        "docs/metrics.md, ## The exporter, has every metric, and no other"
    );
    // The reverse replication has a slot at the target.
    assert!(
        seen.keys()
            .any(|name| name.starts_with("pgshard_slot_wal_kept_bytes{host=\"db2\",")),
        "{seen:#?}"
    );

    cluster.server(0).stop(StopMode::Immediate).unwrap();
    let seen = exporter.scrape();
    is(&seen, "pgshard_host_up{host=\"db1\"}", 0.0);
    is(&seen, "pgshard_host_up{host=\"db2\"}", 1.0);
    assert!(
        !seen.contains_key(&format!("{pauses}_count{{host=\"db1\"}}")),
        "{seen:#?}"
    );

    // With a config that cannot be read, the hosts of the one before it are looked after.
    is(&seen, "pgshard_config_up", 1.0);
    let down = "pgshard_findings{severity=\"error\",code=\"host_unreachable\"}";
    is(&seen, down, 2.0);
    fs::write(&config, "no config").unwrap();
    let seen = exporter.scrape();
    is(&seen, "pgshard_config_up", 0.0);
    is(&seen, down, 2.0);
    is(&seen, "pgshard_host_up{host=\"db2\"}", 1.0);
    assert!(exporter.get("/other").starts_with("HTTP/1.1 404"));

    // However often Prometheus scrapes, the hosts are queried at most once in the shortest time.
    let rare = Exporter::start(cluster.directory(), &["--floor-s", "3600"]);
    assert_eq!(rare.scrape(), rare.scrape());
    drop(silent);
}

/// The map for a proxy, a program and a shell; no format has a password.
#[test]
fn the_map_for_others() {
    let cluster = cluster();
    let export = |format: &str| run(&cluster, &["map", "export", "--format", format]).stdout;
    let toml = export("toml");
    assert_eq!(run(&cluster, &["map", "export"]).stdout, toml);
    assert!(
        toml.starts_with("[map]") || toml.contains("[map.placement]"),
        "{toml}"
    );
    let json: serde_json::Value = serde_json::from_str(&export("json")).unwrap();
    assert_eq!(
        (&json["hosts"]["db2"]["shards"], &json["version"]),
        (&json!("4-7"), &json!(1))
    );
    assert_eq!(run(&cluster, &["map", "export", "--json"]).json()[0], json);

    let pgdog: toml_edit::DocumentMut = export("pgdog").parse().unwrap();
    let databases = pgdog["databases"].as_array_of_tables().unwrap();
    let port = i64::from(cluster.server(1).port());
    assert_eq!(databases.len(), 2);
    let second = databases.get(1).unwrap();
    assert_eq!(
        (second["port"].as_integer(), second["shard"].as_integer()),
        (Some(port), Some(1))
    );
    let schemas = pgdog["sharded_schemas"].as_array_of_tables().unwrap();
    let places: Vec<_> = schemas
        .iter()
        .map(|one| (one["name"].as_str().unwrap(), one["shard"].as_integer()))
        .collect();
    assert_eq!(
        (places.len(), places[3], places[4]),
        (8, ("shard_0003", Some(0)), ("shard_0004", Some(1)))
    );

    let script = format!(
        "{}echo \"$PGSHARD_SHARDS $PGSHARD_HOSTS $PGSHARD_SHARDS_DB2\"",
        export("env")
    );
    let output = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "8 db1 db2 4-7\n");
}
