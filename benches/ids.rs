//! What an ID costs in the database, and whether IDs repeat: `next_id()` and `next_ids()` compared
//! with the function that "Sharding & IDs at Instagram" published, on the same server, one after
//! the other in each round. Prints medians and ratios.
//!
//! `cargo bench --bench ids -- [--rows N] [--rounds N] [--ids N] [--turns N] [--seconds N]
//! [--major N]`
//!
//! - ns per ID in `INSERT … SELECT` of `--rows` rows, the same rows with a constant in the place of
//!   the ID taken off;
//! - rows a second of single-row prepared inserts, by pgbench, with 1 and 8 clients, in `--turns`
//!   turns of `--seconds` each, and the server's processor time per row, which hardly depends on
//!   what else the machine does;
//! - repeats among `--ids` IDs that 1, 2, 4 and 8 writers make as fast as they can.
//!   `--ids 10000000` is the long way;
//! - tables of a shard that share one ID clock, compared with one clock for each table.
//!
//! The server is a throwaway one (no fsync), so that what is left is the cost of the IDs.
//! `gen_random_uuid()` and `bigserial` are there for comparison.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use pgshard::dev::{Binaries, Cluster, ClusterOptions, Durability, ServerOptions};
use tokio_postgres::{Client, NoTls};

const EPOCH_MS: i64 = 1_314_220_021_721;

/// The published function, as it was printed but for the names.
const PUBLISHED: &str = "
CREATE SCHEMA published;
CREATE SEQUENCE published.table_id_seq;
CREATE FUNCTION published.next_id(OUT result bigint) AS $$
DECLARE
    our_epoch bigint := 1314220021721;
    seq_id bigint;
    now_millis bigint;
    shard_id int := 5;
BEGIN
    SELECT nextval('published.table_id_seq') % 1024 INTO seq_id;
    SELECT FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000) INTO now_millis;
    result := (now_millis - our_epoch) << 23;
    result := result | (shard_id << 10);
    result := result | (seq_id);
END;
$$ LANGUAGE PLPGSQL;";

/// The columns' types and the expressions that make their values.
const VARIANTS: [(&str, &str, &str); 5] = [
    ("constant", "bigint", "1"),
    ("published", "bigint", "published.next_id()"),
    ("next_id", "bigint", "shard_0005.next_id()"),
    ("bigserial", "bigint", "nextval('published.serial')"),
    ("uuid", "uuid", "gen_random_uuid()"),
];

struct Arguments {
    rows: u32,
    rounds: usize,
    ids: u64,
    turns: usize,
    seconds: u32,
    major: Option<u32>,
}

impl Arguments {
    fn read() -> Arguments {
        let mut read = Arguments {
            rows: 1_000_000,
            rounds: 5,
            ids: 1_000_000,
            turns: 20,
            seconds: 1,
            major: None,
        };
        let mut list = std::env::args().skip(1);
        while let Some(name) = list.next() {
            let mut number = || -> u32 {
                let value = list.next().unwrap_or_default();
                value
                    .parse()
                    .unwrap_or_else(|_| panic!("{name} takes a number, not {value:?}"))
            };
            match name.as_str() {
                "--rows" => read.rows = number(),
                "--rounds" => read.rounds = number() as usize,
                "--ids" => read.ids = u64::from(number()),
                "--turns" => read.turns = number() as usize,
                "--seconds" => read.seconds = number(),
                "--major" => read.major = Some(number()),
                // `cargo bench` passes this to every bench.
                "--bench" => {}
                other => panic!("unknown argument {other}"),
            }
        }
        read
    }
}

fn main() {
    let arguments = Arguments::read();
    let binaries = match arguments.major {
        Some(major) => Binaries::of_major(major),
        None => Binaries::first(),
    };
    let binaries = binaries.expect("there is a PostgreSQL on this machine");
    // Its processor time would count as some row's.
    let settings = vec![("autovacuum".to_owned(), "off".to_owned())];
    let server = ServerOptions::default()
        .durability(Durability::Throwaway)
        .shared_buffers_mib(256)
        .settings(settings);
    let options = ClusterOptions::new(1, binaries.clone()).server(server);
    let cluster = Cluster::start(&options).expect("the server starts");
    println!("PostgreSQL {}, throwaway", binaries.version());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    let url = cluster.servers()[0].url();
    let server = &cluster.servers()[0];
    let bench = Bench {
        arguments,
        binaries,
        url,
        port: server.port(),
        pid: server.pid(),
    };
    runtime.block_on(async {
        bench.prepare().await;
        bench.bulk().await;
        bench.single();
        bench.clocks().await;
        bench.repeats().await;
    });
}

struct Bench {
    arguments: Arguments,
    binaries: Binaries,
    url: String,
    port: u16,
    pid: Option<u32>,
}

impl Bench {
    async fn connect(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls)
            .await
            .expect("the server takes connections");
        tokio::spawn(connection);
        client
    }

    async fn prepare(&self) {
        let client = self.connect().await;
        let shard = |number: u16| {
            let schema = format!("shard_{number:04}");
            let sql = include_str!("../migrations/shard/0001_next_id.sql")
                .replace("{shard}", &schema)
                .replace("{shard_id}", &number.to_string())
                .replace("{epoch_ms}", &EPOCH_MS.to_string());
            format!("CREATE SCHEMA {schema}; {sql}")
        };
        let mut sql = format!("{PUBLISHED} CREATE SEQUENCE published.serial;");
        // Shard 5 is measured; 11 to 14 are one clock for each of four tables.
        for number in [5, 11, 12, 13, 14] {
            sql.push_str(&shard(number));
        }
        for (name, kind, value) in VARIANTS {
            sql.push_str(&format!(
                "CREATE TABLE public.bulk_{name} (id {kind}, n int);"
            ));
            sql.push_str(&format!(
                "CREATE TABLE public.single_{name} (id {kind} DEFAULT {value}, n int);"
            ));
        }
        client
            .batch_execute(&sql)
            .await
            .expect("the functions are made");
    }

    /// Nanoseconds per ID within one statement.
    async fn bulk(&self) {
        let client = self.connect().await;
        let rows = self.arguments.rows;
        let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let fill = |name: &str, from: String| {
            format!("TRUNCATE public.bulk_{name}; INSERT INTO public.bulk_{name} SELECT {from}")
        };
        for _ in 0..self.arguments.rounds {
            let plain = VARIANTS.map(|(name, _, value)| {
                (
                    name,
                    fill(
                        name,
                        format!("{value}, n FROM generate_series(1, {rows}) AS n"),
                    ),
                )
            });
            let leased = [(
                "next_ids",
                fill(
                    "next_id",
                    format!("id, 1 FROM shard_0005.next_ids({rows}) AS id"),
                ),
            )];
            for (name, sql) in plain
                .into_iter()
                .chain(leased.into_iter().filter(|_| rows <= 1_000_000))
            {
                let began = Instant::now();
                client.batch_execute(&sql).await.expect("rows are inserted");
                times
                    .entry(name)
                    .or_default()
                    .push(began.elapsed().as_secs_f64() * 1e9 / f64::from(rows));
            }
        }
        println!(
            "\nINSERT … SELECT of {rows} rows, medians of {}, the row's own cost taken off:",
            self.arguments.rounds
        );
        let row = median(&times["constant"]);
        let published = median(&times["published"]) - row;
        println!("  {:<12} {row:>7.0} ns per row", "(row)");
        for name in ["published", "next_id", "next_ids", "bigserial", "uuid"] {
            let Some(times) = times.get(name) else {
                continue;
            };
            let cost = median(times) - row;
            println!(
                "  {name:<12} {cost:>7.0} ns per ID   {:>5.2} x published",
                cost / published
            );
        }
    }

    /// Single-row prepared inserts by pgbench, in slices of `--seconds` that take turns forth and
    /// back, so that what else the machine does meets all alike; ratios are the medians of each
    /// slice's to the published function's of the same turn. The processor time is that of the
    /// server's processes.
    fn single(&self) {
        let files: Vec<_> = VARIANTS
            .iter()
            .map(|(name, ..)| {
                let file = tempfile::NamedTempFile::new().expect("a temporary file");
                let sql =
                    format!("INSERT INTO public.single_{name} (n) VALUES (1) RETURNING id;\n");
                std::fs::write(file.path(), sql).expect("the temporary file can be written");
                (*name, file)
            })
            .collect();
        for clients in [1, 8] {
            let mut slices: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
            for turn in 0..self.arguments.turns {
                let mut order: Vec<_> = files.iter().collect();
                if turn % 2 == 1 {
                    order.reverse();
                }
                for (name, file) in order {
                    slices
                        .entry(name)
                        .or_default()
                        .push(self.pgbench(file.path(), clients));
                }
            }
            println!(
                "\nsingle-row prepared inserts, {clients} clients, medians of {} turns of {} s (in \
                    brackets: the \
                 middle half):",
                self.arguments.turns, self.arguments.seconds
            );
            for (name, ..) in VARIANTS {
                let (own, published) = (&slices[name], &slices["published"]);
                let each = |slices: &[Slice], what: fn(&Slice) -> f64| {
                    slices.iter().map(what).collect::<Vec<_>>()
                };
                let ratios = |what: fn(&Slice) -> f64| -> Vec<f64> {
                    own.iter()
                        .zip(published)
                        .map(|(own, published)| what(own) / what(published))
                        .collect()
                };
                println!(
                    "  {name:<12} {:>7.0} per second   {} x published   {:>6.2} us of the server's \
                        processors per \
                     row   {} x",
                    median(&each(own, |slice| slice.rate)),
                    spread(&ratios(|slice| slice.rate)),
                    median(&each(own, |slice| slice.processor_us)),
                    spread(&ratios(|slice| slice.processor_us)),
                );
            }
        }
    }

    fn pgbench(&self, file: &std::path::Path, clients: u32) -> Slice {
        let mut command = Command::new(self.binaries.program("pgbench"));
        command.args([
            "-n",
            "-M",
            "prepared",
            "-h",
            "127.0.0.1",
            "-U",
            "app",
            "-j",
            "2",
            "-p",
        ]);
        command
            .arg(self.port.to_string())
            .args(["-T", &self.arguments.seconds.to_string()]);
        command
            .args(["-c", &clients.to_string(), "-f"])
            .arg(file)
            .arg(self.url.rsplit('/').next().unwrap_or("app"));
        let before = self.processor_us();
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .expect("pgbench runs");
        // A backend takes a moment to end after its client has gone.
        std::thread::sleep(Duration::from_millis(100));
        let processor_us = self.processor_us() - before;
        let text = String::from_utf8_lossy(&output.stdout);
        // "tps = 8123.4 (without initial connection time)" or, of older versions, "(excluding …)",
        // the last such line.
        let line = text
            .lines()
            .rev()
            .find_map(|line| line.strip_prefix("tps = "))
            .expect("pgbench prints a rate");
        let rate = line
            .split(' ')
            .next()
            .and_then(|rate| rate.parse().ok())
            .expect("a rate is a number");
        let rows = text
            .lines()
            .find_map(|line| line.strip_prefix("number of transactions actually processed: "));
        let rows = rows
            .and_then(|rows| rows.split('/').next()?.parse::<f64>().ok())
            .expect("pgbench counts");
        Slice {
            rate,
            processor_us: processor_us / rows,
        }
    }

    /// The processor time of the server's processes that have ended; 0 where there is no /proc.
    fn processor_us(&self) -> f64 {
        const TICK_US: f64 = 10_000.0;
        let ticks = || -> Option<u64> {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid?)).ok()?;
            // After the name, which may hold anything: state, and so on; cutime and cstime are
            // fields 16 and 17 of all.
            let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
            Some(fields.get(13)?.parse::<u64>().ok()? + fields.get(14)?.parse::<u64>().ok()?)
        };
        ticks().unwrap_or(0) as f64 * TICK_US
    }

    /// Eight writers on four tables: one ID clock for the shard, or one for each table.
    async fn clocks(&self) {
        const WRITERS: usize = 8;
        let each = (self.arguments.ids / 4 / WRITERS as u64).max(1);
        let mut times: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for _ in 0..self.arguments.rounds {
            for (name, schemas) in [("one a shard", [5; 4]), ("one a table", [11, 12, 13, 14])] {
                let mut writers = tokio::task::JoinSet::new();
                let began = Instant::now();
                for writer in 0..WRITERS {
                    let (client, schema) = (self.connect().await, schemas[writer % 4]);
                    let sql = format!(
                        "SELECT count(shard_{schema:04}.next_id()) FROM generate_series(1, {each})"
                    );
                    writers.spawn(async move {
                        client.batch_execute(&sql).await.expect("IDs are made")
                    });
                }
                writers.join_all().await;
                let made = each as f64 * WRITERS as f64;
                times
                    .entry(name)
                    .or_default()
                    .push(began.elapsed().as_secs_f64() * 1e9 / made);
            }
        }
        println!(
            "\n{WRITERS} writers on 4 tables, one ID clock for the shard or one for each table:"
        );
        for (name, times) in &times {
            println!("  {name:<12} {:>7.0} ns per ID", median(times));
        }
    }

    /// Repeats among the IDs of writers that do nothing else.
    async fn repeats(&self) {
        let total = self.arguments.ids;
        println!("\nrepeats among {total} IDs:");
        let client = self.connect().await;
        for writers in [1, 2, 4, 8] {
            for (name, function) in [
                ("published", "published.next_id()"),
                ("next_id", "shard_0005.next_id()"),
            ] {
                client
                    .batch_execute(
                        "DROP TABLE IF EXISTS public.made; CREATE UNLOGGED TABLE \
                        public.made (id bigint)",
                    )
                    .await
                    .expect("a table is made");
                let mut running = tokio::task::JoinSet::new();
                for _ in 0..writers {
                    let each = total / writers;
                    let sql = format!(
                        "INSERT INTO public.made SELECT {function} FROM generate_series(1, {each})"
                    );
                    let writer = self.connect().await;
                    running.spawn(async move {
                        writer.batch_execute(&sql).await.expect("IDs are made")
                    });
                }
                running.join_all().await;
                let sql = "SELECT count(*) - count(DISTINCT id) FROM public.made";
                let repeats: i64 = client
                    .query_one(sql, &[])
                    .await
                    .expect("IDs are counted")
                    .get(0);
                println!("  {writers} writers   {name:<12} {repeats:>9}");
            }
        }
    }
}

/// One run of pgbench.
struct Slice {
    /// Rows a second.
    rate: f64,
    /// Processor time of the server for a row, in microseconds.
    processor_us: f64,
}

/// The median, and what the middle half is between.
fn spread(values: &[f64]) -> String {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |quarter: usize| sorted[(sorted.len() - 1) * quarter / 4];
    format!("{:>5.3} [{:.3} to {:.3}]", median(values), at(1), at(3))
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}
