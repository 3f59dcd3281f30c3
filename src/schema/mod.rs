//! (to be written)
pub mod catalog;
pub mod fingerprint;
