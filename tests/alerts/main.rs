//! The alerts of ops/alerts.yml on recorded series: what `/metrics` had while shards moved, a host
//! was down or restarted, two servers took the writes of one host, and the config was unreadable.
//! Writes the recordings as a file for `promtool test rules`. See `script/check-alerts --recorded`.
#![allow(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "what the tests share is more than this needs"
)]

#[path = "../it/console/client.rs"]
mod client;
mod recording;

#[macro_use]
#[path = "../it/support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pgshard::dev::StopMode;

use client::Console;
use recording::Recording;
use support::World;

/// A second of a scenario is this long for the rules: a minute of an alert is four seconds.
const INTERVAL: &str = "15s";

fn main() -> ExitCode {
    let Some(path) = std::env::args().nth(1).map(PathBuf::from) else {
        eprintln!("script/check-alerts --recorded");
        return ExitCode::FAILURE;
    };
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let recordings = runtime.block_on(async {
        [
            moves().await,
            a_host_is_down().await,
            a_host_restarts().await,
            two_primaries().await,
            the_config_is_unreadable().await,
        ]
    });
    let rules = std::env::current_dir().expect("there is a working directory");
    let rules = rules.join("ops/alerts.yml");
    let tests: String = recordings
        .iter()
        .map(|recording| recording.as_test(INTERVAL))
        .collect();
    let file = format!(
        "rule_files: ['{}']\nevaluation_interval: {INTERVAL}\ntests:\n{tests}",
        rules.display()
    );
    std::fs::write(path, file).expect("the file can be written");
    ExitCode::SUCCESS
}

/// Records while the scenario runs.
async fn during(
    name: &'static str,
    fired: &'static [&'static str],
    world: &World,
    scenario: impl Future<Output = ()>,
) -> Recording {
    let console = Arc::new(Console::start(world, &["--floor-s", "1"]));
    let mut recording = Recording::new(name, fired);
    let mut scenario = std::pin::pin!(scenario);
    let mut tick = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            () = &mut scenario => return recording,
            _ = tick.tick() => {}
        }
        let scraped = console.clone();
        let body = tokio::task::spawn_blocking(move || scraped.get("/metrics").body);
        recording.add(&body.await.expect("the exporter responds"));
    }
}

async fn for_seconds(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

fn blocking<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

/// Shards go, are taken back, and their old copies are dropped, while writers write.
async fn moves() -> Recording {
    let world = World::new(&[18, 18], 8).await;
    let scenario = async {
        for seconds in [2, 6] {
            let order = ["move", "0-1", "--to", "db2", "--mode", "online", "--yes"];
            let id = world.run(&order).await.ended(0).id();
            for_seconds(seconds).await;
            world
                .run(&["moves", "rollback", &id, "--yes"])
                .await
                .ended(0);
        }
        let order = ["move", "2-3", "--to", "db1", "--mode", "blocking", "--yes"];
        world.run(&order).await;
        for_seconds(5).await;
        let complete = ["moves", "complete", "--all", "--yes"];
        world.run(&complete).await.ended(0);
        for_seconds(25).await;
    };
    during("moves and rollbacks", &[], &world, scenario).await
}

async fn a_host_is_down() -> Recording {
    let world = World::new(&[18, 18], 8).await;
    let scenario = async {
        for_seconds(5).await;
        blocking(|| world.servers.server(1).stop(StopMode::Fast)).expect("it stops");
        for_seconds(30).await;
        blocking(|| world.servers.server(1).start()).expect("it starts");
        for_seconds(15).await;
    };
    during("a host is down", &["PgshardHostDown"], &world, scenario).await
}

async fn a_host_restarts() -> Recording {
    let world = World::new(&[18, 18], 8).await;
    let scenario = async {
        for_seconds(5).await;
        blocking(|| {
            world
                .servers
                .server(1)
                .stop(StopMode::Fast)
                .expect("it stops");
            world.servers.server(1).start().expect("it starts");
        });
        for_seconds(25).await;
    };
    during("a host restarts", &[], &world, scenario).await
}

async fn two_primaries() -> Recording {
    let world = World::with_standby(18, 4, 0).await;
    world.run(&["bootstrap"]).await.ended(0);
    let scenario = async {
        for_seconds(5).await;
        world.servers.promote(2).await;
        for_seconds(25).await;
    };
    let fired = &["PgshardAlarm"];
    during(
        "two servers take the writes of a host",
        fired,
        &world,
        scenario,
    )
    .await
}

async fn the_config_is_unreadable() -> Recording {
    let world = World::new(&[18, 18], 8).await;
    let scenario = async {
        for_seconds(5).await;
        let config = std::fs::read_to_string(&world.config.path).expect("it was written");
        world.write("pgshard.toml", "[cluster\n");
        for_seconds(35).await;
        world.write("pgshard.toml", &config);
        for_seconds(10).await;
    };
    let fired = &["PgshardConfigUnreadable"];
    during("the config is unreadable", fired, &world, scenario).await
}
