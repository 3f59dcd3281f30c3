//! The commands that remedies, hints and documents name can be typed: each has a name and flags
//! that exist.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap::error::ErrorKind;

use super::Args;

/// What stands in for the parts of a command that are known only when it is printed.
const STAND_INS: [(&str, &str); 8] = [
    ("SHARD", "7"),
    ("{shard}", "7"),
    ("{only}", "7"),
    ("N", "1"),
    ("COUNT", "1"),
    ("{purpose}", "router"),
    ("…", ""),
    ("FILE", "file"),
];

/// Every file below a folder with this ending.
fn files(folder: &Path, ending: &str, found: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files(&path, ending, found);
        } else if path.extension().is_some_and(|its| its == ending) {
            found.push(path);
        }
    }
}

/// The texts in backquotes that begin with the command's name. A literal of several lines is one
/// line.
fn commands(text: &str) -> Vec<String> {
    let text = text.replace("\\\n", "\n");
    let mut found = Vec::new();
    let mut rest = text.as_str();
    while let Some((_, after)) = rest.split_once("`pgshard ") {
        let Some((command, behind)) = after.split_once('`') else {
            break;
        };
        // A comment's lines begin with slashes.
        let words = command
            .split_whitespace()
            .filter(|word| !matches!(*word, "//" | "///" | "//!"));
        found.push(words.collect::<Vec<_>>().join(" "));
        rest = behind;
    }
    found
}

/// The words of a command, with values for what is not known here.
fn words(command: &str) -> Option<Vec<String>> {
    // A pipe or a redirection ends it; what the shell takes apart is not ours.
    let command = command.split([';', '|', '>', '&']).next().unwrap_or("");
    let mut words = vec!["pgshard".to_owned()];
    for word in command.split_whitespace() {
        let word = word.trim_matches(['\'', '"', '\\']);
        let stand_in = STAND_INS.iter().find(|(name, _)| *name == word);
        match stand_in {
            Some((_, "")) => return None,
            Some((_, value)) => words.push((*value).to_owned()),
            None if word.starts_with('{') => words.push("db1".to_owned()),
            None => words.push(word.to_owned()),
        }
    }
    // The name of the command itself is filled in, or it is no command: a session's name, a line of
    // TOML.
    let is_named = command
        .split_whitespace()
        .take(2)
        .all(|word| !word.starts_with('{'));
    let is_command = words.get(1).is_some_and(|word| {
        word.chars().all(|c| c.is_ascii_lowercase() || c == '-') && word != "mover"
    });
    (is_named && is_command).then_some(words)
}

/// Why clap refuses the words, unless only something that they leave out is missing, or a value is
/// a placeholder.
fn refused(words: &[String]) -> Option<String> {
    let error = Args::command().try_get_matches_from(words).err()?;
    match error.kind() {
        ErrorKind::UnknownArgument
        | ErrorKind::InvalidSubcommand
        | ErrorKind::ArgumentConflict
        | ErrorKind::TooManyValues => Some(error.to_string()),
        _ => None,
    }
}

#[test]
fn every_command_that_a_text_names_can_be_typed() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut paths = Vec::new();
    files(&root.join("src"), "rs", &mut paths);
    files(&root.join("docs"), "md", &mut paths);
    let (mut tried, mut wrong) = (0, Vec::new());
    for path in paths.iter().filter(|path| !path.ends_with(file!())) {
        let text = fs::read_to_string(path).unwrap();
        for command in commands(&text) {
            let Some(words) = words(&command) else {
                continue;
            };
            tried += 1;
            if let Some(why) = refused(&words) {
                wrong.push(format!("{}: `pgshard {command}`: {why}", path.display()));
            }
        }
    }
    assert!(tried > 500, "{tried}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_command_that_is_none_is_found() {
    for (command, is_wrong) in [
        ("moves complete --all", false),
        ("moves repair SHARD --plan", false),
        ("migrate resolve", false),
        ("moves abort {id} --yes", false),
        ("moves complete --every", true),
        ("move complete --all", true),
        ("map repair", true),
        ("check --row", true),
    ] {
        let words = words(command).unwrap();
        assert_eq!(refused(&words).is_some(), is_wrong, "{command}");
    }
}
