//! Who may end a fence: only one of all that try, and no session with an attempt or a lease that is
//! over.

use std::time::Duration;

use uuid::Uuid;

use super::setup::{EPOCH, Fence, SHARD, code, expire, host, refused, schema, small_shard, state};
use crate::support::TestCluster;

const NOW: Duration = Duration::ZERO;

async fn ready(version: u32) -> (TestCluster, Fence) {
    let cluster = host(version).await;
    let client = cluster.app(0).await;
    small_shard(&client, SHARD).await;
    (cluster, Fence::prepare(client, SHARD).await)
}

on_each_version! {
    /// Once forward: swap, marker, decision. Every step refuses to run twice or out of order.
    async fn each_step_has_its_place(version) {
        let (cluster, mut fence) = ready(version).await;
        let asks = cluster.app(0).await;
        refused(fence.mark().await);
        refused(fence.unfence().await);
        refused(fence.decide().await);
        assert_eq!(state(&asks, SHARD).await, "serving 3");
        fence.swap().await.unwrap();
        assert_eq!(
            (fence.attempt, state(&asks, SHARD).await.as_str()),
            (1, "fenced 3")
        );
        refused(fence.swap().await);
        // Nothing is decided without the marker.
        refused(fence.decide().await);
        fence.mark().await.unwrap();
        fence.mark().await.unwrap();
        fence.decide().await.unwrap();
        assert_eq!(state(&asks, SHARD).await, "moved 4");
        refused(fence.decide().await);
        refused(fence.unfence().await);
        refused(fence.mark().await);
        refused(fence.swap().await);
        assert!(!expire(&asks, SHARD).await.unwrap());
        assert_eq!(state(&asks, SHARD).await, "moved 4");
        let row = asks
            .query_one(
                "SELECT open_token, peer FROM \
            pgshard.look($1)",
                &[&SHARD],
            )
            .await
            .unwrap();
        assert_eq!((row.get(0), row.get(1)), (fence.token, "db2"));
    }

    /// The marker and the decision are flushed, whatever the session's `synchronous_commit` is, and
    /// nothing else is.
    async fn what_must_last_is_flushed(version) {
        let (_cluster, mut fence) = ready(version).await;
        for (is, becomes) in [
            ("off", "on"),
            ("local", "on"),
            ("remote_apply", "remote_apply"),
        ] {
            fence.swap().await.unwrap();
            for step in ["mark", "decide"] {
                fence
                    .client
                    .batch_execute(&format!(
                        "SET synchronous_commit = {is}; \
                    BEGIN"
                    ))
                    .await
                    .unwrap();
                if step == "mark" {
                    fence.mark().await.unwrap()
                } else {
                    fence.decide().await.unwrap()
                }
                let setting = "SELECT current_setting('synchronous_commit')";
                let within: String = fence.client.query_one(setting, &[]).await.unwrap().get(0);
                fence
                    .client
                    .batch_execute(if step == "mark" { "COMMIT" } else { "ROLLBACK" })
                    .await
                    .unwrap();
                let after: String = fence.client.query_one(setting, &[]).await.unwrap().get(0);
                assert_eq!((within.as_str(), after.as_str()), (becomes, is), "{step}");
            }
            fence.unfence().await.unwrap();
        }
    }

    /// A mover that slept through the end of its fence changes nothing of the next attempt, whether
    /// that is its own or another move's.
    async fn an_earlier_attempt_changes_nothing(version) {
        let (cluster, mut fence) = ready(version).await;
        let asks = cluster.app(0).await;
        fence.swap_for(NOW).await.unwrap();
        fence.mark().await.unwrap();
        assert!(expire(&asks, SHARD).await.unwrap());
        let sleeper = fence.beside(cluster.app(0).await);
        refused(sleeper.decide().await);
        fence.swap().await.unwrap();
        assert_eq!((sleeper.attempt, fence.attempt), (1, 2));
        refused(sleeper.mark().await);
        refused(sleeper.decide().await);
        refused(sleeper.unfence().await);
        // Not even with the marker of its own attempt; nor can this attempt decide with the marker
        // of the last.
        refused(fence.decide().await);
        assert_eq!(state(&asks, SHARD).await, "fenced 3");
        fence.unfence().await.unwrap();

        // Another move. The first is aborted, or the claim would be refused.
        asks.execute("UPDATE pgshard.move SET phase = 'aborted'", &[])
            .await
            .unwrap();
        let mut next = Fence::claim(cluster.app(0).await, SHARD).await;
        next.close().await;
        for zombie in [&sleeper, &fence] {
            refused(zombie.mark().await);
            refused(zombie.decide().await);
            refused(zombie.unfence().await);
        }
        refused(fence.swap().await);
        assert_eq!(state(&asks, SHARD).await, "fenced 3");
        next.decide().await.unwrap();
        assert_eq!(state(&asks, SHARD).await, "moved 4");
    }

    /// A mover that lost its lease to another changes nothing either.
    async fn an_old_lease_changes_nothing(version) {
        let (cluster, mut fence) = ready(version).await;
        let asks = cluster.app(0).await;
        fence.close().await;
        let mut zombie = fence.beside(cluster.app(0).await);
        fence.lease = Uuid::new_v4();
        for table in ["move", "shard"] {
            let take = format!("UPDATE pgshard.{table} SET lease = $1 WHERE shard_id = $2");
            asks.execute(&take, &[&fence.lease, &SHARD]).await.unwrap();
        }
        assert!(!zombie.heartbeat(NOW).await.unwrap());
        refused(zombie.mark().await);
        refused(zombie.decide().await);
        refused(zombie.unfence().await);
        refused(zombie.swap().await);
        assert!(
            !expire(&asks, SHARD).await.unwrap(),
            "its heartbeat moved nothing"
        );
        assert!(fence.heartbeat(Duration::from_secs(60)).await.unwrap());
        fence.unfence().await.unwrap();
        refused(zombie.swap().await);
        fence.close().await;
        fence.decide().await.unwrap();
    }

    /// The heartbeat sets the deadline; after it any session can swap back, before it none.
    async fn heartbeats_keep_a_fence(version) {
        let (cluster, mut fence) = ready(version).await;
        let anybody = cluster.app(0).await;
        fence.swap_for(NOW).await.unwrap();
        assert!(fence.heartbeat(Duration::from_secs(60)).await.unwrap());
        assert!(!expire(&anybody, SHARD).await.unwrap());
        let left: f64 = anybody
            .query_one(
                "SELECT deadline_in_ms FROM \
                pgshard.look($1)",
                &[&SHARD],
            )
            .await
            .unwrap()
            .get(0);
        assert!((0.0..=60_000.0).contains(&left), "{left}");
        assert!(fence.heartbeat(NOW).await.unwrap());
        assert!(expire(&anybody, SHARD).await.unwrap());
        assert!(!expire(&anybody, SHARD).await.unwrap());
        assert_eq!(state(&anybody, SHARD).await, "serving 3");
        assert!(
            fence.heartbeat(NOW).await.unwrap(),
            "the lease is its own still, and it fences \
            again"
        );
        fence.swap().await.unwrap();
    }

    /// A call before the deadline holds no lock, even in a transaction that stays open.
    async fn asking_too_early_is_in_nobodys_way(version) {
        let (cluster, mut fence) = ready(version).await;
        let anybody = cluster.app(0).await;
        fence.close().await;
        anybody.batch_execute("BEGIN").await.unwrap();
        assert!(!expire(&anybody, SHARD).await.unwrap());
        fence
            .client
            .batch_execute("SET lock_timeout = '10s'")
            .await
            .unwrap();
        fence.decide().await.unwrap();
        anybody.batch_execute("COMMIT").await.unwrap();
    }

    /// Six at the same time, in rounds: three end the fence, three decide. Exactly one of them
    /// succeeds.
    async fn expire_against_decide(version) {
        let cluster = host(version).await;
        let client = cluster.app(0).await;
        let mut connections = Vec::new();
        for _ in 0..6 {
            connections.push(cluster.app(0).await);
        }
        let (mut expired, mut decided) = (0, 0);
        for shard in 0..40 {
            small_shard(&client, shard).await;
            let mut fence = Fence::prepare(cluster.app(0).await, shard).await;
            fence.swap_for(NOW).await.unwrap();
            fence.mark().await.unwrap();
            // Another one starts first in each round.
            connections.rotate_left(1);
            let tasks: Vec<_> = connections
                .drain(..)
                .enumerate()
                .map(|(number, connection)| {
                    let fence = fence.beside(connection);
                    tokio::spawn(async move {
                        let won = match number % 2 {
                            0 => expire(&fence.client, shard)
                                .await
                                .map(|did| did.then_some("serving 3")),
                            _ => match fence.decide().await {
                                Err(error) if code(&error) == "SH002" => Ok(None),
                                done => done.map(|()| Some("moved 4")),
                            },
                        };
                        (won.unwrap(), fence.client)
                    })
                })
                .collect();
            let mut winners = Vec::new();
            for task in tasks {
                let (won, connection) = task.await.unwrap();
                winners.extend(won);
                connections.push(connection);
            }
            assert_eq!(winners.len(), 1, "round {shard}: {winners:?}");
            assert_eq!(state(&client, shard).await, winners[0]);
            *(if winners[0] == "moved 4" {
                &mut decided
            } else {
                &mut expired
            }) += 1;
        }
        assert_eq!(expired + decided, 40);
    }

    /// Heartbeat, marker, swap back and the end of the fence by others at the same time: there is
    /// no deadlock (40P01).
    async fn attempts_do_not_deadlock(version) {
        let (cluster, mut fence) = ready(version).await;
        let url = cluster.server(0).url();
        let asks = cluster.app(0).await;
        let mut hands = Vec::new();
        for _ in 0..4 {
            hands.push(cluster.app(0).await);
        }
        for round in 0..100 {
            fence.swap_for(NOW).await.unwrap();
            let tasks: Vec<_> = hands
                .drain(..)
                .enumerate()
                .map(|(number, connection)| {
                    let fence = fence.beside(connection);
                    tokio::spawn(async move {
                        let result = match number {
                            0 => fence.heartbeat(NOW).await.map(drop),
                            1 => expire(&fence.client, SHARD).await.map(drop),
                            2 => fence.unfence().await,
                            _ => fence.mark().await,
                        };
                        (result, fence.client)
                    })
                })
                .collect();
            for task in tasks {
                let (result, connection) = task.await.unwrap();
                if let Err(error) = result {
                    assert_eq!(code(&error), "SH002", "round {round} on {url}");
                }
                hands.push(connection);
            }
            assert_eq!(state(&asks, SHARD).await, "serving 3");
        }
        assert_eq!(fence.attempt, 100);
    }

    /// A fence is a transaction: if it is rolled back, nothing has happened, and the attempt's
    /// number is not used.
    async fn a_swap_that_rolls_back_leaves_nothing(version) {
        let (cluster, mut fence) = ready(version).await;
        let asks = cluster.app(0).await;
        fence.client.batch_execute("BEGIN").await.unwrap();
        fence.swap().await.unwrap();
        fence.client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(state(&asks, SHARD).await, "serving 3");
        let s = schema(SHARD);
        asks.batch_execute(&format!("INSERT INTO {s}.t VALUES (2)"))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        assert_eq!(fence.attempt, 1);
        let ledger = "SELECT count(*) FROM pgshard.ledger WHERE kind = 'left' AND name = $1";
        let name = format!("{s}__left_e{EPOCH}");
        assert_eq!(
            asks.query_one(ledger, &[&name])
                .await
                .unwrap()
                .get::<_, i64>(0),
            1
        );
        fence.unfence().await.unwrap();
        assert_eq!(
            asks.query_one(ledger, &[&name])
                .await
                .unwrap()
                .get::<_, i64>(0),
            0
        );
    }

    /// PostgreSQL refuses a caller with an old snapshot, so that it cannot act on what it sees.
    async fn old_snapshots_decide_nothing(version) {
        let (cluster, mut fence) = ready(version).await;
        let asks = cluster.app(0).await;
        let old = fence.beside(cluster.app(0).await);
        old.client
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM pg_class LIMIT 1")
            .await
            .unwrap();
        fence.close().await;
        let old = Fence {
            attempt: fence.attempt,
            ..old
        };
        // It sees a shard that is served, which is no longer so.
        refused(old.decide().await);
        old.client
            .batch_execute(
                "ROLLBACK; BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1 FROM \
                pg_class LIMIT 1",
            )
            .await
            .unwrap();
        fence.unfence().await.unwrap();
        assert_eq!(code(&old.decide().await.unwrap_err()), "40001");
        old.client.batch_execute("ROLLBACK").await.unwrap();
        assert_eq!(state(&asks, SHARD).await, "serving 3");
    }
}
