//! Two servers take the writes of one host: the former primary is still alive, or comes back
//! unchanged, after a fail-over.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::{Duration, Instant};

use pgshard::dev::{Binaries, StopMode};
use pgshard::pg::{ConnectError, Impostor};
use pgshard::router::Error;
use pgshard::{Router, ShardId};
use tokio::task::JoinHandle;

use crate::support::proxy::Proxy;
use crate::support::{Frozen, Ran, World, lines, other};

const INSERT: &str = "INSERT INTO {shard}.users (id, name) VALUES ($1, 'x')";

/// Writers, each of which writes a row at a time until it is stopped; and what was acknowledged,
/// with the time of that.
struct Writers {
    stop: Arc<AtomicBool>,
    acknowledged: Arc<AtomicI64>,
    tasks: Vec<JoinHandle<Vec<(i64, Instant)>>>,
}

impl Writers {
    fn start(router: &Router, shard: ShardId) -> Writers {
        let (stop, acknowledged, next) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicI64>::default(),
            Arc::new(AtomicI64::new(1)),
        );
        let write = |_| {
            let (router, stop, acknowledged, next) = (
                router.clone(),
                stop.clone(),
                acknowledged.clone(),
                next.clone(),
            );
            tokio::spawn(async move {
                let mut rows = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let id = next.fetch_add(1, Ordering::Relaxed);
                    match router.shard(shard).unwrap().execute(INSERT, &[&id]).await {
                        Ok(_) => {
                            rows.push((id, Instant::now()));
                            acknowledged.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
                    }
                }
                rows
            })
        };
        let tasks = (0..8).map(write).collect();
        Writers {
            stop,
            acknowledged,
            tasks,
        }
    }

    /// Waits until this many more rows are acknowledged.
    async fn more(&self, count: i64) {
        let (before, begun) = (self.acknowledged.load(Ordering::Relaxed), Instant::now());
        while self.acknowledged.load(Ordering::Relaxed) < before + count {
            assert!(
                begun.elapsed() < Duration::from_secs(60),
                "writes are acknowledged"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) -> Vec<(i64, Instant)> {
        self.stop.store(true, Ordering::Relaxed);
        let mut rows = Vec::new();
        for task in self.tasks {
            rows.extend(task.await.unwrap());
        }
        rows
    }
}

async fn ids(world: &World, server: usize, shard: ShardId) -> BTreeSet<i64> {
    let sql = format!("SELECT id::text FROM shard_{:04}.users", shard.get());
    lines(&world.servers.app(server).await, &sql)
        .await
        .lines()
        .map(|id| id.parse().unwrap())
        .collect()
}

/// Writes one row, trying until that succeeds.
async fn write(router: &Router, shard: ShardId, id: i64) {
    let begun = Instant::now();
    while let Err(error) = router.shard(shard).unwrap().execute(INSERT, &[&id]).await {
        assert!(begun.elapsed() < Duration::from_secs(60), "{error:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The codes of what `check` finds.
fn codes(ran: &Ran) -> Vec<String> {
    let findings = ran.last()["findings"].as_array().unwrap().clone();
    findings
        .iter()
        .map(|one| one["code"].as_str().unwrap().to_owned())
        .collect()
}

/// Why no connection to a host is made.
fn impostor(error: &Error) -> Option<Impostor> {
    match error {
        Error::Connect { source, .. } | Error::HostDown { source, .. } => match **source {
            ConnectError::Impostor { source, .. } => Some(source),
            _ => None,
        },
        _ => None,
    }
}

on_each_version! {
    /// The primary freezes, its standby is promoted, and the primary continues and is even
    /// restarted. No router that knows of the promoted server accepts an acknowledgement of the
    /// former one, no new router connects to it, and commands report it.
    async fn a_former_primary_comes_back(version) {
        const A: usize = 0;
        const B: usize = 2;
        let world = World::with_standby(version, 4, A).await;
        let [on_db1, on_db2] = [0, 1].map(|host| {
            ShardId::new((0..4).find(|shard| world.host_of(*shard) == host).expect(
                "each host has \
                a shard",
            ))
            .unwrap()
        });
        world.run(&["bootstrap"]).await.ended(0);
        world.run(&["check"]).await.ended(0);
        let standby = world.servers.superuser(B).await;

        let router = world.router().await;
        let writers = Writers::start(&router, on_db1);
        writers.more(50).await;
        let frozen = Frozen::new(world.servers.server(A).pid().unwrap());
        assert!(
            standby
                .query_one(
                    "SELECT pg_promote(true, \
            60)",
                    &[]
                )
                .await
                .unwrap()
                .get::<_, bool>(0)
        );
        // The first row that is acknowledged since then: no other can have been.
        write(&router, on_db1, 1_000_000_000).await;
        let known = Instant::now();
        drop(frozen);
        let former = world.servers.app(A).await;
        former.execute("SELECT 1", &[]).await.unwrap();
        writers.more(500).await;
        tokio::task::block_in_place(|| world.servers.server(A).restart(StopMode::Immediate))
            .unwrap();
        // A router that loses its connections to the one server tries the other.
        let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename = \
            'app' \
                   AND pid <> pg_backend_pid()";
        for _ in 0..3 {
            standby.execute(sql, &[]).await.unwrap();
            writers.more(50).await;
        }
        let acknowledged = writers.end().await;
        let here = ids(&world, B, on_db1).await;
        let lost: Vec<_> = acknowledged
            .iter()
            .filter(|(id, at)| *at > known && !here.contains(id))
            .collect();
        assert!(
            lost.is_empty() && here.contains(&1_000_000_000),
            "{} of {}: {lost:?}",
            lost.len(),
            acknowledged.len()
        );

        // A process that starts now.
        let there = ids(&world, A, on_db1).await;
        let new = world.router().await;
        write(&new, on_db1, 1_000_000_001).await;
        assert!(ids(&world, B, on_db1).await.contains(&1_000_000_001));
        assert_eq!(ids(&world, A, on_db1).await, there);

        // Commands.
        let checked = world.run(&["check"]).await;
        assert_eq!(
            codes(checked.ended(1)),
            ["two_primaries"],
            "{}",
            checked.stdout
        );
        let [a, b] = [A, B].map(|host| world.servers.server(host).port());
        let message = checked.last()["findings"][0]["message"]
            .as_str()
            .unwrap()
            .to_owned();
        assert!(
            message.contains(&format!("127.0.0.1:{b} was promoted later")),
            "{message}"
        );
        assert!(
            checked.last()["findings"][0]["remedy"]
                .as_str()
                .unwrap()
                .contains(&format!("stop 127.0.0.1:{a},"))
        );
        let shard = on_db1.get().to_string();
        for args in [
            &["bootstrap"][..],
            &["migrate", "up"],
            &["move", &shard, "--to", "db2", "--yes"],
            &["drain", "db1", "--yes"],
            &["host", "accept", "db1", "--yes"],
        ] {
            let refused = world.run(args).await;
            assert!(
                refused
                    .ended(4)
                    .stderr
                    .contains("two servers take the writes of db1"),
                "{args:?}: {}",
                refused.stderr
            );
        }

        // If only the former server can be reached, what the other hosts have recorded gives it
        // away.
        tokio::task::block_in_place(|| world.servers.server(A).stop(StopMode::Fast)).unwrap();
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(
            codes(world.run(&["check"]).await.ended(0)),
            ["address_unreachable"]
        );
        tokio::task::block_in_place(|| world.servers.server(A).start()).unwrap();
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let alone = world.write(
            "alone.toml",
            &config.replace(&format!(",127.0.0.1:{b}"), ""),
        );
        let alone = alone.to_str().unwrap();
        assert_eq!(
            codes(world.run(&["check", "--config", alone]).await.ended(1)),
            ["former_primary"]
        );
        let blind = pgshard::connect(alone).await.unwrap();
        write(&blind, on_db2, 1_000_000_002).await;
        let error = blind
            .shard(on_db1)
            .unwrap()
            .execute(INSERT, &[&1_000_000_003_i64])
            .await
            .unwrap_err();
        assert_eq!(
            impostor(&error),
            Some(Impostor::Former {
                timeline: 1,
                newest: 2
            }),
            "{error:?}"
        );
        assert_eq!(ids(&world, A, on_db1).await, there);
        tokio::task::block_in_place(|| world.servers.server(A).stop(StopMode::Fast)).unwrap();

        // As after an upgrade: the server has a new system identifier.
        let sql = "UPDATE pgshard.identity SET system_identifier = system_identifier - 1 WHERE \
            host_name = 'db1'";
        for server in [1, B] {
            assert_eq!(
                world
                    .servers
                    .app(server)
                    .await
                    .execute(sql, &[])
                    .await
                    .unwrap(),
                1
            );
        }
        let upgraded = world.router().await;
        write(&upgraded, on_db2, 1_000_000_004).await;
        let error = upgraded
            .shard(on_db1)
            .unwrap()
            .execute(INSERT, &[&1_000_000_005_i64])
            .await
            .unwrap_err();
        assert!(
            matches!(impostor(&error), Some(Impostor::Other { .. })),
            "{error:?}"
        );
        let checked = world.run(&["check"]).await;
        assert_eq!(
            codes(checked.ended(1)),
            ["other_server", "address_unreachable"]
        );
        world.run(&["bootstrap"]).await.ended(4);
        world.run(&["host", "accept", "db1"]).await.ended(2);
        let accepted = world.run(&["host", "accept", "db1", "--yes"]).await;
        assert_eq!(accepted.ended(0).last()["generation"], 2);
        write(&upgraded, on_db1, 1_000_000_006).await;
        world.run(&["check"]).await.ended(0);
        let again = world.run(&["host", "accept", "db1", "--yes"]).await;
        assert!(
            again.ended(0).stderr.contains("nothing to do"),
            "{}",
            again.stderr
        );
    }

    /// A server of another cluster under a host's name, and one that does not report its identity.
    async fn another_server_under_a_name(version) {
        let world = World::with_spare(&[version, version, other(version)], 2).await;
        let shard = ShardId::new(0).unwrap();
        let home = world.host_of(0);
        world.run(&["bootstrap"]).await.ended(0);
        let [own, strange] = [home, 2].map(|host| world.servers.server(host).port());
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let wrong = world.write(
            "wrong.toml",
            &config.replace(&format!(":{own}/"), &format!(":{strange}/")),
        );
        let wrong = wrong.to_str().unwrap();
        let checked = world.run(&["check", "--config", wrong]).await;
        assert!(
            codes(checked.ended(1)).contains(&"other_server".to_owned()),
            "{}",
            checked.stdout
        );
        let refused = world.run(&["bootstrap", "--config", wrong]).await;
        assert!(
            refused.ended(4).stderr.contains("it is another server"),
            "{}",
            refused.stderr
        );
        // It has no control schema in which the acceptance could be recorded.
        let refused = world
            .run(&[
                "host",
                "accept",
                &format!("db{}", home + 1),
                "--yes",
                "--config",
                wrong,
            ])
            .await;
        assert!(
            refused.ended(1).stderr.contains("could not be recorded"),
            "{}",
            refused.stderr
        );
        world.run(&["check"]).await.ended(0);

        let control = world.servers.superuser(home).await;
        control
            .batch_execute(
                "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM \
            PUBLIC",
            )
            .await
            .unwrap();
        write(&world.router().await, shard, 1).await;
        world.run(&["check"]).await.ended(0);
        world.run(&["bootstrap"]).await.ended(0);
    }

    /// A blue/green upgrade, announced by `host accept --system`: the green server, a restored dump
    /// with another system identifier, takes the host's place without an alarm, for routers that
    /// run, for new ones, for `check` and for moves. The blue one is refused from then on, and
    /// anything else before it. The dump is taken after the announcement, as logical replication
    /// would bring it along, and in another round before it.
    async fn an_announced_server_takes_a_hosts_place_without_an_alarm(version) {
        for knows in [GreenKnows::OfItself, GreenKnows::Nothing] {
            // Servers of one version are copies with one system identifier. This is an upgrade,
            // too.
            let (from, to) = (other(18), 18);
            let world = World::with_spare(&[from, version, to], 4).await;
            let proxy = Proxy::to(world.servers.server(0).port()).await;
            let config = std::fs::read_to_string(&world.config.path).unwrap();
            let direct = format!(":{}/", world.servers.server(0).port());
            world.write(
                "pgshard.toml",
                &config.replace(&direct, &format!(":{}/", proxy.port)),
            );
            world.run(&["bootstrap"]).await.ended(0);
            let (router, shard) = (world.router().await, ShardId::new(0).unwrap());
            write(&router, shard, 1).await;
            let [blue, green] = [0, 2].map(|host| world.servers.server(host).port());
            let system = system_of(&world, 2).await;
            if knows == GreenKnows::Nothing {
                restore(from, blue, green);
            }
            let accept = |system: i64| {
                [
                    "host".to_owned(),
                    "accept".to_owned(),
                    "db1".to_owned(),
                    "--system".to_owned(),
                    system.to_string(),
                ]
            };
            let accept = async |system: i64, more: &[&str]| {
                let args = accept(system);
                let args: Vec<&str> = args
                    .iter()
                    .map(String::as_str)
                    .chain(more.iter().copied())
                    .collect();
                world.run(&args).await
            };
            accept(system, &[]).await.ended(2);
            assert_eq!(
                accept(system + 1, &["--yes"]).await.ended(0).last()["timeline"],
                0
            );
            // Any other server is refused as before.
            proxy.lead_to(green);
            let strange = world.run(&["check"]).await;
            assert!(
                codes(strange.ended(1)).contains(&"other_server".to_owned()),
                "{}",
                strange.stdout
            );
            proxy.lead_to(blue);
            // The last `host accept` counts, and the host's own identifier takes it back.
            accept(system_of(&world, 0).await, &["--yes"])
                .await
                .ended(0);
            let announced = "SELECT count(*)::text FROM pgshard.identity WHERE timeline = 0";
            assert_eq!(lines(&world.servers.app(1).await, announced).await, "0\n");
            let accepted = accept(system, &["--yes"]).await;
            assert_eq!(
                accepted.ended(0).last()["system_identifier"],
                system.to_string()
            );
            world.run(&["check"]).await.ended(0);
            write(&router, shard, 2).await;
            if knows == GreenKnows::OfItself {
                restore(from, blue, green);
            }

            let server = world.servers.server(0);
            tokio::task::block_in_place(|| server.stop(StopMode::Fast)).unwrap();
            proxy.lead_to(green);
            if knows == GreenKnows::Nothing {
                // It is recorded, on the green server too.
                world.run(&["bootstrap"]).await.ended(0);
            }
            write(&router, shard, 3).await;
            write(&world.router().await, shard, 4).await;
            world.run(&["check"]).await.ended(0);
            world.run(&["bootstrap"]).await.ended(0);
            let recorded = "SELECT generation || ' ' || system_identifier FROM pgshard.identity
                WHERE host_name = 'db1' ORDER BY generation DESC LIMIT 1";
            for host in [1, 2] {
                let client = world.servers.app(host).await;
                assert_eq!(lines(&client, recorded).await, format!("2 {system}\n"));
            }
            world
                .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
                .await
                .ended(0);

            tokio::task::block_in_place(|| server.start()).unwrap();
            proxy.lead_to(blue);
            let checked = world.run(&["check"]).await;
            assert!(codes(checked.ended(1)).contains(&"other_server".to_owned()));
            accept(system, &["--yes"]).await.ended(4);
        }
    }
}

/// What the green server of an upgrade has of the announcement.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GreenKnows {
    OfItself,
    Nothing,
}

async fn system_of(world: &World, server: usize) -> i64 {
    let sql = "SELECT system_identifier FROM pg_control_system()";
    let client = world.servers.app(server).await;
    client.query_one(sql, &[]).await.unwrap().get(0)
}

/// Dumps the database of one server into the empty one of another.
fn restore(version: u32, from: u16, to: u16) {
    let binaries = Binaries::of_major(version).unwrap();
    let of = |name: &str, port: u16| {
        let mut command = Command::new(binaries.program(name));
        command.args([
            "-h",
            "127.0.0.1",
            "-U",
            "app",
            "-d",
            "app",
            "-p",
            &port.to_string(),
        ]);
        command
    };
    let mut dump = of("pg_dump", from).stdout(Stdio::piped()).spawn().unwrap();
    let mut restored = of("psql", to);
    restored
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1"])
        .stdout(Stdio::null());
    let restored = restored
        .stdin(dump.stdout.take().unwrap())
        .status()
        .unwrap();
    assert!(dump.wait().unwrap().success() && restored.success());
}
