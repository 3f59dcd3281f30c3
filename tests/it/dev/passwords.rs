//! Servers that outlive a command require a password, which no other user of the machine can read.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use pgshard::ShardCount;
use pgshard::dev::{
    self, Access, Binaries, Cluster, ClusterOptions, ServerOptions, ServerState, UpOptions,
};
use pgshard::pg::{ConnectOptions, Connection};
use rustix::process::Signal;
use tokio_postgres::NoTls;

use super::{DownOnDrop, open_to_all, signal, wait_until};

fn folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new()
        .prefix("pgshard-pass-")
        .tempdir_in("/var/tmp")
        .unwrap();
    open_to_all(folder.path());
    folder
}

/// A connection by a URL that names a file of passwords.
pub(super) async fn reach(url: &str) -> Connection {
    ConnectOptions::parse(url)
        .unwrap()
        .connect("a test")
        .await
        .unwrap()
}

/// The errors that a stranger gets who knows the port, but no password.
async fn stranger(role: &str, port: u16, socket: Option<&Path>) -> String {
    let host = socket.map_or("127.0.0.1".to_owned(), |folder| {
        folder.display().to_string()
    });
    let mut told = String::new();
    for password in ["", "password=postgres"] {
        let text = format!("host={host} port={port} user={role} dbname=app {password}");
        let Err(error) = tokio_postgres::connect(&text, NoTls).await.map(drop) else {
            panic!("{role} is in by {host}")
        };
        told += &format!("{error:?}");
    }
    told
}

fn port(url: &str) -> u16 {
    let (_, rest) = url.split_once("127.0.0.1:").unwrap();
    rest.split('/').next().unwrap().parse().unwrap()
}

/// The files below a folder that hold the text.
fn holding(folder: &Path, text: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(holding(&path, text));
        } else if path.is_file()
            && std::fs::read(&path)
                .unwrap()
                .windows(text.len())
                .any(|part| part == text.as_bytes())
        {
            found.push(path);
        }
    }
    found
}

on_each_version! {
    /// Another user of the machine knows the port, but can act neither as the superuser there nor
    /// as the application. With the URL, these can: the command, psql, a mover's replication
    /// connection. Only one file has the password, and only its owner can read it.
    async fn nobody_else_gets_in(version) {
        let folder = folder();
        let directory = folder.path().join("dev");
        let binaries = Binaries::of_major(version).unwrap();
        let options = UpOptions::new(directory.clone(), 2, ShardCount::new(4).unwrap());
        let options = options.binaries(Some(binaries.clone()));
        let _down = DownOnDrop(&directory);
        let up = dev::up(&options).unwrap();
        assert!(up.open.is_empty() && up.unnamed.is_empty());
        let url = &up.hosts[0].1;
        let server = directory.join("servers/db1");
        for role in ["app", "postgres"] {
            let told = stranger(role, port(url), None).await
                + &stranger(role, port(url), Some(&server)).await;
            assert_eq!(told.matches("28P01").count(), 2, "{told}");
        }

        let passfile = directory.join("servers/db1.passfile");
        let facts = std::fs::metadata(&passfile).unwrap();
        assert_eq!(
            (facts.uid(), facts.permissions().mode() & 0o777),
            (rustix::process::geteuid().as_raw(), 0o600)
        );
        assert!(
            url.ends_with(&format!("?passfile={}", passfile.display())),
            "{url}"
        );
        if rustix::process::geteuid().is_root() {
            let owner = std::fs::metadata(&server).unwrap();
            let mut cat = Command::new("cat");
            assert!(
                !cat.arg(&passfile)
                    .uid(owner.uid())
                    .gid(owner.gid())
                    .output()
                    .unwrap()
                    .status
                    .success()
            );
        }

        let user = "SELECT current_user::text";
        assert_eq!(
            reach(url)
                .await
                .query_one(user, &[])
                .await
                .unwrap()
                .get::<_, &str>(0),
            "app"
        );
        let superuser = reach(&url.replace("app@", "postgres@")).await;
        assert_eq!(
            superuser
                .query_one(user, &[])
                .await
                .unwrap()
                .get::<_, &str>(0),
            "postgres"
        );
        let psql = Command::new(binaries.program("psql"))
            .args(["-wXAtc", user, url])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8_lossy(&psql.stdout).trim(),
            "app",
            "{}",
            String::from_utf8_lossy(&psql.stderr)
        );
        for args in [
            &["bootstrap"][..],
            &["move", "0", "--to", "db2", "--yes"],
            &["check"],
        ] {
            let mut pgshard = Command::new(env!("CARGO_BIN_EXE_pgshard"));
            let ran = pgshard
                .arg("--config")
                .arg(&up.config)
                .args(args)
                .output()
                .unwrap();
            assert!(
                ran.status.success(),
                "{args:?}: {}",
                String::from_utf8_lossy(&ran.stderr)
            );
        }

        let text = std::fs::read_to_string(&passfile).unwrap();
        let passwords: Vec<&str> = text
            .lines()
            .map(|line| line.rsplit_once(':').unwrap().1)
            .collect();
        assert_eq!(passwords.len(), 2);
        for password in passwords {
            assert_eq!(holding(&directory, password), [passfile.as_path()]);
        }
    }

    /// A server that an older pgshard made lets every user in, and keeps running; `up` reports
    /// that. If it is made again it requires a password, but the config that was kept names none:
    /// `up` reports that, and where the passwords are.
    async fn a_server_from_before(version) {
        let folder = folder();
        let directory = folder.path().join("dev");
        let options = UpOptions::new(directory.clone(), 1, ShardCount::new(1).unwrap())
            .binaries(Some(Binaries::of_major(version).unwrap()));
        let _down = DownOnDrop(&directory);
        let up = dev::up(&options).unwrap();
        let (url, plain) = (
            up.hosts[0].1.clone(),
            up.hosts[0].1.split('?').next().unwrap().to_owned(),
        );
        let config = std::fs::read_to_string(&up.config).unwrap();
        std::fs::write(&up.config, config.replace(&url, &plain)).unwrap();
        let said = |args: &[&str]| {
            let mut pgshard = Command::new(env!("CARGO_BIN_EXE_pgshard"));
            let ran = pgshard
                .args(["dev"])
                .args(args)
                .arg("--dir")
                .arg(&directory)
                .output()
                .unwrap();
            (ran.status.success(), String::from_utf8(ran.stderr).unwrap())
        };
        let ServerState::Running { pid } = dev::status(&directory).unwrap()[0].state else {
            panic!("db1 runs")
        };
        let again = dev::up(&options).unwrap();
        assert_eq!((again.unnamed.len(), again.open.len()), (1, 0));
        let (_, told) = said(&["up", "--hosts", "1"]);
        assert!(
            told.contains(&format!("write url = \"{url}\" below [hosts.db1]")),
            "{told}"
        );

        std::fs::remove_file(directory.join("servers/db1.passfile")).unwrap();
        let (well, told) = said(&["up", "--hosts", "1"]);
        assert!(
            !well && told.contains("db1.passfile") && told.contains("dev down"),
            "{told}"
        );
        assert_eq!(dev::status(&directory).unwrap()[0].url, url);

        let hba = directory.join("servers/db1/data/pg_hba.conf");
        std::fs::write(&hba, "host all all 127.0.0.1/32 trust\n").unwrap();
        signal(pid, Signal::QUIT);
        let is_stopped = || dev::status(&directory).unwrap()[0].state == ServerState::Stopped;
        wait_until("db1 stops", is_stopped);
        let old = dev::up(&options).unwrap();
        assert_eq!(
            (old.hosts[0].1.as_str(), old.open.len(), old.unnamed.len()),
            (plain.as_str(), 1, 0)
        );
        reach(&plain).await.simple_query("SELECT 1").await.unwrap();
        let (well, told) = said(&["up", "--hosts", "1"]);
        assert!(
            well && told.contains("db1 lets in every user of this machine"),
            "{told}"
        );
    }

    /// A cluster for a user's tests requires a password if its options do.
    async fn a_cluster_that_asks(version) {
        let server = ServerOptions::default().access(Access::Password);
        let options = ClusterOptions::new(2, Binaries::of_major(version).unwrap()).server(server);
        let cluster = tokio::task::block_in_place(|| Cluster::start(&options)).unwrap();
        for server in cluster.servers() {
            for role in ["app", "postgres"] {
                let told = stranger(role, server.port(), None).await;
                assert!(told.contains("28P01"), "{told}");
            }
            reach(&server.url())
                .await
                .simple_query("SELECT 1")
                .await
                .unwrap();
            reach(&server.superuser_url())
                .await
                .simple_query("SELECT 1")
                .await
                .unwrap();
        }
        let text = cluster.config_text(ShardCount::new(2).unwrap(), None);
        assert!(text.contains(&cluster.servers()[1].url()), "{text}");
    }
}
