//! A large cluster in one process: real routers follow a real store and call shards, while hosts
//! die, shards move, and the control database goes and comes. Servers are played, in memory, and
//! time is tokio's, which jumps from one event to the next: a minute of a thousand routers takes
//! seconds.
//!
//! The tests state what no change may bring back: a fleet that comes all at the same moment. They
//! are small; `script/simulate` runs them with 8192 shards on 64 hosts and 1000 routers, and prints
//! what each scene costs.

mod figures;
mod scenes;
mod scripts;
mod server;
mod wire;
mod world;
