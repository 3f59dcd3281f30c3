//! [`World`]: a bootstrapped cluster, with a mover, a router and the command on its config.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use pgshard::config::{Config, HostConfig};
use pgshard::map::{HostName, parse_shards};
use pgshard::mover::{Hosts, Mode, Mover, Observer, Options, Request};
use pgshard::schema::bootstrap;
use pgshard::schema::{Cluster, Migrations, UnshardedHost};
use pgshard::{Router, ShardId};
use serde_json::Value;
use tokio::process::{Child, Command};
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::TestCluster;

/// Users and photos, as a shard migration.
pub(crate) const TABLES: &str = "
    CREATE TABLE {shard}.users (id bigint PRIMARY KEY DEFAULT {shard}.next_id(), name text NOT \
    NULL);
    CREATE TABLE {shard}.photos (
        id bigint PRIMARY KEY DEFAULT {shard}.next_id(),
        user_id bigint NOT NULL REFERENCES {shard}.users,
        title text NOT NULL CHECK (title <> ''),
        made_at timestamptz NOT NULL DEFAULT now());
    CREATE INDEX ON {shard}.photos (user_id, id);
";

/// A machine that is busy with other tests may need longer for a snapshot than the open should
/// wait. Without this the move would not be audited.
const SNAPSHOT_MAX: Duration = Duration::from_secs(5);

/// The other version that is tested.
pub(crate) fn other(version: u32) -> u32 {
    if version == 18 { older!() } else { 18 }
}

/// Whether `PGSHARD_TEST_LONG` requests everything that the tests leave out to be quick.
pub(crate) fn is_long() -> bool {
    std::env::var_os("PGSHARD_TEST_LONG").is_some()
}

/// Every second of these for version 15, and the others for 18, because each costs a second or
/// more. With `PGSHARD_TEST_LONG`, all of them for both.
pub(crate) fn share<T>(version: u32, all: impl IntoIterator<Item = T>) -> Vec<T> {
    let whole = is_long();
    let skipped = usize::from(version == 18);
    all.into_iter()
        .enumerate()
        .filter(|(at, _)| whole || at % 2 == skipped)
        .map(|(_, one)| one)
        .collect()
}

/// Every second of these in one turn of `script/test`, and the others in another
/// (`PGSHARD_TEST_TURN`); all of them without turns.
pub(crate) fn in_turn<T>(all: Vec<T>) -> Vec<T> {
    let turn = std::env::var("PGSHARD_TEST_TURN")
        .ok()
        .and_then(|turn| turn.parse::<usize>().ok());
    let kept = |at: usize| turn.is_none_or(|turn| at % 2 == turn % 2);
    all.into_iter()
        .enumerate()
        .filter(|(at, _)| kept(*at))
        .map(|(_, one)| one)
        .collect()
}

/// A bootstrapped cluster of servers: users and photos in every shard, the shards spread evenly
/// over the hosts.
pub(crate) struct World {
    pub(crate) servers: TestCluster,
    pub(crate) config: Config,
}

impl World {
    /// A host for each of these major versions.
    pub(crate) async fn new(versions: &[u32], shards: u16) -> World {
        World::with_tables(versions, shards, &[("0001_tables.sql", TABLES)]).await
    }

    /// The same with other migrations: names and SQL.
    pub(crate) async fn with_tables(
        versions: &[u32],
        shards: u16,
        migrations: &[(&str, &str)],
    ) -> World {
        World::on(TestCluster::start_mixed(versions), shards, migrations).await
    }

    /// The same with one more table, which has no key: an online move lends it a replica identity.
    pub(crate) async fn with_a_keyless_table(versions: &[u32], shards: u16) -> World {
        let visits = "CREATE TABLE {shard}.visits (user_id bigint NOT NULL, page text)";
        World::with_tables(
            versions,
            shards,
            &[("0001_tables.sql", TABLES), ("0002_visits.sql", visits)],
        )
        .await
    }

    /// The same, with a last server that is no host.
    pub(crate) async fn with_spare(versions: &[u32], shards: u16) -> World {
        let mut servers = TestCluster::start_mixed(versions);
        servers.leave_out_the_last();
        World::on(servers, shards, &[("0001_tables.sql", TABLES)]).await
    }

    /// Two hosts, and a last server as a standby of one of them, which the config names as that
    /// host's other address.
    pub(crate) async fn with_standby(version: u32, shards: u16, primary: usize) -> World {
        let world = World::with_spare(&[version, version, version], shards).await;
        world.add_standby(version, 2, primary);
        world
    }

    /// Two hosts with a standby each: the third server is the first's, the fourth the second's.
    pub(crate) async fn with_standbys(version: u32, shards: u16) -> World {
        let mut servers = TestCluster::start(version, 4);
        servers.leave_out_the_last();
        servers.leave_out_the_last();
        let world = World::on(servers, shards, &[("0001_tables.sql", TABLES)]).await;
        world.add_standby(version, 2, 0);
        world.add_standby(version, 3, 1);
        world
    }

    fn add_standby(&self, version: u32, standby: usize, primary: usize) {
        tokio::task::block_in_place(|| self.servers.make_standby(version, standby, primary));
        let [first, second] = [primary, standby].map(|host| self.servers.server(host).port());
        let config = std::fs::read_to_string(&self.config.path).unwrap();
        let both = format!(":{first},127.0.0.1:{second}/");
        let config = config.replace(&format!(":{first}/"), &both);
        let at = config.find(&both).expect("the host has a url");
        let end = at + config[at..].find('"').expect("it ends");
        let config = format!(
            "{}?target_session_attrs=read-write{}",
            &config[..end],
            &config[end..]
        );
        self.write("pgshard.toml", &config);
    }

    async fn on(servers: TestCluster, shards: u16, migrations: &[(&str, &str)]) -> World {
        let path = servers.write_config_with_migrations(shards, migrations);
        let config = Config::load(path).unwrap();
        let world = World { servers, config };
        world.bootstrap().await;
        world
    }

    async fn bootstrap(&self) {
        let config = &self.config;
        let map = config.map.as_ref().expect("the config keeps its map");
        let host = |host: &HostConfig| bootstrap::Host {
            name: host.name.clone(),
            connect: host.connect.clone(),
            shards: map
                .iter()
                .filter(|(_, on, _)| **on == host.name)
                .map(|(s, _, e)| (s, e))
                .collect(),
        };
        let migrations = Migrations::read(config.cluster.migrations.as_ref().unwrap()).unwrap();
        let request = bootstrap::Request::new(
            self.cluster(),
            config.hosts.values().map(host).collect(),
            migrations,
        );
        let report = bootstrap::bootstrap(&request, &|_| ()).await;
        assert!(report.is_complete(), "{report:?}");
    }

    /// What the hosts record of the cluster.
    pub(crate) fn cluster(&self) -> Cluster {
        let cluster = &self.config.cluster;
        let (shards, epoch, schema_prefix) =
            (cluster.shards, cluster.epoch, cluster.prefix.clone());
        Cluster {
            shards,
            epoch,
            schema_prefix,
            key: cluster.key,
            legacy_below: cluster.legacy_below,
            unsharded: self.config.unsharded().map(|(host, schema)| UnshardedHost {
                host: host.name.clone(),
                schema: schema.clone(),
            }),
        }
    }

    pub(crate) fn mover(&self) -> Mover {
        self.mover_with(Options::default())
    }

    pub(crate) fn mover_with(&self, options: Options) -> Mover {
        let hosts = Hosts::new(
            self.config
                .hosts
                .values()
                .map(|host| (host.name.clone(), host.connect.clone())),
        );
        let observer = Observer::new(|event| eprintln!("{event:?}"));
        let store = Arc::new(self.config.map_store());
        let options = options.snapshot_max(SNAPSHOT_MAX);
        Mover::new(hosts, self.cluster(), store, options, observer)
    }

    pub(crate) fn request(&self, shards: &str, target: &str) -> Request {
        let shards = parse_shards(shards, self.config.cluster.shards).unwrap();
        Request::new(shards, HostName::new(target).unwrap()).mode(Some(Mode::Blocking))
    }

    /// The same, with the shards open while they are copied.
    pub(crate) fn online(&self, shards: &str, target: &str) -> Request {
        self.request(shards, target).mode(Some(Mode::Online))
    }

    /// A router that follows the config's map.
    pub(crate) async fn router(&self) -> Router {
        pgshard::connect(&self.config.path).await.unwrap()
    }

    /// The map that the file has now.
    pub(crate) fn published(&self) -> pgshard::map::ShardMap {
        Config::load(&self.config.path)
            .unwrap()
            .map
            .expect("the config keeps its map")
    }

    /// Where a shard is according to the file: 0 for `db1`.
    pub(crate) fn host_of(&self, shard: u16) -> usize {
        let map = self.published();
        let host = map.host(ShardId::new(shard).unwrap()).unwrap();
        self.config
            .hosts
            .keys()
            .position(|name| name == host)
            .unwrap()
    }

    /// Connections to all hosts.
    pub(crate) async fn all(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for host in 0..self.servers.servers().len() {
            clients.push(self.servers.app(host).await);
        }
        clients
    }

    /// The state of a shard in a host's own row: `serving`, `fenced`, `moved`, or `none`.
    pub(crate) async fn state(&self, host: usize, shard: u16) -> String {
        let sql = "SELECT coalesce((SELECT state FROM pgshard.shard WHERE shard_id = $1), 'none')";
        self.servers
            .app(host)
            .await
            .query_one(sql, &[&i32::from(shard)])
            .await
            .unwrap()
            .get(0)
    }

    /// The command on the world's config, as JSON. A move is a blocking one unless its arguments
    /// set a mode.
    pub(crate) fn command(&self, args: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = self.bare(args, environment);
        command.arg("--json");
        command
    }

    /// The same, with the text that people read.
    fn bare(&self, args: &[&str], environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pgshard"));
        for name in [
            "PGSHARD_FAILPOINT",
            "PGSHARD_LOG",
            "RUST_LOG",
            "PGSHARD_LEASE_MS",
            "PGSHARD_CHUNK_BYTES",
        ] {
            command.env_remove(name);
        }
        command.args(args);
        if args.first() == Some(&"move") && !args.contains(&"--mode") {
            command.args(["--mode", "blocking"]);
        }
        command.env("PGSHARD_SNAPSHOT_MS", SNAPSHOT_MAX.as_millis().to_string());
        command
            .env("PGSHARD_CONFIG", &self.config.path)
            .envs(environment.iter().copied());
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs the command to its end.
    pub(crate) async fn run(&self, args: &[&str]) -> Ran {
        self.run_with(args, &[]).await
    }

    /// Runs the command to its end, with the text that people read.
    pub(crate) async fn text(&self, args: &[&str]) -> Ran {
        Ran::of(self.bare(args, &[]).spawn().expect("the command was built")).await
    }

    /// Runs the command to its end, or to a failpoint such as `after swap=kill`.
    pub(crate) async fn run_until(&self, args: &[&str], failpoint: &str) -> Ran {
        self.run_with(args, &[("PGSHARD_FAILPOINT", failpoint)])
            .await
    }

    pub(crate) async fn run_with(&self, args: &[&str], environment: &[(&str, &str)]) -> Ran {
        let child = self
            .command(args, environment)
            .spawn()
            .expect("the command was built");
        let ran = Ran::of(child).await;
        super::contract::keeps(args, &ran.stdout, "");
        ran
    }

    /// Everything that the hosts and the file have about moves and shards, and every schema: it is
    /// equal before and after something that changes nothing.
    pub(crate) async fn everything(&self) -> String {
        let mut text = std::fs::read_to_string(&self.config.path).unwrap();
        for client in self.all().await {
            for table in [
                "shard",
                "incoming",
                "move",
                "ledger",
                "marker",
                "shard_migration",
            ] {
                let sql = format!("SELECT t::text FROM pgshard.{table} t ORDER BY 1");
                text += &lines(&client, &sql).await;
            }
            let sql = "SELECT n.nspname || '.' || coalesce(c.relname, '') FROM pg_namespace n
                LEFT JOIN pg_class c ON c.relnamespace = n.oid WHERE n.nspname LIKE 'shard%' ORDER \
                BY 1";
            text += &lines(&client, sql).await;
        }
        text
    }

    /// Everything that the hosts have about one shard and its moves, except how long a lease lasts,
    /// which its holder renews, and the result of an audit, which needs no lease.
    pub(crate) async fn all_about(&self, shard: u16) -> String {
        let mut text = String::new();
        for client in self.all().await {
            for table in ["shard", "incoming", "move", "ledger"] {
                let sql = format!(
                    "SELECT (to_jsonb(t) - '{{lease_until,audit,audited_at,audit_found}}'::text[])\
                        ::text FROM pgshard.{table} t WHERE shard_id = {shard} ORDER BY 1"
                );
                text += &lines(&client, &sql).await;
            }
            let sql = format!(
                "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE 'shard\\_{shard:04}%' \
                    ORDER BY 1"
            );
            text += &lines(&client, &sql).await;
        }
        text
    }

    /// The file of a config that differs from this world's, next to it.
    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        self.servers.write(name, text)
    }
}

/// The rows of a query that returns one text each.
pub(crate) async fn lines(client: &Client, sql: &str) -> String {
    let rows = client.query(sql, &[]).await.unwrap();
    rows.iter()
        .map(|row| row.get::<_, String>(0) + "\n")
        .collect()
}

/// Waits until a query returns true.
pub(crate) async fn until(client: &Client, sql: &str) {
    for _ in 0..3000 {
        if client
            .query_one(sql, &[])
            .await
            .unwrap()
            .get::<_, Option<bool>>(0)
            == Some(true)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("never true: {sql}");
}

/// The result of one run of the command.
pub(crate) struct Ran {
    status: ExitStatus,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Waits for a command; none may take longer than two minutes.
    pub(crate) async fn of(child: Child) -> Ran {
        let ended = tokio::time::timeout(Duration::from_secs(120), child.wait_with_output()).await;
        let output = ended.expect("a command ends").unwrap();
        let text = |bytes| String::from_utf8(bytes).expect("the command writes UTF-8");
        Ran {
            status: output.status,
            stdout: text(output.stdout),
            stderr: super::readable(&text(output.stderr)),
        }
    }

    /// For a command that did not end.
    pub(crate) fn none() -> Ran {
        Ran {
            status: ExitStatus::from_raw(0x7f00),
            stdout: String::new(),
            stderr: String::new(),
        }
    }

    /// The exit code; a signal's is negative.
    pub(crate) fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| {
            -self
                .status
                .signal()
                .expect("a command ends by a code or a signal")
        })
    }

    /// Checks that the code is this one.
    #[track_caller]
    pub(crate) fn ended(&self, code: i32) -> &Ran {
        assert_eq!(self.code(), code, "\n{}\n{}", self.stdout, self.stderr);
        self
    }

    /// What `--json` printed.
    pub(crate) fn json(&self) -> Vec<Value> {
        self.stdout
            .lines()
            .map(|line| serde_json::from_str(line).expect("each line is JSON"))
            .collect()
    }

    /// The last line.
    #[track_caller]
    pub(crate) fn last(&self) -> Value {
        self.json()
            .pop()
            .unwrap_or_else(|| panic!("a line of JSON\n{}", self.stderr))
    }

    /// The move that the command began.
    #[track_caller]
    pub(crate) fn id(&self) -> String {
        let lines = self.json();
        let started = lines.iter().find(|line| line["event"] == "started");
        started
            .and_then(|line| line["move"].as_str())
            .unwrap_or_else(|| panic!("{}", self.stdout))
            .to_owned()
    }
}

/// Waits until a process has stopped itself by SIGSTOP.
pub(crate) async fn stopped(child: &Child) -> rustix::process::Pid {
    stopped_if(child)
        .await
        .expect("the process stops instead of ending")
}

/// The same; `None` if it has ended instead.
pub(crate) async fn stopped_if(child: &Child) -> Option<rustix::process::Pid> {
    let pid = child.id().expect("the process was not waited for");
    let begun = Instant::now();
    loop {
        let stat =
            std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process is there");
        // The state comes after the name, which is in parentheses and may contain anything.
        if stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('T'))
        {
            return Some(
                rustix::process::Pid::from_raw(pid as i32).expect("a process's number is positive"),
            );
        }
        if stat.contains(") Z") {
            return None;
        }
        assert!(
            begun.elapsed() < Duration::from_secs(60),
            "the process stops itself"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits for a command that stops itself at a failpoint each time it passes it, and lets it
/// continue each time.
pub(crate) async fn never_stopped(child: Child) -> Ran {
    let _going = kept_going(&child);
    Ran::of(child).await
}

/// Lets a command that stops itself at a failpoint continue each time, until the result is dropped.
pub(crate) fn kept_going(child: &Child) -> JoinSet<()> {
    let pid = child.id().expect("the process was not waited for");
    let mut going = JoinSet::new();
    going.spawn(async move {
        let pid =
            rustix::process::Pid::from_raw(pid as i32).expect("a process's number is positive");
        loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            // Only a process that is gone accepts no signal; for one that runs this signal means
            // nothing.
            if rustix::process::kill_process(pid, rustix::process::Signal::CONT).is_err() {
                break;
            }
        }
    });
    going
}

/// Lets a stopped process continue.
pub(crate) fn go_on(pid: rustix::process::Pid) {
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("the process is ours");
}
