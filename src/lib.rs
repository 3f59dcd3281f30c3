//! pgshard
pub mod config;
pub mod dev;
pub mod fanout;
pub mod id;
pub mod idgen;
pub mod map;
pub mod mover;
pub mod pg;
pub mod router;
pub mod schema;
mod shard;
pub mod store;

pub use config::connect;
pub use router::Router;
pub use shard::{PrefixError, SchemaPrefix, ShardCount, ShardId};
