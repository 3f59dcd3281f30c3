//! Opening a connection.

use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_postgres::{AsyncMessage, Client, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::ConnectOptions;
use super::password::{PasswordError, Wanted};
use super::tls::{SslMode, TlsError};

/// A client and the task that drives its socket. Dropping it ends the task and so closes the socket; the server then
/// rolls an open transaction back.
pub struct Connection {
    client: Client,
    driver: JoinHandle<()>,
    /// What a request to cancel needs of TLS.
    tls: Option<MakeRustlsConnect>,
}

/// Why a connection cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The password cannot be read.
    #[error("no password for {to}")]
    Password {
        /// `user@address/database`.
        to: String,
        /// Why not.
        source: PasswordError,
    },
    /// TLS cannot be set up.
    #[error("no TLS for {to}")]
    Tls {
        /// `user@address/database`.
        to: String,
        /// Why not.
        source: TlsError,
    },
    /// The server cannot be reached or refuses.
    #[error("cannot connect to {to}")]
    Refused {
        /// `user@address/database`.
        to: String,
        /// What the driver says.
        source: tokio_postgres::Error,
    },
    /// The server did not answer in time.
    #[error("{to} did not answer within {timeout_ms} ms")]
    TimedOut {
        /// `user@address/database`.
        to: String,
        /// The limit.
        timeout_ms: u128,
    },
}

impl ConnectOptions {
    /// Opens a connection. `application_name` is what `pg_stat_activity` shows, unless the string says otherwise.
    ///
    /// Several addresses are tried one after the other, the one that answered last first. `connect_timeout` bounds the way to
    /// each, and twice that the whole of it (a server that takes the connection but then says nothing is caught too).
    ///
    /// # Errors
    /// When the password or certificates cannot be read, or the server cannot be reached, refuses, or is silent.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub async fn connect(&self, application_name: &str) -> Result<Connection, ConnectError> {
        self.open(application_name, None).await
    }

    /// Opens a connection for LISTEN: each notification that arrives, and the end of the connection, wakes `heard`. Several
    /// of them may wake it once.
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
        self.open(application_name, Some(heard)).await
    }

    async fn open(&self, application_name: &str, heard: Option<Arc<Notify>>) -> Result<Connection, ConnectError> {
        let mut last = None;
        for index in self.order() {
            // Boxed: with both ways to connect it is larger than everything around it.
            match Box::pin(self.open_at(index, application_name, heard.clone())).await {
                Ok(connection) => {
                    self.remember(index);
                    return Ok(connection);
                }
                Err(error) => last = Some(error),
            }
        }
        Err(last.expect("a connection string names at least one address"))
    }

    async fn open_at(
        &self,
        index: usize,
        application_name: &str,
        heard: Option<Arc<Notify>>,
    ) -> Result<Connection, ConnectError> {
        let to = || self.to_string();
        let mut config = self.at(index);
        if config.get_application_name().is_none() {
            config.application_name(application_name);
        }
        let host = self.host_name(index);
        let wanted = Wanted { host: &host, port: self.port(index), database: self.database(), user: self.user() };
        let password = self.password.read(&wanted);
        if let Some(password) = password.map_err(|source| ConnectError::Password { to: to(), source })? {
            config.password(password);
        }
        let limit = config.get_connect_timeout().copied().unwrap_or(Self::CONNECT_TIMEOUT) * 2;
        let refused = |source| ConnectError::Refused { to: to(), source };
        let opened = async {
            if self.tls.mode == SslMode::Disable {
                let (client, connection) = config.connect(NoTls).await.map_err(refused)?;
                return Ok(Connection { client, driver: drive(connection, heard), tls: None });
            }
            let tls = self.tls.connector().map_err(|source| ConnectError::Tls { to: to(), source })?;
            let (client, connection) = config.connect(tls.clone()).await.map_err(refused)?;
            Ok(Connection { client, driver: drive(connection, heard), tls: Some(tls) })
        };
        match tokio::time::timeout(limit, opened).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ConnectError::TimedOut { to: to(), timeout_ms: limit.as_millis() }),
        }
    }
}

impl ConnectError {
    /// Whether the server could not be spoken with, or (where `target_session_attrs` asks for one that takes writes) none
    /// of them takes any: what passes, and what another try at once does not help with. Not when it answered with an error.
    pub fn is_unreachable(&self) -> bool {
        match self {
            ConnectError::TimedOut { .. } => true,
            ConnectError::Refused { source, .. } => {
                let cause = std::error::Error::source(source).and_then(|cause| cause.downcast_ref::<std::io::Error>());
                // Of a handshake that failed the library speaks as of invalid data.
                let broken = |error: &std::io::Error| error.kind() != std::io::ErrorKind::InvalidData;
                source.as_db_error().is_none() && (source.is_closed() || cause.is_some_and(broken))
            }
            ConnectError::Password { .. } | ConnectError::Tls { .. } => false,
        }
    }
}

fn drive<S, T>(mut connection: tokio_postgres::Connection<S, T>, heard: Option<Arc<Notify>>) -> JoinHandle<()>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    T: tokio_postgres::tls::TlsStream + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match (message, &heard) {
                (Ok(AsyncMessage::Notification(_)), Some(heard)) => heard.notify_one(),
                (Ok(AsyncMessage::Notice(notice)), _) => tracing::debug!(notice = notice.message(), "the server says"),
                (Ok(_), _) => {}
                (Err(error), _) => {
                    // Whoever waits for an answer gets the error too; this line is for connections that nobody waits on.
                    tracing::debug!(%error, "a connection ended");
                    break;
                }
            }
        }
        // Before the waking, so that who is woken finds the client closed.
        drop(connection);
        if let Some(heard) = heard {
            heard.notify_one();
        }
    })
}

impl Connection {
    /// The driver's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Asks the server, over a connection of its own, to end the statement that runs on this one. Whether one runs, and
    /// which, is found out there: the answer is no word about it. The future does not need the connection any more.
    pub fn cancel(&self) -> impl Future<Output = Result<(), tokio_postgres::Error>> + Send + use<> {
        let (token, tls) = (self.client.cancel_token(), self.tls.clone());
        async move {
            match tls {
                Some(tls) => token.cancel_query(tls).await,
                None => token.cancel_query(NoTls).await,
            }
        }
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

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}
