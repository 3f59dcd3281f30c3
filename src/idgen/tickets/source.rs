//! Taking tickets: the hosts in turn, blocks ahead, past hosts that are down.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::Statement;
use uuid::Uuid;

use super::{Error, Layout, TicketHost, TicketName};
use crate::idgen::{BATCH_MAX, IdSource};
use crate::map::HostName;
use crate::pg::Connection;

/// How tickets are taken.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which.
    pub name: TicketName,
    /// The hosts that give them.
    pub hosts: Vec<TicketHost>,
    /// How many are taken at once, `1..=BLOCK_MAX`; outside it, the nearer end. Those that are not used when the process
    /// ends are lost. 1: none ahead, each call asks the next host.
    pub block: usize,
    /// How long one host may take to answer, connecting included.
    pub host_limit: Duration,
    /// A host that failed is left alone for so long, while another gives tickets.
    pub rest: Duration,
}

impl Options {
    /// The largest block.
    pub const BLOCK_MAX: usize = 10_000;

    /// Blocks of 1,000; a host has 2 s to answer and is left alone for 1 s after it failed.
    pub fn new(name: TicketName, hosts: Vec<TicketHost>) -> Options {
        let (host_limit, rest) = (Duration::from_secs(2), Duration::from_secs(1));
        Options { name, hosts, block: 1000, host_limit, rest }
    }
}

/// A source of tickets. Clones share hosts and blocks. Nothing is connected to before the first ticket.
///
/// A ticket is given at most once: a block is either in the memory of one process, or its tickets are lost. Tickets of one
/// source are not in order: the hosts' numbers alternate.
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
    /// Taken and not given yet: at most two blocks.
    ahead: Mutex<VecDeque<i64>>,
    /// One block is fetched at a time, so that callers do not each bring one.
    fetching: Arc<tokio::sync::Mutex<()>>,
    series: Mutex<Known>,
}

/// What the hosts so far have in common.
#[derive(Default)]
struct Known {
    series: Option<(Uuid, Layout)>,
    residues: BTreeMap<u32, HostName>,
}

struct Host {
    host: TicketHost,
    session: tokio::sync::Mutex<Session>,
    /// Not before then, unless nobody else gives any.
    rests_until: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct Session {
    open: Option<(Connection, Statement)>,
    /// The last ticket that this source was given by the host.
    last: i64,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    // Nothing is half-done under these locks when somebody panics.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const TAKE: &str = "SELECT series, stride, run, residue, host_name, tickets FROM pgshard_tickets.take($1, $2)";

impl Tickets {
    /// A source of tickets.
    pub fn new(options: Options) -> Tickets {
        let host = |host: &TicketHost| Host {
            host: host.clone(),
            session: tokio::sync::Mutex::default(),
            rests_until: Mutex::new(None),
        };
        let hosts: Vec<Host> = options.hosts.iter().map(host).collect();
        let inner = Inner {
            block: options.block.clamp(1, Options::BLOCK_MAX),
            // Processes that start together do not all begin at the same host.
            turn: AtomicUsize::new(fastrand::usize(0..hosts.len().max(1))),
            hosts,
            ahead: Mutex::default(),
            fetching: Arc::default(),
            series: Mutex::default(),
            options,
        };
        Tickets { inner: Arc::new(inner) }
    }

    /// How many tickets are taken and not given yet.
    pub fn ahead(&self) -> usize {
        lock(&self.inner.ahead).len()
    }

    fn pop(&self) -> Option<i64> {
        let (ticket, left) = {
            let mut ahead = lock(&self.inner.ahead);
            (ahead.pop_front()?, ahead.len())
        };
        if left == self.inner.block / 4 && self.inner.block > 1 {
            self.fetch_behind();
        }
        Some(ticket)
    }

    /// The next block, while the rest of this one is used up. Ends by itself, each host within its limit.
    fn fetch_behind(&self) {
        let Ok(guard) = self.inner.fetching.clone().try_lock_owned() else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let inner = self.inner.clone();
        runtime.spawn(async move {
            match inner.fetch(inner.block).await {
                Ok(tickets) => lock(&inner.ahead).extend(tickets),
                // Whoever finds the block empty asks again, and gets the error.
                Err(error) => tracing::debug!(%error, "no block of tickets was fetched ahead"),
            }
            drop(guard);
        });
    }
}

impl IdSource for Tickets {
    type Id = i64;
    type Error = Error;

    async fn next(&self) -> Result<i64, Error> {
        if self.inner.block == 1 {
            let one = self.inner.fetch(1).await?;
            return Ok(one[0]);
        }
        loop {
            if let Some(ticket) = self.pop() {
                return Ok(ticket);
            }
            let _one_at_a_time = self.inner.fetching.lock().await;
            if lock(&self.inner.ahead).is_empty() {
                let tickets = self.inner.fetch(self.inner.block).await?;
                // The first is the caller's: it does not have to race for it.
                let mut tickets = tickets.into_iter();
                let first = tickets.next().expect("a block has tickets");
                lock(&self.inner.ahead).extend(tickets);
                return Ok(first);
            }
        }
    }

    async fn next_many(&self, count: usize) -> Result<Vec<i64>, Error> {
        if count > BATCH_MAX {
            return Err(Error::BatchTooLarge { count });
        }
        let mut tickets = Vec::with_capacity(count);
        {
            let mut ahead = lock(&self.inner.ahead);
            let some = ahead.len().min(count);
            tickets.extend(ahead.drain(..some));
        }
        while tickets.len() < count {
            let wanted = (count - tickets.len()).min(Options::BLOCK_MAX);
            tickets.extend(self.inner.fetch(wanted).await?);
        }
        Ok(tickets)
    }
}

impl Inner {
    /// Exactly so many tickets, of the next host that gives them.
    async fn fetch(&self, count: usize) -> Result<Vec<i64>, Error> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let at = |step: usize| &self.hosts[(turn + step) % self.hosts.len()];
        let order: Vec<&Host> = (0..self.hosts.len()).map(at).collect();
        let now = Instant::now();
        // Those that failed a moment ago come last.
        let (rested, resting): (Vec<_>, Vec<_>) =
            order.into_iter().partition(|host| lock(&host.rests_until).is_none_or(|until| until <= now));
        let mut failed = Vec::new();
        for host in rested.into_iter().chain(resting) {
            let limit = self.options.host_limit;
            let late = |_| Error::TimedOut { host: host.host.name.clone(), limit_ms: limit.as_millis() };
            let taken = tokio::time::timeout(limit, self.take(host, count)).await;
            match taken.map_err(late).and_then(|taken| taken) {
                Ok(tickets) => {
                    *lock(&host.rests_until) = None;
                    return Ok(tickets);
                }
                Err(error) => {
                    tracing::debug!(%error, "a host gave no tickets");
                    *lock(&host.rests_until) = Some(Instant::now() + self.options.rest);
                    failed.push(error);
                }
            }
        }
        let name = self.options.name.clone();
        if failed.is_empty() { Err(Error::NoHosts { name }) } else { Err(Error::AllFailed { name, failed }) }
    }

    /// Tickets of one host.
    async fn take(&self, host: &Host, count: usize) -> Result<Vec<i64>, Error> {
        let mut session = host.session.lock().await;
        // A connection may have died while it was idle: then once more with a new one. Should the first have been heard
        // after all, its tickets are lost, not given twice.
        if let Some((connection, statement)) = session.open.take() {
            match self.ask(&connection, &statement, host, count).await {
                Ok(row) => return self.accept(&mut session, (connection, statement), host, &row),
                Err(error) => tracing::debug!(%error, "a connection for tickets is made anew"),
            }
        }
        let name = &host.host.name;
        let connection = host.host.connect.connect("pgshard tickets").await;
        let connection = connection.map_err(|source| Error::Connect { host: name.clone(), source })?;
        let statement = connection.prepare(TAKE).await.map_err(|source| {
            match source.code().map(|code| code.code()) {
                // No such schema, or no such function in it.
                Some("3F000" | "42883") => Error::NotThere { host: name.clone(), name: self.options.name.clone() },
                _ => Error::Sql { host: name.clone(), doing: "prepare to take tickets", source },
            }
        })?;
        let row = self.ask(&connection, &statement, host, count).await?;
        self.accept(&mut session, (connection, statement), host, &row)
    }

    async fn ask(
        &self,
        connection: &Connection,
        statement: &Statement,
        host: &Host,
        count: usize,
    ) -> Result<tokio_postgres::Row, Error> {
        let count = i32::try_from(count).expect("a block is small");
        let row = connection.query_one(statement, &[&self.options.name.as_str(), &count]).await;
        row.map_err(Error::sql(&host.host.name, "take tickets"))
    }

    /// Whether these tickets are the ones that the config means. Only then are they given.
    fn accept(
        &self,
        session: &mut Session,
        open: (Connection, Statement),
        host: &Host,
        row: &tokio_postgres::Row,
    ) -> Result<Vec<i64>, Error> {
        let (name, host) = (&self.options.name, &host.host.name);
        let Some(series) = row.get::<_, Option<Uuid>>(0) else {
            session.open = Some(open);
            return Err(Error::NotThere { host: host.clone(), name: name.clone() });
        };
        let mismatch = |reason| Error::Mismatch { host: host.clone(), name: name.clone(), reason };
        let number = |column| row.get::<_, i32>(column).unsigned_abs();
        let layout = Layout { stride: number(1), run: number(2) };
        let (residue, recorded) = (number(3), row.get::<_, &str>(4));
        if recorded != host.as_str() {
            return Err(mismatch(format!("it gives the tickets of {recorded}; was it copied, or renamed?")));
        }
        let mut known = lock(&self.series);
        if *known.series.get_or_insert((series, layout)) != (series, layout) {
            return Err(mismatch("its series is another than the other hosts'".to_owned()));
        }
        let owner = known.residues.entry(residue).or_insert_with(|| host.clone());
        if owner != host {
            return Err(mismatch(format!("its residue {residue} is that of {owner}")));
        }
        drop(known);
        let tickets: Vec<i64> = row.get(5);
        let right = |ticket: &i64| layout.decode(*ticket).is_some_and(|(of, _)| of == residue);
        if let Some(wrong) = tickets.iter().find(|ticket| !right(ticket)) {
            return Err(mismatch(format!("its sequence gave {wrong}, which has not its residue {residue}")));
        }
        // One session asks at a time, so that what a host gives it grows; what goes down has been given before.
        let mut last = session.last;
        for ticket in &tickets {
            if *ticket <= last {
                let advice = format!("`pgshard tickets create {name} --hosts {host} --start N`, N above it");
                return Err(mismatch(format!("its sequence went back, from {last} to {ticket}: {advice}")));
            }
            last = *ticket;
        }
        session.last = last;
        session.open = Some(open);
        Ok(tickets)
    }
}
