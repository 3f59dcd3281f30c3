//! `pgshard host remove`.

use std::collections::BTreeSet;
use std::path::Path;

use pgshard::config::Config;
use pgshard::map::{HostName, print_shards};
use pgshard::mover::{Entry, Error, Observer, Options, PartialAnswer, Phase};
use pgshard::pg::cause::chain;
use pgshard::schema::{self, HostFacts, HostFault, ShardState};
use schemars::JsonSchema;
use serde::Serialize;

use super::super::moves::CORRECT_THE_CONFIG;
use super::edit_failure;
use crate::confirm::{Consent, confirm};
use crate::context;
use crate::context::mover;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct RemovalReport<'a> {
    host: &'a str,
    /// What stays on its server.
    left: Vec<String>,
}

/// Takes a host out of the config, if nothing needs it.
pub(crate) async fn remove(
    name: &str,
    consent: Consent,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let name = context::host(&config, name)?;
    let facts = unneeded(&config, &name, output).await?;
    config.without_host(&name).map_err(edit_failure)?;
    let left = facts.as_ref().map(left_there).unwrap_or_default();
    for what in &left {
        output.note(format_args!("stays on {name}: {what}"));
    }
    if !confirm(
        &format!("take {name} out of {}?", config.path.display()),
        consent,
        output,
    )
    .await?
    {
        return Err(Failure::new(Exit::Failed, "the config stays as it is"));
    }
    // Another command may have moved a shard there while the question was open.
    unneeded(&config, &name, output).await?;
    // Before the config is written: a host that the others know and no config names is an alarm.
    let hosts: Vec<_> = config
        .hosts
        .values()
        .map(|host| (host.name.clone(), host.connect.clone()))
        .collect();
    schema::forget(&context::cluster(&config), &hosts, &name)
        .await
        .map_err(|faults| {
            let refused = faults
                .iter()
                .all(|(_, fault)| matches!(fault, HostFault::HasShards(_)));
            let each = faults
                .iter()
                .map(|(host, fault)| format!("host {host}: {fault}\n  remedy: {}", fault.remedy()));
            Failure::several(if refused { Exit::Refused } else { Exit::Failed }, each)
        })?;
    config.remove_host(&name).map_err(edit_failure)?;
    match output.format() {
        Format::Json => output.object(RemovalReport {
            host: name.as_str(),
            left,
        }),
        Format::Text => output.data(format_args!(
            "{name} is no longer in {}",
            config.path.display()
        )),
    }
    Ok(Exit::Done)
}

/// The host's facts, if nothing needs it.
async fn unneeded(
    config: &Config,
    name: &HostName,
    output: &Output,
) -> Result<Option<HostFacts>, Failure> {
    let facts = output
        .waiting("reading the host", facts(config, name))
        .await?;
    let mut refusals = owned(config, name, facts.as_ref(), output).await?;
    let moves = output.waiting("reading the hosts", moves_that_need_it(config, name));
    refusals.extend(moves.await?);
    if refusals.is_empty() {
        Ok(facts)
    } else {
        Err(Failure::several(Exit::Refused, refusals))
    }
}

/// The host's facts; `None` where it was never bootstrapped.
async fn facts(config: &Config, name: &HostName) -> Result<Option<HostFacts>, Failure> {
    let host = config
        .hosts
        .get(name)
        .map(|host| (host.name.clone(), host.connect.clone()));
    match schema::survey(host).await.remove(name) {
        Some(Ok(facts)) => Ok(facts.control.is_some().then_some(facts)),
        Some(Err(error)) => {
            let state = error.host_state();
            let hint = if state.may_be_gone() {
                "what it holds is not known; if it is gone for good and had no shards, take it out \
                    by hand"
            } else {
                state.remedy()
            };
            let error = format!("host {name}: {}", chain(&error));
            Err(Failure::new(Exit::Failed, error).hint(hint))
        }
        None => Ok(None),
    }
}

/// The shards that are here or coming, by the host and by the map.
async fn owned(
    config: &Config,
    name: &HostName,
    facts: Option<&HostFacts>,
    output: &Output,
) -> Result<Vec<String>, Failure> {
    let mut refusals = Vec::new();
    let map = context::map(config).await?;
    let mut here: BTreeSet<_> = map.shards_on(name).collect();
    if let Some(control) = facts.and_then(|facts| facts.control.as_ref()) {
        let owned = control
            .shards
            .iter()
            .filter(|(_, row)| row.state != ShardState::Moved);
        here.extend(owned.map(|(shard, _)| *shard));
        if !control.incoming.is_empty() {
            let shards = print_shards(control.incoming.keys().copied());
            refusals.push(format!(
                "shards {shards} are being moved to {name}\n  remedy: `pgshard moves`"
            ));
        }
        if !control.moving.is_empty() {
            let shards = print_shards(control.moving.iter().copied());
            refusals.push(format!(
                "moves of shards {shards} away from {name} are not finished\n  \
                    remedy: `pgshard moves`"
            ));
        }
    }
    if let Some(schema::MissingShards {
        shards: lost, by, ..
    }) = schema::missing_shards(&context::survey(config, output).await, name)
    {
        let shards = print_shards(lost.iter().copied());
        here.retain(|shard| !lost.contains(shard));
        refusals.push(format!(
            "{by} knows that shards {shards} were on {name}, and no host serves them\n  remedy: \
                restore the database of {name}; only if its rows are lost for good: `pgshard \
                bootstrap --lost {name}`"
        ));
    }
    if !here.is_empty() {
        let shards = print_shards(here);
        let is_unsharded = config
            .unsharded()
            .is_some_and(|(host, _)| host.name == *name);
        let remedy = match is_unsharded {
            true => "it is unsharded, and stays until the shards are imported".to_owned(),
            false => format!("`pgshard drain {name}`"),
        };
        refusals.push(format!("{name} holds shards {shards}\n  remedy: {remedy}"));
    }
    Ok(refusals)
}

/// Moves that cannot be ended without it: those with old copies on other hosts, since dropping them
/// needs a query of their target; and those from it that can still be rolled back, for which
/// another host keeps its log.
async fn moves_that_need_it(config: &Config, name: &HostName) -> Result<Vec<String>, Failure> {
    let PartialAnswer {
        found: entries,
        unknown: silent,
        ..
    } = mover(config, Options::default(), Observer::silent())
        .list(None)
        .await;
    if let Some((host, silent)) = silent.into_iter().next() {
        let error = format!("host {host} may have moves to {name}: {}", chain(&silent));
        let remedy = match &silent {
            Error::OtherHost { .. } | Error::OtherCluster { .. } => CORRECT_THE_CONFIG,
            _ => "every host must answer; `pgshard check` says what is wrong",
        };
        return Err(Failure::new(Exit::Failed, error).hint(remedy));
    }
    let in_phase = |phase| entries.iter().filter(move |entry| entry.phase == phase);
    let kept = || in_phase(Phase::Kept);
    // The host itself knows of a move to it only once something is prepared there.
    let claimed: BTreeSet<_> = in_phase(Phase::Claimed)
        .filter(|entry| entry.target == *name)
        .map(|entry| entry.shard)
        .collect();
    let to: BTreeSet<_> = kept()
        .filter(|entry| entry.target == *name)
        .map(|entry| entry.id)
        .collect();
    let mut refusals: Vec<_> = to
        .into_iter()
        .map(|id| {
            format!(
                "move {id} to {name} keeps old copies on other hosts\n  remedy: `pgshard moves \
                    complete {id}` first"
            )
        })
        .collect();
    if !claimed.is_empty() {
        let shards = print_shards(claimed);
        refusals.push(format!(
            "shards {shards} are about to be moved to {name}\n  remedy: `pgshard moves`"
        ));
    }
    let with_a_slot = |entry: &&Entry| {
        entry.source == *name
            && entry
                .reverse
                .as_ref()
                .is_some_and(|reverse| reverse.lost.is_none())
    };
    let from: BTreeSet<_> = kept()
        .filter(with_a_slot)
        .map(|entry| (entry.id, &entry.target))
        .collect();
    refusals.extend(from.into_iter().map(|(id, target)| {
        format!(
            "move {id} from {name} can be taken back: {target} keeps its log for that, and would \
                for ever\n  remedy: `pgshard moves complete {id}`, or `pgshard moves rollback \
                {id}`"
        )
    }));
    Ok(refusals)
}

/// What stays on its server when no pgshard command uses it any more.
fn left_there(facts: &HostFacts) -> Vec<String> {
    let Some(control) = &facts.control else {
        return Vec::new();
    };
    let mut left = vec!["the control schema pgshard".to_owned()];
    let copies: BTreeSet<_> = control
        .ledger
        .iter()
        .filter(|row| row.kind == "left")
        .map(|row| row.shard)
        .collect();
    if !copies.is_empty() {
        let shards = print_shards(copies);
        left.push(format!(
            "the old copies of shards {shards}, which `pgshard moves complete` would drop while it \
                is in the config"
        ));
    }
    if !control.shards.is_empty() {
        let shards = print_shards(control.shards.keys().copied());
        left.push(format!("the signposts of shards {shards}"));
    }
    left
}
