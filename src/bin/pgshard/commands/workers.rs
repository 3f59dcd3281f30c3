//! `pgshard workers`: worker numbers of snowflake generators.

use std::collections::BTreeMap;
use std::path::Path;

use jiff::Timestamp;
use pgshard::idgen::WorkerLeases;
use pgshard::idgen::lease::{self, Installed};
use pgshard::pg::ConnectOptions;
use serde::Serialize;

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

#[derive(Serialize)]
struct InstalledOn<'a> {
    host: &'a str,
    state: &'static str,
}

/// Makes the table of leases on one host.
pub(crate) async fn install(host: &str, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let state = match WorkerLeases::new(connect(host, config)?, "").install().await? {
        Installed::Now => "created",
        Installed::Before => "unchanged",
    };
    match output.format() {
        Format::Json => output.object(InstalledOn { host, state })?,
        Format::Text => {
            output.table(&[("host", Align::Left), ("state", Align::Left)], [[host.to_owned(), state.to_owned()]])?
        }
    }
    Ok(Exit::Done)
}

#[derive(Serialize)]
struct Status<'a> {
    host: &'a str,
    spaces: BTreeMap<String, BTreeMap<u16, Worker>>,
}

#[derive(Serialize)]
struct Worker {
    held: bool,
    /// How long the number is kept for its holder; `null` when it is free.
    left_ms: Option<u64>,
    /// The last millisecond that its IDs may have.
    ceiling: String,
}

/// Who holds which number, as far as one host knows: by space, number and time left.
pub(crate) async fn status(host: &str, config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let leases = WorkerLeases::status(&connect(host, config)?).await.map_err(|error| match error {
        lease::Error::NotInstalled => {
            Failure::new(Exit::Failed, format!("host {host} has no leases of worker numbers"))
                .hint(format!("pgshard workers install --host {host}"))
        }
        error => error.into(),
    })?;
    let mut spaces: BTreeMap<String, BTreeMap<u16, Worker>> = BTreeMap::new();
    for lease in leases {
        let ceiling = i64::try_from(lease.ceiling_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        let worker = Worker {
            held: lease.left.is_some(),
            left_ms: lease.left.map(|left| left.as_millis() as u64),
            ceiling: ceiling.unwrap_or(Timestamp::MAX).to_string(),
        };
        spaces.entry(lease.space).or_default().insert(lease.worker, worker);
    }
    match output.format() {
        Format::Json => output.object(Status { host, spaces })?,
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
                    let left = worker.left_ms.map_or_else(|| "-".to_owned(), |left| left.to_string());
                    [space.clone(), number.to_string(), state.to_owned(), left, worker.ceiling.clone()]
                })
            });
            output.table(&columns, rows)?;
        }
    }
    Ok(Exit::Done)
}

fn connect(host: &str, config: Option<&Path>) -> Result<ConnectOptions, Failure> {
    let config = context::config(config)?;
    let host = context::host(&config, host)?;
    Ok(config.hosts[&host].connect.clone())
}
