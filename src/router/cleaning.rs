//! The SQL that cleans a session, and that ends a transaction.

/// Undoes everything that a session can have been left with, but keeps the driver's own prepared
/// statements (so this is not DISCARD ALL): only those that PREPARE has made are dropped.
macro_rules! clean {
    () => {
        "CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
         SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES; \
         DO $$ DECLARE prepared text; BEGIN \
         FOR prepared IN SELECT name FROM pg_catalog.pg_prepared_statements WHERE from_sql \
         LOOP EXECUTE pg_catalog.format('DEALLOCATE %I', prepared); END LOOP; END $$"
    };
}

/// Cleans a session in which no transaction is open.
pub(super) const CLEAN: &str = clean!();

/// Cleans a session of our own, and one that a pooler takes back with the answer.
pub(super) const ROLLBACK_AND_CLEAN: &str = concat!("ROLLBACK; ", clean!());

/// COMMIT gives no error in a transaction that has failed: the server rolls back, and only the
/// command tag shows it, which the driver does not expose. SAVEPOINT is refused there, and outside
/// a transaction too, so that COMMIT is not reached.
pub(super) const COMMIT: &str = "SAVEPOINT pgshard_end; COMMIT";

/// Commits, and cleans the session. Nothing may fail after COMMIT, so the cleaning comes before it.
/// Deferred triggers run before the cleaning, because they may need a setting.
pub(super) const CLEAN_AND_COMMIT: &str = concat!(
    "SET CONSTRAINTS ALL IMMEDIATE; ",
    clean!(),
    "; SAVEPOINT pgshard_end; COMMIT"
);
