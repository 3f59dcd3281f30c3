//! Compares a shard with its source at a common point, while both are in use.
//!
//! The stream is paused for a moment: the source's snapshot is taken, exactly the changes that it
//! sees are applied, the target's snapshot is taken, and the stream continues. Both sides are then
//! read without hurry, each in its own snapshot, and several such comparisons run at the same time.
//! Invariant: a chunk counts as verified only if both snapshots show the same state.

use std::time::Instant;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio::sync::Mutex;

use crate::mover::control::hosts::Hosts;
use crate::mover::control::journal::SessionPurpose;
use crate::mover::control::session::Session;
use crate::mover::copy::ShardCopy;
use crate::mover::copy::chunk::read_from;
use crate::mover::copy::cut::{Chunk, chunks};
use crate::mover::copy::digest::Hashing;
use crate::mover::copy::verify::{bunches, compare, keep, read_from_target, set_workers};
use crate::mover::preflight::facts;
use crate::mover::preflight::table;
use crate::mover::preflight::table::TableShape;
use crate::mover::protocol::error::{Error, LOCKED_MAX};
use crate::mover::runner::permit::CutOverPermits;
use crate::mover::step::ShardMove;
use crate::mover::stream::follower::Follower;
use crate::mover::stream::watermark::write_watermark;
use crate::pg::quote_literal;

/// How many bytes of small chunks are compared under one pair of snapshots, which are held for some
/// seconds at most.
const BUNCH_BYTES: u64 = 32 << 20;

/// Fewer bytes than this do not justify a pair of snapshots of their own.
const SMALL: u64 = 4 << 20;

/// How often a common point is sought. It may fail when transactions became visible in another
/// order than they were committed.
const TRIES: u32 = 20;

/// Compares everything that was not compared yet.
///
/// # Errors
/// [`Error::RowsDiffer`] with the keys of rows that differ.
pub(in crate::mover) async fn shard(
    work: &ShardMove<'_>,
    hosts: &Hosts,
    follower: &Follower,
    permits: &CutOverPermits,
) -> Result<(), Error> {
    let shard = work.hold.shard;
    let Some(schema) = facts::schema_oid(&work.source, &work.names.schema).await? else {
        return Err(Error::Altered {
            shard,
            what: "its schema is gone".to_owned(),
        });
    };
    let tables = table::shapes(&work.source, schema).await?;
    let (source_schema, target_schema) = (work.names.schema.clone(), work.names.incoming());
    let copy = ShardCopy {
        hold: work.hold,
        source_schema,
        target_schema,
        tables,
    };
    let hashing = Hashing::of(
        facts::version(&work.source).await?,
        facts::version(&work.target).await?,
    );
    let jobs = work.options.copy_jobs.max(1);
    let known =
        crate::mover::runner::audit::read_earlier_result(&work.target, work.rollback_of, shard)
            .await?;
    let until = Instant::now() + LOCKED_MAX;
    let mut chunks = loop {
        match chunks(&work.source, &work.target, &copy).await {
            Err(error) if error.is_lock() && Instant::now() < until => {}
            chunks => break chunks?,
        }
    };
    chunks.retain(|chunk| !known.contains(&chunk.table));
    let share = chunks.iter().map(|chunk| chunk.estimate).sum::<u64>() / jobs as u64;
    let bunches = bunches(chunks, share.clamp(SMALL, BUNCH_BYTES));
    let one_at_a_time = Mutex::new(());
    let compared = bunches.into_iter().map(|bunch| {
        let (copy, one_at_a_time) = (&copy, &one_at_a_time);
        async move {
            let _permit = permits.background_permit().await;
            // The sessions are its own: a comparison that is given up leaves them in a transaction.
            let open = async |host| Ok::<_, Error>(hosts.open(host).await?.for_shard(shard));
            let (source, target) =
                tokio::try_join!(open(&work.source.host), open(&work.target.host))?;
            {
                // One at a time: the stream is paused for it, and one session writes the
                // watermarks.
                let _only = one_at_a_time.lock().await;
                common_point((&source, &target), &work.source, copy, &bunch, follower).await?;
            }
            compare((&source, &target), copy, &bunch, hashing).await?;
            let what = "ending the comparison";
            tokio::try_join!(source.batch(what, "COMMIT"), target.batch(what, "COMMIT"))?;
            keep(&target, copy, &bunch).await?;
            tokio::join!(hosts.give_back(source), hosts.give_back(target));
            Ok(())
        }
    });
    stream::iter(compared)
        .buffer_unordered(jobs)
        .try_collect::<()>()
        .await
}

/// Leaves both sessions in transactions with snapshots that show the same state of the bunch's
/// tables.
///
/// Locks: ACCESS SHARE on these tables on both sides, for as long as the transactions last.
async fn common_point(
    (source, target): (&Session, &Session),
    writer: &Session,
    copy: &ShardCopy,
    bunch: &[Chunk],
    follower: &Follower,
) -> Result<(), Error> {
    let mut tables: Vec<&TableShape> = bunch
        .iter()
        .filter_map(|chunk| copy.table(&chunk.table))
        .collect();
    tables.dedup_by_key(|table| table.oid);
    let workers = set_workers(bunch.iter().map(|chunk| chunk.estimate).max().unwrap_or(0));
    let name = quote_literal(&copy.hold.session_name(SessionPurpose::Shard));
    let first = format!("SET LOCAL application_name = {name}; {workers}");
    let (mut tries, until) = (0, Instant::now() + LOCKED_MAX);
    while tries < TRIES {
        let paused = follower.pause().await?;
        let snapshot = match read_from(source, copy, &tables, &first).await {
            Err(error) if error.is_lock() && Instant::now() < until => {
                // Other shards need the stream during this time.
                drop(paused);
                until_free(source, copy, &tables, until).await?;
                continue;
            }
            snapshot => snapshot?,
        };
        tries += 1;
        let watermark = write_watermark(writer, copy.hold.id).await?;
        match paused.align(snapshot, watermark).await {
            Ok(true) => return read_from_target(target, copy, &tables, workers).await,
            Ok(false) => {}
            // A TRUNCATE may have waited in vain for another comparison to end. The stream starts
            // again, and so does this.
            Err(error) => match follower.failed(copy.shard()) {
                Some(_) => return Err(error),
                None => {
                    tracing::debug!(shard = %copy.shard(), %error, "the stream broke at a common \
                        point")
                }
            },
        }
        drop(paused);
        source
            .batch("looking for a common point", "ROLLBACK")
            .await?;
    }
    Err(Error::NoCommonPoint {
        shard: copy.shard(),
        tries: TRIES,
    })
}

/// Waits while another session has one of these tables locked, in a session with a transaction that
/// has failed for that reason.
///
/// Locks: ACCESS SHARE on the tables, for a statement.
async fn until_free(
    source: &Session,
    copy: &ShardCopy,
    tables: &[&TableShape],
    until: Instant,
) -> Result<(), Error> {
    loop {
        source
            .batch("looking for a common point", "ROLLBACK")
            .await?;
        match read_from(source, copy, tables, "SELECT").await {
            Ok(_) => return source.batch("looking for a common point", "ROLLBACK").await,
            Err(error) if error.is_lock() && Instant::now() < until => {}
            Err(error) => return Err(error),
        }
    }
}
