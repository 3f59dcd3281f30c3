//! One statement for many keys, and the newest rows of all of them, as for a feed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::batch::{Batch, Pace, Servers};
use super::ids::unreadable;
use super::params::{Params, Source};
use super::partial::{Failures, Partial};
use crate::router::{Error, Router, SqlText};
use crate::shard::{Key, ShardId};

impl Router {
    /// The rows of these keys, wherever they are. A key that is given twice is asked for once.
    ///
    /// # Errors
    /// [`Error::WrongKey`] when the cluster's keys are of another kind.
    pub fn by_keys<K>(&self, keys: &[K]) -> Result<ByKeys<K>, Error>
    where
        K: Key + Ord + Clone + ToSql + Send + Sync + 'static,
    {
        let mut wanted: BTreeMap<ShardId, Vec<K>> = BTreeMap::new();
        for key in keys {
            wanted
                .entry(self.try_by_key(key)?.id())
                .or_default()
                .push(key.clone());
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

/// The newest rows of many shards.
#[derive(Debug)]
pub struct Page {
    /// The newest first: by their IDs, as `bigint` orders them.
    pub rows: Vec<(ShardId, Row)>,
    /// The `before` of the next page, whose rows have smaller IDs than this. `None` when there are
    /// no more.
    pub next: Option<i64>,
}

/// The parameters of [`ByKeys::newest`], as they are when a shard's turn comes.
struct Newest<K> {
    keys: Vec<K>,
    after: i64,
    before: i64,
    limit: i64,
}

impl<K: ToSql + Send + Sync> Params for Newest<K> {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.keys, &self.after, &self.before, &self.limit]
    }
}

struct Keys<K>(Vec<K>);

impl<K: ToSql + Send + Sync> Params for Keys<K> {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        vec![&self.0]
    }
}

impl<K: Key + Clone + ToSql + Send + Sync + 'static> ByKeys<K> {
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

    /// Runs the statement on each of the shards, with that shard's keys as `$1`, an array. Returns
    /// all rows with their shards, in no order.
    ///
    /// # Errors
    /// When a shard failed. The error has the rows of the other shards, and the keys of those that
    /// failed.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn query<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
    ) -> Result<Vec<(ShardId, Row)>, Partial<Vec<(ShardId, Row)>, K>> {
        let mut done = Vec::new();
        let failed = self.run(
            sql.into(),
            |keys| Keys(keys.clone()),
            |shard, rows| {
                done.extend(rows.into_iter().map(|row| (shard, row)));
                Ok(())
            },
        );
        let failed = failed.await;
        failed.or(done, self.wanted.len())
    }

    /// The newest rows of all these keys together: the first `limit` by ID that are older than
    /// `before`, merged from all shards. For the first page `before` is `i64::MAX`. For another
    /// page it is [`Page::next`] of the page before.
    ///
    /// The first column of the statement is the ID, a `bigint`. It is run once a shard, with `$1`
    /// that shard's keys, `$2` and `$3` the IDs between which its rows are wanted, both excluded,
    /// and `$4` how many:
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router, followed: &[i64]) -> Result<(), Box<dyn std::error::Error>> {
    /// let sql = "SELECT id, user_id, title FROM {shard}.photos
    ///     WHERE user_id = ANY($1) AND id > $2 AND id < $3 ORDER BY id DESC LIMIT $4";
    /// let page = router.by_keys(followed)?.newest(sql, i64::MAX, 50).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// This needs memory for `limit` rows, and for those of the shards that answer at that moment.
    /// Once the page is full, `$2` is the smallest ID on it, so that the later shards send little.
    /// Two rows with the same ID may fall on both sides of a page's end, and then the second is on
    /// no page: IDs are meant to be unique.
    ///
    /// # Errors
    /// When a shard failed. The error has the page of the other shards, and the keys of those that
    /// failed.
    ///
    /// # Cancel safety
    /// As [`Shard::query`](crate::router::Shard::query).
    pub async fn newest<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
        before: i64,
        limit: usize,
    ) -> Result<Page, Partial<Page, K>> {
        let mut merge = Merge::new(limit);
        let floor = merge.floor.clone();
        let wanted = i64::try_from(limit).unwrap_or(i64::MAX);
        let params = move |keys: &Vec<K>| Newest {
            keys: keys.clone(),
            after: floor.load(Ordering::Relaxed),
            before,
            limit: wanted,
        };
        let sql = sql.into().to_sql();
        let failed = self.run((&sql).into(), params, |shard, rows| {
            for row in rows {
                let id = row
                    .try_get(0)
                    .map_err(|source| unreadable(&self.router, &sql, shard, source))?;
                merge.add(id, (shard, row));
            }
            Ok(())
        });
        let failed = failed.await;
        let (next, rows) = merge.end();
        failed.or(Page { rows, next }, self.wanted.len())
    }

    async fn run<P: Params + 'static>(
        &self,
        sql: SqlText<'_>,
        params: impl Fn(&Vec<K>) -> P + Send + Sync + 'static,
        mut take: impl FnMut(ShardId, Vec<Row>) -> Result<(), Error>,
    ) -> Failures<K> {
        let wanted = self.wanted.clone();
        let batch = Batch {
            router: self.router.clone(),
            sql: sql.to_sql(),
            shards: self.wanted.iter().map(|(shard, _)| *shard).collect(),
            params: Source::Owned(Arc::new(move |at| Box::new(params(&wanted[at].1)))),
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

/// Keeps the largest of all that come, `limit` at most.
struct Merge<T> {
    limit: usize,
    /// The smallest on top.
    kept: BinaryHeap<Reverse<Kept<T>>>,
    /// Only what is larger than this can still get in.
    floor: Arc<AtomicI64>,
}

struct Kept<T> {
    id: i64,
    value: T,
}

impl<T> Merge<T> {
    fn new(limit: usize) -> Merge<T> {
        Merge {
            limit,
            kept: BinaryHeap::new(),
            floor: Arc::new(AtomicI64::new(i64::MIN)),
        }
    }

    fn add(&mut self, id: i64, value: T) {
        self.kept.push(Reverse(Kept { id, value }));
        if self.kept.len() > self.limit {
            self.kept.pop();
        }
        if let Some(Reverse(smallest)) = self.kept.peek().filter(|_| self.kept.len() == self.limit)
        {
            self.floor.store(smallest.id, Ordering::Relaxed);
        }
    }

    /// The smallest ID of a full page, and the values, the one with the largest ID first.
    fn end(self) -> (Option<i64>, Vec<T>) {
        let full = self.limit > 0 && self.kept.len() == self.limit;
        let next = self
            .kept
            .peek()
            .filter(|_| full)
            .map(|Reverse(smallest)| smallest.id);
        // The smallest `Reverse` comes first, which is the largest ID.
        let kept = self.kept.into_sorted_vec();
        (
            next,
            kept.into_iter().map(|Reverse(kept)| kept.value).collect(),
        )
    }
}

impl<T> PartialEq for Kept<T> {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl<T> Eq for Kept<T> {}

impl<T> PartialOrd for Kept<T> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Kept<T> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.id.cmp(&other.id)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Page by page, in whatever order shards answer, everything comes once and in order.
        #[test]
        fn pages_are_all_there_is(
            ids in prop::collection::btree_set(any::<i64>(), 0..60),
            limit in 1usize..9,
            turn in 0usize..60
        ) {
            let all: Vec<i64> = ids.iter().rev().copied().filter(|id| *id != i64::MAX).collect();
            let (mut read, mut before) = (Vec::new(), i64::MAX);
            loop {
                let mut merge = Merge::new(limit);
                let turned = ids.iter().cycle().skip(turn).take(ids.len());
                for id in turned.filter(|id| **id < before) {
                    // What a shard leaves out because of the floor makes no difference.
                    if *id > merge.floor.load(Ordering::Relaxed) || *id == i64::MIN {
                        merge.add(*id, *id);
                    }
                    prop_assert!(merge.kept.len() <= limit);
                }
                let (next, page) = merge.end();
                read.extend(page);
                match next {
                    Some(id) => before = id,
                    None => break,
                }
            }
            prop_assert_eq!(read.iter().copied().collect::<BTreeSet<_>>().len(), read.len());
            prop_assert_eq!(read, all);
        }
    }
}
