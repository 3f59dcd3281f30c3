//! Commands that hear Ctrl-C and SIGTERM end in order: what they hold is given back at once, and what is left is named.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Child;
use tokio_postgres::Client;

use crate::support::{Ran, World, lines, other};

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_raw(child.id().expect("the process was not waited for").cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
}

/// Queries until the answer is true.
async fn until(db: &Client, sql: &str) {
    let asked = async {
        while !db.query_one(sql, &[]).await.unwrap().get::<_, bool>(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), asked).await.unwrap_or_else(|_| panic!("never: {sql}"));
}

/// Whether the user with this name is in the old copy of shard 0.
fn is_fed(name: &str) -> String {
    format!("SELECT EXISTS (SELECT FROM shard_0000__left_e1.users WHERE name = '{name}')")
}

/// Whether a session of pgshard waits for a lock.
const WAITS: &str = "SELECT EXISTS (SELECT FROM pg_stat_activity
    WHERE wait_event_type = 'Lock' AND application_name LIKE 'pgshard%')";

/// Who works on moves, and which shards are held.
async fn held(db: &Client) -> String {
    let sql = "SELECT 'mover ' || work FROM pgshard.mover
        UNION ALL SELECT 'shard ' || shard_id FROM pgshard.move WHERE lease_until > clock_timestamp() ORDER BY 1";
    lines(db, sql).await
}

on_each_version! {
    /// Whether it waits between two looks, is in the midst of one, or has just begun: nobody is at work afterwards.
    async fn a_feed_gives_back_what_it_holds(version) {
        let world = World::new(&[version, other(version)], 2).await;
        let (db1, db2) = (world.servers.app(0).await, world.servers.app(1).await);
        world.run(&["move", "0", "--to", "db2", "--yes", "--mode", "online"]).await.ended(0);
        let mut wrong = Vec::new();
        for how in [Signal::INT, Signal::TERM] {
            let name = format!("fed until {}", how.as_raw());
            let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
            db2.execute("INSERT INTO shard_0000.users (name) VALUES ($1)", &[&name]).await.unwrap();
            until(&db1, &is_fed(&name)).await;
            signal(&feed, how);
            let ran = Ran::of(feed).await;
            wrong.push((format!("{how:?}"), ran.code(), held(&db1).await));
        }
        // A look asks the new host who serves the shard.
        let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        until(&db1, "SELECT EXISTS (SELECT FROM pgshard.mover)").await;
        db2.execute("INSERT INTO shard_0000.users (name) VALUES ('looked after')", &[]).await.unwrap();
        until(&db1, &is_fed("looked after")).await;
        db2.batch_execute("BEGIN; LOCK TABLE pgshard.shard").await.unwrap();
        until(&world.servers.app(1).await, WAITS).await;
        signal(&feed, Signal::INT);
        let ran = Ran::of(feed).await;
        db2.batch_execute("ROLLBACK").await.unwrap();
        wrong.push(("in a look".to_owned(), ran.code(), held(&db1).await));
        // Whoever begins writes into the journal that it has the shard.
        let locker = world.servers.app(0).await;
        locker.batch_execute("BEGIN; SELECT FROM pgshard.move FOR UPDATE").await.unwrap();
        let feed = world.command(&["moves", "feed"], &[]).spawn().unwrap();
        until(&db1, "SELECT EXISTS (SELECT FROM pgshard.mover)").await;
        until(&db1, WAITS).await;
        signal(&feed, Signal::INT);
        let ran = Ran::of(feed).await;
        locker.batch_execute("ROLLBACK").await.unwrap();
        wrong.push(("at its start".to_owned(), ran.code(), held(&db1).await));
        wrong.retain(|(_, code, held)| *code != 0 || !held.is_empty());
        assert!(wrong.is_empty(), "{wrong:?}");
        world.audit_places().await;
    }
}
