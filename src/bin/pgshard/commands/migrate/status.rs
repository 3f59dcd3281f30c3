//! `pgshard migrate status`: which migrations which shards have.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use pgshard::ShardId;
use pgshard::map::{HostName, ShardMap, print_shards};
use pgshard::pg::cause::chain;
use pgshard::schema::{Attempt, ControlFacts, Migration, Migrations, RecordedMigration, Survey};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Status {
    pub(in super::super) migrations: Vec<MigrationStatus>,
    /// Those that run once per host.
    pub(in super::super) once_per_host: Vec<OnceStatus>,
    /// The shards that no host says it serves, as ranges.
    pub(in super::super) unserved: String,
    /// What is wrong with the folder of migrations.
    pub(in super::super) mistakes: Vec<String>,
    /// The hosts that do not answer: their shards are in no list.
    pub(in super::super) silent_hosts: Vec<String>,
}

/// A once-per-host migration, and the hosts that have it.
#[derive(JsonSchema, Serialize)]
pub(crate) struct OnceStatus {
    pub(in super::super) name: String,
    pub(in super::super) applied: Vec<String>,
    pub(in super::super) pending: Vec<String>,
}

/// One migration, and the shards by what they have of it.
#[derive(JsonSchema, Serialize)]
pub(crate) struct MigrationStatus {
    pub(in super::super) name: String,
    pub(in super::super) applied: usize,
    /// The shards that lack it, as ranges.
    pub(in super::super) pending: String,
    /// The shards that ran it when its text was another, as ranges.
    pub(in super::super) changed: String,
    /// The shards where it was tried and did not succeed, as ranges.
    pub(in super::super) failed: String,
    /// What the first of them failed with.
    pub(in super::super) message: Option<String>,
    /// Whether its file is in the folder; where not, it was run and taken away.
    pub(in super::super) in_folder: bool,
}

/// Prints which migrations each shard has, as the hosts have recorded them.
pub(crate) async fn status(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate status")?;
    let map = context::map(&config).await?;
    // What a shard has is known by its host, whatever is wrong in the folder.
    let (migrations, unusable) = context::usable_migrations(&config);
    let mistakes = unusable
        .iter()
        .flat_map(|error| error.mistakes.iter().zip(context::mistakes(error)));
    let mistakes: Vec<(String, String)> = mistakes
        .map(|(one, words)| (one.file().to_owned(), words))
        .collect();
    for (_, mistake) in &mistakes {
        output.error_with_remedy(mistake, "correct it: until then no migration runs");
    }
    let survey = context::survey(&config, output).await;
    for (host, facts) in &survey {
        if let Err(error) = facts {
            output.warning(format_args!(
                "{host}: {}: its shards are not counted",
                chain(error)
            ));
        }
    }
    let status = Status::by(&migrations, &mistakes, &map, &survey);
    match output.format() {
        Format::Json => output.object(&status),
        Format::Text => {
            let columns = [
                ("migration", Align::Left),
                ("applied", Align::Right),
                ("pending", Align::Left),
                ("changed", Align::Left),
                ("failed", Align::Left),
                ("", Align::Left),
            ];
            let dash = |ranges: &str| {
                if ranges.is_empty() {
                    "-".to_owned()
                } else {
                    ranges.to_owned()
                }
            };
            let rows = status.migrations.iter().map(|migration| {
                let note = if migration.in_folder { "" } else { "no file" };
                [
                    migration.name.clone(),
                    migration.applied.to_string(),
                    dash(&migration.pending),
                    dash(&migration.changed),
                    dash(&migration.failed),
                    note.to_owned(),
                ]
            });
            output.table(&columns, rows);
            for once in &status.once_per_host {
                let hosts = |hosts: &[String]| {
                    if hosts.is_empty() {
                        "-".to_owned()
                    } else {
                        hosts.join(", ")
                    }
                };
                let (applied, pending) = (hosts(&once.applied), hosts(&once.pending));
                output.data(format_args!(
                    "{} (once per host): applied {applied}; pending {pending}",
                    once.name
                ));
            }
            for migration in &status.migrations {
                if let Some(message) = &migration.message {
                    output.note(format_args!(
                        "{} failed in {}: {message}",
                        migration.name, migration.failed
                    ));
                }
            }
            if !status.unserved.is_empty() {
                let words = format!("no host says that it serves the shards {}", status.unserved);
                output.error_with_remedy(words, "run `pgshard check`");
            }
            if status.migrations.is_empty() {
                output.note("there are no migrations");
            }
        }
    }
    Ok(if status.is_complete() && unusable.is_none() {
        Exit::Done
    } else {
        Exit::Partly
    })
}

impl Status {
    /// By the word of the hosts; `mistakes` are the folder's, each with its file.
    pub(in super::super) fn by(
        migrations: &Migrations,
        mistakes: &[(String, String)],
        map: &ShardMap,
        survey: &Survey,
    ) -> Status {
        let mistaken: BTreeSet<&str> = mistakes
            .iter()
            .filter_map(|(file, _)| file.strip_suffix(".sql"))
            .collect();
        Status {
            migrations: statuses(migrations, &mistaken, map, survey),
            once_per_host: once_per_host(migrations, survey),
            unserved: print_shards(unserved(map, survey)),
            mistakes: mistakes.iter().map(|(_, words)| words.clone()).collect(),
            silent_hosts: survey
                .iter()
                .filter(|(_, facts)| facts.is_err())
                .map(|(host, _)| host.to_string())
                .collect(),
        }
    }

    /// Whether every shard of the cluster has every file as it is now, and every host the
    /// once-per-host files.
    fn is_complete(&self) -> bool {
        let has_all = |one: &MigrationStatus| {
            one.pending.is_empty() && one.changed.is_empty() && one.failed.is_empty()
        };
        self.silent_hosts.is_empty()
            && self.unserved.is_empty()
            && self.migrations.iter().all(has_all)
            && self.once_per_host.iter().all(|one| one.pending.is_empty())
    }
}

/// The shards that no host serves by its own row, except those that the map has on a host that does
/// not answer.
fn unserved(map: &ShardMap, survey: &Survey) -> Vec<ShardId> {
    let controls = survey
        .values()
        .filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
    let served: BTreeSet<ShardId> = controls
        .flat_map(|control| {
            control
                .shards
                .iter()
                .filter(|(_, row)| row.state.is_owner())
                .map(|(shard, _)| *shard)
        })
        .collect();
    let silent = |host: &HostName| matches!(survey.get(host), Some(Err(_)));
    map.iter()
        .filter(|(shard, host, _)| !served.contains(shard) && !silent(host))
        .map(|(shard, ..)| shard)
        .collect()
}

fn once_per_host(migrations: &Migrations, survey: &Survey) -> Vec<OnceStatus> {
    let controls = || {
        survey
            .iter()
            .filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?.control.as_ref()?)))
    };
    let status = |one: &Migration| {
        let has = |control: &ControlFacts| {
            control
                .host_migrations
                .iter()
                .any(|had| had.name == one.name())
        };
        let (with, without): (Vec<_>, Vec<_>) = controls().partition(|(_, control)| has(control));
        let names = |hosts: Vec<(&HostName, &ControlFacts)>| {
            hosts.iter().map(|(name, _)| name.to_string()).collect()
        };
        OnceStatus {
            name: one.name().to_owned(),
            applied: names(with),
            pending: names(without),
        }
    };
    migrations.of_hosts().map(status).collect()
}

/// The shards that failed, by the word of the host that owns them.
fn attempts(survey: &Survey) -> BTreeMap<ShardId, &Attempt> {
    let controls = survey
        .values()
        .filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
    let owned = |control: &ControlFacts, shard| {
        control
            .shards
            .get(shard)
            .is_some_and(|row| row.state.is_owner())
    };
    controls
        .flat_map(|control| {
            control
                .attempts
                .iter()
                .filter(|(shard, _)| owned(control, shard))
        })
        .map(|(shard, attempt)| (*shard, attempt))
        .collect()
}

/// Every migration that is in the folder or was run, in the order of the names. pgshard's own are
/// left out. `mistaken` are the files that are in the folder and cannot be used.
fn statuses(
    migrations: &Migrations,
    mistaken: &BTreeSet<&str>,
    map: &ShardMap,
    survey: &Survey,
) -> Vec<MigrationStatus> {
    let recorded = recorded(survey);
    let expected: BTreeMap<&str, &str> = migrations
        .iter()
        .map(|file| (file.name(), file.checksum()))
        .collect();
    let ran = recorded
        .values()
        .copied()
        .flatten()
        .map(|migration| migration.name.as_str());
    let names: BTreeSet<&str> = ran
        .filter(|name| !name.starts_with("pgshard:"))
        .chain(expected.keys().copied())
        .collect();
    let answering: Vec<ShardId> = map
        .iter()
        .filter(|(_, host, _)| matches!(survey.get(*host), Some(Ok(_))))
        .map(|(shard, ..)| shard)
        .collect();
    let attempts = attempts(survey);
    let status = |name: &str| {
        let failed: Vec<_> = attempts
            .iter()
            .filter(|(_, attempt)| attempt.name == name)
            .collect();
        let checksum = expected.get(name);
        let has = |shard: &ShardId| {
            let of_shard = recorded.get(shard)?;
            of_shard.iter().find(|migration| migration.name == name)
        };
        let lack = answering
            .iter()
            .filter(|shard| checksum.is_some() && has(shard).is_none());
        let other = |shard: &&ShardId| {
            checksum
                .zip(has(shard))
                .is_some_and(|(new, ran)| ran.checksum != **new)
        };
        MigrationStatus {
            name: name.to_owned(),
            applied: answering
                .iter()
                .filter(|shard| has(shard).is_some())
                .count(),
            pending: print_shards(lack.copied()),
            changed: print_shards(answering.iter().filter(other).copied()),
            failed: print_shards(failed.iter().map(|(shard, _)| **shard)),
            message: failed.first().map(|(_, attempt)| {
                attempt
                    .message
                    .clone()
                    .unwrap_or_else(|| "it was begun, and its outcome is unknown".to_owned())
            }),
            in_folder: checksum.is_some() || mistaken.contains(name),
        }
    };
    names.into_iter().map(status).collect()
}

/// What each shard ran, by the word of the host that owns it.
fn recorded(survey: &Survey) -> BTreeMap<ShardId, &[RecordedMigration]> {
    let controls = survey
        .values()
        .filter_map(|facts| facts.as_ref().ok()?.control.as_ref());
    let owned = |control: &ControlFacts, shard| {
        control
            .shards
            .get(shard)
            .is_some_and(|row| row.state.is_owner())
    };
    let mut recorded = BTreeMap::new();
    for control in controls {
        for set in &control.applied {
            let shards = set.shards.iter().filter(|shard| owned(control, shard));
            recorded.extend(shards.map(|shard| (*shard, set.migrations.as_slice())));
        }
    }
    recorded
}
