//! (to be written)
pub mod border;
pub mod ddl;
mod refusal;
pub mod sequences;
pub mod target;

pub use refusal::Refusal;
