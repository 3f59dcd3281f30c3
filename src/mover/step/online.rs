//! What an online move builds at the target around its rows, and the last part of it behind the
//! fence.
//!
//! Loaded. Before: every chunk of the shard's rows is at the target. After: primary keys and
//! non-unique indexes are, too. Caught up. Before: the target is in a state that the source was in,
//! and follows it. After: it has the other indexes, the list of migrations, and the statements that
//! the open will run. Drained. Before: fenced for an attempt. After: the target has everything that
//! the source has. If the mover dies in between: each is one transaction at the target, which also
//! records that it is done; behind the fence, as in `fence`.

use std::time::Instant;

use futures_util::future::BoxFuture;
use tokio_postgres::types::{PgLsn, ToSql, Type};

use crate::mover::control::journal::{Entry, Note};
use crate::mover::control::session::Session;
use crate::mover::copy::build;
use crate::mover::copy::original::{self, Alteration, Glance};
use crate::mover::copy::snapshot::Snapshot;
use crate::mover::definition::ddl::{Creation, Online, Statement};
use crate::mover::definition::digest::CatalogDigest;
use crate::mover::definition::sequences;
use crate::mover::definition::sequences::{Presets, SequenceValue};
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::state::Phase;
use crate::mover::step::at_open::{statements_at, text_at_open};
use crate::mover::step::{Blueprint, ShardMove};
use crate::mover::stream::follower::Follower;
use crate::mover::stream::slot;
use crate::schema::catalog::fingerprint::{OTHER_VERSION, RecordComparison, fingerprint};
use crate::schema::catalog::{CLOSE_PATH, Namespace, preamble};

impl ShardMove<'_> {
    /// What the target is to be built from, as it is at the source now.
    ///
    /// # Errors
    /// [`Error::Altered`] if the target was built from something else.
    pub(crate) fn blueprint<'a>(
        &'a self,
        entry: &'a Entry,
    ) -> BoxFuture<'a, Result<Blueprint, Error>> {
        Box::pin(async move {
            let altered = |what: &str| Error::Altered {
                shard: self.hold.shard,
                what: what.to_owned(),
            };
            let schema = facts::schema_oid(&self.source, &self.names.schema).await?;
            let schema = schema.ok_or_else(|| altered("its schema is gone"))?;
            let glance = Glance::at(&self.source, schema).await?;
            let facts = self.facts_at_source(&Namespace::Oid(schema)).await?;
            match fingerprint(&facts).compare(entry.fingerprint.as_deref()) {
                RecordComparison::Same => {}
                RecordComparison::Other => return Err(altered(Alteration::Definition.describe())),
                RecordComparison::Unknown => return Err(altered(OTHER_VERSION)),
            }
            self.refuse_unnamed(schema).await?;
            // A rollback finds rows that it has not copied.
            if self.rollback_of.is_none()
                && original::is_rewritten(&self.source, schema, &self.copied().await?).await?
            {
                return Err(altered(Alteration::Rows.describe()));
            }
            Ok(Blueprint::of(glance, &facts, self.creation(&facts).await?))
        })
    }

    /// The tables with the snapshots in which their chunks were read, as far as they were.
    ///
    /// Locks: ACCESS SHARE on pgshard.chunk, for one statement.
    async fn copied(&self) -> Result<Vec<(String, Snapshot)>, Error> {
        let what = "reading what is copied";
        let sql = "SELECT DISTINCT table_name, snapshot FROM pgshard.chunk
            WHERE move_id = $1 AND shard_id = $2 AND snapshot IS NOT NULL";
        let rows = self
            .target
            .rows(what, sql, &[self.hold.id.uuid(), &self.hold.shard.as_i32()])
            .await?;
        let mut copied = Vec::with_capacity(rows.len());
        for row in &rows {
            let snapshot: &str = row.get(1)?;
            copied.extend(
                Snapshot::parse(snapshot)
                    .map(|snapshot| Ok::<_, Error>((row.get(0)?, snapshot)))
                    .transpose()?,
            );
        }
        Ok(copied)
    }

    /// Builds the primary keys and most indexes, unless that was done while other tables were
    /// copied. Changes of transactions that commit after `from` are applied from now on.
    ///
    /// Locks: on the target ACCESS EXCLUSIVE on tables that no other session uses; rows of the
    /// control tables.
    pub(crate) async fn loaded(
        &self,
        creation: &Creation,
        from: PgLsn,
        (rows, bytes): (i64, i64),
        copied_at: Instant,
    ) -> Result<(), Error> {
        let what = "building keys and indexes";
        let incoming = self.names.incoming();
        self.begin_on_target(what).await?;
        let tables: Vec<&str> = statements_at(creation, Online::Loaded)
            .filter_map(|one| one.table.as_deref())
            .collect();
        let built = build::built(&self.target, &incoming, &tables).await?;
        // If the row exists, this was done before.
        let sql = "INSERT INTO pgshard.progress (move_id, shard_id, lease, applied_lsn) VALUES \
            ($1, $2, $3, $4)
             ON CONFLICT DO NOTHING";
        let (id, shard) = (self.hold.id.uuid(), self.hold.shard.as_i32());
        if self
            .target
            .execute(what, sql, &[id, &shard, &self.hold.lease, &from])
            .await?
            == 1
        {
            self.target.batch(what, &preamble(&incoming)).await?;
            let is_built = |one: &&Statement| {
                one.table
                    .as_ref()
                    .is_some_and(|table| built.contains(table))
            };
            for statement in statements_at(creation, Online::Loaded).filter(|one| !is_built(one)) {
                self.target.make(what, statement).await?;
            }
            self.target.batch(what, CLOSE_PATH).await?;
        }
        // The chunks were committed without waiting for the disk: this commit waits for them as
        // well.
        self.target
            .batch(what, "SELECT pgshard.commit_durably()")
            .await?;
        self.at("in keys")?;
        self.target.batch(what, "COMMIT").await?;
        self.at("after keys")?;
        self.analyze(&incoming, &built).await;
        self.timings.since("keys", copied_at);
        let note = Note {
            rows: Some(rows),
            bytes: Some(bytes),
            timings: self.timings.to_json(),
            ..Note::default()
        };
        self.source.advance(self.hold, Phase::Loaded, &note).await?;
        self.reached(Phase::Loaded);
        self.at("after loaded")
    }

    /// Builds the indexes that need a consistent state, and records the list of migrations and the
    /// statements for the open.
    ///
    /// Locks: on the target SHARE ROW EXCLUSIVE and more on tables that only the mover's own stream
    /// uses, which waits for it. They are taken all at once and while it holds no other, or the two
    /// could wait for each other. Also rows of the control tables.
    pub(crate) async fn caught_up(
        &self,
        creation: &Creation,
        follower: &Follower,
    ) -> Result<(), Error> {
        let what = "building indexes and constraints";
        let began = Instant::now();
        self.begin_on_target(what).await?;
        let sql = "SELECT at_open IS NOT NULL FROM pgshard.incoming WHERE shard_id = $1";
        let shard = self.hold.shard.as_i32();
        if !self
            .target
            .row(what, sql, &[&shard])
            .await?
            .get::<_, bool>(0)?
        {
            let paused = follower.pause().await?;
            let incoming = facts::schema_oid(&self.target, &self.names.incoming())
                .await?
                .unwrap_or(0);
            for table in table::shapes(&self.target, incoming).await? {
                let table = format!("{}.{}", quoted(&self.names.incoming()), quoted(&table.name));
                self.target
                    .batch(
                        what,
                        &format!("LOCK TABLE {table} IN SHARE ROW EXCLUSIVE MODE"),
                    )
                    .await?;
            }
            drop(paused);
            self.target
                .batch(what, &preamble(&self.names.incoming()))
                .await?;
            for statement in statements_at(creation, Online::CaughtUp) {
                self.target.make(what, statement).await?;
            }
            self.target.batch(what, CLOSE_PATH).await?;
        }
        self.carry_migrations().await?;
        // An old copy gets back exactly what was removed from it.
        let sql = "UPDATE pgshard.incoming SET at_open = coalesce(at_open, $2) WHERE shard_id = $1";
        self.target
            .execute(what, sql, &[&shard, &text_at_open(creation)])
            .await?;
        self.at("in caught up")?;
        self.target.batch(what, "COMMIT").await?;
        self.timings.since("indexes", began);
        self.at("after caught up")
    }

    /// Records that only the fence is missing.
    ///
    /// Locks: the move's row, for one statement.
    pub(crate) async fn ready(&self) -> Result<(), Error> {
        let note = Note {
            timings: self.timings.to_json(),
            ..Note::default()
        };
        self.source.advance(self.hold, Phase::Ready, &note).await?;
        self.reached(Phase::Ready);
        self.at("after catch-up")
    }

    /// The last thing before the swap: the target's sequences are set ahead of the source's, and
    /// the target is marked as ready for no attempt.
    ///
    /// Locks: ROW EXCLUSIVE on the target's sequences, the row of pgshard.incoming, for one
    /// transaction.
    pub(crate) async fn preset(&self) -> Result<Presets, Error> {
        let what = "setting the sequences ahead";
        let schema = Namespace::from(self.names.schema.as_str());
        let seen = sequences::read(self.source.client.client(), &schema).await;
        let seen = seen.map_err(|error| self.source.failed(what, error))?;
        // The sequences of an old copy have handed out values; those of a new copy may begin
        // anywhere.
        let floor = match self.rollback_of {
            Some(_) => {
                let incoming = Namespace::from(self.names.incoming().as_str());
                let own = sequences::sequence_values(self.target.client.client(), &incoming).await;
                own.map_err(|error| self.target.failed(what, error))?
            }
            None => Vec::new(),
        };
        let presets = Presets::of(seen, floor);
        self.begin_on_target(what).await?;
        let (target, incoming) = (self.target.client.client(), self.names.incoming());
        let set = sequences::set_sequence_values(target, &incoming, &presets.values).await;
        set.map_err(|error| self.target.failed(what, error))?;
        let sql = "UPDATE pgshard.incoming SET ready_attempt = NULL, open_hash = NULL WHERE \
            shard_id = $1";
        self.target
            .execute(what, sql, &[&self.hold.shard.as_i32()])
            .await?;
        self.target
            .batch(what, "SELECT pgshard.commit_durably()")
            .await?;
        self.at("in preset")?;
        self.target.batch(what, "COMMIT").await?;
        self.at("after preset")?;
        Ok(presets)
    }

    /// Whether the shard is still what the target was built from; if not, what was altered. Also
    /// returns the sequences with values that are not within their presets, which
    /// [`set_anew`](ShardMove::set_anew) corrects. No session takes values any longer, except
    /// transactions older than the swap that have not touched the sequences before. It runs behind
    /// the fence, after the marker, at the same time as the last changes. The publication must be
    /// whole, too.
    ///
    /// Locks: ACCESS SHARE on catalogs and on the shard's sequences, for one statement each.
    pub(crate) async fn unchanged(
        &self,
        left: u32,
        digest: &CatalogDigest,
        built: &Blueprint,
        presets: &Presets,
    ) -> Result<Result<Vec<SequenceValue>, String>, Error> {
        let began = Instant::now();
        let client = self.source.client.client();
        let (schema, names) = (
            self.names.left(self.epoch),
            presets.names().collect::<Vec<_>>(),
        );
        // Both are sent before the first is answered.
        let looked = tokio::try_join!(
            biased;
            digest.is_same(client),
            sequences::values_of(client, &schema, &names)
        );
        let (same, now) =
            looked.map_err(|error| self.source.failed("looking for changes", error))?;
        if !same && let Some(what) = self.altered(left, built).await?.or(self.gap(left).await?) {
            return Ok(Err(what));
        }
        self.timings.since("check", began);
        Ok(Ok(presets.anew(&now)))
    }

    /// Sets sequences of the target, in one round trip. It uses the session and transaction in
    /// which the open is prepared: that transaction holds the rows by which a shard is taken over,
    /// so no later owner can have taken values yet. In another session it would wait for this one.
    ///
    /// Locks: ROW EXCLUSIVE on the sequences, to the end of the transaction.
    pub(crate) async fn set_anew(
        &self,
        opening: &Session,
        values: &[SequenceValue],
    ) -> Result<(), Error> {
        let sql =
            "SELECT pg_catalog.setval(pg_catalog.format('%I.%I', $1, s.name)::pg_catalog.regclass, \
                s.value, s.called)
            FROM unnest($2::text[], $3::bigint[], $4::boolean[]) AS s(name, value, called)";
        let names: Vec<&str> = values.iter().map(|value| value.name.as_str()).collect();
        let last: Vec<i64> = values.iter().map(|value| value.last_value).collect();
        let called: Vec<bool> = values.iter().map(|value| value.is_called).collect();
        let params: [(&(dyn ToSql + Sync), Type); 4] = [
            (&self.names.schema, Type::TEXT),
            (&names, Type::TEXT_ARRAY),
            (&last, Type::INT8_ARRAY),
            (&called, Type::BOOL_ARRAY),
        ];
        opening
            .typed_rows("setting the sequences again", sql, &params)
            .await
            .map(drop)
    }

    /// The difference between a schema of the source and what the target was built from, if any, or
    /// what lets its changes past the fence.
    ///
    /// Locks: as [`Original::alteration`](crate::mover::copy::original::Original::alteration).
    pub(crate) async fn altered(
        &self,
        schema: u32,
        built: &Blueprint,
    ) -> Result<Option<String>, Error> {
        let namespace = Namespace::Oid(schema);
        if let Some(crossing) = self.crossings(&self.source, &namespace).await?.first() {
            return Ok(Some(crossing.to_string()));
        }
        let alteration = built
            .original
            .clone()
            .alteration(&self.source, schema)
            .await?;
        Ok(alteration.map(|alteration| alteration.describe().to_owned()))
    }

    /// What keeps the shard's changes out of its stream, if anything.
    ///
    /// Locks: as [`slot::gap`].
    pub(crate) async fn gap(&self, schema: u32) -> Result<Option<String>, Error> {
        let stream = self.stream();
        let gap = slot::gap(self.source.client.client(), &stream, schema).await;
        gap.map_err(|error| self.source.failed("looking at the publication", error))
    }

    /// The name of publication and slot.
    fn stream(&self) -> String {
        slot::name_of(self.hold.id, self.rollback_of, &self.target.host)
    }

    /// Forgets what was compared, because one of the servers was restarted or replaced, or it was
    /// another mover that has compared it.
    ///
    /// Locks: the shard's rows of pgshard.chunk, for one transaction.
    pub(crate) async fn verify_anew(&self) -> Result<(), Error> {
        let what = "forgetting what was verified";
        self.begin_on_target(what).await?;
        let sql = "UPDATE pgshard.chunk SET verified_at = NULL
            WHERE move_id = $1 AND shard_id = $2 AND verified_at IS NOT NULL";
        self.target
            .execute(what, sql, &[self.hold.id.uuid(), &self.hold.shard.as_i32()])
            .await?;
        self.target.batch(what, "COMMIT").await
    }

    /// Deletes the records of an online move at the target.
    ///
    /// Locks: rows of the control tables, for one transaction.
    pub(crate) async fn forget_chunks(&self) -> Result<(), Error> {
        let what = "dropping the records of the copy";
        for table in ["chunk", "reread", "progress"] {
            let sql = format!("DELETE FROM pgshard.{table} WHERE move_id = $1 AND shard_id = $2");
            self.target
                .execute(
                    what,
                    &sql,
                    &[self.hold.id.uuid(), &self.hold.shard.as_i32()],
                )
                .await?;
        }
        Ok(())
    }
}

fn quoted(name: &str) -> String {
    crate::pg::quote_ident(name)
}
