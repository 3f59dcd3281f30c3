//! TLS as libpq means it, on rustls.
//! <https://www.postgresql.org/docs/current/libpq-ssl.html#LIBPQ-SSL-PROTECTION>

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::options::OptionsError;

/// How far the server is trusted, libpq's `sslmode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SslMode {
    /// No TLS.
    Disable,
    /// TLS if the server has it; nothing is verified. The default, as in libpq.
    #[default]
    Prefer,
    /// TLS or nothing; the certificate is verified only if a root certificate is given.
    Require,
    /// The certificate must be signed by the root certificate.
    VerifyCa,
    /// That, and it must be for the name connected to.
    VerifyFull,
}

/// What a connection string says about TLS.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct TlsOptions {
    /// `sslmode`.
    pub mode: SslMode,
    /// `sslrootcert`: PEM file of the certificates that are trusted; without it, or with `system`, the machine's.
    pub root_cert: Option<PathBuf>,
    /// `sslcert`: PEM file of the client's certificate.
    pub cert: Option<PathBuf>,
    /// `sslkey`: PEM file of its key.
    pub key: Option<PathBuf>,
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
    /// `sslcert` without `sslkey`, or the other way round.
    #[error("sslcert and sslkey go together")]
    HalfClientCert,
    /// There is no certificate to trust.
    #[error("no trusted certificate was found: name one with sslrootcert")]
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
                    _ => return Err(OptionsError::SslMode { mode: value.to_owned() }),
                }
            }
            "sslrootcert" if value == "system" => self.root_cert = None,
            "sslrootcert" => self.root_cert = Some(value.into()),
            "sslcert" => self.cert = Some(value.into()),
            "sslkey" => self.key = Some(value.into()),
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// A connector for these options. Reads the files anew, so that a renewed certificate needs no restart.
    pub(super) fn connector(&self) -> Result<MakeRustlsConnect, TlsError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider.clone());
        let config = config.with_safe_default_protocol_versions().map_err(TlsError::Rustls)?;
        let verified = match self.mode {
            SslMode::VerifyFull | SslMode::VerifyCa => true,
            // As libpq: a root certificate makes `require` verify the chain.
            SslMode::Require => self.root_cert.is_some(),
            SslMode::Disable | SslMode::Prefer => false,
        };
        let verifier = if verified {
            let roots = Arc::new(self.roots()?);
            let inner = WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build();
            let inner = inner.map_err(|_| TlsError::NoRoots)?;
            Verifier { provider, chain: Some(inner), name: self.mode == SslMode::VerifyFull }
        } else {
            Verifier { provider, chain: None, name: false }
        };
        let config = config.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
        let config = match (&self.cert, &self.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let chain = certificates("sslcert", cert)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(|error| pem("sslkey", key, &error))?;
                config.with_client_auth_cert(chain, key).map_err(TlsError::Rustls)?
            }
            _ => return Err(TlsError::HalfClientCert),
        };
        Ok(MakeRustlsConnect::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, TlsError> {
        let mut roots = RootCertStore::empty();
        match &self.root_cert {
            Some(path) => {
                for certificate in certificates("sslrootcert", path)? {
                    roots.add(certificate).map_err(TlsError::Rustls)?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        if roots.is_empty() { Err(TlsError::NoRoots) } else { Ok(roots) }
    }
}

fn certificates(key: &'static str, path: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect);
    read.map_err(|error| pem(key, path, &error))
}

fn pem(key: &'static str, path: &Path, error: &rustls::pki_types::pem::Error) -> TlsError {
    TlsError::Pem { key, path: path.to_owned(), reason: error.to_string() }
}

/// Verifies as much as the mode asks for: nothing, the chain, or the chain and the name. The signatures of the
/// handshake are always verified.
#[derive(Debug)]
struct Verifier {
    provider: Arc<CryptoProvider>,
    chain: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
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
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            // The chain is checked before the name, so a wrong name says that the chain is right.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
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
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// Takes keys out of a connection string, those that `take` says are taken, and gives the rest.
pub(super) fn take_keys(
    text: &str,
    mut take: impl FnMut(&str, &str) -> Result<bool, OptionsError>,
) -> Result<String, OptionsError> {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let Some((address, query)) = text.split_once('?') else { return Ok(text.to_owned()) };
        let mut kept = Vec::new();
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !take(key, &percent_decoded(value))? {
                kept.push(pair);
            }
        }
        return Ok(if kept.is_empty() { address.to_owned() } else { format!("{address}?{}", kept.join("&")) });
    }
    let mut kept = Vec::new();
    for (key, value, whole) in pairs(text) {
        if !take(&key, &value)? {
            kept.push(whole);
        }
    }
    Ok(kept.join(" "))
}

/// A connection string with one more key.
pub(super) fn put_key(text: &str, key: &str, value: &str) -> String {
    if text.starts_with("postgres://") || text.starts_with("postgresql://") {
        let joint = if text.contains('?') { '&' } else { '?' };
        return format!("{text}{joint}{}={}", percent_encoded(key), percent_encoded(value));
    }
    let value = value.replace('\\', "\\\\").replace('\'', "\\'");
    format!("{text} {key}='{value}'")
}

/// The pairs of a key=value string: key, value without its quotes, and the pair as it stands. Text that is no pair
/// comes as a pair without key, for the parser behind to refuse.
fn pairs(text: &str) -> impl Iterator<Item = (String, String, String)> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let whole = rest;
        let Some((key, after)) = rest.split_once('=') else {
            rest = "";
            return Some((String::new(), String::new(), whole.to_owned()));
        };
        let after = after.trim_start();
        let mut value = String::new();
        let mut chars = after.char_indices();
        let quoted = after.starts_with('\'');
        if quoted {
            chars.next();
        }
        let mut end = after.len();
        while let Some((at, c)) = chars.next() {
            match c {
                '\\' => value.extend(chars.next().map(|(_, c)| c)),
                '\'' if quoted => {
                    end = at + 1;
                    break;
                }
                c if !quoted && c.is_whitespace() => {
                    end = at;
                    break;
                }
                c => value.push(c),
            }
        }
        let taken = whole.len() - after.len() + end;
        rest = whole[taken..].trim_start();
        Some((key.trim().to_owned(), value, whole[..taken].to_owned()))
    })
}

fn percent_encoded(text: &str) -> String {
    let byte = |byte: &u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' => char::from(*byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.as_bytes().iter().map(byte).collect()
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = bytes.get(at + 1..at + 3).and_then(|hex| std::str::from_utf8(hex).ok());
        match hex.filter(|_| bytes[at] == b'%').and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}
