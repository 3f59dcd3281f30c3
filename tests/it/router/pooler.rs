//! A PgBouncer in transaction mode in front of a host: each transaction may get another session of
//! the server.

use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use pgshard::pg::ConnectOptions;

use crate::support::{TestCluster, World, connect};

/// A PgBouncer in front of one host. If it died, the test that uses it fails, but for one cause:
/// see [`Watched`].
pub(crate) struct Pooler {
    port: u16,
    watched: Arc<Watched>,
    watcher: Option<JoinHandle<()>>,
    log: PathBuf,
    ini: PathBuf,
    lines: String,
}

/// The process, which is started again as a service manager would, when it has died of a fault that
/// it had before 1.21 (its issues 822 and 904): a word of the server, that the session was
/// terminated for example, while a request to cancel is on its way to it, ends the whole pooler. No
/// client can prevent that; all see a broken connection.
struct Watched {
    command: Mutex<Command>,
    child: Mutex<Child>,
    /// There is nothing to watch any more.
    over: AtomicBool,
}

/// What it writes then.
const ISSUE_822: &str = "server_proto: server in bad state: 11";

impl Watched {
    /// Until it is over, or the process has died of something else.
    fn watch(&self, log: &Path) {
        let mut deaths = 0;
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(20));
            if self.child.lock().unwrap().try_wait().unwrap().is_none() {
                continue;
            }
            let text = std::fs::read_to_string(log).unwrap_or_default();
            let fault = text
                .lines()
                .filter(|line| line.contains("FATAL") && line.contains(ISSUE_822))
                .count();
            if fault <= deaths {
                break;
            }
            deaths = fault;
            *self.child.lock().unwrap() = self.command.lock().unwrap().spawn().unwrap();
            eprintln!("PgBouncer died of its issue 822, and was started again");
        }
    }
}

impl Pooler {
    pub(crate) async fn start(servers: &TestCluster, host: usize) -> Pooler {
        Pooler::with(servers, host, "default_pool_size = 3").await
    }

    /// With more lines in its section `[pgbouncer]`.
    pub(crate) async fn with(servers: &TestCluster, host: usize, lines: &str) -> Pooler {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let server = servers.server(host);
        let log = std::env::temp_dir().join(format!("pgshard-pgbouncer-{port}.log"));
        let mut command = Command::new(program());
        command
            .arg("-q")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // It does not run as root either.
        let owner = std::fs::metadata(server.data_directory()).unwrap();
        if std::fs::metadata(servers.directory()).unwrap().uid() != owner.uid() {
            command.uid(owner.uid()).gid(owner.gid());
        }
        // Not in the servers' folder, which not every user can read.
        let ini = std::env::temp_dir().join(format!("pgshard-pgbouncer-{port}.ini"));
        std::fs::write(&ini, settings(port, &log, server.port(), lines)).unwrap();
        let child = command.arg(&ini).spawn().unwrap();
        let watched = Arc::new(Watched {
            command: Mutex::new(command),
            child: Mutex::new(child),
            over: AtomicBool::new(false),
        });
        let (watching, its_log) = (watched.clone(), log.clone());
        let watcher = Some(std::thread::spawn(move || watching.watch(&its_log)));
        let pooler = Pooler {
            port,
            watched,
            watcher,
            log,
            ini,
            lines: lines.to_owned(),
        };
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

    /// One through which routers reach a host, which is in the config from now on, with the
    /// settings that docs/pgbouncer.md requires.
    pub(crate) async fn on_the_way(world: &World, host: usize) -> Pooler {
        let lines = "default_pool_size = 20\nserver_login_retry = 1\nserver_connect_timeout = 3";
        let pooler = Pooler::with(&world.servers, host, lines).await;
        let config = std::fs::read_to_string(&world.config.path).unwrap();
        let section = format!("[hosts.db{}]\n", host + 1);
        assert!(config.contains(&section), "{config}");
        let url = format!(
            "postgres://app@127.0.0.1:{}/app?sslmode=disable",
            pooler.port
        );
        let more = format!("{section}router_url = \"{url}\"\nprepare = \"unnamed\"\n");
        world.write("pgshard.toml", &config.replace(&section, &more));
        pooler
    }

    /// Writes into its file that it leads to another server.
    pub(crate) fn name(&self, server: u16) {
        std::fs::write(
            &self.ini,
            settings(self.port, &self.log, server, &self.lines),
        )
        .unwrap();
    }

    /// From now on it leads to another server, and no client keeps a session with the former one:
    /// what an operator does after a fail-over.
    pub(crate) async fn lead_to(&self, server: u16) {
        self.name(server);
        let console = connect(&format!(
            "host=127.0.0.1 port={} user=app dbname=pgbouncer",
            self.port
        ))
        .await;
        for command in ["RELOAD", "KILL app", "RESUME app"] {
            console
                .simple_query(command)
                .await
                .unwrap_or_else(|error| panic!("{command}: {error}"));
        }
    }

    /// Where it takes connections.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn connect(&self) -> ConnectOptions {
        ConnectOptions::parse(&format!(
            "host=127.0.0.1 port={} user=app dbname=app sslmode=disable",
            self.port
        ))
        .unwrap()
    }
}

fn settings(port: u16, log: &Path, server: u16, lines: &str) -> String {
    format!(
        "[databases]\napp = host=127.0.0.1 port={server} dbname=app user=app\n
         [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type \
         = any\n
         admin_users = app\npool_mode = transaction\nmax_client_conn = 500\nlogfile = \
         {}\n{lines}\n",
        log.display()
    )
}

/// How many statements are prepared in the session, without those that PgBouncer itself prepares
/// from 1.21 on, where it keeps its clients' statements apart.
pub(crate) const PREPARED: &str =
    "SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'PGBOUNCER\\_%'";

/// `PGSHARD_TEST_PGBOUNCER`, or the distribution's.
fn program() -> String {
    let given = std::env::var("PGSHARD_TEST_PGBOUNCER").ok();
    let places = ["/usr/sbin/pgbouncer", "/usr/bin/pgbouncer", "pgbouncer"].map(str::to_owned);
    let program = given.into_iter().chain(places).find(|program| {
        Command::new(program)
            .arg("--version")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .is_ok()
    });
    program.expect(
        "PgBouncer is missing: script/setup installs it (Debian: apt-get install pgbouncer)",
    )
}

impl Drop for Pooler {
    fn drop(&mut self) {
        self.watched.over.store(true, Ordering::Relaxed);
        let broken = self
            .watcher
            .take()
            .is_some_and(|watcher| watcher.join().is_err());
        let mut child = self
            .watched
            .child
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let died = child.try_wait();
        let _ = child.kill();
        let _ = child.wait();
        let log = std::fs::read_to_string(&self.log).unwrap_or_default();
        let _ = std::fs::remove_file(&self.log);
        let _ = std::fs::remove_file(&self.ini);
        let last: Vec<&str> = log.lines().rev().take(20).collect();
        assert!(
            !broken || std::thread::panicking(),
            "nobody watched PgBouncer: {last:#?}"
        );
        match died {
            Ok(Some(status)) if !std::thread::panicking() => {
                panic!("PgBouncer died ({status}): {last:#?}")
            }
            Ok(Some(status)) => eprintln!("PgBouncer died ({status}): {last:#?}"),
            _ => {}
        }
    }
}
