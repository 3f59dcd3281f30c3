//! One fault at one place of an online move, and what is done about it.
//!
//! A mover dies, or is stopped while a server crashes, its connections break, or another takes its
//! move over. Writers run all the time. Afterwards each shard is on one host, with every
//! acknowledged row, and nothing is left of the move.

use std::collections::BTreeSet;

use pgshard::dev::StopMode;
use pgshard::mover::FAILPOINTS;
use tokio::process::Child;

use super::world::{Ran, World, go_on, never_stopped, stopped_if};

/// The places that only a move with the shard closed passes.
pub(crate) const BLOCKING: [&str; 3] = ["after rows", "after indexes", "after copied"];

/// The places on the reverse replication.
pub(crate) const BACK: [&str; 5] = [
    "before unfence",
    "after unfence",
    "in discard",
    "after target discard",
    "after discard",
];

/// The places that an online move passes, and its reverse replication.
pub(crate) fn places() -> Vec<&'static str> {
    FAILPOINTS
        .into_iter()
        .filter(|name| !BLOCKING.contains(name))
        .collect()
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The mover is killed.
    Kill,
    /// The source crashes while the mover is stopped, and runs again when the mover continues.
    Source,
    /// The same with the target.
    Target,
    /// All its connections are broken, the stream's too.
    Reset,
    /// It sleeps until another has done its work.
    Sleep,
}

/// What is done about it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Resume,
    Abort,
}

impl Verb {
    fn word(self) -> &'static str {
        match self {
            Verb::Resume => "resume",
            Verb::Abort => "abort",
        }
    }
}

/// Three seconds instead of ten. Shorter leases end by themselves on a busy machine.
const LEASE: (&str, &str) = ("PGSHARD_LEASE_MS", "3000");

/// Moves shards of one host to the other with a fault at one place, ends the move, and checks the
/// shards.
pub(crate) async fn combine(world: &World, shards: &[u16], place: &str, fault: Fault, verb: Verb) {
    let from = world.host_of(shards[0]);
    let list = shards
        .iter()
        .map(u16::to_string)
        .collect::<Vec<_>>()
        .join(",");
    let to = format!("db{}", 2 - from);
    let mut args: Vec<String> = ["move", &list, "--to", &to, "--mode", "online", "--yes"]
        .map(str::to_owned)
        .into();
    if BACK.contains(&place) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let id = world
            .run_until(&args, "after swap=kill")
            .await
            .ended(-9)
            .id();
        gone(world, &id).await;
        return back(world, shards, place, fault, verb, from, id).await;
    }
    args.push("--jobs=2".to_owned());
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let id = strike(world, &args, place, fault, from, shards, verb).await;
    let Some(id) = id else {
        return look(world, shards, None).await;
    };
    end(world, shards, fault, verb, from, &id).await;
}

/// The same for the reverse replication: an abort meets the fault.
async fn back(
    world: &World,
    shards: &[u16],
    place: &str,
    fault: Fault,
    verb: Verb,
    from: usize,
    id: String,
) {
    strike(
        world,
        &["moves", "abort", &id],
        place,
        fault,
        from,
        shards,
        verb,
    )
    .await;
    if fault != Fault::Sleep {
        let ran = world.run(&["moves", verb.word(), &id]).await;
        // A move that is aborted completely cannot be resumed.
        assert!(
            ran.code() == 0 || verb == Verb::Resume,
            "{}\n{}",
            ran.stdout,
            ran.stderr
        );
    }
    look(world, shards, Some(&id)).await;
}

/// Runs a command into the fault, and to its end. Returns the move, if there is one.
async fn strike(
    world: &World,
    args: &[&str],
    place: &str,
    fault: Fault,
    from: usize,
    shards: &[u16],
    verb: Verb,
) -> Option<String> {
    if fault == Fault::Kill {
        let ran = world.run_until(args, &format!("{place}=kill")).await;
        ran.ended(-9);
        let id = if args[0] == "move" {
            ran.id()
        } else {
            args[2].to_owned()
        };
        gone(world, &id).await;
        return id_of_any(world, from, shards).await;
    }
    let failpoint = format!("{place}=stop");
    let mut environment = vec![("PGSHARD_FAILPOINT", failpoint.as_str())];
    environment.extend((fault == Fault::Sleep).then_some(LEASE));
    let mut child = world.command(args, &environment).spawn().unwrap();
    let Some(pid) = stopped_if(&child).await else {
        let ran = Ran::of(child).await;
        panic!(
            "it has ended instead of stopping: {}\n{}\n{}",
            ran.code(),
            ran.stdout,
            ran.stderr
        );
    };
    let restart = |host: usize| {
        tokio::task::block_in_place(|| world.servers.server(host).restart(StopMode::Immediate))
            .unwrap();
    };
    let id = id_of_any(world, from, shards).await;
    match fault {
        Fault::Kill => unreachable!("it was dealt with"),
        Fault::Source => restart(from),
        Fault::Target => restart(1 - from),
        Fault::Reset => reset(world).await,
        Fault::Sleep => {
            if let Some(id) = &id {
                succeed(world, &mut child, id, verb).await;
                let before = world.all_about(shards[0]).await;
                go_on(pid);
                let woken = never_stopped(child).await;
                // Only in part: the shards that were taken over had their sessions ended, the
                // others are still its own.
                assert!(
                    [0, 4, 7, 8].contains(&woken.code()),
                    "{}\n{}",
                    woken.stdout,
                    woken.stderr
                );
                assert_eq!(
                    world.all_about(shards[0]).await,
                    before,
                    "the one that slept changed something"
                );
                if woken.code() == 7 {
                    // No mover took this shard over, because it was not claimed yet: the first
                    // mover has claimed it since, and given up.
                    world.run(&["moves", verb.word(), id]).await;
                }
                return Some(id.clone());
            }
        }
    }
    go_on(pid);
    let ran = never_stopped(child).await;
    assert!(
        [0, 4, 5, 7, 8].contains(&ran.code()),
        "{}: {}\n{}",
        ran.code(),
        ran.stdout,
        ran.stderr
    );
    id.or(id_of_any(world, from, shards).await)
}

/// Another mover brings the move to an end while the first one sleeps.
async fn succeed(world: &World, child: &mut Child, id: &str, verb: Verb) {
    let ran = world.run_with(&["moves", verb.word(), id], &[LEASE]).await;
    if ran.code() != 0 {
        world.run_with(&["moves", "resume", id], &[LEASE]).await;
    }
    assert!(
        child.try_wait().unwrap().is_none(),
        "the first mover sleeps still"
    );
}

/// Waits until the servers have noticed that a killed mover is gone: a claim that it had sent is
/// still carried out, if the server has not begun with it.
async fn gone(world: &World, id: &str) {
    let sql =
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE starts_with(application_name, $1))";
    for host in 0..2 {
        let db = world.servers.superuser(host).await;
        while db
            .query_one(sql, &[&format!("pgshard {id}/")])
            .await
            .unwrap()
            .get(0)
        {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    }
}

/// Ends the connections of all movers.
async fn reset(world: &World) {
    let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
        WHERE application_name ~ '^pgshard (mover|[0-9a-f-]{36}/)'";
    for host in 0..2 {
        world
            .servers
            .superuser(host)
            .await
            .query_one(sql, &[])
            .await
            .unwrap();
    }
}

/// The move of the first of these that was claimed.
async fn id_of_any(world: &World, from: usize, shards: &[u16]) -> Option<String> {
    for shard in shards {
        if let Some(id) = id_of(world, from, *shard).await {
            return Some(id);
        }
    }
    None
}

/// The newest move of a shard away from a host.
async fn id_of(world: &World, from: usize, shard: u16) -> Option<String> {
    let sql = "SELECT move_id::text FROM pgshard.move WHERE shard_id = $1 ORDER BY created_at DESC \
        LIMIT 1";
    let rows = world
        .servers
        .app(from)
        .await
        .query(sql, &[&i32::from(shard)])
        .await
        .unwrap();
    rows.first().map(|row| row.get(0))
}

/// Resumes or aborts the move, and checks where its shards are.
async fn end(world: &World, shards: &[u16], fault: Fault, verb: Verb, from: usize, id: &str) {
    let mut there = BTreeSet::from([1 - from]);
    if fault != Fault::Sleep {
        let ran = world.run(&["moves", verb.word(), id]).await;
        match verb {
            Verb::Resume => drop(ran.ended(0)),
            Verb::Abort if ran.code() == 0 => there = BTreeSet::from([from]),
            Verb::Abort => {
                // Some shards were decided, or all.
                assert!(
                    [4, 8].contains(&ran.code()),
                    "{}: {}\n{}",
                    ran.code(),
                    ran.stdout,
                    ran.stderr
                );
                world.run(&["moves", "resume", id]).await;
                there = BTreeSet::from([0, 1]);
            }
        }
    } else if verb == Verb::Abort {
        there = BTreeSet::from([0, 1]);
    }
    look(world, shards, Some(id)).await;
    for shard in shards {
        // A shard that was not claimed yet when the mover died does not belong to the move.
        if id_of(world, from, *shard).await.as_deref() != Some(id) {
            continue;
        }
        assert!(
            there.contains(&world.host_of(*shard)),
            "shard {shard} is not on {there:?}"
        );
    }
}

async fn look(world: &World, shards: &[u16], id: Option<&str>) {
    for shard in shards {
        world.audit_shard(*shard).await;
    }
    world.audit_streams(id).await;
}
