//! `pgshard migrate wait`: until a migration has run in every shard.

use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::ProgressBar;
use pgshard::map::print_shards;
use pgshard::router::{Migrated, Router};
use pgshard::schema::{Migration, Migrations};
use schemars::JsonSchema;
use serde::Serialize;

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct WaitReport {
    done: bool,
    migrations: Vec<MigrationProgress>,
}

/// How far a migration is.
#[derive(JsonSchema, Serialize)]
pub(crate) struct MigrationProgress {
    name: String,
    done: bool,
    /// In how many shards it has run.
    applied: usize,
    /// The shards that lack it, as ranges.
    pending: String,
    /// The shards that no host says it serves, as ranges.
    unserved: String,
    silent_hosts: Vec<String>,
}

/// Waits for one migration, or for all that are in the folder.
pub(crate) async fn wait(
    name: Option<&str>,
    within: Duration,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate wait")?;
    let migrations = context::migrations(&config)?;
    let wanted = names_to_wait_for(name, config.cluster.migrations.is_some(), &migrations)?;
    let router = context::router(
        &config,
        context::map(&config).await?,
        "pgshard migrate wait",
    );
    let begun = Instant::now();
    let until = begun + within;
    let (mut shown, mut late) = (Vec::new(), None);
    for (name, file) in &wanted {
        let count = usize::from(config.cluster.shards.get());
        let one =
            async |bar: &ProgressBar| wait_for(name, *file, until, &router, bar, output).await;
        let how_far = output.counting(name, "shards", count, one).await?;
        shown.push(MigrationProgress {
            name: how_far.name.clone(),
            done: how_far.is_everywhere(),
            applied: how_far.having.len(),
            pending: print_shards(how_far.lacking.iter().copied()),
            unserved: if how_far.hosts.is_empty() {
                print_shards(how_far.unserved())
            } else {
                String::new()
            },
            silent_hosts: how_far.silent.keys().map(ToString::to_string).collect(),
        });
        if !how_far.is_everywhere() {
            late = Some(how_far);
            break;
        }
    }
    let done = late.is_none();
    match output.format() {
        Format::Json => output.object(WaitReport {
            done,
            migrations: shown,
        }),
        Format::Text if done => {
            for one in &shown {
                output.data(format_args!("{} has run everywhere", one.name));
            }
        }
        Format::Text => {}
    }
    let Some(how_far) = late else {
        return Ok(Exit::Done);
    };
    let words = format!("after {} s {how_far}", begun.elapsed().as_secs());
    output.error_with_remedy(
        words,
        "`pgshard migrate up` runs it; `pgshard migrate status` and `pgshard check` say more",
    );
    Ok(Exit::Partly)
}

/// Waits for one migration, until it has run everywhere or it is too late. The bar counts the
/// shards that have it.
async fn wait_for(
    name: &str,
    file: Option<&Migration>,
    until: Instant,
    router: &Router,
    bar: &ProgressBar,
    output: &Output,
) -> Result<Migrated, Failure> {
    let within = until.saturating_duration_since(Instant::now());
    let mut shown = String::new();
    let seen = |how_far: &Migrated| {
        refuse_if_changed(how_far, file)?;
        bar.set_position(how_far.having.len() as u64);
        let text = how_far.to_string();
        if !how_far.is_everywhere() && Instant::now() < until && text != shown {
            output.note(&text);
            shown = text;
        }
        Ok(())
    };
    router.watch_migration(name, within, seen).await
}

/// The names to wait for, each with its file, where there is one.
fn names_to_wait_for<'a>(
    name: Option<&'a str>,
    has_folder: bool,
    migrations: &'a Migrations,
) -> Result<Vec<(&'a str, Option<&'a Migration>)>, Failure> {
    let files = || migrations.of_hosts().chain(migrations.iter());
    let Some(name) = name.map(|name| name.strip_suffix(".sql").unwrap_or(name)) else {
        let all: Vec<_> = files().map(|file| (file.name(), Some(file))).collect();
        return match all.is_empty() {
            true => Err(Failure::usage("there are no migrations to wait for")
                .hint("name one: --for 0007_captions")),
            false => Ok(all),
        };
    };
    match files().find(|file| file.name() == name) {
        None if has_folder => {
            let last = files().map(Migration::name).max().unwrap_or("none");
            Err(
                Failure::usage(format!("there is no migration {name} in the folder"))
                    .hint(format!("the last is {last}")),
            )
        }
        file => Ok(vec![(name, file)]),
    }
}

/// Ends the waiting for what can never come: shards have run another text than the file's.
fn refuse_if_changed(how_far: &Migrated, file: Option<&Migration>) -> Result<(), Failure> {
    let Some(file) = file else { return Ok(()) };
    if how_far
        .checksums
        .iter()
        .all(|checksum| checksum == file.checksum())
    {
        return Ok(());
    }
    let words = format!("{} was changed after it was run", file.name());
    Err(Failure::new(Exit::Refused, words).hint(
        "see `pgshard migrate status`; put the file back as it was, or take the right checkout",
    ))
}
