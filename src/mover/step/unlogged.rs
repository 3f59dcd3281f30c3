//! Unlogged tables of an online move: no stream has their changes, so their rows come behind the fence.
//!
//! Invariant: the marker is written when the rows are there, committed. So a target that is ready for an attempt has
//! those of that attempt, whoever opens it, whatever became of the mover.
//!
//! Before: the shard is fenced, and no transaction has locks on it. After: the target's unlogged tables have the rows
//! that the source's have. Dies halfway: the marker was not written, and the next attempt empties them first.

use std::time::Instant;

use crate::mover::copy::transfer;
use crate::mover::preflight::table::{self, TableShape};
use crate::mover::protocol::desired::UnloggedRows;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::throttle::Throttle;
use crate::mover::step::ShardMove;

const CARRYING: &str = "copying unlogged tables";

impl ShardMove<'_> {
    /// The last thing before the hold on the target's tables: its unlogged ones are emptied of what an earlier attempt
    /// has brought, or of what an old copy had. Gives those that get rows behind the fence.
    ///
    /// Locks: on the target ACCESS EXCLUSIVE on unlogged tables that nobody knows, and the row of pgshard.incoming, for
    /// one transaction; on the source ACCESS SHARE on catalogs.
    pub(crate) async fn empty_unlogged(&self, schema: u32) -> Result<Vec<TableShape>, Error> {
        let tables = table::unlogged(&self.source, schema).await?;
        if tables.is_empty() {
            return Ok(tables);
        }
        let incoming = self.names.incoming();
        let names: Vec<String> = tables.iter().map(|table| transfer::qualified(&incoming, table)).collect();
        self.begin_on_target(CARRYING).await?;
        // All in one statement: there may be foreign keys between them, and there are none of other tables to them.
        self.target.batch(CARRYING, &format!("TRUNCATE ONLY {}", names.join(", ONLY "))).await?;
        self.at("in empty unlogged")?;
        self.target.batch(CARRYING, "COMMIT").await?;
        Ok(match self.options.unlogged {
            UnloggedRows::Carried => tables,
            UnloggedRows::Left => Vec::new(),
        })
    }

    /// Behind the fence: the rows, compared, and committed.
    ///
    /// Locks: on the source ACCESS SHARE on tables that nobody else uses; on the target ROW EXCLUSIVE on tables that
    /// nobody knows, and the row of pgshard.incoming; for one transaction that takes as long as the rows do.
    pub(crate) async fn carry_unlogged(&self, tables: &[TableShape]) -> Result<(), Error> {
        let began = Instant::now();
        let (left, incoming) = (self.names.left(self.epoch), self.names.incoming());
        self.begin_on_target(CARRYING).await?;
        for table in tables {
            let (out, into) = transfer::statements(table, &left, &incoming, "true");
            transfer::pipe((&self.source, &out), (&self.target, &into), &Throttle::open(), |_| ()).await?;
        }
        self.compare(tables, &left, &incoming).await?;
        self.at("in unlogged")?;
        self.target.batch(CARRYING, "COMMIT").await?;
        self.timings.since("unlogged", began);
        self.at("after unlogged")
    }
}
