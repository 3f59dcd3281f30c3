//! What is between a client and a server in these tests: a TCP proxy that can be slow, fall silent,
//! lose bytes, reset connections or lead elsewhere; a host that accepts connections and never
//! answers; and a future that is dropped halfway.

use std::pin::Pin;
use std::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What a network does with bytes, in both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// They wait until it is fair again.
    Silent,
    /// They are gone, and no connection that has lost some carries any again: it is half open. Its
    /// server finds that out after a while, as by its own keepalives, and its client has to.
    Lost,
    /// They come late, and few at a time.
    Slow(Duration),
}

/// What a slow network carries at a time.
const PIECE: usize = 100;

/// How long a server takes to notice that a connection is half open.
const SERVER_NOTICES: Duration = Duration::from_secs(3);

/// Leads to the server at a port of this machine.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// New connections lead to these, one after the other.
    targets: Arc<Mutex<Vec<u16>>>,
    weather: watch::Sender<Weather>,
    /// How many bytes servers may send before all connections are reset; negative: as many as they
    /// like.
    until_reset: Arc<AtomicI64>,
    from_server: Arc<AtomicU64>,
    running: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (targets, weather) = (
            Arc::new(Mutex::new(vec![target])),
            watch::Sender::new(Weather::Fair),
        );
        let (until_reset, resets) = (Arc::new(AtomicI64::new(-1)), watch::Sender::new(0));
        let from_server = Arc::<AtomicU64>::default();
        let (leads_to, passed, sky) = (targets.clone(), from_server.clone(), weather.clone());
        let (bytes, reset) = (until_reset.clone(), resets);
        let running = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let target = {
                    let mut targets = leads_to.lock().unwrap();
                    targets.rotate_left(1);
                    *targets.last().unwrap()
                };
                let asked = Way {
                    weather: sky.subscribe(),
                    passed: Arc::default(),
                    until_reset: Arc::new(AtomicI64::new(-1)),
                    resets: reset.clone(),
                };
                let answered = Way {
                    weather: sky.subscribe(),
                    passed: passed.clone(),
                    until_reset: bytes.clone(),
                    resets: reset.clone(),
                };
                tokio::spawn(connect(near, target, asked, answered));
            }
        });
        Proxy {
            port,
            targets,
            weather,
            until_reset,
            from_server,
            running,
        }
    }

    /// How many bytes the server has sent, as far as they were passed on.
    pub(crate) fn passed(&self) -> u64 {
        self.from_server.load(Ordering::Relaxed)
    }

    /// From now on nothing gets through, and no connection ends.
    pub(crate) fn fall_silent(&self) {
        self.turns(Weather::Silent);
    }

    pub(crate) fn speak_again(&self) {
        self.turns(Weather::Fair);
    }

    pub(crate) fn turns(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }

    /// Resets all connections, each in the middle of whatever it is, once servers have sent so many
    /// bytes more.
    pub(crate) fn reset_after(&self, bytes: u32) {
        self.until_reset.store(bytes.into(), Ordering::SeqCst);
    }

    /// New connections lead there.
    pub(crate) fn lead_to(&self, target: u16) {
        *self.targets.lock().unwrap() = vec![target];
    }

    /// New connections lead there, to one after the other.
    pub(crate) fn lead_to_each(&self, targets: &[u16]) {
        *self.targets.lock().unwrap() = targets.to_vec();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// One direction of a connection.
struct Way {
    weather: watch::Receiver<Weather>,
    passed: Arc<AtomicU64>,
    until_reset: Arc<AtomicI64>,
    resets: watch::Sender<u32>,
}

/// Why no more bytes go one way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Lost,
    Reset,
}

async fn connect(near: TcpStream, target: u16, asked: Way, answered: Way) {
    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else {
        return;
    };
    let _ = near.set_nodelay(true).and(far.set_nodelay(true));
    let mut resets = answered.resets.subscribe();
    let ((mut near_in, mut near_out), (mut far_in, mut far_out)) =
        (near.into_split(), far.into_split());
    let end = tokio::select! {
        end = pass(&mut near_in, &mut far_out, asked) => end,
        end = pass(&mut far_in, &mut near_out, answered) => end,
        _ = resets.changed() => End::Reset,
    };
    match end {
        End::Closed => {}
        End::Reset => {
            let near = near_in.reunite(near_out).expect("they are halves of one");
            near.set_zero_linger().expect("it is a socket");
        }
        End::Lost => {
            tokio::time::sleep(SERVER_NOTICES).await;
            drop((far_in, far_out));
            // The client gets nothing, and no end of the connection either.
            std::future::pending::<()>().await;
        }
    }
}

async fn pass(from: &mut OwnedReadHalf, to: &mut OwnedWriteHalf, mut way: Way) -> End {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let mut bytes = &buffer[..count];
        let Ok(weather) = way
            .weather
            .wait_for(|weather| *weather != Weather::Silent)
            .await
            .map(|weather| *weather)
        else {
            return End::Closed;
        };
        if weather == Weather::Lost {
            return End::Lost;
        }
        while let Weather::Slow(pause) = weather
            && bytes.len() > PIECE
        {
            let (part, rest) = bytes.split_at(PIECE);
            tokio::time::sleep(pause).await;
            if to.write_all(part).await.is_err() {
                return End::Closed;
            }
            bytes = rest;
        }
        let left = way.until_reset.load(Ordering::SeqCst);
        if left >= 0 && (bytes.len() as i64) > left {
            let _ = to.write_all(&bytes[..left as usize]).await;
            way.until_reset.store(-1, Ordering::SeqCst);
            way.resets.send_modify(|resets| *resets += 1);
            return End::Reset;
        }
        if left >= 0 {
            way.until_reset
                .fetch_sub(bytes.len() as i64, Ordering::SeqCst);
        }
        if to.write_all(bytes).await.is_err() {
            return End::Closed;
        }
        way.passed.fetch_add(count as u64, Ordering::Relaxed);
    }
    End::Closed
}

/// Accepts connections and sends nothing.
pub(crate) struct Mute {
    pub(crate) port: u16,
    taken: Arc<AtomicU32>,
    running: JoinHandle<()>,
}

impl Mute {
    pub(crate) async fn start() -> Mute {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, taken) = (
            listener.local_addr().unwrap().port(),
            Arc::<AtomicU32>::default(),
        );
        let count = taken.clone();
        let running = tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                held.push(listener.accept().await.unwrap());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Mute {
            port,
            taken,
            running,
        }
    }

    /// How many connections were accepted.
    pub(crate) fn taken(&self) -> u32 {
        self.taken.load(Ordering::Relaxed)
    }
}

impl Drop for Mute {
    fn drop(&mut self) {
        self.running.abort();
    }
}

/// Polls a future this many times, and drops it. `Ok` if it was done by then.
pub(crate) struct Polls<F> {
    pub(crate) future: Pin<Box<F>>,
    pub(crate) left: u32,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(context) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}
