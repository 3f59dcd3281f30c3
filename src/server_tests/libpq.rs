//! Connection strings and environments, through libpq and through us.
//!
//! Seeds make environments (variables, and files in a home) and strings for each. `psql`, with
//! libpq 18, and a child process of this test connect with them to servers that require passwords
//! in every way. Where we connect, libpq connects too: to the same server and database, as the same
//! role, with no more TLS than we have. So we trust nothing further than libpq does. Where only
//! libpq connects, [`STRICTER`] has the reason.
//!
//! `PGSHARD_TEST_STRINGS=400` sets how many environments are tried; `PGSHARD_TEST_SEED=7` plays
//! one.

mod generator;

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use self::generator::{DATABASES, Environment, Places, ROLES};
use super::tls_world::{World, superuser};
use crate::dev::{Binaries, Cluster, ClusterOptions};
use crate::pg::ConnectOptions;

/// What a connection reports of itself.
const WHO: &str = "SELECT concat_ws('|', current_user, current_database(), \
    current_setting('port'), \
    (SELECT ssl FROM pg_catalog.pg_stat_ssl WHERE pid = pg_backend_pid()), \
    current_setting('statement_timeout'), \
    inet_server_addr() IS NULL)";

/// Before each outcome that the child prints.
const MARK: &str = "outcome ";

/// Where we connect and libpq does not: words of its error, and why that is right.
const LOOSER: &[(&str, &str)] = &[
    (
        "setsockopt(TCP_KEEP",
        "0 stands for what the system has, as libpq's documentation says; libpq tells the kernel \
            0, which refuses it",
    ),
    (
        "channel binding required, but SSL not in use",
        "allow is prefer here: TLS comes first, and the channel is bound",
    ),
];

/// What libpq takes and we refuse: words of our error, and why. Any other refusal has to be added
/// here, or mended.
const STRICTER: &[(&str, &str)] = &[
    (
        "the host is missing",
        "a config names its servers: no default, and no list with a gap in it",
    ),
    (
        "the user is missing",
        "a config names the role: the system's user is not asked for",
    ),
    (
        "the dbname is missing",
        "a config names the database: it is not the role's name",
    ),
    (
        "the service",
        "a file of services that is named must be there",
    ),
    (
        "there is no service",
        "libpq looks into a folder that is fixed when it is built, too",
    ),
    (
        "cannot read sslrootcert",
        "a file that is named must be there, whatever the mode",
    ),
    ("cannot read sslcert", "as for sslrootcert"),
    ("cannot read sslkey", "as for sslrootcert"),
    (
        "sslcert and sslkey go together",
        "libpq shows no certificate then, and does not say so",
    ),
    (
        "the revoked certificates of",
        "libpq ignores a file that it cannot read",
    ),
    (
        "invalid peer certificate",
        "with sslmode=prefer and allow libpq goes on without TLS",
    ),
    (
        "can be read by others",
        "libpq warns, and goes on without the file",
    ),
    (
        "cannot read the password file",
        "a file that is named must be there",
    ),
    (
        "a key that pgshard does not know",
        "what it asks for may matter",
    ),
    (
        "asks for something that pgshard does not have",
        "libpq heeds it only on some connections",
    ),
    (
        "has a wrong value",
        "libpq looks at some values only when it needs them",
    ),
    (
        "target_session_attrs",
        "prefer-standby: a host is a primary, or it is not",
    ),
    (
        "pg_hba.conf",
        "with sslmode=prefer and allow libpq tries again, without TLS or with it",
    ),
];

fn quoted(name: &str) -> String {
    crate::pg::quote_ident(name)
}

/// Makes roles, databases and rules on a server.
async fn prepare(server: &crate::dev::Server) {
    let superuser = superuser(server).await;
    let mut rules = "local all postgres trust\nhost all postgres 127.0.0.1/32 trust\n".to_owned();
    for (role, password, method) in ROLES {
        let stored = if method == "md5" {
            "md5"
        } else {
            "scram-sha-256"
        };
        let literal = crate::pg::quote_literal(password);
        let (create, name) = (if role == "app" { "ALTER" } else { "CREATE" }, quoted(role));
        let sql = format!(
            "SET password_encryption = '{stored}'; {create} ROLE {name} LOGIN PASSWORD {literal}"
        );
        superuser.batch_execute(&sql).await.unwrap();
        for kind in ["local all", "host all"] {
            let address = if kind == "host all" {
                "127.0.0.1/32 "
            } else {
                ""
            };
            rules += &format!("{kind} \"{role}\" {address}{method}\n");
        }
    }
    for role in ["only encrypted", "only plain"] {
        superuser
            .batch_execute(&format!("CREATE ROLE {} LOGIN", quoted(role)))
            .await
            .unwrap();
    }
    rules += "hostssl all \"only encrypted\" 127.0.0.1/32 trust\nhostnossl all \"only plain\" \
        127.0.0.1/32 trust\n";
    for database in DATABASES.iter().filter(|database| **database != "app") {
        let sql = format!(
            "CREATE DATABASE {} TEMPLATE template0 STRATEGY file_copy",
            quoted(database)
        );
        superuser.batch_execute(&sql).await.unwrap();
    }
    std::fs::write(server.data_directory().join("pg_hba.conf"), rules).unwrap();
    superuser
        .batch_execute("SELECT pg_catalog.pg_reload_conf()")
        .await
        .unwrap();
    let unheard = format!(
        "host=127.0.0.1 port={} user=scram dbname=app password=x",
        server.port()
    );
    while ConnectOptions::parse(&unheard)
        .unwrap()
        .connect("test")
        .await
        .is_ok()
    {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

impl Environment {
    /// What libpq makes of a string: the connection's own report, or an error.
    fn by_libpq(&self, text: &str, places: &Places) -> Result<String, String> {
        let mut psql = Command::new(&places.psql);
        psql.env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        psql.env("LD_LIBRARY_PATH", &places.libpq)
            .args(["-X", "-A", "-t", "-w", "-c", WHO, "-d", text]);
        let output = psql.stdin(Stdio::null()).output().unwrap();
        let words = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
        match output.status.success() {
            true => Ok(words(&output.stdout)),
            false => Err(words(&output.stderr)),
        }
    }

    /// What we make of the strings.
    fn by_us(&self) -> Vec<Result<String, String>> {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child.args([
            "--exact",
            "server_tests::libpq::connects_as_the_environment_says",
            "--nocapture",
            "--test-threads=1",
        ]);
        child
            .env_clear()
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        child
            .env("PGSHARD_TEST_CHILD", "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        let strings = serde_json::to_string(&self.strings).unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(strings.as_bytes())
            .unwrap();
        let output = child.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let lines = text
            .lines()
            .filter_map(|line| line.split_once(MARK).map(|(_, outcome)| outcome));
        let outcomes: Vec<_> = lines
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!(outcomes.len(), self.strings.len(), "{text}\n{words}");
        outcomes
    }

    /// Compares both. What is wrong, and how often both have connected.
    fn compare(&self, seed: u64, places: &Places) -> (Vec<String>, usize) {
        let (mut wrong, mut both) = (Vec::new(), 0);
        for (text, ours) in self.strings.iter().zip(self.by_us()) {
            let theirs = self.by_libpq(text, places);
            let judged = match (&ours, &theirs) {
                (Ok(ours), Ok(theirs)) if is_as_safe(ours, theirs) => {
                    both += 1;
                    continue;
                }
                (Err(_), Err(_)) => continue,
                (Ok(_), Ok(_)) => "to another server, or in another way",
                (Ok(_), Err(error)) if LOOSER.iter().any(|(words, _)| error.contains(words)) => {
                    continue;
                }
                (Ok(_), Err(_)) => "libpq does not connect",
                (Err(error), Ok(_)) if STRICTER.iter().any(|(words, _)| error.contains(words)) => {
                    continue;
                }
                (Err(_), Ok(_)) => "a refusal without a reason in STRICTER",
            };
            wrong.push(format!(
                "{judged}, PGSHARD_TEST_SEED={seed}\n  {text:?}\n  {:?}\n  we: {ours:?}\n  libpq: \
                    {theirs:?}",
                self.variables
            ));
        }
        (wrong, both)
    }
}

/// Whether both are the same, but for TLS that we have and libpq has not: `allow` is `prefer` here.
fn is_as_safe(ours: &str, theirs: &str) -> bool {
    let parts = |who: &str| who.split('|').map(str::to_owned).collect::<Vec<_>>();
    let (ours, mut theirs) = (parts(ours), parts(theirs));
    if ours.get(3).is_some_and(|ssl| ssl == "t") {
        theirs[3] = "t".to_owned();
    }
    ours == theirs
}

/// Connects with each string of its input, as the child of [`strings`]. By itself it tries one that
/// leads nowhere.
#[tokio::test]
async fn connects_as_the_environment_says() {
    let strings: Vec<String> = match std::env::var_os("PGSHARD_TEST_CHILD") {
        Some(_) => serde_json::from_reader(std::io::stdin()).unwrap(),
        None => vec!["host=127.0.0.1 port=1 user=app dbname=app".to_owned()],
    };
    for text in &strings {
        let outcome = match ConnectOptions::parse(text) {
            Err(error) => Err(error.to_string()),
            Ok(options) => match options.connect("a test").await {
                Err(error) => Err(words(&error)),
                Ok(connection) => Ok(connection
                    .query_one(WHO, &[])
                    .await
                    .unwrap()
                    .get::<_, String>(0)),
            },
        };
        writeln!(
            std::io::stdout(),
            "\n{MARK}{}",
            serde_json::to_string(&outcome).unwrap()
        )
        .unwrap();
        assert!(strings.len() > 1 || outcome.is_err_and(|error| error.contains("refused")));
    }
}

fn words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |error| error.source());
    causes.fold(error.to_string(), |words, cause| {
        format!("{words}: {cause}")
    })
}

async fn places() -> (World, Cluster, Places) {
    let world = World::start(15).await;
    let plain = ClusterOptions::new(
        1,
        Binaries::of_major(15).unwrap_or_else(|error| panic!("{error}")),
    );
    let plain = Cluster::start(&plain).unwrap_or_else(|error| panic!("{error}"));
    prepare(world.server()).await;
    prepare(&plain.servers()[0]).await;
    let sockets = superuser(world.server())
        .await
        .query_one("SHOW unix_socket_directories", &[])
        .await
        .unwrap();
    let libpq = Path::new(env!("CARGO_MANIFEST_DIR")).join("target/libpq");
    assert!(
        libpq.join("libpq.so.5").exists(),
        "there is no libpq 18: script/setup installs it"
    );
    let home = world.cluster.directory().join("homes");
    std::fs::create_dir(&home).unwrap();
    let places = Places {
        encrypted: world.server().port(),
        plain: plain.servers()[0].port(),
        sockets: sockets.get(0),
        authority: world.authority.clone(),
        stranger: world.stranger.clone(),
        revoked: world.revoked_itself(),
        not_revoked: world.revoked("none.crl", &[5]),
        home,
        libpq,
        psql: Binaries::of_major(15).unwrap().program("psql"),
    };
    (world, plain, places)
}

/// Strings and environments of many seeds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strings_mean_what_libpq_makes_of_them() {
    let (_world, _plain, places) = places().await;
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    let seeds: Vec<u64> = match number("PGSHARD_TEST_SEED") {
        Some(seed) => vec![seed],
        None => (0..number("PGSHARD_TEST_STRINGS").unwrap_or(14)).collect(),
    };
    let (next, both) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || {
        let mut wrong = Vec::new();
        while let Some(seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed)) {
            let (found, connected) = places.environment(*seed).compare(*seed, &places);
            both.fetch_add(connected, Ordering::Relaxed);
            wrong.extend(found);
        }
        wrong
    };
    let wrong: Vec<String> = tokio::task::block_in_place(|| {
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..4).map(|_| scope.spawn(work)).collect();
            workers
                .into_iter()
                .flat_map(|worker| worker.join().unwrap())
                .collect()
        })
    });
    assert!(
        wrong.is_empty(),
        "{} differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
    let both = both.into_inner();
    // An environment that is wrong keeps all of its strings from connecting. Of ten environments
    // about eight strings do.
    assert!(
        seeds.len() == 1 || both > seeds.len() / 2,
        "only {both} connected: the generator is no use"
    );
}

/// `~/.postgresql/root.crt` is trusted, and what is not signed by it is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_a_home() {
    let (_world, _plain, places) = places().await;
    let home = places.home.join("mine");
    std::fs::create_dir_all(home.join(".postgresql")).unwrap();
    let text = |mode: &str| {
        format!(
            "host=localhost port={} user=app dbname=app sslmode={mode}",
            places.encrypted
        )
    };
    let strings = ["prefer", "require", "verify-ca", "verify-full"]
        .map(text)
        .to_vec();
    let variables = vec![("HOME", home.display().to_string())];
    let environment = Environment { variables, strings };
    let passes = || {
        environment
            .by_us()
            .iter()
            .map(Result::is_ok)
            .collect::<Vec<_>>()
    };
    assert_eq!(passes(), [true, true, false, false], "nothing to trust");
    let root = home.join(".postgresql/root.crt");
    std::fs::copy(&places.authority, &root).unwrap();
    assert_eq!(passes(), [true; 4], "signed by it");
    let list = home.join(".postgresql/root.crl");
    std::fs::copy(&places.revoked, &list).unwrap();
    assert_eq!(passes(), [false; 4], "revoked");
    std::fs::copy(&places.not_revoked, &list).unwrap();
    assert_eq!(passes(), [true; 4], "another one is revoked");
    std::fs::copy(&places.stranger, &root).unwrap();
    std::fs::remove_file(&list).unwrap();
    assert_eq!(passes(), [false; 4], "signed by somebody else");
    for text in &environment.strings[1..] {
        assert!(environment.by_libpq(text, &places).is_err(), "{text}");
    }
}

/// No variable determines which server is meant: a config means the same one in every process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_of_the_environment_is_not_asked_for() {
    let (_world, _plain, places) = places().await;
    let strings = vec![
        format!(
            "host=127.0.0.1 port={} user=app dbname=app sslmode=disable",
            places.plain
        ),
        "host=127.0.0.1 dbname=app user=app connect_timeout=1".to_owned(),
        "port=1 dbname=app user=app".to_owned(),
        format!("host=127.0.0.1 port={} dbname=app", places.plain),
        format!("host=127.0.0.1 port={} user=app", places.plain),
    ];
    let variables = vec![
        ("PGHOST", "127.0.0.1".to_owned()),
        ("PGHOSTADDR", "127.0.0.2".to_owned()),
        ("PGPORT", places.encrypted.to_string()),
        ("PGUSER", "app".to_owned()),
        ("PGDATABASE", "app".to_owned()),
        ("PGOPTIONS", "-c statement_timeout=9s".to_owned()),
        ("PGTARGETSESSIONATTRS", "standby".to_owned()),
    ];
    let outcomes = Environment { variables, strings }.by_us();
    assert_eq!(outcomes[0], Ok(format!("app|app|{}|f|0|f", places.plain)));
    // Port 5432, whatever is there.
    assert!(
        !outcomes[1]
            .as_ref()
            .is_ok_and(|who| who.contains(&places.encrypted.to_string())),
        "{outcomes:?}"
    );
    for (outcome, missing) in outcomes[2..].iter().zip(["host", "user", "dbname"]) {
        assert_eq!(*outcome, Err(format!("the {missing} is missing")));
    }
}
