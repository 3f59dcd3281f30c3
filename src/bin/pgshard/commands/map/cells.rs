//! The shards over the hosts, a cell a shard: what the terminal and the picture both draw.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, ShardMap};

use super::super::measure::{ShardWeight, format_weight};
use crate::args::By;

/// How heavy a shard is compared with the average one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) enum Level {
    Nothing,
    Light,
    Average,
    Heavy,
    Heaviest,
}

impl Level {
    /// From the lightest, each with its words for the legend.
    pub(in super::super) const ALL: [(Level, &'static str); 5] = [
        (Level::Nothing, "nothing"),
        (Level::Light, "under half the average"),
        (Level::Average, "around the average"),
        (Level::Heavy, "over twice the average"),
        (Level::Heaviest, "over four times"),
    ];

    pub(in super::super) fn of(weight: u64, average: f64) -> Level {
        match weight as f64 / average {
            _ if weight == 0 => Level::Nothing,
            ratio if ratio < 0.5 => Level::Light,
            ratio if ratio < 2.0 => Level::Average,
            ratio if ratio < 4.0 => Level::Heavy,
            _ => Level::Heaviest,
        }
    }

    /// Distinguishable without colour: the fuller the heavier.
    fn character(self) -> char {
        match self {
            Level::Nothing => '·',
            Level::Light => '░',
            Level::Average => '▒',
            Level::Heavy => '▓',
            Level::Heaviest => '█',
        }
    }

    /// From the 256 colours that terminals share, readable on dark and light.
    fn colour(self) -> anstyle::Ansi256Color {
        anstyle::Ansi256Color(match self {
            Level::Nothing => 244,
            Level::Light => 67,
            Level::Average => 37,
            Level::Heavy => 178,
            Level::Heaviest => 160,
        })
    }
}

/// One shard.
pub(super) struct Cell {
    pub(super) shard: ShardId,
    /// `None` where no host was queried.
    pub(super) level: Option<Level>,
    /// What it weighs, in words.
    pub(super) weight: Option<String>,
}

/// One host and its shards, in order.
pub(super) struct Panel {
    pub(super) host: HostName,
    pub(super) cells: Vec<Cell>,
    /// What all of them weigh, in words, and as a part of the heaviest host's.
    pub(super) total: Option<(String, f64)>,
}

/// All hosts.
pub(super) struct Picture {
    pub(super) version: u64,
    pub(super) shards: u16,
    /// What is shown, in a word.
    pub(super) by: Option<&'static str>,
    pub(super) panels: Vec<Panel>,
}

impl Picture {
    /// The placement by the map; with weights, by the hosts' rows.
    pub(super) fn of(
        config: &Config,
        map: &ShardMap,
        weighed: Option<(&By, &BTreeMap<ShardId, ShardWeight>)>,
    ) -> Picture {
        let mut on: BTreeMap<&HostName, Vec<ShardId>> =
            config.hosts.keys().map(|host| (host, Vec::new())).collect();
        for (shard, host, _) in map.iter() {
            let host = weighed
                .and_then(|(_, weighed)| weighed.get(&shard))
                .map_or(host, |weighed| &weighed.host);
            on.entry(host).or_default().push(shard);
        }
        let weight = |shard: &ShardId| {
            weighed.map(|(_, weighed)| weighed.get(shard).map_or(0, |weighed| weighed.weight))
        };
        let sum = |shards: &[ShardId]| shards.iter().filter_map(weight).sum::<u64>();
        let heaviest = on
            .values()
            .map(|shards| sum(shards))
            .max()
            .unwrap_or(0)
            .max(1);
        let average = map
            .iter()
            .filter_map(|(shard, ..)| weight(&shard))
            .sum::<u64>() as f64
            / map.iter().len() as f64;
        let cell = |shard: &ShardId| Cell {
            shard: *shard,
            level: weight(shard).map(|weight| Level::of(weight, average)),
            weight: weighed
                .zip(weight(shard))
                .map(|((by, _), weight)| format_weight(by, weight)),
        };
        let panels = on.iter().map(|(host, shards)| Panel {
            host: (*host).clone(),
            cells: shards.iter().map(cell).collect(),
            total: weighed.map(|(by, _)| {
                (
                    format_weight(by, sum(shards)),
                    sum(shards) as f64 / heaviest as f64,
                )
            }),
        });
        Picture {
            version: map.version().get(),
            shards: map.shards().get(),
            by: weighed.map(|(by, _)| by.name()),
            panels: panels.collect(),
        }
    }

    /// The picture as text, so many columns wide.
    pub(super) fn text(&self, columns: usize, coloured: bool) -> String {
        let mut out = String::new();
        let label = self.shards.saturating_sub(1).to_string().len();
        let room = columns.saturating_sub(label + 2);
        // Powers of two, so that what is below each other is easy to count.
        let per_row = [256, 128, 64, 32]
            .into_iter()
            .find(|width| *width <= room)
            .unwrap_or(16);
        for panel in &self.panels {
            let count = crate::output::counted(panel.cells.len(), "shard");
            let total = panel
                .total
                .as_ref()
                .map(|(total, _)| format!(", {total}"))
                .unwrap_or_default();
            out += &format!("{}  {count}{total}\n", panel.host);
            for row in panel.cells.chunks(per_row) {
                let first = row
                    .first()
                    .map(|cell| cell.shard.to_string())
                    .unwrap_or_default();
                out += &format!("{first:>label$}  ");
                draw_row(&mut out, row, coloured);
                out.push('\n');
            }
            out.push('\n');
        }
        if let Some(by) = self.by {
            let words = Level::ALL.map(|(level, words)| {
                let mut cell = String::new();
                draw(
                    &mut cell,
                    Some(level),
                    &level.character().to_string(),
                    coloured,
                );
                format!("{cell} {words}")
            });
            out += &format!("{by}: {}", words.join("   "));
        }
        out.trim_end().to_owned()
    }
}

/// Neighbours of the same colour together: thousands of colour codes make a terminal slow.
fn draw_row(out: &mut String, row: &[Cell], coloured: bool) {
    for run in row.chunk_by(|a, b| a.level == b.level) {
        let character = run[0].level.map_or('■', Level::character);
        draw(
            out,
            run[0].level,
            &character.to_string().repeat(run.len()),
            coloured,
        );
    }
}

fn draw(out: &mut String, level: Option<Level>, text: &str, coloured: bool) {
    let style = level
        .filter(|_| coloured)
        .map(|level| anstyle::Style::new().fg_color(Some(level.colour().into())));
    match style {
        Some(style) => {
            write!(out, "{style}{text}{style:#}").expect("writing to a String does not fail")
        }
        None => out.push_str(text),
    }
}
