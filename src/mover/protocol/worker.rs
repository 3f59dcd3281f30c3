//! Who works on a move.

use jiff::Timestamp;
use uuid::Uuid;

use crate::map::HostName;
use crate::mover::protocol::desired::StopRequest;
use crate::mover::protocol::names::MoveId;

/// The kind of work that a worker does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Bringing shards to the end of their move.
    Move,
    /// Feeding old copies of shards that are kept.
    Feed,
}

impl Work {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Work::Move => "move",
            Work::Feed => "feed",
        }
    }
}

/// A mover that is alive and works on shards of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Worker {
    /// What it works on.
    pub work: Work,
    /// Host and process.
    pub holder: String,
    /// Since when, by the clock of the host that the shards come from; `None` for one that began
    /// before this was recorded.
    pub since: Option<Timestamp>,
    /// The request that it has received and not fulfilled yet.
    pub stop_request: Option<StopRequest>,
}

impl std::fmt::Display for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.holder)?;
        if self.work == Work::Feed {
            f.write_str(", feeding,")?;
        }
        if let Some(since) = self.since {
            write!(f, " since {since:.0}")?;
        }
        match &self.stop_request {
            Some(stop_request) => write!(
                f,
                ", asked to {} by {}",
                stop_request.asked.as_str(),
                stop_request.by
            ),
            None => Ok(()),
        }
    }
}

/// What a mover records about itself.
#[derive(Clone, Debug)]
pub(crate) struct Claimant {
    pub(crate) id: MoveId,
    pub(crate) lease: Uuid,
    pub(crate) target: HostName,
    pub(crate) holder: String,
    pub(crate) work: Work,
}
