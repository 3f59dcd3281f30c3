//! Statements without names: for a pooler (PgBouncer in transaction mode) that gives every
//! transaction another session, where what one transaction prepared, the next does not find; and
//! for statements that a session of our own does not keep.
//!
//! The server must be given the types of their parameters. Behind a pooler the router reads them
//! once, in a transaction of their own, and elsewhere it knows them from a session that has
//! prepared the statement. It caches them per host. From then on a statement is one round trip.
//!
//! Invariant: outside a transaction nothing is left prepared in a session of a pooler, which
//! another will get.

use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;
use tokio_postgres::Client;
use tokio_postgres::types::{ToSql, Type};

use super::answer::Answer;
use super::cleaning::{CLEAN_AND_COMMIT, ROLLBACK_AND_CLEAN};
use super::origin::is_lost;
use super::sql::ShardStatement;
use super::stale::MoveSignal;
use super::statement_error::StatementError;
use super::statements::Prepare;

/// The types of the parameters of each statement. They are the same in every shard, unless one is a
/// type of the shard's own.
pub(super) struct LearnedTypes(Mutex<LruCache<Box<str>, Box<[Type]>>>);

impl LearnedTypes {
    /// Statements with cached types. An application has a few hundred.
    const STATEMENTS_MAX: usize = 4096;

    pub(super) fn new() -> LearnedTypes {
        let size = NonZeroUsize::new(Self::STATEMENTS_MAX).expect("some are remembered");
        LearnedTypes(Mutex::new(LruCache::new(size)))
    }

    fn with<T>(&self, work: impl FnOnce(&mut LruCache<Box<str>, Box<[Type]>>) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn known_types(&self, statement: ShardStatement<'_>) -> Option<Box<[Type]>> {
        self.with(|types| {
            let everywhere = types.get(statement.template()).cloned();
            everywhere.or_else(|| types.get(&*statement.text()).cloned())
        })
    }

    fn remember(&self, statement: ShardStatement<'_>, found: &[Type]) {
        let everywhere = found
            .iter()
            .all(|found| Type::from_oid(found.oid()).is_some());
        let key = if everywhere {
            statement.template().into()
        } else {
            statement.text()
        };
        self.with(|types| types.put((*key).into(), found.into()));
    }

    /// The types of a statement's parameters if they are the same in every shard.
    pub(super) fn everywhere(&self, statement: ShardStatement<'_>) -> Option<Box<[Type]>> {
        if statement.is_by_search_path() {
            return None;
        }
        self.with(|types| types.get(statement.template()).cloned())
    }

    /// Remembers the types of a statement that a session of our own has prepared, if they are the
    /// same in every shard.
    pub(super) fn prepared(&self, statement: ShardStatement<'_>, found: &[Type]) {
        let everywhere = found
            .iter()
            .all(|found| Type::from_oid(found.oid()).is_some());
        if everywhere && !statement.is_by_search_path() {
            self.with(|types| types.put(statement.template().into(), found.into()));
        }
    }

    fn forget(&self, statement: ShardStatement<'_>) {
        self.with(|types| {
            types.pop(statement.template());
            types.pop(&*statement.text());
        });
    }
}

pub(super) async fn run<A: Answer>(
    client: &Client,
    learned: &LearnedTypes,
    statement: ShardStatement<'_>,
    params: &[&(dyn ToSql + Sync)],
    prepare: Prepare,
    in_transaction: bool,
) -> Result<A, StatementError> {
    if prepare == Prepare::Again {
        learned.forget(statement);
    }
    let known = if params.is_empty() {
        Some(Box::default())
    } else {
        learned.known_types(statement)
    };
    let prepared_before = known.is_some() && !params.is_empty();
    let types = match known {
        Some(types) => types,
        None => {
            let found = learn(client, &statement.text(), in_transaction).await;
            let found = found.map_err(|error| StatementError {
                error,
                prepared_before: false,
                sent: false,
            })?;
            learned.remember(statement, &found);
            found
        }
    };
    run_typed(
        client,
        learned,
        statement,
        params,
        (&types, prepared_before),
    )
    .await
}

/// Runs a statement with parameters of these types. Returns whether they were known before.
pub(super) async fn run_typed<A: Answer>(
    client: &Client,
    learned: &LearnedTypes,
    statement: ShardStatement<'_>,
    params: &[&(dyn ToSql + Sync)],
    (types, prepared_before): (&[Type], bool),
) -> Result<A, StatementError> {
    // The caller gives the number of parameters. If it is wrong, the server reports it.
    let types = types
        .iter()
        .cloned()
        .chain(std::iter::repeat(Type::UNKNOWN));
    let params = params.iter().copied().zip(types).collect();
    A::ask_typed(client, &statement.text(), params)
        .await
        .map_err(|error| {
            let failed = StatementError {
                error,
                prepared_before,
                sent: true,
            };
            if MoveSignal::of(&failed.error).is_some() || failed.may_be_outdated() {
                learned.forget(statement);
            }
            failed
        })
}

/// Runs a statement that may leave something in its session. It runs in a transaction of its own,
/// which also cleans up: the pooler's next client gets the session as it was.
pub(super) async fn run_and_clean<A: Answer>(
    client: &Client,
    learned: &LearnedTypes,
    statement: ShardStatement<'_>,
    params: &[&(dyn ToSql + Sync)],
    prepare: Prepare,
) -> Result<A, StatementError> {
    let failed = |sent| {
        move |error| StatementError {
            error,
            prepared_before: false,
            sent,
        }
    };
    client.batch_execute("BEGIN").await.map_err(failed(false))?;
    let answer = run(client, learned, statement, params, prepare, true).await;
    match &answer {
        Ok(_) => {
            if let Err(error) = client.batch_execute(CLEAN_AND_COMMIT).await {
                if !is_lost(&error) {
                    client
                        .batch_execute(ROLLBACK_AND_CLEAN)
                        .await
                        .map_err(failed(false))?;
                }
                return Err(failed(true)(error));
            }
        }
        Err(lost) if is_lost(&lost.error) => {}
        Err(_) => client
            .batch_execute(ROLLBACK_AND_CLEAN)
            .await
            .map_err(failed(false))?,
    }
    answer
}

/// Reads the types of a statement's parameters. The statement that this prepares is closed within
/// the same transaction, and so in the same session.
async fn learn(
    client: &Client,
    sql: &str,
    in_transaction: bool,
) -> Result<Box<[Type]>, tokio_postgres::Error> {
    if in_transaction {
        return Ok(client.prepare(sql).await?.params().into());
    }
    client.batch_execute("BEGIN").await?;
    let prepared = client
        .prepare(sql)
        .await
        .map(|statement| statement.params().into());
    match prepared {
        Ok(types) => {
            client.batch_execute("COMMIT").await?;
            Ok(types)
        }
        Err(error) => {
            client.batch_execute("ROLLBACK").await?;
            Err(error)
        }
    }
}
