//! The socket to a server, opened and configured by the options. Ordinary connections and those in
//! replication mode use the same kind.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio_postgres::config::{Host, LoadBalanceHosts};

use super::options::ConnectOptions;
use super::simulated;

/// A socket to a server.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Simulated(simulated::Stream),
}

impl ConnectOptions {
    /// Opens a socket to one of the addresses. A name may resolve to several: they are tried one
    /// after the other, and each has `connect_timeout`.
    pub(super) async fn dial(&self, index: usize) -> io::Result<Socket> {
        let (port, limit) = (self.port(index), self.connect_timeout());
        let late = |_| io::Error::new(io::ErrorKind::TimedOut, "connection timed out");
        if let (Some(Host::Unix(folder)), None) = (
            self.config.get_hosts().get(index),
            self.config.get_hostaddrs().get(index),
        ) {
            let path = folder.join(format!(".s.PGSQL.{port}"));
            let opened = tokio::time::timeout(limit, UnixStream::connect(path)).await;
            return opened.map_err(late)?.map(Socket::Unix);
        }
        // As in libpq, `hostaddr` is where to connect to, and `host` is the name that the
        // certificate must have.
        let address = self
            .config
            .get_hostaddrs()
            .get(index)
            .map(ToString::to_string);
        let name = address.unwrap_or_else(|| self.host_name(index));
        if let Some(dialing) = simulated::dial(&name) {
            return tokio::time::timeout(limit, dialing)
                .await
                .map_err(late)?
                .map(Socket::Simulated);
        }
        let mut found: Vec<_> = tokio::net::lookup_host((name.as_str(), port))
            .await?
            .collect();
        if self.config.get_load_balance_hosts() == LoadBalanceHosts::Random {
            fastrand::shuffle(&mut found);
        }
        let mut failed = io::Error::new(io::ErrorKind::NotFound, "the name stands for no address");
        for address in found {
            match tokio::time::timeout(limit, TcpStream::connect(address))
                .await
                .map_err(late)
                .flatten()
            {
                Ok(stream) => {
                    stream.set_nodelay(true)?;
                    self.keep_alive(&stream)?;
                    return Ok(Socket::Tcp(stream));
                }
                Err(error) => failed = error,
            }
        }
        Err(failed)
    }

    /// Has the kernel look whether the other side is still there.
    fn keep_alive(&self, stream: &TcpStream) -> rustix::io::Result<()> {
        use rustix::net::sockopt;
        sockopt::set_socket_keepalive(stream, self.config.get_keepalives())?;
        sockopt::set_tcp_keepidle(stream, self.config.get_keepalives_idle())?;
        if let Some(interval) = self.config.get_keepalives_interval() {
            sockopt::set_tcp_keepintvl(stream, interval)?;
        }
        if let Some(retries) = self.config.get_keepalives_retries() {
            sockopt::set_tcp_keepcnt(stream, retries)?;
        }
        if let Some(timeout) = self.config.get_tcp_user_timeout() {
            sockopt::set_tcp_user_timeout(
                stream,
                u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
            )?;
        }
        Ok(())
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Simulated(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Simulated(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Simulated(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Simulated(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}
