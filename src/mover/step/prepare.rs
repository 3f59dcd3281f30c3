//! Prepare: an empty copy of the shard's schema at the target, and a signpost at the source.
//!
//! Before: the shard is claimed, and the source serves it. After: the target has `__incoming` with
//! tables, functions and views, but no rows, indexes or triggers; the source has `__signpost`. If
//! the mover dies in between, there are inert objects that are in the ledgers, and the next run
//! builds them again.

use std::collections::BTreeSet;

use futures_util::future::BoxFuture;

use crate::mover::control::journal::Note;
use crate::mover::copy::original::{Glance, Original};
use crate::mover::copy::{ShardCopy, cut as plan};
use crate::mover::definition::ddl::{Creation, Online, Statement};
use crate::mover::definition::refusal::Refusal;
use crate::mover::preflight::facts;
use crate::mover::preflight::identity::{self, Judgement, Keys};
use crate::mover::preflight::rehearsal;
use crate::mover::preflight::sound;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::{Mode, Phase};
use crate::mover::step::{ShardMove, at_open};
use crate::pg::quote_ident;
use crate::schema::catalog::{
    CLOSE_PATH, Facts, Namespace, Persistence, Relation, RelationKind, preamble,
};
use crate::schema::rights::{self, Users};

/// What the target was built from, kept for as long as the mover lives.
pub(crate) struct Blueprint {
    pub(crate) original: Original,
    pub(crate) creation: Creation,
    /// The names of its logged tables: a table that is created later is not part of the move.
    pub(crate) tables: BTreeSet<String>,
}

impl Blueprint {
    /// From facts that were read after the glance.
    pub(super) fn of(glance: Glance, facts: &Facts, creation: Creation) -> Blueprint {
        let is_followed = |one: &&Relation| {
            one.kind == RelationKind::Table && one.persistence == Persistence::Permanent
        };
        let tables = facts
            .relations
            .iter()
            .filter(is_followed)
            .map(|table| table.name.clone())
            .collect();
        Blueprint {
            original: glance.with(facts),
            creation,
            tables,
        }
    }
}

impl ShardMove<'_> {
    pub(crate) fn prepare(&self) -> BoxFuture<'_, Result<Blueprint, Error>> {
        Box::pin(async move {
            if self.rollback_of.is_none() {
                self.announce().await?;
                self.at("after incoming")?;
            }
            let schema = facts::schema_oid(&self.source, &self.names.schema)
                .await?
                .ok_or_else(|| Error::Stuck {
                    shard: self.hold.shard,
                    observed: format!(
                        "host {} serves the shard but has no schema {}",
                        self.source.host, self.names.schema
                    ),
                })?;
            if self.rollback_of.is_none() {
                self.refuse_unsound(schema).await?;
            }
            if self.mode == Mode::Online {
                self.lend_identities(schema).await?;
            }
            self.tell_what_is_lent().await?;
            self.at("after lend")?;
            let glance = Glance::at(&self.source, schema).await?;
            let facts = self.facts_at_source(&Namespace::Oid(schema)).await?;
            if self.mode == Mode::Online {
                self.refuse_unnamed(schema).await?;
            }
            let built = Blueprint::of(glance, &facts, self.creation(&facts).await?);
            let fingerprint = built.original.fingerprint().clone();
            // The old copy has its rows already: the stream brings what it lacks.
            let reached = match self.rollback_of {
                None => {
                    self.build_target(schema, &built.creation).await?;
                    self.at("after target schema")?;
                    Phase::Prepared
                }
                Some(taken_back) => {
                    self.adopt(taken_back, &fingerprint).await?;
                    self.at("after adopt")?;
                    self.cut_whole(schema).await?;
                    Phase::Loaded
                }
            };
            self.build_signpost().await?;
            self.at("after signpost")?;
            let note = Note {
                fingerprint: Some(fingerprint.record()),
                ..Note::default()
            };
            self.source.advance(self.hold, reached, &note).await?;
            self.reached(reached);
            self.at("after prepare")?;
            Ok(built)
        })
    }

    /// Checks, before anything is copied, that the source keeps to its own unique indexes and
    /// CHECKs.
    ///
    /// Locks: as [`sound::unsound`].
    async fn refuse_unsound(&self, schema: u32) -> Result<(), Error> {
        let found = sound::unsound(&self.source, schema).await?;
        if found.is_empty() {
            return Ok(());
        }
        let refusals = found.into_iter().map(|one| self.refusal(one)).collect();
        Err(Error::Refused { refusals })
    }

    /// Checks that the stream can identify the rows of every table: otherwise UPDATE and DELETE
    /// would fail at the source once the table is published.
    ///
    /// Locks: ACCESS SHARE on catalogs, for one statement.
    pub(super) async fn refuse_unnamed(&self, schema: u32) -> Result<(), Error> {
        let shapes = table::shapes(&self.source, schema).await?;
        let Judgement { lent, refusals } =
            identity::judge(&shapes, &Keys::new(), self.options.replica_identity);
        if let (Some(new), true) = (lent.first(), refusals.is_empty()) {
            let what = format!(
                "table {} is new, or has lost what identifies its rows",
                new.table
            );
            return Err(Error::Altered {
                shard: self.hold.shard,
                what,
            });
        }
        if refusals.is_empty() {
            return Ok(());
        }
        Err(Error::Refused {
            refusals: refusals
                .into_iter()
                .map(|found| self.refusal(found))
                .collect(),
        })
    }

    /// Announces the shard at the target, and writes to its ledger what will be built.
    ///
    /// Locks: ROW EXCLUSIVE on pgshard.incoming and pgshard.ledger, for one transaction.
    async fn announce(&self) -> Result<(), Error> {
        // A mover that was taken over while it slept gets no further: the lease is another's, or
        // the shard was opened. The ledger's row is written only together with the other one: alone
        // it would make gc take another move's schema for an orphan.
        let sql = "WITH announced AS (
                INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, epoch)
                SELECT $1, $6, $2, $3, $4, $5
                WHERE NOT EXISTS (SELECT FROM pgshard.shard WHERE shard_id = $1 AND epoch >= $5)
                ON CONFLICT (shard_id) DO UPDATE SET lease = excluded.lease
                WHERE pgshard.incoming.move_id = excluded.move_id AND pgshard.incoming.lease = \
                excluded.lease
                RETURNING schema_name)
            INSERT INTO pgshard.ledger (kind, name, move_id, shard_id)
            SELECT 'incoming', schema_name || '__incoming', $2, $1 FROM announced
            ON CONFLICT (kind, name) DO UPDATE SET move_id = excluded.move_id";
        let (shard, epoch) = (self.hold.shard.as_i32(), self.epoch.next().as_i32());
        let (source, schema) = (self.source.host.as_str(), self.names.schema.as_str());
        let what = "announcing the shard";
        let rows = self
            .target
            .execute(
                what,
                sql,
                &[
                    &shard,
                    self.hold.id.uuid(),
                    &self.hold.lease,
                    &source,
                    &epoch,
                    &schema,
                ],
            )
            .await?;
        if rows == 1 {
            return Ok(());
        }
        let reason =
            "another move, or another mover of this one, is bringing the shard there or has \
                brought it"
                .to_owned();
        Err(Error::Superseded {
            host: self.target.host.clone(),
            shard: self.hold.shard,
            reason,
        })
    }

    /// Cuts an old copy into the chunks in which it is compared. They do not decide which changes
    /// are applied.
    ///
    /// Locks: as [`plan::cut`].
    async fn cut_whole(&self, schema: u32) -> Result<(), Error> {
        let tables = table::shapes(&self.source, schema).await?;
        let (source_schema, target_schema) = (self.names.schema.clone(), self.names.incoming());
        let copy = ShardCopy {
            hold: self.hold,
            source_schema,
            target_schema,
            tables,
        };
        plan::cut(&self.source, &self.target, &copy, self.options).await
    }

    /// Builds what comes before the rows, and rehearses the rest. `schema`: the shard's at the
    /// source.
    ///
    /// Locks: only creates, in a schema that is not in use; remains of an earlier attempt are
    /// dropped.
    async fn build_target(&self, schema: u32, creation: &Creation) -> Result<(), Error> {
        let what = "building the target's schema";
        let incoming = quote_ident(&self.names.incoming());
        self.begin_on_target(what).await?;
        self.target
            .batch(what, &format!("DROP SCHEMA IF EXISTS {incoming} CASCADE"))
            .await?;
        self.target
            .batch(what, &preamble(&self.names.incoming()))
            .await?;
        for statement in &creation.before_data {
            self.target
                .make(format!("{what}: {}", statement.what), statement)
                .await?;
        }
        // When the target is opened, these run together, and whichever is first runs them.
        for statement in at_open(creation) {
            self.target.is_one_statement(what, &statement.sql).await?;
        }
        // Nothing of the rest shall run for the first time while the shard is closed.
        let at = |when| {
            let all = creation.after_data.iter();
            all.filter(move |statement| statement.online() == when)
                .cloned()
        };
        let rest: Vec<Statement> = at(Online::Loaded)
            .chain(at(Online::CaughtUp))
            .chain(at_open(creation))
            .chain(at(Online::Proved))
            .collect();
        let schemas = (schema, self.names.incoming());
        let schemas = (schemas.0, schemas.1.as_str());
        let found = rehearsal::finish(&self.source, &self.target, schemas, rest.iter()).await?;
        if !found.is_empty() {
            let refusals = found.into_iter().map(|one| self.refusal(one)).collect();
            return Err(Error::Refused { refusals });
        }
        self.target.batch(what, CLOSE_PATH).await?;
        // An old signpost may have the shard's final name. Nothing may be bound to it, or to any
        // other shard.
        let crossings = self
            .crossings(
                &self.target,
                &Namespace::from(self.names.incoming().as_str()),
            )
            .await?;
        if !crossings.is_empty() {
            let refusals = crossings
                .iter()
                .map(|crossing| self.refusal(Refusal::of_crossing(crossing)))
                .collect();
            return Err(Error::Refused { refusals });
        }
        let sql =
            "UPDATE pgshard.incoming SET ready_attempt = NULL, open_hash = NULL, at_open = NULL, \
                stream_from = NULL
             WHERE shard_id = $1";
        self.target
            .execute(what, sql, &[&self.hold.shard.as_i32()])
            .await?;
        self.forget_chunks().await?;
        self.admit_routers(what, &self.names.incoming()).await?;
        self.target.batch(what, "COMMIT").await
    }

    /// Lets the roles that may use the shard look it up at the target: their routers follow it
    /// there.
    ///
    /// Locks: where a role may not yet, SHARE ROW EXCLUSIVE on pgshard.control_migration, until the
    /// end of the step's transaction.
    async fn admit_routers(&self, what: &'static str, schema: &str) -> Result<(), Error> {
        let admitted = rights::admit(
            self.target.client.client(),
            Users::Of(schema),
            &BTreeSet::new(),
        )
        .await;
        admitted
            .map(drop)
            .map_err(|error| self.target.failed(what, error))
    }

    /// Locks: as documented at pgshard.build_signpost; ACCESS EXCLUSIVE on the views of an earlier
    /// signpost, which are not in use.
    async fn build_signpost(&self) -> Result<(), Error> {
        let what = "building the signpost";
        let signpost = quote_ident(&self.names.signpost());
        self.source
            .batch(
                what,
                &format!("BEGIN; DROP SCHEMA IF EXISTS {signpost} CASCADE"),
            )
            .await?;
        let sql = "DELETE FROM pgshard.ledger WHERE kind = 'signpost' AND name = $1";
        self.source
            .execute(what, sql, &[&self.names.signpost()])
            .await?;
        let sql = "SELECT pgshard.build_signpost($1, $2)";
        self.source
            .row(what, sql, &[&self.hold.shard.as_i32(), self.hold.id.uuid()])
            .await?;
        self.source.batch(what, "COMMIT").await
    }
}
