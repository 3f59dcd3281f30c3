//! How long the phases of a move took, for the journal and for people.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value};

/// Milliseconds by phase. If a phase runs again, its last run counts.
#[derive(Debug, Default)]
pub(crate) struct Timings(Mutex<Map<String, Value>>);

impl Timings {
    /// Records a phase that began then and has just ended. Returns the present time, for the next
    /// phase.
    pub(crate) fn since(&self, phase: &str, began: Instant) -> Instant {
        let now = Instant::now();
        self.took(phase, now - began);
        now
    }

    /// Records how long a phase took.
    pub(crate) fn took(&self, phase: &str, duration: Duration) {
        let millis = (duration.as_secs_f64() * 1e5).round() / 100.0;
        // A panic elsewhere never leaves the map half changed.
        let mut map = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        map.insert(format!("{phase}_ms"), millis.into());
    }

    /// All of them, as the journal keeps them.
    pub(crate) fn to_json(&self) -> Value {
        Value::Object(
            self.0
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        )
    }
}
