//! One statement for many IDs, each on the shard that it names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::batch::{Answers, Batch};
use super::gather::Gather;
use super::job::{Pace, Servers};
use super::params::{Params, Source};
use super::partial::{Failures, Partial};
use crate::id::Id;
use crate::router::{Error, Reach, Router, Sql, SqlText};
use crate::shard::ShardId;

impl Router {
    /// The rows of these IDs, wherever they are. One statement reads all IDs of a shard, and many
    /// statements are on their way at a time.
    ///
    /// - An ID that is given twice is read once.
    /// - An ID that no row has gives no row.
    /// - An ID that names a shard the cluster does not have fails with [`Error::NoSuchId`], as its
    ///   own shard's failure; the others are not held up. So does one that was made before there
    ///   were shards, with [`Error::LegacyId`].
    pub fn by_ids(&self, ids: &[i64]) -> ByIds {
        let mut order = HashMap::with_capacity(ids.len());
        let mut wanted: BTreeMap<ShardId, Vec<i64>> = BTreeMap::new();
        let mut legacy: BTreeMap<ShardId, Vec<i64>> = BTreeMap::new();
        for id in ids {
            let place = order.len();
            order.entry(*id).or_insert_with(|| {
                let of_kind = match self.legacy(*id) {
                    None => &mut wanted,
                    Some(_) => &mut legacy,
                };
                let shard = Id::decode(*id).shard();
                of_kind.entry(shard).or_default().push(*id);
                place
            });
        }
        ByIds {
            router: self.clone(),
            wanted: wanted.into_iter().collect(),
            legacy,
            order,
            pace: ByIds::PACE,
            servers: Servers::Primaries,
        }
    }
}

/// IDs grouped by their shards.
#[derive(Clone, Debug)]
#[must_use]
pub struct ByIds {
    router: Router,
    wanted: Arc<[(ShardId, Vec<i64>)]>,
    /// The IDs that were made before there were shards, by what would be their shard.
    legacy: BTreeMap<ShardId, Vec<i64>>,
    /// The place of each ID in the list, each counted once.
    order: HashMap<i64, usize>,
    pace: Pace,
    servers: Servers,
}

impl Params for Vec<i64> {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![self]
    }
}

/// What [`ByIds`] gives when some of the shards failed.
pub type MissingIds<T> = Partial<T, i64>;

impl ByIds {
    /// The statements are short, so that many are on their way on few connections.
    const PACE: Pace = Pace {
        width: 2,
        depth: 32,
        deadline: None,
    };

    /// How many connections to one host are used at a time, at least 1. Default 2. See
    /// [`Shards::width`](super::Shards::width).
    pub fn width(mut self, connections_per_host: usize) -> ByIds {
        self.pace.width = connections_per_host.max(1);
        self
    }

    /// How many statements are on their way on one connection, at least 1. Default 32. See
    /// [`Shards::depth`](super::Shards::depth).
    pub fn depth(mut self, statements_per_connection: usize) -> ByIds {
        self.pace.depth = statements_per_connection.max(1);
        self
    }

    /// Reads on standbys, as [`Shard::reads`](crate::router::Shard::reads) does for each shard:
    /// where one is near enough, and else, or when it fails there, on the primary. What does not
    /// only read fails with [`Error::NotARead`]. A statement goes by itself, not pipelined behind
    /// others.
    pub fn reads(mut self) -> ByIds {
        self.servers = Servers::Standbys;
        self
    }

    /// How long the whole call may take; see [`Shards::deadline`](super::Shards::deadline).
    pub fn deadline(mut self, deadline: Duration) -> ByIds {
        self.pace.deadline = Some(deadline);
        self
    }

    /// Runs the statement on each of the shards, with that shard's IDs as `$1`, a `bigint[]`
    /// (`WHERE id = ANY($1)`). Returns all rows with their shards, in no order.
    ///
    /// # Errors
    /// When a shard failed. The error has the rows of the other shards, and the IDs of those that
    /// failed. `?` in a function that gives [`Error`] makes an [`Error::Partial`] of it.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn query<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
    ) -> Result<Vec<(ShardId, Row)>, MissingIds<Vec<(ShardId, Row)>>> {
        let mut all = Vec::new();
        let failed = self.run(sql.into(), |shard, rows| {
            all.extend(rows.into_iter().map(|row| (shard, row)));
            Ok(())
        });
        let failed = failed.await;
        failed.or(all, self.wanted.len() + self.legacy.len())
    }

    /// As [`ByIds::query`], the rows in the order of the given IDs. The first column of each row
    /// must be the ID, a `bigint`, that it belongs to. An ID may have several rows; they stay in
    /// their shard's order. Rows of other IDs come last.
    ///
    /// # Errors
    /// As [`ByIds::query`]; a shard with a first column that is no `bigint` has failed.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn query_in_order<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
    ) -> Result<Vec<Row>, MissingIds<Vec<Row>>> {
        let mut placed: Vec<(usize, Row)> = Vec::new();
        let sql = sql.into().to_sql();
        let failed = self.run((&sql).into(), |shard, rows| {
            for row in rows {
                let id: i64 = row
                    .try_get(0)
                    .map_err(|source| unreadable(&self.router, &sql, shard, source))?;
                placed.push((self.order.get(&id).copied().unwrap_or(usize::MAX), row));
            }
            Ok(())
        });
        let failed = failed.await;
        placed.sort_by_key(|(place, _)| *place);
        let done = placed.into_iter().map(|(_, row)| row).collect();
        failed.or(done, self.wanted.len() + self.legacy.len())
    }

    /// As [`ByIds::query`], each shard's rows or failure as it comes.
    pub fn each<'s>(self, sql: impl Into<SqlText<'s>>) -> Gather<'static> {
        let shards = self.wanted.iter().map(|(shard, _)| *shard).collect();
        let refused = self.refused().map(|(shard, _, error)| (shard, error));
        Gather::new(self.answers(sql.into()), shards).with_refused(refused.collect())
    }

    /// The IDs that were made before there were shards, by what would be their shard.
    fn refused(&self) -> impl Iterator<Item = (ShardId, &Vec<i64>, Error)> {
        self.legacy.iter().filter_map(|(shard, ids)| {
            let error = self.router.legacy(*ids.first()?)?;
            Some((*shard, ids, error))
        })
    }

    fn answers(&self, sql: SqlText<'_>) -> Answers<'static> {
        let wanted = self.wanted.clone();
        let batch = Batch {
            router: self.router.clone(),
            sql: sql.to_sql(),
            shards: self.wanted.iter().map(|(shard, _)| *shard).collect(),
            reach: Reach::Keys,
            params: Source::Owned(Arc::new(move |at| Box::new(wanted[at].1.clone()))),
            pace: self.pace,
            servers: self.servers,
        };
        batch.run()
    }

    /// Runs the statement, gives the rows of each shard to `take`, and returns what failed.
    async fn run(
        &self,
        sql: SqlText<'_>,
        mut take: impl FnMut(ShardId, Vec<Row>) -> Result<(), Error>,
    ) -> Failures<i64> {
        let mut answers = self.answers(sql);
        let mut failed = Failures::new(&answers);
        for (shard, ids, error) in self.refused() {
            failed.add(shard, ids.clone(), error);
        }
        while let Some((at, result)) = answers.next().await {
            let (shard, ids) = &self.wanted[at];
            if let Err(error) = result.and_then(|rows| take(*shard, rows)) {
                let error = match (error, ids.first()) {
                    (Error::NoSuchShard { shard, shards }, Some(id)) => Error::NoSuchId {
                        id: *id,
                        shard,
                        shards,
                    },
                    (error, _) => error,
                };
                failed.add(*shard, ids.clone(), error);
            }
        }
        failed
    }
}

/// The error for rows that are not what the call needs. The statement has run.
pub(super) fn unreadable(
    router: &Router,
    sql: &Sql,
    shard: ShardId,
    source: tokio_postgres::Error,
) -> Error {
    match router.shard(shard) {
        Ok(handle) => Error::Decode {
            shard,
            host: handle.host(),
            may_have_run: !router.only_reads(sql),
            source: source.into(),
        },
        Err(error) => error,
    }
}
