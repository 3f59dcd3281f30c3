//! `pgshard` as its users see it: the real binary, its stdout, stderr and exit code, as snapshots.
//!
//! After an intended change: `INSTA_UPDATE=always cargo test --test it cli`, and read the
//! difference.

mod config;
mod contract;
mod help;
mod ids;
mod local;
mod progress;
mod readers;
mod remedies;
mod servers;
mod top;
mod verbs;

use std::path::Path;
use std::process::{Command, Stdio};

/// The result of one run of the command.
#[derive(Debug)]
struct Run {
    exit: i32,
    stdout: String,
    stderr: String,
}

/// Runs the command in a folder, without a terminal and without this environment's settings.
fn pgshard(folder: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    for name in [
        "PGSHARD_CONFIG",
        "PGSHARD_LOG",
        "RUST_LOG",
        "CLICOLOR_FORCE",
        "COLUMNS",
    ] {
        command.env_remove(name);
    }
    let output = command
        .args(args)
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("the command was built");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    let exit = output.status.code().expect("the command ends by itself");
    let (stdout, stderr) = (text(output.stdout), text(output.stderr));
    if args.contains(&"--json") {
        crate::support::contract::keeps(args, &stdout, &stderr);
    }
    Run {
        exit,
        stdout,
        stderr: crate::support::readable(&stderr),
    }
}

impl Run {
    /// The run as a snapshot shows it.
    fn shown(&self) -> String {
        format!(
            "exit: {}\n----- stdout -----\n{}----- stderr -----\n{}",
            self.exit, self.stdout, self.stderr
        )
    }

    /// The lines that `--json` printed, each checked to be an object of version 1.
    fn json(&self) -> Vec<serde_json::Value> {
        let lines = self
            .stdout
            .lines()
            .map(|line| serde_json::from_str(line).expect("each line is JSON"));
        let values: Vec<serde_json::Value> = lines.collect();
        assert!(
            values.iter().all(|value| value["schema_version"] == 1),
            "{}",
            self.stdout
        );
        values
    }
}

/// An empty folder, removed at the end of the test.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("there is room for a folder")
}

/// Runs the command in an empty folder.
fn alone(args: &[&str]) -> Run {
    pgshard(folder().path(), args)
}
