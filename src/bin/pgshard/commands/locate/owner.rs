//! The host that serves a shard, by its own word.

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{Placement, ShardEpoch, ShardMap};
use pgshard::pg::cause::chain;
use pgshard::schema::{self, HostFacts, ShardFault};

use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

/// What is shown while hosts are read that may not answer.
const READING: &str = "reading the hosts";

/// The host that serves the shard by its own row; the map only determines which host is queried
/// first.
///
/// # Errors
/// With [`Exit::Refused`] where a host recorded another N, kind of keys, epoch or prefix than the
/// config has: the shard is another one then. Where several hosts serve it, too.
pub(crate) async fn owner(
    config: &Config,
    map: &ShardMap,
    shard: ShardId,
    output: &Output,
) -> Result<Placement, Failure> {
    let place = map
        .placement(shard)
        .ok_or_else(|| Failure::usage(format!("the map has no shard {shard}")))?;
    let hosts = context::all_hosts(config);
    let (first, others): (Vec<_>, Vec<_>) =
        hosts.into_iter().partition(|(name, _)| *name == place.host);
    let survey = output.waiting(READING, schema::survey(first)).await;
    context::of_this_cluster(config, &survey)?;
    match survey.get(&place.host) {
        Some(Ok(facts)) => {
            if let Some(epoch) = served(facts, shard) {
                let host = place.host;
                return Ok(Placement { host, epoch });
            }
        }
        // Another host may serve it by now; if none does, this is the reason.
        Some(Err(error)) => output.warning(format_args!("{}: {}", place.host, chain(error))),
        None => {}
    }
    // The first one is not queried twice: it may be silent.
    let survey = output.waiting(READING, schema::survey(others)).await;
    context::of_this_cluster(config, &survey)?;
    let owners: Vec<Placement> = survey
        .iter()
        .filter_map(|(name, facts)| {
            let epoch = served(facts.as_ref().ok()?, shard)?;
            let host = name.clone();
            Some(Placement { host, epoch })
        })
        .collect();
    match owners.as_slice() {
        [only] => {
            output.warning(format_args!(
                "the map has shard {shard} on {}, and {} serves it: `pgshard map rebuild`",
                place.host, only.host
            ));
            Ok(only.clone())
        }
        [] => {
            let fault = ShardFault::Unserved { reason: None };
            Err(
                Failure::new(Exit::Failed, format!("shard {shard}: {fault}"))
                    .hint("see what `pgshard check` says"),
            )
        }
        _ => Err(Failure::new(
            Exit::Refused,
            format!("several hosts say that they serve shard {shard}"),
        )
        .hint(format_args!(
            "`pgshard moves repair {shard} --plan` says what can be done"
        ))),
    }
}

/// Since which epoch a host serves the shard; `None` where it does not.
fn served(facts: &HostFacts, shard: ShardId) -> Option<ShardEpoch> {
    let row = facts.control.as_ref()?.shards.get(&shard)?;
    row.state.is_owner().then_some(row.epoch)
}
