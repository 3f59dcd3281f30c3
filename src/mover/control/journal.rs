//! The journal of moves, on their source hosts, and the leases in it.
//!
//! Invariant: a move's row is written before anything else of the move. Every statement that
//! changes a row names the lease it was taken under, so that a mover that was paused and taken over
//! changes nothing.

use std::time::Duration;

use jiff::Timestamp;
use serde_json::Value;
use uuid::Uuid;

use crate::map::{HostName, ShardEpoch};
use crate::shard::ShardId;

use crate::mover::control::row::AnsweredRow;
use crate::mover::control::session::Session;
use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::desired::{DesiredState, FenceAt, Rollback};
use crate::mover::protocol::error::{Error, Rival};
use crate::mover::protocol::lease::Leases;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::{Mode, Phase};
use crate::mover::protocol::verdict::Audit;
use crate::mover::protocol::worker::Worker;

/// One shard of one move, as its source's journal records it.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The move.
    pub id: MoveId,
    /// The shard.
    pub shard: ShardId,
    /// Where it was.
    pub source: HostName,
    /// Where it goes.
    pub target: HostName,
    /// How the rows are moved.
    pub mode: Mode,
    /// How far it is, by the journal.
    pub phase: Phase,
    /// The shard's epoch at the source; one more at the target.
    pub epoch: ShardEpoch,
    /// How often the source was fenced.
    pub attempt: i32,
    /// Who holds, or held, the lease.
    pub holder: String,
    /// How long the lease still lasts; zero once it is over.
    pub lease_left: Duration,
    /// Rows copied, once they are.
    pub rows: Option<i64>,
    /// Bytes sent over the network, once the rows are copied.
    pub bytes: Option<i64>,
    /// Milliseconds of each step: `copy`, `pause`, and the parts of the pause.
    pub timings: Value,
    /// The last error.
    pub last_error: Option<String>,
    /// The move that this one takes back, if it is a rollback.
    pub rollback_of: Option<MoveId>,
    /// Whether a reverse replication was requested.
    pub rollback: Rollback,
    /// The reverse replication, if there is one or was.
    pub reverse: Option<ReverseReplication>,
    /// The result of its audit.
    pub audit: Audit,
    /// What its mover may do at present.
    pub desired: DesiredState,
    /// When a hold ends, if it ends by itself.
    pub hold_until: Option<Timestamp>,
    /// The mover that works on it at present, if the reader of the entry has looked for one.
    pub worker: Option<Worker>,
    /// When the shard was claimed.
    pub created_at: Timestamp,
    /// When the row last changed.
    pub updated_at: Timestamp,
    pub(crate) fingerprint: Option<String>,
    pub(crate) open_token: Option<Uuid>,
    pub(crate) lease: Uuid,
}

/// The reverse replication of one shard: whether a rollback can take it back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReverseReplication {
    /// The name of the publication and of the slot at the target.
    pub stream: String,
    /// Whether the old copy takes changes, which is so only once the shard is kept.
    pub fed: bool,
    /// The move that takes the shard back, once there is one.
    pub taken_by: Option<MoveId>,
    /// Why a rollback is no longer possible.
    pub lost: Option<String>,
}

impl ReverseReplication {
    /// Whether the old copy can be brought up to date.
    pub fn is_open(&self) -> bool {
        self.lost.is_none() && self.taken_by.is_none()
    }
}

pub(crate) const COLUMNS: &str = "lease, move_id, shard_id, source, target, mode, phase, epoch, \
    attempt, holder, \
                                  lease_until - clock_timestamp() > interval '0' AS leased, \
                                  greatest(0, extract(epoch \
                                  FROM lease_until - clock_timestamp()))::double precision AS \
                                  lease_left, rows, bytes, \
                                  timings, last_error, CASE WHEN wanted = 'hold' AND hold_until <= \
                                  clock_timestamp() \
                                  THEN 'go' ELSE wanted END AS wanted, hold_until, created_at, \
                                  updated_at, \
                                  fingerprint, open_token, back_of, back, CASE WHEN audit = 'under \
                                  way' AND NOT EXISTS \
                                  (SELECT FROM pg_stat_activity a WHERE a.application_name = \
                                  'pgshard audit ' || \
                                  move_id || '/' || shard_id) THEN 'broken off' ELSE audit END AS \
                                  audit, audited_at, \
                                  audit_found::text AS audit_found, (SELECT \
                                  json_build_array(b.stream, b.at_open IS \
                                  NOT NULL, b.taken_by, b.lost)::text FROM pgshard.back b WHERE \
                                  b.move_id = \
                                  pgshard.move.move_id AND b.shard_id = pgshard.move.shard_id) AS \
                                  reverse";

impl Entry {
    pub(crate) fn of(row: &AnsweredRow) -> Result<Entry, Error> {
        let host = |column| row.parsed(column, |name: &str| HostName::new(name).ok());
        Ok(Entry {
            id: MoveId::from(row.get::<_, Uuid>("move_id")?),
            shard: row.parsed("shard_id", |number: i32| ShardId::try_from(number).ok())?,
            source: host("source")?,
            target: host("target")?,
            mode: row.parsed("mode", Mode::parse)?,
            phase: row.parsed("phase", Phase::parse)?,
            epoch: row.parsed("epoch", ShardEpoch::from_i32)?,
            attempt: row.get("attempt")?,
            holder: row.get("holder")?,
            lease_left: Duration::try_from_secs_f64(row.get("lease_left")?).unwrap_or_default(),
            rows: row.get("rows")?,
            bytes: row.get("bytes")?,
            timings: row.get("timings")?,
            last_error: row.get("last_error")?,
            rollback_of: row.get::<_, Option<Uuid>>("back_of")?.map(MoveId::from),
            rollback: row.parsed("back", Rollback::parse)?,
            reverse: row
                .get::<_, Option<String>>("reverse")?
                .and_then(|text| reverse(&text)),
            audit: audit(row)?,
            desired: row.parsed("wanted", DesiredState::parse)?,
            hold_until: row.get("hold_until")?,
            worker: None,
            created_at: row.get("created_at")?,
            updated_at: row.get("updated_at")?,
            fingerprint: row.get("fingerprint")?,
            open_token: row.get("open_token")?,
            lease: row.get("lease")?,
        })
    }
}

fn audit(row: &AnsweredRow) -> Result<Audit, Error> {
    let (state, found): (Option<String>, Option<String>) =
        (row.get("audit")?, row.get("audit_found")?);
    if state.as_deref() == Some("broken off") {
        return Ok(Audit::left_out("its mover ended during the audit"));
    }
    Ok(Audit::read(
        state.as_deref(),
        row.get("audited_at")?,
        found.as_deref(),
    ))
}

fn reverse(json: &str) -> Option<ReverseReplication> {
    let (stream, fed, taken_by, lost): (String, bool, Option<Uuid>, Option<String>) =
        serde_json::from_str(json).ok()?;
    Some(ReverseReplication {
        stream,
        fed,
        taken_by: taken_by.map(MoveId::from),
        lost,
    })
}

/// What a mover shows when it changes a row: which move and shard it is for, and that it still
/// holds the lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) id: MoveId,
    pub(crate) shard: ShardId,
    pub(crate) lease: Uuid,
}

/// What a mover's session is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionPurpose {
    /// For one shard's work.
    Shard,
    /// For all shards that come from one host together.
    Group,
    /// For a shard's audit, which outlives the lease. While a session of this name is at the
    /// source, the audit is under way.
    Audit,
}

impl Hold {
    /// How the names of such sessions begin, under every lease.
    pub(crate) fn signature(&self, signed: SessionPurpose) -> String {
        match signed {
            SessionPurpose::Shard => format!("pgshard {}/{}/", self.id, self.shard),
            SessionPurpose::Group => format!("pgshard {}/all/", self.id),
            SessionPurpose::Audit => format!("pgshard audit {}/{}", self.id, self.shard),
        }
    }

    /// The name of sessions under this lease, within the 63 bytes that PostgreSQL allows. A
    /// takeover ends the sessions that have another lease in their names.
    pub(crate) fn session_name(&self, signed: SessionPurpose) -> String {
        if signed == SessionPurpose::Audit {
            return self.signature(signed);
        }
        format!(
            "{}{}",
            self.signature(signed),
            self.lease.simple().to_string().split_at(8).0
        )
    }
}

impl Session {
    /// Marks the session as this mover's, for the mover that takes over.
    pub(crate) async fn sign(&self, hold: Hold, signed: SessionPurpose) -> Result<(), Error> {
        let name = hold.session_name(signed);
        let sql = "SELECT set_config('application_name', $1, false)";
        self.execute("naming the session", sql, &[&name])
            .await
            .map(drop)
    }

    /// Whether the host has a control schema.
    pub(crate) async fn is_bootstrapped(&self) -> Result<bool, Error> {
        let sql = "SELECT to_regclass('pgshard.move') IS NOT NULL";
        self.row("looking for the control schema", sql, &[])
            .await?
            .get(0)
    }

    /// [`Session::entries`] with the workers on them; empty where there is no control schema.
    pub(crate) async fn entries_if_any(&self, id: Option<MoveId>) -> Result<Vec<Entry>, Error> {
        if !self.is_bootstrapped().await? {
            return Ok(Vec::new());
        }
        let mut entries = self.entries(id).await?;
        self.add_workers(&mut entries, id).await?;
        Ok(entries)
    }

    /// Every entry of the journal on this host, or those of one move.
    ///
    /// Locks: none but ACCESS SHARE on the table.
    pub(crate) async fn entries(&self, id: Option<MoveId>) -> Result<Vec<Entry>, Error> {
        // One move's entries are found by the key: the journal keeps everything that ever left the
        // host.
        let columns = match self.reads_tokens {
            true => COLUMNS.to_owned(),
            false => COLUMNS.replace("open_token", "NULL::uuid AS open_token"),
        };
        let sql = format!(
            "SELECT {columns} FROM pgshard.move WHERE $1::uuid IS NULL OR move_id = $1 ORDER BY \
                move_id, shard_id"
        );
        self.read_entries("reading the journal", &sql, &[&id.map(|id| *id.uuid())])
            .await
    }

    /// The entries that a statement gives. It must select [`COLUMNS`].
    pub(crate) async fn read_entries(
        &self,
        what: &'static str,
        sql: &str,
        params: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Result<Vec<Entry>, Error> {
        self.rows(what, sql, params)
            .await?
            .iter()
            .map(Entry::of)
            .collect()
    }

    /// The entry of one shard of a move.
    ///
    /// Locks: none but ACCESS SHARE on the table.
    ///
    /// # Errors
    /// [`Error::NoSuchMove`] where this host knows nothing of it.
    pub(crate) async fn entry(&self, id: MoveId, shard: ShardId) -> Result<Entry, Error> {
        self.find_entry(id, shard)
            .await?
            .ok_or(Error::NoSuchMove { id })
    }

    /// The entry of one shard of a move, if this host knows of it.
    ///
    /// Locks: none but ACCESS SHARE on the table.
    pub(crate) async fn find_entry(
        &self,
        id: MoveId,
        shard: ShardId,
    ) -> Result<Option<Entry>, Error> {
        let sql =
            format!("SELECT {COLUMNS} FROM pgshard.move WHERE move_id = $1 AND shard_id = $2");
        Ok(self
            .read_entries("reading the journal", &sql, &[id.uuid(), &shard.as_i32()])
            .await?
            .pop())
    }

    /// Writes a move's first row. If the shard has another open move, the table's unique index
    /// makes this fail. The desired state of the move's other shards is applied to this one. A
    /// mover that was suspended, and has lost its shards to another, cannot claim more. A host that
    /// was removed from the cluster gets no shard: the removal deletes its row, and then looks for
    /// claims.
    ///
    /// Locks: ROW EXCLUSIVE on pgshard.move, KEY SHARE on the mover's own row and on the target's
    /// row of pgshard.known_host, for this one statement. For the latter it waits until a
    /// `host remove` under way ends.
    pub(crate) async fn claim(&self, hold: Hold, claim: &Claim<'_>) -> Result<(), Error> {
        let sql = "INSERT INTO pgshard.move (move_id, shard_id, source, target, mode, phase, \
            epoch, lease, lease_until,
                 holder,
                 wanted, hold_until, back_of, back)
             SELECT $1, $2, $3, $4, $5, 'claimed', $6, $7, clock_timestamp() + $8 * interval '1 \
             ms', $9,
                 coalesce(m.wanted, $10), CASE WHEN m.wanted IS NULL THEN $11::timestamptz ELSE \
                 m.hold_until END, $12,
                 $13
             FROM pgshard.shard s
             LEFT JOIN (SELECT wanted, hold_until FROM pgshard.move WHERE move_id = $1 LIMIT 1) m \
             ON true
             WHERE s.shard_id = $2 AND s.state = 'serving' AND s.epoch = $6
               AND EXISTS (SELECT FROM pgshard.mover WHERE lease = $7 FOR KEY SHARE)
               AND (EXISTS (SELECT FROM pgshard.known_host WHERE host_name = $14 FOR KEY SHARE)
                    OR NOT EXISTS (SELECT FROM pgshard.known_host))";
        let lease_ms = claim.lease_for.as_millis() as f64;
        let source = self.host.as_str();
        let (shard, epoch, mode) = (
            hold.shard.as_i32(),
            claim.epoch.as_i32(),
            claim.mode.as_str(),
        );
        let (id, target) = (hold.id.uuid(), claim.target.as_str());
        let back_of = claim.rollback_of.map(|id| *id.uuid());
        let back = claim.rollback.as_str();
        let (desired, until) = claim.fence_at.stop_request();
        let desired = desired.as_str();
        let claimed = self
            .execute(
                "claiming the shard",
                sql,
                &[
                    id,
                    &shard,
                    &source,
                    &target,
                    &mode,
                    &epoch,
                    &hold.lease,
                    &lease_ms,
                    &claim.holder,
                    &desired,
                    &until,
                    &back_of,
                    &back,
                    &target,
                ],
            )
            .await;
        match claimed {
            Ok(1) => Ok(()),
            Ok(_) if !self.knows(claim.target).await? => {
                Err(self.stranger(hold.shard, claim.target))
            }
            // No row was inserted, although no index forbids it: the shard was moved in the
            // meantime.
            Ok(_) => Err(self.claimed(hold.shard).await?),
            Err(Error::Database { source, .. })
                if source.code() == Some(&tokio_postgres::error::SqlState::UNIQUE_VIOLATION) =>
            {
                Err(self.claimed(hold.shard).await?)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether this host's record of the cluster has that host; also if it has none at all, as
    /// before the first bootstrap of a release that keeps one.
    ///
    /// Locks: none but ACCESS SHARE on the table.
    async fn knows(&self, host: &HostName) -> Result<bool, Error> {
        let sql = "SELECT coalesce(bool_or(host_name = $1), true) FROM pgshard.known_host";
        self.row("asking which hosts there are", sql, &[&host.as_str()])
            .await?
            .get(0)
    }

    /// The error when a shard was to go to a host that was removed from the cluster in the
    /// meantime: routers would not find it there.
    fn stranger(&self, shard: ShardId, target: &HostName) -> Error {
        let reason = format!(
            "cannot go to {target}, which this host does not know as a host of the cluster"
        );
        let remedy = format!(
            "look whether {target} was taken out of the config since this command began; if it \
                shall be a host, `pgshard bootstrap` with a config that names it"
        );
        Error::Refused {
            refusals: vec![Refusal::new("the shard", reason, remedy).at(shard, &self.host)],
        }
    }

    /// The error that names the move that has claimed a shard.
    async fn claimed(&self, shard: ShardId) -> Result<Error, Error> {
        let entry = self.open_entry(shard).await?;
        let by = entry.map(|entry| {
            Box::new(Rival {
                id: entry.id,
                worker: entry.worker,
            })
        });
        Ok(Error::Claimed { shard, by })
    }

    /// The move of a shard away from this host that has not ended, with its worker.
    ///
    /// Locks: none but ACCESS SHARE on the journal.
    pub(crate) async fn open_entry(&self, shard: ShardId) -> Result<Option<Entry>, Error> {
        let sql = format!(
            "SELECT {COLUMNS} FROM pgshard.move WHERE shard_id = $1 AND phase NOT IN ('kept', \
                'completed', 'aborted')"
        );
        let mut entries = self
            .read_entries("asking for the shard's move", &sql, &[&shard.as_i32()])
            .await?;
        self.add_workers(&mut entries, None).await?;
        Ok(entries.pop())
    }

    /// Takes over the lease of one shard, in the journal and, if this move has fenced the shard, on
    /// its row. From now on the former holder can change nothing. Returns false if the lease is no
    /// longer `former`: another mover was faster.
    ///
    /// Locks: the shard's row and the move's, in this order as everywhere, for this one
    /// transaction.
    pub(crate) async fn take_over(
        &self,
        hold: Hold,
        former: Uuid,
        leases: Leases,
        holder: &str,
    ) -> Result<bool, Error> {
        let what = "taking the lease over";
        let (id, shard, lease_ms) = (
            hold.id.uuid(),
            hold.shard.as_i32(),
            leases.lease.as_millis() as f64,
        );
        self.batch(what, "BEGIN").await?;
        let sql = "SELECT FROM pgshard.shard WHERE shard_id = $1 FOR NO KEY UPDATE";
        self.rows(what, sql, &[&shard]).await?;
        let sql =
            "UPDATE pgshard.move SET lease = $3, lease_until = clock_timestamp() + $4 * interval \
                '1 ms', holder = $5
             WHERE move_id = $1 AND shard_id = $2 AND lease = $6";
        let taken = self
            .execute(
                what,
                sql,
                &[id, &shard, &hold.lease, &lease_ms, &holder, &former],
            )
            .await?
            == 1;
        if taken {
            // The deadline is renewed, because a fence that is near it would end while this mover
            // works behind it.
            let sql = "UPDATE pgshard.shard SET lease = $3 WHERE shard_id = $2 AND state = \
                'fenced' AND move_id = $1";
            self.execute(what, sql, &[id, &shard, &hold.lease]).await?;
            let sql = "SELECT pgshard.heartbeat($1, $2, $3, $4, $5)";
            self.row(
                what,
                sql,
                &[
                    &shard,
                    id,
                    &hold.lease,
                    &leases.lease_ms(),
                    &leases.fence_ms(),
                ],
            )
            .await?;
        }
        self.batch(what, "COMMIT").await?;
        Ok(taken)
    }

    /// Gives the lease back, so that a resume need not wait for its end. Records the error for
    /// people, unless the move has ended: then the error is only that a mover that slept through
    /// its lease has lost it.
    ///
    /// Locks: the move's row, for this one statement.
    pub(crate) async fn release(&self, hold: Hold, error: Option<&str>) -> Result<(), Error> {
        let sql = "UPDATE pgshard.move SET lease_until = clock_timestamp(),
                 last_error = CASE WHEN $4::text IS NOT NULL AND phase IN ('kept', 'completed', \
                 'aborted')
                 THEN last_error ELSE $4 END
             WHERE move_id = $1 AND shard_id = $2 AND lease = $3";
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [hold.id.uuid(), &hold.shard.as_i32(), &hold.lease, &error];
        self.execute("giving the lease back", sql, &params)
            .await
            .map(drop)
    }

    /// Writes the result of an audit. No lease is needed for it. If two movers audit a shard, the
    /// first result other than "not audited" is kept.
    ///
    /// Locks: the move's row, for this one statement.
    pub(crate) async fn audited(
        &self,
        id: MoveId,
        shard: ShardId,
        audit: &Audit,
    ) -> Result<(), Error> {
        let sql =
            "UPDATE pgshard.move SET audit = $3, audited_at = clock_timestamp(), audit_found \
            = $4
             WHERE move_id = $1 AND shard_id = $2 AND (audit IS NULL OR audit IN ('under way', \
             'not audited'))";
        let (shard, state) = (shard.as_i32(), audit.state.as_str());
        self.execute(
            "writing the audit",
            sql,
            &[id.uuid(), &shard, &state, &audit.found()],
        )
        .await
        .map(drop)
    }

    /// Writes how far the move is.
    ///
    /// Locks: the move's row, for this one statement.
    pub(crate) async fn advance(&self, hold: Hold, phase: Phase, note: &Note) -> Result<(), Error> {
        let sql = "UPDATE pgshard.move SET phase = $4, updated_at = clock_timestamp(), rows = \
            coalesce($5, rows),
                 bytes = coalesce($6, bytes), timings = timings || $7, fingerprint = coalesce($8, \
                 fingerprint),
                 audit = coalesce($9, audit), audit_found = coalesce($10, audit_found),
                 audited_at = CASE WHEN $9 <> 'under way' THEN clock_timestamp() ELSE audited_at END
             WHERE move_id = $1 AND shard_id = $2 AND lease = $3";
        let (id, shard, phase_name) = (hold.id.uuid(), hold.shard.as_i32(), phase.as_str());
        let state = note.audit.as_ref().and_then(|audit| audit.state.as_str());
        let found = note.audit.as_ref().map(Audit::found);
        let Note {
            rows,
            bytes,
            timings,
            fingerprint,
            ..
        } = note;
        let params: [&(dyn tokio_postgres::types::ToSql + Sync); 10] = [
            id,
            &shard,
            &hold.lease,
            &phase_name,
            rows,
            bytes,
            timings,
            fingerprint,
            &state,
            &found,
        ];
        let updated = self.execute("writing the journal", sql, &params).await?;
        if updated == 1 {
            Ok(())
        } else {
            Err(Error::LeaseLost { shard: hold.shard })
        }
    }
}

/// The facts of a claim.
pub(crate) struct Claim<'a> {
    pub(crate) target: &'a HostName,
    pub(crate) mode: Mode,
    pub(crate) epoch: ShardEpoch,
    pub(crate) lease_for: Duration,
    pub(crate) holder: &'a str,
    pub(crate) rollback_of: Option<MoveId>,
    pub(crate) rollback: Rollback,
    pub(crate) fence_at: FenceAt,
}

/// What a step adds to the journal in addition to the phase.
pub(crate) struct Note {
    pub(crate) rows: Option<i64>,
    pub(crate) bytes: Option<i64>,
    pub(crate) timings: Value,
    pub(crate) fingerprint: Option<String>,
    pub(crate) audit: Option<Audit>,
}

impl Default for Note {
    fn default() -> Note {
        let timings = Value::Object(serde_json::Map::new());
        Note {
            rows: None,
            bytes: None,
            timings,
            fingerprint: None,
            audit: None,
        }
    }
}
