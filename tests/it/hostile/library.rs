//! What an application calls: the router, and the map in a database.

use std::sync::Arc;

use pgshard::pg::ConnectOptions;
use pgshard::store::{MapStore, PostgresStore};

use super::*;

/// Runs on a task of its own, so that a panic is distinguished from an error.
async fn ends<T: Send + 'static>(story: &str, work: impl Future<Output = T> + Send + 'static) -> T {
    let begun = Instant::now();
    let done = tokio::time::timeout(ENDS_WITHIN, tokio::spawn(work)).await;
    let done = done
        .unwrap_or_else(|_| panic!("{story} does not end"))
        .unwrap_or_else(|error| panic!("{story}: {error}"));
    eprintln!("  in {:?}", begun.elapsed());
    done
}

/// Makes calls of all kinds; returns how many rows were acknowledged, and how many may be there.
async fn calls(config: std::path::PathBuf) -> (usize, usize) {
    let (mut done, mut doubtful) = (0, 0);
    let Ok(router) = pgshard::connect(&config).await else {
        return (0, 0);
    };
    for n in 0..3 {
        for key in 0..4_i64 {
            let name = format!("a{n}");
            let sql = "INSERT INTO {shard}.users (name) VALUES ($1) RETURNING id";
            match router.by_key(key).query_one(sql, &[&name]).await {
                Ok(_) => done += 1,
                Err(error) => doubtful += usize::from(error.may_have_run()),
            }
        }
    }
    for key in 0..4_i64 {
        let inserted = router
            .by_key(key)
            .transaction(async |transaction| {
                transaction
                    .execute("INSERT INTO {shard}.users (name) VALUES ('b')", &[])
                    .await?;
                transaction
                    .query("SELECT * FROM {shard}.users", &[])
                    .await
                    .map(|rows| rows.len())
            })
            .await;
        match inserted {
            Ok(_) => done += 1,
            Err(error) => doubtful += usize::from(error.may_have_run()),
        }
    }
    let mut all = router
        .all_shards()
        .query("SELECT count(*), now(), 'x'::text FROM {shard}.users", &[]);
    while all.next().await.is_some() {}
    drop(all);
    router.close(Duration::from_secs(1)).await;
    (done, doubtful)
}

async fn count(world: &World) -> usize {
    let mut rows = 0;
    for client in world.all().await {
        for schema in ["shard_0000", "shard_0001", "shard_0002", "shard_0003"] {
            let there = client
                .query(&format!("SELECT 1 FROM {schema}.users"), &[])
                .await;
            rows += there.map_or(0, |rows| rows.len());
        }
    }
    rows
}

on_each_version! {
    /// What a router got acknowledged is there, and its calls end, even if one answer is a lie.
    async fn calls_of_a_router(version) {
        let enemy = Enemy::new(version).await;
        let config = std::fs::read_to_string(&enemy.world.config.path).unwrap();
        let limits = "\n[router]\nstatement_timeout_ms = 2000\n";
        let config = enemy
            .world
            .write("limits.toml", &format!("{config}{limits}"));
        enemy.liar.tell(None);
        assert_eq!(calls(config.clone()).await, (16, 0));
        let answers = enemy.liar.asked();
        eprintln!("{answers}");
        for seed in seeds(u64::from(version)..u64::from(version) + 8) {
            let before = count(&enemy.world).await;
            let lie = lie(seed, answers);
            let story = format!("{lie}");
            eprintln!("{story}");
            enemy.liar.tell(Some(lie.clone()));
            let (done, doubtful) = ends(&story, calls(config.clone())).await;
            let told = enemy.liar.told();
            enemy.liar.tell(None);
            eprintln!("  {told:?}: {done} done, {doubtful} doubtful");
            let now = count(&enemy.world).await - before;
            // What the host itself reports about a COMMIT is believed.
            let of_commit = told.as_ref().is_some_and(|told| told.contains("COMMIT"));
            let fits = (done..=done + doubtful).contains(&now) || of_commit;
            assert!(fits, "{story} {told:?}: {now}, {done}, {doubtful}");
        }
    }

    /// The database that keeps the map lies: the map is that of the truth, or there is an error.
    async fn the_map_in_a_database(version) {
        let enemy = Enemy::new(version).await;
        let keys = "sslmode=disable connect_timeout=3 keepalives_idle=2 keepalives_interval=1";
        let text = format!(
            "host=127.0.0.1 port={} user=app dbname=app {keys}",
            enemy.liar.port
        );
        let connect = ConnectOptions::parse(&text).unwrap();
        let shards = enemy.world.config.cluster.shards;
        let store = move || PostgresStore::new(connect.clone(), shards);
        let first = enemy.world.published();
        store().install(&first).await.unwrap();
        let work = async |store: PostgresStore| {
            let before = store.load().await.map_err(drop)?;
            let next = before.with_version(before.version().next());
            store.publish(before.version(), &next).await.map_err(drop)?;
            let mut watch = store.watch().await.map_err(drop)?;
            let _ = tokio::time::timeout(Duration::from_millis(50), watch.changed()).await;
            Ok::<_, ()>(watch.current())
        };
        enemy.liar.tell(None);
        work(store()).await.unwrap();
        let answers = enemy.liar.asked();
        eprintln!("{answers}");
        for seed in seeds(u64::from(version)..u64::from(version) + 10) {
            let lie = lie(seed, answers);
            let story = format!("{lie}");
            eprintln!("{story}");
            enemy.liar.tell(Some(lie));
            let store = store();
            let said: Result<Arc<_>, ()> = ends(&story, async move { work(store).await }).await;
            eprintln!("  {:?}: {}", enemy.liar.told(), said.is_ok());
            enemy.liar.tell(None);
        }
    }
}
