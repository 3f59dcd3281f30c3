//! What a router counts and measures, by the `metrics` crate; the names are in `docs/metrics.md` too.
//!
//! Without a recorder it costs nothing worth a word; with one, a few additions a request, because each host keeps the
//! handles of its own. They are made when the host is first used: install the recorder before.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{
    Counter, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use super::replica::Why;
use super::stale::{Met, Verdict};
use crate::map::{HostName, MapVersion};

/// Statements and transactions, by host and outcome.
const REQUESTS: &str = "pgshard_requests_total";
/// From the call to its answer, retries and waiting included.
const REQUEST_SECONDS: &str = "pgshard_request_seconds";
/// From asking for a connection to having it.
const POOL_WAIT_SECONDS: &str = "pgshard_pool_wait_seconds";
/// Connections that were not to be had.
const POOL_FAILURES: &str = "pgshard_pool_failures_total";
/// Questions where a shard is.
const LOOK_UPS: &str = "pgshard_look_ups_total";
/// Answers of signposts.
const SIGNPOSTS: &str = "pgshard_signposts_total";
/// Times that a call waited because its shard was fenced.
const FENCES: &str = "pgshard_fences_total";
/// Statements and transactions run again, by reason.
const RETRIES: &str = "pgshard_retries_total";
/// Reads that a standby may answer, by whether one did.
const READS: &str = "pgshard_reads_total";
/// How old what a standby shows may be, as far as the router knows.
const REPLICA_LAG_SECONDS: &str = "pgshard_replica_lag_seconds";
/// Of the map that the router has.
const MAP_VERSION: &str = "pgshard_map_version";

/// Tells the recorder what the names mean.
fn describe() {
    describe_counter!(REQUESTS, Unit::Count, "Statements and transactions, by host and outcome");
    describe_histogram!(REQUEST_SECONDS, Unit::Seconds, "From the call to its answer, retries included");
    describe_histogram!(POOL_WAIT_SECONDS, Unit::Seconds, "From asking for a connection to having it");
    describe_counter!(POOL_FAILURES, Unit::Count, "Connections that were not to be had");
    describe_counter!(LOOK_UPS, Unit::Count, "Questions to a host where a shard is");
    describe_counter!(SIGNPOSTS, Unit::Count, "Answers of signposts");
    describe_counter!(FENCES, Unit::Count, "Times that a call waited because its shard was fenced");
    describe_counter!(RETRIES, Unit::Count, "Statements and transactions run again, by reason");
    describe_counter!(READS, Unit::Count, "Reads that a standby may answer, by whether one did");
    describe_gauge!(REPLICA_LAG_SECONDS, Unit::Seconds, "How old what a standby shows may be");
    describe_gauge!(MAP_VERSION, Unit::Count, "Version of the shard map");
}

/// The handles of one host.
#[derive(Default)]
pub(super) struct HostMetrics(OnceLock<Handles>);

struct Handles {
    succeeded: Counter,
    failed: Counter,
    seconds: Histogram,
    pool_wait: Histogram,
    pool_failures: Counter,
    look_ups: Counter,
    signposts: Counter,
    fences: Counter,
    after_moved: Counter,
    after_fence: Counter,
    after_error: Counter,
    by_standby: Counter,
    as_lagging: Counter,
    as_behind: Counter,
    as_failed: Counter,
}

impl Handles {
    fn new(host: &HostName) -> Handles {
        describe();
        let host = || host.to_string();
        Handles {
            succeeded: counter!(REQUESTS, "host" => host(), "outcome" => "ok"),
            failed: counter!(REQUESTS, "host" => host(), "outcome" => "error"),
            seconds: histogram!(REQUEST_SECONDS, "host" => host()),
            pool_wait: histogram!(POOL_WAIT_SECONDS, "host" => host()),
            pool_failures: counter!(POOL_FAILURES, "host" => host()),
            look_ups: counter!(LOOK_UPS, "host" => host()),
            signposts: counter!(SIGNPOSTS, "host" => host()),
            fences: counter!(FENCES, "host" => host()),
            after_moved: counter!(RETRIES, "host" => host(), "reason" => "moved"),
            after_fence: counter!(RETRIES, "host" => host(), "reason" => "fenced"),
            after_error: counter!(RETRIES, "host" => host(), "reason" => "error"),
            by_standby: counter!(READS, "host" => host(), "outcome" => "standby"),
            as_lagging: counter!(READS, "host" => host(), "outcome" => "lagging"),
            as_behind: counter!(READS, "host" => host(), "outcome" => "behind"),
            as_failed: counter!(READS, "host" => host(), "outcome" => "failed"),
        }
    }
}

/// Why something is run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reason {
    /// The shard is elsewhere.
    Moved,
    /// It was fenced, and is open again.
    Fenced,
    /// A name was not there, and the host had not served the shard all the time.
    Error,
}

impl Reason {
    /// What a verdict that ends in another try counts as.
    pub(super) fn of(met: Met, verdict: &Verdict) -> Reason {
        match (verdict, met) {
            (Verdict::Ask { .. }, _) => Reason::Moved,
            (_, Met::Signpost) => Reason::Fenced,
            (_, Met::Relative) => Reason::Error,
        }
    }
}

impl HostMetrics {
    fn handles(&self, host: &HostName) -> &Handles {
        self.0.get_or_init(|| Handles::new(host))
    }

    pub(super) fn request(&self, host: &HostName, took: Duration, succeeded: bool) {
        let handles = self.handles(host);
        if succeeded {
            handles.succeeded.increment(1)
        } else {
            handles.failed.increment(1)
        }
        handles.seconds.record(took);
    }

    pub(super) fn pool(&self, host: &HostName, waited: Duration, succeeded: bool) {
        let handles = self.handles(host);
        handles.pool_wait.record(waited);
        if !succeeded {
            handles.pool_failures.increment(1);
        }
    }

    pub(super) fn look_up(&self, host: &HostName) {
        self.handles(host).look_ups.increment(1);
    }

    /// A statement met a move there.
    pub(super) fn met(&self, host: &HostName, met: Met) {
        if met == Met::Signpost {
            self.handles(host).signposts.increment(1);
        }
    }

    /// And waits because the shard is closed.
    pub(super) fn fence(&self, host: &HostName) {
        self.handles(host).fences.increment(1);
    }

    /// A read has ended at a standby, or goes to the primary.
    pub(super) fn read(&self, host: &HostName, primary: Option<Why>) {
        let handles = self.handles(host);
        match primary {
            None => handles.by_standby.increment(1),
            Some(Why::Lagging) => handles.as_lagging.increment(1),
            Some(Why::Behind) => handles.as_behind.increment(1),
            Some(Why::Failed) => handles.as_failed.increment(1),
        }
    }

    pub(super) fn retry(&self, host: &HostName, reason: Reason) {
        let handles = self.handles(host);
        match reason {
            Reason::Moved => handles.after_moved.increment(1),
            Reason::Fenced => handles.after_fence.increment(1),
            Reason::Error => handles.after_error.increment(1),
        }
    }
}

/// So old may be what the standby at this address shows.
pub(super) fn replica_lag(host: &HostName, standby: &str, lag: Duration) {
    gauge!(REPLICA_LAG_SECONDS, "host" => host.to_string(), "standby" => standby.to_owned()).set(lag.as_secs_f64());
}

/// The router has another map, or its first.
pub(super) fn map_version(version: MapVersion) {
    gauge!(MAP_VERSION).set(version.get() as f64);
}
