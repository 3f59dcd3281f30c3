//! The request of a migration, from the arguments and the config.

use std::collections::BTreeSet;

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{RangesError, parse_shards};
use pgshard::schema::migrate::{Canary, Pace, Request, Which};

use crate::args::MigrateTarget;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;

/// How to migrate.
pub(crate) struct How {
    pub(crate) which: Which,
    pub(crate) canary: Option<Canary>,
    pub(crate) pace: Pace,
}

pub(super) fn request(
    config: &Config,
    target: &MigrateTarget,
    how: How,
) -> Result<Request, Failure> {
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
pub(super) fn only(
    text: Option<&str>,
    config: &Config,
) -> Result<Option<BTreeSet<ShardId>>, Failure> {
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
        // As from a variable that is not set: to do nothing, and report success, would be wrong.
        return Err(Failure::usage("--only names no shards").hint("name them like 17 or 0-255,300"));
    }
    Ok(Some(shards))
}
