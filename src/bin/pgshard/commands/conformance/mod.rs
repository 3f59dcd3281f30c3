//! `pgshard conformance serve`: a scripted cluster, on which a client in any language proves
//! itself. docs/protocol.md describes the requests to the client, and its answers.
//!
//! The servers are real, and so are the obstacles that a client meets: the functions of the control
//! schema create them. The rows show what a client has done.

mod client;
mod fence;
mod scenes;
mod stage;

use std::path::Path;
use std::time::Duration;

use pgshard::ShardCount;
use pgshard::dev::{Binaries, Cluster, ClusterOptions};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use tokio::process::Command;

use self::client::Fault;
use self::scenes::{SCENES, Scene};
use self::stage::{NOTES, SHARDS, Stage};
use super::demo;
use crate::args::ConformanceServe;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted};

/// The shards that leave db1 before the client's first request. Its map still has them there.
const MOVED: &str = "1-7";

/// What is next to the shards on each host.
const BESIDE: &str = "\
CREATE TABLE public.conformance_beside (word text NOT NULL);
CREATE PROCEDURE public.conformance_call(place text, word text) LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO public.conformance_beside VALUES (word);
    COMMIT;
    EXECUTE 'INSERT INTO ' || place || '.notes (owner, word) VALUES (13, ' || quote_literal(word) \
    || ')';
END $$;
";

#[derive(JsonSchema, Serialize)]
pub(crate) struct Report {
    passed: usize,
    failed: usize,
    scenes: Vec<Outcome>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Outcome {
    scene: &'static str,
    /// What a client must do there.
    must: &'static str,
    passed: bool,
    why: Option<String>,
}

/// Plays the scenes before the client.
pub(crate) async fn serve(args: ConformanceServe, output: &Output) -> Result<Exit, Failure> {
    let wanted =
        |scene: &&Scene| args.only.is_empty() || args.only.iter().any(|name| name == scene.name);
    let scenes: Vec<&Scene> = SCENES.iter().filter(wanted).collect();
    if let Some(name) = args
        .only
        .iter()
        .find(|name| SCENES.iter().all(|scene| scene.name != name.as_str()))
    {
        let names: Vec<&str> = SCENES.iter().map(|scene| scene.name).collect();
        return Err(Failure::usage(format!(
            "there is no scene {name}; there are {}",
            names.join(", ")
        )));
    }
    let cluster =
        tokio::task::spawn_blocking(|| Cluster::start(&ClusterOptions::new(2, Binaries::first()?)));
    let cluster = cluster.await??;
    let stage = build(&cluster, args.command, Duration::from_secs(args.answer_s)).await?;
    let mut outcomes = Vec::new();
    for scene in scenes {
        output.note(format_args!("{}: {}", scene.name, scene.must));
        let why = match scenes::play(scene, &stage).await {
            Ok(()) => None,
            Err(Fault::Client(why)) => Some(why),
            Err(Fault::Kit(failure)) => return Err(failure),
        };
        outcomes.push(Outcome {
            scene: scene.name,
            must: scene.must,
            passed: why.is_none(),
            why,
        });
    }
    tokio::task::spawn_blocking(move || drop(cluster)).await?;
    Ok(print_outcomes(outcomes, output))
}

fn print_outcomes(outcomes: Vec<Outcome>, output: &Output) -> Exit {
    let failed = outcomes.iter().filter(|outcome| !outcome.passed).count();
    let report = Report {
        passed: outcomes.len() - failed,
        failed,
        scenes: outcomes,
    };
    if output.format() == Format::Json {
        output.object(&report);
    } else {
        let columns = [
            ("scene", Align::Left),
            ("", Align::Left),
            ("why", Align::Left),
        ];
        let rows = report.scenes.iter().map(|outcome| {
            let word = if outcome.passed { "passed" } else { "FAILED" };
            [
                outcome.scene.to_owned(),
                word.to_owned(),
                outcome.why.clone().unwrap_or_default(),
            ]
        });
        output.table(&columns, rows);
    }
    output.note(format_args!(
        "{} passed, {failed} failed",
        counted(report.passed, "scene")
    ));
    if failed == 0 {
        Exit::Done
    } else {
        Exit::Failed
    }
}

/// Makes the cluster what the scenes begin with.
async fn build(
    cluster: &Cluster,
    command: Vec<String>,
    patience: Duration,
) -> Result<Stage, Failure> {
    let shards =
        ShardCount::new(SHARDS.into()).ok_or_else(|| Failure::usage("N is out of bounds"))?;
    let folder = cluster.directory().join("conformance");
    std::fs::create_dir_all(folder.join("migrations"))?;
    std::fs::write(folder.join("migrations/0001_notes.sql"), NOTES)?;
    let text = cluster.config_text(shards, Some("migrations"));
    // Two files: a move rewrites the map in the one that it is given.
    let (ours, path) = (folder.join("pgshard.toml"), folder.join("client.toml"));
    std::fs::write(&ours, &text)?;
    std::fs::write(&path, &text)?;
    let config = context::config(Some(&ours))?;
    demo::create(&config).await?;
    let urls = cluster
        .servers()
        .iter()
        .map(|server| (server.name().to_string(), json!(server.url())));
    let stage = Stage {
        config,
        path,
        hosts: Value::Object(urls.collect()),
        command,
        patience,
    };
    for name in ["db1", "db2"] {
        stage
            .host(name)
            .await
            .map_err(broken)?
            .batch_execute(BESIDE)
            .await?;
    }
    let db1 = stage.host("db1").await.map_err(broken)?;
    for shard in 1..=7 {
        let row =
            format!("INSERT INTO shard_{shard:04}.notes (owner, word) VALUES ({shard}, 'before')");
        db1.batch_execute(&row).await?;
    }
    relocate(&ours).await?;
    Ok(stage)
}

/// Moves the shards by a real `pgshard move`.
async fn relocate(config: &Path) -> Result<(), Failure> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("--config").arg(config).args([
        "--quiet", "move", MOVED, "--to", "db2", "--yes", "--mode", "blocking",
    ]);
    let done = command.kill_on_drop(true).output().await?;
    if done.status.success() {
        return Ok(());
    }
    Err(Failure::new(
        Exit::Failed,
        format!(
            "`pgshard move` failed: {}",
            String::from_utf8_lossy(&done.stderr).trim()
        ),
    ))
}

/// Before there is a client, nothing is its fault.
fn broken(fault: Fault) -> Failure {
    match fault {
        Fault::Kit(failure) => failure,
        Fault::Client(why) => Failure::new(Exit::Failed, why),
    }
}
