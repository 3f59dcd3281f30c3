//! `pgshard top`: what it shows of a load on one shard, of a slow statement on many, and of a
//! session that blocks another.

use std::time::Duration;

use pgshard::dev::ServerOptions;

use super::pgshard;
use crate::support::TestCluster;

const PHOTOS: &str =
    "CREATE TABLE {shard}.photos (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), title text)";

on_each_version! {
    /// The load is seen on its shard, without the literals of its statements; both shards'
    /// statements are one.
    async fn what_hosts_are_busy_with_is_shown(version) {
        let mut server = ServerOptions::default();
        let library = ("shared_preload_libraries", "pg_stat_statements");
        server
            .settings
            .push((library.0.to_owned(), library.1.to_owned()));
        let cluster = TestCluster::start_with(version, 2, server);
        cluster.write_config_with_migrations(8, &[("0001_photos.sql", PHOTOS)]);
        let folder = cluster.directory().to_path_buf();
        assert_eq!(pgshard(&folder, &["bootstrap"]).exit, 0);
        let extension = "CREATE EXTENSION pg_stat_statements";
        cluster
            .superuser(0)
            .await
            .batch_execute(extension)
            .await
            .unwrap();
        let grant = "GRANT pg_read_all_stats TO app";
        for host in 0..2 {
            cluster
                .superuser(host)
                .await
                .batch_execute(grant)
                .await
                .unwrap();
        }

        let holder = cluster.app(0).await;
        holder
            .batch_execute("BEGIN; LOCK TABLE shard_0001.photos")
            .await
            .unwrap();
        let waiter = cluster.app(0).await;
        let waiting = tokio::spawn(async move {
            waiter
                .batch_execute("SELECT 'a secret' FROM shard_0001.photos")
                .await
        });
        let writer = cluster.app(0).await;
        let writing = tokio::spawn(async move {
            loop {
                for shard in ["shard_0002", "shard_0003"] {
                    let insert = format!("INSERT INTO {shard}.photos (title) VALUES ('a secret')");
                    writer.batch_execute(&insert).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        // Large values, out of line, which bitmap scans read.
        let reader = cluster.app(0).await;
        let fill = "SET enable_seqscan = off; SET enable_indexscan = off;
            SET enable_indexonlyscan = off;
            WITH large AS (SELECT (SELECT string_agg(md5(n || '/' || m), '')
                FROM generate_series(1, 4000) m) AS title FROM generate_series(1, 50) n)
            INSERT INTO shard_0000.photos (title) SELECT title FROM large";
        reader.batch_execute(fill).await.unwrap();
        reader.batch_execute("VACUUM shard_0000.photos").await.unwrap();
        let measured = "SELECT pg_table_size('shard_0000.photos')";
        let bytes: i64 = reader.query_one(measured, &[]).await.unwrap().get(0);
        let reading = tokio::spawn(async move {
            let scan = "SELECT count(created) FROM (SELECT id AS created, title
                FROM shard_0000.photos WHERE id > 0) AS photos";
            loop {
                reader.batch_execute(scan).await.unwrap();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        let args = ["top", "--interval-s", "4", "--limit", "5", "--json"];
        let run = tokio::task::spawn_blocking(move || pgshard(&folder, &args))
            .await
            .unwrap();
        writing.abort();
        reading.abort();
        holder.batch_execute("COMMIT").await.unwrap();
        waiting.await.unwrap().unwrap();

        // docs/statistics.md: from 18 on PostgreSQL itself counts them as one.
        let rows = "SELECT count(*) FROM pg_stat_statements WHERE query LIKE 'INSERT INTO shard_%'";
        let rows: i64 = cluster
            .superuser(0)
            .await
            .query_one(rows, &[])
            .await
            .unwrap()
            .get(0);
        assert_eq!(rows, if version < 18 { 2 } else { 1 });

        assert_eq!(run.exit, 0, "{}{}", run.stdout, run.stderr);
        assert!(!run.stdout.contains("secret"), "{}", run.stdout);
        let report = &run.json()[0];
        let busiest: Vec<u64> = report["busiest"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["shard"].as_u64().unwrap())
            .collect();
        assert!(busiest.contains(&2) && busiest.contains(&3), "{report}");
        let read = &report["busiest"][0];
        assert_eq!(read["shard"], 0, "{report}");
        assert!(read["rows_read_per_s"].as_f64().unwrap() > 50.0, "{report}");
        let largest = &report["largest"][0];
        assert_eq!(largest["shard"], 0, "{report}");
        let of_truth = largest["bytes"].as_f64().unwrap() / bytes as f64;
        assert!((0.95..1.1).contains(&of_truth), "{bytes}: {report}");
        let statements = report["statements"].as_array().unwrap();
        let inserts: Vec<_> = statements
            .iter()
            .filter(|one| {
                one["statement"]
                    .as_str()
                    .unwrap()
                    .contains("INTO {shard}.photos")
            })
            .collect();
        assert_eq!(inserts.len(), 1, "{report}");
        assert!(
            inserts[0]["calls_per_s"].as_f64().unwrap() > 0.0,
            "{report}"
        );
        assert_eq!(report["without_statements"], serde_json::json!(["db2"]));
        assert_eq!(report["blockers"][0]["waiting"], 1, "{report}");
        assert_eq!(report["blockers"][0]["state"], "idle in transaction");
        let statement = report["blockers"][0]["statement"].as_str().unwrap();
        assert_eq!(statement, "BEGIN; LOCK TABLE {shard}.photos");
        assert_eq!(report["largest"].as_array().unwrap().len(), 5);
    }

    /// An extension without its library is as none: the rest is shown.
    async fn a_host_whose_library_of_statements_is_not_loaded_is_shown(version) {
        let cluster = TestCluster::start(version, 1);
        cluster.write_config_with_migrations(4, &[("0001_photos.sql", PHOTOS)]);
        let folder = cluster.directory().to_path_buf();
        assert_eq!(pgshard(&folder, &["bootstrap"]).exit, 0);
        let extension = "CREATE EXTENSION pg_stat_statements";
        cluster
            .superuser(0)
            .await
            .batch_execute(extension)
            .await
            .unwrap();
        let run = pgshard(&folder, &["top", "--interval-s", "1", "--json"]);
        assert_eq!(run.exit, 0, "{}{}", run.stdout, run.stderr);
        let report = &run.json()[0];
        assert_eq!(report["failed"], serde_json::json!([]));
        assert_eq!(report["without_statements"], serde_json::json!(["db1"]));
    }
}
