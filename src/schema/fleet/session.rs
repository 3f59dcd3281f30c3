//! The sessions in which the hosts' schemas are created and altered.
//!
//! Invariant: a migration means the same on every host, whatever the settings of hosts, databases
//! and roles are, and whatever the files and shards before it have left in the session.

use std::time::{Duration, Instant};

use super::fault::HostFault;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection};
use crate::schema::control::lock;
use crate::schema::survey::facts::{FactsError, HostFacts};
use crate::schema::survey::host_facts;

/// How long a bootstrap, or a migration, waits for another one on the same host.
const LOCK_PATIENCE: Duration = Duration::from_secs(10);

/// Transactions have the properties that the code relies on, and the texts of values mean the same
/// everywhere. No limit ends a long migration, but if the client's machine is gone, its locks are
/// held for half a minute at most. If only the process is gone, the server notices it within half a
/// second, and ends the statement (PostgreSQL 14 and later, on Linux: elsewhere the setting is
/// refused). Under another isolation level than READ COMMITTED, an open transaction of ours would
/// keep its snapshot, and CREATE INDEX CONCURRENTLY would wait for it for ever.
macro_rules! settings {
    () => {
        "SET statement_timeout = 0; SET search_path = ''; SET lock_timeout = 0; \
         SET idle_in_transaction_session_timeout = 0; SET default_transaction_isolation = 'read \
         committed'; \
         SET default_transaction_read_only = off; SET default_transaction_deferrable = off; \
         SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; SET tcp_keepalives_count = \
         4; \
         SET client_min_messages = warning; SET datestyle = 'ISO, YMD'; SET intervalstyle = \
         'postgres'; \
         SET timezone = 'UTC'; SET extra_float_digits = 1; SET bytea_output = 'hex'; SET xmloption \
         = content; \
         SET standard_conforming_strings = on; SET quote_all_identifiers = off; \
         SET backslash_quote = safe_encoding; \
         SELECT pg_catalog.set_config('idle_session_timeout', '0', false) \
         WHERE pg_catalog.current_setting('idle_session_timeout', true) OPERATOR(pg_catalog.<>) \
         '0'; \
         SELECT pg_catalog.set_config('transaction_timeout', '0', false) \
         WHERE pg_catalog.current_setting('transaction_timeout', true) OPERATOR(pg_catalog.<>) \
         '0'; \
         SELECT pg_catalog.set_config('client_connection_check_interval', '500', \
         false) WHERE pg_catalog.current_setting('client_connection_check_interval', true) IS NOT \
         NULL \
         AND pg_catalog.strpos(pg_catalog.version(), 'linux') OPERATOR(pg_catalog.>) 0; "
    };
}

/// The settings that a session begins with, and gets again after [`RESET`] and [`CLEAN`].
const SETTINGS: &str = settings!();

/// A timeout that a file has left must not end it half-way, nor one of the role's own, which RESET
/// ALL brings back: so that comes last, and [`settings`] take the timeout away first.
macro_rules! undo {
    () => {
        "SET statement_timeout = 0; CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ROLE; \
            DEALLOCATE ALL; \
         UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES; RESET ALL; "
    };
}

/// Undoes what a file has left in a session, within a transaction: role, settings, temporary
/// tables, prepared statements, cursors. What a file has altered stays.
pub(in crate::schema) const RESET: &str = concat!(undo!(), settings!());

/// Undoes everything that may be left in a session: advisory locks too. It does all that DISCARD
/// ALL does, except that the plans of functions are kept, which the server replaces if they have
/// become invalid: otherwise each shard would pay for planning pgshard.hold_for_migration. Within a
/// transaction it does not change that one's own properties.
pub(in crate::schema) const CLEAN: &str = concat!(
    undo!(),
    "SELECT pg_catalog.pg_advisory_unlock_all(); ",
    settings!()
);

/// Opens such a session.
pub(in crate::schema) async fn open(
    connect: &ConnectOptions,
    application_name: &str,
) -> Result<Connection, HostFault> {
    let session = connect.connect(application_name).await;
    let session =
        session.map_err(|source| HostFault::unread(&FactsError::Unreachable { source }))?;
    let settled = session.batch_execute(SETTINGS).await;
    settled.map_err(|error| HostFault::unanswered(&error))?;
    Ok(session)
}

/// Undoes what earlier statements have left in the session.
///
/// # Errors
/// When the connection is lost.
pub(in crate::schema) async fn settle(
    client: &tokio_postgres::Client,
) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(CLEAN).await
}

/// Opens the transaction that holds the host's lock until bootstrap, or a migration, ends. It is a
/// transaction's lock, since a session's could outlive us behind a pooler.
///
/// A bootstrap that was killed has lost this lock, but the server may still be at its last message:
/// that is looked for.
pub(in crate::schema) async fn lock(session: Connection) -> Result<Connection, HostFault> {
    let begin = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = 0";
    let locked = async {
        session.batch_execute(begin).await?;
        lock::try_bootstrap(&session, Instant::now() + LOCK_PATIENCE).await
    };
    match locked.await {
        Ok(true) => Ok(session),
        Ok(false) => Err(HostFault::Busy {
            processes: lock::holders(&session).await.unwrap_or_default(),
        }),
        Err(error) => Err(HostFault::unanswered(&error)),
    }
}

/// Reads the facts of a host on the session that holds its lock. It waits for a lock no longer than
/// for another bootstrap. The rollback to the savepoint releases the locks of what was read, for
/// which an ALTER TABLE of the work would otherwise wait for ever. It also closes the cursor that
/// the last query has left open in the transaction: with that snapshot, CREATE INDEX CONCURRENTLY
/// would wait for the end of our own transaction.
pub(in crate::schema) async fn read(session: &Connection) -> Result<HostFacts, FactsError> {
    let lost = |source| FactsError::Query {
        what: "server",
        source,
    };
    session
        .batch_execute("SAVEPOINT facts; SET LOCAL lock_timeout = '10s'")
        .await
        .map_err(lost)?;
    let facts = host_facts(session).await?;
    session
        .batch_execute("ROLLBACK TO SAVEPOINT facts; RELEASE SAVEPOINT facts")
        .await
        .map_err(lost)?;
    Ok(facts)
}

/// The one commit that waits for the disk, which makes all earlier ones durable too. It also
/// releases the lock.
pub(in crate::schema) async fn flush(session: &Connection) -> Result<(), HostFault> {
    let flush =
        "SELECT pgshard.commit_durably(); UPDATE pgshard.cluster SET only_row = only_row; COMMIT";
    session
        .batch_execute(flush)
        .await
        .map_err(|error| HostFault::Lost {
            reason: chain(&error),
        })
}
