//! A PgBouncer in transaction mode in front of a host: each transaction may get another session of the server.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use pgshard::pg::ConnectOptions;

use crate::support::{TestCluster, World, connect};

/// A PgBouncer in front of one host. If it died, the test that uses it fails.
pub(crate) struct Pooler {
    port: u16,
    child: Child,
    log: PathBuf,
    ini: PathBuf,
    lines: String,
}

impl Pooler {
    pub(crate) async fn start(servers: &TestCluster, host: usize) -> Pooler {
        Pooler::with(servers, host, "default_pool_size = 3").await
    }

    /// With more lines in its section `[pgbouncer]`.
    pub(crate) async fn with(servers: &TestCluster, host: usize, lines: &str) -> Pooler {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = servers.server(host);
        let log = std::env::temp_dir().join(format!("pgshard-pgbouncer-{port}.log"));
        let mut command = Command::new(program());
        command.arg("-q").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // It does not run as root either.
        let owner = std::fs::metadata(server.data_directory()).unwrap();
        if std::fs::metadata(servers.directory()).unwrap().uid() != owner.uid() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        // Not in the servers' folder, which not everybody can read.
        let ini = std::env::temp_dir().join(format!("pgshard-pgbouncer-{port}.ini"));
        std::fs::write(&ini, settings(port, &log, server.port(), lines)).unwrap();
        let child = command.arg(&ini).spawn().unwrap();
        let pooler = Pooler { port, child, log, ini, lines: lines.to_owned() };
        let connect = pooler.connect();
        for tries in 0.. {
            match connect.connect("is it up").await {
                Ok(_) => break,
                Err(error) => assert!(tries < 200, "PgBouncer does not come up: {error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
        pooler
    }

    /// One through which routers go to a host, as its config says from now on, with the settings that docs/operating.md
    /// asks for.
    pub(crate) async fn on_the_way(world: &World, host: usize) -> Pooler {
        let lines = "default_pool_size = 20\nserver_login_retry = 1\nserver_connect_timeout = 3";
        let pooler = Pooler::with(&world.servers, host, lines).await;
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let section = format!("[hosts.db{}]\n", host + 1);
        assert!(config.contains(&section), "{config}");
        let url = format!("postgres://app@127.0.0.1:{}/app?sslmode=disable", pooler.port);
        let more = format!("{section}router_url = \"{url}\"\nprepare = \"unnamed\"\n");
        world.write("pgshard.toml", &config.replace(&section, &more));
        pooler
    }

    /// Writes into its file that it leads to another server.
    pub(crate) fn name(&self, server: u16) {
        std::fs::write(&self.ini, settings(self.port, &self.log, server, &self.lines)).unwrap();
    }

    /// From now on it leads to another server, and nobody keeps a session with the former one: what an operator does
    /// after a fail-over.
    pub(crate) async fn lead_to(&self, server: u16) {
        self.name(server);
        let console = connect(&format!("host=127.0.0.1 port={} user=app dbname=pgbouncer", self.port)).await;
        for command in ["RELOAD", "KILL app", "RESUME app"] {
            console.simple_query(command).await.unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }

    /// Where it takes connections.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn connect(&self) -> ConnectOptions {
        ConnectOptions::parse(&format!("host=127.0.0.1 port={} user=app dbname=app sslmode=disable", self.port))
            .unwrap()
    }
}

fn settings(port: u16, log: &Path, server: u16, lines: &str) -> String {
    format!(
        "[databases]\napp = host=127.0.0.1 port={server} dbname=app user=app\n
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n
         admin_users = app\npool_mode = transaction\nmax_client_conn = 500\nlogfile = {}\n{lines}\n",
        log.display()
    )
}

/// How many statements are prepared in the session, without those that PgBouncer itself prepares from 1.21 on, where it
/// keeps its clients' statements apart.
pub(crate) const PREPARED: &str = "SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'PGBOUNCER\\_%'";

/// `PGSHARD_TEST_PGBOUNCER`, or the distribution's.
fn program() -> String {
    let given = std::env::var("PGSHARD_TEST_PGBOUNCER").ok();
    let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "pgbouncer"].map(str::to_owned);
    let program = given.into_iter().chain(places).find(|program| {
        Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
    });
    program.expect("PgBouncer is missing: script/setup installs it (Debian: apt-get install pgbouncer)")
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let died = self.child.try_wait();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_file(&self.ini);
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        match died {
            Ok(Some(status)) if !std::thread::panicking() => panic!("PgBouncer died ({status}): {last:#?}"),
            Ok(Some(status)) => eprintln!("PgBouncer died ({status}): {last:#?}"),
            _ => {}
        }
    }
}
