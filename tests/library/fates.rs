//! What befalls the servers and the way to them while callers are at work.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fastrand::Rng;
use pgshard::dev::StopMode;
use tokio_postgres::NoTls;

use super::by_hand::Shards;
use super::case::Case;
use super::proxy::Proxy;

pub(crate) const FATES: [&str; 6] = ["kill", "silent", "lock", "slow", "move", "restart"];

/// Whether a round without these has no excuse for a connection too many: a server that answers nothing ends nothing.
pub(crate) const EXCUSES: [&str; 2] = ["silent", "restart"];

/// One after the other, until the callers are done.
pub(crate) async fn play(
    case: &Case,
    shards: &Shards,
    proxies: &[Proxy],
    done: &AtomicBool,
    mut rng: Rng,
) -> Vec<String> {
    let mut story = Vec::new();
    let mut fates = case.of_these(&FATES);
    let mut unmoved: Vec<u16> = (0..8).collect();
    while !done.load(Ordering::Relaxed) {
        tokio::time::sleep(Duration::from_millis(rng.u64(20..200))).await;
        if fates.is_empty() {
            continue;
        }
        let (fate, host) = (fates[rng.usize(..fates.len())], rng.usize(..2));
        story.push(format!("{fate} db{}", host + 1));
        match fate {
            "kill" => kill(shards, host).await,
            "silent" => {
                proxies[host].fall_silent();
                tokio::time::sleep(Duration::from_millis(rng.u64(20..800))).await;
                proxies[host].speak_again();
            }
            "lock" | "slow" => hold(shards, host, fate, Duration::from_millis(rng.u64(20..800))).await,
            "move" if unmoved.is_empty() => fates.retain(|fate| *fate != "move"),
            "move" => {
                let number = unmoved.swap_remove(rng.usize(..unmoved.len()));
                let moving = shards.prepare(number, usize::from(number >= 4)).await;
                moving.fence(Duration::from_secs(60)).await;
                moving.decide().await;
                moving.open().await;
            }
            _ => {
                // The connections by which shards are moved end with it.
                fates.retain(|fate| *fate != "move");
                let mode = if rng.bool() { StopMode::Fast } else { StopMode::Immediate };
                let restarted = tokio::task::block_in_place(|| shards.cluster.server(host).restart(mode));
                restarted.expect("a server comes back");
            }
        }
    }
    story
}

/// Some of the callers' backends.
async fn kill(shards: &Shards, host: usize) {
    let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE application_name = 'library' ORDER BY random() LIMIT 2";
    shards.cluster.superuser(host).await.query(sql, &[]).await.expect("a superuser may");
}

/// Holds the table of one of the host's shards, or slows down the whole of it.
async fn hold(shards: &Shards, host: usize, fate: &str, long: Duration) {
    let sql = "SELECT schema_name FROM pgshard.shard WHERE state = 'serving' ORDER BY random() LIMIT 1";
    let client = shards.cluster.app(host).await;
    let Some(row) = client.query_opt(sql, &[]).await.expect("the host answers") else { return };
    let mode = if fate == "lock" { "ACCESS EXCLUSIVE" } else { "SHARE ROW EXCLUSIVE" };
    let lock = format!("BEGIN; LOCK TABLE {}.photos IN {mode} MODE", row.get::<_, &str>(0));
    // Whoever holds it already may take long: then somebody else's lock will do.
    let locked = tokio::time::timeout(Duration::from_secs(2), client.batch_execute(&lock)).await;
    if locked.is_err() {
        let _ = client.cancel_token().cancel_query(NoTls).await;
    }
    tokio::time::sleep(long).await;
}
