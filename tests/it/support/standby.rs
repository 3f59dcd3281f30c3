//! A host as the standby of another.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use pgshard::dev::{Binaries, StopMode};

use super::TestCluster;

/// How long a switchover waits for the slots of the primary to be on its standby.
const SYNCHRONIZED_WITHIN: Duration = Duration::from_secs(20);

impl TestCluster {
    /// Makes one host a streaming standby of another, by `pg_basebackup`: on its own port, in its
    /// own directory, and ended with the cluster as before. What it contained is gone.
    pub(crate) fn make_standby(&self, version: u32, standby: usize, primary: usize) {
        let (standby, primary) = (self.server(standby), self.server(primary));
        standby.stop(StopMode::Fast).expect("the server stops");
        let data = standby.data_directory();
        let conf =
            fs::read(data.join("pgshard.conf")).expect("the harness wrote its settings there");
        let owner = fs::metadata(&data).expect("the data directory is there");
        fs::remove_dir_all(&data).expect("the server has stopped");

        let binaries = Binaries::of_major(version).expect("the server of this version ran");
        let its_number = self
            .servers()
            .iter()
            .position(|server| server.port() == primary.port())
            .expect("it is ours");
        self.pg_basebackup(&binaries, its_number, &data, &["-R"]);
        fs::write(data.join("pgshard.conf"), conf).expect("the directory is ours to write to");
        give(&data, owner.uid(), owner.gid());
        standby.start().expect("the standby starts");
    }

    /// Copies a server's files as `pg_basebackup` does, for the owner of its own.
    pub(crate) fn pg_basebackup(&self, binaries: &Binaries, host: usize, to: &Path, more: &[&str]) {
        let server = self.server(host);
        let mut backup = Command::new(binaries.program("pg_basebackup"));
        backup.args([
            "-h",
            "127.0.0.1",
            "-U",
            "postgres",
            "-X",
            "stream",
            "-c",
            "fast",
            "--no-sync",
            "-p",
        ]);
        let output = backup
            .arg(server.port().to_string())
            .arg("-D")
            .arg(to)
            .args(more)
            .output();
        let output = output.unwrap_or_else(|error| {
            panic!("{}: {error}", binaries.program("pg_basebackup").display())
        });
        assert!(
            output.status.success(),
            "pg_basebackup: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        if server.data_directory().exists() {
            give_as(to, &server.data_directory());
        }
    }

    /// Waits until a standby has replayed what its primary has flushed by now.
    pub(crate) async fn caught_up(&self, standby: usize, primary: usize) {
        let flushed = "SELECT pg_current_wal_flush_lsn()::text";
        let there = super::lines(&self.superuser(primary).await, flushed).await;
        let client = self.superuser(standby).await;
        let caught_up = format!(
            "SELECT (pg_last_wal_replay_lsn() >= '{}')::text",
            there.trim()
        );
        while super::lines(&client, &caught_up).await.trim() != "true" {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Cuts a standby off from its primary.
    pub(crate) async fn cut_off(&self, standby: usize, primary: usize) {
        // It has all that was acknowledged before.
        self.caught_up(standby, primary).await;
        let client = self.superuser(standby).await;
        client
            .batch_execute("ALTER SYSTEM SET primary_conninfo = ''")
            .await
            .expect("it is the superuser");
        client
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .expect("it is the superuser");
        while !super::lines(&client, "SELECT pid::text FROM pg_stat_wal_receiver")
            .await
            .is_empty()
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Has a standby synchronize the slots of its primary that were made with `failover`, from
    /// PostgreSQL 17 on.
    pub(crate) async fn synchronize_slots(&self, standby: usize, primary: usize) {
        let primary = self.superuser(primary).await;
        let slot = "SELECT FROM pg_create_physical_replication_slot('standby')";
        primary
            .execute(slot, &[])
            .await
            .expect("it is the superuser");
        let client = self.superuser(standby).await;
        let conninfo = super::lines(&client, "SELECT current_setting('primary_conninfo')").await;
        let conninfo = format!("{} dbname=app", conninfo.trim()).replace('\'', "''");
        for set in [
            format!("primary_conninfo = '{conninfo}'"),
            "primary_slot_name = 'standby'".to_owned(),
            "hot_standby_feedback = on".to_owned(),
            "sync_replication_slots = on".to_owned(),
        ] {
            client
                .batch_execute(&format!("ALTER SYSTEM SET {set}"))
                .await
                .expect("it is the superuser");
        }
        client
            .batch_execute("SELECT pg_reload_conf()")
            .await
            .expect("it is the superuser");
        let used = "SELECT active_pid::text FROM pg_replication_slots WHERE slot_name = 'standby' \
            AND active";
        while super::lines(&primary, used).await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Stops a primary cleanly, as a planned switchover does, and promotes its standby: it has all
    /// that the primary wrote, and its logical slots if it synchronizes them. One that has not
    /// advanced since it was made cannot be synchronized: it is not waited for longer.
    pub(crate) async fn switch_over(&self, standby: usize, primary: usize) {
        let (former, later) = (self.superuser(primary).await, self.superuser(standby).await);
        let slots = |condition: &str| {
            format!(
                "SELECT coalesce(string_agg(slot_name, ' ' ORDER BY slot_name), '')::text
                FROM pg_replication_slots s WHERE slot_type = 'logical' AND ({condition})"
            )
        };
        let made = slots("(to_jsonb(s) ->> 'failover')::boolean");
        let has = slots("(to_jsonb(s) ->> 'synced')::boolean AND NOT temporary");
        let made = super::lines(&former, &made).await;
        let synchronized = async {
            while super::lines(&later, &has).await != made {
                // A slot advances by the snapshots that the server logs every 15 seconds.
                let log = "DO $$ BEGIN IF to_regproc('pg_log_standby_snapshot') IS NOT NULL THEN
                    EXECUTE 'SELECT pg_log_standby_snapshot()'; END IF; END $$";
                former
                    .batch_execute(log)
                    .await
                    .expect("it is the superuser");
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        let _ = tokio::time::timeout(SYNCHRONIZED_WITHIN, synchronized).await;
        // A server that stops waits for the readers of its slots, and one may be paused.
        let end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots
            WHERE slot_type = 'logical' AND active";
        former
            .batch_execute(end)
            .await
            .expect("it is the superuser");
        drop((former, later));
        tokio::task::block_in_place(|| self.server(primary).stop(StopMode::Fast))
            .expect("the server stops");
        self.promote(standby).await;
    }

    /// Makes a standby a primary.
    pub(crate) async fn promote(&self, standby: usize) {
        let promoted = self
            .superuser(standby)
            .await
            .query_one("SELECT pg_promote(true, 60)", &[])
            .await;
        assert!(
            promoted.expect("it is a standby").get::<_, bool>(0),
            "it is promoted within a minute"
        );
    }
}

/// Gives files to the owner of others.
pub(super) fn give_as(path: &Path, other: &Path) {
    let owner = fs::metadata(other).expect("it is there");
    give(path, owner.uid(), owner.gid());
}

/// PostgreSQL runs as the owner of its files, who may be another user than this process.
fn give(path: &Path, uid: u32, gid: u32) {
    chown(path, Some(uid), Some(gid)).expect("a file of the backup can be given away");
    if path.is_dir() {
        for entry in fs::read_dir(path).expect("the backup can be read") {
            give(&entry.expect("the backup can be read").path(), uid, gid);
        }
    }
}
