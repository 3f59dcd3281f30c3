//! `pgshard exporter`: the findings of `check`, the moves and the state of the hosts, for
//! Prometheus.
//!
//! Its only state is the last answer. However many scrapes come at the same time, the hosts are
//! queried once for them, and no more often than the shortest time allows.

mod text;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use pgshard::pg::Sessions;
use tokio::sync::Mutex;

use super::listen::{self, HEADER_TIMEOUT, Stalling, Standing};
use super::privilege_warning;
use super::survey::{Depth, Kept, gather};
use crate::args::Exporter;
use crate::context;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::Output;

pub(super) use text::{KIND, written};

/// What is kept between scrapes.
struct ExporterState {
    config: PathBuf,
    floor: Duration,
    bound: Duration,
    last: Mutex<Last>,
    sessions: Sessions,
}

/// The last answer, and what the next look need not doubt.
#[derive(Default)]
struct Last {
    answer: Option<(Instant, Bytes)>,
    kept: Kept,
}

/// Answers scrapes until Ctrl-C.
pub(crate) async fn run(
    args: &Exporter,
    config: Option<&Path>,
    output: &Arc<Output>,
) -> Result<Exit, Failure> {
    // A mistake in the config is reported now, and again by each scrape if it is made later.
    let config = context::config(config)?;
    let listener = listen::bind(args.listen).await?;
    let (floor, bound) = (
        Duration::from_secs(args.floor_s),
        Duration::from_secs(args.timeout_s),
    );
    privilege_warning::warn_of_writers(&config, bound, output);
    let shared = Arc::new(ExporterState {
        config: config.path,
        floor,
        bound,
        last: Mutex::default(),
        sessions: Sessions::new("pgshard exporter"),
    });
    let address = listener.local_addr()?;
    if !address.ip().is_loopback() {
        output.warning(format_args!(
            "{address} can be asked by others: the answer names hosts and shards"
        ));
    }
    listen::print_address(format!("http://{address}/metrics"), output);
    let answering = |stream, standing| {
        let shared = shared.clone();
        async move { answer(stream, &standing, &shared).await }
    };
    listen::until_interrupted(&listener, answering).await;
    Ok(Exit::Done)
}

async fn answer(stream: tokio::net::TcpStream, standing: &Standing, shared: &ExporterState) {
    let peer = stream.peer_addr().ok();
    let service = service_fn(async |request: Request<Incoming>| {
        standing.has_asked();
        Ok::<_, Infallible>(respond(&request, shared).await)
    });
    let served = listen::http()
        .keep_alive(false)
        .serve_connection(TokioIo::new(Stalling::new(stream)), service);
    // The scrape has its own limit; a client has as much time again to take its answer.
    let limit = shared.bound + HEADER_TIMEOUT * 2;
    if let Ok(Err(error)) = tokio::time::timeout(limit, served).await {
        tracing::debug!(peer = ?peer.as_ref().map(SocketAddr::to_string), %error, "a client was \
            not answered");
    }
}

async fn respond(request: &Request<Incoming>, shared: &ExporterState) -> Response<Full<Bytes>> {
    let (status, kind, body) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, KIND, shared.scrape().await),
        (&Method::GET | &Method::HEAD, "/") => (
            StatusCode::OK,
            "text/plain",
            Bytes::from_static(b"see /metrics\n"),
        ),
        (&Method::GET | &Method::HEAD, _) => (
            StatusCode::NOT_FOUND,
            "text/plain",
            Bytes::from_static(b"there is only /metrics\n"),
        ),
        _ => (
            StatusCode::METHOD_NOT_ALLOWED,
            "text/plain",
            Bytes::from_static(b"only GET\n"),
        ),
    };
    let mut response = Response::new(Full::new(body));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, hyper::header::HeaderValue::from_static(kind));
    response
}

impl ExporterState {
    /// The answer to a scrape: the last one while it is recent, or else a new one for all clients
    /// that wait for it.
    async fn scrape(&self) -> Bytes {
        let mut last = self.last.lock().await;
        if let Some((at, text)) = &last.answer
            && at.elapsed() < self.floor
        {
            return text.clone();
        }
        let gathered = gather(
            &self.config,
            self.bound,
            Depth::Metrics,
            &last.kept,
            &self.sessions,
        )
        .await;
        let text = Bytes::from(written(&gathered));
        // While the file cannot be read, an alarm stays one.
        last.kept.config = gathered.config;
        last.kept.believed = gathered.believed;
        last.answer = Some((Instant::now(), text.clone()));
        text
    }
}
