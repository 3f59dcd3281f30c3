//! Open prepared, decide, open committed.
//!
//! Before: fenced for this attempt, the target ready for it. After: the source has given the shard away, the target serves
//! it. Dies before decide: the target's transaction is rolled back, the fence runs out. Dies after it: any resume, or any
//! router that meets the signpost, opens the target with the token that decide gave away.

use std::time::Instant;

use uuid::Uuid;

use super::ShardMove;
use crate::mover::error::Error;

impl ShardMove<'_> {
    /// Locks: on the target the rows of the shard and the tuples of its schemas, on the source the rows of shard and move;
    /// the target's for two round trips to the source.
    pub(crate) async fn decide_and_open(&self, attempt: i32) -> Result<(), Error> {
        let what = "opening the target";
        let shard = self.hold.shard.as_i32();
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&shard, self.hold.id.uuid(), &attempt, &self.hold.lease];
        let began = Instant::now();
        // A mover that is paused here would keep everybody from opening the target once the source has decided.
        self.target.batch(what, "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '2s'").await?;
        self.target.row(what, "SELECT pgshard.open($1, $2, $3, $4)", &params).await?;
        self.at("after open prepared")?;
        let began = self.timings.since("open", began);
        let decided = self.source.row("deciding", "SELECT pgshard.decide($1, $2, $3, $4)", &params).await;
        if let Err(error) = decided {
            // Whether it was decided, the next look at the source tells. Nobody else opens without the token.
            self.target.batch(what, "ROLLBACK").await?;
            return Err(error);
        }
        let began = self.timings.since("decide", began);
        self.at("after decide")?;
        self.target.batch(what, "COMMIT").await?;
        self.timings.since("commit", began);
        self.at("after open")
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
