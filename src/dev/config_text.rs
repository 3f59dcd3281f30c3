//! A ready config for local servers.

use crate::map::{HostName, print_shards};
use crate::shard::ShardCount;

/// A commented `pgshard.toml` for these hosts and URLs, the shards spread evenly over them in
/// order.
///
/// `migrations` is the folder of the application's shard migrations, relative to the config's own
/// folder.
///
/// ```
/// use pgshard::{ShardCount, dev, map::HostName};
/// let host = |name: &str| {
///     (HostName::new(name).unwrap(), format!("postgres://app@127.0.0.1/{name}"))
/// };
/// let text = dev::config_text(ShardCount::new(5).unwrap(), &[host("db1"), host("db2")], None);
/// assert!(text.contains("db1 = \"0-1\"\ndb2 = \"2-4\"\n"));
/// ```
pub fn config_text(
    shards: ShardCount,
    hosts: &[(HostName, String)],
    migrations: Option<&str>,
) -> String {
    let mut text = format!(
        "# A config for local servers, written by pgshard.\n\
         \n\
         [cluster]\n\
         shards = {shards}                        # N in key % N; cannot change once bootstrapped\n\
         epoch = \"2026-01-01T00:00:00Z\"       # zero of the 41-bit clock; cannot change either\n"
    );
    if let Some(folder) = migrations {
        let folder = toml_edit::Value::from(folder);
        text.push_str(&format!(
            "migrations = {folder}           # SQL that runs once in every shard, {{shard}} its \
                schema\n"
        ));
    }
    for (name, url) in hosts {
        let url = toml_edit::Value::from(url);
        text.push_str(&format!("\n[hosts.{name}]\nurl = {url}\n"));
    }
    text.push_str(
        "\n# Which shards are on which host. Moves rewrite this.\n[map]\nversion = \
        1\n\n[map.placement]\n",
    );
    let bound = |index: usize| index * usize::from(shards.get()) / hosts.len().max(1);
    for (index, (name, _)) in hosts.iter().enumerate() {
        let here = shards
            .iter()
            .skip(bound(index))
            .take(bound(index + 1) - bound(index));
        text.push_str(&format!("{name} = \"{}\"\n", print_shards(here)));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::parse_ranges;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_shard_has_one_host(count in 1u32..=8192, hosts in 1usize..=64) {
            let shards = ShardCount::new(count).unwrap();
            let names: Vec<_> = (0..hosts)
                .map(|index| (HostName::new(&format!("db{index}")).unwrap(), format!("host='it''s' \
                    port={index}")))
                .collect();
            let text = config_text(shards, &names, Some("mig\"rations"));
            let document: toml_edit::DocumentMut = text.parse().unwrap();
            prop_assert_eq!(document["cluster"]["migrations"].as_str(), Some("mig\"rations"));
            let mut placed = Vec::new();
            for (name, url) in &names {
                let written = document["hosts"][name.as_str()]["url"].as_str();
                prop_assert_eq!(written, Some(url.as_str()));
                let ranges = document["map"]["placement"][name.as_str()].as_str().unwrap();
                let items = parse_ranges(ranges, shards).unwrap();
                placed.extend(items.iter().flat_map(|item| item.shards()));
            }
            prop_assert!(placed.into_iter().eq(shards.iter()));
        }
    }
}
