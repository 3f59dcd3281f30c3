//! `pgshard lookups`: values that belong to one key over all shards.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::lookups::{Definition, migration as migration_of};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Migration<'a> {
    lookup: &'a str,
    /// The text of the shard migration.
    migration: String,
}

/// Prints a look-up's migration.
pub(crate) fn migration(
    name: &str,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let definition = defined(&config.lookups, name)?;
    let migration = migration_of(definition);
    match output.format() {
        Format::Json => output.object(Migration {
            lookup: name,
            migration,
        }),
        Format::Text => output.data(migration.trim_end()),
    }
    Ok(Exit::Done)
}

fn defined<'a>(
    lookups: &'a BTreeMap<String, Definition>,
    name: &str,
) -> Result<&'a Definition, Failure> {
    lookups.get(name).ok_or_else(|| {
        let known: Vec<&str> = lookups.keys().map(String::as_str).collect();
        let hint = match known.is_empty() {
            true => format!("add [lookups.{name}] to the config"),
            false => format!("the config has: {}", known.join(", ")),
        };
        Failure::usage(format!("the config has no look-up {name:?}")).hint(hint)
    })
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Status {
    lookups: BTreeMap<String, LookupStatus>,
}

#[derive(JsonSchema, Serialize)]
struct LookupStatus {
    /// What it is over.
    definition: String,
    /// How many shards there are.
    shards: usize,
    /// In how many of them rows that were not claimed are refused.
    guarded: usize,
    /// In how many every row has its entry.
    covered: usize,
    /// `find` answers for every value.
    complete: bool,
    /// Why the shards could not be read; `null` if they could.
    problem: Option<String>,
}

/// Shows all look-ups of the config.
pub(crate) async fn status(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let shards = usize::from(map.shards().get());
    let router = context::router(&config, map, "pgshard lookups");
    let mut lookups = BTreeMap::new();
    for (name, definition) in &config.lookups {
        let states = router.lookup(name)?.states().await;
        let count = |holds: fn(&pgshard::lookups::ShardState) -> bool| {
            states
                .iter()
                .flat_map(|states| states.values())
                .filter(|state| holds(state))
                .count()
        };
        let guarded = count(|state| state.guarded);
        let status = LookupStatus {
            definition: definition.to_text(),
            shards,
            guarded,
            covered: count(|state| state.covered),
            complete: guarded == shards && count(|state| state.complete) == shards,
            problem: states.as_ref().err().map(ToString::to_string),
        };
        lookups.insert(name.clone(), status);
    }
    let all = lookups.values().all(|lookup| lookup.complete);
    match output.format() {
        Format::Json => output.object(Status { lookups }),
        Format::Text => {
            output.table(
                &[
                    ("look-up", Align::Left),
                    ("over", Align::Left),
                    ("guarded", Align::Right),
                    ("covered", Align::Right),
                    ("complete", Align::Left),
                ],
                lookups.iter().map(|(name, lookup)| {
                    let out_of = |count: usize| format!("{count} of {}", lookup.shards);
                    let complete = match (&lookup.problem, lookup.complete) {
                        (Some(problem), _) => problem.clone(),
                        (None, true) => "yes".to_owned(),
                        (None, false) => "no".to_owned(),
                    };
                    [
                        name.clone(),
                        lookup.definition.clone(),
                        out_of(lookup.guarded),
                        out_of(lookup.covered),
                        complete,
                    ]
                }),
            );
        }
    }
    Ok(if all { Exit::Done } else { Exit::Failed })
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Built<'a> {
    lookup: &'a str,
    /// How many rows were read.
    rows: u64,
    /// Keys that have one value, 1000 at most.
    duplicates: Vec<Duplicate>,
    /// `find` answers for every value.
    complete: bool,
}

#[derive(JsonSchema, Serialize)]
struct Duplicate {
    shard: u16,
    /// The key, as text.
    key: String,
    /// The key that has the same value, and its entry.
    other: String,
}

/// Makes a look-up complete.
pub(crate) async fn build(
    name: &str,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    defined(&config.lookups, name)?;
    let map = context::map(&config).await?;
    let bar = output.progress("build".to_owned(), "shards", u64::from(map.shards().get()));
    let router = context::router(&config, map, "pgshard lookups");
    let built = router.lookup(name)?.build(|_| bar.inc(1)).await;
    bar.finish_and_clear();
    let built = built?;
    let duplicates: Vec<Duplicate> = built
        .duplicates
        .into_iter()
        .map(|one| Duplicate {
            shard: one.shard.get(),
            key: one.key,
            other: one.other,
        })
        .collect();
    let exit = if built.complete {
        Exit::Done
    } else {
        Exit::Failed
    };
    match output.format() {
        Format::Json => output.object(Built {
            lookup: name,
            rows: built.rows,
            duplicates,
            complete: built.complete,
        }),
        Format::Text => {
            output.table(
                &[
                    ("shard", Align::Right),
                    ("key", Align::Left),
                    ("other key", Align::Left),
                ],
                duplicates
                    .iter()
                    .map(|one| [one.shard.to_string(), one.key.clone(), one.other.clone()]),
            );
            let rows = counted(usize::try_from(built.rows).unwrap_or(usize::MAX), "row");
            output.note(match built.complete {
                true => format!("{name} is complete: {rows} read"),
                false => format!("{name} is not complete: {rows} read, keys share values"),
            });
        }
    }
    Ok(exit)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Swept {
    /// How many claims of each look-up were deleted.
    swept: BTreeMap<String, u64>,
}

/// Deletes the claims that were spent more than a day ago.
pub(crate) async fn sweep(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let router = context::router(&config, map, "pgshard lookups");
    let mut swept = BTreeMap::new();
    for name in config.lookups.keys() {
        swept.insert(name.clone(), router.lookup(name)?.sweep().await?);
    }
    match output.format() {
        Format::Json => output.object(Swept { swept }),
        Format::Text => {
            for (name, claims) in &swept {
                let claims = counted(usize::try_from(*claims).unwrap_or(usize::MAX), "claim");
                output.note(format!("{name}: {claims} deleted"));
            }
        }
    }
    Ok(Exit::Done)
}
