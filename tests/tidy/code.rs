//! How the code is written: the width, the length of functions, what the library may not do.

use std::collections::BTreeSet;

use super::{TEXTS, files, is_comment, library, none_of, word};

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
    // A simulation prints what it found for the person who runs the tests.
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

/// The names of tests: functions with an attribute `test`, and those in `on_each_version!` and
/// `on_mixed_versions!`.
fn tests(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_test = |line: &&&str| line.starts_with("#[test]") || line.starts_with("#[tokio::test");
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let attributes = lines[..at]
            .iter()
            .rev()
            .take_while(|line| line.starts_with("#[") || line.starts_with("//"));
        if line.starts_with("//") {
            continue;
        }
        let of_a_version = line.ends_with("(version) {") && line.contains("async fn ");
        let Some((_, name)) = line.split_once("fn ") else {
            continue;
        };
        if of_a_version || attributes.clone().any(|line| is_test(&line)) {
            found.push((at + 1, word(name).to_owned()));
        }
    }
    found
}

/// Names that do not describe what is verified: versions that a test runs on, and processes that
/// tests start.
const NO_SENTENCES: [&str; 6] = ["pg15", "pg18", "mixed", "body", "helper", "process"];

/// The name is what is seen of a test that fails.
#[test]
fn the_name_of_a_test_says_what_it_verifies() {
    let mut mistakes = Vec::new();
    let mut count = 0;
    for file in files(&[".rs"]) {
        for (line, name) in tests(&file.text) {
            count += 1;
            if !name.is_empty()
                && name.split('_').count() < 3
                && !NO_SENTENCES.contains(&name.as_str())
            {
                mistakes.push(format!("{}:{line}: {name}", file.path));
            }
        }
    }
    assert!(count > 1_000, "tests are found: {count}");
    none_of(mistakes, "the name of a test has three words at least");
}

/// The word does not describe its value.
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
        // A mover's rows have a type of their own (src/mover/control/row.rs), with a `get` that
        // returns an error.
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

/// How many columns a line may have, as in rustfmt.toml and .editorconfig.
const COLUMNS: usize = 100;

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
    none_of(mistakes, &format!("a line has {COLUMNS} columns at most"));
}

/// The SQL that makes our schemas and reads the catalogs.
#[test]
fn no_line_of_sql_is_too_long() {
    let mut mistakes = Vec::new();
    let ours = ["migrations/", "src/"];
    for file in files(&[".sql"])
        .into_iter()
        .filter(|file| ours.iter().any(|folder| file.path.starts_with(folder)))
    {
        for (at, line) in file.text.lines().enumerate() {
            let columns = line.chars().count();
            if columns > COLUMNS {
                mistakes.push(format!("{}:{}: {columns} columns", file.path, at + 1));
            }
        }
    }
    none_of(mistakes, &format!("a line has {COLUMNS} columns at most"));
}

/// How many lines a function may have, its signature and closing brace included.
const FUNCTION_LINES: usize = 140;

/// A test is a story, and is read from beginning to end.
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
    for file in files(TEXTS) {
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
