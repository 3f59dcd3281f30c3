//! Many rows at once, each to the shard of its key.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::batch::Batch;
use super::job::{Pace, Servers};
use super::params::{Params, Source};
use super::partial::{Failures, Partial};
use super::values::Values;
use crate::router::{Error, Reach, Router, SqlText};
use crate::shard::{Key, ShardId};

impl Router {
    /// Rows to insert, each on the shard of its key, which `key` gives.
    ///
    /// ```no_run
    /// # struct Photo { user: i64, title: String }
    /// # async fn example(
    /// #     router: pgshard::Router,
    /// #     photos: &[Photo],
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// use pgshard::columns;
    /// let sql = "INSERT INTO {shard}.photos (user_id, title)
    ///     SELECT * FROM unnest($1::bigint[], $2::text[]) RETURNING id";
    /// let inserted = router.insert_many(photos, |photo| photo.user)?
    ///     .query(sql, |photos| columns![
    ///         photos.iter().map(|photo| photo.user),
    ///         photos.iter().map(|photo| photo.title.clone()),
    ///     ]).await?;
    /// for shard in inserted {
    ///     for (place, row) in shard.places.iter().zip(&shard.rows) {
    ///         println!("{} is {}", photos[*place].title, row.get::<_, i64>(0));
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::WrongKey`] when the cluster's keys are of another kind.
    pub fn insert_many<'r, T, K: Key>(
        &self,
        rows: &'r [T],
        key: impl Fn(&T) -> K,
    ) -> Result<InsertMany<'r, T>, Error> {
        let mut places: BTreeMap<ShardId, Vec<usize>> = BTreeMap::new();
        for (place, row) in rows.iter().enumerate() {
            places
                .entry(self.try_by_key(key(row))?.id())
                .or_default()
                .push(place);
        }
        let pace = Pace {
            width: 2,
            depth: 8,
            deadline: None,
        };
        Ok(InsertMany {
            router: self.clone(),
            rows,
            places: places.into_iter().collect(),
            pace,
        })
    }
}

/// Rows grouped by their shards.
#[must_use]
pub struct InsertMany<'r, T> {
    router: Router,
    rows: &'r [T],
    places: Arc<[(ShardId, Vec<usize>)]>,
    pace: Pace,
}

/// The rows that one shard took.
#[derive(Debug)]
pub struct Inserted {
    /// The shard.
    pub shard: ShardId,
    /// Their places in the list that was given, in its order.
    pub places: Vec<usize>,
    /// What RETURNING gave. Rows of `INSERT … SELECT … FROM unnest` are in the order of `places`.
    /// ON CONFLICT DO NOTHING gives fewer.
    pub rows: Vec<Row>,
}

/// Parameters that are arrays, one a column; [`columns!`](crate::columns) makes them.
pub type Columns = Values;

/// The columns of all shards, and the place of this shard's among them.
struct OfShard(Arc<[Columns]>, usize);

impl Params for OfShard {
    fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.0[self.1]
            .0
            .iter()
            .map(|column| &**column as _)
            .collect()
    }
}

/// [`fanout::Values`](crate::fanout::Values) of iterators, one a parameter, each over values of
/// one type: `columns![ids, titles]`.
#[macro_export]
macro_rules! columns {
    ($($column:expr),+ $(,)?) => {
        $crate::fanout::Values::new(vec![$(Box::new($column.collect::<Vec<_>>())),+])
    };
}

impl<T: Sync> InsertMany<'_, T> {
    /// How many connections to one host are used at a time, at least 1. Default 2. See
    /// [`Shards::width`](super::Shards::width).
    pub fn width(mut self, connections_per_host: usize) -> Self {
        self.pace.width = connections_per_host.max(1);
        self
    }

    /// How many statements are on their way on one connection, at least 1. Default 8. See
    /// [`Shards::depth`](super::Shards::depth).
    pub fn depth(mut self, statements_per_connection: usize) -> Self {
        self.pace.depth = statements_per_connection.max(1);
        self
    }

    /// How long the whole call may take; see [`Shards::deadline`](super::Shards::deadline).
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.pace.deadline = Some(deadline);
        self
    }

    /// Runs the statement once on each shard that has rows, with the arrays that `columns` makes of
    /// that shard's rows as its parameters:
    /// `INSERT … SELECT * FROM unnest($1::bigint[], $2::text[])`.
    ///
    /// `columns` is called for all shards before anything is sent. All rows of a shard are in one
    /// statement: all of them are inserted or none. Shards are independent of each other: those
    /// that did not fail keep their rows. (This is not COPY, which gives no IDs back, knows no ON
    /// CONFLICT, and saves little when each shard gets few rows. For a bulk load into one shard,
    /// COPY through [`Shard::client`](crate::router::Shard::client).)
    ///
    /// # Errors
    /// When a shard failed. The error has what the other shards took, and the places of the rows
    /// that failed. If a shard's error [`may_have_run`](Error::may_have_run), its rows may be
    /// there. `?` in a function that gives [`Error`] makes an [`Error::Partial`] of it, which keeps
    /// all of that. A caller that makes the whole call again has rows twice.
    ///
    /// # Cancel safety
    /// When the future is dropped, some shards may have their rows.
    pub async fn query<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
        columns: impl Fn(&[&T]) -> Columns + Send + Sync,
    ) -> Result<Vec<Inserted>, Partial<Vec<Inserted>, usize>> {
        let rows = self.rows;
        let of_shard = |places: &Vec<usize>| {
            columns(
                &places
                    .iter()
                    .map(|place| &rows[*place])
                    .collect::<Vec<&T>>(),
            )
        };
        let all: Arc<[Columns]> = self
            .places
            .iter()
            .map(|(_, places)| of_shard(places))
            .collect();
        let batch = Batch {
            router: self.router,
            sql: sql.into().to_sql(),
            shards: self.places.iter().map(|(shard, _)| *shard).collect(),
            reach: Reach::Keys,
            params: Source::Owned(Arc::new(move |at| Box::new(OfShard(all.clone(), at)))),
            pace: self.pace,
            servers: Servers::Primaries,
        };
        let mut answers = batch.run();
        let (mut done, mut failed) = (Vec::new(), Failures::new(&answers));
        while let Some((at, result)) = answers.next().await {
            let (shard, places) = &self.places[at];
            let (shard, places) = (*shard, places.clone());
            match result {
                Ok(rows) => done.push(Inserted {
                    shard,
                    places,
                    rows,
                }),
                Err(error) => failed.add(shard, places, error),
            }
        }
        done.sort_unstable_by_key(|inserted| inserted.shard);
        failed.or(done, self.places.len())
    }
}

impl<T> fmt::Debug for InsertMany<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InsertMany")
            .field("rows", &self.rows.len())
            .field("shards", &self.places.len())
            .finish()
    }
}
