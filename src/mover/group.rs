//! The shards of one move that come online from one host to another: one publication, one slot, one stream for all of them.
//!
//! A slot decodes the source's whole WAL, so five hundred shards share one. Every shard is still its own: it is claimed,
//! copied, fenced and opened by itself, and its failure stops no other. What may not break: the slot is there before the
//! first row is copied and until the last shard of the group has ended; rows that were copied under a slot that is gone
//! are copied again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use tokio_postgres::types::{PgLsn, ToSql};
use uuid::Uuid;

use crate::map::HostName;
use crate::shard::ShardId;

use super::chunk::copy::Copied;
use super::chunk::plan::CHUNK_BYTES;
use super::chunk::work::{CopyOptions, copy_all};
use super::chunk::{Route, ShardCopy, table};
use super::driver::{Driver, Part, Until, begin, chain, connect};
use super::error::Error;
use super::heartbeat::Heartbeat;
use super::journal::{Hold, Note, Signed};
use super::names::{MoveId, Names};
use super::options::{Event, Options};
use super::session::Session;
use super::state::{Goal, Phase};
use super::step::{Blueprint, ShardMove};
use super::stream::follower::{Basis, FollowedShard, Follower, FollowerOptions};
use super::stream::slot::{self, Direction};
use super::{Mover, ShardReport, facts};

/// How long the slot's creation waits for the transactions that are under way on its server.
const SLOT_PATIENCE: Duration = Duration::from_secs(60);

type End = (ShardId, Result<ShardReport, Error>);

/// Moves the parts, which are of one move and have the same source and target, to their ends.
pub(super) async fn work(mover: &Mover, parts: Vec<Part>) -> Vec<End> {
    let Some(first) = parts.first() else { return Vec::new() };
    let group = Group {
        mover,
        id: first.id,
        source: first.source.clone(),
        target: first.target.clone(),
        lease: Uuid::new_v4(),
        first: first.shard,
    };
    let shards: Vec<ShardId> = parts.iter().map(|part| part.shard).collect();
    match group.run(parts).await {
        Ok(ends) => ends,
        // Nothing of a shard has begun, or its own end would be here.
        Err(error) => {
            let error = Arc::new(error);
            shards.into_iter().map(|shard| (shard, Err(Error::Group { shard, source: error.clone() }))).collect()
        }
    }
}

struct Group<'a> {
    mover: &'a Mover,
    id: MoveId,
    source: HostName,
    target: HostName,
    /// The same for all shards of the group: whoever takes one over takes the stream over.
    lease: Uuid,
    /// The shard whose number the ledger gives with what is of all of them.
    first: ShardId,
}

/// A shard that is this mover's, and what its target was built from, if this mover built it.
struct Held {
    part: Part,
    built: Option<Blueprint>,
}

impl<'a> Group<'a> {
    async fn run(&self, parts: Vec<Part>) -> Result<Vec<End>, Error> {
        let session = self.session(&self.source).await?;
        session.batch("the heartbeat's settings", "SET synchronous_commit = off").await?;
        let heartbeat = Heartbeat::start(session, self.mover.options.leases);
        let mut ends = Vec::new();
        let mut held = self.each(&mut ends, parts, async |part| self.begin(part, &heartbeat).await).await;
        let streamed = async {
            let source = self.session(&self.source).await?;
            if held.is_empty() {
                return tidy_up(&self.mover.options, &source, self.id).await;
            }
            let position = self.slot(&source, &mut held, &mut ends, &heartbeat).await?;
            self.load(&source, &mut held, &mut ends, &heartbeat, position).await?;
            if held.is_empty() {
                return tidy_up(&self.mover.options, &source, self.id).await;
            }
            let follower = self.follow(&source, &held).await?;
            let cut_over = std::mem::take(&mut held);
            let rest =
                self.each(&mut ends, cut_over, async |held| self.cut_over(held, &heartbeat, &follower).await).await;
            debug_assert!(rest.is_empty(), "a cut-over ends with its shard's end");
            follower.stop().await;
            tidy_up(&self.mover.options, &source, self.id).await
        };
        if let Err(error) = streamed.await {
            tracing::warn!(source = %self.source, error = chain(&error), "the stream of a move");
            ends.extend(self.all_failed(held, error, &heartbeat).await);
        }
        Ok(ends)
    }

    /// Does the same with each, a few at a time. Gives those that go on; the ends of the others are put to the ends.
    async fn each<I, O>(&self, ends: &mut Vec<End>, items: Vec<I>, work: impl AsyncFn(I) -> Result<O, End>) -> Vec<O> {
        let outcomes: Vec<_> =
            stream::iter(items).map(|item| work(item)).buffer_unordered(self.mover.options.jobs.max(1)).collect().await;
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
        if self.mover.is_stopped() {
            return Err((shard, Err(Error::Interrupted { shard })));
        }
        let work = async {
            let work = connect(self.mover, &part, self.hold(shard)).await?;
            begin(&work, heartbeat, &part).await?;
            Ok::<_, Error>(work)
        };
        let work = work.await.map_err(|error| self.failed(shard, error))?;
        self.go_on(Held { part, built: None }, work, heartbeat).await
    }

    /// As far as it goes without the stream.
    async fn go_on(&self, held: Held, work: ShardMove<'_>, heartbeat: &Heartbeat) -> Result<Held, End> {
        let mut drive = Driver::new(self.mover, work, heartbeat, Goal::Finish);
        match self.drive(&mut drive, Until::Stream).await {
            Some(end) => Err(end),
            None => Ok(Held { built: drive.built.or(held.built), ..held }),
        }
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
        let name = slot::stream_name(self.id, Direction::Forward);
        let owner = slot::Owner { name: &name, id: self.id, shard: self.first, options: &self.mover.options };
        let there = slot::slot_state(source, &name).await?;
        let lost = there.as_ref().is_some_and(|state| state.wal_status.as_deref() == Some("lost"));
        if lost {
            tracing::warn!(slot = name, host = %self.source, "the server has dropped WAL that the slot needs: the shards are copied again");
            slot::drop_slot(source, &name).await?;
        }
        let kept = there.filter(|_| !lost).map(|state| state.confirmed);
        let target = self.session(&self.target).await?;
        let wanted = self.wanted(&target).await?;
        let behind = |held: &Held| {
            let from = wanted.get(&held.part.shard);
            from.is_some_and(|from| kept.is_none_or(|kept| *from < kept))
        };
        let (again, rest) = std::mem::take(held).into_iter().partition(behind);
        *held = rest;
        held.extend(self.each(ends, again, async |held| self.prepare_again(held, heartbeat).await).await);
        let mut tables = Vec::new();
        for one in held.iter() {
            let schema = self.mover.prefix.schema(one.part.shard);
            if let Some(oid) = facts::schema_oid(source, &schema).await? {
                tables.extend(table::shapes(source, oid).await?.into_iter().map(|shape| (schema.clone(), shape.name)));
            }
        }
        self.at("before publication")?;
        slot::create_publication(source, owner, &tables).await?;
        self.at("after publication")?;
        let position = slot::create_slot(source, owner, SLOT_PATIENCE).await?;
        self.at("after slot")?;
        let shards: Vec<i32> = held.iter().map(|held| held.part.shard.as_i32()).collect();
        // Before the first row is copied. Locks: rows of pgshard.incoming, for one statement.
        let sql = "UPDATE pgshard.incoming SET stream_from = $4
            WHERE move_id = $1 AND lease = $2 AND shard_id = ANY ($3) AND stream_from IS NULL";
        let params: [&(dyn ToSql + Sync); 4] = [self.id.uuid(), &self.lease, &shards, &PgLsn::from(position)];
        target.execute("writing where the stream begins", sql, &params).await?;
        Ok(position)
    }

    /// Where the changes begin that each shard with rows at the target still wants.
    ///
    /// Locks: none but ACCESS SHARE on the control tables.
    async fn wanted(&self, target: &Session) -> Result<BTreeMap<ShardId, u64>, Error> {
        let sql = "SELECT i.shard_id, coalesce(p.applied_lsn, i.stream_from)
            FROM pgshard.incoming i LEFT JOIN pgshard.progress p USING (move_id, shard_id)
            WHERE i.move_id = $1 AND i.source = $2 AND i.stream_from IS NOT NULL";
        let rows = target.rows("reading the progress", sql, &[self.id.uuid(), &self.source.as_str()]).await?;
        let of = |row: &tokio_postgres::Row| {
            let shard = u16::try_from(row.get::<_, i32>(0)).ok().and_then(ShardId::new)?;
            Some((shard, row.get::<_, PgLsn>(1).into()))
        };
        Ok(rows.iter().filter_map(of).collect())
    }

    /// Back to the beginning with a shard whose changes since its copy are not known any more.
    async fn prepare_again(&self, held: Held, heartbeat: &Heartbeat) -> Result<Held, End> {
        let shard = held.part.shard;
        let work = async {
            let work = connect(self.mover, &held.part, self.hold(shard)).await?;
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
            copies.push(self.to_copy(source, one.part.shard).await?);
        }
        let options = CopyOptions {
            route: Route { source: self.source.clone(), target: self.target.clone() },
            jobs: self.mover.options.copy_jobs,
            chunk_bytes: CHUNK_BYTES,
            throttle: self.mover.throttle.clone(),
            stop: self.mover.stop.subscribe(),
            observer: self.mover.observer.clone(),
            failpoints: self.mover.options.clone(),
        };
        let began = Instant::now();
        let mut copied: BTreeMap<ShardId, Result<Copied, Error>> =
            copy_all(&self.mover.hosts, copies, &options).await.into_iter().collect();
        let took = began.elapsed();
        self.at("after pieces")?;
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
        let keys = async |(one, rows): (Held, Copied)| self.keys(one, rows, took, position, heartbeat).await;
        held.extend(self.each(ends, rows_there, keys).await);
        Ok(())
    }

    /// Keys and indexes of a shard whose rows are there.
    async fn keys(
        &self,
        mut held: Held,
        copied: Copied,
        took: Duration,
        position: u64,
        heartbeat: &Heartbeat,
    ) -> Result<Held, End> {
        let shard = held.part.shard;
        let built = async {
            if self.mover.is_stopped() {
                return Err(Error::Interrupted { shard });
            }
            let work = connect(self.mover, &held.part, self.hold(shard)).await?;
            work.timings.took("copy", took);
            let built = match held.built.take() {
                Some(built) => built,
                None => {
                    let entries = work.source.entries(Some(self.id)).await?;
                    let entry = entries.iter().find(|entry| entry.shard == shard);
                    work.blueprint(entry.ok_or(Error::NoSuchMove { id: self.id })?).await?
                }
            };
            work.loaded(&built.creation, position.into(), copied.rows as i64, copied.bytes as i64).await?;
            Ok::<_, Error>(built)
        };
        match built.await {
            Ok(built) => Ok(Held { built: Some(built), ..held }),
            Err(error) => Err(self.left(&held, error, heartbeat).await),
        }
    }

    /// Starts to apply what the source's transactions have changed since.
    async fn follow(&self, source: &Session, held: &[Held]) -> Result<Follower, Error> {
        let mut shards = Vec::with_capacity(held.len());
        for one in held {
            let copy = self.to_copy(source, one.part.shard).await?;
            let ShardCopy { hold, target_schema, tables, .. } = copy;
            shards.push(FollowedShard { hold, target_schema, tables, basis: Basis::Pieces });
        }
        Ok(Follower::start(FollowerOptions {
            hosts: self.mover.hosts.clone(),
            source: self.source.clone(),
            target: self.target.clone(),
            id: self.id,
            stream: slot::stream_name(self.id, Direction::Forward),
            shards,
            patience: FollowerOptions::PATIENCE,
            failpoints: self.mover.options.clone(),
        }))
    }

    /// A shard's tables as they stand at the source, and where they go.
    async fn to_copy(&self, source: &Session, shard: ShardId) -> Result<ShardCopy, Error> {
        let names = Names { schema: self.mover.prefix.schema(shard) };
        let tables = match facts::schema_oid(source, &names.schema).await? {
            Some(oid) => table::shapes(source, oid).await?,
            None => Vec::new(),
        };
        Ok(ShardCopy { hold: self.hold(shard), target_schema: names.incoming(), source_schema: names.schema, tables })
    }

    async fn phases(&self, source: &Session) -> Result<BTreeMap<ShardId, Phase>, Error> {
        let entries = source.entries(Some(self.id)).await?;
        Ok(entries.into_iter().map(|entry| (entry.shard, entry.phase)).collect())
    }

    /// From the last changes to the end.
    async fn cut_over(&self, held: Held, heartbeat: &Heartbeat, follower: &Follower) -> Result<(), End> {
        let shard = held.part.shard;
        let work = connect(self.mover, &held.part, self.hold(shard)).await;
        let work = match work {
            Ok(work) => work,
            Err(error) => return Err(self.left(&held, error, heartbeat).await),
        };
        let mut drive = Driver::new(self.mover, work, heartbeat, Goal::Finish);
        (drive.built, drive.follower) = (held.built, Some(follower));
        let end = self.drive(&mut drive, Until::End).await;
        // With its connections: a transaction that failed half-way holds locks that the follower waits for, and the follower
        // would be waited for here.
        drop(drive);
        follower.detach(shard).await;
        Err(end.unwrap_or_else(|| self.failed(shard, Error::Interrupted { shard })))
    }

    /// The end of a shard that failed while this mover had no connection for it.
    async fn left(&self, held: &Held, error: Error, heartbeat: &Heartbeat) -> End {
        let shard = held.part.shard;
        if let Ok(work) = connect(self.mover, &held.part, self.hold(shard)).await {
            Driver::new(self.mover, work, heartbeat, Goal::Finish).leave(Some(&error)).await;
        }
        self.failed(shard, error)
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
        self.mover.observer.tell(Event::Failed { shard, error: chain(&error) });
        (shard, Err(error))
    }

    fn hold(&self, shard: ShardId) -> Hold {
        Hold { id: self.id, shard, lease: self.lease }
    }

    async fn session(&self, host: &HostName) -> Result<Session, Error> {
        let session = self.mover.hosts.open(host).await?;
        session.sign(self.hold(self.first), Signed::Group).await?;
        Ok(session)
    }

    fn at(&self, failpoint: &'static str) -> Result<(), Error> {
        self.mover.options.at(failpoint)
    }
}

/// Drops publication and slot of a move on one host once no shard needs them: every shard that came from there has ended.
///
/// Locks: none.
pub(super) async fn tidy_up(options: &Options, source: &Session, id: MoveId) -> Result<(), Error> {
    let entries = source.entries(Some(id)).await?;
    if entries.iter().any(|entry| !entry.phase.is_ended()) {
        return Ok(());
    }
    let name = slot::stream_name(id, Direction::Forward);
    slot::drop_slot(source, &name).await?;
    options.at("after slot drop")?;
    slot::drop_publication(source, &name).await?;
    options.at("after publication drop")
}
