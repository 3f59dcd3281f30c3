//! Feeding old copies: applies to them what their new hosts change, until somebody stops it.
//!
//! Invariant: if two feed one move, one of them waits. A rollback or `complete` need not ask the feed: what they write
//! makes it let go. While a rollback has taken a shard, nobody feeds the others that share its slot.

use crate::mover::step::old_copy;
use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::map::HostName;
use crate::mover::control::context::Context;
use crate::mover::control::context::stopped;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Entry, Hold, ReverseReplication, Signed};
use crate::mover::control::session::Session;
use crate::mover::control::worker::Claimant;
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::worker::Work;
use crate::mover::runner::group::applied;
use crate::mover::stream::fault::Fault;
use crate::mover::stream::follower::{Basis, FollowedShard, Follower, FollowerOptions};
use crate::mover::stream::slot;
use crate::pg::state::chain;
use crate::shard::ShardId;

use crate::mover::runner::reverse::needs_slot;
use crate::mover::runner::reverse::stream;

/// How often the moves are read: feeding of new ones begins, and those that have ended are let go.
const ROUND: Duration = Duration::from_secs(2);

/// The shards of one move that went from one host to another.
type Key = (MoveId, HostName, HostName);

/// Feeds the old copies of all kept moves, or of one, until the mover is told to stop.
pub(crate) async fn feed(context: &Context, id: Option<MoveId>) {
    let mut stop = context.stop.subscribe();
    let mut fed: BTreeMap<Key, Feeding> = BTreeMap::new();
    loop {
        let round = round(context, id, &mut fed);
        tokio::select! {
            () = round => {}
            () = stopped(&mut stop) => break,
        }
        if tokio::time::timeout(ROUND, stopped(&mut stop)).await.is_ok() {
            break;
        }
    }
    for (_, feeding) in fed {
        feeding.end().await;
    }
}

async fn round(context: &Context, id: Option<MoveId>, fed: &mut BTreeMap<Key, Feeding>) {
    let (entries, _) = context.list(id).await;
    let mut there: BTreeMap<Key, Vec<Entry>> = BTreeMap::new();
    let mut taken: BTreeMap<Key, MoveId> = BTreeMap::new();
    for entry in entries {
        if let Some(by) = entry.reverse.as_ref().and_then(|back| back.taken_by) {
            taken.insert((entry.id, entry.source.clone(), entry.target.clone()), by);
        }
        if entry.phase == Phase::Kept && entry.reverse.as_ref().is_some_and(ReverseReplication::is_open) {
            there.entry((entry.id, entry.source.clone(), entry.target.clone())).or_default().push(entry);
        }
    }
    there.retain(|key, _| !taken.contains_key(key));
    let gone: Vec<Key> = fed.keys().filter(|key| !there.contains_key(*key)).cloned().collect();
    for key in gone {
        if let Some(feeding) = fed.remove(&key) {
            feeding.end().await;
        }
        if let Some(by) = taken.get(&key) {
            let error = format!("the rollback {by} uses the stream until it ends: `pgshard moves show {by}`");
            context.observer.tell(Event::NotFed { id: key.0, error });
        }
    }
    for (key, entries) in there {
        let outcome = match fed.remove(&key) {
            Some(feeding) => feeding.look_after(context, &key, &entries).await,
            None => Feeding::start(context, &key, &entries).await,
        };
        match outcome {
            Ok(Some(feeding)) => drop(fed.insert(key, feeding)),
            Ok(None) => {}
            // The next round tries again: feeding goes on for as long as somebody runs it.
            Err(error) => context.observer.tell(Event::NotFed { id: key.0, error: chain(&error) }),
        }
    }
}

struct Feeding {
    follower: Follower,
    source: Session,
    shards: Vec<Hold>,
    /// Keeps the leases for as long as it lives.
    heartbeat: Heartbeat,
}

impl Feeding {
    async fn start(
        context: &Context,
        (id, source, serving): &Key,
        entries: &[Entry],
    ) -> Result<Option<Feeding>, Error> {
        let lease = Uuid::new_v4();
        let hold = |shard: ShardId| Hold { id: *id, shard, lease };
        let session = context.hosts.open(source).await?;
        let target = context.hosts.open(serving).await?;
        let name = slot::back_name(*id, source);
        stream::judge(context, &session, &target, *id, &name).await?;
        let beating = context.hosts.open(source).await?;
        beating.batch("the heartbeat's settings", "SET synchronous_commit = off").await?;
        let holder = context.options.holder.clone();
        let claimant = Claimant { id: *id, lease, target: serving.clone(), holder, work: Work::Feed };
        let heartbeat = Heartbeat::start(beating, &claimant, context.options.leases).await?;
        let (mut shards, mut holds) = (Vec::new(), Vec::new());
        for entry in entries {
            let (names, hold) = (Names { schema: context.prefix.schema(entry.shard) }, hold(entry.shard));
            heartbeat.take_kept(&session, hold, &claimant.holder).await?;
            heartbeat.hold(hold).await?;
            old_copy::drop_constraints(&session, &target, &names, entry).await?;
            let Some(oid) = facts::schema_oid(&target, &names.schema).await? else { continue };
            if !old_copy::take_progress(&session, hold).await? {
                continue;
            }
            let tables = table::shapes(&target, oid).await?;
            let target_schema = names.left(entry.epoch);
            shards.push(FollowedShard { hold, target_schema, tables, basis: Basis::Position });
            holds.push(hold);
        }
        if holds.is_empty() {
            stream::tidy_up(context, &session, &target, *id).await?;
            return Ok(None);
        }
        session.sign(holds[0], Signed::Group).await?;
        // Shards that are not kept yet count too: the slot must have what their new host writes once it has opened.
        let of_move = session.entries(Some(*id)).await?;
        let sharing = of_move.iter().filter(|entry| entry.target == *serving && needs_slot(entry));
        let not_fed = sharing.filter(|entry| holds.iter().all(|hold| hold.shard != entry.shard));
        let position = slot::slot_state(&target, &name).await?.map_or(0, |state| state.confirmed);
        let others = applied(&session, not_fed.map(|entry| (entry.id, entry.shard)).collect(), position).await?;
        let follower = Follower::start(FollowerOptions {
            hosts: context.hosts.clone(),
            source: serving.clone(),
            target: source.clone(),
            id: *id,
            stream: name,
            shards,
            others,
            failpoints: context.options.clone(),
            patience: FollowerOptions::PATIENCE,
        });
        context.observer.tell(Event::Feeding { id: *id, shards: holds.len() });
        Ok(Some(Feeding { follower, source: session, shards: holds, heartbeat }))
    }

    /// What has become of it since the last round. `None` if it has ended, or starts again in the next round.
    async fn look_after(
        self,
        context: &Context,
        (id, source, serving): &Key,
        entries: &[Entry],
    ) -> Result<Option<Feeding>, Error> {
        let view = self.follower.view().borrow().clone();
        for hold in &self.shards {
            let why = match view.shards.get(&hold.shard).and_then(|seen| seen.fault.clone()) {
                Some(Fault::Diverged { table, what }) => format!("{table} of the old copy differs: {what}"),
                Some(Fault::Altered { table, what }) => format!("{table} was altered: {what}"),
                Some(Fault::StreamLost { host }) => stream::lacking(&host),
                _ => continue,
            };
            old_copy::lose(&self.source, *id, hold.shard, &why).await?;
            self.follower.detach(hold.shard).await;
        }
        let target = context.hosts.open(serving).await?;
        let name = slot::back_name(*id, source);
        let given_up = stream::judge(context, &self.source, &target, *id, &name).await?.is_some();
        let lost = self.shards.iter().any(|hold| self.heartbeat.is_lost(hold.shard));
        let all_there = entries.iter().all(|entry| self.shards.iter().any(|hold| hold.shard == entry.shard));
        if given_up || view.ended.is_some() || lost || !all_there {
            self.end().await;
            stream::tidy_up(context, &context.hosts.open(source).await?, &target, *id).await?;
            return Ok(None);
        }
        context.observer.tell(Event::Fed {
            id: *id,
            bytes: view.lag.bytes,
            seconds: view.lag.seconds,
            changes: view.changes,
        });
        Ok(Some(self))
    }

    async fn end(self) {
        self.follower.stop().await;
        for hold in &self.shards {
            self.heartbeat.let_go(hold.shard);
            // A courtesy: the lease ends by itself.
            let _ = self.source.release(*hold, None).await;
        }
        self.heartbeat.end().await;
    }
}
