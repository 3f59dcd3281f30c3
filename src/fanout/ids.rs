//! One statement for many IDs, each on the shard that it names.

use std::collections::BTreeMap;

use tokio_postgres::Row;

use super::gather::{Gather, Shards, gather};
use crate::router::{Error, Router, SqlText};
use crate::shard::ShardId;

impl Router {
    /// The rows of these IDs, wherever they are.
    pub fn by_ids(&self, ids: &[i64]) -> ByIds {
        let mut wanted: BTreeMap<ShardId, Vec<i64>> = BTreeMap::new();
        let mut unknown = None;
        for id in ids {
            match self.by_id(*id) {
                Ok(shard) => wanted.entry(shard.id()).or_default().push(*id),
                Err(error) => {
                    unknown.get_or_insert(error);
                }
            }
        }
        ByIds { router: self.clone(), wanted, unknown, width: Shards::WIDTH }
    }
}

/// IDs grouped by their shards.
#[derive(Debug)]
#[must_use]
pub struct ByIds {
    router: Router,
    wanted: BTreeMap<ShardId, Vec<i64>>,
    /// The first number that is no ID of this cluster.
    unknown: Option<Error>,
    width: usize,
}

impl ByIds {
    /// How many shards of one host are asked at a time, at least 1; [`Shards::WIDTH`] where nothing is said.
    pub fn width(mut self, shards_per_host: usize) -> ByIds {
        self.width = shards_per_host.max(1);
        self
    }

    /// Runs the statement on each of the shards, with that shard's IDs as `$1`, a `bigint[]`
    /// (`WHERE id = ANY($1)`). All rows with their shards; in no order.
    ///
    /// # Errors
    /// When a number is no ID of this cluster (nothing is sent then), or the first failure of a shard. To have the rows of
    /// the others all the same, use [`ByIds::each`].
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn query<'s>(self, sql: impl Into<SqlText<'s>>) -> Result<Vec<(ShardId, Row)>, Error> {
        let mut results = self.each(sql)?;
        let mut all = Vec::new();
        while let Some((shard, rows)) = results.next().await {
            all.extend(rows?.into_iter().map(|row| (shard, row)));
        }
        Ok(all)
    }

    /// As [`ByIds::query`], each shard's rows or failure as it comes.
    ///
    /// # Errors
    /// When a number is no ID of this cluster.
    pub fn each<'s>(self, sql: impl Into<SqlText<'s>>) -> Result<Gather<'static>, Error> {
        if let Some(error) = self.unknown {
            return Err(error);
        }
        let sql = sql.into().to_sql();
        Ok(gather(&self.router, self.wanted, self.width, move |router, shard, ids: Vec<i64>| {
            let sql = sql.clone();
            async move { router.shard(shard)?.query(&sql, &[&ids]).await }
        }))
    }
}
