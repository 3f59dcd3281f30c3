//! `pgshard explain`: what a code means and what to do, from pages of docs/.
//!
//! The pages are the only source: this module reads their tables, and `tests/tidy.rs` compares them
//! with the code, in both directions.

use schemars::JsonSchema;
use serde::Serialize;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

/// Tables of a page: the heading above them, and what their first cells are.
struct Section {
    /// The name of the page in docs/.
    page: &'static str,
    text: &'static str,
    heading: &'static str,
    kind: &'static str,
}

const SECTIONS: [Section; 5] = [
    Section {
        page: "operating.md",
        text: include_str!("../../../../docs/operating.md"),
        heading: "## Exit codes",
        kind: "exit code",
    },
    Section {
        page: "moves.md",
        text: include_str!("../../../../docs/moves.md"),
        heading: "## The phases of a move",
        kind: "phase",
    },
    Section {
        page: "findings.md",
        text: include_str!("../../../../docs/findings.md"),
        heading: "# What `pgshard check` finds",
        kind: "finding",
    },
    Section {
        page: "errors.md",
        text: ERRORS,
        heading: "## SQLSTATEs of pgshard",
        kind: "SQLSTATE",
    },
    Section {
        page: "errors.md",
        text: ERRORS,
        heading: "## Errors of the router",
        kind: "error",
    },
];

const ERRORS: &str = include_str!("../../../../docs/errors.md");

/// The entry of a code in the document: the column heads, and the cells.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Explanation {
    code: String,
    /// `exit code`, `phase`, `finding`, `SQLSTATE` or `error`.
    kind: &'static str,
    /// Only for a finding.
    #[serde(skip_serializing_if = "Option::is_none")]
    severity: Option<String>,
    pub(super) means: String,
    pub(super) r#do: String,
}

/// Prints what a code means and what to do; without a code, the list of all codes.
pub(crate) fn run(code: Option<&str>, output: &Output) -> Result<Exit, Failure> {
    let all = all();
    let Some(code) = code else {
        match output.format() {
            Format::Json => all.iter().for_each(|one| output.object(one)),
            Format::Text => {
                // A code with several remedies has a row for each.
                let mut rows: Vec<[String; 3]> = Vec::new();
                for one in &all {
                    let is_known = rows.last().is_some_and(|last| last[0] == one.code);
                    if !is_known {
                        let (code, kind) = (one.code.clone(), one.kind.to_owned());
                        rows.push([code, kind, brief(&one.means)]);
                    }
                }
                let columns = [
                    ("code", Align::Left),
                    ("what it is", Align::Left),
                    ("means", Align::Left),
                ];
                output.table(&columns, rows);
            }
        }
        return Ok(Exit::Done);
    };
    let found: Vec<&Explanation> = all
        .iter()
        .filter(|one| one.code.eq_ignore_ascii_case(code))
        .collect();
    if found.is_empty() {
        return Err(unknown(code, &all));
    }
    for (at, one) in found.into_iter().enumerate() {
        match output.format() {
            Format::Json => output.object(one),
            Format::Text => {
                let severity = one
                    .severity
                    .as_ref()
                    .map(|severity| format!(", {severity}"))
                    .unwrap_or_default();
                let space = if at > 0 { "\n" } else { "" };
                output.data(format_args!(
                    "{space}{} ({}{severity})\n",
                    one.code, one.kind
                ));
                output.data(format_args!("means:  {}", one.means));
                if !one.r#do.is_empty() {
                    output.data(format_args!("remedy: {}", one.r#do));
                }
            }
        }
    }
    Ok(Exit::Done)
}

/// The beginning of what a code means, for a line of a list: 80 columns hold it next to the longest
/// code and kind.
fn brief(means: &str) -> String {
    const BRIEF_MAX: usize = 42;
    let clause = means.split([';']).next().unwrap_or(means);
    if clause.chars().count() <= BRIEF_MAX {
        return clause.to_owned();
    }
    let mut brief = String::new();
    for word in clause.split(' ') {
        if brief.chars().count() + word.chars().count() + 2 > BRIEF_MAX {
            break;
        }
        brief.push_str(if brief.is_empty() { "" } else { " " });
        brief.push_str(word);
    }
    format!("{}…", brief.trim_end_matches(','))
}

/// The error for a code that no table has.
fn unknown(code: &str, all: &[Explanation]) -> Failure {
    if is_sqlstate(code) {
        let error = format!("{code} is a SQLSTATE of PostgreSQL's, not one of pgshard's");
        return Failure::usage(error)
            .hint("PostgreSQL's manual lists them in appendix A, \"PostgreSQL Error Codes\"");
    }
    let failure = Failure::usage(format!("nothing of ours has the code {code:?}"));
    // A number is not a misspelling of a word, nor of another number.
    let slips_max = if code.chars().all(|c| c.is_ascii_digit()) {
        0
    } else {
        (code.chars().count() / 3).min(3)
    };
    let alike =
        |one: &&Explanation| strsim::osa_distance(&one.code.to_lowercase(), &code.to_lowercase());
    let nearest = all
        .iter()
        .min_by_key(alike)
        .filter(|one| alike(one) <= slips_max);
    failure.hint(match nearest {
        Some(nearest) => format!("did you mean {}? `pgshard explain` lists all", nearest.code),
        None => "`pgshard explain` lists all".to_owned(),
    })
}

/// Whether a code is written like one of PostgreSQL's: five digits and capitals, with a digit
/// first, as all of its own classes have but F0, HV, P0 and XX.
fn is_sqlstate(code: &str) -> bool {
    code.len() == 5
        && code
            .chars()
            .all(|c| c.is_ascii_digit() || c.is_ascii_uppercase())
        && (code.starts_with(|c: char| c.is_ascii_digit())
            || ["F0", "HV", "P0", "XX"]
                .iter()
                .any(|class| code.starts_with(class)))
}

/// The entry of each finding in the document, by its code.
pub(super) fn findings() -> std::collections::BTreeMap<String, Explanation> {
    all()
        .into_iter()
        .filter(|one| one.kind == "finding")
        .map(|one| (one.code.clone(), one))
        .collect()
}

/// Every row of the tables.
fn all() -> Vec<Explanation> {
    SECTIONS.iter().flat_map(of_section).collect()
}

fn of_section(section: &Section) -> Vec<Explanation> {
    let lines = section
        .text
        .lines()
        .skip_while(|line| *line != section.heading)
        .skip(1);
    // Up to the next heading of its level: where there are several tables, all have one head.
    let level = section.heading.trim_start_matches('#');
    let level = &section.heading[..section.heading.len() - level.len() + 1];
    let lines = lines.take_while(|line| !line.starts_with(level));
    let mut rows = lines.filter(|line| line.starts_with("| ")).map(cells);
    let head = rows.next().unwrap_or_default();
    let column = |names: &[&str]| head.iter().position(|name| names.contains(&name.as_str()));
    let (severity, means, remedy) = (
        column(&["severity"]),
        column(&["means", "what it means"]),
        column(&["do", "type"]),
    );
    rows.filter(|row| *row != head && row.first().is_some_and(|code| !code.starts_with("---")))
        .map(|cells| {
            let cell = |at: Option<usize>| {
                at.and_then(|at| cells.get(at))
                    .map(|text| plain(text, section.page))
                    .unwrap_or_default()
            };
            Explanation {
                code: cells
                    .first()
                    .map(|code| code.trim_matches('`').to_owned())
                    .unwrap_or_default(),
                kind: section.kind,
                severity: severity.map(|at| cell(Some(at))),
                means: cell(means),
                r#do: cell(remedy),
            }
        })
        .collect()
}

fn cells(row: &str) -> Vec<String> {
    let row = row.trim().trim_start_matches('|').trim_end_matches('|');
    // An empty cell shares no space with its neighbours then.
    row.replace("| |", "|  |")
        .split(" | ")
        .map(|cell| cell.trim().to_owned())
        .collect()
}

/// A cell of a page without its links: `[text](keys.md#part)` gives `text (docs/keys.md#part)`,
/// `[keys.md](keys.md)` only `docs/keys.md`. Bold is not.
fn plain(cell: &str, page: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, link)) = rest.split_once('[') {
        let Some((words, target, after)) = link.split_once("](").and_then(|(words, target)| {
            target
                .split_once(')')
                .map(|(target, after)| (words, target, after))
        }) else {
            break;
        };
        let place = match target.split_once('#') {
            Some(("", part)) => format!("docs/{page}#{part}"),
            _ => format!("docs/{target}"),
        };
        text.push_str(before);
        match words == target {
            true => text.push_str(&place),
            false => text.push_str(&format!("{words} ({place})")),
        }
        rest = after;
    }
    (text + rest).replace("**", "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_is_read() {
        let all = all();
        for section in &SECTIONS {
            let of_kind: Vec<_> = all.iter().filter(|one| one.kind == section.kind).collect();
            assert!(!of_kind.is_empty(), "{}", section.heading);
            assert!(
                of_kind
                    .iter()
                    .all(|one| !one.code.is_empty() && !one.means.is_empty()),
                "{}",
                section.heading
            );
            assert!(
                of_kind.iter().any(|one| !one.r#do.is_empty()),
                "{}",
                section.heading
            );
        }
        assert!(
            all.iter()
                .filter(|one| one.kind == "finding")
                .all(|one| one.severity.is_some())
        );
    }

    /// The reader of one code sees one row: nothing in it may refer to text above or below.
    #[test]
    fn every_row_stands_for_itself() {
        let leans = |text: &str| {
            let words: Vec<&str> = text.split(|c: char| !c.is_alphanumeric()).collect();
            words.contains(&"above") || words.contains(&"below") || text.starts_with(['…', '|'])
        };
        let leaning = all()
            .into_iter()
            .filter(|one| leans(&one.means) || leans(&one.r#do));
        let leaning: Vec<String> = leaning
            .map(|one| format!("{}: {} | {}", one.code, one.means, one.r#do))
            .collect();
        assert!(leaning.is_empty(), "{}", leaning.join("\n"));
    }

    /// Numbers and SQLSTATEs of PostgreSQL's are no slips for ours.
    #[test]
    fn a_guess_is_near() {
        let all = all();
        let hint = |code: &str| unknown(code, &all).advice().unwrap_or_default().to_owned();
        for code in ["40001", "42P01", "XX000", "P0001", "53300"] {
            assert!(hint(code).starts_with("PostgreSQL's manual"), "{code}");
        }
        for code in ["99", "17", "x", "abc"] {
            assert_eq!(hint(code), "`pgshard explain` lists all", "{code}");
        }
        for (code, near) in [
            ("served_twise", "served_twice"),
            ("SH01", "SH001"),
            ("indoubt1", "InDoubt"),
        ] {
            assert!(
                hint(code).starts_with(&format!("did you mean {near}?")),
                "{code}"
            );
        }
    }

    #[test]
    fn a_line_of_the_list_fits_80_columns() {
        let all = all();
        let widest = |cells: Vec<usize>| cells.into_iter().max().unwrap_or(0);
        let codes = widest(all.iter().map(|one| one.code.len()).collect());
        let kinds = widest(all.iter().map(|one| one.kind.len()).collect());
        let means = widest(
            all.iter()
                .map(|one| brief(&one.means).chars().count())
                .collect(),
        );
        assert!(
            codes + 2 + kinds + 2 + means <= 80,
            "{codes} {kinds} {means}"
        );
    }

    #[test]
    fn a_cell_may_be_empty() {
        assert_eq!(cells("| a | | c |"), ["a", "", "c"]);
    }

    #[test]
    fn links_are_places() {
        let plain = |cell: &str| plain(cell, "moves.md");
        assert_eq!(
            plain("[above](#a-host), **now**"),
            "above (docs/moves.md#a-host), now"
        );
        assert_eq!(
            plain("[keys.md](keys.md), [rights](rights.md)"),
            "docs/keys.md, rights (docs/rights.md)"
        );
        assert_eq!(
            plain("see [it](high-availability.md#x); [a]"),
            "see it (docs/high-availability.md#x); [a]"
        );
    }
}
