//! `pgshard import`, on real servers.

mod keys;
mod obstacles;
mod reads;
mod separate;
mod shown;
mod statements;

use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tokio_postgres::Client;

use crate::support::{TestCluster, connect, contract};

/// A database on the first server, its URL and a session of its superuser.
async fn database(cluster: &TestCluster) -> (String, Client) {
    let admin = cluster.superuser(0).await;
    let made = admin.batch_execute("CREATE DATABASE base").await;
    made.expect("it did not exist");
    let url = cluster.server(0).superuser_url_of("base");
    let base = connect(&url).await;
    (url, base)
}

/// The report of `pgshard import assess --json` on a database.
fn assess(url: &str, args: &[&str]) -> Value {
    let (exit, stdout, stderr) = run(url, &[&["--json"], args].concat());
    assert!([0, 1, 4].contains(&exit), "{exit}: {stderr}");
    let report: Value = serde_json::from_str(&stdout).expect("the report is JSON");
    let expected = match report["verdict"].as_str() {
        Some("possible") => 0,
        Some("possible_after_changes") => 1,
        _ => 4,
    };
    assert_eq!(exit, expected, "{stdout}");
    report
}

/// The exit code, stdout and stderr of `pgshard import assess`.
fn run(url: &str, args: &[&str]) -> (i32, String, String) {
    pgshard(&[&["import", "assess", url, "--key", "users.id"], args].concat())
}

/// The exit code, stdout and stderr of `pgshard`.
fn pgshard(args: &[&str]) -> (i32, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_pgshard"))
        .args(args)
        .current_dir(Path::new("/"))
        .env_remove("PGSHARD_CONFIG")
        .stdin(Stdio::null())
        .output()
        .expect("the command was built");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    if args.contains(&"--json") {
        contract::keeps(args, &stdout, &stderr);
    }
    (output.status.code().unwrap_or(-1), stdout, stderr)
}

/// The names of the obstacles.
fn obstacles(report: &Value) -> Vec<String> {
    let all = report["obstacles"].as_array().expect("a list");
    all.iter()
        .map(|one| one["id"].as_str().expect("a text").to_owned())
        .collect()
}

/// The decision about a table.
fn decision(report: &Value, table: &str) -> String {
    let tables = report["tables"].as_array().expect("a list");
    let found = tables.iter().find(|one| one["table"] == table);
    let found = found.unwrap_or_else(|| panic!("{table} is reported: {report}"));
    found["decision"].as_str().expect("a text").to_owned()
}
