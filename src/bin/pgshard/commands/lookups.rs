//! `pgshard lookups`: values that belong to one key over all shards.

use std::collections::BTreeMap;
use std::path::Path;

use pgshard::lookups::{Definition, Lookup, ShardState, State, Step, migration as migration_of};
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
    step: Step,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let definition = defined(&config.lookups, name)?;
    let migration = migration_of(definition, step);
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
    /// In how many of them the trigger is there and enabled.
    guarded: usize,
    /// In how many every row has its entry, or is recorded.
    covered: usize,
    /// How far it is: `recording` (a row that is not claimed is recorded), `enforcing` (it is
    /// refused) or `complete` (and `find` answers). The least of its shards; `null` if one has no
    /// trigger, or could not be read.
    state: Option<&'static str>,
    /// `find` answers for every value.
    complete: bool,
    /// How many rows are recorded that have no entry yet.
    recorded: u64,
    /// The applications that have written them.
    writers: Vec<Writer>,
    /// Why the shards could not be read; `null` if they could.
    problem: Option<String>,
}

#[derive(JsonSchema, Serialize)]
struct Writer {
    /// Its `application_name`.
    application: String,
    role: String,
    /// How many rows it has written since the last build.
    rows: u64,
    /// When it wrote the last one, by its host's clock.
    last_at: String,
}

impl LookupStatus {
    async fn read(lookup: Lookup<'_>, definition: &Definition, shards: usize) -> LookupStatus {
        let read = async {
            let states = lookup.states().await?;
            let writers = lookup.writers().await?;
            Ok::<_, pgshard::router::Error>((states, writers))
        };
        let (states, writers, problem) = match read.await {
            Ok((states, writers)) => (states, writers, None),
            Err(error) => (BTreeMap::new(), Vec::new(), Some(error.to_string())),
        };
        let count =
            |holds: fn(&ShardState) -> bool| states.values().filter(|state| holds(state)).count();
        let guarded = count(|state| state.state.is_some());
        let least = states.values().filter_map(|state| state.state).min();
        let state = least.filter(|_| guarded == shards);
        LookupStatus {
            definition: definition.to_text(),
            shards,
            guarded,
            covered: count(|state| state.covered),
            state: state.map(State::as_str),
            complete: state == Some(State::Complete),
            recorded: states.values().map(|state| state.recorded).sum(),
            writers: writers.into_iter().map(Writer::from).collect(),
            problem,
        }
    }
}

impl From<pgshard::lookups::Writer> for Writer {
    fn from(writer: pgshard::lookups::Writer) -> Writer {
        Writer {
            application: writer.application,
            role: writer.role,
            rows: writer.rows,
            last_at: writer.last.to_string(),
        }
    }
}

/// Shows all look-ups of the config.
pub(crate) async fn status(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "lookups status")?;
    let map = context::map(&config).await?;
    let shards = usize::from(map.shards().get());
    let router = context::router(&config, map, "pgshard lookups");
    let mut lookups = BTreeMap::new();
    for (name, definition) in &config.lookups {
        let status = LookupStatus::read(router.lookup(name)?, definition, shards).await;
        lookups.insert(name.clone(), status);
    }
    let all = lookups.values().all(|lookup| lookup.complete);
    match output.format() {
        Format::Json => output.object(Status { lookups }),
        Format::Text => show_status(&lookups, output),
    }
    Ok(if all { Exit::Done } else { Exit::Failed })
}

fn show_status(lookups: &BTreeMap<String, LookupStatus>, output: &Output) {
    output.table(
        &[
            ("look-up", Align::Left),
            ("over", Align::Left),
            ("guarded", Align::Right),
            ("covered", Align::Right),
            ("recorded", Align::Right),
            ("state", Align::Left),
        ],
        lookups.iter().map(|(name, lookup)| {
            let out_of = |count: usize| format!("{count} of {}", lookup.shards);
            let state = match (&lookup.problem, lookup.state) {
                (Some(problem), _) => problem.clone(),
                (None, state) => state.unwrap_or("no trigger").to_owned(),
            };
            [
                name.clone(),
                lookup.definition.clone(),
                out_of(lookup.guarded),
                out_of(lookup.covered),
                lookup.recorded.to_string(),
                state,
            ]
        }),
    );
    for (name, lookup) in lookups {
        for writer in &lookup.writers {
            let rows = counted(usize::try_from(writer.rows).unwrap_or(usize::MAX), "row");
            let application = match writer.application.as_str() {
                "" => "an application without a name",
                named => named,
            };
            output.note(format!(
                "{name}: {rows} written without a claim by {application} as {}, last at {}",
                writer.role, writer.last_at
            ));
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Built<'a> {
    lookup: &'a str,
    /// How many rows were read.
    rows: u64,
    /// How many recorded rows were read.
    recorded: u64,
    /// Keys that have one value, 1000 at most.
    duplicates: Vec<Duplicate>,
    /// How far the look-up is now: `recording`, `enforcing` or `complete`.
    state: &'static str,
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

impl From<pgshard::lookups::Duplicate> for Duplicate {
    fn from(one: pgshard::lookups::Duplicate) -> Duplicate {
        Duplicate {
            shard: one.shard.get(),
            key: one.key,
            other: one.other,
        }
    }
}

fn show_duplicates(duplicates: &[Duplicate], output: &Output) {
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
}

/// Makes a look-up complete.
pub(crate) async fn build(
    name: &str,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "lookups build")?;
    defined(&config.lookups, name)?;
    let map = context::map(&config).await?;
    let bar = output.progress("build".to_owned(), "shards", u64::from(map.shards().get()));
    let router = context::router(&config, map, "pgshard lookups");
    let built = router.lookup(name)?.build(|_| bar.inc(1)).await;
    bar.finish_and_clear();
    let built = built?;
    let duplicates: Vec<Duplicate> = built.duplicates.into_iter().map(Duplicate::from).collect();
    let is_complete = built.state == State::Complete;
    // While it is recording, it can come no further by this command.
    let is_done = duplicates.is_empty() && built.state != State::Enforcing;
    match output.format() {
        Format::Json => output.object(Built {
            lookup: name,
            rows: built.rows,
            recorded: built.recorded,
            duplicates,
            state: built.state.as_str(),
            complete: is_complete,
        }),
        Format::Text => {
            show_duplicates(&duplicates, output);
            let rows = built.rows.saturating_add(built.recorded);
            let rows = counted(usize::try_from(rows).unwrap_or(usize::MAX), "row");
            output.note(match built.state {
                State::Complete => format!("{name} is complete: {rows} read"),
                _ if !duplicates.is_empty() => {
                    format!("{name} is not complete: {rows} read, keys share values")
                }
                State::Recording => format!(
                    "{name} is recording: {rows} read, no key shares a value; `find` answers after \
                     `pgshard lookups migration {name} --step enforce`, `pgshard migrate up` and \
                     another build"
                ),
                _ => format!("{name} is not complete: {rows} read; build again"),
            });
        }
    }
    Ok(if is_done { Exit::Done } else { Exit::Failed })
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Compared<'a> {
    lookup: &'a str,
    /// How many rows were compared with their entries.
    rows: u64,
    /// How many of them had none; `lookups repair` has put these back.
    missing: u64,
    /// The first 1000 of them.
    missing_listed: Vec<Missing>,
    /// Keys that have one value, 1000 at most.
    duplicates: Vec<Duplicate>,
}

#[derive(JsonSchema, Serialize)]
struct Missing {
    /// The shard of the row.
    shard: u16,
    /// The key of the row, as text.
    key: String,
    /// The shard that should have the entry.
    value_shard: u16,
}

/// Compares every row with its entry.
pub(crate) async fn check(
    name: &str,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "lookups check")?;
    defined(&config.lookups, name)?;
    let map = context::map(&config).await?;
    let bar = output.progress("check".to_owned(), "shards", u64::from(map.shards().get()));
    let router = context::router(&config, map, "pgshard lookups");
    let compared = router.lookup(name)?.check(|_| bar.inc(1)).await;
    bar.finish_and_clear();
    let compared = compared?;
    let is_right = compared.missing == 0 && compared.duplicates.is_empty();
    show_compared(name, "without an entry", compared, output);
    Ok(if is_right { Exit::Done } else { Exit::Failed })
}

/// The same, and puts back missing entries.
pub(crate) async fn repair(
    name: &str,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "lookups repair")?;
    defined(&config.lookups, name)?;
    let map = context::map(&config).await?;
    let bar = output.progress("repair".to_owned(), "shards", u64::from(map.shards().get()));
    let router = context::router(&config, map, "pgshard lookups");
    let compared = router.lookup(name)?.repair(|_| bar.inc(1)).await;
    bar.finish_and_clear();
    let compared = compared?;
    let is_right = compared.duplicates.is_empty();
    show_compared(name, "got their entry again", compared, output);
    Ok(if is_right { Exit::Done } else { Exit::Failed })
}

fn show_compared(name: &str, what: &str, compared: pgshard::lookups::Compared, output: &Output) {
    let duplicates: Vec<Duplicate> = compared
        .duplicates
        .into_iter()
        .map(Duplicate::from)
        .collect();
    let missing = compared.missing_listed.into_iter();
    let missing: Vec<Missing> = missing
        .map(|one| Missing {
            shard: one.shard.get(),
            key: one.key,
            value_shard: one.value_shard.get(),
        })
        .collect();
    match output.format() {
        Format::Json => output.object(Compared {
            lookup: name,
            rows: compared.rows,
            missing: compared.missing,
            missing_listed: missing,
            duplicates,
        }),
        Format::Text => {
            output.table(
                &[
                    ("shard", Align::Right),
                    ("key", Align::Left),
                    ("entry in shard", Align::Right),
                ],
                missing.iter().map(|one| {
                    let value_shard = one.value_shard.to_string();
                    [one.shard.to_string(), one.key.clone(), value_shard]
                }),
            );
            show_duplicates(&duplicates, output);
            output.note(format!(
                "{name}: {} rows compared, {} {what}, {} share a value",
                compared.rows,
                compared.missing,
                duplicates.len()
            ));
        }
    }
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Suspended<'a> {
    lookup: &'a str,
}

/// Makes `find` refuse.
pub(crate) async fn suspend(
    name: &str,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "lookups suspend")?;
    defined(&config.lookups, name)?;
    let map = context::map(&config).await?;
    let router = context::router(&config, map, "pgshard lookups");
    router.lookup(name)?.suspend().await?;
    match output.format() {
        Format::Json => output.object(Suspended { lookup: name }),
        Format::Text => output.note(format!(
            "{name} is suspended: `find` is refused; rows that are not claimed are, too, until the \
             migration of `pgshard lookups migration {name} --step record` has run"
        )),
    }
    Ok(Exit::Done)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Swept {
    /// How many claims of each look-up were deleted.
    swept: BTreeMap<String, u64>,
}

/// Deletes the claims that were spent more than a day ago.
pub(crate) async fn sweep(config: Option<&Path>, output: &Output) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "lookups sweep")?;
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
