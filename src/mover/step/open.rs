//! Prepare the open, decide, commit the open.
//!
//! Before: fenced for this attempt, and the target is ready for it. After: the source has given the
//! shard away, and the target serves it; publish makes that durable (`docs/decisions/0040`). If the
//! mover dies before decide, the target's transaction is rolled back and the fence expires. If it
//! dies after decide, or the target crashes and has lost the open, any resume, or any router that
//! meets the signpost, opens the target with the token that decide gave away.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;
use crate::mover::step::fence::REHEARSAL_WAITS;
use crate::pg::{quote_ident, quote_literal, shown};

/// How long it tries, while the shard is open, to lock the target's tables.
const HOLD_WITHIN: Duration = Duration::from_secs(10);

impl ShardMove<'_> {
    /// All of it, in order.
    pub(crate) async fn decide_and_open(&self, attempt: i32) -> Result<(), Error> {
        self.begin_open(&self.target).await?;
        if let Err(error) = self.prepare_open(&self.target, attempt).await {
            // The session is used further. If it is gone, so is the transaction.
            let _ = self.close_again(&self.target).await;
            return Err(error);
        }
        self.decide(&self.source, &self.target, attempt).await
    }

    /// Begins the transaction of an open. This session of the target does nothing else from now on.
    /// The answer must have come before the open is sent: outside a transaction the open would open
    /// the target undecided.
    ///
    /// Locks: none.
    pub(crate) async fn begin_open(&self, target: &Session) -> Result<(), Error> {
        target.batch("opening the target", "BEGIN").await
    }

    /// Begins the transaction of an open before the fence and locks the target's tables, so that
    /// they are not vacuumed or analyzed, and no index is built on them, until its end. Otherwise
    /// the open's triggers and foreign keys would have to wait for that behind the fence. Sessions
    /// that do so at present are waited for here; an autovacuum gives way. `Some`: those that did
    /// not give way, and then nothing is locked.
    ///
    /// All locks are taken at once and without waiting, and each is waited for while none is held:
    /// so there can be no deadlock.
    ///
    /// Locks: SHARE UPDATE EXCLUSIVE on the target's tables, until the end of the transaction. The
    /// applier of changes does not wait for it.
    pub(crate) async fn hold_tables(&self, target: &Session) -> Result<Option<String>, Error> {
        let what = "holding the target's tables";
        let incoming = self.names.incoming();
        // By the schema's members in pg_depend: pg_class has no index on the namespace.
        let members = "SELECT c.relname::text FROM pg_namespace n, pg_depend d, pg_class c
            WHERE n.nspname = $1 AND d.refclassid = 'pg_namespace'::regclass AND d.refobjid = n.oid
                AND d.classid = 'pg_class'::regclass AND c.oid = d.objid AND c.relkind IN ('r', \
                'p') ORDER BY 1";
        let rows = target.rows(what, members, &[&incoming]).await?;
        let names = rows
            .iter()
            .map(|row| row.get::<_, &str>(0))
            .collect::<Result<Vec<_>, _>>()?;
        let tables: Vec<String> = names
            .iter()
            .map(|name| format!("{}.{}", quote_ident(&incoming), quote_ident(name)))
            .collect();
        if tables.is_empty() {
            return self.begin_open(target).await.map(|()| None);
        }
        // ONLY: the partitions of a partitioned table are in the list themselves.
        let all = format!(
            "BEGIN; LOCK TABLE ONLY {} IN SHARE UPDATE EXCLUSIVE MODE NOWAIT",
            tables.join(", ONLY ")
        );
        let until = Instant::now() + HOLD_WITHIN;
        while !locked(target, what, &all).await? {
            for table in &tables {
                // An autovacuum is cancelled once a session has waited for deadlock_timeout.
                let one = format!(
                    "BEGIN; SELECT set_config('lock_timeout',
                        (1000 + extract(epoch FROM current_setting('deadlock_timeout')::interval) *
                            1000)::integer::text, true);
                     LOCK TABLE ONLY {table} IN SHARE UPDATE EXCLUSIVE MODE; COMMIT"
                );
                if Instant::now() >= until || !locked(target, what, &one).await? {
                    return in_the_way(target, table).await.map(Some);
                }
            }
        }
        Ok(None)
    }

    /// Runs what this session will do for the open, in a transaction that is rolled back, as
    /// [`rehearse_fence`](ShardMove::rehearse_fence) does: but for the statements on tables, which
    /// the stream would wait for.
    ///
    /// Locks: as [`prepare_open`](ShardMove::prepare_open) without those on tables, until the
    /// rollback that is sent with it.
    pub(crate) async fn rehearse_open(&self, target: &Session) -> Result<(), Error> {
        let ours = format!(
            "shard_id = {} AND move_id = '{}'",
            self.hold.shard, self.hold.id
        );
        let sql = format!(
            "-- A rehearsal: it is rolled back.
             BEGIN; SET LOCAL lock_timeout = '{REHEARSAL_WAITS}';
             SELECT FROM pgshard.incoming WHERE {ours} FOR UPDATE;
             SELECT pgshard.open_incoming(jsonb_populate_record(i, '{{\"at_open\": null}}'))
             FROM pgshard.incoming i WHERE {ours}; ROLLBACK"
        );
        target.batch("rehearsing the open", &sql).await
    }

    /// Runs the open without committing it. What comes next in this session is
    /// [`decide`](ShardMove::decide) or a rollback. The commit will not wait for the disk, nor for
    /// standbys: applications wait for it, and whatever one of them commits at the target is after
    /// it in the log.
    ///
    /// Locks: on the target the rows of the shard and the tuples of its schemas, and the locks of
    /// foreign keys and triggers on tables that only [`hold_tables`](ShardMove::hold_tables) has
    /// locked; to the end of the transaction.
    pub(crate) async fn prepare_open(&self, target: &Session, attempt: i32) -> Result<(), Error> {
        let what = "opening the target";
        let shard = self.hold.shard.as_i32();
        let params = self.attempt(&shard, &attempt);
        let began = Instant::now();
        // The timeout is for a mover that is paused here: otherwise no mover could open the target
        // once the source has decided.
        let sql = "SELECT set_config('idle_in_transaction_session_timeout', '2s', true), \
            pgshard.open($1, $2, $3, $4),
            set_config('synchronous_commit', 'off', true)";
        target.typed_rows(what, sql, &params).await?;
        self.timings.since("open", began);
        self.at("after open prepared")
    }

    /// Decides, and commits the open that was prepared in this session of the target.
    ///
    /// Locks: on the source the rows of shard and move, for one transaction; on the target as
    /// [`prepare_open`](ShardMove::prepare_open), for a round trip to the source and one to the
    /// target.
    pub(crate) async fn decide(
        &self,
        source: &Session,
        target: &Session,
        attempt: i32,
    ) -> Result<(), Error> {
        let shard = self.hold.shard.as_i32();
        let began = Instant::now();
        let params = self.attempt(&shard, &attempt);
        if let Err(error) = source
            .typed_rows("deciding", "SELECT pgshard.decide($1, $2, $3, $4)", &params)
            .await
        {
            // The next look at the source shows whether it was decided. The target cannot be opened
            // without the token.
            self.close_again(target).await?;
            return Err(error);
        }
        let began = self.timings.since("decide", began);
        self.at("after decide")?;
        target.batch("opening the target", "COMMIT").await?;
        self.timings.since("commit", began);
        self.at("after open")
    }

    /// Rolls back an open that may have been prepared in this session of the target.
    pub(crate) async fn close_again(&self, target: &Session) -> Result<(), Error> {
        target.batch("opening the target", "ROLLBACK").await
    }

    /// Opens a target with a source that has decided. Does nothing if it is open already.
    ///
    /// Locks: the rows of the shard and the tuples of its schemas on the target, for one
    /// transaction.
    pub(crate) async fn finish_open(&self, token: Option<Uuid>) -> Result<(), Error> {
        let sql = "SELECT pgshard.finish_open($1, $2)";
        self.target
            .row(
                "opening the target",
                sql,
                &[&self.hold.shard.as_i32(), &token],
            )
            .await?;
        self.at("after open")
    }
}

/// Runs statements that take locks. Returns false if another session has one of them; then the
/// transaction is rolled back.
async fn locked(target: &Session, what: &'static str, sql: &str) -> Result<bool, Error> {
    match target.batch(what, sql).await {
        Ok(()) => Ok(true),
        Err(Error::Database { source, .. })
            if source.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) =>
        {
            target.batch(what, "ROLLBACK").await.map(|()| false)
        }
        Err(error) => Err(error),
    }
}

/// Who has a lock on a table of the target that its open would wait for.
///
/// Locks: none but ACCESS SHARE on catalogs.
async fn in_the_way(target: &Session, table: &str) -> Result<String, Error> {
    let what = "looking for locks";
    let sql = format!(
        "SELECT string_agg(DISTINCT format('backend %s: %s', l.pid, coalesce({query}, '?')), '; ')
         FROM pg_locks l LEFT JOIN pg_stat_activity a USING (pid)
         WHERE l.relation = to_regclass({table}) AND l.granted AND l.pid <> pg_backend_pid()
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
             AND l.mode NOT IN ('AccessShareLock', 'RowShareLock', 'RowExclusiveLock')",
        query = shown("a.query"),
        table = quote_literal(table),
    );
    let row = target.row(what, &sql, &[]).await?;
    let who: Option<String> = row.get(0)?;
    let who = who.unwrap_or_else(|| "a session that has ended by now".to_owned());
    Ok(format!(
        "{table} on host {} is locked by {who}",
        target.host
    ))
}
