//! A host leaves the cluster: the others record where its shards are now, and that it is no longer
//! a host.

use std::collections::BTreeSet;

use futures_util::future::{BoxFuture, join_all};

use super::bootstrap::write_record;
use super::fault::HostFault;
use super::redirect;
use super::session::{self, flush, lock, read};
use crate::map::HostName;
use crate::pg::cause::chain;
use crate::pg::{ConnectOptions, Connection, HostState};
use crate::schema::control::Cluster;
use crate::schema::survey::facts::{HostFacts, Survey};
use crate::schema::survey::host_records::{self, HostRecords};
use crate::schema::survey::refusal::pending;
use crate::shard::ShardId;

/// What a host had and no longer has.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissingShards {
    /// The shards.
    pub shards: Vec<ShardId>,
    /// A host with a record of it.
    pub by: HostName,
}

/// The shards that were last on this host and are nowhere now, by the records of the others. Pure.
pub fn missing_shards(survey: &Survey, host: &HostName) -> Option<MissingShards> {
    HostRecords::of_survey(survey)
        .missing_shards(host)
        .map(|(shards, by)| MissingShards {
            shards,
            by: by.clone(),
        })
}

/// Makes all hosts but one forget that one, which is among them, and leads their signposts that
/// lead there to where the shards are. Under the lock of bootstraps and migrations. A host that has
/// a shard, or is getting one, is not forgotten: [`HostFault::HasShards`].
///
/// The hosts that could not be changed, each with the reason. Then none was changed, unless a
/// connection was lost at the very end.
///
/// # Cancel safety
/// Each host's record is written in one transaction; call it again for the rest.
pub fn forget<'a>(
    cluster: &'a Cluster,
    hosts: &'a [(HostName, ConnectOptions)],
    gone: &'a HostName,
) -> BoxFuture<'a, Result<(), Vec<(HostName, HostFault)>>> {
    Box::pin(async move {
        let mut hosts: Vec<_> = hosts.iter().collect();
        hosts.sort_by(|a, b| a.0.cmp(&b.0));
        let opened = join_all(
            hosts
                .iter()
                .map(|(_, connect)| session::open(connect, "pgshard host")),
        )
        .await;
        let (mut good, mut faults): (Vec<(&HostName, Connection, HostFacts)>, Vec<_>) =
            (Vec::new(), Vec::new());
        // One host after the other, by name, as bootstrap does: so two cannot wait for each other
        // in a circle.
        for ((name, _), session) in hosts.iter().zip(opened) {
            match lock_and_read(session, cluster, name).await {
                Ok((session, facts)) => good.push((name, session, facts)),
                // It may be gone already, or have no control schema. One that answers with an error
                // may have shards.
                Err(fault)
                    if name == gone
                        && (fault == HostFault::NotBootstrapped
                            || fault.host_state().may_be_gone()) => {}
                Err(fault) => faults.push((name.clone(), fault)),
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        // The caller has checked before, and a move may have started since.
        let here = shards_on(gone, &good);
        if !here.is_empty() {
            return Err(vec![(gone.clone(), HostFault::HasShards(here))]);
        }
        let said = good
            .iter()
            .filter_map(|(name, _, facts)| Some((*name, facts.control.as_ref()?)));
        let record = host_records::record(said.clone(), &BTreeSet::from([gone.clone()]));
        let mut led_on = Vec::new();
        for (name, session, facts) in good.iter().filter(|(name, ..)| *name != gone) {
            let Some(control) = &facts.control else {
                continue;
            };
            let found = redirect::redirects(control, said.clone(), |peer| peer == gone);
            if found.unknown.is_empty() {
                led_on.push((*name, session, found.redirects));
            } else {
                faults.push((
                    (*name).clone(),
                    HostFault::LeadsTo(gone.clone(), found.unknown),
                ));
            }
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        for (name, session, redirects) in led_on {
            let written = async {
                let led_on = redirect::lead_on(session, &redirects).await;
                led_on.map_err(|error| HostFault::unanswered(&error))?;
                write_record(session, &record).await
            };
            if let Err(fault) = written.await {
                faults.push((name.clone(), fault));
            }
        }
        if faults.is_empty() {
            faults.extend(claimed_meanwhile(&good, gone).await);
        }
        if !faults.is_empty() {
            return Err(faults);
        }
        for (name, session, _) in good.iter().filter(|(name, ..)| *name != gone) {
            if let Err(fault) = flush(session).await {
                faults.push(((*name).clone(), fault));
            }
        }
        if faults.is_empty() {
            Ok(())
        } else {
            Err(faults)
        }
    })
}

/// Looks again for shards that are to go to a host, now that no other claim can come: it would wait
/// for the rows that were deleted, and find none. The one before it was waited for.
async fn claimed_meanwhile(
    read: &[(&HostName, Connection, HostFacts)],
    gone: &HostName,
) -> Vec<(HostName, HostFault)> {
    let mut here = Vec::new();
    for (name, session, _) in read {
        let sql = "SELECT shard_id FROM pgshard.move
            WHERE target = $1 AND phase NOT IN ('kept', 'completed', 'aborted') ORDER BY 1";
        let rows = match session.query(sql, &[&gone.as_str()]).await {
            Ok(rows) => rows,
            Err(error) => {
                return vec![((*name).clone(), HostFault::unanswered(&error))];
            }
        };
        for row in &rows {
            // Never counted as no claim: a host that cannot be read may have one.
            let shard = row.try_get::<_, i32>(0).map_err(|error| chain(&error));
            match shard
                .and_then(|shard| ShardId::try_from(shard).map_err(|error| error.to_string()))
            {
                Ok(shard) => here.push(shard),
                Err(reason) => {
                    let state = HostState::AnswersWithError;
                    return vec![((*name).clone(), HostFault::Unread { state, reason })];
                }
            }
        }
    }
    if here.is_empty() {
        Vec::new()
    } else {
        vec![(gone.clone(), HostFault::HasShards(here))]
    }
}

/// The shards that a host has or is getting: by its own rows, or, if it is not among those that
/// were read, by those of the others. A move that has only just claimed its shards is known to
/// their sources alone.
fn shards_on(host: &HostName, read: &[(&HostName, Connection, HostFacts)]) -> Vec<ShardId> {
    let own = read
        .iter()
        .filter(|(name, ..)| *name == host)
        .filter_map(|(_, _, facts)| facts.control.as_ref());
    let mut here: BTreeSet<ShardId> = BTreeSet::new();
    for control in own {
        let owned = control
            .shards
            .iter()
            .filter(|(_, row)| row.state.is_owner());
        here.extend(
            owned
                .map(|(shard, _)| *shard)
                .chain(control.incoming.keys().copied()),
        );
    }
    for (_, _, facts) in read {
        let open = facts.control.iter().flat_map(|control| &control.open_moves);
        here.extend(
            open.filter(|(_, open)| open.target == *host)
                .map(|(shard, _)| *shard),
        );
    }
    let known = HostRecords::of(read.iter().map(|(name, _, facts)| (*name, Some(facts))));
    here.extend(
        known
            .missing_shards(host)
            .map(|(shards, _)| shards)
            .unwrap_or_default(),
    );
    here.into_iter().collect()
}

/// Locks a host and reads it, if it is as it should be.
async fn lock_and_read(
    session: Result<Connection, HostFault>,
    cluster: &Cluster,
    name: &HostName,
) -> Result<(Connection, HostFacts), HostFault> {
    let session = lock(session?).await?;
    let facts = read(&session)
        .await
        .map_err(|error| HostFault::unread(&error))?;
    match pending(&facts, cluster, name) {
        Err(refusals) => Err(HostFault::Refused(refusals)),
        Ok(steps) if steps.is_empty() && facts.control.is_some() => Ok((session, facts)),
        Ok(_) => Err(HostFault::NotBootstrapped),
    }
}
