//! Connections over TLS, against a server with a certificate of its own.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use pgshard::mover::stream_testing::replicated;
use pgshard::pg::{ConnectError, ConnectOptions};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};

use crate::support::TestCluster;

/// A server that takes TLS connections under the name `localhost`, its authority's certificate and somebody else's.
struct World {
    cluster: TestCluster,
    authority: PathBuf,
    stranger: PathBuf,
}

impl World {
    async fn start(version: u32) -> World {
        let cluster = TestCluster::start(version, 1);
        let (authority, stranger) = (ca("pgshard test"), ca("somebody else"));
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::new(["localhost".to_owned()]).unwrap();
        let certificate = certificate.signed_by(&key, &authority.1).unwrap();
        let data = cluster.server(0).data_directory();
        give(&data, "server.crt", &certificate.pem());
        give(&data, "server.key", &key.serialize_pem());
        let superuser = cluster.superuser(0).await;
        superuser.execute("ALTER SYSTEM SET ssl = on", &[]).await.unwrap();
        superuser.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
        let world = World {
            authority: cluster.write("authority.pem", &authority.0),
            stranger: cluster.write("stranger.pem", &stranger.0),
            cluster,
        };
        // The reload is heard a moment later, by the next connection that finds TLS on.
        for _ in 0..200 {
            if world.connect("localhost", "sslmode=require").await.is_ok() {
                return world;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("the server does not take TLS connections");
    }

    /// Connects under this name, and tells whether the connection is encrypted.
    async fn connect(&self, name: &str, tls: &str) -> Result<bool, ConnectError> {
        let port = self.cluster.server(0).port();
        let text = format!("host={name} hostaddr=127.0.0.1 port={port} user=app dbname=app {tls}");
        let connection = ConnectOptions::parse(&text).unwrap().connect("tls test").await?;
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok(connection.query_one(sql, &[]).await.unwrap().get(0))
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

/// Each mode checks what libpq's documentation says it checks, and no less. On 15 only: the 18 that we test is built without
/// TLS, and the client's side is the same for every server.
#[tokio::test]
async fn modes() {
    let world = World::start(15).await;
    let root = |path: &Path| format!("sslrootcert={}", path.display());
    let (ours, theirs) = (root(&world.authority), root(&world.stranger));
    // Under which name, with what: encrypted, not encrypted, or refused.
    let cases: [(&str, String, Option<bool>); 12] = [
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

/// Replication connections are opened by ourselves: the same modes, and every way to show a password.
#[tokio::test]
async fn replication_connections() {
    let world = World::start(15).await;
    let port = world.cluster.server(0).port();
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

    let superuser = world.cluster.superuser(0).await;
    let rules = world.cluster.server(0).data_directory().join("pg_hba.conf");
    let before = std::fs::read_to_string(&rules).unwrap();
    for (method, stored) in [("scram-sha-256", "scram-sha-256"), ("md5", "md5"), ("password", "scram-sha-256")] {
        let sql = format!("SET password_encryption = '{stored}'; ALTER ROLE app PASSWORD 'pass wörd'");
        superuser.batch_execute(&sql).await.unwrap();
        std::fs::write(&rules, format!("host all app 127.0.0.1/32 {method}\n{before}")).unwrap();
        superuser.execute("SELECT pg_reload_conf()", &[]).await.unwrap();
        // Until the reload is heard, no password is asked for.
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
    }
}
