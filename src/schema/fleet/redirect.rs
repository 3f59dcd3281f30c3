//! Signposts that lead to a host which leaves the cluster are led to where the shard is. The
//! decision is pure.

use tokio_postgres::Client;

use crate::map::{HostName, ShardEpoch};
use crate::schema::survey::facts::{ControlFacts, ShardState};
use crate::shard::ShardId;

/// A signpost, and where it should lead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::schema) struct Redirect {
    shard: ShardId,
    /// The host that it leads to.
    gone: HostName,
    /// Where the shard is.
    to: HostName,
    /// Since which epoch.
    epoch: ShardEpoch,
}

/// What to do with the signposts of a host, and those of which no host knows where the shard is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::schema) struct Redirects {
    pub(in crate::schema) redirects: Vec<Redirect>,
    pub(in crate::schema) unknown: Vec<ShardId>,
}

/// The signposts of a host that lead to one of those that `leaves` names. `all` are all hosts that
/// were read.
pub(in crate::schema) fn redirects<'a>(
    own: &ControlFacts,
    all: impl Iterator<Item = (&'a HostName, &'a ControlFacts)> + Clone,
    leaves: impl Fn(&HostName) -> bool,
) -> Redirects {
    let mut found = Redirects::default();
    for (shard, row) in &own.shards {
        let Some(gone) = row.peer.as_ref().filter(|peer| leaves(peer)) else {
            continue;
        };
        if row.state != ShardState::Moved {
            continue;
        }
        let claims = all.clone().filter_map(|(host, control)| {
            let row = control.shards.get(shard)?;
            let owner = match row.state {
                ShardState::Serving | ShardState::Fenced => host,
                ShardState::Moved => row.peer.as_ref().filter(|peer| !leaves(peer))?,
            };
            Some((row.epoch, owner))
        });
        match claims.filter(|(epoch, _)| *epoch > row.epoch).max() {
            Some((epoch, to)) => found.redirects.push(Redirect {
                shard: *shard,
                gone: gone.clone(),
                to: to.clone(),
                epoch,
            }),
            None => found.unknown.push(*shard),
        }
    }
    found
}

/// Redirects signposts of a host to where their shards are. Those that have changed since are not
/// touched.
///
/// Locks: as documented at pgshard.redirect, until the caller's transaction ends.
///
/// # Errors
/// When a statement fails.
pub(in crate::schema) async fn lead_on(
    client: &Client,
    redirects: &[Redirect],
) -> Result<(), tokio_postgres::Error> {
    for Redirect {
        shard,
        gone,
        to,
        epoch,
    } in redirects
    {
        let sql = "SELECT pgshard.redirect($1, $2, $3, $4)";
        let (shard, epoch) = (shard.as_i32(), epoch.as_i32());
        client
            .execute(sql, &[&shard, &gone.as_str(), &to.as_str(), &epoch])
            .await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tables::{host, survey_of};

    #[test]
    fn a_signpost_is_led_to_the_latest_host() {
        let survey = survey_of(&[
            (
                "db1",
                "0 moved 2 db4, 1 moved 2 db4, 2 moved 2 db4, 3 moved 2 db2, 4 serving 1",
            ),
            ("db2", "0 moved 3 db3, 3 serving 2"),
            ("db3", "0 serving 3, 1 serving 3"),
            ("db4", "2 serving 2, 1 moved 3 db3"),
        ]);
        let control = |name: &str| {
            survey[&host(name)]
                .as_ref()
                .unwrap()
                .control
                .as_ref()
                .unwrap()
        };
        let all = ["db1", "db2", "db3", "db4"].map(|name| (host(name), control(name)));
        let all = || all.iter().map(|(name, control)| (name, *control));
        let found = redirects(control("db1"), all(), |peer| *peer == host("db4"));
        let told = |one: &Redirect| format!("{} {} {}", one.shard, one.to, one.epoch);
        let told: Vec<String> = found.redirects.iter().map(told).collect();
        assert_eq!(told, ["0 db3 3", "1 db3 3"]);
        assert_eq!(found.unknown, [ShardId::new(2).unwrap()]);
    }
}
