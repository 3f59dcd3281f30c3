//! `check`, the exporter and the console all along moves, rollbacks, drains, kills and restarts:
//! they report the same, and nothing that is not so.
//!
//! `PGSHARD_WATCHED_S=1800 cargo test --test it -- watched::` watches for half an hour.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use pgshard::dev::StopMode;

use crate::support::World;

/// What is true while a mover is dead, or a server restarts.
const OF_FAULTS: [&str; 11] = [
    "error fence_overdue",
    "error not_opened",
    "warning shard_elsewhere",
    "warning shard_epoch_differs",
    "warning not_audited",
    "warning leftover",
    "error host_unreachable",
    "error host_starting",
    "error host_unreadable",
    "warning identity_unread",
    "error leases_unread",
];

/// A command that watches and answers HTTP; it ends when this is dropped.
struct Watcher {
    child: Child,
    address: String,
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

impl Watcher {
    fn start(world: &World, verb: &str) -> Watcher {
        let mut child = Command::new(env!("CARGO_BIN_EXE_pgshard"))
            .args([verb, "--listen", "127.0.0.1:0", "--floor-s", "1"])
            .env("PGSHARD_CONFIG", &world.config.path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let address = line
            .trim()
            .trim_start_matches("listening on http://")
            .split('/')
            .next()
            .unwrap()
            .to_owned();
        Watcher { child, address }
    }

    /// `severity code` of what `/metrics` has, without notices; `None` where it answers with an
    /// error.
    fn found(&self) -> Option<BTreeSet<String>> {
        let mut stream = TcpStream::connect(&self.address).ok()?;
        let patience = Duration::from_secs(90);
        stream.set_read_timeout(Some(patience)).unwrap();
        let address = &self.address;
        write!(
            stream,
            "GET /metrics HTTP/1.1\r\nConnection: close\r\nHost: {address}\r\n\r\n"
        )
        .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        if !answer.starts_with("HTTP/1.1 200") {
            return None;
        }
        let sample = |line: &str| {
            let labels = line.strip_prefix("pgshard_findings{")?;
            let mut parts = labels.split('"');
            let (severity, code) = (parts.nth(1)?, parts.nth(1)?);
            let is_worth = !code.is_empty() && severity != "notice";
            is_worth.then(|| format!("{severity} {code}"))
        };
        Some(answer.lines().filter_map(sample).collect())
    }
}

/// The same of `pgshard check`.
async fn checked(world: &World) -> BTreeSet<String> {
    let report = world.run(&["check"]).await.last();
    let findings = report["findings"].as_array().unwrap().iter();
    findings
        .filter(|found| found["severity"] != "notice")
        .map(|found| {
            let text = |name: &str| found[name].as_str().unwrap().to_owned();
            format!("{} {}", text("severity"), text("code"))
        })
        .collect()
}

/// What the watchers are judged by. The number grows when faults begin and when they have ended:
/// while it is even, everything is well.
#[derive(Default)]
struct Times {
    number: AtomicU64,
    looks: AtomicU32,
    stop: AtomicBool,
    wrong: Mutex<Vec<String>>,
}

impl Times {
    fn judge(&self, who: &str, before: u64, found: &BTreeSet<String>) {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let now = self.number.load(Ordering::SeqCst);
        let is_well = before == now && now.is_multiple_of(2);
        let wrong = found
            .iter()
            .filter(|one| is_well || !OF_FAULTS.contains(&one.as_str()));
        let when = if is_well {
            "while all was well"
        } else {
            "around faults"
        };
        let wrong = wrong.map(|one| format!("{who} found {one} {when}"));
        self.wrong.lock().unwrap().extend(wrong);
    }
}

/// What operators do while nothing is wrong.
async fn well(world: &World, random: &mut fastrand::Rng) {
    let host = format!("db{}", random.usize(1..=3));
    let first = random.u16(0..10);
    let shards = format!("{first}-{}", first + random.u16(1..3));
    let mode = if random.bool() { "online" } else { "blocking" };
    match random.u8(0..10) {
        0 => {
            world.run(&["drain", &host, "--yes"]).await;
        }
        1 | 2 => {
            world.run(&["moves", "complete", "--all", "--yes"]).await;
        }
        3 | 4 => {
            let ran = world
                .run(&["move", &shards, "--to", &host, "--mode", mode, "--yes"])
                .await;
            if ran.code() == 0 && ran.stdout.contains("\"started\"") {
                let id = ran.id();
                world.run(&["moves", "rollback", &id, "--yes"]).await;
            }
        }
        _ => {
            world
                .run(&["move", &shards, "--to", &host, "--mode", mode, "--yes"])
                .await;
        }
    }
}

/// A mover that is killed, or a server that is restarted while a mover works.
async fn fault(world: &World, random: &mut fastrand::Rng) {
    let host = format!("db{}", random.usize(1..=3));
    let first = random.u16(0..10);
    let shards = format!("{first}-{}", first + 1);
    let mode = if random.bool() { "online" } else { "blocking" };
    let args = ["move", &shards, "--to", &host, "--mode", mode, "--yes"];
    if random.bool() {
        let places = [
            "after claim",
            "after prepare",
            "after swap",
            "after decide",
            "after copied",
        ];
        let place = places[random.usize(0..places.len())];
        world.run_until(&args, &format!("{place}=kill")).await;
    } else {
        let server = world.servers.server(random.usize(0..3));
        let restart = async {
            tokio::time::sleep(Duration::from_millis(random.u64(0..700))).await;
            let mode = if random.bool() {
                StopMode::Fast
            } else {
                StopMode::Immediate
            };
            tokio::task::block_in_place(|| server.restart(mode)).unwrap();
        };
        tokio::join!(restart, world.run(&args));
    }
}

/// Brings everything that faults left to its end.
async fn settle(world: &World) {
    for _ in 0..20 {
        let listed = world.run(&["moves", "list"]).await.last();
        let open: Vec<String> = listed["moves"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|one| one["phase"] != "kept")
            .map(|one| one["move"].as_str().unwrap().to_owned())
            .collect();
        for id in &open {
            world.run(&["moves", "resume", id]).await;
            world.run(&["moves", "abort", id]).await;
        }
        world.run(&["moves", "gc"]).await;
        world.run(&["moves", "audit", "--all"]).await;
        world
            .run(&["moves", "complete", "--all", "--unaudited", "--yes"])
            .await;
        world.run(&["map", "rebuild", "--yes"]).await;
        if checked(world).await.is_empty() {
            return;
        }
    }
    panic!("faults are settled: {:?}", checked(world).await);
}

on_each_version! {
    /// No watcher finds anything while all is well, whatever moves; nor, while movers are killed
    /// and servers restarted, anything but that.
    async fn nothing_is_found_that_is_not_so(version) {
        let seconds = std::env::var("PGSHARD_WATCHED_S").map_or(40, |text| text.parse().unwrap());
        let world = Arc::new(World::new(&[version, version, version], 12).await);
        world.run(&["bootstrap"]).await.ended(0);
        assert_eq!(checked(&world).await, BTreeSet::new());
        let times = Arc::new(Times::default());
        let mut tasks = Vec::new();
        for verb in ["exporter", "console"] {
            let watcher = Watcher::start(&world, verb);
            let times = times.clone();
            tasks.push(tokio::task::spawn_blocking(move || {
                while !times.stop.load(Ordering::Relaxed) {
                    let before = times.number.load(Ordering::SeqCst);
                    if let Some(found) = watcher.found() {
                        times.judge(verb, before, &found);
                    }
                    std::thread::sleep(Duration::from_millis(100));
                }
            }));
        }
        let (watched, judged) = (world.clone(), times.clone());
        let check = tokio::spawn(async move {
            while !judged.stop.load(Ordering::Relaxed) {
                let before = judged.number.load(Ordering::SeqCst);
                let found = checked(&watched).await;
                judged.judge("check", before, &found);
            }
        });
        let (began, mut random) = (Instant::now(), fastrand::Rng::with_seed(u64::from(version)));
        let mut deeds = 0;
        while began.elapsed() < Duration::from_secs(seconds) || deeds < 12 {
            for _ in 0..6 {
                well(&world, &mut random).await;
                deeds += 1;
            }
            times.number.fetch_add(1, Ordering::SeqCst);
            for _ in 0..2 {
                fault(&world, &mut random).await;
                deeds += 1;
            }
            settle(&world).await;
            // A watcher may still report what it has seen before this.
            tokio::time::sleep(Duration::from_secs(3)).await;
            times.number.fetch_add(1, Ordering::SeqCst);
        }
        times.stop.store(true, Ordering::Relaxed);
        check.await.unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        let (looks, wrong) = (
            times.looks.load(Ordering::Relaxed),
            times.wrong.lock().unwrap(),
        );
        eprintln!("{deeds} deeds, {looks} looks, {} wrong", wrong.len());
        assert!(looks > 10, "{looks}");
        assert_eq!(*wrong, [""; 0], "after {deeds} deeds and {looks} looks");
    }

    /// What `check` finds beyond the comparison with the map reaches Prometheus, from both servers.
    async fn every_watcher_finds_the_same(version) {
        let world = World::new(&[version, version, version], 12).await;
        world.run(&["bootstrap"]).await.ended(0);
        let text = std::fs::read_to_string(&world.config.path).unwrap();
        let [second, third] = [1, 2].map(|host| format!(":{}/", world.servers.server(host).port()));
        let text = text.replace(&second, ":?/").replace(&third, &second);
        world.write("pgshard.toml", &text.replace(":?/", &third));
        let found = checked(&world).await;
        assert!(found.contains("error host_name_differs"), "{found:?}");
        for verb in ["exporter", "console"] {
            let watcher = Watcher::start(&world, verb);
            let began = Instant::now();
            let seen = loop {
                if let Some(seen) = tokio::task::block_in_place(|| watcher.found()) {
                    break seen;
                }
                assert!(began.elapsed() < Duration::from_secs(60), "{verb} answers");
                tokio::time::sleep(Duration::from_millis(100)).await;
            };
            assert_eq!(seen, found, "{verb}");
        }
    }
}
