//! Who works on a move: a row of `pgshard.mover` at the host that the shards come from, and the
//! session lock of its lease.
//!
//! The shards of one move that go from one host to one other have one mover, whatever has become of
//! each of them. So a shard that has failed, or is kept already, is not taken over while the mover
//! works on the others.
//!
//! Invariant: all open shards of such a route change hands in one transaction, and only if no mover
//! that holds one of them is alive.

use crate::mover::protocol::desired::{StopKind, StopRequest};
use crate::mover::protocol::worker::{Claimant, Work, Worker};
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tokio_postgres::error::SqlState;
use uuid::Uuid;

use crate::map::HostName;
use crate::shard::ShardId;

use crate::mover::control::heartbeat::Heartbeat;
use crate::mover::control::journal::{COLUMNS, Entry, Hold, SessionPurpose};
use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::protocol::error::Error;
use crate::mover::protocol::names::MoveId;
use crate::schema::lock::MOVERS as LOCK_CLASS;

/// The mover of a lease, dead or alive.
#[derive(Debug)]
pub(crate) struct Presence {
    pub(crate) lease: Uuid,
    pub(crate) worker: Worker,
    /// How long its lease lasts; if zero, it is paused or gone.
    left: Duration,
    /// Whether the connection that holds its session lock is there.
    locked: bool,
}

impl Presence {
    /// Whether the mover renews its lease, and its connection is there.
    pub(crate) fn lives(&self) -> bool {
        self.locked && !self.left.is_zero()
    }
}

/// Identifies the shards of one move that go to one host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route<'a> {
    pub(crate) id: MoveId,
    pub(crate) target: &'a HostName,
}

impl Session {
    /// Records that a mover is at work here from now on.
    ///
    /// Locks: one row of its own, for this one statement.
    pub(crate) async fn enter(&self, claimant: &Claimant, lease: Duration) -> Result<(), Error> {
        let sql = "INSERT INTO pgshard.mover (lease, move_id, target, holder, work, lease_until)
            VALUES ($1, $2, $3, $4, $5, clock_timestamp() + $6 * interval '1 ms')";
        let Claimant {
            id,
            lease: own,
            target,
            holder,
            work,
        } = claimant;
        let (target, work, lease_ms) = (target.as_str(), work.as_str(), lease.as_millis() as f64);
        self.execute(
            "recording who works",
            sql,
            &[own, id.uuid(), &target, holder, &work, &lease_ms],
        )
        .await
        .map(drop)
    }

    /// Records that the mover has ended. What it has not finished can be taken over immediately.
    ///
    /// Locks: the rows that it still holds, and its own, for this one statement.
    pub(crate) async fn depart(&self, lease: Uuid) -> Result<(), Error> {
        let sql = "WITH gone AS (DELETE FROM pgshard.mover WHERE lease = $1 RETURNING move_id)
            UPDATE pgshard.move SET lease_until = clock_timestamp()
            WHERE move_id = (SELECT move_id FROM gone) AND lease = $1 AND lease_until > \
            clock_timestamp()";
        self.execute("recording that the mover has ended", sql, &[&lease])
            .await
            .map(drop)
    }

    /// Removes the rows of movers that died, once their lease is over.
    ///
    /// Locks: their rows, for one statement.
    pub(crate) async fn forget_the_dead(&self) -> Result<(), Error> {
        let presences = self.presences(None).await?;
        let gone = |presence: &&Presence| !presence.locked && presence.left.is_zero();
        let gone: Vec<Uuid> = presences
            .iter()
            .filter(gone)
            .map(|presence| presence.lease)
            .collect();
        let sql = "DELETE FROM pgshard.mover WHERE lease = ANY ($1)";
        self.execute("forgetting dead movers", sql, &[&gone])
            .await
            .map(drop)
    }

    /// Whether this lease's mover is still in charge: no other mover has taken over.
    ///
    /// Locks: none but ACCESS SHARE on the table.
    pub(crate) async fn is_entered(&self, lease: Uuid) -> Result<bool, Error> {
        let sql = "SELECT FROM pgshard.mover WHERE lease = $1";
        Ok(!self
            .rows("asking who works", sql, &[&lease])
            .await?
            .is_empty())
    }

    /// Renews the mover's lease, and returns the request for it; `None` if another mover has taken
    /// over.
    ///
    /// Locks: its row, for this one statement.
    pub(crate) async fn renew_presence(
        &self,
        lease: Uuid,
        lasts_ms: i32,
    ) -> Result<Option<Option<StopRequest>>, Error> {
        let what = "renewing the mover's lease";
        let sql =
            "UPDATE pgshard.mover SET lease_until = clock_timestamp() + $2 * interval '1 ms' \
            WHERE lease = $1
            RETURNING asked, asked_by";
        let rows = self
            .rows(what, sql, &[&lease, &f64::from(lasts_ms)])
            .await?;
        rows.first().map(stop_request).transpose()
    }

    /// Who works on moves from this host, or on one of them, including movers that are gone without
    /// saying so.
    ///
    /// Locks: none but ACCESS SHARE on the table; pg_locks holds the lock manager's partitions for
    /// microseconds.
    pub(crate) async fn presences(&self, id: Option<MoveId>) -> Result<Vec<Presence>, Error> {
        let what = "asking who works";
        let sql =
            "SELECT m.lease, m.holder, m.work = 'feed' AS feeds, m.since, m.asked, m.asked_by,
                greatest(0, extract(epoch FROM m.lease_until - clock_timestamp()))::double \
                precision AS lasts,
                EXISTS (SELECT FROM pg_locks l
                        WHERE l.locktype = 'advisory' AND l.granted AND l.classid = $2 AND \
                        l.objsubid = 2
                          AND l.objid::bigint = ('x' || left(m.lease::text, 8))::bit(32)::bigint
                          AND l.database = (SELECT oid FROM pg_database WHERE datname = \
                          current_database())) AS locked
            FROM pgshard.mover m WHERE $1::uuid IS NULL OR m.move_id = $1 ORDER BY m.since";
        let class = LOCK_CLASS.cast_unsigned();
        let rows = self
            .rows(what, sql, &[&id.map(|id| *id.uuid()), &class])
            .await?;
        rows.iter().map(presence).collect()
    }

    /// Adds its worker to each entry.
    pub(crate) async fn add_workers(
        &self,
        entries: &mut [Entry],
        id: Option<MoveId>,
    ) -> Result<(), Error> {
        let presences = self.presences(id).await?;
        let known: BTreeMap<Uuid, &Presence> = presences
            .iter()
            .map(|presence| (presence.lease, presence))
            .collect();
        for entry in entries {
            entry.worker = match known.get(&entry.lease) {
                Some(presence) => presence.lives().then(|| presence.worker.clone()),
                None => nameless(entry),
            };
        }
        Ok(())
    }

    /// Takes the leases of a route's open shards and returns the shards, with the leases that they
    /// had. If a live mover works on them, returns that mover, and how long its lease is valid
    /// unless it renews it.
    ///
    /// Locks: rows of pgshard.shard that this move has fenced, then the route's rows of
    /// pgshard.move, in the order of the shards, for one transaction; the former movers' rows.
    async fn take_route(
        &self,
        route: Route<'_>,
        to: &Claimant,
        leases: (i32, i32),
    ) -> Result<Take, Error> {
        self.batch(TAKING, "BEGIN").await?;
        let taken = self.take_in_transaction(route, to, leases).await;
        self.batch(
            TAKING,
            if matches!(taken, Ok(Take::Taken { .. })) {
                "COMMIT"
            } else {
                "ROLLBACK"
            },
        )
        .await?;
        taken
    }

    async fn take_in_transaction(
        &self,
        route: Route<'_>,
        to: &Claimant,
        leases: (i32, i32),
    ) -> Result<Take, Error> {
        let (id, target, (lease_ms, fence_ms)) = (route.id.uuid(), route.target.as_str(), leases);
        // Only fenced rows are locked: a migration may hold the row of a shard that is served for
        // long. The shards' rows come first, as everywhere: otherwise this transaction and a
        // heartbeat or decide of a mover that wakes up right now would wait for each other.
        let sql = "SELECT FROM pgshard.shard WHERE state = 'fenced' AND move_id = $1 AND peer = $2
             ORDER BY shard_id FOR NO KEY UPDATE";
        self.rows(TAKING, sql, &[id, &target]).await?;
        let sql = format!(
            "SELECT {COLUMNS} FROM pgshard.move WHERE move_id = $1 AND target = $2 AND phase NOT \
                IN ({ENDED})
             ORDER BY shard_id FOR UPDATE"
        );
        let entries = self.read_entries(TAKING, &sql, &[id, &target]).await?;
        let former: BTreeSet<Uuid> = entries.iter().map(|entry| entry.lease).collect();
        let presences = self.presences(Some(route.id)).await?;
        for entry in &entries {
            let presence = presences
                .iter()
                .find(|presence| presence.lease == entry.lease);
            let at_work = match presence {
                Some(presence) => presence
                    .lives()
                    .then(|| (presence.worker.clone(), presence.left)),
                None => nameless(entry).map(|worker| (worker, entry.lease_left)),
            };
            if let Some((worker, left)) = at_work {
                return Ok(Take::AtWork {
                    lease: entry.lease,
                    worker,
                    left,
                });
            }
        }
        // This comes before the journal: a claim locks its mover's row, so that a claim that is
        // under way is among the rows taken next.
        let former: Vec<Uuid> = former.into_iter().collect();
        self.execute(
            TAKING,
            "DELETE FROM pgshard.mover WHERE lease = ANY ($1)",
            &[&former],
        )
        .await?;
        let sql = format!(
            "UPDATE pgshard.move SET lease = $3, lease_until = clock_timestamp() + $4 * interval \
                '1 ms', holder = $5
             WHERE move_id = $1 AND target = $2 AND phase NOT IN ({ENDED}) RETURNING {COLUMNS}"
        );
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [id, &target, &to.lease, &f64::from(lease_ms), &to.holder];
        let mut entries = self.read_entries(TAKING, &sql, &values).await?;
        entries.sort_by_key(|entry| entry.shard);
        // The deadline is renewed, because a fence that is near it would end while this mover works
        // behind it.
        let sql = "UPDATE pgshard.shard SET lease = $3 WHERE state = 'fenced' AND move_id = $1 AND \
            peer = $2 \
                   RETURNING shard_id";
        for row in self.rows(TAKING, sql, &[id, &target, &to.lease]).await? {
            let shard: i32 = row.get(0)?;
            let sql = "SELECT pgshard.heartbeat($1, $2, $3, $4, $5)";
            self.row(TAKING, sql, &[&shard, id, &to.lease, &lease_ms, &fence_ms])
                .await?;
        }
        Ok(Take::Taken { entries, former })
    }

    /// Ends the sessions that former movers of these shards still have here: a transaction of a
    /// paused mover would keep rows locked for as long as it sleeps. Only sessions of the same
    /// role; never our own, nor those for the move's shards from other hosts.
    ///
    /// Locks: none.
    pub(crate) async fn end_former(
        &self,
        own: Hold,
        shards: &[ShardId],
        former: &[Uuid],
    ) -> Result<(), Error> {
        let sql = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE starts_with(application_name, $1) AND usename = current_user AND datname = \
             current_database()
               AND (split_part(application_name, '/', 2) = ANY ($2) AND \
               split_part(application_name, '/', 3) <> $3
                    OR split_part(application_name, '/', 3) = ANY ($4))";
        let of_move = own.signature(SessionPurpose::Group);
        let of_move = of_move.strip_suffix("all/").unwrap_or(&of_move);
        let short = |lease: &Uuid| lease.simple().to_string().split_at(8).0.to_owned();
        let shards: Vec<String> = shards.iter().map(ToString::to_string).collect();
        let former: Vec<String> = former.iter().map(short).collect();
        let own = short(&own.lease);
        self.rows(
            "ending the former mover's sessions",
            sql,
            &[&of_move, &shards, &own, &former],
        )
        .await
        .map(drop)
    }
}

const TAKING: &str = "taking the move over";

/// The phases in which a shard's move has ended.
const ENDED: &str = "'kept', 'completed', 'aborted'";

enum Take {
    Taken {
        entries: Vec<Entry>,
        former: Vec<Uuid>,
    },
    AtWork {
        lease: Uuid,
        worker: Worker,
        left: Duration,
    },
}

/// The holder of this entry's lease if it has no row in `pgshard.mover`: a release that wrote none.
/// It renews the lease while it is alive.
fn nameless(entry: &Entry) -> Option<Worker> {
    (!entry.lease_left.is_zero()).then(|| Worker {
        work: Work::Move,
        holder: entry.holder.clone(),
        since: None,
        stop_request: None,
    })
}

fn presence(row: &AnsweredRow) -> Result<Presence, Error> {
    Ok(Presence {
        lease: row.get("lease")?,
        worker: Worker {
            work: if row.get("feeds")? {
                Work::Feed
            } else {
                Work::Move
            },
            holder: row.get("holder")?,
            since: row.get("since")?,
            stop_request: stop_request(row)?,
        },
        left: Duration::try_from_secs_f64(row.get("lasts")?).unwrap_or_default(),
        locked: row.get("locked")?,
    })
}

fn stop_request(row: &AnsweredRow) -> Result<Option<StopRequest>, Error> {
    let asked = row.get::<_, Option<String>>("asked")?;
    let by = row
        .get::<_, Option<String>>("asked_by")?
        .unwrap_or_default();
    Ok(asked
        .and_then(|asked| StopKind::parse(&asked))
        .map(|asked| StopRequest { asked, by }))
}

impl Heartbeat {
    /// Takes over every open shard of a route: immediately if its mover is gone, after the lease if
    /// that is paused. Returns the shards as the journal has them now, and the leases that they
    /// had.
    ///
    /// # Errors
    /// [`Error::AtWork`] as soon as a mover is seen to renew its lease.
    pub(crate) async fn take_over(
        &self,
        source: &Session,
        claimant: &Claimant,
        shard: ShardId,
    ) -> Result<(Vec<Entry>, Vec<Uuid>), Error> {
        let route = Route {
            id: claimant.id,
            target: &claimant.target,
        };
        // A paused mover's lease ends within one lease. The second lease is a margin, because it
        // may just have been renewed.
        let until = Instant::now() + self.leases().lease * 2;
        let mut seen: Option<(Uuid, Duration)> = None;
        loop {
            let leases = (self.leases().lease_ms(), self.leases().fence_ms());
            match source.take_route(route, claimant, leases).await {
                Ok(Take::Taken { entries, former }) => return Ok((entries, former)),
                Ok(Take::AtWork {
                    lease,
                    worker,
                    left,
                }) => {
                    // It is valid for longer than before: it was renewed, so its mover is alive.
                    let renewed =
                        seen.is_some_and(|(whose, before)| whose == lease && left > before);
                    if renewed || Instant::now() >= until {
                        return Err(Error::AtWork {
                            shard,
                            id: claimant.id,
                            worker,
                        });
                    }
                    seen = Some((lease, left));
                }
                // The mover woke up at this very moment: the next try finds it alive, or its lease
                // over.
                Err(Error::Database { source, .. })
                    if source.code() == Some(&SqlState::T_R_DEADLOCK_DETECTED)
                        && Instant::now() < until => {}
                Err(error) => return Err(error),
            }
            tokio::time::sleep(self.leases().beat / 10).await;
        }
    }
}
