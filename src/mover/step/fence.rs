//! Fence: the swap, the barrier and the marker (`docs/decisions/0001` has the reasons).
//!
//! Before: prepared, and the source serves. After the swap: no new statement reaches the shard's
//! tables by name. After the barrier: no old one does either. After the marker: all of this is
//! durable. If the mover dies in between, the next router or mover after the deadline swaps back,
//! unless a resume continues before it. A source that crashes before the marker may have lost the
//! swap, and serves the shard again: without a marker nothing is decided, or copied permanently.

use std::time::Instant;

use tokio::time::{Duration, sleep};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::preflight::facts::Lock;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::Phase;
use crate::mover::step::ShardMove;
use crate::schema::lock;

/// Why there is no fence, for people.
pub(crate) const HELD: &str = "a migration, or another transaction, holds the shard";

/// How long a rehearsal waits for a lock, in PostgreSQL's notation.
pub(super) const REHEARSAL_WAITS: &str = "100ms";

/// The result of a swap.
#[derive(Clone, Copy)]
pub(crate) struct SwapOutcome {
    /// The attempt's number.
    pub(crate) attempt: i32,
    /// The OID of the schema that has the shard's tables, whatever its name is.
    pub(crate) left: u32,
}

impl ShardMove<'_> {
    /// The swap, for an open with this token. The pause starts while this waits for its answer.
    /// `None` if a migration, or another transaction, holds the shard: then nothing is fenced.
    ///
    /// Its commit does not wait for the disk, nor for standbys: that of the marker, which is after
    /// it in the log, does.
    ///
    /// Locks: as documented at pgshard.fence, none on any table of the shard. Also the lock of the
    /// shard's migrations, for which it does not wait, and which it does without if it is held by a
    /// role without rights here. All for this one transaction.
    pub(crate) async fn swap(
        &self,
        source: &Session,
        token: Uuid,
    ) -> Result<Option<SwapOutcome>, Error> {
        self.at("before swap")?;
        let began = Instant::now();
        // Whether the holder has rights is only checked if there is one: planning that query takes
        // milliseconds.
        let held = lock::held("$6::integer::oid", "$1::integer::oid");
        let fenced = match self
            .fence(source, token, "pg_try_advisory_xact_lock($6, $1)")
            .await
        {
            Ok(None) => {
                self.fence(
                    source,
                    token,
                    &format!("pg_try_advisory_xact_lock($6, $1) OR NOT {held}"),
                )
                .await
            }
            fenced => fenced,
        };
        let row = match fenced {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(None),
            Err(Error::Database { source, .. })
                if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        self.timings.since("swap", began);
        self.reached(Phase::Fenced);
        self.at("after swap")?;
        Ok(Some(SwapOutcome {
            attempt: row.get(0)?,
            left: row.get(1)?,
        }))
    }

    /// Runs what this session will do for the swap, the marker and decide, in a transaction that is
    /// rolled back: a session that does it for the first time reads catalogs and compiles
    /// functions, which takes longer than all the rest, and the shard would be closed for that
    /// time. Other sessions do not see its effects, but event triggers run. After an error the
    /// session may be in a transaction, and must be closed.
    ///
    /// Locks: as [`swap`](ShardMove::swap), but not that of the shard's migrations, and as
    /// [`decide`](ShardMove::decide), until the rollback that is sent with it; it waits for none of
    /// them longer than [`REHEARSAL_WAITS`].
    pub(crate) async fn rehearse_fence(&self, source: &Session) -> Result<(), Error> {
        let (shard, id, lease) = (self.hold.shard, self.hold.id, self.hold.lease);
        let attempt = format!("(SELECT attempt FROM pgshard.shard WHERE shard_id = {shard})");
        let sql = format!(
            "-- A rehearsal: it is rolled back.
             BEGIN; SET LOCAL lock_timeout = '{REHEARSAL_WAITS}';
             SELECT pgshard.fence({shard}, '{id}', '{lease}', '{lease}', 0);
             SELECT pgshard.mark({shard}, '{id}', {attempt}, '{lease}');
             SELECT pgshard.decide({shard}, '{id}', {attempt}, '{lease}'); ROLLBACK"
        );
        source.batch("rehearsing the fence", &sql).await
    }

    /// Fences the shard if a condition is true.
    ///
    /// Locks: as [`swap`](ShardMove::swap).
    async fn fence(
        &self,
        source: &Session,
        token: Uuid,
        condition: &str,
    ) -> Result<Option<AnsweredRow>, Error> {
        // The fence needs a row of `free`, so without one nothing is fenced.
        let sql = format!(
            "WITH free AS MATERIALIZED (SELECT $1::integer AS shard WHERE {condition})
            SELECT fence.attempt, fence.left_oid, pg_catalog.set_config('synchronous_commit', \
            'off', true)
            FROM free CROSS JOIN LATERAL pgshard.fence(free.shard, $2, $3, $4, $5) AS fence"
        );
        let (shard, deadline) = (self.hold.shard.as_i32(), self.options.leases.fence_ms());
        let params: [(&(dyn ToSql + Sync), Type); 6] = [
            (&shard, Type::INT4),
            (self.hold.id.uuid(), Type::UUID),
            (&self.hold.lease, Type::UUID),
            (&token, Type::UUID),
            (&deadline, Type::INT4),
            (&lock::MIGRATION, Type::INT4),
        ];
        let rows = source
            .typed_rows("fencing the shard", &sql, &params)
            .await?;
        Ok(rows.into_iter().next())
    }

    /// The barrier. Returns the sessions that still held locks when the budget ran out. Mostly
    /// there is none at the first look.
    ///
    /// Locks: as documented at pgshard.barrier: none.
    pub(crate) async fn barrier(&self, source: &Session, left: u32) -> Result<Vec<Lock>, Error> {
        let until = Instant::now() + self.options.barrier_budget;
        loop {
            if !facts::may_be_locked(source, left).await? {
                return Ok(Vec::new());
            }
            let locks = facts::locks(source, left).await?;
            if locks.is_empty() || Instant::now() >= until {
                return Ok(locks);
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// The barrier and the marker, in one round trip if no session holds a lock. Returns the
    /// sessions that still held locks when the barrier's budget ran out: then there is no marker.
    ///
    /// Locks: as [`barrier`](ShardMove::barrier) and [`mark`](ShardMove::mark).
    pub(crate) async fn mark_when_free(
        &self,
        source: &Session,
        SwapOutcome { attempt, left }: SwapOutcome,
    ) -> Result<Vec<Lock>, Error> {
        let began = Instant::now();
        // Locks are looked for first, since the marker needs the row that this returns.
        let sql = format!(
            "WITH free AS MATERIALIZED (SELECT WHERE NOT {held}) SELECT pgshard.mark($1, $2, $3, \
                $4) FROM free",
            held = facts::may_be_locked_sql("$5"),
        );
        let shard = self.hold.shard.as_i32();
        let [id, move_id, attempted, lease] = self.attempt(&shard, &attempt);
        let params = [
            id,
            move_id,
            attempted,
            lease,
            (&left as &(dyn ToSql + Sync), Type::OID),
        ];
        let marked = source
            .typed_rows("writing the marker", &sql, &params)
            .await?;
        if !marked.is_empty() {
            self.timings.since("marker", began);
            self.at("after marker")?;
            return Ok(Vec::new());
        }
        let locks = self.barrier(source, left).await?;
        if locks.is_empty() {
            let began = self.timings.since("barrier", began);
            self.mark(source, attempt).await?;
            self.timings.since("marker", began);
        }
        Ok(locks)
    }

    /// The marker.
    ///
    /// Locks: as documented at pgshard.mark: the shard's row, for one transaction.
    async fn mark(&self, source: &Session, attempt: i32) -> Result<(), Error> {
        let sql = "SELECT pgshard.mark($1, $2, $3, $4)";
        let shard = self.hold.shard.as_i32();
        source
            .typed_rows("writing the marker", sql, &self.attempt(&shard, &attempt))
            .await?;
        self.at("after marker")
    }
}
