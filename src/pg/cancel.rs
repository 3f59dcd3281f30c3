//! Requests that a server cancels the statement that runs on a connection.
//!
//! The driver closes the connection of such a request as soon as the request is written. A pooler
//! takes that for a client that has changed its mind, and drops the request; PgBouncer before 1.19
//! may even crash. And the request may reach the server when another client has the session. So
//! this waits, as libpq does, until the other side closes the connection: then the request was
//! processed.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{CancelToken, NoTls};
use tokio_postgres_rustls::MakeRustlsConnect;

/// Where a connection leads.
#[derive(Clone)]
pub(super) enum Address {
    /// A name or an address, and a port.
    Tcp(String, u16),
    Unix(PathBuf),
}

/// How long a request may take.
const CANCEL_MAX: Duration = Duration::from_secs(2);

/// The most addresses of a name that get the request.
const ADDRESSES_MAX: usize = 8;

/// What is needed to cancel the statements of a connection, without the connection.
#[derive(Clone)]
pub(crate) struct Canceller {
    pub(super) token: CancelToken,
    pub(super) address: Address,
    /// The host's name, which the server's certificate is checked against.
    pub(super) host: String,
    pub(super) tls: Option<MakeRustlsConnect>,
}

impl Canceller {
    /// As [`Connection::cancel`](super::Connection::cancel).
    pub(crate) async fn cancel(self) -> io::Result<()> {
        // A task of its own, so that the request continues when the caller gives up.
        let asking = tokio::spawn(async move {
            let late = || io::Error::from(io::ErrorKind::TimedOut);
            tokio::time::timeout(CANCEL_MAX, self.ask_each())
                .await
                .unwrap_or_else(|_| Err(late()))
        });
        asking.await?
    }

    async fn ask_each(&self) -> io::Result<()> {
        match &self.address {
            Address::Unix(path) => self.send_request(UnixStream::connect(path).await?).await,
            Address::Tcp(host, port) => {
                let mut last = None;
                // It is not known which of a name's addresses the connection leads to, so all get
                // the request. A server that does not know the connection does nothing.
                for address in tokio::net::lookup_host((host.as_str(), *port))
                    .await?
                    .take(ADDRESSES_MAX)
                {
                    let asked = match TcpStream::connect(address).await {
                        Ok(stream) => self.send_request(stream).await,
                        Err(error) => Err(error),
                    };
                    last = asked.err();
                }
                last.map_or(Ok(()), Err)
            }
        }
    }

    async fn send_request<S>(&self, stream: S) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let stream = UntilClosed(stream);
        let asked = match &self.tls {
            Some(tls) => {
                let connect = MakeTlsConnect::<UntilClosed<S>>::make_tls_connect(
                    &mut tls.clone(),
                    &self.host,
                );
                let Ok(connect) = connect;
                self.token.cancel_query_raw(stream, connect).await
            }
            None => self.token.cancel_query_raw(stream, NoTls).await,
        };
        asked.map_err(io::Error::other)
    }
}

/// A stream that, on shutdown, waits until the other side closes it.
struct UntilClosed<S>(S);

impl<S: AsyncRead + Unpin> AsyncRead for UntilClosed<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for UntilClosed<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let mut bytes = [0; 64];
            let mut buffer = ReadBuf::new(&mut bytes);
            let read = ready!(Pin::new(&mut self.0).poll_read(cx, &mut buffer));
            // Whether this is the end or an error: the stream is closed.
            if read.is_err() || buffer.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
