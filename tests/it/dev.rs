//! `pgshard::dev`: servers start, and are gone when they should be.

mod links;
mod passwords;

use std::io::{BufRead, BufReader, Read};
use std::net::TcpStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use pgshard::ShardCount;
use pgshard::dev::{self, Binaries, ConfigState, ServerState, StopMode, UpOptions};
use rustix::process::{Pid, Signal};

use crate::support::{TestCluster, connect};

fn listens(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

/// Waits for something that happens in another process, and fails if it does not.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(
            started.elapsed() < Duration::from_secs(60),
            "{what}: not within a minute"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

on_each_version! {
    /// Every server answers on loopback and on its socket, has the requested version, and is ready
    /// for moves; `app` owns its database and may replicate, but is not a superuser.
    async fn servers_come_up(version) {
        let cluster = TestCluster::start(version, 3);
        for host in 0..3 {
            assert_eq!(cluster.name(host).as_str(), format!("db{}", host + 1));
            let client = cluster.app(host).await;
            let settings = "SELECT current_setting('server_version_num')::int / 10000, \
                current_setting('wal_level'),
                current_setting('port')::int, current_setting('listen_addresses')";
            let row = client.query_one(settings, &[]).await.unwrap();
            assert_eq!(row.get::<_, i32>(0), version as i32);
            assert_eq!(row.get::<_, &str>(1), "logical");
            assert_eq!(row.get::<_, i32>(2), i32::from(cluster.server(host).port()));
            assert_eq!(row.get::<_, &str>(3), "127.0.0.1");
            let role = "SELECT rolsuper, rolreplication, pg_get_userbyid(datdba) = current_user
                FROM pg_roles, pg_database WHERE rolname = current_user AND datname = \
                current_database()";
            let row = client.query_one(role, &[]).await.unwrap();
            assert_eq!((row.get(0), row.get(1), row.get(2)), (false, true, true));
            let row = cluster
                .superuser(host)
                .await
                .query_one(role, &[])
                .await
                .unwrap();
            assert!(row.get::<_, bool>(0));

            let server = cluster.server(host);
            let socket = format!(
                "host={} port={} user=app \
                dbname=app",
                server.directory().display(),
                server.port()
            );
            connect(&socket)
                .await
                .simple_query("SELECT 1")
                .await
                .unwrap();
        }
    }

    /// After the cluster's end nothing listens, and no file is left.
    async fn dropped_servers_are_gone(version) {
        let cluster = TestCluster::start(version, 2);
        // A client that is still connected does not keep a server running.
        let client = cluster.app(0).await;
        let ports: Vec<u16> = cluster
            .servers()
            .iter()
            .map(|server| server.port())
            .collect();
        let directory = cluster.server(0).directory().parent().unwrap().to_owned();
        assert!(ports.iter().all(|port| listens(*port)) && directory.is_dir());
        drop(cluster);
        assert!(!ports.iter().any(|port| listens(*port)));
        assert!(!directory.exists());
        assert!(client.simple_query("SELECT 1").await.is_err());
    }

    /// What was committed exists after a clean stop and after a crash; port and data stay the same.
    async fn servers_restart_with_their_data(version) {
        let cluster = TestCluster::start(version, 1);
        let server = cluster.server(0);
        cluster
            .app(0)
            .await
            .batch_execute("CREATE TABLE t (n int)")
            .await
            .unwrap();
        for (n, mode) in [(1, StopMode::Immediate), (2, StopMode::Fast)] {
            cluster
                .app(0)
                .await
                .execute("INSERT INTO t VALUES ($1)", &[&n])
                .await
                .unwrap();
            let pid = server.pid();
            server.restart(mode).unwrap();
            assert_ne!(server.pid(), pid);
            let row = cluster
                .app(0)
                .await
                .query_one("SELECT max(n) FROM t", &[])
                .await
                .unwrap();
            assert_eq!(row.get::<_, i32>(0), n);
        }
        let crashes = std::fs::read_to_string(server.log())
            .unwrap()
            .matches(
                "was not properly \
            shut down",
            )
            .count();
        assert_eq!(crashes, 1);
        server.stop(StopMode::Fast).unwrap();
        server.stop(StopMode::Fast).unwrap();
        assert!(!listens(server.port()) && server.pid().is_none());
        server.start().unwrap();
        server.start().unwrap();
        cluster.app(0).await.simple_query("SELECT 1").await.unwrap();
    }

    /// `up` twice, `status`, `down`, and `up` again, which gives every server the port that the
    /// config knows.
    async fn up_status_down(version) {
        let folder = tempfile::Builder::new()
            .prefix("pgshard-up-")
            .tempdir_in("/var/tmp")
            .unwrap();
        open_to_all(folder.path());
        let directory = folder.path().join("dev");
        let options = UpOptions::new(directory.clone(), 2, ShardCount::new(5).unwrap())
            .binaries(Some(Binaries::of_major(version).unwrap()));
        assert!(dev::status(&directory).unwrap().is_empty());
        let _down = DownOnDrop(&directory);
        let first = dev::up(&options).unwrap();
        assert_eq!(
            (first.hosts.len(), first.config_state),
            (2, ConfigState::Written)
        );
        for (_, url) in &first.hosts {
            passwords::reach(url)
                .await
                .simple_query("SELECT 1")
                .await
                .unwrap();
        }
        let config = std::fs::read_to_string(&first.config).unwrap();
        assert!(
            config.contains(&format!("url = \"{}\"", first.hosts[1].1)),
            "{config}"
        );
        assert!(
            config.contains("db2 = \"2-4\"") && config.contains("migrations = \"migrations\""),
            "{config}"
        );
        let sample = std::fs::read_to_string(directory.join("migrations/0001_tables.sql")).unwrap();
        assert!(sample.contains("DEFAULT {shard}.next_id()"), "{sample}");

        let pids = || {
            dev::status(&directory)
                .unwrap()
                .into_iter()
                .map(|server| server.state)
                .collect::<Vec<_>>()
        };
        let running = pids();
        assert!(
            running
                .iter()
                .all(|state| matches!(state, ServerState::Running { .. }))
                && running.len() == 2
        );
        let second = dev::up(&options).unwrap();
        assert_eq!(
            (second.hosts, second.config_state),
            (first.hosts.clone(), ConfigState::Kept)
        );
        assert_eq!(pids(), running);

        let removed = dev::down(&directory).unwrap();
        assert_eq!(
            removed.iter().map(|name| name.as_str()).collect::<Vec<_>>(),
            ["db1", "db2"]
        );
        assert!(!directory.join("servers").exists() && first.config.exists());
        assert!(dev::down(&directory).unwrap().is_empty() && pids().is_empty());

        assert_eq!(dev::up(&options).unwrap().hosts, first.hosts);
        // A server that crashed is started again.
        let ServerState::Running { pid } = pids()[0] else {
            panic!("db1 does not run")
        };
        signal(pid, Signal::QUIT);
        wait_until("db1 stops", || pids()[0] == ServerState::Stopped);
        assert_eq!(dev::up(&options).unwrap().hosts, first.hosts);
        assert!(matches!(pids()[0], ServerState::Running { .. }));
    }
}

/// Programs in the current folder, such as a cloned repository, are not run.
#[test]
fn programs_of_the_current_folder() {
    let folder = tempfile::Builder::new()
        .prefix("pgshard-here-")
        .tempdir_in("/var/tmp")
        .unwrap();
    open_to_all(folder.path());
    let (theirs, was_run) = (
        folder.path().join("target/postgres/99/bin"),
        folder.path().join("was-run"),
    );
    std::fs::create_dir_all(&theirs).unwrap();
    for name in ["postgres", "initdb", "pg_ctl"] {
        let script = format!(
            "#!/bin/sh\ntouch {}\necho 'postgres (PostgreSQL) 99.0'\n",
            was_run.display()
        );
        std::fs::write(theirs.join(name), script).unwrap();
        open_to_all(&theirs.join(name));
    }
    let directory = folder.path().join("dev");
    let _down = DownOnDrop(&directory);
    let up = ["dev", "up", "--hosts", "1", "--shards", "1", "--dir"];
    let mut pgshard = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    let status = pgshard
        .args(up)
        .arg(&directory)
        .current_dir(folder.path())
        .env_remove("CARGO_MANIFEST_DIR")
        .status();
    assert!(status.unwrap().success());
    assert!(!was_run.exists());
}

struct DownOnDrop<'a>(&'a Path);

impl Drop for DownOnDrop<'_> {
    fn drop(&mut self) {
        dev::down(self.0).expect("what was up goes down");
    }
}

fn open_to_all(path: &Path) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).unwrap();
}

fn signal(pid: u32, signal: Signal) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_version_that_is_not_there_is_named_with_the_remedy() {
    let error = Binaries::of_major(7).unwrap_err().to_string();
    for words in [
        "PostgreSQL 7 was not found, only",
        "PGSHARD_PG_BIN",
        "/usr/lib/postgresql/*/bin",
        "script/setup",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn hosts_out_of_bounds_are_refused() {
    for (hosts, shards) in [(0, 4), (5, 4), (65, 128)] {
        let shards = ShardCount::new(shards).unwrap();
        let options = UpOptions::new("/nonexistent".into(), hosts, shards);
        assert!(matches!(
            dev::up(&options),
            Err(dev::Error::HostCount { .. })
        ));
    }
}

/// What a process that holds servers shall do for the tests below, which start this binary again
/// for it.
const HELPER: &str = "PGSHARD_TEST_HELPER";

/// Does nothing unless [`HELPER`] is in the environment.
#[test]
fn helper() {
    let Ok(task) = std::env::var(HELPER) else {
        return;
    };
    let cluster = TestCluster::start(15, 2);
    for server in cluster.servers() {
        println!(
            "\nserver {} {}",
            server.port(),
            server.directory().display()
        );
    }
    match task.as_str() {
        "hold" => {
            println!("\nready");
            // Runs until it is killed; if the test dies first, its end of the pipe closes.
            let _ = std::io::stdin().read(&mut [0]);
        }
        "fail" => panic!("a failing test"),
        other => panic!("unknown task {other}"),
    }
}

/// The helper process, and its servers' ports and directories.
struct Helper {
    process: Child,
    servers: Vec<(u16, PathBuf)>,
}

impl Helper {
    fn start(task: &str) -> Helper {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["dev::helper", "--exact", "--nocapture"])
            .env(HELPER, task);
        // It gets a group of its own, as a terminal does for every command.
        command
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut servers = Vec::new();
        for line in BufReader::new(process.stdout.as_mut().unwrap()).lines() {
            let line = line.unwrap();
            match line.split(' ').collect::<Vec<_>>()[..] {
                ["server", port, directory] => {
                    servers.push((port.parse().unwrap(), directory.into()))
                }
                ["ready"] => break,
                _ => {}
            }
        }
        Helper { process, servers }
    }
}

/// However the process that holds servers ends, they end too: by SIGKILL, or by Ctrl-C, which a
/// terminal sends to the whole process group.
#[test]
fn servers_end_with_their_process() {
    for how in [Signal::KILL, Signal::INT, Signal::TERM] {
        let mut helper = Helper::start("hold");
        assert_eq!(helper.servers.len(), 2);
        assert!(
            helper
                .servers
                .iter()
                .all(|(port, directory)| listens(*port) && directory.is_dir())
        );
        let group = Pid::from_raw(helper.process.id() as i32).unwrap();
        rustix::process::kill_process_group(group, how).unwrap();
        helper.process.wait().unwrap();
        for (port, directory) in &helper.servers {
            wait_until("the server stops", || !listens(*port));
            wait_until("its directory goes", || !directory.exists());
        }
    }
}

/// Nothing is left either if it is killed while it creates and starts them.
#[test]
fn nothing_stays_of_servers_whose_process_was_killed_early() {
    let folder = tempfile::Builder::new()
        .prefix("pgshard-early-")
        .tempdir_in("/var/tmp")
        .unwrap();
    open_to_all(folder.path());
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["dev::helper", "--exact"])
        .env(HELPER, "hold")
        .env("TMPDIR", folder.path());
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    // The first run ends normally, so that the template exists: making it takes long, and it stays
    // in any case.
    drop(command.spawn().unwrap().wait_with_output().unwrap());
    for delay_ms in (0..16).map(|step| step * 25) {
        let mut process = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay_ms));
        process.kill().unwrap();
        process.wait().unwrap();
    }
    wait_until("nothing but the cache is left", || {
        let names = std::fs::read_dir(folder.path())
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name());
        names
            .filter(|name| !name.to_string_lossy().starts_with("pgshard-cache-"))
            .count()
            == 0
    });
}

/// A failing test stops its servers, keeps their data and prints where.
#[test]
fn a_failing_test_keeps_its_data() {
    let helper = Helper::start("fail");
    let servers = helper.servers;
    let output = helper.process.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success());
    assert_eq!(servers.len(), 2, "{said}");
    for (port, directory) in &servers {
        assert!(!listens(*port) && directory.join("data/PG_VERSION").is_file());
        assert!(
            said.contains(&format!("log in {}", directory.join("log").display())),
            "{said}"
        );
    }
    std::fs::remove_dir_all(servers[0].1.parent().unwrap()).unwrap();
}
