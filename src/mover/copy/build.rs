//! Builds keys and indexes of tables that are completely copied, while others are still being
//! copied.
//!
//! Before: every chunk of a table is at the target, and the table has no index. After: it has all
//! indexes that are built before changes are applied, and statistics. If the mover dies in between,
//! the state is as before, since it is one transaction. Invariant: that transaction is the only one
//! that gives the table its first index, so that a mover that finds one knows that all are there.

use std::collections::{BTreeMap, BTreeSet};

use crate::mover::control::session::Session;
use crate::mover::definition::ddl::Statement;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Options;
use crate::pg::{quote_ident, quote_literal};
use crate::schema::catalog::{CLOSE_PATH, preamble};

use crate::mover::copy::{ShardCopy, prove_lease};

/// What to build on the tables of a shard: the statements for each, in their order.
pub(crate) type Builds = BTreeMap<String, Vec<Statement>>;

/// Which of these tables have an index.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
pub(crate) async fn built(
    target: &Session,
    schema: &str,
    tables: &[&str],
) -> Result<BTreeSet<String>, Error> {
    let sql = "SELECT c.relname::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = $1 AND c.relname = ANY ($2) AND EXISTS (SELECT FROM pg_index i WHERE \
        i.indrelid = c.oid)";
    let rows = target
        .rows("looking for what is built", sql, &[&schema, &tables])
        .await?;
    rows.iter().map(|row| row.get(0)).collect()
}

/// Builds what these tables lack.
///
/// `application_name` is the session's name while it builds, so that a takeover can end it.
///
/// Locks: on the target ACCESS EXCLUSIVE on tables that no other session uses, until the end; those
/// of [`prove_lease`] only at the very end, so that a takeover never waits for an index.
///
/// # Cancel safety
/// If dropped or failed, the session is in a transaction and must be closed.
pub(crate) async fn build(
    target: &Session,
    work: &ShardCopy,
    tables: &[String],
    builds: &Builds,
    application_name: &str,
    options: &Options,
) -> Result<(), Error> {
    let what = "building keys and indexes";
    let schema = &work.target_schema;
    let named = format!(
        "SET LOCAL application_name = {}",
        quote_literal(application_name)
    );
    let locked: Vec<String> = tables
        .iter()
        .map(|table| format!("{}.{}", quote_ident(schema), quote_ident(table)))
        .collect();
    // Rows and indexes may commit asynchronously: if the target's machine goes down, both are lost
    // together. The tables are locked before the indexes are looked up: a transaction from a lost
    // connection may still be committing.
    let sql = format!(
        "BEGIN; {named}; SET LOCAL synchronous_commit = off; LOCK TABLE {} IN ACCESS EXCLUSIVE \
            MODE",
        locked.join(", ")
    );
    target.batch(what, &sql).await?;
    let there = built(
        target,
        schema,
        &tables.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .await?;
    target.batch(what, &preamble(schema)).await?;
    for table in tables.iter().filter(|table| !there.contains(*table)) {
        for statement in builds.get(table).into_iter().flatten() {
            target.make(what, statement).await?;
        }
        analyze(target, schema, table).await?;
    }
    target.batch(what, CLOSE_PATH).await?;
    prove_lease(target, work.hold).await?;
    options.at("in build")?;
    target.batch(what, "COMMIT").await?;
    options.at("after build")
}

/// Gathers statistics for the planner. The indexes are right without them, so that a failure is
/// only logged.
///
/// Locks: SHARE UPDATE EXCLUSIVE on the table, until the end of the transaction.
async fn analyze(target: &Session, schema: &str, table: &str) -> Result<(), Error> {
    let what = "analyzing";
    target.batch(what, "SAVEPOINT before_analyze").await?;
    let sql = format!("ANALYZE {}.{}", quote_ident(schema), quote_ident(table));
    match target.batch(what, &sql).await {
        Ok(()) => target.batch(what, "RELEASE before_analyze").await,
        Err(error) => {
            tracing::warn!(%error, table, "a table was not analyzed; autovacuum will do it");
            target.batch(what, "ROLLBACK TO before_analyze").await
        }
    }
}
