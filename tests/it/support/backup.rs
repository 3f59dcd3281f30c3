//! A host as it was before.

use std::path::Path;
use std::process::Command;

use pgshard::dev::StopMode;

use super::TestCluster;

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().unwrap().success());
}

impl TestCluster {
    /// The server's files as they are now, as a base backup has them. It is stopped for that.
    pub(crate) fn back_up(&self, host: usize) {
        let server = self.server(host);
        server.stop(StopMode::Fast).unwrap();
        let data = server.data_directory();
        copy(&data, &data.with_extension("backup"));
        server.start().unwrap();
    }

    /// The server as it was when it was backed up.
    pub(crate) fn restore(&self, host: usize) {
        let server = self.server(host);
        server.stop(StopMode::Immediate).unwrap();
        let data = server.data_directory();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&data.with_extension("backup"), &data);
        server.start().unwrap();
    }
}
