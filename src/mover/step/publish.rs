//! Publish: the map says what the hosts say already.
//!
//! Before: the target serves. After: so does the map, and the journal says that only the old copy is left. Dies halfway: a
//! resume publishes again, which changes nothing.

use std::time::Duration;

use super::ShardMove;
use crate::map::{Changes, Placement};
use crate::mover::chunk::table;
use crate::mover::error::Error;
use crate::mover::facts;
use crate::mover::journal::Note;
use crate::mover::state::Phase;
use crate::pg::quote_ident;
use crate::store::{self, MapStore};

impl ShardMove<'_> {
    pub(crate) async fn publish(&self, store: &dyn MapStore, pause: Option<Duration>) -> Result<(), Error> {
        self.at("before publish")?;
        let placement = Placement { host: self.target_name().clone(), epoch: self.epoch.next() };
        let changes = Changes::from_iter([(self.hold.shard, placement)]);
        store::publish_merged(store, &changes).await.map_err(Error::Publish)?;
        self.at("after publish")?;
        self.analyze().await;
        if let Some(pause) = pause {
            self.timings.took("pause", pause);
        }
        let note = Note { timings: self.timings.to_json(), ..Note::default() };
        self.source.advance(self.hold, Phase::Kept, &note).await?;
        self.reached(Phase::Kept);
        self.at("after kept")
    }

    /// Statistics for the planner. Autovacuum would make them in a minute; plans are bad until then.
    ///
    /// Locks: SHARE UPDATE EXCLUSIVE on one table at a time, which neither readers nor writers wait for.
    async fn analyze(&self) {
        let analyzed = async {
            // The shard may have moved on since: then there is nothing here to analyze.
            if let Some(schema) = facts::schema_oid(&self.target, &self.names.schema).await? {
                for table in table::shapes(&self.target, schema).await? {
                    let (schema, table) = (quote_ident(&self.names.schema), quote_ident(&table.name));
                    self.target.batch("analyzing", &format!("ANALYZE {schema}.{table}")).await?;
                }
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = analyzed.await {
            tracing::warn!(shard = %self.hold.shard, %error, "the shard was moved, but not analyzed: autovacuum will");
        }
    }
}
