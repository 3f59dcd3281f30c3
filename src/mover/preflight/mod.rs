//! What is read and judged before anything is written.

pub(crate) mod bodies;
pub(crate) mod facts;
pub(crate) mod functions;
pub(crate) mod identity;
pub(crate) mod intervals;
pub(crate) mod key;
pub(crate) mod large_objects;
pub(crate) mod oid_columns;
pub(crate) mod plan;
pub(crate) mod rehearsal;
pub(crate) mod sound;
pub(crate) mod survey;
pub(crate) mod table;
pub(crate) mod target;
pub(crate) mod texts;
pub(crate) mod unbound;
