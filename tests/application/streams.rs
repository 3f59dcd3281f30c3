//! Rows as they come: in bounded memory, during moves, and for any owner of the stream.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt, TryStreamExt};
use pgshard::router::Error;
use pgshard::{Router, ShardId, params};

use super::INSERT;
use tokio_postgres::Row;

use super::by_hand::{Shards, shard};

const TITLES: &str = "SELECT title FROM {shard}.photos ORDER BY id";

async fn fill(shards: &Shards, number: u16, rows: i64) {
    let schema = super::by_hand::schema(number);
    let sql = format!(
        "INSERT INTO {schema}.photos (id, title)
         SELECT n, n::text FROM generate_series(1, {rows}) AS n"
    );
    let host = usize::from(number >= 4);
    shards.db[host].batch_execute(&sql).await.unwrap();
}

on_each_version! {
    /// The server waits for its reader; the stream is owned by the code that has it; its connection
    /// goes back with the last row.
    async fn a_stream_owns_its_connection_and_holds_few_rows(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 1);
        let router = Router::new(options.clone());
        let many = "SELECT n, repeat('x', 1000) FROM generate_series(1, $1::bigint) AS n";
        let mut rows = router
            .by_key(1)
            .query_raw(many, &[&200_000_i64])
            .await
            .unwrap();
        assert_eq!(rows.try_next().await.unwrap().unwrap().get::<_, i64>(0), 1);
        let waits = "SELECT count(*) FROM pg_stat_activity
            WHERE query LIKE '%generate_series(1, $1::bigint)%' AND wait_event = 'ClientWrite'";
        while shards.db[0]
            .query_one(waits, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(router);
        let task = tokio::spawn(async move {
            let mut last = 0;
            while let Some(row) = rows.try_next().await? {
                last = row.get::<_, i64>(0);
            }
            Ok::<_, Error>((last, rows.delivered()))
        });
        assert_eq!(task.await.unwrap().unwrap(), (200_000, 200_000));

        let router = Router::new(options);
        let pid = "SELECT pg_backend_pid()";
        let before: i32 = router.by_key(1).query_one(pid, &[]).await.unwrap().get(0);
        for rows in [0_i64, 1, 500] {
            let read: Vec<_> = router
                .by_key(1)
                .query_raw(many, &[&rows])
                .await
                .unwrap()
                .try_collect()
                .await
                .unwrap();
            assert_eq!(read.len() as i64, rows);
        }
        let after: i32 = router.by_key(1).query_one(pid, &[]).await.unwrap().get(0);
        assert_eq!(before, after, "it is used again");
        // One that is given up ends at the server, and then another call gets its place.
        let given_up = router
            .by_key(1)
            .query_raw(many, &[&20_000_000_i64])
            .await
            .unwrap();
        drop(given_up);
        router.by_key(1).query(pid, &[]).await.unwrap();

        let insert = router
            .by_key(1)
            .query_raw(INSERT, &[&1_i64, &"x"])
            .await
            .unwrap_err();
        assert!(matches!(insert, Error::NotARead { .. }), "{insert:?}");
        let names = "SELECT to_regclass('{shard}.photos') IS NOT NULL";
        let known: Vec<_> = router
            .by_key(1)
            .query_raw(names, &[])
            .await
            .unwrap()
            .try_collect()
            .await
            .unwrap();
        assert!(known[0].get::<_, bool>(0));
    }

    /// A move before the first row is not seen. An error that ends a stream later contains where it
    /// was.
    async fn a_stream_follows_its_shard_until_the_first_row(version) {
        let shards = Shards::start(version, 8).await;
        fill(&shards, 1, 1000).await;
        let router = shards.router();
        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        let moves = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            moving.decide().await;
            moving.open().await;
        };
        let (rows, ()) = tokio::join!(router.by_key(1).query_raw(TITLES, &[]), moves);
        let mut rows = rows.unwrap();
        assert_eq!(*rows.host(), shards.name(1));
        assert_eq!(
            rows.try_next().await.unwrap().unwrap().get::<_, &str>(0),
            "1"
        );
        drop(rows);

        let slow = "SELECT repeat('x', 100000), pg_sleep(0.001) FROM generate_series(1, 100000)";
        let mut rows = router.by_key(1).query_raw(slow, &[]).await.unwrap();
        for _ in 0..3 {
            rows.try_next().await.unwrap().unwrap();
        }
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE query LIKE '%pg_sleep(0.001)%' AND pid <> pg_backend_pid()";
        shards
            .cluster
            .superuser(1)
            .await
            .query(kill, &[])
            .await
            .unwrap();
        let stopped = loop {
            match rows.try_next().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("it came to its end"),
                Err(error) => break error,
            }
        };
        let read = rows.delivered();
        assert!(read >= 3);
        assert!(
            matches!(&stopped, Error::StreamStopped { rows, .. } if *rows == read),
            "{stopped:?}"
        );
        assert!(
            stopped.is_retryable() && stopped.is_cluster(),
            "{stopped:?}"
        );
        assert!(!stopped.may_have_run(), "{stopped:?}");
        let text = stopped.to_string();
        assert!(
            text.contains("shard 1 on host db2") && text.contains(&read.to_string()),
            "{text}"
        );
        assert!(rows.try_next().await.unwrap().is_none(), "it has ended");
        // An error of the statement after its first row is the application's.
        let divides = "SELECT 1 / (3 - n) FROM generate_series(1, 5) AS n";
        let rows = router.by_key(1).query_raw(divides, &[]).await.unwrap();
        let error = rows.try_collect::<Vec<_>>().await.unwrap_err();
        assert!(error.is_application() && !error.is_retryable(), "{error:?}");
        assert_eq!(error.code().unwrap().code(), "22012");
    }

    /// COPY: out as a stream, which follows a move until its first row; in within a transaction,
    /// which runs again, whole, when the shard moves in its middle. No other call takes either.
    async fn copies_go_out_as_streams_and_in_within_transactions(version) {
        let shards = Shards::start(version, 8).await;
        fill(&shards, 1, 1000).await;
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 1);
        let router = Router::new(options);
        let copy = "COPY (SELECT id, title FROM {shard}.photos ORDER BY id) TO STDOUT (FORMAT csv)";
        let lines = |data: Vec<bytes::Bytes>| -> Vec<String> {
            data.iter()
                .map(|line| String::from_utf8(line.to_vec()).unwrap())
                .collect()
        };
        let wanted: Vec<String> = (1..=1000).map(|id| format!("{id},{id}\n")).collect();
        let data = router.by_key(1).copy_out(copy).await.unwrap();
        assert_eq!(lines(data.try_collect().await.unwrap()), wanted);
        let empty = router
            .by_key(2)
            .copy_out("COPY {shard}.photos TO STDOUT")
            .await
            .unwrap();
        assert!(empty.try_collect::<Vec<_>>().await.unwrap().is_empty());

        // The server waits while nothing is read.
        let many = "COPY (SELECT repeat('x', 1000) FROM generate_series(1, 20000000)) TO STDOUT";
        let mut data = router.by_key(1).copy_out(many).await.unwrap();
        assert_eq!(data.try_next().await.unwrap().unwrap().len(), 1001);
        let waits = "SELECT count(*) FROM pg_stat_activity
            WHERE query LIKE '%generate_series(1, 20000000)%' AND wait_event = 'ClientWrite'";
        while shards.db[0]
            .query_one(waits, &[])
            .await
            .unwrap()
            .get::<_, i64>(0)
            == 0
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        drop(data);

        for wrong in [copy, "COPY {shard}.photos FROM STDIN", "LISTEN photos"] {
            let refused = [
                router.by_key(1).execute(wrong, &[]).await.unwrap_err(),
                router.by_key(1).query(wrong, &[]).await.unwrap_err(),
                router
                    .by_key(1)
                    .transaction(async |tx| tx.execute(wrong, &[]).await)
                    .await
                    .unwrap_err(),
                router
                    .shards([shard(1)])
                    .query(wrong, &[])
                    .await
                    .unwrap_err()
                    .into(),
            ];
            for error in refused {
                let text = error.to_string();
                assert!(error.is_application() && !error.may_have_run(), "{error:?}");
                assert!(text.contains("is not run by this call"), "{text}");
            }
        }
        let wrong = router.by_key(1).copy_out("SELECT 1").await.unwrap_err();
        assert!(matches!(wrong, Error::NotARead { .. }), "{wrong:?}");
        // What listens nevertheless does not listen for the next caller.
        let hidden = "DO $$ BEGIN EXECUTE 'LISTEN photos'; END $$";
        router.by_key(1).execute(hidden, &[]).await.unwrap();
        let client = router.by_key(1).client().await.unwrap();
        client.batch_execute("LISTEN photos").await.unwrap();
        drop(client);
        let listens = "SELECT count(*) FROM pg_listening_channels()";
        assert_eq!(
            router
                .by_key(1)
                .query_one(listens, &[])
                .await
                .unwrap()
                .get::<_, i64>(0),
            0
        );

        let moving = shards.prepare(1, 0).await;
        let (wait, mut runs) = (tokio::sync::Barrier::new(2), 0);
        let copying = router.by_key(1).orm_transaction(|tx| {
            runs += 1;
            let (first, wait) = (runs == 1, &wait);
            async move {
                let client = tx.client().await?;
                if first {
                    wait.wait().await;
                    wait.wait().await;
                }
                let failed = |error| tx.failed(error);
                let sink = client
                    .copy_in("COPY photos (id, title) FROM STDIN (FORMAT csv)")
                    .await;
                let mut sink = std::pin::pin!(sink.map_err(failed)?);
                for id in 2000..2100 {
                    sink.send(bytes::Bytes::from(format!("{id},new\n")))
                        .await
                        .map_err(failed)?;
                }
                sink.finish().await.map_err(failed)
            }
        });
        let moves = async {
            wait.wait().await;
            moving.fence(Duration::from_secs(60)).await;
            wait.wait().await;
            tokio::time::sleep(Duration::from_millis(100)).await;
            moving.decide().await;
            moving.open().await;
        };
        let (copied, ()) = tokio::join!(copying, moves);
        assert_eq!(copied.unwrap(), 100);
        assert!(runs > 1, "it began on the host that the shard left");
        let rows = router.by_key(1).query_one(
            "SELECT count(*) FROM {shard}.photos WHERE title = 'new'",
            &[],
        );
        assert_eq!(rows.await.unwrap().get::<_, i64>(0), 100);

        // A stream that is opened while its shard is fenced begins on the host where it is then.
        let moving = shards.prepare(2, 0).await;
        fill(&shards, 2, 3).await;
        moving.fence(Duration::from_secs(60)).await;
        let moves = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            moving.decide().await;
            moving.open().await;
        };
        let (data, ()) = tokio::join!(router.by_key(2).copy_out(copy), moves);
        let data = data.unwrap();
        assert_eq!(*data.host(), shards.name(1));
        assert_eq!(lines(data.try_collect().await.unwrap()), wanted[..3]);
    }

    /// All shards, a connection of each host, and an error of one that ends no other.
    async fn streams_of_many_shards_end_alone(version) {
        let shards = Shards::start(version, 8).await;
        for number in 0..8 {
            fill(&shards, number, 100).await;
        }
        shards.db[0]
            .batch_execute("DROP TABLE shard_0002.photos")
            .await
            .unwrap();
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 1);
        let router = Router::new(options);
        let above = "SELECT title FROM {shard}.photos WHERE id > $1";
        let mut rows = router.all_shards().query_raw(above, params![10_i64]);
        drop(router);
        let (mut read, mut failed) = (BTreeMap::new(), Vec::new());
        while let Some((shard, row)) = rows.next().await {
            match row {
                Ok(_) => *read.entry(shard.get()).or_insert(0) += 1,
                Err(error) => failed.push((shard.get(), error.code().unwrap().code().to_owned())),
            }
        }
        assert_eq!(failed, [(2, "42P01".to_owned())]);
        assert_eq!(read.len(), 7);
        assert!(read.values().all(|rows| *rows == 90), "{read:?}");
    }

    /// The rows of all shards in one order, on one connection of each host. However many rows there
    /// are, the servers have run only what the reader needs, and the connections go back.
    async fn a_merge_of_streams_is_in_order_and_holds_few_rows(version) {
        let shards = Shards::start(version, 8).await;
        for number in 0..8 {
            fill(&shards, number, 1000).await;
        }
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 1);
        options.wait_max = Duration::from_secs(60);
        let router = Router::new(options);
        // A number that repeats, descending; then the shard breaks the tie.
        let sql = "-- The shards' photos
            SELECT (id % 7)::int, id FROM {shard}.photos WHERE id > $1 ORDER BY 1 DESC, 2";
        let order = |row: &Row| {
            Ok((Reverse(row.try_get::<_, i32>(0)?), row.try_get::<_, i64>(1)?))
        };
        let mut wanted: Vec<_> = (0..8_u16)
            .flat_map(|shard| {
                (11..=1000_i64).map(move |id| ((Reverse((id % 7) as i32), id), shard))
            })
            .collect();
        wanted.sort();
        let all = async || {
            let rows = router.all_shards().merge_raw(sql, params![10_i64], order).await?;
            let rows: Vec<(ShardId, Row)> = rows.try_collect().await?;
            let rows = rows.iter().map(|(shard, row)| (order(row).unwrap(), shard.get()));
            Ok::<_, Error>(rows.collect::<Vec<_>>())
        };
        // Several at a time, with one connection of each host: none waits for another forever.
        let (one, two, three) = tokio::join!(all(), all(), all());
        for merged in [one, two, three] {
            assert_eq!(merged.unwrap(), wanted);
        }
        let keys: Vec<i64> = (1..=40).collect();
        let of_keys = "SELECT id FROM {shard}.photos WHERE id = ANY($1) AND id < $2 ORDER BY id";
        let merged = router.by_keys(&keys).unwrap();
        let merged = merged
            .merge_raw(of_keys, params![31_i64], |row| row.try_get::<_, i64>(0))
            .await
            .unwrap();
        let merged: Vec<(ShardId, Row)> = merged.try_collect().await.unwrap();
        let ids: Vec<i64> = merged.iter().map(|(_, row)| row.get(0)).collect();
        assert_eq!(ids, (1..=30).collect::<Vec<i64>>());
        let none = router.shards([]).merge_raw(sql, params![10_i64], order).await.unwrap();
        assert!(none.try_collect::<Vec<_>>().await.unwrap().is_empty());

        // Each row that a server makes takes a lock, so that they can be counted.
        let counted = "SELECT n, pg_try_advisory_xact_lock({shard_id}, n::int)
            FROM generate_series(1, 1000000) AS n";
        let mut rows = router
            .all_shards()
            .merge_raw(counted, params![], |row| row.try_get::<_, i32>(0))
            .await
            .unwrap();
        for at in 0..4000_i32 {
            let (_, row) = rows.try_next().await.unwrap().unwrap();
            assert_eq!(row.get::<_, i32>(0), at / 8 + 1);
        }
        let made = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'";
        for host in &shards.db {
            let made: i64 = host.query_one(made, &[]).await.unwrap().get(0);
            // 500 rows of each of its four shards were read.
            assert!((2000..=4 * 768).contains(&made), "{made}");
        }
        // One that is dropped ends its transactions, and others get the connections.
        drop(rows);
        router.all_shards().query("SELECT 1", &[]).await.unwrap();
        for host in &shards.db {
            let idle = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in tr%'";
            // A server ends the transaction of a connection that was closed a moment later.
            while host.query_one(idle, &[]).await.unwrap().get::<_, i64>(0) > 0 {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }

    /// The first error ends a merge, because the rows that would follow are not known to be next.
    /// It names its shard, and no connection is left in the middle of something.
    async fn a_merge_of_streams_ends_with_its_first_error(version) {
        let shards = Shards::start(version, 8).await;
        for number in 0..8 {
            fill(&shards, number, 600).await;
        }
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 1);
        let router = Router::new(options);
        let titles = "SELECT title FROM {shard}.photos ORDER BY id";
        let title = |row: &Row| row.try_get::<_, String>(0);
        let all = router.all_shards();
        // By number, while the merge compares texts: 10 comes after 9.
        let mut rows = all.merge_raw(titles, params![], title).await.unwrap();
        let mut read = 0;
        let error = loop {
            match rows.try_next().await {
                Ok(row) => read += u64::from(row.is_some()),
                Err(error) => break error,
            }
        };
        assert!(
            matches!(&error, Error::OutOfOrder { shard, rows: 9, .. } if shard.get() == 0),
            "{error:?}"
        );
        assert!(read >= 9 && error.is_application() && !error.is_retryable(), "{read}");
        assert!(!error.may_have_run());
        assert!(error.to_string().contains("shard 0 on host db1 gave its row 10 out of order"));
        assert!(rows.try_next().await.unwrap().is_none());
        drop(rows);

        let number = |row: &Row| row.try_get::<_, i64>(0);
        let refused = [
            all.merge_raw(titles, params![], number).await.unwrap_err(),
            all.merge_raw(INSERT, params![1_i64, "x"], number).await.unwrap_err(),
            all.merge_raw("SELECT to_regclass('{shard}.photos')", params![], number)
                .await
                .unwrap_err(),
            all.clone()
                .reads()
                .merge_raw(titles, params![], title)
                .await
                .unwrap_err(),
            all.merge_raw("SELECT $1::int", params!["x"], number).await.unwrap_err(),
            all.merge_raw("SELECT 1/0", params![], number).await.unwrap_err(),
            all.merge_raw("SELECT id FROM {shard}.missing", params![], number)
                .await
                .unwrap_err(),
            all.merge_raw("SELECT 1; SELECT 2", params![], number).await.unwrap_err(),
            all.merge_raw(
                "WITH a AS (DELETE FROM {shard}.photos RETURNING id) TABLE a",
                params![],
                number,
            )
            .await
            .unwrap_err(),
            all.merge_raw("SELECT nextval('{shard}.missing')", params![], number)
                .await
                .unwrap_err(),
        ];
        for error in refused {
            assert!(error.is_application() && !error.may_have_run(), "{error:?}");
            assert!(!error.is_retryable(), "{error:?}");
        }
        let slow = all
            .clone()
            .deadline(Duration::from_millis(100))
            .merge_raw("SELECT 1, pg_sleep(60)", params![], |row| row.try_get::<_, i32>(0))
            .await
            .unwrap_err();
        assert!(slow.is_timeout() && !slow.may_have_run(), "{slow:?}");

        // An error of one shard after the first rows, and a connection that is lost.
        let divides = "SELECT id, 1 / (500 - id) FROM {shard}.photos ORDER BY id";
        let rows = all.merge_raw(divides, params![], number).await.unwrap();
        let error = rows.try_collect::<Vec<_>>().await.unwrap_err();
        assert!(
            matches!(&error, Error::StreamStopped { rows, .. } if *rows < 500),
            "{error:?}"
        );
        assert_eq!(error.code().unwrap().code(), "22012");
        let ids = "SELECT id FROM {shard}.photos ORDER BY id";
        let mut rows = all.merge_raw(ids, params![], number).await.unwrap();
        rows.try_next().await.unwrap().unwrap();
        let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE state = 'idle in transaction'";
        shards.cluster.superuser(1).await.query(kill, &[]).await.unwrap();
        let error = rows.by_ref().try_collect::<Vec<_>>().await.unwrap_err();
        assert!(
            matches!(&error, Error::StreamStopped { shard, host, rows: 256, .. }
                if shard.get() == 4 && *host == shards.name(1)),
            "{error:?}"
        );
        assert!(error.is_retryable() && !error.may_have_run(), "{error:?}");
        assert!(rows.try_next().await.unwrap().is_none());
        let rows = all.merge_raw(ids, params![], number).await.unwrap();
        assert_eq!(rows.try_collect::<Vec<_>>().await.unwrap().len(), 8 * 600);
    }

    /// All shards move while they are merged: each merge has each row once, in order, or returns an
    /// error that allows another try. One that has begun shows what was there then.
    async fn a_merge_of_streams_follows_moves(version) {
        let shards = Shards::start(version, 8).await;
        for number in 0..8 {
            fill(&shards, number, 700).await;
        }
        let mut options = shards.options();
        options.hosts.iter_mut().for_each(|host| host.pool_size = 2);
        let router = Router::new(options);
        let sql = "SELECT id FROM {shard}.photos ORDER BY id";
        let id = |row: &Row| row.try_get::<_, i64>(0);
        let wanted: Vec<(u16, i64)> = (1..=700)
            .flat_map(|id| (0..8).map(move |shard| (shard, id)))
            .collect();
        let read = |rows: &[(ShardId, Row)]| -> Vec<(u16, i64)> {
            rows.iter().map(|(shard, row)| (shard.get(), row.get(0))).collect()
        };
        let mut early = router.all_shards().merge_raw(sql, params![], id).await.unwrap();
        let mut first = vec![early.try_next().await.unwrap().unwrap()];
        let moves = async {
            for number in [3, 6, 0, 7, 1, 5, 2, 4] {
                let moving = shards.prepare(number, usize::from(number >= 4)).await;
                moving.fence(Duration::from_secs(60)).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                moving.decide().await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                moving.open().await;
            }
        };
        let merges = async {
            loop {
                let rows = router.all_shards().merge_raw(sql, params![], id).await.unwrap();
                let rows: Vec<(ShardId, Row)> = rows.try_collect().await.unwrap();
                assert_eq!(read(&rows), wanted);
                let moved = router.hosts().len() == 2
                    && (0..8).all(|number| {
                        let host = router.shard(shard(number)).unwrap().host();
                        host == shards.name(usize::from(number < 4))
                    });
                if moved {
                    break;
                }
            }
        };
        tokio::join!(merges, moves);
        first.extend(early.try_collect::<Vec<_>>().await.unwrap());
        assert_eq!(read(&first), wanted);
    }
}
