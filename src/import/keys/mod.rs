//! The key in each table: a column, triggers that keep it, the rows of before, and a replica
//! identity that has it, so that a stream of changes shows the key of each.
//!
//! [`apply`] does what is missing, step by step; [`plan`] shows it, [`check`] compares, [`undo`]
//! takes it back. `table` and `steps` are pure; `record` has what was done.
//!
//! Invariant: at each moment the application works, the rows that have a key have that of the row
//! that they refer to, and `undo` finds all that was done. The next run continues one that was
//! killed.

mod apply;
mod fill;
pub(super) mod moved;
mod prepared;
mod record;
mod refuse;
mod report;
mod steps;
mod table;
mod triggers;
mod undo;

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;

pub use report::{KeysPlan, KeysReport, KeysTable};
pub use steps::PlannedStep;

use super::change::{ChangeError, ChangeRequest, Observer, Session, StepKind};
use crate::pg::ConnectOptions;

/// What `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "pgshard import keys";

/// Shows what [`apply`] would do. Nothing is written.
///
/// # Errors
/// When the database cannot be read, or something is in the way.
///
/// # Cancel safety
/// Only reads. Dropping the future closes the sessions.
pub fn plan<'a>(
    connect: &'a ConnectOptions,
    request: &'a ChangeRequest,
) -> BoxFuture<'a, Result<KeysPlan, ChangeError>> {
    Box::pin(async move {
        let session = Session::open(connect, APPLICATION_NAME, request.wait_max).await?;
        let prepared = prepared::prepare(connect, &session, request).await?;
        prepared.refuse(&session).await?;
        session.finish().await;
        let tables = prepared.tables.iter();
        let steps = tables.flat_map(|table| {
            let steps = steps::needed(table, &prepared.details).into_iter();
            steps.map(move |step| steps::planned(table, &step))
        });
        Ok(KeysPlan {
            database: prepared.database.server.database.clone(),
            steps: steps.collect(),
            warnings: apply::warnings(&prepared),
        })
    })
}

/// Gives each table the key, as far as it has none. A table with rows that cannot get one is
/// reported, and waits for the next run.
///
/// # Errors
/// When the database cannot be reached or changed, something is in the way, or other sessions hold
/// locks for too long. What was done remains.
///
/// # Cancel safety
/// Dropping the future closes the session. What was done remains; the next call continues.
pub fn apply<'a>(
    connect: &'a ConnectOptions,
    request: &'a ChangeRequest,
    observer: Observer<'a>,
) -> BoxFuture<'a, Result<KeysReport, ChangeError>> {
    Box::pin(async move {
        let session = Session::open(connect, APPLICATION_NAME, request.wait_max).await?;
        let prepared = prepared::prepare(connect, &session, request).await?;
        prepared.refuse(&session).await?;
        undo::tidy(&session, observer).await?;
        let tables = apply::apply(&session, &prepared, request, observer).await?;
        session.finish().await;
        Ok(KeysReport {
            database: prepared.database.server.database.clone(),
            tables,
        })
    })
}

/// Whether everything is there; with the rows that have no key, or another than the row that they
/// refer to. Nothing is written, and all rows are read.
///
/// # Errors
/// When the database cannot be read.
///
/// # Cancel safety
/// Only reads. Dropping the future closes the sessions.
pub fn check<'a>(
    connect: &'a ConnectOptions,
    request: &'a ChangeRequest,
) -> BoxFuture<'a, Result<KeysReport, ChangeError>> {
    Box::pin(async move {
        let session = Session::open(connect, APPLICATION_NAME, request.wait_max).await?;
        let prepared = prepared::prepare(connect, &session, request).await?;
        let mut tables = Vec::new();
        for table in &prepared.tables {
            let mut report = apply::report(table);
            report.missing = apply::missing(&prepared, table);
            if report.missing.contains(&StepKind::Column) {
                tables.push(report);
                continue;
            }
            let has_keys = table.parent.as_ref().is_none_or(|parent| {
                let details = prepared.details.get(&parent.oid);
                details.is_some_and(|details| details.column(&parent.key).is_some())
            });
            if has_keys {
                let what = format!("count the rows of {}", table.label);
                let sql = fill::compare_sql(table);
                let counts: Option<[u64; 3]> = session.value(&what, &sql).await?;
                if let Some([rows, without, differ]) = counts {
                    report.rows = Some(rows);
                    report.rows_without_key = Some(without);
                    report.rows_that_differ = Some(differ);
                    report.remedy = (without > 0).then(|| apply::remedy(table, &report.missing));
                }
            }
            tables.push(report);
        }
        session.finish().await;
        Ok(KeysReport {
            database: prepared.database.server.database.clone(),
            tables,
        })
    })
}

/// Takes back what [`apply`] has done to the tables that are named, and to those that have their
/// key from them; to all if none is named. Returns the tables.
///
/// # Errors
/// When the database cannot be reached or changed, or other sessions hold locks for too long. What
/// was taken back remains so.
///
/// # Cancel safety
/// Dropping the future closes the session. What was done remains; the next call continues.
pub fn undo<'a>(
    connect: &'a ConnectOptions,
    request: &'a ChangeRequest,
    observer: Observer<'a>,
) -> BoxFuture<'a, Result<Vec<String>, ChangeError>> {
    Box::pin(async move {
        let session = Session::open(connect, APPLICATION_NAME, request.wait_max).await?;
        let mut only = BTreeSet::new();
        if !request.tables.is_empty() {
            only = prepared::prepare(connect, &session, request).await?.named;
        }
        let undone = undo::undo(&session, &only, observer).await?;
        session.finish().await;
        Ok(undone)
    })
}
