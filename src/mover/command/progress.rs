//! How far a move is, seen from outside: from any machine, whether its mover is alive or not.
//!
//! Invariant: it only reads, and takes no lock that another session waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::control::context::{ByHost, Context};
use crate::mover::control::journal::{Entry, ReverseReplication};
use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::state::{Mode, Phase};
use crate::mover::stream::slot;

/// A move at one moment, as its hosts describe it.
#[derive(Debug)]
pub struct Progress {
    /// The move.
    pub id: MoveId,
    /// Its shards that are claimed, by number.
    pub shards: Vec<ShardProgress>,
    /// What the sources keep for it; empty for a blocking move, or one that has ended.
    pub streams: Vec<StreamProgress>,
    /// What its targets keep for the reverse replications of kept shards.
    pub reverse_streams: Vec<StreamProgress>,
    /// The hosts that could not be read.
    pub unknown: Vec<(HostName, Error)>,
}

/// One shard of it.
#[derive(Clone, Debug)]
pub struct ShardProgress {
    /// The journal's entry.
    pub entry: Entry,
    /// Online: how much of its rows is at the target.
    pub chunks: Chunks,
    /// Who is in the way of its fence: sessions that have held a lock on the shard for more than a
    /// moment. Each has its backend's number and its statement.
    pub blockers: Vec<String>,
}

/// The chunks in which a shard's rows are copied. All are zero until they are cut, and once the
/// shard is open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Chunks {
    /// How many there are.
    pub all: u64,
    /// How many are copied.
    pub copied: u64,
    /// How many were compared with the source.
    pub verified: u64,
    /// The rows of those that are copied.
    pub rows: u64,
    /// Their bytes, as they were sent.
    pub bytes: u64,
}

/// A stream of changes: from one source, for all shards of the move that come from there. Or that
/// of a reverse replication, from the target.
#[derive(Clone, Debug)]
pub struct StreamProgress {
    /// The host that the changes come from, and that keeps WAL for them.
    pub source: HostName,
    /// The slot. Publication and slot have the same name.
    pub slot: String,
    /// The walsender that serves a reader, if there is one.
    pub pid: Option<i32>,
    /// `reserved`, `extended`, `unreserved` or `lost`; `None` if the slot does not exist, yet or
    /// any longer.
    pub wal_status: Option<String>,
    /// WAL that the source keeps for it, in bytes.
    pub kept: u64,
    /// WAL that the target has not received, in bytes.
    pub lag_bytes: u64,
    /// The age of what the target received last; `None` if there is no reader, or nothing is
    /// missing.
    pub lag: Option<Duration>,
    /// The transactions that the creation of the slot waits for.
    pub blockers: Vec<String>,
}

/// For how many shards the locks are read each time: each costs a query.
const LOCKS_MAX: usize = 16;

/// A younger transaction will have ended before an operator has read about it.
const MOMENT_S: f64 = 0.5;

/// Reads how far a move is.
pub(crate) async fn progress(context: &Context, id: MoveId) -> Result<Progress, Error> {
    let mut progress = Progress {
        id,
        shards: Vec::new(),
        streams: Vec::new(),
        reverse_streams: Vec::new(),
        unknown: Vec::new(),
    };
    let sources = context
        .hosts
        .names()
        .map(|host| async move { (host.clone(), at_source(context, host, id).await) });
    for (host, answer) in futures_util::future::join_all(sources).await {
        match answer {
            Ok((shards, stream)) => {
                progress.shards.extend(shards);
                progress.streams.extend(stream);
            }
            Err(error) => progress.unknown.push((host, error)),
        }
    }
    if progress.shards.is_empty() {
        let silent = progress.unknown.into_iter().next();
        return Err(silent.map_or(Error::NoSuchMove { id }, |(_, error)| error));
    }
    progress.shards.sort_by_key(|shard| shard.entry.shard);
    let mut targets: ByHost<BTreeMap<ShardId, Chunks>> = BTreeMap::new();
    let open = progress
        .shards
        .iter()
        .filter(|shard| shard.entry.mode == Mode::Online && !shard.entry.phase.is_ended());
    for shard in open {
        targets.entry(shard.entry.target.clone()).or_default();
    }
    for (host, of_host) in &mut targets {
        match chunks(context, host, id).await {
            Ok(found) => *of_host = found,
            // Its own line reports that already, unless it disappeared just now.
            Err(error) if !progress.unknown.iter().any(|(silent, _)| silent == host) => {
                progress.unknown.push((host.clone(), error));
            }
            Err(_) => {}
        }
    }
    for shard in &mut progress.shards {
        let of_host = targets.get(&shard.entry.target);
        shard.chunks = of_host
            .and_then(|by_shard| by_shard.get(&shard.entry.shard))
            .copied()
            .unwrap_or_default();
    }
    progress.reverse_streams =
        reverse_streams(context, progress.shards.iter().map(|shard| &shard.entry)).await;
    Ok(progress)
}

/// What hosts keep for the reverse replications of entries that are kept.
pub(crate) async fn reverse_streams(
    context: &Context,
    entries: impl Iterator<Item = &Entry>,
) -> Vec<StreamProgress> {
    let mut slots: ByHost<BTreeSet<String>> = BTreeMap::new();
    for entry in entries.filter(|entry| entry.phase == Phase::Kept) {
        if let Some(back) = &entry.reverse {
            slots
                .entry(entry.target.clone())
                .or_default()
                .insert(back.stream.clone());
        }
    }
    let looked = slots.into_iter().map(|(host, slots)| async move {
        let mut streams = Vec::new();
        if let Ok(session) = context.hosts.open(&host).await {
            for slot in slots {
                streams.extend(
                    stream(&session, slot, false)
                        .await
                        .ok()
                        .filter(|found| found.wal_status.is_some()),
                );
            }
        }
        streams
    });
    futures_util::future::join_all(looked)
        .await
        .into_iter()
        .flatten()
        .collect()
}

/// Marks the reverse replications with slots that are gone or invalidated as lost. The journal is
/// updated only by a command that may write.
pub(crate) async fn mark_lost(context: &Context, entries: &mut [Entry]) {
    let mut slots: ByHost<BTreeSet<String>> = BTreeMap::new();
    for entry in entries.iter() {
        if let Some(back) = open_back(entry) {
            let of_host = slots.entry(entry.target.clone()).or_default();
            of_host.insert(back.stream.clone());
        }
    }
    let looked = slots.into_iter().map(|(host, slots)| async move {
        let there = async {
            let session = context.hosts.open(&host).await?;
            slot::valid(&session, &slots).await
        };
        (host.clone(), there.await)
    });
    let looked: ByHost<_> = futures_util::future::join_all(looked)
        .await
        .into_iter()
        .collect();
    for entry in entries {
        let Some(Ok(there)) = looked.get(&entry.target) else {
            continue;
        };
        let is_lost = open_back(entry).is_some_and(|back| !there.contains(&back.stream));
        if let (true, Some(back)) = (is_lost, &mut entry.reverse) {
            let (slot, host) = (&back.stream, &entry.target);
            back.lost = Some(format!("its slot {slot} on {host} is gone"));
        }
    }
}

/// The reverse replication of a shard that is kept, if it can be used.
fn open_back(entry: &Entry) -> Option<&ReverseReplication> {
    let back = entry.reverse.as_ref()?;
    (entry.phase == Phase::Kept && back.is_open()).then_some(back)
}

async fn at_source(
    context: &Context,
    host: &HostName,
    id: MoveId,
) -> Result<(Vec<ShardProgress>, Option<StreamProgress>), Error> {
    let session = context.hosts.open(host).await?;
    let mut shards = Vec::new();
    let mut looks = LOCKS_MAX;
    for entry in session.entries_if_any(Some(id)).await? {
        let names = Names {
            schema: context.prefix.schema(entry.shard),
        };
        let schema = match entry.phase {
            Phase::Prepared if entry.mode == Mode::Blocking => Some(names.schema),
            Phase::Ready => Some(names.schema),
            Phase::Fenced => Some(names.left(entry.epoch)),
            _ => None,
        };
        let mut blockers = Vec::new();
        if let Some(schema) = schema.filter(|_| looks > 0) {
            looks -= 1;
            if let Some(oid) = facts::schema_oid(&session, &schema).await? {
                let locks = facts::locks(&session, oid).await?;
                blockers.extend(
                    locks
                        .iter()
                        .filter(|lock| lock.seconds > MOMENT_S)
                        .map(ToString::to_string),
                );
            }
        }
        shards.push(ShardProgress {
            entry,
            chunks: Chunks::default(),
            blockers,
        });
    }
    let open =
        |shard: &ShardProgress| shard.entry.mode == Mode::Online && !shard.entry.phase.is_ended();
    let Some(first) = shards.iter().find(|shard| open(shard)) else {
        return Ok((shards, None));
    };
    let name = slot::name_of(id, first.entry.rollback_of, &first.entry.target);
    let waits = shards
        .iter()
        .filter(|shard| !shard.entry.lease_left.is_zero())
        .any(|shard| open(shard) && shard.entry.phase == Phase::Prepared);
    let stream = stream(&session, name, waits).await?;
    Ok((shards, Some(stream)))
}

/// Locks: ACCESS SHARE on pgshard.chunk, for one statement.
async fn chunks(
    context: &Context,
    host: &HostName,
    id: MoveId,
) -> Result<BTreeMap<ShardId, Chunks>, Error> {
    let session = context.hosts.open(host).await?;
    let sql = "SELECT shard_id, count(*), count(snapshot), count(verified_at),
            coalesce(sum(rows), 0)::bigint, coalesce(sum(bytes), 0)::bigint
        FROM pgshard.chunk WHERE move_id = $1 GROUP BY shard_id";
    let rows = session
        .rows("counting the chunks", sql, &[id.uuid()])
        .await?;
    let mut chunks = BTreeMap::new();
    for row in &rows {
        let number = |at: usize| Ok::<_, Error>(u64::try_from(row.get::<_, i64>(at)?).unwrap_or(0));
        let Ok(shard) = ShardId::try_from(row.get::<_, i32>(0)?) else {
            continue;
        };
        let (all, copied, verified, rows, bytes) =
            (number(1)?, number(2)?, number(3)?, number(4)?, number(5)?);
        chunks.insert(
            shard,
            Chunks {
                all,
                copied,
                verified,
                rows,
                bytes,
            },
        );
    }
    Ok(chunks)
}

/// The state of a move's stream at its source.
///
/// Locks: none.
async fn stream(source: &Session, name: String, waits: bool) -> Result<StreamProgress, Error> {
    let sql = "SELECT s.active_pid, s.wal_status,
            greatest(0, pg_current_wal_insert_lsn() - s.restart_lsn)::bigint,
            greatest(0, pg_current_wal_insert_lsn() - greatest(s.confirmed_flush_lsn, \
            r.write_lsn))::bigint,
            extract(epoch FROM coalesce(r.flush_lag, r.write_lag))::double precision,
            s.confirmed_flush_lsn IS NOT NULL
        FROM pg_replication_slots s LEFT JOIN pg_stat_replication r ON r.pid = s.active_pid WHERE \
        s.slot_name = $1";
    let rows = source.rows("looking at the slot", sql, &[&name]).await?;
    let mut stream = StreamProgress {
        source: source.host.clone(),
        slot: name,
        pid: None,
        wal_status: None,
        kept: 0,
        lag_bytes: 0,
        lag: None,
        blockers: Vec::new(),
    };
    if let Some(row) = rows.first() {
        let bytes = |number: Option<i64>| {
            number
                .and_then(|bytes| u64::try_from(bytes).ok())
                .unwrap_or(0)
        };
        (stream.pid, stream.wal_status) = (row.get(0)?, row.get(1)?);
        (stream.kept, stream.lag_bytes) = (bytes(row.get(2)?), bytes(row.get(3)?));
        stream.lag = row
            .get::<_, Option<f64>>(4)?
            .and_then(|s| Duration::try_from_secs_f64(s).ok());
    }
    // It is listed while it is being created, and can send nothing before that is done.
    let is_there = match rows.first() {
        Some(row) => row.get(5)?,
        None => false,
    };
    if waits && !is_there {
        stream.wal_status = None;
        stream.blockers = slot::blocking_transactions(source).await?;
    }
    Ok(stream)
}
