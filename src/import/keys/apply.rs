//! Does the steps, table by table, the parents first.

use super::fill;
use super::prepared::Prepared;
use super::record;
use super::refuse;
use super::report::KeysTable;
use super::steps::{self, Action, Step};
use super::table::KeyTable;
use crate::import::change::{ChangeError, ChangeEvent, ChangeRequest, Observer, Session, StepKind};

/// Whether a step leads on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Done,
    /// So many rows have no key.
    RowsWithoutKey(u64),
}

/// Does what the tables need. A table with rows that cannot get a key keeps its column, and the
/// others are completed.
pub(super) async fn apply(
    session: &Session,
    prepared: &Prepared,
    request: &ChangeRequest,
    observer: Observer<'_>,
) -> Result<Vec<KeysTable>, ChangeError> {
    let mut tables = Vec::new();
    let mut has_record = false;
    for table in &prepared.tables {
        let needed = steps::needed(table, &prepared.details);
        let mut report = report(table);
        let mut rest = needed.iter();
        while let Some(step) = rest.next() {
            if !has_record {
                record::make(session).await?;
                has_record = true;
            }
            observer(ChangeEvent::Step {
                object: table.label.clone(),
                step: step.kind,
            });
            let done = one(session, table, step, request, observer, &mut report.filled).await?;
            if let Outcome::RowsWithoutKey(rows) = done {
                report.rows_without_key = Some(rows);
                report.remedy = Some(remedy(table, &[]));
                report.missing.push(step.kind);
                report.missing.extend(rest.by_ref().map(|step| step.kind));
            }
        }
        tables.push(report);
    }
    Ok(tables)
}

async fn one(
    session: &Session,
    table: &KeyTable,
    step: &Step,
    request: &ChangeRequest,
    observer: Observer<'_>,
    filled: &mut u64,
) -> Result<Outcome, ChangeError> {
    let what = format!("{} ({})", step.kind.title(), table.label);
    for action in &step.actions {
        match action {
            Action::Short {
                tables,
                mode,
                statements,
            } => {
                let short = session.short(&what, tables, *mode, statements, observer);
                short.await?;
            }
            Action::Long(sql) => session.long(&what, sql, observer).await?,
            Action::Fill => {
                if let Some(parent) = &table.parent {
                    let rate = request.rows_per_second.get();
                    *filled += fill::fill(session, table, parent, rate, observer).await?;
                }
            }
            Action::NoneWithoutKey => {
                for sql in fill::without_key_sql(table) {
                    let rows: Option<u64> = session.value(&what, &sql).await?;
                    if let Some(rows) = rows.filter(|rows| *rows > 0) {
                        return Ok(Outcome::RowsWithoutKey(rows));
                    }
                }
            }
        }
    }
    Ok(Outcome::Done)
}

/// A table's state before its rows are counted.
pub(super) fn report(table: &KeyTable) -> KeysTable {
    KeysTable {
        table: table.label.clone(),
        column: table.column.clone(),
        parent: table.parent.as_ref().map(|parent| parent.label.clone()),
        missing: Vec::new(),
        rows: None,
        rows_without_key: None,
        rows_that_differ: None,
        filled: 0,
        remedy: None,
    }
}

/// What to do about rows without a key, while these steps are missing.
pub(super) fn remedy(table: &KeyTable, missing: &[StepKind]) -> String {
    match &table.parent {
        Some(_) if missing.contains(&StepKind::Fill) => {
            "they are not filled yet: run it without --check".to_owned()
        }
        None => format!(
            "set {} in these rows, or delete them; then run it again",
            table.column
        ),
        Some(parent) => {
            let own: Vec<&str> = parent.pairs.iter().map(|(own, _)| own.as_str()).collect();
            format!(
                "let {} refer to a row of {} that has a key, or delete them; then run it again",
                own.join(", "),
                parent.label
            )
        }
    }
}

/// The steps that are not done.
pub(super) fn missing(prepared: &Prepared, table: &KeyTable) -> Vec<StepKind> {
    let steps = steps::needed(table, &prepared.details);
    steps.iter().map(|step| step.kind).collect()
}

/// What to know about all tables.
pub(super) fn warnings(prepared: &Prepared) -> Vec<String> {
    let tables = prepared.tables.iter();
    let undone = tables.filter(|table| !steps::needed(table, &prepared.details).is_empty());
    undone.flat_map(refuse::warnings).collect()
}
