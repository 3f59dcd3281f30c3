//! The sources of IDs that do not come from a shard: whether the hosts' records of tickets agree,
//! and the leases of worker numbers. A host that did not answer is left out: that is a finding
//! already.

use std::collections::BTreeMap;

use futures_util::future::{BoxFuture, join_all};
use jiff::Timestamp;

use super::finding::{Finding, Findings, Severity};
use crate::idgen::WorkerLeases;
use crate::idgen::lease::{self, LeaseStatus, WORKERS};
use crate::idgen::tickets::{self, NameStatus, TicketHost, TicketName};
use crate::map::HostName;
use crate::pg::ConnectOptions;
use crate::pg::cause::chain;

/// If this many of [`WORKERS`] numbers are held, a finding warns that they will soon be used up.
const HELD_MANY: usize = WORKERS as usize * 9 / 10;

/// If a host has given this share of its tickets below the maximum, in percent, a finding warns
/// that they will soon be used up.
const GIVEN_MANY: u64 = 80;

/// A ceiling is one lease ahead of the clock, and leases are seconds. One more than a day ahead
/// comes from a clock that was wrong.
const CEILING_AHEAD_MS: u64 = 86_400_000;

/// The state of tickets on the hosts.
type Tickets = BTreeMap<HostName, Vec<NameStatus>>;

/// The state of leases on the hosts, without hosts that have none.
type Leases = BTreeMap<HostName, Result<Vec<LeaseStatus>, lease::Error>>;

/// Reads all hosts, and reports every difference.
///
/// # Cancel safety
/// Only reads.
pub fn sources(
    hosts: impl IntoIterator<Item = (HostName, ConnectOptions)>,
) -> BoxFuture<'static, Vec<Finding>> {
    sources_of(hosts.into_iter().collect())
}

fn sources_of(hosts: Vec<(HostName, ConnectOptions)>) -> BoxFuture<'static, Vec<Finding>> {
    Box::pin(async move {
        let hosts: Vec<TicketHost> = hosts
            .into_iter()
            .map(|(name, connect)| TicketHost { name, connect })
            .collect();
        let asked = join_all(
            hosts
                .iter()
                .map(async |host| (host.name.clone(), WorkerLeases::status(&host.connect).await)),
        );
        let (told, leases) = tokio::join!(tickets::status(&hosts), asked);
        let told: Tickets = told
            .into_iter()
            .filter_map(|host| Some((host.host, host.names.ok()?)))
            .collect();
        let silent = |error: &lease::Error| {
            matches!(
                error,
                lease::Error::NotInstalled
                    | lease::Error::Connect(_)
                    | lease::Error::TimedOut { .. }
            )
        };
        let leases = leases
            .into_iter()
            .filter(|(_, status)| status.as_ref().err().is_none_or(|error| !silent(error)));
        let mut findings = Findings::default();
        check_tickets(&mut findings, &told);
        check_leases(&mut findings, &leases.collect(), now_ms());
        findings.sorted()
    })
}

fn now_ms() -> u64 {
    u64::try_from(Timestamp::now().as_millisecond()).unwrap_or(0)
}

fn check_tickets(findings: &mut Findings, told: &Tickets) {
    let mut by_name: BTreeMap<&TicketName, Vec<(&HostName, &NameStatus)>> = BTreeMap::new();
    for (host, names) in told {
        for status in names {
            by_name
                .entry(&status.name)
                .or_default()
                .push((host, status));
        }
    }
    for (name, hosts) in by_name {
        for pair in hosts.windows(2) {
            let [(first, one), (second, other)] = pair else {
                continue;
            };
            if one.series != other.series || one.layout != other.layout {
                let message = format!(
                    "{first} and {second} have two series of tickets {name}, whose numbers may be \
                        the same"
                );
                let remedy = "take a new name, or drop one of the two by hand (docs/ids.md)";
                findings.add(Severity::Alarm, "tickets_differ", None, message, remedy);
            }
        }
        for (host, status) in &hosts {
            if let Some(recorded) = status
                .host_name
                .as_ref()
                .filter(|recorded| *recorded != host.as_str())
            {
                let message = format!(
                    "it gives the tickets {name} of {recorded}: it was renamed, or is a copy of it"
                );
                let remedy = format!(
                    "give it the name {recorded} in the config, or drop its schema pgshard_tickets"
                );
                findings.add(
                    Severity::Alarm,
                    "tickets_of_another",
                    Some(host),
                    message,
                    remedy,
                );
            }
        }
        check_claims(findings, name, &hosts, told);
        check_max(findings, name, &hosts);
    }
}

/// Checks the owner of each residue: every host that has the name must know the same one, which
/// gives the residue's tickets.
fn check_claims(
    findings: &mut Findings,
    name: &TicketName,
    hosts: &[(&HostName, &NameStatus)],
    told: &Tickets,
) {
    let mut owners: BTreeMap<u32, BTreeMap<&str, &HostName>> = BTreeMap::new();
    for (host, status) in hosts {
        for (residue, owner) in &status.claims {
            owners
                .entry(*residue)
                .or_default()
                .entry(owner)
                .or_insert(host);
        }
    }
    for (residue, owners) in owners {
        let mut said = owners.iter();
        if let (Some((first, by)), Some((second, other))) = (said.next(), said.next()) {
            let message = format!(
                "residue {residue} of tickets {name} is {first}'s, says {by}, and {second}'s, says \
                    {other}"
            );
            let remedy = "they may have given the same tickets: take a new name";
            findings.add(Severity::Alarm, "tickets_clash", None, message, remedy);
            continue;
        }
        let Some((owner, by)) = owners.into_iter().next() else {
            continue;
        };
        let owner = told.keys().find(|host| host.as_str() == owner);
        let gives = |owner: &HostName| {
            hosts
                .iter()
                .any(|(host, status)| *host == owner && status.residue == Some(residue))
        };
        if let Some(owner) = owner.filter(|owner| !gives(owner)) {
            let message = format!(
                "{by} knows that it gives tickets {name}, but it has no record of them: it would \
                    give them out again"
            );
            let remedy = format!(
                "`pgshard tickets create {name} --hosts {owner} --start N`, N above every ticket \
                    of it that is in use"
            );
            findings.add(
                Severity::Error,
                "tickets_lost",
                Some(owner),
                message,
                remedy,
            );
        }
        for (host, _) in hosts
            .iter()
            .filter(|(_, status)| !status.claims.contains_key(&residue))
        {
            let message =
                format!("it does not know whose residue {residue} of tickets {name} is; {by} does");
            let giver = hosts
                .iter()
                .find(|(_, status)| status.residue.is_some())
                .map_or(*host, |(host, _)| *host);
            let remedy =
                format!("`pgshard tickets create {name} --hosts {giver}`, which tells all hosts");
            findings.add(
                Severity::Warning,
                "tickets_untold",
                Some(host),
                message,
                remedy,
            );
        }
    }
}

/// Checks that the hosts agree on the maximum of a series, and that each has tickets left below it.
fn check_max(findings: &mut Findings, name: &TicketName, hosts: &[(&HostName, &NameStatus)]) {
    let maximum = |status: &NameStatus| {
        let max = status.max.map(|max| max.to_string());
        max.unwrap_or_else(|| "none".to_owned())
    };
    if let Some((first, one)) = hosts.first()
        && let Some((second, other)) = hosts.iter().find(|(_, other)| other.max != one.max)
    {
        let message = format!(
            "the maximum of tickets {name} is {} on {first} and {} on {second}: setting it was \
                interrupted",
            maximum(one),
            maximum(other)
        );
        let remedy = format!("`pgshard tickets create {name} --max N`, which sets it on all hosts");
        findings.add(Severity::Warning, "tickets_max", None, message, remedy);
    }
    for (host, status) in hosts {
        let (Some(used), Some(max)) = (status.used(), status.max) else {
            continue;
        };
        let all = used.given.saturating_add(used.left);
        let remedy = format!(
            "widen the column that holds them to bigint, then `pgshard tickets create {name} --max \
                N` with a larger N (docs/ids.md, a maximum)"
        );
        if used.left == 0 {
            let message = format!("it has no ticket {name} left: their maximum is {max}");
            findings.add(
                Severity::Error,
                "tickets_used_up",
                Some(host),
                message,
                remedy,
            );
        } else if u128::from(used.given) * 100 >= u128::from(all) * u128::from(GIVEN_MANY) {
            let message = format!(
                "it has {} tickets {name} left of {all}: their maximum is {max}",
                used.left
            );
            findings.add(
                Severity::Warning,
                "tickets_few",
                Some(host),
                message,
                remedy,
            );
        }
    }
}

fn check_leases(findings: &mut Findings, leases: &Leases, now_ms: u64) {
    let mut held_on: BTreeMap<&str, Vec<&HostName>> = BTreeMap::new();
    for (host, status) in leases {
        let status = match status {
            Ok(status) => status,
            Err(lease::Error::Outdated) => {
                let message = "its leases of worker numbers are of an older version";
                let remedy = format!("`pgshard workers install --host {host}`, while it serves");
                findings.add(Severity::Warning, "leases_old", Some(host), message, remedy);
                continue;
            }
            Err(error) => {
                let message = format!(
                    "its leases of worker numbers cannot be read: {}",
                    chain(error)
                );
                let remedy = "see what the server's log says";
                findings.add(
                    Severity::Error,
                    "leases_unread",
                    Some(host),
                    message,
                    remedy,
                );
                continue;
            }
        };
        let mut by_space: BTreeMap<&str, Vec<&LeaseStatus>> = BTreeMap::new();
        for lease in status {
            by_space.entry(&lease.space).or_default().push(lease);
        }
        for (space, leases) in by_space {
            let held = leases.iter().filter(|lease| lease.left.is_some()).count();
            if held > 0 {
                held_on.entry(space).or_default().push(host);
            }
            if held >= HELD_MANY {
                let message = format!(
                    "{held} of {WORKERS} worker numbers of {space:?} are held: generators that \
                        start soon get none"
                );
                let remedy = format!(
                    "see `pgshard workers status --host {host} --space {space}`: fewer generators, \
                        shared by more tasks"
                );
                findings.add(Severity::Warning, "leases_few", Some(host), message, remedy);
            }
            let wild: Vec<String> = leases
                .iter()
                .filter(|lease| lease.ceiling_ms > now_ms.saturating_add(CEILING_AHEAD_MS))
                .map(|lease| lease.worker.to_string())
                .collect();
            if !wild.is_empty() {
                let message = format!(
                    "worker numbers {} of {space:?} were used by a clock far ahead: no \
                        generator gets them until then",
                    wild.join(", ")
                );
                let remedy = "set the clocks by NTP; without those numbers generators go on";
                findings.add(
                    Severity::Notice,
                    "leases_ahead",
                    Some(host),
                    message,
                    remedy,
                );
            }
        }
    }
    for (space, hosts) in held_on.into_iter().filter(|(_, hosts)| hosts.len() > 1) {
        let names: Vec<&str> = hosts.iter().map(|host| host.as_str()).collect();
        let message = format!(
            "worker numbers of {space:?} are leased from {}: two generators may have one",
            names.join(" and ")
        );
        let remedy =
            "point all generators to one of them, and start them again (docs/ids.md, snowflakes)";
        findings.add(Severity::Alarm, "leases_twice", None, message, remedy);
    }
}
