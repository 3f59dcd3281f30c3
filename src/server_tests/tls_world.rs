//! [`World`]: a server that takes TLS connections, and the certificates that go with it.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
    KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
};
use tokio_postgres::Client;

use crate::dev::{Binaries, Cluster, ClusterOptions, Server};
use crate::pg::{ConnectError, ConnectOptions};

/// A server that accepts TLS connections under the name `localhost` and at the address 127.0.0.1,
/// with its authority's certificate and another authority's.
pub(super) struct World {
    pub(super) cluster: Cluster,
    pub(super) authority: PathBuf,
    pub(super) stranger: PathBuf,
    /// The authorities that sign the certificates.
    issuers: [Issuer<'static, KeyPair>; 2],
    /// The original `pg_hba.conf`.
    rules: String,
}

/// The serial number of the server's certificate.
const SERIAL: u64 = 77;

impl World {
    pub(super) async fn start(version: u32) -> World {
        let options = ClusterOptions::new(1, Binaries::with_tls(version));
        let cluster = Cluster::start(&options).unwrap_or_else(|error| panic!("{error}"));
        let (authority, stranger) = (ca("pgshard test"), ca("somebody else"));
        let key = KeyPair::generate().unwrap();
        let mut certificate =
            CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
        certificate.serial_number = Some(SerialNumber::from(SERIAL));
        let certificate = certificate.signed_by(&key, &authority.1).unwrap();
        let data = cluster.servers()[0].data_directory();
        give(&data, "server.crt", &certificate.pem());
        give(&data, "server.key", &key.serialize_pem());
        let superuser = superuser(&cluster.servers()[0]).await;
        superuser
            .execute("ALTER SYSTEM SET ssl = on", &[])
            .await
            .unwrap();
        superuser
            .execute("SELECT pg_reload_conf()", &[])
            .await
            .unwrap();
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

    pub(super) fn server(&self) -> &Server {
        &self.cluster.servers()[0]
    }

    /// Connects under this name, and returns whether the connection is encrypted.
    pub(super) async fn connect(&self, name: &str, tls: &str) -> Result<bool, ConnectError> {
        let port = self.server().port();
        let text = format!("host={name} hostaddr=127.0.0.1 port={port} user=app dbname=app {tls}");
        let connection = ConnectOptions::parse(&text)
            .unwrap()
            .connect("tls test")
            .await?;
        let sql = "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()";
        Ok(connection.query_one(sql, &[]).await.unwrap().get(0))
    }

    /// Puts rules before all others, and returns once they are in effect, that is, once these keys
    /// are refused.
    pub(super) async fn rule(&self, rules: &str, refused: &str) {
        let file = self.server().data_directory().join("pg_hba.conf");
        std::fs::write(&file, format!("{rules}\n{}", self.rules)).unwrap();
        superuser(self.server())
            .await
            .execute("SELECT pg_reload_conf()", &[])
            .await
            .unwrap();
        for _ in 0..200 {
            if self.connect("localhost", refused).await.is_err() {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("the rule does not hold: {rules}");
    }

    /// The authority's list of revoked certificates, with the server's or without it.
    pub(super) fn revoked(&self, name: &str, serials: &[u64]) -> PathBuf {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2100, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&self.issuers[0]).unwrap();
        write(&self.cluster, name, &list.pem().unwrap())
    }

    /// [`World::revoked`] with the server's own certificate.
    pub(super) fn revoked_itself(&self) -> PathBuf {
        self.revoked("revoked.crl", &[SERIAL])
    }

    /// Gives the server a certificate as PostgreSQL's manual makes one: it is signed by itself, may
    /// sign others, and has a common name only. Returns its file once the server shows it.
    pub(super) async fn sign_itself(&self, common_name: &str) -> PathBuf {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, common_name);
        let certificate = params.self_signed(&key).unwrap().pem();
        let data = self.server().data_directory();
        give(&data, "server.crt", &certificate);
        give(&data, "server.key", &key.serialize_pem());
        superuser(self.server())
            .await
            .execute("SELECT pg_reload_conf()", &[])
            .await
            .unwrap();
        let file = write(&self.cluster, "itself.pem", &certificate);
        let former = format!("sslmode=verify-ca sslrootcert={}", self.authority.display());
        for _ in 0..200 {
            if self.connect("localhost", &former).await.is_err() {
                return file;
            }
            tokio::time::sleep(std::time::Duration::from_millis(25)).await;
        }
        panic!("the server shows its former certificate");
    }

    /// A certificate for a role, and its key, signed by one of the two; as parameters of a
    /// connection string.
    pub(super) fn client(&self, role: &str, issuer: usize) -> String {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params
            .distinguished_name
            .push(rcgen::DnType::CommonName, role);
        let certificate = params.signed_by(&key, &self.issuers[issuer]).unwrap();
        let write = |kind: &str, text: String| {
            write(&self.cluster, &format!("{role}{issuer}.{kind}"), &text)
        };
        let (certificate, key) = (
            write("crt", certificate.pem()),
            write("key", key.serialize_pem()),
        );
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o600)).unwrap();
        format!("sslcert={} sslkey={}", certificate.display(), key.display())
    }
}

pub(super) async fn superuser(server: &Server) -> Client {
    let (client, connection) =
        tokio_postgres::connect(&server.superuser_url(), tokio_postgres::NoTls)
            .await
            .unwrap();
    tokio::spawn(connection);
    client
}

/// Writes a file next to the server's data.
pub(super) fn write(cluster: &Cluster, name: &str, text: &str) -> PathBuf {
    let path = cluster.directory().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

pub(super) fn ca(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params
        .distinguished_name
        .push(rcgen::DnType::CommonName, name);
    let certificate = params.self_signed(&key).unwrap();
    (certificate.pem(), Issuer::new(params, key))
}

/// Writes a file that the server's user owns and no other can read.
pub(super) fn give(data: &Path, name: &str, text: &str) {
    let path = data.join(name);
    std::fs::write(&path, text).unwrap();
    let owner = std::fs::metadata(data).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    chown(&path, Some(owner.uid()), Some(owner.gid())).unwrap();
}
