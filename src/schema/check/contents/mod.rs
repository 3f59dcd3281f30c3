//! Checks the rows of the shards: IDs of another shard, IDs that `next_id()` has not reached yet,
//! and sequences that are behind their tables. Every row is read once, so it takes its time: some
//! blocks at a time, with a rest after each.
//!
//! Invariant: it only reads, and holds no lock and no snapshot for longer than a few blocks need.
//! **Invariant:** its memory does not grow with the number of rows.

mod column;
mod read;

use std::collections::BTreeMap;

use futures_util::future::join_all;

use self::column::{Column, FilledBy, Unread};
pub use self::column::{HostShards, RowRules};
use super::finding::{Finding, Findings, Severity};
use crate::id::{Epoch, Id};
use crate::pg::quote_ident;
use crate::schema::control::Cluster;
use crate::schema::control::rights::shell_word;
use crate::shard::{KeyKind, ShardCount, ShardId};

/// What all rows show.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Contents {
    /// What is not as it should be.
    pub findings: Vec<Finding>,
    /// The last ID of each shard that has one of `next_id()` in a row, whether all is well or not.
    pub largest: BTreeMap<ShardId, i64>,
}

/// Reads every row of the tables with IDs from `next_id()` or a sequence, or with configured key
/// columns, on all hosts at the same time. `on_shard` is called after each shard.
///
/// # Cancel safety
/// Only reads.
pub async fn contents(
    hosts: &[HostShards],
    rules: RowRules<'_>,
    on_shard: &(dyn Fn() + Send + Sync),
) -> Contents {
    let read = join_all(
        hosts
            .iter()
            .map(async |host| (host, read::read(host, rules, on_shard).await)),
    )
    .await;
    let Cluster {
        epoch, shards, key, ..
    } = *rules.cluster;
    let (mut findings, mut largest) = (Findings::default(), BTreeMap::<ShardId, i64>::new());
    for (host, columns) in read {
        match columns {
            Ok(columns) => {
                for column in &columns {
                    report_column(&mut findings, host, column, epoch);
                    keys(&mut findings, host, column, (key, shards));
                    if let FilledBy::Shard {
                        largest: Some(id), ..
                    } = column.filled_by
                    {
                        let last = largest.entry(column.shard).or_insert(id);
                        // IDs past 2^40 ms are negative.
                        *last = last.cast_unsigned().max(id.cast_unsigned()).cast_signed();
                    }
                }
            }
            Err(reason) => {
                let message = format!("its rows cannot be read: {reason}");
                let remedy = "see what the server's log says";
                findings.add(
                    Severity::Error,
                    "rows_unread",
                    Some(&host.host),
                    message,
                    remedy,
                );
            }
        }
    }
    Contents {
        findings: findings.sorted(),
        largest,
    }
}

fn report_column(findings: &mut Findings, host: &HostShards, column: &Column, epoch: Epoch) {
    let Column {
        shard,
        table,
        name,
        filled_by,
    } = column;
    let schema = quote_ident(&host.schemas[shard]);
    match filled_by {
        FilledBy::Shard {
            foreign,
            largest,
            is_ahead,
        } => {
            if let Some((count, id)) = foreign {
                let (other, rows) = (
                    Id::decode(*id).shard(),
                    if *count == 1 {
                        "row has an ID"
                    } else {
                        "rows have IDs"
                    },
                );
                let what = format!(
                    "{count} {rows} of another shard in {table}.{name}, such as {id} of shard \
                        {other}"
                );
                let remedy = format!(
                    "a query by such an ID goes to the other shard: move the rows to where \
                        `pgshard locate --id {id}` says, or give them IDs by {schema}.next_id()"
                );
                findings.add_shard(
                    Severity::Error,
                    "ids_of_another_shard",
                    Some(&host.host),
                    *shard,
                    what,
                    remedy,
                );
            }
            if let Some(id) = largest.filter(|_| *is_ahead) {
                let time = epoch.time(Id::decode(id).ms());
                let what = format!(
                    "{table}.{name} has {id}, of {time}, which its next_id() has not reached yet: \
                        it would be given out twice"
                );
                let remedy = format!(
                    "SELECT {schema}.resume_after({id}); \
                     refused for an ID of more than a day ahead: give such a row another one"
                );
                findings.add_shard(
                    Severity::Error,
                    "ids_past_clock",
                    Some(&host.host),
                    *shard,
                    what,
                    remedy,
                );
            }
        }
        FilledBy::Unread(why) => {
            let (why, remedy) = match why {
                Unread::OfAnother(owner) => (
                    format!("it belongs to {owner}, or its sequence does"),
                    "let the shard's owner own it",
                ),
                Unread::Hidden => (
                    "its policies hide rows from the config's role".to_owned(),
                    "ALTER ROLE … BYPASSRLS, as a move needs it too; or read it as a role that \
                        sees all rows",
                ),
                Unread::Refused(reason) => (reason.clone(), "see what the reason says, then again"),
            };
            let what = format!("{table} is not read: {why}");
            findings.add_shard(
                Severity::Error,
                "rows_unread",
                Some(&host.host),
                *shard,
                what,
                remedy,
            );
        }
        FilledBy::Sequence {
            name: sequence,
            behind: Some(value),
        } => {
            let what = format!(
                "{table}.{name} has {value}, which its sequence will reach: an insert then fails, \
                    or makes it a duplicate"
            );
            let literal = sequence.replace('\'', "''");
            let remedy = format!("SELECT setval('{literal}', {value})");
            findings.add_shard(
                Severity::Error,
                "sequence_behind",
                Some(&host.host),
                *shard,
                what,
                remedy,
            );
        }
        FilledBy::Sequence { behind: None, .. } | FilledBy::Key(_) | FilledBy::NoKey(_) => {}
    }
}

/// What is wrong with a column of sharding keys.
fn keys(
    findings: &mut Findings,
    host: &HostShards,
    Column {
        shard,
        table,
        name,
        filled_by,
    }: &Column,
    (kind, shards): (KeyKind, ShardCount),
) {
    let host = Some(&host.host);
    match filled_by {
        FilledBy::Key(Some((count, key))) => {
            let rows = if *count == 1 {
                "row has a key"
            } else {
                "rows have keys"
            };
            let other = kind
                .shard_of_text(key, shards)
                .map(|other| format!(" of shard {other}"))
                .unwrap_or_default();
            let what = format!(
                "{count} {rows} of another shard in {table}.{name}, such as {key:?}{other}"
            );
            let remedy = format!(
                "a query by such a key goes to the other shard: move the rows to where `pgshard \
                 locate --key {}` says, or delete them; docs/keys.md has a CHECK that refuses more \
                 of them",
                shell_word(key)
            );
            let (severity, code) = (Severity::Error, "keys_of_another_shard");
            findings.add_shard(severity, code, host, *shard, what, remedy);
        }
        FilledBy::NoKey(problem) => {
            let what = format!("the config has {table}.{name} as the key, and {problem}");
            let remedy = format!(
                "correct [tables.{table}] in the config; if the shard lacks a migration, `pgshard \
                 migrate up`"
            );
            let (severity, code) = (Severity::Error, "key_column_unknown");
            findings.add_shard(severity, code, host, *shard, what, remedy);
        }
        _ => {}
    }
}
