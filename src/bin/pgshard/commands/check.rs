//! `pgshard check`: are config, map and hosts as they should be, and do they agree?

use std::collections::BTreeMap;
use std::path::Path;

use indicatif::ProgressBar;
use jiff::Timestamp;
use pgshard::ShardId;
use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, ShardMap, print_shards};
use pgshard::mover::{Event, Observer, Options};
use pgshard::schema::Refusal;
use pgshard::schema::{self, Finding, HostFacts, HostShards, Migrations, Severity, Survey};
use schemars::JsonSchema;
use serde::Serialize;

use crate::args::Check;
use crate::commands::findings::{self, ConfirmedDoubts, Folder, Look};
use crate::context::{self, FoundMap};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

#[derive(JsonSchema, Serialize)]
pub(crate) struct Report<'a> {
    ok: bool,
    findings: Vec<FindingReport<'a>>,
    /// The largest ID in each shard's rows, if they were read. The IDs are texts, since not every
    /// reader of JSON has integers of 64 bits.
    #[serde(skip_serializing_if = "Option::is_none")]
    largest_ids: Option<BTreeMap<String, String>>,
}

/// One finding, about shards, a host or the cluster.
#[derive(JsonSchema, Serialize)]
pub(crate) struct FindingReport<'a> {
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
            findings: findings.into_iter().map(finding_report).collect(),
            largest_ids: None,
        }
    }
}

/// Compares the config, the map and the hosts, and names every difference.
pub(crate) async fn run(
    args: &Check,
    config: Option<&Path>,
    output: &Output,
) -> Result<Exit, Failure> {
    let config = context::config(config)?;
    let folder = Folder::of(&config);
    let FoundMap { map, lost } = context::map_or_last(&config, output).await?;
    let at = Timestamp::now();
    let (survey, identities) = context::survey_with_identities(&config, output).await;
    let about_map = lost.map(|lost| Finding::damaged_map(lost.error.to_string()));
    let mut look = Look {
        map: Some(map),
        about_map: about_map.into_iter().collect(),
        seen_at: survey.keys().map(|host| (host.clone(), at)).collect(),
        survey,
        identities,
    };
    let none = ConfirmedDoubts::default();
    let looked = findings::find(&config, &folder, &mut look, None, &none);
    let (findings, _) = output.waiting("comparing", looked).await;
    let (survey, migrations) = (look.survey, folder.migrations);
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
                findings: findings.iter().map(finding_report).collect(),
                largest_ids,
            });
        }
        Format::Text => {
            for finding in &findings {
                output.data(text(finding));
            }
            if ok {
                output.data("ok");
                output.pairs(&checked(&config, look.map.as_ref(), &migrations, &survey));
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

/// Adds what takes longer to find: about definitions and rows, if requested. With rows, it also
/// gives the largest ID of each shard.
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
            !schema::differences(control, &cluster, &host.name)
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
    let owned = |(host, facts): &(&HostConfig, &HostFacts)| {
        let control = facts
            .control
            .iter()
            .filter(|_| host.layout.whole().is_none());
        let owned = control.flat_map(|control| control.shards.values());
        owned.filter(|row| row.state.is_owner()).count()
    };
    let served = heard.iter().map(owned).sum();
    if args.ddl || args.movable {
        let all = async |bar: &ProgressBar| {
            schema::definitions(hosts(), &|shards| bar.inc(shards as u64)).await
        };
        let definitions = output.counting("definitions", "shards", served, all).await;
        findings.extend(
            schema::compare(&definitions)
                .into_iter()
                .filter(|one| args.ddl || one.code != "ddl_differs"),
        );
        if args.movable {
            let examine = async |bar: &ProgressBar| {
                let examined = bar.clone();
                let observer = Observer::new(move |event| {
                    if let Event::Examined { .. } = event {
                        examined.inc(1);
                    }
                });
                let mover = context::mover(config, Options::default(), observer);
                mover.movable(&definitions).await
            };
            findings.extend(output.counting("moves", "shards", served, examine).await);
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
            HostShards {
                host: host.name.clone(),
                connect: host.connect.clone(),
                schemas,
            }
        };
        // Which shard a row is of is what the rules are about: all are in one schema there.
        let is_sharded = |(host, _): &&(&HostConfig, &HostFacts)| host.layout.whole().is_none();
        let shelves: Vec<HostShards> = heard.iter().filter(is_sharded).map(shelf).collect();
        let keys = config
            .tables
            .iter()
            .map(|(name, table)| (name.clone(), table.key.clone()))
            .collect();
        let rules = schema::RowRules {
            cluster: &cluster,
            keys: &keys,
        };
        let read =
            async |bar: &ProgressBar| schema::contents(&shelves, rules, &|| bar.inc(1)).await;
        let contents = output.counting("rows", "shards", served, read).await;
        findings.extend(contents.findings);
        largest = Some(contents.largest);
    }
    findings.sort_by_key(|finding| std::cmp::Reverse(finding.severity));
    (findings, largest)
}

/// A finding as programs want it.
fn finding_report(finding: &Finding) -> FindingReport<'_> {
    FindingReport {
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
    map: Option<&ShardMap>,
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
            map.map_or_else(String::new, |map| {
                format!("version {}, {} shards", map.version(), map.shards())
            }),
        ),
        ("hosts", hosts.collect::<Vec<_>>().join(", ")),
        ("migrations", migrations.iter().len().to_string()),
    ]
}
