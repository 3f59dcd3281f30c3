//! What claims count and measure, with the `metrics` crate; the names are in `docs/metrics.md` too.

use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

use crate::router::Error;
use crate::values::Definition;

/// Claims of values, by look-up and outcome.
const CLAIMS: &str = "pgshard_lookup_claims_total";
/// How long a claim took, by look-up.
const DURATION: &str = "pgshard_lookup_claim_duration_seconds";

/// Counts a claim.
pub(super) fn count<C>(definition: &Definition, took: Duration, ended: &Result<C, Error>) {
    describe_counter!(CLAIMS, Unit::Count, "Claims of values, by outcome");
    describe_histogram!(DURATION, Unit::Seconds, "How long a claim took");
    let outcome = match ended {
        Ok(_) => "claimed",
        Err(Error::Taken { .. }) => "taken",
        Err(Error::Busy { .. }) => "busy",
        Err(_) => "failed",
    };
    let lookup = || definition.name.clone();
    counter!(CLAIMS, "lookup" => lookup(), "outcome" => outcome).increment(1);
    histogram!(DURATION, "lookup" => lookup()).record(took);
}
