//! Asking a host about a shard: one question at a time, however many callers want to know.
//!
//! What may not break: a caller only gets an answer to a question that was asked after the caller wanted to know. An
//! older answer may be from before the very fence that the caller ran into.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::Mutex;
use tokio_postgres::Row as SqlRow;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::error::LookUpError;
use super::host::Host;
use super::kind::Kind;
use super::session::{Lease, Prepare};
use super::stale::{Look, Row, State};
use crate::map::ShardEpoch;
use crate::shard::ShardId;

const LOOK: &str = "SELECT state, epoch, peer, deadline_in_ms, last_fence_ago_ms, open_token, incoming_epoch \
    FROM pgshard.look($1)";

/// How long a question may take, the connection included.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// What the callers have asked one host about one shard.
pub(super) struct Question {
    shard: ShardId,
    last: Mutex<Last>,
}

struct Last {
    /// When the last question was asked.
    asked: Instant,
    answer: Option<Result<Look, Arc<LookUpError>>>,
}

/// An answer and when its question was asked.
pub(super) struct Answered {
    pub(super) look: Look,
    pub(super) asked: Instant,
}

/// What a router may do about a move that stands still.
#[derive(Clone, Copy, Debug)]
pub(super) enum Mend {
    /// Swap back a fence whose deadline has passed.
    Expire,
    /// Open a shard whose move is decided.
    Open(Uuid),
}

impl Question {
    pub(super) fn new(shard: ShardId, now: Instant) -> Question {
        Question { shard, last: Mutex::new(Last { asked: now, answer: None }) }
    }

    /// Asks, or takes part in a question that begins from now on. Questions are at least `spacing` apart.
    ///
    /// # Cancel safety
    /// Whoever waits next asks instead.
    pub(super) async fn ask(&self, host: &Host, spacing: Duration) -> Result<Answered, Arc<LookUpError>> {
        let wanted = Instant::now();
        let mut last = self.last.lock().await;
        if last.asked < wanted || last.answer.is_none() {
            // Callers that come while this one holds back share its answer: they want it before it is asked.
            let since = last.answer.is_some().then(|| last.asked.elapsed());
            if let Some(early) = since.and_then(|since| spacing.checked_sub(since)) {
                tokio::time::sleep(early).await;
            }
            let asked = Instant::now();
            host.count_look_up();
            let answer = match tokio::time::timeout(ANSWER_MAX, self.look(host)).await {
                Ok(answer) => answer,
                Err(_) => Err(LookUpError::TimedOut(ANSWER_MAX)),
            };
            *last = Last { asked, answer: Some(answer.map_err(Arc::new)) };
        }
        match &last.answer {
            Some(Ok(look)) => Ok(Answered { look: look.clone(), asked: last.asked }),
            Some(Err(error)) => Err(error.clone()),
            None => unreachable!("the answer was asked for above"),
        }
    }

    /// Does something about what the answer `seen` said, unless somebody has asked again since: then it may be done.
    /// True if this call did it.
    pub(super) async fn mend(&self, host: &Host, seen: Instant, mend: Mend) -> Result<bool, LookUpError> {
        let mut last = self.last.lock().await;
        if last.asked > seen {
            return Ok(false);
        }
        // Whatever comes of it, what was seen is neither acted upon twice nor told to anybody else.
        *last = Last { asked: Instant::now(), answer: None };
        match tokio::time::timeout(ANSWER_MAX, self.act(host, mend)).await {
            Ok(done) => done,
            Err(_) => Err(LookUpError::TimedOut(ANSWER_MAX)),
        }
    }

    async fn look(&self, host: &Host) -> Result<Look, LookUpError> {
        let shard = self.shard.as_i32();
        let params: [&(dyn ToSql + Sync); 1] = [&shard];
        let mut tries = 0;
        loop {
            tries += 1;
            let mut lease = host.control().await?;
            match lease.run::<Vec<SqlRow>>(LOOK, Kind::Read, &params, Prepare::Once).await {
                Ok(rows) => return read(rows.first().ok_or_else(|| LookUpError::Answer("no row".to_owned()))?),
                // A connection that died while it was idle is found out by its first use; a later one is new.
                Err(failed) if failed.lost(&lease.session().connection) && tries <= Host::CONTROL_SIZE => {
                    lease.discard()
                }
                Err(failed) => return Err(LookUpError::Statement(failed.error)),
            }
        }
    }

    async fn act(&self, host: &Host, mend: Mend) -> Result<bool, LookUpError> {
        let mut lease = host.control().await?;
        let acted = self.act_on(&mut lease, mend).await;
        if acted.is_err() {
            lease.discard();
        }
        acted
    }

    async fn act_on(&self, lease: &mut Lease, mend: Mend) -> Result<bool, LookUpError> {
        let shard = self.shard.as_i32();
        // The row may be in the hands of the mover, who is then at it already. What the role's transactions are otherwise
        // does not matter: a role that only reads can end a dead mover's fence as well.
        lease
            .begin("BEGIN ISOLATION LEVEL READ COMMITTED, READ WRITE; SET LOCAL lock_timeout = '200ms'")
            .await
            .map_err(LookUpError::Statement)?;
        let ran: Result<Vec<SqlRow>, _> = match mend {
            Mend::Expire => lease.run("SELECT pgshard.expire_fence($1)", Kind::Write, &[&shard], Prepare::Once).await,
            Mend::Open(token) => {
                lease.run("SELECT pgshard.finish_open($1, $2)", Kind::Write, &[&shard, &token], Prepare::Once).await
            }
        };
        let rows = ran.map_err(|failed| LookUpError::Statement(failed.error))?;
        lease.end("COMMIT").await.map_err(LookUpError::Statement)?;
        Ok(rows.first().is_some_and(|row| row.get(0)))
    }
}

fn read(row: &SqlRow) -> Result<Look, LookUpError> {
    let strange = || LookUpError::Answer(format!("{row:?}"));
    let column = |error: tokio_postgres::Error| LookUpError::Answer(error.to_string());
    let epoch = |number: Option<i32>| match number {
        None => Ok(None),
        Some(number) => ShardEpoch::from_i32(number).map(Some).ok_or_else(strange),
    };
    let state: Option<&str> = row.try_get("state").map_err(column)?;
    let peer: Option<String> = row.try_get("peer").map_err(column)?;
    let deadline_in_ms: Option<f64> = row.try_get("deadline_in_ms").map_err(column)?;
    let last_fence_ago_ms: Option<f64> = row.try_get("last_fence_ago_ms").map_err(column)?;
    let token: Option<Uuid> = row.try_get("open_token").map_err(column)?;
    let incoming = epoch(row.try_get("incoming_epoch").map_err(column)?)?;
    let state = match state {
        None => return Ok(Look { row: None, incoming }),
        Some("serving") => State::Serving,
        Some("fenced") => State::Fenced { overdue: deadline_in_ms.is_some_and(|ms| ms < 0.0) },
        Some("moved") => State::Moved { peer: peer.ok_or_else(strange)?, token },
        Some(other) => return Err(LookUpError::Answer(other.to_owned())),
    };
    let epoch = epoch(row.try_get("epoch").map_err(column)?)?.ok_or_else(strange)?;
    // A clock that was set back makes a fence of the future: it counts as just now.
    let last_fence_ago = last_fence_ago_ms.map(|ms| Duration::try_from_secs_f64(ms / 1000.0).unwrap_or_default());
    Ok(Look { row: Some(Row { state, epoch, last_fence_ago }), incoming })
}
