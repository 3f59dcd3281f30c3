//! The connections of a router during everything that callers and servers do to them, and their
//! end.

use std::time::Duration;

use fastrand::Rng;
use pgshard::Router;
use pgshard::router::{Error, Sql};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::by_hand::Shards;
use super::proxy::Polls;
use super::{COUNT, INSERT};

const LONG: Duration = Duration::from_secs(60);
const CALLERS: u64 = 10;
const STEPS: u32 = 60;
const LIMIT: usize = 4;
const SIZE: usize = 3;

/// One of the things that callers do; some leave at any await. Errors come from servers that end
/// connections or accept none.
async fn step(router: &Router, rng: &mut Rng) {
    let left = if rng.u8(..3) == 0 {
        rng.u32(..16)
    } else {
        u32::MAX
    };
    let key = rng.i64(..8);
    let doing = rng.u8(..6);
    let call = async {
        match doing {
            0 => {
                let client = router.by_key(key).client().await?;
                let _ = client.batch_execute("BEGIN; SELECT pg_sleep(0.001)").await;
            }
            1 => {
                router
                    .by_key(key)
                    .transaction(async |tx| tx.query(COUNT, &[]).await.map(drop))
                    .await?;
            }
            2 => {
                let slow = router.by_key(key).within(Duration::from_millis(3));
                slow.query(&Sql::reading("SELECT pg_sleep(0.004)"), &[])
                    .await?;
            }
            3 => {
                let sql = Sql::reading(COUNT);
                let shards = router.all_shards().width(3).query(&sql, &[]);
                futures_util::StreamExt::count(shards).await;
            }
            _ => {
                router.by_key(key).query(COUNT, &[]).await?;
            }
        }
        Ok::<_, Error>(())
    };
    if let Some(Err(error)) = (Polls {
        future: Box::pin(call),
        left,
    })
    .await
    {
        let lost = matches!(error, Error::ConnectionLost { .. } | Error::InDoubt { .. });
        let transient = error.is_retryable() || lost;
        assert!(
            transient,
            "{error:?}: {:?}",
            std::error::Error::source(&error).map(ToString::to_string)
        );
    }
}

/// Ends connections and refuses new ones from time to time, until it is stopped.
async fn disturb(shards: &Shards, mut stop: oneshot::Receiver<()>, mut rng: Rng) {
    let kill =
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'program'
                ORDER BY random() LIMIT 1";
    while stop.try_recv().is_err() {
        let server = shards.cluster.superuser(rng.usize(..2)).await;
        match rng.u8(..3) {
            0 => server
                .batch_execute("ALTER ROLE app CONNECTION LIMIT 2")
                .await
                .unwrap(),
            1 => server
                .batch_execute("ALTER ROLE app CONNECTION LIMIT -1")
                .await
                .unwrap(),
            _ => drop(server.query(kill, &[]).await.unwrap()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for host in 0..2 {
        shards
            .cluster
            .superuser(host)
            .await
            .batch_execute("ALTER ROLE app CONNECTION LIMIT -1")
            .await
            .unwrap();
    }
}

on_each_version! {
    /// Random programs: whatever happens to calls and connections, no slot is lost, none is used
    /// twice, and the limits hold.
    async fn no_slot_is_lost(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.application_name = "program".to_owned();
        options.max_connections = Some(LIMIT);
        let seed = fastrand::u64(..);
        eprintln!("seed {seed}");
        if seed.is_multiple_of(2) {
            // Calls wait for favourites, too.
            options.statements_per_connection = 1;
        }
        options.idle_timeout = Some(Duration::from_millis(50));
        options.max_lifetime = Some(Duration::from_millis(300));
        options
            .hosts
            .iter_mut()
            .for_each(|host| host.pool_size = SIZE);
        let router = Router::new(options);
        let mut callers = JoinSet::new();
        for caller in 0..CALLERS {
            let (router, mut rng) = (router.clone(), Rng::with_seed(seed ^ caller));
            callers.spawn(async move {
                for _ in 0..STEPS {
                    step(&router, &mut rng).await;
                    let pools = router.pools();
                    assert!(
                        pools.iter().all(|pool| pool.idle + pool.used <= SIZE),
                        "{pools:?}"
                    );
                    let connections: usize = pools.iter().map(|pool| pool.idle + pool.used).sum();
                    // The pools are not read in one instant.
                    assert!(connections <= LIMIT + 1, "{pools:?}");
                }
            });
        }
        let (stop, stopped) = oneshot::channel();
        let work = async {
            while let Some(ended) = callers.join_next().await {
                ended.unwrap();
            }
            stop.send(()).unwrap();
        };
        tokio::join!(work, disturb(&shards, stopped, Rng::with_seed(seed)));
        let settled = async {
            while router
                .pools()
                .iter()
                .any(|pool| pool.used + pool.waiting > 0)
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            for first in [0, 4] {
                // All slots of one host at a time. The router may have taken the host for dead a
                // moment ago.
                let mut held = Vec::new();
                while held.len() < SIZE {
                    match router.by_key(first).client().await {
                        Ok(client) => held.push(client),
                        Err(error) => assert!(error.is_retryable(), "{error:?}"),
                    }
                }
            }
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'program'";
            loop {
                let mut backends = 0;
                for host in 0..2 {
                    backends += shards
                        .cluster
                        .superuser(host)
                        .await
                        .query_one(sql, &[])
                        .await
                        .unwrap()
                        .get::<_, i64>(0);
                }
                if backends <= (LIMIT + 2 * 2) as i64 {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, settled)
            .await
            .unwrap_or_else(|_| panic!("{:?}", router.pools()));
    }

    /// A router that is closed lets running calls end, for as long as they may, and no new one
    /// begin.
    async fn closing_lets_running_calls_end(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.application_name = "closing".to_owned();
        options.hosts[0].pool_size = 1;
        let router = Router::new(options);
        router.by_key(7).query(COUNT, &[]).await.unwrap();
        let (begun, go_on) = (tokio::sync::Barrier::new(2), tokio::sync::Notify::new());
        let runs = router.by_key(0).transaction(async |tx| {
            tx.execute(INSERT, &[&1_i64, &"kept"]).await?;
            begun.wait().await;
            go_on.notified().await;
            tx.query(COUNT, &[]).await.map(drop)
        });
        let waits = async { router.by_key(1).query(COUNT, &[]).await };
        let closes = async {
            begun.wait().await;
            while router.pools()[0].waiting == 0 {
                tokio::task::yield_now().await;
            }
            let closing = router.close(LONG);
            let goes_on = async {
                while !matches!(router.by_key(7).query(COUNT, &[]).await, Err(Error::Closed)) {
                    tokio::task::yield_now().await;
                }
                go_on.notify_one();
            };
            tokio::join!(closing, goes_on).0
        };
        let (ran, waited, cut) = tokio::join!(runs, waits, closes);
        ran.unwrap();
        assert!(matches!(waited, Err(Error::Closed)), "{waited:?}");
        let error = router
            .by_key(0)
            .execute(INSERT, &[&2_i64, &"late"])
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::Closed) && !error.is_retryable() && !error.may_have_run(),
            "{error:?}"
        );
        assert_eq!(cut, 0);
        assert_eq!(shards.titles(0, 0).await, ["kept"]);
        assert_eq!(router.close(Duration::ZERO).await, 0, "a second time");

        // What takes longer than it may is cut off.
        let mut options = shards.options();
        options.application_name = "closing".to_owned();
        let router = Router::new(options);
        let slow = router.by_key(0).execute(
            "INSERT INTO {shard}.photos SELECT 3, 'x' FROM \
            pg_sleep(60)",
            &[],
        );
        let closes = async {
            let sql = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)' AND \
                state = 'active'
                       AND application_name = 'closing'";
            while shards.db[0]
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                == 0
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            router.close(Duration::from_millis(200)).await
        };
        let (slow, cut) = tokio::join!(slow, closes);
        assert!(
            matches!(slow, Err(Error::ConnectionLost { .. })),
            "{slow:?}"
        );
        assert_eq!(cut, 1);
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'closing' AND \
            state <> 'active'";
        let gone = async {
            while shards.db[0]
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                > 0
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(LONG, gone).await.unwrap();
    }
}
