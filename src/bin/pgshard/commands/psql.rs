//! `pgshard psql`: psql on the host that serves a shard.

use std::path::{Path, PathBuf};

use pgshard::pg::LibpqEnvironment;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use super::id::warn_of_ticket;
use super::locate::{Target, owner, shard_of};
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
    if let Target::Id(id) = target {
        warn_of_ticket(*id, output);
    }
    let shard = shard_of(target, &config)?;
    let host = owner(&config, &map, shard, output).await?.host;
    let schema = context::schema_of(&config, &host, shard);
    let connect = config.hosts.get(&host).map(|host| &host.connect);
    let connect =
        connect.ok_or_else(|| Failure::usage(format!("the config names no host {host}")))?;
    let environment = connect.libpq_environment(&[&schema, "public"])?;
    output.note(format_args!(
        "shard {shard}, schema {schema}, on {host} ({connect})"
    ));
    start(&environment, args).await
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
