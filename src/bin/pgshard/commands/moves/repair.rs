//! `pgshard moves repair`: one host serves a shard about which hosts contradict each other.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::HostName;
use pgshard::mover::{
    AnsweringHost, Error, GiveUp, Observer, Options, Repair, RepairPlan, RepairWay,
};
use pgshard::pg::cause::chain;
use pgshard::schema::{self, Severity};
use schemars::JsonSchema;
use serde::Serialize;

use super::{READING, failure};
use crate::args::MovesRepair;
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::context::{mover, shards};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct RepairReport<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    hosts: Vec<ShownHost<'a>>,
    /// Hosts that were given up, and answer.
    answering: Vec<ShownAnswering<'a>>,
    /// `fine`, `do`, `choose` or `nothing`.
    repair: &'static str,
    ways: Vec<ShownWay<'a>>,
    done: bool,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownHost<'a> {
    host: &'a str,
    says: &'a str,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownAnswering<'a> {
    host: &'a str,
    /// `refuses_logins`, `out_of_connections`, `starting_up`, `answers_with_error`, `other_server`
    /// or `not_asked`.
    state: &'static str,
    why: &'a str,
    /// Whether --fenced names it.
    fenced: bool,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownWay<'a> {
    give_up: Vec<&'a str>,
    /// Those of them that answer, or were not contacted: --fenced must name them.
    to_fence: Vec<&'a str>,
    host: &'a str,
    steps: &'a [String],
    at_risk: &'a [String],
}

/// Prints what is known of a shard, and makes the repairs that are certain.
pub(crate) async fn repair(
    args: MovesRepair,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "moves repair")?;
    let [shard] = shards(&args.shard, config.cluster.shards)?[..] else {
        return Err(Failure::usage("one shard at a time is repaired").hint("name it like 17"));
    };
    let name = |name: &String| HostName::new(name).map_err(Failure::usage);
    let names = |all: &[String]| all.iter().map(name).collect::<Result<BTreeSet<_>, _>>();
    let give_up = GiveUp::default()
        .hosts(names(&args.give_up)?)
        .fenced(names(&args.fenced)?);
    if let Some(host) = give_up.fenced.difference(&give_up.hosts).next() {
        let error = format!("--fenced {host} has no meaning without --give-up {host}");
        return Err(Failure::usage(error));
    }
    let asked = one_primary_each(&config, &give_up.fenced);
    output.waiting(READING, asked).await?;
    let mover = mover(
        &config,
        Options::default().failpoint(args.failpoint),
        Observer::silent(),
    );
    let plan = output.waiting(READING, mover.plan_repair(shard, &give_up));
    let plan = plan.await.map_err(failure)?;
    if let Some(nobody) = give_up
        .hosts
        .iter()
        .find(|host| !plan.hosts.iter().any(|says| says.host == **host))
    {
        return Err(Failure::usage(format!(
            "no host {nobody} is known to have anything of shard {shard}"
        )));
    }
    if output.format() == Format::Text {
        print_plan(&plan, output);
    }
    if let Some(answering) = plan.answering.iter().find(|one| !one.is_fenced) {
        show(&plan, false, output);
        return Err(not_gone(answering));
    }
    let way = match &plan.repair {
        Repair::Do(way) if !args.plan => way,
        Repair::Fine { .. } if !args.plan => {
            mover.repair(&plan).await.map_err(failure)?;
            show(&plan, false, output);
            return Ok(Exit::Done);
        }
        repair => {
            show(&plan, false, output);
            return end(repair, shard);
        }
    };
    let question = format!("do this, so that {} serves shard {shard}?", way.host);
    if !confirm(&question, Consent::from_flag(args.yes), output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was changed"));
    }
    let again = format!("run `pgshard moves repair {shard} --plan` again: it says how far it is");
    let repaired = output.waiting("repairing", mover.repair(&plan)).await;
    repaired.map_err(|error| match error {
        Error::NotGone { .. } => failure(error),
        error => Failure::new(Exit::Partly, chain(&error)).hint(again),
    })?;
    show(&plan, true, output);
    output.note(format_args!("{} serves shard {shard}", way.host));
    output.hint("`pgshard moves gc` drops what the moves have left, then `pgshard check`");
    Ok(Exit::Done)
}

/// Why a host that answers is not given up.
fn not_gone(answering: &AnsweringHost) -> Failure {
    let host = &answering.host;
    Failure::new(Exit::Refused, answering.to_string()).hint(format!(
        "{}; then the same command again. Only if {host} has been fenced off, so \
            that no application reaches it any more: add --fenced {host}",
        answering.state.remedy()
    ))
}

/// Refuses to continue where two servers take the writes of one host: their answers would differ.
/// From here on connections refuse a server that is not the host, which then counts as a host that
/// does not answer.
async fn one_primary_each(config: &Config, fenced: &BTreeSet<HostName>) -> Result<(), Failure> {
    let identities = schema::identities(context::all_hosts(config)).await;
    let two = identities.findings().into_iter().filter(|finding| {
        let is_fenced = finding
            .host
            .as_ref()
            .is_some_and(|host| fenced.contains(host));
        finding.severity == Severity::Alarm && finding.code == "two_primaries" && !is_fenced
    });
    let alarms: Vec<String> = two
        .map(|finding| format!("{}\n  remedy: {}", finding.message, finding.remedy))
        .collect();
    if !alarms.is_empty() {
        return Err(Failure::several(Exit::Refused, alarms));
    }
    identities.publish_to(context::all_hosts(config));
    Ok(())
}

/// What is known and what can be done, for people.
fn print_plan(plan: &RepairPlan, output: &Output) {
    for answering in &plan.answering {
        let fenced = if answering.is_fenced {
            " (--fenced: no application reaches it)"
        } else {
            ""
        };
        output.data(format_args!("{answering}{fenced}"));
    }
    output.data(format_args!("shard {}:", plan.shard));
    for says in &plan.hosts {
        output.data(format_args!("  {} {}", says.host, says.says));
    }
    match &plan.repair {
        Repair::Fine { host } => output.data(format_args!("nothing to repair: {host} serves it")),
        Repair::Do(way) => tell_way("this is done:", way, output),
        Repair::Choose(ways) => {
            for way in ways {
                tell_way(&format!("with {} this is done:", way.flags()), way, output);
            }
        }
        _ => {}
    }
}

fn tell_way(head: &str, way: &RepairWay, output: &Output) {
    output.data(head);
    for (at, step) in way.steps.iter().enumerate() {
        output.data(format_args!("  {}. {step}", at + 1));
    }
    for risk in &way.at_risk {
        output.data(format_args!("  the shard may lack: {risk}"));
    }
}

fn show(plan: &RepairPlan, done: bool, output: &Output) {
    if output.format() == Format::Text {
        return;
    }
    let (repair, ways): (_, &[RepairWay]) = match &plan.repair {
        Repair::Fine { .. } => ("fine", &[]),
        Repair::Do(way) => ("do", std::slice::from_ref(way)),
        Repair::Choose(ways) => ("choose", ways),
        _ => ("nothing", &[]),
    };
    let shown = ways.iter().map(|way| ShownWay {
        give_up: way.give_up.iter().map(HostName::as_str).collect(),
        to_fence: way.to_fence.iter().map(HostName::as_str).collect(),
        host: way.host.as_str(),
        steps: &way.steps,
        at_risk: &way.at_risk,
    });
    let hosts = plan.hosts.iter().map(|says| ShownHost {
        host: says.host.as_str(),
        says: &says.says,
    });
    let answering = plan.answering.iter().map(|one| ShownAnswering {
        host: one.host.as_str(),
        state: one.state.as_str(),
        why: &one.why,
        fenced: one.is_fenced,
    });
    output.object(RepairReport {
        shard: plan.shard,
        hosts: hosts.collect(),
        answering: answering.collect(),
        repair,
        ways: shown.collect(),
        done,
    });
}

/// The end without having done anything.
fn end(repair: &Repair, shard: ShardId) -> Result<Exit, Failure> {
    match repair {
        Repair::Fine { .. } | Repair::Do(_) => Ok(Exit::Done),
        Repair::Choose(_) => {
            let words =
                format!("shard {shard}: nothing was done, for something has to be given up");
            Err(Failure::new(Exit::Refused, words).hint(
                "restore what can be restored; else name one of the ways above with --give-up",
            ))
        }
        _ => {
            let words =
                format!("shard {shard}: no host that answers has it, or a whole copy of it");
            Err(Failure::new(Exit::Failed, words).hint(
                "restore the host that had it: docs/trouble.md, \"A host has lost its database\"",
            ))
        }
    }
}
