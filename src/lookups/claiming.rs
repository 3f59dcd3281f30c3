//! Transactions that write values which belong to one key over all shards.

use std::time::Duration;

use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::answer::problem;
use super::claimer::{Claim, ClaimRequest, UseParameters, WAIT_MAX};
use super::metrics;
use super::statements;
use super::unsharded::OnTable;
use crate::router::{Error, LookupProblem, Router, Shard, SqlText, Transaction};
use crate::shard::Key;
use crate::values::{Values, key_text};

/// Claims values for a key, and then runs SQL on the key's shard; made by [`Router::claiming`].
///
/// Claims are made before the transaction, on connections of their own, so a full pool does not
/// keep them waiting. Nothing needs to be undone when it does not come to the transaction.
///
/// On an unsharded host nothing is claimed, because a unique index of the table makes the values
/// unique. Before the transaction it is checked that there is one, and that no value is another
/// key's; a row that comes in between is [`Error::Taken`], too. A call waits there for another
/// transaction that has the value, as PostgreSQL does, and is never [`Error::Busy`].
#[derive(Debug)]
#[must_use]
pub struct Claiming<'r> {
    router: &'r Router,
    shard: Shard<'r>,
    key: String,
    wanted: Vec<ClaimRequest<'r>>,
}

impl Router {
    /// Writes rows of a key with values that no other key may have: each is claimed for the key by
    /// the look-up that is named before it. `key` is the sharding key, which the look-up's key
    /// column has in the row. A row is written only in a transaction that has claimed its value; a
    /// trigger in the shard refuses it otherwise. An unsharded host has no such trigger: there
    /// nothing refuses a row with another key, or a value that was not claimed.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router, user: i64, email: &str) -> Result<(),
    /// pgshard::router::Error> {
    /// use pgshard::router::Error;
    ///
    /// let insert = "INSERT INTO {shard}.users (id, email) VALUES ($1, $2)";
    /// match router.claiming(user, [("emails", email)])?.execute(insert, &[&user, &email]).await {
    ///     Ok(_) => println!("registered"),
    ///     Err(Error::Taken { .. }) => println!("that address has an account"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Lookup`] when the config does not have the look-up, when a value is there twice, or
    /// the wrong number of values is given.
    pub fn claiming<K, N, V>(
        &self,
        key: K,
        values: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Claiming<'_>, Error>
    where
        K: Key,
        N: AsRef<str>,
        V: Into<Values>,
    {
        let mut wanted = Vec::new();
        for (name, values) in values {
            let name = name.as_ref();
            let definition = self.defined(name)?;
            wanted.push(ClaimRequest::new(definition, values.into())?);
        }
        let text = key_text(key.value());
        let text = text.ok_or_else(|| Error::Lookup {
            lookup: wanted
                .first()
                .map_or_else(String::new, |one| one.definition.name.clone()),
            problem: LookupProblem::Key {
                key: "an integer of more than 128 bits".to_owned(),
            },
        })?;
        // One order for all calls: two of them that want the same values meet at the first.
        wanted.sort_by(|one, other| {
            let place = |wanted: &ClaimRequest<'_>| (wanted.hash, wanted.definition.name.clone());
            place(one).cmp(&place(other))
        });
        if let Some(pair) = wanted.windows(2).find(|pair| {
            pair[0].hash == pair[1].hash && pair[0].definition.name == pair[1].definition.name
        }) {
            return Err(problem(pair[0].definition, LookupProblem::Twice));
        }
        Ok(Claiming {
            router: self,
            shard: self.by_key(key),
            key: text,
            wanted,
        })
    }
}

impl<'r> Claiming<'r> {
    /// The same on an unsharded host, if one serves the key.
    fn on_table(&self) -> Option<OnTable<'_, 'r>> {
        OnTable::of(self.router, self.shard, &self.key, &self.wanted)
    }

    /// The same, with this limit for each try of the statement or the transaction; see
    /// [`Shard::within`]. There is another try only if a claim was lost. Claiming takes three
    /// seconds at most, in all.
    pub fn within(mut self, limit: Duration) -> Self {
        self.shard = self.shard.within(limit);
        self
    }

    /// Claims the values, and runs a statement on the key's shard; see [`Shard::execute`]. An
    /// INSERT uses the claims in its own statement, which saves three round trips of four; other
    /// statements run in a transaction.
    ///
    /// # Errors
    /// As [`Claiming::transaction`]. A connection that is lost while an INSERT runs is
    /// [`Error::ConnectionLost`], with [`Error::may_have_run`], instead of [`Error::InDoubt`].
    ///
    /// # Cancel safety
    /// An INSERT may have taken effect when its future is dropped; other statements as
    /// [`Claiming::transaction`].
    pub async fn execute<'s>(
        self,
        sql: impl Into<SqlText<'s>>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        let sql = sql.into();
        if let Some(table) = self.on_table() {
            return table.execute(sql, params).await;
        }
        let sql = &sql.to_sql();
        let in_a_transaction = async |tx: Transaction| tx.execute(sql, params).await;
        let Some(whole) = statements::insert_with_uses(sql.text(), params.len(), self.wanted.len())
        else {
            return self.transaction(in_a_transaction).await;
        };
        let began = Instant::now();
        let claims = self.claim(began + WAIT_MAX).await;
        let claims = claims.map_err(Error::before_the_call)?;
        let uses = self.wanted.iter().zip(&claims);
        let uses: Vec<_> = uses
            .map(|(wanted, claim)| wanted.use_parameters(&self.key, *claim))
            .collect();
        let mut all = params.to_vec();
        all.extend(uses.iter().flat_map(UseParameters::as_parameters));
        match self.shard.execute(whole, &all).await {
            Err(error) if needs_a_transaction(&error) => {
                let left = WAIT_MAX.saturating_sub(began.elapsed());
                self.run(Some(claims), left, in_a_transaction).await
            }
            result => result,
        }
    }

    /// Claims the values, and runs a closure within a transaction on the key's shard; see
    /// [`Shard::transaction`]. The closure runs again when a statement met a move, and once when a
    /// claim was lost before the transaction began.
    ///
    /// # Errors
    /// [`Error::Taken`] when another key has a row with one of the values; [`Error::Busy`] when
    /// another call claims one at the same time and does not end within three seconds;
    /// [`Error::Lookup`]
    /// when a shard does not know the look-up as the config has it, or no unique index of an
    /// unsharded host's table makes the values unique. Nothing has run then, or it is rolled back.
    /// [`Error::LayoutChanged`] when that host no longer serves the key. All others as
    /// [`Shard::transaction`].
    ///
    /// # Cancel safety
    /// Rolled back when the future is dropped before COMMIT was sent. A claim without a row is no
    /// obstacle: the next call takes the value after two seconds at most.
    pub async fn transaction<T, E, F, Fut>(self, work: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        match self.on_table() {
            Some(table) => table.transaction(work).await,
            None => self.run(None, WAIT_MAX, work).await,
        }
    }

    /// Runs the transaction with these claims, or with new ones. Claiming may take as long as is
    /// left.
    async fn run<T, E, F, Fut>(
        &self,
        mut claims: Option<Vec<Claim>>,
        mut left: Duration,
        mut work: F,
    ) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        for _ in 0..2 {
            let claims = match claims.take() {
                Some(claims) => claims,
                None => {
                    let began = Instant::now();
                    let claims = self.claim(began + left).await;
                    left = left.saturating_sub(began.elapsed());
                    claims.map_err(Error::before_the_call)?
                }
            };
            let ran = self
                .shard
                .transaction(|tx: Transaction| {
                    let run = work(tx.clone());
                    let (this, claims) = (self, &claims);
                    async move {
                        this.use_in(&tx, claims).await?;
                        run.await.map_err(NotCommitted::Work)
                    }
                })
                .await;
            match ran {
                Ok(value) => return Ok(value),
                Err(NotCommitted::Spent) => {}
                Err(NotCommitted::Router(error)) => return Err(E::from(error)),
                Err(NotCommitted::Work(error)) => return Err(error),
            }
        }
        Err(E::from(match self.wanted.first() {
            Some(wanted) => wanted.busy(self.router, None),
            None => Error::TransactionFailed {
                shard: self.shard.id(),
            },
        }))
    }

    async fn claim(&self, deadline: Instant) -> Result<Vec<Claim>, Error> {
        let mut claims = Vec::with_capacity(self.wanted.len());
        for wanted in &self.wanted {
            let began = Instant::now();
            let claimed = Box::pin(wanted.claim(self.router, &self.key, deadline)).await;
            metrics::count(wanted.definition, began.elapsed(), &claimed);
            claims.push(claimed?);
        }
        Ok(claims)
    }

    async fn use_in<E>(&self, tx: &Transaction, claims: &[Claim]) -> Result<(), NotCommitted<E>> {
        for (wanted, claim) in self.wanted.iter().zip(claims) {
            if !wanted.use_in(self.router, tx, &self.key, *claim).await? {
                return Err(NotCommitted::Spent);
            }
        }
        Ok(())
    }
}

/// Whether an INSERT that was to use its claims failed because of them, or cannot follow WITH
/// (a rule rewrites it): a transaction uses them before it, claims again if one is spent, and has
/// the reason if not.
fn needs_a_transaction(error: &Error) -> bool {
    error.as_db_error().is_some_and(|failed| {
        failed.table() == Some(statements::CLAIM_TABLE)
            || [
                SqlState::UNDEFINED_TABLE,
                SqlState::T_R_SERIALIZATION_FAILURE,
                SqlState::FEATURE_NOT_SUPPORTED,
            ]
            .contains(failed.code())
    })
}

/// How a transaction ended that was not committed.
enum NotCommitted<E> {
    /// A claim was spent or too old, before the work began.
    Spent,
    Router(Error),
    Work(E),
}

impl<E> From<Error> for NotCommitted<E> {
    fn from(error: Error) -> NotCommitted<E> {
        NotCommitted::Router(error)
    }
}
