//! One move: its shards, how long each step took, what its audit found.

use axum::http::StatusCode;
use maud::{Markup, html};
use pgshard::map::print_shards;
use pgshard::mover::{AuditState, Entry, Phase};

use super::super::snapshot::Snapshot;
use super::page::{Page, Part};
use super::words::{advice, day_and_clock, shard_link, short, text};
use super::{draw, moves};
use crate::output::counted;

/// More of one move are alike.
const TIMELINES_MAX: usize = 16;

/// The steps in the order in which they are taken. While the shard is open, and while it is closed.
const OPEN: [&str; 4] = ["prepare", "copy", "catch_up", "verify"];
const CLOSED: [&str; 7] = [
    "swap", "barrier", "marker", "drain", "open", "decide", "commit",
];

pub(super) fn page(seen: &Snapshot, named: &str) -> Page {
    let id = match seen.move_named(named) {
        Ok(id) => id,
        Err(failure) => {
            return missing(html! {
                p { (text(&failure.one_line())) }
                @if let Some(hint) = failure.advice() { p { (advice(hint)) } }
            });
        }
    };
    let entries = seen.entries_of(id);
    let Some(first) = entries.first() else {
        return missing(
            html! { p { "No host that answers knows the move " code { (id.to_string()) } "." } },
        );
    };
    let fixed = html! { h1 { "Move " code { (id.to_string()) } } };
    let mut parts = vec![Part::new("summary", summary(first, &entries))];
    if let Some(open) = seen.open.iter().find(|open| open.progress.id == first.id) {
        parts.push(Part::new(
            "live",
            html! { h2 { "Now" } (moves::live(open)) },
        ));
    }
    parts.push(Part::new(
        "shards",
        html! { h2 { "Shards" } (table(&entries)) },
    ));
    parts.push(Part::new("steps", timelines(&entries)));
    parts.push(Part::new("audit", audits(&entries)));
    Page::new("Move", "/moves", fixed, parts)
}

fn missing(why: Markup) -> Page {
    let fixed = html! { h1 { "Move" } div.card.bad { (why) } };
    Page {
        status: StatusCode::NOT_FOUND,
        ..Page::new("Move", "/moves", fixed, Vec::new())
    }
}

fn summary(first: &Entry, entries: &[&Entry]) -> Markup {
    let least = entries
        .iter()
        .map(|entry| entry.phase)
        .min()
        .unwrap_or(first.phase);
    let is_worked_on = entries.iter().any(|entry| entry.worker.is_some());
    let verbs: &[&str] = match least {
        Phase::Kept => &["rollback", "audit", "complete"],
        phase if phase.is_ended() => &["show"],
        _ if is_worked_on => &["watch", "pause", "stop"],
        _ => &["resume", "abort"],
    };
    html! {
        div.card {
            p {
                "shards " (short(&print_shards(entries.iter().map(|entry| entry.shard))))
                " from " b { (first.source.as_str()) }
                " to " b { (first.target.as_str()) } ", " (first.mode.as_str())
            }
            p {
                span.badge.notice { (least.as_str()) }
                ", begun " (day_and_clock(first.created_at)) " UTC"
                @if let Some(rollback_of) = first.rollback_of {
                    ", a rollback of "
                    a href=(format!("/moves/{rollback_of}")) { code { (rollback_of.to_string()) } }
                }
            }
            (moves::commands(first.id, verbs))
        }
    }
}

/// The command that works on the shard's move.
fn worker(entry: &Entry) -> String {
    let worker = entry.worker.as_ref();
    worker.map_or_else(|| "-".to_owned(), ToString::to_string)
}

/// What an operator can do with the shard's move.
fn comes_next(entry: &Entry) -> &'static str {
    use super::super::super::moves::{can_be_taken_back, what_next};
    what_next(entry.phase, can_be_taken_back(entry))
}

fn table(entries: &[&Entry]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th.right { "shard" } th { "phase" } th.right { "attempt" } th.right { "rows" }
                th.right { "closed for" } th { "audit" } th { "way back" } th { "at work" }
            } }
            tbody { @for entry in entries.iter().take(512) {
                tr {
                    td.right { (shard_link(entry.shard)) } td { (entry.phase.as_str()) }
                    td.right { (entry.attempt) }
                    td.right {
                        (entry.rows.map_or_else(|| "-".to_owned(), |rows| rows.to_string()))
                    }
                    td.right {
                        (moves::pause(entry).map_or_else(|| "-".to_owned(), draw::milliseconds))
                    }
                    td { (moves::audit(super::super::super::moves::audit_word(&entry.audit))) }
                    td { (text(&super::super::super::moves::back(entry.reverse.as_ref()))) }
                    td { (text(&worker(entry))) }
                }
                @if let Some(error) = &entry.last_error {
                    tr.bad.more { td colspan="8" {
                        (advice(error)) " What comes next: " (comes_next(entry)) "."
                    } }
                }
            } }
        } }
    }
}

/// The steps of these names, and of others in `rest`, that have milliseconds in the journal.
fn steps(entry: &Entry, names: &[&str]) -> Vec<(String, f64)> {
    let took = |name: &&str| {
        Some((
            (*name).replace('_', " "),
            entry.timings.get(format!("{name}_ms"))?.as_f64()?,
        ))
    };
    names.iter().filter_map(took).collect()
}

fn timelines(entries: &[&Entry]) -> Markup {
    let timed: Vec<&&Entry> = entries
        .iter()
        .filter(|entry| moves::pause(entry).is_some())
        .collect();
    html! {
        @if !timed.is_empty() {
            h2 { "Steps" }
            @for entry in timed.iter().take(TIMELINES_MAX) {
                @let (open, closed) = (steps(entry, &OPEN), steps(entry, &CLOSED));
                div.card {
                    h3 { "Shard " (shard_link(entry.shard)) }
                    @if !open.is_empty() { p.small { "before it was closed, and while it was \
                        filled" }
                        (draw::steps(&open)) }
                    @if !closed.is_empty() {
                        p.small {
                            "while it was closed, "
                            (moves::pause(entry).map_or_else(String::new, draw::milliseconds))
                            " in all"
                        }
                        (draw::steps(&closed))
                    }
                }
            }
            @if timed.len() > TIMELINES_MAX {
                p.faint { "and " (counted(timed.len() - TIMELINES_MAX, "shard")) " more" }
            }
        }
    }
}

fn audits(entries: &[&Entry]) -> Markup {
    let told =
        |entry: &&&Entry| !matches!(entry.audit.state, AuditState::None | AuditState::Audited);
    html! {
        @for entry in entries.iter().filter(told).take(TIMELINES_MAX) {
            @let words = entry.audit.to_string();
            div.card {
                p { "Shard " (shard_link(entry.shard)) ": "
                    (moves::audit(super::super::super::moves::audit_word(&entry.audit)))
                    @if !words.is_empty() { " " (text(&words)) } }
            }
        }
    }
}
