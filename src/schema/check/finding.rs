//! What is not as it should be: [`Finding`].

use std::collections::BTreeSet;

use crate::map::{HostName, print_shards};
use crate::shard::ShardId;

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// All is well, but it is worth knowing: an old copy waits for `moves complete`.
    Notice,
    /// It works, but not for ever, or it costs time: the map is behind.
    Warning,
    /// Something does not work: a host is down, a shard is missing.
    Error,
    /// Rows may be lost or written twice unless an operator acts.
    Alarm,
}

impl Severity {
    /// `notice`, `warning`, `error` or `alarm`.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Notice => "notice",
            Severity::Warning => "warning",
            Severity::Error => "error",
            Severity::Alarm => "alarm",
        }
    }
}

/// One thing that is wrong. If several shards of one host have the same trouble, that is one
/// finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A stable name for programs: `shard_missing`.
    pub code: &'static str,
    /// The host, if it is one host's.
    pub host: Option<HostName>,
    /// The shards, in order; empty if it is not about shards.
    pub shards: Vec<ShardId>,
    /// What is wrong, in one sentence.
    pub message: String,
    /// What to do.
    pub remedy: String,
}

impl Finding {
    /// The finding that the kept map cannot be used; `why` is what is wrong with it.
    pub fn damaged_map(why: String) -> Finding {
        let (severity, code) = (Severity::Error, "map_damaged");
        let remedy =
            "run `pgshard map rebuild`, which makes it again from its history and the hosts"
                .to_owned();
        Finding {
            severity,
            code,
            host: None,
            shards: Vec::new(),
            message: why,
            remedy,
        }
    }

    /// The finding that the kept map cannot be read now; `why` is the obstacle.
    pub fn unreachable_map(why: &str) -> Finding {
        let (severity, code) = (Severity::Error, "map_unreachable");
        let message = format!("the map cannot be read: {why}");
        let remedy = "have its database answer: routers go on with the map that they have, and no \
            move begins until then"
            .to_owned();
        Finding {
            severity,
            code,
            host: None,
            shards: Vec::new(),
            message,
            remedy,
        }
    }

    /// That the folder of the shard migrations is not there, or that a file in it is wrong; `why`
    /// names which.
    pub fn unusable_migrations(why: String) -> Finding {
        let (severity, code) = (Severity::Error, "migrations_unusable");
        let remedy =
            "correct it (`pgshard migrate new NAME` makes a missing folder, and its first \
            file): until then no migration runs, and no shard is made"
                .to_owned();
        Finding {
            severity,
            code,
            host: None,
            shards: Vec::new(),
            message: why,
            remedy,
        }
    }

    /// The same of these of its shards only.
    #[must_use]
    pub fn about(&self, shards: &[ShardId]) -> Finding {
        let mut finding = self.clone();
        if let Some(what) = self.message.strip_prefix(&subject(&self.shards)) {
            finding.message = format!("{}{what}", subject(shards));
        }
        finding.shards = shards.to_vec();
        finding
    }

    /// The shard, if it is about exactly one.
    pub fn shard(&self) -> Option<ShardId> {
        match self.shards[..] {
            [shard] => Some(shard),
            _ => None,
        }
    }
}

/// The begin of a message about shards: "shard 7: ".
fn subject(shards: &[ShardId]) -> String {
    match shards {
        [] => String::new(),
        [shard] => format!("shard {shard}: "),
        shards => format!(
            "{} shards ({}): ",
            shards.len(),
            print_shards(shards.iter().copied())
        ),
    }
}

/// Findings that it is unknown, or wrong, who has a shard.
const CAUSES: [&str; 5] = [
    "epoch_jump",
    "served_twice",
    "went_back",
    "served_nowhere",
    "not_opened",
];

/// Findings that may only be consequences of those.
const CONSEQUENCES: [&str; 8] = [
    "leftover",
    "moving",
    "no_reverse",
    "not_audited",
    "old_copy",
    "shard_elsewhere",
    "shard_epoch_differs",
    "signpost_astray",
];

/// Collects findings; those that differ only in the shard become one.
#[derive(Default)]
pub(crate) struct Findings(Vec<(Finding, String)>);

impl Findings {
    /// Adds a finding about a host, or the cluster.
    pub(in crate::schema) fn add(
        &mut self,
        severity: Severity,
        code: &'static str,
        host: Option<&HostName>,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (message, remedy) = (message.into(), remedy.into());
        let finding = Finding {
            severity,
            code,
            host: host.cloned(),
            shards: Vec::new(),
            message,
            remedy,
        };
        self.0.push((finding, String::new()));
    }

    /// Adds a finding about a shard; `what` comes after "shard 7: ".
    pub(crate) fn add_shard(
        &mut self,
        severity: Severity,
        code: &'static str,
        host: Option<&HostName>,
        shard: ShardId,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        let (what, remedy) = (what.into(), remedy.into());
        let same = |(finding, said): &&mut (Finding, String)| {
            finding.code == code
                && finding.host.as_ref() == host
                && *said == what
                && finding.remedy == remedy
        };
        match self.0.iter_mut().rev().find(same) {
            Some((finding, _)) => finding.shards.push(shard),
            None => {
                let (host, message) = (host.cloned(), String::new());
                self.0.push((
                    Finding {
                        severity,
                        code,
                        host,
                        shards: vec![shard],
                        message,
                        remedy,
                    },
                    what,
                ));
            }
        }
    }

    /// Leaves out what follows from a finding about who has a shard: its map entry, its signposts
    /// and its old copies. They are right once that is repaired, and what those findings advise has
    /// to wait, or would do harm.
    pub(in crate::schema) fn without_consequences(&mut self) {
        let owner = |code: &str| CAUSES.contains(&code);
        let unsure: BTreeSet<ShardId> = self
            .0
            .iter()
            .filter(|(finding, _)| owner(finding.code))
            .flat_map(|(found, _)| found.shards.clone())
            .collect();
        self.0.retain_mut(|(finding, _)| {
            if !CONSEQUENCES.contains(&finding.code) || finding.shards.is_empty() {
                return true;
            }
            finding.shards.retain(|shard| !unsure.contains(shard));
            !finding.shards.is_empty()
        });
    }

    /// The findings, the worst first.
    pub(crate) fn sorted(self) -> Vec<Finding> {
        let written = |(mut finding, what): (Finding, String)| {
            // Several objects of one shard are one shard.
            finding.shards.sort_unstable();
            finding.shards.dedup();
            if !finding.shards.is_empty() {
                finding.message = format!("{}{what}", subject(&finding.shards));
            }
            finding
        };
        let mut findings: Vec<Finding> = self.0.into_iter().map(written).collect();
        findings.sort_by(|a, b| {
            (b.severity, &a.host, a.code, &a.shards).cmp(&(a.severity, &b.host, b.code, &b.shards))
        });
        findings
    }
}
