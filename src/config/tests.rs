//! Mistakes by snapshot, and laws by property.

use std::path::Path;

use jiff::Timestamp;
use proptest::prelude::*;

use super::*;
use crate::ShardCount;
use crate::id::Epoch;
use crate::pg::RootCert;
use crate::router::Unrouted;
use crate::shard::{KeyKind, SchemaPrefix};
use crate::store::testing::any_map;

fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

fn parse(text: &str) -> Result<Config, Vec<Diagnostic>> {
    match Config::parse_at(text, "pgshard.toml", now()) {
        Ok(config) => Ok(config),
        Err(ConfigError::Invalid { diagnostics, .. }) => Err(diagnostics),
        Err(error) => panic!("{error}"),
    }
}

/// All mistakes that are reported for a text.
fn said(text: &str) -> String {
    match parse(text) {
        Ok(config) => format!("{config:#?}"),
        Err(found) => found
            .iter()
            .map(|one| format!("{one}\n"))
            .collect::<Vec<_>>()
            .join("\n"),
    }
}

const GOOD: &str = r#"
[cluster]
shards = 256
epoch = "2011-01-01T00:00:00Z"

[hosts.db1]
url = "postgres://app@10.0.0.1:5432/app"

[hosts.db2]
url = "host=10.0.0.2 dbname=app user=app"

[map]
version = 1
[map.placement]
db1 = "0-127"
db2 = "128-255"
"#;

/// The valid config with one part replaced, and the mistakes that are then reported.
fn with(what: &str, by: &str) -> String {
    assert!(GOOD.contains(what), "{what}");
    said(&GOOD.replacen(what, by, 1))
}

#[test]
fn the_template_is_valid() {
    let config = parse(template()).unwrap_or_else(|found| panic!("{}", found[0]));
    insta::assert_debug_snapshot!(config);
}

#[test]
fn everything_at_once() {
    let text = r#"
[cluster]
shard = 16
shards = 16
epoch = "2062-01-01T00:00:00Z"
schema_prefix = "pg_shard"
migrations = 7

[hosts.db1]
url = "postgres://app:hunter2@10.0.0.1:5432/app"
pool_size = 0
passwd = "hunter2"

[hosts.db2]
url = "postgres://app:hunter2@10.0.0.1:5432/app"
password_file = "secret"
password_env = "SECRET"

[hosts."db 3"]
url = "postgres://app:hunter2@10.0.0.3:port/app"
pool_size = "many"

[map]
version = 0
[map.placement]
db1 = "0-7, 9-8, 20, x"
bd2 = "5-9@2"
"#;
    let said = said(text);
    assert!(!said.contains("hunter2"), "{said}");
    insta::assert_snapshot!(said);
}

#[test]
fn placements_are_read_in_each_form() {
    let both = "db1 = \"0-127\"\ndb2 = \"128-255\"";
    let cases = [
        ("gap", "db1 = \"0-100, 103-126\"\ndb2 = \"128-254\""),
        ("overlap", "db1 = \"0-127, 200\"\ndb2 = \"120-255\""),
        (
            "overlap with epochs",
            "db1 = \"0-127\"\ndb2 = \"128-255, 17@3\"",
        ),
        (
            "overlap in one list",
            "db1 = \"0-127, 3, 4\"\ndb2 = \"128-255\"",
        ),
        ("unknown host", "db1 = \"0-127\"\nd2 = \"128-255\""),
        ("past the end", "db1 = \"0-127\"\ndb2 = \"128-256\""),
        (
            "notation",
            "db1 = \"0-127,\"\ndb2 = \"128..255, 255@0, -1\"",
        ),
        (
            "several lines",
            "db1 = \"\"\"\n0-63,\n63-127\"\"\"\ndb2 = '128-255'",
        ),
        ("escapes", "db1 = \"0-127\"\ndb2 = \"128-25\\u0035, 7\""),
        ("wrong type", "db1 = [0, 127]\ndb2 = 7"),
    ];
    let all = cases.map(|(name, lists)| format!("## {name}\n{}", with(both, lists)));
    insta::assert_snapshot!(all.join("\n"));
}

#[test]
fn a_single_mistake_is_named() {
    let cases = [
        ("shards = 256", "shards = 0"),
        ("shards = 256", "shards = 8193"),
        ("shards = 256", "shards = \"256\""),
        ("shards = 256\n", ""),
        ("\"2011-01-01T00:00:00Z\"", "\"2011-01-01\""),
        ("\"2011-01-01T00:00:00Z\"", "2011-01-01T00:00:00"),
        ("\"2011-01-01T00:00:00Z\"", "\"1969-01-01T00:00:00Z\""),
        ("\"2011-01-01T00:00:00Z\"", "\"2026-06-01T12:00:00.001Z\""),
        ("\"2011-01-01T00:00:00Z\"", "\"2011-01-01T00:00:00.0001Z\""),
        ("\"2011-01-01T00:00:00Z\"", "20110101"),
        ("shards = 256", "shards = 256\nkey = \"string\""),
        ("shards = 256", "shards = 256\nkey = \"hash\""),
        ("[cluster]", "[clutser]"),
        ("[hosts.db1]", "[[hosts.db1]]"),
        ("[hosts.db1]", "[host.db1]"),
        ("url = \"postgres", "uri = \"postgres"),
        ("host=10.0.0.2", "hots=10.0.0.2"),
        ("app@10.0.0.1:5432/app", "10.0.0.1:5432/app"),
        ("user=app", "user=app sslmode=verify"),
        ("\"postgres://app@10.0.0.1:5432/app\"", "5432"),
        ("host=10.0.0.2", "host=10.0.0.9,10.0.0.1"),
        ("version = 1", "version = 1.5"),
        (
            "version = 1",
            "store = \"postgres\"\nurl = \"postgres://app@10.0.0.9/app\"",
        ),
        ("version = 1", "store = \"postgers\"\nversion = 1"),
        (
            "version = 1",
            "version = 1\nurl = \"postgres://app@10.0.0.9/app\"",
        ),
        ("version = 1", "version = 1\nstore = \"etcd\""),
        ("version = 1\n", "versoin = 1\n"),
        ("[map.placement]\n", ""),
        ("\"0-127\"", "\"0-127"),
        ("shards = 256", "shards = 256\nshards = 256"),
        (
            "url = \"postgres://app@",
            "url = \"postgres://app:\nhunter2@",
        ),
    ];
    let all = cases.map(|(what, by)| format!("## {what:?} -> {by:?}\n{}", with(what, by)));
    let all = all.join("\n");
    let said: String = all
        .lines()
        .filter(|line| !line.starts_with("## "))
        .collect();
    assert!(!said.contains("hunter2"), "{said}");
    insta::assert_snapshot!(all);
}

#[test]
fn the_rebalance_section_is_read() {
    let map = "[map]\nversion";
    let cases = [
        (
            "wrong types",
            "[rebalance]\npinned = \"5\"\napart = \"1, 2\"\n",
        ),
        (
            "wrong lists",
            "[rebalance]\napart = [\"1, 256\", \"7\", 3, \"4-2, x\"]\n[rebalance.pinned]\ndb1 = \
                \"5, 9@2\"\nbd2 = \"6\"\n",
        ),
        (
            "contradictions",
            "[rebalance]\napart = [\"1, 2\", \"3-5\"]\n[rebalance.pinned]\ndb1 = \"1-2, 7\"\ndb2 \
                = \"7\"\n",
        ),
        ("unknown key", "[rebalance]\npined = {}\n"),
    ];
    let all = cases.map(|(name, by)| format!("## {name}\n{}", with(map, &format!("{by}{map}"))));
    insta::assert_snapshot!(all.join("\n"));
    let host = "\n[hosts.db2]";
    let limits = [
        "weight = -1",
        "weight = \"2\"",
        "max_shards = -3",
        "max_bytes = \"many\"",
        "max_bytes = true",
    ];
    let all = limits.map(|by| format!("## {by}\n{}", with(host, &format!("{by}\n{host}"))));
    insta::assert_snapshot!("limits", all.join("\n"));
    let text = GOOD.replace(
        map,
        &format!("[rebalance]\napart = [\"1, 2\"]\n[rebalance.pinned]\ndb2 = \"5, 7-8\"\n{map}"),
    );
    let text = text.replace(
        host,
        &format!("weight = 2.5\nmax_shards = 9\nmax_bytes = \"1 GiB\"\n{host}"),
    );
    let config = parse(&text).unwrap_or_else(|found| panic!("{}", found[0]));
    assert_eq!(config.rebalance.pinned.len(), 3);
    assert_eq!(config.rebalance.apart[0].len(), 2);
    let limits = config.hosts["db1"].limits;
    assert_eq!(
        (limits.weight, limits.shards_max, limits.bytes_max),
        (2.5, Some(9), Some(1 << 30))
    );
}

#[test]
fn nothing_at_all() {
    insta::assert_snapshot!(said(""));
}

#[test]
fn a_password_is_never_shown() {
    for url in [
        "postgres://app:hunter2@10.0.0.1:x/app",
        "postgres://app@10.0.0.1/app?hunter2=hunter2",
        "host=10.0.0.1 password=a hunter2 dbname=app",
        "host=10.0.0.1 password=a hunter2=hunter2 dbname=app",
        "postgres://app@10.0.0.1/app?sslmode=hunter2",
        "hunter2",
        "",
    ] {
        let said = with("postgres://app@10.0.0.1:5432/app", url);
        assert!(said.contains("pgshard.toml:7:7: the url"), "{url}: {said}");
        assert!(
            !said.contains("hunter2") && !said.contains("ter2"),
            "{said}"
        );
    }
    // What is wrong elsewhere on the line of a URL does not show it either.
    for by in [
        "url = \"postgres://app:hunter2@h/app\" x",
        "ur = \"postgres://app:hunter2@h/app\"",
    ] {
        let said = with("url = \"postgres://app@10.0.0.1:5432/app\"", by);
        assert!(!said.contains("hunter2"), "{said}");
    }
}

#[test]
fn values_of_the_file_arrive() {
    let text = GOOD
        .replace(
            "shards = 256",
            "shards = 256\nschema_prefix = \"s\"\nmigrations = \"src\"",
        )
        .replace(
            "epoch = \"2011-01-01T00:00:00Z\"",
            "epoch = 2011-01-01T01:00:00+01:00",
        )
        .replace(
            "[hosts.db2]",
            "password_file = \"secret\"\npool_size = 3\n[hosts.db2]\npassword_env = \"X\"",
        );
    let config = Config::parse_at(
        &text,
        concat!(env!("CARGO_MANIFEST_DIR"), "/pgshard.toml"),
        now(),
    )
    .unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    assert_eq!(
        config.cluster.migrations.as_deref(),
        Some(folder.join("src").as_path())
    );
    assert_eq!(config.cluster.epoch.unix_ms(), 1293840000000);
    assert_eq!(config.hosts["db1"].pool_size, 3);
    let password = |name: &str| format!("{:?}", config.hosts[name].connect.password());
    assert_eq!(
        password("db1"),
        format!("File({:?})", folder.join("secret"))
    );
    assert_eq!(password("db2"), "Env(\"X\")");
    assert!(matches!(config.map_store(), ConfigStore::File(store) if store.path() == config.path));
}

/// `[map]` of a config that keeps it in a database.
fn with_postgres(map: &str) -> String {
    let end = GOOD.find("version = 1").unwrap();
    format!("{}store = \"postgres\"\n{map}", &GOOD[..end])
}

#[test]
fn the_map_in_postgres() {
    let map = "url = \"postgres://map@10.0.0.9/control?sslrootcert=ca.pem\"\npassword_file = \
        \"secret\"\ncache = \"map.toml\"";
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = Config::parse_at(&with_postgres(map), folder.join("pgshard.toml"), now()).unwrap();
    assert_eq!(config.map, None);
    let ConfigStore::Postgres(store) = config.map_store() else {
        panic!("{:?}", config.map_store())
    };
    assert_eq!(store.database().to_string(), "map@10.0.0.9:5432/control");
    assert_eq!(
        format!("{:?}", store.database().password()),
        format!("File({:?})", folder.join("secret"))
    );
    assert_eq!(
        store.database().tls().root_cert,
        RootCert::File(folder.join("ca.pem"))
    );
    assert_eq!(store.copy_path(), Some(folder.join("map.toml").as_path()));
}

#[test]
fn mistakes_about_the_map_in_postgres() {
    let cases = [
        "",
        "url = \"10.0.0.9\"",
        "url = \"postgres://map:hunter2@10.0.0.9:x/control\"",
        "url = \"postgres://map@10.0.0.9/control\"\ncahce = \"x\"\npassword_env \
            = \"A\"\npassword_file = \"b\"",
        "url = \"postgres://map@10.0.0.9/control\"\ncache = \"no/such/folder/map.toml\"",
        "url = \"postgres://map@10.0.0.9/control\"\ncache = \"src\"",
        "url = \"postgres://map@10.0.0.9/control\"\nversion = 1\n[map.placement]\ndb1 = \"0-255\"",
    ];
    let all = cases.map(|map| format!("## {map}\n{}", said(&with_postgres(map))));
    let all = all.join("\n");
    let told: String = all
        .lines()
        .filter(|line| !line.starts_with("## "))
        .collect();
    let torn = said(&with_postgres(
        "url = \"postgres://map:\nhunter2@10.0.0.9/control\"",
    ));
    assert!(
        torn.contains("not TOML") && !torn.contains("hunter2"),
        "{torn}"
    );
    assert!(!told.contains("hunter2"), "{told}");
    insta::assert_snapshot!(all);
}

#[test]
fn the_file_is_found() {
    let find = |explicit: Option<&str>, environment: Option<&str>| {
        Config::find_in(explicit.map(Path::new), environment.map(PathBuf::from))
            .display()
            .to_string()
    };
    assert_eq!(find(Some("a"), Some("b")), "a");
    assert_eq!(find(None, Some("b")), "b");
    assert_eq!(find(None, Some("")), "pgshard.toml");
    assert_eq!(find(None, None), "pgshard.toml");
    let error = Config::load("/nowhere/pgshard.toml")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("/nowhere/pgshard.toml") && error.contains("pgshard init"),
        "{error}"
    );
}

fn any_settings() -> impl Strategy<Value = Settings> {
    let hosts = prop::collection::vec((any::<bool>(), "[a-z ='\\\\\"%@]{0,9}", 1usize..=1000), 4);
    let epoch = 0..now().as_millisecond();
    (
        any_map(),
        epoch,
        "[a-z][a-z0-9_]{0,30}",
        hosts,
        prop::option::of(Just("src")),
    )
        .prop_filter_map(
            "a prefix may be PostgreSQL's own",
            |(map, epoch, prefix, hosts, migrations)| {
                let hosts =
                    hosts
                        .into_iter()
                        .enumerate()
                        .map(|(index, (env, variable, pool_size))| HostSettings {
                            name: HostName::new(&format!("db{index}")).unwrap(),
                            url: format!("postgres://app@10.0.0.{index}/app"),
                            password_env: (env && !variable.is_empty()).then_some(variable),
                            pool_size,
                        });
                Some(Settings {
                    epoch: Epoch::from_unix_ms(epoch).ok()?,
                    prefix: SchemaPrefix::new(&prefix).ok()?,
                    key: KeyKind::ALL[map.hosts().len() % KeyKind::ALL.len()],
                    migrations: migrations.map(PathBuf::from),
                    hosts: hosts.collect(),
                    map,
                })
            },
        )
}

/// A valid place is one that an editor can go to.
fn assert_places(text: &str, found: &[Diagnostic]) {
    assert!(!found.is_empty());
    let lines: Vec<&str> = text.split('\n').collect();
    for one in found {
        assert!((1..=lines.len()).contains(&one.line), "{one}");
        assert!(
            (1..=lines[one.line - 1].chars().count() + 1).contains(&one.column),
            "{one}"
        );
        assert!(one.to_string().starts_with("pgshard.toml:"));
    }
    assert!(found.is_sorted_by_key(|one| (one.line, one.column)));
}

#[test]
fn an_unsharded_host_is_read_and_its_mistakes_are_named() {
    let of_db1 = "url = \"postgres://app@10.0.0.1:5432/app\"";
    let unsharded = format!("{of_db1}\nlayout = \"unsharded\"\nschema = \"app\"");
    let all = GOOD
        .replace("db1 = \"0-127\"\ndb2 = \"128-255\"", "db1 = \"0-255\"")
        .replace("shards = 256", "shards = 256\nlegacy_below = 1000")
        .replace(of_db1, &format!("{unsharded}\nunrouted = \"log\""));
    let config = parse(&all).unwrap();
    let (host, schema) = config.unsharded().unwrap();
    assert_eq!((host.name.as_str(), schema.as_str()), ("db1", "app"));
    assert_eq!(host.unrouted, Unrouted::Log);
    assert_eq!(config.cluster.legacy_below, 1000);
    let options = config.router_options(config.map.clone().unwrap().into());
    assert_eq!(options.legacy_below, 1000);
    assert_eq!(options.hosts[0].layout.whole(), Some(schema));
    let other = parse(GOOD).unwrap().map.unwrap();
    let split = config.check_map(&other).unwrap_err().to_string();
    assert!(split.contains("gives db1 128 of 256 shards"), "{split}");

    let second = "url = \"host=10.0.0.2 dbname=app user=app\"";
    let cases = [
        (all.replace("0-255", "0-100"), "gets 101 of 256 shards"),
        (
            all.replace("schema = \"app\"\n", ""),
            "[hosts.db1] has no schema",
        ),
        (
            all.replace("\"app\"\nunr", "\"pg_app\"\nunr"),
            "PostgreSQL's or pgshard's",
        ),
        (
            all.replace("\"app\"\nunr", "\"pgshard_map\"\nunr"),
            "PostgreSQL's or pgshard's",
        ),
        (
            all.replace("\"app\"\nunr", "\"shard_0007\"\nunr"),
            "named as a shard's",
        ),
        (
            all.replace("\"unsharded\"", "\"unshard\""),
            "layout is \"sharded\" or",
        ),
        (
            all.replace("\"log\"", "\"warn\""),
            "unrouted is \"refuse\" or \"log\"",
        ),
        (
            all.replace("layout = \"unsharded\"\n", ""),
            "schema is for an unsharded host",
        ),
        (
            all.replace(
                second,
                &format!("{second}\nlayout = \"unsharded\"\nschema = \"b\""),
            ),
            "\"db2\" is unsharded, and so is \"db1\"",
        ),
        (
            all.replace("= 1000\n", "= 0\n"),
            "legacy_below must be 1 or more",
        ),
        (
            all.replace("= 1000\n", "= 9223372036854775807\n"),
            "take an earlier epoch",
        ),
    ];
    for (text, expected) in cases {
        let said = said(&text);
        assert!(said.contains(expected), "{expected}: {said}");
        assert!(said.starts_with("pgshard.toml:"), "{said}");
    }
}

proptest! {
    #[test]
    fn print_undoes_parse(settings in any_settings()) {
        let text = render(&settings);
        let config = parse(&text).unwrap_or_else(|found| panic!("{text}\n{}", found[0]));
        prop_assert_eq!(config.map, Some(settings.map.clone()));
        prop_assert_eq!(config.cluster, Cluster {
            shards: settings.map.shards(),
            epoch: settings.epoch,
            prefix: settings.prefix,
            key: settings.key,
            migrations: settings.migrations,
            legacy_below: 0,
        });
        prop_assert_eq!(config.hosts.len(), settings.hosts.len());
        for host in settings.hosts {
            let read = &config.hosts[&host.name];
            let connect = crate::pg::ConnectOptions::parse(&host.url).unwrap();
            prop_assert_eq!(read.connect.to_string(), connect.to_string());
            prop_assert_eq!(read.pool_size, host.pool_size);
            let source = host
                .password_env
                .map_or("Standard".to_owned(), |name| format!("Env({name:?})"));
            prop_assert_eq!(format!("{:?}", read.connect.password()), source);
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in "(\\PC|\n){0,200}") {
        if let Err(found) = parse(&text) {
            assert_places(&text, &found);
        }
    }

    #[test]
    fn any_mutation_is_read_or_refused(
        edits in prop::collection::vec(
            (any::<prop::sample::Index>(), 0usize..6, "[\\[\\]\"'=.,@0-9a-z\n\r\t #ä-]{0,4}"),
            1..4,
        ),
    ) {
        let mut chars: Vec<char> = GOOD.chars().collect();
        for (at, drop, insert) in edits {
            let at = at.index(chars.len());
            let end = (at + drop).min(chars.len());
            chars.splice(at..end, insert.chars());
            chars.push('\n');
        }
        let text: String = chars.into_iter().collect();
        if let Err(found) = parse(&text) {
            assert_places(&text, &found);
        }
    }

    #[test]
    fn a_config_that_loads_places_every_shard(count in 1u32..300, cut in 0u16..300) {
        let shards = ShardCount::new(count).unwrap();
        let last = shards.get() - 1;
        let cut = cut % shards.get();
        let second = if cut < last { format!("{}-{last}", cut + 1) } else { String::new() };
        let first = format!("0-{cut}");
        let text = GOOD
            .replace("256", &count.to_string())
            .replace("0-127", &first)
            .replace("128-255", &second);
        let config = parse(&text).unwrap_or_else(|found| panic!("{text}\n{}", found[0]));
        for shard in shards.iter() {
            let host = config.map.as_ref().unwrap().host(shard).unwrap();
            prop_assert!(config.hosts.contains_key(host));
        }
    }
}
