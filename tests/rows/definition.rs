//! A shard's definition, as pg_dump writes it: after all moves of a round it is the same as before
//! them.

use std::process::Command;
use std::sync::atomic::Ordering;

use pgshard::dev::Binaries;

use super::state::Shared;

/// The definition of each shard, and the host it was read from.
pub(crate) struct Definitions(Vec<(usize, Vec<String>)>);

impl Definitions {
    pub(crate) async fn of(shared: &Shared) -> Definitions {
        let mut all = Vec::new();
        for (shard, gate) in shared.gates.iter().enumerate() {
            let host = *gate.host.read().await;
            all.push((
                host,
                dumped(shared, &Shared::schema_name(shard as u16), host),
            ));
        }
        Definitions(all)
    }

    /// Fails the round if a shard's definition has changed. Different versions write the same in
    /// other words, so those are not compared, nor is what the round has altered. Names of NOT NULL
    /// do not count where a shard may have been on a version that has none.
    pub(crate) fn compare(&self, after: &Definitions, shared: &Shared) {
        for (shard, ((before_on, before), (after_on, after))) in
            self.0.iter().zip(&after.0).enumerate()
        {
            let altered = shared.gates[shard].altered.load(Ordering::SeqCst);
            let versions = &shared.case.versions;
            if versions[*before_on] != versions[*after_on] || altered {
                continue;
            }
            let mixed = versions[0] != versions[1];
            let told = |statements: &[String]| -> Vec<String> {
                statements
                    .iter()
                    .map(|one| {
                        if mixed {
                            without_names_of_not_null(one)
                        } else {
                            one.clone()
                        }
                    })
                    .collect()
            };
            let differ = differences(&told(before), &told(after));
            if !differ.is_empty() {
                shared.fail(
                    "definition",
                    format!("of shard {shard}:\n{}", differ.join("\n")),
                );
            }
        }
    }
}

fn differences(before: &[String], after: &[String]) -> Vec<String> {
    let gone = before.iter().filter(|statement| !after.contains(statement));
    let new = after.iter().filter(|statement| !before.contains(statement));
    gone.map(|one| format!("- {one}"))
        .chain(new.map(|one| format!("+ {one}")))
        .collect()
}

/// The differences between an old copy's definition and that of the shard's new copy; none where
/// their versions differ. Foreign keys, triggers and a mover's indexes do not count: an old copy
/// that is fed has other ones.
pub(crate) fn copies_differ(
    shared: &Shared,
    shard: u16,
    old: (usize, &str),
    new_on: usize,
) -> Vec<String> {
    let versions = &shared.case.versions;
    if versions[old.0] != versions[new_on] {
        return Vec::new();
    }
    let schema = Shared::schema_name(shard);
    let said = |host: usize, name: &str| -> Vec<String> {
        let without = ["FOREIGN KEY", "TRIGGER", "INDEX pgshard_rows_"];
        let kept = dumped(shared, name, host)
            .into_iter()
            .filter(|one| !without.iter().any(|word| one.contains(word)));
        kept.map(|one| one.replace(name, &schema)).collect()
    };
    differences(&said(old.0, old.1), &said(new_on, &schema))
}

/// `a integer CONSTRAINT t_a_not_null NOT NULL` as `a integer NOT NULL`.
fn without_names_of_not_null(statement: &str) -> String {
    let unnamed = |line: &str| {
        let line = line.to_owned();
        let (Some(name), Some(end)) = (line.find(" CONSTRAINT "), line.find(" NOT NULL")) else {
            return line;
        };
        let is_name = line
            .get(name + 12..end)
            .is_some_and(|name| name.ends_with("_not_null") || name.ends_with("_not_null\""));
        if is_name {
            line[..name].to_owned() + &line[end..]
        } else {
            line
        }
    };
    statement
        .lines()
        .map(unnamed)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The statements, without settings, and without what a move may lend.
fn dumped(shared: &Shared, schema: &str, host: usize) -> Vec<String> {
    let program = Binaries::of_major(18)
        .expect("PostgreSQL 18 is here")
        .program("pg_dump");
    let url = shared.world.servers.server(host).superuser_url();
    let mut command = Command::new(program);
    command.args(["--schema-only", "-n", schema, "-d", &url]);
    let dump = tokio::task::block_in_place(|| command.output()).expect("pg_dump runs");
    assert!(
        dump.status.success(),
        "pg_dump: {}",
        String::from_utf8_lossy(&dump.stderr)
    );
    let text = String::from_utf8(dump.stdout).expect("a dump is UTF-8");
    let left_out = ["--", "SET ", "\\", "SELECT pg_catalog.set_config"];
    let lines = text
        .lines()
        .filter(|line| !line.is_empty() && !left_out.iter().any(|no| line.starts_with(no)));
    let text = lines.collect::<Vec<_>>().join("\n");
    let said = text
        .split(";\n")
        .map(|statement| statement.trim_end_matches(';'));
    let said =
        said.filter(|statement| !statement.is_empty() && !statement.contains(" REPLICA IDENTITY "));
    let mut statements: Vec<String> = said.map(str::to_owned).collect();
    statements.sort();
    assert!(
        statements.len() > 3,
        "a shard has more than {statements:#?}"
    );
    statements
}
