//! `pgshard init --from`: the config of a cluster that has lost its own.
//!
//! Hosts have recorded what cannot change, what they are called, and which shards they serve.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use pgshard::config::{Config, HostSettings, Settings, render};
use pgshard::id::Epoch;
use pgshard::map::{HostName, print_shards};
use pgshard::pg::cause::chain;
use pgshard::schema::{self, HostFacts, RecordedCluster, Survey};
use pgshard::{KeyKind, SchemaPrefix, ShardCount};

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;

/// The folder of migrations that a config has by habit.
const MIGRATIONS: &str = "migrations";

/// A config for the hosts behind these URLs.
pub(super) async fn text(urls: &[String], path: &Path) -> Result<String, Failure> {
    let (hosts, survey) = survey_hosts(urls).await?;
    let recorded: Vec<(&HostName, &RecordedCluster)> = survey.iter().filter_map(of_host).collect();
    let Some((first, cluster)) = recorded.first() else {
        return Err(Failure::usage("no host is named"));
    };
    let unsharded = |host: &HostName| {
        let facts = survey.get(host).and_then(|facts| facts.as_ref().ok());
        facts.and_then(|facts| facts.control.as_ref()?.whole.as_ref())
    };
    if let Some((host, whole)) = survey
        .keys()
        .find_map(|host| Some((host, unsharded(host)?)))
    {
        let error = format!("{host} is unsharded, which `pgshard init --from` cannot write down");
        return Err(Failure::new(Exit::Refused, error).hint(format!(
            "write the config by hand: [hosts.{host}] with layout = \"unsharded\", schema = {:?}",
            whole.schema
        )));
    }
    let same = |other: &RecordedCluster| RecordedCluster {
        host_name: cluster.host_name.clone(),
        ..other.clone()
    };
    if let Some((other, _)) = recorded.iter().find(|(_, other)| same(other) != **cluster) {
        return Err(Failure::new(
            Exit::Failed,
            format!("{first} and {other} are not hosts of one cluster"),
        )
        .hint(
            "they have recorded other shards, epochs, prefixes or keys; name the urls of one \
                cluster",
        ));
    }
    let of_control = survey
        .values()
        .flatten()
        .filter_map(|facts| facts.control.as_ref());
    let mut known = of_control.flat_map(|control| control.known.keys());
    if let Some(missing) = known.find(|name| !survey.contains_key(*name)) {
        return Err(Failure::new(
            Exit::Failed,
            format!("the hosts know of {missing}, and no url leads to it"),
        )
        .hint(format_args!("add --from with the url of {missing}")));
    }
    let shards = u32::try_from(cluster.shards)
        .ok()
        .and_then(ShardCount::new)
        .ok_or_else(impossible)?;
    let map = schema::map_of_hosts(shards, &survey).map_err(|unknown| {
        let shards = print_shards(unknown);
        Failure::new(
            Exit::Failed,
            format!("no host says where these shards are: {shards}"),
        )
        .hint("add --from with the urls of the other hosts")
    })?;
    let epoch = Epoch::from_unix_ms(cluster.epoch_ms).map_err(|_| impossible())?;
    let prefix = SchemaPrefix::new(&cluster.schema_prefix).map_err(|_| impossible())?;
    let key: KeyKind = cluster.key_kind.parse().map_err(|_| impossible())?;
    let folder = path.parent().unwrap_or(Path::new("")).join(MIGRATIONS);
    let migrations = folder.is_dir().then(|| PathBuf::from(MIGRATIONS));
    let settings = Settings::new(epoch, hosts, map)
        .prefix(prefix)
        .key(key)
        .migrations(migrations);
    let text = render(&settings);
    // What we write can be read.
    Config::parse(&text, path)?;
    Ok(text)
}

/// The facts of the hosts, by the names that they have recorded.
async fn survey_hosts(urls: &[String]) -> Result<(Vec<HostSettings>, Survey), Failure> {
    let mut asked = Vec::new();
    let mut of_number = BTreeMap::new();
    for (number, url) in (1..).zip(urls) {
        let name = HostName::new(&format!("url{number}")).map_err(Failure::usage)?;
        let connect = context::open_url(url, "~/.pgpass, or PGPASSFILE")?;
        of_number.insert(name.clone(), (url, connect.addresses().join(",")));
        asked.push((name, connect));
    }
    let mut hosts = BTreeMap::new();
    let mut survey = Survey::new();
    for (number, facts) in schema::survey(asked).await {
        let Some((url, address)) = of_number.get(&number) else {
            continue;
        };
        let facts = facts.map_err(|error| {
            Failure::new(
                Exit::Failed,
                format!("the host at {address}: {}", chain(&error)),
            )
            .hint("every host must answer: a config without one would have its shards lost")
        })?;
        let recorded = facts
            .control
            .as_ref()
            .and_then(|control| control.cluster.as_ref());
        let Some(recorded) = recorded else {
            return Err(Failure::new(
                Exit::Failed,
                format!("the host at {address} belongs to no cluster"),
            )
            .hint(
                "its database has no control schema, or has lost what it recorded: `pgshard \
                    explain control_lost`",
            ));
        };
        let name = HostName::new(&recorded.host_name).map_err(|_| impossible())?;
        if hosts
            .insert(name.clone(), HostSettings::new(name.clone(), url.as_str()))
            .is_some()
        {
            return Err(Failure::usage(format!("two urls lead to {name}")));
        }
        survey.insert(name, Ok(facts));
    }
    Ok((hosts.into_values().collect(), survey))
}

fn of_host<'a>(
    (name, facts): (&'a HostName, &'a Result<HostFacts, schema::FactsError>),
) -> Option<(&'a HostName, &'a RecordedCluster)> {
    let control = facts.as_ref().ok()?.control.as_ref()?;
    Some((name, control.cluster.as_ref()?))
}

fn impossible() -> Failure {
    Failure::new(
        Exit::Failed,
        "a host has recorded something of the cluster that no pgshard writes",
    )
    .hint("see its row in pgshard.cluster, and what the other hosts have there")
}
