//! The task of a follower: it opens the connections, continues from the last durable position, and
//! starts again after a failure.
//!
//! Invariant: what a run knows about shards, chunks and positions is read from the target when it
//! begins, and is thrown away with the run. So there is one answer to a failure at any place: start
//! again.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use tokio_postgres::types::PgLsn;

use crate::backoff::Backoff;
use crate::mover::control::journal::SessionPurpose;
use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::copy::chunks;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::shard::ShardId;

use crate::mover::stream::adopt::adopt;
use crate::mover::stream::apply::Applier;
use crate::mover::stream::changes::{ShardStream, TableState, Tables};
use crate::mover::stream::command::Command;
use crate::mover::stream::confirm::Confirmation;
use crate::mover::stream::fault::{Failure, Fault, is_undecodable};
use crate::mover::stream::layout::TargetColumn;
use crate::mover::stream::options::Basis;
use crate::mover::stream::row_index;
use crate::mover::stream::run::Run;
use crate::mover::stream::slot::{drop_slot, free_slot};
use crate::mover::stream::state::{End, FollowerState};
use crate::mover::stream::transport::{Source, Transport};
use crate::mover::stream::view::note_fault;
use crate::pg::cause::chain;

/// The pauses between two attempts.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_secs(2),
    jitter: Backoff::NO_JITTER,
};

/// The task of a follower.
pub(super) struct Worker {
    state: FollowerState,
}

impl Worker {
    pub(super) fn new(state: FollowerState) -> Worker {
        Worker { state }
    }

    pub(super) async fn run(mut self) {
        let why = match self.follow().await {
            Ok(End::Stopped) => "it was stopped".to_owned(),
            Ok(End::Alone | End::Again) => "no shard is left".to_owned(),
            Ok(End::TakenOver) => "a rollback has taken a shard of the stream".to_owned(),
            Err(error) => chain(&error),
        };
        tracing::debug!(stream = self.state.options.stream, why, "the follower ends");
        self.state.view.send_modify(|view| view.ended = Some(why));
    }

    async fn follow(&mut self) -> Result<End, Error> {
        let mut pause = PAUSES.first;
        let mut failing_since: Option<Instant> = None;
        loop {
            let before = self.state.view.borrow().position;
            let failure = match self.attempt().await {
                Ok(End::Again) => continue,
                Ok(end) => return Ok(end),
                Err(failure) => failure,
            };
            match failure {
                Failure::Final(error) => return Err(*error),
                Failure::Shard(shard, fault) => {
                    self.state.mark_lost(shard, fault);
                    continue;
                }
                Failure::Passing(error) => {
                    if let Some(message) = error.full_disk(&self.state.options.target)
                        && self.makes_room()
                    {
                        self.lose_all(&message);
                        return Err(*error);
                    }
                    if self.state.view.borrow().position > before {
                        (failing_since, pause) = (None, PAUSES.first);
                    }
                    // It is the second time at the same place: the server would answer the same for
                    // ever.
                    if failing_since.is_some() && is_undecodable(&error) {
                        return Err(self.give_slot_up(&error).await?);
                    }
                    let since = *failing_since.get_or_insert_with(Instant::now);
                    tracing::warn!(
                        stream = self.state.options.stream,
                        error = chain(&*error),
                        "the stream is opened again"
                    );
                    if since.elapsed() + pause > self.state.options.patience {
                        return Err(*error);
                    }
                }
            }
            let stopped = async {
                loop {
                    match self.state.commands.recv().await {
                        Some(Command::Stop) | None => return,
                        // While there are no connections, no pause is possible and no marker comes.
                        Some(Command::Expect {
                            shard,
                            attempt,
                            open_hash,
                        }) => {
                            self.state.expected.insert(shard, (attempt, open_hash));
                        }
                        Some(Command::Detach { shard }) => {
                            self.state.held.remove(&shard);
                            note_fault(&self.state.view, shard, Fault::Detached);
                        }
                        Some(Command::Pause { .. }) => {}
                    }
                }
            };
            if tokio::time::timeout(pause, stopped).await.is_ok() {
                return Ok(End::Stopped);
            }
            pause = PAUSES.after(pause);
        }
    }

    /// Drops a slot that its server cannot decode, so that the next mover sees that it is gone: a
    /// move copies again, and a rollback, which cannot, is refused. The source serves, so nothing
    /// is lost with it. Returns the error to end with.
    ///
    /// Locks: none; the slot has no other reader.
    async fn give_slot_up(&mut self, error: &Error) -> Result<Error, Error> {
        let options = &self.state.options;
        tracing::warn!(
            stream = options.stream,
            error = chain(error),
            "the slot is dropped: the server cannot decode it"
        );
        // A worker that slept, and was taken over during that time, must leave the slot to the
        // mover that has the shards: it may be a new slot.
        let target = options.hosts.open_new(&options.target).await?;
        let is_ours = matches!(self.is_taken_over(&target).await, Ok(false))
            && self
                .progress(&target)
                .await
                .is_ok_and(|shards| !shards.is_empty());
        let options = &self.state.options;
        if !is_ours {
            let why = format!(
                "the server cannot decode the slot {}; it stays, because its shards may no longer \
                    be ours",
                options.stream
            );
            return Ok(Error::Unfollowed { shard: None, why });
        }
        let source = options.hosts.open_new(&options.source).await?;
        drop_slot(&source, &options.stream).await?;
        let state = "dropped, since the server can no longer decode it";
        Ok(Error::SlotLost {
            host: options.source.clone(),
            slot: options.stream.clone(),
            state,
        })
    }

    /// Whether what is at the target is a new copy, which is dropped when the disk is full. An old
    /// copy is kept, and its changes wait in the slot.
    fn makes_room(&self) -> bool {
        let mut shards = self.state.options.shards.iter();
        shards.any(|shard| shard.basis == Basis::Chunks)
    }

    /// Loses every shard that is followed, because the target has no disk space left.
    fn lose_all(&self, message: &str) {
        for shard in &self.state.options.shards {
            let fault = Fault::Full {
                host: self.state.options.target.clone(),
                message: message.to_owned(),
            };
            self.state.mark_lost(shard.hold.shard, fault);
        }
    }

    /// Opens the connections and follows until something happens.
    async fn attempt(&mut self) -> Result<End, Failure> {
        let target = self
            .state
            .options
            .hosts
            .open_new(&self.state.options.target)
            .await?;
        if let Some(first) = self.state.options.shards.first() {
            target.sign(first.hold, SessionPurpose::Group).await?;
        }
        let applier = Applier::new(target, self.state.caution.care()).await?;
        let session = applier.session.clone();
        if self.is_taken_over(&session).await? {
            return Ok(End::TakenOver);
        }
        if self.progress(&session).await?.is_empty() {
            return Ok(End::Alone);
        }

        let options = &self.state.options;
        let source = options.hosts.open_new(&options.source).await?;
        let lost = |state| Error::SlotLost {
            host: options.source.clone(),
            slot: options.stream.clone(),
            state,
        };
        // The progress rows show that the slot is ours, so a mover that still reads it is dead, or
        // has lost the move. It is freed before its state is read: the walsender of a broken
        // connection may still receive the position of a target that has failed over since.
        free_slot(&source, &options.stream).await?;
        let connect = options.hosts.options(&options.source)?;
        let state = adopt(&source, &session, connect, (&options.stream, options.id))
            .await?
            .ok_or_else(|| lost("gone"))?;
        if let Some(state) = state.lost {
            return Err(lost(state).into());
        }
        // Read after the slot's state: only what is durable here is confirmed to the slot, so a row
        // that is behind it lacks something. A mover that has taken a shard since then has read on
        // from the shard's row.
        let shards = self.progress(&session).await?;
        if shards.is_empty() {
            return Ok(End::Alone);
        }
        let tables = self.tables(&session, &shards).await?;
        let options = &self.state.options;
        let sql = "SELECT pg_snapshot_xmax(pg_current_snapshot())::text";
        let near: String = source
            .row("asking for a transaction number", sql, &[])
            .await?
            .get(0)?;
        let near = near.parse().unwrap_or(0);
        let servers = facts::servers(&source, &session).await?;
        self.state
            .view
            .send_modify(|view| view.servers = Some(servers));
        // Invariant: a shard is followed from the position in its row. No more was confirmed to the
        // slot than was in the rows, so a row behind it has lost something since.
        if let Some(behind) = shards
            .values()
            .find(|shard| shard.applied < state.confirmed)
        {
            let fault = Fault::StreamLost {
                host: options.target.clone(),
            };
            return Err(Failure::Shard(behind.hold.shard, fault));
        }
        // If shards that are not followed here lack something, the mover that follows them will
        // find out.
        let from = shards
            .values()
            .map(|shard| shard.applied)
            .chain(self.state.held.values().copied())
            .min();
        let from = from.unwrap_or(0).max(state.confirmed);
        let slot = Source {
            host: &options.source,
            options: options.hosts.options(&options.source)?,
            slot: &options.stream,
            publication: &options.stream,
        };
        let confirmation =
            Confirmation::begin(source, &options.stream, state.confirmed, from).await?;
        let transport = Transport::start(&slot, from, confirmation.by).await?;
        Run::new(
            &mut self.state,
            applier,
            transport,
            shards,
            tables,
            near,
            confirmation,
        )
        .follow()
        .await
    }

    /// Whether a rollback has taken one of the shards with old copies that are fed from this
    /// stream. While it has, the stream belongs to the rollback: two readers of one slot would end
    /// each other's connections. The other shards lose nothing during that time: the slot keeps
    /// what the rollback still lacks, and with it what they lack.
    ///
    /// Locks: ACCESS SHARE on a table of ours.
    async fn is_taken_over(&self, session: &Session) -> Result<bool, Failure> {
        let sql = "SELECT EXISTS (SELECT FROM pgshard.back WHERE move_id = $1 AND stream = $2 AND \
            taken_by IS NOT NULL)";
        let what = "looking for a rollback";
        let row = session
            .row(
                what,
                sql,
                &[self.state.options.id.uuid(), &self.state.options.stream],
            )
            .await?;
        Ok(row.get(0)?)
    }

    /// The shards that are ours, and how far they are. A rollback takes a shard's row to its own
    /// move, and gives it back if it is undone. Under either move, the slot keeps what the row
    /// lacks.
    ///
    /// Locks: ACCESS SHARE on three tables of ours.
    async fn progress(
        &mut self,
        session: &Session,
    ) -> Result<BTreeMap<ShardId, ShardStream>, Failure> {
        let sql = "SELECT p.shard_id, p.lease, p.applied_lsn, p.breach, i.ready_attempt
            FROM pgshard.progress p
            LEFT JOIN pgshard.incoming i ON i.shard_id = p.shard_id AND i.move_id = p.move_id
            WHERE p.move_id = $1 OR EXISTS (SELECT FROM pgshard.back b
                WHERE b.stream = $2 AND b.shard_id = p.shard_id AND p.move_id IN (b.move_id, \
                b.taken_by))";
        let rows = session
            .rows(
                "reading the progress",
                sql,
                &[self.state.options.id.uuid(), &self.state.options.stream],
            )
            .await?;
        let rows: Result<HashMap<i32, &AnsweredRow>, Error> =
            rows.iter().map(|row| Ok((row.get(0)?, row))).collect();
        let rows = rows?;
        let mut shards = BTreeMap::new();
        for shard in &self.state.options.shards {
            let hold = shard.hold;
            if self
                .state
                .view
                .borrow()
                .shards
                .get(&hold.shard)
                .is_none_or(|followed| followed.fault.is_some())
            {
                continue;
            }
            let Some(row) = rows.get(&hold.shard.as_i32()) else {
                self.state.mark_lost(hold.shard, Fault::LeaseLost);
                continue;
            };
            let applied = u64::from(row.get::<_, PgLsn>(2)?);
            if row.get::<_, uuid::Uuid>(1)? != hold.lease {
                self.state.held.insert(hold.shard, applied);
                self.state.mark_lost(hold.shard, Fault::LeaseLost);
                continue;
            }
            let (breach, marked): (Option<String>, Option<i32>) = (row.get(3)?, row.get(4)?);
            self.state.view.send_modify(|view| {
                if let Some(followed) = view.shards.get_mut(&hold.shard) {
                    (followed.ready, followed.breach) = (marked, breach.clone());
                }
            });
            shards.insert(
                hold.shard,
                ShardStream {
                    hold,
                    applied,
                    marked,
                    breach,
                },
            );
        }
        Ok(shards)
    }

    /// The tables of these shards, with their chunks.
    async fn tables(
        &self,
        session: &Session,
        shards: &BTreeMap<ShardId, ShardStream>,
    ) -> Result<Tables, Failure> {
        let followed = || {
            self.state
                .options
                .shards
                .iter()
                .filter(|shard| shards.contains_key(&shard.hold.shard))
        };
        let schemas: Vec<&str> = followed()
            .map(|shard| shard.target_schema.as_str())
            .collect();
        // The tables are found by pg_depend, which has an index for it: pg_class has no index on
        // the schema. Locks: ACCESS SHARE on catalogs.
        let sql = "SELECT n.nspname::text, c.relname::text, a.attname::text, \
            format_type(a.atttypid, a.atttypmod),
                a.attidentity = 'a', EXISTS (SELECT FROM pg_index i JOIN pg_class x ON x.oid = \
                i.indexrelid
                    WHERE i.indrelid = c.oid AND starts_with(x.relname::text, $2))
            FROM pg_namespace n JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND \
            d.refobjid = n.oid
                AND d.classid = 'pg_class'::regclass
            JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'r'
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
            WHERE n.nspname = ANY ($1)";
        let mut columns: HashMap<(String, String), HashMap<String, TargetColumn>> = HashMap::new();
        for row in session
            .rows(
                "reading the target's columns",
                sql,
                &[&schemas, &row_index::PREFIX],
            )
            .await?
        {
            let of_table = columns.entry((row.get(0)?, row.get(1)?)).or_default();
            let column = TargetColumn {
                type_sql: row.get(3)?,
                always: row.get(4)?,
                row_index: row.get(5)?,
            };
            of_table.insert(row.get(2)?, column);
        }
        let mut tables = HashMap::new();
        for shard in followed() {
            let mut chunks = match shard.basis {
                Basis::Chunks => chunks::load(session, shard.hold, &shard.tables).await?,
                Basis::Position => BTreeMap::new(),
            };
            for shape in &shard.tables {
                let columns = columns
                    .remove(&(shard.target_schema.clone(), shape.name.clone()))
                    .unwrap_or_default();
                let (schema, chunks) = (shard.target_schema.clone(), chunks.remove(&shape.name));
                let state =
                    TableState::new(shard.hold.shard, shape.clone(), schema, columns, chunks);
                tables.insert(shape.oid, state);
            }
        }
        Ok(tables)
    }
}
