//! Bootstrap: creates on every host the control schema and the shards that the map places there,
//! with the ID function and the application's migrations.
//!
//! It reads all hosts, plans (`plan.rs`, pure), then works on the hosts at the same time, on a few
//! connections each. A shard that fails is reported and the others continue. A second run does only
//! what is left.
//!
//! Invariant: no shard is created unless every host of the config has been read, under a lock that
//! keeps a second bootstrap out of all of them until this one has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::Semaphore;

use super::batch::{Alone, run_alone, run_many};
use super::fault::{HostFault, ShardFault};
use super::install::{ControlError, install_for, serve_all};
use super::migrate::{OnHost, Pace, run_once};
use super::migrations::{Migrations, Pending};
use super::one_by_one;
pub use super::plan::Host;
use super::plan::{HostPlan, Knowledge, plan};
use super::queue::{Next, Queue};
use super::recipe::{Placed, Recipe};
use super::redirect;
use super::report::NO_PANIC;
pub use super::report::{Event, HostReport, Observer, Report};
use super::session::{self, flush, lock, read};
use crate::backoff::Backoff;
use crate::map::{HostName, print_ranges};
use crate::pg::Connection;
use crate::pg::cause::chain;
use crate::schema::control::Cluster;
use crate::schema::control::rights::{self, Roles};
use crate::schema::survey::facts::{HostFacts, Record};
use crate::schema::survey::host_records::{self, HostRecords};
use crate::schema::survey::refusal::pending;
use crate::shard::ShardId;

/// The most shards in one transaction. More gains nothing, and a failure then costs more shards'
/// work.
const BATCH_MAX: usize = 64;

/// The most SQL in one batch, unless one shard alone has more: a batch is one message, in our
/// memory and in the server's.
const BATCH_BYTES_MAX: usize = 4 << 20;

/// A shard is tried once, so nothing comes back.
const NO_PAUSES: Backoff = Backoff {
    first: Duration::ZERO,
    max: Duration::ZERO,
    jitter: Backoff::NO_JITTER,
};

/// What bootstrap is to do.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Request {
    /// The cluster, as the config has it.
    pub cluster: Cluster,
    /// Every host of the config. All are read, whichever are written to.
    pub hosts: Vec<Host>,
    /// The hosts to write to; all if there is none.
    pub only: BTreeSet<HostName>,
    /// Hosts that certainly hold no shard of this cluster. If one of them cannot be reached, shards
    /// are created all the same. One that answers, even with an error, is only believed to hold
    /// none where it is [fenced](Request::fenced) too.
    pub assume_empty: BTreeSet<HostName>,
    /// Hosts with rows that are permanently lost. Their shards are created again, empty, where the
    /// map places them. Without this, a shard that any host has a record of is not created. A host
    /// in this set that the config does not name is removed from the others' records.
    pub lost: BTreeSet<HostName>,
    /// Hosts that were fenced off: no application reaches them any more, though they may answer us.
    pub fenced: BTreeSet<HostName>,
    /// The application's shard migrations.
    pub migrations: Migrations,
    /// Connections to each host; [`Request::WIDTH`] is a good number.
    pub width: NonZeroUsize,
}

impl Request {
    /// All hosts, none of which is assumed empty or lost, with [`Request::WIDTH`] connections to
    /// each.
    pub fn new(cluster: Cluster, hosts: Vec<Host>, migrations: Migrations) -> Request {
        let none = BTreeSet::new();
        let (only, assume_empty, lost, fenced) = (none.clone(), none.clone(), none.clone(), none);
        Request {
            cluster,
            hosts,
            only,
            assume_empty,
            lost,
            fenced,
            migrations,
            width: Request::WIDTH,
        }
    }

    /// A good number of connections to each host.
    pub const WIDTH: NonZeroUsize = NonZeroUsize::new(4).expect("four is not zero");
}

setters!(
    Request: only: BTreeSet<HostName>,
    assume_empty: BTreeSet<HostName>,
    lost: BTreeSet<HostName>,
    fenced: BTreeSet<HostName>,
    width: NonZeroUsize,
);

/// Creates what the hosts lack. A host or shard that fails is in the report; the others continue.
///
/// # Cancel safety
/// Dropping the future closes the connections. A transaction that is under way is committed as a
/// whole or not at all; run it again for the rest.
pub fn bootstrap<'a>(request: &'a Request, observer: Observer<'a>) -> BoxFuture<'a, Report> {
    Box::pin(async move {
        let started = Instant::now();
        let mut hosts: Vec<&Host> = request.hosts.iter().collect();
        hosts.sort_by(|a, b| a.name.cmp(&b.name));
        let opened = join_all(hosts.iter().map(|host| open(host))).await;
        // One host after the other, by name: so two bootstraps cannot wait for each other in a
        // circle.
        let mut locked = Vec::new();
        for outcome in opened {
            locked.push(match outcome {
                Ok(connection) => lock(connection).await,
                Err(fault) => Err(fault),
            });
        }
        let facts = join_all(locked.into_iter().map(|session| async {
            let session = session?;
            let facts = read(&session)
                .await
                .map_err(|error| HostFault::unread(&error))?;
            Ok((session, facts))
        }));
        let mut read: Vec<Result<(Connection, HostFacts), HostFault>> = facts.await;
        let gone = gone(request, hosts.iter().map(|host| &host.name).zip(&mut read));
        let asked = hosts
            .iter()
            .zip(&read)
            .map(|(host, read)| (&host.name, read.as_ref().ok().map(|(_, facts)| facts)));
        let chosen = || {
            hosts
                .iter()
                .zip(&read)
                .filter(|(host, _)| request.only.is_empty() || request.only.contains(&host.name))
        };
        let written_to =
            chosen().filter_map(|(_, read)| read.as_ref().ok().map(|(_, facts)| facts));
        let gone = gone.without_unasked(request, &HostRecords::of(asked.clone()));
        let knowledge = Knowledge::of(asked, &gone.assume_empty, &gone.lost)
            .with_drift(written_to, &request.migrations);
        let unheard = request
            .lost
            .iter()
            .filter(|host| !knowledge.has_heard_of(host))
            .cloned()
            .collect();
        let roles = roles(read.iter().flatten().map(|(_, facts)| facts));
        let reports = chosen().map(|(host, read)| async {
            let report = match read {
                Err(fault) => HostReport::left(fault.clone()),
                Ok((_, facts)) => match plan(
                    host,
                    facts,
                    &knowledge,
                    &request.cluster,
                    &request.migrations,
                ) {
                    Err(refusals) => HostReport::left(HostFault::Refused(refusals)),
                    Ok(plan) => {
                        let lock_slots = facts.server.lock_slots;
                        Job {
                            host,
                            request,
                            plan,
                            roles: &roles,
                            observer,
                            lock_slots,
                        }
                        .run()
                        .await
                    }
                },
            };
            (host.name.clone(), report)
        });
        let mut reports: BTreeMap<HostName, HostReport> =
            join_all(reports).await.into_iter().collect();
        let sessions = hosts
            .iter()
            .zip(&read)
            .filter_map(|(host, read)| Some((*host, read.as_ref().ok()?)));
        settle(request, &gone.lost, sessions, &mut reports).await;
        for (host, report) in &mut reports {
            report.elapsed = started.elapsed();
            if let Some(fault) = &report.fault {
                observer(Event::HostFailed { host, fault });
            }
            observer(Event::HostDone { host, report });
        }
        Report {
            hosts: reports,
            unheard,
            ..Report::default()
        }
    })
}

/// The hosts that may be left out, by the operator's flags and by how they answer.
struct LeftOutHosts {
    assume_empty: BTreeSet<HostName>,
    lost: BTreeSet<HostName>,
}

/// Applies the operator's flags only to hosts that read well, that cannot be reached, or that were
/// fenced off. The fault of each other one becomes [`HostFault::NotGone`].
fn gone<'a>(
    request: &Request,
    read: impl Iterator<
        Item = (
            &'a HostName,
            &'a mut Result<(Connection, HostFacts), HostFault>,
        ),
    >,
) -> LeftOutHosts {
    let (mut assume_empty, mut lost) = (request.assume_empty.clone(), request.lost.clone());
    for (host, read) in read {
        let fault = match read {
            Ok((_, facts)) => {
                // Its control schema is gone, and shards are there that applications may use.
                let prefix = request.cluster.schema_prefix.as_str();
                let is_ours = |schema: &String| schema.starts_with(prefix);
                if facts.control.is_none()
                    && facts.schemas.iter().any(is_ours)
                    && !request.fenced.contains(host)
                {
                    lost.remove(host);
                }
                continue;
            }
            Err(fault) => fault,
        };
        if fault.host_state().may_be_gone() || request.fenced.contains(host) {
            continue;
        }
        if assume_empty.remove(host) | lost.remove(host) {
            *fault = HostFault::NotGone {
                state: fault.host_state(),
                reason: fault.to_string(),
            };
        }
    }
    LeftOutHosts { assume_empty, lost }
}

impl LeftOutHosts {
    /// The same without the hosts that had shards, and that the config does not name: they
    /// were not contacted, and may serve those still.
    fn without_unasked(mut self, request: &Request, known: &HostRecords<'_>) -> LeftOutHosts {
        self.lost.retain(|host| {
            known.names(host) || request.fenced.contains(host) || !known.had_shards(host)
        });
        self
    }
}

/// The roles that may use a shard of any of these hosts, or may look up shards or monitor there.
fn roles<'a>(facts: impl Iterator<Item = &'a HostFacts>) -> Roles {
    let mut roles = Roles::default();
    for control in facts.filter_map(|facts| facts.control.as_ref()) {
        roles.routers.extend(control.routers.elsewhere().cloned());
        roles.monitors.extend(control.monitors.all.iter().cloned());
    }
    roles
}

/// Brings the records of all hosts up to date, also of those that were not to be written to,
/// redirects signposts that lead to removed hosts, lets the roles of routers and monitors use the
/// hosts, and releases the locks. A host with a fault is left as it is, and its records are
/// ignored.
async fn settle<'a>(
    request: &Request,
    lost: &BTreeSet<HostName>,
    sessions: impl Iterator<Item = (&'a Host, &'a (Connection, HostFacts))>,
    reports: &mut BTreeMap<HostName, HostReport>,
) {
    let mut good = Vec::new();
    for (host, (session, facts)) in sessions {
        let report = reports.get(&host.name);
        // The rows of a host that was left half done show what was made there, and the next
        // bootstrap reads those.
        if report.is_some_and(|report| report.fault.is_some()) {
            continue;
        }
        let facts = match report.is_some_and(HostReport::changed) {
            true => read(session).await,
            false => Ok(facts.clone()),
        };
        let Ok(facts) = facts else { continue };
        if let Ok([]) = pending(&facts, &request.cluster, &host.name).as_deref() {
            good.push((host, session, facts));
        }
    }
    let is_named = |host: &HostName| request.hosts.iter().any(|named| named.name == *host);
    let forgotten: BTreeSet<HostName> = lost
        .iter()
        .filter(|host| !is_named(host))
        .cloned()
        .collect();
    let controls = good
        .iter()
        .filter_map(|(host, _, facts)| Some((&host.name, facts.control.as_ref()?)));
    let record = host_records::record(controls.clone(), &forgotten);
    let roles = roles(good.iter().map(|(_, _, facts)| facts));
    for (host, session, facts) in &good {
        let Some(control) = &facts.control else {
            continue;
        };
        let redirects = redirect::redirects(control, controls.clone(), |peer| !is_named(peer));
        let redirects = redirects.redirects;
        let is_current = control.known == record && redirects.is_empty();
        if is_current && roles.are_let_in(&control.routers, &control.monitors) {
            continue;
        }
        let outcome = async {
            let admitted = rights::admit_all(session, &roles).await;
            let admitted = admitted.map_err(|error| HostFault::Lost {
                reason: chain(&error),
            })?;
            let led_on = redirect::lead_on(session, &redirects).await;
            led_on.map_err(|error| HostFault::unanswered(&error))?;
            write_record(session, &record).await?;
            flush(session).await.map(|()| admitted)
        };
        let outcome = outcome.await;
        if let Some(report) = reports.get_mut(&host.name) {
            match outcome {
                Ok(admitted) => report.admitted.extend(admitted),
                Err(fault) => report.fault = Some(fault),
            }
        }
    }
}

/// Writes a host's record in the transaction that holds its lock.
///
/// Locks: the rows of pgshard.known_host, which are only written under bootstrap's lock. A move
/// that claims a shard locks that of its target for one statement.
pub(in crate::schema) async fn write_record(
    session: &Connection,
    record: &Record,
) -> Result<(), HostFault> {
    let sql = "WITH gone AS (DELETE FROM pgshard.known_host WHERE host_name <> ALL ($1))
        INSERT INTO pgshard.known_host (host_name, shards)
            SELECT * FROM ROWS FROM (pg_catalog.unnest($1::text[]), pg_catalog.unnest($2::text[])) \
            AS new(host_name,
                shards)
        ON CONFLICT (host_name) DO UPDATE SET shards = excluded.shards, noted_at = \
        pg_catalog.clock_timestamp()
        WHERE pgshard.known_host.shards <> excluded.shards";
    let hosts: Vec<&str> = record.keys().map(HostName::as_str).collect();
    let shards: Vec<String> = record
        .values()
        .map(|shards| print_ranges(shards.iter().map(|(shard, epoch)| (*shard, *epoch))))
        .collect();
    let lost = |error: &tokio_postgres::Error| HostFault::Lost {
        reason: chain(error),
    };
    session
        .execute(sql, &[&hosts, &shards])
        .await
        .map(drop)
        .map_err(|error| lost(&error))
}

async fn open(host: &Host) -> Result<Connection, HostFault> {
    session::open(&host.connect, "pgshard bootstrap").await
}

/// The work on one host.
struct Job<'a> {
    host: &'a Host,
    request: &'a Request,
    plan: HostPlan,
    /// The roles of routers and monitors of all hosts.
    roles: &'a Roles,
    observer: Observer<'a>,
    lock_slots: i64,
}

/// What the connections of a host have done so far, and the shards that are left.
struct Progress {
    queue: Queue<Placed>,
    report: Mutex<HostReport>,
}

impl Job<'_> {
    async fn run(&self) -> HostReport {
        let host = &self.host.name;
        let to_do = self.plan.create.len() + self.plan.migrate.len();
        let progress = Progress {
            queue: Queue::new(NO_PAUSES),
            report: Mutex::default(),
        };
        progress.report.lock().expect(NO_PANIC).unchanged = self.plan.unchanged;
        (self.observer)(Event::HostPlanned {
            host,
            to_do,
            unchanged: self.plan.unchanged,
        });
        for (shard, fault) in &self.plan.refused {
            self.failed(&progress, *shard, fault.clone());
        }
        let outcome = self.write(&progress).await;
        let mut report = progress.report.into_inner().expect(NO_PANIC);
        report.fault = outcome.err();
        report.created.sort_unstable();
        report.migrated.sort_unstable();
        report
    }

    async fn write(&self, progress: &Progress) -> Result<(), HostFault> {
        let migrations = &self.request.migrations;
        let once = self.plan.host_from < migrations.of_hosts().len();
        let plan = &self.plan;
        let nothing =
            plan.create.is_empty() && plan.migrate.is_empty() && plan.unfinished.is_empty();
        let nothing = nothing && plan.serve_all.is_none();
        let is_whole = plan.control.is_empty() && plan.damaged.is_empty();
        if nothing && is_whole && !once {
            return Ok(());
        }
        let lost = |error: &tokio_postgres::Error| HostFault::Lost {
            reason: chain(error),
        };
        let mut first = open(self.host).await?;
        if !is_whole {
            let installed = install_for(
                &mut first,
                &self.request.cluster,
                &self.host.name,
                self.roles,
            )
            .await;
            let versions = installed.map_err(|error| match error {
                ControlError::Refused(refusals) => HostFault::Refused(refusals),
                other => HostFault::Control {
                    reason: chain(&other),
                },
            })?;
            if let Some(version) = versions.last() {
                (self.observer)(Event::ControlInstalled {
                    host: &self.host.name,
                    version: *version,
                });
            }
            progress.report.lock().expect(NO_PANIC).control = versions;
        }
        if let Some((schema, epoch)) = &plan.serve_all {
            let served = serve_all(&first, schema, *epoch).await;
            served.map_err(|error| lost(&error))?;
            progress.report.lock().expect(NO_PANIC).serves_all = Some(schema.to_string());
        }
        if once {
            let (done, outcome) = run_once(&first, migrations, plan.host_from).await;
            progress.report.lock().expect(NO_PANIC).once = done;
            outcome?;
        }
        for shard in &plan.unfinished {
            let cleared = one_by_one::clear(&first, &self.request.cluster, *shard, None).await;
            cleared.map_err(|error| match first.is_closed() {
                true => lost(&error),
                false => HostFault::Unfinished {
                    shard: *shard,
                    reason: chain(&error),
                },
            })?;
        }
        if !plan.create.is_empty() {
            progress
                .queue
                .fill(&self.host.name, plan.create.iter().copied());
            let size = self
                .probe(progress, &first)
                .await
                .map_err(|error| lost(&error))?;
            let batches = progress.queue.waiting(&self.host.name).div_ceil(size);
            let more = self.request.width.get().min(batches) - usize::from(batches > 0);
            let others = join_all((0..more).map(|_| open(self.host))).await;
            // With fewer connections than wanted it is slower, not wrong.
            let connections =
                std::iter::once(first).chain(others.into_iter().filter_map(Result::ok));
            let outcomes =
                join_all(connections.map(|connection| self.work(progress, connection, size))).await;
            let outcome = outcomes.into_iter().collect::<Result<Vec<()>, _>>();
            outcome.map_err(|error| lost(&error))?;
        }
        self.migrate(progress).await?;
        // Not in the session of the lock, which is held until all hosts have recorded the new
        // shards.
        let last = open(self.host).await?;
        last.batch_execute("BEGIN")
            .await
            .map_err(|error| lost(&error))?;
        flush(&last).await
    }

    /// Brings the shards that existed already up to date, as `pgshard migrate up` does: the
    /// application is using them.
    async fn migrate(&self, progress: &Progress) -> Result<(), HostFault> {
        let Request {
            cluster,
            migrations,
            width,
            ..
        } = self.request;
        let (pace, in_all) = (
            Pace {
                width: *width,
                ..Pace::default()
            },
            Semaphore::new(width.get()),
        );
        let (host, connect) = (&self.host.name, &self.host.connect);
        let work = OnHost::new(
            host,
            connect,
            cluster,
            migrations,
            pace,
            &in_all,
            self.observer,
        );
        work.run(self.plan.migrate.clone()).await;
        let done = work.report.into_inner().expect(NO_PANIC);
        let mut report = progress.report.lock().expect(NO_PANIC);
        report.migrated = done.migrated;
        report.failed.extend(done.failed);
        report.begun.extend(done.begun);
        done.fault.map_or(Ok(()), Err)
    }

    /// Makes shards alone until one is made, to learn how many locks it takes. Returns how many may
    /// be made in one transaction, so that half of the server's lock table is left to others.
    async fn probe(
        &self,
        progress: &Progress,
        connection: &Connection,
    ) -> Result<usize, tokio_postgres::Error> {
        while let Some(batch) = self.take(progress, 1) {
            for placed in batch {
                if let Some(locks) = self.alone(progress, connection, placed).await? {
                    let room = self.lock_slots / 2 / self.request.width.get() as i64;
                    let size = usize::try_from(room / locks.max(1))
                        .unwrap_or(1)
                        .clamp(1, BATCH_MAX);
                    return Ok(size
                        .min(BATCH_BYTES_MAX / self.recipe().size().max(1))
                        .max(1));
                }
            }
        }
        Ok(1)
    }

    /// The next shards, at most so many, as long as there are any.
    fn take(&self, progress: &Progress, max: usize) -> Option<Vec<Placed>> {
        let host = &self.host.name;
        match progress.queue.next(host) {
            Next::Now(first) => {
                let more = progress.queue.more(host, max - 1);
                let batch = std::iter::once(first).chain(more);
                Some(batch.map(|task| task.work).collect())
            }
            Next::Stop { left, failed } => {
                for task in left {
                    self.failed(progress, task.work.0, ShardFault::NotTried { failed });
                }
                None
            }
            // What other connections have taken does not come back.
            Next::Later(_) | Next::Nothing => None,
        }
    }

    /// The work of one connection: batches of at most so many from the queue until there are none.
    async fn work(
        &self,
        progress: &Progress,
        connection: Connection,
        size: usize,
    ) -> Result<(), tokio_postgres::Error> {
        while let Some(batch) = self.take(progress, size) {
            if batch.len() > 1 && run_many(&connection, &self.recipe(), &batch).await? {
                for (shard, _) in &batch {
                    self.done(progress, *shard);
                }
                continue;
            }
            for placed in batch {
                self.alone(progress, &connection, placed).await?;
            }
        }
        Ok(())
    }

    /// Makes one shard alone. Returns the number of its locks, or all that there are if it needs
    /// more than one transaction, or `None` if it failed.
    async fn alone(
        &self,
        progress: &Progress,
        connection: &Connection,
        placed: Placed,
    ) -> Result<Option<i64>, tokio_postgres::Error> {
        match run_alone(connection, &self.recipe(), placed).await? {
            Alone::Done { locks } => {
                self.done(progress, placed.0);
                Ok(Some(locks))
            }
            Alone::Apart => {
                self.done(progress, placed.0);
                Ok(Some(self.lock_slots))
            }
            Alone::There => {
                progress.queue.left();
                progress.report.lock().expect(NO_PANIC).unchanged += 1;
                Ok(None)
            }
            Alone::Failed(fault) => {
                progress.queue.failed();
                self.failed(progress, placed.0, fault);
                Ok(None)
            }
        }
    }

    fn recipe(&self) -> Recipe<'_> {
        let pending = Pending {
            own_from: 0,
            from: 0,
        };
        Recipe {
            cluster: &self.request.cluster,
            migrations: &self.request.migrations,
            pending,
        }
    }

    fn done(&self, progress: &Progress, shard: ShardId) {
        progress.queue.done();
        progress.report.lock().expect(NO_PANIC).created.push(shard);
        (self.observer)(Event::ShardDone {
            host: &self.host.name,
            shard,
        });
    }

    fn failed(&self, progress: &Progress, shard: ShardId, fault: ShardFault) {
        (self.observer)(Event::ShardFailed {
            host: &self.host.name,
            shard,
            fault: &fault,
        });
        progress
            .report
            .lock()
            .expect(NO_PANIC)
            .failed
            .insert(shard, fault);
    }
}
