//! A router for each way in which statements can be sent.

use pgshard::Router;
use pgshard::router::{Options, PrepareMode};

use super::by_hand::Shards;
use super::pooler::Pooler;

/// One way, and a router that uses it, with one connection to the first host: the next caller gets
/// the session of the one before.
pub(super) struct Ways {
    pub(super) name: &'static str,
    pub(super) router: Router,
    pub(super) pooled: bool,
    _pooler: Option<Pooler>,
}

impl Ways {
    /// By name, without names, and without names through PgBouncer in transaction mode.
    pub(super) async fn all(shards: &Shards) -> Vec<Ways> {
        Ways::with(shards, |_| ()).await
    }

    /// The same with other options.
    pub(super) async fn with(shards: &Shards, change: impl Fn(&mut Options)) -> Vec<Ways> {
        let mut ways = Vec::new();
        for name in ["named", "unnamed", "pooled"] {
            let mut options = shards.options();
            let host = &mut options.hosts[0];
            host.pool_size = 1;
            if name != "named" {
                host.prepare = PrepareMode::Unnamed;
            }
            let pooled = name == "pooled";
            let pooler = if pooled {
                Some(Pooler::start(&shards.cluster, 0).await)
            } else {
                None
            };
            if let Some(pooler) = &pooler {
                host.connect = pooler.connect();
            }
            change(&mut options);
            ways.push(Ways {
                name,
                router: Router::new(options),
                pooled,
                _pooler: pooler,
            });
        }
        ways
    }
}
