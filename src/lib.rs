//! PostgreSQL sharded the way Instagram did it in 2012: thousands of logical shards, each a schema,
//! on a few servers; IDs that carry their shard, made in the database; and shards that move between
//! servers while the application runs.
//!
//! # Terms
//!
//! - A **shard** ([`ShardId`]) is one logical shard: one schema, `shard_0007`. There are N of them
//!   ([`ShardCount`], at most 8192), and N never changes.
//! - A **host** is one PostgreSQL database that holds shards, by the name that the config gives it
//!   ([`map::HostName`]).
//! - The **key**, normally the user's ID, picks the shard: key mod N (texts and UUIDs by a hash,
//!   [`KeyKind`]).
//! - An **ID** ([`id::Id`]) is 64 bits: 41 of milliseconds, 13 of shard, 10 of sequence.
//! - The **map** ([`map::ShardMap`]) assigns each shard to a host. It has a version; each shard in
//!   it has an epoch, which grows with every move.
//! - A **move** ([`mover`]) takes shards from their source to a target. Its **fence** closes a
//!   shard at the source and leaves a **signpost** there: a schema of the same name in which every
//!   statement fails with an error that names the new host.
//!
//! `docs/glossary.md` defines the other terms.
//!
//! # Example
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let router = pgshard::connect("pgshard.toml").await?;
//!
//! // The key picks the shard; the database makes the ID.
//! let user = 31341_i64;
//! let insert = "INSERT INTO {shard}.photos (user_id, title) VALUES ($1, $2) RETURNING id";
//! let row = router.by_key(user).query_one(insert, &[&user, &"Prague"]).await?;
//! let id: i64 = row.get(0);
//!
//! // The ID knows its shard.
//! let select = "SELECT title FROM {shard}.photos WHERE id = $1";
//! let photo = router.by_id(id)?.query_one(select, &[&id]).await?;
//!
//! // A transaction on one shard. It is run again, whole, if the shard moves meanwhile.
//! router.by_id(id)?.transaction(async |tx| {
//!     let insert = "INSERT INTO {shard}.likes (photo_id, user_id) VALUES ($1, $2)";
//!     tx.execute(insert, &[&id, &user]).await?;
//!     tx.execute("UPDATE {shard}.photos SET likes = likes + 1 WHERE id = $1", &[&id]).await
//! }).await?;
//!
//! // Many IDs, and every shard.
//! let rows = router.by_ids(&[id]).query("SELECT * FROM {shard}.photos WHERE id = ANY($1)").await?;
//! let mut counts = router.all_shards().query("SELECT count(*) FROM {shard}.photos", &[]);
//! while let Some((shard, rows)) = counts.next().await {
//!     let count: i64 = rows?[0].get(0);
//! }
//! # Ok(()) }
//! ```
//!
//! `examples/photo_app.rs` is a whole web service on it.
//!
//! # Guarantees
//!
//! 1. A key's shard never changes, nor the layout of an ID.
//! 2. At most one host serves a shard; while a move hands it over, none. The databases enforce
//!    this, not the map: a router with an old map gets the signpost's error, and continues at the
//!    right host.
//! 3. Every write that was acknowledged is on the host that serves the shard.
//! 4. A move that dies is undone until the source has decided, and can only be finished after that.
//!    No shard stays closed for longer than a fence's deadline (ten seconds) because of a dead
//!    mover.
//! 5. The router repeats statements, and transactions given as closures, when a move interrupts
//!    them. It never repeats what may have committed in part ([`router::Error::NotRepeated`],
//!    [`router::Error::InDoubt`]).
//! 6. No password is in an error, in `Debug` or in a log line.
//!
//! The second and third have one condition: a failover to a standby that has not received the last
//! commits can undo a fence. `docs/trouble.md` describes that case.
//!
//! # What it does not do
//!
//! - There are no transactions over several shards, no joins across them, and no foreign keys
//!   between them.
//! - It is a library, not a proxy: it does not parse SQL, and each statement names its shard.
//! - It does not split shards, and cannot change N. Take many.
//! - It does not replicate, back up or fail over. Hosts are whatever PostgreSQL you trust.
//!
//! # Modules
//!
//! Each uses only those before it in this table, and `router` and `fanout` are independent of
//! `mover`. `ARCHITECTURE.md` gives the reasons.
//!
//! | module | what it is |
//! | --- | --- |
//! | `shard` (at the root) | [`ShardId`], [`ShardCount`], [`SchemaPrefix`], [`Key`]: pure |
//! | [`id`] | IDs, their epoch, spans of time as ranges of IDs: pure |
//! | [`map`] | the shard map: pure |
//! | [`pg`] | connecting, TLS, passwords, quoting, SQLSTATEs, `{shard}` in SQL |
//! | [`store`] | where the map is kept |
//! | [`idgen`] | IDs that do not come from a shard: tickets, snowflakes and others |
//! | [`router`] | calls on one shard, by key or ID, also during moves |
//! | [`fanout`] | calls on many shards at once |
//! | [`schema`] | bootstrap, migrations, catalogs, what is there compared with what should be |
//! | [`rebalance`] | which shards should go where: a pure planner |
//! | [`mover`] | moves |
//! | [`import`] | bringing the tables of one database into shards |
//! | [`config`] | `pgshard.toml`, and [`connect`] |
//! | [`dev`] | throwaway local servers |
//! | [`testing`] | clusters for an application's tests |
//!
//! # Features
//!
//! Without any (`default-features = false`) the library has what an application needs to route: all
//! modules but these.
//!
//! | feature | adds |
//! | --- | --- |
//! | `ops` | [`schema`], [`rebalance`], [`mover`]: unstable, see below |
//! | `import` | [`import`], and what `ops` adds: unstable, too |
//! | `idgen` | [`idgen`] |
//! | `dev` | [`dev`], [`testing`], and what `ops` adds |
//! | `cli` (on by default) | the command `pgshard`, and with it all of these |
//! | `console` (on by default) | its pages for a browser, `pgshard console` |
//! | `failpoints` | for pgshard's own tests: a release build's moves can be made to die, as a debug build's can |
//!
//! The API of `ops` is unstable: [`schema`], [`rebalance`] and [`mover`] exist for the command
//! `pgshard`, and any version may change them. Everything else follows semantic versioning.

/// Methods that set one field of options each, under the field's name:
/// `Options::default().jobs(4)`. Options are `#[non_exhaustive]`, because new versions add fields.
macro_rules! setters {
    ($options:ident: $($field:ident: $kind:ty),+ $(,)?) => {
        impl $options {$(
            #[doc = concat!(
                "Sets [`", stringify!($field), "`](field@Self::", stringify!($field), ")."
            )]
            #[must_use]
            pub fn $field(mut self, $field: $kind) -> $options {
                self.$field = $field;
                self
            }
        )+}
    };
}

#[cfg(test)]
mod exploration;

mod backoff;

mod shard;

pub mod id;

pub mod map;

pub mod pg;

pub mod store;

#[cfg(feature = "idgen")]
pub mod idgen;

mod values;

pub mod router;

pub mod fanout;

pub mod lookups;

#[cfg(feature = "ops")]
pub mod schema;

#[cfg(feature = "ops")]
pub mod rebalance;

#[cfg(feature = "ops")]
pub mod mover;

#[cfg(feature = "import")]
pub mod import;

pub mod config;

#[cfg(feature = "dev")]
pub mod dev;

#[cfg(feature = "dev")]
pub mod testing;

#[cfg(all(test, feature = "dev"))]
mod server_tests;

#[cfg(test)]
mod simulation;

#[doc(hidden)]
#[cfg(all(any(test, fuzzing), feature = "idgen", feature = "ops"))]
pub mod fuzzing;

pub use config::connect;
pub use router::Router;
pub use shard::NoSuchShard;
pub use shard::{
    Key, KeyKind, KeyKindError, KeyTextError, Layout, PrefixError, SchemaPrefix, ShardCount,
    ShardId, WholeSchema, WholeSchemaError,
};
/// The driver; calls take and return its rows, types and errors. This is the version that the crate
/// uses.
pub use tokio_postgres;

/// The Rust of the page about the library is compiled with the documentation's other examples.
#[cfg(doctest)]
#[doc = include_str!("../docs/rust.md")]
pub struct Library;

/// So is that of the page about look-ups.
#[cfg(doctest)]
#[doc = include_str!("../docs/lookups.md")]
pub struct LookUps;

/// So is that of the page about keys.
#[cfg(doctest)]
#[doc = include_str!("../docs/keys.md")]
pub struct Keys;
