//! From a socket to a session, and the task that drives it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{Notify, oneshot};
use tokio::task::{AbortHandle, JoinHandle};
use tokio_postgres::config::{SslMode as DriverMode, SslNegotiation};
use tokio_postgres::tls::TlsStream;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::connect_error::ConnectError;
use super::guard::{GuardedStream, GuardedTls, Statements, Terms};
use super::options::ConnectOptions;
use super::socket::Socket;
use super::tls::SslMode;
use super::vitals::{Vitals, Watch};

/// The task that drives the socket. It ends when this is dropped.
pub(super) struct Driver(JoinHandle<()>);

impl Driver {
    /// A handle that ends it.
    pub(super) fn handle(&self) -> AbortHandle {
        self.0.abort_handle()
    }

    /// Waits until it has ended by itself.
    pub(super) async fn ended(&mut self) {
        let _ = (&mut self.0).await;
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Additional work of the driver of a connection.
pub(super) struct Duties {
    /// Woken by each notification, and by the connection's end.
    pub(super) heard: Option<Arc<Notify>>,
    /// Makes sure that no call waits on a dead connection.
    pub(super) watch: Option<Watch>,
}

/// A session that the server has let in.
pub(super) struct Session {
    pub(super) driver: Driver,
    pub(super) client: Client,
    pub(super) tls: Option<MakeRustlsConnect>,
}

impl ConnectOptions {
    /// Connects to one of the addresses with the user and database of `config`.
    pub(super) async fn shake_hands(
        &self,
        index: usize,
        config: &Config,
        statements: Statements,
        vitals: Arc<Vitals>,
        duties: Duties,
    ) -> Result<Session, ConnectError> {
        let to = || self.to_string();
        let refused = |source| ConnectError::Refused { to: to(), source };
        let unreachable = |source| ConnectError::Unreachable { to: to(), source };
        let terms = Terms {
            statements,
            require_auth: self.require_auth.clone(),
        };
        if self.tls_mode(index) == SslMode::Disable {
            // The string may require TLS where there is none, on a unix socket.
            let mut config = config.clone();
            config.ssl_mode(DriverMode::Disable);
            let socket = self.dial(index).await.map_err(unreachable)?;
            let socket = GuardedStream::plain(socket, terms, vitals);
            let (client, connection) = config.connect_raw(socket, NoTls).await.map_err(refused)?;
            return Ok(Session {
                driver: drive(to(), connection, duties),
                client,
                tls: None,
            });
        }
        let tls = self
            .tls
            .connector()
            .map_err(|source| ConnectError::Tls { to: to(), source })?
            .tls;
        let socket = self.dial(index).await.map_err(unreachable)?;
        let socket = match config.get_ssl_negotiation() {
            SslNegotiation::Direct => GuardedStream::sealed(socket, terms.clone(), vitals.clone()),
            _ => GuardedStream::asking(socket, terms.clone(), vitals.clone()),
        };
        let guarded = GuardedTls {
            tls: tls.clone(),
            terms,
            vitals,
        };
        let Ok(guarded) = guarded.to::<GuardedStream<Socket>>(&self.host_name(index));
        let (client, connection) = config.connect_raw(socket, guarded).await.map_err(refused)?;
        Ok(Session {
            driver: drive(to(), connection, duties),
            client,
            tls: Some(tls),
        })
    }
}

fn drive<S, T>(to: String, connection: tokio_postgres::Connection<S, T>, duties: Duties) -> Driver
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: TlsStream + Unpin + Send + 'static,
{
    let (ends, ended) = oneshot::channel::<Infallible>();
    let watched = duties.watch.map(|watch| (watch, to.clone()));
    let driven = tokio::spawn(Driven {
        connection,
        heard: Heard(duties.heard),
        to,
        _ends: ends,
    });
    if let Some((watch, to)) = watched {
        let driven = driven.abort_handle();
        // A task of its own, since the driver is woken for each message and the watch once in some
        // seconds.
        tokio::spawn(async move {
            tokio::select! {
                _ = ended => {}
                why = watch.given_up() => {
                    tracing::warn!(%to, "the connection is dead and is closed: {why}");
                    driven.abort();
                }
            }
        });
    }
    Driver(driven)
}

/// Drives a socket until its end. The connection is dropped before `heard`, so that a task that
/// wakes finds the client closed.
struct Driven<S, T> {
    connection: tokio_postgres::Connection<S, T>,
    heard: Heard,
    to: String,
    /// Nothing is ever sent: the watch ends when this is dropped.
    _ends: oneshot::Sender<Infallible>,
}

impl<S, T> Future for Driven<S, T>
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: TlsStream + Unpin,
{
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        while let Some(message) = ready!(self.connection.poll_message(context)) {
            match message {
                Ok(AsyncMessage::Notification(_)) => self.heard.tell(),
                Ok(AsyncMessage::Notice(notice)) => {
                    tracing::debug!(notice = notice.message(), "the server says")
                }
                Ok(_) => {}
                Err(error) => {
                    tell(&self.to, &error);
                    break;
                }
            }
        }
        Poll::Ready(())
    }
}

/// Whom the driver wakes, also by its own end.
struct Heard(Option<Arc<Notify>>);

impl Heard {
    fn tell(&self) {
        if let Some(heard) = &self.0 {
            heard.notify_one();
        }
    }
}

impl Drop for Heard {
    fn drop(&mut self) {
        self.tell();
    }
}

/// A caller that waits for an answer gets an error too, but not the reason. That connections end is
/// nothing unusual; that a server does not keep to the protocol is.
fn tell(to: &str, error: &tokio_postgres::Error) {
    let cause =
        std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause.filter(|cause| {
        matches!(
            cause.kind(),
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput
        )
    }) {
        Some(cause) => {
            tracing::warn!(%to, "a connection is closed, since what came makes no sense: {cause}")
        }
        None => tracing::debug!(%to, %error, "a connection ended"),
    }
}
