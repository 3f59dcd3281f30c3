//! What libpq looks at in a server's certificate and the TLS library does not: whether it is one of
//! the trusted ones, although it is marked as an authority's; and the common name, where
//! there is no other.
//! <https://www.postgresql.org/docs/current/libpq-ssl.html#LIBQ-SSL-CERTIFICATES>

use std::time::Duration;

use rustls::pki_types::ServerName;
use x509_cert::Certificate;
use x509_cert::der::Decode;
use x509_cert::der::oid::db::rfc4519::COMMON_NAME;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// Whether the certificate is valid at this time, which is counted from 1970.
pub(super) fn is_valid_at(certificate: &[u8], now: Duration) -> bool {
    Certificate::from_der(certificate).is_ok_and(|read| {
        let validity = read.tbs_certificate.validity;
        (validity.not_before.to_unix_duration()..=validity.not_after.to_unix_duration())
            .contains(&now)
    })
}

/// Whether a certificate without alternative names is of this server by its common name. `*`
/// matches the first label of a name.
pub(super) fn is_named(certificate: &[u8], server: &ServerName<'_>) -> bool {
    let Ok(certificate) = Certificate::from_der(certificate) else {
        return false;
    };
    let tbs = certificate.tbs_certificate;
    let others = match tbs.get::<SubjectAltName>() {
        Ok(others) => others,
        Err(_) => return false,
    };
    let names =
        |name: &GeneralName| matches!(name, GeneralName::DnsName(_) | GeneralName::IpAddress(_));
    if others.is_some_and(|(_, others)| others.0.iter().any(names)) {
        return false;
    }
    let wanted = server.to_str();
    let mut common = tbs
        .subject
        .0
        .iter()
        .flat_map(|part| part.0.iter())
        .filter(|attribute| attribute.oid == COMMON_NAME)
        .filter_map(|attribute| std::str::from_utf8(attribute.value.value()).ok());
    // As libpq: the first.
    common.next().is_some_and(|name| is_match(name, &wanted))
}

fn is_match(pattern: &str, name: &str) -> bool {
    if pattern.eq_ignore_ascii_case(name) {
        return !name.is_empty();
    }
    let Some(rest) = pattern.strip_prefix("*.") else {
        return false;
    };
    name.split_once('.')
        .is_some_and(|(label, parent)| !label.is_empty() && parent.eq_ignore_ascii_case(rest))
}

#[cfg(test)]
mod tests {
    use super::is_match;

    #[test]
    fn a_star_stands_for_one_label() {
        for (pattern, name, fits) in [
            ("db.example", "DB.example", true),
            ("*.example", "db.example", true),
            ("*.example", "a.db.example", false),
            ("*.example", ".example", false),
            ("*", "db", false),
            ("", "", false),
            ("10.0.0.1", "10.0.0.1", true),
        ] {
            assert_eq!(is_match(pattern, name), fits, "{pattern} {name}");
        }
    }
}
