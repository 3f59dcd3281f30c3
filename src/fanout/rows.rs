//! The rows of many shards as they come, in bounded memory.

use std::collections::BTreeMap;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::Either;
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use tokio_postgres::Row;

use super::job::Servers;
use super::params::Params;
use super::values::Values;
use crate::router::{Error, Reach, Router, Sql};
use crate::shard::ShardId;

/// The rows of [`Shards::query_raw`](super::Shards::query_raw), each with its shard: a [`Stream`]
/// that owns what it needs. A shard that fails gives its error as its last item, and ends no other.
#[must_use = "nothing is sent before the first row is asked for"]
pub struct RowStreams(SelectAll<BoxStream<'static, (ShardId, Result<Row, Error>)>>);

impl RowStreams {
    /// One shard of each host at a time, so that the stream holds one connection of a host.
    pub(super) fn new(
        router: &Router,
        (shards, reach): (&[ShardId], Reach),
        sql: Sql,
        params: Values,
        servers: Servers,
    ) -> RowStreams {
        let (sql, params) = (Arc::new(sql), Arc::new(params));
        let mut by_host: BTreeMap<_, Vec<ShardId>> = BTreeMap::new();
        for shard in shards {
            // A shard that does not exist is on no host and fails by itself.
            let host = router.shard(*shard).ok().map(|shard| shard.host());
            by_host.entry(host).or_default().push(*shard);
        }
        let streams = by_host.into_values().map(|shards| {
            let (router, sql, params) = (router.clone(), sql.clone(), params.clone());
            stream::iter(shards)
                .then(move |shard| {
                    let job = (shard, reach);
                    of_shard(router.clone(), job, sql.clone(), params.clone(), servers)
                })
                .flatten()
                .boxed()
        });
        RowStreams(stream::select_all(streams))
    }
}

async fn of_shard(
    router: Router,
    (shard, reach): (ShardId, Reach),
    sql: Arc<Sql>,
    params: Arc<Values>,
    servers: Servers,
) -> impl Stream<Item = (ShardId, Result<Row, Error>)> + Send {
    let opened = async {
        let handle = router.reaching(shard, reach)?;
        match servers {
            Servers::Primaries => handle.query_raw(&*sql, &params.params()).await,
            Servers::Standbys => handle.reads().query_raw(&*sql, &params.params()).await,
        }
    };
    match opened.await {
        Ok(rows) => Either::Left(rows.map(move |row| (shard, row))),
        Err(error) => Either::Right(stream::iter([(shard, Err(error))])),
    }
}

impl Stream for RowStreams {
    type Item = (ShardId, Result<Row, Error>);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.poll_next_unpin(context)
    }
}

impl fmt::Debug for RowStreams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStreams").finish_non_exhaustive()
    }
}
