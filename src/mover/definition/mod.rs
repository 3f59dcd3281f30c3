//! What a schema is made of, as moves need it: how to make it again, what crosses its border, what is refused. No word
//! about moves.

pub mod border;
pub mod ddl;
pub mod digest;
pub(crate) mod refusal;
pub mod sequences;
