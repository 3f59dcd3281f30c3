//! Makes a look-up complete: entries for the rows that are older than it.

use std::collections::BTreeMap;

use futures_util::stream::{StreamExt, TryStreamExt};
use tokio_postgres::Row;

use super::claimer::ClaimRequest;
use super::lookup::Lookup;
use super::parameter::Day;
use super::statements;
use crate::router::{Error, LookupProblem, Sql};
use crate::shard::ShardId;
use crate::values::{Value, Values};

/// How many rows get their entries at a time.
const WIDTH: usize = 8;

/// The most duplicates that are listed.
const DUPLICATES_MAX: usize = 1000;

/// How often a row is tried again that another call is claiming.
const TRIES: u32 = 5;

/// What a shard has of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardState {
    /// The types of its columns.
    pub kinds: Vec<String>,
    /// The trigger is there and enabled.
    pub guarded: bool,
    /// Every row of the shard with a value has its entry.
    pub covered: bool,
    /// The shard answers `find` for the values whose entries it has.
    pub complete: bool,
}

/// Two keys that have the same value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub struct Duplicate {
    /// The shard of the key.
    pub shard: ShardId,
    /// The key.
    pub key: String,
    /// The key that has the value, too, and its entry.
    pub other: String,
}

/// What [`Lookup::build`] has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Built {
    /// How many rows were read. Shards that were covered before are not read again.
    pub rows: u64,
    /// Keys that have one value, 1000 of them at most.
    pub duplicates: Vec<Duplicate>,
    /// The look-up is complete: there are no duplicates.
    pub complete: bool,
}

impl Lookup<'_> {
    /// What each shard has of the look-up.
    ///
    /// # Errors
    /// [`Error::Lookup`] when a shard does not have it, or has it otherwise; all others as
    /// [`Shard::query`](crate::router::Shard::query).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn states(self) -> Result<BTreeMap<ShardId, ShardState>, Error> {
        let shards = self.router().shards_total();
        let mut states = BTreeMap::new();
        for shard in shards.iter() {
            states.insert(shard, self.state(shard).await?);
        }
        Ok(states)
    }

    async fn state(self, shard: ShardId) -> Result<ShardState, Error> {
        let definition = self.definition();
        let row: Option<(String, Vec<String>, bool, String, bool)> = self
            .router()
            .shard(shard)?
            .query_opt_as(statements::state(definition), &[&definition.name])
            .await
            .map_err(|error| self.place(shard).or_not_installed(error))?;
        let Some((recorded, kinds, covered, state, guarded)) = row else {
            return Err(self.place(shard).not_installed());
        };
        self.place(shard).checked(recorded)?;
        Ok(ShardState {
            kinds,
            guarded,
            covered,
            complete: state == "complete",
        })
    }

    /// Gives every row its entry, shard by shard, and then makes the look-up complete, so that
    /// `find` answers. Writers may continue; a shard that is covered already is not read, so a call
    /// that was interrupted is made again. Nothing is decided about duplicates: they are listed, and
    /// the look-up stays as it is until the next call finds none. A row that changes its value
    /// during the call may be listed as one, too.
    ///
    /// `progress` is called after each shard.
    ///
    /// # Errors
    /// As [`Lookup::states`]; [`Error::Lookup`] also when a shard's trigger is missing or disabled;
    /// [`Error::Busy`] when a row's value stays claimed by another call.
    ///
    /// # Cancel safety
    /// What was done stays.
    pub async fn build(self, progress: impl Fn(ShardId)) -> Result<Built, Error> {
        let mut built = Built::default();
        // The trigger first, everywhere: what is written from now on has its entry.
        let states = self.guarded().await?;
        for (shard, state) in states {
            if !state.covered {
                self.cover(shard, &state, &mut built).await?;
            }
            progress(shard);
        }
        if !built.duplicates.is_empty() {
            return Ok(built);
        }
        let states = self.guarded().await?;
        if states.values().all(|state| state.covered) {
            for shard in states.keys() {
                self.mark(*shard, statements::COMPLETE).await?;
            }
            built.complete = true;
        }
        Ok(built)
    }

    /// The states of all shards, each of which has its trigger.
    async fn guarded(self) -> Result<BTreeMap<ShardId, ShardState>, Error> {
        let states = self.states().await?;
        match states.iter().find(|(_, state)| !state.guarded) {
            Some((shard, _)) => {
                let place = self.place(*shard);
                Err(place.problem(|shard, host| LookupProblem::NoTrigger { shard, host }))
            }
            None => Ok(states),
        }
    }

    async fn mark(self, shard: ShardId, sql: &str) -> Result<(), Error> {
        let definition = self.definition();
        let text = definition.to_text();
        self.router()
            .shard(shard)?
            .execute(sql, &[&definition.name, &text])
            .await?;
        Ok(())
    }

    /// Gives the rows of a shard their entries.
    async fn cover(
        self,
        shard: ShardId,
        state: &ShardState,
        built: &mut Built,
    ) -> Result<(), Error> {
        let sql = Sql::reading(&statements::rows(self.definition(), &state.kinds));
        let rows = self.router().shard(shard)?.query_raw(&sql, &[]).await?;
        let entries = rows.map(|row| async move {
            let (key, values) = self.read(shard, &row?, &state.kinds)?;
            let wanted = ClaimRequest::new(self.definition(), values)?;
            for _ in 1..TRIES {
                match Box::pin(wanted.enter(self.router(), &key)).await {
                    Err(Error::Busy { .. }) => {}
                    other => return Ok((key, other)),
                }
            }
            let last = Box::pin(wanted.enter(self.router(), &key)).await;
            Ok::<_, Error>((key, last))
        });
        let mut entries = entries.buffer_unordered(WIDTH);
        let mut is_covered = true;
        while let Some((key, entered)) = entries.try_next().await? {
            built.rows += 1;
            match entered {
                Ok(()) => {}
                Err(Error::Taken { key: other, .. }) => {
                    is_covered = false;
                    if built.duplicates.len() < DUPLICATES_MAX {
                        built.duplicates.push(Duplicate { shard, key, other });
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if is_covered {
            self.mark(shard, statements::COVERED).await?;
        }
        Ok(())
    }

    /// A row's key and values.
    fn read(self, shard: ShardId, row: &Row, kinds: &[String]) -> Result<(String, Values), Error> {
        let unknown = |_| self.place(shard).not_installed();
        let key: String = row.try_get(0).map_err(unknown)?;
        let mut values = Vec::with_capacity(kinds.len());
        for (at, kind) in kinds.iter().enumerate() {
            let at = at + 1;
            values.push(match kind.as_str() {
                "integer" => Value::Integer(row.try_get(at).map_err(unknown)?),
                "uuid" => Value::Uuid(row.try_get(at).map_err(unknown)?),
                "date" => Value::Day(row.try_get::<_, Day>(at).map_err(unknown)?.0),
                _ => Value::Text(row.try_get(at).map_err(unknown)?),
            });
        }
        Ok((key, Values::from(values)))
    }
}
