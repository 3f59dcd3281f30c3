//! `pgshard import separate`: the imported tables in a schema of their own.

use pgshard::import::separate::{self, SeparatePlan, SeparateReport};
use schemars::JsonSchema;
use serde::Serialize;

use super::change::{self, Changes};
use crate::args::ImportSeparate;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Align, Format, Output, counted};

/// How it ended.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Finished {
    /// What is there.
    Done(SeparateReport),
    /// The tables that have moved back, and everything is as before.
    Undone {
        /// The tables.
        tables: Vec<String>,
    },
}

/// Puts the imported tables into their schema; or shows, looks or takes back.
pub(crate) async fn separate(args: &ImportSeparate, output: &Output) -> Result<Exit, Failure> {
    let url = &args.imported.url;
    let connect = context::open_url(url, "PGPASSWORD, ~/.pgpass, or a service file")?;
    let request = args.request();
    let changes = Changes::new(output);
    let observer = |event| changes.show(&event);
    if args.plan {
        let plan = separate::plan(&connect, &request).await;
        show_plan(&plan.map_err(change::failure)?, output);
        return Ok(Exit::Done);
    }
    if args.undo {
        let undone = separate::undo(&connect, &request, &observer).await;
        let tables = undone.map_err(change::failure)?;
        if output.format() == Format::Text {
            output.note(format_args!(
                "{} moved back",
                counted(tables.len(), "table")
            ));
        }
        output.event(Finished::Undone { tables });
        return Ok(Exit::Done);
    }
    let report = if args.check {
        separate::check(&connect, &request).await
    } else {
        separate::apply(&connect, &request, &observer).await
    };
    let report = report.map_err(change::failure)?;
    let exit = match (report.is_complete(), args.check) {
        (true, _) => Exit::Done,
        (false, true) => Exit::Failed,
        (false, false) => Exit::Partly,
    };
    match output.format() {
        Format::Json => output.object(Finished::Done(report)),
        Format::Text => show_report(&report, output),
    }
    Ok(exit)
}

fn show_plan(plan: &SeparatePlan, output: &Output) {
    if output.format() == Format::Json {
        return output.object(plan);
    }
    for warning in &plan.warnings {
        output.warning(warning);
    }
    if plan.steps.is_empty() {
        output.note(format_args!("all tables are in schema {}", plan.schema));
    }
    for step in &plan.steps {
        output.data(format_args!("-- {}: {}", plan.schema, step.step.title()));
        output.data(format_args!("-- locks: {}", step.locks));
        for sql in &step.sql {
            output.data(format_args!("{sql};"));
        }
        output.data("");
    }
    for session in &plan.sessions {
        output.note(format_args!("would be waited for: {session}"));
    }
}

fn show_report(report: &SeparateReport, output: &Output) {
    let tables = report.tables.iter();
    let rows = tables.map(|table| [table.table.clone(), table.schema.clone()]);
    output.table(&[("table", Align::Left), ("schema", Align::Left)], rows);
    for path in &report.paths {
        let place = match &path.role {
            Some(role) => format!("role {role}"),
            None => "the database".to_owned(),
        };
        match &path.statement {
            Some(sql) => output.note(format_args!("search_path of {place}: to do: {sql}")),
            None => output.note(format_args!("search_path of {place}: {}", path.path)),
        }
    }
    for session in &report.sessions {
        output.note(format_args!("has the search_path of before: {session}"));
    }
    for warning in &report.warnings {
        output.warning(warning);
    }
    if !report.missing.is_empty() {
        let titles: Vec<&str> = report.missing.iter().map(|step| step.title()).collect();
        output.note(format_args!("to do: {}", titles.join(", ")));
    }
}
