//! The desired state of a move: how it begins, what its mover may do, and the requests to the mover
//! while it runs.

use jiff::Timestamp;

/// What a mover may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DesiredState {
    /// Everything.
    #[default]
    Run,
    /// Everything but the fence: the source serves, the target follows.
    Hold,
    /// Nothing more is copied, and nothing is fenced. Chunks under way are finished, and changes
    /// are still applied, so that the source need not keep them.
    Pause,
}

impl DesiredState {
    /// The state as the journal writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            DesiredState::Run => "go",
            DesiredState::Hold => "hold",
            DesiredState::Pause => "pause",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<DesiredState> {
        [DesiredState::Run, DesiredState::Hold, DesiredState::Pause]
            .into_iter()
            .find(|desired| desired.as_str() == name)
    }
}

/// Whether a move prepares for its shards to be taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rollback {
    /// A slot on the target keeps the changes that the old copies lack, if the target can provide
    /// one.
    #[default]
    Prepared,
    /// The old copies stay as they are at the switch. Nothing is created on the target.
    Forgone,
}

impl Rollback {
    /// As the journal writes it.
    pub fn as_str(self) -> &'static str {
        match self {
            Rollback::Prepared => "prepared",
            Rollback::Forgone => "forgone",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<Rollback> {
        [Rollback::Prepared, Rollback::Forgone]
            .into_iter()
            .find(|back| back.as_str() == name)
    }
}

/// How an online move handles a table with rows that the stream cannot identify, such as one
/// without a primary key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IdentityPolicy {
    /// It gets a replica identity until the move is completed or aborted.
    #[default]
    Lend,
    /// No table is altered: the move is refused.
    Keep,
}

/// What unlogged tables contain at the target. A crash may empty them, and so may a move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum UnloggedRows {
    /// Their rows. The stream does not bring changes of such a table, so it is copied while the
    /// shard is closed.
    #[default]
    Carried,
    /// No rows.
    Left,
}

/// When the shards of a new move are fenced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FenceAt {
    /// As soon as each is ready.
    #[default]
    Ready,
    /// Once an operator releases them: [`Mover::set_desired_state`] with [`DesiredState::Run`].
    ///
    /// [`Mover::set_desired_state`]: crate::mover::Mover::set_desired_state
    OnRequest,
    /// At this time by the source's clock, or once an operator releases them.
    Time(Timestamp),
}

impl FenceAt {
    /// The state and the end of the hold, as the journal keeps them.
    pub(crate) fn stop_request(self) -> (DesiredState, Option<Timestamp>) {
        match self {
            FenceAt::Ready => (DesiredState::Run, None),
            FenceAt::OnRequest => (DesiredState::Hold, None),
            FenceAt::Time(at) => (DesiredState::Hold, Some(at)),
        }
    }
}

/// A request to a move's mover.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopKind {
    /// Stop as on Ctrl-C: every shard is usable, and the move can be resumed.
    Stop,
    /// Stop, and undo what is not decided.
    Abort,
}

impl StopKind {
    /// Its name in the journal.
    pub fn as_str(self) -> &'static str {
        match self {
            StopKind::Stop => "stop",
            StopKind::Abort => "abort",
        }
    }

    pub(crate) fn parse(name: &str) -> Option<StopKind> {
        [StopKind::Stop, StopKind::Abort]
            .into_iter()
            .find(|asked| asked.as_str() == name)
    }
}

/// A request to a mover, and who made it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StopRequest {
    /// What is requested.
    pub asked: StopKind,
    /// Host and process of the request.
    pub by: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_as_they_are_written() {
        for desired in [DesiredState::Run, DesiredState::Hold, DesiredState::Pause] {
            assert_eq!(DesiredState::parse(desired.as_str()), Some(desired));
        }
        assert_eq!(DesiredState::parse("stop"), None);
    }
}
