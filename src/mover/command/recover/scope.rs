//! Which shards a host that was set back is concerned with, and which of them are unclear: by a
//! survey alone. Pure.

use std::collections::{BTreeMap, BTreeSet};

use crate::map::HostName;
use crate::schema::{ControlFacts, HostFacts, ShardRow, ShardState, Survey, missing_shards};
use crate::shard::ShardId;

/// Every row of a shard, with the host that has it.
pub(super) type Rows<'a> = BTreeMap<ShardId, Vec<(&'a HostName, &'a ShardRow)>>;

pub(super) fn controls(
    survey: &Survey,
) -> impl Iterator<Item = (&HostName, &HostFacts, &ControlFacts)> {
    survey.iter().filter_map(|(host, facts)| {
        let facts = facts.as_ref().ok()?;
        Some((host, facts, facts.control.as_ref()?))
    })
}

pub(super) fn rows(survey: &Survey) -> Rows<'_> {
    let mut rows = Rows::new();
    for (host, _, control) in controls(survey) {
        for (shard, row) in &control.shards {
            rows.entry(*shard).or_default().push((host, row));
        }
    }
    rows
}

/// The one host that serves the shard by its own row, if no host knows of anything later.
pub(super) fn calm_owner<'a>(said: &[(&'a HostName, &'a ShardRow)]) -> Option<&'a HostName> {
    let mut owners = said.iter().filter(|(_, row)| row.state.is_owner());
    let (owner, own) = owners.next()?;
    let fits = |(_, row): &(&HostName, &ShardRow)| {
        row.epoch < own.epoch || (row.epoch == own.epoch && row.peer.as_ref() == Some(*owner))
    };
    let calm = owners.next().is_none() && said.iter().filter(|(host, _)| host != owner).all(fits);
    calm.then_some(*owner)
}

/// The shards that the host has facts about, or that others record as its own.
pub(super) fn concerned(host: &HostName, survey: &Survey) -> BTreeSet<ShardId> {
    let names = |said: &[(&HostName, &ShardRow)]| {
        said.iter().any(|(by, row)| {
            *by == host || (row.state == ShardState::Moved && row.peer.as_ref() == Some(host))
        })
    };
    let all = rows(survey)
        .into_iter()
        .filter(|(_, said)| names(said))
        .map(|(shard, _)| shard);
    all.chain(
        missing_shards(survey, host)
            .into_iter()
            .flat_map(|lost| lost.shards),
    )
    .collect()
}

/// Those of them for which it is not clear which host serves them.
pub(super) fn contradictory(host: &HostName, survey: &Survey) -> BTreeSet<ShardId> {
    let all = rows(survey);
    let clear = |shard: &ShardId| {
        all.get(shard)
            .is_some_and(|said| calm_owner(said).is_some())
    };
    concerned(host, survey)
        .into_iter()
        .filter(|shard| !clear(shard))
        .collect()
}

/// The shards that a host serves and no other host claims.
pub(super) fn served(host: &HostName, survey: &Survey) -> BTreeSet<ShardId> {
    let all = rows(survey);
    let served = all
        .iter()
        .filter(|(_, said)| calm_owner(said) == Some(host));
    served.map(|(shard, _)| *shard).collect()
}

/// Those of the shards that a host serves of which another host has kept its rows.
pub(super) fn kept_elsewhere(host: &HostName, survey: &Survey) -> BTreeSet<ShardId> {
    let Some(Ok(HostFacts {
        control: Some(own), ..
    })) = survey.get(host)
    else {
        return BTreeSet::new();
    };
    let kept = |shard: &ShardId| {
        let Some(row) = own.shards.get(shard) else {
            return false;
        };
        let left = format!("{}__left_e", row.schema);
        let others = controls(survey).filter(|(other, ..)| *other != host);
        others.into_iter().any(|(_, facts, _)| {
            facts
                .of_moves
                .schemas
                .iter()
                .any(|schema| schema.starts_with(&left))
        })
    };
    served(host, survey).into_iter().filter(kept).collect()
}
