//! `pgshard map history` and `map diff --from`: the versions that the map had.

use std::path::Path;

use pgshard::config::{Config, ConfigStore};
use pgshard::map::{MapVersion, ShardMap};
use pgshard::store::PostgresStore;
use pgshard::store::postgres::Publication;
use schemars::JsonSchema;
use serde::Serialize;

use super::map::{grouped, place, print_changes};
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct History {
    pub(super) versions: Vec<Version>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Version {
    pub(super) version: u64,
    pub(super) published_at: String,
    pub(super) role: String,
    pub(super) publisher: String,
    pub(super) reason: String,
    /// How many shards it placed elsewhere; `None` where the version before is not kept.
    pub(super) changed: Option<usize>,
    /// The same in words.
    pub(super) changes: Option<String>,
}

/// The newest versions.
pub(crate) async fn history(
    count: usize,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let store = postgres(&config)?;
    // One more, to compare the oldest with.
    let found = store.history(count.saturating_add(1)).await?;
    let versions = versions(&found, count);
    match output.format() {
        Format::Json => output.object(History { versions }),
        Format::Text => {
            let columns = [
                ("version", Align::Right),
                ("published", Align::Left),
                ("role", Align::Left),
                ("by", Align::Left),
                ("why", Align::Left),
                ("what", Align::Left),
            ];
            let row = |one: Version| {
                let what = one
                    .changes
                    .unwrap_or_else(|| "the oldest that is kept".to_owned());
                let at = one
                    .published_at
                    .split('.')
                    .next()
                    .unwrap_or_default()
                    .trim_end_matches('Z')
                    .to_owned()
                    + "Z";
                [
                    one.version.to_string(),
                    at,
                    one.role,
                    one.publisher,
                    one.reason,
                    what,
                ]
            };
            output.table(&columns, versions.into_iter().map(row));
        }
    }
    Ok(Exit::Done)
}

/// The newest versions, and what each changed.
pub(super) fn versions(found: &[Publication], count: usize) -> Vec<Version> {
    let version = |at: usize| {
        let publication = &found[at];
        let changes = found
            .get(at + 1)
            .map(|before| before.map.diff(&publication.map));
        let words = changes.as_ref().map(|changes| {
            let one = |(change, shards)| -> String { words_of(change, shards) };
            let groups: Vec<String> = grouped(changes).into_iter().map(one).collect();
            match groups.len() {
                0 => "no shard elsewhere".to_owned(),
                1..=GROUPS_MAX => groups.join("; "),
                more => format!(
                    "{}; … {} more",
                    groups[..GROUPS_MAX].join("; "),
                    more - GROUPS_MAX
                ),
            }
        });
        Version {
            version: publication.map.version().get(),
            published_at: publication.published_at.to_string(),
            role: publication.role.clone(),
            publisher: publication.publisher.clone(),
            reason: publication.reason.clone(),
            changed: changes.map(|changes| changes.len()),
            changes: words,
        }
    };
    (0..found.len().min(count)).map(version).collect()
}

/// How many groups of changes a line of the history has; `map diff --from` has all.
const GROUPS_MAX: usize = 3;

fn words_of(change: &pgshard::map::Change, shards: String) -> String {
    format!("{shards}: {} -> {}", place(&change.from), place(&change.to))
}

/// What is different between two versions. Without `to`, the second is the map as it is.
pub(crate) async fn diff(
    from: u64,
    to: Option<u64>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let store = postgres(&config)?;
    let older = version(&store, from).await?;
    let newer = match to {
        Some(to) => version(&store, to).await?,
        None => context::map(&config).await?,
    };
    print_changes(&older, &newer, output);
    Ok(Exit::Done)
}

async fn version(store: &PostgresStore, version: u64) -> Result<ShardMap, Failure> {
    store
        .version(MapVersion::new(version))
        .await?
        .ok_or_else(|| {
            let error = format!("the history has no version {version} of the map");
            Failure::new(Exit::Failed, error).hint("`pgshard map history` shows those that it has")
        })
}

/// The store, if it is one that keeps a history.
fn postgres(config: &Config) -> Result<PostgresStore, Failure> {
    match context::store(config) {
        ConfigStore::Postgres(store) => Ok(store),
        ConfigStore::File(store) => {
            let path = store.path().display();
            Err(Failure::usage(format!(
                "the map is kept in {path}, which has no earlier versions \
                of it"
            ))
            .hint(
                "keep the file under version control, or the map in PostgreSQL: [map] store \
                    = \"postgres\"",
            ))
        }
    }
}
