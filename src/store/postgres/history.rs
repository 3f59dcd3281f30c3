//! Earlier maps: when, by whom and why each was published. They are for people; nothing is decided
//! by them.

use super::session::{Publication, Session};
use super::store::PostgresStore;
use crate::map::{MapVersion, ShardMap};
use crate::store::StoreError;

impl PostgresStore {
    /// The most publications that the database keeps.
    pub const HISTORY_MAX: usize = 1000;

    /// The newest publications, at most `count`, the newest first.
    ///
    /// # Errors
    /// When the database is unreachable, or contains something that is not a map.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    pub async fn history(&self, count: usize) -> Result<Vec<Publication>, StoreError> {
        let session = Session::open(&self.connect, None).await?;
        session
            .history(self.shards, count.min(Self::HISTORY_MAX) as i64)
            .await
    }

    /// The newest map of the history that can be read, for when the map that is kept cannot. `None`
    /// when there is none.
    ///
    /// # Errors
    /// When the database is unreachable.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    pub async fn last_readable(&self) -> Result<Option<ShardMap>, StoreError> {
        Session::open(&self.connect, None)
            .await?
            .last_readable(self.shards)
            .await
    }

    /// The map that had this version; `None` when the history does not have it (any more).
    ///
    /// # Errors
    /// When the database is unreachable, or contains something that is not a map.
    ///
    /// # Cancel safety
    /// Reads only: may be dropped at any time.
    pub async fn version(&self, version: MapVersion) -> Result<Option<ShardMap>, StoreError> {
        Session::open(&self.connect, None)
            .await?
            .version(self.shards, version)
            .await
    }
}
