//! README and docs are true: each page's test runs the commands that a reader of the page types.
//!
//! The blocks in `sh` are run by bash, one after the other in an empty folder, with the command
//! that was built. A block in `text` right after one shows its output: the lines must come in this
//! order, with any numbers. HTML comments right before a block, which no reader sees, control the
//! test:
//!
//! - `<!-- not run: it needs two machines -->`: the block is skipped, for this reason;
//! - `<!-- first:` and lines of bash, up to `-->`: they are run before the block.
//!
//! Questions of a command are answered with yes, and `ID` as an argument is replaced by the ID of
//! the newest move.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What comes before the blocks of a page: it answers questions, and replaces `ID` by the newest
/// move's.
pub(crate) const BEFORE: &str = r#"
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
pgshard() {
    local words=() word
    for word in "$@"; do
        [ "$word" != ID ] ||
            word=$(command pgshard moves list --json | jq -r '[.moves[].move] | max')
        words+=("$word")
    done
    case " $* " in
    *" --plan "*) ;;
    " move "* | " rebalance "* | " drain "* | " dev down "* | " host accept "* | " host remove "*)
        words+=(--yes) ;;
    " recover "* | " map rebuild "* | " moves rollback "* | " moves complete "* | " moves repair "*)
        words+=(--yes) ;;
    esac
    command pgshard "${words[@]}"
}
"#;

/// A fenced block of a page: the line of its fence, its language, its text without indentation, and
/// the comments before it.
#[derive(Debug)]
pub(crate) struct Block {
    line: usize,
    pub(crate) language: String,
    pub(crate) text: String,
    pub(crate) not_run: Option<String>,
    first: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The blocks of a page, in order.
pub(crate) fn blocks(page: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut not_run, mut first) = (None, String::new());
    let mut lines = page.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        let bare = line.trim_start();
        let indent = line.len() - bare.len();
        if let Some(reason) = bare.strip_prefix("<!-- not run: ") {
            not_run = Some(reason.trim_end_matches("-->").trim().to_owned());
        } else if bare == "<!-- first:" {
            let commands = lines
                .by_ref()
                .map(|(_, line)| line.trim())
                .take_while(|line| *line != "-->");
            first = commands.collect::<Vec<_>>().join("\n") + "\n";
        } else if let Some(language) = bare.strip_prefix("```") {
            let inside = lines
                .by_ref()
                .map(|(_, line)| line)
                .take_while(|line| line.trim() != "```");
            let text = inside
                .map(|line| line.get(indent..).unwrap_or_default().to_owned() + "\n")
                .collect();
            let (not_run, first) = (not_run.take(), std::mem::take(&mut first));
            blocks.push(Block {
                line: at + 1,
                language: language.to_owned(),
                text,
                not_run,
                first,
            });
        } else if !bare.is_empty() {
            // There is prose between a comment and a block, so the comment had no effect.
            assert!(
                not_run.is_none() && first.is_empty(),
                "line {}: a comment stands right before its block",
                at + 1
            );
        }
    }
    blocks
}

/// A line as it is compared: all numbers, with their units, are equal, and so are all spaces.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    for word in line.split_whitespace() {
        let number = |c: char| c.is_ascii_digit() || "./:-".contains(c);
        let id = word.len() == 36 && word.chars().all(|c| c.is_ascii_hexdigit() || c == '-');
        let word = if id || word.contains(|c: char| c.is_ascii_digit()) {
            let mut text = word.replace(number, "0");
            while text.contains("00") {
                text = text.replace("00", "0");
            }
            if id { "ID".to_owned() } else { text }
        } else {
            word.to_owned()
        };
        shape.push_str(&word);
        shape.push(' ');
    }
    shape
}

/// A page as a script, and the expected output: the number of the block that prints it, and the
/// text block.
fn script(page: &str) -> (String, Vec<(usize, String)>) {
    let mut script = BEFORE.to_owned();
    let mut printed = Vec::new();
    let mut last = None;
    for block in blocks(page) {
        let Block {
            line,
            language,
            text,
            not_run,
            first,
        } = block;
        match (language.as_str(), not_run) {
            ("sh", None) => {
                script.push_str(&format!(
                    "{first}echo '## {line}' | tee /dev/stderr\n{text}"
                ));
                last = Some(line);
            }
            ("text", None) if last.is_some() => printed.push((last.take().unwrap(), text)),
            _ => last = None,
        }
    }
    (script, printed)
}

/// Plays a page in an empty folder, and stops the servers that it has left.
fn play(name: &str) {
    let page = fs::read_to_string(root().join(name)).unwrap();
    let (script, printed) = script(&page);
    let folder = tempfile::Builder::new().prefix("manual").tempdir().unwrap();
    let at = folder.path();
    // The servers run as another user, who must be able to enter.
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).unwrap();
    let command = PathBuf::from(env!("CARGO_BIN_EXE_pgshard"));
    let path = format!(
        "{}:{}",
        command.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let run = |program: &str, args: &[&str]| {
        let mut command = Command::new(program);
        for name in ["PGSHARD_CONFIG", "PGSHARD_LOG", "RUST_LOG", "COLUMNS"] {
            command.env_remove(name);
        }
        command
            .args(args)
            .current_dir(at)
            .env("PATH", &path)
            .env("HOME", at)
            .env("REPOSITORY", root());
        command.stdin(Stdio::null()).output().unwrap()
    };
    let output = run("timeout", &["400", "bash", "-c", &script]);
    for entry in fs::read_dir(at).unwrap() {
        let servers = entry.unwrap().path();
        if servers.join("servers").is_dir() {
            run(
                command.to_str().unwrap(),
                &["dev", "down", "--yes", "--dir", servers.to_str().unwrap()],
            );
        }
    }
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        output.status.success(),
        "{name}: the block at the last line that is named failed\n{out}\n{err}"
    );
    for (line, wanted) in printed {
        let marker = format!("## {line}\n");
        let out = out
            .split(&marker)
            .nth(1)
            .unwrap()
            .split("\n## ")
            .next()
            .unwrap();
        let mut given = out.lines().map(shape);
        for wanted in wanted
            .lines()
            .map(shape)
            .filter(|line| !line.trim().is_empty())
        {
            assert!(
                given.any(|line| line == wanted),
                "{name}:{line} prints no line {wanted:?}, in this order:\n{out}"
            );
        }
    }
}

macro_rules! pages {
    ($($name:ident: $page:literal,)+) => {
        const PAGES: &[&str] = &[$($page),+];
        $(
            #[test]
            fn $name() {
                play($page);
            }
        )+
    };
}

pages! {
    readme: "README.md",
    rust: "docs/rust.md",
    config: "docs/config.md",
    everyday: "docs/everyday.md",
    adding_capacity: "docs/adding-capacity.md",
    ids: "docs/ids.md",
    operating: "docs/operating.md",
    differs: "docs/differs.md",
    trouble: "docs/trouble.md",
    rights: "docs/rights.md",
    backup: "docs/backup.md",
    change_data_capture: "docs/cdc.md",
    production: "docs/production.md",
    from_one_database: "docs/from-one-database.md",
}

/// Every block that a reader could type is run by a test of its page, or has a reason why not. The
/// Python package's `test_manual.py` runs `docs/django.md` and `docs/django-recipes.md`.
#[test]
fn every_block_is_run_or_says_why_not() {
    let mut pages: Vec<PathBuf> = vec![
        "README.md".into(),
        "CONTRIBUTING.md".into(),
        "ARCHITECTURE.md".into(),
    ];
    pages.extend(
        [
            "python/README.md",
            "python/cli/README.md",
            "benches/README.md",
        ]
        .map(PathBuf::from),
    );
    for entry in fs::read_dir(root().join("docs")).unwrap() {
        pages.push(Path::new("docs").join(entry.unwrap().file_name()));
    }
    let mut with_blocks = BTreeSet::new();
    let mut mistakes = Vec::new();
    for page in pages
        .iter()
        .filter(|page| page.extension().is_some_and(|ending| ending == "md"))
    {
        let text = fs::read_to_string(root().join(page)).unwrap();
        let name = page.to_str().unwrap();
        for block in blocks(&text) {
            if block
                .not_run
                .as_ref()
                .is_some_and(|reason| !reason.contains(' '))
            {
                mistakes.push(format!("{name}:{}: the reason is no reason", block.line));
            }
            if ["console", "shell", "bash", ""].contains(&block.language.as_str()) {
                let rule = "what is typed is a block in sh, what is printed one in text";
                mistakes.push(format!("{name}:{}: {rule}", block.line));
            }
            if block.language == "sh" && block.not_run.is_none() {
                // runbooks.rs types each of its sections where what it is for has happened.
                if name == "docs/runbooks.md" {
                    continue;
                }
                if ["docs/django.md", "docs/django-recipes.md"].contains(&name) {
                    continue;
                }
                with_blocks.insert(name.to_owned());
            }
        }
    }
    let played: BTreeSet<String> = PAGES.iter().map(|page| (*page).to_owned()).collect();
    mistakes.extend(
        with_blocks
            .difference(&played)
            .map(|page| format!("{page}: its blocks are run by no test")),
    );
    mistakes.extend(
        played
            .difference(&with_blocks)
            .map(|page| format!("{page}: it has no block to run")),
    );
    assert!(mistakes.is_empty(), "{}", mistakes.join("\n"));
}

#[test]
fn blocks_are_found() {
    let page = "Text\n<!-- not run: takes an hour -->\n```sh\nlong\n```\n\n<!-- first:\nexport \
        A=1\n-->\n   ```sh\n   \
                echo $A 17\n     b\n   ```\n\n```text\n17\n```\n";
    let (script, printed) = script(page);
    assert!(
        script.ends_with("export A=1\necho '## 10' | tee /dev/stderr\necho $A 17\n  b\n"),
        "{script}"
    );
    assert_eq!(printed, [(10, "17\n".to_owned())]);
    assert_eq!(blocks(page)[0].not_run.as_deref(), Some("takes an hour"));
    assert_eq!(
        shape("moved  12.5 ms 2026-01-01T00:00:00Z db1"),
        "moved 0 ms 0T0Z db0 "
    );
    assert_eq!(shape("db1"), shape("db2"), "so it is");
}
