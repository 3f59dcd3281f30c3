//! What an ID costs that does not come from a shard: tickets compared with one row that is counted
//! up, and sources in this process compared with reading the clock, which each of them does.
//! Medians of five rounds in turn, and ratios.
//!
//! A snowflake ends at 4096 a millisecond, so a millisecond in which the machine had other work for
//! its core is lost: next to the rate, the bench prints the milliseconds in which it made any, and
//! how many in each of those.
//!
//! `cargo bench --bench id_sources -- [--in-process] [--major N]`; `--in-process` leaves the
//! tickets out. The servers are throwaway ones that fsync, as a real one does: a ticket that is not
//! on disk may come again.

use std::collections::{BTreeMap, BTreeSet};
use std::hint::black_box;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pgshard::dev::{Binaries, Cluster, ClusterOptions, ServerOptions};
use pgshard::id::Epoch;
use pgshard::idgen::lease::Elsewhere;
use pgshard::idgen::tickets::{Create, Options, TicketHost, TicketName, create};
use pgshard::idgen::{
    Flake, IdSource, LeaseStore, Simpleflake, Snowflake, Tickets, Uuid7, WorkerLeases, flake,
    snowflake,
};
use pgshard::map::HostName;
use pgshard::pg::ConnectOptions;
use uuid::Uuid;

const CLIENTS: usize = 8;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1000);

type Rates = BTreeMap<&'static str, Vec<f64>>;
type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args()
        .skip(1)
        .filter(|argument| argument != "--bench");
    let (mut in_process_only, mut binaries) = (false, Binaries::first()?);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--in-process" => in_process_only = true,
            "--major" => {
                binaries = Binaries::of_major(arguments.next().unwrap_or_default().parse()?)?
            }
            other => return Err(format!("unknown argument {other}").into()),
        }
    }
    println!(
        "{}, {CLIENTS} clients, medians of {ROUNDS} rounds of {ROUND:?}",
        binaries.version()
    );
    let server = ServerOptions::default().durability(pgshard::dev::Durability::Durable);
    let cluster = tokio::task::block_in_place(|| {
        Cluster::start(&ClusterOptions::new(2, binaries).server(server))
    })?;
    let mut hosts = Vec::new();
    for server in cluster.servers() {
        hosts.push(TicketHost {
            name: server.name().clone(),
            connect: ConnectOptions::parse(&server.url())?,
        });
    }
    if !in_process_only {
        from_servers(&hosts).await?;
    }
    in_process(&hosts).await
}

async fn from_servers(hosts: &[TicketHost]) -> Outcome<()> {
    let name = TicketName::new("users")?;
    let names: std::collections::BTreeSet<HostName> =
        hosts.iter().map(|host| host.name.clone()).collect();
    let request = Create {
        name: name.clone(),
        hosts: names,
        stride: None,
        run: None,
        start: None,
        max: None,
        replace: None,
        lost: BTreeSet::new(),
    };
    create(hosts, &request, Uuid::new_v4()).await?;
    let setup = hosts[0].connect.connect("bench").await?;
    setup
        .batch_execute("CREATE TABLE counter (n bigint NOT NULL); INSERT INTO counter VALUES (0)")
        .await?;

    let mut rates = Rates::new();
    for _ in 0..ROUNDS {
        let row = clients(|| {
            let host = hosts[0].clone();
            async move {
                let connection = host.connect.connect("bench").await?;
                let statement = connection
                    .prepare("UPDATE counter SET n = n + 1 RETURNING n")
                    .await?;
                let (begun, mut done) = (Instant::now(), 0_u64);
                while begun.elapsed() < ROUND {
                    connection.query_one(&statement, &[]).await?;
                    done += 1;
                }
                Ok(done as f64 / begun.elapsed().as_secs_f64())
            }
        });
        rates
            .entry("baseline: UPDATE of one row")
            .or_default()
            .push(row.await?);
        for (label, on, block) in [
            ("tickets, one host, no blocks", 1, 1),
            ("tickets, two hosts, no blocks", 2, 1),
            ("tickets, two hosts, blocks of 100", 2, 100),
            ("tickets, two hosts, blocks of 1000", 2, 1000),
        ] {
            let taken = clients(|| {
                let source =
                    Tickets::new(Options::new(name.clone(), hosts[..on].to_vec()).block(block));
                async move {
                    source.next().await?;
                    let (begun, mut done) = (Instant::now(), 0_u64);
                    while begun.elapsed() < ROUND {
                        black_box(source.next().await?);
                        done += 1;
                    }
                    Ok(done as f64 / begun.elapsed().as_secs_f64())
                }
            });
            rates.entry(label).or_default().push(taken.await?);
        }
    }
    print("tickets a second", "baseline: UPDATE of one row", &rates);
    Ok(())
}

/// The rate of all clients together.
async fn clients<F, W>(client: F) -> Outcome<f64>
where
    F: Fn() -> W,
    W: Future<Output = Outcome<f64>> + Send + 'static,
{
    let mut running = tokio::task::JoinSet::new();
    for _ in 0..CLIENTS {
        running.spawn(client());
    }
    let mut rate = 0.0;
    while let Some(done) = running.join_next().await {
        rate += done??;
    }
    Ok(rate)
}

async fn until_late(mut work: impl AsyncFnMut() -> Outcome<u64>) -> Outcome<f64> {
    let (begun, mut done) = (Instant::now(), 0);
    while begun.elapsed() < ROUND {
        done += work().await?;
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

async fn in_process(hosts: &[TicketHost]) -> Outcome<()> {
    let leases = WorkerLeases::new(hosts[0].connect.clone(), "bench");
    leases.install(Elsewhere::Nobody).await?;
    let options = snowflake::Options::new(Epoch::from_unix_ms(snowflake::TWITTER_EPOCH_MS)?);
    let snowflake = Snowflake::start(leases, options).await?;
    let flake = Flake::new(&flake::Options::default());
    let simpleflake = Simpleflake::new();
    let mut rates = Rates::new();
    let mut milliseconds = Vec::new();
    let mut note = |label, rate| rates.entry(label).or_default().push(rate);
    for _ in 0..ROUNDS {
        note(
            "baseline: the clock",
            spin(|| Ok(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis()))?,
        );
        note("snowflake, one by one", one_by_one(&snowflake).await?);
        milliseconds.push(of_milliseconds(&snowflake).await?);
        note("snowflake, 1000 at once", by_thousands(&snowflake).await?);
        note("flake, one by one", one_by_one(&flake).await?);
        note("flake, 1000 at once", by_thousands(&flake).await?);
        note("simpleflake", spin(|| Ok(simpleflake.make()?))?);
        note("uuid7", spin(|| Ok(pgshard::idgen::uuid7::next()))?);
    }
    // Keeps the trait's own way honest too.
    black_box(Uuid7.next().await?);
    print(
        "in this process, one core, a second (a snowflake's layout ends at 4,096,000)",
        "baseline: the clock",
        &rates,
    );
    let column =
        |which: fn(&(f64, f64)) -> f64| median(&milliseconds.iter().map(which).collect::<Vec<_>>());
    println!(
        "  snowflake: IDs in {:.2} % of the milliseconds, {:.1} in each of those, of 4096",
        column(|round| round.0) * 100.0,
        column(|round| round.1)
    );
    Ok(())
}

/// The share of the milliseconds in which there was an ID, and how many there were in each of
/// those.
async fn of_milliseconds<S: LeaseStore>(snowflake: &Snowflake<S>) -> Outcome<(f64, f64)> {
    let (begun, mut made, mut seen, mut last, mut first) = (Instant::now(), 0_u64, 0_u64, 0, None);
    while begun.elapsed() < ROUND {
        for _ in 0..1000 {
            let ms = snowflake.next().await? >> (snowflake::WORKER_BITS + snowflake::SEQ_BITS);
            first.get_or_insert(ms);
            seen += u64::from(ms != last);
            last = ms;
            made += 1;
        }
    }
    let passed = last - first.unwrap_or(last) + 1;
    Ok((seen as f64 / passed as f64, made as f64 / seen as f64))
}

fn spin<T>(mut work: impl FnMut() -> Outcome<T>) -> Outcome<f64> {
    let (begun, mut done) = (Instant::now(), 0_u64);
    while begun.elapsed() < ROUND {
        for _ in 0..1000 {
            black_box(work()?);
        }
        done += 1000;
    }
    Ok(done as f64 / begun.elapsed().as_secs_f64())
}

async fn one_by_one<S: IdSource>(source: &S) -> Outcome<f64> {
    until_late(async || {
        for _ in 0..1000 {
            black_box(source.next().await?);
        }
        Ok(1000)
    })
    .await
}

async fn by_thousands<S: IdSource>(source: &S) -> Outcome<f64> {
    until_late(async || Ok(black_box(source.next_many(1000).await?).len() as u64)).await
}

fn median(rates: &[f64]) -> f64 {
    let mut sorted = rates.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

fn print(title: &str, baseline: &str, rates: &Rates) {
    println!("\n{title}");
    let base = rates.get(baseline).map_or(f64::NAN, |rates| median(rates));
    for (label, rates) in rates {
        let rate = median(rates);
        println!("  {label:<36} {rate:>14.0}   x {:.2}", rate / base);
    }
}
