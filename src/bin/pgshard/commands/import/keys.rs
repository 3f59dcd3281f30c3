//! `pgshard import keys`: the key in each table.

use pgshard::import::keys::{self, KeysPlan, KeysReport, KeysTable};
use schemars::JsonSchema;
use serde::Serialize;

use super::change::{self, Changes};
use crate::args::ImportKeys;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted};

/// How it ended.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Finished {
    /// The state of each table.
    Done(KeysReport),
    /// The tables that are as before.
    Undone {
        /// The tables.
        tables: Vec<String>,
    },
}

/// Gives each table the key; or shows, compares or takes back.
pub(crate) async fn keys(args: &ImportKeys, output: &Output) -> Result<Exit, Failure> {
    let url = &args.imported.url;
    let connect = context::open_url(url, "PGPASSWORD, ~/.pgpass, or a service file")?;
    let request = args.request();
    let changes = Changes::new(output);
    let observer = |event| changes.show(&event);
    if args.plan {
        let plan = keys::plan(&connect, &request).await;
        show_plan(&plan.map_err(change::failure)?, output);
        return Ok(Exit::Done);
    }
    if args.undo {
        let undone = keys::undo(&connect, &request, &observer).await;
        let tables = undone.map_err(change::failure)?;
        if output.format() == Format::Text {
            output.note(format_args!("{} as before", counted(tables.len(), "table")));
        }
        output.event(Finished::Undone { tables });
        return Ok(Exit::Done);
    }
    let report = if args.check {
        let check = keys::check(&connect, &request);
        output.waiting("comparing rows", check).await
    } else {
        keys::apply(&connect, &request, &observer).await
    };
    let report = report.map_err(change::failure)?;
    let exit = match (report.is_complete(), report.has_difference(), args.check) {
        (true, ..) => Exit::Done,
        (false, true, _) => Exit::Differs,
        (false, false, true) => Exit::Failed,
        (false, false, false) => Exit::Partly,
    };
    match output.format() {
        Format::Json => output.object(Finished::Done(report)),
        Format::Text => show_report(&report, output),
    }
    Ok(exit)
}

fn show_plan(plan: &KeysPlan, output: &Output) {
    if output.format() == Format::Json {
        return output.object(plan);
    }
    for warning in &plan.warnings {
        output.warning(warning);
    }
    if plan.steps.is_empty() {
        output.note("each table has the key");
    }
    for step in &plan.steps {
        output.data(format_args!("-- {}: {}", step.table, step.step.title()));
        output.data(format_args!("-- locks: {}", step.locks));
        for sql in &step.sql {
            output.data(format_args!("{sql};"));
        }
        output.data("");
    }
}

fn show_report(report: &KeysReport, output: &Output) {
    let count = |rows: Option<u64>| rows.map_or_else(|| "-".to_owned(), |rows| rows.to_string());
    let rows = report.tables.iter().map(|table| {
        [
            table.table.clone(),
            table.column.clone(),
            table.parent.clone().unwrap_or_else(|| "-".to_owned()),
            count(table.rows_without_key),
            count(table.rows_that_differ),
            state(table),
        ]
    });
    let columns = [
        ("table", Align::Left),
        ("column", Align::Left),
        ("from", Align::Left),
        ("without", Align::Right),
        ("differ", Align::Right),
        ("state", Align::Left),
    ];
    output.table(&columns, rows);
    for table in &report.tables {
        if let (Some(remedy), Some(rows)) = (&table.remedy, table.rows_without_key) {
            output.warning(format_args!(
                "{}: {rows} rows have no key; {remedy}",
                table.table
            ));
        }
    }
}

/// What is missing.
fn state(table: &KeysTable) -> String {
    match table.missing.as_slice() {
        [] => "complete".to_owned(),
        steps => {
            let titles: Vec<&str> = steps.iter().map(|step| step.title()).collect();
            format!("to do: {}", titles.join(", "))
        }
    }
}
