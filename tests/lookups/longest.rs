//! The longest claim of a process, not counting the time in which the process did not run.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use metrics::{
    Counter, Gauge, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder, SharedString, Unit,
};

/// How long it may take until a pause of the process is noted.
const SETTLED: Duration = Duration::from_millis(500);

/// When this process did not run: stopped, or waiting for a processor.
#[derive(Debug, Default)]
pub(crate) struct Hiccups(Mutex<Vec<(Instant, Duration)>>);

impl Hiccups {
    /// Notes them from now on.
    pub(crate) fn watch() -> Arc<Hiccups> {
        let hiccups = Arc::new(Hiccups::default());
        let watched = hiccups.clone();
        std::thread::spawn(move || {
            let beat = Duration::from_millis(20);
            loop {
                let began = Instant::now();
                std::thread::sleep(beat);
                let late = began.elapsed().saturating_sub(2 * beat);
                if !late.is_zero() {
                    watched.all().push((Instant::now(), late));
                }
            }
        });
        hiccups
    }

    /// The milliseconds between the two in which this process ran.
    pub(crate) fn ran_ms(&self, began: Instant, ended: Instant) -> u64 {
        let late = self.all();
        // A pause is noted when the process runs again, which may be after something has ended.
        let late = late.iter().filter(|(noted, late)| {
            *noted > began && noted.checked_sub(*late).is_none_or(|paused| paused < ended)
        });
        let late: Duration = late.map(|(_, late)| *late).sum();
        (ended - began).saturating_sub(late).as_millis() as u64
    }

    fn all(&self) -> MutexGuard<'_, Vec<(Instant, Duration)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A recorder of the router's metrics that keeps one of them.
#[derive(Clone, Debug)]
pub(crate) struct LongestClaim {
    hiccups: Arc<Hiccups>,
    claims: Arc<Mutex<Vec<(Instant, Instant)>>>,
}

impl LongestClaim {
    /// Records from now on.
    pub(crate) fn install(hiccups: Arc<Hiccups>) -> LongestClaim {
        let longest = LongestClaim {
            hiccups,
            claims: Arc::default(),
        };
        metrics::set_global_recorder(longest.clone()).expect("it is the only recorder");
        longest
    }

    /// The longest claim since the last call, in milliseconds. The last ones are left for the next
    /// call: if the process was stopped during them, that is not noted yet.
    pub(crate) fn take_ms(&self) -> u64 {
        let mut claims = self.claims();
        let settled = |(_, ended): &(Instant, Instant)| ended.elapsed() > SETTLED;
        let longest = claims.iter().filter(|claim| settled(claim));
        let longest = longest
            .map(|(began, ended)| self.hiccups.ran_ms(*began, *ended))
            .max();
        claims.retain(|claim| !settled(claim));
        longest.unwrap_or(0)
    }

    fn claims(&self) -> MutexGuard<'_, Vec<(Instant, Instant)>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HistogramFn for LongestClaim {
    fn record(&self, seconds: f64) {
        let ended = Instant::now();
        if let Some(began) = ended.checked_sub(Duration::from_secs_f64(seconds)) {
            self.claims().push((began, ended));
        }
    }
}

impl Recorder for LongestClaim {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        Counter::noop()
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::noop()
    }

    fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
        match key.name() {
            "pgshard_lookup_claim_duration_seconds" => Histogram::from_arc(Arc::new(self.clone())),
            _ => Histogram::noop(),
        }
    }
}
