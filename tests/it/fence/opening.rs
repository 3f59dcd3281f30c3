//! Opening on the target: by the mover that has the lease, or by any session that has the source's
//! token; only once.

use sha2::{Digest, Sha256};
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use super::setup::{EPOCH, SHARD, TARGET, code, host, refused, schema};
use crate::support::TestCluster;

/// A shard that is being moved to this host.
struct Incoming {
    move_id: Uuid,
    lease: Uuid,
    token: Uuid,
}

impl Incoming {
    /// Claims it: there is a schema, and nothing is ready.
    async fn claim(client: &Client, shard: i32, epoch: i32) -> Incoming {
        let incoming = Incoming {
            move_id: Uuid::new_v4(),
            lease: Uuid::new_v4(),
            token: Uuid::new_v4(),
        };
        let s = schema(shard);
        client
            .batch_execute(&format!(
                "CREATE SCHEMA {s}__incoming; CREATE TABLE {s}__incoming.t (n integer)"
            ))
            .await
            .unwrap();
        let row = "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, \
            epoch) \
                   VALUES ($1, $2, $3, $4, 'db1', $5)";
        client
            .execute(
                row,
                &[&shard, &s, &incoming.move_id, &incoming.lease, &epoch],
            )
            .await
            .unwrap();
        let row = "INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ('incoming', \
            $1, $2, $3)";
        client
            .execute(row, &[&format!("{s}__incoming"), &incoming.move_id, &shard])
            .await
            .unwrap();
        incoming
    }

    /// Everything is there except the opening.
    async fn ready(client: &Client, shard: i32, epoch: i32) -> Incoming {
        let incoming = Incoming::claim(client, shard, epoch).await;
        incoming.make_ready(client, shard).await;
        incoming
    }

    async fn make_ready(&self, client: &Client, shard: i32) {
        let hash: String = Sha256::digest(self.token.to_string())
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let ready =
            "UPDATE pgshard.incoming SET ready_attempt = 1, open_hash = $1 WHERE shard_id = $2";
        client.execute(ready, &[&hash, &shard]).await.unwrap();
    }

    async fn open(&self, client: &Client, shard: i32, attempt: i32) -> Result<(), Error> {
        client
            .execute(
                "SELECT pgshard.open($1, $2, $3, $4)",
                &[&shard, &self.move_id, &attempt, &self.lease],
            )
            .await
            .map(drop)
    }
}

async fn finish(client: &Client, shard: i32, token: Option<Uuid>) -> Result<bool, Error> {
    Ok(client
        .query_one("SELECT pgshard.finish_open($1, $2)", &[&shard, &token])
        .await?
        .get(0))
}

/// The row of a shard, and which of its schemas exist.
async fn stands(client: &Client, shard: i32) -> (Option<(String, i32)>, Vec<String>) {
    let row = client
        .query_opt(
            "SELECT state, epoch FROM pgshard.shard WHERE shard_id = $1",
            &[&shard],
        )
        .await
        .unwrap();
    let schemas =
        "SELECT nspname::text FROM pg_namespace WHERE starts_with(nspname, $1) ORDER BY 1";
    let schemas = client
        .query(schemas, &[&schema(shard)])
        .await
        .unwrap()
        .iter()
        .map(|row| row.get(0))
        .collect();
    (row.map(|row| (row.get(0), row.get(1))), schemas)
}

fn serving() -> (Option<(String, i32)>, Vec<String>) {
    (Some(("serving".to_owned(), EPOCH + 1)), vec![schema(SHARD)])
}

/// A role that may end an open, as every role of a router may, and nothing else.
async fn router(cluster: &TestCluster) -> Client {
    let rights = "CREATE ROLE router LOGIN; GRANT USAGE ON SCHEMA pgshard TO router;
        GRANT EXECUTE ON FUNCTION pgshard.finish_open TO router";
    cluster
        .superuser(0)
        .await
        .batch_execute(rights)
        .await
        .unwrap();
    crate::support::connect(&format!(
        "host=127.0.0.1 port={} dbname=app user=router",
        cluster.server(0).port()
    ))
    .await
}

on_each_version! {
    /// Every router can open, but only with the token and only when everything is ready; the second
    /// time there is nothing to open.
    async fn by_anybody_with_the_token(version) {
        let cluster = host(version).await;
        let client = cluster.app(0).await;
        let router = router(&cluster).await;
        assert!(!finish(&router, SHARD, Some(Uuid::new_v4())).await.unwrap());
        let incoming = Incoming::claim(&client, SHARD, EPOCH + 1).await;
        let closed = (None, vec![format!("{}__incoming", schema(SHARD))]);
        for made_ready in [false, true] {
            if made_ready {
                incoming.make_ready(&client, SHARD).await;
            } else {
                refused(finish(&router, SHARD, Some(incoming.token)).await);
            }
            refused(finish(&router, SHARD, None).await);
            refused(finish(&router, SHARD, Some(Uuid::new_v4())).await);
            refused(finish(&router, SHARD, Some(Uuid::nil())).await);
            assert_eq!(stands(&client, SHARD).await, closed);
        }
        assert!(finish(&router, SHARD, Some(incoming.token)).await.unwrap());
        assert!(!finish(&router, SHARD, Some(incoming.token)).await.unwrap());
        assert_eq!(stands(&client, SHARD).await, serving());
        let left = "SELECT (SELECT count(*) FROM pgshard.incoming) + (SELECT count(*) FROM \
            pgshard.ledger)";
        assert_eq!(
            client.query_one(left, &[]).await.unwrap().get::<_, i64>(0),
            0
        );
    }

    /// The mover needs its lease and the attempt that is ready.
    async fn by_the_mover(version) {
        let cluster = host(version).await;
        let client = cluster.app(0).await;
        let incoming = Incoming::claim(&client, SHARD, EPOCH + 1).await;
        refused(incoming.open(&client, SHARD, 1).await);
        incoming.make_ready(&client, SHARD).await;
        refused(incoming.open(&client, SHARD, 2).await);
        refused(
            Incoming {
                lease: Uuid::new_v4(),
                ..incoming
            }
            .open(&client, SHARD, 1)
            .await,
        );
        refused(
            Incoming {
                move_id: Uuid::new_v4(),
                ..incoming
            }
            .open(&client, SHARD, 1)
            .await,
        );
        incoming.open(&client, SHARD, 1).await.unwrap();
        refused(incoming.open(&client, SHARD, 1).await);
        assert_eq!(stands(&client, SHARD).await, serving());
    }

    /// Both at the same time, in rounds: it is opened once.
    async fn mover_against_anybody(version) {
        let cluster = host(version).await;
        let client = cluster.app(0).await;
        let (mut one, mut other) = (cluster.app(0).await, cluster.app(0).await);
        for shard in 0..40 {
            let incoming = Incoming::ready(&client, shard, EPOCH + 1).await;
            let token = incoming.token;
            let by_mover = tokio::spawn(async move { (incoming.open(&one, shard, 1).await, one) });
            let by_anybody =
                tokio::spawn(async move { (finish(&other, shard, Some(token)).await, other) });
            let (mover, connection) = by_mover.await.unwrap();
            one = connection;
            let (anybody, connection) = by_anybody.await.unwrap();
            other = connection;
            match (&mover, anybody.unwrap()) {
                (Ok(()), false) => {}
                (Err(error), true) => assert_eq!(code(error), "SH002"),
                both => panic!("round {shard}: {both:?}"),
            }
            assert_eq!(
                stands(&client, shard).await,
                (Some(("serving".to_owned(), EPOCH + 1)), vec![schema(shard)])
            );
        }
    }

    /// The mover opens without committing; until it commits, others wait, and if it never does,
    /// they open.
    async fn an_opening_that_was_lost_is_done_again(version) {
        let cluster = host(version).await;
        let (client, anybody) = (cluster.app(0).await, cluster.app(0).await);
        let incoming = Incoming::ready(&client, SHARD, EPOCH + 1).await;
        let mover = cluster.app(0).await;
        mover.batch_execute("BEGIN").await.unwrap();
        incoming.open(&mover, SHARD, 1).await.unwrap();
        anybody
            .batch_execute("SET lock_timeout = '50ms'")
            .await
            .unwrap();
        assert_eq!(
            code(
                &finish(&anybody, SHARD, Some(incoming.token))
                    .await
                    .unwrap_err()
            ),
            "55P03"
        );
        mover.batch_execute("ROLLBACK").await.unwrap();
        assert!(finish(&anybody, SHARD, Some(incoming.token)).await.unwrap());
        refused(incoming.open(&mover, SHARD, 1).await);
        assert_eq!(stands(&client, SHARD).await, serving());
    }

    /// A shard comes back: the signpost from its departure is renamed, even if a transaction has
    /// used it. A shard that is served here, fenced here, or moved at a later epoch than the
    /// incoming one, is not replaced by an open.
    async fn over_what_stood_there(version) {
        let cluster = host(version).await;
        let client = cluster.app(0).await;
        for (state, epoch, opens) in [
            ("serving", 1, false),
            ("fenced", 1, false),
            ("moved", EPOCH + 1, false),
            ("moved", EPOCH, true),
        ] {
            let s = schema(SHARD);
            client
                .batch_execute(&format!(
                    "CREATE SCHEMA {s}; CREATE VIEW {s}.t AS SELECT 1 AS \
                n"
                ))
                .await
                .unwrap();
            let row = "INSERT INTO pgshard.shard (shard_id, schema_name, state, epoch, peer, \
                move_id, attempt, lease,
                fence_deadline)
                VALUES ($1, $2, $3, $4, $5, $6, 1, $6, now())";
            client
                .execute(row, &[&SHARD, &s, &state, &epoch, &TARGET, &Uuid::new_v4()])
                .await
                .unwrap();
            let incoming = Incoming::ready(&client, SHARD, EPOCH + 1).await;
            let reader = cluster.app(0).await;
            reader
                .batch_execute(&format!("BEGIN; SELECT * FROM {s}.t"))
                .await
                .unwrap();
            if opens {
                assert!(finish(&client, SHARD, Some(incoming.token)).await.unwrap());
                let aside = format!("{s}__signpost_e{EPOCH}");
                assert_eq!(
                    stands(&client, SHARD).await,
                    (serving().0, vec![s.clone(), aside.clone()])
                );
                let ledger = "SELECT kind, name FROM pgshard.ledger";
                let row = client.query_one(ledger, &[]).await.unwrap();
                assert_eq!((row.get(0), row.get(1)), ("old signpost", aside.as_str()));
            } else {
                refused(finish(&client, SHARD, Some(incoming.token)).await);
                refused(incoming.open(&client, SHARD, 1).await);
                assert_eq!(
                    stands(&client, SHARD).await,
                    (
                        Some((state.to_owned(), epoch)),
                        vec![s.clone(), format!("{s}__incoming")]
                    )
                );
            }
            reader.batch_execute("ROLLBACK").await.unwrap();
            client
                .batch_execute(&format!(
                    "DROP SCHEMA IF EXISTS {s}, {s}__incoming CASCADE; DELETE FROM pgshard.shard;
                DELETE FROM pgshard.incoming; DELETE FROM pgshard.ledger"
                ))
                .await
                .unwrap();
        }
    }
}
