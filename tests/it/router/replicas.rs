//! Reads from standbys: which of them are read, what a reader sees there, and what happens if one
//! cannot answer.

use std::time::{Duration, Instant};

use futures_util::{StreamExt, TryStreamExt};
use metrics_util::debugging::DebuggingRecorder;
use pgshard::dev::StopMode;
use pgshard::pg::ConnectOptions;
use pgshard::router::{Error, Options, Position};
use pgshard::{Router, ShardId};
use tokio_postgres::{Client, Row};

use super::INSERT;
use super::by_hand::Shards;
use super::metrics::Recorded;
use super::proxy::Proxy;

/// How many photos there are, and whether a standby returned that.
const SEEN: &str = "SELECT count(*), pg_is_in_recovery() FROM {shard}.photos";

/// The cluster's hosts, and the last server turned into a standby of the first host.
async fn with_standby(version: u32, shards: u16) -> (Shards, Options) {
    with_standbys(version, shards, 1).await
}

/// The same with several standbys, of which the options name the first.
async fn with_standbys(version: u32, shards: u16, standbys: usize) -> (Shards, Options) {
    let count = i32::from(shards);
    let shards = Shards::start_beside(version, shards, standbys).await;
    for (host, client) in shards.db.iter().enumerate() {
        // As bootstrap does. The servers are copies of one, so that only the name distinguishes
        // them.
        let sql = "INSERT INTO pgshard.cluster (shards, epoch_ms, schema_prefix, host_name) VALUES \
            ($1, 0, 'shard_', $2)";
        client
            .execute(sql, &[&count, &shards.name(host).as_str()])
            .await
            .unwrap();
    }
    for standby in 0..standbys {
        shards.cluster.make_standby(version, 2 + standby, 0);
    }
    let mut options = shards.options();
    // As with several addresses in the url: the host itself is one of them.
    let ports = [0, 2]
        .map(|server| shards.cluster.server(server).port().to_string())
        .join(",");
    let text = format!(
        "host=127.0.0.1,127.0.0.1 port={ports} user=app dbname=app target_session_attrs=primary"
    );
    let connect = ConnectOptions::parse(&text).unwrap();
    options.hosts[0].replicas = connect.each_address();
    options.hosts[0].connect = connect;
    options.replica_wait = Duration::from_secs(10);
    (shards, options)
}

async fn seen(router: &Router, key: i64) -> (i64, bool) {
    let row = router
        .by_key(key)
        .reads()
        .query_one(SEEN, &[])
        .await
        .unwrap();
    (row.get(0), row.get(1))
}

/// Reads until a standby answers, or until the primary does; returns what it saw.
async fn until(router: &Router, key: i64, standby: bool) -> i64 {
    let began = Instant::now();
    loop {
        match seen(router, key).await {
            (count, by_standby) if by_standby == standby => return count,
            other => assert!(began.elapsed() < Duration::from_secs(30), "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn write(router: &Router, key: i64, id: i64) -> Position {
    router
        .by_key(key)
        .execute(INSERT, &[&id, &"x"])
        .await
        .unwrap();
    router.by_key(key).position().await.unwrap()
}

/// Stops the replay, and waits until it has stopped.
async fn pause(standby: &Client) {
    standby
        .batch_execute("SELECT pg_wal_replay_pause()")
        .await
        .unwrap();
    let sql = "SELECT pg_get_wal_replay_pause_state()";
    while standby.query_one(sql, &[]).await.unwrap().get::<_, &str>(0) != "paused" {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn resume(standby: &Client) {
    standby
        .batch_execute("SELECT pg_wal_replay_resume()")
        .await
        .unwrap();
}

on_each_version! {
    /// A stream comes from the standby, and its connection goes back. What goes wrong there before
    /// the first row is not seen; after that it ends the stream.
    async fn streams_come_from_a_standby(version) {
        let (shards, mut options) = with_standby(version, 4).await;
        options.max_replica_lag = Duration::from_secs(600);
        options.hosts[0].pool_size = 1;
        let router = Router::new(options);
        until(&router, 0, true).await;
        let sql = "SELECT n, pg_is_in_recovery(), repeat('x', 1000)
            FROM generate_series(1, $1::int) AS n";
        for rows in [0_i32, 1, 3000] {
            let read = router.by_key(0).reads().query_raw(sql, &[&rows]).await.unwrap();
            assert_eq!(*read.host(), shards.name(0));
            let read: Vec<Row> = read.try_collect().await.unwrap();
            let numbers: Vec<i32> = read.iter().map(|row| row.get(0)).collect();
            assert_eq!(numbers, (1..=rows).collect::<Vec<_>>());
            assert!(read.iter().all(|row| row.get(1)));
        }
        let all = router.all_shards().reads().query_raw(sql, pgshard::params![2_i32]);
        let all: Vec<(ShardId, Result<Row, Error>)> = all.collect().await;
        assert_eq!(all.len(), 8);
        for (shard, row) in all {
            let has_standby = router.shard(shard).unwrap().host() == shards.name(0);
            assert_eq!(row.unwrap().get::<_, bool>(1), has_standby);
        }
        let write = router.by_key(0).reads().query_raw(INSERT, &[&1_i64, &"x"]).await;
        assert!(matches!(write, Err(Error::NotARead { .. })));

        // The server waits for its reader, and is ended there.
        let mut read = router.by_key(0).reads().query_raw(sql, &[&10_000_000_i32]).await.unwrap();
        read.try_next().await.unwrap().unwrap();
        let standby = shards.cluster.superuser(2).await;
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query LIKE '%generate_series(1, $1::int)%' AND pid <> pg_backend_pid()";
        standby.query(kill, &[]).await.unwrap();
        let error = loop {
            match read.try_next().await {
                Ok(row) => assert!(row.is_some()),
                Err(error) => break error,
            }
        };
        let delivered = read.delivered();
        assert!(
            matches!(&error, Error::StreamStopped { rows, .. } if *rows == delivered),
            "{error:?}"
        );
        assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
        // One that only a primary can run.
        let only = "SELECT 1, pg_current_wal_lsn() IS NULL";
        let read = router.by_key(0).reads().query_raw(only, &[]).await.unwrap();
        let read: Vec<Row> = read.try_collect().await.unwrap();
        assert!(!read[0].get::<_, bool>(1));
    }

    /// Calls over many shards read from the standby of the host that has one; if it is away, from
    /// the primary.
    async fn many_shards_are_read_from_standbys(version) {
        let (shards, mut options) = with_standby(version, 4).await;
        options.max_replica_lag = Duration::from_secs(600);
        let router = Router::new(options);
        until(&router, 0, true).await;
        let has_standby = |shard: ShardId| router.shard(shard).unwrap().host() == shards.name(0);
        let all = async || {
            let mut found = router.all_shards().reads().width(2).query(SEEN, &[]);
            let mut by_standby = Vec::new();
            while let Some((shard, rows)) = found.next().await {
                by_standby.push((shard, rows.unwrap()[0].get::<_, bool>(1)));
            }
            assert_eq!(by_standby.len(), 4);
            by_standby
        };
        assert!(
            all()
                .await
                .into_iter()
                .all(|(shard, by_standby)| by_standby == has_standby(shard))
        );
        let keys: Vec<i64> = (0..40).collect();
        let ids: Vec<i64> = keys.iter().map(|key| (key % 4) << 10 | key).collect();
        let asked = "SELECT k, pg_is_in_recovery() FROM unnest($1::bigint[]) AS k";
        let by_ids = router.by_ids(&ids).reads().query(asked).await.unwrap();
        let by_keys = router
            .by_keys(&keys)
            .unwrap()
            .reads()
            .query(asked)
            .await
            .unwrap();
        assert_eq!((by_ids.len(), by_keys.len()), (4 * 10, 4 * 10));
        for (shard, row) in by_ids.into_iter().chain(by_keys) {
            assert_eq!(row.get::<_, bool>(1), has_standby(shard));
        }
        let mut refused = router
            .all_shards()
            .reads()
            .query("DELETE FROM {shard}.photos", &[]);
        while let Some((_, result)) = refused.next().await {
            assert!(matches!(result, Err(Error::NotARead { .. })), "{result:?}");
        }
        tokio::task::block_in_place(|| shards.cluster.server(2).stop(StopMode::Immediate)).unwrap();
        assert!(all().await.into_iter().all(|(_, by_standby)| !by_standby));
    }

    /// A standby answers while it is near enough; the primary answers if the standby is not, or is
    /// away, or does not have what is requested.
    async fn near_enough_or_the_primary(version) {
        let (shards, mut options) = with_standby(version, 4).await;
        let standby = shards.cluster.superuser(2).await;
        let recorder = DebuggingRecorder::new();
        let recorded = Recorded::new(&recorder);
        let _here = metrics::set_default_local_recorder(&recorder);
        // Far longer than this takes, and short.
        options.max_replica_lag = Duration::from_secs(600);
        let router = Router::new(options.clone());
        let brief = Router::new(options.clone().max_replica_lag(Duration::from_millis(600)));
        until(&router, 0, true).await;

        // A caller's own writes, on the standby as soon as it has them.
        for id in 0..20 {
            let written = write(&router, 0, id).await;
            let written: Position = written.to_string().parse().unwrap();
            let row = router
                .by_key(0)
                .reads()
                .after(written)
                .query_one(SEEN, &[])
                .await
                .unwrap();
            assert_eq!(
                (row.get::<_, i64>(0), row.get::<_, bool>(1)),
                (id + 1, true)
            );
        }
        let counted = recorded.since();
        assert!(counted["reads_total db1 standby"] >= 21, "{counted:?}");
        assert!(
            !counted.contains_key("reads_total db1 behind")
                && !counted.contains_key(
                    "reads_total \
                db1 failed"
                ),
            "{counted:?}"
        );

        // Not for the position of another shard, which does not apply to this one.
        let other = router.by_key(1).position().await.unwrap();
        let row = router
            .by_key(0)
            .reads()
            .after(other)
            .query_one(SEEN, &[])
            .await
            .unwrap();
        assert!(!row.get::<_, bool>(1));
        assert_eq!(recorded.since()["reads_total db1 behind"], 1);

        // What a standby cannot do, and what no server can.
        until(&router, 0, true).await;
        let sql = "SELECT pg_is_in_recovery() FROM {shard}.photos WHERE id = 0 FOR UPDATE";
        assert!(
            !router
                .by_key(0)
                .reads()
                .query_one(sql, &[])
                .await
                .unwrap()
                .get::<_, bool>(0)
        );
        let error = router
            .by_key(0)
            .reads()
            .query(
                "WITH a AS (SELECT 1) SELECT b FROM \
            a",
                &[],
            )
            .await
            .unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42703", "{error:?}");
        assert_eq!(recorded.since()["reads_total db1 failed"], 2);
        for sql in [
            "DELETE FROM {shard}.photos",
            "SET work_mem = 1",
            "BEGIN",
            "",
        ] {
            let error = router.by_key(0).reads().query(sql, &[]).await.unwrap_err();
            assert!(matches!(error, Error::NotARead { .. }), "{sql}: {error:?}");
        }
        // If no standby is named, reads are like any other statement.
        assert_eq!(seen(&router, 2).await, (0, false));

        // The replay stops. A standby that is not known in time to be near enough is no longer
        // read.
        let hasty = Router::new(options.replica_wait(Duration::from_millis(30)));
        until(&hasty, 0, true).await;
        until(&brief, 0, true).await;
        pause(&standby).await;
        let written = write(&hasty, 0, 20).await;
        let began = Instant::now();
        let row = hasty
            .by_key(0)
            .reads()
            .after(written)
            .query_one(SEEN, &[])
            .await
            .unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (21, false));
        assert!(
            began.elapsed() >= Duration::from_millis(30),
            "it was waited for"
        );
        assert_eq!(until(&brief, 0, false).await, 21);
        let late = Instant::now();
        while late.elapsed() < Duration::from_millis(400) {
            assert_eq!(seen(&brief, 0).await, (21, false));
        }
        resume(&standby).await;
        assert_eq!(until(&brief, 0, true).await, 21);

        // The standby ends, and comes back: no reader notices.
        shards.cluster.server(2).stop(StopMode::Immediate).unwrap();
        for _ in 0..100 {
            assert_eq!(seen(&router, 0).await, (21, false));
        }
        shards.cluster.server(2).start().unwrap();
        assert_eq!(until(&router, 0, true).await, 21);
        assert_eq!(until(&brief, 0, true).await, 21);

        // Without its primary the age of the standby's data is unknown; it is read for as long as
        // the last known age allows.
        shards.cluster.server(0).stop(StopMode::Immediate).unwrap();
        let gone = Instant::now();
        let error = loop {
            match brief.by_key(0).reads().query_one(SEEN, &[]).await {
                Ok(row) => {
                    assert!(row.get::<_, bool>(1) && gone.elapsed() < Duration::from_secs(20))
                }
                Err(error) => break error,
            }
        };
        assert!(error.is_retryable(), "{error:?}");
    }

    /// A server that is a standby of another primary is not read, however far its log is.
    async fn a_standby_of_another_host(version) {
        let (shards, mut options) = with_standby(version, 4).await;
        options.hosts.swap(0, 1);
        options.hosts[0].replicas = options.hosts[1].replicas.clone();
        options.max_replica_lag = Duration::from_millis(400);
        let router = Router::new(options);
        until(&router, 0, true).await;
        for _ in 0..50 {
            assert_eq!(seen(&router, 2).await, (0, false));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(shards);
    }

    /// While a shard moves, a standby of the source shows it until it learns of the move, and no
    /// longer; a standby of the target is not used until it has learned of it. No call gets an
    /// error.
    async fn a_standby_does_not_know_of_a_move(version) {
        let (shards, mut options) = with_standby(version, 4).await;
        let standby = shards.cluster.superuser(2).await;
        // Far longer than this takes: only what the standby answers keeps readers away from it.
        options.max_replica_lag = Duration::from_secs(600);
        let [router, behind, late] = [(); 3].map(|()| Router::new(options.clone()));
        let brief = Router::new(options.clone().max_replica_lag(Duration::from_secs(1)));
        for router in [&router, &behind, &late, &brief] {
            until(router, 0, true).await;
        }
        let before = write(&router, 0, 1).await;
        router
            .by_key(0)
            .reads()
            .after(before)
            .query_one(SEEN, &[])
            .await
            .unwrap();

        // From the host with the standby to the other one.
        pause(&standby).await;
        let moving = shards.prepare(0, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        assert_eq!(
            seen(&behind, 0).await,
            (1, true),
            "closed, and on the standby as it was \
            before"
        );
        moving.decide().await;
        moving.open().await;
        let written = write(&router, 0, 2).await;
        assert_eq!(
            seen(&router, 0).await,
            (2, false),
            "who knows of the move asks there"
        );
        assert_eq!(
            seen(&behind, 0).await,
            (1, true),
            "who does not, sees what was before"
        );
        // What was written before the move is on the standby, and what was written after it cannot
        // be read there.
        let row = behind
            .by_key(0)
            .reads()
            .after(before)
            .query_one(SEEN, &[])
            .await
            .unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (1, true));
        let row = behind
            .by_key(0)
            .reads()
            .after(written)
            .query_one(SEEN, &[])
            .await
            .unwrap();
        assert_eq!((row.get::<_, i64>(0), row.get::<_, bool>(1)), (2, false));
        assert_eq!(
            until(&brief, 0, false).await,
            2,
            "and no longer than the limit"
        );
        resume(&standby).await;
        let written = write(&router, 1, 3).await;
        late.by_key(1)
            .reads()
            .after(written)
            .query_one(SEEN, &[])
            .await
            .unwrap();
        assert_eq!(
            seen(&late, 0).await,
            (2, false),
            "the signpost is there too"
        );
        assert_eq!(late.by_key(0).host(), shards.name(1));

        // From the other one to the host with the standby.
        pause(&standby).await;
        let moving = shards.prepare(3, 1).await;
        router
            .by_key(3)
            .execute(INSERT, &[&1_i64, &"x"])
            .await
            .unwrap();
        moving.fence(Duration::from_secs(60)).await;
        moving.decide().await;
        moving.open().await;
        router
            .by_key(3)
            .execute(INSERT, &[&2_i64, &"x"])
            .await
            .unwrap();
        assert_eq!(router.by_key(3).host(), shards.name(0));
        for _ in 0..10 {
            assert_eq!(
                seen(&router, 3).await,
                (2, false),
                "the standby has not heard of the \
                shard"
            );
        }
        resume(&standby).await;
        assert_eq!(until(&router, 3, true).await, 2);
    }

    /// Two standbys share an address, and one has stopped replaying: a writer sees its own writes,
    /// and nothing is older than it may be.
    async fn several_behind_one_address(version) {
        let (shards, mut options) = with_standbys(version, 4, 2).await;
        let still = shards.cluster.superuser(3).await;
        pause(&still).await;
        let ports = [2, 3].map(|server| shards.cluster.server(server).port());
        let proxy = Proxy::to(ports[0]).await;
        proxy.lead_to_each(&ports);
        let behind = format!("postgres://app@127.0.0.1:{}/app", proxy.port);
        options.hosts[0].replicas = vec![ConnectOptions::parse(&behind).unwrap()];
        options.max_replica_lag = Duration::from_secs(600);
        let router = Router::new(options);
        until(&router, 0, true).await;
        let mut by_standby = 0;
        for round in 0..40_i64 {
            let written = write(&router, 0, round).await;
            let reads: Vec<_> = futures_util::future::join_all(
                (0..4).map(|_| router.by_key(0).reads().after(written).query_one(SEEN, &[])),
            )
            .await;
            for row in reads {
                let row = row.unwrap();
                assert_eq!(row.get::<_, i64>(0), round + 1, "one's own writes");
                by_standby += usize::from(row.get::<_, bool>(1));
            }
        }
        assert!(by_standby > 0, "the one that follows is read");
        eprintln!("{by_standby} of 160 reads by a standby");
    }

    /// The address of a standby leads to another one, which is behind: what the first has shown
    /// does not apply to it.
    async fn an_address_that_goes_back(version) {
        let (shards, mut options) = with_standbys(version, 4, 2).await;
        let still = shards.cluster.superuser(3).await;
        pause(&still).await;
        let [good, old] = [2, 3].map(|server| shards.cluster.server(server).port());
        let proxy = Proxy::to(good).await;
        let behind = format!("postgres://app@127.0.0.1:{}/app", proxy.port);
        options.hosts[0].replicas = vec![ConnectOptions::parse(&behind).unwrap()];
        options.max_replica_lag = Duration::from_secs(4);
        let router = Router::new(options);
        write(&router, 0, 1).await;
        while until(&router, 0, true).await == 0 {}
        // Longer ago than the age that any read allows.
        tokio::time::sleep(Duration::from_secs(5)).await;
        until(&router, 0, true).await;
        proxy.lead_to(old);
        shards.cluster.server(2).stop(StopMode::Fast).unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(5) {
            assert_eq!(seen(&router, 0).await.0, 1, "never what was before");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(shards);
    }
}
