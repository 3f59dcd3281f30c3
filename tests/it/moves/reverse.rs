//! The cost and the end of a reverse replication: the WAL that it keeps, moves that make none, and
//! hosts that do not answer.

use std::time::Duration;

use pgshard::dev::StopMode;
use pgshard::mover::{Failpoint, Leases, Options};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::support::{World, go_on, lines, never_stopped, stopped};

/// Slots and publications of a host.
async fn streams(world: &World, host: usize) -> String {
    let sql = "SELECT slot_name::text FROM pg_replication_slots UNION ALL SELECT pubname::text \
        FROM pg_publication";
    lines(&world.servers.app(host).await, sql).await
}

/// What `moves list` has for the only move as the next command.
async fn next(world: &World) -> String {
    let listed = world.run(&["moves", "list"]).await.ended(0).last();
    listed["moves"][0]["next"].as_str().unwrap().to_owned()
}

/// Changes that an old copy cannot take for now are behind, although nothing that came before them
/// is: a lock keeps the feed from them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_that_waits_for_a_lock_reports_how_far_it_is_behind() {
    let world = World::new(&[15, 18], 4).await;
    world
        .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0);
    let mut feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
    let mut fed = BufReader::new(feed.stdout.take().unwrap()).lines();
    // The first report that fits, and its seconds.
    let mut report = async |fits: &dyn Fn(u64, f64) -> bool| loop {
        let line = tokio::time::timeout(Duration::from_secs(60), fed.next_line());
        let line = line.await.expect("a report every two seconds").unwrap();
        let event: serde_json::Value = serde_json::from_str(&line.unwrap()).unwrap();
        if event["event"] == "fed" {
            let bytes = event["behind_bytes"].as_u64().unwrap();
            let seconds = event["behind_s"].as_f64().unwrap();
            if fits(bytes, seconds) {
                return seconds;
            }
        }
    };
    report(&|bytes, _| bytes == 0).await;
    let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
    let lock = "BEGIN; LOCK TABLE shard_0000__left_e1.users IN ACCESS EXCLUSIVE MODE";
    db1.batch_execute(lock).await.unwrap();
    let insert = "INSERT INTO shard_0000.users (name) VALUES ('late')";
    db2.batch_execute(insert).await.unwrap();
    let first = report(&|bytes, _| bytes > 0).await;
    report(&|bytes, seconds| bytes > 0 && seconds > first + 1.0).await;
    db1.batch_execute("COMMIT").await.unwrap();
    report(&|bytes, seconds| bytes == 0 && seconds == 0.0).await;
    let late = "SELECT count(*) FROM shard_0000__left_e1.users WHERE name = 'late'";
    let late: i64 = db1.query_one(late, &[]).await.unwrap().get(0);
    assert_eq!(late, 1);
    feed.kill().await.unwrap();
}

/// How much the slot keeps is shown; beyond its limit gc gives up the reverse replication, and
/// nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_keeps_too_much_is_given_up() {
    let world = World::new(&[15, 18], 4).await;
    let id = world
        .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0)
        .id();
    let long = "INSERT INTO shard_0000.users (name) SELECT repeat(md5(n::text), 30) FROM \
        generate_series(1, 5000) n";
    world
        .servers
        .app(1)
        .await
        .batch_execute(long)
        .await
        .unwrap();
    world.run(&["moves", "gc"]).await.ended(0);
    let listed = world.run(&["moves", "list"]).await.ended(0).last()["moves"][0].take();
    assert!(
        listed["back_wal_kept"].as_u64().unwrap() > 4 << 20 && listed["back"] == "open",
        "{listed}"
    );
    let watched = world.run(&["moves", "watch", &id]).await;
    assert!(
        watched
            .ended(0)
            .json()
            .iter()
            .any(|line| line["event"] == "stream" && line["source"] == "db2"),
        "{}",
        watched.stdout
    );

    let gc = world
        .run(&["moves", "gc", "--max-wal", "3MiB"])
        .await
        .ended(0)
        .last();
    assert!(
        gc["cleaned"]
            .to_string()
            .contains("is no longer possible: its slot kept"),
        "{gc}"
    );
    assert_eq!(streams(&world, 1).await, "");
    let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
    assert!(
        refused
            .ended(4)
            .stderr
            .contains("MiB of WAL, more than it may"),
        "{}",
        refused.stderr
    );
    let listed = world.run(&["moves", "list"]).await.ended(0).last()["moves"][0].take();
    assert!(
        listed["back_wal_kept"].is_null() && listed["back"].as_str().unwrap().starts_with("lost"),
        "{listed}"
    );
    world.audit_places().await;
    world
        .run(&["moves", "complete", &id, "--yes"])
        .await
        .ended(0);
    world.audit_places().await;
}

/// A complete that is refused leaves the way back open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_complete_that_is_refused_gives_up_nothing() {
    let world = World::new(&[15, 15], 4).await;
    let id = world
        .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0)
        .id();
    let kept = streams(&world, 1).await;
    let db1 = world.servers.app(0).await;
    db1.batch_execute("GRANT SELECT ON shard_0000__left_e1.users TO PUBLIC")
        .await
        .unwrap();
    let refused = world.run(&["moves", "complete", &id, "--yes"]).await;
    assert!(
        refused.ended(4).stderr.contains("is not what was copied"),
        "{}",
        refused.stderr
    );
    assert_eq!(streams(&world, 1).await, kept);
    db1.batch_execute("REVOKE SELECT ON shard_0000__left_e1.users FROM PUBLIC")
        .await
        .unwrap();
    world
        .run(&["moves", "rollback", &id, "--yes"])
        .await
        .ended(0);
    assert_eq!(world.host_of(0), 0);
    world.audit_places().await;
}

/// While a move makes its publication and slot, another that ends in the other direction, and gc,
/// leave them alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_being_made_is_left_alone() {
    let world = World::new(&[15, 18], 8).await;
    // Those that end come from db2, to which the others go.
    assert_eq!([0, 4].map(|shard| world.host_of(shard)), [0, 1]);
    for (shard, place) in [("0", "after back publication"), ("1", "after back slot")] {
        let args = ["move", shard, "--to", "db2", "--mode", "online", "--yes"];
        let failpoint = format!("{place}=stop");
        let child = world
            .command(&args, &[("PGSHARD_FAILPOINT", failpoint.as_str())])
            .spawn()
            .unwrap();
        let pid = stopped(&child).await;
        let made = streams(&world, 1).await;
        assert!(made.contains("_back_"), "{made}");
        let other = (4 + shard.parse::<u16>().unwrap()).to_string();
        world
            .run(&["move", &other, "--to", "db1", "--mode", "blocking", "--yes"])
            .await
            .ended(0);
        world.run(&["moves", "gc"]).await.ended(0);
        let left = streams(&world, 1).await;
        let lasts = |one: &str| left.lines().any(|other| other == one);
        assert!(
            made.lines().filter(|one| one.contains("_back_")).all(lasts),
            "{made}\n{left}"
        );
        go_on(pid);
        let id = never_stopped(child).await.ended(0).id();
        world
            .run(&["moves", "rollback", &id, "--yes"])
            .await
            .ended(0);
        assert_eq!(world.host_of(shard.parse().unwrap()), 0);
    }
    world.audit_places().await;
}

/// A shard with an old copy that is fed moves to a third host. The publication of the feed is
/// pgshard's own: it is no loss, and not reported. An application's publication is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fed_shard_moves_on() {
    let world = World::new(&[15, 18], 4).await;
    world
        .run(&["move", "0", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0);
    assert!(streams(&world, 1).await.contains("_back_"));
    assert_eq!(next(&world).await, "complete or rollback");
    let plan = ["move", "0", "--to", "db1", "--mode", "online", "--plan"];
    let ran = world.run(&plan).await;
    assert!(
        !(ran.ended(0).stdout.clone() + &ran.stderr).contains("is not carried"),
        "{}\n{}",
        ran.stdout,
        ran.stderr
    );
    let publish = "CREATE PUBLICATION theirs FOR TABLE shard_0000.users";
    world
        .servers
        .superuser(1)
        .await
        .batch_execute(publish)
        .await
        .unwrap();
    let ran = world.run(&plan).await;
    let told = ran.ended(0).stdout.clone() + &ran.stderr;
    assert!(
        told.contains("users in publication theirs: a publication is not carried"),
        "{told}"
    );
    assert_eq!(told.matches("is not carried").count(), 1, "{told}");
}

/// A move with `--no-reverse-replication` makes none, even if another mover continues it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn none_where_none_is_wanted() {
    let world = World::new(&[18, 15], 4).await;
    let args = [
        "move",
        "0",
        "--to",
        "db2",
        "--mode",
        "online",
        "--yes",
        "--no-reverse-replication",
    ];
    let id = world
        .run_until(&args, "after chunks=kill")
        .await
        .ended(-9)
        .id();
    world.run(&["moves", "resume", &id]).await.ended(0);
    assert_eq!(streams(&world, 1).await, "");
    assert_eq!(next(&world).await, "complete");
    let db1 = world.servers.app(0).await;
    assert!(
        db1.query("SELECT FROM pgshard.back", &[])
            .await
            .unwrap()
            .is_empty()
    );
    let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
    assert!(
        refused
            .ended(4)
            .stderr
            .contains("moved with --no-reverse-replication"),
        "{}",
        refused.stderr
    );
    let remedy =
        format!("`pgshard move 0 --to db1` copies it again; `pgshard moves complete {id}` drops");
    assert!(refused.stderr.contains(&remedy), "{}", refused.stderr);
    assert_eq!(world.state(1, 0).await, "serving");
    // The old copy exists, as it was at the switch.
    db1.query("SELECT FROM shard_0000__left_e1.users", &[])
        .await
        .unwrap();
    world.audit_places().await;
    world
        .run(&["moves", "complete", &id, "--yes"])
        .await
        .ended(0);
    world.audit_places().await;
}

/// A rollback goes to several hosts, and each feeds its own shards' old copies. If one of them does
/// not answer, `complete` drops the old copies of the others' shards, and reports what is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ways_back_from_several_hosts() {
    let world = World::new(&[15, 18, 15], 6).await;
    let args = ["move", "0,2", "--to", "db3", "--mode", "online", "--yes"];
    let id = world
        .run_until(&args, "before swap=kill")
        .await
        .ended(-9)
        .id();
    world.run(&["moves", "resume", &id]).await.ended(0);
    let args = ["moves", "rollback", &id, "--yes"];
    let back = world
        .run_until(&args, "before swap=kill")
        .await
        .ended(-9)
        .id();
    world.run(&["moves", "resume", &back]).await.ended(0);
    for (host, shard) in [(0, 0), (1, 2)] {
        let insert = format!("INSERT INTO shard_{shard:04}.users (name) VALUES ('back again')");
        world
            .servers
            .app(host)
            .await
            .batch_execute(&insert)
            .await
            .unwrap();
    }
    world.run(&["moves", "gc"]).await.ended(0);
    let mover = world.mover();
    let feeding = tokio::spawn({
        let mover = mover.clone();
        async move { mover.follow_old_copies(None).await }
    });
    let fed = "SELECT name FROM shard_0000__left_e2.users UNION ALL SELECT name FROM \
        shard_0002__left_e2.users";
    let db3 = world.servers.app(2).await;
    while lines(&db3, fed).await != "back again\nback again\n" {
        let lost = lines(&db3, "SELECT lost FROM pgshard.back WHERE lost IS NOT NULL").await;
        assert_eq!(lost, "");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    mover.stop();
    feeding.await.unwrap();
    tokio::task::block_in_place(|| world.servers.server(0).stop(StopMode::Fast)).unwrap();
    let ran = world.run(&["moves", "complete", &back, "--yes"]).await;
    let last = ran.ended(8).last();
    assert_eq!(
        (&last["shards"], &last["failed"][0]["shard"]),
        (&"2".into(), &0.into()),
        "{last}"
    );
    assert!(ran.stderr.contains("db1"), "{}", ran.stderr);
    assert_eq!(streams(&world, 1).await, "");
    tokio::task::block_in_place(|| world.servers.server(0).start()).unwrap();
    assert_ne!(streams(&world, 0).await, "");
    // Between the reverse replication and the old copies.
    let failpoint = Some(Failpoint::parse("after back drop=fail").unwrap());
    let failing = world.mover_with(Options::default().failpoint(failpoint));
    let report = failing.complete(back.parse().unwrap()).await.unwrap();
    assert_eq!(
        (report.done.len(), report.failed.len()),
        (1, 1),
        "{report:?}"
    );
    assert_eq!(streams(&world, 0).await, "");
    world
        .run(&["moves", "complete", &back, "--yes"])
        .await
        .ended(0);
    assert_eq!(streams(&world, 0).await, "");
    world.audit_places().await;
}

/// A rollback takes one shard of a feed, and dies. The slot that both need keeps what the shard
/// lacks, no process feeds in that time, and the feed continues with the other shard when the
/// rollback has ended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_feed_leaves_a_rollback_its_changes() {
    let world = World::new(&[15, 18], 4).await;
    let id = world
        .run(&["move", "0,1", "--to", "db2", "--mode", "online", "--yes"])
        .await
        .ended(0)
        .id();
    let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
    let write = async |name: &str| {
        for shard in 0..2 {
            let sql = format!("INSERT INTO shard_{shard:04}.users (name) VALUES ('{name}')");
            db2.batch_execute(&sql).await.unwrap();
        }
    };
    let mover =
        world.mover_with(Options::default().leases(Leases::of(Duration::from_millis(1500))));
    let feeding = tokio::spawn({
        let mover = mover.clone();
        async move { mover.follow_old_copies(None).await }
    });
    let fed = async |shard: u16, name: &str| {
        let sql = format!("SELECT name FROM shard_{shard:04}__left_e1.users WHERE name = '{name}'");
        while lines(&db1, &sql).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    write("before").await;
    fed(0, "before").await;
    fed(1, "before").await;
    let args = ["moves", "rollback", &id, "--yes", "--jobs=1"];
    let back = world
        .run_until(&args, "after adopt=kill")
        .await
        .ended(-9)
        .id();
    // Nor can another rollback take the slot from it.
    let beside = world.run(&["moves", "rollback", &id, "--yes"]).await;
    assert!(
        beside
            .ended(4)
            .stderr
            .contains(&format!("the move {back} takes other shards of it back")),
        "{}",
        beside.stderr
    );
    // Like any lost connection: the feed starts again, and finds that a shard is no longer its own.
    let sql =
        "SELECT count(pg_terminate_backend(active_pid)) FROM pg_replication_slots WHERE active";
    world
        .servers
        .superuser(1)
        .await
        .query_one(sql, &[])
        .await
        .unwrap();
    write("meanwhile").await;
    // Long enough for a reader that has passed those changes to confirm them to the slot.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    world.run(&["moves", "resume", &back]).await.ended(0);
    fed(1, "meanwhile").await;
    mover.stop();
    feeding.await.unwrap();
    assert_eq!(
        lines(&db1, "SELECT name FROM shard_0000.users ORDER BY 1").await,
        "before\nmeanwhile\n"
    );
    world
        .run(&["moves", "rollback", &id, "--yes"])
        .await
        .ended(0);
    assert_eq!(
        lines(&db1, "SELECT name FROM shard_0001.users ORDER BY 1").await,
        "before\nmeanwhile\n"
    );
    world.audit_places().await;
}

on_each_version! {
    /// A migration of shards that could be taken back ends that: the plan and `up` name them.
    async fn a_migration_names_the_rollbacks_that_it_ends(version) {
        let world = World::new(&[version, version], 6).await;
        let id = world
            .run(&["move", "0-1", "--to", "db2", "--mode", "online", "--yes"])
            .await
            .ended(0)
            .id();
        let blocking = world
            .run(&["move", "2", "--to", "db2", "--yes"])
            .await
            .ended(0)
            .id();
        world.write(
            "migrations/0002_captions.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN caption \
            text;",
        );
        let planned = world.run(&["migrate", "plan"]).await;
        assert_eq!(
            planned.ended(0).last()["ends_rollbacks"],
            serde_json::json!({ id.as_str(): "0-1" })
        );
        let up = world.run(&["migrate", "up"]).await;
        let words = format!("the move {id} can be taken back now and not after this (shards 0-1)");
        assert!(
            up.ended(0).stderr.contains(&words) && !up.stderr.contains(&blocking),
            "{}",
            up.stderr
        );
        let refused = world.run(&["moves", "rollback", &id, "--yes"]).await;
        assert!(
            refused.ended(4).stderr.contains(
                "`pgshard move 0 --to db1` copies it \
            again"
            ),
            "{}",
            refused.stderr
        );
        let planned = world.run(&["migrate", "plan"]).await;
        assert_eq!(
            planned.ended(0).last()["ends_rollbacks"],
            serde_json::json!({})
        );
    }
}
