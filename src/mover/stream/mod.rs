//! The stream of a group: the changes that its shards' source commits while they are copied, applied at their target in
//! the order of the commits.
//!
//! [`slot`] makes what the source keeps, [`transport`] and [`wire`] read it, [`changes`] judges by the chunks of the
//! copy what is to be applied, [`layout`] and [`apply`] do it, and [`run`] puts that together. [`worker`] is the task,
//! and [`follower`] its handle.
//!
//! Invariant: a source transaction is in the target whole or not at all, and once; nothing is called durable to
//! the source that is not durable at the target.

mod apply;
mod changes;
pub(crate) mod fault;
pub(crate) mod follower;
#[cfg(any(debug_assertions, feature = "failpoints"))]
mod harm;
/// Without failpoints every change is applied as it came.
#[cfg(not(any(debug_assertions, feature = "failpoints")))]
mod harm {
    pub(super) fn harmed(
        _: Option<&crate::mover::protocol::failpoint::Failpoint>,
        change: super::run::Change,
    ) -> impl Iterator<Item = super::run::Change> {
        std::iter::once(change)
    }
}
mod layout;
pub(crate) mod row_index;
mod run;
pub(crate) mod slot;
mod transport;
mod wire;
mod worker;
