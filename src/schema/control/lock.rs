//! The locks that keep commands apart, on one host.
//!
//! Every role that may connect can take an advisory lock and keep it. So the lock that must exclude
//! another command is a table lock on `pgshard.cluster`, which only the table's owner can take. If
//! an advisory lock is in the way, it is ignored when the role that holds it has no rights here.
//!
//! No lock gives its transaction a number or a snapshot: CREATE INDEX CONCURRENTLY and a new slot
//! wait for those.

use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, SimpleQueryMessage};

/// The first key of the advisory locks of commands: the bytes `pgsh`, which no other program uses
/// by accident. The second is the purpose.
pub(in crate::schema) const SPACE: i32 = 0x7067_7368;

/// The first key of the locks of migrations that run without a transaction: `migr`. The second is
/// the shard. A session that holds it shared keeps the shard from being fenced, without a
/// transaction number that a slot would wait for.
pub(crate) const MIGRATION: i32 = 0x6d69_6772;

/// The first key of the session locks of movers: `movr`. The second is the first half of the lease.
pub(crate) const MOVERS: i32 = 0x6d6f_7672;

/// The first key of the lock of a shard's ID clock: `pgid`. The second is the shard.
const IDS: i32 = 0x7067_6964;

/// How often a lock that is not free is tried.
const BETWEEN_TRIES: Duration = Duration::from_millis(50);

/// The second keys of the advisory locks in [`SPACE`]: for installing the control schema; for a
/// bootstrap, or a migration, from when it reads the host; and for its work on the host.
pub(in crate::schema) const CONTROL: i32 = 1;
pub(in crate::schema) const BOOTSTRAP: i32 = 2;
pub(in crate::schema) const WORK: i32 = 3;

/// The lock of a bootstrap on a host that has a control schema. It conflicts with itself, and with
/// nothing that reads or writes rows.
const ID_FUNCTIONS: &str = "LOCK TABLE pgshard.cluster IN SHARE UPDATE EXCLUSIVE MODE NOWAIT";

/// Shows others that a bootstrap or a migration is at work here, until the end of the transaction.
/// It conflicts with none of these locks.
pub(in crate::schema) const AT_WORK: &str = "LOCK TABLE pgshard.cluster IN ROW SHARE MODE";

/// An SQL expression: whether the advisory lock with these keys is held by a session with a role
/// that may act for the owner of the control schema. While there is no control schema, the role
/// must be one that may act for the current role.
///
/// To be evaluated after the attempt to take the lock. A migration takes the lock first and then
/// checks whether it may continue; so either it is seen here, or it sees what was committed before
/// this expression was evaluated.
pub(crate) fn held(space: &str, key: &str) -> String {
    format!(
        "EXISTS ({} AND l.classid = {space} AND l.objid = {key})",
        ours()
    )
}

/// The advisory locks with two keys that other sessions of this database hold, if their role may
/// act for ours.
fn ours() -> String {
    "SELECT FROM pg_catalog.pg_locks l LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
     WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
         AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
         AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = \
         pg_catalog.current_database())
         AND coalesce(pg_catalog.pg_has_role(a.usesysid, coalesce(
             (SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = 'pgshard'),
             (SELECT oid FROM pg_catalog.pg_roles WHERE rolname = CURRENT_USER)), 'MEMBER'), true)"
        .to_owned()
}

fn of_ours(key: i32) -> String {
    held(
        &format!("{SPACE}::pg_catalog.oid"),
        &format!("{key}::pg_catalog.oid"),
    )
}

/// Takes the lock on the control schema, in a transaction.
///
/// Locks: SHARE ROW EXCLUSIVE on pgshard.control_migration, which only its owner writes; an
/// advisory lock where that is not there yet.
pub(in crate::schema) async fn control(
    client: &Client,
    until: Instant,
) -> Result<bool, tokio_postgres::Error> {
    if is_true(&client.simple_query(&may_write("control_migration")).await?) {
        let sql = "LOCK TABLE pgshard.control_migration IN SHARE ROW EXCLUSIVE MODE NOWAIT";
        return try_table(client, sql, until).await;
    }
    try_advisory(client, CONTROL, until).await
}

/// Takes the lock of a bootstrap, or of a migration, in a transaction. It also waits for the server
/// process of one that was killed and is still running its last statement. False: another session
/// has one of the locks; the transaction stays open then, too.
pub(in crate::schema) async fn try_bootstrap(
    client: &Client,
    until: Instant,
) -> Result<bool, tokio_postgres::Error> {
    if !try_advisory(client, BOOTSTRAP, until).await? {
        return Ok(false);
    }
    if !is_true(&client.simple_query(&may_write("cluster")).await?) {
        return Ok(true);
    }
    if !try_table(client, ID_FUNCTIONS, until).await? {
        return Ok(false);
    }
    let at_work = format!(
        "SELECT NOT {} AND NOT EXISTS (SELECT FROM pg_catalog.pg_locks l
             JOIN pg_catalog.pg_class c ON c.oid = l.relation
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'pgshard' AND c.relname = 'cluster' AND l.mode = 'RowShareLock'
                 AND l.pid <> pg_catalog.pg_backend_pid())",
        of_ours(WORK)
    );
    until_true(client, &at_work, until).await
}

/// Whether the role may lock a table of the control schema. False if the table does not exist.
fn may_write(table: &str) -> String {
    format!(
        "SELECT coalesce((SELECT pg_catalog.has_table_privilege(c.oid, 'UPDATE') FROM \
            pg_catalog.pg_class c
             JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
             WHERE n.nspname = 'pgshard' AND c.relname = '{table}'), false)"
    )
}

async fn try_advisory(
    client: &Client,
    key: i32,
    until: Instant,
) -> Result<bool, tokio_postgres::Error> {
    let sql = format!(
        "SELECT pg_catalog.pg_try_advisory_xact_lock({SPACE}, {key}) OR NOT {held}",
        held = of_ours(key)
    );
    until_true(client, &sql, until).await
}

/// Tries again and again in place of waiting in the lock's queue: a statement that waits there may
/// have a snapshot, and the CREATE INDEX CONCURRENTLY of the session that has the lock would wait
/// for us.
async fn try_table(
    client: &Client,
    sql: &str,
    until: Instant,
) -> Result<bool, tokio_postgres::Error> {
    loop {
        client.batch_execute("SAVEPOINT lock").await?;
        match client.batch_execute(sql).await {
            Ok(()) => {
                return client
                    .batch_execute("RELEASE SAVEPOINT lock")
                    .await
                    .map(|()| true);
            }
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {
                client
                    .batch_execute("ROLLBACK TO SAVEPOINT lock; RELEASE SAVEPOINT lock")
                    .await?;
            }
            Err(error) => return Err(error),
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
}

/// Uses a simple query, because an extended one leaves a portal in the transaction, and a portal
/// has a snapshot.
async fn until_true(
    client: &Client,
    sql: &str,
    until: Instant,
) -> Result<bool, tokio_postgres::Error> {
    loop {
        if is_true(&client.simple_query(sql).await?) {
            return Ok(true);
        }
        if Instant::now() >= until {
            return Ok(false);
        }
        tokio::time::sleep(BETWEEN_TRIES).await;
    }
}

/// Whether a simple query that returns one boolean has returned true.
pub(in crate::schema) fn is_true(messages: &[SimpleQueryMessage]) -> bool {
    messages.iter().any(|message| {
        matches!(
            message,
            SimpleQueryMessage::Row(row) if row.try_get(0).ok().flatten() == Some("t")
        )
    })
}

/// The server processes that hold the host's lock, or that still work for a command that has lost
/// it. Locks: none.
pub(in crate::schema) async fn holders(
    client: &Client,
) -> Result<Vec<String>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT DISTINCT pg_catalog.format('process %s (%s, since %s)', a.pid,
             COALESCE(NULLIF(a.application_name, ''), a.usename::pg_catalog.text, '?'),
             pg_catalog.to_char(COALESCE(a.xact_start, a.backend_start), 'YYYY-MM-DD HH24:MI:SS \
             TZ'))
         FROM (SELECT l.pid FROM pg_catalog.pg_locks l WHERE EXISTS ({ours}
                   AND l.classid = {SPACE}::pg_catalog.oid
                   AND l.objid IN ({BOOTSTRAP}::pg_catalog.oid, {WORK}::pg_catalog.oid))
               UNION SELECT l.pid FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_class c ON c.oid = \
               l.relation
               JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'pgshard' AND c.relname = 'cluster' AND l.granted
                   AND l.mode IN ('RowShareLock', 'ShareUpdateExclusiveLock')) AS held
         JOIN pg_catalog.pg_stat_activity a USING (pid)
         WHERE a.pid <> pg_catalog.pg_backend_pid()
         ORDER BY 1",
        ours = ours()
    );
    client
        .query(&sql, &[])
        .await?
        .iter()
        .map(|row| row.try_get(0))
        .collect()
}

/// One of our advisory locks, held by a role that has no rights here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) struct Foreign {
    /// The server process that holds it.
    pub(in crate::schema) pid: i32,
    /// The role of its session.
    pub(in crate::schema) role: String,
    /// What the lock is for, and the harm of its being held.
    pub(in crate::schema) what: &'static str,
}

/// The locks held by roles that may neither act for the owner of the control schema nor use the
/// shard. Locks: none.
pub(in crate::schema) async fn foreign(
    client: &Client,
) -> Result<Vec<Foreign>, tokio_postgres::Error> {
    let sql = format!(
        "SELECT DISTINCT a.pid, coalesce(a.usename::pg_catalog.text, '?'), \
            l.classid::pg_catalog.int8
         FROM pg_catalog.pg_locks l JOIN pg_catalog.pg_stat_activity a ON a.pid = l.pid
         LEFT JOIN pgshard.shard s ON s.shard_id = l.objid::pg_catalog.int8
         LEFT JOIN pg_catalog.pg_namespace n ON n.nspname = s.schema_name
         WHERE l.locktype = 'advisory' AND l.objsubid = 2 AND l.granted
             AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = \
             pg_catalog.current_database())
             AND NOT pg_catalog.pg_has_role(a.usesysid,
                 (SELECT nspowner FROM pg_catalog.pg_namespace WHERE nspname = 'pgshard'), 'MEMBER')
             AND CASE WHEN l.classid = {IDS}::pg_catalog.oid
                 THEN n.oid IS NOT NULL AND NOT pg_catalog.has_schema_privilege(a.usesysid, n.oid, \
                 'USAGE')
                 ELSE l.classid IN ({SPACE}::pg_catalog.oid, {MIGRATION}::pg_catalog.oid) END
         ORDER BY 1, 3 LIMIT 100"
    );
    let rows = client.query(&sql, &[]).await?;
    let found = rows.iter().map(|row| {
        let class: i64 = row.try_get(2)?;
        let what = match class {
            _ if class == i64::from(IDS) => {
                "a shard's ID clock, where INSERTs that use next_id() fail"
            }
            _ if class == i64::from(MIGRATION) => "a shard's migrations, which may wait for it",
            _ => "commands like these, which do without it",
        };
        Ok(Foreign {
            pid: row.try_get(0)?,
            role: row.try_get(1)?,
            what,
        })
    });
    found.collect()
}
