//! Builds a shard's schema at the target as the move will, in a transaction that is rolled back,
//! and compares what the expressions are bound to there. So what the target's server refuses, and
//! what would mean something else there, is known before anything is copied, and nothing runs for
//! the first time while the shard is closed.

use crate::mover::control::session::Session;
use crate::mover::definition::bindings::Bindings;
use crate::mover::definition::ddl::Statement;
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::pg::quote_ident;
use crate::schema::catalog::{CLOSE_PATH, preamble};

const WHAT: &str = "rehearsing the build of the target's schema";

/// What keeps the schema of a shard from being built at the target. `statements`: all of them, in
/// order. Nothing may be there by the name of `incoming`.
///
/// Locks: on the target only on what it creates, until the rollback.
///
/// # Cancel safety
/// If dropped, the target's session is in a transaction, and must be closed.
pub(crate) async fn build(
    source: &Session,
    target: &Session,
    (schema, incoming): (u32, &str),
    statements: impl Iterator<Item = &Statement>,
) -> Result<Vec<Refusal>, Error> {
    let begin = format!("BEGIN; {}", preamble(incoming));
    target.batch(WHAT, &begin).await?;
    let found = match make(target, statements).await {
        Ok(None) => compare(source, target, (schema, incoming)).await,
        Ok(Some(refusal)) => Ok(vec![refusal]),
        Err(error) => Err(error),
    };
    target.batch(WHAT, "ROLLBACK").await?;
    found
}

/// The same for what is still to be made of a schema, in the transaction that has made the rest,
/// and that has begun with [`preamble`]. The transaction is afterwards as it was before.
///
/// Locks: on the target none that the transaction does not have.
pub(crate) async fn finish(
    source: &Session,
    target: &Session,
    (schema, incoming): (u32, &str),
    statements: impl Iterator<Item = &Statement>,
) -> Result<Vec<Refusal>, Error> {
    target.batch(WHAT, "SAVEPOINT rehearsal").await?;
    let found = match make(target, statements).await {
        Ok(None) => compare(source, target, (schema, incoming)).await,
        Ok(Some(refusal)) => Ok(vec![refusal]),
        Err(error) => Err(error),
    }?;
    let end = "ROLLBACK TO SAVEPOINT rehearsal; RELEASE SAVEPOINT rehearsal";
    target.batch(WHAT, end).await.map(|()| found)
}

/// Runs the statements up to the first that the server refuses permanently.
async fn make(
    target: &Session,
    statements: impl Iterator<Item = &Statement>,
) -> Result<Option<Refusal>, Error> {
    for statement in statements {
        match target.make(WHAT, statement).await {
            Ok(()) => {}
            Err(error) if error.is_permanent() => return Ok(Some(refused(statement, &error))),
            Err(error) => return Err(error),
        }
    }
    Ok(None)
}

fn refused(statement: &Statement, error: &Error) -> Refusal {
    let words = error.server_words().unwrap_or_else(|| error.to_string());
    let reason = format!("cannot be made at the target: {words}");
    Refusal::new(
        statement.what.clone(),
        reason,
        "write it so that the target's version takes it, or create there what it needs",
    )
}

/// What the schema that was built is bound to, other than the one at the source.
async fn compare(
    source: &Session,
    target: &Session,
    (schema, incoming): (u32, &str),
) -> Result<Vec<Refusal>, Error> {
    target.batch(WHAT, CLOSE_PATH).await?;
    let built = facts::schema_oid(target, incoming).await?.unwrap_or(0);
    let (ours, theirs) = tokio::try_join!(bindings(source, schema), bindings(target, built))?;
    Ok(ours.differences(&theirs))
}

async fn bindings(session: &Session, schema: u32) -> Result<Bindings, Error> {
    let version = facts::version(session).await?;
    Bindings::read(session.client.client(), schema, version)
        .await
        .map_err(|error| session.failed("reading what the definitions are bound to", error))
}

/// The statements as they can be compared with those of another shard: without the schema's names,
/// and without functions with bodies that are text. The server does not read such a body when the
/// function is created, and those of pgshard's own contain the shard's number.
pub(crate) fn alike<'s>(
    statements: impl Iterator<Item = &'s Statement>,
    names: &Names,
) -> Vec<String> {
    let (incoming, schema) = (quote_ident(&names.incoming()), quote_ident(&names.schema));
    statements
        .filter(|one| !one.what.starts_with("function ") || is_bound(&one.sql))
        .map(|one| one.sql.replace(&incoming, "").replace(&schema, ""))
        .collect()
}

/// Whether the statement creates a function with a body that is read immediately.
fn is_bound(sql: &str) -> bool {
    sql.starts_with("CREATE ") && !sql.contains("\nAS $")
}
