//! `pgshard sql`: a query on all shards, or on some.
//!
//! The query is wrapped on the server, so that values of any type come as JSON or text. It runs in
//! a READ ONLY transaction: whatever it calls, nothing is written.

mod shape;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::stream::{self, BoxStream, StreamExt};
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::id::{Id, MS_MAX};
use pgshard::map::{HostName, ShardMap, print_shards};
use pgshard::pg::cause::causes;
use pgshard::router::{Error, Router};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio_postgres::Row;
use tokio_postgres::error::SqlState;

use self::shape::Shape;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output, counted, seconds};

/// How many shards of one host are queried at a time.
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
        Some(list) => crate::context::shards(list, map.shards())?,
    };
    let placed = |shard: &ShardId| map.host(*shard).cloned();
    let shards = once_for_all(&config, &map, shards, query)?;
    let by_host = context::by_host(&map, &shards);
    let router = context::router(&config, map.clone(), "pgshard sql");
    let shape = output.waiting("reading the columns", shape(&router, &by_host, query));
    let shape = shape.await?;
    let job = Job {
        router,
        sql: shape.sql(query, output.format()),
    };

    let bar = output.progress("sql".to_owned(), "shards", shards.len() as u64);
    let mut answers = job.query_hosts(&by_host);
    let mut table: Vec<(ShardId, Vec<Row>)> = Vec::new();
    let (mut rows_total, started) = (0, Instant::now());
    let mut failed: Vec<(ShardId, Trouble)> = Vec::new();
    while let Some((shard, answer)) = answers.next().await {
        bar.inc(1);
        let host = placed(&shard);
        let host = host.as_ref().map_or("", HostName::as_str);
        match (answer, output.format()) {
            (Ok(rows), Format::Json) => output.object(ShardRows {
                shard,
                host,
                rows: shape.json(&rows)?,
            }),
            (Ok(rows), Format::Text) => {
                rows_total += rows.len();
                if rows_total > TABLE_ROWS_MAX {
                    let error = format!("more than {TABLE_ROWS_MAX} rows are too many for a table");
                    return Err(Failure::new(Exit::Failed, error)
                        .hint("write them as they come with --json, or put a LIMIT"));
                }
                table.push((shard, rows));
            }
            (Err(trouble), format) => {
                if format == Format::Json {
                    output.object(ShardFailed {
                        shard,
                        host,
                        error: trouble.words().join(": "),
                    });
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
        if !table.is_empty() {
            let took = seconds(started.elapsed());
            let (rows, answered) = (counted(rows_total, "row"), counted(table.len(), "shard"));
            output.note(format_args!(
                "{rows} of {answered} in {took}{}",
                shape.totals(&table)
            ));
        }
    }
    let exit = match failed.len() {
        0 => Exit::Done,
        all if all == shards.len() => Exit::Failed,
        _ => Exit::Partly,
    };
    print_errors(failed, placed, output);
    Ok(exit)
}

/// The query without a semicolon behind it.
///
/// # Errors
/// When it is no query. The server would refuse it too, with a less helpful message.
fn readable(query: &str) -> Result<&str, Failure> {
    let query = query.trim().trim_end_matches(';').trim_end();
    let word = first_word(query);
    if ["SELECT", "WITH", "VALUES", "TABLE", EXPLAIN].contains(&word.as_str()) {
        return Ok(query);
    }
    let error = "only SELECT, WITH, VALUES, TABLE and EXPLAIN of one of these can be run on many \
        shards from here";
    Err(Failure::usage(error).hint(
        "what changes tables is a migration (`pgshard migrate up`), what changes rows belongs in \
            the application",
    ))
}

/// The keyword that requests the server's plan of a query. Such a statement cannot be wrapped.
const EXPLAIN: &str = "EXPLAIN";

fn first_word(query: &str) -> String {
    let start = without_comments(query).trim_start_matches('(').trim_start();
    start
        .chars()
        .take_while(char::is_ascii_alphabetic)
        .collect::<String>()
        .to_ascii_uppercase()
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

/// Reads the columns from one shard, or from one of another host if the first host cannot be
/// reached.
///
/// # Errors
/// When the query is wrong. So that is reported once, not for each shard.
async fn shape(
    router: &Router,
    by_host: &BTreeMap<HostName, Vec<ShardId>>,
    query: &str,
) -> Result<Shape, Failure> {
    if first_word(query) == EXPLAIN {
        return Ok(Shape::of_a_plan());
    }
    let question = Shape::question(query);
    let mut last = None;
    for shard in by_host.values().filter_map(|shards| shards.first()) {
        match read_only(router, *shard, &question).await {
            Ok(rows) => return Ok(Shape::of(&rows)),
            Err(error) if is_host_down(&error) => last = Some(error),
            Err(error) => {
                let hint = unqualified(&error, query);
                let failure = Failure::from(error);
                return Err(match hint {
                    Some(hint) => failure.hint(hint),
                    None => failure,
                });
            }
        }
    }
    Err(last.map_or_else(
        || Failure::usage("there are no shards in the list"),
        Failure::from,
    ))
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShardRows<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    host: &'a str,
    #[schemars(with = "Vec<serde_json::Value>")]
    rows: Box<RawValue>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct ShardFailed<'a> {
    #[schemars(with = "u16")]
    shard: ShardId,
    host: &'a str,
    error: String,
}

/// Why a shard gave nothing.
enum Trouble {
    /// It was queried.
    Error(Box<Error>),
    /// It was not: its host could not be reached a moment before.
    NotAsked,
}

impl Trouble {
    fn words(&self) -> Vec<String> {
        match self {
            Trouble::Error(error) => causes(error.as_ref()),
            Trouble::NotAsked => vec!["not asked: its host could not be reached".to_owned()],
        }
    }
}

/// What to write instead, if a table is missing because the query does not mark it as a shard's.
fn unqualified(error: &Error, query: &str) -> Option<&'static str> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    let is_missing = |error: &tokio_postgres::Error| {
        error.code().is_some_and(|code| {
            [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_FUNCTION].contains(code)
        })
    };
    while let Some(error) = cause {
        if error
            .downcast_ref::<tokio_postgres::Error>()
            .is_some_and(is_missing)
        {
            return (!query.contains("{shard}.")).then_some(
                "write {shard}. before the names of a shard's tables and functions, as in SELECT \
                    count(*) FROM \
                 {shard}.users",
            );
        }
        cause = error.source();
    }
    None
}

/// The shards of a host that could not be reached, and why.
type Unasked = (Vec<ShardId>, Option<Box<Error>>);

/// The errors: of a host that could not be reached once, and others with the same cause together.
fn print_errors(
    mut failed: Vec<(ShardId, Trouble)>,
    placed: impl Fn(&ShardId) -> Option<HostName>,
    output: &Output,
) {
    failed.sort_by_key(|(shard, _)| *shard);
    let mut down: BTreeMap<Option<HostName>, Unasked> = BTreeMap::new();
    let mut alike: Vec<(Vec<String>, Vec<ShardId>)> = Vec::new();
    for (shard, trouble) in failed {
        match trouble {
            Trouble::Error(error) if !is_host_down(&error) => {
                let words = causes(error.as_ref());
                // The first line names the shard, the cause does not.
                let same = |(known, _): &&mut (Vec<String>, Vec<ShardId>)| {
                    words.len() > 1 && known[1..] == words[1..]
                };
                match alike.iter_mut().find(same) {
                    Some((_, shards)) => shards.push(shard),
                    None => alike.push((words, vec![shard])),
                }
            }
            trouble => {
                let (shards, why) = down.entry(placed(&shard)).or_default();
                shards.push(shard);
                if let Trouble::Error(error) = trouble {
                    why.get_or_insert(error);
                }
            }
        }
    }
    for (host, (shards, why)) in down {
        let host = host.as_ref().map_or("?", HostName::as_str);
        let told = why
            .as_ref()
            .map(|error| causes(error.as_ref()))
            .unwrap_or_default();
        let cause: String = told
            .iter()
            .skip(1)
            .map(|cause| format!(": {cause}"))
            .collect();
        let remedy = match why.as_deref() {
            Some(Error::Connect { source, .. } | Error::HostDown { source, .. }) => source.remedy(),
            _ => "see what `pgshard check` says of it",
        };
        let list = print_shards(shards.iter().copied());
        let words = format!(
            "host {host} is out of reach{cause}; {} not asked ({list})",
            counted(shards.len(), "shard")
        );
        output.error_with_remedy(words, remedy);
    }
    for (mut words, shards) in alike.iter().take(ERRORS_SHOWN_MAX).cloned() {
        if let (Some(first), [_, others @ ..]) = (words.first_mut(), shards.as_slice())
            && !others.is_empty()
        {
            let list = print_shards(others.iter().copied());
            first.push_str(&format!(
                "; the same on {} ({list})",
                counted(others.len(), "other shard")
            ));
        }
        output.error(&words);
    }
    let more: usize = alike
        .iter()
        .skip(ERRORS_SHOWN_MAX)
        .map(|(_, shards)| shards.len())
        .sum();
    if more > 0 {
        output.note(format_args!(
            "… and {} failed with something else",
            counted(more, "more shard")
        ));
    }
}

/// These shards; the first alone for all shards of an unsharded host, where the query is run once.
fn once_for_all(
    config: &Config,
    map: &ShardMap,
    shards: Vec<ShardId>,
    query: &str,
) -> Result<Vec<ShardId>, Failure> {
    let whole = config.unsharded().filter(|(host, _)| {
        let on = |shard| map.host(shard).is_some_and(|on| *on == host.name);
        map.shards().iter().all(on)
    });
    match whole {
        None => Ok(shards),
        Some((host, _)) if query.contains("{shard_id}") => {
            let error = format!(
                "{} is unsharded: the query is for all shards at once",
                host.name
            );
            Err(Failure::new(Exit::Refused, error).hint("leave out {shard_id}"))
        }
        Some(_) if shards.len() == usize::from(map.shards().get()) => {
            Ok(shards.into_iter().take(1).collect())
        }
        Some((host, schema)) => {
            let error = format!(
                "{} is unsharded: its schema {schema} has the rows of all shards",
                host.name
            );
            Err(Failure::new(Exit::Refused, error)
                .hint("leave out --shards, and name the keys in the query"))
        }
    }
}

/// The query on its way.
struct Job {
    router: Router,
    sql: String,
}

type Answer = (ShardId, Result<Vec<Row>, Trouble>);

impl Job {
    /// The results of all shards, in the order in which they arrive. The hosts are worked through
    /// at the same time, and one that cannot be reached is not contacted for every shard again.
    fn query_hosts<'a>(
        &'a self,
        by_host: &'a BTreeMap<HostName, Vec<ShardId>>,
    ) -> BoxStream<'a, Answer> {
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
    matches!(
        error,
        Error::Connect { .. } | Error::HostDown { .. } | Error::PoolTimeout { .. }
    )
}

/// Runs a statement on a shard in a READ ONLY transaction.
async fn read_only(router: &Router, shard: ShardId, sql: &str) -> Result<Vec<Row>, Error> {
    // By an ID of the shard: an unsharded host gives no rows of a shard by its number.
    let id = Id::new(MS_MAX, shard, 0).expect("the last millisecond has IDs");
    let transaction = router.by_id(id)?.build_transaction().read_only(true);
    transaction.run(async |tx| tx.query(sql, &[]).await).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_run() {
        for good in [
            "SELECT 1",
            " select 1 ; ",
            "explain select 1",
            "-- why\n/* not */ (TABLE x)",
            "with a as (values (1)) table a",
        ] {
            assert!(readable(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "DELETE FROM x",
            "-- SELECT",
            "/* SELECT 1",
            "CREATE TABLE x ()",
            "selected",
        ] {
            assert!(readable(bad).is_err(), "{bad}");
        }
        assert_eq!(readable("SELECT ';' ;;").unwrap(), "SELECT ';'");
    }
}
