//! `pgshard migrate`: the application's migrations over all shards.

mod backfill;
mod new;
mod plan;
mod request;
mod resolve;
mod status;
mod wait;

use std::path::Path;

use pgshard::schema;

pub(crate) use backfill::{BackfillEvent, Backfills, backfill};
pub(crate) use new::{NewFile, new};
pub(crate) use plan::{MigrationPlanReport as PlannedUp, plan};
pub(crate) use request::How;
use request::request;
pub(crate) use resolve::{ResolvePlan as PlannedResolve, plan_resolving, resolve};
pub(crate) use status::{MigrationStatus, Status, status};
pub(crate) use wait::{WaitReport, wait};

use super::bootstrap::{Watcher, exit, print_summary};
use crate::args::MigrateTarget;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// Runs the migrations that shards lack.
pub(crate) async fn up(
    target: &MigrateTarget,
    how: How,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    context::sharded(&config, "migrate up")?;
    let request = request(&config, target, how)?;
    let identities = context::identities(&config, output).await?;
    context::record(&identities, &config).await;
    let survey = context::survey(&config, output).await;
    plan::warn_of_rollbacks(&schema::migrate::plan(&request, &survey), &survey, output);
    let watcher = Watcher::new(output);
    let report = schema::migrate(&request, &|event| watcher.saw(&event)).await;
    print_summary(&report, output);
    Ok(exit(&report))
}
