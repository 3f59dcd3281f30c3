//! `pgshard host list`.

use std::collections::BTreeMap;
use std::path::Path;

use futures_util::future::join_all;
use indicatif::ProgressBar;
use pgshard::config::HostConfig;
use pgshard::pg::cause::chain;
use pgshard::schema::{self, HostStatus};
use schemars::JsonSchema;
use serde::Serialize;

use super::version;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, Rank, Width, size};

#[derive(JsonSchema, Serialize)]
pub(crate) struct HostListing {
    pub(in super::super) hosts: BTreeMap<String, ListedHost>,
}

#[derive(JsonSchema, Serialize)]
#[serde(untagged)]
pub(crate) enum ListedHost {
    Answered {
        version: String,
        in_recovery: bool,
        shards: Option<u32>,
        bytes: u64,
        connections: u32,
        connections_max: u32,
        wal_level: String,
        wal: String,
        wal_kept_bytes: Option<u64>,
        /// `null` where the server hides them.
        standbys: Option<u32>,
        lag_bytes: Option<u64>,
        lag_ms: Option<f64>,
        /// Whether no commit ends, because too few synchronous standbys stream.
        commits_wait: bool,
    },
    Silent {
        error: String,
    },
}

const COLUMNS: [(&str, Align, Rank); 10] = [
    ("host", Align::Left, Rank::Stays),
    ("version", Align::Right, Rank::Goes(2)),
    ("shards", Align::Right, Rank::Stays),
    ("size", Align::Right, Rank::Goes(0)),
    ("connections", Align::Right, Rank::Goes(1)),
    ("wal", Align::Left, Rank::Goes(6)),
    ("wal level", Align::Left, Rank::Goes(5)),
    ("wal kept", Align::Right, Rank::Goes(3)),
    ("standbys", Align::Right, Rank::Goes(4)),
    ("lag", Align::Left, Rank::Goes(3)),
];

/// The state of every host. All of them are queried at the same time.
pub(crate) async fn list(
    width: Width,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let read = async |bar: &ProgressBar| {
        let each = config.hosts.values().map(async |host| {
            let answer = status(host).await;
            bar.inc(1);
            answer
        });
        join_all(each).await
    };
    let (hosts, limit) = (config.hosts.len(), context::patience(&config));
    let answers = output.counting_hosts("reading", hosts, limit, read).await;
    let answers: Vec<(String, Result<HostStatus, Silent>)> = config
        .hosts
        .keys()
        .map(ToString::to_string)
        .zip(answers)
        .collect();
    match output.format() {
        Format::Json => {
            let hosts = answers
                .iter()
                .map(|(name, answer)| (name.clone(), listed(answer)))
                .collect();
            output.object(HostListing { hosts });
        }
        Format::Text => {
            let rows = answers
                .iter()
                .map(|(name, answer)| row(name, answer).into());
            output.fitted_table(&COLUMNS, rows, width);
        }
    }
    let silent = answers
        .iter()
        .filter_map(|(name, answer)| Some((name, answer.as_ref().err()?)));
    let mut exit = Exit::Done;
    for (name, answer) in &answers {
        if answer.as_ref().is_ok_and(|facts| facts.commits_wait) {
            output.error_with_remedy(
                format_args!(
                    "host {name}: no commit ends there: each waits for standbys that \
                        synchronous_standby_names asks for, and too few of them stream"
                ),
                "start such a standby, or correct that setting",
            );
            exit = Exit::Failed;
        }
    }
    for (name, Silent { error, remedy }) in silent {
        output.error_with_remedy(format_args!("host {name}: {error}"), remedy);
        exit = Exit::Failed;
    }
    Ok(exit)
}

/// Why a host did not report its state.
struct Silent {
    error: String,
    remedy: &'static str,
}

async fn status(host: &HostConfig) -> Result<HostStatus, Silent> {
    let connection = host.connect.connect("pgshard host").await;
    let connection = connection.map_err(|error| Silent {
        error: chain(&error),
        remedy: error.remedy(),
    })?;
    let answer = schema::host_status(connection.client()).await;
    answer.map_err(|error| Silent {
        error: chain(&error),
        remedy: "see what its log says",
    })
}

fn listed(answer: &Result<HostStatus, Silent>) -> ListedHost {
    match answer {
        Err(silent) => ListedHost::Silent {
            error: silent.error.clone(),
        },
        Ok(facts) => ListedHost::answered(facts),
    }
}

impl ListedHost {
    /// A host that reported its state.
    pub(in super::super) fn answered(facts: &HostStatus) -> ListedHost {
        ListedHost::Answered {
            version: version(facts.version),
            in_recovery: facts.in_recovery,
            shards: facts.shards,
            bytes: facts.bytes,
            connections: facts.connections,
            connections_max: facts.connections_max,
            wal_level: facts.wal_level.clone(),
            wal: facts.wal.clone(),
            wal_kept_bytes: facts.wal_kept,
            standbys: facts.standbys,
            lag_bytes: facts.lag_bytes,
            lag_ms: facts.lag_ms.map(|ms| (ms * 100.0).round() / 100.0),
            commits_wait: facts.commits_wait,
        }
    }
}

fn row(name: &str, answer: &Result<HostStatus, Silent>) -> [String; 10] {
    let none = || "-".to_owned();
    let Ok(facts) = answer else {
        let [
            version,
            shards,
            bytes,
            connections,
            wal,
            level,
            kept,
            standbys,
            lag,
        ] = std::array::from_fn(|_| none());
        return [
            name.to_owned(),
            version,
            shards,
            bytes,
            connections,
            wal,
            level,
            kept,
            standbys,
            lag,
        ];
    };
    let lag = match (facts.lag_bytes, facts.lag_ms) {
        (None, _) => none(),
        (Some(bytes), None) => size(bytes),
        (Some(bytes), Some(ms)) => format!("{}, {ms:.0} ms", size(bytes)),
    };
    let standby = if facts.in_recovery { " (standby)" } else { "" };
    [
        name.to_owned(),
        format!("{}{standby}", version(facts.version)),
        facts.shards.map_or_else(none, |shards| shards.to_string()),
        size(facts.bytes),
        format!("{}/{}", facts.connections, facts.connections_max),
        facts.wal.clone(),
        facts.wal_level.clone(),
        facts.wal_kept.map_or_else(none, size),
        facts
            .standbys
            .map_or_else(none, |standbys| standbys.to_string()),
        lag,
    ]
}
