//! The rules and words of a move: phases, what comes next, errors, options. Pure: no database is
//! read.

pub(crate) mod bytes;
pub(crate) mod desired;
pub(crate) mod error;
#[cfg(any(debug_assertions, feature = "failpoints"))]
pub(crate) mod failpoint;
#[cfg(not(any(debug_assertions, feature = "failpoints")))]
#[path = "no_failpoint.rs"]
pub(crate) mod failpoint;
pub(crate) mod lease;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod state;
pub(crate) mod throttle;
pub(crate) mod verdict;
pub(crate) mod worker;
