//! Moves: what is open, how long shards were closed, what has ended.

use std::collections::BTreeMap;

use maud::{Markup, html};
use pgshard::mover::{Entry, MoveId, ShardProgress};

use super::super::super::moves::{self as told, ListReport, MoveListing, audit_word, back};
use super::super::snapshot::{OpenMove, Snapshot};
use super::draw;
use super::page::{Page, Part};
use super::words::{advice, command, day_and_clock, shard_link, short, text};
use crate::output::{counted, size};

/// Enough to read of those that have ended: the journals have them all.
const ENDED_MAX: usize = 200;

/// More shards of one move are counted only.
const SHARDS_MAX: usize = 32;

/// The columns of the histogram: up to so many milliseconds.
const PAUSES: [(f64, &str); 8] = [
    (5.0, "5 ms"),
    (10.0, "10 ms"),
    (25.0, "25 ms"),
    (50.0, "50 ms"),
    (100.0, "100 ms"),
    (250.0, "250 ms"),
    (1000.0, "1 s"),
    (f64::INFINITY, "more"),
];

pub(super) fn page(seen: &Snapshot) -> Page {
    let list = ListReport::of(&seen.gathered.entries, &seen.reverse_streams).moves;
    let mut least: BTreeMap<String, bool> = BTreeMap::new();
    for entry in &seen.gathered.entries {
        *least.entry(entry.id.to_string()).or_insert(true) &= entry.phase.is_ended();
    }
    let is_ended = |one: &&MoveListing| least.get(&one.r#move).copied().unwrap_or(true);
    // An ID begins with its time: the newest first.
    let (ended, open): (Vec<&MoveListing>, Vec<&MoveListing>) =
        list.iter().rev().partition(is_ended);
    let mut parts = vec![Part::new("summary", summary(&open, &ended))];
    for one in &open {
        let followed = seen
            .open
            .iter()
            .find(|open| open.progress.id.to_string() == one.r#move);
        parts.push(Part::new(
            format!("move-{}", one.r#move),
            card(one, followed),
        ));
    }
    let pauses: Vec<f64> = seen.gathered.entries.iter().filter_map(pause).collect();
    parts.push(Part::new("pauses", histogram(&pauses)));
    parts.push(Part::new("ended", table(&ended)));
    Page::new("Moves", "/moves", html! { h1 { "Moves" } }, parts)
}

fn summary(open: &[&MoveListing], ended: &[&MoveListing]) -> Markup {
    html! {
        p { b { (counted(open.len(), "move")) " open" } ", " (ended.len()) " at an end. "
            (command("pgshard moves list --all")) " " (command("pgshard move 7 --to db2 --plan")) }
    }
}

/// How long the shard was closed, in milliseconds.
pub(super) fn pause(entry: &Entry) -> Option<f64> {
    entry.timings.get("pause_ms")?.as_f64()
}

/// A link to the page of a move, by the end of its ID: the beginning is the time.
fn link(id: &str) -> Markup {
    html! {
        a href=(format!("/moves/{id}")) title=(id) {
            code { (id.rsplit('-').next().unwrap_or(id)) }
        }
    }
}

/// An open move.
fn card(one: &MoveListing, followed: Option<&OpenMove>) -> Markup {
    html! {
        article.card {
            h2 { "Move " (link(&one.r#move)) " " span.badge.notice { (one.phase) }
                @if one.desired != "go" { " " span.badge.warning { "told to " (one.desired) } } }
            p { "shards " (short(&one.shards)) " from " b { (one.source) } " to " b { (one.target) }
                ", since " (begun(&one.since)) " UTC" }
            p { @if one.at_work.is_empty() { span.badge.warning { "no command works on it" } }
                @else { "at work: " (text(&one.at_work.join("; "))) } }
            @if let Some(open) = followed { (live(open)) }
            p { "next: " (one.next) ". "
                (command(format!("pgshard moves watch {}", one.r#move))) " "
                @if one.at_work.is_empty() {
                    (command(format!("pgshard moves resume {}", one.r#move))) " "
                        (command(format!("pgshard moves abort {}", one.r#move)))
                } @else { (command(format!("pgshard moves stop {}", one.r#move))) } }
        }
    }
}

/// How far it is, how fast, and which sessions are in the way.
pub(super) fn live(open: &OpenMove) -> Markup {
    let progress = &open.progress;
    html! {
        @if let Some(rate) = &open.rate { p { (told::rate_words(rate)) } }
        div.scroll { table {
            thead { tr {
                th.right { "shard" } th { "phase" } th.right { "chunks" } th.wide { "copied" }
                th.right { "rows" } th.right { "bytes" } th.right { "attempt" } th { "" }
            } }
            tbody { @for shard in progress.shards.iter().take(SHARDS_MAX) { (row(shard)) } }
        } }
        @if progress.shards.len() > SHARDS_MAX {
            p.faint { "and " (counted(progress.shards.len() - SHARDS_MAX, "shard")) " more" }
        }
        @for stream in &progress.streams { p { (text(&told::stream(stream))) } }
        @for stream in &progress.reverse_streams { p { (text(&told::reverse(stream))) } }
        @for (host, error) in &progress.unknown {
            p.badly { (host.as_str()) ": " (text(&error.to_string())) }
        }
    }
}

fn row(shard: &ShardProgress) -> Markup {
    let chunks = shard.chunks;
    html! { tr {
        td.right { (shard_link(shard.entry.shard)) }
        td { (shard.entry.phase.as_str()) }
        td.right { (told::chunks(shard).unwrap_or_else(|| "-".to_owned())) }
        td { @if chunks.all > 0 { (draw::bar(chunks.copied as f64 / chunks.all as f64, "after")) } }
        td.right { (chunks.rows) }
        td.right { (size(chunks.bytes)) }
        td.right { (shard.entry.attempt) }
        td { @for remark in told::remarks(shard) { div { (text(&remark)) } } }
    } }
}

fn histogram(pauses: &[f64]) -> Markup {
    if pauses.is_empty() {
        return html! {};
    }
    let mut columns: Vec<(String, usize)> = PAUSES
        .iter()
        .map(|(_, name)| ((*name).to_owned(), 0))
        .collect();
    for pause in pauses {
        let at = PAUSES
            .iter()
            .position(|(most, _)| pause <= most)
            .unwrap_or(PAUSES.len() - 1);
        columns[at].1 += 1;
    }
    let mut sorted = pauses.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (median, longest) = (sorted[sorted.len() / 2], sorted[sorted.len() - 1]);
    html! {
        h2 { "How long shards were closed" }
        div.card {
            (draw::histogram(&columns, "pauses"))
            p {
                (counted(pauses.len(), "pause"))
                ", the median " b { (draw::milliseconds(median)) }
                ", the longest " b { (draw::milliseconds(longest)) } ". "
                span.faint { "A column has those up to its number." }
            }
        }
    }
}

fn table(ended: &[&MoveListing]) -> Markup {
    html! {
        @if !ended.is_empty() {
            h2 { "At an end" }
            div.scroll { table {
                thead { tr {
                    th { "move" } th { "shards" } th { "from" } th { "to" } th { "phase" }
                    th { "since" } th { "audit" } th { "way back" } th.right { "WAL kept" }
                    th { "next" }
                } }
                tbody { @for one in ended.iter().take(ENDED_MAX) { tr {
                    td.whole { (link(&one.r#move)) } td { (short(&one.shards)) }
                    td { (one.source) } td { (one.target) }
                    td { (one.phase) } td.whole { (begun(&one.since)) }
                    td { (audit(&one.audit)) } td { (text(&one.back)) }
                    td.right { (one.back_wal_kept.map_or_else(|| "-".to_owned(), size)) }
                    td { (one.next) }
                } } }
            } }
            @if ended.len() > ENDED_MAX { p.faint { "and " (ended.len() - ENDED_MAX) " more: "
                (command("pgshard moves list --all")) } }
        }
    }
}

/// `2026-11-25 02:10:46`.
fn begun(since: &str) -> String {
    since
        .split('.')
        .next()
        .unwrap_or_default()
        .replace('T', " ")
        .trim_end_matches('Z')
        .to_owned()
}

/// What became of an audit, as a word on its colour.
pub(super) fn audit(word: &str) -> Markup {
    let class = match word {
        "audited" => "badge good",
        "differs" => "badge alarm",
        "not audited" => "badge warning",
        _ => "badge plain",
    };
    html! { @if word == "-" || word.is_empty() { "-" } @else { span class=(class) { (word) } } }
}

/// Entries of the journal, a line each.
pub(super) fn entries(entries: &[&Entry]) -> Markup {
    html! {
        div.scroll { table {
            thead { tr {
                th { "move" } th { "from" } th { "to" } th { "phase" } th.right { "rows" }
                th.right { "closed for" } th { "audit" } th { "way back" } th { "changed" }
            } }
            tbody { @for entry in entries { tr {
                td.whole { (link(&entry.id.to_string())) } td { (entry.source.as_str()) }
                td { (entry.target.as_str()) }
                td { (entry.phase.as_str()) }
                td.right { (entry.rows.map_or_else(|| "-".to_owned(), |rows| rows.to_string())) }
                td.right { (pause(entry).map_or_else(|| "-".to_owned(), draw::milliseconds)) }
                td { (audit(audit_word(&entry.audit))) }
                td { (text(&back(entry.reverse.as_ref()))) }
                td.whole { (day_and_clock(entry.updated_at)) }
            }
            @if let Some(error) = &entry.last_error {
                tr.bad.more { td colspan="9" { (advice(error)) } }
            } } }
        } }
    }
}

/// What to type about a move.
pub(super) fn commands(id: MoveId, verbs: &[&str]) -> Markup {
    html! { p { @for verb in verbs { (command(format!("pgshard moves {verb} {id}"))) " " } } }
}
