//! The rows that were written without a claim while the look-up was recording.
//!
//! Invariant: a record is deleted only after its row has its entry, or when its row no longer has
//! the value: then whatever writes the value again claims it or is recorded again.

use std::collections::BTreeMap;

use futures_util::stream::StreamExt;
use jiff::Timestamp;
use tokio_postgres::Row;
use uuid::Uuid;

use super::build::{Built, WIDTH};
use super::lookup::Lookup;
use super::statements;
use crate::router::{Error, Sql};
use crate::shard::ShardId;
use crate::values::Values;

/// An application that has written without a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Writer {
    /// Its `application_name`.
    pub application: String,
    /// The role that it has logged in as.
    pub role: String,
    /// How many rows it has written since the last [`Lookup::build`].
    pub rows: u64,
    /// When it wrote the last one, by its host's clock.
    pub last: Timestamp,
}

impl Lookup<'_> {
    /// The applications with recorded rows, those with most rows first: they have written without a
    /// claim since the last [`Lookup::build`].
    ///
    /// # Errors
    /// As [`Lookup::states`].
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn writers(self) -> Result<Vec<Writer>, Error> {
        type Group = (String, String, i64, i64);
        let name = &self.definition().name;
        let groups: Vec<Vec<Group>> = self
            .each_shard(move |shard| async move {
                let sql = Sql::reading(statements::WRITERS);
                let groups = self.router().shard(shard)?.query_as(&sql, &[name]).await;
                groups.map_err(|error| self.place(shard).or_not_installed(error))
            })
            .await?;
        let mut writers: BTreeMap<(String, String), Writer> = BTreeMap::new();
        for (application, role, rows, last_ms) in groups.into_iter().flatten() {
            let last = Timestamp::from_millisecond(last_ms).unwrap_or(Timestamp::MAX);
            let writer = writers
                .entry((application.clone(), role.clone()))
                .or_insert(Writer {
                    application,
                    role,
                    rows: 0,
                    last,
                });
            writer.rows += u64::try_from(rows).unwrap_or_default();
            writer.last = writer.last.max(last);
        }
        let mut writers: Vec<Writer> = writers.into_values().collect();
        writers.sort_by_key(|writer| std::cmp::Reverse(writer.rows));
        Ok(writers)
    }

    /// Gives the recorded rows of a shard their entries. What belongs to another key stays.
    pub(super) async fn enter_recorded(
        self,
        shard: ShardId,
        kinds: &[String],
        built: &mut Built,
    ) -> Result<(), Error> {
        let sql = Sql::reading(&statements::recorded(self.definition(), kinds));
        let name = &self.definition().name;
        let mut after = Uuid::nil();
        loop {
            let page = self
                .router()
                .shard(shard)?
                .query(&sql, &[name, &after])
                .await?;
            let Some(last) = page.last() else {
                return Ok(());
            };
            after = self.read_record(shard, last, kinds)?.0;
            let mut records = Vec::with_capacity(page.len());
            for row in &page {
                records.push(self.read_record(shard, row, kinds)?);
            }
            let entered = records.into_iter().map(|(change, row)| async move {
                let entered = match row {
                    Some((key, values)) => {
                        let entered = self.enter(&key, values).await;
                        Some((key, entered))
                    }
                    None => None,
                };
                (change, entered)
            });
            let mut entered = futures_util::stream::iter(entered).buffer_unordered(WIDTH);
            let mut done = Vec::with_capacity(page.len());
            while let Some((change, entered)) = entered.next().await {
                built.recorded += 1;
                let is_entered = match entered {
                    None => true,
                    Some((key, entered)) => built.is_entered(shard, key, entered)?,
                };
                if is_entered {
                    done.push(change);
                }
            }
            let delete = statements::DELETE_RECORDED;
            self.router()
                .shard(shard)?
                .execute(delete, &[name, &done])
                .await?;
        }
    }

    /// A record's ID, and its key and values if a row has them still.
    fn read_record(
        self,
        shard: ShardId,
        row: &Row,
        kinds: &[String],
    ) -> Result<(Uuid, Option<(String, Values)>), Error> {
        let unknown = |_| self.place(shard).not_installed();
        let (change, is_there) = (
            row.try_get(0).map_err(unknown)?,
            row.try_get(1).map_err(unknown)?,
        );
        match is_there {
            true => Ok((change, Some(self.read_row(shard, row, 2, kinds)?))),
            false => Ok((change, None)),
        }
    }
}
