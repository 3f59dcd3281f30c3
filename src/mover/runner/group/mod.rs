//! The shards of one move that come online from one host to another: they share one publication,
//! one slot and one stream.
//!
//! A slot decodes the source's whole WAL, so five hundred shards share one. Every shard is
//! nevertheless on its own: it is claimed, copied, fenced and opened by itself, and its failure
//! stops no other. Invariant: the slot exists before the first row is copied and until the last
//! shard of the group has ended. Rows that were copied under a slot that is gone are copied again.

mod cut_over;
mod disk;
mod load;
mod members;
mod stream;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use tokio::sync::watch;

use crate::map::HostName;
use crate::mover::control::context::Context;
use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{Hold, SessionPurpose};
use crate::mover::control::session::Session;
use crate::mover::preflight::facts::Servers;
use crate::mover::protocol::desired::{DesiredState, Rollback};
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::throttle::Pace;
use crate::mover::runner::assignment::{Assignment, GroupKey, ShardResult};
use crate::mover::runner::leftovers::drop_shared;
use crate::mover::runner::permit::CutOverPermits;
use crate::mover::runner::reverse;
use crate::mover::runner::single::patiently;
use crate::mover::runner::watchdog::{SlotTrouble, Watchdog};
use crate::mover::step::Blueprint;
use crate::mover::stream::slot;
use crate::pg::cause::chain;
use crate::shard::ShardId;

pub(in crate::mover) use stream::applied;

/// For how long publication and slot are begun with again when the connection to the source is
/// lost. The slot may wait for a minute by itself.
const SLOT_WITHIN: Duration = Duration::from_secs(180);

/// Moves the parts, which belong to one move and have the same source and target, to their ends.
pub(in crate::mover) async fn work(
    context: &Context,
    parts: Vec<Assignment>,
    heartbeat: &Heartbeat,
) -> Vec<ShardResult> {
    let Some(first) = parts.first() else {
        return Vec::new();
    };
    let (stop, pace) = (
        watch::Sender::new(false),
        Pace {
            rate: context.throttle.rate(),
            paused: false,
        },
    );
    let pace = watch::Sender::new(pace);
    // What stops or slows one group does not affect the others.
    let own = Context {
        stop,
        throttle: context.throttle.and(pace.subscribe()),
        ..context.clone()
    };
    let group = Group {
        context: &own,
        whole: context,
        pace,
        watchdog: Watchdog::new(),
        permits: CutOverPermits::default(),
        shared: GroupKey::of(first),
        rollback: first.rollback,
        heartbeat,
        first: first.shard,
    };
    group.run(parts).await
}

struct Group<'a> {
    /// The context of the group, with a stop and a throttle of its own.
    context: &'a Context,
    /// The context of the whole mover.
    whole: &'a Context,
    /// Controls the group's throttle.
    pace: watch::Sender<Pace>,
    watchdog: Watchdog,
    permits: CutOverPermits,
    shared: GroupKey,
    /// Whether a reverse replication is prepared.
    rollback: Rollback,
    /// Its lease is the same for all shards of the group: a mover that takes one over takes the
    /// stream over.
    heartbeat: &'a Heartbeat,
    /// The shard under which the ledger lists what belongs to all of them.
    first: ShardId,
}

/// A shard that this mover holds, and what its target was built from, if this mover built it.
struct Member {
    part: Assignment,
    built: Option<Blueprint>,
    /// The servers on which it was compared, if this mover has done that.
    compared_on: Option<Servers>,
}

impl<'a> Group<'a> {
    async fn run(&self, parts: Vec<Assignment>) -> Vec<ShardResult> {
        let taken = parts.clone();
        let mut work = Box::pin(self.all(parts));
        let trouble = tokio::select! {
            ends = &mut work => return ends,
            trouble = self.supervise() => trouble,
        };
        self.context.stop();
        let ends = work.as_mut().await;
        drop(work);
        match trouble {
            SlotTrouble::TooMuch { kept, limit } => {
                self.abort_to_free_wal(taken, ends, (kept, limit)).await
            }
            SlotTrouble::Lost(state) => self.without_slot(ends, state).await,
        }
    }

    async fn all(&self, parts: Vec<Assignment>) -> Vec<ShardResult> {
        let mut ends = Vec::new();
        let mut members = self.each(&mut ends, parts, |part| self.begin(part)).await;
        let streamed = async {
            let mut source = self.session(&self.shared.source).await?;
            if members.is_empty() {
                return self.drop_shared().await;
            }
            // This comes before anything is published: a table with rows that the stream cannot
            // identify would refuse UPDATE and DELETE then.
            let begun = std::mem::take(&mut members);
            members = self
                .each(&mut ends, begun, |one| self.known(one, &source))
                .await;
            let until = Instant::now() + SLOT_WITHIN;
            let position = loop {
                match self.slot(&source, &mut members, &mut ends).await {
                    Err(error) if error.is_disconnect() && Instant::now() < until => {
                        tracing::warn!(error = chain(&error), "opening a new session");
                        source = self.session(&self.shared.source).await?;
                    }
                    position => break position?,
                }
            };
            self.watchdog.watch_publication();
            self.load(&source, &mut members, &mut ends, position)
                .await?;
            if members.is_empty() {
                return self.drop_shared().await;
            }
            // The former may have been idle for hours, and cut since, or its host restarted. It is
            // closed first: it would count as one more until the move ends.
            drop(source);
            let source = self.session(&self.shared.source).await?;
            let target = self.session(&self.shared.target).await?;
            let others = self.others(&source, &target, &members, position).await?;
            self.watchdog.leave_promotions_to_the_reader();
            let follower = self.follow(&source, &members, others).await?;
            let reverse = match self.rollback {
                Rollback::Prepared => {
                    reverse::stream::prepare(
                        self.context,
                        &source,
                        &target,
                        self.shared.id,
                        self.first,
                    )
                    .await?
                }
                Rollback::Forgone => None,
            };
            if self
                .heartbeat
                .desired_states()
                .borrow()
                .values()
                .any(|desired| *desired != DesiredState::Run)
            {
                let rest = std::mem::take(&mut members);
                let make_ready = |member| self.make_ready(member, &follower, reverse.as_deref());
                members = self.each(&mut ends, rest, make_ready).await;
            }
            let cut_over = std::mem::take(&mut members);
            let cut_over_one = |member| self.cut_over(member, &follower, reverse.as_deref());
            let rest = self.each(&mut ends, cut_over, cut_over_one).await;
            debug_assert!(rest.is_empty(), "a cut-over ends with its shard's end");
            follower.stop().await;
            self.drop_shared().await
        };
        if let Err(error) = streamed.await {
            tracing::warn!(source = %self.shared.source, error = chain(&error), "the stream of a \
                move");
            ends.extend(self.all_failed(members, error).await);
        }
        ends
    }

    /// Drops what the shards have shared, if none needs it any longer.
    async fn drop_shared(&self) -> Result<(), Error> {
        self.watchdog.let_publication_go();
        drop_shared(self.context, &self.shared).await
    }

    /// Does the same with each item, a few at a time. Returns those that continue; the ends of the
    /// others are added to `ends`.
    async fn each<I, O, F>(
        &self,
        ends: &mut Vec<ShardResult>,
        items: Vec<I>,
        work: impl Fn(I) -> F,
    ) -> Vec<O>
    where
        F: Future<Output = Result<O, ShardResult>>,
    {
        let outcomes: Vec<_> = futures_util::stream::iter(items)
            .map(work)
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

    async fn phases(&self, source: &Session) -> Result<BTreeMap<ShardId, Phase>, Error> {
        let entries = source.entries(Some(self.shared.id)).await?;
        Ok(entries
            .into_iter()
            .map(|entry| (entry.shard, entry.phase))
            .collect())
    }

    /// The name of publication and slot. A rollback uses those of the reverse replication.
    fn stream(&self) -> String {
        slot::name_of(self.shared.id, self.shared.rollback_of, &self.shared.target)
    }

    fn failed(&self, shard: ShardId, error: Error) -> ShardResult {
        self.context.observer.notify(Event::Failed {
            shard,
            error: chain(&error),
        });
        (shard, Err(error))
    }

    fn hold(&self, shard: ShardId) -> Hold {
        Hold {
            id: self.shared.id,
            shard,
            lease: self.heartbeat.lease(),
        }
    }

    async fn session(&self, host: &HostName) -> Result<Session, Error> {
        patiently(self.context, || async {
            let session = self.context.hosts.open(host).await?;
            session
                .sign(self.hold(self.first), SessionPurpose::Group)
                .await?;
            Ok(session)
        })
        .await
    }

    fn at(&self, failpoint: &'static str) -> Result<(), Error> {
        self.context.options.at(failpoint)
    }
}
