//! One statement for many keys, and the first rows of all of them in an order, as for a feed.

use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::Row;

use super::batch::Batch;
use super::ids::unreadable;
use super::job::{Pace, Servers};
use super::merged::{MergeRequest, MergedRows};
use super::params::Source;
use super::partial::{Failures, Partial};
use super::values::{KeyArray, Values, WithKeys};
use crate::router::{Error, Reach, Router, SqlText};
use crate::shard::{Key, ShardId};

impl Router {
    /// The rows of these keys, wherever they are: any that [`Router::by_key`] takes. A key that is
    /// given twice is looked up once.
    ///
    /// # Errors
    /// [`Error::WrongKey`] when the cluster's keys are of another kind.
    pub fn by_keys<K: Key>(&self, keys: &[K]) -> Result<ByKeys<K::Owned>, Error> {
        let mut wanted: BTreeMap<ShardId, Vec<K::Owned>> = BTreeMap::new();
        for key in keys {
            wanted
                .entry(self.try_by_key(key)?.id())
                .or_default()
                .push(key.to_key());
        }
        for keys in wanted.values_mut() {
            keys.sort_unstable();
            keys.dedup();
        }
        let pace = Pace {
            width: 2,
            depth: 32,
            deadline: None,
        };
        Ok(ByKeys {
            router: self.clone(),
            wanted: wanted.into_iter().collect(),
            pace,
            servers: Servers::Primaries,
        })
    }
}

/// Keys grouped by their shards.
#[derive(Clone, Debug)]
#[must_use]
pub struct ByKeys<K> {
    router: Router,
    wanted: Arc<[(ShardId, Vec<K>)]>,
    pace: Pace,
    servers: Servers,
}

impl<K: Key<Owned = K> + Clone + Send + Sync + 'static> ByKeys<K> {
    /// How many connections to one host are used at a time, at least 1. Default 2. See
    /// [`Shards::width`](super::Shards::width).
    pub fn width(mut self, connections_per_host: usize) -> ByKeys<K> {
        self.pace.width = connections_per_host.max(1);
        self
    }

    /// How many statements are on their way on one connection, at least 1. Default 32. See
    /// [`Shards::depth`](super::Shards::depth).
    pub fn depth(mut self, statements_per_connection: usize) -> ByKeys<K> {
        self.pace.depth = statements_per_connection.max(1);
        self
    }

    /// Reads on standbys, as [`Shard::reads`](crate::router::Shard::reads) does for each shard:
    /// where one is near enough, and else, or when it fails there, on the primary. What does not
    /// only read fails with [`Error::NotARead`]. A statement goes by itself, not pipelined behind
    /// others.
    pub fn reads(mut self) -> ByKeys<K> {
        self.servers = Servers::Standbys;
        self
    }

    /// How long the whole call may take; see [`Shards::deadline`](super::Shards::deadline).
    pub fn deadline(mut self, deadline: Duration) -> ByKeys<K> {
        self.pace.deadline = Some(deadline);
        self
    }

    /// Runs the statement on each of the shards, with that shard's keys as `$1`, an array
    /// (`bigint[]`, `integer[]`, `smallint[]`, `text[]`, `uuid[]`). Returns all rows with their
    /// shards, in no order.
    ///
    /// # Errors
    /// When a shard failed. The error has the rows of the other shards, and the keys of those that
    /// failed. A key that does not fit the array's type is refused before anything is sent.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn query<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
    ) -> Result<Vec<(ShardId, Row)>, Partial<Vec<(ShardId, Row)>, K>> {
        let mut done = Vec::new();
        let failed = self.run(sql.into(), Values::new(Vec::new()), |shard, rows| {
            done.extend(rows.into_iter().map(|row| (shard, row)));
            Ok(())
        });
        let failed = failed.await;
        failed.or(done, self.wanted.len())
    }

    /// The first `limit` rows of all these keys together, in the order that `order` gives each row,
    /// merged from all shards. Rows that are equal by it come in the order of their shards: let the
    /// last part of `order` distinguish any two rows, as the ID does.
    ///
    /// The statement gets that shard's keys as `$1` and `params` from `$2` on. Give it the same
    /// order and the same LIMIT, so that no shard sends more than can be on the page. For the next
    /// page it begins behind the last row of this one:
    ///
    /// ```no_run
    /// # type Answer = Result<(), Box<dyn std::error::Error>>;
    /// # async fn example(router: pgshard::Router, followed: &[i64]) -> Answer {
    /// use std::cmp::Reverse;
    ///
    /// // The most liked first; of two that are liked as much, the newer.
    /// let sql = "SELECT id, likes, title FROM {shard}.photos
    ///     WHERE user_id = ANY($1) AND (likes, id) < ($2, $3)
    ///     ORDER BY likes DESC, id DESC LIMIT 50";
    /// let (likes, id) = (i32::MAX, i64::MAX);
    /// let page = router.by_keys(followed)?.merge(sql, pgshard::params![likes, id], 50, |row| {
    ///     Ok(Reverse((row.try_get::<_, i32>(1)?, row.try_get::<_, i64>(0)?)))
    /// }).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// This needs memory for `limit` rows, and for those of the shards that answer at that moment.
    /// Texts are compared by their bytes: order by them with `COLLATE "C"`.
    ///
    /// # Errors
    /// When a shard failed. The error has the page of the other shards, and the keys of those that
    /// failed. A shard with a row that `order` cannot read has failed.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn merge<'s, O: Ord>(
        self,
        sql: impl Into<SqlText<'s>>,
        params: Values,
        limit: usize,
        order: impl Fn(&Row) -> Result<O, tokio_postgres::Error>,
    ) -> Result<Vec<(ShardId, Row)>, Partial<Vec<(ShardId, Row)>, K>> {
        let mut merge = Merge::new(limit);
        let sql = sql.into().to_sql();
        let failed = self.run((&sql).into(), params, |shard, rows| {
            let unreadable = |source| unreadable(&self.router, &sql, shard, source);
            let placed = rows.into_iter().map(|row| Ok((order(&row)?, row)));
            let placed: Vec<(O, Row)> = placed.collect::<Result<_, _>>().map_err(unreadable)?;
            for (order, row) in placed {
                merge.add((order, shard), (shard, row));
            }
            Ok(())
        });
        let failed = failed.await;
        failed.or(merge.end(), self.wanted.len())
    }

    /// All rows of these keys as a stream, merged in the order that `order` gives each row, in
    /// bounded memory: [`Shards::merge_raw`](super::Shards::merge_raw), with that shard's keys as
    /// `$1` and `params` from `$2` on.
    ///
    /// # Errors
    /// As there.
    ///
    /// # Cancel safety
    /// As there.
    pub async fn merge_raw<'s, O: Ord + Send + 'static>(
        &self,
        sql: impl Into<SqlText<'s>>,
        params: Values,
        order: impl Fn(&Row) -> Result<O, tokio_postgres::Error> + Send + 'static,
    ) -> Result<MergedRows, Error> {
        let values = Arc::new(params);
        let params = self.wanted.iter().map(|(_, keys)| {
            Box::new(WithKeys {
                keys: KeyArray(keys.clone()),
                values: values.clone(),
            }) as _
        });
        let wanted = MergeRequest {
            shards: self.wanted.iter().map(|(shard, _)| *shard).collect(),
            params: params.collect(),
            reach: Reach::Keys,
            servers: self.servers,
        };
        let limit = self.pace.deadline;
        MergedRows::open(&self.router, sql.into(), wanted, limit, order).await
    }

    async fn run(
        &self,
        sql: SqlText<'_>,
        values: Values,
        mut take: impl FnMut(ShardId, Vec<Row>) -> Result<(), Error>,
    ) -> Failures<K> {
        let (wanted, values) = (self.wanted.clone(), Arc::new(values));
        let params = move |at: usize| WithKeys {
            keys: KeyArray(Vec::clone(&wanted[at].1)),
            values: values.clone(),
        };
        let batch = Batch {
            router: self.router.clone(),
            sql: sql.to_sql(),
            shards: self.wanted.iter().map(|(shard, _)| *shard).collect(),
            reach: Reach::Keys,
            params: Source::Owned(Arc::new(move |at| Box::new(params(at)))),
            pace: self.pace,
            servers: self.servers,
        };
        let mut answers = batch.run();
        let mut failed = Failures::new(&answers);
        while let Some((at, result)) = answers.next().await {
            let (shard, keys) = &self.wanted[at];
            if let Err(error) = result.and_then(|rows| take(*shard, rows)) {
                failed.add(*shard, keys.clone(), error);
            }
        }
        failed
    }
}

/// Keeps the first of all that come, `limit` at most.
struct Merge<O, T> {
    limit: usize,
    /// The last on top.
    kept: BinaryHeap<Kept<O, T>>,
}

struct Kept<O, T> {
    order: O,
    value: T,
}

impl<O: Ord, T> Merge<O, T> {
    fn new(limit: usize) -> Merge<O, T> {
        Merge {
            limit,
            kept: BinaryHeap::new(),
        }
    }

    fn add(&mut self, order: O, value: T) {
        self.kept.push(Kept { order, value });
        if self.kept.len() > self.limit {
            self.kept.pop();
        }
    }

    /// The values, the first one first.
    fn end(self) -> Vec<T> {
        let kept = self.kept.into_sorted_vec();
        kept.into_iter().map(|kept| kept.value).collect()
    }
}

impl<O: Ord, T> PartialEq for Kept<O, T> {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl<O: Ord, T> Eq for Kept<O, T> {}

impl<O: Ord, T> PartialOrd for Kept<O, T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<O: Ord, T> Ord for Kept<O, T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

#[cfg(test)]
mod tests {
    use std::cmp::Reverse;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Page by page, in whatever order shards answer, everything comes once and in order: by a
        /// number that repeats, descending, and then by one that does not.
        #[test]
        fn pages_are_all_there_is(
            rows in prop::collection::btree_map(any::<i64>(), 0_u8..4, 0..60),
            limit in 1usize..9,
            turn in 0usize..60
        ) {
            let order = |(id, likes): (&i64, &u8)| (Reverse(*likes), *id);
            let mut all: Vec<_> = rows.iter().map(order).collect();
            all.sort_unstable();
            let (mut read, mut last) = (Vec::new(), None);
            loop {
                let mut merge = Merge::new(limit);
                let turned = rows.iter().cycle().skip(turn).take(rows.len()).map(order);
                for row in turned.filter(|row| last.is_none_or(|last| *row > last)) {
                    merge.add(row, row);
                    prop_assert!(merge.kept.len() <= limit);
                }
                let page = merge.end();
                let full = page.len() == limit;
                last = page.last().copied();
                read.extend(page);
                if !full {
                    break;
                }
            }
            prop_assert_eq!(read, all);
        }
    }
}
