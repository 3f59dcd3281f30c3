//! Which of the functions that moves call a host does not provide. Some services have taken some of
//! them away from ordinary roles, or made them fail. A move needs to know before it copies.

use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;

/// A function that the host does not provide to the role.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Missing {
    pub(crate) function: String,
    pub(crate) needed: FunctionUse,
}

/// What needs a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FunctionUse {
    /// Every move.
    Always,
    /// Online moves and rollbacks.
    Online,
    /// The source of those.
    Slots,
    /// No move: without it less is known, namely this.
    Better(&'static str),
}

const WHICH_SERVER: &str = "that another server has taken the host's place is noticed by the time \
    of its start only";

/// Functions about the server, which PostgreSQL lets every role call. Those of no risk are left
/// out: functions of values, and those that read the catalogs.
const FUNCTIONS: &[(&str, FunctionUse)] = &[
    ("hash_record_extended", FunctionUse::Always),
    ("hashtextextended", FunctionUse::Always),
    ("pg_advisory_lock", FunctionUse::Always),
    ("pg_advisory_unlock", FunctionUse::Always),
    ("pg_advisory_unlock_all", FunctionUse::Always),
    ("pg_advisory_xact_lock", FunctionUse::Always),
    ("pg_advisory_xact_lock_shared", FunctionUse::Always),
    ("pg_backend_pid", FunctionUse::Always),
    ("pg_current_snapshot", FunctionUse::Always),
    ("pg_current_wal_insert_lsn", FunctionUse::Always),
    ("pg_current_xact_id", FunctionUse::Always),
    ("pg_current_xact_id_if_assigned", FunctionUse::Always),
    ("pg_export_snapshot", FunctionUse::Always),
    ("pg_get_replication_slots", FunctionUse::Always),
    ("pg_listening_channels", FunctionUse::Always),
    ("pg_lock_status", FunctionUse::Always),
    ("pg_logical_emit_message", FunctionUse::Always),
    ("pg_notify", FunctionUse::Always),
    ("pg_prepared_xact", FunctionUse::Always),
    ("pg_relation_size", FunctionUse::Always),
    ("pg_sequence_last_value", FunctionUse::Always),
    ("pg_stat_get_activity", FunctionUse::Always),
    ("pg_table_size", FunctionUse::Always),
    ("pg_terminate_backend", FunctionUse::Always),
    ("pg_total_relation_size", FunctionUse::Always),
    ("pg_try_advisory_lock", FunctionUse::Always),
    ("pg_try_advisory_xact_lock", FunctionUse::Always),
    ("setval", FunctionUse::Always),
    ("pg_create_logical_replication_slot", FunctionUse::Slots),
    ("pg_drop_replication_slot", FunctionUse::Slots),
    ("pg_postmaster_start_time", FunctionUse::Online),
    ("pg_replication_slot_advance", FunctionUse::Slots),
    ("pg_snapshot_xmax", FunctionUse::Online),
    ("pg_wal_lsn_diff", FunctionUse::Online),
    ("pg_control_system", FunctionUse::Better(WHICH_SERVER)),
    ("pg_current_wal_lsn", FunctionUse::Better(WHICH_SERVER)),
    ("pg_walfile_name", FunctionUse::Better(WHICH_SERVER)),
    (
        "pg_relation_filenode",
        FunctionUse::Better("no move's rows are compared after it, until it is granted"),
    ),
    (
        "pg_stat_get_wal_senders",
        FunctionUse::Better("free walsenders and standbys are not counted"),
    ),
];

/// Functions that may be there and fail.
const CALLED: &[&str] = &[
    "pg_control_system",
    "pg_current_wal_insert_lsn",
    "pg_current_wal_lsn",
    "pg_postmaster_start_time",
];

/// The functions that the host does not provide: the role may not execute them, or they fail.
///
/// Locks: none but ACCESS SHARE on catalogs, for a statement.
pub(crate) async fn missing(session: &Session) -> Result<Vec<Missing>, Error> {
    let what = "looking for functions";
    let sql = "SELECT f.name FROM unnest($1::text[]) WITH ORDINALITY AS f (name, at)
        WHERE (SELECT coalesce(bool_and(has_function_privilege(p.oid, 'EXECUTE')), false)
            FROM pg_proc p
            WHERE p.proname = f.name AND p.pronamespace = 'pg_catalog'::regnamespace) IS FALSE
        ORDER BY f.at";
    let names: Vec<&str> = FUNCTIONS.iter().map(|(name, _)| *name).collect();
    let mut absent: Vec<String> = Vec::new();
    for row in session.rows(what, sql, &[&names]).await? {
        absent.push(row.get(0)?);
    }
    for function in CALLED {
        let call = format!("SELECT count(*) FROM pg_catalog.{function}()");
        if !absent.iter().any(|name| name == function)
            && session.row_if_provided(what, &call).await?.is_none()
        {
            absent.push((*function).to_owned());
        }
    }
    let missing = FUNCTIONS
        .iter()
        .filter(|(name, _)| absent.iter().any(|one| one == name));
    let missing = missing.map(|(function, needed)| Missing {
        function: (*function).to_owned(),
        needed: *needed,
    });
    Ok(missing.collect())
}
