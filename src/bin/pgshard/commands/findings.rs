//! What is wrong with config, map and hosts: the one implementation for `pgshard check`,
//! `pgshard exporter`, `pgshard console` and its `/metrics`, so that all of them report the same.
//!
//! Invariant: what an ongoing move explains is reported only if it is seen in several looks, with
//! whatever severity.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::config::Config;
use pgshard::map::{HostName, ShardMap};
use pgshard::pg::{ConnectError, ConnectOptions};
use pgshard::schema::{
    self, BETWEEN_LOOKS, FactsError, Finding, HostFacts, Identities, LOOKS, LOOKS_MAX, Migrations,
    MigrationsError, Severity, Survey,
};
use pgshard::store::MapStore;

use crate::context;

/// Findings without a shard that a move explains.
const OF_MOVES: [&str; 2] = ["stray_publication", "stray_slot"];

/// What a doubtful finding is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Doubt {
    code: &'static str,
    host: Option<HostName>,
    shard: Option<ShardId>,
    /// The object, where no shard is named.
    what: String,
}

/// The doubtful findings that were believed at the end of the look before: they are believed
/// immediately where they are seen again.
#[derive(Clone, Debug, Default)]
pub(super) struct ConfirmedDoubts(BTreeSet<Doubt>);

/// What the config's folder of migrations has.
pub(super) struct Folder {
    pub(super) migrations: Migrations,
    pub(super) unusable: Option<MigrationsError>,
}

impl Folder {
    pub(super) fn of(config: &Config) -> Folder {
        let (migrations, unusable) = context::usable_migrations(config);
        Folder {
            migrations,
            unusable,
        }
    }

    /// The files that shards are compared with. One that cannot be used is a finding like any
    /// other, and shards are compared with each other then.
    fn usable(&self, config: &Config) -> Option<&Migrations> {
        let named = config.cluster.migrations.is_some();
        (named && self.unusable.is_none()).then_some(&self.migrations)
    }
}

/// Map and hosts, as one look found them.
pub(super) struct Look {
    pub(super) map: Option<ShardMap>,
    /// What is wrong with the map that is kept.
    pub(super) about_map: Vec<Finding>,
    pub(super) survey: Survey,
    /// When each host that answered was read.
    pub(super) seen_at: BTreeMap<HostName, Timestamp>,
    pub(super) identities: Identities,
}

impl Look {
    /// Everything that is wrong, the worst first, but what takes longer to find.
    fn findings(&self, config: &Config, folder: &Folder) -> Vec<Finding> {
        let mut findings = self.about_map.clone();
        match &self.map {
            Some(map) => {
                let cluster = context::cluster(config);
                let folder = folder.usable(config);
                findings.extend(schema::check(map, &self.survey, &cluster, folder));
            }
            None => findings.extend(schema::check_without_map(&self.survey)),
        }
        let mistakes = folder.unusable.iter().flat_map(context::mistakes);
        findings.extend(mistakes.map(Finding::unusable_migrations));
        // A host that does not answer at all is reported once.
        let heard = |host: &HostName| self.survey.get(host).is_some_and(Result::is_ok);
        let new =
            |one: &Finding| one.code != "identity_unread" || one.host.as_ref().is_some_and(heard);
        findings.extend(self.identities.findings().into_iter().filter(new));
        let hosts = config
            .hosts
            .values()
            .map(|host| (&host.name, &host.connect));
        let folder = config.cluster.migrations.as_deref();
        findings.extend(schema::exposed(hosts, &config.path, folder));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        findings
    }

    /// Reads all hosts again but those that time out, within the limit.
    async fn read_again(&mut self, config: &Config, bound: Option<Duration>) {
        let times_out = |host: &HostName| {
            matches!(
                self.survey.get(host),
                Some(Err(FactsError::Unreachable {
                    source: ConnectError::TimedOut { .. }
                }))
            )
        };
        let mut hosts = context::all_hosts(config);
        hosts.retain(|(host, _)| !times_out(host));
        let asked = join_all(hosts.iter().cloned().map(|host| read_host(host, bound)));
        let store = config.map_store();
        let (asked, identities, map) = tokio::join!(
            asked,
            within(bound, schema::identities(hosts)),
            within(bound, store.load())
        );
        for (name, at, facts) in asked {
            // Neither clock goes wrong from one look to the next.
            let clock = self.survey.get(&name).and_then(|facts| {
                let facts = facts.as_ref().ok()?;
                facts.clock.clone()
            });
            let facts = facts.map(|facts| HostFacts { clock, ..facts });
            match facts.is_ok() {
                true => drop(self.seen_at.insert(name.clone(), at)),
                false => drop(self.seen_at.remove(&name)),
            }
            self.survey.insert(name, facts);
        }
        if let Some(identities) = identities {
            self.identities = identities;
        }
        if let (Some(Ok(map)), true) = (map, self.about_map.is_empty()) {
            self.map = Some(map);
        }
    }

    /// The hosts that answered and have a control schema.
    pub(super) fn bootstrapped(&self, config: &Config) -> Vec<(HostName, ConnectOptions)> {
        let mut hosts = context::all_hosts(config);
        let has_control = |facts: &HostFacts| facts.control.is_some();
        hosts.retain(|(name, _)| {
            let facts = self.survey.get(name);
            facts.is_some_and(|facts| facts.as_ref().is_ok_and(has_control))
        });
        hosts
    }
}

/// The answer, if it comes within the limit.
async fn within<T>(bound: Option<Duration>, answer: impl Future<Output = T>) -> Option<T> {
    match bound {
        Some(bound) => tokio::time::timeout(bound, answer).await.ok(),
        None => Some(answer.await),
    }
}

/// Reads one host, and when that was.
async fn read_host(
    (name, connect): (HostName, ConnectOptions),
    bound: Option<Duration>,
) -> (HostName, Timestamp, Result<HostFacts, FactsError>) {
    let at = Timestamp::now();
    let asked = schema::survey([(name.clone(), connect.clone())]);
    let facts = within(bound, asked)
        .await
        .and_then(|mut all| all.remove(&name))
        .unwrap_or_else(|| Err(late(&connect, bound.unwrap_or_default())));
    (name, at, facts)
}

/// The error for a host that takes longer than the limit.
pub(super) fn late(connect: &ConnectOptions, bound: Duration) -> FactsError {
    let source = ConnectError::TimedOut {
        to: connect.to_string(),
        timeout_ms: bound.as_millis(),
    };
    FactsError::Unreachable { source }
}

/// Everything that is wrong, the worst first. Looks again while findings are doubtful; `look` is
/// the last one then. `bound` limits each question.
pub(super) async fn find(
    config: &Config,
    folder: &Folder,
    look: &mut Look,
    bound: Option<Duration>,
    before: &ConfirmedDoubts,
) -> (Vec<Finding>, ConfirmedDoubts) {
    let mut doubts = Doubts::after(before);
    let mut findings = look.findings(config, folder);
    while doubts.remain(&findings) {
        tokio::time::sleep(BETWEEN_LOOKS).await;
        look.read_again(config, bound).await;
        findings = look.findings(config, folder);
    }
    let (mut findings, believed) = doubts.judge(findings);
    let sources = within(bound, schema::sources(look.bootstrapped(config))).await;
    findings.extend(sources.unwrap_or_default());
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    (findings, believed)
}

/// Which doubtful findings are believed. The hosts do not answer at the same instant: a shard that
/// is opened in between is seen on two hosts, and its remedy would be followed in vain. What is
/// really wrong is seen every time; that something is found each time does not make it real, since
/// many shards may move.
#[derive(Default)]
pub(super) struct Doubts {
    looks: u32,
    /// In how many looks each was seen, with gaps too: a host may answer now and then.
    seen: BTreeMap<Doubt, u32>,
}

impl Doubts {
    /// What was believed before needs no second look.
    fn after(before: &ConfirmedDoubts) -> Doubts {
        let seen = before.0.iter().map(|doubt| (doubt.clone(), LOOKS));
        Doubts {
            looks: 0,
            seen: seen.collect(),
        }
    }

    /// Takes in the findings of a look. Returns whether another look is needed.
    pub(super) fn remain(&mut self, findings: &[Finding]) -> bool {
        self.looks += 1;
        for doubt in findings.iter().flat_map(doubts_of) {
            *self.seen.entry(doubt).or_default() += 1;
        }
        let mut all = findings.iter().flat_map(doubts_of);
        self.looks < LOOKS_MAX && !all.all(|doubt| self.is_believed(&doubt))
    }

    fn is_believed(&self, doubt: &Doubt) -> bool {
        self.seen.get(doubt).is_some_and(|times| *times >= LOOKS)
    }

    /// The findings of the last look. Those that are not believed are warnings, if they were
    /// alarms, and else notices.
    pub(super) fn judge(&self, findings: Vec<Finding>) -> (Vec<Finding>, ConfirmedDoubts) {
        let mut judged = Vec::new();
        for finding in findings {
            let (believed, doubted): (Vec<Doubt>, Vec<Doubt>) =
                doubts_of(&finding).partition(|doubt| self.is_believed(doubt));
            if doubted.is_empty() {
                judged.push(finding);
                continue;
            }
            let about = |doubts: &[Doubt]| {
                let shards: Vec<ShardId> = doubts.iter().filter_map(|doubt| doubt.shard).collect();
                finding.about(&shards)
            };
            if !believed.is_empty() {
                judged.push(about(&believed));
            }
            judged.push(self.unsure(about(&doubted)));
        }
        let believed = self.seen.keys().filter(|doubt| self.is_believed(doubt));
        let found: BTreeSet<Doubt> = judged.iter().flat_map(doubts_of).collect();
        let believed = believed.filter(|doubt| found.contains(*doubt)).cloned();
        judged.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        (judged, ConfirmedDoubts(believed.collect()))
    }

    fn unsure(&self, mut finding: Finding) -> Finding {
        finding.severity = match finding.severity {
            Severity::Alarm => Severity::Warning,
            _ => Severity::Notice,
        };
        finding.message += &format!(" (seen in fewer than {LOOKS} of {} looks)", self.looks);
        finding.remedy = format!("run `pgshard check` again; if it stays, {}", finding.remedy);
        finding
    }
}

/// What is doubtful in a finding, for each of its shards: every alarm, and all that a move
/// explains.
fn doubts_of(finding: &Finding) -> impl Iterator<Item = Doubt> {
    let of_a_move = !finding.shards.is_empty() || OF_MOVES.contains(&finding.code);
    let is_doubtful = match finding.severity {
        Severity::Alarm => true,
        Severity::Warning | Severity::Error => of_a_move,
        Severity::Notice => false,
    };
    let shards: Vec<Option<ShardId>> = match finding.shards.as_slice() {
        [] => vec![None],
        shards => shards.iter().copied().map(Some).collect(),
    };
    let what = match OF_MOVES.contains(&finding.code) {
        true => finding.message.clone(),
        false => String::new(),
    };
    let (code, host) = (finding.code, finding.host.clone());
    shards
        .into_iter()
        .filter(move |_| is_doubtful)
        .map(move |shard| Doubt {
            code,
            host: host.clone(),
            shard,
            what: what.clone(),
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(severity: Severity, shards: &[u16]) -> Finding {
        let shards = shards
            .iter()
            .map(|shard| ShardId::new(*shard).unwrap())
            .collect();
        let (message, remedy) = ("it is served twice".to_owned(), "look".to_owned());
        let finding = Finding {
            severity,
            code: "served_twice",
            host: None,
            shards,
            message,
            remedy,
        };
        let shards = finding.shards.clone();
        finding.about(&shards)
    }

    /// The shards with findings that are confirmed after looks that find these, and how many looks
    /// there were. No shard of the last look is left out.
    fn left_of(
        severity: Severity,
        before: &ConfirmedDoubts,
        looks: &[&[u16]],
    ) -> (Vec<u16>, usize) {
        let mut doubts = Doubts::after(before);
        for (at, shards) in looks.iter().enumerate() {
            let mut findings = vec![finding(Severity::Notice, &[9])];
            findings.extend((!shards.is_empty()).then(|| finding(severity, shards)));
            if !doubts.remain(&findings) {
                let (findings, _) = doubts.judge(findings);
                let told: BTreeSet<u16> = findings
                    .iter()
                    .flat_map(|one| one.shards.iter().map(|shard| shard.get()))
                    .collect();
                assert!(
                    shards.iter().all(|shard| told.contains(shard)),
                    "{findings:?}"
                );
                let believed = findings.iter().filter(|one| one.severity == severity);
                let shards = believed.flat_map(|one| one.shards.iter().map(|shard| shard.get()));
                return (shards.collect(), at + 1);
            }
        }
        panic!("looks have an end")
    }

    #[test]
    fn a_doubtful_finding_is_believed_that_is_seen_every_time() {
        let none = ConfirmedDoubts::default();
        for severity in [Severity::Alarm, Severity::Error, Severity::Warning] {
            let left = |looks: &[&[u16]]| left_of(severity, &none, looks);
            assert_eq!(left(&[&[]]), (vec![], 1));
            assert_eq!(left(&[&[1], &[]]), (vec![], 2));
            assert_eq!(left(&[&[1], &[1], &[1]]), (vec![1], 3));
            // While a host is emptied, each look may meet another shard.
            assert_eq!(left(&[&[1], &[2], &[3], &[4], &[5], &[6]]), (vec![], 6));
            assert_eq!(left(&[&[1, 7], &[2, 7], &[7]]), (vec![7], 3));
            // One of the two hosts answers now and then.
            assert_eq!(
                left(&[&[1, 7], &[1], &[1, 7], &[2], &[1, 7]]),
                (vec![1, 7], 5)
            );
            // It has begun in the meantime.
            assert_eq!(left(&[&[1], &[7], &[7], &[7]]), (vec![7], 4));
            // Only what is believed is in the finding that is.
            let all = [&[1, 7][..], &[2, 7], &[3, 7], &[4, 7], &[5, 7], &[6, 7]];
            assert_eq!(left(&all), (vec![7], 6));
        }
    }

    #[test]
    fn what_was_believed_before_needs_no_second_look() {
        let severity = Severity::Warning;
        let mut doubts = Doubts::default();
        let findings = || vec![finding(severity, &[1])];
        while doubts.remain(&findings()) {}
        let (_, before) = doubts.judge(findings());
        assert_eq!(left_of(severity, &before, &[&[1]]), (vec![1], 1));
        assert_eq!(left_of(severity, &before, &[&[1, 2], &[1]]), (vec![1], 2));
        let mut doubts = Doubts::after(&before);
        assert!(!doubts.remain(&[]));
        let (_, before) = doubts.judge(Vec::new());
        assert!(before.0.is_empty());
    }
}
