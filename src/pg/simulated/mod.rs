//! Sockets in memory, to servers that a simulation plays: in test builds only. Elsewhere there is
//! no such socket, and the compiler leaves out all code that opens one.

#[cfg(not(test))]
mod disabled;
#[cfg(test)]
mod enabled;

#[cfg(not(test))]
pub(super) use disabled::{Stream, dial};
#[cfg(test)]
pub(super) use enabled::dial;
#[cfg(test)]
pub(crate) use enabled::{Stream, listen};
