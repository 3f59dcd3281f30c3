//! Words that pages share.

use jiff::Timestamp;
use maud::{Markup, html};
use pgshard::schema::Severity;

use super::super::snapshot::Snapshot;
use crate::output::printable;

/// A text from outside: characters that change the direction of writing are shown as escapes, and
/// maud escapes the rest.
pub(super) fn text(words: &str) -> Markup {
    html! { (printable(words)) }
}

/// A list that may be very long: its beginning, and all of it where the mouse rests.
pub(super) fn short(list: &str) -> Markup {
    const LETTERS: usize = 60;
    let list = printable(list);
    match list.char_indices().nth(LETTERS) {
        None => html! { (list) },
        Some((end, _)) => html! { span title=(beginning(&list, 2000)) { (list[..end]) "…" } },
    }
}

fn beginning(text: &str, letters: usize) -> &str {
    text.char_indices()
        .nth(letters)
        .map_or(text, |(end, _)| &text[..end])
}

/// A command to type.
pub(super) fn command(line: impl AsRef<str>) -> Markup {
    html! { code.command { (line.as_ref()) } }
}

/// A message that has its commands in backticks; they are shown as code.
pub(super) fn advice(words: &str) -> Markup {
    let words = printable(words);
    let pieces: Vec<&str> = words.split('`').collect();
    // A lone backtick quotes nothing.
    if pieces.len().is_multiple_of(2) {
        return html! { (words) };
    }
    html! {
        @for (at, piece) in pieces.iter().enumerate() {
            @if at % 2 == 1 { (command(piece)) } @else { (piece) }
        }
    }
}

/// `08:15:30`.
pub(super) fn clock(at: Timestamp) -> String {
    at.strftime("%H:%M:%S").to_string()
}

/// `2026-11-01 08:15:30`.
pub(super) fn day_and_clock(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Why there is no map to show, and what to do.
pub(super) fn no_map(seen: &Snapshot) -> Markup {
    html! {
        div.card.bad {
            p { "The map cannot be read. What the hosts say is on the page \
                " a href="/hosts" { "Hosts" } ". "
                (command("pgshard check")) }
            @for finding in seen.findings() {
                p {
                    (severity(finding.severity)) " " code { (finding.code) } " "
                    (text(&finding.message))
                }
                p.remedy { b { "Remedy: " } (advice(&finding.remedy)) }
            }
        }
    }
}

/// A severity as a word on its colour.
pub(super) fn severity(severity: Severity) -> Markup {
    html! { span class=(format!("badge {}", severity.as_str())) { (severity.as_str()) } }
}

/// A shard, as a link to its page.
pub(super) fn shard_link(shard: pgshard::ShardId) -> Markup {
    html! { a href=(format!("/shards/{shard}")) { (shard.to_string()) } }
}

/// A number with as many digits as it deserves.
pub(super) fn number(number: f64) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        small if small < 10.0 => format!("{number:.2}"),
        middle if middle < 1000.0 => format!("{number:.1}"),
        _ => format!("{number:.0}"),
    }
}

/// How many shards `0-5,7` are.
pub(super) fn how_many(ranges: &str) -> usize {
    let span = |range: &str| match range.split_once('-') {
        Some((first, last)) => last
            .parse::<usize>()
            .ok()?
            .checked_sub(first.parse().ok()?)
            .map(|more| more + 1),
        None => range.parse::<usize>().ok().map(|_| 1),
    };
    ranges
        .split(',')
        .filter_map(|range| span(range.trim()))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_counted() {
        for (ranges, count) in [
            ("", 0),
            ("7", 1),
            ("0-5,7", 7),
            ("0-8191", 8192),
            ("0-1, 4-5", 4),
        ] {
            assert_eq!(how_many(ranges), count, "{ranges}");
        }
    }

    #[test]
    fn what_others_say_stays_text() {
        let shown = advice("`<b>` & <script>alert(1)</script> \u{202e}evil").into_string();
        assert_eq!(
            shown,
            "<code class=\"command\">&lt;b&gt;</code> &amp; &lt;script&gt;alert(1)&lt;/script&gt; \
                \\u{202e}evil"
        );
        assert_eq!(
            short(&"<".repeat(70)).into_string().matches("&lt;").count(),
            130
        );
    }
}
