//! Unlogged tables of an online move: the stream does not bring their changes, so their rows are
//! copied behind the fence.
//!
//! Invariant: the marker is written only when the rows are there and committed. So a target that is
//! ready for an attempt has the rows of that attempt, whichever process opens it, and whatever
//! happened to the mover.
//!
//! Before: the shard is fenced, and no transaction has locks on it. After: the target's unlogged
//! tables have the source's rows. If the mover dies in between, the marker was not written, and the
//! next attempt empties the tables first.

use std::time::Instant;

use crate::mover::copy::transfer;
use crate::mover::preflight::table::{self, TableShape};
use crate::mover::protocol::desired::UnloggedRows;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::throttle::Throttle;
use crate::mover::step::ShardMove;

const CARRYING: &str = "copying unlogged tables";

impl ShardMove<'_> {
    /// The last thing before the target's tables are locked for the open: empties its unlogged
    /// tables of what an earlier attempt has copied, or of what an old copy had. Returns those that
    /// get rows behind the fence.
    ///
    /// Locks: on the target ACCESS EXCLUSIVE on unlogged tables that are not in use, and the row of
    /// pgshard.incoming, for one transaction; on the source ACCESS SHARE on catalogs.
    pub(crate) async fn empty_unlogged(&self, schema: u32) -> Result<Vec<TableShape>, Error> {
        let tables = table::unlogged(&self.source, schema).await?;
        if tables.is_empty() {
            return Ok(tables);
        }
        let incoming = self.names.incoming();
        let names: Vec<String> = tables
            .iter()
            .map(|table| transfer::qualified(&incoming, table))
            .collect();
        self.begin_on_target(CARRYING).await?;
        // All in one statement, because there may be foreign keys among them. Other tables cannot
        // refer to them.
        self.target
            .batch(
                CARRYING,
                &format!("TRUNCATE ONLY {}", names.join(", ONLY ")),
            )
            .await?;
        self.at("in empty unlogged")?;
        self.target.batch(CARRYING, "COMMIT").await?;
        Ok(match self.options.unlogged {
            UnloggedRows::Carried => tables,
            UnloggedRows::Left => Vec::new(),
        })
    }

    /// Behind the fence: copies the rows, compares them, and commits.
    ///
    /// Locks: on the source ACCESS SHARE on tables that no other session uses; on the target ROW
    /// EXCLUSIVE on tables that are not in use, and the row of pgshard.incoming; for one
    /// transaction that takes as long as the rows take.
    pub(crate) async fn carry_unlogged(&self, tables: &[TableShape]) -> Result<(), Error> {
        let began = Instant::now();
        let (left, incoming) = (self.names.left(self.epoch), self.names.incoming());
        self.begin_on_target(CARRYING).await?;
        for table in tables {
            let (out, into) = transfer::statements(table, &left, &incoming, "true");
            transfer::pipe(
                (&self.source, &out),
                (&self.target, &into),
                &Throttle::open(),
                |_| (),
            )
            .await?;
        }
        self.compare(tables, &left, &incoming).await?;
        self.at("in unlogged")?;
        self.target.batch(CARRYING, "COMMIT").await?;
        self.timings.since("unlogged", began);
        self.at("after unlogged")
    }
}
