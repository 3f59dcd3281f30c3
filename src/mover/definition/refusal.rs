//! A reason why a shard cannot be moved, complete with object and remedy.

use std::fmt;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::definition::border::Crossing;

/// One reason not to move a shard: where, which object, what is wrong with it, and what would help.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Refusal {
    /// The shard, if the reason concerns one.
    pub shard: Option<ShardId>,
    /// The host, if the reason concerns one.
    pub host: Option<HostName>,
    /// The object: `table photos`, `the shard`.
    pub object: String,
    /// What is wrong: a clause that follows the object's name.
    pub reason: String,
    /// What to do about it: an imperative.
    pub remedy: String,
}

impl Refusal {
    pub(in crate::mover) fn new(
        object: impl Into<String>,
        reason: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Refusal {
        Refusal {
            shard: None,
            host: None,
            object: object.into(),
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }

    /// Turns a dependency over the shard's border into a reason against a move.
    pub(in crate::mover) fn of_crossing(crossing: &Crossing) -> Refusal {
        let (object, bound_to) = match crossing.incoming {
            true => (&crossing.outside, &crossing.inside),
            false => (&crossing.inside, &crossing.outside),
        };
        Refusal::new(
            object,
            format!("is bound to {bound_to} over the shard's border"),
            crossing.remedy,
        )
    }

    /// The same refusal, for a shard on a host.
    pub(in crate::mover) fn at(
        self,
        shard: impl Into<Option<ShardId>>,
        host: &HostName,
    ) -> Refusal {
        Refusal {
            shard: shard.into(),
            host: Some(host.clone()),
            ..self
        }
    }
}

/// Without the remedy, which a command shows on a separate line.
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(shard) = self.shard {
            write!(f, "shard {shard} ")?;
        }
        if let Some(host) = &self.host {
            write!(f, "on host {host}: ")?;
        }
        write!(f, "{} {}", self.object, self.reason)
    }
}
