//! `pgshard` as its users see it: the real binary, its stdout, stderr and exit code, as snapshots.
//!
//! After a change that is meant: `INSTA_UPDATE=always cargo test --test it cli`, and read the difference.

mod config;
mod ids;
mod servers;

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// What one run of the command gave.
struct Run {
    exit: i32,
    stdout: String,
    stderr: String,
}

/// Runs the command in a folder, without a terminal and without this environment's settings.
fn pgshard(folder: &Path, args: &[&str]) -> Run {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    for name in ["PGSHARD_CONFIG", "PGSHARD_LOG", "RUST_LOG", "CLICOLOR_FORCE", "COLUMNS"] {
        command.env_remove(name);
    }
    let output = command.args(args).current_dir(folder).stdin(Stdio::null()).output().expect("the command was built");
    let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
    let exit = output.status.code().expect("the command ends by itself");
    Run { exit, stdout: text(output.stdout), stderr: text(output.stderr) }
}

impl Run {
    /// The run as a snapshot shows it.
    fn shown(&self) -> String {
        format!("exit: {}\n----- stdout -----\n{}----- stderr -----\n{}", self.exit, self.stdout, self.stderr)
    }

    /// What `--json` printed, a value a line, each checked to be an object of version 1.
    fn json(&self) -> Vec<serde_json::Value> {
        let lines = self.stdout.lines().map(|line| serde_json::from_str(line).expect("each line is JSON"));
        let values: Vec<serde_json::Value> = lines.collect();
        assert!(values.iter().all(|value| value["schema_version"] == 1), "{}", self.stdout);
        values
    }
}

/// An empty folder, gone at the end of the test.
fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("there is room for a folder")
}

/// Runs the command in an empty folder.
fn alone(args: &[&str]) -> Run {
    pgshard(folder().path(), args)
}

/// The pages of the manual are the commands there are: every one has its help, and it is as it was.
#[test]
fn help_of_every_command() {
    let folder = folder();
    assert_eq!(pgshard(folder.path(), &["man", "--out", "man"]).exit, 0);
    let pages = fs::read_dir(folder.path().join("man")).unwrap();
    let mut commands: Vec<String> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .map(|page| page.trim_start_matches("pgshard").trim_end_matches(".1").replace('-', " ").trim().to_owned())
        .collect();
    commands.sort();
    assert!(commands.len() > 5, "{commands:?}");
    for command in commands {
        let mut args: Vec<&str> = command.split_whitespace().collect();
        args.push("--help");
        let name = if command.is_empty() { "help".to_owned() } else { format!("help {command}") };
        insta::assert_snapshot!(name.replace(' ', "_"), pgshard(folder.path(), &args).shown());
    }
}

#[test]
fn no_command_is_a_mistake() {
    let run = alone(&[]);
    assert_eq!((run.exit, run.stdout.as_str()), (2, ""));
    insta::assert_snapshot!(alone(&["lcoate", "--key", "1"]).shown());
}

/// `pgshard … | head` ends well and says nothing.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    command.args(["man"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), String::from_utf8(output.stderr).unwrap()), (Some(0), String::new()));
}

#[test]
fn completions_of_every_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let run = alone(&["completions", shell]);
        assert_eq!((run.exit, run.stderr.as_str()), (0, ""), "{shell}");
        assert!(run.stdout.contains("locate"), "{shell}");
    }
}

#[test]
fn colour_is_decoration() {
    let coloured = alone(&["--color", "always", "id", "range", "--from", "2026-01-02", "--to", "2026-01-01", "--epoch", "0"]);
    let plain = alone(&["--color", "never", "id", "range", "--from", "2026-01-02", "--to", "2026-01-01", "--epoch", "0"]);
    assert!(coloured.stderr.contains("\u{1b}["));
    let mut stripped = String::new();
    let mut rest = coloured.stderr.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    assert_eq!(stripped + rest, plain.stderr);
}
