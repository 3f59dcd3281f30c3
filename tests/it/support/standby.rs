//! A host as the standby of another.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use pgshard::dev::{Binaries, StopMode};

use super::TestCluster;

impl TestCluster {
    /// Makes one host a streaming standby of another, by `pg_basebackup`: on its own port, in its own directory, ended
    /// with the cluster as before. What it held is gone.
    pub(crate) fn make_standby(&self, version: u32, standby: usize, primary: usize) {
        let (standby, primary) = (self.server(standby), self.server(primary));
        standby.stop(StopMode::Fast).expect("the server stops");
        let data = standby.data_directory();
        let conf = fs::read(data.join("pgshard.conf")).expect("the harness wrote its settings there");
        let owner = fs::metadata(&data).expect("the data directory is there");
        fs::remove_dir_all(&data).expect("the server has stopped");

        let binaries = Binaries::of_major(version).expect("the server of this version ran");
        let mut backup = Command::new(binaries.program("pg_basebackup"));
        backup.args(["-h", "127.0.0.1", "-U", "postgres", "-X", "stream", "-c", "fast", "-R", "--no-sync", "-p"]);
        let output = backup.arg(primary.port().to_string()).arg("-D").arg(&data).output();
        let output = output.unwrap_or_else(|error| panic!("{}: {error}", binaries.program("pg_basebackup").display()));
        assert!(output.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&output.stderr));
        fs::write(data.join("pgshard.conf"), conf).expect("the directory is ours to write to");
        give(&data, owner.uid(), owner.gid());
        standby.start().expect("the standby starts");
    }
}

/// PostgreSQL runs as the owner of its files, and we may be somebody else.
fn give(path: &Path, uid: u32, gid: u32) {
    chown(path, Some(uid), Some(gid)).expect("a file of the backup can be given away");
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("the backup can be read") {
            give(&entry.expect("the backup can be read").path(), uid, gid);
        }
    }
}
