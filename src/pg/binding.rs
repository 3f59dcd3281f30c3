//! The value that the proof of a password is bound to, `tls-server-end-point`: a hash of the
//! certificate that the server has shown. A man in the middle shows another certificate, so the
//! proof does not hold there.
//! <https://www.rfc-editor.org/rfc/rfc5929#section-4.1>

use sha2::{Digest, Sha256, Sha384, Sha512};
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc5912::{
    ECDSA_WITH_SHA_256, ECDSA_WITH_SHA_384, ECDSA_WITH_SHA_512, SHA_1_WITH_RSA_ENCRYPTION,
    SHA_256_WITH_RSA_ENCRYPTION, SHA_384_WITH_RSA_ENCRYPTION, SHA_512_WITH_RSA_ENCRYPTION,
};

/// The hash of a certificate in DER: that of its own signature, but SHA-256 where that is SHA-1.
/// `None` for a signature that has no hash of its own, as Ed25519: nothing can be bound to such a
/// certificate.
pub(super) fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    match Certificate::from_der(certificate)
        .ok()?
        .signature_algorithm
        .oid
    {
        SHA_1_WITH_RSA_ENCRYPTION | SHA_256_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_256 => {
            Some(Sha256::digest(certificate).to_vec())
        }
        SHA_384_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_384 => {
            Some(Sha384::digest(certificate).to_vec())
        }
        SHA_512_WITH_RSA_ENCRYPTION | ECDSA_WITH_SHA_512 => {
            Some(Sha512::digest(certificate).to_vec())
        }
        _ => None,
    }
}
