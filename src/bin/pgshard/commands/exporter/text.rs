//! Prometheus' text format: <https://prometheus.io/docs/instrumenting/exposition_formats/>.

use std::collections::BTreeMap;
use std::fmt::Write;

use pgshard::map::HostName;
use pgshard::mover::Phase;
use pgshard::schema::Severity;

use super::super::survey::{Host, SurveyResult};

pub(crate) const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The bounds of the histogram of pauses, in seconds.
const PAUSES: [f64; 10] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0];

/// The text of a scrape.
pub(crate) fn written(gathered: &SurveyResult) -> String {
    let mut page = Page::default();
    page.family(
        "pgshard_scrape_seconds",
        "gauge",
        "How long config, map and hosts took to answer.",
    );
    page.sample("pgshard_scrape_seconds", &[], gathered.took.as_secs_f64());
    page.family(
        "pgshard_config_up",
        "gauge",
        "Whether config and map can be read.",
    );
    page.sample("pgshard_config_up", &[], truth(gathered.is_configured()));
    page.family(
        "pgshard_map_version",
        "gauge",
        "The version of the map that is kept.",
    );
    if let Some(map) = &gathered.map {
        page.sample("pgshard_map_version", &[], map.version().get() as f64);
    }
    findings(&mut page, gathered);
    hosts(&mut page, &gathered.hosts);
    moves(&mut page, gathered);
    page.0
}

fn findings(page: &mut Page, gathered: &SurveyResult) {
    page.family(
        "pgshard_findings",
        "gauge",
        "What pgshard check finds, by severity and code.",
    );
    let mut counts: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    // A severity without findings is listed too, so that an alert on it needs no special case.
    for severity in [
        Severity::Notice,
        Severity::Warning,
        Severity::Error,
        Severity::Alarm,
    ] {
        counts.insert((severity.as_str(), ""), 0);
    }
    for finding in &gathered.findings {
        *counts
            .entry((finding.severity.as_str(), finding.code))
            .or_default() += 1;
    }
    for ((severity, code), count) in counts {
        page.sample(
            "pgshard_findings",
            &[("severity", severity), ("code", code)],
            count as f64,
        );
    }
}

fn hosts(page: &mut Page, hosts: &BTreeMap<HostName, Host>) {
    let mut each = |name: &str, kind: &str, help: &str, value: &dyn Fn(&Host) -> Option<f64>| {
        page.family(name, kind, help);
        for (host, facts) in hosts {
            if let Some(value) = value(facts) {
                page.sample(name, &[("host", host.as_str())], value);
            }
        }
    };
    each(
        "pgshard_host_up",
        "gauge",
        "Whether the host's server answers, even if it refuses us.",
        &|host| Some(truth(host.is_up())),
    );
    each(
        "pgshard_host_shards",
        "gauge",
        "The shards that the host says it serves.",
        &|host| host.shards.map(|shards| shards as f64),
    );
    each(
        "pgshard_host_control_version",
        "gauge",
        "The version of the host's control schema.",
        &|host| host.load.as_ref()?.control_version.map(f64::from),
    );
    each(
        "pgshard_host_bytes",
        "gauge",
        "The size of the host's database.",
        &|host| host.load.as_ref().map(|load| load.bytes as f64),
    );
    let help = "Rows inserted, updated and deleted in the host's database.";
    each(
        "pgshard_host_rows_written_total",
        "counter",
        help,
        &|host| host.load.as_ref().map(|load| load.rows_written as f64),
    );
    let slots = || {
        let loads = hosts
            .iter()
            .filter_map(|(host, facts)| Some((host, facts.load.as_ref()?)));
        loads.flat_map(|(host, load)| load.slots.iter().map(move |slot| (host, slot)))
    };
    page.family(
        "pgshard_slot_wal_kept_bytes",
        "gauge",
        "The WAL that the host keeps for a slot of a move.",
    );
    for (host, slot) in slots() {
        if let Some(kept) = slot.kept {
            page.sample(
                "pgshard_slot_wal_kept_bytes",
                &[("host", host.as_str()), ("slot", &slot.name)],
                kept as f64,
            );
        }
    }
    page.family(
        "pgshard_slot_lag_bytes",
        "gauge",
        "How far the reader of a slot is behind.",
    );
    for (host, slot) in slots() {
        if let Some(behind) = slot.behind {
            page.sample(
                "pgshard_slot_lag_bytes",
                &[("host", host.as_str()), ("slot", &slot.name)],
                behind as f64,
            );
        }
    }
    page.family(
        "pgshard_slot_active",
        "gauge",
        "Whether a program reads from a slot.",
    );
    for (host, slot) in slots() {
        page.sample(
            "pgshard_slot_active",
            &[("host", host.as_str()), ("slot", &slot.name)],
            truth(slot.active),
        );
    }
}

fn moves(page: &mut Page, gathered: &SurveyResult) {
    page.family(
        "pgshard_move_shards",
        "gauge",
        "Shards of moves that the journals have, by phase.",
    );
    let mut phases: BTreeMap<&str, usize> = Phase::all().map(|phase| (phase.as_str(), 0)).collect();
    for entry in &gathered.entries {
        *phases.entry(entry.phase.as_str()).or_default() += 1;
    }
    for (phase, count) in phases {
        page.sample("pgshard_move_shards", &[("phase", phase)], count as f64);
    }
    let at_work = gathered
        .entries
        .iter()
        .filter(|entry| !entry.phase.is_ended() && entry.worker.is_some())
        .count();
    page.family(
        "pgshard_move_shards_at_work",
        "gauge",
        "Shards of open moves on which a mover works.",
    );
    page.sample("pgshard_move_shards_at_work", &[], at_work as f64);
    let pause = "pgshard_move_pause_seconds";
    page.family(
        pause,
        "histogram",
        "How long moves have closed shards, of all moves that the journals have.",
    );
    // By source, which has the journal: a host that does not answer takes its own series away, and
    // nothing from those of others, which would look like new pauses when it comes back.
    for (name, _) in gathered.hosts.iter().filter(|(_, host)| host.is_read()) {
        let own = gathered
            .entries
            .iter()
            .filter(|entry| entry.source == *name);
        let pauses: Vec<f64> = own
            .filter_map(|entry| Some(entry.timings.get("pause_ms")?.as_f64()? / 1000.0))
            .collect();
        histogram(page, pause, ("host", name.as_str()), &pauses);
    }
}

fn histogram(page: &mut Page, name: &str, label: (&str, &str), values: &[f64]) {
    for bound in PAUSES.into_iter().chain([f64::INFINITY]) {
        let below = values.iter().filter(|value| **value <= bound).count();
        let bound = if bound.is_finite() {
            bound.to_string()
        } else {
            "+Inf".to_owned()
        };
        page.sample(
            &format!("{name}_bucket"),
            &[label, ("le", &bound)],
            below as f64,
        );
    }
    let sum = values.iter().fold(0.0, |sum, value| sum + value);
    page.sample(&format!("{name}_sum"), &[label], sum);
    page.sample(&format!("{name}_count"), &[label], values.len() as f64);
}

fn truth(is: bool) -> f64 {
    if is { 1.0 } else { 0.0 }
}

#[derive(Default)]
struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.0
            .push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let escape = |value: &str| {
            value
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
        };
        let labels: Vec<String> = labels
            .iter()
            .map(|(name, value)| format!("{name}=\"{}\"", escape(value)))
            .collect();
        let labels = if labels.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", labels.join(","))
        };
        // Writing to a string does not fail.
        writeln!(self.0, "{name}{labels} {value}").ok();
    }
}
