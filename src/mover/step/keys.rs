//! Foreign keys after the open, which has added them NOT VALID: to validate one takes a scan.
//!
//! Before: the target serves, and its foreign keys are enforced for everything that is written.
//! After: they are validated, and partitioned tables have theirs. If the mover dies in between:
//! each is a transaction of its own, and a resume does the rest.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use crate::mover::definition::ddl::{Creation, Online, Stage};
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;
use crate::pg::cause::chain;
use crate::pg::quote_ident;
use crate::schema::catalog::preamble;

/// How long a partitioned table's foreign key waits for its locks, and with it every session that
/// queues behind it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '100ms'";

/// The pause between two tries, in which waiting sessions can continue.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// How long the move tries before it leaves that to a resume.
const TRIED_FOR: Duration = Duration::from_secs(60);

impl ShardMove<'_> {
    /// Validates the foreign keys that the open has added NOT VALID. No session waits for it.
    ///
    /// Rows that break a key, as they were written at the source while its triggers were disabled,
    /// keep it from being validated; and a partitioned table from getting it at all, before
    /// PostgreSQL 18. The move continues: the shard is served, and only its owner can decide what
    /// to do with such rows.
    ///
    /// # Errors
    /// When a partitioned table did not get its foreign key otherwise. Those of its partitions are
    /// enforced until then, but a partition that is added would have none.
    ///
    /// Locks: SHARE UPDATE EXCLUSIVE on one table and ROW SHARE on the table that it refers to, for
    /// a scan of the former; then as [`add_proved`](ShardMove::add_proved).
    pub(crate) async fn validate(&self, creation: &Creation) -> Result<(), Error> {
        let what = "validating foreign keys";
        for statement in creation
            .after_data
            .iter()
            .filter(|statement| statement.stage == Stage::ForeignKey)
        {
            let Some(sql) = validation(&statement.sql) else {
                continue;
            };
            let validated = async {
                self.target
                    .batch(what, &format!("BEGIN; {}", preamble(&self.names.schema)))
                    .await?;
                self.target
                    .statement(what, &self.at_its_place(&sql))
                    .await?;
                self.target.batch(what, "COMMIT").await
            };
            if let Err(error) = validated.await {
                tracing::warn!(
                    shard = %self.hold.shard,
                    error = chain(&error),
                    statement = sql,
                    "a foreign key is enforced, but was not validated: mend the rows that break \
                     it, and run the statement"
                );
                let _ = self.target.batch(what, "ROLLBACK").await;
            }
        }
        let until = Instant::now() + TRIED_FOR;
        for statement in creation
            .after_data
            .iter()
            .filter(|statement| statement.online() == Online::Proved)
        {
            let sql = self.at_its_place(&statement.sql);
            while !self.add_proved(&sql, Instant::now() < until).await? {
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
        }
        Ok(())
    }

    /// The statement for the schema that was opened.
    fn at_its_place(&self, sql: &str) -> String {
        sql.replace(
            &quote_ident(&self.names.incoming()),
            &quote_ident(&self.names.schema),
        )
    }

    /// Gives a partitioned table a foreign key that its partitions have. Returns false if another
    /// session has a lock on one of the tables, and `may_wait` allows another try. If the key
    /// exists already, it is kept; if rows break it, there is none.
    ///
    /// Locks: SHARE ROW EXCLUSIVE on the table, its partitions and the table that it refers to, for
    /// which it waits 100 ms; for one statement that reads no rows.
    async fn add_proved(&self, sql: &str, may_wait: bool) -> Result<bool, Error> {
        let what = "adding the foreign keys of partitioned tables";
        self.target
            .batch(
                what,
                &format!("BEGIN; {}; {LOCK_TIMEOUT}", preamble(&self.names.schema)),
            )
            .await?;
        let (added, end) = match self.target.client.query_typed(sql, &[]).await {
            Ok(_) => (Ok(true), "COMMIT"),
            Err(error) if error.code() == Some(&SqlState::DUPLICATE_OBJECT) => {
                (Ok(true), "ROLLBACK")
            }
            Err(error) if error.code() == Some(&SqlState::FOREIGN_KEY_VIOLATION) => {
                let error = self.target.failed(what, error);
                tracing::warn!(
                    shard = %self.hold.shard,
                    error = chain(&error),
                    statement = sql,
                    "rows break this key of a partitioned table, as they did at the source: mend \
                     them, and run the statement"
                );
                (Ok(true), "ROLLBACK")
            }
            Err(error) if may_wait && error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                (Ok(false), "ROLLBACK")
            }
            Err(error) => (Err(self.target.failed(what, error)), "ROLLBACK"),
        };
        self.target.batch(what, end).await?;
        added
    }
}

/// Whether the statement adds a foreign key that is valid at the source.
pub(super) fn is_key(sql: &str) -> bool {
    sql.starts_with("ALTER TABLE")
        && sql.contains(" ADD CONSTRAINT ")
        && !sql.ends_with(" NOT VALID")
}

/// `ALTER TABLE t VALIDATE CONSTRAINT c`, of `ALTER TABLE t ADD CONSTRAINT c FOREIGN KEY …`.
fn validation(sql: &str) -> Option<String> {
    let (table, rest) = sql.split_once(" ADD CONSTRAINT ").filter(|_| is_key(sql))?;
    let (constraint, _) = rest.split_once(" FOREIGN KEY ")?;
    Some(format!("{table} VALIDATE CONSTRAINT {constraint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_key_is_validated_later_unless_it_never_was() {
        let sql = "ALTER TABLE s__incoming.photos ADD CONSTRAINT \"it's\" FOREIGN KEY (a) \
            REFERENCES users(id)";
        assert_eq!(
            validation(sql).as_deref(),
            Some("ALTER TABLE s__incoming.photos VALIDATE CONSTRAINT \"it's\"")
        );
        assert_eq!(validation(&format!("{sql} NOT VALID")), None);
        assert_eq!(
            validation("COMMENT ON CONSTRAINT x ON photos IS 'y ADD CONSTRAINT z'"),
            None
        );
    }
}
