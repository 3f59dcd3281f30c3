//! The sessions that began before `search_path` was set: they have the former one for as long as
//! they last.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use crate::import::change::{Blocker, ChangeError, ChangeEvent, Observer, Session};
use crate::pg::{quote_literal, shown};

/// How often it is looked for them.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// How often the same ones are reported.
const REPORT_EVERY: Duration = Duration::from_secs(10);

/// The sessions of before, the oldest first. They are those of roles with rights on these tables;
/// of superusers only those that own one: others are people and monitors. Those of import commands
/// name each schema.
pub(super) async fn before(
    session: &Session,
    began: Option<&str>,
    tables: &BTreeSet<u32>,
) -> Result<Vec<Blocker>, ChangeError> {
    let oids: Vec<String> = tables.iter().map(u32::to_string).collect();
    let oids = format!("'{{{}}}'::oid[]", oids.join(","));
    let began = began.map_or_else(
        || "clock_timestamp()".to_owned(),
        |began| format!("{}::timestamptz", quote_literal(began)),
    );
    let sql = format!(
        "SELECT json_build_object('pid', a.pid, 'role', r.rolname,
            'application', coalesce(a.application_name, ''),
            'open_s', round(coalesce(extract(epoch FROM clock_timestamp()
                - a.backend_start), 0)::numeric, 1)::float8,
            'statement', coalesce({}, ''))
        FROM pg_stat_activity a JOIN pg_roles r ON r.oid = a.usesysid
        WHERE a.datname = current_database() AND a.pid <> pg_backend_pid()
            AND coalesce(a.application_name, '') NOT LIKE 'pgshard import %'
            AND coalesce(a.backend_type, 'client backend') = 'client backend'
            AND (a.backend_start IS NULL OR a.backend_start < {began})
            AND EXISTS (SELECT FROM unnest({oids}) t (oid) JOIN pg_class c ON c.oid = t.oid
                WHERE CASE WHEN r.rolsuper THEN c.relowner = r.oid
                    ELSE has_any_column_privilege(r.oid, c.oid, 'SELECT, INSERT, UPDATE')
                        OR has_table_privilege(r.oid, c.oid, 'DELETE') END)
        ORDER BY a.backend_start, a.pid LIMIT 20",
        shown("a.query")
    );
    session.values("find sessions of before", &sql).await
}

/// The roles with sessions that do not show when they began.
pub(super) async fn hidden(session: &Session) -> Result<Vec<String>, ChangeError> {
    let sql = "SELECT to_json(r.rolname) FROM pg_stat_activity a
        JOIN pg_roles r ON r.oid = a.usesysid
        WHERE a.datname = current_database() AND a.backend_start IS NULL
            AND NOT pg_has_role('pg_read_all_stats', 'USAGE')
        GROUP BY r.rolname ORDER BY r.rolname";
    session.values("find sessions", sql).await
}

/// Waits until they have ended.
pub(super) async fn wait(
    session: &Session,
    began: &str,
    tables: &BTreeSet<u32>,
    observer: Observer<'_>,
) -> Result<(), ChangeError> {
    let begun = Instant::now();
    let mut reported: Option<(Instant, Vec<i32>)> = None;
    loop {
        let sessions = before(session, Some(began), tables).await?;
        if sessions.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > session.wait_max() {
            return Err(ChangeError::OldSessions { sessions });
        }
        let pids: Vec<i32> = sessions.iter().map(|one| one.pid).collect();
        let is_known = reported
            .as_ref()
            .is_some_and(|(at, known)| *known == pids && at.elapsed() < REPORT_EVERY);
        if !is_known {
            reported = Some((Instant::now(), pids));
            observer(ChangeEvent::OldSessions { sessions });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
