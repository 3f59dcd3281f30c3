//! What a router is made from.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::map::{HostName, ShardMap};
use crate::pg::ConnectOptions;
use crate::shard::{KeyKind, Layout, SchemaPrefix};
use crate::values::Definition;

/// One host: its name in the map, how to reach it, and how many connections to keep.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HostOptions {
    /// The name.
    pub name: HostName,
    /// How to reach it.
    pub connect: ConnectOptions,
    /// The most connections at a time, at least 1. Up to two more are for lookups, and four for the
    /// claims of look-ups, if there are any.
    pub pool_size: usize,
    /// How statements are prepared there.
    pub prepare: PrepareMode,
    /// The servers that may serve [`Reads`](super::Reads) for this host: its standbys. The host
    /// itself may be among them. Each has as many connections as the host. While reads are running,
    /// the position of each is checked once a second, and at least four times in
    /// [`Options::max_replica_lag`]. Default none.
    pub replicas: Vec<ConnectOptions>,
    /// How it keeps its shards. A host that recorded another layout is refused. At most one host is
    /// unsharded. Default sharded.
    pub layout: Layout,
    /// What becomes of [`Router::unrouted`](super::Router::unrouted) there, if it is unsharded.
    pub unrouted: Unrouted,
}

impl HostOptions {
    /// This host, with at most `pool_size` connections and the defaults.
    pub fn new(name: HostName, connect: ConnectOptions, pool_size: usize) -> HostOptions {
        HostOptions {
            name,
            connect,
            pool_size,
            prepare: PrepareMode::default(),
            replicas: Vec::new(),
            layout: Layout::Sharded,
            unrouted: Unrouted::Refuse,
        }
    }

    /// Whether host and replicas are reached in the same way.
    pub(super) fn reaches_as(&self, other: &HostOptions) -> bool {
        let replicas = self.replicas.iter().zip(&other.replicas);
        self.connect.reaches_as(&other.connect)
            && self.replicas.len() == other.replicas.len()
            && replicas
                .into_iter()
                .all(|(one, other)| one.reaches_as(other))
    }
}

setters!(
    HostOptions: prepare: PrepareMode,
    replicas: Vec<ConnectOptions>,
    layout: Layout,
    unrouted: Unrouted,
);

/// What becomes of statements without a key ([`Router::unrouted`](super::Router::unrouted)) on an
/// unsharded host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unrouted {
    /// They are refused, as on shards.
    #[default]
    Refuse,
    /// They run, and are counted by their place in the program.
    Log,
}

/// How statements are prepared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PrepareMode {
    /// By name, and kept: a statement that comes again is only executed.
    #[default]
    Named,
    /// Without a name, each time: for PgBouncer in transaction mode, where the next statement may
    /// get another session. Session state (SET, LISTEN, temporary tables) is of no use there, and
    /// values of the application's own types (an enum, for example) must be cast to text.
    Unnamed,
}

/// What becomes of a session between two callers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Recycle {
    /// It is cleaned when a statement, by its text, may have left something in it: SET, LISTEN,
    /// temporary tables, `SELECT … INTO`, `set_config` for more than the transaction, advisory
    /// locks of the session, and any function that is not known to leave nothing (the usual builtin
    /// ones are known). What the text does not show is missed: a trigger, a view or a default that
    /// calls a function that sets something.
    #[default]
    Fast,
    /// It is cleaned after each call and each transaction. With [`PrepareMode::Unnamed`] each
    /// statement then is a transaction of its own, which cleans up before the pooler gives the
    /// session to another client: two more round trips.
    Clean,
}

/// Whether a statement that begins with SELECT, VALUES, TABLE or SHOW can change anything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selects {
    /// It may call a function that does. If its connection is lost after it was sent, it may have
    /// run, unless the caller declared it as read-only ([`Sql::reading`](super::Sql::reading),
    /// [`Shard::reads`](super::Shard::reads), a READ ONLY transaction).
    #[default]
    MayWrite,
    /// The application has no such function, or calls it in other statements only (WITH, INSERT,
    /// …).
    OnlyRead,
}

/// Knows the hosts that are added later, and how each host is reached by now. It is a function, and
/// may read a file.
///
/// The router calls it for a host that it finds in a map or on a signpost and does not know: once
/// if the function knows the host, else at most ten times a second. While the router
/// [follows](super::Router::follow) a store, it also calls it for each of its hosts every five
/// seconds. When the result for a host differs from the one before in how the host or its replicas
/// are reached, the router uses the new one.
#[derive(Clone)]
pub struct HostSource(Arc<Ask>);

type Ask = dyn Fn(&str) -> Option<HostOptions> + Send + Sync;

impl HostSource {
    /// A source that calls this function.
    pub fn new(ask: impl Fn(&str) -> Option<HostOptions> + Send + Sync + 'static) -> HostSource {
        HostSource(Arc::new(ask))
    }

    pub(super) fn options_of(&self, name: &str) -> Option<HostOptions> {
        (self.0)(name)
    }
}

impl fmt::Debug for HostSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HostSource")
    }
}

/// What [`Router::new`](super::Router::new) takes. [`Options::new`] fills in the defaults.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// The hosts. A host without shards may be there; one with shards must, unless `host_source`
    /// knows it.
    pub hosts: Vec<HostOptions>,
    /// Knows hosts that are added later. Default none.
    pub host_source: Option<HostSource>,
    /// What the names of the shards' schemas begin with.
    pub prefix: SchemaPrefix,
    /// What keys are. A host that recorded another kind is refused.
    pub key: KeyKind,
    /// IDs below this were made before there were shards, and name none:
    /// [`Router::by_id`](super::Router::by_id) refuses them. A host that recorded another limit is
    /// refused. Default 0.
    pub legacy_below: i64,
    /// The map to start with.
    pub map: Arc<ShardMap>,
    /// How long a call may wait for a shard that is being moved, in all. Default 15 s: longer than
    /// a fence's deadline (10 s), so that a call that waits for a mover that died is still there
    /// when the shard opens again.
    pub retry_for: Duration,
    /// The most connections to all hosts together, without those for lookups. An unused connection
    /// makes room for one to another host. Default no limit but the hosts' own.
    pub max_connections: Option<usize>,
    /// How long a call may take, with all waiting and every try;
    /// [`Shard::within`](super::Shard::within) sets it for one call. A statement that reaches the
    /// limit is cancelled. Default no limit.
    pub statement_timeout: Option<Duration>,
    /// How old the data may be that [`Reads`](super::Reads) see: a standby that may lag behind
    /// further is not read. Default 5 s.
    pub max_replica_lag: Duration,
    /// How long a read waits for a standby to reach its [`Position`](super::Position). Default 200
    /// ms.
    pub replica_wait: Duration,
    /// How many calls may wait for one shard that is being moved; the next gets
    /// [`Error::TooManyWaiting`](super::Error) immediately. Default 1024.
    pub waiters_per_shard: u32,
    /// How many calls may wait for a free connection to one host; the next gets the same error.
    /// Default 4096.
    pub waiters_per_host: u32,
    /// How long a call may wait for a free connection. Default 5 s.
    pub wait_max: Duration,
    /// About how long an unused connection is kept. Default 10 minutes; `None` keeps it for as long
    /// as it works.
    pub idle_timeout: Option<Duration>,
    /// The age at which a connection is closed once it is unused: its server process frees the
    /// memory that it has gathered, and a host's new address is found. Each connection gets up to a
    /// tenth less, so that not all are opened again at the same time. Default 30 minutes; `None`
    /// keeps a connection for as long as it works.
    pub max_lifetime: Option<Duration>,
    /// How long opening a connection may take. Default 10 s; usually the connection's own
    /// `connect_timeout` (5 s an address) ends first.
    pub create_max: Duration,
    /// How long cleaning a used connection may take. Default 2 s.
    pub recycle_max: Duration,
    /// The most prepared statements that a connection keeps, in the client and on the server; 0
    /// keeps none. The same statement counts once for each shard. Default 256.
    pub statements_per_connection: usize,
    /// What becomes of a session between two callers.
    pub recycle: Recycle,
    /// Whether a SELECT can change anything.
    pub selects: Selects,
    /// The look-ups that calls may use. Default none.
    pub lookups: Vec<Definition>,
    /// The name in `pg_stat_activity`, unless a host's connection string sets another. Default
    /// `pgshard`.
    pub application_name: String,
}

impl Options {
    /// These hosts and this map, and the defaults.
    pub fn new(hosts: Vec<HostOptions>, map: Arc<ShardMap>) -> Options {
        Options {
            hosts,
            host_source: None,
            prefix: SchemaPrefix::default(),
            key: KeyKind::default(),
            legacy_below: 0,
            map,
            retry_for: Duration::from_secs(15),
            max_connections: None,
            statement_timeout: None,
            max_replica_lag: Duration::from_secs(5),
            replica_wait: Duration::from_millis(200),
            waiters_per_shard: 1024,
            waiters_per_host: 4096,
            wait_max: Duration::from_secs(5),
            idle_timeout: Some(Duration::from_secs(10 * 60)),
            max_lifetime: Some(Duration::from_secs(30 * 60)),
            create_max: Duration::from_secs(10),
            recycle_max: Duration::from_secs(2),
            statements_per_connection: 256,
            recycle: Recycle::default(),
            selects: Selects::default(),
            lookups: Vec::new(),
            application_name: "pgshard".to_owned(),
        }
    }
}

setters!(
    Options: host_source: Option<HostSource>,
    prefix: SchemaPrefix,
    key: KeyKind,
    legacy_below: i64,
    retry_for: Duration,
    max_connections: Option<usize>,
    statement_timeout: Option<Duration>,
    max_replica_lag: Duration,
    replica_wait: Duration,
    waiters_per_shard: u32,
    waiters_per_host: u32,
    wait_max: Duration,
    create_max: Duration,
    recycle_max: Duration,
    statements_per_connection: usize,
    recycle: Recycle,
    selects: Selects,
    lookups: Vec<Definition>,
    application_name: String,
);
