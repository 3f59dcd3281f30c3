//! One run: from the opening of the connections to the first failure. It reads, applies, commits
//! and reports.
//!
//! Source transactions are combined into one target transaction as long as more have arrived
//! already; one that arrives alone is committed immediately. Invariant: a target transaction ends
//! where a source transaction ends, and contains the progress of each shard that it touched, by
//! compare-and-swap under its lease.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use tokio::sync::mpsc;
use tokio_postgres::types::PgLsn;
use uuid::Uuid;

use crate::mover::copy::snapshot::{Snapshot, widen};
use crate::mover::protocol::error::Error;
use crate::shard::ShardId;

use crate::mover::stream::apply::{Applier, Care, CommitOutcome};
use crate::mover::stream::changes::{ShardStream, Tables};
use crate::mover::stream::command::{Align, Command};
use crate::mover::stream::confirm::Confirmation;
use crate::mover::stream::fault::{Failure, Fault};
use crate::mover::stream::inject::with_injected_fault;
use crate::mover::stream::state::{End, FollowerState};
use crate::mover::stream::transport::{Frame, Transport};
use crate::mover::stream::view::Lag;
use crate::mover::stream::wire::{Change, Message, Relation, Row};

/// A target transaction is committed when it holds this much, even if more waits.
const BATCH_TRANSACTIONS: u32 = 2000;
const BATCH_BYTES: usize = 4 << 20;
const BATCH_TIME: Duration = Duration::from_millis(20);

/// How often the progress of idle shards is raised, so that a new run skips what they have.
const RAISE_EVERY: Duration = Duration::from_secs(2);

/// A pause that is not ended is over after this time.
const PAUSE_LIMIT: Duration = Duration::from_secs(30);

/// The most memory for changes that are read ahead of a snapshot.
const ALIGN_BYTES: usize = 64 << 20;

/// How many of the last applied transactions are remembered.
const RECENT: usize = 1 << 16;

/// How many watermarks are remembered.
const WATERMARKS: usize = 4096;

/// A source transaction that has begun and not ended.
#[derive(Clone, Copy)]
struct Transaction {
    commit_lsn: u64,
    xid: u64,
    committed_at: i64,
}

/// The source transactions that the next commit makes durable.
struct Batch {
    began: Instant,
    transactions: u32,
    changes: u64,
    bytes: usize,
    /// The position where the last of them ends.
    end: u64,
    committed_at: i64,
    touched: BTreeSet<ShardId>,
    markers: Vec<(ShardId, i32)>,
    watermarks: Vec<i64>,
}

/// Which of our own tables a relation is.
#[derive(Clone)]
enum Control {
    Marker(Relation),
    Watermark(Relation),
}

pub(crate) struct Run<'a> {
    state: &'a mut FollowerState,
    applier: Applier,
    transport: Transport,
    shards: BTreeMap<ShardId, ShardStream>,
    tables: Tables,
    control: HashMap<u32, Control>,
    /// A full transaction number from a short time ago.
    near: u64,
    /// Frames that were read and not processed yet.
    backlog: VecDeque<Frame>,
    transaction: Option<Transaction>,
    batch: Option<Batch>,
    /// Everything below this position is durable for all shards of this run.
    position: u64,
    confirmation: Confirmation,
    raised: Instant,
}

impl<'a> Run<'a> {
    pub(super) fn new(
        state: &'a mut FollowerState,
        applier: Applier,
        transport: Transport,
        shards: BTreeMap<ShardId, ShardStream>,
        tables: Tables,
        near: u64,
        confirmation: Confirmation,
    ) -> Run<'a> {
        let server = transport.server_states();
        state.view.send_modify(|view| view.server = Some(server));
        Run {
            state,
            applier,
            transport,
            shards,
            tables,
            control: HashMap::new(),
            near,
            backlog: VecDeque::new(),
            transaction: None,
            batch: None,
            position: confirmation.from,
            confirmation,
            raised: Instant::now(),
        }
    }

    /// Follows until something ends it. If a shard fails, the slot keeps its missing changes.
    pub(super) async fn follow(mut self) -> Result<End, Failure> {
        let ended = self.work().await;
        if let Err(Failure::Shard(_, Fault::Diverged { .. })) = &ended
            && self.applier.care == Care::Together
        {
            // Perhaps one statement only processed its rows in the wrong order. If that is not the
            // reason, the error names the row next time.
            self.state.caution.begin(self.transport.server().wal_end);
            return Ok(End::Again);
        }
        if let Err(Failure::Shard(shard, _)) = &ended
            && let Some(followed) = self.shards.get(shard)
        {
            self.state.held.insert(*shard, followed.applied);
        }
        ended
    }

    async fn work(&mut self) -> Result<End, Failure> {
        self.report(None);
        loop {
            if self.batch.is_none() && self.transaction.is_none() {
                while let Ok(command) = self.state.commands.try_recv() {
                    if let Some(end) = self.handle_command(command).await? {
                        return Ok(end);
                    }
                }
                if self.raised.elapsed() >= RAISE_EVERY {
                    self.raise().await?;
                    // A driver that waits for a marker waits behind a fence.
                    if self.state.expected.is_empty()
                        && self.confirmation.is_over(self.position).await?
                    {
                        return Ok(End::Again);
                    }
                }
            }
            if let Some(frame) = self.backlog.pop_front() {
                self.take(frame).await?;
                continue;
            }
            if self.transaction.is_none() && !self.transport.has_more() {
                // No more frames have arrived, so what there is becomes durable now.
                self.commit().await?;
            }
            let between = self.transaction.is_none() && self.batch.is_none();
            tokio::select! {
                command = self.state.commands.recv(), if between => match command {
                    Some(command) => {
                        if let Some(end) = self.handle_command(command).await? {
                            return Ok(end);
                        }
                    }
                    None => return Ok(End::Stopped),
                },
                frames = self.transport.next() => self.backlog.extend(frames?),
                () = tokio::time::sleep(RAISE_EVERY), if between => {}
            }
        }
    }

    async fn take(&mut self, frame: Frame) -> Result<(), Failure> {
        match frame {
            Frame::Alive { wal_end } => {
                if self.transaction.is_none() && self.batch.is_none() && wal_end > self.position {
                    self.position = wal_end;
                    self.report(None);
                }
                Ok(())
            }
            Frame::Message(message, bytes) => self.message(message, bytes).await,
        }
    }

    async fn message(&mut self, message: Message, bytes: usize) -> Result<(), Failure> {
        match message {
            Message::Begin {
                commit_lsn,
                xid,
                committed_at,
            } => {
                let xid = widen(xid, self.near);
                self.near = self.near.max(xid);
                self.transaction = Some(Transaction {
                    commit_lsn,
                    xid,
                    committed_at,
                });
                Ok(())
            }
            Message::Commit { end_lsn } => self.end_of_transaction(end_lsn).await,
            Message::Relation(relation) => {
                self.relation(relation);
                Ok(())
            }
            Message::Insert { relation, new } => match self.control.get(&relation).cloned() {
                Some(control) => self.control_row(&control, &new),
                None => self.change(relation, bytes, Change::Insert(new)).await,
            },
            Message::Update { relation, old, new } => {
                self.change(relation, bytes, Change::Update(old, new)).await
            }
            Message::Delete { relation, old } => {
                self.change(relation, bytes, Change::Delete(old)).await
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    self.change(relation, bytes, Change::Truncate).await?;
                }
                Ok(())
            }
            Message::Other => Ok(()),
        }
    }

    fn relation(&mut self, relation: Relation) {
        if let Some(table) = self.tables.get_mut(&relation.oid) {
            return table.describe(&relation);
        }
        match (relation.schema.as_str(), relation.name.as_str()) {
            ("pgshard", "marker") => self.control.insert(relation.oid, Control::Marker(relation)),
            ("pgshard", "beacon") => self
                .control
                .insert(relation.oid, Control::Watermark(relation)),
            // A table of a shard that is no longer followed.
            _ => None,
        };
    }

    fn transaction(&self) -> Result<Transaction, Failure> {
        let outside = || Error::Malformed {
            host: self.state.options.source.clone(),
            what: "a change outside a transaction",
        };
        self.transaction.ok_or_else(|| outside().into())
    }

    /// The batch that the current transaction belongs to.
    fn batch(&mut self) -> &mut Batch {
        self.batch.get_or_insert_with(|| Batch {
            began: Instant::now(),
            transactions: 0,
            changes: 0,
            bytes: 0,
            end: 0,
            committed_at: 0,
            touched: BTreeSet::new(),
            markers: Vec::new(),
            watermarks: Vec::new(),
        })
    }

    /// Processes a marker or a watermark.
    fn control_row(&mut self, control: &Control, new: &Row) -> Result<(), Failure> {
        let transaction = self.transaction()?;
        let value = |relation: &Relation, name: &str| {
            let at = relation.columns.iter().position(|column| column == name)?;
            std::str::from_utf8(new.get(at)?.text()?)
                .ok()
                .map(str::to_owned)
        };
        let ours = |relation: &Relation| {
            value(relation, "move_id")
                .and_then(|id| id.parse::<Uuid>().ok())
                .as_ref()
                == Some(self.state.options.id.uuid())
        };
        match control {
            Control::Watermark(relation) if ours(relation) => {
                if let Some(number) =
                    value(relation, "number").and_then(|number| number.parse().ok())
                {
                    self.batch().watermarks.push(number);
                }
            }
            Control::Marker(relation) if ours(relation) => {
                let shard =
                    value(relation, "shard_id").and_then(|shard| ShardId::new(shard.parse().ok()?));
                let attempt =
                    value(relation, "attempt").and_then(|attempt| attempt.parse::<i32>().ok());
                if let (Some(shard), Some(attempt)) = (shard, attempt)
                    && self
                        .shards
                        .get(&shard)
                        .is_some_and(|followed| transaction.commit_lsn >= followed.applied)
                {
                    self.batch().touched.insert(shard);
                    self.batch().markers.push((shard, attempt));
                }
            }
            Control::Watermark(_) | Control::Marker(_) => {}
        }
        Ok(())
    }

    async fn change(&mut self, relation: u32, bytes: usize, change: Change) -> Result<(), Failure> {
        let transaction = self.transaction()?;
        let Some(table) = self.tables.get_mut(&relation) else {
            return Ok(());
        };
        let shard = table.shard;
        // A new run reads again what some shards already have.
        let Some(followed) = self
            .shards
            .get_mut(&shard)
            .filter(|followed| transaction.commit_lsn >= followed.applied)
        else {
            return Ok(());
        };
        let (applier, xid) = (&mut self.applier, transaction.xid);
        // A change after the marker is right if the fence was swapped back in between, and then the
        // attempt is over. Otherwise it is impossible. It is reported before it is applied:
        // applying it may have to wait for the open that it forbids.
        if let (Some(attempt), None) = (followed.marked, &followed.breach) {
            let breach = format!(
                "a change came after the marker of attempt {attempt}, by transaction {xid}"
            );
            self.state.view.send_modify(|view| {
                view.shards.entry(shard).or_default().breach = Some(breach.clone())
            });
            followed.breach = Some(breach);
        }
        let mut applied = false;
        for change in with_injected_fault(self.state.options.failpoints.failpoint.as_ref(), change)
        {
            applied |= match change {
                Change::Insert(new) => table.insert(applier, xid, new).await?,
                Change::Update(old, new) => {
                    table
                        .update(applier, &self.state.options, xid, old, new)
                        .await?
                }
                Change::Delete(old) => table.delete(applier, xid, &old).await?,
                Change::Truncate => table.truncate(applier, xid).await?,
            };
        }
        let batch = self.batch();
        if applied {
            batch.changes += 1;
        }
        batch.bytes += bytes;
        batch.touched.insert(shard);
        Ok(())
    }

    async fn end_of_transaction(&mut self, end_lsn: u64) -> Result<(), Failure> {
        let transaction = self.transaction()?;
        self.transaction = None;
        self.state.recent.push_back(transaction.xid);
        if self.state.recent.len() > RECENT {
            self.state.recent.pop_front();
        }
        let batch = self.batch();
        batch.transactions += 1;
        batch.end = end_lsn;
        batch.committed_at = transaction.committed_at;
        let full = batch.transactions >= BATCH_TRANSACTIONS
            || batch.bytes >= BATCH_BYTES
            || batch.began.elapsed() >= BATCH_TIME
            || !batch.markers.is_empty()
            || !batch.watermarks.is_empty();
        if full { self.commit().await } else { Ok(()) }
    }

    /// Makes the batch durable, if there is one.
    async fn commit(&mut self) -> Result<(), Failure> {
        let Some(batch) = self.batch.take() else {
            return Ok(());
        };
        let mut ready = Vec::new();
        for (shard, attempt) in &batch.markers {
            let Some(followed) = self.shards.get_mut(shard) else {
                continue;
            };
            (followed.marked, followed.breach) = (Some(*attempt), None);
            if let Some((_, hash)) = self
                .state
                .expected
                .get(shard)
                .filter(|(expected, _)| expected == attempt)
            {
                ready.push((*shard, *attempt, hash.clone()));
            }
        }
        self.applier.settle().await?;
        let at = |applied, made_ready| {
            if ready.is_empty() {
                applied
            } else {
                made_ready
            }
        };
        self.state
            .options
            .failpoints
            .at(at("before applied", "before ready"))?;
        for (shard, attempt, hash) in &ready {
            self.make_ready(*shard, *attempt, hash).await?;
        }
        if !batch.touched.is_empty() {
            self.record(&batch.touched, batch.end).await?;
        }
        self.commit_for(&batch.touched).await?;
        self.state
            .options
            .failpoints
            .at(at("after applied", "after ready"))?;
        for shard in &batch.touched {
            if let Some(followed) = self.shards.get_mut(shard) {
                followed.applied = batch.end;
            }
        }
        self.position = self.position.max(batch.end);
        self.applier.care = self.state.caution.at(self.position);
        self.state.view.send_modify(|view| {
            for (shard, attempt, _) in &ready {
                view.shards.entry(*shard).or_default().ready = Some(*attempt);
            }
            for shard in &batch.touched {
                let breach = self
                    .shards
                    .get(shard)
                    .and_then(|followed| followed.breach.clone());
                view.shards.entry(*shard).or_default().breach = breach;
            }
            view.watermarks.extend(&batch.watermarks);
            while view.watermarks.len() > WATERMARKS {
                view.watermarks.pop_first();
            }
            view.transactions += u64::from(batch.transactions);
            view.changes += batch.changes;
        });
        self.report(Some(batch.committed_at));
        Ok(())
    }

    /// Locks: the shard's row of pgshard.incoming, until the end of the target's transaction.
    async fn make_ready(
        &mut self,
        shard: ShardId,
        attempt: i32,
        hash: &str,
    ) -> Result<(), Failure> {
        let Some(followed) = self.shards.get(&shard) else {
            return Ok(());
        };
        let hold = followed.hold;
        let sql = "WITH hit AS (UPDATE pgshard.incoming SET ready_attempt = $4, open_hash = $5
                WHERE shard_id = $1 AND move_id = $2 AND lease = $3 RETURNING 1)
            SELECT 1 / pg_catalog.count(*) FROM hit";
        self.applier
            .run_control_statement(
                "making a shard ready",
                sql,
                vec![
                    Box::new(shard.as_i32()),
                    Box::new(*hold.id.uuid()),
                    Box::new(hold.lease),
                    Box::new(attempt),
                    Box::new(hash.to_owned()),
                ],
            )
            .await
    }

    /// Locks: rows of pgshard.progress that are ours, until the end of the target's transaction.
    async fn record(&mut self, shards: &BTreeSet<ShardId>, position: u64) -> Result<(), Failure> {
        let followed: Vec<&ShardStream> = shards
            .iter()
            .filter_map(|shard| self.shards.get(shard))
            .collect();
        let sql = "WITH hit AS (UPDATE pgshard.progress AS p
                SET applied_lsn = $2, breach = t.breach, updated_at = clock_timestamp()
                FROM unnest($3::int4[], $4::uuid[], $5::pg_lsn[], $6::text[]) AS t(shard_id, \
                lease, before, breach)
                WHERE p.move_id = $1 AND p.shard_id = t.shard_id AND p.lease = t.lease AND \
                p.applied_lsn = t.before
                RETURNING 1)
            SELECT 1 / (pg_catalog.count(*) = pg_catalog.cardinality($3))::integer FROM hit";
        let numbers: Vec<i32> = followed.iter().map(|one| one.hold.shard.as_i32()).collect();
        let leases: Vec<Uuid> = followed.iter().map(|one| one.hold.lease).collect();
        let before: Vec<PgLsn> = followed
            .iter()
            .map(|one| PgLsn::from(one.applied))
            .collect();
        let breaches: Vec<Option<String>> = followed.iter().map(|one| one.breach.clone()).collect();
        let id = *self.state.options.id.uuid();
        self.applier
            .run_control_statement(
                "recording the progress",
                sql,
                vec![
                    Box::new(id),
                    Box::new(PgLsn::from(position)),
                    Box::new(numbers),
                    Box::new(leases),
                    Box::new(before),
                    Box::new(breaches),
                ],
            )
            .await
    }

    /// Commits, unless the rows of these shards are not what this mover has written; then it finds
    /// the shard that has lost its lease.
    async fn commit_for(&mut self, touched: &BTreeSet<ShardId>) -> Result<(), Failure> {
        if self.applier.commit().await? == CommitOutcome::Yes {
            return Ok(());
        }
        let session = &self.applier.session;
        let sql =
            "SELECT p.shard_id, p.lease FROM pgshard.progress p WHERE p.move_id = $1 AND NOT \
            EXISTS (
            SELECT FROM pgshard.incoming i WHERE i.shard_id = p.shard_id AND i.move_id = p.move_id
            AND i.lease <> p.lease)";
        let rows = session
            .rows(
                "looking for whose lease is gone",
                sql,
                &[self.state.options.id.uuid()],
            )
            .await?;
        let held: Result<HashSet<(i32, Uuid)>, Error> = rows
            .iter()
            .map(|row| Ok((row.get(0)?, row.get(1)?)))
            .collect();
        let held = held?;
        let lost = touched.iter().find(|shard| {
            self.shards
                .get(shard)
                .is_none_or(|followed| !held.contains(&(shard.as_i32(), followed.hold.lease)))
        });
        match lost {
            Some(shard) => Err(Failure::Shard(*shard, Fault::LeaseLost)),
            None => {
                let why =
                    "its progress at the target is not what this mover has written".to_owned();
                Err(Error::Unfollowed {
                    shard: touched.first().copied(),
                    why,
                }
                .into())
            }
        }
    }

    /// Raises the progress of all shards to the position that all have reached.
    async fn raise(&mut self) -> Result<(), Failure> {
        self.raised = Instant::now();
        let behind: BTreeSet<ShardId> = self
            .shards
            .iter()
            .filter(|(_, followed)| followed.applied < self.position)
            .map(|(shard, _)| *shard)
            .collect();
        if behind.is_empty() {
            return Ok(());
        }
        self.record(&behind, self.position).await?;
        self.commit_for(&behind).await?;
        for shard in &behind {
            if let Some(followed) = self.shards.get_mut(shard) {
                followed.applied = self.position;
            }
        }
        self.report(None);
        Ok(())
    }

    /// Reports to the source and the waiting drivers how far everything is durable. The source gets
    /// no position that a shard's row does not have: a shard with a row behind the slot has lost
    /// changes, and a resume must be able to see that.
    fn report(&self, committed_at: Option<i64>) {
        let rows = self.shards.values().map(|followed| followed.applied);
        let told = rows
            .chain(self.state.held.values().copied())
            .min()
            .unwrap_or(self.position);
        self.transport.durable(self.position.min(told));
        let server = self.transport.server();
        let bytes = server.wal_end.saturating_sub(self.position);
        self.state.view.send_modify(|view| {
            view.position = view.position.max(self.position);
            let seconds = match committed_at {
                _ if bytes == 0 => 0.0,
                Some(at) => (server.clock - at).max(0) as f64 / 1e6,
                None => view.lag.seconds,
            };
            view.lag = Lag { bytes, seconds };
            view.reported_at = Some(Instant::now());
        });
    }

    /// Executes the requested commands, between two target transactions.
    async fn handle_command(&mut self, command: Command) -> Result<Option<End>, Failure> {
        match command {
            Command::Stop => return Ok(Some(End::Stopped)),
            Command::Expect {
                shard,
                attempt,
                open_hash,
            } => {
                let marked = self.shards.get(&shard).and_then(|followed| followed.marked);
                self.state
                    .expected
                    .insert(shard, (attempt, open_hash.clone()));
                if marked == Some(attempt) {
                    // The marker had come before the request.
                    self.make_ready(shard, attempt, &open_hash).await?;
                    let one = BTreeSet::from([shard]);
                    self.record(&one, self.position).await?;
                    self.commit_for(&one).await?;
                    if let Some(followed) = self.shards.get_mut(&shard) {
                        followed.applied = self.position;
                    }
                    self.state.view.send_modify(|view| {
                        view.shards.entry(shard).or_default().ready = Some(attempt);
                    });
                }
            }
            Command::Detach { shard } => {
                self.state.held.remove(&shard);
                self.state.expected.remove(&shard);
                self.shards.remove(&shard);
                self.tables.retain(|_, table| table.shard != shard);
                self.state.mark_lost(shard, Fault::Detached);
                self.report(None);
                if self.shards.is_empty() {
                    return Ok(Some(End::Alone));
                }
            }
            Command::Pause { granted, mut steps } => {
                if granted.send(()).is_ok() {
                    // What was read ahead may be lost then; after a new start the stream brings it
                    // again.
                    let over = || Error::Unfollowed {
                        shard: None,
                        why: "a pause was too long".to_owned(),
                    };
                    tokio::time::timeout(PAUSE_LIMIT, self.serve_pause(&mut steps))
                        .await
                        .map_err(|_| over())??;
                }
            }
        }
        Ok(None)
    }

    /// Does nothing until the pause is dropped, except what [`Align`] requests.
    async fn serve_pause(&mut self, steps: &mut mpsc::Receiver<Align>) -> Result<(), Failure> {
        while let Some(Align {
            snapshot,
            watermark,
            answer,
        }) = steps.recv().await
        {
            match self.align(&snapshot, watermark).await {
                Ok(aligned) => drop(answer.send(Ok(aligned))),
                Err(failure) => {
                    drop(answer.send(Err("the stream broke during the pause".to_owned())));
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Reads on to the watermark and applies what the snapshot sees, if those transactions come
    /// first.
    async fn align(&mut self, snapshot: &Snapshot, watermark: i64) -> Result<bool, Failure> {
        if !self.state.recent.iter().all(|xid| snapshot.sees(*xid)) {
            return Ok(false);
        }
        // The frames of each transaction, in the order of the commits. What is read and not applied
        // is put back.
        let (mut read, mut bytes, mut seen, mut ended) = (Vec::new(), 0, Vec::new(), Vec::new());
        let mut found = false;
        let fitting = loop {
            let Some(frame) = self.backlog.pop_front() else {
                let frames = self.transport.next().await?;
                self.backlog.extend(frames);
                continue;
            };
            let mut last = false;
            if let Frame::Message(message, length) = &frame {
                bytes += length;
                match message {
                    Message::Begin { xid, .. } => seen.push(snapshot.sees(widen(*xid, self.near))),
                    Message::Relation(relation) if relation.schema == "pgshard" => {
                        self.relation(relation.clone())
                    }
                    Message::Insert { relation, new } => {
                        found |= self.is_watermark(*relation, new, watermark)
                    }
                    Message::Commit { .. } => {
                        ended.push(read.len() + 1);
                        last = found;
                    }
                    _ => {}
                }
            }
            read.push(frame);
            if last {
                break true;
            }
            if bytes > ALIGN_BYTES {
                break false;
            }
        };
        let prefix = seen.iter().take_while(|seen| **seen).count();
        let aligned = fitting && seen[prefix..].iter().all(|seen| !seen);
        let split = if !aligned || prefix == 0 {
            0
        } else {
            ended[prefix - 1]
        };
        let rest = read.split_off(split);
        for frame in rest.into_iter().rev() {
            self.backlog.push_front(frame);
        }
        for frame in read {
            self.take(frame).await?;
        }
        self.commit().await?;
        Ok(aligned)
    }

    fn is_watermark(&self, relation: u32, new: &Row, watermark: i64) -> bool {
        let Some(Control::Watermark(relation)) = self.control.get(&relation) else {
            return false;
        };
        let value = |name: &str| {
            let at = relation.columns.iter().position(|column| column == name)?;
            std::str::from_utf8(new.get(at)?.text()?).ok()
        };
        value("number") == Some(watermark.to_string().as_str())
            && value("move_id")
                .and_then(|id| id.parse::<Uuid>().ok())
                .as_ref()
                == Some(self.state.options.id.uuid())
    }
}
