//! `pgshard sql`: a query on all shards, or on some.
//!
//! The query is wrapped on the server, so that values of any type come as JSON or text. It runs in a READ ONLY
//! transaction: whatever it calls, nothing is written.

mod shape;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::stream::{self, BoxStream, StreamExt};
use pgshard::ShardId;
use pgshard::map::HostName;
use pgshard::router::{Error, Router};
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;

use self::shape::{Shape, json};
use crate::context;
use crate::exit::Exit;
use crate::failure::{Failure, chain};
use crate::output::{Format, Output};

/// How many shards of one host are asked at a time.
const WIDTH: usize = 8;

/// The most rows of a table for people.
const TABLE_ROWS_MAX: usize = 100_000;

/// How many errors are shown one by one.
const ERRORS_SHOWN_MAX: usize = 10;

/// Runs the query.
pub(crate) async fn run(
    query: &str,
    shards: Option<&str>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let query = readable(query)?;
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let shards: Vec<ShardId> = match shards {
        None => map.shards().iter().collect(),
        Some(list) => super::relocate::shards(list, map.shards())?,
    };
    let placed = |shard: &ShardId| map.host(*shard).cloned();
    let by_host = context::by_host(&map, &shards);
    let router = context::router(&config, map.clone(), "pgshard sql");
    let shape = shape(&router, &by_host, query).await?;
    let job = Job { router, sql: shape.sql(query, output.format()) };

    let bar = output.progress("sql".to_owned(), "shards", shards.len() as u64);
    let mut answers = job.ask(&by_host);
    let mut table: Vec<(ShardId, Vec<Row>)> = Vec::new();
    let mut rows_total = 0;
    let mut failed: Vec<(ShardId, Trouble)> = Vec::new();
    while let Some((shard, answer)) = answers.next().await {
        bar.inc(1);
        let host = placed(&shard);
        let host = host.as_ref().map_or("", HostName::as_str);
        match (answer, output.format()) {
            (Ok(rows), Format::Json) => output.object(ShardRows { shard, host, rows: json(&rows)? })?,
            (Ok(rows), Format::Text) => {
                rows_total += rows.len();
                if rows_total > TABLE_ROWS_MAX {
                    let error = format!("more than {TABLE_ROWS_MAX} rows are too many for a table");
                    return Err(
                        Failure::new(Exit::Failed, error).hint("write them as they come with --json, or put a LIMIT")
                    );
                }
                table.push((shard, rows));
            }
            (Err(trouble), format) => {
                if format == Format::Json {
                    output.object(ShardFailed { shard, host, error: trouble.words().join(": ") })?;
                }
                failed.push((shard, trouble));
            }
        }
    }
    drop(answers);
    bar.finish_and_clear();
    if output.format() == Format::Text {
        table.sort_by_key(|(shard, _)| *shard);
        shape.print(&table, output)?;
    }
    tell(&mut failed, output);
    Ok(match failed.len() {
        0 => Exit::Done,
        all if all == shards.len() => Exit::Failed,
        _ => Exit::Partly,
    })
}

/// The query without a semicolon behind it.
///
/// # Errors
/// When it is no query. The server would refuse it too, with a less helpful message.
fn readable(query: &str) -> Result<&str, Failure> {
    let query = query.trim().trim_end_matches(';').trim_end();
    let start = without_comments(query).trim_start_matches('(').trim_start();
    let word: String = start.chars().take_while(char::is_ascii_alphabetic).collect::<String>().to_ascii_uppercase();
    if ["SELECT", "WITH", "VALUES", "TABLE"].contains(&word.as_str()) {
        return Ok(query);
    }
    Err(Failure::usage("only SELECT, WITH, VALUES and TABLE can be run on many shards from here").hint(
        "what changes tables is a migration (`pgshard migrate up`), what changes rows belongs in the application",
    ))
}

fn without_comments(mut text: &str) -> &str {
    loop {
        text = text.trim_start();
        let rest = match text.get(..2) {
            Some("--") => text.split_once('\n').map(|(_, rest)| rest),
            Some("/*") => text.split_once("*/").map(|(_, rest)| rest),
            _ => return text,
        };
        text = rest.unwrap_or("");
    }
}

/// Asks one shard for the columns, or one of another host if the first host cannot be reached.
///
/// # Errors
/// When the query is wrong. So that is said once, not once a shard.
async fn shape(router: &Router, by_host: &BTreeMap<HostName, Vec<ShardId>>, query: &str) -> Result<Shape, Failure> {
    let question = Shape::question(query);
    let mut last = None;
    for shard in by_host.values().filter_map(|shards| shards.first()) {
        match read_only(router, *shard, &question).await {
            Ok(rows) => return Ok(Shape::of(&rows)),
            Err(error) if is_host_down(&error) => last = Some(error),
            Err(error) => return Err(error.into()),
        }
    }
    Err(last.map_or_else(|| Failure::usage("there are no shards in the list"), Failure::from))
}

#[derive(Serialize)]
struct ShardRows<'a> {
    shard: ShardId,
    host: &'a str,
    rows: Box<RawValue>,
}

#[derive(Serialize)]
struct ShardFailed<'a> {
    shard: ShardId,
    host: &'a str,
    error: String,
}

/// Why a shard gave nothing.
enum Trouble {
    /// It was asked.
    Error(Box<Error>),
    /// It was not: its host could not be reached a moment before.
    NotAsked,
}

impl Trouble {
    fn words(&self) -> Vec<String> {
        match self {
            Trouble::Error(error) => chain(error.as_ref()),
            Trouble::NotAsked => vec!["not asked: its host could not be reached".to_owned()],
        }
    }
}

/// The errors, the first of them one by one.
fn tell(failed: &mut [(ShardId, Trouble)], output: &Output) {
    failed.sort_by_key(|(shard, _)| *shard);
    let (errors, not_asked): (Vec<_>, Vec<_>) =
        failed.iter().partition(|(_, trouble)| matches!(trouble, Trouble::Error(_)));
    for (_, trouble) in errors.iter().take(ERRORS_SHOWN_MAX) {
        output.error(&trouble.words());
    }
    let more = errors.len().saturating_sub(ERRORS_SHOWN_MAX);
    if more > 0 {
        output.note(format_args!("… and {more} more shards failed"));
    }
    if !not_asked.is_empty() {
        output.note(format_args!("{} more shards on the same hosts were not asked", not_asked.len()));
    }
}

/// The query on its way.
struct Job {
    router: Router,
    sql: String,
}

type Answer = (ShardId, Result<Vec<Row>, Trouble>);

impl Job {
    /// Every shard's answer, in the order in which they come. Each host is worked through beside the others, and one
    /// that cannot be reached is not asked for every shard again.
    fn ask<'a>(&'a self, by_host: &'a BTreeMap<HostName, Vec<ShardId>>) -> BoxStream<'a, Answer> {
        let answers = by_host.values().map(|shards| {
            let down = Arc::new(AtomicBool::new(false));
            let each = stream::iter(shards).map(move |shard| {
                let down = down.clone();
                async move {
                    if down.load(Ordering::Relaxed) {
                        return (*shard, Err(Trouble::NotAsked));
                    }
                    let answer = read_only(&self.router, *shard, &self.sql).await;
                    let answer = answer.map_err(|error| {
                        down.fetch_or(is_host_down(&error), Ordering::Relaxed);
                        Trouble::Error(Box::new(error))
                    });
                    (*shard, answer)
                }
            });
            each.buffer_unordered(WIDTH).boxed()
        });
        stream::select_all(answers).boxed()
    }
}

fn is_host_down(error: &Error) -> bool {
    matches!(error, Error::Connect { .. } | Error::PoolTimeout { .. })
}

/// Runs a statement on a shard in a READ ONLY transaction.
async fn read_only(router: &Router, shard: ShardId, sql: &str) -> Result<Vec<Row>, Error> {
    let transaction = router.shard(shard)?.build_transaction().read_only(true);
    transaction.run(async |tx| tx.query(sql, &[]).await).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_run() {
        for good in ["SELECT 1", " select 1 ; ", "-- why\n/* not */ (TABLE x)", "with a as (values (1)) table a"] {
            assert!(readable(good).is_ok(), "{good}");
        }
        for bad in ["", "DELETE FROM x", "-- SELECT", "/* SELECT 1", "EXPLAIN SELECT 1", "selected"] {
            assert!(readable(bad).is_err(), "{bad}");
        }
        assert_eq!(readable("SELECT ';' ;;").unwrap(), "SELECT ';'");
    }
}
