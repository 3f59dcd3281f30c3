//! Determines what can still be audited of a kept shard without its snapshots: tables that are the
//! same on both sides now, and tables that differ although they have not been written to since.
//!
//! Invariant: a difference in what may have been written to since is called "not audited", whatever
//! it is.

use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use tokio_postgres::types::ToSql;

use crate::mover::control::context::Context;
use crate::mover::control::journal::{Entry, Hold, ReverseReplication};
use crate::mover::control::session::Session;
use crate::mover::copy::digest::Hashing;
use crate::mover::definition::sequences;
use crate::mover::preflight::facts;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::Names;
use crate::mover::protocol::verdict::{Audit, AuditDifference, LeftOut, RowDifference};
use crate::pg::cause::chain;
use crate::pg::quote_ident;
use crate::schema::catalog::Namespace;
use crate::schema::catalog::fingerprint::{OTHER_VERSION, RecordComparison, fingerprint};

use crate::mover::runner::audit::known::{KNOWN, TABLE, read_earlier_result};
use crate::mover::runner::audit::rows::Comparison;
use crate::mover::runner::audit::side::{Side, StoredTable};

/// How each difference of this kind was found.
const HOW: &str = "compared later: nothing was written to it since";

/// Compares the old copy of a kept shard with the shard as both are now.
///
/// Locks: as [`crate::mover::runner::audit::run`].
pub(super) async fn compare(context: &Context, entry: &Entry) -> Audit {
    match both(context, entry).await {
        Ok(audit) => audit,
        Err(error) => Audit::left_out(format!("its snapshots are lost, and {}", chain(&error))),
    }
}

fn both<'a>(context: &'a Context, entry: &'a Entry) -> BoxFuture<'a, Result<Audit, Error>> {
    Box::pin(async move {
        let (shard, names) = (
            entry.shard,
            Names {
                schema: context.prefix.schema(entry.shard),
            },
        );
        let (hold, bound) = (
            Hold {
                id: entry.id,
                shard,
                lease: entry.lease,
            },
            context.options.audit_max,
        );
        let until = Instant::now() + bound;
        let target = context.hosts.open(&entry.target).await?.for_shard(shard);
        let there = facts::row_of(&target, shard).await?;
        let taken = entry
            .reverse
            .as_ref()
            .is_some_and(|back| back.taken_by.is_some());
        if taken
            || there.is_none_or(|row| row.state != "serving" || row.epoch != entry.epoch.next())
        {
            return Ok(Audit::left_out(
                "its snapshots are lost, and the shard has moved on since",
            ));
        }
        let left = names.left(entry.epoch);
        let ours = Side::open(&context.hosts, &entry.source, hold, &left, bound).await?;
        let theirs = Side::open(&context.hosts, &entry.target, hold, &names.schema, bound).await?;
        tokio::try_join!(ours.take(), theirs.take())?;
        let hashing = Hashing::of(
            facts::version(&ours.session).await?,
            facts::version(&theirs.session).await?,
        );
        let (comparison, mut found) =
            Comparison::plan(&ours, &theirs, hashing, &context.throttle, None, until).await?;
        let why = match tokio::time::timeout_at(until.into(), comparison.work(&ours, &theirs)).await
        {
            Ok(worked) => worked.err().map(|error| chain(&error)),
            Err(_) => Some(format!("not compared within {} s", bound.as_secs())),
        };
        let (rows, mut left_out) = comparison.end(why);
        found.extend(rows);
        let source = context.hosts.open(&entry.source).await?.for_shard(shard);
        let known = read_earlier_result(&target, entry.rollback_of, shard).await?;
        let (of_old, of_new) = (ours.tables(until).await?, theirs.tables(until).await?);
        let mut differences = Vec::new();
        for difference in found {
            let Some(table) = difference
                .what
                .strip_prefix(TABLE)
                .filter(|_| !difference.rows.is_empty())
            else {
                left_out.push(LeftOut {
                    why: format!("now {}", difference.how),
                    what: difference.what,
                });
                continue;
            };
            if known.contains(table) {
                left_out.push(LeftOut {
                    why: KNOWN.to_owned(),
                    what: difference.what,
                });
                continue;
            }
            let (here, there) = (
                TableName::of(&left, table),
                TableName::of(&names.schema, table),
            );
            let missing = |side: fn(&RowDifference) -> bool| difference.rows.iter().any(side);
            // The old copy is written to only by the feed.
            let fed = entry
                .reverse
                .as_ref()
                .is_some_and(|back: &ReverseReplication| back.fed);
            let written = (fed
                && is_younger(&ours, of_old.get(table), SINCE_MARKER, entry, until).await?)
                || is_younger(&theirs, of_new.get(table), SINCE_OPEN, entry, until).await?
                || (fed
                    && here
                        .written(
                            &source,
                            SINCE_MARKER,
                            entry,
                            missing(|row| row.source.is_none()),
                        )
                        .await?)
                || there
                    .written(
                        &target,
                        SINCE_OPEN,
                        entry,
                        missing(|row| row.target.is_none()),
                    )
                    .await?;
            if written {
                let why = format!(
                    "its snapshots are lost, and it was written to since; now {difference}"
                );
                left_out.push(LeftOut {
                    what: difference.what,
                    why,
                });
            } else {
                let how = format!("{HOW}; {}", difference.how);
                differences.push(AuditDifference { how, ..difference });
            }
        }
        left_out.extend(rest(entry, (&source, ours.schema), (&target, theirs.schema)).await?);
        Ok(Audit::of(differences, left_out))
    })
}

/// Compares sequences and definitions. The application may have changed them since, so a difference
/// proves nothing.
async fn rest(
    entry: &Entry,
    (source, left): (&Session, u32),
    (target, schema): (&Session, u32),
) -> Result<Vec<LeftOut>, Error> {
    let mut left_out = Vec::new();
    let what = "comparing the sequences";
    let ours = sequences::read(source.client.client(), &Namespace::Oid(left)).await;
    let ours = ours.map_err(|error| source.failed(what, error))?;
    let theirs = sequences::read(target.client.client(), &Namespace::Oid(schema)).await;
    let theirs = theirs.map_err(|error| target.failed(what, error))?;
    if let Some(what) = sequences::behind(&ours, &theirs) {
        left_out.push(LeftOut {
            what,
            why: "now its value is not the old copy's".to_owned(),
        });
    }
    let now = fingerprint(&facts::of_schema(target, &Namespace::Oid(schema)).await?);
    let why = match now.compare(entry.fingerprint.as_deref()) {
        RecordComparison::Same => return Ok(left_out),
        RecordComparison::Other => {
            "now they are not what the target was built from: they were altered since, or were not \
                carried"
        }
        RecordComparison::Unknown => OTHER_VERSION,
    };
    left_out.push(LeftOut {
        what: "definitions".to_owned(),
        why: why.to_owned(),
    });
    Ok(left_out)
}

/// The age of the transaction that opened the shard, which its row shows as long as the shard has
/// not moved on.
const SINCE_OPEN: &str =
    "SELECT age(xmin) FROM pgshard.shard WHERE shard_id = $2 AND $1::uuid IS NOT NULL";

/// The age of the marker's transaction, behind which the old copy was frozen.
const SINCE_MARKER: &str = "SELECT age(xmin) FROM pgshard.marker WHERE move_id = $1 AND shard_id = \
    $2 ORDER BY attempt DESC LIMIT 1";

/// Whether the snapshot sees a row of a transaction younger than `since`, or may have seen one: a
/// table that was dropped or rewritten since no longer shows its rows. The present content of the
/// table proves less: the rows that differed may have been deleted in between.
///
/// Locks: ACCESS SHARE on the table, for one look.
async fn is_younger(
    side: &Side,
    table: Option<&StoredTable>,
    since: &str,
    entry: &Entry,
    until: Instant,
) -> Result<bool, Error> {
    let Some(table) = table else { return Ok(true) };
    let Some(name) = side.begin_table(*table, 0, until).await? else {
        side.end().await?;
        return Ok(true);
    };
    let sql = format!(
        "SELECT EXISTS (SELECT FROM ONLY {name} WHERE age(xmin) < coalesce(({since}), 2147483647))"
    );
    let params: [&(dyn ToSql + Sync); 2] = [entry.id.uuid(), &entry.shard.as_i32()];
    let row = side
        .session
        .row("looking for later writes", &sql, &params)
        .await?;
    Ok(side.end_table(*table).await? != Some(table.file) || row.get(0)?)
}

/// A table's name in SQL.
struct TableName(String);

impl TableName {
    fn of(schema: &str, table: &str) -> TableName {
        TableName(format!("{}.{}", quote_ident(schema), quote_ident(table)))
    }

    /// Whether a transaction younger than `since` may have written to the table. A row of such a
    /// transaction proves it. That rows were deleted, only the server's statistics can show. They
    /// start at zero after a crash, and then count fewer rows than there are; and before PostgreSQL
    /// 15 an idle session may keep its counts to itself. If the statistics cannot answer, the table
    /// may have been written to. (They also count what the mover itself deleted.)
    async fn written(
        &self,
        session: &Session,
        since: &str,
        entry: &Entry,
        missing: bool,
    ) -> Result<bool, Error> {
        let told = self.told(session, since, entry).await?;
        if told.younger || !missing {
            return Ok(told.younger);
        }
        if told.may_have_deleted() || facts::version(session).await? < COUNTED_SINCE {
            return Ok(true);
        }
        tokio::time::sleep(COUNTED_WITHIN).await;
        let told = self.told(session, since, entry).await?;
        Ok(told.younger || told.may_have_deleted())
    }

    /// Locks: ACCESS SHARE on the table, for one statement.
    async fn told(
        &self,
        session: &Session,
        since: &str,
        entry: &Entry,
    ) -> Result<WriteTraces, Error> {
        let (what, TableName(name)) = ("looking for later writes", self);
        let sql = format!(
            "SELECT coalesce(bool_or(age(xmin) < coalesce(({since}), 2147483647)), false), count(*),
                pg_stat_get_tuples_inserted($3::text::regclass), \
                pg_stat_get_tuples_deleted($3::text::regclass)
             FROM ONLY {name}"
        );
        let params: [&(dyn ToSql + Sync); 3] = [entry.id.uuid(), &entry.shard.as_i32(), name];
        let row = session.row(what, &sql, &params).await?;
        let [rows, inserted, deleted] = [row.get(1)?, row.get(2)?, row.get(3)?];
        Ok(WriteTraces {
            younger: row.get(0)?,
            rows,
            inserted,
            deleted,
        })
    }
}

/// The first version with idle sessions that report their counts to the statistics.
const COUNTED_SINCE: u32 = 150_000;

/// How soon they report them (PGSTAT_IDLE_INTERVAL is ten seconds).
const COUNTED_WITHIN: Duration = Duration::from_secs(11);

/// The traces of later writes in a table and in the server's statistics.
struct WriteTraces {
    /// Whether it has a row of a younger transaction.
    younger: bool,
    rows: i64,
    inserted: i64,
    deleted: i64,
}

impl WriteTraces {
    fn may_have_deleted(&self) -> bool {
        self.deleted > 0 || self.inserted < self.rows
    }
}
