//! The workers that copy all shards of a move from one host to another, beside each other.
//!
//! Bundles of pieces are what is shared out, the largest first: so one large table keeps all workers as busy as many small shards
//! do. A shard that fails does not stop the others.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::mover::error::Error;
use crate::mover::guard::{Altered, altered};
use crate::mover::journal::Signed;
use crate::mover::options::{Event, Observer, Options};
use crate::mover::session::{Hosts, Session};
use crate::mover::throttle::Throttle;
use crate::pg::state;
use crate::shard::ShardId;

use super::copy::{Copied, copy};
use super::plan::{Piece, cut, pieces};
use super::{Route, ShardCopy};

/// How to copy.
#[derive(Clone)]
pub(crate) struct CopyOptions {
    pub(crate) route: Route,
    /// How many pieces are copied at the same time; each takes a connection to either host.
    pub(crate) jobs: usize,
    /// What a piece should have: [`CHUNK_BYTES`](super::plan::CHUNK_BYTES).
    pub(crate) chunk_bytes: u64,
    pub(crate) throttle: Throttle,
    /// True: stop where you are.
    pub(crate) stop: watch::Receiver<bool>,
    /// The shards whose copies are worth nothing any more.
    pub(crate) altered: watch::Receiver<Altered>,
    pub(crate) observer: Observer,
    /// Whose failpoints are passed on the way.
    pub(crate) failpoints: Arc<Options>,
}

/// How often a bundle is tried when a lock is not to be had or a connection is lost.
const ATTEMPTS: u32 = 8;

/// The longest pause between two tries; the first is a sixteenth of it.
const PAUSE_MAX: Duration = Duration::from_millis(1600);

/// The most pieces of one bundle: as many tables are locked, and as many statements run, in one transaction.
const BUNDLE_MAX: usize = 64;

/// Copies all that is missing of these shards. Gives what each has then, or why it has not.
///
/// # Cancel safety
/// Dropped, the workers end; pieces that are finished stay, the others are as if they had not been begun.
pub(crate) async fn copy_all(
    hosts: &Hosts,
    shards: Vec<ShardCopy>,
    options: &CopyOptions,
) -> Vec<(ShardId, Result<Copied, Error>)> {
    let parts = shards.iter().map(|_| Part::default()).collect();
    let tasks = (0..shards.len()).map(Task::Cut).collect();
    let desk = Mutex::new(Desk { parts, tasks, bundles: Vec::new() });
    let all = Arc::new(All { hosts: hosts.clone(), options: options.clone(), shards, desk });
    work(&all).await;
    {
        let mut desk = all.desk();
        let mut bundles = std::mem::take(&mut desk.bundles);
        bundles.sort_by_key(|(_, pieces)| std::cmp::Reverse(pieces.iter().map(|piece| piece.estimate).sum::<u64>()));
        desk.tasks = bundles.into_iter().map(|(shard, pieces)| Task::Copy(shard, pieces)).collect();
    }
    work(&all).await;
    let mut desk = all.desk();
    let parts = std::mem::take(&mut desk.parts);
    all.shards.iter().zip(parts).map(|(work, part)| (work.shard(), part.end(work.shard()))).collect()
}

async fn work(all: &Arc<All>) {
    let mut workers = JoinSet::new();
    for _ in 0..all.options.jobs.max(1) {
        workers.spawn(worker(Arc::clone(all)));
    }
    while let Some(ended) = workers.join_next().await {
        if let Err(error) = ended {
            // What it had in hand is not done; its shard says so.
            tracing::error!(%error, "a worker of the copy ended");
        }
    }
}

struct All {
    hosts: Hosts,
    options: CopyOptions,
    shards: Vec<ShardCopy>,
    desk: Mutex<Desk>,
}

/// What the workers share.
struct Desk {
    /// In the order of the shards.
    parts: Vec<Part>,
    tasks: VecDeque<Task>,
    bundles: Vec<(usize, Vec<Piece>)>,
}

/// How far a shard is.
#[derive(Default)]
struct Part {
    /// How many pieces are missing, and what there is, by table. `None`: not cut yet.
    tables: Option<BTreeMap<String, (usize, Copied)>>,
    failed: Option<Error>,
}

#[derive(Clone)]
enum Task {
    Cut(usize),
    Copy(usize, Vec<Piece>),
}

impl Part {
    fn end(self, shard: ShardId) -> Result<Copied, Error> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let tables = self.tables.ok_or(Error::Interrupted { shard })?;
        if tables.values().any(|(missing, _)| *missing > 0) {
            return Err(Error::Interrupted { shard });
        }
        let add = |sum: Copied, (_, one): &(usize, Copied)| Copied {
            rows: sum.rows + one.rows,
            bytes: sum.bytes + one.bytes,
        };
        Ok(tables.values().fold(Copied { rows: 0, bytes: 0 }, add))
    }
}

impl All {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn next(&self) -> Option<Task> {
        let mut desk = self.desk();
        loop {
            let task = desk.tasks.pop_front()?;
            let (Task::Cut(shard) | Task::Copy(shard, _)) = &task;
            if desk.parts[*shard].failed.is_none() {
                return Some(task);
            }
        }
    }

    async fn open(&self, shard: ShardId) -> Result<(Session, Session), Error> {
        let route = &self.options.route;
        let (source, target) = tokio::try_join!(self.hosts.open(&route.source), self.hosts.open(&route.target))?;
        Ok((source.for_shard(shard), target.for_shard(shard)))
    }

    async fn perform(&self, sessions: &mut Option<(Session, Session)>, task: &Task) -> Result<(), Error> {
        let (Task::Cut(at) | Task::Copy(at, _)) = task;
        let work = &self.shards[*at];
        let (source, target) = match sessions.take() {
            Some((source, target)) => (source.for_shard(work.shard()), target.for_shard(work.shard())),
            None => self.open(work.shard()).await?,
        };
        match task {
            Task::Cut(_) => {
                cut(&source, &target, work, self.options.chunk_bytes).await?;
                self.options.failpoints.at("after bounds")?;
                self.sort_out(*at, pieces(&source, &target, work).await?);
            }
            Task::Copy(_, pieces) => {
                // Before the snapshot is taken: a pause may be long.
                self.options.throttle.go().await;
                let (name, throttle) = (work.hold.session_name(Signed::Shard), &self.options.throttle);
                let tell = |bytes| self.options.observer.tell(Event::Copying { shard: work.shard(), bytes });
                let route = (&source, &target);
                match copy(route, work, pieces, &name, &self.options.failpoints, throttle, tell).await? {
                    Some(copied) => {
                        self.options.failpoints.at("after a piece")?;
                        self.note(*at, pieces, &copied);
                    }
                    // Somebody did one of them: each for itself, then.
                    None if pieces.len() > 1 => {
                        let single = pieces.iter().map(|piece| Task::Copy(*at, vec![piece.clone()]));
                        self.desk().tasks.extend(single);
                    }
                    None => self.note(*at, pieces, &[Copied { rows: 0, bytes: 0 }]),
                }
            }
        }
        // Only now: after an error both are in transactions.
        *sessions = Some((source, target));
        Ok(())
    }

    /// Makes bundles of what is missing: small tables together, pieces of large ones each for itself.
    fn sort_out(&self, shard: usize, pieces: Vec<Piece>) {
        let mut tables: BTreeMap<String, (usize, Copied)> = BTreeMap::new();
        let mut bundles: Vec<Vec<Piece>> = Vec::new();
        let mut small: (Vec<Piece>, u64) = Default::default();
        for piece in pieces {
            let (missing, sum) = tables.entry(piece.table.clone()).or_insert((0, Copied { rows: 0, bytes: 0 }));
            if let Some((rows, bytes)) = piece.copied {
                *sum = Copied { rows: sum.rows + rows, bytes: sum.bytes + bytes };
                continue;
            }
            *missing += 1;
            if small.1 + piece.estimate > self.options.chunk_bytes || small.0.len() == BUNDLE_MAX {
                bundles.push(std::mem::take(&mut small.0));
                small.1 = 0;
            }
            small.1 += piece.estimate;
            small.0.push(piece);
        }
        bundles.push(small.0);
        let mut desk = self.desk();
        desk.parts[shard].tables = Some(tables);
        desk.bundles.extend(bundles.into_iter().filter(|bundle| !bundle.is_empty()).map(|bundle| (shard, bundle)));
    }

    fn note(&self, shard: usize, pieces: &[Piece], copied: &[Copied]) {
        let mut whole = Vec::new();
        {
            let mut desk = self.desk();
            let Some(tables) = desk.parts[shard].tables.as_mut() else { return };
            for (piece, one) in pieces.iter().zip(copied) {
                let Some((missing, sum)) = tables.get_mut(&piece.table) else { continue };
                *missing = missing.saturating_sub(1);
                *sum = Copied { rows: sum.rows + one.rows, bytes: sum.bytes + one.bytes };
                if *missing == 0 {
                    whole.push((piece.table.clone(), *sum));
                }
            }
        }
        for (table, Copied { rows, bytes }) in whole {
            let shard = self.shards[shard].shard();
            self.options.observer.tell(Event::TableCopied { shard, table, rows, bytes });
        }
    }
}

async fn worker(all: Arc<All>) {
    let mut stop = all.options.stop.clone();
    let stopped = async {
        // An error means that nobody can ask for a stop any more.
        if stop.wait_for(|stop| *stop).await.is_err() {
            std::future::pending::<()>().await;
        }
    };
    let working = async {
        let mut sessions = None;
        while let Some(task) = all.next() {
            if let Err(error) = persist(&all, &mut sessions, &task).await {
                let (Task::Cut(shard) | Task::Copy(shard, _)) = task;
                all.desk().parts[shard].failed.get_or_insert(error);
            }
        }
    };
    tokio::select! { () = stopped => (), () = working => () }
}

/// Does a task, again with growing pauses when it failed for a reason that passes.
async fn persist(all: &All, sessions: &mut Option<(Session, Session)>, task: &Task) -> Result<(), Error> {
    let mut attempt = 1;
    let (Task::Cut(at) | Task::Copy(at, _)) = task;
    let shard = all.shards[*at].shard();
    loop {
        let outcome = tokio::select! {
            outcome = all.perform(sessions, task) => outcome,
            // The sessions are in transactions: they end with this.
            error = altered(&all.options.altered, shard) => Err(error),
        };
        match outcome {
            Err(error) if attempt < ATTEMPTS && passes(&error) => {
                tracing::debug!(attempt, %error, "a piece is tried again");
                tokio::time::sleep(PAUSE_MAX.min(PAUSE_MAX / 16 * 2_u32.pow(attempt - 1))).await;
                attempt += 1;
            }
            ended => return ended,
        }
    }
}

fn passes(error: &Error) -> bool {
    match error {
        Error::Connect { .. } => true,
        Error::Database { source, .. } => source.is_closed() || source.code().is_some_and(state::is_transient),
        _ => false,
    }
}
