//! How long a new map takes from the publication to every router of a fleet: 100 routers in one
//! process, each with a connection of its own to the control database, notified by LISTEN; and for
//! comparison the same fleet that only polls.
//!
//! `cargo bench --bench fleet`. The time counts from before the publication connects until a router
//! routes by the new map.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use pgshard::dev::{Binaries, Cluster, ClusterOptions};
use pgshard::map::{Changes, HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::router::{HostOptions, Options};
use pgshard::store::postgres::Follow;
use pgshard::store::{MapStore, MapWatch, PostgresStore};
use pgshard::{Router, ShardCount, ShardId};

const ROUTERS: usize = 100;
const SHARDS: u32 = 8192;
const TOLD_ROUNDS: u32 = 20;
const POLLED_ROUNDS: u32 = 3;

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let binaries = Binaries::first()?;
    println!("{}, {ROUTERS} routers, {SHARDS} shards", binaries.version());
    let options = ClusterOptions::new(1, binaries);
    let cluster = tokio::task::block_in_place(|| Cluster::start(&options))?;
    let connect = ConnectOptions::parse(&cluster.servers()[0].url())?;
    let shards = ShardCount::new(SHARDS).ok_or("a number of shards")?;
    let first = ShardMap::new(
        MapVersion::FIRST,
        shards,
        shards.iter().map(|shard| (shard, place(0, 1))),
    )
    .map_err(|_| "a map")?;
    let store = PostgresStore::new(connect.clone(), shards);
    store.install(&first).await?;

    told(&store, &connect, "told by LISTEN", TOLD_ROUNDS).await?;
    let polling = store.clone().with_follow(Follow::Polling);
    told(
        &polling,
        &connect,
        "polling alone, every 5 s",
        POLLED_ROUNDS,
    )
    .await
}

fn place(host: usize, epoch: u32) -> Placement {
    let name = format!("db{}", host + 1);
    Placement {
        host: HostName::new(&name).expect("db and a number is a host name"),
        epoch: ShardEpoch::new(epoch).expect("an epoch is at least 1"),
    }
}

/// Publishes so many maps, and prints the median and the longest time over all routers and rounds.
async fn told(
    store: &PostgresStore,
    connect: &ConnectOptions,
    what: &str,
    rounds: u32,
) -> Outcome<()> {
    let routers = try_join_all((0..ROUTERS).map(|_| router(store, connect))).await?;
    let mut times = Vec::new();
    for _ in 0..rounds {
        let kept = store.load().await?;
        let shard = ShardId::new(fastrand::u16(..SHARDS as u16)).ok_or("a shard")?;
        let epoch = kept.epoch(shard).ok_or("an epoch")?.get() + 1;
        let newer = kept.merged(&Changes::from_iter([(
            shard,
            place(epoch as usize % 4, epoch),
        )]));
        let began = Instant::now();
        let waiting: Vec<_> = routers
            .iter()
            .map(|(router, watch)| {
                tokio::spawn(arrived(
                    router.clone(),
                    watch.clone(),
                    kept.version().next(),
                    began,
                ))
            })
            .collect();
        store.publish(kept.version(), &newer).await?;
        for one in waiting {
            times.push(one.await?);
        }
    }
    times.sort_unstable();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    let (median, slow, longest) = (
        times[times.len() / 2],
        times[times.len() * 99 / 100],
        times[times.len() - 1],
    );
    println!(
        "{what:26} median {:8.1} ms   99 % {:8.1} ms   longest {:8.1} ms",
        ms(median),
        ms(slow),
        ms(longest)
    );
    Ok(())
}

async fn router(store: &PostgresStore, connect: &ConnectOptions) -> Outcome<(Router, MapWatch)> {
    // A store of its own, and so a connection.
    let watch = store.clone().watch().await?;
    let host = |at| HostOptions::new(place(at, 1).host, connect.clone(), 1);
    let router = Router::new(Options::new((0..4).map(host).collect(), watch.current()));
    router.follow(watch.clone());
    Ok((router, watch))
}

/// How long after `began` the router has this version.
async fn arrived(
    router: Router,
    mut watch: MapWatch,
    version: MapVersion,
    began: Instant,
) -> Duration {
    while watch.current().version() < version {
        let _: Option<Arc<ShardMap>> = watch.changed().await;
    }
    while router.map().version() < version {
        tokio::task::yield_now().await;
    }
    began.elapsed()
}
