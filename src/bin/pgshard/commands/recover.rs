//! `pgshard recover`: brings a host that came back from an earlier time into service again.

use std::path::Path;
use std::time::Duration;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::idgen::tickets::{self, TicketHost};
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{Observer, Options, RecoveryPlan, Repair, RepairWay};
use pgshard::pg::cause::chain;
use schemars::JsonSchema;
use serde::Serialize;

use super::moves;
use crate::args::Recover;
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output, counted};

#[derive(JsonSchema, Serialize)]
pub(crate) struct RecoveryReport<'a> {
    host: &'a str,
    server: Option<Server>,
    moves: Vec<Move>,
    repairs: Vec<ShownRepair<'a>>,
    clocks: Vec<Clock<'a>>,
    elsewhere: Vec<Elsewhere<'a>>,
    decisions: Vec<ShownDecision<'a>>,
    /// The names for which the host gives tickets.
    tickets: &'a [String],
    done: bool,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Server {
    /// A text, because some readers of JSON have no 64-bit integers.
    system_identifier: String,
    timeline: i64,
    recorded_timeline: Option<i64>,
    last_id_at: Option<String>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Move {
    #[schemars(with = "u16")]
    shard: ShardId,
    id: Option<String>,
    from: Option<String>,
    to: String,
    epoch: String,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownRepair<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    host: &'a str,
    steps: &'a [String],
    at_risk: &'a [String],
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Clock<'a> {
    host: &'a str,
    #[schemars(with = "u16")]
    shard: ShardId,
    after: String,
    id: String,
    why: &'a str,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Elsewhere<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    says: &'a str,
    command: &'a str,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShownDecision<'a> {
    shards: String,
    what: &'a str,
    commands: &'a [String],
}

/// What was done.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RecoveryAction {
    Nothing,
    Something,
}

/// Reports what is known of the host, and does what is certain.
pub(crate) async fn run(
    args: Recover,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "recover")?;
    let host = context::host(&config, &args.host)?;
    let identities = context::identities(&config, output).await?;
    let mover = mover(
        &config,
        Options::default().failpoint(args.failpoint),
        Observer::silent(),
    );
    let margin = args.margin_s.map(Duration::from_secs);
    let plan = output.waiting("reading the hosts", mover.plan_recovery(&host, margin));
    let plan = plan.await.map_err(moves::failure)?;
    let tickets = tickets_of(&config, &host).await;
    if output.format() == Format::Text {
        print_plan(&plan, output);
    }
    if args.plan || plan.has_nothing_to_do() {
        if !args.plan {
            context::record(&identities, &config).await;
        }
        return end(&plan, &tickets, RecoveryAction::Nothing, output);
    }
    let question = format!(
        "raise {} and have {} served by one host each?",
        counted(plan.clocks.len(), "ID clock"),
        counted(plan.repairs.len(), "shard")
    );
    if !confirm(&question, Consent::from_flag(args.yes), output).await? {
        return Err(Failure::new(Exit::Failed, "nothing was changed"));
    }
    let again = format!("run `pgshard recover {host} --plan` again: it shows what is left");
    let left = output.waiting("recovering", mover.recover(&plan)).await;
    let left = left.map_err(|error| Failure::new(Exit::Partly, chain(&error)).hint(again))?;
    context::record(&identities, &config).await;
    if output.format() == Format::Text && !left.decisions.is_empty() {
        tell_decisions(&left, output);
    }
    output.note(format_args!(
        "everything that is certain about {host} is done"
    ));
    end(&left, &tickets, RecoveryAction::Something, output)
}

/// The names for which the host gives tickets: nothing shows which of them it gave before it was
/// lost.
async fn tickets_of(config: &Config, host: &HostName) -> Vec<String> {
    let of_host = config.hosts.values().filter(|known| known.name == *host);
    let of_host: Vec<TicketHost> = of_host
        .map(|host| TicketHost {
            name: host.name.clone(),
            connect: host.connect.clone(),
        })
        .collect();
    let told = tickets::status(&of_host).await;
    let names = told
        .into_iter()
        .filter_map(|host| host.names.ok())
        .flatten();
    names
        .filter(|status| status.residue.is_some())
        .map(|status| status.name.to_string())
        .collect()
}

/// What is known and what can be done, as text.
fn print_plan(plan: &RecoveryPlan, output: &Output) {
    let host = &plan.host;
    match plan.server {
        None => output.data(format_args!(
            "{host} has no control schema: its database is empty"
        )),
        Some(server) => {
            let was = match server.recorded {
                Some(recorded) if recorded < server.timeline => {
                    format!(": it was promoted or restored since it recorded timeline {recorded}")
                }
                _ => String::new(),
            };
            output.data(format_args!(
                "{host} is system {}, timeline {}{was}",
                server.system, server.timeline
            ));
            if let Some(last) = server.last_id {
                output.data(format_args!(
                    "the last ID that it knows of was made at {last}"
                ));
            }
        }
    }
    for lost in &plan.moves {
        let from = lost
            .from
            .as_ref()
            .map(|from| format!(" from {from}"))
            .unwrap_or_default();
        let id = lost
            .id
            .map(|id| format!(" (move {id})"))
            .unwrap_or_default();
        let (shard, to, epoch) = (lost.shard, &lost.to, lost.epoch);
        output.data(format_args!(
            "it does not know that shard {shard} went{from} to {to} at epoch {epoch}{id}"
        ));
    }
    for raise in &plan.clocks {
        let (shard, on, after) = (raise.shard, &raise.host, raise.after);
        output.data(format_args!(
            "to do: shard {shard} on {on} makes no ID before {after}: {}",
            raise.why
        ));
    }
    for repair in &plan.repairs {
        output.data(format_args!("to do for shard {}:", repair.shard));
        for line in way(&repair.repair).into_iter().flat_map(|way| &way.steps) {
            output.data(format_args!("  {line}"));
        }
        for line in way(&repair.repair).into_iter().flat_map(|way| &way.at_risk) {
            output.data(format_args!("  the shard may lack: {line}"));
        }
    }
    for rows in &plan.elsewhere {
        output.data(format_args!(
            "{host} serves shard {}, and other rows of it are kept:",
            rows.shard
        ));
        output.data(format_args!(
            "  {}\n  if you want those rows instead: {}",
            rows.says, rows.command
        ));
    }
    tell_decisions(plan, output);
    if plan.has_nothing_to_do() && plan.decisions.is_empty() {
        output.data("nothing to do: no host contradicts it, and no ID can come twice");
    }
}

fn tell_decisions(plan: &RecoveryPlan, output: &Output) {
    for decision in &plan.decisions {
        let shards = print_shards(decision.shards.iter().copied());
        output.data(format_args!(
            "you must decide about shards {shards}: {}",
            decision.what
        ));
        for (at, command) in decision.commands.iter().enumerate() {
            output.data(format_args!(
                "  {}{command}",
                if at == 0 { "" } else { "or " }
            ));
        }
    }
}

fn way(repair: &Repair) -> Option<&RepairWay> {
    match repair {
        Repair::Do(way) => Some(way),
        _ => None,
    }
}

fn end(
    plan: &RecoveryPlan,
    tickets: &[String],
    done: RecoveryAction,
    output: &Output,
) -> Result<Exit, Failure> {
    if output.format() == Format::Json {
        show(plan, tickets, done, output)?;
    }
    for name in tickets {
        output.hint(format_args!(
            "{} gives tickets {name}: if it has lost commits, `pgshard tickets create {name} \
                --hosts {} --start N`, N above every ticket that is in use",
            plan.host, plan.host
        ));
    }
    let decided = plan.decisions.is_empty();
    if done == RecoveryAction::Something && decided {
        output.hint("`pgshard bootstrap` records the present state, then `pgshard check`");
    }
    Ok(match (done, decided) {
        (_, true) => Exit::Done,
        (RecoveryAction::Nothing, false) => Exit::Refused,
        (RecoveryAction::Something, false) => Exit::Partly,
    })
}

fn show(
    plan: &RecoveryPlan,
    tickets: &[String],
    done: RecoveryAction,
    output: &Output,
) -> Result<(), Failure> {
    let server = plan.server.map(|server| Server {
        system_identifier: server.system.to_string(),
        timeline: server.timeline,
        recorded_timeline: server.recorded,
        last_id_at: server.last_id.map(|at| at.to_string()),
    });
    let moves = plan.moves.iter().map(|lost| Move {
        shard: lost.shard,
        id: lost.id.map(|id| id.to_string()),
        from: lost.from.as_ref().map(ToString::to_string),
        to: lost.to.to_string(),
        epoch: lost.epoch.to_string(),
    });
    let repairs = plan.repairs.iter().filter_map(|repair| {
        let way = way(&repair.repair)?;
        let (host, steps, at_risk) = (way.host.as_str(), &way.steps[..], &way.at_risk[..]);
        Some(ShownRepair {
            shard: repair.shard,
            host,
            steps,
            at_risk,
        })
    });
    let clocks = plan.clocks.iter().map(|raise| Clock {
        host: raise.host.as_str(),
        shard: raise.shard,
        after: raise.after.to_string(),
        id: raise.id.to_string(),
        why: &raise.why,
    });
    let elsewhere = plan.elsewhere.iter().map(|rows| Elsewhere {
        shard: rows.shard,
        says: &rows.says,
        command: &rows.command,
    });
    let decisions = plan.decisions.iter().map(|decision| ShownDecision {
        shards: print_shards(decision.shards.iter().copied()),
        what: &decision.what,
        commands: &decision.commands,
    });
    let shown = RecoveryReport {
        host: plan.host.as_str(),
        server,
        moves: moves.collect(),
        repairs: repairs.collect(),
        clocks: clocks.collect(),
        elsewhere: elsewhere.collect(),
        decisions: decisions.collect(),
        tickets,
        done: done == RecoveryAction::Something,
    };
    output.object(shown);
    Ok(())
}
