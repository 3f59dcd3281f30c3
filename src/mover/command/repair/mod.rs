//! Repairs a shard about which hosts contradict each other: two serve it, or none does, because a
//! host has lost what it had recorded.
//!
//! [`read`](facts::read) reads every host, [`judge`](judge::judge) decides, and the control
//! schema's functions execute the steps, each by a compare-and-swap. If something has changed in
//! between, they refuse, and the same command has to be run again. It also continues a repair that
//! died.

mod facts;
mod judge;
mod plan;
#[cfg(test)]
pub(in crate::mover::command) mod tests;

use std::collections::BTreeSet;

use tokio_postgres::types::ToSql;
use uuid::Uuid;

use crate::map::{Changes, HostName, Placement, ShardEpoch};
use crate::mover::command::repair::judge::{Action, Judgement};
use crate::mover::control::context::Context;
use crate::mover::control::session::Session;
use crate::mover::copy::transfer;
use crate::mover::preflight::facts::schema_oid;
use crate::mover::preflight::table;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::{MoveId, Names};
use crate::mover::step::old_copy;
use crate::mover::stream::row_index;
use crate::pg::cause::chain;
use crate::pg::{HostState, quote_ident};
use crate::schema::catalog::fingerprint::fingerprint;
use crate::schema::catalog::{self, Namespace};
use crate::shard::ShardId;
use crate::store;

pub(in crate::mover::command) use facts::{ServerRecord, server};
pub use plan::{AnsweringHost, GiveUp, HostClaim, Repair, RepairPlan, RepairWay};

/// What the journals contain about everything that a repair has ended.
const WHY: &str =
    "hosts contradicted each other about the shard: `pgshard moves repair` has decided";

/// Reads every host and decides. Writes nothing.
pub(in crate::mover) async fn plan(
    context: &Context,
    shard: ShardId,
    give_up: &GiveUp,
) -> Result<RepairPlan, Error> {
    let said = facts::read(context, shard).await?;
    Ok(RepairPlan::of(shard, &context.prefix, &said, give_up))
}

/// The same twice, from one reading of the hosts: with no host given up, and with this one.
pub(in crate::mover::command) async fn plan_with_and_without(
    context: &Context,
    shard: ShardId,
    host: &HostName,
) -> Result<(RepairPlan, RepairPlan), Error> {
    let said = facts::read(context, shard).await?;
    let without = |hosts: BTreeSet<HostName>| {
        let give_up = GiveUp::default().hosts(hosts);
        RepairPlan::of(shard, &context.prefix, &said, &give_up)
    };
    Ok((
        without(BTreeSet::new()),
        without(BTreeSet::from([host.clone()])),
    ))
}

/// Does what a plan is sure of, and publishes the map. If all is well with the shard, it only
/// publishes: a repair may have died before that.
pub(in crate::mover) async fn repair(context: &Context, plan: &RepairPlan) -> Result<(), Error> {
    let (host, epoch, actions) = match &plan.judgement {
        Judgement::Do {
            host,
            epoch,
            actions,
        } => (host, epoch, &actions[..]),
        Judgement::Fine { host, epoch } => (host, epoch, &[][..]),
        Judgement::Choose(_) | Judgement::Nothing => return Ok(()),
    };
    if !actions.is_empty() {
        still_gone(context, plan).await?;
    }
    let at = Work {
        context,
        shard: plan.shard,
        names: Names {
            schema: context.prefix.schema(plan.shard),
        },
    };
    for action in actions {
        at.act(action).await?;
    }
    let placement = Placement {
        host: host.clone(),
        epoch: *epoch,
    };
    let changes = Changes::from_iter([(plan.shard, placement)]);
    store::publish_merged(&*context.store, &changes)
        .await
        .map_err(Error::Publish)?;
    Ok(())
}

/// Refuses the plan where a host that was given up may serve the shard: it answered, or answers
/// now.
async fn still_gone(context: &Context, plan: &RepairPlan) -> Result<(), Error> {
    if let Some(AnsweringHost {
        host, state, why, ..
    }) = plan.answering.iter().find(|one| !one.is_fenced)
    {
        return Err(Error::NotGone {
            host: host.clone(),
            state: *state,
            why: why.clone(),
        });
    }
    for host in &plan.gone {
        let (state, why) = match context.hosts.open_new(host).await {
            Ok(_) => (HostState::Serving, "it did not a moment ago".to_owned()),
            Err(error) => (error.host_state(), chain(&error)),
        };
        if !state.may_be_gone() {
            let host = host.clone();
            return Err(Error::NotGone { host, state, why });
        }
    }
    Ok(())
}

struct Work<'a> {
    context: &'a Context,
    shard: ShardId,
    names: Names,
}

/// The statements that turn off the triggers of some tables, and those that bring each into the
/// state in which it was.
///
/// Locks: none but ACCESS SHARE on catalogs; the caller has locked the tables, so that no other
/// comes.
const TRIGGERS: &str = "
    SELECT coalesce(string_agg(format('ALTER TABLE ONLY %s DISABLE TRIGGER %I;', \
    tgrelid::regclass, tgname), ' '), ''),
        coalesce(string_agg(format('ALTER TABLE ONLY %s %s TRIGGER %I;', tgrelid::regclass,
            CASE tgenabled WHEN 'A' THEN 'ENABLE ALWAYS' ELSE 'ENABLE' END, tgname), ' '), '')
    FROM pg_trigger WHERE tgrelid = ANY ($1::oid[]) AND NOT tgisinternal AND tgenabled IN ('O', \
    'A')";

impl Work<'_> {
    async fn act(&self, action: &Action) -> Result<(), Error> {
        match action {
            Action::Raise { host, epoch, to } => {
                let sql = "SELECT pgshard.raise_epoch($1, $2, $3, $4)";
                let at = self.open(host).await?;
                self.call(&at, sql, &[&epoch.as_i32(), &to.as_i32(), &WHY])
                    .await
            }
            Action::StandDown {
                host,
                epoch,
                owner,
                since,
                rollback_of,
            } => {
                let at = self.open(host).await?;
                self.stand_down(&at, *epoch, owner, *since).await?;
                match rollback_of {
                    Some(former) => self.end_former(owner, *former).await,
                    None => Ok(()),
                }
            }
            Action::TakeBack {
                host,
                epoch,
                copy,
                taken_by,
                to,
            } => {
                let at = self.open(host).await?;
                if let Some(taker) = taken_by {
                    self.give_back(&at, *taker).await?;
                }
                self.take_back(&at, *epoch, *copy, *to).await?;
                self.validate(&at).await;
                Ok(())
            }
            Action::Open {
                host,
                by,
                id,
                epoch,
            } => {
                let at = self.open(host).await?;
                match by {
                    Some(by) => self.open_decided(&at, by, *id).await,
                    None => {
                        let sql = "SELECT pgshard.open_given_up($1, $2, $3)";
                        self.call(&at, sql, &[id.uuid(), &epoch.as_i32()]).await
                    }
                }?;
                self.validate(&at).await;
                Ok(())
            }
        }
    }

    async fn open(&self, host: &HostName) -> Result<Session, Error> {
        Ok(self.context.hosts.open(host).await?.for_shard(self.shard))
    }

    /// Calls a function of the control schema that has the shard as its first parameter.
    async fn call(
        &self,
        at: &Session,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<(), Error> {
        let shard = self.shard.as_i32();
        let mut all: Vec<&(dyn ToSql + Sync)> = vec![&shard];
        all.extend(params);
        at.row("repairing the shard", sql, &all).await.map(drop)
    }

    /// Makes the old copy the shard again. Its unlogged tables are emptied, as after a crash: their
    /// rows are from before the move, and they have not been kept up to date since. No trigger runs
    /// for that: the old copy was unsupervised, and a role that may create triggers there would run
    /// code as our role.
    ///
    /// Locks: as documented at pgshard.take_back, and ACCESS EXCLUSIVE on unlogged tables that are
    /// not in use, for one transaction.
    async fn take_back(
        &self,
        at: &Session,
        epoch: ShardEpoch,
        copy: ShardEpoch,
        to: ShardEpoch,
    ) -> Result<(), Error> {
        let what = "taking the old copy back";
        let left = self.names.left(copy);
        at.batch(what, "BEGIN").await?;
        let taken = async {
            let schema = schema_oid(at, &left).await?.unwrap_or(0);
            let tables = table::unlogged(at, schema).await?;
            let names: Vec<String> = tables
                .iter()
                .map(|table| transfer::qualified(&left, table))
                .collect();
            if !names.is_empty() {
                let all = names.join(", ONLY ");
                at.batch(
                    what,
                    &format!("LOCK TABLE ONLY {all} IN ACCESS EXCLUSIVE MODE"),
                )
                .await?;
                let oids: Vec<u32> = tables.iter().map(|table| table.oid).collect();
                let row = at.row(what, TRIGGERS, &[&oids]).await?;
                let (off, on): (&str, &str) = (row.get(0)?, row.get(1)?);
                at.batch(what, &format!("{off} TRUNCATE ONLY {all}; {on}"))
                    .await?;
            }
            let sql = "SELECT pgshard.take_back($1, $2, $3, $4, $5)";
            self.call(
                at,
                sql,
                &[&epoch.as_i32(), &copy.as_i32(), &to.as_i32(), &WHY],
            )
            .await
        };
        let taken = taken.await;
        at.batch(what, if taken.is_ok() { "COMMIT" } else { "ROLLBACK" })
            .await?;
        taken
    }

    /// Makes the host refuse the shard, and records the old copy's definition as it is now:
    /// `complete` drops it only if it was not altered. Both are in one transaction, because no
    /// other repair would record it.
    ///
    /// Locks: as documented at pgshard.stand_down, while the catalogs of one schema are read.
    async fn stand_down(
        &self,
        at: &Session,
        epoch: ShardEpoch,
        owner: &HostName,
        since: ShardEpoch,
    ) -> Result<(), Error> {
        let what = "standing the shard down";
        at.batch(what, "BEGIN").await?;
        let stood_down = self
            .stand_down_in_transaction(at, epoch, owner, since)
            .await;
        at.batch(
            what,
            if stood_down.is_ok() {
                "COMMIT"
            } else {
                "ROLLBACK"
            },
        )
        .await?;
        stood_down
    }

    async fn stand_down_in_transaction(
        &self,
        at: &Session,
        epoch: ShardEpoch,
        owner: &HostName,
        since: ShardEpoch,
    ) -> Result<(), Error> {
        let (id, holder) = (MoveId::new(), &self.context.options.holder);
        let sql = "SELECT pgshard.stand_down($1, $2, $3, $4, $5, $6, $7)";
        let (owner, since) = (owner.as_str(), since.as_i32());
        self.call(
            at,
            sql,
            &[&epoch.as_i32(), &owner, &since, id.uuid(), holder, &WHY],
        )
        .await?;
        self.context.options.at("after stand down")?;
        let kept = catalog::read(
            at.client.client(),
            &Namespace::from(self.names.left(epoch).as_str()),
        )
        .await;
        let mut kept = kept.map_err(|source| Error::Catalog {
            host: at.host.clone(),
            source,
        })?;
        row_index::leave_out(&mut kept);
        let sql = "UPDATE pgshard.move SET fingerprint = $3 WHERE move_id = $1 AND shard_id = $2";
        let (shard, kept) = (self.shard.as_i32(), fingerprint(&kept).record());
        at.execute(
            "writing what the old copy is",
            sql,
            &[id.uuid(), &shard, &kept],
        )
        .await
        .map(drop)
    }

    /// Ends the move that a rollback took back, as at the rollback's own end.
    ///
    /// Locks: two rows of the control tables, for one transaction.
    async fn end_former(&self, owner: &HostName, former: MoveId) -> Result<(), Error> {
        let (at, what, shard) = (
            self.open(owner).await?,
            "ending the move that was taken back",
            self.shard.as_i32(),
        );
        at.batch(what, "BEGIN").await?;
        let sql = "UPDATE pgshard.move SET phase = 'completed', last_error = 'it was taken back',
            updated_at = clock_timestamp()
            WHERE move_id = $1 AND shard_id = $2 AND phase = 'kept'";
        at.execute(what, sql, &[former.uuid(), &shard]).await?;
        let sql = "DELETE FROM pgshard.back WHERE move_id = $1 AND shard_id = $2";
        at.execute(what, sql, &[former.uuid(), &shard]).await?;
        at.batch(what, "COMMIT").await
    }

    /// Makes the old copy that a rollback has taken an old copy again.
    ///
    /// Locks: rows of the control tables and the tuple of pg_namespace, for one transaction.
    async fn give_back(&self, at: &Session, taker: MoveId) -> Result<(), Error> {
        let (what, shard) = ("giving the old copy back", self.shard.as_i32());
        at.batch(what, "BEGIN").await?;
        let given = old_copy::give_back(at, &self.names.schema, taker, self.shard).await?;
        let sql = "DELETE FROM pgshard.incoming WHERE shard_id = $1 AND move_id = $2";
        at.execute(what, sql, &[&shard, taker.uuid()]).await?;
        at.batch(what, if given { "COMMIT" } else { "ROLLBACK" })
            .await
    }

    /// Opens what was decided, with the token that the deciding host has. If the move was kept
    /// already, it can no longer be rolled back: its slot was the lost server's.
    async fn open_decided(&self, at: &Session, by: &HostName, id: MoveId) -> Result<(), Error> {
        let source = self.open(by).await?;
        let what = "reading what was decided";
        let sql = "SELECT open_token FROM pgshard.shard WHERE shard_id = $1 AND state = 'moved' \
            AND move_id = $2";
        let rows = source
            .rows(what, sql, &[&self.shard.as_i32(), id.uuid()])
            .await?;
        let token: Option<Uuid> = match rows.first() {
            Some(row) => row.get(0)?,
            None => None,
        };
        // This comes before the open: after it nothing would show another repair that this was not
        // done.
        if source.entry(id, self.shard).await?.phase.is_ended() {
            let why = format!("{} had lost its open, and was opened again", at.host);
            old_copy::mark_rollback_lost(&source, id, self.shard, &why).await?;
        }
        self.call(at, "SELECT pgshard.finish_open($1, $2)", &[&token])
            .await
    }

    /// Validates foreign keys that the open has added NOT VALID.
    ///
    /// Locks: SHARE UPDATE EXCLUSIVE on one table at a time and ROW SHARE on what it refers to.
    async fn validate(&self, at: &Session) {
        let validated = async {
            let what = "looking for foreign keys";
            let sql = "SELECT c.relname::text, k.conname::text FROM pg_constraint k
                JOIN pg_class c ON c.oid = k.conrelid JOIN pg_namespace n ON n.oid = c.relnamespace
                WHERE n.nspname = $1 AND k.contype = 'f' AND NOT k.convalidated ORDER BY 1, 2";
            for row in at.rows(what, sql, &[&self.names.schema]).await? {
                let (table, key): (&str, &str) = (row.get(0)?, row.get(1)?);
                let (schema, table, key) = (
                    quote_ident(&self.names.schema),
                    quote_ident(table),
                    quote_ident(key),
                );
                let sql = format!("ALTER TABLE {schema}.{table} VALIDATE CONSTRAINT {key}");
                at.batch("validating a foreign key", &sql).await?;
            }
            Ok::<_, Error>(())
        };
        if let Err(error) = validated.await {
            let error = chain(&error);
            tracing::warn!(shard = %self.shard, error, "foreign keys are enforced, but were not \
                validated");
        }
    }
}
