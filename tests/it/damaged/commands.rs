//! Each finding with a command in its remedy: it is made to happen, the command is taken from the
//! remedy's own text and run, and the finding is gone.

use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;

use super::found;
use crate::support::World;

/// What makes a finding happen.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Statements of the role that owns the shards, on db1 or db2.
    Sql(&'static str, &'static str),
    /// A command, and the exit code that it ends with.
    Run(&'static [&'static str], i32),
    /// A command that is killed at a failpoint.
    Killed(&'static [&'static str], &'static str),
    /// A file in the folder of migrations.
    Migration(&'static str, &'static str),
    /// The config as it was when the case began.
    OldConfig,
    /// The config without the line that names the folder of migrations.
    NoMigrations,
}
use Step::{Killed, Migration, NoMigrations, OldConfig, Run, Sql};

/// The finding's code, what makes it happen, and the operator's steps before the command, if the
/// remedy contains more than the command.
type Case = (&'static str, &'static [Step], &'static [Step]);

/// One after the other on one cluster, which is well between two of them. db1 serves the shards 0
/// to 3, db2 the others.
const CASES: [Case; 18] = [
    (
        "shard_missing",
        &[
            Sql("db1", "DROP SCHEMA shard_0001 CASCADE"),
            Sql(
                "db1",
                "DELETE FROM pgshard.shard_migration WHERE shard_id = 1",
            ),
            Sql("db1", "DELETE FROM pgshard.shard WHERE shard_id = 1"),
            Sql("db1", "DELETE FROM pgshard.known_host"),
            Sql("db2", "DELETE FROM pgshard.known_host"),
        ],
        &[],
    ),
    (
        "record_behind",
        &[Sql("db2", "DELETE FROM pgshard.known_host")],
        &[],
    ),
    (
        "shard_elsewhere",
        &[Run(&["move", "0", "--to", "db2", "--yes"], 0), OldConfig],
        &[],
    ),
    ("old_copy", &[], &[]),
    (
        "old_signpost",
        &[Run(&["move", "0", "--to", "db1", "--yes"], 0)],
        &[],
    ),
    (
        "no_reverse",
        &[
            Run(&["moves", "complete", "--all", "--yes"], 0),
            Run(
                &["move", "1", "--to", "db2", "--mode", "online", "--yes"],
                0,
            ),
            Sql("db1", "UPDATE pgshard.back SET lost = 'its slot is gone'"),
        ],
        &[],
    ),
    (
        "not_opened",
        &[Killed(
            &["move", "0", "--to", "db2", "--yes"],
            "after decide=kill",
        )],
        &[],
    ),
    (
        "fence_overdue",
        &[Killed(
            &["move", "2", "--to", "db2", "--yes"],
            "after swap=kill",
        )],
        &[],
    ),
    (
        "not_audited",
        &[Sql(
            "db1",
            "UPDATE pgshard.move SET audit = 'not audited' WHERE shard_id = 2 AND phase = 'kept'",
        )],
        &[],
    ),
    (
        "leftover",
        &[
            Run(&["moves", "complete", "--all", "--yes"], 0),
            Killed(&["move", "3", "--to", "db2", "--yes"], "after prepare=kill"),
            Sql(
                "db1",
                "UPDATE pgshard.move SET phase = 'aborted' WHERE shard_id = 3 AND phase NOT IN \
                 ('aborted', 'completed', 'kept')",
            ),
        ],
        &[],
    ),
    (
        "stray_publication",
        &[Sql("db1", "CREATE PUBLICATION pgshard_of_no_move")],
        &[],
    ),
    (
        "stray_slot",
        &[Sql(
            "db1",
            "SELECT pg_create_logical_replication_slot('pgshard_of_no_move', 'pgoutput')",
        )],
        &[],
    ),
    (
        "stray_schema",
        &[Sql("db1", "CREATE SCHEMA shard_0003__left_e9")],
        &[],
    ),
    (
        "schema_beyond",
        &[Sql("db1", "CREATE SCHEMA shard_0008")],
        &[],
    ),
    (
        "migrations_pending",
        &[Migration(
            "0002_notes.sql",
            "CREATE TABLE {shard}.notes (n int)",
        )],
        &[],
    ),
    (
        "migrations_differ",
        &[
            Migration("0003_more.sql", "CREATE TABLE {shard}.more (n int)"),
            Run(&["migrate", "up", "--only", "4-6", "--host", "db2"], 0),
            NoMigrations,
        ],
        // The remedy's first half: the config names the folder.
        &[OldConfig],
    ),
    (
        "migration_failed",
        &[
            Sql("db2", "CREATE TABLE shard_0006.last (n int)"),
            Migration("0004_last.sql", "CREATE TABLE {shard}.last (n int)"),
            Run(&["migrate", "up"], 8),
        ],
        &[Sql("db2", "DROP TABLE shard_0006.last")],
    ),
    (
        "host_migrations_pending",
        &[Migration(
            "0005_hosts.sql",
            "-- pgshard: once-per-host\nCREATE SCHEMA IF NOT EXISTS of_the_host",
        )],
        &[],
    ),
];

/// Where the tests of the other findings are that have a command or a statement in their remedy.
const ELSEWHERE: [(&str, &str); 32] = [
    ("legacy_ids_end", include_str!("../unsharded.rs")),
    ("served_twice", include_str!("../moves/repair.rs")),
    ("served_nowhere", include_str!("../moves/repair.rs")),
    ("shard_epoch_differs", include_str!("each.rs")),
    ("other_server", include_str!("../primaries.rs")),
    ("host_absent", include_str!("../cli/verbs.rs")),
    ("control_unrecorded", include_str!("each.rs")),
    ("control_damaged", include_str!("each.rs")),
    ("schema_misnamed", include_str!("each.rs")),
    ("control_old", include_str!("../runbooks.rs")),
    ("map_damaged", include_str!("../store.rs")),
    ("identity_lent", include_str!("../moves/identity.rs")),
    ("ddl_differs", include_str!("../runbooks.rs")),
    ("keys_of_another_shard", include_str!("../contents.rs")),
    ("key_column_unknown", include_str!("../contents.rs")),
    ("ids_of_another_shard", include_str!("../contents.rs")),
    ("ids_past_clock", include_str!("../contents.rs")),
    ("sequence_behind", include_str!("../contents.rs")),
    ("rows_unread", include_str!("../contents.rs")),
    ("ids_unread", include_str!("../console/monitor.rs")),
    ("tickets_lost", include_str!("../contents.rs")),
    ("tickets_untold", include_str!("../contents.rs")),
    ("leases_old", include_str!("../contents.rs")),
    ("not_owner", include_str!("each.rs")),
    ("foreign_lock", include_str!("../rights.rs")),
    ("rights_missing", include_str!("../rights.rs")),
    ("not_bootstrapped", include_str!("commands.rs")),
    ("migrations_drift", include_str!("each.rs")),
    ("slot_gone", include_str!("../moves/slots.rs")),
    ("catalogs_held", include_str!("../moves/sound.rs")),
    ("tickets_used_up", include_str!("../contents.rs")),
    ("tickets_max", include_str!("../contents.rs")),
];

/// Findings with a command that shows something and changes nothing, or with a cause that a test of
/// this kind cannot make: the reason.
const NOT_TRIED: [(&str, &str); 4] = [
    ("map_unreachable", "the command is what not to run"),
    ("moving", "the command lists the move"),
    ("signpost_astray", "the host that it leads to is gone"),
    ("host_emptied", "a restore comes first: runbooks.rs does it"),
];

impl World {
    async fn take(&self, step: &Step, config: &str) {
        match step {
            Sql(host, sql) => {
                let at = usize::from(*host == "db2");
                self.servers.app(at).await.batch_execute(sql).await.unwrap();
            }
            Run(args, code) => drop(self.run(args).await.ended(*code)),
            Killed(args, failpoint) => {
                let environment = [
                    ("PGSHARD_FAILPOINT", *failpoint),
                    ("PGSHARD_LEASE_MS", "400"),
                ];
                let ran = self.run_with(args, &environment).await;
                assert!(ran.code() < 0, "{args:?} {failpoint}: {}", ran.stderr);
            }
            Migration(name, sql) => drop(self.write(&format!("migrations/{name}"), sql)),
            OldConfig => drop(self.write("pgshard.toml", config)),
            NoMigrations => {
                let lines = fs::read_to_string(&self.config.path).unwrap();
                let lines = lines
                    .lines()
                    .filter(|line| !line.starts_with("migrations ="));
                let text = lines.collect::<Vec<_>>().join("\n");
                self.write("pgshard.toml", &text);
            }
        }
    }

    /// Does what the remedy names: its first command in backquotes, or its statement.
    async fn follow(&self, finding: &Value) {
        let remedy = finding["remedy"].as_str().unwrap();
        let command = remedy
            .split('`')
            .find_map(|part| part.strip_prefix("pgshard "));
        if let Some(command) = command {
            let shard = finding["shard"].to_string();
            let mut args: Vec<&str> = command
                .split(' ')
                .map(|word| if word == "SHARD" { &*shard } else { word })
                .collect();
            let asks = [["moves", "complete"], ["map", "rebuild"]];
            if asks.iter().any(|asks| args.starts_with(asks)) {
                args.push("--yes");
            }
            self.run(&args).await.ended(0);
            return;
        }
        let statement = ["SELECT ", "DROP ", "UPDATE ", "INSERT "]
            .iter()
            .filter_map(|verb| remedy.find(verb))
            .min()
            .unwrap_or_else(|| panic!("nothing to do in {finding:#}"));
        let statement = remedy[statement..].split(", or ").next().unwrap();
        let host = usize::from(finding["host"] == "db2");
        let client = self.servers.app(host).await;
        client
            .batch_execute(statement)
            .await
            .unwrap_or_else(|error| panic!("{statement}: {error}"));
    }
}

on_each_version! {
    async fn the_command_of_a_remedy_ends_its_finding(version) {
        let world = World::new(&[version, version], 8).await;
        for (code, steps, before) in CASES {
            let config = fs::read_to_string(&world.config.path).unwrap();
            for step in steps {
                world.take(step, &config).await;
            }
            // A fence has to be overdue first.
            let mut all = found(&world).await;
            let mut looks = 0;
            while !all.iter().any(|one| one["code"] == code) && looks < 100 {
                looks += 1;
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                all = found(&world).await;
            }
            let of_code = |all: &[Value]| all.iter().find(|one| one["code"] == code).cloned();
            for step in before {
                world.take(step, &config).await;
            }
            let mut tries = 0;
            while let Some(finding) = of_code(&all) {
                tries += 1;
                assert!(tries < 4, "{code} stays: {finding:#}");
                world.follow(&finding).await;
                all = found(&world).await;
            }
            assert!(tries > 0, "{code} is not found: {all:#?}");
        }
    }

    async fn a_host_that_was_not_bootstrapped_is(version) {
        let world = World::new(&[version], 4).await;
        let db1 = world.servers.superuser(0).await;
        db1.batch_execute("DROP SCHEMA pgshard CASCADE")
            .await
            .unwrap();
        for shard in 0..4 {
            let sql = format!("DROP SCHEMA shard_000{shard} CASCADE");
            db1.batch_execute(&sql).await.unwrap();
        }
        let all = found(&world).await;
        assert_eq!(all[0]["code"], "not_bootstrapped", "{all:#?}");
        world.follow(&all[0]).await;
        assert_eq!(found(&world).await, [Value::Null; 0]);
    }
}

/// A new finding with a command in its remedy needs a case.
#[test]
fn every_finding_that_names_a_command_has_a_test() {
    let page = include_str!("../../../docs/findings.md");
    let named = [
        "pgshard ",
        "`moves ",
        "SELECT",
        "setval",
        "INSERT",
        "UPDATE",
        "resume_after",
    ];
    let mut untried = Vec::new();
    let tried: BTreeSet<&str> = CASES.iter().map(|(code, ..)| *code).collect();
    for row in page.lines().filter(|line| line.starts_with("| `")) {
        let cells: Vec<&str> = row.split(" | ").collect();
        let code = cells[0].trim_matches(['|', ' ', '`']);
        let remedy = cells.last().unwrap();
        if !named.iter().any(|named| remedy.contains(named)) {
            continue;
        }
        let quoted = format!("\"{code}\"");
        let is_elsewhere = ELSEWHERE
            .iter()
            .any(|(its, text)| *its == code && text.contains(&quoted));
        let is_excused = NOT_TRIED.iter().any(|(its, _)| *its == code);
        if !(tried.contains(code) || is_elsewhere || is_excused) {
            untried.push(code);
        }
    }
    assert!(untried.is_empty(), "{untried:?}");
}
