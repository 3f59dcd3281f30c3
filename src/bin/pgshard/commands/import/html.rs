//! The report as a page that needs nothing else: no script, no other file.

use maud::{DOCTYPE, Markup, PreEscaped, html};
use pgshard::import::{Assessment, Level, Obstacle, ObstacleObject, Verdict};

use super::words::{class, extent, rows, sentence, value};
use crate::output::{printable, size};

const STYLE: &str = "
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; vertical-align: top; }
th { border-bottom: 1px solid; } td.n, th.n { text-align: right; white-space: nowrap; }
code { font-size: .85rem; overflow-wrap: anywhere; } .faint { opacity: .7; }
.verdict { border-left: .4rem solid; padding-left: 1rem; font-size: 1.1rem; }
.possible { border-color: #2a7; } .change { border-color: #c80; }
.impossible { border-color: #c33; }
li { margin-bottom: 1rem; } li ul { margin: .3rem 0; } li li { margin: 0; }
@media print { body { max-width: none; } }
";

/// The page.
pub(super) fn page(assessment: &Assessment) -> Markup {
    let mark = match assessment.verdict {
        Verdict::Possible => "possible",
        Verdict::PossibleAfterChanges => "change",
        Verdict::Impossible => "impossible",
    };
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { "Import of " (printable(&assessment.database)) " · pgshard" }
                style { (PreEscaped(STYLE)) }
            }
            body {
                h1 { "Import of " (printable(&assessment.database)) " into shards" }
                p.faint {
                    "PostgreSQL " (assessment.server_version) ", by "
                    code { (printable(&assessment.key)) }
                    ". Nothing was written to the database."
                }
                p class=(format!("verdict {mark}")) { (capitalized(&sentence(assessment))) "." }
                p { (capitalized(&extent(assessment))) "." }
                (obstacles(assessment, Level::Impossible, "In the way"))
                (obstacles(assessment, Level::Change, "To change first"))
                (obstacles(assessment, Level::Check, "To check"))
                (tables(assessment))
                (statements(assessment))
                (ids_and_keys(assessment))
                h2 { "To expect, roughly" }
                table {
                    tr { th { "" } th.n { "" } th { "How it was computed" } }
                    @for figure in &assessment.figures {
                        tr { td { (figure.title) } td.n { (value(figure)) }
                            td.faint { (figure.assumes) } }
                    }
                }
                @if !assessment.unknown.is_empty() {
                    h2 { "Not known" }
                    ul { @for one in &assessment.unknown { li { (printable(one)) } } }
                }
            }
        }
    }
}

fn obstacles(assessment: &Assessment, level: Level, title: &str) -> Markup {
    let found: Vec<&Obstacle> = assessment.of(level).collect();
    html! {
        @if !found.is_empty() {
            h2 { (title) }
            ol {
                @for obstacle in found {
                    li id=(obstacle.id) {
                        strong { (obstacle.title) "." } " " code.faint { (obstacle.id) }
                        @if obstacle.objects.iter().any(|one| one.remedy.is_none()) {
                            br; em { (capitalized(obstacle.remedy)) "." }
                        }
                        (objects(&obstacle.objects))
                    }
                }
            }
        }
    }
}

/// How many objects of an obstacle are shown before the others are unfolded.
const OBJECTS_OPEN: usize = 10;

fn objects(all: &[ObstacleObject]) -> Markup {
    let (open, folded) = all.split_at(all.len().min(OBJECTS_OPEN));
    html! {
        ul { @for one in open { (object(one)) } }
        @if !folded.is_empty() {
            details {
                summary { "and " (folded.len()) " more" }
                ul { @for one in folded { (object(one)) } }
            }
        }
    }
}

fn object(one: &ObstacleObject) -> Markup {
    html! {
        li {
            code { (printable(&one.name)) }
            @if !one.detail.is_empty() { ": " (printable(&one.detail)) }
            @if let Some(remedy) = &one.remedy { ". " em { (capitalized(&printable(remedy))) "." } }
        }
    }
}

fn tables(assessment: &Assessment) -> Markup {
    html! {
        h2 { "Tables" }
        table {
            tr { th { "Table" } th { "Decision" } th.n { "Rows" } th.n { "Size" } th { "Why" } }
            @for table in &assessment.tables {
                tr {
                    td { code { (printable(&table.table)) } }
                    td { (table.decision.title()) }
                    td.n { (rows(table.rows)) }
                    td.n { (size(u64::try_from(table.bytes).unwrap_or_default())) }
                    td { (printable(&table.reason)) }
                }
            }
        }
    }
}

fn statements(assessment: &Assessment) -> Markup {
    html! {
        @if let Some(statements) = &assessment.statements {
            h2 { "Statements" }
            p {
                (statements.calls) " calls in " (statements.forms) " forms. Shares are of "
                @if statements.by_time { "their time." } @else { "their number." }
                @if statements.left_out > 0 {
                    " " (statements.left_out) " calls were not judged: there are too many forms."
                }
            }
            table {
                tr { th { "" } th.n { "Share" } th.n { "Forms" } th.n { "Calls" } }
                @for share in &statements.shares {
                    tr { td { (class(share.class)) } td.n { (percent(share.share)) }
                        td.n { (share.forms) } td.n { (share.calls) } }
                }
            }
            @if !statements.without_key.is_empty() {
                table {
                    tr { th.n { "Share" } th { "" } th { "Statement" } }
                    @for one in &statements.without_key {
                        tr {
                            td.n { (percent(one.share)) }
                            td { (class(one.class)) br; span.faint { (printable(&one.about)) } }
                            td { code { (printable(&one.statement)) } }
                        }
                    }
                }
            }
        }
    }
}

fn ids_and_keys(assessment: &Assessment) -> Markup {
    let ids = &assessment.ids;
    html! {
        h2 { "IDs" }
        p {
            @if let (Some(largest), Some(column)) = (&ids.largest, &ids.largest_of) {
                "The largest is " (largest) " (" code { (printable(column)) } "). "
            }
            "The first that a shard would make is " (ids.first_of_shards) " (epoch " (ids.epoch)
            ")."
            @if let Some(below) = &ids.legacy_below {
                " " code { "legacy_below = " (below) } " fits between them."
            }
        }
        @if !assessment.largest_keys.is_empty() {
            h2 { "Largest keys" }
            p.faint {
                "By the statistics of ANALYZE or a sample, in the tables with the key in a column."
            }
            table {
                tr { th { "Key" } th.n { "Rows" } th.n { "Size" } th.n { "Share" } }
                @for key in &assessment.largest_keys {
                    tr { td { (printable(&key.key)) } td.n { (rows(Some(key.rows))) }
                        td.n { (size(key.bytes.max(0.0) as u64)) } td.n { (percent(key.share)) } }
                }
            }
        }
    }
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn capitalized(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| {
        first.to_uppercase().chain(letters).collect()
    })
}
