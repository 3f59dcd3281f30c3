//! Backs a host up and restores it.

use std::path::Path;
use std::process::Command;

use pgshard::dev::{Binaries, StopMode};

use super::TestCluster;

fn copy(from: &Path, to: &Path) {
    assert!(
        Command::new("cp")
            .arg("-a")
            .arg(from)
            .arg(to)
            .status()
            .unwrap()
            .success()
    );
}

impl TestCluster {
    /// Saves the server's files as they are now, like a base backup. The server is stopped for
    /// that.
    pub(crate) fn back_up(&self, host: usize) {
        let server = self.server(host);
        server.stop(StopMode::Fast).unwrap();
        let data = server.data_directory();
        copy(&data, &data.with_extension("backup"));
        server.start().unwrap();
    }

    /// Takes a base backup of the server while it runs.
    pub(crate) fn base_backup(&self, version: u32, host: usize) {
        let server = self.server(host);
        let data = server.data_directory();
        self.pg_basebackup(
            &Binaries::of_major(version).unwrap(),
            host,
            &data.with_extension("backup"),
            &[],
        );
        let (conf, backup) = (data.join("pgshard.conf"), data.with_extension("backup"));
        copy(&conf, &backup.join("pgshard.conf"));
    }

    /// Restores the server to the state of its backup, and recovers it to the backup's end. That
    /// starts a new timeline.
    pub(crate) fn restore_to_a_new_timeline(&self, host: usize) {
        let backup = self.server(host).data_directory().with_extension("backup");
        let conf = backup.join("pgshard.conf");
        let mut text = std::fs::read_to_string(&conf).unwrap();
        text += "\nrestore_command = 'false'\nrecovery_target = \
            'immediate'\nrecovery_target_action = 'promote'\n";
        self.recover(host, &text);
    }

    /// Restores the backup with these settings, and waits until its recovery has ended.
    fn recover(&self, host: usize, settings: &str) {
        let backup = self.server(host).data_directory().with_extension("backup");
        std::fs::write(backup.join("pgshard.conf"), settings).unwrap();
        let signal = backup.join("recovery.signal");
        std::fs::write(&signal, "").unwrap();
        super::standby::give_as(&signal, &backup);
        self.restore(host);
        // It accepts reads before it accepts writes.
        let url = self.server(host).superuser_url();
        let mut tries = 0;
        while !takes_writes(&url) {
            tries += 1;
            assert!(tries < 600, "the recovery ends");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
    }

    /// Restores the server from its base backup, and recovers it to this position of its log, which
    /// is kept as an archive would keep it.
    pub(crate) fn restore_to(&self, host: usize, lsn: &str) {
        let data = self.server(host).data_directory();
        let (archive, backup) = (
            data.with_extension("archive"),
            data.with_extension("backup"),
        );
        copy(&data.join("pg_wal"), &archive);
        let conf = backup.join("pgshard.conf");
        let mut text = std::fs::read_to_string(&conf).unwrap();
        text += &format!(
            "\nrestore_command = 'cp \"{}/%f\" \"%p\"'\nrecovery_target_lsn = \
                '{lsn}'\nrecovery_target_action = 'promote'\n",
            archive.display()
        );
        self.recover(host, &text);
    }

    /// Restores the server to the state of its backup.
    pub(crate) fn restore(&self, host: usize) {
        let server = self.server(host);
        server.stop(StopMode::Immediate).unwrap();
        let data = server.data_directory();
        std::fs::remove_dir_all(&data).unwrap();
        copy(&data.with_extension("backup"), &data);
        server.start().unwrap();
    }
}

/// Whether a server has ended its recovery.
fn takes_writes(url: &str) -> bool {
    let runtime = tokio::runtime::Handle::current();
    runtime.block_on(async {
        let Ok((client, connection)) = tokio_postgres::connect(url, tokio_postgres::NoTls).await
        else {
            return false;
        };
        tokio::spawn(connection);
        let asked = client
            .query_one("SELECT NOT pg_is_in_recovery()", &[])
            .await;
        asked.is_ok_and(|row| row.get(0))
    })
}
