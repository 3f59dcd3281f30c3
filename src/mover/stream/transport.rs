//! The stream of a slot, as messages: one task reads, and one reports to the server how far
//! everything is durable.
//!
//! They are two, so that the server sees that we are alive even if the applier is slow, or waits.
//! Invariant: no position is reported that the applier has not declared durable.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use crate::map::HostName;
use crate::mover::protocol::error::Error;
use crate::pg::{
    ConnectOptions, Reader, ReplicationError, Reply, Writer, quote_ident, quote_literal,
};

use crate::mover::stream::confirm::ConfirmedBy;
use crate::mover::stream::wire;
use crate::mover::stream::wire::Message;

/// Messages wait for the applier in packs: what was read at once, about 64 KiB. This is the most
/// packs that may wait. Beyond that the socket is not read, and the server waits.
const PACKS: usize = 32;

/// How often a position is reported to the server that has not changed. It counts us as dead after
/// `wal_sender_timeout`, a minute by default.
const STATUS_EVERY: Duration = Duration::from_secs(1);

/// The shortest time between two reports of a position that changes.
const STATUS_PAUSE: Duration = Duration::from_millis(100);

/// No position: a client that reports it as flushed confirms nothing, and is no standby.
const NOT_FLUSHED: u64 = 0;

/// What comes from the server.
#[derive(Debug)]
pub(crate) enum Frame {
    /// A message of the stream, and how long it was.
    Message(Message, usize),
    /// Everything that was committed before this position has been sent.
    Alive {
        /// The position.
        wal_end: u64,
    },
}

/// A running stream. It ends when dropped.
pub(crate) struct Transport {
    packs: mpsc::Receiver<Result<Vec<Frame>, Error>>,
    durable: watch::Sender<u64>,
    /// The server's last state.
    server: watch::Receiver<Server>,
    reader: JoinHandle<()>,
    writer: JoinHandle<()>,
}

/// The server's state, which comes with every message.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Server {
    /// How far it has decoded its WAL.
    pub(crate) wal_end: u64,
    /// Its clock: microseconds since 2000.
    pub(crate) clock: i64,
}

/// Which stream to open.
pub(crate) struct Source<'a> {
    pub(crate) host: &'a HostName,
    pub(crate) options: &'a ConnectOptions,
    pub(crate) slot: &'a str,
    pub(crate) publication: &'a str,
}

impl Transport {
    /// Opens the stream at `from`; transactions with a commit record that begins before it are not
    /// sent.
    ///
    /// Locks: none. The slot is active for this connection as long as it lives.
    pub(super) async fn start(
        source: &Source<'_>,
        from: u64,
        by: ConfirmedBy,
    ) -> Result<Transport, Error> {
        let failed = |error| failed(source.host, error);
        let connection = source
            .options
            .replicate("pgshard mover")
            .await
            .map_err(failed)?;
        let command = format!(
            "START_REPLICATION SLOT {} LOGICAL {:X}/{:X} (proto_version '1', publication_names {})",
            quote_ident(source.slot),
            from >> 32,
            from & 0xffff_ffff,
            quote_literal(&quote_ident(source.publication)),
        );
        let (reader, writer) = connection.start(&command).await.map_err(failed)?;
        let (sender, packs) = mpsc::channel(PACKS);
        let (durable, told) = watch::channel(from);
        let (said, server) = watch::channel(Server {
            wal_end: from,
            clock: 0,
        });
        let asked = Arc::new(Notify::new());
        let reader = tokio::spawn(read(
            reader,
            source.host.clone(),
            sender,
            said,
            asked.clone(),
        ));
        let every = source
            .options
            .patience()
            .map_or(STATUS_EVERY, |patience| patience.idle / 3);
        let writer = tokio::spawn(confirm_position(writer, told, asked, every, by));
        Ok(Transport {
            packs,
            durable,
            server,
            reader,
            writer,
        })
    }

    /// The next pack, of at least one frame.
    ///
    /// # Cancel safety
    /// If dropped, nothing is lost.
    pub(crate) async fn next(&mut self) -> Result<Vec<Frame>, Error> {
        self.packs
            .recv()
            .await
            .expect("the reader sends its error before it ends")
    }

    /// Whether a pack is there already.
    pub(crate) fn has_more(&self) -> bool {
        !self.packs.is_empty()
    }

    /// Declares that everything below this position is durable at the target. The position never
    /// goes back.
    pub(crate) fn durable(&self, position: u64) {
        self.durable.send_if_modified(|told| {
            let higher = position > *told;
            *told = position.max(*told);
            higher
        });
    }

    /// The server's last state.
    pub(crate) fn server(&self) -> Server {
        *self.server.borrow()
    }

    /// The server's state as it comes, while what came is not applied yet, too.
    pub(crate) fn server_states(&self) -> watch::Receiver<Server> {
        self.server.clone()
    }
}

impl Drop for Transport {
    fn drop(&mut self) {
        self.reader.abort();
        self.writer.abort();
    }
}

fn failed(host: &HostName, source: ReplicationError) -> Error {
    Error::Replication {
        host: host.clone(),
        source,
    }
}

async fn read(
    mut reader: Reader,
    host: HostName,
    packs: mpsc::Sender<Result<Vec<Frame>, Error>>,
    said: watch::Sender<Server>,
    asked: Arc<Notify>,
) {
    loop {
        let pack = pack(&mut reader, &host, &said, &asked).await;
        let last = pack.is_err();
        // Waits while the applier has enough. If there is no receiver any longer, the stream was
        // dropped.
        if packs.send(pack).await.is_err() || last {
            return;
        }
    }
}

/// Everything that has arrived already, after waiting for the first frame.
async fn pack(
    reader: &mut Reader,
    host: &HostName,
    said: &watch::Sender<Server>,
    asked: &Notify,
) -> Result<Vec<Frame>, Error> {
    let mut frames = Vec::new();
    loop {
        while let Some(message) = reader.buffered().map_err(|error| failed(host, error))? {
            match message.tag {
                b'd' => frames.extend(frame(message.body, host, said, asked)?),
                // The server has ended the stream: it shuts down.
                b'c' | b'C' => {
                    let gone = std::io::ErrorKind::ConnectionAborted.into();
                    return Err(failed(
                        host,
                        ReplicationError::Socket {
                            to: host.to_string(),
                            source: gone,
                        },
                    ));
                }
                _ => {}
            }
        }
        if !frames.is_empty() {
            return Ok(frames);
        }
        reader.fill().await.map_err(|error| failed(host, error))?;
    }
}

fn frame(
    mut body: Bytes,
    host: &HostName,
    said: &watch::Sender<Server>,
    asked: &Notify,
) -> Result<Option<Frame>, Error> {
    let malformed = |wire::WireError { what }| Error::Malformed {
        host: host.clone(),
        what,
    };
    let short = |_| {
        malformed(wire::WireError {
            what: "a frame ends early",
        })
    };
    match body.try_get_u8().map_err(short)? {
        b'w' => {
            let _start = body.try_get_u64().map_err(short)?;
            note_position(
                said,
                body.try_get_u64().map_err(short)?,
                body.try_get_i64().map_err(short)?,
            );
            let length = body.len();
            Ok(Some(Frame::Message(
                wire::decode(body).map_err(malformed)?,
                length,
            )))
        }
        b'k' => {
            let (wal_end, clock) = (
                body.try_get_u64().map_err(short)?,
                body.try_get_i64().map_err(short)?,
            );
            let reply = body.try_get_u8().map_err(short)?;
            note_position(said, wal_end, clock);
            if reply != 0 {
                asked.notify_one();
            }
            Ok(Some(Frame::Alive { wal_end }))
        }
        _ => Ok(None),
    }
}

/// What is made of a frame's bytes.
#[cfg(any(test, fuzzing))]
pub(super) fn frame_of_test(body: Bytes, host: &HostName) -> Result<Option<Frame>, Error> {
    frame(body, host, &watch::Sender::default(), &Notify::new())
}

fn note_position(said: &watch::Sender<Server>, wal_end: u64, clock: i64) {
    said.send_modify(|server| {
        server.wal_end = server.wal_end.max(wal_end);
        server.clock = clock;
    });
}

/// Ends with the connection; the reader finds out why it ended. An answer is wanted every
/// `reply_every`: a server that has nothing to send would be silent for half of
/// `wal_sender_timeout`, or for ever where that is 0.
async fn confirm_position(
    mut writer: Writer,
    mut durable: watch::Receiver<u64>,
    asked: Arc<Notify>,
    reply_every: Duration,
    by: ConfirmedBy,
) {
    let mut last = Instant::now();
    loop {
        let position = *durable.borrow_and_update();
        let reply = if last.elapsed() >= reply_every {
            Reply::Requested
        } else {
            Reply::NotNeeded
        };
        let flushed = match by {
            ConfirmedBy::Stream => position,
            ConfirmedBy::Session => NOT_FLUSHED,
        };
        if writer.status(position, flushed, reply).await.is_err() {
            return;
        }
        if reply == Reply::Requested {
            last = Instant::now();
        }
        tokio::time::sleep(STATUS_PAUSE).await;
        tokio::select! {
            changed = durable.changed() => {
                if changed.is_err() {
                    let _ = writer.end().await;
                    return;
                }
            }
            () = asked.notified() => {}
            () = tokio::time::sleep(STATUS_EVERY.min(reply_every)) => {}
        }
    }
}
