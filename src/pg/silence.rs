//! Addresses that have not answered, remembered for a moment: a command that queries a host several
//! times, one after the other, waits for its whole limit once.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a silent address is remembered.
const REMEMBERED: Duration = Duration::from_secs(15);

/// How long an address has to answer while it is remembered.
const BRIEF: Duration = Duration::from_secs(2);

/// When each address was silent for its whole limit.
#[derive(Debug, Default)]
pub(super) struct Silence {
    since: Mutex<BTreeMap<String, Instant>>,
}

impl Silence {
    /// How long an address may take now that has this limit otherwise.
    pub(super) fn limit(&self, address: &str, limit: Duration, now: Instant) -> Duration {
        match self.since().get(address) {
            Some(since) if now.saturating_duration_since(*since) < REMEMBERED => limit.min(BRIEF),
            _ => limit,
        }
    }

    /// Notes that an address has not answered within its time limit. Only its whole limit counts:
    /// an address that is slow is given that again, a moment later.
    pub(super) fn note(&self, address: &str, given: Duration, limit: Duration, now: Instant) {
        if given >= limit {
            self.since().insert(address.to_owned(), now);
        }
    }

    /// Notes that an address has answered.
    pub(super) fn clear(&self, address: &str) {
        self.since().remove(address);
    }

    fn since(&self) -> MutexGuard<'_, BTreeMap<String, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_address_is_given_its_whole_limit_once_in_a_while() {
        let (silence, limit) = (Silence::default(), Duration::from_secs(10));
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        assert_eq!(silence.limit("a:5432", limit, at(0)), limit);
        silence.note("a:5432", limit, limit, at(10));
        assert_eq!(silence.limit("b:5432", limit, at(10)), limit);
        for second in [10, 12, 24] {
            let given = silence.limit("a:5432", limit, at(second));
            assert_eq!(given, BRIEF);
            silence.note("a:5432", given, limit, at(second) + given);
        }
        assert_eq!(silence.limit("a:5432", limit, at(25)), limit);
        silence.note("a:5432", limit, limit, at(35));
        silence.clear("a:5432");
        assert_eq!(silence.limit("a:5432", limit, at(36)), limit);
        // A limit that is shorter stays.
        let short = Duration::from_millis(500);
        silence.note("a:5432", short, short, at(40));
        assert_eq!(silence.limit("a:5432", short, at(41)), short);
    }
}
