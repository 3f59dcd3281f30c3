//! Looks up on a host which shards it owns. Callers share lookups, however many callers and shards
//! there are.
//!
//! Invariant: a caller only gets the result of a lookup that was sent after its request. An older
//! result may be from before the very fence that the caller ran into. There is a pause between
//! lookups, so that an application that sends only wrong statements cannot flood the host with
//! them.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Mutex as Turn;
use tokio::time::Instant;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::endpoint::Endpoint;
use super::error::LookUpError;
use super::lease::Lease;
use super::sql::{ShardStatement, Sql};
use super::stale::{MoveSignal, OwnershipLookup, OwnershipState, Row};
use super::statements::Prepare;
use crate::map::ShardEpoch;
use crate::shard::ShardId;

const LOOK: &str = "SELECT asked.shard, state, epoch, peer, deadline_in_ms, last_fence_ago_ms, \
    open_token, \
                    incoming_epoch FROM pg_catalog.unnest($1::int4[]) AS asked(shard), \
                    LATERAL pgshard.look(asked.shard)";

/// How long a question may take, the connection included.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// The most shards in one lookup. The next lookup covers the others.
const SHARDS_MAX: usize = 512;

/// The lookups at one host.
pub(super) struct OwnershipLookups {
    /// Callers that met a signpost. A move causes about one question of theirs, and the answer ends
    /// a pause, so they are hardly held back.
    signposts: Callers,
    /// Callers with errors that may just as well be the application's own. Their lookups are
    /// separate, so that they never delay the others.
    ambiguous: Callers,
    /// For each shard with a stalled move: when a call last tried to repair that. A call holds the
    /// lock while it tries. At most N entries.
    mending: Mutex<HashMap<ShardId, Arc<Turn<Option<Instant>>>>>,
    asked: AtomicU64,
}

/// The callers that look up for the same reason. They share lookups.
struct Callers {
    /// The least time between two questions.
    spacing: Duration,
    /// What the next question will be about. Never locked across a wait.
    wanted: Mutex<BTreeSet<ShardId>>,
    last: Turn<Last>,
}

#[derive(Default)]
struct Last {
    /// When the last lookup was sent.
    asked: Option<Instant>,
    /// The last result for each shard, at most N, and when its lookup was sent.
    answers: HashMap<ShardId, (Instant, Result<OwnershipLookup, Arc<LookUpError>>)>,
}

/// A result, and when its lookup was sent.
pub(super) struct LookUpResult {
    pub(super) lookup: OwnershipLookup,
    pub(super) asked: Instant,
}

/// What a router may do about a stalled move.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mend {
    /// Remove a fence that is past its deadline.
    Expire,
    /// Open a shard after its move was decided.
    Open(Uuid),
}

impl Callers {
    fn new(spacing: Duration) -> Callers {
        Callers {
            spacing,
            wanted: Mutex::default(),
            last: Turn::default(),
        }
    }

    fn want(&self, shard: ShardId) {
        self.wanted
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(shard);
    }

    /// The shards of the next question; `shard` is always among them.
    fn take(&self, shard: ShardId) -> Vec<ShardId> {
        let mut wanted = self.wanted.lock().unwrap_or_else(PoisonError::into_inner);
        wanted.remove(&shard);
        let mut taken = vec![shard];
        while taken.len() < SHARDS_MAX
            && let Some(next) = wanted.pop_first()
        {
            taken.push(next);
        }
        taken
    }
}

impl OwnershipLookups {
    /// Behind a signpost, the lookup is sent almost immediately.
    const SIGNPOST_SPACING: Duration = Duration::from_millis(1);
    /// Questions about what may be the application's own mistake can wait a little.
    const AMBIGUOUS_SPACING: Duration = Duration::from_millis(10);

    pub(super) fn new() -> OwnershipLookups {
        OwnershipLookups {
            signposts: Callers::new(Self::SIGNPOST_SPACING),
            ambiguous: Callers::new(Self::AMBIGUOUS_SPACING),
            mending: Mutex::default(),
            asked: AtomicU64::new(0),
        }
    }

    /// How many lookups were made so far.
    pub(super) fn lookup_count(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Looks up a shard, or joins a lookup that has not been sent yet.
    ///
    /// # Cancel safety
    /// The next waiting caller sends the lookup instead, for its own shard and for those that are
    /// still wanted.
    pub(super) async fn resolve(
        &self,
        host: &Endpoint,
        shard: ShardId,
        signal: MoveSignal,
    ) -> Result<LookUpResult, Arc<LookUpError>> {
        let callers = match signal {
            MoveSignal::Signpost => &self.signposts,
            MoveSignal::Ambiguous => &self.ambiguous,
        };
        let wanted = Instant::now();
        callers.want(shard);
        let mut last = callers.last.lock().await;
        let known = last
            .answers
            .get(&shard)
            .filter(|(asked, _)| *asked >= wanted);
        if known.is_none() {
            // Callers that arrive during this pause share the result, since the lookup is sent
            // after their requests.
            if let Some(early) = last
                .asked
                .and_then(|asked| callers.spacing.checked_sub(asked.elapsed()))
            {
                tokio::time::sleep(early).await;
            }
            let shards = callers.take(shard);
            let asked = Instant::now();
            last.asked = Some(asked);
            self.asked.fetch_add(1, Ordering::Relaxed);
            host.metrics.look_up(&host.name);
            let answer = match tokio::time::timeout(ANSWER_MAX, look_up(host, &shards)).await {
                Ok(answer) => answer.map_err(Arc::new),
                Err(_) => Err(Arc::new(LookUpError::TimedOut(ANSWER_MAX))),
            };
            match answer {
                Ok(lookups) => {
                    last.answers.extend(
                        lookups
                            .into_iter()
                            .map(|(shard, lookup)| (shard, (asked, Ok(lookup)))),
                    );
                }
                Err(error) => {
                    last.answers.extend(
                        shards
                            .into_iter()
                            .map(|shard| (shard, (asked, Err(error.clone())))),
                    );
                }
            }
        }
        match last
            .answers
            .get(&shard)
            .filter(|(asked, _)| *asked >= wanted)
        {
            Some((asked, Ok(lookup))) => Ok(LookUpResult {
                lookup: lookup.clone(),
                asked: *asked,
            }),
            Some((_, Err(error))) => Err(error.clone()),
            None => Err(Arc::new(LookUpError::Answer("no row".to_owned()))),
        }
    }

    /// Mends what the answer to the question sent at `seen` showed, unless another call has tried
    /// since then. True if this call did it.
    pub(super) async fn mend(
        &self,
        host: &Endpoint,
        shard: ShardId,
        seen: Instant,
        mend: Mend,
    ) -> Result<bool, LookUpError> {
        let turn = self
            .mending
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .entry(shard)
            .or_default()
            .clone();
        let mut mended = turn.lock().await;
        if mended.is_some_and(|mended| mended > seen) {
            return Ok(false);
        }
        let done = match tokio::time::timeout(ANSWER_MAX, act(host, shard, mend)).await {
            Ok(done) => done,
            Err(_) => Err(LookUpError::TimedOut(ANSWER_MAX)),
        };
        // Whatever the result, no call acts on the same answer again.
        *mended = Some(Instant::now());
        done
    }
}

async fn look_up(
    host: &Endpoint,
    shards: &[ShardId],
) -> Result<Vec<(ShardId, OwnershipLookup)>, LookUpError> {
    let shards: Vec<i32> = shards.iter().map(|shard| shard.as_i32()).collect();
    let rows = host.query_control(&Sql::new(LOOK), &[&shards]).await?;
    rows.iter().map(read).collect()
}

async fn act(host: &Endpoint, shard: ShardId, mend: Mend) -> Result<bool, LookUpError> {
    let mut lease = host.control().await?;
    let acted = act_on(&mut lease, shard.as_i32(), mend).await;
    if acted.is_err() {
        lease.discard();
    }
    acted
}

async fn act_on(lease: &mut Lease, shard: i32, mend: Mend) -> Result<bool, LookUpError> {
    // The short lock timeout: if the mover holds the row, it is working, and there is nothing to
    // repair. READ WRITE, because a role with transactions that are read only by default must be
    // able to remove a dead mover's fence too.
    lease
        .begin("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL lock_timeout = '200ms'")
        .await
        .map_err(LookUpError::Statement)?;
    let (text, token) = match mend {
        Mend::Expire => ("SELECT pgshard.expire_fence($1)", None),
        Mend::Open(token) => ("SELECT pgshard.finish_open($1, $2)", Some(token)),
    };
    let params: &[&(dyn ToSql + Sync)] = match &token {
        None => &[&shard],
        Some(token) => &[&shard, token],
    };
    let sql = Sql::new(text);
    let ran: Result<Vec<SqlRow>, _> = lease
        .run(ShardStatement::alone(&sql), params, Prepare::Once)
        .await;
    let rows = ran.map_err(|failed| LookUpError::Statement(failed.error))?;
    lease.commit().await.map_err(LookUpError::Statement)?;
    rows.first()
        .map_or(Ok(false), |row| row.try_get(0))
        .map_err(LookUpError::Statement)
}

fn read(row: &SqlRow) -> Result<(ShardId, OwnershipLookup), LookUpError> {
    let strange = || LookUpError::Answer(format!("{row:?}"));
    let column = |error: tokio_postgres::Error| LookUpError::Answer(error.to_string());
    let epoch = |number: Option<i32>| match number {
        None => Ok(None),
        Some(number) => ShardEpoch::from_i32(number).map(Some).ok_or_else(strange),
    };
    let shard: i32 = row.try_get("shard").map_err(column)?;
    let shard = ShardId::try_from(shard).map_err(|_| strange())?;
    let state: Option<&str> = row.try_get("state").map_err(column)?;
    let peer: Option<String> = row.try_get("peer").map_err(column)?;
    let deadline_in_ms: Option<f64> = row.try_get("deadline_in_ms").map_err(column)?;
    let last_fence_ago_ms: Option<f64> = row.try_get("last_fence_ago_ms").map_err(column)?;
    let token: Option<Uuid> = row.try_get("open_token").map_err(column)?;
    let incoming = epoch(row.try_get("incoming_epoch").map_err(column)?)?;
    let state = match state {
        None => {
            return Ok((
                shard,
                OwnershipLookup {
                    row: None,
                    incoming,
                },
            ));
        }
        Some("serving") => OwnershipState::Serving,
        Some("fenced") => OwnershipState::Fenced {
            overdue: deadline_in_ms.is_some_and(|ms| ms < 0.0),
        },
        Some("moved") => OwnershipState::Moved {
            peer: peer.ok_or_else(strange)?,
            token,
        },
        Some(other) => return Err(LookUpError::Answer(other.to_owned())),
    };
    let epoch = epoch(row.try_get("epoch").map_err(column)?)?.ok_or_else(strange)?;
    // If the clock was set back, the fence lies in the future. It then counts as just now.
    let last_fence_ago =
        last_fence_ago_ms.map(|ms| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default());
    Ok((
        shard,
        OwnershipLookup {
            row: Some(Row {
                state,
                epoch,
                last_fence_ago,
            }),
            incoming,
        },
    ))
}
