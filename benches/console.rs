//! The console of a large cluster: 8192 shards on 16 hosts, each a database of its own on a few
//! servers. The size of each page and how long it takes, what a viewer is sent at each look, the
//! memory of the console, and the queries that a host gets in a minute; next to the commands that
//! report the same, each run once. In Chromium, the first paint of the grid, and an update of all
//! of it.
//!
//! `cargo bench --bench console -- [--shards N] [--hosts N] [--servers N] [--viewers N]
//! [--seconds N] [--major N]`
//!
//! A shard has no tables but what pgshard makes: bootstrapping so many takes most of the time.

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/it/console/driver.rs"]
mod driver;
mod support;

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::ShardCount;
use pgshard::dev::{self, Cluster, ClusterOptions, Durability, ServerOptions};
use pgshard::map::HostName;
use tokio_postgres::NoTls;

use driver::Browser;
use support::Arguments;

const PAGES: [&str; 8] = [
    "/shards",
    "/shards?by=bytes",
    "/shards?by=findings",
    "/shards/17",
    "/hosts",
    "/moves",
    "/balance",
    "/findings",
];

/// How often each page is requested.
const ROUNDS: usize = 9;

fn main() {
    let arguments = Arguments::read(&[
        ("shards", 8192),
        ("hosts", 16),
        ("servers", 2),
        ("viewers", 8),
        ("seconds", 60),
    ]);
    let (shards, hosts) = (arguments.number("shards"), arguments.number("hosts"));
    let binaries = arguments.binaries();
    println!("{}, {shards} shards on {hosts} hosts", binaries.version());
    let mut options = ClusterOptions::new(arguments.number("servers"), binaries);
    // What is measured does not wait for a disk.
    options.server = ServerOptions::default().durability(Durability::Throwaway);
    let cluster = Cluster::start(&options).expect("servers start");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let urls = runtime.block_on(databases(&cluster, hosts));
    let count = ShardCount::new(shards as u32).expect("a number of shards");
    let folder = tempfile::tempdir().expect("room for a folder");
    let config = folder.path().join("pgshard.toml");
    std::fs::write(&config, dev::config_text(count, &urls, None)).expect("room for a config");

    println!("{:40} {:>9}", "the command", "once");
    for args in [
        &["bootstrap", "--quiet"][..],
        &["check"],
        &["host", "list"],
        &["moves", "list", "--all"],
        &["map", "show", "--by", "bytes"],
        &["rebalance", "--plan"],
    ] {
        let began = Instant::now();
        let output = command(&config, args).output().expect("the command runs");
        assert!(
            output.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        println!(
            "pgshard {:32} {:>7} ms",
            args.join(" "),
            began.elapsed().as_millis()
        );
    }
    console(&config, &arguments, &runtime, &urls);
}

fn command(config: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
    command
        .args(args)
        .env("PGSHARD_CONFIG", config)
        .stdin(Stdio::null());
    command
}

/// So many databases, in turn on the servers, as the hosts of a config.
async fn databases(cluster: &Cluster, hosts: usize) -> Vec<(HostName, String)> {
    let mut urls = Vec::new();
    for at in 0..hosts {
        let server = &cluster.servers()[at % cluster.servers().len()];
        let client = connected(&server.superuser_url()).await;
        let name = format!("host{at}");
        client
            .batch_execute(&format!("CREATE DATABASE {name} OWNER app"))
            .await
            .expect("a database");
        let url = format!("{}/{name}", server.url().trim_end_matches("/app"));
        urls.push((
            HostName::new(&format!("db{:02}", at + 1)).expect("a name"),
            url,
        ));
    }
    urls
}

async fn connected(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the server answers");
    tokio::spawn(connection);
    client
}

fn console(
    config: &Path,
    arguments: &Arguments,
    runtime: &tokio::runtime::Runtime,
    urls: &[(HostName, String)],
) {
    let mut child = command(config, &["console", "--listen", "127.0.0.1:0"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("a line");
    let address = line
        .trim()
        .trim_start_matches("listening on http://")
        .trim_end_matches('/')
        .to_owned();

    let began = Instant::now();
    get(&address, "/api/map");
    println!(
        "\n{:40} {:>7} ms",
        "the first look, all hosts",
        began.elapsed().as_millis()
    );
    println!("{:40} {:>10} {:>9}", "the page", "KiB", "median");
    for page in PAGES {
        let mut times = Vec::new();
        let mut bytes = 0;
        for _ in 0..ROUNDS {
            let began = Instant::now();
            bytes = get(&address, page);
            times.push(began.elapsed());
        }
        times.sort_unstable();
        let median = times[ROUNDS / 2].as_secs_f64() * 1000.0;
        println!("{page:40} {:>10.1} {median:>6.1} ms", bytes as f64 / 1024.0);
    }

    in_a_browser(&address);
    let seconds = arguments.number("seconds");
    let asked = |urls: &[(HostName, String)]| runtime.block_on(asked(urls));
    let before = asked(urls);
    let (events, bytes) = followed(
        &address,
        arguments.number("viewers"),
        Duration::from_secs(seconds as u64),
    );
    let after = asked(urls);
    let a_minute =
        |now: i64, then: i64| (now - then) as f64 * 60.0 / seconds as f64 / urls.len() as f64;
    println!(
        "\n{} viewers of the grid by size, {seconds} s, a look every 10 s",
        arguments.number("viewers")
    );
    println!(
        "{:40} {:>10.1}",
        "KiB an update and viewer",
        bytes as f64 / 1024.0 / events.max(1) as f64
    );
    println!(
        "{:40} {:>10.1}",
        "sessions a minute and host",
        a_minute(after.0, before.0)
    );
    println!(
        "{:40} {:>10.1}",
        "transactions a minute and host",
        a_minute(after.1, before.1)
    );
    println!(
        "{:40} {:>10.1}",
        "MiB of memory, at most",
        memory(child.id())
    );
    println!("{:40} {:>7} ms", "a look, all hosts", look(&address));
    child.kill().expect("it is ours");
    child.wait().expect("it ends");
}

/// Sessions and transactions of all hosts until now.
async fn asked(urls: &[(HostName, String)]) -> (i64, i64) {
    let (mut sessions, mut transactions) = (0, 0);
    for (_, url) in urls {
        let sql = "SELECT sessions, xact_commit + xact_rollback FROM pg_stat_database
            WHERE datname = current_database()";
        let row = connected(url)
            .await
            .query_one(sql, &[])
            .await
            .expect("statistics");
        sessions += row.get::<_, i64>(0);
        transactions += row.get::<_, i64>(1);
    }
    (sessions, transactions)
}

/// How long the last look took, in milliseconds, as shown on the page.
fn look(address: &str) -> u64 {
    let page = String::from_utf8(body(address, "/findings")).expect("a text");
    let took = page
        .split(", in ")
        .nth(1)
        .and_then(|rest| rest.split(" ms").next());
    took.and_then(|number| number.parse().ok())
        .expect("a page says it")
}

/// Medians of what the browser measures itself: from the request to the first paint with content
/// and to the end of the load; then all panels are put into the page again, and laid out.
fn in_a_browser(address: &str) {
    const PAINTED: &str =
        "(performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime || 0";
    const LOADED: &str = "performance.getEntriesByType('navigation')[0].loadEventEnd";
    const UPDATED: &str = "(() => { const began = performance.now();
        for (const part of document.querySelectorAll('[id^=panel-]')) replace(part.id, \
        part.innerHTML + ' ');
        document.body.offsetHeight; return performance.now() - began; })()";
    let browser = Browser::open(1280, 900);
    println!(
        "\n{:40} {:>9} {:>9} {:>9}",
        "in Chromium, medians", "painted", "loaded", "updated"
    );
    for page in ["/shards", "/shards?by=bytes", "/hosts"] {
        let mut rounds: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            browser.go(address, page);
            browser.until(&format!("({PAINTED}) > 0 && {LOADED} > 0"));
            for (times, measured) in rounds.iter_mut().zip([PAINTED, LOADED, UPDATED]) {
                times.push(browser.value(measured).as_f64().expect("a time"));
            }
        }
        let [painted, loaded, updated] = rounds.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        println!("{page:40} {painted:>6.1} ms {loaded:>6.1} ms {updated:>6.1} ms");
    }
    assert!(browser.complaints().is_empty(), "the browser complains");
}

/// The bytes of a page.
fn get(address: &str, path: &str) -> usize {
    body(address, path).len()
}

fn body(address: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).expect("the console answers");
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
    )
    .expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}");
    answer
}

/// Viewers of the grid, for a while: how many updates they got after the first, and how many bytes.
fn followed(address: &str, viewers: usize, time: Duration) -> (u64, u64) {
    let counts = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let end = Instant::now() + time;
    let follow = |_| {
        let (counts, address) = (counts.clone(), address.to_owned());
        std::thread::spawn(move || {
            let mut stream = TcpStream::connect(&address).expect("the console answers");
            stream
                .set_read_timeout(Some(Duration::from_secs(1)))
                .expect("a limit");
            let mut request = String::new();
            write!(
                request,
                "GET /events?page=/shards?by=bytes HTTP/1.1\r\nHost: {address}\r\n\r\n"
            )
            .expect("a text");
            stream.write_all(request.as_bytes()).expect("a request");
            let mut reader = BufReader::new(stream);
            let (mut line, mut first) = (Vec::new(), true);
            while Instant::now() < end {
                // A line that has only come in part stays in the buffer.
                if reader.read_until(b'\n', &mut line).is_err() {
                    continue;
                }
                if line.starts_with(b"data: ") && !std::mem::take(&mut first) {
                    counts.0.fetch_add(1, Ordering::Relaxed);
                    counts.1.fetch_add(line.len() as u64, Ordering::Relaxed);
                }
                line.clear();
            }
        })
    };
    let threads: Vec<_> = (0..viewers).map(follow).collect();
    for thread in threads {
        thread.join().expect("a viewer");
    }
    (
        counts.0.load(Ordering::Relaxed),
        counts.1.load(Ordering::Relaxed),
    )
}

/// The most memory that the process has had, in MiB.
fn memory(pid: u32) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| {
        line.trim()
            .trim_end_matches("kB")
            .trim()
            .parse::<f64>()
            .ok()
    })
    .unwrap_or(0.0)
        / 1024.0
}
