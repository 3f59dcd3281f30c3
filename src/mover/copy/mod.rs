//! Copies a shard that stays open: in chunks by key, each under a snapshot of its own, and
//! nevertheless exactly.
//!
//! A slot of the source exists before the first chunk is copied, so that every later change is in
//! its stream. A chunk keeps the snapshot it was read under. A change of transaction X to the row
//! with key k is applied if, and only if, X is not visible in the snapshot of the chunk that holds
//! k ([`chunks`]). So no snapshot is held for longer than one chunk takes, and chunks can be copied
//! in any order, at any time, by any number of workers, and again after a crash.
//!
//! [`table`](crate::mover::preflight::table) has read which tables there are and judged which of
//! them can be moved like this. [`cut`] cuts them, [`chunk`] copies and [`build`] makes the
//! indexes, with the workers of [`workers`]; [`verify`] compares, by sums of [`digest`]. The rule
//! uses [`snapshot`] and [`key`](crate::mover::preflight::key).
//!
//! # Invariants
//! 1. The lock on a table is taken before the snapshot: a TRUNCATE between the two would empty a
//!    chunk with a snapshot that does not see it.
//! 2. A chunk's rows and its snapshot are written by one transaction of the target, which proves
//!    the lease.
//! 3. Bounds never change once the first chunk of a table is copied.

pub(crate) mod build;
pub(crate) mod chunk;
pub(crate) mod chunks;
pub(crate) mod cut;
pub(crate) mod digest;
pub(crate) mod original;
pub(crate) mod signals;
pub(crate) mod snapshot;
pub(crate) mod transfer;
pub(crate) mod verify;
pub(crate) mod workers;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::control::journal::Hold;
use crate::mover::control::session::Session;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::error::Error;

/// A shard that is copied, or verified: the claim, the schema at the source and the schema at the
/// target.
#[derive(Clone, Debug)]
pub(crate) struct ShardCopy {
    pub(crate) hold: Hold,
    pub(crate) source_schema: String,
    pub(crate) target_schema: String,
    pub(crate) tables: Vec<TableShape>,
}

impl ShardCopy {
    pub(crate) fn shard(&self) -> ShardId {
        self.hold.shard
    }

    pub(crate) fn table(&self, name: &str) -> Option<&TableShape> {
        self.tables.iter().find(|table| table.name == name)
    }
}

/// The source and the target.
#[derive(Clone, Debug)]
pub(crate) struct Route {
    pub(crate) source: HostName,
    pub(crate) target: HostName,
}

/// Proves, until the end of the target's transaction, that this mover holds the lease. A takeover
/// waits for the row, and after a takeover this finds no row. Other sessions of the same mover may
/// prove it at the same time.
///
/// Locks: the row of pgshard.incoming, FOR SHARE, until the end of the transaction.
pub(crate) async fn prove_lease(target: &Session, hold: Hold) -> Result<(), Error> {
    let sql = "SELECT FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2 AND lease = $3 \
        FOR SHARE";
    let rows = target
        .rows(
            "proving the lease",
            sql,
            &[&hold.shard.as_i32(), hold.id.uuid(), &hold.lease],
        )
        .await?;
    if rows.is_empty() {
        Err(Error::LeaseLost { shard: hold.shard })
    } else {
        Ok(())
    }
}
