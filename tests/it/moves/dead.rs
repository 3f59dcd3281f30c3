//! What routers and `moves gc` do about the moves of dead movers that no operator resumes.

use std::time::{Duration, Instant};

use pgshard::Router;

use crate::support::{World, other};

const INSERT: &str = "INSERT INTO {shard}.users (name) VALUES ('x') RETURNING id";

async fn insert(router: &Router, shard: u16) -> Duration {
    let begun = Instant::now();
    router.by_key(shard).query_one(INSERT, &[]).await.unwrap();
    begun.elapsed()
}

on_each_version! {
    /// A dead mover keeps its shard closed no longer than the fence's deadline; the move can be
    /// finished later.
    async fn the_deadline_ends_a_fence(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let router = world.router().await;
        let ran = world
            .run_until(&["move", "0", "--to", "db2", "--yes"], "after swap=kill")
            .await;
        let id = ran.ended(-9).id();
        let sql = "SELECT extract(epoch FROM fence_deadline - last_fence_at)::float8 FROM \
            pgshard.shard \
                WHERE shard_id = 0";
        let deadline: f64 = world
            .servers
            .app(0)
            .await
            .query_one(sql, &[])
            .await
            .unwrap()
            .get(0);
        assert!((9.9..=10.1).contains(&deadline), "{deadline} s");
        assert_eq!(world.state(0, 0).await, "fenced");
        let waited = insert(&router, 0).await;
        assert!(waited < Duration::from_secs(14), "{waited:?}");
        assert_eq!(world.state(0, 0).await, "serving");
        world.run(&["moves", "resume", &id]).await.ended(0);
        insert(&router, 0).await;
        world.audit_places().await;
    }

    /// The source has decided, and the mover is dead: a router's call opens the target.
    async fn a_router_finishes_an_open(version) {
        let world = World::new(&[version, other(version)], 4).await;
        let router = world.router().await;
        insert(&router, 0).await;
        let ran = world
            .run_until(&["move", "0", "--to", "db2", "--yes"], "after decide=kill")
            .await;
        let id = ran.ended(-9).id();
        assert_eq!(
            (world.state(0, 0).await, world.state(1, 0).await),
            ("moved".to_owned(), "none".to_owned())
        );
        insert(&router, 0).await;
        assert_eq!(world.state(1, 0).await, "serving");
        assert_eq!(world.host_of(0), 0, "nobody has published it");
        world.run(&["moves", "abort", &id]).await.ended(4);
        world.run(&["moves", "resume", &id]).await.ended(0);
        assert_eq!(world.host_of(0), 1);
        let rows = world
            .servers
            .app(1)
            .await
            .query_one(
                "SELECT count(*) FROM \
            shard_0000.users",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(rows.get::<_, i64>(0), 2);
        world.audit_places().await;
    }

    /// gc swaps back what is overdue, opens what is decided, and drops what belongs to ended moves.
    async fn gc_puts_right_what_dead_movers_left(version) {
        let world = World::new(&[version, other(version)], 8).await;
        let lease = ("PGSHARD_LEASE_MS", "300");
        let (swap, decide) = (
            ("PGSHARD_FAILPOINT", "after swap=kill"),
            ("PGSHARD_FAILPOINT", "after decide=kill"),
        );
        let fenced = world
            .run_with(&["move", "0", "--to", "db2", "--yes"], &[lease, swap])
            .await
            .ended(-9)
            .id();
        let decided = world
            .run_with(&["move", "1", "--to", "db2", "--yes"], &[lease, decide])
            .await
            .ended(-9)
            .id();
        let gone = world
            .run_until(
                &["move", "2", "--to", "db2", "--yes"],
                "after signpost=kill",
            )
            .await
            .ended(-9)
            .id();
        let sql = format!("UPDATE pgshard.move SET phase = 'aborted' WHERE move_id = '{gone}'");
        world
            .servers
            .app(0)
            .await
            .batch_execute(&sql)
            .await
            .unwrap();
        // Waits until leases and deadline are over.
        tokio::time::sleep(Duration::from_millis(400)).await;
        let last = world.run(&["moves", "gc"]).await.ended(0).last();
        assert_eq!(last["cleaned"].as_array().unwrap().len(), 4, "{last}");
        assert_eq!(world.state(0, 0).await, "serving");
        assert_eq!(world.state(1, 1).await, "serving");
        let again = world.run(&["moves", "gc"]).await.ended(0).last();
        assert!(again["cleaned"].as_array().unwrap().is_empty(), "{again}");
        world.run(&["moves", "resume", &fenced]).await.ended(0);
        world.run(&["moves", "resume", &decided]).await.ended(0);
        world.audit_places().await;
    }
}
