//! One connection of a pool, with the statements prepared on it.
//!
//! What may not break: a session comes out of the pool as if it were new. One that may hold something of its last user
//! is cleaned first; one that may be in the middle of something, or may remember a signpost, never goes back.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use deadpool::managed::{self, Metrics, Object, RecycleError, RecycleResult};
use lru::LruCache;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row, Statement};

use super::circuit::Circuit;
use super::error::HostDiffers;
use super::kind::Kind;
use super::places::Place;
use super::room::Room;
use super::sql::Rendered;
use super::stale::Met;
use super::unnamed::{self, Learned};
use crate::pg::{ConnectError, ConnectOptions, Connection};
use crate::shard::{KeyKind, ShardCount};

/// Everything that a session can have been left with, as far as it can be undone without forgetting the prepared
/// statements of the driver itself (so not DISCARD ALL).
const CLEAN: &str = "ROLLBACK; CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; \
    SELECT pg_catalog.pg_advisory_unlock_all(); DISCARD TEMP; DISCARD SEQUENCES";

/// How long a request to cancel may take.
const CANCEL_MAX: Duration = Duration::from_secs(2);

/// Opens sessions and checks those that come back.
pub(super) struct Manager {
    pub(super) connect: ConnectOptions,
    pub(super) application_name: String,
    pub(super) create_max: Duration,
    pub(super) recycle_max: Duration,
    pub(super) statements: Statements,
    pub(super) key: KeyKind,
    pub(super) shards: ShardCount,
    /// Whether a connection was had to the host, and found to lead to one of this cluster.
    pub(super) met: Arc<AtomicBool>,
    pub(super) circuit: Arc<Circuit>,
    /// Among the connections to all hosts. `None`: without limit.
    pub(super) room: Option<Arc<Room>>,
    /// Requests to cancel that are on their way to the host.
    pub(super) cancels: Arc<Semaphore>,
}

/// How a pool's sessions prepare statements.
#[derive(Clone)]
pub(super) enum Statements {
    /// By name, so many a session at most; 0 keeps none.
    Named { max: usize },
    /// Without names.
    Unnamed(Arc<Learned>),
}

/// Why a session is not opened.
#[derive(Debug, thiserror::Error)]
pub(super) enum OpenError {
    #[error(transparent)]
    Connect(#[from] ConnectError),
    #[error(transparent)]
    Differs(#[from] HostDiffers),
    #[error("no room for another connection")]
    NoRoom,
}

impl Manager {
    /// On the first connection to a host: whether it makes shards of keys as this router does. A host that has recorded nothing
    /// is none of a cluster, and says so to every statement.
    async fn meet(&self, connection: &Connection) -> Result<(), HostDiffers> {
        if self.met.load(Ordering::Relaxed) {
            return Ok(());
        }
        let recorded = connection.query_typed("SELECT shards, key_kind FROM pgshard.cluster", &[]).await;
        if let Ok([row]) = recorded.as_deref() {
            let (shards, key): (i32, String) = (row.get(0), row.get(1));
            if shards != i32::from(self.shards.get()) {
                return Err(HostDiffers::Shards { recorded: shards, config: self.shards });
            }
            if key != self.key.as_str() {
                return Err(HostDiffers::Key { recorded: key, config: self.key });
            }
            self.met.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl managed::Manager for Manager {
    type Type = Session;
    type Error = OpenError;

    async fn create(&self) -> Result<Session, OpenError> {
        let place = match &self.room {
            Some(room) => Some(room.enter().await.ok_or(OpenError::NoRoom)?),
            None => None,
        };
        // What is retired while this one is being opened may be what it is opened to.
        let generation = self.circuit.generation();
        // Boxed, as what every call carries along would be otherwise.
        let opening = Box::pin(async {
            let connection = self.connect.connect(&self.application_name).await?;
            self.meet(&connection).await?;
            Ok(connection)
        });
        let connection = match tokio::time::timeout(self.create_max, opening).await {
            Ok(opened) => opened,
            Err(_) => Err(OpenError::Connect(self.circuit.timed_out())),
        }?;
        let statements = match &self.statements {
            Statements::Named { max } => Prepared::Named(NonZeroUsize::new(*max).map(|max| LruCache::new(max).into())),
            Statements::Unnamed(learned) => Prepared::Unnamed(learned.clone()),
        };
        let (room, cancels) = (self.room.clone(), self.cancels.clone());
        Ok(Session { connection, statements, dirty: false, generation, cancels, room, _place: place })
    }

    async fn recycle(&self, session: &mut Session, _: &Metrics) -> RecycleResult<OpenError> {
        if session.connection.is_closed() {
            return Err(RecycleError::message("the connection is closed"));
        }
        if session.generation != self.circuit.generation() {
            return Err(RecycleError::message("the host has been silent, or another server is the primary"));
        }
        if session.dirty && matches!(session.statements, Prepared::Unnamed(_)) {
            return Err(RecycleError::message("behind a pooler, what would be cleaned is another session"));
        }
        if session.dirty {
            let cleaning = Box::pin(session.connection.batch_execute(CLEAN));
            match tokio::time::timeout(self.recycle_max, cleaning).await {
                Ok(cleaned) => cleaned.map_err(|error| RecycleError::message(error.to_string()))?,
                Err(_) => {
                    self.circuit.doubt();
                    return Err(RecycleError::message("cleaning it took too long"));
                }
            }
            session.dirty = false;
        }
        Ok(())
    }
}

/// A connection and its prepared statements.
pub(super) struct Session {
    pub(super) connection: Connection,
    statements: Prepared,
    /// Whether something of its user may be left in the session.
    pub(super) dirty: bool,
    /// The circuit's when it was opened.
    pub(super) generation: u32,
    cancels: Arc<Semaphore>,
    room: Option<Arc<Room>>,
    _place: Option<OwnedSemaphorePermit>,
}

enum Prepared {
    /// By their SQL as it was sent. `None`: none are kept. Never locked across a wait.
    Named(Option<Mutex<LruCache<Box<str>, Statement>>>),
    Unnamed(Arc<Learned>),
}

/// Whether a statement that was prepared earlier will do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Prepare {
    Once,
    Anew,
}

/// A statement that did not come through.
pub(super) struct Failed {
    pub(super) error: tokio_postgres::Error,
    /// It had been prepared earlier, so that what it was prepared for may have changed since.
    pub(super) prepared_before: bool,
    /// It was sent for execution, not only prepared.
    pub(super) sent: bool,
}

impl Failed {
    /// Whether the connection is gone, with the statement or before it.
    pub(super) fn lost(&self, connection: &Client) -> bool {
        is_lost(&self.error) || connection.is_closed()
    }

    /// Whether the same statement, prepared anew, may succeed: it was prepared before a migration of the application, or
    /// before its shard went away and came back.
    pub(super) fn may_be_outdated(&self) -> bool {
        let code = self.error.code().map(|code| code.code());
        self.prepared_before && (code == Some("26000") || Met::of(&self.error) == Some(Met::Relative))
    }

    /// Whether the session may remember what it saw of a signpost: a function from outside the shard ran into it, and
    /// has been compiled for the signpost's columns. The three lines of CONTEXT are those of the signpost itself.
    pub(super) fn may_be_remembered(&self) -> bool {
        match Met::of(&self.error) {
            None => false,
            Some(Met::Relative) => true,
            Some(Met::Signpost) => {
                let context = self.error.as_db_error().and_then(|error| error.where_());
                context.is_none_or(|context| context.lines().count() > 3)
            }
        }
    }
}

/// Whether the error ended the connection: none of the server's, or one of those with which it closes it.
pub(super) fn is_lost(error: &tokio_postgres::Error) -> bool {
    use tokio_postgres::error::Severity;
    match error.as_db_error() {
        Some(error) => matches!(error.parsed_severity(), Some(Severity::Fatal | Severity::Panic)),
        None => {
            let cause = std::error::Error::source(error);
            error.is_closed() || cause.is_some_and(|cause| cause.is::<std::io::Error>())
        }
    }
}

/// What a statement gives back: rows, or the number of them.
pub(super) trait Answer: Sized + Send {
    fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;

    /// The same in one round trip, without a name on the server.
    fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> impl Future<Output = Result<Self, tokio_postgres::Error>> + Send;
}

impl Answer for Vec<Row> {
    async fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        client.query(statement, params).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        client.query_typed(sql, &params).await
    }
}

impl Answer for u64 {
    async fn ask(
        client: &Client,
        statement: &Statement,
        params: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        client.execute(statement, params).await
    }

    async fn ask_typed(
        client: &Client,
        sql: &str,
        params: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<u64, tokio_postgres::Error> {
        client.execute_typed(sql, &params).await
    }
}

impl Session {
    /// Runs one statement; several at a time follow each other on the connection, where it is pipelined
    /// ([`Session::can_pipeline`]). Whoever calls this without [`Lease::run`] says himself what the session is in the middle of.
    pub(super) async fn run<A: Answer>(
        &self,
        statement: Rendered<'_>,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
        in_transaction: bool,
    ) -> Result<A, Failed> {
        match &self.statements {
            Prepared::Named(statements) => self.run_named(statements.as_ref(), statement.text(), params, prepare).await,
            Prepared::Unnamed(learned) => {
                unnamed::run(&self.connection, learned, statement, params, prepare, in_transaction).await
            }
        }
    }

    async fn run_named<A: Answer>(
        &self,
        statements: Option<&Mutex<LruCache<Box<str>, Statement>>>,
        sql: &str,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
    ) -> Result<A, Failed> {
        let statements = || statements.map(|statements| statements.lock().unwrap_or_else(PoisonError::into_inner));
        let known = match prepare {
            Prepare::Once => statements().and_then(|mut statements| statements.get(sql).cloned()),
            Prepare::Anew => None,
        };
        let prepared_before = known.is_some();
        let statement = match known {
            Some(statement) => statement,
            None => {
                let prepared = self.connection.prepare(sql).await;
                let prepared = prepared.map_err(|error| Failed { error, prepared_before: false, sent: false })?;
                // What falls out of the cache is closed on the server when it is dropped.
                statements().and_then(|mut statements| statements.put(sql.into(), prepared.clone()));
                prepared
            }
        };
        A::ask(&self.connection, &statement, params).await.map_err(|error| {
            let failed = Failed { error, prepared_before, sent: true };
            if Met::of(&failed.error).is_some() || failed.may_be_outdated() {
                statements().and_then(|mut statements| statements.pop(sql));
            }
            failed
        })
    }

    /// Whether several statements may be on their way at a time. Without names one can be a transaction of its own, in which
    /// no other may be caught.
    pub(super) fn can_pipeline(&self) -> bool {
        matches!(self.statements, Prepared::Named(_))
    }

    /// Whether this statement is prepared on the connection.
    pub(super) fn has(&self, sql: &str) -> bool {
        match &self.statements {
            Prepared::Named(Some(statements)) => {
                statements.lock().unwrap_or_else(PoisonError::into_inner).contains(sql)
            }
            Prepared::Named(None) | Prepared::Unnamed(_) => false,
        }
    }
}

/// What a borrowed session is in the middle of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Doing {
    Nothing,
    Transaction,
    /// A statement was sent and its answer not waited for (yet).
    Statement,
    /// Nothing any more: it is closed.
    Ending,
}

/// A session borrowed from a pool. Dropped, it goes back; in the middle of something it is closed instead.
pub(super) struct Lease {
    /// `None` only while it is being dropped.
    session: Option<Object<Manager>>,
    doing: Doing,
    /// Free again after the session is back.
    _place: Option<Place>,
}

impl Lease {
    pub(super) fn new(session: Object<Manager>, place: Option<Place>) -> Lease {
        Lease { session: Some(session), doing: Doing::Nothing, _place: place }
    }

    pub(super) fn session(&self) -> &Session {
        self.session.as_ref().expect("a lease holds its session until it is dropped")
    }

    pub(super) fn session_mut(&mut self) -> &mut Session {
        self.session.as_mut().expect("a lease holds its session until it is dropped")
    }

    /// Runs one statement. When the future is dropped, the connection is closed with the lease.
    pub(super) async fn run<A: Answer>(
        &mut self,
        statement: Rendered<'_>,
        params: &[&(dyn ToSql + Sync)],
        prepare: Prepare,
    ) -> Result<A, Failed> {
        self.session_mut().dirty |= statement.kind() == Kind::Session;
        let before = std::mem::replace(&mut self.doing, Doing::Statement);
        let answer = self.session().run(statement, params, prepare, before == Doing::Transaction).await;
        self.doing = before;
        answer
    }

    /// BEGIN in the form given.
    pub(super) async fn begin(&mut self, begin: &str) -> Result<(), tokio_postgres::Error> {
        self.doing = Doing::Statement;
        self.session().connection.batch_execute(begin).await?;
        self.doing = Doing::Transaction;
        Ok(())
    }

    /// COMMIT or ROLLBACK.
    pub(super) async fn end(&mut self, end: &'static str) -> Result<(), tokio_postgres::Error> {
        self.doing = Doing::Statement;
        let ended = self.session().connection.batch_execute(end).await;
        if !ended.as_ref().is_err_and(is_lost) {
            self.doing = Doing::Nothing;
        }
        ended
    }

    /// Whether the server is a standby, so that it is not the statement's fault if it would not write.
    pub(super) async fn is_on_standby(&mut self) -> bool {
        let before = std::mem::replace(&mut self.doing, Doing::Statement);
        let said = self.session().connection.query_typed("SELECT pg_catalog.pg_is_in_recovery()", &[]).await;
        self.doing = before;
        matches!(said.as_deref(), Ok([row]) if row.get(0))
    }

    /// Whether the answer to a statement was not waited for.
    pub(super) fn is_unsettled(&self) -> bool {
        self.doing == Doing::Statement
    }

    /// From now on answers may be awaited that nobody tells of here: dropped, the connection is closed.
    pub(super) fn set_unsettled(&mut self) {
        self.doing = Doing::Statement;
    }

    /// Every answer has come after all.
    pub(super) fn set_settled(&mut self) {
        self.doing = Doing::Nothing;
    }

    /// Closes the connection instead of giving it back.
    pub(super) fn discard(mut self) {
        self.doing = Doing::Ending;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        match self.doing {
            Doing::Nothing if session.room.as_ref().is_some_and(|room| room.is_crowded()) => {
                // Somebody waits for a connection to another host.
                drop(Object::take(session));
            }
            Doing::Nothing => {}
            Doing::Transaction | Doing::Ending => drop(Object::take(session)),
            Doing::Statement => {
                let session = Object::take(session);
                cancel(&session);
            }
        }
    }
}

/// Ends on the server what nobody waits for any more: it would go on until it sees, with its answer, that the connection
/// is closed. Where several are on their way to the host already, or no runtime is there, it does go on.
fn cancel(session: &Session) {
    let (Ok(place), Ok(runtime)) = (session.cancels.clone().try_acquire_owned(), Handle::try_current()) else {
        return;
    };
    if session.connection.is_closed() {
        return;
    }
    let cancelling = session.connection.cancel();
    runtime.spawn(async move {
        // Whether it came in time is of no concern.
        let _ = tokio::time::timeout(CANCEL_MAX, cancelling).await;
        drop(place);
    });
}
