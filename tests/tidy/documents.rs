//! Documents: the book has every page, links to anchors work, and the table of guarantees names
//! tests that exist.

use std::collections::{BTreeMap, BTreeSet};

use super::{files, first_cells, none_of, root, source, word};

/// A heading as links name it: `## What is noticed` becomes `#what-is-noticed`.
fn anchor(heading: &str) -> String {
    let kept = heading
        .trim()
        .chars()
        .filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

/// The anchors of a document. Lines in blocks of code are not headings.
fn anchors(text: &str) -> BTreeSet<String> {
    let mut found: BTreeMap<String, usize> = BTreeMap::new();
    let mut all = BTreeSet::new();
    let mut in_block = false;
    for line in text.lines() {
        in_block ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if !in_block && heading.len() < line.len() && heading.starts_with(' ') {
            let name = anchor(heading);
            let times = found.entry(name.clone()).or_default();
            all.insert(if *times == 0 {
                name
            } else {
                format!("{name}-{times}")
            });
            *times += 1;
        }
    }
    all
}

#[test]
fn anchors_lead_somewhere() {
    let documents: BTreeMap<String, String> = files(&[".md"])
        .into_iter()
        .map(|file| (file.path, file.text))
        .collect();
    let mut mistakes = Vec::new();
    for (path, text) in &documents {
        for (at, _) in text.match_indices("](") {
            let rest = &text[at + 2..];
            let link = &rest[..rest.find(')').unwrap_or(0)];
            let Some((file, wanted)) = link.split_once('#').filter(|_| !link.contains("://"))
            else {
                continue;
            };
            let to = if file.is_empty() {
                path.clone()
            } else {
                let folder = root().join(path).parent().unwrap().to_path_buf();
                // Another test reports links to files that do not exist.
                let Ok(to) = folder.join(file).canonicalize() else {
                    continue;
                };
                to.strip_prefix(root().canonicalize().unwrap())
                    .unwrap()
                    .to_string_lossy()
                    .into_owned()
            };
            if !documents
                .get(&to)
                .is_some_and(|text| anchors(text).contains(wanted))
            {
                mistakes.push(format!("{path}: {to} has no heading for #{wanted}"));
            }
        }
    }
    none_of(mistakes, "a link to a part of a document leads there");
}

/// How many words a cell of a table may have.
const CELL_WORDS: usize = 25;

#[test]
fn cells_of_tables_are_phrases() {
    let mut mistakes = Vec::new();
    let pages = files(&[".md"]).into_iter().filter(|file| {
        file.path.starts_with("docs/") || ["README.md", "ARCHITECTURE.md"].contains(&&*file.path)
    });
    for page in pages {
        let mut is_code = false;
        for (at, line) in page.text.lines().enumerate() {
            is_code ^= line.trim_start().starts_with("```");
            let Some(row) = line.strip_prefix('|').filter(|_| !is_code) else {
                continue;
            };
            for cell in row.trim_end_matches('|').split(" | ") {
                let words = cell.split_whitespace().count();
                if words > CELL_WORDS {
                    mistakes.push(format!("{}:{}: {words} words", page.path, at + 1));
                }
            }
        }
    }
    none_of(mistakes, "a cell of a table has 25 words at most");
}

/// How many words the README, and all pages with it, may have, as `wc -w` counts them.
const README_WORDS: usize = 850;
const PAGES_WORDS: usize = 51_000;

#[test]
fn the_documents_stay_short() {
    let readme = source("README.md").split_whitespace().count();
    let pages = files(&[".md"]).into_iter();
    let pages = pages.filter(|file| file.path.starts_with("docs/"));
    let pages = pages.map(|file| file.text.split_whitespace().count());
    let all = readme + pages.sum::<usize>();
    assert!(readme <= README_WORDS, "README.md has {readme} words");
    assert!(all > 40_000, "the pages are found");
    assert!(all <= PAGES_WORDS, "README.md and docs/ have {all} words");
}

#[test]
fn anchors_are_made_from_headings() {
    let text = "# One: `two`, three\n```sh\n# no heading\n```\n## Again\n## Again\n#no heading\n";
    assert_eq!(
        anchors(text).into_iter().collect::<Vec<_>>(),
        ["again", "again-1", "one-two-three"]
    );
}

#[test]
fn the_book_has_every_page() {
    let summary = source("docs/SUMMARY.md");
    let pages = files(&[".md"])
        .into_iter()
        .map(|file| file.path)
        .filter(|path| path.starts_with("docs/"));
    let pages = pages
        .map(|path| path["docs/".len()..].to_owned())
        .filter(|path| path != "SUMMARY.md");
    let missing = pages.filter(|page| !summary.contains(&format!("]({page})")));
    none_of(
        missing.map(|page| format!("docs/{page}")).collect(),
        "docs/SUMMARY.md lists every page of the book",
    );
    assert!(source("book.toml").contains("src = \"docs\""));
}

/// The book consists of `docs/`: on a page of it, what lies elsewhere is named, and not linked to.
#[test]
fn no_page_of_the_book_links_out_of_it() {
    let docs = root().join("docs").canonicalize().unwrap();
    let mut mistakes = Vec::new();
    for page in files(&[".md"])
        .into_iter()
        .filter(|file| file.path.starts_with("docs/"))
    {
        let folder = root().join(&page.path).parent().unwrap().to_path_buf();
        for (at, _) in page.text.match_indices("](") {
            let rest = &page.text[at + 2..];
            let link = rest[..rest.find(')').unwrap_or(0)]
                .split('#')
                .next()
                .unwrap_or_default();
            // Another test reports links to files that do not exist.
            let Ok(to) = folder.join(link).canonicalize() else {
                continue;
            };
            if !link.is_empty() && !link.contains("://") && !to.starts_with(&docs) {
                mistakes.push(format!("{}: {link}", page.path));
            }
        }
    }
    none_of(mistakes, "a page of docs/ links to pages of docs/ only");
}

/// `moves::dead::gc` in backticks is the test `gc` in `tests/it/moves/dead.rs`.
#[test]
fn guarantees_name_tests_that_exist() {
    let mut named = 0;
    let mut mistakes = Vec::new();
    for (line, text) in source("docs/guarantees.md").lines().enumerate() {
        let row = text
            .strip_prefix("| ")
            .filter(|row| !row.starts_with("event |") && !row.starts_with("---"));
        let Some(row) = row else { continue };
        let shown_by = row.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let tests: Vec<&str> = shown_by
            .split('`')
            .filter(|word| word.contains("::"))
            .collect();
        if tests.is_empty() {
            mistakes.push(format!("line {}: no test shows it", line + 1));
        }
        for test in tests {
            if !is_a_test(test) {
                mistakes.push(format!("line {}: there is no test {test}", line + 1));
            }
            named += 1;
        }
    }
    none_of(mistakes, "each guarantee names the tests that show it");
    assert!(named > 40);
}

/// `console::safe::{a_token, hostile}` in backticks is two tests, and `hostile::moves` may be a
/// file of tests.
#[test]
fn the_threat_model_and_the_page_on_testing_name_tests_that_exist() {
    let mut named = 0;
    let mut mistakes = Vec::new();
    for page in ["docs/threat-model.md", "docs/testing.md"] {
        let text = source(page);
        let spans = text.split('`').skip(1).step_by(2);
        for span in spans.filter(|span| span.contains("::") && !span.contains(['/', '-'])) {
            let (module, names) = span.split_once('{').unwrap_or(("", span));
            for name in names.trim_end_matches('}').split(',') {
                let test = format!("{module}{}", name.trim()).replace("::tests::", "::");
                named += 1;
                if !is_a_test(&test) && !is_a_file_of_tests(&test) {
                    mistakes.push(format!("{page}: there is no test {test}"));
                }
            }
        }
    }
    none_of(mistakes, "a page names tests that exist");
    assert!(named > 40, "{named}");
}

/// Whether `hostile::moves` is `tests/it/hostile/moves.rs`, or a file of the library.
fn is_a_file_of_tests(module: &str) -> bool {
    ["tests/it", "src"].into_iter().any(|folder| {
        let path = root().join(folder).join(module.replace("::", "/"));
        path.is_dir() || path.with_extension("rs").is_file()
    })
}

/// Whether `moves::dead::gc` is in `tests/it/moves/dead.rs`, or a test of the library.
fn is_a_test(test: &str) -> bool {
    let (module, name) = test.rsplit_once("::").unwrap();
    ["tests/it", "src", "tests"].into_iter().any(|folder| {
        let path = root().join(folder).join(module.replace("::", "/"));
        let text = std::fs::read_to_string(path.with_extension("rs")).unwrap_or_default();
        text.contains(&format!("fn {name}("))
    })
}

#[test]
fn what_is_tested_for_a_service_names_its_test() {
    let mut mistakes = Vec::new();
    for (line, text) in source("docs/cloud.md").lines().enumerate() {
        if !text.starts_with("| ") {
            continue;
        }
        let mark = text.trim_end_matches(" |").rsplit(" | ").next().unwrap();
        let is_marked = ["tested", "documented", "unknown"]
            .iter()
            .any(|kind| mark.contains(&format!("[{kind}]")));
        let tests: Vec<&str> = mark.split('`').filter(|word| word.contains("::")).collect();
        let is_named = !tests.is_empty() || !mark.contains("[tested]");
        let is_head = text.starts_with("| |") || text.starts_with("| ---");
        let is_backed = is_marked && is_named && tests.iter().all(|test| is_a_test(test));
        if !(is_head || is_backed) {
            mistakes.push(format!("line {}: {mark}", line + 1));
        }
    }
    none_of(mistakes, "each line of docs/cloud.md says how it is known");
}

/// Alerts and the dashboard use only metrics that docs/metrics.md lists for `pgshard exporter`.
/// Each alert is tested, and leads to a part of a document.
#[test]
fn alerts_ask_for_what_is_told() {
    let told = first_cells("docs/metrics.md", "## The exporter");
    let told: BTreeSet<&str> = told
        .iter()
        .filter_map(|cell| cell.strip_prefix("pgshard_"))
        .collect();
    let mut mistakes = Vec::new();
    for file in ["ops/alerts.yml", "ops/dashboard.json"] {
        for rest in source(file).split("pgshard_").skip(1) {
            let name = word(rest);
            let family = ["_bucket", "_sum", "_count"]
                .iter()
                .find_map(|part| name.strip_suffix(part))
                .unwrap_or(name);
            if !told.contains(family) {
                mistakes.push(format!("{file}: the exporter does not tell pgshard_{name}"));
            }
        }
    }
    let (alerts, tests) = (source("ops/alerts.yml"), source("ops/alerts_test.yml"));
    let after = |key: &str| -> Vec<&str> {
        alerts
            .lines()
            .filter_map(|line| line.trim().strip_prefix(key))
            .collect()
    };
    let (names, runbooks) = (after("- alert: "), after("runbook: "));
    assert!(told.len() > 10 && names.len() > 5 && names.len() == runbooks.len());
    for name in names {
        let raised = tests
            .split(&format!("alertname: {name}\n"))
            .nth(1)
            .is_some_and(|rest| rest.trim_start().starts_with("exp_alerts:\n"));
        if !raised {
            mistakes.push(format!("ops/alerts_test.yml: nothing raises {name}"));
        }
    }
    for runbook in runbooks {
        let (page, part) = runbook.split_once('#').unwrap();
        if !anchors(&source(page)).contains(part) {
            mistakes.push(format!("ops/alerts.yml: {page} has no heading for #{part}"));
        }
    }
    none_of(mistakes, "ops/ is what the exporter and the documents say");
}
