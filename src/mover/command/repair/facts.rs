//! The facts of every host about one shard, first-hand.

use std::collections::BTreeSet;

use futures_util::future::join_all;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::map::{HostName, ShardEpoch};
use crate::mover::control::context::Context;
use crate::mover::control::journal::{COLUMNS, Entry};
use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::worker::Worker;
use crate::pg::HostState;
use crate::pg::cause::chain;
use crate::shard::ShardId;

/// A host, and its facts.
#[derive(Clone, Debug)]
pub(super) struct HostAnswer {
    pub(super) host: HostName,
    pub(super) answer: Answer,
}

/// The result of asking a host.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    /// It reports this.
    Known(Box<ShardFacts>),
    /// It reports nothing about the shard.
    Silent(Silence),
}

/// Why a host reports nothing about the shard.
#[derive(Clone, Debug)]
pub(super) struct Silence {
    pub(super) state: HostState,
    pub(super) why: String,
}

impl Answer {
    fn silent(state: HostState, why: impl Into<String>) -> Answer {
        let why = why.into();
        Answer::Silent(Silence { state, why })
    }
}

/// The facts of one host about the shard.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardFacts {
    pub(super) server: ServerRecord,
    /// Its row in `pgshard.shard`.
    pub(super) row: Option<ShardRecord>,
    /// What a move is bringing there.
    pub(super) incoming: Option<Incoming>,
    /// The old copies that it keeps, the latest last.
    pub(super) copies: Vec<OldCopy>,
    /// The moves of the shard in its journal, the latest last.
    pub(super) journal: Vec<JournaledMove>,
}

/// Which server it is.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::mover::command) struct ServerRecord {
    pub(in crate::mover::command) system: i64,
    pub(in crate::mover::command) timeline: i64,
    /// The highest timeline at which it has recorded itself.
    pub(in crate::mover::command) recorded: Option<i64>,
}

/// A row of `pgshard.shard`.
#[derive(Clone, Debug)]
pub(super) struct ShardRecord {
    pub(super) state: Owning,
    pub(super) epoch: ShardEpoch,
    pub(super) move_id: Option<MoveId>,
    pub(super) token: Option<Uuid>,
}

/// The owner of the shard, by the host's own row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owning {
    Serving,
    /// It owns it, and a move has closed it.
    Fenced,
    /// The named host owns it, since that epoch.
    Moved(HostName),
}

/// A row of `pgshard.incoming`.
#[derive(Clone, Debug)]
pub(super) struct Incoming {
    pub(super) move_id: MoveId,
    pub(super) source: HostName,
    pub(super) epoch: ShardEpoch,
    /// If everything is there: the hash of the token with which it can be opened.
    pub(super) ready: Option<String>,
}

impl Incoming {
    /// Whether this is what a host has decided to give away, and all of it.
    pub(super) fn fits(&self, given: &ShardRecord) -> bool {
        let hash = given.token.map(|token| {
            Sha256::digest(token.to_string())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect::<String>()
        });
        (Some(self.move_id), self.epoch) == (given.move_id, given.epoch)
            && hash.is_some()
            && self.ready == hash
    }
}

/// The shard as it was when it left a host.
#[derive(Clone, Debug)]
pub(super) struct OldCopy {
    /// The epoch that it had there.
    pub(super) epoch: ShardEpoch,
    /// Whether changes of the new host may have been applied to it since.
    pub(super) fed: bool,
    /// The rollback that has taken it, under its incoming name.
    pub(super) taken_by: Option<MoveId>,
}

/// A move of the shard, as a journal records it.
#[derive(Clone, Debug)]
pub(super) struct JournaledMove {
    pub(super) id: MoveId,
    pub(super) target: HostName,
    pub(super) phase: Phase,
    pub(super) rollback_of: Option<MoveId>,
    pub(super) worker: Option<Worker>,
}

/// Reads all hosts of the config, each in one snapshot. Hosts that others name, but the config does
/// not, count as [`HostState::NotAsked`].
///
/// # Errors
/// [`Error::ControlOld`] and [`Error::AtWork`]: those must be put right, or waited for, first.
pub(super) async fn read(context: &Context, shard: ShardId) -> Result<Vec<HostAnswer>, Error> {
    let asked = context
        .hosts
        .names()
        .map(|host| async move { (host.clone(), read_answer(context, host, shard).await) });
    let mut all = Vec::new();
    for (host, answer) in join_all(asked).await {
        let answer = match answer {
            Ok(answer) => answer,
            Err(
                error @ (Error::ControlOld { .. }
                | Error::ControlNewer { .. }
                | Error::OtherHost { .. }
                | Error::OtherCluster { .. }),
            ) => return Err(error),
            Err(Error::Connect { source, .. }) => {
                Answer::silent(source.host_state(), chain(&source))
            }
            Err(error) => Answer::silent(error.host_state(), chain(&error)),
        };
        all.push(HostAnswer { host, answer });
    }
    for said in &all {
        let Answer::Known(known) = &said.answer else {
            continue;
        };
        for told in known.journal.iter().filter(|told| !told.phase.is_ended()) {
            if let Some(worker) = told.worker.clone() {
                return Err(Error::AtWork {
                    shard,
                    id: told.id,
                    worker,
                });
            }
        }
    }
    let named: BTreeSet<HostName> = all.iter().flat_map(named_hosts).collect();
    for host in named {
        if !all.iter().any(|said| said.host == host) {
            all.push(HostAnswer {
                host,
                answer: Answer::silent(HostState::NotAsked, "the config does not name it"),
            });
        }
    }
    Ok(all)
}

/// The hosts that this one names as having the shard, or as bringing it.
fn named_hosts(said: &HostAnswer) -> Vec<HostName> {
    let Answer::Known(known) = &said.answer else {
        return Vec::new();
    };
    let peer = known.row.iter().filter_map(|row| match &row.state {
        Owning::Moved(peer) => Some(peer.clone()),
        _ => None,
    });
    peer.chain(
        known
            .incoming
            .iter()
            .map(|incoming| incoming.source.clone()),
    )
    .collect()
}

/// The facts of a host. If it has no control schema, or has rows that no release of pgshard has
/// written, it counts as silent.
///
/// Locks: none but ACCESS SHARE on catalogs and control tables.
async fn read_answer(context: &Context, host: &HostName, shard: ShardId) -> Result<Answer, Error> {
    let session = context.hosts.open(host).await?.for_shard(shard);
    if !session.is_bootstrapped().await? {
        return empty(&session, context).await;
    }
    let unreadable = |table: &str| {
        Ok(Answer::silent(
            HostState::AnswersWithError,
            format!("its row of the shard in {table} cannot be read"),
        ))
    };
    let names = Names {
        schema: context.prefix.schema(shard),
    };
    session
        .batch(WHAT, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        .await?;
    let server = server(&session).await?;
    let mut known = ShardFacts {
        server,
        ..ShardFacts::default()
    };
    let sql =
        "SELECT state, epoch, peer, move_id, open_token FROM pgshard.shard WHERE shard_id = $1";
    let rows = session.rows(WHAT, sql, &[&shard.as_i32()]).await?;
    if let Some(found) = rows.first() {
        match row(found)? {
            Some(row) => known.row = Some(row),
            None => return unreadable("pgshard.shard"),
        }
    }
    known.journal = journal(&session, shard).await?;
    let sql =
        "SELECT move_id, source, epoch, CASE WHEN ready_attempt IS NOT NULL THEN open_hash END
        FROM pgshard.incoming WHERE shard_id = $1";
    let rows = session.rows(WHAT, sql, &[&shard.as_i32()]).await?;
    if let Some(found) = rows.first() {
        match incoming(found)? {
            Some(incoming) => known.incoming = Some(incoming),
            None => return unreadable("pgshard.incoming"),
        }
    }
    known.copies = copies(&session, shard, &names).await?;
    session.batch(WHAT, "COMMIT").await?;
    Ok(Answer::Known(Box::new(known)))
}

/// The result for a host without a whole control schema. It serves nothing if it has nothing of
/// pgshard's; with a damaged control schema, or with shards but no control schema, it may serve
/// them.
///
/// Locks: none.
async fn empty(session: &Session, context: &Context) -> Result<Answer, Error> {
    let sql =
        "SELECT coalesce(string_agg(nspname, ', '), '') FROM (SELECT nspname FROM pg_namespace
        WHERE nspname = 'pgshard' OR nspname ~ '[0-9]{4}$' AND starts_with(nspname, $1)
        ORDER BY 1 LIMIT 3) AS ours";
    let row = session.row(WHAT, sql, &[&context.prefix.as_str()]).await?;
    let ours: &str = row.get(0)?;
    Ok(if ours.is_empty() {
        Answer::silent(
            HostState::Serving,
            "its database has no control schema: it is empty, or belongs to another program",
        )
    } else {
        Answer::silent(
            HostState::AnswersWithError,
            format!(
                "its control schema lacks tables, and its database has schemas of ours: {ours}"
            ),
        )
    })
}

const WHAT: &str = "asking what the host knows of the shard";

/// Reads a server's identity.
///
/// Locks: none but ACCESS SHARE on catalogs and control tables.
pub(in crate::mover::command) async fn server(session: &Session) -> Result<ServerRecord, Error> {
    let sql = "SELECT system_identifier, ('x' || left(pg_walfile_name(pg_current_wal_lsn()), \
        8))::bit(32)::bigint,
            (SELECT max(i.timeline) FROM pgshard.identity i JOIN pgshard.cluster c USING (host_name)
             WHERE i.system_identifier = s.system_identifier)
        FROM pg_control_system() s";
    let row = session.row(WHAT, sql, &[]).await?;
    Ok(ServerRecord {
        system: row.get(0)?,
        timeline: row.get(1)?,
        recorded: row.get(2)?,
    })
}

async fn journal(session: &Session, shard: ShardId) -> Result<Vec<JournaledMove>, Error> {
    let sql = format!(
        "SELECT {COLUMNS} FROM pgshard.move WHERE shard_id = $1 ORDER BY created_at, move_id"
    );
    let mut entries = session.read_entries(WHAT, &sql, &[&shard.as_i32()]).await?;
    session.add_workers(&mut entries, None).await?;
    let told = |entry: Entry| JournaledMove {
        id: entry.id,
        target: entry.target,
        phase: entry.phase,
        rollback_of: entry.rollback_of,
        worker: entry.worker,
    };
    Ok(entries.into_iter().map(told).collect())
}

/// The old copies, including one that a rollback has taken. A copy that is fed has a row of
/// progress, which was written in one transaction with the removal of its constraints.
async fn copies(session: &Session, shard: ShardId, names: &Names) -> Result<Vec<OldCopy>, Error> {
    let sql = "WITH copies AS (
            SELECT substr(nspname, length($2::text) + 9)::integer AS epoch, NULL::uuid AS taken_by \
            FROM pg_namespace
            WHERE starts_with(nspname, $2 || '__left_e') AND substr(nspname, length($2::text) + 9) \
            ~ '^[0-9]{1,9}$'
            UNION ALL
            SELECT m.epoch, b.taken_by FROM pgshard.back b JOIN pgshard.move m USING (move_id, \
            shard_id)
            JOIN pgshard.incoming i ON i.move_id = b.taken_by AND i.shard_id = b.shard_id WHERE \
            b.shard_id = $1)
        SELECT c.epoch, c.taken_by, c.taken_by IS NOT NULL OR EXISTS (
            SELECT FROM pgshard.move m JOIN pgshard.back b USING (move_id, shard_id)
            JOIN pgshard.progress p USING (move_id, shard_id)
            WHERE m.shard_id = $1 AND m.epoch = c.epoch AND b.at_open IS NOT NULL AND p.xmin <> \
            b.xmin)
        FROM copies c ORDER BY 1";
    let rows = session
        .rows(WHAT, sql, &[&shard.as_i32(), &names.schema])
        .await?;
    let read = |row: &AnsweredRow| {
        let epoch = ShardEpoch::from_i32(row.get(0)?).unwrap_or(ShardEpoch::FIRST);
        let taken_by = row.get::<_, Option<Uuid>>(1)?.map(MoveId::from);
        Ok(OldCopy {
            epoch,
            taken_by,
            fed: row.get(2)?,
        })
    };
    rows.iter().map(read).collect()
}

/// `None` if the state, the epoch or the host is invalid: what is unclear is never taken for
/// serving.
fn row(row: &AnsweredRow) -> Result<Option<ShardRecord>, Error> {
    let peer: Option<&str> = row.get(2)?;
    let state = match (row.get(0)?, peer.and_then(|peer| HostName::new(peer).ok())) {
        ("moved", Some(peer)) => Owning::Moved(peer),
        ("fenced", _) => Owning::Fenced,
        ("serving", _) => Owning::Serving,
        _ => return Ok(None),
    };
    let Some(epoch) = ShardEpoch::from_i32(row.get(1)?) else {
        return Ok(None);
    };
    let move_id = row.get::<_, Option<Uuid>>(3)?.map(MoveId::from);
    Ok(Some(ShardRecord {
        state,
        epoch,
        move_id,
        token: row.get(4)?,
    }))
}

/// `None` if the epoch or the host is invalid.
fn incoming(row: &AnsweredRow) -> Result<Option<Incoming>, Error> {
    let (source, epoch) = (
        HostName::new(row.get(1)?).ok(),
        ShardEpoch::from_i32(row.get(2)?),
    );
    let (Some(source), Some(epoch)) = (source, epoch) else {
        return Ok(None);
    };
    let move_id = MoveId::from(row.get::<_, Uuid>(0)?);
    Ok(Some(Incoming {
        move_id,
        source,
        epoch,
        ready: row.get(3)?,
    }))
}
