//! Unfence and discard: how a move is undone before decide.
//!
//! Unfence. Before: fenced by this move. After: the source serves as before. Discard. Before: the
//! source serves. After: nothing of the move is left but its line in the journal. If the mover dies
//! in between, the next abort, or `moves gc`, continues.

use uuid::Uuid;

use crate::map::ShardEpoch;
use crate::mover::control::journal::{Hold, Note};
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::mover::protocol::state::Phase;
use crate::mover::step::ShardMove;
use crate::mover::step::identity;
use crate::mover::step::old_copy as copy;
use crate::pg::quote_ident;

impl ShardMove<'_> {
    /// Locks: as documented at pgshard.unfence: rows of shard and move, no table.
    pub(crate) async fn unfence(&self, attempt: i32) -> Result<(), Error> {
        self.at("before unfence")?;
        let sql = "SELECT pgshard.unfence($1, $2, $3, $4)";
        let (shard, id) = (self.hold.shard.as_i32(), self.hold.id.uuid());
        self.source
            .row(
                "swapping back",
                sql,
                &[&shard, id, &attempt, &self.hold.lease],
            )
            .await?;
        self.at("after unfence")
    }

    /// Locks: on the target ACCESS EXCLUSIVE on tables, on the source on views, that no other
    /// session uses; for one transaction each.
    pub(crate) async fn discard(&self) -> Result<(), Error> {
        let (shard, id) = (self.hold.shard.as_i32(), self.hold.id.uuid());
        self.drop_at_target().await?;
        self.at("in discard")?;
        self.target.batch(DROPPING, "COMMIT").await?;
        self.at("after target discard")?;
        drop_signpost(&self.source, &self.names).await?;
        let sql = "DELETE FROM pgshard.back WHERE move_id = $1 AND shard_id = $2";
        self.source.execute(DROPPING, sql, &[id, &shard]).await?;
        self.at("after discard")?;
        self.source
            .advance(self.hold, Phase::Aborted, &Note::default())
            .await?;
        self.reached(Phase::Aborted);
        Ok(())
    }

    /// Drops what the move has built at the target, and no more: a resume begins with it again. The
    /// source serves.
    ///
    /// Locks: on the target ACCESS EXCLUSIVE on tables that no other session uses, for one
    /// transaction; the move's row, for one statement.
    pub(crate) async fn drop_copy(&self) -> Result<(), Error> {
        self.drop_at_target().await?;
        self.target.batch(DROPPING, "COMMIT").await?;
        self.source
            .advance(self.hold, Phase::Claimed, &Note::default())
            .await
    }

    /// Begins a transaction at the target, and drops in it what the move has built.
    async fn drop_at_target(&self) -> Result<(), Error> {
        let (shard, id) = (self.hold.shard.as_i32(), self.hold.id.uuid());
        let what = DROPPING;
        // Only what this move has built: the row records the move of the schema.
        let sql =
            "SELECT lease FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2 FOR UPDATE";
        self.target.batch(what, "BEGIN").await?;
        if let Some(row) = self.target.rows(what, sql, &[&shard, id]).await?.first() {
            // A mover that was paused here, and taken over, would drop what the other has built and
            // perhaps decided for.
            if row.get::<_, Uuid>(0)? != self.hold.lease {
                self.target.batch(what, "ROLLBACK").await?;
                return Err(Error::LeaseLost {
                    shard: self.hold.shard,
                });
            }
            // An old copy goes back to the move that kept it.
            if !copy::give_back(
                &self.target,
                &self.names.schema,
                self.hold.id,
                self.hold.shard,
            )
            .await?
            {
                let incoming = self.names.incoming();
                self.target
                    .batch(
                        what,
                        &format!("DROP SCHEMA IF EXISTS {} CASCADE", quote_ident(&incoming)),
                    )
                    .await?;
                self.target
                    .execute(
                        what,
                        "DELETE FROM pgshard.ledger WHERE kind = 'incoming' AND name = $1",
                        &[&incoming],
                    )
                    .await?;
            }
            self.target
                .execute(
                    what,
                    "DELETE FROM pgshard.incoming WHERE shard_id = $1",
                    &[&shard],
                )
                .await?;
            self.target
                .execute(
                    what,
                    "DELETE FROM pgshard.shard_migration m WHERE shard_id = $1
                AND NOT EXISTS (SELECT FROM pgshard.shard s WHERE s.shard_id = m.shard_id)",
                    &[&shard],
                )
                .await?;
        }
        identity::forget(&self.target, self.hold.shard).await?;
        self.forget_chunks().await
    }
}

const DROPPING: &str = "dropping what the move built";

/// Locks: ACCESS EXCLUSIVE on views that no other session uses, for one transaction.
async fn drop_signpost(source: &Session, names: &Names) -> Result<(), Error> {
    let (what, signpost) = (DROPPING, names.signpost());
    source
        .batch(
            what,
            &format!(
                "BEGIN; DROP SCHEMA IF EXISTS {} CASCADE",
                quote_ident(&signpost)
            ),
        )
        .await?;
    source
        .execute(
            what,
            "DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND name = $1",
            &[&signpost],
        )
        .await?;
    source.batch(what, "COMMIT").await
}

/// Undoes the source's part immediately, for when the target is unreachable.
///
/// # Errors
/// [`Error::TooLate`] when the source has decided.
///
/// Locks: as documented at pgshard.unfence, and as [`drop_signpost`].
pub(crate) async fn undo_at_source(
    source: &Session,
    hold: Hold,
    epoch: ShardEpoch,
    schema: &str,
) -> Result<(), Error> {
    let (what, shard, id) = ("swapping back", hold.shard.as_i32(), hold.id.uuid());
    let sql = "SELECT attempt FROM pgshard.shard
        WHERE shard_id = $1 AND epoch = $2 AND (state = 'serving' OR state = 'fenced' AND move_id \
        = $3)";
    let rows = source
        .rows(what, sql, &[&shard, &epoch.as_i32(), id])
        .await?;
    let row = rows.first().ok_or(Error::TooLate { shard: hold.shard })?;
    if let Some(attempt) = row.get::<_, Option<i32>>(0)? {
        let sql = "SELECT pgshard.unfence($1, $2, $3, $4)";
        match source
            .row(what, sql, &[&shard, id, &attempt, &hold.lease])
            .await
        {
            // Its deadline has passed and a router was faster.
            Ok(_) | Err(Error::Superseded { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    drop_signpost(
        source,
        &Names {
            schema: schema.to_owned(),
        },
    )
    .await?;
    source.advance(hold, Phase::Aborted, &Note::default()).await
}
