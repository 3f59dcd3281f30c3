//! What a router counts and measures, with the `metrics` crate; the names are in `docs/metrics.md`
//! too: OpenTelemetry's where it has one for clients of databases, and ours.
//!
//! Without a recorder this costs next to nothing. With one it costs a few additions a request,
//! because each host keeps its handles. They are made when the host is first used, so a recorder
//! must be installed before.

use std::sync::OnceLock;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Label, Unit, counter, describe_counter, describe_gauge,
    describe_histogram, gauge, histogram,
};

use super::outcome::Outcome;
use super::slots::Counts;
use super::stale::{MoveSignal, Verdict};
use super::standby_state::Why;
use crate::map::{HostName, MapVersion};

/// Statements and transactions, by host and outcome.
const REQUESTS: &str = "pgshard_requests_total";
/// The time from the call to its answer, retries and waiting included.
const OPERATION_DURATION: &str = "db.client.operation.duration";
/// The time from asking for a connection to having it.
const POOL_WAIT_TIME: &str = "db.client.connection.wait_time";
/// Requests for a connection that got none.
const POOL_FAILURES: &str = "pgshard_pool_failures_total";
/// The most connections that a host's pools may have.
const POOL_MAX: &str = "db.client.connection.max";
/// Connections, by what they do.
const POOL_CONNECTIONS: &str = "db.client.connection.count";
/// Calls that wait for a connection.
const POOL_PENDING: &str = "db.client.connection.pending_requests";
/// Lookups of who owns a shard.
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
/// Statements without a key on an unsharded host, by their places in the program.
const UNROUTED: &str = "pgshard_unrouted_total";
/// The version of the map that the router has.
const MAP_VERSION: &str = "pgshard_map_version";

/// Which pool it is: its host. OpenTelemetry wants it of every metric of connections.
const POOL_LABEL: &str = "db.client.connection.pool.name";
/// Idle or used.
const STATE_LABEL: &str = "db.client.connection.state";

/// Describes the names to the recorder.
fn describe() {
    describe_counter!(
        REQUESTS,
        Unit::Count,
        "Statements and transactions, by host and outcome"
    );
    describe_histogram!(
        OPERATION_DURATION,
        Unit::Seconds,
        "From the call to its answer, retries included"
    );
    describe_histogram!(
        POOL_WAIT_TIME,
        Unit::Seconds,
        "From asking for a connection to having it"
    );
    describe_counter!(
        POOL_FAILURES,
        Unit::Count,
        "Requests for a connection that got none"
    );
    describe_gauge!(
        POOL_MAX,
        Unit::Count,
        "The most connections that a host's pools may have"
    );
    describe_gauge!(
        POOL_CONNECTIONS,
        Unit::Count,
        "Connections of a host's pools, by state"
    );
    describe_gauge!(
        POOL_PENDING,
        Unit::Count,
        "Calls that wait for a connection"
    );
    describe_counter!(
        LOOK_UPS,
        Unit::Count,
        "Questions to a host about who owns a shard"
    );
    describe_counter!(SIGNPOSTS, Unit::Count, "Answers of signposts");
    describe_counter!(
        FENCES,
        Unit::Count,
        "Times that a call waited because its shard was fenced"
    );
    describe_counter!(
        RETRIES,
        Unit::Count,
        "Statements and transactions run again, by reason"
    );
    describe_counter!(
        READS,
        Unit::Count,
        "Reads that a standby may answer, by whether one did"
    );
    describe_gauge!(
        REPLICA_LAG_SECONDS,
        Unit::Seconds,
        "How old what a standby shows may be"
    );
    describe_counter!(
        UNROUTED,
        Unit::Count,
        "Calls that name no key, by their place in the program"
    );
    describe_gauge!(MAP_VERSION, Unit::Count, "Version of the shard map");
}

/// The handles of one host.
#[derive(Default)]
pub(super) struct HostMetrics(OnceLock<Handles>);

struct Handles {
    /// One for each outcome.
    requests: [Counter; Outcome::ALL.len()],
    /// One for each outcome.
    durations: [Histogram; Outcome::ALL.len()],
    pool_wait: Histogram,
    pool_failures: Counter,
    look_ups: Counter,
    signposts: Counter,
    fences: Counter,
    after_moved: Counter,
    after_fence: Counter,
    after_error: Counter,
    after_conflict: Counter,
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
            requests: Outcome::ALL
                .map(|outcome| counter!(REQUESTS, "host" => host(), "outcome" => outcome.as_str())),
            durations: Outcome::ALL.map(|outcome| {
                let mut labels = vec![
                    Label::new("host", host()),
                    Label::new("db.system.name", "postgresql"),
                ];
                if outcome != Outcome::Ok {
                    labels.push(Label::new("error.type", outcome.as_str()));
                }
                histogram!(OPERATION_DURATION, labels)
            }),
            pool_wait: histogram!(POOL_WAIT_TIME, "host" => host(), POOL_LABEL => host()),
            pool_failures: counter!(POOL_FAILURES, "host" => host()),
            look_ups: counter!(LOOK_UPS, "host" => host()),
            signposts: counter!(SIGNPOSTS, "host" => host()),
            fences: counter!(FENCES, "host" => host()),
            after_moved: counter!(RETRIES, "host" => host(), "reason" => "moved"),
            after_fence: counter!(RETRIES, "host" => host(), "reason" => "fenced"),
            after_error: counter!(RETRIES, "host" => host(), "reason" => "error"),
            after_conflict: counter!(RETRIES, "host" => host(), "reason" => "conflict"),
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
    /// A name was missing, and the host had not served the shard all the time.
    Error,
    /// A transaction had a conflict with another one.
    Conflict,
}

impl Reason {
    /// How a verdict that leads to another try is counted.
    pub(super) fn of(signal: MoveSignal, verdict: &Verdict) -> Reason {
        match (verdict, signal) {
            (Verdict::Ask { .. }, _) => Reason::Moved,
            (_, MoveSignal::Signpost) => Reason::Fenced,
            (_, MoveSignal::Ambiguous) => Reason::Error,
        }
    }
}

impl HostMetrics {
    fn handles(&self, host: &HostName) -> &Handles {
        self.0.get_or_init(|| Handles::new(host))
    }

    pub(super) fn request(&self, host: &HostName, took: Duration, outcome: Outcome) {
        let handles = self.handles(host);
        handles.requests[outcome as usize].increment(1);
        handles.durations[outcome as usize].record(took);
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

    /// Counts a statement that met a move there.
    pub(super) fn move_signal(&self, host: &HostName, signal: MoveSignal) {
        if signal == MoveSignal::Signpost {
            self.handles(host).signposts.increment(1);
        }
    }

    /// Counts a call that waits because its shard is closed.
    pub(super) fn fence(&self, host: &HostName) {
        self.handles(host).fences.increment(1);
    }

    /// Counts a read that a standby answered, or that goes to the primary for this reason.
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
            Reason::Conflict => handles.after_conflict.increment(1),
        }
    }
}

/// What was last sent to the recorder about a pool. The gauges of a host's pools add up.
pub(super) struct PoolGauges {
    host: HostName,
    size: usize,
    told: Option<(usize, Counts)>,
}

impl PoolGauges {
    pub(super) fn new(host: &HostName, size: usize) -> PoolGauges {
        PoolGauges {
            host: host.clone(),
            size,
            told: None,
        }
    }

    pub(super) fn publish(&mut self, counts: Counts) {
        self.publish_counts(self.size, counts);
    }

    fn publish_counts(&mut self, size: usize, counts: Counts) {
        let (size_before, before) = self.told.replace((size, counts)).unwrap_or_default();
        let tell = |gauge: Gauge, before: usize, now: usize| {
            if before != now {
                gauge.increment(now as f64 - before as f64);
            }
        };
        let host = || self.host.to_string();
        tell(
            gauge!(POOL_MAX, "host" => host(), POOL_LABEL => host()),
            size_before,
            size,
        );
        let connections = |state| {
            gauge!(
                POOL_CONNECTIONS,
                "host" => host(),
                POOL_LABEL => host(),
                STATE_LABEL => state
            )
        };
        tell(connections("idle"), before.idle, counts.idle);
        tell(connections("used"), before.used, counts.used);
        tell(
            gauge!(POOL_PENDING, "host" => host(), POOL_LABEL => host()),
            before.waiting,
            counts.waiting,
        );
    }
}

impl Drop for PoolGauges {
    fn drop(&mut self) {
        if self.told.is_some() {
            self.publish_counts(0, Counts::default());
        }
    }
}

/// Sets how old the data may be that the standby at this address shows.
pub(super) fn replica_lag(host: &HostName, standby: &str, lag: Duration) {
    gauge!(REPLICA_LAG_SECONDS, "host" => host.to_string(), "standby" => standby.to_owned())
        .set(lag.as_secs_f64());
}

/// Counts a call that names no key, at this place in the program.
pub(super) fn unrouted(place: &str) {
    counter!(UNROUTED, "place" => place.to_owned()).increment(1);
}

/// Sets the version of the router's map.
pub(super) fn map_version(version: MapVersion) {
    gauge!(MAP_VERSION).set(version.get() as f64);
}

#[cfg(test)]
mod tests {
    use metrics_util::debugging::{DebugValue, DebuggingRecorder};

    use super::*;

    #[test]
    fn the_pools_of_a_host_add_up() {
        let recorder = DebuggingRecorder::new();
        let host = HostName::new("db1").unwrap();
        let mut told = metrics::with_local_recorder(&recorder, || {
            let (mut one, mut other) = (PoolGauges::new(&host, 4), PoolGauges::new(&host, 4));
            one.publish(Counts {
                idle: 1,
                used: 2,
                waiting: 3,
            });
            other.publish(Counts {
                idle: 1,
                used: 1,
                waiting: 0,
            });
            one.publish(Counts {
                idle: 3,
                used: 0,
                waiting: 0,
            });
            drop(other);
            let read = |value| match value {
                DebugValue::Gauge(value) => value.into_inner(),
                other => panic!("{other:?}"),
            };
            let all = recorder
                .snapshotter()
                .snapshot()
                .into_vec()
                .into_iter()
                .map(|(key, _, _, value)| {
                    let labels: Vec<&str> = key.key().labels().map(|label| label.value()).collect();
                    (
                        format!("{} {}", key.key().name(), labels.join(" ")),
                        read(value),
                    )
                });
            all.collect::<Vec<_>>()
        });
        told.sort_by(|one, other| one.0.cmp(&other.0));
        let told: Vec<(&str, f64)> = told
            .iter()
            .map(|(name, value)| (name.as_str(), *value))
            .collect();
        assert_eq!(
            told,
            [
                ("db.client.connection.count db1 db1 idle", 3.0),
                ("db.client.connection.count db1 db1 used", 0.0),
                ("db.client.connection.max db1 db1", 4.0),
                ("db.client.connection.pending_requests db1 db1", 0.0),
            ]
        );
    }
}
