//! `pgshard psql`: psql on the host that serves a shard.

use std::path::{Path, PathBuf};

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, ShardMap};
use pgshard::pg::LibpqEnvironment;
use pgshard::pg::cause::chain;
use pgshard::schema::{self, HostFacts, ShardFault};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::locate::{Target, shard_of};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Runs psql on the shard's host, with its schema first in the search path; ends with psql's exit
/// code.
pub(crate) async fn run(
    target: &Target,
    args: &[String],
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let shard = shard_of(target, &config)?;
    let host = owner(&config, &map, shard, output).await?;
    let schema = config.cluster.prefix.schema(shard);
    let connect = config.hosts.get(&host).map(|host| &host.connect);
    let connect =
        connect.ok_or_else(|| Failure::usage(format!("the config names no host {host}")))?;
    let environment = connect.libpq_environment(&[&schema, "public"])?;
    output.note(format_args!(
        "shard {shard}, schema {schema}, on {host} ({connect})"
    ));
    start(&environment, args).await
}

/// The host that says it serves the shard; the map only says which host to ask first.
async fn owner(
    config: &Config,
    map: &ShardMap,
    shard: ShardId,
    output: &Output,
) -> Result<HostName, Failure> {
    let place = map
        .placement(shard)
        .ok_or_else(|| Failure::usage(format!("the map has no shard {shard}")))?;
    let hosts = context::all_hosts(config);
    let first: Vec<_> = hosts
        .iter()
        .filter(|(name, _)| *name == place.host)
        .cloned()
        .collect();
    let survey = schema::survey(first).await;
    match survey.get(&place.host) {
        Some(Ok(facts)) if serves(facts, shard) => return Ok(place.host),
        Some(Ok(_)) => {}
        // Another host may serve it by now; if none does, this is the reason.
        Some(Err(error)) => output.warning(format_args!("{}: {}", place.host, chain(error))),
        None => {}
    }
    let survey = schema::survey(hosts).await;
    let owners = survey
        .iter()
        .filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?)));
    let owners: Vec<&HostName> = owners
        .filter(|(_, facts)| serves(facts, shard))
        .map(|(name, _)| name)
        .collect();
    match owners.as_slice() {
        [only] => {
            output.warning(format_args!(
                "the map has shard {shard} on {}, and {only} serves it: `pgshard map rebuild`",
                place.host
            ));
            Ok((*only).clone())
        }
        [] => {
            let fault = ShardFault::Unserved { reason: None };
            Err(
                Failure::new(Exit::Failed, format!("shard {shard}: {fault}"))
                    .hint("see what `pgshard check` says"),
            )
        }
        _ => Err(Failure::new(
            Exit::Refused,
            format!("several hosts say that they serve shard {shard}"),
        )
        .hint(format_args!(
            "`pgshard moves repair {shard} --plan` says what can be done"
        ))),
    }
}

fn serves(facts: &HostFacts, shard: ShardId) -> bool {
    facts.control.iter().any(|control| {
        control
            .shards
            .get(&shard)
            .is_some_and(|row| row.state.is_owner())
    })
}

/// Starts psql, and waits for it. Signals from the terminal, above all Ctrl-C, are for psql.
async fn start(environment: &LibpqEnvironment, args: &[String]) -> Result<Exit, Failure> {
    let program = program();
    let mut command = Command::new(&program);
    for name in environment.removed() {
        command.env_remove(name);
    }
    command.env("PGAPPNAME", "pgshard psql").envs(
        environment
            .variables()
            .iter()
            .map(|(name, value)| (name, value)),
    );
    let mut interrupts = signal(SignalKind::interrupt())?;
    let mut end = signal(SignalKind::terminate())?;
    let mut child = command
        .args(args)
        .kill_on_drop(true)
        .spawn()
        .map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("cannot run {}: {error}", program.display()),
            )
            .hint(
                "install PostgreSQL's client, or name the folder of its programs in PGSHARD_PG_BIN",
            )
        })?;
    loop {
        tokio::select! {
            ended = child.wait() => {
                let code = ended?.code().and_then(|code| u8::try_from(code).ok());
                return Ok(code.map_or(Exit::Interrupted, Exit::of_program));
            }
            _ = interrupts.recv() => {}
            // The file with the password is removed when this process ends.
            _ = end.recv() => return Ok(Exit::Interrupted),
        }
    }
}

/// The psql in the folder that `PGSHARD_PG_BIN` names, or else the one in the PATH.
fn program() -> PathBuf {
    let named = std::env::var_os("PGSHARD_PG_BIN").map(|folder| PathBuf::from(folder).join("psql"));
    named
        .filter(|psql| psql.is_file())
        .unwrap_or_else(|| PathBuf::from("psql"))
}
