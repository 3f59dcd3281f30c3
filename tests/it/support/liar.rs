//! [`Liar`]: a real server behind a proxy that understands its messages and falsifies one of them.
//!
//! Answers are counted in the order in which they are requested, over all connections: the greeting
//! of a connection is one, so is all that comes up to ReadyForQuery, and so is each piece of a
//! replication stream. A [`Lie`] has which one is changed, and how.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fastrand::Rng;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What is wrong with an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// NULL in place of a value.
    Null,
    /// Another type of a column.
    OtherType,
    /// Another value in a row.
    OtherValue,
    /// A row with a column less than was described.
    FewerColumns,
    MoreColumns,
    NoRow,
    RowTwice,
    /// A message that announces this length.
    Announced(u32),
    /// A message of a kind that is not known.
    Unknown,
    /// An error without a word.
    EmptyError,
    /// An error in place of the answer.
    Error,
    /// Any message is left out.
    Left,
    /// Any message comes twice.
    Twice,
    /// One byte of any message is another.
    Flipped,
    /// The end of any message is missing, and its length accounts for that.
    Short,
    /// Bytes after the end of any message.
    Long,
    /// A message that ends its connection.
    Cut,
    /// The server sends no more, and listens.
    HalfClosed,
    /// Nothing comes any more.
    Silent,
    /// A byte comes now and then.
    Drip,
}

impl Kind {
    pub(crate) const ALL: [Kind; 23] = [
        Kind::Null,
        Kind::OtherType,
        Kind::OtherValue,
        Kind::FewerColumns,
        Kind::MoreColumns,
        Kind::NoRow,
        Kind::RowTwice,
        Kind::Announced(0),
        Kind::Announced(0x3fff_fff0),
        Kind::Announced(0x4000_0000),
        Kind::Announced(u32::MAX),
        Kind::Unknown,
        Kind::EmptyError,
        Kind::Error,
        Kind::Left,
        Kind::Twice,
        Kind::Flipped,
        Kind::Short,
        Kind::Long,
        Kind::Cut,
        Kind::HalfClosed,
        Kind::Silent,
        Kind::Drip,
    ];

    /// Whether a message with this tag can be changed so.
    fn fits(self, tag: u8) -> bool {
        match self {
            Kind::Null
            | Kind::OtherValue
            | Kind::FewerColumns
            | Kind::MoreColumns
            | Kind::NoRow
            | Kind::RowTwice => tag == b'D',
            Kind::OtherType => tag == b'T',
            _ => true,
        }
    }
}

/// One answer that is falsified, once.
#[derive(Clone, Debug)]
pub(crate) struct Lie {
    /// Which, from 0.
    pub(crate) at: u64,
    pub(crate) kind: Kind,
    /// Decides the rest: which message of the answer, which column.
    pub(crate) seed: u64,
}

impl fmt::Display for Lie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "answer {} {:?} seed {}", self.at, self.kind, self.seed)
    }
}

struct State {
    asked: AtomicU64,
    lie: Mutex<Option<(Lie, u32)>>,
    /// What was changed.
    told: Mutex<Option<String>>,
    /// Connections of an earlier number end.
    life: watch::Sender<u64>,
    dawdles: AtomicBool,
}

/// Leads to a server of this machine.
pub(crate) struct Liar {
    pub(crate) port: u16,
    state: Arc<State>,
    running: JoinHandle<()>,
}

impl Liar {
    pub(crate) async fn before(target: u16) -> Liar {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = Arc::new(State {
            asked: AtomicU64::new(0),
            lie: Mutex::default(),
            told: Mutex::default(),
            life: watch::Sender::new(0),
            dawdles: AtomicBool::new(false),
        });
        let shared = state.clone();
        let running = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let (state, mut life) = (shared.clone(), shared.life.subscribe());
                life.mark_unchanged();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else {
                        return;
                    };
                    let _ = near.set_nodelay(true).and(far.set_nodelay(true));
                    let ((near_in, near_out), (far_in, far_out)) =
                        (near.into_split(), far.into_split());
                    let queue = Arc::new(Mutex::new(Queue::default()));
                    queue.lock().unwrap().push(&state, b'!', "the greeting");
                    tokio::select! {
                        _ = ask(near_in, far_out, &state, &queue) => {}
                        _ = answer(far_in, near_out, &state, &queue) => {}
                        _ = life.changed() => {}
                    }
                });
            }
        });
        Liar {
            port,
            state,
            running,
        }
    }

    /// Counts answers from here on, and injects this lie. Open connections end.
    pub(crate) fn tell(&self, lie: Option<Lie>) {
        self.state.life.send_modify(|life| *life += 1);
        self.state.asked.store(0, Ordering::SeqCst);
        let skip = lie.as_ref().map_or(0, |lie| (lie.seed % 3) as u32);
        *self.state.lie.lock().unwrap() = lie.map(|lie| (lie, skip));
        *self.state.told.lock().unwrap() = None;
    }

    /// From here on every message comes by itself, a moment after the one before.
    pub(crate) fn dawdle(&self) {
        self.state.dawdles.store(true, Ordering::SeqCst);
    }

    /// How many answers were requested since.
    pub(crate) fn asked(&self) -> u64 {
        self.state.asked.load(Ordering::SeqCst)
    }

    /// What was changed, if the lie was injected.
    pub(crate) fn told(&self) -> Option<String> {
        self.state.told.lock().unwrap().clone()
    }
}

impl Drop for Liar {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// The answers that a connection waits for.
#[derive(Default)]
struct Queue {
    /// Number, the tag of the request, and the statement.
    awaited: VecDeque<(u64, u8, String)>,
    /// The statement that was sent last.
    sql: String,
}

impl Queue {
    fn push(&mut self, state: &State, tag: u8, sql: &str) {
        let at = state.asked.fetch_add(1, Ordering::SeqCst);
        self.awaited.push_back((at, tag, sql.to_owned()));
    }
}

/// Forwards what the client sends, unchanged.
async fn ask(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    queue: &Mutex<Queue>,
) -> io::Result<()> {
    let mut first = vec![0; 8];
    from.read_exact(&mut first).await?;
    let length = u32::from_be_bytes(first[..4].try_into().unwrap()) as usize;
    first.resize(length.max(8), 0);
    from.read_exact(&mut first[8..]).await?;
    to.write_all(&first).await?;
    let mut from = BufReader::new(from);
    loop {
        let (tag, body) = message(&mut from).await?;
        {
            let mut queue = queue.lock().unwrap();
            if matches!(tag, b'Q' | b'P') {
                let text = String::from_utf8_lossy(&body);
                queue.sql = text.replace('\0', " ").chars().take(150).collect();
            }
            if matches!(tag, b'Q' | b'S') {
                let sql = queue.sql.clone();
                queue.push(state, tag, &sql);
            }
        }
        to.write_all(&whole(tag, &body)).await?;
    }
}

/// Forwards what the server sends, except for the lie.
async fn answer(
    from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    state: &State,
    queue: &Mutex<Queue>,
) -> io::Result<()> {
    let mut from = BufReader::new(from);
    let mut streaming = false;
    loop {
        let (tag, body) = message(&mut from).await?;
        streaming |= tag == b'W';
        let (at, sql) = {
            let mut queue = queue.lock().unwrap();
            let (at, asked_by, sql) =
                queue
                    .awaited
                    .front()
                    .cloned()
                    .unwrap_or((u64::MAX, 0, String::new()));
            // The Sync that goes with a COPY is not answered.
            if tag == b'Z' || tag == b'G' && asked_by == b'S' {
                queue.awaited.pop_front();
            }
            match streaming && tag == b'd' {
                true => (
                    state.asked.fetch_add(1, Ordering::SeqCst),
                    "the stream".to_owned(),
                ),
                false => (at, sql),
            }
        };
        if state.dawdles.load(Ordering::SeqCst) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let Some(lie) = due(state, at, tag, &sql) else {
            to.write_all(&whole(tag, &body)).await?;
            continue;
        };
        match lie.kind {
            Kind::Silent => return std::future::pending().await,
            Kind::HalfClosed => {
                to.shutdown().await?;
                return std::future::pending().await;
            }
            Kind::Cut => {
                let whole = whole(tag, &body);
                to.write_all(&whole[..whole.len() / 2]).await?;
                to.shutdown().await?;
                return Ok(());
            }
            Kind::Drip => {
                for byte in whole(tag, &body).into_iter().cycle() {
                    to.write_all(&[byte]).await?;
                    to.flush().await?;
                    tokio::time::sleep(Duration::from_millis(300)).await;
                }
            }
            kind => {
                let mut rng = Rng::with_seed(lie.seed);
                to.write_all(&changed(kind, tag, body, &mut rng)).await?;
                if let Kind::Announced(5..) = kind {
                    // What was announced does not come.
                    return std::future::pending().await;
                }
            }
        }
    }
}

/// The lie, if it is due here.
fn due(state: &State, at: u64, tag: u8, sql: &str) -> Option<Lie> {
    let mut armed = state.lie.lock().unwrap();
    let (lie, skip) = armed.as_mut()?;
    if lie.at != at || !lie.kind.fits(tag) {
        return None;
    }
    // The last message of an answer is changed at the latest.
    if *skip > 0 && tag != b'Z' {
        *skip -= 1;
        return None;
    }
    let (lie, _) = armed.take()?;
    *state.told.lock().unwrap() = Some(format!(
        "{:?} {:?} in the answer {at} to {sql}",
        lie.kind,
        char::from(tag)
    ));
    Some(lie)
}

async fn message(from: &mut BufReader<OwnedReadHalf>) -> io::Result<(u8, Vec<u8>)> {
    let tag = from.read_u8().await?;
    let length = from.read_u32().await? as usize;
    let mut body = vec![0; length - 4];
    from.read_exact(&mut body).await?;
    Ok((tag, body))
}

fn whole(tag: u8, body: &[u8]) -> Vec<u8> {
    [&[tag][..], &(body.len() as u32 + 4).to_be_bytes(), body].concat()
}

/// The columns of a row.
fn columns(body: &[u8]) -> Vec<Option<Vec<u8>>> {
    let (mut rest, mut found) = (&body[2..], Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let length = i32::from_be_bytes(*length);
        let (value, after) = after.split_at(length.max(0) as usize);
        found.push((length >= 0).then(|| value.to_vec()));
        rest = after;
    }
    found
}

fn row(columns: &[Option<Vec<u8>>]) -> Vec<u8> {
    let mut body = (columns.len() as u16).to_be_bytes().to_vec();
    for column in columns {
        match column {
            Some(value) => {
                body.extend_from_slice(&(value.len() as u32).to_be_bytes());
                body.extend_from_slice(value);
            }
            None => body.extend_from_slice(&(-1i32).to_be_bytes()),
        }
    }
    whole(b'D', &body)
}

/// What is sent in place of a message.
fn changed(kind: Kind, tag: u8, mut body: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    match kind {
        Kind::Null | Kind::OtherValue | Kind::FewerColumns | Kind::MoreColumns => {
            changed_row(kind, &body, rng)
        }
        Kind::OtherType => whole(tag, &other_type(body, rng)),
        Kind::NoRow | Kind::Left => Vec::new(),
        Kind::RowTwice | Kind::Twice => whole(tag, &body).repeat(2),
        Kind::Announced(length) => [&[tag][..], &length.to_be_bytes(), &body].concat(),
        Kind::Unknown => [whole(b'?', b"what"), whole(tag, &body)].concat(),
        Kind::EmptyError => whole(b'E', b"\0"),
        Kind::Error => whole(b'E', b"SERROR\0VERROR\0CXX000\0Mthis is a lie\0\0"),
        Kind::Flipped if !body.is_empty() => {
            let at = rng.usize(..body.len());
            body[at] ^= rng.u8(1..);
            whole(tag, &body)
        }
        Kind::Short => {
            body.truncate(rng.usize(..=body.len().saturating_sub(1)));
            whole(tag, &body)
        }
        Kind::Long => {
            body.extend((0..rng.usize(1..50)).map(|_| rng.u8(..)));
            whole(tag, &body)
        }
        _ => whole(tag, &body),
    }
}

fn changed_row(kind: Kind, body: &[u8], rng: &mut Rng) -> Vec<u8> {
    let mut columns = columns(body);
    if kind == Kind::MoreColumns || columns.is_empty() {
        columns.push(Some(b"more".to_vec()));
        return row(&columns);
    }
    let at = rng.usize(..columns.len());
    match (kind, &mut columns[at]) {
        (Kind::FewerColumns, _) => drop(columns.remove(at)),
        (Kind::OtherValue, Some(value)) if !value.is_empty() => {
            let at = rng.usize(..value.len());
            value[at] ^= rng.u8(1..);
        }
        (_, value) => *value = None,
    }
    row(&columns)
}

/// A description in which one column is of another type: a name that ends with 0, then table,
/// number and type.
fn other_type(mut body: Vec<u8>, rng: &mut Rng) -> Vec<u8> {
    let count = u16::from_be_bytes([body[0], body[1]]);
    if count == 0 {
        return body;
    }
    let (mut at, wanted) = (2, rng.u16(..count));
    for column in 0..=wanted {
        at += body[at..]
            .iter()
            .position(|byte| *byte == 0)
            .expect("a name ends")
            + 1;
        if column == wanted {
            let other = *rng
                .choice(&[16_u32, 20, 21, 23, 25, 600, 1009, 2950, 999_999])
                .expect("there are some");
            body[at + 6..at + 10].copy_from_slice(&other.to_be_bytes());
        }
        at += 18;
    }
    body
}
