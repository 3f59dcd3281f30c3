//! `pgshard map`: the shard map, shown, compared and rebuilt.

mod cells;
mod svg;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pgshard::ShardId;
use pgshard::config::{Config, ConfigStore};
use pgshard::map::{self, Change, HostName, Placement, ShardMap, print_shards};
use pgshard::schema;
use pgshard::store::whole::{self, Overwrite};
use pgshard::store::{MapStore, PublishError, StoreError, publish_merged};
use schemars::JsonSchema;
use serde::Serialize;

pub(super) use self::cells::Level;
use self::cells::Picture;
use super::findings::Doubts;
use super::measure::weigh;
use crate::args::MapShow;
use crate::confirm::{Consent, confirm};
use crate::context::{self, FoundMap, Instead, LostMap};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted};

#[derive(JsonSchema, Serialize)]
pub(crate) struct MapReport {
    version: u64,
    shards: u16,
    hosts: BTreeMap<String, HostShown>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct HostShown {
    ranges: String,
    count: usize,
}

impl MapReport {
    /// The map, with the config's hosts that have no shards, and the map's hosts that the config
    /// does not name.
    pub(super) fn of(config: &Config, map: &ShardMap) -> MapReport {
        let host = |name: &HostName| {
            (
                name.to_string(),
                HostShown {
                    ranges: map.ranges(name),
                    count: map.shards_on(name).count(),
                },
            )
        };
        let hosts = config.hosts.keys().chain(map.hosts()).map(host).collect();
        MapReport {
            version: map.version().get(),
            shards: map.shards().get(),
            hosts,
        }
    }
}

/// Which host serves which shards, as a list and drawn. Hosts without any are shown too.
pub(crate) async fn show(
    args: MapShow,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let shown = MapReport::of(&config, &map);
    let weighed = match &args.by {
        None => None,
        Some(by) => Some((
            by,
            weigh(&config, by, Duration::from_secs(args.sample_s), output).await?,
        )),
    };
    if let Some((by, weighed)) = &weighed
        && weighed.values().all(|one| one.weight == 0)
    {
        output.note(format_args!(
            "no shard has any weight by {}: the drawing has nothing to show",
            by.name()
        ));
    }
    let picture = Picture::of(
        &config,
        &map,
        weighed.as_ref().map(|(by, weighed)| (*by, weighed)),
    );
    match output.format() {
        Format::Json => output.object(shown),
        Format::Text => {
            output.data(format_args!(
                "map version {}, {} shards\n",
                shown.version, shown.shards
            ));
            let rows = shown
                .hosts
                .iter()
                .map(|(name, host)| [name.clone(), host.count.to_string(), host.ranges.clone()]);
            output.table(
                &[
                    ("host", Align::Left),
                    ("count", Align::Right),
                    ("shards", Align::Left),
                ],
                rows,
            );
            output.drawing(format_args!(
                "\n{}",
                picture.text(output.columns(), output.data_is_coloured())
            ));
        }
    }
    if let Some(file) = args.svg {
        whole::write(&file, &svg::draw(&picture), Overwrite::Allowed).map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("cannot write {}: {error}", file.display()),
            )
        })?;
        output.note(format_args!("wrote {}", file.display()));
    }
    Ok(Exit::Done)
}

/// The differences between the map and that of another config, which counts as the newer; or,
/// without another config, between the map and the state of the hosts.
pub(crate) async fn diff(
    other: Option<&Path>,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let map = context::map(&config).await?;
    let Some(other) = other else {
        let rebuilt = rebuilt(&config, &map, output).await?;
        print_changes(&map, &rebuilt, output);
        return Ok(Exit::Done);
    };
    let newer = context::map(&context::config(Some(other))?).await?;
    if map.shards() != newer.shards() {
        let error = format!(
            "the map has {} shards, that of {} {}",
            map.shards(),
            other.display(),
            newer.shards()
        );
        return Err(Failure::usage(error).hint("they are not maps of one cluster"));
    }
    print_changes(&map, &newer, output);
    Ok(Exit::Done)
}

/// Publishes the map as the hosts have it, after showing what changes and asking.
pub(crate) async fn rebuild(
    consent: Consent,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let FoundMap { map, lost } = context::map_or_last(&config, output).await?;
    if let Some(lost) = &lost {
        output.warning(&lost.error);
        output.note(match lost.instead {
            Instead::History => format!(
                "this is version {} of the history, with what the hosts say",
                map.version()
            ),
            Instead::Hosts => format!("this is what the hosts say: {}", counted_by_host(&map)),
        });
    }
    let rebuilt = rebuilt(&config, &map, output).await?;
    print_changes(&map, &rebuilt, output);
    if lost.is_none() && rebuilt.version() == map.version() {
        return Ok(Exit::Done);
    }
    let question = match &lost {
        Some(LostMap {
            instead: Instead::History,
            ..
        }) => "replace the damaged map by this?".to_owned(),
        Some(LostMap {
            instead: Instead::Hosts,
            ..
        }) => "keep this as the map?".to_owned(),
        None => format!("publish this as map version {}?", rebuilt.version()),
    };
    if !confirm(&question, consent, output).await? {
        return Err(Failure::new(Exit::Failed, "the map stays as it is"));
    }
    if let (Some(lost), ConfigStore::Postgres(store)) = (&lost, context::store(&config)) {
        if matches!(lost.error, StoreError::NotInstalled { .. }) {
            store.install(&rebuilt).await?;
        }
        let mended = store.mend(&rebuilt).await?;
        output.note(format_args!("published map version {}", mended.version()));
        catch_up(&config, output).await?;
        return Ok(Exit::Done);
    }
    context::store(&config)
        .publish(map.version(), &rebuilt)
        .await
        .map_err(|error| match error {
            PublishError::Conflict { .. } => {
                Failure::from(error).hint("run it again: another command has published meanwhile")
            }
            error => error.into(),
        })?;
    output.note(format_args!("published map version {}", rebuilt.version()));
    catch_up(&config, output).await?;
    Ok(Exit::Done)
}

/// Publishes where shards have gone since the look that a rebuilt map was made from. Their mover
/// does not do it if it has died, or if it found the map that could not be read. One that comes
/// later finds the rebuilt map.
async fn catch_up(config: &Config, output: &Output) -> Result<(), Failure> {
    let store = context::store(config);
    let kept = store.load().await?;
    let changes = schema::rebuild_map(&kept, &context::survey(config, output).await).changes;
    let gone = changes
        .into_iter()
        .filter(|change| change.to.epoch > change.from.epoch);
    let gone: map::Changes = gone.map(|change| (change.shard, change.to)).collect();
    if !gone.is_empty() {
        let shards = print_shards(gone.iter().map(|(shard, _)| shard));
        let published = publish_merged(&store, &gone).await?;
        let version = published.version();
        output.note(format_args!(
            "published map version {version}: shards {shards} have moved meanwhile"
        ));
    }
    Ok(())
}

/// `db1 16 shards, db2 32 shards`.
fn counted_by_host(map: &ShardMap) -> String {
    let host =
        |host: &HostName| format!("{host} {}", counted(map.shards_on(host).count(), "shard"));
    map.hosts().iter().map(host).collect::<Vec<_>>().join(", ")
}

/// The map by the state of the hosts. What cannot be learned from them is reported; it is an error
/// if no host can be read.
async fn rebuilt(config: &Config, map: &ShardMap, output: &Output) -> Result<ShardMap, Failure> {
    let mut doubts = Doubts::default();
    let (survey, rebuilt) = loop {
        let survey = context::survey(config, output).await;
        let rebuilt = schema::rebuild_map(map, &survey);
        if !doubts.remain(&rebuilt.notes) {
            break (survey, rebuilt);
        }
        tokio::time::sleep(schema::BETWEEN_LOOKS).await;
    };
    for note in &doubts.judge(rebuilt.notes).0 {
        let host = note
            .host
            .as_ref()
            .map(|host| format!("{host}: "))
            .unwrap_or_default();
        output.warning(format_args!("{host}{}", note.message));
    }
    context::of_this_cluster(config, &survey)?;
    if survey.values().all(Result::is_err) {
        return Err(Failure::new(
            Exit::Failed,
            "no host can be asked, so nothing is known of where the shards are",
        ));
    }
    Ok(rebuilt.map)
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Changes {
    from_version: u64,
    to_version: u64,
    changes: Vec<OneChange>,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct OneChange {
    #[schemars(with = "u16")]
    shard: ShardId,
    from: Place,
    to: Place,
}

#[derive(JsonSchema, Serialize)]
pub(crate) struct Place {
    host: String,
    epoch: u32,
}

impl Place {
    fn of(placement: &Placement) -> Place {
        Place {
            host: placement.host.to_string(),
            epoch: placement.epoch.get(),
        }
    }
}

/// What is different in the newer map.
pub(super) fn print_changes(map: &ShardMap, newer: &ShardMap, output: &Output) {
    let changes = map.diff(newer);
    if changes.is_empty() {
        output.note("there is no difference");
    }
    match output.format() {
        Format::Json => {
            let one = |change: &Change| OneChange {
                shard: change.shard,
                from: Place::of(&change.from),
                to: Place::of(&change.to),
            };
            let (from_version, to_version) = (map.version().get(), newer.version().get());
            output.object(Changes {
                from_version,
                to_version,
                changes: changes.iter().map(one).collect(),
            });
        }
        Format::Text => {
            let rows = grouped(&changes)
                .into_iter()
                .map(|(change, shards)| [shards, place(&change.from), place(&change.to)]);
            output.table(
                &[
                    ("shards", Align::Left),
                    ("from", Align::Left),
                    ("to", Align::Left),
                ],
                rows,
            );
        }
    }
}

/// Shards that go the same way, together.
pub(super) fn grouped(changes: &[Change]) -> Vec<(&Change, String)> {
    let mut groups: Vec<(&Change, Vec<ShardId>)> = Vec::new();
    for change in changes {
        match groups
            .iter_mut()
            .find(|(known, _)| (&known.from, &known.to) == (&change.from, &change.to))
        {
            Some((_, shards)) => shards.push(change.shard),
            None => groups.push((change, vec![change.shard])),
        }
    }
    groups
        .into_iter()
        .map(|(change, shards)| (change, print_shards(shards)))
        .collect()
}

/// `db2 @3`
pub(super) fn place(placement: &Placement) -> String {
    format!("{} @{}", placement.host, placement.epoch)
}
