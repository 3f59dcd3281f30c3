//! What callers leave behind at a pooler does not reach another caller. PgBouncer before 1.21
//! passes on a server's session as soon as the server was ready once, even if the client that
//! leaves had more under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use futures_util::future::join_all;
use pgshard::Router;
use pgshard::router::{Error, PrepareMode};

use super::by_hand::Shards;
use super::pooler::{PREPARED, Pooler};
use super::proxy::Polls;
use super::ways::Ways;
use crate::support::World;

const LONG: Duration = Duration::from_secs(60);

/// The number of server sessions that they share, and of callers.
const SESSIONS: usize = 3;
const CALLERS: u64 = 12;
const STEPS: u64 = 250;

/// A router through a pooler that has fewer sessions than the router has callers.
async fn pooled(world: &World) -> (Pooler, Router) {
    let pooler = Pooler::with(
        &world.servers,
        0,
        &format!("default_pool_size = {SESSIONS}"),
    )
    .await;
    let mut options = world.config.router_options(Arc::new(world.published()));
    (
        options.hosts[0].connect,
        options.hosts[0].prepare,
        options.hosts[0].pool_size,
    ) = (pooler.connect(), PrepareMode::Unnamed, 8);
    options.host_source = None;
    (pooler, Router::new(options))
}

struct Caller {
    router: Router,
    rng: Rng,
    number: i64,
    asked: Arc<AtomicU64>,
}

impl Caller {
    /// A number that no other caller queries.
    fn next(&mut self) -> i64 {
        self.number += 1;
        self.number
    }

    /// The number of polls after which a future is dropped.
    fn polls(&mut self) -> u32 {
        self.rng.u32(1..8)
    }

    async fn step(&mut self) {
        match self.rng.u8(..10) {
            0 => self.given_up("SELECT $1::bigint").await,
            1 => self.given_up("SELECT $1::bigint FROM pg_sleep(0.02)").await,
            2 => self.refused().await,
            3 => self.raw().await,
            4 => self.raw_within_a_transaction().await,
            5 => self.raw_after_a_mistake().await,
            6 => self.raw_copies().await,
            7 => self.transaction().await,
            _ => {}
        }
        self.ask().await;
    }

    /// A caller that waits gets the answer to its own query.
    async fn ask(&mut self) {
        let (number, router) = (self.next(), self.router.clone());
        let answer = router
            .by_key(number)
            .query_one_as::<(i64,)>("SELECT $1::bigint", &[&number])
            .await;
        match answer {
            Ok((told,)) => assert_eq!(told, number, "somebody else's answer"),
            Err(error) => panic!("asked {number}: {error:?}"),
        }
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    async fn given_up(&mut self, sql: &str) {
        let (number, left, router) = (self.next(), self.polls(), self.router.clone());
        let call = async { router.by_key(number).query(sql, &[&number]).await };
        Polls {
            future: Box::pin(call),
            left,
        }
        .await;
    }

    /// The driver reports an error before the server is ready again.
    async fn refused(&mut self) {
        let (number, left, router) = (self.next(), self.polls(), self.router.clone());
        let error = router
            .by_key(number)
            .query("SELECT 1 / ($1::bigint - $1)", &[&number])
            .await
            .unwrap_err();
        assert_eq!(
            error.code().map(|code| code.code()),
            Some("22012"),
            "{error:?}"
        );
        let call = async {
            router
                .by_key(number)
                .query("SELECT $1::bigint", &[&number])
                .await
        };
        Polls {
            future: Box::pin(call),
            left,
        }
        .await;
    }

    async fn raw(&mut self) {
        let (number, left, several) = (self.next(), self.polls(), self.rng.usize(1..5));
        let Ok(client) = self.router.by_key(number).client().await else {
            return;
        };
        let texts: Vec<String> = (0..several)
            .map(|_| format!("SELECT {}::bigint", self.next()))
            .collect();
        let asking = join_all(texts.iter().map(|text| client.query_typed(text, &[])));
        Polls {
            future: Box::pin(asking),
            left,
        }
        .await;
    }

    async fn raw_within_a_transaction(&mut self) {
        let (number, left) = (self.next(), self.polls());
        let Ok(client) = self.router.by_key(number).client().await else {
            return;
        };
        let asking = async {
            client.batch_execute("BEGIN").await?;
            client.query_one("SELECT $1::bigint", &[&number]).await?;
            client.batch_execute("COMMIT").await
        };
        Polls {
            future: Box::pin(asking),
            left,
        }
        .await;
    }

    async fn raw_after_a_mistake(&mut self) {
        let (number, left) = (self.next(), self.polls());
        let Ok(client) = self.router.by_key(number).client().await else {
            return;
        };
        let _ = client.query_typed("SELECT 1/0", &[]).await.unwrap_err();
        let text = format!("SELECT {number}::bigint");
        Polls {
            future: Box::pin(client.query_typed(&text, &[])),
            left,
        }
        .await;
    }

    /// The driver refuses the answer and continues to read it.
    async fn raw_copies(&mut self) {
        let (number, left) = (self.next(), self.polls());
        let Ok(client) = self.router.by_key(number).client().await else {
            return;
        };
        let copy = format!("COPY (SELECT {number} FROM generate_series(1, 1000)) TO STDOUT");
        let copying = async {
            let _ = client.simple_query(&copy).await;
        };
        Polls {
            future: Box::pin(copying),
            left,
        }
        .await;
    }

    async fn transaction(&mut self) {
        let (number, left, router) = (self.next(), self.polls(), self.router.clone());
        let call = router.by_key(number).transaction(async |tx| {
            let first = tx.query_one("SELECT $1::bigint", &[&number]).await?;
            assert_eq!(first.get::<_, i64>(0), number, "somebody else's answer");
            tx.query("SELECT 2 * $1::bigint FROM pg_sleep(0.005)", &[&number])
                .await
                .map(drop)
        });
        let _: Option<Result<(), Error>> = Polls {
            future: Box::pin(call),
            left,
        }
        .await;
    }
}

on_each_version! {
    /// Callers drop their calls at every place, also with clients of their own: each gets the
    /// answer to its own query, and no statement is cancelled instead of another's.
    async fn nobody_gets_anothers_answer(version) {
        let world = World::new(&[version], 4).await;
        let (pooler, router) = pooled(&world).await;
        let asked = Arc::<AtomicU64>::default();
        let mut callers = tokio::task::JoinSet::new();
        for number in 0..CALLERS {
            let (router, asked) = (router.clone(), asked.clone());
            let rng = Rng::with_seed(number);
            let mut caller = Caller {
                router,
                rng,
                number: number as i64 * 1_000_000,
                asked,
            };
            callers.spawn(async move {
                for _ in 0..STEPS {
                    caller.step().await;
                }
            });
        }
        while let Some(ended) = callers.join_next().await {
            ended.unwrap();
        }
        assert_eq!(asked.load(Ordering::Relaxed), CALLERS * STEPS);
        drop((router, pooler));
    }

    /// A statement that was prepared for a single use does not exist for the next one, even after a
    /// dropped call: another process may use the same name.
    async fn nothing_stays_prepared(version) {
        let world = World::new(&[version], 4).await;
        let (pooler, router) = pooled(&world).await;
        for number in 0..400_i64 {
            // Its types are not known yet.
            let sql = format!("SELECT $1::bigint + {number}");
            let call = async { router.by_key(number).query(&sql, &[&number]).await };
            Polls {
                future: Box::pin(call),
                left: 1 + (number % 9) as u32,
            }
            .await;
        }
        let whole = async {
            for key in 0..100 {
                let row = router.by_key(key).query_one(PREPARED, &[]).await.unwrap();
                assert_eq!(row.get::<_, i64>(0), 0);
            }
        };
        tokio::time::timeout(LONG, whole).await.unwrap();
        drop((router, pooler));
    }

    /// COPY has answers that no query expects, or waits for what its caller does not send. It is
    /// refused; where a client of the application's runs it, no other call gets its connection.
    async fn a_copy_is_refused(version) {
        let shards = Shards::start(version, 4).await;
        for Ways { name, router, .. } in Ways::all(&shards).await {
            for copy in [
                "COPY {shard}.photos TO STDOUT",
                "COPY {shard}.photos FROM STDIN",
            ] {
                let error = router.by_key(0).query(copy, &[]).await.unwrap_err();
                assert!(
                    matches!(error, Error::Unsupported { .. }),
                    "{name} {copy} {error:?}"
                );
                let raw = router.by_key(0).client().await.unwrap();
                let sql = copy.replace("{shard}", &raw.schema());
                assert!(raw.batch_execute(&sql).await.is_err(), "{name} {copy}");
                drop(raw);
                let whole = async {
                    let next = router
                        .by_key(0)
                        .query_one_as::<(i64,)>("SELECT $1::bigint", &[&7_i64])
                        .await;
                    assert_eq!(next.unwrap(), (7,), "{name} {copy}");
                    let ended = router.by_key(0).transaction(async |tx| {
                        let client = tx.client().await?;
                        let sql = copy.replace("{shard}", &tx.schema());
                        let _ = client.query(&sql, &[]).await.unwrap_err();
                        drop(client);
                        tx.query("SELECT 1", &[]).await.map(drop)
                    });
                    // The server has run a COPY TO, whatever the driver makes of its answer.
                    match ended.await {
                        Ok(()) => assert!(copy.ends_with("STDOUT"), "{name} {copy}"),
                        Err(error) => assert!(!error.may_have_run(), "{name} {copy} {error:?}"),
                    }
                    let next = router
                        .by_key(0)
                        .query_one_as::<(i64,)>("SELECT $1::bigint", &[&8_i64])
                        .await;
                    assert_eq!(next.unwrap(), (8,), "{name} {copy}");
                };
                tokio::time::timeout(LONG, whole)
                    .await
                    .unwrap_or_else(|_| panic!("{name} {copy}"));
            }
        }
    }
}
