//! The reader of a command's output changes neither what the command does nor how it ends.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use super::folder;

/// Four shards on a host that does not answer.
const CONFIG: &str = r#"
[cluster]
shards = 4
epoch = "2026-01-01T00:00:00Z"
[hosts.db1]
url = "postgres://app@127.0.0.1:1/app"
[map]
version = 1
[map.placement]
db1 = "0-3"
"#;

/// The exit code and stderr of the command, with this as its stdout.
fn ends(folder: &Path, args: &[&str], stdout: Stdio) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    command
        .args(args)
        .current_dir(folder)
        .env_remove("PGSHARD_CONFIG")
        .stdin(Stdio::null())
        .stdout(stdout);
    let output = command
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
        .wait_with_output()
        .unwrap();
    (
        output.status.code().expect("the command ends by itself"),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn configured() -> tempfile::TempDir {
    let folder = folder();
    fs::write(folder.path().join("pgshard.toml"), CONFIG).unwrap();
    folder
}

#[test]
fn a_reader_that_went_away_changes_no_exit_code() {
    let folder = configured();
    for args in [
        &["check"][..],
        &["check", "--json"],
        &["map", "show"],
        &["map", "show", "--json"],
    ] {
        let read = ends(folder.path(), args, Stdio::null());
        assert_eq!(
            read.0,
            if args[0] == "check" { 1 } else { 0 },
            "{args:?}: {}",
            read.1
        );
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        assert_eq!(ends(folder.path(), args, writer.into()), read, "{args:?}");
    }
}

#[test]
fn a_disk_that_is_full_is_a_failure() {
    let folder = configured();
    for (args, done) in [
        (&["check"][..], 1),
        (&["map", "show"], 0),
        (&["map", "show", "--json"], 0),
    ] {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (exit, said) = ends(folder.path(), args, full.into());
        let words =
            format!("cannot write to stdout; but for that, the command has ended with {done}");
        assert!(
            exit == 1 && said.contains(&words) && said.contains("No space left"),
            "{args:?}: {exit} {said}"
        );
    }
}

/// A command without an end ends with its reader.
#[test]
fn an_endless_list_ends_with_its_reader() {
    let folder = configured();
    let locate = format!(
        "yes 7 | timeout 60 '{}' locate --keys -",
        env!("CARGO_BIN_EXE_pgshard")
    );
    let script = format!("{{ {locate}; echo \"ended with $?\" >&2; }} | head -n 1");
    let mut shell = Command::new("sh");
    let ran = shell
        .args(["-c", &script])
        .current_dir(folder.path())
        .env_remove("PGSHARD_CONFIG")
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8_lossy(&ran.stdout),
        "7\t3\tshard_0003\tdb1\n"
    );
    assert_eq!(String::from_utf8_lossy(&ran.stderr), "ended with 0\n");
}
