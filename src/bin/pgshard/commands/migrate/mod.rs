//! `pgshard migrate`: the application's migrations over all shards.

mod backfill;
mod new;
mod plan;
mod resolve;
mod status;
mod wait;

use std::collections::BTreeSet;
use std::path::Path;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{RangesError, parse_shards};
use pgshard::schema;
use pgshard::schema::migrate::{Canary, Pace, Request, Which};

pub(crate) use backfill::{BackfillEvent, Backfills, backfill};
pub(crate) use new::{NewFile, new};
pub(crate) use plan::{Planned as PlannedUp, plan};
pub(crate) use resolve::{Planned as PlannedResolve, plan_resolving, resolve};
pub(crate) use status::{MigrationStatus, Status, status};
pub(crate) use wait::{Waited, wait};

use super::bootstrap::{Watcher, exit, tell};
use crate::args::MigrateTarget;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// How to migrate.
pub(crate) struct How {
    pub(crate) which: Which,
    pub(crate) canary: Option<Canary>,
    pub(crate) pace: Pace,
}

/// Runs the migrations that shards lack.
pub(crate) async fn up(
    target: &MigrateTarget,
    how: How,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let request = request(&config, target, how)?;
    let identities = context::identities(&config).await?;
    context::record(&identities, &config).await;
    let survey = context::survey(&config).await;
    plan::warn_of_rollbacks(&schema::migrate::plan(&request, &survey), &survey, output);
    let watcher = Watcher::new(output);
    let report = schema::migrate(&request, &|event| watcher.saw(&event)).await;
    tell(&report, output);
    Ok(exit(&report))
}

fn request(config: &Config, target: &MigrateTarget, how: How) -> Result<Request, Failure> {
    let hosts = config
        .hosts
        .values()
        .map(|host| (host.name.clone(), host.connect.clone()))
        .collect();
    let request = Request::new(
        context::cluster(config),
        hosts,
        context::migrations(config)?,
    )
    .only_hosts(context::hosts(config, &target.hosts)?)
    .only_shards(only(target.only.as_deref(), config)?);
    Ok(request.which(how.which).canary(how.canary).pace(how.pace))
}

/// The shards of `--only`, if it was given.
fn only(text: Option<&str>, config: &Config) -> Result<Option<BTreeSet<ShardId>>, Failure> {
    let Some(text) = text else { return Ok(None) };
    let mistakes = |mistakes: Vec<RangesError>| {
        Failure::several(
            Exit::Usage,
            mistakes.iter().map(|mistake| format!("--only: {mistake}")),
        )
    };
    let shards: BTreeSet<_> = parse_shards(text, config.cluster.shards)
        .map_err(mistakes)?
        .into_iter()
        .collect();
    if shards.is_empty() {
        // As from a variable that is not set: to do nothing, and say that all is well, would be
        // wrong.
        return Err(Failure::usage("--only names no shards").hint("name them like 17 or 0-255,300"));
    }
    Ok(Some(shards))
}
