//! What is between a router and a server in these tests: a TCP proxy that can fall silent or lead elsewhere, a host
//! that accepts connections and never answers, and a future that is dropped halfway.

use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Leads to the server at a port of this machine.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    /// New connections lead to these, one after the other.
    targets: Arc<Mutex<Vec<u16>>>,
    silent: watch::Sender<bool>,
    from_server: Arc<AtomicU64>,
    running: JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn to(target: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (targets, silent) = (Arc::new(Mutex::new(vec![target])), watch::Sender::new(false));
        let (leads_to, quiet) = (targets.clone(), silent.subscribe());
        let from_server = Arc::<AtomicU64>::default();
        let passed = from_server.clone();
        let running = tokio::spawn(async move {
            loop {
                let (near, _) = listener.accept().await.unwrap();
                let target = {
                    let mut targets = leads_to.lock().unwrap();
                    targets.rotate_left(1);
                    *targets.last().unwrap()
                };
                let quiet = quiet.clone();
                let passed = passed.clone();
                tokio::spawn(async move {
                    let Ok(far) = TcpStream::connect(("127.0.0.1", target)).await else { return };
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    let asked = AtomicU64::new(0);
                    tokio::select! {
                        () = pass(near_in, far_out, quiet.clone(), &asked) => {}
                        () = pass(far_in, near_out, quiet, &passed) => {}
                    }
                });
            }
        });
        Proxy { port, targets, silent, from_server, running }
    }

    /// How many bytes the server has sent, as far as they were passed on.
    pub(crate) fn passed(&self) -> u64 {
        self.from_server.load(Ordering::Relaxed)
    }

    /// From now on nothing gets through, and no connection ends.
    pub(crate) fn fall_silent(&self) {
        self.silent.send_replace(true);
    }

    pub(crate) fn speak_again(&self) {
        self.silent.send_replace(false);
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

async fn pass(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut quiet: watch::Receiver<bool>, passed: &AtomicU64) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if quiet.wait_for(|quiet| !quiet).await.is_err() || to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
        passed.fetch_add(count as u64, Ordering::Relaxed);
    }
}

/// Accepts connections and says nothing.
pub(crate) struct Mute {
    pub(crate) port: u16,
    taken: Arc<AtomicU32>,
    running: JoinHandle<()>,
}

impl Mute {
    pub(crate) async fn start() -> Mute {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (port, taken) = (listener.local_addr().unwrap().port(), Arc::<AtomicU32>::default());
        let count = taken.clone();
        let running = tokio::spawn(async move {
            let mut held = Vec::new();
            loop {
                held.push(listener.accept().await.unwrap());
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Mute { port, taken, running }
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
