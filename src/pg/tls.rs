//! TLS as libpq means it, on rustls.
//! <https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION>

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ServerCertVerifierBuilder, WebPkiServerVerifier, verify_server_name};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{
    CertificateDer, CertificateRevocationListDer, PrivateKeyDer, ServerName, UnixTime,
};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::certificate;
use super::options_error::{OptionsError, word};
use super::service::home;

/// How far the server is trusted, libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it; the certificate is verified only if there is a root certificate.
    /// The default, as in libpq. A certificate that fails verification is refused here, where libpq
    /// continues without TLS.
    #[default]
    Prefer,
    /// TLS or nothing; the certificate is verified only if a root certificate is there.
    Require,
    /// The certificate must be signed by the root certificate.
    VerifyCa,
    /// That, and it must be for the name connected to.
    VerifyFull,
}

/// The trusted certificates, libpq's `sslrootcert`.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum RootCert {
    /// Not given: `~/.postgresql/root.crt`, if it exists.
    #[default]
    Standard,
    /// `system`: those that the machine trusts. With these, `sslmode` is `verify-full` and nothing
    /// less: everyone can get a certificate of theirs.
    System,
    /// Those of a PEM file.
    File(PathBuf),
}

/// A version of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2, which is also the oldest that is spoken.
    V12,
    /// 1.3.
    V13,
}

/// The TLS settings of a connection string.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsOptions {
    /// `sslmode`.
    pub mode: SslMode,
    /// `sslrootcert`.
    pub root_cert: RootCert,
    /// `sslcert`: PEM file of the client's certificate.
    pub cert: Option<PathBuf>,
    /// `sslkey`: PEM file of its key.
    pub key: Option<PathBuf>,
    /// Whether the client shows its certificate: not with `sslcertmode=disable`.
    pub show_cert: bool,
    /// `sslcrl`: PEM file of the certificates that their authorities have revoked. `None`:
    /// `~/.postgresql/root.crl`, if that is there.
    pub crl: Option<PathBuf>,
    /// `ssl_min_protocol_version`.
    pub min_version: TlsVersion,
    /// `ssl_max_protocol_version`.
    pub max_version: TlsVersion,
}

impl Default for TlsOptions {
    fn default() -> TlsOptions {
        TlsOptions {
            mode: SslMode::default(),
            root_cert: RootCert::default(),
            cert: None,
            key: None,
            show_cert: true,
            crl: None,
            min_version: TlsVersion::V12,
            max_version: TlsVersion::V13,
        }
    }
}

/// Why TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A PEM file cannot be read.
    #[error("cannot read {key} {}: {reason}", path.display())]
    Pem {
        /// `sslrootcert`, `sslcert` or `sslkey`.
        key: &'static str,
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// Others than its owner may read the key.
    #[error("the private key {} can be read by others: chmod 600, or 640 where root owns \
        it", path.display())]
    OpenKey {
        /// The file.
        path: PathBuf,
    },
    /// The file of revoked certificates cannot be used.
    #[error("the revoked certificates of {} cannot be used: {reason}", path.display())]
    Revoked {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// `sslcert` without `sslkey`, or the other way round.
    #[error("sslcert and sslkey go together")]
    HalfClientCert,
    /// There is no certificate to trust.
    #[error(
        "no trusted certificate was found: name a file with sslrootcert, or sslrootcert=system for \
            those that this machine trusts, with sslmode=verify-full"
    )]
    NoRoots,
    /// rustls refuses the certificates.
    #[error("the certificates cannot be used")]
    Rustls(#[source] Error),
}

impl TlsOptions {
    /// Whether the key is one of ours; then it is set.
    pub(super) fn set(&mut self, key: &str, value: &str) -> Result<bool, OptionsError> {
        match key {
            "sslmode" => {
                self.mode = match value {
                    "disable" => SslMode::Disable,
                    "prefer" | "allow" => SslMode::Prefer,
                    "require" => SslMode::Require,
                    "verify-ca" => SslMode::VerifyCa,
                    "verify-full" => SslMode::VerifyFull,
                    _ => return Err(OptionsError::SslMode { mode: word(value) }),
                }
            }
            // A file without a name is none.
            "sslrootcert" | "sslcert" | "sslkey" | "sslcrl" if value.is_empty() => {}
            "sslrootcert" if value == "system" => self.root_cert = RootCert::System,
            "sslrootcert" => self.root_cert = RootCert::File(value.into()),
            "sslcert" => self.cert = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            "sslcrl" => self.crl = Some(value.into()),
            "ssl_min_protocol_version" => {
                self.min_version = match value.to_ascii_lowercase().as_str() {
                    // Older ones are not spoken here, whatever is allowed.
                    "" | "tlsv1" | "tlsv1.1" | "tlsv1.2" => TlsVersion::V12,
                    "tlsv1.3" => TlsVersion::V13,
                    _ => return Err(wrong_version("ssl_min_protocol_version")),
                }
            }
            "ssl_max_protocol_version" => {
                self.max_version = match value.to_ascii_lowercase().as_str() {
                    "tlsv1.2" => TlsVersion::V12,
                    "" | "tlsv1.3" => TlsVersion::V13,
                    _ => return Err(wrong_version("ssl_max_protocol_version")),
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes what the whole of a connection string means: with the machine's certificates `sslmode`
    /// is `verify-full`.
    ///
    /// # Errors
    /// When the string requires less; `mode` is its `sslmode`, if it has one. When no version of
    /// TLS is left.
    pub(super) fn settle(&mut self, mode: Option<&str>) -> Result<(), OptionsError> {
        if self.min_version > self.max_version {
            return Err(wrong_version("ssl_min_protocol_version"));
        }
        match (&self.root_cert, mode) {
            (RootCert::System, Some(mode)) if self.mode != SslMode::VerifyFull => {
                Err(OptionsError::WeakWithSystem {
                    mode: mode.to_owned(),
                })
            }
            (RootCert::System, _) => {
                self.mode = SslMode::VerifyFull;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// A connector for these options. Reads the files each time, so that a renewed certificate
    /// needs no restart.
    pub(super) fn connector(&self) -> Result<Connector, TlsError> {
        let seen = Arc::<OnceLock<CertificateDer<'static>>>::default();
        let certificate = seen.clone();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone());
        let versions = [
            (TlsVersion::V12, &rustls::version::TLS12),
            (TlsVersion::V13, &rustls::version::TLS13),
        ];
        let spoken = versions
            .into_iter()
            .filter(|(version, _)| (self.min_version..=self.max_version).contains(version));
        let spoken: Vec<_> = spoken.map(|(_, version)| version).collect();
        let config = config
            .with_protocol_versions(&spoken)
            .map_err(TlsError::Rustls)?;
        let (roots, trusted) = match self.roots()? {
            Some((roots, trusted)) => (Some(roots), trusted),
            None => (None, Vec::new()),
        };
        let verified = match self.mode {
            SslMode::VerifyFull | SslMode::VerifyCa => true,
            // As libpq: a root certificate makes these verify the chain.
            SslMode::Require | SslMode::Prefer => roots.is_some(),
            SslMode::Disable => false,
        };
        let verifier = if verified {
            let roots = Arc::new(
                roots
                    .filter(|roots| !roots.is_empty())
                    .ok_or(TlsError::NoRoots)?,
            );
            let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
            let (inner, lists) = self.with_revoked(inner)?;
            let inner = inner.build().map_err(|_| TlsError::NoRoots)?;
            Verifier {
                provider,
                chain: Some(inner),
                // A list of revoked certificates would have to be looked at.
                trusted: match lists {
                    Lists::None => trusted,
                    Lists::Looked => Vec::new(),
                },
                name: self.mode == SslMode::VerifyFull,
                seen,
            }
        } else {
            Verifier {
                provider,
                chain: None,
                trusted: Vec::new(),
                name: false,
                seen,
            }
        };
        let config = config
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier));
        let mut config = match (&self.cert, &self.key) {
            _ if !self.show_cert => config.with_no_client_auth(),
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = certificates("sslcert", cert)?;
                refuse_open(key)?;
                let key = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| pem("sslkey", key, &error))?;
                config
                    .with_client_auth_cert(chain, key)
                    .map_err(TlsError::Rustls)?
            }
            _ => return Err(TlsError::HalfClientCert),
        };
        // Servers from 17 on accept a handshake without the preceding request only with this
        // protocol name.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Connector {
            tls: MakeRustlsConnect::new(config),
            certificate,
        })
    }

    /// The verifier, with the certificates that are revoked. As in libpq the file is looked for
    /// where none is named, and each authority in it must have its list.
    fn with_revoked(
        &self,
        builder: ServerCertVerifierBuilder,
    ) -> Result<(ServerCertVerifierBuilder, Lists), TlsError> {
        let standard = || {
            home()
                .map(|home| home.join(".postgresql/root.crl"))
                .filter(|path| path.exists())
        };
        let Some(path) = self.crl.clone().or_else(standard) else {
            return Ok((builder, Lists::None));
        };
        let revoked = |reason| TlsError::Revoked {
            path: path.clone(),
            reason,
        };
        let lists: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_file_iter(&path).and_then(Iterator::collect);
        let lists = lists.map_err(|error| revoked(error.to_string()))?;
        if lists.is_empty() {
            return Err(revoked("it has no list".to_owned()));
        }
        let builder = builder.with_crls(lists).enforce_revocation_expiration();
        Ok((builder, Lists::Looked))
    }

    /// The certificates to trust, and those of a file themselves; `None` where none are named and
    /// the standard file is not there.
    fn roots(&self) -> Result<Option<Roots>, TlsError> {
        let mut roots = RootCertStore::empty();
        let file = match (&self.root_cert, self.mode) {
            (_, SslMode::Disable) => return Ok(None),
            (RootCert::System, _) => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                return Ok(Some((roots, Vec::new())));
            }
            (RootCert::File(path), _) => path.clone(),
            (RootCert::Standard, _) => match standard_root_cert().filter(|path| path.exists()) {
                Some(path) => path,
                None => return Ok(None),
            },
        };
        let trusted = certificates("sslrootcert", &file)?;
        for certificate in &trusted {
            roots.add(certificate.clone()).map_err(TlsError::Rustls)?;
        }
        Ok(Some((roots, trusted)))
    }
}

/// The certificates to trust, and the same in full where a file has them.
type Roots = (RootCertStore, Vec<CertificateDer<'static>>);

/// Whether lists of revoked certificates are looked at.
enum Lists {
    None,
    Looked,
}

fn standard_root_cert() -> Option<PathBuf> {
    home().map(|home| home.join(".postgresql/root.crt"))
}

fn wrong_version(key: &'static str) -> OptionsError {
    OptionsError::WrongValue {
        key,
        reason: "known are TLSv1.2 and TLSv1.3, the least before the most".to_owned(),
    }
}

/// Refuses what libpq refuses: a key that others may read, or, where root owns it, more than read
/// by its group.
fn refuse_open(path: &Path) -> Result<(), TlsError> {
    let Ok(facts) = std::fs::metadata(path) else {
        return Ok(());
    };
    let forbidden = if facts.uid() == 0 { 0o037 } else { 0o077 };
    match facts.is_file() && facts.mode() & forbidden == 0 {
        true => Ok(()),
        false => Err(TlsError::OpenKey {
            path: path.to_owned(),
        }),
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| pem(key, path, &error))
}

fn pem(key: &'static str, path: &Path, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::Pem {
        key,
        path: path.to_owned(),
        reason: error.to_string(),
    }
}

/// Starts TLS on a socket, and returns the certificate that the server has shown.
#[derive(Clone)]
pub(super) struct Connector {
    pub(super) tls: MakeRustlsConnect,
    /// Set once a handshake has come that far; by the first, so a connector is for one connection.
    #[cfg_attr(
        not(feature = "ops"),
        allow(dead_code, reason = "replication connections are for moves")
    )]
    pub(super) certificate: Arc<OnceLock<CertificateDer<'static>>>,
}

/// Verifies as much as the mode requires: nothing, the chain, or the chain and the name. The
/// signatures of the handshake are always verified.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
    /// Certificates that need no chain.
    trusted: Vec<CertificateDer<'static>>,
    name: bool,
    /// What the server has shown.
    seen: Arc<OnceLock<CertificateDer<'static>>>,
}

impl Verifier {
    /// Whether the server's certificate is itself among those that are trusted. The TLS library
    /// refuses it if it may sign others, as one that `openssl req -x509` makes may; libpq takes it.
    fn is_trusted(&self, end_entity: &CertificateDer<'_>, now: UnixTime) -> bool {
        let now = Duration::from_secs(now.as_secs());
        self.trusted.iter().any(|one| one == end_entity)
            && certificate::is_valid_at(end_entity, now)
    }
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let _ = self.seen.set(end_entity.clone().into_owned());
        let Some(chain) = &self.chain else {
            return Ok(ServerCertVerified::assertion());
        };
        let verdict = chain.verify_server_cert(end_entity, intermediates, server_name, ocsp, now);
        let verdict = match verdict {
            Err(Error::InvalidCertificate(CertificateError::Other(_)))
                if self.is_trusted(end_entity, now) =>
            {
                ParsedCertificate::try_from(end_entity)
                    .and_then(|parsed| verify_server_name(&parsed, server_name))
                    .map(|()| ServerCertVerified::assertion())
            }
            verdict => verdict,
        };
        match verdict {
            // The chain is checked before the name, so a wrong name means that the chain is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name || certificate::is_named(end_entity, server_name) => {
                Ok(ServerCertVerified::assertion())
            }
            verdict => verdict,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls12_signature(
            message,
            cert,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        rustls::crypto::verify_tls13_signature(
            message,
            cert,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}
