//! Reads the state of hosts: the server, the rows of its control schema, and the load on it.
//!
//! It uses [`control`](crate::schema::control) only, and writes nothing.
//!
//! A survey of a host starts with its server ([`server`]), which every role may read. The control
//! schema ([`control`]) can be read by its owner and by monitors: one statement reads everything
//! about the shards ([`snapshot`]), others what may be of another moment ([`auxiliary`]).
//!
//! Invariant: everything that a survey holds about a host comes from one snapshot, except its
//! clocks. A shard that moves during the survey does not appear on two hosts, and its schema does
//! not appear without its row.

use futures_util::future::{BoxFuture, join_all};
use tokio_postgres::Client;

use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::schema::control::monitors;

mod answer;
mod auxiliary;
pub(in crate::schema) mod clock;
mod control;
pub(in crate::schema) mod expected_objects;
pub(in crate::schema) mod facts;
pub(in crate::schema) mod host_records;
mod load;
mod measure;
pub(in crate::schema) mod ownership;
pub(in crate::schema) mod refusal;
mod sequences;
mod server;
mod settled;
mod snapshot;
mod status;
mod streams;
pub mod top;

pub(super) use auxiliary::open_move;
pub(super) use control::{installed, shape};
pub use expected_objects::{RESTORE, missing_objects};
pub use facts::{
    AppliedSet, Attempt, ClockFacts, ControlFacts, FactsError, HostFacts, IncomingRow, KeptAudit,
    LedgerRow, MadeSet, OfMoves, OpenMove, OpenRollback, Record, RecordedCluster, RecordedControl,
    ServerFacts, ShardRow, ShardState, Survey, WholeRow,
};
pub use load::{HostLoad, SlotLoad, host_load};
pub use measure::{Measure, Sizes, measure};
pub(crate) use refusal::shards_named;
pub use refusal::{Refusal, differences, restore};
pub use settled::{BETWEEN_LOOKS, LOOKS, LOOKS_MAX, read_until_settled};
pub(crate) use status::COMMITS_WAIT;
pub use status::{DatabaseEnvironment, HostStatus, database_environment, host_status};
pub use streams::{Slot, StreamReader, Streams, streams};

/// Reads the facts of the host behind a connection. Works on a host that was never bootstrapped,
/// and needs no rights there. If there is a control schema, the role must own it.
///
/// # Errors
/// When the control schema belongs to another role, when a query fails, or when the control schema
/// contains something impossible.
///
/// # Cancel safety
/// Nothing is written and no transaction is left open.
pub async fn host_facts(client: &Client) -> Result<HostFacts, FactsError> {
    facts_for(client, Who::Owner).await
}

/// Reads the facts of a host with a role that may only monitor, as [`survey`](fn@survey) does.
///
/// # Errors
/// As [`host_facts`].
///
/// # Cancel safety
/// Nothing is written. A future that is dropped may leave a READ ONLY transaction open on the
/// connection: close it.
pub async fn watched_facts(client: &Client) -> Result<HostFacts, FactsError> {
    in_one_snapshot(client).await
}

/// The same, with the clocks of the host and of its shards' IDs.
///
/// # Errors
/// As [`host_facts`].
///
/// # Cancel safety
/// As [`watched_facts`].
pub async fn watched_facts_with_clocks(client: &Client) -> Result<HostFacts, FactsError> {
    let mut facts = in_one_snapshot(client).await?;
    facts.clock = Some(clock::read(client, &facts).await?);
    if let Some(whole) = facts.control.as_mut().and_then(|all| all.whole.as_mut()) {
        whole.last_id = sequences::last_id(client, &whole.schema).await;
    }
    Ok(facts)
}

/// Reads many hosts at the same time, each over a connection of its own. The role may be one that
/// only monitors.
///
/// # Cancel safety
/// Dropping the future closes the connections.
pub fn survey(
    hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>,
) -> BoxFuture<'static, Survey> {
    survey_of(hosts.into_iter().collect(), Clocks::Unasked)
}

/// The same, with the clocks of the hosts and of their shards' IDs.
///
/// # Cancel safety
/// As [`survey`](fn@survey).
pub fn survey_with_clocks(
    hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>,
) -> BoxFuture<'static, Survey> {
    survey_of(hosts.into_iter().collect(), Clocks::Asked)
}

/// Whether the hosts' clocks are read, which takes several more round trips.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Clocks {
    Asked,
    Unasked,
}

fn survey_of(hosts: Vec<(HostName, ConnectOptions)>, clocks: Clocks) -> BoxFuture<'static, Survey> {
    Box::pin(async move {
        let answer = |(name, connect): (HostName, ConnectOptions)| async move {
            (name, ask(connect, clocks).await)
        };
        join_all(hosts.into_iter().map(answer))
            .await
            .into_iter()
            .collect()
    })
}

fn ask(
    connect: ConnectOptions,
    clocks: Clocks,
) -> BoxFuture<'static, Result<HostFacts, FactsError>> {
    Box::pin(async move {
        let connection = connect
            .connect("pgshard survey")
            .await
            .map_err(|source| FactsError::Unreachable { source })?;
        match clocks {
            Clocks::Asked => watched_facts_with_clocks(&connection).await,
            Clocks::Unasked => watched_facts(&connection).await,
        }
    })
}

/// Everything but the clocks, of one snapshot. Where something is gone it is read again: a
/// bootstrap may be bringing the control schema up to date.
///
/// Locks: ACCESS SHARE on catalogs and control tables, until the transaction ends. Waits five
/// seconds at most for a locked control table.
async fn in_one_snapshot(client: &Client) -> Result<HostFacts, FactsError> {
    let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY; SET LOCAL lock_timeout = '5s'";
    // Some services do not provide this, and the error would end the transaction.
    let waits = client
        .query_one(&format!("SELECT {COMMITS_WAIT}"), &[])
        .await;
    let commits_wait = waits.is_ok_and(|row| row.try_get(0).unwrap_or(false));
    let mut reads = 0;
    loop {
        client.batch_execute(begin).await.map_err(server::failed)?;
        let mut read = facts_for(client, Who::Monitor).await;
        if let Ok(facts) = &mut read {
            facts.server.commits_wait = commits_wait;
        }
        reads += 1;
        let ended = client.batch_execute("ROLLBACK").await;
        let lacks_nothing = match &read {
            Ok(facts) => {
                ended.map_err(server::failed)?;
                facts.control.as_ref().is_none_or(control::is_whole)
            }
            Err(error) => ended.is_err() || !matches!(error, FactsError::Lacking { .. }),
        };
        if lacks_nothing || reads >= READS_MAX {
            return read;
        }
    }
}

/// How often a control schema is read that changes during the reading.
const READS_MAX: u32 = 3;

/// The roles that may survey a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// A role that acts for the owner of the control schema: it is going to write.
    Owner,
    /// That, or one that only watches.
    Monitor,
}

fn facts_for(client: &Client, who: Who) -> BoxFuture<'_, Result<HostFacts, FactsError>> {
    Box::pin(async move {
        let server::Answer {
            mut server,
            schemas,
            of_moves,
            settings,
            control,
        } = server::read(client).await?;
        let control = match control {
            None => None,
            Some(server::Control { foreign }) => {
                if let Some(server::Foreign { owner, role }) = foreign {
                    if who == Who::Owner
                        || !monitors::watches(client).await.map_err(server::failed)?
                    {
                        return Err(FactsError::NotOwner { owner, role });
                    }
                    server.watcher = Some(role);
                }
                Some(control::read(client).await?)
            }
        };
        Ok(HostFacts {
            server,
            schemas,
            of_moves,
            settings,
            control,
            clock: None,
        })
    })
}
