//! Every host: its share, its room, its connections, its settings, what its slots keep, its
//! standbys.

use maud::{Markup, html};
use pgshard::config::{Config, HostConfig};
use pgshard::map::HostName;
use pgshard::schema::{HostFacts, HostStatus, Slot, StreamReader};

use super::super::super::survey::Host;
use super::super::snapshot::Snapshot;
use super::draw;
use super::page::{Page, Part};
use super::words::{clock, command, day_and_clock, text};
use crate::output::{counted, size};

pub(super) fn page(seen: &Snapshot, config: &Config) -> Page {
    let all: f64 = config.hosts.values().map(|host| host.limits.weight).sum();
    let mut parts = vec![Part::new("summary", summary(seen, config))];
    for (name, host) in &config.hosts {
        let share = if all > 0.0 {
            host.limits.weight / all
        } else {
            0.0
        };
        parts.push(Part::new(format!("host-{name}"), card(seen, host, share)));
    }
    Page::new("Hosts", "/hosts", html! { h1 { "Hosts" } }, parts)
}

fn summary(seen: &Snapshot, config: &Config) -> Markup {
    let silent = config
        .hosts
        .keys()
        .filter(|name| seen.is_silent(name))
        .count();
    html! {
        p { b { (counted(config.hosts.len(), "host")) }
            @if silent > 0 { ", " b.badly { (silent) " without an answer" } } "; "
            (command("pgshard host list")) " " (command("pgshard host add")) }
    }
}

fn card(seen: &Snapshot, config: &HostConfig, share: f64) -> Markup {
    let found = seen.host(&config.name);
    let is_silent = seen.is_silent(&config.name);
    html! {
        article.card.host.silent[is_silent] {
            h2 { (config.name.as_str()) " "
                @if is_silent { span.badge.silent { (not_read(found)) } }
                @else { span.badge.good { "answers" } }
                @if let Some(status) = found
                    .and_then(|host| host.status.as_ref())
                    .filter(|_| !is_silent)
                {
                    span.faint {
                        " PostgreSQL " (status.version / 10_000) "." (status.version % 10_000)
                    }
                    @if status.in_recovery { " " span.badge.warning { "a standby" } }
                }
                @if let Some(at) = found.and_then(|host| host.seen_at).filter(|_| !is_silent) {
                    span.faint { ", seen at " (clock(at)) " UTC" } }
            }
            @if is_silent {
                p { (text(&seen.why_silent(&config.name))) }
                @if let Some(at) = seen.heard.get(&config.name) { p.faint { "It answered last at "
                    (day_and_clock(*at)) " UTC." } }
                p { (command("pgshard check")) }
            } @else if let Some(host) = found {
                @if let Some(schema) = config.layout.whole() {
                    p { "Unsharded: all shards are in its schema " code { (schema.as_str()) } "." }
                }
                (numbers(seen, config, host, share))
                @if let Some(facts) = seen.facts(&config.name) { (settings(&config.name, facts)) }
                @if let Some(streams) = &host.streams {
                    (slots(&streams.slots))
                    (readers(&streams.readers))
                }
                @if config.layout.whole().is_none() {
                    p { (command(format!("pgshard drain {} --plan", config.name))) }
                }
            }
        }
    }
}

/// Why a host was not read, in short: "no answer", or what its server answers.
fn not_read(host: Option<&Host>) -> String {
    host.filter(|host| host.is_up())
        .and_then(|host| host.state)
        .map_or_else(|| "no answer".to_owned(), |state| state.to_string())
}

fn numbers(seen: &Snapshot, config: &HostConfig, host: &Host, share: f64) -> Markup {
    let on_all: usize = seen
        .gathered
        .hosts
        .values()
        .filter_map(|host| host.shards)
        .sum();
    let part = host
        .shards
        .map(|shards| shards as f64 / on_all.max(1) as f64);
    let measured = host.measured.as_ref();
    let of_shards: Option<u64> =
        measured.map(|(_, shards)| shards.values().map(|one| one.bytes).sum());
    html! {
        dl {
            dt { "shards" }
            dd {
                (host.shards.map_or_else(
                    || "not bootstrapped".to_owned(),
                    |shards| shards.to_string(),
                ))
                span.faint {
                    @if let Some(part) = part { ", " (percent(part)) " of all" }
                    "; its share is " (percent(share))
                    @if let Some(most) = config.limits.shards_max { ", " (most) " at most" }
                }
                @if let Some(part) = part { (draw::bar(part, "after")) }
            }
            dt { "size" }
            dd { (host.load.as_ref().map_or_else(|| "unknown".to_owned(), |load| size(load.bytes)))
                @if config.layout.whole().is_none() {
                    span.faint { ", of its shards "
                        (of_shards.map_or_else(|| "unknown".to_owned(), size)) }
                }
                @if let Some(bytes) = of_shards { (room(config, bytes)) } }
            @if let Some(status) = &host.status { (of_status(status)) }
        }
    }
}

fn percent(part: f64) -> String {
    format!("{:.1} %", part * 100.0)
}

/// What is left of the limit of the config. No server reports how large its disk is.
fn room(config: &HostConfig, taken: u64) -> Markup {
    let Some(most) = config.limits.bytes_max else {
        return html! {};
    };
    html! {
        span.faint { "; " (size(most.saturating_sub(taken))) " left of max_bytes" }
        (draw::bar(taken as f64 / most.max(1) as f64, if taken > most { "bad" } else { "after" }))
    }
}

fn of_status(status: &HostStatus) -> Markup {
    let taken = f64::from(status.connections) / f64::from(status.connections_max.max(1));
    html! {
        dt { "connections" }
        dd { (status.connections) span.faint { " of " (status.connections_max) }
            (draw::bar(taken, if taken > 0.9 { "bad" } else { "after" })) }
        dt { "WAL" }
        dd { code { (status.wal) } span.faint { ", wal_level " (status.wal_level)
            @if let Some(kept) = status.wal_kept { ", slots keep " (size(kept)) } } }
        dt { "standbys" }
        dd { (status.standbys.map_or_else(|| "unknown".to_owned(), |count| count.to_string()))
            @if let Some(bytes) = status.lag_bytes {
                span.faint { ", the slowest " (size(bytes)) " behind"
                    @if let Some(ms) = status.lag_ms { ", " (draw::milliseconds(ms)) } }
            } }
    }
}

fn settings(name: &HostName, facts: &HostFacts) -> Markup {
    html! {
        details id=(format!("settings-{name}")) {
            summary { "Settings that matter" }
            dl.small {
                @for (name, value) in &facts.settings {
                    dt { (text(name)) } dd { code { (text(value)) } }
                }
                dt { "role that asks" }
                dd {
                    (text(&facts.server.role))
                    @if facts.server.is_superuser { ", a superuser" }
                }
                dt { "room for locks" } dd { (facts.server.lock_slots) }
            }
        }
    }
}

fn slots(slots: &[Slot]) -> Markup {
    html! {
        @if !slots.is_empty() {
            div.scroll { table {
                thead { tr {
                    th { "slot" } th { "read" } th.right { "WAL kept" } th.right { "behind" }
                } }
                tbody { @for slot in slots { tr {
                    td { code { (text(&slot.name)) } " " span.faint { (kind(slot)) } }
                    td { @if slot.active { "now" } @else { span.badge.warning { "by none" } } }
                    td.right { (slot.kept.map_or_else(|| "-".to_owned(), size)) (in_danger(slot)) }
                    td.right { (slot.behind.map_or_else(|| "-".to_owned(), size)) }
                } } }
            } }
        }
    }
}

fn kind(slot: &Slot) -> Markup {
    html! {
        @if slot.name.starts_with("pgshard_") { "of a move" } @else { (text(&slot.kind)) }
        @if let Some(database) = &slot.database { ", " (text(database)) }
    }
}

/// What `max_slot_wal_keep_size` has taken from a slot, or is about to.
fn in_danger(slot: &Slot) -> Markup {
    html! {
        @match slot.wal_status.as_deref() {
            Some("lost") => { " " span.badge.error { "lost" } },
            Some("unreserved") => { " " span.badge.warning { "soon lost" } },
            _ => {},
        }
    }
}

fn readers(readers: &[StreamReader]) -> Markup {
    let own = |words: &Option<String>| {
        text(
            words
                .as_deref()
                .filter(|words| !words.is_empty())
                .unwrap_or("-"),
        )
    };
    html! {
        @if !readers.is_empty() {
            div.scroll { table {
                thead { tr {
                    th { "standby, or who else streams" } th { "state" } th.right { "behind" }
                    th.right { "for" }
                } }
                tbody { @for reader in readers { tr {
                    td { (own(&reader.name)) }
                    td {
                        @if reader.state.is_none() { span.faint { "told to pg_monitor only" } }
                        @else { (own(&reader.state)) " " span.faint { (own(&reader.sync_state)) } }
                    }
                    td.right { (reader.lag_bytes.map_or_else(|| "-".to_owned(), size)) }
                    td.right { (reader.lag_ms.map_or_else(|| "-".to_owned(), draw::milliseconds)) }
                } } }
            } }
        }
    }
}
