//! Reverse replication: applies the changes of the new hosts to old copies, until it is stopped.
//!
//! Invariant: if two processes apply to one move, one of them waits. A rollback or `complete` need
//! not contact this process: what they write makes it stop. While a rollback has taken a shard, the
//! others that share its slot are not fed.

use crate::mover::step::old_copy;
use std::collections::BTreeMap;
use std::time::Duration;

use uuid::Uuid;

use crate::map::HostName;
use crate::mover::control::context::Context;
use crate::mover::control::context::stopped;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Entry, Hold, ReverseReplication, SessionPurpose};
use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::worker::Claimant;
use crate::mover::protocol::worker::Work;
use crate::mover::runner::group::applied;
use crate::mover::stream::fault::Fault;
use crate::mover::stream::follower::Follower;
use crate::mover::stream::options::{Basis, FollowedShard, FollowerOptions};
use crate::mover::stream::slot;
use crate::pg::cause::chain;
use crate::shard::ShardId;

use crate::mover::runner::reverse::needs_slot;
use crate::mover::runner::reverse::stream;

/// How often the moves are read: new ones are followed, and those that have ended are let go.
const ROUND: Duration = Duration::from_secs(2);

/// How long a stop waits for the answer to a statement that it has cut off.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// The shards of one move that went from one host to another.
type Key = (MoveId, HostName, HostName);

/// Keeps the old copies of all kept moves, or of one, up to date until the mover is stopped.
pub(crate) async fn follow(context: &Context, id: Option<MoveId>) {
    let mut stop = context.stop.subscribe();
    let mut followed: BTreeMap<Key, FollowedCopy> = BTreeMap::new();
    loop {
        round(context, id, &mut followed).await;
        if tokio::time::timeout(ROUND, stopped(&mut stop))
            .await
            .is_ok()
        {
            break;
        }
    }
    for (_, copy) in followed {
        copy.end().await;
    }
}

/// Ends early when the mover is stopped, and is not dropped for that: it would leave behind what it
/// has taken.
async fn round(context: &Context, id: Option<MoveId>, followed: &mut BTreeMap<Key, FollowedCopy>) {
    let Some((entries, _)) = unless_stopped(context, context.list(id)).await else {
        return;
    };
    let mut there: BTreeMap<Key, Vec<Entry>> = BTreeMap::new();
    let mut taken: BTreeMap<Key, MoveId> = BTreeMap::new();
    for entry in entries {
        if let Some(by) = entry.reverse.as_ref().and_then(|back| back.taken_by) {
            taken.insert((entry.id, entry.source.clone(), entry.target.clone()), by);
        }
        if entry.phase == Phase::Kept
            && entry
                .reverse
                .as_ref()
                .is_some_and(ReverseReplication::is_open)
        {
            there
                .entry((entry.id, entry.source.clone(), entry.target.clone()))
                .or_default()
                .push(entry);
        }
    }
    there.retain(|key, _| !taken.contains_key(key));
    let gone: Vec<Key> = followed
        .keys()
        .filter(|key| !there.contains_key(*key))
        .cloned()
        .collect();
    for key in gone {
        if let Some(copy) = followed.remove(&key) {
            copy.end().await;
        }
        if let Some(by) = taken.get(&key) {
            let error = format!(
                "the rollback {by} uses the stream until it ends: `pgshard moves show {by}`"
            );
            context.observer.notify(Event::NotFed { id: key.0, error });
        }
    }
    for (key, entries) in there {
        // The next round tries again, for as long as the command runs.
        if let Err(error) = read_old_copies(context, &key, &entries, followed).await {
            context.observer.notify(Event::NotFed {
                id: key.0,
                error: chain(&error),
            });
        }
    }
}

/// Begins to follow what is not followed yet, and checks the rest. What has ended begins
/// again in the next round, if there still is something to follow.
async fn read_old_copies(
    context: &Context,
    key: &Key,
    entries: &[Entry],
    followed: &mut BTreeMap<Key, FollowedCopy>,
) -> Result<(), Error> {
    let Some(copy) = followed.get(key) else {
        let begun = FollowedCopy::start(context, key, entries).await?;
        followed.extend(begun.map(|copy| (key.clone(), copy)));
        return Ok(());
    };
    let goes_on = unless_stopped(context, copy.look_after(context, key, entries))
        .await
        .unwrap_or(Ok(true));
    if matches!(goes_on, Ok(true)) {
        return Ok(());
    }
    if let Some(copy) = followed.remove(key) {
        copy.end().await;
    }
    goes_on?;
    let (id, source, serving) = key;
    let (source, target) = (
        context.hosts.open(source).await?,
        context.hosts.open(serving).await?,
    );
    stream::tidy_up(context, &source, &target, *id)
        .await
        .map(drop)
}

/// The result of the work; `None` if the mover is stopped before.
async fn unless_stopped<T>(context: &Context, work: impl Future<Output = T>) -> Option<T> {
    let mut stop = context.stop.subscribe();
    tokio::select! {
        outcome = work => Some(outcome),
        () = stopped(&mut stop) => None,
    }
}

struct FollowedCopy {
    follower: Follower,
    source: Session,
    shards: Vec<Hold>,
    /// Keeps the leases for as long as it lives.
    heartbeat: Heartbeat,
}

impl FollowedCopy {
    /// Begins with the shards of a key. `None` if there is nothing to apply, and when the mover is
    /// stopped.
    async fn start(
        context: &Context,
        key: &Key,
        entries: &[Entry],
    ) -> Result<Option<FollowedCopy>, Error> {
        let Some(reached) = unless_stopped(context, FollowedCopy::reach(context, key)).await else {
            return Ok(None);
        };
        let (session, beating) = reached?;
        let holder = context.options.holder.clone();
        let claimant = Claimant {
            id: key.0,
            lease: Uuid::new_v4(),
            target: key.2.clone(),
            holder,
            work: Work::Feed,
        };
        // A stop does not cut this off: the row that it writes would stay.
        let leases = context.options.leases;
        let heartbeat = Heartbeat::start(&context.hosts, beating, &claimant, leases).await?;
        let followed = unless_stopped(
            context,
            FollowedCopy::follow(context, key, entries, &session, &heartbeat),
        )
        .await;
        match followed {
            Some(Ok(Some((follower, shards)))) => Ok(Some(FollowedCopy {
                follower,
                source: session,
                shards,
                heartbeat,
            })),
            ended => {
                // What a stop has cut off may be about to take a shard: its answer comes before
                // this one.
                let _ = tokio::time::timeout(
                    LAST_WORDS,
                    session.batch("waiting for what was begun", "SELECT"),
                )
                .await;
                heartbeat.end().await;
                ended.unwrap_or(Ok(None)).map(|_| None)
            }
        }
    }

    /// Connections to the host of the old copies, for the work and for the heartbeat. What is
    /// broken is given up first.
    async fn reach(
        context: &Context,
        (id, source, serving): &Key,
    ) -> Result<(Session, Session), Error> {
        let session = context.hosts.open(source).await?;
        let target = context.hosts.open(serving).await?;
        let name = slot::back_name(*id, source);
        stream::judge(context, &session, &target, *id, &name).await?;
        let beating = context.hosts.open(source).await?;
        Ok((session, beating))
    }

    /// Takes the shards, and follows their new host. `None` if there is nothing to follow.
    async fn follow(
        context: &Context,
        (id, source, serving): &Key,
        entries: &[Entry],
        session: &Session,
        heartbeat: &Heartbeat,
    ) -> Result<Option<(Follower, Vec<Hold>)>, Error> {
        let hold = |shard: ShardId| Hold {
            id: *id,
            shard,
            lease: heartbeat.lease(),
        };
        let target = context.hosts.open(serving).await?;
        let (mut shards, mut holds) = (Vec::new(), Vec::new());
        for entry in entries {
            let (names, hold) = (
                Names {
                    schema: context.prefix.schema(entry.shard),
                },
                hold(entry.shard),
            );
            heartbeat
                .take_kept(session, hold, &context.options.holder)
                .await?;
            heartbeat.hold(hold).await?;
            old_copy::drop_constraints(session, &target, &names, entry).await?;
            let Some(oid) = facts::schema_oid(&target, &names.schema).await? else {
                continue;
            };
            if !old_copy::take_progress(session, hold).await? {
                continue;
            }
            let tables = table::shapes(&target, oid).await?;
            let target_schema = names.left(entry.epoch);
            shards.push(FollowedShard {
                hold,
                target_schema,
                tables,
                basis: Basis::Position,
            });
            holds.push(hold);
        }
        if holds.is_empty() {
            stream::tidy_up(context, session, &target, *id).await?;
            return Ok(None);
        }
        session.sign(holds[0], SessionPurpose::Group).await?;
        // Shards that are not kept yet count too: the slot must have what their new host writes
        // once it has opened.
        let of_move = session.entries(Some(*id)).await?;
        let sharing = of_move
            .iter()
            .filter(|entry| entry.target == *serving && needs_slot(entry));
        let not_fed = sharing.filter(|entry| holds.iter().all(|hold| hold.shard != entry.shard));
        let name = slot::back_name(*id, source);
        let position = slot::slot_state(&target, &name)
            .await?
            .map_or(0, |state| state.confirmed);
        let others = applied(
            session,
            not_fed.map(|entry| (entry.id, entry.shard)).collect(),
            position,
        )
        .await?;
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
        context.observer.notify(Event::Feeding {
            id: *id,
            shards: holds.len(),
        });
        Ok(Some((follower, holds)))
    }

    /// Reads what has changed since the last round, and whether to continue.
    async fn look_after(
        &self,
        context: &Context,
        (id, source, serving): &Key,
        entries: &[Entry],
    ) -> Result<bool, Error> {
        let view = self.follower.view().borrow().clone();
        for hold in &self.shards {
            let why = match view
                .shards
                .get(&hold.shard)
                .and_then(|seen| seen.fault.clone())
            {
                Some(Fault::Diverged { table, what }) => {
                    format!("{table} of the old copy differs: {what}")
                }
                Some(Fault::Altered { table, what }) => format!("{table} was altered: {what}"),
                Some(Fault::StreamLost { host }) => stream::lacking(&host),
                _ => continue,
            };
            old_copy::mark_rollback_lost(&self.source, *id, hold.shard, &why).await?;
            self.follower.detach(hold.shard).await;
        }
        let target = context.hosts.open(serving).await?;
        let name = slot::back_name(*id, source);
        let given_up = stream::judge(context, &self.source, &target, *id, &name)
            .await?
            .is_some();
        let lost = self
            .shards
            .iter()
            .any(|hold| self.heartbeat.loss(hold.shard).is_some());
        let all_there = entries
            .iter()
            .all(|entry| self.shards.iter().any(|hold| hold.shard == entry.shard));
        if given_up || view.ended.is_some() || lost || !all_there {
            return Ok(false);
        }
        let lag = view.lag_now();
        context.observer.notify(Event::Fed {
            id: *id,
            bytes: lag.bytes,
            seconds: lag.seconds,
            changes: view.changes,
        });
        Ok(true)
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
