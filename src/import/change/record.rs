//! Where the commands that change a database record what they have done: the schema
//! `pgshard_import`, with a table for each command.

use super::error::ChangeError;
use super::session::Session;

/// The schema of the records, and of triggers' functions.
pub(in crate::import) const SCHEMA: &str = "pgshard_import";

/// Whether a record is there.
pub(in crate::import) async fn exists(session: &Session, table: &str) -> Result<bool, ChangeError> {
    let what = "find the record of import commands";
    let sql = format!("SELECT to_json(to_regclass('{SCHEMA}.{table}') IS NOT NULL)");
    Ok(session.value(what, &sql).await? == Some(true))
}

/// Drops a record without rows, and the schema if nothing is left in it.
pub(in crate::import) async fn drop_if_empty(
    session: &Session,
    table: &str,
) -> Result<(), ChangeError> {
    let sql = format!(
        "DO $drop$
        DECLARE left_over boolean := true;
        BEGIN
            IF to_regclass('{SCHEMA}.{table}') IS NOT NULL THEN
                EXECUTE 'SELECT EXISTS (SELECT FROM {SCHEMA}.{table})' INTO left_over;
                IF NOT left_over THEN DROP TABLE {SCHEMA}.{table}; END IF;
            END IF;
            IF to_regnamespace('{SCHEMA}') IS NOT NULL
                AND NOT EXISTS (SELECT FROM pg_class
                    WHERE relnamespace = to_regnamespace('{SCHEMA}'))
                AND NOT EXISTS (SELECT FROM pg_proc
                    WHERE pronamespace = to_regnamespace('{SCHEMA}')) THEN
                DROP SCHEMA {SCHEMA};
            END IF;
        END $drop$"
    );
    session.execute("drop the record", &sql).await
}
