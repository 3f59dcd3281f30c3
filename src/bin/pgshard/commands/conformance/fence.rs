//! A mover's steps for one shard: calls of functions of the control schema. A scene can stop
//! between two calls.

use std::time::Duration;

use pgshard::pg::Connection;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::client::Fault;
use crate::failure::Failure;

/// How often the barrier is looked at before the kit gives up.
const LOOKS_MAX: usize = 3000;

/// A shard that the kit has claimed for a move of its own.
pub(super) struct Fence {
    source: Connection,
    shard: i32,
    move_id: Uuid,
    lease: Uuid,
    token: Uuid,
    attempt: i32,
    left: u32,
}

impl Fence {
    /// Claims a shard of this host for a move to `target`, and creates the signpost next to it.
    ///
    /// Locks: ROW EXCLUSIVE on pgshard.move for one statement; build_signpost only creates.
    pub(super) async fn prepare(
        source: Connection,
        shard: i32,
        target: &str,
    ) -> Result<Fence, Fault> {
        let (move_id, lease, token) = (Uuid::new_v4(), Uuid::new_v4(), Uuid::new_v4());
        let row = "INSERT INTO pgshard.move (move_id, shard_id, source, target, mode, phase, \
            epoch, lease, \
                   lease_until, holder) SELECT $1, $2, host_name, $3, 'blocking', 'prepared', 1, \
                   $4, \
                   now() + interval '1 hour', 'conformance' FROM pgshard.cluster";
        source
            .execute(row, &[&move_id, &shard, &target, &lease])
            .await?;
        source
            .execute("SELECT pgshard.build_signpost($1, $2)", &[&shard, &move_id])
            .await?;
        Ok(Fence {
            source,
            shard,
            move_id,
            lease,
            token,
            attempt: 0,
            left: 0,
        })
    }

    /// Puts the signpost in the shard's place. After `deadline` any session may end the fence.
    ///
    /// Locks: those of pgshard.fence, for one statement.
    pub(super) async fn close(&mut self, deadline: Duration) -> Result<(), Fault> {
        let deadline_ms = i32::try_from(deadline.as_millis()).unwrap_or(i32::MAX);
        let sql = "SELECT attempt, left_oid FROM pgshard.fence($1, $2, $3, $4, $5)";
        let row = self
            .source
            .query_one(
                sql,
                &[
                    &self.shard,
                    &self.move_id,
                    &self.lease,
                    &self.token,
                    &deadline_ms,
                ],
            )
            .await?;
        (self.attempt, self.left) = (row.try_get(0)?, row.try_get(1)?);
        Ok(())
    }

    /// Puts the shard back in its place, like a mover that gave up.
    ///
    /// Locks: those of pgshard.unfence, for one statement.
    pub(super) async fn open_again(&self) -> Result<(), Fault> {
        let sql = "SELECT pgshard.unfence($1, $2, $3, $4)";
        self.source
            .execute(
                sql,
                &[&self.shard, &self.move_id, &self.attempt, &self.lease],
            )
            .await?;
        Ok(())
    }

    /// Makes the target ready: its schema with these tables, and all but the open.
    ///
    /// Locks: none that another session waits for; the schema and the rows are new.
    pub(super) async fn make_ready(
        &self,
        target: &Connection,
        schema: &str,
        tables: &str,
    ) -> Result<(), Fault> {
        let incoming = format!("{schema}__incoming");
        let tables = tables.replace("{shard}", &incoming);
        target
            .batch_execute(&format!("CREATE SCHEMA {incoming}; {tables}"))
            .await?;
        let hash: String = Sha256::digest(self.token.to_string())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let row = "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, \
            epoch, ready_attempt, \
                   open_hash) VALUES ($1, $2, $3, $4, 'db1', 2, 1, $5)";
        target
            .execute(
                row,
                &[&self.shard, &schema, &self.move_id, &self.lease, &hash],
            )
            .await?;
        let row = "INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ('incoming', \
            $1, $2, $3)";
        target
            .execute(row, &[&incoming, &self.move_id, &self.shard])
            .await?;
        Ok(())
    }

    /// Decides the move, like a mover that dies right afterwards.
    ///
    /// Locks: those of pgshard.mark and pgshard.decide, for a statement each.
    pub(super) async fn decide(&self) -> Result<(), Fault> {
        for look in 0.. {
            let waiting = self
                .source
                .query("SELECT pid FROM pgshard.barrier($1)", &[&self.left])
                .await?;
            if waiting.is_empty() {
                break;
            }
            if look == LOOKS_MAX {
                return Err(Fault::Kit(Failure::new(
                    crate::exit::Exit::Failed,
                    format!(
                        "shard {}: a session has a lock on it and keeps it",
                        self.shard
                    ),
                )));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        for sql in [
            "SELECT pgshard.mark($1, $2, $3, $4)",
            "SELECT pgshard.decide($1, $2, $3, $4)",
        ] {
            self.source
                .execute(
                    sql,
                    &[&self.shard, &self.move_id, &self.attempt, &self.lease],
                )
                .await?;
        }
        Ok(())
    }
}
