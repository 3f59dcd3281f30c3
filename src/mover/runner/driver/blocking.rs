//! The steps of a shard that is copied behind its fence, and the preparation, which comes first in
//! both modes.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::mover::control::context::stopped;
use crate::mover::control::journal::Entry;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Mode;
use crate::mover::runner::driver::Driver;
use crate::mover::step::HELD;
use crate::mover::step::Outcome;
use crate::schema::lock;

/// If a shard's tables are altered more often than this while it is moved, the move gives up.
const REBUILDS_MAX: u32 = 3;

/// How long a mover that has claimed a shard waits for a migration that was running already: longer
/// than most indexes take to build.
const MIGRATION_PATIENCE: Duration = Duration::from_secs(3600);

impl Driver<'_> {
    /// Builds the target and the signpost.
    pub(in crate::mover::runner) async fn prepare(&mut self) -> Result<(), Error> {
        if self.work.mode == Mode::Online {
            self.after_migrations().await?;
        }
        self.built = Some(self.work.prepare().await?);
        Ok(())
    }

    /// Waits until the migration that held the shard before the claim has ended. Otherwise what is
    /// built would lack what the migration does, which an online move notices only at its end.
    /// Later migrations are refused.
    ///
    /// Locks: the row of pgshard.shard and the one of the shard's migrations, for one statement
    /// that does not wait.
    async fn after_migrations(&self) -> Result<(), Error> {
        let (shard, until) = (self.work.hold.shard, Instant::now() + MIGRATION_PATIENCE);
        let what = "waiting for a migration of the shard to end";
        let sql = format!(
            "SELECT pg_try_advisory_xact_lock($2, $1) OR NOT {held} FROM pgshard.shard WHERE \
                shard_id = $1
            FOR NO KEY UPDATE NOWAIT",
            held = lock::held("$2::integer::oid", "$1::integer::oid"),
        );
        let mut told = false;
        loop {
            let unavailable = Some(&SqlState::LOCK_NOT_AVAILABLE);
            match self
                .work
                .source
                .rows(what, &sql, &[&shard.as_i32(), &lock::MIGRATION])
                .await
            {
                Ok(rows) => match rows.first() {
                    Some(row) if !row.get::<_, bool>(0)? => {}
                    _ => return Ok(()),
                },
                Err(Error::Database { source, .. }) if source.code() == unavailable => {}
                Err(error) => return Err(error),
            }
            if Instant::now() > until {
                return Err(Error::MigrationBlocked {
                    shard,
                    host: self.work.source.host.clone(),
                });
            }
            if self.context.is_stopped() {
                return Err(Error::Interrupted { shard });
            }
            if let Some(error) = self.heartbeat.loss(shard) {
                return Err(error);
            }
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(%shard, "{what}");
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Swaps; from then on the source refuses the shard.
    pub(in crate::mover::runner) async fn fence(&mut self) -> Result<(), Error> {
        let before = Instant::now();
        self.fences += 1;
        self.failing_since = None;
        match self.work.swap(&self.work.source, Uuid::new_v4()).await {
            Ok(Some(_)) => {
                self.fenced_at = Some(before);
                Ok(())
            }
            // Nothing was fenced, so the application is not blocked during this time.
            Ok(None) => self.retry_fence(HELD.to_owned()).await,
            // A table was created after the signpost was built. If the reason is another, the next
            // observation shows it.
            Err(Error::Superseded { reason, .. }) => self.rebuild(reason).await,
            Err(error) => Err(error),
        }
    }

    /// Builds the target and the signpost again, because the shard was altered.
    async fn rebuild(&mut self, what: String) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        self.rebuilds += 1;
        if self.rebuilds >= REBUILDS_MAX {
            return Err(Error::Altered { shard, what });
        }
        self.context.observer.notify(Event::FenceRetried {
            shard,
            attempt: self.fences,
            reason: what,
        });
        self.built = Some(self.work.prepare().await?);
        Ok(())
    }

    /// Copies, until the lease is lost or a stop is requested.
    pub(in crate::mover::runner) async fn copy(
        &mut self,
        entry: &Entry,
        attempt: i32,
    ) -> Result<(), Error> {
        let shard = self.work.hold.shard;
        let mut stop = self.context.stop.subscribe();
        let limit = self.context.options.pause_max;
        let until = self.fenced_at.unwrap_or_else(Instant::now) + limit;
        let until = tokio::time::Instant::from_std(until);
        let outcome = tokio::select! {
            outcome = self.work.copy(entry, attempt, self.built.as_ref()) => outcome,
            error = self.heartbeat.lost(shard) => return Err(error),
            () = stopped(&mut stop) => Err(Error::Interrupted { shard }),
            // A server that hangs neither answers nor breaks the connection, and the heartbeat
            // would keep its shard closed.
            () = tokio::time::sleep_until(until) => Err(Error::PauseTooLong { shard, limit }),
        };
        match outcome {
            Ok(Outcome::Copied) => Ok(()),
            Ok(Outcome::Blocked(locks)) => {
                self.unfence(attempt).await?;
                self.retry_fence(
                    locks
                        .iter()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join("; "),
                )
                .await
            }
            Ok(Outcome::Altered(what)) => {
                self.unfence(attempt).await?;
                self.rebuild(what).await
            }
            Err(Error::Superseded { reason, .. }) => self.look_again(reason),
            Err(error) => Err(error),
        }
    }
}
