//! Reads the server, the current role, and the schemas that exist. It needs no rights, and no
//! control schema.

use std::collections::{BTreeMap, BTreeSet};

use tokio_postgres::types::FromSql;
use tokio_postgres::{Client, Row};

use super::answer::unreadable;
use crate::pg::decoding::{CAN_DECODE, may_replicate};
use crate::schema::survey::facts::{FactsError, OfMoves, ServerFacts};

/// The state of a server.
pub(super) struct Answer {
    pub(super) server: ServerFacts,
    pub(super) schemas: BTreeSet<String>,
    pub(super) of_moves: OfMoves,
    pub(super) settings: BTreeMap<String, String>,
    /// The control schema, if there is one.
    pub(super) control: Option<Control>,
}

/// What shows of a control schema before anything in it is read.
pub(super) struct Control {
    /// The owner and the current role, if that one may not act for the owner.
    pub(super) foreign: Option<Foreign>,
}

/// A control schema of another role.
pub(super) struct Foreign {
    pub(super) owner: String,
    pub(super) role: String,
}

/// Rights are those of the control schema's owner if the current role may not act for that one:
/// `about` is the role that has them.
fn sql() -> String {
    format!(
        "{SERVER},
       {} AS may_replicate, {CAN_DECODE} AS can_decode
FROM about",
        may_replicate("about.oid")
    )
}

const SERVER: &str = r"
WITH owner AS (
    SELECT r.* FROM pg_roles r JOIN pg_namespace n ON n.nspowner = r.oid
    WHERE n.nspname = 'pgshard' AND NOT pg_has_role(n.nspowner, 'USAGE')
        AND (SELECT count(*) > 1 FROM pg_class c WHERE c.relnamespace = n.oid
             AND c.relname IN ('control_migration', 'cluster', 'shard'))),
about AS (
    SELECT oid, rolname, rolsuper FROM owner
    UNION ALL SELECT oid, rolname, rolsuper FROM pg_roles
    WHERE rolname = current_user AND NOT EXISTS (SELECT FROM owner))
SELECT current_setting('server_version_num')::int4 AS version, current_user::text AS asks,
       current_database()::text AS database, pg_is_in_recovery() AS in_recovery,
       has_database_privilege(about.oid, current_database(), 'CREATE') AS may_create,
       (SELECT pg_get_userbyid(nspowner)::text FROM pg_namespace
        WHERE nspname = 'pgshard') AS owner,
       coalesce((SELECT pg_has_role(nspowner, 'USAGE') FROM pg_namespace
                 WHERE nspname = 'pgshard'), true)
           AS owns_control,
       current_setting('max_locks_per_transaction')::int8
           * (current_setting('max_connections')::int8
               + current_setting('max_prepared_transactions')::int8)
           AS lock_slots,
       -- Whatever table somebody has dropped, it is still known as a control schema.
       (SELECT count(*) > 1 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = 'pgshard'
            AND c.relname IN ('control_migration', 'cluster', 'shard')) AS has_control,
       ARRAY(SELECT nspname::text FROM pg_namespace WHERE nspname ~ '[0-9]{4}$') AS schemas,
       ARRAY(SELECT nspname::text FROM pg_namespace
             WHERE nspname ~ '[0-9]{4}__(left_e[0-9]+|incoming|signpost(_e[0-9]+)?)$'
             ORDER BY 1) AS of_moves,
       ARRAY(SELECT slot_name::text FROM pg_replication_slots
             WHERE slot_name LIKE 'pgshard\_%' AND database = current_database()
             ORDER BY 1) AS slots,
       ARRAY(SELECT slot_name::text FROM pg_replication_slots
             WHERE slot_name LIKE 'pgshard\_%' AND database = current_database()
                 AND wal_status = 'lost' ORDER BY 1) AS lost_slots,
       (SELECT slot_name::text FROM pg_replication_slots WHERE slot_name LIKE 'pgshard\_%'
             AND database = current_database() AND catalog_xmin IS NOT NULL
        ORDER BY age(catalog_xmin) DESC LIMIT 1) AS catalog_slot,
       (SELECT coalesce(sum(pg_stat_get_dead_tuples(oid)), 0)::int8 FROM pg_class
        WHERE oid = ANY ('{pg_class,pg_attribute,pg_type,pg_depend,pg_index}'::regclass[]::oid[]))
           AS dead_rows,
       (SELECT coalesce(sum(pg_stat_get_live_tuples(oid)), 0)::int8 FROM pg_class
        WHERE oid = ANY ('{pg_class,pg_attribute,pg_type,pg_depend,pg_index}'::regclass[]::oid[]))
           AS live_rows,
       ARRAY(SELECT pubname::text FROM pg_publication
             WHERE pubname LIKE 'pgshard\_%' ORDER BY 1) AS publications,
       (SELECT json_object_agg(name, current_setting(name)) FROM unnest(ARRAY[
             'cluster_name', 'fsync', 'full_page_writes', 'synchronous_commit', 'wal_level',
             'max_replication_slots', 'max_wal_senders',
             'synchronous_standby_names', 'max_prepared_transactions',
             'default_transaction_isolation', 'default_transaction_read_only',
             'default_transaction_deferrable', 'session_replication_role']) AS name)::text
           AS settings,
       (SELECT json_build_object('server_encoding', pg_encoding_to_char(encoding),
                                 'lc_collate', datcollate, 'lc_ctype', datctype)
        FROM pg_database WHERE datname = current_database())::text
           AS of_database,
       about.rolsuper AS is_superuser,
       EXISTS (SELECT FROM pg_namespace n,
                   aclexplode(coalesce(n.nspacl, acldefault('n', n.nspowner))) AS a
               WHERE n.nspname = 'public' AND a.grantee = 0
                   AND a.privilege_type = 'CREATE') AS public_may_create,
       about.rolname::text AS role";

/// Reads a server. Locks: none.
pub(super) async fn read(client: &Client) -> Result<Answer, FactsError> {
    let row = client.query_one(&sql(), &[]).await.map_err(failed)?;
    let owner: Option<String> = get(&row, "owner")?;
    let server = ServerFacts {
        version: get(&row, "version")?,
        role: get(&row, "role")?,
        database: get(&row, "database")?,
        in_recovery: get(&row, "in_recovery")?,
        may_create: get(&row, "may_create")?,
        has_pgshard: owner.is_some(),
        is_superuser: get(&row, "is_superuser")?,
        public_may_create: get(&row, "public_may_create")?,
        may_replicate: get(&row, "may_replicate")?,
        can_decode: get(&row, "can_decode")?,
        lock_slots: get(&row, "lock_slots")?,
        commits_wait: false,
        watcher: None,
    };
    let of_moves = OfMoves {
        schemas: get::<Vec<String>>(&row, "of_moves")?.into_iter().collect(),
        slots: get(&row, "slots")?,
        lost_slots: get(&row, "lost_slots")?,
        publications: get(&row, "publications")?,
        catalog_slot: get(&row, "catalog_slot")?,
        dead_catalog_rows: unsigned(get(&row, "dead_rows")?),
        live_catalog_rows: unsigned(get(&row, "live_rows")?),
    };
    let mut settings = BTreeMap::new();
    for column in ["settings", "of_database"] {
        let read: BTreeMap<String, String> =
            serde_json::from_str(get(&row, column)?).map_err(unreadable)?;
        settings.extend(read);
    }
    Ok(Answer {
        server,
        schemas: get::<Vec<String>>(&row, "schemas")?.into_iter().collect(),
        of_moves,
        settings,
        control: control(&row, owner)?,
    })
}

fn control(row: &Row, owner: Option<String>) -> Result<Option<Control>, FactsError> {
    if !get::<bool>(row, "has_control")? {
        return Ok(None);
    }
    let role: String = get(row, "asks")?;
    let foreign = match get(row, "owns_control")? {
        true => None,
        false => owner.map(|owner| Foreign { owner, role }),
    };
    Ok(Some(Control { foreign }))
}

/// The error where the question failed.
pub(super) fn failed(source: tokio_postgres::Error) -> FactsError {
    FactsError::Query {
        what: "server",
        source,
    }
}

/// A column of the answer to [`sql`].
fn get<'r, T: FromSql<'r>>(row: &'r Row, column: &str) -> Result<T, FactsError> {
    row.try_get(column).map_err(failed)
}

fn unsigned(rows: i64) -> u64 {
    u64::try_from(rows).unwrap_or(0)
}
