//! `pgshard::testing`: clusters for the tests of an application.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pgshard::Router;
use pgshard::dev::StopMode;
use pgshard::testing::{self, Error, TestCluster};
use tokio_postgres::Row;

const TABLES: &str = "CREATE TABLE {shard}.notes (id bigint NOT NULL PRIMARY KEY DEFAULT \
    {shard}.next_id(), user_id bigint NOT NULL, text text NOT NULL)";

/// A folder of migrations with this SQL in it.
fn migrations(sql: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("0001_notes.sql"), sql).unwrap();
    folder
}

/// The rows of all shards.
async fn rows(router: &Router, sql: &str) -> Vec<Row> {
    let mut gathered = router.all_shards().query(sql, &[]);
    let mut all = Vec::new();
    while let Some((_, rows)) = gathered.next().await {
        all.extend(rows.unwrap());
    }
    all
}

/// How many notes the cluster has.
async fn notes(cluster: &TestCluster) -> usize {
    rows(cluster.router(), "SELECT id FROM {shard}.notes")
        .await
        .len()
}

async fn write(cluster: &TestCluster, users: std::ops::Range<i64>) {
    for user in users {
        let sql = "INSERT INTO {shard}.notes (user_id, text) VALUES ($1, 'a')";
        cluster
            .router()
            .by_key(user)
            .execute(sql, &[&user])
            .await
            .unwrap();
    }
}

/// The databases of tests on the server of this cluster.
async fn databases(cluster: &TestCluster) -> BTreeSet<String> {
    let host = &cluster.config().hosts.values().next().unwrap().name;
    let client = crate::support::connect(&cluster.superuser_url(host).unwrap()).await;
    let sql = "SELECT datname FROM pg_database WHERE datname LIKE 'test_%'";
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

/// Its own databases.
fn own(cluster: &TestCluster) -> BTreeSet<String> {
    let hosts = cluster.config().hosts.values();
    hosts
        .map(|host| host.connect.database().to_owned())
        .collect()
}

on_each_version! {
    /// Tests that run at the same time have a server in common, and no rows. What a test wrote goes
    /// with its cluster.
    async fn clusters_of_a_process_share_a_server_and_no_rows(version) {
        let folder = migrations(TABLES);
        let start = || {
            testing::cluster()
                .migrations(folder.path())
                .postgres(version)
                .into_future()
        };
        let started = futures_util::future::join_all((0..5).map(|_| start())).await;
        let clusters: Vec<TestCluster> = started.into_iter().map(Result::unwrap).collect();
        let mut ports = BTreeSet::new();
        for (number, cluster) in clusters.iter().enumerate() {
            write(cluster, 0..20 + number as i64).await;
            ports.extend(
                cluster
                    .config()
                    .hosts
                    .values()
                    .map(|host| host.connect.addresses()),
            );
        }
        assert_eq!(ports.len(), 1, "one server: {ports:?}");
        for (number, cluster) in clusters.iter().enumerate() {
            assert_eq!(notes(cluster).await, 20 + number);
        }
        let last = start().await.unwrap();
        assert_eq!(notes(&last).await, 0);
        let gone: BTreeSet<String> = clusters.iter().flat_map(own).collect();
        let paths: Vec<PathBuf> = clusters
            .iter()
            .map(|one| one.config_path().to_owned())
            .collect();
        assert!(databases(&last).await.is_superset(&gone) && gone.len() == 10);
        drop(clusters);
        let left = databases(&last).await;
        assert!(left.is_disjoint(&gone), "{left:?}");
        assert!(paths.iter().all(|path| !path.exists()));
    }

    /// A cluster of a test is like any other: the command finds nothing wrong with it, and moves
    /// its shards under the router.
    async fn the_command_works_with_a_cluster_of_a_test(version) {
        let folder = migrations(TABLES);
        let cluster = testing::cluster().hosts(3).shards(8).postgres(version);
        let cluster = cluster.migrations(folder.path()).await.unwrap();
        write(&cluster, 0..40).await;
        let run = async |args: &[&str]| {
            let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_pgshard"));
            command
                .arg("--config")
                .arg(cluster.config_path())
                .args(args);
            let output = command.output().await.unwrap();
            let said = String::from_utf8_lossy(&output.stdout).into_owned();
            let errors = String::from_utf8_lossy(&output.stderr).into_owned();
            (output.status.code(), said, errors)
        };
        let checked = run(&["check"]).await;
        assert_eq!(checked.0, Some(0), "{checked:?}");
        let moved = run(&["move", "0", "--to", "db3", "--yes"]).await;
        assert_eq!(moved.0, Some(0), "{moved:?}");
        write(&cluster, 40..60).await;
        assert_eq!(notes(&cluster).await, 60);
        let checked = run(&["check", "--rows"]).await;
        assert_eq!(checked.0, Some(0), "{checked:?}");
    }

    /// A test that panics leaves no database behind.
    async fn a_test_that_panics_leaves_no_database(version) {
        let folder = migrations(TABLES);
        let start = || {
            testing::cluster()
                .migrations(folder.path())
                .postgres(version)
        };
        let first = start().await.unwrap();
        let cluster = start().await.unwrap();
        let gone = own(&cluster);
        assert!(databases(&first).await.is_superset(&gone));
        let test = tokio::spawn(async move {
            write(&cluster, 0..3).await;
            assert_eq!(notes(&cluster).await, 4, "a failing test");
        });
        assert!(test.await.unwrap_err().is_panic());
        assert!(databases(&first).await.is_disjoint(&gone));
    }

    /// Migrations that changed make another cluster, immediately; those that fail are named.
    async fn a_cluster_has_the_migrations_as_they_are_now(version) {
        let folder = migrations(TABLES);
        let start = || {
            testing::cluster()
                .migrations(folder.path())
                .postgres(version)
        };
        let before = start().await.unwrap();
        let changed = TABLES.replace("text text", "words text");
        let file = folder.path().join("0001_notes.sql");
        std::fs::write(&file, &changed).unwrap();
        let after = start().await.unwrap();
        let sql = "INSERT INTO {shard}.notes (user_id, words) VALUES (1, 'a')";
        assert!(after.router().by_key(1).execute(sql, &[]).await.is_ok());
        assert!(before.router().by_key(1).execute(sql, &[]).await.is_err());

        std::fs::write(&file, TABLES.replace("bigint", "bigintt")).unwrap();
        for _ in 0..2 {
            let error = start().await.unwrap_err();
            let said = error.to_string();
            assert!(matches!(error, Error::Bootstrap { .. }), "{said}");
            assert!(
                said.contains("0001_notes") && said.contains("bigintt"),
                "{said}"
            );
        }
        std::fs::write(&file, TABLES).unwrap();
        write(&start().await.unwrap(), 0..1).await;
    }

    /// A host that is a server of its own can be stopped: its shards are away, the others are not.
    async fn a_test_stops_a_server_of_its_own(version) {
        let folder = migrations(TABLES);
        let cluster = testing::cluster()
            .migrations(folder.path())
            .postgres(version);
        let cluster = cluster.own_servers().await.unwrap();
        write(&cluster, 0..16).await;
        let ports: BTreeSet<u16> = cluster
            .servers()
            .iter()
            .map(|server| server.port())
            .collect();
        assert_eq!(ports.len(), 2);
        cluster.servers()[1].stop(StopMode::Immediate).unwrap();
        let mut found = Vec::new();
        for user in 0..16_i64 {
            let sql = "SELECT count(*) FROM {shard}.notes WHERE user_id = $1";
            let router = cluster.router();
            let asked = async { router.by_key(user).query_one(sql, &[&user]).await };
            if let Ok(Ok(row)) = tokio::time::timeout(Duration::from_secs(2), asked).await {
                assert_eq!(row.get::<_, i64>(0), 1);
                found.push(user);
            }
        }
        assert_eq!(found, (0..8).collect::<Vec<_>>());
        cluster.servers()[1].start().unwrap();
        let router = cluster.connect().await.unwrap();
        assert_eq!(
            rows(&router, "SELECT id FROM {shard}.notes").await.len(),
            16
        );
    }
}

#[tokio::test]
async fn what_cannot_be_made_is_refused_with_its_reason() {
    let error = testing::cluster().shards(0).await.unwrap_err();
    assert!(matches!(error, Error::Shards { shards: 0 }), "{error}");
    let error = testing::cluster().hosts(3).shards(2).await.unwrap_err();
    assert!(
        error.to_string().contains("3 hosts for 2 shards"),
        "{error}"
    );
    let error = testing::cluster()
        .migrations("no such folder")
        .await
        .unwrap_err();
    assert!(
        matches!(&error, Error::Migrations { folder, .. } if folder.is_absolute()),
        "{error}"
    );
    let error = testing::cluster().config("[routr]").await.unwrap_err();
    assert!(matches!(error, Error::Config(_)), "{error}");
    let error = testing::cluster().postgres(9).await.unwrap_err();
    assert!(matches!(error, Error::Servers(_)), "{error}");
}

/// A cluster in a static serves tests with a runtime each: every one takes a router of its own.
#[test]
fn a_cluster_is_shared_by_tests_with_a_runtime_each() {
    static CLUSTER: tokio::sync::OnceCell<TestCluster> = tokio::sync::OnceCell::const_new();
    let folder = migrations(TABLES);
    let test = |user: i64| {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let start = async || testing::cluster().migrations(folder.path()).await;
            let cluster = CLUSTER.get_or_try_init(start).await.unwrap();
            let router = cluster.connect().await.unwrap();
            let sql = "INSERT INTO {shard}.notes (user_id, text) VALUES ($1, 'a')";
            router.by_key(user).execute(sql, &[&user]).await.unwrap();
            let sql = "SELECT count(*) FROM {shard}.notes WHERE user_id < 8";
            let all = rows(&router, sql).await;
            all.iter().map(|row| row.get::<_, i64>(0)).sum::<i64>()
        })
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8).map(|user| scope.spawn(move || test(user))).collect();
        for thread in threads {
            assert!((1..=8).contains(&thread.join().unwrap()));
        }
    });
    assert_eq!(test(9), 8);
}

const HELPER: &str = "PGSHARD_TESTING_HELPER";

/// No test by itself: the process that [`nothing_stays_of_a_killed_process`] kills.
#[tokio::test]
async fn helper() {
    let Some(folder) = std::env::var_os(HELPER) else {
        return;
    };
    let cluster = testing::cluster()
        .migrations(Path::new(&folder))
        .await
        .unwrap();
    write(&cluster, 0..3).await;
    let host = cluster.config().hosts.values().next().unwrap();
    let directory = cluster.config_path().ancestors().nth(2).unwrap();
    println!(
        "server {} {}",
        host.connect.addresses()[0],
        directory.display()
    );
    std::future::pending::<()>().await;
}

/// Several processes that start at the same time, as nextest's do, have a server each. It stops,
/// and its directory goes, when the process is killed.
#[test]
fn nothing_stays_of_a_killed_process() {
    let folder = migrations(TABLES);
    let start = |_| {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["testing::helper", "--exact", "--nocapture"]);
        command.env(HELPER, folder.path()).stdout(Stdio::piped());
        command.spawn().unwrap()
    };
    let mut processes: Vec<Child> = (0..3).map(start).collect();
    let mut servers = Vec::new();
    for process in &mut processes {
        let lines = BufReader::new(process.stdout.as_mut().unwrap()).lines();
        let mut said = lines.map_while(Result::ok);
        let line = said.find_map(|line| Some(line.split_once("server ")?.1.to_owned()));
        let line = line.expect("the helper has a cluster");
        let (address, directory) = line.split_once(' ').unwrap();
        servers.push((address.to_owned(), PathBuf::from(directory)));
    }
    let different: BTreeSet<_> = servers.iter().map(|(address, _)| address).collect();
    assert_eq!(different.len(), 3);
    for process in &mut processes {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    for (address, directory) in &servers {
        assert!(directory.starts_with("/") && directory.components().count() > 2);
        let started = std::time::Instant::now();
        while std::net::TcpStream::connect(address).is_ok() || directory.exists() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "{address} {directory:?}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}
