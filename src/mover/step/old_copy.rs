//! The old copy as the target of reverse replication: what is removed from it so that it can take
//! changes, and how it becomes a rollback's target.
//!
//! Invariant: the transaction that changes an old copy records what was removed and where it
//! belongs. So the copy that was kept up to date is the one that is compared, opened, or given
//! back.

use tokio_postgres::types::PgLsn;

use crate::map::{HostName, ShardEpoch};
use crate::mover::control::journal::{Entry, Hold};
use crate::mover::control::session::Session;
use crate::mover::definition::ddl;
use crate::mover::definition::ddl::{Target, grants};
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::preflight::target;
use crate::mover::protocol::desired::Rollback;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::protocol::state::Phase;
use crate::mover::step::{ShardMove, text_at_open};
use crate::mover::stream::row_index;
use crate::mover::stream::slot;
use crate::mover::stream::slot::Owner;
use crate::pg::quote_ident;
use crate::schema::catalog::fingerprint::{
    Fingerprint, OTHER_VERSION, RecordComparison, fingerprint,
};
use crate::schema::catalog::{Address, ConstraintKind, Facts, Namespace, Relation};
use crate::shard::ShardId;

/// The journal's entry of a shard in a move that was taken back.
pub(crate) const TAKEN_BACK: &str = "it was taken back";

impl ShardMove<'_> {
    /// Before the fence: publishes the target's tables and records the reverse replication, so that
    /// the shard has one from its open on.
    ///
    /// Locks: SHARE UPDATE EXCLUSIVE on tables that only the mover's own stream uses; a row of our
    /// own.
    pub(crate) async fn prepare_back(&self, stream: &str) -> Result<(), Error> {
        let incoming = self.names.incoming();
        let tables = match facts::schema_oid(&self.target, &incoming).await? {
            Some(oid) => table::shapes(&self.target, oid).await?,
            None => Vec::new(),
        };
        let tables: Vec<_> = tables
            .into_iter()
            .map(|table| (incoming.clone(), table.name))
            .collect();
        let owner = Owner {
            name: stream,
            id: self.hold.id,
            shard: self.hold.shard,
            options: self.options,
        };
        slot::create_publication(&self.target, owner, &tables).await?;
        self.at("after back tables")?;
        let sql = "INSERT INTO pgshard.back (move_id, shard_id, stream) VALUES ($1, $2, $3)
            ON CONFLICT (move_id, shard_id) DO UPDATE SET stream = excluded.stream, lost = NULL";
        let (id, shard) = (self.hold.id.uuid(), self.hold.shard.as_i32());
        self.source
            .execute(
                "preparing the reverse replication",
                sql,
                &[id, &shard, &stream],
            )
            .await?;
        self.at("after back row")
    }

    /// Once the target serves: makes the old copy take changes from now on. If this fails, the next
    /// reverse replication tries again.
    pub(crate) async fn keep_reverse(&self) -> Result<(), Error> {
        let Some(entry) = self
            .source
            .find_entry(self.hold.id, self.hold.shard)
            .await?
        else {
            return Ok(());
        };
        if let Err(error) = drop_constraints(&self.source, &self.target, &self.names, &entry).await
        {
            tracing::warn!(shard = %self.hold.shard, %error, "the old copy cannot take changes \
                yet");
        }
        self.at("after constraint drop")
    }

    /// Ends the move that this rollback has taken back.
    ///
    /// Locks: a few rows of the control tables, for one transaction.
    pub(crate) async fn end_of_former(&self, taken_back: MoveId) -> Result<(), Error> {
        let what = "ending the move that was taken back";
        let (id, shard) = (taken_back.uuid(), self.hold.shard.as_i32());
        self.target.batch(what, "BEGIN").await?;
        let sql = "UPDATE pgshard.move SET phase = 'completed', last_error = $3, updated_at = \
            clock_timestamp()
            WHERE move_id = $1 AND shard_id = $2 AND phase = 'kept'";
        self.target
            .execute(what, sql, &[id, &shard, &TAKEN_BACK])
            .await?;
        for table in ["back", "marker"] {
            let sql = format!("DELETE FROM pgshard.{table} WHERE move_id = $1 AND shard_id = $2");
            self.target.execute(what, &sql, &[id, &shard]).await?;
        }
        self.target.batch(what, "COMMIT").await
    }

    /// Makes the old copy of a former move the target of this one.
    ///
    /// Locks: rows of the control tables (a feed has them for a transaction at a time), and the
    /// tuple of pg_namespace, for one transaction.
    pub(crate) async fn adopt(
        &self,
        taken_back: MoveId,
        fingerprint: &Fingerprint,
    ) -> Result<(), Error> {
        let what = "taking the old copy for the reverse replication";
        let (shard, id, lease) = (
            self.hold.shard.as_i32(),
            *self.hold.id.uuid(),
            self.hold.lease,
        );
        self.target.batch(what, "BEGIN").await?;
        let sql =
            "SELECT lease FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2 FOR UPDATE";
        if let Some(row) = self.target.rows(what, sql, &[&shard, &id]).await?.first() {
            let ours = row.get::<_, uuid::Uuid>(0)? == lease;
            self.target.batch(what, "ROLLBACK").await?;
            return if ours {
                Ok(())
            } else {
                Err(Error::LeaseLost {
                    shard: self.hold.shard,
                })
            };
        }
        let adopted = self.adopt_in_transaction(taken_back, fingerprint).await;
        self.target
            .batch(
                what,
                if adopted.is_ok() {
                    "COMMIT"
                } else {
                    "ROLLBACK"
                },
            )
            .await?;
        adopted
    }

    async fn adopt_in_transaction(
        &self,
        taken_back: MoveId,
        fingerprint: &Fingerprint,
    ) -> Result<(), Error> {
        let what = "taking the old copy for the reverse replication";
        let (shard, id, lease) = (
            self.hold.shard.as_i32(),
            *self.hold.id.uuid(),
            self.hold.lease,
        );
        let host = &self.target.host;
        let refuse = |reason: String| Error::NoRollback {
            shard: self.hold.shard,
            id: taken_back,
            host: host.clone(),
            reason,
        };
        let sql = "SELECT m.epoch, m.fingerprint, b.at_open, b.lost, b.taken_by
            FROM pgshard.back b JOIN pgshard.move m USING (move_id, shard_id)
            WHERE b.move_id = $1 AND b.shard_id = $2 AND m.phase = 'kept' FOR UPDATE OF b";
        let rows = self
            .target
            .rows(what, sql, &[taken_back.uuid(), &shard])
            .await?;
        let row = rows
            .first()
            .ok_or_else(|| refuse("its old copy is not kept".to_owned()))?;
        let (at_open, lost): (Option<String>, Option<String>) = (row.get(2)?, row.get(3)?);
        if let Some(lost) = lost {
            return Err(refuse(lost));
        }
        if row
            .get::<_, Option<uuid::Uuid>>(4)?
            .is_some_and(|by| by != id)
        {
            return Err(refuse("another rollback has taken the old copy".to_owned()));
        }
        let at_open = at_open
            .ok_or_else(|| refuse("the old copy was not made ready to take changes".to_owned()))?;
        let epoch = ShardEpoch::from_i32(row.get(0)?).filter(|epoch| epoch.next() == self.epoch);
        let epoch = epoch.ok_or_else(|| refuse("the shard has moved on since".to_owned()))?;
        match fingerprint.compare(row.get::<_, Option<String>>(1)?.as_deref()) {
            RecordComparison::Same => {}
            RecordComparison::Other => {
                let reason = "the shard's tables were altered since, or one of its foreign keys \
                    was not validated, because rows break it (`pgshard check --ddl` says which)";
                return Err(refuse(reason.to_owned()));
            }
            RecordComparison::Unknown => {
                let reason = format!("{OTHER_VERSION}; that one can take the shard back");
                return Err(refuse(reason));
            }
        }
        let (left, incoming) = (self.names.left(epoch), self.names.incoming());
        let sql = "UPDATE pgshard.progress SET move_id = $3, lease = $4 WHERE move_id = $1 AND \
            shard_id = $2";
        if self
            .target
            .execute(what, sql, &[taken_back.uuid(), &shard, &id, &lease])
            .await?
            != 1
        {
            return Err(refuse("it is unknown how far the old copy is".to_owned()));
        }
        let sql = "UPDATE pgshard.back SET taken_by = $3 WHERE move_id = $1 AND shard_id = $2";
        self.target
            .execute(what, sql, &[taken_back.uuid(), &shard, &id])
            .await?;
        let sql = "INSERT INTO pgshard.incoming (shard_id, schema_name, move_id, lease, source, \
            epoch, at_open)
            VALUES ($1, $2, $3, $4, $5, $6, $7)";
        let (source, next) = (self.source.host.as_str(), self.epoch.next().as_i32());
        self.target
            .execute(
                what,
                sql,
                &[
                    &shard,
                    &self.names.schema,
                    &id,
                    &lease,
                    &source,
                    &next,
                    &at_open,
                ],
            )
            .await?;
        rename(
            &self.target,
            ("left", &left),
            ("incoming", &incoming),
            self.hold.id,
            self.hold.shard,
        )
        .await
    }
}

/// Renames a schema, and its row in the ledger.
///
/// Locks: the tuple of pg_namespace and the ledger's row, until the end of the transaction. None on
/// any table.
async fn rename(
    session: &Session,
    (kind, name): (&str, &str),
    (new_kind, new_name): (&str, &str),
    id: MoveId,
    shard: ShardId,
) -> Result<(), Error> {
    let what = "renaming the old copy";
    let sql = format!(
        "ALTER SCHEMA {} RENAME TO {}",
        quote_ident(name),
        quote_ident(new_name)
    );
    session.batch(what, &sql).await?;
    session
        .execute(
            what,
            "DELETE FROM pgshard.ledger WHERE kind = $1 AND name = $2",
            &[&kind, &name],
        )
        .await?;
    let sql = "INSERT INTO pgshard.ledger (kind, name, move_id, shard_id) VALUES ($1, $2, $3, $4)";
    session
        .execute(
            what,
            sql,
            &[&new_kind, &new_name, id.uuid(), &shard.as_i32()],
        )
        .await?;
    Ok(())
}

/// Within a transaction: gives an old copy that a rollback has taken back to the move that kept it.
/// Returns false if the rollback had taken none.
///
/// Locks: rows of the control tables and the tuple of pg_namespace, until the end of the
/// transaction.
pub(crate) async fn give_back(
    session: &Session,
    schema: &str,
    taker: MoveId,
    shard: ShardId,
) -> Result<bool, Error> {
    let what = "giving the old copy back";
    let sql = "SELECT b.move_id, m.epoch FROM pgshard.back b JOIN pgshard.move m USING (move_id, \
        shard_id)
        WHERE b.taken_by = $1 AND b.shard_id = $2 FOR UPDATE OF b";
    let rows = session
        .rows(what, sql, &[taker.uuid(), &shard.as_i32()])
        .await?;
    let Some(row) = rows.first() else {
        return Ok(false);
    };
    let taken_back = MoveId::from(row.get::<_, uuid::Uuid>(0)?);
    let names = Names {
        schema: schema.to_owned(),
    };
    let left = names.left(ShardEpoch::from_i32(row.get(1)?).unwrap_or(ShardEpoch::FIRST));
    rename(
        session,
        ("incoming", &names.incoming()),
        ("left", &left),
        taken_back,
        shard,
    )
    .await?;
    let sql = "UPDATE pgshard.progress SET move_id = $3 WHERE move_id = $1 AND shard_id = $2";
    session
        .execute(
            what,
            sql,
            &[taker.uuid(), &shard.as_i32(), taken_back.uuid()],
        )
        .await?;
    let sql = "UPDATE pgshard.back SET taken_by = NULL WHERE move_id = $1 AND shard_id = $2";
    session
        .execute(what, sql, &[taken_back.uuid(), &shard.as_i32()])
        .await?;
    Ok(true)
}

/// Removes foreign keys, triggers and rules from an old copy, and from all but the owner the right
/// to make some; gives its tables without a key an index by which changes find their rows, and
/// records the position from which it takes changes.
///
/// Does nothing if that was done already, or if there is no reverse replication.
///
/// Locks: ROW EXCLUSIVE on the old copy's tables, then ACCESS EXCLUSIVE on those that change, which
/// are not in use, for one transaction; behind a reader it gives up after two seconds.
pub(crate) async fn drop_constraints(
    source: &Session,
    target: &Session,
    names: &Names,
    entry: &Entry,
) -> Result<(), Error> {
    let what = "removing foreign keys and triggers from the old copy";
    let open = entry
        .reverse
        .as_ref()
        .is_some_and(|back| back.is_open() && !back.fed);
    if !open {
        return Ok(());
    }
    let (id, shard, left) = (
        *entry.id.uuid(),
        entry.shard.as_i32(),
        names.left(entry.epoch),
    );
    let sql = "SELECT opened_lsn FROM pgshard.shard WHERE shard_id = $1 AND epoch = $2 AND state \
        <> 'moved'";
    let opened = target
        .rows(what, sql, &[&shard, &entry.epoch.next().as_i32()])
        .await?;
    let Some(opened) = opened
        .first()
        .map(|row| row.get::<_, Option<PgLsn>>(0))
        .transpose()?
        .flatten()
    else {
        return mark_rollback_lost(
            source,
            entry.id,
            entry.shard,
            "the shard has moved on since",
        )
        .await;
    };
    let Some(oid) = facts::schema_oid(source, &left).await? else {
        return mark_rollback_lost(source, entry.id, entry.shard, "its old copy is gone").await;
    };
    let mut facts = facts::of_schema(source, &Namespace::Oid(oid)).await?;
    let tables = table::shapes(source, oid).await?;
    match fingerprint(&facts).compare(entry.fingerprint.as_deref()) {
        RecordComparison::Same => {}
        RecordComparison::Other => {
            return mark_rollback_lost(source, entry.id, entry.shard, ALTERED).await;
        }
        RecordComparison::Unknown => {
            return mark_rollback_lost(source, entry.id, entry.shard, OTHER_VERSION).await;
        }
    }
    let version = facts::version(source).await?;
    let target = Target {
        schema: &names.incoming(),
        final_schema: &names.schema,
        version,
        closed: &target::closed_schemas(source, &facts).await?,
    };
    let Ok(mut creation) = ddl::create(&facts, &target) else {
        return mark_rollback_lost(
            source,
            entry.id,
            entry.shard,
            "its old copy cannot be restored",
        )
        .await;
    };
    let relations: Vec<&Relation> = facts
        .relations
        .iter()
        .filter(|one| one.kind.is_table())
        .collect();
    let (oids, qualified): (Vec<u32>, Vec<String>) = relations
        .iter()
        .map(|table| {
            (
                table.oid,
                format!("{}.{}", quote_ident(&left), quote_ident(&table.name)),
            )
        })
        .unzip();
    let mut changes = String::new();
    if !qualified.is_empty() {
        // A session that is about to create a trigger waits from here on, and finds that it may not
        // any more.
        changes = format!(
            "LOCK TABLE ONLY {} IN ROW EXCLUSIVE MODE;\n",
            qualified.join(", ONLY ")
        );
    }
    changes.push_str(&take_off(&mut facts, &left));
    changes.push_str(&row_index::give(
        &mut creation,
        (&left, &names.incoming()),
        &tables,
        version,
    ));
    source.batch(what, "BEGIN").await?;
    let dropped = async {
        let sql = "UPDATE pgshard.back SET at_open = $3, fingerprint = $4
            WHERE move_id = $1 AND shard_id = $2 AND at_open IS NULL AND lost IS NULL AND taken_by \
            IS NULL";
        if source
            .execute(
                what,
                sql,
                &[
                    &id,
                    &shard,
                    &text_at_open(&creation),
                    &fingerprint(&facts).record(),
                ],
            )
            .await?
            == 0
        {
            return Ok(true);
        }
        source.batch(what, &changes).await?;
        if has_triggers(source, &oids).await? {
            return Ok(false);
        }
        let sql = "INSERT INTO pgshard.progress (move_id, shard_id, lease, applied_lsn) VALUES \
            ($1, $2, $3, $4)";
        source
            .execute(what, sql, &[&id, &shard, &entry.lease, &opened])
            .await?;
        Ok(true)
    };
    let dropped: Result<bool, Error> = dropped.await;
    source
        .batch(
            what,
            if matches!(dropped, Ok(true)) {
                "COMMIT"
            } else {
                "ROLLBACK"
            },
        )
        .await?;
    if dropped? {
        Ok(())
    } else {
        mark_rollback_lost(source, entry.id, entry.shard, ALTERED).await
    }
}

/// Why a changed old copy is not taken back.
const ALTERED: &str = "its old copy was altered";

/// Whether one of these tables has a trigger, or is referred to by a foreign key. Keys that are
/// checked at the end of a transaction have one of PostgreSQL's own.
///
/// Locks: none but ACCESS SHARE on catalogs. The caller has locked the tables, so the answer stays
/// true.
async fn has_triggers(source: &Session, tables: &[u32]) -> Result<bool, Error> {
    let what = "looking for triggers in the old copy";
    let sql = "SELECT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = ANY ($1::oid[])
        AND NOT (tgisinternal AND tgfoid = 'unique_key_recheck'::regproc))";
    source.row(what, sql, &[&tables]).await?.get(0)
}

/// Removes foreign keys, triggers and rules from the facts, and the privileges by which others make
/// some. Returns the statements that remove them in this schema.
pub(crate) fn take_off(facts: &mut Facts, schema: &str) -> String {
    let mut drops = String::new();
    let mut gone = Vec::new();
    let table = |oid: u32| {
        format!(
            "{}.{}",
            quote_ident(schema),
            quote_ident(facts.relation_name(oid))
        )
    };
    for trigger in &facts.triggers {
        // A partition's trigger is dropped with its parent's.
        if trigger.parent.is_none() {
            drops.push_str(&format!(
                "DROP TRIGGER {} ON {};\n",
                quote_ident(&trigger.name),
                table(trigger.relation)
            ));
        }
        gone.push(Address::new("pg_trigger", trigger.oid));
    }
    for key in facts
        .constraints
        .iter()
        .filter(|constraint| constraint.kind == ConstraintKind::ForeignKey)
    {
        drops.push_str(&format!(
            "ALTER TABLE {} DROP CONSTRAINT {};\n",
            table(key.relation),
            quote_ident(&key.name)
        ));
        gone.push(Address::new("pg_constraint", key.oid));
    }
    for rule in &facts.rules {
        drops.push_str(&format!(
            "DROP RULE {} ON {};\n",
            quote_ident(&rule.name),
            table(rule.relation)
        ));
        gone.push(Address::new("pg_rewrite", rule.oid));
    }
    drops.push_str(&grants::take_away(facts, schema));
    facts.triggers.clear();
    facts.rules.clear();
    facts
        .reads
        .retain(|(reader, ..)| reader.class != "pg_rewrite");
    facts
        .constraints
        .retain(|constraint| constraint.kind != ConstraintKind::ForeignKey);
    facts.comments.retain(|comment| !gone.contains(&comment.on));
    drops
}

/// Gives up the reverse replication of one shard.
///
/// Locks: its row, for one statement.
pub(crate) async fn mark_rollback_lost(
    source: &Session,
    id: MoveId,
    shard: ShardId,
    why: &str,
) -> Result<(), Error> {
    let sql =
        "UPDATE pgshard.back SET lost = $3 WHERE move_id = $1 AND shard_id = $2 AND lost IS NULL";
    tracing::warn!(%id, %shard, why, "a rollback is no longer possible");
    source
        .execute(
            "giving up the reverse replication",
            sql,
            &[id.uuid(), &shard.as_i32(), &why],
        )
        .await
        .map(drop)
}

/// Gives up the reverse replication of one shard, unless a rollback has taken its old copy. Returns
/// that rollback. If a rollback takes it at the same moment, one of the two comes first, and the
/// other sees it.
///
/// Locks: its row, for one statement.
pub(crate) async fn lose_unless_taken(
    source: &Session,
    id: MoveId,
    shard: ShardId,
    why: &str,
) -> Result<Option<MoveId>, Error> {
    let sql =
        "UPDATE pgshard.back SET lost = coalesce(lost, CASE WHEN taken_by IS NULL THEN $3 END)
        WHERE move_id = $1 AND shard_id = $2 RETURNING taken_by";
    let rows = source
        .rows(
            "giving up the reverse replication",
            sql,
            &[id.uuid(), &shard.as_i32(), &why],
        )
        .await?;
    let by = rows
        .first()
        .map(|row| row.get::<_, Option<uuid::Uuid>>(0))
        .transpose()?;
    Ok(by.flatten().map(MoveId::from))
}

/// Gives up the reverse replications of all shards of a move that went from this host to that one.
/// Returns how many there were.
///
/// Locks: their rows, for one statement.
pub(crate) async fn lose_all(
    source: &Session,
    target: &HostName,
    id: MoveId,
    why: &str,
) -> Result<u64, Error> {
    let sql = "UPDATE pgshard.back b SET lost = $3 FROM pgshard.move m
        WHERE b.move_id = $1 AND m.move_id = b.move_id AND m.shard_id = b.shard_id AND m.target = $2
        AND b.lost IS NULL";
    source
        .execute(
            "giving up the reverse replications",
            sql,
            &[id.uuid(), &target.as_str(), &why],
        )
        .await
}

/// What was recorded of an old copy's definition, and whether it was made ready to take changes:
/// then it is recorded without what was removed for that.
pub(crate) async fn recorded_of(
    source: &Session,
    entry: &Entry,
) -> Result<(Option<String>, bool), Error> {
    let sql = "SELECT fingerprint FROM pgshard.back WHERE move_id = $1 AND shard_id = $2 AND \
        at_open IS NOT NULL";
    let rows = source
        .rows(
            "reading the reverse replication",
            sql,
            &[entry.id.uuid(), &entry.shard.as_i32()],
        )
        .await?;
    let fed: Option<Option<String>> = rows.first().map(|row| row.get(0)).transpose()?;
    let is_fed = fed.is_some();
    Ok((fed.flatten().or_else(|| entry.fingerprint.clone()), is_fed))
}

/// Puts this hold's lease on a shard's progress, for the next reverse replication. Returns false if
/// there is no such row.
///
/// Locks: the row, for one statement; waits for a transaction of the former one.
pub(crate) async fn take_progress(source: &Session, hold: Hold) -> Result<bool, Error> {
    let sql = "UPDATE pgshard.progress p SET lease = $3 FROM pgshard.back b
        WHERE p.move_id = $1 AND p.shard_id = $2 AND b.move_id = $1 AND b.shard_id = $2
          AND b.lost IS NULL AND b.taken_by IS NULL";
    let taken = source
        .execute(
            "taking the feed over",
            sql,
            &[hold.id.uuid(), &hold.shard.as_i32(), &hold.lease],
        )
        .await?;
    Ok(taken == 1)
}

/// Why a rollback may not begin with this entry of the journal; `None` if it may.
pub(crate) fn refusal(entry: &Entry) -> Option<String> {
    let back = match (&entry.phase, &entry.reverse) {
        (Phase::Kept, Some(back)) => back,
        (Phase::Kept, None) if entry.rollback == Rollback::Forgone => {
            return Some(
                "it was moved with --no-reverse-replication: its old copy is as it was at the move"
                    .to_owned(),
            );
        }
        (Phase::Kept, None) => {
            return Some(
                "it has no reverse replication: it was moved blocking, or its target could not \
                    give one"
                    .to_owned(),
            );
        }
        _ => return Some("only a shard that is kept can be taken back".to_owned()),
    };
    match (&back.lost, back.taken_by) {
        (Some(why), _) => Some(format!("a rollback is no longer possible: {why}")),
        (None, Some(by)) => Some(format!(
            "the move {by} is taking it back: `pgshard moves resume {by}`"
        )),
        (None, None) => None,
    }
}
