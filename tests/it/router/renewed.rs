//! Hosts whose URL is corrected while routers run.

use std::path::Path;
use std::time::Duration;

use pgshard::Router;
use pgshard::config::connect;
use pgshard::router::Sql;

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
    let row = router.by_key(0).query_one(&Sql::reading("SELECT pg_backend_pid()"), &[]).await;
    row.map_err(|error| assert!(error.is_retryable(), "{error:?}")).ok().map(|row| row.get(0))
}

on_each_version! {
    /// A URL that was wrong is right from the correction on; connections to where a host was before end when they are
    /// given back.
    async fn a_corrected_url(version) {
        let shards = Shards::start(version, 8).await;
        let port = shards.cluster.server(0).port();
        let path = shards.cluster.write_config(8);
        let text = std::fs::read_to_string(&path).unwrap();
        let mute = Mute::start().await;
        write(&path, &text, port, mute.port);
        let router = connect(&path).await.unwrap();
        let error =
            router.by_key(0).within(Duration::from_millis(500)).query(&Sql::reading(COUNT), &[]).await.unwrap_err();
        assert!(error.is_retryable(), "{error:?}");
        write(&path, &text, port, port);
        let corrected = async {
            while pid(&router).await.is_none() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, corrected).await.expect("the corrected URL is taken over");

        // Elsewhere from now on.
        let held = router.by_key(0).client().await.unwrap();
        let held_pid: i32 = held.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let proxy = Proxy::to(port).await;
        proxy.fall_silent();
        write(&path, &text, port, proxy.port);
        router.refresh_map();
        let moved = async {
            // What was idle is closed, and nothing gets through to the new address.
            loop {
                let asked = router.by_key(0).within(Duration::from_millis(500)).query(&Sql::reading(COUNT), &[]).await;
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
            while shards.db[0].query_one(sql, &[&held_pid]).await.unwrap().get::<_, i64>(0) > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LONG, moved).await.expect("the new URL is taken over");
        assert_eq!(router.pools().len(), 2);
    }
}
