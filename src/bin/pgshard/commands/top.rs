//! `pgshard top`: the busiest and largest shards, the slowest statements, and which sessions block
//! which.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::HostName;
use pgshard::pg::cause::chain;
use pgshard::schema::top::{self, Activity, Blocker, ShardActivity, StatementActivity};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::Top;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, size};

/// Statements are compared between two readings, and one that is slow now may not be among the
/// slowest of all time.
const STATEMENTS_READ: u16 = 1000;

#[derive(JsonSchema, Serialize)]
pub(crate) struct Report {
    /// Over how many milliseconds the rates were counted.
    interval_ms: u64,
    /// The shards with the most rows read and written, the busiest first.
    busiest: Vec<BusyShard>,
    /// The largest shards, by the size that VACUUM or ANALYZE last saw.
    largest: Vec<LargeShard>,
    /// The statements that took the most time in the interval, over all hosts.
    statements: Vec<SlowStatement>,
    /// Sessions for which others wait.
    blockers: Vec<BlockingSession>,
    /// The unsharded host, whose rows are not counted by shard.
    unsharded: Option<String>,
    /// Hosts that have no statistics of statements.
    without_statements: Vec<String>,
    /// Hosts that could not be read.
    failed: Vec<FailedHost>,
}

#[derive(JsonSchema, Serialize)]
struct BusyShard {
    shard: u16,
    host: String,
    rows_read_per_s: f64,
    rows_written_per_s: f64,
}

#[derive(JsonSchema, Serialize)]
struct LargeShard {
    shard: u16,
    host: String,
    bytes: u64,
}

#[derive(JsonSchema, Serialize)]
struct SlowStatement {
    /// Without literals, with `{shard}` in the place of the schema.
    statement: String,
    calls_per_s: f64,
    /// The time that all its calls took together in each second, in milliseconds.
    ms_per_s: f64,
    mean_ms: f64,
}

#[derive(JsonSchema, Serialize)]
struct BlockingSession {
    host: String,
    pid: i32,
    role: String,
    application: String,
    state: String,
    transaction_ms: Option<u64>,
    waiting: u32,
    statement: String,
}

#[derive(JsonSchema, Serialize)]
struct FailedHost {
    host: String,
    error: String,
}

/// What one host reported at both ends of the interval.
struct Reading {
    host: HostName,
    before: Activity,
    after: Activity,
    seconds: f64,
}

/// Reads all hosts twice, and shows what happened in between.
pub(crate) async fn run(
    args: &Top,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let interval = Duration::from_secs(args.interval_s);
    output.note(format_args!("counting for {} s", args.interval_s));
    let readings = join_all(
        config
            .hosts
            .values()
            .map(|host| read(&config, host, interval)),
    );
    let readings = output.waiting("counting", readings).await;
    let mut report = Report {
        interval_ms: args.interval_s * 1000,
        busiest: Vec::new(),
        largest: Vec::new(),
        statements: Vec::new(),
        blockers: Vec::new(),
        unsharded: config.unsharded().map(|(host, _)| host.name.to_string()),
        without_statements: Vec::new(),
        failed: Vec::new(),
    };
    let mut statements = BTreeMap::new();
    for (host, reading) in config.hosts.keys().zip(readings) {
        match reading {
            Ok(reading) => report.add(&reading, &mut statements),
            Err(error) => report.failed.push(FailedHost {
                host: host.to_string(),
                error,
            }),
        }
    }
    report.finish(statements, usize::from(args.limit));
    let exit = if report.failed.is_empty() {
        Exit::Done
    } else {
        Exit::Failed
    };
    match output.format() {
        Format::Json => output.object(report),
        Format::Text => show(&report, output),
    }
    Ok(exit)
}

async fn read(config: &Config, host: &HostConfig, interval: Duration) -> Result<Reading, String> {
    let connection = host.connect.connect("pgshard top").await;
    let connection = connection.map_err(|error| chain(&error))?;
    let look = || top::activity(connection.client(), &config.cluster.prefix, STATEMENTS_READ);
    let started = Instant::now();
    let before = look().await.map_err(|error| chain(&error))?;
    tokio::time::sleep(interval).await;
    let after = look().await.map_err(|error| chain(&error))?;
    Ok(Reading {
        host: host.name.clone(),
        before,
        after,
        seconds: started.elapsed().as_secs_f64(),
    })
}

/// A counter's growth in a second. A counter that fell was reset.
fn per_second(before: u64, after: u64, seconds: f64) -> f64 {
    let grown = after.checked_sub(before).unwrap_or(after);
    (grown as f64 / seconds * 10.0).round() / 10.0
}

fn number(shard: ShardId) -> u16 {
    shard.get()
}

impl Report {
    fn add(&mut self, reading: &Reading, statements: &mut BTreeMap<String, (f64, f64)>) {
        let host = reading.host.to_string();
        for (shard, now) in &reading.after.shards {
            let ShardActivity {
                rows_read,
                rows_written,
                ..
            } = reading.before.shards.get(shard).copied().unwrap_or(*now);
            self.busiest.push(BusyShard {
                shard: number(*shard),
                host: host.clone(),
                rows_read_per_s: per_second(rows_read, now.rows_read, reading.seconds),
                rows_written_per_s: per_second(rows_written, now.rows_written, reading.seconds),
            });
            self.largest.push(LargeShard {
                shard: number(*shard),
                host: host.clone(),
                bytes: now.bytes,
            });
        }
        match (&reading.before.statements, &reading.after.statements) {
            (Some(before), Some(after)) => {
                let is_whole = before.len() < usize::from(STATEMENTS_READ);
                let before: BTreeMap<&str, &StatementActivity> =
                    before.iter().map(|one| (one.text.as_str(), one)).collect();
                for now in after {
                    let (calls, total) = match before.get(now.text.as_str()) {
                        Some(then) if then.calls <= now.calls => (then.calls, then.total_ms),
                        // Its statistics were reset.
                        Some(_) => (0, 0.0),
                        None if is_whole => (0, 0.0),
                        // What it had before was not read.
                        None => continue,
                    };
                    let sum = statements.entry(now.text.clone()).or_insert((0.0, 0.0));
                    sum.0 += (now.calls - calls) as f64 / reading.seconds;
                    sum.1 += (now.total_ms - total).max(0.0) / reading.seconds;
                }
            }
            _ => self.without_statements.push(host.clone()),
        }
        let blocking = |one: &Blocker| BlockingSession {
            host: host.clone(),
            pid: one.pid,
            role: one.role.clone(),
            application: one.application.clone(),
            state: one.state.clone(),
            transaction_ms: one.transaction_ms.map(|ms| ms.max(0.0) as u64),
            waiting: one.waiting,
            statement: one.statement.clone(),
        };
        self.blockers
            .extend(reading.after.blockers.iter().map(blocking));
    }

    fn finish(&mut self, statements: BTreeMap<String, (f64, f64)>, limit: usize) {
        let rate = |one: &BusyShard| one.rows_read_per_s + one.rows_written_per_s;
        self.busiest.retain(|one| rate(one) > 0.0);
        self.busiest.sort_by(|a, b| rate(b).total_cmp(&rate(a)));
        self.busiest.truncate(limit);
        self.largest.sort_by_key(|one| std::cmp::Reverse(one.bytes));
        self.largest.truncate(limit);
        let rounded = |number: f64| (number * 100.0).round() / 100.0;
        let statement = |(statement, (calls, ms)): (String, (f64, f64))| SlowStatement {
            statement,
            calls_per_s: rounded(calls),
            ms_per_s: rounded(ms),
            mean_ms: if calls > 0.0 {
                rounded(ms / calls)
            } else {
                0.0
            },
        };
        self.statements = statements
            .into_iter()
            .filter(|(_, (calls, _))| *calls > 0.0)
            .map(statement)
            .collect();
        self.statements
            .sort_by(|a, b| b.ms_per_s.total_cmp(&a.ms_per_s));
        self.statements.truncate(limit);
        self.blockers
            .sort_by_key(|one| std::cmp::Reverse(one.waiting));
        self.blockers.truncate(limit);
    }
}

fn show(report: &Report, output: &Output) {
    if let Some(host) = &report.unsharded {
        output.note(format_args!(
            "{host} is unsharded: its rows are not counted by shard"
        ));
    } else if report.busiest.is_empty() {
        output.note("no shard read or wrote a row");
    } else {
        let columns = [
            ("busiest shard", Align::Right),
            ("host", Align::Left),
            ("rows read/s", Align::Right),
            ("rows written/s", Align::Right),
        ];
        let rows = report.busiest.iter().map(|one| {
            [
                one.shard.to_string(),
                one.host.clone(),
                format!("{:.1}", one.rows_read_per_s),
                format!("{:.1}", one.rows_written_per_s),
            ]
        });
        output.table(&columns, rows);
        output.note("");
    }
    let columns = [
        ("largest shard", Align::Right),
        ("host", Align::Left),
        ("size", Align::Right),
    ];
    let rows = report
        .largest
        .iter()
        .map(|one| [one.shard.to_string(), one.host.clone(), size(one.bytes)]);
    output.table(&columns, rows);
    if !report.statements.is_empty() {
        output.note("");
        let columns = [
            ("ms/s", Align::Right),
            ("calls/s", Align::Right),
            ("mean ms", Align::Right),
            ("statement", Align::Left),
        ];
        let rows = report.statements.iter().map(|one| {
            [
                format!("{:.1}", one.ms_per_s),
                format!("{:.1}", one.calls_per_s),
                format!("{:.2}", one.mean_ms),
                one.statement.chars().take(60).collect(),
            ]
        });
        output.table(&columns, rows);
    }
    if !report.blockers.is_empty() {
        output.note("");
        let columns = [
            ("waiting", Align::Right),
            ("blocked by", Align::Left),
            ("role", Align::Left),
            ("state", Align::Left),
            ("statement", Align::Left),
        ];
        let rows = report.blockers.iter().map(|one| {
            [
                one.waiting.to_string(),
                format!("{} {}", one.host, one.pid),
                one.role.clone(),
                one.state.clone(),
                one.statement.chars().take(40).collect(),
            ]
        });
        output.table(&columns, rows);
    }
    if !report.without_statements.is_empty() {
        output.note(format_args!(
            "no statistics of statements on {}: `CREATE EXTENSION pg_stat_statements` adds them, \
             if shared_preload_libraries loads it",
            report.without_statements.join(", ")
        ));
    }
    for failed in &report.failed {
        output.error_with_remedy(
            format_args!("host {}: {}", failed.host, failed.error),
            "`pgshard check` reports what is wrong with it",
        );
    }
}
