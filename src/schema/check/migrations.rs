//! The migrations that were run, and the objects that they have made, compared with the folder or
//! between shards.

use std::collections::BTreeMap;

use super::view::Hosts;
use crate::map::HostName;
use crate::schema::check::finding::{Findings, Severity};
use crate::schema::control::RecordedMigration;
use crate::schema::control::id_functions::{ID_FUNCTIONS, MARK};
use crate::schema::fleet::migrations::{Drift, Migrations, Pending};
use crate::schema::survey::expected_objects;
use crate::schema::survey::facts::ControlFacts;
use crate::shard::ShardId;

/// `folder` has the migrations that there should be, if they are known.
pub(super) fn check(findings: &mut Findings, hosts: &Hosts<'_>, folder: Option<&Migrations>) {
    lacking(findings, hosts);
    differing(findings, hosts, folder);
    for (host, control) in &hosts.controls {
        failed(findings, host, control, folder);
        if let Some(folder) = folder.filter(|_| hosts.cluster.whole(host).is_none()) {
            once_per_host(findings, host, control, folder);
        }
    }
}

/// Shards with schemas that exist, but lack objects that were created in them.
fn lacking(findings: &mut Findings, hosts: &Hosts<'_>) {
    let controls = hosts
        .controls
        .iter()
        .map(|(host, control)| (*host, *control));
    for ((host, shard), what) in expected_objects::lacking(controls) {
        let what = format!("its schema {what}");
        findings.add_shard(
            Severity::Error,
            "objects_missing",
            Some(host),
            shard,
            what,
            expected_objects::RESTORE,
        );
    }
}

/// Shards that have not run what they should.
fn differing(findings: &mut Findings, hosts: &Hosts<'_>, folder: Option<&Migrations>) {
    let mut shards: Vec<(&HostName, ShardId, &[RecordedMigration])> = Vec::new();
    // On an unsharded host no migrations are run.
    let sharded = |(_, control): &(&&HostName, &&ControlFacts)| control.whole.is_none();
    for (host, control) in hosts.controls.iter().filter(sharded) {
        let applied = control.migrations_by_shard();
        // What a moved shard had does not matter any longer.
        let owned = control
            .shards
            .iter()
            .filter(|(_, row)| row.state.is_owner());
        shards.extend(owned.map(|(shard, _)| {
            (
                *host,
                *shard,
                applied.get(shard).copied().unwrap_or_default(),
            )
        }));
    }
    let mut counts: BTreeMap<&[RecordedMigration], usize> = BTreeMap::new();
    for (.., applied) in &shards {
        *counts.entry(applied).or_default() += 1;
    }
    let Some((usual, _)) = counts.iter().max_by_key(|(_, count)| **count) else {
        return;
    };
    let judge = |applied: &[RecordedMigration]| match folder {
        Some(folder) => beside_folder(applied, folder),
        None => beside_others(applied, usual),
    };
    // Judged once for each set of migrations, not once for each of thousands of shards.
    let verdicts: BTreeMap<_, _> = counts
        .keys()
        .map(|applied| (*applied, judge(applied)))
        .collect();
    for (host, shard, applied) in shards {
        if let Some((severity, code, what, remedy)) = &verdicts[applied] {
            findings.add_shard(
                *severity,
                code,
                Some(host),
                shard,
                what.as_str(),
                remedy.as_str(),
            );
        }
    }
}

/// What is found of shards with the same migrations: severity, code, what, and the remedy.
type Verdict = Option<(Severity, &'static str, String, String)>;

/// Where there is no folder, most shards are right.
fn beside_others(applied: &[RecordedMigration], usual: &[RecordedMigration]) -> Verdict {
    if applied == usual {
        return None;
    }
    let names = |list: &[RecordedMigration], other: &[RecordedMigration]| {
        let more = list
            .iter()
            .filter(|one| !other.contains(one))
            .map(|one| one.name.as_str());
        more.collect::<Vec<_>>().join(", ")
    };
    let what = match (names(usual, applied), names(applied, usual)) {
        (lacks, more) if more.is_empty() => {
            format!("it lacks migrations that most shards have: {lacks}")
        }
        (lacks, more) if lacks.is_empty() => {
            format!("it has migrations that most shards do not have: {more}")
        }
        (lacks, more) => format!("most shards have {lacks}, where it has {more}"),
    };
    Some((
        Severity::Warning,
        "migrations_differ",
        what,
        "name the folder of the migrations in the config, migrations = \"…\" below [cluster], then \
         run `pgshard migrate up`"
            .to_owned(),
    ))
}

fn beside_folder(applied: &[RecordedMigration], folder: &Migrations) -> Verdict {
    let everything = Pending {
        own_from: ID_FUNCTIONS.len(),
        from: folder.iter().len(),
    };
    match folder.pending(applied) {
        Ok(pending) if pending == everything => None,
        Ok(pending) => {
            let own = ID_FUNCTIONS[pending.own_from..].iter().map(|own| own.name);
            let lacks: Vec<&str> = own
                .chain(folder.iter().skip(pending.from).map(|one| one.name()))
                .collect();
            let what = format!("it lacks {}", lacks.join(", "));
            let first = lacks.first().unwrap_or(&"NAME");
            let remedy = format!(
                "{UP}; where what it makes is there already, `pgshard migrate resolve {first} \
                    --applied` records it"
            );
            Some((Severity::Warning, "migrations_pending", what, remedy))
        }
        Err(drifts) => {
            let said: Vec<String> = drifts.iter().map(ToString::to_string).collect();
            let mut remedies: Vec<String> = drifts.iter().map(Drift::remedy).collect();
            remedies.dedup();
            Some((
                Severity::Error,
                "migrations_drift",
                said.join("; "),
                remedies.join("; "),
            ))
        }
    }
}

const UP: &str = "run `pgshard migrate up`";

/// Shard migrations that were begun and did not succeed.
fn failed(
    findings: &mut Findings,
    host: &HostName,
    control: &ControlFacts,
    folder: Option<&Migrations>,
) {
    let is_owned = |shard: &ShardId| {
        control
            .shards
            .get(shard)
            .is_some_and(|row| row.state.is_owner())
    };
    for (shard, attempt) in control.attempts.iter().filter(|(shard, _)| is_owned(shard)) {
        let message = attempt
            .message
            .as_deref()
            .unwrap_or("it was begun, and its outcome is unknown");
        let what = format!("{}: {message}", attempt.name);
        let has_file = |all: &Migrations| all.iter().any(|one| one.name() == attempt.name);
        let remedy = if attempt.name.starts_with(MARK) || folder.is_none_or(has_file) {
            "correct what is wrong, then `pgshard migrate retry`".to_owned()
        } else {
            format!(
                "its file is gone: put it back, or see whether it has left an index that is not \
                    valid, then DELETE \
                 FROM pgshard.migration_attempt WHERE shard_id = {shard}"
            )
        };
        findings.add_shard(
            Severity::Warning,
            "migration_failed",
            Some(host),
            *shard,
            what,
            remedy,
        );
    }
}

/// Once-per-host migrations that have not run yet, or ran with another text.
fn once_per_host(
    findings: &mut Findings,
    host: &HostName,
    control: &ControlFacts,
    folder: &Migrations,
) {
    match folder.pending_on_host(&control.host_migrations) {
        Ok(from) if from < folder.of_hosts().len() => {
            let lacks: Vec<&str> = folder.of_hosts().skip(from).map(|one| one.name()).collect();
            let what = format!("it lacks the once-per-host migrations {}", lacks.join(", "));
            findings.add(
                Severity::Warning,
                "host_migrations_pending",
                Some(host),
                what,
                UP,
            );
        }
        Ok(_) => {}
        Err(drifts) => {
            for drift in drifts {
                let what = format!("of the once-per-host migrations, {drift}");
                findings.add(
                    Severity::Error,
                    "host_migrations_drift",
                    Some(host),
                    what,
                    drift.remedy(),
                );
            }
        }
    }
}
