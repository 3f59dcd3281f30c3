//! A port on which a command answers HTTP.
//!
//! Everyone may connect, so connections cost little and end soon. A client has a few seconds to
//! send a request and to take each piece of the answer. When there are too many connections, none
//! waits for another to end: a new one takes the place of one that has sent nothing yet
//! ([`Standing`]).
//!
//! Invariant: connections without a token never keep out one that has it.

mod connections;
mod stalled;

use std::net::SocketAddr;
use std::time::Duration;

use hyper::server::conn::http1;
use hyper_util::rt::TokioTimer;
use schemars::JsonSchema;
use serde::Serialize;
use tokio::net::TcpListener;

use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{Format, Output};

pub(super) use connections::{Standing, until_interrupted};
pub(super) use stalled::Stalling;

/// Where a command listens.
#[derive(JsonSchema, Serialize)]
pub(crate) struct Listening {
    url: String,
}

/// Prints where the command listens.
pub(super) fn print_address(url: String, output: &Output) {
    match output.format() {
        Format::Json => output.object(Listening { url }),
        Format::Text => output.data(format_args!("listening on {url}")),
    }
}

/// How long a client may take to send its request.
pub(super) const HEADER_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest request: its line and its headers. Nothing here reads a body.
const HEAD_MAX: usize = 16 * 1024;

/// How connections are answered: HTTP/1, with limits for the request.
pub(super) fn http() -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(HEAD_MAX)
        .max_headers(64);
    http
}

/// Listens on the address.
///
/// # Errors
/// When another process already does.
pub(super) async fn bind(address: SocketAddr) -> Result<TcpListener, Failure> {
    TcpListener::bind(address).await.map_err(|error| {
        Failure::new(Exit::Failed, format!("cannot listen on {address}: {error}"))
            .hint("another process may have the port: choose one with --listen")
    })
}
