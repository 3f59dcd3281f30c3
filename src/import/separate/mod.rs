//! The imported tables in a schema of their own, so that a fence of that schema stops every
//! statement on them: new sessions look for tables there first, those of before end, then the
//! tables move.
//!
//! [`apply`] does what is missing, step by step; [`plan`] shows it, [`check`] looks, [`undo`] takes
//! it back. `path`, `mentions`, `border` and `steps` are pure; `record` has what was done.
//!
//! Invariant: no table moves while a session is known that would not find it, or while something
//! outside is bound to it; all tables move in one transaction. The next run continues one that was
//! killed, and `undo` finds all that was done.

mod border;
mod mentions;
mod moving;
mod outside;
mod path;
mod prepared;
mod record;
mod refuse;
mod report;
mod request;
mod sessions;
mod settings;
mod steps;
mod undo;

use futures_util::future::BoxFuture;

pub use report::{SeparatePath, SeparatePlan, SeparateReport, SeparateStep, SeparateTable};
pub use request::{PathChange, SeparateRequest};

use self::prepared::Prepared;
use super::change::{ChangeError, ChangeEvent, Observer, Session, StepKind};
use super::keys::moved;
use crate::pg::ConnectOptions;

/// What `pg_stat_activity` shows.
const APPLICATION_NAME: &str = "pgshard import separate";

/// Each step is done once; one that was taken back meanwhile is done again, a few times.
const ROUNDS_MAX: usize = 8;

/// Shows what [`apply`] would do. Nothing is written.
///
/// # Errors
/// When the database cannot be read, or something is in the way.
///
/// # Cancel safety
/// Only reads. Dropping the future closes the sessions.
pub fn plan<'a>(
    connect: &'a ConnectOptions,
    request: &'a SeparateRequest,
) -> BoxFuture<'a, Result<SeparatePlan, ChangeError>> {
    Box::pin(async move {
        let session = open(connect, request).await?;
        let mut prepared = prepared::prepare(connect, &session, request).await?;
        prepared.refuse(&session).await?;
        prepared.read_statements(connect).await?;
        let functions = functions(connect, &session, request, &prepared).await?;
        session.finish().await;
        let steps = steps::needed(&prepared).into_iter();
        let steps: Vec<SeparateStep> = steps
            .map(|step| steps::planned(&prepared, step, &functions))
            .collect();
        let waits = steps.iter().any(|step| step.step == StepKind::Sessions);
        Ok(SeparatePlan {
            database: prepared.database.server.database.clone(),
            from: prepared.old.clone(),
            schema: prepared.new.clone(),
            sessions: if waits {
                prepared.sessions.clone()
            } else {
                Vec::new()
            },
            steps,
            warnings: prepared.warnings(),
        })
    })
}

/// Puts the imported tables into their schema, as far as they are not there.
///
/// # Errors
/// When the database cannot be reached or changed, something is in the way, or other sessions last
/// for too long. What was done remains.
///
/// # Cancel safety
/// Dropping the future closes the session. What was done remains; the next call continues.
pub fn apply<'a>(
    connect: &'a ConnectOptions,
    request: &'a SeparateRequest,
    observer: Observer<'a>,
) -> BoxFuture<'a, Result<SeparateReport, ChangeError>> {
    Box::pin(async move {
        let session = open(connect, request).await?;
        let mut rounds = 0;
        // A step may have waited for hours: what is there is read again.
        let prepared = loop {
            let prepared = prepared::prepare(connect, &session, request).await?;
            prepared.refuse(&session).await?;
            // Found before anything is changed.
            let functions = functions(connect, &session, request, &prepared).await?;
            let Some(step) = steps::needed(&prepared).into_iter().next() else {
                break prepared;
            };
            if rounds == ROUNDS_MAX {
                break prepared;
            }
            rounds += 1;
            observer(ChangeEvent::Step {
                object: prepared.new.clone(),
                step,
            });
            one(&session, &prepared, step, &functions, observer).await?;
        };
        session.finish().await;
        Ok(report(&prepared))
    })
}

/// Whether everything is there. Nothing is written.
///
/// # Errors
/// When the database cannot be read.
///
/// # Cancel safety
/// Only reads. Dropping the future closes the sessions.
pub fn check<'a>(
    connect: &'a ConnectOptions,
    request: &'a SeparateRequest,
) -> BoxFuture<'a, Result<SeparateReport, ChangeError>> {
    Box::pin(async move {
        let session = open(connect, request).await?;
        let mut prepared = prepared::prepare(connect, &session, request).await?;
        prepared.refuse_another()?;
        prepared.read_statements(connect).await?;
        session.finish().await;
        Ok(report(&prepared))
    })
}

/// Takes back what [`apply`] has done: the tables go back, each `search_path` is as it was, and the
/// schema is dropped. Returns the tables.
///
/// # Errors
/// When the database cannot be reached or changed, something is in the way, or other sessions hold
/// locks for too long. What was taken back remains so.
///
/// # Cancel safety
/// Dropping the future closes the session. What was done remains; the next call continues.
pub fn undo<'a>(
    connect: &'a ConnectOptions,
    request: &'a SeparateRequest,
    observer: Observer<'a>,
) -> BoxFuture<'a, Result<Vec<String>, ChangeError>> {
    Box::pin(async move {
        let session = open(connect, request).await?;
        let undone = undo::undo(connect, &session, request, observer).await?;
        session.finish().await;
        Ok(undone)
    })
}

async fn open(connect: &ConnectOptions, request: &SeparateRequest) -> Result<Session, ChangeError> {
    Session::open(connect, APPLICATION_NAME, request.change.wait_max).await
}

/// The statements that make the triggers' functions again, if tables have to move.
async fn functions(
    connect: &ConnectOptions,
    session: &Session,
    request: &SeparateRequest,
    prepared: &Prepared,
) -> Result<Vec<String>, ChangeError> {
    let moving = prepared.moving();
    if moving.is_empty() {
        return Ok(Vec::new());
    }
    let record = prepared.record.as_ref();
    let names = prepared::named_now(session, &request.change, record).await?;
    let schemas = prepared::schemas_of(&moving, &prepared.new);
    moved::functions(connect, session, &names, &schemas).await
}

async fn one(
    session: &Session,
    prepared: &Prepared,
    step: StepKind,
    functions: &[String],
    observer: Observer<'_>,
) -> Result<(), ChangeError> {
    let what = format!("{} ({})", step.title(), prepared.new);
    let in_one = |sql: Vec<String>| format!("BEGIN; {}; COMMIT", sql.join("; "));
    match step {
        StepKind::Schema => {
            let mut sql = vec![record::MAKE.to_owned()];
            sql.extend(steps::schema(prepared));
            sql.push(steps::schema_record(prepared));
            session.execute(&what, &in_one(sql)).await
        }
        StepKind::SearchPath => {
            let mut sql = steps::paths(prepared);
            if !sql.is_empty() {
                sql.extend(steps::paths_record(prepared));
                session.execute(&what, &in_one(sql)).await?;
            }
            session.execute(&what, record::PATHS_ARE_SET).await
        }
        StepKind::Sessions => {
            let record = prepared.record.as_ref();
            let began = record.and_then(|record| record.paths_at.as_deref());
            let tables = prepared.relations.iter().map(|one| one.oid).collect();
            match began {
                Some(began) => sessions::wait(session, began, &tables, observer).await,
                None => Ok(()),
            }
        }
        _ => {
            let moving = prepared.moving();
            let sql = moving::sql(&moving, &prepared.old, &prepared.new, functions);
            moving::move_at_once(session, &what, &moving, &sql, observer).await
        }
    }
}

fn report(prepared: &Prepared) -> SeparateReport {
    let missing = steps::needed(prepared);
    let mut warnings = prepared.warnings();
    let found = prepared.border().refusals();
    warnings.extend(found.iter().map(ToString::to_string));
    SeparateReport {
        database: prepared.database.server.database.clone(),
        from: prepared.old.clone(),
        schema: prepared.new.clone(),
        tables: steps::tables(prepared),
        paths: steps::reported_paths(prepared),
        sessions: if missing.contains(&StepKind::Sessions) {
            prepared.sessions.clone()
        } else {
            Vec::new()
        },
        missing,
        warnings,
    }
}
