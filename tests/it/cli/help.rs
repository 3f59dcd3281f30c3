//! Help, completions, the manual, and how the command behaves as a whole.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{alone, folder, pgshard};

/// Every command, by the pages of the manual.
fn commands(folder: &Path) -> Vec<String> {
    assert_eq!(pgshard(folder, &["man", "--out", "man"]).exit, 0);
    let pages = fs::read_dir(folder.join("man")).unwrap();
    let mut commands: Vec<String> = pages
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .map(|page| {
            page.trim_start_matches("pgshard")
                .trim_end_matches(".1")
                .replace('-', " ")
                .trim()
                .to_owned()
        })
        // The one with a hyphen in its own name.
        .map(|command| command.replace("json schema", "json-schema"))
        .collect();
    commands.sort();
    assert!(commands.len() > 5, "{commands:?}");
    commands
}

/// The pages of the manual are the commands there are: every one has its help, and it is as it was.
#[test]
fn help_of_every_command() {
    let folder = folder();
    for command in commands(folder.path()) {
        let mut args: Vec<&str> = command.split_whitespace().collect();
        args.push("--help");
        let name = if command.is_empty() {
            "help".to_owned()
        } else {
            format!("help {command}")
        };
        insta::assert_snapshot!(
            name.replace(' ', "_"),
            pgshard(folder.path(), &args).shown()
        );
    }
}

/// On a narrow terminal and a wide one: paragraphs are filled, nothing sticks out, every command
/// has examples, and those are not broken.
#[test]
fn help_at_every_width() {
    let folder = folder();
    for width in [80, 100, 140] {
        // Wider text is harder to read: the command stops at this.
        let filled = width.min(100);
        for command in commands(folder.path()) {
            let args: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
            let output = Command::new(env!("CARGO_BIN_EXE_pgshard"))
                .args(&args)
                .env("COLUMNS", width.to_string())
                .stdin(Stdio::null())
                .output()
                .unwrap();
            let page = String::from_utf8(output.stdout).unwrap();
            let place = format!("pgshard {command} --help, {width} columns");
            let (text, examples) = page.split_once("\nExamples:\n").unwrap_or((&page, ""));
            let is_group = text.contains("\nCommands:\n");
            assert!(
                is_group || !examples.is_empty(),
                "{place}: there are no examples"
            );
            for example in examples.lines().take_while(|line| !line.is_empty()) {
                assert!(
                    example.starts_with("  ") && example.len() <= 100,
                    "{place}: {example}"
                );
            }
            // clap does not wrap the usage.
            let lines: Vec<&str> = text
                .lines()
                .filter(|line| !line.starts_with("Usage: "))
                .collect();
            for pair in lines.windows(2) {
                assert!(pair[0].chars().count() <= filled, "{place}: {}", pair[0]);
                if let Some(word) = continued(pair[0], pair[1]) {
                    let would = pair[0].chars().count() + 1 + word.chars().count();
                    assert!(
                        would > filled,
                        "{place}: {word:?} would have fitted behind:\n{}\n{}",
                        pair[0],
                        pair[1]
                    );
                }
            }
        }
    }
}

/// The first word of a line that continues the paragraph of the line before it.
fn continued<'a>(line: &str, next: &'a str) -> Option<&'a str> {
    const TEXT: usize = 10;
    let indent = |line: &str| line.len() - line.trim_start().len();
    let word = next.split_whitespace().next()?;
    let heading =
        line.trim_end().ends_with(':') || line.starts_with("Usage:") || next.starts_with("Usage:");
    // What is possible, and the default, have lines of their own on a long page.
    if line.trim().is_empty() || heading || word == "-" || word.starts_with('[') {
        return None;
    }
    // Prose is at the margin; the meaning of an option is far to the right of its name, or begins
    // on the next line.
    let prose = indent(line) == 0 && indent(next) == 0;
    let meaning =
        indent(next) >= TEXT && (indent(line) == indent(next) || line.trim_start().contains("  "));
    (prose || meaning).then_some(word)
}

#[test]
fn no_command_is_a_mistake() {
    let run = alone(&[]);
    assert_eq!((run.exit, run.stdout.as_str()), (2, ""));
    insta::assert_snapshot!(alone(&["lcoate", "--key", "1"]).shown());
}

/// `pgshard … | head` ends well and prints no error.
#[test]
fn a_reader_that_goes_away_is_no_failure() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    command
        .args(["man"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (
            output.status.code(),
            String::from_utf8(output.stderr).unwrap()
        ),
        (Some(0), String::new())
    );
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
    let coloured = alone(&[
        "--color",
        "always",
        "id",
        "range",
        "--from",
        "2026-01-02",
        "--to",
        "2026-01-01",
        "--epoch",
        "0",
    ]);
    let plain = alone(&[
        "--color",
        "never",
        "id",
        "range",
        "--from",
        "2026-01-02",
        "--to",
        "2026-01-01",
        "--epoch",
        "0",
    ]);
    assert!(coloured.stderr.contains("\u{1b}["));
    let mut stripped = String::new();
    let mut rest = coloured.stderr.as_str();
    while let Some((before, after)) = rest.split_once('\u{1b}') {
        stripped.push_str(before);
        rest = after.split_once('m').unwrap().1;
    }
    assert_eq!(stripped + rest, plain.stderr);
}
