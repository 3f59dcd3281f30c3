//! The files and how many shards have each, those that failed first.

use maud::{Markup, html};

use super::super::super::migrate::{MigrationStatus, Status};
use super::super::snapshot::Snapshot;
use super::draw;
use super::page::{Page, Part};
use super::words::{advice, command, how_many, no_map, short, text};
use crate::output::counted;

pub(super) fn page(seen: &Snapshot) -> Page {
    let gathered = &seen.gathered;
    let fixed = html! { h1 { "Migrations" } };
    let Some(map) = seen.map() else {
        return Page::new(
            "Migrations",
            "/migrations",
            fixed,
            vec![Part::new("summary", no_map(seen))],
        );
    };
    let status = Status::by(
        &gathered.migrations,
        &gathered.mistakes,
        map,
        &gathered.survey,
    );
    let parts = vec![
        Part::new("summary", summary(&status)),
        Part::new("files", files(&status)),
        Part::new("once", once(&status)),
    ];
    Page::new("Migrations", "/migrations", fixed, parts)
}

fn summary(status: &Status) -> Markup {
    let with = |ranges: fn(&MigrationStatus) -> &str| {
        status
            .migrations
            .iter()
            .filter(|one| !ranges(one).is_empty())
            .count()
    };
    let (failed, pending) = (with(|one| &one.failed), with(|one| &one.pending));
    html! {
        div.card {
            @if status.migrations.is_empty() { p { "There are no migrations." } }
            @else {
                p { (counted(status.migrations.len(), "file"))
                    @if failed == 0 && pending == 0 { ", and every shard that was asked for has \
                        them all" }
                    @if pending > 0 { ", " (pending) " not everywhere yet" }
                    @if failed > 0 { ", " b.badly { (failed) " failed somewhere" } }
                    "." }
            }
            @for mistake in &status.mistakes { p.badly { (text(mistake)) " Until it is corrected \
                no migration runs."
                } }
            @if !status.unserved.is_empty() {
                p.badly { "No host says that it serves the shards " (short(&status.unserved)) ": "
                    (command("pgshard check")) }
            }
            @if !status.silent_hosts.is_empty() {
                p.badly { "No answer from " (status.silent_hosts.join(", ")) ": their shards are \
                    not counted." }
            }
            p { @if failed > 0 { (command("pgshard migrate retry")) " " }
                (command("pgshard migrate plan")) " " (command("pgshard migrate up")) }
        }
    }
}

fn files(status: &Status) -> Markup {
    let mut files: Vec<&MigrationStatus> = status.migrations.iter().collect();
    // Failed ones first, then missing ones; the newest of each first.
    files.sort_by_key(|one| {
        (
            one.failed.is_empty(),
            one.changed.is_empty(),
            one.pending.is_empty(),
            std::cmp::Reverse(one.name.clone()),
        )
    });
    html! {
        @if !files.is_empty() {
            div.scroll { table {
                thead { tr {
                    th { "file" } th.right { "applied" } th.right { "pending" }
                    th.right { "changed" } th.right { "failed" }
                    th.wide { "applied, of all" }
                } }
                tbody { @for one in files {
                    @let (pending, failed) = (how_many(&one.pending), how_many(&one.failed));
                    @let all = (one.applied + pending).max(1);
                    tr class=[(!one.failed.is_empty()).then_some("bad")] {
                        th scope="row" {
                            (text(&one.name))
                            @if !one.in_folder { " " span.badge.notice { "no file" } }
                        }
                        td.right { (one.applied) }
                        td.right title=(one.pending) { (pending) }
                        td.right title=(one.changed) { (how_many(&one.changed)) }
                        td.right title=(one.failed) { (failed) }
                        td { (draw::bar(one.applied as f64 / all as f64, "after")) }
                    }
                    @if let Some(message) = &one.message {
                        tr.bad.more { td colspan="6" {
                            "failed in shards " (short(&one.failed)) ": " (advice(message))
                            " Mend the file or the rows, then \
                                " (command(format!("pgshard migrate retry --only {}",
                                first(&one.failed))))
                        } }
                    }
                } }
            } }
        }
    }
}

fn first(ranges: &str) -> &str {
    ranges.split(',').next().unwrap_or_default()
}

fn once(status: &Status) -> Markup {
    html! {
        @if !status.once_per_host.is_empty() {
            h2 { "Once per host" }
            div.scroll { table {
                thead { tr { th { "file" } th { "applied on" } th { "pending on" } } }
                tbody { @for one in &status.once_per_host { tr {
                    th scope="row" { (text(&one.name)) } td { (one.applied.join(", ")) } td {
                        (one.pending.join(", ")) }
                } } }
            } }
        }
    }
}
