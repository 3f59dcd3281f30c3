//! `pgshard rebalance` and `pgshard drain`: measure, plan, show, confirm, move in waves.
//!
//! Only the hosts remember anything from one run to the next. After an interrupt the same command
//! continues: it finishes the moves that are open, and plans the rest from what the hosts have
//! then.

mod events;
mod execute;
mod show;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{DesiredState, Entry, Error, MoveId, Mover, PartialAnswer, Phase};
use pgshard::rebalance::{Constraint, Host, Options, Pace, Problem, Reason, Shard, plan, waves};

pub(crate) use self::events::RebalanceEvent;
use self::execute::{ReportState, Run};
pub(crate) use self::show::PlanReport;
pub(super) use self::show::{json, of_share};
use self::watch::Watcher;
use super::measure::{ShardWeight, weigh};
use super::moves::{CORRECT_THE_CONFIG, named_host, until_done};
use crate::args::{Doing, Drain, Measure, Rebalance};
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Output, counted};
use crate::signals::asked_to_end;

/// What the two commands have in common.
struct RebalanceOptions {
    drained: Option<String>,
    measure: Measure,
    options: Options,
    doing: Doing,
}

/// Evens out all hosts.
pub(crate) async fn run(
    args: Rebalance,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let options = Options::default()
        .threshold(args.threshold.0 / 100.0)
        .moves_max(args.max_moves);
    go(
        RebalanceOptions {
            drained: None,
            measure: args.measure,
            options,
            doing: args.doing,
        },
        config,
        output,
    )
    .await
}

/// Empties a host.
pub(crate) async fn drain(
    args: Drain,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let options = Options::default();
    go(
        RebalanceOptions {
            drained: Some(args.host),
            measure: args.measure,
            options,
            doing: args.doing,
        },
        config,
        output,
    )
    .await
}

async fn go(
    asked: RebalanceOptions,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let command = if asked.drained.is_some() {
        "drain"
    } else {
        "rebalance"
    };
    context::sharded(&config, command)?;
    let drained = asked
        .drained
        .as_deref()
        .map(|name| context::host(&config, name))
        .transpose()?;
    let RebalanceOptions {
        measure,
        options,
        doing,
        ..
    } = asked;
    let consent = Consent::from_flag(doing.yes);
    let watcher = Watcher::new(output.clone());
    let identities = context::identities(&config, output).await?;
    context::record(&identities, &config).await;
    let mover = mover(&config, doing.pace.clone().options(), watcher.observer());

    let Some(open) = unless_interrupted(open_moves(&mover)).await else {
        return Ok(output.interrupted(None));
    };
    let (living, open): (Vec<_>, Vec<_>) =
        open?.into_iter().partition(|entry| entry.worker.is_some());
    let (held, open) = those_that_stand(open);
    let mut stuck: BTreeSet<ShardId> = open.iter().map(|entry| entry.shard).collect();
    let mut busy = told_of(&living, &held, output);
    let mut run = Run::new(
        &mover,
        &watcher,
        output,
        doing.mode.map(Into::into),
        doing.complete,
    );
    if !open.is_empty() {
        let ids: BTreeSet<_> = open.iter().map(|entry| entry.id).collect();
        let (moves, shards) = (counted(ids.len(), "move"), counted(stuck.len(), "shard"));
        if doing.plan {
            output.note(format_args!(
                "{moves} of {shards} will be finished first; the plan leaves these shards alone"
            ));
        } else {
            let question = format!(
                "finish {moves} of {shards} first, left open by an earlier run or another command?"
            );
            let Some(yes) = unless_interrupted(confirm(&question, consent, output)).await else {
                return Ok(output.interrupted(None));
            };
            if !yes? {
                return Err(Failure::new(Exit::Failed, "nothing was moved")
                    .hint("`pgshard moves` shows what is open"));
            }
            until_done(&mover, output, run.resume(ids, &stuck)).await?;
            stuck = run.failed_shards();
            // Another command may have resumed them first.
            busy.extend(run.left_alone());
        }
    }
    if mover.is_stopped() {
        return Ok(run.end(ReportState::InPart));
    }
    let rest = Rest {
        config: &config,
        drained: drained.as_ref(),
        measure: &measure,
        options,
        doing: &doing,
    };
    rest.run(&mut run, &stuck, &busy, output)
        .await
        .map_err(|failure| run.fail(failure))
}

/// What is done once no move is open.
struct Rest<'a> {
    config: &'a Config,
    drained: Option<&'a HostName>,
    measure: &'a Measure,
    options: Options,
    doing: &'a Doing,
}

impl Rest<'_> {
    /// Plans, confirms and moves. The shards that are stuck, and those that others are at work on,
    /// stay where they are.
    async fn run(
        self,
        run: &mut Run<'_>,
        stuck: &BTreeSet<ShardId>,
        busy: &BTreeMap<ShardId, String>,
        output: &Output,
    ) -> Result<Exit, Failure> {
        let Rest {
            config,
            drained,
            measure,
            options,
            doing,
        } = self;
        let by = &measure.by;
        let weighing = weigh(config, by, measure.sample(), output);
        let Some(weighed) = unless_interrupted(weighing).await else {
            return Ok(output.interrupted(None));
        };
        let stays = stuck.iter().chain(busy.keys()).copied().collect();
        let mut problem = problem(config, &weighed?, &stays, options);
        if let Some(host) = drained {
            problem = problem.draining(host);
        }
        let pace = Pace {
            groups_per_host: doing.groups_per_host.get(),
            shards_per_group: doing.group_size.get(),
        };
        let planned = plan(&problem).map_err(|error| Failure::new(Exit::Failed, error))?;
        let count = waves(&problem, &planned.moves, pace)?.len();
        refuse_half_a_drain(drained, &planned, stuck, busy)?;
        show::plan(&planned, by, count, doing.plan, output);
        if doing.plan {
            return Ok(Exit::Done);
        }
        if planned.moves.is_empty() {
            output.note("nothing to do");
            return Ok(run.end(ReportState::Whole));
        }
        let bytes: u64 = planned.moves.iter().map(|one| one.bytes).sum();
        let what = format!(
            "{}, {}",
            counted(planned.moves.len(), "shard"),
            crate::output::size(bytes)
        );
        let after = if doing.complete {
            " and drop the old copies"
        } else {
            ""
        };
        let question = format!("move {what}, in {}{after}?", counted(count, "wave"));
        let Some(yes) =
            unless_interrupted(confirm(&question, Consent::from_flag(doing.yes), output)).await
        else {
            return Ok(output.interrupted(None));
        };
        if !yes? {
            return Err(Failure::new(Exit::Failed, "nothing of this plan was moved"));
        }
        until_done(run.mover(), output, run.waves(problem, pace)).await??;
        Ok(run.end(ReportState::Whole))
    }
}

/// The outcome, or `None` when Ctrl-C or SIGTERM came first: for what changes nothing.
async fn unless_interrupted<T>(work: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        outcome = work => Some(outcome),
        () = asked_to_end() => None,
    }
}

/// The open moves on all hosts, of an earlier run or of another command.
async fn open_moves(mover: &Mover) -> Result<Vec<Entry>, Failure> {
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = mover.list(None).await;
    if let Some((host, error)) = silent.into_iter().next() {
        let remedy = match &error {
            Error::OtherHost { .. } | Error::OtherCluster { .. } => CORRECT_THE_CONFIG,
            _ => "every host must answer; `pgshard check` says what is wrong",
        };
        return Err(Failure::new(Exit::Failed, named_host(&host, &error)).hint(remedy));
    }
    Ok(entries
        .into_iter()
        .filter(|entry| !entry.phase.is_ended())
        .collect())
}

/// The moves that an operator has held or paused, and the others: a command that resumes one of the
/// former waits until another command continues it.
fn those_that_stand(open: Vec<Entry>) -> (Vec<Entry>, Vec<Entry>) {
    let stands =
        |entry: &&Entry| entry.desired != DesiredState::Run && entry.phase < Phase::Decided;
    let standing: BTreeSet<MoveId> = open.iter().filter(stands).map(|entry| entry.id).collect();
    open.into_iter()
        .partition(|entry| standing.contains(&entry.id))
}

/// Notes which shards are left alone: others are at work on them, or have held or paused their
/// moves. Returns why, and what to do, as a clause that follows the shards.
fn told_of(living: &[Entry], held: &[Entry], output: &Output) -> BTreeMap<ShardId, String> {
    let moving = |entry: &Entry| {
        let worker = entry
            .worker
            .as_ref()
            .map(ToString::to_string)
            .unwrap_or_default();
        let why = format!(
            "are being moved, by {worker}, with the move {id}\n  remedy: wait for it, `pgshard \
                moves watch {id}`, or ask it, `pgshard moves stop {id}`; then the same command \
                again",
            id = entry.id
        );
        (entry.shard, why)
    };
    let standing = |entry: &Entry| {
        let id = entry.id;
        let why = format!(
            "are of the move {id}, on which no command works and that another one has told to \
                {}\n  remedy: `pgshard moves continue {id}`, or `pgshard moves abort {id}`; then \
                the same command again",
            entry.desired.as_str()
        );
        (entry.shard, why)
    };
    let busy: BTreeMap<ShardId, String> = living
        .iter()
        .map(moving)
        .chain(held.iter().map(standing))
        .collect();
    for (why, shards) in by_who(busy.iter().map(|(shard, why)| (*shard, why))) {
        output.note(format_args!(
            "left alone: shards {} {why}",
            print_shards(shards)
        ));
    }
    busy
}

fn by_who<'a>(
    shards: impl Iterator<Item = (ShardId, &'a String)>,
) -> BTreeMap<&'a String, Vec<ShardId>> {
    let mut by_who: BTreeMap<&String, Vec<ShardId>> = BTreeMap::new();
    for (shard, who) in shards {
        by_who.entry(who).or_default().push(shard);
    }
    by_who
}

/// The planner's problem, from the config and the hosts' rows and measures.
pub(super) fn problem(
    config: &Config,
    weighed: &BTreeMap<ShardId, ShardWeight>,
    stuck: &BTreeSet<ShardId>,
    options: Options,
) -> Problem {
    let hosts = config.hosts.values().map(|host| Host {
        name: host.name.clone(),
        limits: host.limits,
    });
    let shards = weighed.iter().map(|(shard, measured)| Shard {
        shard: *shard,
        host: measured.host.clone(),
        weight: measured.weight,
        bytes: measured.bytes,
        constraint: match config.rebalance.pinned.get(shard) {
            _ if stuck.contains(shard) => Constraint::Stays,
            Some(host) => Constraint::Pinned(host.clone()),
            None => Constraint::Free,
        },
    });
    Problem {
        hosts: hosts.collect(),
        shards: shards.collect(),
        apart: config.rebalance.apart.clone(),
        options,
    }
}

/// Refuses a drain that would leave shards behind, since its purpose is an empty host.
fn refuse_half_a_drain(
    drained: Option<&HostName>,
    planned: &pgshard::rebalance::Plan,
    stuck: &BTreeSet<ShardId>,
    busy: &BTreeMap<ShardId, String>,
) -> Result<(), Failure> {
    let Some(host) = drained else { return Ok(()) };
    let left = planned.unmet.iter().filter(|unmet| unmet.host == *host);
    let left: Vec<_> = left.collect();
    let mut reasons: Vec<String> = Vec::new();
    for (why, shards) in by_who(
        left.iter()
            .filter_map(|unmet| Some((unmet.shard, busy.get(&unmet.shard)?))),
    ) {
        reasons.push(format!("shards {} {why}", print_shards(shards)));
    }
    let others = left.iter().filter(|unmet| !busy.contains_key(&unmet.shard));
    reasons.extend(others.map(|unmet| match unmet.reason {
        _ if stuck.contains(&unmet.shard) => {
            format!(
                "shard {}: a move of it is open\n  remedy: `pgshard moves`",
                unmet.shard
            )
        }
        Reason::Emptied { .. } => format!(
            "shard {}: no other host can take it\n  remedy: pinned shards must be let go in the \
                config, other hosts need room (max_shards, max_bytes) and none of the shards that \
                it is kept apart from",
            unmet.shard
        ),
        _ => unmet.to_string(),
    }));
    if reasons.is_empty() {
        Ok(())
    } else {
        Err(Failure::several(Exit::Refused, reasons))
    }
}
