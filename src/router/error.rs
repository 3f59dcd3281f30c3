//! What can go wrong between a call and its rows.

use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::error::{DbError, SqlState};

use super::cause::Cause;
use super::lookup_problem::LookupProblem;
use super::origin::{Origin, is_lost};
use crate::map::{HostName, MapVersion};
use crate::pg::cause::{chain, message};
use crate::pg::{self, state};
use crate::shard::{KeyKind, ShardCount, ShardId, WholeSchema};

/// Error returned by router calls. `Display` names the shard and the host, and includes the cause
/// (PostgreSQL's message with its SQLSTATE); the cause is also the source.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The number is no ID of this cluster: its shard bits name a shard that does not exist.
    #[error(
        "{id} is no ID of this cluster: it names shard {shard}, and there are {shards} shards, 0 \
            to {}",
        shards.get() - 1
    )]
    NoSuchId {
        /// The number.
        id: i64,
        /// The shard in its bits.
        shard: ShardId,
        /// N.
        shards: ShardCount,
    },
    /// The cluster does not have this shard.
    #[error("shard {shard} does not exist: the cluster has {shards} shards, 0 to \
        {}", shards.get() - 1)]
    NoSuchShard {
        /// The requested shard.
        shard: ShardId,
        /// N.
        shards: ShardCount,
    },
    /// The ID was made before there were shards ([`Options::legacy_below`](super::Options)), and so
    /// it names none.
    #[error(
        "the ID {id} was made before there were shards (they are all below {legacy_below}) and \
            names none: name the key, `by_key`, and the ID in the statement"
    )]
    LegacyId {
        /// The ID.
        id: i64,
        /// All such IDs are below it.
        legacy_below: i64,
    },
    /// An unsharded host has all shards in one schema, where this cannot be done. Nothing was sent.
    #[error("host {host} of shard {shard} is unsharded: {what}; {instead}")]
    Unsharded {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// What cannot be done.
        what: &'static str,
        /// What to do instead.
        instead: &'static str,
    },
    /// The call was for all shards of an unsharded host at once, or for values that its table keeps
    /// unique, and the host serves them no longer. The call may be made again.
    #[error(
        "shard {shard} is on host {host} by now, and the call was for an unsharded host: make it \
            again"
    )]
    LayoutChanged {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
    },
    /// A statement without a key ([`Router::unrouted`](super::Router::unrouted)), which shards do
    /// not run. Nothing was sent.
    #[error(
        "at {place}, a statement names no key: name the key (`by_key`), the ID (`by_id`) or all \
            shards (`all_shards`); before there are shards, unrouted = \"log\" below the \
            unsharded host lets it run, and counts it"
    )]
    Unrouted {
        /// The place in the program: file, line, column.
        place: String,
    },
    /// The key is of another kind than the cluster's keys.
    #[error("the keys of this cluster are {cluster}, and this one is {given}: nothing was sent")]
    WrongKey {
        /// The kind of the key.
        given: KeyKind,
        /// The number of shards in the config.
        cluster: KeyKind,
    },
    /// The host belongs to another cluster than the config, or the config has been changed where it
    /// cannot be.
    #[error(
        "host {host} of shard {shard} is not as the config says ({source}): run `pgshard check`"
    )]
    HostDiffers {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// What differs.
        source: HostDiffers,
    },
    /// A map for another number of shards: not a map of this cluster.
    #[error("the map is for {given} shards and the cluster has {shards}")]
    OtherCluster {
        /// The map's N.
        given: ShardCount,
        /// The router's N.
        shards: ShardCount,
    },
    /// A map of an earlier version than the router's: it would send requests to hosts where shards
    /// were before.
    #[error(
        "the map is version {given}, and the router has version {current}: publish it with a \
            larger version"
    )]
    OlderMap {
        /// The version of the map given.
        given: MapVersion,
        /// The version of the router's.
        current: MapVersion,
    },
    /// The shard is on a host that the options do not name.
    #[error("shard {shard} is on host {host}, which the config does not name: add [hosts.{host}]")]
    UnknownHost {
        /// The shard.
        shard: ShardId,
        /// The host's name, from the map or from the shard's former host.
        host: String,
    },
    /// The host has never had the shard, so the map is wrong.
    #[error("host {host} has no shard {shard}, where the map places it: run `pgshard check`")]
    NotHere {
        /// The shard.
        shard: ShardId,
        /// The host.
        host: HostName,
    },
    /// BEGIN, COMMIT, ROLLBACK and their like are the router's own.
    #[error(
        "shard {shard}: transactions are started and ended by `transaction`, not by a statement"
    )]
    TransactionControl {
        /// The shard.
        shard: ShardId,
    },
    /// LISTEN or COPY, for which the router has no call or another one. Nothing was sent.
    #[error("shard {shard}: {statement} is not run by this call: {instead}")]
    Unsupported {
        /// The shard.
        shard: ShardId,
        /// What the statement does.
        statement: &'static str,
        /// What to use instead.
        instead: &'static str,
    },
    /// The statement given to [`Reads`](super::Reads) is not a read. Nothing was sent.
    #[error("shard {shard}: a read begins with SELECT, WITH, VALUES, TABLE or SHOW")]
    NotARead {
        /// The shard.
        shard: ShardId,
    },
    /// The host cannot be connected to.
    #[error("host {host} of shard {shard} is out of reach: {}", chain(&**source))]
    Connect {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// Why.
        source: Arc<pg::ConnectError>,
    },
    /// A connection to the host failed a moment ago, and the router does not try again yet. Nothing
    /// was sent.
    #[error(
        "host {host} of shard {shard} is out of reach, and is not tried again yet: {}",
        chain(&**source)
    )]
    HostDown {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// How long until the router may try again; 0 when that is now.
        again_in_ms: u128,
        /// Why it could not be connected to.
        source: Arc<pg::ConnectError>,
    },
    /// The call reached its time limit ([`Shard::within`](super::Shard::within),
    /// [`Options::statement_timeout`](super::Options::statement_timeout)), or a call over many
    /// shards reached its own ([`Shards::deadline`](crate::fanout::Shards::deadline)) before this
    /// shard had answered. What was sent is cancelled.
    #[error(
        "shard {shard} on host {host} gave no answer within {limit_ms} ms{}",
        if *may_have_run { ", and the statement may have run" } else { "" }
    )]
    TimedOut {
        /// The shard.
        shard: ShardId,
        /// The host that serves the shard, as far as the router knows.
        host: HostName,
        /// The limit.
        limit_ms: u128,
        /// Whether it may have taken effect. False when nothing was on its way, when the statement
        /// is declared as read-only ([`Sql::reading`](super::Sql::reading),
        /// [`Selects`](super::Selects)), and in a transaction before its COMMIT was sent.
        may_have_run: bool,
    },
    /// The call got no connection to the host in time.
    #[error("host {host} of shard {shard}: {phase} took longer than {limit_ms} ms")]
    PoolTimeout {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// What was slow.
        phase: PoolPhase,
        /// The limit.
        limit_ms: u128,
    },
    /// As many calls wait already as may. Nothing was done for this one, or it was rolled back.
    #[error("{limit} calls to shard {shard} on host {host} wait {queue} already")]
    TooManyWaiting {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// What they wait for.
        queue: Queue,
        /// How many may wait.
        limit: u32,
    },
    /// The connection ended while the statement was on its way.
    #[error(
        "the connection to host {host} of shard {shard} was lost{}: {}",
        if *may_have_run { ", and the statement may have run" } else { "" },
        chain(&**source)
    )]
    ConnectionLost {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// Whether the statement may have taken effect. False within a transaction, because that is
        /// rolled back, and for a statement that is declared as read-only
        /// ([`Sql::reading`](super::Sql::reading), [`Selects`](super::Selects)). A SELECT without
        /// that declaration may have taken effect: it can call a function that writes.
        may_have_run: bool,
        /// The error of the driver.
        source: Cause,
    },
    /// The connection ended during COMMIT: the transaction has taken effect, or it has not.
    #[error(
        "the connection to host {host} of shard {shard} was lost during COMMIT: it is not known \
            whether it took effect: {}",
        chain(&**source)
    )]
    InDoubt {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// The error of the driver.
        source: Cause,
    },
    /// The server refuses the statement, or the driver refuses to send it or cannot take its
    /// answer.
    #[error("{}", refusal(*shard, host, *may_have_run, source))]
    Statement {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// Whether it may have taken effect nevertheless: a statement that can commit before its
        /// end (CALL, DO), or one with an answer that the driver cannot take (COPY without its own
        /// methods). False when the driver has sent nothing, within a transaction, and for a
        /// statement that is declared as read-only.
        may_have_run: bool,
        /// The error of the server or the driver.
        source: Cause,
    },
    /// A statement that must not be run again by itself (CALL, DO, …) met a shard that is being
    /// moved. What it had committed before stays.
    #[error(
        "shard {shard} is being moved from host {host}, and a statement that may have committed in \
            part is not run again: {}",
        server_message(source)
    )]
    NotRepeated {
        /// The shard.
        shard: ShardId,
        /// The host where it ran.
        host: HostName,
        /// The error of the server.
        source: Cause,
    },
    /// The statement did not return the expected number of rows. It has run.
    #[error(
        "shard {shard} on host {host} gave {got} rows where {expected} wanted{}",
        if *may_have_run { ", and the statement has run" } else { "" }
    )]
    RowCount {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// The expected number.
        expected: Expected,
        /// How many came.
        got: usize,
        /// Whether it may have taken effect. False within a transaction, because that is rolled
        /// back when its closure returns the error, and for a statement that is declared as
        /// read-only ([`Sql::reading`](super::Sql::reading), [`Selects`](super::Selects)).
        may_have_run: bool,
    },
    /// A row cannot be read as the requested type: a column is missing, has another type, or is
    /// NULL where the type has no NULL. The statement has run.
    #[error(
        "shard {shard} on host {host} gave a row that cannot be read{}: {}",
        if *may_have_run { ", and the statement has run" } else { "" },
        chain(&**source)
    )]
    Decode {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// Whether it may have taken effect. False where it is for [`Error::RowCount`].
        may_have_run: bool,
        /// The error of the driver.
        source: Cause,
    },
    /// A stream ([`Shard::query_raw`](super::Shard::query_raw),
    /// [`Shard::copy_out`](super::Shard::copy_out), a merge of those of many shards) ended after
    /// its first row and before its last one, for example because the connection was lost. The
    /// rows that were read are right.
    #[error(
        "the rows of shard {shard} on host {host} ended after {rows} of them: {}",
        chain(&**source)
    )]
    StreamStopped {
        /// The shard.
        shard: ShardId,
        /// The host that gave the rows.
        host: HostName,
        /// How many rows were read.
        rows: u64,
        /// The error of the driver.
        source: Cause,
    },
    /// A shard of [`Shards::merge_raw`](crate::fanout::Shards::merge_raw) gave a row after one that
    /// comes behind it in the order of the merge. The rows that were read are right, as far as
    /// their shards' rows were in order.
    #[error(
        "shard {shard} on host {host} gave its row {} out of order: the statement's ORDER BY must \
        be the order of the merge (that of texts is COLLATE \"C\")",
        rows + 1
    )]
    OutOfOrder {
        /// The shard.
        shard: ShardId,
        /// Its host.
        host: HostName,
        /// How many of its rows were read.
        rows: u64,
    },
    /// The shard stayed closed, or its hosts disagreed about it, for longer than the router waits.
    #[error("shard {shard} was not available in time (last on host {host}: {reason})")]
    ShardUnavailable {
        /// The shard.
        shard: ShardId,
        /// The host of the last attempt.
        host: HostName,
        /// How long the call waited.
        waited_ms: u128,
        /// The reason of the last attempt.
        reason: String,
    },
    /// The host could not be reached to find out whether it still has the shard.
    #[error(
        "host {host} cannot be asked about shard {shard} ({}): run `pgshard check`",
        chain(&**source)
    )]
    LookUp {
        /// The shard.
        shard: ShardId,
        /// The host.
        host: HostName,
        /// Why not. All calls that waited for the same answer share it.
        source: Arc<LookUpError>,
    },
    /// The router was [closed](super::Router::close). Nothing was sent for this call, or what was
    /// sent is rolled back.
    #[error("the router is closed")]
    Closed,
    /// A [`Transaction`](super::Transaction) was used after its closure had returned.
    #[error(
        "the transaction on shard {shard} has ended: its handle is of no use outside its closure"
    )]
    TransactionEnded {
        /// The shard.
        shard: ShardId,
    },
    /// A statement was run on a transaction while one of its savepoints was open: a rollback to the
    /// savepoint would undo the statement too. Nothing was sent.
    #[error(
        "the transaction on shard {shard} has a savepoint open: a statement runs within it, or \
            before or after it, not beside it"
    )]
    SavepointOpen {
        /// The shard.
        shard: ShardId,
    },
    /// The closure returned `Ok` although one of its statements had failed, or a statement or
    /// savepoint had been given up. There was nothing to commit, so the transaction was rolled
    /// back. A statement that follows one that was given up gets this error too, and is not sent.
    #[error(
        "the transaction on shard {shard} is rolled back: a statement in it failed or was given \
            up, and the closure went on without a savepoint"
    )]
    TransactionFailed {
        /// The shard.
        shard: ShardId,
    },
    /// The value of a look-up belongs to another key. Nothing of the call has run, or, on an
    /// unsharded host, it is rolled back.
    #[error("the value belongs to key {key} already, by the look-up {lookup}")]
    Taken {
        /// The look-up.
        lookup: String,
        /// The key that has a row with the value.
        key: String,
    },
    /// Another call holds the value of a look-up for now: its transaction is open, or was a moment
    /// ago. Nothing of the call has run, and it may be made again.
    #[error(
        "the look-up {lookup}: another call is claiming the value{} (shard {shard}): try again, or \
            end the transaction that is open there",
        key.as_ref().map(|key| format!(" for key {key}")).unwrap_or_default()
    )]
    Busy {
        /// The look-up.
        lookup: String,
        /// The key that the value is being claimed for. None where that was not seen in time.
        key: Option<String>,
        /// The shard of that key; without one, the shard of the value's entry.
        shard: ShardId,
    },
    /// The look-up cannot be used. Nothing of the call has run.
    #[error("the look-up {lookup} cannot be used: {problem}")]
    Lookup {
        /// The look-up.
        lookup: String,
        /// Why not.
        problem: LookupProblem,
    },
    /// A call over many shards failed on some of them; `?` turns
    /// [`Partial`](crate::fanout::Partial) into this error. The other shards have completed the
    /// call, so repeating the whole call would do that twice.
    /// [`Partial::of`](crate::fanout::Partial::of) reads from the error what is done and what is
    /// not.
    #[error("{failed} of {shards} shards failed, and the others did what was wanted of them")]
    Partial {
        /// How many shards failed.
        failed: usize,
        /// How many shards the call was for.
        shards: usize,
        /// Whether any part of it may have taken effect: on a shard that did not fail, or on one
        /// where the statement may have run.
        may_have_run: bool,
        /// Whether every failure is the application's ([`Error::is_application`]).
        application: bool,
        /// Whether the whole call may be made again: nothing has taken effect, and each failure is
        /// temporary.
        retryable: bool,
        /// The [`Partial`](crate::fanout::Partial) itself, with what is done.
        source: Cause<dyn std::error::Error + Send + Sync>,
    },
}

/// What a host recorded at bootstrap differs from the router's options, which would send keys to
/// other shards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HostDiffers {
    /// Another kind of keys.
    #[error("it recorded that keys are {recorded}, the config says {config}")]
    Key {
        /// The kind there.
        recorded: String,
        /// The router's.
        config: KeyKind,
    },
    /// Another layout.
    #[error("it recorded that it is {recorded}, the config says {config}")]
    Layout {
        /// What it recorded: `sharded`, `unsharded` or `nothing`.
        recorded: &'static str,
        /// The router's.
        config: &'static str,
    },
    /// Another schema of all shards.
    #[error(
        "{}, the config says {:?}",
        match recorded {
            Some(recorded) => format!("it serves all shards from the schema {recorded:?}"),
            None => "it serves no shards yet".to_owned(),
        },
        config.as_str()
    )]
    Schema {
        /// The schema there, if it serves the shards.
        recorded: Option<String>,
        /// The router's.
        config: WholeSchema,
    },
    /// Another limit of the IDs from before the shards.
    #[error("it recorded that IDs below {recorded} name no shard, the config says {config}")]
    LegacyBelow {
        /// The limit there.
        recorded: i64,
        /// The router's.
        config: i64,
    },
    /// Another N.
    #[error("it recorded {recorded} shards, the config says {config}")]
    Shards {
        /// N there.
        recorded: i32,
        /// The router's.
        config: ShardCount,
    },
}

/// Why the host of a shard could not be determined.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookUpError {
    /// No connection.
    #[error("out of reach")]
    Connect(#[source] Arc<pg::ConnectError>),
    /// The host is of another cluster.
    #[error("it is not as the config says")]
    Differs(#[source] HostDiffers),
    /// No connection in time, or no answer.
    #[error("no answer within {} ms", .0.as_millis())]
    TimedOut(Duration),
    /// The router is closed.
    #[error("the router is closed")]
    Closed,
    /// An error instead of an answer.
    #[error("pgshard.look failed")]
    Statement(#[source] tokio_postgres::Error),
    /// The host has no control schema, or one that cannot answer this.
    #[error("its control schema is missing or older than this pgshard: run `pgshard bootstrap`")]
    ControlOld,
    /// An answer that no version of the control schema gives.
    #[error("pgshard.look answered {0:?}")]
    Answer(String),
}

/// What took too long on the way to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolPhase {
    /// All connections of the pool were in use.
    Wait,
    /// All connections of the pool were in use, and the call was made within the closure of a
    /// transaction, which holds one of them. Once there are as many such transactions as
    /// connections, they wait for each other.
    WaitWithin,
    /// The connections in use to all hosts together were as many as there may be
    /// ([`Options::max_connections`](super::Options::max_connections)).
    Limit,
}

impl std::fmt::Display for PoolPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            PoolPhase::Wait => "waiting for a free connection",
            PoolPhase::WaitWithin => {
                "waiting for another connection within a transaction, which keeps one of them,"
            }
            PoolPhase::Limit => "waiting for a connection among all that the router may have",
        })
    }
}

/// What calls wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Queue {
    /// The end of a move of their shard.
    Move,
    /// A free connection to their host.
    Connection,
}

impl std::fmt::Display for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Queue::Move => "for its move to end",
            Queue::Connection => "for a connection",
        })
    }
}

/// The expected number of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// `query_one`.
    One,
    /// `query_opt`.
    AtMostOne,
}

impl std::fmt::Display for Expected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Expected::One => "exactly one was",
            Expected::AtMostOne => "at most one was",
        })
    }
}

impl Error {
    /// Whether the same call may succeed later, and nothing of this one has taken effect, so that
    /// it is safe to make it again. An application answers such an error with "try again" (HTTP
    /// 503).
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Connect { .. }
            | Error::HostDown { .. }
            | Error::PoolTimeout { .. }
            | Error::TooManyWaiting { .. }
            | Error::Busy { .. }
            | Error::LayoutChanged { .. }
            | Error::ShardUnavailable { .. } => true,
            Error::ConnectionLost { may_have_run, .. } | Error::TimedOut { may_have_run, .. } => {
                !may_have_run
            }
            Error::Partial { retryable, .. } => *retryable,
            Error::StreamStopped { source, .. } => {
                is_lost(source)
                    || state::is_signpost(source)
                    || source.code().is_some_and(state::is_transient)
            }
            Error::Statement {
                source,
                may_have_run,
                ..
            } => {
                // 08P01 on a connection that continues is, for example, the number of parameters.
                let transient = |code: &SqlState| {
                    state::is_transient(code) && *code != SqlState::PROTOCOL_VIOLATION
                };
                let passes = state::is_signpost(source) || source.code().is_some_and(transient);
                passes && !may_have_run
            }
            Error::LookUp { source, .. } => match &**source {
                LookUpError::Connect(_) | LookUpError::TimedOut(_) => true,
                LookUpError::Statement(source) => source.as_db_error().is_none(),
                LookUpError::Closed
                | LookUpError::Answer(_)
                | LookUpError::Differs(_)
                | LookUpError::ControlOld => false,
            },
            _ => false,
        }
    }

    /// Whether the call may have taken effect, all or in part, although it failed.
    pub fn may_have_run(&self) -> bool {
        match self {
            Error::InDoubt { .. } | Error::NotRepeated { .. } => true,
            Error::ConnectionLost { may_have_run, .. }
            | Error::TimedOut { may_have_run, .. }
            | Error::Statement { may_have_run, .. }
            | Error::RowCount { may_have_run, .. }
            | Error::Decode { may_have_run, .. }
            | Error::Partial { may_have_run, .. } => *may_have_run,
            _ => false,
        }
    }

    /// The error of a statement that only prepares a call: nothing of the call itself has run.
    pub(crate) fn before_the_call(mut self) -> Error {
        match &mut self {
            Error::ConnectionLost { may_have_run, .. }
            | Error::TimedOut { may_have_run, .. }
            | Error::Statement { may_have_run, .. }
            | Error::RowCount { may_have_run, .. }
            | Error::Decode { may_have_run, .. } => *may_have_run = false,
            _ => {}
        }
        match self {
            Error::InDoubt {
                shard,
                host,
                source,
            } => Error::ConnectionLost {
                shard,
                host,
                may_have_run: false,
                source,
            },
            other => other,
        }
    }

    /// The error of the driver, if the statement got that far.
    pub fn as_postgres_error(&self) -> Option<&tokio_postgres::Error> {
        match self {
            Error::ConnectionLost { source, .. }
            | Error::InDoubt { source, .. }
            | Error::Statement { source, .. }
            | Error::Decode { source, .. }
            | Error::StreamStopped { source, .. }
            | Error::NotRepeated { source, .. } => Some(source),
            _ => None,
        }
    }

    /// The error of the server, if there was one.
    pub fn as_db_error(&self) -> Option<&DbError> {
        self.as_postgres_error()
            .and_then(tokio_postgres::Error::as_db_error)
    }

    /// The server's SQLSTATE, if it gave one.
    pub fn code(&self) -> Option<&SqlState> {
        self.as_postgres_error()
            .and_then(tokio_postgres::Error::code)
    }
}

/// The server's message if it has answered, without DETAIL and HINT, which show values of rows.
fn server_message(source: &tokio_postgres::Error) -> String {
    source.as_db_error().map_or_else(|| chain(source), message)
}

/// The text of [`Error::Statement`].
fn refusal(shard: ShardId, host: &HostName, may_have_run: bool, source: &Cause) -> String {
    let why = server_message(source);
    let run = if may_have_run {
        ", and it may have run"
    } else {
        ""
    };
    match Origin::of(source) {
        Origin::BeforeSending => {
            format!("the statement for shard {shard} on host {host} was not sent: {why}")
        }
        Origin::Server | Origin::Lost => {
            format!("shard {shard} on host {host} refuses the statement{run}: {why}")
        }
        Origin::Answer => format!(
            "shard {shard} on host {host} gave an answer to the statement that cannot be \
             taken{run}: {why}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Programs that count errors group them by their texts.
    #[test]
    fn errors_of_one_cause_have_one_text() {
        let shard = ShardId::new(7).unwrap();
        let host = HostName::new("db1").unwrap();
        let source = Arc::new(pg::ConnectError::TimedOut {
            to: "app@db1/app".to_owned(),
            timeout_ms: 2000,
        });
        let down = |again_in_ms| Error::HostDown {
            shard,
            host: host.clone(),
            again_in_ms,
            source: source.clone(),
        };
        assert_eq!(down(0).to_string(), down(731).to_string());
        let unavailable = |waited_ms| Error::ShardUnavailable {
            shard,
            host: host.clone(),
            waited_ms,
            reason: "it is fenced".to_owned(),
        };
        assert_eq!(
            unavailable(15_000).to_string(),
            unavailable(15_013).to_string()
        );
    }
}
