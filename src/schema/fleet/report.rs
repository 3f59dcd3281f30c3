//! What a bootstrap or a migration reports, while it works and at its end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::fault::{HostFault, ShardFault};
use crate::map::HostName;
use crate::shard::ShardId;

/// Something that has happened. A crash of the server can undo what is reported as done until
/// [`Event::HostDone`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The work for a host is known.
    HostPlanned {
        /// The host.
        host: &'a HostName,
        /// The shards that lack something.
        to_do: usize,
        /// The shards that lack nothing.
        unchanged: usize,
    },
    /// The control schema was installed or brought up to date.
    ControlInstalled {
        /// The host.
        host: &'a HostName,
        /// Its version now.
        version: i32,
    },
    /// A shard was created, or has the migrations that it lacked.
    ShardDone {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
    },
    /// A shard was left as it was.
    ShardFailed {
        /// The host.
        host: &'a HostName,
        /// The shard.
        shard: ShardId,
        /// Why.
        fault: &'a ShardFault,
    },
    /// A host was left as it was, or half done.
    HostFailed {
        /// The host.
        host: &'a HostName,
        /// Why.
        fault: &'a HostFault,
    },
    /// A host has ended, well or not.
    HostDone {
        /// The host.
        host: &'a HostName,
        /// What was done there.
        report: &'a HostReport,
    },
}

/// An observer of bootstrap's progress. Called from the bootstrap's own task: it should be quick.
pub type Observer<'a> = &'a (dyn Fn(Event<'_>) + Send + Sync);

/// What bootstrap, or a migration, has done, by host; only for the hosts that it was to write to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// By host.
    pub hosts: BTreeMap<HostName, HostReport>,
    /// For a migration: the shards that no host serves, so that nothing was run in them.
    pub unserved: BTreeMap<ShardId, ShardFault>,
    /// For a bootstrap: the hosts that were declared lost, and that neither the request nor a host
    /// that answers knows. They are no failure: an earlier bootstrap may have removed them from the
    /// records.
    pub unheard: BTreeSet<HostName>,
}

/// What bootstrap has done on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostReport {
    /// The versions of the control schema that were installed, or of which something was repaired.
    pub control: Vec<i32>,
    /// The once-per-host migrations that were run.
    pub once: Vec<String>,
    /// The schema from which the host serves all shards from now on, if it is unsharded.
    pub serves_all: Option<String>,
    /// The shards that were created, in order.
    pub created: Vec<ShardId>,
    /// The shards that existed and got migrations, in order.
    pub migrated: Vec<ShardId>,
    /// How many shards lacked nothing.
    pub unchanged: usize,
    /// The shards that lack something still, each with the reason.
    pub failed: BTreeMap<ShardId, ShardFault>,
    /// The shards that lack something still, and got a part of it: files before the one that failed
    /// are committed.
    pub begun: BTreeSet<ShardId>,
    /// The roles that may look up shards here from now on: those that may use a shard's schema; and
    /// those that may monitor.
    pub admitted: BTreeSet<String>,
    /// Why the host was left as it was, or half done.
    pub fault: Option<HostFault>,
    /// How long it took.
    pub elapsed: Duration,
}

impl Report {
    /// Whether everything is as it should be now.
    pub fn is_complete(&self) -> bool {
        self.unserved.is_empty()
            && self
                .hosts
                .values()
                .all(|host| host.fault.is_none() && host.failed.is_empty())
    }

    /// Whether everything was as it should be already.
    pub fn nothing_to_do(&self) -> bool {
        self.is_complete() && !self.changed()
    }

    /// Whether anything was written.
    pub fn changed(&self) -> bool {
        self.hosts.values().any(HostReport::changed)
    }
}

impl HostReport {
    /// Whether anything was written.
    pub fn changed(&self) -> bool {
        let done = [
            self.serves_all.is_none(),
            self.created.is_empty(),
            self.migrated.is_empty(),
            self.begun.is_empty(),
            self.admitted.is_empty(),
        ];
        !(self.control.is_empty() && self.once.is_empty() && done.iter().all(|none| *none))
    }

    pub(in crate::schema) fn left(fault: HostFault) -> HostReport {
        HostReport {
            fault: Some(fault),
            ..HostReport::default()
        }
    }
}

/// The message of `expect` on the locks of reports: each is held for single statements that cannot
/// panic.
pub(in crate::schema) const NO_PANIC: &str = "no panic occurs while the lock is held";
