//! The stream of a group: the changes that are committed at the source of its shards while they are
//! copied. They are applied at the target in the order of the commits.
//!
//! [`slot`] creates publication and slot, [`transport`] and [`wire`] read the stream, [`changes`]
//! decides by the chunks of the copy what to apply, [`layout`] and [`apply`] apply it, [`confirm`]
//! decides who confirms the slot, and [`run`] combines them until a connection is lost. [`worker`]
//! is the task, which starts runs; [`state`] is what it keeps between them. [`follower`] is its
//! handle: it sends a [`command`] and waits for a [`view`].
//!
//! Invariant: a source transaction is in the target whole or not at all, and once. Nothing is
//! confirmed to the source as durable that is not durable at the target.

pub(crate) mod adopt;
mod apply;
mod changes;
mod command;
mod confirm;
pub(crate) mod fault;
pub(crate) mod follower;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
#[cfg(any(debug_assertions, feature = "failpoints"))]
mod inject;
/// Without failpoints every change is applied as it came.
#[cfg(not(any(debug_assertions, feature = "failpoints")))]
mod inject {
    pub(super) fn with_injected_fault(
        _: Option<&crate::mover::protocol::failpoint::Failpoint>,
        change: super::wire::Change,
    ) -> impl Iterator<Item = super::wire::Change> {
        std::iter::once(change)
    }
}
mod layout;
pub(crate) mod options;
pub(crate) mod row_index;
mod run;
pub(crate) mod slot;
mod state;
mod transport;
pub(crate) mod view;
pub(crate) mod watermark;
mod wire;
mod worker;
