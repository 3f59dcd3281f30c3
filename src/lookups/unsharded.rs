//! Look-ups on an unsharded host, which has the rows of all shards in one table: the table itself
//! is the look-up.
//!
//! Invariant: a table is read only if a unique index of its own makes the values unique. So a value
//! has one key at most, whoever writes: nothing is claimed, and PostgreSQL refuses the second row.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::time::Instant;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::ToSql;

use super::answer::{fitting, problem};
use super::claimer::{ClaimRequest, WAIT_MAX};
use super::metrics;
use super::parameter::Parameter;
use super::statements;
use super::table::{self, Columns, IndexRow, TableRow, UniqueIndex};
use crate::pg::quote_ident;
use crate::router::{
    Error, LookupProblem, LookupTable, Reach, Router, Shard, Sql, SqlText, Transaction, WholeHost,
};
use crate::shard::ShardId;
use crate::values::Definition;

/// The tables of look-ups on the unsharded host that serves a shard.
#[derive(Debug)]
pub(super) struct Table<'r> {
    router: &'r Router,
    host: WholeHost,
    /// A handle for statements about all rows.
    all: Shard<'r>,
}

impl<'r> Table<'r> {
    /// The tables, if an unsharded host serves this shard.
    pub(super) fn of(router: &'r Router, shard: ShardId) -> Option<Table<'r>> {
        let host = router.whole_host(shard)?;
        let all = router.reaching(shard, Reach::Host).ok()?;
        Some(Table { router, host, all })
    }

    /// The key of the row with these values.
    pub(super) async fn key(&self, wanted: &ClaimRequest<'_>) -> Result<Option<String>, Error> {
        self.key_by(self.all, wanted).await
    }

    /// The same, by a handle with a limit and connections of its own.
    async fn key_by(
        &self,
        shard: Shard<'r>,
        wanted: &ClaimRequest<'_>,
    ) -> Result<Option<String>, Error> {
        let definition = wanted.definition;
        let table = match self.router.lookup_table(&definition.name, &self.host) {
            Some(table) => table,
            None => Arc::new(self.read(shard, definition).await?),
        };
        fitting(definition, &table.kinds, &wanted.values)?;
        let values = values(wanted);
        match shard.query_opt_as(&table.find, &parameters(&values)).await {
            Ok(row) => Ok(row.map(|(key,)| key)),
            // No column can hold it: a zero byte in a text, a date that PostgreSQL does not have.
            Err(error) if error.code().is_some_and(is_of_data) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The same within a transaction, after a call outside of it. None if it cannot be read: then
    /// nothing of the transaction can be committed.
    async fn key_in(&self, tx: &Transaction, wanted: &ClaimRequest<'_>) -> Option<String> {
        let table = self
            .router
            .lookup_table(&wanted.definition.name, &self.host)?;
        let values = values(wanted);
        let found = tx.query_opt_as(&table.find, &parameters(&values)).await;
        found.ok().flatten().map(|(key,)| key)
    }

    /// Reads the table of a look-up, and keeps what was found if it can be used.
    async fn read(&self, shard: Shard<'r>, definition: &Definition) -> Result<LookupTable, Error> {
        let (schema, name) = (self.host.schema.as_str(), definition.table.as_str());
        let (columns, key) = (&definition.columns, &definition.key);
        let sql = Sql::reading(table::TABLE);
        let row: Option<TableRow> = shard
            .query_opt_as(&sql, &[&schema, &name, columns, key])
            .await?;
        let table = format!("{}.{}", quote_ident(schema), quote_ident(name));
        let host = self.host.name.clone();
        let columns = match Columns::of(definition, row) {
            Ok(columns) => columns,
            Err(reason) => {
                let unfit = LookupProblem::UnfitTable {
                    host,
                    table,
                    reason,
                };
                return Err(problem(definition, unfit));
            }
        };
        let Some(index) = self.unique_index(shard, definition, &columns).await? else {
            let statement = columns.remedy(&table);
            let missing = LookupProblem::NoUniqueIndex { host, statement };
            return Err(problem(definition, missing));
        };
        let found = LookupTable {
            kinds: columns.kinds(),
            find: Sql::reading(&columns.find(&index)),
        };
        let kept = Arc::new(found.clone());
        self.router
            .set_lookup_table(&definition.name, self.host.clone(), kept);
        Ok(found)
    }

    /// An index that makes the values unique.
    async fn unique_index(
        &self,
        shard: Shard<'r>,
        definition: &Definition,
        columns: &Columns<'_>,
    ) -> Result<Option<UniqueIndex>, Error> {
        let (schema, name) = (self.host.schema.as_str(), definition.table.as_str());
        let sql = Sql::reading(table::INDEXES);
        let rows: Vec<IndexRow> = shard.query_as(&sql, &[&schema, &name]).await?;
        for index in rows.into_iter().filter_map(|row| columns.unique(row)) {
            if index.collations.is_empty() {
                return Ok(Some(index));
            }
            let sql = Sql::reading(&table::folds_ascii(&index.collations));
            let (folds,): (Vec<bool>,) = shard.query_one_as(&sql, &[&table::TRIAL]).await?;
            if folds.into_iter().all(|folds| folds) {
                return Ok(Some(index));
            }
        }
        Ok(None)
    }
}

/// The values of a look-up as a statement has them.
fn values(wanted: &ClaimRequest<'_>) -> Vec<Parameter> {
    let fold = wanted.definition.fold;
    let values = wanted.values.0.iter();
    values.map(|value| Parameter::new(value, fold)).collect()
}

fn parameters(values: &[Parameter]) -> Vec<&(dyn ToSql + Sync)> {
    let values = values.iter();
    values.map(|value| value as &(dyn ToSql + Sync)).collect()
}

/// Whether this SQLSTATE is about the values of a statement.
fn is_of_data(code: &SqlState) -> bool {
    code.code().starts_with("22")
}

/// Values for a key on an unsharded host, and SQL that writes them. The statements run only while
/// the host serves the shard: on shards, values are claimed.
pub(super) struct OnTable<'c, 'r> {
    table: Table<'r>,
    shard: Shard<'r>,
    key: &'c str,
    wanted: &'c [ClaimRequest<'r>],
}

impl<'c, 'r> OnTable<'c, 'r> {
    /// They, if an unsharded host serves the shard of the key.
    pub(super) fn of(
        router: &'r Router,
        shard: Shard<'r>,
        key: &'c str,
        wanted: &'c [ClaimRequest<'r>],
    ) -> Option<OnTable<'c, 'r>> {
        let table = Table::of(router, shard.id())?;
        Some(OnTable {
            table,
            shard,
            key,
            wanted,
        })
    }

    /// See [`Claiming::execute`](super::Claiming::execute).
    pub(super) async fn execute(
        self,
        sql: SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        let sql = &sql.to_sql();
        // ON CONFLICT ends without an error on another key's row.
        let may_meet = sql.text().to_ascii_uppercase().contains("CONFLICT");
        if may_meet || !statements::is_insert(sql.text()) {
            return self
                .transaction(async |tx: Transaction| tx.execute(sql, params).await)
                .await;
        }
        self.check().await?;
        match self.writing().execute(sql, params).await {
            Err(error) if is_duplicate(&error) => Err(self.taken().await.unwrap_or(error)),
            result => result,
        }
    }

    /// See [`Claiming::transaction`](super::Claiming::transaction).
    pub(super) async fn transaction<T, E, F, Fut>(self, mut work: F) -> Result<T, E>
    where
        F: FnMut(Transaction) -> Fut,
        Fut: Future<Output = Result<T, E>>,
        E: From<Error>,
    {
        self.check().await?;
        let met = AtomicBool::new(false);
        let ran = self
            .writing()
            .transaction(|tx: Transaction| {
                let (run, met, this) = (work(tx.clone()), &met, &self);
                async move {
                    let result = run.await;
                    met.store(tx.met_duplicate(), Ordering::Relaxed);
                    let value = result.map_err(NotCommitted::Work)?;
                    this.check_in(&tx).await?;
                    Ok(value)
                }
            })
            .await;
        let met = met.load(Ordering::Relaxed);
        let (is_taken, error) = match ran {
            Ok(value) => return Ok(value),
            // Rolled back: an error of the closure commits nothing.
            Err(NotCommitted::Work(error)) => (met, error),
            Err(NotCommitted::Router(error)) => {
                let is_taken = is_duplicate(&error) || met && !error.may_have_run();
                (is_taken, E::from(error))
            }
        };
        if is_taken && let Some(taken) = self.taken().await {
            return Err(E::from(taken));
        }
        Err(error)
    }

    fn writing(&self) -> Shard<'r> {
        self.shard.reaching(Reach::KeysOfHost)
    }

    /// Checks, before the work, that the table makes the values unique, and that none of them is
    /// another key's.
    async fn check(&self) -> Result<(), Error> {
        let deadline = Instant::now() + WAIT_MAX;
        for wanted in self.wanted {
            let began = Instant::now();
            let checked = self.check_one(wanted, deadline).await;
            metrics::count(wanted.definition, began.elapsed(), &checked);
            checked.map_err(Error::before_the_call)?;
        }
        Ok(())
    }

    /// Checks, after the work, that none of the values is another key's: a statement with ON
    /// CONFLICT may have met a row that was committed since the first check.
    async fn check_in(&self, tx: &Transaction) -> Result<(), Error> {
        for wanted in self.wanted {
            let key = self.table.key_in(tx, wanted).await;
            if let Some(key) = key.filter(|key| key != self.key) {
                let lookup = wanted.definition.name.clone();
                return Err(Error::Taken { lookup, key });
            }
        }
        Ok(())
    }

    /// Whether a value is another key's by now, after PostgreSQL has refused a duplicate. If that
    /// cannot be read, its own error is the answer.
    async fn taken(&self) -> Option<Error> {
        let deadline = Instant::now() + WAIT_MAX;
        for wanted in self.wanted {
            if let Err(taken @ Error::Taken { .. }) = self.check_one(wanted, deadline).await {
                return Some(taken);
            }
        }
        None
    }

    /// Refuses a value that is another key's. On connections of its own, as those of the pool may
    /// all be in transactions that wait for this.
    async fn check_one(&self, wanted: &ClaimRequest<'_>, deadline: Instant) -> Result<(), Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        let shard = self.shard.reaching(Reach::Host);
        let shard = shard.for_claims().within(left);
        match self.table.key_by(shard, wanted).await? {
            Some(key) if key != self.key => Err(Error::Taken {
                lookup: wanted.definition.name.clone(),
                key,
            }),
            _ => Ok(()),
        }
    }
}

/// Whether a unique index refused a statement that has not taken effect.
fn is_duplicate(error: &Error) -> bool {
    error.is_unique_violation() && !error.may_have_run()
}

/// How a transaction ended that was not committed.
enum NotCommitted<E> {
    Router(Error),
    Work(E),
}

impl<E> From<Error> for NotCommitted<E> {
    fn from(error: Error) -> NotCommitted<E> {
        NotCommitted::Router(error)
    }
}
