//! `pgshard check`: are config, map and hosts as they should be, and do they agree?

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, ShardMap, print_shards};
use pgshard::mover::{Observer, Options};
use pgshard::schema::control::Refusal;
use pgshard::schema::{self, Finding, HostFacts, Migrations, Severity, Shelf, Survey};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::Check;
use crate::commands::relocate;
use crate::context::{self, FoundMap};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Report<'a> {
    ok: bool,
    findings: Vec<Found<'a>>,
    /// The largest ID in each shard's rows, if they were read. The IDs are texts, since not every
    /// reader of JSON has integers of 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_ids: Option<BTreeMap<String, String>>,
}

/// One finding, about shards, a host or the cluster.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Found<'a> {
    severity: &'static str,
    code: &'a str,
    host: Option<&'a str>,
    /// If it is about exactly one.
    #[schemars(with = "Option<u16>")]
    shard: Option<ShardId>,
    /// All that it is about, such as `3-4,17`.
    shards: Option<String>,
    message: &'a str,
    remedy: &'a str,
}

impl Report<'_> {
    /// What was found. Without --fail-on a notice is no fault.
    pub(super) fn about<'a>(findings: impl IntoIterator<Item = &'a Finding>) -> Report<'a> {
        let findings: Vec<&Finding> = findings.into_iter().collect();
        let ok = findings
            .iter()
            .all(|finding| finding.severity < Severity::Warning);
        Report {
            ok,
            findings: findings.into_iter().map(found).collect(),
            largest_ids: None,
        }
    }
}

/// In how many looks an alarm is seen before it is believed.
const LOOKS: u32 = 3;

/// How often the hosts are asked at most: an alarm may have begun after the first look.
const LOOKS_MAX: u32 = 6;

/// Long enough for an open that is under way to reach both hosts.
pub(super) const BETWEEN_LOOKS: Duration = Duration::from_millis(200);

/// What an alarm is about: its code, the host, one of its shards.
type Alarm = (&'static str, Option<HostName>, Option<ShardId>);

/// Which alarms are believed. The hosts do not answer at the same instant: a shard that is opened
/// in between is seen on two hosts, and nobody should follow the remedy for that in vain. A real
/// alarm is seen every time; that there is one each time does not make it real, since many shards
/// may move.
#[derive(Default)]
pub(super) struct Doubts {
    looks: u32,
    /// In how many looks each alarm was seen, with gaps too: a host may answer now and then.
    seen: BTreeMap<Alarm, u32>,
}

impl Doubts {
    /// Takes in what a look has found. Returns whether the hosts have to be asked again; if not,
    /// the alarms that are not believed are warnings.
    pub(super) fn remain(&mut self, findings: &mut [Finding]) -> bool {
        self.looks += 1;
        for alarm in findings.iter().flat_map(alarms) {
            *self.seen.entry(alarm).or_default() += 1;
        }
        let is_believed = |alarm: Alarm| self.seen.get(&alarm).is_some_and(|times| *times >= LOOKS);
        if self.looks < LOOKS_MAX && !findings.iter().flat_map(alarms).all(is_believed) {
            return true;
        }
        for finding in findings
            .iter_mut()
            .filter(|one| one.severity == Severity::Alarm)
        {
            if !alarms(finding).any(is_believed) {
                finding.severity = Severity::Warning;
                finding.message +=
                    &format!(" (seen in fewer than {LOOKS} of {} looks)", self.looks);
                finding.remedy =
                    format!("run `pgshard check` again; if it stays, {}", finding.remedy);
            }
        }
        false
    }
}

/// The alarms in a finding, one for each of its shards.
fn alarms(finding: &Finding) -> impl Iterator<Item = Alarm> {
    let shards: Vec<Option<ShardId>> = match finding.shards.as_slice() {
        [] => vec![None],
        shards => shards.iter().copied().map(Some).collect(),
    };
    let is_alarm = finding.severity == Severity::Alarm;
    shards
        .into_iter()
        .filter(move |_| is_alarm)
        .map(|shard| (finding.code, finding.host.clone(), shard))
}

/// Compares the config, the map and the hosts, and names every difference.
pub(crate) async fn run(
    args: &Check,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    // A folder that cannot be used is a finding like any other; the shards are compared with each
    // other then.
    let (migrations, unusable) = context::usable_migrations(&config);
    let folder = config
        .cluster
        .migrations
        .as_ref()
        .filter(|_| unusable.is_none())
        .map(|_| &migrations);
    let mut doubts = Doubts::default();
    let (map, survey, findings) = loop {
        let FoundMap { map, lost } = context::map_or_last(&config).await?;
        // Side by side: who does not answer is waited for once.
        let identities = schema::identities(context::all_hosts(&config));
        let (survey, identities) = tokio::join!(context::survey_with_clocks(&config), identities);
        let mut findings = schema::check(&map, &survey, &context::cluster(&config), folder);
        findings.extend(lost.map(|lost| Finding::damaged_map(lost.error.to_string())));
        findings.extend(
            unusable
                .iter()
                .flat_map(context::mistakes)
                .map(Finding::unusable_migrations),
        );
        let identities = identities.findings();
        // That a host does not answer at all is said once.
        let heard = |host: &HostName| survey.get(host).is_some_and(Result::is_ok);
        let new =
            |one: &Finding| one.code != "identity_unread" || one.host.as_ref().is_some_and(heard);
        findings.extend(identities.into_iter().filter(new));
        let hosts = config
            .hosts
            .values()
            .map(|host| (&host.name, &host.connect));
        findings.extend(schema::exposed(
            hosts,
            &config.path,
            config.cluster.migrations.as_deref(),
        ));
        findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
        if !doubts.remain(&mut findings) {
            break (map, survey, findings);
        }
        tokio::time::sleep(BETWEEN_LOOKS).await;
    };
    if args.rows || args.movable {
        needs_owner(&survey)?;
    }
    let (findings, largest) = deeper(args, &config, &survey, findings, output).await;
    // Without --fail-on a notice is no fault.
    let fails = Severity::from(args.fail_on);
    let ok = findings
        .iter()
        .all(|finding| finding.severity < fails.min(Severity::Warning));
    match output.format() {
        Format::Json => {
            let text = |(shard, id): (ShardId, i64)| (shard.to_string(), id.to_string());
            let largest_ids = largest.map(|largest| largest.into_iter().map(text).collect());
            output.object(Report {
                ok,
                findings: findings.iter().map(found).collect(),
                largest_ids,
            });
        }
        Format::Text => {
            for finding in &findings {
                output.data(text(finding));
            }
            if ok {
                output.data("ok");
                output.pairs(&checked(&config, &map, &migrations, &survey));
            } else {
                output.note(summary(&findings));
            }
        }
    }
    let failed = findings.iter().any(|finding| finding.severity >= fails);
    Ok(if failed { Exit::Failed } else { Exit::Done })
}

/// Rows, and what a mover may do, are not for a role that only watches.
fn needs_owner(survey: &Survey) -> Result<(), Failure> {
    let mut asked = survey
        .values()
        .filter_map(|facts| Some(&facts.as_ref().ok()?.server));
    let Some((watcher, owner)) =
        asked.find_map(|server| Some((server.watcher.as_ref()?, &server.role)))
    else {
        return Ok(());
    };
    let error = format!(
        "--rows and --movable need the role that owns the shards, and {watcher} only watches"
    );
    Err(Failure::usage(error).hint(format!("use a config whose urls have the role {owner}")))
}

/// Adds what takes longer to find: about the sources of IDs always, about definitions and rows if
/// they are asked for. With rows, it also gives the largest ID of each shard.
async fn deeper(
    args: &Check,
    config: &Config,
    survey: &Survey,
    mut findings: Vec<Finding>,
    output: &Output,
) -> (Vec<Finding>, Option<BTreeMap<ShardId, i64>>) {
    // A host that did not answer, or is of another cluster, has a finding of its own.
    let cluster = context::cluster(config);
    let is_comparable = |host: &HostConfig, facts: &HostFacts| {
        facts.control.as_ref().is_some_and(|control| {
            !schema::control::differences(control, &cluster, &host.name)
                .iter()
                .any(Refusal::is_of_another_host)
        })
    };
    let heard: Vec<(&HostConfig, &HostFacts)> = config
        .hosts
        .values()
        .filter_map(|host| Some((host, survey.get(&host.name)?.as_ref().ok()?)))
        .filter(|(host, facts)| is_comparable(host, facts))
        .collect();
    let hosts = || {
        heard
            .iter()
            .map(|(host, _)| (host.name.clone(), host.connect.clone()))
    };
    findings.extend(schema::sources(hosts()).await);
    if args.ddl || args.movable {
        let definitions = schema::definitions(hosts()).await;
        findings.extend(
            schema::compare(&definitions)
                .into_iter()
                .filter(|one| args.ddl || one.code != "ddl_differs"),
        );
        if args.movable {
            let mover = relocate::mover(config, Options::default(), Observer::silent());
            findings.extend(mover.movable(&definitions).await);
        }
    }
    let mut largest = None;
    if args.rows {
        let shelf = |(host, facts): &(&HostConfig, &HostFacts)| {
            let served = facts
                .control
                .iter()
                .flat_map(|control| &control.shards)
                .filter(|(_, row)| row.state.is_owner());
            let schemas = served
                .map(|(shard, row)| (*shard, row.schema.clone()))
                .collect();
            Shelf {
                host: host.name.clone(),
                connect: host.connect.clone(),
                schemas,
            }
        };
        let shelves: Vec<Shelf> = heard.iter().map(shelf).collect();
        let keys = config
            .tables
            .iter()
            .map(|(name, table)| (name.clone(), table.key.clone()))
            .collect();
        let rules = schema::RowRules {
            cluster: &cluster,
            keys: &keys,
        };
        let count = shelves.iter().map(|shelf| shelf.schemas.len() as u64).sum();
        let bar = output.progress("rows".to_owned(), "shards", count);
        let contents = schema::contents(&shelves, rules, &|| bar.inc(1)).await;
        bar.finish_and_clear();
        findings.extend(contents.findings);
        largest = Some(contents.largest);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    (findings, largest)
}

/// A finding as programs want it.
fn found(finding: &Finding) -> Found<'_> {
    Found {
        severity: finding.severity.as_str(),
        code: finding.code,
        host: finding.host.as_ref().map(HostName::as_str),
        shard: finding.shard(),
        shards: (!finding.shards.is_empty()).then(|| print_shards(finding.shards.iter().copied())),
        message: &finding.message,
        remedy: &finding.remedy,
    }
}

/// A finding as people read it: shards with the same trouble are together.
fn text(finding: &Finding) -> String {
    let host = finding
        .host
        .as_ref()
        .map(|host| format!(" {host}"))
        .unwrap_or_default();
    let (severity, code) = (finding.severity.as_str(), finding.code);
    format!(
        "{severity}{host}: {}\n  code: {code}\n  remedy: {}",
        finding.message, finding.remedy
    )
}

/// How many findings of each severity, the worst first.
fn summary(findings: &[Finding]) -> String {
    let severities = [
        Severity::Alarm,
        Severity::Error,
        Severity::Warning,
        Severity::Notice,
    ];
    let counted = severities.iter().filter_map(|severity| {
        let count = findings
            .iter()
            .filter(|finding| finding.severity == *severity)
            .count();
        let plural = if count == 1 { "" } else { "s" };
        (count > 0).then(|| format!("{count} {}{plural}", severity.as_str()))
    });
    counted.collect::<Vec<_>>().join(", ")
}

/// What was looked at.
fn checked(
    config: &Config,
    map: &ShardMap,
    migrations: &Migrations,
    survey: &Survey,
) -> Vec<(&'static str, String)> {
    let version = |version: i32| format!("{}.{}", version / 10_000, version % 10_000);
    let hosts = survey.iter().map(|(name, facts)| match facts {
        Ok(facts) => format!("{name} (PostgreSQL {})", version(facts.server.version)),
        Err(_) => name.to_string(),
    });
    vec![
        ("config", config.path.display().to_string()),
        (
            "map",
            format!("version {}, {} shards", map.version(), map.shards()),
        ),
        ("hosts", hosts.collect::<Vec<_>>().join(", ")),
        ("migrations", migrations.iter().len().to_string()),
    ]
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
        Finding {
            severity,
            code: "served_twice",
            host: None,
            shards,
            message,
            remedy,
        }
    }

    /// The alarms that are left after looks that find these, and how many looks there were. None is
    /// left out.
    fn left(looks: &[&[u16]]) -> (Vec<Vec<u16>>, usize) {
        let mut doubts = Doubts::default();
        for (at, shards) in looks.iter().enumerate() {
            let mut findings = vec![finding(Severity::Warning, &[9])];
            findings.extend((!shards.is_empty()).then(|| finding(Severity::Alarm, shards)));
            if !doubts.remain(&mut findings) {
                let last = looks[at].iter().all(|shard| {
                    findings
                        .iter()
                        .any(|one| one.shards.iter().any(|its| its.get() == *shard))
                });
                assert!(last, "{looks:?}: {findings:?}");
                let alarms = findings
                    .iter()
                    .filter(|finding| finding.severity == Severity::Alarm);
                let shards =
                    alarms.map(|alarm| alarm.shards.iter().map(|shard| shard.get()).collect());
                return (shards.collect(), at + 1);
            }
        }
        panic!("the hosts are not asked for ever")
    }

    #[test]
    fn alarms_are_believed_that_are_seen_every_time() {
        assert_eq!(left(&[&[]]), (vec![], 1));
        assert_eq!(left(&[&[1], &[]]), (vec![], 2));
        assert_eq!(left(&[&[1], &[1], &[1]]), (vec![vec![1]], 3));
        // While a host is emptied, each look may meet another shard.
        assert_eq!(left(&[&[1], &[2], &[3], &[4], &[5], &[6]]), (vec![], 6));
        assert_eq!(left(&[&[1, 7], &[2, 7], &[7]]), (vec![vec![7]], 3));
        // One of the two hosts answers now and then.
        assert_eq!(
            left(&[&[1, 7], &[1], &[1, 7], &[2], &[1, 7]]),
            (vec![vec![1, 7]], 5)
        );
        // It has begun meanwhile.
        assert_eq!(left(&[&[1], &[7], &[7], &[7]]), (vec![vec![7]], 4));
    }
}
