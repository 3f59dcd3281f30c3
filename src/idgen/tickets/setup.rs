//! Creates tickets on hosts, and decides which host gets which residue.
//!
//! Invariant: a residue is claimed on **all** hosts before its host gives a ticket, by rows that
//! exclude a second claim. So two setups that have a host in common cannot give a residue twice.
//! Two that have none in common make two series, which are never used together.

use std::collections::{BTreeMap, BTreeSet};

use futures_util::future::BoxFuture;
use uuid::Uuid;

use super::host::{Facts, facts, is_installed};
use super::{Error, Layout, RUN_MAX, STRIDE_MAX, TicketHost, TicketName};
use crate::idgen::versions::later;
use crate::map::HostName;
use crate::pg::Connection;

/// The scripts that make each version from the one before it.
const VERSIONS: [&str; 1] = [include_str!("../../../migrations/tickets/0001_tickets.sql")];
/// The lock's key is the bytes "pgsh" and a number.
const LOCK: &str = "SET lock_timeout = '10s'; SET default_transaction_read_only = off; \
    SELECT pg_advisory_lock(1885827944, 1000)";

/// What is to be created.
#[derive(Clone, Debug)]
pub struct Create {
    /// The name of the series.
    pub name: TicketName,
    /// The hosts that will give tickets, out of those given to [`create`].
    pub hosts: BTreeSet<HostName>,
    /// How many hosts there can ever be, `1..=STRIDE_MAX`; `None`: as recorded, else 16. It cannot
    /// change.
    pub stride: Option<u32>,
    /// How many tickets in a row are one host's, `1..=RUN_MAX`; `None`: as recorded, else 8,192. It
    /// cannot change.
    pub run: Option<u32>,
    /// No new ticket of these hosts is below this. A host that gives tickets already continues from
    /// here, unless it is past it.
    pub start: Option<i64>,
    /// No ticket of the series is above this, on any host; `None`: as recorded, else none. It can
    /// be raised, and lowered to what has been given.
    pub max: Option<i64>,
    /// A host that is permanently lost; the one host in `hosts` takes its residue over. Needs
    /// `start`, above every ticket that the lost one may have given.
    pub replace: Option<HostName>,
    /// Hosts that are lost for ever and need not answer. Their residues stay taken.
    pub lost: BTreeSet<HostName>,
}

/// What became of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It gives tickets from now on.
    Created,
    /// It gave tickets already, and continues at a later one.
    Raised,
    /// It gave tickets already.
    Unchanged,
}

/// A host that gives tickets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The host.
    pub host: HostName,
    /// Its residue.
    pub residue: u32,
    /// Which numbers are its own.
    pub layout: Layout,
    /// The largest ticket of the series, if one is set.
    pub max: Option<i64>,
    /// What became of it.
    pub role: Role,
}

/// Why a series is not created like this. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A requested host name does not exist.
    #[error("there is no host {0}")]
    NoSuchHost(HostName),
    /// No host was given.
    #[error("no host is to give tickets")]
    NoHosts,
    /// The stride is too small or too large.
    #[error("the stride must be 1 to {STRIDE_MAX}, not {0}")]
    Stride(u32),
    /// The run is too short or too long.
    #[error("a run must be 1 to {RUN_MAX} tickets, not {0}")]
    Run(u32),
    /// The run differs from the one that is recorded.
    #[error("a run is {recorded} tickets and cannot change: leave --run out")]
    RunDiffers {
        /// The run there.
        recorded: u32,
    },
    /// The stride differs from the one that is recorded.
    #[error("the stride is {recorded} and cannot change: leave --stride out")]
    StrideDiffers {
        /// The stride there.
        recorded: u32,
    },
    /// Tickets begin at 1.
    #[error("a start must be 1 or more, and leave tickets below 2^63: not {0}")]
    Start(i64),
    /// A maximum must be a ticket.
    #[error("a maximum must be 1 or more, not {0}")]
    Max(i64),
    /// A host has given tickets above the maximum.
    #[error("{host} has given the ticket {last}, which is above {max}: take a larger maximum")]
    MaxPassed {
        /// The host.
        host: HostName,
        /// The last ticket that it gave.
        last: i64,
        /// The maximum.
        max: i64,
    },
    /// A host would have no ticket to give.
    #[error(
        "{host} has no ticket of its own from {start} to {max}: take a larger maximum with --max, \
            or in a new series a smaller --run"
    )]
    MaxLeavesNone {
        /// The host.
        host: HostName,
        /// Where it would begin.
        start: i64,
        /// The maximum.
        max: i64,
    },
    /// Two hosts began on their own.
    #[error(
        "{first} and {second} have two series of one name, whose tickets may be the same: take a \
            new name, or drop one of the two by hand"
    )]
    SeriesDiffer {
        /// A host.
        first: HostName,
        /// Another.
        second: HostName,
    },
    /// Two hosts have one residue.
    #[error(
        "residue {residue} is {first}'s and {second}'s: they may have given the same tickets; take \
            a new name"
    )]
    Clash {
        /// The residue.
        residue: u32,
        /// A host.
        first: String,
        /// Another.
        second: String,
    },
    /// One host has two residues: two setups ran at the same time and one of them stopped half-way.
    #[error(
        "host {host} has claimed the residues {first} and {second}: delete the one it does not use \
            from pgshard_tickets.claim"
    )]
    TwoResidues {
        /// The host.
        host: String,
        /// A residue.
        first: u32,
        /// Another.
        second: u32,
    },
    /// The database is another host's, or a copy of it.
    #[error(
        "{host} gives the tickets of {recorded}: it was renamed, or is a copy of it; give it its \
            old name in the config"
    )]
    HostName {
        /// The host in the config.
        host: HostName,
        /// The host that it claims to be.
        recorded: String,
    },
    /// Every residue is taken.
    #[error(
        "all {stride} residues are taken, by {}: a host that is lost for ever can be replaced, \
            with --replace HOST --start N",
        hosts.join(", ")
    )]
    Full {
        /// How many there are.
        stride: u32,
        /// The hosts that have them.
        hosts: Vec<String>,
    },
    /// A lost host's residue was requested without a start.
    #[error(
        "the residue of {0} is used again only from a start that is above every ticket it gave: \
            --start N"
    )]
    NoFloor(HostName),
    /// The other hosts have a record that this host gave tickets, but it has none itself: it was
    /// replaced or restored.
    #[error(
        "{0} has lost its record of the tickets it gave, which would come again: give a start \
            above all of them, --start N (--start 1 if it never gave one)"
    )]
    Forgotten(HostName),
    /// Too few of the hosts that give tickets were included: two setups that do not know of each
    /// other could give one residue away twice.
    #[error(
        "more than half of the hosts that give these tickets must be in the config and answer, and \
            {} {} not: add {}, or name what is lost for ever with --lost",
        missing.join(", "),
        if missing.len() == 1 { "is" } else { "are" },
        if missing.len() == 1 { "it" } else { "them" }
    )]
    TooFew {
        /// Those that were not included.
        missing: Vec<String>,
    },
    /// The lost host is not lost.
    #[error("{0} cannot be replaced while it is a host in the config: take it out")]
    NotLost(HostName),
    /// The lost host never gave tickets of this name.
    #[error("{0} has no tickets of this name")]
    NothingToReplace(HostName),
    /// Only one host can take over.
    #[error("one host takes a residue over, and it must not have one already")]
    OneReplaces,
}

/// Which host gets what. It is made without I/O, so that every case can be tested.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    series: Uuid,
    layout: Layout,
    claims: BTreeMap<u32, String>,
    /// Where new hosts begin.
    start: i64,
    /// The largest ticket, if one is set.
    max: Option<i64>,
}

/// Makes hosts give tickets. `all` are all hosts of the config: each must answer, so that every
/// residue is known, and each records them. Doing it again changes nothing.
///
/// A host that is lost is taken out of the config; its residue stays taken.
///
/// # Errors
/// When a host is out of reach, with every reason at once when the request is refused, and when a
/// statement fails. Then residues may have been claimed, and doing it again uses the same.
///
/// # Cancel safety
/// As with an error.
pub fn create<'a>(
    all: &'a [TicketHost],
    request: &'a Create,
    new_series: Uuid,
) -> BoxFuture<'a, Result<Vec<Created>, Error>> {
    Box::pin(async move {
        let mut hosts: BTreeMap<HostName, Connection> = BTreeMap::new();
        for host in all {
            let connection = host.connect.connect("pgshard tickets").await;
            let connection = connection.map_err(|source| Error::Connect {
                host: host.name.clone(),
                source,
            })?;
            hosts.insert(host.name.clone(), connection);
        }
        let mut known = BTreeMap::new();
        // The locks are taken in the order of the names, so that two creators cannot wait for each
        // other for ever.
        for (host, connection) in &mut hosts {
            connection
                .batch_execute(LOCK)
                .await
                .map_err(Error::sql(host, "get the lock on tickets"))?;
            let installed = is_installed(connection, host).await?;
            known.insert(
                host.clone(),
                match installed {
                    true => facts(connection, host, &request.name).await?,
                    false => Facts::default(),
                },
            );
        }
        let plan = plan(&known, request, new_series).map_err(Error::Refused)?;
        // Hosts that begin now record the claims first. If this is interrupted, such a host has a
        // claim of its own and no tickets, so it never gave one. A host that the others know, and
        // that has no claim itself, has lost its record.
        for begins in [true, false] {
            for (host, connection) in hosts
                .iter_mut()
                .filter(|(host, _)| request.hosts.contains(*host) == begins)
            {
                claim(connection, host, request, &plan).await?;
            }
        }
        let mut created = Vec::new();
        for host in &request.hosts {
            let connection = hosts.get_mut(host).expect("the plan has looked for it");
            created.push(serve(connection, host, request, &plan).await?);
        }
        Ok(created)
    })
}

fn plan(
    known: &BTreeMap<HostName, Facts>,
    request: &Create,
    new_series: Uuid,
) -> Result<Plan, Vec<Refusal>> {
    let mut refusals = Vec::new();
    refusals.extend(
        request
            .hosts
            .iter()
            .filter(|host| !known.contains_key(*host))
            .cloned()
            .map(Refusal::NoSuchHost),
    );
    if request.hosts.is_empty() {
        refusals.push(Refusal::NoHosts);
    }
    refusals.extend(
        request
            .stride
            .filter(|stride| !(1..=STRIDE_MAX).contains(stride))
            .map(Refusal::Stride),
    );
    refusals.extend(
        request
            .run
            .filter(|run| !(1..=RUN_MAX).contains(run))
            .map(Refusal::Run),
    );
    // This leaves room for every residue above it.
    let start_max = i64::MAX - 2 * i64::from(STRIDE_MAX) * i64::from(RUN_MAX);
    refusals.extend(
        request
            .start
            .filter(|start| !(1..=start_max).contains(start))
            .map(Refusal::Start),
    );

    refusals.extend(request.max.filter(|max| *max < 1).map(Refusal::Max));

    let mut series: Option<(&HostName, Uuid, Layout)> = None;
    let mut claims: BTreeMap<u32, String> = BTreeMap::new();
    for (host, facts) in known {
        match (facts.series, series) {
            (Some((id, _)), Some((first, other, _))) if id != other => {
                refusals.push(Refusal::SeriesDiffer {
                    first: first.clone(),
                    second: host.clone(),
                });
                continue;
            }
            (Some((id, layout)), None) => series = Some((host, id, layout)),
            _ => {}
        }
        if let Some(ticket) = facts
            .ticket
            .as_ref()
            .filter(|ticket| ticket.host_name != host.as_str())
        {
            refusals.push(Refusal::HostName {
                host: host.clone(),
                recorded: ticket.host_name.clone(),
            });
        }
        let own = facts
            .ticket
            .iter()
            .map(|ticket| (ticket.residue, &ticket.host_name));
        for (residue, name) in facts
            .claims
            .iter()
            .map(|(residue, name)| (*residue, name))
            .chain(own)
        {
            let replaced = |name: &str| {
                request
                    .replace
                    .as_ref()
                    .is_some_and(|lost| lost.as_str() == name)
            };
            match claims.get(&residue) {
                Some(other) if other == name || replaced(name) => {}
                // Some hosts know of the replacement already: it is being done again.
                Some(other) if replaced(other) => _ = claims.insert(residue, name.clone()),
                Some(other) => {
                    let (first, second) = (other.clone(), name.clone());
                    refusals.push(Refusal::Clash {
                        residue,
                        first,
                        second,
                    });
                }
                None => _ = claims.insert(residue, name.clone()),
            }
        }
    }
    for (residue, host) in &claims {
        if let Some((first, _)) = claims
            .iter()
            .find(|(other, name)| *other < residue && *name == host)
        {
            refusals.push(Refusal::TwoResidues {
                host: host.clone(),
                first: *first,
                second: *residue,
            });
        }
    }
    let default = Layout::default();
    let asked = Layout {
        stride: request.stride.unwrap_or(default.stride),
        run: request.run.unwrap_or(default.run),
    };
    let layout = series.map_or(asked, |(_, _, recorded)| recorded);
    let stride = layout.stride;
    if request.stride.is_some_and(|asked| asked != stride) {
        refusals.push(Refusal::StrideDiffers { recorded: stride });
    }
    if request.run.is_some_and(|asked| asked != layout.run) {
        refusals.push(Refusal::RunDiffers {
            recorded: layout.run,
        });
    }
    // Nothing follows from records that contradict each other.
    if refusals.is_empty() {
        refusals.extend(too_few(known, request, &claims));
        refusals.extend(forgotten(known, request, &claims));
    }
    if !refusals.is_empty() {
        return Err(refusals);
    }
    match &request.replace {
        Some(lost) => {
            take_over(lost, known, request, &mut claims).map_err(|refusal| vec![refusal])?
        }
        None => {
            for host in &request.hosts {
                if claims.values().any(|name| name == host.as_str()) {
                    continue;
                }
                // Residue 1 comes first and 0 last, so that a stride of 2 gives odd, then even
                // numbers.
                let Some(free) = (1..stride)
                    .chain([0])
                    .find(|residue| !claims.contains_key(residue))
                else {
                    let hosts = claims.values().cloned().collect();
                    return Err(vec![Refusal::Full { stride, hosts }]);
                };
                claims.insert(free, host.to_string());
            }
        }
    }
    // A host that comes later begins where the others are, so that tickets stay roughly in order.
    let last = known
        .values()
        .filter_map(|facts| facts.ticket.as_ref()?.last)
        .max();
    let start = request.start.or(last).unwrap_or(1);
    // Where a change of the maximum was interrupted, hosts differ; a new one takes the smallest.
    let recorded = known.values().filter_map(|facts| facts.max).min();
    let plan = Plan {
        series: series.map_or(new_series, |(_, id, _)| id),
        layout,
        claims,
        start,
        max: request.max.or(recorded),
    };
    match beyond_max(known, request, &plan) {
        refusals if refusals.is_empty() => Ok(plan),
        refusals => Err(refusals),
    }
}

/// The hosts that have given tickets above the maximum, or have none below it to begin with. One
/// that has given all of its own is neither.
fn beyond_max(known: &BTreeMap<HostName, Facts>, request: &Create, plan: &Plan) -> Vec<Refusal> {
    let Some(max) = plan.max else {
        return Vec::new();
    };
    let mut refusals = Vec::new();
    for (host, facts) in known {
        if let Some(ticket) = &facts.ticket {
            let newly = request.max.is_some() || facts.max.is_none();
            if let Some(last) = ticket.last.filter(|last| newly && *last > max) {
                let host = host.clone();
                refusals.push(Refusal::MaxPassed { host, last, max });
                continue;
            }
        }
        let begins = request.hosts.contains(host)
            && (facts.ticket.is_none() || request.start.is_some() || request.max.is_some());
        let start = match &facts.ticket {
            Some(_) => request.start.unwrap_or(1),
            None => plan.start,
        };
        if begins && !plan.has_ticket(host, start, max) {
            let host = host.clone();
            refusals.push(Refusal::MaxLeavesNone { host, start, max });
        }
    }
    refusals
}

impl Plan {
    fn residue(&self, host: &HostName) -> Option<u32> {
        let mut claims = self.claims.iter();
        claims
            .find(|(_, name)| *name == host.as_str())
            .map(|(residue, _)| *residue)
    }

    /// Whether a host has a ticket of its own from `start` to `max`.
    fn has_ticket(&self, host: &HostName, start: i64, max: i64) -> bool {
        self.residue(host).is_some_and(|residue| {
            let first = self.layout.first_count(residue, start);
            let last = self.layout.last_count(residue, max);
            first
                .zip(last)
                .is_some_and(|(first, last)| first.cast_unsigned() <= last)
        })
    }
}

/// Returns an error if too few hosts were included. Any two sets of more than half have a host in
/// common, and that host knows what either has claimed.
fn too_few(
    known: &BTreeMap<HostName, Facts>,
    request: &Create,
    claims: &BTreeMap<u32, String>,
) -> Option<Refusal> {
    let lost = |name: &str| {
        request
            .lost
            .iter()
            .chain(&request.replace)
            .any(|lost| lost.as_str() == name)
    };
    let claimed: BTreeSet<&str> = claims
        .values()
        .map(String::as_str)
        .filter(|name| !lost(name))
        .collect();
    let asked = |name: &&&str| known.keys().any(|host| host.as_str() == **name);
    let missing: Vec<String> = claimed
        .iter()
        .filter(|name| !asked(name))
        .map(|name| (*name).to_owned())
        .collect();
    (missing.len() * 2 >= claimed.len().max(1)).then_some(Refusal::TooFew { missing })
}

/// The hosts that the others know as givers, and that know nothing of it themselves. They would
/// give the same tickets again, unless a start is above those.
fn forgotten(
    known: &BTreeMap<HostName, Facts>,
    request: &Create,
    claims: &BTreeMap<u32, String>,
) -> Vec<Refusal> {
    let has = |claims: &BTreeMap<u32, String>, host: &HostName| {
        claims.values().any(|name| name == host.as_str())
    };
    let blank = |host: &&HostName| {
        known
            .get(*host)
            .is_some_and(|facts| facts.ticket.is_none() && !has(&facts.claims, host))
            && has(claims, host)
    };
    match request.start {
        Some(_) => Vec::new(),
        None => request
            .hosts
            .iter()
            .filter(blank)
            .cloned()
            .map(Refusal::Forgotten)
            .collect(),
    }
}

fn take_over(
    lost: &HostName,
    known: &BTreeMap<HostName, Facts>,
    request: &Create,
    claims: &mut BTreeMap<u32, String>,
) -> Result<(), Refusal> {
    if request.start.is_none() {
        return Err(Refusal::NoFloor(lost.clone()));
    }
    if known.contains_key(lost) {
        return Err(Refusal::NotLost(lost.clone()));
    }
    let Some(heir) = request.hosts.first().filter(|_| request.hosts.len() == 1) else {
        return Err(Refusal::OneReplaces);
    };
    if claims.values().any(|name| name == heir.as_str()) {
        // If it was done already, the lost host has no residue any more.
        let done = !claims.values().any(|name| name == lost.as_str());
        return if done {
            Ok(())
        } else {
            Err(Refusal::OneReplaces)
        };
    }
    let residue = claims
        .iter()
        .find(|(_, name)| *name == lost.as_str())
        .map(|(residue, _)| *residue);
    let residue = residue.ok_or_else(|| Refusal::NothingToReplace(lost.clone()))?;
    claims.insert(residue, heir.to_string());
    Ok(())
}

/// Records on a host which residue belongs to which host. All hosts must have it recorded before
/// any of them gives a ticket.
async fn claim(
    connection: &mut Connection,
    host: &HostName,
    request: &Create,
    plan: &Plan,
) -> Result<(), Error> {
    let sql = Error::sql(host, "record the residues of tickets");
    let installed = is_installed(connection, host).await?;
    let transaction = connection.transaction().await.map_err(&sql)?;
    transaction
        .batch_execute("SET LOCAL synchronous_commit = on")
        .await
        .map_err(&sql)?;
    let version: i32 = match installed {
        false => 0,
        true => {
            let row = transaction
                .query_one("SELECT version FROM pgshard_tickets.version", &[])
                .await;
            row.and_then(|row| row.try_get(0)).map_err(&sql)?
        }
    };
    for script in later(&VERSIONS, version) {
        transaction
            .batch_execute(script)
            .await
            .map_err(Error::sql(host, "make the schema pgshard_tickets"))?;
    }
    let name = request.name.as_str();
    let text = "INSERT INTO pgshard_tickets.series (name, series, stride, run) VALUES ($1, $2, $3, \
        $4) ON CONFLICT DO NOTHING";
    let (stride, run) = (
        plan.layout.stride.cast_signed(),
        plan.layout.run.cast_signed(),
    );
    transaction
        .execute(text, &[&name, &plan.series, &stride, &run])
        .await
        .map_err(&sql)?;
    let lost = request.replace.as_ref().map_or("", HostName::as_str);
    for (residue, owner) in &plan.claims {
        // This is a compare-and-swap: it writes no row for a residue that belongs to another host
        // by now.
        let text = "INSERT INTO pgshard_tickets.claim AS c (name, residue, host_name)
            SELECT name, $3, $4 FROM pgshard_tickets.series WHERE name = $1 AND series = $2
            ON CONFLICT (name, residue) DO UPDATE SET host_name = excluded.host_name
            WHERE c.host_name IN (excluded.host_name, $5)";
        let residue_column = residue.cast_signed();
        let written = transaction
            .execute(text, &[&name, &plan.series, &residue_column, owner, &lost])
            .await
            .map_err(&sql)?;
        if written != 1 {
            let (first, second) = (host.to_string(), owner.clone());
            return Err(Error::Refused(vec![Refusal::Clash {
                residue: *residue,
                first,
                second,
            }]));
        }
    }
    limit(&transaction, host, request, plan).await?;
    transaction.commit().await.map_err(&sql)
}

/// Records the maximum on a host, and ends its sequence there, in one transaction.
async fn limit(
    transaction: &tokio_postgres::Transaction<'_>,
    host: &HostName,
    request: &Create,
    plan: &Plan,
) -> Result<(), Error> {
    let Some(max) = plan.max else {
        return Ok(());
    };
    let sql = Error::sql(host, "set the maximum of the tickets");
    let (name, sequence) = (request.name.as_str(), request.name.sequence());
    let text = "UPDATE pgshard_tickets.series SET max = $3
        WHERE name = $1 AND series = $2 AND max IS DISTINCT FROM $3 AND ($4 OR max IS NULL)";
    let asked = request.max.is_some();
    let changed = transaction
        .execute(text, &[&name, &plan.series, &max, &asked])
        .await
        .map_err(&sql)?;
    let text = "SELECT residue FROM pgshard_tickets.ticket WHERE name = $1";
    let gives = transaction.query_opt(text, &[&name]).await.map_err(&sql)?;
    let (1, Some(row)) = (changed, gives) else {
        return Ok(());
    };
    let residue: i32 = row.try_get(0).map_err(&sql)?;
    let residue = residue.cast_unsigned();
    // nextval() waits for this from here to the commit, so that no ticket is given between the look
    // and the change.
    let (last, called) = locked(transaction, host, &sequence).await?;
    let end = plan.layout.last_count(residue, max);
    let end = end.and_then(|end| i64::try_from(end).ok());
    match end.filter(|end| last <= *end) {
        Some(end) => {
            let text = format!("ALTER SEQUENCE {sequence} MINVALUE -1 MAXVALUE {end}");
            transaction.batch_execute(&text).await.map_err(&sql)
        }
        None => {
            let ticket = plan.layout.ticket(residue, last.cast_unsigned());
            let (host, last) = (host.clone(), ticket.unwrap_or(i64::MAX));
            Err(Error::Refused(vec![match called {
                true => Refusal::MaxPassed { host, last, max },
                false => Refusal::MaxLeavesNone {
                    host,
                    start: last,
                    max,
                },
            }]))
        }
    }
}

/// Takes the lock that nextval() waits for, as any ALTER does, until the transaction ends; then
/// reads the sequence.
async fn locked(
    transaction: &tokio_postgres::Transaction<'_>,
    host: &HostName,
    sequence: &str,
) -> Result<(i64, bool), Error> {
    let sql = Error::sql(host, "lock the sequence of the tickets");
    transaction
        .batch_execute(&format!("ALTER SEQUENCE {sequence} OWNED BY NONE"))
        .await
        .map_err(&sql)?;
    let text = format!("SELECT last_value, is_called FROM {sequence}");
    let row = transaction.query_one(&text, &[]).await.map_err(&sql)?;
    row.try_get(0)
        .and_then(|last| Ok((last, row.try_get(1)?)))
        .map_err(&sql)
}

/// Makes a host give tickets.
async fn serve(
    connection: &mut Connection,
    host: &HostName,
    request: &Create,
    plan: &Plan,
) -> Result<Created, Error> {
    let sql = Error::sql(host, "make the sequence of the tickets");
    let residue = plan
        .residue(host)
        .expect("the plan gives every host a residue");
    let (layout, sequence, name) = (plan.layout, request.name.sequence(), request.name.as_str());
    let first = |start| {
        let first = layout.first_count(residue, start);
        first.ok_or_else(|| Error::Refused(vec![Refusal::Start(start)]))
    };
    let transaction = connection.transaction().await.map_err(&sql)?;
    transaction
        .batch_execute("SET LOCAL synchronous_commit = on")
        .await
        .map_err(&sql)?;
    let text = "INSERT INTO pgshard_tickets.ticket (name, residue, host_name) VALUES ($1, $2, $3) \
        ON CONFLICT DO NOTHING";
    let made = transaction
        .execute(text, &[&name, &residue.cast_signed(), &host.as_str()])
        .await
        .map_err(&sql)?;
    let role = if made == 1 {
        let first = first(plan.start)?;
        let end = plan.max.and_then(|max| layout.last_count(residue, max));
        // The minimum is never given, but it must be less than the maximum, which may be 0.
        let bounds = end.map_or_else(
            || "MINVALUE 0".to_owned(),
            |end| format!("MINVALUE -1 MAXVALUE {end}"),
        );
        let text = format!(
            "CREATE SEQUENCE {sequence} AS bigint INCREMENT BY 1 {bounds} START {first} NO CYCLE"
        );
        transaction.batch_execute(&text).await.map_err(&sql)?;
        Role::Created
    } else if let Some(start) = request.start {
        let (last, called) = locked(&transaction, host, &sequence).await?;
        let next = last.saturating_add(i64::from(called));
        let first = first(start)?;
        if next < first {
            let text = format!("ALTER SEQUENCE {sequence} RESTART WITH {first}");
            transaction.batch_execute(&text).await.map_err(&sql)?;
            Role::Raised
        } else {
            Role::Unchanged
        }
    } else {
        Role::Unchanged
    };
    transaction.commit().await.map_err(&sql)?;
    Ok(Created {
        host: host.clone(),
        residue,
        layout,
        max: plan.max,
        role,
    })
}

#[cfg(test)]
#[path = "setup_tests.rs"]
mod tests;
