//! The rows of many shards as they come, merged by an order, in bounded memory.

use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use tokio_postgres::{Error as PgError, Row};

use super::job::Servers;
use super::params::Params;
use crate::router::{Cursors, Error, Reach, Router, SqlText};
use crate::shard::ShardId;

/// The rows of [`Shards::merge_raw`](super::Shards::merge_raw) and
/// [`ByKeys::merge_raw`](super::ByKeys::merge_raw), each with its shard: a [`Stream`] that owns
/// what it needs. Its first error is its last item, because the rows that would follow are not
/// known to be the next.
#[must_use = "rows are read when the stream is polled"]
pub struct MergedRows(BoxStream<'static, Result<(ShardId, Row), Error>>);

/// The shards of a merge, and each shard's parameters.
pub(super) struct MergeRequest {
    pub(super) shards: Vec<ShardId>,
    pub(super) params: Vec<Box<dyn Params>>,
    pub(super) reach: Reach,
    pub(super) servers: Servers,
}

impl MergedRows {
    /// Opens a cursor on each shard; `limit` is for the time until all have their first rows.
    pub(super) async fn open<O: Ord + Send + 'static>(
        router: &Router,
        sql: SqlText<'_>,
        wanted: MergeRequest,
        limit: Option<Duration>,
        order: impl Fn(&Row) -> Result<O, PgError> + Send + 'static,
    ) -> Result<MergedRows, Error> {
        let MergeRequest {
            shards,
            params,
            reach,
            servers,
        } = wanted;
        let Some(first) = shards.first() else {
            return Ok(MergedRows(stream::empty().boxed()));
        };
        if servers == Servers::Standbys {
            return Err(Error::Unsupported {
                shard: *first,
                statement: "a merge on standbys",
                instead: "leave out `reads()`",
            });
        }
        let first = router.reaching(*first, reach)?;
        let first = limit.map_or(first, |limit| first.within(limit));
        let params: Vec<_> = params.iter().map(|params| params.params()).collect();
        let (cursors, rows) = first.open_cursors(&sql, &shards, &params).await?;
        let mut merge = Merge {
            cursors,
            heads: BinaryHeap::with_capacity(shards.len()),
            fetched: rows.into_iter().map(VecDeque::from).collect(),
            delivered: vec![0; shards.len()],
            shards,
            order,
            last: None,
        };
        for at in 0..merge.shards.len() {
            merge.next_of(at, None)?;
        }
        let rows = stream::try_unfold(merge, |mut merge| async {
            let next = merge.next().await?;
            Ok(next.map(|row| (row, merge)))
        });
        Ok(MergedRows(rows.boxed()))
    }
}

impl Stream for MergedRows {
    type Item = Result<(ShardId, Row), Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for MergedRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MergedRows").finish_non_exhaustive()
    }
}

/// A merge of cursors. Of each shard that has more rows, the next one is in `heads`.
struct Merge<O, F> {
    cursors: Cursors,
    /// The first row is on top.
    heads: BinaryHeap<Head<O>>,
    /// The rows of each shard that follow its row in `heads`.
    fetched: Vec<VecDeque<Row>>,
    delivered: Vec<u64>,
    shards: Vec<ShardId>,
    order: F,
    /// The shard of the row that was delivered last, and that row's order. The shard's next row is
    /// not in `heads` yet.
    last: Option<(usize, O)>,
}

struct Head<O> {
    order: O,
    /// The shard's place.
    at: usize,
    row: Row,
}

impl<O: Ord, F: Fn(&Row) -> Result<O, PgError>> Merge<O, F> {
    async fn next(&mut self) -> Result<Option<(ShardId, Row)>, Error> {
        if let Some((at, before)) = self.last.take() {
            if self.fetched[at].is_empty() {
                let rows = self.cursors.fetch(at, self.delivered[at]).await?;
                self.fetched[at].extend(rows);
            }
            self.next_of(at, Some(&before))?;
        }
        let Some(Head { order, at, row }) = self.heads.pop() else {
            return Ok(None);
        };
        self.delivered[at] += 1;
        self.last = Some((at, order));
        Ok(Some((self.shards[at], row)))
    }

    /// Takes a shard's next row, if there is one. It must not be before the last.
    fn next_of(&mut self, at: usize, before: Option<&O>) -> Result<(), Error> {
        let Some(row) = self.fetched[at].pop_front() else {
            return Ok(());
        };
        let (shard, host) = (self.shards[at], self.cursors.host(at));
        let order = (self.order)(&row).map_err(|source| Error::Decode {
            shard,
            host: host.clone(),
            may_have_run: false,
            source: source.into(),
        })?;
        if before.is_some_and(|before| order < *before) {
            return Err(Error::OutOfOrder {
                shard,
                host: host.clone(),
                rows: self.delivered[at],
            });
        }
        self.heads.push(Head { order, at, row });
        Ok(())
    }
}

impl<O: Ord> PartialEq for Head<O> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<O: Ord> Eq for Head<O> {}

impl<O: Ord> PartialOrd for Head<O> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<O: Ord> Ord for Head<O> {
    /// The other way round, because the largest is on top of a heap.
    fn cmp(&self, other: &Self) -> Ordering {
        (&other.order, other.at).cmp(&(&self.order, self.at))
    }
}
