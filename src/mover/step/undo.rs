//! Unfence and discard: the way back before decide.
//!
//! Unfence. Before: fenced by this move. After: the source serves as before. Discard. Before: the source serves. After:
//! nothing of the move is left but its line in the journal. Dies halfway: the next abort, or `moves gc`, goes on.

use super::ShardMove;
use crate::mover::error::Error;
use crate::mover::journal::Note;
use crate::mover::state::Phase;
use crate::pg::quote_ident;

impl ShardMove<'_> {
    /// Locks: as pgshard.unfence says: rows of shard and move, no table.
    pub(crate) async fn unfence(&self, attempt: i32) -> Result<(), Error> {
        self.at("before unfence")?;
        let sql = "SELECT pgshard.unfence($1, $2, $3, $4)";
        let (shard, id) = (self.hold.shard.as_i32(), self.hold.id.uuid());
        self.source.row("swapping back", sql, &[&shard, id, &attempt, &self.hold.lease]).await?;
        self.at("after unfence")
    }

    /// Locks: on the target ACCESS EXCLUSIVE on tables, on the source on views, that nobody else knows; for one
    /// transaction each.
    pub(crate) async fn discard(&self) -> Result<(), Error> {
        let (shard, id) = (self.hold.shard.as_i32(), self.hold.id.uuid());
        let what = "dropping what the move built";
        // Only this move's: the row says whose the schema is.
        let sql = "SELECT FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2 FOR UPDATE";
        self.target.batch(what, "BEGIN").await?;
        if !self.target.rows(what, sql, &[&shard, id]).await?.is_empty() {
            let incoming = self.names.incoming();
            self.target.batch(what, &format!("DROP SCHEMA IF EXISTS {} CASCADE", quote_ident(&incoming))).await?;
            self.target
                .execute(what, "DELETE FROM pgshard.ledger WHERE kind = 'incoming' AND name = $1", &[&incoming])
                .await?;
            self.target.execute(what, "DELETE FROM pgshard.incoming WHERE shard_id = $1", &[&shard]).await?;
            self.target
                .execute(
                    what,
                    "DELETE FROM pgshard.shard_migration m WHERE shard_id = $1
                AND NOT EXISTS (SELECT FROM pgshard.shard s WHERE s.shard_id = m.shard_id)",
                    &[&shard],
                )
                .await?;
        }
        self.target.batch(what, "COMMIT").await?;
        let signpost = self.names.signpost();
        self.source.batch(what, &format!("BEGIN; DROP SCHEMA IF EXISTS {} CASCADE", quote_ident(&signpost))).await?;
        self.source
            .execute(what, "DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND name = $1", &[&signpost])
            .await?;
        self.source.batch(what, "COMMIT").await?;
        self.at("after discard")?;
        self.source.advance(self.hold, Phase::Aborted, &Note::default()).await?;
        self.reached(Phase::Aborted);
        Ok(())
    }
}
