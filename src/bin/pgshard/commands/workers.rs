//! `pgshard workers`: worker numbers of snowflake generators.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use jiff::Timestamp;
use pgshard::idgen::WorkerLeases;
use pgshard::idgen::lease::{self, Elsewhere, Freed, Installed};
use pgshard::pg::ConnectOptions;
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::{WorkersHold, WorkersInstall, WorkersRelease, WorkersStatus};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

/// Shown while the host is queried, which may not answer.
const ASKING: &str = "asking the host";

#[derive(JsonSchema, Serialize)]
pub(crate) struct InstalledOn<'a> {
    host: &'a str,
    state: &'static str,
}

/// Makes the table of leases on one host.
pub(crate) async fn install(
    args: &WorkersInstall,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let host = args.host.as_str();
    let elsewhere = if args.first {
        Elsewhere::Nobody
    } else {
        Elsewhere::Perhaps
    };
    let leases = WorkerLeases::new(connect(host, config)?, "");
    let state = match output.waiting(ASKING, leases.install(elsewhere)).await? {
        Installed::Now => "created",
        Installed::Upgraded => "upgraded",
        Installed::Before => "unchanged",
    };
    match output.format() {
        Format::Json => output.object(InstalledOn { host, state }),
        Format::Text => output.table(
            &[("host", Align::Left), ("state", Align::Left)],
            [[host.to_owned(), state.to_owned()]],
        ),
    }
    Ok(Exit::Done)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct HeldOn<'a> {
    host: &'a str,
    /// No number is granted before.
    until: String,
}

/// Grants no number for a while.
pub(crate) async fn hold(
    args: &WorkersHold,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let (host, length) = (
        args.host.as_str(),
        args.for_s
            .map(|seconds| Duration::from_secs(seconds.into())),
    );
    let connect = connect(host, config)?;
    let held = output.waiting(ASKING, WorkerLeases::hold(&connect, length));
    let held = held.await;
    let until = held
        .map_err(|error| not_installed(error, host))?
        .to_string();
    match output.format() {
        Format::Json => output.object(HeldOn { host, until }),
        Format::Text => output.table(
            &[("host", Align::Left), ("until", Align::Left)],
            [[host.to_owned(), until]],
        ),
    }
    Ok(Exit::Done)
}

fn not_installed(error: lease::Error, host: &str) -> Failure {
    match error {
        lease::Error::NotInstalled => Failure::new(
            Exit::Failed,
            format!("host {host} has no leases of worker numbers"),
        )
        .hint(format!("pgshard workers install --host {host}")),
        error => error.into(),
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ReleasedOn<'a> {
    host: &'a str,
    space: &'a str,
    workers: BTreeMap<u16, &'static str>,
}

/// Takes numbers back.
pub(crate) async fn release(
    args: &WorkersRelease,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let (host, space) = (args.host.as_str(), args.space.as_str());
    let leases = WorkerLeases::new(connect(host, config)?, space);
    let mut workers = BTreeMap::new();
    for worker in &args.workers {
        let freed = output.waiting(ASKING, leases.take_back(*worker));
        let freed = freed.await.map_err(|error| not_installed(error, host))?;
        let state = match freed {
            Freed::Now => "released",
            Freed::Before => "free",
        };
        workers.insert(*worker, state);
    }
    match output.format() {
        Format::Json => output.object(ReleasedOn {
            host,
            space,
            workers,
        }),
        Format::Text => {
            let rows = workers
                .iter()
                .map(|(worker, state)| [worker.to_string(), (*state).to_owned()]);
            output.table(&[("worker", Align::Right), ("state", Align::Left)], rows);
        }
    }
    Ok(Exit::Done)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Status<'a> {
    host: &'a str,
    spaces: BTreeMap<String, BTreeMap<u16, Worker>>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Worker {
    held: bool,
    /// How long the number is kept for its holder; `null` when it is free.
    left_ms: Option<u64>,
    /// The last millisecond that its IDs may have.
    ceiling: String,
}

/// Who holds which number, as far as one host knows: by space, number and time left.
pub(crate) async fn status(
    args: &WorkersStatus,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let host = args.host.as_str();
    let connect = connect(host, config)?;
    let leases = output.waiting(ASKING, WorkerLeases::status(&connect));
    let leases = leases.await.map_err(|error| not_installed(error, host))?;
    let mut spaces: BTreeMap<String, BTreeMap<u16, Worker>> = BTreeMap::new();
    for lease in leases.into_iter().filter(|lease| {
        args.space
            .as_ref()
            .is_none_or(|space| *space == lease.space)
    }) {
        let ceiling = i64::try_from(lease.ceiling_ms)
            .ok()
            .and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let worker = Worker {
            held: lease.left.is_some(),
            left_ms: lease.left.map(|left| left.as_millis() as u64),
            ceiling: ceiling.unwrap_or(Timestamp::MAX).to_string(),
        };
        spaces
            .entry(lease.space)
            .or_default()
            .insert(lease.worker, worker);
    }
    match output.format() {
        Format::Json => output.object(Status { host, spaces }),
        Format::Text => {
            let columns = [
                ("space", Align::Left),
                ("worker", Align::Right),
                ("state", Align::Left),
                ("left_ms", Align::Right),
                ("ceiling", Align::Left),
            ];
            let rows = spaces.iter().flat_map(|(space, workers)| {
                workers.iter().map(move |(number, worker)| {
                    let state = if worker.held { "held" } else { "free" };
                    let left = worker
                        .left_ms
                        .map_or_else(|| "-".to_owned(), |left| left.to_string());
                    [
                        space.clone(),
                        number.to_string(),
                        state.to_owned(),
                        left,
                        worker.ceiling.clone(),
                    ]
                })
            });
            output.table(&columns, rows);
            if spaces.is_empty() {
                output.note(format_args!("no worker number was ever leased on {host}"));
            }
        }
    }
    Ok(Exit::Done)
}

fn connect(host: &str, config: Option<&Path>) -> Result<ConnectOptions, Failure> {
    let config = context::config(config)?;
    let host = context::host(&config, host)?;
    Ok(config.hosts[&host].connect.clone())
}
