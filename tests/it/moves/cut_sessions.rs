//! A mover that loses its sessions while it copies, waits or follows: by a clean restart of a host,
//! or by something between the hosts that ends idle connections. It carries on.

use pgshard::dev::StopMode;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;

use crate::support::{Ran, World, Writers, is_long, other, until};

/// What the mover is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    /// It copies, slowly.
    Copying,
    /// It waits before the fence, until it is continued.
    Held,
    /// It waits before the fence, until a time.
    At,
    /// It applies what changes to an old copy.
    Feeding,
}

/// What happens to its sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The host is restarted in order.
    Restarted,
    /// Every session of pgshard there is ended, as by a proxy that finds them idle.
    Ended,
}

const DOING: [Doing; 4] = [Doing::Copying, Doing::Held, Doing::At, Doing::Feeding];
const CUTS: [Cut; 2] = [Cut::Restarted, Cut::Ended];

/// All cells, or, in a test that takes its turn, every third.
fn cells(version: u32) -> Vec<(Doing, usize, Cut)> {
    let all = DOING.iter().flat_map(|doing| {
        let hosts = [0, 1].into_iter();
        hosts.flat_map(move |host| CUTS.iter().map(move |cut| (*doing, host, *cut)))
    });
    // Each third has every work, both hosts and both cuts.
    let first = usize::from(version == 18);
    all.enumerate()
        .filter(|(at, _)| is_long() || at % 3 == first)
        .map(|(_, cell)| cell)
        .collect()
}

async fn cut(world: &World, host: usize, how: Cut) {
    match how {
        Cut::Restarted => {
            tokio::task::block_in_place(|| world.servers.server(host).restart(StopMode::Fast))
                .unwrap();
        }
        Cut::Ended => {
            let sql = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE application_name ~ '^pgshard (mover|[0-9a-f-]{36}/)'";
            let db = world.servers.superuser(host).await;
            let ended: i64 = db.query_one(sql, &[]).await.unwrap().get(0);
            assert!(ended > 0, "the mover has sessions on both hosts");
        }
    }
}

fn interrupt(child: &Child) {
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
}

/// One cell: shard 0 moves from db1 to db2, or is fed back from there.
async fn survives(world: &World, doing: Doing, host: usize, how: Cut) {
    let cell = format!("{doing:?}, db{}, {how:?}", host + 1);
    let db1 = world.servers.app(0).await;
    let mut args: Vec<String> = ["move", "0", "--to", "db2", "--yes", "--mode", "online"]
        .map(str::to_owned)
        .into();
    let ready = "SELECT count(*) = 1 FROM pgshard.move WHERE phase = 'ready'";
    let soon = (jiff::Timestamp::now() + std::time::Duration::from_secs(20)).to_string();
    match doing {
        Doing::Copying => args.extend(["--max-rate".to_owned(), "150kB".to_owned()]),
        Doing::Held => args.push("--hold".to_owned()),
        Doing::At => args.extend(["--at".to_owned(), soon]),
        Doing::Feeding => {
            let args: Vec<&str> = args.iter().map(String::as_str).collect();
            let id = world.run(&args).await.ended(0).id();
            return feeds(world, &id, host, how, &cell).await;
        }
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let mover = world.command(&args, &[]).spawn().unwrap();
    match doing {
        Doing::Copying => {
            let copied = "SELECT count(*) FILTER (WHERE snapshot IS NOT NULL) > 0
                AND count(*) FILTER (WHERE snapshot IS NULL) > 3 FROM pgshard.chunk";
            until(&world.servers.app(1).await, copied).await;
        }
        _ => until(&db1, ready).await,
    }
    cut(world, host, how).await;
    if doing == Doing::Held {
        world.run(&["moves", "continue"]).await.ended(0);
    }
    let ran = Ran::of(mover).await;
    assert_eq!(ran.code(), 0, "{cell}: {}\n{}", ran.stdout, ran.stderr);
    assert!(
        !ran.stderr.contains("lost its lease") && !ran.stderr.contains("the fence"),
        "{cell}: {}",
        ran.stderr
    );
    assert_eq!(world.state(1, 0).await, "serving", "{cell}");
    home(world, &ran.id()).await;
}

/// The old copy of a move that is kept gets what is written after the cut.
async fn feeds(world: &World, id: &str, host: usize, how: Cut, cell: &str) {
    let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
    let fed = |name: &str| {
        let old = "SELECT EXISTS (SELECT FROM shard_0000__left_e";
        let epoch = "SELECT epoch::text FROM pgshard.move WHERE phase = 'kept'";
        (epoch, format!("{old}EPOCH.users WHERE name = '{name}')"))
    };
    // A shard that has been fed before has the names of that time.
    for name in [&format!("before {cell}"), cell] {
        if name == cell {
            cut(world, host, how).await;
        }
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        let sql = "INSERT INTO shard_0000.users (name) VALUES ($1)";
        db2.execute(sql, &[&name]).await.unwrap();
        let (epoch, is_fed) = fed(name);
        let epoch: String = db1.query_one(epoch, &[]).await.unwrap().get(0);
        until(&db1, &is_fed.replace("EPOCH", &epoch)).await;
    }
    interrupt(&feed);
    Ran::of(feed).await.ended(0);
    home(world, id).await;
}

/// Ends the move, and brings the shard back for the next cell.
async fn home(world: &World, id: &str) {
    world
        .run(&["moves", "complete", id, "--yes"])
        .await
        .ended(0);
    let back = world
        .run(&["move", "0", "--to", "db1", "--yes", "--mode", "online"])
        .await;
    world
        .run(&["moves", "complete", &back.ended(0).id(), "--yes"])
        .await
        .ended(0);
}

on_each_version! {
    /// Whatever it is doing, on whichever host its sessions end, and however.
    async fn a_mover_survives_the_end_of_its_sessions(version) {
        let world = World::new(&[version, other(version)], 2).await;
        // Keys that lie far apart have chunks of their own.
        let fill = "INSERT INTO shard_0000.users (name) VALUES ('u');
            INSERT INTO shard_0000.photos (user_id, title)
            SELECT id, repeat('x', 1000) FROM shard_0000.users, generate_series(1, 1500)";
        world
            .servers
            .app(0)
            .await
            .batch_execute(fill)
            .await
            .unwrap();
        for (doing, host, how) in cells(version) {
            println!("{doing:?}, db{}, {how:?}", host + 1);
            survives(&world, doing, host, how).await;
        }
        world.audit_places().await;
    }

    /// Writers that see the restart lose nothing that was acknowledged.
    async fn a_held_move_survives_a_restart_under_writers(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let writers = Writers::start(&world, 2).await;
        let mover = world
            .command(
                &[
                    "move", "0", "--to", "db2", "--yes", "--mode", "online", "--hold",
                ],
                &[],
            )
            .spawn()
            .unwrap();
        let ready = "SELECT count(*) = 1 FROM pgshard.move WHERE phase = 'ready'";
        until(&world.servers.app(0).await, ready).await;
        cut(&world, 0, Cut::Restarted).await;
        world.run(&["moves", "continue"]).await.ended(0);
        let ran = Ran::of(mover).await;
        assert_eq!(ran.code(), 0, "{}\n{}", ran.stdout, ran.stderr);
        let notes = writers.stop().await;
        world.audit(notes.tolerably()).await;
    }

    /// A host without a free connection is tried again, and nothing is reported about a fence.
    async fn a_mover_that_copies_waits_for_connections(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let fill = "INSERT INTO shard_0000.users (name) VALUES ('u');
            INSERT INTO shard_0000.photos (user_id, title)
            SELECT id, repeat('x', 1000) FROM shard_0000.users, generate_series(1, 1500)";
        world
            .servers
            .app(0)
            .await
            .batch_execute(fill)
            .await
            .unwrap();
        let superuser = world.servers.superuser(1).await;
        let args = [
            "move",
            "0",
            "--to",
            "db2",
            "--yes",
            "--mode",
            "online",
            "--max-rate",
            "150kB",
        ];
        let mover = world.command(&args, &[]).spawn().unwrap();
        let copied = "SELECT count(*) FILTER (WHERE snapshot IS NOT NULL) > 0 FROM pgshard.chunk";
        until(&superuser, copied).await;
        // New sessions are refused with 53300, as they are where all connections are taken.
        superuser
            .batch_execute("ALTER ROLE app CONNECTION LIMIT 0")
            .await
            .unwrap();
        cut(&world, 1, Cut::Ended).await;
        let refused = world.run(&["check"]).await;
        assert!(
            refused.code() != 0,
            "no session is let in: {}",
            refused.stdout
        );
        superuser
            .batch_execute("ALTER ROLE app CONNECTION LIMIT -1")
            .await
            .unwrap();
        let ran = Ran::of(mover).await;
        assert_eq!(ran.code(), 0, "{}\n{}", ran.stdout, ran.stderr);
        assert!(!ran.stderr.contains("fence"), "{}", ran.stderr);
        world.audit_places().await;
    }
}
