//! The manual has everything that a user meets, and every link leads somewhere.

use std::collections::BTreeSet;

use super::{TEXTS, files, first_cells, library, none_of, root, source};

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
    for file in files(TEXTS) {
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
/// shard that no host has; a takeover changes the lease.
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
    let code = source("src/router/metrics.rs") + &source("src/lookups/metrics.rs");
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
        "docs/metrics.md, ## Metrics of a router, tells what the files metrics.rs have"
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
