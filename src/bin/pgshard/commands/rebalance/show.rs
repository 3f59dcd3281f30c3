//! A plan for people and for programs: every host before and after, every move with its reason.

use std::collections::BTreeMap;

use pgshard::ShardId;
use pgshard::map::HostName;
use pgshard::rebalance::{Amount, HostLoad, Plan};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::measure::shown;
use super::column;
use crate::args::By;
use crate::output::{Align, Format, Output, counted, size};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Planned<'a> {
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
    // The hosts' table is data in both cases. The moves are data only when a plan was asked for,
    // else the question needs no more than their sums.
    if in_full || !plan.moves.is_empty() {
        hosts(plan, by, output);
    }
    if in_full && !plan.moves.is_empty() {
        output.data("");
        moves(plan, by, output);
    }
    if !plan.moves.is_empty() {
        let bytes: u64 = plan.moves.iter().map(|one| one.bytes).sum();
        output.note(format_args!(
            "\n{}, {}, in {}",
            counted(plan.moves.len(), "move"),
            size(bytes),
            counted(waves, "wave")
        ));
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
            row.extend([shown(by, host.before.weight), shown(by, host.after.weight)]);
        }
        row.extend([of_share(host, &host.before), of_share(host, &host.after)]);
        row
    });
    output.table(&columns, rows);
}

/// What a host has of what it should have.
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
            row.push(shown(by, one.weight));
        }
        row.push(one.reason.to_string());
        row
    });
    output.table(&columns, rows);
}

pub(in super::super) fn json<'a>(plan: &'a Plan, by: &By, waves: usize) -> Planned<'a> {
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
    Planned {
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
