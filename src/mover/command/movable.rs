//! Finds what would stop a move of any shard, long before one is needed: it examines each
//! definition on a host once, not each shard.

use crate::map::HostName;
use crate::mover::control::context::Context;
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::pg::cause::chain;
use crate::schema::{DefinitionSurvey, Finding, Findings, Severity, made_alike};
use crate::shard::ShardId;

pub(in crate::mover) async fn movable(
    context: &Context,
    survey: &DefinitionSurvey,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    for (host, shards) in made_alike(survey) {
        let Some(first) = shards.first() else {
            continue;
        };
        let found = refusals_of(context, &host, *first).await;
        for shard in &shards {
            context.observer.notify(Event::Examined { shard: *shard });
        }
        match found {
            Ok(refusals) => {
                for refusal in refusals {
                    let Refusal {
                        object,
                        reason,
                        remedy,
                        ..
                    } = refusal;
                    let what = format!("{object} {reason}, which keeps it from being moved");
                    for shard in &shards {
                        let (what, remedy) = (what.as_str(), remedy.as_str());
                        findings.add_shard(
                            Severity::Warning,
                            "not_movable",
                            Some(&host),
                            *shard,
                            what,
                            remedy,
                        );
                    }
                }
            }
            Err(error) => {
                let (what, remedy) = (chain(&error), "see what the server's log says");
                findings.add_shard(
                    Severity::Error,
                    "definitions_unread",
                    Some(&host),
                    *first,
                    what,
                    remedy,
                );
            }
        }
    }
    findings.sorted()
}

async fn refusals_of(
    context: &Context,
    host: &HostName,
    shard: ShardId,
) -> Result<Vec<Refusal>, Error> {
    let session = context.hosts.open(host).await?.for_shard(shard);
    let mut refusals = facts::of_definition(
        &session,
        shard,
        &context.prefix,
        context.options.replica_identity,
    )
    .await?;
    refusals.sort();
    refusals.dedup();
    Ok(refusals)
}
