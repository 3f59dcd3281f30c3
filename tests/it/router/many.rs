//! Many in one call: IDs, keys, rows and shards, while some of them fail or are being moved.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use pgshard::id::Id;
use pgshard::router::{Error, PrepareMode, Sql};
use pgshard::{Router, columns, params};

use super::by_hand::{Shards, schema, shard};

const INSERT: &str = "INSERT INTO {shard}.photos (id, title) SELECT * FROM unnest($1::bigint[], \
    $2::text[]) RETURNING id";
const BY_ID: &str = "SELECT id, title FROM {shard}.photos WHERE id = ANY($1)";
/// It sleeps on one of the shards.
const SLEEPS: &str = "SELECT CASE WHEN '{shard}' LIKE '%_0002%' THEN pg_sleep(60)::text END";
const FEED: &str = "SELECT id FROM {shard}.photos
    WHERE title::bigint = ANY($1) AND id < $2 ORDER BY id DESC LIMIT $3";

/// The ID of a key's row: its time is not in the order of shards.
fn id(key: i64, shards: i64) -> i64 {
    let number = key.rem_euclid(shards) as u16;
    Id::new(
        1_000_000 - (key * 7919 % 1000) as u64,
        shard(number),
        (key / shards % 1024) as u64,
    )
    .unwrap()
    .encode()
}

async fn filled(shards: &Shards, keys: std::ops::Range<i64>, count: i64) -> Vec<(i64, i64)> {
    let rows: Vec<(i64, i64)> = keys.map(|key| (key, id(key, count))).collect();
    let inserted = shards.router().insert_many(&rows, |(key, _)| *key).unwrap();
    let inserted = inserted.query(INSERT, |rows| {
        columns![
            rows.iter().map(|(_, id)| *id),
            rows.iter().map(|(key, _)| key.to_string())
        ]
    });
    let inserted = inserted.await.unwrap();
    let mut seen = 0;
    for of_shard in &inserted {
        assert_eq!(of_shard.places.len(), of_shard.rows.len());
        for (place, row) in of_shard.places.iter().zip(&of_shard.rows) {
            assert_eq!(
                (row.get::<_, i64>(0), Id::decode(row.get(0)).shard()),
                (rows[*place].1, of_shard.shard)
            );
            seen += 1;
        }
    }
    assert_eq!(seen, rows.len());
    rows
}

on_each_version! {
    /// Order, duplicates, IDs without rows, and IDs of shards that the cluster does not have.
    async fn ids_in_order(version) {
        let shards = Shards::start(version, 32).await;
        let rows = filled(&shards, 0..200, 32).await;
        let router = shards.router();

        let mut ids: Vec<i64> = rows.iter().rev().map(|(_, id)| *id).collect();
        let wanted = ids.clone();
        ids.extend(&wanted[..50]);
        let absent = Id::new(7, shard(3), 7).unwrap().encode();
        ids.insert(10, absent);
        let found = router.by_ids(&ids).query_in_order(BY_ID).await.unwrap();
        let found: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
        assert_eq!(
            found, wanted,
            "each once, where it stood first; those that are not there are \
            not there"
        );
        for (width, depth) in [(1, 1), (1, 100), (3, 2)] {
            let rows = router
                .by_ids(&ids)
                .width(width)
                .depth(depth)
                .query(BY_ID)
                .await
                .unwrap();
            assert_eq!(rows.len(), wanted.len());
        }
        assert!(router.by_ids(&[]).query(BY_ID).await.unwrap().is_empty());

        let strange = Id::new(1000, shard(40), 0).unwrap().encode();
        let partial = router
            .by_ids(&[strange, wanted[0]])
            .query_in_order(BY_ID)
            .await
            .unwrap_err();
        assert_eq!(partial.done[0].get::<_, i64>(0), wanted[0]);
        assert_eq!(partial.wanted().collect::<Vec<_>>(), [&strange]);
        assert!(matches!(partial.failed[0].error, Error::NoSuchId { id, .. } if id == strange));
        assert_eq!(
            partial.to_string(),
            "1 of 2 shards failed; the first is shard 40"
        );

        let partial = router
            .by_ids(&wanted[..2])
            .query_in_order("SELECT title FROM {shard}.photos WHERE id = ANY($1)")
            .await
            .unwrap_err();
        assert_eq!(
            (partial.done.len(), partial.failed.len()),
            (0, 2),
            "a first column that is no \
            bigint"
        );
    }

    /// The IDs of a dead host are named, and the others' rows are returned. Afterwards every
    /// connection still works.
    async fn a_part_fails(version) {
        let shards = Shards::start(version, 16).await;
        let rows = filled(&shards, 0..64, 16).await;
        let router = shards.router();
        let ids: Vec<i64> = rows.iter().map(|(_, id)| *id).collect();
        assert_eq!(router.by_ids(&ids).query(BY_ID).await.unwrap().len(), 64);

        shards
            .cluster
            .server(1)
            .stop(pgshard::dev::StopMode::Fast)
            .unwrap();
        let partial = router.by_ids(&ids).query(BY_ID).await.unwrap_err();
        let far = |id: &i64| Id::decode(*id).shard().get() >= 8;
        assert!(
            partial.is_retryable() && partial.failed.len() == 8,
            "{partial}"
        );
        assert!(partial.done.len() == 32 && partial.done.iter().all(|(shard, _)| shard.get() < 8));
        let named: BTreeSet<i64> = partial.wanted().copied().collect();
        assert_eq!(named, ids.iter().copied().filter(far).collect());

        let partial = router
            .insert_many(&[(0_i64, 1_i64), (8, 2)], |(key, _)| *key)
            .unwrap();
        let partial = partial.query(INSERT, |rows| {
            columns![
                rows.iter().map(|(_, id)| *id),
                rows.iter().map(|_| "new".to_owned())
            ]
        });
        let partial = partial.await.unwrap_err();
        assert_eq!(
            (partial.done.len(), partial.failed[0].wanted.as_slice()),
            (1, [1].as_slice())
        );

        shards.cluster.server(1).start().unwrap();
        let back = async {
            // The next try in the background closes the circuit again.
            while router.by_ids(&ids).query(BY_ID).await.is_err() {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), back)
            .await
            .expect("the host is met again");
        assert_eq!(router.by_ids(&ids).query(BY_ID).await.unwrap().len(), 64);
    }

    /// One shard's statement is refused: only that one fails, on a connection that others are
    /// using.
    async fn a_refusal_is_one_shards(version) {
        let shards = Shards::start(version, 16).await;
        filled(&shards, 0..64, 16).await;
        shards.db[0]
            .batch_execute(&format!(
                "ALTER TABLE {}.photos RENAME TO \
            gone",
                schema(3)
            ))
            .await
            .unwrap();
        let rows: Vec<(i64, i64)> = (0..16).map(|key| (key, 5000 + key)).collect();
        let twice = id(4, 16);
        let rows: Vec<(i64, i64)> = rows
            .into_iter()
            .map(|(key, new)| (key, if key == 4 { twice } else { new }))
            .collect();
        let inserted = shards.router().insert_many(&rows, |(key, _)| *key).unwrap();
        let inserted = inserted.query(INSERT, |rows| {
            columns![
                rows.iter().map(|(_, id)| *id),
                rows.iter().map(|(key, _)| key.to_string())
            ]
        });
        let partial = inserted.await.unwrap_err();
        let codes: Vec<&str> = partial
            .failed
            .iter()
            .map(|failed| failed.error.code().unwrap().code())
            .collect();
        assert_eq!(codes, ["42P01", "23505"]);
        assert_eq!(partial.wanted().collect::<Vec<_>>(), [&3, &4]);
        assert_eq!(partial.done.len(), 14);
    }

    /// Shards are fenced, or have moved, while others are read: every row comes, from where it is
    /// now. With one connection to each host nothing waits for itself.
    async fn during_a_move(version) {
        let shards = Shards::start(version, 8).await;
        let rows = filled(&shards, 0..80, 8).await;
        let ids: Vec<i64> = rows.iter().map(|(_, id)| *id).collect();
        let mut options = shards.options();
        for host in &mut options.hosts {
            host.pool_size = 1;
        }
        let router = pgshard::Router::new(options);
        assert_eq!(router.by_ids(&ids).query(BY_ID).await.unwrap().len(), 80);

        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        let reading = tokio::spawn({
            let (router, ids) = (router.clone(), ids.clone());
            async move {
                router
                    .by_ids(&ids)
                    .query(BY_ID)
                    .await
                    .map(|rows| rows.len())
                    .map_err(|partial| partial.to_string())
            }
        });
        // Waits until the read has met the fence.
        while router.stats().look_ups == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        moving.decide().await;
        moving.open().await;
        assert_eq!(reading.await.unwrap(), Ok(80));
        assert_eq!(router.by_ids(&ids).query(BY_ID).await.unwrap().len(), 80);
        let mut counts = router.all_shards().depth(4).query(
            "SELECT count(*) FROM \
            {shard}.photos",
            &[],
        );
        let mut seen = 0;
        while let Some((_, rows)) = counts.next().await {
            assert_eq!(rows.unwrap()[0].get::<_, i64>(0), 10);
            seen += 1;
        }
        assert_eq!(seen, 8);
    }

    /// The feed, page by page, is what a single table would give.
    async fn a_feed_is_that_of_one_table(version) {
        let shards = Shards::start(version, 32).await;
        let rows = filled(&shards, 0..300, 32).await;
        let router = shards.router();
        let followed: Vec<i64> = (0..300)
            .filter(|key| key % 3 != 0)
            .chain([1, 1, 9999])
            .collect();
        let mut wanted: Vec<i64> = rows
            .iter()
            .filter(|(key, _)| key % 3 != 0)
            .map(|(_, id)| *id)
            .collect();
        wanted.sort_unstable_by(|a, b| b.cmp(a));

        let (mut before, mut read, mut pages) = (i64::MAX, Vec::new(), 0);
        loop {
            let page = router.by_keys(&followed).unwrap();
            let page = page.merge(FEED, params![before, 30_i64], 30, |row| {
                row.try_get::<_, i64>(0).map(Reverse)
            });
            let page = page.await.unwrap();
            read.extend(page.iter().map(|(_, row)| row.get::<_, i64>(0)));
            pages += 1;
            match page.last() {
                Some((_, row)) if page.len() == 30 => before = row.get(0),
                _ => break,
            }
        }
        assert_eq!(read, wanted);
        assert_eq!(pages, 7);
        assert!(router.by_keys(&["a text"]).is_err());
    }

    /// What has not answered by the deadline fails, each shard once, and no connection is left with
    /// an answer that is not read.
    async fn shards_that_miss_the_deadline_fail_once(version) {
        let shards = Shards::start(version, 8).await;
        let router = shards.router();
        let sleeps = Sql::reading(SLEEPS);
        let mut results = router
            .all_shards()
            .deadline(Duration::from_millis(500))
            .query(&sleeps, &[]);
        let (mut answered, mut late) = (BTreeSet::new(), BTreeSet::new());
        while let Some((shard, result)) = results.next().await {
            match result {
                Ok(_) => assert!(answered.insert(shard)),
                Err(Error::TimedOut {
                    may_have_run,
                    limit_ms: 500,
                    ..
                }) => {
                    assert!(!may_have_run && late.insert(shard))
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert!(
            late.contains(&shard(2)) && answered.len() + late.len() == 8,
            "{late:?}"
        );
        drop(results);
        for _ in 0..8 {
            assert_eq!(
                router.by_key(0).query("SELECT 1", &[]).await.unwrap().len(),
                1
            );
        }
        // A call that is given up halfway leaves nothing either.
        let mut results = router.all_shards().depth(4).query(
            "SELECT count(*) FROM \
            {shard}.photos",
            &[],
        );
        assert!(results.next().await.is_some());
        drop(results);
        for number in 0..8 {
            let row = router
                .shard(shard(number))
                .unwrap()
                .query_one("SELECT 1 + $1::int", &[&1])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i32>(0), 2);
        }
    }

    /// One of many statements may take no longer than any other: its shard is named, and the others
    /// have their answers.
    async fn the_statement_timeout(version) {
        let shards = Shards::start(version, 8).await;
        let mut options = shards.options();
        options.statement_timeout = Some(Duration::from_millis(1500));
        let router = Router::new(options);
        let answers: Vec<_> = router
            .all_shards()
            .query(Sql::reading(SLEEPS), &[])
            .collect()
            .await;
        assert_eq!(answers.len(), 8);
        for (number, answer) in answers {
            match answer {
                Ok(rows) => assert!(number != shard(2) && rows.len() == 1),
                Err(Error::TimedOut {
                    limit_ms: 1500,
                    may_have_run: false,
                    ..
                }) => assert_eq!(number, shard(2)),
                Err(error) => panic!("{number}: {error}"),
            }
        }
        // It was ended on the server too, not only given up here.
        let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query \
            LIKE '%pg_sleep(60)%' \
                        AND pid <> pg_backend_pid()";
        let ended = async {
            while shards.db[0]
                .query_one(sleeping, &[])
                .await
                .unwrap()
                .get::<_, i64>(0)
                > 0
            {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), ended)
            .await
            .expect(
                "the statement is \
            cancelled",
            );
    }

    /// Statements without names go one after the other, whatever depth is requested, and give the
    /// same results.
    async fn statements_without_names(version) {
        let shards = Shards::start(version, 8).await;
        let rows = filled(&shards, 0..80, 8).await;
        let mut options = shards.options();
        for host in &mut options.hosts {
            host.prepare = PrepareMode::Unnamed;
        }
        let router = Router::new(options);
        let ids: Vec<i64> = rows.iter().map(|(_, id)| *id).collect();
        for _ in 0..3 {
            let found = router.by_ids(&ids).query_in_order(BY_ID).await.unwrap();
            let found: Vec<i64> = found.iter().map(|row| row.get(0)).collect();
            assert_eq!(found, ids);
            let counts: Vec<_> = router
                .all_shards()
                .depth(8)
                .query(
                    "SELECT count(*) FROM \
                    {shard}.photos",
                    &[],
                )
                .collect()
                .await;
            assert!(
                counts
                    .iter()
                    .all(|(_, rows)| rows.as_ref().unwrap()[0].get::<_, i64>(0) == 10)
            );
        }
    }
}
