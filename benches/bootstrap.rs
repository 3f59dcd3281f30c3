//! Bootstrap compared with psql, with the same schemas, ID functions and tables on the same
//! servers: psql with one transaction a shard, one psql a host at the same time; and one psql
//! process a shard, as tools do that know one schema at a time; the latter as a sample, scaled to
//! all shards. Prints the times of each run, the medians and their ratio; and, on Linux, the
//! processor time that the servers took and that the client took, in all and for a shard: that is
//! what counts where each has as many cores as it can use, and hardly depends on what else the
//! machine does.
//!
//! `cargo bench --bench bootstrap -- [--shards N] [--runs N] [--hosts N] [--width N] [--sample N]
//! [--major N] [--throwaway]`
//!
//! `survey` and `survey, clocks` are what `pgshard check` reads of the hosts, without and with the
//! clocks of all shards' IDs.
//!
//! Servers run as in production, with every commit forced to disk, unless `--throwaway` turns that
//! off. Psql writes none of pgshard's own rows, so it has a little less to do.

#[path = "support/processor.rs"]
mod processor;
mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::process::{Command, Stdio};

use pgshard::dev::{Binaries, Cluster, ClusterOptions, Server, ServerOptions};
use pgshard::id::Epoch;
use pgshard::map::ShardEpoch;
use pgshard::pg::ConnectOptions;
use pgshard::schema::bootstrap::{Host, Request};
use pgshard::schema::{self, Migrations};
use pgshard::{SchemaPrefix, ShardCount, ShardId};

use processor::{Taken, taken};
use support::Arguments;

const EPOCH_MS: i64 = 1_293_840_000_000;

/// Users, their photos, and likes: three tables with keys, an index and a foreign key.
const TABLES: &str = "
CREATE TABLE {shard}.users (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    name text NOT NULL
);
CREATE TABLE {shard}.photos (
    id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id bigint NOT NULL REFERENCES {shard}.users,
    title text NOT NULL,
    taken_at timestamptz NOT NULL DEFAULT now()
);
CREATE INDEX photos_user ON {shard}.photos (user_id);
CREATE TABLE {shard}.likes (
    photo_id bigint NOT NULL REFERENCES {shard}.photos,
    user_id bigint NOT NULL,
    PRIMARY KEY (photo_id, user_id)
);";

fn main() {
    let arguments = Arguments::read(&[
        ("shards", 4096),
        ("runs", 3),
        ("hosts", 2),
        ("width", Request::WIDTH.get() as u32),
        ("sample", 128),
    ]);
    let binaries = arguments.binaries();
    // The stock number of locks, so that batches are as large as they would be anywhere.
    let settings = vec![("max_locks_per_transaction".to_owned(), "64".to_owned())];
    let server = ServerOptions::default()
        .durability(arguments.durability)
        .shared_buffers_mib(128)
        .settings(settings);
    let options = ClusterOptions::new(arguments.number("hosts"), binaries.clone()).server(server);
    let cluster = Cluster::start(&options).expect("the servers start");
    let shards = ShardCount::new(arguments.number("shards") as u32).expect("1 to 8192 shards");
    println!(
        "PostgreSQL {}, {shards} shards x 3 tables on {} hosts, {:?}",
        binaries.version(),
        arguments.number("hosts"),
        arguments.durability
    );

    let mut times: BTreeMap<&str, Vec<Taken>> = BTreeMap::new();
    let count = f64::from(shards.get());
    for run in 1..=arguments.number("runs") {
        let (width, sample) = (arguments.number("width"), arguments.number("sample"));
        let bench = Bench {
            cluster: &cluster,
            binaries: &binaries,
            shards,
            width,
            sample,
        };
        for (name, taken) in bench.run(run) {
            println!("run {run}: {name:<16} {}", taken.line(count));
            times.entry(name).or_default().push(taken);
        }
    }
    for (name, taken) in &times {
        println!("median: {name:<16} {}", Taken::medians(taken).line(count));
    }
    println!(
        "psql a shard was timed on {} shards a host and is scaled to all",
        arguments.number("sample")
    );
    let pgshard = Taken::medians(&times["pgshard"]);
    for name in ["psql", "psql a shard"] {
        let psql = Taken::medians(&times[name]);
        println!(
            "{name} / pgshard: {:.2} x the time, {:.2} x the servers' processor time, {:.2} x the \
                client's",
            psql.seconds / pgshard.seconds,
            psql.servers / pgshard.servers,
            psql.client / pgshard.client
        );
    }
}

/// What was timed, and what it took.
type Timed = (&'static str, Taken);

fn timed(name: &'static str, cluster: &Cluster, run: impl FnOnce()) -> Timed {
    (name, taken(cluster, run))
}

struct Bench<'a> {
    cluster: &'a Cluster,
    binaries: &'a Binaries,
    shards: ShardCount,
    width: usize,
    sample: usize,
}

impl Bench<'_> {
    /// Each in databases of its own; who goes first changes from run to run.
    fn run(&self, run: usize) -> Vec<Timed> {
        let (psql, pgshard) = (format!("psql_{run}"), format!("pgshard_{run}"));
        let mut timed = if run % 2 == 1 {
            let mut timed = vec![self.psql(&psql)];
            timed.extend(self.pgshard(&pgshard));
            timed
        } else {
            let mut timed = self.pgshard(&pgshard);
            timed.push(self.psql(&psql));
            timed
        };
        timed.push(self.psql_a_shard(&format!("psql_a_shard_{run}")));
        timed
    }

    /// What psql is given for a shard.
    fn ddl(shard: ShardId) -> String {
        let schema = SchemaPrefix::default().schema(shard);
        let next_id = include_str!("../migrations/shard/0001_next_id.sql")
            .replace("{shard_id}", &shard.to_string())
            .replace("{epoch_ms}", &EPOCH_MS.to_string());
        let ddl = format!("{next_id}\n{TABLES}").replace("{shard}", &schema);
        format!("CREATE SCHEMA {schema};\n{ddl}")
    }

    fn psql(&self, database: &str) -> Timed {
        self.create_database(database);
        let files: Vec<_> = (0..self.cluster.servers().len())
            .map(|host| {
                let mut sql = String::new();
                for shard in self.shards_on(host) {
                    writeln!(sql, "BEGIN;\n{}\nCOMMIT;", Bench::ddl(shard))
                        .expect("a string takes all");
                }
                let file = tempfile::NamedTempFile::new().expect("a temporary file");
                std::fs::write(file.path(), sql).expect("the temporary file can be written");
                file
            })
            .collect();
        let timed = timed("psql", self.cluster, || {
            let servers = self.cluster.servers().iter().zip(&files);
            let running = servers.map(|(server, file)| {
                let mut psql = self.psql_on(server, database, "app");
                psql.arg("-f")
                    .arg(file.path())
                    .spawn()
                    .expect("psql starts")
            });
            for mut psql in running.collect::<Vec<_>>() {
                assert!(psql.wait().expect("psql ends").success());
            }
        });
        self.drop_database(database);
        timed
    }

    /// One psql process a shard, one after the other on each host: what the sample took, scaled to
    /// all shards.
    fn psql_a_shard(&self, database: &str) -> Timed {
        self.create_database(database);
        let (name, taken) = timed("psql a shard", self.cluster, || {
            std::thread::scope(|scope| {
                for (at, server) in self.cluster.servers().iter().enumerate() {
                    scope.spawn(move || {
                        for shard in self.shards_on(at).take(self.sample) {
                            let mut psql = self.psql_on(server, database, "app");
                            let done = psql.arg("-1").arg("-c").arg(Bench::ddl(shard)).status();
                            assert!(done.expect("psql runs").success());
                        }
                    });
                }
            });
        });
        self.drop_database(database);
        let most = (0..self.cluster.servers().len())
            .map(|host| self.shards_on(host).count())
            .max()
            .unwrap_or(0);
        let scale = most as f64 / self.sample.clamp(1, most.max(1)) as f64;
        (name, taken.scaled(scale))
    }

    fn pgshard(&self, database: &str) -> Vec<Timed> {
        self.create_database(database);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build();
        let runtime = runtime.expect("a runtime");
        let request = self.request(database);
        let bootstrap = || runtime.block_on(schema::bootstrap(&request, &|_| {}));
        let first = timed("pgshard", self.cluster, || {
            let report = bootstrap();
            assert!(report.is_complete(), "{report:?}");
        });
        let again = timed("pgshard, again", self.cluster, || {
            assert!(bootstrap().nothing_to_do())
        });
        let hosts = || {
            request
                .hosts
                .iter()
                .map(|host| (host.name.clone(), host.connect.clone()))
        };
        let survey = timed("survey", self.cluster, || {
            let survey = runtime.block_on(schema::survey(hosts()));
            assert!(survey.values().all(Result::is_ok));
        });
        let clocks = timed("survey, clocks", self.cluster, || {
            let survey = runtime.block_on(schema::survey_with_clocks(hosts()));
            let shards = |clock: &schema::ClockFacts| clock.ids_ahead_ms.len();
            let read: usize = survey
                .values()
                .flatten()
                .filter_map(|facts| facts.clock.as_ref())
                .map(shards)
                .sum();
            assert_eq!(read, usize::from(self.shards.get()));
        });
        self.drop_database(database);
        vec![first, again, survey, clocks]
    }

    fn request(&self, database: &str) -> Request {
        let files = BTreeMap::from([("0001_tables.sql".to_owned(), TABLES.to_owned())]);
        let hosts = self
            .cluster
            .servers()
            .iter()
            .enumerate()
            .map(|(at, server)| Host {
                name: server.name().clone(),
                connect: ConnectOptions::parse(&format!(
                    "postgres://app@127.0.0.1:{}/{database}",
                    server.port()
                ))
                .expect("a good URL"),
                shards: self
                    .shards_on(at)
                    .map(|shard| (shard, ShardEpoch::FIRST))
                    .collect(),
            });
        let cluster = schema::Cluster {
            key: pgshard::KeyKind::Integer,
            legacy_below: 0,
            unsharded: None,
            shards: self.shards,
            epoch: Epoch::from_unix_ms(EPOCH_MS).expect("a good epoch"),
            schema_prefix: SchemaPrefix::default(),
        };
        Request::new(
            cluster,
            hosts.collect(),
            Migrations::from_texts(&files).expect("good migrations"),
        )
        .width(NonZeroUsize::new(self.width).expect("at least one connection"))
    }

    fn shards_on(&self, host: usize) -> impl Iterator<Item = ShardId> {
        let hosts = self.cluster.servers().len();
        let count = usize::from(self.shards.get());
        let bound = move |at: usize| at * count / hosts;
        self.shards
            .iter()
            .skip(bound(host))
            .take(bound(host + 1) - bound(host))
    }

    fn psql_on(&self, server: &Server, database: &str, user: &str) -> Command {
        let mut psql = Command::new(self.binaries.program("psql"));
        psql.args([
            "-X",
            "-q",
            "-v",
            "ON_ERROR_STOP=1",
            "-h",
            "127.0.0.1",
            "-U",
            user,
            "-d",
            database,
        ]);
        psql.arg("-p")
            .arg(server.port().to_string())
            .stdout(Stdio::null());
        psql
    }

    fn create_database(&self, database: &str) {
        self.on_all(&[
            format!("CREATE DATABASE {database} OWNER app"),
            "CHECKPOINT".to_owned(),
        ]);
    }

    fn drop_database(&self, database: &str) {
        self.on_all(&[format!("DROP DATABASE {database}")]);
    }

    fn on_all(&self, statements: &[String]) {
        for server in self.cluster.servers() {
            for sql in statements {
                let done = self
                    .psql_on(server, "postgres", "postgres")
                    .args(["-c", sql])
                    .status();
                assert!(done.expect("psql runs").success(), "{sql}");
            }
        }
    }
}
