//! The router on real servers: routing, sessions, and moves that stop in the middle.

mod bounds;
mod by_hand;
mod fanouts;
mod health;
mod leftovers;
mod library;
mod many;
mod metrics;
mod moves;
mod old_copies;
mod old_maps;
mod orm;
mod pool;
mod pooled;
pub(crate) mod pooler;
mod promises;
mod remains;
mod renewed;
mod replicas;
mod seeded;
mod sessions;
mod spans;
mod ways;
mod words;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use pgshard::ShardId;
use pgshard::id::Id;
use pgshard::map::{Changes, Placement, ShardEpoch};
use pgshard::router::{Error, PoolPhase};

use self::by_hand::{Shards, schema, shard};
use crate::support::proxy;

const INSERT: &str = "INSERT INTO {shard}.photos (id, title) VALUES ($1, $2)";
const COUNT: &str = "SELECT count(*) FROM {shard}.photos";

on_each_version! {
    /// `{shard_id}` is the number of the shard, one by one, over many, and in a transaction.
    async fn a_statement_says_the_number_of_its_shard(version) {
        let shards = Shards::start(version, 16).await;
        let router = shards.router();
        let sql = "SELECT {shard_id}::int4, '{shard}', '{{shard_id}}' || '' FROM {shard}.photos \
                   RIGHT JOIN (SELECT 1) one ON false";
        let said = |row: &tokio_postgres::Row| -> (i32, String, String) {
            (row.get(0), row.get(1), row.get(2))
        };
        let expected = |number: u16| (i32::from(number), schema(number), "{shard_id}".to_owned());
        for number in 0..16 {
            let one = router.shard(shard(number)).unwrap();
            assert_eq!(
                said(&one.query_one(sql, &[]).await.unwrap()),
                expected(number)
            );
            let in_transaction = one
                .transaction(async |tx| tx.query_one("SELECT {shard_id}::int4", &[]).await)
                .await
                .unwrap();
            assert_eq!(in_transaction.get::<_, i32>(0), i32::from(number));
        }
        let results: Vec<_> = router.all_shards().query(sql, &[]).collect().await;
        let all: BTreeMap<_, _> = results
            .into_iter()
            .map(|(shard, rows)| (shard.get(), said(&rows.unwrap()[0])))
            .collect();
        assert_eq!(
            all,
            (0..16).map(|number| (number, expected(number))).collect()
        );
    }

    /// Every row is in the shard and on the host that arithmetic and map give, and is found by its
    /// ID.
    async fn keys_and_ids(version) {
        let shards = Shards::start(version, 64).await;
        let router = shards.router();
        let mut writers = tokio::task::JoinSet::new();
        for writer in 0..8_i64 {
            let router = router.clone();
            writers.spawn(async move {
                for key in (-2000 + writer..2000).step_by(8) {
                    let shard = router.by_key(key);
                    let id = Id::new(1000, shard.id(), (key + 2000) as u64 / 64)
                        .unwrap()
                        .encode();
                    assert_eq!(
                        shard
                            .execute(INSERT, &[&id, &key.to_string()])
                            .await
                            .unwrap(),
                        1
                    );
                }
            });
        }
        while let Some(done) = writers.join_next().await {
            done.unwrap();
        }

        let mut seen = 0;
        for number in 0..64 {
            let host = usize::from(number >= 32);
            for title in shards.titles(host, number).await {
                let key: i64 = title.parse().unwrap();
                assert_eq!(key.rem_euclid(64), i64::from(number));
                seen += 1;
            }
        }
        assert_eq!(seen, 4000);

        let keys: Vec<i64> = (-2000..2000).step_by(7).collect();
        let id = |key: &i64| {
            Id::new(1000, router.by_key(*key).id(), (key + 2000) as u64 / 64)
                .unwrap()
                .encode()
        };
        let ids: Vec<i64> = keys.iter().map(id).collect();
        for (key, id) in keys.iter().zip(&ids).take(100) {
            let photo = router.by_id(*id).unwrap();
            let row = photo
                .query_one(
                    "SELECT title FROM {shard}.photos WHERE id = \
                $1",
                    &[id],
                )
                .await
                .unwrap();
            assert_eq!(row.get::<_, &str>(0), key.to_string());
        }
        let rows = router
            .by_ids(&ids)
            .query(
                "SELECT id FROM {shard}.photos WHERE id = \
            ANY($1)",
            )
            .await
            .unwrap();
        let mut found: Vec<i64> = rows.iter().map(|(_, row)| row.get(0)).collect();
        assert!(
            rows.iter()
                .all(|(shard, row)| Id::decode(row.get(0)).shard() == *shard)
        );
        found.sort_unstable();
        let mut wanted = ids.clone();
        wanted.sort_unstable();
        assert_eq!(found, wanted);

        let strange = Id::new(1000, shard(64), 0).unwrap().encode();
        assert!(matches!(router.by_id(strange), Err(Error::NoSuchId { id, .. }) if id == strange));
        assert!(matches!(
            router.shard(shard(64)),
            Err(Error::NoSuchShard { .. })
        ));
        let partial = router
            .by_ids(&[ids[0], strange])
            .query("SELECT id FROM {shard}.photos WHERE id = ANY($1)")
            .await
            .unwrap_err();
        assert_eq!((partial.done.len(), partial.failed.len()), (1, 1));
        assert_eq!(
            partial.failed[0].error.to_string(),
            format!(
                "{strange} is no ID of this cluster: it names shard 64, and there are 64 \
                shards, 0 to 63"
            )
        );
        assert_eq!(
            Error::from(partial).to_string(),
            "1 of 2 shards failed, and the others did what was wanted of them"
        );
    }

    /// If a host is down, its own shards fail, each with an error that reports it, and no others.
    async fn a_dead_host_fails_only_its_shards(version) {
        let shards = Shards::start(version, 16).await;
        let router = shards.router();
        let counts = |router: pgshard::Router| async move {
            let mut results = router.all_shards().width(3).query(COUNT, &[]);
            let mut by_shard: BTreeMap<ShardId, Result<i64, Error>> = BTreeMap::new();
            while let Some((shard, rows)) = results.next().await {
                let had = by_shard.insert(shard, rows.map(|rows| rows[0].get(0)));
                assert!(had.is_none(), "each shard once");
            }
            by_shard
        };
        assert!(
            counts(router.clone())
                .await
                .values()
                .all(|count| matches!(count, Ok(0)))
        );

        shards
            .cluster
            .server(1)
            .stop(pgshard::dev::StopMode::Fast)
            .unwrap();
        let by_shard = counts(router.clone()).await;
        assert_eq!(by_shard.len(), 16);
        for (shard, count) in by_shard {
            match count {
                Ok(_) => assert!(shard.get() < 8),
                Err(error) => {
                    assert!(
                        shard.get() >= 8 && error.is_retryable() && !error.may_have_run(),
                        "{error}"
                    );
                    let words = format!("host db2 of shard {shard} is out of reach");
                    assert!(error.to_string().starts_with(&words), "{error}");
                }
            }
        }
        // Connections that died while they were idle cause no error once the host is back.
        shards.cluster.server(1).start().unwrap();
        let back = async {
            // The next try in the background closes the circuit again.
            while !counts(router.clone())
                .await
                .values()
                .all(|count| matches!(count, Ok(0)))
            {
                tokio::time::sleep(std::time::Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(30), back)
            .await
            .expect(
                "the host is \
            met again",
            );
    }

    /// The router reports what it cannot know: a wrong map, an unknown host, a pool that is too
    /// small.
    async fn errors_name_shard_and_host(version) {
        let shards = Shards::start(version, 4).await;
        let mut options = shards.options();
        options.hosts[0].pool_size = 1;
        options.wait_max = Duration::from_millis(50);
        let router = pgshard::Router::new(options);

        let held = router.shard(shard(0)).unwrap().client().await.unwrap();
        let error = router
            .shard(shard(1))
            .unwrap()
            .query(COUNT, &[])
            .await
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::PoolTimeout {
                    phase: PoolPhase::Wait,
                    limit_ms: 50,
                    ..
                }
            ) && error.is_retryable()
        );
        assert_eq!(
            error.to_string(),
            "host db1 of shard 1: waiting for a free connection took \
            longer than 50 ms"
        );
        drop(held);

        let placed = |host: &str, epoch| Placement {
            host: pgshard::map::HostName::new(host).unwrap(),
            epoch: ShardEpoch::new(epoch).unwrap(),
        };
        let changes =
            Changes::from_iter([(shard(0), placed("db2", 2)), (shard(1), placed("db9", 2))]);
        router
            .set_map(Arc::new(shards.map.merged(&changes)))
            .unwrap();
        let error = router
            .shard(shard(0))
            .unwrap()
            .query(COUNT, &[])
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "host db2 has no shard 0, where the map places it: run \
            `pgshard check`"
        );
        let error = router
            .shard(shard(1))
            .unwrap()
            .query(COUNT, &[])
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "shard 1 is on host db9, which the config does not name: add \
            [hosts.db9]"
        );
        // To go back, one needs the old map with a later version.
        assert!(matches!(
            router.set_map(shards.map.clone()),
            Err(Error::OlderMap { .. })
        ));
        router
            .set_map(Arc::new(
                shards.map.with_version(router.map().version().next()),
            ))
            .unwrap();
        router
            .shard(shard(1))
            .unwrap()
            .query(COUNT, &[])
            .await
            .unwrap();

        let other = Shards::start(version, 2).await;
        assert!(matches!(
            router.set_map(other.map.clone()),
            Err(Error::OtherCluster { .. })
        ));
        for sql in ["BEGIN", "/* x */ commit", "ROLLBACK", "SAVEPOINT a"] {
            let error = router
                .shard(shard(1))
                .unwrap()
                .execute(sql, &[])
                .await
                .unwrap_err();
            assert!(matches!(error, Error::TransactionControl { .. }), "{sql}");
        }
        let error = router
            .shard(shard(1))
            .unwrap()
            .query_one("SELECT 1 WHERE false", &[])
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "shard 1 on host db1 gave 0 rows where exactly one was wanted, \
             and the statement has run"
        );
    }

    /// A router made from a config follows the map that is published there.
    async fn connect_follows_the_map(version) {
        let shards = Shards::start(version, 8).await;
        let path = shards.cluster.write_config(8);
        let router = pgshard::connect(&path).await.unwrap();
        router
            .by_key(1)
            .execute(INSERT, &[&1_i64, &"one"])
            .await
            .unwrap();
        assert_eq!(shards.titles(0, 1).await, ["one"]);

        let moving = shards.prepare(1, 0).await;
        moving.fence(Duration::from_secs(60)).await;
        moving.decide().await;
        moving.open().await;
        let store = pgshard::config::Config::load(&path).unwrap().map_store();
        let to = Placement {
            host: shards.name(1),
            epoch: ShardEpoch::new(2).unwrap(),
        };
        pgshard::store::publish_merged(&store, &Changes::from_iter([(shard(1), to)]))
            .await
            .unwrap();
        while router.map().host(shard(1)) != Some(&shards.name(1)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        router
            .by_key(1)
            .execute(INSERT, &[&2_i64, &"two"])
            .await
            .unwrap();
        assert_eq!(shards.titles(1, 1).await, ["one", "two"]);
        assert_eq!(router.stats().retries, 0, "the map was enough");
        assert_eq!(schema(1), router.by_key(1).schema());
    }
}
