//! Creates shards on one connection: many in one transaction and one message, or one alone to find
//! the statement that fails. The shards are not in use yet, so no application waits for a lock.
//!
//! Invariant: a shard is made whole or not at all. Its row in `pgshard.shard` is written by the
//! transaction that makes its schema, and is written first, so that a second bootstrap stops there.

use std::fmt::Write;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use uuid::Uuid;

use super::fault::ShardFault;
use super::one_by_one;
use super::recipe::{Failure, LOCAL, Placed, Recipe, WRITE_ROW, passes, wants_commit};
use super::session::settle;

/// How often a shard is tried when it fails for a temporary reason, such as a deadlock over
/// something that shards share.
const TRIES: usize = 3;

/// Makes many shards in one transaction. Returns false if it was rolled back: something is wrong
/// with at least one of them.
///
/// # Errors
/// When the connection is lost. The transaction was then either committed as a whole or not at all.
pub(in crate::schema) async fn run_many(
    client: &Client,
    recipe: &Recipe<'_>,
    shards: &[Placed],
) -> Result<bool, tokio_postgres::Error> {
    // The steps are run for all shards, one after the other, not shard by shard: looking up a
    // function by name reads all functions of that name in all schemas, and creating one
    // invalidates what was read. So the thousands of next_id() are read once for each batch, not
    // once for each shard.
    let mut sql = String::new();
    for (shard, _) in shards {
        sql.push_str(&recipe.create_schema(*shard));
    }
    let mut rest: Vec<_> = shards
        .iter()
        .map(|(shard, _)| recipe.migrations(*shard))
        .collect();
    loop {
        let step: Vec<_> = rest.iter_mut().filter_map(Iterator::next).collect();
        if step.is_empty() {
            break;
        }
        for (_, text, after) in step {
            // A text may end in a comment, or without its semicolon.
            let _ = write!(sql, "{text}\n;\n{after}");
            if !after.is_empty() {
                sql.push_str(LOCAL);
            }
        }
    }
    let (begin, record) = (recipe.begin(shards), recipe.record(shards));
    settle(client).await?;
    match client
        .batch_execute(&format!("{begin}\n{sql}{record}COMMIT"))
        .await
    {
        Ok(()) => Ok(true),
        Err(error) if client.is_closed() => Err(error),
        Err(_) => client.batch_execute("ROLLBACK").await.map(|()| false),
    }
}

/// The result of making one shard alone.
pub(in crate::schema) enum Alone {
    /// It is done.
    Done {
        /// Locks on objects, before the commit.
        locks: i64,
    },
    /// It is done, file by file.
    Apart,
    /// It was there already: the server had still been reading the last message of a bootstrap that
    /// was killed. A later run sees what that one left to do.
    There,
    /// It was rolled back.
    Failed(ShardFault),
}

/// Makes one shard in a transaction of its own, or file by file if that fails because a commit is
/// needed in between. Tries a few times if it fails for a temporary reason.
///
/// # Errors
/// When the connection is lost. A transaction was then either committed as a whole or not at all.
pub(in crate::schema) async fn run_alone(
    client: &Client,
    recipe: &Recipe<'_>,
    shard: Placed,
) -> Result<Alone, tokio_postgres::Error> {
    let (mut is_apart, maker) = (false, Uuid::new_v4());
    for attempt in 1.. {
        let outcome = match is_apart {
            false => transaction(client, recipe, shard)
                .await
                .map(|locks| Alone::Done { locks }),
            true => one_by_one::make(client, recipe, shard, maker)
                .await
                .map(|()| Alone::Apart),
        };
        let failure = match outcome {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        if client.is_closed()
            && let Some(error) = failure.error
        {
            return Err(error);
        }
        client.batch_execute("ROLLBACK").await?;
        let code = failure.error.as_ref().and_then(|error| error.code());
        if !is_apart && code.is_some_and(wants_commit) {
            is_apart = true;
            continue;
        }
        if is_apart {
            match one_by_one::clear(client, recipe.cluster, shard.0, Some(maker)).await {
                Ok(()) => {}
                Err(error) if client.is_closed() => return Err(error),
                // The first failure is more precise. The remains have the mark, and the next
                // bootstrap drops them.
                Err(_) => return Ok(Alone::Failed(failure.fault)),
            }
        }
        let at_row = matches!(
            failure.fault,
            ShardFault::Statement {
                doing: WRITE_ROW,
                ..
            }
        );
        if at_row && code == Some(&SqlState::UNIQUE_VIOLATION) {
            return Ok(Alone::There);
        }
        if !code.is_some_and(passes) || attempt >= TRIES {
            return Ok(Alone::Failed(failure.fault));
        }
    }
    unreachable!("the loop ends at its last attempt")
}

async fn transaction(client: &Client, recipe: &Recipe<'_>, placed: Placed) -> Result<i64, Failure> {
    let (shard, _) = placed;
    settle(client).await.map_err(Failure::at("begin"))?;
    client
        .batch_execute(&recipe.begin(&[placed]))
        .await
        .map_err(Failure::at(WRITE_ROW))?;
    client
        .batch_execute(&recipe.create_schema(shard))
        .await
        .map_err(Failure::at("create the schema"))?;
    for (name, text, after) in recipe.migrations(shard) {
        client
            .batch_execute(&text)
            .await
            .map_err(|error| Failure::of(name, &text, error))?;
        client
            .batch_execute(&format!("{after}{LOCAL}"))
            .await
            .map_err(Failure::at("reset the session"))?;
    }
    client
        .batch_execute(&recipe.record(&[placed]))
        .await
        .map_err(Failure::at("record the migrations"))?;
    let count = "SELECT count(*) FROM pg_catalog.pg_locks WHERE pid = pg_catalog.pg_backend_pid()";
    let row = client.query_one(count, &[]).await;
    let locks = row
        .and_then(|row| row.try_get(0))
        .map_err(Failure::at("count the locks"))?;
    client
        .batch_execute("COMMIT")
        .await
        .map_err(Failure::at("commit"))?;
    Ok(locks)
}
