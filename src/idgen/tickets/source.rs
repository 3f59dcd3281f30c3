//! Takes tickets: from the hosts in turn, in blocks ahead, and past hosts that are down or slow.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::OwnedMutexGuard;
use tokio::task::JoinHandle;
use tokio_postgres::Statement;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::rest::Rest;
use super::{Error, Layout, TicketHost, TicketName};
use crate::idgen::process::Process;
use crate::idgen::{BATCH_MAX, IdSource};
use crate::map::HostName;
use crate::pg::Connection;

/// How tickets are taken.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The name of the series.
    pub name: TicketName,
    /// The hosts that give them.
    pub hosts: Vec<TicketHost>,
    /// How many tickets are fetched at once, `1..=BLOCK_MAX`; a number outside is clamped. Tickets
    /// that are not used when the process ends are lost. With 1, none is fetched ahead and each
    /// call goes to the next host.
    pub block: usize,
    /// How long one host may take to answer, connecting included.
    pub host_limit: Duration,
    /// How long a host may take before the next one is tried as well.
    pub impatience: Duration,
    /// How long a host that failed is left alone while another gives tickets; twice as long after
    /// each further failure. Then a task connects to it. Callers wait for it only once that has
    /// succeeded, or when no other host gives tickets.
    pub rest: Duration,
    /// The longest rest.
    pub rest_max: Duration,
}

impl Options {
    /// The largest block.
    pub const BLOCK_MAX: usize = 10_000;

    /// Blocks of 1,000; a host has 2 s to answer, after 100 ms another one is tried too, and one
    /// that failed is skipped for 1 s, then 2 s, up to 30 s.
    pub fn new(name: TicketName, hosts: Vec<TicketHost>) -> Options {
        let (host_limit, impatience) = (Duration::from_secs(2), Duration::from_millis(100));
        let (rest, rest_max) = (Duration::from_secs(1), Duration::from_secs(30));
        Options {
            name,
            hosts,
            block: 1000,
            host_limit,
            impatience,
            rest,
            rest_max,
        }
    }
}

setters!(Options: block: usize, host_limit: Duration, rest: Duration);

/// A source of tickets. Clones share hosts and blocks. Nothing is connected to before the first
/// ticket.
///
/// A ticket is given at most once: a block is either in the memory of one process, or its tickets
/// are lost. Tickets of one source are not in order: the hosts' numbers alternate.
#[derive(Clone)]
pub struct Tickets {
    inner: Arc<Inner>,
}

struct Inner {
    options: Options,
    block: usize,
    hosts: Vec<Host>,
    /// Which host is next.
    turn: AtomicUsize,
    ahead: Mutex<Ahead>,
    series: Mutex<CommonFacts>,
}

/// What the hosts that have answered so far have in common.
#[derive(Default)]
struct CommonFacts {
    series: Option<(Uuid, Layout)>,
    residues: BTreeMap<u32, HostName>,
}

/// Tickets that were taken and not given yet: at most two blocks.
struct Ahead {
    /// The process that they belong to: after fork() parent and child have the same in their
    /// memory.
    process: Process,
    tickets: VecDeque<i64>,
    /// Held while a block is fetched, so that only one is fetched at a time.
    fetching: Arc<tokio::sync::Mutex<()>>,
}

impl Ahead {
    fn none() -> Ahead {
        Ahead {
            process: Process::current(),
            tickets: VecDeque::new(),
            fetching: Arc::default(),
        }
    }
}

struct Host {
    host: TicketHost,
    session: tokio::sync::Mutex<Session>,
    rest: Rest,
}

struct Session {
    /// The process that opened the connection: a socket that parent and child share is of no use to
    /// either.
    process: Process,
    open: Option<(Connection, Statement)>,
    /// The last ticket that this source was given by the host.
    last: i64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // No state is half changed under these locks if a thread panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const TAKE: &str =
    "SELECT series, stride, run, residue, host_name, tickets FROM pgshard_tickets.take($1, $2)";

impl Tickets {
    /// A source of tickets.
    pub fn new(options: Options) -> Tickets {
        let host = |host: &TicketHost| Host {
            host: host.clone(),
            session: tokio::sync::Mutex::new(Session {
                process: Process::current(),
                open: None,
                last: 0,
            }),
            rest: Rest::new(options.rest, options.rest_max),
        };
        let hosts: Vec<Host> = options.hosts.iter().map(host).collect();
        let inner = Inner {
            block: options.block.clamp(1, Options::BLOCK_MAX),
            // Processes that start together do not all begin at the same host.
            turn: AtomicUsize::new(fastrand::usize(0..hosts.len().max(1))),
            hosts,
            ahead: Mutex::new(Ahead::none()),
            series: Mutex::default(),
            options,
        };
        Tickets {
            inner: Arc::new(inner),
        }
    }

    /// How many tickets are taken and not given yet.
    pub fn ahead(&self) -> usize {
        self.inner.ahead(|ahead| ahead.tickets.len())
    }

    fn pop(&self) -> Option<i64> {
        let (ticket, left) = self.inner.ahead(|ahead| {
            ahead
                .tickets
                .pop_front()
                .map(|ticket| (ticket, ahead.tickets.len()))
        })?;
        if left == self.inner.block / 4 && self.inner.block > 1 {
            self.fetch_behind();
        }
        Some(ticket)
    }

    /// Fetches the next block while the rest of this one is used up. Each host has its limit, so
    /// this ends by itself.
    fn fetch_behind(&self) {
        let Ok(guard) = self
            .inner
            .ahead(|ahead| ahead.fetching.clone())
            .try_lock_owned()
        else {
            return;
        };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return;
        };
        let inner = self.inner.clone();
        runtime.spawn(async move {
            match inner.fetch(inner.block).await {
                Ok(tickets) => inner.ahead(|ahead| ahead.tickets.extend(tickets)),
                // A caller that finds the block empty tries again, and gets the error.
                Err(error) => tracing::debug!(%error, "no block of tickets was fetched ahead"),
            }
            drop(guard);
        });
    }

    /// Fetches tickets in a task, so that what it learns of the hosts is kept when the caller gives
    /// up.
    async fn fetch(&self, count: usize) -> Result<Vec<i64>, Error> {
        let inner = self.inner.clone();
        self.joined(tokio::spawn(async move { inner.fetch(count).await }))
            .await
    }

    /// Fetches a block. The caller gets the first ticket, so that it does not have to race for one.
    async fn fetch_block(&self, guard: OwnedMutexGuard<()>) -> Result<i64, Error> {
        let inner = self.inner.clone();
        let fetched = tokio::spawn(async move {
            let mut tickets = inner.fetch(inner.block).await?.into_iter();
            let first = tickets.next().expect("a block has tickets");
            inner.ahead(|ahead| ahead.tickets.extend(tickets));
            drop(guard);
            Ok(first)
        });
        self.joined(fetched).await
    }

    async fn joined<T>(&self, task: JoinHandle<Result<T, Error>>) -> Result<T, Error> {
        match task.await {
            Ok(fetched) => fetched,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Error::Ended {
                name: self.inner.options.name.clone(),
            }),
        }
    }
}

impl IdSource for Tickets {
    type Id = i64;
    type Error = Error;

    async fn next(&self) -> Result<i64, Error> {
        if self.inner.block == 1 {
            // Some are left in memory after a `next_many` that failed half-way.
            return match self.pop() {
                Some(ticket) => Ok(ticket),
                None => Ok(self.fetch(1).await?[0]),
            };
        }
        loop {
            if let Some(ticket) = self.pop() {
                return Ok(ticket);
            }
            let one_at_a_time = self
                .inner
                .ahead(|ahead| ahead.fetching.clone())
                .lock_owned()
                .await;
            if self.ahead() == 0 {
                return self.fetch_block(one_at_a_time).await;
            }
        }
    }

    async fn next_many(&self, count: usize) -> Result<Vec<i64>, Error> {
        if count > BATCH_MAX {
            return Err(Error::BatchTooLarge { count });
        }
        let mut tickets = Vec::with_capacity(count);
        self.inner.ahead(|ahead| {
            let some = ahead.tickets.len().min(count);
            tickets.extend(ahead.tickets.drain(..some));
        });
        while tickets.len() < count {
            let wanted = (count - tickets.len()).min(Options::BLOCK_MAX);
            match self.fetch(wanted).await {
                Ok(more) => tickets.extend(more),
                Err(error) => {
                    // Those that were taken are for the next caller.
                    self.inner.ahead(|ahead| ahead.tickets.extend(tickets));
                    return Err(error);
                }
            }
        }
        Ok(tickets)
    }
}

impl Inner {
    /// Gives access to the tickets in memory that are this process's.
    fn ahead<T>(&self, use_them: impl FnOnce(&mut Ahead) -> T) -> T {
        let mut ahead = lock(&self.ahead);
        if !ahead.process.is_current() {
            *ahead = Ahead::none();
        }
        use_them(&mut ahead)
    }

    /// Fetches `count` tickets, or fewer near a maximum, from the first host that gives them. Hosts
    /// are tried in turn: the next one when the one before has failed, or is slow.
    async fn fetch(self: &Arc<Self>, count: usize) -> Result<Vec<i64>, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let at = |step: usize| (turn + step) % self.hosts.len();
        // Hosts that failed a moment ago come last.
        let (rested, resting): (Vec<_>, Vec<_>) = (0..self.hosts.len())
            .map(at)
            .partition(|place| !self.hosts[*place].rest.is_on());
        let mut waiting = rested.into_iter().chain(resting);
        // Set for the hosts that have received this request on their session. A request to another
        // host may still be waiting for the session.
        let heard: Vec<AtomicBool> = self.hosts.iter().map(|_| AtomicBool::new(false)).collect();
        let mut asked = FuturesUnordered::new();
        let mut last = None;
        let mut failed = Vec::new();
        loop {
            let next = waiting.next();
            if let Some(place) = next {
                asked.push(self.attempt(place, count, &heard[place]));
                last = Some(place);
            }
            let answer = match next {
                Some(_) => tokio::time::timeout(self.options.impatience, asked.next()).await,
                None => Ok(asked.next().await),
            };
            match answer {
                Ok(Some(Ok(tickets))) => return Ok(tickets),
                Ok(Some(Err(error))) => failed.push(error),
                Ok(None) => break,
                // A caller that comes now does not begin with this host. If the host answers first
                // after all, it no longer rests.
                Err(_) => {
                    if let Some(place) = last.filter(|place| heard[*place].load(Ordering::Relaxed))
                    {
                        self.rest(place);
                    }
                }
            }
        }
        let name = self.options.name.clone();
        if failed.is_empty() {
            return Err(Error::NoHosts { name });
        }
        match used_up(failed) {
            Ok(error) => Err(error),
            Err(failed) => Err(Error::AllFailed { name, failed }),
        }
    }

    /// Fetches from one host, within its limit.
    async fn attempt(
        self: &Arc<Self>,
        place: usize,
        count: usize,
        heard: &AtomicBool,
    ) -> Result<Vec<i64>, Error> {
        let (host, limit) = (&self.hosts[place], self.options.host_limit);
        let late = |_| Error::TimedOut {
            host: host.host.name.clone(),
            limit_ms: limit.as_millis(),
        };
        let taken = tokio::time::timeout(limit, self.take(host, count, heard)).await;
        match taken.map_err(late).and_then(|taken| taken) {
            Ok(tickets) => {
                host.rest.end();
                Ok(tickets)
            }
            Err(error) => {
                tracing::debug!(%error, "a host gave no tickets");
                self.rest(place);
                Err(error)
            }
        }
    }

    /// Leaves a host alone, and starts a task that looks for it afterwards. The task ends when it
    /// can connect to the host, or with the source.
    fn rest(self: &Arc<Self>, place: usize) {
        let Some(resting) = self.hosts[place].rest.begin() else {
            return;
        };
        let source = Arc::downgrade(self);
        tokio::spawn(async move {
            while resting.pause().await {
                let Some(inner) = source.upgrade() else {
                    return;
                };
                let (host, limit) = (&inner.hosts[place], inner.options.host_limit);
                let look = async {
                    let mut session = host.session.lock().await;
                    session.open = Some(inner.open(host).await?);
                    Ok::<_, Error>(())
                };
                match tokio::time::timeout(limit, look).await {
                    Ok(Ok(())) => return,
                    Ok(Err(error)) => tracing::debug!(%error, "a host still gives no tickets"),
                    Err(_) => tracing::debug!(host = %host.host.name, "a host still says nothing"),
                }
            }
        });
    }

    /// Fetches tickets from one host. `heard` is set once the request was sent.
    async fn take(&self, host: &Host, count: usize, heard: &AtomicBool) -> Result<Vec<i64>, Error> {
        let mut session = host.session.lock().await;
        heard.store(true, Ordering::Relaxed);
        if !session.process.is_current() {
            *session = Session {
                process: Process::current(),
                open: None,
                last: session.last,
            };
        }
        // A connection may have died while it was idle, so this tries once more on a new one. If
        // the first request was executed after all, its tickets are lost, not given twice.
        if let Some((connection, statement)) = session.open.take() {
            match self
                .request_tickets(&connection, &statement, host, count)
                .await
            {
                Ok(row) => return self.accept(&mut session, (connection, statement), host, &row),
                Err(error @ Error::UsedUp { .. }) => {
                    session.open = Some((connection, statement));
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, "opening a new connection for tickets"),
            }
        }
        let (connection, statement) = self.open(host).await?;
        let row = self
            .request_tickets(&connection, &statement, host, count)
            .await?;
        self.accept(&mut session, (connection, statement), host, &row)
    }

    async fn open(&self, host: &Host) -> Result<(Connection, Statement), Error> {
        let name = &host.host.name;
        let connection = host.host.connect.connect("pgshard tickets").await;
        let connection = connection.map_err(|source| Error::Connect {
            host: name.clone(),
            source,
        })?;
        let statement = connection.prepare(TAKE).await.map_err(|source| {
            match source.code().map(|code| code.code()) {
                // No such schema, or no such function in it.
                Some("3F000" | "42883") => Error::NotThere {
                    host: name.clone(),
                    name: self.options.name.clone(),
                },
                _ => Error::Sql {
                    host: name.clone(),
                    doing: "prepare to take tickets",
                    source,
                },
            }
        })?;
        Ok((connection, statement))
    }

    async fn request_tickets(
        &self,
        connection: &Connection,
        statement: &Statement,
        host: &Host,
        count: usize,
    ) -> Result<tokio_postgres::Row, Error> {
        let count = i32::try_from(count).expect("a block is small");
        let row = connection
            .query_one(statement, &[&self.options.name.as_str(), &count])
            .await;
        let host = &host.host.name;
        row.map_err(|source| match source.code() {
            Some(code) if *code == SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED => Error::UsedUp {
                name: self.options.name.clone(),
                hosts: vec![host.clone()],
                source,
            },
            _ => Error::sql(host, "take tickets")(source),
        })
    }

    /// Checks that these tickets are the ones that the config means. Only then are they given.
    fn accept(
        &self,
        session: &mut Session,
        open: (Connection, Statement),
        host: &Host,
        row: &tokio_postgres::Row,
    ) -> Result<Vec<i64>, Error> {
        let (name, host) = (&self.options.name, &host.host.name);
        let sql = Error::sql(host, "take tickets");
        let Some(series) = row.try_get::<_, Option<Uuid>>(0).map_err(&sql)? else {
            session.open = Some(open);
            return Err(Error::NotThere {
                host: host.clone(),
                name: name.clone(),
            });
        };
        let mismatch = |reason| Error::Mismatch {
            host: host.clone(),
            name: name.clone(),
            reason,
        };
        let number = |column: usize| row.try_get(column).map(i32::unsigned_abs).map_err(&sql);
        let layout = Layout {
            stride: number(1)?,
            run: number(2)?,
        };
        let (residue, recorded): (u32, &str) = (number(3)?, row.try_get(4).map_err(&sql)?);
        if recorded != host.as_str() {
            return Err(mismatch(format!(
                "it gives the tickets of {recorded}; was it copied, or renamed?"
            )));
        }
        let mut known = lock(&self.series);
        if *known.series.get_or_insert((series, layout)) != (series, layout) {
            return Err(mismatch(
                "its series is another than the other hosts'".to_owned(),
            ));
        }
        let owner = known
            .residues
            .entry(residue)
            .or_insert_with(|| host.clone());
        if owner != host {
            return Err(mismatch(format!(
                "its residue {residue} is that of {owner}"
            )));
        }
        drop(known);
        let tickets: Vec<i64> = row.try_get(5).map_err(&sql)?;
        let right = |ticket: &i64| {
            layout
                .decode(*ticket)
                .is_some_and(|fields| fields.residue == residue)
        };
        if let Some(wrong) = tickets.iter().find(|ticket| !right(ticket)) {
            return Err(mismatch(format!(
                "its sequence gave {wrong}, which has not its residue {residue}"
            )));
        }
        // Only one session fetches at a time, so the numbers that a host gives grow. A number that
        // is not larger was given before.
        let mut last = session.last;
        for ticket in &tickets {
            if *ticket <= last {
                let advice =
                    format!("`pgshard tickets create {name} --hosts {host} --start N`, N above it");
                return Err(mismatch(format!(
                    "its sequence went back, from {last} to {ticket}: {advice}"
                )));
            }
            last = *ticket;
        }
        session.last = last;
        session.open = Some(open);
        Ok(tickets)
    }
}

/// One error for all hosts, when every one of them has given all its tickets; otherwise the errors
/// as they were.
fn used_up(failed: Vec<Error>) -> Result<Error, Vec<Error>> {
    let ends = |error: &Error| matches!(error, Error::UsedUp { .. });
    if failed.is_empty() || !failed.iter().all(ends) {
        return Err(failed);
    }
    let mut all = BTreeSet::new();
    let mut last = None;
    for error in failed {
        if let Error::UsedUp {
            name,
            hosts,
            source,
        } = error
        {
            all.extend(hosts);
            last = Some((name, source));
        }
    }
    match last {
        Some((name, source)) => Ok(Error::UsedUp {
            name,
            hosts: all.into_iter().collect(),
            source,
        }),
        None => Err(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// After fork() a block is in two processes. Only the one that took it gives its tickets.
    #[tokio::test]
    async fn a_forked_process_has_no_block() {
        let name = TicketName::new("users").unwrap();
        let tickets = Tickets::new(Options::new(name, Vec::new()));
        tickets.inner.ahead(|ahead| ahead.tickets.extend([1, 2, 3]));
        assert_eq!(tickets.next().await.unwrap(), 1);
        let parents = tickets
            .inner
            .ahead(|ahead| ahead.fetching.clone())
            .try_lock_owned()
            .unwrap();
        lock(&tickets.inner.ahead).process = Process::parent();
        assert!(matches!(tickets.next().await, Err(Error::NoHosts { .. })));
        assert_eq!(tickets.ahead(), 0);
        drop(parents);
    }
}
