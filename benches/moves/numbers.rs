//! Many times, in a few words.

use std::time::Duration;

/// The times in order.
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// Of milliseconds.
    pub(crate) fn of(mut ms: Vec<f64>) -> Times {
        ms.sort_unstable_by(f64::total_cmp);
        Times(ms)
    }

    pub(crate) fn of_durations(durations: impl IntoIterator<Item = Duration>) -> Times {
        Times::of(
            durations
                .into_iter()
                .map(|duration| duration.as_secs_f64() * 1e3)
                .collect(),
        )
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that this share of all is not longer than; 0 of none.
    pub(crate) fn at(&self, share: f64) -> f64 {
        let rank = (self.0.len() as f64 * share).ceil() as usize;
        self.0.get(rank.saturating_sub(1)).copied().unwrap_or(0.0)
    }

    pub(crate) fn median(&self) -> f64 {
        self.at(0.5)
    }

    /// Median, 90th and 99th percentile, longest, in milliseconds.
    pub(crate) fn line(&self) -> String {
        let [p50, p90, p99, max] = [0.5, 0.9, 0.99, 1.0].map(|share| self.at(share));
        format!("p50 {p50:8.2}   p90 {p90:8.2}   p99 {p99:8.2}   max {max:8.2} ms")
    }

    /// How many are within so many milliseconds of the one before: a bar a class.
    pub(crate) fn histogram(&self, bounds: &[f64]) -> String {
        let mut text = String::new();
        let mut below = 0.0;
        for bound in bounds.iter().copied().chain([f64::INFINITY]) {
            let count = self
                .0
                .iter()
                .filter(|ms| **ms >= below && **ms < bound)
                .count();
            let bar = "#".repeat((count * 60).div_ceil(self.0.len().max(1)));
            text.push_str(&format!(
                "    {below:5.0} to {bound:5.0} ms {count:6} {bar}\n"
            ));
            below = bound;
        }
        text
    }
}
