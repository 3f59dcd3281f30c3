//! Calls over many shards that meet a lock, a silent host, a busy pool or a slow caller.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use pgshard::pg::ConnectOptions;
use pgshard::router::{Error, PoolPhase, Sql};
use pgshard::{Router, ShardId};
use tokio::task::JoinSet;

use super::by_hand::{Shards, shard};
use super::proxy::{Mute, Proxy};
use super::{COUNT, INSERT};

const GENEROUS: Duration = Duration::from_secs(60);

/// The number of a call's shards, and those of them that failed because of the time limit.
async fn failed(results: pgshard::fanout::Gather<'_>) -> (usize, BTreeSet<ShardId>) {
    let results: Vec<_> = tokio::time::timeout(GENEROUS, results.collect())
        .await
        .expect("the call ends");
    let mut late = BTreeSet::new();
    let all: BTreeSet<ShardId> = results.iter().map(|(shard, _)| *shard).collect();
    assert_eq!(all.len(), results.len(), "each shard once");
    for (shard, result) in results {
        match result {
            Ok(_) => {}
            Err(Error::TimedOut { .. }) => assert!(late.insert(shard)),
            Err(error) => panic!("{shard}: {error}"),
        }
    }
    (all.len(), late)
}

on_each_version! {
    /// One shard is locked: only that one fails, however many statements wait behind it. A read
    /// goes to another connection in that time; a write gets its turn when the one before it has
    /// been ended.
    async fn a_lock_holds_up_itself(version) {
        let shards = Shards::start(version, 64).await;
        let mut options = shards.options();
        options.statement_timeout = Some(Duration::from_secs(8));
        let reader = Router::new(options.clone());
        options.statement_timeout = Some(Duration::from_secs(1));
        let writer = Router::new(options);
        for number in 0..64_i64 {
            writer
                .shard(shard(number as u16))
                .unwrap()
                .execute(INSERT, &[&number, &"a"])
                .await
                .unwrap();
        }
        let locking = shards.cluster.app(0).await;
        locking
            .batch_execute(
                "BEGIN; LOCK TABLE shard_0002.photos IN ACCESS EXCLUSIVE \
            MODE",
            )
            .await
            .unwrap();
        let locked = BTreeSet::from([shard(2)]);

        for width in [1, 2] {
            let count = Sql::reading(COUNT);
            let counts = reader
                .all_shards()
                .width(width)
                .depth(64)
                .query(&count, &[]);
            assert_eq!(failed(counts).await, (64, locked.clone()), "width {width}");
        }
        let title = "b";
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&title];
        let written = writer.all_shards().width(1).depth(64).deadline(GENEROUS);
        let written = written.query(
            "UPDATE {shard}.photos SET title = title || $1 RETURNING \
            id",
            &params,
        );
        assert_eq!(failed(written).await, (64, locked));
        locking.batch_execute("ROLLBACK").await.unwrap();
        for number in 0..64 {
            let wanted = if number == 2 { "a" } else { "ab" };
            assert_eq!(
                shards.titles(usize::from(number >= 32), number).await,
                [wanted],
                "once: shard {number}"
            );
        }
    }

    /// A row of one shard is locked for longer than the call may take. The statements behind it are
    /// not known to only read, were sent, and do their work nevertheless, each once.
    async fn one_locked_row_fails_no_neighbour(version) {
        let shards = Shards::start(version, 64).await;
        let router = Router::new(shards.options());
        let update = "UPDATE {shard}.photos SET title = title || $1 RETURNING id";
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&"b"];
        for number in 0..64_i64 {
            let shard = router.shard(shard(number as u16)).unwrap();
            shard.execute(INSERT, &[&number, &"a"]).await.unwrap();
        }
        let warm = router
            .all_shards()
            .width(1)
            .depth(64)
            .query(update, &params);
        assert_eq!(failed(warm).await, (64, BTreeSet::new()));
        let locking = shards.cluster.app(0).await;
        let lock = "BEGIN; SELECT FROM shard_0002.photos FOR UPDATE; \
            SELECT FROM shard_0005.photos FOR UPDATE";
        locking.batch_execute(lock).await.unwrap();
        let written = router
            .all_shards()
            .width(1)
            .depth(64)
            .deadline(Duration::from_secs(20));
        let written = written.query(update, &params);
        let locked = BTreeSet::from([shard(2), shard(5)]);
        assert_eq!(failed(written).await, (64, locked.clone()));
        locking.batch_execute("ROLLBACK").await.unwrap();
        for number in 0..64 {
            let titles = shards.titles(usize::from(number >= 32), number).await;
            // A statement that was cancelled at the deadline may have run, as its error reports.
            let either = locked.contains(&shard(number)) && titles == ["ab"];
            assert!(
                either || titles == ["abb"],
                "once: shard {number}: {titles:?}"
            );
        }
    }

    /// One time limit for the whole call: shards behind a silent host, or a busy pool, wait at the
    /// same time and not one after the other.
    async fn waits_do_not_add_up(version) {
        let shards = Shards::start(version, 64).await;
        let mute = Mute::start().await;
        let mut options = shards.options();
        options.statement_timeout = Some(Duration::from_secs(3));
        options.hosts[1].connect =
            ConnectOptions::parse(&format!("postgres://app@127.0.0.1:{}/app", mute.port)).unwrap();
        let router = Router::new(options);
        let answers: Vec<_> = router.all_shards().query(COUNT, &[]).collect().await;
        let late = answers
            .iter()
            .filter(|(_, result)| matches!(result, Err(Error::TimedOut { limit_ms: 3000, .. })))
            .count();
        assert_eq!((answers.len(), late), (64, 32), "{answers:?}");

        // Together they wait no longer than one would: a second, where 32 in turn would take half a
        // minute.
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.wait_max = Duration::from_secs(1);
        let router = Router::new(options);
        let held = router.by_key(0).client().await.unwrap();
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&1_i64];
        for (sql, params) in [
            (COUNT, &[] as &[_]),
            (
                "SELECT count(*) FROM {shard}.photos WHERE id \
            = $1",
                &params,
            ),
        ] {
            let answers = router.all_shards().query(sql, params).collect::<Vec<_>>();
            let answers = tokio::time::timeout(Duration::from_secs(16), answers)
                .await
                .expect("they wait together");
            let late = |error: &Error| {
                matches!(
                    error,
                    Error::PoolTimeout {
                        phase: PoolPhase::Wait,
                        ..
                    }
                )
            };
            let late = answers
                .iter()
                .filter(|(_, result)| result.as_ref().is_err_and(late))
                .count();
            assert_eq!((answers.len(), late), (64, 32), "{answers:?}");
        }
        drop(held);
    }

    /// A statement for each result of a call over all shards, by more callers than there are
    /// connections: a result that the caller works on holds none.
    async fn a_loop_with_a_statement_in_it(version) {
        let shards = Shards::start(version, 32).await;
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 2);
        let router = Router::new(options);
        let mut callers = JoinSet::new();
        for caller in 0..8_i64 {
            let router = router.clone();
            callers.spawn(async move {
                let params: [&(dyn tokio_postgres::types::ToSql + Sync); 1] = [&caller];
                for (sql, params) in [
                    (COUNT, &[] as &[_]),
                    (
                        "SELECT count(*) FROM {shard}.photos WHERE id > \
                        $1",
                        &params,
                    ),
                ] {
                    let mut counts = router.all_shards().query(sql, params);
                    while let Some((shard, count)) = counts.next().await {
                        count.unwrap();
                        let shard = router.shard(shard).unwrap();
                        shard
                            .execute(
                                "UPDATE {shard}.photos SET title = 'seen' WHERE id = \
                                $1",
                                &[&caller],
                            )
                            .await
                            .unwrap();
                        // As long as a caller may take: by then nothing is under way any longer.
                        tokio::task::yield_now().await;
                    }
                }
            });
        }
        tokio::time::timeout(GENEROUS, callers.join_all())
            .await
            .expect("nobody waits for himself");

        // While a caller does something else, no connection is in use.
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 2);
        let router = Router::new(options);
        let mut counts = router.all_shards().query(COUNT, &[]);
        counts.next().await.unwrap().1.unwrap();
        let both = [
            router.by_key(0).client().await.unwrap(),
            router.by_key(1).client().await.unwrap(),
        ];
        assert_eq!(
            counts.collect::<Vec<_>>().await.len(),
            31,
            "the answers are there all the \
            same"
        );
        drop(both);
    }

    /// Transactions that need a second connection of the same host report that when they have
    /// waited in vain.
    async fn nesting_is_named(version) {
        let shards = Shards::start(version, 4).await;
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.wait_max = Duration::from_millis(100);
        let router = Router::new(options);
        let inner = router.by_key(0).transaction(async |tx| {
            tx.query(COUNT, &[]).await?;
            router.by_key(1).query(COUNT, &[]).await
        });
        let error = inner.await.unwrap_err();
        assert!(
            matches!(
                error,
                Error::PoolTimeout {
                    phase: PoolPhase::WaitWithin,
                    ..
                }
            ) && error.is_retryable()
        );
        let words = "host db1 of shard 1: waiting for another connection within a transaction, \
            which keeps one of \
                     them, took longer than 100 ms";
        assert_eq!(error.to_string(), words);
        // Another host has connections of its own.
        let other = router
            .by_key(0)
            .transaction(async |_| router.by_key(2).query(COUNT, &[]).await);
        other.await.unwrap();
    }

    /// Results that the caller does not take are not read: the servers wait. When the caller takes
    /// them in the end, they are complete.
    async fn results_wait_at_the_servers(version) {
        let shards = Shards::start(version, 64).await;
        let mut options = shards.options();
        let mut proxies = Vec::new();
        for (host, options) in options.hosts.iter_mut().enumerate() {
            let proxy = Proxy::to(shards.cluster.server(host).port()).await;
            options.connect =
                ConnectOptions::parse(&format!("postgres://app@127.0.0.1:{}/app", proxy.port))
                    .unwrap();
            proxies.push(proxy);
        }
        let router = Router::new(options);
        // 4 MiB a shard, 256 MiB in all.
        let sql = "SELECT repeat('x', 65536) FROM generate_series(1, 64), {shard}.photos";
        for number in 0..64_u16 {
            router
                .shard(shard(number))
                .unwrap()
                .execute(INSERT, &[&1_i64, &"x"])
                .await
                .unwrap();
        }
        let passed = || proxies.iter().map(Proxy::passed).sum::<u64>();
        for depth in [1, 16] {
            let before = passed();
            let mut results = router.all_shards().depth(depth).query(sql, &[]);
            assert_eq!(results.next().await.unwrap().1.unwrap().len(), 64);
            let mut last = 0;
            while last < passed() {
                last = passed();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            // Each of four connections may have read one whole result, and eight sockets have
            // buffers.
            let unread = passed() - before;
            assert!(
                unread < 128 << 20,
                "depth {depth}: {} MiB were read that nobody \
                wants",
                unread >> 20
            );
            let mut count = 1;
            while let Some((_, rows)) = results.next().await {
                assert_eq!(rows.unwrap().len(), 64);
                count += 1;
            }
            assert_eq!(count, 64);
            eprintln!("depth {depth}: {} MiB ahead of the caller", unread >> 20);
        }
    }
}
