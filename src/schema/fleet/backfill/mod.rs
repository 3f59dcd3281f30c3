//! Backfills: a statement over the rows of a table in every shard, one range of keys after the
//! other, while the application works.
//!
//! Each range is a short transaction, which also writes the record of the progress; it has as many
//! rows as fit in the time that a range should take. It waits when standbys fall behind, and keeps
//! to a rate. If a shard moves during the backfill, the work continues at its new host; if one
//! fails, it is reported, and the others continue. A second run does only what is left.
//!
//! Invariant: each range is run once. If the statement was edited after its beginning, it is not
//! run.

mod host;
mod read;
mod report;
mod request;
pub(in crate::schema) mod shard;
mod text;
mod throttle;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use uuid::Uuid;

use super::fault::HostFault;
use crate::map::HostName;
use crate::shard::ShardId;

pub use read::{HostProgress, Progress, progress};
pub use report::{BackfillError, BackfillFault, Event, Observer, Report};
pub use request::{Pace, Request};
pub use text::{Backfill, BackfillMistake};

/// Runs the ranges that are left, in all shards.
///
/// # Errors
/// When shards have begun it with another statement, table or key. Then nothing was run.
///
/// # Cancel safety
/// Dropping the future closes the connections. A range that is running takes effect whole or not at
/// all; run it again for the rest.
pub fn backfill<'a>(
    request: &'a Request,
    observer: Observer<'a>,
) -> BoxFuture<'a, Result<Report, BackfillError>> {
    Box::pin(async move {
        let is_wanted = |shard: &ShardId| {
            request
                .only_shards
                .as_ref()
                .is_none_or(|only| only.contains(shard))
        };
        let read = read_settled(request, is_wanted).await;
        let own = |all: &[Progress]| {
            all.iter()
                .find(|one| one.name == request.backfill.name())
                .cloned()
        };
        let (mut to_do, mut edited, mut report) = (
            BTreeMap::<HostName, Vec<ShardId>>::new(),
            Vec::new(),
            Report::default(),
        );
        let (mut served, mut unchanged) = (BTreeSet::new(), BTreeMap::<&HostName, usize>::new());
        for (host, read) in &read {
            let read = match read {
                Ok(read) => read,
                Err(fault) => {
                    report.silent.insert(host.clone(), fault.clone());
                    continue;
                }
            };
            for (shard, all) in read.shards.iter().filter(|(shard, _)| is_wanted(shard)) {
                // Each shard counts once: it may have moved between two readings.
                if !served.insert(*shard) {
                    continue;
                }
                match own(all) {
                    Some(one) if one.checksum != request.backfill.checksum() => edited.push(*shard),
                    Some(one) if one.finished => *unchanged.entry(host).or_default() += 1,
                    _ => to_do.entry(host.clone()).or_default().push(*shard),
                }
            }
        }
        if !edited.is_empty() {
            edited.sort_unstable();
            return Err(BackfillError::Edited {
                name: request.backfill.name().to_owned(),
                shards: edited,
            });
        }
        let silent: Vec<String> = report.silent.keys().map(ToString::to_string).collect();
        for shard in request
            .cluster
            .shards
            .iter()
            .filter(|shard| is_wanted(shard) && !served.contains(shard))
        {
            report.left.insert(
                shard,
                BackfillFault::Unserved {
                    silent: silent.clone(),
                },
            );
        }
        report.unchanged = unchanged.values().sum();
        report_plan(&read, &to_do, &unchanged, observer);
        let work = host::Work::new(request, to_do, report, observer);
        let of_host = request
            .hosts
            .iter()
            .flat_map(|host| std::iter::repeat_n(host, request.pace.width.get()));
        join_all(of_host.map(|(host, connect)| work.work(host, connect))).await;
        Ok(work.report())
    })
}

/// The progress everywhere. A shard that no host owns for a moment, between two hosts, is waited
/// for.
async fn read_settled(
    request: &Request,
    is_wanted: impl Fn(&ShardId) -> bool,
) -> BTreeMap<HostName, Result<HostProgress, HostFault>> {
    let mut tries = 0;
    loop {
        let read = read::progress_in(&request.cluster, &request.hosts).await;
        let owned: BTreeSet<ShardId> = read
            .values()
            .flatten()
            .flat_map(|host| host.shards.keys().copied())
            .collect();
        let misses = request
            .cluster
            .shards
            .iter()
            .any(|shard| is_wanted(&shard) && !owned.contains(&shard));
        tries += 1;
        if !misses || tries == SETTLES || read.values().any(Result::is_err) {
            return read;
        }
        tokio::time::sleep(SETTLE).await;
    }
}

/// How often the hosts are read when a shard is between two hosts, and the pause after each time.
const SETTLES: usize = 5;
const SETTLE: Duration = Duration::from_millis(200);

/// Reports what there is to do, and which moves can no longer be rolled back because of it.
fn report_plan(
    read: &BTreeMap<HostName, Result<HostProgress, HostFault>>,
    to_do: &BTreeMap<HostName, Vec<ShardId>>,
    unchanged: &BTreeMap<&HostName, usize>,
    observer: Observer<'_>,
) {
    let answered = || {
        read.iter()
            .filter_map(|(host, read)| Some((host, read.as_ref().ok()?)))
    };
    let without: BTreeSet<ShardId> = answered()
        .flat_map(|(host, read)| {
            to_do
                .get(host)
                .into_iter()
                .flatten()
                .filter(|shard| read.without.contains(shard))
        })
        .copied()
        .collect();
    let mut ended: BTreeMap<Uuid, Vec<ShardId>> = BTreeMap::new();
    for (shard, way) in answered()
        .flat_map(|(_, read)| &read.open_rollbacks)
        .filter(|(shard, _)| without.contains(shard))
    {
        ended.entry(*way).or_default().push(*shard);
    }
    for (move_id, shards) in ended {
        observer(Event::EndsWayBack { move_id, shards });
    }
    for (host, _) in answered() {
        let to_do = to_do.get(host).map_or(0, Vec::len);
        observer(Event::Planned {
            host,
            to_do,
            unchanged: unchanged.get(host).copied().unwrap_or(0),
        });
    }
}
