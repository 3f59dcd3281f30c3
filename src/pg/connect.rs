//! Opening a connection.

use std::cmp::Reverse;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
#[cfg(feature = "ops")]
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tokio_postgres::Client;
use tokio_postgres::config::TargetSessionAttrs;

use super::cancel::Canceller;
use super::connect_error::ConnectError;
use super::driver::{Driver, Duties, Session};
use super::guard::Statements;
use super::identity::{self, AddressAnswer, Impostor, Record, Server};
use super::options::ConnectOptions;
use super::password::PassfileKey;
use super::state::LOGIN_AGAIN;
use super::vitals::{Vitals, Watch};

/// A client and the task that drives its socket. Dropping it ends the task and so closes the
/// socket; the server then rolls an open transaction back.
pub struct Connection {
    /// It comes before `client` so that it ends first: a client that is dropped before would still
    /// send Terminate.
    driver: Driver,
    client: Client,
    canceller: Canceller,
    /// Which server answers, as of when the connection was opened.
    server: Server,
    vitals: Arc<Vitals>,
}

/// What `search_path` a session begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SearchPath {
    /// `pg_catalog, pg_temp`. With any other, every role that may create objects in a schema on it
    /// can have our role run them: an operator with no exact match in `pg_catalog` is looked for
    /// there (CVE-2018-1058).
    Closed,
    /// The role's setting on the server. An application's statements count on it, and a pooler's
    /// session would keep another for its next client.
    OfTheRole,
}

/// Statements of ours run with nothing but this. Two settings that a role may have been given
/// change how an answer looks, or which of our texts the server takes: they are always the same.
pub(super) const CLOSE_PATH: &str = "SET search_path = pg_catalog, pg_temp; \
    SET quote_all_identifiers = off; \
    SET backslash_quote = safe_encoding";

/// How a connection is opened.
#[derive(Clone)]
struct Opening<'a> {
    application_name: &'a str,
    search_path: SearchPath,
    /// Woken by each notification, and by the connection's end.
    heard: Option<Arc<Notify>>,
    watched: WatchPolicy,
}

/// Whether a task checks that a connection does not wait for an answer that never comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WatchPolicy {
    Yes,
    /// Who waits on it has a limit.
    No,
}

impl ConnectOptions {
    /// Opens a connection. `application_name` is what `pg_stat_activity` shows, unless the string
    /// has another. The session's `search_path` is `pg_catalog, pg_temp`, so that no other role's
    /// function or operator is taken for one of PostgreSQL's: name the schema of all else. Do not
    /// go through a pooler in transaction mode.
    ///
    /// Several addresses are tried one after the other, beginning with the one that answered last.
    /// For the first connection all are queried, and the primary of the latest timeline is taken.
    /// `connect_timeout` limits the time until an address is connected, and twice that limits all
    /// that is done there (so a server that takes the connection but then sends nothing is noticed
    /// too). One round trip reads which server it is. Once any clone of these options knows of a
    /// later timeline of the host, connections to an earlier one are closed.
    ///
    /// A caller that waits on the connection does not wait for ever: when nothing has come for as
    /// long as `keepalives_idle` allows, another connection checks whether the server is at work.
    /// If it is not, or does not answer, the connection is closed. An answer of more than a
    /// gigabyte closes it too.
    ///
    /// # Errors
    /// When the password or certificates cannot be read, or the server cannot be reached, refuses,
    /// is silent, or is not the one that belongs there.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect(&self, application_name: &str) -> Result<Connection, ConnectError> {
        self.open(Opening {
            application_name,
            search_path: SearchPath::Closed,
            heard: None,
            watched: WatchPolicy::Yes,
        })
        .await
    }

    /// Opens a connection for an application's statements, through a pooler too: `search_path` is
    /// as the server has it for the role. All else is as for [`ConnectOptions::connect`].
    ///
    /// # Errors
    /// As [`ConnectOptions::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect_for_application(
        &self,
        application_name: &str,
    ) -> Result<Connection, ConnectError> {
        self.open(Opening {
            application_name,
            search_path: SearchPath::OfTheRole,
            heard: None,
            watched: WatchPolicy::No,
        })
        .await
    }

    /// Opens a connection for LISTEN: each notification that arrives, and the end of the
    /// connection, wakes `heard`. Several of them may wake it once.
    ///
    /// # Errors
    /// As [`ConnectOptions::connect`].
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect_listening(
        &self,
        application_name: &str,
        heard: Arc<Notify>,
    ) -> Result<Connection, ConnectError> {
        let (search_path, heard) = (SearchPath::Closed, Some(heard));
        self.open(Opening {
            application_name,
            search_path,
            heard,
            watched: WatchPolicy::Yes,
        })
        .await
    }

    fn open<'a>(&'a self, opening: Opening<'a>) -> BoxFuture<'a, Result<Connection, ConnectError>> {
        Box::pin(async move {
            if self.known.is_settled() || self.addresses().len() < 2 || !self.is_for_primary() {
                self.open_in_turn(opening).await
            } else {
                self.open_newest(opening).await
            }
        })
    }

    async fn open_in_turn(&self, opening: Opening<'_>) -> Result<Connection, ConnectError> {
        let mut last = None;
        for index in self.order() {
            // Boxed, because with both ways to connect the future is larger than everything around
            // it.
            let reached = Box::pin(self.reach_by(index, opening.clone())).await;
            let admitted = match reached.and_then(|connection| self.fit(index, connection)) {
                Ok(connection) => self.admit(index, connection).await,
                Err(error) => Err(error),
            };
            match admitted {
                Ok(connection) => return Ok(connection),
                Err(error) => last = Some(error.or_more_telling(last)),
            }
        }
        Err(last.expect("a connection string names at least one address"))
    }

    /// Opens the first connection of a process when there are several addresses. All are queried,
    /// because the first in the text may be a former primary. Once one has answered, the others
    /// have [`Self::OTHERS_MAX`] to answer.
    async fn open_newest(&self, opening: Opening<'_>) -> Result<Connection, ConnectError> {
        let ask = |index| {
            let opening = opening.clone();
            Box::pin(async move { (index, self.reach_by(index, opening).await) })
        };
        let order: Vec<usize> = self.order().collect();
        let mut asked: FuturesUnordered<_> = order.iter().map(|index| ask(*index)).collect();
        let (mut fitting, mut last, mut until) = (Vec::new(), None, None);
        loop {
            let next = match until {
                None => asked.next().await,
                Some(until) => tokio::time::timeout_at(until, asked.next())
                    .await
                    .unwrap_or_default(),
            };
            let Some((index, reached)) = next else { break };
            match reached.and_then(|connection| self.fit(index, connection)) {
                Ok(connection) => {
                    until.get_or_insert_with(|| Instant::now() + Self::OTHERS_MAX);
                    fitting.push((index, connection));
                }
                Err(error) => last = Some(error.or_more_telling(last)),
            }
        }
        drop(asked);
        let known = self.record();
        let is_host = |server: &Server| match (known, server.identity) {
            (Some(known), Some(identity)) => known.judge(identity).is_ok(),
            _ => true,
        };
        fitting.sort_by_key(|(index, connection)| {
            let place = order.iter().position(|at| at == index);
            (
                !is_host(&connection.server),
                Reverse(connection.server.timeline()),
                place,
            )
        });
        if let [(one, first), (other, second), ..] = &fitting[..]
            && is_host(&second.server)
            && first.server.rivals(&second.server)
        {
            let (first, second) = (self.address(*one), self.address(*other));
            return Err(ConnectError::TwoPrimaries {
                to: self.to_string(),
                first,
                second,
            });
        }
        for (index, connection) in fitting {
            match self.admit(index, connection).await {
                Ok(connection) => {
                    self.known.settle();
                    return Ok(connection);
                }
                Err(error) => last = Some(error.or_more_telling(last)),
            }
        }
        Err(last.expect("a connection string names at least one address"))
    }

    /// Queries every address for its server, all at the same time. No server is refused, and
    /// nothing is learned.
    #[cfg(feature = "ops")]
    pub(crate) fn ask_each<'a>(
        &'a self,
        application_name: &'a str,
    ) -> BoxFuture<'a, Vec<Result<Connection, ConnectError>>> {
        Box::pin(async move {
            let ask = |index| Box::pin(self.reach(index, application_name, SearchPath::Closed));
            join_all((0..self.addresses().len()).map(ask)).await
        })
    }

    /// Opens a connection to one address and reads which server is there.
    pub(crate) async fn reach(
        &self,
        index: usize,
        application_name: &str,
        search_path: SearchPath,
    ) -> Result<Connection, ConnectError> {
        let watched = match search_path {
            SearchPath::Closed => WatchPolicy::Yes,
            SearchPath::OfTheRole => WatchPolicy::No,
        };
        self.reach_by(
            index,
            Opening {
                application_name,
                search_path,
                heard: None,
                watched,
            },
        )
        .await
    }

    /// Opens a connection to one address for a few questions, each of which has a limit.
    pub(super) async fn reach_unwatched(
        &self,
        index: usize,
        application_name: &str,
    ) -> Result<Connection, ConnectError> {
        let (search_path, watched) = (SearchPath::Closed, WatchPolicy::No);
        self.reach_by(
            index,
            Opening {
                application_name,
                search_path,
                heard: None,
                watched,
            },
        )
        .await
    }

    async fn reach_by(
        &self,
        index: usize,
        opening: Opening<'_>,
    ) -> Result<Connection, ConnectError> {
        match self.reach_once(index, opening.clone()).await {
            Err(error) if error.is_refused_login() && self.password.may_change() => {
                self.password.forget();
                tokio::time::sleep(LOGIN_AGAIN).await;
                self.reach_once(index, opening).await
            }
            outcome => outcome,
        }
    }

    async fn reach_once(
        &self,
        index: usize,
        opening: Opening<'_>,
    ) -> Result<Connection, ConnectError> {
        let Opening {
            application_name,
            search_path,
            heard,
            watched,
        } = opening;
        let to = || self.to_string();
        let mut config = self.at(index);
        // `fit` checks this later, with the other answers of the server.
        config.target_session_attrs(TargetSessionAttrs::Any);
        if config.get_application_name().is_none() {
            config.application_name(application_name);
        }
        let host = self.host_name(index);
        let wanted = PassfileKey {
            host: &host,
            port: self.port(index),
            database: self.database(),
            user: self.user(),
        };
        let password = self.password.fetch(&wanted).await;
        if let Some(password) =
            password.map_err(|source| ConnectError::Password { to: to(), source })?
        {
            config.password(password);
        }
        let limit = self.answer_limit();
        let (silence, address) = (self.silence.as_ref(), self.address(index));
        let given = silence.map_or(limit, |silence| {
            silence.limit(&address, limit, std::time::Instant::now())
        });
        let refused = |source| ConnectError::Refused { to: to(), source };
        let statements = match search_path {
            SearchPath::Closed => Statements::Ours,
            SearchPath::OfTheRole => Statements::OfAnApplication,
        };
        // What came on the last connection.
        let heard_from = Mutex::new(Arc::new(Vitals::default()));
        let open = async || {
            let vitals = Arc::new(Vitals::default());
            *heard_from.lock().unwrap_or_else(PoisonError::into_inner) = vitals.clone();
            let watch = Watch {
                options: self.clone(),
                index,
                vitals: vitals.clone(),
            };
            let duties = Duties {
                heard: heard.clone(),
                watch: (watched == WatchPolicy::Yes).then_some(watch),
            };
            let shaken = self
                .shake_hands(index, &config, statements, vitals.clone(), duties)
                .await?;
            let Session {
                driver,
                client,
                tls,
            } = shaken;
            let (token, address) = (client.cancel_token(), self.cancel_address(index));
            let canceller = Canceller {
                token,
                address,
                host: host.clone(),
                tls,
            };
            Ok(Connection {
                driver,
                client,
                canceller,
                server: Server::default(),
                vitals,
            })
        };
        let opened = async {
            let mut connection = open().await?;
            connection.server = match connection.begin(search_path).await {
                Ok(server) => server,
                // The connection was ended. That means nothing about the server, so it is queried
                // once more.
                Err(_) => {
                    connection = open().await?;
                    connection.begin(search_path).await.map_err(refused)?
                }
            };
            Ok(connection)
        };
        match tokio::time::timeout(given, opened).await {
            Ok(outcome) => {
                if let Some(silence) = silence {
                    match &outcome {
                        // No packet came back, within a limit that is a part of the whole.
                        Err(ConnectError::Unreachable { source, .. })
                            if source.kind() == std::io::ErrorKind::TimedOut =>
                        {
                            silence.note(&address, given, limit, std::time::Instant::now());
                        }
                        _ => silence.clear(&address),
                    }
                }
                outcome
            }
            Err(_) => {
                if let Some(silence) = silence {
                    silence.note(&address, given, limit, std::time::Instant::now());
                }
                let (to, timeout_ms) = (to(), limit.as_millis());
                let heard_from = heard_from.lock().unwrap_or_else(PoisonError::into_inner);
                Err(if heard_from.has_heard() {
                    ConnectError::Stalled { to, timeout_ms }
                } else {
                    ConnectError::TimedOut { to, timeout_ms }
                })
            }
        }
    }

    /// The connection, if its server is of the kind that `target_session_attrs` requires.
    fn fit(&self, index: usize, connection: Connection) -> Result<Connection, ConnectError> {
        let read_only = connection.server.read_only;
        let wanted = match self.config.get_target_session_attrs() {
            TargetSessionAttrs::ReadWrite => !read_only,
            TargetSessionAttrs::ReadOnly => read_only,
            _ => true,
        };
        let (to, address) = (|| self.to_string(), || self.address(index));
        if wanted {
            Ok(connection)
        } else {
            Err(ConnectError::OtherRole {
                to: to(),
                address: address(),
                read_only,
            })
        }
    }

    /// Takes the connection as one to the host, if the server is the host.
    async fn admit(
        &self,
        index: usize,
        connection: Connection,
    ) -> Result<Connection, ConnectError> {
        let admit = || self.known.admit(connection.server, connection.driver());
        let mut admitted = admit();
        if admitted.is_err() {
            // An operator may have accepted this server as the host.
            let records =
                tokio::time::timeout(Self::OTHERS_MAX, identity::own_records(&connection)).await;
            if self.known.accept(&records.unwrap_or_default()) {
                admitted = admit();
            }
        }
        admitted.map_err(|source| self.impostor(index, source))?;
        self.remember(index);
        Ok(connection)
    }

    fn impostor(&self, index: usize, source: Impostor) -> ConnectError {
        ConnectError::Impostor {
            to: self.to_string(),
            address: self.address(index),
            source,
        }
    }

    /// Takes in what is known of the host from elsewhere. Closes all connections to servers that
    /// cannot be the host then.
    pub(crate) fn learn(&self, record: Record) {
        self.known.learn(record);
    }

    /// What is known of the host.
    pub(crate) fn record(&self) -> Option<Record> {
        self.known.record()
    }

    /// Whether the server of a connection that was just opened is still the host, by what was
    /// learned since.
    pub(crate) fn is_host(&self, connection: &Connection) -> Result<(), ConnectError> {
        match connection.server.identity {
            Some(identity) => self
                .known
                .judge(identity)
                .map_err(|why| self.impostor(self.first(), why)),
            None => Ok(()),
        }
    }

    /// Takes in which server answered at an address. If it is a later primary, connections begin
    /// with its address from now on, and those to an earlier one are closed.
    pub(crate) fn learn_of(&self, index: usize, server: Server) -> AddressAnswer {
        let seen = self.known.learn_of(server);
        if seen == AddressAnswer::Later {
            self.remember(index);
        }
        seen
    }
}

impl Connection {
    /// The driver's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Which server answers, as of when the connection was opened.
    pub fn server(&self) -> Server {
        self.server
    }

    /// Whether a transaction was open when the server was last ready for a statement.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.vitals.is_in_transaction()
    }

    /// Whether an answer is still to come to something that was sent.
    pub(crate) fn is_awaiting(&self) -> bool {
        self.vitals.is_awaiting()
    }

    /// A handle that ends the connection, even while it is used.
    pub(crate) fn driver(&self) -> AbortHandle {
        self.driver.handle()
    }

    /// Sets the path, and reads which server it is, in one round trip.
    async fn begin(&self, search_path: SearchPath) -> Result<Server, tokio_postgres::Error> {
        let close = async {
            match search_path {
                SearchPath::Closed => self.client.batch_execute(CLOSE_PATH).await,
                SearchPath::OfTheRole => Ok(()),
            }
        };
        let ((), said) = tokio::try_join!(biased; close, identity::read_identity(&self.client))?;
        self.vitals.is_served_by(said.process);
        Ok(said.server)
    }

    /// Reads which server it is; a standby may have become a primary.
    pub(crate) async fn read_server(&self) -> Result<Server, tokio_postgres::Error> {
        identity::read_identity(&self.client)
            .await
            .map(|said| said.server)
    }

    /// Cancels, over another connection, the statement that runs on this one. Returns when the
    /// server has processed the request; that does not show whether a statement ran, or which. The
    /// future does not need this connection any more.
    ///
    /// # Errors
    /// When the server cannot be reached, or does not process the request within two seconds.
    ///
    /// # Cancel safety
    /// Once it was polled the request is sent, also when the future is dropped.
    pub fn cancel(&self) -> impl Future<Output = std::io::Result<()>> + Send + use<> {
        self.canceller.clone().cancel()
    }

    /// Can cancel the statement without the connection.
    pub(crate) fn canceller(&self) -> Canceller {
        self.canceller.clone()
    }

    /// The client, and a task that lasts as long as the connection: ending it closes that.
    #[cfg(feature = "ops")]
    pub(super) fn into_parts(self) -> (Client, tokio::task::JoinHandle<()>) {
        let Connection {
            mut driver, client, ..
        } = self;
        (client, tokio::spawn(async move { driver.ended().await }))
    }

    /// Closes the connection once everything that was sent on it is answered, and then returns.
    /// Dropping the future closes it immediately.
    pub(crate) async fn finish(self) {
        let Connection {
            mut driver, client, ..
        } = self;
        // The driver, now that the client is gone, waits for the answers and then sends Terminate.
        drop(client);
        driver.ended().await;
    }
}

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl DerefMut for Connection {
    fn deref_mut(&mut self) -> &mut Client {
        &mut self.client
    }
}
