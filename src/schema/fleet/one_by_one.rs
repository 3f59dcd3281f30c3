//! Makes one new shard file by file, if its files do not go into one transaction.
//!
//! Invariant: a shard is served whole or not at all. The last transaction writes its row in
//! `pgshard.shard`. From the transaction that creates its schema until then, a mark is among the
//! shard's migrations: a shard with the mark and without a row has never been served. It is dropped
//! when a file fails, or by the next bootstrap.
//!
//! A bootstrap that has lost its lock with its connection may still be running when the next one
//! begins. So the mark contains the ID of the maker. A file is run, or the row written, only while
//! that mark is there; and before a shard is dropped, the mark is locked and the row looked for.
//! Otherwise the former bootstrap could run a file in the schema that the latter has created again,
//! and insert the file's rows twice.

use tokio_postgres::Client;
use uuid::Uuid;

use super::recipe::{Failure, Placed, Recipe, WRITE_ROW, begin_work};
use super::session::settle;
use crate::pg::quote_ident;
use crate::schema::control::Cluster;
use crate::schema::control::id_functions::UNFINISHED;
use crate::shard::ShardId;

/// Makes the shard, with a commit after each file.
///
/// # Errors
/// What failed. The remains are for [`clear`] with the same maker.
pub(in crate::schema) async fn make(
    client: &Client,
    recipe: &Recipe<'_>,
    placed: Placed,
    maker: Uuid,
) -> Result<(), Failure> {
    let (shard, _) = placed;
    settle(client).await.map_err(Failure::at("begin"))?;
    let first = format!(
        "{}{} INSERT INTO pgshard.shard_migration (shard_id, name, checksum) \
         VALUES ({shard}, '{UNFINISHED}', '{maker}'); COMMIT",
        begin_work(),
        recipe.create_schema(shard)
    );
    client
        .batch_execute(&first)
        .await
        .map_err(Failure::at("create the schema"))?;
    let begin = format!(
        "{} {}",
        begin_work(),
        with_mark("PERFORM FROM", "FOR SHARE", placed, maker)
    );
    for (name, text, _) in recipe.migrations(shard) {
        client
            .batch_execute(&begin)
            .await
            .map_err(Failure::at("begin"))?;
        client
            .batch_execute(&text)
            .await
            .map_err(|error| Failure::of(name, &text, error))?;
        // Deferred constraints are checked now.
        client
            .batch_execute("COMMIT")
            .await
            .map_err(|error| Failure::of(name, &text, error))?;
        settle(client)
            .await
            .map_err(Failure::at("reset the session"))?;
    }
    client
        .batch_execute(&recipe.begin(&[placed]))
        .await
        .map_err(Failure::at(WRITE_ROW))?;
    let last = format!(
        "{} {} COMMIT",
        with_mark("DELETE FROM", "", placed, maker),
        recipe.record(&[placed])
    );
    client
        .batch_execute(&last)
        .await
        .map_err(Failure::at("record the migrations"))
}

/// Does something with the mark, or fails if it is no longer this maker's.
fn with_mark(verb: &str, lock: &str, (shard, _): Placed, maker: Uuid) -> String {
    format!(
        "DO $mark$ BEGIN
            {verb} pgshard.shard_migration
            WHERE shard_id = {shard} AND name = '{UNFINISHED}' AND checksum = '{maker}' {lock};
            IF NOT FOUND THEN
                RAISE EXCEPTION 'another bootstrap has taken over shard {shard}';
            END IF;
        END $mark$;"
    )
}

/// Drops the remains of a shard that was not finished: those of this maker, or of any. Does nothing
/// if there is no such mark, or the shard has a row.
///
/// Locks: the mark's row, and ACCESS EXCLUSIVE on what is in the schema, which is not in use.
///
/// # Errors
/// When the connection is lost, or another session uses the schema after all and is in the way for
/// ten seconds.
pub(in crate::schema) async fn clear(
    client: &Client,
    cluster: &Cluster,
    shard: ShardId,
    maker: Option<Uuid>,
) -> Result<(), tokio_postgres::Error> {
    settle(client).await?;
    let schema = quote_ident(&cluster.schema_prefix.schema(shard));
    let made_by = maker
        .map(|maker| format!(" AND checksum = '{maker}'"))
        .unwrap_or_default();
    let drop = format!(
        "{} DO $clear$ BEGIN
            PERFORM FROM pgshard.shard_migration WHERE shard_id = {shard} AND name = \
            '{UNFINISHED}'{made_by} FOR UPDATE;
            IF FOUND AND NOT EXISTS (SELECT FROM pgshard.shard WHERE shard_id = {shard}) THEN
                DROP SCHEMA IF EXISTS {schema} CASCADE;
                DELETE FROM pgshard.shard_migration WHERE shard_id = {shard};
            END IF;
        END $clear$; COMMIT",
        begin_work()
    );
    match client.batch_execute(&drop).await {
        Ok(()) => Ok(()),
        Err(error) if client.is_closed() => Err(error),
        Err(error) => client.batch_execute("ROLLBACK").await.and(Err(error)),
    }
}
