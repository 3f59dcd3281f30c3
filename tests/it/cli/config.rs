//! The commands that need a config but no server: init, locate, map show; and the error of every
//! command for a bad config.

use std::fs;
use std::process::Command;

use super::{alone, folder, pgshard};

const CONFIG: &str = r#"
[cluster]
shards = 2000
epoch = "2012-01-01T00:00:00Z"
schema_prefix = "s"

[hosts.db1]
url = "postgres://app@10.0.0.1/app"
[hosts.db2]
url = "host=10.0.0.2 dbname=app user=app"
[hosts.spare]
url = "host=10.0.0.3 dbname=app user=app"

[map]
version = 7
[map.placement]
db1 = "0-1000"
db2 = "1001-1340, 1341@3, 1342-1999"
"#;

/// Runs the command in the folder of this config.
fn beside(config: &str, args: &[&str]) -> super::Run {
    let folder = folder();
    fs::write(folder.path().join("pgshard.toml"), config).unwrap();
    pgshard(folder.path(), args)
}

#[test]
fn init_writes_a_config_that_works() {
    let folder = folder();
    let run = pgshard(folder.path(), &["init"]);
    insta::assert_snapshot!("init", run.shown());
    let written = fs::read_to_string(folder.path().join("pgshard.toml")).unwrap();
    assert_eq!(
        written,
        pgshard::config::template(),
        "the template, comments and all"
    );
    assert_eq!(pgshard(folder.path(), &["map", "show"]).exit, 0);

    insta::assert_snapshot!(
        "init_again",
        pgshard(folder.path(), &["init", "--hosts", "3"]).shown()
    );
    let kept = fs::read_to_string(folder.path().join("pgshard.toml")).unwrap();
    assert_eq!(kept, written, "nothing is overwritten unasked");
}

/// A file that cannot be written whole, as on a full disk, leaves nothing behind that would make
/// the next try fail. What was there before is still there.
#[test]
fn nothing_is_left_of_what_cannot_be_written() {
    let folder = folder();
    assert_eq!(pgshard(folder.path(), &["init"]).exit, 0);
    let config = fs::read_to_string(folder.path().join("pgshard.toml")).unwrap();
    let all = [
        ("--config other.toml init", "other.toml", None),
        ("map show --svg shards.svg", "shards.svg", None),
        ("map show --svg former.svg", "former.svg", Some("former")),
        (
            "init --force --hosts 3",
            "pgshard.toml",
            Some(config.as_str()),
        ),
    ];
    fs::write(folder.path().join("former.svg"), "former").unwrap();
    for (args, file, former) in all {
        // A file of this shell's programs can have no byte.
        let limited = format!(
            "trap '' XFSZ; ulimit -f 0; exec {} {args}",
            env!("CARGO_BIN_EXE_pgshard")
        );
        let run = Command::new("sh")
            .args(["-c", &limited])
            .current_dir(folder.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&run.stderr);
        assert!(
            !run.status.success() && said.contains(&format!("cannot write {file}")),
            "{said}"
        );
        assert_eq!(
            fs::read_to_string(folder.path().join(file)).ok().as_deref(),
            former,
            "{file}"
        );
    }
    assert_eq!(
        fs::read_dir(folder.path()).unwrap().count(),
        2,
        "nothing else is left"
    );
}

#[test]
fn init_takes_hosts_and_shards() {
    for (hosts, shards) in [(1, 1), (1, 4096), (3, 100), (64, 8192)] {
        let folder = folder();
        let (hosts_text, shards_text) = (hosts.to_string(), shards.to_string());
        let args = [
            "init",
            "--force",
            "--hosts",
            &hosts_text,
            "--shards",
            &shards_text,
        ];
        assert_eq!(pgshard(folder.path(), &args).exit, 0);
        let shown = pgshard(folder.path(), &["map", "show", "--json"])
            .json()
            .remove(0);
        assert_eq!(shown["shards"], shards);
        assert_eq!(shown["hosts"].as_object().unwrap().len(), hosts);
        let written = fs::read_to_string(folder.path().join("pgshard.toml")).unwrap();
        assert_eq!(
            written.matches('#').count(),
            pgshard::config::template().matches('#').count(),
            "every comment stays:\n{written}"
        );
    }
    let run = alone(&["init", "--hosts", "3", "--shards", "2"]);
    assert_eq!(run.exit, 2, "{}", run.stderr);
}

#[test]
fn locate_a_key() {
    insta::assert_snapshot!(
        "locate_key_text",
        beside(CONFIG, &["locate", "--key", "31341"]).shown()
    );
    insta::assert_snapshot!(
        "locate_key_json",
        beside(CONFIG, &["locate", "--key", "31341", "--json"]).shown()
    );
    let negative = beside(CONFIG, &["locate", "--key", "-1", "--json"])
        .json()
        .remove(0);
    assert_eq!(
        (&negative["key"], &negative["shard"]),
        (&"-1".into(), &1999.into())
    );
}

#[test]
fn locate_an_id() {
    let id = "11637205501278089";
    insta::assert_snapshot!(
        "locate_id_text",
        beside(CONFIG, &["locate", "--id", id]).shown()
    );
    insta::assert_snapshot!(
        "locate_id_json",
        beside(CONFIG, &["locate", "--id", id, "--json"]).shown()
    );
    let negative = beside(
        CONFIG,
        &["locate", "--id", "-9203679173715945767", "--json"],
    )
    .json()
    .remove(0);
    assert_eq!(
        (&negative["shard"], &negative["time"]),
        (&5.into(), &"2046-12-01T00:00:00Z".into())
    );
}

/// A ticket is a user's ID and not an ID of a shard, although it decodes as one of shard 8, here as
/// in the library.
#[test]
fn a_ticket_decodes_as_an_id_with_a_warning() {
    for command in [&["locate", "--id"][..], &["id", "decode"]] {
        let run = beside(CONFIG, &[command, &["8192"]].concat());
        assert_eq!(run.exit, 0, "{}", run.stderr);
        assert!(
            run.stdout
                .lines()
                .any(|line| line.split_whitespace().eq(["shard", "8"]))
        );
        assert!(
            run.stderr.contains("there is no time in 8192")
                && run.stderr.contains("locate --key 8192"),
            "{}",
            run.stderr
        );
    }
}

/// Snowflakes of a cluster count from its epoch, unless another is given; without a config they
/// count from Twitter's.
#[test]
fn snowflakes_of_the_config() {
    let decoded = |args: &[&str]| {
        let all = [
            &[
                "id",
                "decode",
                "--scheme",
                "snowflake",
                "1541815603606036480",
                "--json",
            ][..],
            args,
        ]
        .concat();
        beside(CONFIG, &all).json().remove(0)["time"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        decoded(&["--epoch", "1288834974657"]),
        "2022-06-28T16:07:40.105Z"
    );
    assert_ne!(decoded(&[]), decoded(&["--epoch", "1288834974657"]));
    assert_eq!(decoded(&[]), decoded(&["--epoch", "2012-01-01"]));
}

#[test]
fn an_id_of_a_shard_that_is_not_is_refused() {
    insta::assert_snapshot!(beside(CONFIG, &["locate", "--id", "-1"]).shown());
}

#[test]
fn locate_wants_one_thing() {
    assert_eq!(beside(CONFIG, &["locate"]).exit, 2);
    assert_eq!(
        beside(CONFIG, &["locate", "--key", "1", "--id", "1"]).exit,
        2
    );
}

#[test]
fn map_show_prints_the_map() {
    insta::assert_snapshot!("map_show_text", beside(CONFIG, &["map", "show"]).shown());
    insta::assert_snapshot!(
        "map_show_json",
        beside(CONFIG, &["map", "show", "--json"]).shown()
    );
}

#[test]
fn ids_take_the_epoch_of_the_config() {
    let decoded = beside(CONFIG, &["id", "decode", "9221321628057605849", "--json"])
        .json()
        .remove(0);
    assert_eq!(decoded["time"], "2046-11-01T00:00:00Z");
    let flag = beside(
        CONFIG,
        &[
            "id",
            "decode",
            "9221321628057605849",
            "--json",
            "--epoch",
            "0",
        ],
    )
    .json()
    .remove(0);
    assert_eq!(flag["time"], "2004-11-01T00:00:00Z", "the flag goes first");
    // A wrong config is never ignored.
    assert_eq!(beside("[cluster]", &["id", "decode", "1"]).exit, 2);
}

#[test]
fn all_mistakes_of_a_config_at_once() {
    let mistakes = CONFIG
        .replace("shards = 2000", "shards = 2000\nshard = 3")
        .replace("db1 = \"0-1000\"", "dbl = \"0-999\"")
        .replace("1342-1999", "1300-1999");
    insta::assert_snapshot!(
        "config_mistakes",
        beside(&mistakes, &["map", "show"]).shown()
    );
    let run = beside(&mistakes, &["locate", "--key", "1", "--json"]);
    assert_eq!((run.exit, run.stdout.as_str()), (2, ""));
}

#[test]
fn an_unknown_host_is_answered_with_the_one_meant() {
    insta::assert_snapshot!(
        beside(
            &CONFIG.replace("db1 = \"0-", "bd1 = \"0-"),
            &["map", "show"]
        )
        .shown()
    );
}

#[test]
fn a_missing_config_is_named() {
    insta::assert_snapshot!("no_config", alone(&["map", "show"]).shown());
    insta::assert_snapshot!(
        "no_such_config",
        alone(&["--config", "elsewhere.toml", "map", "show"]).shown()
    );
}

#[test]
fn map_diff_lists_the_moves() {
    let folder = folder();
    fs::write(folder.path().join("pgshard.toml"), CONFIG).unwrap();
    let moved = CONFIG.replace("version = 7", "version = 9").replace(
        "1001-1340, 1341@3, 1342-1999",
        "1003-1340, 1341@3, 1342-1999\"\nspare = \"1001-1002@2",
    );
    fs::write(folder.path().join("other.toml"), moved).unwrap();
    fs::write(
        folder.path().join("less.toml"),
        CONFIG.replace("2000", "1999").replace("-1999", "-1998"),
    )
    .unwrap();
    let diff = |other: &str| pgshard(folder.path(), &["map", "diff", other]);
    insta::assert_snapshot!("map_diff_text", diff("other.toml").shown());
    insta::assert_snapshot!("map_diff_none", diff("pgshard.toml").shown());
    insta::assert_snapshot!("map_diff_other_cluster", diff("less.toml").shown());
    let json = pgshard(folder.path(), &["map", "diff", "other.toml", "--json"]);
    insta::assert_snapshot!("map_diff_json", json.shown());
}
