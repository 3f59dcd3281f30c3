//! What is open to other roles and users: roles with more rights than they need, or fewer; locks of
//! ours that a foreign role holds; connections that others can read; readable files with passwords
//! in them.
//!
//! On throwaway servers, superusers are no finding: there are no rows to protect.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::finding::{Finding, Findings, Severity};
use crate::map::HostName;
use crate::pg::{ConnectOptions, Password, SslMode, THROWAWAY, quote_ident};
use crate::schema::control::lock::Foreign;
use crate::schema::control::rights::shell_word;
use crate::schema::survey::facts::{HostFacts, ShardRow, Survey};

/// Roles with rights that are too wide.
pub(in crate::schema) fn check(findings: &mut Findings, survey: &Survey) {
    let kept = |facts: &HostFacts| {
        facts
            .settings
            .get("cluster_name")
            .is_none_or(|name| name != THROWAWAY)
    };
    for (host, facts) in survey
        .iter()
        .filter_map(|(host, facts)| Some((host, facts.as_ref().ok()?)))
    {
        let server = &facts.server;
        if server.is_superuser && kept(facts) {
            let role = &server.role;
            let what = format!(
                "the role {role} is a superuser, so that a shard's functions may do anything"
            );
            let remedy = "let a role that is no superuser own the control schema and the shards: \
                CREATE ROLE …, then \
                          REASSIGN OWNED";
            findings.add(Severity::Warning, "superuser", Some(host), what, remedy);
        }
        if server.public_may_create {
            let what = "everybody may create objects in the schema public, where sessions of the \
                application find them unless their search_path leaves it out";
            let remedy = "REVOKE CREATE ON SCHEMA public FROM PUBLIC";
            findings.add(Severity::Warning, "public_create", Some(host), what, remedy);
        }
    }
}

/// What monitors lack on a host.
pub(in crate::schema) fn watchers(findings: &mut Findings, survey: &Survey) {
    for (host, facts) in survey
        .iter()
        .filter_map(|(host, facts)| Some((host, facts.as_ref().ok()?)))
    {
        let Some(control) = &facts.control else {
            continue;
        };
        for role in control.monitors.lacking.union(&control.monitors.blind) {
            let what =
                format!("the role {role} watches here, and may not see all that there is to see");
            let prints = format!(
                "what `pgshard rights --for monitor --role {}` prints",
                shell_word(role)
            );
            let remedy = match control.monitors.blind.contains(role) {
                true => format!("run {prints}, the first part by an administrator"),
                false => format!("run `pgshard bootstrap`, or {prints}"),
            };
            findings.add(
                Severity::Warning,
                "rights_missing",
                Some(host),
                what,
                remedy,
            );
        }
        let clocks = facts.clock.as_ref().map(|clock| &clock.ids_ahead_ms);
        let is_owner = |row: &ShardRow| row.state.is_owner();
        let serves = control.whole.is_none() && control.shards.values().any(is_owner);
        if let (Some(role), true) = (
            &facts.server.watcher,
            serves && clocks.is_some_and(BTreeMap::is_empty),
        ) {
            let what = format!(
                "the role {role} only watches, and may not read the clocks of IDs, which are in \
                    the shards: whether IDs are ahead of the host's clock is not known"
            );
            let remedy = "run `pgshard check` as the owner now and then";
            findings.add(Severity::Notice, "ids_unread", Some(host), what, remedy);
        }
    }
}

/// What the config's role lacks on a host, once it has a control schema.
pub(in crate::schema) fn lacking(findings: &mut Findings, survey: &Survey) {
    for (host, facts) in survey
        .iter()
        .filter_map(|(host, facts)| Some((host, facts.as_ref().ok()?)))
    {
        let Some(control) = &facts.control else {
            continue;
        };
        let server = &facts.server;
        let advise = |purpose: &str| {
            format!(
                "what `pgshard rights --for {purpose} --role {}` prints, by an administrator",
                shell_word(&server.role)
            )
        };
        if !server.may_create {
            let what = format!(
                "the role {} may not create schemas: no shard can be moved here, or from here",
                server.role
            );
            findings.add(
                Severity::Error,
                "rights_missing",
                Some(host),
                what,
                advise("owner"),
            );
        }
        if !server.may_replicate && server.can_decode {
            let what = format!(
                "the role {} may not make replication slots: shards are closed while they are \
                    copied from here, and cannot be taken back without a copy",
                server.role
            );
            findings.add(
                Severity::Notice,
                "rights_missing",
                Some(host),
                what,
                advise("mover"),
            );
        }
        for Foreign { pid, role, what } in &control.foreign_locks {
            let what = format!(
                "process {pid} of the role {role}, which has no rights here, holds the lock of \
                    {what}"
            );
            let remedy = format!(
                "as an administrator: SELECT pg_terminate_backend({pid}), and keep such roles out: \
                    REVOKE CONNECT ON \
                 DATABASE {} FROM PUBLIC",
                quote_ident(&server.database)
            );
            findings.add(Severity::Error, "foreign_lock", Some(host), what, remedy);
        }
    }
}

/// Hosts that are reached over a network without a proof of their identity; files with passwords or
/// keys that other users of this machine can read; and a config or migrations that they can write.
/// `config` is the file that names the hosts, `migrations` the folder of the application's
/// migrations.
///
/// Queries no server. A file that cannot be read is skipped: the command that needs it reports
/// that.
pub fn exposed<'a>(
    hosts: impl IntoIterator<Item = (&'a HostName, &'a ConnectOptions)>,
    config: &Path,
    migrations: Option<&Path>,
) -> Vec<Finding> {
    let mut findings = Findings::default();
    writable(&mut findings, config, migrations);
    let mut said = false;
    for (host, connect) in hosts {
        if !connect.addresses().iter().all(|address| is_local(address)) {
            transport(&mut findings, host, connect.tls().mode);
        }
        let secret = match connect.password() {
            Password::Given(_) if !std::mem::replace(&mut said, true) => Some((None, config)),
            Password::File(file) => Some((Some(host), file.as_path())),
            _ => None,
        };
        let key = connect.tls().key.as_deref().map(|key| (Some(host), key));
        for (host, file) in secret.into_iter().chain(key) {
            if is_open(file) {
                let file = file.display();
                let what = format!(
                    "{file} holds a password or a key, and other users of this machine can read it"
                );
                findings.add(
                    Severity::Warning,
                    "open_file",
                    host,
                    what,
                    format!("chmod 600 {file}"),
                );
            }
        }
    }
    findings.sorted()
}

/// Files that every user of this machine can write, although they determine what runs as us, or
/// what gets our passwords.
fn writable(findings: &mut Findings, config: &Path, migrations: Option<&Path>) {
    let entries = migrations
        .and_then(|folder| std::fs::read_dir(folder).ok())
        .into_iter()
        .flatten()
        .flatten();
    let files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    let all = [config]
        .into_iter()
        .chain(migrations)
        .chain(files.iter().map(PathBuf::as_path));
    for path in all.filter(|path| mode(path) & 0o002 != 0) {
        let path = path.display();
        let what = format!(
            "every user of this machine can write to {path}: it says what runs on the hosts"
        );
        findings.add(
            Severity::Warning,
            "open_file",
            None,
            what,
            format!("chmod o-w {path}"),
        );
    }
}

fn transport(findings: &mut Findings, host: &HostName, mode: SslMode) {
    let remedy = "give the server a certificate for its name, and its url sslmode=verify-full";
    match mode {
        SslMode::VerifyFull => {}
        SslMode::Disable | SslMode::Prefer => {
            let what = "rows and statements may cross the network unencrypted, and any \
                machine on the way can pose as the server";
            findings.add(Severity::Warning, "weak_tls", Some(host), what, remedy);
        }
        SslMode::Require | SslMode::VerifyCa => {
            let what = "the connection is encrypted, but the server need not prove its identity";
            findings.add(Severity::Notice, "weak_tls", Some(host), what, remedy);
        }
    }
}

/// Whether an address, in the form of [`ConnectOptions::addresses`], stays on this machine.
fn is_local(address: &str) -> bool {
    let name = address.rsplit_once(':').map_or(address, |(name, _)| name);
    name.starts_with('/')
        || name.starts_with('@')
        || name == "localhost"
        || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// Whether others than the file's owner can read it. A group may read what root has given to it, as
/// Kubernetes mounts secrets.
fn is_open(file: &Path) -> bool {
    let is_of_root = std::fs::metadata(file).is_ok_and(|facts| facts.uid() == 0);
    let forbidden = if is_of_root { 0o037 } else { 0o077 };
    mode(file) & forbidden != 0
}

/// The rights on what a path leads to; none if that cannot be read.
fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).map_or(0, |facts| facts.permissions().mode())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tables::survey_of;

    fn said(urls: &[&str], config: &Path) -> Vec<String> {
        let hosts: Vec<(HostName, ConnectOptions)> = urls
            .iter()
            .map(|url| {
                (
                    HostName::new("db1").unwrap(),
                    ConnectOptions::parse(url).unwrap(),
                )
            })
            .collect();
        let findings = exposed(
            hosts.iter().map(|(host, connect)| (host, connect)),
            config,
            None,
        );
        findings
            .iter()
            .map(|one| format!("{} {}", one.severity.as_str(), one.code))
            .collect()
    }

    #[test]
    fn rights_that_are_too_wide() {
        let mut survey = survey_of(&[("db1", ""), ("db2", ""), ("db3", "down")]);
        let said = |survey: &Survey| {
            let mut findings = Findings::default();
            check(&mut findings, survey);
            findings
                .sorted()
                .iter()
                .map(|one| one.code)
                .collect::<Vec<_>>()
        };
        assert_eq!(said(&survey), [""; 0]);
        let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
        (facts.server.is_superuser, facts.server.public_may_create) = (true, true);
        assert_eq!(said(&survey), ["public_create", "superuser"]);
        let facts = survey.get_mut("db1").unwrap().as_mut().unwrap();
        facts
            .settings
            .insert("cluster_name".to_owned(), THROWAWAY.to_owned());
        assert_eq!(said(&survey), ["public_create"]);
    }

    #[test]
    fn connections_that_leave_the_machine() {
        let config = Path::new("/nonexistent");
        for local in ["127.0.0.7", "localhost", "/run/postgresql", "::1"] {
            let url = format!("host={local} user=a dbname=d");
            assert_eq!(said(&[&url], config), [""; 0], "{local}");
        }
        for (mode, expected) in [
            ("disable", "warning weak_tls"),
            ("prefer", "warning weak_tls"),
            ("require", "notice weak_tls"),
            ("verify-full&sslrootcert=system", ""),
        ] {
            let expected: Vec<&str> = [expected]
                .into_iter()
                .filter(|one| !one.is_empty())
                .collect();
            assert_eq!(
                said(
                    &[&format!("postgres://a@10.0.0.1/d?sslmode={mode}")],
                    config
                ),
                expected,
                "{mode}"
            );
        }
        // One of several addresses is enough.
        assert_eq!(
            said(&["postgres://a@127.0.0.1,db.example/d"], config),
            ["warning weak_tls"]
        );
    }

    #[test]
    fn files_that_others_can_read() {
        let folder = tempfile::tempdir().unwrap();
        let (config, password) = (
            folder.path().join("pgshard.toml"),
            folder.path().join("secret"),
        );
        for file in [&config, &password] {
            std::fs::write(file, "").unwrap();
        }
        let given = "postgres://a:hunter2@127.0.0.1/d";
        let is_of_root = std::fs::metadata(&config).unwrap().uid() == 0;
        let of_group: &[&str] = if is_of_root {
            &[]
        } else {
            &["warning open_file"]
        };
        for (mode, expected) in [
            (0o644, &["warning open_file"][..]),
            (0o640, of_group),
            (0o600, &[]),
        ] {
            std::fs::set_permissions(&config, std::fs::Permissions::from_mode(mode)).unwrap();
            // Reported once, however many hosts are in it.
            assert_eq!(said(&[given, given], &config), expected);
            assert_eq!(said(&["postgres://a@127.0.0.1/d"], &config), [""; 0]);
            std::fs::set_permissions(&password, std::fs::Permissions::from_mode(mode)).unwrap();
            let connect = ConnectOptions::parse("postgres://a@127.0.0.1/d").unwrap();
            let host = (
                HostName::new("db1").unwrap(),
                connect.with_password(Password::File(password.clone())),
            );
            let findings = exposed([(&host.0, &host.1)], Path::new("/nonexistent"), None);
            assert_eq!(findings.len(), expected.len());
        }
    }

    #[test]
    fn files_that_others_can_write() {
        let folder = tempfile::tempdir().unwrap();
        let (config, migrations) = (
            folder.path().join("pgshard.toml"),
            folder.path().join("migrations"),
        );
        let file = migrations.join("0001_a.sql");
        std::fs::create_dir(&migrations).unwrap();
        for file in [&config, &file] {
            std::fs::write(file, "").unwrap();
        }
        let chmod = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
        };
        let found = || {
            let findings = exposed([], &config, Some(&migrations));
            findings
                .iter()
                .map(|one| format!("{} {}", one.code, one.remedy))
                .collect::<Vec<_>>()
        };
        for path in [&config, &file, &migrations] {
            assert_eq!(found(), [""; 0]);
            let (closed, open) = if path.is_dir() {
                (0o755, 0o777)
            } else {
                (0o644, 0o646)
            };
            chmod(path, open);
            assert_eq!(found(), [format!("open_file chmod o-w {}", path.display())]);
            chmod(path, closed);
        }
    }
}
