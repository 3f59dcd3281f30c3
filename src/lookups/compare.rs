//! Compares the entries with the rows, and puts back missing entries: after a host has lost
//! commits, or a shard was restored from a backup.
//!
//! Invariant: a difference is reported only if the row is there between two reads of its entry that
//! show the same claim: what a writer changes in between is no difference.

use std::collections::BTreeMap;

use futures_util::stream::{StreamExt, TryStreamExt};
use uuid::Uuid;

use super::answer::problem;
use super::build::{Duplicate, WIDTH};
use super::claimer::ClaimRequest;
use super::lookup::Lookup;
use super::statements;
use super::states::{ShardState, State};
use crate::router::{Error, LookupProblem, Sql};
use crate::shard::ShardId;
use crate::values::Values;

/// How many rows are compared by one statement for each shard of their values.
const PAGE: usize = 1000;

/// The most differences of a kind that are listed.
const LISTED_MAX: usize = 1000;

/// A row to which no entry leads.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Missing {
    /// The shard of the row.
    pub shard: ShardId,
    /// The key of the row.
    pub key: String,
    /// The shard that should have the entry.
    pub value_shard: ShardId,
}

/// What [`Lookup::check`] and [`Lookup::repair`] have found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Compared {
    /// How many rows were compared.
    pub rows: u64,
    /// How many of them had no entry. [`Lookup::repair`] has put these back.
    pub missing: u64,
    /// The first 1000 of them.
    pub missing_listed: Vec<Missing>,
    /// Keys that have one value, 1000 of them at most.
    pub duplicates: Vec<Duplicate>,
}

/// What is done about a row without an entry.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Remedy {
    Report,
    Enter,
}

/// A row of the table.
struct Row {
    key: String,
    values: Values,
}

/// An entry: its key and its claim.
type Found = Option<(String, Uuid)>;

impl Lookup<'_> {
    /// Compares every row with its entry. Reads only; writers may continue. `progress` is called
    /// after each shard.
    ///
    /// # Errors
    /// As [`Lookup::states`]; [`Error::Lookup`] also while a shard is recording, or not every row
    /// has had its entry.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn check(self, progress: impl Fn(ShardId)) -> Result<Compared, Error> {
        self.compare(Remedy::Report, progress).await
    }

    /// The same, and gives the rows their entries again. Nothing is decided about duplicates.
    /// `find` answers during that time as it did before, if it is not [suspended](Lookup::suspend).
    ///
    /// # Errors
    /// As [`Lookup::check`] and [`Lookup::build`].
    ///
    /// # Cancel safety
    /// What was put back stays.
    pub async fn repair(self, progress: impl Fn(ShardId)) -> Result<Compared, Error> {
        self.compare(Remedy::Enter, progress).await
    }

    async fn compare(self, remedy: Remedy, progress: impl Fn(ShardId)) -> Result<Compared, Error> {
        let mut compared = Compared::default();
        let states = self.guarded().await?;
        let is_built = |state: &ShardState| {
            state.covered && state.state >= Some(State::Enforcing) && state.recorded == 0
        };
        if !states.values().all(is_built) {
            return Err(problem(self.definition(), LookupProblem::NotComplete));
        }
        for (shard, state) in states {
            let sql = Sql::reading(&statements::rows(self.definition(), &state.kinds));
            let rows = self.router().shard(shard)?.query_raw(&sql, &[]).await?;
            let rows = rows.map(|row| {
                let (key, values) = self.read_row(shard, &row?, 0, &state.kinds)?;
                Ok::<_, Error>(Row { key, values })
            });
            let mut pages = rows.chunks(PAGE);
            while let Some(page) = pages.next().await {
                let page = page.into_iter().collect::<Result<Vec<Row>, Error>>()?;
                self.compare_page(shard, page, remedy, &mut compared)
                    .await?;
            }
            progress(shard);
        }
        Ok(compared)
    }

    /// Compares rows of a shard: one statement for each shard of their values, and then a closer
    /// look at those that differ.
    async fn compare_page(
        self,
        shard: ShardId,
        page: Vec<Row>,
        remedy: Remedy,
        compared: &mut Compared,
    ) -> Result<(), Error> {
        compared.rows += page.len() as u64;
        let mut by_shard: BTreeMap<ShardId, Vec<(Row, Vec<u8>)>> = BTreeMap::new();
        for row in page {
            let wanted = ClaimRequest::new(self.definition(), row.values.clone())?;
            let shards = self.router().shards_total();
            let value_shard = wanted.hash.shard(self.definition(), shards);
            let hash = wanted.hash.as_bytes().to_vec();
            by_shard.entry(value_shard).or_default().push((row, hash));
        }
        let pages = by_shard.into_iter().map(|(value_shard, rows)| async move {
            let hashes: Vec<&[u8]> = rows.iter().map(|(_, hash)| hash.as_slice()).collect();
            let entries = self.entries(value_shard, &hashes).await?;
            let differing = rows
                .into_iter()
                .filter(|(row, hash)| entries.get(hash).is_none_or(|(key, _)| *key != row.key));
            Ok::<_, Error>((value_shard, differing.collect::<Vec<_>>()))
        });
        let pages: Vec<_> = futures_util::stream::iter(pages)
            .buffer_unordered(WIDTH)
            .try_collect()
            .await?;
        for (value_shard, differing) in pages {
            for (row, hash) in differing {
                if let Some(entry) = self.difference(shard, value_shard, &row, &hash).await? {
                    self.note(shard, value_shard, row, entry, remedy, compared)
                        .await?;
                }
            }
        }
        Ok(())
    }

    /// The entry that does not lead to the row, if the row is there.
    async fn difference(
        self,
        shard: ShardId,
        value_shard: ShardId,
        row: &Row,
        hash: &[u8],
    ) -> Result<Option<Found>, Error> {
        let wanted = ClaimRequest::new(self.definition(), row.values.clone())?;
        loop {
            let before = self.entries(value_shard, &[hash]).await?.remove(hash);
            if before.as_ref().is_some_and(|(key, _)| *key == row.key) {
                return Ok(None);
            }
            if !wanted.has_row(self.router(), shard, &row.key).await? {
                return Ok(None);
            }
            let after = self.entries(value_shard, &[hash]).await?.remove(hash);
            if before == after {
                return Ok(Some(after));
            }
        }
    }

    /// Notes a row with a missing entry, or with one that leads to another key.
    async fn note(
        self,
        shard: ShardId,
        value_shard: ShardId,
        row: Row,
        entry: Found,
        remedy: Remedy,
        compared: &mut Compared,
    ) -> Result<(), Error> {
        let wanted = ClaimRequest::new(self.definition(), row.values.clone())?;
        let mut other = None;
        if let Some((key, _)) = entry
            && let Ok(other_shard) = self
                .router()
                .key_kind()
                .shard_of_text(&key, self.router().shards_total())
            && wanted.has_row(self.router(), other_shard, &key).await?
        {
            other = Some(key);
        }
        if other.is_none() && remedy == Remedy::Enter {
            match self.enter(&row.key, row.values).await {
                Ok(()) => {}
                Err(Error::Taken { key, .. }) => other = Some(key),
                Err(error) => return Err(error),
            }
        }
        let key = row.key;
        match other {
            Some(other) => {
                if compared.duplicates.len() < LISTED_MAX {
                    compared.duplicates.push(Duplicate { shard, key, other });
                }
            }
            None => {
                compared.missing += 1;
                if compared.missing_listed.len() < LISTED_MAX {
                    let missing = Missing {
                        shard,
                        key,
                        value_shard,
                    };
                    compared.missing_listed.push(missing);
                }
            }
        }
        Ok(())
    }

    /// The entries of these hashes.
    async fn entries(
        self,
        value_shard: ShardId,
        hashes: &[&[u8]],
    ) -> Result<BTreeMap<Vec<u8>, (String, Uuid)>, Error> {
        let sql = Sql::reading(statements::ENTRIES);
        let name = &self.definition().name;
        let rows: Vec<(Vec<u8>, String, Uuid)> = self
            .router()
            .shard(value_shard)?
            .query_as(&sql, &[name, &hashes])
            .await
            .map_err(|error| self.place(value_shard).or_not_installed(error))?;
        let rows = rows
            .into_iter()
            .map(|(hash, key, claim)| (hash, (key, claim)));
        Ok(rows.collect())
    }
}
