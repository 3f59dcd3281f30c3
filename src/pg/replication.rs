//! A connection in replication mode, which `tokio_postgres` does not have: sockets, TLS and
//! passwords as for ordinary connections, then replication commands and the stream of one slot.
//!
//! It does only what a logical stream needs: `START_REPLICATION`, and commands that answer with a
//! row.

use std::io;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes, BytesMut};
use postgres_protocol::authentication::md5_hash;
use postgres_protocol::authentication::sasl::{self, ScramSha256};
use postgres_protocol::message::frontend;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio_postgres::config::{ChannelBinding, SslNegotiation};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};

use super::binding;
use super::connect_error::ConnectError;
use super::guard::LONGEST_MESSAGE;
use super::identity::{self, Identity};
use super::options::ConnectOptions;
use super::password::PassfileKey;
use super::require_auth::AuthRequests;
use super::socket::Socket;
use super::state::{LOGIN_AGAIN, is_refused_login};
use super::tls::SslMode;
use super::vitals::{LOOKS, Patience, Sign, check_progress};

/// The process, the system identifier and, from a primary, the log file that it writes, with a name
/// that begins with the timeline.
const WHO: &str = "SELECT pg_catalog.concat_ws(' ', pg_catalog.pg_backend_pid(), \
    (SELECT system_identifier FROM pg_catalog.pg_control_system()), \
    CASE WHEN NOT pg_catalog.pg_is_in_recovery() THEN \
    pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()) END)";

/// How much is read at once, at most.
const READ_BYTES: usize = 64 * 1024;

/// Why a replication connection cannot be opened, or broke.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplicationError {
    /// The connection cannot be opened.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The socket failed.
    #[error("the replication connection to {to} broke")]
    Socket {
        /// `user@address/database`.
        to: String,
        /// Why.
        source: io::Error,
    },
    /// The server refused, or ended the stream.
    #[error("{to} refused: {message} ({code})")]
    Refused {
        /// `user@address/database`.
        to: String,
        /// The SQLSTATE.
        code: String,
        /// The server's words.
        message: String,
    },
    /// Something that this client does not speak.
    #[error("{to}: {what}")]
    Unsupported {
        /// `user@address/database`.
        to: String,
        /// What.
        what: String,
    },
    /// The server stopped answering.
    #[error("{to} did not answer within {timeout_ms} ms")]
    TimedOut {
        /// `user@address/database`.
        to: String,
        /// The limit.
        timeout_ms: u128,
    },
}

impl ReplicationError {
    /// The server's SQLSTATE, if it was the server that refused.
    pub fn code(&self) -> Option<&str> {
        match self {
            ReplicationError::Refused { code, .. } => Some(code),
            _ => None,
        }
    }
}

/// Anything that bytes go over: a socket, or TLS on one.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A stream, the name that it was opened with, and what it can be bound to.
type Opened = (Box<dyn Stream>, String, Option<Vec<u8>>);

/// One message of the server: its tag and what follows the length.
pub(crate) struct Message {
    pub(crate) tag: u8,
    pub(crate) body: Bytes,
}

/// A connection in replication mode, idle.
pub(crate) struct Replication {
    reader: Reader,
    writer: Writer,
}

/// The half that messages come from.
pub(crate) struct Reader {
    to: String,
    socket: ReadHalf<Box<dyn Stream>>,
    buffer: BytesMut,
    options: ConnectOptions,
    index: usize,
    /// The process of the server that sends; 0 where it is not reported.
    process: i32,
}

/// Whether the server shall answer a status immediately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Requested,
    NotNeeded,
}

/// The half that messages go to.
pub(crate) struct Writer {
    to: String,
    socket: WriteHalf<Box<dyn Stream>>,
}

impl ConnectOptions {
    /// Opens a connection in replication mode to the host's primary. Of several addresses it takes
    /// the first that accepts it, is not in recovery, and is not a former primary; it tries the one
    /// that answered last first.
    ///
    /// # Cancel safety
    /// Dropping the future closes the socket.
    pub(crate) async fn replicate(
        &self,
        application_name: &str,
    ) -> Result<Replication, ReplicationError> {
        let mut failed = None;
        for index in self.order() {
            let limit = self.answer_limit();
            let opened = async {
                let mut connection = match self.replicate_with(index, application_name).await {
                    Err(error)
                        if error.code().is_some_and(is_refused_login)
                            && self.password.may_change() =>
                    {
                        self.password.forget();
                        tokio::time::sleep(LOGIN_AGAIN).await;
                        self.replicate_with(index, application_name).await?
                    }
                    opened => opened?,
                };
                self.check_primary(index, &mut connection).await?;
                Ok(connection)
            };
            let opened = tokio::time::timeout(limit, opened).await;
            let opened = opened.unwrap_or_else(|_| {
                Err(ReplicationError::Connect(ConnectError::TimedOut {
                    to: self.to_string(),
                    timeout_ms: limit.as_millis(),
                }))
            });
            match opened {
                Ok(connection) => return Ok(connection),
                Err(error) => failed = Some(error),
            }
        }
        Err(failed.expect("at least one address was tried"))
    }

    /// Checks that the server writes the timeline at which the host is known. A server that does
    /// not report it is taken.
    async fn check_primary(
        &self,
        index: usize,
        connection: &mut Replication,
    ) -> Result<(), ReplicationError> {
        let unfit = |what: String| ReplicationError::Unsupported {
            to: self.to_string(),
            what,
        };
        let said = match connection.value(WHO).await {
            Ok(said) => said.unwrap_or_default(),
            Err(ReplicationError::Refused { .. }) => return Ok(()),
            Err(error) => return Err(error),
        };
        let mut words = said.split(' ');
        connection.reader.process = words
            .next()
            .and_then(|process| process.parse().ok())
            .unwrap_or_default();
        let Some(system) = words.next().and_then(|system| system.parse().ok()) else {
            return Ok(());
        };
        let Some(timeline) = words.next().and_then(identity::timeline) else {
            return Err(unfit(format!("address {} of it is a standby", index + 1)));
        };
        let judged = self.record().map(|known| {
            known.judge(Identity {
                system,
                timeline: Some(timeline),
            })
        });
        judged.unwrap_or(Ok(())).map_err(|why| {
            unfit(format!(
                "{} is not connected to: {why}",
                self.address(index)
            ))
        })
    }

    async fn replicate_with(
        &self,
        index: usize,
        application_name: &str,
    ) -> Result<Replication, ReplicationError> {
        let to = self.to_string();
        let socket = |source| ReplicationError::Socket {
            to: self.to_string(),
            source,
        };
        let (stream, host, end_point) = self.open_socket(index).await?;
        let (reader, writer) = tokio::io::split(stream);
        let buffer = BytesMut::with_capacity(READ_BYTES);
        let reader = Reader {
            to: to.clone(),
            socket: reader,
            buffer,
            options: self.clone(),
            index,
            process: 0,
        };
        let mut connection = Replication {
            reader,
            writer: Writer { to, socket: writer },
        };
        let name = self
            .config
            .get_application_name()
            .unwrap_or(application_name);
        let mut parameters = vec![
            ("user", self.user()),
            ("database", self.database()),
            ("replication", "database"),
            ("client_encoding", "UTF8"),
            ("application_name", name),
        ];
        // These settings decide the texts of values; every session of a mover has them.
        let options = format!(
            "{} -c datestyle=ISO,YMD -c intervalstyle=postgres -c timezone=UTC -c \
                extra_float_digits=1 -c bytea_output=hex -c xmloption=content -c lc_monetary=C",
            self.config.get_options().unwrap_or_default()
        );
        parameters.push(("options", options.trim()));
        let mut buffer = BytesMut::new();
        frontend::startup_message(parameters, &mut buffer).map_err(socket)?;
        connection.writer.send(&buffer).await?;
        connection
            .authenticate(self, &host, index, end_point)
            .await?;
        Ok(connection)
    }

    /// The socket, with TLS as the options require, the name that it was opened with, and what the
    /// connection can be bound to.
    async fn open_socket(&self, index: usize) -> Result<Opened, ReplicationError> {
        let failed = |source| ReplicationError::Socket {
            to: self.to_string(),
            source,
        };
        let dialled = self.dial(index).await;
        let mut stream = dialled.map_err(|source| ConnectError::Unreachable {
            to: self.to_string(),
            source,
        })?;
        let name = self.host_name(index);
        if self.tls_mode(index) == SslMode::Disable {
            return Ok((Box::new(stream), name, None));
        }
        if self.config.get_ssl_negotiation() == SslNegotiation::Postgres {
            let mut request = BytesMut::new();
            frontend::ssl_request(&mut request);
            stream.write_all(&request).await.map_err(failed)?;
            let mut answer = [0];
            stream.read_exact(&mut answer).await.map_err(failed)?;
            if answer != *b"S" {
                if self.tls.mode == SslMode::Prefer {
                    return Ok((Box::new(stream), name, None));
                }
                let what = "the server does not support TLS".to_owned();
                return Err(ReplicationError::Unsupported {
                    to: self.to_string(),
                    what,
                });
            }
        }
        let connector = self.tls.connector();
        let mut connector = connector.map_err(|source| ConnectError::Tls {
            to: self.to_string(),
            source,
        })?;
        let Ok(connect) = MakeTlsConnect::<Socket>::make_tls_connect(&mut connector.tls, &name);
        let stream = connect.connect(stream).await.map_err(failed)?;
        let end_point = connector
            .certificate
            .get()
            .and_then(|certificate| binding::end_point(certificate));
        Ok((Box::new(stream), name, end_point))
    }
}

impl Replication {
    async fn authenticate(
        &mut self,
        options: &ConnectOptions,
        host: &str,
        index: usize,
        end_point: Option<Vec<u8>>,
    ) -> Result<(), ReplicationError> {
        let to = options.to_string();
        let unsupported = |what: &str| ReplicationError::Unsupported {
            to: to.clone(),
            what: what.to_owned(),
        };
        let broken = |source| ReplicationError::Socket {
            to: to.clone(),
            source,
        };
        let wanted = PassfileKey {
            host,
            port: options.port(index),
            database: options.database(),
            user: options.user(),
        };
        let mut read = Some(options.password.fetch(&wanted).await);
        let mut password = || {
            let read = read.take();
            let read = read.ok_or_else(|| unsupported("the server asks for the password twice"))?;
            read.map_err(|source| ConnectError::Password {
                to: to.clone(),
                source,
            })?
            .ok_or_else(|| unsupported("the server asks for a password and none is given"))
        };
        let binding = options.config.get_channel_binding();
        let mut proof = Proof {
            binding,
            end_point,
            scram: None,
            bound: false,
        };
        let mut asked = AuthRequests::new(options.require_auth.clone());
        let mut authenticated = false;
        loop {
            let mut message = self.reader.answer().await?;
            match message.tag {
                b'Z' if authenticated => return Ok(()),
                b'Z' => {
                    return Err(unsupported(
                        "the server is ready before it has authenticated the client",
                    ));
                }
                b'R' if message.body.len() >= 4 => {}
                // Parameters, the key for a cancel, notices.
                _ => continue,
            }
            let request = message.body.get_u32();
            asked.take(request).map_err(|why| unsupported(&why))?;
            // Only a proof that is bound to this very connection rules out a man in the middle.
            if matches!(request, 0 | 3 | 5) && binding == ChannelBinding::Require && !proof.bound {
                return Err(unsupported(
                    "the server did not use channel binding, which channel_binding=require wants",
                ));
            }
            let mut out = BytesMut::new();
            match request {
                0 => {
                    authenticated = true;
                    continue;
                }
                3 => {
                    frontend::password_message(password()?.as_bytes(), &mut out).map_err(broken)?
                }
                5 if message.body.len() == 4 => {
                    let salt = message.body.get_u32().to_be_bytes();
                    let hash = md5_hash(options.user().as_bytes(), password()?.as_bytes(), salt);
                    frontend::password_message(hash.as_bytes(), &mut out).map_err(broken)?;
                }
                10 => {
                    let (mechanism, bound) = proof.choose(&message.body).map_err(unsupported)?;
                    let first = ScramSha256::new(password()?.as_bytes(), bound);
                    frontend::sasl_initial_response(mechanism, first.message(), &mut out)
                        .map_err(broken)?;
                    proof.scram = Some(first);
                }
                11 => {
                    let state = proof
                        .scram
                        .as_mut()
                        .ok_or_else(|| unsupported("SASL went on before it began"))?;
                    state.update(&message.body).map_err(broken)?;
                    frontend::sasl_response(state.message(), &mut out).map_err(broken)?;
                }
                12 => {
                    let state = proof
                        .scram
                        .as_mut()
                        .ok_or_else(|| unsupported("SASL ended before it began"))?;
                    state.finish(&message.body).map_err(broken)?;
                    continue;
                }
                _ => {
                    return Err(unsupported(
                        "the server asks for a way to authenticate that is not known here",
                    ));
                }
            }
            self.writer.send(&out).await?;
        }
    }

    /// Runs a command that answers with at most one row, and returns its first column.
    pub(crate) async fn value(
        &mut self,
        command: &str,
    ) -> Result<Option<String>, ReplicationError> {
        let columns = self.columns(command).await?;
        Ok(columns.into_iter().next().flatten())
    }

    /// Runs a command that answers with at most one row, and returns its columns.
    async fn columns(&mut self, command: &str) -> Result<Vec<Option<String>>, ReplicationError> {
        self.writer.query(command).await?;
        let mut columns = Vec::new();
        loop {
            let message = self.reader.answer().await?;
            match message.tag {
                b'Z' => return Ok(columns),
                b'D' => columns = columns_of(message.body),
                _ => {}
            }
        }
    }

    /// The positions at which the server's timeline, and those before it, were left for the next
    /// one: each with the timeline that ends there.
    pub(crate) async fn timeline_ends(&mut self) -> Result<Vec<(u32, u64)>, ReplicationError> {
        let system = self.columns("IDENTIFY_SYSTEM").await?;
        let timeline = system.get(1).cloned().flatten();
        let to = self.reader.to.clone();
        let strange = |what: &str| ReplicationError::Unsupported {
            to: to.clone(),
            what: format!("its timelines cannot be read: {what}"),
        };
        let timeline: Option<u32> = timeline.and_then(|timeline| timeline.parse().ok());
        let timeline = timeline.ok_or_else(|| strange("it does not name its own"))?;
        if timeline == 1 {
            return Ok(Vec::new());
        }
        let history = self
            .columns(&format!("TIMELINE_HISTORY {timeline}"))
            .await?;
        let history = history.get(1).cloned().flatten().unwrap_or_default();
        let lines = history
            .lines()
            .map(str::trim)
            .filter(|line| !line.is_empty() && !line.starts_with('#'));
        let ends: Option<Vec<(u32, u64)>> = lines.map(timeline_end).collect();
        ends.filter(|ends| !ends.is_empty())
            .ok_or_else(|| strange("its history has another form"))
    }

    /// Starts a stream: `command` is a START_REPLICATION. From here on the halves are used by
    /// themselves.
    pub(crate) async fn start(
        mut self,
        command: &str,
    ) -> Result<(Reader, Writer), ReplicationError> {
        self.writer.query(command).await?;
        while self.reader.answer().await?.tag != b'W' {}
        Ok((self.reader, self.writer))
    }
}

/// The columns of a DataRow.
fn columns_of(mut body: Bytes) -> Vec<Option<String>> {
    let mut columns = Vec::new();
    if body.len() < 2 {
        return columns;
    }
    for _ in 0..body.get_u16() {
        if body.len() < 4 {
            break;
        }
        let length = body.get_i32();
        columns.push(match usize::try_from(length) {
            Ok(length) if length <= body.len() => {
                Some(String::from_utf8_lossy(&body.split_to(length)).into_owned())
            }
            _ => None,
        });
    }
    columns
}

/// A line of a timeline's history: a timeline, the position at which it ends, and why.
fn timeline_end(line: &str) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace();
    let timeline = words.next()?.parse().ok()?;
    let (high, low) = words.next()?.split_once('/')?;
    let half = |digits| u64::from_str_radix(digits, 16).ok();
    let (high, low) = (half(high)?, half(low)?);
    (high <= u64::from(u32::MAX) && low <= u64::from(u32::MAX))
        .then_some((timeline, high << 32 | low))
}

/// How both sides prove that they know the password.
struct Proof {
    binding: ChannelBinding,
    /// What this connection can be bound to: nothing without TLS.
    end_point: Option<Vec<u8>>,
    scram: Option<ScramSha256>,
    /// The proof holds for this connection only.
    bound: bool,
}

impl Proof {
    /// The mechanism to take of those that the server offers, and what the proof is bound to.
    fn choose(
        &mut self,
        offered: &[u8],
    ) -> Result<(&'static str, sasl::ChannelBinding), &'static str> {
        let offers = |name: &str| {
            offered
                .split(|byte| *byte == 0)
                .any(|one| one == name.as_bytes())
        };
        let end_point = self
            .end_point
            .clone()
            .filter(|_| self.binding != ChannelBinding::Disable);
        let chosen = match end_point {
            Some(hash) if offers(sasl::SCRAM_SHA_256_PLUS) => {
                self.bound = true;
                (
                    sasl::SCRAM_SHA_256_PLUS,
                    sasl::ChannelBinding::tls_server_end_point(hash),
                )
            }
            _ if self.binding == ChannelBinding::Require => {
                return Err(
                    "channel_binding=require, and neither side can bind the password to this \
                        connection",
                );
            }
            // A server that could bind it learns from this that its offer was stripped of that on
            // the way.
            Some(_) if offers(sasl::SCRAM_SHA_256) => {
                (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unrequested())
            }
            None if offers(sasl::SCRAM_SHA_256) => {
                (sasl::SCRAM_SHA_256, sasl::ChannelBinding::unsupported())
            }
            _ => return Err("the server offers no way to authenticate that is known here"),
        };
        Ok(chosen)
    }
}

impl Reader {
    /// The next message. An error of the server is an `Err`.
    async fn answer(&mut self) -> Result<Message, ReplicationError> {
        loop {
            if let Some(message) = self.buffered()? {
                return Ok(message);
            }
            self.fill().await?;
        }
    }

    /// Waits until something has come. If nothing does, another connection checks whether the
    /// server is at work on this one.
    ///
    /// # Errors
    /// When the connection breaks or is dead.
    ///
    /// # Cancel safety
    /// Nothing that came is lost.
    pub(crate) async fn fill(&mut self) -> Result<(), ReplicationError> {
        let Some(Patience { idle, interval }) = self.options.patience() else {
            return self.read().await;
        };
        let (begun, mut limit, mut looks) = (Instant::now(), idle, 0);
        loop {
            if let Ok(read) = tokio::time::timeout(limit, self.read()).await {
                return read;
            }
            // What comes during the check is there at the next turn.
            let sign = check_progress(self.options.clone(), self.index, self.process).await;
            looks = if sign == Sign::Busy { 0 } else { looks + 1 };
            if looks > LOOKS {
                let timeout_ms = begun.elapsed().as_millis();
                return Err(ReplicationError::TimedOut {
                    to: self.to.clone(),
                    timeout_ms,
                });
            }
            limit = interval;
        }
    }

    async fn read(&mut self) -> Result<(), ReplicationError> {
        self.buffer.reserve(READ_BYTES);
        let read = self.socket.read_buf(&mut self.buffer).await;
        let broken = |source| ReplicationError::Socket {
            to: self.to.clone(),
            source,
        };
        match read.map_err(broken)? {
            0 => Err(broken(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    /// A message that is here already.
    pub(crate) fn buffered(&mut self) -> Result<Option<Message>, ReplicationError> {
        take_message(&mut self.buffer, &self.to)
    }
}

/// Takes a message that is there as a whole.
pub(super) fn take_message(
    buffer: &mut BytesMut,
    to: &str,
) -> Result<Option<Message>, ReplicationError> {
    let Some(header) = buffer.get(..5) else {
        return Ok(None);
    };
    let tag = header[0];
    let length = u32::from_be_bytes([header[1], header[2], header[3], header[4]]) as usize;
    if !(4..=LONGEST_MESSAGE).contains(&length) {
        let what = format!("a message of {length} bytes came, which cannot be");
        return Err(ReplicationError::Unsupported {
            to: to.to_owned(),
            what,
        });
    }
    if buffer.len() < 1 + length {
        return Ok(None);
    }
    buffer.advance(5);
    let body = buffer.split_to(length - 4).freeze();
    if tag == b'E' {
        return Err(refusal(to, &body));
    }
    Ok(Some(Message { tag, body }))
}

impl Writer {
    async fn query(&mut self, command: &str) -> Result<(), ReplicationError> {
        let mut buffer = BytesMut::new();
        let failed = |source| ReplicationError::Socket {
            to: self.to.clone(),
            source,
        };
        frontend::query(command, &mut buffer).map_err(failed)?;
        self.send(&buffer).await
    }

    /// Reports to the server, on a running stream, up to where everything is written, and up to
    /// where it is flushed and applied.
    pub(crate) async fn status(
        &mut self,
        written: u64,
        flushed: u64,
        reply: Reply,
    ) -> Result<(), ReplicationError> {
        let mut data = Vec::with_capacity(34);
        data.push(b'r');
        for position in [written, flushed, flushed] {
            data.extend_from_slice(&position.to_be_bytes());
        }
        // The time of day. The server only uses it to show how old this status is.
        let since_2000 = Duration::from_secs(946_684_800);
        let now = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .unwrap_or_default();
        let now = i64::try_from(now.saturating_sub(since_2000).as_micros()).unwrap_or(i64::MAX);
        data.extend_from_slice(&now.to_be_bytes());
        data.push(u8::from(reply == Reply::Requested));
        let mut buffer = BytesMut::new();
        let failed = |source| ReplicationError::Socket {
            to: self.to.clone(),
            source,
        };
        frontend::CopyData::new(&data[..])
            .map_err(failed)?
            .write(&mut buffer);
        self.send(&buffer).await
    }

    /// Ends the stream and the session.
    pub(crate) async fn end(&mut self) -> Result<(), ReplicationError> {
        let mut buffer = BytesMut::new();
        frontend::copy_done(&mut buffer);
        frontend::terminate(&mut buffer);
        self.send(&buffer).await
    }

    async fn send(&mut self, bytes: &[u8]) -> Result<(), ReplicationError> {
        let failed = |source| ReplicationError::Socket {
            to: self.to.clone(),
            source,
        };
        self.socket.write_all(bytes).await.map_err(failed)?;
        self.socket.flush().await.map_err(failed)
    }
}

/// An ErrorResponse: fields of a letter and a text, ended by zero bytes.
fn refusal(to: &str, body: &[u8]) -> ReplicationError {
    let field = |letter: u8| {
        let mut fields = body.split(|byte| *byte == 0);
        let found = fields.find(|field| field.first() == Some(&letter));
        found
            .map(|field| String::from_utf8_lossy(&field[1..]).into_owned())
            .unwrap_or_default()
    };
    ReplicationError::Refused {
        to: to.to_owned(),
        code: field(b'C'),
        message: field(b'M'),
    }
}
