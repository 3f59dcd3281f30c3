//! A plan for people and for programs: every host before and after, every move with its reason.

use std::collections::BTreeMap;

use pgshard::ShardId;
use pgshard::map::HostName;
use pgshard::rebalance::{Amount, HostLoad, Move, Plan, Reason};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::measure::format_weight;
use crate::args::By;
use crate::output::{Align, Format, Output, counted, size};

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlanReport<'a> {
    event: &'static str,
    by: &'static str,
    hosts: BTreeMap<&'a str, PlannedHost>,
    /// How far the fullest host is above the lowest that is possible, in percent.
    spread_before_percent: f64,
    spread_after_percent: f64,
    waves: usize,
    moves: Vec<PlannedMove<'a>>,
    unmet: Vec<String>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedHost {
    share: f64,
    before: PlannedAmount,
    after: PlannedAmount,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedAmount {
    shards: u32,
    weight: u64,
    bytes: u64,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedMove<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    source: &'a str,
    target: &'a str,
    weight: u64,
    bytes: u64,
    reason: String,
}

/// Shows the plan; with `in_full` as data, else before the question. In JSON it is an event in both
/// cases.
pub(super) fn plan(plan: &Plan, by: &By, waves: usize, in_full: bool, output: &Output) {
    for unmet in &plan.unmet {
        output.warning(unmet);
    }
    if output.format() == Format::Json {
        output.object(json(plan, by, waves));
        return;
    }
    // The hosts' table is data in both cases. The moves are data only when a plan was requested;
    // otherwise the prompt needs no more than their sums.
    if in_full || !plan.moves.is_empty() {
        hosts(plan, by, output);
    }
    let is_long = plan.moves.len() > MOVES_SHOWN_MAX;
    if in_full && !plan.moves.is_empty() {
        output.data("");
        if is_long {
            summary(plan, output);
        } else {
            moves(plan, by, output);
        }
    }
    if !plan.moves.is_empty() {
        let bytes: u64 = plan.moves.iter().map(|one| one.bytes).sum();
        output.note(format_args!(
            "\n{}, {}, in {}",
            counted(plan.moves.len(), "move"),
            size(bytes),
            counted(waves, "wave")
        ));
        if is_long && in_full {
            output.note("--json lists every move");
        }
        if !in_full {
            for ((source, target), count) in pairs(plan) {
                output.note(format_args!(
                    "  {source} -> {target}: {}",
                    counted(count, "shard")
                ));
            }
        }
    } else if in_full {
        output.note("nothing to do");
    }
}

/// More moves than this are shown by source, target and reason.
const MOVES_SHOWN_MAX: usize = 60;

/// Many moves: how many go from where to where, and why.
fn summary(plan: &Plan, output: &Output) {
    let columns = [
        ("shards", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("size", Align::Right),
        ("why", Align::Left),
    ];
    output.table(&columns, summed(&plan.moves));
}

/// A row for all moves with the same source, target and kind of reason.
fn summed(moves: &[Move]) -> Vec<[String; 5]> {
    let mut groups: BTreeMap<(&HostName, &HostName, String), (usize, u64)> = BTreeMap::new();
    for one in moves {
        let key = (&one.source, &one.target, kind(&one.reason));
        let (count, bytes) = groups.entry(key).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(one.bytes);
    }
    let row = |((source, target, why), (count, bytes)): ((&HostName, &HostName, String), _)| {
        let (count, bytes): (usize, u64) = (count, bytes);
        let (source, target) = (source.to_string(), target.to_string());
        [count.to_string(), source, target, size(bytes), why]
    };
    groups.into_iter().map(row).collect()
}

/// A reason without the parts that differ for each move.
fn kind(reason: &Reason) -> String {
    match reason {
        Reason::Levels { .. } => "the source is over its share, the target below".to_owned(),
        Reason::Apart { .. } => "they are kept apart from other shards".to_owned(),
        Reason::Pinned { to } => format!("they are pinned to {to}"),
        reason => reason.to_string(),
    }
}

fn pairs(plan: &Plan) -> BTreeMap<(&HostName, &HostName), usize> {
    let mut pairs = BTreeMap::new();
    for one in &plan.moves {
        *pairs.entry((&one.source, &one.target)).or_default() += 1;
    }
    pairs
}

fn hosts(plan: &Plan, by: &By, output: &Output) {
    let mut columns = vec![
        ("host", Align::Left),
        ("share", Align::Right),
        ("shards", Align::Right),
        ("->", Align::Right),
    ];
    if *by != By::Count {
        columns.extend([(column(by), Align::Right), ("->", Align::Right)]);
    }
    columns.extend([("of its share", Align::Right), ("->", Align::Right)]);
    let rows = plan.hosts.iter().map(|host| {
        let mut row = vec![
            host.host.to_string(),
            format!("{:.1} %", host.share * 100.0),
            host.before.shards.to_string(),
            host.after.shards.to_string(),
        ];
        if *by != By::Count {
            row.extend([
                format_weight(by, host.before.weight),
                format_weight(by, host.after.weight),
            ]);
        }
        row.extend([of_share(host, &host.before), of_share(host, &host.after)]);
        row
    });
    output.table(&columns, rows);
}

/// How much a host has of its share.
pub(in super::super) fn of_share(host: &HostLoad, amount: &Amount) -> String {
    match (host.share > 0.0, amount.shards) {
        (true, _) => format!("{:.1} %", amount.part / host.share * 100.0),
        (false, 0) => "empty".to_owned(),
        (false, _) => "to be empty".to_owned(),
    }
}

fn moves(plan: &Plan, by: &By, output: &Output) {
    let mut columns = vec![
        ("shard", Align::Right),
        ("from", Align::Left),
        ("to", Align::Left),
        ("size", Align::Right),
    ];
    let weighs = !matches!(by, By::Count | By::Bytes);
    if weighs {
        columns.push((column(by), Align::Right));
    }
    columns.push(("why", Align::Left));
    let rows = plan.moves.iter().map(|one| {
        let mut row = vec![
            one.shard.to_string(),
            one.source.to_string(),
            one.target.to_string(),
            size(one.bytes),
        ];
        if weighs {
            row.push(format_weight(by, one.weight));
        }
        row.push(one.reason.to_string());
        row
    });
    output.table(&columns, rows);
}

pub(in super::super) fn json<'a>(plan: &'a Plan, by: &By, waves: usize) -> PlanReport<'a> {
    let amount = |planned: &Amount| PlannedAmount {
        shards: planned.shards,
        weight: planned.weight,
        bytes: planned.bytes,
    };
    let percent = |part: f64| (part * 1e5).round() / 1e3;
    let host = |host: &'a HostLoad| {
        let planned = PlannedHost {
            share: host.share,
            before: amount(&host.before),
            after: amount(&host.after),
        };
        (host.host.as_str(), planned)
    };
    let one = |one: &'a pgshard::rebalance::Move| PlannedMove {
        shard: one.shard,
        source: one.source.as_str(),
        target: one.target.as_str(),
        weight: one.weight,
        bytes: one.bytes,
        reason: one.reason.to_string(),
    };
    PlanReport {
        event: "planned",
        by: by.name(),
        hosts: plan.hosts.iter().map(host).collect(),
        spread_before_percent: percent(plan.spread_before),
        spread_after_percent: percent(plan.spread_after),
        waves,
        moves: plan.moves.iter().map(one).collect(),
        unmet: plan.unmet.iter().map(ToString::to_string).collect(),
    }
}

/// What the table calls the amount that is spread.
fn column(by: &By) -> &'static str {
    match by {
        By::Count => "shards",
        By::Bytes => "size",
        By::Writes => "writes",
        By::Sql(_) => "weight",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each of 988 moves has percentages of its own.
    #[test]
    fn hundreds_of_moves_are_summed_up() {
        let host = |name: &str| HostName::new(name).unwrap();
        let moves: Vec<Move> = (0..988)
            .map(|shard| Move {
                shard: ShardId::new(shard).unwrap(),
                source: host("db1"),
                target: host(if shard % 2 == 0 { "db2" } else { "db3" }),
                weight: 1,
                bytes: 1 << 20,
                reason: match shard % 4 {
                    0 => Reason::Emptied { host: host("db1") },
                    _ => Reason::Levels {
                        source_percent: f64::from(shard),
                        target_percent: -f64::from(shard),
                    },
                },
            })
            .collect();
        let over = "the source is over its share, the target below";
        assert_eq!(
            summed(&moves),
            [
                ["247", "db1", "db2", "247.0 MiB", "db1 is to be empty"],
                ["247", "db1", "db2", "247.0 MiB", over],
                ["494", "db1", "db3", "494.0 MiB", over],
            ]
        );
    }
}
