//! The configs of `tests/vectors`, which the Python package reads too.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::Config;

#[derive(Deserialize)]
struct File {
    configs: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    config: Option<Expected>,
    #[serde(default)]
    says: Vec<String>,
    #[serde(default)]
    never: Vec<String>,
}

#[derive(Deserialize)]
struct Expected {
    shards: u16,
    epoch_ms: i64,
    prefix: String,
    key: String,
    hosts: BTreeMap<String, Host>,
    map: Map,
}

#[derive(Deserialize)]
struct Host {
    address: String,
    pool_size: usize,
}

#[derive(Deserialize)]
struct Map {
    version: u64,
    lists: BTreeMap<String, String>,
}

#[test]
fn configs_match_the_vectors() {
    let file: File =
        serde_json::from_str(include_str!("../../tests/vectors/configs.json")).unwrap();
    for case in file.configs {
        let config = Config::parse(&case.text, "pgshard.toml");
        let Some(expected) = case.config else {
            let said = config.unwrap_err().to_string();
            assert!(
                !case.says.is_empty() && case.says.iter().all(|says| said.contains(says)),
                "{}\n{said}",
                case.text
            );
            assert!(
                !case.never.iter().any(|never| said.contains(never)),
                "{}\n{said}",
                case.text
            );
            continue;
        };
        let config = config.unwrap();
        let cluster = &config.cluster;
        assert_eq!(
            (cluster.shards.get(), cluster.epoch.unix_ms()),
            (expected.shards, expected.epoch_ms)
        );
        assert_eq!(
            (cluster.prefix.as_str(), cluster.key.as_str()),
            (&*expected.prefix, &*expected.key)
        );
        let map = config.map.as_ref().unwrap();
        assert_eq!(map.version().get(), expected.map.version);
        let options = config.router_options(map.clone().into());
        let hosts = options
            .hosts
            .iter()
            .map(|host| (host.name.to_string(), host));
        let hosts: BTreeMap<_, _> = hosts
            .map(|(name, host)| (name, (host.connect.to_string(), host.pool_size)))
            .collect();
        let wanted = expected
            .hosts
            .into_iter()
            .map(|(name, host)| (name, (host.address, host.pool_size)));
        assert_eq!(hosts, wanted.collect());
        let lists = map
            .hosts()
            .iter()
            .map(|host| (host.to_string(), map.ranges(host)));
        assert_eq!(lists.collect::<BTreeMap<_, _>>(), expected.map.lists);
    }
}
