//! The same as JSON, in the shapes of docs/json: what a command prints with `--json`.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Path, Query, State};
use axum::http::header::{CONTENT_TYPE, LAST_MODIFIED};
use axum::http::{HeaderValue, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use jiff::fmt::rfc2822::DateTimePrinter;
use pgshard::ShardId;
use serde::{Deserialize, Serialize};

use super::super::check::Report;
use super::super::host::{HostListing as Hosts, ListedHost};
use super::super::id::DecodedId;
use super::super::locate::{Target, located};
use super::super::map::MapReport;
use super::super::map_versions::{History, versions};
use super::super::migrate::Status;
use super::super::moves::{ListReport, ShowReport};
use super::super::rebalance;
use super::pages::plan::Planning;
use super::route::Spread;
use super::snapshot::Snapshot;
use super::state::ConsoleState;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::output::{JsonMessage, line};
use crate::values;

/// The addresses below `/api`.
pub(super) fn router() -> Router<Arc<ConsoleState>> {
    Router::new()
        .route("/check", get(check))
        .route("/hosts", get(hosts))
        .route("/map", get(map))
        .route("/map/history", get(history))
        .route("/moves", get(moves))
        .route("/moves/{id}", get(one_move))
        .route("/rebalance", get(balance))
        .route("/migrations", get(migrations))
        .route("/locate", get(locate))
        .route("/ids/{id}", get(id))
        .fallback(async || {
            refused(
                StatusCode::NOT_FOUND,
                "nothing has this address",
                Some("docs/console.md"),
            )
        })
}

/// An answer.
struct Json<T>(T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        ([(CONTENT_TYPE, "application/json")], line(self.0)).into_response()
    }
}

fn refused(status: StatusCode, words: &str, remedy: Option<&str>) -> Response {
    (status, Json(JsonMessage::refusal(words, remedy))).into_response()
}

fn failed(status: StatusCode, failure: &Failure) -> Response {
    refused(status, &failure.one_line(), failure.advice())
}

/// What was seen last, or why nothing was.
async fn last_look(served: &ConsoleState) -> Result<Arc<Snapshot>, Response> {
    served.collector.fresh().await.ok_or_else(|| {
        refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "the hosts are still being asked",
            None,
        )
    })
}

/// A response of what was seen, with the time of that look, or of the map if it is older.
fn dated(seen: &Snapshot, answer: impl Serialize) -> Response {
    let mut response = Json(answer).into_response();
    let at = seen.map_before.as_ref().map_or(seen.at, |before| before.0);
    let at = DateTimePrinter::new().timestamp_to_rfc9110_string(&at);
    // Only a year after 9999 has no such form.
    if let Some(at) = at.ok().and_then(|at| HeaderValue::try_from(at).ok()) {
        response.headers_mut().insert(LAST_MODIFIED, at);
    }
    response
}

/// Answers from what was seen last, or returns the reason why nothing was.
async fn with<T: Serialize>(
    served: &ConsoleState,
    answer: impl FnOnce(&Snapshot) -> Option<T>,
) -> Response {
    let seen = match last_look(served).await {
        Ok(seen) => seen,
        Err(refusal) => return refusal,
    };
    match answer(&seen) {
        Some(answer) => dated(&seen, answer),
        None => {
            let words = seen
                .gathered
                .failure
                .as_deref()
                .unwrap_or("the map cannot be read");
            refused(
                StatusCode::SERVICE_UNAVAILABLE,
                words,
                Some("`pgshard check` says what is wrong"),
            )
        }
    }
}

async fn check(State(served): State<Arc<ConsoleState>>) -> Response {
    let seen = match last_look(&served).await {
        Ok(seen) => seen,
        Err(refusal) => return refusal,
    };
    dated(&seen, Report::about(seen.findings()))
}

async fn hosts(State(served): State<Arc<ConsoleState>>) -> Response {
    with(&served, |seen| {
        seen.gathered.config.as_ref().map(|_| listed(seen))
    })
    .await
}

fn listed(seen: &Snapshot) -> Hosts {
    let host = |(name, host): (&pgshard::map::HostName, &super::super::survey::Host)| {
        let shown = match &host.status {
            Some(status) if host.is_read() => ListedHost::answered(status),
            _ => ListedHost::Silent {
                error: seen.why_silent(name),
            },
        };
        (name.to_string(), shown)
    };
    Hosts {
        hosts: seen.gathered.hosts.iter().map(host).collect(),
    }
}

async fn map(State(served): State<Arc<ConsoleState>>) -> Response {
    with(&served, |seen| {
        Some(MapReport::of(seen.gathered.config.as_ref()?, seen.map()?))
    })
    .await
}

async fn history(State(served): State<Arc<ConsoleState>>) -> Response {
    with(&served, |seen| {
        seen.map()?;
        Some(History {
            versions: versions(&seen.history, seen.history.len()),
        })
    })
    .await
}

async fn moves(State(served): State<Arc<ConsoleState>>) -> Response {
    with(&served, |seen| {
        seen.gathered.config.as_ref()?;
        Some(ListReport::of(
            &seen.gathered.entries,
            &seen.reverse_streams,
        ))
    })
    .await
}

async fn one_move(State(served): State<Arc<ConsoleState>>, Path(id): Path<String>) -> Response {
    let seen = match last_look(&served).await {
        Ok(seen) => seen,
        Err(refusal) => return refusal,
    };
    let id = match seen.move_named(&id) {
        Ok(id) => id,
        Err(failure) if failure.exit() == Exit::Usage => {
            return failed(StatusCode::NOT_FOUND, &failure);
        }
        Err(failure) => return failed(StatusCode::SERVICE_UNAVAILABLE, &failure),
    };
    let entries = seen.entries_of(id);
    if entries.is_empty() {
        return refused(
            StatusCode::NOT_FOUND,
            "no host that answers knows this move",
            Some("/api/moves lists them"),
        );
    }
    dated(&seen, ShowReport::about(id, entries))
}

#[derive(Debug, Default, Deserialize)]
struct By {
    by: Option<String>,
}

async fn balance(State(served): State<Arc<ConsoleState>>, uri: Uri) -> Response {
    let by = Query::<By>::try_from_uri(&uri)
        .ok()
        .and_then(|Query(by)| by.by)
        .unwrap_or_else(|| Spread::default().name().to_owned());
    let Some((spread, ..)) = Spread::ALL.iter().find(|(_, name, _)| *name == by) else {
        return refused(
            StatusCode::BAD_REQUEST,
            "a plan is by count, bytes or writes",
            None,
        );
    };
    let spread = *spread;
    let seen = match last_look(&served).await {
        Ok(seen) => seen,
        Err(refusal) => return refusal,
    };
    let answered = tokio::task::spawn_blocking(move || match Planning::new(&seen, spread) {
        Ok(planning) => dated(
            &seen,
            rebalance::json(&planning.plan, &planning.by, planning.waves),
        ),
        Err(why) => refused(
            StatusCode::SERVICE_UNAVAILABLE,
            &why,
            Some("`pgshard check` says what is wrong"),
        ),
    });
    answered
        .await
        .unwrap_or_else(|_| refused(StatusCode::INTERNAL_SERVER_ERROR, "there is no plan", None))
}

async fn migrations(State(served): State<Arc<ConsoleState>>) -> Response {
    with(&served, |seen| {
        let gathered = &seen.gathered;
        Some(Status::by(
            &gathered.migrations,
            &gathered.mistakes,
            seen.map()?,
            &gathered.survey,
        ))
    })
    .await
}

#[derive(Debug, Default, Deserialize)]
struct Place {
    key: Option<String>,
    id: Option<String>,
    shard: Option<u16>,
}

impl Place {
    fn target(self) -> Result<Target, Failure> {
        match (self.key, self.id, self.shard) {
            (Some(key), None, None) => Ok(Target::Key(key)),
            (None, Some(id), None) => values::id(&id).map(Target::Id).map_err(Failure::usage),
            (None, None, Some(shard)) => ShardId::new(shard)
                .map(Target::Shard)
                .ok_or_else(|| Failure::usage("the last shard is 8191")),
            _ => Err(Failure::usage("locate what? ?key=, ?id= or ?shard=")),
        }
    }
}

async fn locate(State(served): State<Arc<ConsoleState>>, uri: Uri) -> Response {
    let place = Query::<Place>::try_from_uri(&uri)
        .map(|Query(place)| place)
        .unwrap_or_default();
    let target = match place.target() {
        Ok(target) => target,
        Err(failure) => return failed(StatusCode::BAD_REQUEST, &failure),
    };
    let seen = match last_look(&served).await {
        Ok(seen) => seen,
        Err(refusal) => return refusal,
    };
    let (Some(config), Some(map)) = (&seen.gathered.config, seen.map()) else {
        return refused(
            StatusCode::SERVICE_UNAVAILABLE,
            "the map cannot be read",
            Some("`pgshard check`"),
        );
    };
    match located(target, config, map) {
        Ok(located) => dated(&seen, located),
        Err(failure) => failed(StatusCode::NOT_FOUND, &failure),
    }
}

async fn id(State(served): State<Arc<ConsoleState>>, Path(id): Path<String>) -> Response {
    match values::id(&id) {
        Ok(id) => {
            with(&served, |seen| {
                Some(DecodedId::new(
                    id,
                    Some(seen.gathered.config.as_ref()?.cluster.epoch),
                ))
            })
            .await
        }
        Err(error) => failed(StatusCode::BAD_REQUEST, &Failure::usage(error)),
    }
}
