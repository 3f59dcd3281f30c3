//! How fast a batch goes, which servers it uses, and the answer of one of its jobs.

use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::router::{Error, Reach, Router, Sql};
use crate::shard::ShardId;

/// How fast a batch goes, and how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Connections of a host, at least 1.
    pub(super) width: usize,
    /// Statements on their way on one connection, at least 1.
    pub(super) depth: usize,
    /// How long the batch may take, from the request for its first result. `None`: as long as any
    /// call.
    pub(super) deadline: Option<Duration>,
}

/// Which servers of the shards' hosts are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Servers {
    Primaries,
    /// Standbys where [`Reads`](crate::router::Reads) would use one, each statement by itself.
    Standbys,
}

/// A job, by its place in the batch, and how it ended.
pub(super) type Answer = (usize, Result<Vec<Row>, Error>);

impl Servers {
    /// Runs a statement by itself, in the way that handles moves.
    pub(super) async fn run_alone(
        self,
        router: &Router,
        (shard, reach): (ShardId, Reach),
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, Error> {
        let shard = router.reaching(shard, reach)?;
        match self {
            Servers::Primaries => shard.query(sql, params).await,
            Servers::Standbys => shard.reads().query(sql, params).await,
        }
    }
}
