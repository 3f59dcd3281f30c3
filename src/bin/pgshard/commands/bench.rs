//! `pgshard bench`: what the router costs on this network, compared with the same queries by hand
//! in the same run.
//!
//! It runs `SELECT 1` and writes nothing: it measures the network and the router, not the tables.

mod runs;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pgshard::ShardId;
use pgshard::pg::ConnectOptions;
use pgshard::pg::cause::causes;
use schemars::JsonSchema;
use serde::Serialize;

use self::runs::{FanOut, HostRun, Pace};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Report {
    /// The seconds that each of the two parts of a host's run takes.
    seconds: u64,
    /// The most calls in flight.
    connections: usize,
    hosts: BTreeMap<String, HostRun>,
    fan_out: Option<FanOut>,
    /// What could not be measured, and why.
    failed: BTreeMap<String, String>,
}

/// Measures every host that has shards, one after the other, and then all shards at once.
pub(crate) async fn run(
    seconds: u64,
    connections: usize,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "bench")?;
    let map = context::map(&config).await?;
    let all: Vec<ShardId> = map.shards().iter().collect();
    let by_host = context::by_host(&map, &all);
    let router = context::router(&config, map, "pgshard bench");
    let mut report = Report {
        seconds,
        connections,
        hosts: BTreeMap::new(),
        fan_out: None,
        failed: BTreeMap::new(),
    };
    let mut measured: Vec<(&ConnectOptions, &[ShardId])> = Vec::new();

    let bar = output.progress("bench".to_owned(), "hosts", by_host.len() as u64);
    for (name, shards) in &by_host {
        let (Some(host), Some(shard)) = (config.hosts.get(name), shards.first()) else {
            continue;
        };
        let pace = Pace {
            length: Duration::from_secs(seconds),
            connections: connections.min(host.pool_size),
        };
        match runs::host(&host.connect, &router, *shard, pace).await {
            Ok(run) => {
                report.hosts.insert(name.to_string(), run);
                measured.push((&host.connect, shards.as_slice()));
            }
            Err(error) => report.fail(name.as_str(), &error, output),
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if !measured.is_empty() {
        match runs::fan_out(&measured, &router).await {
            Ok(fan_out) => report.fan_out = Some(fan_out),
            Err(error) => report.fail("all shards", &error, output),
        }
    }
    match output.format() {
        Format::Json => output.object(&report),
        Format::Text => report.print(output),
    }
    Ok(match (report.failed.is_empty(), report.hosts.is_empty()) {
        (true, _) => Exit::Done,
        (false, false) => Exit::Partly,
        (false, true) => Exit::Failed,
    })
}

impl Report {
    fn fail(&mut self, what: &str, error: &runs::Error, output: &Output) {
        let words = causes(&**error);
        let heading = std::iter::once(format!("{what} could not be measured"));
        output.error(&heading.chain(words.iter().cloned()).collect::<Vec<_>>());
        self.failed.insert(what.to_owned(), words.join(": "));
    }

    fn print(&self, output: &Output) {
        let columns = [
            ("host", Align::Left),
            ("connect", Align::Right),
            ("", Align::Left),
            ("p50", Align::Right),
            ("p99", Align::Right),
            ("calls/s", Align::Right),
        ];
        let rows = self.hosts.iter().flat_map(|(name, run)| {
            let way = |host: &str, connect: String, what: &str, way: &runs::Way| {
                let rate = format!("{:.0}", way.per_second);
                [
                    host.to_owned(),
                    connect,
                    what.to_owned(),
                    ms(way.p50_ms),
                    ms(way.p99_ms),
                    rate,
                ]
            };
            let ratio = |ratio: f64| format!("{ratio:.2} ×");
            let (latency, rate) = (ratio(run.latency_ratio), ratio(run.rate_ratio));
            let none = String::new;
            [
                way(name, ms(run.connect_ms), "by hand", &run.by_hand),
                way("", none(), "router", &run.router),
                [none(), none(), "ratio".to_owned(), latency, none(), rate],
            ]
        });
        output.table(&columns, rows);
        if let Some(fan_out) = &self.fan_out {
            output.data(format_args!(
                "\n{} shards: {} one after the other by hand, {} by the router, {:.1} × faster",
                fan_out.shards,
                ms(fan_out.by_hand_ms),
                ms(fan_out.router_ms),
                fan_out.times_faster
            ));
        }
    }
}

fn ms(ms: f64) -> String {
    format!("{ms:.3} ms")
}
