//! Runs the application's migrations in all existing shards, while the application works.
//!
//! It reads all hosts, plans ([`plan`], pure), then works on the hosts at the same time: their
//! once-per-host migrations, the shards of the canary, the rest. Each shard has transactions of its
//! own and waits for a lock only briefly; if it does not get it, others come first. A shard that
//! fails is reported and the others continue. A second run does only what is left.
//!
//! Invariant: nothing is run if a file was edited, removed or inserted before one that has run; a
//! shard that a move has claimed is left alone until the move has ended; and a migration is
//! recorded together with what it did, or not at all.

mod host;
mod once;
mod outside;
mod plan;
mod request;
mod resolve;
mod steps;
pub(in crate::schema) mod transaction;

use std::collections::BTreeMap;
use std::time::Instant;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::Semaphore;

use super::fault::{HostFault, ShardFault};
use super::report::{Event, HostReport, NO_PANIC, Observer, Report};
use super::session::{self, flush, lock, read};
use crate::map::HostName;
use crate::pg::HostState;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection};
use crate::schema::control::rights::{self, Roles};
use crate::schema::survey::facts::Survey;
use crate::shard::ShardId;

pub(in crate::schema) use host::OnHost;
pub(in crate::schema) use once::run_once;
use plan::unserved;
pub use plan::{Group, HostPlan, Plan, plan};
pub use request::{Canary, Pace, Request, Which};
pub use resolve::{HostResolving, Resolution, ResolveError, Resolving, plan_resolving, resolve};

/// Runs the migrations that the shards lack. A host or shard that fails is in the report, and the
/// others continue. The report also has every shard of the cluster that no host serves.
///
/// # Cancel safety
/// Dropping the future closes the connections. A transaction that is under way is committed as a
/// whole or not at all; what runs without one is finished or cleaned up by the next run.
pub fn migrate<'a>(request: &'a Request, observer: Observer<'a>) -> BoxFuture<'a, Report> {
    Box::pin(async move {
        let started = Instant::now();
        let LockedHosts {
            sessions,
            survey,
            mut faults,
        } = lock_hosts(request).await;
        let plan = plan(request, &survey);
        let in_all = Semaphore::new(request.pace.max_concurrency.get());
        let mut works: Vec<OnHost<'_>> = Vec::new();
        let mut report = Report::default();
        for (name, connect) in by_name(request)
            .into_iter()
            .filter(|(name, _)| request.chooses(name))
        {
            let fault = faults
                .remove(name)
                .or_else(|| plan.hosts.get(name).and_then(|host| host.fault.clone()));
            match (plan.hosts.get(name), fault) {
                (Some(of_host), None) => {
                    observer(Event::HostPlanned {
                        host: name,
                        to_do: of_host.to_do(),
                        unchanged: of_host.unchanged,
                    });
                    let work = OnHost::new(
                        name,
                        connect,
                        &request.cluster,
                        &request.migrations,
                        request.pace,
                        &in_all,
                        observer,
                    );
                    work.report.lock().expect(NO_PANIC).unchanged = of_host.unchanged;
                    for (shard, fault) in &of_host.left {
                        work.failed(*shard, fault.clone());
                    }
                    works.push(work);
                }
                (_, fault) => {
                    let fault = fault.unwrap_or_else(|| HostFault::Unread {
                        state: HostState::NotAsked,
                        reason: "it was not asked".to_owned(),
                    });
                    report.hosts.insert(name.clone(), HostReport::left(fault));
                }
            }
        }
        run(&works, &plan, request.canary).await;
        report.unserved = unserved(request, &survey);
        if !report.unserved.is_empty() {
            // A shard that was opened in the meantime, and lacks nothing, is not reported.
            let again = survey_again(&sessions).await;
            let (plan, still) = (self::plan(request, &again), unserved(request, &again));
            let lacks = |shard: &ShardId| plan.hosts.values().any(|host| host.lacks(*shard));
            report
                .unserved
                .retain(|shard, _| still.contains_key(shard) || lacks(shard));
        }
        for work in works {
            let mut of_host = work.report.into_inner().expect(NO_PANIC);
            if let (None, Some(session)) = (&of_host.fault, sessions.get(work.host)) {
                of_host.fault = finish(session, &mut of_host).await.err();
            }
            of_host.migrated.sort_unstable();
            report.hosts.insert(work.host.clone(), of_host);
        }
        for (name, of_host) in &mut report.hosts {
            of_host.elapsed = started.elapsed();
            if let Some(fault) = &of_host.fault {
                observer(Event::HostFailed { host: name, fault });
            }
            observer(Event::HostDone {
                host: name,
                report: of_host,
            });
        }
        report
    })
}

/// Lets roles look up shards if a file has given them the use of a shard, and monitors read what
/// they lack, and makes the last commits durable.
async fn finish(session: &Connection, of_host: &mut HostReport) -> Result<(), HostFault> {
    let admitted = rights::admit_all(session, &Roles::default()).await;
    of_host.admitted = admitted.map_err(|error| HostFault::Lost {
        reason: chain(&error),
    })?;
    if of_host.changed() {
        flush(session).await
    } else {
        Ok(())
    }
}

/// The hosts' sessions, the facts of each host, and why others could not be read. Hosts that are
/// written to are locked by their sessions.
struct LockedHosts {
    sessions: BTreeMap<HostName, Connection>,
    survey: Survey,
    faults: BTreeMap<HostName, HostFault>,
}

fn by_name(request: &Request) -> Vec<&(HostName, ConnectOptions)> {
    let mut hosts: Vec<&(HostName, ConnectOptions)> = request.hosts.iter().collect();
    hosts.sort_by(|a, b| a.0.cmp(&b.0));
    hosts
}

/// Opens, locks and reads the hosts. One host after the other, by name: so two runs cannot wait for
/// each other in a circle. Hosts that are only read are not locked.
async fn lock_hosts(request: &Request) -> LockedHosts {
    let hosts = by_name(request);
    let opened = join_all(
        hosts
            .iter()
            .map(|(_, connect)| session::open(connect, "pgshard migrate")),
    )
    .await;
    let mut held = LockedHosts {
        sessions: BTreeMap::new(),
        survey: Survey::new(),
        faults: BTreeMap::new(),
    };
    for ((name, _), session) in hosts.iter().zip(opened) {
        let locked = match session {
            Ok(session) if request.chooses(name) => lock(session).await,
            other => other,
        };
        match locked {
            Ok(session) => drop(held.sessions.insert(name.clone(), session)),
            Err(fault) => drop(held.faults.insert(name.clone(), fault)),
        }
    }
    held.survey = survey_again(&held.sessions).await;
    for (name, facts) in &held.survey {
        if let Err(error) = facts {
            held.faults.insert(name.clone(), HostFault::unread(error));
        }
    }
    held
}

/// The facts of the hosts now.
async fn survey_again(sessions: &BTreeMap<HostName, Connection>) -> Survey {
    join_all(
        sessions
            .iter()
            .map(|(name, session)| async { (name.clone(), read(session).await) }),
    )
    .await
    .into_iter()
    .collect()
}

/// The once-per-host migrations, then the canary's shards, then the others.
async fn run(works: &[OnHost<'_>], plan: &Plan, canary: Option<Canary>) {
    join_all(
        works
            .iter()
            .map(|work| work.once(plan.hosts[work.host].host_from)),
    )
    .await;
    let canary = canary.map(|canary| plan.canary(canary)).unwrap_or_default();
    let shards = |work: &OnHost<'_>, first: bool| {
        let all = plan.hosts[work.host].shards.iter();
        all.filter(|(shard, _)| canary.contains(shard) == first)
            .map(|(shard, pending)| (*shard, *pending))
            .collect()
    };
    if !canary.is_empty() {
        join_all(works.iter().map(|work| work.run(shards(work, true)))).await;
        let failed: usize = works.iter().map(OnHost::failures).sum();
        if failed > 0 {
            for work in works.iter().filter(|work| !work.is_lost()) {
                for (shard, _) in shards(work, false) {
                    work.failed(shard, ShardFault::Canary { failed });
                }
            }
            return;
        }
    }
    join_all(works.iter().map(|work| work.run(shards(work, false)))).await;
}
