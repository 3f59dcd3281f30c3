//! Samples of `/metrics`, as a test of `promtool`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

/// What was scraped during a scenario, once a second.
pub(crate) struct Recording {
    name: &'static str,
    /// The alerts that must fire some time, and no others.
    fired: &'static [&'static str],
    scrapes: usize,
    /// The values of each series; `_` before it was there, `stale` when it went.
    series: BTreeMap<String, Vec<String>>,
}

impl Recording {
    pub(crate) fn new(name: &'static str, fired: &'static [&'static str]) -> Recording {
        Recording {
            name,
            fired,
            scrapes: 0,
            series: BTreeMap::new(),
        }
    }

    /// Adds a scrape, in the text format of Prometheus.
    pub(crate) fn add(&mut self, body: &str) {
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let values = self.series.entry(series.to_owned()).or_default();
            values.resize(self.scrapes, "_".to_owned());
            values.push(value.to_owned());
        }
        self.scrapes += 1;
        for values in self.series.values_mut() {
            // Prometheus ends a series that a scrape lacks.
            if values.len() < self.scrapes {
                let is_there = values
                    .last()
                    .is_some_and(|last| last != "stale" && last != "_");
                values.push(if is_there { "stale" } else { "_" }.to_owned());
            }
        }
    }

    /// Which alerts fired, some time, for as long as the scenario took.
    pub(crate) fn as_test(&self, interval: &str) -> String {
        let mut text = format!("  - name: {}\n    interval: {interval}\n", self.name);
        text.push_str("    input_series:\n");
        for (series, values) in &self.series {
            let series = series.replace('\'', "''");
            let _ = writeln!(
                text,
                "      - {{series: '{series}', values: '{}'}}",
                values.join(" ")
            );
        }
        let end = self.scrapes.saturating_sub(1) * 15;
        let expr = "group by (alertname) (count_over_time(ALERTS{alertstate=\"firing\"}[1d]))";
        let _ = writeln!(
            text,
            "    promql_expr_test:\n      - expr: '{expr}'\n        eval_time: {end}s\n        \
             exp_samples:"
        );
        for alert in self.fired {
            let labels = format!("{{alertname=\"{alert}\"}}");
            let _ = writeln!(text, "          - {{labels: '{labels}', value: 1}}");
        }
        if self.fired.is_empty() {
            text.truncate(text.trim_end().len());
            text.push_str(" []\n");
        }
        text
    }
}
