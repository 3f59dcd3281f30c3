//! The workers that copy all shards of a move from one host to another at the same time.
//!
//! The work is shared out in bundles of chunks, those of the largest tables first: so one large
//! table keeps all workers as busy as many small shards do. Once the last chunk of a table is
//! there, its indexes are built while others are still copied. A shard that fails does not stop the
//! others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;

use crate::backoff::Backoff;
use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::SessionPurpose;
use crate::mover::control::session::Session;
use crate::mover::copy::signals::{Altered, altered};
use crate::mover::protocol::error::{Error, LOCKED_MAX};
use crate::mover::protocol::options::{CHUNK_BYTES, Event, Observer, Options};
use crate::mover::protocol::throttle::Throttle;
use crate::shard::ShardId;

use crate::mover::copy::build::{Builds, build};
use crate::mover::copy::chunk::{CopiedChunk, copy};
use crate::mover::copy::cut::{Chunk, chunks, cut};
use crate::mover::copy::{Route, ShardCopy};

/// How to copy.
#[derive(Clone)]
pub(crate) struct CopyOptions {
    pub(crate) route: Route,
    /// The statements that run on the tables of each shard as soon as their rows are there.
    pub(crate) builds: BTreeMap<ShardId, Builds>,
    pub(crate) throttle: Throttle,
    /// Becomes true to stop the copy.
    pub(crate) stop: watch::Receiver<bool>,
    /// The shards that were altered, so that their copies are worthless.
    pub(crate) altered: watch::Receiver<Altered>,
    pub(crate) observer: Observer,
    /// How many chunks of which size are copied at the same time, each by a connection to either
    /// host.
    pub(crate) options: Arc<Options>,
}

/// How often a bundle is tried when a connection is lost.
const ATTEMPTS: u32 = 8;

/// For how long it is tried at least while connections are lost, or none can be had: a host that
/// restarts with much to write takes a while.
const DISCONNECTED_MAX: Duration = Duration::from_secs(60);

/// The pauses between two tries.
const PAUSES: Backoff = Backoff {
    first: Duration::from_millis(100),
    max: Duration::from_millis(1600),
    jitter: Backoff::NO_JITTER,
};

/// The most chunks of one bundle: this many tables are locked, and this many statements run, in one
/// transaction.
const BUNDLE_MAX: usize = 64;

/// A chunk smaller than this, in bytes, does not justify a transaction of its own.
const SMALL: u64 = 1 << 20;

/// Copies what these shards lack, and builds on their tables. Returns for each shard what it has
/// then, or its error, and when the last chunk was copied, if any was missing.
///
/// # Cancel safety
/// If dropped, the workers end; finished chunks stay, and the others are as if they had not been
/// begun.
pub(crate) async fn copy_all(
    hosts: &Hosts,
    shards: Vec<ShardCopy>,
    how: &CopyOptions,
) -> (Vec<(ShardId, Result<CopiedChunk, Error>)>, Option<Instant>) {
    let parts = shards.iter().map(|_| Progress::default()).collect();
    let tasks = (0..shards.len()).map(Task::Cut).collect();
    let desk = Mutex::new(Desk {
        parts,
        tasks,
        ..Desk::default()
    });
    let all = Arc::new(All {
        hosts: hosts.clone(),
        how: how.clone(),
        shards,
        desk,
        changed: Notify::new(),
        full: watch::Sender::new(None),
    });
    work(&all).await;
    {
        let mut desk = all.desk();
        let mut bundles = std::mem::take(&mut desk.bundles);
        // The indexes of a large table take long, so it is copied first, and the rest while they
        // are built.
        bundles.sort_by_key(|bundle| std::cmp::Reverse((bundle.of_table, bundle.size)));
        desk.tasks = std::mem::take(&mut desk.ripe).into();
        desk.tasks.extend(
            bundles
                .into_iter()
                .map(|bundle| Task::Copy(bundle.shard, bundle.chunks)),
        );
    }
    work(&all).await;
    let mut desk = all.desk();
    let parts = std::mem::take(&mut desk.parts);
    let ends = all
        .shards
        .iter()
        .zip(parts)
        .map(|(work, part)| (work.shard(), all.end(part, work.shard())))
        .collect();
    (ends, desk.last_chunk)
}

async fn work(all: &Arc<All>) {
    let mut workers = JoinSet::new();
    for _ in 0..all.how.options.copy_jobs.max(1) {
        workers.spawn(worker(Arc::clone(all)));
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            // The task that it was working on is not done; the shard of the task reports that.
            tracing::error!(%error, "a worker of the copy ended");
        }
    }
}

struct All {
    hosts: Hosts,
    how: CopyOptions,
    shards: Vec<ShardCopy>,
    desk: Mutex<Desk>,
    /// Notifies that there may be more tasks, or that there will be none.
    changed: Notify,
    /// The error of the target's server if it has no disk space left: then all workers end, because
    /// each would only take what others there need.
    full: watch::Sender<Option<String>>,
}

/// What the workers share.
#[derive(Default)]
struct Desk {
    /// In the order of the shards.
    parts: Vec<Progress>,
    tasks: VecDeque<Task>,
    /// How many workers are on a task, from which others may follow.
    busy: usize,
    bundles: Vec<Bundle>,
    /// What can be built before anything is copied.
    ripe: Vec<Task>,
    last_chunk: Option<Instant>,
}

/// Chunks that are copied together.
struct Bundle {
    shard: usize,
    chunks: Vec<Chunk>,
    /// In bytes, roughly.
    size: u64,
    /// The size of the largest table that it has a chunk of.
    of_table: u64,
}

/// How far a shard is.
#[derive(Default)]
struct Progress {
    /// By table, how many chunks are missing, and what was copied. `None`: not cut yet.
    tables: Option<BTreeMap<String, (usize, CopiedChunk)>>,
    failed: Option<Error>,
}

#[derive(Clone)]
enum Task {
    Cut(usize),
    Copy(usize, Vec<Chunk>),
    /// Keys and indexes of these tables, which are completely copied.
    Build(usize, Vec<String>),
}

impl Task {
    fn shard(&self) -> usize {
        let (Task::Cut(at) | Task::Copy(at, _) | Task::Build(at, _)) = self;
        *at
    }
}

/// A worker that is on a task.
struct Busy<'a>(&'a All);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.desk().busy -= 1;
        self.0.changed.notify_waiters();
    }
}

impl Progress {
    fn end(self, shard: ShardId) -> Result<CopiedChunk, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let tables = self.tables.ok_or(Error::Interrupted { shard })?;
        if tables.values().any(|(missing, _)| *missing > 0) {
            return Err(Error::Interrupted { shard });
        }
        let add = |sum: CopiedChunk, (_, one): &(usize, CopiedChunk)| CopiedChunk {
            rows: sum.rows + one.rows,
            bytes: sum.bytes + one.bytes,
        };
        Ok(tables.values().fold(CopiedChunk { rows: 0, bytes: 0 }, add))
    }
}

impl All {
    /// What a shard has, or why it has not all.
    fn end(&self, part: Progress, shard: ShardId) -> Result<CopiedChunk, Error> {
        match (part.end(shard), &*self.full.borrow()) {
            (Err(Error::Interrupted { .. }), Some(message)) => Err(Error::TargetFull {
                shard,
                host: self.how.route.target.clone(),
                message: message.clone(),
                left: None,
            }),
            (end, _) => end,
        }
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next task. Waits while there is none and other workers may still add some. `None`: there
    /// will be none.
    async fn next(&self) -> Option<(Task, Busy<'_>)> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            // From here on no notification is missed.
            changed.as_mut().enable();
            {
                let mut desk = self.desk();
                while let Some(task) = desk.tasks.pop_front() {
                    if desk.parts[task.shard()].failed.is_none() {
                        desk.busy += 1;
                        return Some((task, Busy(self)));
                    }
                }
                if desk.busy == 0 {
                    return None;
                }
            }
            changed.await;
        }
    }

    async fn open(&self, shard: ShardId) -> Result<(Session, Session), Error> {
        let route = &self.how.route;
        let (source, target) = tokio::try_join!(
            self.hosts.open(&route.source),
            self.hosts.open(&route.target)
        )?;
        Ok((source.for_shard(shard), target.for_shard(shard)))
    }

    async fn perform(
        &self,
        sessions: &mut Option<(Session, Session)>,
        task: &Task,
    ) -> Result<(), Error> {
        let at = task.shard();
        let work = &self.shards[at];
        let name = work.hold.session_name(SessionPurpose::Shard);
        let (source, target) = match sessions.take() {
            Some((source, target)) => (
                source.for_shard(work.shard()),
                target.for_shard(work.shard()),
            ),
            None => self.open(work.shard()).await?,
        };
        match task {
            Task::Cut(_) => {
                cut(&source, &target, work, &self.how.options).await?;
                self.how.options.at("after bounds")?;
                self.sort_out(at, chunks(&source, &target, work).await?);
            }
            Task::Copy(_, chunks) => {
                // A pause may be long, so it comes before the snapshot is taken.
                self.how.throttle.go().await;
                let throttle = &self.how.throttle;
                let tell = |bytes| {
                    self.how.observer.notify(Event::Copying {
                        shard: work.shard(),
                        bytes,
                    })
                };
                let route = (&source, &target);
                match copy(
                    route,
                    work,
                    chunks,
                    &name,
                    &self.how.options,
                    throttle,
                    tell,
                )
                .await?
                {
                    Some(copied) => {
                        self.how.options.at("after a chunk")?;
                        self.note(at, chunks, &copied);
                    }
                    // One of the chunks was copied by another worker or mover, so each is tried by
                    // itself.
                    None if chunks.len() > 1 => {
                        let single = chunks
                            .iter()
                            .map(|chunk| Task::Copy(at, vec![chunk.clone()]));
                        self.desk().tasks.extend(single);
                    }
                    None => self.note(at, chunks, &[CopiedChunk { rows: 0, bytes: 0 }]),
                }
            }
            Task::Build(_, tables) => {
                self.how.throttle.go().await;
                if let Some(builds) = self.how.builds.get(&work.shard()) {
                    build(&target, work, tables, builds, &name, &self.how.options).await?;
                }
            }
        }
        // They are given back only now: after an error both are in transactions.
        *sessions = Some((source, target));
        Ok(())
    }

    /// Makes bundles of the missing chunks: those of small tables together, those of large ones
    /// each by itself.
    fn sort_out(&self, shard: usize, chunks: Vec<Chunk>) {
        let mut tables: BTreeMap<String, (usize, CopiedChunk)> = BTreeMap::new();
        let mut sizes: BTreeMap<String, u64> = BTreeMap::new();
        for chunk in &chunks {
            *sizes.entry(chunk.table.clone()).or_default() += chunk.estimate;
        }
        // Even a small shard is shared out among all workers.
        let share = sizes.values().sum::<u64>() / self.how.options.copy_jobs.max(1) as u64;
        let share = share
            .clamp(SMALL, CHUNK_BYTES)
            .min(self.how.options.chunk_bytes)
            .min(self.how.options.paced_bytes().unwrap_or(u64::MAX));
        let mut bundles: Vec<Vec<Chunk>> = Vec::new();
        let mut small: (Vec<Chunk>, u64) = Default::default();
        for chunk in chunks {
            let (missing, sum) = tables
                .entry(chunk.table.clone())
                .or_insert((0, CopiedChunk { rows: 0, bytes: 0 }));
            if let Some((rows, bytes)) = chunk.copied {
                *sum = CopiedChunk {
                    rows: sum.rows + rows,
                    bytes: sum.bytes + bytes,
                };
                continue;
            }
            *missing += 1;
            if small.1 + chunk.estimate > share || small.0.len() == BUNDLE_MAX {
                bundles.push(std::mem::take(&mut small.0));
                small.1 = 0;
            }
            small.1 += chunk.estimate;
            small.0.push(chunk);
        }
        bundles.push(small.0);
        let bundle = |chunks: Vec<Chunk>| {
            let of_table = chunks
                .iter()
                .filter_map(|chunk| sizes.get(&chunk.table))
                .max()
                .copied()
                .unwrap_or(0);
            Bundle {
                shard,
                size: chunks.iter().map(|chunk| chunk.estimate).sum(),
                chunks,
                of_table,
            }
        };
        let whole: Vec<(String, CopiedChunk)> = tables
            .iter()
            .filter(|(_, (missing, _))| *missing == 0)
            .map(|(table, (_, copied))| (table.clone(), *copied))
            .collect();
        let ripe = self.ripe(shard, whole);
        let mut desk = self.desk();
        desk.parts[shard].tables = Some(tables);
        desk.ripe.extend(ripe);
        desk.bundles.extend(
            bundles
                .into_iter()
                .filter(|chunks| !chunks.is_empty())
                .map(bundle),
        );
    }

    /// What can be built now that all rows of these tables are there: each large table by itself.
    fn ripe(&self, shard: usize, whole: Vec<(String, CopiedChunk)>) -> Vec<Task> {
        let Some(builds) = self.how.builds.get(&self.shards[shard].shard()) else {
            return Vec::new();
        };
        let to_build = whole
            .into_iter()
            .filter(|(table, _)| builds.contains_key(table));
        let (small, large): (Vec<_>, Vec<_>) =
            to_build.partition(|(_, copied)| copied.bytes < SMALL);
        let names = |tables: &[(String, CopiedChunk)]| {
            tables.iter().map(|(table, _)| table.clone()).collect()
        };
        let bunches = large.chunks(1).chain(small.chunks(BUNDLE_MAX));
        bunches
            .map(|tables| Task::Build(shard, names(tables)))
            .collect()
    }

    fn note(&self, shard: usize, chunks: &[Chunk], copied: &[CopiedChunk]) {
        let mut whole = Vec::new();
        {
            let mut desk = self.desk();
            desk.last_chunk = Some(Instant::now());
            let Some(tables) = desk.parts[shard].tables.as_mut() else {
                return;
            };
            for (chunk, one) in chunks.iter().zip(copied) {
                let Some((missing, sum)) = tables.get_mut(&chunk.table) else {
                    continue;
                };
                *missing = missing.saturating_sub(1);
                *sum = CopiedChunk {
                    rows: sum.rows + one.rows,
                    bytes: sum.bytes + one.bytes,
                };
                if *missing == 0 {
                    whole.push((chunk.table.clone(), *sum));
                }
            }
        }
        for task in self.ripe(shard, whole.clone()) {
            self.desk().tasks.push_front(task);
        }
        for (table, CopiedChunk { rows, bytes }) in whole {
            let shard = self.shards[shard].shard();
            self.how.observer.notify(Event::TableCopied {
                shard,
                table,
                rows,
                bytes,
            });
        }
    }
}

async fn worker(all: Arc<All>) {
    let mut stop = all.how.stop.clone();
    let stopped = async {
        // An error means that a stop cannot be requested any more.
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let working = async {
        let mut sessions = None;
        while let Some((task, busy)) = all.next().await {
            if let Err(error) = persist(&all, &mut sessions, &task).await {
                if let Some(message) = error.full_disk(&all.how.route.target) {
                    all.full.send_replace(Some(message));
                }
                all.desk().parts[task.shard()].failed.get_or_insert(error);
            }
            drop(busy);
        }
    };
    let mut full = all.full.subscribe();
    tokio::select! {
        () = stopped => (),
        _ = full.wait_for(Option::is_some) => (),
        () = working => (),
    }
}

/// Runs a task; if it fails for a temporary reason, tries again with growing pauses.
async fn persist(
    all: &All,
    sessions: &mut Option<(Session, Session)>,
    task: &Task,
) -> Result<(), Error> {
    let (mut attempt, locked_until) = (1, Instant::now() + LOCKED_MAX);
    let mut disconnected = None;
    let shard = all.shards[task.shard()].shard();
    loop {
        let outcome = tokio::select! {
            outcome = all.perform(sessions, task) => outcome,
            // The sessions are in transactions; those end when the sessions are dropped.
            error = altered(&all.how.altered, shard) => Err(error),
        };
        match outcome {
            Err(error)
                if (attempt < ATTEMPTS && error.is_passing())
                    || (Instant::now() < locked_until && error.is_lock())
                    || (error.is_disconnect() && is_within(&mut disconnected)) =>
            {
                tracing::debug!(attempt, %error, "a chunk is tried again");
                tokio::time::sleep(PAUSES.pause(attempt - 1)).await;
                attempt += 1;
            }
            ended => return ended,
        }
    }
}

/// Whether connections were lost for the first time less than [`DISCONNECTED_MAX`] ago.
fn is_within(since: &mut Option<Instant>) -> bool {
    since.get_or_insert_with(Instant::now).elapsed() < DISCONNECTED_MAX
}
