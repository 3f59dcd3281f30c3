//! Help, completions, the manual, and how the command behaves as a whole.

use std::fs;
use std::process::{Command, Stdio};

use super::{alone, folder, pgshard};

/// The pages of the manual are the commands that exist: every one has its help, and it has not changed.
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

/// `pgshard … | head` succeeds and prints no error.
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
    let coloured =
        alone(&["--color", "always", "id", "range", "--from", "2026-01-02", "--to", "2026-01-01", "--epoch", "0"]);
    let plain =
        alone(&["--color", "never", "id", "range", "--from", "2026-01-02", "--to", "2026-01-01", "--epoch", "0"]);
    assert!(coloured.stderr.contains("\u{1b}["));
    let mut stripped = String::new();
    let mut rest = coloured.stderr.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    assert_eq!(stripped + rest, plain.stderr);
}
