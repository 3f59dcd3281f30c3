//! A network in the middle: it is slow, falls silent, loses bytes so that connections are half
//! open, and resets them, while movers and routers are at work.

use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::store::MapStore;

use super::moves::Application;
use super::*;
use crate::support::Writers;
use crate::support::proxy::{Proxy, Weather};

/// What befalls the way to one host.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Half open, and well again after this.
    Lost(Duration),
    Silent(Duration),
    Slow(Duration),
    /// Connections are reset after so many bytes.
    Reset(u32),
}

/// A cluster of which both hosts are reached through a network.
struct Far {
    world: World,
    ways: [Proxy; 2],
}

impl Far {
    async fn new(version: u32) -> Far {
        let world = World::new(&[version, version], 4).await;
        let [first, second] = [0, 1].map(|host| world.servers.server(host).port());
        let ways = [Proxy::to(first).await, Proxy::to(second).await];
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let config = through(&through(&config, first, ways[0].port), second, ways[1].port);
        world.write(
            "pgshard.toml",
            &format!("{config}\n[router]\nstatement_timeout_ms = 2000\n"),
        );
        Far { world, ways }
    }

    /// Lets it befall the way to a host.
    async fn befalls(&self, host: usize, fault: Fault) {
        let way = &self.ways[host];
        let (weather, lasts) = match fault {
            Fault::Lost(lasts) => (Weather::Lost, lasts),
            Fault::Silent(lasts) => (Weather::Silent, lasts),
            Fault::Slow(pause) => (Weather::Slow(pause), Duration::from_secs(3)),
            Fault::Reset(bytes) => return way.reset_after(bytes),
        };
        way.turns(weather);
        tokio::time::sleep(lasts).await;
        way.turns(Weather::Fair);
    }

    /// A command, while something befalls the way to a host after a while.
    async fn run(&self, args: &[&str], seed: u64) -> Ran {
        let mut rng = Rng::with_seed(seed);
        let (host, after) = (rng.usize(..2), Duration::from_millis(rng.u64(50..1500)));
        let fault = fault(&mut rng);
        let story = format!(
            "seed {seed}: {args:?}, {fault:?} on the way to db{} after {after:?}",
            host + 1
        );
        eprintln!("{story}");
        let begun = Instant::now();
        let strike = async {
            tokio::time::sleep(after).await;
            self.befalls(host, fault).await;
        };
        let ran = async { tokio::time::timeout(ENDS_WITHIN, self.world.run(args)).await };
        let (ran, ()) = tokio::join!(ran, strike);
        self.ways.iter().for_each(|way| way.reset_after(u32::MAX));
        let ran = ran.unwrap_or_else(|_| panic!("{story}: it does not end"));
        eprintln!("  {} in {:?}", ran.code(), begun.elapsed());
        assert!(
            [0, 1, 2, 4, 5, 7, 8].contains(&ran.code()),
            "{story}: {}\n{}",
            ran.code(),
            ran.stderr
        );
        ran
    }
}

fn fault(rng: &mut Rng) -> Fault {
    match rng.u8(..4) {
        0 => Fault::Lost(Duration::from_millis(rng.u64(500..9000))),
        1 => Fault::Silent(Duration::from_millis(rng.u64(500..9000))),
        2 => Fault::Slow(Duration::from_millis(rng.u64(1..20))),
        _ => Fault::Reset(rng.u32(..20_000)),
    }
}

/// Moves shard 0 there and back, each with a fault; at times back by a rollback.
async fn moves(version: u32, mode: &str, few: Range<u64>) {
    let far = Far::new(version).await;
    for seed in seeds(few) {
        let application = Application::start(&far.world).await;
        let to = format!("db{}", 2 - far.world.host_of(0));
        let mut ran = far
            .run(&["move", "0", "--to", &to, "--mode", mode, "--yes"], seed)
            .await;
        far.world.end_moves().await;
        if mode == "online" && seed % 2 == 0 && ran.code() == 0 {
            let id = ran.id();
            ran = far
                .run(&["moves", "rollback", &id, "--yes"], seed + 1)
                .await;
            far.world.end_moves().await;
        }
        let written = application.stop().await;
        far.world
            .has(written, &format!("{}\n{}", ran.stdout, ran.stderr))
            .await;
    }
}

on_each_version! {
    /// A move of an open shard ends, or waits for a resume; nothing is lost or doubled.
    async fn under_online_moves(version) {
        moves(
            version,
            "online",
            u64::from(version)..u64::from(version) + 2,
        )
        .await;
    }

    async fn under_blocking_moves(version) {
        moves(
            version,
            "blocking",
            u64::from(version) + 20..u64::from(version) + 22,
        )
        .await;
    }

    /// Old copies are fed by one command all the while. They get every change, and so does a
    /// rollback of the shard.
    async fn under_a_feed(version) {
        let far = Far::new(version).await;
        for seed in seeds(u64::from(version)..u64::from(version) + 1) {
            let mut rng = Rng::with_seed(seed);
            let args = ["move", "0", "--to", "db2", "--mode", "online", "--yes"];
            let id = far.world.run(&args).await.ended(0).id();
            let epoch = far
                .world
                .published()
                .epoch(ShardId::new(0).unwrap())
                .unwrap()
                .as_i32()
                - 1;
            let application = Application::start(&far.world).await;
            let mut feed = far
                .world
                .command(&["moves", "feed"], &[("PGSHARD_LEASE_MS", "2000")])
                .spawn()
                .unwrap();
            for host in [1, 0, 1] {
                let fault = fault(&mut rng);
                eprintln!(
                    "seed {seed}: {fault:?} on the way to db{} of a feed",
                    host + 1
                );
                tokio::time::sleep(Duration::from_millis(300)).await;
                far.befalls(host, fault).await;
            }
            far.ways.iter().for_each(|way| way.reset_after(u32::MAX));
            let written = application.stop().await;
            let (old, new) = (
                far.world.servers.app(0).await,
                far.world.servers.app(1).await,
            );
            let fed = async {
                let users = |schema: &str| {
                    format!(
                        "SELECT id || name FROM {schema}.users ORDER BY \
                    id"
                    )
                };
                let (there, here) = (
                    users("shard_0000"),
                    users(&format!("shard_0000__left_e{epoch}")),
                );
                while lines(&new, &there).await != lines(&old, &here).await {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let begun = Instant::now();
            tokio::time::timeout(ENDS_WITHIN, fed)
                .await
                .expect("the old copy gets what it lacks");
            eprintln!("  all there after {:?}", begun.elapsed());
            assert_eq!(feed.try_wait().unwrap(), None, "it feeds on");
            feed.kill().await.unwrap();
            let back = far.world.run(&["moves", "rollback", &id, "--yes"]).await;
            far.world.end_moves().await;
            far.world
                .has(written, &format!("{}\n{}", back.stdout, back.stderr))
                .await;
        }
    }

    /// The database that keeps the map is reached through the network: a router learns of each new
    /// map after the fault, whatever became of its LISTEN and of the notification.
    async fn routers_learn_each_map_over_a_bad_network(version) {
        let far = Far::new(version).await;
        let keys = "?sslmode=disable&connect_timeout=3&keepalives_idle=2&keepalives_interval=1";
        let near = far.world.servers.server(0).url();
        let to = near.replace(
            &format!(":{}/", far.world.servers.server(0).port()),
            &format!(":{}/", far.ways[0].port),
        );
        let text = std::fs::read_to_string(&far.world.config.path).unwrap();
        let (head, _) = text.split_once("[map]").unwrap();
        let fleet = |url: &str| format!("{head}\n[map]\nstore = \"postgres\"\nurl = \"{url}\"\n");
        let file = far.world.config.path.to_str().unwrap();
        let by_hand = far.world.write("near.toml", &fleet(&near));
        far.world
            .run(&["--config", by_hand.to_str().unwrap(), "map", "import", file])
            .await
            .ended(0);
        let router = pgshard::connect(
            far.world
                .write("fleet.toml", &fleet(&format!("{to}{keys}"))),
        )
        .await
        .unwrap();
        let store = Config::load(&by_hand).unwrap().map_store();
        let publish = async || {
            let map = store.load().await.unwrap();
            let next = map.with_version(map.version().next());
            store.publish(map.version(), &next).await.unwrap();
            next.version()
        };
        let learns = async |version, story: &str| {
            let begun = Instant::now();
            let learned = async {
                while router.map().version() < version {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            tokio::time::timeout(ENDS_WITHIN, learned)
                .await
                .unwrap_or_else(|_| {
                    panic!(
                        "{story}: \
                it never learns"
                    )
                });
            eprintln!("{story}: learned after {:?}", begun.elapsed());
        };
        learns(publish().await, "fair weather").await;
        for fault in [
            Fault::Slow(Duration::from_millis(20)),
            Fault::Silent(Duration::from_secs(7)),
            Fault::Lost(Duration::from_millis(200)),
            Fault::Lost(Duration::from_secs(7)),
            Fault::Reset(0),
            Fault::Reset(3),
            Fault::Reset(40),
        ] {
            let story = format!("{fault:?}");
            let (version, ()) = tokio::join!(
                async {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    publish().await
                },
                far.befalls(0, fault),
            );
            learns(version, &story).await;
            // It is notified again, and does not only poll.
            learns(publish().await, &format!("{story}, after it")).await;
        }
        far.ways[0].reset_after(u32::MAX);
        router.close(Duration::from_secs(1)).await;
    }

    /// Calls of routers end, and what they report as done is done, once.
    async fn calls_end_over_a_bad_network(version) {
        let far = Far::new(version).await;
        let writers = Writers::start(&far.world, 4).await;
        for seed in seeds(u64::from(version)..u64::from(version) + 3) {
            let mut rng = Rng::with_seed(seed);
            let (host, fault) = (rng.usize(..2), fault(&mut rng));
            eprintln!("seed {seed}: {fault:?} on the way to db{}", host + 1);
            far.befalls(host, fault).await;
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let notes = tokio::time::timeout(ENDS_WITHIN, writers.stop())
            .await
            .expect("calls end");
        notes.tolerably();
        far.world.audit(&notes).await;
    }
}
