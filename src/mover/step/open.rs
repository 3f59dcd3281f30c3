//! Open prepared, decide, open committed.
//!
//! Before: fenced for this attempt, the target ready for it. After: the source has given the shard away, the target serves
//! it. Dies before decide: the target's transaction is rolled back, the fence runs out. Dies after it: any resume, or any
//! router that meets the signpost, opens the target with the token that decide gave away.

use std::time::Instant;

use uuid::Uuid;

use super::ShardMove;
use crate::mover::error::Error;
use crate::mover::session::Session;

impl ShardMove<'_> {
    /// All of it, one after the other.
    pub(crate) async fn decide_and_open(&self, attempt: i32) -> Result<(), Error> {
        self.begin_open(&self.target).await?;
        if let Err(error) = self.prepare_open(&self.target, attempt).await {
            // The session goes on to be used. If it is gone, so is the transaction.
            let _ = self.close_again(&self.target).await;
            return Err(error);
        }
        self.decide(&self.source, &self.target, attempt).await
    }

    /// The transaction of an open. Nothing else is done in this session of the target from now on. Its answer has to be there
    /// before the open is sent: outside of a transaction that would open the target undecided.
    ///
    /// Locks: none.
    pub(crate) async fn begin_open(&self, target: &Session) -> Result<(), Error> {
        target.batch("opening the target", "BEGIN").await
    }

    /// The open, not committed: what comes next in this session is [`decide`](ShardMove::decide) or a rollback.
    ///
    /// Locks: on the target the rows of the shard and the tuples of its schemas, and what the foreign keys and triggers take
    /// on tables that nobody else knows; to the end of the transaction.
    pub(crate) async fn prepare_open(&self, target: &Session, attempt: i32) -> Result<(), Error> {
        let what = "opening the target";
        let shard = self.hold.shard.as_i32();
        let params = self.attempt(&shard, &attempt);
        let began = Instant::now();
        // A mover that is paused here would keep everybody from opening the target once the source has decided.
        let sql = "SELECT set_config('idle_in_transaction_session_timeout', '2s', true), pgshard.open($1, $2, $3, $4)";
        target.typed_rows(what, sql, &params).await?;
        self.timings.since("open", began);
        self.at("after open prepared")
    }

    /// Decides, and commits the open that was prepared in this session of the target.
    ///
    /// Locks: on the source the rows of shard and move, for one transaction; on the target as
    /// [`prepare_open`](ShardMove::prepare_open), for a round trip to the source and one to the target.
    pub(crate) async fn decide(&self, source: &Session, target: &Session, attempt: i32) -> Result<(), Error> {
        let shard = self.hold.shard.as_i32();
        let began = Instant::now();
        let params = self.attempt(&shard, &attempt);
        if let Err(error) = source.typed_rows("deciding", "SELECT pgshard.decide($1, $2, $3, $4)", &params).await {
            // Whether it was decided, the next look at the source tells. Nobody else opens without the token.
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

    /// Opens a target whose source has decided. Nothing to do if somebody else did.
    ///
    /// Locks: the rows of the shard and the tuples of its schemas on the target, for one transaction.
    pub(crate) async fn finish_open(&self, token: Option<Uuid>) -> Result<(), Error> {
        let sql = "SELECT pgshard.finish_open($1, $2)";
        self.target.row("opening the target", sql, &[&self.hold.shard.as_i32(), &token]).await?;
        self.at("after open")
    }
}
