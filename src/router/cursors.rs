//! Cursors for one statement on many shards: one connection of each host, and a few rows of each
//! shard at a time.
//!
//! Invariant: while cursors are being opened, a move of one of their shards closes all of them, so
//! that no call keeps a connection while it waits for a shard. Connections are taken in the order
//! of the hosts' names, so that two such calls never wait for each other.

use std::collections::{BTreeMap, HashMap};
use std::pin::pin;

use futures_util::future::join_all;
use tokio::time::Instant;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::Router;
use super::call::{Call, CallFailure, call_span};
use super::error::Error;
use super::handle::Shard;
use super::lease::Lease;
use super::next::{ConnectionKind, Effect, FailedStatement, Link, TryHistory, after_statement};
use super::pool_slots::Use;
use super::recover::{FinishedTry, Recovery};
use super::routing::Place;
use super::sql::{Naming, ShardStatement, Sql, SqlText};
use super::statement_error::StatementError;
use super::statements::Prepare;
use super::target::Target;
use crate::map::HostName;
use crate::shard::{Layout, ShardId};

/// Each cursor sees what was committed when it was opened. A snapshot for all would not show the
/// rows of a shard that came to the host after the first cursor.
const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, READ ONLY";

/// The most rows that are fetched at a time, of one shard and of all.
const ROWS_OF_A_SHARD: usize = 256;
const ROWS_OF_ALL: usize = 16_384;

/// The parameters of each shard's statement.
pub(crate) type ShardParams<'a> = [Vec<&'a (dyn ToSql + Sync)>];

/// Open cursors, by their place in the list of shards that they were opened for.
pub(crate) struct Cursors {
    hosts: Vec<OpenHost>,
    cursors: Vec<Cursor>,
    /// How many rows are fetched at a time.
    rows: usize,
}

/// The connection of one host.
struct OpenHost {
    name: HostName,
    layout: Layout,
    /// `None` once the last cursor has ended.
    lease: Option<Lease>,
    /// How many cursors have not ended.
    open: usize,
}

struct Cursor {
    shard: ShardId,
    /// Its host's place in the list.
    host: usize,
    has_ended: bool,
}

/// What is run for each shard.
struct Statements {
    declare: Sql,
    fetch: Sql,
    rows: usize,
}

/// A shard's statement that failed while the cursors were being opened.
struct Failed {
    /// The shard's place in the list.
    at: usize,
    began: Instant,
    error: StatementError,
}

impl Shard<'_> {
    /// Opens cursors for a read-only statement on these shards, each given once, and fetches the
    /// first rows of each. A move is followed until all have their first rows. The limit of this
    /// shard is that of the whole call, which counts as one of its calls.
    ///
    /// # Errors
    /// The first that a shard gives, as [`Shard::query_raw`](super::Shard::query_raw).
    ///
    /// # Cancel safety
    /// Connections on which an answer is awaited are closed.
    pub(crate) async fn open_cursors(
        self,
        sql: &SqlText<'_>,
        shards: &[ShardId],
        params: &ShardParams<'_>,
    ) -> Result<(Cursors, Vec<Vec<Row>>), Error> {
        let (router, shard) = (self.router(), self.id());
        let sql = router.inner().sql.read(sql);
        if !sql.may_only_read() {
            return Err(Error::NotARead { shard });
        }
        // A signpost would have given other rows instead of an error.
        if sql.asks_about_names() {
            return Err(Error::Unsupported {
                shard,
                statement: "a query of what the catalogs say",
                instead: "use `query`",
            });
        }
        self.target().takes(&sql)?;
        let statements = Statements::new(&sql, shards.len());
        let call = Call::new(self.target(), call_span!("pgshard.stream", shard));
        let opened = call
            .limited(pin!(open(
                self.target(),
                &statements,
                shards,
                params,
                &call
            )))
            .await;
        call.ended(&opened, CallFailure::of);
        opened
    }
}

async fn open(
    target: Target<'_>,
    statements: &Statements,
    shards: &[ShardId],
    params: &ShardParams<'_>,
    call: &Call<'_>,
) -> Result<(Cursors, Vec<Vec<Row>>), Error> {
    let router = target.router;
    let inner = router.inner();
    let mut recoveries: HashMap<ShardId, Recovery<'_>> = HashMap::new();
    let mut tried = TryHistory::nothing(0);
    loop {
        call.tries();
        let places = shards
            .iter()
            .map(|shard| inner.place_for(*shard, target.reach));
        let places: Vec<Place> = places.collect::<Result<_, _>>()?;
        let mut cursors = Cursors::connect(shards, &places, statements.rows).await?;
        let opened = cursors
            .begin(router, statements, shards, (params, tried.prepare))
            .await;
        let Failed { at, began, error } = match opened {
            Ok(rows) => return Ok((cursors, rows)),
            Err(failed) => failed,
        };
        let (shard, place) = (shards[at], &places[at]);
        let link = cursors.close(at, &error).await;
        if link == Link::Lost {
            place.host.circuit.doubt();
        }
        let observed = FailedStatement {
            // The transaction is read-only wherever it runs.
            refused_to_write: false,
            ..error.observed(ConnectionKind::Own, link, Effect::READS)
        };
        let recovery = recoveries
            .entry(shard)
            .or_insert_with(|| Recovery::new(inner, shard));
        let mut finished = FinishedTry {
            place,
            began,
            lease: None,
            remembers: false,
        };
        let next = |tried, answers| after_statement(tried, observed, answers);
        if let Some(end) = Box::pin(recovery.run(&mut tried, &mut finished, next)).await? {
            return Err(error.ended(end, shard, place.host.name.clone()));
        }
    }
}

impl Statements {
    fn new(sql: &Sql, shards: usize) -> Statements {
        let rows = (ROWS_OF_ALL / shards.max(1)).clamp(1, ROWS_OF_A_SHARD);
        let declare = "DECLARE pgshard_{shard_id} NO SCROLL CURSOR FOR";
        Statements {
            // A line of its own: the statement may begin with a comment.
            declare: Sql::new(&format!("{declare}\n{}", sql.text())),
            fetch: Sql::new(&format!("FETCH {rows} FROM pgshard_{{shard_id}}")),
            rows,
        }
    }
}

impl Cursors {
    /// Borrows a connection of each host.
    async fn connect(shards: &[ShardId], places: &[Place], rows: usize) -> Result<Cursors, Error> {
        let mut of_host: BTreeMap<&HostName, Vec<usize>> = BTreeMap::new();
        for (at, place) in places.iter().enumerate() {
            of_host.entry(&place.host.name).or_default().push(at);
        }
        let mut hosts = Vec::with_capacity(of_host.len());
        let mut number = vec![0; shards.len()];
        for (name, members) in of_host {
            let Some(first) = members.first() else {
                continue;
            };
            let lease = places[*first].lease(shards[*first], Use::Longer).await?;
            for at in &members {
                number[*at] = hosts.len();
            }
            hosts.push(OpenHost {
                name: name.clone(),
                layout: places[*first].host.options.layout.clone(),
                lease: Some(lease),
                open: members.len(),
            });
        }
        let cursors = shards.iter().zip(number).map(|(shard, host)| Cursor {
            shard: *shard,
            host,
            has_ended: false,
        });
        Ok(Cursors {
            hosts,
            cursors: cursors.collect(),
            rows,
        })
    }

    /// Opens all cursors and returns the first rows of each. All hosts at a time.
    async fn begin(
        &mut self,
        router: &Router,
        statements: &Statements,
        shards: &[ShardId],
        (params, prepare): (&ShardParams<'_>, Prepare),
    ) -> Result<Vec<Vec<Row>>, Failed> {
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); self.hosts.len()];
        for (at, cursor) in self.cursors.iter().enumerate() {
            members[cursor.host].push(at);
        }
        let beginning = self.hosts.iter_mut().zip(members).map(|(host, members)| {
            host.begin(router, statements, shards, members, (params, prepare))
        });
        let mut rows: Vec<Vec<Row>> = shards.iter().map(|_| Vec::new()).collect();
        let mut failed = None;
        // Each host is waited for: what is given up on its way would cost its connection.
        for began in join_all(beginning).await {
            match began {
                Ok(first) => first.into_iter().for_each(|(at, first)| rows[at] = first),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        if let Some(failed) = failed {
            return Err(failed);
        }
        for (at, first) in rows.iter().enumerate() {
            self.end_if(at, first.len() < self.rows).await;
        }
        Ok(rows)
    }

    /// Gives all connections back after a statement has failed. Returns what is left of its own.
    async fn close(self, at: usize, error: &StatementError) -> Link {
        let own = self.cursors[at].host;
        let mut link = Link::Kept;
        let mut others = Vec::new();
        for (number, host) in self.hosts.into_iter().enumerate() {
            let Some(lease) = host.lease else { continue };
            if number != own {
                others.push(lease);
                continue;
            }
            link = error.link(&lease.session().connection);
            if link == Link::Lost || error.may_be_remembered() {
                lease.discard();
            } else {
                others.push(lease);
            }
        }
        join_all(others.into_iter().map(give_back)).await;
        link
    }

    /// The host of a cursor.
    pub(crate) fn host(&self, at: usize) -> &HostName {
        &self.hosts[self.cursors[at].host].name
    }

    /// The next rows of a shard; none after the last. `delivered` is how many of its rows the
    /// caller has given to the application.
    ///
    /// # Errors
    /// [`Error::StreamStopped`].
    ///
    /// # Cancel safety
    /// The connection of the shard's host is closed, with its cursors.
    pub(crate) async fn fetch(&mut self, at: usize, delivered: u64) -> Result<Vec<Row>, Error> {
        let Cursor {
            shard,
            host,
            has_ended,
        } = self.cursors[at];
        let host = &mut self.hosts[host];
        let Some(lease) = host.lease.as_mut().filter(|_| !has_ended) else {
            return Ok(Vec::new());
        };
        let fetch = format!("FETCH {} FROM pgshard_{shard}", self.rows);
        match lease.run_alone(&fetch).await {
            Ok(rows) => {
                self.end_if(at, rows.len() < self.rows).await;
                Ok(rows)
            }
            Err(failed) => {
                if let Some(lease) = host.lease.take() {
                    lease.discard();
                }
                Err(Error::StreamStopped {
                    shard,
                    host: host.name.clone(),
                    rows: delivered,
                    source: failed.error.into(),
                })
            }
        }
    }

    /// Records that a cursor has given its last row. With the last cursor of a host, the connection
    /// goes back.
    async fn end_if(&mut self, at: usize, ended: bool) {
        let cursor = &mut self.cursors[at];
        if !ended || std::mem::replace(&mut cursor.has_ended, true) {
            return;
        }
        let host = &mut self.hosts[cursor.host];
        host.open -= 1;
        if host.open == 0
            && let Some(lease) = host.lease.take()
        {
            give_back(lease).await;
        }
    }
}

impl OpenHost {
    async fn begin(
        &mut self,
        router: &Router,
        statements: &Statements,
        shards: &[ShardId],
        members: Vec<usize>,
        (params, prepare): (&ShardParams<'_>, Prepare),
    ) -> Result<Vec<(usize, Vec<Row>)>, Failed> {
        let mut rows = Vec::with_capacity(members.len());
        let (Some(lease), Some(first)) = (&mut self.lease, members.first()) else {
            return Ok(rows);
        };
        let began = Instant::now();
        lease.begin(BEGIN).await.map_err(|error| Failed {
            at: *first,
            began,
            error: StatementError {
                error,
                prepared_before: false,
                sent: false,
            },
        })?;
        for at in members {
            let began = Instant::now();
            let failed = |error| Failed { at, began, error };
            let naming = Naming::new(&self.layout, router.prefix());
            let rendered = |sql| ShardStatement::new(sql, naming, shards[at]);
            lease
                .run::<u64>(rendered(&statements.declare), &params[at], prepare)
                .await
                .map_err(failed)?;
            let first = lease.run_alone(&rendered(&statements.fetch).text()).await;
            rows.push((at, first.map_err(failed)?));
        }
        Ok(rows)
    }
}

/// Ends the transaction, and gives the connection back. It is closed if that fails.
async fn give_back(mut lease: Lease) {
    if !lease.is_unsettled() {
        let _ = lease.roll_back().await;
    }
}
