//! Copy, behind the fence: every row is copied and compared; then come indexes, constraints,
//! triggers and sequences.
//!
//! Before: fenced for this attempt. After: the target has everything that the source has, and is
//! marked as ready for this attempt, in one transaction. If the mover dies in between, that
//! transaction is rolled back, and the target is as prepared.

use std::borrow::Cow;
use std::time::Instant;

use sha2::{Digest as _, Sha256};
use uuid::Uuid;

use crate::mover::control::journal::{Entry, Note};
use crate::mover::copy::digest::{Hashing, computed_otherwise, digest};
use crate::mover::copy::transfer;
use crate::mover::definition::ddl::{Creation, Stage, Statement};
use crate::mover::definition::sequences;
use crate::mover::definition::sequences::Presets;
use crate::mover::preflight::facts;
use crate::mover::preflight::facts::Lock;
use crate::mover::preflight::table;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::desired::UnloggedRows;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::options::Event;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::throttle::Throttle;
use crate::mover::step::at_open::text;
use crate::mover::step::{Blueprint, ShardMove, SwapOutcome};
use crate::pg::quote_literal;
use crate::schema::catalog::fingerprint::{OTHER_VERSION, RecordComparison, fingerprint};
use crate::schema::catalog::{CLOSE_PATH, Namespace, preamble};

/// What the target knows about the token by which it may be opened: its hash.
pub(crate) fn token_hash(token: Uuid) -> String {
    Sha256::digest(token.to_string().as_bytes())
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// How a copy ended.
pub(crate) enum Outcome {
    /// Everything is at the target.
    Copied,
    /// Transactions held locks until the budget ran out. Nothing was copied.
    Blocked(Vec<Lock>),
    /// The shard's definition is not what the target was built from. What was copied must be built
    /// again.
    Altered(String),
}

impl ShardMove<'_> {
    pub(crate) async fn copy(
        &self,
        entry: &Entry,
        attempt: i32,
        built: Option<&Blueprint>,
    ) -> Result<Outcome, Error> {
        let left_name = self.names.left(self.epoch);
        let left = facts::schema_oid(&self.source, &left_name)
            .await?
            .ok_or_else(|| Error::Stuck {
                shard: self.hold.shard,
                observed: format!(
                    "host {} has no schema {left_name} although the shard is fenced",
                    self.source.host
                ),
            })?;
        let locks = self
            .mark_when_free(&self.source, SwapOutcome { attempt, left })
            .await?;
        if !locks.is_empty() {
            return Ok(Outcome::Blocked(locks));
        }
        let began = Instant::now();
        let creation = match self.unaltered(entry, left, built).await? {
            Ok(creation) => creation,
            Err(what) => return Ok(Outcome::Altered(what)),
        };
        let copying = self.timings.since("check", began);
        let (rows, bytes) = self.copy_rows(left, &left_name).await?;
        self.finish_target(entry, &creation, left, attempt).await?;
        let began = self.timings.since("copy", copying);
        // A GRANT or CREATE FUNCTION that was under way at the swap holds no lock that the barrier
        // could see.
        if let Err(what) = self.unaltered(entry, left, built).await? {
            return Ok(Outcome::Altered(what));
        }
        self.timings.since("recheck", began);
        let timings = self.timings.to_json();
        let note = Note {
            rows: Some(rows as i64),
            bytes: Some(bytes as i64),
            timings,
            ..Note::default()
        };
        self.source.advance(self.hold, Phase::Copied, &note).await?;
        self.reached(Phase::Copied);
        self.at("after copied")?;
        Ok(Outcome::Copied)
    }

    /// Returns what the target was built from, provided that the schema behind the fence is still
    /// the same and nothing crosses its border; otherwise what was altered.
    ///
    /// The stamp of the mover that built it answers in a few milliseconds. Only if there is none,
    /// or it differs, everything is read again while the shard is closed.
    async fn unaltered<'b>(
        &self,
        entry: &Entry,
        left: u32,
        built: Option<&'b Blueprint>,
    ) -> Result<Result<Cow<'b, Creation>, String>, Error> {
        let crossings = self.crossings(&self.source, &Namespace::Oid(left)).await?;
        if let Some(crossing) = crossings.first() {
            return Ok(Err(crossing.to_string()));
        }
        if let Some(built) = built
            && built.original.is_untouched(&self.source, left).await?
        {
            return Ok(Ok(Cow::Borrowed(&built.creation)));
        }
        let facts = self.facts_at_source(&Namespace::Oid(left)).await?;
        let altered = match fingerprint(&facts).compare(entry.fingerprint.as_deref()) {
            RecordComparison::Same => None,
            RecordComparison::Other => Some(
                "its tables, functions or grants are not what they were when the target was built",
            ),
            RecordComparison::Unknown => Some(OTHER_VERSION),
        };
        if let Some(what) = altered {
            return Ok(Err(what.to_owned()));
        }
        Ok(Ok(Cow::Owned(self.creation(&facts).await?)))
    }

    /// Copies the rows and compares their digests. The target's transaction stays open.
    ///
    /// Locks: ACCESS SHARE on the old copy's tables, which are not in use, until the end; on the
    /// target ROW EXCLUSIVE on tables that no other session uses.
    async fn copy_rows(&self, left: u32, left_name: &str) -> Result<(u64, u64), Error> {
        let what = "copying rows";
        let shard = self.hold.shard;
        let began = Instant::now();
        self.source
            .batch(what, "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            .await?;
        self.begin_on_target(what).await?;
        let incoming = self.names.incoming();
        let mut tables = table::shapes(&self.source, left).await?;
        if self.options.unlogged == UnloggedRows::Carried {
            tables.extend(table::unlogged(&self.source, left).await?);
        }
        let throttle = Throttle::open();
        let (mut rows, mut bytes) = (0, 0);
        for table in &tables {
            let tell = |bytes| self.observer.notify(Event::Copying { shard, bytes });
            let (out, into) = transfer::statements(table, left_name, &incoming, "true");
            let (n, size) =
                transfer::pipe((&self.source, &out), (&self.target, &into), &throttle, tell)
                    .await?;
            self.observer.notify(Event::TableCopied {
                shard,
                table: table.name.clone(),
                rows: n,
                bytes: size,
            });
            (rows, bytes) = (rows + n, bytes + size);
        }
        let began = self.timings.since("rows", began);
        self.compare(&tables, left_name, &incoming).await?;
        self.timings.since("compare", began);
        self.at("after rows")?;
        Ok((rows, bytes))
    }

    /// Compares digests of whole tables that are not written to.
    ///
    /// Locks: ACCESS SHARE on the tables of both sides, for a statement each.
    pub(super) async fn compare(
        &self,
        tables: &[TableShape],
        left_name: &str,
        incoming: &str,
    ) -> Result<(), Error> {
        let (ours, theirs) =
            tokio::try_join!(facts::version(&self.source), facts::version(&self.target))?;
        let hashing = Hashing::of(ours, theirs);
        for table in tables {
            let (ours, theirs) = tokio::try_join!(
                digest(&self.source, left_name, table, "true", hashing),
                digest(&self.target, incoming, table, "true", hashing)
            )?;
            if ours != theirs {
                let (here, there) = ((&self.source, left_name), (&self.target, incoming));
                if let Some(columns) =
                    computed_otherwise(here, there, table, "true", hashing).await?
                {
                    return Err(Error::Computed {
                        shard: self.hold.shard,
                        table: table.name.clone(),
                        columns,
                    });
                }
                return Err(Error::Differs {
                    shard: self.hold.shard,
                    table: table.name.clone(),
                    source_side: ours.to_string(),
                    target_side: theirs.to_string(),
                });
            }
        }
        Ok(())
    }

    /// Runs everything that comes after the rows, and marks the target as ready. Commits.
    ///
    /// Locks: ACCESS EXCLUSIVE on tables and materialized views that no other session uses; rows of
    /// the control tables.
    async fn finish_target(
        &self,
        entry: &Entry,
        creation: &Creation,
        left: u32,
        attempt: i32,
    ) -> Result<(), Error> {
        let what = "building indexes and constraints";
        let incoming = self.names.incoming();
        let began = Instant::now();
        self.target.batch(what, &preamble(&incoming)).await?;
        let (at_open, now): (Vec<Statement>, Vec<Statement>) = creation
            .after_data
            .iter()
            .cloned()
            .partition(|one| one.stage == Stage::Grant);
        for statement in &now {
            self.target
                .make(format!("{what}: {}", statement.what), statement)
                .await?;
        }
        self.target.batch(what, CLOSE_PATH).await?;
        self.fill_fenced(creation, left).await?;
        self.target.batch(what, CLOSE_PATH).await?;
        self.carry_sequences(left, &incoming).await?;
        self.carry_migrations().await?;
        self.source.batch("copying rows", "ROLLBACK").await?;
        self.at("after indexes")?;
        let hash = entry.open_token.map(token_hash).unwrap_or_default();
        let at_open = Some(text(&at_open)).filter(|text| !text.is_empty());
        let sql = "UPDATE pgshard.incoming SET ready_attempt = $2, open_hash = $3, at_open = $4 \
            WHERE shard_id = $1";
        let what = "declaring the target ready";
        self.target
            .execute(
                what,
                sql,
                &[&self.hold.shard.as_i32(), &attempt, &hash, &at_open],
            )
            .await?;
        self.target
            .batch(what, "SELECT pgshard.commit_durably()")
            .await?;
        self.at("before ready")?;
        self.target.batch(what, "COMMIT").await?;
        self.timings.since("finish", began);
        self.at("after ready")
    }

    /// Sets the target's sequences ahead of the source's: a transaction older than the swap may
    /// still take values from those.
    ///
    /// Locks: ROW EXCLUSIVE on the target's sequences until the end of its transaction.
    async fn carry_sequences(&self, left: u32, incoming: &str) -> Result<(), Error> {
        let what = "carrying the sequences";
        let seen = sequences::read(self.source.client.client(), &Namespace::Oid(left)).await;
        let presets = Presets::of(
            seen.map_err(|error| self.source.failed(what, error))?,
            Vec::new(),
        );
        let set =
            sequences::set_sequence_values(self.target.client.client(), incoming, &presets.values)
                .await;
        set.map_err(|error| self.target.failed(what, error))
    }

    /// Copies the list of the shard's migrations, and of a migration that was attempted on it, to
    /// the target's control schema.
    ///
    /// Locks: ROW EXCLUSIVE on pgshard.shard_migration and pgshard.migration_attempt until the end
    /// of the target's transaction.
    pub(super) async fn carry_migrations(&self) -> Result<(), Error> {
        let what = "carrying the list of migrations";
        let sql = "SELECT
            coalesce((SELECT json_agg(json_build_object('name', name, 'checksum', checksum, \
            'applied_at', applied_at))
                FROM pgshard.shard_migration WHERE shard_id = $1)::text, '[]'),
            coalesce((SELECT json_agg(a) FROM pgshard.migration_attempt a WHERE shard_id = \
            $1)::text, '[]')";
        let row = self
            .source
            .row(what, sql, &[&self.hold.shard.as_i32()])
            .await?;
        let (list, attempt): (String, String) = (row.get(0)?, row.get(1)?);
        let shard = self.hold.shard;
        let sql = format!(
            "DELETE FROM pgshard.shard_migration WHERE shard_id = {shard};
             INSERT INTO pgshard.shard_migration (shard_id, name, checksum, applied_at)
             SELECT {shard}, name, checksum, applied_at
             FROM json_to_recordset({}::json) AS m(name text, checksum text, applied_at \
             timestamptz);
             DELETE FROM pgshard.migration_attempt WHERE shard_id = {shard};
             INSERT INTO pgshard.migration_attempt (shard_id, name, checksum, begun, message, \
             tried_at)
             SELECT {shard}, name, checksum, begun, message, tried_at
             FROM json_to_recordset({}::json)
                 AS a(name text, checksum text, begun boolean, message text, tried_at timestamptz)",
            quote_literal(&list),
            quote_literal(&attempt)
        );
        self.target.batch(what, &sql).await
    }
}
