//! What each shard has of a look-up, and the order in which the states follow each other.
//!
//! Invariant: no trigger records while a shard is complete: a row that is recorded has no entry,
//! and `find` would not see it. `may_record` is set only while no shard is complete, and unset in
//! every shard before the first is made complete.

use std::collections::BTreeMap;

use futures_util::stream::{StreamExt, TryStreamExt};

use super::answer::problem;
use super::lookup::Lookup;
use super::statements;
use crate::router::{Error, LookupProblem};
use crate::shard::ShardId;

/// How many shards are read or marked at a time.
pub(super) const WIDTH: usize = 8;

/// How far a look-up is. They are in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum State {
    /// A row with an unclaimed value is written, and recorded.
    Recording,
    /// A row with an unclaimed value is refused.
    Enforcing,
    /// The same, and `find` answers.
    Complete,
}

impl State {
    /// Its name in the shards and in the command's output.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Recording => "recording",
            State::Enforcing => "enforcing",
            State::Complete => "complete",
        }
    }
}

/// What a shard has of a look-up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShardState {
    /// The types of its columns.
    pub kinds: Vec<String>,
    /// What the trigger does. `None`: it is missing or disabled.
    pub state: Option<State>,
    /// Every row of the shard with a value has its entry, or is recorded.
    pub covered: bool,
    /// How many rows are recorded that have no entry yet.
    pub recorded: u64,
    pub(super) may_record: bool,
}

impl ShardState {
    /// Nothing is left to do before the shard can be complete.
    pub(super) fn is_ready(&self) -> bool {
        self.state >= Some(State::Enforcing) && self.covered && self.recorded == 0
    }
}

impl Lookup<'_> {
    /// What each shard has of the look-up.
    ///
    /// # Errors
    /// [`Error::Lookup`] when a shard does not have it, or has it otherwise, and on an unsharded
    /// host; all others as [`Shard::query`](crate::router::Shard::query).
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn states(self) -> Result<BTreeMap<ShardId, ShardState>, Error> {
        self.each_shard(move |shard| async move { Ok((shard, self.shard_state(shard).await?)) })
            .await
    }

    async fn shard_state(self, shard: ShardId) -> Result<ShardState, Error> {
        type Row = (String, Vec<String>, bool, String, bool, Option<String>, i64);
        let definition = self.definition();
        let row: Option<Row> = self
            .router()
            .shard(shard)?
            .query_opt_as(statements::state(definition), &[&definition.name])
            .await
            .map_err(|error| self.place(shard).or_not_installed(error))?;
        let Some((recorded_as, kinds, covered, state, may_record, trigger, recorded)) = row else {
            return Err(self.place(shard).not_installed());
        };
        self.place(shard).checked(recorded_as)?;
        let state = trigger.map(|trigger| match (trigger.as_str(), state.as_str()) {
            ("recording", _) => State::Recording,
            (_, "complete") => State::Complete,
            _ => State::Enforcing,
        });
        Ok(ShardState {
            kinds,
            state,
            covered,
            recorded: u64::try_from(recorded).unwrap_or_default(),
            may_record,
        })
    }

    /// The states of all shards, each of which has its trigger.
    pub(super) async fn guarded(self) -> Result<BTreeMap<ShardId, ShardState>, Error> {
        let states = self.states().await?;
        match states.iter().find(|(_, state)| state.state.is_none()) {
            Some((shard, _)) => {
                let place = self.place(*shard);
                Err(place.problem(|shard, host| LookupProblem::NoTrigger { shard, host }))
            }
            None => Ok(states),
        }
    }

    /// Makes the look-up complete if every shard is ready: first no shard may record any more, then
    /// each is marked. False if one is not ready.
    pub(super) async fn complete(self) -> Result<bool, Error> {
        if !self.guarded().await?.values().all(ShardState::is_ready) {
            return Ok(false);
        }
        self.mark_each(statements::MAY_NOT_RECORD).await?;
        // A shard that was made recording since then.
        let states = self.guarded().await?;
        if !states
            .values()
            .all(|state| state.is_ready() && !state.may_record)
        {
            return Ok(false);
        }
        let marked = self.mark_each(statements::COMPLETE).await?;
        Ok(marked.values().all(|rows| *rows == 1))
    }

    /// `find` is refused from now on, and the migration of [`Step::Record`](super::Step::Record) is
    /// not any more: so an application that does not claim can write again. [`Lookup::build`] makes
    /// the look-up complete again.
    ///
    /// # Errors
    /// As [`Lookup::states`].
    ///
    /// # Cancel safety
    /// Some shards may answer `find` and others not; call it again, or [`Lookup::build`].
    pub async fn suspend(self) -> Result<(), Error> {
        self.states().await?;
        self.mark_each(statements::NOT_COMPLETE).await?;
        self.mark_each(statements::MAY_RECORD).await?;
        Ok(())
    }

    /// Runs an UPDATE of what each shard knows of the look-up, and returns how many rows it had.
    async fn mark_each(self, sql: &'static str) -> Result<BTreeMap<ShardId, u64>, Error> {
        self.each_shard(move |shard| async move { Ok((shard, self.mark(shard, sql).await?)) })
            .await
    }

    /// The same in one shard.
    pub(super) async fn mark(self, shard: ShardId, sql: &'static str) -> Result<u64, Error> {
        let definition = self.definition();
        let text = definition.to_text();
        self.router()
            .shard(shard)?
            .execute(sql, &[&definition.name, &text])
            .await
    }

    /// Runs a call in each shard, several at a time. An unsharded host has no tables of look-ups.
    pub(super) async fn each_shard<T, F, C>(self, call: impl Fn(ShardId) -> F) -> Result<C, Error>
    where
        F: Future<Output = Result<T, Error>>,
        C: Default + Extend<T>,
    {
        if let Some(host) = self.router().unsharded_host() {
            return Err(problem(
                self.definition(),
                LookupProblem::Unsharded { host },
            ));
        }
        let shards = self.router().shards_total();
        let calls: Vec<F> = shards.iter().map(call).collect();
        futures_util::stream::iter(calls)
            .buffer_unordered(WIDTH)
            .try_collect()
            .await
    }
}
