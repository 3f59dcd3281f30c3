//! One shard: where it is, what its hosts have recorded of it, its moves, its migrations, and what
//! can be done with it.

use maud::{Markup, html};
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::HostName;
use pgshard::schema::{Finding, ShardState};

use super::super::snapshot::Snapshot;
use super::moves;
use super::page::{Page, Part};
use super::words::{advice, clock, command, number, severity, short, text};
use crate::context;
use crate::output::size;

pub(super) fn page(seen: &Snapshot, config: &Config, shard: ShardId) -> Page {
    let title = format!("Shard {shard}");
    let last = config.cluster.shards.get() - 1;
    if !config.cluster.shards.contains(shard) {
        let fixed =
            html! { h1 { (title) } p { "There is no such shard: the last one is " (last) "." } };
        return Page::new(title, "/shards", fixed, Vec::new());
    }
    let number = shard.get();
    let fixed = html! {
        h1 { (title) }
        nav.choices aria-label="Neighbours" {
            @if number > 0 {
                a href=(format!("/shards/{}", number - 1)) rel="prev" { "shard " (number - 1) }
            }
            @if number < last {
                a href=(format!("/shards/{}", number + 1)) rel="next" { "shard " (number + 1) }
            }
            a href=(format!("/shards?kind=shard&q={number}")) { "in the grid" }
        }
    };
    let parts = vec![
        Part::new("about-shard", about(seen, config, shard)),
        Part::new("by-hosts", by_hosts(seen, shard)),
        Part::new("findings", findings(seen, shard)),
        Part::new("moves", of_moves(seen, shard)),
        Part::new("migrations", migrations(seen, shard)),
    ];
    Page::new(title, "/shards", fixed, parts)
}

fn about(seen: &Snapshot, config: &Config, shard: ShardId) -> Markup {
    let (map, read_at) = seen.map_shown().unzip();
    let place = map.and_then(|map| map.placement(shard));
    let weights = seen.weights();
    let weight = weights.get(&shard);
    let schema = match &place {
        Some(place) => context::schema_of(config, &place.host, shard),
        None => config.cluster.prefix.schema(shard),
    };
    let elsewhere = config
        .hosts
        .keys()
        .find(|name| place.as_ref().is_some_and(|place| place.host != **name));
    html! {
        div.card {
            dl {
                dt { "schema" } dd { code { (schema) } }
                @if let Some(place) = &place {
                    dt { "host, by the map" }
                    dd { a href=(format!("/hosts#host-{}", place.host)) { (place.host.as_str()) }
                        @if seen.is_silent(&place.host) { " " span.badge.silent { "no answer" } }
                        @if let Some(at) = read_at.flatten() {
                            span.faint { ", as it was read at " (clock(at)) " UTC: " }
                            span.badge.error { "the map cannot be read" }
                        } }
                    dt { "epoch" } dd { (place.epoch.get()) }
                }
                @if let Some(weight) = weight {
                    dt { "size" } dd { (size(weight.bytes)) }
                    dt { "rows written a second" } dd { (weight.writes.map_or_else(||
                        "known after the next look".to_owned(), number)) }
                }
            }
            p { (command(format!("pgshard psql --shard {shard}"))) " "
                @if let Some(to) = elsewhere { (command(format!("pgshard move {shard} --to {to} \
                    --plan"))) } }
        }
    }
}

fn by_hosts(seen: &Snapshot, shard: ShardId) -> Markup {
    let row = |name: &HostName| {
        let control = seen.facts(name)?.control.as_ref()?;
        let row = control.shards.get(&shard);
        let incoming = control.incoming.get(&shard);
        (row.is_some() || incoming.is_some())
            .then(|| (name.clone(), row.cloned(), incoming.cloned()))
    };
    let rows: Vec<_> = seen.gathered.hosts.keys().filter_map(row).collect();
    html! {
        h2 { "What hosts say" }
        div.scroll { table {
            thead { tr { th { "host" } th { "state" } th.right { "since epoch" } th { "to" } } }
            tbody { @for (name, row, incoming) in &rows {
                @if let Some(row) = row { tr {
                    th scope="row" { (name.as_str()) }
                    td { (state(row.state)) }
                    td.right { (row.epoch.get()) }
                    td { (row.peer.as_ref().map_or("", HostName::as_str)) }
                } }
                @if let Some(incoming) = incoming { tr {
                    th scope="row" { (name.as_str()) }
                    td {
                        span.badge.notice {
                            @if incoming.ready { "coming, ready" } @else { "coming" }
                        }
                        " from " (incoming.source.as_str())
                    }
                    td.right { (incoming.epoch.get()) } td {}
                } }
            } }
        } }
        @if rows.is_empty() { p.faint { "No host that answers knows it." } }
    }
}

fn state(state: ShardState) -> Markup {
    match state {
        ShardState::Serving => html! { span.badge.good { "serves it" } },
        ShardState::Fenced => html! { span.badge.warning { "closed for a moment" } },
        ShardState::Moved => html! { span.badge.plain { "it left" } },
    }
}

fn findings(seen: &Snapshot, shard: ShardId) -> Markup {
    let found: Vec<&Finding> = seen
        .findings()
        .into_iter()
        .filter(|finding| finding.shards.contains(&shard))
        .take(20)
        .collect();
    html! {
        @if !found.is_empty() {
            h2 { "Findings" }
            @for finding in found {
                div class=(format!("card {}", finding.severity.as_str())) {
                    p {
                        (severity(finding.severity)) " " code { (finding.code) } " "
                        (text(&finding.message))
                    }
                    p.remedy { b { "Remedy: " } (advice(&finding.remedy)) }
                }
            }
        }
    }
}

fn of_moves(seen: &Snapshot, shard: ShardId) -> Markup {
    let entries = seen.moves_of(shard);
    html! {
        h2 { "Moves" }
        @if entries.is_empty() { p.faint { "No host that answers remembers one." } }
        @else { (moves::entries(&entries)) }
    }
}

fn migrations(seen: &Snapshot, shard: ShardId) -> Markup {
    let mut owners = seen
        .gathered
        .survey
        .values()
        .filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
    let owner = owners.rfind(|control| {
        control
            .shards
            .get(&shard)
            .is_some_and(|row| row.state.is_owner())
    });
    let Some(control) = owner else {
        return html! {};
    };
    let applied = control
        .applied
        .iter()
        .find(|set| set.shards.contains(&shard));
    let names: Vec<&str> = applied
        .iter()
        .flat_map(|set| &set.migrations)
        .map(|one| one.name.as_str())
        .filter(|name| !name.starts_with("pgshard:"))
        .collect();
    html! {
        h2 { "Migrations" }
        p { (names.len()) " applied" @if !names.is_empty() { ": " (short(&names.join(", "))) } }
        @if let Some(attempt) = control.attempts.get(&shard) {
            div.card.error {
                p { span.badge.error { "failed" } " " (text(&attempt.name)) ": "
                    (text(attempt.message.as_deref().unwrap_or("it was begun, and its outcome is \
                        unknown"))) }
                p { (command(format!("pgshard migrate retry --only {shard}"))) }
            }
        }
    }
}
