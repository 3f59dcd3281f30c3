//! An operator's decision about a migration with a record that does not match its file: that it was
//! done by hand, that what ran is equivalent to the edited file, or that its effect is gone.
//!
//! Invariant: only records are written, and none where the operator cannot be right: where a shard
//! lacks an earlier migration, has run another text, or has run a later one, or where the index
//! that it makes is not valid. If that is so for any requested shard, nothing is written anywhere.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};

use super::plan::standing_back;
use super::request::Request;
use super::steps::{Step, record};
use super::transaction::{self, Outcome};
use super::{LockedHosts, lock_hosts};
use crate::map::{HostName, print_shards};
use crate::pg::HostState;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection, quote_literal};
use crate::schema::control::RecordedMigration;
use crate::schema::control::script::Repeatable;
use crate::schema::fleet::fault::{HostFault, ShardFault};
use crate::schema::fleet::migrations::{Kind, Migration};
use crate::schema::fleet::report::{HostReport, Report};
use crate::schema::fleet::session::{self, flush};
use crate::schema::survey::facts::{ControlFacts, Survey};
use crate::schema::survey::refusal::pending_in_shards;
use crate::shard::ShardId;

/// The operator's decision about a migration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolution {
    /// It was done by hand: it counts as run, and does not run.
    Applied,
    /// It ran with another text than its file has now, and the result is as good: it counts as run
    /// with this text.
    AcceptEdit,
    /// What it had done is gone, as after a restore from an older dump: it counts as not run, and
    /// runs again.
    NotApplied,
}

/// Why nothing is resolved anywhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResolveError {
    /// The folder has no such file.
    #[error("the folder of migrations has no file {name}.sql")]
    NoSuchFile {
        /// The name, without `.sql`.
        name: String,
    },
    /// It cannot be true for some shards or hosts: each with the reason.
    #[error("{}", .0.join("; "))]
    Refused(Vec<String>),
}

/// What is to be recorded where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Resolving {
    /// By host, without those that could not be read.
    pub hosts: BTreeMap<HostName, HostResolving>,
}

/// What is to be recorded on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HostResolving {
    /// Whether it is the host's own record of a migration that runs once per host.
    pub once: bool,
    /// The shards in which the record is written.
    pub shards: BTreeSet<ShardId>,
    /// How many shards have the record already, or have not run the migration and will run its file
    /// as it is now.
    pub unchanged: usize,
    /// The shards that are left alone, each with the reason.
    pub left: BTreeMap<ShardId, ShardFault>,
    /// Why nothing is written on the host.
    pub fault: Option<HostFault>,
}

/// What is to be done with a record.
enum Verdict {
    Write,
    Unchanged,
    /// The operator cannot be right, for this reason.
    Wrong(String),
}

/// What would be recorded where, by the facts of the hosts. Pure.
///
/// # Errors
/// When there is no such file, or when it cannot be true for a requested shard or host.
pub fn plan_resolving(
    request: &Request,
    name: &str,
    resolution: Resolution,
    survey: &Survey,
) -> Result<Resolving, ResolveError> {
    let no_file = || ResolveError::NoSuchFile {
        name: name.to_owned(),
    };
    let file = find(request, name).ok_or_else(no_file)?;
    let (mut resolving, mut wrong) = (Resolving::default(), Vec::new());
    for (host, facts) in survey.iter().filter(|(name, _)| request.chooses(name)) {
        let Ok(facts) = facts else { continue };
        let of_host = match (
            pending_in_shards(facts, &request.cluster, host),
            &facts.control,
        ) {
            (Err(refusals), _) => HostResolving {
                fault: Some(HostFault::Refused(refusals)),
                ..Default::default()
            },
            (Ok(versions), Some(control)) if versions.is_empty() => {
                let (of_host, found) = on_host(request, file, resolution, survey, host, control);
                wrong.extend(found.into_iter().map(|found| format!("{host}: {found}")));
                of_host
            }
            (Ok(_), _) => HostResolving {
                fault: Some(HostFault::NotBootstrapped),
                ..Default::default()
            },
        };
        resolving.hosts.insert(host.clone(), of_host);
    }
    if wrong.is_empty() {
        Ok(resolving)
    } else {
        Err(ResolveError::Refused(wrong))
    }
}

/// Records it. A host or shard that fails is in the report; the others continue.
///
/// # Errors
/// As [`plan_resolving`]; nothing is written then.
///
/// # Cancel safety
/// Dropping the future closes the connections. Each shard's record is written or not; doing it
/// again writes the rest.
pub fn resolve<'a>(
    request: &'a Request,
    name: &'a str,
    resolution: Resolution,
) -> BoxFuture<'a, Result<Report, ResolveError>> {
    Box::pin(async move {
        let started = Instant::now();
        let LockedHosts {
            sessions,
            survey,
            mut faults,
        } = lock_hosts(request).await;
        let mut resolving = plan_resolving(request, name, resolution, &survey)?;
        let file = find(request, name).expect("the plan has found it");
        let mut report = Report::default();
        let works = request.hosts.iter().filter_map(|(host, connect)| {
            let of_host = resolving.hosts.remove(host)?;
            let session = sessions.get(host)?;
            (!faults.contains_key(host)).then_some((host, connect, session, of_host))
        });
        let works: Vec<_> = works.collect();
        let done = join_all(
            works
                .into_iter()
                .map(async |(host, connect, session, of_host)| {
                    let mut of_host =
                        write(request, file, resolution, (connect, session), of_host).await;
                    if of_host.fault.is_none() && of_host.changed() {
                        of_host.fault = flush(session).await.err();
                    }
                    of_host.elapsed = started.elapsed();
                    (host.clone(), of_host)
                }),
        );
        report.hosts.extend(done.await);
        for (host, _) in request
            .hosts
            .iter()
            .filter(|(name, _)| request.chooses(name))
        {
            if !report.hosts.contains_key(host) {
                let unread = || HostFault::Unread {
                    state: HostState::NotAsked,
                    reason: "it was not asked".to_owned(),
                };
                report.hosts.insert(
                    host.clone(),
                    HostReport::left(faults.remove(host).unwrap_or_else(unread)),
                );
            }
        }
        Ok(report)
    })
}

fn find<'a>(request: &'a Request, name: &str) -> Option<&'a Migration> {
    request
        .migrations
        .of_hosts()
        .chain(request.migrations.iter())
        .find(|one| one.name() == name)
}

fn on_host(
    request: &Request,
    file: &Migration,
    resolution: Resolution,
    survey: &Survey,
    host: &HostName,
    control: &ControlFacts,
) -> (HostResolving, Vec<String>) {
    let mut resolving = HostResolving::default();
    if let Some(at) = request
        .migrations
        .of_hosts()
        .position(|one| one.name() == file.name())
    {
        let all: Vec<&str> = request.migrations.of_hosts().map(Migration::name).collect();
        return match verdict(
            file,
            resolution,
            (&all[..at], &all[at + 1..]),
            &control.host_migrations,
        ) {
            Verdict::Write => (
                HostResolving {
                    once: true,
                    ..resolving
                },
                Vec::new(),
            ),
            Verdict::Unchanged => (
                HostResolving {
                    unchanged: 1,
                    ..resolving
                },
                Vec::new(),
            ),
            Verdict::Wrong(why) => (resolving, vec![format!("it {why}")]),
        };
    }
    let all: Vec<&str> = request.migrations.iter().map(Migration::name).collect();
    let at = all
        .iter()
        .position(|name| *name == file.name())
        .unwrap_or(all.len());
    let around = (&all[..at], all.get(at + 1..).unwrap_or_default());
    let has = control.migrations_by_shard();
    let wanted = |shard: &ShardId| {
        request
            .only_shards
            .as_ref()
            .is_none_or(|only| only.contains(shard))
    };
    let mut wrong: BTreeMap<String, Vec<ShardId>> = BTreeMap::new();
    for (shard, row) in control
        .shards
        .iter()
        .filter(|(shard, row)| row.state.is_owner() && wanted(shard))
    {
        let records = has.get(shard).copied().unwrap_or_default();
        let verdict = match (verdict(file, resolution, around, records), &file.kind) {
            (
                Verdict::Write,
                Kind::NoTransaction {
                    repeatable: Repeatable::Index(index),
                    ..
                },
            ) if resolution == Resolution::Applied
                && control.invalid_indexes.contains(&(*shard, index.clone())) =>
            {
                Verdict::Wrong(format!("has the index {index}, which is not valid: {ANEW}"))
            }
            (verdict, _) => verdict,
        };
        match verdict {
            Verdict::Unchanged => resolving.unchanged += 1,
            Verdict::Wrong(why) => wrong.entry(why).or_default().push(*shard),
            Verdict::Write => match standing_back(control, survey, host, *shard, row) {
                Some(fault) => drop(resolving.left.insert(*shard, fault)),
                None => drop(resolving.shards.insert(*shard)),
            },
        }
    }
    let said = wrong.into_iter().map(|(why, shards)| match shards.len() {
        1 => format!("shard {} {why}", shards[0]),
        _ => format!("shards {} {why}", print_shards(shards)),
    });
    (resolving, said.collect())
}

/// What to do about an index that is not valid.
const ANEW: &str = "`pgshard migrate up` makes it anew; drop it first if no migration has begun it";

fn verdict(
    file: &Migration,
    resolution: Resolution,
    (before, after): (&[&str], &[&str]),
    records: &[RecordedMigration],
) -> Verdict {
    let has = |name: &&&str| records.iter().any(|record| record.name == **name);
    let recorded = records.iter().find(|record| record.name == file.name());
    match (resolution, recorded) {
        (Resolution::NotApplied, None) => Verdict::Unchanged,
        (Resolution::NotApplied, Some(_)) => {
            let later = after.iter().find(has);
            later.map_or(Verdict::Write, |name| {
                Verdict::Wrong(format!("has run {name}, which comes after"))
            })
        }
        (_, Some(record)) if record.checksum == file.checksum() => Verdict::Unchanged,
        (Resolution::AcceptEdit, Some(_)) => Verdict::Write,
        (Resolution::AcceptEdit, None) => Verdict::Unchanged,
        (Resolution::Applied, Some(_)) => {
            Verdict::Wrong(format!("ran {} with another text", file.name()))
        }
        (Resolution::Applied, None) => {
            let lacks = before.iter().find(|name| !has(name));
            lacks.map_or(Verdict::Write, |name| {
                Verdict::Wrong(format!("lacks {name}, which comes before"))
            })
        }
    }
}

/// Writes the records of one host.
///
/// Locks: for each shard its row, FOR SHARE, for one short transaction.
async fn write(
    request: &Request,
    file: &Migration,
    resolution: Resolution,
    (connect, session): (&ConnectOptions, &Connection),
    resolving: HostResolving,
) -> HostReport {
    let HostResolving {
        once,
        shards,
        unchanged,
        left,
        fault,
    } = resolving;
    let mut report = HostReport {
        unchanged,
        failed: left,
        fault,
        ..HostReport::default()
    };
    if report.fault.is_some() {
        return report;
    }
    let lost = |error: &tokio_postgres::Error| HostFault::Lost {
        reason: chain(error),
    };
    if once {
        match session.batch_execute(&host_record(file, resolution)).await {
            Ok(()) => report.once.push(file.name().to_owned()),
            Err(error) => report.fault = Some(lost(&error)),
        }
    }
    if shards.is_empty() || report.fault.is_some() {
        return report;
    }
    let client = match session::open(connect, "pgshard migrate").await {
        Ok(client) => client,
        Err(fault) => {
            report.fault = Some(fault);
            return report;
        }
    };
    for shard in shards {
        let sql = shard_record(file, resolution, shard);
        let since = Instant::now();
        let outcome = loop {
            match transaction::run(&client, shard, &[], &sql, request.pace.lock_timeout).await {
                Ok(Outcome::Again(_)) if since.elapsed() < request.pace.patience => {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(Outcome::Done) => report.migrated.push(shard),
            Ok(Outcome::Again(fault) | Outcome::Apart(fault) | Outcome::Failed(fault)) => {
                report.failed.insert(shard, fault);
            }
            Err(error) => {
                report.fault = Some(lost(&error));
                return report;
            }
        }
    }
    report
}

fn shard_record(file: &Migration, resolution: Resolution, shard: ShardId) -> String {
    match resolution {
        Resolution::Applied => record(
            shard,
            &[Step {
                recorded: file.recorded(),
                sql: String::new(),
                outside: None,
            }],
        ),
        Resolution::AcceptEdit => format!(
            "UPDATE pgshard.shard_migration SET checksum = {} WHERE shard_id = {shard} AND name = \
                {name};
             DELETE FROM pgshard.migration_attempt WHERE shard_id = {shard} AND name = {name}",
            quote_literal(file.checksum()),
            name = quote_literal(file.name()),
        ),
        Resolution::NotApplied => format!(
            "DELETE FROM pgshard.shard_migration WHERE shard_id = {shard} AND name = {name};
             DELETE FROM pgshard.migration_attempt WHERE shard_id = {shard} AND name = {name}",
            name = quote_literal(file.name()),
        ),
    }
}

fn host_record(file: &Migration, resolution: Resolution) -> String {
    let (name, checksum) = (quote_literal(file.name()), quote_literal(file.checksum()));
    match resolution {
        Resolution::Applied => {
            format!(
                "INSERT INTO pgshard.host_migration (name, checksum) VALUES ({name}, {checksum})"
            )
        }
        Resolution::AcceptEdit => {
            format!("UPDATE pgshard.host_migration SET checksum = {checksum} WHERE name = {name}")
        }
        Resolution::NotApplied => format!("DELETE FROM pgshard.host_migration WHERE name = {name}"),
    }
}
