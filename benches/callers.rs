//! What a call costs an application, compared with the same by hand with tokio-postgres: 64 schemas
//! on two hosts, 8 connections to each host on both sides, with 1, 8 and 32 callers, reads by a
//! prepared statement and inserts. The goal is 0.95 × of the rate by hand in every cell.
//!
//! By hand, a caller uses one connection of each host, so that with 32 callers four share one, and
//! tokio-postgres pipelines their statements; every statement is prepared on every connection. Both
//! sides take turns in slices of a quarter of a second (hand, router, router, hand), so that they
//! meet the same neighbours on the machine; the medians of rounds are what counts. The processor
//! time is that of this process, from `/proc/self/stat`, in which both sides have their client.
//!
//! `cargo bench --bench callers -- [--rounds N] [--slices N] [--callers N]
//! [--only by-hand|router]`.
//! With `--only` the ratios mean nothing: it is for a profiler.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::dev::{Binaries, Cluster, ClusterOptions, Durability, ServerOptions};
use pgshard::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::router::{HostOptions, Options};
use pgshard::{Router, SchemaPrefix, ShardCount, ShardId};
use tokio_postgres::{Client, NoTls, Statement};

const SHARDS: u16 = 64;
const HOSTS: usize = 2;
const CONNECTIONS: usize = 8;
const CALLERS: [usize; 3] = [1, 8, 32];
/// By hand is 0, the router is 1: this order is fair to both when the machine's speed changes.
const BOTH: &[usize] = &[0, 1, 1, 0];
const SLICE: Duration = Duration::from_millis(250);
const READ: &str = "SELECT id, title FROM {shard}.photos WHERE id = $1";
const INSERT: &str = "INSERT INTO {shard}.likes (user_id) VALUES ($1)";

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    Read,
    Insert,
}

impl Work {
    fn sql(self) -> &'static str {
        match self {
            Work::Read => READ,
            Work::Insert => INSERT,
        }
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let (mut rounds, mut slices, mut sides) = (9, 2, BOTH);
    let mut callers = CALLERS.to_vec();
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let mut number = || arguments.next().unwrap_or_default().parse::<usize>();
        match name.as_str() {
            "--rounds" => rounds = number()?.max(1),
            "--callers" => callers = vec![number()?.max(1)],
            "--slices" => slices = number()?.max(1),
            "--only" => {
                sides = match arguments.next().as_deref() {
                    Some("by-hand") => &[0],
                    Some("router") => &[1],
                    _ => return Err("--only takes by-hand or router".into()),
                }
            }
            // `cargo bench` passes this to every bench.
            "--bench" => {}
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    let binaries = Binaries::first()?;
    println!("PostgreSQL {}, throwaway", binaries.version());
    let server = ServerOptions::default()
        .durability(Durability::Throwaway)
        .shared_buffers_mib(128);
    let options = ClusterOptions::new(HOSTS, binaries).server(server);
    let cluster = tokio::task::block_in_place(|| Cluster::start(&options))?;
    let servers = cluster.servers().iter();
    let urls: Vec<String> = servers.map(|server| server.url()).collect();
    prepare(&urls).await?;
    let hands = Arc::new(Hands::new(&urls).await?);
    let router = router(&urls)?;
    for work in [Work::Read, Work::Insert] {
        warm(&router, work).await?;
    }
    println!("                        by hand              router              router / by hand");
    for work in [Work::Read, Work::Insert] {
        for &callers in &callers {
            let mut cell = Cell::default();
            // The first round is not counted.
            for round in 0..=rounds {
                let both = turns(&hands, &router, work, callers, (slices, sides)).await?;
                if round > 0 {
                    cell.add(both);
                }
            }
            cell.print(work, callers);
        }
    }
    Ok(())
}

/// Calls, and the processor time of this process, of one side.
#[derive(Clone, Copy, Default)]
struct Side {
    calls: u64,
    cpu_us: f64,
    seconds: f64,
}

impl Side {
    fn rate(self) -> f64 {
        self.calls as f64 / self.seconds
    }

    fn cpu_per_call(self) -> f64 {
        self.cpu_us / self.calls.max(1) as f64
    }
}

#[derive(Default)]
struct Cell {
    by_hand: Vec<Side>,
    routed: Vec<Side>,
}

impl Cell {
    fn add(&mut self, [by_hand, routed]: [Side; 2]) {
        self.by_hand.push(by_hand);
        self.routed.push(routed);
    }

    fn print(&self, work: Work, callers: usize) {
        let what = match work {
            Work::Read => "reads",
            Work::Insert => "inserts",
        };
        let of = |sides: &[Side], value: fn(Side) -> f64| {
            median(sides.iter().map(|side| value(*side)).collect())
        };
        let pairs = || self.by_hand.iter().zip(&self.routed);
        let rate = median(
            pairs()
                .map(|(hand, ours)| ours.rate() / hand.rate())
                .collect(),
        );
        let cpu = |(hand, ours): (&Side, &Side)| ours.cpu_per_call() / hand.cpu_per_call();
        println!(
            "{what:7} {callers:2} callers   {:6.0}/s {:5.1} µs   {:6.0}/s {:5.1} µs   \
                rate {rate:.3} ×, processor time {:.3} ×",
            of(&self.by_hand, Side::rate),
            of(&self.by_hand, Side::cpu_per_call),
            of(&self.routed, Side::rate),
            of(&self.routed, Side::cpu_per_call),
            median(pairs().map(cpu).collect()),
        );
    }
}

/// Both sides in turn: by hand, and by the router.
async fn turns(
    hands: &Arc<Hands>,
    router: &Router,
    work: Work,
    callers: usize,
    (slices, order): (usize, &[usize]),
) -> Outcome<[Side; 2]> {
    let mut sides = [Side::default(); 2];
    for _ in 0..slices {
        for &side in order {
            let (cpu, began) = (cpu_us()?, Instant::now());
            let calls = match side {
                0 => {
                    in_flight(callers, |caller| {
                        let hands = hands.clone();
                        move |shard| {
                            let hands = hands.clone();
                            async move { hands.call(work, caller, shard).await }
                        }
                    })
                    .await?
                }
                _ => {
                    in_flight(callers, |_| {
                        let router = router.clone();
                        move |shard| {
                            let router = router.clone();
                            async move { call(&router, work, shard).await }
                        }
                    })
                    .await?
                }
            };
            sides[side].calls += calls;
            sides[side].cpu_us += cpu_us()? - cpu;
            sides[side].seconds += began.elapsed().as_secs_f64();
        }
    }
    Ok(sides)
}

async fn in_flight<W, R, F>(callers: usize, worker: W) -> Outcome<u64>
where
    W: Fn(usize) -> R,
    R: Fn(u16) -> F + Send + 'static,
    F: Future<Output = Outcome<()>> + Send,
{
    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + SLICE;
    let mut working = tokio::task::JoinSet::new();
    for caller in 0..callers {
        let (work, done) = (worker(caller), done.clone());
        working.spawn(async move {
            while Instant::now() < until {
                work(fastrand::u16(..SHARDS)).await?;
                done.fetch_add(1, Ordering::Relaxed);
            }
            Outcome::Ok(())
        });
    }
    while let Some(ended) = working.join_next().await {
        ended??;
    }
    Ok(done.load(Ordering::Relaxed))
}

/// Connections of ours with a prepared statement for each schema and kind of work.
struct Hands {
    hosts: Vec<Vec<Hand>>,
}

struct Hand {
    client: Client,
    reads: Vec<Statement>,
    inserts: Vec<Statement>,
}

impl Hands {
    async fn new(urls: &[String]) -> Outcome<Hands> {
        let mut hosts = Vec::new();
        for (host, url) in urls.iter().enumerate() {
            let mut connections = Vec::new();
            for _ in 0..CONNECTIONS {
                let client = connect(url).await?;
                let (mut reads, mut inserts) = (Vec::new(), Vec::new());
                for shard in shards_of(host) {
                    reads.push(client.prepare(&by_hand(Work::Read, shard)).await?);
                    inserts.push(client.prepare(&by_hand(Work::Insert, shard)).await?);
                }
                let hand = Hand {
                    client,
                    reads,
                    inserts,
                };
                // From its sixth execution on a statement has a plan that is kept.
                for shard in (0..6).flat_map(|_| shards_of(host)) {
                    hand.call(Work::Read, shard).await?;
                    hand.call(Work::Insert, shard).await?;
                }
                connections.push(hand);
            }
            hosts.push(connections);
        }
        Ok(Hands { hosts })
    }

    async fn call(&self, work: Work, caller: usize, shard: u16) -> Outcome<()> {
        let host = &self.hosts[host_of(shard)];
        host[caller % CONNECTIONS].call(work, shard).await
    }
}

impl Hand {
    async fn call(&self, work: Work, shard: u16) -> Outcome<()> {
        let at = usize::from(shard) % (usize::from(SHARDS) / HOSTS);
        let id = i64::from(shard);
        match work {
            Work::Read => drop(self.client.query_one(&self.reads[at], &[&id]).await?),
            Work::Insert => _ = self.client.execute(&self.inserts[at], &[&id]).await?,
        }
        Ok(())
    }
}

/// A key that is a shard's number is on that shard.
async fn call(router: &Router, work: Work, shard: u16) -> Outcome<()> {
    let id = i64::from(shard);
    match work {
        Work::Read => drop(router.by_key(id).query_one(READ, &[&id]).await?),
        Work::Insert => _ = router.by_key(id).execute(INSERT, &[&id]).await?,
    }
    Ok(())
}

/// Opens every connection, with every statement prepared on each, as by hand: transactions that
/// wait for each other are on a connection each.
async fn warm(router: &Router, work: Work) -> Outcome<()> {
    for shard in (0..6).flat_map(|_| 0..SHARDS) {
        let together = tokio::sync::Barrier::new(CONNECTIONS);
        let (shard, id) = (router.by_key(i64::from(shard)), i64::from(shard));
        let warming = (0..CONNECTIONS).map(|_| {
            shard.transaction(async |tx| {
                tx.execute(work.sql(), &[&id]).await?;
                together.wait().await;
                Ok::<_, pgshard::router::Error>(())
            })
        });
        futures_util::future::try_join_all(warming).await?;
    }
    Ok(())
}

async fn prepare(urls: &[String]) -> Outcome<()> {
    for (host, url) in urls.iter().enumerate() {
        let client = connect(url).await?;
        let make = |shard: u16| {
            let schema = schema(shard);
            format!(
                "CREATE SCHEMA {schema};
                 CREATE TABLE {schema}.photos (id bigint PRIMARY KEY, title text NOT NULL);
                 CREATE TABLE {schema}.likes (id bigserial PRIMARY KEY, user_id bigint NOT NULL);
                 INSERT INTO {schema}.photos VALUES ({shard}, 'Prague');"
            )
        };
        let cluster = format!(
            "CREATE SCHEMA pgshard; CREATE TABLE pgshard.cluster (shards integer, key_kind text);
             INSERT INTO pgshard.cluster VALUES ({SHARDS}, 'integer');"
        );
        let made: String = shards_of(host).map(make).collect();
        client.batch_execute(&(cluster + &made)).await?;
    }
    Ok(())
}

fn router(urls: &[String]) -> Outcome<Router> {
    let mut hosts = Vec::new();
    for (host, url) in urls.iter().enumerate() {
        let connect = ConnectOptions::parse(url)?;
        hosts.push(HostOptions::new(placement(host).host, connect, CONNECTIONS));
    }
    let shards = ShardCount::new(SHARDS.into()).ok_or("a number of shards")?;
    let placements = shards
        .iter()
        .map(|shard| (shard, placement(host_of(shard.get()))));
    let map = ShardMap::new(MapVersion::FIRST, shards, placements).map_err(|_| "a map")?;
    Ok(Router::new(Options::new(hosts, Arc::new(map))))
}

fn placement(host: usize) -> Placement {
    let name = format!("db{}", host + 1);
    Placement {
        host: HostName::new(&name).expect("db and a number is a host name"),
        epoch: ShardEpoch::FIRST,
    }
}

fn host_of(shard: u16) -> usize {
    usize::from(shard) / (usize::from(SHARDS) / HOSTS)
}

fn shards_of(host: usize) -> impl Iterator<Item = u16> {
    (0..SHARDS).filter(move |shard| host_of(*shard) == host)
}

fn schema(shard: u16) -> String {
    SchemaPrefix::default().schema(ShardId::new(shard).expect("less than 8192"))
}

fn by_hand(work: Work, shard: u16) -> String {
    work.sql().replace("{shard}", &schema(shard))
}

async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

/// The processor time of this process so far, in microseconds.
fn cpu_us() -> Outcome<f64> {
    /// Linux counts it in hundredths of a second, whatever its own clock does.
    const TICK_US: f64 = 10_000.0;
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    // The name in parentheses may hold spaces; the fields after it are numbered from 3.
    let fields = stat.rsplit_once(')').ok_or("a name in /proc/self/stat")?.1;
    let mut times = fields.split_whitespace().skip(11).take(2);
    let mut next = || {
        Outcome::Ok(
            times
                .next()
                .ok_or("a time in /proc/self/stat")?
                .parse::<f64>()?,
        )
    };
    Ok((next()? + next()?) * TICK_US)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
