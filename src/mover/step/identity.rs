//! Replica identities: lent to tables with rows that the stream cannot identify, and taken back.
//!
//! Before: the source serves, and nothing is published. After: every table of the shard has an
//! identity, and `lent_identity` on both hosts records what the tables had before. If the mover
//! dies in between, some tables have theirs, each with its row, and the next start lends the rest.
//! The end of a move takes the identities back; if one cannot be taken back then, `moves gc` does
//! it.
//!
//! Invariant: a table and its row in `lent_identity` change in one transaction. An identity is
//! taken back only if no move of the shard is under way and no publication of a move has the table.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;

use crate::mover::control::session::Session;
use crate::mover::preflight::facts;
use crate::mover::preflight::identity::{self, LentIdentity};
use crate::mover::preflight::table::{self, Identity, TableShape};
use crate::mover::protocol::error::Error;
use crate::mover::step::ShardMove;
use crate::pg::cause::chain;
use crate::pg::quote_ident;
use crate::shard::ShardId;

/// How long an ALTER TABLE waits for the table's lock, and with it every session that queues behind
/// it.
const LOCK_TIMEOUT: &str = "SET LOCAL lock_timeout = '100ms'";

/// The pause between two tries, in which waiting sessions can continue.
const BETWEEN_TRIES: Duration = Duration::from_millis(250);

/// How long the move tries to get a lock before it gives up.
const LEND_FOR: Duration = Duration::from_secs(60);

/// How long it tries at a move's end. `moves gc` tries again.
const TAKE_BACK_FOR: Duration = Duration::from_secs(3);

impl ShardMove<'_> {
    /// Lends an identity to every table of the source that needs one.
    ///
    /// Locks: rows of a table of ours; then, one table after the other, ACCESS EXCLUSIVE for one
    /// statement, which waits for it 100 ms at a time.
    pub(super) async fn lend_identities(&self, schema: u32) -> Result<(), Error> {
        let what = "lending a replica identity";
        // This comes first: a mover that is about to take an identity back then sees that it is
        // needed again, or has taken it back before the tables are read.
        let sql = "UPDATE pgshard.lent_identity SET move_id = $2 WHERE shard_id = $1";
        let (shard, id) = (self.hold.shard.as_i32(), *self.hold.id.uuid());
        self.source.execute(what, sql, &[&shard, &id]).await?;
        let shapes = table::shapes(&self.source, schema).await?;
        let keys = identity::keys(&self.source, &shapes).await?;
        let judgement = identity::judge(&shapes, &keys, self.options.replica_identity);
        if !judgement.refusals.is_empty() {
            let refusals = judgement
                .refusals
                .into_iter()
                .map(|found| self.refusal(found))
                .collect();
            return Err(Error::Refused { refusals });
        }
        let until = Instant::now() + LEND_FOR;
        for lent in &judgement.lent {
            let Some(shape) = shapes.iter().find(|shape| shape.name == lent.table) else {
                continue;
            };
            while !self.lend(shape, lent).await? {
                if Instant::now() >= until {
                    return Err(self.blocked(schema, &shape.name).await?);
                }
                tokio::time::sleep(BETWEEN_TRIES).await;
            }
            self.at("in lend")?;
        }
        Ok(())
    }

    /// Lends one table its identity. Returns false if another session has a lock on it.
    ///
    /// Locks: ACCESS EXCLUSIVE on the table, for one transaction of two statements.
    async fn lend(&self, shape: &TableShape, lent: &LentIdentity) -> Result<bool, Error> {
        let what = "lending a replica identity";
        let former = match shape.identity {
            Identity::Default => "d",
            Identity::Nothing => "n",
            Identity::Index => "i",
            Identity::Full => "f",
        };
        let former_index = shape
            .key_index
            .as_ref()
            .filter(|_| shape.identity == Identity::Index);
        let table = format!(
            "{}.{}",
            quote_ident(&self.names.schema),
            quote_ident(&shape.name)
        );
        self.source
            .batch(what, &format!("BEGIN; {LOCK_TIMEOUT}"))
            .await?;
        let altered = async {
            let sql = format!("ALTER TABLE {table} REPLICA IDENTITY {}", lent.clause());
            if !alter(&self.source, what, &sql).await? {
                return Ok(false);
            }
            // If the table has a row already, the lent identity was altered since.
            let sql = "INSERT INTO pgshard.lent_identity
                    (shard_id, table_name, move_id, former, former_index, lent_index) VALUES ($1, \
                    $2, $3, $4, $5, $6)
                ON CONFLICT (shard_id, table_name) DO UPDATE SET move_id = excluded.move_id,
                    former = excluded.former, former_index = excluded.former_index, lent_index = \
                    excluded.lent_index";
            let (shard, id) = (self.hold.shard.as_i32(), *self.hold.id.uuid());
            let former_index = former_index.map(|index| index.name.as_str());
            let lent_index = lent.index.as_deref();
            self.source
                .execute(
                    what,
                    sql,
                    &[
                        &shard,
                        &shape.name,
                        &id,
                        &former,
                        &former_index,
                        &lent_index,
                    ],
                )
                .await?;
            Ok(true)
        };
        let altered = altered.await;
        self.source
            .batch(
                what,
                if matches!(altered, Ok(true)) {
                    "COMMIT"
                } else {
                    "ROLLBACK"
                },
            )
            .await?;
        altered
    }

    /// Writes to the target which identities were lent at the source: its tables will be created as
    /// those are now.
    ///
    /// Locks: rows of a table of ours, for one transaction.
    pub(super) async fn tell_what_is_lent(&self) -> Result<(), Error> {
        let what = "telling the target what was lent";
        let shard = self.hold.shard.as_i32();
        let sql = "SELECT table_name, former, former_index, lent_index FROM pgshard.lent_identity \
            WHERE shard_id = $1";
        let mut lent: [Vec<Option<String>>; 4] = Default::default();
        for row in self.source.rows(what, sql, &[&shard]).await? {
            for (at, column) in lent.iter_mut().enumerate() {
                column.push(row.get(at)?);
            }
        }
        // If the target knows of a lent identity, it is an old copy's, from when its shard left.
        let sql = "WITH gone AS (
                DELETE FROM pgshard.lent_identity l WHERE shard_id = $1 AND table_name <> ALL \
                ($3::text[])
                    AND NOT EXISTS (SELECT FROM pgshard.shard s WHERE s.shard_id = $1 AND s.state \
                    <> 'moved'))
            INSERT INTO pgshard.lent_identity (shard_id, move_id, table_name, former, \
            former_index, lent_index)
            SELECT $1, $2, t.* FROM unnest($3::text[], $4::text[], $5::text[], $6::text[]) AS t
            ON CONFLICT (shard_id, table_name) DO UPDATE SET move_id = excluded.move_id,
                former = excluded.former, former_index = excluded.former_index, lent_index = \
                excluded.lent_index";
        let [tables, former, former_index, lent_index] = &lent;
        let id = *self.hold.id.uuid();
        self.target
            .execute(
                what,
                sql,
                &[&shard, &id, tables, former, former_index, lent_index],
            )
            .await
            .map(drop)
    }

    /// The error that names the sessions with locks on the shard's tables.
    async fn blocked(&self, schema: u32, table: &str) -> Result<Error, Error> {
        let locks = facts::locks(&self.source, schema).await?;
        let blockers = locks
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join("; ");
        let (shard, host, table) = (self.hold.shard, self.source.host.clone(), table.to_owned());
        Ok(Error::IdentityBlocked {
            shard,
            host,
            table,
            blockers,
        })
    }
}

/// Runs an ALTER TABLE in a transaction. Returns false if it did not get its lock.
async fn alter(session: &Session, what: &'static str, sql: &str) -> Result<bool, Error> {
    match session.client.batch_execute(sql).await {
        Ok(()) => Ok(true),
        Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(false),
        Err(error) => Err(session.failed(what, error)),
    }
}

/// A row of `lent_identity` that is no longer needed.
struct Over {
    shard: ShardId,
    table: String,
    id: uuid::Uuid,
    /// The statement that restores the table's identity. `None` if its identity is not the one that
    /// was lent.
    sql: Option<String>,
}

/// The result of taking a replica identity back.
pub(crate) struct TakenBack {
    pub(crate) shard: ShardId,
    pub(crate) table: String,
    /// False if there was nothing left to do.
    pub(crate) outcome: Result<bool, Error>,
}

/// Like [`take_back`], where the caller cannot react to an error: it is logged.
pub(crate) async fn take_back_or_warn(session: &Session) {
    let failed = match take_back(session).await {
        Ok(all) => all
            .into_iter()
            .filter_map(|one| one.outcome.err())
            .collect(),
        Err(error) => vec![error],
    };
    for error in failed {
        tracing::warn!(host = %session.host, error = chain(&error), "a replica identity is still \
            lent: `pgshard moves gc` takes it back");
    }
}

/// Takes back the identities that were lent to the tables of the shards that this host serves,
/// where no move needs it any longer. If one cannot be taken back, the others are.
///
/// Locks: as [`take_one_back`].
pub(crate) async fn take_back(session: &Session) -> Result<Vec<TakenBack>, Error> {
    let what = "looking for lent replica identities";
    let sql = "SELECT l.shard_id, l.table_name, l.move_id,
            CASE WHEN c.relreplident = 'f' AND l.lent_index IS NULL
                    OR c.relreplident = 'i' AND coalesce(x.relname::text, l.lent_index) = \
                    l.lent_index
                THEN format('ALTER TABLE %I.%I REPLICA IDENTITY ', n.nspname, c.relname) || CASE
                    WHEN l.former = 'n' THEN 'NOTHING' WHEN l.former = 'f' THEN 'FULL'
                    WHEN to_regclass(quote_ident(n.nspname) || '.' || quote_ident(l.former_index)) \
                    IS NOT NULL
                        THEN format('USING INDEX %I', l.former_index)
                    ELSE 'DEFAULT' END END
        FROM pgshard.lent_identity l JOIN pgshard.shard s ON s.shard_id = l.shard_id AND s.state = \
        'serving'
        LEFT JOIN pg_namespace n ON n.nspname = s.schema_name
        LEFT JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = l.table_name AND c.relkind \
        = 'r'
        LEFT JOIN pg_index i ON i.indrelid = c.oid AND i.indisreplident AND c.relreplident = 'i'
        LEFT JOIN pg_class x ON x.oid = i.indexrelid
        WHERE NOT EXISTS (SELECT FROM pgshard.move m WHERE m.shard_id = l.shard_id
                AND m.phase NOT IN ('kept', 'completed', 'aborted'))
            AND NOT EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = \
            r.prpubid
                WHERE r.prrelid = c.oid AND p.pubname LIKE 'pgshard\\_%')
        ORDER BY 1, 2";
    let mut all = Vec::new();
    let until = Instant::now() + TAKE_BACK_FOR;
    for row in session.rows(what, sql, &[]).await? {
        let Ok(shard) = ShardId::try_from(row.get::<_, i32>(0)?) else {
            continue;
        };
        let over = Over {
            shard,
            table: row.get(1)?,
            id: row.get(2)?,
            sql: row.get(3)?,
        };
        let outcome = loop {
            match take_one_back(session, &over).await {
                Ok(None) if Instant::now() < until => tokio::time::sleep(BETWEEN_TRIES).await,
                Ok(None) => {
                    let (host, table, blockers) =
                        (session.host.clone(), over.table.clone(), String::new());
                    break Err(Error::IdentityBlocked {
                        shard,
                        host,
                        table,
                        blockers,
                    });
                }
                Ok(Some(is_taken)) => break Ok(is_taken),
                Err(error) => break Err(error),
            }
        };
        all.push(TakenBack {
            shard,
            table: over.table,
            outcome,
        });
    }
    Ok(all)
}

/// Takes one back. `Some(false)`: there is nothing to do, or a move needs it again. `None`: another
/// session has a lock on the table.
///
/// Locks: the row, and ACCESS EXCLUSIVE on the table, for which it waits 100 ms; for one
/// transaction of two statements.
async fn take_one_back(session: &Session, over: &Over) -> Result<Option<bool>, Error> {
    let what = "taking a replica identity back";
    session
        .batch(what, &format!("BEGIN; {LOCK_TIMEOUT}"))
        .await?;
    let taken = async {
        let sql = "DELETE FROM pgshard.lent_identity WHERE shard_id = $1 AND table_name = $2 AND \
            move_id = $3";
        let deleted = match session
            .client
            .execute(sql, &[&over.shard.as_i32(), &over.table, &over.id])
            .await
        {
            Ok(deleted) => deleted,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => return Ok(None),
            Err(error) => return Err(session.failed(what, error)),
        };
        match &over.sql {
            Some(sql) if deleted == 1 => Ok(alter(session, what, sql).await?.then_some(true)),
            _ => Ok(Some(false)),
        }
    };
    let taken = taken.await;
    session
        .batch(
            what,
            if matches!(taken, Ok(Some(_))) {
                "COMMIT"
            } else {
                "ROLLBACK"
            },
        )
        .await?;
    taken
}

/// Removes the rows of the identities that were lent to a shard of which this host has nothing
/// left.
///
/// Locks: rows of a table of ours, until the end of the transaction.
pub(crate) async fn forget(session: &Session, shard: ShardId) -> Result<(), Error> {
    let sql = "DELETE FROM pgshard.lent_identity WHERE shard_id = $1
            AND NOT EXISTS (SELECT FROM pgshard.shard WHERE shard_id = $1 AND state <> 'moved')
            AND NOT EXISTS (SELECT FROM pgshard.incoming WHERE shard_id = $1)
            AND NOT EXISTS (SELECT FROM pgshard.ledger WHERE shard_id = $1 AND kind IN ('left', \
            'incoming'))";
    session
        .execute("forgetting what was lent", sql, &[&shard.as_i32()])
        .await
        .map(drop)
}
