//! What happens to a database over time: roles, dumps, crashes.

use std::process::{Command, Stdio};
use std::time::Duration;

use pgshard::dev::{Binaries, StopMode};

use super::*;

on_each_version! {
    /// USAGE on the schema and on the two sequences is all that a writer needs, whatever its search
    /// path is.
    async fn a_writer_needs_usage_only(version) {
        let servers = server(version, 5).await;
        let (owner, superuser) = (servers.app(0).await, servers.superuser(0).await);
        superuser
            .batch_execute(
                "CREATE ROLE writer LOGIN; CREATE ROLE stranger \
            LOGIN",
            )
            .await
            .unwrap();
        let database = servers
            .server(0)
            .url()
            .rsplit('/')
            .next()
            .unwrap()
            .to_owned();
        let url = |role: &str| {
            format!(
                "postgres://{role}@127.0.0.1:{}/{database}",
                servers.server(0).port()
            )
        };
        owner
            .batch_execute(
                "CREATE TABLE shard_0005.t (id bigint PRIMARY KEY DEFAULT shard_0005.next_id(), n \
                    int);
            GRANT USAGE ON SCHEMA shard_0005 TO writer, stranger; GRANT INSERT, SELECT ON \
            shard_0005.t TO writer,
            stranger;
            GRANT USAGE ON SEQUENCE shard_0005.id_ticket, shard_0005.id_offset TO writer",
            )
            .await
            .unwrap();

        let writer = crate::support::connect(&url("writer")).await;
        for path in ["''", "trap, pg_catalog", "pg_catalog"] {
            owner
                .batch_execute(
                    "CREATE SCHEMA IF NOT EXISTS trap;
                CREATE OR REPLACE FUNCTION trap.floor(float8) RETURNS float8 LANGUAGE sql AS \
                'SELECT 0::float8'",
                )
                .await
                .unwrap();
            writer
                .batch_execute(&format!("SET search_path = {path}"))
                .await
                .unwrap();
            let mut ids = next_id_of_rows(&writer).await;
            ids.extend(next_ids(&writer, "shard_0005", 300).await);
            ids.extend(next_id_of_rows(&writer).await);
            assert_grows(&ids);
            // So that id_raise() has something to do each time.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let denied = |error: tokio_postgres::Error| error.code().unwrap().code().to_owned();
        let sql = "SELECT shard_0005.resume_after(0)";
        assert_eq!(
            denied(writer.batch_execute(sql).await.unwrap_err()),
            "42501"
        );
        let sql = "SELECT setval('shard_0005.id_ticket', 1)";
        assert_eq!(
            denied(writer.batch_execute(sql).await.unwrap_err()),
            "42501"
        );

        let stranger = crate::support::connect(&url("stranger")).await;
        let sql = "INSERT INTO shard_0005.t (n) VALUES (1)";
        assert_eq!(
            denied(stranger.batch_execute(sql).await.unwrap_err()),
            "42501"
        );
        owner
            .batch_execute(
                "GRANT USAGE ON SEQUENCE shard_0005.id_ticket TO \
            stranger",
            )
            .await
            .unwrap();
        assert_eq!(
            denied(stranger.batch_execute(sql).await.unwrap_err()),
            "42501"
        );
    }

    /// A shard that was dumped and restored continues above all IDs that it had, although the clock
    /// is an hour behind.
    async fn dump_and_restore(version) {
        let servers = server(version, 5).await;
        let (client, superuser) = (servers.app(0).await, servers.superuser(0).await);
        client
            .batch_execute(
                "CREATE TABLE shard_0005.t (id bigint PRIMARY KEY DEFAULT \
                shard_0005.next_id(), n int)",
            )
            .await
            .unwrap();
        let mut ids = next_id_of_rows(&client).await;
        ids.extend(next_ids(&client, "shard_0005", 5000).await);
        superuser
            .batch_execute("CREATE DATABASE restored OWNER app")
            .await
            .unwrap();

        let binaries = Binaries::of_major(version).unwrap();
        let program = |name: &str, database: &str| {
            let mut command = Command::new(binaries.program(name));
            command
                .args(["-h", "127.0.0.1", "-U", "app", "-d", database, "-p"])
                .arg(servers.server(0).port().to_string());
            command
        };
        // Some packages have only the server's programs; the test is not skipped for that.
        for name in ["pg_dump", "psql"] {
            let program = binaries.program(name);
            assert!(
                program.exists(),
                "{} is not there: install the client programs of PostgreSQL {version}",
                program.display()
            );
        }
        let database = servers
            .server(0)
            .url()
            .rsplit('/')
            .next()
            .unwrap()
            .to_owned();
        let dump = program("pg_dump", &database)
            .args(["-n", "shard_0005"])
            .output()
            .unwrap();
        assert!(
            dump.status.success(),
            "{}",
            String::from_utf8_lossy(&dump.stderr)
        );
        let file = servers.write("dump.sql", &String::from_utf8(dump.stdout).unwrap());
        let mut psql = program("psql", "restored");
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-f"])
            .arg(file)
            .stdout(Stdio::null());
        assert!(psql.status().unwrap().success());

        let url = format!(
            "postgres://app@127.0.0.1:{}/restored",
            servers.server(0).port()
        );
        let restored = crate::support::connect(&url).await;
        with_test_clock(&restored, "shard_0005").await;
        shift(&restored, -3_600_000).await;
        ids.extend(next_id_of_rows(&restored).await);
        ids.extend(next_ids(&restored, "shard_0005", 50).await);
        assert_grows(&ids);
    }

    /// The server dies while IDs are made, and comes back with a clock that is three seconds
    /// behind.
    async fn a_killed_server_repeats_no_id(version) {
        let servers = server(version, 5).await;
        let mut had = Vec::new();
        for round in 0..2 {
            let client = servers.app(0).await;
            if round == 0 {
                with_test_clock(&client, "shard_0005").await;
                client
                    .batch_execute("CREATE TABLE public.ids (id bigint)")
                    .await
                    .unwrap();
            }
            let mut writers = tokio::task::JoinSet::new();
            for _ in 0..4 {
                let writer = servers.app(0).await;
                writers.spawn(async move {
                    let mut ids = Vec::new();
                    let sql = "INSERT INTO public.ids SELECT shard_0005.next_id() FROM \
                            generate_series(1, 7) RETURNING id";
                    while let Ok(rows) = writer.query(sql, &[]).await {
                        ids.extend(rows.iter().map(|row| row.get::<_, i64>(0)));
                    }
                    ids
                });
            }
            // Time for some commits.
            tokio::time::sleep(Duration::from_millis(200)).await;
            shift(&client, -3000 * (round + 1)).await;
            drop(client);
            servers.server(0).restart(StopMode::Immediate).unwrap();
            had.extend(writers.join_all().await);
        }
        let client = servers.app(0).await;
        let after = next_id(&client, "shard_0005", 1000).await;
        assert!(
            had.iter().flatten().all(|id| *id < after[0]),
            "what was made before the crash is \
            smaller"
        );
        had.push(after);
        assert_sound(&had);
        let row = client
            .query_one(
                "SELECT count(*), count(DISTINCT id) FROM \
            public.ids",
                &[],
            )
            .await
            .unwrap();
        assert_eq!(row.get::<_, i64>(0), row.get::<_, i64>(1));
        assert!(row.get::<_, i64>(0) > 50);
    }

    /// After rows from elsewhere every ID has a later millisecond than theirs. Without rows there
    /// is no floor.
    async fn ids_resume_after_rows_from_elsewhere(version) {
        let servers = server(version, 5).await;
        let client = servers.app(0).await;
        let before = next_id(&client, "shard_0005", 1).await[0];
        client
            .batch_execute(
                "SELECT shard_0005.resume_after(NULL); SELECT \
            shard_0005.resume_after(0)",
            )
            .await
            .unwrap();
        assert!(
            Id::decode(next_id(&client, "shard_0005", 1).await[0]).ms()
                < Id::decode(before).ms() + 60_000
        );
        let mut ids = vec![before];
        for ahead_ms in [1, 50, 5_000, 3_600_000] {
            let floor = Id::new(
                Id::decode(*ids.last().unwrap()).ms() + ahead_ms,
                pgshard::ShardId::MAX,
                1023,
            )
            .unwrap();
            client
                .execute("SELECT shard_0005.resume_after($1)", &[&floor.encode()])
                .await
                .unwrap();
            let next = next_id(&client, "shard_0005", 1).await[0];
            assert!(Id::decode(next).ms() > floor.ms() && next > before);
            ids.push(next);
        }
        assert_grows(&ids);
    }
}

async fn next_id_of_rows(client: &Client) -> Vec<i64> {
    let mut ids = Vec::new();
    for n in 0..20 {
        let rows = client
            .query(
                &format!("INSERT INTO shard_0005.t (n) VALUES ({n}) RETURNING id"),
                &[],
            )
            .await;
        ids.push(rows.unwrap()[0].get(0));
    }
    ids
}
