//! One statement on many shards.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use crate::router::{Error, Router, SqlText};
use crate::shard::ShardId;

impl Router {
    /// Every shard.
    pub fn all_shards(&self) -> Shards {
        self.shards(self.shards_total().iter())
    }

    /// These shards, each once.
    pub fn shards(&self, shards: impl IntoIterator<Item = ShardId>) -> Shards {
        let mut shards: Vec<ShardId> = shards.into_iter().collect();
        shards.sort_unstable();
        shards.dedup();
        Shards { router: self.clone(), shards, width: Shards::WIDTH }
    }
}

/// Shards to run a statement on, all alike.
#[derive(Clone, Debug)]
#[must_use]
pub struct Shards {
    router: Router,
    shards: Vec<ShardId>,
    width: usize,
}

impl Shards {
    /// How many shards of one host are asked at a time where nothing is said: 8.
    pub const WIDTH: usize = 8;

    /// How many shards of one host are asked at a time, at least 1. More than the host's `pool_size` is of no use.
    pub fn width(mut self, shards_per_host: usize) -> Shards {
        self.width = shards_per_host.max(1);
        self
    }

    /// Runs the statement on each shard. Nothing is sent before the first result is asked for; dropping the [`Gather`]
    /// ends it.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::router::Router) {
    /// let mut counts = router.all_shards().query("SELECT count(*) FROM {shard}.photos", &[]);
    /// while let Some((shard, rows)) = counts.next().await {
    ///     match rows {
    ///         Ok(rows) => println!("{shard}: {}", rows[0].get::<_, i64>(0)),
    ///         Err(error) => println!("{shard}: {error}"),
    ///     }
    /// }
    /// # }
    /// ```
    pub fn query<'a>(&self, sql: impl Into<SqlText<'a>>, params: &'a [&'a (dyn ToSql + Sync)]) -> Gather<'a> {
        let sql = sql.into().to_sql();
        let jobs = self.shards.iter().map(|shard| (*shard, params));
        gather(&self.router, jobs, self.width, move |router, shard, params| {
            let sql = sql.clone();
            async move { router.shard(shard)?.query(&sql, params).await }
        })
    }
}

/// Runs `work` for each job: hosts beside each other, `width` shards of a host at a time.
pub(super) fn gather<'a, P, W, Fut>(
    router: &Router,
    jobs: impl IntoIterator<Item = (ShardId, P)>,
    width: usize,
    work: W,
) -> Gather<'a>
where
    P: Send + 'a,
    W: Fn(Router, ShardId, P) -> Fut + Clone + Send + 'a,
    Fut: Future<Output = Result<Vec<Row>, Error>> + Send + 'a,
{
    let mut by_host: BTreeMap<_, Vec<(ShardId, P)>> = BTreeMap::new();
    for (shard, params) in jobs {
        // A shard that does not exist is on no host and fails by itself.
        by_host.entry(router.shard(shard).ok().map(|shard| shard.host())).or_default().push((shard, params));
    }
    let lanes = by_host.into_values().map(|jobs| {
        let (router, work) = (router.clone(), work.clone());
        let each = stream::iter(jobs).map(move |(shard, params)| {
            let running = work(router.clone(), shard, params);
            async move { (shard, running.await) }
        });
        each.buffer_unordered(width).boxed()
    });
    Gather { results: stream::select_all(lanes).boxed() }
}

type Item = (ShardId, Result<Vec<Row>, Error>);

/// The results of a statement on many shards, in the order in which they come: a [`Stream`] of each shard's rows or
/// error.
#[must_use = "nothing is sent before the first result is asked for"]
pub struct Gather<'a> {
    results: BoxStream<'a, Item>,
}

impl Gather<'_> {
    /// The next result; `None` after the last.
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn next(&mut self) -> Option<(ShardId, Result<Vec<Row>, Error>)> {
        self.results.next().await
    }
}

impl Stream for Gather<'_> {
    type Item = (ShardId, Result<Vec<Row>, Error>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.results.as_mut().poll_next(context)
    }
}

impl fmt::Debug for Gather<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gather").finish_non_exhaustive()
    }
}
