//! What happens to the servers, and on the way to them, while callers are at work.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use fastrand::Rng;
use pgshard::dev::StopMode;
use tokio_postgres::{Client, NoTls};

use super::by_hand::Shards;
use super::case::Case;
use super::proxy::Proxy;

pub(crate) const FATES: [&str; 7] = [
    "kill", "silent", "lock", "slow", "move", "restart", "failover",
];

/// The fates that excuse a connection too many: a server that does not answer ends no connection.
pub(crate) const EXCUSES: [&str; 3] = ["silent", "restart", "failover"];

/// The servers, and the proxies in front of them.
pub(crate) struct Place {
    pub(crate) shards: Shards,
    pub(crate) proxies: Vec<Proxy>,
    /// The server that each host is at present.
    homes: [AtomicUsize; 2],
    /// The host that has a standby; the standby has everything that the host has acknowledged.
    standby: Option<usize>,
}

/// The third server.
const SPARE: usize = 2;

impl Place {
    pub(crate) async fn start(version: u32, shards: u16, standby: Option<usize>) -> Place {
        let shards = Shards::start_beside(version, shards, usize::from(standby.is_some())).await;
        if let Some(host) = standby {
            tokio::task::block_in_place(|| shards.cluster.make_standby(version, SPARE, host));
            let primary = shards.cluster.superuser(host).await;
            for sql in [
                "ALTER SYSTEM SET synchronous_standby_names = '*'",
                "SELECT pg_reload_conf()",
            ] {
                primary.batch_execute(sql).await.expect("a superuser may");
            }
            let sql = "SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'sync'";
            while primary
                .query_one(sql, &[])
                .await
                .expect("it answers")
                .get::<_, i64>(0)
                == 0
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        let mut proxies = Vec::new();
        for host in 0..2 {
            proxies.push(Proxy::to(shards.cluster.server(host).port()).await);
        }
        Place {
            shards,
            proxies,
            homes: [AtomicUsize::new(0), AtomicUsize::new(1)],
            standby,
        }
    }

    /// Which server the host is at present.
    pub(crate) fn home(&self, host: usize) -> usize {
        self.homes[host].load(Ordering::Relaxed)
    }

    pub(crate) async fn app(&self, host: usize) -> Client {
        self.shards.cluster.app(self.home(host)).await
    }

    /// The primary dies, its standby is promoted, and the host's address leads there.
    async fn fail_over(&self, host: usize) {
        self.shards
            .cluster
            .server(host)
            .stop(StopMode::Immediate)
            .expect("the server stops");
        let promote = "SELECT pg_promote(true, 60)";
        let standby = self.shards.cluster.superuser(SPARE).await;
        assert!(
            standby
                .query_one(promote, &[])
                .await
                .expect("a superuser may")
                .get::<_, bool>(0)
        );
        self.homes[host].store(SPARE, Ordering::Relaxed);
        self.proxies[host].lead_to(self.shards.cluster.server(SPARE).port());
    }
}

/// Runs fates one after the other, until the callers are done.
pub(crate) async fn play(
    case: &Case,
    place: &Place,
    done: &AtomicBool,
    mut rng: Rng,
) -> Vec<String> {
    let Place {
        shards, proxies, ..
    } = place;
    let mut story = Vec::new();
    let mut fates = case.of_these(&FATES);
    if place.standby.is_none() {
        fates.retain(|fate| *fate != "failover");
    }
    let mut unmoved: Vec<u16> = (0..8).collect();
    while !done.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(rng.u64(20..200))).await;
        if fates.is_empty() {
            continue;
        }
        let (fate, host) = (fates[rng.usize(..fates.len())], rng.usize(..2));
        story.push(format!("{fate} db{}", host + 1));
        match fate {
            "kill" => kill(place, host).await,
            "silent" => {
                proxies[host].fall_silent();
                tokio::time::sleep(Duration::from_millis(rng.u64(20..800))).await;
                proxies[host].speak_again();
            }
            "lock" | "slow" => {
                hold(place, host, fate, Duration::from_millis(rng.u64(20..800))).await
            }
            "move" if unmoved.is_empty() => fates.retain(|fate| *fate != "move"),
            "move" => {
                let number = unmoved.swap_remove(rng.usize(..unmoved.len()));
                let moving = shards.prepare(number, usize::from(number >= 4)).await;
                moving.fence(Duration::from_secs(60)).await;
                moving.decide().await;
                moving.open().await;
            }
            "failover" => {
                // It happens once, and there are no moves: their connections would end with the
                // server.
                fates.retain(|fate| !["failover", "move"].contains(fate));
                let host = place.standby.expect("one has a standby");
                story.push(format!("it was db{}", host + 1));
                place.fail_over(host).await;
            }
            _ => {
                // The connections of the mover would end with it.
                fates.retain(|fate| *fate != "move");
                let mode = if rng.bool() {
                    StopMode::Fast
                } else {
                    StopMode::Immediate
                };
                let restarted = tokio::task::block_in_place(|| {
                    shards.cluster.server(place.home(host)).restart(mode)
                });
                restarted.expect("a server comes back");
            }
        }
    }
    story
}

/// Kills some of the callers' backends.
async fn kill(place: &Place, host: usize) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'library' ORDER BY random() LIMIT 2";
    place
        .shards
        .cluster
        .superuser(place.home(host))
        .await
        .query(sql, &[])
        .await
        .expect("a superuser may");
}

/// Locks the table of one of the host's shards, or slows the whole host down.
async fn hold(place: &Place, host: usize, fate: &str, long: Duration) {
    let sql =
        "SELECT schema_name FROM pgshard.shard WHERE state = 'serving' ORDER BY random() LIMIT 1";
    let client = place.app(host).await;
    let Some(row) = client.query_opt(sql, &[]).await.expect("the host answers") else {
        return;
    };
    let mode = if fate == "lock" {
        "ACCESS EXCLUSIVE"
    } else {
        "SHARE ROW EXCLUSIVE"
    };
    let lock = format!(
        "BEGIN; LOCK TABLE {}.photos IN {mode} MODE",
        row.get::<_, &str>(0)
    );
    // A session that has the lock already may keep it long: then that lock will do.
    let locked = tokio::time::timeout(Duration::from_secs(2), client.batch_execute(&lock)).await;
    if locked.is_err() {
        let _ = client.cancel_token().cancel_query(NoTls).await;
    }
    tokio::time::sleep(long).await;
}
