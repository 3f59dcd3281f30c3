//! A thousand connections without a token, which keep out no viewer and no scrape.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::support::World;

use super::client::{Console, get};
use super::monitor::Exporter;

const HOSTILE: usize = 1000;

/// What a hostile connection does, until the server ends it.
#[derive(Clone, Copy)]
enum Habit {
    /// Sends nothing.
    Silent,
    /// Sends a header that never ends, slowly.
    SlowWriter,
    /// Sends requests without end, and reads no answer.
    Pipeliner,
    /// Sends one request for a large answer, and reads nothing of it.
    SlowReader,
    /// Announces a body, and sends it slowly.
    Body,
}

const HABITS: [Habit; 5] = [
    Habit::Silent,
    Habit::SlowWriter,
    Habit::Pipeliner,
    Habit::SlowReader,
    Habit::Body,
];

impl Habit {
    async fn follow(self, stream: &mut TcpStream) -> std::io::Result<()> {
        const REQUEST: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let (head, piece): (&[u8], &[u8]) = match self {
            Habit::Silent => (b"", b""),
            Habit::SlowWriter => (b"GET /metrics HTTP/1.1\r\nX: ", b"x"),
            Habit::SlowReader => (REQUEST, b""),
            Habit::Body => (
                b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999\r\n\r\n",
                b"x",
            ),
            Habit::Pipeliner => loop {
                stream.write_all(REQUEST).await?;
            },
        };
        stream.write_all(head).await?;
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            if !piece.is_empty() {
                stream.write_all(piece).await?;
            }
            // A connection that the server has ended is noticed without reading from one that is
            // open.
            let mut byte = [0];
            if let Ok(Ok(0) | Err(_)) =
                tokio::time::timeout(Duration::ZERO, stream.peek(&mut byte)).await
            {
                return Ok(());
            }
        }
    }
}

/// A thousand hostile clients, each of which connects again when its connection ends.
struct Flood {
    clients: JoinSet<()>,
    begun: Arc<AtomicUsize>,
}

impl Flood {
    /// Begins, and waits until each client has connected.
    async fn begin(address: &str) -> Flood {
        let (mut clients, begun) = (JoinSet::new(), Arc::new(AtomicUsize::new(0)));
        for client in 0..HOSTILE {
            let (habit, address) = (HABITS[client % HABITS.len()], address.to_owned());
            let begun = begun.clone();
            clients.spawn(async move {
                let mut first = true;
                loop {
                    if let Ok(mut stream) = TcpStream::connect(&address).await {
                        if std::mem::take(&mut first) {
                            begun.fetch_add(1, Ordering::Relaxed);
                        }
                        habit.follow(&mut stream).await.ok();
                    }
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            });
        }
        while begun.load(Ordering::Relaxed) < HOSTILE {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Flood { clients, begun }
    }

    /// Whether all of them are still at it.
    fn goes_on(&mut self) -> bool {
        self.clients.try_join_next().is_none() && self.begun.load(Ordering::Relaxed) == HOSTILE
    }
}

/// Each of the thousand is a file in this process, in addition to those of other tests.
fn allow_many_files() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit
        .maximum
        .map_or(Some(16_384), |most| Some(most.min(16_384)));
    setrlimit(Resource::Nofile, limit).unwrap();
}

async fn answered(address: &str, path: &'static str, headers: &'static [(&str, &str)]) -> String {
    let address = address.to_owned();
    let asked =
        tokio::task::spawn_blocking(move || super::client::ask(&address, "GET", path, headers));
    let answer = tokio::time::timeout(Duration::from_secs(30), asked);
    let answer = answer.await.expect("the answer comes").unwrap();
    assert_eq!(answer.status, 200, "{path}");
    answer.body
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_is_answered_while_a_thousand_others_hold_connections() {
    const TOKEN: &[(&str, &str)] = &[("Authorization", "Bearer correct-horse-battery")];
    allow_many_files();
    let world = World::new(&[18], 64).await;
    let token = world.write("token", "correct-horse-battery\n");
    fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
    let args = ["--floor-s", "1", "--token-file", token.to_str().unwrap()];
    let console = Console::start(&world, &args);
    answered(&console.address, "/metrics", TOKEN).await;

    // A client that already follows a page is not cut off, and another one may begin.
    let mut events = console.follow_with("/hosts", TOKEN);
    events.next_parts();
    let mut flood = Flood::begin(&console.address).await;
    for path in ["/shards", "/hosts", "/api/map", "/metrics", "/shards"] {
        answered(&console.address, path, TOKEN).await;
        assert!(flood.goes_on(), "{path}");
    }
    console.follow_with("/hosts", TOKEN).next_parts();
    // The sizes and ages of a host change with time.
    events.next_parts();
    assert!(flood.goes_on());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_is_answered_while_a_thousand_others_hold_connections() {
    allow_many_files();
    let world = World::new(&[18], 64).await;
    let exporter = Exporter::on(&world.config.path);
    assert_eq!(get(exporter.address(), "/metrics").status, 200);
    let mut flood = Flood::begin(exporter.address()).await;
    for _ in 0..5 {
        let body = answered(exporter.address(), "/metrics", &[]).await;
        assert!(body.contains("pgshard_host_up{host=\"db1\"} 1\n"), "{body}");
        assert!(flood.goes_on());
    }
}
