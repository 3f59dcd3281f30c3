//! Connections over TLS, against a server with a certificate of its own.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tokio_postgres::Client;

use crate::dev::{Binaries, Cluster, ClusterOptions, Server};
use crate::pg::{ConnectError, ConnectOptions, ReplicationError};

/// A server that accepts TLS connections under the name `localhost` and at the address 127.0.0.1, with its authority's
/// certificate and another authority's.
struct World {
    cluster: Cluster,
    authority: PathBuf,
    stranger: PathBuf,
    /// The authorities that sign the certificates.
    issuers: [Issuer<'static, KeyPair>; 2],
    /// The original `pg_hba.conf`.
    rules: String,
}

impl World {
    async fn start(version: u32) -> World {
        let binaries = Binaries::of_major(version).unwrap_or_else(|error| panic!("{error}"));
        let cluster = Cluster::start(&ClusterOptions::new(1, binaries)).unwrap_or_else(|error| panic!("{error}"));
        let (authority, stranger) = (ca("pgshard test"), ca("somebody else"));
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, &authority.1).unwrap();
        let data = cluster.servers()[0].data_directory();
        give(&data, "server.crt", &certificate.pem());
        give(&data, "server.key", &key.serialize_pem());
        let superuser = superuser(&cluster.servers()[0]).await;
        superuser.execute("ALTER SYSTEM SET ssl = on", &[]).await.unwrap();
        superuser.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
        let world = World {
            authority: write(&cluster, "authority.pem", &authority.0),
            stranger: write(&cluster, "stranger.pem", &stranger.0),
            issuers: [authority.1, stranger.1],
            rules: std::fs::read_to_string(data.join("pg_hba.conf")).unwrap(),
            cluster,
        };
        // The reload takes effect a moment later, with the next connection that finds TLS on.
        for _ in 0..200 {
            if world.connect("localhost", "sslmode=require").await.is_ok() {
                return world;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("the server does not take TLS connections");
    }

    fn server(&self) -> &Server {
        &self.cluster.servers()[0]
    }

    /// Connects under this name, and says whether the connection is encrypted.
    async fn connect(&self, name: &str, tls: &str) -> Result<bool, ConnectError> {
        let port = self.server().port();
        let text = format!("host={name} hostaddr=127.0.0.1 port={port} user=app dbname=app {tls}");
        let connection = ConnectOptions::parse(&text).unwrap().connect("tls test").await?;
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok(connection.query_one(sql, &[]).await.unwrap().get(0))
    }

    /// Puts rules before all others, and returns once they are in effect, that is, once these keys are refused.
    async fn rule(&self, rules: &str, refused: &str) {
        let file = self.server().data_directory().join("pg_hba.conf");
        std::fs::write(&file, format!("{rules}\n{}", self.rules)).unwrap();
        superuser(self.server()).await.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
        for _ in 0..200 {
            if self.connect("localhost", refused).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("the rule does not hold: {rules}");
    }

    /// A certificate for a role, and its key, signed by one of the two; as parameters of a connection string.
    fn client(&self, role: &str, issuer: usize) -> String {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name.push(rcgen::DnType::CommonName, role);
        let certificate = params.signed_by(&key, &self.issuers[issuer]).unwrap();
        let write = |kind: &str, text: String| write(&self.cluster, &format!("{role}{issuer}.{kind}"), &text);
        let (certificate, key) = (write("crt", certificate.pem()), write("key", key.serialize_pem()));
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        format!("sslcert={} sslkey={}", certificate.display(), key.display())
    }
}

async fn superuser(server: &Server) -> Client {
    let (client, connection) = tokio_postgres::connect(&server.superuser_url(), tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Writes a file beside the server's data.
fn write(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.directory().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// The first value that a statement gives on a replication connection.
async fn replicated(options: &ConnectOptions, sql: &str) -> Result<Option<String>, ReplicationError> {
    options.replicate("a test").await?.value(sql).await
}

/// The server's SQLSTATE, or what the driver says.
fn refusal<T: std::fmt::Debug>(outcome: Result<T, ConnectError>) -> String {
    let ConnectError::Refused { source, .. } = outcome.unwrap_err() else { panic!("the server was not asked") };
    match source.code() {
        Some(code) => code.code().to_owned(),
        None => std::error::Error::source(&source).map(ToString::to_string).unwrap_or_default(),
    }
}

fn ca(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), Issuer::new(params, key))
}

/// Writes a file that the server's user owns and nobody else reads.
fn give(data: &Path, name: &str, text: &str) {
    let path = data.join(name);
    std::fs::write(&path, text).unwrap();
    let owner = std::fs::metadata(data).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}

/// Each mode checks what libpq's documentation says it checks, and no less. Only on 15: the 18 that is tested is built
/// without TLS, and the client's side is the same for every server.
#[tokio::test]
async fn modes() {
    let world = World::start(15).await;
    let root = |path: &Path| format!("sslrootcert={}", path.display());
    let (ours, theirs) = (root(&world.authority), root(&world.stranger));
    // The name, the parameters, and the outcome: encrypted, not encrypted, or refused.
    let cases: [(&str, String, Option<bool>); 16] = [
        ("localhost", "sslmode=disable".to_owned(), Some(false)),
        ("localhost", String::new(), Some(true)),
        ("localhost", "sslmode=prefer".to_owned(), Some(true)),
        ("localhost", "sslmode=require".to_owned(), Some(true)),
        ("localhost", format!("sslmode=require {ours}"), Some(true)),
        ("localhost", format!("sslmode=require {theirs}"), None),
        ("localhost", format!("sslmode=verify-ca {ours}"), Some(true)),
        ("db.example", format!("sslmode=verify-ca {ours}"), Some(true)),
        ("localhost", format!("sslmode=verify-ca {theirs}"), None),
        ("localhost", format!("sslmode=verify-full {ours}"), Some(true)),
        ("db.example", format!("sslmode=verify-full {ours}"), None),
        ("localhost", format!("sslmode=verify-full {theirs}"), None),
        ("127.0.0.1", format!("sslmode=verify-full {ours}"), Some(true)),
        ("127.0.0.2", format!("sslmode=verify-full {ours}"), None),
        ("127.0.0.2", format!("sslmode=verify-ca {ours}"), Some(true)),
        ("127.0.0.1", format!("sslmode=verify-full {theirs}"), None),
    ];
    for (name, tls, expected) in cases {
        let outcome = world.connect(name, &tls).await;
        match (outcome, expected) {
            (Ok(encrypted), Some(expected)) => assert_eq!(encrypted, expected, "{name} {tls}"),
            (Err(ConnectError::Refused { source, .. }), None) => {
                let words = std::error::Error::source(&source).map(ToString::to_string).unwrap_or_default();
                assert!(words.contains("certificate"), "{name} {tls}: {words}");
            }
            (outcome, _) => panic!("{name} {tls}: {:?}", outcome),
        }
    }
    let missing = world.connect("localhost", "sslmode=verify-full sslrootcert=/nowhere.pem").await;
    assert!(matches!(missing, Err(ConnectError::Tls { .. })), "{missing:?}");
}

/// The server lets in whoever shows a certificate from its authority, issued to the role.
#[tokio::test]
async fn client_certificates() {
    let world = World::start(15).await;
    let authority = std::fs::read_to_string(&world.authority).unwrap();
    give(&world.server().data_directory(), "root.crt", &authority);
    let superuser = superuser(world.server()).await;
    superuser.execute("ALTER SYSTEM SET ssl_ca_file = 'root.crt'", &[]).await.unwrap();
    world.rule("hostssl all app 127.0.0.1/32 cert", "sslmode=require").await;
    let full = format!("sslmode=verify-full sslrootcert={}", world.authority.display());
    let app = world.client("app", 0);
    assert!(world.connect("localhost", &format!("{full} {app}")).await.unwrap());
    assert!(world.connect("localhost", &app).await.unwrap(), "sslmode=prefer shows it too");
    let refused = async |keys: &str| refusal(world.connect("localhost", &format!("{full} {keys}")).await);
    assert_eq!(refused("").await, "28000");
    assert_eq!(refused(&world.client("somebody", 0)).await, "28000");
    // The server receives the stranger's certificate during the handshake, and ends it.
    refused(&world.client("app", 1)).await;

    let (certificate, key) = app.split_once(' ').unwrap();
    for half in [certificate, key, "sslcert=/nowhere.crt sslkey=/nowhere.key"] {
        let outcome = world.connect("localhost", &format!("{full} {half}")).await;
        assert!(matches!(outcome, Err(ConnectError::Tls { .. })), "{half}: {outcome:?}");
    }
    // As libpq has it: a key that others can read is no key.
    let file = key.strip_prefix("sslkey=").unwrap();
    std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let outcome = world.connect("localhost", &format!("{full} {app}")).await;
    assert!(matches!(outcome, Err(ConnectError::Tls { .. })), "{outcome:?}");
}

/// `channel_binding=require` accepts only a server that proves that it knows the password over this very TLS
/// connection.
#[tokio::test]
async fn channel_binding() {
    let world = World::start(15).await;
    let connect = async |keys: &str| world.connect("localhost", keys).await;
    // No password is asked for, so nothing is bound.
    let words = refusal(connect("sslmode=require channel_binding=require").await);
    assert!(words.contains("channel binding"), "{words}");
    assert!(connect("sslmode=require channel_binding=prefer").await.unwrap());

    let superuser = superuser(world.server()).await;
    let sql = "SET password_encryption = 'scram-sha-256'; ALTER ROLE app PASSWORD 'secret'";
    superuser.batch_execute(sql).await.unwrap();
    world.rule("host all app 127.0.0.1/32 scram-sha-256", "password=wrong").await;
    let full = format!("sslmode=verify-full sslrootcert={} channel_binding=require", world.authority.display());
    assert!(connect(&format!("{full} password=secret")).await.unwrap());
    assert_eq!(refusal(connect(&format!("{full} password=wrong")).await), "28P01");
    for binding in ["disable", "prefer"] {
        assert!(!connect(&format!("sslmode=disable channel_binding={binding} password=secret")).await.unwrap());
        assert!(connect(&format!("sslmode=require channel_binding={binding} password=secret")).await.unwrap());
    }
    // Without TLS there is nothing to bind to.
    let words = refusal(connect("sslmode=disable channel_binding=require password=secret").await);
    assert!(words.contains("channel binding"), "{words}");

    // A server that wants the password itself could hand it on.
    world.rule("host all app 127.0.0.1/32 password", "password=wrong").await;
    assert!(connect("sslmode=require password=secret").await.unwrap());
    let words = refusal(connect(&format!("{full} password=secret")).await);
    assert!(words.contains("channel binding"), "{words}");
}

/// Replication connections have an implementation of our own: they have the same modes, and every way to send a
/// password.
#[tokio::test]
async fn replication_connections() {
    let world = World::start(15).await;
    let port = world.server().port();
    let options = |name: &str, keys: &str| {
        let text = format!("host={name} hostaddr=127.0.0.1 port={port} user=app dbname=app {keys}");
        ConnectOptions::parse(&text).unwrap()
    };
    let encrypted = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
    let (ours, theirs) = (world.authority.display(), world.stranger.display());
    for (name, keys, expected) in [
        ("localhost", "sslmode=disable".to_owned(), Some("f")),
        ("localhost", "sslmode=prefer".to_owned(), Some("t")),
        ("localhost", format!("sslmode=verify-full sslrootcert={ours}"), Some("t")),
        ("localhost", format!("sslmode=verify-full sslrootcert={theirs}"), None),
        ("db.example", format!("sslmode=verify-full sslrootcert={ours}"), None),
    ] {
        let answer = replicated(&options(name, &keys), encrypted).await.ok().flatten();
        assert_eq!(answer.as_deref(), expected, "{name} {keys}");
    }

    let superuser = superuser(world.server()).await;
    let rules = world.server().data_directory().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    for (method, stored) in [("scram-sha-256", "scram-sha-256"), ("md5", "md5"), ("password", "scram-sha-256")] {
        let sql = format!("SET password_encryption = '{stored}'; ALTER ROLE app PASSWORD 'pass wörd'");
        superuser.batch_execute(&sql).await.unwrap();
        std::fs::write(&rules, format!("host all app 127.0.0.1/32 {method}\n{before}")).unwrap();
        superuser.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
        // Until the reload takes effect, no password is asked for.
        let wrong = options("localhost", "password=wrong sslmode=require");
        for _ in 0..200 {
            if replicated(&wrong, encrypted).await.is_err() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        assert_eq!(replicated(&wrong, encrypted).await.unwrap_err().code(), Some("28P01"), "{method}");
        let right = options("localhost", "password='pass wörd' sslmode=require");
        assert_eq!(replicated(&right, encrypted).await.unwrap().as_deref(), Some("t"), "{method}");
        // What is not possible there is refused before a password is sent.
        let bound = options("localhost", "password='pass wörd' sslmode=require channel_binding=require");
        let error = replicated(&bound, encrypted).await.unwrap_err().to_string();
        assert!(error.contains("channel_binding=require is not possible"), "{error}");
    }
}
