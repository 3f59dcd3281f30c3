//! What is reported where hosts contradict each other about a shard, by this comparison and when
//! the map is rebuilt; and which hosts contradict the config.

use crate::map::{HostName, ShardEpoch};
use crate::schema::check::remedy::REPAIR;
use crate::schema::control::Cluster;
use crate::schema::survey::facts::{FactsError, HostFacts, Survey};
use crate::schema::survey::ownership::Statement;
use crate::schema::survey::refusal::{Refusal, differences};

/// An owner that does not know of the move that brought it the shard, or took it away: its database
/// is from before that move, or the other host is wrong.
pub(in crate::schema) fn went_back(own: Statement<'_>, given: Statement<'_>) -> (String, String) {
    let (owner, served) = (own.owner, own.epoch);
    let what = format!(
        "{} gave it to {} at epoch {}, but {owner} serves it at epoch {served}, from before that",
        given.by, given.owner, given.epoch
    );
    let remedy = format!(
        "stop its writers: {owner} was restored from before the move, or failed over to a standby \
            that lacks it, and answers with old rows; {REPAIR}, and `pgshard recover {owner} \
            --plan` with all of its shards; docs/trouble.md has the steps under \"A host has gone \
            back in time\""
    );
    (what, remedy)
}

/// A host that claims an epoch to which no move can have led.
pub(in crate::schema) fn jumped(
    from: &HostName,
    claimed: ShardEpoch,
    known: ShardEpoch,
) -> (String, String) {
    let what = format!(
        "{from} says that it is in epoch {claimed}; the map has epoch {known}, and no host comes \
            near"
    );
    let remedy = format!(
        "a program other than pgshard has written to pgshard.shard of {from}, or it is another \
            server than it claims: keep writers from it, see which roles can write to it, \
            and restore it from a backup"
    );
    (what, remedy)
}

/// Whether a host recorded another cluster than the config's, or another name. Its shards are not
/// those of the map then, and what would be found about them is wrong.
pub(super) fn contradicts(host: &HostName, facts: &HostFacts, cluster: &Cluster) -> bool {
    facts.control.as_ref().is_some_and(|control| {
        differences(control, cluster, host)
            .iter()
            .any(Refusal::is_of_another_host)
    })
}

/// The survey with the hosts that contradict the config as hosts that could not be read: each of
/// them has a finding of its own, and its shards are not compared. `None` if there is no such host.
pub(super) fn without_contradicting(survey: &Survey, cluster: &Cluster) -> Option<Survey> {
    let is_comparable = |host: &HostName, facts: &HostFacts| !contradicts(host, facts, cluster);
    let are_all = survey.iter().all(|(host, facts)| {
        facts
            .as_ref()
            .map_or(true, |facts| is_comparable(host, facts))
    });
    let kept = |(host, facts): (&HostName, &Result<HostFacts, FactsError>)| {
        let facts = match facts {
            Ok(facts) if is_comparable(host, facts) => Ok(facts.clone()),
            _ => Err(FactsError::Unreadable {
                what: "another cluster".to_owned(),
            }),
        };
        (host.clone(), facts)
    };
    (!are_all).then(|| survey.iter().map(kept).collect())
}
