//! The findings of `pgshard check`, each with the explanation of `pgshard explain`.

use std::collections::BTreeMap;

use maud::{Markup, html};
use pgshard::map::print_shards;
use pgshard::schema::{Finding, Severity};

use super::super::super::explain::{self, Explanation};
use super::super::snapshot::Snapshot;
use super::page::{Page, Part};
use super::words::{advice, command, severity, short, text};
use crate::output::counted;

/// More of one kind are counted only.
const ALIKE_MAX: usize = 20;

pub(super) fn page(seen: &Snapshot) -> Page {
    let findings = seen.findings();
    let explained = explain::findings();
    let mut kinds: BTreeMap<(std::cmp::Reverse<Severity>, &str), Vec<&Finding>> = BTreeMap::new();
    for finding in &findings {
        kinds
            .entry((std::cmp::Reverse(finding.severity), finding.code))
            .or_default()
            .push(*finding);
    }
    let mut parts = vec![Part::new("summary", summary(&findings))];
    for ((worst, code), alike) in &kinds {
        let id = format!("finding-{}-{code}", worst.0.as_str());
        parts.push(Part::new(
            id,
            kind(worst.0, code, alike, explained.get(*code)),
        ));
    }
    Page::new("Findings", "/findings", html! { h1 { "Findings" } }, parts)
}

fn summary(findings: &[&Finding]) -> Markup {
    let severities = [
        Severity::Alarm,
        Severity::Error,
        Severity::Warning,
        Severity::Notice,
    ];
    let count = |one: Severity| {
        findings
            .iter()
            .filter(|finding| finding.severity == one)
            .count()
    };
    html! {
        div.card {
            @if findings.is_empty() { p { b { "ok: " } "config, map and hosts are as they should \
                be, and agree." } }
            @else {
                p { @for one in severities {
                    @if count(one) > 0 { (severity(one)) " " (count(one)) " " }
                } }
            }
            p.faint { "As " (command("pgshard check")) " says it. It can look deeper: "
                (command("pgshard check --ddl")) " "
                (command("pgshard check --movable")) " " (command("pgshard check --rows")) }
        }
    }
}

fn kind(
    worst: Severity,
    code: &str,
    alike: &[&Finding],
    explained: Option<&Explanation>,
) -> Markup {
    html! {
        article class=(format!("card {}", worst.as_str())) {
            h2 { (severity(worst)) " " code { (code) } " "
                @if alike.len() > 1 { span.faint { (counted(alike.len(), "finding")) } } }
            @for finding in alike.iter().take(ALIKE_MAX) {
                div.finding {
                    p {
                        @if let Some(host) = &finding.host { b { (host.as_str()) } ": " }
                        (text(&finding.message))
                    }
                    @let shards = print_shards(finding.shards.iter().copied());
                    @if !shards.is_empty() && !finding.message.contains(&shards) {
                        p { "shards " (short(&shards)) }
                    }
                    p.remedy { b { "Remedy: " } (advice(&finding.remedy)) }
                }
            }
            @if alike.len() > ALIKE_MAX { p.faint { "and " (alike.len() - ALIKE_MAX) " more" } }
            @if let Some(explained) = explained {
                details id=(format!("explained-{code}")) {
                    summary { "What it means" }
                    p { (advice(&explained.means)) }
                    @if !explained.r#do.is_empty() { p { (advice(&explained.r#do)) } }
                    p.faint { (command(format!("pgshard explain {code}"))) }
                }
            }
        }
    }
}
