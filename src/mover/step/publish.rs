//! Publish: writes to the map the placements that are true on the hosts already.
//!
//! Before: the target serves. After: so does it in the map, and by the journal only the old copy is
//! left. If the mover dies in between, a resume publishes again, which changes nothing.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::map::{Changes, Placement};
use crate::mover::control::journal::Note;
use crate::mover::control::session::Session;
use crate::mover::definition::ddl::Creation;
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::{Mode, Phase};
use crate::mover::protocol::verdict::Audit;
use crate::mover::step::ShardMove;
use crate::pg::quote_ident;
use crate::schema::catalog::Namespace;
use crate::store::{self, MapStore};

impl ShardMove<'_> {
    /// Makes the open durable: from here on others rely on it. The session is the one in which the
    /// target was seen to be open, so the server has not crashed since.
    ///
    /// Locks: none.
    pub(crate) async fn keep_open(&self) -> Result<(), Error> {
        self.target.flush("making the open durable").await
    }

    /// Publishes the shard's new host to the map.
    pub(crate) async fn publish(&self, store: &dyn MapStore) -> Result<(), Error> {
        self.at("before publish")?;
        let placement = Placement {
            host: self.target_name().clone(),
            epoch: self.epoch.next(),
        };
        let changes = Changes::from_iter([(self.hold.shard, placement)]);
        store::publish_merged(store, &changes)
            .await
            .map_err(Error::Publish)?;
        self.at("after publish")
    }

    /// What follows once the map is published: validation of foreign keys, statistics, and the
    /// reverse replication.
    ///
    /// Locks: as [`validate`](ShardMove::validate), [`analyze`](ShardMove::analyze) and what they
    /// are followed by.
    pub(crate) fn settle<'a>(
        &'a self,
        built: Option<&'a Creation>,
    ) -> BoxFuture<'a, Result<(), Error>> {
        Box::pin(async move {
            match self.mode {
                Mode::Blocking => self.analyze(&self.names.schema, &BTreeSet::new()).await,
                Mode::Online => {
                    self.validate_keys(built).await?;
                    self.forget_chunks().await?;
                    self.at("after forgotten")?;
                    if let Some(taken_back) = self.rollback_of {
                        self.end_of_former(taken_back).await?;
                        self.at("after end of former")?;
                    }
                    self.keep_reverse().await?;
                }
            }
            Ok(())
        })
    }

    /// Records that only the old copy is left.
    ///
    /// Locks: the move's row, for one statement.
    pub(crate) async fn keep(&self, pause: Option<Duration>, audit: Audit) -> Result<(), Error> {
        if let Some(pause) = pause {
            self.timings.took("pause", pause);
        }
        let note = Note {
            timings: self.timings.to_json(),
            audit: Some(audit),
            ..Note::default()
        };
        self.source.advance(self.hold, Phase::Kept, &note).await?;
        self.reached(Phase::Kept);
        self.at("after kept")
    }

    /// Gathers statistics for the planner, on all tables but these. Autovacuum would do it within a
    /// minute; until then plans are bad.
    ///
    /// Locks: SHARE UPDATE EXCLUSIVE on one table at a time, which neither readers nor writers wait
    /// for.
    pub(super) async fn analyze(&self, schema: &str, but: &BTreeSet<String>) {
        let analyzed = async {
            // The shard may have moved on since: then there is nothing here to analyze.
            if let Some(oid) = facts::schema_oid(&self.target, schema).await? {
                let tables = table::all(&self.target, oid).await?;
                for table in tables.iter().filter(|table| !but.contains(&table.name)) {
                    let (schema, table) = (quote_ident(schema), quote_ident(&table.name));
                    self.target
                        .batch("analyzing", &format!("ANALYZE {schema}.{table}"))
                        .await?;
                }
                for statement in analyze_partitioned(&self.target, oid).await? {
                    self.target.batch("analyzing", &statement).await?;
                }
            }
            Ok::<(), Error>(())
        };
        if let Err(error) = analyzed.await {
            let (shard, error) = (self.hold.shard, &error);
            tracing::warn!(%shard, %error, "the shard's tables were not analyzed; autovacuum will \
                do it");
        }
    }

    /// Validates the foreign keys that the open has added NOT VALID. A mover that did not build the
    /// target reads their definitions from the old copy.
    async fn validate_keys(&self, built: Option<&Creation>) -> Result<(), Error> {
        let read = async {
            match facts::schema_oid(&self.source, &self.names.left(self.epoch)).await? {
                Some(left) => self
                    .creation(&self.facts_at_source(&Namespace::Oid(left)).await?)
                    .await
                    .map(Some),
                None => Ok(None),
            }
        };
        match built {
            Some(creation) => self.validate(creation).await,
            None => match read.await {
                Ok(Some(creation)) => self.validate(&creation).await,
                Ok(None) => Ok(()),
                Err(error) => {
                    tracing::warn!(shard = %self.hold.shard, %error, "foreign keys are enforced, \
                        but not validated");
                    Ok(())
                }
            },
        }
    }
}

/// The statements that give partitioned tables statistics of all their rows, which autovacuum never
/// does. Each is analyzed by itself where PostgreSQL can do that (18), otherwise from the top,
/// together with the partitions once more.
///
/// Locks: ACCESS SHARE on catalogs, for one statement.
async fn analyze_partitioned(session: &Session, schema: u32) -> Result<Vec<String>, Error> {
    let sql = "SELECT format('ANALYZE %s%I.%I', CASE WHEN v.has_only THEN 'ONLY ' END, n.nspname, \
        c.relname)
        FROM pg_namespace n JOIN pg_depend d ON d.refclassid = 'pg_namespace'::regclass AND \
        d.refobjid = n.oid
            AND d.classid = 'pg_class'::regclass
        JOIN pg_class c ON c.oid = d.objid AND c.relkind = 'p',
        LATERAL (SELECT current_setting('server_version_num')::integer >= 180000 AS has_only) AS v
        WHERE n.oid = $1 AND (v.has_only OR NOT c.relispartition) ORDER BY 1";
    session
        .rows("looking for partitioned tables", sql, &[&schema])
        .await?
        .iter()
        .map(|row| row.get(0))
        .collect()
}
