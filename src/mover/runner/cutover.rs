//! The cut-over of a shard in an online move, one attempt: fence, drain, examine behind the fence,
//! decide and open.
//!
//! Invariant: behind the fence every wait has a limit, and whatever goes wrong there ends with the
//! source serving again. Everything that can be done before the swap is done before it.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use uuid::Uuid;

use crate::mover::definition::digest::CatalogDigest;
use crate::mover::definition::sequences::Presets;
use crate::mover::preflight::facts::{self, Lock, Servers};
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::error::Error;
use crate::mover::runner::audit;
use crate::mover::runner::driver::{Online, Patience};
use crate::mover::runner::permit::Permit;
use crate::mover::step::HELD;
use crate::mover::step::{Blueprint, ShardMove, SwapOutcome, token_hash};
use crate::mover::stream::follower::Follower;
use crate::mover::stream::watermark::write_watermark;

/// One attempt at the cut-over of a shard.
pub(in crate::mover) struct CutOver<'d> {
    work: &'d ShardMove<'d>,
    online: Online<'d>,
    /// The servers on which source and target were compared, if this mover has done that.
    compared_on: Option<&'d Servers>,
    built: &'d Blueprint,
    patience: Patience<'d>,
    done: AttemptState,
}

/// What an attempt has done, whatever its outcome.
#[derive(Default)]
pub(in crate::mover) struct AttemptState {
    /// When the pause began, if the shard was fenced.
    pub(in crate::mover) fenced_at: Option<Instant>,
    /// The attempt with the fence behind which it has checked the shard, and found nothing changed.
    pub(in crate::mover) looked: Option<i32>,
    /// The target as it was before it opened, for the audit.
    pub(in crate::mover) unopened: Option<audit::Target>,
}

/// How an attempt has ended.
pub(in crate::mover) enum Outcome {
    /// Everything was at the target, and the source was requested to decide, with this result.
    Decided(Result<(), Error>),
    /// A host has refused, because its state is not what the mover expected. The next observation
    /// shows it.
    Refused(String),
    /// The shard was not fenced. The next attempt may succeed.
    NotFenced(String),
    /// The fence could not be completed, and must be taken back. The next attempt may succeed.
    Held { attempt: i32, reason: String },
    /// The fence cannot be completed, and must be taken back.
    Broken { attempt: i32, error: Error },
}

impl<'d> CutOver<'d> {
    pub(in crate::mover) fn new(
        work: &'d ShardMove<'d>,
        online: Online<'d>,
        compared_on: Option<&'d Servers>,
        built: &'d Blueprint,
        patience: Patience<'d>,
    ) -> CutOver<'d> {
        CutOver {
            work,
            online,
            compared_on,
            built,
            patience,
            done: AttemptState::default(),
        }
    }

    /// What was done so far.
    pub(in crate::mover) fn done(self) -> AttemptState {
        self.done
    }

    /// Fences, and does everything that belongs behind the fence. On errors other than those of the
    /// outcome, the fence is left in place, and the mover leaves the shard.
    pub(in crate::mover) fn run(&mut self) -> BoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            let background = self.online.permits.background_permit().await;
            let Some(schema) =
                facts::schema_oid(&self.work.source, &self.work.names.schema).await?
            else {
                return Ok(Outcome::Refused("its schema does not exist".to_owned()));
            };
            let before = self.before_fence(schema).await?;
            self.done.unopened = Some(audit::Target::open(self.patience.context, self.work).await);
            drop(background);
            self.wait_for_locks(schema).await?;
            let permit = self
                .online
                .permits
                .acquire(&self.patience.context.hosts, self.work);
            let permit = self.patience.wait_for(permit).await?;
            if let Some(blockers) = self
                .patience
                .wait_for(self.work.hold_tables(permit.opening()))
                .await?
            {
                return Ok(Outcome::NotFenced(blockers));
            }
            let token = Uuid::new_v4();
            let presets = self.work.preset().await?;
            let _still = self.online.permits.quiesce().await;
            let fenced_at = Instant::now();
            let swapped = match self.work.swap(permit.gate(), token).await {
                Ok(Some(swapped)) => swapped,
                // The application is not blocked during this time.
                Ok(None) => return Ok(Outcome::NotFenced(HELD.to_owned())),
                // A table was created after the signpost was built, or the shard is not ours any
                // longer.
                Err(Error::Superseded { reason, .. }) => return Ok(Outcome::Refused(reason)),
                Err(error) => return Err(error),
            };
            self.done.fenced_at = Some(fenced_at);
            self.fenced(permit, swapped, token, &before, &presets).await
        })
    }

    /// Runs with the shard fenced. Dropping the permit closes the session in which the target may
    /// have been opened: that transaction can then not be committed any more.
    async fn fenced(
        &mut self,
        permit: Permit<'_>,
        swapped: SwapOutcome,
        token: Uuid,
        known: &BeforeFence,
        presets: &Presets,
    ) -> Result<Outcome, Error> {
        let (shard, attempt) = (self.work.hold.shard, swapped.attempt);
        let limit = self.work.options.drain_deadline + self.work.options.barrier_budget;
        let behind = async {
            if let Some(short) = self.carry(&permit, swapped, known, presets).await? {
                return Ok(Some(short));
            }
            let behind = self.behind_fence(&permit, swapped, token, &known.digest, presets);
            tokio::time::timeout(limit, behind).await.ok().transpose()
        };
        let outcome = tokio::select! {
            behind = behind => behind,
            error = self.patience.heartbeat.lost(shard) => return Err(error),
        };
        let behind = match outcome {
            Ok(Some(behind)) => behind,
            Err(Error::Superseded { reason, .. }) => return Ok(Outcome::Refused(reason)),
            Err(error) => return Err(error),
            Ok(None) => {
                let reason = format!(
                    "the last changes did not arrive within {} ms",
                    limit.as_millis()
                );
                return Ok(Outcome::Held { attempt, reason });
            }
        };
        match behind {
            FencedOutcome::Blocked(reason) => return Ok(Outcome::Held { attempt, reason }),
            FencedOutcome::Altered(what) => {
                return Ok(Outcome::Broken {
                    attempt,
                    error: Error::Altered { shard, what },
                });
            }
            FencedOutcome::Unopened(error) => {
                self.done.looked = Some(attempt);
                return Ok(Outcome::Decided(Err(error)));
            }
            FencedOutcome::Ready => self.done.looked = Some(attempt),
        }
        let follower = self.online.follower;
        if !self
            .compared_on
            .is_some_and(|servers| follower.is_on(servers))
        {
            let reason = "a server was restarted, or failed over, behind the fence".to_owned();
            return Ok(Outcome::Held { attempt, reason });
        }
        if let Some(observed) = follower.breach(shard) {
            return Ok(Outcome::Broken {
                attempt,
                error: Error::Stuck { shard, observed },
            });
        }
        let decided = self
            .work
            .decide(permit.gate(), permit.opening(), attempt)
            .await;
        if decided.is_ok() {
            permit.give_back();
        }
        Ok(Outcome::Decided(decided))
    }

    /// Copies the rows of unlogged tables, which may take as long as the shard may be closed; a
    /// stop is obeyed. `Some`: there is no point in continuing.
    async fn carry(
        &self,
        permit: &Permit<'_>,
        swapped: SwapOutcome,
        known: &BeforeFence,
        presets: &Presets,
    ) -> Result<Option<FencedOutcome>, Error> {
        if known.unlogged.is_empty() {
            return Ok(None);
        }
        let locks = self.work.barrier(permit.gate(), swapped.left).await?;
        if !locks.is_empty() {
            return Ok(Some(blocked(&locks)));
        }
        // The examination comes first: tables that were altered could not be copied.
        if let Err(what) = self
            .work
            .unchanged(swapped.left, &known.digest, self.built, presets)
            .await?
        {
            return Ok(Some(FencedOutcome::Altered(what)));
        }
        let (shard, limit) = (self.work.hold.shard, self.work.options.pause_max);
        let carried = self
            .patience
            .wait_for(self.work.carry_unlogged(&known.unlogged));
        // This is not tried again: the next attempt would close the shard for as long.
        tokio::time::timeout(limit, carried)
            .await
            .unwrap_or(Err(Error::PauseTooLong { shard, limit }))
            .map(|()| None)
    }

    /// Runs the barrier, the marker, the changes up to the marker, and the open without its commit.
    /// At the same time as the last two, it checks what may not have changed.
    async fn behind_fence(
        &self,
        permit: &Permit<'_>,
        swapped: SwapOutcome,
        token: Uuid,
        digest: &CatalogDigest,
        presets: &Presets,
    ) -> Result<FencedOutcome, Error> {
        let (shard, attempt) = (self.work.hold.shard, swapped.attempt);
        let follower = self.online.follower;
        let marked = async {
            let locks = self.work.mark_when_free(permit.gate(), swapped).await?;
            if !locks.is_empty() {
                return Err(EarlyExit::Blocked(locks));
            }
            // Not before: a session that held a lock until now could still alter the shard.
            Ok((
                Instant::now(),
                self.work
                    .unchanged(swapped.left, digest, self.built, presets)
                    .await?,
            ))
        };
        // The follower is notified before the marker is sent. The transaction of the open was begun
        // when its tables were locked.
        let hash = token_hash(token);
        let opened = async {
            follower.marker(shard, attempt, &hash).await?;
            let drained = Instant::now();
            self.work.at("after drain")?;
            let snapshot = async {
                if let Some(unopened) = &self.done.unopened {
                    unopened.take(attempt).await;
                }
            };
            // Whether it succeeded is judged after the examination, which must not be cut short:
            // once the target is ready, it can be decided.
            let (prepared, ()) =
                tokio::join!(self.work.prepare_open(permit.opening(), attempt), snapshot);
            Ok::<_, EarlyExit>((drained, prepared))
        };
        let both = tokio::try_join!(biased; opened, marked);
        let ((drained, prepared), (marked, unchanged)) = match both {
            Ok(both) => both,
            Err(EarlyExit::Blocked(locks)) => return Ok(blocked(&locks)),
            Err(EarlyExit::Failed(error)) => return Err(error),
        };
        self.work
            .timings
            .took("drain", drained.saturating_duration_since(marked));
        let anew = match (unchanged, prepared) {
            (Err(what), _) => return Ok(FencedOutcome::Altered(what)),
            (Ok(_), Err(error)) => return Ok(FencedOutcome::Unopened(error)),
            (Ok(anew), Ok(())) => anew,
        };
        if !anew.is_empty() {
            self.work.set_anew(permit.opening(), &anew).await?;
        }
        Ok(FencedOutcome::Ready)
    }

    /// Looks, while the shard is open, for what would make the fence fail: altered tables, and an
    /// altered publication.
    async fn before_fence(&self, schema: u32) -> Result<BeforeFence, Error> {
        let digest = self.work.catalog_digest(schema).await?;
        let altered = self.work.altered(schema, self.built).await?;
        if let Some(what) = altered.or(self.work.gap(schema).await?) {
            return Err(Error::Altered {
                shard: self.work.hold.shard,
                what,
            });
        }
        let unlogged = self.work.empty_unlogged(schema).await?;
        Ok(BeforeFence { digest, unlogged })
    }

    /// Waits, while the shard is open and for a limited time, for transactions with locks that
    /// would make the fence fail. A transaction that is older than the barrier's budget will not
    /// end within it; a younger one may.
    async fn wait_for_locks(&self, schema: u32) -> Result<(), Error> {
        let until = Instant::now() + Duration::from_secs(5);
        let budget = self.work.options.barrier_budget.as_secs_f64();
        while Instant::now() < until {
            let locks = facts::locks(&self.work.source, schema).await?;
            if !locks.iter().any(|lock| lock.seconds > budget) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }
}

/// Waits until everything that is committed at the source by now is durable at the target.
pub(in crate::mover) async fn pass_a_watermark(
    work: &ShardMove<'_>,
    follower: &Follower,
) -> Result<(), Error> {
    let watermark = write_watermark(&work.source, work.hold.id).await?;
    follower.caught_up(watermark, work.hold.shard).await
}

/// What is known about a shard before it is fenced.
struct BeforeFence {
    /// The digest of the definition that was examined and found right.
    digest: CatalogDigest,
    /// The tables with rows that are copied behind the fence.
    unlogged: Vec<TableShape>,
}

/// What ends the wait behind the fence early.
enum EarlyExit {
    Blocked(Vec<Lock>),
    Failed(Error),
}

impl From<Error> for EarlyExit {
    fn from(error: Error) -> EarlyExit {
        EarlyExit::Failed(error)
    }
}

fn blocked(locks: &[Lock]) -> FencedOutcome {
    FencedOutcome::Blocked(
        locks
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; "),
    )
}

/// The result of what was done behind the fence.
enum FencedOutcome {
    /// The target is ready for the decision.
    Ready,
    /// Transactions hold locks for longer than the shard may be closed.
    Blocked(String),
    /// The target was built from something else.
    Altered(String),
    /// The target did not open, although it is ready and nothing has changed behind the fence.
    Unopened(Error),
}
