//! The shards of one move that come online from one host to another: one publication, one slot, one stream for all of them.
//!
//! A slot decodes the source's whole WAL, so five hundred shards share one. Every shard is still its own: it is claimed,
//! copied, fenced and opened by itself, and its failure stops no other. Invariant: the slot is there before the
//! first row is copied and until the last shard of the group has ended; rows that were copied under a slot that is gone
//! are copied again.

use crate::mover::runner::reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tokio::sync::{Semaphore, watch};
use tokio_postgres::types::{PgLsn, ToSql};
use uuid::Uuid;

use crate::map::HostName;
use crate::schema::catalog;
use crate::shard::ShardId;

use crate::mover::control::context::Context;
use crate::mover::control::context::stopped;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Hold, Note, Signed};
use crate::mover::control::report::ShardReport;
use crate::mover::control::session::Session;
use crate::mover::copy::chunk::Copied;
use crate::mover::copy::workers::{CopyOptions, copy_all};
use crate::mover::copy::{Route, ShardCopy};
use crate::mover::preflight::facts;
use crate::mover::preflight::facts::Servers;
use crate::mover::preflight::table;
use crate::mover::protocol::desired::{Back, Wanted};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::error::chain;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::{Goal, Phase, Until};
use crate::mover::protocol::throttle::Pace;
use crate::mover::protocol::verdict::{Audit, AuditState};
use crate::mover::runner::audit;
use crate::mover::runner::driver;
use crate::mover::runner::driver::{Driver, End, Part, Shared, Start, begin, connect};
use crate::mover::runner::guard::{Guard, TooMuch};
use crate::mover::runner::turn::Turns;
use crate::mover::step::{Blueprint, ShardMove};
use crate::mover::stream::follower::{Basis, FollowedShard, Follower, FollowerOptions};
use crate::mover::stream::slot;

/// How long the slot's creation waits for the transactions that are under way on its server.
const SLOT_PATIENCE: Duration = Duration::from_secs(60);

/// Moves the parts, which are of one move and have the same source and target, to their ends.
pub(in crate::mover) async fn work(context: &Context, parts: Vec<Part>, heartbeat: &Heartbeat) -> Vec<End> {
    let Some(first) = parts.first() else { return Vec::new() };
    let (stop, pace) = (watch::Sender::new(false), Pace { rate: context.throttle.rate(), paused: false });
    let pace = watch::Sender::new(pace);
    // What stops or slows a group is not told to the others.
    let own = Context { stop, throttle: context.throttle.and(pace.subscribe()), ..context.clone() };
    let group = Group {
        context: &own,
        whole: context,
        pace,
        guard: Guard::new(),
        turns: Turns::default(),
        shared: Shared::of(first),
        back: first.back,
        lease: heartbeat.lease(),
        first: first.shard,
    };
    group.run(parts, heartbeat).await
}

struct Group<'a> {
    /// The mover as the group has it: with a stop and a throttle of its own.
    context: &'a Context,
    /// The mover that was asked.
    whole: &'a Context,
    /// What the group's throttle obeys.
    pace: watch::Sender<Pace>,
    guard: Guard,
    turns: Turns,
    shared: Shared,
    /// Whether a way back is prepared.
    back: Back,
    /// The same for all shards of the group: whoever takes one over takes the stream over.
    lease: Uuid,
    /// The shard whose number the ledger gives with what is of all of them.
    first: ShardId,
}

/// A shard that is this mover's, and what its target was built from, if this mover built it.
struct Held {
    part: Part,
    built: Option<Blueprint>,
    /// The servers that were compared, if this mover has done that.
    verified_on: Option<Servers>,
}

impl<'a> Group<'a> {
    async fn run(&self, parts: Vec<Part>, heartbeat: &Heartbeat) -> Vec<End> {
        let taken = parts.clone();
        let mut work = Box::pin(self.all(parts, heartbeat));
        let too_much = tokio::select! {
            ends = &mut work => return ends,
            too_much = self.mind(heartbeat) => too_much,
        };
        self.context.stop();
        let ends = work.as_mut().await;
        drop(work);
        self.save_the_disk(taken, ends, too_much, heartbeat).await
    }

    /// While the group works: passes on what its mover is asked for, and looks after the slot. Returns when that keeps too much.
    async fn mind(&self, heartbeat: &Heartbeat) -> TooMuch {
        let mut asked = self.whole.stop.subscribe();
        let stopping = async {
            stopped(&mut asked).await;
            self.context.stop();
            std::future::pending().await
        };
        let mut wishes = heartbeat.wishes();
        let pausing = async {
            loop {
                let paused = wishes.borrow_and_update().values().any(|wanted| *wanted == Wanted::Pause);
                self.pace.send_if_modified(|pace| std::mem::replace(&mut pace.paused, paused) != paused);
                if wishes.changed().await.is_err() {
                    std::future::pending().await
                }
            }
        };
        let name = self.stream();
        // The slot of a rollback was made by the move that it takes back, and has a limit of its own.
        let wal_max = self.shared.back_of.is_none().then_some(self.context.options.wal_max);
        tokio::select! {
            too_much = self.guard.look(&self.context.hosts, &self.shared.source, &name, wal_max) => too_much,
            too_much = stopping => too_much,
            too_much = pausing => too_much,
        }
    }

    /// Drops the slot, then aborts what is not decided and finishes what is. Nobody of the group works any more.
    async fn save_the_disk(
        &self,
        parts: Vec<Part>,
        ends: Vec<End>,
        too_much: TooMuch,
        heartbeat: &Heartbeat,
    ) -> Vec<End> {
        let jobs = &Semaphore::new(self.context.options.jobs.max(1));
        let TooMuch { kept, limit } = too_much;
        let name = self.stream();
        tracing::warn!(slot = name, host = %self.shared.source, kept, limit, "the slot keeps more WAL than it may: the move is aborted");
        let dropped = async { slot::drop_slot(&self.whole.hosts.open(&self.shared.source).await?, &name).await };
        if let Err(error) = dropped.await {
            tracing::error!(slot = name, host = %self.shared.source, error = chain(&error), "the slot could not be dropped");
        }
        let abort = |(shard, end): End| {
            let part = parts.iter().find(|part| part.shard == shard).cloned();
            async move {
                let (Err(_), Some(part)) = (&end, part) else { return (shard, end) };
                let part = Part { start: Start::TakeOver, ..part };
                match driver::part_to_end(self.whole, &part, Goal::Abort, heartbeat, jobs).await {
                    Ok(_) => {
                        let host = self.shared.source.clone();
                        self.failed(shard, Error::WalLimit { shard, host, kept, limit })
                    }
                    Err(Error::TooLate { .. }) => {
                        (shard, driver::part_to_end(self.whole, &part, Goal::Finish, heartbeat, jobs).await)
                    }
                    Err(error) => self.failed(shard, error),
                }
            }
        };
        let ends = futures_util::future::join_all(ends.into_iter().map(abort)).await;
        let tidied = async { tidy_up(self.whole, &self.shared).await };
        if let Err(error) = tidied.await {
            tracing::warn!(host = %self.shared.source, error = chain(&error), "`pgshard moves gc` drops what is left of the stream");
        }
        ends
    }

    async fn all(&self, parts: Vec<Part>, heartbeat: &Heartbeat) -> Vec<End> {
        let mut ends = Vec::new();
        let mut held = self.each(&mut ends, parts, async |part| self.begin(part, heartbeat).await).await;
        let streamed = async {
            let source = self.session(&self.shared.source).await?;
            if held.is_empty() {
                return tidy_up(self.context, &self.shared).await;
            }
            // Before anything is published: a table of which the stream cannot name the rows would refuse its UPDATE then.
            let begun = std::mem::take(&mut held);
            held = self.each(&mut ends, begun, async |one| self.known(one, &source, heartbeat).await).await;
            let position = self.slot(&source, &mut held, &mut ends, heartbeat).await?;
            self.load(&source, &mut held, &mut ends, heartbeat, position).await?;
            if held.is_empty() {
                return tidy_up(self.context, &self.shared).await;
            }
            let target = self.session(&self.shared.target).await?;
            let others = self.others(&source, &target, &held, position).await?;
            let follower = self.follow(&source, &held, others).await?;
            let way_back = match self.back {
                Back::Prepared => {
                    reverse::stream::prepare(self.context, &source, &target, self.shared.id, self.first).await?
                }
                Back::Forgone => None,
            };
            if heartbeat.wishes().borrow().values().any(|wanted| *wanted != Wanted::Go) {
                let rest = std::mem::take(&mut held);
                let make_ready = async |held| self.make_ready(held, heartbeat, &follower, &way_back).await;
                held = self.each(&mut ends, rest, make_ready).await;
            }
            let cut_over = std::mem::take(&mut held);
            let rest = self
                .each(&mut ends, cut_over, async |held| self.cut_over(held, heartbeat, &follower, &way_back).await)
                .await;
            debug_assert!(rest.is_empty(), "a cut-over ends with its shard's end");
            follower.stop().await;
            tidy_up(self.context, &self.shared).await
        };
        if let Err(error) = streamed.await {
            tracing::warn!(source = %self.shared.source, error = chain(&error), "the stream of a move");
            ends.extend(self.all_failed(held, error, heartbeat).await);
        }
        ends
    }

    /// Does the same with each, a few at a time. Gives those that go on; the ends of the others are put to the ends.
    async fn each<I, O>(&self, ends: &mut Vec<End>, items: Vec<I>, work: impl AsyncFn(I) -> Result<O, End>) -> Vec<O> {
        let outcomes: Vec<_> = stream::iter(items)
            .map(|item| work(item))
            .buffer_unordered(self.context.options.jobs.max(1))
            .collect()
            .await;
        let mut go_on = Vec::new();
        for outcome in outcomes {
            match outcome {
                Ok(item) => go_on.push(item),
                Err(end) => ends.push(end),
            }
        }
        go_on
    }

    /// Comes by a shard, and does all that can be done without the stream: one that is new is prepared, one that is fenced
    /// and was not drained is served again, one that is decided is opened.
    async fn begin(&self, part: Part, heartbeat: &Heartbeat) -> Result<Held, End> {
        let shard = part.shard;
        if self.context.is_stopped() {
            return Err((shard, Err(Error::Interrupted { shard })));
        }
        let work = async {
            let work = connect(self.context, &part, self.hold(shard)).await?;
            begin(&work, heartbeat, &part).await?;
            Ok::<_, Error>(work)
        };
        let work = work.await.map_err(|error| self.failed(shard, error))?;
        self.go_on(Held { part, built: None, verified_on: None }, work, heartbeat).await
    }

    /// As far as it goes without the stream.
    async fn go_on(&self, held: Held, work: ShardMove<'_>, heartbeat: &Heartbeat) -> Result<Held, End> {
        let mut drive = Driver::new(self.context, work, heartbeat, Goal::Finish);
        match self.drive(&mut drive, Until::Ready).await {
            Some(end) => {
                drop(drive);
                Err(self.audited(None, end).await)
            }
            None => Ok(Held { built: drive.built.or(held.built), ..held }),
        }
    }

    /// Audits a shard that is kept, with snapshots that its driver has taken.
    async fn audited(&self, begun: Option<audit::Begun>, end: End) -> End {
        match (begun, end) {
            (Some(begun), (shard, Ok(report))) => {
                let audit = audit::run(self.context, begun, Some(&self.turns)).await;
                (shard, Ok(ShardReport { audit, ..report }))
            }
            // It was opened by a mover that has ended since, or there was no snapshot.
            (None, (shard, Ok(report))) if report.audit.state == AuditState::NotAudited => {
                let audit = self.audited_late(shard).await.unwrap_or(report.audit);
                (shard, Ok(ShardReport { audit, ..report }))
            }
            (_, end) => end,
        }
    }

    async fn audited_late(&self, shard: ShardId) -> Option<Audit> {
        let source = self.context.hosts.open(&self.shared.source).await.ok()?;
        let entry = source.entry(self.shared.id, shard).await.ok()?;
        Some(audit::late(self.context, &entry).await)
    }

    /// Drives a shard, and ends this mover's work with it if that is the shard's end.
    async fn drive(&self, drive: &mut Driver<'_>, until: Until) -> Option<End> {
        let shard = drive.work.hold.shard;
        match drive.run(until).await {
            Ok(None) => None,
            Ok(Some(report)) => {
                drive.leave(None).await;
                Some((shard, Ok(report)))
            }
            Err(error) => {
                self.withdraw_if_altered(&drive.work, &error).await;
                drive.leave(Some(&error)).await;
                Some(self.failed(shard, error))
            }
        }
    }

    /// Publication and slot: made before anything is copied, or found. What was copied under a slot that is gone is copied
    /// again. Gives the position from which the slot sends changes.
    async fn slot(
        &self,
        source: &Session,
        held: &mut Vec<Held>,
        ends: &mut Vec<End>,
        heartbeat: &Heartbeat,
    ) -> Result<u64, Error> {
        let name = self.stream();
        let owner = slot::Owner { name: &name, id: self.shared.id, shard: self.first, options: &self.context.options };
        let there = slot::slot_state(source, &name).await?;
        if self.shared.back_of.is_some() {
            // It was made before the shards came here: one that is made now would not know what has changed since.
            let lost = |state| Error::SlotLost { host: self.shared.source.clone(), slot: name.clone(), state };
            let there = there.ok_or_else(|| lost("gone"))?;
            return if there.wal_status.as_deref() == Some("lost") { Err(lost("lost")) } else { Ok(there.confirmed) };
        }
        let lost = there.as_ref().is_some_and(|state| state.wal_status.as_deref() == Some("lost"));
        if lost {
            tracing::warn!(slot = name, host = %self.shared.source, "the server has dropped WAL that the slot needs: the shards are copied again");
            slot::drop_slot(source, &name).await?;
        }
        let kept = there.filter(|_| !lost).map(|state| state.confirmed);
        let target = self.session(&self.shared.target).await?;
        let (phases, there) = (self.phases(source).await?, self.there(&target).await?);
        let behind = |held: &Held| {
            let phase = phases.get(&held.part.shard).copied().unwrap_or(Phase::Claimed);
            there.get(&held.part.shard).is_none_or(|there| !there.can_go_on(phase, kept))
        };
        let (again, rest) = std::mem::take(held).into_iter().partition(behind);
        *held = rest;
        let again = self.each(ends, again, async |held| self.prepare_again(held, heartbeat).await).await;
        held.extend(self.each(ends, again, async |held| self.known(held, source, heartbeat).await).await);
        let (mut tables, mut schemas) = (Vec::new(), Vec::new());
        for one in held.iter() {
            let schema = self.context.prefix.schema(one.part.shard);
            if let Some(oid) = facts::schema_oid(source, &schema).await? {
                schemas.push((one.part.shard, oid));
                let names = one.built.iter().flat_map(|built| &built.tables);
                tables.extend(names.map(|table| (schema.clone(), table.clone())));
            }
        }
        self.at("before publication")?;
        slot::create_publication(source, owner, &tables).await?;
        self.at("after publication")?;
        if kept.is_some() {
            // Those that were published while the slot was made, it has waited for.
            let is_new = |shard| there.get(&shard).is_none_or(|there| there.from.is_none());
            let new: Vec<u32> = schemas.iter().filter(|(shard, _)| is_new(*shard)).map(|(_, oid)| *oid).collect();
            if !new.is_empty() {
                slot::outwait(source, &name, &new, SLOT_PATIENCE).await?;
            }
        }
        let position = slot::create_slot(source, owner, SLOT_PATIENCE).await?;
        self.at("after slot")?;
        let shards: Vec<i32> = held.iter().map(|held| held.part.shard.as_i32()).collect();
        // Before the first row is copied. Locks: rows of pgshard.incoming, for one statement.
        let sql = "UPDATE pgshard.incoming SET stream_from = $4
            WHERE move_id = $1 AND lease = $2 AND shard_id = ANY ($3) AND stream_from IS NULL";
        let params: [&(dyn ToSql + Sync); 4] = [self.shared.id.uuid(), &self.lease, &shards, &PgLsn::from(position)];
        target.execute("writing where the stream begins", sql, &params).await?;
        Ok(position)
    }

    /// What the target has of each shard that it was told of.
    ///
    /// Locks: none but ACCESS SHARE on the control tables and pg_namespace.
    async fn there(&self, target: &Session) -> Result<BTreeMap<ShardId, There>, Error> {
        let what = "reading the progress";
        let sql = "SELECT i.shard_id, i.stream_from, p.applied_lsn,
                EXISTS (SELECT FROM pg_namespace WHERE nspname = i.schema_name || '__incoming')
            FROM pgshard.incoming i LEFT JOIN pgshard.progress p USING (move_id, shard_id)
            WHERE i.move_id = $1 AND i.source = $2";
        let rows = target.rows(what, sql, &[self.shared.id.uuid(), &self.shared.source.as_str()]).await?;
        let mut found = BTreeMap::new();
        for row in &rows {
            let read = || -> Result<_, tokio_postgres::Error> {
                let position = |at| Ok::<_, tokio_postgres::Error>(row.try_get::<_, Option<PgLsn>>(at)?.map(u64::from));
                Ok((
                    row.try_get::<_, i32>(0)?,
                    There { from: position(1)?, applied: position(2)?, built: row.try_get(3)? },
                ))
            };
            let (shard, there) = read().map_err(|error| target.failed(what, error))?;
            if let Ok(shard) = ShardId::try_from(shard) {
                found.insert(shard, there);
            }
        }
        Ok(found)
    }

    /// Back to the beginning with a shard whose changes since its copy are not known any more.
    async fn prepare_again(&self, held: Held, heartbeat: &Heartbeat) -> Result<Held, End> {
        let shard = held.part.shard;
        let work = async {
            let work = connect(self.context, &held.part, self.hold(shard)).await?;
            work.source.advance(work.hold, Phase::Claimed, &Note::default()).await?;
            Ok::<_, Error>(work)
        };
        let work = work.await.map_err(|error| self.failed(shard, error))?;
        self.go_on(held, work, heartbeat).await
    }

    /// Copies the rows of the shards that lack some, and builds what finds them again.
    async fn load(
        &self,
        source: &Session,
        held: &mut Vec<Held>,
        ends: &mut Vec<End>,
        heartbeat: &Heartbeat,
        position: u64,
    ) -> Result<(), Error> {
        let phases = self.phases(source).await?;
        let lacks = |one: &Held| phases.get(&one.part.shard).is_some_and(|phase| *phase == Phase::Prepared);
        let mut copies = Vec::new();
        for one in held.iter().filter(|one| lacks(one)) {
            copies.push(self.to_copy(source, one).await?);
        }
        let options = CopyOptions {
            route: Route { source: self.shared.source.clone(), target: self.shared.target.clone() },
            jobs: self.context.options.copy_jobs,
            builds: held
                .iter()
                .filter(|one| lacks(one))
                .filter_map(|one| Some((one.part.shard, one.built.as_ref()?.creation.builds())))
                .collect(),
            chunk_bytes: self.context.options.chunk_bytes,
            throttle: self.context.throttle.clone(),
            stop: self.context.stop.subscribe(),
            altered: self.guard.found(),
            observer: self.context.observer.clone(),
            failpoints: self.context.options.clone(),
        };
        let began = Instant::now();
        let (ended, last_chunk) = copy_all(&self.context.hosts, copies, &options).await;
        let mut copied: BTreeMap<ShardId, Result<Copied, Error>> = ended.into_iter().collect();
        let copied_at = last_chunk.unwrap_or(began);
        let took = copied_at - began;
        self.at("after chunks")?;
        // From here on, nothing ends but single shards.
        let (missing, loaded): (Vec<Held>, Vec<Held>) = std::mem::take(held).into_iter().partition(lacks);
        *held = loaded;
        let mut rows_there = Vec::new();
        for one in missing {
            let shard = one.part.shard;
            match copied.remove(&shard).unwrap_or(Err(Error::Interrupted { shard })) {
                Ok(rows) => rows_there.push((one, rows)),
                Err(error) => ends.push(self.left(&one, error, heartbeat).await),
            }
        }
        let keys =
            async |(one, rows): (Held, Copied)| self.keys(one, rows, (took, copied_at), position, heartbeat).await;
        held.extend(self.each(ends, rows_there, keys).await);
        Ok(())
    }

    /// Learns what the shard's target was built from, and that it is so still, and has it watched over.
    async fn known(&self, mut held: Held, source: &Session, heartbeat: &Heartbeat) -> Result<Held, End> {
        let shard = held.part.shard;
        let known = async {
            let schema = facts::schema_oid(source, &self.context.prefix.schema(shard)).await?;
            let built = match (held.built.take(), schema) {
                (Some(built), Some(schema)) if self.is_as_stamped(source, schema, &built).await? => built,
                (built, schema) => {
                    let work = connect(self.context, &held.part, self.hold(shard)).await?;
                    match (built, schema) {
                        (Some(built), Some(schema)) => match work.altered(schema, &built).await? {
                            Some(what) => return Err(Error::Altered { shard, what }),
                            None => built,
                        },
                        _ => work.blueprint(&work.source.entry(self.shared.id, shard).await?).await?,
                    }
                }
            };
            if let Some(schema) = schema {
                self.guard.watch_over(shard, schema, &built);
            }
            Ok::<_, Error>(built)
        };
        match known.await {
            Ok(built) => Ok(Held { built: Some(built), ..held }),
            Err(error) => Err(self.left(&held, error, heartbeat).await),
        }
    }

    /// Whether nobody has touched a schema since its blueprint was made.
    async fn is_as_stamped(&self, source: &Session, schema: u32, built: &Blueprint) -> Result<bool, Error> {
        let stamp = catalog::stamp(source.client.client(), schema).await;
        Ok(stamp.map_err(|error| Error::Catalog { host: source.host.clone(), source: error })? == built.stamp)
    }

    /// Keys and indexes of a shard whose rows are there.
    async fn keys(
        &self,
        mut held: Held,
        copied: Copied,
        (took, copied_at): (Duration, Instant),
        position: u64,
        heartbeat: &Heartbeat,
    ) -> Result<Held, End> {
        let shard = held.part.shard;
        let built = async {
            if self.context.is_stopped() {
                return Err(Error::Interrupted { shard });
            }
            let work = connect(self.context, &held.part, self.hold(shard)).await?;
            work.timings.took("copy", took);
            let built = match held.built.take() {
                Some(built) => built,
                None => work.blueprint(&work.source.entry(self.shared.id, shard).await?).await?,
            };
            let size = (copied.rows as i64, copied.bytes as i64);
            work.loaded(&built.creation, position.into(), size, copied_at).await?;
            Ok::<_, Error>(built)
        };
        match built.await {
            Ok(built) => Ok(Held { built: Some(built), ..held }),
            Err(error) => Err(self.left(&held, error, heartbeat).await),
        }
    }

    /// Starts to apply what the source's transactions have changed since.
    async fn follow(&self, source: &Session, held: &[Held], others: BTreeMap<ShardId, u64>) -> Result<Follower, Error> {
        let mut shards = Vec::with_capacity(held.len());
        for one in held {
            let copy = self.to_copy(source, one).await?;
            let ShardCopy { hold, target_schema, tables, .. } = copy;
            let basis = if self.shared.back_of.is_some() { Basis::Position } else { Basis::Chunks };
            shards.push(FollowedShard { hold, target_schema, tables, basis });
        }
        Ok(Follower::start(FollowerOptions {
            hosts: self.context.hosts.clone(),
            source: self.shared.source.clone(),
            target: self.shared.target.clone(),
            id: self.shared.id,
            stream: self.stream(),
            shards,
            others,
            patience: FollowerOptions::PATIENCE,
            failpoints: self.context.options.clone(),
        }))
    }

    /// How far the shards are that will need the slot and are not in our hands: of this move, or of the one that is taken
    /// back. One that has no progress yet needs all that the slot has.
    async fn others(
        &self,
        source: &Session,
        target: &Session,
        held: &[Held],
        position: u64,
    ) -> Result<BTreeMap<ShardId, u64>, Error> {
        let mut unended: Vec<(MoveId, ShardId)> = Vec::new();
        let of_move = source.entries(Some(self.shared.id)).await?;
        let of_move = of_move.iter().filter(|entry| !entry.phase.is_ended() && entry.target == self.shared.target);
        unended.extend(of_move.map(|entry| (entry.id, entry.shard)));
        if let Some(of) = self.shared.back_of {
            let entries = target.entries(Some(of)).await?;
            let sharing =
                entries.iter().filter(|entry| entry.target == self.shared.source && reverse::needs_slot(entry));
            unended.extend(sharing.map(|entry| (entry.id, entry.shard)));
        }
        unended.retain(|(_, shard)| held.iter().all(|one| one.part.shard != *shard));
        applied(target, unended, position).await
    }

    /// The tables that a shard's target was built with, as they stand at the source, and where they go. One that came since is
    /// not published: it ends the move as what it is, an alteration.
    async fn to_copy(&self, source: &Session, held: &Held) -> Result<ShardCopy, Error> {
        let shard = held.part.shard;
        let is_of_it = |name: &String| held.built.as_ref().is_none_or(|built| built.tables.contains(name));
        let names = Names { schema: self.context.prefix.schema(shard) };
        let tables = match facts::schema_oid(source, &names.schema).await? {
            Some(oid) => table::shapes(source, oid).await?.into_iter().filter(|table| is_of_it(&table.name)).collect(),
            None => Vec::new(),
        };
        Ok(ShardCopy { hold: self.hold(shard), target_schema: names.incoming(), source_schema: names.schema, tables })
    }

    async fn phases(&self, source: &Session) -> Result<BTreeMap<ShardId, Phase>, Error> {
        let entries = source.entries(Some(self.shared.id)).await?;
        Ok(entries.into_iter().map(|entry| (entry.shard, entry.phase)).collect())
    }

    /// The name of publication and slot: a rollback finds those of the way back.
    fn stream(&self) -> String {
        match self.shared.back_of {
            None => slot::stream_name(self.shared.id),
            Some(of) => slot::back_name(of, &self.shared.target),
        }
    }

    /// A driver of a shard whose changes are applied.
    async fn with_stream<'d>(
        &'d self,
        held: Held,
        heartbeat: &'d Heartbeat,
        follower: &'d Follower,
        way_back: &Option<String>,
    ) -> Result<Driver<'d>, End> {
        let work = match connect(self.context, &held.part, self.hold(held.part.shard)).await {
            Ok(work) => work,
            Err(error) => return Err(self.left(&held, error, heartbeat).await),
        };
        let mut drive = Driver::new(self.context, work, heartbeat, Goal::Finish);
        (drive.built, drive.verified_on, drive.follower) = (held.built, held.verified_on, Some(follower));
        (drive.way_back, drive.guard, drive.turns) = (way_back.clone(), Some(&self.guard), Some(&self.turns));
        Ok(drive)
    }

    /// All but the fence, which is held back for all of them.
    async fn make_ready(
        &self,
        held: Held,
        heartbeat: &Heartbeat,
        follower: &Follower,
        way_back: &Option<String>,
    ) -> Result<Held, End> {
        let shard = held.part.shard;
        let part = held.part.clone();
        let mut drive = self.with_stream(held, heartbeat, follower, way_back).await?;
        match self.drive(&mut drive, Until::Ready).await {
            None => Ok(Held { part, built: drive.built, verified_on: drive.verified_on }),
            Some(end) => {
                self.guard.let_go(shard);
                Err(end)
            }
        }
    }

    /// From the last changes to the end.
    async fn cut_over(
        &self,
        held: Held,
        heartbeat: &Heartbeat,
        follower: &Follower,
        way_back: &Option<String>,
    ) -> Result<(), End> {
        let shard = held.part.shard;
        let mut drive = self.with_stream(held, heartbeat, follower, way_back).await?;
        let end = self.drive(&mut drive, Until::End).await;
        let begun = drive.audit.take();
        self.guard.let_go(shard);
        // With its connections: a transaction that failed half-way holds locks that the follower waits for, and the follower
        // would be waited for here.
        drop(drive);
        // A shard that failed is followed for as long as the others are: the slot moves on with them, and a resume must
        // find that the shard has.
        if matches!(end, Some((_, Ok(_)))) {
            follower.detach(shard).await;
        }
        let end = end.unwrap_or_else(|| self.failed(shard, Error::Interrupted { shard }));
        Err(self.audited(begun, end).await)
    }

    /// The end of a shard that failed while this mover had no connection for it.
    async fn left(&self, held: &Held, error: Error, heartbeat: &Heartbeat) -> End {
        let shard = held.part.shard;
        if let Ok(work) = connect(self.context, &held.part, self.hold(shard)).await {
            self.withdraw_if_altered(&work, &error).await;
            Driver::new(self.context, work, heartbeat, Goal::Finish).leave(Some(&error)).await;
        }
        self.failed(shard, error)
    }

    /// A shard that was altered is no longer published: a table that has lost what names its rows would refuse its UPDATE and
    /// DELETE for as long as the move waits. What it changes from now on is in no stream, so it begins anew with a resume.
    async fn withdraw_if_altered(&self, work: &ShardMove<'_>, error: &Error) {
        if !matches!(error, Error::Altered { .. } | Error::Refused { .. }) || self.shared.back_of.is_some() {
            return;
        }
        let withdrawn = async {
            work.source.advance(work.hold, Phase::Claimed, &Note::default()).await?;
            slot::withdraw(&work.source, &self.stream(), &work.names.schema).await
        };
        if let Err(error) = withdrawn.await {
            tracing::warn!(shard = %work.hold.shard, error = chain(&error), "its tables are published still; an abort ends that");
        }
    }

    async fn all_failed(&self, held: Vec<Held>, error: Error, heartbeat: &Heartbeat) -> Vec<End> {
        let error = Arc::new(error);
        let mut ends = Vec::new();
        for one in &held {
            let of_group = Error::Group { shard: one.part.shard, source: error.clone() };
            ends.push(self.left(one, of_group, heartbeat).await);
        }
        ends
    }

    fn failed(&self, shard: ShardId, error: Error) -> End {
        self.context.observer.tell(Event::Failed { shard, error: chain(&error) });
        (shard, Err(error))
    }

    fn hold(&self, shard: ShardId) -> Hold {
        Hold { id: self.shared.id, shard, lease: self.lease }
    }

    async fn session(&self, host: &HostName) -> Result<Session, Error> {
        let session = self.context.hosts.open(host).await?;
        session.sign(self.hold(self.first), Signed::Group).await?;
        Ok(session)
    }

    fn at(&self, failpoint: &'static str) -> Result<(), Error> {
        self.context.options.at(failpoint)
    }
}

/// What a target has of a shard.
struct There {
    /// Where the changes begin that are wanted since the first row was copied.
    from: Option<u64>,
    /// How far they are applied; `None`: its keys are not built.
    applied: Option<u64>,
    /// Whether its schema is there.
    built: bool,
}

impl There {
    /// Whether this is what the journal's phase says, and a slot that has confirmed so much has all that is missing. A target that
    /// failed over may have less, for less was copied to its standby.
    fn can_go_on(&self, phase: Phase, confirmed: Option<u64>) -> bool {
        let loaded = phase >= Phase::Loaded;
        let whole = self.built && (!loaded || self.applied.is_some());
        let wanted = self.applied.or(self.from);
        whole && wanted.is_none_or(|wanted| confirmed.is_some_and(|confirmed| wanted >= confirmed))
    }
}

/// How far these shards are; those that have not begun, as far as the slot is.
///
/// Locks: ACCESS SHARE on a table of ours.
pub(in crate::mover) async fn applied(
    target: &Session,
    shards: Vec<(MoveId, ShardId)>,
    position: u64,
) -> Result<BTreeMap<ShardId, u64>, Error> {
    let mut positions = BTreeMap::new();
    for (id, shard) in shards {
        let sql = "SELECT applied_lsn FROM pgshard.progress WHERE move_id = $1 AND shard_id = $2";
        let rows = target.rows("reading the progress", sql, &[id.uuid(), &shard.as_i32()]).await?;
        positions.insert(shard, rows.first().map_or(position, |row| u64::from(row.get::<_, PgLsn>(0))));
    }
    Ok(positions)
}

/// Drops publications and slots that no shard needs any more: those of the move once every shard that came from its source
/// has ended, those of ways back that nobody can go.
///
/// Locks: none.
pub(in crate::mover) async fn tidy_up(context: &Context, shared: &Shared) -> Result<(), Error> {
    let Shared { id, source, target, back_of } = shared;
    let source = context.hosts.open(source).await?;
    let target = context.hosts.open(target).await?;
    reverse::stream::tidy_up(&source, &target, *id).await?;
    let entries = source.entries(Some(*id)).await?;
    if entries.iter().any(|entry| !entry.phase.is_ended()) {
        return Ok(());
    }
    let name = slot::stream_name(*id);
    slot::drop_slot(&source, &name).await?;
    context.options.at("after slot drop")?;
    slot::drop_publication(&source, &name).await?;
    context.options.at("after publication drop")?;
    if let Some(of) = back_of {
        reverse::stream::tidy_up(&target, &source, *of).await?;
    }
    // The shards have left: whoever brought them here cannot take them back any more.
    reverse::stream::look_after(context, &source).await.map(drop)
}
