//! Operators who know nothing of each other: random commands, each in a process, while moves of
//! several shards run during writes.
//!
//! `PGSHARD_CROWD_SEED` and `PGSHARD_CROWD_ROUNDS` make a different run, or a longer one.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use serde_json::Value;

use crate::support::{Ran, World, Writers, other};

const LEASE: (&str, &str) = ("PGSHARD_LEASE_MS", "2500");
const SHARDS: u16 = 12;
const OPERATORS: usize = 2;
const COMMANDS: usize = 4;

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(otherwise)
}

/// A command, and its result.
struct Did {
    args: Vec<String>,
    ran: Ran,
}

impl Did {
    async fn run(world: &World, args: &[&str]) -> Did {
        let ran = world.run_with(args, &[LEASE]).await;
        Did {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            ran,
        }
    }

    /// The move that it named, or began.
    fn id(&self) -> Option<String> {
        let named = self.args.iter().find(|arg| arg.len() == 36).cloned();
        let started = || {
            self.ran
                .json()
                .iter()
                .find(|line| line["event"] == "started")
                .map(|line| line["move"].as_str().unwrap().to_owned())
        };
        named.or_else(started)
    }

    fn told(&self) -> String {
        format!(
            "{:?}: {}\n{}\n{}",
            self.args,
            self.ran.code(),
            self.ran.stdout,
            self.ran.stderr
        )
    }
}

async fn listed(world: &World) -> Vec<Value> {
    world.run(&["moves", "list"]).await.ended(0).last()["moves"]
        .as_array()
        .unwrap()
        .clone()
}

fn is_open(listed: &Value) -> bool {
    !matches!(
        listed["phase"].as_str(),
        Some("kept" | "completed" | "aborted")
    )
}

/// One operator's round: random commands about whatever exists.
async fn operate(world: &World, rng: &mut Rng) -> Vec<Did> {
    let mut did = Vec::new();
    for _ in 0..COMMANDS {
        tokio::time::sleep(Duration::from_millis(rng.u64(0..400))).await;
        let moves = listed(world).await;
        let mut any = |open: bool| {
            let ids: Vec<String> = moves
                .iter()
                .filter(|m| is_open(m) == open)
                .map(|m| m["move"].as_str().unwrap().to_owned())
                .collect();
            rng.choice(ids)
        };
        let (open, kept) = (any(true), any(false));
        let id = open.clone().or(kept.clone());
        let args: Vec<&str> = match (rng.u32(0..16), &id, &kept) {
            (0..=3, Some(id), _) => vec!["moves", "resume", id],
            (4..=5, Some(id), _) => vec!["moves", "abort", id],
            (6..=7, Some(id), _) => vec!["moves", "stop", id],
            (8, Some(id), _) => vec!["moves", "pause", id],
            (9, Some(id), _) => vec!["moves", "continue", id],
            (10, _, Some(kept)) => vec!["moves", "complete", kept, "--yes"],
            (10, Some(open), _) => vec!["moves", "complete", open, "--yes"],
            (11, ..) => vec!["drain", "db1", "--yes"],
            (12, ..) => vec!["rebalance", "--yes"],
            (13, ..) => vec!["moves", "gc"],
            (14, ..) => vec!["migrate", "up"],
            _ => vec!["check"],
        };
        did.push(Did::run(world, &args).await);
    }
    did
}

/// The phases of a move's shards.
async fn phases(world: &World, id: &str) -> BTreeMap<i64, String> {
    let shown = world.run(&["moves", "show", id]).await.last();
    let shards = shown["shards"].as_array().unwrap().clone();
    shards
        .iter()
        .map(|s| {
            (
                s["shard"].as_i64().unwrap(),
                s["phase"].as_str().unwrap().to_owned(),
            )
        })
        .collect()
}

/// Checks that the exit code and the words are true, as far as possible while others were at work
/// too.
async fn judge(world: &World, did: &Did) {
    let (code, told) = (did.ran.code(), did.told());
    for wrong in [
        "57P01",
        "terminating connection",
        "contradict",
        "panicked",
        "does not exist",
    ] {
        assert!(!told.contains(wrong), "{wrong}: {told}");
    }
    // On a slow machine a lease ends early. Then another operator may abort or continue the move,
    // and the words allow for each.
    if told.contains("has lost its lease") {
        let worked = matches!(did.args[0].as_str(), "move" | "drain" | "rebalance")
            || matches!(did.args[1].as_str(), "resume" | "abort" | "complete");
        assert!(
            worked && [1, 7, 8, 130].contains(&code) && told.contains("who works on it"),
            "{told}"
        );
        return;
    }
    let codes: &[i32] = match (did.args[0].as_str(), did.args.get(1).map(String::as_str)) {
        ("move", _) => &[0, 1, 4, 8, 130, -9],
        (_, Some("resume")) => &[0, 1, 4, 8, 130],
        (_, Some("abort" | "complete")) => &[0, 4, 8],
        (_, Some("stop" | "pause" | "continue")) => &[0, 4],
        (_, Some("gc")) => &[0],
        ("migrate", _) => &[0, 8],
        ("drain" | "rebalance", _) => &[0, 1, 4, 8, 130],
        _ => &[0, 1],
    };
    assert!(codes.contains(&code), "{told}");
    if code == 130 {
        assert!(told.contains("asked"), "nobody pressed Ctrl-C: {told}");
    }
    let Some(id) = did.id() else { return };
    let all = |phases: BTreeMap<i64, String>, fine: &[&str]| {
        phases.values().all(|phase| fine.contains(&phase.as_str()))
    };
    match (
        did.args[0].as_str(),
        did.args.get(1).map(String::as_str),
        code,
    ) {
        ("move", _, 0) | (_, Some("resume"), 0) => {
            assert!(
                all(phases(world, &id).await, &["kept", "completed"]),
                "{told}"
            )
        }
        ("move", _, 1) | (_, Some("abort"), 0) => {
            assert!(all(phases(world, &id).await, &["aborted"]), "{told}")
        }
        (_, Some("complete"), 0) => assert!(
            all(phases(world, &id).await, &["completed", "aborted"]),
            "{told}"
        ),
        _ => {}
    }
}

/// Waits for the rest, and ends holds and pauses in that time.
async fn settled(world: &World, rest: impl Future<Output = Vec<Did>>) -> Vec<Did> {
    let mut rest = std::pin::pin!(rest);
    loop {
        tokio::select! {
            did = &mut rest => return did,
            () = tokio::time::sleep(Duration::from_secs(2)) => {
                let all = listed(world).await;
                for one in all.iter().filter(|one| is_open(one) && one["desired"] != "go") {
                    // It may have ended since.
                    world.run(&["moves", "continue", one["move"].as_str().unwrap()]).await;
                }
            }
        }
    }
}

async fn round(world: &World, rng: &mut Rng) {
    let from = usize::from(
        (0..SHARDS)
            .filter(|shard| world.host_of(*shard) == 0)
            .count()
            < usize::from(SHARDS) / 2,
    );
    let mut shards: Vec<u16> = (0..SHARDS)
        .filter(|shard| world.host_of(*shard) == from)
        .collect();
    rng.shuffle(&mut shards);
    shards.truncate(rng.usize(3..=6));
    let list = shards
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let to = ["db2", "db1"][from];
    let mode = ["online", "online", "blocking"][rng.usize(0..3)];
    let mut args = vec!["move", &list, "--to", to, "--yes", "--mode", mode];
    if mode == "online" && rng.bool() {
        args.push("--hold");
    }
    let mut child = world.command(&args, &[LEASE]).spawn().unwrap();
    let dies_after = (rng.u32(0..4) == 0).then(|| Duration::from_millis(rng.u64(100..2_000)));
    let moves = async {
        if let Some(after) = dies_after {
            tokio::time::sleep(after).await;
            // It may have ended by itself.
            let _ = child.start_kill();
        }
        vec![Did {
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            ran: Ran::of(child).await,
        }]
    };
    let seeds: Vec<u64> = (0..OPERATORS).map(|_| rng.u64(..)).collect();
    let operators = join_all(
        seeds
            .into_iter()
            .map(|seed| async move { operate(world, &mut Rng::with_seed(seed)).await }),
    );
    let all = async {
        let (mut did, others) = tokio::join!(moves, operators);
        did.extend(others.into_iter().flatten());
        did
    };
    let did = settled(world, all).await;
    for one in &did {
        judge(world, one).await;
    }
    // What is open now was left by a command that reported it, and any operator can continue it.
    for left in listed(world).await.iter().filter(|one| is_open(one)) {
        let id = left["move"].as_str().unwrap();
        assert_eq!(left["at_work"].as_array().map(Vec::len), Some(0), "{left}");
        let told = did
            .iter()
            .any(|one| one.ran.code() != 0 && (one.told().contains(id) || one.ran.code() == -9));
        assert!(
            told,
            "nobody said that {id} is left open: {left}\n{}",
            did.iter().map(Did::told).collect::<String>()
        );
        let verb = if rng.bool() { "resume" } else { "abort" };
        let args = ["moves", verb, id];
        let last = Did::run(world, &args).await;
        judge(world, &last).await;
        let open = phases(world, id)
            .await
            .into_values()
            .any(|phase| !matches!(phase.as_str(), "kept" | "completed" | "aborted"));
        if open {
            // The source had decided some shards: they can only be finished.
            world.run(&["moves", "resume", id]).await;
        }
    }
    for kept in listed(world).await {
        assert!(!is_open(&kept), "{kept}");
        // A mover that was killed, or stopped, may have left shards without an audit.
        let args = [
            "moves",
            "complete",
            kept["move"].as_str().unwrap(),
            "--unaudited",
            "--yes",
        ];
        world.run(&args).await.ended(0);
    }
}

on_mixed_versions! {
    /// Nothing is lost, no mover is harmed, what each command reports is true, and nothing is left
    /// behind.
    15: async fn a_crowd_of_operators(version) {
        let seed = number("PGSHARD_CROWD_SEED", 1);
        let rounds = number("PGSHARD_CROWD_ROUNDS", 3);
        let world = World::new(&[version, other(version)], SHARDS).await;
        let writers = Writers::start(&world, 2).await;
        let mut rng = Rng::with_seed(seed);
        for at in 0..rounds {
            eprintln!("seed {seed}, round {at}");
            round(&world, &mut rng).await;
        }
        let notes = writers.stop().await;
        let gc = world.run(&["moves", "gc"]).await;
        gc.ended(0);
        world.audit(notes.flawless()).await;
        for client in world.all().await {
            let sql = "SELECT (SELECT count(*) FROM pg_replication_slots) + (SELECT count(*) FROM \
                pgshard.mover)";
            assert_eq!(
                client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0),
                0,
                "nothing keeps WAL, nobody is at work"
            );
        }
    }
}
