//! The user that servers run as puts links and pipes where root works: `pgshard dev`, running as
//! root, must not write, read or give away anything behind them.
//!
//! Only root gives folders away. If these tests run as another user, that is the servers' user
//! itself, and a link leads to nothing that it could not write anyway: then they print that, and
//! pass.

use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use pgshard::ShardCount;
use pgshard::dev::{self, ServerState, UpOptions};
use rustix::process::Signal;
use tempfile::TempDir;

use super::{DownOnDrop, open_to_all, signal, wait_until};
use crate::support::TestCluster;

const AS_IT_WAS: &str = "a file of root's\n";

/// Whether this process gives folders away.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("not root: the servers' user is ourselves, and nothing is given away");
    }
    root
}

fn folder() -> TempDir {
    let folder = tempfile::Builder::new()
        .prefix("pgshard-links-")
        .tempdir_in("/var/tmp")
        .unwrap();
    open_to_all(folder.path());
    folder
}

/// A folder that belongs to root, with a file.
fn victim(folder: &TempDir) -> PathBuf {
    let victim = folder.path().join("victim");
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("file"), AS_IT_WAS).unwrap();
    victim
}

fn assert_as_it_was(victim: &Path) {
    let file = victim.join("file");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), AS_IT_WAS);
    for path in [victim, &file] {
        let facts = std::fs::symlink_metadata(path).unwrap();
        assert_eq!(
            (facts.uid(), facts.mode() & 0o022),
            (0, 0),
            "{}",
            path.display()
        );
    }
    assert_eq!(std::fs::read_dir(victim).unwrap().count(), 1);
}

/// Runs a script in a folder as the user who owns it.
fn as_owner(folder: &Path, script: &str) -> bool {
    let owner = std::fs::metadata(folder).unwrap();
    assert_ne!(owner.uid(), 0, "{} was given away", folder.display());
    let mut command = Command::new("/bin/sh");
    command
        .args(["-ec", script])
        .uid(owner.uid())
        .gid(owner.gid())
        .current_dir(folder);
    command.stderr(Stdio::null()).status().unwrap().success()
}

fn dev_up(folder: &TempDir, directory: &Path) -> Output {
    let mut pgshard = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    pgshard
        .args(["dev", "up", "--hosts", "1", "--shards", "1", "--dir"])
        .arg(directory);
    pgshard
        .env("TMPDIR", folder.path().join("t"))
        .output()
        .unwrap()
}

/// The templates of data directories stay for weeks, and every server's user can write to them.
#[test]
fn a_link_in_a_template() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let victim = victim(&folder);
    let temporary = folder.path().join("t");
    std::fs::create_dir(&temporary).unwrap();
    open_to_all(&temporary);
    let (first, second) = (folder.path().join("first"), folder.path().join("second"));
    let _down = (DownOnDrop(&first), DownOnDrop(&second));
    let up = dev_up(&folder, &first);
    assert!(
        up.status.success(),
        "{}",
        String::from_utf8_lossy(&up.stderr)
    );

    let cache = temporary.join("pgshard-cache-0");
    let entries = std::fs::read_dir(cache)
        .unwrap()
        .map(|entry| entry.unwrap().path().join("data"));
    let template = entries.into_iter().find(|data| data.is_dir()).unwrap();
    // The number of files must stay the same, or the template is made again.
    let link = format!(
        "rm postgresql.auto.conf && ln -s {}/file pgshard.conf",
        victim.display()
    );
    assert!(as_owner(&template, &link));
    let up = dev_up(&folder, &second);
    let said = String::from_utf8_lossy(&up.stderr).into_owned();
    assert_as_it_was(&victim);
    assert!(
        !up.status.success() && said.contains("pgshard.conf"),
        "{said}"
    );
}

/// The same for what a server's user does to its folder while it runs, and once it has ended.
#[test]
fn links_and_pipes_in_a_servers_folder() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let victim = victim(&folder);
    let directory = folder.path().join("dev");
    let options = UpOptions::new(directory.clone(), 1, ShardCount::new(1).unwrap());
    let _down = DownOnDrop(&directory);
    dev::up(&options).unwrap();
    let server = directory.join("servers/db1");
    assert_eq!(std::fs::metadata(&server).unwrap().mode() & 0o777, 0o700);
    let state = || dev::status(&directory).unwrap()[0].state;
    let ServerState::Running { pid } = state() else {
        panic!("db1 does not run")
    };

    // A reader of the pipe would wait for ever.
    assert!(as_owner(
        &server,
        "mv data/postmaster.pid data/aside && mkfifo data/postmaster.pid"
    ));
    assert_eq!(state(), ServerState::Stopped);
    assert!(as_owner(&server, "mv data/aside data/postmaster.pid"));
    signal(pid, Signal::QUIT);
    wait_until("db1 stops", || state() == ServerState::Stopped);

    assert!(as_owner(
        &server,
        &format!("mv log aside && ln -s {}/file log", victim.display())
    ));
    let failed = dev::up(&options).unwrap_err().to_string();
    assert!(!failed.contains(AS_IT_WAS.trim()), "{failed}");
    assert_as_it_was(&victim);

    // Another folder takes the place of the data: nothing is read there, and nothing removed.
    assert!(as_owner(
        &server,
        &format!("mv data data.aside && ln -s {} data", victim.display())
    ));
    for outcome in [
        dev::up(&options).map(drop),
        dev::status(&directory).map(drop),
    ] {
        let source = std::error::Error::source(&outcome.unwrap_err())
            .unwrap()
            .to_string();
        assert!(source.contains("symbolic link"), "{source}");
    }
    let mut pgshard = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    assert!(
        pgshard
            .args(["dev", "down", "--yes", "--dir"])
            .arg(&directory)
            .status()
            .unwrap()
            .success()
    );
    assert!(!server.exists());
    assert_as_it_was(&victim);
}

/// The folder around a cluster's servers stays ours: another owner could put a link in its place.
#[test]
fn the_folder_of_a_cluster() {
    if !is_root() {
        return;
    }
    let cluster = TestCluster::start(15, 1);
    let server = cluster.server(0).directory();
    let around = server.parent().unwrap();
    assert_eq!(std::fs::metadata(around).unwrap().uid(), 0);
    assert!(
        as_owner(server, "touch x && rm x"),
        "the server's own folder is his"
    );
    for script in [
        "mv \"$PWD\" \"$PWD-aside\"",
        "mv \"${PWD%/*}\" \"${PWD%/*}-aside\"",
        "touch ../x",
    ] {
        assert!(!as_owner(server, script), "{script}");
    }
}

/// A folder of servers that another user has made, and a config that is a link.
#[test]
fn somebody_elses_folder_and_a_config_that_is_a_link() {
    if !is_root() {
        return;
    }
    let folder = folder();
    let directory = folder.path().join("theirs");
    let servers = directory.join("servers");
    std::fs::create_dir_all(&servers).unwrap();
    std::os::unix::fs::chown(&servers, Some(65_534), Some(65_534)).unwrap();
    let options =
        |directory: &Path| UpOptions::new(directory.to_owned(), 1, ShardCount::new(1).unwrap());
    for outcome in [
        dev::up(&options(&directory)).map(drop),
        dev::status(&directory).map(drop),
        dev::down(&directory).map(drop),
    ] {
        assert!(
            matches!(outcome, Err(dev::Error::Foreign { .. })),
            "{outcome:?}"
        );
    }
    assert_eq!(std::fs::read_dir(&servers).unwrap().count(), 0);

    let (directory, made) = (folder.path().join("ours"), folder.path().join("made"));
    std::fs::create_dir(&directory).unwrap();
    symlink(&made, directory.join("pgshard.toml")).unwrap();
    let _down = DownOnDrop(&directory);
    assert!(dev::up(&options(&directory)).is_err());
    assert!(!made.exists());
}
