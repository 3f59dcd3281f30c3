//! The map in a table of a control database, so that a fleet of application servers follows it.
//!
//! Invariant: publishing is a compare-and-swap in one statement. A reader keeps its map while the
//! database is unreachable, and only then the copy on disk is used.

mod copy;
mod follow;
mod history;
mod session;
mod store;

use futures_util::future::{BoxFuture, FutureExt};

use self::session::Session;
use super::{MapStore, MapWatch, PublishError, StoreError};
use crate::map::{MapVersion, ShardMap};

pub use session::Publication;
pub use store::{Follow, Installed, Loaded, PostgresStore};

impl MapStore for PostgresStore {
    fn load(&self) -> BoxFuture<'_, Result<ShardMap, StoreError>> {
        async move {
            let session = Session::open(&self.connect, None).await?;
            session.map(self.shards).await
        }
        .boxed()
    }

    fn publish<'a>(
        &'a self,
        expected: MapVersion,
        map: &'a ShardMap,
    ) -> BoxFuture<'a, Result<(), PublishError>> {
        async move {
            if map.shards() != self.shards {
                return Err(PublishError::OtherCluster {
                    kept: self.shards,
                    given: map.shards(),
                });
            }
            if map.version() <= expected {
                return Err(PublishError::NotNewer {
                    expected,
                    given: map.version(),
                });
            }
            let session = Session::open(&self.connect, None).await?;
            match session.publish(Some(expected), map, &self.reason).await? {
                (true, _) => Ok(()),
                (false, Some(found)) => Err(PublishError::Conflict { expected, found }),
                (false, None) => Err(session.empty().into()),
            }
        }
        .boxed()
    }

    fn watch(&self) -> BoxFuture<'_, Result<MapWatch, StoreError>> {
        follow::begin(self.clone()).boxed()
    }
}
