//! Hosts with a URL that is corrected while routers run.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgshard::Router;
use pgshard::config::connect;
use pgshard::router::{Error, Sql};

use super::COUNT;
use super::by_hand::Shards;
use super::proxy::{Mute, Proxy};

const LONG: Duration = Duration::from_secs(60);

/// The config with another port for the first host.
fn write(path: &Path, text: &str, port: u16, other: u16) {
    let changed = text.replace(&format!(":{port}/"), &format!(":{other}/"));
    assert!(changed != text || port == other, "{text}");
    std::fs::write(path, changed).unwrap();
}

async fn pid(router: &Router) -> Option<i32> {
    let row = router
        .by_key(0)
        .query_one(&Sql::reading("SELECT pg_backend_pid()"), &[])
        .await;
    row.map_err(|error| assert!(error.is_retryable(), "{error:?}"))
        .ok()
        .map(|row| row.get(0))
}

/// Corrects the URL of a host while one of its connections is in use, until the router has taken it
/// over. What the router notices first may be either.
async fn renew(router: &Router, before: impl Fn(), after: impl Fn()) {
    assert_eq!(router.pools()[0].used, 1);
    let renewed = async {
        for change in [&before as &dyn Fn(), &after].into_iter().cycle() {
            change();
            router.refresh_map();
            tokio::time::sleep(Duration::from_millis(50)).await;
            if router.pools()[0].used == 0 {
                break;
            }
        }
    };
    tokio::time::timeout(LONG, renewed)
        .await
        .expect("the new URL is taken over");
}

on_each_version! {
    /// A URL that was wrong is right from the correction on; connections to the former address of a
    /// host end when they are given back.
    async fn a_corrected_url(version) {
        let shards = Shards::start(version, 8).await;
        let port = shards.cluster.server(0).port();
        let path = shards.cluster.write_config(8);
        let text = std::fs::read_to_string(&path).unwrap();
        let mute = Mute::start().await;
        write(&path, &text, port, mute.port);
        let router = connect(&path).await.unwrap();
        let error = router
            .by_key(0)
            .within(Duration::from_millis(500))
            .query(&Sql::reading(COUNT), &[])
            .await
            .unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        write(&path, &text, port, port);
        let corrected = async {
            while pid(&router).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, corrected)
            .await
            .expect("the corrected URL is taken over");

        // The host is elsewhere from now on.
        let held = router.by_key(0).client().await.unwrap();
        let held_pid: i32 = held
            .query_one("SELECT pg_backend_pid()", &[])
            .await
            .unwrap()
            .get(0);
        let proxy = Proxy::to(port).await;
        proxy.fall_silent();
        write(&path, &text, port, proxy.port);
        router.refresh_map();
        let moved = async {
            // What was idle is closed, and nothing gets through to the new address.
            loop {
                let asked = router
                    .by_key(0)
                    .within(Duration::from_millis(500))
                    .query(&Sql::reading(COUNT), &[])
                    .await;
                if asked.is_err() {
                    break;
                }
            }
            proxy.speak_again();
            while pid(&router).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            // It works for as long as it is held.
            held.query_one("SELECT 1", &[]).await.unwrap();
            drop(held);
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE pid = $1";
            while shards.db[0]
                .query_one(sql, &[&held_pid])
                .await
                .unwrap()
                .get::<_, i64>(0)
                > 0
            {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, moved)
            .await
            .expect("the new URL is taken over");
        assert_eq!(router.pools().len(), 2);
    }

    /// A router that is closed waits for calls that still run at a host's former address.
    async fn closed_where_it_was(version) {
        let shards = Shards::start(version, 8).await;
        let port = shards.cluster.server(0).port();
        let path = shards.cluster.write_config(8);
        let text = std::fs::read_to_string(&path).unwrap();
        let proxy = Proxy::to(port).await;
        let router = connect(&path).await.unwrap();
        let held = router.by_key(0).client().await.unwrap();
        held.batch_execute(
            "BEGIN; INSERT INTO shard_0000.photos VALUES (1, \
            'kept')",
        )
        .await
        .unwrap();
        renew(
            &router,
            || write(&path, &text, port, port),
            || write(&path, &text, port, proxy.port),
        )
        .await;
        let ended = AtomicBool::new(false);
        let closing = async {
            let cut = router.close(LONG).await;
            assert!(ended.load(Ordering::SeqCst), "it has not waited");
            cut
        };
        let ends = async {
            while !matches!(router.by_key(0).query(COUNT, &[]).await, Err(Error::Closed)) {
                tokio::task::yield_now().await;
            }
            held.batch_execute("COMMIT").await.unwrap();
            ended.store(true, Ordering::SeqCst);
            drop(held);
        };
        assert_eq!(tokio::join!(closing, ends).0, 0, "none was cut off");
        assert_eq!(shards.titles(0, 0).await, ["kept"]);
    }

    /// A call there that takes longer than it may is cut off, too.
    async fn cut_where_it_was(version) {
        let shards = Shards::start(version, 8).await;
        let port = shards.cluster.server(0).port();
        let path = shards.cluster.write_config(8);
        let text = std::fs::read_to_string(&path).unwrap();
        let proxy = Proxy::to(port).await;
        let router = connect(&path).await.unwrap();
        let held = router.by_key(0).client().await.unwrap();
        renew(
            &router,
            || write(&path, &text, port, port),
            || write(&path, &text, port, proxy.port),
        )
        .await;
        assert_eq!(router.close(Duration::from_millis(100)).await, 1);
        assert!(
            held.query_one("SELECT 1", &[]).await.is_err(),
            "its connection is closed"
        );
    }
}
