//! What a schema is made of, as moves need it: how to make it again, what crosses its border, what is refused. No word
//! about moves.

pub(crate) mod border;
pub(crate) mod ddl;
pub(crate) mod digest;
pub(crate) mod drift;
pub(crate) mod refusal;
pub(crate) mod sequences;
