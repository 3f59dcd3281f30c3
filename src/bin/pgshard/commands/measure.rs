//! The weight of each shard, read from the hosts: only they know where a shard is, too.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use indicatif::ProgressBar;
use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, print_shards};
use pgshard::pg::cause::chain;
use pgshard::schema::{self, Measure, Sizes};
use tokio_postgres::error::SqlState;

use crate::args::By;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Where a shard is and what it weighs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShardWeight {
    pub(crate) host: HostName,
    pub(crate) weight: u64,
    pub(crate) bytes: u64,
}

/// Weighs every shard. Shards that no host owns are left out, with a warning.
///
/// # Errors
/// When a host does not answer, or two own a shard; when the query of `sql:` fails or gives no
/// number.
pub(crate) async fn weigh(
    config: &Config,
    by: &By,
    sample: Duration,
    output: &Output,
) -> Result<BTreeMap<ShardId, ShardWeight>, Failure> {
    // Otherwise sizes are only shown, and an estimate will do: to sum them exactly, the hosts look
    // at a million files for eight thousand shards.
    let is_limited = config
        .hosts
        .values()
        .any(|host| host.limits.bytes_max.is_some());
    let sizes = if is_limited || matches!(by, By::Bytes) {
        Sizes::Exact
    } else {
        Sizes::Estimated
    };
    let first = read_until_settled(config, sizes, output).await?;
    let weights: BTreeMap<ShardId, u64> = match by {
        By::Count => first.keys().map(|shard| (*shard, 1)).collect(),
        By::Bytes => first
            .iter()
            .map(|(shard, (_, measure))| (*shard, measure.bytes))
            .collect(),
        By::Writes => {
            output.note(format_args!("counting writes for {} s", sample.as_secs()));
            let count = async |bar: &ProgressBar| {
                for _ in 0..sample.as_secs() {
                    tokio::time::sleep(Duration::from_secs(1)).await;
                    bar.inc(1);
                }
            };
            let seconds = sample.as_secs() as usize;
            output.counting("counting", "seconds", seconds, count).await;
            let second = read_until_settled(config, sizes, output).await?;
            let written = second.iter().map(|(shard, (host, now))| {
                // A shard that arrived in between has a new counter, and so has a server with
                // statistics that were reset.
                let before = first
                    .get(shard)
                    .filter(|(on, before)| on == host && before.writes <= now.writes);
                (
                    *shard,
                    now.writes - before.map_or(0, |(_, before)| before.writes),
                )
            });
            let written: BTreeMap<ShardId, u64> = written.collect();
            if written.values().all(|written| *written == 0) {
                output.warning(
                    "nothing was written to any shard meanwhile: count for longer with --sample-s",
                );
            }
            written
        }
        By::Sql(sql) => query_weights(config, sql).await?,
    };
    let missing: Vec<ShardId> = config
        .cluster
        .shards
        .iter()
        .filter(|shard| !first.contains_key(shard))
        .collect();
    if !missing.is_empty() {
        let missing = print_shards(missing);
        output.warning(format_args!(
            "no host owns shards {missing}: they are left out; `pgshard check` says why"
        ));
    }
    let weighed = first.into_iter().map(|(shard, (host, measure))| {
        let weight = weights.get(&shard).copied().unwrap_or(0);
        (
            shard,
            ShardWeight {
                host,
                weight,
                bytes: measure.bytes,
            },
        )
    });
    Ok(weighed.collect())
}

/// What the hosts state of their shards.
struct Owned {
    shards: BTreeMap<ShardId, (HostName, Measure)>,
    /// The shards of two hosts.
    twice: Vec<ShardId>,
}

/// Reads until each shard has one owner.
async fn read_until_settled(
    config: &Config,
    sizes: Sizes,
    output: &Output,
) -> Result<BTreeMap<ShardId, (HostName, Measure)>, Failure> {
    let all = usize::from(config.cluster.shards.get());
    let is_settled = |owned: &Owned| owned.twice.is_empty() && owned.shards.len() == all;
    let read = || read_owned(config, sizes, output);
    let owned = schema::read_until_settled(read, is_settled).await?;
    if owned.twice.is_empty() {
        return Ok(owned.shards);
    }
    let error = format!("two hosts own shards {}", print_shards(owned.twice));
    Err(Failure::new(Exit::Failed, error).hint("`pgshard check` says what to do"))
}

async fn read_owned(config: &Config, sizes: Sizes, output: &Output) -> Result<Owned, Failure> {
    let count = config.hosts.len();
    let measure = async |bar: &ProgressBar| {
        let answers = config.hosts.values().map(async |host| {
            let answer = measured(host, sizes).await;
            bar.inc(1);
            answer
        });
        join_all(answers).await
    };
    let limit = context::patience(config);
    let answers = output
        .counting_hosts("measuring", count, limit, measure)
        .await;
    let mut owned = Owned {
        shards: BTreeMap::new(),
        twice: Vec::new(),
    };
    for (host, answer) in config.hosts.keys().zip(answers) {
        for (shard, measure) in answer? {
            if owned
                .shards
                .insert(shard, (host.clone(), measure))
                .is_some()
            {
                owned.twice.push(shard);
            }
        }
    }
    Ok(owned)
}

async fn measured(host: &HostConfig, sizes: Sizes) -> Result<BTreeMap<ShardId, Measure>, Failure> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        let error = format!("host {}: {}", host.name, chain(error));
        Failure::new(Exit::Failed, error)
            .hint("every host must answer; `pgshard check` says what is wrong with it")
    };
    let connection = host
        .connect
        .connect("pgshard measure")
        .await
        .map_err(|error| failed(&error))?;
    schema::measure(connection.client(), sizes)
        .await
        .map_err(|error| match error.code() {
            // It was added to the config, and nothing was created there yet.
            Some(&SqlState::UNDEFINED_TABLE) => {
                let error = format!("host {} is not bootstrapped", host.name);
                Failure::new(Exit::Failed, error)
                    .hint("`pgshard bootstrap`, then the same command again")
            }
            _ => failed(&error),
        })
}

/// A number for each shard by the operator's query.
async fn query_weights(config: &Config, sql: &str) -> Result<BTreeMap<ShardId, u64>, Failure> {
    let router = context::router(config, context::map(config).await?, "pgshard measure");
    // As a subquery it can be nothing but a SELECT of one value.
    let sql = format!("SELECT coalesce(({sql}), 0)::double precision");
    let mut answers = router.all_shards().query(&sql, &[]);
    let mut numbers = BTreeMap::new();
    while let Some((shard, rows)) = answers.next().await {
        let rows = rows.map_err(|error| {
            Failure::new(Exit::Failed, format!("shard {shard}: {}", chain(&error)))
                .hint("the query must give one number a shard")
        })?;
        let number: f64 = rows
            .first()
            .map_or(Ok(0.0), |row| row.try_get(0))
            .map_err(|error| {
                Failure::new(Exit::Failed, format!("shard {shard}: {}", chain(&error)))
                    .hint("the query must give one number a shard")
            })?;
        if !(number.is_finite() && number >= 0.0) {
            return Err(Failure::usage(format!(
                "shard {shard} cannot weigh {number}"
            )));
        }
        numbers.insert(shard, number);
    }
    Ok(scaled(&numbers))
}

/// Whole numbers stay as they are; fractions become parts of a large total, since the planner
/// counts in whole numbers.
fn scaled(numbers: &BTreeMap<ShardId, f64>) -> BTreeMap<ShardId, u64> {
    const TOTAL: f64 = (1u64 << 50) as f64;
    let total: f64 = numbers.values().sum();
    let whole = numbers.values().all(|number| number.fract() == 0.0) && total < TOTAL;
    let factor = if whole || total == 0.0 {
        1.0
    } else {
        TOTAL / total
    };
    numbers
        .iter()
        .map(|(shard, number)| (*shard, (number * factor) as u64))
        .collect()
}

/// A weight as a column shows it.
pub(crate) fn format_weight(by: &By, weight: u64) -> String {
    match by {
        By::Bytes => crate::output::size(weight),
        By::Count | By::Writes | By::Sql(_) => weight.to_string(),
    }
}

/// A mover's report about a shard that did not reach its end.
pub(crate) fn describe_error(error: &pgshard::mover::Error) -> String {
    match error {
        pgshard::mover::Error::Refused { refusals } => refusals
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
        error => chain(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fractions_keep_their_proportions() {
        let proportions = |numbers: &[f64]| {
            let shard = |number: usize| ShardId::new(number as u16).expect("a small number");
            let numbers = numbers
                .iter()
                .enumerate()
                .map(|(at, number)| (shard(at), *number))
                .collect();
            scaled(&numbers).into_values().collect::<Vec<_>>()
        };
        assert_eq!(proportions(&[1.0, 7.0]), [1, 7]);
        assert_eq!(proportions(&[0.0, 0.0]), [0, 0]);
        let parts = proportions(&[0.25, 0.75]);
        assert_eq!(parts[0] * 3, parts[1]);
    }
}
