//! A shard for callers that only read: on a standby of its host if that is near enough, else on the
//! primary.
//!
//! Invariant: an error of a standby is never final. Whatever goes wrong there, the primary is used,
//! as if there had been no attempt before.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{PgLsn, ToSql};

use super::answer::{Answer, FirstRow};
use super::call::{Call, CallFailure, call_span};
use super::error::{Error, Expected};
use super::from_row::FromRow;
use super::handle::Shard;
use super::lease::Lease;
use super::next::{Answers, ConnectionKind, Effect, Link, Step, TryHistory, after_statement};
use super::pool_slots::{Lane, Use};
use super::queries::{Misfit, query_methods};
use super::replica::Standby;
use super::routing::Place;
use super::sql::{ShardStatement, Sql, SqlText};
use super::stale::MoveSignal;
use super::standby_state::Why;
use super::statement_error::StatementError;
use super::statements::Prepare;
use crate::map::{HostName, ShardEpoch};
use crate::shard::ShardId;

/// A shard for calls that are declared as read-only (as [`Sql::reading`]). Made by
/// [`Shard::reads`].
///
/// A statement goes to a standby of the shard's host, in turn if there are several, when the router
/// has been given some ([`HostOptions::replicas`](super::HostOptions::replicas)) and knows that one
/// of them shows everything older than
/// [`Options::max_replica_lag`](super::Options::max_replica_lag). Otherwise, and when it fails
/// there for whatever reason, it runs on the primary like any other statement. So it gives no error
/// that it would not give without standbys, with two exceptions: when a standby has no free
/// connection, and when it cancels a statement that takes too long.
///
/// A read shows everything that was committed at least that long ago, but may miss what is newer,
/// and the second of two reads may show less than the first. A caller that must see its own writes
/// uses [`Reads::after`]. The same holds while the shard moves: a standby of the host that the
/// shard leaves shows it until the standby has replayed the move, and after that the router reads
/// elsewhere.
#[derive(Clone, Copy, Debug)]
pub struct Reads<'r> {
    shard: Shard<'r>,
    after: Option<Position>,
}

/// An answer, and from where it came.
pub(super) struct Answered<A> {
    pub(super) answer: A,
    /// The connection that gave it, unless it was given back.
    pub(super) lease: Option<Lease>,
    pub(super) host: HostName,
}

/// How far the host of a shard had written its log: everything that was committed before is before
/// it. Made by [`Shard::position`], for [`Reads::after`]; as text (`7@2:0/16B3748`: shard, epoch,
/// LSN) it fits into a cookie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Position {
    shard: ShardId,
    epoch: ShardEpoch,
    lsn: u64,
}

/// The text is no [`Position`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a position is written as in 7@2:0/16B3748: shard, epoch, LSN")]
pub struct PositionError;

/// The insert position and not the flushed one, because a commit that did not wait for its flush
/// counts as well.
const POSITION: &str = "SELECT pg_catalog.pg_current_wal_insert_lsn(), \
    pg_catalog.current_setting('wal_block_size')::pg_catalog.int8";

/// How often a position is read again because the shard moved in between.
const MOVES_MAX: u32 = 8;

impl<'r> Shard<'r> {
    /// The shard for calls that only read. A standby may answer them, see [`Reads`].
    ///
    /// ```no_run
    /// # use pgshard::router::{Error, Router};
    /// # async fn example(router: Router, user: i64) -> Result<(), Error> {
    /// let select = "SELECT * FROM {shard}.photos WHERE user_id = $1";
    /// let rows = router.by_key(user).reads().query(select, &[&user]).await?;
    ///
    /// let rename = "UPDATE {shard}.users SET name = 'Ada' WHERE id = $1";
    /// router.by_key(user).execute(rename, &[&user]).await?;
    /// let written = router.by_key(user).position().await?;
    /// let reads = router.by_key(user).reads().after(written);
    /// let row = reads.query_one("SELECT name FROM {shard}.users WHERE id = $1", &[&user]).await?;
    /// # Ok(()) }
    /// ```
    pub fn reads(self) -> Reads<'r> {
        Reads {
            shard: self,
            after: None,
        }
    }

    /// How far the shard's host has written its log. Call it on the router that wrote, after the
    /// write was acknowledged.
    ///
    /// # Errors
    /// As [`Shard::query`].
    ///
    /// # Cancel safety
    /// Nothing is lost when the future is dropped.
    pub async fn position(self) -> Result<Position, Error> {
        let inner = self.router().inner();
        let mut moves = 0;
        loop {
            let epoch = inner.place(self.id())?.epoch;
            let (lsn, block): (PgLsn, i64) = self.query_one_as(POSITION, &[]).await?;
            // The log belongs to the host. It was the right host if the shard is where it was
            // before.
            let place = inner.place(self.id())?;
            if place.epoch == epoch {
                return Ok(Position {
                    shard: self.id(),
                    epoch,
                    lsn: past_records(lsn.into(), block.unsigned_abs()),
                });
            }
            moves += 1;
            if moves == MOVES_MAX {
                let host = place.host.name.clone();
                let reason =
                    format!("it moved {moves} times while it was asked how far its log is");
                return Err(Error::ShardUnavailable {
                    shard: self.id(),
                    host,
                    waited_ms: 0,
                    reason,
                });
            }
        }
    }
}

/// At the beginning of a page the server names the place behind the page's header, where the next
/// record will be. No standby gets there before that record: what it can reach is the end of the
/// page before.
fn past_records(lsn: u64, block: u64) -> u64 {
    const HEADERS: [u64; 2] = [24, 40];
    match lsn.checked_rem(block) {
        Some(header) if HEADERS.contains(&header) => lsn - header,
        _ => lsn,
    }
}

impl<'r> Reads<'r> {
    /// The shard's handle.
    pub(super) fn handle(self) -> Shard<'r> {
        self.shard
    }
}

impl Reads<'_> {
    /// Reads only where everything up to `position` is visible, checked on the connection of the
    /// read itself. The call waits for a standby that is not there yet, at most
    /// [`Options::replica_wait`](super::Options::replica_wait); then it uses the primary. It uses
    /// the primary at once when the position is from before a move, or of another shard.
    #[must_use]
    pub fn after(mut self, position: Position) -> Self {
        self.after = Some(position);
        self
    }

    /// As [`Shard::within`]; the limit is for the standby and the primary together.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.shard = self.shard.within(limit);
        self
    }

    query_methods! {
        /// Runs a statement that begins with SELECT, WITH, VALUES, TABLE or SHOW, and gives its
        /// rows. `{shard}` in it is the shard's schema.
        ///
        /// # Errors
        /// As [`Shard::query`], and [`Error::NotARead`] for other statements.
        ///
        /// # Cancel safety
        /// As [`Shard::query`].
        (self) self
    }

    /// The shard.
    pub fn shard(self) -> ShardId {
        self.shard.id()
    }

    /// The number of rows that a statement finds.
    pub(super) async fn count(
        self,
        sql: SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, Error> {
        self.run(&sql, params).await
    }

    fn misfit(self, _: &SqlText<'_>) -> Misfit {
        Misfit {
            shard: self.shard.id(),
            host: self.shard.host(),
            may_have_run: false,
        }
    }

    async fn run<A: Answer>(
        self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<A, Error> {
        self.shard.checked()?;
        let call = Call::new(
            self.shard.target(),
            call_span!("pgshard.statement", self.shard.id()),
        );
        let result = call
            .limited(Box::pin(self.run_to_end(sql, params, &call)).as_mut())
            .await;
        call.ended(&result, CallFailure::of);
        result
    }

    async fn run_to_end<A: Answer>(
        self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
        call: &Call<'_>,
    ) -> Result<A, Error> {
        let answered = self.run_on_lease(sql, params, call).await?;
        Ok(answered.answer)
    }

    /// The same, with the connection that gave the answer.
    pub(super) async fn run_on_lease<A: Answer>(
        self,
        sql: &SqlText<'_>,
        params: &[&(dyn ToSql + Sync)],
        call: &Call<'_>,
    ) -> Result<Answered<A>, Error> {
        let (inner, shard) = (self.shard.router().inner(), self.shard.id());
        let sql = inner.sql.read(sql).with_word();
        if !sql.may_only_read() {
            return Err(Error::NotARead { shard });
        }
        self.shard.target().takes(&sql)?;
        let place = self.shard.target().place()?;
        if !place.host.replicas.is_empty() && !sql.asks_about_names() {
            let position = match self.after {
                None => Ok(None),
                Some(after) if after.shard == shard && after.epoch == place.epoch => {
                    Ok(Some(after.lsn))
                }
                Some(_) => Err(Why::Behind),
            };
            let standby = match position {
                Ok(position) => place.host.standby(position).await,
                Err(why) => Err(why),
            };
            let answer = match standby {
                Ok(standby) => self.at(&place, &standby, &sql, params).await?,
                Err(why) => Err(why),
            };
            place
                .host
                .metrics
                .read(&place.host.name, answer.as_ref().err().copied());
            if let Ok((answer, lease)) = answer {
                return Ok(Answered {
                    answer,
                    lease: Some(lease),
                    host: place.host.name.clone(),
                });
            }
        }
        let (answer, lease) = self
            .shard
            .run_on_lease(&SqlText::from(&sql), params, call)
            .await?;
        Ok(Answered {
            answer,
            lease,
            host: call.host_name().unwrap_or_else(|| self.shard.host()),
        })
    }

    /// Runs the statement on a standby, or returns why the primary must be used.
    async fn at<A: Answer>(
        self,
        place: &Place,
        standby: &Arc<Standby>,
        sql: &Sql,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Result<(A, Lease), Why>, Error> {
        let shard = self.shard.id();
        let mut lease = match standby.host.lease(Lane::Work, shard, Use::Statement).await {
            Ok(lease) => lease,
            // Too many readers must not become the primary's load.
            Err(error @ (Error::PoolTimeout { .. } | Error::TooManyWaiting { .. })) => {
                return Err(error);
            }
            Err(_) => return Ok(Err(Why::Failed)),
        };
        if let Err(why) = place
            .host
            .replicas
            .shows(&mut lease, self.after.map(|after| after.lsn))
            .await
        {
            if why == Why::Failed {
                lease.discard();
            }
            return Ok(Err(why));
        }
        let naming = place.host.naming(self.shard.router().prefix());
        let rendered = ShardStatement::new(sql, naming, self.shard.id());
        let failed = match lease.run(rendered, params, Prepare::Once).await {
            Ok(answer) => return Ok(Ok((answer, lease))),
            Err(failed) => failed,
        };
        let link = failed.link(&lease.session().connection);
        if link == Link::Lost {
            lease.discard();
            standby.host.circuit.doubt();
        } else {
            if remembers(&failed) {
                lease.discard();
            }
            tracing::debug!(%shard, host = %standby.host.name, error = %failed.error, "a standby \
                gives an error");
        }
        let cancelled = failed.error.code() == Some(&SqlState::QUERY_CANCELED);
        let observed = failed.observed(ConnectionKind::Standby { cancelled }, link, Effect::READS);
        match after_statement(TryHistory::nothing(0), observed, Answers::default()) {
            Step::End(end) => Err(failed.ended(end, shard, standby.host.name.clone())),
            Step::Retry(_) | Step::Query(_) => Ok(Err(Why::Failed)),
        }
    }
}

/// Whether the session may remember a signpost. It is not checked here whether an error is the
/// application's own mistake, and such a mistake should not cost a connection. Only errors within a
/// function have a CONTEXT, so other errors count only if a signpost gave them.
fn remembers(failed: &StatementError) -> bool {
    let within = failed
        .error
        .as_db_error()
        .is_some_and(|error| error.where_().is_some());
    failed.may_be_remembered()
        && (within || MoveSignal::of(&failed.error) == Some(MoveSignal::Signpost))
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}:{}", self.shard, self.epoch, PgLsn::from(self.lsn))
    }
}

impl FromStr for Position {
    type Err = PositionError;

    fn from_str(text: &str) -> Result<Position, PositionError> {
        let read = || {
            let (shard, rest) = text.split_once('@')?;
            let (epoch, lsn) = rest.split_once(':')?;
            Some(Position {
                shard: ShardId::new(shard.parse().ok()?)?,
                epoch: ShardEpoch::new(epoch.parse().ok()?)?,
                lsn: lsn.parse::<PgLsn>().ok()?.into(),
            })
        };
        read().ok_or(PositionError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_as_text() {
        let position = Position {
            shard: ShardId::new(7).unwrap(),
            epoch: ShardEpoch::new(2).unwrap(),
            lsn: 0x0001_016B_3748,
        };
        assert_eq!(position.to_string(), "7@2:1/16B3748");
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in [
            "",
            "7",
            "7@2",
            "7@0:0/1",
            "8192@1:0/1",
            "7@2:16B3748",
            "7@2:0/x",
            "x@2:0/1",
            "-1@2:0/1",
        ] {
            assert_eq!(text.parse::<Position>(), Err(PositionError), "{text}");
        }
    }

    #[test]
    fn a_position_is_one_that_can_be_reached() {
        for (lsn, reached) in [
            (8192 * 5, 8192 * 5),
            (8192 * 5 + 24, 8192 * 5),
            (8192 * 2048 + 40, 8192 * 2048),
            (8192 * 5 + 32, 8192 * 5 + 32),
            (8192 * 5 - 24, 8192 * 5 - 24),
        ] {
            assert_eq!(past_records(lsn, 8192), reached);
        }
        assert_eq!(past_records(24, 0), 24);
    }
}
