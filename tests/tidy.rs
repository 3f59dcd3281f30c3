//! What the repository promises about itself: which module may use which, that documents are true
//! as far as a program can check it, what no file may contain, and which dependencies there may be.
//! Takes a second or two.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

#[path = "tidy/circles.rs"]
mod circles;
#[path = "tidy/dependencies.rs"]
mod dependencies;
#[path = "tidy/documents.rs"]
mod documents;
#[path = "tidy/language.rs"]
mod language;
#[path = "tidy/rooms.rs"]
mod rooms;

/// The modules of the library from the bottom up. A module uses itself and those before it. The
/// reasons are in ARCHITECTURE.md.
const ORDER: [&str; 22] = [
    "exploration",
    "backoff",
    "shard",
    "id",
    "map",
    "pg",
    "store",
    "idgen",
    "values",
    "router",
    "fanout",
    "lookups",
    "schema",
    "rebalance",
    "mover",
    "import",
    "config",
    "dev",
    "testing",
    "server_tests",
    "simulation",
    "fuzzing",
];

/// Exceptions to the order: these do not know each other, although one comes before the other.
const STRANGERS: [(&str, &str); 2] = [("mover", "router"), ("mover", "fanout")];

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

/// The first names after each `crate::` in the code, with their line numbers:
/// `use crate::{a::b, c}` has two. A link in a comment does not count.
fn uses(text: &str) -> Vec<(usize, String)> {
    let code: String = text
        .lines()
        .map(|line| {
            if is_comment(line) {
                "\n".into()
            } else {
                format!("{line}\n")
            }
        })
        .collect();
    let mut uses = Vec::new();
    for (at, found) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == '_' || c == '$' || c.is_alphanumeric()) {
            continue;
        }
        let line = code[..at].lines().count().max(1);
        let rest = &code[at + found.len()..];
        let Some(group) = rest.strip_prefix('{') else {
            uses.push((line, word(rest).to_owned()));
            continue;
        };
        let (mut depth, mut fresh) = (1, true);
        for (at, c) in group.char_indices() {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                ',' if depth == 1 => fresh = true,
                c if fresh && depth == 1 && (c == '_' || c.is_alphanumeric()) => {
                    uses.push((line, word(&group[at..]).to_owned()));
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    uses
}

#[test]
fn uses_are_found() {
    let text = "use crate::map::X;\n/// [`crate::dev`]\nuse crate::{\n    id::{Id, Epoch},\n    \
        ShardId,\n};\nlet x = \
                crate::pg::y();";
    let found = uses(text);
    let found: Vec<(usize, &str)> = found
        .iter()
        .map(|(line, name)| (*line, name.as_str()))
        .collect();
    assert_eq!(found, [(1, "map"), (3, "id"), (3, "ShardId"), (7, "pg")]);
}

/// What `src/lib.rs` re-exports at the root, and the module it comes from.
fn re_exports() -> BTreeMap<String, String> {
    let facade = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut names = BTreeMap::new();
    for statement in facade
        .split(';')
        .filter_map(|text| text.rsplit_once("pub use "))
    {
        // A whole crate is re-exported by its name.
        let Some((module, what)) = statement.1.split_once("::") else {
            continue;
        };
        for name in what.trim_matches(['{', '}']).split(',') {
            names.insert(name.trim().to_owned(), module.to_owned());
        }
    }
    names
}

/// Tests within the library are no exception: a layer that is tested with a higher one cannot be
/// used alone.
#[test]
fn a_module_uses_only_those_before_it() {
    let place = |module: &str| ORDER.iter().position(|known| *known == module);
    let re_exports = re_exports();
    let mut mistakes = Vec::new();
    for file in library() {
        let module = file.path["src/".len()..]
            .split(['/', '.'])
            .next()
            .unwrap()
            .to_owned();
        let Some(own) = place(&module) else {
            mistakes.push(format!(
                "{}: {module} has no place in the order: give it one, here and in src/lib.rs",
                file.path
            ));
            continue;
        };
        for (line, name) in uses(&file.text) {
            let at = format!("{}:{line}", file.path);
            let used = re_exports.get(&name).unwrap_or(&name);
            match place(used) {
                None => mistakes.push(format!("{at}: crate::{name} is no module of the library")),
                Some(other) if other > own => {
                    mistakes.push(format!("{at}: {module} uses {used}, which stands above it"));
                }
                Some(_) if STRANGERS.contains(&(module.as_str(), used)) => {
                    mistakes.push(format!(
                        "{at}: {module} uses {used}: they must not know of each other"
                    ));
                }
                Some(_) => {}
            }
        }
        mistakes.extend(out_by_super(&file));
    }
    let order = ORDER.join(", ");
    none_of(
        mistakes,
        &format!("a module of the library uses only itself and those before it in: {order}"),
    );
}

/// The folders of `src/mover`, each of which uses itself and those before it. `mod.rs` is the face,
/// which nothing inside imports.
const MOVER: [&str; 9] = [
    "definition",
    "protocol",
    "control",
    "preflight",
    "copy",
    "stream",
    "step",
    "runner",
    "command",
];

#[test]
fn a_layer_of_the_mover_uses_only_those_before_it() {
    let mut mistakes = Vec::new();
    let mut seen = 0;
    for file in library() {
        let Some(path) = file.path.strip_prefix("src/mover/") else {
            continue;
        };
        let Some((folder, within)) = path.split_once('/') else {
            continue;
        };
        if folder == "model" {
            continue;
        }
        let Some(own) = MOVER.iter().position(|layer| *layer == folder) else {
            mistakes.push(format!("{}: {folder} is no layer of the mover", file.path));
            continue;
        };
        seen += 1;
        // A file in a folder of the layer has one `super` more before it leaves the layer.
        let out = "super::"
            .repeat(1 + within.matches('/').count() + usize::from(!within.ends_with("mod.rs")));
        for (line, text) in file
            .text
            .lines()
            .enumerate()
            .filter(|(_, text)| !is_comment(text))
        {
            let at = format!("{}:{}", file.path, line + 1);
            for (place, found) in text.match_indices("crate::mover::") {
                let used = word(&text[place + found.len()..]);
                match MOVER.iter().position(|layer| *layer == used) {
                    None => mistakes.push(format!("{at}: say in which layer {used} is")),
                    Some(other) if other > own => {
                        mistakes.push(format!("{at}: {folder} uses {used}, which stands above it"))
                    }
                    Some(_) => {}
                }
            }
            if MOVER
                .iter()
                .any(|layer| text.contains(&format!("{out}{layer}::")))
            {
                mistakes.push(format!(
                    "{at}: say crate::mover::, so that it shows where this comes from"
                ));
            }
        }
    }
    assert!(seen > 50);
    none_of(
        mistakes,
        &format!(
            "a layer of the mover uses only itself and those before it in: {}",
            MOVER.join(", ")
        ),
    );
}

/// A method in another place than its type hides an import.
#[test]
fn methods_of_the_mover_stand_beside_their_types() {
    let files: Vec<File> = library()
        .into_iter()
        .filter(|file| file.path.starts_with("src/mover/"))
        .collect();
    let folder = |file: &File| file.path.rsplit_once('/').unwrap().0.to_owned();
    let mut types: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in &files {
        for line in file.text.lines() {
            let declared = ["struct ", "enum "]
                .iter()
                .find_map(|kind| line.split_once(kind));
            if let Some((before, name)) =
                declared.filter(|(before, _)| before.trim().is_empty() || before.contains("pub"))
            {
                assert!(!before.contains("//"), "{line}");
                types
                    .entry(word(name).to_owned())
                    .or_default()
                    .push(folder(file));
            }
        }
    }
    assert!(types.len() > 100);
    let mut mistakes = Vec::new();
    for file in &files {
        for (line, text) in file.text.lines().enumerate() {
            let Some(rest) = text
                .strip_prefix("impl")
                .filter(|rest| rest.starts_with([' ', '<']) && !rest.contains(" for "))
            else {
                continue;
            };
            let name = word(rest.trim_start_matches(|c: char| c != ' ').trim_start());
            let beside = types
                .get(name)
                .is_some_and(|folders| folders.contains(&folder(file)));
            if !beside {
                mistakes.push(format!(
                    "{}:{}: the type {name} is not in this folder",
                    file.path,
                    line + 1
                ));
            }
        }
    }
    none_of(
        mistakes,
        "methods of a type stand in its own file or folder",
    );
}

/// The paths out of a module that do not say `crate`: `super::` up to the root.
fn out_by_super(file: &File) -> Vec<String> {
    // src/map.rs and src/map/mod.rs are one below the root, src/map/ranges.rs two.
    let parts = file.path.split('/').count() - 1;
    let below = if file.path.ends_with("/mod.rs") {
        parts - 1
    } else {
        parts
    };
    let mut inner = 0;
    let mut mistakes = Vec::new();
    for (line, text) in file.text.lines().enumerate() {
        if !text.starts_with(' ') && text.contains("mod ") && text.ends_with(" {") {
            inner = 1;
        } else if text == "}" {
            inner = 0;
        }
        let longest = text.split(|c: char| c != ':' && c != '_' && !c.is_alphanumeric());
        let supers = longest
            .map(|path| path.split("::").take_while(|part| *part == "super").count())
            .max();
        if !is_comment(text) && supers.unwrap_or(0) >= below + inner {
            mistakes.push(format!(
                "{}:{}: say crate::, so that it shows where this comes from",
                file.path,
                line + 1
            ));
        }
    }
    mistakes
}

/// The compiler makes sure that the command uses the public API only, unless the command includes
/// the library's files.
#[test]
fn the_command_includes_no_file_of_the_library() {
    let mut mistakes = Vec::new();
    for file in files(&[".rs"])
        .iter()
        .filter(|file| file.path.starts_with("src/bin/"))
    {
        for (line, text) in file.text.lines().enumerate() {
            if text.contains("#[path") || text.contains("include!(") {
                mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
            }
        }
    }
    none_of(mistakes, "the command uses the library's public API only");
}

#[test]
fn every_file_says_what_it_is() {
    let mistakes = files(&[".rs"])
        .into_iter()
        .filter(|file| !file.text.starts_with("//! "))
        .map(|file| file.path);
    none_of(mistakes.collect(), "a .rs file opens with a //! line");
}

#[test]
fn the_library_prints_nothing() {
    let mut mistakes = Vec::new();
    // A simulation says what it found, to whom runs the tests.
    for file in library()
        .into_iter()
        .filter(|file| !file.path.starts_with("src/simulation/"))
    {
        for (line, text) in file.text.lines().enumerate() {
            let prints = ["println!", "print!", "eprint!", "dbg!"]
                .iter()
                .any(|print| text.contains(print));
            if prints && !is_comment(text) {
                mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
            }
        }
    }
    none_of(
        mistakes,
        "the library prints nothing: it returns, calls an observer, or uses `tracing`",
    );
}

/// A file's lines without the contents of its comments and literals.
fn code(text: &str) -> Vec<String> {
    let (mut code, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        let whole = |end: Option<usize>| end.unwrap_or(rest.len());
        let raw = rest
            .strip_prefix('r')
            .map(|after| after.len() - after.trim_start_matches('#').len());
        let word_before = code.ends_with(|c: char| c == '_' || c.is_alphanumeric());
        let literal = if rest.starts_with("//") {
            whole(rest.find('\n'))
        } else if let Some(hashes) =
            raw.filter(|hashes| !word_before && rest[1 + hashes..].starts_with('"'))
        {
            let end = format!("\"{}", "#".repeat(hashes));
            whole(
                rest[2 + hashes..]
                    .find(&end)
                    .map(|at| 2 + hashes + at + end.len()),
            )
        } else if first == '"' {
            let mut escaped = false;
            let end = rest.char_indices().skip(1).find(|(_, c)| {
                let ends = *c == '"' && !escaped;
                escaped = *c == '\\' && !escaped;
                ends
            });
            whole(end.map(|(at, _)| at + 1))
        } else if rest.starts_with("'\"'") {
            3
        } else {
            0
        };
        if literal > 0 {
            code.extend(rest[..literal].chars().filter(|c| *c == '\n'));
            rest = &rest[literal..];
        } else {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    code.lines().map(str::to_owned).collect()
}

#[test]
fn code_is_found() {
    let text = "let a = \"b\\\"\nc\"; // of\nlet d = r#\"\"e\"#; '\"' of\n";
    assert_eq!(code(text), ["let a = ", "; ", "let d = ;  of"]);
}

/// The word says nothing about what it stands for.
#[test]
fn no_variable_is_called_of() {
    let mut mistakes = Vec::new();
    for file in files(&[".rs"])
        .into_iter()
        .filter(|file| file.path.starts_with("src/"))
    {
        for (line, text) in code(&file.text).iter().enumerate() {
            let mut before = ' ';
            for part in text.split_inclusive(|c: char| !(c == '_' || c.is_alphanumeric())) {
                // `Part::of` and `fn of(` are functions.
                let is_word = word(part) == "of" && !part.ends_with('(');
                if is_word && before != ':' {
                    mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
                }
                before = part.chars().next_back().unwrap_or(' ');
            }
        }
    }
    none_of(mistakes, "no variable is called `of`");
}

/// A server's answer is read by `try_get`, or by the mover's rows, which give errors. Others can
/// write to its tables too, and an unexpected row must not end the process.
#[test]
fn rows_are_read_without_a_panic() {
    let mut mistakes = Vec::new();
    for file in files(&[".rs"])
        .into_iter()
        .filter(|file| file.path.starts_with("src/"))
    {
        // A mover's rows have a type of their own (src/mover/control/row.rs), whose `get` gives an
        // error.
        if ["src/server_tests/", "src/mover/"]
            .iter()
            .any(|folder| file.path.starts_with(folder))
        {
            continue;
        }
        // Rows of the simple protocol are texts, and reading them gives an Option.
        let reads = |text: &str| {
            ["row.get(", "row.get::<", ".await?.get("]
                .iter()
                .any(|read| text.contains(read))
                && !text.contains("SimpleQueryMessage::Row(row)")
        };
        for (line, text) in code(&file.text)
            .iter()
            .enumerate()
            .filter(|(_, text)| reads(text))
        {
            mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
        }
    }
    none_of(mistakes, "a server's answer is read by `try_get`");
}

/// The endings of files that people read and write.
const TEXTS: [&str; 8] = [
    ".rs",
    ".md",
    ".sql",
    ".sh",
    ".toml",
    "script/setup",
    "script/test",
    "script/demo",
];

/// How many columns a line may have, as in rustfmt.toml and .editorconfig.
const COLUMNS: usize = 100;

/// rustfmt does not wrap long literals and the contents of macros such as `html!`. This many lines
/// are longer for that reason; the number may fall, and not rise.
const LONG_LINES: usize = 391;

fn is_comment_table(line: &str) -> bool {
    let line = line.trim_start().trim_start_matches(['/', '!']);
    line.trim_start().starts_with('|')
}

#[test]
fn no_line_is_too_long() {
    let mut mistakes = Vec::new();
    let ours = ["src/", "tests/", "benches/", "examples/"];
    for file in files(&[".rs"])
        .into_iter()
        .filter(|file| ours.iter().any(|folder| file.path.starts_with(folder)))
    {
        for (at, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            // A row of a table in a comment cannot be wrapped.
            if columns > COLUMNS && !is_comment_table(line) {
                mistakes.push(format!("{}:{}: {columns} columns", file.path, at + 1));
            }
        }
    }
    if mistakes.len() > LONG_LINES {
        none_of(mistakes, &format!("a line has {COLUMNS} columns at most"));
    }
}

/// How many lines a function may have, its signature and closing brace included.
const FUNCTION_LINES: usize = 140;

/// A test tells a story, and is read from beginning to end.
const TEST_LINES: usize = 200;

/// The functions that are longer: no others may be added.
const LONG_FUNCTIONS: [(&str, &str); 6] = [
    // Tables in the form of a match, with one arm for each kind.
    ("tests/rows/schema.rs", "specials"),
    ("tests/rows/schema.rs", "make"),
    ("tests/rows/statements.rs", "of"),
    // Still to be shortened.
    ("src/idgen/tickets/setup.rs", "plan"),
    ("src/mover/step/old_copy.rs", "drop_constraints"),
    ("src/schema/check/rebuild.rs", "the_hosts_are_the_truth"),
];

/// The functions of a file: name, first line, number of lines. It relies on rustfmt's layout: the
/// closing brace is in the column of the function's first letter.
fn functions(text: &str) -> Vec<(String, usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let code = line.trim_start();
        let Some((before, name)) = code.split_once("fn ") else {
            continue;
        };
        let is_modifier = |word: &str| {
            word.starts_with("pub") || word.ends_with(')') || ["const", "async"].contains(&word)
        };
        if !before.split_whitespace().all(is_modifier) || word(name).is_empty() {
            continue;
        }
        let body = lines[at..]
            .iter()
            .position(|line| line.ends_with(['{', '}', ';']));
        let Some(body) = body.filter(|body| lines[at + body].ends_with('{')) else {
            continue;
        };
        let end = format!("{}}}", &line[..line.len() - code.len()]);
        if let Some(length) = lines[at + body..]
            .iter()
            .position(|line| line.starts_with(&end))
        {
            found.push((word(name).to_owned(), at + 1, body + length + 1));
        }
    }
    found
}

#[test]
fn functions_are_found() {
    let text = "pub(in crate::b) fn a(\n    b: u8,\n) -> u8 {\n    1\n}\n\nfn c() {}\n    async fn \
        d(x: u8) \
                {\n        fn e();\n    }\n";
    assert_eq!(
        functions(text),
        [("a".to_owned(), 1, 5), ("d".to_owned(), 8, 3)]
    );
}

#[test]
fn functions_fit_on_a_screen() {
    let (mut mistakes, mut long) = (Vec::new(), BTreeSet::new());
    for file in files(&[".rs"]) {
        let is_test = ["tests/", "src/server_tests/"]
            .iter()
            .any(|folder| file.path.starts_with(folder));
        let max = if is_test { TEST_LINES } else { FUNCTION_LINES };
        for (name, line, lines) in functions(&file.text)
            .into_iter()
            .filter(|(_, _, lines)| *lines > max)
        {
            if LONG_FUNCTIONS.contains(&(file.path.as_str(), name.as_str())) {
                long.insert((file.path.clone(), name));
            } else {
                mistakes.push(format!(
                    "{}:{line} {name}: {lines} lines, {max} at most",
                    file.path
                ));
            }
        }
    }
    let known = LONG_FUNCTIONS
        .iter()
        .map(|(path, name)| ((*path).to_owned(), (*name).to_owned()));
    mistakes.extend(
        known
            .filter(|one| !long.contains(one))
            .map(|(path, name)| format!("{path} {name} is short now")),
    );
    none_of(
        mistakes,
        "a function is cut before it is longer than a screen",
    );
}

#[test]
fn no_file_tells_of_somebodys_machine() {
    // In two parts, so that this file does not contain them itself.
    let paths = [
        concat!("/wo", "rk/"),
        concat!("/ho", "me/"),
        concat!("/Us", "ers/"),
        concat!("/ro", "ot/"),
    ];
    let mut mistakes = Vec::new();
    for file in files(&TEXTS) {
        for (line, text) in file.text.lines().enumerate() {
            if paths.iter().any(|path| text.contains(path)) {
                mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
            }
        }
    }
    none_of(
        mistakes,
        "no file names a path of the machine on which it was written",
    );
}

/// Links of a Markdown text that are not URLs: `[text](docs/glossary.md#part)` gives
/// `docs/glossary.md`.
fn links(text: &str) -> Vec<String> {
    let mut links = Vec::new();
    for (at, _) in text.match_indices("](") {
        let rest = &text[at + 2..];
        let link = rest[..rest.find(')').unwrap_or(0)]
            .split('#')
            .next()
            .unwrap_or_default();
        if !link.is_empty() && !link.contains("://") && !link.starts_with("mailto:") {
            links.push(link.to_owned());
        }
    }
    links
}

#[test]
fn documents_are_linked_and_links_lead_somewhere() {
    let mut mistakes = Vec::new();
    let mut linked = BTreeSet::new();
    let documents = files(&[".md"]);
    for file in &documents {
        let folder = root().join(&file.path).parent().unwrap().to_path_buf();
        for link in links(&file.text) {
            match folder.join(&link).canonicalize() {
                Ok(path) => drop(linked.insert((path, file.path.clone()))),
                Err(_) => mistakes.push(format!("{}: ({link}) leads nowhere", file.path)),
            }
        }
    }
    for file in documents
        .iter()
        .filter(|file| file.path.starts_with("docs/"))
    {
        let path = root().join(&file.path).canonicalize().unwrap();
        if !linked
            .iter()
            .any(|(to, from)| *to == path && *from != file.path)
        {
            mistakes.push(format!("{}: no other document links to it", file.path));
        }
    }
    none_of(
        mistakes,
        "every document in docs/ can be found, and no link is dead",
    );
}

/// A document named in a comment or in another document exists: `docs/operating.md`,
/// `ARCHITECTURE.md`.
#[test]
fn documents_that_are_named_exist() {
    let documents: Vec<String> = files(&[".md"]).into_iter().map(|file| file.path).collect();
    let mut mistakes = Vec::new();
    for file in files(&TEXTS) {
        for (line, text) in file.text.lines().enumerate() {
            for (at, found) in text.match_indices(".md") {
                let end = at + found.len();
                let start =
                    text[..at].rfind(|c: char| !(c.is_alphanumeric() || "_-/.".contains(c)));
                let name = text[start.map_or(0, |at| at + 1)..end]
                    .trim_start_matches("../")
                    .trim_start_matches("./");
                let whole = !text[end..].starts_with(|c: char| c.is_alphanumeric());
                // Code that searches for the ending names no document.
                let named = whole && name.len() > ".md".len() && !name.contains("://");
                if named
                    && !documents
                        .iter()
                        .any(|path| path == name || path.ends_with(&format!("/{name}")))
                {
                    mistakes.push(format!("{}:{}: there is no {name}", file.path, line + 1));
                }
            }
        }
    }
    none_of(mistakes, "a document that is named exists");
}

/// A file of SQL that nothing embeds never runs.
#[test]
fn every_sql_file_is_embedded() {
    let embedding: Vec<String> = library()
        .into_iter()
        .map(|file| file.text)
        .filter(|text| text.contains("include_str!"))
        .collect();
    let sql = files(&[".sql"]).into_iter().map(|file| file.path);
    let ours = sql.filter(|path| path.starts_with("src/") || path.starts_with("migrations/"));
    let mistakes = ours.filter(|path| {
        // A macro combines some names with a folder.
        let name = path.rsplit('/').next().unwrap();
        let literals = [format!("/{name}\""), format!("\"{name}\"")];
        !embedding
            .iter()
            .any(|text| literals.iter().any(|literal| text.contains(literal)))
    });
    none_of(
        mistakes.collect(),
        "every file of SQL is embedded by include_str!",
    );
}

/// Only the functions of the control schema change who serves a shard, and bootstrap's INSERT of a
/// shard that nobody has; a takeover changes the lease.
#[test]
fn only_the_control_schema_changes_who_serves() {
    let mut mistakes = Vec::new();
    for file in library() {
        for (line, text) in file.text.lines().enumerate() {
            let changes = [
                "UPDATE pgshard.shard ",
                "DELETE FROM pgshard.shard ",
                "INTO pgshard.shard (",
            ];
            let may = text.contains(" SET lease = ") || file.path == "src/schema/fleet/recipe.rs";
            if changes.iter().any(|change| text.contains(change)) && !may {
                mistakes.push(format!("{}:{}: {}", file.path, line + 1, text.trim()));
            }
        }
    }
    none_of(
        mistakes,
        "no SQL changes pgshard.shard but the functions of migrations/control",
    );
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

#[test]
fn exit_codes_are_in_the_manual() {
    let code = source("src/bin/pgshard/exit.rs");
    let body = code
        .split("fn code(")
        .nth(1)
        .unwrap()
        .split("fn meaning")
        .next()
        .unwrap();
    let codes = body.lines().filter_map(|line| line.split_once(" => "));
    // The code of another program is not ours.
    let codes = codes.filter(|(name, _)| !name.contains("OfProgram"));
    let codes: BTreeSet<u8> = codes
        .map(|(_, code)| code.trim_end_matches(',').parse().unwrap())
        .collect();
    let cells = first_cells("docs/operating.md", "## Exit codes");
    let told: BTreeSet<u8> = cells.iter().filter_map(|cell| cell.parse().ok()).collect();
    assert_eq!(
        told, codes,
        "docs/operating.md, ## Exit codes, tells what src/bin/pgshard/exit.rs has"
    );
}

#[test]
fn phases_are_in_the_manual() {
    let code = source("src/mover/protocol/state/mod.rs");
    let body = code
        .split("const ALL")
        .nth(1)
        .unwrap()
        .split("];")
        .next()
        .unwrap();
    let phases: BTreeSet<String> = body
        .split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect();
    let told: BTreeSet<String> = first_cells("docs/moves.md", "## The phases of a move")
        .into_iter()
        .collect();
    let missing: Vec<&String> = phases.difference(&told).collect();
    assert!(
        missing.is_empty(),
        "docs/moves.md, ## The phases of a move, lacks {missing:?}"
    );
}

/// The codes are the strings that follow a severity, and those that `Refusal::code` and `unread`
/// give.
#[test]
fn findings_are_in_the_manual() {
    let literal = |text: &str| {
        text.trim_start()
            .strip_prefix('"')
            .map(|rest| rest.split('"').next().unwrap().to_owned())
    };
    let mut codes = BTreeSet::new();
    for file in library().into_iter().filter(|file| {
        file.path.starts_with("src/schema/") || file.path == "src/mover/command/movable.rs"
    }) {
        for found in file.text.split("Severity::").skip(1) {
            codes.extend(found.split_once(',').and_then(|(_, rest)| literal(rest)));
        }
    }
    let refusals = source("src/schema/survey/refusal.rs");
    let arms = refusals
        .split("pub fn code(")
        .nth(1)
        .unwrap()
        .split("\n    }\n")
        .next()
        .unwrap();
    codes.extend(arms.split("=> ").skip(1).filter_map(literal));
    let host = source("src/schema/check/host.rs");
    let unread = host
        .split("fn unread(")
        .nth(1)
        .unwrap()
        .split("\n}\n")
        .next()
        .unwrap();
    codes.extend(
        unread
            .split("=> (")
            .skip(1)
            .chain(unread.split("=> {\n            (").skip(1))
            .filter_map(literal),
    );
    codes.extend(
        host.split("fn unread_code(")
            .nth(1)
            .unwrap()
            .split("\n}\n")
            .next()
            .unwrap()
            .split("=> ")
            .skip(1)
            .filter_map(literal),
    );
    assert!(
        codes.contains("served_twice") && codes.contains("standby") && codes.contains("not_owner"),
        "{codes:?}"
    );
    let told: BTreeSet<String> = first_cells("docs/findings.md", "# What `pgshard check` finds")
        .into_iter()
        .collect();
    let missing: Vec<&String> = codes.difference(&told).collect();
    assert!(missing.is_empty(), "docs/findings.md lacks {missing:?}");
    let gone: Vec<&String> = told
        .difference(&codes)
        .filter(|code| !["code", "---"].contains(&code.as_str()))
        .collect();
    assert!(
        gone.is_empty(),
        "docs/findings.md tells of {gone:?}, which nothing gives"
    );
}

/// What `pgshard explain` knows of SQLSTATEs and of the router's errors is what there is.
#[test]
fn sqlstates_and_errors_are_in_the_manual() {
    let told = |page: &str, heading: &str| -> BTreeSet<String> {
        let cells = first_cells(page, heading).into_iter();
        cells
            .filter(|cell| !["code", "---", "metric"].contains(&cell.as_str()))
            .collect()
    };
    let states = source("src/pg/state.rs");
    let ours: BTreeSet<String> = states
        .lines()
        .filter(|line| line.starts_with("pub const "))
        .filter_map(|line| Some(line.split('"').nth(1)?.to_owned()))
        .collect();
    assert_eq!(told("docs/errors.md", "## SQLSTATEs of pgshard"), ours);
    let errors = source("src/router/error.rs");
    let body = errors
        .split("pub enum Error {")
        .nth(1)
        .unwrap()
        .split("\n}\n")
        .next()
        .unwrap();
    let variant = |line: &str| {
        let name = line.strip_prefix("    ")?.split([' ', ',', '(']).next()?;
        name.starts_with(|c: char| c.is_ascii_uppercase())
            .then(|| name.to_owned())
    };
    let variants: BTreeSet<String> = body.lines().filter_map(variant).collect();
    assert!(
        variants.contains("HostDown") && variants.contains("Closed"),
        "{variants:?}"
    );
    assert_eq!(told("docs/errors.md", "## Errors of the router"), variants);
    let exporter = source("src/bin/pgshard/commands/exporter/text.rs");
    let metrics: BTreeSet<String> = exporter
        .split('"')
        .filter(|text| {
            text.starts_with("pgshard_")
                && text.bytes().all(|b| b.is_ascii_lowercase() || b == b'_')
        })
        .map(str::to_owned)
        .collect();
    assert_eq!(told("docs/metrics.md", "## The exporter"), metrics);
}

#[test]
fn metrics_and_spans_are_in_the_manual() {
    let code = source("src/router/metrics.rs");
    let consts = code
        .lines()
        .filter(|line| line.starts_with("const ") && !line.contains("_LABEL: "));
    let consts = consts.filter_map(|line| line.split('"').nth(1));
    let mut names: BTreeSet<String> = consts.map(str::to_owned).collect();
    // OpenTelemetry's metrics, or ours.
    let is_metric = |name: &str| name.starts_with("db.client.") || name.starts_with("pgshard_");
    assert!(
        names.len() > 5 && names.iter().all(|name| is_metric(name)),
        "{names:?}"
    );
    let told = first_cells("docs/metrics.md", "## Metrics of a router")
        .into_iter()
        .filter(|cell| is_metric(cell));
    let told: BTreeSet<String> = told.collect();
    assert_eq!(
        told, names,
        "docs/metrics.md, ## Metrics of a router, tells what src/router/metrics.rs has"
    );

    names.clear();
    for file in library() {
        // In two parts, so that no other text that contains it counts as one.
        for macros in [
            concat!("name = \"", "pgshard."),
            concat!("call_span!(\"", "pgshard."),
        ] {
            for found in file.text.split(macros).skip(1) {
                names.insert(format!("pgshard.{}", found.split('"').next().unwrap()));
            }
        }
        for found in file.text.split("debug_span!(").skip(1) {
            if let Some(name) = found.trim_start().strip_prefix("\"pgshard.") {
                names.insert(format!("pgshard.{}", name.split('"').next().unwrap()));
            }
        }
        if file.path != "src/router/metrics.rs" {
            assert!(
                !file.text.contains("metrics::counter!"),
                "{}: metrics have their names in one place",
                file.path
            );
        }
    }
    let told: BTreeSet<String> = first_cells("docs/metrics.md", "## Spans")
        .into_iter()
        .filter(|cell| cell.starts_with("pgshard"))
        .collect();
    assert_eq!(
        told, names,
        "docs/metrics.md, ## Spans, tells the spans that there are"
    );
}
