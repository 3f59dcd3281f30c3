//! Look-ups: from a value to its key, unique over all shards.
//!
//! What is here is the protocol ([`claims`]) and the model that explores it. No statement runs it
//! yet.

mod claims;
mod model;
