//! Which request gets which answer.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, LOCATION};
use axum::http::{StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::{Extension, Router};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpStream;

use super::super::exporter;
use super::super::listen::{self, Stalling, Standing};
use super::guard::guarded;
use super::pages::{self, View};
use super::route::Route;
use super::state::ConsoleState;
use super::{api, asset, live};

/// How long a page waits for the first look. Then it is shown without, and follows by itself.
const PAGE_PATIENCE: Duration = Duration::from_millis(1500);

/// How long a browser may keep a connection; it opens another.
const CONNECTION_MAX: Duration = Duration::from_secs(3600);

/// Every address that is answered.
pub(super) fn router(served: Arc<ConsoleState>) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/events", get(live::events))
        .nest("/api", api::router())
        .fallback(page)
        .layer(from_fn_with_state(served.guard.clone(), guarded))
        .with_state(served)
}

/// Answers one connection to its end.
pub(super) async fn connection(stream: TcpStream, standing: Standing, router: Router) {
    let service = TowerToHyperService::new(router.layer(Extension(standing)));
    let served = listen::http().serve_connection(TokioIo::new(Stalling::new(stream)), service);
    if let Ok(Err(error)) = tokio::time::timeout(CONNECTION_MAX, served).await {
        tracing::debug!(%error, "a browser was not answered");
    }
}

async fn metrics(State(served): State<Arc<ConsoleState>>) -> Response {
    let Some(seen) = served.collector.fresh().await else {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the hosts are still being asked\n",
        )
            .into_response();
    };
    (
        [(CONTENT_TYPE, exporter::KIND)],
        exporter::written(&seen.gathered),
    )
        .into_response()
}

async fn page(State(served): State<Arc<ConsoleState>>, uri: Uri) -> Response {
    if uri.path() == "/" {
        return (StatusCode::SEE_OTHER, [(LOCATION, "/shards")]).into_response();
    }
    if let Some(asset) = asset::answer(uri.path()) {
        return asset;
    }
    let Some(route) = Route::parse(&uri) else {
        return (
            StatusCode::NOT_FOUND,
            Html(pages::nothing_here().into_string()),
        )
            .into_response();
    };
    let seen = served.collector.now(PAGE_PATIENCE).await;
    let view = View {
        seen,
        floor: served.collector.floor(),
    };
    // Thousands of cells, or a plan: not on a thread that other requests wait for.
    let rendered = tokio::task::spawn_blocking(move || {
        let page = pages::render(&route, &view);
        (page.status, pages::whole(&page, &uri, &view).into_string())
    });
    match rendered.await {
        Ok((status, text)) => (status, Html(text)).into_response(),
        Err(error) => {
            tracing::error!(%error, "a page was not rendered");
            (
                StatusCode::INTERNAL_SERVER_ERROR,
                "this page cannot be shown: see what the console logs\n",
            )
                .into_response()
        }
    }
}
