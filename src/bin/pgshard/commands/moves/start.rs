//! `pgshard move`: shards to another host.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{LentIdentity, Mode, Options, Plan, Request, ShardPlan, Statement};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Verb, Watcher, failure, nothing_moved, print_end, shown, until_done};
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted, seconds};

/// The request of `pgshard move`.
pub(crate) struct MoveOptions {
    pub(crate) shards: String,
    pub(crate) target: String,
    pub(crate) mode: Option<Mode>,
    /// Print the plan, in this detail, and stop.
    pub(crate) only_plan: Option<Detail>,
    pub(crate) consent: Consent,
    pub(crate) options: Options,
}

/// The detail of a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// What fits a screen.
    Steps,
    /// Every statement too.
    Sql,
}

/// Moves shards, after showing what will be done.
pub(crate) async fn run(
    asked: MoveOptions,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "move")?;
    let shards = context::shards(&asked.shards, config.cluster.shards)?;
    let request = Request::new(shards, context::host(&config, &asked.target)?).mode(asked.mode);
    let identities = context::identities(&config, output).await?;
    context::record(&identities, &config).await;
    let watcher = Watcher::new(output.clone());
    let options = asked.options.bytes_max(bytes_max(&config));
    let mover = context::mover(&config, options, watcher.observer());
    let plan = watcher.planning(request.shards.len(), mover.plan(&request));
    let plan = plan.await.map_err(failure)?;
    if let Some(detail) = asked.only_plan {
        show_plan(&plan, detail, output);
        return Ok(Exit::Done);
    }
    if !plan.already_there.is_empty() {
        let there = print_shards(plan.already_there.iter().copied());
        output.note(format_args!("on {} already: {there}", plan.target));
    }
    if plan.shards.is_empty() {
        output.note("nothing to do");
        nothing_moved(&plan, output);
        return Ok(Exit::Done);
    }
    show(&plan, output);
    let question = format!(
        "move {} to {}?",
        counted(plan.shards.len(), "shard"),
        plan.target
    );
    if !confirm(&question, asked.consent, output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was moved"));
    }
    let started = std::time::Instant::now();
    let work = until_done(&mover, output, mover.run(&plan));
    let report = shown(&mover, || watcher.id(), output, work).await?;
    watcher.finish();
    Ok(print_end(Verb::Resume, &report, started.elapsed(), output))
}

/// How many bytes hosts may have in shards, by the config.
fn bytes_max(config: &Config) -> BTreeMap<HostName, u64> {
    let most = |host: &HostConfig| Some((host.name.clone(), host.limits.bytes_max?));
    config.hosts.values().filter_map(most).collect()
}

/// The plan in a few lines, before it is run.
fn show(plan: &Plan, output: &Output) {
    let bytes: i64 = plan.shards.iter().map(|shard| shard.bytes).sum();
    let closed = plan
        .shards
        .iter()
        .map(|shard| shard.closed_for())
        .max()
        .unwrap_or_default();
    let shards = print_shards(plan.shards.iter().map(|shard| shard.shard));
    let pause = match plan.mode {
        Mode::Blocking => format!(
            "each is closed while it is copied: {} by its size",
            guess(closed)
        ),
        Mode::Online => "each stays open while it is copied".to_owned(),
    };
    let (count, target) = (counted(plan.shards.len(), "shard"), &plan.target);
    output.note(format_args!(
        "{count} ({shards}) to {target}, {}; {pause}",
        mebibytes(bytes)
    ));
    for warning in &plan.warnings {
        output.warning(warning);
    }
    for shard in &plan.shards {
        for warning in &shard.warnings {
            output.note(format_args!("  shard {}: {warning}", shard.shard));
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlanReport<'a> {
    target: &'a str,
    mode: &'static str,
    shards: Vec<PlannedShard<'a>>,
    already_there: String,
    warnings: &'a [String],
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct PlannedShard<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    source: &'a str,
    epoch: u32,
    tables: usize,
    bytes: i64,
    closed_for_ms: u128,
    steps: Vec<String>,
    statements_before_data: Vec<&'a str>,
    statements_after_data: Vec<&'a str>,
    lent_identities: Vec<LentIdentityReport<'a>>,
    warnings: &'a [String],
}

/// A replica identity that a table gets for the time of the move; `index` is null for FULL.
#[derive(JsonSchema, Serialize)]
pub(crate) struct LentIdentityReport<'a> {
    table: &'a str,
    index: Option<&'a str>,
}

impl<'a> LentIdentityReport<'a> {
    fn of(lent: &'a LentIdentity) -> LentIdentityReport<'a> {
        LentIdentityReport {
            table: &lent.table,
            index: lent.index.as_deref(),
        }
    }
}

/// What would be done; JSON has all of it.
fn show_plan(plan: &Plan, detail: Detail, output: &Output) {
    if output.format() == Format::Json {
        return show_as_object(plan, output);
    }
    match detail {
        Detail::Steps => show_steps(plan, output),
        Detail::Sql => show_in_full(plan, output),
    }
    if plan.shards.is_empty() {
        output.note("nothing to do");
    }
}

fn show_as_object(plan: &Plan, output: &Output) {
    let shards = plan.shards.iter().map(|shard| PlannedShard {
        shard: shard.shard,
        source: shard.source.as_str(),
        epoch: shard.epoch.get(),
        tables: shard.tables,
        bytes: shard.bytes,
        closed_for_ms: shard.closed_for().as_millis(),
        steps: shard.steps(&plan.target, plan.mode),
        statements_before_data: shard.before_data.iter().map(|s| s.sql.as_str()).collect(),
        statements_after_data: shard.after_data.iter().map(|s| s.sql.as_str()).collect(),
        lent_identities: shard.lent.iter().map(LentIdentityReport::of).collect(),
        warnings: &shard.warnings,
    });
    let (target, mode) = (plan.target.as_str(), plan.mode.as_str());
    let already_there = print_shards(plan.already_there.iter().copied());
    output.object(PlanReport {
        target,
        mode,
        shards: shards.collect(),
        already_there,
        warnings: &plan.warnings,
    });
}

/// The columns of a plan's table; the first one is given.
fn columns(first: (&'static str, Align)) -> [(&'static str, Align); 6] {
    [
        first,
        ("from", Align::Left),
        ("to", Align::Left),
        ("tables", Align::Right),
        ("bytes", Align::Right),
        ("closed for about", Align::Right),
    ]
}

fn closed(plan: &Plan, longest: Duration) -> String {
    if plan.mode == Mode::Blocking {
        guess(longest)
    } else {
        "milliseconds".to_owned()
    }
}

/// A line for each source, the steps of one shard, which are those of the others too, and the
/// warnings, each once.
fn show_steps(plan: &Plan, output: &Output) {
    let mut sources: BTreeMap<&str, Vec<&ShardPlan>> = BTreeMap::new();
    for shard in &plan.shards {
        sources
            .entry(shard.source.as_str())
            .or_default()
            .push(shard);
    }
    let rows = sources.iter().map(|(source, shards)| {
        let tables: usize = shards.iter().map(|shard| shard.tables).sum();
        let bytes: i64 = shards.iter().map(|shard| shard.bytes).sum();
        let longest = shards
            .iter()
            .map(|shard| shard.closed_for())
            .max()
            .unwrap_or_default();
        let list = print_shards(shards.iter().map(|shard| shard.shard));
        [
            list,
            (*source).to_owned(),
            plan.target.to_string(),
            tables.to_string(),
            bytes.to_string(),
            closed(plan, longest),
        ]
    });
    output.table(&columns(("shards", Align::Left)), rows);
    for warning in &plan.warnings {
        output.data(format_args!("warning: {warning}"));
    }
    // The shard with the most steps represents all.
    let steps = |shard: &&ShardPlan| shard.steps(&plan.target, plan.mode).len();
    if let Some(shard) = plan.shards.iter().rev().max_by_key(steps) {
        let others = match plan.shards.len() - 1 {
            0 => String::new(),
            others => format!(" (and the like for {})", counted(others, "other")),
        };
        output.data(format_args!("\nshard {}{others}:", shard.shard));
        for (at, step) in shard.steps(&plan.target, plan.mode).iter().enumerate() {
            output.data(format_args!("  {}. {step}", at + 1));
        }
    }
    let mut warnings: BTreeMap<&str, Vec<ShardId>> = BTreeMap::new();
    for shard in &plan.shards {
        for warning in &shard.warnings {
            warnings.entry(warning).or_default().push(shard.shard);
        }
    }
    for (warning, shards) in warnings {
        let name = if shards.len() == 1 { "shard" } else { "shards" };
        output.data(format_args!(
            "warning: {name} {}: {warning}",
            print_shards(shards)
        ));
    }
    if !plan.shards.is_empty() {
        output.hint("--plan --sql prints every statement");
    }
}

/// Everything that would run.
fn show_in_full(plan: &Plan, output: &Output) {
    let sql = |list: &'_ [Statement]| list.iter().map(|s| s.sql.clone()).collect::<Vec<_>>();
    let rows = plan.shards.iter().map(|shard| {
        let bytes = shard.bytes.to_string();
        let (source, target) = (shard.source.to_string(), plan.target.to_string());
        [
            shard.shard.to_string(),
            source,
            target,
            shard.tables.to_string(),
            bytes,
            closed(plan, shard.closed_for()),
        ]
    });
    output.table(&columns(("shard", Align::Right)), rows);
    for warning in &plan.warnings {
        output.data(format_args!("warning: {warning}"));
    }
    for shard in &plan.shards {
        output.data(format_args!("\nshard {}:", shard.shard));
        for (at, step) in shard.steps(&plan.target, plan.mode).iter().enumerate() {
            output.data(format_args!("  {}. {step}", at + 1));
        }
        output.data("  statements before the rows come:");
        for statement in sql(&shard.before_data) {
            output.data(indented(&statement));
        }
        output.data("  statements once they are there:");
        for statement in sql(&shard.after_data) {
            output.data(indented(&statement));
        }
        for warning in &shard.warnings {
            output.data(format_args!("  warning: {warning}"));
        }
    }
}

fn indented(statement: &str) -> String {
    let lines: Vec<String> = statement
        .lines()
        .map(|line| format!("    {line}"))
        .collect();
    format!("{};", lines.join("\n"))
}

/// Bytes as people read them.
fn mebibytes(bytes: i64) -> String {
    if bytes < 10 << 20 {
        format!("{} KiB", bytes >> 10)
    } else {
        format!("{} MiB", bytes >> 20)
    }
}

/// A guess: no more digits than it deserves.
fn guess(duration: Duration) -> String {
    match duration.as_millis() {
        0..1000 => "under a second".to_owned(),
        _ => format!("about {}", seconds(duration)),
    }
}
