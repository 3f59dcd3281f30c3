//! What a call does between a try that failed and the next one: it queries hosts, waits, goes to
//! the other host, and finishes what a dead mover left. [`super::next`] decides what comes next,
//! and [`super::stale`] what a host's answer shows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::time::Instant;
use uuid::Uuid;

use super::error::{Error, LookUpError, Queue};
use super::host::Host;
use super::lease::Lease;
use super::metrics::Reason;
use super::next::{Answers, ErrorOrigin, Query, Retry, ServerRole, Step, TryHistory};
use super::ownership_lookup::{LookUpResult, Mend};
use super::routing::{Inner, Place};
use super::stale::{MoveSignal, PeerVerdict, Verdict, judge, judge_peer, pause};
use crate::backoff::Backoff;
use crate::map::{Placement, ShardEpoch};
use crate::shard::ShardId;

/// How long a router waits before it opens a shard itself after its move was decided but not
/// finished. A mover needs about a millisecond for that.
const OPEN_GRACE: Duration = Duration::from_millis(100);

/// How many hosts a call follows from signpost to signpost. Each has a larger epoch than the one
/// before, so that a circle ends too.
const HOPS_MAX: usize = 8;

/// One call's way through a move.
pub(super) struct Recovery<'r> {
    router: &'r Inner,
    shard: ShardId,
    /// When the first statement failed.
    since: Option<Instant>,
    /// Statements that were run again.
    rounds: u32,
    /// When a move was first found decided but not opened.
    unopened: Option<Instant>,
    /// Why the statement is run again.
    reason: Reason,
    /// Whether a statement met a signpost that cannot have been there.
    contradicted: bool,
}

/// Where a shard was found that was given to a host which this router does not know.
enum PeerSearch {
    /// A host serves it, and that was learned.
    Here,
    /// Another host was given it later.
    Onward(String, ShardEpoch, Option<Uuid>),
}

/// A try that is over, and the connection that it used.
pub(super) struct FinishedTry<'a> {
    pub(super) place: &'a Place,
    /// When its first statement was sent.
    pub(super) began: Instant,
    pub(super) lease: Option<Lease>,
    /// The session may remember a signpost.
    pub(super) remembers: bool,
}

impl FinishedTry<'_> {
    /// Closes the connection.
    pub(super) fn close(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.discard();
        }
    }

    /// Gives the connection back, unless its session may remember a signpost.
    pub(super) fn let_go(&mut self) {
        match self.remembers {
            true => self.close(),
            false => self.lease = None,
        }
    }
}

impl<'r> Recovery<'r> {
    pub(super) fn new(router: &'r Inner, shard: ShardId) -> Recovery<'r> {
        Recovery {
            router,
            shard,
            since: None,
            rounds: 0,
            unopened: None,
            reason: Reason::Error,
            contradicted: false,
        }
    }

    /// Runs the steps that `next` decides, until the call is worth another try (`None`) or over.
    /// The connection is still there at the end, unless something was waited for.
    ///
    /// # Errors
    /// When the time for retries is over, or no host answers.
    pub(super) async fn run<E>(
        &mut self,
        tried: &mut TryHistory,
        finished: &mut FinishedTry<'_>,
        next: impl Fn(TryHistory, Answers) -> Step<E>,
    ) -> Result<Option<E>, Error> {
        let mut answers = Answers::default();
        loop {
            match next(*tried, answers) {
                Step::End(end) => return Ok(Some(end)),
                Step::Query(Query::Role) => {
                    let is_standby = match &mut finished.lease {
                        Some(lease) => lease.is_on_standby().await,
                        None => false,
                    };
                    answers.role = Some(match is_standby {
                        true => ServerRole::Standby,
                        false => ServerRole::Primary,
                    });
                }
                Step::Query(Query::Origin(signal)) => {
                    let origin = self.origin(signal, finished.place, finished.began).await;
                    // If that cannot be found out, the move may have caused the error.
                    answers.origin = Some(origin.unwrap_or(ErrorOrigin::Move));
                }
                Step::Query(Query::Move(signal)) => {
                    if signal == MoveSignal::Signpost {
                        // The call will wait, and must not hold a connection meanwhile.
                        finished.let_go();
                    }
                    answers.origin = Some(self.follow(signal, finished).await?);
                }
                Step::Retry(retry) => {
                    tried.record(retry);
                    match (retry, finished.lease.take()) {
                        (Retry::AfterFailover, Some(lease)) => {
                            self.failed_over(finished.place, lease).await?;
                        }
                        (Retry::AfterConflict, lease) => {
                            drop(lease);
                            let round = tried.conflicts;
                            self.router.after_conflict(finished.place, round).await;
                        }
                        _ => {}
                    }
                    return Ok(None);
                }
            }
        }
    }

    /// Reads what caused the error of the failed statement, and does nothing else.
    async fn origin(
        &mut self,
        signal: MoveSignal,
        place: &Place,
        began: Instant,
    ) -> Result<ErrorOrigin, Error> {
        let _waiting = self.enter(&place.host)?;
        let answered = self.look_up(&place.host, signal).await?;
        Ok(
            match judge(signal, &answered.lookup, began.elapsed(), place.epoch) {
                Verdict::ApplicationError => ErrorOrigin::Application,
                _ => ErrorOrigin::Move,
            },
        )
    }

    /// Returns when another try is worth it, or at once when it is not. Before it waits for the
    /// shard it closes the try's connection, because the session may remember a signpost. It leaves
    /// the connection in place when the error is the application's.
    #[tracing::instrument(
        level = "debug",
        name = "pgshard.recover",
        skip_all,
        fields(shard = %self.shard, host = %finished.place.host.name),
    )]
    async fn follow(
        &mut self,
        signal: MoveSignal,
        finished: &mut FinishedTry<'_>,
    ) -> Result<ErrorOrigin, Error> {
        let FinishedTry { place, began, .. } = *finished;
        let _waiting = self.enter(&place.host)?;
        self.since.get_or_insert_with(Instant::now);
        place.host.metrics.move_signal(&place.host.name, signal);
        let mut closed = false;
        loop {
            let answered = self.look_up(&place.host, signal).await?;
            let verdict = self.verdict(signal, &answered, began.elapsed(), place.epoch);
            tracing::debug!(
                shard = %self.shard,
                host = %place.host.name,
                ?signal,
                ?verdict,
                "a statement met a move"
            );
            if matches!(verdict, Verdict::Wait | Verdict::Expire)
                && !std::mem::replace(&mut closed, true)
            {
                place.host.metrics.fence(&place.host.name);
            }
            if verdict == Verdict::ApplicationError {
                return Ok(ErrorOrigin::Application);
            }
            self.reason = Reason::of(signal, &verdict);
            finished.close();
            match verdict {
                Verdict::ApplicationError => return Ok(ErrorOrigin::Application),
                Verdict::NotHere => {
                    return Err(Error::NotHere {
                        shard: self.shard,
                        host: place.host.name.clone(),
                    });
                }
                Verdict::Retry { epoch } => {
                    self.learn(&place.host, epoch);
                    return self.look_up_again(&place.host).await;
                }
                Verdict::Wait => {
                    self.wait(&place.host, "it is being moved from there")
                        .await?
                }
                Verdict::Expire => {
                    if !self.mend(&place.host, &answered, Mend::Expire).await? {
                        self.wait(
                            &place.host,
                            "it was to be moved from there, and the mover has stopped",
                        )
                        .await?;
                    }
                }
                Verdict::Ask { peer, epoch, token } => {
                    if self.chase(peer, epoch, token).await? {
                        return self.look_up_again(&place.host).await;
                    }
                    self.wait(
                        &place.host,
                        "it has left there and is not open elsewhere yet",
                    )
                    .await?;
                }
            }
        }
    }

    /// What an answer means. A host that serves the shard, and has neither closed nor opened it
    /// since the statement began, had no signpost there. The first time that counts as a clock that
    /// was set; the second time `SH001` is the application's own word, of a function that raises
    /// it.
    fn verdict(
        &mut self,
        signal: MoveSignal,
        answered: &LookUpResult,
        ran: Duration,
        expected: ShardEpoch,
    ) -> Verdict {
        let verdict = judge(signal, &answered.lookup, ran, expected);
        let contradicted = signal == MoveSignal::Signpost
            && judge(MoveSignal::Ambiguous, &answered.lookup, ran, expected)
                == Verdict::ApplicationError;
        match contradicted && std::mem::replace(&mut self.contradicted, true) {
            true => Verdict::ApplicationError,
            false => verdict,
        }
    }

    /// After a statement found that its server is a standby, so that nothing was written. Returns
    /// when the statement is worth another try on a new connection; the first time at once.
    async fn failed_over(&mut self, place: &Place, lease: Lease) -> Result<(), Error> {
        let _waiting = self.enter(&place.host)?;
        self.since.get_or_insert_with(Instant::now);
        place.host.circuit.retire(lease.session().generation);
        lease.discard();
        tracing::debug!(shard = %self.shard, host = %place.host.name, "a primary is a standby now");
        self.rounds += 1;
        self.router.retries.fetch_add(1, Ordering::Relaxed);
        match self.rounds {
            1 => Ok(()),
            _ => self.wait(&place.host, "its server is a standby").await,
        }
    }

    /// Follows a shard that has moved. True when its new host was found and learned.
    async fn chase(
        &mut self,
        peer: String,
        epoch: ShardEpoch,
        token: Option<Uuid>,
    ) -> Result<bool, Error> {
        let (mut peer, mut epoch, mut token) = (peer, epoch, token);
        for _ in 0..HOPS_MAX {
            let Some(host) = self.router.host(&peer) else {
                // It may have left the cluster since, and its shards before it.
                match self.search(epoch).await {
                    Some(PeerSearch::Here) => return Ok(true),
                    Some(PeerSearch::Onward(next, at, key)) => {
                        (peer, epoch, token) = (next, at, key);
                        continue;
                    }
                    None => {
                        return Err(Error::UnknownHost {
                            shard: self.shard,
                            host: peer,
                        });
                    }
                }
            };
            let host = &*host;
            let answered = self.look_up(host, MoveSignal::Signpost).await?;
            match judge_peer(epoch, &answered.lookup) {
                PeerVerdict::Here { epoch } => {
                    self.learn(host, epoch);
                    return Ok(true);
                }
                PeerVerdict::Onward {
                    peer: next,
                    epoch: at,
                    token: key,
                } => (peer, epoch, token) = (next, at, key),
                PeerVerdict::Unopened => {
                    let since = *self.unopened.get_or_insert_with(Instant::now);
                    if let Some(token) = token.filter(|_| since.elapsed() >= OPEN_GRACE) {
                        self.mend(host, &answered, Mend::Open(token)).await?;
                    }
                    return Ok(false);
                }
                PeerVerdict::Wait => return Ok(false),
            }
        }
        Ok(false)
    }

    /// Queries every host that this router knows for a shard that was given to one that it does not
    /// know. The latest that is later than `epoch` counts; a host that does not answer is left out.
    fn search(&self, epoch: ShardEpoch) -> BoxFuture<'_, Option<PeerSearch>> {
        Box::pin(async move {
            let hosts: Vec<Arc<Host>> = self.router.hosts.load().values().cloned().collect();
            let asked = hosts.iter().map(|host| async move {
                let answered = self.look_up(host, MoveSignal::Signpost).await.ok()?;
                Some((host, judge_peer(epoch.next(), &answered.lookup)))
            });
            let mut latest: Option<(ShardEpoch, PeerSearch)> = None;
            for (host, verdict) in join_all(asked).await.into_iter().flatten() {
                let (at, found) = match verdict {
                    PeerVerdict::Here { epoch } => (epoch, PeerSearch::Here),
                    PeerVerdict::Onward { peer, epoch, token }
                        if self.router.host(&peer).is_some() =>
                    {
                        (epoch, PeerSearch::Onward(peer, epoch, token))
                    }
                    _ => continue,
                };
                if latest.as_ref().is_some_and(|(latest, _)| *latest >= at) {
                    continue;
                }
                if let PeerSearch::Here = found {
                    self.learn(host, at);
                }
                latest = Some((at, found));
            }
            latest.map(|(_, found)| found)
        })
    }

    /// Takes a place among the calls that wait for the shard. Their number is limited, so that
    /// neither their memory nor their return all at once does harm.
    fn enter(&self, host: &Host) -> Result<Waiting<'r>, Error> {
        let limit = self.router.options.waiters_per_shard;
        let router = self.router;
        let waiting = &router.waiting[usize::from(self.shard.get())];
        let place = Waiting(waiting);
        match waiting.fetch_add(1, Ordering::Relaxed) < limit {
            true => Ok(place),
            false => Err(Error::TooManyWaiting {
                shard: self.shard,
                host: host.name.clone(),
                queue: Queue::Move,
                limit,
            }),
        }
    }

    async fn look_up(&self, host: &Host, signal: MoveSignal) -> Result<LookUpResult, Error> {
        let asked = host
            .ownership_lookups
            .resolve(host, self.shard, signal)
            .await;
        asked.map_err(|source| Error::LookUp {
            shard: self.shard,
            host: host.name.clone(),
            source,
        })
    }

    /// Expires a fence or opens a shard; true if this call did it. When the server refuses,
    /// another client is at it.
    async fn mend(&self, host: &Host, seen: &LookUpResult, mend: Mend) -> Result<bool, Error> {
        match host
            .ownership_lookups
            .mend(host, self.shard, seen.asked, mend)
            .await
        {
            Ok(done) => {
                if done {
                    tracing::info!(shard = %self.shard, host = %host.name, ?mend, "finished what a \
                        mover left");
                }
                Ok(done)
            }
            Err(LookUpError::Statement(error)) if error.as_db_error().is_some() => {
                tracing::debug!(shard = %self.shard, host = %host.name, ?mend, %error, "another \
                    client is at it");
                Ok(false)
            }
            Err(error) => Err(Error::LookUp {
                shard: self.shard,
                host: host.name.clone(),
                source: Arc::new(error),
            }),
        }
    }

    fn learn(&self, host: &Host, epoch: ShardEpoch) {
        self.router.learn(
            self.shard,
            Placement {
                host: host.name.clone(),
                epoch,
            },
        );
    }

    /// The first try after a lookup is at once. Further tries wait, because hosts and signposts
    /// contradict each other then.
    async fn look_up_again(&mut self, host: &Host) -> Result<ErrorOrigin, Error> {
        self.rounds += 1;
        self.router.retries.fetch_add(1, Ordering::Relaxed);
        host.metrics.retry(&host.name, self.reason);
        if self.rounds > 1 {
            self.wait(host, "it answers as if it had moved").await?;
        }
        Ok(ErrorOrigin::Move)
    }

    async fn wait(&mut self, host: &Host, reason: &str) -> Result<(), Error> {
        let waited = self.since.get_or_insert_with(Instant::now).elapsed();
        let pause = pause(waited, fastrand::f64());
        if waited + pause > self.router.retry_for {
            return Err(Error::ShardUnavailable {
                shard: self.shard,
                host: host.name.clone(),
                waited_ms: waited.as_millis(),
                reason: reason.to_owned(),
            });
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }
}

/// The pauses before a transaction is run again after a conflict, of random length, so that the two
/// do not meet again.
const CONFLICT_PAUSES: Backoff = Backoff {
    first: Duration::from_millis(5),
    max: Duration::from_millis(500),
    jitter: (0.0, 1.0),
};

impl Inner {
    /// Waits before a transaction is run again that had a conflict with another one, the `round`th
    /// time.
    async fn after_conflict(&self, place: &Place, round: u32) {
        self.retries.fetch_add(1, Ordering::Relaxed);
        place.host.metrics.retry(&place.host.name, Reason::Conflict);
        tokio::time::sleep(CONFLICT_PAUSES.pause(round)).await;
    }
}

/// A call's place among those that wait for its shard.
struct Waiting<'r>(&'r AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
