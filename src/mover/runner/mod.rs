//! The loop that does the steps of a move: for one shard, and for those that share a stream.

pub(crate) mod assignment;
pub(crate) mod audit;
pub(crate) mod common_point;
pub(crate) mod cutover;
pub(crate) mod driver;
pub(crate) mod group;
pub(crate) mod leftovers;
pub(crate) mod permit;
pub(crate) mod reverse;
pub(crate) mod single;
pub(crate) mod watchdog;
pub(crate) mod work;
