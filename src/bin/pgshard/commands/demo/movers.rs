//! Moves under the writers, by processes of this program; one of them is killed and its move
//! resumed.

use std::path::Path;
use std::process::Stdio;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::HostName;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::stage::Stage;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;

/// A shard that was moved.
pub(super) struct MovedShard {
    pub(super) pause_ms: f64,
}

/// When a mover is killed: the source is fenced then, its rows are under way.
const KILLED_AT: &str = "fenced";

/// Moves this number of shards, one after the other, from host to host in turn.
pub(super) async fn run(
    path: &Path,
    config: &Config,
    count: u16,
    stage: &Stage<'_>,
) -> Result<Vec<MovedShard>, Failure> {
    let hosts: Vec<&HostName> = config.hosts.keys().collect();
    let map = context::map(config).await?;
    let mut moved = Vec::new();
    for turn in 0..usize::from(count) {
        let (source, target) = (hosts[turn % hosts.len()], hosts[(turn + 1) % hosts.len()]);
        let shard = map.shards_on(source).nth(turn / hosts.len());
        let Some(shard) = shard else { continue };
        let kill = turn == usize::from(count) / 2;
        let pause_ms = if kill {
            killed_and_resumed(path, shard, target, stage).await
        } else {
            one(path, shard, target).await
        }?;
        stage.say(format_args!(
            "shard {shard} moved from {source} to {target}, closed for {pause_ms:.0} ms"
        ));
        moved.push(MovedShard { pause_ms });
    }
    Ok(moved)
}

async fn one(path: &Path, shard: ShardId, target: &HostName) -> Result<f64, Failure> {
    let mut child = start(
        path,
        &["move", &shard.to_string(), "--to", target.as_str(), "--yes"],
    )?;
    let done = last_line(&mut child).await?;
    pause_of(&done, shard)
}

/// The mover is killed by SIGKILL once its shard is fenced; another process resumes the move.
async fn killed_and_resumed(
    path: &Path,
    shard: ShardId,
    target: &HostName,
    stage: &Stage<'_>,
) -> Result<f64, Failure> {
    let mut child = start(
        path,
        &["move", &shard.to_string(), "--to", target.as_str(), "--yes"],
    )?;
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    let mut id = String::new();
    while let Some(line) = lines.next_line().await? {
        let event: Value = serde_json::from_str(&line)?;
        if let Some(started) = event["move"].as_str() {
            id = started.to_owned();
        }
        if event["phase"] == KILLED_AT {
            child.start_kill()?;
            break;
        }
    }
    child.wait().await?;
    stage.say(format_args!(
        "the mover of shard {shard} was killed (SIGKILL) while the shard was {KILLED_AT}; resuming"
    ));
    let mut child = start(path, &["moves", "resume", &id])?;
    let done = last_line(&mut child).await?;
    pause_of(&done, shard)
}

fn start(path: &Path, args: &[&str]) -> Result<Child, Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command
        .arg("--config")
        .arg(path)
        .args(["--json", "--quiet"])
        .args(args);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .kill_on_drop(true);
    Ok(command.spawn()?)
}

/// Waits for the process and gives its last line, once it has ended well.
async fn last_line(child: &mut Child) -> Result<Value, Failure> {
    let stdout = child.stdout.take().expect("stdout is piped");
    let mut lines = BufReader::new(stdout).lines();
    let mut last = String::new();
    while let Some(line) = lines.next_line().await? {
        last = line;
    }
    let status = child.wait().await?;
    if !status.success() {
        return Err(Failure::new(
            Exit::Failed,
            format!("a mover ended with {status}: {last}"),
        ));
    }
    Ok(serde_json::from_str(&last)?)
}

fn pause_of(done: &Value, shard: ShardId) -> Result<f64, Failure> {
    let pause = done["pause_ms"][shard.to_string()].as_f64();
    pause.ok_or_else(|| {
        Failure::new(
            Exit::Failed,
            format!("a mover did not tell the pause of shard {shard}: {done}"),
        )
    })
}
