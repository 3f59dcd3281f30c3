//! Checks the messages between the driver and a server before the driver reads them. The driver
//! trusts the lengths that a server sends, and collects all of an answer; a server that is not
//! ours, or was taken over, would fill the memory with that. And it responds to every
//! authentication request, with the password itself if that is requested.
//!
//! Invariant: nothing that a server sends makes a connection wait for a message that cannot be, or
//! an answer to a statement of ours grow without a bound; and the driver gets no request to
//! authenticate that `require_auth` forbids.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};

use super::require_auth::{AuthRequests, RequireAuth};
use super::vitals::Vitals;

/// A message longer than this is none: PostgreSQL's own limit for one allocation.
pub(super) const LONGEST_MESSAGE: usize = 0x3fff_ffff;

/// Rows, copied data, errors and notices have what users write. Other messages are much shorter
/// than this: the longest describes a row of 1664 columns.
const SHORT_MESSAGE: usize = 1024 * 1024;

/// How much a server may send before it takes the first statement. Its settings are a few
/// kilobytes.
const GREETING_MAX: u64 = 1024 * 1024;

/// What the answer to one statement of ours may have: the longest row, and a little. The longest
/// that there are list what a host's catalogs have.
const ANSWER_MAX: u64 = (LONGEST_MESSAGE + SHORT_MESSAGE) as u64;

/// What a message costs in memory in addition to its bytes.
const MESSAGE_COST: u64 = 128;

/// This many bytes of an answer are progress, and so is its end. Slower than that, by the times
/// that a watch takes for long, is no network, but a server that wants us to wait.
const PART: u64 = 1024;

/// Which statements a connection carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Statements {
    /// Ours: an answer has a bound.
    Ours,
    /// An application's. How much it reads is its affair.
    OfAnApplication,
}

/// What a server may do on a connection.
#[derive(Clone)]
pub(super) struct Terms {
    pub(super) statements: Statements,
    /// Which ways of authentication it may request.
    pub(super) require_auth: Option<RequireAuth>,
}

/// What is looked for in the bytes at this place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// The byte by which a server shows whether it speaks TLS.
    TlsAnswer,
    /// What is within TLS, which another guard looks at.
    Sealed,
    /// The messages from the first to the first statement.
    Greeting,
    /// The messages of answers.
    Answers,
}

/// Cuts bytes into messages: a tag, a length that includes itself, and the rest.
#[derive(Default)]
struct Frames {
    header: [u8; 5],
    have: usize,
    left: usize,
}

impl Frames {
    /// Takes bytes up to the end of a header or of a message. Returns the header's tag and length
    /// as soon as it is there.
    fn take<'a>(&mut self, bytes: &mut &'a [u8]) -> Step<'a> {
        if self.left > 0 {
            let (part, rest) = bytes.split_at(self.left.min(bytes.len()));
            *bytes = rest;
            self.left -= part.len();
            return Step::Body {
                part,
                ended: self.left == 0,
            };
        }
        let count = (5 - self.have).min(bytes.len());
        let (part, rest) = bytes.split_at(count);
        *bytes = rest;
        self.header[self.have..self.have + count].copy_from_slice(part);
        self.have += count;
        if self.have < 5 {
            return Step::More;
        }
        self.have = 0;
        let [tag, length @ ..] = self.header;
        let length = u32::from_be_bytes(length) as usize;
        self.left = length.saturating_sub(4);
        Step::Header { tag, length }
    }
}

enum Step<'a> {
    More,
    Header { tag: u8, length: usize },
    Body { part: &'a [u8], ended: bool },
}

/// Looks at both directions of one connection.
pub(super) struct Guard {
    stage: Stage,
    statements: Statements,
    vitals: Arc<Vitals>,
    incoming: Frames,
    tag: u8,
    asked: AuthRequests,
    /// The number of a request to authenticate, as much of it as has come.
    request: Vec<u8>,
    /// The part of the answer that did not count as progress yet.
    part: u64,
    /// What the greeting or the answer has cost until now.
    cost: u64,
    outgoing: Frames,
    /// What is sent first has no tags: the request for TLS, and the startup message.
    untagged: Option<Vec<u8>>,
    /// The tag of the last message sent that an answer ends.
    asked_by: u8,
}

impl Guard {
    fn new(stage: Stage, terms: Terms, vitals: Arc<Vitals>) -> Guard {
        Guard {
            stage,
            statements: terms.statements,
            vitals,
            incoming: Frames::default(),
            tag: 0,
            asked: AuthRequests::new(terms.require_auth),
            request: Vec::new(),
            part: 0,
            cost: 0,
            outgoing: Frames::default(),
            untagged: Some(Vec::new()),
            asked_by: 0,
        }
    }

    /// Looks at what came.
    ///
    /// # Errors
    /// When it cannot be a message, or is more than a server has to send.
    fn came(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        if !bytes.is_empty() {
            self.vitals.hears();
        }
        if self.stage == Stage::TlsAnswer {
            let Some((answer, rest)) = bytes.split_first() else {
                return Ok(());
            };
            self.stage = if *answer == b'S' {
                Stage::Sealed
            } else {
                Stage::Greeting
            };
            bytes = rest;
        }
        if self.stage == Stage::Sealed {
            return Ok(());
        }
        while !bytes.is_empty() {
            match self.incoming.take(&mut bytes) {
                Step::More => {}
                Step::Header { tag, length } => {
                    self.begins(tag, length)?;
                    if length == 4 {
                        self.ends();
                    }
                }
                Step::Body { part, ended } => {
                    match (self.tag, part) {
                        (b'R', part) => self.requests(part)?,
                        (b'Z', [status, ..]) => self.vitals.is_ready(*status),
                        _ => {}
                    }
                    // What comes unasked is no part of an answer that is waited for.
                    self.part += if matches!(self.tag, b'N' | b'A' | b'S') {
                        0
                    } else {
                        part.len() as u64
                    };
                    if self.part >= PART {
                        self.part = 0;
                        self.vitals.progress();
                    }
                    if ended {
                        self.ends();
                    }
                }
            }
        }
        Ok(())
    }

    fn begins(&mut self, tag: u8, length: usize) -> io::Result<()> {
        let max = if matches!(tag, b'D' | b'd' | b'E' | b'N') {
            LONGEST_MESSAGE
        } else {
            SHORT_MESSAGE
        };
        if !(4..=max).contains(&length) {
            // A response begins with `HTTP/1`; what it answers to a request for TLS is one byte.
            let begin = [&[tag][..], &(length as u32).to_be_bytes()].concat();
            if begin == b"HTTP/" || begin == b"TTP/1" {
                return Err(strange(
                    "an HTTP server responds at this address, and no PostgreSQL: correct the \
                        address or the port"
                        .to_owned(),
                ));
            }
            return Err(strange(format!(
                "the server announced a message of {length} bytes and kind {:?}, which cannot be",
                char::from(tag)
            )));
        }
        if tag == b'R' && length < 8 {
            return Err(strange(
                "the server does not say how it authenticates".to_owned(),
            ));
        }
        self.tag = tag;
        self.request.clear();
        // The driver collects neither copied data nor what comes unasked.
        if self.stage == Stage::Greeting || !matches!(tag, b'd' | b'N' | b'A' | b'S') {
            self.cost += length as u64 + MESSAGE_COST;
        }
        match (self.stage, self.statements) {
            (Stage::Greeting, _) if self.cost > GREETING_MAX => Err(strange(format!(
                "the server said more than {GREETING_MAX} bytes before it took a statement"
            ))),
            (Stage::Answers, Statements::Ours) if self.cost > ANSWER_MAX => Err(strange(format!(
                "the server answers one statement with more than {ANSWER_MAX} bytes"
            ))),
            _ => Ok(()),
        }
    }

    /// Judges a request to authenticate as soon as its number is there. The driver answers no
    /// message before it has the whole of it, and what comes together with a number that is refused
    /// does not get there.
    fn requests(&mut self, part: &[u8]) -> io::Result<()> {
        let missing = 4 - self.request.len();
        self.request
            .extend_from_slice(&part[..missing.min(part.len())]);
        match <[u8; 4]>::try_from(self.request.as_slice()) {
            Ok(number) if missing > 0 => {
                self.asked.take(u32::from_be_bytes(number)).map_err(strange)
            }
            _ => Ok(()),
        }
    }

    fn ends(&mut self) {
        match self.tag {
            b'Z' => {
                self.cost = 0;
                // The first ends the greeting, and answers no request.
                if self.stage == Stage::Greeting {
                    self.stage = Stage::Answers;
                } else {
                    self.vitals.answered();
                }
                self.part = 0;
                self.vitals.progress();
            }
            // From here on the server leaves out the Sync that was sent with the COPY.
            b'G' if self.asked_by == b'S' => self.vitals.answered(),
            _ => {}
        }
    }

    /// Checks the bytes that were sent.
    fn went(&mut self, mut bytes: &[u8]) {
        if self.stage == Stage::Sealed {
            return;
        }
        self.vitals.progress();
        while !bytes.is_empty() {
            if let Some(begun) = &mut self.untagged {
                // Length and code; of the code only which it is matters.
                let (part, rest) = bytes.split_at((8 - begun.len()).min(bytes.len()));
                begun.extend_from_slice(part);
                bytes = rest;
                if let [length @ .., _, _, _, _] = begun.as_slice()
                    && let Ok(length) = length.try_into().map(u32::from_be_bytes)
                {
                    // A wish is no longer than that, and another such message follows it.
                    let wish = length == 8;
                    self.outgoing.left = (length as usize).saturating_sub(8);
                    self.untagged = wish.then(Vec::new);
                }
                continue;
            }
            if let Step::Header {
                tag: tag @ (b'Q' | b'S' | b'F'),
                ..
            } = self.outgoing.take(&mut bytes)
            {
                self.asked_by = tag;
                self.vitals.note_request();
            }
        }
    }
}

#[cfg(any(test, fuzzing))]
impl Guard {
    /// One that looks at messages from the beginning.
    pub(super) fn of_test(statements: Statements, vitals: Arc<Vitals>) -> Guard {
        Guard::new(
            Stage::Greeting,
            Terms {
                statements,
                require_auth: None,
            },
            vitals,
        )
    }

    /// What it makes of these bytes.
    pub(super) fn came_all<'a>(
        mut self,
        parts: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<(), String> {
        parts
            .into_iter()
            .try_for_each(|part| self.came(part))
            .map_err(|error| error.to_string())
    }

    pub(super) fn sent(&mut self, bytes: &[u8]) {
        self.went(bytes);
    }
}

fn strange(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// A stream with a [`Guard`] at it.
pub(super) struct GuardedStream<S> {
    inner: S,
    guard: Guard,
}

impl<S> GuardedStream<S> {
    /// Messages go over it from the beginning.
    pub(super) fn plain(inner: S, terms: Terms, vitals: Arc<Vitals>) -> GuardedStream<S> {
        GuardedStream {
            inner,
            guard: Guard::new(Stage::Greeting, terms, vitals),
        }
    }

    /// TLS is requested on it first.
    pub(super) fn asking(inner: S, terms: Terms, vitals: Arc<Vitals>) -> GuardedStream<S> {
        GuardedStream {
            inner,
            guard: Guard::new(Stage::TlsAnswer, terms, vitals),
        }
    }

    /// Only TLS goes over it.
    pub(super) fn sealed(inner: S, terms: Terms, vitals: Arc<Vitals>) -> GuardedStream<S> {
        GuardedStream {
            inner,
            guard: Guard::new(Stage::Sealed, terms, vitals),
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for GuardedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let GuardedStream { inner, guard } = &mut *self;
        let before = buffer.filled().len();
        let read = Pin::new(inner).poll_read(cx, buffer);
        guard
            .vitals
            .starves(guard.stage != Stage::Sealed, read.is_pending());
        if let Poll::Ready(Ok(())) = &read {
            guard.came(&buffer.filled()[before..])?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for GuardedStream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let GuardedStream { inner, guard } = &mut *self;
        let written = Pin::new(inner).poll_write(cx, bytes);
        guard
            .vitals
            .chokes(guard.stage != Stage::Sealed, written.is_pending());
        if let Poll::Ready(Ok(count)) = &written {
            guard.went(&bytes[..*count]);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

impl<S: TlsStream + Unpin> TlsStream for GuardedStream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        self.inner.channel_binding()
    }
}

/// Has a guard look at what is within TLS.
pub(super) struct GuardedTls<T> {
    pub(super) tls: T,
    pub(super) terms: Terms,
    pub(super) vitals: Arc<Vitals>,
}

impl<T> GuardedTls<T> {
    /// The way to connect to this name.
    pub(super) fn to<S>(mut self, name: &str) -> Result<GuardedTls<T::TlsConnect>, T::Error>
    where
        T: MakeTlsConnect<S>,
    {
        let GuardedTls { terms, vitals, .. } = self;
        Ok(GuardedTls {
            tls: self.tls.make_tls_connect(name)?,
            terms,
            vitals,
        })
    }
}

impl<S, T> TlsConnect<S> for GuardedTls<T>
where
    T: TlsConnect<S> + Send + 'static,
    T::Future: Send,
    T::Stream: Unpin,
    S: Send + 'static,
{
    type Stream = GuardedStream<T::Stream>;
    type Error = T::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Stream, T::Error>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let GuardedTls { tls, terms, vitals } = self;
        Box::pin(async move {
            Ok(GuardedStream::plain(
                tls.connect(stream).await?,
                terms,
                vitals,
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guard that has heard the greeting, and what it notes.
    fn guard(statements: Statements) -> (Guard, Arc<Vitals>) {
        let vitals = Arc::new(Vitals::default());
        let mut guard = Guard::of_test(statements, vitals.clone());
        guard.went(&[
            0, 0, 0, 8, 4, 210, 22, 47, 0, 0, 0, 12, 0, 3, 0, 0, b'x', b'x', 0, 0,
        ]);
        guard.came(b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I").unwrap();
        (guard, vitals)
    }

    fn message(tag: u8, body: &[u8]) -> Vec<u8> {
        [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
    }

    #[test]
    fn what_cannot_be_is_refused_before_it_comes() {
        let header = |tag: u8, length: u32| [&[tag][..], &length.to_be_bytes()].concat();
        for (tag, length) in [
            (b'D', 0x4000_0000),
            (b'D', u32::MAX),
            (b'T', 0x10_0001),
            (b'Z', 3),
            (b'?', 0x1000_0000),
        ] {
            let refused = guard(Statements::Ours)
                .0
                .came(&header(tag, length))
                .unwrap_err()
                .to_string();
            assert!(refused.contains(&length.to_string()), "{refused}");
        }
        for begin in [b"HTTP/", b"TTP/1"] {
            let refused = guard(Statements::Ours).0.came(begin).unwrap_err();
            assert!(refused.to_string().contains("HTTP server"), "{refused}");
        }
        // As long as PostgreSQL's longest.
        guard(Statements::Ours)
            .0
            .came(&header(b'D', 0x3fff_ffff))
            .unwrap();
        guard(Statements::Ours)
            .0
            .came(&header(b'T', 0x10_0000))
            .unwrap();
    }

    #[test]
    fn an_answer_has_a_bound_if_we_asked() {
        let row = message(b'D', &vec![0; 1024 * 1024]);
        let rows = |guard: &mut Guard, count: usize| (0..count).try_for_each(|_| guard.came(&row));
        let (mut ours, _) = guard(Statements::Ours);
        rows(&mut ours, 1000).unwrap();
        ours.came(b"Z\0\0\0\x05I").unwrap();
        rows(&mut ours, 1000).unwrap();
        assert!(rows(&mut ours, 30).is_err());
        rows(&mut guard(Statements::OfAnApplication).0, 2000).unwrap();
        // Copied data is not collected.
        let data = message(b'd', &vec![0; 1024 * 1024]);
        let (mut ours, _) = guard(Statements::Ours);
        (0..2000).try_for_each(|_| ours.came(&data)).unwrap();
    }

    #[test]
    fn a_greeting_has_a_bound() {
        let mut guard = Guard::of_test(Statements::OfAnApplication, Arc::default());
        let setting = message(b'S', b"name\0value\0");
        assert!((0..100_000).try_for_each(|_| guard.came(&setting)).is_err());
    }

    #[test]
    fn a_request_that_is_not_allowed_is_seen_before_it_is_whole() {
        let guard = |allowed: &str| {
            let require_auth = Some(RequireAuth::read(allowed).unwrap());
            Guard::new(
                Stage::Greeting,
                Terms {
                    statements: Statements::Ours,
                    require_auth,
                },
                Arc::default(),
            )
        };
        let (password, hash) = (
            message(b'R', &[0, 0, 0, 3]),
            message(b'R', &[0, 0, 0, 5, 1, 2, 3, 4]),
        );
        let scram = message(b'R', b"\0\0\0\x0aSCRAM-SHA-256\0\0");
        let notice = message(b'N', b"SNOTICE\0\0");
        for (forbidden, what) in [(&password, "password itself"), (&hash, "MD5")] {
            let refused = guard("scram-sha-256")
                .came_all([&notice[..], forbidden])
                .unwrap_err();
            assert!(
                refused.contains(what) && refused.contains("require_auth"),
                "{refused}"
            );
            // However it comes, the last byte of the number is not given on.
            let mut bytewise = guard("scram-sha-256");
            let came = [&notice[..], forbidden].concat();
            let passed = came
                .iter()
                .take_while(|byte| bytewise.came(&[**byte]).is_ok())
                .count();
            assert_eq!(passed, notice.len() + 8);
            // Nor is one that is behind others in what is read at once, or comes after the
            // greeting.
            let greeting = b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I";
            assert!(
                guard("scram-sha-256,none")
                    .came(&[&greeting[..], forbidden].concat())
                    .is_err()
            );
        }
        guard("scram-sha-256").came_all(scram.chunks(1)).unwrap();
        guard("password")
            .came_all([&password[..], b"R\0\0\0\x08\0\0\0\0"])
            .unwrap();
        assert!(
            guard("password").came(&message(b'R', &[0, 0, 0])).is_err(),
            "it asks for nothing"
        );
        assert!(
            guard("!none")
                .came(&message(b'R', &[0; 4]))
                .unwrap_err()
                .to_string()
                .contains("no password")
        );
    }

    #[test]
    fn what_is_within_tls_is_looked_at_there() {
        let (vitals, terms) = (
            Arc::new(Vitals::default()),
            Terms {
                statements: Statements::Ours,
                require_auth: None,
            },
        );
        let mut outside = Guard::new(Stage::TlsAnswer, terms.clone(), vitals.clone());
        outside.went(&[0, 0, 0, 8, 4, 210, 22, 47]);
        outside.came(b"S").unwrap();
        outside.came(&[0xff; 300]).unwrap();
        let mut refused = Guard::new(Stage::TlsAnswer, terms, vitals);
        refused.came(b"N").unwrap();
        assert!(refused.came(&[0xff; 300]).is_err());
    }

    #[test]
    fn it_knows_what_is_waited_for() {
        let (mut guard, vitals) = guard(Statements::Ours);
        let waits = || {
            vitals.starves(true, true);
            vitals.is_waiting()
        };
        assert!(!waits());
        // Two at once, in pieces.
        let sent = [
            message(b'Q', b"SELECT 1\0"),
            message(b'P', b"\0SELECT 2\0\0\0"),
            message(b'S', b""),
        ]
        .concat();
        for byte in sent {
            guard.went(&[byte]);
        }
        assert!(waits());
        guard.came(b"Z\0\0\0\x05I").unwrap();
        assert!(waits());
        for byte in b"1\0\0\0\x04Z\0\0\0\x05I" {
            guard.came(&[*byte]).unwrap();
        }
        assert!(!waits());
    }

    #[test]
    fn while_data_goes_there_nothing_is_waited_for() {
        let (mut guard, vitals) = guard(Statements::Ours);
        vitals.starves(true, true);
        guard.went(
            &[
                message(b'B', b"\0\0\0\0\0\0\0\0"),
                message(b'E', b"\0\0\0\0\0"),
                message(b'S', b""),
            ]
            .concat(),
        );
        assert!(vitals.is_waiting());
        guard
            .came(&[message(b'2', b""), message(b'G', b"\0\0\0")].concat())
            .unwrap();
        assert!(!vitals.is_waiting());
        guard.went(&message(b'd', b"1\t2\n"));
        assert!(!vitals.is_waiting());
        guard.went(&[message(b'c', b""), message(b'S', b"")].concat());
        assert!(vitals.is_waiting());
        guard
            .came(&[message(b'C', b"COPY 1\0"), message(b'Z', b"I")].concat())
            .unwrap();
        assert!(!vitals.is_waiting());
    }

    #[test]
    fn what_drips_and_what_comes_unasked_is_no_progress() {
        let (mut guard, vitals) = guard(Statements::Ours);
        let before = vitals.answer_count();
        guard.came(&message(b'N', &[b'x'; 5000])).unwrap();
        guard.came(&message(b'D', &[0; 100]).repeat(10)).unwrap();
        assert_eq!(vitals.answer_count(), before);
        guard.came(&message(b'D', &[0; 100])).unwrap();
        assert_ne!(vitals.answer_count(), before);
        let before = vitals.answer_count();
        guard.came(b"Z\0\0\0\x05I").unwrap();
        assert_ne!(vitals.answer_count(), before);
    }
}
