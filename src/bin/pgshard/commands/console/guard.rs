//! What every request must pass, and what every answer carries.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::header::{
    ALLOW, AUTHORIZATION, CACHE_CONTROL, CONNECTION, CONTENT_SECURITY_POLICY, HOST, HeaderMap,
    HeaderName, HeaderValue, REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
    X_FRAME_OPTIONS,
};
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::super::listen::Standing;
use super::token::Token;

/// Nothing but what this program serves: no script, style or picture of another, none within a
/// page, no frame around it.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Which requests are answered.
pub(super) struct Guard {
    /// Names in `Host` in addition to localhost and addresses.
    names: Vec<String>,
    token: Option<Token>,
}

impl Guard {
    /// These names are allowed in addition to localhost and addresses; where there is a token, it
    /// must be shown.
    pub(super) fn new(names: &[String], token: Option<Token>) -> Guard {
        Guard {
            names: names.iter().map(|name| name.to_ascii_lowercase()).collect(),
            token,
        }
    }

    /// Whether the request is for us. A foreign page that had its name resolved to our address (DNS
    /// rebinding) sends requests under that name; an address cannot be resolved to another.
    fn is_for_us(&self, headers: &HeaderMap) -> bool {
        let mut hosts = headers.get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return false;
        };
        let Ok(host) = host.to_str() else {
            return false;
        };
        let name = without_port(host).to_ascii_lowercase();
        let address = name
            .trim_start_matches('[')
            .trim_end_matches(']')
            .parse::<IpAddr>();
        name == "localhost" || address.is_ok() || self.names.contains(&name)
    }

    fn refuses(&self, request: &Request) -> Option<Response> {
        if !self.is_for_us(request.headers()) {
            let words = "the Host header names another server: ask for localhost or an address, or \
                start with --name\n";
            return Some((StatusCode::MISDIRECTED_REQUEST, words).into_response());
        }
        if !matches!(*request.method(), Method::GET | Method::HEAD) {
            let allowed = [(ALLOW, HeaderValue::from_static("GET, HEAD"))];
            return Some(
                (
                    StatusCode::METHOD_NOT_ALLOWED,
                    allowed,
                    "the console only reads\n",
                )
                    .into_response(),
            );
        }
        let token = self.token.as_ref()?;
        let shown = request
            .headers()
            .get(AUTHORIZATION)
            .map_or(&b""[..], HeaderValue::as_bytes);
        if token.is_shown_by(shown) {
            return None;
        }
        let challenge = HeaderValue::from_static(
            "Basic realm=\"pgshard: user pgshard, the token as password\"",
        );
        Some(
            (
                StatusCode::UNAUTHORIZED,
                [(WWW_AUTHENTICATE, challenge)],
                "the token is missing\n",
            )
                .into_response(),
        )
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if port.bytes().all(|b| b.is_ascii_digit())
                && (!name.contains(':') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

/// Refuses requests that are not for us, and adds the headers that every answer has.
pub(super) async fn guarded(
    State(guard): State<Arc<Guard>>,
    Extension(standing): Extension<Standing>,
    request: Request,
    next: Next,
) -> Response {
    standing.has_asked();
    let mut response = match guard.refuses(&request) {
        Some(mut refused) => {
            // Further requests on this connection are not read.
            let close = HeaderValue::from_static("close");
            refused.headers_mut().insert(CONNECTION, close);
            refused
        }
        None => {
            standing.is_admitted();
            next.run(request).await
        }
    };
    let headers = response.headers_mut();
    headers
        .entry(CACHE_CONTROL)
        .or_insert(HeaderValue::from_static("no-store"));
    for (name, value) in [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (X_FRAME_OPTIONS, "DENY"),
        (REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_somebody_elses_is_not_ours() {
        let guard = Guard::new(&["Shards.example.com".to_owned()], None);
        let is_for_us = |hosts: &[&'static str]| {
            let mut headers = HeaderMap::new();
            for host in hosts {
                headers.append(HOST, HeaderValue::from_static(host));
            }
            guard.is_for_us(&headers)
        };
        for ours in [
            "localhost",
            "LOCALHOST:8420",
            "127.0.0.1:8420",
            "10.1.2.3",
            "[::1]:8420",
            "shards.example.com:1",
        ] {
            assert!(is_for_us(&[ours]), "{ours}");
        }
        for other in [
            "",
            "evil.example",
            "evil.example:8420",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "x:y",
        ] {
            assert!(!is_for_us(&[other]), "{other}");
        }
        assert!(!is_for_us(&[]) && !is_for_us(&["localhost", "evil.example"]));
    }
}
