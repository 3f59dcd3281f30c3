//! Calls that end between two steps of the protocol.

use pgshard::Router;
use pgshard::router::{Error, Transaction};
use tokio_postgres::Client;

use super::super::support::{World, until};
use super::{INSERT, both, register, rows, world};

/// A session that waits for a lock in a statement like this.
fn waiting(statement: &str) -> String {
    format!(
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE \
         '%{statement}%' AND pid <> pg_backend_pid()"
    )
}

/// Keeps claims from being made, until the transaction ends.
async fn lock_entries(client: &Client, shards: u16) {
    let mut sql = "BEGIN;".to_owned();
    for shard in 0..shards {
        sql += &format!("LOCK TABLE shard_{shard:04}.pgshard_entry IN ACCESS EXCLUSIVE MODE;");
    }
    client.batch_execute(&sql).await.unwrap();
}

/// Registers another key, which may have to try again.
async fn newcomer(router: &Router, id: i64, email: &str) {
    for _ in 0..5 {
        match register(router, id, email).await {
            Ok(1) => return,
            Err(Error::Busy { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("the value stays claimed");
}

async fn one_connection(world: &World) {
    let config = std::fs::read_to_string(&world.config.path).unwrap();
    let config = config.replace("[hosts.db1]", "[hosts.db1]\npool_size = 1");
    world.write("pgshard.toml", &config);
}

on_each_version! {
    async fn a_call_that_is_dropped_while_it_claims_is_no_obstacle(version) {
        let world = world(&[version], 4).await;
        let (router, client) = (world.router().await, world.servers.superuser(0).await);
        lock_entries(&client, 4).await;
        let dropped = {
            let router = router.clone();
            tokio::spawn(async move { register(&router, 1, "a").await })
        };
        let looking = world.servers.superuser(0).await;
        until(&looking, &waiting("INSERT INTO%pgshard_entry")).await;
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        client.batch_execute("COMMIT").await.unwrap();
        newcomer(&router, 2, "a").await;
        assert_eq!(rows(&world).await, [(2, "a".to_owned())]);
    }

    async fn a_call_that_is_dropped_while_it_waits_for_another_is_no_obstacle(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let looking = world.servers.superuser(0).await;
        let written = router.claiming(1_i64, [("emails", "a")]).unwrap()
            .transaction(async |tx: Transaction| {
                let dropped = {
                    let router = router.clone();
                    tokio::spawn(async move { register(&router, 2, "a").await })
                };
                until(&looking, &waiting("INSERT INTO%pgshard_claim%void")).await;
                dropped.abort();
                assert!(dropped.await.unwrap_err().is_cancelled());
                tx.execute(INSERT, &both(&1, &"a")).await
            })
            .await;
        assert_eq!(written.unwrap(), 1);
        let taken = register(&router, 3, "a").await.unwrap_err();
        assert!(matches!(&taken, Error::Taken { key, .. } if key == "1"), "{taken}");
        assert_eq!(rows(&world).await, [(1, "a".to_owned())]);
    }

    async fn a_call_that_is_dropped_with_its_row_written_is_no_obstacle(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let (written, has_written) = tokio::sync::oneshot::channel();
        let dropped = {
            let router = router.clone();
            tokio::spawn(async move {
                let mut written = Some(written);
                router.claiming(1_i64, [("emails", "a")]).unwrap()
                    .transaction(move |tx: Transaction| {
                        let written = written.take();
                        async move {
                            tx.execute(INSERT, &both(&1, &"a")).await?;
                            written.map(|written| written.send(()));
                            std::future::pending::<Result<(), Error>>().await
                        }
                    })
                    .await
            })
        };
        has_written.await.unwrap();
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        newcomer(&router, 2, "a").await;
        assert_eq!(rows(&world).await, [(2, "a".to_owned())]);
    }

    /// A process has claimed, and does not come to its transaction until another has the value.
    async fn a_process_that_stops_for_longer_than_the_grace_period_claims_again(version) {
        let world = world(&[version], 4).await;
        one_connection(&world).await;
        let (sleeper, other) = (world.router().await, world.router().await);
        let looking = world.servers.superuser(0).await;
        let claimed = "SELECT sum(n) > 0 FROM (SELECT count(*) AS n FROM shard_0000.pgshard_entry \
            UNION ALL SELECT count(*) FROM shard_0001.pgshard_entry UNION ALL SELECT count(*) FROM \
            shard_0002.pgshard_entry UNION ALL SELECT count(*) FROM shard_0003.pgshard_entry) AS \
            entries";
        // The only connection for transactions is in use, so the call stops after its claim.
        let asleep = sleeper.by_key(0).transaction(async |tx: Transaction| {
            tx.execute("SELECT 1", &[]).await?;
            let asleep = {
                let sleeper = sleeper.clone();
                tokio::spawn(async move { register(&sleeper, 1, "a").await })
            };
            until(&looking, claimed).await;
            newcomer(&other, 2, "a").await;
            Ok::<_, Error>(asleep)
        });
        let woken = asleep.await.unwrap().await.unwrap().unwrap_err();
        assert!(matches!(&woken, Error::Taken { key, .. } if key == "2"), "{woken}");
        assert_eq!(rows(&world).await, [(2, "a".to_owned())]);
    }

    /// The same, and the value is free again when it wakes up.
    async fn a_sleeper_takes_a_value_that_is_free_again(version) {
        let world = world(&[version], 4).await;
        one_connection(&world).await;
        let (sleeper, other) = (world.router().await, world.router().await);
        let looking = world.servers.superuser(0).await;
        let used = "SELECT count(*) > 0 FROM shard_0002.users";
        let asleep = sleeper.by_key(0).transaction(async |tx: Transaction| {
            tx.execute("SELECT 1", &[]).await?;
            let asleep = {
                let sleeper = sleeper.clone();
                tokio::spawn(async move { register(&sleeper, 1, "a").await })
            };
            // Whichever of the two is first, the other takes the value from it.
            newcomer(&other, 2, "a").await;
            until(&looking, used).await;
            other.by_key(2).execute("DELETE FROM {shard}.users", &[]).await?;
            Ok::<_, Error>(asleep)
        });
        assert_eq!(asleep.await.unwrap().await.unwrap().unwrap(), 1);
        assert_eq!(rows(&world).await, [(1, "a".to_owned())]);
    }

    /// Nothing of the call has run, whatever became of the claim, and it may be made again.
    async fn a_connection_lost_during_a_claim_is_an_error_of_a_call_that_has_not_run(version) {
        let world = world(&[version], 4).await;
        let (router, client) = (world.router().await, world.servers.superuser(0).await);
        lock_entries(&client, 4).await;
        let call = {
            let router = router.clone();
            tokio::spawn(async move { register(&router, 1, "a").await })
        };
        let looking = world.servers.superuser(0).await;
        until(&looking, &waiting("INSERT INTO%pgshard_entry")).await;
        let end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event_type = \
            'Lock' AND query LIKE '%INSERT INTO%pgshard_entry%'";
        looking.execute(end, &[]).await.unwrap();
        let lost = call.await.unwrap().unwrap_err();
        assert!(!lost.may_have_run() && lost.is_retryable(), "{lost:?}");
        // And a claim that waits for too long, in the same way.
        let late = register(&router, 1, "a").await.unwrap_err();
        assert!(!late.may_have_run() && late.is_retryable(), "{late:?}");
        client.batch_execute("COMMIT").await.unwrap();
        newcomer(&router, 2, "a").await;
        assert_eq!(rows(&world).await, [(2, "a".to_owned())]);
    }

    async fn a_connection_lost_between_claim_and_commit_is_no_obstacle(version) {
        let world = world(&[version], 4).await;
        let router = world.router().await;
        let superuser = world.servers.superuser(0).await;
        let lost = router.claiming(1_i64, [("emails", "a")]).unwrap()
            .transaction(async |tx: Transaction| {
                tx.execute(INSERT, &both(&1, &"a")).await?;
                let row = tx.query_one("SELECT pg_backend_pid()", &[]).await?;
                let end = "SELECT pg_terminate_backend($1, 10000)";
                superuser.execute(end, &[&row.get::<_, i32>(0)]).await.unwrap();
                tx.execute("SELECT 1", &[]).await
            })
            .await
            .unwrap_err();
        assert!(!lost.may_have_run() && lost.is_retryable(), "{lost:?}");
        assert_eq!(rows(&world).await, []);
        newcomer(&router, 2, "a").await;
        assert_eq!(rows(&world).await, [(2, "a".to_owned())]);
    }
}
