//! The parts of a schema, as far as moves need to know them: how to make it again, what crosses its
//! border, what is refused. Nothing here knows about moves.

pub(crate) mod bindings;
pub(crate) mod border;
pub(crate) mod ddl;
pub(crate) mod digest;
pub(crate) mod drift;
pub(crate) mod refusal;
pub(crate) mod sequences;
