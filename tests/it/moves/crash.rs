//! The mover of closed shards is killed, or a step fails, at every place; then the move is resumed,
//! or separately aborted, during writes. The places of online moves are in `faults`. Each version
//! has every second place, unless `PGSHARD_TEST_LONG` is set.

use pgshard::mover::FAILPOINTS;

use crate::support::faults::BACK as ON_THE_REVERSE;
use crate::support::{World, Writers, other, share};

/// Whether only an online move passes this place.
fn is_online(name: &str) -> bool {
    let at = |name: &str| FAILPOINTS.iter().position(|known| *known == name).unwrap();
    let of_the_stream = [
        "in lend",
        "after drain",
        "after forgotten",
        "after slot drop",
        "after publication drop",
    ];
    (at("before publication")..=at("after preset")).contains(&at(name))
        || of_the_stream.contains(&name)
}

/// Whether the shard belongs to the target from here on.
fn decided(name: &str) -> bool {
    let at = |name: &str| FAILPOINTS.iter().position(|known| *known == name).unwrap();
    !ON_THE_REVERSE.contains(&name) && at(name) >= at("after decide")
}

/// What is done about a move that has stopped.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Verb {
    Resume,
    Abort,
}

/// Moves a shard to the other host with a failpoint on the way. Returns the move's ID; `None` if it
/// never began.
async fn interrupt(world: &World, shard: u16, name: &str, action: &str) -> Option<String> {
    let to = format!("db{}", 2 - world.host_of(shard));
    let shard = shard.to_string();
    let args = [
        "move",
        shard.as_str(),
        "--to",
        to.as_str(),
        "--mode",
        "blocking",
        "--yes",
    ];
    let code = if action == "kill" { -9 } else { 7 };
    if !ON_THE_REVERSE.contains(&name) {
        let ran = world.run_until(&args, &format!("{name}={action}")).await;
        ran.ended(code);
        return (name != "before claim").then(|| ran.id());
    }
    let id = world
        .run_until(&args, "after swap=kill")
        .await
        .ended(-9)
        .id();
    world
        .run_until(&["moves", "abort", &id], &format!("{name}={action}"))
        .await
        .ended(code);
    Some(id)
}

/// Ends the move, and checks where the shard is now.
async fn end(world: &World, shard: u16, name: &str, id: &str, verb: Verb) {
    let from = world.servers.servers().len()
        - 1
        - usize::from(shard < world.config.cluster.shards.get() / 2);
    let mut moved = true;
    if verb == Verb::Abort {
        let ran = world.run(&["moves", "abort", id]).await;
        if decided(name) {
            ran.ended(4);
            world.run(&["moves", "resume", id]).await.ended(0);
        } else {
            ran.ended(0);
            moved = false;
        }
    } else {
        // gc leaves alone what can be resumed.
        let gc = world.mover().gc().await;
        assert!(gc.failed.is_empty(), "{name}: {gc:?}");
        // The exception is a target that no process is going to open: there, the failed mover has
        // given its lease back.
        let opened = |thing: &pgshard::mover::Cleaned| {
            name == "after decide" && thing.what.ends_with("opened")
        };
        assert!(gc.cleaned.iter().all(opened), "{name}: {gc:?}");
        let last = world.run(&["moves", "resume", id]).await.ended(0).last();
        assert_eq!(
            (&last["event"], &last["shards"]),
            (&"done".into(), &shard.to_string().into()),
            "{name}"
        );
    }
    let now = if moved { 1 - from } else { from };
    assert_eq!(world.host_of(shard), now, "{name}");
    assert_eq!(world.state(now, shard).await, "serving", "{name}");
}

/// One world, with a shard for each failpoint.
async fn at_every_step(version: u32, action: &str, verb: Verb) {
    // An abort takes those that the version's resume leaves out.
    let turn = if verb == Verb::Abort {
        other(version)
    } else {
        version
    };
    let places = share(turn, FAILPOINTS.into_iter().filter(|name| !is_online(name)));
    let world = World::new(&[version, other(version)], places.len() as u16).await;
    let writers = Writers::start(&world, 3).await;
    for (shard, name) in places.into_iter().enumerate() {
        let shard = shard as u16;
        let begun = std::time::Instant::now();
        let id = interrupt(&world, shard, name, action).await;
        if action == "fail" && !decided(name) && name != "before unfence" {
            let host = world.host_of(shard);
            assert_eq!(
                world.state(host, shard).await,
                "serving",
                "{name}: the source serves again at once"
            );
        }
        if let Some(id) = id {
            end(&world, shard, name, &id, verb).await;
        }
        eprintln!(
            "{name}={action}, {verb:?}: {} ms",
            begun.elapsed().as_millis()
        );
        world.audit_places().await;
    }
    let notes = writers.stop().await;
    eprintln!("{} rows", notes.acknowledged.len());
    world.audit(notes.flawless()).await;
}

on_each_version! {
    async fn killed_and_resumed(version) {
        at_every_step(version, "kill", Verb::Resume).await;
    }

    async fn killed_and_aborted(version) {
        at_every_step(version, "kill", Verb::Abort).await;
    }

    async fn failed_and_resumed_or_aborted(version) {
        let verb = if version == 15 {
            Verb::Abort
        } else {
            Verb::Resume
        };
        at_every_step(version, "fail", verb).await;
    }
}
