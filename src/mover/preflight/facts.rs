//! What preflight reads. It writes nothing and decides nothing:
//! [`plan`](crate::mover::preflight::plan) judges.

use std::time::Duration;

use crate::pg::decoding::CAN_DECODE;
use crate::pg::shown;
use crate::pg::state::ends_the_connection;
use crate::schema::catalog::{self, Facts};
use futures_util::future::BoxFuture;
use jiff::Timestamp;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use uuid::Uuid;

use crate::map::{HostName, ShardEpoch};
use crate::schema::catalog::Namespace;
use crate::shard::{SchemaPrefix, ShardId};

use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::definition::border;
use crate::mover::definition::ddl;
use crate::mover::definition::ddl::{Creation, Target};
use crate::mover::definition::refusal::Refusal;
use crate::mover::definition::sequences;
use crate::mover::preflight::bodies;
use crate::mover::preflight::functions::{self, FunctionUse, Missing};
use crate::mover::preflight::identity::{self, Judgement};
use crate::mover::preflight::intervals;
use crate::mover::preflight::large_objects;
use crate::mover::preflight::oid_columns;
use crate::mover::preflight::table;
use crate::mover::preflight::target;
use crate::mover::preflight::target::missing_at_target;
use crate::mover::preflight::texts;
use crate::mover::preflight::unbound;
use crate::mover::protocol::desired::IdentityPolicy;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};

/// What a move needs to know about a host, for any shard.
#[derive(Clone, Debug)]
pub(crate) struct HostFacts {
    pub(crate) name: HostName,
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) encoding: String,
    pub(crate) collation: String,
    /// The version of the library that sorts by the collation, if there is one.
    pub(crate) collation_version: Option<String>,
    /// What must be the same in a whole cluster, as text.
    pub(crate) cluster: String,
    pub(crate) may_create: bool,
    pub(crate) in_recovery: bool,
    /// `server_version_num`.
    pub(crate) version: i32,
    /// The owner of the control schema, and whether that role may act for the connecting role: it
    /// renames what the connecting role has built.
    pub(crate) keeper: String,
    pub(crate) keeper_may: bool,
    /// How far the host's clock is ahead of this machine's, in seconds.
    pub(crate) ahead_s: f64,
    /// Event triggers that are enabled: every DDL statement of a move fires them.
    pub(crate) event_triggers: Vec<String>,
    /// The number of locks that all transactions of the server can hold together.
    pub(crate) locks_max: i64,
    /// Whether commits wait for standbys, and there is none.
    pub(crate) commits_hang: bool,
    /// The functions that moves call and that the host does not provide.
    pub(crate) missing: Vec<Missing>,
    /// The tightest limit on connections; `None` where the host does not show its sessions.
    pub(crate) connections: Option<ConnectionLimit>,
    pub(crate) stream: StreamFacts,
}

/// What a host offers to readers of its changes.
#[derive(Clone, Debug)]
pub(crate) struct StreamFacts {
    /// `minimal`, `replica` or `logical`.
    pub(crate) wal_level: String,
    /// Whether the server can decode its WAL at that level.
    pub(crate) can_decode: bool,
    pub(crate) replication: ReplicationRight,
    /// How many slots can still be created.
    pub(crate) free_slots: i64,
    /// How many walsenders can still be started.
    pub(crate) free_senders: i64,
    /// Prepared transactions, in any database, that are so old that they seem to be forgotten: the
    /// creation of a slot would wait for them in vain.
    pub(crate) prepared: Vec<String>,
    /// Old transactions that have written, in any database: the creation of a slot waits for them
    /// too.
    pub(crate) old: Vec<String>,
    /// For how long a slot may have no reader before the server drops its WAL, if there is a limit
    /// (from 18 on).
    pub(crate) idle_max: Option<String>,
}

/// A limit on a host's connections, and how many more it allows to the role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionLimit {
    /// What sets it, with its value.
    pub(crate) what: String,
    pub(crate) free: i64,
}

/// Whether the role may create replication slots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ReplicationRight {
    /// By an attribute of the role.
    Granted,
    /// No attribute grants it. On some services a membership does.
    Unknown,
    /// The server refused a temporary slot, for this reason.
    Refused(String),
}

/// A row of `pgshard.shard`.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) state: String,
    pub(crate) epoch: ShardEpoch,
    pub(crate) peer: Option<String>,
}

/// A lock on the shard that the fence's barrier would wait for.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    /// `None` for a prepared transaction.
    pub(crate) pid: Option<i32>,
    pub(crate) mode: String,
    pub(crate) relation: String,
    pub(crate) seconds: f64,
    pub(crate) query: Option<String>,
    /// The prepared transactions that hold locks on the shard, if this is one of theirs.
    pub(crate) prepared: Option<String>,
}

impl Lock {
    /// Who holds it.
    pub(crate) fn holder(&self) -> String {
        match (self.pid, &self.prepared) {
            (Some(pid), _) => format!("backend {pid}"),
            (None, Some(prepared)) => format!("the prepared transaction {prepared}"),
            (None, None) => "a prepared transaction".to_owned(),
        }
    }
}

impl std::fmt::Display for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.holder())?;
        write!(f, " holds {} on {}", self.mode, self.relation)?;
        if self.seconds > 0.0 {
            write!(f, ", its transaction is {:.1} s old", self.seconds)?;
        }
        self.query
            .as_ref()
            .map_or(Ok(()), |query| write!(f, ": {}", query.replace('\n', " ")))
    }
}

/// A move of a shard that has not ended.
#[derive(Clone, Debug)]
pub(crate) struct ActiveMove {
    pub(crate) id: String,
    pub(crate) phase: String,
    /// Who works on it.
    pub(crate) worker: Option<String>,
}

/// What a move needs to know about one shard, on both hosts.
#[derive(Clone, Debug)]
pub(crate) struct ShardFacts {
    pub(crate) shard: ShardId,
    pub(crate) schema: String,
    pub(crate) source_row: Option<Row>,
    pub(crate) target_row: Option<Row>,
    /// A move of the shard in the source's journal that has not ended.
    pub(crate) active_move: Option<ActiveMove>,
    /// A move that is bringing the shard to the target.
    pub(crate) incoming: Option<String>,
    /// Schemas at the target that have names that the move needs.
    pub(crate) in_the_way: Vec<String>,
    /// Reasons against the move in the source's catalogs.
    pub(crate) at_source: Vec<Refusal>,
    /// Reasons against copying its tables while they are written to, and the replica identities
    /// that they are lent.
    pub(crate) online: Judgement,
    /// What the target lacks.
    pub(crate) at_target: Vec<Refusal>,
    pub(crate) creation: Option<Creation>,
    pub(crate) tables: usize,
    pub(crate) bytes: i64,
    /// How many materialized views have rows.
    pub(crate) materialized_views: usize,
    pub(crate) materialized_bytes: i64,
    pub(crate) unlogged_tables: usize,
    pub(crate) unlogged_bytes: i64,
    pub(crate) locks: Vec<Lock>,
    /// Warnings about sequences that are near their end.
    pub(crate) sequences: Vec<String>,
    /// Warnings about names of the shard in tables of extensions.
    pub(crate) texts: Vec<String>,
}

impl Default for ShardFacts {
    fn default() -> ShardFacts {
        ShardFacts {
            shard: ShardId::new(0).expect("shard 0 exists in every cluster"),
            schema: String::new(),
            source_row: None,
            target_row: None,
            active_move: None,
            incoming: None,
            in_the_way: Vec::new(),
            at_source: Vec::new(),
            online: Judgement::default(),
            at_target: Vec::new(),
            creation: None,
            tables: 0,
            bytes: 0,
            materialized_views: 0,
            materialized_bytes: 0,
            unlogged_tables: 0,
            unlogged_bytes: 0,
            locks: Vec::new(),
            sequences: Vec::new(),
            texts: Vec::new(),
        }
    }
}

/// The age of a prepared transaction that is not about to end, in seconds: as long as the creation
/// of a slot waits.
const OLD_S: u32 = 60;

/// The state of a host, in the order in which [`of_host`] reads it.
fn question() -> String {
    format!(
        "SELECT current_database()::text, current_user::text, pg_encoding_to_char(d.encoding)::text,
            d.datcollate::text || '/' || d.datctype::text || coalesce(' ICU ' || l.icu, ''),
            has_database_privilege(current_database(), 'CREATE'), pg_is_in_recovery(),
            (SELECT format('%s shards, epoch %s ms, prefix %s, %s keys', shards, epoch_ms, \
            schema_prefix, key_kind)
                FROM pgshard.cluster),
            current_setting('wal_level'), {CAN_DECODE},
            (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user),
            current_setting('max_replication_slots')::bigint - (SELECT count(*) FROM \
            pg_replication_slots),
            ARRAY(SELECT format('%L in database %s, prepared %s s ago', gid, database,
                      round(extract(epoch FROM clock_timestamp() - prepared))::text)
                  FROM pg_prepared_xacts WHERE prepared < clock_timestamp() - interval '{OLD_S} s'
                  ORDER BY prepared LIMIT 3),
            current_setting('server_version_num')::integer, o.rolname::text, pg_has_role(o.oid, \
            current_user, 'USAGE'),
            extract(epoch FROM clock_timestamp())::double precision,
            ARRAY(SELECT evtname::text FROM pg_event_trigger WHERE evtenabled IN ('O', 'A') ORDER \
            BY 1),
            current_setting('max_locks_per_transaction')::bigint
                * (current_setting('max_connections')::bigint + \
                current_setting('max_prepared_transactions')::bigint),
            ARRAY(SELECT words FROM (
                  SELECT format('backend %s in database %s has a transaction that has written and \
                      is %s s old: %s', pid, datname,
                      round(extract(epoch FROM clock_timestamp() - xact_start))::text, \
                      coalesce({query}, '?')) AS words, xact_start AS began
                  FROM pg_stat_activity
                  WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
                  UNION ALL
                  SELECT format('the prepared transaction %L in database %s is %s s old', gid,
                      database, round(extract(epoch FROM clock_timestamp() - prepared))::text),
                      prepared
                  FROM pg_prepared_xacts) AS o
                  WHERE began < clock_timestamp() - interval '2 s' ORDER BY began LIMIT 3),
            (SELECT max(pg_collation_actual_version(c.oid)) FROM pg_collation c,
                LATERAL (SELECT to_jsonb(c) AS its) AS j
                WHERE c.collnamespace = 'pg_catalog'::regnamespace
                  AND c.collprovider::text = CASE WHEN l.icu IS NULL THEN 'c' ELSE 'i' END
                  AND coalesce(its ->> 'colliculocale', its ->> 'colllocale', its ->> \
                  'collcollate') = coalesce(l.icu,
                      d.datcollate::text)),
            nullif(current_setting('idle_replication_slot_timeout', true), '0')
        FROM pg_database d
        -- The columns are read by name, because not every version has them: 15 added the \
        provider, 17 renamed the
        -- locale.
        CROSS JOIN LATERAL (SELECT CASE WHEN to_jsonb(d) ->> 'datlocprovider' = 'i'
            THEN coalesce(to_jsonb(d) ->> 'daticulocale', to_jsonb(d) ->> 'datlocale') END AS icu) \
            AS l
        JOIN pg_roles o ON o.oid = (SELECT nspowner FROM pg_namespace WHERE nspname = 'pgshard')
        WHERE d.datname = current_database()",
        query = shown("query"),
    )
}

/// A host's walsenders, which some services hide: how many can still be started, and
/// whether commits wait for standbys, and there is none.
const SENDERS: &str = "SELECT current_setting('max_wal_senders')::bigint - count(*),
        current_setting('synchronous_standby_names') <> '' AND \
        current_setting('synchronous_commit') <> 'local'
            AND count(*) FILTER (WHERE coalesce(sync_state, 'hidden')
                IN ('sync', 'quorum', 'hidden')) = 0
        FROM pg_stat_replication";

/// The tightest limit on connections. The session itself is not counted: it is the mover's.
const CONNECTIONS: &str = "WITH sessions AS (
        -- What is hidden from the role has no kind.
        SELECT datid, usesysid FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND datid IS NOT NULL
            AND coalesce(backend_type, 'client backend') = 'client backend'),
    me AS (SELECT oid, rolsuper, rolconnlimit FROM pg_roles WHERE rolname = current_user)
    SELECT what, free FROM (
        SELECT format('max_connections is %s', current_setting('max_connections')) AS what,
            current_setting('max_connections')::bigint - (SELECT count(*) FROM sessions)
            - CASE WHEN rolsuper THEN 0
                ELSE current_setting('superuser_reserved_connections')::bigint
                + coalesce(current_setting('reserved_connections', true), '0')::bigint END AS free
            FROM me
        UNION ALL SELECT format('the database allows %s', datconnlimit),
            datconnlimit - (SELECT count(*) FROM sessions WHERE datid = d.oid)
            FROM pg_database d, me
            WHERE datname = current_database() AND datconnlimit >= 0 AND NOT rolsuper
        UNION ALL SELECT format('the role allows %s', rolconnlimit),
            rolconnlimit - (SELECT count(*) FROM sessions WHERE usesysid = me.oid)
            FROM me WHERE rolconnlimit >= 0 AND NOT rolsuper) AS limits
    ORDER BY free LIMIT 1";

/// How long a server may take to notice that a connection was closed.
const CLOSED_WITHIN: Duration = Duration::from_millis(300);

/// Reads a host's facts. A host without a control schema gives a refusal.
pub(crate) fn of_host(
    session: &Session,
) -> BoxFuture<'_, Result<Result<HostFacts, Refusal>, Error>> {
    Box::pin(async move {
        let what = "reading the host's facts";
        let name = session.host.clone();
        let present = session
            .row(
                what,
                "SELECT to_regclass('pgshard.cluster') IS NOT NULL",
                &[],
            )
            .await?;
        let not_bootstrapped = || {
            let remedy = format!("pgshard bootstrap --host {name}");
            Refusal::new("the database", "is not bootstrapped", remedy).at(None, &name)
        };
        if !present.get::<_, bool>(0)? {
            return Ok(Err(not_bootstrapped()));
        }
        let asked = Timestamp::now();
        let row = session.row(what, &question(), &[]).await?;
        // The host's clock was read about halfway between the question and the answer.
        let here = (asked.as_millisecond() + Timestamp::now().as_millisecond()) as f64 / 2e3;
        let Some(cluster) = row.get::<_, Option<String>>(6)? else {
            return Ok(Err(not_bootstrapped()));
        };
        let (free_senders, commits_hang) = match session.row_if_provided(what, SENDERS).await? {
            Some(senders) => (senders.get(0)?, senders.get(1)?),
            None => (1, false),
        };
        Ok(Ok(HostFacts {
            name,
            database: row.get(0)?,
            role: row.get(1)?,
            encoding: row.get(2)?,
            collation: row.get(3)?,
            collation_version: row.get(19)?,
            may_create: row.get(4)?,
            in_recovery: row.get(5)?,
            version: row.get(12)?,
            keeper: row.get(13)?,
            keeper_may: row.get(14)?,
            ahead_s: row.get::<_, f64>(15)? - here,
            event_triggers: row.get(16)?,
            locks_max: row.get(17)?,
            commits_hang,
            missing: functions::missing(session).await?,
            connections: connections(session).await?,
            cluster,
            stream: StreamFacts {
                wal_level: row.get(7)?,
                can_decode: row.get(8)?,
                replication: match row.get(9)? {
                    true => ReplicationRight::Granted,
                    false => ReplicationRight::Unknown,
                },
                free_slots: row.get(10)?,
                free_senders,
                prepared: row.get(11)?,
                old: row.get(18)?,
                idle_max: row.get(20)?,
            },
        }))
    })
}

/// The tightest limit on a host's connections.
///
/// Locks: none.
async fn connections(session: &Session) -> Result<Option<ConnectionLimit>, Error> {
    let what = "counting connections";
    let Some(row) = session.row_if_provided(what, CONNECTIONS).await? else {
        return Ok(None);
    };
    Ok(Some(ConnectionLimit {
        what: row.get(0)?,
        free: row.get(1)?,
    }))
}

impl HostFacts {
    /// Counts the connections again if it has fewer than these: some of those that have just been
    /// closed, this mover's among them, may have been counted.
    pub(crate) async fn recount(&mut self, session: &Session, needed: i64) -> Result<(), Error> {
        let is_short = |limit: &ConnectionLimit| limit.free < needed;
        if self.connections.as_ref().is_some_and(is_short) {
            tokio::time::sleep(CLOSED_WITHIN).await;
            self.connections = connections(session).await?;
        }
        Ok(())
    }

    /// Finds out whether the role may create replication slots where no attribute of it shows: the
    /// server creates a temporary one, which is dropped again. An error for any other reason
    /// than the right leaves it unknown.
    ///
    /// Locks: none. The slot waits for transactions that have written, at most for as long as any
    /// statement of the session waits for a lock.
    pub(crate) async fn try_replication(&mut self, session: &Session) -> Result<(), Error> {
        if self.stream.replication != ReplicationRight::Unknown
            || !self.stream.can_decode
            || self.in_recovery
        {
            return Ok(());
        }
        // Not a name that begins like ours: `check` would report it as left behind.
        let slot = format!("temporary_pgshard_{}", Uuid::now_v7().simple());
        let create = "SELECT pg_create_logical_replication_slot($1, 'pgoutput', true)";
        match session.client.execute(create, &[&slot]).await {
            Ok(_) => {
                let what = "dropping the temporary slot";
                let drop = "SELECT pg_drop_replication_slot($1)";
                session.row(what, drop, &[&slot]).await?;
                self.stream.replication = ReplicationRight::Granted;
            }
            Err(error) => match error.as_db_error() {
                Some(refused) if refused.code() == &SqlState::INSUFFICIENT_PRIVILEGE => {
                    self.stream.replication =
                        ReplicationRight::Refused(refused.message().to_owned());
                }
                Some(refused) if !ends_the_connection(refused) => {}
                _ => return Err(session.failed("creating a temporary slot", error)),
            },
        }
        Ok(())
    }
}

/// The host's row of a shard.
pub(crate) async fn row_of(session: &Session, shard: ShardId) -> Result<Option<Row>, Error> {
    let sql = "SELECT state, epoch, peer FROM pgshard.shard WHERE shard_id = $1";
    let rows = session
        .rows("reading the shard's row", sql, &[&shard.as_i32()])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let epoch = ShardEpoch::from_i32(row.get(1)?).unwrap_or(ShardEpoch::FIRST);
    Ok(Some(Row {
        state: row.get(0)?,
        epoch,
        peer: row.get(2)?,
    }))
}

/// Which of these shards the host has given away, with their epochs and new owners.
///
/// Locks: ACCESS SHARE on a table of ours, for one statement.
pub(crate) async fn given_away(
    session: &Session,
    shards: &[ShardId],
) -> Result<Vec<(ShardId, ShardEpoch, String)>, Error> {
    let numbers: Vec<i32> = shards.iter().map(|shard| shard.as_i32()).collect();
    let sql = "SELECT shard_id, epoch, peer FROM pgshard.shard WHERE shard_id = ANY ($1) AND state \
        = 'moved' \
               AND peer IS NOT NULL";
    let rows = session
        .rows("reading where shards have gone", sql, &[&numbers])
        .await?;
    let mut given = Vec::new();
    for row in &rows {
        // A number that no shard or epoch can have proves nothing, so it is skipped.
        let (shard, epoch) = (
            ShardId::try_from(row.get::<_, i32>(0)?),
            ShardEpoch::from_i32(row.get(1)?),
        );
        let (Ok(shard), Some(epoch)) = (shard, epoch) else {
            continue;
        };
        given.push((shard, epoch, row.get(2)?));
    }
    Ok(given)
}

/// Whether any session might make the barrier wait, for a schema given by its OID. If not, none
/// does. It is a query for the time behind the fence: [`locks`] has to be planned again after a
/// swap, with four views, which takes longer than to run it. Like that one, it skips readers;
/// unlike it, it also counts VACUUM and ANALYZE, and relations of other databases that have the
/// same OIDs.
///
/// Locks: as [`locks`].
pub(crate) async fn may_be_locked(session: &Session, schema: u32) -> Result<bool, Error> {
    let sql = format!("SELECT {}", may_be_locked_sql("$1"));
    let rows = session
        .typed_rows("looking for locks", &sql, &[(&schema, Type::OID)])
        .await?;
    rows.first().map_or(Ok(true), |row| row.get(0))
}

/// The same as a condition in SQL, of an expression for the schema's OID.
pub(crate) fn may_be_locked_sql(schema: &str) -> String {
    // As in the barrier, each lock's relation is looked up by its OID. What depends on the schema
    // would not be all of its relations: of a composite type only the type does.
    format!(
        "EXISTS (
            SELECT FROM pg_catalog.pg_lock_status() l
            WHERE l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid() AND (
                l.locktype = 'relation' AND l.mode NOT IN ('AccessShareLock', 'SIReadLock') AND (
                    SELECT c.relnamespace FROM pg_catalog.pg_class c
                    WHERE c.oid = l.relation AND c.relkind NOT IN ('i', 'I')) = {schema}
                OR l.locktype = 'object' AND l.classid = \
                'pg_catalog.pg_namespace'::pg_catalog.regclass
                    AND l.objid = {schema}))"
    )
}

/// Who would make the barrier wait, for a schema given by its OID.
///
/// Locks: none but ACCESS SHARE on catalogs; pg_locks holds the lock manager's partitions for
/// microseconds.
pub(crate) async fn locks(session: &Session, schema: u32) -> Result<Vec<Lock>, Error> {
    let sql = format!(
        "SELECT pid, string_agg(DISTINCT mode, ', ' ORDER BY mode), string_agg(DISTINCT relation, \
            ', '
            ORDER BY relation),
            coalesce(max(seconds), 0), max({query}),
            CASE WHEN pid IS NULL THEN (
                SELECT string_agg(DISTINCT format('%L in database %s', p.gid, p.database), ', ')
                FROM pg_locks l JOIN pg_class c ON c.oid = l.relation
                -- A prepared transaction has no process; what is its own is its number.
                JOIN pg_locks x ON x.virtualtransaction = l.virtualtransaction AND x.pid IS NULL
                JOIN pg_prepared_xacts p ON p.transaction = x.transactionid
                WHERE l.pid IS NULL AND c.relnamespace = $1 AND p.database = current_database())
            END
        FROM pgshard.barrier($1) GROUP BY pid ORDER BY pid",
        query = shown("query"),
    );
    let rows = session
        .typed_rows("looking for locks", &sql, &[(&schema, Type::OID)])
        .await?;
    let lock = |row: &AnsweredRow| {
        Ok(Lock {
            pid: row.get(0)?,
            mode: row.get(1)?,
            relation: row.get(2)?,
            seconds: row.get(3)?,
            query: row.get(4)?,
            prepared: row.get(5)?,
        })
    };
    rows.iter().map(lock).collect()
}

/// Adds to an error which sessions hold the locks that a statement did not get on a shard's tables,
/// if that can still be found out.
///
/// Locks: as [`locks`].
pub(crate) async fn locked(
    source: &Session,
    shard: ShardId,
    prefix: &SchemaPrefix,
    error: Error,
) -> Error {
    let blockers = async {
        let schema = schema_oid(source, &prefix.schema(shard)).await.ok()??;
        let locks = locks(source, schema).await.ok()?;
        // A reader waits for no other session, or for one that waits for one of these.
        let exclusive: Vec<&Lock> = locks
            .iter()
            .filter(|lock| lock.mode.contains("AccessExclusiveLock"))
            .collect();
        let locks = if exclusive.is_empty() {
            locks.iter().collect()
        } else {
            exclusive
        };
        (!locks.is_empty()).then(|| {
            locks
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join("; ")
        })
    };
    match blockers.await {
        Some(blockers) => Error::Locked {
            shard,
            host: source.host.clone(),
            blockers,
        },
        None => error,
    }
}

/// `server_version_num`: 150004, 180000.
pub(crate) async fn version(session: &Session) -> Result<u32, Error> {
    let row = session
        .row(
            "reading the version",
            "SELECT current_setting('server_version_num')::integer",
            &[],
        )
        .await?;
    Ok(u32::try_from(row.get::<_, i32>(0)?).unwrap_or(0))
}

/// Which servers the two hosts of a move are, and since when: after a restart or a fail-over the
/// value differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Servers {
    source: String,
    target: String,
}

/// Reads the identities of both hosts' servers.
///
/// Locks: none.
pub(crate) async fn servers(source: &Session, target: &Session) -> Result<Servers, Error> {
    let (source, target) = tokio::try_join!(server(source), server(target))?;
    Ok(Servers { source, target })
}

/// When a server was started; and, where it provides them, the identifier of its system, which its
/// standbys share, and its timeline, which a promotion changes.
async fn server(session: &Session) -> Result<String, Error> {
    let what = "asking the host which server it is";
    let started = "SELECT pg_postmaster_start_time()::text";
    let identity =
        "SELECT concat_ws(' ', system_identifier, left(pg_walfile_name(pg_current_wal_lsn()), 8))
        FROM pg_control_system()";
    let started: String = session.row(what, started, &[]).await?.get(0)?;
    let identity = session.row_if_provided(what, identity).await?;
    let identity: String = identity.map_or(Ok(String::new()), |row| row.get(0))?;
    Ok(format!("{started} {identity}"))
}

/// The OID of a schema.
pub(crate) async fn schema_oid(session: &Session, schema: &str) -> Result<Option<u32>, Error> {
    let sql = "SELECT oid FROM pg_namespace WHERE nspname = $1";
    session
        .rows("looking a schema up", sql, &[&schema])
        .await?
        .first()
        .map(|row| row.get(0))
        .transpose()
}

/// Reads the facts of one shard.
pub(crate) async fn of_shard(
    source: &Session,
    target: &Session,
    shard: ShardId,
    prefix: &SchemaPrefix,
    policy: IdentityPolicy,
) -> Result<ShardFacts, Error> {
    let names = Names {
        schema: prefix.schema(shard),
    };
    let what = "reading the shard's facts";
    let schema = names.schema.as_str();
    let mut facts = ShardFacts {
        shard,
        schema: schema.to_owned(),
        ..ShardFacts::default()
    };
    facts.source_row = row_of(source, shard).await?;
    facts.target_row = row_of(target, shard).await?;
    facts.active_move = source.open_entry(shard).await?.map(|entry| ActiveMove {
        id: entry.id.to_string(),
        phase: entry.phase.to_string(),
        worker: entry.worker.map(|worker| worker.to_string()),
    });
    let sql = "SELECT move_id FROM pgshard.incoming WHERE shard_id = $1";
    let incoming = target.rows(what, sql, &[&shard.as_i32()]).await?;
    let incoming = incoming
        .first()
        .map(|row| row.get::<_, Uuid>(0))
        .transpose()?;
    facts.incoming = incoming.map(|id| MoveId::from(id).to_string());
    if facts.incoming.is_none() {
        // A signpost in the shard's place is renamed away at open. A schema of that name without
        // our row is not ours.
        let mut wanted = vec![names.incoming()];
        if facts.target_row.is_none() {
            wanted.push(schema.to_owned());
        }
        let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname = ANY($1) ORDER BY 1";
        let found = target.rows(what, sql, &[&wanted]).await?;
        facts.in_the_way = found
            .iter()
            .map(|row| row.get(0))
            .collect::<Result<_, _>>()?;
    }
    let Some(oid) = schema_oid(source, schema).await? else {
        if facts
            .source_row
            .as_ref()
            .is_some_and(|row| row.state == "serving")
        {
            let remedy = "it was dropped or renamed: `pgshard check` reports what can be done";
            facts.at_source.push(Refusal::new(
                format!("schema {schema}"),
                "does not exist",
                remedy,
            ));
        }
        return Ok(facts);
    };
    if facts
        .source_row
        .as_ref()
        .is_none_or(|row| row.state != "serving")
    {
        return Ok(facts);
    }
    let sql = "SELECT coalesce(sum(pg_total_relation_size(oid)) FILTER (WHERE relkind = 'r'), \
        0)::bigint,
            count(*) FILTER (WHERE relkind = 'r'),
            coalesce(sum(pg_total_relation_size(oid)) FILTER (WHERE relkind = 'm'), 0)::bigint,
            count(*) FILTER (WHERE relkind = 'm'),
            coalesce(sum(pg_total_relation_size(oid)) FILTER (WHERE relkind = 'r' AND \
            relpersistence = 'u'), 0)::bigint,
            count(*) FILTER (WHERE relkind = 'r' AND relpersistence = 'u')
        FROM pg_class WHERE relnamespace = $1 AND relkind IN ('r', 'm') AND relispopulated";
    let size = source.row(what, sql, &[&oid]).await?;
    (facts.bytes, facts.tables) = (size.get(0)?, size.get::<_, i64>(1)? as usize);
    (facts.materialized_bytes, facts.materialized_views) =
        (size.get(2)?, size.get::<_, i64>(3)? as usize);
    (facts.unlogged_bytes, facts.unlogged_tables) = (size.get(4)?, size.get::<_, i64>(5)? as usize);
    facts.locks = locks(source, oid).await?;
    facts.texts = texts::named(source, schema).await?;
    facts.online = online(source, oid, policy).await?;
    let schema_facts = of_schema(source, &Namespace::Oid(oid)).await?;
    let wanted = Target {
        schema: &names.incoming(),
        final_schema: schema,
        version: version(target).await?,
        closed: &target::closed_schemas(target, &schema_facts).await?,
    };
    match ddl::create(&schema_facts, &wanted) {
        Ok(creation) => {
            facts.creation = Some(creation);
            // Only now: the sequences of another role cannot be read, and such a shard is refused.
            let sequences = sequences::read(source.client.client(), &Namespace::Oid(oid)).await;
            facts.sequences =
                sequences::warnings(&sequences.map_err(|error| source.failed(what, error))?);
        }
        Err(found) => facts.at_source.extend(found),
    }
    facts
        .at_source
        .extend(crossings(source, oid, prefix).await?);
    facts.at_source.extend(bodies::bound(source, oid).await?);
    facts
        .at_source
        .extend(unbound::computed(source, oid, prefix).await?);
    facts
        .at_source
        .extend(intervals::lost(source, &schema_facts, wanted.version).await?);
    let parts = oid_columns::with_oids(source, oid).await?;
    facts.at_source.extend(oid_columns::of_this_host(&parts));
    facts
        .at_source
        .extend(large_objects::named(source, &schema_facts, &parts).await?);
    let missing = missing_at_target(target.client.client(), &schema_facts).await;
    facts.at_target =
        missing.map_err(|error| target.failed("looking for what the shard needs", error))?;
    facts
        .at_target
        .extend(target::rights_missing(source, target, &schema_facts).await?);
    facts
        .at_target
        .extend(target::strangers_objects(source, target, &schema_facts).await?);
    facts
        .at_target
        .extend(target::other_meanings(source, target, &schema_facts).await?);
    Ok(facts)
}

/// The reasons against copying a schema's tables while they are written to, and the replica
/// identities that they are lent.
///
/// Locks: ACCESS SHARE on catalogs, for two statements.
async fn online(source: &Session, schema: u32, policy: IdentityPolicy) -> Result<Judgement, Error> {
    let shapes = table::shapes(source, schema).await?;
    Ok(identity::judge(
        &shapes,
        &identity::keys(source, &shapes).await?,
        policy,
    ))
}

/// The dependencies that cross a schema's border.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
async fn crossings(
    source: &Session,
    schema: u32,
    prefix: &SchemaPrefix,
) -> Result<Vec<Refusal>, Error> {
    let crossings =
        border::crossings(source.client.client(), &Namespace::Oid(schema), prefix).await;
    let crossings = crossings.map_err(|error| Error::Border {
        host: source.host.clone(),
        source: error,
    })?;
    Ok(crossings.iter().map(Refusal::of_crossing).collect())
}

/// The reasons in a shard's definition against any move, even to a host of the same version that
/// has everything it needs.
pub(crate) async fn of_definition(
    source: &Session,
    shard: ShardId,
    prefix: &SchemaPrefix,
    policy: IdentityPolicy,
) -> Result<Vec<Refusal>, Error> {
    let names = Names {
        schema: prefix.schema(shard),
    };
    let Some(oid) = schema_oid(source, &names.schema).await? else {
        return Ok(Vec::new());
    };
    let facts = of_schema(source, &Namespace::Oid(oid)).await?;
    let same = Target {
        schema: &names.incoming(),
        final_schema: &names.schema,
        version: version(source).await?,
        closed: &target::closed_schemas(source, &facts).await?,
    };
    let mut refusals = ddl::create(&facts, &same).err().unwrap_or_default();
    refusals.extend(crossings(source, oid, prefix).await?);
    refusals.extend(bodies::bound(source, oid).await?);
    refusals.extend(unbound::computed(source, oid, prefix).await?);
    refusals.extend(oid_columns::of_this_host(
        &oid_columns::with_oids(source, oid).await?,
    ));
    let decodes = format!("SELECT {CAN_DECODE}");
    if source
        .row("reading the settings", &decodes, &[])
        .await?
        .get(0)?
    {
        refusals.extend(online(source, oid, policy).await?.refusals);
    }
    Ok(refusals)
}

/// Reads the facts of a schema, in a transaction of its own.
pub(crate) fn of_schema<'a>(
    session: &'a Session,
    namespace: &'a Namespace,
) -> BoxFuture<'a, Result<Facts, Error>> {
    Box::pin(async move {
        let what = "reading the catalogs";
        let mut reads = 0;
        loop {
            reads += 1;
            session
                .batch(what, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                .await?;
            let read = catalog::read(session.client.client(), namespace).await;
            session.batch(what, "ROLLBACK").await?;
            match read {
                // What PostgreSQL deparses has the present names, and the rest has those of the
                // snapshot. So the schema was renamed in between, as a fence does.
                Err(catalog::Error::Unexpected { .. }) if reads < READS_MAX => {
                    tokio::time::sleep(BETWEEN_READS).await
                }
                read => {
                    return read.map_err(|source| Error::Catalog {
                        host: session.host.clone(),
                        source,
                    });
                }
            }
        }
    })
}

/// How often a schema is read again because it was renamed during the reading, and the time
/// between.
const READS_MAX: u32 = 3;
const BETWEEN_READS: Duration = Duration::from_millis(50);

/// A reverse replication does not take the last few slots: moves need them.
const SLOTS_LEFT: i64 = 2;

/// Why a host cannot be the source of a reverse replication; `None` if it can.
pub(crate) fn no_reverse(host: &HostFacts) -> Option<&'static str> {
    if host
        .missing
        .iter()
        .any(|one| one.needed == FunctionUse::Slots)
    {
        return Some("it does not provide all functions for replication slots");
    }
    match &host.stream {
        stream if !stream.can_decode => Some("its wal_level is not logical"),
        StreamFacts {
            replication: ReplicationRight::Refused(_),
            ..
        } => Some("the role may not read its changes: see `pgshard rights --for mover`"),
        stream if stream.free_slots <= SLOTS_LEFT => {
            Some("too few replication slots are left there: raise max_replication_slots")
        }
        stream if stream.free_senders < 1 => {
            Some("no walsender is left there: raise max_wal_senders")
        }
        stream if !stream.prepared.is_empty() => {
            Some("a slot would wait for its prepared transactions")
        }
        _ => None,
    }
}
