//! What the commands of an operator do with moves.

pub(crate) mod audit;
pub(crate) mod cleanup;
pub(crate) mod movable;
pub(crate) mod progress;
pub(crate) mod recover;
pub(crate) mod repair;
pub(crate) mod requests;
pub(crate) mod resume;
pub(crate) mod rollback;
