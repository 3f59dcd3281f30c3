//! The publication and the slot of a group, on its source.
//!
//! Invariant: the ledger names both before they exist and until they are gone. The publication is
//! complete before the slot is created: changes from before a table was published would be missing
//! without any sign.

use std::collections::{BTreeSet, HashSet};
use std::time::{Duration, Instant};

use sha2::{Digest as _, Sha256};
use tokio_postgres::GenericClient;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{PgLsn, Type};

use crate::map::HostName;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::options::Options;
use crate::pg::{quote_ident, quote_literal, shown};
use crate::shard::ShardId;

/// The name of a move's publication and slot, on its source.
pub(crate) fn stream_name(id: MoveId) -> String {
    format!("pgshard_{}", id.uuid().simple())
}

/// The name of those of its reverse replication, on its target. A move with several sources has one
/// for each.
pub(crate) fn back_name(id: MoveId, source: &HostName) -> String {
    let of_source: String = Sha256::digest(source.as_str().as_bytes())
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
    format!("{}{BACK}{of_source}", stream_name(id))
}

/// The name of the publication and slot that a move from this source to this target reads: its own,
/// or, for a rollback, those of the reverse replication.
pub(crate) fn name_of(id: MoveId, rollback_of: Option<MoveId>, target: &HostName) -> String {
    rollback_of.map_or_else(
        || stream_name(id),
        |taken_back| back_name(taken_back, target),
    )
}

/// The names of reverse replications contain this, and no others do.
const BACK: &str = "_back_";

/// Whether a publication or slot of this name belongs to a reverse replication.
pub(crate) fn is_back(name: &str) -> bool {
    name.contains(BACK)
}

/// The owner of the publication and slot, for the ledger. A group is listed there under one of its
/// shards.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    pub(crate) name: &'a str,
    pub(crate) id: MoveId,
    pub(crate) shard: ShardId,
    /// The options with the failpoints that are passed.
    pub(crate) options: &'a Options,
}

/// The state of a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SlotState {
    /// Why its stream cannot be trusted any longer.
    pub(crate) lost: Option<&'static str>,
    /// How much WAL the server keeps for it.
    pub(crate) kept_bytes: i64,
    /// Transactions that were committed before this position are no longer sent.
    pub(crate) confirmed: u64,
}

/// The state of a slot that has come to this server from the primary that it replaced.
pub(crate) const OF_A_FORMER_PRIMARY: &str = "a copy of a former primary's";

/// How many tables are published at a time, so that one transaction does not need locks on
/// thousands.
const TABLES_AT_ONCE: usize = 64;

/// Publishes these tables, with the tables of markers and watermarks, under the move's name. Tables
/// that are published already are left alone.
///
/// Locks: SHARE UPDATE EXCLUSIVE on 64 tables at a time, for a statement; readers and writers do
/// not notice, and behind a DDL it gives up after two seconds.
pub(crate) async fn create_publication(
    source: &Session,
    owner: Owner<'_>,
    tables: &[(String, String)],
) -> Result<(), Error> {
    let what = "publishing the tables";
    register(source, "publication", owner).await?;
    let there = "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = $1)";
    let name = quote_ident(owner.name);
    if !source
        .row(what, there, &[&owner.name])
        .await?
        .get::<_, bool>(0)?
    {
        source
            .batch(what, &format!("CREATE PUBLICATION {name}"))
            .await?;
    }
    owner.options.at("in publication")?;
    let own = ["marker", "beacon"].map(|table| ("pgshard".to_owned(), table.to_owned()));
    let published = "SELECT n.nspname::text, c.relname::text
        FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON \
        c.oid = r.prrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = $1";
    let published = source.rows(what, published, &[&owner.name]).await?;
    let published: Result<HashSet<(String, String)>, Error> = published
        .iter()
        .map(|row| Ok((row.get(0)?, row.get(1)?)))
        .collect();
    let published = published?;
    let missing: Vec<String> = own
        .iter()
        .chain(tables)
        .filter(|table| !published.contains(*table))
        .map(|(schema, table)| format!("{}.{}", quote_ident(schema), quote_ident(table)))
        .collect();
    if computes(source, tables).await? {
        source
            .batch(
                what,
                &format!("ALTER PUBLICATION {name} SET (publish_generated_columns = stored)"),
            )
            .await?;
    }
    for tables in missing.chunks(TABLES_AT_ONCE) {
        // ONLY: the children of a table are treated as tables of their own.
        let sql = format!(
            "ALTER PUBLICATION {name} ADD TABLE ONLY {}",
            tables.join(", ONLY ")
        );
        source.batch(what, &sql).await?;
    }
    Ok(())
}

/// Whether the replica identity of one of these tables is FULL although it has a generated column.
/// From version 18 on its UPDATE and DELETE fail unless generated columns are published too; before
/// that they are never published.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
async fn computes(source: &Session, tables: &[(String, String)]) -> Result<bool, Error> {
    let (schemas, names): (Vec<&str>, Vec<&str>) = tables
        .iter()
        .map(|(schema, name)| (schema.as_str(), name.as_str()))
        .unzip();
    let sql = "SELECT current_setting('server_version_num')::int4 >= 180000 AND EXISTS (
            SELECT FROM unnest($1::text[], $2::text[]) AS t(schema, name)
            JOIN pg_namespace n ON n.nspname = t.schema JOIN pg_class c ON c.relnamespace = n.oid \
            AND c.relname = t.name
            JOIN pg_attribute a ON a.attrelid = c.oid AND a.attgenerated = 's' WHERE \
            c.relreplident = 'f')";
    source
        .row("looking for generated columns", sql, &[&schemas, &names])
        .await?
        .get(0)
}

/// Removes the tables of a schema from a publication, as far as they are in it.
///
/// Locks: SHARE UPDATE EXCLUSIVE on 64 tables at a time, for a statement; behind a DDL it gives up
/// after two seconds.
pub(crate) async fn withdraw(source: &Session, name: &str, schema: &str) -> Result<(), Error> {
    let what = "taking tables out of the publication";
    let sql = "SELECT format('%I.%I', n.nspname, c.relname)
        FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON \
        c.oid = r.prrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace WHERE p.pubname = $1 AND n.nspname = $2";
    let mut tables: Vec<String> = Vec::new();
    for row in source.rows(what, sql, &[&name, &schema]).await? {
        tables.push(row.get(0)?);
    }
    for tables in tables.chunks(TABLES_AT_ONCE) {
        let sql = format!(
            "ALTER PUBLICATION {} DROP TABLE ONLY {}",
            quote_ident(name),
            tables.join(", ONLY ")
        );
        source.batch(what, &sql).await?;
    }
    Ok(())
}

/// A published table with rows that the stream can no longer identify: the OID of its schema, and
/// the table.
///
/// Locks: ACCESS SHARE on catalogs.
pub(crate) async fn unnamed(source: &Session, name: &str) -> Result<Vec<(u32, String)>, Error> {
    let what = "looking for tables that have lost their keys";
    let sql = "SELECT c.relnamespace, c.oid::regclass::text
        FROM pg_publication p JOIN pg_publication_rel r ON r.prpubid = p.oid JOIN pg_class c ON \
        c.oid = r.prrelid
        WHERE p.pubname = $1 AND c.relnamespace <> 'pgshard'::regnamespace AND c.relreplident <> \
        'f' AND NOT EXISTS (
            SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisvalid
                AND CASE c.relreplident WHEN 'i' THEN i.indisreplident WHEN 'd' THEN \
                i.indisprimary ELSE false END)";
    let rows = source.rows(what, sql, &[&name]).await?;
    rows.iter()
        .map(|row| Ok((row.get(0)?, row.get(1)?)))
        .collect()
}

/// What keeps changes of a schema's tables out of a publication of ours, if anything: another
/// session has altered it. PostgreSQL leaves such changes out of the stream without any sign; from
/// version 18 on all of them, if the publication is gone.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
pub(crate) async fn gap<C: GenericClient + Sync>(
    client: &C,
    name: &str,
    schema: u32,
) -> Result<Option<String>, tokio_postgres::Error> {
    // Before version 15 there are neither conditions nor lists of columns.
    let sql = "WITH ours AS MATERIALIZED (
            SELECT oid, pubinsert AND pubupdate AND pubdelete AND pubtruncate AS whole
            FROM pg_catalog.pg_publication WHERE pubname = $1)
        SELECT CASE
            WHEN NOT EXISTS (SELECT FROM ours) THEN 'is gone'
            WHEN NOT (SELECT whole FROM ours) THEN 'no longer publishes every INSERT, UPDATE, \
            DELETE and TRUNCATE'
            ELSE (
                SELECT pg_catalog.format('no longer publishes all of the table %s', c.relname)
                FROM pg_catalog.pg_depend d JOIN pg_catalog.pg_class c ON c.oid = d.objid
                WHERE d.refclassid = 'pg_catalog.pg_namespace'::pg_catalog.regclass AND d.refobjid \
                = $2
                    AND d.classid = 'pg_catalog.pg_class'::pg_catalog.regclass
                    AND c.relkind = 'r' AND c.relpersistence = 'p' AND NOT EXISTS (
                        SELECT FROM ours JOIN pg_catalog.pg_publication_rel r ON r.prpubid = \
                        ours.oid
                        WHERE r.prrelid = c.oid AND pg_catalog.to_jsonb(r) ->> 'prqual' IS NULL
                            AND pg_catalog.to_jsonb(r) ->> 'prattrs' IS NULL)
                LIMIT 1)
        END";
    let rows = client
        .query_typed(sql, &[(&name, Type::TEXT), (&schema, Type::OID)])
        .await?;
    let gap: Option<String> = rows.first().map_or(Ok(None), |row| row.try_get(0))?;
    // What to do with a move is decided by its command; it cannot know that an old copy is of no
    // use any longer.
    let next = match is_back(name) {
        true => {
            "; abort the rollback, complete the move that it takes back, and move the shard by a \
                new one"
        }
        false => "",
    };
    Ok(gap.map(|gap| {
        format!("the publication {name} {gap}, since another program has altered it{next}")
    }))
}

/// Creates the slot, unless it exists. Returns the position from which it sends changes.
///
/// PostgreSQL waits for all transactions of the whole server that are under way and have written.
/// After two seconds the statement is started again, until `patience` is over.
///
/// # Errors
/// [`Error::SlotBlocked`] names the transactions that it waited for.
///
/// Locks: waits for the ends of transactions; no session waits for it.
pub(crate) async fn create_slot(
    source: &Session,
    owner: Owner<'_>,
    patience: Duration,
) -> Result<u64, Error> {
    let what = "creating the slot";
    register(source, "slot", owner).await?;
    owner.options.at("before slot")?;
    let until = Instant::now() + patience;
    let sql = match has_synchronized_slots(source).await? {
        true => {
            "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput', failover => true)"
        }
        false => "SELECT lsn FROM pg_create_logical_replication_slot($1, 'pgoutput')",
    };
    loop {
        if let Some(state) = slot_state(source, owner.name).await? {
            return Ok(state.confirmed);
        }
        let made = source.client.query_one(sql, &[&owner.name]).await;
        let error = match made {
            Ok(row) => {
                return row
                    .try_get::<_, PgLsn>(0)
                    .map(u64::from)
                    .map_err(|error| source.failed(what, error));
            }
            Err(error) => error,
        };
        if error.code() != Some(&SqlState::LOCK_NOT_AVAILABLE) {
            return Err(source.failed(what, error));
        }
        if Instant::now() >= until {
            return Err(Error::SlotBlocked {
                host: source.host.clone(),
                blockers: blockers(source).await?,
            });
        }
    }
}

/// Whether a standby of this server may synchronize slots that are made with `failover`, as from
/// PostgreSQL 17 on: one that does so streams from a physical slot. Which standbys do, the primary
/// does not know. Where none does, `failover` changes nothing; where `synchronized_standby_slots`
/// is set, the stream waits for the standbys that it names.
///
/// Locks: none.
async fn has_synchronized_slots(source: &Session) -> Result<bool, Error> {
    let sql = "SELECT current_setting('server_version_num')::int4 >= 170000
        AND EXISTS (SELECT FROM pg_replication_slots WHERE slot_type = 'physical')";
    source
        .row("looking for standbys with slots", sql, &[])
        .await?
        .get(0)
}

/// Waits for those that [`wait_for_writers`] waits for, and makes the slot's readers look at the
/// publication again: for tables that were published when the slot already existed.
///
/// Each change of such a table is decoded by what was published when the change was made. So what a
/// transaction did before that is in no stream, nor in a snapshot that is taken before it ends.
/// Releases of PostgreSQL before May 2025 also use what was published at such a transaction's first
/// change for everything that they decode later, until the publication changes once more.
///
/// # Errors
/// As [`wait_for_writers`].
///
/// Locks: as [`wait_for_writers`].
pub(crate) async fn outwait(
    source: &Session,
    name: &str,
    schemas: &[u32],
    patience: Duration,
) -> Result<(), Error> {
    wait_for_writers(source, schemas, patience).await?;
    let sql = format!(
        "ALTER PUBLICATION {} SET (publish = 'insert, update, delete, truncate')",
        quote_ident(name)
    );
    source.batch("publishing the tables", &sql).await
}

/// Waits until every transaction has ended that has changed tables of these schemas and is under
/// way now. What such a transaction did may be missing in a slot's stream, and in a snapshot that
/// is taken before it ends.
///
/// The creation of a slot waits for transactions, too, but not for the last of them: one that began
/// while it waited may have written its commit to the WAL before the position from which the slot
/// sends changes, and wait for a synchronous standby, invisible, long after that.
///
/// # Errors
/// [`Error::PublicationBlocked`] names the transactions that it waited for.
///
/// Locks: none on tables; waits for the ends of transactions, and no session waits for it.
pub(crate) async fn wait_for_writers(
    source: &Session,
    schemas: &[u32],
    patience: Duration,
) -> Result<(), Error> {
    let what = "waiting for transactions that are older than the stream";
    let until = Instant::now() + patience;
    // A transaction keeps the lock on a table that it has changed to its end; a prepared one has no
    // process. What takes SHARE UPDATE EXCLUSIVE alone changes no row, and may take hours: VACUUM,
    // ANALYZE, CREATE INDEX CONCURRENTLY.
    let sql = format!(
        "SELECT l.virtualtransaction, min(format('%s on %s: %s', coalesce('backend ' || l.pid,
                (SELECT format('the prepared transaction %L', min(p.gid)) FROM pg_locks x
                 JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
                 WHERE x.virtualtransaction = l.virtualtransaction AND x.pid IS NULL)),
                c.oid::regclass, coalesce({query}, '?')))
            FROM pg_locks l JOIN pg_class c ON c.oid = l.relation LEFT JOIN pg_stat_activity a ON \
            a.pid = l.pid
            WHERE l.locktype = 'relation' AND l.granted AND l.mode NOT IN ('AccessShareLock', \
            'RowShareLock',
                'ShareUpdateExclusiveLock', 'SIReadLock')
                AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
                AND c.relnamespace = ANY ($1) AND c.relkind = 'r' AND l.pid IS DISTINCT FROM \
                pg_backend_pid()
            GROUP BY 1 ORDER BY 1",
        query = shown("a.query"),
    );
    let mut older: Option<HashSet<String>> = None;
    loop {
        let mut there = Vec::new();
        for row in source.rows(what, &sql, &[&schemas]).await? {
            let (transaction, words): (String, String) = (row.get(0)?, row.get(1)?);
            if older
                .as_ref()
                .is_none_or(|older| older.contains(&transaction))
            {
                there.push((transaction, words));
            }
        }
        if there.is_empty() {
            break;
        }
        if Instant::now() >= until {
            let blockers = there
                .into_iter()
                .map(|(_, words)| words)
                .collect::<Vec<_>>()
                .join("; ");
            return Err(Error::PublicationBlocked {
                host: source.host.clone(),
                blockers,
            });
        }
        older = Some(
            there
                .into_iter()
                .map(|(transaction, _)| transaction)
                .collect(),
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}

/// What the creation of a slot waits for, in words.
async fn blockers(source: &Session) -> Result<String, Error> {
    let names = blocking_transactions(source).await?;
    Ok(if names.is_empty() {
        "transactions that have ended meanwhile".to_owned()
    } else {
        names.join("; ")
    })
}

/// The transactions that the creation of a slot waits for: the oldest ones of the whole server that
/// have written.
pub(crate) async fn blocking_transactions(source: &Session) -> Result<Vec<String>, Error> {
    // By their locks, which every role sees: of another role's transactions a role without
    // pg_monitor sees neither number nor age. A transaction has a lock for each subtransaction.
    let sql = format!(
        "SELECT CASE WHEN l.pid IS NULL THEN
                format('the prepared transaction %L in database %s, %s s old', p.gid,
                    min(p.database), round(extract(epoch FROM clock_timestamp() - \
                    min(p.prepared)))::text)
            ELSE format('backend %s in database %s, whose transaction is %s: %s', l.pid,
                    min(a.datname), coalesce(round(extract(epoch FROM clock_timestamp() - \
                    min(a.xact_start)))::text || ' s old', 'another role''s'),
                    coalesce(min({query}), '?')) END
        FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
        LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid AND l.pid IS NULL
        WHERE l.locktype = 'transactionid' AND l.granted AND l.mode = 'ExclusiveLock'
            AND l.pid IS DISTINCT FROM pg_backend_pid() AND (l.pid IS NOT NULL OR p.gid IS NOT NULL)
        GROUP BY l.pid, p.gid ORDER BY max(age(l.transactionid)) DESC LIMIT 3",
        query = shown("a.query"),
    );
    let rows = source
        .rows("looking for who holds the slot up", &sql, &[])
        .await?;
    rows.iter().map(|row| row.get(0)).collect()
}

/// The state of the slot; `None` if there is none.
///
/// One that was synchronized from a former primary, as PostgreSQL does from 17 on for slots with
/// `failover`, is lost, too, unless it was [adopted](super::adopt): what its reader has got may be
/// changes that this server lacks, and new ones are at the same positions. A reader would miss the
/// new ones.
///
/// Locks: none.
pub(crate) async fn slot_state(source: &Session, name: &str) -> Result<Option<SlotState>, Error> {
    let what = "looking at the slot";
    let sql = "SELECT CASE WHEN wal_status = 'lost' THEN 'lost'
                WHEN (to_jsonb(s) ->> 'synced')::boolean THEN 'synchronized' END,
            (pg_current_wal_insert_lsn() - restart_lsn)::bigint, confirmed_flush_lsn
        FROM pg_replication_slots s WHERE slot_name = $1";
    let rows = source.rows(what, sql, &[&name]).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let lost = match row.get::<_, Option<&str>>(0)? {
        None => None,
        Some("lost") => Some("lost"),
        Some(_) if is_adopted(source, name).await? => None,
        Some(_) => Some(OF_A_FORMER_PRIMARY),
    };
    Ok(Some(SlotState {
        lost,
        kept_bytes: row.get::<_, Option<i64>>(1)?.unwrap_or(0),
        confirmed: row.get::<_, Option<PgLsn>>(2)?.map(u64::from).unwrap_or(0),
    }))
}

/// The comment of a publication after its slot was adopted on the timeline that the server writes.
/// It is SQL without a parameter. Another promotion makes it untrue.
const ADOPTED_HERE: &str = "'pgshard: its slot was adopted on timeline ' || \
    left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)";

/// Whether a slot of a former primary was found to be whole, on this timeline.
///
/// Locks: ACCESS SHARE on catalogs.
async fn is_adopted(source: &Session, name: &str) -> Result<bool, Error> {
    let sql = format!(
        "SELECT EXISTS (SELECT FROM pg_publication WHERE pubname = {}
            AND obj_description(oid, 'pg_publication') = {ADOPTED_HERE})",
        quote_literal(name)
    );
    let what = "looking for what was said of the slot";
    // Where the server does not report its timeline, nothing is adopted.
    match source.row_if_provided(what, &sql).await? {
        Some(row) => row.get(0),
        None => Ok(false),
    }
}

/// Records that the slot is whole on this timeline.
///
/// Locks: SHARE UPDATE EXCLUSIVE on the publication, for a statement.
pub(super) async fn note_adopted(source: &Session, name: &str) -> Result<(), Error> {
    let sql = format!(
        "DO $$ BEGIN EXECUTE format('COMMENT ON PUBLICATION %I IS %L', {}, {ADOPTED_HERE}); END $$",
        quote_literal(name)
    );
    source.batch("recording that the slot is whole", &sql).await
}

/// Which of these slots exist, and still have what they must send.
///
/// Locks: none.
pub(crate) async fn valid(
    source: &Session,
    names: &BTreeSet<String>,
) -> Result<BTreeSet<String>, Error> {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let sql = "SELECT slot_name::text FROM pg_replication_slots
        WHERE slot_name = ANY ($1::text[]) AND wal_status IS DISTINCT FROM 'lost'";
    let rows = source.rows("looking at slots", sql, &[&names]).await?;
    rows.iter().map(|row| row.get(0)).collect()
}

/// Whether the server may count a stream of ours as a synchronous standby, whatever its name is:
/// `*` is among `synchronous_standby_names`. A name that only contains an asterisk counts too,
/// which does no harm.
///
/// Locks: none.
pub(crate) async fn may_count_streams(source: &Session) -> Result<bool, Error> {
    let sql = "SELECT position('*' IN current_setting('synchronous_standby_names')) > 0";
    source
        .row("asking which standbys commits wait for", sql, &[])
        .await?
        .get(0)
}

/// Advances a slot that has no reader to this position, which is beyond what it has confirmed.
///
/// Locks: none. The slot is in use during that time, and the server reads the WAL that it keeps.
pub(crate) async fn advance(source: &Session, name: &str, position: u64) -> Result<(), Error> {
    let sql = "SELECT end_lsn FROM pg_replication_slot_advance($1, $2)";
    source
        .row("advancing the slot", sql, &[&name, &PgLsn::from(position)])
        .await
        .map(drop)
}

/// How long a walsender may take to end.
const END_WALSENDER: Duration = Duration::from_secs(5);

/// Ends the reader of the slot: a walsender left by a mover that is dead, or has lost the move to
/// this one. It must belong to our own role.
///
/// # Errors
/// When it is not ours, or still exists after five seconds.
///
/// Locks: none.
pub(crate) async fn free_slot(source: &Session, name: &str) -> Result<(), Error> {
    let what = "ending the walsender of the slot";
    let until = Instant::now() + END_WALSENDER;
    let sql = "SELECT pg_terminate_backend(s.active_pid), s.active_pid
        FROM pg_replication_slots s WHERE s.slot_name = $1 AND s.active_pid IS NOT NULL";
    loop {
        let rows = source.rows(what, sql, &[&name]).await?;
        let Some(row) = rows.first() else {
            return Ok(());
        };
        if Instant::now() >= until {
            return Err(Error::SlotBusy {
                host: source.host.clone(),
                slot: name.to_owned(),
                pid: row.get(1)?,
            });
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Drops the slot, even while it is read, and its row in the ledger. Nothing to do if it is gone.
///
/// Locks: none.
pub(crate) async fn drop_slot(source: &Session, name: &str) -> Result<(), Error> {
    let what = "dropping the slot";
    let until = Instant::now() + END_WALSENDER;
    loop {
        free_slot(source, name).await?;
        let sql = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE \
            slot_name = $1";
        match source.client.execute(sql, &[&name]).await {
            Ok(_) => break,
            // Its mover has come back in between.
            Err(error)
                if error.code() == Some(&SqlState::OBJECT_IN_USE) && Instant::now() < until => {}
            Err(error) if error.code() == Some(&SqlState::UNDEFINED_OBJECT) => break,
            Err(error) => return Err(source.failed(what, error)),
        }
    }
    forget(source, "slot", name).await
}

/// Drops the publication and its row in the ledger. Nothing to do if it is gone.
///
/// Locks: ACCESS EXCLUSIVE on the publication, none on its tables.
pub(crate) async fn drop_publication(source: &Session, name: &str) -> Result<(), Error> {
    let sql = format!("DROP PUBLICATION IF EXISTS {}", quote_ident(name));
    source.batch("dropping the publication", &sql).await?;
    forget(source, "publication", name).await
}

/// Locks: a row that is ours.
async fn register(source: &Session, kind: &str, owner: Owner<'_>) -> Result<(), Error> {
    let sql = "INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ($1, $2, $3, $4) \
        ON CONFLICT DO NOTHING";
    let (id, shard) = (owner.id.uuid(), owner.shard.as_i32());
    source
        .execute("writing the ledger", sql, &[&kind, &owner.name, id, &shard])
        .await?;
    Ok(())
}

async fn forget(source: &Session, kind: &str, name: &str) -> Result<(), Error> {
    let sql = "DELETE FROM pgshard.ledger WHERE kind = $1 AND name = $2";
    source
        .execute("writing the ledger", sql, &[&kind, &name])
        .await?;
    Ok(())
}
