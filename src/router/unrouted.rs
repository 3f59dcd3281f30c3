//! Statements that name no key, on a cluster that still has its one database.

use std::panic::Location;

use super::Router;
use super::error::Error;
use super::handle::Shard;
use super::metrics;
use super::options::Unrouted;
use super::reach::Reach;
use super::unrouted_calls::{Place, UnroutedCall};
use crate::shard::ShardId;

impl Router {
    /// A handle for statements that name no key, for an application that is on its way to shards:
    /// it shows in production what shards would refuse.
    ///
    /// Where all shards are on an unsharded host with [`Unrouted::Log`], the statements run there,
    /// on everybody's rows. Each call of this method is counted by its place in the program
    /// ([`Router::unrouted_calls`], the metric `pgshard_unrouted_total`), and the first one at each
    /// place is logged. Everywhere else it is an error, which names the place and what to do. The
    /// handle's [`id`](Shard::id) is 0 and means nothing.
    ///
    /// ```no_run
    /// # async fn example(router: pgshard::Router) -> Result<(), pgshard::router::Error> {
    /// let sql = "SELECT id, title FROM {shard}.photos ORDER BY id DESC LIMIT 10";
    /// let newest = router.unrouted()?.query(sql, &[]).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unrouted`] on shards, and on an unsharded host that refuses such statements.
    #[track_caller]
    pub fn unrouted(&self) -> Result<Shard<'_>, Error> {
        let at = Location::caller();
        let first = ShardId::new(0).expect("every cluster has shard 0");
        let place = self.inner().place(first)?;
        let logs = place.host.options.unrouted == Unrouted::Log;
        if !logs || !self.is_unsharded() {
            let place = Place::from(at).to_string();
            return Err(Error::Unrouted { place });
        }
        let (place, is_first) = self.inner().unrouted.count(at);
        let place_text = place.to_string();
        metrics::unrouted(&place_text);
        if is_first {
            tracing::warn!(place = %place_text, "a statement names no key: shards would refuse it");
        }
        Ok(Shard::new(self, first, Reach::Host))
    }

    /// Where the program ran statements without a key, the most frequent place first. At most 256
    /// places are counted separately.
    pub fn unrouted_calls(&self) -> Vec<UnroutedCall> {
        self.inner().unrouted.all()
    }
}
