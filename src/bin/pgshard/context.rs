//! What commands take from the config.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use indicatif::ProgressBar;
use pgshard::config::{Config, ConfigError, ConfigStore, HostConfig};
use pgshard::id::Epoch;
use pgshard::map::{HostName, RangesError, ShardMap, parse_shards, print_shards};
use pgshard::mover::{Mover, Observer, Options as MoveOptions};
use pgshard::pg::cause::chain;
use pgshard::pg::{ConnectOptions, OptionsError, Password};
use pgshard::router::{HostOptions, Options, Router};
use pgshard::schema::Refusal;
use pgshard::schema::{
    self, Cluster, Identities, Migrations, MigrationsError, Severity, Survey, UnshardedHost,
};
use pgshard::store::{MapStore, StoreError};
use pgshard::{Layout, ShardCount, ShardId};

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;
use crate::trust;

/// The config that `--config` names, else the one that is found.
///
/// # Errors
/// With [`Exit::Usage`] and all of its mistakes at once; or if it was found, and another user may
/// have written it.
pub(crate) fn config(flag: Option<&Path>) -> Result<Config, Failure> {
    let path = Config::find(flag);
    trust::found(&path, flag)?;
    let mut config = Config::load(path).map_err(|error| match error {
        ConfigError::Invalid { diagnostics, .. } => {
            Failure::several(Exit::Usage, diagnostics.iter().map(ToString::to_string))
        }
        error => Failure::usage(error),
    })?;
    // A command queries a host several times, one after the other: whether it is the right server,
    // what it has, what it knows of moves.
    for host in config.hosts.values_mut() {
        host.connect = host.connect.clone().briefly_after_silence();
    }
    Ok(config)
}

/// Reads the URL of a host from the command line, where passwords are not allowed.
///
/// # Errors
/// With [`Exit::Usage`] if it cannot be read, or contains a password; `places` lists where
/// passwords may be.
pub(crate) fn open_url(url: &str, places: &str) -> Result<ConnectOptions, Failure> {
    let connect = ConnectOptions::parse(url).map_err(|error| {
        // The parser's message could quote a part of a password.
        let what = match error {
            OptionsError::Missing { key } => format!("the url names no {key}"),
            _ => "the url cannot be read".to_owned(),
        };
        Failure::usage(what).hint(
            "write postgres://user@address:5432/database or 'host=address dbname=database \
                user=user'",
        )
    })?;
    if matches!(connect.password(), Password::Given(_)) {
        return Err(Failure::usage(
            "the url holds a password, which other users of this machine can read now",
        )
        .hint(format!(
            "change that password, then name where it is: {places}"
        )));
    }
    Ok(connect)
}

/// A mover for the config's hosts and map.
pub(crate) fn mover(config: &Config, options: MoveOptions, observer: Observer) -> Mover {
    let hosts = config
        .hosts
        .values()
        .map(|host| (host.name.clone(), host.connect.clone()));
    let hosts = pgshard::mover::Hosts::new(hosts);
    Mover::new(
        hosts,
        cluster(config),
        Arc::new(store(config)),
        options,
        observer,
    )
}

/// Shards such as `17` or `0-255,300`.
///
/// # Errors
/// With [`Exit::Usage`] and every mistake.
pub(crate) fn shards(text: &str, count: ShardCount) -> Result<Vec<ShardId>, Failure> {
    let wrong =
        |error: &RangesError| format!("in {text:?} at character {}: {error}", error.at.start + 1);
    let list = parse_shards(text, count)
        .map_err(|errors| Failure::several(Exit::Usage, errors.iter().map(wrong)))?;
    if list.is_empty() {
        return Err(Failure::usage("no shards were named").hint("name them like 17 or 0-255,300"));
    }
    Ok(list)
}

/// The map as it is kept now; while its database is away, the copy on disk.
///
/// # Errors
/// With [`Exit::Usage`] where it is wrong, as with the config.
pub(crate) async fn map(config: &Config) -> Result<ShardMap, Failure> {
    let map = config.map_store().load_or_copy().await;
    let map = map.map_err(|error| match error {
        StoreError::Text { diagnostics } => {
            Failure::several(Exit::Usage, diagnostics.iter().map(ToString::to_string))
        }
        error => error.into(),
    })?;
    whole(config, &map)?;
    Ok(map)
}

/// Checks that a map gives the unsharded host all shards or none.
///
/// # Errors
/// With [`Exit::Usage`] if not.
pub(crate) fn whole(config: &Config, map: &ShardMap) -> Result<(), Failure> {
    config.check_map(map).map_err(|error| {
        Failure::usage(error).hint("`pgshard map rebuild` makes the map of what the hosts serve")
    })
}

/// A map, and where it is from if the one that is kept cannot be used.
pub(crate) struct FoundMap {
    pub(crate) map: ShardMap,
    pub(crate) lost: Option<LostMap>,
}

/// What is wrong with the stored map, and what replaces it.
pub(crate) struct LostMap {
    pub(crate) error: StoreError,
    pub(crate) instead: Instead,
}

/// The replacement of a map that is damaged or missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instead {
    /// The newest one in the history that can be read.
    History,
    /// The state of the hosts: there is no history either.
    Hosts,
}

/// The stored map. If it is damaged or missing: the newest one in the history that can be read, or
/// else the state of the hosts, and what is wrong.
///
/// # Errors
/// As [`map`], and where neither the history has a map nor the hosts know all shards.
pub(crate) async fn map_or_last(config: &Config, output: &Output) -> Result<FoundMap, Failure> {
    let ConfigStore::Postgres(store) = config.map_store() else {
        return Ok(FoundMap {
            map: map(config).await?,
            lost: None,
        });
    };
    let (error, history) = match store.load().await {
        Err(error @ StoreError::NotInstalled { .. }) => (error, None),
        Err(error @ (StoreError::Damaged { .. } | StoreError::NoMap { .. })) => {
            (error, store.last_readable().await?)
        }
        _ => {
            return Ok(FoundMap {
                map: map(config).await?,
                lost: None,
            });
        }
    };
    if let Some(map) = history {
        return Ok(FoundMap {
            map,
            lost: Some(LostMap {
                error,
                instead: Instead::History,
            }),
        });
    }
    match schema::map_of_hosts(config.cluster.shards, &survey(config, output).await) {
        Ok(map) => Ok(FoundMap {
            map,
            lost: Some(LostMap {
                error,
                instead: Instead::Hosts,
            }),
        }),
        Err(unknown) => {
            let error = format!(
                "{}; and no host that answers knows where these shards are: {}",
                chain(&error),
                print_shards(unknown)
            );
            Err(Failure::new(Exit::Failed, error).hint(
                "have every host answer, and run it again; or take the map from a config that has \
                    it: `pgshard map import FILE`",
            ))
        }
    }
}

/// The store of the config's map. What it publishes is recorded with this command line as the
/// reason.
pub(crate) fn store(config: &Config) -> ConfigStore {
    let words = std::env::args_os()
        .skip(1)
        .map(|word| open_word(&word.to_string_lossy()));
    let line: Vec<String> = std::iter::once("pgshard".to_owned()).chain(words).collect();
    config.map_store().with_reason(&line.join(" "))
}

/// A word of the command line, for a table that others can read: a connection string, which may
/// contain a password, and a statement are left out.
fn open_word(word: &str) -> String {
    let is_open = |c: char| c.is_ascii_alphanumeric() || "-_.,/+@%:".contains(c);
    let assigned = word
        .split_once('=')
        .filter(|(name, _)| name.starts_with("--"));
    match assigned {
        Some((name, value)) => format!("{name}={}", open_word(value)),
        None if word.contains("://") || !word.chars().all(is_open) => "…".to_owned(),
        None => word.to_owned(),
    }
}

/// The schema of a shard where the map has it, not quoted: on an unsharded host that of all shards.
pub(crate) fn schema_of(config: &Config, host: &HostName, shard: ShardId) -> String {
    let layout = config.hosts.get(host).map(|host| &host.layout);
    match layout.and_then(Layout::whole) {
        Some(schema) => schema.to_string(),
        None => config.cluster.prefix.schema(shard),
    }
}

/// Refuses a command that works in each shard, or moves some, if the config has an unsharded host.
///
/// # Errors
/// With [`Exit::Refused`] then.
pub(crate) fn sharded(config: &Config, command: &str) -> Result<(), Failure> {
    let Some((host, schema)) = config.unsharded() else {
        return Ok(());
    };
    let (host, error) = (
        &host.name,
        format!("`pgshard {command}` works shard by shard"),
    );
    Err(Failure::new(
        Exit::Refused,
        format!("{error}, and {host} is unsharded: all shards are in its schema {schema}"),
    )
    .hint(format!(
        "{host} has no single shards; docs/from-one-database.md has what such a host can do"
    )))
}

/// The facts of every host of the config, all read at the same time; each has its connection's
/// timeout to answer.
pub(crate) async fn survey(config: &Config, output: &Output) -> Survey {
    let answers = of_each(config, output, async |host| schema::survey([host]).await);
    answers.await.into_iter().flatten().collect()
}

/// The same with the hosts' clocks, and who answers at their addresses.
pub(crate) async fn survey_with_identities(
    config: &Config,
    output: &Output,
) -> (Survey, Identities) {
    // Side by side: a host that does not answer is waited for once.
    let answers = of_each(config, output, async |host: (HostName, ConnectOptions)| {
        let survey = schema::survey_with_clocks([host.clone()]);
        tokio::join!(survey, schema::identities([host]))
    });
    let (survey, identities): (Vec<Survey>, Vec<Identities>) = answers.await.into_iter().unzip();
    let survey = survey.into_iter().flatten().collect();
    (survey, identities.into_iter().collect())
}

/// Queries each host of the config, all at the same time.
async fn of_each<T>(
    config: &Config,
    output: &Output,
    ask: impl AsyncFn((HostName, ConnectOptions)) -> T,
) -> Vec<T> {
    let hosts = all_hosts(config);
    let all = async |bar: &ProgressBar| {
        let each = hosts.iter().map(async |host| {
            let answer = ask(host.clone()).await;
            bar.inc(1);
            answer
        });
        join_all(each).await
    };
    let limit = patience(config);
    output
        .counting_hosts("reading", hosts.len(), limit, all)
        .await
}

/// How long a host of the config may take to answer: each of its addresses has a limit.
pub(crate) fn patience(config: &Config) -> Duration {
    let of_host = |host: &HostConfig| {
        let addresses = u32::try_from(host.connect.addresses().len()).unwrap_or(u32::MAX);
        host.connect.answer_limit().saturating_mul(addresses)
    };
    let longest = config.hosts.values().map(of_host).max();
    longest.unwrap_or_default()
}

/// The hosts of the config by name.
pub(crate) fn all_hosts(config: &Config) -> Vec<(HostName, ConnectOptions)> {
    config
        .hosts
        .values()
        .map(|host| (host.name.clone(), host.connect.clone()))
        .collect()
}

/// Checks that the hosts are those of the config, for commands that would harm everyone else if it
/// had exchanged the names of two, or were of another cluster.
///
/// # Errors
/// With [`Exit::Refused`] and every difference.
pub(crate) fn of_this_cluster(config: &Config, survey: &Survey) -> Result<(), Failure> {
    let cluster = cluster(config);
    let controls = survey
        .iter()
        .filter_map(|(host, facts)| Some((host, facts.as_ref().ok()?.control.as_ref()?)));
    let refusals = controls.flat_map(|(host, control)| {
        let refusals = schema::differences(control, &cluster, host).into_iter();
        refusals
            .filter(Refusal::is_of_another_host)
            .map(move |refusal| (host, refusal))
    });
    let refusals: Vec<String> = refusals
        .map(|(host, refusal)| format!("{host}: {refusal}\n  remedy: {}", refusal.remedy()))
        .collect();
    if refusals.is_empty() {
        Ok(())
    } else {
        Err(Failure::several(Exit::Refused, refusals))
    }
}

/// Checks that every host is the server that belongs under its name, before anything is written.
/// All addresses are contacted, and all later connections of this process are checked against the
/// results.
///
/// # Errors
/// With [`Exit::Refused`] where two servers take the writes of a host, or one does that is not the
/// host.
pub(crate) async fn identities(config: &Config, output: &Output) -> Result<Identities, Failure> {
    let answers = of_each(config, output, async |host| {
        schema::identities([host]).await
    });
    let identities: Identities = answers.await.into_iter().collect();
    let alarms: Vec<String> = identities
        .findings()
        .into_iter()
        .filter(|finding| finding.severity == Severity::Alarm)
        .map(|finding| {
            let host = finding.host.as_ref().map_or("?", HostName::as_str);
            format!("{host}: {}\n  remedy: {}", finding.message, finding.remedy)
        })
        .collect();
    if !alarms.is_empty() {
        return Err(Failure::several(Exit::Refused, alarms));
    }
    identities.publish_to(all_hosts(config));
    Ok(identities)
}

/// Has the hosts record news about each other. A role that may not write it leaves that to another.
pub(crate) async fn record(identities: &Identities, config: &Config) {
    for error in identities.record(&all_hosts(config)).await {
        tracing::debug!(host = %error.host, error = chain(&error), "not recorded");
    }
}

/// A router over all hosts. No connection is opened yet.
pub(crate) fn router(config: &Config, map: ShardMap, application_name: &str) -> Router {
    let host = |host: &HostConfig| {
        HostOptions::new(host.name.clone(), host.connect.clone(), host.pool_size)
            .layout(host.layout.clone())
    };
    let options = Options::new(config.hosts.values().map(host).collect(), Arc::new(map))
        .prefix(config.cluster.prefix.clone())
        .key(config.cluster.key)
        .legacy_below(config.cluster.legacy_below)
        .lookups(config.lookups.values().cloned().collect())
        .application_name(application_name.to_owned());
    Router::new(options)
}

/// These shards by the host that the map has for them.
pub(crate) fn by_host(map: &ShardMap, shards: &[ShardId]) -> BTreeMap<HostName, Vec<ShardId>> {
    let mut by_host: BTreeMap<HostName, Vec<ShardId>> = BTreeMap::new();
    for shard in shards {
        if let Some(host) = map.host(*shard) {
            by_host.entry(host.clone()).or_default().push(*shard);
        }
    }
    by_host
}

/// What may never differ between the hosts.
pub(crate) fn cluster(config: &Config) -> Cluster {
    let cluster = &config.cluster;
    Cluster {
        shards: cluster.shards,
        epoch: cluster.epoch,
        schema_prefix: cluster.prefix.clone(),
        key: cluster.key,
        legacy_below: cluster.legacy_below,
        unsharded: config.unsharded().map(|(host, schema)| UnshardedHost {
            host: host.name.clone(),
            schema: schema.clone(),
        }),
    }
}

/// The application's shard migrations; none where the config names no folder.
///
/// # Errors
/// With [`Exit::Usage`] and every mistake in the folder.
pub(crate) fn migrations(config: &Config) -> Result<Migrations, Failure> {
    match &config.cluster.migrations {
        None => Ok(Migrations::none()),
        Some(folder) => Migrations::read(folder).map_err(|error| {
            let failure = Failure::several(Exit::Usage, mistakes(&error));
            if folder.is_dir() {
                failure
            } else {
                failure.hint(NO_FOLDER)
            }
        }),
    }
}

/// The same for callers that only compare which shards have which: the files without a mistake, and
/// every mistake.
pub(crate) fn usable_migrations(config: &Config) -> (Migrations, Option<MigrationsError>) {
    match &config.cluster.migrations {
        None => (Migrations::none(), None),
        Some(folder) => Migrations::read_lenient(folder),
    }
}

/// What is wrong with the folder, each mistake with the folder's name.
pub(crate) fn mistakes(error: &MigrationsError) -> Vec<String> {
    error
        .mistakes
        .iter()
        .map(|mistake| format!("{}: {mistake}", error.folder.display()))
        .collect()
}

const NO_FOLDER: &str = "correct `migrations` in [cluster]: a path that is not absolute starts at \
    the folder of the config; leave it out if you have none";

/// The hosts of these names.
///
/// # Errors
/// With [`Exit::Usage`] where the config has no such host.
pub(crate) fn hosts(config: &Config, names: &[String]) -> Result<BTreeSet<HostName>, Failure> {
    names.iter().map(|name| host(config, name)).collect()
}

/// The host of this name.
///
/// # Errors
/// With [`Exit::Usage`] where the config has no such host.
pub(crate) fn host(config: &Config, name: &str) -> Result<HostName, Failure> {
    if let Some((known, _)) = config.hosts.get_key_value(name) {
        return Ok(known.clone());
    }
    let alike = |known: &&HostName| strsim::osa_distance(known.as_str(), name);
    // db9 is no slip for db1: where only the number is another, another host was meant.
    let letters = |name: &str| {
        name.chars()
            .filter(|c| !c.is_ascii_digit())
            .collect::<String>()
    };
    let close = |known: &&HostName| alike(known) <= 2 && letters(known.as_str()) != letters(name);
    let nearest = config.hosts.keys().filter(close).min_by_key(alike);
    let names: Vec<&str> = config.hosts.keys().map(HostName::as_str).collect();
    let hint = match nearest {
        Some(nearest) => format!("did you mean {nearest}?"),
        None => format!("the hosts are {}", names.join(", ")),
    };
    Err(Failure::usage(format!(
        "there is no host {name:?} in {}",
        config.path.display()
    ))
    .hint(hint))
}

/// The epoch of the flag, else of the config.
///
/// # Errors
/// When there is neither.
pub(crate) fn epoch(flag: Option<Epoch>, config: Option<&Path>) -> Result<Epoch, Failure> {
    epoch_if_known(flag, config)?.ok_or_else(|| {
        Failure::usage("the epoch is not known: there is no config here")
            .hint("name it: --epoch 2026-01-01T00:00:00Z, or --config FILE")
    })
}

/// The epoch of the flag, else of the config if there is one.
///
/// # Errors
/// As [`config_if_any`].
pub(crate) fn epoch_if_known(
    flag: Option<Epoch>,
    config_flag: Option<&Path>,
) -> Result<Option<Epoch>, Failure> {
    if flag.is_some() {
        return Ok(flag);
    }
    Ok(config_if_any(config_flag)?.map(|config| config.cluster.epoch))
}

/// The config, if there is one.
///
/// # Errors
/// When there is a config, or one was named, and it cannot be used.
pub(crate) fn config_if_any(config_flag: Option<&Path>) -> Result<Option<Config>, Failure> {
    let is_named = config_flag.is_some() || Config::find(None) != Path::new(Config::FILE_NAME);
    if !is_named && !Path::new(Config::FILE_NAME).exists() {
        return Ok(None);
    }
    config(config_flag).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_written_down_as_a_reason() {
        for (word, shown) in [
            ("0-255,300", "0-255,300"),
            ("--to=db2", "--to=db2"),
            ("postgres://app:hunter2@h/db", "…"),
            ("host=h password=hunter2", "…"),
            ("password=hunter2", "…"),
            ("--from=postgres://app:hunter2@h/db", "--from=…"),
            ("SELECT 'x'", "…"),
            ("../etc/pgshard.toml", "../etc/pgshard.toml"),
        ] {
            assert_eq!(open_word(word), shown);
        }
    }
}
