//! What is left of a shard where it was before, and must not be mistaken for the shard: its old
//! copy, its signpost, what was prepared for it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::BytesMut;
use pgshard::map::{Changes, Placement, ShardEpoch};
use pgshard::router::Error;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::by_hand::{Shards, schema, shard};
use super::ways::Ways;
use super::{COUNT, INSERT};

const LONG: Duration = Duration::from_secs(60);

/// A value of an enum.
#[derive(Debug)]
struct Kind(&'static str);

impl ToSql for Kind {
    fn to_sql(
        &self,
        _: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        out.extend_from_slice(self.0.as_bytes());
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// Moves a shard, and drops what is left of it.
async fn moved(shards: &Shards, number: u16, source: usize) {
    let moving = shards.prepare(number, source).await;
    moving.fence(LONG).await;
    moving.decide().await;
    moving.open().await;
    let sql = "SELECT quote_ident(nspname) FROM pg_namespace WHERE starts_with(nspname, $1)";
    for row in shards.db[source]
        .query(sql, &[&format!("{}__left", schema(number))])
        .await
        .unwrap()
    {
        let sql = format!("DROP SCHEMA {} CASCADE", row.get::<_, String>(0));
        shards.db[source].batch_execute(&sql).await.unwrap();
    }
}

on_each_version! {
    /// A statement that was prepared before the shard went away and came back has types of the
    /// shard that no longer exist: it is prepared again.
    async fn types_that_came_back(version) {
        let shards = Shards::start(version, 6).await;
        // Through a pooler, types of the application's own have to be cast to text
        // (docs/pgbouncer.md).
        let ways = Ways::all(&shards)
            .await
            .into_iter()
            .filter(|way| !way.pooled);
        for (number, way) in (0..).zip(ways) {
            let (name, router, key) = (way.name, &way.router, i64::from(number));
            let mut ids = 0..;
            let mut insert = async || {
                let sql = "INSERT INTO {shard}.photos (id, title, kind) VALUES ($1, 'x', $2)";
                let id: i64 = ids.next().unwrap();
                router.by_key(key).execute(sql, &[&id, &Kind("film")]).await
            };
            insert().await.unwrap();
            let find = "SELECT count(*) FROM {shard}.photos WHERE kind = $1";
            let count = async || {
                router
                    .by_key(key)
                    .query_one(find, &[&Kind("film")])
                    .await
                    .map(|row| row.get::<_, i64>(0))
            };
            count().await.unwrap();
            let within = async || {
                router
                    .by_key(key)
                    .transaction(async |tx| {
                        let row = tx
                            .query_one(
                                "SELECT count(*), 1 FROM {shard}.photos WHERE kind = \
                                $1",
                                &[&Kind("film")],
                            )
                            .await?;
                        Ok::<i64, Error>(row.get(0))
                    })
                    .await
            };
            within().await.unwrap();
            moved(&shards, number, 0).await;
            router.by_key(key).query(COUNT, &[]).await.unwrap();
            moved(&shards, number, 1).await;
            router.by_key(key).query(COUNT, &[]).await.unwrap();
            assert_eq!(router.by_key(key).host(), shards.name(0));
            assert_eq!(within().await.unwrap(), 1, "{name}");
            assert_eq!(count().await.unwrap(), 1, "{name}");
            insert()
                .await
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            for _ in 0..3 {
                assert_eq!(
                    (count().await.unwrap(), within().await.unwrap()),
                    (2, 2),
                    "{name}"
                );
            }
        }
    }

    /// A statement that queries the catalogs for a name gets another answer from a signpost, and no
    /// error: the router queries whether the host serves the shard before it believes the answer.
    async fn questions_about_names(version) {
        let shards = Shards::start(version, 6).await;
        for (number, Ways { name, router, .. }) in (0..).zip(Ways::all(&shards).await) {
            let (key, schema) = (i64::from(number), schema(number));
            let sql = format!(
                "CREATE TABLE {schema}.tickets (id serial PRIMARY KEY);
                INSERT INTO {schema}.tickets SELECT FROM generate_series(1, 1000)"
            );
            shards.db[0].batch_execute(&sql).await.unwrap();
            let moving = shards.prepare(number, 0).await;
            moving.fence(LONG).await;
            let sequence = "SELECT pg_get_serial_sequence('{shard}.tickets', 'id')";
            let size = "SELECT pg_total_relation_size('{shard}.tickets')";
            let before = router.stats().look_ups;
            let asking = async {
                let within = router.by_key(key).transaction(async |tx| {
                    Ok::<Option<String>, Error>(tx.query_one(sequence, &[]).await?.get(0))
                });
                tokio::join!(
                    router.by_key(key).query_one(sequence, &[]),
                    router.by_key(key).query_one(size, &[]),
                    within
                )
            };
            let opening = async {
                while router.stats().look_ups == before {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                moving.unfence().await;
            };
            let ((alone, size, within), ()) = tokio::join!(asking, opening);
            let expected = format!("{schema}.tickets_id_seq");
            assert_eq!(
                alone.unwrap().get::<_, Option<String>>(0).as_ref(),
                Some(&expected),
                "{name}"
            );
            assert_eq!(within.unwrap().as_ref(), Some(&expected), "{name}");
            assert!(size.unwrap().get::<_, i64>(0) > 0, "{name}");
            // The same over a pipelined connection of a call over many shards, where all is well.
            let rows = router
                .shards([shard(number)])
                .query(sequence, &[])
                .next()
                .await
                .unwrap()
                .1
                .unwrap();
            assert_eq!(
                rows[0].get::<_, Option<String>>(0).as_ref(),
                Some(&expected),
                "{name}"
            );
        }
    }

    /// A transaction that has only read does not keep its shard; once the router knows that the
    /// shard is elsewhere, the transaction reads nothing more of the old copy but is run again.
    async fn a_transaction_that_only_read(version) {
        let shards = Shards::start(version, 4).await;
        let router = shards.router();
        router
            .by_key(1)
            .execute(INSERT, &[&1_i64, &"before"])
            .await
            .unwrap();
        let runs = AtomicU32::new(0);
        let both = router.by_key(1).transaction(async |tx| {
            // Prepared, and with a generic plan.
            for _ in 0..7 {
                tx.query_one(COUNT, &[]).await?;
            }
            if runs.fetch_add(1, Ordering::Relaxed) == 0 {
                let moving = shards.prepare(1, 0).await;
                moving.fence(LONG).await;
                moving.decide().await;
                moving.open().await;
                shards.db[1]
                    .batch_execute(
                        "INSERT INTO shard_0001.photos VALUES (2, \
                    'after')",
                    )
                    .await
                    .unwrap();
                let to = Placement {
                    host: shards.name(1),
                    epoch: ShardEpoch::new(2).unwrap(),
                };
                router
                    .set_map(
                        shards
                            .map
                            .merged(&Changes::from_iter([(shard(1), to)]))
                            .into(),
                    )
                    .unwrap();
            }
            Ok::<i64, Error>(tx.query_one(COUNT, &[]).await?.get(0))
        });
        assert_eq!(both.await.unwrap(), 2);
        assert_eq!(runs.load(Ordering::Relaxed), 2);
    }

    /// A signpost has no unique index, and that is the error of an upsert: it waits like any other
    /// statement.
    async fn an_upsert_meets_a_signpost(version) {
        let shards = Shards::start(version, 6).await;
        for (number, Ways { name, router, .. }) in (0..).zip(Ways::all(&shards).await) {
            let key = i64::from(number);
            let upsert = "INSERT INTO {shard}.photos (id, title) VALUES ($1, $2)
                ON CONFLICT (id) DO UPDATE SET title = EXCLUDED.title || '!'";
            router
                .by_key(key)
                .execute(upsert, &[&1_i64, &name])
                .await
                .unwrap();
            let moving = shards.prepare(number, 0).await;
            moving.fence(LONG).await;
            let before = router.stats().look_ups;
            let writing = async {
                let within = router
                    .by_key(key)
                    .transaction(async |tx| tx.execute(upsert, &[&2_i64, &name]).await);
                let row: [&(dyn ToSql + Sync); 2] = [&1_i64, &name];
                tokio::join!(router.by_key(key).execute(upsert, &row), within)
            };
            let finishing = async {
                while router.stats().look_ups == before {
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                moving.decide().await;
                moving.open().await;
            };
            let ((alone, within), ()) = tokio::join!(writing, finishing);
            assert_eq!((alone.unwrap(), within.unwrap()), (1, 1), "{name}");
            assert_eq!(
                shards.titles(1, number).await,
                [name.to_owned(), format!("{name}!")]
            );
        }
    }
}
