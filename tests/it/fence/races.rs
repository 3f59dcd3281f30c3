//! Writers of every kind during many swaps: nothing is lost, nothing is written twice, and behind a
//! closed fence nothing changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::SinkExt;
use tokio_postgres::{Client, Error};

use super::setup::{
    Fence, LEFT, SCHEMA, SHARD, code, content, expire, leads_to_signpost, shop, state,
};

/// More than enough to meet a writer in every state; the number is limited by the time that it
/// takes.
const SWAPS: u32 = 200;

/// How a writer writes one entry and counts it, in one transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Autocommit,
    Transaction,
    Prepared,
    RepeatableRead,
    Copy,
    Asynchronous,
    Function,
}

const WRITERS: [Writer; 7] = [
    Writer::Autocommit,
    Writer::Transaction,
    Writer::Prepared,
    Writer::RepeatableRead,
    Writer::Copy,
    Writer::Asynchronous,
    Writer::Function,
];

impl Writer {
    /// Writes until it is stopped; returns how many entries were acknowledged. An entry that was
    /// refused is written again.
    async fn run(self, client: Client, stop: Arc<AtomicBool>, refusals: Arc<AtomicI64>) -> i64 {
        let writer = self as i32;
        if self == Writer::Asynchronous {
            client
                .batch_execute("SET synchronous_commit = off")
                .await
                .unwrap();
        }
        let sql = format!("INSERT INTO {SCHEMA}.entries VALUES ($1, $2)");
        let insert = client.prepare(&sql).await.unwrap();
        let count = client
            .prepare(&format!(
                "UPDATE {SCHEMA}.counts SET n = n + 1 WHERE writer = $1"
            ))
            .await
            .unwrap();
        let mut number = 0;
        while !stop.load(Ordering::Relaxed) {
            let written: Result<(), Error> = async {
                match self {
                    Writer::Autocommit => {
                        let both = format!(
                            "WITH counted AS (UPDATE {SCHEMA}.counts SET n = n + 1 WHERE writer = \
                                {writer})
                            INSERT INTO {SCHEMA}.entries VALUES ({writer}, {number})"
                        );
                        return client.batch_execute(&both).await;
                    }
                    Writer::Function => {
                        return client
                            .execute("SELECT outside.write_entry($1, $2)", &[&writer, &number])
                            .await
                            .map(drop);
                    }
                    Writer::RepeatableRead => {
                        client
                            .batch_execute(
                                "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) \
                                FROM public.users",
                            )
                            .await?;
                    }
                    _ => client.batch_execute("BEGIN").await?,
                }
                match self {
                    Writer::Transaction => {
                        client
                            .batch_execute(&format!(
                                "INSERT INTO {SCHEMA}.entries VALUES ({writer}, {number});
                            SAVEPOINT s; DELETE FROM {SCHEMA}.entries WHERE writer = {writer}; \
                            ROLLBACK TO s;
                            UPDATE {SCHEMA}.counts SET n = n + 1 WHERE writer = {writer}"
                            ))
                            .await?;
                    }
                    Writer::Copy => {
                        let mut sink = std::pin::pin!(
                            client
                                .copy_in(&format!(
                                    "COPY {SCHEMA}.entries FROM \
                                STDIN"
                                ))
                                .await?
                        );
                        sink.send(Bytes::from(format!("{writer}\t{number}\n")))
                            .await?;
                        sink.finish().await?;
                        client.execute(&count, &[&writer]).await?;
                    }
                    _ => {
                        client.execute(&insert, &[&writer, &number]).await?;
                        client.execute(&count, &[&writer]).await?;
                    }
                }
                client.batch_execute("COMMIT").await
            }
            .await;
            match written {
                Ok(()) => number += 1,
                Err(error) => {
                    assert!(leads_to_signpost(&error), "{self:?}: {error:?}");
                    refusals.fetch_add(1, Ordering::Relaxed);
                    client.batch_execute("ROLLBACK").await.unwrap();
                }
            }
        }
        i64::from(number)
    }
}

on_each_version! {
    /// Fences and swaps back, again and again, during all kinds of writes. Every other fence is
    /// ended by its deadline.
    async fn swaps_under_writers(version) {
        let cluster = shop(version).await;
        let client = cluster.app(0).await;
        client
            .batch_execute(&format!(
                "
            CREATE TABLE {SCHEMA}.entries (writer integer, number integer);
            CREATE TABLE {SCHEMA}.counts (writer integer PRIMARY KEY, n bigint);
            INSERT INTO {SCHEMA}.counts SELECT g, 0 FROM generate_series(0, 6) AS g;
            CREATE FUNCTION outside.write_entry(w integer, e integer) RETURNS void LANGUAGE \
            plpgsql AS $$
            BEGIN
                INSERT INTO {SCHEMA}.entries VALUES (w, e);
                UPDATE {SCHEMA}.counts SET n = n + 1 WHERE writer = w;
            END $$"
            ))
            .await
            .unwrap();
        let mut fence = Fence::prepare(cluster.app(0).await, SHARD).await;
        let stop = Arc::new(AtomicBool::new(false));
        let refusals = Arc::new(AtomicI64::new(0));
        let mut tasks = Vec::new();
        for writer in WRITERS {
            tasks.push(tokio::spawn(writer.run(
                cluster.app(0).await,
                stop.clone(),
                refusals.clone(),
            )));
        }
        for swap in 0..SWAPS {
            let deadline = if swap % 2 == 0 {
                Duration::from_secs(60)
            } else {
                Duration::ZERO
            };
            fence.swap_for(deadline).await.unwrap();
            fence.barrier_until_empty().await;
            let closed = content(&client, LEFT).await;
            fence.mark().await.unwrap();
            assert_eq!(content(&client, LEFT).await, closed, "swap {swap}");
            if swap % 2 == 0 {
                fence.unfence().await.unwrap();
            } else {
                assert!(expire(&client, SHARD).await.unwrap());
            }
            // Writers get time, so that there is something to meet.
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stop.store(true, Ordering::Relaxed);
        for (task, writer) in tasks.into_iter().zip(WRITERS) {
            let acknowledged = task.await.unwrap();
            assert!(acknowledged > 0, "{writer:?} got through");
            let sql = format!(
                "SELECT count(*), count(DISTINCT number), coalesce(max(number) + 1, \
                0)::bigint,
                (SELECT n FROM {SCHEMA}.counts WHERE writer = $1) FROM {SCHEMA}.entries WHERE \
                writer = $1"
            );
            let row = client.query_one(&sql, &[&(writer as i32)]).await.unwrap();
            let found: Vec<i64> = (0..4).map(|column| row.get(column)).collect();
            assert_eq!(found, [acknowledged; 4], "{writer:?}");
        }
        assert!(
            refusals.load(Ordering::Relaxed) > 0,
            "the writers met the signpost"
        );
        assert_eq!(state(&client, SHARD).await, "serving 3");
    }

    /// Why there is a barrier: a writer from before the swap commits to the old copy after it.
    async fn a_swap_alone_is_no_fence(version) {
        let cluster = shop(version).await;
        let (client, writer) = (cluster.app(0).await, cluster.app(0).await);
        let mut fence = Fence::prepare(cluster.app(0).await, SHARD).await;
        writer
            .batch_execute(&format!(
                "BEGIN; INSERT INTO {SCHEMA}.users (email) VALUES \
            ('early')"
            ))
            .await
            .unwrap();
        fence.swap().await.unwrap();
        let before = content(&client, LEFT).await;
        writer.batch_execute("COMMIT").await.unwrap();
        assert_ne!(content(&client, LEFT).await, before);
        fence.barrier_until_empty().await;
        let error = writer
            .batch_execute(&format!(
                "INSERT INTO {SCHEMA}.users (email) VALUES \
                ('late')"
            ))
            .await
            .unwrap_err();
        assert_eq!(code(&error), "SH001");
    }
}
