//! One more column in every table of every shard: `pgshard migrate up`, compared with psql with one
//! transaction a shard (one psql a host), and one psql process a shard, as tools do that know one
//! schema at a time; the latter as a sample, because of their time. The same servers, the same run.
//! Then `check --ddl` over all of it. Prints times, medians and ratios, and the processor time of
//! servers and client.
//!
//! `cargo bench --bench migrate -- [--shards N] [--runs N] [--hosts N] [--sample N] [--major N]
//! [--throwaway]`
//!
//! Servers run as in production, with every commit forced to disk, unless `--throwaway` turns that
//! off.

#[path = "support/processor.rs"]
mod processor;
mod support;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::{Command, Stdio};

use pgshard::dev::{Binaries, Cluster, ClusterOptions, Server, ServerOptions};
use pgshard::id::Epoch;
use pgshard::map::ShardEpoch;
use pgshard::pg::ConnectOptions;
use pgshard::schema::bootstrap::{self, Host};
use pgshard::schema::migrate::Request;
use pgshard::schema::{self, Migrations};
use pgshard::{SchemaPrefix, ShardCount, ShardId};

use processor::{Taken, taken};
use support::Arguments;

const TABLES: &str = "
CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text NOT NULL);
CREATE TABLE {shard}.photos (id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
    user_id bigint NOT NULL REFERENCES {shard}.users);
CREATE INDEX photos_user ON {shard}.photos (user_id);
CREATE TABLE {shard}.likes (photo_id bigint NOT NULL REFERENCES {shard}.photos, user_id bigint, \
PRIMARY KEY (photo_id,
    user_id));";

fn add(column: &str) -> String {
    let alter = |table: &str| format!("ALTER TABLE {{shard}}.{table} ADD COLUMN {column} text;\n");
    ["users", "photos", "likes"].map(alter).concat()
}

fn main() {
    let arguments =
        Arguments::read(&[("shards", 4096), ("runs", 3), ("hosts", 2), ("sample", 128)]);
    let binaries = arguments.binaries();
    let server = ServerOptions::default()
        .durability(arguments.durability)
        .shared_buffers_mib(128);
    let options = ClusterOptions::new(arguments.number("hosts"), binaries.clone()).server(server);
    let cluster = Cluster::start(&options).expect("the servers start");
    let shards = ShardCount::new(arguments.number("shards") as u32).expect("1 to 8192 shards");
    println!(
        "PostgreSQL {}, a column more in 3 tables of {shards} shards on {} hosts, {:?}",
        binaries.version(),
        arguments.number("hosts"),
        arguments.durability
    );
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let mut bench = Bench {
        cluster: &cluster,
        binaries: &binaries,
        shards,
        runtime,
        files: BTreeMap::new(),
    };
    bench.bootstrap();
    let mut times: BTreeMap<&str, Vec<Taken>> = BTreeMap::new();
    let count = f64::from(shards.get());
    for run in 1..=arguments.number("runs") {
        let mut timed = vec![("pgshard", bench.pgshard(run)), ("psql", bench.psql(run))];
        timed.push((
            "psql a shard",
            bench.psql_a_shard(run, arguments.number("sample")),
        ));
        timed.push(("check --ddl", bench.check_ddl()));
        for (name, taken) in timed {
            println!("run {run}: {name:<14} {}", taken.line(count));
            times.entry(name).or_default().push(taken);
        }
    }
    for (name, taken) in &times {
        println!("median: {name:<14} {}", Taken::medians(taken).line(count));
    }
    println!(
        "psql a shard was timed on {} shards a host and is scaled to all",
        arguments.number("sample")
    );
    let median = |name: &str| Taken::medians(&times[name]);
    let (ours, psql) = (median("pgshard"), median("psql"));
    println!(
        "psql / pgshard: {:.2}, {:.2} of the servers' processors, {:.2} of the client's; psql a \
            shard / pgshard: {:.2}",
        psql.seconds / ours.seconds,
        psql.servers / ours.servers,
        psql.client / ours.client,
        median("psql a shard").seconds / ours.seconds
    );
}

struct Bench<'a> {
    cluster: &'a Cluster,
    binaries: &'a Binaries,
    shards: ShardCount,
    runtime: tokio::runtime::Runtime,
    files: BTreeMap<String, String>,
}

impl Bench<'_> {
    fn connect(server: &Server) -> ConnectOptions {
        ConnectOptions::parse(&server.url()).expect("a good URL")
    }

    fn definition(&self) -> schema::Cluster {
        schema::Cluster {
            shards: self.shards,
            epoch: Epoch::from_unix_ms(1_293_840_000_000).expect("a good epoch"),
            schema_prefix: SchemaPrefix::default(),
            key: pgshard::KeyKind::Integer,
            legacy_below: 0,
            unsharded: None,
        }
    }

    fn bootstrap(&mut self) {
        self.files
            .insert("0001_tables.sql".to_owned(), TABLES.to_owned());
        let host = |(at, server): (usize, &Server)| Host {
            name: server.name().clone(),
            connect: Bench::connect(server),
            shards: self
                .shards_on(at)
                .map(|shard| (shard, ShardEpoch::FIRST))
                .collect(),
        };
        let hosts = self
            .cluster
            .servers()
            .iter()
            .enumerate()
            .map(host)
            .collect();
        let migrations = Migrations::from_texts(&self.files).expect("good migrations");
        let request = bootstrap::Request::new(self.definition(), hosts, migrations);
        let report = self.runtime.block_on(schema::bootstrap(&request, &|_| {}));
        assert!(report.is_complete(), "{report:?}");
    }

    fn pgshard(&mut self, run: usize) -> Taken {
        self.files
            .insert(format!("{:04}_run.sql", run + 1), add(&format!("a{run}")));
        let servers = self.cluster.servers().iter();
        let hosts = servers
            .map(|server| (server.name().clone(), Bench::connect(server)))
            .collect();
        let migrations = Migrations::from_texts(&self.files).expect("good migrations");
        let request = Request::new(self.definition(), hosts, migrations);
        taken(self.cluster, || {
            let report = self.runtime.block_on(schema::migrate(&request, &|_| {}));
            let migrated: usize = report.hosts.values().map(|host| host.migrated.len()).sum();
            assert!(
                report.is_complete() && migrated == usize::from(self.shards.get()),
                "{report:?}"
            );
        })
    }

    /// One psql a host, one transaction a shard.
    fn psql(&self, run: usize) -> Taken {
        let files = (0..self.cluster.servers().len()).map(|host| {
            let mut sql = String::new();
            for shard in self.shards_on(host) {
                let ddl = add(&format!("b{run}"))
                    .replace("{shard}", &SchemaPrefix::default().schema(shard));
                writeln!(sql, "BEGIN;\n{ddl}COMMIT;").expect("a string takes all");
            }
            let file = tempfile::NamedTempFile::new().expect("a temporary file");
            std::fs::write(file.path(), sql).expect("the temporary file can be written");
            file
        });
        let files: Vec<_> = files.collect();
        taken(self.cluster, || {
            let servers = self.cluster.servers().iter().zip(&files);
            let running: Vec<_> = servers
                .map(|(server, file)| self.psql_on(server).arg("-f").arg(file.path()).spawn())
                .collect();
            for psql in running {
                assert!(
                    psql.expect("psql starts")
                        .wait()
                        .expect("psql ends")
                        .success()
                );
            }
        })
    }

    /// One psql process a shard, one after the other on each host; the time of the sample, scaled
    /// to all shards.
    fn psql_a_shard(&self, run: usize, sample: usize) -> Taken {
        let each = &|at: usize, server: &Server| {
            for shard in self.shards_on(at).take(sample) {
                let ddl = add(&format!("c{run}"))
                    .replace("{shard}", &SchemaPrefix::default().schema(shard));
                let done = self.psql_on(server).arg("-1").arg("-c").arg(ddl).status();
                assert!(done.expect("psql runs").success());
            }
        };
        let of_sample = taken(self.cluster, || {
            std::thread::scope(|scope| {
                for (at, server) in self.cluster.servers().iter().enumerate() {
                    scope.spawn(move || each(at, server));
                }
            })
        });
        let most = (0..self.cluster.servers().len())
            .map(|host| self.shards_on(host).count())
            .max()
            .unwrap_or(0);
        of_sample.scaled(most as f64 / sample.clamp(1, most.max(1)) as f64)
    }

    fn check_ddl(&self) -> Taken {
        taken(self.cluster, || {
            let hosts = self
                .cluster
                .servers()
                .iter()
                .map(|server| (server.name().clone(), Bench::connect(server)));
            let survey = self.runtime.block_on(schema::definitions(hosts, &|_| {}));
            let findings = schema::compare(&survey);
            // Those of each run's sample, which has one more column.
            assert!(
                findings.iter().all(|finding| finding.code == "ddl_differs"),
                "{findings:?}"
            );
        })
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

    fn psql_on(&self, server: &Server) -> Command {
        let mut psql = Command::new(self.binaries.program("psql"));
        psql.args(["-X", "-q", "-v", "ON_ERROR_STOP=1", "-d"])
            .arg(server.url())
            .stdout(Stdio::null());
        psql
    }
}
