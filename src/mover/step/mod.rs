//! The steps of a move, each in a file of its own, which documents what is true before and after
//! it, and what the next start finds if the mover dies in between. Each may run twice. None decides
//! what comes next: that is [`state::next`](crate::mover::protocol::state::next).

mod at_open;
mod copy;
mod fence;
mod fill;
pub(crate) mod identity;
mod keys;
pub(crate) mod old_copy;
mod online;
mod open;
mod prepare;
mod publish;
mod timings;
pub(crate) mod undo;
mod unlogged;

use crate::mover::preflight;
use tokio_postgres::types::{ToSql, Type};

use crate::map::{HostName, ShardEpoch};
use crate::schema::catalog::{Facts, Namespace};
use crate::shard::SchemaPrefix;

use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::Hold;
use crate::mover::control::session::Session;
use crate::mover::definition::border;
use crate::mover::definition::border::Crossing;
use crate::mover::definition::ddl;
use crate::mover::definition::ddl::Creation;
use crate::mover::definition::digest::CatalogDigest;
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::table;
use crate::mover::preflight::target::closed_schemas;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::options::{Event, Observer, Options};
use crate::mover::protocol::state::{Mode, Phase};
use crate::mover::stream::row_index;

pub(crate) use crate::mover::step::at_open::{at_open, text_at_open};
pub(crate) use crate::mover::step::copy::{Outcome, token_hash};
pub(crate) use crate::mover::step::fence::{HELD, SwapOutcome};
pub(crate) use crate::mover::step::prepare::Blueprint;
pub(crate) use crate::mover::step::timings::Timings;

/// One shard that this mover works on: what every step needs.
pub(crate) struct ShardMove<'a> {
    pub(crate) hold: Hold,
    pub(crate) names: Names,
    pub(crate) prefix: &'a SchemaPrefix,
    pub(crate) mode: Mode,
    pub(crate) epoch: ShardEpoch,
    /// The move that this one takes back. Its old copy is the target.
    pub(crate) rollback_of: Option<MoveId>,
    pub(crate) source: Session,
    pub(crate) target: Session,
    pub(crate) options: &'a Options,
    pub(crate) observer: &'a Observer,
    /// How long each phase of this mover's work took.
    pub(crate) timings: Timings,
}

impl ShardMove<'_> {
    /// A place where a test may stop the mover.
    pub(crate) fn at(&self, failpoint: &'static str) -> Result<(), Error> {
        self.options.at(failpoint)
    }

    pub(crate) fn reached(&self, phase: Phase) {
        tracing::info!(shard = %self.hold.shard, id = %self.hold.id, %phase, "a move has reached");
        self.observer.notify(Event::Reached {
            shard: self.hold.shard,
            phase,
        });
    }

    pub(crate) fn target_name(&self) -> &HostName {
        &self.target.host
    }

    /// The parameters that identify an attempt of this mover in the control schema's functions.
    fn attempt<'p>(
        &'p self,
        shard: &'p i32,
        attempt: &'p i32,
    ) -> [(&'p (dyn ToSql + Sync), Type); 4] {
        let (id, lease) = (self.hold.id.uuid(), &self.hold.lease);
        [
            (shard, Type::INT4),
            (id, Type::UUID),
            (attempt, Type::INT4),
            (lease, Type::UUID),
        ]
    }

    /// Returns its sessions to the spare ones.
    pub(crate) async fn give_back(self, hosts: &Hosts) {
        tokio::join!(hosts.give_back(self.source), hosts.give_back(self.target));
    }

    /// Begins the target's transaction of a step and proves, until its end, that this mover holds
    /// the lease. A takeover waits for the row, and after a takeover this statement finds none.
    ///
    /// Locks: the row of pgshard.incoming, until the end of the transaction.
    async fn begin_on_target(&self, what: &'static str) -> Result<(), Error> {
        self.target.batch(what, "BEGIN").await?;
        let sql = "SELECT FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2 AND lease = \
            $3 FOR NO KEY UPDATE";
        let rows = self
            .target
            .rows(
                what,
                sql,
                &[
                    &self.hold.shard.as_i32(),
                    self.hold.id.uuid(),
                    &self.hold.lease,
                ],
            )
            .await?;
        if rows.is_empty() {
            Err(Error::LeaseLost {
                shard: self.hold.shard,
            })
        } else {
            Ok(())
        }
    }

    /// The statements that build the target, for its version of PostgreSQL.
    async fn creation(&self, facts: &Facts) -> Result<Creation, Error> {
        let incoming = self.names.incoming();
        let version = crate::mover::preflight::facts::version(&self.target).await?;
        let target = ddl::Target {
            schema: &incoming,
            final_schema: &self.names.schema,
            version,
            closed: &closed_schemas(&self.target, facts).await?,
        };
        let mut creation = ddl::create(facts, &target).map_err(|found| Error::Refused {
            refusals: found.into_iter().map(|one| self.refusal(one)).collect(),
        })?;
        if self.mode == Mode::Online {
            row_index::add(
                &mut creation,
                &incoming,
                &table::shapes(&self.source, facts.oid).await?,
                version,
            );
        }
        Ok(creation)
    }

    /// The dependencies that cross a schema's border on one of the hosts.
    async fn crossings(
        &self,
        session: &Session,
        schema: &Namespace,
    ) -> Result<Vec<Crossing>, Error> {
        let crossings = border::crossings(session.client.client(), schema, self.prefix).await;
        crossings.map_err(|source| Error::Border {
            host: session.host.clone(),
            source,
        })
    }

    /// The catalog digest of a schema of the source.
    ///
    /// Locks: ACCESS SHARE on catalogs, for one read-only transaction.
    pub(crate) async fn catalog_digest(&self, schema: u32) -> Result<CatalogDigest, Error> {
        let what = "reading the catalogs";
        self.source
            .batch(what, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .await?;
        let digest = CatalogDigest::take(self.source.client.client(), schema).await;
        self.source.batch(what, "ROLLBACK").await?;
        digest.map_err(|error| self.source.failed(what, error))
    }

    fn refusal(&self, found: Refusal) -> Refusal {
        found.at(self.hold.shard, &self.source.host)
    }

    /// The facts of a schema on the source, all from one state.
    ///
    /// Locks: ACCESS SHARE on catalogs, for one read-only transaction; and ACCESS SHARE on the
    /// schema's tables, which pg_get_expr and similar functions take.
    async fn facts_at_source(&self, namespace: &Namespace) -> Result<Facts, Error> {
        preflight::facts::of_schema(&self.source, namespace).await
    }
}
