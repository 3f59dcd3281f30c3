//! The watchdog checks every few seconds, while the shards of a group are copied and followed, that
//! no session alters them or their publication, and that the slot is there and does not fill the
//! source's disk.
//!
//! Invariant: it changes nothing by itself. It notifies the driver of a shard, which ends in an
//! orderly way.

use crate::mover::copy::original::Original;
use crate::mover::copy::signals::{Altered, altered};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::control::hosts::Hosts;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::step::Blueprint;
use crate::mover::stream::slot;
use crate::pg::cause::chain;

/// The pause between two checks.
const EVERY: Duration = Duration::from_secs(2);

/// How long a check goes from shard to shard; the next one continues there. Otherwise hundreds of
/// shards would constantly cost their source half a core; and each is examined once more before its
/// fence and behind it.
const AT_MOST: Duration = Duration::from_millis(200);

/// Watches over the shards of a group, and holds what is known about them.
pub(crate) struct Watchdog {
    watched: Mutex<BTreeMap<ShardId, WatchedShard>>,
    altered: watch::Sender<Altered>,
    /// Whether the tables of all shards are published, and the slot is there.
    published: AtomicBool,
    /// Whether a follower reads the slot.
    followed: AtomicBool,
}

/// A shard as it was when the target was built.
#[derive(Clone)]
struct WatchedShard {
    /// The OID of its schema at the source, which a fence does not change.
    schema: u32,
    original: Original,
}

/// What is wrong with the slot of a group.
#[derive(Clone, Copy, Debug)]
pub(in crate::mover) enum SlotTrouble {
    /// It keeps more WAL than it may.
    TooMuch { kept: u64, limit: u64 },
    /// Something else has dropped it, or its server has invalidated it: what was copied cannot be
    /// brought up to date.
    Lost(&'static str),
}

impl Watchdog {
    pub(in crate::mover) fn new() -> Watchdog {
        Watchdog {
            watched: Mutex::default(),
            altered: watch::Sender::new(Altered::new()),
            published: AtomicBool::new(false),
            followed: AtomicBool::new(false),
        }
    }

    /// The tables of all shards are published from now on, and the slot is there: both must stay
    /// so.
    pub(in crate::mover) fn watch_publication(&self) {
        self.published.store(true, Ordering::SeqCst);
    }

    /// The slot is read from now on. Whether one that a promoted standby has synchronized is whole,
    /// its reader finds out.
    pub(in crate::mover) fn leave_promotions_to_the_reader(&self) {
        self.followed.store(true, Ordering::SeqCst);
    }

    /// Publication and slot are about to be dropped by this mover.
    pub(in crate::mover) fn let_publication_go(&self) {
        self.published.store(false, Ordering::SeqCst);
    }

    /// Watches over this shard from now on.
    pub(in crate::mover) fn watch_over(&self, shard: ShardId, schema: u32, built: &Blueprint) {
        self.watched().insert(
            shard,
            WatchedShard {
                schema,
                original: built.original.clone(),
            },
        );
    }

    fn watched(&self) -> MutexGuard<'_, BTreeMap<ShardId, WatchedShard>> {
        // A panic elsewhere never leaves the map half changed.
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops watching a shard: what happens to its old copy does not matter.
    pub(in crate::mover) fn let_go(&self, shard: ShardId) {
        self.watched().remove(&shard);
    }

    /// The shards that were altered, as they are found.
    pub(in crate::mover) fn found(&self) -> watch::Receiver<Altered> {
        self.altered.subscribe()
    }

    /// Waits until the shard is found altered, and gives the error. Never returns while it is
    /// unchanged.
    ///
    /// # Cancel safety
    /// May be dropped and called again.
    pub(in crate::mover) async fn altered(&self, shard: ShardId) -> Error {
        altered(&self.altered.subscribe(), shard).await
    }

    /// Reports once that this shard was altered.
    fn report_once(&self, shard: ShardId, what: String) {
        self.let_go(shard);
        self.altered
            .send_modify(|altered| drop(altered.insert(shard, what)));
    }

    /// Checks until the slot keeps more than it may, or is lost. It has a connection of its own,
    /// which is opened again when it is lost.
    pub(in crate::mover) async fn watch(
        &self,
        hosts: &Hosts,
        source: &HostName,
        slot: &str,
        wal_max: Option<u64>,
    ) -> SlotTrouble {
        let (mut session, mut next) = (None, None);
        loop {
            match self
                .look_once(&mut session, &mut next, hosts, source, slot, wal_max)
                .await
            {
                Ok(Some(trouble)) => return trouble,
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%source, error = chain(&error), "the watchdog of a move cannot \
                        check");
                    session = None;
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look_once(
        &self,
        session: &mut Option<Session>,
        next: &mut Option<ShardId>,
        hosts: &Hosts,
        source: &HostName,
        slot: &str,
        wal_max: Option<u64>,
    ) -> Result<Option<SlotTrouble>, Error> {
        let session = match session {
            Some(session) => session,
            None => session.insert(hosts.open_new(source).await?),
        };
        let state = slot::slot_state(session, slot).await?;
        let lost = match &state {
            Some(state) => state.lost.filter(|lost| {
                *lost != slot::OF_A_FORMER_PRIMARY || !self.followed.load(Ordering::SeqCst)
            }),
            None => Some("gone"),
        };
        // Read after the slot: this mover announces that it is about to drop it before it does.
        if let Some(lost) = lost.filter(|_| self.published.load(Ordering::SeqCst)) {
            return Ok(Some(SlotTrouble::Lost(lost)));
        }
        if let (Some(wal_max), Some(state)) = (wal_max, state) {
            let limit = wal_limit(session, wal_max).await?;
            let kept = u64::try_from(state.kept_bytes).unwrap_or(0);
            if kept > limit {
                return Ok(Some(SlotTrouble::TooMuch { kept, limit }));
            }
        }
        // All shards are checked at once: until such a table is no longer published, its UPDATE and
        // DELETE fail.
        for (schema, table) in slot::unnamed(session, slot).await? {
            let shard = self
                .watched()
                .iter()
                .find(|(_, watched)| watched.schema == schema)
                .map(|(shard, _)| *shard);
            if let Some(shard) = shard {
                self.report_once(
                    shard,
                    format!("{table} has lost the key that identifies its rows"),
                );
            }
        }
        let watched: Vec<(ShardId, WatchedShard)> = {
            let first = next.take().map_or(Bound::Unbounded, Bound::Included);
            self.watched()
                .range((first, Bound::Unbounded))
                .map(|(shard, watched)| (*shard, watched.clone()))
                .collect()
        };
        let began = Instant::now();
        for (shard, was) in watched {
            if began.elapsed() > AT_MOST {
                *next = Some(shard);
                break;
            }
            if self.published.load(Ordering::SeqCst) {
                let gap = slot::gap(session.client.client(), slot, was.schema).await;
                if let Some(gap) =
                    gap.map_err(|error| session.failed("looking at the publication", error))?
                {
                    self.report_once(shard, gap);
                    continue;
                }
            }
            let mut original = was.original;
            if let Some(alteration) = original.alteration(session, was.schema).await? {
                self.report_once(shard, alteration.describe().to_owned());
            } else if let Some(watched) = self.watched().get_mut(&shard) {
                watched.original = original;
            }
        }
        Ok(None)
    }
}

/// The most WAL that a slot of ours may keep on a server: the requested limit, but at most nine
/// tenths of what the server keeps before it gives up the slot.
///
/// Locks: none.
pub(in crate::mover) async fn wal_limit(source: &Session, wal_max: u64) -> Result<u64, Error> {
    let sql = "SELECT setting::bigint FROM pg_settings WHERE name = 'max_slot_wal_keep_size'";
    let rows = source
        .rows("reading how much WAL a slot may keep", sql, &[])
        .await?;
    let setting = rows.first().map(|row| row.get::<_, i64>(0)).transpose()?;
    let mebibytes = setting.and_then(|setting| u64::try_from(setting).ok());
    Ok(mebibytes.map_or(wal_max, |mebibytes| wal_max.min((mebibytes << 20) / 10 * 9)))
}
