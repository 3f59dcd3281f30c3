//! The hosts' settings: those that put rows at risk, and those in which hosts should not differ.
//! Pure.

use std::collections::BTreeMap;

use super::finding::{Findings, Severity};
use crate::map::HostName;
use crate::pg::THROWAWAY;
use crate::schema::survey::facts::Survey;

/// Settings with which acknowledged rows can be lost, or transactions do not behave as statements
/// expect.
const UNSAFE: [(&str, &str, &str); 6] = [
    (
        "fsync",
        "off",
        "a crash of its machine can lose or damage everything",
    ),
    (
        "full_page_writes",
        "off",
        "a crash of its machine can damage tables",
    ),
    (
        "synchronous_commit",
        "off",
        "a crash can lose the last rows that were acknowledged",
    ),
    (
        "default_transaction_read_only",
        "on",
        "writes fail unless a session allows them",
    ),
    (
        "session_replication_role",
        "replica",
        "foreign keys and triggers do not act",
    ),
    (
        "default_transaction_deferrable",
        "on",
        "serializable readers wait",
    ),
];

/// Settings in which a shard would find a difference after a move.
const SAME: [&str; 5] = [
    "server_encoding",
    "lc_collate",
    "lc_ctype",
    WAL_LEVEL,
    "default_transaction_isolation",
];

/// What matters of it is whether the server can decode its WAL: from version 19 on `replica` does.
const WAL_LEVEL: &str = "wal_level";

pub(in crate::schema) fn check(findings: &mut Findings, survey: &Survey) {
    commits_wait(findings, survey);
    let hosts: BTreeMap<&HostName, _> = survey
        .iter()
        .filter_map(|(name, facts)| Some((name, facts.as_ref().ok()?)))
        .collect();
    let says =
        |name: &HostName, setting: &str| hosts[name].settings.get(setting).map(String::as_str);
    for (setting, bad, why) in UNSAFE {
        let throwaway = |host: &HostName| says(host, "cluster_name") == Some(THROWAWAY);
        for host in hosts
            .keys()
            .filter(|host| says(host, setting) == Some(bad) && !throwaway(host))
        {
            let what = format!("{setting} is {bad}: {why}");
            let remedy = format!("change {setting}, unless the host's rows may be lost");
            findings.add(
                Severity::Warning,
                "unsafe_setting",
                Some(host),
                what,
                remedy,
            );
        }
    }
    for setting in SAME {
        let mut by_value: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for host in hosts.keys() {
            if let Some(value) = says(host, setting) {
                let value = match setting == WAL_LEVEL && hosts[host].server.can_decode {
                    true => "logical",
                    false => value,
                };
                by_value.entry(value).or_default().push(host.as_str());
            }
        }
        if by_value.len() > 1 {
            let said: Vec<String> = by_value
                .iter()
                .map(|(value, hosts)| format!("{value} on {}", hosts.join(", ")))
                .collect();
            let what = format!("hosts differ in {setting}: {}", said.join("; "));
            let remedy = "make them the same, so that a shard is the same everywhere";
            findings.add(Severity::Warning, "settings_differ", None, what, remedy);
        }
    }
    let mut majors: BTreeMap<i32, Vec<&str>> = BTreeMap::new();
    for (host, facts) in &hosts {
        majors
            .entry(facts.server.version / 10_000)
            .or_default()
            .push(host.as_str());
    }
    if majors.len() > 1 {
        let said: Vec<String> = majors
            .iter()
            .map(|(major, hosts)| format!("{major} on {}", hosts.join(", ")))
            .collect();
        let what = format!(
            "hosts have different versions of PostgreSQL: {}",
            said.join("; ")
        );
        let remedy = "nothing, while servers are upgraded one after the other";
        findings.add(Severity::Notice, "versions_differ", None, what, remedy);
    }
}

/// Hosts on which no commit ends.
fn commits_wait(findings: &mut Findings, survey: &Survey) {
    for (host, facts) in survey {
        let Ok(facts) = facts else { continue };
        if !facts.server.commits_wait {
            continue;
        }
        let names = facts.settings.get("synchronous_standby_names");
        let what = format!(
            "no commit ends there: each waits for standbys that synchronous_standby_names ({}) \
                asks for, and too few of them stream",
            names.map_or("hidden", String::as_str)
        );
        findings.add(
            Severity::Error,
            "commits_wait",
            Some(host),
            what,
            START_A_STANDBY,
        );
    }
}

/// What to do where commits wait for a standby.
pub(crate) const START_A_STANDBY: &str =
    "start a standby that synchronous_standby_names waits for, or correct that setting";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::tables::survey_of;

    #[test]
    fn settings_that_matter_are_compared() {
        let mut survey = survey_of(&[("db1", ""), ("db2", ""), ("db3", "down")]);
        // Version 19 decodes its WAL at either level.
        for (name, encoding, fsync, wal_level, version) in [
            ("db1", "UTF8", "on", "logical", 150_004),
            ("db2", "LATIN1", "off", "replica", 190_001),
        ] {
            let facts = survey.get_mut(name).unwrap().as_mut().unwrap();
            let pairs = [
                ("server_encoding", encoding),
                ("fsync", fsync),
                ("wal_level", wal_level),
            ];
            facts.settings = pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
            facts.server.version = version;
        }
        let mut findings = Findings::default();
        check(&mut findings, &survey);
        let said: Vec<String> = findings
            .sorted()
            .iter()
            .map(|f| format!("{} {}", f.code, f.message))
            .collect();
        assert_eq!(
            said,
            [
                "settings_differ hosts differ in server_encoding: LATIN1 on db2; UTF8 on db1",
                "unsafe_setting fsync is off: a crash of its machine can lose or damage everything",
                "versions_differ hosts have different versions of PostgreSQL: 15 on db1; 19 on db2",
            ]
        );
    }
}
