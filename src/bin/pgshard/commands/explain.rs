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
        heading: "## SQLSTATEs of ours",
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

/// What the document says about a code: the column heads, and the cells.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Explained {
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
                let mut rows: Vec<_> = all
                    .iter()
                    .map(|one| [one.code.clone(), one.kind.to_owned()])
                    .collect();
                rows.dedup();
                output.table(&[("code", Align::Left), ("what it is", Align::Left)], rows);
            }
        }
        return Ok(Exit::Done);
    };
    let found: Vec<&Explained> = all
        .iter()
        .filter(|one| one.code.eq_ignore_ascii_case(code))
        .collect();
    if found.is_empty() {
        let alike = |one: &&Explained| strsim::osa_distance(&one.code, code);
        let nearest = all.iter().min_by_key(alike).filter(|one| alike(one) <= 3);
        return Err(
            Failure::usage(format!("nothing of ours has the code {code:?}")).hint(match nearest {
                Some(nearest) => {
                    format!("did you mean {}? `pgshard explain` lists all", nearest.code)
                }
                None => "`pgshard explain` lists all".to_owned(),
            }),
        );
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

/// What the document says about each finding, by its code.
pub(super) fn findings() -> std::collections::BTreeMap<String, Explained> {
    all()
        .into_iter()
        .filter(|one| one.kind == "finding")
        .map(|one| (one.code.clone(), one))
        .collect()
}

/// Every row of the tables.
fn all() -> Vec<Explained> {
    SECTIONS.iter().flat_map(of_section).collect()
}

fn of_section(section: &Section) -> Vec<Explained> {
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
            Explained {
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

    /// Who asks for a code sees one row: nothing in it may stand above or below.
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
