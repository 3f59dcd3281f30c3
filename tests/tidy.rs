//! What the repository promises about itself: which module may use which, that documents are true
//! as far as a program can check it, what no file may contain, and which dependencies there may be.
//! Takes a second or two.

use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/manual.rs"]
mod manual;
#[path = "tidy/rooms.rs"]
mod rooms;

/// The endings of files that people read and write.
const TEXTS: &[&str] = &[
    ".rs",
    ".md",
    ".sql",
    ".sh",
    ".toml",
    "script/setup",
    "script/test",
    "script/demo",
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A file of the repository: its path from the root, and its text.
struct File {
    path: String,
    text: String,
}

/// Every text file of ours with one of these endings, sorted, without the output of builds and
/// tools.
fn files(endings: &[&str]) -> Vec<File> {
    let mut found = Vec::new();
    let mut folders = vec![root().to_path_buf()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path: PathBuf = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !["target", ".git"].contains(&name.as_str()) {
                    folders.push(path);
                }
            } else if endings.iter().any(|ending| name.ends_with(ending)) {
                let text = fs::read_to_string(&path).unwrap();
                let path = path
                    .strip_prefix(root())
                    .unwrap()
                    .to_string_lossy()
                    .into_owned();
                found.push(File { path, text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    assert!(
        !found.is_empty(),
        "there are files that end with one of {endings:?}"
    );
    found
}

/// The library's files, without `src/lib.rs`: that is the façade, and names every module.
fn library() -> Vec<File> {
    let mut files = files(&[".rs"]);
    files.retain(|file| file.path.starts_with("src/") && !file.path.starts_with("src/bin/"));
    files.retain(|file| file.path != "src/lib.rs");
    files
}

fn none_of(mistakes: Vec<String>, rule: &str) {
    assert!(mistakes.is_empty(), "{rule}\n  {}\n", mistakes.join("\n  "));
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

fn word(text: &str) -> &str {
    let end = text
        .find(|c: char| c != '_' && !c.is_alphanumeric())
        .unwrap_or(text.len());
    &text[..end]
}

/// The first cells of the rows of Markdown tables below this heading, up to the next heading of its
/// level: `| 4 | refused |` gives `4`.
fn first_cells(document: &str, heading: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(document)).unwrap();
    let lines = text.lines().skip_while(|line| *line != heading).skip(1);
    let level = format!("{} ", heading.split(' ').next().unwrap());
    let section: Vec<&str> = lines.take_while(|line| !line.starts_with(&level)).collect();
    assert!(!section.is_empty(), "{document} has a section {heading:?}");
    let cells = section
        .iter()
        .filter_map(|line| line.strip_prefix("| "))
        .filter_map(|row| row.split(" |").next());
    cells
        .map(|cell| cell.trim_matches('`').to_owned())
        .collect()
}

fn source(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap()
}
