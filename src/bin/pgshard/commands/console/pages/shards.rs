//! The grid: a panel a host, a cell a shard.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use maud::{Markup, html};
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, ShardMap, print_shards};
use pgshard::schema::{Severity, ShardState};

use super::super::super::locate::{ShardLocation, Target, located};
use super::super::super::map::Level;
use super::super::route::{Shade, Sought};
use super::super::snapshot::{Snapshot, Weight};
use super::page::{Page, Part};
use super::words::{command, day_and_clock, no_map, number, text};
use crate::failure::Failure;
use crate::output::{counted, size};
use crate::values;

/// How many hosts have a colour of their own; past them the colours repeat. The panel shows which
/// host it is.
const COLOURS: usize = 8;

pub(super) fn page(
    seen: &Snapshot,
    config: &Config,
    shade: Shade,
    version: Option<u64>,
    sought: Option<&Sought>,
) -> Page {
    let fixed = html! {
        h1 { "Shards" }
        (search(shade, version, sought))
        (choices(shade, version))
        (slider(seen, shade, version))
    };
    let Some((now, read_at)) = seen.map_shown() else {
        return Page::new(
            "Shards",
            "/shards",
            fixed,
            vec![Part::new("summary", no_map(seen))],
        );
    };
    // A version that is kept no longer is shown as the map of today is.
    let earlier = version
        .and_then(|version| seen.version(version))
        .filter(|one| one.map.version() != now.version());
    let map = earlier.map_or(now, |publication| &publication.map);
    let found = sought.map(|sought| find(sought, config, map));
    let marked = found
        .as_ref()
        .and_then(|found| ShardId::new(found.as_ref().ok()?.shard()));
    let grid = Grid {
        seen,
        map,
        shade,
        is_now: earlier.is_none(),
        marked,
        facts: Facts::of(seen, shade),
    };
    let mut parts = vec![Part::new(
        "summary",
        grid.summary(earlier.map(|one| one.published_at), read_at),
    )];
    parts.extend(found.map(|found| Part::new("found", answer(found))));
    parts.push(Part::new("legend", grid.legend()));
    let mut hosts: BTreeSet<&HostName> = config.hosts.keys().collect();
    hosts.extend(map.hosts());
    for (at, host) in hosts.into_iter().enumerate() {
        parts.push(Part::new(
            format!("panel-{host}"),
            grid.panel(host, at % COLOURS),
        ));
    }
    parts.push(Part::new(
        "about",
        html! { output #pointed.about aria-live="polite" {} },
    ));
    Page::new("Shards", "/shards", fixed, parts)
}

fn search(shade: Shade, version: Option<u64>, sought: Option<&Sought>) -> Markup {
    let kind = sought.map_or("key", |sought| sought.kind.as_str());
    html! {
        form.search action="/shards" role="search" {
            label for="kind" { "find" }
            select #kind name="kind" {
                @for (name, words) in [("key", "key"), ("id", "ID"), ("shard", "shard")] {
                    option value=(name) selected[name == kind] { (words) }
                }
            }
            input #q name="q" value=(sought.map_or("", |sought| sought.text.as_str()))
                aria-label="what to find" autocomplete="off" spellcheck="false" maxlength="200"
                placeholder="31341";
            input type="hidden" name="by" value=(shade.name());
            @if let Some(version) = version { input type="hidden" name="version" value=(version); }
            button { "find" }
        }
    }
}

fn choices(shade: Shade, version: Option<u64>) -> Markup {
    let version = version
        .map(|version| format!("&version={version}"))
        .unwrap_or_default();
    html! {
        nav.choices aria-label="What the cells show" {
            span { "cells by" }
            @for (one, name, words) in Shade::ALL {
                a href=(format!("/shards?by={name}{version}"))
                    aria-current=[(one == shade).then_some("true")] { (words) }
            }
        }
    }
}

/// The map's history, if the store keeps one.
fn slider(seen: &Snapshot, shade: Shade, version: Option<u64>) -> Markup {
    let (Some(newest), Some(oldest)) = (seen.history.first(), seen.history.last()) else {
        return html! {};
    };
    let (newest, oldest) = (newest.map.version().get(), oldest.map.version().get());
    if newest == oldest {
        return html! {};
    }
    let at = version.unwrap_or(newest).clamp(oldest, newest);
    html! {
        form.slider action="/shards" data-newest=(newest) {
            input type="hidden" name="by" value=(shade.name());
            label for="version" { "map version " output for="version" { (at) } }
            input #version type="range" name="version" min=(oldest) max=(newest) value=(at);
            button { "show" }
            a href=(format!("/shards?by={}", shade.name())) { "now" }
        }
    }
}

fn find(sought: &Sought, config: &Config, map: &ShardMap) -> Result<ShardLocation, Failure> {
    let target = match sought.kind.as_str() {
        "id" => Target::Id(values::id(&sought.text).map_err(Failure::usage)?),
        "shard" => {
            let shard = sought.text.parse().ok().and_then(ShardId::new);
            Target::Shard(
                shard.ok_or_else(|| Failure::usage(format!("{:?} is no shard", sought.text)))?,
            )
        }
        _ => Target::Key(sought.text.clone()),
    };
    located(target, config, map)
}

fn answer(found: Result<ShardLocation, Failure>) -> Markup {
    match found {
        Err(failure) => html! {
            div.card.bad {
                p { (text(&failure.one_line())) }
                @if let Some(advice) = failure.advice() { p { (text(advice)) } }
            }
        },
        Ok(found) => html! {
            div.card.found {
                dl.row { @for (name, value) in found.pairs() {
                    dt { (name) } dd { (text(&value)) }
                } }
                p { a href=(format!("/shards/{}", found.shard())) { "shard " (found.shard()) } " "
                    (command(format!("pgshard psql --shard {}", found.shard()))) }
            }
        },
    }
}

/// What is known of shards in addition to where they are.
struct Facts {
    weights: BTreeMap<ShardId, Weight>,
    worst: BTreeMap<ShardId, Severity>,
    moved: BTreeMap<ShardId, Timestamp>,
    moving: BTreeSet<ShardId>,
    fenced: BTreeSet<ShardId>,
    /// What the average shard weighs.
    average: f64,
}

impl Facts {
    fn of(seen: &Snapshot, shade: Shade) -> Facts {
        let entries = &seen.gathered.entries;
        let mut moved = BTreeMap::new();
        for entry in entries {
            let at = moved.entry(entry.shard).or_insert(entry.updated_at);
            *at = (*at).max(entry.updated_at);
        }
        let controls = seen
            .gathered
            .survey
            .values()
            .filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
        let rows = controls.flat_map(|control| &control.shards);
        let weights = seen.weights();
        let weighed: Vec<u64> = weights
            .values()
            .filter_map(|one| weight(one, shade))
            .collect();
        let average = weighed.iter().sum::<u64>() as f64 / weighed.len().max(1) as f64;
        Facts {
            worst: seen.worst(),
            moved,
            moving: entries
                .iter()
                .filter(|entry| !entry.phase.is_ended())
                .map(|entry| entry.shard)
                .collect(),
            fenced: rows
                .filter(|(_, row)| row.state == ShardState::Fenced)
                .map(|(shard, _)| *shard)
                .collect(),
            average,
            weights,
        }
    }
}

/// What is compared with the average, in whole numbers.
fn weight(one: &Weight, shade: Shade) -> Option<u64> {
    match shade {
        Shade::Writes => one.writes.map(|rate| (rate * 1000.0) as u64),
        _ => Some(one.bytes),
    }
}

struct Grid<'a> {
    seen: &'a Snapshot,
    map: &'a ShardMap,
    shade: Shade,
    /// Whether it is the current map, for which the hosts have figures.
    is_now: bool,
    marked: Option<ShardId>,
    facts: Facts,
}

impl Grid<'_> {
    fn summary(&self, published_at: Option<Timestamp>, read_at: Option<Timestamp>) -> Markup {
        let silent: Vec<&HostName> = self
            .map
            .hosts()
            .iter()
            .filter(|host| self.seen.is_silent(host))
            .collect();
        html! {
            p {
                b { (counted(self.map.shards().get().into(), "shard")) }
                " on " (counted(self.map.hosts().len(), "host"))
                ", map version " (self.map.version().get())
                @if let Some(at) = published_at { ", published " (day_and_clock(at)) " UTC: " b {
                    "not the map of today" } }
                @if self.is_now && !silent.is_empty() {
                    ". " span.badge.silent { "no answer" } " from " (counted(silent.len(), "host"))
                        ": what is in grey is as the map has it"
                }
                "."
            }
            @if let Some(at) = read_at {
                p { span.badge.error { "the map cannot be read" } " This is how it was at \
                    " (day_and_clock(at)) " UTC; "
                    "shards may have moved since. \
                        " a href="/findings" { "Findings" } " has the \
                        reason." }
            }
        }
    }

    /// The class of a cell, with its meaning, which the script shows for the cell under the mouse.
    fn classes(&self) -> Vec<(&'static str, &'static str)> {
        let mut classes = match self.shade {
            Shade::Host => vec![],
            Shade::Bytes | Shade::Writes => Level::ALL
                .iter()
                .zip(["l0", "l1", "l2", "l3", "l4"])
                .map(|((_, words), class)| (class, *words))
                .collect(),
            Shade::Epoch => {
                vec![
                    ("l0", "never moved"),
                    ("l1", "epoch 2"),
                    ("l2", "3"),
                    ("l3", "4 or 5"),
                    ("l4", "6 or more"),
                ]
            }
            Shade::Moved => vec![
                ("l0", "no move known"),
                ("l1", "a month ago or more"),
                ("l2", "within a month"),
                ("l3", "within a day"),
                ("l4", "within an hour"),
            ],
            Shade::Findings => {
                vec![
                    ("l0", "none"),
                    ("l1", "notice"),
                    ("l2", "warning"),
                    ("l3", "error"),
                    ("l4", "alarm"),
                ]
            }
        };
        if self.is_now {
            classes.extend([
                ("u", "not known"),
                ("m", "moving"),
                ("x", "closed for a moment"),
            ]);
        }
        if self.marked.is_some() {
            classes.push(("me", "found"));
        }
        classes
    }

    fn legend(&self) -> Markup {
        html! {
            ul.legend.grid {
                @for (class, words) in self.classes() {
                    @if class != "u" || !matches!(self.shade, Shade::Host | Shade::Epoch) {
                        li { i class=(class) data-class=(class) {} " " span { (words) } }
                    }
                }
            }
        }
    }

    fn panel(&self, host: &HostName, colour: usize) -> Markup {
        let shards: Vec<ShardId> = self.map.shards_on(host).collect();
        let is_silent = self.is_now && self.seen.is_silent(host);
        html! {
            div.panel.silent[is_silent] {
                h2 {
                    a href=(format!("/hosts#host-{host}")) { (host.as_str()) }
                    span.faint { " " (counted(shards.len(), "shard")) (self.total(&shards)) }
                    @if is_silent {
                        " " span.badge.silent { "no answer" }
                        @if let Some(at) = self.seen.heard.get(host) {
                            span.faint {
                                " since "
                                time datetime=(at.to_string()) { (super::words::clock(*at)) }
                            }
                        }
                    }
                }
                @if shards.is_empty() { p.faint { "no shards" } }
                @else {
                    div class=(format!("grid {} h{colour}", self.cells())) tabindex="0" role="img"
                        data-host=(host.as_str()) data-shards=(print_shards(shards.iter().copied()))
                        aria-label=(format!("{host}: {}; the arrow keys go from one to the next, \
                            Enter opens it",
                            counted(shards.len(), "shard"))) {
                        @for shard in &shards { i class=(self.class(*shard, host)) {} }
                    }
                }
            }
        }
    }

    /// How large the cells are: as the panel with the most shards can have them.
    fn cells(&self) -> &'static str {
        let most = self
            .map
            .hosts()
            .iter()
            .map(|host| self.map.shards_on(host).count())
            .max();
        match most.unwrap_or(0) {
            0..=64 => "big",
            65..=256 => "middle",
            257..=1024 => "small",
            _ => "tiny",
        }
    }

    fn total(&self, shards: &[ShardId]) -> String {
        let weights = || {
            shards
                .iter()
                .filter_map(|shard| self.facts.weights.get(shard))
        };
        // Nothing is known of a host that was not measured; that is not 0.
        match self.shade {
            Shade::Bytes if self.is_now && weights().next().is_some() => {
                format!(", {}", size(weights().map(|weight| weight.bytes).sum()))
            }
            Shade::Writes if self.is_now && weights().any(|weight| weight.writes.is_some()) => {
                let rows: f64 = weights().filter_map(|weight| weight.writes).sum();
                format!(", {} rows/s", number(rows))
            }
            _ => String::new(),
        }
    }

    fn class(&self, shard: ShardId, host: &HostName) -> String {
        let mut class = self
            .level(shard, host)
            .map_or("", |level| ["l0", "l1", "l2", "l3", "l4"][level])
            .to_owned();
        let by_hosts = matches!(
            self.shade,
            Shade::Bytes | Shade::Writes | Shade::Moved | Shade::Findings
        );
        if class.is_empty() && by_hosts {
            class.push('u');
        }
        let facts = &self.facts;
        for (is, mark) in [
            (self.is_now && facts.moving.contains(&shard), "m"),
            (self.is_now && facts.fenced.contains(&shard), "x"),
            (self.marked == Some(shard), "me"),
        ] {
            if is {
                class.push_str(if class.is_empty() { mark } else { " " });
                if class.ends_with(' ') {
                    class.push_str(mark);
                }
            }
        }
        class
    }

    /// From 0 to 4; `None` where nothing is known.
    fn level(&self, shard: ShardId, host: &HostName) -> Option<usize> {
        if self.shade == Shade::Epoch {
            return Some(match self.map.epoch(shard)?.get() {
                0 | 1 => 0,
                2 => 1,
                3 => 2,
                4 | 5 => 3,
                _ => 4,
            });
        }
        if !self.is_now {
            return None;
        }
        let facts = &self.facts;
        match self.shade {
            Shade::Host | Shade::Epoch => None,
            Shade::Bytes | Shade::Writes => {
                let level = Level::of(
                    weight(facts.weights.get(&shard)?, self.shade)?,
                    facts.average,
                );
                Level::ALL.iter().position(|(one, _)| *one == level)
            }
            Shade::Moved => Some(
                facts
                    .moved
                    .get(&shard)
                    .map_or(0, |at| ago(self.seen.at, *at)),
            ),
            Shade::Findings if self.seen.is_silent(host) => None,
            Shade::Findings => Some(
                facts
                    .worst
                    .get(&shard)
                    .map_or(0, |severity| match severity {
                        Severity::Notice => 1,
                        Severity::Warning => 2,
                        Severity::Error => 3,
                        Severity::Alarm => 4,
                    }),
            ),
        }
    }
}

fn ago(now: Timestamp, at: Timestamp) -> usize {
    match now.duration_since(at).as_secs() {
        ..3600 => 4,
        3600..86_400 => 3,
        86_400..2_592_000 => 2,
        _ => 1,
    }
}
