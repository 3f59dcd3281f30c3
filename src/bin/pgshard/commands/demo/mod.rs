//! `pgshard demo`: the whole story on throwaway servers.
//!
//! Nothing is staged: the movers are processes of this very program, the kill is a SIGKILL, and the
//! audit reads the databases past the router.

mod audit;
mod movers;
mod stage;
mod writers;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgshard::ShardCount;
use pgshard::config::Config;
use pgshard::dev::{Access, Binaries, Cluster, ClusterOptions, ServerOptions};
use pgshard::schema::{self, Migrations};
use schemars::JsonSchema;
use serde::Serialize;

use self::audit::Audit;
use self::movers::MovedShard;
use self::stage::Stage;
use self::writers::{Tally, Writers};
use super::bootstrap;
use crate::args::Demo;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Output, seconds};

/// The application's tables.
const MIGRATION: &str = "\
CREATE TABLE {shard}.photos (
    id      bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id bigint NOT NULL,
    title   text   NOT NULL UNIQUE
);
CREATE TABLE {shard}.likes (
    photo_id bigint NOT NULL REFERENCES {shard}.photos,
    user_id  bigint NOT NULL,
    PRIMARY KEY (photo_id, user_id)
);
";

/// How long the writers work before the first move and after the last.
const CALM: Duration = Duration::from_secs(1);

/// Runs the demo.
pub(crate) async fn run(args: Demo, output: &Arc<Output>) -> Result<Exit, Failure> {
    let started = Instant::now();
    if args.moves > args.shards.get() {
        return Err(Failure::usage(format!(
            "{} moves of {} shards: each shard is moved once",
            args.moves, args.shards
        )));
    }
    let stage = Stage::new(output, started);

    let hosts = usize::from(args.hosts);
    let server = ServerOptions::default().access(Access::Password);
    let start =
        move || Cluster::start(&ClusterOptions::new(hosts, Binaries::first()?).server(server));
    let cluster = tokio::task::spawn_blocking(start);
    let cluster = cluster.await??;
    let version = Binaries::first()?;
    stage.say(format_args!(
        "{hosts} PostgreSQL {} servers run",
        version.version()
    ));

    let path = write_config(&cluster, args.shards)?;
    let config = context::config(Some(&path))?;
    let (shards, elapsed) = create(&config).await?;
    stage.say(format_args!(
        "{shards} shards bootstrapped in {}",
        seconds(elapsed)
    ));

    let router = pgshard::connect(&path).await?;
    let writers = Writers::start(&router, args.writers);
    tokio::time::sleep(CALM).await;
    stage.say(format_args!(
        "{} writers insert by key and read back by ID, {} rows so far",
        args.writers,
        writers.rows()
    ));

    let moved = movers::run(&path, &config, args.moves, &stage).await?;
    tokio::time::sleep(CALM).await;
    let tally = writers.stop().await;
    stage.say(format_args!(
        "writers stopped: {} rows acknowledged",
        tally.rows.len()
    ));

    let audit = audit::audit(&config, &context::map(&config).await?, &tally).await?;
    stage.say(format_args!(
        "audit: read {} rows on {hosts} servers, past the router",
        audit.rows_found
    ));

    let summary = Summary::of(&audit, &tally, &moved);
    print_summary(&summary, started.elapsed(), output);
    drop(router);
    tokio::task::spawn_blocking(move || drop(cluster)).await?;
    Ok(if summary.is_spotless() {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn write_config(cluster: &Cluster, shards: ShardCount) -> Result<PathBuf, Failure> {
    let folder = cluster.directory().join("demo");
    std::fs::create_dir_all(folder.join("migrations"))?;
    std::fs::write(folder.join("migrations/0001_photos.sql"), MIGRATION)?;
    let path = folder.join("pgshard.toml");
    std::fs::write(&path, cluster.config_text(shards, Some("migrations")))?;
    Ok(path)
}

/// Creates everything that is in the config. Returns how many shards that was, and how long it
/// took.
pub(super) async fn create(config: &Config) -> Result<(usize, Duration), Failure> {
    let started = Instant::now();
    let hosts = bootstrap::hosts(config, &context::map(config).await?);
    let migrations = Migrations::read(
        config
            .cluster
            .migrations
            .as_deref()
            .unwrap_or(Path::new("migrations")),
    )?;
    let request = schema::bootstrap::Request::new(context::cluster(config), hosts, migrations);
    let report = schema::bootstrap(&request, &|_| ()).await;
    if !report.is_complete() {
        return Err(Failure::new(
            Exit::Failed,
            format!("bootstrap did not get to its end: {report:?}"),
        ));
    }
    Ok((
        report.hosts.values().map(|host| host.created.len()).sum(),
        started.elapsed(),
    ))
}

/// The last line of `--json`, and the table.
#[derive(JsonSchema, Serialize)]
#[serde(tag = "event", rename = "done")]
pub(crate) struct Summary {
    rows_acknowledged: usize,
    rows_lost: usize,
    rows_duplicated: usize,
    rows_misplaced: usize,
    writer_errors: u64,
    moves: usize,
    pause_ms: Pauses,
    /// The longest that a writer waited for one statement or transaction.
    wait_ms_max: f64,
    /// What went wrong, if anything did.
    complaints: Vec<String>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Pauses {
    p50: f64,
    p99: f64,
    max: f64,
}

impl Summary {
    fn of(audit: &Audit, tally: &Tally, moved: &[MovedShard]) -> Summary {
        let mut pauses: Vec<f64> = moved.iter().map(|one| one.pause_ms).collect();
        pauses.sort_by(f64::total_cmp);
        // The nearest-rank percentile: of few values the 99th is the largest.
        let at = |share: f64| {
            pauses
                .get((pauses.len() as f64 * share).ceil() as usize - 1)
                .copied()
                .unwrap_or_default()
        };
        Summary {
            rows_acknowledged: tally.rows.len(),
            rows_lost: audit.lost,
            rows_duplicated: audit.duplicated,
            rows_misplaced: audit.misplaced,
            writer_errors: tally.errors,
            moves: moved.len(),
            pause_ms: Pauses {
                p50: at(0.5),
                p99: at(0.99),
                max: at(1.0),
            },
            wait_ms_max: (tally.longest.as_secs_f64() * 1e5).round() / 100.0,
            complaints: audit
                .complaints
                .iter()
                .chain(&tally.complaints)
                .cloned()
                .collect(),
        }
    }

    fn is_spotless(&self) -> bool {
        self.rows_acknowledged > 0
            && (self.rows_lost, self.rows_duplicated, self.rows_misplaced) == (0, 0, 0)
            && self.writer_errors == 0
            && self.complaints.is_empty()
    }

    /// One sentence: what was verified, or what was not.
    fn verdict(&self) -> String {
        if !self.is_spotless() {
            return "Not verified: rows or writers had faults, which are listed above".to_owned();
        }
        format!(
            "Verified: each of the {} acknowledged rows is there exactly once, on the shard of its \
             key, after {} moves of shards under the writers, one of them with a killed mover",
            self.rows_acknowledged, self.moves
        )
    }
}

fn print_summary(summary: &Summary, elapsed: Duration, output: &Output) {
    for complaint in &summary.complaints {
        output.error_with_remedy(complaint, "");
    }
    if output.format() == crate::output::Format::Json {
        output.object(summary);
        return;
    }
    let columns = [("", Align::Left), ("", Align::Right)];
    let line = |name: &str, value: String| [name.to_owned(), value];
    output.note("");
    output.table(
        &columns,
        [
            line("rows acknowledged", summary.rows_acknowledged.to_string()),
            line("rows lost", summary.rows_lost.to_string()),
            line("rows duplicated", summary.rows_duplicated.to_string()),
            line("rows misplaced", summary.rows_misplaced.to_string()),
            line("errors at the writers", summary.writer_errors.to_string()),
            line("shards moved", summary.moves.to_string()),
            line(
                "pause of a shard, median",
                format!("{:.0} ms", summary.pause_ms.p50),
            ),
            line(
                "pause of a shard, longest",
                format!("{:.0} ms", summary.pause_ms.max),
            ),
            line(
                "longest wait of a writer",
                format!("{:.0} ms", summary.wait_ms_max),
            ),
        ],
    );
    output.note(format_args!(
        "\n{} ({})",
        summary.verdict(),
        seconds(elapsed)
    ));
}
