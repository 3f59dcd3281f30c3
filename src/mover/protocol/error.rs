//! What can go wrong with a move.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};

use crate::map::HostName;
use crate::pg::{ConnectError, HostState, state};
use crate::schema::control::VERSION;
use crate::shard::ShardId;
use crate::store::{PublishError, StoreError};

use crate::mover::definition::refusal::Refusal;
use crate::mover::protocol::bytes::Bytes;
use crate::mover::protocol::names::MoveId;
use crate::mover::protocol::state::Phase;
use crate::mover::protocol::verdict::RowDifference;
use crate::mover::protocol::worker::Worker;

/// Why a move, or a command about moves, did not reach its end.
///
/// All of them leave the same state behind: before decide the source serves (at the latest when the
/// fence's deadline has passed), after it the target does (at the latest when the move is resumed).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Preflight refuses the move. Nothing was changed.
    #[error("the move is refused: {}", count(refusals))]
    Refused {
        /// Every reason.
        refusals: Vec<Refusal>,
    },
    /// A host that the config does not name.
    #[error("the config names no host {host}")]
    UnknownHost {
        /// The name.
        host: HostName,
    },
    /// No connection to a host can be made; [`ConnectError::host_state`] is the state that it is
    /// in.
    #[error("host {host} {}", source.host_state())]
    Connect {
        /// The host.
        host: HostName,
        /// Why not.
        source: ConnectError,
    },
    /// A host that was given up answers, so that it may serve the shard, and no operator has
    /// declared that it was fenced off. Nothing was changed.
    #[error("host {host} is not gone, for it {state}: {why}")]
    NotGone {
        /// The host.
        host: HostName,
        /// In which state it is.
        state: HostState,
        /// What it answers, with the causes.
        why: String,
    },
    /// The config uses another name for a host than bootstrap did.
    #[error("host {host} of the config was bootstrapped as {name}")]
    OtherHost {
        /// Its name in the config.
        host: HostName,
        /// The name that bootstrap gave it.
        name: String,
    },
    /// A host has recorded another cluster than the config's. Nothing was changed there.
    #[error("host {host} belongs to another cluster, or the config was changed where it cannot be")]
    OtherCluster {
        /// The host.
        host: HostName,
        /// In what they differ.
        source: Box<crate::schema::Refusal>,
    },
    /// A host has all shards in one schema, so that none can be moved from or to it by itself.
    #[error(
        "host {host} is unsharded: all shards are in its schema {schema}, and none can be moved \
            by itself"
    )]
    Unsharded {
        /// The host.
        host: HostName,
        /// The schema.
        schema: String,
    },
    /// A host's control schema is older than what this pgshard works with. Nothing was changed
    /// there.
    #[error(
        "host {host} has a control schema of version {version}, and this pgshard works with \
            version {VERSION}: run `pgshard bootstrap --host {host}`, which may be done while the \
            application works"
    )]
    ControlOld {
        /// The host.
        host: HostName,
        /// The newest control migration there.
        version: i32,
    },
    /// A host's control schema is newer than this pgshard supports: it would leave out what it does
    /// not know. Nothing was changed there.
    #[error(
        "host {host} has a control schema of version {version}, and this pgshard works with \
            version {VERSION}: use the newer pgshard"
    )]
    ControlNewer {
        /// The host.
        host: HostName,
        /// The newest control migration there.
        version: i32,
    },
    /// A statement failed.
    #[error(
        "{what} failed on host {host}{}: {}",
        of_shard(shard),
        message_of(source)
    )]
    Database {
        /// The host.
        host: HostName,
        /// The shard it was for, if it was for one.
        shard: Option<ShardId>,
        /// What was being done.
        what: Cow<'static, str>,
        /// The driver's error.
        source: tokio_postgres::Error,
    },
    /// A host did not commit a request. It may do so later.
    #[error(
        "host {host} has not committed it within {waited_s} s{}",
        if *for_standbys { ": its commits wait for standbys that synchronous_standby_names asks \
            for, and too few of them stream" } else { "" }
    )]
    CommitWaits {
        /// The host.
        host: HostName,
        /// How long was waited.
        waited_s: u64,
        /// Whether no commit ends there, because too few synchronous standbys stream.
        for_standbys: bool,
    },
    /// A control table has a value that no release of pgshard writes there.
    #[error(
        "{what} on host {host}{}: the column {column} has {value}, which pgshard does not write",
        of_shard(shard)
    )]
    Unreadable {
        /// The host.
        host: HostName,
        /// The shard it was for, if it was for one.
        shard: Option<ShardId>,
        /// What was being done.
        what: &'static str,
        /// The column.
        column: &'static str,
        /// Its value.
        value: String,
    },
    /// A table of the shard is locked, so that it cannot be read. The source serves.
    #[error(
        "shard {shard}: its tables cannot be read, because host {host} waits for a lock: {blockers}"
    )]
    Locked {
        /// The shard.
        shard: ShardId,
        /// The source.
        host: HostName,
        /// Who holds the lock.
        blockers: String,
    },
    /// A table is locked all the time, so that its replica identity can be neither lent nor taken
    /// back. The shard is served.
    #[error(
        "shard {shard}: the replica identity of table {table} cannot be altered, because a session \
            on host {host} has the table locked{}",
        by(blockers)
    )]
    IdentityBlocked {
        /// The shard.
        shard: ShardId,
        /// The host that serves it.
        host: HostName,
        /// The table.
        table: String,
        /// Which sessions have locks on the shard's tables; empty if that was not read.
        blockers: String,
    },
    /// A migration that began before the move does not end. The shard is served.
    #[error(
        "shard {shard}: a migration, or another transaction, has held its row on host {host} for \
            too long"
    )]
    MigrationBlocked {
        /// The shard.
        shard: ShardId,
        /// The host that serves it.
        host: HostName,
    },
    /// The control schema found the row in another state than this mover expected: another mover
    /// continued the move.
    #[error("shard {shard}: host {host} refused: {reason}")]
    Superseded {
        /// The host.
        host: HostName,
        /// The shard.
        shard: ShardId,
        /// The host's message.
        reason: String,
    },
    /// Another move of the shard was claimed while this one was planned. Nothing was changed.
    #[error("shard {shard}: another move of it was claimed first{}", told_first(by.as_deref()))]
    Claimed {
        /// The shard.
        shard: ShardId,
        /// That move and its worker; `None` if it has ended since.
        by: Option<Box<Rival>>,
    },
    /// Another mover is alive and works on this move: nothing was changed.
    #[error("shard {shard} was left alone: {worker} works on its move")]
    AtWork {
        /// The shard.
        shard: ShardId,
        /// The move.
        id: MoveId,
        /// Who works on it.
        worker: Worker,
    },
    /// An operator stopped this mover. The source serves, or the target if the shard was decided;
    /// the move can be resumed.
    #[error("shard {shard}: stopped, as {by} asked")]
    Stopped {
        /// The shard.
        shard: ShardId,
        /// Host and process that requested it.
        by: String,
    },
    /// An operator had this mover abort, and nothing of the shard's move is left. The source
    /// serves.
    #[error("shard {shard}: its move was aborted, as {by} asked; the source serves")]
    Aborted {
        /// The shard.
        shard: ShardId,
        /// Host and process that requested it.
        by: String,
    },
    /// Another command has taken this mover's lease, to resume the move or to abort it.
    #[error(
        "shard {shard}: another command has taken its move over, to resume or to abort it; this \
            mover has stopped"
    )]
    LeaseLost {
        /// The shard.
        shard: ShardId,
    },
    /// The host that holds this mover's lease did not answer for so long that the mover gave up. No
    /// other command has taken the shard, as far as it knows.
    #[error(
        "shard {shard}: this mover could not renew its lease for {} s, because host {host} did \
            not answer, and has stopped",
        silent.as_secs()
    )]
    Unrenewed {
        /// The shard.
        shard: ShardId,
        /// The source, which has the lease.
        host: HostName,
        /// How long it has not answered.
        silent: Duration,
    },
    /// The target has no disk space left. The source serves.
    #[error(
        "shard {shard}: host {host} has no disk space left ({message}); {}",
        kept_there(left.as_deref())
    )]
    TargetFull {
        /// The shard.
        shard: ShardId,
        /// The target.
        host: HostName,
        /// The server's message.
        message: String,
        /// Why the copy is still there; `None` if it was dropped.
        left: Option<String>,
    },
    /// The fence could not be completed in any of its attempts. The source serves.
    #[error(
        "shard {shard}: gave up after {attempts} attempts to fence it, the source serves: \
            {blockers}"
    )]
    GaveUp {
        /// The shard.
        shard: ShardId,
        /// How many.
        attempts: u32,
        /// Who held locks on it.
        blockers: String,
    },
    /// The copy took longer than the shard may be closed. The source serves.
    #[error("shard {shard}: it was not copied within {} s; the source serves \
        again", limit.as_secs())]
    PauseTooLong {
        /// The shard.
        shard: ShardId,
        /// How long it may be closed.
        limit: Duration,
    },
    /// The copy differs from the source. The source serves.
    #[error(
        "shard {shard}: {table} differs: {source_side} at the source, {target_side} at the target"
    )]
    Differs {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: String,
        /// Rows and digest.
        source_side: String,
        /// Rows and digest.
        target_side: String,
    },
    /// Generated columns have other values at the target, in rows that are the same otherwise. The
    /// source serves.
    #[error(
        "shard {shard}: generated columns of {table} have other values at the target: {}. What \
            computes them is not the same there, or no longer what has computed the source's",
        columns.join(", ")
    )]
    Computed {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: String,
        /// The generated columns that differ.
        columns: Vec<String>,
    },
    /// Rows of an online copy are not what the source has at the same point of its history. The
    /// source serves.
    #[error(
        "shard {shard}: rows of {table} differ ({digests}): {}",
        list_differences(rows)
    )]
    RowsDiffer {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: String,
        /// The rows and digests of the chunk that differs.
        digests: String,
        /// Some of the rows, ten at most.
        rows: Vec<RowDifference>,
    },
    /// The shard's tables were altered again and again while the move was prepared. The source
    /// serves.
    #[error("shard {shard}: its tables were altered during the move: {what}")]
    Altered {
        /// The shard.
        shard: ShardId,
        /// What is different.
        what: String,
    },
    /// The slot kept more WAL than it may: the move was aborted before the source's disk was full.
    /// The source serves.
    #[error(
        "shard {shard}: aborted, because host {host} had to keep {} of WAL for the move, more than \
            the {} that it may",
        Bytes(kept.cast_signed()),
        Bytes(limit.cast_signed())
    )]
    WalLimit {
        /// The shard.
        shard: ShardId,
        /// The source.
        host: HostName,
        /// How much it kept, in bytes.
        kept: u64,
        /// How much it may.
        limit: u64,
    },
    /// No host knows the move.
    #[error("no host knows the move {id}")]
    NoSuchMove {
        /// The move.
        id: MoveId,
    },
    /// The source has given the shard away: the move can only be finished.
    #[error("shard {shard} has been decided: the move can only be finished, with resume")]
    TooLate {
        /// The shard.
        shard: ShardId,
    },
    /// The request does not fit how far the move is.
    #[error("shard {shard} is {phase}: {reason}")]
    NotNow {
        /// The shard.
        shard: ShardId,
        /// How far it is.
        phase: Phase,
        /// The reason against it.
        reason: String,
    },
    /// The old copy may be the only one that is right. It is kept.
    #[error("shard {shard}: the old copy is kept, because {objection}")]
    Unaudited {
        /// The shard.
        shard: ShardId,
        /// The move.
        id: MoveId,
        /// What the audit found.
        objection: String,
    },
    /// The host that the move brought the shard to does not know of it any more. Nothing was
    /// touched.
    #[error("shard {shard}: the move {id} brought it to host {host}, which has lost it")]
    Lost {
        /// The shard.
        shard: ShardId,
        /// The move's target.
        host: HostName,
        /// The move.
        id: MoveId,
    },
    /// The two hosts contradict each other. Nothing was touched.
    #[error("shard {shard}: the hosts contradict each other, a human must look: {observed}")]
    Stuck {
        /// The shard.
        shard: ShardId,
        /// What was read on the hosts.
        observed: String,
    },
    /// The map could not be published. The target serves the shard, and routers find it by the
    /// signpost.
    #[error("the map cannot be published")]
    Publish(#[source] PublishError),
    /// The map cannot be read.
    #[error("the map cannot be read")]
    Map(#[source] StoreError),
    /// The mover was stopped. The source serves; the move can be resumed.
    #[error("shard {shard}: interrupted")]
    Interrupted {
        /// The shard.
        shard: ShardId,
    },
    /// The catalogs of a host cannot be read.
    #[error("the catalogs of host {host} cannot be read")]
    Catalog {
        /// The host.
        host: HostName,
        /// Why not.
        source: crate::schema::catalog::Error,
    },
    /// A host's answer about its shards cannot be read.
    #[error("host {host} cannot be read")]
    Facts {
        /// The host.
        host: HostName,
        /// Why not.
        source: crate::schema::FactsError,
    },
    /// The dependencies over a shard's border cannot be read.
    #[error("the dependencies on host {host} cannot be read")]
    Border {
        /// The host.
        host: HostName,
        /// Why not.
        source: crate::mover::definition::border::Error,
    },
    /// The stream of changes cannot be opened, or was broken for too long.
    #[error("the stream of changes from host {host} failed")]
    Replication {
        /// The source.
        host: HostName,
        /// Why.
        source: crate::pg::ReplicationError,
    },
    /// The stream of changes is not what PostgreSQL 13 to 19 send.
    #[error("the stream of changes from host {host} cannot be read: {what}")]
    Malformed {
        /// The source.
        host: HostName,
        /// What is wrong.
        what: &'static str,
    },
    /// The slot could not be created, because it waits for transactions that do not end. Nothing
    /// was left behind.
    #[error(
        "the slot on host {host} waits for transactions that have written and do not end: \
            {blockers}"
    )]
    SlotBlocked {
        /// The source.
        host: HostName,
        /// The transactions that it waited for.
        blockers: String,
    },
    /// Tables were added to a publication with a slot that already existed, and transactions that
    /// may not know of the publication do not end.
    #[error(
        "host {host} publishes the tables now, and waits for transactions that have changed them \
            before: {blockers}"
    )]
    PublicationBlocked {
        /// The source.
        host: HostName,
        /// The transactions that it waited for.
        blockers: String,
    },
    /// Another process reads the slot and does not stop.
    #[error("the slot {slot} on host {host} is read by process {pid}, which does not end")]
    SlotBusy {
        /// The source.
        host: HostName,
        /// The slot.
        slot: String,
        /// The walsender.
        pid: i32,
    },
    /// The slot is gone, or the source has thrown away WAL that it needs. A resume copies the
    /// shards again.
    #[error(
        "the slot {slot} on host {host} is {state}: what was copied cannot be brought up to date"
    )]
    SlotLost {
        /// The source.
        host: HostName,
        /// The slot.
        slot: String,
        /// `gone`, `lost`, another owner, or why it was dropped.
        state: &'static str,
    },
    /// The target has lost changes that it had applied, for example by a fail-over, and the source
    /// does not send them again. A resume copies the shard again.
    #[error(
        "shard {shard}: host {host} has lost changes that were applied there, as after a fail-over \
            to a standby that lacked them"
    )]
    StreamLost {
        /// The shard.
        shard: ShardId,
        /// The target.
        host: HostName,
    },
    /// A change of the source does not fit what the target has. It was not applied.
    #[error("shard {shard}: {table} at the target differs from the source: {what}")]
    Diverged {
        /// The shard.
        shard: ShardId,
        /// The table.
        table: String,
        /// The change and the key of its row.
        what: String,
    },
    /// The task that follows the stream has ended. Its own error has the reason.
    #[error(
        "the stream of changes is no longer followed{}: {why}",
        of_shard(shard)
    )]
    Unfollowed {
        /// The shard, if the error is about one.
        shard: Option<ShardId>,
        /// Why not.
        why: String,
    },
    /// Both sides could not be seen in the same state. The source serves; resume tries again.
    #[error("shard {shard}: no state that both hosts were in was found in {tries} tries")]
    NoCommonPoint {
        /// The shard.
        shard: ShardId,
        /// How many.
        tries: u32,
    },
    /// Something that the shards of a group share has failed: connections, publication, slot or
    /// stream. The source serves.
    #[error("shard {shard} is left where it is")]
    Group {
        /// The shard.
        shard: ShardId,
        /// What failed.
        source: Arc<Error>,
    },
    /// The mover failed before it claimed the shard: no journal knows of the move, and nothing
    /// waits for a resume.
    #[error("shard {shard} was not claimed")]
    NotBegun {
        /// The shard.
        shard: ShardId,
        /// What failed.
        source: Arc<Error>,
    },
    /// The shard cannot be rolled back. It is served where it is.
    #[error("shard {shard} cannot be rolled back from the move {id}: {reason}")]
    NoRollback {
        /// The shard.
        shard: ShardId,
        /// The move that was to be rolled back.
        id: MoveId,
        /// Where it was before that move.
        host: HostName,
        /// Why not.
        reason: String,
    },
    /// A failpoint that a test set.
    #[error("failpoint {name:?}")]
    Failpoint {
        /// The failpoint.
        name: &'static str,
    },
}

impl Error {
    /// Whether `resume` may get further. It may not after a refusal, a contradiction or a wrong
    /// request, nor after a statement that exceeds a limit of the server (class 54): that will
    /// happen again.
    pub fn can_be_resumed(&self) -> bool {
        match self {
            Error::Group { source, .. } => return source.can_be_resumed(),
            Error::Database { source, .. } => {
                return source
                    .code()
                    .is_none_or(|code| !code.code().starts_with("54"));
            }
            _ => {}
        }
        !matches!(
            self,
            Error::Refused { .. }
                | Error::Claimed { .. }
                | Error::UnknownHost { .. }
                | Error::NotGone { .. }
                | Error::OtherHost { .. }
                | Error::OtherCluster { .. }
                | Error::Unsharded { .. }
                | Error::NoSuchMove { .. }
                | Error::TooLate { .. }
                | Error::Unaudited { .. }
                | Error::Lost { .. }
                | Error::Stuck { .. }
                | Error::WalLimit { .. }
                | Error::Aborted { .. }
                | Error::AtWork { .. }
                | Error::Diverged { .. }
                | Error::NoRollback { .. }
                | Error::NotBegun { .. }
        )
    }

    /// Whether the server refuses the statement permanently, so that it is no use to try it again:
    /// by its syntax, its names or the role's rights, or as something that it cannot do.
    pub(crate) fn is_permanent(&self) -> bool {
        let Error::Database { source, .. } = self else {
            return false;
        };
        let code = source.code().map_or("", SqlState::code);
        ["42", "0A", "28", "2F"]
            .iter()
            .any(|class| code.starts_with(class))
    }

    /// The server's message, with its hint, if it was the server that has refused a statement.
    pub(crate) fn server_words(&self) -> Option<String> {
        match self {
            Error::Database { source, .. } if source.as_db_error().is_some() => {
                Some(message_of(source))
            }
            _ => None,
        }
    }

    /// Whether the same may succeed on another connection, a moment later: the connection was lost
    /// or could not be made, or the server refused for a reason that passes.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            Error::Connect { .. } => true,
            Error::Database { source, .. } => {
                source.is_closed() || source.code().is_some_and(state::is_transient)
            }
            Error::Group { source, .. } => source.is_passing(),
            _ => false,
        }
    }

    /// Whether a connection was lost, or cannot be made at present. What was being done may have
    /// taken effect.
    pub(crate) fn is_disconnect(&self) -> bool {
        match self {
            Error::Connect { source, .. } => {
                let code = match source {
                    ConnectError::Refused { source, .. } => source.code(),
                    _ => None,
                };
                source.is_unreachable() || code.is_some_and(ends_connections)
            }
            Error::Database { source, .. } => {
                source.is_closed() || source.code().is_some_and(ends_connections)
            }
            Error::Group { source, .. } => source.is_disconnect(),
            _ => false,
        }
    }

    /// The message of this host's server, if it had no disk space left.
    pub(crate) fn full_disk(&self, on: &HostName) -> Option<String> {
        match self {
            Error::Database { host, source, .. } if host == on => source
                .as_db_error()
                .filter(|error| is_full(error))
                .map(|error| error.message().to_owned()),
            Error::TargetFull { host, message, .. } if host == on => Some(message.clone()),
            Error::Group { source, .. } => source.full_disk(on),
            _ => None,
        }
    }

    /// The state of the host that this error shows: one to which a connection was made answers,
    /// whatever came then.
    pub fn host_state(&self) -> HostState {
        match self {
            Error::Connect { source, .. } => source.host_state(),
            Error::UnknownHost { .. } => HostState::NotAsked,
            Error::Database { source, .. } => HostState::of_query(source),
            Error::Group { source, .. } | Error::NotBegun { source, .. } => source.host_state(),
            _ => HostState::AnswersWithError,
        }
    }

    /// Whether a statement gave up because it did not get a lock.
    pub(crate) fn is_lock(&self) -> bool {
        let first: &(dyn std::error::Error + 'static) = self;
        std::iter::successors(Some(first), |error| error.source())
            .filter_map(|error| error.downcast_ref::<tokio_postgres::Error>())
            .any(|error| error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE))
    }
}

/// Whether a server ends connections with this code, or lets none in for now.
fn ends_connections(code: &SqlState) -> bool {
    ["57P01", "57P02", "57P03", "57P05", "53300"].contains(&code.code())
        || code.code().starts_with("08")
}

/// Whether the server had no disk space left. Where a file cannot be extended, its code is 53100;
/// an extension's may be another.
fn is_full(error: &DbError) -> bool {
    *error.code() == SqlState::DISK_FULL || error.message().contains("No space left on device")
}

/// What became of the copy at a target that is full.
fn kept_there(left: Option<&str>) -> String {
    match left {
        None => "what the move had copied there was dropped".to_owned(),
        Some(why) => format!("what the move had copied there could not be dropped: {why}"),
    }
}

/// How long a copy or a comparison waits for a table that another session has locked, as TRUNCATE,
/// CLUSTER and VACUUM FULL do.
pub(crate) const LOCKED_MAX: Duration = Duration::from_secs(60);

/// Another move of a shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rival {
    /// The move.
    pub id: MoveId,
    /// Who works on it; `None` if no command does.
    pub worker: Option<Worker>,
}

fn told_first(rival: Option<&Rival>) -> String {
    match rival {
        None => ", and has ended meanwhile".to_owned(),
        Some(Rival {
            id,
            worker: Some(worker),
        }) => format!(": {id}, on which {worker} works"),
        Some(Rival { id, worker: None }) => format!(": {id}, on which no command works"),
    }
}

fn count(refusals: &[Refusal]) -> String {
    match refusals {
        [only] => only.to_string(),
        [first, rest @ ..] => format!("{first} (and {} more)", rest.len()),
        [] => "without a reason".to_owned(),
    }
}

fn list_differences(rows: &[RowDifference]) -> String {
    rows.iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

/// `: backend 7 …`, or nothing.
fn by(blockers: &str) -> String {
    if blockers.is_empty() {
        String::new()
    } else {
        format!(": {blockers}")
    }
}

fn of_shard(shard: &Option<ShardId>) -> String {
    shard
        .map(|shard| format!(" for shard {shard}"))
        .unwrap_or_default()
}

/// The server's message: it is more use to an operator than the driver's "db error".
fn message_of(source: &tokio_postgres::Error) -> String {
    source
        .as_db_error()
        .map_or_else(|| source.to_string(), crate::pg::cause::server_message)
}
