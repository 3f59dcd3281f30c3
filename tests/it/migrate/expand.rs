//! A column is renamed while the application works, by the steps of docs/migrations.md: old and new
//! versions of the application work side by side through all steps, and none of their calls fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use pgshard::{Router, ShardId};
use tokio::task::JoinHandle;

use crate::support::{World, lines};

const SHARDS: u16 = 4;

/// A version of the application: which columns it writes for a photo, and which one it reads.
#[derive(Clone, Copy)]
struct Version {
    insert: &'static str,
    select: &'static str,
}

/// Knows only the old column.
const OLD: Version = Version {
    insert: "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id",
    select: "SELECT title FROM {shard}.photos WHERE id = $1",
};
/// Writes both, reads the old one.
const BOTH: Version = Version {
    insert: "INSERT INTO {shard}.photos (user_id, title, caption) VALUES ($1, $2, $2) RETURNING id",
    select: "SELECT title FROM {shard}.photos WHERE id = $1",
};
/// Writes both, reads the new one.
const SWITCHED: Version = Version {
    insert: "INSERT INTO {shard}.photos (user_id, title, caption) VALUES ($1, $2, $2) RETURNING id",
    select: "SELECT caption FROM {shard}.photos WHERE id = $1",
};
/// Knows only the new column.
const NEW: Version = Version {
    insert: "INSERT INTO {shard}.photos (user_id, caption) VALUES ($1, $2) RETURNING id",
    select: "SELECT caption FROM {shard}.photos WHERE id = $1",
};

/// A process of the application, which writes photos and reads those that others have written.
struct Process {
    stop: Arc<AtomicBool>,
    task: JoinHandle<usize>,
}

impl Process {
    fn start(router: &Router, version: Version) -> Process {
        let stop = Arc::new(AtomicBool::new(false));
        let (router, stopped) = (router.clone(), stop.clone());
        let task = tokio::spawn(async move {
            let mut calls = 0;
            while !stopped.load(Ordering::Relaxed) {
                let shard = router
                    .shard(ShardId::new(calls as u16 % SHARDS).unwrap())
                    .unwrap();
                let text = format!("photo {calls}");
                let id: i64 = shard
                    .query_one(version.insert, &[&1_i64, &text])
                    .await
                    .unwrap()
                    .get(0);
                let read: String = shard
                    .query_one(version.select, &[&id])
                    .await
                    .unwrap()
                    .get(0);
                assert_eq!(read, text);
                // Any photo, whichever process has written it.
                let any = shard
                    .query(
                        "SELECT id FROM {shard}.photos ORDER BY random() LIMIT 1",
                        &[],
                    )
                    .await
                    .unwrap();
                let id: i64 = any[0].get(0);
                let read: String = shard
                    .query_one(version.select, &[&id])
                    .await
                    .unwrap()
                    .get(0);
                assert!(read.starts_with("photo"), "{read}");
                calls += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            calls
        });
        Process { stop, task }
    }

    /// Ends it. It must have made some calls, and no call may have failed.
    async fn end(self) {
        tokio::time::sleep(Duration::from_millis(300)).await;
        self.stop.store(true, Ordering::Relaxed);
        assert!(self.task.await.unwrap() > 0);
    }
}

on_each_version! {
    /// Expand, write both, backfill, require, switch, write the new one only, contract.
    async fn a_column_is_renamed(version) {
        let world = World::new(&[version, version], SHARDS).await;
        for client in world.all().await {
            for schema in lines(&client, "SELECT schema_name FROM pgshard.shard")
                .await
                .lines()
            {
                let rows = format!(
                    "INSERT INTO {schema}.users (id, name) VALUES (1, 'a');
                     INSERT INTO {schema}.photos (user_id, title)
                     SELECT 1, 'photo ' || i FROM generate_series(1, 500) i"
                );
                client.batch_execute(&rows).await.unwrap();
            }
        }
        let router = world.router().await;
        let up = async |file: &str, sql: &str| {
            world.servers.write(&format!("migrations/{file}"), sql);
            world.run(&["migrate", "up"]).await.ended(0);
        };
        let old = Process::start(&router, OLD);
        up(
            "0002_expand.sql",
            "ALTER TABLE {shard}.photos ADD COLUMN caption text",
        )
        .await;
        let both = Process::start(&router, BOTH);
        old.end().await;
        // From here on every process writes both columns.
        world.servers.write(
            "captions.sql",
            "UPDATE {shard}.photos SET caption = title WHERE id BETWEEN {low} AND {high} AND \
                caption IS NULL",
        );
        let file = world.servers.directory().join("captions.sql");
        let backfill = [
            "migrate",
            "backfill",
            file.to_str().unwrap(),
            "--table",
            "photos",
            "--range-ms",
            "5",
        ];
        world.run(&backfill).await.ended(0);
        let check = "ALTER TABLE {shard}.photos ADD CONSTRAINT captioned CHECK (caption IS NOT \
            NULL) NOT VALID";
        up("0003_check.sql", check).await;
        up(
            "0004_validate.sql",
            "ALTER TABLE {shard}.photos VALIDATE CONSTRAINT captioned",
        )
        .await;
        let switched = Process::start(&router, SWITCHED);
        both.end().await;
        up(
            "0005_release.sql",
            "ALTER TABLE {shard}.photos ALTER title DROP NOT NULL",
        )
        .await;
        let new = Process::start(&router, NEW);
        switched.end().await;
        up(
            "0006_contract.sql",
            "ALTER TABLE {shard}.photos DROP COLUMN title",
        )
        .await;
        new.end().await;
        world.run(&["check", "--ddl"]).await.ended(0);
    }
}
