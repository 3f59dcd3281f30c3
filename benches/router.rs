//! What the router costs and saves, each compared with the same by hand with tokio-postgres, on the
//! same servers in the same run:
//!
//! - point reads by a prepared statement over 1000 schemas: the median of one at a time, and the
//!   rate with 32 in flight, where every connection has every statement (the same room for
//!   statements as by hand) and with the router's own bound;
//! - 1000 IDs on 1000 shards of 2 hosts by `by_ids`, compared with loops that take one ID after the
//!   other; also with servers that are half a millisecond away, as they are in a data centre (a
//!   proxy in this process delays every packet by 0.25 ms);
//! - what it costs to bound the connections to both hosts together to the number of callers
//!   (`max_connections`);
//! - what it costs to cancel at the server a call that its caller drops: with the next call on the
//!   only connection, compared with the same by hand (cancel, connect again); and the rate of all
//!   calls while one in a hundred is dropped, compared with one in a hundred that takes as long and
//!   is waited for;
//! - what it costs to clean every session between two callers, and what a transaction costs
//!   compared with BEGIN and COMMIT by hand;
//! - a server process's memory after 20 statements on each of 4096 shards, with the bound on
//!   prepared statements and without.
//!
//! `cargo bench --bench router -- [points] [limit] [cancelling] [ids] [sessions] [memory]
//! [--seconds N] [--rounds N]`; without a name, all of them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use pgshard::dev::{Binaries, Cluster, ClusterOptions, Durability, ServerOptions};
use pgshard::id::Id;
use pgshard::map::{HostName, MapVersion, Placement, ShardEpoch, ShardMap};
use pgshard::pg::ConnectOptions;
use pgshard::router::{HostOptions, Options, Recycle, Sql, Transaction};
use pgshard::{Router, SchemaPrefix, ShardCount, ShardId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_postgres::{Client, NoTls, Statement};

/// Half of the shards are db1's, the other half db2's.
const SHARDS: u16 = 8192;
/// How many of them have a schema: on db1 all, for the memory; on db2 what the IDs need.
const MADE: [std::ops::Range<u16>; 2] = [0..4096, 4096..4596];
const SCHEMAS: u16 = 1000;
const IN_FLIGHT: usize = 32;
/// For how many parts of a run fewer calls are in flight before that is measured.
const SETTLING: usize = 6;
/// Callers of the part `limit`, and the shards of each host that they read.
const CALLERS: usize = 12;
const FEW: u16 = 100;
const STATEMENTS: usize = 20;
/// After so long a call is given up.
const GIVEN_UP_AFTER: Duration = Duration::from_millis(2);
const SELECT: &str = "SELECT id, title FROM {shard}.photos WHERE id = $1";

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

struct Arguments {
    parts: Vec<String>,
    seconds: u64,
    rounds: usize,
}

impl Arguments {
    fn read() -> Outcome<Arguments> {
        let mut read = Arguments {
            parts: Vec::new(),
            seconds: 2,
            rounds: 7,
        };
        let mut list = std::env::args().skip(1);
        while let Some(name) = list.next() {
            let mut number = || list.next().unwrap_or_default().parse::<u64>();
            match name.as_str() {
                "--seconds" => read.seconds = number()?,
                "--rounds" => read.rounds = number()? as usize,
                "points" | "limit" | "cancelling" | "ids" | "sessions" | "memory" => {
                    read.parts.push(name)
                }
                // `cargo bench` passes this to every bench.
                "--bench" => {}
                other => return Err(format!("unknown argument {other}").into()),
            }
        }
        Ok(read)
    }

    fn wants(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == part)
    }
}

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let arguments = Arguments::read()?;
    let binaries = Binaries::first()?;
    println!("PostgreSQL {}, throwaway", binaries.version());
    let server = ServerOptions::default()
        .durability(Durability::Throwaway)
        .shared_buffers_mib(256);
    let options = ClusterOptions::new(2, binaries).server(server);
    let cluster = tokio::task::block_in_place(|| Cluster::start(&options))?;
    let bench = Bench {
        urls: cluster
            .servers()
            .iter()
            .map(|server| server.url())
            .collect(),
        arguments,
    };
    bench.prepare().await?;
    if bench.arguments.wants("points") {
        bench.points().await?;
    }
    if bench.arguments.wants("limit") {
        bench.limit().await?;
    }
    if bench.arguments.wants("cancelling") {
        bench.next_after_giving_up().await?;
        bench.others_while_giving_up().await?;
    }
    if bench.arguments.wants("ids") {
        bench.ids("on this machine", &bench.urls).await?;
        let mut far = Vec::new();
        for (url, server) in bench.urls.iter().zip(cluster.servers()) {
            let port = away(server.port(), Duration::from_micros(250)).await?;
            far.push(url.replace(&server.port().to_string(), &port.to_string()));
        }
        bench.ids("0.5 ms away", &far).await?;
    }
    if bench.arguments.wants("sessions") {
        bench.sessions().await?;
    }
    if bench.arguments.wants("memory") {
        bench.memory().await?;
    }
    Ok(())
}

struct Bench {
    urls: Vec<String>,
    arguments: Arguments,
}

impl Bench {
    /// A table of one row in each schema.
    async fn prepare(&self) -> Outcome<()> {
        for (url, shards) in self.urls.iter().zip(MADE) {
            let client = connect(url).await?;
            client
                .batch_execute(&format!(
                    "CREATE SCHEMA pgshard; CREATE TABLE pgshard.cluster (shards integer, key_kind \
                        text);
                     INSERT INTO pgshard.cluster VALUES ({SHARDS}, 'integer');"
                ))
                .await?;
            // All 4096 of the first host are for the memory only.
            let shards = if self.arguments.wants("memory") {
                shards
            } else {
                shards.start..shards.end.min(shards.start + SCHEMAS)
            };
            for some in Vec::from_iter(shards).chunks(50) {
                let make = |shard: &u16| {
                    let (schema, id) = (schema(*shard), id(*shard));
                    format!(
                        "CREATE SCHEMA {schema}; CREATE TABLE {schema}.photos (id bigint PRIMARY \
                            KEY,
                         title text NOT NULL);
                         INSERT INTO {schema}.photos VALUES ({id}, 'Prague');"
                    )
                };
                client
                    .batch_execute(&some.iter().map(make).collect::<String>())
                    .await?;
            }
        }
        Ok(())
    }

    fn router(
        &self,
        urls: &[String],
        pool_size: usize,
        statements: Option<usize>,
    ) -> Outcome<Router> {
        self.router_with(urls, |options| {
            options
                .hosts
                .iter_mut()
                .for_each(|host| host.pool_size = pool_size);
            options.statements_per_connection =
                statements.unwrap_or(options.statements_per_connection);
        })
    }

    /// With one connection a host, and options that `change` sets.
    fn router_with(&self, urls: &[String], change: impl Fn(&mut Options)) -> Outcome<Router> {
        let mut hosts = Vec::new();
        for (at, url) in urls.iter().enumerate() {
            hosts.push(HostOptions::new(
                place(at).host,
                ConnectOptions::parse(url)?,
                1,
            ));
        }
        let shards = ShardCount::new(SHARDS.into()).ok_or("a number of shards")?;
        let placements = shards
            .iter()
            .map(|shard| (shard, place(usize::from(shard.get() >= SHARDS / 2))));
        let map = ShardMap::new(MapVersion::FIRST, shards, placements).map_err(|_| "a map")?;
        let mut options = Options::new(hosts, Arc::new(map));
        change(&mut options);
        Ok(Router::new(options))
    }

    async fn points(&self) -> Outcome<()> {
        println!("\npoint reads over {SCHEMAS} schemas, a prepared statement for each");
        // As from a statement's sixth execution on, without having to wait for six of 64,000
        // statements.
        let urls: Vec<String> = self
            .urls
            .iter()
            .map(|url| with_option(url, "plan_cache_mode=force_generic_plan"))
            .collect();
        let hands = futures_util::future::try_join_all(
            (0..IN_FLIGHT).map(|_| Hand::new(&urls[0], SCHEMAS)),
        )
        .await?;
        let hands: Vec<Arc<Hand>> = hands.into_iter().map(Arc::new).collect();
        let room = usize::from(SCHEMAS) + STATEMENTS;
        let (one, all) = (
            self.router(&urls, 1, Some(room))?,
            self.router(&urls, IN_FLIGHT, Some(room))?,
        );
        warm(&one, 1).await?;
        warm(&all, IN_FLIGHT).await?;
        self.compare(
            "room for every statement on every connection",
            &hands,
            &one,
            &all,
        )
        .await?;
        drop(all);
        let few = self.router(&urls, IN_FLIGHT / 4, Some(room))?;
        warm(&few, IN_FLIGHT / 4).await?;
        self.compare(
            "the same with a quarter of the connections",
            &hands[..IN_FLIGHT / 4],
            &one,
            &few,
        )
        .await?;
        drop((one, few));
        let (one, all) = (
            self.router(&urls, 1, None)?,
            self.router(&urls, IN_FLIGHT, None)?,
        );
        warm(&one, 1).await?;
        warm(&all, IN_FLIGHT).await?;
        self.compare(
            "the router with its own bound on statements",
            &hands,
            &one,
            &all,
        )
        .await?;
        // With fewer calls in flight most find their shard's favourite idle. It takes some seconds
        // until what the connections keep is of use for that; those are not what is measured.
        let length = Duration::from_secs(self.arguments.seconds);
        for part in 1..=SETTLING {
            let (hand, ours) = rates_of(&hands[..IN_FLIGHT / 4], &all, length).await?;
            println!(
                "  fewer calls in flight, part {part} of {SETTLING}: rate {:.3} ×",
                ours / hand
            );
        }
        self.compare(
            "the same, a quarter of the connections busy",
            &hands[..IN_FLIGHT / 4],
            &one,
            &all,
        )
        .await
    }

    /// The router next to the hands, with as many calls in flight as there are hands: `one` has one
    /// connection, `all` one for each.
    async fn compare(
        &self,
        what: &str,
        hands: &[Arc<Hand>],
        one: &Router,
        all: &Router,
    ) -> Outcome<()> {
        println!("  {what}");
        let (mut medians, mut rates) = (Vec::new(), Vec::new());
        let length = Duration::from_secs(self.arguments.seconds);
        for round in 0..=self.arguments.rounds {
            // Turn by turn in short slices, so that both meet the same neighbours on the machine.
            let (mut by_hand, mut routed) = (Vec::new(), Vec::new());
            let began = Instant::now();
            while began.elapsed() < length {
                for shard in 0..SCHEMAS {
                    let shard = shard * 7 % SCHEMAS;
                    by_hand.push(timed(hands[0].read(shard)).await?);
                    routed.push(timed(read(one, shard)).await?);
                }
            }
            let (hand_rate, router_rate) = rates_of(hands, all, length).await?;
            // The first round is not counted.
            if round == 0 {
                continue;
            }
            let (hand, ours) = (median(&mut by_hand), median(&mut routed));
            medians.push(ours / hand);
            rates.push(router_rate / hand_rate);
            println!(
                "  one at a time: by hand {hand:6.1} µs, router {ours:6.1} µs, {:.3} ×   {} in \
                    flight: by hand \
                 {hand_rate:6.0}/s, router {router_rate:6.0}/s, {:.3} ×",
                ours / hand,
                hands.len(),
                router_rate / hand_rate
            );
        }
        println!(
            "  median of rounds: latency {:.3} ×, rate {:.3} ×",
            median(&mut medians),
            median(&mut rates)
        );
        Ok(())
    }

    /// As many callers as connections, on shards of both hosts: with the limit on all, and without.
    async fn limit(&self) -> Outcome<()> {
        println!(
            "\npoint reads on both hosts by {CALLERS} callers, with max_connections = {CALLERS} \
                and without"
        );
        let slice = Duration::from_millis(500);
        let pools = |options: &mut Options| {
            options
                .hosts
                .iter_mut()
                .for_each(|host| host.pool_size = CALLERS)
        };
        let free = self.router_with(&self.urls, pools)?;
        let bound = self.router_with(&self.urls, |options| {
            pools(options);
            options.max_connections = Some(CALLERS);
        })?;
        let mut ratios = Vec::new();
        for round in 0..=self.arguments.rounds {
            let mut done = [0, 0];
            for router in [&free, &bound, &bound, &free] {
                let reading = in_flight(CALLERS, slice, |_| {
                    let router = router.clone();
                    move |shard| {
                        let router = router.clone();
                        let second = if shard % 2 == 0 { 0 } else { MADE[1].start };
                        async move { read(&router, second + shard % FEW).await }
                    }
                });
                done[usize::from(std::ptr::eq(router, &bound))] += reading.await?;
            }
            // The first round is not counted.
            if round > 0 {
                let [free, bound] = done.map(|done| done as f64 / (2.0 * slice.as_secs_f64()));
                println!(
                    "  without {free:6.0}/s, with {bound:6.0}/s, {:.3} ×",
                    bound / free
                );
                ratios.push(bound / free);
            }
        }
        println!("  median of rounds: {:.3} ×", median(&mut ratios));
        Ok(())
    }

    /// A call is given up, and the next needs its connection: by hand the statement is cancelled,
    /// and a connection opened.
    async fn next_after_giving_up(&self) -> Outcome<()> {
        println!(
            "\na call that is given up after 2 ms, and a point read on the only connection of its \
                host"
        );
        let one = self.router(&self.urls, 1, None)?;
        let mut client = connect(&self.urls[0]).await?;
        let (mut hand, mut ours) = (Vec::new(), Vec::new());
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(self.arguments.seconds) * 4 {
            hand.push(timed(give_up_by_hand(&self.urls[0], &mut client)).await?);
            ours.push(
                timed(async {
                    slow(&one, 0, Slow::GivenUp).await?;
                    read(&one, 0).await
                })
                .await?,
            );
        }
        let (hand, ours) = (median(&mut hand), median(&mut ours));
        println!(
            "  by hand {hand:6.0} µs, router {ours:6.0} µs, {:.3} ×",
            ours / hand
        );
        Ok(())
    }

    /// The same number of slow calls among many short ones: waited for, and given up.
    async fn others_while_giving_up(&self) -> Outcome<()> {
        println!(
            "\npoint reads by {CALLERS} callers, one call in a hundred of 2 ms: waited for, or \
                given up by then"
        );
        let slice = Duration::from_millis(500);
        let router = self.router(&self.urls, CALLERS, None)?;
        let mut ratios = Vec::new();
        for round in 0..=self.arguments.rounds {
            let mut done = [0, 0];
            for how in [
                Slow::WaitedFor,
                Slow::GivenUp,
                Slow::GivenUp,
                Slow::WaitedFor,
            ] {
                let calling = in_flight(CALLERS, slice, |_| {
                    let router = router.clone();
                    move |shard| {
                        let router = router.clone();
                        async move {
                            match fastrand::u8(..100) {
                                0 => slow(&router, shard % FEW, how).await,
                                _ => read(&router, shard % FEW).await,
                            }
                        }
                    }
                });
                done[usize::from(how == Slow::GivenUp)] += calling.await?;
            }
            // The first round is not counted.
            if round > 0 {
                let [waited_for, given_up] =
                    done.map(|done| done as f64 / (2.0 * slice.as_secs_f64()));
                println!(
                    "  waited for {waited_for:6.0}/s, given up {given_up:6.0}/s, {:.3} ×",
                    given_up / waited_for
                );
                ratios.push(given_up / waited_for);
            }
        }
        println!("  median of rounds: {:.3} ×", median(&mut ratios));
        Ok(())
    }

    async fn sessions(&self) -> Outcome<()> {
        println!("\nsessions between two callers, point reads on one shard");
        let (fast, length) = (
            self.router(&self.urls, 1, None)?,
            Duration::from_secs(self.arguments.seconds),
        );
        let clean = self.router_with(&self.urls, |options| options.recycle = Recycle::Clean)?;
        let hand = Hand::new(&self.urls[0], 1).await?;
        let (mut ours, mut cleaned, mut by_hand, mut transactions) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let began = Instant::now();
        while began.elapsed() < length * 4 {
            ours.push(timed(read(&fast, 0)).await?);
            cleaned.push(timed(read(&clean, 0)).await?);
            by_hand.push(
                timed(async {
                    hand.client.batch_execute("BEGIN").await?;
                    hand.read(0).await?;
                    Ok(hand.client.batch_execute("COMMIT").await?)
                })
                .await?,
            );
            transactions.push(timed(read_in_transaction(&fast, 0)).await?);
        }
        let (ours, cleaned) = (median(&mut ours), median(&mut cleaned));
        println!(
            "  one after the other: as needed {ours:6.1} µs, always cleaned {cleaned:6.1} µs, \
                {:.2} ×",
            cleaned / ours
        );
        let (by_hand, transactions) = (median(&mut by_hand), median(&mut transactions));
        println!(
            "  a transaction: by hand {by_hand:6.1} µs, router {transactions:6.1} µs, {:.3} ×",
            transactions / by_hand
        );
        Ok(())
    }

    async fn ids(&self, what: &str, urls: &[String]) -> Outcome<()> {
        println!("\n1000 IDs on 1000 shards of 2 hosts, {what}");
        let shards: Vec<u16> = (0..500)
            .flat_map(|shard| [shard, shard + SHARDS / 2])
            .collect();
        let ids: Vec<i64> = shards.iter().map(|shard| id(*shard)).collect();
        let mut clients = Vec::new();
        let mut prepared = HashMap::new();
        for url in urls {
            clients.push(connect(url).await?);
        }
        let client = |shard: u16| &clients[usize::from(shard >= SHARDS / 2)];
        for shard in &shards {
            prepared.insert(*shard, client(*shard).prepare(&by_hand(*shard)).await?);
        }
        let router = self.router(urls, 16, None)?;
        let sql = Sql::new("SELECT id, title FROM {shard}.photos WHERE id = ANY($1)");
        let (mut plain, mut ready, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..self.arguments.rounds + 6 {
            let began = Instant::now();
            for (shard, id) in shards.iter().zip(&ids) {
                client(*shard).query_one(&by_hand(*shard), &[id]).await?;
            }
            let (first, began) = (began.elapsed(), Instant::now());
            for (shard, id) in shards.iter().zip(&ids) {
                client(*shard).query_one(&prepared[shard], &[id]).await?;
            }
            let (second, began) = (began.elapsed(), Instant::now());
            let rows = router.by_ids(&ids).query(&sql).await?;
            let third = began.elapsed();
            assert_eq!(rows.len(), ids.len(), "every ID has its row");
            // Until plans are generic.
            if round >= 6 {
                plain.push(first.as_secs_f64());
                ready.push(second.as_secs_f64());
                ours.push(third.as_secs_f64());
            }
        }
        let (plain, ready, ours) = (median(&mut plain), median(&mut ready), median(&mut ours));
        println!(
            "  by_ids                                      {:8.1} ms",
            ours * 1e3
        );
        println!(
            "  loop by hand, a text each                   {:8.1} ms, {:5.1} ×",
            plain * 1e3,
            plain / ours
        );
        println!(
            "  loop by hand, a statement prepared a schema {:8.1} ms, {:5.1} ×",
            ready * 1e3,
            ready / ours
        );
        Ok(())
    }

    async fn memory(&self) -> Outcome<()> {
        println!("\na server process after {STATEMENTS} statements on each of 4096 shards");
        for (what, statements) in [
            ("none kept", 0),
            ("256 kept, the default", 256),
            ("all kept", 4096 * STATEMENTS),
        ] {
            let router = self.router(&self.urls, 1, Some(statements))?;
            let texts: Vec<Sql> = (0..STATEMENTS)
                .map(|number| {
                    Sql::new(&format!(
                        "SELECT id, title, {number} AS n FROM {{shard}}.photos WHERE id > $1 ORDER \
                            BY id LIMIT 10"
                    ))
                })
                .collect();
            let first = ShardId::new(0).ok_or("a shard")?;
            let pid: i32 = router
                .shard(first)?
                .query_one("SELECT pg_catalog.pg_backend_pid()", &[])
                .await?
                .get(0);
            let before = private_kib(pid)?;
            let began = Instant::now();
            for shard in MADE[0].clone() {
                let shard = router.shard(ShardId::new(shard).ok_or("a shard")?)?;
                for sql in &texts {
                    shard.query(sql, &[&0_i64]).await?;
                }
            }
            let after = private_kib(pid)?;
            println!(
                "  {what:22} {:7.1} MiB more ({:.1} before), {:.0} µs a statement",
                (after - before) as f64 / 1024.0,
                before as f64 / 1024.0,
                began.elapsed().as_secs_f64() * 1e6 / (4096 * STATEMENTS) as f64
            );
        }
        Ok(())
    }
}

/// A connection with a statement prepared for each schema.
struct Hand {
    client: Client,
    statements: Vec<Statement>,
}

impl Hand {
    async fn new(url: &str, schemas: u16) -> Outcome<Hand> {
        let client = connect(url).await?;
        let mut statements = Vec::new();
        for shard in 0..schemas {
            let statement = client.prepare(&by_hand(shard)).await?;
            // It is planned when it is first run.
            client.query_one(&statement, &[&id(shard)]).await?;
            statements.push(statement);
        }
        Ok(Hand { client, statements })
    }

    async fn read(&self, shard: u16) -> Outcome<()> {
        self.client
            .query_one(&self.statements[usize::from(shard)], &[&id(shard)])
            .await?;
        Ok(())
    }
}

async fn read(router: &Router, shard: u16) -> Outcome<()> {
    let id = id(shard);
    router.by_id(id)?.query_one(SELECT, &[&id]).await?;
    Ok(())
}

/// What becomes of a call that takes long.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Slow {
    WaitedFor,
    GivenUp,
}

async fn slow(router: &Router, shard: u16, how: Slow) -> Outcome<()> {
    let shard = router.by_id(id(shard))?;
    match how {
        Slow::WaitedFor => drop(
            shard
                .query("SELECT pg_catalog.pg_sleep(0.002)", &[])
                .await?,
        ),
        Slow::GivenUp => {
            let said = shard
                .within(GIVEN_UP_AFTER)
                .query("SELECT pg_catalog.pg_sleep(60)", &[])
                .await;
            assert!(
                said.is_err_and(|error| error.is_timeout()),
                "it is given up"
            );
        }
    }
    Ok(())
}

/// What a careful application does without the router: a request to cancel may come late, so the
/// connection is not used again.
async fn give_up_by_hand(url: &str, client: &mut Client) -> Outcome<()> {
    let slow = tokio::time::timeout(
        GIVEN_UP_AFTER,
        client.query("SELECT pg_catalog.pg_sleep(60)", &[]),
    )
    .await;
    assert!(slow.is_err(), "it is given up");
    client.cancel_token().cancel_query(NoTls).await?;
    *client = connect(url).await?;
    client.query_one(&by_hand(0), &[&id(0)]).await?;
    Ok(())
}

async fn read_in_transaction(router: &Router, shard: u16) -> Outcome<()> {
    let id = id(shard);
    let read = async |tx: Transaction| tx.query_one(SELECT, &[&id]).await.map(drop);
    router.by_id(id)?.transaction(read).await?;
    Ok(())
}

/// Opens every connection of the pool, and has every schema's statement prepared on each, as the
/// hands have, as far as there is room. Transactions that wait for each other are on a connection
/// each.
async fn warm(router: &Router, connections: usize) -> Outcome<()> {
    for shard in 0..SCHEMAS {
        let together = tokio::sync::Barrier::new(connections);
        let shard = router.by_id(id(shard))?;
        let id = id(shard.id().get());
        let warming = (0..connections).map(|_| {
            shard.transaction(async |tx| {
                tx.query_one(SELECT, &[&id]).await?;
                together.wait().await;
                Ok::<_, pgshard::router::Error>(())
            })
        });
        futures_util::future::try_join_all(warming).await?;
    }
    Ok(())
}

/// Reads a second with a task for each hand: by hand with a connection each, and by the router;
/// half a second each in turn.
async fn rates_of(hands: &[Arc<Hand>], router: &Router, length: Duration) -> Outcome<(f64, f64)> {
    let slice = Duration::from_millis(500);
    let (mut by_hand, mut routed, mut slices) = (0, 0, 0);
    let began = Instant::now();
    while began.elapsed() < 2 * length {
        by_hand += in_flight(hands.len(), slice, |task| {
            let hand = hands[task].clone();
            move |shard| {
                let hand = hand.clone();
                async move { hand.read(shard).await }
            }
        })
        .await?;
        routed += in_flight(hands.len(), slice, |_| {
            let router = router.clone();
            move |shard| {
                let router = router.clone();
                async move { read(&router, shard).await }
            }
        })
        .await?;
        slices += 1;
    }
    let seconds = slice.as_secs_f64() * f64::from(slices);
    Ok((by_hand as f64 / seconds, routed as f64 / seconds))
}

async fn in_flight<W, R, F>(tasks: usize, length: Duration, worker: W) -> Outcome<u64>
where
    W: Fn(usize) -> R,
    R: Fn(u16) -> F + Send + 'static,
    F: Future<Output = Outcome<()>> + Send,
{
    let done = Arc::new(AtomicU64::new(0));
    let until = Instant::now() + length;
    let mut working = tokio::task::JoinSet::new();
    for task in 0..tasks {
        let (read, done) = (worker(task), done.clone());
        working.spawn(async move {
            while Instant::now() < until {
                read(fastrand::u16(..SCHEMAS)).await?;
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

async fn timed(work: impl Future<Output = Outcome<()>>) -> Outcome<f64> {
    let began = Instant::now();
    work.await?;
    Ok(began.elapsed().as_secs_f64() * 1e6)
}

fn median(samples: &mut [f64]) -> f64 {
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// What only this process has in memory.
fn private_kib(pid: i32) -> Outcome<i64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Private_Dirty:"))
        .ok_or("a line Private_Dirty")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}

/// The URL with a setting of the server's for its connections.
fn with_option(url: &str, setting: &str) -> String {
    let sign = if url.contains('?') { '&' } else { '?' };
    format!("{url}{sign}options=-c%20{}", setting.replace('=', "%3D"))
}

async fn connect(url: &str) -> Outcome<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

fn place(host: usize) -> Placement {
    let name = format!("db{}", host + 1);
    Placement {
        host: HostName::new(&name).expect("db and a number is a host name"),
        epoch: ShardEpoch::FIRST,
    }
}

fn schema(shard: u16) -> String {
    SchemaPrefix::default().schema(ShardId::new(shard).expect("less than 8192"))
}

fn id(shard: u16) -> i64 {
    Id::new(1_000_000, ShardId::new(shard).expect("less than 8192"), 1)
        .expect("a time within 69 years")
        .encode()
}

fn by_hand(shard: u16) -> String {
    format!(
        "SELECT id, title FROM {}.photos WHERE id = $1",
        schema(shard)
    )
}

/// A port that leads to another one, each way later by `delay`.
async fn away(port: u16, delay: Duration) -> Outcome<u16> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let near = listener.local_addr()?.port();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                return;
            };
            let _ = (client.set_nodelay(true), server.set_nodelay(true));
            let ((from_client, to_client), (from_server, to_server)) =
                (client.into_split(), server.into_split());
            tokio::spawn(delayed(from_client, to_server, delay));
            tokio::spawn(delayed(from_server, to_client, delay));
        }
    });
    Ok(near)
}

async fn delayed(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    delay: Duration,
) {
    let (sender, mut packets) = tokio::sync::mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    tokio::spawn(async move {
        while let Some((at, packet)) = packets.recv().await {
            // A timer is too coarse for a quarter of a millisecond.
            while at.elapsed() < delay {
                tokio::task::yield_now().await;
            }
            if to.write_all(&packet).await.is_err() {
                return;
            }
        }
    });
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        if sender
            .send((Instant::now(), buffer[..length].to_vec()))
            .is_err()
        {
            return;
        }
    }
}
