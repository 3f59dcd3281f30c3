//! Makes a look-up complete: entries for the rows that are older than it, and for those that were
//! written without a claim.

use futures_util::stream::{StreamExt, TryStreamExt};
use tokio_postgres::Row;

use super::claimer::ClaimRequest;
use super::lookup::Lookup;
use super::parameter::Day;
use super::statements;
use super::states::State;
use crate::router::{Error, Sql};
use crate::shard::ShardId;
use crate::values::{Value, Values};

/// How many rows get their entries at a time.
pub(super) const WIDTH: usize = 8;

/// The most duplicates that are listed.
const DUPLICATES_MAX: usize = 1000;

/// How often a row is tried again that another call is claiming.
const TRIES: u32 = 5;

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
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Built {
    /// How many rows were read. Shards that were covered before are not read again.
    pub rows: u64,
    /// How many recorded rows were read.
    pub recorded: u64,
    /// Keys that have one value, 1000 of them at most.
    pub duplicates: Vec<Duplicate>,
    /// How far the look-up is now: the least of its shards. Without duplicates, it is complete
    /// unless a shard is recording.
    pub state: State,
}

impl Built {
    /// Whether a row has its entry. If the value belongs to another key, that is noted.
    pub(super) fn is_entered(
        &mut self,
        shard: ShardId,
        key: String,
        entered: Result<(), Error>,
    ) -> Result<bool, Error> {
        match entered {
            Ok(()) => Ok(true),
            Err(Error::Taken { key: other, .. }) => {
                let duplicate = Duplicate { shard, key, other };
                if self.duplicates.len() < DUPLICATES_MAX && !self.duplicates.contains(&duplicate) {
                    self.duplicates.push(duplicate);
                }
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }
}

impl Lookup<'_> {
    /// Gives every row its entry, shard by shard: those from before the look-up, and those that
    /// were recorded. Then, if no shard is recording, makes the look-up complete, so that `find`
    /// answers. Writers may continue; a shard that is covered already is not read, so a call that
    /// was interrupted is made again. Nothing is decided about duplicates: they are listed, and the
    /// look-up stays as it is until the next call finds none. A row that changes its value during
    /// the call may be listed as one, too.
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
        let mut built = Built {
            rows: 0,
            recorded: 0,
            duplicates: Vec::new(),
            state: State::Recording,
        };
        // The trigger first, everywhere: a row that is written from now on has its entry, or is
        // recorded.
        for (shard, state) in self.guarded().await? {
            if !state.covered {
                self.cover(shard, &state.kinds, &mut built).await?;
            }
            self.enter_recorded(shard, &state.kinds, &mut built).await?;
            progress(shard);
        }
        if built.duplicates.is_empty() {
            self.complete().await?;
        }
        let states = self.guarded().await?;
        let least = states.values().filter_map(|state| state.state).min();
        built.state = least.unwrap_or(State::Recording);
        Ok(built)
    }

    /// Gives the rows of a shard their entries.
    async fn cover(self, shard: ShardId, kinds: &[String], built: &mut Built) -> Result<(), Error> {
        let sql = Sql::reading(&statements::rows(self.definition(), kinds));
        let rows = self.router().shard(shard)?.query_raw(&sql, &[]).await?;
        let entries = rows.map(|row| async move {
            let (key, values) = self.read_row(shard, &row?, 0, kinds)?;
            let entered = self.enter(&key, values).await;
            Ok::<_, Error>((key, entered))
        });
        let mut entries = entries.buffer_unordered(WIDTH);
        let mut is_covered = true;
        while let Some((key, entered)) = entries.try_next().await? {
            built.rows += 1;
            is_covered &= built.is_entered(shard, key, entered)?;
        }
        if is_covered {
            self.mark(shard, statements::COVERED).await?;
        }
        Ok(())
    }

    /// Makes the entry of the values lead to a key that has a row with them.
    pub(super) async fn enter(self, key: &str, values: Values) -> Result<(), Error> {
        let wanted = ClaimRequest::new(self.definition(), values)?;
        for _ in 1..TRIES {
            match Box::pin(wanted.enter(self.router(), key)).await {
                Err(Error::Busy { .. }) => {}
                other => return other,
            }
        }
        Box::pin(wanted.enter(self.router(), key)).await
    }

    /// A row's key and values: the columns from `first` on.
    pub(super) fn read_row(
        self,
        shard: ShardId,
        row: &Row,
        first: usize,
        kinds: &[String],
    ) -> Result<(String, Values), Error> {
        let unknown = |_| self.place(shard).not_installed();
        let key: String = row.try_get(first).map_err(unknown)?;
        let mut values = Vec::with_capacity(kinds.len());
        for (at, kind) in (first + 1..).zip(kinds) {
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
