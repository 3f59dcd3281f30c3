//! Hosts that fail: one that never answers, one that falls silent, a primary that is replaced by
//! its standby.

use std::time::{Duration, Instant};

use pgshard::dev::StopMode;
use pgshard::pg::ConnectOptions;
use pgshard::router::{Error, Sql};
use pgshard::{Router, ShardId};

use super::by_hand::Shards;
use super::proxy::{Mute, Proxy};
use super::{COUNT, INSERT};

fn at(ports: &[u16], more: &str) -> ConnectOptions {
    let hosts = vec!["127.0.0.1"; ports.len()].join(",");
    let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
    let text = format!(
        "host={hosts} port={} user=app dbname=app {more}",
        ports.join(",")
    );
    ConnectOptions::parse(&text).unwrap()
}

/// Tries until it succeeds; the failures before that must be retryable.
async fn at_last(router: &Router, key: i64) -> u32 {
    let began = Instant::now();
    for tries in 0.. {
        match router
            .by_key(key)
            .query_one(&Sql::reading(COUNT), &[])
            .await
        {
            Ok(_) => return tries,
            Err(error) => assert!(
                error.is_retryable() && began.elapsed() < Duration::from_secs(30),
                "{error:?}"
            ),
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    unreachable!("it is tried for ever")
}

on_each_version! {
    /// A host that accepts connections and never answers makes its first callers wait, and none
    /// after them.
    async fn a_host_that_never_answers(version) {
        let shards = Shards::start(version, 8).await;
        let mute = Mute::start().await;
        let mut options = shards.options();
        options.hosts[1].connect = at(&[mute.port], "");
        options.create_max = Duration::from_millis(300);
        let router = Router::new(options);
        let error = router.by_key(7).query(COUNT, &[]).await.unwrap_err();
        assert!(
            matches!(error, Error::Connect { .. }) && error.is_retryable(),
            "{error:?}"
        );
        let mut costs = Vec::new();
        for call in 0..2000_i64 {
            let began = Instant::now();
            let error = router
                .by_key(4 + call % 4)
                .query(COUNT, &[])
                .await
                .unwrap_err();
            costs.push(began.elapsed());
            assert!(
                matches!(error, Error::HostDown { .. } | Error::Connect { .. })
                    && error.is_retryable(),
                "{error:?}"
            );
            router.by_key(call % 4).query(COUNT, &[]).await.unwrap();
        }
        costs.sort_unstable();
        eprintln!(
            "a call to a dead host: {:?} at the median, {:?} at \
            most",
            costs[1000], costs[1999]
        );
        // It is tried again from time to time, but not by a call.
        assert!(mute.taken() < 50, "{}", mute.taken());
        let by_shard = router.all_shards().query(COUNT, &[]);
        let by_shard: Vec<(ShardId, bool)> = futures_util::StreamExt::collect(
            futures_util::StreamExt::map(by_shard, |(shard, rows)| (shard, rows.is_ok())),
        )
        .await;
        assert!(
            by_shard.len() == 8 && by_shard.iter().all(|(shard, ok)| *ok == (shard.get() < 4)),
            "{by_shard:?}"
        );
        // The same holds for calls over many shards, however many connections they want.
        let (taken, began) = (mute.taken(), Instant::now());
        for _ in 0..100 {
            let shards = router.all_shards().width(4).query(COUNT, &[]);
            assert_eq!(futures_util::StreamExt::count(shards).await, 8);
        }
        let tries = began.elapsed().as_millis() / 50 + 2;
        assert!(
            (mute.taken() - taken) as u128 <= tries,
            "{} in {:?}",
            mute.taken() - taken,
            began.elapsed()
        );
    }

    /// A host falls silent while connections to it exist: deadlines notice it, then no call waits,
    /// and it comes back.
    async fn a_host_that_falls_silent(version) {
        let shards = Shards::start(version, 8).await;
        let proxy = Proxy::to(shards.cluster.server(1).port()).await;
        let mut options = shards.options();
        options.hosts[1].connect = at(&[proxy.port], "");
        options.create_max = Duration::from_secs(2);
        options.statement_timeout = Some(Duration::from_secs(1));
        let router = Router::new(options);
        router
            .by_key(7)
            .execute(INSERT, &[&1_i64, &"before"])
            .await
            .unwrap();
        proxy.fall_silent();
        let error = router
            .by_key(7)
            .execute(INSERT, &[&2_i64, &"in doubt"])
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::TimedOut {
                    may_have_run: true,
                    ..
                }
            ),
            "{error:?}"
        );
        loop {
            match router
                .by_key(7)
                .query(&Sql::reading(COUNT), &[])
                .await
                .unwrap_err()
            {
                Error::HostDown { .. } => break,
                error => assert!(error.is_retryable(), "{error:?}"),
            }
        }
        router.by_key(1).query(COUNT, &[]).await.unwrap();
        proxy.speak_again();
        at_last(&router, 7).await;
        router
            .by_key(7)
            .execute(INSERT, &[&3_i64, &"after"])
            .await
            .unwrap();
    }

    /// The first of several addresses is silent: the second is used, and from then on it comes
    /// first.
    async fn the_address_that_answers(version) {
        let shards = Shards::start(version, 2).await;
        let mute = Mute::start().await;
        let mut options = shards.options();
        options.hosts[0].connect = at(
            &[mute.port, shards.cluster.server(0).port()],
            "connect_timeout=1",
        );
        options.hosts[0].pool_size = 3;
        let router = Router::new(options);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(router.by_key(0).client().await.unwrap());
        }
        assert_eq!(mute.taken(), 1);
    }

    /// The primary dies and its standby is promoted: the router finds it by `target_session_attrs`.
    async fn a_primary_gives_way(version) {
        let shards = Shards::start(version, 4).await;
        shards.cluster.make_standby(version, 1, 0);
        let ports = [
            shards.cluster.server(0).port(),
            shards.cluster.server(1).port(),
        ];
        let mut options = shards.options();
        options.hosts[0].connect = at(&ports, "target_session_attrs=primary");
        let router = Router::new(options);
        router
            .by_key(0)
            .execute(INSERT, &[&1_i64, &"before"])
            .await
            .unwrap();
        let standby = shards.cluster.app(1).await;
        while standby
            .query_one(
                "SELECT count(*) FROM \
            shard_0000.photos",
                &[],
            )
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        shards.cluster.server(0).stop(StopMode::Immediate).unwrap();
        let error = loop {
            if let Err(error) = router
                .by_key(0)
                .execute(INSERT, &[&2_i64, &"nowhere"])
                .await
            {
                break error;
            }
        };
        assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
        shards
            .cluster
            .superuser(1)
            .await
            .query("SELECT pg_promote()", &[])
            .await
            .unwrap();
        at_last(&router, 0).await;
        router
            .by_key(0)
            .execute(INSERT, &[&3_i64, &"after"])
            .await
            .unwrap();
        let row = router.by_key(0).query_one(COUNT, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 2);
    }

    /// If an address leads to a standby now, a write waits for the primary; no caller sees 25006.
    async fn a_standby_refuses_writes(version) {
        let shards = Shards::start(version, 4).await;
        shards.cluster.make_standby(version, 1, 0);
        let ports = [
            shards.cluster.server(0).port(),
            shards.cluster.server(1).port(),
        ];
        let proxy = Proxy::to(ports[1]).await;
        let mut options = shards.options();
        options.hosts[0].connect = at(&[proxy.port], "");
        let router = Router::new(options);
        router.by_key(0).query(COUNT, &[]).await.unwrap();
        let write = router.by_key(0).execute(INSERT, &[&1_i64, &"statement"]);
        let both = router
            .by_key(0)
            .transaction(async |tx| tx.execute(INSERT, &[&2_i64, &"transaction"]).await);
        let turn = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            proxy.lead_to(ports[0]);
        };
        let (write, both, ()) = tokio::join!(write, both, turn);
        assert_eq!((write.unwrap(), both.unwrap()), (1, 1));
        assert_eq!(shards.titles(0, 0).await, ["statement", "transaction"]);
        // If the caller requested a read-only transaction, the mistake is the caller's.
        let reader = router.by_key(0).build_transaction().read_only(true);
        let error = reader
            .run(async |tx| tx.execute(INSERT, &[&3_i64, &"x"]).await)
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "25006");
    }
}
