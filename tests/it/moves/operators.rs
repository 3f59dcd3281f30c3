//! Several operators at the same time: a mover at work on a move is left alone, and takes requests.

use std::time::Duration;

use futures_util::future::join_all;
use serde_json::Value;
use tokio::process::Child;

use crate::support::{Ran, World, Writers, lines, other};

/// A beat is a fifth of it, so that a request is read soon.
const LEASE: (&str, &str) = ("PGSHARD_LEASE_MS", "2500");

/// An online move that waits before its fences, with a mover that is alive.
struct Held {
    child: Child,
    id: String,
}

/// Begins one, and waits until its shards are all `ready`.
async fn held(world: &World, shards: &str, target: &str, count: usize) -> Held {
    let args = [
        "move", shards, "--to", target, "--yes", "--mode", "online", "--hold",
    ];
    let child = world.command(&args, &[LEASE]).spawn().unwrap();
    let id = loop {
        let list = world.run(&["moves", "list"]).await.ended(0).last();
        let open = list["moves"]
            .as_array()
            .unwrap()
            .iter()
            .find(|m| m["phase"] == "ready" && is_whole(m, count))
            .cloned();
        if let Some(listed) = open {
            break listed["move"].as_str().unwrap().to_owned();
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    Held { child, id }
}

fn is_whole(listed: &Value, count: usize) -> bool {
    let count = u16::try_from(count).unwrap();
    let all = pgshard::ShardCount::new(4096).unwrap();
    pgshard::map::parse_shards(listed["shards"].as_str().unwrap(), all)
        .unwrap()
        .len()
        == usize::from(count)
}

/// The leases under which the shards of open moves are held, and what is incoming.
async fn leases(world: &World) -> String {
    let mut text = String::new();
    for client in world.all().await {
        let sql = "SELECT shard_id || ' ' || lease || ' ' || holder FROM pgshard.move
            WHERE phase NOT IN ('kept', 'completed', 'aborted') ORDER BY shard_id";
        text += &lines(&client, sql).await;
    }
    text
}

on_each_version! {
    /// A shard that has failed is not taken over while the others of its group are at work; once
    /// they have ended it is resumed.
    async fn a_failed_shard_waits_for_its_group(version) {
        let world = World::new(&[version, version], 4).await;
        let Held { child, id } = held(&world, "0-1", "db2", 2).await;
        let db = world.servers.app(0).await;
        db.batch_execute("ALTER TABLE shard_0000.photos ADD COLUMN odd integer")
            .await
            .unwrap();
        let failed = "SELECT last_error FROM pgshard.move WHERE shard_id = 0 AND last_error IS NOT \
            NULL";
        while db.query(failed, &[]).await.unwrap().is_empty() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        world.run(&["moves", "resume", &id]).await.ended(4);
        assert_eq!(
            world.run(&["moves", "continue", &id]).await.ended(0).last()["shards"],
            "0-1"
        );
        Ran::of(child).await.ended(8);
        assert_eq!((world.host_of(0), world.host_of(1)), (0, 1));
        db.batch_execute("ALTER TABLE shard_0000.photos DROP COLUMN odd")
            .await
            .unwrap();
        world.run(&["moves", "abort", &id]).await.ended(8);
        world.audit_places().await;
    }
}

/// A move can be named by the beginning of its ID, an ambiguous one is refused, and one command
/// drops all old copies.
#[tokio::test(flavor = "multi_thread")]
async fn moves_by_the_beginning_of_their_ids() {
    let world = World::new(&[15, 15], 4).await;
    let mut ids = Vec::new();
    for shard in ["0", "1"] {
        let ran = world.run(&["move", shard, "--to", "db2", "--yes"]).await;
        ids.push(ran.ended(0).id());
    }
    let common = ids[0]
        .chars()
        .zip(ids[1].chars())
        .take_while(|(a, b)| a == b)
        .count();
    let shown = world.run(&["moves", "show", &ids[1][..=common]]).await;
    assert_eq!(shown.ended(0).last()["move"], ids[1]);
    let both = world.run(&["moves", "show", &ids[0][..common]]).await;
    assert!(
        both.ended(2).stderr.contains(&ids[0]) && both.stderr.contains(&ids[1]),
        "{}",
        both.stderr
    );
    for (id, said) in [
        ("ffffffff", "no move's ID begins"),
        ("0", "too little"),
        ("db2", "too little"),
        ("x", "not the ID"),
    ] {
        let told = world.run(&["moves", "rollback", id, "--yes"]).await;
        assert!(told.ended(2).stderr.contains(said), "{}", told.stderr);
    }
    assert!(
        world
            .run(&["moves", "resume"])
            .await
            .ended(2)
            .stderr
            .contains("no move is open")
    );

    world.run(&["moves", "complete", "--all"]).await.ended(2);
    let completed = world.run(&["moves", "complete", "--all", "--yes"]).await;
    let lines = completed.ended(0).json();
    let reports = lines.iter().filter(|line| line["event"] == "done");
    assert_eq!(reports.count(), 2, "{}", completed.stdout);
    world
        .run(&["moves", "complete", "--all", "--yes"])
        .await
        .ended(0);
    let gone = world.run(&["moves", "rollback", &ids[0], "--yes"]).await;
    assert!(
        gone.ended(4).stderr.contains("its old copy was dropped"),
        "{}",
        gone.stderr
    );
    assert_eq!(
        world.run(&["moves", "list"]).await.ended(0).last()["moves"]
            .as_array()
            .unwrap()
            .len(),
        0
    );
    let all = world.run(&["moves", "list", "--all"]).await.ended(0).last();
    let phases: Vec<_> = all["moves"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| m["phase"].as_str().unwrap())
        .collect();
    assert_eq!(phases, ["completed", "completed"]);
    world
        .run(&["moves", "show", &ids[0][..=common]])
        .await
        .ended(0);
    assert!(
        world
            .run(&["moves", "complete"])
            .await
            .ended(2)
            .stderr
            .contains("no move has old copies")
    );
}

on_mixed_versions! {
    /// Whatever a second operator tries, the first one's mover continues, and the second gets its
    /// identity.
    15: async fn a_living_mover_is_left_alone(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let writers = Writers::start(&world, 2).await;
        let Held { child, id } = held(&world, "0-2", "db2", 3).await;
        let pid = format!("pid {}", child.id().unwrap());
        let before = leases(&world).await;
        let listed = world.run(&["moves", "list"]).await.ended(0).last()["moves"][0].clone();
        assert!(
            listed["at_work"][0].as_str().unwrap().contains(&pid),
            "{listed}"
        );
        assert_eq!(
            (listed["desired"].as_str(), listed["next"].as_str()),
            (Some("hold"), Some("continue, stop or abort"))
        );
        for (args, code) in [
            (vec!["moves", "resume", &id], 4),
            (vec!["moves", "complete", &id, "--yes"], 4),
            (vec!["drain", "db1", "--yes"], 4),
        ] {
            let ran = world.run(&args).await;
            ran.ended(code);
            assert!(
                ran.stderr.contains(&pid) && ran.stderr.contains("moves stop"),
                "{args:?}: {}",
                ran.stderr
            );
        }
        // It has other shards to balance, and reports which ones it leaves alone.
        let ran = world.run(&["rebalance", "--yes"]).await;
        assert!(ran.ended(0).stderr.contains(&pid), "{}", ran.stderr);
        let gc = world.run(&["moves", "gc"]).await.ended(0).last();
        assert_eq!(
            (
                gc["cleaned"].as_array().map(Vec::len),
                gc["failed"].as_array().map(Vec::len)
            ),
            (Some(0), Some(0)),
            "{gc}"
        );
        assert_eq!(leases(&world).await, before);
        world.run(&["moves", "continue", &id]).await.ended(0);
        let first = Ran::of(child).await;
        assert_eq!(first.ended(0).last()["shards"], "0-2");
        let again = world.run(&["moves", "resume", &id]).await;
        again.ended(0);
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// A mover that another process requests to stop does so; the move is resumed with its hold.
    18: async fn a_mover_is_asked_to_stop(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let writers = Writers::start(&world, 2).await;
        let Held { child, id } = held(&world, "0-2", "db2", 3).await;
        let told = world.run(&["moves", "stop", &id]).await.ended(0).last();
        assert_eq!(
            (
                told["asked_of"].as_array().map(Vec::len),
                told["at_work"].as_array().map(Vec::len)
            ),
            (Some(1), Some(0)),
            "{told}"
        );
        let first = Ran::of(child).await;
        assert!(
            first.ended(130).stderr.contains("asked"),
            "{}",
            first.stderr
        );
        let listed = world.run(&["moves", "list"]).await.ended(0).last()["moves"][0].clone();
        assert_eq!(
            (
                listed["at_work"].as_array().map(Vec::len),
                listed["desired"].as_str()
            ),
            (Some(0), Some("hold")),
            "{listed}"
        );
        // There is no mover left to stop.
        let told = world.run(&["moves", "stop", &id]).await.ended(0).last();
        assert_eq!(told["asked_of"].as_array().map(Vec::len), Some(0), "{told}");
        let second = world
            .command(&["moves", "resume", &id], &[LEASE])
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_millis(500)).await;
        world.run(&["moves", "continue", &id]).await.ended(0);
        Ran::of(second).await.ended(0);
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }

    /// A mover that is requested to abort does so; both it and the requesting command report it,
    /// and nothing of the move is left.
    15: async fn a_mover_is_asked_to_abort(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let writers = Writers::start(&world, 2).await;
        let Held { child, id } = held(&world, "0-2", "db2", 3).await;
        world.run(&["moves", "abort", &id]).await.ended(0);
        let first = Ran::of(child).await;
        assert!(
            first.ended(1).stderr.contains("aborted"),
            "{}",
            first.stderr
        );
        assert!((0..3).all(|shard| world.host_of(shard) == 0));
        // A blocking move, and one with its mover in the middle of its copy.
        for mode in ["blocking", "online"] {
            let args = [
                "move", "0-2", "--to", "db2", "--yes", "--mode", mode, "--hold",
            ];
            let child = world.command(&args, &[LEASE]).spawn().unwrap();
            let list = || world.run(&["moves", "list"]);
            while list().await.last()["moves"].as_array().unwrap().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            world.run(&["moves", "abort"]).await.ended(0);
            Ran::of(child).await.ended(1);
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
        for client in world.all().await {
            assert_eq!(
                lines(&client, "SELECT lease::text FROM pgshard.mover").await,
                ""
            );
        }
    }

    /// If two processes resume a dead mover's move at the same time, one of them gets all of it.
    18: async fn a_dead_movers_shards_have_one_heir(version) {
        let world = World::new(&[version, other(version)], 12).await;
        let writers = Writers::start(&world, 2).await;
        let args = ["move", "0-5", "--to", "db2", "--yes", "--mode", "online"];
        let id = world
            .run_until(&args, "after slot=kill")
            .await
            .ended(-9)
            .id();
        let resume = || {
            world
                .command(&["moves", "resume", &id], &[])
                .spawn()
                .unwrap()
        };
        let rans = join_all([resume(), resume(), resume()].map(Ran::of)).await;
        let codes: Vec<i32> = rans.iter().map(Ran::code).collect();
        assert!(
            codes.contains(&0) && codes.iter().all(|code| [0, 4].contains(code)),
            "{codes:?}"
        );
        for ran in &rans {
            assert!(
                !ran.stderr.contains("taken over") && !ran.stderr.contains("57P01"),
                "{}",
                ran.stderr
            );
        }
        let notes = writers.stop().await;
        world.audit(notes.flawless()).await;
    }
}
